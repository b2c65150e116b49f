//! Processes beside this one: a child that outlives its parent, what it has of it, and whether a process is there.

use std::fs::File;
use std::io;
use std::process::{Child, Command, Stdio};

/// Starts `command` so that it goes on when this process, its terminal or its window ends. Its output goes to `log`.
pub(crate) fn spawn_detached(mut command: Command, log: File) -> io::Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
    own_session(&mut command);
    command.spawn()
}

#[cfg(unix)]
fn own_session(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec only async-signal-safe functions may be called; setsid is one, and the closure
    // touches no memory.
    unsafe {
        command.pre_exec(|| if libc::setsid() == -1 { Err(io::Error::last_os_error()) } else { Ok(()) });
    }
}

#[cfg(windows)]
fn own_session(command: &mut Command) {
    use std::os::windows::process::CommandExt;
    const DETACHED_PROCESS: u32 = 0x0000_0008;
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x0000_0200;
    command.creation_flags(DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP);
}

/// Leaves a child only the streams that it is given. Asked before a process does anything else.
#[cfg(unix)]
pub fn keep_streams() {
    // Files are closed on exec, and these three are replaced.
}

/// Leaves a child only the streams that it is given. Windows hands on every handle that may be inherited, and a pipe that this process
/// writes to may be: a child that outlives it would hold it open, and whoever reads it would wait for the child's end.
#[cfg(windows)]
pub fn keep_streams() {
    use windows_sys::Win32::Foundation::{HANDLE_FLAG_INHERIT, SetHandleInformation};
    use windows_sys::Win32::System::Console::{GetStdHandle, STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE};
    for stream in [STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, STD_ERROR_HANDLE] {
        // SAFETY: only a flag of the handle changes, and where there is no such stream nothing does.
        unsafe { SetHandleInformation(GetStdHandle(stream), HANDLE_FLAG_INHERIT, 0) };
    }
}

/// True while a process with this id exists (it may be another one than the one that once had it).
#[cfg(unix)]
pub fn is_alive(pid: u32) -> bool {
    let Ok(pid) = libc::pid_t::try_from(pid) else { return false };
    // SAFETY: signal 0 delivers nothing; kill only looks the process up.
    let found = unsafe { libc::kill(pid, 0) } == 0;
    found || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// True while a process with this id exists (it may be another one than the one that once had it).
#[cfg(not(unix))]
pub fn is_alive(pid: u32) -> bool {
    use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};
    let pid = Pid::from_u32(pid);
    let mut system = System::new();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, ProcessRefreshKind::nothing());
    system.process(pid).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_an_impossible_one_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
    }

    #[test]
    #[cfg(unix)]
    fn a_detached_child_has_its_own_session_and_writes_to_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo hello; ps -o sid= -p $$ || cut -d' ' -f6 /proc/$$/stat"]);
        let mut child = spawn_detached(command, File::create(&path).unwrap()).unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let log = std::fs::read_to_string(&path).unwrap();
        assert!(log.starts_with("hello"), "{log}");
        assert!(log.contains(&pid.to_string()), "session of {pid}: {log}");
    }
}
