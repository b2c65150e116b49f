//! Ctrl-C, SIGTERM and a closed terminal: the first asks for a checkpoint and an end, the second ends at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Exit status of a process that a second Ctrl-C ended, by the shell's convention 128 + SIGINT.
const ENDED_AT_ONCE: i32 = 130;

static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Starts to listen. Only the first call has an effect.
pub fn listen() {
    // It fails only where a handler is set already, which is this one.
    let _ = ctrlc::set_handler(|| {
        if ASKED.fetch_add(1, Ordering::SeqCst) > 0 {
            std::process::exit(ENDED_AT_ONCE);
        }
    });
}

/// True after the first Ctrl-C.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst) > 0
}
