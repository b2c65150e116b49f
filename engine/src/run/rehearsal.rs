//! Twenty seconds before the first step: the longest batch, a few timed ones, an update, an evaluation, a checkpoint, the merge of
//! one weight. What they take replaces what the plan calculated, for this run's time left and for the plans of later runs.
//!
//! Nothing of it stays in what is trained. The update is made at a rate of 0, gradients and moments are forgotten, dropout and the
//! order of the data follow from the seed alone: a run with a rehearsal makes the same bytes as one without.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::error::Error;
use super::events::now_ms;
use super::learner::{Learner, Part};
use super::schedule::dropout_seed;
use super::store::{RATES, RunFolder, RunRecord};
use super::training::Training;
use super::{evaluation, interrupt};
use crate::config::Settings;
use crate::data::{self, Batch, Sample};
use crate::event::TrainEvent;
use crate::format;
use crate::hardware::{self, MeasuredOverhead, MeasuredRate, Prediction, TrainOn};
use crate::model::ModelSource;
use crate::ops::memory::Held;
use crate::plan::{Plan, SAMPLE_TOKENS, model_key};

/// Longest time, and the share of a short run's predicted time that is enough, with its least.
const MOST: Duration = Duration::from_secs(20);
const SHARE_OF_RUN: f64 = 0.1;
const LEAST: Duration = Duration::from_secs(1);
/// Share of it that timed micro-batches may take; they are of this many lengths, each tried this often at most.
const SHARE_OF_TIMED: f64 = 0.6;
const N_LENGTHS: usize = 5;
const N_ROUNDS: usize = 4;
const N_ROUNDS_ON_CARD: usize = 16;
/// A prediction that is off by more than this is worth a sentence: a share of the time, and of the memory with a least difference.
const TIME_OFF: f64 = 0.15;
const MEMORY_OFF: f64 = 0.02;
const MEMORY_OFF_BYTES: u64 = 64 << 20;

/// Time and memory of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Expectation {
    /// Tokens per second of whole optimizer steps.
    pub tokens_per_s: f64,
    /// One optimizer step.
    pub step_s: f64,
    /// All evaluations together; in what is measured with the answers to held-out prompts.
    pub evaluation_s: f64,
    /// The whole run; in what is measured with the checkpoints.
    pub total_s: f64,
    /// Peak memory.
    #[ts(type = "number")]
    pub memory_bytes: u64,
    /// One checkpoint.
    #[ts(type = "number")]
    pub checkpoint_bytes: u64,
}

/// One timed micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct TimedBatch {
    /// Its tokens.
    pub n_tokens: usize,
    /// Forward and backward.
    pub seconds: f64,
}

/// What a rehearsal measured. What it had no time for, or could not do, is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Rehearsal {
    /// When it ended, milliseconds since the Unix epoch.
    #[ts(type = "number")]
    pub time_ms: u64,
    /// How long it took.
    pub seconds: f64,
    /// What the plan said.
    pub predicted: Expectation,
    /// What follows from what was measured.
    pub measured: Expectation,
    /// Micro-batches, warm, of several lengths.
    pub timed: Vec<TimedBatch>,
    /// Tokens of the longest micro-batch, where it was tried.
    pub longest_tokens: Option<usize>,
    /// One update of the adapter.
    pub optimizer_s: f64,
    /// One evaluation, without answers.
    pub evaluation_s: Option<f64>,
    /// Answers to the held-out prompts once.
    pub answers_s: Option<f64>,
    /// One checkpoint on the run's disk.
    pub checkpoint_s: Option<f64>,
    /// Merging all linear layers for an export, without writing them.
    pub merge_s: Option<f64>,
    /// Memory beside the buffers.
    #[ts(type = "number | null")]
    pub overhead_bytes: Option<u64>,
}

impl Rehearsal {
    /// Seconds per token of whole steps, and of one evaluation with its answers.
    pub(crate) fn pace(&self) -> (f64, f64) {
        (1.0 / self.measured.tokens_per_s, self.evaluation_s.unwrap_or(0.0) + self.answers_s.unwrap_or(0.0))
    }
}

