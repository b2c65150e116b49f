//! A folder that appears whole or not at all.
//!
//! Everything is written into a hidden folder beside the target, on the same disk, and synced; then one rename makes
//! it the target. What a crash leaves behind is the hidden folder, never half an export under the name that was asked
//! for.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Error;
use crate::disk;

/// Room for what the sizes of files don't say: folders, blocks that are not full.
const SLACK_BYTES: u64 = 1 << 20;

/// A target folder in the making. Dropped without [`Self::finish`], nothing remains.
pub(super) struct Folder {
    target: PathBuf,
    writing: TempDir,
    bytes: u64,
}

impl Folder {
    /// Begins to write what will be `target`, which must be new or empty. Refused where its disk lacks `needed_bytes`.
    pub(super) fn create(target: &Path, needed_bytes: u64) -> Result<Self, Error> {
        if target.as_os_str().is_empty() {
            return Err(Error::NoTarget);
        }
        let target = std::path::absolute(target).map_err(Error::write(target))?;
        check_free(&target)?;
        let Some(parent) = target.parent() else {
            return Err(Error::Occupied { path: target, found: "a disk".into() });
        };
        if let Some(free_bytes) = disk::free_bytes(parent)
            && free_bytes < needed_bytes + SLACK_BYTES
        {
            return Err(Error::DiskTooSmall {
                path: parent.into(),
                needed_bytes: needed_bytes + SLACK_BYTES,
                free_bytes,
            });
        }
        fs::create_dir_all(parent).map_err(Error::write(parent))?;
        let writing =
            tempfile::Builder::new().prefix(".hearth-export-").tempdir_in(parent).map_err(Error::write(parent))?;
        Ok(Self { target, writing, bytes: 0 })
    }

    /// The path of a file inside, as long as the folder is in the making.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.writing.path().join(name)
    }

    /// Writes a whole file.
    pub(super) fn write(&mut self, name: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.path(name);
        let mut file = File::create(&path).map_err(Error::write(&path))?;
        file.write_all(content).and_then(|()| file.sync_all()).map_err(Error::write(&path))?;
        self.bytes += content.len() as u64;
        Ok(())
    }

    /// Counts a file that was written by other means.
    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Makes the folder the target. Returns the target and the bytes in it.
    pub(super) fn finish(self) -> Result<(PathBuf, u64), Error> {
        let Self { target, writing, bytes } = self;
        open_to_others(writing.path()).map_err(Error::write(&target))?;
        disk::sync_folder(writing.path()).map_err(Error::write(&target))?;
        // An empty folder makes way; one that was filled meanwhile does not.
        check_free(&target)?;
        if target.exists() {
            fs::remove_dir(&target).map_err(Error::write(&target))?;
        }
        disk::rename(writing.path(), &target).map_err(Error::write(&target))?;
        // Its content has moved: there is nothing left to remove.
        let _ = writing.keep();
        if let Some(parent) = target.parent() {
            disk::sync_folder(parent).map_err(Error::write(parent))?;
        }
        Ok((target, bytes))
    }
}

/// Replaces or adds one file of a finished export, whole or not at all.
pub(super) fn add_file(folder: &Path, name: &str, content: &[u8]) -> Result<(), Error> {
    let path = folder.join(name);
    let added = disk::write_shared(&path, content).and_then(|()| open_to_others(&path));
    added.and_then(|()| disk::sync_folder(folder)).map_err(Error::write(&path))
}

/// Fails unless nothing, or an empty folder, is at `target`.
fn check_free(target: &Path) -> Result<(), Error> {
    let is_dir = match fs::metadata(target) {
        Ok(found) => found.is_dir(),
        // A link that leads nowhere is in the way as well.
        Err(_) if fs::symlink_metadata(target).is_err() => return Ok(()),
        Err(_) => false,
    };
    if !is_dir {
        return Err(Error::NotAFolder { path: target.into() });
    }
    let mut names = disk::names_in(target).map_err(Error::read(target))?;
    if names.is_empty() {
        return Ok(());
    }
    let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
    names.truncate(3);
    Err(Error::Occupied { path: target.into(), found: names.join(", ") + &more })
}

/// Temporary files and folders are made for their owner only; an export is an ordinary one.
#[cfg(unix)]
fn open_to_others(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Rights are inherited from the folder above.
#[cfg(not(unix))]
fn open_to_others(_path: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_folder_appears_under_its_name_only_when_finished() {
        let disk = tempfile::tempdir().unwrap();
        let target = disk.path().join("neu 名前 🙂").join("out");
        let mut folder = Folder::create(&target, 10).unwrap();
        folder.write("a.txt", b"hello").unwrap();
        assert!(!target.exists());
        assert_eq!(folder.finish().unwrap(), (target.clone(), 5));
        assert_eq!(fs::read(target.join("a.txt")).unwrap(), b"hello");
        assert_eq!(names(target.parent().unwrap()), ["out"]);
        add_file(&target, "b.txt", b"more").unwrap();
        add_file(&target, "b.txt", b"less").unwrap();
        assert_eq!(fs::read(target.join("b.txt")).unwrap(), b"less");
        assert_eq!(names(&target).len(), 2);
    }

    #[test]
    fn an_export_that_is_given_up_leaves_nothing() {
        let disk = tempfile::tempdir().unwrap();
        let mut folder = Folder::create(&disk.path().join("out"), 10).unwrap();
        folder.write("a.txt", b"hello").unwrap();
        drop(folder);
        assert!(names(disk.path()).is_empty());
    }

    #[test]
    fn what_is_there_is_never_overwritten_and_an_empty_folder_is_used() {
        let disk = tempfile::tempdir().unwrap();
        let target = disk.path().join("out");
        fs::create_dir(&target).unwrap();
        let folder = Folder::create(&target, 10).unwrap();
        // Somebody else is faster.
        fs::write(target.join("mine.txt"), b"keep me").unwrap();
        assert!(matches!(folder.finish(), Err(Error::Occupied { .. })));
        let error = Folder::create(&target, 10).err().unwrap();
        assert!(error.to_string().ends_with("already holds mine.txt"), "{error}");
        assert_eq!(fs::read(target.join("mine.txt")).unwrap(), b"keep me");
        fs::remove_file(target.join("mine.txt")).unwrap();
        Folder::create(&target, 10).unwrap().finish().unwrap();
        let file = disk.path().join("file");
        fs::write(&file, b"keep me").unwrap();
        assert!(matches!(Folder::create(&file, 10), Err(Error::NotAFolder { .. })));
        assert!(matches!(Folder::create(Path::new(""), 10), Err(Error::NoTarget)));
    }

    #[test]
    fn a_disk_that_is_too_small_is_named_before_anything_is_written() {
        let disk = tempfile::tempdir().unwrap();
        let error = Folder::create(&disk.path().join("out"), u64::MAX / 2).err().unwrap();
        let Error::DiskTooSmall { needed_bytes, free_bytes, .. } = error else { panic!("{error}") };
        assert!(needed_bytes > free_bytes && free_bytes > 0);
        assert!(names(disk.path()).is_empty());
    }
}
