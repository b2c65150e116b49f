//! The loop over arithmetic that can be checked: crashes, stops, full disks, and memory that runs out.

use std::path::Path;

use candle_core::Device;

use super::super::error::Error;
use super::super::events::{History, Notice, read};
use super::super::governor::{Look, Pace, Sight};
use super::super::rehearsal::{Rehearsal, Scene};
use super::super::toy::{Toy, some_plan};
use super::*;
use crate::config::{CheckpointConfig, GovernorConfig, Recompute, ScheduleKind};
use crate::disk::faults::{Fault, arm, disarm};
use crate::error::Explain;
use crate::generate;
use crate::hardware::CardReading;
use crate::ops::memory::{self, Site};
use crate::step::LossScale;

mod keeping;

fn settings() -> Settings {
    Settings {
        length: 12,
        micro_batch: 2,
        accumulation: 3,
        head_rows: 8,
        learning_rate: 1e-3,
        schedule: ScheduleKind::Cosine,
        warmup_steps: 3,
        n_steps: 17,
        evaluate_every_steps: 4,
        n_samples: 1,
        checkpoints: CheckpointConfig { every_seconds: 3600, every_steps: Some(5), keep: 2 },
        seed: 11,
        ..Settings::default()
    }
}

fn samples(n: usize) -> Vec<Sample> {
    (0..n)
        .map(|i| {
            let n_tokens = 4 + i * 7 % 9;
            Sample {
                row: i + 1,
                input_ids: (0..n_tokens).map(|t| (i * 31 + t * 17) as u32 % 97).collect(),
                learned: (0..n_tokens).map(|t| t > n_tokens / 3).collect(),
                truncated_from: None,
            }
        })
        .collect()
}

/// Trains in `folder` from its newest checkpoint, as a process does.
fn go(
    folder: &Path,
    settings: &Settings,
    toy: &mut Toy,
    watcher: &mut dyn FnMut(&TrainEvent),
) -> Result<Outcome, Error> {
    go_governed(folder, settings, Governor::clock(|| None), toy, watcher)
}

/// The same, with a governor that sees by `look`.
fn go_governed(
    folder: &Path,
    settings: &Settings,
    look: Look<'_>,
    toy: &mut Toy,
    watcher: &mut dyn FnMut(&TrainEvent),
) -> Result<Outcome, Error> {
    go_after(&mut |_| Ok(()), folder, settings, look, toy, watcher)
}

/// The same, after something was done with the run.
fn go_after(
    first: &mut dyn FnMut(&mut Training<'_, '_, Toy>) -> Result<(), Error>,
    folder: &Path,
    settings: &Settings,
    look: Look<'_>,
    toy: &mut Toy,
    watcher: &mut dyn FnMut(&TrainEvent),
) -> Result<Outcome, Error> {
    let (train, held_out) = (samples(22), samples(3));
    let checkpoints = Checkpoints::new(folder);
    let state = checkpoints.newest().0;
    let saved_step = state.as_ref().map(|s| s.step);
    if let Some(state) = &state {
        let adapter = checkpoints.adapter(state.step, &Device::Cpu)?;
        toy.restore(&adapter, &checkpoints.optimizer(state.step, &Device::Cpu)?, state)?;
    }
    let mut watcher = |notice: Notice<'_>| {
        if let Notice::Event(line) = notice {
            watcher(&line.event);
        }
    };
    let mut events = Events::new(&mut watcher);
    events.attach(folder)?;
    events.emit(TrainEvent::Started {
        run_id: "r".into(),
        pid: 1,
        step: saved_step.unwrap_or(0),
        n_steps: settings.n_steps,
        resumed: !read(folder)?.is_empty(),
    })?;
    let mut training = Training {
        settings,
        train: &train,
        held_out: &held_out,
        learner: toy,
        answer: &mut |toy: &Toy| {
            if !toy.speaks {
                return Err(Error::Generate(generate::Error::NotFinite { prompt: 0, n_generated: 1 }));
            }
            let asked = Held::new().admit(64, &Device::Cpu, Site::Cache);
            asked.map_err(|e| Error::Generate(e.into()))?;
            Ok(vec![Answer { prompt: "p".into(), answer: "a".into(), wanted: "w".into() }])
        },
        events: &mut events,
        checkpoints,
        control: Control::new(folder),
        governor: Governor::new(settings.governor.clone(), look),
        expected: None,
        memory: MemoryMeter::start(&Device::Cpu, 0, None),
        overhead_bytes: 0,
        card: None,
        alarm: Alarm::default(),
        fitting: settings.clone(),
        has_retried: false,
        state: state.unwrap_or_else(|| State::new(settings.seed)),
        saved_step,
        reserve_bytes: 1 << 12,
        has_reserve: true,
    };
    first(&mut training)?;
    training.run()
}

fn losses(folder: &Path) -> Vec<(usize, f64, f64)> {
    let history = History::replay(read(folder).unwrap());
    let steps = history.lines().iter().filter_map(|l| match l.event {
        TrainEvent::Step { step, loss, learning_rate, .. } => Some((step, loss, learning_rate)),
        _ => None,
    });
    steps.collect()
}

