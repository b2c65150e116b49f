//! Runs that are short of memory, in this process, so that any allocation can be made to fail. The sites are those that the gate itself
//! has seen: a new one is tried without being named here.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use candle_core::{Device, Tensor};
use hearth_engine::config::RunConfig;
use hearth_engine::error::Explain;
use hearth_engine::event::TrainEvent;
use hearth_engine::hardware::{Hardware, TrainOn, detect};
use hearth_engine::ops::memory::{self, Fault, Site};
use hearth_engine::plan::ladder::Rung;
use hearth_engine::run::{self, Notice, Outcome, Resumed, RunFolder};
use serde_json::json;

use crate::tiny_model::{self, Size, TINY, write_examples};

/// Steps of a run.
pub const N_STEPS: usize = 6;

/// A model, examples and a computer to train on.
pub struct Bench {
    /// Holds the model and the examples.
    pub folder: tempfile::TempDir,
    /// The computer.
    pub hardware: Hardware,
}

impl Bench {
    /// On the processor.
    pub fn on_processor() -> Self {
        Self::of(TINY, Hardware { train_on: TrainOn::Processor, ..detect() })
    }

    /// On a card, whose attention takes heads of 64 and wider; `None` without one, or in an engine without kernels.
    pub fn on_card() -> Option<Self> {
        let hardware = detect();
        hardware.training_card()?;
        Some(Self::of(Size { hidden: 256, ffn: 704, n_layers: 2 }, hardware))
    }

    fn of(size: Size, hardware: Hardware) -> Self {
        let folder = tempfile::Builder::new().prefix("hearth 内存 'm' ").tempdir().unwrap();
        tiny_model::write_sized(&folder.path().join("tiny"), 1, size).expect("the model can be written");
        write_examples(&folder.path().join("data.jsonl"), 26);
        Self { folder, hardware }
    }

    fn is_on_card(&self) -> bool {
        self.hardware.train_on == TrainOn::Card
    }

    /// Two passes of three steps over 24 examples, with everything that has state; 2 examples are held out.
    pub fn config(&self, change: impl FnOnce(&mut RunConfig)) -> RunConfig {
        let mut config: RunConfig = serde_json::from_value(json!({
            "name": "short",
            "model": self.folder.path().join("tiny"),
            "data": { "path": self.folder.path().join("data.jsonl"), "length": 128, "packing": false },
            "base": "nf4",
            "compute": "f32",
            "lora": { "rank": 4, "alpha": 8.0 },
            "micro_batch": 4,
            "accumulation": 2,
            "recompute": "n",
            "optimizer": { "kind": "adam_w32", "learning_rate": 1e-3, "warmup_steps": 2 },
            "max_steps": N_STEPS,
            "evaluation": { "fraction": 0.08, "every_steps": 3, "n_samples": 1 },
            "checkpoints": { "every_seconds": 100_000, "every_steps": 2 },
            "seed": 5
        }))
        .unwrap();
        // A rehearsal has allocations of its own, and tests of its own.
        config.rehearsal = false;
        change(&mut config);
        config
    }

    /// A run of `config` in which memory fails as `fault` says, and without a fault when it had to be taken up again.
    ///
    /// # Panics
    /// The run does not end as it has to.
    pub fn run(&self, config: &RunConfig, fault: Option<Fault>) -> Told {
        let runs = tempfile::tempdir_in(self.folder.path()).unwrap();
        let mut told = Told { is_on_card: self.is_on_card(), ..Told::default() };
        let mut folder = None;
        if let Some(fault) = fault {
            memory::fail(fault);
        }
        let result = run::train(config.clone(), &self.hardware, runs.path(), None, &mut |notice| match notice {
            Notice::Event(line) => told.take(&line.event),
            Notice::Created(run) => folder = Some(run.clone()),
            Notice::Planned(plan) => {
                (told.planned_bytes, told.planned_samples) = (plan.planned_bytes, plan.settings.n_samples);
            }
        });
        memory::relent();
        let run = folder.expect("the run has a folder");
        match result {
            Ok((_, outcome)) => assert!(matches!(outcome, Outcome::Finished { step: N_STEPS, .. }), "{outcome:?}"),
            Err(error) => {
                told.ended = Some(error.code().to_string());
                let summary = run.summary().unwrap();
                // What the error says is safe is safe.
                let newest = run.checkpoints().newest_state();
                let step = newest.as_ref().map(|state| state.step);
                let says = error.to_string();
                match step {
                    Some(step) => assert!(says.contains(&format!("the checkpoint of step {step} is safe")), "{says}"),
                    None => assert!(says.contains("no checkpoint was made yet"), "{says}"),
                }
                told.rewind(step.unwrap_or(0));
                assert_eq!(summary.n_steps, N_STEPS);
                let resumed = run::resume(&run, &mut |notice| {
                    if let Notice::Event(line) = notice {
                        told.take(&line.event);
                    }
                });
                assert!(matches!(resumed, Ok(Resumed::Trained(Outcome::Finished { .. }))), "{resumed:?}");
            }
        }
        told.adapter = adapter_of(&run, N_STEPS);
        told
    }
}

