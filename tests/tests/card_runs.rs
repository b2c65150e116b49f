//! Runs of the demo's model on a graphics card, from the command line: what was said before and what came, the same bytes again, other
//! programs on the card, exports and answers. Without a card, in the engine for the processor, or without the model, every test here
//! says so and passes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use hearth_engine::config::{ComputeDtype, Settings};
use hearth_engine::event::TrainEvent;
use hearth_engine::hardware::{CardReading, Hardware, Prediction, TrainOn, card_free_bytes, detect, watch};
use hearth_engine::ops::memory::free_caches;
use hearth_engine::plan::{Family, Plan};
use hearth_engine::run::{self, Pace, RunFolder, RunState};
use hearth_engine::step;
use hearth_tests::demo_model::demo_model_path;
use hearth_tests::hearth::{Said, hearth};
use hearth_tests::short::{Bench, adapter_of, distance, fault_at_every_site};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/demo");
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A job of several hundred steps. What a plan may choose differently from run to run is said.
const JOB: &str = "--base nf4 --layers-cached 30 --compute bf16 --optimizer adamw8 --recompute n --epochs 6 --samples 0 \
                   --eval-every 150 --checkpoint-every 100 --checkpoint-every-seconds 100000";

/// A run whose buffers are most of what it takes. In f32, where another order of sums is a rounding of 2^-24.
const WIDE: &str = "--base nf4 --layers-cached 0 --compute f32 --optimizer adamw32 --micro-batch 16 --accumulation 1 \
                    --max-steps 80 --samples 8 --eval-every 60 --no-rehearsal";
const WIDE_STEPS: usize = 80;
/// The adapter after those steps of AdamW where something was summed in another order, relative.
const ROUNDING: f64 = 2e-2;
/// And the losses of the steps.
const LOSS_ROUNDING: f64 = 2e-3;

/// A folder for runs, alone on the card.
struct Scene {
    model: PathBuf,
    folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

fn scene() -> Option<Scene> {
    static CARD: Mutex<()> = Mutex::new(());
    if detect().training_card().is_none() {
        println!("skipped: there is no card here, or this is the engine for the processor");
        return None;
    }
    let model = demo_model_path()?;
    let folder = tempfile::Builder::new().prefix("hearth 显卡 'x' ").tempdir().unwrap();
    Some(Scene { model, folder, _alone: CARD.lock().unwrap_or_else(PoisonError::into_inner) })
}

impl Scene {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn hearth(&self, runs: &str, args: &[&str]) -> Command {
        let mut command = hearth(&self.at(runs));
        command.args(args);
        command
    }

    /// `train` or `plan` of the demo's job with these flags.
    fn job(&self, runs: &str, what: &str, flags: &str) -> Command {
        let mut command = self.hearth(runs, &[what, "--config", &format!("{DEMO}/config.json")]);
        command.arg("--model").arg(&self.model).arg("--data").arg(format!("{DEMO}/train.jsonl"));
        command.args(flags.split_whitespace());
        command
    }

    fn train(&self, runs: &str, flags: &str) -> RunFolder {
        done(&mut self.job(runs, "train", flags));
        self.newest(runs).expect("it has a folder")
    }

    fn newest(&self, runs: &str) -> Option<RunFolder> {
        let id = run::list(&self.at(runs)).first()?.id.clone();
        RunFolder::find(&self.at(runs), &id).ok()
    }

    /// The card with as much free memory as now, in a file for `HEARTH_HARDWARE`: what is planned with it does not see what other
    /// programs take later.
    fn as_now(&self) -> PathBuf {
        let path = self.at("hardware.json");
        fs::write(&path, done(&mut self.hearth("none", &["hardware", "--json"])).out).unwrap();
        path
    }

    /// The job's result, made once for all tests.
    fn alone(&self) -> &'static Outcome {
        ALONE.get_or_init(|| outcome(&self.train("alone", &format!("{JOB} --no-rehearsal"))))
    }
}

