//! Speeds measured by runs on this computer, kept between runs in `rates.json` of Hearth's data folder.

use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::Error;
use crate::config::{BaseFormat, Recompute};

/// Name of the file in Hearth's data folder.
pub const RATES_FILE: &str = "rates.json";
/// Older measurements beyond this number are forgotten.
const MAX_RATES: usize = 500;

/// Tokens per second of whole optimizer steps, warm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct MeasuredRate {
    /// [`super::Hardware::device_name`].
    pub device: String,
    /// [`crate::plan::model_key`].
    pub model: String,
    /// How the base was held.
    pub base: BaseFormat,
    /// What was kept.
    pub recompute: Recompute,
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
        (&self.device, &self.model, self.base, self.recompute, self.micro_batch_tokens)
            == (&other.device, &other.model, other.base, other.recompute, other.micro_batch_tokens)
    }
}

/// Measurements in `path` made on `device`; none where the file does not exist.
///
/// # Errors
/// [`Error::Read`] and [`Error::BadRates`]; callers plan on without rates and say so.
pub fn read_rates(path: &Path, device: &str) -> Result<Vec<MeasuredRate>, Error> {
    Ok(read_all(path)?.into_iter().filter(|rate| rate.device == device).collect())
}

fn read_all(path: &Path) -> Result<Vec<MeasuredRate>, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::Read { path: path.into(), source }),
    };
    let rates: Vec<MeasuredRate> =
        serde_json::from_slice(&bytes).map_err(|e| Error::BadRates { path: path.into(), reason: e.to_string() })?;
    Ok(rates.into_iter().filter(|rate| rate.tokens_per_s.is_finite() && rate.tokens_per_s > 0.0).collect())
}

/// Adds `rate` to `path`, replacing an older measurement of the same thing. The file is written aside and renamed, so
/// that a reader never sees half of it; of two writers at once, one measurement may be lost. A file that cannot be read
/// is replaced.
///
/// # Errors
/// [`Error::WriteRates`].
pub fn record_rate(path: &Path, rate: MeasuredRate) -> Result<(), Error> {
    let mut rates = read_all(path).unwrap_or_default();
    rates.retain(|old| !old.same_as(&rate));
    rates.push(rate);
    rates.sort_by_key(|rate| rate.time_ms);
    rates.drain(..rates.len().saturating_sub(MAX_RATES));
    write(path, &rates).map_err(|source| Error::WriteRates { path: path.into(), source })
}

fn write(path: &Path, rates: &[MeasuredRate]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec_pretty(rates)?)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(device: &str, tokens_per_s: f64, time_ms: u64) -> MeasuredRate {
        MeasuredRate {
            device: device.into(),
            model: "llama-30x576".into(),
            base: BaseFormat::F32,
            recompute: Recompute::N,
            micro_batch_tokens: 512,
            tokens_per_s,
            time_ms,
        }
    }

    #[test]
    fn a_newer_measurement_replaces_the_older_and_devices_are_kept_apart() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("new folder").join(RATES_FILE);
        assert_eq!(read_rates(&path, "a").expect("none yet"), vec![]);
        record_rate(&path, rate("a", 200.0, 1)).expect("written");
        record_rate(&path, rate("b", 900.0, 2)).expect("written");
        record_rate(&path, rate("a", 300.0, 3)).expect("written");
        assert_eq!(read_rates(&path, "a").expect("read"), vec![rate("a", 300.0, 3)]);
        assert_eq!(read_rates(&path, "b").expect("read"), vec![rate("b", 900.0, 2)]);
    }

    #[test]
    fn a_broken_file_is_named_and_the_next_measurement_repairs_it() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join(RATES_FILE);
        std::fs::write(&path, "{half").expect("write");
        assert!(read_rates(&path, "a").expect_err("broken").to_string().contains(RATES_FILE));
        record_rate(&path, rate("a", 300.0, 3)).expect("written");
        assert_eq!(read_rates(&path, "a").expect("read").len(), 1);
    }
}
