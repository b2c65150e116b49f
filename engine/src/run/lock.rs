//! One process per run: an operating-system lock on `lock` in the run folder, which ends with the process however it
//! ends. `holder.json` beside it says who holds it (a locked file cannot be read by others on Windows).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::control::Control;
use super::error::Error;
use crate::disk;

/// Held while a process trains a run. Dropping it frees the run.
#[derive(Debug)]
pub(crate) struct RunLock {
    holder: PathBuf,
    file: File,
}

#[derive(Serialize, Deserialize)]
struct Holder {
    pid: u32,
}

impl RunLock {
    /// Takes the run `id` in `folder` for this process, and forgets what was asked of an earlier one.
    pub(crate) fn take(folder: &Path, id: &str) -> Result<RunLock, Error> {
        let path = folder.join("lock");
        let file = open(&path).map_err(|e| Error::io(&path, e))?;
        // Whoever lists the runs holds a shared lock for an instant; that is no reason to refuse.
        for attempt in 0.. {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if attempt < 5 => sleep(Duration::from_millis(40)),
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { id: id.into(), holder: holder(folder) }),
                Err(TryLockError::Error(e)) => return Err(Error::io(&path, e)),
            }
        }
        // Before the holder is named: whoever knows it may ask for a stop, and that must not be forgotten.
        Control::new(folder).clear()?;
        let holder = folder.join("holder.json");
        let content = serde_json::to_vec(&Holder { pid: std::process::id() }).unwrap_or_default();
        disk::write(&holder, &content).map_err(|e| Error::io(&holder, e))?;
        Ok(RunLock { holder, file })
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.holder);
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Process that trains the run in `folder` now, as far as it has said so; `None` where none does.
pub(crate) fn holder(folder: &Path) -> Option<u32> {
    let content = fs::read(folder.join("holder.json")).ok()?;
    serde_json::from_slice::<Holder>(&content).ok().map(|h| h.pid)
}

/// True while some process holds the run in `folder`.
pub(crate) fn is_held(folder: &Path) -> bool {
    let Ok(file) = OpenOptions::new().read(true).open(folder.join("lock")) else { return false };
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = file.unlock();
            false
        }
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_on_one_run_are_refused_with_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_held(folder.path()));
        let lock = RunLock::take(folder.path(), "r").unwrap();
        assert!(is_held(folder.path()));
        // A second open file description of the same process conflicts just as one of another process does.
        match RunLock::take(folder.path(), "r") {
            Err(Error::Busy { id, holder }) => assert_eq!((id.as_str(), holder), ("r", Some(std::process::id()))),
            other => panic!("{other:?}"),
        }
        drop(lock);
        assert!(!is_held(folder.path()));
        assert_eq!(holder(folder.path()), None);
        RunLock::take(folder.path(), "r").unwrap();
    }

    #[test]
    fn what_was_asked_of_an_earlier_process_is_forgotten_before_the_next_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let control = Control::new(folder.path());
        control.ask_stop().unwrap();
        control.ask_pause().unwrap();
        // The name cannot be written, so all that is done was done before.
        fs::create_dir(folder.path().join("holder.json")).unwrap();
        RunLock::take(folder.path(), "r").unwrap_err();
        assert!(!control.stop_asked() && !control.pause_asked());
    }
}
