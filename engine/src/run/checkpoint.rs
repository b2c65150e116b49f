//! Checkpoints: `checkpoints/<step>/{adapter.safetensors, optimizer.safetensors, state.json}`.
//!
//! A checkpoint is written into `checkpoints/.writing`, every file synced, and then renamed to its step, so a folder with
//! a number for a name is complete. `state.json` is written last and holds size and hash of the other files: what a
//! failing disk damages is noticed and passed over, and the next older one is used.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use safetensors::SafeTensorError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::Error;
use crate::disk::{self, faults};
use crate::event::FinishReason;
use crate::format;
use crate::plan::ladder::Rung;
use crate::step::LossScale;

/// Adapter weights, in PEFT's names.
pub(crate) const ADAPTER: &str = "adapter.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
const WRITING: &str = ".writing";
const RESERVE: &str = ".reserve";

/// Everything beside the tensors that the next step depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Steps done.
    pub step: usize,
    /// Pass over the data that the next micro-batch belongs to, from 0.
    pub epoch: usize,
    /// Micro-batches of that pass already used.
    pub position: usize,
    /// Seed from which order, adapter and dropout of every step follow.
    pub seed: u64,
    /// Updates the optimizer has made (its bias correction depends on them).
    pub optimizer_steps: usize,
    /// Lowest evaluation loss so far.
    pub best: Option<Best>,
    /// Evaluations since then.
    pub n_not_improved: usize,
    /// Set where no further step follows.
    pub ended: Option<FinishReason>,
    /// The evaluation after `step` is due and was not done, or not to its end. Written only where it is so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owes_evaluation: bool,
    /// How the step is computed since memory ran out; as the settings say where it never did.
    #[serde(default)]
    pub rung: Option<Rung>,
    /// Of a run in f16.
    #[serde(default)]
    pub loss_scale: Option<LossScale>,
}

/// The step with the lowest evaluation loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Steps done then.
    pub step: usize,
    /// Mean negative log-likelihood per supervised token (nats).
    pub loss: f64,
}

impl State {
    /// Before the first step.
    pub fn new(seed: u64) -> Self {
        Self {
            step: 0,
            epoch: 0,
            position: 0,
            seed,
            optimizer_steps: 0,
            best: None,
            n_not_improved: 0,
            ended: None,
            owes_evaluation: false,
            rung: None,
            loss_scale: None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    #[serde(flatten)]
    state: serde_json::Value,
    files: Vec<FileMark>,
}

impl StateFile {
    fn content(state: &State, files: Vec<FileMark>) -> io::Result<Vec<u8>> {
        let state = serde_json::to_value(state)?;
        Ok(serde_json::to_vec_pretty(&StateFile { state, files })?)
    }
}

#[derive(Serialize, Deserialize)]
struct FileMark {
    name: String,
    bytes: u64,
    sha256: String,
}

/// Named tensors, in the order of their names on disk.
pub(crate) type Tensors = Vec<(String, Tensor)>;

/// The `checkpoints` folder of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    pub(crate) fn new(run_folder: &Path) -> Self {
        Self { folder: run_folder.join("checkpoints") }
    }

    /// Folder of one checkpoint.
    pub fn path(&self, step: usize) -> PathBuf {
        self.folder.join(step.to_string())
    }

