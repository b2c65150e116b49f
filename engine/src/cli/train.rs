use std::path::PathBuf;

use hearth_engine::hardware::here_to_train;
use hearth_engine::run::store::RATES;
use hearth_engine::run::{self, Outcome, RunFolder, interrupt};
use serde_json::json;

use super::config_args::ConfigArgs;
use super::display::Display;
use super::failure::{Exit, Failure};
use super::{Context, emit, engine, export, hardware};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// New or empty folder that gets the trained adapter when the run ends.
    #[arg(long, value_name = "DIR", value_parser = super::folder())]
    out: Option<PathBuf>,
    /// Train in a process that outlives this one, and say only which run it is.
    #[arg(long)]
    detach: bool,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let config = args.config.resolve()?;
    let hardware = hardware::with_rates(here_to_train()?, &context.runs_dir.join(RATES));
    engine::say_why_processor(context, &hardware)?;
    let mut display = Display::new(context.json && !args.detach);
    if args.detach {
        let mut say = |notice: run::Notice<'_>| {
            if !context.json {
                display.notice(notice);
            }
        };
        let created = run::create(config, &hardware, &context.runs_dir, args.out, &mut say);
        display.close();
        let folder = created?;
        return detached(context, &folder);
    }
    interrupt::listen();
    let result = run::train(config, &hardware, &context.runs_dir, args.out, &mut |notice| display.notice(notice));
    display.close();
    let (folder, outcome) = result?;
    ended(context, &folder, outcome)
}

/// Leaves a run to a process of its own.
pub(crate) fn detached(context: &Context, folder: &RunFolder) -> Result<Exit, Failure> {
    let pid = run::detach(folder, &context.runs_dir)?;
    if context.json {
        context.print_json(&json!({ "run_id": folder.id(), "path": folder.path(), "pid": pid }))?;
    } else {
        emit(&format!("Run {} goes on in process {pid}.", folder.id()))?;
        emit(&format!("Follow it with `hearth watch {}`.", folder.id()))?;
    }
    Ok(Exit::Done)
}

/// What follows when the training of this process is over.
pub(crate) fn ended(context: &Context, folder: &RunFolder, outcome: Outcome) -> Result<Exit, Failure> {
    // The next plan is better for it, but no run is worse without.
    let _ = run::remember_outcome(folder);
    match outcome {
        Outcome::Interrupted { step } => {
            if !context.json {
                emit(&format!("Interrupted. Step {step} is safe; `hearth resume {}` goes on.", folder.id()))?;
            }
            Ok(Exit::Interrupted)
        }
        Outcome::Stopped { .. } => Ok(Exit::Done),
        Outcome::Finished { .. } => match folder.record()?.out {
            Some(out) => export::adapter_to(context, folder, &out),
            None => Ok(Exit::Done),
        },
    }
}