/// What a rehearsal needs to know beside the run itself.
pub(crate) struct Scene<'a, L> {
    pub(crate) plan: &'a Plan,
    /// Bytes of all buffers.
    pub(crate) buffer_bytes: u64,
    /// Merges one weight; returns which share of all linear layers it is.
    pub(crate) merge: &'a mut dyn FnMut(&L) -> Result<f64, String>,
}

/// Seconds of a micro-batch as `per_batch_s + per_token_s * n_tokens`: least squares over what was timed, or the plain ratio where
/// that makes no sense (one length only; attention, which makes long ones slower).
fn pace(timed: &[TimedBatch]) -> (f64, f64) {
    let n = timed.len() as f64;
    let sum = |f: &dyn Fn(&TimedBatch) -> f64| timed.iter().map(f).sum::<f64>();
    let (tokens, seconds) = (sum(&|t| t.n_tokens as f64), sum(&|t| t.seconds));
    let (mean_tokens, mean_seconds) = (tokens / n, seconds / n);
    let spread = sum(&|t| (t.n_tokens as f64 - mean_tokens).powi(2));
    let slope = sum(&|t| (t.n_tokens as f64 - mean_tokens) * (t.seconds - mean_seconds)) / spread;
    let start = mean_seconds - slope * mean_tokens;
    if spread > 0.0 && slope > 0.0 && start >= 0.0 { (start, slope) } else { (0.0, seconds / tokens.max(1.0)) }
}

/// What was measured so far, in seconds.
#[derive(Default)]
struct Findings {
    timed: Vec<TimedBatch>,
    longest_tokens: Option<usize>,
    optimizer_s: f64,
    evaluation_s: Option<f64>,
    answers_s: Option<f64>,
    checkpoint: Option<(f64, u64)>,
    merge_s: Option<f64>,
    overhead_bytes: Option<u64>,
}

/// The micro-batches of one pass, as far as time is concerned.
struct Pass {
    /// Indices of samples.
    micro_batches: Vec<Vec<usize>>,
    n_tokens: usize,
    n_steps: usize,
}

impl Pass {
    fn of(samples: &[Sample], settings: &Settings) -> Self {
        let mut micro_batches = data::micro_batches(samples, settings, 0);
        let n_steps = micro_batches.len().div_ceil(settings.accumulation.max(1)).max(1);
        // A run shorter than a pass is one of its first steps alone.
        micro_batches.truncate(settings.n_steps.saturating_mul(settings.accumulation).max(1));
        let n_steps = n_steps.min(settings.n_steps.max(1));
        let tokens = |m: &Vec<usize>| m.iter().map(|&i| samples[i].input_ids.len()).sum::<usize>();
        micro_batches.sort_by_key(tokens);
        let n_tokens = micro_batches.iter().map(tokens).sum();
        Self { micro_batches, n_tokens, n_steps }
    }
}