    /// Steps with a checkpoint folder, ascending.
    pub fn steps(&self) -> Vec<usize> {
        let mut steps: Vec<usize> = fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let step: usize = name.to_str()?.parse().ok()?;
                // "007" is nobody's checkpoint.
                (step.to_string() == name.to_str()?).then_some(step)
            })
            .collect();
        steps.sort_unstable();
        steps
    }

    /// State of the newest checkpoint whose state can be read; the other files are not looked at.
    pub fn newest_state(&self) -> Option<State> {
        self.steps().into_iter().rev().find_map(|step| self.read_state(step).ok().map(|(state, _)| state))
    }

    /// Writes a checkpoint of `state` and returns its size in bytes. On any fault what was there before is untouched.
    pub(crate) fn save(&self, state: &State, adapter: Tensors, optimizer: Tensors) -> Result<u64, Error> {
        let writing = self.folder.join(WRITING);
        let result = self.write_aside(&writing, state, adapter, optimizer).and_then(|bytes| {
            self.put_in_place(&writing, state.step)?;
            Ok(bytes)
        });
        if result.is_err() {
            let _ = fs::remove_dir_all(&writing);
        }
        result
    }

    /// Writes what [`Checkpoints::save`] would write and takes it away again. Returns its size in bytes.
    pub(crate) fn rehearse(&self, state: &State, adapter: Tensors, optimizer: Tensors) -> Result<u64, Error> {
        let writing = self.folder.join(WRITING);
        let result = self.write_aside(&writing, state, adapter, optimizer);
        remove_folder(&writing).map_err(|e| Error::io(&writing, e))?;
        result
    }

    fn write_aside(&self, writing: &Path, state: &State, adapter: Tensors, optimizer: Tensors) -> Result<u64, Error> {
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |e: io::Error| Error::io(&path, e)
        };
        remove_folder(writing).map_err(at(writing))?;
        fs::create_dir_all(writing).map_err(at(writing))?;
        let mut files = Vec::new();
        for (name, tensors) in [(ADAPTER, adapter), (OPTIMIZER, optimizer)] {
            let path = writing.join(name);
            faults::reached().map_err(at(&path))?;
            write_tensors(&path, tensors)?;
            faults::reached().map_err(at(&path))?;
            disk::sync_file(&path).map_err(at(&path))?;
            files.push(mark(&path, name).map_err(at(&path))?);
        }
        let path = writing.join(STATE);
        let content = StateFile::content(state, files).map_err(at(&path))?;
        faults::reached().map_err(at(&path))?;
        fs::write(&path, &content).map_err(at(&path))?;
        faults::reached().map_err(at(&path))?;
        disk::sync_file(&path).map_err(at(&path))?;
        disk::sync_folder(writing).map_err(at(writing))?;
        faults::reached().map_err(at(writing))?;
        folder_bytes(writing).map_err(at(writing))
    }

    fn put_in_place(&self, writing: &Path, step: usize) -> Result<(), Error> {
        let place = self.path(step);
        let go = || -> io::Result<()> {
            // Only a damaged one can be in the way: a step is not reached twice from a complete one.
            remove_folder(&place)?;
            faults::reached()?;
            disk::rename(writing, &place)?;
            faults::reached()?;
            disk::sync_folder(&self.folder)
        };
        go().map_err(|e| Error::io(&place, e))
    }

    /// Replaces the state of the complete checkpoint of its step, whose tensors are those of now. Returns the checkpoint's size in
    /// bytes. At every moment the old state or the new one is there.
    pub(crate) fn amend(&self, state: &State) -> Result<u64, Error> {
        let (_, files) = self.read_state(state.step)?;
        let folder = self.path(state.step);
        let path = folder.join(STATE);
        let written = StateFile::content(state, files).and_then(|content| disk::write(&path, &content));
        written.map_err(|e| Error::io(&path, e))?;
        folder_bytes(&folder).map_err(|e| Error::io(&folder, e))
    }

    /// State of the checkpoint of `step`, after checking that every file is what was written.
    pub(crate) fn verify(&self, step: usize) -> Result<State, Error> {
        let folder = self.path(step);
        let (state, files) = self.read_state(step)?;
        for file in &files {
            let path = folder.join(&file.name);
            let found = mark(&path, &file.name).map_err(|e| Error::io(&path, e))?;
            if found.bytes != file.bytes {
                let reason = format!("{} bytes, not the {} bytes that were written", found.bytes, file.bytes);
                return Err(Error::Damaged { path, reason });
            }
            if found.sha256 != file.sha256 {
                return Err(Error::Damaged { path, reason: "not the bytes that were written".into() });
            }
        }
        Ok(state)
    }

    /// Adapter weights of a checkpoint by name, on `device`.
    pub(crate) fn adapter(&self, step: usize, device: &Device) -> Result<HashMap<String, Tensor>, Error> {
        self.tensors(step, ADAPTER, device)
    }

    /// Optimizer state of a checkpoint by name, on `device`.
    pub(crate) fn optimizer(&self, step: usize, device: &Device) -> Result<HashMap<String, Tensor>, Error> {
        self.tensors(step, OPTIMIZER, device)
    }

    fn tensors(&self, step: usize, name: &str, device: &Device) -> Result<HashMap<String, Tensor>, Error> {
        let path = self.path(step).join(name);
        candle_core::safetensors::load(&path, device).map_err(|e| Error::reading(&path, e))
    }

    fn read_state(&self, step: usize) -> Result<(State, Vec<FileMark>), Error> {
        let path = self.path(step).join(STATE);
        let content = fs::read(&path).map_err(|e| Error::io(&path, e))?;
        let damaged = |reason: String| Error::Damaged { path: path.clone(), reason };
        let file: StateFile = serde_json::from_slice(&content).map_err(|e| damaged(e.to_string()))?;
        let state: State = serde_json::from_value(file.state).map_err(|e| damaged(e.to_string()))?;
        if state.step != step {
            return Err(damaged(format!("is of step {}, not {step}", state.step)));
        }
        if ![ADAPTER, OPTIMIZER].iter().all(|name| file.files.iter().any(|f| f.name == *name)) {
            return Err(damaged("does not list both tensor files".into()));
        }
        Ok((state, file.files))
    }

    /// State of the newest complete checkpoint, and what is wrong with those that are newer.
    pub(crate) fn newest(&self) -> (Option<State>, Vec<Error>) {
        let mut faults = Vec::new();
        for step in self.steps().into_iter().rev() {
            match self.verify(step) {
                Ok(state) => return (Some(state), faults),
                Err(e) => faults.push(e),
            }
        }
        (None, faults)
    }

    /// Removes all but the best and the newest `keep` (at least one), of which `newest` was just written: what has a higher number is
    /// damaged, or the run would have gone on from there. Tries every one of them and returns the first fault.
    pub(crate) fn prune(&self, keep: usize, newest: usize, best: Option<usize>) -> Result<(), Error> {
        let (whole, damaged): (Vec<usize>, Vec<usize>) = self.steps().into_iter().partition(|&step| step <= newest);
        let n_old = whole.len().saturating_sub(keep.max(1));
        let old = whole[..n_old].iter().filter(|&&step| Some(step) != best);
        old.chain(&damaged).fold(Ok(()), |result, &step| {
            let path = self.path(step);
            result.and(remove_folder(&path).map_err(|e| Error::io(&path, e)))
        })
    }

    /// Sets `bytes` of disk aside, so that a checkpoint can be written even when something else fills the disk.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let path = self.folder.join(RESERVE);
        let go = || -> io::Result<()> {
            fs::create_dir_all(&self.folder)?;
            faults::reached()?;
            let file = File::create(&path)?;
            fs4::FileExt::allocate(&file, bytes)
        };
        go().map_err(|e| {
            let _ = fs::remove_file(&path);
            Error::io(&path, e)
        })
    }

    /// Gives the reserved bytes back to the disk. True where there were some.
    pub(crate) fn release_reserve(&self) -> bool {
        fs::remove_file(self.folder.join(RESERVE)).is_ok()
    }
}