fn undisturbed(settings: &Settings) -> (Toy, Vec<(usize, f64, f64)>) {
    let folder = tempfile::tempdir().unwrap();
    let mut toy = Toy::new();
    let outcome = go(folder.path(), settings, &mut toy, &mut |_| {}).unwrap();
    assert!(matches!(outcome, Outcome::Finished { reason: FinishReason::Completed, step: 17, .. }), "{outcome:?}");
    (toy, losses(folder.path()))
}

#[test]
fn a_run_that_crashes_at_any_point_of_writing_and_is_resumed_comes_out_the_same() {
    let settings = settings();
    let (alone, alone_losses) = undisturbed(&settings);
    assert_eq!(alone_losses.len(), 17);
    let mut n_crashes = 0;
    for point in 0.. {
        let folder = tempfile::tempdir().unwrap();
        arm(point, Fault::Crash);
        let crash = std::panic::catch_unwind(|| go(folder.path(), &settings, &mut Toy::new(), &mut |_| {}));
        disarm();
        if crash.is_ok() {
            break;
        }
        n_crashes += 1;
        let mut toy = Toy::new();
        go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
        assert_eq!(toy.weights(), alone.weights(), "crash at point {point}");
        assert_eq!(losses(folder.path()), alone_losses, "crash at point {point}");
    }
    assert!(n_crashes > 60, "only {n_crashes} points");
}

#[test]
fn a_stop_between_any_two_micro_batches_and_a_resume_change_nothing() {
    let settings = settings();
    let (alone, alone_losses) = undisturbed(&settings);
    for stop_after in [1, 2, 3, 4, 9, 17, 20] {
        let folder = tempfile::tempdir().unwrap();
        let control = Control::new(folder.path());
        let mut n_steps = 0;
        // Asked during a step, obeyed at the next micro-batch.
        let outcome = go(folder.path(), &settings, &mut Toy::new(), &mut |event| {
            if matches!(event, TrainEvent::Step { .. }) {
                n_steps += 1;
                if n_steps == stop_after {
                    control.ask_stop().unwrap();
                }
            }
        });
        let is_over = matches!(outcome, Ok(Outcome::Finished { reason: FinishReason::Completed, step: 17, .. }));
        let is_stopped = matches!(outcome, Ok(Outcome::Stopped { step }) if step == stop_after);
        assert!(if stop_after > 17 { is_over } else { is_stopped }, "stopped after {stop_after}: {outcome:?}");
        control.clear().unwrap();
        let mut toy = Toy::new();
        go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
        assert_eq!(toy.weights(), alone.weights(), "stopped after {stop_after}");
        assert_eq!(losses(folder.path()), alone_losses);
    }
}

#[test]
fn a_full_disk_ends_the_run_with_the_last_checkpoint_whole() {
    let settings = settings();
    let (alone, _) = undisturbed(&settings);
    let mut n_faults = 0;
    for point in (0..).step_by(3) {
        let folder = tempfile::tempdir().unwrap();
        arm(point, Fault::DiskFull);
        let result = go(folder.path(), &settings, &mut Toy::new(), &mut |_| {});
        let unreached = disarm();
        if unreached {
            break;
        }
        n_faults += 1;
        let error = result.unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
        let mut toy = Toy::new();
        go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
        assert_eq!(toy.weights(), alone.weights());
    }
    assert!(n_faults > 20, "only {n_faults} points");
}

#[test]
fn a_checkpoint_that_finds_the_disk_full_takes_the_reserve_and_the_run_goes_on() {
    let settings = settings();
    let folder = tempfile::tempdir().unwrap();
    Checkpoints::new(folder.path()).reserve(1 << 12).unwrap();
    let mut warnings = Vec::new();
    let mut is_armed = false;
    let mut toy = Toy::new();
    go(folder.path(), &settings, &mut toy, &mut |event| match event {
        // After the line of step 5 comes its checkpoint.
        TrainEvent::Step { step: 5, .. } => {
            is_armed = true;
            arm(1, Fault::DiskFullOnce);
        }
        TrainEvent::Warning { code, .. } => warnings.push(code.clone()),
        _ => {}
    })
    .unwrap();
    disarm();
    assert!(is_armed);
    assert_eq!(warnings, ["run.reserve_used"]);
    assert_eq!(toy.weights(), undisturbed(&settings).0.weights());
}

