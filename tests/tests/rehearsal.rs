//! The rehearsal before the first step: it leaves no trace in what is trained, and what it says is what comes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use candle_core::{Device, Tensor};
use hearth_engine::config::{BaseFormat, LoraConfig, OptimizerKind, Settings};
use hearth_engine::data::Batch;
use hearth_engine::event::TrainEvent;
use hearth_engine::hardware::{Basis, Prediction, read_measurements};
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::run::{Rehearsal, RunFolder};
use hearth_engine::step::Trainer;
use hearth_tests::hearth::{Said, hearth};
use hearth_tests::tiny_model::{self, Size, TINY, write_examples};

/// A model, examples and a folder for runs, under a name that is hard on paths.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(size: Size, n_examples: usize) -> Self {
        let folder = tempfile::Builder::new().prefix("hearth 排练 'x' ").tempdir().unwrap();
        tiny_model::write_sized(&folder.path().join("model 🔥"), 1, size).unwrap();
        write_examples(&folder.path().join("my data.jsonl"), n_examples);
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn hearth(&self, runs: &str, what: &str, flags: &str) -> Command {
        let mut command = hearth(&self.at(runs));
        command.arg(what).arg("--model").arg(self.at("model 🔥")).arg("--data").arg(self.at("my data.jsonl"));
        command.args(flags.split_whitespace());
        command
    }

    fn train(&self, runs: &str, flags: &str) -> RunFolder {
        let said = Said::by(&mut self.hearth(runs, "train", flags));
        assert_eq!(said.exit, Some(0), "{said:?}");
        self.newest(runs)
    }

    fn newest(&self, runs: &str) -> RunFolder {
        let id = hearth_engine::run::list(&self.at(runs)).remove(0).id;
        RunFolder::find(&self.at(runs), &id).unwrap()
    }
}

fn event_of(run: &RunFolder) -> Option<Rehearsal> {
    run.history().unwrap().lines().iter().find_map(|line| match &line.event {
        TrainEvent::Rehearsal { rehearsal } => Some(rehearsal.clone()),
        _ => None,
    })
}

fn bits(tensor: &Tensor) -> Vec<u8> {
    match tensor.dtype() {
        candle_core::DType::U8 => tensor.to_vec1().unwrap(),
        _ => tensor.to_vec1::<f32>().unwrap().into_iter().flat_map(f32::to_ne_bytes).collect(),
    }
}

/// Everything that a step changes.
fn state(trainer: &Trainer) -> (Vec<u8>, Vec<u8>, Vec<Vec<u8>>, usize) {
    let moments = trainer.optimizer_tensors().iter().map(|(_, tensor)| bits(tensor)).collect();
    (bits(trainer.adapter().flat()), bits(trainer.gradients().flat()), moments, trainer.optimizer_steps())
}

#[test]
fn an_update_at_a_rate_of_0_that_is_forgotten_leaves_every_bit_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    tiny_model::write(folder.path(), 3).unwrap();
    let source = ModelSource::open(folder.path()).unwrap();
    let ids: Vec<u32> = (0..60).map(|i| i * 31 % 250).collect();
    let batch =
        |n: usize| Batch::from_documents([(&ids[..n], &vec![true; n][..]), (&ids[n..], &vec![true; 60 - n][..])]);
    for (base, optimizer) in [
        (BaseFormat::F32, OptimizerKind::AdamW32),
        (BaseFormat::F32, OptimizerKind::AdamW8),
        (BaseFormat::Nf4, OptimizerKind::AdamW8),
    ] {
        let settings = Settings {
            base,
            optimizer,
            lora: LoraConfig { rank: 4, dropout: 0.1, ..LoraConfig::default() },
            length: 64,
            head_rows: 16,
            weight_decay: 0.1,
            ..Settings::default()
        };
        let fresh = || {
            let model = Model::load(&source, &settings.lora, (&settings).into(), &Device::Cpu).unwrap();
            let adapter = Adapter::new(&model.shape, &settings.lora, 7, &Device::Cpu).unwrap();
            Trainer::new(model, adapter, &settings).unwrap()
        };
        let (mut rehearsed, mut other) = (fresh(), fresh());
        let before = state(&rehearsed);
        for n in [20, 35] {
            rehearsed.micro_batch(&batch(n), 58, 9).unwrap();
        }
        rehearsed.evaluate(&batch(30)).unwrap();
        assert_ne!(state(&rehearsed), before);
        rehearsed.optimizer_step(0.0).unwrap();
        assert_ne!(state(&rehearsed), before);
        rehearsed.forget_training().unwrap();
        assert!(state(&rehearsed) == before, "{base:?} {optimizer:?}");
        // Nor is anything hidden left: both train the same.
        for trainer in [&mut rehearsed, &mut other] {
            for n in [10, 40, 25] {
                trainer.micro_batch(&batch(n), 58, n as u64).unwrap();
                trainer.optimizer_step(1e-2).unwrap();
            }
        }
        assert!(state(&rehearsed) == state(&other), "{base:?} {optimizer:?}");
        assert!(state(&rehearsed) != before);
    }
}

