//! Where runs live: one folder per run under the runs folder, found by its name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::checkpoint::Checkpoints;
use super::error::Error;
use super::events::{self, Follower, History, now_ms};
use super::rehearsal::Rehearsal;
use super::{governor, lock};
use crate::config::{FORMAT_VERSION, GovernorConfig, RunConfig, Settings};
use crate::disk;
use crate::event::{FinishReason, TrainEvent};
use crate::format;
use crate::plan::Plan;

const RUN: &str = "run.toml";
const PLAN: &str = "plan.json";
const REHEARSAL: &str = "rehearsal.json";
/// File in the runs folder with what runs measured on this computer.
pub const RATES: &str = crate::hardware::RATES_FILE;

/// Hearth's data folder: `$HEARTH_HOME`, or `Hearth` in the platform's folder for application data.
pub fn home() -> PathBuf {
    let home = std::env::var_os("HEARTH_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    home.or_else(|| dirs::data_dir().map(|d| d.join("Hearth"))).unwrap_or_else(|| PathBuf::from("Hearth"))
}

/// Folder of all runs, in [`home`].
pub fn runs_dir() -> PathBuf {
    home().join("runs")
}

/// `run.toml`: the config as given and as resolved, and marks by which changed inputs are noticed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// [`FORMAT_VERSION`] of the writer.
    pub version: u32,
    /// Version of the engine that began the run.
    pub engine: String,
    /// Milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Day that a chat template which asks for the date is told, the same on every resume.
    pub date: Option<String>,
    /// Name of what it trains on, under which measurements are kept.
    #[serde(default)]
    pub device: Option<String>,
    /// Folder that gets the trained adapter when the run ends, beside the run folder.
    pub out: Option<PathBuf>,
    /// What was asked for.
    pub given: RunConfig,
    /// What it was resolved to.
    pub resolved: Settings,
    /// What was trained on what.
    pub inputs: Inputs,
}

/// Hashes of the files a run began with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inputs {
    /// SHA-256 of the data file.
    pub data_sha256: String,
    /// SHA-256 of the evaluation file, where there is one.
    pub evaluation_sha256: Option<String>,
    /// SHA-256 over names, sizes and first mebibyte of the model's files: cheap, and other weights of the same shape
    /// differ in it.
    pub model_sample_sha256: String,
}

