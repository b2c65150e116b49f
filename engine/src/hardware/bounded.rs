//! A program run for a bounded time with bounded output, leaving no process behind.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How it ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// By itself. Output beyond the limit is cut; bytes that are no UTF-8 are replaced.
    Exited { status: Option<i32>, output: String },
    /// It did not end in time and was killed.
    TimedOut,
    /// There is no such program.
    Absent,
    /// It could not be started.
    NotStarted { reason: String },
}

/// More than any sane answer.
const OUTPUT_LIMIT: u64 = 64 * 1024;
/// Between two looks at a running child.
const POLL: Duration = Duration::from_millis(10);

/// Runs `program` with `args`, reading its standard output, and kills it after `limit`.
pub(super) fn run(program: &Path, args: &[&str], limit: Duration) -> Ended {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    platform::prepare(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ended::Absent,
        Err(error) => return Ended::NotStarted { reason: error.to_string() },
    };
    let (sender, receiver) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        // A thread, because a read from a pipe has no time limit. It ends with the pipe's last writer.
        std::thread::spawn(move || {
            let mut output = Vec::new();
            let mut limited = stdout.take(OUTPUT_LIMIT);
            let _ = limited.read_to_end(&mut output);
            // The rest is read and forgotten, else a chatty child would block for ever on a full pipe.
            let _ = std::io::copy(&mut limited.into_inner(), &mut std::io::sink());
            let _ = sender.send(output);
        });
    }
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => {
                end(&mut child);
                return Ended::TimedOut;
            }
            Err(error) => {
                end(&mut child);
                return Ended::NotStarted { reason: error.to_string() };
            }
        }
    };
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(200));
    match receiver.recv_timeout(left) {
        Ok(output) => Ended::Exited { status: status.code(), output: String::from_utf8_lossy(&output).into_owned() },
        // It ended, but something it started holds the pipe.
        Err(_) => {
            end(&mut child);
            Ended::TimedOut
        }
    }
}

fn end(child: &mut Child) {
    platform::kill_group(child);
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(unix)]
mod platform {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    pub(super) fn prepare(command: &mut Command) {
        command.process_group(0);
    }

    /// The child and what it started: a wrapper script's child would outlive the wrapper.
    pub(super) fn kill_group(child: &Child) {
        if let Ok(pid) = i32::try_from(child.id()) {
            // SAFETY: kill takes no pointers. The group is the child's own (`process_group(0)`) and its id is not
            // reused while a member of it lives or the child is not waited for.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
    }
}

#[cfg(windows)]
mod platform {
    use std::os::windows::process::CommandExt;
    use std::process::{Child, Command};

    /// No console window flashes up when the studio looks for a card.
    const CREATE_NO_WINDOW: u32 = 0x0800_0000;

    pub(super) fn prepare(command: &mut Command) {
        command.creation_flags(CREATE_NO_WINDOW);
    }

    /// nvidia-smi.exe starts no other process; killing it is enough.
    pub(super) fn kill_group(_: &Child) {}
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        run(Path::new("/bin/sh"), &["-c", script], limit)
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        let folder = tempfile::tempdir().expect("folder");
        let pid_file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > '{}'; wait", pid_file.display());
        let started = Instant::now();
        assert!(matches!(shell(&script, Duration::from_millis(500)), Ended::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        let pid: i32 = std::fs::read_to_string(&pid_file).expect("pid").trim().parse().expect("number");
        let gone = || {
            // Killed but not yet reaped by whoever adopted it counts as gone.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z")
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(Instant::now() < deadline, "process {pid} was left behind");
            std::thread::sleep(POLL);
        }
    }

    #[test]
    fn a_program_that_leaves_the_pipe_open_behind_it_does_not_block() {
        let started = Instant::now();
        assert!(matches!(shell("sleep 600 & exit 0", Duration::from_millis(300)), Ended::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn endless_output_is_cut_and_bytes_that_are_no_text_are_replaced() {
        let Ended::Exited { status, output } =
            shell("head -c 1000000 /dev/zero | tr '\\0' '\\377'; exit 3", Duration::from_secs(20))
        else {
            panic!("it ends by itself");
        };
        assert_eq!(status, Some(3));
        assert_eq!(output.chars().count(), OUTPUT_LIMIT as usize);
    }

    #[test]
    fn a_program_that_does_not_exist_is_absent() {
        let ended = run(Path::new("/nowhere/nvidia-smi"), &[], Duration::from_secs(1));
        assert!(matches!(ended, Ended::Absent), "{ended:?}");
    }
}
