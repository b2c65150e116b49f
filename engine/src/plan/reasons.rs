//! Why each setting is what it is, and what another value would do: the same search, asked once more.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::propose::{Proposal, Task, asks_for_nf4, cuts, exact_base, is_small_state};
use super::remedy::{with_compute, with_rank};
use super::{PlanWarning, check, cost};
use crate::config::{BaseFormat, ComputeDtype, OptimizerKind, Recompute, RunConfig, Settings, Target};
use crate::format;
use crate::hardware::TrainOn;

/// A setting, its reason and a counterfactual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Reason {
    /// Stable name: `rank`, `length`, `packing`, `batch`, `recompute`, `host_memory` (where something waits there), `weight_cache`
    /// (where there is one), `optimizer`, `base`, `compute` (where it is f16 or chosen), `learning_rate`, `epochs`, `warmup`,
    /// `evaluation`.
    pub setting: String,
    /// As shown, "2 × 8 = 16".
    pub value: String,
    /// The person fixed it; otherwise it is proposed.
    pub fixed: bool,
    /// Stable name of the reason, for translations: `recompute.free_memory`.
    pub code: String,
    /// One or two sentences.
    pub why: String,
    /// "Rank 32: +38 MiB, +2 min".
    pub if_changed: String,
    /// The same in numbers, where the change is another plan.
    pub change: Option<Change>,
}

/// What another value of a setting would do, everything open proposed anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Change {
    /// The other value, as shown.
    pub value: String,
    /// Planned bytes more (or, negative, less).
    #[ts(type = "number")]
    pub bytes: i64,
    /// Seconds of the whole run more (or, negative, less).
    pub time_s: f64,
    /// Examples more (or, negative, fewer) that are longer than the length.
    #[ts(type = "number")]
    pub n_over_length: i64,
    /// Whether that fits.
    pub fits: bool,
    /// With this config.
    pub config: RunConfig,
}

struct Writer<'a> {
    task: &'a Task<'a>,
    config: &'a RunConfig,
    proposal: &'a Proposal,
    with_changes: bool,
}

/// One reason for each setting a person can choose, where wanted with what another value would do.
pub(super) fn reasons(task: &Task, config: &RunConfig, proposal: &Proposal, with_changes: bool) -> Vec<Reason> {
    let w = Writer { task, config, proposal, with_changes };
    let all = [
        Some(w.rank()),
        Some(w.length()),
        Some(w.packing()),
        Some(w.batch()),
        Some(w.recompute()),
        w.host_memory(),
        w.weight_cache(),
        Some(w.optimizer()),
        Some(w.base()),
        w.compute(),
        Some(w.learning_rate()),
        Some(w.warmup()),
        Some(w.epochs()),
        Some(w.evaluation()),
    ];
    all.into_iter().flatten().collect()
}