/// One run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder {
    id: String,
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder of a new run. Nothing of an existing run is ever taken over.
    pub(crate) fn create(runs_dir: &Path, record: &RunRecord, plan: &Plan) -> Result<RunFolder, Error> {
        fs::create_dir_all(runs_dir).map_err(|e| Error::io(runs_dir, e))?;
        let stem = format!("{}-{}", slug(&record.given), format::moment_in_name(record.created_ms));
        for attempt in 1.. {
            let id = if attempt == 1 { stem.clone() } else { format!("{stem}-{attempt}") };
            let path = runs_dir.join(&id);
            match fs::create_dir(&path) {
                Ok(()) => {
                    let folder = RunFolder { id, path };
                    // The record last: with it the folder is a run, and one without a plan could not be taken up.
                    let written = folder.write_json(PLAN, plan).and_then(|()| folder.write_record(record));
                    if let Err(e) = written {
                        // A folder without its record would be nobody's run.
                        let _ = fs::remove_dir_all(&folder.path);
                        return Err(e);
                    }
                    return Ok(folder);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io(&path, e)),
            }
        }
        unreachable!("the loop above has no end")
    }

    /// Finds a run by its id or by the beginning of one, where only one run begins so.
    pub fn find(runs_dir: &Path, id: &str) -> Result<RunFolder, Error> {
        let ids = ids(runs_dir);
        let exact = ids.iter().find(|i| *i == id);
        let mut beginning = ids.iter().filter(|i| !id.is_empty() && i.starts_with(id));
        let found = exact.or_else(|| match (beginning.next(), beginning.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        });
        match found {
            Some(found) => Ok(RunFolder { id: found.clone(), path: runs_dir.join(found) }),
            None => Err(Error::NotFound { id: id.into(), runs_dir: runs_dir.into(), near: near(&ids, id) }),
        }
    }

    /// The folder's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its checkpoints.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(&self.path)
    }

    /// Its log of a process without a terminal.
    pub fn engine_log(&self) -> PathBuf {
        self.path.join("engine.log")
    }

    /// Where exports go unless told otherwise.
    pub fn exports(&self) -> PathBuf {
        self.path.join("exports")
    }

    /// Where the report goes unless told otherwise.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.html")
    }

    /// `run.toml`.
    pub fn record(&self) -> Result<RunRecord, Error> {
        let path = self.path.join(RUN);
        let text = fs::read_to_string(&path).map_err(|e| Error::io(&path, e))?;
        let record: RunRecord = toml::from_str(&text)
            .map_err(|e| Error::Damaged { path: path.clone(), reason: e.message().to_string() })?;
        if record.version > FORMAT_VERSION {
            return Err(Error::Damaged {
                path,
                reason: format!("is of format {}, this engine reads up to {FORMAT_VERSION}", record.version),
            });
        }
        Ok(record)
    }

    /// `plan.json`, the plan the run started with.
    pub fn plan(&self) -> Result<Plan, Error> {
        let path = self.path.join(PLAN);
        let content = fs::read(&path).map_err(|e| Error::io(&path, e))?;
        serde_json::from_slice(&content).map_err(|e| Error::Damaged { path, reason: e.to_string() })
    }

    /// `rehearsal.json`: what was measured before the first step, where it was.
    pub fn rehearsal(&self) -> Result<Option<Rehearsal>, Error> {
        let path = self.path.join(REHEARSAL);
        match fs::read(&path) {
            Ok(content) => serde_json::from_slice(&content)
                .map(Some)
                .map_err(|e| Error::Damaged { path: path.clone(), reason: e.to_string() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(&path, e)),
        }
    }

    pub(crate) fn write_rehearsal(&self, rehearsal: &Rehearsal) -> Result<(), Error> {
        self.write_json(REHEARSAL, rehearsal)
    }

    /// The governor's settings: those given last, else those the run began with.
    pub fn governor(&self) -> Result<GovernorConfig, Error> {
        let given = governor::read(&self.path.join(governor::FILE))?;
        given.map_or_else(|| Ok(self.record()?.resolved.governor), Ok)
    }

    pub(crate) fn write_governor(&self, config: &GovernorConfig) -> Result<(), Error> {
        let path = self.path.join(governor::FILE);
        let content = serde_json::to_vec_pretty(config).map_err(|e| Error::io(&path, e.into()))?;
        // A window and a terminal may write it at once, while the run reads it.
        disk::write_shared(&path, &content).map_err(|e| Error::io(&path, e))
    }

    /// Its events without what resumes superseded.
    pub fn history(&self) -> Result<History, Error> {
        Ok(History::replay(events::read(&self.path)?))
    }

    /// A reader of its events as they come.
    pub fn follow(&self) -> Follower {
        Follower::new(&self.path)
    }

    /// True while a process trains it.
    pub fn is_running(&self) -> bool {
        lock::is_held(&self.path)
    }

    /// The process that trains it now.
    pub fn pid(&self) -> Option<u32> {
        if self.is_running() { lock::holder(&self.path) } else { None }
    }

    fn write_record(&self, record: &RunRecord) -> Result<(), Error> {
        let path = self.path.join(RUN);
        let text = toml::to_string_pretty(record)
            .map_err(|e| Error::Damaged { path: path.clone(), reason: format!("cannot be written: {e}") })?;
        disk::write(&path, text.as_bytes()).map_err(|e| Error::io(&path, e))
    }

    /// Writes one JSON document of the run.
    pub(crate) fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), Error> {
        let path = self.path.join(name);
        let content = serde_json::to_vec_pretty(value).map_err(|e| Error::io(&path, e.into()))?;
        disk::write(&path, &content).map_err(|e| Error::io(&path, e))
    }

    /// Writes the report, or what belongs to it, as a file of the run.
    pub fn write_report(&self, path: &Path, content: &[u8]) -> Result<(), Error> {
        disk::write(path, content).map_err(|e| Error::io(path, e))
    }

    /// Appends an event of something done to a run beside its training, such as an export.
    pub fn append(&self, event: TrainEvent) -> Result<(), Error> {
        let mut log = events::EventLog::open(&self.path)?;
        log.append(&crate::event::EventLine { time_ms: now_ms(), event })?;
        log.sync()
    }

    /// How it stands.
    pub fn summary(&self) -> Result<RunSummary, Error> {
        let record = self.record()?;
        let history = self.history()?;
        let pid = self.pid();
        let mut summary = RunSummary {
            id: self.id.clone(),
            name: record.given.name.clone(),
            state: RunState::Interrupted,
            step: 0,
            n_steps: record.resolved.n_steps,
            loss: None,
            eval_loss: None,
            started_ms: record.created_ms,
            updated_ms: record.created_ms,
            model: record.given.model.clone(),
            path: self.path.clone(),
            pid,
        };
        for line in history.lines() {
            summary.updated_ms = line.time_ms;
            match line.event {
                TrainEvent::Started { step, n_steps, .. } => (summary.step, summary.n_steps) = (step, n_steps),
                TrainEvent::Step { step, loss, .. } => (summary.step, summary.loss) = (step, Some(loss)),
                TrainEvent::Evaluation { loss, .. } => summary.eval_loss = Some(loss),
                _ => {}
            }
        }
        summary.state = match history.last_turn().map(|l| &l.event) {
            _ if self.is_running() => RunState::Running,
            Some(TrainEvent::Finished { reason: FinishReason::Stopped, .. }) => RunState::Stopped,
            Some(TrainEvent::Finished { .. }) => RunState::Finished,
            Some(TrainEvent::Failed { .. }) => RunState::Failed,
            _ => RunState::Interrupted,
        };
        Ok(summary)
    }
}

