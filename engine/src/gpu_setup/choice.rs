//! Which engine does the work, the one for cards or the processor's: a pure function of what was found, with a sentence for every
//! answer.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::libraries::Libraries;
use super::place::{GpuPackage, GpuPackageState};
use crate::format;
use crate::hardware::{CardOutcome, CardReport, Hardware, LEAST_CAPABILITY};

/// Set to `processor` to leave a card alone.
pub const ENGINE_VARIABLE: &str = "HEARTH_ENGINE";

/// What the choice follows from.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Somebody asked for the processor.
    pub is_by_hand: bool,
    /// The computer and its cards.
    pub hardware: &'a Hardware,
    /// The engine for cards is in this installation.
    pub has_engine: bool,
    /// What that engine needs.
    pub libraries: &'a Libraries,
    /// And what of it is here, see [`super::Places::look`].
    pub packages: &'a [GpuPackage],
}

/// Why the processor does the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyProcessor {
    /// Somebody asked for it.
    ByHand,
    /// The search for cards found none that can be used; its own words.
    NoCard(CardReport),
    /// The card is older than those the kernels are compiled for.
    OldCard {
        /// "NVIDIA GeForce GTX 1080".
        card: String,
        /// "6.1".
        capability: String,
    },
    /// The driver is older than CUDA needs.
    OldDriver {
        /// "550.120".
        found: String,
        /// 580.
        least: u32,
    },
    /// This installation has no engine for cards.
    NoEngine,
    /// Libraries are not here.
    NoLibraries {
        /// Names that the loader looks for.
        missing: Vec<String>,
        /// What is to be fetched for them.
        fetch_bytes: u64,
    },
    /// Libraries are here and are not what was published.
    DamagedLibraries {
        /// Which file, and what is wrong with it.
        reason: String,
        /// What is to be fetched for them.
        fetch_bytes: u64,
    },
    /// All is there, and yet the engine for cards does not start.
    DoesNotStart {
        /// What it or the system said.
        said: String,
    },
}

/// [`WhyProcessor`] without its values, to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum GpuSetupReason {
    /// Nothing is missing: runs train on the card.
    Ready,
    /// `HEARTH_ENGINE=processor`.
    ByHand,
    /// No card or no driver; the card report of the hardware says which.
    NoCard,
    /// A card older than Turing.
    OldCard,
    /// A driver older than CUDA needs.
    OldDriver,
    /// This installation has no engine for cards.
    NoEngine,
    /// The libraries are to be fetched.
    NoLibraries,
    /// The libraries are to be fetched again.
    DamagedLibraries,
    /// The engine for cards does not start.
    DoesNotStart,
}

impl WhyProcessor {
    /// Without its values.
    pub fn reason(&self) -> GpuSetupReason {
        match self {
            WhyProcessor::ByHand => GpuSetupReason::ByHand,
            WhyProcessor::NoCard(_) => GpuSetupReason::NoCard,
            WhyProcessor::OldCard { .. } => GpuSetupReason::OldCard,
            WhyProcessor::OldDriver { .. } => GpuSetupReason::OldDriver,
            WhyProcessor::NoEngine => GpuSetupReason::NoEngine,
            WhyProcessor::NoLibraries { .. } => GpuSetupReason::NoLibraries,
            WhyProcessor::DamagedLibraries { .. } => GpuSetupReason::DamagedLibraries,
            WhyProcessor::DoesNotStart { .. } => GpuSetupReason::DoesNotStart,
        }
    }

    /// What the person can do; empty where there is nothing to do.
    pub fn next_step(&self) -> String {
        match self {
            WhyProcessor::ByHand => format!("Take {ENGINE_VARIABLE} out of the environment to use the card."),
            WhyProcessor::NoCard(report) => report.next_step.clone(),
            WhyProcessor::OldCard { .. } => "Cards from the RTX 20 series on are used.".into(),
            WhyProcessor::OldDriver { least, .. } => {
                format!("Install NVIDIA's current driver ({least} or newer), restart the computer and look again.")
            }
            WhyProcessor::NoEngine => "Install Hearth from a package that has hearth-cuda beside hearth.".into(),
            WhyProcessor::NoLibraries { .. } | WhyProcessor::DamagedLibraries { .. } => {
                "Run `hearth setup-gpu`, or fetch them in the window.".into()
            }
            WhyProcessor::DoesNotStart { .. } => {
                "Run `hearth setup-gpu --check`, which reads every library, and report this if it finds them whole."
                    .into()
            }
        }
    }
}

