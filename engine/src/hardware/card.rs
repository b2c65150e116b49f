//! A graphics card as a plain value, whoever said what it is.

use std::fmt;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::{Throttle, capability};
use crate::format;

/// Compute capability of the oldest cards that the kernels are compiled for (`ops/build.rs`).
pub(crate) const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// A card, measured by its driver or described by a profile. What neither says is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Card {
    /// As the driver calls it, "NVIDIA GeForce RTX 3060".
    pub name: String,
    /// Its number for life, "GPU-…"; of a divided card, that of the part a run has.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub uuid: Option<String>,
    /// "Ampere".
    #[serde(default)]
    #[ts(optional = nullable)]
    pub architecture: Option<String>,
    /// Memory on the card; of a divided card, in the part a run has.
    #[ts(type = "number")]
    pub memory_bytes: u64,
    /// Of this, free now.
    #[ts(type = "number | null")]
    pub memory_free_bytes: Option<u64>,
    /// Of this, what the driver keeps for itself.
    #[serde(default)]
    #[ts(optional = nullable, type = "number | null")]
    pub memory_reserved_bytes: Option<u64>,
    /// Other programs on the card, those that hold most first; empty too where the driver does not say.
    #[serde(default)]
    #[ts(optional, as = "Option<Vec<MemoryUser>>")]
    pub memory_users: Vec<MemoryUser>,
    /// "8.6".
    pub compute_capability: Option<String>,
    /// Driver version, "581.42".
    pub driver: Option<String>,
    /// The newest CUDA this driver runs, "13.0".
    #[serde(default)]
    #[ts(optional = nullable)]
    pub cuda: Option<String>,
    /// Memory bandwidth.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Dense 16-bit matrix rate with 32-bit accumulation, floating-point operations per second.
    pub tensor_flops_per_s: Option<f64>,
    /// The link to the system at its most, "PCIe 4.0 x16".
    pub bus: Option<String>,
    /// The link now. An idle card lowers the generation, not the lanes.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub link: Option<PcieLink>,
    /// What copies from pinned system memory reach over the lanes there are, in one direction.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub bus_bytes_per_s: Option<f64>,
    /// Board power, in watts.
    pub board_power_w: Option<f64>,
    /// The most it may draw now, in watts.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub power_limit_w: Option<f64>,
    /// Price at release, in US dollars.
    pub release_price_usd: Option<f64>,
    /// Degrees Celsius now.
    pub temperature_c: Option<f64>,
    /// Where the card slows itself down.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub slowdown_c: Option<f64>,
    /// Power drawn now, in watts.
    pub power_w: Option<f64>,
    /// A laptop's card fed by the battery.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub on_battery: Option<bool>,
    /// Clock of the multiprocessors now.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub sm_clock_mhz: Option<f64>,
    /// At most.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub sm_clock_max_mhz: Option<f64>,
    /// Clock of the memory now.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub memory_clock_mhz: Option<f64>,
    /// At most.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub memory_clock_max_mhz: Option<f64>,
    /// What holds the clocks down now.
    #[serde(default)]
    #[ts(optional, as = "Option<Vec<Throttle>>")]
    pub throttle: Vec<Throttle>,
    /// Whether a display is driven by it.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub has_display: Option<bool>,
    /// A laptop's card: slower than its desktop namesake, and its link may have fewer lanes by design.
    #[serde(default)]
    #[ts(optional, as = "Option<bool>")]
    pub is_laptop: bool,
    /// How it is divided, where it is (multi-instance GPU).
    #[serde(default)]
    #[ts(optional = nullable)]
    pub mig: Option<Mig>,
}

/// A program that holds memory of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct MemoryUser {
    /// Process id.
    pub pid: u32,
    /// "chrome".
    pub name: Option<String>,
    /// How much; Windows does not say.
    #[ts(type = "number | null")]
    pub bytes: Option<u64>,
}

impl MemoryUser {
    /// "chrome 912 MB"; nothing where it has no name.
    pub fn words(&self) -> Option<String> {
        let name = self.name.as_deref()?;
        Some(self.bytes.map_or(name.to_string(), |bytes| format!("{name} {}", format::bytes(bytes))))
    }
}

/// A card divided into parts that do not see each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Mig {
    /// How many parts there are; without one nothing can compute on the card.
    pub n_parts: usize,
    /// The part a run has, "1g.18gb": one of seven slices of the multiprocessors, 18 GB.
    pub part: Option<String>,
    /// Memory of the whole card.
    #[ts(type = "number")]
    pub whole_bytes: u64,
}

