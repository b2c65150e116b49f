//! A proof as it grows, check by check.

use candle_core::{Device, Tensor};

use super::{AnswerCheck, Check, ExportKind, LayerChange, Measured, Proof, Verdict};
use crate::config::{BaseFormat, Target};
use crate::export::shard::ExportDtype;
use crate::export::witness::{self, Distance, Witness};
use crate::export::{Error, merge, merged};
use crate::generate::Generator;
use crate::model::{Adapter, ModelShape, ModelSource, TokenizerBundle};

/// Names that a sentence lists before it says how many more there are.
const LISTED: usize = 3;
/// Error of a whole network over that of one rounded product; three to five are measured.
const NETWORK: f64 = 8.0;
/// The largest of some million logit errors over that: some rows (the first token's, which all others attend to) have
/// several times the error of most.
const LARGEST: f64 = 16.0;
/// Nats below which divergences are the rounding of the f32 logits and of their normalisation, not of the weights.
const LEAST_DIVERGENCE: f64 = 1e-7;
/// How far rounding moves one logit against another, over the same.
const TIE: f64 = 6.0;
/// Share of an adapter's change below which it is worth a remark that rounding swallowed the rest.
const RETAINED: f64 = 0.98;

/// A proof in the making.
pub(super) struct Draft {
    proof: Proof,
    sigma: f64,
}

impl Draft {
    pub(super) fn new(kind: ExportKind, dtype: ExportDtype, shape: &ModelShape, witness: &Witness) -> Self {
        let k = shape.ffn.max(shape.hidden).max(shape.q_dim()) as f64;
        let arithmetic = 2f64.powi(-24) * k.sqrt();
        let storage = dtype.unit_roundoff() / 3f64.sqrt();
        let sigma = NETWORK * witness.logit_scale * (storage + arithmetic);
        let reason = format!(
            "Weights are rounded to {dtype} (relative error up to {u:e}) and sums are made in f32. With logits that have \
             a standard deviation of {scale} over the vocabulary, a logit's error has one of at most {sigma}: {NETWORK} \
             times the relative error of one rounded product. Limits: {LARGEST} of these for the largest difference, \
             {TIE} for two tokens that change places, its square for the mean divergence.",
            dtype = dtype.name(),
            u = dtype.unit_roundoff(),
            scale = short(witness.logit_scale),
            sigma = short(sigma),
        );
        let measured = Measured {
            n_prompts: witness.prompts.len(),
            n_logit_rows: witness.from_base.n_rows,
            logit_scale: witness.logit_scale,
            sigma,
            tolerance_reason: reason,
            base_max_abs_difference: finite(&witness.from_base, witness.from_base.max_abs),
            base_mean_kl: finite(&witness.from_base, witness.from_base.mean_kl()),
            ..Measured::default()
        };
        let (verdict, checks, remarks) = (Verdict::NotProven, Vec::new(), Vec::new());
        Self { proof: Proof { kind, dtype, verdict, checks, remarks, measured }, sigma }
    }

    fn check(&mut self, code: &str, name: &str, value: String, ok: bool, limit: impl Into<String>) {
        let (code, name, limit) = (code.into(), name.into(), limit.into());
        self.proof.checks.push(Check { code, name, value, ok, limit });
    }

    fn remark(&mut self, remark: String) {
        self.proof.remarks.push(remark);
    }

    pub(super) fn loads(&mut self) {
        self.check("loads", "Loaded back from the disk", "yes".into(), true, "by the ordinary loader");
    }

    pub(super) fn does_not_load(mut self, error: &dyn std::error::Error) -> Proof {
        self.check("loads", "Loaded back from the disk", error.to_string(), false, "by the ordinary loader");
        self.finish()
    }

