//! The commands of `hearth`, one file each.
//!
//! With `--json` a command writes one JSON document to standard output, or JSON lines where it goes on for a while;
//! without, sentences. Standard error is for progress and faults.

// Writing to the terminal is what this module is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod cards;
mod chat;
mod config_args;
mod control;
mod display;
mod engine;
mod export;
mod failure;
mod hardware;
mod history;
mod inspect;
mod pair;
mod plan;
mod report;
mod resume;
mod runs;
mod score;
mod setup_gpu;
mod train;
mod watch;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand};
use hearth_engine::run;

use self::failure::{Exit, Failure};

const AFTER_HELP: &str = "\
Runs are kept in $HEARTH_HOME/runs, else in the platform's folder for application data (Hearth/runs).
Where $HEARTH_HARDWARE names a file that `hearth hardware --json` wrote, or a card profile, plans are made for what it describes.

Exit status:
   0  done
   2  the command line is wrong
   3  the model, the data or the settings cannot be used
   4  it does not fit: memory or disk
   5  the run is busy, not running, or does not exist
   6  interrupted; a checkpoint was made and `hearth resume` takes the run up
   7  the export was made but could not be proven
  70  a fault in the engine itself

Ctrl-C while training makes a checkpoint and ends; a second Ctrl-C ends at once.";

/// Fine-tune language models on the computer you have.
#[derive(Parser)]
#[command(name = "hearth", version, after_help = AFTER_HELP)]
struct Cli {
    /// Write JSON to standard output: one document, or one line per event.
    #[arg(long, global = true)]
    json: bool,
    /// Folder of all runs.
    #[arg(long, global = true, value_name = "DIR", value_parser = folder())]
    runs: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show processor, memory, cards and disks as they are seen.
    Hardware(hardware::Args),
    /// List, describe and share the cards that can be planned for.
    Cards(cards::Args),
    /// Show what a model will see of a data file: format, problems by line, tokens with those that are learned.
    Inspect(inspect::Args),
    /// Say before anything runs what fits, with which settings, how long it takes and why.
    Plan(plan::Args),
    /// Train an adapter.
    Train(train::Args),
    /// Take a run up from its last checkpoint.
    Resume(resume::Args),
    /// Ask a running run for a checkpoint and an end.
    Stop(control::StopArgs),
    /// Ask a running run to hold; its work is made safe first.
    Pause(control::Args),
    /// Let a paused run go on.
    Continue(control::Args),
    /// Change when a run slows down or pauses by itself: heat, power, quiet hours, other programs.
    Govern(control::GovernArgs),
    /// Follow a run, from its beginning to its end.
    Watch(watch::Args),
    /// List the runs.
    Runs,
    /// Show what runs on this computer were predicted to take and what they took.
    History,
    /// Talk to a model as it was and as it was trained.
    Chat(chat::Args),
    /// Write a trained adapter or the merged model, and prove that it behaves like the one trained.
    Export(export::Args),
    /// Ask held-out examples and count the answers that are exactly right, before and after.
    Score(score::Args),
    /// Write a report with the charts of a run.
    Report(report::Args),
    /// Fetch NVIDIA's libraries that training on a card needs (half a gigabyte, once), or say what is missing.
    SetupGpu(setup_gpu::Args),
}

impl Command {
    /// Whether it trains, says what would, or answers as was trained. Exports are computed on the processor.
    fn depends_on_card(&self) -> bool {
        use Command::{Chat, Hardware, Plan, Resume, Score, Train};
        matches!(self, Hardware(_) | Plan(_) | Train(_) | Resume(_) | Chat(_) | Score(_))
    }
}

/// Parses any path, the empty one too: that is refused where a folder is to be written, with the words for it.
fn folder() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// What every command needs to know.
struct Context {
    json: bool,
    runs_dir: PathBuf,
}

impl Context {
    fn run(&self, id: &str) -> Result<run::RunFolder, Failure> {
        Ok(run::RunFolder::find(&self.runs_dir, id)?)
    }

    /// Writes a JSON document, on one line.
    fn print_json<T: serde::Serialize>(&self, value: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(|e| Failure::internal(format!("cannot write JSON: {e}")))?;
        emit(&text)
    }
}

/// Writes a line to standard output.
fn write_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())
}

/// Writes a line to standard output. A reader that has gone is the end of the command, not a fault.
fn emit(line: &str) -> Result<(), Failure> {
    match write_line(line) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(Exit::Done as i32),
        Err(e) => Err(Failure::internal(format!("cannot write to standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Reads the command line and does what it says.
pub(crate) fn main() -> ExitCode {
    run::process::keep_streams();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // clap writes help to standard output and faults to standard error.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { Exit::Usage as u8 } else { Exit::Done as u8 });
        }
    };
    if cli.command.depends_on_card()
        && let Some(code) = engine::hand_over()
    {
        return code;
    }
    let runs_dir = cli.runs.unwrap_or_else(run::runs_dir);
    // Shown and recorded so that it means the same from everywhere. An empty one stays empty, and is refused where
    // something is to be written.
    let runs_dir = std::path::absolute(&runs_dir).unwrap_or(runs_dir);
    let context = Context { json: cli.json, runs_dir };
    // A fault of the engine itself ends with its own exit status too; the panic's message is on standard error already.
    let result = catch_unwind(AssertUnwindSafe(|| dispatch(&context, cli.command)))
        .unwrap_or_else(|_| Err(Failure::internal("the engine met a state it does not know".into())));
    match result {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) => failure.show(context.json),
    }
}

fn dispatch(context: &Context, command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Hardware(args) => hardware::run(context, args),
        Command::Cards(args) => cards::run(context, args),
        Command::Inspect(args) => inspect::run(context, args),
        Command::Plan(args) => plan::run(context, args),
        Command::Train(args) => train::run(context, args),
        Command::Resume(args) => resume::run(context, args),
        Command::Stop(args) => control::stop(context, args),
        Command::Pause(args) => control::pause(context, args),
        Command::Continue(args) => control::go_on(context, args),
        Command::Govern(args) => control::govern(context, args),
        Command::Watch(args) => watch::run(context, args),
        Command::Runs => runs::run(context),
        Command::History => history::run(context),
        Command::Chat(args) => chat::run(context, args),
        Command::Export(args) => export::run(context, args),
        Command::Score(args) => score::run(context, args),
        Command::Report(args) => report::run(context, args),
        Command::SetupGpu(args) => setup_gpu::run(context, args),
    }
}
