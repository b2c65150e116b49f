//! The loop: micro-batches, optimizer steps, evaluations and checkpoints, until the end or until asked to stop.
//!
//! What a step computes depends on the settings, the data and the step's index alone, never on time, so a run that was
//! killed and taken up again makes the same adapter, bit for bit.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::checkpoint::{Checkpoints, State};
use super::control::Control;
use super::cursor::Cursor;
use super::error::Error;
use super::eta::Eta;
use super::events::Events;
use super::governor::{Action, Change, Governor};
use super::learner::Learner;
use super::memory::MemoryMeter;
use super::schedule::{Schedule, dropout_seed};
use super::{evaluation, interrupt};
use crate::config::Settings;
use crate::data::{self, Sample};
use crate::event::{FinishReason, TrainEvent};
use crate::hardware::CardWatch;

/// How often a paused run looks whether it may go on.
const PAUSE_POLL: Duration = Duration::from_millis(100);

/// How a training process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps done or stopped early; the adapter can be used.
    Finished {
        /// Which of the two.
        reason: FinishReason,
        /// Steps done.
        step: usize,
        /// Step with the lowest evaluation loss.
        best_step: Option<usize>,
    },
    /// Asked to stop by `hearth stop`; checkpointed.
    Stopped {
        /// Steps done.
        step: usize,
    },
    /// Ctrl-C, SIGTERM or a closed terminal; checkpointed.
    Interrupted {
        /// Steps done.
        step: usize,
    },
}

/// A held-out prompt answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) prompt: String,
    pub(crate) answer: String,
    pub(crate) wanted: String,
}

/// Answers the held-out prompts with the adapter as it is.
pub(crate) type Answering<'a, L> = &'a mut dyn FnMut(&L) -> Result<Vec<Answer>, Error>;

/// What somebody asked of a run that ends it.
pub(super) enum Wish {
    Stop,
    Interrupt,
}

/// A run being trained.
pub(crate) struct Training<'a, 'e, L: Learner> {
    pub(crate) settings: &'a Settings,
    pub(crate) train: &'a [Sample],
    pub(crate) held_out: &'a [Sample],
    pub(crate) learner: &'a mut L,
    pub(crate) answer: Answering<'a, L>,
    pub(crate) events: &'a mut Events<'e>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) control: Control,
    pub(crate) governor: Governor<'a>,
    /// What a rehearsal expects: seconds per token, and of one evaluation.
    pub(crate) expected: Option<(f64, f64)>,
    pub(crate) memory: MemoryMeter,
    /// Where the run trains on a card.
    pub(crate) card: Option<CardWatch>,
    pub(crate) state: State,
    /// The checkpoint `state` was read from.
    pub(crate) saved_step: Option<usize>,
    /// Disk space to keep set aside for one checkpoint.
    pub(crate) reserve_bytes: u64,
    /// True while it is.
    pub(crate) has_reserve: bool,
}

