//! How a command ends.

use std::io::Write;
use std::process::ExitCode;

use hearth_engine::error::{ErrorReport, Explain};
use hearth_engine::{data, export, generate, gpu_setup, hardware, model, plan, report, run, step};
use serde_json::json;

use super::write_line;

/// Exit status; documented in `hearth --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Usage = 2,
    BadInput = 3,
    DoesNotFit = 4,
    NoRun = 5,
    Interrupted = 6,
    NotProven = 7,
    Internal = 70,
}

/// Why a command could not be done.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    report: ErrorReport,
}

impl Failure {
    /// A fault that no input explains.
    pub(crate) fn internal(message: String) -> Self {
        let next_step = "This is a fault in Hearth. Report it with the message.".into();
        Self { exit: Exit::Internal, report: ErrorReport { code: "internal".into(), message, next_step } }
    }

    /// A command line that parses but makes no sense.
    pub(crate) fn usage(message: impl Into<String>, next_step: impl Into<String>) -> Self {
        let report = ErrorReport { code: "usage".into(), message: message.into(), next_step: next_step.into() };
        Self { exit: Exit::Usage, report }
    }

    /// An input that cannot be used.
    pub(crate) fn input(code: &str, message: impl Into<String>, next_step: impl Into<String>) -> Self {
        let report = ErrorReport { code: code.into(), message: message.into(), next_step: next_step.into() };
        Self { exit: Exit::BadInput, report }
    }

    /// A wish that no memory here is enough for.
    pub(crate) fn does_not_fit(code: &str, message: impl Into<String>, next_step: impl Into<String>) -> Self {
        Self { exit: Exit::DoesNotFit, ..Self::input(code, message, next_step) }
    }

    fn of(exit: Exit, error: &dyn Explain) -> Self {
        Self { exit, report: error.report() }
    }

    /// Says it, on standard output for programs and on standard error for people.
    pub(crate) fn show(&self, json: bool) -> ExitCode {
        // Whoever does not listen any more still gets the exit status.
        let _ = if json {
            write_line(&json!({ "error": self.report }).to_string())
        } else {
            let ErrorReport { message, next_step, .. } = &self.report;
            writeln!(std::io::stderr(), "error: {message}\n{next_step}")
        };
        ExitCode::from(self.exit as u8)
    }
}

impl From<data::Error> for Failure {
    fn from(e: data::Error) -> Self {
        Self::of(Exit::BadInput, &e)
    }
}

impl From<model::Error> for Failure {
    fn from(e: model::Error) -> Self {
        Self::of(exit_of_model(&e), &e)
    }
}

impl From<plan::Error> for Failure {
    fn from(e: plan::Error) -> Self {
        Self::of(exit_of_plan(&e), &e)
    }
}

impl From<hardware::Error> for Failure {
    fn from(e: hardware::Error) -> Self {
        Self::of(Exit::BadInput, &e)
    }
}

impl From<gpu_setup::Error> for Failure {
    fn from(e: gpu_setup::Error) -> Self {
        use gpu_setup::Error as E;
        let exit = match &e {
            E::DiskTooSmall { .. } | E::DiskFull { .. } => Exit::DoesNotFit,
            E::Busy { .. } => Exit::NoRun,
            E::Cancelled => Exit::Interrupted,
            _ => Exit::BadInput,
        };
        Self::of(exit, &e)
    }
}

impl From<generate::Error> for Failure {
    fn from(e: generate::Error) -> Self {
        let exit = if matches!(e, generate::Error::OutOfMemory(_)) { Exit::DoesNotFit } else { Exit::Internal };
        Self::of(exit, &e)
    }
}

impl From<export::Error> for Failure {
    fn from(e: export::Error) -> Self {
        use export::Error as E;
        match e {
            E::Model(e) => e.into(),
            E::Generate(e) => e.into(),
            E::Tensor { .. } => Self::of(Exit::Internal, &e),
            E::DiskTooSmall { .. } => Self::of(Exit::DoesNotFit, &e),
            _ => Self::of(Exit::BadInput, &e),
        }
    }
}

impl From<run::Error> for Failure {
    fn from(e: run::Error) -> Self {
        use run::Error as E;
        let exit = match &e {
            E::NotFound { .. } | E::Busy { .. } | E::NotRunning { .. } | E::NoCheckpoint { .. } => Exit::NoRun,
            E::DiskTooSmall { .. } | E::DiskFull { .. } | E::OutOfMemory { .. } | E::OverBudget { .. } => {
                Exit::DoesNotFit
            }
            E::Step(step::Error::OutOfMemory(_)) | E::Generate(generate::Error::OutOfMemory(_)) => Exit::DoesNotFit,
            E::Config { .. } | E::Folder { .. } | E::InputChanged { .. } | E::Damaged { .. } | E::Io { .. } => {
                Exit::BadInput
            }
            E::NotFinite { .. } | E::BeyondF16 { .. } | E::Data(_) => Exit::BadInput,
            E::Step(step::Error::NotFinite { .. } | step::Error::BeyondF16 { .. }) => Exit::BadInput,
            E::Model(e) => exit_of_model(e),
            E::Plan(e) => exit_of_plan(e),
            E::DidNotStart { .. } | E::Hardware(_) | E::Step(_) | E::Generate(_) => Exit::Internal,
        };
        Self::of(exit, &e)
    }
}

impl From<report::Error> for Failure {
    fn from(e: report::Error) -> Self {
        match e {
            report::Error::Run(e) => e.into(),
            report::Error::NoSteps { .. } => Self::of(Exit::NoRun, &e),
            report::Error::Drawing { .. } => Self::of(Exit::Internal, &e),
        }
    }
}

fn exit_of_model(e: &model::Error) -> Exit {
    match e {
        model::Error::Tensor { .. } => Exit::Internal,
        model::Error::OutOfMemory(_) => Exit::DoesNotFit,
        _ => Exit::BadInput,
    }
}

fn exit_of_plan(e: &plan::Error) -> Exit {
    match e {
        plan::Error::DoesNotFit { .. } | plan::Error::NoHostMemory { .. } => Exit::DoesNotFit,
        _ => Exit::BadInput,
    }
}
