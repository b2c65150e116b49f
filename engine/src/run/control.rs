//! How others ask a running run for something: empty files in its folder, looked for between micro-batches.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::Error;

const STOP: &str = "stop";
const PAUSE: &str = "pause";

/// The control files of one run.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    stop: PathBuf,
    pause: PathBuf,
}

impl Control {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { stop: folder.join(STOP), pause: folder.join(PAUSE) }
    }

    /// Forgets what was asked of an earlier process.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        remove(&self.stop)?;
        remove(&self.pause)
    }

    /// Asks for a checkpoint and an end.
    pub(crate) fn ask_stop(&self) -> Result<(), Error> {
        create(&self.stop)
    }

    /// Asks to hold after the current micro-batch.
    pub(crate) fn ask_pause(&self) -> Result<(), Error> {
        create(&self.pause)
    }

    /// Asks to go on after a pause.
    pub(crate) fn ask_continue(&self) -> Result<(), Error> {
        remove(&self.pause)
    }

    pub(crate) fn stop_asked(&self) -> bool {
        self.stop.exists()
    }

    pub(crate) fn pause_asked(&self) -> bool {
        self.pause.exists()
    }
}

fn create(path: &Path) -> Result<(), Error> {
    fs::write(path, b"").map_err(|e| Error::io(path, e))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path, e)),
        _ => Ok(()),
    }
}
