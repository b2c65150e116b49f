//! What building, testing and the demo need: Debian's packages, npm's packages, and the build itself.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::{
    process::{self, cargo, npm, python},
    repository,
};

/// Debian packages with what needs them.
struct Packages {
    why: &'static str,
    names: &'static [&'static str],
}

const ENGINE: Packages = Packages { why: "to build the engine", names: &["build-essential", "pkg-config"] };
const WINDOW: Packages = Packages { why: "to build the window", names: &["libwebkit2gtk-4.1-dev"] };
const TESTS: Packages = Packages {
    why: "to test the window and the page",
    names: &["webkit2gtk-driver", "xvfb", "dbus", "dbus-daemon", "chromium", "fonts-dejavu-core", "fonts-noto-cjk"],
};
const TRITON: Packages = Packages { why: "to compile the peers' kernels", names: &["python3-dev"] };
const PIP: Packages = Packages { why: "to fetch the demo's model", names: &["python3-pip", "python3-venv"] };

/// Everything that any chore needs.
pub(crate) fn everything() -> Result<()> {
    for_tests()?;
    pip()?;
    println!("Set-up is complete.");
    Ok(())
}

/// What `cargo build -p hearth-engine` needs.
pub(crate) fn for_engine() -> Result<()> {
    install(&[&ENGINE])
}

/// What building the window needs, npm's packages included.
pub(crate) fn for_window() -> Result<()> {
    install(&[&ENGINE, &WINDOW])?;
    npm_packages()
}

/// What the tests need, npm's packages included.
pub(crate) fn for_tests() -> Result<()> {
    install(&[&ENGINE, &WINDOW, &TESTS])?;
    ensure!(
        process::succeeds(python().arg("--version")),
        "Python 3 was not found (a test runs the demo data's generator). Install it and run this again."
    );
    npm_packages()
}

/// A Python that has pip: the system's, else one of an own environment under the target folder.
pub(crate) fn pip() -> Result<Command> {
    let with_pip = |mut command: Command| -> Option<Command> {
        let has_pip = process::succeeds(command.args(["-m", "pip", "--version"]));
        has_pip.then(|| Command::new(command.get_program()))
    };
    if let Some(found) = with_pip(python()) {
        return Ok(found);
    }
    let folder = repository::target()?.join("pip");
    let own = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python3" });
    if let Some(found) = with_pip(Command::new(&own)) {
        return Ok(found);
    }
    ensure!(process::succeeds(python().arg("--version")), "Python 3 was not found. Install it and run this again.");
    println!("Python has no pip: making an environment of its own in {}.", folder.display());
    if !process::succeeds(python().args(["-m", "venv"]).arg(&folder)) {
        install(&[&PIP])?;
        if let Some(found) = with_pip(python()) {
            return Ok(found);
        }
        process::run(python().args(["-m", "venv"]).arg(&folder))?;
    }
    with_pip(Command::new(&own)).context("Python's environment has no pip. Install pip and run this again.")
}

/// What `python3 -m venv` needs.
pub(crate) fn for_python_environments() -> Result<()> {
    if process::succeeds(python().args(["-c", "import ensurepip, venv"])) {
        return Ok(());
    }
    install(&[&PIP])
}

/// What triton, which the peers on a card compile their kernels with, needs beside a C compiler.
pub(crate) fn for_triton() -> Result<()> {
    install(&[&ENGINE, &TRITON])
}

/// Builds the engine alone, in the profile whose numerics are optimised.
pub(crate) fn build_engine() -> Result<()> {
    process::run(cargo().args(["build", "--package", "hearth-engine"]))
}

/// Builds the page and the window that embeds it, with the engine beside it.
pub(crate) fn build_window() -> Result<()> {
    process::run(npm().args(["run", "build"]))?;
    process::run(cargo().args(["build", "--workspace", "--bins"]).args(FEATURES))
}

/// Without this feature the window would load the page from a development server.
pub(crate) const FEATURES: [&str; 2] = ["--features", "hearth-studio/custom-protocol"];

/// Installs the Debian packages among these that are missing. Elsewhere it says what is needed and goes on.
fn install(wanted: &[&Packages]) -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    if !process::succeeds(Command::new("dpkg-query").arg("--version")) {
        for packages in wanted {
            println!("This is not Debian or Ubuntu; needed {}: what they call {}.", packages.why, list(packages.names));
        }
        return Ok(());
    }
    let mut missing = Vec::new();
    for packages in wanted {
        let absent: Vec<_> = packages.names.iter().copied().filter(|name| !is_installed(name)).collect();
        if !absent.is_empty() {
            println!("Missing {}: {}.", packages.why, list(&absent));
            missing.extend(absent);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let is_root = process::read(Command::new("id").arg("-u"))?.trim() == "0";
    let by_hand = format!("sudo apt-get install {}", missing.join(" "));
    if is_root {
        println!("Installing them with apt-get.");
    } else {
        ensure!(
            process::succeeds(Command::new("sudo").arg("--version")),
            "there is no sudo to install them with. As root, run: apt-get install {}",
            missing.join(" ")
        );
        println!("Installing them with apt-get; sudo may ask for your password. By hand: {by_hand}");
    }
    let apt_get = || {
        let mut command = if is_root { Command::new("env") } else { Command::new("sudo") };
        if !is_root {
            command.arg("env");
        }
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        command
    };
    // Stale lists of other sources are no reason to stop; a package that cannot be found is, below.
    if let Err(error) = process::run(apt_get().args(["update", "--quiet"])) {
        println!("{error:#}; going on with the lists that are there.");
    }
    let flags = ["install", "--yes", "--quiet", "--no-install-recommends"];
    process::run(apt_get().args(flags).args(&missing)).with_context(|| format!("installing packages ({by_hand})"))
}

fn is_installed(package: &str) -> bool {
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Status}", package]).stderr(Stdio::null()).output();
    output.is_ok_and(|output| output.stdout.starts_with(b"install ok installed"))
}

fn list(names: &[&str]) -> String {
    names.join(", ")
}

/// `npm install`, where the lock file is not the one that was installed.
fn npm_packages() -> Result<()> {
    const OLDEST_NODE: u32 = 20;
    let version = process::read(Command::new("node").arg("--version"))
        .context("Node was not found. Install Node 20 or newer with npm and run this again.")?;
    let major: Option<u32> =
        version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok());
    match major {
        Some(major) if major >= OLDEST_NODE => {}
        _ => bail!(
            "Node {} was found and {OLDEST_NODE} or newer is needed. Update it and run this again.",
            version.trim()
        ),
    }
    let lock = repository::frontend().join("package-lock.json");
    let installed = repository::frontend().join("node_modules/.installed-lock");
    let wanted = sha256_of(&lock)?;
    if fs::read_to_string(&installed).is_ok_and(|is| is == wanted) {
        return Ok(());
    }
    process::run(npm().args(["install", "--no-audit", "--no-fund"]))?;
    fs::write(&installed, wanted).with_context(|| format!("writing {}", installed.display()))
}

/// Hexadecimal SHA-256 of a file.
pub(crate) fn sha256_of(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).with_context(|| format!("reading {}", path.display()))?;
    Ok(hex(&hash.finalize()))
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
