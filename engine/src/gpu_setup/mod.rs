//! What the engine for cards, `hearth-cuda`, needs of a machine, whether it is here, and how it is fetched.
//!
//! ```text
//! hardware, hearth-cuda beside hearth ──┐
//! places: libraries that are here ──────┴─> choose ──> the card, with the loader's folders
//!        ^                                        └──> the processor, with a sentence
//!        └── Setup::run: NVIDIA's packages, downloaded, compared, unpacked
//! ```
//!
//! `hearth` is built without CUDA and starts anywhere. An engine that names CUDA's libraries would not start where they are missing,
//! so the one that can run is chosen before it is started. The libraries are half a gigabyte, so only those who have a card fetch them.

mod choice;
mod download;
mod error;
mod install;
mod libraries;
pub mod loader;
mod place;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

pub use self::choice::{ENGINE_VARIABLE, Facts, GpuSetupReason, WhyProcessor, choose};
pub use self::download::Patience;
pub use self::error::Error;
pub use self::install::{GpuSetupPhase, GpuSetupProgress, Origin, Setup};
pub use self::libraries::{Libraries, Licence, Member, Package, Platform, Wheel};
pub use self::place::{GpuPackage, GpuPackageState, Look, Places};
use crate::hardware::{Hardware, TrainOn};

/// Whether runs can train on the card here, and if not what is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct GpuSetup {
    /// What a run that is started now trains on.
    pub train_on: TrainOn,
    /// Why, to branch on.
    pub reason: GpuSetupReason,
    /// Why, as a sentence.
    pub message: String,
    /// What the person can do; empty where there is nothing to do.
    pub next_step: String,
    /// The card as its driver calls it.
    pub card: Option<String>,
    /// Version of the driver that was found, "581.42".
    pub driver: Option<String>,
    /// First driver series that is new enough, 580.
    pub least_driver: u32,
    /// NVIDIA's packages with the libraries.
    pub packages: Vec<GpuPackage>,
    /// What `hearth setup-gpu` would fetch now.
    #[ts(type = "number")]
    pub fetch_bytes: u64,
    /// Folder into which it would; absent where the libraries are not published for this platform.
    pub folder: Option<PathBuf>,
    /// Title of the terms on which NVIDIA gives the libraries.
    pub licence: String,
    /// Where they can be read.
    pub licence_url: String,
}

/// The engine for cards as it can be started here.
#[derive(Clone, Debug)]
pub struct CardEngine {
    /// `hearth-cuda`.
    pub program: PathBuf,
    /// Folders that the loader has to look into.
    pub folders: Vec<PathBuf>,
}

impl CardEngine {
    /// A command that starts it.
    ///
    /// # Errors
    /// The loader cannot be told where the libraries are.
    pub fn command(&self) -> Result<Command, String> {
        let mut command = Command::new(&self.program);
        loader::look_into(&mut command, &self.folders)?;
        Ok(command)
    }

    /// Starts it for a moment, so that a library that does not fit this system is noticed before a run depends on it.
    fn try_out(self) -> Result<CardEngine, WhyProcessor> {
        let not_started = |said: String| WhyProcessor::DoesNotStart { said };
        let mut command = self.command().map_err(not_started)?;
        let output = command.arg("--version").stdin(Stdio::null()).output().map_err(|e| not_started(e.to_string()))?;
        if output.status.success() {
            return Ok(self);
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        let first = complaint.lines().map(str::trim).find(|line| !line.is_empty());
        Err(not_started(first.map_or_else(|| output.status.to_string(), |line| format!("{}: {line}", output.status))))
    }
}

/// What was found on this machine.
#[derive(Debug)]
pub struct Machine {
    libraries: Libraries,
    places: Places,
    program: Option<PathBuf>,
}

impl Machine {
    /// This machine, for the engine that `hearth` at `program` would hand over to.
    pub fn here(program: &Path) -> Machine {
        let program = program.with_file_name(format!("hearth-cuda{}", std::env::consts::EXE_SUFFIX));
        let beside = program.parent().map(|folder| folder.join("lib"));
        Machine {
            libraries: Libraries::on(Platform::here().unwrap_or(Platform::Linux)),
            places: Places { fetched: folder(), beside: beside.into_iter().collect(), system: loader::folders() },
            program: program.is_file().then_some(program),
        }
    }