/// All tensors of a checkpoint's adapter, by name.
///
/// # Panics
/// There is no such checkpoint.
pub fn adapter_of(run: &RunFolder, step: usize) -> BTreeMap<String, Vec<f32>> {
    let path: PathBuf = run.checkpoints().path(step).join("adapter.safetensors");
    let tensors: HashMap<String, Tensor> = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let values = |t: Tensor| t.flatten_all().unwrap().to_vec1().unwrap();
    tensors.into_iter().map(|(name, tensor)| (name, values(tensor))).collect()
}

/// What a run said of a step.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the fields mean what they mean in the event
pub struct Step {
    pub step: usize,
    pub epoch: f64,
    pub loss: f64,
    pub n_tokens: usize,
    pub n_supervised_tokens: usize,
    pub learning_rate: f64,
}

/// What a run said and left.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Told {
    is_on_card: bool,
    pub steps: Vec<Step>,
    pub rungs: Vec<(Rung, Rung)>,
    pub warnings: Vec<String>,
    pub n_samples: usize,
    pub evaluations: Vec<f64>,
    pub planned_bytes: u64,
    pub planned_samples: usize,
    /// Code of the error that ended it before it was taken up again.
    pub ended: Option<String>,
    pub adapter: BTreeMap<String, Vec<f32>>,
}

impl Told {
    fn take(&mut self, event: &TrainEvent) {
        match event {
            &TrainEvent::Step { step, epoch, loss, n_tokens, n_supervised_tokens, learning_rate, .. } => {
                self.steps.push(Step { step, epoch, loss, n_tokens, n_supervised_tokens, learning_rate });
            }
            TrainEvent::Rung { from, to, reason, words, .. } => {
                assert!(reason.starts_with("Memory ran out after step "), "{reason}");
                assert!(words.contains(&from.changes(*to)) && words.contains("stay the same"), "{words}");
                self.rungs.push((*from, *to));
            }
            TrainEvent::Warning { code, .. } => self.warnings.push(code.clone()),
            TrainEvent::Sample { .. } => self.n_samples += 1,
            TrainEvent::Evaluation { loss, .. } => self.evaluations.push(*loss),
            _ => {}
        }
    }

    /// Forgets what a resumed run does again.
    fn rewind(&mut self, step: usize) {
        self.steps.retain(|s| s.step <= step);
    }

    /// Whether something was summed in another order than in an undisturbed run: parts of micro-batches, and on a card, whose library
    /// computes another shape in another way, any rung.
    pub fn is_split(&self) -> bool {
        self.rungs.iter().any(|(from, to)| self.is_on_card || from.micro_batch != to.micro_batch)
    }
}

/// `‖got - want‖ / ‖want‖` of all elements.
///
/// # Panics
/// They have other names.
pub fn distance(got: &BTreeMap<String, Vec<f32>>, want: &BTreeMap<String, Vec<f32>>) -> f64 {
    assert!(got.keys().eq(want.keys()));
    let square = |x: f32| f64::from(x) * f64::from(x);
    let pairs = got.values().flatten().zip(want.values().flatten());
    let (difference, size) = pairs.fold((0.0, 0.0), |(d, s), (g, w)| (d + square(g - w), s + square(*w)));
    f64::sqrt(difference / size)
}

/// Losses of a step whose parts are summed in another order, relative: f32 sums of a few hundred terms.
const LOSS_ROUNDING: f64 = 1e-5;
/// The adapter after six steps of AdamW, relative: where a gradient is all but zero its rounding decides the direction of the update.
pub const ADAPTER_ROUNDING: f64 = 1e-5;
/// Both on a card, where whole products are summed in another order and not only their parts.
const CARD_ROUNDING: [f64; 2] = [1e-4, 1e-3];

fn assert_same(got: &Told, alone: &Told, what: &str) {
    let [loss_rounding, adapter_rounding] =
        if got.is_on_card { CARD_ROUNDING } else { [LOSS_ROUNDING, ADAPTER_ROUNDING] };
    assert_eq!(got.steps.len(), alone.steps.len(), "{what}");
    for (got_step, want) in got.steps.iter().zip(&alone.steps) {
        // The same sequences: as many tokens, as many of them learned, at the same place of the pass and at the same rate.
        assert_eq!(&Step { loss: want.loss, ..got_step.clone() }, want, "{what}");
        let rounding = if got.is_split() { loss_rounding * want.loss } else { 0.0 };
        let off = (got_step.loss - want.loss).abs();
        assert!(off <= rounding, "{what}: step {}: {} and {}", want.step, got_step.loss, want.loss);
    }
    let (rounding, off) = (if got.is_split() { adapter_rounding } else { 0.0 }, distance(&got.adapter, &alone.adapter));
    assert!(off <= rounding, "{what}: the adapter is off by {off:e}");
}