#[test]
fn a_loss_that_is_not_a_number_halts_before_the_update_and_names_the_checkpoint() {
    let settings = settings();
    let folder = tempfile::tempdir().unwrap();
    let mut toy = Toy::new();
    toy.nan_at = Some(7);
    let error = go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap_err();
    match &error {
        Error::NotFinite { what: "loss", step: 8, micro_batch: 1, checkpoint: Some(5), .. } => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(toy.optimizer_steps(), 7);
    assert!(error.to_string().contains("NaN"), "{error}");
    assert_eq!(losses(folder.path()).len(), 7);
}

#[test]
fn the_best_evaluation_is_kept_and_patience_ends_the_run() {
    let settings = Settings { patience: Some(2), evaluate_every_steps: 2, ..settings() };
    let folder = tempfile::tempdir().unwrap();
    let mut toy = Toy::new();
    // The held-out samples are one group; the losses are of steps 2, 4, 6, 8.
    toy.evaluations = vec![3.0, 2.0, 2.5, 2.0];
    let outcome = go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
    assert_eq!(outcome, Outcome::Finished { reason: FinishReason::EarlyStopped, step: 8, best_step: Some(4) });
    let steps = Checkpoints::new(folder.path()).steps();
    assert!(steps.contains(&4) && steps.contains(&8), "{steps:?}");
    // Taken up again there is nothing to do, and it says the same.
    let mut again = Toy::new();
    assert_eq!(go(folder.path(), &settings, &mut again, &mut |_| {}).unwrap(), outcome);
    assert_eq!(again.n_micro_batches, 0);
}

#[test]
fn a_pause_holds_with_the_work_safe_until_it_may_go_on() {
    let settings = settings();
    let folder = tempfile::tempdir().unwrap();
    let control = Control::new(folder.path());
    let mut paused_at = None;
    let mut n_steps = 0;
    let mut toy = Toy::new();
    go(folder.path(), &settings, &mut toy, &mut |event| match event {
        TrainEvent::Step { step, .. } => {
            n_steps = *step;
            if n_steps == 3 {
                control.ask_pause().unwrap();
            }
        }
        TrainEvent::Phase { name } if name == "pause" => {
            paused_at = Some(n_steps);
            assert_eq!(Checkpoints::new(folder.path()).steps(), [3]);
            control.ask_continue().unwrap();
        }
        _ => {}
    })
    .unwrap();
    assert_eq!(paused_at, Some(3));
    assert_eq!(toy.weights(), undisturbed(&settings).0.weights());
}

/// A learner whose loss is scaled, from `n_good_steps` good steps on.
fn scaled(n_good_steps: u32, largest_scale: fn(usize) -> u32) -> Toy {
    let mut toy = Toy::new();
    toy.loss_scale = Some(LossScale { n_good_steps, ..LossScale::default() });
    toy.largest_scale = largest_scale;
    toy
}

/// The changes of the loss scale that an event says: steps done, before, after, how often halved.
fn change_of_scale(event: &TrainEvent) -> Option<(usize, u32, u32, u32)> {
    match event {
        TrainEvent::LossScale { step, from, to, n_halved, .. } => Some((*step, *from, *to, *n_halved)),
        _ => None,
    }
}

#[test]
fn a_step_whose_gradient_overflows_is_taken_again_at_half_the_scale_and_loses_nothing() {
    let (alone, alone_losses) = undisturbed(&settings());
    let folder = tempfile::tempdir().unwrap();
    let mut toy = scaled(0, |step| if step < 6 { 1 << 15 } else { 1 << 13 });
    let mut said = Vec::new();
    go(folder.path(), &settings(), &mut toy, &mut |event| said.extend(change_of_scale(event))).unwrap();
    assert_eq!(said, [(0, 65_536, 32_768, 1), (6, 32_768, 16_384, 2), (6, 16_384, 8192, 3)]);
    assert_eq!(toy.weights(), alone.weights());
    assert_eq!(toy.steps, alone.steps, "every document once, in its step");
    assert_eq!(losses(folder.path()), alone_losses);
    assert_eq!(toy.optimizer_steps(), 17);
    assert_eq!(toy.loss_scale, Some(LossScale { scale: 8192, n_good_steps: 11, n_halved: 3 }));
}

#[test]
fn a_gradient_that_is_not_finite_at_a_scale_of_1_either_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut toy = scaled(0, |step| if step < 3 { u32::MAX } else { 0 });
    let mut said = Vec::new();
    let error = go(folder.path(), &settings(), &mut toy, &mut |event| said.extend(change_of_scale(event))).unwrap_err();
    assert!(matches!(error, Error::Step(crate::step::Error::NotFinite { .. })), "{error:?}");
    assert_eq!((said.len(), said[15]), (16, (3, 2, 1, 16)));
    assert_eq!(toy.optimizer_steps(), 3);
}

#[test]
fn a_resumed_run_goes_on_with_the_scale_it_had() {
    // It grows after step 10, which is too much for step 13.
    let new = || scaled(1990, |step| if step < 12 { u32::MAX } else { 1 << 16 });
    let changes = [(10, 65_536, 131_072, 0), (12, 131_072, 65_536, 1)];
    let folder = tempfile::tempdir().unwrap();
    let mut alone = new();
    let mut said = Vec::new();
    go(folder.path(), &settings(), &mut alone, &mut |event| said.extend(change_of_scale(event))).unwrap();
    assert_eq!(said, changes);
    let last = Checkpoints::new(folder.path()).newest().0.unwrap();
    assert_eq!(last.loss_scale, Some(LossScale { scale: 65_536, n_good_steps: 5, n_halved: 1 }));
    for stop_after in [1, 9, 10, 11, 12, 13] {
        let folder = tempfile::tempdir().unwrap();
        let control = Control::new(folder.path());
        let mut said = Vec::new();
        let mut toy = new();
        go(folder.path(), &settings(), &mut toy, &mut |event| {
            said.extend(change_of_scale(event));
            if matches!(event, TrainEvent::Step { step, .. } if *step == stop_after) {
                control.ask_stop().unwrap();
            }
        })
        .unwrap();
        let mut toy = new();
        go(folder.path(), &settings(), &mut toy, &mut |event| said.extend(change_of_scale(event))).unwrap();
        assert_eq!(said, changes, "stopped after {stop_after}");
        assert_eq!((toy.weights(), toy.loss_scale), (alone.weights(), alone.loss_scale), "stopped after {stop_after}");
        assert_eq!(Checkpoints::new(folder.path()).newest().0.unwrap(), last, "stopped after {stop_after}");
    }
}