impl Writer<'_> {
    fn settings(&self) -> &Settings {
        &self.proposal.settings
    }

    fn change(&self, value: String, with: impl FnOnce(&mut RunConfig)) -> Option<Change> {
        if !self.with_changes {
            return None;
        }
        let mut config = self.config.clone();
        with(&mut config);
        // A counterfactual that would be refused, or makes no sense for this data, is none.
        check::wishes(self.task.shape, &config, self.task.hardware).ok()?;
        let other = self.task.propose(&config).ok()?;
        Some(Change {
            value,
            bytes: signed(other.planned_bytes, self.proposal.planned_bytes),
            time_s: other.time.total_s - self.proposal.time.total_s,
            n_over_length: other.data.n_over_length as i64 - self.proposal.data.n_over_length as i64,
            fits: other.fits(),
            config,
        })
    }

    fn reason(
        &self,
        setting: &str,
        value: String,
        fixed: bool,
        (code, why): (&str, String),
        change: Option<Change>,
    ) -> Reason {
        let if_changed = change.as_ref().map(in_words).unwrap_or_default();
        let code = format!("{setting}.{code}");
        Reason { setting: setting.into(), value, fixed, code, why, if_changed, change }
    }

    fn rank(&self) -> Reason {
        let lora = &self.settings().lora;
        let layers = if lora.targets.len() == Target::ALL.len() {
            "All seven linear layers learn.".to_string()
        } else {
            format!("{} of seven linear layers learn.", lora.targets.len())
        };
        let (code, size) = match lora.rank {
            0..8 => ("small", "Little to learn with: fits a narrow task or a tight memory."),
            8..=16 => ("usual", "Enough for tone, format and a task."),
            17..=64 => ("large", "Room for new habits; more than most tasks use."),
            _ => ("very_large", "Seldom better than rank 64, and slower."),
        };
        let other = lora.rank * 2;
        let change = self.change(format!("Rank {other}"), |config| with_rank(config, other));
        let fixed = lora.rank != crate::config::LoraConfig::default().rank;
        self.reason("rank", lora.rank.to_string(), fixed, (code, format!("{size} {layers}")), change)
    }

    fn length(&self) -> Reason {
        let (settings, data) = (self.settings(), self.proposal.data);
        let n = self.task.lengths.n_examples;
        let share = 100.0 * (1.0 - data.n_over_length as f64 / n.max(1) as f64);
        let fate = if cuts(self.config) { "cut" } else { "left out" };
        let why = if data.n_over_length == 0 {
            ("covers_all", format!("The longest example has {} tokens: all fit whole.", format::count(data.max_tokens)))
        } else {
            // Never "100 %" while one is cut.
            let share = (share * 10.0).floor() / 10.0;
            let over = format::counted(data.n_over_length, "example");
            (
                "covers_share",
                format!(
                    "About {share:.1} % fit whole; {over} of up to {} tokens {} {fate}.",
                    format::count(data.max_tokens),
                    if data.n_over_length == 1 { "is" } else { "are" }
                ),
            )
        };
        let whole = self.task.length_of_all().filter(|&length| length > settings.length);
        let half = self.task.rounded(settings.length / 2);
        let other = whole.or((half < settings.length).then_some(half));
        let change = other.and_then(|length| {
            self.change(format!("{} tokens", format::count(length)), |config| config.data.length = Some(length))
        });
        let value = format!("{} tokens", format::count(settings.length));
        self.reason("length", value, self.config.data.length.is_some(), why, change)
    }

    fn packing(&self) -> Reason {
        let settings = self.settings();
        let mean = self.proposal.mean_tokens.round() as usize;
        let why = if settings.packing {
            let sequences = self.proposal.data.n_sequences;
            (
                "short_examples",
                format!(
                    "Examples have {mean} tokens on average: {} fill {}. They never see each other.",
                    format::count(self.proposal.data.n_train),
                    format::counted(sequences, "sequence")
                ),
            )
        } else {
            ("long_examples", format!("Examples have {mean} tokens on average; one to a sequence, without padding."))
        };
        let other = !settings.packing;
        let name = if other { "Packed" } else { "One by one" };
        let change = self.change(name.into(), |config| config.data.packing = Some(other));
        let value = if settings.packing { "packed" } else { "one by one" };
        let fixed = self.config.data.packing.is_some();
        let code = if fixed { "fixed" } else { why.0 };
        self.reason("packing", value.into(), fixed, (code, why.1), change)
    }

    fn batch(&self) -> Reason {
        let (micro, accumulation) = (self.settings().micro_batch, self.settings().accumulation);
        let effective = micro * accumulation;
        let config = self.config;
        let fixed = config.micro_batch.or(config.accumulation).or(config.effective_batch).is_some();
        let why = match (micro, accumulation) {
            (_, 1) if fixed => ("fixed", format!("As you chose: {effective} at once.")),
            (1, 1) => ("few_examples", "Few sequences: every one makes a step.".to_string()),
            (_, 1) => ("at_once", format!("All {effective} fit at once.")),
            _ => (
                "accumulated",
                format!("{accumulation} micro-batches of {micro} train exactly like one batch of {effective}."),
            ),
        };
        let other = if accumulation % 2 == 0 {
            Some((micro * 2, accumulation / 2))
        } else if micro % 2 == 0 {
            Some((micro / 2, accumulation * 2))
        } else {
            None
        };
        let change = other.and_then(|(micro, accumulation)| {
            self.change(format!("{micro} × {accumulation}"), |config| {
                (config.micro_batch, config.accumulation) = (Some(micro), Some(accumulation));
                config.effective_batch = None;
            })
        });
        self.reason("batch", format!("{micro} × {accumulation} = {effective}"), fixed, why, change)
    }

    fn recompute(&self) -> Reason {
        let mode = self.settings().recompute;
        let why = match mode {
            Recompute::N => ("free_memory", "Everything kept fits, and nothing is computed twice."),
            Recompute::C1 => ("part", "Keeping everything does not fit; attention is kept, the rest computed again."),
            Recompute::C0 => ("tight", "Memory is tight: only each layer's input is kept. The result is the same."),
        };
        let fixed = self.config.recompute.is_some();
        let why = if fixed {
            ("fixed", "As you chose; the result is the same in all modes.".to_string())
        } else {
            (why.0, why.1.to_string())
        };
        let other = if mode == Recompute::N { Recompute::C0 } else { Recompute::N };
        let change = self.change(mode_name(other).into(), |config| {
            (config.recompute, config.n_layers_eased) = (Some(other), None);
        });
        let value = match self.settings().n_layers_eased {
            0 => mode_name(mode).into(),
            eased => {
                let (less, of) = (mode_name(mode.eased()), self.task.shape.n_layers);
                format!("{}; {} in {eased} of {of} layers", mode_name(mode), less.to_lowercase())
            }
        };
        self.reason("recompute", value, fixed, why, change)
    }

    /// What waits in system memory, or goes through in parts, so that the rest fits; `None` where nothing does.
    fn host_memory(&self) -> Option<Reason> {
        let (settings, config) = (self.settings(), self.config);
        let inputs = settings.offload_inputs.then(|| "inputs of the layers".to_string());
        let n_streamed = settings.n_layers_streamed;
        let weights =
            (n_streamed > 0).then(|| format!("weights of {n_streamed} of {} layers", self.task.shape.n_layers));
        let rows = settings.mlp_rows.map(|rows| format!("MLP by {} tokens", format::count(rows)));
        let waits = inputs.is_some() || weights.is_some();
        let parts = [
            (inputs, config.offload_inputs.is_some()),
            (weights, config.n_layers_streamed.is_some()),
            (rows, config.mlp_rows.is_some()),
        ];
        let (parts, by_hand): (Vec<String>, Vec<bool>) =
            parts.into_iter().filter_map(|(part, by_hand)| Some((part?, by_hand))).unzip();
        if parts.is_empty() {
            return None;
        }
        let fixed = by_hand.iter().all(|&by_hand| by_hand);
        let why = match (fixed, waits) {
            (true, _) => ("fixed", "As you chose; the result is the same."),
            (false, true) => {
                ("tight", "They wait in system memory and are copied while the card computes. The result is the same.")
            }
            (false, false) => ("parts", "In one piece it does not fit. The result is the same."),
        };
        let why = (why.0, why.1.to_string());
        let all_on_card = settings.max_tokens();
        let name = match settings.train_on {
            TrainOn::Card => "All on the card",
            TrainOn::Processor => "In one piece",
        };
        let change = self.change(name.into(), |config| {
            (config.offload_inputs, config.n_layers_streamed) = (Some(false), Some(0));
            config.mlp_rows = Some(all_on_card);
        });
        Some(self.reason("host_memory", parts.join(", "), fixed, why, change))
    }

    /// Weights that stay dequantised; `None` where there are none, unless that was asked for.
    fn weight_cache(&self) -> Option<Reason> {
        let n = self.settings().n_layers_cached;
        let fixed = self.config.n_layers_cached.is_some();
        if n == 0 && !fixed {
            return None;
        }
        let why = if fixed {
            ("fixed", "As you chose; the result is the same.".to_string())
        } else {
            ("left_over", "Memory is left over, so these weights are dequantised once. The result is the same.".into())
        };
        let (value, other) = match n {
            0 => ("none".to_string(), None),
            n => (format!("{n} of {} layers", self.task.shape.n_layers), Some(0)),
        };
        let change = self.change(other.map_or("As many as fit".into(), |_| "None".into()), |config| {
            config.n_layers_cached = other;
        });
        Some(self.reason("weight_cache", value, fixed, why, change))
    }

    fn optimizer(&self) -> Reason {
        let settings = self.settings();
        let n = cost::lora_elements(self.task.shape, &settings.lora);
        let (wide, narrow) =
            (cost::optimizer_bytes(n, OptimizerKind::AdamW32), cost::optimizer_bytes(n, OptimizerKind::AdamW8));
        let share = |bytes: u64| 100.0 * bytes as f64 / self.proposal.budget.total_bytes.max(1) as f64;
        let fixed = self.config.optimizer.kind.is_some();
        let (code, other) = match settings.optimizer {
            OptimizerKind::AdamW32 => ("small_state", OptimizerKind::AdamW8),
            OptimizerKind::AdamW8 if is_small_state(n, &self.proposal.budget) => ("tight", OptimizerKind::AdamW32),
            OptimizerKind::AdamW8 => ("large_state", OptimizerKind::AdamW32),
        };
        let code = if fixed { "fixed" } else { code };
        let of = match self.task.hardware.train_on {
            TrainOn::Card => "the card",
            TrainOn::Processor => "system memory",
        };
        let short = if code == "tight" { ", for which there is no room" } else { "" };
        let why =
            format!("32-bit state takes {:.1} % of {of}{short}; 8-bit state {:.1} %.", share(wide), share(narrow));
        let change = self.change(optimizer_name(other).into(), |config| config.optimizer.kind = Some(other));
        self.reason("optimizer", format!("AdamW, {}", optimizer_name(settings.optimizer)), fixed, (code, why), change)
    }

    fn base(&self) -> Reason {
        let base = self.settings().base;
        let fixed = self.config.base.is_some();
        let why = match (fixed, base) {
            (true, _) => ("fixed", "As you chose. The adapter, sums and loss are in 32 bit either way."),
            (false, BaseFormat::F32 | BaseFormat::Half) => ("fits", "The exact base fits, so nothing is rounded."),
            (false, BaseFormat::Nf4) if asks_for_nf4(self.config) => {
                ("layers", "Only an NF4 base has layers that are streamed or kept dequantised, as you chose.")
            }
            (false, BaseFormat::Nf4) => ("tight", "The exact base does not fit. Sums and loss stay in 32 bit."),
        };
        let exact = exact_base(self.settings().compute);
        let other = if base == exact { BaseFormat::Nf4 } else { exact };
        let change = self.change(base_name(other).into(), |config| config.base = Some(other));
        self.reason("base", base_name(base).into(), fixed, (why.0, why.1.into()), change)
    }

    /// Where it is what every card from the RTX 30 series on does, there is nothing to say.
    fn compute(&self) -> Option<Reason> {
        let compute = self.settings().compute;
        let fixed = self.config.compute.is_some();
        let why = match (fixed, compute) {
            (true, ComputeDtype::F16) => (
                "fixed_f16",
                "As you chose. The loss is scaled so that small gradients are kept; past 65,504 the run ends.",
            ),
            (true, _) => ("fixed", "As you chose. Sums, norms and the loss are in 32 bit either way."),
            (false, ComputeDtype::F16) => (
                "no_bf16",
                "This card has no bf16. The loss is scaled so that small gradients are kept; past 65,504 the run ends.",
            ),
            (false, _) => return None,
        };
        let proposed = self.task.hardware.compute_dtype();
        let other = if compute == proposed { ComputeDtype::F32 } else { proposed };
        let change = self.change(other.name().into(), |config| with_compute(config, other));
        Some(self.reason("compute", compute.name().into(), fixed, (why.0, why.1.into()), change))
    }

    fn learning_rate(&self) -> Reason {
        let settings = self.settings();
        let effective = settings.micro_batch * settings.accumulation;
        let schedule = format!("{:?}", settings.schedule).to_lowercase();
        let usual = crate::config::OptimizerConfig::default().learning_rate;
        let fixed = settings.learning_rate != usual;
        let why = if fixed {
            ("fixed", format!("As you chose; usual for LoRA is {}.", format::rate(usual)))
        } else {
            ("usual", format!("Usual for LoRA, at batch {effective} too."))
        };
        let mut reason = self.reason(
            "learning_rate",
            format!("{}, {schedule}", format::rate(settings.learning_rate)),
            fixed,
            why,
            None,
        );
        reason.if_changed =
            format!("{}: learns slower, forgets less. No cost.", format::rate(settings.learning_rate / 2.0));
        reason
    }

    fn warmup(&self) -> Reason {
        let settings = self.settings();
        let fixed = self.config.optimizer.warmup_steps.is_some();
        let (code, why) = if fixed {
            ("fixed", "As you chose.".to_string())
        } else {
            ("share", format!("3 % of {}.", format::counted(settings.n_steps, "step")))
        };
        let mut reason =
            self.reason("warmup", format::counted(settings.warmup_steps, "step"), fixed, (code, why), None);
        reason.if_changed = "Longer: gentler start. No cost.".into();
        reason
    }

    fn epochs(&self) -> Reason {
        let (time, data) = (&self.proposal.time, self.proposal.data);
        let by_steps = self.config.max_steps;
        let fixed = by_steps.is_some() || self.config.epochs.is_some();
        let epochs = format::plain(time.epochs, 2);
        let steps = format::counted(time.n_steps, "step");
        let usual = format!("{epochs} passes over {}, {steps}", format::counted(data.n_train, "example"));
        let why = if fixed {
            ("fixed", format!("As you chose: {steps}."))
        } else if data.is_evaluated(self.config) {
            ("usual", format!("{usual}; the best evaluation is kept."))
        } else {
            ("usual_unevaluated", format!("{usual}."))
        };
        let change = match by_steps {
            Some(n) if n > 1 => {
                let half = n / 2;
                self.change(format::counted(half, "step"), |config| config.max_steps = Some(half))
            }
            Some(_) => None,
            None => {
                let other = if time.epochs > 1.0 { time.epochs - 1.0 } else { time.epochs + 1.0 };
                self.change(format::plain(other, 2), |config| config.epochs = Some(other))
            }
        };
        self.reason("epochs", epochs, fixed, why, change)
    }

    fn evaluation(&self) -> Reason {
        let (settings, data) = (self.settings(), self.proposal.data);
        let fixed = self.config.evaluation.every_steps.is_some();
        let file = self.config.data.evaluation_path.is_some();
        if !data.is_evaluated(self.config) {
            let why = ("off", "No example is held out, so nothing is evaluated.".to_string());
            return self.reason("evaluation", "off".into(), fixed, why, None);
        }
        let every = settings.evaluate_every_steps;
        let held_out = if file {
            "A file of held-out examples is given.".into()
        } else {
            format!("{} held out.", format::counted(data.n_held_out, "example"))
        };
        let safe = format::duration(settings.checkpoints.every_seconds as f64);
        let why = format!("{held_out} Also saves every {safe}.");
        let half = (every / 2).max(1);
        let change = (half < every)
            .then(|| {
                self.change(format!("Every {}", format::counted(half, "step")), |config| {
                    config.evaluation.every_steps = Some(half);
                })
            })
            .flatten();
        let code = if file { "file" } else { "held_out" };
        self.reason("evaluation", format!("every {}", format::counted(every, "step")), fixed, (code, why), change)
    }
}

