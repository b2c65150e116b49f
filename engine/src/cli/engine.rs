//! Which engine does the work: this one, or `hearth-cuda` beside it where a card can be used. `hearth` starts anywhere; an engine
//! that names CUDA's libraries would not start where they are missing, so the one that can run is chosen before it is started.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use hearth_engine::hardware::{CardOutcome, Hardware, LEAST_DRIVER, detect};

/// Set to `processor` to leave a card alone.
const CHOICE: &str = "HEARTH_ENGINE";
/// Libraries that the engine for cards names; the driver's own comes with the driver.
const LIBRARIES: [&str; 3] = if cfg!(windows) {
    ["cublas64_13.dll", "cublasLt64_13.dll", "curand64_10.dll"]
} else {
    ["libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10"]
};
/// Commands that train or that say what would. Answers and exports are computed on the processor.
const COMMANDS: [&str; 4] = ["hardware", "plan", "train", "resume"];

/// Why the processor does the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// This installation has no engine for cards.
    NoEngine,
    /// Somebody asked for it.
    ByHand,
    /// What the search for cards said.
    NoCard(String),
    /// A driver older than CUDA 13 needs.
    OldDriver(String),
    /// Libraries that were not found.
    NoLibraries(Vec<&'static str>),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoEngine => write!(f, "this installation has no engine for graphics cards (hearth-cuda)"),
            Why::ByHand => write!(f, "{CHOICE} is set to processor"),
            Why::NoCard(said) => write!(f, "{}", said.trim_end_matches('.')),
            Why::OldDriver(found) => write!(f, "driver {found} was found and {LEAST_DRIVER} or newer is needed"),
            Why::NoLibraries(missing) => write!(
                f,
                "CUDA 13's {} not found (pip's nvidia-cublas and nvidia-curand have them; lay them into the folder `lib` \
                 beside hearth-cuda)",
                match missing[..] {
                    [one] => format!("library {one} was"),
                    _ => format!("libraries {} were", missing.join(", ")),
                }
            ),
        }
    }
}

/// The engine for cards and the folders its libraries are in, or why not.
fn choose(program: &Path, hardware: impl FnOnce() -> Hardware, by_hand: bool) -> Result<Vec<PathBuf>, Why> {
    if !program.is_file() {
        return Err(Why::NoEngine);
    }
    if by_hand {
        return Err(Why::ByHand);
    }
    let hardware = hardware();
    let report = hardware.card_report.as_ref().filter(|report| report.outcome != CardOutcome::Found);
    if let (Some(report), true) = (report, hardware.cards.is_empty()) {
        return Err(Why::NoCard(report.message.clone()));
    }
    let driver = hardware.cards.first().and_then(|card| card.driver.clone());
    let Some(driver) = driver else { return Err(Why::NoCard("no card was found".into())) };
    let major = driver.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < LEAST_DRIVER) {
        return Err(Why::OldDriver(driver));
    }
    let folders = library_folders(program);
    let holds = |name: &&str| folders.iter().any(|folder| folder.join(name).exists());
    let missing: Vec<&'static str> = LIBRARIES.into_iter().filter(|name| !holds(name)).collect();
    if missing.is_empty() { Ok(folders) } else { Err(Why::NoLibraries(missing)) }
}

/// Where CUDA's libraries may be: beside the engine, where the loader is told to look, where the toolkit and systems lay them.
fn library_folders(program: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = program.parent().map(|folder| folder.join("lib")).into_iter().collect();
    let told = std::env::var_os(SEARCH_PATH).unwrap_or_default();
    folders.extend(std::env::split_paths(&told).filter(|folder| !folder.as_os_str().is_empty()));
    if cfg!(windows) {
        folders.extend(std::env::var_os("CUDA_PATH").map(|toolkit| Path::new(&toolkit).join("bin").join("x64")));
    } else {
        let usual = ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"];
        folders.extend(usual.map(PathBuf::from));
    }
    folders
}

/// The variable in which the loader is told where to look.
const SEARCH_PATH: &str = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };

/// Why this engine, which has no kernels, does the work; `None` in the engine for cards.
pub(super) fn why_processor() -> Option<Why> {
    if hearth_engine::ops::HAS_KERNELS {
        return None;
    }
    choose(&program()?, detect, by_hand()).err()
}

