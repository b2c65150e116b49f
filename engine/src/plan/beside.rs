//! What a run needs of its device beside the buffers of a step: what a card's driver takes, and what is there only between two
//! steps or before the first, while all buffers of the step are held.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use super::{Family, PlanItem, cost, layout};
use crate::config::{BaseFormat, CheckpointConfig, Settings};
use crate::generate::{Asked, most_bytes};
use crate::hardware::TrainOn;
use crate::model::ModelShape;

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
    items(shape, settings).iter().map(|item| item.bytes).fold(0, u64::saturating_add)
}

/// The lines of [`planned_bytes`].
pub(super) fn items(shape: &ModelShape, settings: &Settings) -> Vec<PlanItem> {
    let mut items: Vec<PlanItem> = layout::layout(shape, settings).items.iter().map(PlanItem::from).collect();
    let own = |name: &str, label: &str, family, bytes, changed_by: Option<&str>| PlanItem {
        name: name.into(),
        label: label.into(),
        family,
        bytes,
        changed_by: changed_by.map(Into::into),
    };
    let before = before_the_first_step(shape, settings, &items);
    let between = [
        ("samples", "Answers at evaluations", sample_bytes(shape, settings), Some("n_samples")),
        ("checkpoint", "Copy for a checkpoint", checkpoint_bytes(shape, settings), Some("rank")),
        ("loading", "Reading the model", before, None),
    ];
    // One after the other, so only the largest counts; the first of equal ones.
    let largest = between.into_iter().rev().max_by_key(|&(_, _, bytes, _)| bytes);
    if let Some((name, label, bytes, changed_by)) = largest.filter(|&(_, _, bytes, _)| bytes > 0) {
        items.push(own(name, label, Family::Activations, bytes, changed_by));
    }
    if settings.train_on == TrainOn::Card {
        items.push(own("cuda_context", "CUDA context", Family::Runtime, CUDA_CONTEXT_BYTES, None));
        items.push(own("cuda_libraries", "Libraries", Family::Runtime, CUDA_LIBRARIES_BYTES, None));
    }
    items
}

/// What [`items`] assume that a process takes of its device beside all that is listed.
pub fn assumed_overhead_bytes(train_on: TrainOn) -> u64 {
    match train_on {
        TrainOn::Card => layout::RUNTIME_BYTES + CARD_OVERHEAD_BYTES,
        TrainOn::Processor => layout::RUNTIME_BYTES,
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
    let asked = Asked {
        n_prompts: settings.n_samples,
        // Longer ones are not asked.
        prompt_tokens: settings.length,
        max_new_tokens: SAMPLE_TOKENS,
        cache_bytes: SAMPLE_CACHE_BYTES,
    };
    most_bytes(shape, &settings.lora, settings.compute, &asked)
}

/// The copy of the adapter that a checkpoint is written from; a card's goes to system memory.
fn checkpoint_bytes(shape: &ModelShape, settings: &Settings) -> u64 {
    match settings.train_on {
        TrainOn::Card => 0,
        TrainOn::Processor => 4 * cost::lora_elements(shape, &settings.lora),
    }
}

/// What reading the base needs beyond all that the step holds. The last tensor is read beside the whole base; nothing else of the
/// step is there yet, so this counts only where the step itself is very small.
fn before_the_first_step(shape: &ModelShape, settings: &Settings, items: &[PlanItem]) -> u64 {
    let widest = crate::config::Target::ALL.iter().map(|&target| shape.linear(target)).map(|(o, i)| (o * i) as u64);
    let as_read = 4 * widest.max().unwrap_or(0);
    let transient = match (settings.train_on, settings.base) {
        (TrainOn::Processor, _) => as_read + READ_BYTES,
        (TrainOn::Card, BaseFormat::Nf4) => as_read.min(QUANTISED_AT_ONCE_BYTES),
        // Converted on the host, then copied.
        (TrainOn::Card, _) => 0,
    };
    let not_there_yet = items.iter().filter(|item| !matches!(item.family, Family::Weights | Family::Runtime));
    transient.saturating_sub(not_there_yet.map(|item| item.bytes).sum())
}

/// Sums of one model that were asked for before: a search, its reasons and their counterfactuals ask for the same ones over and
/// over, and so do all cards of a table.
#[derive(Debug, Default)]
pub(super) struct Sums {
    known: RefCell<HashMap<Key, u64>>,
}

impl Sums {
    /// [`planned_bytes`], remembered. `shape` is always the same one.
    pub(super) fn planned_bytes(&self, shape: &ModelShape, settings: &Settings) -> u64 {
        let key = Key::of(settings);
        if let Some(&bytes) = self.known.borrow().get(&key) {
            return bytes;
        }
        let bytes = planned_bytes(shape, settings);
        self.known.borrow_mut().insert(key, bytes);
        bytes
    }
}

/// Settings without those that no byte depends on. A setting that is not named here is taken to matter.
#[derive(Debug, PartialEq)]
struct Key(Settings);

impl Key {
    fn of(settings: &Settings) -> Self {
        let none = Settings::default();
        let mut lora = settings.lora.clone();
        lora.alpha = none.lora.alpha;
        Key(Settings {
            lora,
            over_length: none.over_length,
            packing: none.packing,
            accumulation: none.accumulation,
            learning_rate: none.learning_rate,
            beta1: none.beta1,
            beta2: none.beta2,
            epsilon: none.epsilon,
            weight_decay: none.weight_decay,
            max_grad_norm: none.max_grad_norm,
            schedule: none.schedule,
            warmup_steps: none.warmup_steps,
            n_steps: none.n_steps,
            evaluate_every_steps: none.evaluate_every_steps,
            patience: none.patience,
            checkpoints: CheckpointConfig::default(),
            seed: none.seed,
            ..settings.clone()
        })
    }
}

// Checked settings hold no NaN, so equality is one.
impl Eq for Key {}

impl Hash for Key {
    /// Of what differs most between the settings of a search; equality compares the rest.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let s = &self.0;
        (s.length, s.micro_batch, s.head_rows, s.n_layers_eased, s.recompute, s.compute).hash(state);
        (s.lora.rank, s.base as u8, s.optimizer as u8, s.n_samples).hash(state);
        (s.offload_inputs, s.mlp_rows, s.n_layers_streamed).hash(state);
    }
}
