//! Described cards: `assets/profiles/*.toml`, one file a card, each figure with its source in words.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::bundled::FILES;
use super::{Card, Hardware, Measurements, PcieLink, Processor, TrainOn, nvml};

static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    // A test reads every file, so a broken one cannot ship.
    FILES.iter().filter_map(|(_, text)| Profile::parse(text).ok()).collect()
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
    /// Board power, in watts; of a laptop card the most that a laptop may give it, at which it has these rates.
    pub board_power_w: f64,
    /// Price at release in US dollars, without tax. Laptop cards have none, and of some others none was announced.
    pub release_price_usd: Option<f64>,
}

/// Source of a figure that a person gave.
pub(super) const BY_HAND: &str = "entered by hand";

/// All bundled profiles.
pub fn profiles() -> &'static [Profile] {
    &PROFILES
}

/// The bundled profile with this id.
pub fn profile(id: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.id == id)
}

/// What a driver shows of a card's memory can be a sixteenth less than there is, where errors are corrected in it.
const MEMORY_TOLERANCE: f64 = 0.1;

/// The bundled profile of this card: of those with the driver's name the nearest in memory, if it is near at all.
///
/// Drivers give some cards of desktops and of laptops one name (GeForce RTX 2060, 2070 and 2080); of these it is the
/// nearest in board power, and the laptop's where the driver names no power, as many laptops' do not. Where only the
/// kind of memory differs (GeForce RTX 3060 Ti, 4070) it is the one that was released first.
pub fn profile_of(card: &Card) -> Option<&'static Profile> {
    let memory_off = |of: &ProfileCard| (card.memory_bytes as f64 / of.memory_bytes as f64 - 1.0).abs();
    let power_off = |of: &ProfileCard| (card.board_power_w.unwrap_or(0.0) - of.board_power_w).abs();
    let described = PROFILES.iter().filter_map(|profile| Some((profile, profile.card.as_ref()?)));
    let same = described.filter(|(_, of)| short_name(&of.name) == short_name(&card.name));
    let near = same.filter(|(_, of)| memory_off(of) < MEMORY_TOLERANCE);
    let nearest = near.min_by(|(_, a), (_, b)| {
        memory_off(a).total_cmp(&memory_off(b)).then_with(|| power_off(a).total_cmp(&power_off(b)))
    });
    nearest.map(|(profile, _)| profile)
}

/// Without the maker, whom drivers before 2021 left out. Case is kept: "2070 Super" is a laptop's, "2070 SUPER" is not.
fn short_name(name: &str) -> &str {
    name.strip_prefix("NVIDIA ").unwrap_or(name)
}

impl Profile {
    /// Reads a profile's TOML; the error says where and why not.
    pub(super) fn parse(text: &str) -> Result<Profile, String> {
        let profile: Profile = toml::from_str(text).map_err(|e| e.to_string())?;
        profile.check()?;
        Ok(profile)
    }

    /// Refuses figures with which nothing can be planned, naming the first.
    pub(super) fn check(&self) -> Result<(), String> {
        let of_card = |card: &ProfileCard| {
            let whole = [
                ("card.memory_bytes", card.memory_bytes),
                ("card.bandwidth_bytes_per_s", card.bandwidth_bytes_per_s),
                ("card.tensor_flops_per_s", card.tensor_flops_per_s),
                ("card.bus_bytes_per_s", card.bus_bytes_per_s),
            ];
            let power = ("card.board_power_w", u64::from(card.board_power_w > 0.0 && card.board_power_w.is_finite()));
            [power].into_iter().chain(whole)
        };
        let host = [("host.n_cores", self.host.n_cores as u64), ("host.memory_bytes", self.host.memory_bytes)];
        let mut figures = host.into_iter().chain(self.card.iter().flat_map(of_card));
        match figures.find(|&(_, value)| value == 0) {
            Some((name, _)) => Err(format!("{name} is 0")),
            None => Ok(()),
        }
    }

