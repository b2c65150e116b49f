//! The search: what a config leaves open is tried, what fits and is fastest is proposed.

use super::beside::{self, Sums};
use super::candidates::Candidate;
use super::cost::{self, Flops, Load, Mix, Overhead, TimeEstimate};
use super::lengths::{Kept, Lengths};
use super::{Budget, DataUse, Error, PlanItem};
use crate::config::{BaseFormat, ComputeDtype, OptimizerKind, OverLength, Recompute, RunConfig, Settings};
use crate::data::DataStats;
use crate::hardware::{Hardware, MeasuredRate};
use crate::model::{ModelShape, stream};

/// Sequences per optimizer step unless there are few of them.
const EFFECTIVE_BATCH: usize = 16;
/// Steps a pass should have before the batch is made smaller for it.
const MIN_STEPS_PER_PASS: usize = 10;
/// Passes over the data.
pub const EPOCHS: f64 = 3.0;
/// Share of the steps that warm up.
const WARMUP_SHARE: f64 = 0.03;
/// Evaluations in a run.
const N_EVALUATIONS: usize = 10;
/// Lengths are multiples of this.
pub(super) const LENGTH_STEP: usize = 64;
/// A proposed length takes 99 % of the examples whole. Where memory is short it may take these shares, before the plan
/// says that it does not fit.
const LESS_COVER: [f64; 3] = [0.97, 0.95, 0.9];
/// The longest example is taken whole where that costs at most this: times the length that covers 99 %, share of the
/// budget, share of the speed.
const CHEAP_LENGTH: usize = 2;
const CHEAP_BYTES_SHARE: f64 = 0.1;
const CHEAP_SPEED: f64 = 0.98;
/// Packs are filled to about this.
const PACK_FILL: f64 = 0.97;
/// Supervised rows that go through the head at once; fewer where memory is short.
pub const HEAD_ROWS: usize = 256;
const LEAST_HEAD_ROWS: usize = 64;
/// The optimizer state is kept in 32 bit where it is less than this share of the device's memory: what is learned should not depend on
/// what other programs hold at the moment.
const SMALL_STATE_SHARE: f64 = 0.01;
/// Faster by less than this is not worth more bytes.
const TIE: f64 = 0.01;
/// More sequences at once gain nothing.
const MAX_PROPOSED_MICRO_BATCH: usize = 64;

/// What the desktop holds of a card nobody looked at.
const ASSUMED_DESKTOP_BYTES: u64 = 730 << 20;

/// What there is to plan for.
#[derive(Clone)]
pub(super) struct Task<'a> {
    pub(super) shape: &'a ModelShape,
    pub(super) hardware: &'a Hardware,
    pub(super) lengths: Lengths,
    pub(super) sums: &'a Sums,
    overhead: Overhead,
    /// Measured with this model on this hardware.
    rates: Vec<&'a MeasuredRate>,
}

/// Settings, and what they cost.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) settings: Settings,
    pub(super) planned_bytes: u64,
    pub(super) budget: Budget,
    pub(super) time: TimeEstimate,
    pub(super) data: DataUse,
    /// Mean tokens of an example.
    pub(super) mean_tokens: f64,
}

impl Proposal {
    pub(super) fn fits(&self) -> bool {
        self.planned_bytes <= self.budget.budget_bytes
    }
}

/// Everything but what is searched at one length.
#[derive(Clone)]
pub(super) struct Frame<'c> {
    pub(super) config: &'c RunConfig,
    pub(super) budget: &'c Budget,
    length: usize,
    packing: bool,
    kept: Kept,
    data: DataUse,
    optimizer: OptimizerKind,
    n_steps: usize,
    epochs: f64,
    /// Sequences that the steps take, one that comes again counted again.
    n_seen: f64,
    n_samples: usize,
    /// (micro-batch, accumulation), all of the same product, the smallest micro-batch first.
    pub(super) splits: Vec<(usize, usize)>,
}

