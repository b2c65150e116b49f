//! How everybody comes by the hardware: what a file describes, else what there is.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use super::detect::CardProbe;
use super::{CardWatch, Error, Hardware, TrainOn, WATCH_EVERY, advice, detect, nvml};

/// Names a file to be read in place of a look at this computer: what `hearth hardware --json` wrote, the same as TOML, or
/// a card profile. Plans are made for what it describes.
pub const HARDWARE_FILE: &str = "HEARTH_HARDWARE";

/// The file that [`HARDWARE_FILE`] names, if it names one.
pub fn described_by() -> Option<PathBuf> {
    std::env::var_os(HARDWARE_FILE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The hardware to plan for: as [`HARDWARE_FILE`] describes it, else as it is found, with advice.
///
/// # Errors
/// Those of [`Hardware::read`]: a file that is named must be read, since planning for something else would go unnoticed.
pub fn here() -> Result<Hardware, Error> {
    from(described_by().as_deref())
}

fn from(file: Option<&Path>) -> Result<Hardware, Error> {
    let mut hardware = match file {
        Some(path) => Hardware::read(path)?,
        None => detect(),
    };
    hardware.advice = advice(&hardware);
    Ok(hardware)
}

/// [`here`], to train on: a card must be in this computer, and this engine must be able to use it.
///
/// # Errors
/// As [`here`], and [`Error::NotHere`].
pub fn here_to_train() -> Result<Hardware, Error> {
    let file = described_by();
    let hardware = from(file.as_deref())?;
    match file {
        Some(path) => to_train(hardware, path, detect),
        None => Ok(hardware),
    }
}

fn to_train(described: Hardware, path: PathBuf, found: impl FnOnce() -> Hardware) -> Result<Hardware, Error> {
    let Some(card) = described.training_card() else { return Ok(described) };
    let found = found();
    let is_here = found.training_card().is_some_and(|here| here.name == card.name);
    if is_here { Ok(described) } else { Err(Error::NotHere { card: card.name.clone(), path }) }
}

/// A watch on the card with one of `uuids` ("GPU-…", "MIG-…"), or on the first where none is given. Where the driver has no
/// library to ask, it never has a reading.
pub fn watch(train_on: TrainOn, uuids: Vec<String>) -> Option<CardWatch> {
    let source = nvml::source(CardProbe::default().libraries, uuids);
    (train_on == TrainOn::Card).then(|| CardWatch::start(source, WATCH_EVERY))
}

/// A driver that takes longer to say how much is free is not asked further.
const FREE_LIMIT: Duration = Duration::from_secs(2);

/// Memory free on the card with one of `uuids`, or on the one that CUDA will count first where none is given.
pub fn card_free_bytes(uuids: Vec<String>) -> Option<u64> {
    let uuids = match uuids.is_empty() {
        true => first_visible(std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())?,
        false => uuids,
    };
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any more where the time was over.
        let _ = sender.send(nvml::source(CardProbe::default().libraries, uuids)());
    });
    let reading = receiver.recv_timeout(FREE_LIMIT).ok()??.reading;
    Some(reading.total_bytes.saturating_sub(reading.used_bytes))
}

/// The card that CUDA counts first, as [`Hardware::visible_devices`] names it; empty is the driver's first. Who names it otherwise
/// may mean a card that the driver counts elsewhere, and then nothing is said.
fn first_visible(named: Option<&str>) -> Option<Vec<String>> {
    let Some(named) = named else { return Some(Vec::new()) };
    let first = named.split(',').next().unwrap_or_default().trim();
    (first.starts_with("GPU-") || first.starts_with("MIG-")).then(|| vec![first.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::profile;

    #[test]
    fn the_card_looked_at_before_cuda_opens_it_is_the_one_that_it_will_open() {
        assert_eq!(first_visible(None), Some(vec![]));
        let mut hardware = profile("rtx-4090-24gb").expect("bundled").hardware();
        hardware.cards.push(hardware.cards[0].clone());
        for (card, uuid) in hardware.cards.iter_mut().zip(["GPU-b", "GPU-a"]) {
            card.uuid = Some(uuid.into());
        }
        let named = hardware.visible_devices().expect("both are known");
        assert_eq!(first_visible(Some(&named)), Some(vec!["GPU-b".to_string()]));
        assert_eq!(first_visible(Some("MIG-c")), Some(vec!["MIG-c".to_string()]));
        for unknown in ["1,0", "", "-1"] {
            assert_eq!(first_visible(Some(unknown)), None, "{unknown:?}");
        }
    }

    #[test]
    fn a_described_computer_takes_the_place_of_this_one() {
        let folder = tempfile::Builder::new().prefix("我的 cards 🔥").tempdir().expect("folder");
        let path = folder.path().join("card.json");
        let mut described = profile("rtx-4090-24gb").expect("bundled").hardware();
        described.cards[0].driver = Some("550.1".into());
        std::fs::write(&path, serde_json::to_string(&described).expect("json")).expect("written");
        let read = from(Some(&path)).expect("read");
        assert_eq!(read.cards, described.cards);
        assert_eq!(read.advice[0].code, "hardware.old_driver");
        let missing = from(Some(&folder.path().join("absent.json"))).expect_err("refused");
        assert!(missing.to_string().contains("absent.json"));
    }

    #[test]
    fn a_described_card_that_is_not_here_is_planned_for_and_not_trained_on() {
        let described = || profile("rtx-4090-24gb").expect("bundled").hardware();
        let other = || profile("rtx-3060-12gb").expect("bundled").hardware();
        let path = PathBuf::from("card.json");
        let error = to_train(described(), path.clone(), other).expect_err("refused");
        let said = error.to_string();
        assert!(said.contains("NVIDIA GeForce RTX 4090") && said.contains("card.json"), "{said}");
        // The same card, found by an engine without kernels.
        let without_kernels = || Hardware { train_on: TrainOn::Processor, ..described() };
        assert!(to_train(described(), path.clone(), without_kernels).is_err());
        assert_eq!(to_train(described(), path.clone(), described).expect("here").name, described().name);
        let no_card = || profile("no-card").expect("bundled").hardware();
        assert!(to_train(no_card(), path, other).is_ok(), "a processor is everywhere");
    }
}
