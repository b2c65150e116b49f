//! Files that are either there whole or not at all, whatever happens while they are written; room on a disk, and its end.
//!
//! The order is always: write under another name, sync the file, rename, sync the folder. After a power loss the name
//! either shows the new content or the old one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Whether a disk, or somebody's share of it, has no room left.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Bytes free to this person on the disk that `folder` is or will be on; `None` where the system does not say.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let absolute = std::path::absolute(folder).ok()?;
    absolute.ancestors().find(|p| p.is_dir()).and_then(|p| fs4::available_space(p).ok())
}

/// Names of what is in a folder, sorted.
pub(crate) fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names = fs::read_dir(folder)?.map(|entry| entry.map(name)).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Replaces `path` by `content`, where nobody else does at the same time.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let aside = aside(path);
    let result = (|| {
        let mut file = File::create(&aside)?;
        faults::reached()?;
        file.write_all(content)?;
        faults::reached()?;
        file.sync_all()?;
        drop(file);
        rename(&aside, path)?;
        faults::reached()?;
        sync_folder(path.parent().unwrap_or(Path::new(".")))
    })();
    if result.is_err() {
        // Whatever could be written is worthless; the old content stands.
        let _ = fs::remove_file(&aside);
    }
    result
}

/// Replaces `path` by `content` while others may read it or do the same; makes its folder where there is none.
///
/// # Errors
/// The folder or the file cannot be written; what was there stands then.
pub fn write_shared(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Renames a file or a folder. On Windows a scanner may hold what is new for a moment, and then it cannot be renamed.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    const N_ATTEMPTS: u32 = 20;
    for _ in 1..N_ATTEMPTS {
        match fs::rename(from, to) {
            Err(e) if cfg!(windows) && is_held(&e) => sleep(Duration::from_millis(250)),
            ended => return ended,
        }
    }
    fs::rename(from, to)
}

/// Whether Windows says that somebody else has the file open: access denied, or a sharing violation.
fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(5 | 32))
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".writing");
    path.with_file_name(name)
}

/// Makes a rename or a new name inside `folder` outlast a power loss.
#[cfg(unix)]
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// NTFS journals names itself and offers no way to sync a folder.
#[cfg(not(unix))]
pub(crate) fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Syncs a file that something else wrote.
pub(crate) fn sync_file(path: &Path) -> io::Result<()> {
    // Windows syncs only what was opened for writing.
    fs::OpenOptions::new().write(true).open(path)?.sync_all()
}

/// Points at which the tests let a write end early.
pub(crate) mod faults {
    #[cfg(not(test))]
    use std::io;

    /// Passed at every point of writing where a crash or a full disk would leave something half-done.
    #[cfg(not(test))]
    #[inline(always)]
    #[allow(clippy::unnecessary_wraps)] // in tests it fails
    pub(crate) fn reached() -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    pub(crate) use armed::*;

    #[cfg(test)]
    mod armed {
        use std::cell::Cell;
        use std::io;

        /// What happens at the armed point.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Fault {
            /// The process ends: unwinds without any clean-up of what is on disk.
            Crash,
            /// The disk is full, at this point and after it.
            DiskFull,
            /// The disk is full at this point and has room again after it.
            DiskFullOnce,
        }

        #[derive(Clone, Copy)]
        struct Armed {
            points_left: usize,
            fault: Fault,
            has_struck: bool,
        }

        thread_local! {
            static ARMED: Cell<Option<Armed>> = const { Cell::new(None) };
        }

        /// Lets the `nth` point from now (the first is 0) fail.
        pub(crate) fn arm(nth: usize, fault: Fault) {
            ARMED.set(Some(Armed { points_left: nth, fault, has_struck: false }));
        }

        /// Nothing fails any more. True where the armed point had not been reached.
        pub(crate) fn disarm() -> bool {
            ARMED.take().is_some_and(|armed| !armed.has_struck)
        }

        pub(crate) fn reached() -> io::Result<()> {
            let Some(armed) = ARMED.get() else { return Ok(()) };
            if armed.points_left > 0 {
                ARMED.set(Some(Armed { points_left: armed.points_left - 1, ..armed }));
                return Ok(());
            }
            if armed.has_struck && !matches!(armed.fault, Fault::DiskFull) {
                return Ok(());
            }
            ARMED.set(Some(Armed { has_struck: true, ..armed }));
            match armed.fault {
                Fault::Crash => std::panic::resume_unwind(Box::new("crash")),
                Fault::DiskFull | Fault::DiskFullOnce => Err(io::ErrorKind::StorageFull.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::faults::{Fault, arm, disarm};
    use super::*;

    #[test]
    fn a_crash_at_any_point_leaves_the_old_or_the_new_content() {
        for point in 0.. {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state.json");
            write(&path, b"old").unwrap();
            arm(point, Fault::Crash);
            let crashed = std::panic::catch_unwind(|| write(&path, b"new")).is_err();
            disarm();
            let content = fs::read(&path).unwrap();
            assert!(content == b"old" || content == b"new", "point {point}: {content:?}");
            if !crashed {
                assert_eq!(content, b"new");
                assert!(point >= 3, "only {point} points were tried");
                break;
            }
        }
    }

    #[test]
    #[cfg(windows)]
    fn a_file_that_somebody_holds_for_a_moment_is_renamed_all_the_same() {
        use std::os::windows::fs::OpenOptionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&from, b"new").unwrap();
        let held = fs::OpenOptions::new().read(true).share_mode(0).open(&from).unwrap();
        let holder = std::thread::spawn(move || {
            sleep(Duration::from_millis(300));
            drop(held);
        });
        rename(&from, &to).unwrap();
        holder.join().unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"new");
    }

    #[test]
    fn a_full_disk_keeps_the_old_content_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write(&path, b"old").unwrap();
        arm(1, Fault::DiskFull);
        let error = write(&path, b"new").unwrap_err();
        disarm();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
