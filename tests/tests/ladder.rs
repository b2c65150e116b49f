//! Memory that runs out at any allocation of a run on a real model changes how its steps are computed and nothing that they learn.
//!
//! Runs are trained in this process, so that any allocation can be made to fail. The sites are those that the gate itself has seen:
//! a new one is tried without being named here.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use hearth_engine::config::{BaseFormat, LoraConfig, Recompute, RunConfig, Settings};
use hearth_engine::data::Batch;
use hearth_engine::error::Explain;
use hearth_engine::event::TrainEvent;
use hearth_engine::hardware::{Hardware, TrainOn, detect};
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::ops::memory::{self, Fault, Site};
use hearth_engine::plan::ladder::Rung;
use hearth_engine::run::{self, Notice, Outcome, Resumed, RunFolder};
use hearth_engine::step::Trainer;
use hearth_tests::step::settings;
use hearth_tests::tiny_model::{self, write_examples};
use serde_json::json;

const N_STEPS: usize = 6;

/// A model, examples and a computer without a card.
struct Bench {
    folder: tempfile::TempDir,
    hardware: Hardware,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("hearth 内存 'm' ").tempdir().unwrap();
        tiny_model::write(&folder.path().join("tiny"), 1).expect("the model can be written");
        write_examples(&folder.path().join("data.jsonl"), 26);
        let hardware = Hardware { train_on: TrainOn::Processor, ..detect() };
        Self { folder, hardware }
    }

    /// Two passes of three steps over 24 examples, with everything that has state; 2 examples are held out.
    fn config(&self, change: impl FnOnce(&mut RunConfig)) -> RunConfig {
        let mut config: RunConfig = serde_json::from_value(json!({
            "name": "short",
            "model": self.folder.path().join("tiny"),
            "data": { "path": self.folder.path().join("data.jsonl"), "length": 128, "packing": false },
            "base": "nf4",
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
    fn run(&self, config: &RunConfig, fault: Option<Fault>) -> Told {
        let runs = tempfile::tempdir_in(self.folder.path()).unwrap();
        let mut told = Told::default();
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
        told.adapter = adapter(&run);
        told
    }
}

/// All tensors of the last checkpoint's adapter, by name.
fn adapter(run: &RunFolder) -> BTreeMap<String, Vec<f32>> {
    let path: PathBuf = run.checkpoints().path(N_STEPS).join("adapter.safetensors");
    let tensors: HashMap<String, Tensor> = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    let values = |t: Tensor| t.flatten_all().unwrap().to_vec1().unwrap();
    tensors.into_iter().map(|(name, tensor)| (name, values(tensor))).collect()
}

#[derive(Clone, Debug, PartialEq)]
struct Step {
    step: usize,
    epoch: f64,
    loss: f64,
    n_tokens: usize,
    n_supervised_tokens: usize,
    learning_rate: f64,
}

/// What a run said and left.
#[derive(Clone, Debug, Default)]
struct Told {
    steps: Vec<Step>,
    rungs: Vec<(Rung, Rung)>,
    warnings: Vec<String>,
    n_samples: usize,
    evaluations: Vec<f64>,
    planned_bytes: u64,
    planned_samples: usize,
    /// Code of the error that ended it before it was taken up again.
    ended: Option<String>,
    adapter: BTreeMap<String, Vec<f32>>,
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

    /// Whether parts of micro-batches were summed in another order than in an undisturbed run.
    fn is_split(&self) -> bool {
        self.rungs.iter().any(|(from, to)| from.micro_batch != to.micro_batch)
    }
}

/// `‖got - want‖ / ‖want‖` of all elements.
fn distance(got: &BTreeMap<String, Vec<f32>>, want: &BTreeMap<String, Vec<f32>>) -> f64 {
    assert!(got.keys().eq(want.keys()));
    let square = |x: f32| f64::from(x) * f64::from(x);
    let pairs = got.values().flatten().zip(want.values().flatten());
    let (difference, size) = pairs.fold((0.0, 0.0), |(d, s), (g, w)| (d + square(g - w), s + square(*w)));
    f64::sqrt(difference / size)
}

/// Losses of a step whose parts are summed in another order, relative: f32 sums of a few hundred terms.
const LOSS_ROUNDING: f64 = 1e-5;
/// The adapter after six steps of AdamW, relative: where a gradient is all but zero its rounding decides the direction of the update.
const ADAPTER_ROUNDING: f64 = 1e-5;

fn assert_same(got: &Told, alone: &Told, what: &str) {
    assert_eq!(got.steps.len(), alone.steps.len(), "{what}");
    for (got_step, want) in got.steps.iter().zip(&alone.steps) {
        // The same sequences: as many tokens, as many of them learned, at the same place of the pass and at the same rate.
        assert_eq!(&Step { loss: want.loss, ..got_step.clone() }, want, "{what}");
        let rounding = if got.is_split() { LOSS_ROUNDING * want.loss } else { 0.0 };
        let off = (got_step.loss - want.loss).abs();
        assert!(off <= rounding, "{what}: step {}: {} and {}", want.step, got_step.loss, want.loss);
    }
    let (rounding, off) = (if got.is_split() { ADAPTER_ROUNDING } else { 0.0 }, distance(&got.adapter, &alone.adapter));
    assert!(off <= rounding, "{what}: the adapter is off by {off:e}");
}

/// Sites that hold what has no smaller form: where memory for them is missing twice in a row the run ends and waits to be taken up.
fn has_no_rung(site: Site) -> bool {
    use Site::*;
    matches!(site, BaseWeights | Embeddings | Norms | Adapter | Gradients | Optimizer | Restored)
}

fn fault_at_every_site(dropout: f32) {
    let bench = Bench::new();
    let config = bench.config(|config| (config.lora.dropout, config.n_layers_cached) = (dropout, Some(1)));
    memory::relent();
    let alone = bench.run(&config, None);
    assert_eq!((alone.steps.len(), alone.n_samples, alone.evaluations.len()), (N_STEPS, 2, 2));
    assert!(alone.rungs.is_empty() && alone.ended.is_none() && alone.warnings.is_empty(), "{:?}", alone.warnings);
    // A pass shows each of the 24 examples once: three steps of eight.
    assert_eq!(alone.steps[2].epoch, 1.0);

    let asked = sites(&bench, &config);
    let (mut n_rungs, mut n_ended, mut furthest) = (0, 0, 0.0f64);
    for (&site, &n_asked) in &asked {
        for (skip, n) in
            [(0, 1), (n_asked / 2, 1), (n_asked - 1, 1), (0, 3), (n_asked / 2, 3), (n_asked / 2, usize::MAX)]
        {
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
    assert!(Site::ALL.iter().all(|site| resumed.contains_key(site)), "a site that nothing here asks: {resumed:?}");
    memory::relent();
    let _ = run::train(config.clone(), &bench.hardware, runs.path(), None, &mut |_| {}).unwrap();
    let mut asked = memory::n_admitted();
    memory::relent();
    // Asked on a resume only.
    asked.entry(Site::Restored).or_insert(1);
    asked
}

#[test]
fn memory_that_fails_at_every_site_changes_nothing_that_is_learned() {
    fault_at_every_site(0.0);
}

#[test]
fn nor_with_dropout() {
    fault_at_every_site(0.2);
}

#[test]
fn where_no_micro_batch_is_split_every_bit_is_the_same() {
    let bench = Bench::new();
    // One sequence at once: there is nothing left to do but fewer rows at the head and recomputation.
    let config = bench.config(|config| {
        (config.micro_batch, config.accumulation) = (Some(1), Some(8));
        config.lora.dropout = 0.1;
    });
    let alone = bench.run(&config, None);
    for n in 2..9 {
        let told = bench.run(&config, Some(Fault { site: Some(Site::Kept), skip: 0, n }));
        assert!(!told.rungs.is_empty() && !told.is_split(), "{:?}", told.rungs);
        assert_eq!(told.steps, alone.steps, "{:?}", told.rungs);
        assert_eq!(told.adapter, alone.adapter, "{:?}", told.rungs);
        if told.rungs.last().is_some_and(|(_, to)| to.recompute == Recompute::C0) {
            return;
        }
    }
    panic!("recomputing everything was never reached");
}

#[test]
fn a_checkpoint_that_cannot_be_read_for_lack_of_memory_is_read_on_the_next_try() {
    let bench = Bench::new();
    let config = bench.config(|_| {});
    let alone = bench.run(&config, None);
    for n in [1, 2] {
        let runs = tempfile::tempdir_in(bench.folder.path()).unwrap();
        let mut folder = None;
        memory::fail(Fault { site: Some(Site::GradientNorm), skip: 3, n: usize::MAX });
        run::train(config.clone(), &bench.hardware, runs.path(), None, &mut |notice| {
            if let Notice::Created(run) = notice {
                folder = Some(run.clone());
            }
        })
        .unwrap_err();
        let run = folder.unwrap();
        assert_eq!(run.checkpoints().newest_state().unwrap().step, 3);
        memory::fail(Fault { site: Some(Site::Restored), skip: 0, n });
        let resumed = run::resume(&run, &mut |_| {});
        memory::relent();
        if n == 2 {
            assert_eq!(resumed.unwrap_err().code(), "run.out_of_memory");
            run::resume(&run, &mut |_| {}).unwrap();
        } else {
            resumed.unwrap();
        }
        assert!(distance(&adapter(&run), &alone.adapter) <= ADAPTER_ROUNDING);
    }
}

#[test]
fn a_run_keeps_to_every_limit_that_its_plan_fits_and_takes_no_rung() {
    let bench = Bench::new();
    for (base, micro_batch, dropout) in [("nf4", 4, 0.0), ("f32", 2, 0.1)] {
        let config = bench.config(|config| {
            config.base = Some(if base == "nf4" { BaseFormat::Nf4 } else { BaseFormat::F32 });
            (config.micro_batch, config.accumulation) = (Some(micro_batch), Some(8 / micro_batch));
            config.lora.dropout = dropout;
        });
        let free = bench.run(&config, None);
        // Exactly what the plan says, then a byte less, for which it finds something smaller, until nothing fits any more.
        let mut limit = free.planned_bytes;
        for n_limits in 1.. {
            memory::relent();
            let told = bench.run(&RunConfig { memory_limit_bytes: Some(limit), ..config.clone() }, None);
            assert!(told.rungs.is_empty() && told.warnings.is_empty(), "{:?} {:?}", told.rungs, told.warnings);
            assert_eq!((told.n_samples, told.evaluations.len()), (2 * told.planned_samples, 2), "at {limit} bytes");
            assert!(told.planned_bytes <= limit && distance(&told.adapter, &free.adapter) <= ADAPTER_ROUNDING);
            limit = told.planned_bytes - 1;
            let runs = tempfile::tempdir_in(bench.folder.path()).unwrap();
            let short = RunConfig { memory_limit_bytes: Some(limit), ..config.clone() };
            match run::create(short, &bench.hardware, runs.path(), None, &mut |_| {}) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.code(), "plan.does_not_fit");
                    break;
                }
            }
            assert!(n_limits < 30, "planned {limit} bytes and less");
        }
    }
}

#[test]
fn the_limit_is_hard_for_what_the_plan_did_not_foresee() {
    let (model, adapter, settings) = parts_of_a_trainer(0.0);
    let mut trainer = Trainer::without_buffers(model, adapter, &settings).unwrap();
    let before = memory::held_bytes(&Device::Cpu);
    trainer.allocate(&settings).unwrap();
    let needed = memory::held_bytes(&Device::Cpu);
    trainer.release().unwrap();
    assert_eq!(memory::held_bytes(&Device::Cpu), before);
    let limit = memory::limit(needed - 1, 0, &Device::Cpu);
    let error = trainer.allocate(&settings).unwrap_err();
    assert_eq!(error.code(), "step.out_of_memory");
    assert!(error.to_string().contains("would go beyond the limit"), "{error}");
    assert!(!trainer.has_buffers());
    drop(limit);
    let _limit = memory::limit(needed, 0, &Device::Cpu);
    trainer.allocate(&settings).unwrap();
}

fn parts_of_a_trainer(dropout: f32) -> (Model, Adapter, Settings) {
    let source = ModelSource::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/tiny-llama3")).unwrap();
    let settings = Settings { lora: LoraConfig { dropout, ..settings().lora }, ..settings() };
    let model = Model::load(&source, &settings.lora, Precision::f32(BaseFormat::F32), &Device::Cpu).unwrap();
    let adapter = Adapter::new(source.shape(), &settings.lora, 1, &Device::Cpu).unwrap();
    (model, adapter, settings)
}

#[test]
fn a_micro_batch_in_parts_has_the_gradient_of_the_whole_with_its_dropout() {
    for dropout in [0.0, 0.3] {
        let (model, mut adapter, settings) = parts_of_a_trainer(dropout);
        // B is not zero, so that A has a gradient too.
        let n = adapter.n_params();
        let values: Vec<f32> = (0..n).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 1e-4).collect();
        adapter.replace(Tensor::from_vec(values, n, &Device::Cpu).unwrap()).unwrap();
        let mut trainer = Trainer::new(model, adapter, &settings).unwrap();
        let documents: Vec<Vec<u32>> =
            [31, 7, 64, 20].iter().map(|&n| (0..n).map(|i| 3 + (i * 17 + n) % 250).collect()).collect();
        let batch = |documents: &[Vec<u32>]| {
            let learned = vec![true; 64];
            Batch::from_documents(documents.iter().map(|ids| (&ids[..], &learned[..ids.len()])))
        };
        let whole = batch(&documents);
        let n_supervised = whole.n_supervised();
        let loss = trainer.micro_batch(&whole, n_supervised, 9).unwrap();
        let want: Vec<f32> = trainer.gradients().flat().to_vec1().unwrap();
        let in_parts = |trainer: &mut Trainer, with_rows: bool| {
            trainer.clear_gradients().unwrap();
            let (mut loss, mut first_row) = (0.0, 0);
            for part in [&documents[..1], &documents[1..3], &documents[3..]] {
                let part = batch(part);
                let row = if with_rows { first_row } else { 0 };
                loss += trainer.part_of_micro_batch(&part, row, n_supervised, 9).unwrap();
                first_row += part.n_tokens();
            }
            (loss, trainer.gradients().flat().to_vec1::<f32>().unwrap())
        };
        let off = |got: &[f32]| {
            let [difference, size] = [0.0, 1.0].map(|part| {
                let terms = got.iter().zip(&want).map(|(g, w)| if part == 0.0 { g - w } else { *w });
                terms.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
            });
            difference / size
        };
        let (loss_in_parts, got) = in_parts(&mut trainer, true);
        // f32 sums over a hundred rows in another order.
        assert!((loss_in_parts - loss).abs() <= 1e-6 * loss, "{loss_in_parts} and {loss}");
        assert!(off(&got) < 1e-5, "dropout {dropout}: off by {:e}", off(&got));
        // It is the rows that do it: with the masks of the wrong ones the gradient is another.
        let (_, wrong) = in_parts(&mut trainer, false);
        assert_eq!(off(&wrong) > 1e-2, dropout > 0.0, "off by {:e}", off(&wrong));
    }
}
