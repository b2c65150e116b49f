use std::path::PathBuf;

use hearth_engine::hardware::{self as machine, Hardware};
use hearth_engine::plan::{self, Plan};
use hearth_engine::run::store::RATES;
use hearth_engine::run::{self, Opened};
use hearth_engine::{error::Explain, format};

use super::config_args::ConfigArgs;
use super::failure::{Exit, Failure};
use super::{Context, emit, hardware};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Plan for another computer: a card's profile by its id, or a file that `hearth hardware --json` wrote.
    #[arg(long, value_name = "PROFILE|FILE")]
    hardware: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let config = args.config.resolve()?;
    let hardware = match args.hardware {
        None => hardware::with_rates(&context.runs_dir.join(RATES)),
        Some(named) => match named.to_str().and_then(machine::profile) {
            Some(profile) => profile.hardware(),
            None => Hardware::read(&named)?,
        },
    };
    let opened = Opened::open(&config, None)?;
    let encoded = opened.encode(&config)?;
    let plan = plan::plan(opened.source.shape(), &encoded.uncut, &config, &hardware)?;
    if context.json {
        context.print_json(&plan)?;
    } else {
        show(&plan)?;
    }
    // A plan that does not fit is an answer; only starting it is refused. The exit status says it to scripts.
    Ok(if plan.fits { Exit::Done } else { Exit::DoesNotFit })
}

fn show(plan: &Plan) -> Result<(), Failure> {
    emit(&run::sentence(plan))?;
    for item in plan.items.iter().filter(|item| item.bytes > 0) {
        emit(&format!("  {:>11}  {}", format::bytes(item.bytes), item.label))?;
    }
    for reason in &plan.reasons {
        emit(&format!("{} = {}: {} {}", reason.setting, reason.value, reason.why, reason.if_changed))?;
    }
    for warning in &plan.warnings {
        emit(&format!("note: {}", warning.message))?;
    }
    for other in plan.alternatives.iter().filter(|other| !other.same) {
        emit(&format!("{}: {}", other.title, other.words))?;
    }
    if let Err(e) = plan.require_fit() {
        emit(&format!("It does not fit: {e}. {}", e.next_step()))?;
    }
    Ok(())
}
