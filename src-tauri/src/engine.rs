//! The engine's program: where it is, and calling it for one answer.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use hearth_engine::error::ErrorReport;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Names another engine than the one beside this program, for development, or asks the engine for the processor.
const ENGINE: &str = "HEARTH_ENGINE";
/// What it is set to for the latter.
const PROCESSOR: &str = "processor";

/// What a call gives: the answer, or the error as the page shows it.
pub(crate) type Answer<T> = Result<T, ErrorReport>;

pub(crate) fn error(code: &str, message: impl Into<String>, next_step: &str) -> ErrorReport {
    ErrorReport { code: code.into(), message: message.into(), next_step: next_step.into() }
}

/// The engine's program, `hearth` beside this one.
pub(crate) fn program() -> Answer<PathBuf> {
    if let Some(path) = named(env::var_os(ENGINE)) {
        return existing(path);
    }
    let this = env::current_exe()
        .map_err(|e| error("window.engine_missing", format!("this program does not know where it is: {e}"), ""))?;
    existing(this.with_file_name(format!("hearth{}", env::consts::EXE_SUFFIX)))
}

/// The engine that the environment names. What it asks of the engine is the engine's to read.
fn named(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|value| !value.is_empty() && value != PROCESSOR).map(PathBuf::from)
}

fn existing(path: PathBuf) -> Answer<PathBuf> {
    if path.is_file() {
        return Ok(path);
    }
    let message = format!("the engine is not at {}", path.display());
    Err(error("window.engine_missing", message, "Install Hearth again, or set HEARTH_ENGINE to the program `hearth`."))
}

/// A command line for the engine: `arguments`, then `--json`.
pub(crate) fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Answer<Command> {
    let mut command = Command::new(program()?);
    command.args(arguments).arg("--json");
    quiet(&mut command);
    Ok(command)
}

/// No console window of its own on Windows.
#[cfg(windows)]
fn quiet(command: &mut Command) {
    use std::os::windows::process::CommandExt;
    const CREATE_NO_WINDOW: u32 = 0x0800_0000;
    command.creation_flags(CREATE_NO_WINDOW);
}

#[cfg(not(windows))]
fn quiet(_command: &mut Command) {}

/// Runs the engine to its end and reads its one JSON document. `input` goes to its standard input.
pub(crate) fn ask<T: DeserializeOwned>(mut command: Command, input: Option<&[u8]>) -> Answer<T> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().map_err(not_started)?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        let input = input.to_vec();
        // Written aside: an engine that answers before it has read everything must not block both.
        thread::spawn(move || stdin.write_all(&input));
    }
    let output = child.wait_with_output().map_err(not_started)?;
    read(&output)
}

fn read<T: DeserializeOwned>(output: &Output) -> Answer<T> {
    if !output.status.success() {
        return Err(failure(&output.stdout, &output.stderr, output.status.code()));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| error("window.engine_output", format!("the engine's answer cannot be read: {e}"), "Try again."))
}

pub(crate) fn not_started(e: std::io::Error) -> ErrorReport {
    error("window.engine_missing", format!("the engine cannot be started: {e}"), "Install Hearth again.")
}

/// The error document of the engine, wherever it stands in its output.
#[derive(Deserialize)]
struct Failure {
    error: ErrorReport,
}

/// The error in a line, if the line is one.
pub(crate) fn error_line(line: &str) -> Option<ErrorReport> {
    serde_json::from_str::<Failure>(line).ok().map(|failure| failure.error)
}

/// What a failed engine said: its error document, else the end of what it complained.
fn failure(stdout: &[u8], stderr: &[u8], code: Option<i32>) -> ErrorReport {
    let text = String::from_utf8_lossy(stdout);
    if let Some(report) = error_line(&text).or_else(|| text.lines().rev().find_map(error_line)) {
        return report;
    }
    ended(&String::from_utf8_lossy(stderr), code)
}

/// An engine that ended without an error document.
pub(crate) fn ended(stderr: &str, code: Option<i32>) -> ErrorReport {
    let how = match code {
        Some(code) => format!("the engine ended with code {code}"),
        None => "the engine was ended from outside".into(),
    };
    let said: Vec<&str> = stderr.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    let message =
        if said.is_empty() { how } else { format!("{how}: {}", said.into_iter().rev().collect::<Vec<_>>().join(" ")) };
    error("window.engine_ended", message, "Try again. What was saved is safe.")
}

/// A file in `folder`, written only where it is not there or differs.
pub(crate) fn keep_file(folder: &Path, name: &str, content: &[u8]) -> std::io::Result<PathBuf> {
    let path = folder.join(name);
    if std::fs::read(&path).ok().as_deref() != Some(content) {
        std::fs::create_dir_all(folder)?;
        std::fs::write(&path, content)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_document_is_found_behind_other_lines() {
        let stdout = b"{\"progress\":{\"phase\":\"export\",\"done\":1,\"total\":2}}\n\
            {\"error\":{\"code\":\"run.busy\",\"message\":\"m\",\"next_step\":\"n\"}}\n";
        let report = failure(stdout, b"", Some(5));
        assert_eq!((report.code.as_str(), report.next_step.as_str()), ("run.busy", "n"));
    }

    #[test]
    fn an_engine_that_dies_without_a_word_is_an_error_with_its_code_and_last_lines() {
        let report = failure(b"", b"a\n\nb\nc\nd\n", Some(70));
        assert_eq!(report.code, "window.engine_ended");
        assert_eq!(report.message, "the engine ended with code 70: b c d");
        assert!(failure(b"", b"", None).message.contains("from outside"));
    }

    #[test]
    fn the_environment_names_an_engine_or_asks_for_the_processor() {
        assert_eq!(named(Some("/opt/编辑/hearth".into())), Some(PathBuf::from("/opt/编辑/hearth")));
        assert_eq!(named(Some(PROCESSOR.into())), None);
        assert_eq!(named(Some(OsString::new())), None);
        assert_eq!(named(None), None);
    }

    #[test]
    fn an_engine_that_is_not_there_is_named() {
        let report = existing(PathBuf::from("/nowhere/编辑 hearth")).expect_err("nothing is there");
        assert_eq!(report.code, "window.engine_missing");
        assert!(report.message.contains("/nowhere/编辑 hearth"), "{}", report.message);
    }

    #[test]
    fn a_kept_file_is_not_written_twice() {
        let folder = tempfile::tempdir().expect("folder");
        let path = keep_file(&folder.path().join("a b"), "x", b"1").expect("written");
        let before = std::fs::metadata(&path).expect("there").modified().expect("time");
        assert_eq!(keep_file(&folder.path().join("a b"), "x", b"1").expect("kept"), path);
        assert_eq!(std::fs::metadata(&path).expect("there").modified().expect("time"), before);
        keep_file(&folder.path().join("a b"), "x", b"2").expect("changed");
        assert_eq!(std::fs::read(path).expect("read"), b"2");
    }
}