impl<L: Learner> Training<'_, '_, L> {
    /// Trains to the end.
    pub(crate) fn run(mut self) -> Result<Outcome, Error> {
        let schedule = Schedule::of(self.settings);
        let mut cursor = Cursor::at(self.train, self.settings, self.state.epoch, self.state.position);
        let mut eta = Eta::default();
        if let Some((seconds_per_token, evaluation_s)) = self.expected {
            eta.expect(seconds_per_token, evaluation_s);
        }
        let mut last_saved = Instant::now();
        if self.state.ended.is_none() && self.state.step < self.settings.n_steps {
            self.events.phase("train")?;
        }
        while self.state.ended.is_none() && self.state.step < self.settings.n_steps {
            let step = self.state.step;
            let micro_batches: Vec<_> = cursor.next_step().iter().map(|m| data::batch(self.train, m)).collect();
            let n_tokens = micro_batches.iter().map(|b| b.n_tokens()).sum();
            let n_supervised_tokens: usize = micro_batches.iter().map(|b| b.n_supervised()).sum();
            let started = Instant::now();
            let mut paused = Duration::ZERO;
            let mut nll = 0.0;
            for (i, batch) in micro_batches.iter().enumerate() {
                if let Some(wish) = self.obey(&mut paused)? {
                    // The gradients of this step so far are given up; the step is taken again from its start.
                    return self.stop(wish);
                }
                let part =
                    self.learner.micro_batch(batch, n_supervised_tokens, dropout_seed(self.settings.seed, step, i))?;
                self.check_finite("loss", part, i)?;
                nll += part;
                self.memory.read();
            }
            let learning_rate = schedule.learning_rate(step);
            let grad_norm = self.learner.optimizer_step(learning_rate)?;
            // Of what such an update left in memory nothing is kept: the run ends, and checkpoints are of earlier steps.
            self.check_finite("gradient norm", grad_norm, micro_batches.len().saturating_sub(1))?;

            self.state.step += 1;
            self.state.epoch = cursor.epoch();
            self.state.position = cursor.position();
            self.state.optimizer_steps = self.learner.optimizer_steps();
            let seconds = (started.elapsed() - paused).as_secs_f64();
            eta.step(n_tokens, seconds);
            let n_left = self.settings.n_steps - self.state.step;
            let memory = self.memory.read();
            self.memory.set_warm();
            let card = self.card.as_ref().and_then(|card| {
                card.set_own_bytes(memory.used_bytes);
                card.newest()
            });
            self.events.emit(TrainEvent::Step {
                step: self.state.step,
                epoch: cursor.epochs_done(),
                loss: nll / n_supervised_tokens.max(1) as f64,
                learning_rate,
                grad_norm,
                n_tokens,
                n_supervised_tokens,
                step_ms: seconds * 1000.0,
                eta_s: eta.seconds(cursor.tokens_ahead(n_left), self.evaluations_left()),
                memory,
                card,
            })?;

            let mut is_best = false;
            if !self.held_out.is_empty() && evaluation::is_due(self.state.step, self.settings) {
                let started = Instant::now();
                is_best = self.evaluate()?;
                eta.evaluation(started.elapsed().as_secs_f64());
                if self.state.step < self.settings.n_steps && self.state.ended.is_none() {
                    self.events.phase("train")?;
                }
            }
            if self.state.step == self.settings.n_steps && self.state.ended.is_none() {
                self.state.ended = Some(FinishReason::Completed);
            }
            let every_steps = self.settings.checkpoints.every_steps.filter(|&n| n > 0);
            if is_best
                || self.state.ended.is_some()
                || every_steps.is_some_and(|n| self.state.step.is_multiple_of(n))
                || last_saved.elapsed().as_secs() >= self.settings.checkpoints.every_seconds
            {
                self.save()?;
                last_saved = Instant::now();
            }
        }
        self.finish()
    }

    fn finish(mut self) -> Result<Outcome, Error> {
        let reason = *self.state.ended.get_or_insert(FinishReason::Completed);
        if self.saved_step != Some(self.state.step) {
            self.save()?;
        }
        self.checkpoints.release_reserve();
        let (step, best_step) = (self.state.step, self.state.best.map(|b| b.step));
        self.events.emit(TrainEvent::Finished { reason, step, best_step })?;
        self.events.sync()?;
        Ok(Outcome::Finished { reason, step, best_step })
    }

    /// Makes the last whole step safe and ends.
    fn stop(mut self, wish: Wish) -> Result<Outcome, Error> {
        if self.saved_step != Some(self.state.step) {
            self.save()?;
        }
        self.checkpoints.release_reserve();
        let (step, best_step) = (self.state.step, self.state.best.map(|b| b.step));
        self.events.emit(TrainEvent::Finished { reason: FinishReason::Stopped, step, best_step })?;
        self.events.sync()?;
        self.control.clear()?;
        Ok(match wish {
            Wish::Stop => Outcome::Stopped { step },
            Wish::Interrupt => Outcome::Interrupted { step },
        })
    }

