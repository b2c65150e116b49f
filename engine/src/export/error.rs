//! What can go wrong when something leaves, or comes back.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::Explain;
use crate::{format, generate, model};

/// An export could not be written, or an adapter could not be read back.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields hold
pub enum Error {
    #[error("no folder was given for the export")]
    NoTarget,
    #[error("{} is a file; an export needs a folder of its own", path.display())]
    NotAFolder { path: PathBuf },
    #[error("{} already holds {found}", path.display())]
    Occupied { path: PathBuf, found: String },
    #[error(
        "the export needs {}, but the disk of {} has {} free",
        format::bytes(*needed_bytes), path.display(), format::bytes(*free_bytes)
    )]
    DiskTooSmall { path: PathBuf, needed_bytes: u64, free_bytes: u64 },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("tensor `{tensor}` does not fit into {dtype}: it holds {value}")]
    DoesNotFit { tensor: String, value: f32, dtype: &'static str },
    #[error("{} cannot be read as JSON: {reason}", path.display())]
    Json { path: PathBuf, reason: String },
    #[error("{}: {key} = {value} is not supported ({reason})", path.display())]
    AdapterKey { path: PathBuf, key: String, value: String, reason: String },
    #[error("{}: tensor `{tensor}` {reason}", path.display())]
    AdapterTensor { path: PathBuf, tensor: String, reason: String },
    #[error(transparent)]
    Model(#[from] model::Error),
    #[error(transparent)]
    Generate(#[from] generate::Error),
    #[error("a tensor operation failed: {source}")]
    Tensor {
        #[from]
        source: candle_core::Error,
    },
}

impl Error {
    /// For `map_err` where a file or folder is written.
    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        |source| Error::Write { path: path.into(), source }
    }

    /// For `map_err` where a file is read.
    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        |source| Error::Read { path: path.into(), source }
    }
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::NoTarget => "export.no_target",
            Error::NotAFolder { .. } => "export.not_a_folder",
            Error::Occupied { .. } => "export.occupied",
            Error::DiskTooSmall { .. } => "export.disk_too_small",
            Error::Write { .. } => "export.write",
            Error::Read { .. } => "export.read",
            Error::DoesNotFit { .. } => "export.does_not_fit",
            Error::Json { .. } => "export.json",
            Error::AdapterKey { .. } => "export.adapter_key",
            Error::AdapterTensor { .. } => "export.adapter_tensor",
            Error::Model(error) => error.code(),
            Error::Generate(error) => error.code(),
            Error::Tensor { .. } => "export.tensor",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::NoTarget | Error::NotAFolder { .. } => "Choose a folder that does not exist yet.".into(),
            Error::Occupied { .. } => "Choose a new or empty folder; nothing is overwritten.".into(),
            Error::DiskTooSmall { needed_bytes, free_bytes, .. } => format!(
                "Free {} or choose a folder on another disk. The run and its checkpoints are untouched.",
                format::bytes(needed_bytes.saturating_sub(*free_bytes))
            ),
            Error::Write { .. } => {
                "Check that the folder may be written to and that its disk is connected and not full, then export \
                 again. The run and its checkpoints are untouched."
                    .into()
            }
            Error::Read { .. } => "Check that the file is there and may be read.".into(),
            Error::DoesNotFit { .. } => "Export as bf16 or f32.".into(),
            Error::Json { .. } => "Get the adapter's files again from where they came from.".into(),
            Error::AdapterKey { .. } => {
                "Merge this adapter with the program that made it, or train one without this setting.".into()
            }
            Error::AdapterTensor { .. } => "Use the adapter with the base model that it was trained on.".into(),
            Error::Model(error) => error.next_step(),
            Error::Generate(error) => error.next_step(),
            Error::Tensor { .. } => "This is a fault in Hearth; please report it with the message.".into(),
        }
    }
}