    /// As a file of its own.
    pub(super) fn to_toml(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|e| e.to_string())
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
            is_wsl: false,
            advice: Vec::new(),
            measurements: Measurements::default(),
        }
    }

    /// `computer` as it would be with this profile's card in it, without the rates measured there.
    pub fn in_computer(&self, computer: &Hardware) -> Hardware {
        // A clone of all of it would copy every measurement only to drop it.
        Hardware {
            processor: computer.processor.clone(),
            memory_total_bytes: computer.memory_total_bytes,
            memory_available_bytes: computer.memory_available_bytes,
            disks: computer.disks.clone(),
            is_wsl: computer.is_wsl,
            ..self.hardware()
        }
    }
}

impl ProfileCard {
    fn card(&self) -> Card {
        Card {
            name: self.name.clone(),
            memory_bytes: self.memory_bytes,
            compute_capability: Some(self.compute_capability.clone()),
            bandwidth_bytes_per_s: Some(self.bandwidth_bytes_per_s as f64),
            tensor_flops_per_s: Some(self.tensor_flops_per_s as f64),
            bus: Some(self.bus.clone()),
            bus_bytes_per_s: Some(self.bus_bytes_per_s as f64),
            board_power_w: Some(self.board_power_w),
            release_price_usd: self.release_price_usd,
            is_laptop: nvml::is_laptop(&self.name),
            ..Card::default()
        }
    }
}

/// Adds to a found card what its driver does not say and its profile does. A laptop card's rates are those at the most
/// power that a laptop may give it; a part of a divided card has its share.
pub(super) fn complete(card: &mut Card) {
    let whole =
        Card { memory_bytes: card.mig.as_ref().map_or(card.memory_bytes, |mig| mig.whole_bytes), ..card.clone() };
    let profile = profile_of(&whole);
    let described = profile.and_then(|profile| profile.card.as_ref());
    card.bus_bytes_per_s = card.bus_bytes_per_s.or_else(|| bus_bytes_per_s(card, described));
    let (Some(profile), Some(described)) = (profile, described.map(ProfileCard::card)) else { return };
    let (memory_share, compute_share) = match &card.mig {
        // Slices of memory have their own controllers.
        Some(mig) => (Some(card.memory_bytes as f64 / mig.whole_bytes as f64), mig.compute_share()),
        None => (Some(1.0), Some(1.0)),
    };
    let share = |of: Option<f64>, share: Option<f64>| Some(of? * share?);
    card.bandwidth_bytes_per_s =
        card.bandwidth_bytes_per_s.or_else(|| share(described.bandwidth_bytes_per_s, memory_share));
    card.tensor_flops_per_s = card.tensor_flops_per_s.or_else(|| share(described.tensor_flops_per_s, compute_share));
    card.compute_capability = card.compute_capability.take().or(described.compute_capability);
    card.bus = card.bus.take().or(described.bus);
    card.board_power_w = card.board_power_w.or(described.board_power_w);
    card.release_price_usd = card.release_price_usd.or(described.release_price_usd);
    card.is_laptop |= profile.id.contains("-laptop-");
}