    /// Looks whether someone asked for something, holds while asked to pause, by a person or by the governor, and rests as long
    /// as the governor says. The time of both is added to `idle`.
    pub(super) fn obey(&mut self, idle: &mut Duration) -> Result<Option<Wish>, Error> {
        let started = Instant::now();
        let mut is_paused = false;
        loop {
            if interrupt::asked() {
                return Ok(Some(Wish::Interrupt));
            }
            if self.control.stop_asked() {
                return Ok(Some(Wish::Stop));
            }
            match self.ask_governor()? {
                _ if self.control.pause_asked() => {}
                Action::Go => break,
                Action::Slow { rest, .. } => {
                    if self.rest(rest) {
                        break;
                    }
                    continue;
                }
                Action::Pause { .. } => {}
            }
            if !is_paused {
                is_paused = true;
                if self.saved_step != Some(self.state.step) {
                    self.save()?;
                }
                self.events.phase("pause")?;
            }
            sleep(PAUSE_POLL);
        }
        *idle += started.elapsed();
        if is_paused {
            self.events.phase("train")?;
        }
        Ok(None)
    }

    /// Sleeps in pieces, so that a wish is soon obeyed; false where one came.
    fn rest(&self, rest: Duration) -> bool {
        let started = Instant::now();
        while started.elapsed() < rest {
            if self.is_wanted() {
                return false;
            }
            sleep((rest.saturating_sub(started.elapsed())).min(PAUSE_POLL));
        }
        true
    }

    fn is_wanted(&self) -> bool {
        interrupt::asked() || self.control.stop_asked() || self.control.pause_asked()
    }

    /// What the governor says, with its changes of pace in the events. Settings that it cannot read are said once; those before hold.
    fn ask_governor(&mut self) -> Result<Action, Error> {
        let (action, change) = match self.governor.ask() {
            Ok(asked) => asked,
            Err(e) => {
                self.events.warn("governor.unreadable", format!("The governor's new settings are not obeyed: {e}."))?;
                self.governor.ask()?
            }
        };
        if let Some(Change { pace, code, message, until_ms }) = change {
            self.events.emit(TrainEvent::Governor { pace, code: code.into(), message, until_ms })?;
        }
        Ok(action)
    }

    fn check_finite(&self, what: &'static str, value: f64, micro_batch: usize) -> Result<(), Error> {
        if value.is_finite() {
            return Ok(());
        }
        Err(Error::NotFinite {
            what,
            value,
            step: self.state.step + 1,
            micro_batch: micro_batch + 1,
            checkpoint: self.saved_step,
        })
    }

    fn evaluations_left(&self) -> usize {
        if self.held_out.is_empty() {
            return 0;
        }
        (self.state.step..=self.settings.n_steps).filter(|&s| evaluation::is_due(s, self.settings)).count()
    }

    /// Evaluates, answers the sample prompts and decides whether to go on. True where the loss is the lowest so far.
    fn evaluate(&mut self) -> Result<bool, Error> {
        self.events.phase("evaluate")?;
        let (mut nll, mut n_supervised_tokens) = (0.0, 0);
        for group in evaluation::groups(self.held_out, self.settings) {
            let batch = data::batch(self.held_out, &group);
            nll += self.learner.evaluate(&batch)?;
            n_supervised_tokens += batch.n_supervised();
        }
        let step = self.state.step;
        let loss = nll / n_supervised_tokens.max(1) as f64;
        self.check_finite("evaluation loss", loss, 0)?;
        let best = evaluation::take(&mut self.state, loss);
        self.events.emit(TrainEvent::Evaluation { step, loss, best, n_supervised_tokens })?;
        for (index, Answer { prompt, answer, wanted }) in (self.answer)(self.learner)?.into_iter().enumerate() {
            self.events.emit(TrainEvent::Sample { step, index, prompt, answer, wanted })?;
        }
        if evaluation::is_hopeless(&self.state, self.settings) && step < self.settings.n_steps {
            self.state.ended = Some(FinishReason::EarlyStopped);
        }
        Ok(best)
    }

