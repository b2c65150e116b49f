//! `events.jsonl`: written by appending whole lines, read by whoever draws charts, torn at most at its end.
//!
//! A run that was killed goes on from its last checkpoint and takes some steps again. Nothing is erased for that: the
//! `Started { resumed, step }` line says from where, and [`History`] forgets what lies behind it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::Error;
use super::store::RunFolder;
use crate::disk::faults;
use crate::event::{EventLine, TrainEvent};
use crate::plan::Plan;

/// Name of the file in a run folder.
pub(crate) const FILE: &str = "events.jsonl";

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// What whoever watches a run in the same process is told.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// An event, as it stands in `events.jsonl`.
    Event(&'a EventLine),
    /// The plan, before anything is written.
    Planned(&'a Plan),
    /// The run folder exists from now on.
    Created(&'a RunFolder),
}

/// Where a run's events go: the file, once there is one, and whoever watches.
pub(crate) struct Events<'a> {
    log: Option<EventLog>,
    /// Lines from before the run folder existed.
    early: Vec<EventLine>,
    watcher: &'a mut dyn FnMut(Notice<'_>),
}

impl<'a> Events<'a> {
    pub(crate) fn new(watcher: &'a mut dyn FnMut(Notice<'_>)) -> Self {
        Self { log: None, early: Vec::new(), watcher }
    }

    /// From now on lines are written to `folder` too, first those from before.
    pub(crate) fn attach(&mut self, folder: &Path) -> Result<(), Error> {
        let mut log = EventLog::open(folder)?;
        for line in self.early.drain(..) {
            log.append(&line)?;
        }
        self.log = Some(log);
        Ok(())
    }

    pub(crate) fn emit(&mut self, event: TrainEvent) -> Result<(), Error> {
        let line = EventLine { time_ms: now_ms(), event };
        match &mut self.log {
            Some(log) => log.append(&line)?,
            None => self.early.push(line.clone()),
        }
        (self.watcher)(Notice::Event(&line));
        Ok(())
    }

    pub(crate) fn notice(&mut self, notice: Notice<'_>) {
        (self.watcher)(notice);
    }

    pub(crate) fn phase(&mut self, name: &str) -> Result<(), Error> {
        self.emit(TrainEvent::Phase { name: name.into() })
    }

    pub(crate) fn warn(&mut self, code: &str, message: String) -> Result<(), Error> {
        self.emit(TrainEvent::Warning { code: code.into(), message })
    }

    /// Tells the watcher even where the disk takes no more lines.
    pub(crate) fn emit_at_any_rate(&mut self, event: TrainEvent) {
        let line = EventLine { time_ms: now_ms(), event };
        if let Some(log) = &mut self.log {
            let _ = log.append(&line);
            let _ = log.sync();
        }
        (self.watcher)(Notice::Event(&line));
    }

    /// Makes every line so far outlast a power loss.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        self.log.as_mut().map_or(Ok(()), EventLog::sync)
    }
}

/// The file, open for appending.
pub(crate) struct EventLog {
    path: PathBuf,
    file: File,
    /// What a full disk did not take. It comes before the next line: one that was begun is ended, and none is lost.
    unwritten: Vec<u8>,
}

impl EventLog {
    /// Opens the log of a run folder. A last line that a crash tore is closed off, so that the next one stands alone.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(FILE);
        let open = || -> io::Result<File> {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
            if file.seek(SeekFrom::End(0))? > 0 {
                file.seek(SeekFrom::End(-1))?;
                let mut last = [0];
                file.read_exact(&mut last)?;
                if last != *b"\n" {
                    file.write_all(b"\n")?;
                }
            }
            Ok(file)
        };
        let file = open().map_err(|e| Error::io(&path, e))?;
        Ok(Self { path, file, unwritten: Vec::new() })
    }

    pub(crate) fn append(&mut self, line: &EventLine) -> Result<(), Error> {
        let bytes = serde_json::to_vec(line).map_err(|e| Error::io(&self.path, e.into()))?;
        self.unwritten.extend(bytes);
        self.unwritten.push(b'\n');
        self.write().map_err(|e| Error::io(&self.path, e))
    }

    fn write(&mut self) -> io::Result<()> {
        faults::reached()?;
        while !self.unwritten.is_empty() {
            // A line at once, so that two processes appending (a run and an export) never mix theirs.
            match self.file.write(&self.unwritten) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => drop(self.unwritten.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        let rest = if self.unwritten.is_empty() { Ok(()) } else { self.write() };
        rest.and_then(|()| self.file.sync_data()).map_err(|e| Error::io(&self.path, e))
    }
}

/// Reads a log as it grows.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    offset: u64,
    /// Bytes of a line whose end has not been written yet.
    partial: Vec<u8>,
    n_unreadable: usize,
}