static ALONE: OnceLock<Outcome> = OnceLock::new();

fn done(command: &mut Command) -> Said {
    let said = Said::by(command);
    assert_eq!(said.exit, Some(0), "{command:?}: {said:?}");
    said
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended_well(mut child: Child) {
    let status = child.wait().unwrap();
    let err = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(status.success(), "{status}\n{err}");
}

/// Waits until `find` finds something.
fn wait<T>(what: &str, limit_s: u64, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit_s} s");
        sleep(Duration::from_millis(20));
    }
}

fn events(run: &RunFolder) -> Vec<TrainEvent> {
    run.history().unwrap().lines().iter().map(|line| line.event.clone()).collect()
}

fn n_steps_done(run: &RunFolder) -> usize {
    run.summary().map_or(0, |summary| summary.step)
}

fn wait_for_step(scene: &Scene, runs: &str, step: usize) -> RunFolder {
    wait("a step", 60, || scene.newest(runs).filter(|run| n_steps_done(run) >= step))
}

fn n_rungs(run: &RunFolder) -> usize {
    events(run).iter().filter(|event| matches!(event, TrainEvent::Rung { .. })).count()
}

fn warnings(run: &RunFolder) -> Vec<String> {
    let code = |event| if let TrainEvent::Warning { code, .. } = event { Some(code) } else { None };
    events(run).into_iter().filter_map(code).collect()
}

/// Bytes at the end, and the losses on the way.
struct Outcome {
    adapter: Vec<u8>,
    optimizer: Vec<u8>,
    losses: Vec<f64>,
    evaluations: Vec<f64>,
}

fn outcome(run: &RunFolder) -> Outcome {
    let summary = run.summary().unwrap();
    assert_eq!((summary.state, summary.step), (RunState::Finished, summary.n_steps));
    let folder = run.checkpoints().path(summary.step);
    let (mut losses, mut evaluations) = (Vec::new(), Vec::new());
    for event in events(run) {
        match event {
            TrainEvent::Step { loss, .. } => losses.push(loss),
            TrainEvent::Evaluation { loss, .. } => evaluations.push(loss),
            _ => {}
        }
    }
    let bytes = |name: &str| fs::read(folder.join(name)).unwrap();
    Outcome { adapter: bytes("adapter.safetensors"), optimizer: bytes("optimizer.safetensors"), losses, evaluations }
}

fn assert_same(run: &RunFolder, alone: &Outcome, what: &str) {
    let got = outcome(run);
    assert_eq!(got.losses, alone.losses, "{what}: losses");
    assert_eq!(got.evaluations, alone.evaluations, "{what}: evaluations");
    assert!(got.adapter == alone.adapter, "{what}: the adapter's bytes differ");
    assert!(got.optimizer == alone.optimizer, "{what}: the optimizer's bytes differ");
}

/// Of a run that may have been computed in other parts.
fn assert_close(run: &RunFolder, alone: &RunFolder, what: &str) {
    let (got, want) = (outcome(run).losses, outcome(alone).losses);
    assert_eq!(got.len(), want.len(), "{what}");
    let loss_off = got.iter().zip(&want).map(|(got, want)| (got / want - 1.0).abs()).fold(0.0, f64::max);
    let adapters = [run, alone].map(|run| adapter_of(run, want.len()));
    let off = distance(&adapters[0], &adapters[1]);
    println!("{what}: the adapter is off by {off:.1e}, the losses by {loss_off:.1e} at most, {} rungs", n_rungs(run));
    if n_rungs(run) == 0 {
        assert_eq!(got, want, "{what}: without a rung every bit is the same");
    }
    assert!(off <= ROUNDING && loss_off <= LOSS_ROUNDING, "{what}: off by {off:e}, losses by {loss_off:e}");
}

fn bytes_of(plan: &Plan, families: &[Family]) -> u64 {
    plan.items.iter().filter(|item| families.contains(&item.family)).map(|item| item.bytes).sum()
}