#[test]
fn a_run_with_a_rehearsal_makes_the_same_bytes_as_one_without() {
    let bench = Bench::new(TINY, 90);
    let flags = "--rank 4 --dropout 0.1 --length 128 --micro-batch 2 --accumulation 2 --recompute c1 --optimizer adamw8 \
                 --lr 3e-3 --seed 42 --eval-every 10 --eval-fraction 0.1 --samples 1 --max-steps 24 --checkpoint-every 7";
    let with = bench.train("with", flags);
    let without = bench.train("without", &format!("{flags} --no-rehearsal"));
    assert!(event_of(&without).is_none() && without.rehearsal().unwrap().is_none());
    for file in ["adapter.safetensors", "optimizer.safetensors"] {
        let bytes = |run: &RunFolder| fs::read(run.checkpoints().path(24).join(file)).unwrap();
        assert!(bytes(&with) == bytes(&without), "{file} differs");
    }
    // What it found stands in the run, side by side with the plan, and is kept for later ones.
    let rehearsal = with.rehearsal().unwrap().expect("rehearsal.json");
    assert_eq!(event_of(&with).as_ref(), Some(&rehearsal));
    let plan = with.plan().unwrap();
    assert_eq!(rehearsal.predicted.total_s, plan.time.total_s);
    assert_eq!(rehearsal.predicted.memory_bytes, plan.planned_bytes);
    assert!(rehearsal.longest_tokens.is_some() && rehearsal.seconds < 20.0, "{rehearsal:?}");
    let found = [rehearsal.evaluation_s, rehearsal.answers_s, rehearsal.checkpoint_s, rehearsal.merge_s];
    assert!(found.iter().all(|s| s.is_some_and(|s| s > 0.0)), "{rehearsal:?}");
    let written = with.checkpoints().path(24);
    let size: u64 = fs::read_dir(&written).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(rehearsal.measured.checkpoint_bytes.abs_diff(size) < 200, "{} {size}", rehearsal.measured.checkpoint_bytes);
    assert_eq!(with.checkpoints().steps().first(), without.checkpoints().steps().first(), "its checkpoint is gone");

    let device = with.record().unwrap().device.expect("a run knows its device");
    let kept = read_measurements(&bench.at("with").join("rates.json"), &device).unwrap();
    assert_eq!((kept.rates.len(), kept.predictions.len()), (1, 1));
    let said = Said::by(&mut bench.hearth("with", "plan", &format!("{flags} --json")));
    assert_eq!(said.json_lines()[0]["time"]["basis"], "measured", "{said:?}");
    let said = Said::by(&mut hearth(&bench.at("with")).arg("history").arg("--json"));
    let history: Vec<Prediction> = serde_json::from_str(&said.out).unwrap();
    assert_eq!((history[0].run_id.as_str(), history[0].n_steps), (with.id(), 24));
    assert_eq!(history[0].basis, Basis::Calculated);
    assert!(history[0].rehearsed_s.is_some());
}

/// A run as it was when its process had made the folder and nothing else.
fn only_made(bench: &Bench) -> RunFolder {
    let run = bench.train("runs", "--rank 4 --length 128 --micro-batch 2 --max-steps 3 --samples 0");
    let early = ["run.toml", "plan.json"];
    for entry in fs::read_dir(run.path()).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else if !early.contains(&entry.file_name().to_str().unwrap()) {
            fs::remove_file(path).unwrap();
        }
    }
    run
}