impl Follower {
    /// Starts at the beginning of a run folder's log.
    pub fn new(folder: &Path) -> Self {
        Self { path: folder.join(FILE), offset: 0, partial: Vec::new(), n_unreadable: 0 }
    }

    /// Whole lines since the last call. A log that does not exist yet has none.
    pub fn poll(&mut self) -> Result<Vec<EventLine>, Error> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io(&self.path, e)),
        };
        let n_read = file
            .seek(SeekFrom::Start(self.offset))
            .and_then(|_| file.read_to_end(&mut self.partial))
            .map_err(|e| Error::io(&self.path, e))?;
        self.offset += n_read as u64;
        let whole = self.partial.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let bytes: Vec<u8> = self.partial.drain(..whole).collect();
        let mut lines = Vec::new();
        for line in bytes.split(|&b| b == b'\n').filter(|l| !l.trim_ascii().is_empty()) {
            match serde_json::from_slice(line) {
                Ok(line) => lines.push(line),
                Err(_) => self.n_unreadable += 1,
            }
        }
        Ok(lines)
    }

    /// Lines that were torn by a crash, or written by a newer version.
    pub fn n_unreadable(&self) -> usize {
        self.n_unreadable
    }
}

/// All whole lines of a run folder's log, in the order of writing.
pub(crate) fn read(folder: &Path) -> Result<Vec<EventLine>, Error> {
    Follower::new(folder).poll()
}

/// What stands of a run's events after every resume: one line per step, as if it had never been killed.
#[derive(Clone, Debug, Default)]
pub struct History {
    lines: Vec<EventLine>,
}

impl History {
    /// Takes lines in the order of writing.
    pub fn replay(lines: impl IntoIterator<Item = EventLine>) -> Self {
        let mut history = Self::default();
        history.extend(lines);
        history
    }

    /// Takes further lines.
    pub fn extend(&mut self, lines: impl IntoIterator<Item = EventLine>) {
        for line in lines {
            match line.event {
                TrainEvent::Started { step, resumed: true, .. } => {
                    self.lines.retain(|l| step_of(&l.event).is_none_or(|s| s <= step));
                }
                // What one left that was ended in its middle: its step was safe, so it alone is done again.
                TrainEvent::Evaluation { .. } => {
                    let step = self.lines.iter().rposition(|l| matches!(l.event, TrainEvent::Step { .. }));
                    let since = self.lines.split_off(step.unwrap_or(0));
                    let is_of_it =
                        |e: &TrainEvent| matches!(e, TrainEvent::Evaluation { .. } | TrainEvent::Sample { .. });
                    self.lines.extend(since.into_iter().filter(|l| !is_of_it(&l.event)));
                }
                _ => {}
            }
            self.lines.push(line);
        }
    }

    /// The lines that stand.
    pub fn lines(&self) -> &[EventLine] {
        &self.lines
    }

    /// The last line that says how the run stands: taken up, ended or failed.
    pub fn last_turn(&self) -> Option<&EventLine> {
        self.lines.iter().rev().find(|l| {
            matches!(l.event, TrainEvent::Started { .. } | TrainEvent::Finished { .. } | TrainEvent::Failed { .. })
        })
    }
}

