//! Energy of a run, and what it costs where prices are given.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::TimeEstimate;
use crate::config::Prices;
use crate::format;
use crate::hardware::Hardware;

/// Of a card's board power, what a run draws: its matrix products hold a card at its limit (seen on an H200 with an 8B model),
/// reading, norms and evaluations leave it below.
const BOARD_SHARE: f64 = 0.9;
/// A card whose board power nobody described.
const UNKNOWN_BOARD_W: f64 = 250.0;
/// The computer around a busy card, its power supply's losses included: assumed.
const HOST_W: f64 = 75.0;
/// A home computer whose processor trains, all of it: assumed.
const PROCESSOR_W: f64 = 120.0;

/// Energy and money of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Price {
    /// As given, "EUR".
    pub currency: String,
    /// Power of the whole computer while it trains, in watts.
    pub power_w: f64,
    /// Where that is from.
    pub power_words: String,
    /// Kilowatt-hours of the whole run.
    pub energy_kwh: f64,
    /// Its price, where a kilowatt-hour has one.
    pub energy_cost: Option<f64>,
    /// The price of the hours, where the computer is rented.
    pub rent_cost: Option<f64>,
}

impl Price {
    /// For a run of this time on this computer.
    pub(super) fn new(prices: &Prices, hardware: &Hardware, time: &TimeEstimate) -> Self {
        let (power_w, power_words) = power(prices, hardware);
        let hours = time.total_s / 3600.0;
        let energy_kwh = power_w * hours / 1000.0;
        Price {
            currency: prices.currency.clone(),
            power_w,
            power_words,
            energy_kwh,
            energy_cost: prices.per_kwh.map(|price| price * energy_kwh),
            rent_cost: prices.per_hour.map(|price| price * hours),
        }
    }

    /// "3.1 kWh at 228 W, 0.93 EUR; rented 2.4 EUR".
    pub fn words(&self) -> String {
        let money = |amount: f64| format!("{} {}", format::number(amount, 2), self.currency).trim_end().to_string();
        let mut words = format!("{} kWh at {:.0} W", format::plain(self.energy_kwh, 2), self.power_w);
        if let Some(cost) = self.energy_cost {
            words = format!("{words}, {}", money(cost));
        }
        if let Some(cost) = self.rent_cost {
            words = format!("{words}; rented {}", money(cost));
        }
        words
    }
}

fn power(prices: &Prices, hardware: &Hardware) -> (f64, String) {
    if let Some(power_w) = prices.power_w {
        return (power_w, "as given".into());
    }
    let percent = BOARD_SHARE * 100.0;
    // The driver may allow less than the board is made for.
    match hardware.training_card().map(|card| (card.board_power_w, card.power_limit_w)) {
        Some((Some(board), limit)) => {
            let (power_w, whose) = match limit.filter(|&limit| limit < board) {
                Some(limit) => (limit, "that its driver allows"),
                None => (board, "of the board"),
            };
            (
                BOARD_SHARE * power_w + HOST_W,
                format!(
                    "{percent:.0} % of the {power_w:.0} W {whose}, and {HOST_W:.0} W assumed for the rest of the computer"
                ),
            )
        }
        Some((None, _)) => (
            BOARD_SHARE * UNKNOWN_BOARD_W + HOST_W,
            format!("assumed: the board power of this card is not known; {HOST_W:.0} W are the rest of the computer"),
        ),
        None => (PROCESSOR_W, "assumed for a home computer whose processor is busy".into()),
    }
}
