//! A run that is killed at any instant and taken up again makes the same adapter as one left alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hearth_engine::event::TrainEvent;
use hearth_engine::run::{RunFolder, RunState};
use hearth_tests::hearth::{Said, hearth};
use hearth_tests::tiny_model::{self, write_examples};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const N_STEPS: usize = 60;

/// A model, examples and a folder for runs, under a name that is hard on paths.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("hearth 试 'x' ").tempdir().unwrap();
        tiny_model::write(&folder.path().join("tiny model"), 1).expect("the model can be written");
        write_examples(&folder.path().join("my data.jsonl"), 90);
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn train(&self, runs: &str) -> Command {
        self.train_for(runs, N_STEPS)
    }

    fn train_for(&self, runs: &str, n_steps: usize) -> Command {
        let mut command = hearth(&self.at(runs));
        command.arg("train").arg("--model").arg(self.at("tiny model")).arg("--data").arg(self.at("my data.jsonl"));
        // Everything that has state: dropout, several micro-batches a step, 8-bit moments, an evaluation, a schedule.
        let flags = "--name killed --rank 4 --alpha 8 --dropout 0.1 --length 128 --micro-batch 2 --accumulation 2 \
                     --recompute c1 --base f32 --optimizer adamw8 --lr 3e-3 --warmup 5 --seed 42 --eval-every 15 \
                     --eval-fraction 0.1 --samples 1 --checkpoint-every-seconds 100000 --checkpoint-every 7";
        command.args(flags.split_whitespace()).arg("--max-steps").arg(n_steps.to_string());
        command
    }

    fn resume(&self, runs: &str, id: &str) -> Command {
        let mut command = hearth(&self.at(runs));
        command.arg("resume").arg(id);
        command
    }

    /// The only run in a folder, once there is one.
    fn run(&self, runs: &str) -> Option<RunFolder> {
        let mut names = fs::read_dir(self.at(runs)).ok()?.flatten().filter(|e| e.path().join("run.toml").is_file());
        let id = names.next()?.file_name().into_string().unwrap();
        Some(RunFolder::find(&self.at(runs), &id).unwrap())
    }
}

/// What a finished run leaves: the bytes of adapter and optimizer, and the loss of every step.
#[derive(PartialEq)]
struct Result {
    adapter: Vec<u8>,
    optimizer: Vec<u8>,
    losses: Vec<(usize, f64)>,
    evaluations: Vec<(usize, f64, bool)>,
}

fn result(run: &RunFolder) -> Result {
    assert_eq!(run.summary().unwrap().state, RunState::Finished);
    let folder = run.checkpoints().path(N_STEPS);
    let history = run.history().unwrap();
    let of = |event: &TrainEvent| match *event {
        TrainEvent::Step { step, loss, .. } => Some((step, loss)),
        _ => None,
    };
    Result {
        adapter: fs::read(folder.join("adapter.safetensors")).unwrap(),
        optimizer: fs::read(folder.join("optimizer.safetensors")).unwrap(),
        losses: history.lines().iter().filter_map(|l| of(&l.event)).collect(),
        evaluations: history
            .lines()
            .iter()
            .filter_map(|l| match l.event {
                TrainEvent::Evaluation { step, loss, best, .. } => Some((step, loss, best)),
                _ => None,
            })
            .collect(),
    }
}

fn assert_same(got: &Result, alone: &Result, what: &str) {
    assert_eq!(got.losses, alone.losses, "{what}: losses");
    assert_eq!(got.evaluations, alone.evaluations, "{what}: evaluations");
    assert!(got.adapter == alone.adapter, "{what}: the adapter's bytes differ");
    assert!(got.optimizer == alone.optimizer, "{what}: the optimizer's bytes differ");
}

