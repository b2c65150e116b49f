//! Child processes: said before they run, checked after.

use std::{
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// Cargo, the one that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::repository::root());
    command
}

/// npm in the frontend's folder.
pub(crate) fn npm() -> Command {
    let mut command = Command::new(if cfg!(windows) { "npm.cmd" } else { "npm" });
    command.current_dir(crate::repository::frontend());
    command
}

/// Python 3.
pub(crate) fn python() -> Command {
    Command::new(if cfg!(windows) { "python" } else { "python3" })
}

/// Prints the command line and runs it with this terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("starting `{line}`"))?;
    check(status, &line)
}

/// Runs it silently and returns what it printed.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("starting `{line}`"))?;
    check(output.status, &line)?;
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed something that is not UTF-8"))
}

/// Whether it starts and succeeds; prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn check(status: ExitStatus, line: &str) -> Result<()> {
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// The command as somebody would type it in the root, without the folder of its program.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut line = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for argument in command.get_args() {
        let argument = Path::new(argument).strip_prefix(crate::repository::root()).map_or(argument, Path::as_os_str);
        let argument = argument.to_string_lossy();
        line.push(' ');
        if argument.is_empty() || argument.contains([' ', '"', '$', '(', '*']) {
            line.push_str(&format!("'{argument}'"));
        } else {
            line.push_str(&argument);
        }
    }
    line
}

/// "4 min 05 s"
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_quote_what_a_shell_would_split() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["nextest", "-E", "binary(window)", "a b", ""]);
        assert_eq!(line(&command), "cargo nextest -E 'binary(window)' 'a b' ''");
    }

    #[test]
    fn durations_round_before_they_choose_a_unit() {
        assert_eq!(duration(Duration::from_millis(59_400)), "59 s");
        assert_eq!(duration(Duration::from_millis(59_600)), "1 min 00 s");
        assert_eq!(duration(Duration::from_secs(7_500)), "2 h 05 min");
    }
}
