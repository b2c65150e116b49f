//! Fetches what is missing: each package is downloaded, compared with what was published, unpacked beside its place and renamed into
//! it. Whenever it is ended, a package is there whole or not at all, and what was downloaded is kept.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use ts_rs::TS;
use zip::ZipArchive;

use super::download::{self, News, Patience, Remote};
use super::error::Error;
use super::libraries::{Libraries, Member, Package};
use super::place::{DOWNLOADS, GpuPackage, GpuPackageState, note_checked, part, sha256_of};
use crate::{disk, format};

/// Where the packages come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The package index or a mirror of it: the address below which it has its files.
    Index(String),
    /// A folder with the packages as they are published.
    Folder(PathBuf),
}

/// What goes on while the libraries are fetched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct GpuSetupProgress {
    /// What is being done.
    pub phase: GpuSetupPhase,
    /// To which package, "nvidia-cublas".
    pub package: String,
    /// So much of it is done: of all packages together while they are fetched, of this one otherwise.
    #[ts(type = "number")]
    pub done_bytes: u64,
    /// Of so much.
    #[ts(type = "number")]
    pub total_bytes: u64,
    /// How fast it is fetched; absent until it is known.
    pub bytes_per_s: Option<f64>,
    /// Seconds until all is fetched; absent until it is known.
    pub left_s: Option<f64>,
    /// Why it waits, where it does.
    pub reason: Option<String>,
}

/// What is being done with a package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum GpuSetupPhase {
    /// Its archive is fetched.
    Fetch,
    /// The network failed; the next attempt comes in a moment.
    Wait,
    /// The archive is compared with what was published.
    Compare,
    /// The libraries are taken out of it and compared too.
    Unpack,
}

/// What is to be fetched, from where and to where.
pub struct Setup<'a> {
    /// What is wanted.
    pub libraries: &'a Libraries,
    /// Folder of all fetched packages.
    pub root: &'a Path,
    /// Where they come from.
    pub origin: Origin,
    /// How long servers are asked.
    pub patience: Patience,
    /// Bytes free on the disk of a folder, where the system says it.
    pub free_bytes: fn(&Path) -> Option<u64>,
}

/// How often progress is reported at the most.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// End of the name of a folder in which a package is unpacked.
const UNPACKING: &str = ".unpacking";