fn alone(bench: &Bench) -> (Result, Duration) {
    let started = Instant::now();
    let said = Said::by(&mut bench.train("alone"));
    assert_eq!(said.exit, Some(0), "{said:?}");
    let took = started.elapsed();
    let result = result(&bench.run("alone").unwrap());
    assert_eq!(result.losses.len(), N_STEPS);
    assert_eq!(result.evaluations.len(), N_STEPS / 15);
    (result, took)
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_run_killed_at_20_random_instants_and_resumed_makes_the_same_bytes() {
    let bench = Bench::new();
    let (alone, took) = alone(&bench);
    let seed = 20_261_129;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut n_kills, mut n_runs) = (0, 0);
    while n_kills < 20 {
        n_runs += 1;
        let runs = format!("killed {n_runs}");
        loop {
            let run = bench.run(&runs);
            let mut child = start(&mut match &run {
                None => bench.train(&runs),
                Some(run) => bench.resume(&runs, run.id()),
            });
            let instant = took.mul_f64(rng.random_range(0.0..1.1));
            sleep(instant);
            if let Some(status) = child.try_wait().unwrap() {
                let err = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
                assert!(status.success(), "seed {seed}, run {n_runs}: {status}\n{err}");
                break;
            }
            // SIGKILL: no handler runs, nothing is flushed.
            child.kill().unwrap();
            child.wait().unwrap();
            n_kills += 1;
            if let Some(run) = bench.run(&runs) {
                assert_eq!(run.summary().unwrap().pid, None, "a dead process holds nothing");
            }
            // Enough of this one; the rest of it undisturbed.
            if n_kills % 4 == 0 {
                let mut rest = match bench.run(&runs) {
                    None => bench.train(&runs),
                    Some(run) => bench.resume(&runs, run.id()),
                };
                let said = Said::by(&mut rest);
                assert_eq!(said.exit, Some(0), "seed {seed}, run {n_runs}: {said:?}");
                break;
            }
        }
        let run = bench.run(&runs).unwrap();
        assert_same(&result(&run), &alone, &format!("seed {seed}, run {n_runs}, {n_kills} kills so far"));
        // Checkpoints that were being written are gone, and so is the reserve.
        let left = fs::read_dir(run.path().join("checkpoints")).unwrap().flatten().map(|e| e.file_name());
        assert!(left.into_iter().all(|n| n.to_str().unwrap().parse::<usize>().is_ok()), "{:?}", run.path());
    }
}

#[test]
fn a_finished_run_is_not_touched_by_a_resume() {
    let bench = Bench::new();
    alone(&bench);
    let run = bench.run("alone").unwrap();
    let events = fs::read(run.path().join("events.jsonl")).unwrap();
    let said = Said::by(&mut bench.resume("alone", run.id()));
    assert_eq!(said.exit, Some(0), "{said:?}");
    assert!(said.out.contains("finished already"), "{said:?}");
    assert_eq!(fs::read(run.path().join("events.jsonl")).unwrap(), events);
}

#[test]
fn an_adapter_that_a_run_was_ended_before_writing_is_written_when_it_is_taken_up() {
    let bench = Bench::new();
    let out = bench.at("trained 🔥");
    // Whether so small a model can be proven is another question.
    let is_written = |said: &Said| matches!(said.exit, Some(0 | 7)) && said.out.contains("adapter of step");
    let said = Said::by(bench.train("runs").arg("--out").arg(&out));
    assert!(is_written(&said), "{said:?}");
    let run = bench.run("runs").unwrap();
    let adapter = || fs::read(out.join("adapter_model.safetensors")).unwrap();
    let n_exported = || {
        let to_out = |event: &TrainEvent| matches!(event, TrainEvent::Exported { path, .. } if *path == out);
        run.history().unwrap().lines().iter().filter(|line| to_out(&line.event)).count()
    };
    let written = adapter();
    assert_eq!(n_exported(), 1);

    // As it is when the process was killed between the end of the training and the export.
    let log = run.path().join("events.jsonl");
    let lines = fs::read_to_string(&log).unwrap();
    let before: Vec<&str> = lines.lines().filter(|line| !line.contains("\"exported\"")).collect();
    fs::write(&log, before.join("\n") + "\n").unwrap();
    fs::remove_dir_all(&out).unwrap();
    assert_eq!(n_exported(), 0);
    let said = Said::by(&mut bench.resume("runs", run.id()));
    assert!(is_written(&said), "{said:?}");
    assert!(n_exported() == 1 && adapter() == written, "{said:?}");

    // Who took it away does not get it again.
    fs::remove_dir_all(&out).unwrap();
    let said = Said::by(&mut bench.resume("runs", run.id()));
    assert_eq!(said.exit, Some(0), "{said:?}");
    assert!(said.out.contains("finished already") && !out.exists(), "{said:?}");
}