fn mode_name(mode: Recompute) -> &'static str {
    match mode {
        Recompute::N => "Nothing (N)",
        Recompute::C1 => "Part (C1)",
        Recompute::C0 => "Most (C0)",
    }
}

fn base_name(base: BaseFormat) -> &'static str {
    match base {
        BaseFormat::F32 => "32-bit base",
        BaseFormat::Half => "16-bit base",
        BaseFormat::Nf4 => "NF4 base",
    }
}

/// The settings that memory and time depend on: "NF4 base, rank 16, 2,048 tokens, 1 × 16, AdamW 8-bit, recomputes: most (c0)".
pub fn settings_in_words(settings: &Settings) -> String {
    format!(
        "{}, rank {}, {}, {} × {}, AdamW {}, recomputes: {}",
        base_name(settings.base),
        settings.lora.rank,
        format::counted(settings.length, "token"),
        settings.micro_batch,
        settings.accumulation,
        optimizer_name(settings.optimizer),
        mode_name(settings.recompute).to_lowercase()
    )
}

fn optimizer_name(kind: OptimizerKind) -> &'static str {
    match kind {
        OptimizerKind::AdamW32 => "32-bit",
        OptimizerKind::AdamW8 => "8-bit",
    }
}

fn signed(now: u64, before: u64) -> i64 {
    i64::try_from(i128::from(now) - i128::from(before)).unwrap_or(i64::MAX)
}