impl<'a> Task<'a> {
    /// `sums` are those of this shape.
    pub(super) fn new(shape: &'a ModelShape, data: &DataStats, hardware: &'a Hardware, sums: &'a Sums) -> Self {
        Self::of(shape, hardware, Lengths::new(data), sums)
    }

    fn of(shape: &'a ModelShape, hardware: &'a Hardware, lengths: Lengths, sums: &'a Sums) -> Self {
        let (overhead, rates) = (Overhead::measured(hardware, shape), cost::measured(hardware, shape));
        Task { shape, hardware, lengths, sums, overhead, rates }
    }

    /// The same examples for another model.
    pub(super) fn with_model<'b>(&self, shape: &'b ModelShape, sums: &'b Sums) -> Task<'b>
    where
        'a: 'b,
    {
        Task::of(shape, self.hardware, self.lengths.clone(), sums)
    }

    /// The same on another computer.
    pub(super) fn on<'b>(&self, hardware: &'b Hardware) -> Task<'b>
    where
        'a: 'b,
    {
        Task::of(self.shape, hardware, self.lengths.clone(), self.sums)
    }

    /// The proposal for what `config` leaves open.
    ///
    /// # Errors
    /// Only for data of which nothing is left.
    pub(super) fn propose(&self, config: &RunConfig) -> Result<Proposal, Error> {
        let budget = self.budget(config);
        let covering = self.first_length(config);
        let proposal = self.propose_at(config, &budget, covering)?;
        if !proposal.fits() {
            for length in self.shorter_lengths(config) {
                if self.fits_at(config, &budget, length)? {
                    return self.propose_at(config, &budget, length);
                }
            }
            return Ok(proposal);
        }
        let whole = self.rounded(self.lengths.max);
        if config.data.length.is_none() && whole > covering && whole <= CHEAP_LENGTH * covering {
            let all = self.propose_at(config, &budget, whole)?;
            let more = all.planned_bytes.saturating_sub(proposal.planned_bytes) as f64;
            if all.fits()
                && all.settings.base == proposal.settings.base
                && more <= CHEAP_BYTES_SHARE * budget.budget_bytes as f64
                && all.time.tokens_per_s >= CHEAP_SPEED * proposal.time.tokens_per_s
            {
                return Ok(all);
            }
        }
        Ok(proposal)
    }

    /// Whether [`Self::propose`] has something that fits, without the search for the fastest.
    pub(super) fn fits(&self, config: &RunConfig) -> bool {
        let budget = self.budget(config);
        let lengths = std::iter::once(self.first_length(config)).chain(self.shorter_lengths(config));
        for length in lengths {
            match self.fits_at(config, &budget, length) {
                Ok(false) => {}
                found => return found.is_ok(),
            }
        }
        false
    }

    /// The same at one length.
    fn fits_at(&self, config: &RunConfig, budget: &Budget, length: usize) -> Result<bool, Error> {
        let mut frame = self.frame(config, budget, length)?;
        (frame.n_samples, frame.optimizer) = (0, frame.least_optimizer());
        Ok(self.bases(config).into_iter().any(|base| self.has_fit(&frame, base)))
    }

    /// The length that is asked for, or the one that covers 99 of 100 examples.
    fn first_length(&self, config: &RunConfig) -> usize {
        config.data.length.unwrap_or_else(|| self.rounded(self.lengths.covering_99()))
    }

    /// What is tried where it does not fit.
    fn shorter_lengths(&self, config: &RunConfig) -> impl Iterator<Item = usize> {
        let shares = if config.data.length.is_none() { &LESS_COVER[..] } else { &[] };
        shares.iter().map(|&share| self.rounded(self.lengths.covering(share)))
    }

    /// `config` with those of length and base pinned that give more tokens per second than the proposal, if any do.
    /// Shorter by leaving examples out is not faster.
    pub(super) fn fastest(&self, config: &RunConfig, proposal: &Proposal) -> RunConfig {
        if !proposal.fits() {
            return config.clone();
        }
        let mut lengths = match config.data.length {
            Some(length) => vec![length],
            None => vec![self.rounded(self.lengths.max), self.rounded(self.lengths.covering_99())],
        };
        lengths.dedup();
        let bases = self.bases(config);
        let mut best = (proposal.time.tokens_per_s, config.clone());
        for &length in &lengths {
            for &base in &bases {
                let mut pinned = config.clone();
                (pinned.data.length, pinned.base) = (Some(length), Some(base));
                let Ok(other) = self.propose(&pinned) else { continue };
                let tokens_per_s = other.time.tokens_per_s;
                if other.fits() && tokens_per_s > best.0 * (1.0 + TIE) {
                    best = (tokens_per_s, pinned);
                }
            }
        }
        best.1
    }

    /// Element type of the step.
    pub(super) fn compute(&self, config: &RunConfig) -> ComputeDtype {
        config.compute.unwrap_or(self.hardware.compute_dtype())
    }

    /// Forms of the base to try: the exact one first, NF4 is for where it does not fit.
    fn bases(&self, config: &RunConfig) -> Vec<BaseFormat> {
        match config.base {
            Some(base) => vec![base],
            None if asks_for_nf4(config) => vec![BaseFormat::Nf4],
            None => vec![exact_base(self.compute(config)), BaseFormat::Nf4],
        }
    }

    /// The length at which no example is cut, unless the model is shorter than that.
    pub(super) fn length_of_all(&self) -> Option<usize> {
        let length = self.rounded(self.lengths.max);
        (length >= self.lengths.max).then_some(length)
    }

    /// The lines of [`Task::bytes`].
    pub(super) fn items(&self, settings: &Settings) -> Vec<PlanItem> {
        beside::with_overhead(beside::items(self.shape, settings), self.overhead_bytes(settings))
    }

    /// Planned peak.
    pub(super) fn bytes(&self, settings: &Settings) -> u64 {
        let assumed = beside::assumed_overhead_bytes(settings.train_on);
        (self.sums.of(self.shape, settings).planned_bytes - assumed).saturating_add(self.overhead_bytes(settings))
    }

    /// What the process takes beside all that is listed: measured where a run has measured it, else assumed.
    fn overhead_bytes(&self, settings: &Settings) -> u64 {
        let assumed = beside::assumed_overhead_bytes(settings.train_on);
        self.overhead.bytes(assumed + beside::scratch_bytes(settings, self.hardware.processor.n_threads))
    }

    pub(super) fn budget(&self, config: &RunConfig) -> Budget {
        let (device, total_bytes, free_bytes, margin) = match self.hardware.training_card() {
            Some(card) => {
                let free = card.memory_free_bytes.unwrap_or(card.memory_bytes.saturating_sub(ASSUMED_DESKTOP_BYTES));
                // A desktop grows by a window or two while a run is on.
                (card.name.clone(), card.memory_bytes, free, (card.memory_bytes / 40).clamp(256 << 20, 512 << 20))
            }
            None => {
                let free = self.hardware.memory_available_bytes;
                // The system's own growth, and what a process needs beside its buffers.
                ("system memory".into(), self.hardware.memory_total_bytes, free, (free / 20).clamp(256 << 20, 2 << 30))
            }
        };
        let free_bytes = free_bytes.min(total_bytes);
        let margin_bytes = margin.min(free_bytes);
        let free_for_run = free_bytes - margin_bytes;
        let limit = config.memory_limit_bytes.unwrap_or(u64::MAX);
        Budget {
            device,
            total_bytes,
            others_bytes: total_bytes - free_bytes,
            margin_bytes,
            budget_bytes: free_for_run.min(limit),
            limited_by_hand: limit < free_for_run,
        }
    }

    /// To the next multiple of [`LENGTH_STEP`], within the model.
    pub(super) fn rounded(&self, tokens: usize) -> usize {
        tokens.max(2).next_multiple_of(LENGTH_STEP).min(self.shape.max_positions.max(2))
    }

    /// Where nothing fits, held-out prompts stay unanswered at evaluations, then the optimizer's state is held in 8 bit, before the plan
    /// says so.
    fn propose_at(&self, config: &RunConfig, budget: &Budget, length: usize) -> Result<Proposal, Error> {
        let mut frame = self.frame(config, budget, length)?;
        let bases = self.bases(config);
        let fitting = |frame: &Frame| -> Vec<BaseFormat> {
            bases.iter().copied().filter(|&base| self.has_fit(frame, base)).collect()
        };
        let mut found = fitting(&frame);
        if found.is_empty() && frame.n_samples > 0 {
            frame.n_samples = 0;
            found = fitting(&frame);
        }
        if found.is_empty() && frame.optimizer != frame.least_optimizer() {
            frame.optimizer = frame.least_optimizer();
            found = fitting(&frame);
        }
        // Fewer rows at the head are all but free, another base is not.
        for &base in &found {
            for head_rows in [HEAD_ROWS, LEAST_HEAD_ROWS] {
                let mut candidates = self.candidates(&frame, base, &modes(config), &frame.splits, head_rows);
                candidates.retain(|candidate| frame.holds(candidate));
                if let Some(best) = self.fastest_of(&frame, candidates) {
                    return Ok(self.proposal(&frame, self.caching(&frame, best)));
                }
            }
        }
        let least = bases.iter().filter_map(|&base| self.least(&frame, base)).min_by_key(|least| least.planned_bytes);
        // Never nothing: there is a base.
        least.map(|least| self.proposal(&frame, least)).ok_or(Error::NoExamples)
    }

    /// What takes least: bytes grow with the micro-batch, the rows at the head and what is kept, so the rest is not tried.
    fn least(&self, frame: &Frame, base: BaseFormat) -> Option<Candidate> {
        let candidates = self.candidates(frame, base, &least_mode(frame.config), &frame.splits[..1], LEAST_HEAD_ROWS);
        candidates.into_iter().min_by_key(|candidate| candidate.planned_bytes)
    }

    /// Whether [`Self::least`] fits. Most often it does not even with all moved off the card that can be, or there is no room in system
    /// memory for what would have to be.
    fn has_fit(&self, frame: &Frame, base: BaseFormat) -> bool {
        let budget_bytes = frame.budget.budget_bytes;
        let [mode] = least_mode(frame.config);
        let fixed = self.fixed(frame, base, mode, frame.splits[0], LEAST_HEAD_ROWS);
        let streams = self.streams(frame.config, base) && self.shape.n_layers > stream::N_SLOTS;
        let n_layers_streamed = if streams { self.shape.n_layers } else { fixed.n_layers_streamed };
        let moved = self.moves(frame.config, &fixed).pop().unwrap_or_else(|| fixed.clone());
        let on_card = Settings { mlp_rows: moved.mlp_rows, ..fixed };
        if self.bytes(&Settings { n_layers_streamed, ..moved }) > budget_bytes {
            return false;
        }
        // A byte that leaves the card takes at least one of system memory.
        let room = self.pinned_bytes().saturating_sub(self.sums.of(self.shape, &on_card).host_bytes);
        self.bytes(&on_card).saturating_sub(room) <= budget_bytes
            && self.least(frame, base).is_some_and(|least| frame.holds(&least))
    }

    fn proposal(&self, frame: &Frame, candidate: Candidate) -> Proposal {
        let Candidate { settings, planned_bytes } = candidate;
        let mut time = self.time(frame, &settings);
        time.basis_words = cost::basis_words(time.basis, self.hardware);
        time.plus_minus = cost::plus_minus(self.hardware, time.basis);
        let mean_tokens = frame.kept.mean();
        Proposal { settings, planned_bytes, budget: frame.budget.clone(), time, data: frame.data, mean_tokens }
    }

    /// Fastest; of those within [`TIE`] of it the one with fewest bytes, then the first tried.
    fn fastest_of(&self, frame: &Frame, candidates: Vec<Candidate>) -> Option<Candidate> {
        let speed = |candidate: &Candidate| self.time(frame, &candidate.settings).tokens_per_s;
        let speeds: Vec<f64> = candidates.iter().map(speed).collect();
        let most = speeds.iter().copied().fold(0.0, f64::max);
        let near = candidates.into_iter().zip(speeds).filter(|(_, speed)| *speed >= most * (1.0 - TIE));
        near.map(|(candidate, _)| candidate).min_by_key(|candidate| candidate.planned_bytes)
    }

    /// `best` with as many layers' weights kept dequantised as its memory has room for, where that is worth it.
    fn caching(&self, frame: &Frame, best: Candidate) -> Candidate {
        if frame.config.n_layers_cached.is_some() || best.settings.base != BaseFormat::Nf4 {
            return best;
        }
        let with = |n_layers_cached| {
            let settings = Settings { n_layers_cached, ..best.settings.clone() };
            Candidate { planned_bytes: self.bytes(&settings), settings }
        };
        let layer_bytes = with(1).planned_bytes.saturating_sub(best.planned_bytes).max(1);
        let n = frame.budget.budget_bytes.saturating_sub(best.planned_bytes) / layer_bytes;
        // Streamed layers are dequantised from where they come to.
        let most = self.shape.n_layers - best.settings.n_layers_streamed.min(self.shape.n_layers);
        let caching = with(usize::try_from(n).map_or(most, |n| n.min(most)));
        let speed = |candidate: &Candidate| self.time(frame, &candidate.settings).tokens_per_s;
        let is_worth_it = speed(&caching) > speed(&best) * (1.0 + TIE);
        if is_worth_it && frame.holds(&caching) { caching } else { best }
    }

    fn frame<'c>(&self, config: &'c RunConfig, budget: &'c Budget, length: usize) -> Result<Frame<'c>, Error> {
        let kept = self.lengths.kept(length, config.data.over_length);
        if kept.is_nothing() {
            return Err(Error::AllTooLong {
                n_examples: self.lengths.n_examples,
                length,
                shortest: self.lengths.shortest(),
            });
        }
        let n_kept = kept.n_examples.round().max(1.0);
        // As `data::split` does: something is held out of two examples or more, and something is left.
        let holds_out = config.data.evaluation_path.is_none() && config.evaluation.fraction > 0.0 && n_kept >= 2.0;
        let n_held_out =
            if holds_out { (n_kept * config.evaluation.fraction).round().clamp(1.0, n_kept - 1.0) } else { 0.0 };
        let n_train = n_kept - n_held_out;
        let mean = kept.mean();
        let packing = config.data.packing.unwrap_or(mean < length as f64 / 2.0);
        let n_sequences =
            if packing { (mean * n_train / (length as f64 * PACK_FILL)).ceil().max(1.0) } else { n_train };
        let splits = splits(config, n_sequences as usize);
        let effective = splits[0].0 as f64 * splits[0].1 as f64;
        // Every pass ends with a step of what is left.
        let steps_of_pass = (n_sequences / effective).ceil();
        let asked = config.epochs.unwrap_or(EPOCHS);
        let in_asked = (asked.floor() * steps_of_pass + (asked.fract() * steps_of_pass).ceil()).max(1.0);
        let n_steps = config.max_steps.unwrap_or(in_asked as usize);
        let passes = (n_steps as f64 / steps_of_pass).floor();
        let in_last_pass = (n_steps as f64 - passes * steps_of_pass) * effective;
        let n_seen = passes * n_sequences + in_last_pass.min(n_sequences);
        let epochs = if config.max_steps.is_some() { n_seen / n_sequences } else { asked };
        let n = cost::lora_elements(self.shape, &config.lora);
        let is_small = is_small_state(n, budget);
        let proposed = if is_small { OptimizerKind::AdamW32 } else { OptimizerKind::AdamW8 };
        let optimizer = config.optimizer.kind.unwrap_or(proposed);
        let data = DataUse {
            n_train: n_train as usize,
            n_held_out: n_held_out as usize,
            n_over_length: kept.n_over,
            max_tokens: self.lengths.max,
            n_sequences: n_sequences as usize,
        };
        let n_samples = if data.is_evaluated(config) { config.evaluation.n_samples } else { 0 };
        Ok(Frame { config, budget, length, packing, kept, data, optimizer, n_steps, epochs, n_seen, n_samples, splits })
    }

    /// Without what [`Self::proposal`] says of the chosen one only.
    fn time(&self, frame: &Frame, settings: &Settings) -> TimeEstimate {
        let mean = frame.kept.mean();
        let sequence_tokens = mean * frame.data.n_train as f64 / frame.data.n_sequences as f64;
        let (attended, learned) = (frame.kept.attended, self.lengths.learned_share);
        let recompute = Mix::of(settings, self.shape.n_layers);
        let flops = Flops::per_token(self.shape, &settings.lora, recompute, attended, learned);
        let tokens = sequence_tokens * settings.micro_batch as f64;
        let mlp_parts = settings.mlp_rows.map_or(1.0, |rows| (tokens / rows as f64).max(1.0));
        let cached = settings.n_layers_cached.min(self.shape.n_layers) as f64 / self.shape.n_layers as f64;
        let load = Load { base: settings.base, recompute, tokens, flops, mlp_parts, cached };
        let mut speed = cost::speed(self.shape, self.hardware, &self.rates, settings, &load, attended, learned);
        let waiting_s = cost::waiting_s(self.shape, self.hardware, settings, &load, tokens / speed.tokens_per_s);
        speed.tokens_per_s = tokens / (tokens / speed.tokens_per_s + waiting_s);
        let step_tokens = tokens * settings.accumulation as f64;
        let step_s = step_tokens / speed.tokens_per_s;
        let n_evaluations =
            if frame.evaluates() { settings.n_steps.div_ceil(settings.evaluate_every_steps) } else { 0 };
        let n_held_out = match frame.config.data.evaluation_path {
            None => frame.data.n_held_out as f64,
            // Its size is not known here: about as many as would be held out.
            Some(_) => 0.05 * frame.data.n_train as f64,
        };
        let forward_share = flops.forward / flops.total();
        let evaluation_s = n_evaluations as f64 * n_held_out * mean * forward_share / speed.tokens_per_s;
        let n_tokens = sequence_tokens * frame.n_seen;
        TimeEstimate {
            tokens_per_s: speed.tokens_per_s,
            basis: speed.basis,
            basis_words: String::new(),
            plus_minus: 0.0,
            step_s,
            evaluation_s,
            total_s: n_tokens / speed.tokens_per_s + evaluation_s,
            n_steps: settings.n_steps,
            epochs: frame.epochs,
            n_tokens: n_tokens.round() as u64,
            n_tokens_per_step: step_tokens.round() as u64,
        }
    }
}