#[test]
#[cfg(unix)]
fn ctrl_c_makes_a_checkpoint_and_exits_with_6_and_the_resumed_run_is_the_same() {
    let bench = Bench::new();
    let (alone, _) = alone(&bench);
    for signal in ["-INT", "-TERM"] {
        // A run so short may be over before the signal comes; not every one of five is.
        let is_met = (0..5).any(|attempt| {
            let runs = format!("stopped {signal} {attempt}");
            let mut child = start(&mut bench.train(&runs));
            let run = wait_for_step(&bench, &runs, 3);
            Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap();
            let status = child.wait().unwrap();
            if status.success() {
                return false;
            }
            assert_eq!(status.code(), Some(6), "{signal}");
            let summary = run.summary().unwrap();
            assert_eq!(summary.state, RunState::Stopped);
            assert_eq!(run.checkpoints().newest_state().unwrap().step, summary.step, "no step is lost");
            let said = Said::by(&mut bench.resume(&runs, run.id()));
            assert_eq!(said.exit, Some(0), "{said:?}");
            assert_same(&result(&run), &alone, signal);
            true
        });
        assert!(is_met, "{signal}: every run was over before it came");
    }
}

#[test]
fn a_detached_run_outlives_its_caller_and_can_be_paused_watched_and_stopped() {
    let bench = Bench::new();
    // Long enough to be met while it runs.
    let mut command = bench.train_for("detached", 100_000);
    command.arg("--detach").arg("--json");
    let said = Said::by(&mut command);
    assert_eq!(said.exit, Some(0), "{said:?}");
    let line = &said.json_lines()[0];
    let id = line["run_id"].as_str().unwrap();
    let run = RunFolder::find(&bench.at("detached"), id).unwrap();
    assert_eq!(line["path"].as_str().unwrap(), run.path().to_str().unwrap());
    assert_eq!(line["pid"].as_u64(), run.pid().map(u64::from));
    let of_run = |what: &str| {
        let mut command = hearth(&bench.at("detached"));
        command.arg(what).arg(id);
        command
    };
    wait_for_step(&bench, "detached", 2);

    // A second process on the run is refused, with the holder.
    let said = Said::by(of_run("resume").arg("--json"));
    assert_eq!(said.exit, Some(5), "{said:?}");
    assert_eq!(said.error()["code"], "run.busy");
    assert!(said.error()["message"].as_str().unwrap().contains(&run.pid().unwrap().to_string()));

    assert_eq!(Said::by(&mut of_run("pause")).exit, Some(0));
    wait_for(&run, |event| matches!(event, TrainEvent::Phase { name } if name == "pause"));
    let paused_at = run.summary().unwrap().step;
    sleep(Duration::from_millis(500));
    assert_eq!(run.summary().unwrap().step, paused_at, "a paused run takes no step");
    assert_eq!(Said::by(&mut of_run("continue")).exit, Some(0));
    wait_for_step(&bench, "detached", paused_at + 2);

    let watching = of_run("watch").arg("--json").stdout(Stdio::piped()).spawn().unwrap();
    let said = Said::by(of_run("stop").arg("--wait"));
    assert_eq!(said.exit, Some(0), "{said:?}");
    let watched = watching.wait_with_output().unwrap();
    let last = String::from_utf8(watched.stdout).unwrap().lines().last().unwrap().to_string();
    assert!(last.contains("\"finished\"") && last.contains("\"stopped\""), "{last}");
    let summary = run.summary().unwrap();
    assert_eq!(summary.state, RunState::Stopped);
    assert_eq!(run.checkpoints().newest_state().unwrap().step, summary.step);

    let said = Said::by(&mut of_run("stop"));
    assert_eq!(said.exit, Some(5), "{said:?}");
}

fn wait_for_step(bench: &Bench, runs: &str, wanted: usize) -> RunFolder {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(run) = bench.run(runs)
            && run.summary().is_ok_and(|s| s.step >= wanted)
        {
            return run;
        }
        assert!(Instant::now() < deadline, "no step {wanted} in {}", bench.at(runs).display());
        sleep(Duration::from_millis(5));
    }
}

fn wait_for(run: &RunFolder, wanted: impl Fn(&TrainEvent) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !run.history().unwrap().lines().iter().any(|line| wanted(&line.event)) {
        assert!(Instant::now() < deadline, "the event did not come");
        sleep(Duration::from_millis(5));
    }
}

/// Paths are passed on as they are, never through a shell.
#[test]
fn a_model_folder_named_like_a_flag_is_no_flag() {
    let bench = Bench::new();
    let model = bench.at("-rf");
    tiny_model::write(&model, 1).expect("the model can be written");
    let mut command = hearth(&bench.at("runs"));
    command.current_dir(bench.folder.path());
    command.args(["train", "--model=-rf", "--data", "my data.jsonl", "--max-steps", "1", "--length", "128"]);
    let said = Said::by(&mut command);
    assert_eq!(said.exit, Some(0), "{said:?}");
    let run = bench.run("runs").unwrap();
    assert_eq!(run.record().unwrap().given.model, Path::new(&model));
}