impl<L: Learner> Training<'_, '_, L> {
    /// Rehearses the run, says what it found in the events, and leaves everything as it was. `None` where someone asked for an end
    /// first, and where memory ran out twice: then the run begins on a lower rung, which nobody planned. Whatever else cannot be
    /// rehearsed is said and left out: it is for the run itself to try.
    ///
    /// # Errors
    /// Events cannot be written, or the learner cannot be brought back to where it was.
    pub(crate) fn rehearse(&mut self, scene: &mut Scene<'_, L>) -> Result<Option<Rehearsal>, Error> {
        // Quiet hours are quiet for a rehearsal too.
        if self.obey(&mut Duration::default())?.is_some() {
            return Ok(None);
        }
        let started = Instant::now();
        let share = Duration::try_from_secs_f64(SHARE_OF_RUN * scene.plan.time.total_s).unwrap_or(MOST);
        let mut deadline = started + share.clamp(LEAST, MOST);
        self.events.phase("rehearse")?;
        let pass = Pass::of(self.train, self.settings);
        let mut found = Findings::default();
        let steps = loop {
            let steps = self.ready().and_then(|()| match self.state.rung {
                None => self.rehearse_steps(scene, &pass, &mut deadline, &mut found),
                Some(_) => Ok(()),
            });
            self.learner.forget_training()?;
            let error = match steps {
                Ok(()) => break Ok(()),
                Err(error) if error.shortage().is_some() => error,
                Err(error) => break Err(error.to_string()),
            };
            match self.make_room("a rehearsal", error) {
                Ok(()) => found = Findings::default(),
                // That is for a step of the run to end with.
                Err(error @ Error::OutOfMemory { .. }) => break Err(error.to_string()),
                Err(error) => return Err(error),
            }
        };
        if self.state.rung.is_some() {
            return Ok(None);
        }
        if steps.is_ok() {
            self.has_retried = false;
        }
        let rest = steps.and_then(|()| self.rehearse_rest(scene, deadline, &mut found));
        if interrupt::asked() || self.control.stop_asked() {
            return Ok(None);
        }
        if let Err(e) = rest {
            let message = format!("Not everything could be rehearsed: {e}. The run goes on, by the plan.");
            self.events.warn("rehearsal.incomplete", message)?;
        }
        if found.timed.is_empty() {
            return Ok(None);
        }
        let rehearsal = self.conclude(scene, &pass, found, started.elapsed());
        self.events.emit(TrainEvent::Rehearsal { rehearsal: rehearsal.clone() })?;
        for (code, message) in surprises(&rehearsal, scene.plan.budget_bytes) {
            self.events.warn(code, message)?;
        }
        Ok(Some(rehearsal))
    }

    /// Micro-batches and an update, up to the deadline, which is moved where warming up a card left too little.
    fn rehearse_steps(
        &mut self,
        scene: &Scene<'_, L>,
        pass: &Pass,
        deadline: &mut Instant,
        found: &mut Findings,
    ) -> Result<(), Error> {
        let all = &pass.micro_batches;
        let (Some(shortest), Some(longest)) = (all.first(), all.last()) else { return Ok(()) };
        // The first one warms up: threads start, memory is touched, kernels are loaded.
        let mut cold = self.time(shortest)?;
        if self.is_on_card() {
            // There that takes up to seconds, whatever the batch: more than the share of a short run, and nothing to judge others by.
            cold = self.time(shortest)?;
            *deadline = (*deadline).max(Instant::now() + LEAST);
        }
        let (started, deadline) = (Instant::now(), *deadline);
        let longest = data::batch(self.train, longest);
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_secs_f64();
        if cold.seconds / cold.n_tokens.max(1) as f64 * longest.n_tokens() as f64 <= left(deadline) {
            let seconds = self.time_batch(&longest)?;
            found.longest_tokens = Some(longest.n_tokens());
            found.timed.push(TimedBatch { n_tokens: longest.n_tokens(), seconds });
        } else {
            // Too slow for more than this; the plan's guess was worse.
            found.timed.push(cold);
        }
        let until = started + deadline.saturating_duration_since(started).mul_f64(SHARE_OF_TIMED);
        let mut spread: Vec<TimedBatch> = Vec::new();
        let n_rounds = if self.is_on_card() { N_ROUNDS_ON_CARD } else { N_ROUNDS };
        for round in 0..n_rounds * N_LENGTHS {
            // In the middle of each fifth of the pass, ordered by tokens: together they are like the whole.
            let place = (2 * (round % N_LENGTHS) + 1) * all.len() / (2 * N_LENGTHS);
            let expected = spread.last().map_or(found.timed[0].seconds, |t| t.seconds);
            let is_even = round % N_LENGTHS == 0;
            if self.is_asked() || expected > left(until) && (is_even || expected > left(deadline)) {
                break;
            }
            spread.push(self.time(&all[place.min(all.len() - 1)])?);
        }
        // The longest one would pull the line its way; it is one of very many.
        if spread.len() >= N_LENGTHS {
            // On a card the later half of the rounds is as the run will be: for each new length the library chooses what it runs, and the
            // clock rises first.
            let n_cold = if self.is_on_card() { spread.len() / N_LENGTHS / 2 * N_LENGTHS } else { 0 };
            found.timed = spread.split_off(n_cold);
        } else {
            found.timed.extend(spread);
        }
        if self.is_on_card() {
            // Loads the kernels.
            let _ = self.learner.optimizer_step(0.0);
        }
        let mut update = Instant::now();
        match self.learner.optimizer_step(0.0) {
            // In f16 the first steps find the scale of the loss. An update without a gradient takes as long.
            Err(error) if error.is_overflow() => {
                self.learner.forget()?;
                update = Instant::now();
                self.learner.optimizer_step(0.0)?;
            }
            other => _ = other?,
        }
        found.optimizer_s = update.elapsed().as_secs_f64();
        // The buffers are there whole, since they were written when they were made; what threads take beside them grows with the batch.
        let used_bytes = self.read_memory().used_bytes;
        if !self.is_on_card() && used_bytes > 0 && found.longest_tokens.is_some() {
            found.overhead_bytes = Some(used_bytes.saturating_sub(scene.buffer_bytes));
        }
        Ok(())
    }