/// One line of the list of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct RunSummary {
    /// Name of the folder.
    pub id: String,
    /// Name the person gave, may be empty.
    pub name: String,
    /// How it stands.
    pub state: RunState,
    /// Steps done.
    pub step: usize,
    /// Steps of the whole run.
    pub n_steps: usize,
    /// Training loss of the last step.
    pub loss: Option<f64>,
    /// Loss of the last evaluation.
    pub eval_loss: Option<f64>,
    /// When it was begun, milliseconds since the Unix epoch.
    #[ts(type = "number")]
    pub started_ms: u64,
    /// When it last said something.
    #[ts(type = "number")]
    pub updated_ms: u64,
    /// The base model.
    pub model: PathBuf,
    /// The run folder.
    pub path: PathBuf,
    /// The process that trains it now.
    pub pid: Option<u32>,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum RunState {
    /// A process trains it now.
    Running,
    /// Ended when asked to; can be resumed.
    Stopped,
    /// All steps done, or stopped early.
    Finished,
    /// Ended by a fault.
    Failed,
    /// Its process ended without a word (killed, power loss); can be resumed.
    Interrupted,
}

impl RunState {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            RunState::Running => "running",
            RunState::Stopped => "stopped",
            RunState::Finished => "finished",
            RunState::Failed => "failed",
            RunState::Interrupted => "interrupted",
        }
    }
}

