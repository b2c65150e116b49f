//! What runs measured on this computer, kept between runs in `rates.json` of Hearth's data folder: speeds, the memory a process
//! takes beside its buffers, and how far predictions were off. The plan prefers them to what it calculates.

use std::path::Path;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::Error;
use crate::config::{BaseFormat, ComputeDtype, Recompute, Target};
use crate::disk;

/// Name of the file in Hearth's data folder.
pub const RATES_FILE: &str = "rates.json";
/// Older measurements beyond these numbers are forgotten.
const MAX_RATES: usize = 500;
const MAX_OVERHEADS: usize = 200;
const MAX_PREDICTIONS: usize = 500;
/// Mean tokens of two micro-batches that differ by less than this share are the same load.
const SAME_LOAD: f64 = 0.1;

/// Everything measured; of one device where [`read_measurements`] read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[serde(default)]
#[ts(export)]
pub struct Measurements {
    /// Speeds.
    pub rates: Vec<MeasuredRate>,
    /// Memory beside the buffers.
    pub overheads: Vec<MeasuredOverhead>,
    /// Predicted times beside those that the runs took.
    pub predictions: Vec<Prediction>,
}

/// Tokens per second of whole optimizer steps, warm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct MeasuredRate {
    /// [`super::Hardware::device_name`].
    pub device: String,
    /// [`crate::plan::model_key`].
    pub model: String,
    /// What was computed in; absent in measurements of earlier versions.
    #[serde(default)]
    pub compute: Option<ComputeDtype>,
    /// How the base was held.
    pub base: BaseFormat,
    /// What was kept.
    pub recompute: Recompute,
    /// Layers that recomputed one step less.
    #[serde(default)]
    pub n_layers_eased: usize,
    /// Layers whose weights stayed dequantised.
    #[serde(default)]
    pub n_layers_cached: usize,
    /// Rank of the adapter; 0 in measurements of earlier versions.
    #[serde(default)]
    pub rank: usize,
    /// The layers it adapts.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// Longest sequence allowed, in tokens; 0 in measurements of earlier versions.
    #[serde(default)]
    pub length: usize,
    /// Sequences of a micro-batch; 0 in measurements of earlier versions.
    #[serde(default)]
    pub micro_batch: usize,
    /// Mean tokens of a micro-batch.
    pub micro_batch_tokens: usize,
    /// Tokens processed per second.
    pub tokens_per_s: f64,
    /// When, milliseconds since the Unix epoch.
    #[ts(type = "number")]
    pub time_ms: u64,
}

impl MeasuredRate {
    /// Measurements of the same thing; the newer replaces the older.
    fn same_as(&self, other: &MeasuredRate) -> bool {
        let mode = |r: &MeasuredRate| (r.compute, r.base, r.recompute, r.n_layers_eased, r.n_layers_cached);
        let key = |r: &MeasuredRate| (mode(r), r.rank, r.length, r.micro_batch);
        let (mine, others) = (self.micro_batch_tokens as f64, other.micro_batch_tokens as f64);
        (&self.device, &self.model, &self.targets) == (&other.device, &other.model, &other.targets)
            && key(self) == key(other)
            && (mine - others).abs() <= SAME_LOAD * mine.max(others)
    }
}

/// Memory that a process took beside the buffers that its plan lists: context and libraries on a card, threads and tables on the
/// processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct MeasuredOverhead {
    /// [`super::Hardware::device_name`].
    pub device: String,
    /// [`crate::plan::model_key`].
    pub model: String,
    /// The bytes.
    #[ts(type = "number")]
    pub bytes: u64,
    /// When, milliseconds since the Unix epoch.
    #[ts(type = "number")]
    pub time_ms: u64,
}

/// Where a predicted speed is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Basis {
    /// This model in this mode, on this hardware.
    Measured,
    /// This model on this hardware in another mode, size or adapter, converted by its floating-point operations.
    Scaled,
    /// Operations over the hardware's rate.
    Calculated,
}

