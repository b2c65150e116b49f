use hearth_engine::run::{self, Resumed, interrupt};

use super::display::Display;
use super::failure::{Exit, Failure};
use super::{Context, emit, train};

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
