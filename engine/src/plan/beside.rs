//! What a run needs of its device beside the buffers of a step: what a card's driver takes, and what is there only between two
//! steps or before the first, while all buffers of the step are held.

use std::cell::RefCell;
use std::collections::HashMap;

use super::layout::{self, Item, Layout};
use super::{Family, PlanItem, cost};
use crate::config::{BaseFormat, ComputeDtype, LoraConfig, OptimizerKind, Recompute, Settings, Target};
use crate::generate::{Asked, most_bytes};
use crate::hardware::TrainOn;
use crate::model::ModelShape;
use crate::ops::attention;

/// Most tokens of an answer to a held-out prompt at an evaluation.
pub const SAMPLE_TOKENS: usize = 64;
/// Keys and values that are held for these answers at once, unless one prompt alone needs more: prompts beyond that wait for their
/// turn, since a run that has room for its step should not fail for the sake of a look at what it learned.
pub const SAMPLE_CACHE_BYTES: usize = 128 << 20;

/// Context and modules of CUDA: what the driver counted for a process beside its buffers and libraries on an H200 (driver 580),
/// whatever the model. Smaller cards take less.
pub const CUDA_CONTEXT_BYTES: u64 = 602 << 20;
/// The workspace of cuBLASLt, and what the driver's pool rounds up.
const CUDA_LIBRARIES_BYTES: u64 = 64 << 20;
/// What a process takes of a card beside the buffers of [`layout::layout`].
pub const CARD_OVERHEAD_BYTES: u64 = CUDA_CONTEXT_BYTES + CUDA_LIBRARIES_BYTES;

/// Pieces in which a checkpoint's file is read, and in which a card quantises.
const READ_BYTES: u64 = 4 << 20;
const QUANTISED_AT_ONCE_BYTES: u64 = 64 << 20;

/// Planned peak of `settings`: the buffers of the step and all that is needed beside them.
pub fn planned_bytes(shape: &ModelShape, settings: &Settings) -> u64 {
    Sum::of(shape, settings).planned_bytes
}

/// The lines of [`planned_bytes`].
pub(super) fn items(shape: &ModelShape, settings: &Settings) -> Vec<PlanItem> {
    let layout = layout::layout(shape, settings);
    let beside = beside(shape, settings, &layout);
    layout.items.iter().chain(&beside).map(PlanItem::from).collect()
}

/// The lines of the system memory that waits for a card.
pub(super) fn host_items(shape: &ModelShape, settings: &Settings) -> Vec<PlanItem> {
    layout::layout(shape, settings).host_items.iter().map(PlanItem::from).collect()
}

/// What there is beside the buffers of the step.
fn beside(shape: &ModelShape, settings: &Settings, layout: &Layout) -> Vec<Item> {
    let item = |name, label, family, bytes, changed_by| Item { name, label, family, bytes, changed_by };
    let room = Family::Activations;
    let between = [
        item("samples", "Answers at evaluations", room, sample_bytes(shape, settings), Some("n_samples")),
        item("checkpoint", "Copies for a checkpoint", room, checkpoint_bytes(shape, settings), Some("rank")),
        item("loading", "Reading the model", room, loading_bytes(shape, settings, layout), None),
    ];
    // One after the other, so only the largest counts; the first of equal ones.
    let largest = between.into_iter().rev().max_by_key(|item| item.bytes);
    let mut beside: Vec<Item> = largest.into_iter().filter(|item| item.bytes > 0).collect();
    if settings.train_on == TrainOn::Card {
        beside.push(item("cuda_context", "CUDA context", Family::Runtime, CUDA_CONTEXT_BYTES, None));
        beside.push(item("cuda_libraries", "Libraries", Family::Runtime, CUDA_LIBRARIES_BYTES, None));
    }
    beside
}

/// What [`items`] assume that a process takes of its device beside all that is listed.
pub fn assumed_overhead_bytes(train_on: TrainOn) -> u64 {
    match train_on {
        TrainOn::Card => layout::RUNTIME_BYTES + CARD_OVERHEAD_BYTES,
        TrainOn::Processor => layout::RUNTIME_BYTES,
    }
}

/// Scratch of the attention, which every thread of the processor has of its own.
pub(super) fn scratch_bytes(settings: &Settings, n_threads: usize) -> u64 {
    match settings.train_on {
        TrainOn::Card => 0,
        TrainOn::Processor => attention::scratch_bytes(settings.length, n_threads),
    }
}

/// The same lines with `bytes` in place of what they assume: the first of them is the one that takes what is left.
pub(super) fn with_overhead(mut items: Vec<PlanItem>, bytes: u64) -> Vec<PlanItem> {
    let mut left = bytes;
    let mut lines = items.iter_mut().filter(|item| item.family == Family::Runtime).rev().peekable();
    while let Some(line) = lines.next() {
        let is_last = lines.peek().is_none();
        line.bytes = if is_last { left } else { line.bytes.min(left) };
        left -= line.bytes;
    }
    items
}

/// Keys, values and rows in flight of the answers that an evaluation ends with. They are dequantised in the step's own slot.
fn sample_bytes(shape: &ModelShape, settings: &Settings) -> u64 {
    let prompt_tokens = settings.sample_tokens.unwrap_or(settings.n_samples * settings.length);
    let asked = Asked {
        n_prompts: settings.n_samples,
        prompt_tokens,
        // Longer ones are not asked.
        longest_tokens: settings.length.min(prompt_tokens),
        max_new_tokens: SAMPLE_TOKENS,
        cache_bytes: SAMPLE_CACHE_BYTES,
    };
    most_bytes(shape, &settings.lora, settings.compute, &asked)
}