    /// Ids, text, template and special tokens are the same with both tokenizers.
    pub(super) fn tokenizer(
        &mut self,
        base: &TokenizerBundle,
        export: &TokenizerBundle,
        witness: &Witness,
        stop_ids: &[u32],
    ) {
        let mut faults = Vec::new();
        for (i, prompt) in witness.prompts.iter().enumerate() {
            let ids = |bundle: &TokenizerBundle, special| {
                bundle.tokenizer.encode_fast(prompt.text.as_str(), special).ok().map(|e| e.get_ids().to_vec())
            };
            let text = |bundle: &TokenizerBundle| bundle.tokenizer.decode(&prompt.input_ids, false).ok();
            let same = [false, true].iter().all(|&special| ids(base, special) == ids(export, special));
            if !same || text(base) != text(export) {
                faults.push(format!("prompt {} is encoded differently", i + 1));
            }
        }
        if base.chat_template != export.chat_template {
            faults.push("the chat template differs".into());
        }
        let special = |b: &TokenizerBundle| (b.bos.clone(), b.eos.clone(), b.pad.clone(), b.add_bos);
        if special(base) != special(export) {
            faults.push("special tokens differ".into());
        }
        faults.extend(
            stop_ids.iter().filter(|id| !export.eos_ids.contains(id)).map(|id| format!("does not stop at token {id}")),
        );
        let value = match faults.len() {
            0 => format!("equal on {} prompts", witness.prompts.len()),
            _ => listed(&faults),
        };
        self.check("tokenizer", "Token ids", value, faults.is_empty(), "equal to the base's");
    }

    /// Every tensor of the export against base and adapter, recomputed, to the last bit.
    pub(super) fn merged_weights(
        &mut self,
        source: &ModelSource,
        adapter: &Adapter,
        base: BaseFormat,
        export: &ModelSource,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let dtype = self.proof.dtype;
        let (tensors, _) = merged::tensors(source)?;
        let total = tensors.len();
        let mut wrong = Vec::new();
        for (done, tensor) in tensors.iter().enumerate() {
            progress(done, total);
            let expected = merge::tensor(source, adapter, base, &tensor.name, true)?;
            let got = match export.tensor_f32(&tensor.name) {
                Ok((shape, values)) if shape == tensor.shape => values,
                Ok(_) => {
                    wrong.push(format!("{} has another shape", tensor.name));
                    continue;
                }
                Err(error) => {
                    wrong.push(error.to_string());
                    continue;
                }
            };
            let differing = got.iter().zip(&expected.values).filter(|(g, e)| **g != dtype.round(**e)).count();
            if differing > 0 {
                wrong.push(format!("{} differs in {differing} of {} values", tensor.name, got.len()));
            }
            if let (Some((layer, target)), Some(before)) = (merge::linear(&tensor.name), &expected.base) {
                self.proof.measured.layers.push(change(layer, target, before, &expected.values, &got));
            }
        }
        progress(total, total);
        let names = export.tensor_names();
        wrong.extend(
            names.iter().filter(|n| !tensors.iter().any(|t| t.name == **n)).map(|n| format!("{n} should not be there")),
        );
        let value = match wrong.len() {
            0 => format!("{total} of {total} tensors as computed"),
            n => format!("{n} wrong: {}", listed(&wrong)),
        };
        let limit = format!("W + (alpha / rank) B A, rounded to {} once", dtype.name());
        self.check("weights", "Weights", value, wrong.is_empty(), limit);
        self.proof.measured.wrong_tensors = wrong;
        self.change();
        Ok(())
    }

    /// The adapter read back is the trained one, to the last bit.
    pub(super) fn adapter_weights(&mut self, trained: &Adapter, read: &Adapter) -> Result<(), Error> {
        let mut wrong = Vec::new();
        if trained.lora().scale() != read.lora().scale() || trained.lora().rank != read.lora().rank {
            let form = |a: &Adapter| format!("rank {}, scale {}", a.lora().rank, a.lora().scale());
            wrong.push(format!("{}, trained with {}", form(read), form(trained)));
        }
        let device = &Device::Cpu;
        let (mut n, rank, scale) = (0, read.lora().rank, read.lora().scale());
        for (layer, target) in trained.names() {
            n += 1;
            let halves = |a: &Adapter| (a.a(layer, target), a.b(layer, target));
            if halves(trained) != halves(read) {
                wrong.push(merge_name(layer, target));
            }
            let (Some(a), Some(b)) = halves(read) else { continue };
            let (cols, rows) = (a.len() / rank, b.len() / rank);
            let a = Tensor::from_vec(a, (rank, cols), device)?;
            let b = Tensor::from_vec(b, (rows, rank), device)?;
            let change = merge::change_norm(&a, &b, scale)?;
            self.proof.measured.layers.push(LayerChange { layer, target, change, relative: None, retained: None });
        }
        let extra = read.names().filter(|key| !trained.names().any(|k| k == *key));
        wrong.extend(extra.map(|(layer, target)| format!("{} was not trained", merge_name(layer, target))));
        let value = match wrong.len() {
            0 => format!("{n} of {n} layers as trained"),
            n => format!("{n} wrong: {}", listed(&wrong)),
        };
        self.check("weights", "Weights", value, wrong.is_empty(), "the trained values, bit for bit");
        self.proof.measured.wrong_tensors = wrong;
        self.change();
        Ok(())
    }