#[test]
fn a_loss_beyond_f16_ends_the_run_with_what_to_do() {
    let settings = Settings { compute: ComputeDtype::F16, ..settings() };
    let folder = tempfile::tempdir().unwrap();
    let mut toy = scaled(0, |_| u32::MAX);
    toy.nan_at = Some(7);
    let error = go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::BeyondF16 { what: "loss", step: 8, checkpoint: Some(5), .. }), "{error:?}");
    assert!(error.to_string().contains("f16") && error.next_step().contains("f32"), "{error}");
}

/// Trains after a rehearsal; returns what it found, the learner and the codes of the warnings.
fn rehearsed(toy: Toy, fault: Option<(usize, Fault)>) -> (Option<Rehearsal>, Toy, Vec<String>) {
    let (plan, folder, mut toy) = (some_plan(), tempfile::tempdir().unwrap(), toy);
    let (mut found, mut warnings) = (None, Vec::new());
    let mut scene = Scene { plan: &plan, buffer_bytes: 0, merge: &mut |_: &Toy| Ok(0.5) };
    let mut first = |training: &mut Training<'_, '_, Toy>| {
        let before = training.learner.state();
        if let Some((point, fault)) = fault {
            arm(point, fault);
        }
        found = training.rehearse(&mut scene)?;
        disarm();
        assert_eq!(training.learner.state(), before, "nothing of it stays");
        assert!(training.checkpoints.steps().is_empty());
        Ok(())
    };
    let mut watcher = |event: &TrainEvent| {
        if let TrainEvent::Warning { code, .. } = event {
            warnings.push(code.clone());
        }
    };
    let look = Governor::clock(|| None);
    go_after(&mut first, folder.path(), &settings(), look, &mut toy, &mut watcher).unwrap();
    (found, toy, warnings)
}

#[test]
fn a_rehearsal_measures_every_part_of_a_run_and_changes_nothing_of_it() {
    let (found, toy, _) = rehearsed(Toy::new(), None);
    let found = found.expect("rehearsed");
    assert!(found.timed.len() >= 5 && found.longest_tokens.is_some(), "{found:?}");
    assert!(found.evaluation_s.is_some() && found.checkpoint_s.is_some() && found.merge_s.is_some());
    // 17 steps, five evaluations and three checkpoints every five steps.
    let n_checkpoints = 8.0;
    let parts =
        17.0 * found.measured.step_s + found.measured.evaluation_s + n_checkpoints * found.checkpoint_s.unwrap();
    assert!((found.measured.total_s / parts - 1.0).abs() < 1e-9);
    assert_eq!(toy.weights(), undisturbed(&settings()).0.weights());
}

#[test]
fn what_cannot_be_rehearsed_is_said_and_the_run_goes_on() {
    // The disk is full for the checkpoint, after the line of the phase.
    let (found, toy, warnings) = rehearsed(Toy::new(), Some((2, Fault::DiskFullOnce)));
    assert!(found.expect("the rest was measured").checkpoint_s.is_none());
    assert!(warnings.contains(&"rehearsal.incomplete".to_string()), "{warnings:?}");
    assert_eq!(toy.weights(), undisturbed(&settings()).0.weights());
}

#[test]
fn a_rehearsal_finds_what_lies_beside_the_buffers_however_little_of_them_its_batches_fill() {
    // Two sequences of at most 12 tokens in buffers for 128.
    let settings = Settings { length: 64, packing: false, ..settings() };
    let overhead_bytes = |buffer_bytes: u64| {
        let (plan, folder, mut overhead_bytes) = (some_plan(), tempfile::tempdir().unwrap(), None);
        let mut first = |training: &mut Training<'_, '_, Toy>| {
            training.memory = MemoryMeter::of_all();
            let mut scene = Scene { plan: &plan, buffer_bytes, merge: &mut |_: &Toy| Ok(0.5) };
            overhead_bytes = training.rehearse(&mut scene)?.and_then(|found| found.overhead_bytes);
            Ok(())
        };
        let look = Governor::clock(|| None);
        go_after(&mut first, folder.path(), &settings, look, &mut Toy::new(), &mut |_| {}).unwrap();
        overhead_bytes
    };
    assert!(overhead_bytes(0).is_some_and(|bytes| bytes > 0));
    assert_eq!(overhead_bytes(u64::MAX), Some(0), "all of the buffers are there");
}