    /// Evaluation, answers, checkpoint and merge, as far as there is time.
    fn rehearse_rest(
        &mut self,
        scene: &mut Scene<'_, L>,
        deadline: Instant,
        found: &mut Findings,
    ) -> Result<(), String> {
        let words = |e: Error| e.to_string();
        let timed = |f: &mut dyn FnMut() -> Result<(), String>| -> Result<f64, String> {
            let started = Instant::now();
            f()?;
            Ok(started.elapsed().as_secs_f64())
        };
        let left = || deadline.saturating_duration_since(Instant::now()).as_secs_f64();
        // A micro-batch's forward pass is no longer than the whole of it.
        let longest_s = found.timed.iter().map(|t| t.seconds).fold(0.0, f64::max);
        let mut forward_s = longest_s;
        if self.evaluates() && longest_s <= left() && !self.is_asked() {
            let all: Vec<usize> = (0..self.held_out.len()).collect();
            let groups = data::runs(self.held_out, &all, self.fitting.max_tokens());
            let batch = data::batch(self.held_out, groups[0]);
            forward_s = timed(&mut || self.learner.evaluate(&batch).map(drop).map_err(words))?;
            let n_tokens: usize = self.held_out.iter().map(|s| s.input_ids.len()).sum();
            found.evaluation_s = Some(forward_s * n_tokens as f64 / batch.n_tokens().max(1) as f64);
            // One forward pass for each token of an answer at most, and none as long as that of a whole batch.
            if self.settings.n_samples > 0 && forward_s * SAMPLE_TOKENS as f64 <= left() {
                found.answers_s = Some(timed(&mut || (self.answer)(self.learner).map(drop).map_err(words))?);
            }
        }
        if !self.is_asked() {
            let mut bytes = 0;
            let seconds = timed(&mut || {
                let held = Held::new();
                let adapter = self.learner.adapter(&held).map_err(words)?;
                let optimizer = self.learner.optimizer(&held).map_err(words)?;
                bytes = self.checkpoints.rehearse(&self.state, adapter, optimizer).map_err(words)?;
                Ok(())
            })?;
            found.checkpoint = Some((seconds, bytes));
        }
        if forward_s <= left() && !self.is_asked() {
            let mut share = 1.0;
            let seconds = timed(&mut || {
                share = (scene.merge)(self.learner)?;
                Ok(())
            })?;
            found.merge_s = Some(seconds / share.max(f64::MIN_POSITIVE)).filter(|s| s.is_finite());
        }
        // All that the plan lists was there by now, where answers were given too. What of it was freed may have gone back to the card,
        // so this is a lower bound.
        let had_all = found.longest_tokens.is_some() && (found.answers_s.is_some() || self.settings.n_samples == 0);
        if self.is_on_card() && had_all {
            let used_bytes = self.read_memory().used_bytes;
            // Where buffers were planned too large, the process itself still takes what it takes, whatever the next ones are.
            let least_bytes = self.memory.beside_pool_bytes().unwrap_or(0);
            let overhead_bytes = used_bytes.saturating_sub(self.learner.planned_bytes(&self.fitting)).max(least_bytes);
            found.overhead_bytes = Some(overhead_bytes).filter(|_| used_bytes > 0);
        }
        Ok(())
    }

    fn is_on_card(&self) -> bool {
        self.settings.train_on == TrainOn::Card
    }