    /// Whether this installation has an engine for cards at all, which costs nothing to find out.
    pub fn has_engine(&self) -> bool {
        self.program.is_some()
    }

    /// The engine for cards, or why the processor does the work.
    ///
    /// # Errors
    /// The reason, see [`choose`]; also where the engine was tried and did not start.
    pub fn card_engine(&self, hardware: &Hardware, look: Look) -> Result<CardEngine, WhyProcessor> {
        self.choice(hardware, &self.places.look(&self.libraries, look))
    }

    fn choice(&self, hardware: &Hardware, packages: &[GpuPackage]) -> Result<CardEngine, WhyProcessor> {
        let facts = Facts {
            is_by_hand: std::env::var_os(ENGINE_VARIABLE).is_some_and(|choice| choice == "processor"),
            hardware,
            has_engine: self.has_engine(),
            libraries: &self.libraries,
            packages,
        };
        let folders = choose(&facts)?;
        let program = self.program.clone().ok_or(WhyProcessor::NoEngine)?;
        CardEngine { program, folders }.try_out()
    }

    /// All that can be said about training on the card here.
    pub fn report(&self, hardware: &Hardware, look: Look) -> GpuSetup {
        let packages = self.places.look(&self.libraries, look);
        let choice = self.choice(hardware, &packages);
        let card = hardware.cards.first();
        let absent = packages.iter().filter(|package| package.folder().is_none());
        let fetch_bytes = absent.map(|package| package.download_bytes - package.kept_bytes).sum();
        GpuSetup {
            train_on: if choice.is_ok() { TrainOn::Card } else { TrainOn::Processor },
            reason: choice.as_ref().err().map_or(GpuSetupReason::Ready, WhyProcessor::reason),
            message: match &choice {
                Ok(_) => "Runs train on the card.".into(),
                Err(why) => format!("Runs train on the processor: {why}."),
            },
            next_step: choice.err().map_or_else(String::new, |why| why.next_step()),
            card: card.map(|card| card.name.clone()),
            driver: card.and_then(|card| card.driver.clone()),
            least_driver: self.libraries.least_driver,
            packages,
            fetch_bytes,
            folder: Platform::here().and(self.places.fetched.clone()),
            licence: self.libraries.licence.name.clone(),
            licence_url: self.libraries.licence.url.clone(),
        }
    }

    /// Fetches what is missing.
    ///
    /// # Errors
    /// See [`Error`]; what was fetched is kept.
    pub fn fetch(
        &self,
        origin: Option<Origin>,
        is_cancelled: &dyn Fn() -> bool,
        report: &mut dyn FnMut(GpuSetupProgress),
    ) -> Result<(), Error> {
        if Platform::here().is_none() {
            return Err(Error::Platform { os: std::env::consts::OS, arch: std::env::consts::ARCH });
        }
        let setup = Setup {
            libraries: &self.libraries,
            root: self.places.fetched.as_deref().ok_or(Error::NoFolder)?,
            origin: origin.unwrap_or_else(|| Origin::Index(self.libraries.index.clone())),
            patience: Patience::default(),
            free_bytes: crate::disk::free_bytes,
        };
        setup.run(&self.places.look(&self.libraries, Look::Full), is_cancelled, report)
    }
}

/// Folder of the fetched packages: `$HEARTH_HOME/cuda`, or `Hearth/cuda` in the platform's folder for data that stays on this
/// computer (on Windows the other one is copied to every computer a person of a company uses).
fn folder() -> Option<PathBuf> {
    let home = std::env::var_os("HEARTH_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = home.or_else(|| dirs::data_local_dir().map(|data| data.join("Hearth")))?.join("cuda");
    // The loader of a process in another folder has to find it too.
    std::path::absolute(folder).ok()
}

#[cfg(test)]
mod tests;