    /// Some layer has to differ from the base's.
    fn change(&mut self) {
        let layers = &self.proof.measured.layers;
        let (n, changed) = (layers.len(), layers.iter().filter(|l| l.change > 0.0).count());
        let largest = layers.iter().max_by(|a, b| a.change.total_cmp(&b.change));
        let value = match largest {
            Some(l) if changed > 0 => {
                let relative = l.relative.map_or_else(String::new, |r| format!(", {} of its weight", percent(r)));
                let name = merge_name(l.layer, l.target);
                format!("{changed} of {n} layers differ, most {name} by {}{relative}", short(l.change))
            }
            _ => "no layer differs from the base".into(),
        };
        let retained: Vec<f64> = layers.iter().filter_map(|l| l.retained).collect();
        let mean = retained.iter().sum::<f64>() / retained.len().max(1) as f64;
        if changed < n && changed > 0 {
            self.remark(format!(
                "{} of {n} adapted layers are as in the base: training left them unchanged.",
                n - changed
            ));
        }
        if !retained.is_empty() && mean < RETAINED {
            self.remark(format!(
                "Rounding to {} keeps {} of what training changed; the rest is smaller than the steps between its \
                 numbers. An export as f32 keeps all of it.",
                self.proof.dtype.name(),
                percent(mean)
            ));
        }
        self.check("change", "Change from the base", value, changed > 0, "at least one layer differs");
    }

    /// Logits and greedy text.
    pub(super) fn behaviour(
        &mut self,
        witness: &Witness,
        export: &mut Generator,
        tokenizer: &TokenizerBundle,
    ) -> Result<(), Error> {
        let base = &witness.from_base;
        let tuned = base.max_abs > 0.0 || base.not_finite;
        let value = format!("up to {} ({} nats on average)", short(base.max_abs), short(base.mean_kl()));
        self.check("tuned", "Tuned logits against the base's", value, tuned, "they differ");

        let distance = witness.compare(export)?;
        let (max_limit, kl_limit) = (LARGEST * self.sigma, (self.sigma * self.sigma).max(LEAST_DIVERGENCE));
        let n = distance.n_rows;
        let measured = &mut self.proof.measured;
        measured.max_abs_difference = finite(&distance, distance.max_abs);
        measured.mean_kl = finite(&distance, distance.mean_kl());
        measured.max_kl = finite(&distance, distance.max_kl);
        measured.n_top1_equal = Some(n - distance.disagreements.len()).filter(|_| !distance.not_finite);
        let number = |x: f64| if distance.not_finite { "not a number".to_string() } else { short(x) };
        let ok = |x: f64, limit: f64| !distance.not_finite && x <= limit;
        let (max_abs, mean_kl) = (distance.max_abs, distance.mean_kl());
        self.check(
            "logits",
            "Logits, largest difference",
            number(max_abs),
            ok(max_abs, max_limit),
            format!("at most {} for {}", short(max_limit), self.proof.dtype.name()),
        );
        self.check(
            "divergence",
            "Next-token distributions, mean KL divergence",
            format!("{} nats", number(mean_kl)),
            ok(mean_kl, kl_limit),
            format!("at most {} nats", short(kl_limit)),
        );
        // Two logits that are closer than their errors may change places.
        let tie = TIE * self.sigma;
        let unexplained = distance.disagreements.iter().filter(|gap| **gap > tie).count();
        let equal = n - distance.disagreements.len();
        self.check(
            "top1",
            "Most probable token",
            format!("equal at {equal} of {n} positions ({})", percent(equal as f64 / n.max(1) as f64)),
            unexplained == 0 && !distance.not_finite,
            format!("equal unless the trained model had the two within {}", short(tie)),
        );
        if unexplained == 0 && !distance.disagreements.is_empty() {
            let widest = distance.disagreements.iter().copied().fold(0.0, f64::max);
            self.remark(format!(
                "At {} of {n} positions the two most probable tokens changed places; the trained model had them at \
                 most {} apart.",
                distance.disagreements.len(),
                short(widest)
            ));
        }
        self.greedy(witness, export, tokenizer, tie)
    }

