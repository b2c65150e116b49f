//! Errors as people meet them: what failed with the values, and the next step.
//!
//! Each folder has its own error enum with named fields. [`Error`] joins them for whoever shows them, and
//! [`ErrorReport`] is its form in events, on `--json` and in the window.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::format;
use crate::ops::memory::OutOfMemory;

/// An error as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct ErrorReport {
    /// Stable name, for example `model.pickle_only`.
    pub code: String,
    /// What failed, with the values.
    pub message: String,
    /// What the person can do.
    pub next_step: String,
}

/// What every error enum of the engine offers beside `Display`.
pub trait Explain: std::error::Error {
    /// Stable dotted name, `<folder>.<variant>`.
    fn code(&self) -> &'static str;
    /// What the person can do, as a sentence.
    fn next_step(&self) -> String;
    /// The shown form.
    fn report(&self) -> ErrorReport {
        ErrorReport { code: self.code().into(), message: self.to_string(), next_step: self.next_step() }
    }
}

/// What to do about a lack of memory, wherever it was met.
pub(crate) const FREE_MEMORY: &str =
    "Close other programs that use this memory, or take a smaller model or a shorter length.";

/// A lack of memory in words: for what, how much, and who holds the rest.
pub(crate) fn out_of_memory(shortage: &OutOfMemory) -> String {
    let OutOfMemory { site, needed_bytes, limit_bytes, held } = shortage;
    let what = match (site, needed_bytes) {
        (Some(site), Some(bytes)) => format!("{} for {}", format::bytes(*bytes), site.label()),
        (Some(site), None) => format!("memory for {}", site.label()),
        (None, _) => "memory for a library's own work".into(),
    };
    let why = match limit_bytes {
        Some(limit) => format!("would go beyond the limit of {}", format::bytes(*limit)),
        None => "could not be had".into(),
    };
    let holders: Vec<String> =
        held.iter().take(3).map(|(site, bytes)| format!("{} {}", site.label(), format::bytes(*bytes))).collect();
    match held.iter().map(|(_, bytes)| bytes).sum::<u64>() {
        0 => format!("{what} {why}"),
        total => format!("{what} {why}; this run holds {}, most of it {}", format::bytes(total), holders.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::memory::Site;

    #[test]
    fn a_lack_of_memory_says_what_how_much_and_who_holds_the_rest() {
        let held = vec![(Site::BaseWeights, 3 << 30), (Site::Kept, 1 << 30), (Site::Slot, 1 << 20), (Site::Norms, 9)];
        let shortage =
            OutOfMemory { site: Some(Site::Cache), needed_bytes: Some(1 << 29), limit_bytes: Some(1 << 32), held };
        let words = out_of_memory(&shortage);
        assert_eq!(
            words,
            "512 MiB for keys and values of the answers would go beyond the limit of 4 GiB; this run holds 4 GiB, most of it \
             base weights 3 GiB, kept activations 1 GiB, dequantisation slot 1 MiB"
        );
        let unknown = OutOfMemory { site: None, needed_bytes: None, limit_bytes: None, held: Vec::new() };
        assert_eq!(out_of_memory(&unknown), "memory for a library's own work could not be had");
    }
}
