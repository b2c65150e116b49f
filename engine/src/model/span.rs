//! The bytes of one tensor inside a file, read in pieces.
//!
//! Pieces, not a mapping: a file that shrinks or a disk that vanishes while it is read then gives an error and not a
//! signal that ends the process, and no page of the file counts as memory of the process.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use half::{bf16, f16};

use super::Error;

/// Bytes read at once; a multiple of every element and of every block of quantised weights up to 4 MiB / 256.
const PIECE_BYTES: usize = 4 << 20;

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// From the start of the file.
    pub(super) start: u64,
    /// Length.
    pub(super) n_bytes: u64,
}

/// Calls `each` with the span's bytes in order, in pieces whose length is a multiple of `unit` (but for an uneven
/// rest). Pieces start at an address that is a multiple of 16. `file_bytes` is the length the file had when it was
/// checked.
pub(super) fn read_pieces(
    path: &Path,
    file_bytes: u64,
    span: Span,
    unit: usize,
    mut each: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut file = File::open(path).map_err(io)?;
    let got_bytes = file.metadata().map_err(io)?.len();
    if got_bytes != file_bytes {
        return Err(Error::Changed { path: path.into(), expected_bytes: file_bytes, got_bytes });
    }
    file.seek(SeekFrom::Start(span.start)).map_err(io)?;
    let piece = (PIECE_BYTES / unit.max(1) * unit.max(1)).max(unit) as u64;
    let mut buffer = vec![0u8; piece.min(span.n_bytes) as usize + 15];
    let skip = buffer.as_ptr().align_offset(16);
    let mut left = span.n_bytes;
    while left > 0 {
        let n = piece.min(left) as usize;
        let bytes = &mut buffer[skip..skip + n];
        file.read_exact(bytes).map_err(io)?;
        each(bytes)?;
        left -= n as u64;
    }
    Ok(())
}

/// Plain number formats of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    F32,
    F16,
    Bf16,
}

impl Plain {
    /// Bytes of one element.
    pub(super) fn size(self) -> usize {
        match self {
            Plain::F32 => 4,
            Plain::F16 | Plain::Bf16 => 2,
        }
    }
}

/// Little-endian numbers widened to f32, exactly.
pub(super) fn read_f32(path: &Path, file_bytes: u64, span: Span, plain: Plain) -> Result<Vec<f32>, Error> {
    let mut values = Vec::with_capacity((span.n_bytes / plain.size() as u64) as usize);
    read_pieces(path, file_bytes, span, plain.size(), |bytes| {
        match plain {
            Plain::F32 => {
                values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            }
            Plain::F16 => {
                values.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()));
            }
            Plain::Bf16 => {
                values.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()));
            }
        }
        Ok(())
    })?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_join_to_the_span_and_hold_whole_units() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("名 前 🙂.bin");
        let content: Vec<u8> = (0..PIECE_BYTES + 4001).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let span = Span { start: 1, n_bytes: content.len() as u64 - 1 };
        let (mut joined, mut lengths) = (Vec::new(), Vec::new());
        read_pieces(&path, content.len() as u64, span, 24, |bytes| {
            assert_eq!(bytes.as_ptr() as usize % 16, 0);
            lengths.push(bytes.len());
            joined.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        assert_eq!(joined, content[1..]);
        assert_eq!(lengths.len(), 2);
        assert_eq!(lengths[0] % 24, 0);
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        std::fs::write(&path, [0u8; 8]).unwrap();
        let error = read_f32(&path, 16, Span { start: 0, n_bytes: 16 }, Plain::F32).unwrap_err();
        assert!(matches!(error, Error::Changed { expected_bytes: 16, got_bytes: 8, .. }), "{error}");
    }

    #[test]
    fn sixteen_bit_formats_widen_exactly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        let values = [1.0f32, -0.333_251_95, 65504.0, 6.1e-5];
        let halves: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        std::fs::write(&path, &halves).unwrap();
        let span = Span { start: 0, n_bytes: 8 };
        let wanted: Vec<f32> = values.iter().map(|&v| f16::from_f32(v).to_f32()).collect();
        assert_eq!(read_f32(&path, 8, span, Plain::F16).unwrap(), wanted);
        let brains: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        std::fs::write(&path, &brains).unwrap();
        let wanted: Vec<f32> = values.iter().map(|&v| bf16::from_f32(v).to_f32()).collect();
        assert_eq!(read_f32(&path, 8, span, Plain::Bf16).unwrap(), wanted);
    }
}