/// "+0.39 GiB"; nothing below what the eye would see as a change.
fn bytes_difference(bytes: i64) -> Option<String> {
    let sign = if bytes < 0 { '−' } else { '+' };
    (bytes.unsigned_abs() >= 1 << 19).then(|| format!("{sign}{}", format::bytes(bytes.unsigned_abs())))
}

fn time_difference(seconds: f64) -> Option<String> {
    let sign = if seconds < 0.0 { '−' } else { '+' };
    (seconds.abs() >= 1.0).then(|| format!("{sign}{}", format::duration(seconds.abs())))
}

fn over_difference(n: i64) -> Option<String> {
    let sign = if n < 0 { '−' } else { '+' };
    (n != 0).then(|| format!("{sign}{} too long", format::counted(n.unsigned_abs() as usize, "example")))
}

fn in_words(change: &Change) -> String {
    let differences =
        [over_difference(change.n_over_length), bytes_difference(change.bytes), time_difference(change.time_s)];
    let mut parts: Vec<String> = differences.into_iter().flatten().collect();
    if parts.is_empty() {
        parts.push("no cost".into());
    }
    if !change.fits {
        parts.push("does not fit".into());
    }
    format!("{}: {}", change.value, parts.join(", "))
}

/// How `other` differs from `proposal`, in the order in which people ask.
pub(super) fn difference(proposal: &Proposal, other: &Proposal) -> String {
    let (a, b) = (&proposal.settings, &other.settings);
    let mut parts = Vec::new();
    if a == b {
        parts.push("the same as proposed".to_string());
    }
    if a.length != b.length {
        parts.push(format!("{} tokens", format::count(b.length)));
        let over = other.data.n_over_length;
        parts.push(if over == 0 {
            "no example too long".into()
        } else {
            format!("{} too long", format::counted(over, "example"))
        });
    }
    if a.base != b.base {
        parts.push(base_name(b.base).into());
    }
    if a.recompute != b.recompute {
        parts.push(format!("recomputes: {}", mode_name(b.recompute).to_lowercase()));
    }
    if (a.micro_batch, a.accumulation) != (b.micro_batch, b.accumulation) {
        parts.push(format!("{} × {}", b.micro_batch, b.accumulation));
    }
    if a.optimizer != b.optimizer {
        parts.push(format!("AdamW {}", optimizer_name(b.optimizer)));
    }
    if a.n_layers_streamed != b.n_layers_streamed {
        parts.push(format!("{} streamed", format::counted(b.n_layers_streamed, "layer")));
    }
    if a.offload_inputs != b.offload_inputs {
        parts.push(format!(
            "inputs of the layers {}",
            if b.offload_inputs { "in system memory" } else { "on the card" }
        ));
    }
    parts.extend(bytes_difference(signed(other.planned_bytes, proposal.planned_bytes)));
    parts.extend(time_difference(other.time.total_s - proposal.time.total_s));
    if !other.fits() {
        parts.push("does not fit".into());
    }
    parts.join(", ")
}