#[test]
fn memory_that_runs_out_in_a_rehearsal_is_found_before_the_first_step_and_ends_no_run() {
    let (alone, alone_losses) = undisturbed(&settings());
    for n in [1, 2, usize::MAX] {
        let (plan, folder, mut toy) = (some_plan(), tempfile::tempdir().unwrap(), Toy::new());
        let mut scene = Scene { plan: &plan, buffer_bytes: 0, merge: &mut |_: &Toy| Ok(0.5) };
        let mut found = None;
        let mut first = |training: &mut Training<'_, '_, Toy>| {
            let before = training.learner.state();
            // After the batch that warms up.
            memory::fail(memory::Fault { site: Some(Site::Losses), skip: 1, n });
            found = training.rehearse(&mut scene)?;
            memory::relent();
            assert_eq!(training.learner.state(), before, "nothing of it stays");
            Ok(())
        };
        let mut told = Told::default();
        let mut watcher = |event: &TrainEvent| match event {
            TrainEvent::Warning { code, .. } => told.warnings.push(code.clone()),
            TrainEvent::Rung { from, to, .. } => told.rungs.push((*from, *to)),
            _ => {}
        };
        let look = Governor::clock(|| None);
        go_after(&mut first, folder.path(), &settings(), look, &mut toy, &mut watcher).unwrap();
        assert_eq!(toy.weights(), alone.weights(), "{n}");
        assert_same(&losses(folder.path()), &alone_losses, "after a rehearsal without memory");
        assert_eq!(told.warnings[0], "run.memory_retried", "{told:?}");
        assert!(!told.warnings.contains(&"run.on_rung".to_string()), "the rung is said once: {told:?}");
        // Once is only tried again. After that the first rung is taken, and any further one is for the run itself to find out.
        assert_eq!((found.is_some(), told.rungs.len()), (n == 1, usize::from(n > 1)), "{n}: {told:?}");
    }
}

/// Trains after a rehearsal that took `overhead_bytes` beside the buffers, with a budget of these and what `budget` says.
fn rehearsed_over_budget(
    overhead_bytes: u64,
    budget: impl Fn(&Toy, &Settings) -> u64,
) -> (Result<Outcome, Error>, Toy, Vec<(Rung, Rung, String)>) {
    let (plan, folder, mut toy, mut rungs) = (some_plan(), tempfile::tempdir().unwrap(), Toy::new(), Vec::new());
    let mut scene = Scene { plan: &plan, buffer_bytes: 0, merge: &mut |_: &Toy| Ok(0.5) };
    let mut first = |training: &mut Training<'_, '_, Toy>| {
        let mut found = training.rehearse(&mut scene)?.expect("rehearsed");
        found.overhead_bytes = Some(overhead_bytes);
        let budget_bytes = budget(&*training.learner, training.settings) + overhead_bytes;
        training.keep_within(budget_bytes, &found)?;
        assert!(training.learner.planned_bytes(&training.fitting) + overhead_bytes <= budget_bytes);
        // Said once, and kept to.
        let rung = training.state.rung;
        training.keep_within(budget_bytes, &found)?;
        assert_eq!(training.state.rung, rung);
        Ok(())
    };
    let mut watcher = |event: &TrainEvent| {
        if let TrainEvent::Rung { from, to, reason, .. } = event {
            rungs.push((*from, *to, reason.clone()));
        }
    };
    let look = Governor::clock(|| None);
    let outcome = go_after(&mut first, folder.path(), &settings(), look, &mut toy, &mut watcher);
    (outcome, toy, rungs)
}

#[test]
fn a_rehearsal_over_budget_takes_the_first_rung_that_fits_before_the_first_step_and_changes_nothing_that_is_learned() {
    let (alone, _) = undisturbed(&settings());
    let (outcome, toy, rungs) = rehearsed_over_budget(1 << 30, |toy, settings| toy.planned_bytes(settings));
    outcome.unwrap();
    assert!(rungs.is_empty(), "what fits stays as it is: {rungs:?}");
    assert_eq!(toy.weights(), alone.weights());
    // One sequence at once is enough, and more than one byte less.
    let halved = Settings { micro_batch: 1, accumulation: 6, ..settings() };
    let (outcome, toy, rungs) = rehearsed_over_budget(1 << 30, |toy, _| toy.planned_bytes(&halved));
    outcome.unwrap();
    let [(from, to, reason)] = &rungs[..] else { panic!("{rungs:?}") };
    assert_eq!((*from, to.micro_batch, to.accumulation), (Rung::of(&settings()), 1, 6));
    assert!(reason.starts_with("The rehearsal took "), "{reason}");
    assert_eq!(toy.weights(), alone.weights());
}

#[test]
fn a_run_that_no_rung_brings_within_its_budget_ends_before_its_first_step() {
    let (outcome, toy, rungs) = rehearsed_over_budget(1 << 30, |_, _| 0);
    let error = outcome.expect_err("no rung takes nothing");
    assert_eq!(error.code(), "run.over_budget");
    assert!(error.to_string().contains("1 GiB are free"), "{error}");
    assert!(error.next_step().contains("Start a new run"));
    assert!(toy.steps.is_empty() && rungs.is_empty());
}

