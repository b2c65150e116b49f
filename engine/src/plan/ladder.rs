//! What a run does where memory runs out: the same training with fewer bytes, in order of least harm.
//!
//! ```text
//! no cache of weights ──> fewer rows at the head ──> smaller micro-batches, more of them ──> recompute more
//!     ──> the MLP in parts ──> inputs in system memory
//! ```
//!
//! A rung changes how a step is computed, never what is learned: the sequences of a step, their order, their weight in the loss and
//! their dropout stay. The optimizer's 8-bit state, a shorter length or a lower rank are no rungs, they change the training.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::layout::layout;
use crate::config::{Recompute, Settings};
use crate::format;
use crate::hardware::TrainOn;
use crate::model::ModelShape;

/// The settings that the ladder moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
#[allow(missing_docs)] // the fields mean what they mean in Settings
pub struct Rung {
    pub micro_batch: usize,
    pub accumulation: usize,
    pub head_rows: usize,
    pub recompute: Recompute,
    pub n_layers_eased: usize,
    #[serde(default)]
    pub mlp_rows: Option<usize>,
    #[serde(default)]
    pub offload_inputs: bool,
    #[serde(default)]
    pub n_layers_cached: usize,
}

/// The moves, least harm first: each gives the rungs further down in its direction, the nearest first. One that saves nothing where it
/// is tried is passed over.
const MOVES: [fn(&Settings) -> Vec<Rung>; 6] =
    [no_weight_cache, fewer_head_rows, smaller_micro_batches, recompute_more, fewer_mlp_rows, offload_inputs];

/// Fewer rows than this at the head save nothing to speak of.
const LEAST_HEAD_ROWS: usize = 16;
/// With fewer rows than this the products of the MLP no longer use a card.
const LEAST_MLP_ROWS: usize = 128;

impl Rung {
    /// Where `settings` stand.
    pub fn of(settings: &Settings) -> Self {
        Self {
            micro_batch: settings.micro_batch,
            accumulation: settings.accumulation,
            head_rows: settings.head_rows,
            recompute: settings.recompute,
            n_layers_eased: settings.n_layers_eased,
            mlp_rows: settings.mlp_rows,
            offload_inputs: settings.offload_inputs,
            n_layers_cached: settings.n_layers_cached,
        }
    }

    /// `settings` on this rung.
    pub fn apply(self, settings: &Settings) -> Settings {
        Settings {
            micro_batch: self.micro_batch,
            accumulation: self.accumulation,
            head_rows: self.head_rows,
            recompute: self.recompute,
            n_layers_eased: self.n_layers_eased,
            mlp_rows: self.mlp_rows,
            offload_inputs: self.offload_inputs,
            n_layers_cached: self.n_layers_cached,
            ..settings.clone()
        }
    }

    /// What is different on a rung that came after this one, in words.
    pub fn changes(self, to: Rung) -> String {
        let mut changes = Vec::new();
        if self.n_layers_cached != to.n_layers_cached {
            changes.push("no weights kept dequantised".into());
        }
        if self.head_rows != to.head_rows {
            changes.push(format!("{} rows at once at the head instead of {}", to.head_rows, self.head_rows));
        }
        if self.micro_batch != to.micro_batch {
            let n = format::counted(to.micro_batch, "sequence");
            changes.push(format!("{n} at once instead of {}, and {} times a step", self.micro_batch, to.accumulation));
        }
        if self.recompute != to.recompute {
            changes.push(format!("recompute mode {:?} instead of {:?}", to.recompute, self.recompute));
        } else if self.n_layers_eased != to.n_layers_eased {
            let n = format::counted(to.n_layers_eased, "layer");
            changes.push(format!("{n} recomputing less than {:?} instead of {}", to.recompute, self.n_layers_eased));
        }
        if let Some(rows) = to.mlp_rows.filter(|_| self.mlp_rows != to.mlp_rows) {
            changes.push(format!("{rows} rows at once through the MLP"));
        }
        if self.offload_inputs != to.offload_inputs {
            changes.push("the layers' inputs wait in system memory".into());
        }
        changes.join("; ")
    }
}

/// The next rung below `settings`: the first move that takes fewer bytes than they do. None on the last.
pub fn next_rung(shape: &ModelShape, settings: &Settings) -> Option<Rung> {
    let bytes = |settings: &Settings| layout(shape, settings).bytes();
    let now = bytes(settings);
    let below = MOVES.iter().flat_map(|further| further(settings));
    below.into_iter().find(|rung| bytes(&rung.apply(settings)) < now)
}

