//! A run that goes on when whoever started it ends.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::error::Error;
use super::process::spawn_detached;
use super::store::RunFolder;

/// Longest time a child may take from its start until it has locked the run.
const START: Duration = Duration::from_secs(20);

/// Takes a run up in a process of its own (this same program, `resume`), whose output goes to `engine.log` in the run
/// folder. Returns its id once it has the run.
///
/// # Errors
/// Another process has the run, or the child ended with a fault; the end of its log is in the error.
pub fn detach(folder: &RunFolder, runs_dir: &Path) -> Result<u32, Error> {
    if folder.is_running() {
        return Err(Error::Busy { id: folder.id().into(), holder: folder.pid() });
    }
    let log_path = folder.engine_log();
    let log = OpenOptions::new().create(true).append(true).open(&log_path).map_err(|e| Error::io(&log_path, e))?;
    let log_start = fs::metadata(&log_path).map_or(0, |m| m.len()) as usize;
    let program = std::env::current_exe().map_err(|e| Error::io(Path::new("hearth"), e))?;
    let runs_dir = std::path::absolute(runs_dir).map_err(|e| Error::io(runs_dir, e))?;
    let mut command = Command::new(&program);
    // Not the caller's folder, which the child would otherwise keep from being unmounted or removed.
    command.current_dir(folder.path()).arg("--runs").arg(runs_dir).arg("resume").arg("--").arg(folder.id());
    let child = spawn_detached(command, log).map_err(|e| Error::io(&program, e))?;
    taken_up(folder, child, START, log_start)
}

/// Waits until `child` has the run. One that does not get so far within `limit` is ended.
fn taken_up(folder: &RunFolder, mut child: Child, limit: Duration, log_start: usize) -> Result<u32, Error> {
    let deadline = Instant::now() + limit;
    loop {
        if folder.pid() == Some(child.id()) {
            return Ok(child.id());
        }
        let ended = child.try_wait().ok().flatten();
        match ended {
            // So short a run that it is over already.
            Some(status) if status.success() => return Ok(child.id()),
            None if Instant::now() < deadline => sleep(Duration::from_millis(20)),
            _ => {
                if ended.is_none() {
                    // It would take the run up all the same, after its person was told that it did not.
                    let _ = child.kill();
                    let _ = child.wait();
                }
                let log = fs::read(folder.engine_log()).unwrap_or_default();
                let tail = String::from_utf8_lossy(&log[log_start.min(log.len())..]).into_owned();
                return Err(Error::DidNotStart { id: folder.id().into(), tail });
            }
        }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::super::process::is_alive;
    use super::*;

    #[test]
    fn a_child_that_does_not_take_the_run_up_in_time_is_ended() {
        let runs = tempfile::tempdir().unwrap();
        fs::create_dir(runs.path().join("r")).unwrap();
        fs::write(runs.path().join("r").join("run.toml"), "").unwrap();
        let folder = RunFolder::find(runs.path(), "r").unwrap();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let error = taken_up(&folder, child, Duration::from_millis(50), 0).unwrap_err();
        assert!(matches!(error, Error::DidNotStart { .. }), "{error:?}");
        assert!(!is_alive(pid));
    }
}
