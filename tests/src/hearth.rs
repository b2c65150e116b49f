//! The program itself, as a person or the window runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The binary beside this test: `target/<profile>/hearth`.
///
/// # Panics
/// It is not built.
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    // target/debug/deps/resume-1a2b -> target/debug/hearth
    let folder = test.parent().and_then(Path::parent).expect("a test lies in target/<profile>/deps");
    let binary = folder.join(format!("hearth{}", std::env::consts::EXE_SUFFIX));
    assert!(
        binary.is_file(),
        "{} is not there: build it first with `cargo build --package hearth-engine` (`cargo xtask test` does)",
        binary.display()
    );
    binary
}

/// `hearth` with its runs in `runs` and nothing of this user's settings.
pub fn hearth(runs: &Path) -> Command {
    let mut command = Command::new(binary());
    command.env_remove("HEARTH_HOME").arg("--runs").arg(runs);
    command
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    /// Exit status; absent where a signal ended it.
    pub exit: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    /// Runs a command to its end.
    pub fn by(command: &mut Command) -> Said {
        let output: Output = command.output().expect("hearth starts");
        Said {
            exit: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Its lines of JSON.
    ///
    /// # Panics
    /// A line is not JSON.
    pub fn json_lines(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}\n{self:?}"));
        self.out.lines().map(parse).collect()
    }

    /// The error that `--json` reported.
    ///
    /// # Panics
    /// There is none.
    pub fn error(&self) -> Value {
        let line = self.json_lines().into_iter().rev().find(|line| line.get("error").is_some_and(|e| e.is_object()));
        let error = line.unwrap_or_else(|| panic!("no error in {self:?}"));
        error["error"].clone()
    }
}
