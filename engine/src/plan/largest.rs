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

impl Quantity {
    /// `config` with `value` of this; all but a length are asked for at the `length` that is usual.
    fn of(self, config: &RunConfig, length: usize, value: usize) -> RunConfig {
        let mut config = config.clone();
        config.data.length = Some(length);
        match self {
            Quantity::Length => {
                (config.data.length, config.micro_batch) = (Some(value), Some(1));
                if config.accumulation.is_some() {
                    config.effective_batch = None;
                }
            }
            Quantity::Rank => with_rank(&mut config, value),
            Quantity::MicroBatch => {
                (config.micro_batch, config.accumulation, config.effective_batch) = (Some(value), Some(1), None);
            }
            Quantity::Model => {}
        }
        config
    }
}

/// Climbs `values`, which ascend and end for `end`, as far as memory goes.
fn climb(
    quantity: Quantity,
    (values, end): (Vec<usize>, Bound),
    shape: &ModelShape,
    data: &DataStats,
    config: &RunConfig,
    hardware: &Hardware,
) -> Result<Largest, Error> {
    check::check(shape, data, config, hardware)?;
    let sums = Sums::default();
    let task = Task::new(shape, data, hardware, &sums);
    let usual = task.propose(config)?;
    let at = |i: usize| {
        let task = match quantity {
            // The data is as long as the sequence that is asked for.
            Quantity::Length => Task::new(shape, &assumed_examples(values[i]), hardware, &sums),
            _ => task.clone(),
        };
        (task, quantity.of(config, usual.settings.length, values[i]))
    };
    let fits = |i: usize| {
        let (task, config) = at(i);
        task.fits(&config)
    };
    if !fits(0) {
        let (task, config) = at(0);
        let least = task.propose(&config)?;
        return Err(Error::DoesNotFit {
            device: least.budget.device.clone(),
            needed_bytes: least.planned_bytes,
            budget_bytes: least.budget.budget_bytes,
            remedies: remedies(&task, &config, &least),
        });
    }
    // `fitting` fits and `beyond` does not, or is past the end.
    let (mut fitting, mut beyond) = (0, values.len());
    while beyond - fitting > 1 {
        let middle = (fitting + beyond) / 2;
        if fits(middle) { fitting = middle } else { beyond = middle }
    }
    let next = if beyond < values.len() {
        let (task, config) = at(beyond);
        let planned_bytes = task.propose(&config)?.planned_bytes;
        Some(NextLarger { value: values[beyond] as u64, model: None, planned_bytes })
    } else {
        None
    };
    let bound = if next.is_some() { Bound::Memory } else { end };
    let (task, config) = at(fitting);
    let best = task.propose(&config)?;
    // Only what fits can be compared with.
    let usual = usual.fits().then_some(usual.time);
    Ok(largest(quantity, (values[fitting] as u64, None), (bound, next), config, best, usual))
}

/// The longest sequence, one at a time and as full as it can be.
///
/// # Errors
/// As [`super::plan`]; [`Error::DoesNotFit`] where not even the shortest fits.
pub fn longest(shape: &ModelShape, config: &RunConfig, hardware: &Hardware) -> Result<Largest, Error> {
    let most = shape.max_positions.max(2);
    let mut values: Vec<usize> = (1..=most / LENGTH_STEP).map(|n| n * LENGTH_STEP).collect();
    if !most.is_multiple_of(LENGTH_STEP) {
        values.push(most);
    }
    let usual = config.data.length.unwrap_or(ASSUMED_LENGTH).min(shape.max_positions);
    let mut config = config.clone();
    config.data.length = Some(usual);
    climb(Quantity::Length, (values, Bound::Model), shape, &assumed_examples(usual), &config, hardware)
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
    // What the narrowest adapted layer can use.
    let narrowest = config.lora.targets.iter().map(|&target| shape.linear(target)).map(|(o, i)| o.min(i)).min();
    let narrowest = narrowest.unwrap_or(1);
    let end = if narrowest > MOST_RANK { Bound::Most } else { Bound::Model };
    climb(Quantity::Rank, ((1..=narrowest.min(MOST_RANK)).collect(), end), shape, data, config, hardware)
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
    let values = (1..=MOST_MICRO_BATCH).collect();
    climb(Quantity::MicroBatch, (values, Bound::Most), shape, data, config, hardware)
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
