//! Hands a command over to `hearth-cuda` where a card can be used; [`hearth_engine::gpu_setup`] says whether it can, and why not.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use hearth_engine::gpu_setup::{Look, Machine, WhyProcessor};
use hearth_engine::hardware::{Hardware, TrainOn, detect};

use super::{Context, emit, failure::Failure};

/// This machine, as seen from this program.
pub(super) fn machine() -> Machine {
    // Without its own place it finds no engine beside it, and says so.
    Machine::here(&std::env::current_exe().unwrap_or_else(|_| PathBuf::from("hearth")))
}

/// Why a run that starts here now trains on the processor; `None` where it trains on the card.
pub(super) fn why_processor(hardware: &Hardware) -> Option<WhyProcessor> {
    match hardware.train_on {
        TrainOn::Card => None,
        TrainOn::Processor => machine().card_engine(hardware, Look::Quick).err(),
    }
}

/// Says that the processor trains and why, where it does.
pub(super) fn say_why_processor(context: &Context, hardware: &Hardware) -> Result<(), Failure> {
    match why_processor(hardware) {
        Some(why) if !context.json => emit(&format!("Trains on the processor: {why}.")),
        _ => Ok(()),
    }
}

/// Lets the engine for cards do this command, where there is one, a card and all that it needs. Comes back, with nothing done, where
/// this engine has to; [`why_processor`] then says why.
pub(super) fn hand_over() -> Option<ExitCode> {
    let machine = machine();
    if hearth_engine::ops::HAS_KERNELS || !machine.has_engine() {
        return None;
    }
    let hardware = detect();
    let engine = machine.card_engine(&hardware, Look::Quick).ok()?;
    let mut command = engine.command().ok()?;
    command.args(std::env::args_os().skip(1));
    // CUDA counts cards in an order of its own; the first must be the one that is planned for.
    if let Some(devices) = hardware.visible_devices() {
        command.env("CUDA_VISIBLE_DEVICES", devices);
    }
    become_(command)
}

/// This process becomes the other: its id, its streams and its signals stay.
#[cfg(unix)]
fn become_(mut command: Command) -> Option<ExitCode> {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    eprintln!("note: {} cannot be started, so the processor does the work: {error}", command.get_program().display());
    None
}

/// Windows has no exec: the other is waited for. It shares the console, so Ctrl-C reaches it by itself, and this one listens too: it
/// would end first otherwise, and the other's exit status would be nobody's.
#[cfg(not(unix))]
fn become_(mut command: Command) -> Option<ExitCode> {
    hearth_engine::run::interrupt::listen();
    match command.status() {
        Ok(status) => Some(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))),
        Err(error) => {
            let program = command.get_program().display();
            eprintln!("note: {program} cannot be started, so the processor does the work: {error}");
            None
        }
    }
}