/// What a run was predicted to take and what it took. Times are those of the steps it did, so that a run which was stopped counts
/// too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Prediction {
    /// [`super::Hardware::device_name`].
    pub device: String,
    /// [`crate::plan::model_key`].
    pub model: String,
    /// The run.
    pub run_id: String,
    /// What the plan's speed rested on.
    pub basis: Basis,
    /// Steps done.
    pub n_steps: usize,
    /// Seconds that the plan said.
    pub predicted_s: f64,
    /// Seconds that the rehearsal said, where there was one.
    pub rehearsed_s: Option<f64>,
    /// Seconds that they took.
    pub measured_s: f64,
    /// Peak memory that the plan said.
    #[ts(type = "number")]
    pub predicted_bytes: u64,
    /// Peak memory of the run.
    #[ts(type = "number")]
    pub measured_bytes: u64,
    /// When the run ended, milliseconds since the Unix epoch.
    #[ts(type = "number")]
    pub time_ms: u64,
}

impl Measurements {
    /// Adds a speed; it replaces an older one of the same thing.
    pub fn add_rate(&mut self, rate: MeasuredRate) {
        self.rates.retain(|old| !old.same_as(&rate));
        self.rates.push(rate);
        keep_newest(&mut self.rates, MAX_RATES, |rate| rate.time_ms);
    }

    /// Adds an overhead; it replaces the older one of its device and model.
    pub fn add_overhead(&mut self, overhead: MeasuredOverhead) {
        self.overheads.retain(|old| (&old.device, &old.model) != (&overhead.device, &overhead.model));
        self.overheads.push(overhead);
        keep_newest(&mut self.overheads, MAX_OVERHEADS, |overhead| overhead.time_ms);
    }

    /// Adds the outcome of a run; it replaces what the same run said when it was stopped before.
    pub fn add_prediction(&mut self, prediction: Prediction) {
        self.predictions.retain(|old| old.run_id != prediction.run_id);
        self.predictions.push(prediction);
        keep_newest(&mut self.predictions, MAX_PREDICTIONS, |prediction| prediction.time_ms);
    }

    /// Those made on `device`.
    fn of(mut self, device: &str) -> Self {
        self.rates.retain(|rate| rate.device == device);
        self.overheads.retain(|overhead| overhead.device == device);
        self.predictions.retain(|prediction| prediction.device == device);
        self
    }
}

fn keep_newest<T>(items: &mut Vec<T>, n: usize, time_ms: impl Fn(&T) -> u64) {
    items.sort_by_key(time_ms);
    items.drain(..items.len().saturating_sub(n));
}

/// Measurements in `path` made on `device`; none where the file does not exist.
///
/// # Errors
/// [`Error::Read`] and [`Error::BadRates`]; callers plan on without them and say so.
pub fn read_measurements(path: &Path, device: &str) -> Result<Measurements, Error> {
    Ok(read_all(path)?.of(device))
}

fn read_all(path: &Path) -> Result<Measurements, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Measurements::default()),
        Err(source) => return Err(Error::Read { path: path.into(), source }),
    };
    // Earlier versions kept speeds alone.
    let is_list = bytes.trim_ascii_start().first() == Some(&b'[');
    let read = if is_list {
        serde_json::from_slice(&bytes).map(|rates| Measurements { rates, ..Measurements::default() })
    } else {
        serde_json::from_slice(&bytes)
    };
    let mut all = read.map_err(|e| Error::BadRates { path: path.into(), reason: e.to_string() })?;
    let is_time = |seconds: f64| seconds.is_finite() && seconds > 0.0;
    all.rates.retain(|rate| is_time(rate.tokens_per_s));
    all.predictions.retain(|prediction| is_time(prediction.predicted_s) && is_time(prediction.measured_s));
    Ok(all)
}

