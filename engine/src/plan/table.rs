//! Which card for which model: the same plan for every pair, without its reasons.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::beside::Sums;
use super::price::Price;
use super::propose::{Proposal, Task};
use super::{Error, check};
use crate::config::{BaseFormat, Recompute, RunConfig, Settings};
use crate::data::DataStats;
use crate::hardware::{Hardware, Profile};
use crate::model::{CatalogueModel, ModelShape};

/// Models against cards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct CardTable {
    /// Columns.
    pub cards: Vec<TableCard>,
    /// A model each.
    pub rows: Vec<TableRow>,
}

/// A column of a [`CardTable`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct TableCard {
    /// Its profile's id.
    pub id: String,
    /// "RTX 3060, 12 GB".
    pub name: String,
    /// Memory of the card; absent where the processor trains.
    #[ts(type = "number | null")]
    pub memory_bytes: Option<u64>,
    /// Price at release, in US dollars.
    pub release_price_usd: Option<f64>,
}

/// A row of a [`CardTable`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct TableRow {
    /// The model's id in the catalogue.
    pub id: String,
    /// "Llama 3.1 8B".
    pub title: String,
    /// A card each, in the columns' order.
    pub cells: Vec<TableCell>,
}

/// What a card does with a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum TableCell {
    /// As planned.
    Planned(CellPlan),
    /// The wishes cannot be had with this model or on this card; why.
    Refused(String),
}

/// How a run fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Fit {
    /// With all kept on the card: as fast as it is.
    Comfortable,
    /// At the price of time: some computed twice, waiting in system memory or taken in parts.
    Recomputing,
    /// Not at all.
    No,
}

/// A plan in short; [`super::plan`] for the same model, card and config says the same at length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct CellPlan {
    /// How it fits.
    pub fit: Fit,
    /// How the base is held.
    pub base: BaseFormat,
    /// Longest sequence.
    pub length: usize,
    /// Planned peak, the least there is where it does not fit.
    #[ts(type = "number")]
    pub planned_bytes: u64,
    /// What there is for it.
    #[ts(type = "number")]
    pub budget_bytes: u64,
    /// Tokens processed per second of training.
    pub tokens_per_s: f64,
    /// Seconds of the whole run.
    pub total_s: f64,
    /// Energy and money, where prices are given.
    pub price: Option<Price>,
}

impl Fit {
    pub(super) fn of(proposal: &Proposal, n_layers: usize) -> Self {
        let settings: &Settings = &proposal.settings;
        let keeps_all = (0..n_layers).all(|layer| settings.recompute_of(layer, n_layers) == Recompute::N);
        match (proposal.fits(), keeps_all && !settings.is_stretched()) {
            (false, _) => Fit::No,
            (true, true) => Fit::Comfortable,
            (true, false) => Fit::Recomputing,
        }
    }
}

/// Plans every model for every card. `data` says what there is to learn for a model: token counts differ between tokenizers, and
/// lengths end where a model's do.
pub fn card_table(
    models: &[&CatalogueModel],
    cards: &[&Profile],
    data: &dyn Fn(&ModelShape) -> DataStats,
    config: &RunConfig,
) -> CardTable {
    let computers: Vec<Hardware> = cards.iter().map(|profile| profile.hardware()).collect();
    let row = |model: &&CatalogueModel| {
        let (shape, data, sums) = (&model.shape, data(&model.shape), Sums::default());
        let cell = |hardware| match cell(shape, &data, config, hardware, &sums) {
            Ok(plan) => TableCell::Planned(plan),
            Err(error) => TableCell::Refused(error.to_string()),
        };
        TableRow { id: model.id.clone(), title: model.title.clone(), cells: computers.iter().map(cell).collect() }
    };
    let column = |profile: &&Profile| TableCard {
        id: profile.id.clone(),
        name: profile.name.clone(),
        memory_bytes: profile.card.as_ref().map(|card| card.memory_bytes),
        release_price_usd: profile.card.as_ref().and_then(|card| card.release_price_usd),
    };
    CardTable { cards: cards.iter().map(column).collect(), rows: models.iter().map(row).collect() }
}

fn cell(
    shape: &ModelShape,
    data: &DataStats,
    config: &RunConfig,
    hardware: &Hardware,
    sums: &Sums,
) -> Result<CellPlan, Error> {
    check::check(shape, data, config, hardware)?;
    let proposal = Task::new(shape, data, hardware, sums).propose(config)?;
    Ok(CellPlan {
        fit: Fit::of(&proposal, shape.n_layers),
        base: proposal.settings.base,
        length: proposal.settings.length,
        planned_bytes: proposal.planned_bytes,
        budget_bytes: proposal.budget.budget_bytes,
        tokens_per_s: proposal.time.tokens_per_s,
        total_s: proposal.time.total_s,
        price: config.prices.as_ref().map(|prices| Price::new(prices, hardware, &proposal.time)),
    })
}
