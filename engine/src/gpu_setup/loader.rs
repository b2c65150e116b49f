//! Where the system's loader looks for libraries, and how a child is told of more folders.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The variable in which the loader is told where to look. Windows' loader goes through `PATH` last.
const SEARCH_PATH: &str = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };

/// Folders in which a toolkit, a package of the system or the person may have laid CUDA's libraries.
pub fn folders() -> Vec<PathBuf> {
    let told = env::var_os(SEARCH_PATH).unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&told).filter(|folder| !folder.as_os_str().is_empty()).collect();
    if cfg!(windows) {
        let toolkit = env::var_os("CUDA_PATH").map(PathBuf::from);
        folders.extend(toolkit.into_iter().flat_map(|toolkit| [toolkit.join("bin").join("x64"), toolkit.join("bin")]));
    } else {
        let usual = ["/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        folders.extend(usual.map(PathBuf::from));
    }
    folders
}

/// Lets the loader of `command`'s process look into `first` before it looks where it is told already.
///
/// # Errors
/// A folder's name holds the character that separates folders; the sentence names the folder.
pub fn look_into(command: &mut Command, first: &[PathBuf]) -> Result<(), String> {
    let told = env::var_os(SEARCH_PATH).unwrap_or_default();
    let all = first.iter().cloned().chain(env::split_paths(&told));
    match env::join_paths(all.filter(|folder| !folder.as_os_str().is_empty())) {
        Ok(path) => {
            command.env(SEARCH_PATH, path);
            Ok(())
        }
        Err(e) => {
            let cannot = |folder: &&PathBuf| env::join_paths([folder]).is_err();
            let folder = first.iter().find(cannot).map(|folder| format!(": {}", folder.display())).unwrap_or_default();
            Err(format!("the loader cannot be told where the libraries are, {e}{folder}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn the_folders_come_before_those_the_loader_knows() {
        let mut command = Command::new("hearth-cuda");
        let folders = [PathBuf::from("/home/安娜/Hearth 🔥/cuda"), PathBuf::from("/second")];
        look_into(&mut command, &folders).expect("told");
        let (_, path) = command.get_envs().find(|(name, _)| *name == OsStr::new(SEARCH_PATH)).expect("set");
        let told: Vec<PathBuf> = env::split_paths(path.expect("a value")).collect();
        assert_eq!(told[..2], folders);
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_the_loader_cannot_be_told_of_is_named() {
        let error = look_into(&mut Command::new("hearth-cuda"), &["/a:b".into()]).expect_err("refused");
        assert!(error.contains("/a:b"), "{error}");
    }
}
