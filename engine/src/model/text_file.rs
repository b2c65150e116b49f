//! Small files beside the weights, read whole, with limits.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::Error;

/// First line of a Git LFS pointer file.
const LFS_FIRST_LINE: &[u8] = b"version https://git-lfs.github.com/spec/";
/// Pointers are smaller than this by the LFS specification.
const LFS_MAX_BYTES: u64 = 1024;

/// Largest accepted `config.json` and its like.
pub(super) const CONFIG_MAX_BYTES: u64 = 16 << 20;
/// Largest accepted `tokenizer.json`, index or copied file.
pub(super) const LARGE_MAX_BYTES: u64 = 256 << 20;

/// Opens a file and says how long it is. Pointers of Git LFS are refused with the size of what they point at.
pub(super) fn open(path: &Path) -> Result<(File, u64), Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut file = File::open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound { path: path.into() },
        _ => io(source),
    })?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(Error::NotAModel {
            path: path.into(),
            reason: "a file was expected here and this is something else".into(),
            next_step: "Choose a complete copy of the model.".into(),
        });
    }
    let n_bytes = metadata.len();
    if n_bytes < LFS_MAX_BYTES {
        let mut text = Vec::new();
        (&mut file).take(LFS_MAX_BYTES).read_to_end(&mut text).map_err(io)?;
        if text.starts_with(LFS_FIRST_LINE) {
            let real_bytes = String::from_utf8_lossy(&text)
                .lines()
                .find_map(|line| line.strip_prefix("size "))
                .and_then(|size| size.trim().parse().ok());
            return Err(Error::LfsPointer { path: path.into(), pointer_bytes: n_bytes, real_bytes });
        }
        std::io::Seek::rewind(&mut file).map_err(io)?;
    }
    Ok((file, n_bytes))
}

/// Whole content, where the file is there.
pub(super) fn bytes(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, Error> {
    let (file, n_bytes) = open(path)?;
    if n_bytes > limit_bytes {
        return Err(Error::TooLarge { path: path.into(), got_bytes: n_bytes, limit_bytes });
    }
    let mut content = Vec::with_capacity(n_bytes as usize);
    // The limit holds even where the file grows while it is read.
    file.take(limit_bytes).read_to_end(&mut content).map_err(|source| Error::Io { path: path.into(), source })?;
    Ok(content)
}

/// Whole content as text, a byte-order mark removed.
pub(super) fn text(path: &Path, limit_bytes: u64) -> Result<String, Error> {
    let content = bytes(path, limit_bytes)?;
    let text = String::from_utf8(content).map_err(|e| Error::Json {
        path: path.into(),
        reason: format!("byte {} is not valid UTF-8", e.utf8_error().valid_up_to()),
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_string(),
        None => text,
    })
}

/// A JSON object; `None` where the file does not exist.
pub(super) fn json_object(
    path: &Path,
    limit_bytes: u64,
) -> Result<Option<serde_json::Map<String, serde_json::Value>>, Error> {
    if !path.exists() {
        return Ok(None);
    }
    let text = text(path, limit_bytes)?;
    match serde_json::from_str(&text) {
        Ok(serde_json::Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(Error::Json { path: path.into(), reason: "it is not an object".into() }),
        Err(e) => Err(Error::Json { path: path.into(), reason: e.to_string() }),
    }
}
