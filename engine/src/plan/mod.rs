//! What fits, with which settings, how long it takes and why, before anything runs.
//!
//! [`plan`] is pure: the same shape, data, wishes and hardware give the same [`Plan`], for a card that is not in the
//! machine too. The bytes are those of [`layout::layout`], the function that also lays out the buffers of the step.

pub mod ladder;
pub mod layout;

mod beside;
mod candidates;
mod check;
mod cost;
mod error;
mod host;
mod largest;
mod lengths;
mod price;
mod propose;
mod reasons;
mod remedy;
mod table;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

pub use self::beside::{
    CARD_OVERHEAD_BYTES, CUDA_CONTEXT_BYTES, SAMPLE_CACHE_BYTES, SAMPLE_TOKENS, assumed_overhead_bytes, planned_bytes,
};
pub use self::cost::{Basis, TimeEstimate, model_key};
pub use self::error::Error;
pub use self::host::HostMemory;
pub use self::largest::{
    ASSUMED_EXAMPLES, ASSUMED_LENGTH, Bound, Largest, NextLarger, Quantity, assumed_examples, largest_micro_batch,
    largest_model, largest_rank, longest,
};
pub use self::price::Price;
pub use self::propose::{EPOCHS, HEAD_ROWS};
pub use self::reasons::{Change, Reason, settings_in_words};
pub use self::remedy::Remedy;
pub use self::table::{CardTable, CellPlan, Fit, TableCard, TableCell, TableRow, card_table};

use self::beside::Sums;
use self::propose::{Proposal, Task};
use crate::config::{ComputeDtype, RunConfig, Settings};
use crate::data::DataStats;
use crate::hardware::Hardware;
use crate::model::ModelShape;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Family {
    /// Frozen weights of the base model.
    Weights,
    /// Adapter, gradients, optimizer state.
    Trained,
    /// What the forward pass keeps and the room it works in.
    Activations,
    /// Libraries and the device's own needs.
    Runtime,
}

/// A named buffer, or the device's own need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct PlanItem {
    /// Stable name.
    pub name: String,
    /// What it is, in words.
    pub label: String,
    /// What it is for.
    pub family: Family,
    /// Its size.
    #[ts(type = "number")]
    pub bytes: u64,
    /// The setting that changes it, by its name in [`Settings`].
    pub changed_by: Option<String>,
}

impl From<&layout::Item> for PlanItem {
    fn from(item: &layout::Item) -> Self {
        PlanItem {
            name: item.name.into(),
            label: item.label.into(),
            family: item.family,
            bytes: item.bytes,
            changed_by: item.changed_by.map(Into::into),
        }
    }
}

/// Memory of the device a run trains on, in bytes: `total = others + margin + budget` unless a limit is set by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Budget {
    /// "GeForce RTX 3060" or "system memory".
    pub device: String,
    /// All of it.
    #[ts(type = "number")]
    pub total_bytes: u64,
    /// Used by other programs and the system now; assumed where nobody measured.
    #[ts(type = "number")]
    pub others_bytes: u64,
    /// Kept free on purpose.
    #[ts(type = "number")]
    pub margin_bytes: u64,
    /// What a plan may use.
    #[ts(type = "number")]
    pub budget_bytes: u64,
    /// True where `memory_limit_bytes` of the config is what bounds it.
    pub limited_by_hand: bool,
}

/// Disk space a run and its exports take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct DiskEstimate {
    /// All checkpoints that exist at once, the best one and one being written included.
    #[ts(type = "number")]
    pub checkpoints_bytes: u64,
    /// One of them.
    #[ts(type = "number")]
    pub checkpoint_bytes: u64,
    /// The exported adapter.
    #[ts(type = "number")]
    pub adapter_bytes: u64,
    /// The merged model in 16 bit.
    #[ts(type = "number")]
    pub merged_bytes: u64,
}

/// What the settings do to the examples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct DataUse {
    /// Examples trained on, held-out ones not counted.
    pub n_train: usize,
    /// Held out of the data for evaluation.
    pub n_held_out: usize,
    /// Longer than `length`: left out or cut, as `over_length` says.
    pub n_over_length: usize,
    /// Longest example in tokens.
    pub max_tokens: usize,
    /// Sequences of one pass: packs or single examples.
    pub n_sequences: usize,
}

impl DataUse {
    /// Whether held-out examples are there to evaluate on.
    fn is_evaluated(&self, config: &RunConfig) -> bool {
        config.data.evaluation_path.is_some() || self.n_held_out > 0
    }
}

