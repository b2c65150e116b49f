//! Memory that runs out at any allocation of a run on a real model changes how its steps are computed and nothing that they learn.

use std::path::Path;

use candle_core::{Device, Tensor};
use hearth_engine::config::{BaseFormat, LoraConfig, Recompute, RunConfig, Settings};
use hearth_engine::data::Batch;
use hearth_engine::error::Explain;
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::ops::memory::{self, Fault, Site};
use hearth_engine::run::{self, Notice};
use hearth_engine::step::Trainer;
use hearth_tests::short::{ADAPTER_ROUNDING, Bench, Faults, N_STEPS, adapter_of, distance, fault_at_every_site};
use hearth_tests::step::settings;

const FAULTS: Faults =
    |n_asked| vec![(0, 1), (n_asked / 2, 1), (n_asked - 1, 1), (0, 3), (n_asked / 2, 3), (n_asked / 2, usize::MAX)];

#[test]
fn memory_that_fails_at_every_site_changes_nothing_that_is_learned() {
    fault_at_every_site(&Bench::on_processor(), 0.0, FAULTS);
}

#[test]
fn nor_with_dropout() {
    fault_at_every_site(&Bench::on_processor(), 0.2, FAULTS);
}

#[test]
fn where_no_micro_batch_is_split_every_bit_is_the_same() {
    let bench = Bench::on_processor();
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
    let bench = Bench::on_processor();
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
        assert!(distance(&adapter_of(&run, N_STEPS), &alone.adapter) <= ADAPTER_ROUNDING);
    }
}

#[test]
fn a_run_keeps_to_every_limit_that_its_plan_fits_and_takes_no_rung() {
    let bench = Bench::on_processor();
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