/// Another program on the card: this one.
struct Other {
    card: Device,
    memory: Vec<Tensor>,
    work: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Other {
    fn new() -> Self {
        Self { card: step::device(TrainOn::Card).unwrap(), memory: Vec::new(), work: None }
    }

    /// Takes so much, or less where a run takes of it meanwhile.
    fn take(&mut self, mut bytes: u64) {
        let mut part = GIB;
        while bytes > 0 && part >= 32 * MIB {
            part = part.min(bytes);
            match Tensor::zeros(part as usize, DType::U8, &self.card) {
                Ok(tensor) => {
                    self.memory.push(tensor);
                    bytes -= part;
                }
                Err(_) => part /= 2,
            }
        }
        self.card.synchronize().unwrap();
    }

    /// Takes all but about so much.
    fn leave(&mut self, bytes: u64) {
        let free = card_free_bytes(Vec::new()).expect("the driver answers");
        self.take(free.saturating_sub(bytes) / (32 * MIB) * (32 * MIB));
        println!("another program left {} MiB of {} MiB", card_free_bytes(Vec::new()).unwrap() / MIB, free / MIB);
    }

    fn give_back(&mut self) {
        self.memory.clear();
        free_caches(&self.card).unwrap();
    }

    /// Computes until [`Self::rest`].
    fn work(&mut self) {
        let is_over = Arc::new(AtomicBool::new(false));
        let (card, seen) = (self.card.clone(), Arc::clone(&is_over));
        let work = std::thread::spawn(move || {
            let a = Tensor::rand(-1f32, 1.0, (8192, 8192), &card).unwrap().to_dtype(DType::BF16).unwrap();
            while !seen.load(Ordering::Relaxed) {
                for _ in 0..8 {
                    a.matmul(&a).unwrap();
                }
                card.synchronize().unwrap();
            }
        });
        self.work = Some((is_over, work));
    }

    fn rest(&mut self) {
        if let Some((is_over, work)) = self.work.take() {
            is_over.store(true, Ordering::Relaxed);
            work.join().unwrap();
        }
        self.give_back();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.rest();
    }
}

#[test]
fn a_card_is_described_and_planned_for() {
    let Some(scene) = scene() else { return };
    let said = done(&mut scene.hearth("runs", &["hardware", "--json"]));
    println!("{}", said.out);
    let hardware: Hardware = serde_json::from_str(&said.out).unwrap();
    assert_eq!(hardware.train_on, TrainOn::Card, "its libraries are not found: {said:?}");
    let card = &hardware.cards[0];
    let free = card.memory_free_bytes.expect("free memory");
    assert!(!card.name.is_empty() && card.memory_bytes > 2 * GIB && free <= card.memory_bytes, "{card:?}");
    assert!(card.memory_bytes - free < 2 * GIB, "something else is on this card");
    let number = |text: &Option<String>| text.as_ref().and_then(|t| t.split('.').next()?.parse::<u32>().ok());
    assert!(number(&card.driver) >= Some(580) && number(&card.compute_capability) >= Some(8), "{card:?}");
    assert!(number(&card.cuda) >= Some(13) && card.architecture.is_some() && card.uuid.is_some(), "{card:?}");
    let within = |what: &str, value: Option<f64>, least: f64, most: f64| {
        assert!(value.is_some_and(|v| (least..=most).contains(&v)), "{what}: {value:?}");
    };
    within("temperature", card.temperature_c, 10.0, 95.0);
    within("power limit", card.power_limit_w, 30.0, 2000.0);
    within("power", card.power_w, 1.0, card.power_limit_w.unwrap() + 100.0);
    within("clock", card.sm_clock_mhz, 100.0, card.sm_clock_max_mhz.unwrap_or(5000.0));
    within("memory clock", card.memory_clock_mhz, 100.0, card.memory_clock_max_mhz.unwrap_or(50_000.0));

    let said = done(&mut scene.hearth("runs", &["plan", "--model", "llama-3.1-8b", "--length", "2048", "--json"]));
    let plan: Plan = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&plan.budget.device, plan.budget.total_bytes), (&card.name, card.memory_bytes));
    assert_eq!(plan.fits, plan.planned_bytes <= plan.budget_bytes);
    assert_eq!((plan.settings.train_on, plan.settings.compute), (TrainOn::Card, ComputeDtype::Bf16));
    println!("{}", done(&mut scene.hearth("runs", &["plan", "--model", "llama-3.1-8b", "--length", "2048"])).out);
}