/// Something to know before the start. It forbids nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct PlanWarning {
    /// Stable name.
    pub code: String,
    /// What, with the values.
    pub message: String,
}

/// Another plan worth a look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Alternative {
    /// `fastest`, `nothing_cut`, `leave_room`.
    pub name: String,
    /// "Nothing cut".
    pub title: String,
    /// What it changes and what that costs, in words.
    pub words: String,
    /// Its settings are those of the proposal.
    pub same: bool,
    /// Planned with this config, it is the proposal.
    pub config: RunConfig,
    /// What it resolves to.
    pub settings: Settings,
    /// Its planned peak.
    #[ts(type = "number")]
    pub planned_bytes: u64,
    /// Whether that fits.
    pub fits: bool,
    /// Its time.
    pub time: TimeEstimate,
}

/// The answer to "does it fit, with which settings, how long, and why".
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Plan {
    /// Every choice made.
    pub settings: Settings,
    /// Where the bytes go; their sum is `planned_bytes`.
    pub items: Vec<PlanItem>,
    /// Planned peak.
    #[ts(type = "number")]
    pub planned_bytes: u64,
    /// `budget.budget_bytes`.
    #[ts(type = "number")]
    pub budget_bytes: u64,
    /// The device's memory.
    pub budget: Budget,
    /// `planned_bytes <= budget_bytes`.
    pub fits: bool,
    /// What is missing; 0 where it fits.
    #[ts(type = "number")]
    pub short_by_bytes: u64,
    /// System memory beside a card's; absent where the run trains in system memory.
    #[serde(default)]
    pub host: Option<HostMemory>,
    /// What to change where it does not fit, least harm first; each adds to those before.
    pub remedies: Vec<Remedy>,
    /// Why each setting is what it is, and what another value would do.
    pub reasons: Vec<Reason>,
    /// Things to know.
    pub warnings: Vec<PlanWarning>,
    /// How long.
    pub time: TimeEstimate,
    /// What that costs, where the config has prices.
    pub price: Option<Price>,
    /// What happens to the examples.
    pub data: DataUse,
    /// Elements that are trained.
    #[ts(type = "number")]
    pub n_trained: u64,
    /// Checkpoints, adapter and merged model together.
    #[ts(type = "number")]
    pub disk_bytes: u64,
    /// The same by part.
    pub disk: DiskEstimate,
    /// Other plans.
    pub alternatives: Vec<Alternative>,
}

impl Plan {
    /// Refuses a plan that does not fit; whoever starts a run asks first.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] with what to change; [`Error::NoHostMemory`] where more was asked to wait in system memory than is free.
    pub fn require_fit(&self) -> Result<(), Error> {
        if self.fits {
            return match &self.host {
                Some(host) if host.bytes > host.free_bytes => {
                    Err(Error::NoHostMemory { needed_bytes: host.bytes, free_bytes: host.free_bytes })
                }
                _ => Ok(()),
            };
        }
        Err(Error::DoesNotFit {
            device: self.budget.device.clone(),
            needed_bytes: self.planned_bytes,
            budget_bytes: self.budget_bytes,
            remedies: self.remedies.clone(),
        })
    }

    /// The same plan where it is known which prompts are answered at an evaluation: so many, with so many tokens together.
    pub(crate) fn set_samples(&mut self, shape: &ModelShape, n_samples: usize, sample_tokens: usize) {
        (self.settings.n_samples, self.settings.sample_tokens) = (n_samples, Some(sample_tokens));
        let overhead: u64 = self.items.iter().filter(|i| i.family == Family::Runtime).map(|i| i.bytes).sum();
        self.items = beside::with_overhead(beside::items(shape, &self.settings), overhead);
        self.planned_bytes = self.items.iter().map(|item| item.bytes).sum();
    }
}

/// Resolves `config` for `shape`, `data` and `hardware`. `data` describes the examples at their full length, before
/// anything is left out or cut.
///
/// What the config fixes is honoured. What it leaves open is proposed: of the settings that fit, the fastest predicted
/// ones; of equally fast ones, those that take fewer bytes. Where nothing fits, the smallest plan comes back with
/// `fits` false and its remedies ([`Plan::require_fit`] makes it an error).
///
/// # Errors
/// Wishes that contradict each other or make no sense, and data without anything to learn; never a lack of memory.
pub fn plan(shape: &ModelShape, data: &DataStats, config: &RunConfig, hardware: &Hardware) -> Result<Plan, Error> {
    planned(shape, data, config, hardware, true)
}