    fn is_asked(&self) -> bool {
        interrupt::asked() || self.control.stop_asked()
    }

    fn evaluates(&self) -> bool {
        !self.held_out.is_empty()
    }

    fn time(&mut self, micro_batch: &[usize]) -> Result<TimedBatch, Error> {
        let batch = data::batch(self.train, micro_batch);
        let seconds = self.time_batch(&batch)?;
        Ok(TimedBatch { n_tokens: batch.n_tokens(), seconds })
    }

    fn time_batch(&mut self, batch: &Batch) -> Result<f64, Error> {
        let started = Instant::now();
        let dropout_seed = dropout_seed(self.settings.seed, 0, 0);
        let part = Part { n_supervised_step: batch.n_supervised().max(1), dropout_seed, first_row: 0 };
        self.learner.micro_batch(batch, part)?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// What the findings mean for the whole run.
    fn conclude(&self, scene: &Scene<'_, L>, pass: &Pass, found: Findings, took: Duration) -> Rehearsal {
        let (plan, s) = (scene.plan, self.settings);
        let (per_batch_s, per_token_s) = pace(&found.timed);
        let n_micro_batches = pass.micro_batches.len() as f64;
        let pass_s = per_batch_s * n_micro_batches + per_token_s * pass.n_tokens as f64;
        let step_s = pass_s / pass.n_steps as f64 + found.optimizer_s;
        let n_steps = s.n_steps as f64;
        let n_evaluations =
            if self.evaluates() { (1..=s.n_steps).filter(|&i| evaluation::is_due(i, s)).count() } else { 0 };
        let each_s = match found.evaluation_s {
            Some(seconds) => seconds + found.answers_s.unwrap_or(0.0),
            None => plan.time.evaluation_s / n_evaluations.max(1) as f64,
        };
        let evaluation_s = n_evaluations as f64 * each_s;
        let (checkpoint_s, checkpoint_bytes) = found.checkpoint.unwrap_or((0.0, plan.disk.checkpoint_bytes));
        let working_s = step_s * n_steps + evaluation_s;
        // As many as there can be: each evaluation may be the best so far.
        let by_steps = s.checkpoints.every_steps.filter(|&n| n > 0).map_or(0, |n| s.n_steps / n);
        let by_time = (working_s / s.checkpoints.every_seconds.max(1) as f64) as usize;
        let n_checkpoints = (n_evaluations + by_steps + by_time).clamp(1, s.n_steps.max(1));
        let buffer_bytes = self.learner.planned_bytes(&self.fitting);
        let measured = Expectation {
            tokens_per_s: pass.n_tokens as f64 / (step_s * pass.n_steps as f64),
            step_s,
            evaluation_s,
            total_s: working_s + n_checkpoints as f64 * checkpoint_s,
            memory_bytes: buffer_bytes + found.overhead_bytes.unwrap_or(self.overhead_bytes),
            checkpoint_bytes,
        };
        Rehearsal {
            time_ms: now_ms(),
            seconds: took.as_secs_f64(),
            predicted: Expectation {
                tokens_per_s: plan.time.tokens_per_s,
                step_s: plan.time.step_s,
                evaluation_s: plan.time.evaluation_s,
                total_s: plan.time.total_s,
                memory_bytes: plan.planned_bytes,
                checkpoint_bytes: plan.disk.checkpoint_bytes,
            },
            measured,
            timed: found.timed,
            longest_tokens: found.longest_tokens,
            optimizer_s: found.optimizer_s,
            evaluation_s: found.evaluation_s,
            answers_s: found.answers_s,
            checkpoint_s: found.checkpoint.map(|(seconds, _)| seconds),
            merge_s: found.merge_s,
            overhead_bytes: found.overhead_bytes,
        }
    }
}

/// Where the plan was wrong, in words.
fn surprises(rehearsal: &Rehearsal, budget_bytes: u64) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let Rehearsal { predicted, measured, .. } = rehearsal;
    let off = measured.total_s / predicted.total_s - 1.0;
    if off.is_finite() && off.abs() > TIME_OFF {
        let (code, than) = if off > 0.0 { ("rehearsal.slower", "more") } else { ("rehearsal.faster", "less") };
        let message = format!(
            "The rehearsal expects {}; the plan said {}: {:.0} % {than} time.",
            format::duration(measured.total_s),
            format::duration(predicted.total_s),
            100.0 * off.abs(),
        );
        found.push((code, message));
    }
    let (has, said) = (measured.memory_bytes, predicted.memory_bytes);
    let more = has.saturating_sub(said);
    // Where it does not fit, the run takes a rung or ends: `Training::keep_within`.
    if has <= budget_bytes && more > MEMORY_OFF_BYTES && more as f64 > MEMORY_OFF * said as f64 {
        let message = format!(
            "The rehearsal took {}, {} more than planned; it fits all the same. The next plan counts it.",
            format::bytes(has),
            format::bytes(more),
        );
        found.push(("rehearsal.more_memory", message));
    }
    found
}

