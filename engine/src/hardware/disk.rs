//! How fast a disk takes a long write. Measured only when asked: it costs up to a second and wears the disk a little.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Error;

/// Written at most.
const SIZE: usize = 64 << 20;
/// Written at a time.
const CHUNK: usize = 4 << 20;
/// A slow disk is measured by what it took in this time.
const LIMIT: Duration = Duration::from_secs(1);

/// Bytes a second that a long write to the disk of `folder` reaches, safe on the disk. The file is removed again.
///
/// # Errors
/// [`Error::WriteDisk`], where nothing can be written there.
pub fn measure_write(folder: &Path) -> Result<f64, Error> {
    // Where a folder does not exist yet, its parent is on the same disk.
    let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    write(there).map_err(|source| Error::WriteDisk { path: there.into(), source })
}

fn write(folder: &Path) -> std::io::Result<f64> {
    let chunk = noise();
    let mut file = tempfile::Builder::new().prefix(".hearth-speed-").tempfile_in(folder)?;
    let started = Instant::now();
    let mut n_bytes = 0;
    while n_bytes < SIZE && started.elapsed() < LIMIT {
        file.write_all(&chunk)?;
        // Each chunk: else a slow disk would show how fast memory is, and then take minutes to be done.
        file.as_file().sync_data()?;
        n_bytes += CHUNK;
    }
    Ok(n_bytes as f64 / started.elapsed().as_secs_f64().max(1e-6))
}

/// A chunk that no disk can pack (xorshift64).
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(CHUNK);
    while bytes.len() < CHUNK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_measured_and_left_as_it_was() {
        let folder = tempfile::Builder::new().prefix("我的 runs 🔥").tempdir().expect("folder");
        let speed = measure_write(&folder.path().join("not").join("made yet")).expect("measured");
        assert!(speed.is_finite() && speed > 0.0, "{speed}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0);
    }

    #[test]
    fn a_chunk_cannot_be_packed() {
        let chunk = noise();
        assert_eq!(chunk.len(), CHUNK);
        let mut counts = [0_usize; 256];
        chunk.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        assert!(counts.iter().all(|&n| n.abs_diff(CHUNK / 256) < CHUNK / 2560), "bytes are not evenly spread");
    }
}
