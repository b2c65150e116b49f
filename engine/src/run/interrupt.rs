//! Ctrl-C, SIGTERM and a closed terminal: the first asks for a checkpoint and an end, the second ends at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Exit status of a process that a second Ctrl-C ended, by the shell's convention 128 + SIGINT.
const ENDED_AT_ONCE: i32 = 130;

static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Starts to listen. Only the first call has an effect.
#[cfg(unix)]
pub fn listen() {
    // It fails only where a handler is set already, which is this one.
    let _ = ctrlc::set_handler(ask);
}

/// Starts to listen. Only the first call has an effect.
#[cfg(windows)]
pub fn listen() {
    // SAFETY: the handler is there as long as the process and may be called on any thread. One that is set twice is called once,
    // since it answers for all.
    unsafe { windows_sys::Win32::System::Console::SetConsoleCtrlHandler(Some(heard), 1) };
}

#[cfg(windows)]
unsafe extern "system" fn heard(event: u32) -> windows_sys::core::BOOL {
    use windows_sys::Win32::System::Console::{CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT};
    if matches!(event, CTRL_CLOSE_EVENT | CTRL_LOGOFF_EVENT | CTRL_SHUTDOWN_EVENT) {
        ASKED.fetch_max(1, Ordering::SeqCst);
        // Windows ends the process when this returns, else after some seconds: those are for the checkpoint.
        loop {
            std::thread::park();
        }
    }
    ask();
    1
}

fn ask() {
    if ASKED.fetch_add(1, Ordering::SeqCst) > 0 {
        std::process::exit(ENDED_AT_ONCE);
    }
}

/// True after the first Ctrl-C.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst) > 0
}
