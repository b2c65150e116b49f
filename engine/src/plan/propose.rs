//! The search: what a config leaves open is tried, what fits and is fastest is proposed.

use super::beside::{self, Sums};
use super::cost::{self, Flops, Load, Mix, TimeEstimate};
use super::lengths::{Kept, Lengths};
use super::{Budget, DataUse, Error, PlanItem};
use crate::config::{BaseFormat, ComputeDtype, OptimizerKind, OverLength, Recompute, RunConfig, Settings};
use crate::data::DataStats;
use crate::hardware::{Hardware, TrainOn};
use crate::model::ModelShape;

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
/// The optimizer state is kept in 32 bit where it is less than this share of the budget.
const SMALL_STATE_SHARE: f64 = 0.01;
/// Faster by less than this is not worth more bytes.
const TIE: f64 = 0.01;
/// More sequences at once gain nothing.
const MAX_PROPOSED_MICRO_BATCH: usize = 64;
/// Rows of an MLP's parts where memory is short: every part dequantises the weights anew, so the larger the better.
const MLP_ROWS: [usize; 2] = [4096, 1024];
/// Of the system memory that is free, what a run may pin for inputs and weights that wait there.
const PINNED_SHARE: f64 = 0.5;

/// What the desktop holds of a card nobody looked at.
const ASSUMED_DESKTOP_BYTES: u64 = 730 << 20;

/// How many layers' weights wait in system memory, in the search.
#[derive(Clone, Copy, PartialEq)]
enum Streaming {
    AsGiven,
    AsNeeded,
    All,
}

/// What there is to plan for.
pub(super) struct Task<'a> {
    pub(super) shape: &'a ModelShape,
    pub(super) hardware: &'a Hardware,
    pub(super) lengths: Lengths,
    sums: &'a Sums,
    /// What the process takes beside all that is listed: measured where a run has measured it, else assumed.
    overhead_bytes: u64,
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
struct Frame {
    length: usize,
    packing: bool,
    kept: Kept,
    data: DataUse,
    optimizer: OptimizerKind,
    n_steps: usize,
    epochs: f64,
    /// (micro-batch, accumulation), all of the same product, the smallest micro-batch first.
    splits: Vec<(usize, usize)>,
}

impl<'a> Task<'a> {
    /// `sums` are those of this shape.
    pub(super) fn new(shape: &'a ModelShape, data: &DataStats, hardware: &'a Hardware, sums: &'a Sums) -> Self {
        Self::of(shape, hardware, Lengths::new(data), sums)
    }