fn no_weight_cache(settings: &Settings) -> Vec<Rung> {
    vec![Rung { n_layers_cached: 0, ..Rung::of(settings) }]
}

fn fewer_head_rows(settings: &Settings) -> Vec<Rung> {
    let rung = Rung::of(settings);
    let halves = std::iter::successors(Some(rung.head_rows / 2), |rows| Some(rows / 2));
    halves.take_while(|&rows| rows >= LEAST_HEAD_ROWS).map(|head_rows| Rung { head_rows, ..rung }).collect()
}

/// At most half as many sequences at once, and so often that a step has as many as before.
fn smaller_micro_batches(settings: &Settings) -> Vec<Rung> {
    let rung = Rung::of(settings);
    let effective = rung.micro_batch * rung.accumulation;
    let divisors = (1..=rung.micro_batch / 2).rev().filter(|n| effective.is_multiple_of(*n));
    divisors.map(|micro_batch| Rung { micro_batch, accumulation: effective / micro_batch, ..rung }).collect()
}

fn recompute_more(settings: &Settings) -> Vec<Rung> {
    let rung = Rung::of(settings);
    let all = |recompute| Rung { recompute, n_layers_eased: 0, ..rung };
    let further = match rung.recompute {
        Recompute::N => vec![all(Recompute::C1), all(Recompute::C0)],
        Recompute::C1 => vec![all(Recompute::C1), all(Recompute::C0)],
        Recompute::C0 => vec![all(Recompute::C0)],
    };
    further.into_iter().filter(|&to| to != rung).collect()
}

fn fewer_mlp_rows(settings: &Settings) -> Vec<Rung> {
    let rows = settings.max_tokens().min(settings.mlp_rows.unwrap_or(usize::MAX));
    let halves = std::iter::successors(Some(rows / 2), |rows| Some(rows / 2));
    let enough = halves.take_while(|&rows| rows >= LEAST_MLP_ROWS);
    enough.map(|rows| Rung { mlp_rows: Some(rows), ..Rung::of(settings) }).collect()
}

