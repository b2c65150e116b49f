//! Which of the libraries are on this machine, and whether the fetched ones are still what was published.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use ts_rs::TS;

use super::libraries::{Libraries, Member, Package};
use crate::format;

/// In a package's folder: when each file was last found to be what was published.
const CHECKED: &str = "checked.json";
/// Below the folder of all packages: what is being fetched.
pub(super) const DOWNLOADS: &str = "downloads";

/// How closely fetched libraries are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Sizes, and the bytes of files that were written since they were last compared: what every start can afford.
    Quick,
    /// All bytes.
    Full,
}

/// One of NVIDIA's packages, as this machine has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct GpuPackage {
    /// "nvidia-cublas".
    pub name: String,
    /// The version Hearth fetches, "13.1.0.3".
    pub version: String,
    /// Names the loader looks for.
    pub libraries: Vec<String>,
    /// Whether they are here.
    pub state: GpuPackageState,
    /// Size of the package on the index.
    #[ts(type = "number")]
    pub download_bytes: u64,
    /// Of this, fetched already and kept.
    #[ts(type = "number")]
    pub kept_bytes: u64,
    /// Size of what is taken out of it.
    #[ts(type = "number")]
    pub unpacked_bytes: u64,
}

/// Whether a package's libraries are here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[ts(export)]
pub enum GpuPackageState {
    /// Fetched by Hearth.
    Fetched {
        /// Where.
        folder: PathBuf,
    },
    /// Beside the engine, or where the system's loader looks.
    Installed {
        /// Where.
        folder: PathBuf,
    },
    /// Fetched once, and not what was published any more.
    Damaged {
        /// Which file, and what is wrong with it.
        reason: String,
    },
    /// Nowhere.
    Missing,
}

impl GpuPackage {
    /// Where its libraries can be used from.
    pub fn folder(&self) -> Option<&Path> {
        match &self.state {
            GpuPackageState::Fetched { folder } | GpuPackageState::Installed { folder } => Some(folder),
            GpuPackageState::Damaged { .. } | GpuPackageState::Missing => None,
        }
    }
}

/// Where the packages of this machine may be.
#[derive(Clone, Debug)]
pub struct Places {
    /// Folder into which Hearth fetches them, each into a folder of its own; `None` where this user has none.
    pub fetched: Option<PathBuf>,
    /// The folder beside the engine, which comes before all.
    pub beside: Vec<PathBuf>,
    /// Folders of the system's loader, which come after what was fetched: that is of the version Hearth was tried with.
    pub system: Vec<PathBuf>,
}

impl Places {
    /// Each package as it is here, in the order of `libraries`.
    pub fn look(&self, libraries: &Libraries, look: Look) -> Vec<GpuPackage> {
        libraries.packages.iter().map(|package| self.look_for(package, look)).collect()
    }

    fn look_for(&self, package: &Package, look: Look) -> GpuPackage {
        let fetched = self.fetched.as_ref().map(|root| root.join(package.folder_name()));
        // Parts of one package from two places may not fit each other, so a folder has all of them or does not count.
        let has_all = |folder: &&PathBuf| package.library_names().all(|name| folder.join(name).is_file());
        let installed = |folders: &[PathBuf]| {
            let folder = folders.iter().find(has_all).cloned();
            folder.map(|folder| GpuPackageState::Installed { folder })
        };
        let state = installed(&self.beside).unwrap_or_else(|| {
            let found = fetched.filter(|folder| folder.is_dir()).map(|folder| match check(&folder, package, look) {
                Ok(()) => GpuPackageState::Fetched { folder },
                Err(reason) => GpuPackageState::Damaged { reason },
            });
            match found {
                Some(whole @ GpuPackageState::Fetched { .. }) => whole,
                // What the system has is better than something damaged.
                found => installed(&self.system).or(found).unwrap_or(GpuPackageState::Missing),
            }
        });
        let part = self.fetched.as_ref().map(|root| part(root, package));
        let kept = part.and_then(|part| fs::metadata(part).ok()).map_or(0, |metadata| metadata.len());
        GpuPackage {
            name: package.name.clone(),
            version: package.version.clone(),
            libraries: package.library_names().map(String::from).collect(),
            state,
            download_bytes: package.wheel.bytes,
            kept_bytes: kept.min(package.wheel.bytes),
            unpacked_bytes: package.unpacked_bytes(),
        }
    }
}

/// Where a package's archive grows while it is fetched into `root`.
pub(super) fn part(root: &Path, package: &Package) -> PathBuf {
    root.join(DOWNLOADS).join(format!("{}.part", package.wheel.file))
}

/// By file name, its time in nanoseconds since the Unix epoch when its bytes were last compared.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Checked(BTreeMap<String, u64>);

impl Checked {
    fn read(folder: &Path) -> Checked {
        // Without it every file is compared again.
        fs::read(folder.join(CHECKED)).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }
}

fn time_ns(metadata: &Metadata) -> Option<u64> {
    let since = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Notes that the files in `folder` are what was published, so that they need not be read at every start.
pub(super) fn note_checked(folder: &Path, package: &Package) -> io::Result<()> {
    let mut checked = Checked::default();
    for member in &package.wheel.members {
        if let Some(time) = time_ns(&fs::metadata(folder.join(member.name()))?) {
            checked.0.insert(member.name().into(), time);
        }
    }
    fs::write(folder.join(CHECKED), serde_json::to_vec(&checked)?)
}

/// Compares what is in `folder` with what was published.
fn check(folder: &Path, package: &Package, look: Look) -> Result<(), String> {
    let checked = Checked::read(folder);
    let mut is_news = false;
    for member in &package.wheel.members {
        let path = folder.join(member.name());
        let metadata = fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if metadata.len() != member.bytes {
            return Err(format!("{} has {} bytes instead of {}", path.display(), metadata.len(), member.bytes));
        }
        let is_as_checked = time_ns(&metadata).is_some_and(|time| checked.0.get(member.name()) == Some(&time));
        if look == Look::Full || !is_as_checked {
            compare(&path, member)?;
            is_news |= !is_as_checked;
        }
    }
    if is_news {
        // Where it cannot be noted, the next start reads the files again and finds the same.
        let _ = note_checked(folder, package);
    }
    Ok(())
}

fn compare(path: &Path, member: &Member) -> Result<(), String> {
    let found = File::open(path).and_then(sha256_of).map_err(|e| format!("{}: {e}", path.display()))?;
    if found == member.sha256 {
        return Ok(());
    }
    Err(format!("{} has SHA-256 {found} instead of {}", path.display(), member.sha256))
}

/// SHA-256 of all that `source` has, in hexadecimal.
pub(super) fn sha256_of(mut source: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut source, &mut hasher)?;
    Ok(format::hex(&hasher.finalize()))
}
