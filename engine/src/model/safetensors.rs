//! Headers of safetensors files, checked so strictly that a tensor's bytes can be read without another thought.
//!
//! ```text
//! 8 bytes: length n | n bytes of JSON {"name": {dtype, shape, data_offsets: [begin, end]}, …} | tensors' bytes
//! ```
//!
//! The format's rules: names occur once, ranges are inside the file, fit dtype and shape, and cover the data without
//! hole or overlap. The `safetensors` crate checks them too and has the last word; the checks here come first because
//! they name the tensor.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use ::safetensors::{Dtype, SafeTensors};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::span::{self, Plain, Span};
use super::{Error, text_file};

/// The format's own limit.
const HEADER_MAX_BYTES: u64 = 100_000_000;

/// A checked header.
#[derive(Clone, Debug)]
pub struct Header {
    path: PathBuf,
    file_bytes: u64,
    entries: Vec<Entry>,
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name inside the file.
    pub name: String,
    /// Number format.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    pub(super) span: Span,
}

impl Header {
    /// Reads and checks the header of the file at `path`; reads no weights.
    pub fn read(path: &Path) -> Result<Header, Error> {
        let (mut file, file_bytes) = text_file::open(path)?;
        let truncated = |what: &str, needed_bytes| Error::Truncated {
            path: path.into(),
            what: what.into(),
            needed_bytes,
            got_bytes: file_bytes,
        };
        let damaged = |reason: String| Error::HeaderDamaged { path: path.into(), reason };
        let io = |source| Error::Io { path: path.into(), source };
        if file_bytes < 8 {
            return Err(truncated("the length of its header", 8));
        }
        let mut prefix = [0u8; 8];
        file.read_exact(&mut prefix).map_err(io)?;
        let header_bytes = u64::from_le_bytes(prefix);
        if header_bytes > HEADER_MAX_BYTES {
            return Err(damaged(format!(
                "its first 8 bytes say that the header has {header_bytes} bytes, not at most {HEADER_MAX_BYTES}"
            )));
        }
        let data_start = 8 + header_bytes;
        if data_start > file_bytes {
            return Err(truncated("its header", data_start));
        }
        let mut raw = prefix.to_vec();
        raw.resize(data_start as usize, 0);
        file.read_exact(&mut raw[8..]).map_err(io)?;
        let text = std::str::from_utf8(&raw[8..]).map_err(|_| damaged("it is not UTF-8 text".into()))?;
        if !text.starts_with('{') {
            return Err(damaged("it does not start with `{`".into()));
        }
        let Pairs(pairs) = serde_json::from_str(text).map_err(|e| damaged(format!("it is not JSON: {e}")))?;
        let entries = check(path, pairs, data_start, file_bytes - data_start)?;
        // Second opinion on whatever the checks above do not look at; it reads the header only.
        SafeTensors::read_metadata(&raw).map(|_| ()).or_else(|e| match e {
            // The buffer ends with the header, so it misses the data by design.
            ::safetensors::SafeTensorError::MetadataIncompleteBuffer => Ok(()),
            e => Err(damaged(e.to_string())),
        })?;
        Ok(Header { path: path.into(), file_bytes, entries })
    }

    /// Tensors in the order of their bytes in the file.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Values of one of [`Header::entries`], widened to f32.
    pub(crate) fn read_f32(&self, entry: &Entry) -> Result<Vec<f32>, Error> {
        let plain = entry.plain().ok_or_else(|| Error::UnsupportedDtype {
            path: self.path.clone(),
            tensor: entry.name.clone(),
            dtype: format!("{:?}", entry.dtype),
            reason: "weights are f32, f16 or bf16".into(),
        })?;
        span::read_f32(&self.path, self.file_bytes, entry.span, plain)
    }
}

impl Entry {
    /// The format as one that training reads.
    pub(super) fn plain(&self) -> Option<Plain> {
        match self.dtype {
            Dtype::F32 => Some(Plain::F32),
            Dtype::F16 => Some(Plain::F16),
            Dtype::BF16 => Some(Plain::Bf16),
            _ => None,
        }
    }
}

/// The header's members with their names as often as they occur: a map would keep the last of two.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

fn check(path: &Path, pairs: Vec<(String, Value)>, data_start: u64, data_bytes: u64) -> Result<Vec<Entry>, Error> {
    let mut names = BTreeSet::new();
    let mut entries = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        if !names.insert(name.clone()) {
            return Err(damaged(path, &name, "its name occurs twice in the header".into()));
        }
        if name != "__metadata__" {
            entries.push(check_entry(path, name, &value, data_start, data_bytes)?);
        }
    }
    // Tensors without elements share their place with the one that follows: they sort before it.
    entries.sort_by_key(|e| (e.span.start, e.span.n_bytes));
    let mut end = data_start;
    let mut previous: Option<&Entry> = None;
    for entry in &entries {
        let start = entry.span.start;
        if start < end {
            let other = previous.map_or("another tensor", |e| e.name.as_str());
            let reason = format!("its bytes {} overlap those of `{other}`", range(entry, data_start));
            return Err(damaged(path, &entry.name, reason));
        }
        if start > end {
            let reason = format!("{} bytes before it belong to no tensor", start - end);
            return Err(damaged(path, &entry.name, reason));
        }
        end = start + entry.span.n_bytes;
        previous = Some(entry);
    }
    let unused = data_start + data_bytes - end;
    if unused > 0 {
        let reason = format!("the last {unused} bytes of the file belong to no tensor");
        return Err(Error::HeaderDamaged { path: path.into(), reason });
    }
    Ok(entries)
}