impl Frame<'_> {
    fn evaluates(&self) -> bool {
        self.data.is_evaluated(self.config)
    }

    /// Of what the config allows, the state that takes least.
    fn least_optimizer(&self) -> OptimizerKind {
        self.config.optimizer.kind.unwrap_or(OptimizerKind::AdamW8)
    }

    fn holds(&self, candidate: &Candidate) -> bool {
        candidate.planned_bytes <= self.budget.budget_bytes
    }
}

/// To try, the one that keeps most first.
fn modes(config: &RunConfig) -> Vec<Recompute> {
    config.recompute.map_or(vec![Recompute::N, Recompute::C1, Recompute::C0], |mode| vec![mode])
}

/// Of these the one that keeps least.
fn least_mode(config: &RunConfig) -> [Recompute; 1] {
    [config.recompute.unwrap_or(Recompute::C0)]
}

/// All ways to make up the effective batch that `config` allows; one product, never empty.
fn splits(config: &RunConfig, n_sequences: usize) -> Vec<(usize, usize)> {
    let proposed = || {
        let mut effective = EFFECTIVE_BATCH;
        while effective > 1 && n_sequences / effective < MIN_STEPS_PER_PASS {
            effective /= 2;
        }
        effective
    };
    let effective = config.effective_batch;
    match (config.micro_batch, config.accumulation) {
        (Some(micro_batch), Some(accumulation)) => vec![(micro_batch, accumulation)],
        (Some(micro_batch), None) => {
            vec![(micro_batch, (effective.unwrap_or_else(proposed) / micro_batch).max(1))]
        }
        (None, Some(accumulation)) => {
            vec![((effective.unwrap_or_else(proposed) / accumulation).max(1), accumulation)]
        }
        (None, None) => {
            let effective = effective.unwrap_or_else(proposed);
            let most = effective.min(MAX_PROPOSED_MICRO_BATCH);
            (1..=most).filter(|m| effective % m == 0).map(|m| (m, effective / m)).collect()
        }
    }
}

