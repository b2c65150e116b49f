//! The reverse questions: the longest sequence, the largest rank, micro-batch and model of a card. Each asks the plan itself, and
//! halves the range in between: more of any of them never needs fewer bytes.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::beside::Sums;
use super::propose::{LENGTH_STEP, Proposal, Task};
use super::remedy::{remedies, with_rank};
use super::{Budget, Error, TimeEstimate, check};
use crate::config::{RunConfig, Settings};
use crate::data::DataStats;
use crate::format;
use crate::hardware::Hardware;
use crate::model::{CatalogueModel, ModelShape};

/// Examples of a job that nobody has named: enough for a task, and a number to scale from.
pub const ASSUMED_EXAMPLES: usize = 1000;
/// Their tokens, unless the model's limit is below.
pub const ASSUMED_LENGTH: usize = 2048;
/// More sequences at once than any card gains from.
const MOST_MICRO_BATCH: usize = 1024;
/// The largest rank that is planned for.
const MOST_RANK: usize = 4096;

/// Figures of [`ASSUMED_EXAMPLES`] examples of `length` tokens, all of them learned: the most work there can be.
pub fn assumed_examples(length: usize) -> DataStats {
    DataStats::of(std::iter::repeat_n((length, length), ASSUMED_EXAMPLES))
}

/// What is asked for the most of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Quantity {
    /// Tokens of a sequence, one at a time.
    Length,
    /// Rank of the adapter.
    Rank,
    /// Sequences at once.
    MicroBatch,
    /// Parameters of the model.
    Model,
}

/// What ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Bound {
    /// The next larger does not fit.
    Memory,
    /// The model was not made for more.
    Model,
    /// More is of no use, or not known.
    Most,
}

/// The most that fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Largest {
    /// Of what.
    pub quantity: Quantity,
    /// Tokens, rank, sequences or parameters.
    #[ts(type = "number")]
    pub value: u64,
    /// The model's id in the catalogue, where models were compared.
    pub model: Option<String>,
    /// What ends it.
    pub bound: Bound,
    /// The next larger value, and the least it would need, where memory ends it.
    pub next: Option<NextLarger>,
    /// The answer in a sentence.
    pub words: String,
    /// The settings that reach it.
    pub settings: Settings,
    /// Their planned peak.
    #[ts(type = "number")]
    pub planned_bytes: u64,
    /// The device's memory.
    pub budget: Budget,
    /// How long a run with them takes.
    pub time: TimeEstimate,
    /// The same for the plan as it is without the question, where there is one that fits.
    pub usual: Option<TimeEstimate>,
    /// Planned with this config, it is this.
    pub config: RunConfig,
}

/// What does not fit any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct NextLarger {
    /// Tokens, rank, sequences or parameters.
    #[ts(type = "number")]
    pub value: u64,
    /// The model's id in the catalogue, where models were compared.
    pub model: Option<String>,
    /// The least it needs.
    #[ts(type = "number")]
    pub planned_bytes: u64,
}

/// A range of values, and the config that asks for each.
struct Ladder<'a> {
    quantity: Quantity,
    /// Ascending.
    values: Vec<usize>,
    /// What ends the range itself.
    end: Bound,
    config: &'a dyn Fn(usize) -> RunConfig,
    plan: &'a dyn Fn(&RunConfig) -> Result<Proposal, Error>,
    /// [`remedies`] for what does not fit even at the least value.
    remedies: &'a dyn Fn(&RunConfig, &Proposal) -> Vec<super::Remedy>,
}