impl Mig {
    /// Share of the multiprocessors in the part a run has: "1g" is one slice of seven.
    pub(super) fn compute_share(&self) -> Option<f64> {
        let n_slices: f64 = self.part.as_deref()?.split_once('g')?.0.parse().ok()?;
        Some(n_slices / 7.0)
    }
}

/// A PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct PcieLink {
    /// 4 is PCIe 4.0.
    pub generation: u32,
    /// 16 is x16.
    pub n_lanes: u32,
}

/// What copies from pinned system memory usually reach over 16 lanes, by generation, in bytes per second.
const USUAL_X16: [f64; 6] = [3e9, 6e9, 12e9, 22e9, 48e9, 96e9];

impl PcieLink {
    /// Reads "PCIe 4.0 x16".
    pub fn parse(text: &str) -> Option<PcieLink> {
        let (generation, n_lanes) = text.strip_prefix("PCIe ")?.split_once(" x")?;
        let generation = generation.split('.').next()?.parse().ok().filter(|&generation| generation > 0)?;
        Some(PcieLink { generation, n_lanes: n_lanes.parse().ok().filter(|&n| n > 0)? })
    }

    /// What copies from pinned system memory usually reach over it, in one direction.
    pub fn bytes_per_s(self) -> f64 {
        let index = (self.generation.max(1) as usize - 1).min(USUAL_X16.len() - 1);
        USUAL_X16[index] * f64::from(self.n_lanes) / 16.0
    }
}

impl fmt::Display for PcieLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.n_lanes)
    }
}

impl Card {
    /// The link at its most.
    pub fn link_at_most(&self) -> Option<PcieLink> {
        PcieLink::parse(self.bus.as_deref()?)
    }

    /// The link under load: the lanes there are now, at the generation that an idle card leaves and a busy one has.
    pub fn link_under_load(&self) -> Option<PcieLink> {
        let most = self.link_at_most();
        match (self.link, most) {
            (Some(now), Some(most)) => Some(PcieLink { n_lanes: now.n_lanes.min(most.n_lanes), ..most }),
            (now, most) => most.or(now),
        }
    }

    /// Whether a run can train on it, as far as it says: new enough, and if it is divided, then into something.
    pub fn is_usable(&self) -> bool {
        let capability = self.compute_capability.as_deref().and_then(capability);
        capability.is_none_or(|capability| capability >= LEAST_CAPABILITY)
            && self.mig.as_ref().is_none_or(|mig| mig.n_parts > 0)
    }

    /// What other programs hold of the memory.
    pub fn others_bytes(&self) -> Option<u64> {
        let used = self.memory_bytes.saturating_sub(self.memory_free_bytes?);
        Some(used.saturating_sub(self.memory_reserved_bytes.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_reads_what_it_writes_and_nothing_else() {
        let link = PcieLink { generation: 4, n_lanes: 8 };
        assert_eq!(PcieLink::parse(&link.to_string()), Some(link));
        assert_eq!(link.bytes_per_s(), 11e9);
        for text in ["", "SXM", "PCIe x16", "PCIe 0.0 x16", "PCIe 4.0 x0", "PCIe 4.0"] {
            assert_eq!(PcieLink::parse(text), None, "{text}");
        }
        // A generation that is not out yet is as fast as the newest that is known.
        assert_eq!(PcieLink { generation: 9, n_lanes: 16 }.bytes_per_s(), 96e9);
    }

    #[test]
    fn an_idle_link_is_judged_by_its_lanes() {
        let card = |bus: Option<&str>, link| Card { bus: bus.map(Into::into), link, ..Card::default() };
        let idle = PcieLink { generation: 1, n_lanes: 4 };
        let under_load = |card: Card| card.link_under_load().map(|link| link.to_string());
        assert_eq!(under_load(card(Some("PCIe 4.0 x16"), Some(idle))).as_deref(), Some("PCIe 4.0 x4"));
        assert_eq!(under_load(card(Some("PCIe 4.0 x16"), None)).as_deref(), Some("PCIe 4.0 x16"));
        assert_eq!(under_load(card(None, Some(idle))).as_deref(), Some("PCIe 1.0 x4"));
        assert_eq!(under_load(card(None, None)), None);
    }

    #[test]
    fn a_card_of_an_older_file_is_read_with_what_it_has() {
        let text = r#"{"name": "RTX", "memory_bytes": 5}"#;
        let card: Card = serde_json::from_str(text).expect("read");
        assert_eq!(card, Card { name: "RTX".into(), memory_bytes: 5, ..Card::default() });
    }
}