fn by_hand() -> bool {
    std::env::var_os(CHOICE).is_some_and(|choice| choice == "processor")
}

fn program() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    Some(here.with_file_name(format!("hearth-cuda{}", std::env::consts::EXE_SUFFIX)))
}

/// Lets the engine for cards do this command, where there is one, a card and all that it needs. Comes back, with nothing done, where
/// this engine has to.
pub(super) fn hand_over() -> Option<ExitCode> {
    let computes = std::env::args().skip(1).any(|argument| COMMANDS.contains(&argument.as_str()));
    if hearth_engine::ops::HAS_KERNELS || !computes {
        return None;
    }
    let program = program()?;
    let mut found = None;
    let folders = choose(&program, || found.insert(detect()).clone(), by_hand()).ok()?;
    let told = std::env::var_os(SEARCH_PATH).unwrap_or_default();
    let path: OsString = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&told))).ok()?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(SEARCH_PATH, path);
    // CUDA counts cards in an order of its own; the first must be the one that is planned for.
    if let Some(devices) = found.and_then(|hardware| hardware.visible_devices()) {
        command.env("CUDA_VISIBLE_DEVICES", devices);
    }
    become_(command)
}

/// This process becomes the other: its id, its streams and its signals stay.
#[cfg(unix)]
fn become_(mut command: Command) -> Option<ExitCode> {
    use std::os::unix::process::CommandExt;
    // Comes back only where the other cannot be started; this engine then does what it can.
    let _ = command.exec();
    None
}

/// Windows has no exec: the other is waited for. It shares the console, so Ctrl-C reaches it by itself.
#[cfg(not(unix))]
fn become_(mut command: Command) -> Option<ExitCode> {
    let status = command.status().ok()?;
    Some(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use hearth_engine::hardware::{CardReport, profile};

    use super::*;

    /// A folder with an engine and, if asked, its libraries.
    fn installation(with_libraries: bool) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::Builder::new().prefix("我的 Hearth 🔥").tempdir().expect("folder");
        let program = folder.path().join("hearth-cuda");
        std::fs::write(&program, "").expect("written");
        std::fs::create_dir(folder.path().join("lib")).expect("made");
        if with_libraries {
            for name in LIBRARIES {
                std::fs::write(folder.path().join("lib").join(name), "").expect("written");
            }
        }
        (folder, program)
    }

    fn computer(driver: &str) -> Hardware {
        let mut hardware = profile("rtx-3060-12gb").expect("bundled").hardware();
        hardware.cards[0].driver = Some(driver.into());
        hardware
    }

    #[test]
    fn a_card_with_driver_and_libraries_is_used() {
        let (_folder, program) = installation(true);
        let folders = choose(&program, || computer("581.42"), false).expect("chosen");
        assert_eq!(folders[0], program.with_file_name("lib"));
    }

    #[test]
    fn every_reason_for_the_processor_is_one_sentence_with_what_was_found() {
        let (_folder, program) = installation(true);
        let reason =
            |program: &Path, hardware: Hardware, by_hand| choose(program, || hardware, by_hand).expect_err("refused");
        let old = reason(&program, computer("550.120"), false);
        assert_eq!(old.to_string(), "driver 550.120 was found and 580 or newer is needed");

        let mut none = computer("581.42");
        none.cards.clear();
        let message = "No NVIDIA driver is installed.".to_string();
        none.card_report = Some(CardReport { outcome: CardOutcome::Absent, message, next_step: String::new() });
        assert_eq!(reason(&program, none, false).to_string(), "No NVIDIA driver is installed");

        assert_eq!(reason(&program, computer("581.42"), true), Why::ByHand);
        assert_eq!(reason(&program.with_file_name("absent"), computer("581.42"), false), Why::NoEngine);

        let (_bare, bare) = installation(false);
        let missing = choose(&bare, || computer("581.42"), false);
        // A machine that has the toolkit finds them there.
        if let Err(why) = missing {
            assert!(why.to_string().contains(LIBRARIES[0]), "{why}");
        }
    }
}
