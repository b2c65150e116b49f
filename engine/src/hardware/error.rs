use std::path::PathBuf;

use super::HARDWARE_FILE;
use crate::error::Explain;

/// What can go wrong around hardware. Looking at the machine itself never fails: what cannot be seen is absent.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("the file {} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the file {} describes no hardware: {reason}", path.display())]
    NotHardware { path: PathBuf, reason: String },
    #[error("the measured speeds in {} cannot be read: {reason}", path.display())]
    BadRates { path: PathBuf, reason: String },
    #[error("the measured speed cannot be written to {}: {source}", path.display())]
    WriteRates { path: PathBuf, source: std::io::Error },
    #[error("the speed of the disk at {} cannot be measured: {source}", path.display())]
    WriteDisk { path: PathBuf, source: std::io::Error },
    #[error("{card}, which {} describes, is not here to be trained on", path.display())]
    NotHere { card: String, path: PathBuf },
    #[error("the card's profile {} cannot be written or deleted: {source}", path.display())]
    WriteCard { path: PathBuf, source: std::io::Error },
    #[error("a card's name has 1 to {} characters, and this one has {n_chars}", crate::named::MOST_CHARS)]
    BadCardName { n_chars: usize },
    #[error("{name} is a card that comes with Hearth and stays as it is")]
    BundledCard { name: String },
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::Read { .. } => "hardware.read",
            Error::NotHardware { .. } => "hardware.not_hardware",
            Error::BadRates { .. } => "hardware.bad_rates",
            Error::WriteRates { .. } => "hardware.write_rates",
            Error::WriteDisk { .. } => "hardware.write_disk",
            Error::NotHere { .. } => "hardware.not_here",
            Error::WriteCard { .. } => "hardware.write_card",
            Error::BadCardName { .. } => "hardware.bad_card_name",
            Error::BundledCard { .. } => "hardware.bundled_card",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::Read { .. } => "Check the name and that you may read the file.".into(),
            Error::NotHardware { .. } => {
                "Choose a file written by `hearth hardware --json`, or a card profile in TOML.".into()
            }
            Error::BadRates { .. } => {
                "Delete the file: speeds are measured again by the next run, until then they are calculated.".into()
            }
            Error::NotHere { .. } => format!(
                "Plans can be made for it. To train on what is in this computer, leave {HARDWARE_FILE} empty; if the card \
                 is in it, `hearth hardware` says why it is not used."
            ),
            Error::BadCardName { .. } => "Give it another name.".into(),
            Error::BundledCard { name } => format!("Save it under another name: a copy of {name} can be changed."),
            Error::WriteRates { .. } | Error::WriteCard { .. } | Error::WriteDisk { .. } => {
                "Free some space or check that you may write to this folder.".into()
            }
        }
    }
}
