use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hearth_engine::format;
use hearth_engine::gpu_setup::{GpuPackage, GpuPackageState, GpuSetup, GpuSetupPhase, GpuSetupProgress, Look, Origin};
use hearth_engine::hardware::here;
use hearth_engine::run::interrupt;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::failure::{Exit, Failure};
use super::{Context, emit, engine};

/// How often a log gets a line about the download.
const LOG_EVERY: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Say what is there and what is missing, reading every library, and fetch nothing.
    #[arg(long)]
    check: bool,
    /// Read only the libraries that were written since they were last read.
    #[arg(long, requires = "check")]
    quick: bool,
    /// Take NVIDIA's packages from this folder instead of the network.
    #[arg(long, value_name = "DIR", conflicts_with = "mirror")]
    from: Option<PathBuf>,
    /// Address below which a mirror of the Python package index has its files, https://pypi.example.org/packages.
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let machine = engine::machine();
    let hardware = here()?;
    if !args.check {
        let origin = args.from.map(Origin::Folder).or(args.mirror.map(Origin::Index));
        let before = machine.report(&hardware, Look::Quick);
        if before.fetch_bytes > 0 && !context.json {
            emit(&format!("The libraries come under the {} ({}).", before.licence, before.licence_url))?;
        }
        interrupt::listen();
        let mut display = Display::new(context);
        let fetched = machine.fetch(origin, &interrupt::asked, &mut |news| display.show(&news));
        display.close();
        fetched?;
    }
    let report = machine.report(&hardware, if args.check && !args.quick { Look::Full } else { Look::Quick });
    if context.json {
        context.print_json(&report)?;
    } else {
        say(&report)?;
    }
    Ok(Exit::Done)
}

fn say(report: &GpuSetup) -> Result<(), Failure> {
    emit(&format!("card       {}", report.card.as_deref().unwrap_or("none")))?;
    let driver = report.driver.as_deref().unwrap_or("none");
    emit(&format!("driver     {driver}; {} or newer is needed", report.least_driver))?;
    for package in &report.packages {
        emit(&format!(
            "libraries  {} ({} {}): {}",
            package.libraries.join(", "),
            package.name,
            package.version,
            state(package)
        ))?;
    }
    emit(&report.message)?;
    if report.next_step.is_empty() { Ok(()) } else { emit(&report.next_step) }
}

fn state(package: &GpuPackage) -> String {
    match &package.state {
        GpuPackageState::Fetched { folder } => format!("fetched, in {}", folder.display()),
        GpuPackageState::Installed { folder } => format!("in {}", folder.display()),
        GpuPackageState::Damaged { reason } => format!("damaged, {reason}"),
        GpuPackageState::Missing if package.kept_bytes > 0 => format!(
            "missing, {} of {} fetched",
            format::bytes(package.kept_bytes),
            format::bytes(package.download_bytes)
        ),
        GpuPackageState::Missing => format!("missing, {} to fetch", format::bytes(package.download_bytes)),
    }
}

/// Progress: lines of JSON, a bar, or plain lines for a log.
struct Display<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    phase: Option<(GpuSetupPhase, String)>,
    last_log: Option<Instant>,
}

impl<'a> Display<'a> {
    fn new(context: &'a Context) -> Self {
        let bar = (!context.json && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(1);
            if let Ok(style) = ProgressStyle::with_template("{bar:28} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { context, bar, phase: None, last_log: None }
    }

    fn show(&mut self, news: &GpuSetupProgress) {
        if self.context.json {
            // Whoever does not listen any more does not end the download.
            let _ = super::write_line(&json!({ "progress": news }).to_string());
            return;
        }
        let words = words(news);
        if let Some(bar) = &self.bar {
            bar.set_length(news.total_bytes);
            bar.set_position(news.done_bytes);
            bar.set_message(words);
            return;
        }
        let phase = Some((news.phase, news.package.clone()));
        let is_due = self.last_log.is_none_or(|then| then.elapsed() >= LOG_EVERY);
        if self.phase != phase || is_due {
            self.phase = phase;
            self.last_log = Some(Instant::now());
            let _ = super::write_line(&words);
        }
    }

    fn close(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn words(news: &GpuSetupProgress) -> String {
    let package = &news.package;
    let done = format!("{} of {}", format::bytes(news.done_bytes), format::bytes(news.total_bytes));
    match news.phase {
        GpuSetupPhase::Fetch => {
            let rate = news.bytes_per_s.map(|rate| format!(", {}/s", format::bytes(rate as u64))).unwrap_or_default();
            let left = news.left_s.map(|left| format!(", {} left", format::duration(left))).unwrap_or_default();
            format!("fetching {package}: {done}{rate}{left}")
        }
        GpuSetupPhase::Wait => {
            let reason = news.reason.as_deref().unwrap_or("the network failed");
            format!("fetching {package}: {done}; trying again, as {reason}")
        }
        GpuSetupPhase::Compare => format!("comparing {package} with what NVIDIA published"),
        GpuSetupPhase::Unpack => format!("unpacking {package}: {done}"),
    }
}
