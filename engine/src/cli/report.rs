use std::path::PathBuf;

use hearth_engine::report;
use serde_json::json;

use super::failure::{Exit, Failure};
use super::{Context, emit};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the run, or its beginning.
    run: String,
    /// Write the charts as a PNG picture instead of the page.
    #[arg(long)]
    png: bool,
    /// File to write; in the run folder where left out.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    let (content, own) = if args.png {
        (report::png(&folder)?, folder.report().with_extension("png"))
    } else {
        (report::html(&folder)?.into_bytes(), folder.report())
    };
    let path = args.out.unwrap_or(own);
    folder.write_report(&path, &content)?;
    if context.json {
        context.print_json(&json!({ "path": path }))?;
    } else {
        emit(&format!("Report written to {}", path.display()))?;
    }
    Ok(Exit::Done)
}