#[test]
fn a_rehearsal_whose_gradients_overflow_is_whole_and_leaves_the_scale_as_it_was() {
    let (found, toy, warnings) = rehearsed(scaled(0, |_| 1 << 14), None);
    assert!(found.is_some_and(|found| found.optimizer_s > 0.0));
    assert!(!warnings.contains(&"rehearsal.incomplete".to_string()), "{warnings:?}");
    assert_eq!(toy.weights(), undisturbed(&settings()).0.weights());
    assert_eq!(toy.loss_scale, Some(LossScale { scale: 1 << 14, n_good_steps: 17, n_halved: 2 }));
}

/// A clock that moves `each` at every look, from a moment in UTC, and a card of the temperature that `hot` says.
fn scripted(from: &str, each: Duration, mut hot: impl FnMut(usize) -> f64 + 'static) -> Look<'static> {
    let from: jiff::ZonedDateTime = format!("{from}[UTC]").parse().unwrap();
    let mut n = 0;
    Box::new(move || {
        let elapsed = each * n as u32;
        let card = Some(CardReading { temperature_c: Some(hot(n)), ..CardReading::default() });
        n += 1;
        Sight { card, now: from.checked_add(jiff::SignedDuration::try_from(elapsed).unwrap()).unwrap(), elapsed }
    })
}

#[test]
fn quiet_hours_pause_a_run_with_its_work_safe_and_it_goes_on_by_itself() {
    let quiet = GovernorConfig { quiet_hours: Some("22:00-07:00".parse().unwrap()), ..GovernorConfig::default() };
    let governed = Settings { governor: quiet, ..settings() };
    let folder = tempfile::tempdir().unwrap();
    let mut said = Vec::new();
    let mut step = 0;
    let mut toy = Toy::new();
    // Half an hour before each micro-batch, three of which are a step; the night takes eighteen looks.
    let look = scripted("2026-05-05T19:30:00Z", Duration::from_secs(1800), |_| 60.0);
    let mut slowest_ms = 0.0_f64;
    let outcome = go_governed(folder.path(), &governed, look, &mut toy, &mut |event| match event {
        TrainEvent::Step { step: n, step_ms, .. } => {
            step = *n;
            slowest_ms = slowest_ms.max(*step_ms);
        }
        TrainEvent::Governor { pace, code, message, .. } => said.push((step, *pace, code.clone(), message.clone())),
        TrainEvent::Phase { name } if name == "pause" => {
            assert_eq!(Checkpoints::new(folder.path()).steps().last(), Some(&step), "the work is safe");
        }
        _ => {}
    });
    assert!(matches!(outcome.unwrap(), Outcome::Finished { step: 17, .. }));
    let words = "Paused for the quiet hours; it goes on at 07:00.";
    let [first, second, ..] = &said[..] else { panic!("{said:?}") };
    assert_eq!(first, &(1, Pace::Paused, "governor.quiet_hours".into(), words.into()));
    assert_eq!((second.0, second.1), (1, Pace::Full));
    assert_eq!(toy.weights(), undisturbed(&settings()).0.weights(), "when is not what");
    assert!(slowest_ms < 500.0, "eighteen polls of 100 ms are no time of a step: {slowest_ms} ms");
}

#[test]
fn a_run_that_was_killed_in_its_quiet_hours_is_quiet_when_it_is_taken_up() {
    let quiet = GovernorConfig { quiet_hours: Some("22:00-07:00".parse().unwrap()), ..GovernorConfig::default() };
    let governed = Settings { governor: quiet, ..settings() };
    let folder = tempfile::tempdir().unwrap();
    let control = Control::new(folder.path());
    for _ in 0..2 {
        let look = scripted("2026-05-05T23:00:00Z", Duration::from_secs(1), |_| 60.0);
        let outcome = go_governed(folder.path(), &governed, look, &mut Toy::new(), &mut |event| {
            if matches!(event, TrainEvent::Governor { pace: Pace::Paused, .. }) {
                control.ask_stop().unwrap();
            }
            assert!(!matches!(event, TrainEvent::Step { .. }), "a step at night");
        });
        assert_eq!(outcome.unwrap(), Outcome::Stopped { step: 0 });
    }
}

#[test]
fn a_hot_card_slows_a_run_whose_step_times_do_not_count_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let (mut toy, mut said, mut slowest_ms) = (Toy::new(), Vec::new(), 0.0_f64);
    // Three seconds a look: hot, wavering around its limit, and cool for more than the minute after which full speed is said.
    let look = scripted("2026-05-05T12:00:00Z", Duration::from_millis(3000), |n| match n {
        0..10 => 60.0,
        10..14 => [86.5, 88.0][n % 2],
        _ => 60.0,
    });
    let started = Instant::now();
    go_governed(folder.path(), &settings(), look, &mut toy, &mut |event| match event {
        TrainEvent::Step { step_ms, .. } => slowest_ms = slowest_ms.max(*step_ms),
        TrainEvent::Governor { pace, code, .. } => said.push((*pace, code.clone())),
        _ => {}
    })
    .unwrap();
    // The rest follows the scripted seconds of work: a twentieth of three seconds and more.
    assert!(started.elapsed().as_secs_f64() > 1.0, "{:?}", started.elapsed());
    assert!(slowest_ms < 500.0, "{slowest_ms} ms");
    assert_eq!(said, [(Pace::Slowed, "governor.heat".to_string()), (Pace::Full, String::new())]);
    assert_eq!(toy.weights(), undisturbed(&settings()).0.weights());
}

