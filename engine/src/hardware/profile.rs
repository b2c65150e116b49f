//! Described cards: `assets/profiles/*.toml`, one file a card, each figure with its source in words.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::{Card, Hardware, Processor, TrainOn};

/// The bundled files, in the order in which they are offered.
const FILES: [&str; 16] = [
    include_str!("../../../assets/profiles/no-card.toml"),
    include_str!("../../../assets/profiles/rtx-2060-6gb.toml"),
    include_str!("../../../assets/profiles/rtx-2080-ti-11gb.toml"),
    include_str!("../../../assets/profiles/rtx-3060-12gb.toml"),
    include_str!("../../../assets/profiles/rtx-3070-8gb.toml"),
    include_str!("../../../assets/profiles/rtx-3080-10gb.toml"),
    include_str!("../../../assets/profiles/rtx-3090-24gb.toml"),
    include_str!("../../../assets/profiles/rtx-4060-8gb.toml"),
    include_str!("../../../assets/profiles/rtx-4060-ti-16gb.toml"),
    include_str!("../../../assets/profiles/rtx-4070-12gb.toml"),
    include_str!("../../../assets/profiles/rtx-4080-16gb.toml"),
    include_str!("../../../assets/profiles/rtx-4090-24gb.toml"),
    include_str!("../../../assets/profiles/rtx-5060-ti-16gb.toml"),
    include_str!("../../../assets/profiles/rtx-5070-12gb.toml"),
    include_str!("../../../assets/profiles/rtx-5080-16gb.toml"),
    include_str!("../../../assets/profiles/rtx-5090-32gb.toml"),
];

static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    // A test reads every file, so a broken one cannot ship.
    FILES.iter().filter_map(|text| Profile::parse(text).ok()).collect()
});

/// A described computer to plan for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
pub struct Profile {
    /// Stable name, `rtx-3060-12gb`.
    pub id: String,
    /// "RTX 3060, 12 GB".
    pub name: String,
    /// The computer around the card.
    pub host: Host,
    /// The card, if there is one.
    #[serde(default)]
    pub card: Option<ProfileCard>,
    /// Where each figure is from, in words.
    pub source: BTreeMap<String, String>,
}

/// The computer around a card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
pub struct Host {
    /// In words.
    pub processor: String,
    /// Physical cores.
    pub n_cores: usize,
    /// Installed system memory.
    #[ts(type = "number")]
    pub memory_bytes: u64,
    /// Of this, usually free.
    #[ts(type = "number")]
    pub memory_available_bytes: u64,
}

/// A card's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
pub struct ProfileCard {
    /// As the driver calls it.
    pub name: String,
    /// Memory on the card.
    #[ts(type = "number")]
    pub memory_bytes: u64,
    /// Memory bandwidth.
    #[ts(type = "number")]
    pub bandwidth_bytes_per_s: u64,
    /// `bf16`, or `f16` where the card has no bf16.
    pub tensor_dtype: String,
    /// Dense matrix rate in `tensor_dtype` with 32-bit accumulation, floating-point operations per second.
    #[ts(type = "number")]
    pub tensor_flops_per_s: u64,
    /// "8.6".
    pub compute_capability: String,
    /// "PCIe 4.0 x16".
    pub bus: String,
    /// What copies from pinned host memory reach.
    #[ts(type = "number")]
    pub bus_bytes_per_s: u64,
    /// Board power, in watts.
    pub board_power_w: f64,
}

/// All bundled profiles.
pub fn profiles() -> &'static [Profile] {
    &PROFILES
}

/// The bundled profile with this id.
pub fn profile(id: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.id == id)
}

impl Profile {
    /// Reads a profile's TOML; the error says where and why not.
    pub(super) fn parse(text: &str) -> Result<Profile, String> {
        let profile: Profile = toml::from_str(text).map_err(|e| e.to_string())?;
        if profile.host.n_cores == 0 {
            return Err("host.n_cores is 0".into());
        }
        Ok(profile)
    }

    /// A computer as described, with its card or without.
    pub fn hardware(&self) -> Hardware {
        Hardware {
            name: self.name.clone(),
            processor: Processor {
                name: self.host.processor.clone(),
                n_cores: self.host.n_cores,
                n_threads: 2 * self.host.n_cores,
            },
            memory_total_bytes: self.host.memory_bytes,
            memory_available_bytes: self.host.memory_available_bytes,
            cards: self.card.iter().map(ProfileCard::card).collect(),
            card_report: None,
            train_on: if self.card.is_some() { TrainOn::Card } else { TrainOn::Processor },
            disks: Vec::new(),
            rates: Vec::new(),
        }
    }