/// Sites that hold what has no smaller form: where memory for them is missing twice in a row the run ends and waits to be taken up.
fn has_no_rung(site: Site) -> bool {
    use Site::*;
    matches!(site, BaseWeights | Embeddings | Norms | Adapter | Gradients | Optimizer | Restored)
}

/// Which allocations of a site fail, of so many that ask.
pub type Faults = fn(usize) -> Vec<(usize, usize)>;

/// Lets memory fail at every site and compares each run with an undisturbed one. `faults` has how many succeed before, and how many fail.
///
/// # Panics
/// A run learns something else.
#[allow(clippy::print_stderr)]
pub fn fault_at_every_site(bench: &Bench, dropout: f32, faults: Faults) {
    let config = bench.config(|config| (config.lora.dropout, config.n_layers_cached) = (dropout, Some(1)));
    memory::relent();
    let alone = bench.run(&config, None);
    assert_eq!((alone.steps.len(), alone.n_samples, alone.evaluations.len()), (N_STEPS, 2, 2));
    assert!(alone.rungs.is_empty() && alone.ended.is_none() && alone.warnings.is_empty(), "{:?}", alone.warnings);
    // A pass shows each of the 24 examples once: three steps of eight.
    assert_eq!(alone.steps[2].epoch, 1.0);

    let asked = sites(bench, &config);
    let (mut n_rungs, mut n_ended, mut furthest) = (0, 0, 0.0f64);
    for (&site, &n_asked) in &asked {
        for (skip, n) in faults(n_asked) {
            let what = format!("{site:?}, {n} from the {skip}th of {n_asked} on");
            let told = bench.run(&config, Some(Fault { site: Some(site), skip, n }));
            assert_same(&told, &alone, &what);
            furthest = furthest.max(distance(&told.adapter, &alone.adapter));
            n_rungs += told.rungs.len();
            n_ended += usize::from(told.ended.is_some());
            if let Some(code) = &told.ended {
                assert_eq!(code, "run.out_of_memory", "{what}");
                assert!(n == usize::MAX || n == 3 && (has_no_rung(site) || site == Site::Checkpoint), "{what}");
            }
            if n == 1 {
                assert!(told.rungs.is_empty(), "{what}: once is only tried again");
            }
            // Where the step's buffers are made. Later ones may be wanted for the answers, which are left out then.
            if (skip, n) == (0, 3)
                && matches!(site, Site::Kept | Site::Workspace | Site::Inputs | Site::Slot | Site::Scratch)
            {
                assert_eq!(told.rungs.len(), 2, "{what}: {:?}", told.rungs);
            }
        }
    }
    assert!(n_rungs > 20 && n_ended > 5, "{n_rungs} rungs, {n_ended} ends");
    eprintln!("{} sites, {n_rungs} rungs, {n_ended} ends; the adapter was off by {furthest:e} at most", asked.len());
}

/// Every site that a run and a resume ask, with how often the run does.
fn sites(bench: &Bench, config: &RunConfig) -> BTreeMap<Site, usize> {
    memory::relent();
    let runs = tempfile::tempdir_in(bench.folder.path()).unwrap();
    let mut folder = None;
    // Ends in a step, so that a resume reads a checkpoint.
    memory::fail(Fault { site: Some(Site::GradientNorm), skip: 4, n: usize::MAX });
    run::train(config.clone(), &bench.hardware, runs.path(), None, &mut |notice| {
        if let Notice::Created(run) = notice {
            folder = Some(run.clone());
        }
    })
    .unwrap_err();
    memory::fail(Fault { site: None, skip: usize::MAX, n: 0 });
    run::resume(&folder.unwrap(), &mut |_| {}).unwrap();
    let resumed = memory::n_admitted();
    // The attention's scratch is the processor's.
    let is_asked = |site: &Site| resumed.contains_key(site) || bench.is_on_card() && *site == Site::Scratch;
    assert!(Site::ALL.iter().all(is_asked), "a site that nothing here asks: {resumed:?}");
    memory::relent();
    let _ = run::train(config.clone(), &bench.hardware, runs.path(), None, &mut |_| {}).unwrap();
    let mut asked = memory::n_admitted();
    memory::relent();
    // Asked on a resume only.
    asked.entry(Site::Restored).or_insert(1);
    asked
}