/// Names of the runs in a folder, sorted.
fn ids(runs_dir: &Path) -> Vec<String> {
    let mut ids: Vec<String> = fs::read_dir(runs_dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().join(RUN).is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    ids.sort();
    ids
}

/// All runs, the newest first. What cannot be read as a run is left out.
pub fn list(runs_dir: &Path) -> Vec<RunSummary> {
    let mut runs: Vec<RunSummary> =
        ids(runs_dir).into_iter().filter_map(|id| RunFolder { path: runs_dir.join(&id), id }.summary().ok()).collect();
    runs.sort_by(|a, b| b.started_ms.cmp(&a.started_ms).then_with(|| b.id.cmp(&a.id)));
    runs
}

/// Up to five ids that a mistyped one may mean, the nearest first.
fn near(ids: &[String], id: &str) -> Vec<String> {
    let wanted: Vec<char> = id.to_lowercase().chars().collect();
    let mut ranked: Vec<(usize, &String)> = ids
        .iter()
        .filter_map(|candidate| {
            let name: Vec<char> = candidate.to_lowercase().chars().collect();
            // The time at the end of an id is seldom typed, so the beginning counts too.
            let whole = distance(&wanted, &name);
            let beginning = distance(&wanted, &name[..name.len().min(wanted.len())]);
            let d = whole.min(beginning + 1);
            (d <= 2 + wanted.len() / 3).then_some((d, candidate))
        })
        .collect();
    ranked.sort_by_key(|(d, _)| *d);
    ranked.into_iter().take(5).map(|(_, c)| c.clone()).collect()
}

/// Edit distance (Levenshtein).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(ca != cb)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}

/// The readable part of a run id: the run's name, else the data file's, in characters every file system takes.
fn slug(config: &RunConfig) -> String {
    let from_name = slug_of(&config.name);
    let stem = config.data.path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    [from_name, slug_of(&stem)].into_iter().find(|s| !s.is_empty()).unwrap_or_else(|| "run".into())
}

fn slug_of(name: &str) -> String {
    let mut slug = String::new();
    for c in name.to_lowercase().chars() {
        // A name may be Chinese: letters and digits of every script stay.
        if c.is_alphanumeric() {
            slug.push(c);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
        if slug.len() >= 40 {
            break;
        }
    }
    slug.trim_end_matches('-').into()
}

#[cfg(test)]
mod tests {
    use super::super::toy::some_plan;
    use super::*;
    use crate::disk::faults::{Fault, arm, disarm};

    #[test]
    fn ids_are_safe_names_in_every_script() {
        assert_eq!(slug_of("My first run!"), "my-first-run");
        assert_eq!(slug_of("../../etc/passwd"), "etc-passwd");
        assert_eq!(slug_of("客服 回答 v2"), "客服-回答-v2");
        assert_eq!(slug_of("🔥"), "");
        assert!(slug_of(&"x".repeat(500)).len() <= 40);
    }

    #[test]
    fn a_crash_while_a_run_is_made_leaves_no_run_without_its_plan() {
        let (plan, given) = (some_plan(), serde_json::json!({ "model": "m", "data": { "path": "d" } }));
        let record = RunRecord {
            version: FORMAT_VERSION,
            engine: String::new(),
            created_ms: 0,
            date: None,
            device: None,
            out: None,
            given: serde_json::from_value(given).unwrap(),
            resolved: plan.settings.clone(),
            inputs: Inputs { data_sha256: String::new(), evaluation_sha256: None, model_sample_sha256: String::new() },
        };
        for point in 0.. {
            let runs = tempfile::tempdir().unwrap();
            arm(point, Fault::Crash);
            let crashed = std::panic::catch_unwind(|| RunFolder::create(runs.path(), &record, &plan)).is_err();
            disarm();
            for id in ids(runs.path()) {
                let run = RunFolder::find(runs.path(), &id).unwrap();
                assert_eq!((run.record().unwrap(), run.plan().unwrap()), (record.clone(), plan.clone()), "{point}");
            }
            if !crashed {
                assert!(ids(runs.path()).len() == 1 && point >= 6, "only {point} points were tried");
                break;
            }
        }
    }

    #[test]
    fn two_who_write_the_governor_at_once_are_not_in_each_others_way() {
        let runs = tempfile::tempdir().unwrap();
        let run = RunFolder { id: "r".into(), path: runs.path().into() };
        // Stands where a fixed name would be written first.
        fs::create_dir(runs.path().join("governor.json.writing")).unwrap();
        let quiet = GovernorConfig { quiet_hours: Some("22:00-07:00".parse().unwrap()), ..GovernorConfig::default() };
        run.write_governor(&quiet).unwrap();
        assert_eq!(run.governor().unwrap(), quiet);
    }

    #[test]
    fn a_missing_run_is_refused_with_the_near_ones() {
        let folder = tempfile::tempdir().unwrap();
        for id in ["support-20260301-090000", "support-20260302-090000", "poems-20260301-090000"] {
            fs::create_dir(folder.path().join(id)).unwrap();
            fs::write(folder.path().join(id).join(RUN), "").unwrap();
        }
        match RunFolder::find(folder.path(), "suport") {
            Err(Error::NotFound { near, .. }) => {
                assert_eq!(near, ["support-20260301-090000", "support-20260302-090000"]);
            }
            other => panic!("{other:?}"),
        }
        // An ambiguous beginning is not guessed.
        assert!(RunFolder::find(folder.path(), "support").is_err());
        assert_eq!(RunFolder::find(folder.path(), "poems").unwrap().id(), "poems-20260301-090000");
        for outside in ["", ".", "..", "../x", "/"] {
            assert!(RunFolder::find(folder.path(), outside).is_err(), "{outside:?}");
        }
    }

    #[test]
    fn edit_distance_counts_insertions_deletions_and_replacements() {
        let d = |a: &str, b: &str| distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(d("kitten", "sitting"), 3);
        assert_eq!(d("", "abc"), 3);
        assert_eq!(d("same", "same"), 0);
    }
}