/// Seconds from the first step's beginning to the end.
fn took(run: &RunFolder) -> f64 {
    let history = run.history().unwrap();
    let time_of = |is_it: fn(&TrainEvent) -> bool| {
        history.lines().iter().find(|line| is_it(&line.event)).expect("a line").time_ms as f64 / 1000.0
    };
    let begun = time_of(|event| matches!(event, TrainEvent::Phase { name } if name == "train"));
    time_of(|event| matches!(event, TrainEvent::Finished { .. })) - begun
}

#[test]
fn a_job_takes_the_time_and_the_memory_that_were_said_and_ends_in_a_proven_model_that_answers() {
    let Some(scene) = scene() else { return };
    let first = scene.train("runs", JOB);
    let rehearsal = first.rehearsal().unwrap().expect("rehearsed");
    let (said_s, took_s) = (rehearsal.measured.total_s, took(&first));
    println!(
        "time: planned {:.1} s, rehearsed {said_s:.1} s in {:.1} s, took {took_s:.1} s ({:+.1} %)",
        rehearsal.predicted.total_s,
        rehearsal.seconds,
        100.0 * (took_s / said_s - 1.0)
    );
    println!("rehearsal: {}", serde_json::to_string(&rehearsal).unwrap());
    assert_eq!((n_rungs(&first), memory_warnings(&first)), (0, 0), "{:?}", warnings(&first));

    // The same once more, planned with what the first one measured, and without a rehearsal.
    let second = scene.train("runs", &format!("{JOB} --no-rehearsal"));
    assert!(second.rehearsal().unwrap().is_none() && second.id() != first.id());
    let settings = |run: &RunFolder| run.record().unwrap().resolved;
    assert_eq!(Settings { rehearsal: true, ..settings(&second) }, settings(&first));
    let alone = ALONE.get_or_init(|| outcome(&first));
    assert_same(&first, alone, "rehearsed");
    assert_same(&second, alone, "not rehearsed");

    check_telemetry(&first);
    let memory_off = [&first, &second].map(|run| {
        let (planned, peak) = planned_and_peak(run);
        let off = peak as f64 / planned as f64 - 1.0;
        let (planned, peak) = (planned / MIB, peak / MIB);
        println!("memory: planned {planned} MiB, at most {peak} MiB ({:+.2} %)", 100.0 * off);
        off
    });
    let said = done(&mut scene.hearth("runs", &["history", "--json"]));
    let history: Vec<Prediction> = serde_json::from_str(&said.out).unwrap();
    println!("{}", done(&mut scene.hearth("runs", &["history"])).out);
    assert_eq!(history.len(), 2);

    let report = done(&mut scene.hearth("runs", &["report", first.id()]));
    let page = fs::read_to_string(first.report()).unwrap();
    assert!(page.contains("<svg") && page.len() > 20_000, "{report:?}");

    // Answers on the card, before and after.
    let held_out = format!("{DEMO}/held-out.jsonl");
    let begun = Instant::now();
    let said = done(scene.hearth("runs", &["score", "--run", first.id(), "--json", "--data"]).arg(&held_out));
    let score: serde_json::Value = said.json_lines().remove(0);
    let (n, base, tuned) = (&score["n"], &score["base_exact"], score["tuned_exact"].as_u64().unwrap());
    println!("exact: {base} before and {tuned} after of {n}, in {:.1} s", begun.elapsed().as_secs_f64());
    assert!(base.as_u64() <= Some(3) && 10 * tuned >= 7 * n.as_u64().unwrap(), "{base} and {tuned} of {n}");

    chat(&scene, &first, &held_out);

    let merged = scene.at("merged");
    let begun = Instant::now();
    let mut export = scene.hearth("runs", &["export", first.id(), "--kind", "merged", "--json", "--out"]);
    let said = done(export.arg(&merged));
    let proof = said.json_lines().pop().unwrap();
    println!("export in {:.1} s: {}", begun.elapsed().as_secs_f64(), proof["proof"]["checks"]);
    assert!(merged.join("proof.json").is_file() && merged.join("config.json").is_file());

    // The merged model alone, in f32 on the processor, answers as the adapter does on the card.
    let said = done(scene.hearth("runs", &["score", "--json", "--data"]).arg(&held_out).arg("--model").arg(&merged));
    let exact = said.json_lines().remove(0)["base_exact"].as_u64().unwrap();
    println!("exact: {exact} of the merged model");
    assert!(exact.abs_diff(tuned) <= 4, "{exact} merged, {tuned} with the adapter");

    assert!((took_s / said_s - 1.0).abs() < 0.15, "rehearsed {said_s} s, took {took_s} s");
    assert!(memory_off[1].abs() < 0.02, "planned and measured memory differ by {memory_off:?}");
}

