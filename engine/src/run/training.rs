//! The loop: micro-batches, optimizer steps, evaluations and checkpoints, until the end or until asked to stop.
//!
//! What a step computes depends on the settings, the data and the step's index alone, never on time, so a run that was
//! killed and taken up again makes the same adapter, bit for bit.
//!
//! Where memory runs out, what was begun is given up and taken again with less ([`crate::plan::ladder`]): the micro-batches stay those
//! of the settings and are only computed in parts, so that the sequences of a step, their weight in its loss and their dropout are
//! the same on every rung.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::alarm::Alarm;
use super::checkpoint::{Checkpoints, State};
use super::control::Control;
use super::cursor::Cursor;
use super::error::Error;
use super::eta::Eta;
use super::events::Events;
use super::governor::{Action, Change, Governor};
use super::learner::{Learner, Part};
use super::memory::MemoryMeter;
use super::rehearsal::Rehearsal;
use super::schedule::{Schedule, dropout_seed};
use super::{evaluation, interrupt};
use crate::config::{ComputeDtype, Settings};
use crate::data::{self, Sample};
use crate::error::out_of_memory;
use crate::event::{FinishReason, MemoryReading, TrainEvent};
use crate::format;
use crate::hardware::CardWatch;
use crate::ops::memory::Held;
use crate::plan::ladder::Rung;
use crate::step::LossScale;

/// How often a paused run looks whether it may go on.
const PAUSE_POLL: Duration = Duration::from_millis(100);
/// An evaluation may be begun with this fraction of the time between two checkpoints unsaved: a fifth, a minute of five.
const RISKED_BY_EVALUATION: u32 = 5;

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

/// What came of a step or of an evaluation.
enum Attempt<T> {
    Done(T),
    /// Somebody wants an end. What was done of it is given up; whoever takes the run up begins it again from its start.
    Asked(Wish),
}

