//! `cargo xtask app`: builds the window and opens it.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{display, process, repository, setup};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Open on this run
    #[arg(long)]
    run: Option<String>,
}

pub(crate) fn app(options: &Options) -> Result<()> {
    setup::for_window()?;
    setup::build_window()?;
    open(options.run.as_deref())
}

/// Opens the built window and stays until it is closed.
pub(crate) fn open(run: Option<&str>) -> Result<()> {
    ensure!(display::is_there(), "there is no display: neither DISPLAY nor WAYLAND_DISPLAY is set");
    let studio = repository::program("hearth-studio")?;
    let mut command = Command::new(studio);
    if let Some(run) = run {
        command.args(["--run", run]);
    }
    process::run(&mut command).context("the window")
}
