use std::path::PathBuf;

use hearth_engine::event::TrainEvent;
use hearth_engine::run::{self, Resumed, RunFolder, interrupt};

use super::display::Display;
use super::failure::{Exit, Failure};
use super::{Context, emit, export, train};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the run, or its beginning.
    run: String,
    /// Train in a process that outlives this one.
    #[arg(long)]
    detach: bool,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    if args.detach {
        return train::detached(context, &folder);
    }
    interrupt::listen();
    let mut display = Display::new(context.json);
    let result = run::resume(&folder, &mut |notice| display.notice(notice));
    display.close();
    match result? {
        Resumed::Trained(outcome) => train::ended(context, &folder, outcome),
        Resumed::AlreadyFinished { step, .. } => {
            if let Some(out) = not_exported(&folder)? {
                return export::adapter_to(context, &folder, &out);
            }
            if context.json {
                if let Some(line) = folder.history()?.last_turn() {
                    context.print_json(line)?;
                }
            } else {
                emit(&format!("Run {} has finished already, after {step} steps.", folder.id()))?;
            }
            Ok(Exit::Done)
        }
    }
}

/// The folder that was to get the adapter, where the process that finished the run was ended before that.
fn not_exported(folder: &RunFolder) -> Result<Option<PathBuf>, Failure> {
    let Some(out) = folder.record()?.out else { return Ok(None) };
    let history = folder.history()?;
    let is_to_out = |event: &TrainEvent| match event {
        TrainEvent::Exported { kind, path, .. } => kind == "adapter" && *path == out,
        _ => false,
    };
    // Whoever moved an export away does not want it again, and what is there now is somebody's.
    let is_done = history.lines().iter().any(|line| is_to_out(&line.event)) || run::output::check_empty(&out).is_err();
    Ok((!is_done).then_some(out))
}