#[test]
fn one_pass_shows_every_example_once() {
    let settings = Settings { n_steps: usize::MAX, ..settings() };
    let train = samples(22);
    let n_steps = super::super::cursor::steps_of(&train, &settings, 1.0);
    let mut cursor = Cursor::at(&train, &settings, 0, 0);
    let n_tokens = |samples: &[usize]| samples.iter().map(|&i| train[i].input_ids.len()).sum::<usize>() as f64;
    let all: Vec<usize> = (0..22).collect();
    // Exactly this pass, its first step, and what a whole second one adds.
    assert_eq!(cursor.tokens_ahead(n_steps), n_tokens(&all));
    assert_eq!(cursor.tokens_ahead(1), n_tokens(&Cursor::at(&train, &settings, 0, 0).next_step().concat()));
    assert_eq!(cursor.tokens_ahead(2 * n_steps), 2.0 * n_tokens(&all));
    let mut seen: Vec<usize> = (0..n_steps).flat_map(|_| cursor.next_step().concat()).collect();
    assert_eq!(cursor.epochs_done(), 1.0);
    seen.sort_unstable();
    assert_eq!(seen, (0..22).collect::<Vec<_>>());
    // And from the middle of the second pass on, the same as without an interruption.
    cursor.next_step();
    let mut again = Cursor::at(&train, &settings, cursor.epoch(), cursor.position());
    for _ in 0..9 {
        assert_eq!(cursor.next_step(), again.next_step());
        assert_eq!(cursor.tokens_ahead(40), again.tokens_ahead(40));
    }
}

/// What a run told about memory: codes of its warnings, and its rungs.
#[derive(Debug, Default)]
struct Told {
    warnings: Vec<String>,
    rungs: Vec<(Rung, Rung)>,
    n_samples: usize,
}

/// A run in which memory fails as `fault` says from its start on.
fn go_short(folder: &Path, settings: &Settings, toy: &mut Toy, fault: memory::Fault) -> (Result<Outcome, Error>, Told) {
    let mut told = Told::default();
    memory::fail(fault);
    let result = go(folder, settings, toy, &mut |event| match event {
        TrainEvent::Warning { code, .. } => told.warnings.push(code.clone()),
        TrainEvent::Rung { from, to, .. } => told.rungs.push((*from, *to)),
        TrainEvent::Sample { .. } => told.n_samples += 1,
        _ => {}
    });
    memory::relent();
    (result, told)
}

/// How often each site is asked in an undisturbed run, by what the gate itself counts.
fn asked(settings: &Settings) -> Vec<(Site, usize)> {
    memory::relent();
    undisturbed(settings);
    let asked = memory::n_admitted();
    assert!(asked.len() >= 6, "{asked:?}");
    asked.into_iter().collect()
}

/// The order in which documents are summed changes nothing here, and losses are sums in f64.
fn assert_same(got: &[(usize, f64, f64)], want: &[(usize, f64, f64)], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert_eq!((got.0, got.2), (want.0, want.2), "{what}");
        assert!((got.1 - want.1).abs() <= 1e-12 * want.1.abs(), "{what}: step {}: {} and {}", got.0, got.1, want.1);
    }
}

#[test]
fn memory_that_runs_out_at_any_allocation_once_or_again_changes_no_step() {
    let settings = settings();
    let (alone, alone_losses) = undisturbed(&settings);
    let mut n_rungs = 0;
    for (site, n_asked) in asked(&settings) {
        for skip in (0..n_asked).step_by((n_asked / 7).max(1)) {
            for n in [1, 2, 3] {
                let what = format!("{site:?}, {n} from the {skip}th on");
                let folder = tempfile::tempdir().unwrap();
                let mut toy = Toy::new();
                let (result, told) =
                    go_short(folder.path(), &settings, &mut toy, memory::Fault { site: Some(site), skip, n });
                if let Err(error) = &result {
                    // Only where the last checkpoint of all has no memory three times.
                    assert_eq!((site, n, error.code()), (Site::Checkpoint, 3, "run.out_of_memory"), "{what}: {error}");
                    go(folder.path(), &settings, &mut toy, &mut |_| {}).unwrap();
                    assert_eq!(toy.weights(), alone.weights(), "{what}");
                    continue;
                }
                assert_eq!(toy.weights(), alone.weights(), "{what}");
                assert_eq!(toy.steps, alone.steps, "{what}: the documents of each step, in their order");
                assert_same(&losses(folder.path()), &alone_losses, &what);
                if n == 1 {
                    assert!(told.rungs.is_empty(), "{what}: once is only tried again: {told:?}");
                }
                n_rungs += told.rungs.len();
                for (from, to) in told.rungs {
                    assert_ne!(from, to);
                    assert_eq!(from.micro_batch * from.accumulation, to.micro_batch * to.accumulation);
                }
            }
        }
    }
    assert!(n_rungs > 20, "only {n_rungs} rungs were taken");
}