    fn greedy(
        &mut self,
        witness: &Witness,
        export: &mut Generator,
        tokenizer: &TokenizerBundle,
        tie: f64,
    ) -> Result<(), Error> {
        let limit = format!("equal unless the trained model had two tokens within {}", short(tie));
        let answers = match witness::answers(export, witness) {
            Ok(answers) => answers,
            Err(error @ crate::generate::Error::NotFinite { .. }) => {
                self.check("greedy", "Greedy text", error.to_string(), false, limit);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let text = |ids: &[u32]| tokenizer.tokenizer.decode(ids, false).unwrap_or_default();
        let (mut n_equal, mut unexplained) = (0, 0);
        for (i, (trained, exported)) in witness.answers.iter().zip(&answers).enumerate() {
            let check = compare(trained, exported, &witness.stop_ids, text);
            match (check.first_difference, check.gap) {
                (None, _) => n_equal += 1,
                (Some(at), Some(gap)) if gap <= tie => {
                    self.remark(format!(
                        "Answer {} differs from its token {} on: the trained model had the two tokens {} apart there, \
                         less than rounding can move them ({}).",
                        i + 1,
                        at + 1,
                        short(gap),
                        short(tie)
                    ));
                }
                _ => unexplained += 1,
            }
            self.proof.measured.answers.push(check);
        }
        let n_tokens: usize = witness.answers.iter().map(|a| a.tokens.len()).sum();
        let value = format!("{n_equal} of {} answers equal ({n_tokens} tokens)", answers.len());
        self.check("greedy", "Greedy text", value, unexplained == 0, limit);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Proof {
        // What matters first comes first.
        self.proof.checks.sort_by_key(|c| c.code != "loads");
        let all_met = self.proof.checks.iter().all(|c| c.ok);
        self.proof.verdict = match (all_met, self.proof.remarks.is_empty()) {
            (true, true) => Verdict::Proven,
            (true, false) => Verdict::ProvenWithRemarks,
            (false, _) => Verdict::NotProven,
        };
        self.proof
    }
}

/// Where two answers part, and how close the trained model had the two tokens.
pub(super) fn compare(
    trained: &witness::Answer,
    exported: &[u32],
    stop_ids: &[u32],
    text: impl Fn(&[u32]) -> String,
) -> AnswerCheck {
    let ours = &trained.tokens;
    let equal = ours.iter().zip(exported).take_while(|(a, b)| a == b).count();
    let parts = equal < ours.len().max(exported.len());
    let gap = trained.candidates.get(equal).filter(|_| parts).and_then(|candidates| {
        let (_, best) = *candidates.first()?;
        // An answer that ended there chose a stop token, whichever was nearest.
        let other = match exported.get(equal) {
            Some(token) => candidates.iter().find(|(id, _)| id == token),
            None => candidates.iter().find(|(id, _)| stop_ids.contains(id)),
        };
        other.map(|&(_, logit)| f64::from(best) - f64::from(logit))
    });
    AnswerCheck {
        n_tokens: ours.len(),
        first_difference: parts.then_some(equal),
        gap,
        trained: text(ours),
        exported: text(exported),
    }
}

/// The change of a layer as the export has it, against the change that was computed.
fn change(layer: usize, target: Target, before: &[f32], computed: &[f32], got: &[f32]) -> LayerChange {
    let (mut weight, mut wanted, mut found, mut along) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for ((&w, &c), &g) in before.iter().zip(computed).zip(got) {
        let (w, c, g) = (f64::from(w), f64::from(c), f64::from(g));
        weight += w * w;
        wanted += (c - w) * (c - w);
        found += (g - w) * (g - w);
        along += (c - w) * (g - w);
    }
    LayerChange {
        layer,
        target,
        change: found.sqrt(),
        relative: (weight > 0.0).then(|| (found / weight).sqrt()),
        retained: (wanted > 0.0).then(|| along / wanted),
    }
}

fn merge_name(layer: usize, target: Target) -> String {
    format!("layer {layer} {}", target.module())
}

/// The first few, and how many more.
fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    names[..names.len().min(LISTED)].join("; ") + &more
}

fn finite(distance: &Distance, value: f64) -> Option<f64> {
    (!distance.not_finite && value.is_finite()).then_some(value)
}

/// Two or three digits that matter: `0.0123`, `4.2e-9`, `12.3`.
pub(super) fn short(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if (1e-3..1e4).contains(&magnitude) {
        let digits = (2 - magnitude.log10().floor() as i32).clamp(0, 5) as usize;
        let text = format!("{value:.digits$}");
        return match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
            false => text,
        };
    }
    format!("{value:.1e}")
}

pub(super) fn percent(share: f64) -> String {
    format!("{} %", short(share * 100.0))
}
