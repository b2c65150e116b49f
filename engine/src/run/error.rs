//! What can go wrong with a run.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Explain, out_of_memory};
use crate::ops::memory::{self, OutOfMemory};
use crate::{data, disk, format, generate, hardware, model, plan, step};

/// A run could not be started, continued or kept.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum Error {
    #[error("{field} = {value} cannot be used: {reason}")]
    Config { field: &'static str, value: String, reason: String },
    #[error("no run \"{id}\" in {}{}", runs_dir.display(), near_list(near))]
    NotFound { id: String, runs_dir: PathBuf, near: Vec<String> },
    #[error("run {id} is already being trained by process {}", holder.map_or_else(|| "(unknown)".into(), |p| p.to_string()))]
    Busy { id: String, holder: Option<u32> },
    #[error("run {id} is not being trained now")]
    NotRunning { id: String },
    #[error("run {id} has no complete checkpoint{}", step.map_or_else(String::new, |s| format!(" for step {s}")))]
    NoCheckpoint { id: String, step: Option<usize> },
    #[error("{}: {} needed for {what}, {} free", path.display(), format::bytes(*needed_bytes), format::bytes(*free_bytes))]
    DiskTooSmall { path: PathBuf, what: &'static str, needed_bytes: u64, free_bytes: u64 },
    #[error("the disk ran full while writing {}", path.display())]
    DiskFull { path: PathBuf, source: io::Error },
    #[error("{}{reason}", before_reason(path))]
    Folder { path: PathBuf, reason: FolderReason },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} of run {id} changed since the run began: {}", what, path.display())]
    InputChanged { id: String, what: &'static str, path: PathBuf },
    #[error("{}: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("the {what} is {} in step {step}, micro-batch {micro_batch}{}", format::number(*value, 4), last_good(checkpoint))]
    NotFinite { what: &'static str, value: f64, step: usize, micro_batch: usize, checkpoint: Option<usize> },
    #[error(
        "the {what} is {} in step {step}, micro-batch {micro_batch}, computed in f16, which ends at 65,504{}",
        format::number(*value, 4), last_good(checkpoint)
    )]
    BeyondF16 { what: &'static str, value: f64, step: usize, micro_batch: usize, checkpoint: Option<usize> },
    #[error(
        "no memory for {doing}, with as little of it as this run can do with: {}{}",
        out_of_memory(shortage),
        last_good(checkpoint)
    )]
    OutOfMemory { doing: &'static str, shortage: OutOfMemory, checkpoint: Option<usize> },
    #[error(
        "as rehearsed, this run takes {} with as little memory as it can do with, and {} are free for it",
        format::bytes(*needed_bytes),
        format::bytes(*budget_bytes)
    )]
    OverBudget { needed_bytes: u64, budget_bytes: u64 },
    #[error("the background process of run {id} ended before it took the run up{}", log_tail(tail))]
    DidNotStart { id: String, tail: String },
    #[error(transparent)]
    Hardware(#[from] hardware::Error),
    #[error(transparent)]
    Data(#[from] data::Error),
    #[error(transparent)]
    Model(#[from] model::Error),
    #[error(transparent)]
    Plan(#[from] plan::Error),
    #[error(transparent)]
    Step(#[from] step::Error),
    #[error(transparent)]
    Generate(#[from] generate::Error),
}

/// Why a folder cannot take output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum FolderReason {
    #[error("no folder given to write to")]
    Empty,
    #[error("not a folder")]
    NotAFolder,
    #[error("{} is a file, so no folder can be made in it", .0.display())]
    ParentIsAFile(PathBuf),
    #[error("a broken link, its target {} does not exist", .0.display())]
    BrokenLink(PathBuf),
    #[error("no permission to write there")]
    NoPermission,
    #[error("the disk is read-only")]
    ReadOnly,
    #[error("already holds {}", .0.join(", "))]
    Occupied(Vec<String>),
    #[error("the path has {length} characters, more than the {limit} that this system allows")]
    TooLong { length: usize, limit: usize },
}

/// An empty path has nothing to show.
fn before_reason(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!("{}: ", path.display()) }
}

fn near_list(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; near that name: {}", near.join(", ")) }
}

fn last_good(checkpoint: &Option<usize>) -> String {
    match checkpoint {
        Some(step) => format!("; the checkpoint of step {step} is safe"),
        None => "; no checkpoint was made yet".into(),
    }
}

fn log_tail(tail: &str) -> String {
    if tail.trim().is_empty() { String::new() } else { format!(": {}", tail.trim()) }
}

impl Error {
    /// The lack of memory that it is, if it is one for which less has not been tried yet.
    pub(crate) fn shortage(&self) -> Option<&OutOfMemory> {
        match self {
            Error::Model(model::Error::OutOfMemory(shortage))
            | Error::Step(step::Error::OutOfMemory(shortage))
            | Error::Generate(generate::Error::OutOfMemory(shortage)) => Some(shortage),
            _ => None,
        }
    }

    /// Whether a gradient was not finite, which a smaller scale of the loss may help against.
    pub(crate) fn is_overflow(&self) -> bool {
        matches!(self, Error::Step(step::Error::NotFinite { .. }))
    }

    /// Tells a lack of memory from a file that is not what was written.
    pub(crate) fn reading(path: &Path, source: candle_core::Error) -> Self {
        match memory::shortage(&source) {
            Some(shortage) => Error::Model(model::Error::OutOfMemory(shortage)),
            None => Error::Damaged { path: path.into(), reason: source.to_string() },
        }
    }

    /// Tells a full disk from other faults of reading and writing.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.into();
        if disk::is_full(&source) { Error::DiskFull { path, source } } else { Error::Io { path, source } }
    }
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::Config { .. } => "run.config",
            Error::NotFound { .. } => "run.not_found",
            Error::Busy { .. } => "run.busy",
            Error::NotRunning { .. } => "run.not_running",
            Error::NoCheckpoint { .. } => "run.no_checkpoint",
            Error::DiskTooSmall { .. } => "run.disk_too_small",
            Error::DiskFull { .. } => "run.disk_full",
            Error::Folder { .. } => "run.folder",
            Error::Io { .. } => "run.io",
            Error::InputChanged { .. } => "run.input_changed",
            Error::Damaged { .. } => "run.damaged",
            Error::NotFinite { .. } => "run.not_finite",
            Error::BeyondF16 { .. } => "run.beyond_f16",
            Error::OutOfMemory { .. } => "run.out_of_memory",
            Error::OverBudget { .. } => "run.over_budget",
            Error::DidNotStart { .. } => "run.did_not_start",
            Error::Hardware(e) => e.code(),
            Error::Data(e) => e.code(),
            Error::Model(e) => e.code(),
            Error::Plan(e) => e.code(),
            Error::Step(e) => e.code(),
            Error::Generate(e) => e.code(),
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::Config { field, .. } => format!("Change {field} and start again."),
            Error::NotFound { .. } => "`hearth runs` lists the runs that exist.".into(),
            Error::Busy { id, .. } => {
                format!("Follow it with `hearth watch {id}`, or end it with `hearth stop {id}` and resume it then.")
            }
            Error::NotRunning { id } => format!("`hearth resume {id}` takes it up again."),
            Error::NoCheckpoint { id, .. } => format!("`hearth resume {id}` trains it until there is one."),
            Error::DiskTooSmall { .. } => {
                "Free some space, keep fewer checkpoints (--keep), or choose a folder on another disk (--runs).".into()
            }
            Error::DiskFull { .. } => {
                "The last complete checkpoint is whole. Free some space and take the run up with `hearth resume`."
                    .into()
            }
            Error::Folder { reason, .. } => match reason {
                FolderReason::Occupied(_) => "Choose an empty or new folder.".into(),
                FolderReason::NoPermission | FolderReason::ReadOnly => {
                    "Choose a folder you may write to, or change its permissions.".into()
                }
                FolderReason::TooLong { .. } => "Choose a folder with a shorter path.".into(),
                _ => "Choose another folder.".into(),
            },
            Error::Io { .. } => "Check that the file exists and can be read and written.".into(),
            Error::InputChanged { path, .. } => {
                format!("Put the first version of {} back, or start a new run with what is there now.", path.display())
            }
            Error::Damaged { .. } => "Remove the damaged file or folder, or start a new run.".into(),
            Error::NotFinite { .. } => {
                "Lower the learning rate (a third of it is a good first try) or lengthen the warm-up, and start again \
                 from the last checkpoint or anew."
                    .into()
            }
            Error::BeyondF16 { .. } => {
                "Start a new run with compute set to f32, which is slower and takes more memory, or to bf16 on a card from the \
                 RTX 30 series on. If that is not finite either, lower the learning rate."
                    .into()
            }
            Error::OutOfMemory { .. } => {
                "Close other programs that use this memory and take the run up with `hearth resume`, or start a new run \
                 with a shorter length, a lower rank or a smaller model."
                    .into()
            }
            Error::OverBudget { .. } => {
                "Start a new run: its plan counts what this one took, and proposes what fits or says what to change. Or close \
                 other programs that use this memory and take this one up with `hearth resume`."
                    .into()
            }
            Error::DidNotStart { .. } => "Start it without --detach to see what happens.".into(),
            Error::Hardware(e) => e.next_step(),
            Error::Data(e) => e.next_step(),
            Error::Model(e) => e.next_step(),
            Error::Plan(e) => e.next_step(),
            Error::Step(e) => e.next_step(),
            Error::Generate(e) => e.next_step(),
        }
    }
}