impl fmt::Display for WhyProcessor {
    /// A clause without a full stop, to stand behind "on the processor:".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyProcessor::ByHand => write!(f, "{ENGINE_VARIABLE} is set to processor"),
            WhyProcessor::NoCard(report) => write!(f, "{}", report.message.trim_end_matches('.')),
            WhyProcessor::OldCard { card, capability } => {
                let (major, minor) = LEAST_CAPABILITY;
                write!(f, "{card} has compute capability {capability} and {major}.{minor} or newer is needed")
            }
            WhyProcessor::OldDriver { found, least } => {
                write!(f, "driver {found} was found and {least} or newer is needed")
            }
            WhyProcessor::NoEngine => {
                write!(f, "this installation has no engine for graphics cards (hearth-cuda)")
            }
            WhyProcessor::NoLibraries { missing, fetch_bytes } => write!(
                f,
                "the CUDA {}; `hearth setup-gpu` fetches {} ({})",
                match &missing[..] {
                    [one] => format!("library {one} is missing"),
                    [most @ .., last] => format!("libraries {} and {last} are missing", most.join(", ")),
                    [] => "libraries are missing".into(),
                },
                if missing.len() == 1 { "it" } else { "them" },
                format::bytes(*fetch_bytes)
            ),
            WhyProcessor::DamagedLibraries { reason, fetch_bytes } => write!(
                f,
                "a CUDA library is damaged ({reason}); `hearth setup-gpu` fetches it again ({})",
                format::bytes(*fetch_bytes)
            ),
            WhyProcessor::DoesNotStart { said } => write!(f, "hearth-cuda does not start ({said})"),
        }
    }
}

/// The folders that the engine for cards is to be started with, or why the processor does the work. What a person cannot change
/// (the card) is said before what they can, and what takes a click last.
///
/// # Errors
/// The first reason that holds.
pub fn choose(facts: &Facts<'_>) -> Result<Vec<PathBuf>, WhyProcessor> {
    if facts.is_by_hand {
        return Err(WhyProcessor::ByHand);
    }
    let Some(card) = facts.hardware.cards.first() else {
        let unknown = || CardReport {
            outcome: CardOutcome::NoReport,
            message: "No NVIDIA GPU found.".into(),
            next_step: String::new(),
        };
        return Err(WhyProcessor::NoCard(facts.hardware.card_report.clone().unwrap_or_else(unknown)));
    };
    if let Some(capability) = &card.compute_capability
        && numbers(capability).is_some_and(|capability| capability < LEAST_CAPABILITY)
    {
        return Err(WhyProcessor::OldCard { card: card.name.clone(), capability: capability.clone() });
    }
    let least = facts.libraries.least_driver;
    if let Some(driver) = &card.driver
        && numbers(driver).is_some_and(|(series, _)| series < least)
    {
        return Err(WhyProcessor::OldDriver { found: driver.clone(), least });
    }
    if !facts.has_engine {
        return Err(WhyProcessor::NoEngine);
    }
    let absent: Vec<&GpuPackage> = facts.packages.iter().filter(|package| package.folder().is_none()).collect();
    let fetch_bytes = absent.iter().map(|package| package.download_bytes - package.kept_bytes).sum();
    let damaged = absent.iter().find_map(|package| match &package.state {
        GpuPackageState::Damaged { reason } => Some(reason.clone()),
        _ => None,
    });
    if let Some(reason) = damaged {
        return Err(WhyProcessor::DamagedLibraries { reason, fetch_bytes });
    }
    if !absent.is_empty() {
        let missing = absent.iter().flat_map(|package| package.libraries.clone()).collect();
        return Err(WhyProcessor::NoLibraries { missing, fetch_bytes });
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in facts.packages.iter().filter_map(GpuPackage::folder) {
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.into());
        }
    }
    Ok(folders)
}

