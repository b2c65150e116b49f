//! Where things are.

use std::{
    env::consts::EXE_SUFFIX,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the root")
}

/// The folder with the web page's sources.
pub(crate) fn frontend() -> PathBuf {
    root().join("frontend")
}

/// The folder into which cargo puts the programs: the one this program lies in, wherever the target folder is.
pub(crate) fn programs() -> Result<PathBuf> {
    let here = std::env::current_exe().context("finding this program's own folder")?;
    Ok(here.parent().context("this program has no folder")?.to_owned())
}

/// Cargo's target folder, for what chores leave behind.
pub(crate) fn target() -> Result<PathBuf> {
    let programs = programs()?;
    Ok(programs.parent().context("the program folder has no parent")?.to_owned())
}

/// A program of the workspace, built by [`crate::setup::build`].
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    Ok(programs()?.join(format!("{name}{EXE_SUFFIX}")))
}