    fn of(shape: &'a ModelShape, hardware: &'a Hardware, lengths: Lengths, sums: &'a Sums) -> Self {
        let assumed = beside::assumed_overhead_bytes(hardware.train_on);
        let overhead_bytes = cost::overhead_bytes(hardware, shape, assumed);
        Task { shape, hardware, lengths, sums, overhead_bytes }
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
        if let Some(length) = config.data.length {
            return self.propose_at(config, &budget, length);
        }
        let covering = self.rounded(self.lengths.covering_99());
        let whole = self.rounded(self.lengths.max);
        let proposal = self.propose_at(config, &budget, covering)?;
        if !proposal.fits() {
            for share in LESS_COVER {
                let shorter = self.propose_at(config, &budget, self.rounded(self.lengths.covering(share)))?;
                if shorter.fits() {
                    return Ok(shorter);
                }
            }
            return Ok(proposal);
        }
        if whole > covering && whole <= CHEAP_LENGTH * covering {
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

    /// `config` with those of length and base pinned that give more tokens per second than the proposal, if any do.
    /// Shorter by leaving examples out is not faster.
    pub(super) fn fastest(&self, config: &RunConfig, proposal: &Proposal) -> RunConfig {
        let lengths = match config.data.length {
            Some(length) => vec![length],
            None => vec![self.rounded(self.lengths.max), self.rounded(self.lengths.covering_99())],
        };
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

    /// Whether the embedding leaves a card for system memory: wherever it can, since that is exact and costs nothing to speak of.
    fn embedding_on_host(&self, config: &RunConfig) -> bool {
        let can = self.hardware.train_on == TrainOn::Card && !self.shape.tied;
        let bytes = (self.shape.vocab_rows * self.shape.hidden) as u64 * self.compute(config).size_bytes();
        let has_room = self.hardware.memory_available_bytes / 4 > bytes;
        can && config.embedding_on_host.unwrap_or(has_room)
    }

    /// Forms of the base to try: the exact one first, NF4 is for where it does not fit.
    fn bases(&self, config: &RunConfig) -> Vec<BaseFormat> {
        match config.base {
            Some(base) => vec![base],
            // Only quantised weights are streamed, or kept dequantised.
            None if config.n_layers_streamed.max(config.n_layers_cached).is_some_and(|n| n > 0) => {
                vec![BaseFormat::Nf4]
            }
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
        beside::with_overhead(beside::items(self.shape, settings), self.overhead_bytes)
    }

    /// Planned peak.
    pub(super) fn bytes(&self, settings: &Settings) -> u64 {
        let assumed = beside::assumed_overhead_bytes(settings.train_on);
        (self.sums.of(self.shape, settings).planned_bytes - assumed).saturating_add(self.overhead_bytes)
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

    /// Where nothing fits, held-out prompts stay unanswered at evaluations before the plan says so.
    fn propose_at(&self, config: &RunConfig, budget: &Budget, length: usize) -> Result<Proposal, Error> {
        let mut proposal = self.fastest_at(config, budget, length)?;
        if !proposal.fits() && proposal.settings.n_samples > 0 {
            let mut silent = config.clone();
            silent.evaluation.n_samples = 0;
            proposal = self.fastest_at(&silent, budget, length)?;
        }
        proposal.time.basis_words = cost::basis_words(proposal.time.basis, self.hardware);
        Ok(proposal)
    }

    fn fastest_at(&self, config: &RunConfig, budget: &Budget, length: usize) -> Result<Proposal, Error> {
        let frame = self.frame(config, budget, length)?;
        let bases = self.bases(config);
        // Bytes grow with the micro-batch and the rows, so the least is found without trying the rest.
        let smallest = &frame.splits[..1];
        let leasts: Vec<Proposal> = bases
            .iter()
            .filter_map(|&base| {
                let candidates = self.candidates(config, budget, &frame, base, smallest, LEAST_HEAD_ROWS);
                candidates.into_iter().min_by_key(|candidate| candidate.planned_bytes)
            })
            .collect();
        let fitting: Vec<BaseFormat> =
            leasts.iter().filter(|least| least.fits()).map(|least| least.settings.base).collect();
        if let Some(least) = leasts.into_iter().min_by_key(|least| least.planned_bytes).filter(|least| !least.fits()) {
            return Ok(least);
        }
        for head_rows in [HEAD_ROWS, LEAST_HEAD_ROWS] {
            for &base in &fitting {
                let candidates = self.candidates(config, budget, &frame, base, &frame.splits, head_rows);
                if let Some(best) = fastest(candidates.into_iter().filter(Proposal::fits)) {
                    return Ok(self.caching(config, &frame, best));
                }
            }
        }
        // Not reached: `splits`, bases and modes are never empty, and the least of them fits.
        Err(Error::NoExamples)
    }

    /// `best` with as many layers' weights kept dequantised as its memory has room for, where that is worth it.
    fn caching(&self, config: &RunConfig, frame: &Frame, best: Proposal) -> Proposal {
        if config.n_layers_cached.is_some() || best.settings.base != BaseFormat::Nf4 {
            return best;
        }
        let with = |n_layers_cached| Settings { n_layers_cached, ..best.settings.clone() };
        let layer_bytes = self.bytes(&with(1)).saturating_sub(best.planned_bytes).max(1);
        let n = best.budget.budget_bytes.saturating_sub(best.planned_bytes) / layer_bytes;
        // Streamed layers are dequantised from where they come to.
        let most = self.shape.n_layers - best.settings.n_layers_streamed.min(self.shape.n_layers);
        let settings = with(usize::try_from(n).map_or(most, |n| n.min(most)));
        let (time, planned_bytes) = (self.time(config, frame, &settings), self.bytes(&settings));
        let is_worth_it = time.tokens_per_s > best.time.tokens_per_s * (1.0 + TIE);
        if !is_worth_it || planned_bytes > best.budget.budget_bytes {
            return best;
        }
        Proposal { planned_bytes, time, settings, ..best }
    }

    fn frame(&self, config: &RunConfig, budget: &Budget, length: usize) -> Result<Frame, Error> {
        let kept = self.lengths.kept(length, config.data.over_length);
        if kept.n_examples < 0.5 {
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
        let mean = kept.n_tokens / kept.n_examples;
        let packing = config.data.packing.unwrap_or(mean < length as f64 / 2.0);
        let n_sequences =
            if packing { (mean * n_train / (length as f64 * PACK_FILL)).ceil().max(1.0) } else { n_train };
        let splits = splits(config, n_sequences as usize);
        let effective = splits[0].0 * splits[0].1;
        let (n_steps, epochs) = match config.max_steps {
            Some(n_steps) => (n_steps, (n_steps * effective) as f64 / n_sequences),
            None => {
                let epochs = config.epochs.unwrap_or(EPOCHS);
                // Every pass ends with a step of what is left.
                let steps_of_pass = (n_sequences / effective as f64).ceil();
                let steps = epochs.floor() * steps_of_pass + (epochs.fract() * steps_of_pass).ceil();
                (steps.max(1.0) as usize, epochs)
            }
        };
        let n = cost::lora_elements(self.shape, &config.lora);
        let optimizer = config.optimizer.kind.unwrap_or_else(|| {
            let state = cost::optimizer_bytes(n, OptimizerKind::AdamW32) as f64;
            let small = state < SMALL_STATE_SHARE * budget.budget_bytes as f64;
            if small { OptimizerKind::AdamW32 } else { OptimizerKind::AdamW8 }
        });
        let data = DataUse {
            n_train: n_train as usize,
            n_held_out: n_held_out as usize,
            n_over_length: kept.n_over,
            max_tokens: self.lengths.max,
            n_sequences: n_sequences as usize,
        };
        Ok(Frame { length, packing, kept, data, optimizer, n_steps, epochs, splits })
    }

    fn candidates(
        &self,
        config: &RunConfig,
        budget: &Budget,
        frame: &Frame,
        base: BaseFormat,
        splits: &[(usize, usize)],
        head_rows: usize,
    ) -> Vec<Proposal> {
        let modes = config.recompute.map_or(vec![Recompute::N, Recompute::C1, Recompute::C0], |mode| vec![mode]);
        let is_open = config.recompute.is_none() && config.n_layers_eased.is_none();
        let mut candidates = Vec::with_capacity(modes.len() * splits.len());
        for &recompute in &modes {
            for &(micro_batch, accumulation) in splits {
                let settings = Settings {
                    train_on: self.hardware.train_on,
                    base,
                    compute: self.compute(config),
                    embedding_on_host: self.embedding_on_host(config),
                    recompute,
                    ..settings(config, frame, (micro_batch, accumulation), head_rows)
                };
                let mut add = |settings: Settings| {
                    candidates.push(Proposal {
                        planned_bytes: self.bytes(&settings),
                        time: self.time(config, frame, &settings),
                        budget: budget.clone(),
                        data: frame.data,
                        mean_tokens: frame.kept.n_tokens / frame.kept.n_examples,
                        settings,
                    });
                };
                // What leaves the card costs time: it is for what does not fit otherwise, with the fewest sequences at once.
                let is_smallest = micro_batch == frame.splits[0].0;
                for settings in self.leaving_less(config, budget, settings, is_smallest) {
                    if let Some(eased) = self.eased(&settings, budget).filter(|_| is_open) {
                        add(Settings { n_layers_eased: eased, ..settings.clone() });
                    }
                    add(settings);
                }
            }
        }
        candidates
    }

    /// `settings` as the config fixes them, and where they don't fit with less and less on the card: the layers' inputs in system
    /// memory, then the MLP in parts; all this with no more, with as many as it takes, and with all of the layers' weights in system
    /// memory, since what they leave is room for recomputing less.
    fn leaving_less(
        &self,
        config: &RunConfig,
        budget: &Budget,
        settings: Settings,
        is_smallest: bool,
    ) -> Vec<Settings> {
        let fixed = Settings {
            offload_inputs: config.offload_inputs.unwrap_or(false),
            // As many as there are, or more, is the whole micro-batch.
            mlp_rows: config.mlp_rows.filter(|&rows| rows < settings.max_tokens()),
            n_layers_streamed: config.n_layers_streamed.unwrap_or(0),
            n_layers_cached: config.n_layers_cached.unwrap_or(0),
            ..settings
        };
        let fits = |settings: &Settings| self.bytes(settings) <= budget.budget_bytes;
        if !is_smallest || self.hardware.train_on != TrainOn::Card || fits(&fixed) {
            return vec![fixed];
        }
        let pinned_bytes = self.hardware.memory_available_bytes as f64 * PINNED_SHARE;
        let has_room = |settings: &Settings| self.sums.of(self.shape, settings).host_bytes as f64 <= pinned_bytes;
        let mut found = vec![fixed.clone()];
        let streams = config.n_layers_streamed.is_none() && fixed.base == BaseFormat::Nf4;
        for streaming in [Streaming::AsGiven, Streaming::AsNeeded, Streaming::All] {
            if streaming != Streaming::AsGiven && !streams {
                continue;
            }
            for moved in self.moves(config, &fixed) {
                let moved = match streaming {
                    Streaming::AsGiven => Some(moved),
                    Streaming::AsNeeded => self.streaming(&moved, budget),
                    Streaming::All => Some(Settings { n_layers_streamed: self.shape.n_layers, ..moved }),
                };
                let Some(moved) = moved.filter(has_room) else { continue };
                let is_enough = fits(&moved);
                found.push(moved);
                if is_enough {
                    break;
                }
            }
        }
        found
    }

    /// `fixed`, and with the inputs in system memory, and besides with the MLP in parts, as far as the config leaves it open.
    fn moves(&self, config: &RunConfig, fixed: &Settings) -> Vec<Settings> {
        let mut moves = vec![fixed.clone()];
        let offload_inputs = config.offload_inputs.unwrap_or(true);
        if config.offload_inputs.is_none() {
            moves.push(Settings { offload_inputs, ..fixed.clone() });
        }
        if config.mlp_rows.is_none() {
            let rows = MLP_ROWS.into_iter().filter(|&rows| rows < fixed.max_tokens());
            moves.extend(rows.map(|rows| Settings { mlp_rows: Some(rows), offload_inputs, ..fixed.clone() }));
        }
        moves
    }

    /// So many layers' weights in system memory that the rest fits; `None` where it does not with all of them there.
    fn streaming(&self, settings: &Settings, budget: &Budget) -> Option<Settings> {
        let with = |n_layers_streamed| Settings { n_layers_streamed, ..settings.clone() };
        // Bytes fall evenly from one layer on; fewer than there are slots would save nothing.
        let (one, two) = (self.bytes(&with(1)), self.bytes(&with(2)));
        let more = one.saturating_sub(budget.budget_bytes).div_ceil(one.saturating_sub(two).max(1));
        let n = 1 + usize::try_from(more).ok()?;
        (n <= self.shape.n_layers).then(|| with(n))
    }

    /// As many layers recompute one step less as the budget has room for; `None` where that is none, or all of them.
    fn eased(&self, settings: &Settings, budget: &Budget) -> Option<usize> {
        let n_layers = self.shape.n_layers;
        if settings.recompute == Recompute::N || n_layers < 3 {
            return None;
        }
        let easier = Settings { recompute: settings.recompute.eased(), ..settings.clone() };
        if self.bytes(&easier) <= budget.budget_bytes {
            return None;
        }
        // Bytes grow evenly from one eased layer to all but one; with all of them it is the next mode.
        let bytes = |n| self.bytes(&Settings { n_layers_eased: n, ..settings.clone() });
        let (one, two) = (bytes(1), bytes(2));
        let room = budget.budget_bytes.checked_sub(one)?;
        let more = room.checked_div(two.saturating_sub(one)).unwrap_or(u64::MAX);
        Some((1 + more.min(n_layers as u64) as usize).min(n_layers - 1))
    }

    fn time(&self, config: &RunConfig, frame: &Frame, settings: &Settings) -> TimeEstimate {
        let mean = frame.kept.n_tokens / frame.kept.n_examples;
        let sequence_tokens = mean * frame.data.n_train as f64 / frame.data.n_sequences as f64;
        let (attended, learned) = (frame.kept.attended, self.lengths.learned_share);
        let recompute = Mix::of(settings, self.shape.n_layers);
        let flops = Flops::per_token(self.shape, &settings.lora, recompute, attended, learned);
        let tokens = sequence_tokens * settings.micro_batch as f64;
        let mlp_parts = settings.mlp_rows.map_or(1.0, |rows| (tokens / rows as f64).max(1.0));
        let cached = settings.n_layers_cached.min(self.shape.n_layers) as f64 / self.shape.n_layers as f64;
        let load = Load { base: settings.base, recompute, tokens, flops, mlp_parts, cached };
        let mut speed = cost::speed(self.shape, self.hardware, settings, &load, attended, learned);
        let waiting_s = cost::waiting_s(self.shape, self.hardware, settings, &load, tokens / speed.tokens_per_s);
        speed.tokens_per_s = tokens / (tokens / speed.tokens_per_s + waiting_s);
        let step_tokens = tokens * settings.accumulation as f64;
        let step_s = step_tokens / speed.tokens_per_s;
        let n_evaluations =
            if evaluates(config, frame) { settings.n_steps.div_ceil(settings.evaluate_every_steps) } else { 0 };
        // A separate file's size is not known here: about as many as would be held out.
        let n_held_out = (frame.data.n_held_out as f64).max(0.05 * frame.data.n_train as f64);
        let forward_share = flops.forward / flops.total();
        let evaluation_s = n_evaluations as f64 * n_held_out * mean * forward_share / speed.tokens_per_s;
        let steps_s = step_s * settings.n_steps as f64;
        TimeEstimate {
            tokens_per_s: speed.tokens_per_s,
            basis: speed.basis,
            // Of the chosen one only, see `propose_at`.
            basis_words: String::new(),
            plus_minus: speed.plus_minus,
            step_s,
            evaluation_s,
            total_s: steps_s + evaluation_s,
            n_steps: settings.n_steps,
            epochs: frame.epochs,
            n_tokens: (step_tokens * settings.n_steps as f64).round() as u64,
            n_tokens_per_step: step_tokens.round() as u64,
        }
    }
}

fn evaluates(config: &RunConfig, frame: &Frame) -> bool {
    config.data.evaluation_path.is_some() || frame.data.n_held_out > 0
}

/// Fastest; of those within [`TIE`] of it the one with fewest bytes, then the first tried.
fn fastest(candidates: impl Iterator<Item = Proposal>) -> Option<Proposal> {
    let candidates: Vec<Proposal> = candidates.collect();
    let most = candidates.iter().map(|c| c.time.tokens_per_s).fold(0.0, f64::max);
    candidates
        .into_iter()
        .filter(|candidate| candidate.time.tokens_per_s >= most * (1.0 - TIE))
        .min_by_key(|candidate| candidate.planned_bytes)
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

fn settings(
    config: &RunConfig,
    frame: &Frame,
    (micro_batch, accumulation): (usize, usize),
    head_rows: usize,
) -> Settings {
    let (o, n_steps) = (&config.optimizer, frame.n_steps);
    Settings {
        lora: config.lora.clone(),
        length: frame.length,
        over_length: config.data.over_length,
        packing: frame.packing,
        micro_batch,
        accumulation,
        n_layers_eased: config.n_layers_eased.unwrap_or(0),
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
            .unwrap_or_else(|| if evaluates(config, frame) { (n_steps / N_EVALUATIONS).max(1) } else { n_steps }),
        patience: config.evaluation.patience,
        n_samples: if evaluates(config, frame) { config.evaluation.n_samples } else { 0 },
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

/// Whether an example beyond the length is cut rather than left out.
pub(super) fn cuts(config: &RunConfig) -> bool {
    config.data.over_length == OverLength::Truncate
}