    /// `computer` as it would be with this profile's card in it, without the rates measured there.
    pub fn in_computer(&self, computer: &Hardware) -> Hardware {
        let described = self.hardware();
        Hardware {
            name: described.name,
            cards: described.cards,
            card_report: None,
            train_on: described.train_on,
            rates: Vec::new(),
            ..computer.clone()
        }
    }
}

impl ProfileCard {
    fn card(&self) -> Card {
        Card {
            name: self.name.clone(),
            memory_bytes: self.memory_bytes,
            memory_free_bytes: None,
            compute_capability: Some(self.compute_capability.clone()),
            driver: None,
            bandwidth_bytes_per_s: Some(self.bandwidth_bytes_per_s as f64),
            tensor_flops_per_s: Some(self.tensor_flops_per_s as f64),
            bus: Some(self.bus.clone()),
            board_power_w: Some(self.board_power_w),
            temperature_c: None,
            power_w: None,
        }
    }
}

/// Adds to a found card what its driver does not say and a profile of the same name and memory does. Laptop cards have
/// other names ("… Laptop GPU") and other rates, so they stay as they are.
pub(super) fn complete(card: &mut Card) {
    let same = |described: &&ProfileCard| {
        let ratio = card.memory_bytes as f64 / described.memory_bytes as f64;
        described.name == card.name && (0.9..1.1).contains(&ratio)
    };
    let Some(described) = PROFILES.iter().filter_map(|profile| profile.card.as_ref()).find(same) else { return };
    let described = described.card();
    card.bandwidth_bytes_per_s = card.bandwidth_bytes_per_s.or(described.bandwidth_bytes_per_s);
    card.tensor_flops_per_s = card.tensor_flops_per_s.or(described.tensor_flops_per_s);
    card.compute_capability = card.compute_capability.take().or(described.compute_capability);
    card.bus = card.bus.take().or(described.bus);
    card.board_power_w = card.board_power_w.or(described.board_power_w);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bundled_profile_reads_and_every_figure_has_a_source() {
        for text in FILES {
            let profile = Profile::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let table: toml::Table = toml::from_str(text).expect("toml");
            let figures = table.get("card").and_then(|card| card.as_table()).into_iter().flat_map(|card| card.keys());
            for figure in figures.filter(|key| !["name", "tensor_dtype"].contains(&key.as_str())) {
                assert!(profile.source.contains_key(figure), "{}: no source for {figure}", profile.id);
            }
            assert!(profile.source.contains_key("host"), "{}", profile.id);
        }
        assert_eq!(profiles().len(), FILES.len());
    }

    #[test]
    fn every_file_of_the_folder_is_bundled_under_its_own_name() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/profiles");
        let Ok(files) = std::fs::read_dir(&folder) else {
            panic!("{} is missing", folder.display());
        };
        let mut names: Vec<String> = files
            .map(|file| file.expect("listed").path())
            .filter(|path| path.extension().is_some_and(|e| e == "toml"))
            .map(|path| path.file_stem().expect("named").to_string_lossy().into_owned())
            .collect();
        names.sort();
        let mut ids: Vec<String> = profiles().iter().map(|profile| profile.id.clone()).collect();
        ids.sort();
        assert_eq!(names, ids);
    }

    #[test]
    fn a_found_card_gets_the_rates_of_its_profile_and_a_laptop_card_does_not() {
        let mut card = profile("rtx-3060-12gb").and_then(|p| p.card.as_ref()).expect("bundled").card();
        (card.bandwidth_bytes_per_s, card.tensor_flops_per_s) = (None, None);
        card.memory_bytes = 12_044 << 20; // what a driver reports of 12 GiB
        let mut laptop = Card { name: format!("{} Laptop GPU", card.name), ..card.clone() };
        let mut smaller = Card { memory_bytes: 8 << 30, ..card.clone() };
        complete(&mut card);
        assert_eq!(card.bandwidth_bytes_per_s, Some(360e9));
        complete(&mut laptop);
        complete(&mut smaller);
        assert_eq!((laptop.bandwidth_bytes_per_s, smaller.bandwidth_bytes_per_s), (None, None));
    }
}