/// Step a line belongs to, for lines that a resume can supersede.
fn step_of(event: &TrainEvent) -> Option<usize> {
    match event {
        TrainEvent::Step { step, .. }
        | TrainEvent::Evaluation { step, .. }
        | TrainEvent::Sample { step, .. }
        | TrainEvent::Rung { step, .. }
        | TrainEvent::LossScale { step, .. }
        | TrainEvent::Checkpoint { step, .. } => Some(*step),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::faults::{Fault, arm, disarm};
    use crate::event::MemoryReading;

    fn started(step: usize) -> EventLine {
        let event = TrainEvent::Started { run_id: "r".into(), pid: 1, step, n_steps: 9, resumed: step > 0 };
        EventLine { time_ms: 0, event }
    }

    fn step(step: usize, loss: f64) -> EventLine {
        let event = TrainEvent::Step {
            step,
            epoch: 0.5,
            loss,
            learning_rate: 1e-4,
            grad_norm: 1.0,
            n_tokens: 10,
            n_supervised_tokens: 5,
            step_ms: 1.0,
            eta_s: None,
            memory: MemoryReading::default(),
            card: None,
        };
        EventLine { time_ms: 0, event }
    }

    #[test]
    fn a_torn_last_line_is_skipped_and_the_next_one_stands_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(folder.path()).unwrap();
        log.append(&started(0)).unwrap();
        log.append(&step(1, 2.0)).unwrap();
        drop(log);
        let path = folder.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        let first_line = whole.iter().position(|&b| b == b'\n').unwrap() + 1;
        for cut in first_line..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let mut log = EventLog::open(folder.path()).unwrap();
            log.append(&step(7, 1.0)).unwrap();
            let lines = read(folder.path()).unwrap();
            assert_eq!(lines.first(), Some(&started(0)), "cut at {cut}");
            assert_eq!(lines.last(), Some(&step(7, 1.0)), "cut at {cut}");
            // Only a line that lacks nothing but its newline survives.
            assert_eq!(lines.len(), if cut == whole.len() - 1 { 3 } else { 2 }, "cut at {cut}");
        }
    }

    #[test]
    fn a_line_that_found_the_disk_full_comes_whole_before_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::open(folder.path()).unwrap();
        arm(0, Fault::DiskFullOnce);
        log.append(&step(1, 3.0)).unwrap_err();
        disarm();
        log.append(&step(2, 2.5)).unwrap();
        // The disk took the beginning of it.
        let mut line = serde_json::to_vec(&step(3, 2.0)).unwrap();
        line.push(b'\n');
        log.file.write_all(&line[..20]).unwrap();
        log.unwritten = line.split_off(20);
        log.sync().unwrap();
        log.append(&step(4, 1.5)).unwrap();
        assert_eq!(read(folder.path()).unwrap(), [step(1, 3.0), step(2, 2.5), step(3, 2.0), step(4, 1.5)]);
    }

    #[test]
    fn a_follower_waits_for_the_end_of_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let mut follower = Follower::new(folder.path());
        assert_eq!(follower.poll().unwrap(), []);
        let path = folder.path().join(FILE);
        let mut bytes = serde_json::to_vec(&step(1, 2.0)).unwrap();
        bytes.push(b'\n');
        fs::write(&path, &bytes[..20]).unwrap();
        assert_eq!(follower.poll().unwrap(), []);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(follower.poll().unwrap(), [step(1, 2.0)]);
        assert_eq!(follower.poll().unwrap(), []);
        assert_eq!(follower.n_unreadable(), 0);
    }

    #[test]
    fn steps_after_the_checkpoint_are_superseded_by_a_resume() {
        let lines = [started(0), step(1, 3.0), step(2, 2.5), step(3, 2.2), started(1), step(2, 2.5), step(3, 2.1)];
        let history = History::replay(lines);
        let steps: Vec<(usize, f64)> = history
            .lines()
            .iter()
            .filter_map(|l| match l.event {
                TrainEvent::Step { step, loss, .. } => Some((step, loss)),
                _ => None,
            })
            .collect();
        assert_eq!(steps, [(1, 3.0), (2, 2.5), (3, 2.1)]);
        assert_eq!(history.last_turn(), Some(&started(1)));
    }

    #[test]
    fn an_evaluation_that_was_ended_in_its_middle_and_done_again_stands_once() {
        let line = |event| EventLine { time_ms: 0, event };
        let evaluation = |step, loss| line(TrainEvent::Evaluation { step, loss, best: true, n_supervised_tokens: 3 });
        let sample = |step, index| {
            let (prompt, answer, wanted) = ("p".into(), "a".into(), "w".into());
            line(TrainEvent::Sample { step, index, prompt, answer, wanted })
        };
        let first = [started(0), step(1, 3.0), evaluation(1, 2.0), sample(1, 0), step(2, 2.5)];
        let cut = [evaluation(2, 1.0), sample(2, 0), started(2)];
        let again = [evaluation(2, 1.0), sample(2, 0), sample(2, 1)];
        let history = History::replay(first.iter().chain(&cut).chain(&again).cloned());
        let stands: Vec<EventLine> = first.into_iter().chain([started(2)]).chain(again).collect();
        assert_eq!(history.lines(), stands);
    }

    #[test]
    fn a_run_killed_before_its_first_checkpoint_starts_its_history_anew() {
        let again = TrainEvent::Started { run_id: "r".into(), pid: 2, step: 0, n_steps: 9, resumed: true };
        let again = EventLine { time_ms: 0, event: again };
        let history = History::replay([started(0), step(1, 3.0), again.clone()]);
        assert_eq!(history.lines(), [started(0), again]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_told_apart_from_other_faults() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join(FILE)).unwrap();
        let path = folder.path().join(FILE);
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut log = EventLog { path, file, unwritten: Vec::new() };
        let error = log.append(&step(1, 1.0)).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
    }
}
