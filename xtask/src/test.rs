//! `cargo xtask test`: every test, in groups, with one line for each at the end.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{
    cuda, display,
    process::{self, cargo, npm},
    repository, setup,
};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these groups
    #[arg(value_enum)]
    groups: Vec<Group>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// The engine, whole-program tests, the house rules
    Rust,
    /// Types and unit tests of the page
    Frontend,
    /// The page in Chromium
    Page,
    /// The real window under a virtual display
    Window,
    /// The engine for graphics cards, built; its tests run where there is a card
    Cuda,
}

impl Group {
    fn title(self) -> &'static str {
        match self {
            Group::Rust => "Rust",
            Group::Frontend => "Frontend",
            Group::Page => "Page in Chromium",
            Group::Window => "Real window",
            Group::Cuda => "CUDA engine",
        }
    }

    fn run(self) -> Result<()> {
        match self {
            Group::Rust => rust(),
            Group::Frontend => process::run(npm().args(["test"])),
            Group::Page => process::run(npm().args(["run", "test:page"])),
            Group::Window => window(),
            Group::Cuda => cuda::test(),
        }
    }
}

pub(crate) fn test(options: &Options) -> Result<()> {
    let begun = Instant::now();
    let mut summary = Summary::default();
    summary.stage("Set-up", setup::for_tests);
    // Types are checked as the page is built; the window embeds the page and the tests start the programs.
    if summary.all_passed() {
        summary.stage("Build", setup::build_window);
    }
    if summary.all_passed() {
        for group in Group::value_variants() {
            if options.groups.is_empty() || options.groups.contains(group) {
                summary.stage(group.title(), || group.run());
            }
        }
    }
    summary.print(begun.elapsed())
}

/// Stage by stage, what happened and how long it took.
#[derive(Default)]
struct Summary {
    stages: Vec<(&'static str, Result<()>, Duration)>,
}

impl Summary {
    fn stage(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) {
        println!("\n── {name} ──");
        let begun = Instant::now();
        let outcome = work();
        if let Err(error) = &outcome {
            println!("{name} failed: {error:#}");
        }
        self.stages.push((name, outcome, begun.elapsed()));
    }

    fn all_passed(&self) -> bool {
        self.stages.iter().all(|(_, outcome, _)| outcome.is_ok())
    }

    fn print(&self, time: Duration) -> Result<()> {
        println!("\n── Summary ──");
        for (name, outcome, time) in &self.stages {
            let time = process::duration(*time);
            match outcome {
                Ok(()) => println!("{name:<18} passed   {time}"),
                Err(error) => println!("{name:<18} FAILED   {time}   {error:#}"),
            }
        }
        if !self.all_passed() {
            bail!("not everything passed ({})", process::duration(time));
        }
        println!("all passed in {}", process::duration(time));
        Ok(())
    }
}

fn has_nextest() -> bool {
    process::succeeds(cargo().args(["nextest", "--version"]))
}

/// All tests that need no display. Always the whole workspace: fewer packages would mean other features of the
/// dependencies, and these would be built again.
fn rust() -> Result<()> {
    if has_nextest() {
        process::run(cargo().args(["nextest", "run", "--workspace"]).args(setup::FEATURES))?;
        process::run(cargo().args(["test", "--quiet", "--doc", "--workspace"]).args(setup::FEATURES))
    } else {
        println!("cargo-nextest is not installed: using cargo test.");
        process::run(cargo().args(["test", "--quiet", "--workspace", "--no-fail-fast"]).args(setup::FEATURES))
    }
}

/// The tests of the real window, which cargo leaves out unless asked.
fn window() -> Result<()> {
    if !cfg!(target_os = "linux") {
        println!("Left out: the virtual display and the driver are Linux programs.");
        return Ok(());
    }
    let display = display::Virtual::start()?;
    let mut tests = cargo();
    if has_nextest() {
        let filter = ["--run-ignored", "only", "-E", "binary(window)"];
        tests.args(["nextest", "run", "--workspace"]).args(setup::FEATURES).args(filter);
    } else {
        let only = ["--test", "window", "--", "--ignored", "--nocapture", "--test-threads", "1"];
        tests.args(["test", "--workspace"]).args(setup::FEATURES).args(only);
    }
    let mut hosted: Command = display.host(&tests);
    hosted.env("HEARTH_PROGRAMS", repository::programs()?);
    hosted.env("HEARTH_SCREENSHOTS", repository::target()?.join("window-test"));
    process::run(&mut hosted)?;
    println!("Screenshots: {}", repository::target()?.join("window-test").display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_stage_fails_the_whole() {
        let mut summary = Summary::default();
        summary.stage("first", || Ok(()));
        assert!(summary.print(Duration::ZERO).is_ok());
        summary.stage("second", || bail!("broken"));
        assert!(!summary.all_passed());
        assert!(summary.print(Duration::ZERO).is_err());
    }
}