/// [`plan`] without what other choices would do, which is most of its work: remedies, counterfactuals and alternatives
/// are empty. For a slider that moves, and for lists of many models or cards.
///
/// # Errors
/// Those of [`plan`].
pub fn outline(shape: &ModelShape, data: &DataStats, config: &RunConfig, hardware: &Hardware) -> Result<Plan, Error> {
    planned(shape, data, config, hardware, false)
}

fn planned(
    shape: &ModelShape,
    data: &DataStats,
    config: &RunConfig,
    hardware: &Hardware,
    with_others: bool,
) -> Result<Plan, Error> {
    check::check(shape, data, config, hardware)?;
    let sums = Sums::default();
    let task = Task::new(shape, data, hardware, &sums);
    let proposal = task.propose(config)?;
    let fits = proposal.fits();
    let remedies = if fits || !with_others { Vec::new() } else { remedy::remedies(&task, config, &proposal) };
    let disk = disk(shape, &proposal.settings);
    Ok(Plan {
        fits,
        short_by_bytes: proposal.planned_bytes.saturating_sub(proposal.budget.budget_bytes),
        remedies,
        reasons: reasons::reasons(&task, config, &proposal, with_others),
        warnings: reasons::warnings(&task, config, &proposal),
        data: proposal.data,
        n_trained: trained(shape, &proposal.settings),
        disk_bytes: disk.checkpoints_bytes.saturating_add(disk.adapter_bytes + disk.merged_bytes),
        disk,
        alternatives: if with_others { alternatives(&task, config, &proposal) } else { Vec::new() },
        items: task.items(&proposal.settings),
        host: task.host(&proposal.settings),
        planned_bytes: proposal.planned_bytes,
        budget_bytes: proposal.budget.budget_bytes,
        budget: proposal.budget,
        price: config.prices.as_ref().map(|prices| Price::new(prices, hardware, &proposal.time)),
        time: proposal.time,
        settings: proposal.settings,
    })
}

/// Elements of all A and B.
fn trained(shape: &ModelShape, settings: &Settings) -> u64 {
    cost::lora_elements(shape, &settings.lora)
}

/// 16-bit elements of a merged model.
const MERGED_ELEMENT_BYTES: u64 = 2;
/// Tokenizer, configuration and proof beside the weights, and the state beside a checkpoint's tensors.
const SMALL_FILES_BYTES: u64 = 16 << 20;
const CHECKPOINT_STATE_BYTES: u64 = 1 << 20;

fn disk(shape: &ModelShape, settings: &Settings) -> DiskEstimate {
    let n = trained(shape, settings);
    let adapter_bytes = n * ComputeDtype::F32.size_bytes();
    let checkpoint_bytes = adapter_bytes + cost::optimizer_bytes(n, settings.optimizer) + CHECKPOINT_STATE_BYTES;
    DiskEstimate {
        checkpoint_bytes,
        checkpoints_bytes: checkpoint_bytes.saturating_mul(settings.checkpoints.keep as u64 + 2),
        adapter_bytes: adapter_bytes + SMALL_FILES_BYTES,
        merged_bytes: shape.params() as u64 * MERGED_ELEMENT_BYTES + SMALL_FILES_BYTES,
    }
}

/// What "leave room" leaves free beyond the margin: this much, or a quarter of what may be used where that is more.
const ROOM_BYTES: u64 = 3 << 30;

fn alternatives(task: &Task, config: &RunConfig, proposal: &Proposal) -> Vec<Alternative> {
    let mut found = Vec::new();
    let mut add = |name: &str, title: &str, config: RunConfig| {
        let Ok(other) = task.propose(&config) else { return };
        found.push(Alternative {
            name: name.into(),
            title: title.into(),
            words: reasons::difference(proposal, &other),
            same: other.settings == proposal.settings,
            config,
            planned_bytes: other.planned_bytes,
            fits: other.fits(),
            time: other.time,
            settings: other.settings,
        });
    };
    add("fastest", "Fastest", task.fastest(config, proposal));
    if let Some(length) = task.length_of_all() {
        let mut all = config.clone();
        all.data.length = Some(length);
        add("nothing_cut", "Nothing cut", all);
    }
    // Of what there is without a limit, so that whoever takes it and plans again is not given less each time.
    let mut roomy = RunConfig { memory_limit_bytes: None, ..config.clone() };
    let budget = task.budget(&roomy).budget_bytes;
    let limit = budget.saturating_sub(ROOM_BYTES.max(budget / 4));
    roomy.memory_limit_bytes = Some(limit.min(config.memory_limit_bytes.unwrap_or(limit)));
    add("leave_room", "Leave room", roomy);
    found
}

#[cfg(test)]
mod tests;