struct Done {
    nll: f64,
    grad_norm: f64,
    seconds: f64,
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
    /// What the plan counts for the process beside all that it lists.
    pub(crate) overhead_bytes: u64,
    /// Where the run trains on a card.
    pub(crate) card: Option<CardWatch>,
    pub(crate) alarm: Alarm,
    pub(crate) state: State,
    /// `settings` on the rung of `state`: how the step is computed.
    pub(crate) fitting: Settings,
    /// True between a lack of memory and the next whole step: the next lack takes a rung.
    pub(crate) has_retried: bool,
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
        match self.go_on() {
            Ok(None) => self.finish(),
            Ok(Some(wish)) => self.stop(wish),
            Err(error) => {
                let is_unsaved = self.saved_step != Some(self.state.step);
                if matches!(error, Error::DiskFull { .. }) && is_unsaved && self.checkpoints.release_reserve() {
                    // Whatever it was that found the disk full: the space was set aside for the steps since the last checkpoint.
                    let _ = self.save();
                }
                Err(error)
            }
        }
    }

    /// Steps, evaluations and checkpoints up to the last one, or up to a wish for an end.
    fn go_on(&mut self) -> Result<Option<Wish>, Error> {
        let schedule = Schedule::of(self.settings);
        let mut cursor = Cursor::at(self.train, self.settings, self.state.epoch, self.state.position);
        let mut eta = Eta::default();
        if let Some((seconds_per_token, evaluation_s)) = self.expected {
            eta.expect(seconds_per_token, evaluation_s);
        }
        let (n_steps, checkpoints) = (self.settings.n_steps, &self.settings.checkpoints);
        let every = Duration::from_secs(checkpoints.every_seconds);
        let mut last_saved = Instant::now();
        // One that this process took itself, in its rehearsal, is said and in place.
        if let Some(rung) = self.state.rung.filter(|&rung| rung != Rung::of(&self.fitting)) {
            let changes = Rung::of(self.settings).changes(rung);
            self.fitting = rung.apply(self.settings);
            self.events
                .warn("run.on_rung", format!("Memory was short earlier in this run. It goes on with {changes}."))?;
        }
        if self.state.ended.is_none() && !self.state.owes_evaluation && self.state.step < n_steps {
            self.events.phase("train")?;
        }
        while self.state.ended.is_none() && (self.state.owes_evaluation || self.state.step < n_steps) {
            // One that is owed at the first turn is that of the checkpoint's own step.
            if !self.state.owes_evaluation
                && let Some(wish) = self.next_step(&schedule, &mut cursor, &mut eta)?
            {
                return Ok(Some(wish));
            }

            let best_before = self.state.best;
            let mut is_best = false;
            if self.state.owes_evaluation {
                // It may take minutes and counts only as a whole: the steps before it are safe first.
                if self.saved_step != Some(self.state.step) && last_saved.elapsed() >= every / RISKED_BY_EVALUATION {
                    self.save_if_possible()?;
                    last_saved = Instant::now();
                }
                let (started, mut idle) = (Instant::now(), Duration::ZERO);
                match self.evaluate(&mut idle)? {
                    Attempt::Done(best) => is_best = best,
                    Attempt::Asked(wish) => return Ok(Some(wish)),
                }
                eta.evaluation((started.elapsed() - idle).as_secs_f64());
                if self.state.step < n_steps && self.state.ended.is_none() {
                    self.events.phase("train")?;
                }
            }
            if self.state.step == n_steps && self.state.ended.is_none() {
                self.state.ended = Some(FinishReason::Completed);
            }
            let every_steps = checkpoints.every_steps.filter(|&n| n > 0);
            if is_best
                || self.state.ended.is_some()
                || every_steps.is_some_and(|n| self.state.step.is_multiple_of(n))
                || last_saved.elapsed() >= every
                // Its checkpoint still owes the evaluation.
                || self.saved_step == Some(self.state.step)
            {
                if !self.save_if_possible()? && is_best && self.state.ended.is_none() {
                    // It is nowhere, so the one before it must not make way for it.
                    self.state.best = best_before;
                }
                last_saved = Instant::now();
            }
        }
        Ok(None)
    }

    /// One step, tried until it is whole, and what there is to say of it. A wish where somebody wants an end first.
    fn next_step(
        &mut self,
        schedule: &Schedule,
        cursor: &mut Cursor<'_>,
        eta: &mut Eta,
    ) -> Result<Option<Wish>, Error> {
        let micro_batches = cursor.next_step();
        let train = self.train;
        let samples = micro_batches.iter().flatten().map(|&i| &train[i]);
        let (n_tokens, n_supervised_tokens) =
            samples.fold((0, 0), |(n, learned), s| (n + s.input_ids.len(), learned + s.n_learned()));
        let learning_rate = schedule.learning_rate(self.state.step);
        let Done { nll, grad_norm, seconds } = loop {
            match self.step(&micro_batches, n_supervised_tokens, learning_rate) {
                Ok(Attempt::Done(done)) => break done,
                Ok(Attempt::Asked(wish)) => return Ok(Some(wish)),
                // Taken again, of the same samples.
                Err(error) if error.is_overflow() && self.halve_loss_scale()? => {}
                Err(error) => self.make_room("a step", error).map_err(|error| self.ending(error))?,
            }
        };
        self.has_retried = false;

        self.state.step += 1;
        self.state.epoch = cursor.epoch();
        self.state.position = cursor.position();
        self.state.optimizer_steps = self.learner.optimizer_steps();
        self.state.owes_evaluation = !self.held_out.is_empty() && evaluation::is_due(self.state.step, self.settings);
        self.follow_loss_scale(|from| format!("2,000 steps went well at a loss scale of {from}."))?;
        eta.step(n_tokens, seconds);
        let n_left = self.settings.n_steps - self.state.step;
        let memory = self.read_memory();
        self.memory.set_warm();
        let card = self.card.as_ref().and_then(CardWatch::newest);
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
            card: card.clone(),
        })?;

        if let Some(reading) = card {
            let ms_per_token = seconds * 1000.0 / n_tokens.max(1) as f64;
            for (code, message) in self.alarm.after_step(&reading, self.memory.returning_bytes(), ms_per_token) {
                self.events.warn(code, message)?;
            }
        }
        Ok(None)
    }

    /// One optimizer step, from its first micro-batch on. Those that are too large for the buffers go through them in parts.
    fn step(
        &mut self,
        micro_batches: &[Vec<usize>],
        n_supervised_step: usize,
        learning_rate: f64,
    ) -> Result<Attempt<Done>, Error> {
        self.ready()?;
        let started = Instant::now();
        let mut paused = Duration::ZERO;
        let mut nll = 0.0;
        for (i, documents) in micro_batches.iter().enumerate() {
            if let Some(wish) = self.obey(&mut paused)? {
                return Ok(Attempt::Asked(wish));
            }
            let dropout_seed = dropout_seed(self.settings.seed, self.state.step, i);
            let mut first_row = 0;
            for documents in data::runs(self.train, documents, self.fitting.max_tokens()) {
                let batch = data::batch(self.train, documents);
                let part = Part { n_supervised_step, dropout_seed, first_row };
                let part_nll = self.learner.micro_batch(&batch, part)?;
                self.check_finite("loss", part_nll, i)?;
                nll += part_nll;
                first_row += batch.n_tokens();
                self.read_memory();
            }
        }
        let grad_norm = self.learner.optimizer_step(learning_rate)?;
        // Of what such an update left in memory nothing is kept: the run ends, and checkpoints are of earlier steps.
        self.check_finite("gradient norm", grad_norm, micro_batches.len().saturating_sub(1))?;
        let seconds = (started.elapsed() - paused).as_secs_f64();
        Ok(Attempt::Done(Done { nll, grad_norm, seconds }))
    }

    /// After a gradient beyond what f16 holds: gives up the gradients of the step that was begun and halves the scale of the loss.
    /// False where the loss is not scaled, or not any more.
    fn halve_loss_scale(&mut self) -> Result<bool, Error> {
        if !self.learner.halve_loss_scale()? {
            return Ok(false);
        }
        let step = self.state.step + 1;
        self.follow_loss_scale(|from| {
            format!(
                "A gradient of step {step} was beyond what f16 holds at a loss scale of {from}. The step is taken again with the \
                 same samples."
            )
        })?;
        Ok(true)
    }

    /// Notes the learner's loss scale for the next checkpoint, and says it where it is another one than before.
    fn follow_loss_scale(&mut self, reason: impl FnOnce(String) -> String) -> Result<(), Error> {
        let before = self.state.loss_scale.unwrap_or_default();
        self.state.loss_scale = self.learner.loss_scale();
        match self.state.loss_scale {
            Some(LossScale { scale, n_halved, .. }) if scale != before.scale => {
                let reason = reason(format::count(before.scale as usize));
                let (step, from) = (self.state.step, before.scale);
                self.events.emit(TrainEvent::LossScale { step, reason, from, to: scale, n_halved })
            }
            _ => Ok(()),
        }
    }

    /// The step has its buffers from here on: fewer where there is no memory for all of them.
    pub(super) fn ready(&mut self) -> Result<(), Error> {
        while !self.learner.is_ready() {
            match self.learner.allocate(&self.fitting) {
                Ok(()) => {
                    self.memory.set_planned(self.learner.planned_bytes(&self.fitting) + self.overhead_bytes);
                    self.read_memory();
                }
                Err(error) => self.make_room("the step's buffers", error)?,
            }
        }
        Ok(())
    }

    /// Gives the step's buffers back.
    fn release(&mut self) -> Result<(), Error> {
        self.learner.release()?;
        self.read_memory();
        Ok(())
    }

    /// Reads the memory now. Wherever much of it was taken or given back this is done: what the run holds of a card would be counted
    /// as other programs' otherwise, and the other way round.
    pub(super) fn read_memory(&mut self) -> MemoryReading {
        let memory = self.memory.read();
        if let Some(card) = &self.card {
            card.set_own_bytes(memory.used_bytes);
        }
        memory
    }

    /// After a lack of memory: gives up the gradients of the step that was begun and the step's buffers. What was tried may be tried
    /// again, the first time with what could be freed, from the second time on a rung further down. Adapter and optimizer stay as the
    /// last whole step left them. Fails with [`Error::OutOfMemory`] below the last rung, and with any other error as it is.
    pub(super) fn make_room(&mut self, doing: &'static str, error: Error) -> Result<(), Error> {
        let Some(shortage) = error.shortage().cloned() else { return Err(error) };
        self.learner.forget()?;
        self.release()?;
        let reason = format!("Memory ran out after step {}: {}.", self.state.step, out_of_memory(&shortage));
        if !self.has_retried {
            self.has_retried = true;
            return self
                .events
                .warn("run.memory_retried", format!("{reason} What could be freed is, and it is tried again."));
        }
        let Some(to) = self.learner.less(&self.fitting) else {
            return Err(Error::OutOfMemory { doing, shortage, checkpoint: self.saved_step });
        };
        self.take_rung(to, reason)
    }

    /// After a rehearsal in which the run took more than it may: the same training on the first rung that does with `budget_bytes`,
    /// counted with what was measured. Fails with [`Error::OverBudget`] where no rung does.
    pub(super) fn keep_within(&mut self, budget_bytes: u64, rehearsal: &Rehearsal) -> Result<(), Error> {
        let Some(overhead_bytes) = rehearsal.overhead_bytes else { return Ok(()) };
        let needed_bytes = |settings: &Settings| self.learner.planned_bytes(settings).saturating_add(overhead_bytes);
        let mut fitting = self.fitting.clone();
        while needed_bytes(&fitting) > budget_bytes {
            let Some(rung) = self.learner.less(&fitting) else {
                return Err(Error::OverBudget { needed_bytes: needed_bytes(&fitting), budget_bytes });
            };
            fitting = rung.apply(&fitting);
        }
        let to = Rung::of(&fitting);
        if to == Rung::of(&self.fitting) {
            return Ok(());
        }
        let measured_bytes = rehearsal.measured.memory_bytes;
        let reason = format!(
            "The rehearsal took {}, {} more than planned, and {} are free for it.",
            format::bytes(measured_bytes),
            format::bytes(measured_bytes.saturating_sub(rehearsal.predicted.memory_bytes)),
            format::bytes(budget_bytes),
        );
        self.release()?;
        self.overhead_bytes = overhead_bytes;
        self.take_rung(to, reason)
    }

    /// Goes on on a rung further down, and says so.
    fn take_rung(&mut self, to: Rung, reason: String) -> Result<(), Error> {
        let from = Rung::of(&self.fitting);
        let words = format!(
            "From here on: {}. The sequences of a step, their order and all that is learned stay the same; only the time changes.",
            from.changes(to)
        );
        self.events.emit(TrainEvent::Rung { step: self.state.step, reason, words, from, to })?;
        self.fitting = to.apply(self.settings);
        self.state.rung = Some(to);
        Ok(())
    }

    /// The error that ends a run: one for lack of memory comes with its last whole step safe.
    fn ending(&mut self, error: Error) -> Error {
        let Error::OutOfMemory { doing, shortage, .. } = error else { return error };
        if self.saved_step != Some(self.state.step) {
            match self.save() {
                // Then the error names an earlier checkpoint.
                Err(error) if error.shortage().is_some() => {}
                Err(error) => return error,
                Ok(()) => {}
            }
        }
        Error::OutOfMemory { doing, shortage, checkpoint: self.saved_step }
    }

    fn finish(mut self) -> Result<Outcome, Error> {
        let reason = *self.state.ended.get_or_insert(FinishReason::Completed);
        if self.saved_step != Some(self.state.step) {
            self.save_between_steps()?;
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
            self.save_between_steps()?;
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
                    match self.save() {
                        // The gradients of the step are needed when it goes on, so nothing can be given back for it.
                        Err(error) if error.shortage().is_some() => {
                            let message = format!("The pause is without a checkpoint of its own: {error}.");
                            self.events.warn("run.checkpoint_skipped", message)?;
                        }
                        other => other?,
                    }
                }
                self.events.phase("pause")?;
            }
            sleep(PAUSE_POLL);
        }
        *idle += started.elapsed();
        if is_paused {
            self.events.phase(if self.state.owes_evaluation { "evaluate" } else { "train" })?;
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
        let (step, micro_batch, checkpoint) = (self.state.step + 1, micro_batch + 1, self.saved_step);
        Err(match self.settings.compute {
            ComputeDtype::F16 => Error::BeyondF16 { what, value, step, micro_batch, checkpoint },
            _ => Error::NotFinite { what, value, step, micro_batch, checkpoint },
        })
    }

    fn evaluations_left(&self) -> usize {
        if self.held_out.is_empty() {
            return 0;
        }
        (self.state.step..=self.settings.n_steps).filter(|&s| evaluation::is_due(s, self.settings)).count()
    }

    /// Evaluates, answers the sample prompts and decides whether to go on. True where the loss is the lowest so far. The time of
    /// pauses and rests is added to `idle`.
    fn evaluate(&mut self, idle: &mut Duration) -> Result<Attempt<bool>, Error> {
        self.events.phase("evaluate")?;
        let sums = match self.held_out_loss(idle)? {
            Attempt::Done(sums) => sums,
            Attempt::Asked(wish) => return Ok(Attempt::Asked(wish)),
        };
        // It counts when all of it is said: a checkpoint made before that, on a disk that is full, still owes the whole.
        let mut state = State { owes_evaluation: false, ..self.state.clone() };
        let mut best = false;
        if let Some((nll, n_supervised_tokens)) = sums {
            let step = state.step;
            let loss = nll / n_supervised_tokens.max(1) as f64;
            self.check_finite("evaluation loss", loss, 0)?;
            best = evaluation::take(&mut state, loss);
            self.events.emit(TrainEvent::Evaluation { step, loss, best, n_supervised_tokens })?;
            for (index, Answer { prompt, answer, wanted }) in self.answers()?.into_iter().enumerate() {
                self.events.emit(TrainEvent::Sample { step, index, prompt, answer, wanted })?;
            }
            if evaluation::is_hopeless(&state, self.settings) && step < self.settings.n_steps {
                state.ended = Some(FinishReason::EarlyStopped);
            }
        }
        self.state = state;
        Ok(Attempt::Done(best))
    }

    /// Summed loss of the held-out examples and how many tokens it is of. They go through the buffers in groups, filled one after the
    /// other: the same groups every time, so two evaluations differ only by the adapter, and smaller ones where memory runs out. None
    /// where even the least is too much, which ends no run.
    fn held_out_loss(&mut self, idle: &mut Duration) -> Result<Attempt<Option<(f64, usize)>>, Error> {
        let all: Vec<usize> = (0..self.held_out.len()).collect();
        let mut max_tokens = self.fitting.max_tokens();
        loop {
            max_tokens = max_tokens.min(self.fitting.max_tokens());
            match self.loss_in_groups(&all, max_tokens, idle) {
                Err(error) if error.shortage().is_some() && max_tokens > self.settings.length => {
                    max_tokens = (max_tokens / 2).max(self.settings.length);
                    let message = format!("{error}. The evaluation goes on with at most {max_tokens} tokens at once.");
                    self.events.warn("run.evaluation_smaller", message)?;
                }
                Err(error) => match self.make_room("an evaluation", error) {
                    Err(error @ Error::OutOfMemory { .. }) => {
                        let message = format!("Step {} is not evaluated: {error}.", self.state.step);
                        self.events.warn("run.evaluation_skipped", message)?;
                        return Ok(Attempt::Done(None));
                    }
                    other => other?,
                },
                Ok(Attempt::Done(sums)) => return Ok(Attempt::Done(Some(sums))),
                Ok(Attempt::Asked(wish)) => return Ok(Attempt::Asked(wish)),
            }
        }
    }

    fn loss_in_groups(
        &mut self,
        all: &[usize],
        max_tokens: usize,
        idle: &mut Duration,
    ) -> Result<Attempt<(f64, usize)>, Error> {
        self.ready()?;
        let (mut nll, mut n_supervised_tokens) = (0.0, 0);
        for group in data::runs(self.held_out, all, max_tokens) {
            if let Some(wish) = self.obey(idle)? {
                return Ok(Attempt::Asked(wish));
            }
            let batch = data::batch(self.held_out, group);
            nll += self.learner.evaluate(&batch)?;
            n_supervised_tokens += batch.n_supervised();
        }
        Ok(Attempt::Done((nll, n_supervised_tokens)))
    }

    /// The sample prompts answered. The step's buffers make room for that where there is none; no run ends for an answer.
    fn answers(&mut self) -> Result<Vec<Answer>, Error> {
        let mut answers = (self.answer)(self.learner);
        if answers.as_ref().is_err_and(|error| error.shortage().is_some()) {
            self.release()?;
            answers = (self.answer)(self.learner);
        }
        self.read_memory();
        match answers {
            Err(error) if error.shortage().is_some() || matches!(error, Error::Generate(_)) => {
                let message = format!("The sample prompts are not answered after step {}: {error}.", self.state.step);
                self.events.warn("run.samples_skipped", message)?;
                Ok(Vec::new())
            }
            other => other,
        }
    }

    /// [`Self::save`] while no step is under way: the step's buffers make room for the copies where there is none.
    fn save_between_steps(&mut self) -> Result<(), Error> {
        let mut saved = self.save();
        if saved.as_ref().is_err_and(|error| error.shortage().is_some()) {
            self.release()?;
            saved = self.save();
        }
        saved.map_err(|error| match error.shortage() {
            Some(shortage) => {
                Error::OutOfMemory { doing: "a checkpoint", shortage: shortage.clone(), checkpoint: self.saved_step }
            }
            None => error,
        })
    }

    /// [`Self::save_between_steps`] where it need not be now: a lack of memory is only said. False where there was one.
    fn save_if_possible(&mut self) -> Result<bool, Error> {
        match self.save_between_steps() {
            // At the end of the run it is tried once more, and is a fault then.
            Err(Error::OutOfMemory { shortage, .. }) => {
                let message = format!(
                    "No checkpoint was made after step {}: {}. The next one is tried in its turn; until then the last one is all \
                     that is safe. Close other programs that use memory.",
                    self.state.step,
                    out_of_memory(&shortage)
                );
                self.events.warn("run.checkpoint_skipped", message)?;
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// Makes the last whole step safe. Where it is already, only what is known of it is written anew.
    fn save(&mut self) -> Result<(), Error> {
        // Lines first: a checkpoint whose steps are missing in the log would leave a gap in every chart.
        self.events.sync()?;
        let write = |training: &Self| {
            let (checkpoints, state) = (&training.checkpoints, &training.state);
            if training.saved_step == Some(state.step) {
                return checkpoints.amend(state);
            }
            let held = Held::new();
            let (adapter, optimizer) = (training.learner.adapter(&held)?, training.learner.optimizer(&held)?);
            checkpoints.save(state, adapter, optimizer)
        };
        let (bytes, took_reserve) = match write(self) {
            Err(Error::DiskFull { .. }) if self.checkpoints.release_reserve() => (write(self)?, true),
            other => (other?, false),
        };
        // It stands from here on, whether or not there is room for a line that says so.
        let (step, best_step) = (self.state.step, self.state.best.map(|b| b.step));
        self.saved_step = Some(step);
        self.has_reserve &= !took_reserve;
        let pruned = self.checkpoints.prune(self.settings.checkpoints.keep, step, best_step);
        if took_reserve {
            self.events.warn(
                "run.reserve_used",
                "The disk is full: this checkpoint took the space set aside for it. Free some space, or the next \
                 one fails and ends the run."
                    .into(),
            )?;
        }
        self.events.emit(TrainEvent::Checkpoint { step, bytes, best: best_step == Some(step) })?;
        if let Err(error) = pruned {
            // It takes room and nothing else.
            self.events.warn("run.checkpoint_not_removed", format!("An old checkpoint is still there: {error}."))?;
        }
        if !self.has_reserve {
            self.has_reserve = self.checkpoints.reserve(self.reserve_bytes).is_ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