    fn save(&mut self) -> Result<(), Error> {
        // Lines first: a checkpoint whose steps are missing in the log would leave a gap in every chart.
        self.events.sync()?;
        let write = |training: &Self| {
            training.checkpoints.save(&training.state, training.learner.adapter()?, training.learner.optimizer())
        };
        let bytes = match write(self) {
            Err(Error::DiskFull { .. }) if self.checkpoints.release_reserve() => {
                let bytes = write(self)?;
                self.has_reserve = false;
                self.events.warn(
                    "run.reserve_used",
                    "The disk is full: this checkpoint took the space set aside for it. Free some space, or the next \
                     one fails and ends the run."
                        .into(),
                )?;
                bytes
            }
            other => other?,
        };
        let step = self.state.step;
        self.saved_step = Some(step);
        let best = self.state.best.is_some_and(|b| b.step == step);
        self.events.emit(TrainEvent::Checkpoint { step, bytes, best })?;
        self.checkpoints.prune(self.settings.checkpoints.keep, self.state.best.map(|b| b.step))?;
        if !self.has_reserve {
            self.has_reserve = self.checkpoints.reserve(self.reserve_bytes).is_ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::Device;

    use super::super::durable::faults::{Fault, arm, disarm};
    use super::super::events::{History, Notice, read};
    use super::super::governor::{Look, Pace, Sight};
    use super::super::rehearsal::{Rehearsal, Scene};
    use super::super::toy::Toy;
    use super::*;
    use crate::config::{CheckpointConfig, GovernorConfig, ScheduleKind};
    use crate::hardware::CardReading;

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
            toy.restore(&adapter, &checkpoints.optimizer(state.step, &Device::Cpu)?, state.optimizer_steps)?;
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
            answer: &mut |_| Ok(Vec::new()),
            events: &mut events,
            checkpoints,
            control: Control::new(folder),
            governor: Governor::new(settings.governor.clone(), look),
            expected: None,
            memory: MemoryMeter::start(&Device::Cpu, 0, None),
            card: None,
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
        for stop_after in [1, 2, 3, 9, 20] {
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
            let expected = if stop_after < 17 {
                Outcome::Stopped { step: stop_after }
            } else {
                outcome.as_ref().copied().unwrap()
            };
            assert_eq!(outcome.unwrap(), expected);
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

    fn some_plan() -> crate::plan::Plan {
        let config = serde_json::json!({ "model": "m", "data": { "path": "d" } });
        let shape = crate::model::ModelShape {
            family: "llama".into(),
            hidden: 64,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 16,
            ffn: 160,
            vocab_rows: 97,
            rms_eps: 1e-5,
            rope: crate::model::shape::Rope { theta: 10_000.0, scaling: None },
            tied: true,
            max_positions: 512,
        };
        let data = data::DataStats::of((0..25).map(|i| (4 + i % 9, 3)));
        let hardware = crate::hardware::profile("no-card").unwrap().hardware();
        crate::plan::plan(&shape, &data, &serde_json::from_value(config).unwrap(), &hardware).unwrap()
    }

    /// Trains after a rehearsal; returns what it found, the learner and the codes of the warnings.
    fn rehearsed(toy: Toy, fault: Option<(usize, Fault)>) -> (Option<Rehearsal>, Toy, Vec<String>) {
        let (plan, folder, mut toy) = (some_plan(), tempfile::tempdir().unwrap(), toy);
        let (mut found, mut warnings) = (None, Vec::new());
        let mut scene = Scene {
            plan: &plan,
            filled_bytes: &|_| 0,
            buffer_bytes: 1 << 20,
            merge: &mut |_: &Toy| Ok(0.5),
        };
        let mut first = |training: &mut Training<'_, '_, Toy>| {
            let before = training.learner.clone();
            if let Some((point, fault)) = fault {
                arm(point, fault);
            }
            found = training.rehearse(&mut scene)?;
            disarm();
            assert!(training.learner.is_where(&before), "nothing of it stays");
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
        let parts = 17.0 * found.measured.step_s + found.measured.evaluation_s + n_checkpoints * found.checkpoint_s.unwrap();
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
        // No memory for the longest batch: all the run can do is try.
        let mut short_of_memory = Toy::new();
        short_of_memory.fails_at = Some(1);
        let (found, toy, warnings) = rehearsed(short_of_memory, None);
        assert!(found.is_none());
        assert_eq!(warnings, ["rehearsal.incomplete"]);
        assert_eq!(toy.weights(), undisturbed(&settings()).0.weights());
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
                assert_eq!(Checkpoints::new(folder.path()).steps(), [step], "the work is safe");
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
        // Three seconds a look: hot, wavering around its limit, cool.
        let look = scripted("2026-05-05T12:00:00Z", Duration::from_millis(3000), |n| match n {
            0..10 => 60.0,
            10..25 => [86.5, 88.0][n % 2],
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
        assert!(started.elapsed().as_secs_f64() > 2.0, "{:?}", started.elapsed());
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
}