/// The first two numbers of a version; a missing second one is 0.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    let first = parts.next()?.trim().parse().ok()?;
    Some((first, parts.next().and_then(|part| part.trim().parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_setup::Platform;
    use crate::hardware::profile;

    fn computer(driver: &str) -> Hardware {
        let mut hardware = profile("rtx-3060-12gb").expect("bundled").hardware();
        hardware.cards[0].driver = Some(driver.into());
        hardware
    }

    fn packages(libraries: &Libraries, state: &GpuPackageState) -> Vec<GpuPackage> {
        let package = |package: &crate::gpu_setup::Package| GpuPackage {
            name: package.name.clone(),
            version: package.version.clone(),
            libraries: package.library_names().map(String::from).collect(),
            state: state.clone(),
            download_bytes: package.wheel.bytes,
            kept_bytes: 0,
            unpacked_bytes: package.unpacked_bytes(),
        };
        libraries.packages.iter().map(package).collect()
    }

    /// What is chosen on a computer where all is there but what `change` takes away.
    fn chosen(
        hardware: &Hardware,
        change: impl FnOnce(&mut Facts<'_>, &mut Vec<GpuPackage>),
    ) -> Result<Vec<PathBuf>, String> {
        let libraries = Libraries::on(Platform::Linux);
        let mut here = packages(&libraries, &GpuPackageState::Fetched { folder: "/我的 Hearth 🔥/cuda".into() });
        let mut facts = Facts { is_by_hand: false, hardware, has_engine: true, libraries: &libraries, packages: &[] };
        change(&mut facts, &mut here);
        facts.packages = &here;
        choose(&facts).map_err(|why| format!("{why}. {}", why.next_step()))
    }

    #[test]
    fn a_card_with_driver_engine_and_libraries_is_used_with_each_folder_once() {
        let folders = chosen(&computer("581.42"), |_, _| ()).expect("chosen");
        assert_eq!(folders, [PathBuf::from("/我的 Hearth 🔥/cuda")]);
        let two = chosen(&computer("580.65.06"), |_, here| {
            here[1].state = GpuPackageState::Installed { folder: "/usr/local/cuda/lib64".into() };
        });
        assert_eq!(two.expect("chosen").len(), 2);
    }

    #[test]
    fn without_a_driver_the_search_says_why() {
        let mut none = computer("581.42");
        none.cards.clear();
        none.card_report = Some(CardReport {
            outcome: CardOutcome::NoDriver,
            message: "The NVIDIA driver does not answer.".into(),
            next_step: "Install or start the NVIDIA driver.".into(),
        });
        let said = chosen(&none, |_, _| ()).expect_err("refused");
        assert_eq!(said, "The NVIDIA driver does not answer. Install or start the NVIDIA driver.");
    }

    #[test]
    fn without_a_card_it_says_so_whatever_else_is_missing() {
        let mut none = computer("581.42");
        none.cards.clear();
        none.card_report = None;
        let said = chosen(&none, |facts, here| {
            facts.has_engine = false;
            here[0].state = GpuPackageState::Missing;
        });
        assert_eq!(said.expect_err("refused"), "No NVIDIA GPU found. ");
    }

    #[test]
    fn an_old_driver_is_named_with_the_one_that_is_needed() {
        let said = chosen(&computer("550.120"), |_, _| ()).expect_err("refused");
        assert!(said.starts_with("driver 550.120 was found and 580 or newer is needed. Install"), "{said}");
    }

    #[test]
    fn a_card_that_no_kernel_was_compiled_for_is_named() {
        let mut old = profile("rtx-2060-6gb").expect("bundled").hardware();
        assert!(chosen(&old, |_, _| ()).is_ok());
        old.cards[0].compute_capability = Some("7.0".into());
        let said = chosen(&old, |_, _| ()).expect_err("refused");
        assert!(said.contains("RTX 2060 has compute capability 7.0 and 7.5 or newer is needed"), "{said}");
        // The least one here is the first one there.
        let (major, minor) = LEAST_CAPABILITY;
        let compiled = format!("const ARCHITECTURES: [&str; 6] = [\"{major}{minor}\",");
        assert!(include_str!("../../ops/build.rs").contains(&compiled), "ops/build.rs compiles for other cards");
    }

    #[test]
    fn an_installation_without_the_engine_for_cards_says_which_program_is_missing() {
        let said = chosen(&computer("581.42"), |facts, _| facts.has_engine = false).expect_err("refused");
        assert!(said.starts_with("this installation has no engine for graphics cards (hearth-cuda). "), "{said}");
    }

    #[test]
    fn missing_libraries_are_named_with_the_command_and_the_size_of_what_it_fetches() {
        let said = chosen(&computer("581.42"), |_, here| {
            here.iter_mut().for_each(|package| package.state = GpuPackageState::Missing);
        });
        assert_eq!(
            said.expect_err("refused"),
            "the CUDA libraries libcublas.so.13, libcublasLt.so.13 and libcurand.so.10 are missing; `hearth setup-gpu` fetches \
             them (460.3 MiB). Run `hearth setup-gpu`, or fetch them in the window."
        );
        // What was fetched already does not count.
        let said = chosen(&computer("581.42"), |_, here| {
            here[1].state = GpuPackageState::Missing;
            here[1].kept_bytes = here[1].download_bytes - (3 << 20);
        });
        let said = said.expect_err("refused");
        assert!(
            said.starts_with("the CUDA library libcurand.so.10 is missing; `hearth setup-gpu` fetches it (3 MiB)."),
            "{said}"
        );
    }

    #[test]
    fn a_damaged_library_is_named_and_fetched_again() {
        let said = chosen(&computer("581.42"), |_, here| {
            here[1].state = GpuPackageState::Damaged { reason: "libcurand.so.10 has 3 bytes instead of 4".into() };
        });
        let said = said.expect_err("refused");
        assert!(
            said.starts_with(
                "a CUDA library is damaged (libcurand.so.10 has 3 bytes instead of 4); `hearth setup-gpu`"
            )
        );
    }

    #[test]
    fn asked_for_by_hand_the_processor_is_taken_before_anything_is_looked_at() {
        let said = chosen(&computer("550.120"), |facts, _| facts.is_by_hand = true).expect_err("refused");
        assert!(said.starts_with("HEARTH_ENGINE is set to processor. "), "{said}");
    }

    #[test]
    fn a_driver_that_says_nothing_of_its_version_is_tried() {
        let mut silent = computer("581.42");
        silent.cards[0].driver = None;
        assert!(chosen(&silent, |_, _| ()).is_ok());
        silent.cards[0].driver = Some("unknown".into());
        assert!(chosen(&silent, |_, _| ()).is_ok());
    }
}