fn check_entry(path: &Path, name: String, value: &Value, data_start: u64, data_bytes: u64) -> Result<Entry, Error> {
    let bad = |reason: String| damaged(path, &name, reason);
    let given = value.get("dtype").cloned().unwrap_or(Value::Null);
    let dtype: Dtype =
        serde_json::from_value(given.clone()).map_err(|_| bad(format!("its dtype {given} is not known")))?;
    let shape = numbers(value.get("shape")).ok_or_else(|| bad("its shape is not a list of whole numbers".into()))?;
    let Some(&[begin, end]) = numbers(value.get("data_offsets")).as_deref() else {
        return Err(bad("its data_offsets are not two whole numbers".into()));
    };
    if begin > end {
        return Err(bad(format!("its bytes {begin} to {end} end before they begin")));
    }
    let n_bits = shape
        .iter()
        .try_fold(1u64, |n, &d| n.checked_mul(d))
        .and_then(|n| n.checked_mul(dtype.bitsize() as u64))
        .ok_or_else(|| bad(format!("its shape {shape:?} has more elements than can be counted")))?;
    if !n_bits.is_multiple_of(8) || n_bits / 8 != end - begin {
        return Err(bad(format!(
            "its shape {shape:?} as {dtype:?} needs {} bytes, but its bytes {begin} to {end} are {}",
            n_bits.div_ceil(8),
            end - begin
        )));
    }
    if end > data_bytes {
        return Err(bad(format!(
            "its bytes {begin} to {end} go past the end of the data, {data_bytes} bytes: the file is cut short"
        )));
    }
    let shape = shape.iter().map(|&d| d as usize).collect();
    Ok(Entry { name, dtype, shape, span: Span { start: data_start + begin, n_bytes: end - begin } })
}

fn numbers(value: Option<&Value>) -> Option<Vec<u64>> {
    value?.as_array()?.iter().map(Value::as_u64).collect()
}

fn range(entry: &Entry, data_start: u64) -> String {
    let begin = entry.span.start - data_start;
    format!("{begin} to {}", begin + entry.span.n_bytes)
}

fn damaged(path: &Path, tensor: &str, reason: String) -> Error {
    Error::TensorDamaged { path: path.into(), tensor: tensor.into(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(header: &str, data: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let mut content = (header.len() as u64).to_le_bytes().to_vec();
        content.extend_from_slice(header.as_bytes());
        content.extend_from_slice(data);
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    fn refusal(header: &str, n_data: usize) -> String {
        let (_folder, path) = written(header, &vec![0; n_data]);
        Header::read(&path).unwrap_err().to_string()
    }

    #[test]
    fn values_of_a_good_file_are_read_in_any_order_of_names() {
        let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},
            "e":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]},
            "a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}   "#;
        let mut data = Vec::new();
        data.extend_from_slice(&1.5f32.to_le_bytes());
        data.extend_from_slice(&(-2.0f32).to_le_bytes());
        data.extend_from_slice(&half::bf16::from_f32(3.0).to_le_bytes());
        data.extend_from_slice(&half::bf16::from_f32(0.5).to_le_bytes());
        let (_folder, path) = written(header, &data);
        let header = Header::read(&path).unwrap();
        let read: Vec<_> =
            header.entries().iter().map(|e| (e.name.as_str(), e.shape.clone(), header.read_f32(e).unwrap())).collect();
        assert_eq!(
            read,
            [("a", vec![2, 1], vec![1.5, -2.0]), ("e", vec![0, 7], vec![]), ("b", vec![2], vec![3.0, 0.5])]
        );
    }

    #[test]
    fn every_broken_rule_is_refused_by_name() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        for (header, n_data, said) in [
            (one("F32", "[2]", "[0,8]"), 16, "last 8 bytes"),
            (one("F32", "[2]", "[0,8]"), 4, "`w`"),
            (one("F32", "[2]", "[4,12]"), 12, "4 bytes before it"),
            (one("F32", "[2]", "[8,0]"), 8, "end before they begin"),
            (one("F32", "[3]", "[0,8]"), 8, "needs 12 bytes"),
            (one("F32", "[4611686018427387904,8]", "[0,0]"), 0, "more elements"),
            (one("F32", "[-1]", "[0,4]"), 4, "whole numbers"),
            (one("F32", "[1.5]", "[0,4]"), 4, "whole numbers"),
            (one("Q9", "[2]", "[0,8]"), 8, "Q9"),
            (r#"{"w":1}"#.into(), 0, "`w`"),
            (r#"{"w""#.into(), 0, "not JSON"),
            ("[]".into(), 0, "`{`"),
        ] {
            let message = refusal(&header, n_data);
            assert!(message.contains(said), "{header}: {message}");
        }
    }

    #[test]
    fn lengths_beyond_the_file_are_refused_without_reading_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
        assert!(matches!(Header::read(&path), Err(Error::HeaderDamaged { .. })));
        std::fs::write(&path, 99_000_000u64.to_le_bytes()).unwrap();
        assert!(matches!(Header::read(&path), Err(Error::Truncated { needed_bytes: 99_000_008, got_bytes: 8, .. })));
        std::fs::write(&path, b"{}").unwrap();
        assert!(matches!(Header::read(&path), Err(Error::Truncated { .. })));
    }

    #[test]
    fn every_truncation_of_a_good_file_is_refused() {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let (_folder, path) = written(header, &[0; 8]);
        let whole = std::fs::read(&path).unwrap();
        for n in 0..whole.len() {
            std::fs::write(&path, &whole[..n]).unwrap();
            assert!(Header::read(&path).is_err(), "{n} of {} bytes", whole.len());
        }
    }
}