pub(super) fn settings(frame: &Frame, (micro_batch, accumulation): (usize, usize), head_rows: usize) -> Settings {
    let config = frame.config;
    let (o, n_steps) = (&config.optimizer, frame.n_steps);
    Settings {
        lora: config.lora.clone(),
        length: frame.length,
        over_length: config.data.over_length,
        packing: frame.packing,
        micro_batch,
        accumulation,
        head_rows: head_rows.min(micro_batch * frame.length).max(1),
        optimizer: frame.optimizer,
        learning_rate: o.learning_rate,
        beta1: o.beta1,
        beta2: o.beta2,
        epsilon: o.epsilon,
        weight_decay: o.weight_decay,
        max_grad_norm: o.max_grad_norm,
        schedule: o.schedule,
        warmup_steps: o.warmup_steps.unwrap_or_else(|| proposed_warmup(n_steps)),
        n_steps,
        evaluate_every_steps: config
            .evaluation
            .every_steps
            .unwrap_or_else(|| if frame.evaluates() { (n_steps / N_EVALUATIONS).max(1) } else { n_steps }),
        patience: config.evaluation.patience,
        n_samples: frame.n_samples,
        checkpoints: config.checkpoints.clone(),
        rehearsal: config.rehearsal,
        governor: config.governor.clone(),
        seed: config.seed,
        // Where and in which form it is computed: the candidate's.
        ..Settings::default()
    }
}