/// What copies reach over the link there is: the profile's figure, less where the slot has fewer lanes or is older.
fn bus_bytes_per_s(card: &Card, described: Option<&ProfileCard>) -> Option<f64> {
    let link = card.link_under_load();
    let Some(described) = described else { return link.map(PcieLink::bytes_per_s) };
    let full = described.bus_bytes_per_s as f64;
    let share = link.zip(PcieLink::parse(&described.bus)).map(|(link, most)| link.bytes_per_s() / most.bytes_per_s());
    Some(full * share.unwrap_or(1.0).min(1.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What a test needs of a bundled card.
    fn described(id: &str) -> &'static ProfileCard {
        profile(id).and_then(|p| p.card.as_ref()).unwrap_or_else(|| panic!("{id} has no card"))
    }

    /// A card as a driver reports it: name, mebibytes and the power limit, if it says one.
    fn found(name: &str, mebibytes: u64, board_power_w: Option<f64>) -> Card {
        Card {
            name: name.into(),
            memory_bytes: mebibytes << 20,
            board_power_w,
            compute_capability: Some("8.6".into()),
            bus: Some("PCIe 4.0 x16".into()),
            ..Card::default()
        }
    }

    fn id_of(card: &Card) -> Option<&'static str> {
        profile_of(card).map(|profile| profile.id.as_str())
    }

    #[test]
    fn every_bundled_profile_reads_and_every_figure_has_a_source() {
        for (id, text) in FILES {
            let profile = Profile::parse(text).unwrap_or_else(|e| panic!("{id}: {e}"));
            let table: toml::Table = toml::from_str(text).expect("toml");
            let card = table.get("card").and_then(|card| card.as_table());
            let keys: BTreeSet<&str> = card.into_iter().flat_map(|card| card.keys()).map(String::as_str).collect();
            let figures = keys.into_iter().filter(|key| !["name", "tensor_dtype"].contains(key));
            let needed: BTreeSet<&str> = figures.chain(["host"]).collect();
            let given: BTreeSet<&str> = profile.source.keys().map(String::as_str).collect();
            assert_eq!(given, needed, "{id}: sources and figures differ");
            assert!(profile.source.values().all(|source| source.len() > 3), "{id}: a source says nothing");
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
        let mut listed: Vec<&str> = FILES.iter().map(|(id, _)| *id).collect();
        listed.sort_unstable();
        assert_eq!(listed, names, "the list in bundled.rs and assets/profiles differ");
        for (profile, (id, _)) in profiles().iter().zip(FILES) {
            assert_eq!(&profile.id, id, "a profile's id is not its file's name");
        }
        let n_names = profiles().iter().map(|profile| &profile.name).collect::<BTreeSet<_>>().len();
        assert_eq!(n_names, profiles().len(), "two profiles call themselves the same");
    }

    #[test]
    fn every_figure_of_a_card_is_plausible() {
        for Profile { id, card, .. } in profiles() {
            let Some(card) = card else { continue };
            let gib = card.memory_bytes >> 30;
            assert!(card.memory_bytes == gib << 30 && (4..=192).contains(&gib), "{id}: {} bytes", card.memory_bytes);
            assert!(id.ends_with(&format!("-{gib}gb")), "{id} has {gib} GiB");
            assert!((90e9..9e12).contains(&(card.bandwidth_bytes_per_s as f64)), "{id}");
            assert!((9e12..3e15).contains(&(card.tensor_flops_per_s as f64)), "{id}");
            assert!((4e9..60e9).contains(&(card.bus_bytes_per_s as f64)), "{id}");
            assert!((40.0..=1000.0).contains(&card.board_power_w), "{id}");
            assert!(card.release_price_usd.is_none_or(|price| (100.0..=15_000.0).contains(&price)), "{id}");
            let is_laptop = id.contains("-laptop-");
            // No laptop cools more, and none is sold without its laptop.
            assert!(!is_laptop || (card.board_power_w <= 175.0 && card.release_price_usd.is_none()), "{id}");
            // Operations a byte of memory traffic: what these chips are built for.
            let intensity = card.tensor_flops_per_s as f64 / card.bandwidth_bytes_per_s as f64;
            assert!((40.0..500.0).contains(&intensity), "{id}: {intensity:.0} operations a byte");
            let dtype = if card.compute_capability == "7.5" { "f16" } else { "bf16" };
            assert_eq!(card.tensor_dtype, dtype, "{id}");
            // What the lanes could carry, of which copies reach most.
            let (generation, lanes) =
                card.bus.strip_prefix("PCIe ").and_then(|bus| bus.split_once(" x")).expect("PCIe");
            let lane = match generation {
                "3.0" => 0.985e9,
                "4.0" => 1.969e9,
                "5.0" => 3.938e9,
                _ => panic!("{id}: {generation}"),
            };
            let most = lane * lanes.parse::<f64>().expect("lanes");
            let shared_by = if id.starts_with("a16-") { 4.0 } else { 1.0 };
            assert!((0.6..0.97).contains(&(card.bus_bytes_per_s as f64 * shared_by / most)), "{id}: {}", card.bus);
        }
    }

    #[test]
    fn within_a_series_the_dearer_card_computes_faster() {
        let series: [&[&str]; 9] = [
            &["2060-6gb", "2060-super-8gb", "2070-8gb", "2070-super-8gb", "2080-8gb", "2080-super-8gb", "2080-ti-11gb"],
            &["3050-6gb", "3050-8gb", "3060-12gb", "3060-ti-8gb", "3070-8gb", "3070-ti-8gb", "3080-10gb", "3080-12gb"],
            &["3080-12gb", "3080-ti-12gb", "3090-24gb", "3090-ti-24gb"],
            &["4060-8gb", "4060-ti-8gb", "4070-12gb", "4070-super-12gb", "4070-ti-12gb", "4070-ti-super-16gb"],
            &["4070-ti-super-16gb", "4080-16gb", "4080-super-16gb", "4090-d-24gb", "4090-24gb"],
            &["5050-8gb", "5060-8gb", "5060-ti-8gb", "5070-12gb", "5070-ti-16gb", "5080-16gb", "5090-32gb"],
            &["3050-laptop-4gb", "3050-ti-laptop-4gb", "3060-laptop-6gb", "3070-laptop-8gb", "3080-laptop-16gb"],
            &["4050-laptop-6gb", "4060-laptop-8gb", "4070-laptop-8gb", "4080-laptop-12gb", "4090-laptop-16gb"],
            &["5050-laptop-8gb", "5060-laptop-8gb", "5070-laptop-8gb", "5080-laptop-16gb", "5090-laptop-24gb"],
        ];
        for ids in series {
            let rates: Vec<u64> = ids.iter().map(|id| described(&format!("rtx-{id}")).tensor_flops_per_s).collect();
            assert!(rates.is_sorted_by(|a, b| a < b), "{ids:?}: {rates:?}");
        }
    }

    #[test]
    fn every_described_card_finds_its_own_profile_or_the_one_it_cannot_be_told_from() {
        for Profile { id, card, .. } in profiles() {
            let Some(card) = card else { continue };
            let expected = match id.as_str() {
                "rtx-3060-ti-gddr6x-8gb" => "rtx-3060-ti-8gb",
                "rtx-4070-gddr6-12gb" => "rtx-4070-12gb",
                id => id,
            };
            assert_eq!(id_of(&card.card()), Some(expected));
        }
    }

    #[test]
    fn a_card_is_found_by_what_its_driver_reports() {
        let cases = [
            ("NVIDIA GeForce RTX 4070 Laptop GPU", 8188, None, "rtx-4070-laptop-8gb"),
            ("NVIDIA GeForce RTX 4090", 24564, Some(450.0), "rtx-4090-24gb"),
            ("GeForce RTX 3060", 12053, Some(170.0), "rtx-3060-12gb"),
            ("NVIDIA GeForce RTX 3060", 8192, Some(170.0), "rtx-3060-8gb"),
            ("NVIDIA GeForce RTX 3080 Laptop GPU", 16384, Some(150.0), "rtx-3080-laptop-16gb"),
            ("NVIDIA GeForce RTX 4070 SUPER", 12282, Some(220.0), "rtx-4070-super-12gb"),
            // One name on desktops and laptops: the power limit tells, and that there is none.
            ("NVIDIA GeForce RTX 2060", 6144, Some(160.0), "rtx-2060-6gb"),
            ("NVIDIA GeForce RTX 2060", 6144, Some(80.0), "rtx-2060-laptop-6gb"),
            ("NVIDIA GeForce RTX 2060", 6144, None, "rtx-2060-laptop-6gb"),
            ("NVIDIA GeForce RTX 2060", 12288, None, "rtx-2060-12gb"),
            ("NVIDIA GeForce RTX 2070 Super", 8192, Some(115.0), "rtx-2070-super-laptop-8gb"),
            ("NVIDIA GeForce RTX 2070 SUPER", 8192, Some(215.0), "rtx-2070-super-8gb"),
            ("NVIDIA GeForce RTX 2080 with Max-Q Design", 8192, None, "rtx-2080-max-q-laptop-8gb"),
            // A sixteenth is taken by the correction of errors.
            ("Tesla T4", 15360, Some(70.0), "t4-16gb"),
            ("NVIDIA A10G", 23028, Some(300.0), "a10g-24gb"),
            ("NVIDIA L4", 23034, Some(72.0), "l4-24gb"),
            ("NVIDIA A100-SXM4-40GB", 40960, Some(400.0), "a100-sxm-40gb"),
            ("NVIDIA H100 80GB HBM3", 81559, Some(700.0), "h100-sxm-80gb"),
            ("NVIDIA H200", 143771, Some(700.0), "h200-sxm-141gb"),
            ("NVIDIA RTX A2000 12GB", 12282, Some(70.0), "rtx-a2000-12gb"),
            ("NVIDIA RTX 6000 Ada Generation", 49140, Some(300.0), "rtx-6000-ada-48gb"),
        ];
        for (name, mebibytes, power, id) in cases {
            assert_eq!(id_of(&found(name, mebibytes, power)), Some(id), "{name}, {mebibytes} MiB, {power:?} W");
        }
        assert_eq!(id_of(&found("NVIDIA GeForce GTX 1080", 8192, None)), None);
        assert_eq!(id_of(&found("NVIDIA GeForce RTX 3060", 4096, None)), None);
    }

    #[test]
    fn a_found_card_gets_what_its_driver_does_not_say() {
        let mut card = found("NVIDIA GeForce RTX 3060", 12_044, Some(180.0)); // what a driver reports of 12 GiB
        complete(&mut card);
        assert_eq!((card.bandwidth_bytes_per_s, card.tensor_flops_per_s), (Some(360e9), Some(25.5e12)));
        assert_eq!((card.board_power_w, card.release_price_usd), (Some(180.0), Some(329.0)));
        let mut laptop = found("NVIDIA GeForce RTX 3060 Laptop GPU", 6144, None);
        complete(&mut laptop);
        assert_eq!((laptop.bandwidth_bytes_per_s, laptop.board_power_w), (Some(336e9), Some(115.0)));
        assert_eq!(laptop.release_price_usd, None);
        let mut unknown = found("NVIDIA GeForce RTX 3060 Laptop GPU", 12_044, None);
        complete(&mut unknown);
        assert_eq!(unknown.bandwidth_bytes_per_s, None);
        // Told from the desktop's by its power alone.
        let mut nameless = found("NVIDIA GeForce RTX 2060", 6144, Some(80.0));
        complete(&mut nameless);
        assert!(nameless.is_laptop && laptop.is_laptop && !card.is_laptop);
    }

    #[test]
    fn a_link_with_fewer_lanes_or_in_an_older_slot_copies_slower() {
        let rate = |name: &str, bus: Option<&str>, n_lanes: Option<u32>| {
            let link = n_lanes.map(|n_lanes| PcieLink { generation: 1, n_lanes });
            let bus = bus.map(Into::into);
            let mut card = Card { bus, link, bus_bytes_per_s: None, ..found(name, 12_044, None) };
            complete(&mut card);
            card.bus_bytes_per_s
        };
        let known = "NVIDIA GeForce RTX 3060";
        assert_eq!(rate(known, Some("PCIe 4.0 x16"), Some(16)), Some(22e9));
        assert_eq!(rate(known, Some("PCIe 4.0 x16"), Some(4)), Some(5.5e9));
        assert_eq!(rate(known, Some("PCIe 3.0 x16"), Some(16)), Some(12e9));
        assert_eq!(rate(known, None, None), Some(22e9));
        assert_eq!(rate("NVIDIA Card Of Next Year", Some("PCIe 5.0 x8"), None), Some(24e9));
        assert_eq!(rate("NVIDIA Card Of Next Year", None, None), None);
    }

    #[test]
    fn the_usual_speed_of_a_link_is_that_of_the_profiles() {
        for Profile { id, card, .. } in profiles() {
            let Some(card) = card else { continue };
            let shared_by = if id.starts_with("a16-") { 4.0 } else { 1.0 };
            let usual = PcieLink::parse(&card.bus).expect("PCIe").bytes_per_s();
            let off = card.bus_bytes_per_s as f64 * shared_by / usual;
            assert!((0.9..1.1).contains(&off), "{id}: {off}");
        }
    }
}