/// The copy of the adapter that a checkpoint is written from, and one of the optimizer's largest tensor, for which the process takes new
/// memory although the former is done with; a card's go to system memory.
fn checkpoint_bytes(shape: &ModelShape, settings: &Settings) -> u64 {
    let moment_bytes = match settings.optimizer {
        OptimizerKind::AdamW32 => 4,
        OptimizerKind::AdamW8 => 1,
    };
    match settings.train_on {
        TrainOn::Card => 0,
        TrainOn::Processor => (4 + moment_bytes) * cost::lora_elements(shape, &settings.lora),
    }
}

/// What reading the base needs beyond all that the step holds. The last tensor is read beside the whole base; nothing else of the
/// step is there yet, so this counts only where the step itself is very small.
fn loading_bytes(shape: &ModelShape, settings: &Settings, layout: &Layout) -> u64 {
    let widest = Target::ALL.iter().map(|&target| shape.linear(target)).map(|(o, i)| (o * i) as u64);
    let as_read = 4 * widest.max().unwrap_or(0);
    let transient = match (settings.train_on, settings.base) {
        (TrainOn::Processor, _) => as_read + READ_BYTES,
        (TrainOn::Card, BaseFormat::Nf4) => as_read.min(QUANTISED_AT_ONCE_BYTES),
        // Converted on the host, then copied.
        (TrainOn::Card, _) => 0,
    };
    let not_there_yet = layout.items.iter().filter(|item| !matches!(item.family, Family::Weights | Family::Runtime));
    transient.saturating_sub(not_there_yet.map(|item| item.bytes).fold(0, u64::saturating_add))
}

/// The memory of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// Of the device that trains.
    pub(super) planned_bytes: u64,
    /// Of system memory beside a card.
    pub(super) host_bytes: u64,
}

impl Sum {
    pub(super) fn of(shape: &ModelShape, settings: &Settings) -> Self {
        let layout = layout::layout(shape, settings);
        let beside = beside(shape, settings, &layout);
        let bytes = layout.items.iter().chain(&beside).map(|item| item.bytes);
        let host_bytes = layout.host_items.iter().map(|item| item.bytes).fold(0, u64::saturating_add);
        Sum { planned_bytes: bytes.fold(0, u64::saturating_add), host_bytes }
    }
}

/// What of settings a byte depends on.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    train_on: TrainOn,
    base: BaseFormat,
    compute: ComputeDtype,
    embedding_on_host: bool,
    rank: usize,
    /// A bit each.
    targets: u32,
    has_dropout: bool,
    length: usize,
    micro_batch: usize,
    recompute: Recompute,
    n_layers_eased: usize,
    offload_inputs: bool,
    mlp_rows: Option<usize>,
    n_layers_streamed: usize,
    n_layers_cached: usize,
    head_rows: usize,
    optimizer: OptimizerKind,
    n_samples: usize,
    sample_tokens: Option<usize>,
}

impl Key {
    /// Every setting is named, so that a new one is decided on.
    fn of(settings: &Settings) -> Self {
        let Settings {
            train_on,
            base,
            compute,
            embedding_on_host,
            lora: LoraConfig { rank, alpha: _, dropout, ref targets },
            length,
            over_length: _,
            packing: _,
            micro_batch,
            accumulation: _,
            recompute,
            n_layers_eased,
            offload_inputs,
            mlp_rows,
            n_layers_streamed,
            n_layers_cached,
            head_rows,
            optimizer,
            learning_rate: _,
            beta1: _,
            beta2: _,
            epsilon: _,
            weight_decay: _,
            max_grad_norm: _,
            schedule: _,
            warmup_steps: _,
            n_steps: _,
            evaluate_every_steps: _,
            patience: _,
            n_samples,
            sample_tokens,
            checkpoints: _,
            rehearsal: _,
            governor: _,
            seed: _,
        } = *settings;
        Key {
            train_on,
            base,
            compute,
            embedding_on_host,
            rank,
            targets: targets.iter().fold(0, |bits, &target| bits | 1 << target as u32),
            has_dropout: dropout > 0.0,
            length,
            micro_batch,
            recompute,
            n_layers_eased,
            offload_inputs,
            mlp_rows,
            n_layers_streamed,
            n_layers_cached,
            head_rows,
            optimizer,
            n_samples,
            sample_tokens,
        }
    }
}

/// Sums of one model that were asked for before: a search, its reasons and their counterfactuals ask for the same ones over and
/// over, and so do all cards of a table.
#[derive(Debug, Default)]
pub(super) struct Sums {
    known: RefCell<HashMap<Key, Sum>>,
}

impl Sums {
    /// [`Sum::of`], remembered. `shape` is always the same one.
    pub(super) fn of(&self, shape: &ModelShape, settings: &Settings) -> Sum {
        *self.known.borrow_mut().entry(Key::of(settings)).or_insert_with(|| Sum::of(shape, settings))
    }

    #[cfg(test)]
    pub(super) fn n_known(&self) -> usize {
        self.known.borrow().len()
    }
}