/// On the processor there is no other memory.
fn offload_inputs(settings: &Settings) -> Vec<Rung> {
    let can = settings.train_on == TrainOn::Card && !settings.offload_inputs;
    if can { vec![Rung { offload_inputs: true, ..Rung::of(settings) }] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::super::tests::{computer, examples, fixed, llama_1b, llama_8b};
    use super::*;
    use crate::config::{BaseFormat, ComputeDtype, OptimizerKind, RunConfig};

    fn ladder(shape: &ModelShape, settings: &Settings) -> Vec<Settings> {
        let below = |settings: &Settings| Some(next_rung(shape, settings)?.apply(settings));
        std::iter::successors(Some(settings.clone()), below).collect()
    }

    #[test]
    fn every_rung_takes_fewer_bytes_and_keeps_all_that_decides_what_is_learned() {
        for shape in [llama_1b(), llama_8b()] {
            for (micro_batch, accumulation) in [(1, 1), (4, 2), (6, 3), (7, 1), (16, 1)] {
                for (recompute, n_layers_eased) in [(Recompute::N, 0), (Recompute::C1, 1), (Recompute::C0, 2)] {
                    let settings = Settings {
                        train_on: TrainOn::Card,
                        base: BaseFormat::Nf4,
                        compute: ComputeDtype::Bf16,
                        optimizer: OptimizerKind::AdamW8,
                        length: 1024,
                        micro_batch,
                        accumulation,
                        recompute,
                        n_layers_eased,
                        n_layers_cached: n_layers_eased,
                        ..Settings::default()
                    };
                    let ladder = ladder(&shape, &settings);
                    for pair in ladder.windows(2) {
                        let [before, after] = [&pair[0], &pair[1]].map(|s| layout(&shape, s).bytes());
                        assert!(after < before, "{:?} -> {:?}", Rung::of(&pair[0]), Rung::of(&pair[1]));
                        let (from, to) = (Rung::of(&pair[0]), Rung::of(&pair[1]));
                        assert!(!from.changes(to).is_empty());
                        assert_eq!(to.micro_batch * to.accumulation, micro_batch * accumulation);
                        // All else is as it was.
                        assert_eq!(Rung::of(&settings).apply(&pair[1]), settings);
                    }
                    let last = ladder.last().expect("a ladder has a first rung");
                    assert_eq!((last.micro_batch, last.recompute, last.n_layers_eased), (1, Recompute::C0, 0));
                    assert!(last.offload_inputs && last.mlp_rows.is_some_and(|rows| rows < 1024));
                }
            }
        }
    }

    #[test]
    fn the_least_harmful_move_comes_first() {
        // A small model with a large vocabulary: the logits are the largest buffer.
        let shape = llama_1b();
        let settings = Settings { length: 256, micro_batch: 4, head_rows: 1024, ..Settings::default() };
        let ladder = ladder(&shape, &settings);
        assert_eq!((ladder[1].head_rows, ladder[1].micro_batch), (512, 4));
        let first_split = ladder.iter().position(|s| s.micro_batch < 4).expect("micro-batches are split");
        let first_recompute = ladder.iter().position(|s| s.recompute != Recompute::N).expect("more is recomputed");
        assert!(first_split < first_recompute);
    }

    #[test]
    fn changes_are_said_with_both_values() {
        let from = Rung {
            micro_batch: 4,
            accumulation: 2,
            head_rows: 256,
            recompute: Recompute::C1,
            n_layers_eased: 3,
            mlp_rows: None,
            offload_inputs: false,
            n_layers_cached: 2,
        };
        let to = Rung { micro_batch: 2, accumulation: 4, ..from };
        assert_eq!(from.changes(to), "2 sequences at once instead of 4, and 4 times a step");
        let to = Rung { recompute: Recompute::C0, n_layers_eased: 0, ..from };
        assert_eq!(from.changes(to), "recompute mode C0 instead of C1");
        let to = Rung { n_layers_eased: 0, ..from };
        assert_eq!(from.changes(to), "0 layers recomputing less than C1 instead of 3");
        let to = Rung { mlp_rows: Some(512), offload_inputs: true, ..from };
        assert_eq!(from.changes(to), "512 rows at once through the MLP; the layers' inputs wait in system memory");
        let to = Rung { n_layers_cached: 0, ..from };
        assert_eq!(from.changes(to), "no weights kept dequantised");
        let to = Rung { head_rows: 128, ..from };
        assert_eq!(from.changes(to), "128 rows at once at the head instead of 256");
    }

    #[test]
    fn memory_that_is_left_over_keeps_weights_dequantised_and_gives_way_first() {
        let (shape, data, hardware) = (llama_8b(), examples(4668, 100, 500), computer("rtx-3060-12gb"));
        let mut asked = fixed(512, 1, 1, 16);
        let plan_of = |config: &RunConfig| plan(&shape, &data, config, &hardware).expect("planned");
        let roomy = plan_of(&asked);
        let n = roomy.settings.n_layers_cached;
        assert!(0 < n && n < shape.n_layers && roomy.planned_bytes <= roomy.budget_bytes, "{n} layers");
        let reason = roomy.reasons.iter().find(|reason| reason.setting == "weight_cache").expect("said");
        assert_eq!(
            (reason.value.as_str(), reason.code.as_str()),
            (&*format!("{n} of 32 layers"), "weight_cache.left_over")
        );
        let change = reason.change.as_ref().expect("a counterfactual");
        assert!(change.bytes < 0 && change.time_s > 0.0, "{change:?}");
        // Nothing else is given up for it: without the cache all is as it was.
        asked.n_layers_cached = Some(0);
        let without = plan_of(&asked);
        assert_eq!(Settings { n_layers_cached: 0, ..roomy.settings.clone() }, without.settings);
        assert!(without.time.tokens_per_s < roomy.time.tokens_per_s);
        let next = next_rung(&shape, &roomy.settings).expect("there is a rung");
        assert_eq!(next.apply(&roomy.settings), without.settings);
        // Too many by hand: to do without is the first change.
        asked.n_layers_cached = Some(32);
        let tight = plan_of(&asked);
        let words: Vec<_> = tight.remedies.iter().map(|remedy| (remedy.setting.as_str(), remedy.enough)).collect();
        assert_eq!((tight.fits, words), (false, vec![("other_programs", false), ("n_layers_cached", true)]));
    }
}
