//! A display: the person's, or a virtual one for tests.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// Whether a window can be opened here.
pub(crate) fn is_there() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !cfg!(target_os = "linux") || set("DISPLAY") || set("WAYLAND_DISPLAY")
}

/// An X server without a screen, with a home of its own for the programs on it. Ends when dropped.
pub(crate) struct Virtual {
    server: Child,
    display: String,
    home: PathBuf,
}

impl Virtual {
    /// Starts the server and waits until it says which display it is, so nothing races for a number.
    pub(crate) fn start() -> Result<Self> {
        let mut server = Command::new("Xvfb")
            .args(["-displayfd", "1", "-screen", "0", "1440x960x24", "-nolisten", "tcp"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting Xvfb")?;
        let mut number = String::new();
        let said = server.stdout.take().context("Xvfb has no output")?;
        // The home is short: the path of a socket in it may have at most 107 bytes.
        let home = std::env::temp_dir().join(format!("hearth-window-{}", std::process::id()));
        let mut display = Self { server, display: String::new(), home };
        BufReader::new(said).read_line(&mut number).context("asking Xvfb for its display")?;
        ensure!(!number.trim().is_empty(), "Xvfb ended without saying its display");
        display.display = format!(":{}", number.trim());
        let runtime = display.runtime();
        fs::create_dir_all(&runtime).with_context(|| format!("making {}", runtime.display()))?;
        owner_only(&runtime)?;
        Ok(display)
    }

    fn runtime(&self) -> PathBuf {
        self.home.join("run")
    }

    /// Lets `command` run on this display, under a message bus of its own.
    pub(crate) fn host(&self, command: &Command) -> Command {
        let mut hosted = Command::new("dbus-run-session");
        hosted.arg("--").arg(command.get_program()).args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            hosted.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => hosted.env(name, value),
                None => hosted.env_remove(name),
            };
        }
        // Cargo and rustup look below HOME unless told.
        for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            if let (None, Some(home)) = (std::env::var_os(name), dirs::home_dir()) {
                hosted.env(name, home.join(folder));
            }
        }
        let inherited = ["WAYLAND_DISPLAY", "XAUTHORITY", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"];
        for name in inherited {
            hosted.env_remove(name);
        }
        hosted.env("DISPLAY", &self.display).env("HOME", &self.home).env("XDG_RUNTIME_DIR", self.runtime());
        hosted.env("GDK_BACKEND", "x11");
        hosted
    }
}

impl Drop for Virtual {
    fn drop(&mut self) {
        if let Err(error) = self.server.kill().and_then(|()| self.server.wait().map(drop)) {
            println!("Xvfb could not be ended: {error}");
        }
        if self.home.exists()
            && let Err(error) = fs::remove_dir_all(&self.home)
        {
            println!("{} could not be removed: {error}", self.home.display());
        }
    }
}

#[cfg(unix)]
fn owner_only(folder: &std::path::Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
        .with_context(|| format!("closing {} to others", folder.display()))
}

#[cfg(not(unix))]
fn owner_only(_folder: &std::path::Path) -> Result<()> {
    Ok(())
}