impl Ladder<'_> {
    /// Climbs as far as memory goes.
    fn climb(&self, usual: Option<TimeEstimate>) -> Result<Largest, Error> {
        let at = |i: usize| -> Result<(RunConfig, Proposal), Error> {
            let config = (self.config)(self.values[i]);
            let proposal = (self.plan)(&config)?;
            Ok((config, proposal))
        };
        let (mut config, mut best) = at(0)?;
        if !best.fits() {
            return Err(Error::DoesNotFit {
                device: best.budget.device.clone(),
                needed_bytes: best.planned_bytes,
                budget_bytes: best.budget.budget_bytes,
                remedies: (self.remedies)(&config, &best),
            });
        }
        // `fitting` fits and `beyond` does not, or is past the end.
        let (mut fitting, mut beyond) = (0, self.values.len());
        let mut next = None;
        while beyond - fitting > 1 {
            let middle = (fitting + beyond) / 2;
            let (tried, proposal) = at(middle)?;
            if proposal.fits() {
                (fitting, config, best) = (middle, tried, proposal);
            } else {
                beyond = middle;
                next = Some(NextLarger {
                    value: self.values[middle] as u64,
                    model: None,
                    planned_bytes: proposal.planned_bytes,
                });
            }
        }
        let bound = if next.is_some() { Bound::Memory } else { self.end };
        let value = self.values[fitting] as u64;
        Ok(largest(self.quantity, (value, None), (bound, next), config, best, usual))
    }
}

/// The longest sequence, one at a time and as full as it can be.
///
/// # Errors
/// As [`super::plan`]; [`Error::DoesNotFit`] where not even the shortest fits.
pub fn longest(shape: &ModelShape, config: &RunConfig, hardware: &Hardware) -> Result<Largest, Error> {
    let sums = Sums::default();
    let with = |length: usize| {
        let mut config = config.clone();
        (config.data.length, config.micro_batch) = (Some(length), Some(1));
        if config.accumulation.is_some() {
            config.effective_batch = None;
        }
        config
    };
    // The data is as long as the sequence that is asked for.
    let plan = |config: &RunConfig| {
        let data = assumed_examples(config.data.length.unwrap_or(ASSUMED_LENGTH));
        check::check(shape, &data, config, hardware)?;
        Task::new(shape, &data, hardware, &sums).propose(config)
    };
    let usual = config.data.length.unwrap_or(ASSUMED_LENGTH).min(shape.max_positions);
    let usual = plan(&RunConfig { data: with(usual).data, ..config.clone() })?;
    let most = shape.max_positions.max(2);
    let mut values: Vec<usize> = (1..=most / LENGTH_STEP).map(|n| n * LENGTH_STEP).collect();
    if !most.is_multiple_of(LENGTH_STEP) {
        values.push(most);
    }
    let least = assumed_examples(values[0]);
    Ladder {
        quantity: Quantity::Length,
        values,
        end: Bound::Model,
        config: &with,
        plan: &plan,
        remedies: &|config, proposal| remedies(&Task::new(shape, &least, hardware, &sums), config, proposal),
    }
    .climb(fitting_time(usual))
}

/// The largest rank, at the length that the plan proposes.
///
/// # Errors
/// As [`longest`].
pub fn largest_rank(
    shape: &ModelShape,
    data: &DataStats,
    config: &RunConfig,
    hardware: &Hardware,
) -> Result<Largest, Error> {
    check::check(shape, data, config, hardware)?;
    let sums = Sums::default();
    let task = Task::new(shape, data, hardware, &sums);
    let usual = task.propose(config)?;
    let with = |rank: usize| {
        let mut config = config.clone();
        config.data.length = Some(usual.settings.length);
        with_rank(&mut config, rank);
        config
    };
    // What the narrowest adapted layer can use.
    let narrowest = config.lora.targets.iter().map(|&target| shape.linear(target)).map(|(o, i)| o.min(i)).min();
    Ladder {
        quantity: Quantity::Rank,
        values: (1..=narrowest.unwrap_or(1).min(MOST_RANK)).collect(),
        end: Bound::Model,
        config: &with,
        plan: &|config| task.propose(config),
        remedies: &|config, proposal| remedies(&task, config, proposal),
    }
    .climb(fitting_time(usual.clone()))
}

