//! Whether a folder can take output, asked before hours of work and not after them.

use std::fs;
use std::io;
use std::path::Path;

use super::error::{Error, FolderReason};
use crate::disk;

/// Checks that files can be written to `folder`, which need not exist yet. Nothing is left behind: missing folders are
/// not made, and the file that probes the permission is removed.
pub fn check_writable(folder: &Path) -> Result<(), Error> {
    let refuse = |reason| Err(Error::Folder { path: folder.into(), reason });
    if folder.as_os_str().is_empty() {
        return refuse(FolderReason::Empty);
    }
    #[cfg(windows)]
    {
        // Names below the folder need room too: checkpoints/12345678/adapter.safetensors.
        const LIMIT: usize = 260;
        let length = folder.as_os_str().len() + 45;
        if length > LIMIT && !folder.as_os_str().to_string_lossy().starts_with(r"\\?\") {
            return refuse(FolderReason::TooLong { length, limit: LIMIT });
        }
    }
    let absolute = std::path::absolute(folder).map_err(|e| Error::io(folder, e))?;
    let mut existing = absolute.as_path();
    loop {
        match fs::metadata(existing) {
            Ok(found) if found.is_dir() => break,
            Ok(_) if existing == absolute => return refuse(FolderReason::NotAFolder),
            Ok(_) => return refuse(FolderReason::ParentIsAFile(existing.into())),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return refuse(FolderReason::NoPermission),
            Err(_) => {
                if let Ok(target) = fs::read_link(existing) {
                    return refuse(FolderReason::BrokenLink(target));
                }
            }
        }
        match existing.parent() {
            Some(parent) => existing = parent,
            None => return refuse(FolderReason::NotAFolder),
        }
    }
    match tempfile::Builder::new().prefix(".hearth-probe-").tempfile_in(existing) {
        Ok(_) => Ok(()),
        Err(e) => match e.kind() {
            io::ErrorKind::PermissionDenied => refuse(FolderReason::NoPermission),
            io::ErrorKind::ReadOnlyFilesystem => refuse(FolderReason::ReadOnly),
            _ => Err(Error::io(existing, e)),
        },
    }
}

/// [`check_writable`], and that nothing in the folder would be overwritten.
pub fn check_empty(folder: &Path) -> Result<(), Error> {
    check_writable(folder)?;
    let mut names = disk::names_in(folder).unwrap_or_default();
    if names.is_empty() {
        return Ok(());
    }
    if names.len() > 4 {
        let more = names.len() - 3;
        names.truncate(3);
        names.push(format!("{more} more"));
    }
    Err(Error::Folder { path: folder.into(), reason: FolderReason::Occupied(names) })
}

/// Refuses where `needed_bytes` are not free for `what`.
pub(crate) fn check_space(folder: &Path, what: &'static str, needed_bytes: u64) -> Result<(), Error> {
    match disk::free_bytes(folder) {
        Some(free_bytes) if free_bytes < needed_bytes => {
            Err(Error::DiskTooSmall { path: folder.into(), what, needed_bytes, free_bytes })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(result: Result<(), Error>) -> FolderReason {
        match result {
            Err(Error::Folder { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_take_output_is_refused_with_the_reason_and_nothing_is_made() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("occupied"), "").unwrap();
        assert_eq!(reason(check_writable(Path::new(""))), FolderReason::Empty);
        assert_eq!(reason(check_writable(&at("occupied"))), FolderReason::NotAFolder);
        assert_eq!(reason(check_writable(&at("occupied/run1"))), FolderReason::ParentIsAFile(at("occupied")));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("nowhere/deeper"), at("dangling")).unwrap();
            let broken = FolderReason::BrokenLink(at("nowhere/deeper"));
            assert_eq!(reason(check_writable(&at("dangling"))), broken);
            assert_eq!(reason(check_writable(&at("dangling/run1"))), broken);
            fs::remove_file(at("dangling")).unwrap();
        }
        check_writable(&at("new/deeper")).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "only the file of this test");
    }

    #[test]
    fn a_folder_with_files_is_named_with_them() {
        let root = tempfile::tempdir().unwrap();
        check_empty(root.path()).unwrap();
        fs::write(root.path().join("adapter_model.safetensors"), "keep me").unwrap();
        assert_eq!(reason(check_empty(root.path())), FolderReason::Occupied(vec!["adapter_model.safetensors".into()]));
        assert_eq!(fs::read_to_string(root.path().join("adapter_model.safetensors")).unwrap(), "keep me");
    }

    #[test]
    fn a_disk_that_is_too_small_is_refused_with_both_numbers() {
        let root = tempfile::tempdir().unwrap();
        check_space(&root.path().join("new"), "checkpoints", 1).unwrap();
        let error = check_space(root.path(), "checkpoints", u64::MAX).unwrap_err().to_string();
        assert!(error.contains("16777216 TiB needed for checkpoints") && error.contains("free"), "{error}");
    }
}