/// Keeps what a rehearsal measured for later plans.
pub(super) fn remember(
    folder: &RunFolder,
    record: &RunRecord,
    source: &ModelSource,
    rehearsal: &Rehearsal,
) -> Result<(), hardware::Error> {
    let Some(device) = record.device.clone() else { return Ok(()) };
    let model = model_key(source.shape());
    let n_tokens: usize = rehearsal.timed.iter().map(|t| t.n_tokens).sum();
    let micro_batch_tokens = n_tokens / rehearsal.timed.len().max(1);
    let rate = rate(record, model.clone(), micro_batch_tokens, rehearsal.measured.tokens_per_s, rehearsal.time_ms);
    hardware::record(&rates(folder), |all| {
        if let Some(rate) = rate {
            all.add_rate(rate);
        }
        if let Some(bytes) = rehearsal.overhead_bytes {
            all.add_overhead(MeasuredOverhead { device, model, bytes, time_ms: rehearsal.time_ms });
        }
    })
}

fn rates(folder: &RunFolder) -> std::path::PathBuf {
    folder.path().with_file_name(RATES)
}

fn rate(
    record: &RunRecord,
    model: String,
    micro_batch_tokens: usize,
    tokens_per_s: f64,
    time_ms: u64,
) -> Option<MeasuredRate> {
    let s = &record.resolved;
    // Rates are converted by what is computed; what waits for the bus beside that would be taken for a slow card.
    if s.is_stretched() {
        return None;
    }
    Some(MeasuredRate {
        device: record.device.clone()?,
        model,
        compute: Some(s.compute),
        base: s.base,
        recompute: s.recompute,
        n_layers_eased: s.n_layers_eased,
        n_layers_cached: s.n_layers_cached,
        rank: s.lora.rank,
        targets: s.lora.targets.clone(),
        length: s.length,
        micro_batch: s.micro_batch,
        micro_batch_tokens,
        tokens_per_s,
        time_ms,
    })
}

/// Steps of one process from which its speed is taken, after as many to warm up.
const RATE_STEPS: usize = 5;