/// Changes the measurements in `path`. The file is written aside and renamed, so that a reader never sees half of it; of two
/// writers at once, one change may be lost. A file that cannot be read is replaced.
///
/// # Errors
/// [`Error::WriteRates`].
pub fn record(path: &Path, change: impl FnOnce(&mut Measurements)) -> Result<(), Error> {
    let mut all = read_all(path).unwrap_or_default();
    change(&mut all);
    let failed = |source| Error::WriteRates { path: path.into(), source };
    let json = serde_json::to_vec_pretty(&all).map_err(|e| failed(e.into()))?;
    disk::write_shared(path, &json).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(device: &str, tokens_per_s: f64, time_ms: u64) -> MeasuredRate {
        MeasuredRate {
            device: device.into(),
            model: "llama-30x576".into(),
            compute: Some(ComputeDtype::F32),
            base: BaseFormat::F32,
            recompute: Recompute::N,
            n_layers_eased: 0,
            n_layers_cached: 0,
            rank: 16,
            targets: Target::ALL.to_vec(),
            length: 256,
            micro_batch: 2,
            micro_batch_tokens: 500,
            tokens_per_s,
            time_ms,
        }
    }

    fn prediction(run_id: &str, measured_s: f64, time_ms: u64) -> Prediction {
        Prediction {
            device: "a".into(),
            model: "m".into(),
            run_id: run_id.into(),
            basis: Basis::Calculated,
            n_steps: 10,
            predicted_s: 100.0,
            rehearsed_s: None,
            measured_s,
            predicted_bytes: 1,
            measured_bytes: 1,
            time_ms,
        }
    }

    #[test]
    fn a_newer_measurement_replaces_the_older_and_devices_are_kept_apart() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("new folder").join(RATES_FILE);
        let read = |device: &str| read_measurements(&path, device).expect("read");
        assert_eq!(read("a"), Measurements::default());
        for new in [rate("a", 200.0, 1), rate("b", 900.0, 2), rate("a", 300.0, 3)] {
            record(&path, |all| all.add_rate(new)).expect("written");
        }
        assert_eq!(read("a").rates, vec![rate("a", 300.0, 3)]);
        assert_eq!(read("b").rates, vec![rate("b", 900.0, 2)]);
        // Nearly as many tokens are the same load; another length, type or rank is not.
        record(&path, |all| all.add_rate(MeasuredRate { micro_batch_tokens: 510, ..rate("a", 310.0, 4) }))
            .expect("written");
        assert_eq!(read("a").rates.len(), 1);
        record(&path, |all| all.add_rate(MeasuredRate { length: 512, ..rate("a", 320.0, 5) })).expect("written");
        record(&path, |all| all.add_rate(MeasuredRate { compute: Some(ComputeDtype::Bf16), ..rate("a", 330.0, 6) }))
            .expect("written");
        assert_eq!(read("a").rates.len(), 3);
        record(&path, |all| all.add_rate(MeasuredRate { rank: 64, ..rate("a", 340.0, 7) })).expect("written");
        assert_eq!(read("a").rates.len(), 4);
    }

    #[test]
    fn a_run_is_one_prediction_however_often_it_was_taken_up() {
        let mut all = Measurements::default();
        all.add_prediction(prediction("x", 110.0, 1));
        all.add_prediction(prediction("y", 90.0, 2));
        all.add_prediction(prediction("x", 120.0, 3));
        assert_eq!(all.predictions, vec![prediction("y", 90.0, 2), prediction("x", 120.0, 3)]);
        let overhead = |bytes, time_ms| MeasuredOverhead { device: "a".into(), model: "m".into(), bytes, time_ms };
        all.add_overhead(overhead(1, 1));
        all.add_overhead(overhead(2, 2));
        assert_eq!(all.overheads, vec![overhead(2, 2)]);
    }

    #[test]
    fn a_file_of_an_earlier_version_is_read_and_kept() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join(RATES_FILE);
        let earlier = r#"[{"device": "a", "model": "m", "base": "f32", "recompute": "n", "micro_batch_tokens": 512,
                           "tokens_per_s": 200.5, "time_ms": 7}]"#;
        std::fs::write(&path, earlier).expect("write");
        let rates = read_measurements(&path, "a").expect("read").rates;
        assert_eq!((rates.len(), rates[0].tokens_per_s, rates[0].compute, rates[0].length), (1, 200.5, None, 0));
        record(&path, |all| all.add_prediction(prediction("x", 1.0, 8))).expect("written");
        let all = read_measurements(&path, "a").expect("read");
        assert_eq!((all.rates, all.predictions.len()), (rates, 1));
    }

    #[test]
    fn a_broken_file_is_named_and_the_next_measurement_repairs_it() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join(RATES_FILE);
        std::fs::write(&path, "{half").expect("write");
        assert!(read_measurements(&path, "a").expect_err("broken").to_string().contains(RATES_FILE));
        record(&path, |all| all.add_rate(rate("a", 300.0, 3))).expect("written");
        assert_eq!(read_measurements(&path, "a").expect("read").rates.len(), 1);
    }
}