impl Setup<'_> {
    /// Fetches the packages that `found` (see [`super::Places::look`]) says are missing or damaged. `is_cancelled` is asked several
    /// times a second.
    ///
    /// # Errors
    /// See [`Error`]. Packages that were finished before stay.
    pub fn run(
        &self,
        found: &[GpuPackage],
        is_cancelled: &dyn Fn() -> bool,
        report: &mut dyn FnMut(GpuSetupProgress),
    ) -> Result<(), Error> {
        let is_wanted = |package: &&Package| {
            let state = found.iter().find(|found| found.name == package.name).map(|found| &found.state);
            !matches!(state, Some(GpuPackageState::Fetched { .. } | GpuPackageState::Installed { .. }))
        };
        let wanted: Vec<&Package> = self.libraries.packages.iter().filter(is_wanted).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let downloads = self.root.join(DOWNLOADS);
        fs::create_dir_all(&downloads).map_err(|e| Error::io(&downloads, e))?;
        let _lock = self.lock()?;
        self.clear_unpacking()?;
        self.check_space(&wanted)?;
        let total_bytes = wanted.iter().map(|package| package.wheel.bytes).sum();
        let mut meter = Meter::new(total_bytes, report);
        for package in wanted {
            self.take(package, is_cancelled, &mut meter)?;
            meter.done_bytes += package.wheel.bytes;
        }
        // Nothing is left in it, else it stays.
        let _ = fs::remove_dir(&downloads);
        Ok(())
    }

    /// One process at a time; the lock ends with it, however it ends.
    fn lock(&self) -> Result<File, Error> {
        let path = self.root.join("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(|e| Error::io(&path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Error::Busy { folder: self.root.into() }),
            Err(TryLockError::Error(e)) => Err(Error::io(&path, e)),
        }
    }

    /// What a process that was killed while it unpacked has left.
    fn clear_unpacking(&self) -> Result<(), Error> {
        for entry in fs::read_dir(self.root).map_err(|e| Error::io(self.root, e))?.flatten() {
            if entry.file_name().to_string_lossy().ends_with(UNPACKING) {
                fs::remove_dir_all(entry.path()).map_err(|e| Error::io(&entry.path(), e))?;
            }
        }
        Ok(())
    }

    fn check_space(&self, wanted: &[&Package]) -> Result<(), Error> {
        let (mut held_bytes, mut needed_bytes) = (0, 0);
        for package in wanted {
            // The archive goes when its libraries are out.
            let kept = fs::metadata(part(self.root, package)).map_or(0, |metadata| metadata.len());
            let download = match self.origin {
                Origin::Index(_) => package.wheel.bytes.saturating_sub(kept),
                Origin::Folder(_) => 0,
            };
            needed_bytes = (held_bytes + download + package.unpacked_bytes()).max(needed_bytes);
            held_bytes += package.unpacked_bytes();
        }
        match (self.free_bytes)(self.root) {
            Some(free_bytes) if free_bytes < needed_bytes => {
                Err(Error::DiskTooSmall { folder: self.root.into(), needed_bytes, free_bytes })
            }
            _ => Ok(()),
        }
    }

    fn take(&self, package: &Package, is_cancelled: &dyn Fn() -> bool, meter: &mut Meter<'_>) -> Result<(), Error> {
        let wheel = &package.wheel;
        match &self.origin {
            Origin::Index(address) => {
                let part = part(self.root, package);
                let url = format!("{}/{}/{}", address.trim_end_matches('/'), wheel.folder, wheel.file);
                let remote = Remote { url, file: &wheel.file, bytes: wheel.bytes, sha256: &wheel.sha256 };
                let agent = download::agent(&self.patience);
                download::fetch(&agent, &remote, &part, &self.patience, is_cancelled, &mut |news| match news {
                    News::At(bytes) => meter.fetched(package, bytes),
                    News::Again { reason } => meter.waits(package, reason),
                    News::Comparing => meter.at(package, GpuSetupPhase::Compare, 0, wheel.bytes),
                })?;
                self.unpack(package, &part, is_cancelled, meter)?;
                fs::remove_file(&part).map_err(|e| Error::io(&part, e))
            }
            Origin::Folder(folder) => {
                let archive = folder.join(&wheel.file);
                meter.at(package, GpuSetupPhase::Compare, 0, wheel.bytes);
                compare(folder, package)?;
                self.unpack(package, &archive, is_cancelled, meter)
            }
        }
    }

    /// Takes the members out of a compared archive into the package's folder.
    fn unpack(
        &self,
        package: &Package,
        archive: &Path,
        is_cancelled: &dyn Fn() -> bool,
        meter: &mut Meter<'_>,
    ) -> Result<(), Error> {
        let unpacking = self.root.join(format!("{}{UNPACKING}", package.folder_name()));
        let result = self.unpack_into(&unpacking, package, archive, is_cancelled, meter);
        if result.is_err() {
            let _ = fs::remove_dir_all(&unpacking);
        }
        result
    }

    fn unpack_into(
        &self,
        unpacking: &Path,
        package: &Package,
        archive: &Path,
        is_cancelled: &dyn Fn() -> bool,
        meter: &mut Meter<'_>,
    ) -> Result<(), Error> {
        let broken = |reason: String| Error::Archive { file: package.wheel.file.clone(), reason };
        fs::create_dir(unpacking).map_err(|e| Error::io(unpacking, e))?;
        let file = File::open(archive).map_err(|e| Error::io(archive, e))?;
        let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|e| broken(e.to_string()))?;
        let total_bytes = package.unpacked_bytes();
        let mut before = 0;
        for member in &package.wheel.members {
            // By the name that is pinned, into the last part of it: what else the archive has is not looked at.
            let entry = zip.by_name(&member.path).map_err(|e| broken(format!("{}: {e}", member.path)))?;
            let path = unpacking.join(member.name());
            let mut say = |bytes| meter.at(package, GpuSetupPhase::Unpack, before + bytes, total_bytes);
            let found = copy(entry, &path, member, is_cancelled, &mut say).map_err(|e| match e {
                Copied::Reading(e) => broken(format!("{}: {e}", member.path)),
                Copied::Writing(e) => Error::io(&path, e),
                Copied::Cancelled => Error::Cancelled,
            })?;
            if found != member.sha256 {
                let (file, expected) = (member.path.clone(), member.sha256.clone());
                return Err(Error::WrongBytes { file, expected, found });
            }
            before += member.bytes;
        }
        note_checked(unpacking, package).map_err(|e| Error::io(unpacking, e))?;
        let folder = self.root.join(package.folder_name());
        if folder.exists() {
            // Damaged, or it would not be fetched.
            fs::remove_dir_all(&folder).map_err(|e| Error::io(&folder, e))?;
        }
        disk::rename(unpacking, &folder).map_err(|e| Error::io(&folder, e))
    }
}