/// Keeps how fast this computer trained, and how that compares with what was predicted, for the plans of later runs. A run of
/// fewer than ten steps in its last process says nothing, nor does one in which memory ran out.
///
/// # Errors
/// The run's files cannot be read, or the measurements not written; no run is worse for it.
pub fn remember_outcome(folder: &RunFolder) -> Result<(), Error> {
    let record = folder.record()?;
    let history = folder.history()?;
    let (mut steps, mut peak_bytes) = (Vec::new(), 0);
    for line in history.lines() {
        match line.event {
            TrainEvent::Started { .. } => (steps, peak_bytes) = (Vec::new(), 0),
            TrainEvent::Step { n_tokens, step_ms, memory, .. } => {
                steps.push((n_tokens, step_ms / 1000.0));
                peak_bytes = memory.peak_bytes.max(peak_bytes);
            }
            // From there on it was not computed as it was planned.
            TrainEvent::Rung { .. } => return Ok(()),
            _ => {}
        }
    }
    let (Some(device), true) = (record.device.clone(), steps.len() >= 2 * RATE_STEPS) else { return Ok(()) };
    let sum = |steps: &[(usize, f64)]| steps.iter().fold((0, 0.0), |(n, t), (tokens, s)| (n + tokens, t + s));
    let (warm_tokens, warm_s) = sum(&steps[RATE_STEPS..]);
    let n_micro_batches = (steps.len() - RATE_STEPS) * record.resolved.accumulation;
    let model = model_key(ModelSource::open(&record.given.model)?.shape());
    let time_ms = history.lines().last().map_or(0, |line| line.time_ms);
    let micro_batch_tokens = warm_tokens / n_micro_batches.max(1);
    let rate = rate(&record, model.clone(), micro_batch_tokens, warm_tokens as f64 / warm_s, time_ms);
    let plan = folder.plan()?;
    let (n_tokens, measured_s) = sum(&steps);
    let of = |tokens_per_s: f64| n_tokens as f64 / tokens_per_s;
    let prediction = Prediction {
        device,
        model,
        run_id: folder.id().into(),
        basis: plan.time.basis,
        n_steps: steps.len(),
        predicted_s: of(plan.time.tokens_per_s),
        rehearsed_s: folder.rehearsal().ok().flatten().map(|rehearsal| of(rehearsal.measured.tokens_per_s)),
        measured_s,
        predicted_bytes: plan.planned_bytes,
        measured_bytes: peak_bytes,
        time_ms,
    };
    let written = hardware::record(&rates(folder), |all| {
        if let Some(rate) = rate {
            all.add_rate(rate);
        }
        all.add_prediction(prediction);
    });
    Ok(written?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(points: &[(usize, f64)]) -> Vec<TimedBatch> {
        points.iter().map(|&(n_tokens, seconds)| TimedBatch { n_tokens, seconds }).collect()
    }

    #[test]
    fn the_time_of_a_micro_batch_is_a_line_over_its_tokens() {
        let (start, slope) = pace(&timed(&[(100, 1.5), (200, 2.5), (300, 3.5)]));
        assert!((start - 0.5).abs() < 1e-9 && (slope - 0.01).abs() < 1e-9);
        // One length says nothing of a start, and what grows faster than its tokens has none.
        assert_eq!(pace(&timed(&[(100, 2.0), (100, 4.0)])), (0.0, 0.03));
        let (start, slope) = pace(&timed(&[(100, 1.0), (200, 4.0)]));
        assert_eq!((start, slope), (0.0, 5.0 / 300.0));
        // Noise that makes the longer ones faster.
        assert_eq!(pace(&timed(&[(100, 2.0), (200, 1.0)])), (0.0, 0.01));
    }

    fn rehearsal(total_s: f64, memory_bytes: u64) -> Rehearsal {
        let predicted = Expectation { total_s: 1000.0, memory_bytes: 4 << 30, ..Expectation::default() };
        Rehearsal {
            time_ms: 0,
            seconds: 9.0,
            predicted,
            measured: Expectation { total_s, memory_bytes, ..predicted },
            timed: Vec::new(),
            longest_tokens: None,
            optimizer_s: 0.0,
            evaluation_s: None,
            answers_s: None,
            checkpoint_s: None,
            merge_s: None,
            overhead_bytes: None,
        }
    }

    #[test]
    fn a_plan_that_was_wrong_is_said_before_the_run_and_one_that_was_right_is_not() {
        let codes = |total_s: f64, memory_bytes: u64| -> Vec<&str> {
            let found = surprises(&rehearsal(total_s, memory_bytes), 5 << 30);
            found.into_iter().map(|(code, _)| code).collect()
        };
        assert!(codes(1140.0, 4 << 30).is_empty());
        assert!(codes(860.0, 3 << 30).is_empty(), "less memory is no surprise");
        assert_eq!(codes(1160.0, 4 << 30), ["rehearsal.slower"]);
        assert_eq!(codes(500.0, (4 << 30) + (200 << 20)), ["rehearsal.faster", "rehearsal.more_memory"]);
        assert!(codes(1000.0, 6 << 30).is_empty(), "what is done about it is said instead");
        let words = &surprises(&rehearsal(1500.0, 6 << 30), 5 << 30)[0].1;
        assert_eq!(words, "The rehearsal expects 25 min 00 s; the plan said 16 min 40 s: 50 % more time.");
    }
}