/// The most sequences at once, at the length that the plan proposes. Any multiple of it is a batch that fits too, by accumulation.
///
/// # Errors
/// As [`longest`].
pub fn largest_micro_batch(
    shape: &ModelShape,
    data: &DataStats,
    config: &RunConfig,
    hardware: &Hardware,
) -> Result<Largest, Error> {
    check::check(shape, data, config, hardware)?;
    let sums = Sums::default();
    let task = Task::new(shape, data, hardware, &sums);
    let usual = task.propose(config)?;
    let with = |micro_batch: usize| {
        let mut config = config.clone();
        config.data.length = Some(usual.settings.length);
        (config.micro_batch, config.accumulation, config.effective_batch) = (Some(micro_batch), Some(1), None);
        config
    };
    Ladder {
        quantity: Quantity::MicroBatch,
        values: (1..=MOST_MICRO_BATCH).collect(),
        end: Bound::Most,
        config: &with,
        plan: &|config| task.propose(config),
        remedies: &|config, proposal| remedies(&task, config, proposal),
    }
    .climb(fitting_time(usual.clone()))
}

/// The largest of `models` that fits; of equally large ones the first. Nothing where none does.
///
/// # Errors
/// As [`super::plan`] for every one of the models.
pub fn largest_model(
    models: &[CatalogueModel],
    data: &dyn Fn(&ModelShape) -> DataStats,
    config: &RunConfig,
    hardware: &Hardware,
) -> Result<Option<Largest>, Error> {
    let mut descending: Vec<&CatalogueModel> = models.iter().collect();
    descending.sort_by_key(|model| std::cmp::Reverse(model.shape.params()));
    let mut next = None;
    let mut refused = None;
    for model in &descending {
        let (shape, data, sums) = (&model.shape, data(&model.shape), Sums::default());
        let proposal = check::check(shape, &data, config, hardware)
            .and_then(|()| Task::new(shape, &data, hardware, &sums).propose(config));
        let (value, id) = (shape.params() as u64, Some(model.id.clone()));
        match proposal {
            Ok(proposal) if proposal.fits() => {
                let config = RunConfig { model: model.id.clone().into(), ..config.clone() };
                let bound = if next.is_some() { Bound::Memory } else { Bound::Most };
                return Ok(Some(largest(Quantity::Model, (value, id), (bound, next), config, proposal, None)));
            }
            Ok(proposal) => next = Some(NextLarger { value, model: id, planned_bytes: proposal.planned_bytes }),
            Err(error) => refused = Some(error),
        }
    }
    match (next, refused) {
        (None, Some(error)) => Err(error),
        _ => Ok(None),
    }
}

/// Only what fits can be compared with.
fn fitting_time(usual: Proposal) -> Option<TimeEstimate> {
    usual.fits().then_some(usual.time)
}

fn largest(
    quantity: Quantity,
    (value, model): (u64, Option<String>),
    (bound, next): (Bound, Option<NextLarger>),
    config: RunConfig,
    proposal: Proposal,
    usual: Option<TimeEstimate>,
) -> Largest {
    let words = words(quantity, value, model.as_deref(), bound, next.as_ref());
    let Proposal { settings, planned_bytes, budget, time, .. } = proposal;
    Largest { quantity, value, model, bound, next, words, settings, planned_bytes, budget, time, usual, config }
}

fn words(quantity: Quantity, value: u64, model: Option<&str>, bound: Bound, next: Option<&NextLarger>) -> String {
    let n = format::count(value as usize);
    let name = |model: Option<&str>, params: u64| {
        format!("{} ({} parameters)", model.unwrap_or("the model"), format::count(params as usize))
    };
    let most = match quantity {
        Quantity::Length => format!("The longest sequence is {n} tokens, one at a time"),
        Quantity::Rank => format!("The largest rank is {n}"),
        Quantity::MicroBatch => format!("At most {} at once", format::counted(value as usize, "sequence")),
        Quantity::Model => format!("The largest model of the catalogue is {}", name(model, value)),
    };
    let end = match (bound, next) {
        (Bound::Memory, Some(next)) => {
            let what = match quantity {
                Quantity::Model => name(next.model.as_deref(), next.value),
                _ => format::count(next.value as usize),
            };
            format!("{what} would need {}", format::bytes(next.planned_bytes))
        }
        (Bound::Model, _) => "the model takes no more".into(),
        (Bound::Most | Bound::Memory, _) => "more is not tried".into(),
    };
    format!("{most}: {end}.")
}
