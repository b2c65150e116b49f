//! From a config or a run folder to a trained adapter: who opens what, and in which order.

use std::path::{Path, PathBuf};

use candle_core::Device;

use super::alarm::Alarm;
use super::checkpoint::{Checkpoints, State};
use super::control::Control;
use super::error::Error;
use super::events::{Events, Notice, now_ms};
use super::governor::{self, Governor};
use super::learner::{Learner, set_adapter};
use super::lock::RunLock;
use super::memory::{MemoryMeter, card_uuids, make_device};
use super::output;
use super::prepare::{Opened, Prepared, Samples, check_unchanged, prepare};
use super::prompts::Prompts;
use super::rehearsal::{self, Rehearsal, Scene};
use super::store::{RunFolder, RunRecord};
use super::training::{Outcome, Training};
use crate::config::{FORMAT_VERSION, GovernorConfig, RunConfig, Settings};
use crate::error::Explain;
use crate::event::{FinishReason, TrainEvent};
use crate::export;
use crate::format;
use crate::hardware::{self, Hardware};
use crate::model::{Adapter, Model, ModelSource};
use crate::ops::memory::{self, Held, Site};
use crate::plan::Family;
use crate::plan::layout::layout;
use crate::step::{self, Trainer};

/// Name of the file with the rows that are left out or cut.
const PROBLEMS: &str = "problems.json";

/// How [`resume`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// It trained.
    Trained(Outcome),
    /// There was nothing left to train; nothing was touched.
    AlreadyFinished {
        /// Steps done.
        step: usize,
        /// Step with the lowest evaluation loss.
        best_step: Option<usize>,
    },
}