#[test]
fn below_the_last_rung_the_run_ends_with_its_last_step_safe_and_goes_on_there() {
    let settings = settings();
    let (alone, alone_losses) = undisturbed(&settings);
    for (site, skip) in [(Site::Kept, 0), (Site::Losses, 40), (Site::GradientNorm, 9), (Site::Checkpoint, 3)] {
        let folder = tempfile::tempdir().unwrap();
        let fault = memory::Fault { site: Some(site), skip, n: usize::MAX };
        let (result, told) = go_short(folder.path(), &settings, &mut Toy::new(), fault);
        let error = result.unwrap_err();
        assert_eq!(error.code(), "run.out_of_memory", "{site:?}: {error}");
        let newest = Checkpoints::new(folder.path()).newest().0;
        match &error {
            Error::OutOfMemory { shortage, checkpoint, .. } => {
                assert_eq!(shortage.site, Some(site));
                assert_eq!(*checkpoint, newest.as_ref().map(|state| state.step), "{site:?}");
            }
            other => panic!("{other:?}"),
        }
        if site != Site::Checkpoint {
            let steps = losses(folder.path()).len();
            let newest = newest.expect("a checkpoint");
            assert_eq!(newest.step, steps, "{site:?}: every whole step is safe");
            let rung = newest.rung.expect("the checkpoint knows the rung");
            assert_eq!((rung.micro_batch, rung.recompute), (1, Recompute::C0));
            assert_eq!(told.rungs.last().map(|(_, to)| *to), Some(rung));
        }
        // With memory again, on the same rung.
        let mut toy = Toy::new();
        let mut warnings = Vec::new();
        go(folder.path(), &settings, &mut toy, &mut |event| {
            if let TrainEvent::Warning { code, .. } = event {
                warnings.push(code.clone());
            }
        })
        .unwrap();
        assert_eq!(toy.weights(), alone.weights(), "{site:?}");
        assert_same(&losses(folder.path()), &alone_losses, &format!("{site:?}"));
        if site != Site::Checkpoint {
            assert_eq!(warnings, ["run.on_rung"], "{site:?}");
        }
    }
}

#[test]
fn no_run_ends_for_an_answer() {
    let settings = settings();
    let (alone, _) = undisturbed(&settings);
    let go = |n| {
        let folder = tempfile::tempdir().unwrap();
        let mut toy = Toy::new();
        let fault = memory::Fault { site: Some(Site::Cache), skip: 0, n };
        let (result, told) = go_short(folder.path(), &settings, &mut toy, fault);
        assert!(matches!(result.unwrap(), Outcome::Finished { step: 17, .. }));
        assert_eq!(toy.weights(), alone.weights());
        (told.n_samples, told.warnings)
    };
    // Five evaluations. The step's buffers make room for the first answer: nothing is missing, so nothing is said.
    assert_eq!(go(1), (5, vec![]));
    assert_eq!(go(2), (4, vec!["run.samples_skipped".to_string()]));
    assert_eq!(go(usize::MAX), (0, vec!["run.samples_skipped".to_string(); 5]));
    // Nor for one that is nonsense.
    let (folder, mut toy, mut warnings) = (tempfile::tempdir().unwrap(), Toy::new(), Vec::new());
    toy.speaks = false;
    go_governed(folder.path(), &settings, Governor::clock(|| None), &mut toy, &mut |event| {
        if let TrainEvent::Warning { code, .. } = event {
            warnings.push(code.clone());
        }
    })
    .unwrap();
    assert_eq!(warnings, vec!["run.samples_skipped"; 5]);
    assert_eq!(toy.weights(), alone.weights());
}

#[test]
fn an_evaluation_without_memory_goes_on_in_smaller_groups() {
    let settings = settings();
    let folder = tempfile::tempdir().unwrap();
    let mut is_armed = false;
    let mut warnings = Vec::new();
    let mut evaluations = Vec::new();
    go(folder.path(), &settings, &mut Toy::new(), &mut |event| match event {
        TrainEvent::Phase { name } if name == "evaluate" && !is_armed => {
            is_armed = true;
            memory::fail(memory::Fault { site: Some(Site::Losses), skip: 0, n: 1 });
        }
        TrainEvent::Warning { code, .. } => warnings.push(code.clone()),
        TrainEvent::Evaluation { step, n_supervised_tokens, .. } => evaluations.push((*step, *n_supervised_tokens)),
        _ => {}
    })
    .unwrap();
    memory::relent();
    assert_eq!(warnings, ["run.evaluation_smaller"]);
    assert_eq!(evaluations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 8, 12, 16, 17]);
    assert!(evaluations.windows(2).all(|w| w[0].1 == w[1].1), "{evaluations:?}");
}
