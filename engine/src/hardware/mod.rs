//! What there is to train on: processor, memory, disks and cards, found ([`detect`]) or described (a [`Profile`], a file).
//!
//! [`Hardware`] is a plain value, and [`here`] is how everybody comes by it: what `HEARTH_HARDWARE` describes, else what
//! [`detect`] finds. The plan takes it by reference, so a run can be planned for a card that is not in the machine.

mod advice;
mod bounded;
mod bundled;
mod card;
mod detect;
mod disk;
mod error;
mod here;
mod nvml;
mod profile;
mod rates;
mod smi;
mod store;
mod watch;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::config::ComputeDtype;

pub use self::advice::{Advice, LEAST_DRIVER, advice};
pub(crate) use self::card::LEAST_CAPABILITY;
pub use self::card::{Card, MemoryUser, Mig, PcieLink};
pub use self::detect::{CardProbe, detect, detect_with};
pub use self::disk::measure_write;
pub use self::error::Error;
pub use self::here::{HARDWARE_FILE, card_free_bytes, described_by, here, here_to_train, watch};
pub use self::profile::{Host, Profile, ProfileCard, profile, profile_of, profiles};
pub use self::rates::{
    Basis, MeasuredOverhead, MeasuredRate, Measurements, Prediction, RATES_FILE, read_measurements, record,
};
pub use self::smi::{CardOutcome, CardReport};
pub use self::store::{CardStore, OwnCard};
pub use self::watch::{CardReading, CardSample, CardWatch, Throttle, WATCH_EVERY};

/// A computer, this one or a described one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Hardware {
    /// "This computer", or what a profile calls itself.
    pub name: String,
    /// The processor.
    pub processor: Processor,
    /// System memory this process can ever have: installed, or less in a container.
    #[ts(type = "number")]
    pub memory_total_bytes: u64,
    /// System memory free or quickly freed now.
    #[ts(type = "number")]
    pub memory_available_bytes: u64,
    /// NVIDIA cards.
    #[serde(default)]
    pub cards: Vec<Card>,
    /// How the search for cards ended, in words; absent in profiles.
    #[serde(default)]
    pub card_report: Option<CardReport>,
    /// Where a run trains.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Mounted disks.
    #[serde(default)]
    pub disks: Vec<Disk>,
    /// Linux inside Windows (WSL): the card is Windows', which says less of it.
    #[serde(default)]
    #[ts(optional, as = "Option<bool>")]
    pub is_wsl: bool,
    /// What a person would want to know before training here, with what to do about it.
    #[serde(default)]
    #[ts(optional, as = "Option<Vec<Advice>>")]
    pub advice: Vec<Advice>,
    /// What runs measured on it; [`read_measurements`] reads it, the plan prefers it to what it calculates.
    #[serde(default)]
    pub measurements: Measurements,
}

/// Where a run trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum TrainOn {
    /// In system memory. What [`detect`] says, cards or not, where this engine has no kernels for a card.
    #[default]
    Processor,
    /// On the first of `cards`.
    Card,
}

/// A processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Processor {
    /// As it calls itself, "AMD Ryzen 5 5600X 6-Core Processor".
    pub name: String,
    /// Physical cores this process may use.
    pub n_cores: usize,
    /// Hardware threads this process may use.
    pub n_threads: usize,
}

/// A mounted disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Disk {
    /// "D:\\", "/home".
    pub mount: PathBuf,
    /// Its size.
    #[ts(type = "number")]
    pub total_bytes: u64,
    /// Free for this user.
    #[ts(type = "number")]
    pub available_bytes: u64,
    /// Speed of a long write that is safe on the disk, where somebody measured it.
    #[serde(default)]
    #[ts(optional = nullable)]
    pub write_bytes_per_s: Option<f64>,
}

impl Hardware {
    /// The card a run trains on, where it does.
    pub fn training_card(&self) -> Option<&Card> {
        match self.train_on {
            TrainOn::Card => self.cards.first(),
            TrainOn::Processor => None,
        }
    }

    /// What `CUDA_VISIBLE_DEVICES` must be for CUDA to count the cards as they are listed here; `None` where a card has no
    /// known number.
    pub fn visible_devices(&self) -> Option<String> {
        let uuids: Option<Vec<&str>> = self.cards.iter().map(|card| card.uuid.as_deref()).collect();
        uuids.filter(|uuids| !uuids.is_empty()).map(|uuids| uuids.join(","))
    }

    /// Name of what a run trains on, under which measured rates are kept.
    pub fn device_name(&self) -> &str {
        self.training_card().map_or(&self.processor.name, |card| &card.name)
    }

    /// Element type a step computes in here unless somebody asks for another: bf16 on cards that have it (compute capability 8 and
    /// later, and cards that say nothing), f16 on those of 7.5, f32 on the processor.
    pub fn compute_dtype(&self) -> ComputeDtype {
        let Some(card) = self.training_card() else { return ComputeDtype::F32 };
        match card.compute_capability.as_deref().and_then(capability) {
            Some(capability) if capability < LEAST_CAPABILITY => ComputeDtype::F32,
            Some(capability) if capability < (8, 0) => ComputeDtype::F16,
            _ => ComputeDtype::Bf16,
        }
    }

    /// Whether a step can compute in it here. The processor has f32 only, a card what is proposed for it, f16 and f32.
    pub fn computes_in(&self, compute: ComputeDtype) -> bool {
        let proposed = self.compute_dtype();
        compute == ComputeDtype::F32
            || compute == proposed
            || (compute, proposed) == (ComputeDtype::F16, ComputeDtype::Bf16)
    }

