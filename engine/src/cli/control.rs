use std::thread::sleep;
use std::time::Duration;

use hearth_engine::{format, run};
use serde_json::json;

use super::config_args::GovernorArgs;
use super::failure::{Exit, Failure};
use super::{Context, emit};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the run, or its beginning.
    run: String,
}

#[derive(clap::Args)]
pub(crate) struct GovernArgs {
    /// Id of the run, or its beginning.
    run: String,
    #[command(flatten)]
    governor: GovernorArgs,
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

pub(crate) fn govern(context: &Context, args: GovernArgs) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    let mut config = folder.governor()?;
    args.governor.over(&mut config);
    run::govern(&folder, &config)?;
    if context.json {
        context.print_json(&config)?;
        return Ok(Exit::Done);
    }
    let or_none = |what: Option<String>| what.unwrap_or_else(|| "none".into());
    emit(&format!(
        "Run {}: temperature limit {}, power limit {}, quiet hours {}, {}.",
        folder.id(),
        or_none(
            (config.temperature_limit_c > 0.0).then(|| format!("{} °C", format::plain(config.temperature_limit_c, 1)))
        ),
        or_none(config.power_limit_w.map(|watts| format!("{} W", format::plain(watts, 1)))),
        or_none(config.quiet_hours.map(String::from)),
        if config.yield_to_others { "it yields to other programs" } else { "it does not yield to other programs" },
    ))?;
    Ok(Exit::Done)
}

fn asked(context: &Context, id: &str, what: &str) -> Result<Exit, Failure> {
    if context.json {
        context.print_json(&json!({ "run_id": id, "asked": what }))?;
    } else {
        emit(&format!("Asked run {id} to {what}."))?;
    }
    Ok(Exit::Done)
}