fn memory_warnings(run: &RunFolder) -> usize {
    warnings(run).iter().filter(|code| code.starts_with("run.")).count()
}

fn planned_and_peak(run: &RunFolder) -> (u64, u64) {
    let memory = events(run).into_iter().filter_map(|event| match event {
        TrainEvent::Step { memory, .. } => Some((memory.planned_bytes, memory.peak_bytes)),
        _ => None,
    });
    memory.last().expect("a step")
}

/// What steps say of the whole card.
fn check_telemetry(run: &RunFolder) {
    let mut readings: Vec<CardReading> = Vec::new();
    let mut n_steps = 0;
    for event in events(run) {
        let TrainEvent::Step { memory, card, .. } = event else { continue };
        n_steps += 1;
        let pool = memory.pool.expect("a card has a pool");
        assert!(pool.used_bytes <= pool.reserved_bytes && pool.reserved_bytes <= memory.used_bytes, "{memory:?}");
        readings.extend(card);
    }
    println!("{} of {n_steps} steps have a reading, the last {:?}", readings.len(), readings.last());
    assert!(10 * readings.len() >= 9 * n_steps);
    for card in &readings {
        assert!(card.used_bytes <= card.total_bytes && card.total_bytes > 2 * GIB, "{card:?}");
        assert!(card.temperature_c.is_some_and(|c| (10.0..100.0).contains(&c)), "{card:?}");
        let limit = card.power_limit_w.expect("a limit");
        assert!(card.power_w.is_some_and(|watts| (1.0..limit + 100.0).contains(&watts)), "{card:?}");
        assert!(card.sm_clock_mhz.is_some_and(|mhz| (100.0..5000.0).contains(&mhz)), "{card:?}");
    }
    let busiest = readings.iter().filter_map(|card| card.utilisation).fold(0.0, f64::max);
    assert!(busiest > 0.2, "the card is never used: {busiest}");
    let others = readings.last().and_then(|card| card.others_bytes).expect("what others hold");
    assert!(others < GIB, "{others} bytes are counted as other programs'");
}