    /// The disk that holds `path` (absolute), if it is listed.
    pub fn disk_of(&self, path: &Path) -> Option<&Disk> {
        self.disks.get(self.index_of_disk(path)?)
    }

    /// The same, to note what was measured on it.
    pub fn disk_of_mut(&mut self, path: &Path) -> Option<&mut Disk> {
        let index = self.index_of_disk(path)?;
        self.disks.get_mut(index)
    }

    fn index_of_disk(&self, path: &Path) -> Option<usize> {
        let holding = self.disks.iter().enumerate().filter(|(_, disk)| path.starts_with(&disk.mount));
        holding.max_by_key(|(_, disk)| disk.mount.components().count()).map(|(index, _)| index)
    }

    /// Reads hardware that `hearth hardware --json` wrote, or the same as TOML, or a card profile.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::NotHardware`], naming the file.
    pub fn read(path: &Path) -> Result<Hardware, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
        Self::parse(&text).map_err(|reason| Error::NotHardware { path: path.to_path_buf(), reason })
    }

    /// The same from text; JSON where it starts with a brace, else TOML.
    fn parse(text: &str) -> Result<Hardware, String> {
        let text = text.trim_start_matches('\u{feff}');
        let hardware: Hardware = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|e| e.to_string())?
        } else {
            match toml::from_str::<Hardware>(text) {
                Ok(hardware) => hardware,
                // Both readings failed: the reason is that of the kind the file looks like.
                Err(as_hardware) => match Profile::parse(text) {
                    Ok(profile) => profile.hardware(),
                    Err(_) if text.contains("memory_total_bytes") => return Err(as_hardware.to_string()),
                    Err(as_profile) => return Err(as_profile),
                },
            }
        };
        if hardware.train_on == TrainOn::Card && hardware.cards.is_empty() {
            return Err("it says train_on = \"card\" but lists no card".into());
        }
        if hardware.processor.n_cores == 0 {
            return Err("it says processor.n_cores = 0".into());
        }
        Ok(hardware)
    }
}

/// "8.6" as (8, 6).
fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    Some((major.trim().parse().ok()?, minor.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_computes_in_bf16_where_a_card_has_it_in_f16_on_turing_and_in_f32_elsewhere() {
        let mut hardware = profile("rtx-3060-12gb").expect("bundled").hardware();
        let mut computes = |capability: Option<&str>| {
            hardware.cards[0].compute_capability = capability.map(str::to_string);
            let all = [ComputeDtype::F32, ComputeDtype::F16, ComputeDtype::Bf16];
            (hardware.compute_dtype(), all.map(|compute| hardware.computes_in(compute)))
        };
        for later in [Some("8.0"), Some("8.6"), Some("9.0"), Some("12.0"), Some("?"), None] {
            assert_eq!(computes(later), (ComputeDtype::Bf16, [true; 3]), "{later:?}");
        }
        assert_eq!(computes(Some("7.5")), (ComputeDtype::F16, [true, true, false]));
        assert_eq!(computes(Some("7.0")), (ComputeDtype::F32, [true, false, false]));
        let processor = profile("no-card").expect("bundled").hardware();
        assert_eq!(processor.compute_dtype(), ComputeDtype::F32);
        assert!(!processor.computes_in(ComputeDtype::F16) && !processor.computes_in(ComputeDtype::Bf16));
    }

    #[test]
    fn hardware_reads_back_what_it_wrote_as_json_and_as_toml() {
        let hardware = profile("rtx-3060-12gb").expect("bundled").hardware();
        let json = serde_json::to_string_pretty(&hardware).expect("json");
        assert_eq!(Hardware::parse(&json).expect("json"), hardware);
        let text = toml::to_string(&hardware).expect("toml");
        assert_eq!(Hardware::parse(&text).expect("toml"), hardware);
    }

    #[test]
    fn a_file_that_is_no_hardware_is_refused_with_its_name() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("我的 card 🔥.toml");
        std::fs::write(&path, "name = \"x\"\n").expect("write");
        let error = Hardware::read(&path).expect_err("refused");
        assert!(error.to_string().contains("我的 card 🔥.toml"), "{error}");
        let error = Hardware::read(&folder.path().join("absent.json")).expect_err("refused");
        assert!(error.to_string().contains("absent.json"), "{error}");
    }

    #[test]
    fn a_file_that_trains_on_a_card_it_does_not_have_is_refused() {
        let mut hardware = profile("rtx-3060-12gb").expect("bundled").hardware();
        hardware.cards.clear();
        let json = serde_json::to_string(&hardware).expect("json");
        assert!(Hardware::parse(&json).expect_err("refused").contains("no card"));
    }

    #[test]
    fn the_disk_of_a_path_is_the_deepest_mount_that_holds_it() {
        let mut hardware = profile("no-card").expect("bundled").hardware();
        let disk =
            |mount: &str| Disk { mount: mount.into(), total_bytes: 2, available_bytes: 1, write_bytes_per_s: None };
        hardware.disks = vec![disk("/"), disk("/home"), disk("/ho")];
        assert_eq!(hardware.disk_of(Path::new("/home/ana/runs")).expect("listed").mount, Path::new("/home"));
        assert_eq!(hardware.disk_of(Path::new("/homework")).expect("listed").mount, Path::new("/"));
    }
}
