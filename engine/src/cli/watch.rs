use std::thread::sleep;
use std::time::Duration;

use hearth_engine::event::TrainEvent;

use super::display::Display;
use super::failure::{Exit, Failure};
use super::{Context, emit};

/// How often the log is looked at.
const POLL: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the run, or its beginning.
    run: String,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    let mut follower = folder.follow();
    let mut display = Display::new(context.json);
    let mut failed = None;
    loop {
        // Asked before the log is read: what a process writes before it ends is then never missed.
        let is_running = folder.is_running();
        for line in follower.poll()? {
            match &line.event {
                TrainEvent::Failed { error } => failed = Some(error.clone()),
                TrainEvent::Started { .. } => failed = None,
                _ => {}
            }
            display.event(&line);
        }
        if !is_running || display.is_unheard() {
            break;
        }
        sleep(POLL);
    }
    display.close();
    if let (Some(error), false) = (failed, context.json) {
        emit(&format!("The run ended with a fault: {}", error.message))?;
        emit(&error.next_step)?;
    }
    Ok(Exit::Done)
}
