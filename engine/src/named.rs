//! Small documents that people keep under names of their own, one file each in a folder: any name is a good one, a file is there
//! whole or not at all, and one that cannot be read does not hide the others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk;

/// Longest name that is kept, in characters.
pub const MOST_CHARS: usize = 80;
/// Most bytes of a file's name that come from the document's name.
const MOST_BYTES: usize = 60;

/// A folder of named documents.
#[derive(Clone, Debug)]
pub struct NamedFiles {
    folder: PathBuf,
    /// Of the files' names, without its dot.
    extension: &'static str,
}

/// Why a name cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadName {
    /// Nothing of it can be seen.
    Empty,
    /// It has more characters than [`MOST_CHARS`].
    TooLong {
        /// So many.
        n_chars: usize,
    },
}

impl NamedFiles {
    /// Those in `folder`, which need not exist yet.
    pub fn new(folder: PathBuf, extension: &'static str) -> Self {
        Self { folder, extension }
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Every document's path and text, or why it cannot be read, in the order of the files' names. None where there is no folder.
    ///
    /// # Errors
    /// The folder is there and cannot be read.
    pub fn read_all(&self) -> io::Result<Vec<(PathBuf, io::Result<String>)>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == self.extension));
        paths.sort();
        let read = |path: PathBuf| {
            let text = fs::read_to_string(&path);
            (path, text)
        };
        Ok(paths.into_iter().map(read).collect())
    }

    /// Where the document of this ([`clean`]) name is or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.{}", file_stem(name), self.extension))
    }

    /// Keeps a document in place of the one that had the name.
    ///
    /// # Errors
    /// The folder or the file cannot be written; the old document stands then.
    pub fn write(&self, name: &str, content: &str) -> io::Result<()> {
        disk::write_shared(&self.path(name), content.as_bytes())
    }
}

/// A name on one line, without what cannot be seen.
///
/// # Errors
/// Nothing is left of it, or more than [`MOST_CHARS`] characters are.
pub fn clean(name: &str) -> Result<String, BadName> {
    let spaced: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let name = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    match name.chars().count() {
        0 => Err(BadName::Empty),
        n_chars if n_chars > MOST_CHARS => Err(BadName::TooLong { n_chars }),
        _ => Ok(name),
    }
}

/// What a folder takes on every system: letters, digits and dashes, then what tells names apart that look alike in it.
fn file_stem(name: &str) -> String {
    let mut readable = String::new();
    for c in name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }) {
        if readable.len() + c.len_utf8() > MOST_BYTES {
            break;
        }
        if c != '-' || !readable.ends_with('-') {
            readable.push(c);
        }
    }
    let readable = Some(readable.trim_matches('-')).filter(|text| !text.is_empty()).unwrap_or("settings");
    format!("{readable}-{:016x}", fnv1a(name.as_bytes()))
}

/// FNV-1a (Fowler, Noll, Vo), 64 bit: the same in every version of this program, unlike the standard library's hasher.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] =
        ["quick", "速度优先 训练", "🔥", "a b", "a-b", "../../etc/passwd", "CON: <pipe|star*> \"quote\"?"];

    #[test]
    fn a_file_stays_in_its_folder_and_every_name_has_its_own() {
        let mut stems: Vec<String> = NAMES.iter().map(|name| file_stem(name)).collect();
        stems.push(file_stem(&"长".repeat(MOST_CHARS)));
        for stem in &stems {
            assert!(stem.chars().all(|c| c.is_alphanumeric() || c == '-'), "{stem}");
            assert!(stem.len() <= 100, "{stem}");
        }
        stems.sort();
        stems.dedup();
        assert_eq!(stems.len(), NAMES.len() + 1);
    }

    #[test]
    fn what_was_written_under_any_name_is_read_again_and_nothing_half_written_is_left() {
        let folder = tempfile::Builder::new().prefix("a b 设置 🔥").tempdir().expect("folder");
        let files = NamedFiles::new(folder.path().join("kept"), "toml");
        assert!(files.read_all().expect("before there is a folder").is_empty());
        for name in NAMES {
            files.write(name, "old").expect("written");
            files.write(name, name).expect("written again");
        }
        let mut texts: Vec<String> =
            files.read_all().expect("listed").into_iter().map(|(_, text)| text.expect("read")).collect();
        texts.sort();
        let mut expected = NAMES.map(str::to_string).to_vec();
        expected.sort();
        assert_eq!(texts, expected);
        assert_eq!(fs::read_dir(files.folder()).expect("folder").count(), NAMES.len());
    }

    #[test]
    fn a_name_is_one_line_and_neither_empty_nor_endless() {
        assert_eq!(clean(" 速度  优先\n").as_deref(), Ok("速度 优先"));
        assert_eq!(clean(" \t\n"), Err(BadName::Empty));
        assert_eq!(clean(&"长".repeat(MOST_CHARS + 1)), Err(BadName::TooLong { n_chars: MOST_CHARS + 1 }));
    }
}
