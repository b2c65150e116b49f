//! Errors as people meet them: what failed with the values, and the next step.
//!
//! Each folder has its own error enum with named fields. [`Error`] joins them for whoever shows them, and
//! [`ErrorReport`] is its form in events, on `--json` and in the window.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

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
