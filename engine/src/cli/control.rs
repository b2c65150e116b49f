use std::thread::sleep;
use std::time::Duration;

use hearth_engine::run;
use serde_json::json;

use super::failure::{Exit, Failure};
use super::{Context, emit};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the run, or its beginning.
    run: String,
}

#[derive(clap::Args)]
pub(crate) struct StopArgs {
    /// Id of the run, or its beginning.
    run: String,
    /// Return only when the run has ended.
    #[arg(long)]
    wait: bool,
}

pub(crate) fn stop(context: &Context, args: StopArgs) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    run::ask_stop(&folder)?;
    while args.wait && folder.is_running() {
        sleep(Duration::from_millis(100));
    }
    asked(context, folder.id(), "stop")
}

pub(crate) fn pause(context: &Context, args: Args) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    run::ask_pause(&folder)?;
    asked(context, folder.id(), "pause")
}

pub(crate) fn go_on(context: &Context, args: Args) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    run::ask_continue(&folder)?;
    asked(context, folder.id(), "continue")
}

fn asked(context: &Context, id: &str, what: &str) -> Result<Exit, Failure> {
    if context.json {
        context.print_json(&json!({ "run_id": id, "asked": what }))?;
    } else {
        emit(&format!("Asked run {id} to {what}."))?;
    }
    Ok(Exit::Done)
}