/// 3 % of the steps, at least one, and none where there is only one step, which would then learn at a rate of 0.
fn proposed_warmup(n_steps: usize) -> usize {
    if n_steps < 2 { 0 } else { ((n_steps as f64 * WARMUP_SHARE).round() as usize).max(1) }
}

/// The base as the step computes with it, not quantised.
pub(super) fn exact_base(compute: ComputeDtype) -> BaseFormat {
    match compute {
        ComputeDtype::F32 => BaseFormat::F32,
        ComputeDtype::Bf16 | ComputeDtype::F16 => BaseFormat::Half,
    }
}

/// Whether 32-bit state of `n` trained elements is little enough of the device's memory.
pub(super) fn is_small_state(n: u64, budget: &Budget) -> bool {
    let state_bytes = cost::optimizer_bytes(n, OptimizerKind::AdamW32) as f64;
    state_bytes < SMALL_STATE_SHARE * budget.total_bytes as f64
}

/// Whether what else is fixed goes with NF4 alone: only quantised weights are streamed, or kept dequantised.
pub(super) fn asks_for_nf4(config: &RunConfig) -> bool {
    config.n_layers_streamed.max(config.n_layers_cached).is_some_and(|n| n > 0)
}

/// Whether an example beyond the length is cut rather than left out.
pub(super) fn cuts(config: &RunConfig) -> bool {
    config.data.over_length == OverLength::Truncate
}