fn write_tensors(path: &Path, tensors: Tensors) -> Result<(), Error> {
    safetensors::serialize_to_file(tensors, None, path).map_err(|e| match e {
        SafeTensorError::IoError(e) => Error::io(path, e),
        e => Error::io(path, io::Error::other(e.to_string())),
    })
}

fn mark(path: &Path, name: &str) -> io::Result<FileMark> {
    let (bytes, sha256) = hash_file(path)?;
    Ok(FileMark { name: name.into(), bytes, sha256 })
}

/// Size and SHA-256 (hex) of a file.
pub(crate) fn hash_file(path: &Path) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let bytes = io::copy(&mut File::open(path)?, &mut hash)?;
    Ok((bytes, format::hex(&hash.finalize())))
}

fn folder_bytes(folder: &Path) -> io::Result<u64> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::disk::faults::{Fault, arm, disarm};

    fn tensors(step: usize) -> (Tensors, Tensors) {
        let t = |v: f32, n: usize| Tensor::full(v, n, &Device::Cpu).unwrap();
        (vec![("a".into(), t(step as f32, 7))], vec![("m".into(), t(-1.0, 3)), ("v".into(), t(step as f32, 3))])
    }

    fn save(checkpoints: &Checkpoints, step: usize) -> Result<u64, Error> {
        let (adapter, optimizer) = tensors(step);
        checkpoints.save(&State { step, ..State::new(5) }, adapter, optimizer)
    }

    fn newest(checkpoints: &Checkpoints) -> (usize, f32) {
        let step = checkpoints.newest().0.expect("a complete checkpoint").step;
        (step, checkpoints.adapter(step, &Device::Cpu).unwrap()["a"].to_vec1::<f32>().unwrap()[0])
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        let state = State {
            step: 3,
            epoch: 1,
            position: 2,
            seed: u64::MAX,
            optimizer_steps: 3,
            best: Some(Best { step: 2, loss: 0.1 + 0.2 }),
            n_not_improved: 1,
            ended: Some(FinishReason::EarlyStopped),
            owes_evaluation: false,
            rung: Some(Rung {
                micro_batch: 1,
                accumulation: 8,
                head_rows: 64,
                recompute: crate::config::Recompute::C1,
                n_layers_eased: 2,
                mlp_rows: Some(256),
                offload_inputs: false,
                n_layers_cached: 3,
            }),
            loss_scale: Some(LossScale { scale: 512, n_good_steps: 1999, n_halved: 9 }),
        };
        let (adapter, optimizer) = tensors(3);
        let bytes = checkpoints.save(&state, adapter, optimizer).unwrap();
        assert_eq!(checkpoints.verify(3).unwrap(), state);
        let optimizer = checkpoints.optimizer(3, &Device::Cpu).unwrap();
        assert_eq!(optimizer["v"].to_vec1::<f32>().unwrap(), [3.0; 3]);
        assert_eq!(bytes, folder_bytes(&checkpoints.path(3)).unwrap());
    }

    #[test]
    fn an_evaluation_that_is_owed_is_written_and_one_that_was_done_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        save(&checkpoints, 4).unwrap();
        let content = || fs::read_to_string(checkpoints.path(4).join(STATE)).unwrap();
        let before = content();
        assert!(!before.contains("owes_evaluation"), "{before}");
        let owing = State { step: 4, owes_evaluation: true, ..State::new(5) };
        let bytes = checkpoints.amend(&owing).unwrap();
        assert_eq!(checkpoints.verify(4).unwrap(), owing);
        assert_eq!(bytes, folder_bytes(&checkpoints.path(4)).unwrap());
        checkpoints.amend(&State { owes_evaluation: false, ..owing }).unwrap();
        assert_eq!(content(), before);
    }

    #[test]
    fn a_crash_while_a_state_is_replaced_leaves_a_complete_checkpoint() {
        for point in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let checkpoints = Checkpoints::new(folder.path());
            save(&checkpoints, 1).unwrap();
            let before = checkpoints.verify(1).unwrap();
            let owing = State { owes_evaluation: true, ..before.clone() };
            arm(point, Fault::Crash);
            let crashed = catch_unwind(AssertUnwindSafe(|| checkpoints.amend(&owing))).is_err();
            disarm();
            let state = checkpoints.verify(1).unwrap();
            assert!(state == before || state == owing, "{state:?}");
            if !crashed {
                assert!(state == owing && point >= 3, "only {point} points were tried");
                break;
            }
        }
    }

    #[test]
    fn a_checkpoint_from_before_there_was_a_ladder_or_f16_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        save(&checkpoints, 4).unwrap();
        let path = checkpoints.path(4).join(STATE);
        let text = fs::read_to_string(&path).unwrap();
        let is_newer = |line: &str| line.contains("\"rung\"") || line.contains("\"loss_scale\"");
        let older: String = text.lines().filter(|line| !is_newer(line)).collect();
        assert!(older.len() < text.len());
        fs::write(&path, older).unwrap();
        assert_eq!(checkpoints.verify(4).unwrap(), State { step: 4, ..State::new(5) });
    }

    #[test]
    fn a_crash_at_any_point_of_writing_leaves_the_newest_complete_one() {
        for point in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let checkpoints = Checkpoints::new(folder.path());
            save(&checkpoints, 1).unwrap();
            arm(point, Fault::Crash);
            let crashed = catch_unwind(AssertUnwindSafe(|| save(&checkpoints, 2))).is_err();
            disarm();
            let (step, value) = newest(&checkpoints);
            assert!(step == 1 || step == 2);
            assert_eq!(value, step as f32);
            // What the crash left does not disturb the next checkpoint.
            save(&checkpoints, 3).unwrap();
            assert_eq!(newest(&checkpoints), (3, 3.0));
            checkpoints.prune(1, 3, None).unwrap();
            assert_eq!(fs::read_dir(folder.path().join("checkpoints")).unwrap().count(), 1);
            if !crashed {
                assert!(point >= 8, "only {point} points were tried");
                break;
            }
        }
    }

    #[test]
    fn a_full_disk_at_any_point_leaves_the_previous_one_whole_and_no_debris() {
        for point in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let checkpoints = Checkpoints::new(folder.path());
            save(&checkpoints, 1).unwrap();
            arm(point, Fault::DiskFull);
            let result = save(&checkpoints, 2);
            let unreached = disarm();
            if unreached {
                result.unwrap();
                break;
            }
            // After the rename the new one is in place and only the folder's sync is missing.
            let error = result.unwrap_err();
            assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
            let (step, value) = newest(&checkpoints);
            assert_eq!(value, step as f32);
            assert!(!folder.path().join("checkpoints").join(WRITING).exists());
        }
    }

    #[test]
    fn a_damaged_checkpoint_is_passed_over_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        for step in 1..=6 {
            save(&checkpoints, step).unwrap();
        }
        fs::remove_file(checkpoints.path(6).join(STATE)).unwrap();
        fs::write(checkpoints.path(5).join(ADAPTER), b"short").unwrap();
        let path = checkpoints.path(4).join(OPTIMIZER);
        let mut content = fs::read(&path).unwrap();
        *content.last_mut().unwrap() ^= 1;
        fs::write(&path, content).unwrap();
        fs::rename(checkpoints.path(3), checkpoints.path(33)).unwrap();
        fs::create_dir(folder.path().join("checkpoints/notes")).unwrap();
        let (state, faults) = checkpoints.newest();
        assert_eq!(state.unwrap().step, 2);
        assert_eq!(faults.len(), 4);
        assert!(faults[0].to_string().contains("33"), "{}", faults[0]);
        assert!(faults[2].to_string().contains("5 bytes, not"), "{}", faults[2]);
    }

    #[test]
    fn the_newest_and_the_best_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        for step in [2, 4, 10, 12] {
            save(&checkpoints, step).unwrap();
        }
        checkpoints.prune(2, 12, Some(4)).unwrap();
        assert_eq!(checkpoints.steps(), [4, 10, 12]);
        checkpoints.prune(0, 12, Some(4)).unwrap();
        assert_eq!(checkpoints.steps(), [4, 12]);
    }

    #[test]
    fn a_damaged_newer_one_does_not_count_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        for step in [10, 20] {
            save(&checkpoints, step).unwrap();
        }
        fs::remove_file(checkpoints.path(20).join(STATE)).unwrap();
        // Taken up from 10, which is the best, and saved again.
        save(&checkpoints, 12).unwrap();
        checkpoints.prune(1, 12, Some(10)).unwrap();
        assert_eq!(checkpoints.steps(), [10, 12]);
        assert_eq!(newest(&checkpoints), (12, 12.0));
    }

    #[test]
    fn one_that_cannot_be_removed_is_named_and_the_others_go() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        for step in [2, 4, 6] {
            save(&checkpoints, step).unwrap();
        }
        // A file under a checkpoint's name is none, and no folder to remove.
        fs::remove_dir_all(checkpoints.path(2)).unwrap();
        fs::write(checkpoints.path(2), b"").unwrap();
        let error = checkpoints.prune(1, 6, None).unwrap_err();
        assert!(error.to_string().starts_with(&checkpoints.path(2).display().to_string()), "{error}");
        assert_eq!(checkpoints.steps(), [2, 6]);
    }

    #[test]
    fn the_reserve_takes_its_room_and_gives_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        checkpoints.reserve(1 << 20).unwrap();
        assert_eq!(fs::metadata(folder.path().join("checkpoints/.reserve")).unwrap().len(), 1 << 20);
        assert!(checkpoints.release_reserve());
        assert!(!checkpoints.release_reserve());
        let error = checkpoints.reserve(1 << 60).unwrap_err();
        assert!(matches!(error, Error::DiskFull { .. } | Error::Io { .. }), "{error:?}");
        assert!(!folder.path().join("checkpoints/.reserve").exists());
    }
}