/// Asks one held-out example of both sides, as the window does.
fn chat(scene: &Scene, run: &RunFolder, held_out: &str) {
    let text = fs::read_to_string(held_out).unwrap();
    let mut question: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    question["messages"].as_array_mut().unwrap().pop();
    let question = serde_json::json!({ "messages": question["messages"], "max_new_tokens": 64, "which": "both" });
    let mut command = scene.hearth("runs", &["chat", "--run", run.id(), "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{question}").unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let lines = out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let answers: BTreeMap<String, serde_json::Value> = lines
        .filter(|line| line["done"] == true)
        .map(|line| (line["which"].as_str().unwrap().to_string(), line))
        .collect();
    println!("base: {}\ntuned: {}", answers["base"], answers["tuned"]);
    let tuned: serde_json::Value = serde_json::from_str(answers["tuned"]["text"].as_str().unwrap()).expect("JSON");
    assert!(tuned["task"].is_string(), "{tuned}");
}

#[test]
fn a_run_killed_on_the_card_and_taken_up_makes_the_same_bytes() {
    let Some(scene) = scene() else { return };
    let alone = scene.alone();
    let n_steps = alone.losses.len();
    let mut child = start(&mut scene.job("killed", "train", &format!("{JOB} --no-rehearsal")));
    for at in [n_steps / 4, 2 * n_steps / 3] {
        let run = wait_for_step(&scene, "killed", at);
        // SIGKILL: no handler runs, nothing is flushed.
        child.kill().unwrap();
        child.wait().unwrap();
        let newest = run.checkpoints().newest_state().expect("a checkpoint").step;
        println!("killed after step {} of {n_steps}, its checkpoint is of step {newest}", n_steps_done(&run));
        assert_eq!(run.summary().unwrap().state, RunState::Interrupted);
        child = start(&mut scene.hearth("killed", &["resume", run.id()]));
    }
    ended_well(child);
    assert_same(&scene.newest("killed").unwrap(), alone, "killed twice");
}

#[test]
fn memory_that_fails_at_every_site_changes_nothing_that_is_learned() {
    let Some(_scene) = scene() else { return };
    // Of the whole test, so that the kernels of many short runs are loaded once.
    let _card = step::device(TrainOn::Card).unwrap();
    let bench = Bench::on_card().expect("a card");
    fault_at_every_site(&bench, 0.1, |n_asked| vec![(n_asked / 2, 1), (0, 3), (n_asked / 2, usize::MAX)]);
}

#[test]
fn a_limit_is_kept_without_a_rung_and_another_programs_memory_is_lived_with() {
    let Some(scene) = scene() else { return };
    let wide = format!("{WIDE} --recompute n");
    let alone = scene.train("alone", &wide);
    let plan = alone.plan().unwrap();
    let (fixed, buffers) =
        (bytes_of(&plan, &[Family::Weights, Family::Trained]), bytes_of(&plan, &[Family::Activations]));
    let (planned, peak) = planned_and_peak(&alone);
    println!("planned {} MiB, of them {} MiB of buffers; at most {} MiB", planned / MIB, buffers / MIB, peak / MIB);
    assert!(buffers > GIB && n_rungs(&alone) == 0, "{:?}", warnings(&alone));

    // A limit that only recomputing keeps.
    let limit = plan.planned_bytes - buffers / 2;
    let limited = scene.train("limited", &format!("{WIDE} --memory-limit {limit}"));
    let (planned, peak) = planned_and_peak(&limited);
    println!("limit {} MiB, planned {} MiB, at most {} MiB", limit / MIB, planned / MIB, peak / MIB);
    assert_eq!((n_rungs(&limited), memory_warnings(&limited)), (0, 0), "{:?}", warnings(&limited));
    assert!(limited.plan().unwrap().planned_bytes <= limit && peak as f64 <= 1.02 * limit as f64);
    let off = distance(&adapter_of(&limited, WIDE_STEPS), &adapter_of(&alone, WIDE_STEPS));
    println!("under the limit the adapter is off by {off:.1e}");
    assert!(off <= ROUNDING, "off by {off:e}");

    // Planned for the free card, begun when another program holds so much of it that half of the buffers have room.
    let as_now = scene.as_now();
    let mut other = Other::new();
    let runtime = bytes_of(&plan, &[Family::Runtime]);
    other.leave(runtime + fixed + buffers / 2 + 256 * MIB);
    done(scene.job("short", "train", &wide).env("HEARTH_HARDWARE", &as_now));
    let short = scene.newest("short").unwrap();
    println!("short: {:?}", warnings(&short));
    for event in events(&short) {
        if let TrainEvent::Rung { reason, words, .. } = event {
            println!("{reason} {words}");
        }
    }
    assert!(n_rungs(&short) > 0 && warnings(&short).contains(&"run.memory_retried".into()));
    assert_close(&short, &alone, "begun short of memory");

    // All of it taken in the middle of a run, before its first evaluation.
    other.give_back();
    other.leave(plan.planned_bytes + GIB);
    let child = start(scene.job("taken", "train", &wide).env("HEARTH_HARDWARE", &as_now));
    let taken = wait_for_step(&scene, "taken", 3);
    other.leave(0);
    let step = n_steps_done(&taken);
    ended_well(child);
    println!("all was taken after step {step}: {:?}", warnings(&taken));
    assert!(step < 60, "the first evaluation was over: step {step}");
    assert_close(&taken, &alone, "all taken in the middle");
}

#[test]
fn a_governed_run_pauses_for_heat_and_other_programs_rests_for_power_and_makes_the_same_bytes() {
    let Some(scene) = scene() else { return };
    let alone = scene.alone();
    let mut other = Other::new();
    let card = watch(TrainOn::Card, Vec::new()).expect("a watch");
    // Hot enough for the lowest limit there is.
    other.work();
    let temperature = || card.newest().and_then(|reading| reading.temperature_c).unwrap_or(0.0);
    let begun = Instant::now();
    while temperature() < 49.0 && begun.elapsed() < Duration::from_secs(25) {
        sleep(Duration::from_millis(200));
    }
    let is_hot = temperature() >= 49.0;
    println!("{} °C after {:.0} s of work", temperature(), begun.elapsed().as_secs_f64());

    let limit = if is_hot { 40 } else { 0 };
    let job = format!("{JOB} --no-rehearsal --temperature-limit {limit} --power-limit 20 --yield-bytes {}", 2 * GIB);
    let child = start(&mut scene.job("governed", "train", &job));
    let run = wait("its folder", 30, || scene.newest("governed"));
    let paces = || -> Vec<(Pace, String)> {
        let pace = |event| match event {
            TrainEvent::Governor { pace, code, .. } => Some((pace, code)),
            _ => None,
        };
        events(&run).into_iter().filter_map(pace).collect()
    };
    let waits_for = |pace: Pace, code: &str, limit_s: u64| {
        wait(code, limit_s, || paces().contains(&(pace, code.into())).then_some(()));
    };
    let ask = |args: &[&str]| drop(done(&mut scene.hearth("governed", args)));
    if is_hot {
        waits_for(Pace::Paused, "governor.heat", 30);
        other.rest();
        ask(&["govern", run.id(), "--temperature-limit", "0"]);
    } else {
        println!("skipped: the card stays too cool for the lowest limit");
        other.rest();
    }
    waits_for(Pace::Slowed, "governor.power", 30);
    ask(&["govern", run.id(), "--power-limit", "0", "--yield-to-others", "true"]);
    // Held by hand, so that it is not over before the other program has been waited for.
    ask(&["pause", run.id()]);
    let is_paused = || {
        let phase = |event| if let TrainEvent::Phase { name } = event { Some(name) } else { None };
        events(&run).into_iter().filter_map(phase).last().is_some_and(|name| name == "pause")
    };
    wait("a pause", 20, || is_paused().then_some(()));
    // Long enough to be seen as it was.
    sleep(Duration::from_millis(1500));
    other.take(8 * GIB);
    waits_for(Pace::Paused, "governor.other_program", 20);
    ask(&["continue", run.id()]);
    let step = n_steps_done(&run);
    sleep(Duration::from_secs(2));
    assert_eq!(n_steps_done(&run), step, "it yields");
    assert!(step < alone.losses.len());
    other.give_back();
    let begun = Instant::now();
    wait("it goes on by itself", 40, || (n_steps_done(&run) > step).then_some(()));
    println!("it went on {:.0} s after the memory was given back", begun.elapsed().as_secs_f64());
    ended_well(child);
    println!("{:?}", paces());
    assert_same(&run, alone, "governed");
}