#[test]
fn a_run_killed_in_its_rehearsal_is_rehearsed_when_it_is_taken_up() {
    let bench = Bench::new(TINY, 40);
    let run = only_made(&bench);
    let said = Said::by(hearth(&bench.at("runs")).arg("resume").arg(run.id()));
    assert_eq!(said.exit, Some(0), "{said:?}");
    assert!(run.rehearsal().unwrap().is_some());
}

#[test]
fn a_run_is_taken_up_without_what_it_can_do_without() {
    let bench = Bench::new(TINY, 40);
    let run = only_made(&bench);
    for name in ["rehearsal.json", "governor.json"] {
        fs::write(run.path().join(name), "{ torn").unwrap();
    }
    let said = Said::by(hearth(&bench.at("runs")).arg("resume").arg(run.id()));
    assert_eq!(said.exit, Some(0), "{said:?}");
    let history = run.history().unwrap();
    for wanted in ["rehearsal.unreadable", "governor.unreadable"] {
        let is_said = |event: &TrainEvent| matches!(event, TrainEvent::Warning { code, .. } if code == wanted);
        assert_eq!(history.lines().iter().filter(|line| is_said(&line.event)).count(), 1, "{wanted}");
    }
    assert!(run.rehearsal().unwrap().is_some(), "rehearsed again");
}

#[test]
#[cfg(target_os = "linux")]
fn what_a_run_takes_beside_its_buffers_is_found_however_little_of_them_its_examples_fill() {
    let bench = Bench::new(Size { hidden: 128, ffn: 352, n_layers: 4 }, 60);
    let flags = "--rank 8 --length 1024 --packing false --micro-batch 4 --recompute n --max-steps 2 --samples 0";
    let run = bench.train("runs", flags);
    let (rehearsal, planned_bytes) = (run.rehearsal().unwrap().expect("rehearsed"), run.plan().unwrap().planned_bytes);
    let longest = rehearsal.longest_tokens.expect("there was time for it");
    assert!(longest < 4 * 1024 / 4, "{longest} tokens fill the buffers");
    // A few megabytes; what of the buffers no example fills is many times that.
    let overhead_bytes = rehearsal.overhead_bytes.expect("measured");
    assert!(overhead_bytes < planned_bytes / 4, "{overhead_bytes} of {planned_bytes}");
}

/// Seconds from the first step's beginning to the end.
fn took(run: &RunFolder) -> f64 {
    let history = run.history().unwrap();
    let lines = history.lines();
    let is_train = |event: &TrainEvent| matches!(event, TrainEvent::Phase { name } if name == "train");
    let begun = lines.iter().find(|line| is_train(&line.event)).expect("it trained").time_ms;
    let ended = lines.iter().find(|line| matches!(line.event, TrainEvent::Finished { .. })).expect("it ended").time_ms;
    (ended - begun) as f64 / 1000.0
}

/// A machine whose speed changes makes one run slower or faster than its rehearsal; what is wrong in a prediction is wrong in all.
#[test]
fn the_time_that_a_rehearsal_predicts_is_within_15_percent_of_what_the_run_takes() {
    const N_RUNS: usize = 5;
    const N_WITHIN: usize = 2;
    let bench = Bench::new(Size { hidden: 256, ffn: 704, n_layers: 6 }, 240);
    let flags = "--rank 8 --length 256 --packing false --micro-batch 4 --accumulation 2 --max-steps 60 --eval-every 20 \
                 --samples 2 --checkpoint-every 25";
    let mut off = Vec::new();
    while off.len() < N_RUNS && off.iter().filter(|off: &&f64| off.abs() < 0.15).count() < N_WITHIN {
        let run = bench.train(&format!("runs {}", off.len()), flags);
        let (rehearsal, took) = (run.rehearsal().unwrap().expect("rehearsed"), took(&run));
        let said = rehearsal.measured.total_s;
        off.push(took / said - 1.0);
        println!(
            "predicted {:.1} s by the plan and {said:.1} s by the rehearsal of {:.1} s; it took {took:.1} s ({:+.1} %)",
            rehearsal.predicted.total_s,
            rehearsal.seconds,
            100.0 * (took / said - 1.0),
        );
    }
    assert!(off.iter().filter(|off| off.abs() < 0.15).count() >= N_WITHIN, "off by {off:?}");
}