/// Fewer examples than this are learned by heart.
const FEW_EXAMPLES: usize = 50;
/// Share of examples beyond the length that deserves a warning.
const MANY_CUT: f64 = 0.01;
/// Seconds beyond which a run is called long.
const LONG_RUN_S: f64 = 7.0 * 86_400.0;

/// Things to know before the start.
pub(super) fn warnings(task: &Task, config: &RunConfig, proposal: &Proposal) -> Vec<PlanWarning> {
    let mut warnings = Vec::new();
    let mut warn = |code: &str, message: String| warnings.push(PlanWarning { code: code.into(), message });
    let data = proposal.data;
    let n = task.lengths.n_examples;
    if data.n_over_length as f64 > MANY_CUT * n as f64 {
        let fate = if cuts(config) { "cut" } else { "left out" };
        let over = format::count(data.n_over_length);
        let length = format::count(proposal.settings.length);
        warn(
            "many_too_long",
            format!("{over} of {} are longer than {length} tokens and are {fate}.", format::counted(n, "example")),
        );
    }
    if n < FEW_EXAMPLES {
        warn(
            "few_examples",
            format!("{} may be learned by heart rather than understood.", format::counted(n, "example")),
        );
    }
    let lora = &config.lora;
    let narrowest = lora.targets.iter().map(|&t| task.shape.linear(t)).map(|(o, i)| o.min(i)).min().unwrap_or(0);
    if lora.rank > narrowest {
        warn(
            "rank_over_width",
            format!("Rank {} is more than the {narrowest} that the narrowest adapted layer can use.", lora.rank),
        );
    }
    match (task.hardware.train_on, task.hardware.cards.first()) {
        (TrainOn::Processor, Some(card)) => {
            warn("card_not_used", format!("{} is there; this engine trains on the processor.", card.name));
        }
        (TrainOn::Card, _) if !crate::ops::HAS_KERNELS => {
            warn("card_planned_only", "This is a plan for a card; this engine trains on the processor.".into());
        }
        (TrainOn::Card, _) | (TrainOn::Processor, None) => {}
    }
    if let Some(host) = task.host(&proposal.settings).filter(|host| host.bytes > host.budget_bytes) {
        // By hand only: no plan proposes it.
        warn(
            "much_host_memory",
            format!(
                "{} of system memory are pinned for what waits there, of {} that are free: other programs may run short.",
                format::bytes(host.bytes),
                format::bytes(host.free_bytes)
            ),
        );
    }
    if data.is_evaluated(config) && config.evaluation.n_samples > 0 && proposal.settings.n_samples == 0 {
        warn("no_samples", "Held-out prompts are not answered at evaluations: there is no memory for it.".into());
    }
    if proposal.time.total_s > LONG_RUN_S {
        warn(
            "very_long",
            format!(
                "This takes about {}. A smaller model, fewer passes or a card would shorten it.",
                format::duration(proposal.time.total_s)
            ),
        );
    }
    if config.evaluation.patience.is_some() && !data.is_evaluated(config) {
        warn("patience_without_evaluation", "Early stopping needs held-out examples; none are held out.".into());
    }
    warnings
}