/// Refuses a package from a folder that is not what was published.
fn compare(folder: &Path, package: &Package) -> Result<(), Error> {
    let wheel = &package.wheel;
    let path = folder.join(&wheel.file);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Error::NotInFolder { folder: folder.into(), file: wheel.file.clone() });
        }
        Err(e) => return Err(Error::io(&path, e)),
    };
    let found_bytes = file.metadata().map_err(|e| Error::io(&path, e))?.len();
    if found_bytes != wheel.bytes {
        return Err(Error::WrongSize { file: wheel.file.clone(), expected_bytes: wheel.bytes, found_bytes });
    }
    let found = sha256_of(file).map_err(|e| Error::io(&path, e))?;
    if found != wheel.sha256 {
        return Err(Error::WrongBytes { file: wheel.file.clone(), expected: wheel.sha256.clone(), found });
    }
    Ok(())
}

/// Why a member could not be taken out.
enum Copied {
    Reading(io::Error),
    Writing(io::Error),
    Cancelled,
}

/// Copies a member to `path`, synced, never more than its size, and gives the SHA-256 of what was written.
fn copy(
    mut entry: impl Read,
    path: &Path,
    member: &Member,
    is_cancelled: &dyn Fn() -> bool,
    say: &mut dyn FnMut(u64),
) -> Result<String, Copied> {
    let file = File::create(path).map_err(Copied::Writing)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    let mut done = 0;
    loop {
        if is_cancelled() {
            return Err(Copied::Cancelled);
        }
        let n = match entry.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Copied::Reading(e)),
        };
        done += n as u64;
        if done > member.bytes {
            return Err(Copied::Reading(io::Error::other(format!("it has more than {} bytes", member.bytes))));
        }
        hasher.update(&buffer[..n]);
        out.write_all(&buffer[..n]).map_err(Copied::Writing)?;
        say(done);
    }
    let file = out.into_inner().map_err(|e| Copied::Writing(e.into_error()))?;
    file.sync_all().map_err(Copied::Writing)?;
    Ok(format::hex(&hasher.finalize()))
}

/// Turns what happens into reports that are not too many.
struct Meter<'a> {
    report: &'a mut dyn FnMut(GpuSetupProgress),
    /// Of all packages.
    total_bytes: u64,
    /// Packages that are finished.
    done_bytes: u64,
    /// Of the package that is being fetched.
    part_bytes: u64,
    /// When its bytes began to come, and how many were there then.
    began: Option<(Instant, u64)>,
    last: Option<(Instant, GpuSetupPhase)>,
}

impl<'a> Meter<'a> {
    fn new(total_bytes: u64, report: &'a mut dyn FnMut(GpuSetupProgress)) -> Self {
        Meter { report, total_bytes, done_bytes: 0, part_bytes: 0, began: None, last: None }
    }

    fn fetched(&mut self, package: &Package, bytes: u64) {
        self.part_bytes = bytes;
        let now = Instant::now();
        // Time spent unpacking or waiting would make the network look slow.
        let is_new = !matches!(self.last, Some((_, GpuSetupPhase::Fetch)));
        let (began, first) = match self.began {
            Some((began, first)) if !is_new && first <= bytes => (began, first),
            _ => *self.began.insert((now, bytes)),
        };
        let seconds = now.duration_since(began).as_secs_f64();
        let bytes_per_s = (seconds > 1.0 && bytes > first).then(|| (bytes - first) as f64 / seconds);
        let done_bytes = self.done_bytes + bytes;
        let left_s = bytes_per_s.map(|rate| self.total_bytes.saturating_sub(done_bytes) as f64 / rate);
        let is_last = bytes == package.wheel.bytes;
        self.say(is_last, package, GpuSetupPhase::Fetch, (done_bytes, self.total_bytes), (bytes_per_s, left_s), None);
    }

    fn waits(&mut self, package: &Package, reason: &str) {
        let kept = self.done_bytes + self.part_bytes;
        self.say(true, package, GpuSetupPhase::Wait, (kept, self.total_bytes), (None, None), Some(reason.into()));
    }

    fn at(&mut self, package: &Package, phase: GpuSetupPhase, done: u64, total: u64) {
        self.say(done == total, package, phase, (done, total), (None, None), None);
    }

    fn say(
        &mut self,
        at_once: bool,
        package: &Package,
        phase: GpuSetupPhase,
        (done_bytes, total_bytes): (u64, u64),
        (bytes_per_s, left_s): (Option<f64>, Option<f64>),
        reason: Option<String>,
    ) {
        let now = Instant::now();
        let is_due = self.last.is_none_or(|(then, last)| last != phase || now.duration_since(then) >= REPORT_EVERY);
        if at_once || is_due {
            self.last = Some((now, phase));
            let package = package.name.clone();
            (self.report)(GpuSetupProgress { phase, package, done_bytes, total_bytes, bytes_per_s, left_s, reason });
        }
    }
}