/// Checks everything that can be refused and makes the folder of a new run, ready for [`resume`].
///
/// `out` is recorded for whoever exports when the run ends.
///
/// # Errors
/// Every refusal comes before anything is written.
pub fn create(
    config: RunConfig,
    hardware: &Hardware,
    runs_dir: &Path,
    out: Option<PathBuf>,
    watcher: &mut dyn FnMut(Notice<'_>),
) -> Result<RunFolder, Error> {
    let mut events = Events::new(watcher);
    let (folder, _) = begin(config, hardware, runs_dir, out, &mut events)?;
    Ok(folder)
}

/// Makes a new run and trains it in this process.
///
/// # Errors
/// As [`create`]; faults of the training itself are in the run's events too.
pub fn train(
    config: RunConfig,
    hardware: &Hardware,
    runs_dir: &Path,
    out: Option<PathBuf>,
    watcher: &mut dyn FnMut(Notice<'_>),
) -> Result<(RunFolder, Outcome), Error> {
    let mut events = Events::new(watcher);
    let (folder, prepared) = begin(config, hardware, runs_dir, out, &mut events)?;
    let lock = RunLock::take(folder.path(), folder.id())?;
    // What is trained is what the file says, now as on every resume.
    let record = folder.record()?;
    let outcome = failing_loudly(&mut events, |events| {
        events.attach(folder.path())?;
        started(events, &folder, &record, 0, false)?;
        let inputs = (prepared.opened, prepared.samples);
        run(&folder, &record, inputs, None, prepared.plan.planned_bytes, events)
    })?;
    drop(lock);
    Ok((folder, outcome))
}

/// Takes a run up from its newest complete checkpoint, or from its start where it has none.
///
/// # Errors
/// Another process has the run; model or data changed; faults of the training itself.
pub fn resume(folder: &RunFolder, watcher: &mut dyn FnMut(Notice<'_>)) -> Result<Resumed, Error> {
    let lock = RunLock::take(folder.path(), folder.id())?;
    let record = folder.record()?;
    let checkpoints = folder.checkpoints();
    let (state, faults) = checkpoints.newest();
    let history = folder.history()?;
    if let (Some(State { ended: Some(_), step, best, .. }), Some(TrainEvent::Finished { reason, .. })) =
        (&state, history.last_turn().map(|line| &line.event))
        && *reason != FinishReason::Stopped
    {
        return Ok(Resumed::AlreadyFinished { step: *step, best_step: best.map(|b| b.step) });
    }
    let mut events = Events::new(watcher);
    events.notice(Notice::Created(folder));
    let outcome = failing_loudly(&mut events, |events| {
        events.attach(folder.path())?;
        started(events, folder, &record, state.as_ref().map_or(0, |s| s.step), history.last_turn().is_some())?;
        for fault in faults {
            events.warn("run.checkpoint_damaged", format!("A checkpoint is passed over: {fault}."))?;
        }
        check_unchanged(folder.id(), &record.given, &record.inputs)?;
        events.phase("prepare_data")?;
        let opened = Opened::open(&record.given, record.date.as_deref())?;
        let samples = Samples::make(&opened, &record.given, &record.resolved)?;
        run(folder, &record, (opened, samples), state, folder.plan()?.planned_bytes, events)
    })?;
    drop(lock);
    Ok(Resumed::Trained(outcome))
}

fn begin(
    config: RunConfig,
    hardware: &Hardware,
    runs_dir: &Path,
    out: Option<PathBuf>,
    events: &mut Events<'_>,
) -> Result<(RunFolder, Prepared), Error> {
    events.phase("prepare_data")?;
    let out = match out {
        Some(out) => {
            output::check_empty(&out)?;
            Some(std::path::absolute(&out).map_err(|e| Error::io(&out, e))?)
        }
        None => None,
    };
    let prepared = prepare(config, hardware, runs_dir)?;
    output::check_space(runs_dir, "checkpoints and exports", prepared.plan.disk_bytes)?;
    if let Some(out) = &out {
        output::check_space(out, "the adapter", prepared.plan.disk.adapter_bytes)?;
    }
    events.notice(Notice::Planned(&prepared.plan));
    let record = RunRecord {
        version: FORMAT_VERSION,
        engine: env!("CARGO_PKG_VERSION").into(),
        created_ms: now_ms(),
        date: prepared.opened.encoder.date(),
        device: Some(hardware.device_name().into()),
        out,
        given: prepared.config.clone(),
        resolved: prepared.plan.settings.clone(),
        inputs: prepared.inputs.clone(),
    };
    let folder = RunFolder::create(runs_dir, &record, &prepared.plan)?;
    events.notice(Notice::Created(&folder));
    Ok((folder, prepared))
}

fn started(
    events: &mut Events<'_>,
    folder: &RunFolder,
    record: &RunRecord,
    step: usize,
    resumed: bool,
) -> Result<(), Error> {
    events.emit(TrainEvent::Started {
        run_id: folder.id().into(),
        pid: std::process::id(),
        step,
        n_steps: record.resolved.n_steps,
        resumed,
    })
}

/// Whatever fails is said in the events too, for those who watch from elsewhere.
fn failing_loudly<T>(
    events: &mut Events<'_>,
    work: impl FnOnce(&mut Events<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let result = work(events);
    if let Err(e) = &result {
        events.emit_at_any_rate(TrainEvent::Failed { error: e.report() });
    }
    result
}

/// Loads, allocates, restores and trains.
fn run(
    folder: &RunFolder,
    record: &RunRecord,
    (opened, samples): (Opened, Samples),
    state: Option<State>,
    planned_bytes: u64,
    events: &mut Events<'_>,
) -> Result<Outcome, Error> {
    let settings = &record.resolved;
    report_rows(folder, &opened, &samples, record, events)?;
    let (device, context_bytes) = make_device(settings.train_on, || step::device(settings.train_on))?;
    step::check_compute(&device, settings.compute)?;
    let card = hardware::watch(settings.train_on, card_uuids(&device));
    let plan = folder.plan()?;
    let overhead_bytes = plan.items.iter().filter(|item| item.family == Family::Runtime).map(|item| item.bytes).sum();
    let _limit = record.given.memory_limit_bytes.map(|bytes| memory::limit(bytes, overhead_bytes, &device));

    events.phase("load_model")?;
    let memory = MemoryMeter::start(&device, planned_bytes, context_bytes);
    let checkpoints = folder.checkpoints();
    let saved_step = state.as_ref().map(|s| s.step);
    let load = || load(&opened, settings, state.as_ref(), &checkpoints, &device);
    let mut trainer = match load() {
        Err(error) if error.shortage().is_some() => {
            // Nothing of what is loaded can be had smaller, but whoever holds the memory may be about to give it back.
            events.warn("run.memory_retried", format!("{error}. What could be freed is, and it is tried again."))?;
            memory::free_caches(&device).map_err(step::Error::from)?;
            load().map_err(|error| match error.shortage() {
                Some(shortage) => {
                    let shortage = shortage.clone();
                    Error::OutOfMemory { doing: "the model and its adapter", shortage, checkpoint: saved_step }
                }
                None => error,
            })?
        }
        other => other?,
    };
    events.phase("allocate")?;
    let state = state.unwrap_or_else(|| State::new(settings.seed));

    let reserve_bytes = plan.disk.checkpoint_bytes;
    // A disk that ran nearly full since the last time may still take the checkpoints themselves.
    let reserved = checkpoints.reserve(reserve_bytes);
    let has_reserve = reserved.is_ok();
    if let Err(error) = reserved {
        let message = format!(
            "No space could be set aside for a checkpoint: {error}. It is tried again with each one; until then a disk that fills up \
             costs the steps since the last."
        );
        events.warn("run.no_reserve", message)?;
    }
    let prompts = Prompts::choose(&opened, &samples.held_out, settings.n_samples, settings.length)?;
    // No run is refused for what it can do without: it is rehearsed again where it has not begun.
    let rehearsed = match folder.rehearsal() {
        Ok(rehearsed) => rehearsed,
        Err(error) => {
            events.warn("rehearsal.unreadable", format!("What was rehearsed is not known any more: {error}."))?;
            None
        }
    };
    // Once, of the run as it was planned.
    let is_due = settings.rehearsal && rehearsed.is_none() && state.step == 0 && state.rung.is_none();
    // What is wrong with newer ones the governor says at its first look.
    let governor_config = folder.governor().unwrap_or_else(|_| settings.governor.clone());
    if card.is_none() && governor_config.needs_a_card() {
        events.warn(
            "governor.blind",
            "Nothing can be read of a card here, so limits of temperature and power and yielding to other programs are not \
             kept. Quiet hours are."
                .into(),
        )?;
    }
    let watch = card.clone();
    let readings = move || watch.as_ref().and_then(|card| card.newest());
    let governor_file = folder.path().join(governor::FILE);
    let governor = Governor::new(governor_config, Governor::clock(readings)).listening(governor_file);
    let buffer_bytes = layout(&trainer.model().shape, settings).buffer_bytes();
    let mut training = Training {
        settings,
        train: &samples.train,
        held_out: &samples.held_out,
        learner: &mut trainer,
        answer: &mut |trainer| prompts.answer(trainer, &opened),
        events,
        checkpoints,
        control: Control::new(folder.path()),
        governor,
        expected: None,
        memory,
        overhead_bytes,
        card,
        alarm: Alarm::default(),
        fitting: settings.clone(),
        has_retried: false,
        state,
        saved_step,
        reserve_bytes,
        has_reserve,
    };
    let rehearsed = if is_due {
        let mut scene = Scene {
            plan: &plan,
            buffer_bytes,
            merge: &mut |trainer: &Trainer| {
                export::merge_one(&opened.source, trainer.adapter(), settings.base).map_err(|e| e.to_string())
            },
        };
        let rehearsed = training.rehearse(&mut scene)?;
        if let Some(rehearsal) = &rehearsed {
            keep(folder, record, &opened.source, rehearsal, training.events)?;
        }
        rehearsed
    } else {
        rehearsed
    };
    if let Some(rehearsal) = rehearsed.as_ref().filter(|_| training.state.rung.is_none()) {
        match training.keep_within(plan.budget_bytes, rehearsal) {
            // Whoever takes it up all the same was told.
            Err(Error::OverBudget { .. }) if !is_due => {}
            other => other?,
        }
    }
    training.expected = rehearsed.map(|rehearsal| rehearsal.pace());
    training.run()
}

/// Keeps a rehearsal with the run, and what it measured with the computer. No run is worse without either.
fn keep(
    folder: &RunFolder,
    record: &RunRecord,
    source: &ModelSource,
    rehearsal: &Rehearsal,
    events: &mut Events<'_>,
) -> Result<(), Error> {
    let kept = folder.write_rehearsal(rehearsal);
    let kept = kept.and_then(|()| Ok(rehearsal::remember(folder, record, source, rehearsal)?));
    match kept {
        Ok(()) => Ok(()),
        Err(e) => events.warn("rehearsal.not_kept", format!("What was measured is not kept for later plans: {e}.")),
    }
}

/// All that outlives a step, as the checkpoint of `state` left it.
fn load(
    opened: &Opened,
    settings: &Settings,
    state: Option<&State>,
    checkpoints: &Checkpoints,
    device: &Device,
) -> Result<Trainer, Error> {
    let model = Model::load(&opened.source, &settings.lora, settings.into(), device)?;
    let adapter =
        Adapter::new(&model.shape, &settings.lora, settings.seed, device).map_err(|e| Error::Model(e.into()))?;
    let mut trainer = Trainer::without_buffers(model, adapter, settings)?;
    if let Some(state) = state {
        let held = Held::new();
        held.admit(trainer.saved_bytes(), device, Site::Restored).map_err(step::Error::from)?;
        let adapter = checkpoints.adapter(state.step, device)?;
        let optimizer = checkpoints.optimizer(state.step, device)?;
        trainer.restore(&adapter, &optimizer, state)?;
    }
    Ok(trainer)
}

/// Keeps the list of rows that are not trained as they stand with the run, and says so once.
fn report_rows(
    folder: &RunFolder,
    opened: &Opened,
    samples: &Samples,
    record: &RunRecord,
    events: &mut Events<'_>,
) -> Result<(), Error> {
    let problems = &samples.problems;
    let path = folder.path().join(PROBLEMS);
    if path.exists() {
        // An earlier process has said it.
        return Ok(());
    }
    if let Some(first) = problems.first() {
        let n_rows = opened.dataset.n_rows + opened.held_out.as_ref().map_or(0, |d| d.n_rows);
        let cut = match samples.n_truncated {
            0 => String::new(),
            n => format!(", {} of them cut to {} tokens", format::count(n), record.resolved.length),
        };
        let long = match samples.n_dropped_long {
            0 => String::new(),
            n => format!(", {} of them longer than {} tokens", format::count(n), record.resolved.length),
        };
        events.warn(
            "data.rows_reported",
            format!(
                "{} of {} rows are not trained as they stand{cut}{long}; the first is {first}. All are listed in {PROBLEMS} \
                 of the run.",
                format::count(problems.len()),
                format::count(n_rows),
            ),
        )?;
    }
    if samples.held_out.is_empty() && record.given.evaluation.fraction > 0.0 {
        let n = samples.train.len();
        let message = format!(
            "Nothing is held out of {}, so nothing is evaluated and the last step counts as the best.",
            format::counted(n, "example")
        );
        events.warn("run.no_evaluation", message)?;
    }
    folder.write_json(PROBLEMS, problems)
}

/// Puts the adapter of a run's checkpoint into the device's memory: of `step`, or the best one, or the newest where none was
/// evaluated. Returns it with its step.
///
/// # Errors
/// There is no such complete checkpoint.
pub fn load_adapter(
    folder: &RunFolder,
    record: &RunRecord,
    source: &ModelSource,
    step: Option<usize>,
    device: &Device,
) -> Result<(Adapter, usize), Error> {
    let checkpoints = folder.checkpoints();
    let none = || Error::NoCheckpoint { id: folder.id().into(), step };
    let step = match step {
        Some(step) if checkpoints.steps().contains(&step) => step,
        Some(_) => return Err(none()),
        None => best_step(&checkpoints).ok_or_else(none)?,
    };
    checkpoints.verify(step)?;
    let saved = checkpoints.adapter(step, &Device::Cpu)?;
    let mut adapter = Adapter::new(source.shape(), &record.resolved.lora, record.resolved.seed, device)
        .map_err(|e| Error::Model(e.into()))?;
    set_adapter(&mut adapter, &saved)?;
    Ok((adapter, step))
}

/// Step of the best complete checkpoint; the newest where none was evaluated or the best is gone.
fn best_step(checkpoints: &Checkpoints) -> Option<usize> {
    let (state, _) = checkpoints.newest();
    let state = state?;
    let best = state.best.map(|b| b.step).filter(|&step| checkpoints.verify(step).is_ok());
    Some(best.unwrap_or(state.step))
}

/// Asks the process that trains a run for a checkpoint and an end.
///
/// # Errors
/// No process trains it.
pub fn ask_stop(folder: &RunFolder) -> Result<(), Error> {
    running(folder)?.ask_stop()
}

/// Asks the process that trains a run to hold.
///
/// # Errors
/// No process trains it.
pub fn ask_pause(folder: &RunFolder) -> Result<(), Error> {
    running(folder)?.ask_pause()
}

/// Lets a paused run go on.
///
/// # Errors
/// No process trains it.
pub fn ask_continue(folder: &RunFolder) -> Result<(), Error> {
    running(folder)?.ask_continue()
}

/// Gives the governor of a run other settings. They hold at once where a process trains it, and for whoever takes it up.
///
/// # Errors
/// Settings that make no sense, and a folder that cannot be written.
pub fn govern(folder: &RunFolder, config: &GovernorConfig) -> Result<(), Error> {
    governor::check(config)?;
    folder.write_governor(config)
}

fn running(folder: &RunFolder) -> Result<Control, Error> {
    if folder.is_running() {
        Ok(Control::new(folder.path()))
    } else {
        Err(Error::NotRunning { id: folder.id().into() })
    }
}
