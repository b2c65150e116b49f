//! The header: metadata and where tensors lie.
//!
//! ```text
//! "GGUF" | version u32 | n_tensors u64 | n_metadata u64
//! metadata:  key string, type u32, value
//! tensors:   name string, n_dims u32, dims u64 (innermost first), type u32, offset u64
//! padding to the alignment | tensors' bytes
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::BlockType;
use crate::model::span::{self, Span};
use crate::model::{Error, text_file};

/// Real headers have a few megabytes (the tokenizer's words); arrays take up to eight times their bytes in memory.
const HEADER_MAX_BYTES: u64 = 256 << 20;
const MAX_DIMS: u32 = 4;
/// Arrays of arrays are walked over to this depth.
const MAX_DEPTH: usize = 4;

/// A metadata value; numbers are widened.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
    /// Arrays of arrays: no key that is looked at holds one.
    Nested,
}

impl Value {
    /// For messages; arrays are told by their length.
    pub(in crate::model) fn shown(&self) -> String {
        match self {
            Value::Int(v) => v.to_string(),
            Value::Float(v) => v.to_string(),
            Value::Bool(v) => v.to_string(),
            Value::Text(v) if v.chars().count() > 120 => format!("\"{}…\"", v.chars().take(120).collect::<String>()),
            Value::Text(v) => format!("\"{v}\""),
            Value::Ints(v) => format!("an array of {} numbers", v.len()),
            Value::Floats(v) => format!("an array of {} numbers", v.len()),
            Value::Texts(v) => format!("an array of {} texts", v.len()),
            Value::Nested => "an array of arrays".into(),
        }
    }
}

/// All metadata of a file, by key.
#[derive(Clone, Debug)]
pub(in crate::model) struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(in crate::model) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::model) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    pub(in crate::model) fn bad(&self, key: &str, expected: &str) -> Error {
        let got = self.get(key).map_or_else(|| "missing".to_string(), Value::shown);
        Error::ConfigKey { path: self.path.clone(), key: key.into(), got, expected: expected.into() }
    }

    pub(in crate::model) fn unsupported(&self, key: &str, reason: &str) -> Error {
        let value = self.get(key).map_or_else(|| "missing".to_string(), Value::shown);
        Error::UnsupportedFeature { path: self.path.clone(), key: key.into(), value, reason: reason.into() }
    }

    pub(in crate::model) fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.bad(key, "it has to be text")),
        }
    }

    pub(in crate::model) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.bad(key, "it has to be true or false")),
        }
    }

    /// A whole number below 2^32.
    pub(in crate::model) fn count(&self, key: &str) -> Result<Option<usize>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::Int(n)) if (0..1 << 32).contains(&n) => Ok(Some(n as usize)),
            Some(_) => Err(self.bad(key, "it has to be a whole number below 2^32")),
        }
    }

    pub(in crate::model) fn float(&self, key: &str) -> Result<Option<f64>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(&Value::Float(v)) if v.is_finite() => Ok(Some(v)),
            Some(_) => Err(self.bad(key, "it has to be a finite number")),
        }
    }

    pub(in crate::model) fn texts(&self, key: &str) -> Result<Option<&[String]>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => Ok(Some(texts)),
            // The element type of an empty array says nothing.
            Some(Value::Ints(numbers)) if numbers.is_empty() => Ok(Some(&[])),
            Some(_) => Err(self.bad(key, "it has to be an array of texts")),
        }
    }

    pub(in crate::model) fn ints(&self, key: &str) -> Result<Option<&[i64]>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Ints(numbers)) => Ok(Some(numbers)),
            Some(_) => Err(self.bad(key, "it has to be an array of whole numbers")),
        }
    }
}

/// One tensor of a file.
#[derive(Clone, Debug)]
pub(in crate::model) struct TensorInfo {
    pub(in crate::model) name: String,
    pub(in crate::model) block: BlockType,
    /// Outermost first, as in Hugging Face files.
    pub(in crate::model) shape: Vec<usize>,
    pub(in crate::model) span: Span,
}

/// A file whose header is checked.
#[derive(Clone, Debug)]
pub(in crate::model) struct GgufFile {
    pub(in crate::model) path: PathBuf,
    pub(in crate::model) file_bytes: u64,
    /// In the order of the file.
    pub(in crate::model) tensors: Vec<TensorInfo>,
}

impl GgufFile {
    /// Reads and checks the header; reads no weights.
    pub(in crate::model) fn open(path: &Path) -> Result<(GgufFile, Metadata), Error> {
        let mut reader = Reader::open(path)?;
        let (n_tensors, n_metadata) = reader.preamble()?;
        let mut values = BTreeMap::new();
        for i in 0..n_metadata {
            let key = reader.text(&format!("the key of metadata entry {}", i + 1))?;
            let what = format!("the value of `{key}`");
            let kind = reader.u32(&what)?;
            let value = reader.value(kind, &what, 0)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(reader.damaged(format!("the metadata key `{key}` occurs twice")));
            }
        }
        let metadata = Metadata { path: path.into(), values };
        refuse_split(&metadata)?;
        let mut raw = Vec::with_capacity(n_tensors.min(1 << 16) as usize);
        for i in 0..n_tensors {
            raw.push(reader.tensor(i)?);
        }
        let alignment = match metadata.count("general.alignment")? {
            None => 32,
            Some(n) if n > 0 && n.is_multiple_of(8) && n <= 1 << 20 => n as u64,
            Some(_) => return Err(metadata.bad("general.alignment", "it has to be a small multiple of 8")),
        };
        let data_start = reader.position.next_multiple_of(alignment);
        let tensors = place(path, raw, alignment, data_start, reader.file_bytes)?;
        Ok((GgufFile { path: path.into(), file_bytes: reader.file_bytes, tensors }, metadata))
    }

    /// Values of a tensor, widened to f32, in the file's own order of rows.
    pub(in crate::model) fn read_f32(&self, tensor: &TensorInfo) -> Result<Vec<f32>, Error> {
        let mut values = Vec::with_capacity(tensor.shape.iter().product());
        span::read_pieces(&self.path, self.file_bytes, tensor.span, tensor.block.n_bytes, |bytes| {
            tensor.block.widen(bytes, &mut values)
        })?;
        Ok(values)
    }
}

fn refuse_split(metadata: &Metadata) -> Result<(), Error> {
    match metadata.count("split.count")? {
        Some(n) if n > 1 => Err(Error::NotAModel {
            path: metadata.path.clone(),
            reason: format!("it is one of {n} parts of a split GGUF"),
            next_step: "Join the parts first: `llama-gguf-split --merge FIRST-PART OUTPUT.gguf`.".into(),
        }),
        _ => Ok(()),
    }
}

struct RawTensor {
    name: String,
    dims: Vec<u64>,
    kind: u32,
    offset: u64,
}

/// Checks every tensor's type, size and place against the file.
fn place(
    path: &Path,
    raw: Vec<RawTensor>,
    alignment: u64,
    data_start: u64,
    file_bytes: u64,
) -> Result<Vec<TensorInfo>, Error> {
    let mut names = BTreeSet::new();
    let mut tensors = Vec::with_capacity(raw.len());
    for RawTensor { name, dims, kind, offset } in raw {
        let bad = |reason: String| Error::TensorDamaged { path: path.into(), tensor: name.clone(), reason };
        if !names.insert(name.clone()) {
            return Err(bad("its name occurs twice".into()));
        }
        let block = BlockType::from_id(kind).map_err(|known| Error::UnsupportedDtype {
            path: path.into(),
            tensor: name.clone(),
            dtype: known.map_or_else(|| format!("the unknown type {kind}"), |name| format!("{name} (type {kind})")),
            reason: match known {
                Some(_) => "this quantisation cannot be read".into(),
                None => "the file may be damaged or newer than Hearth".into(),
            },
        })?;
        let n_elements = dims
            .iter()
            .try_fold(1u64, |n, &d| n.checked_mul(d))
            .filter(|&n| n < 1 << 48)
            .ok_or_else(|| bad(format!("its dimensions {dims:?} have more elements than can be counted")))?;
        let innermost = dims.first().copied().unwrap_or(1);
        if !innermost.is_multiple_of(block.n_elements as u64) {
            return Err(bad(format!(
                "its innermost dimension {innermost} is no multiple of the block of {} elements of {}",
                block.n_elements,
                block.name()
            )));
        }
        if !offset.is_multiple_of(alignment) {
            return Err(bad(format!("its offset {offset} is no multiple of the alignment {alignment}")));
        }
        let n_bytes = n_elements / block.n_elements as u64 * block.n_bytes as u64;
        let start = data_start.checked_add(offset);
        let end = start.and_then(|s| s.checked_add(n_bytes)).filter(|&end| end <= file_bytes);
        let (Some(start), Some(_)) = (start, end) else {
            return Err(Error::Truncated {
                path: path.into(),
                what: format!("tensor `{name}` with {n_bytes} bytes at offset {offset} of the data"),
                needed_bytes: data_start.saturating_add(offset).saturating_add(n_bytes),
                got_bytes: file_bytes,
            });
        };
        let shape = dims.iter().rev().map(|&d| d as usize).collect();
        tensors.push(TensorInfo { name, block, shape, span: Span { start, n_bytes } });
    }
    let mut ordered: Vec<&TensorInfo> = tensors.iter().filter(|t| t.span.n_bytes > 0).collect();
    ordered.sort_by_key(|t| t.span.start);
    for pair in ordered.windows(2) {
        if pair[0].span.start + pair[0].span.n_bytes > pair[1].span.start {
            return Err(Error::TensorDamaged {
                path: path.into(),
                tensor: pair[1].name.clone(),
                reason: format!("its bytes overlap those of `{}`", pair[0].name),
            });
        }
    }
    Ok(tensors)
}

/// Reads forward and never past the file or the longest header.
struct Reader {
    file: BufReader<File>,
    path: PathBuf,
    position: u64,
    file_bytes: u64,
}

impl Reader {
    fn open(path: &Path) -> Result<Reader, Error> {
        let (file, file_bytes) = text_file::open(path)?;
        Ok(Reader { file: BufReader::with_capacity(1 << 20, file), path: path.into(), position: 0, file_bytes })
    }

    fn damaged(&self, reason: String) -> Error {
        Error::HeaderDamaged { path: self.path.clone(), reason }
    }

    /// Makes sure that `n_bytes` more can be read.
    fn expect(&self, n_bytes: u64, what: &str) -> Result<(), Error> {
        let needed_bytes = self.position.saturating_add(n_bytes);
        if needed_bytes > self.file_bytes {
            return Err(Error::Truncated {
                path: self.path.clone(),
                what: what.into(),
                needed_bytes,
                got_bytes: self.file_bytes,
            });
        }
        if needed_bytes > HEADER_MAX_BYTES {
            let reason = format!("{what} makes it longer than {HEADER_MAX_BYTES} bytes");
            return Err(self.damaged(reason));
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        self.expect(N as u64, what)?;
        let mut bytes = [0u8; N];
        self.file.read_exact(&mut bytes).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        self.position += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn text(&mut self, what: &str) -> Result<String, Error> {
        let n_bytes = self.u64(what)?;
        self.expect(n_bytes, what)?;
        let mut bytes = vec![0u8; n_bytes as usize];
        self.file.read_exact(&mut bytes).map_err(|source| Error::Io { path: self.path.clone(), source })?;
        self.position += n_bytes;
        String::from_utf8(bytes).map_err(|_| self.damaged(format!("{what} is not UTF-8 text")))
    }

    /// Magic and version; returns the numbers of tensors and of metadata entries.
    fn preamble(&mut self) -> Result<(u64, u64), Error> {
        let magic: [u8; 4] = self.array("the mark `GGUF`")?;
        if &magic != b"GGUF" {
            return Err(Error::NotAModel {
                path: self.path.clone(),
                reason: format!("it does not start with `GGUF` but with the bytes {magic:02x?}"),
                next_step: "Choose a .gguf file or the folder of a Hugging Face model.".into(),
            });
        }
        match self.u32("the version")? {
            2 | 3 => {}
            version => {
                let reason = match version {
                    1 => "it is GGUF version 1 of 2023, which no current program writes".to_string(),
                    v if v.swap_bytes() <= 3 => "it is a big-endian GGUF".to_string(),
                    v => format!("it is GGUF version {v}; Hearth reads versions 2 and 3"),
                };
                return Err(Error::NotAModel {
                    path: self.path.clone(),
                    reason,
                    next_step: "Choose a GGUF made by a current version of llama.cpp, or the Hugging Face folder."
                        .into(),
                });
            }
        }
        let n_tensors = self.u64("the number of tensors")?;
        let n_metadata = self.u64("the number of metadata entries")?;
        // An entry has at least a name's length, a type and a byte; a tensor a length, dimensions, type and offset.
        let needed = n_tensors.saturating_mul(24).saturating_add(n_metadata.saturating_mul(13));
        self.expect(needed, &format!("a header of {n_tensors} tensors and {n_metadata} metadata entries"))?;
        Ok((n_tensors, n_metadata))
    }

    fn tensor(&mut self, i: u64) -> Result<RawTensor, Error> {
        let name = self.text(&format!("the name of tensor {}", i + 1))?;
        let what = format!("the entry of tensor `{name}`");
        let n_dims = self.u32(&what)?;
        if n_dims > MAX_DIMS {
            return Err(self.damaged(format!("tensor `{name}` has {n_dims} dimensions, more than {MAX_DIMS}")));
        }
        let dims = (0..n_dims).map(|_| self.u64(&what)).collect::<Result<Vec<_>, _>>()?;
        Ok(RawTensor { name, dims, kind: self.u32(&what)?, offset: self.u64(&what)? })
    }

    fn value(&mut self, kind: u32, what: &str, depth: usize) -> Result<Value, Error> {
        Ok(match kind {
            6 => Value::Float(f32::from_le_bytes(self.array(what)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            7 => Value::Bool(self.bool(what)?),
            8 => Value::Text(self.text(what)?),
            9 => self.array_value(what, depth)?,
            _ => Value::Int(self.int(kind, what)?),
        })
    }

    fn bool(&mut self, what: &str) -> Result<bool, Error> {
        match self.array::<1>(what)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.damaged(format!("{what} is neither true nor false but {other}"))),
        }
    }

    fn int(&mut self, kind: u32, what: &str) -> Result<i128, Error> {
        Ok(match kind {
            0 => u8::from_le_bytes(self.array(what)?).into(),
            1 => i8::from_le_bytes(self.array(what)?).into(),
            2 => u16::from_le_bytes(self.array(what)?).into(),
            3 => i16::from_le_bytes(self.array(what)?).into(),
            4 => u32::from_le_bytes(self.array(what)?).into(),
            5 => i32::from_le_bytes(self.array(what)?).into(),
            10 => u64::from_le_bytes(self.array(what)?).into(),
            11 => i64::from_le_bytes(self.array(what)?).into(),
            other => return Err(self.damaged(format!("{what} has the unknown type {other}"))),
        })
    }

    fn array_value(&mut self, what: &str, depth: usize) -> Result<Value, Error> {
        if depth >= MAX_DEPTH {
            return Err(self.damaged(format!("{what} nests arrays more than {MAX_DEPTH} deep")));
        }
        let kind = self.u32(what)?;
        let n = self.u64(what)?;
        let least_bytes: u64 = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            other => return Err(self.damaged(format!("{what} is an array of the unknown type {other}"))),
        };
        self.expect(n.saturating_mul(least_bytes), &format!("{what}, an array of {n} elements,"))?;
        Ok(match kind {
            6 => Value::Floats(self.many(n, |r| r.array(what).map(f32::from_le_bytes))?),
            12 => Value::Floats(self.many(n, |r| r.array(what).map(|b| f64::from_le_bytes(b) as f32))?),
            7 => Value::Ints(self.many(n, |r| r.bool(what).map(i64::from))?),
            8 => Value::Texts(self.many(n, |r| r.text(what))?),
            9 => {
                for _ in 0..n {
                    self.array_value(what, depth + 1)?;
                }
                Value::Nested
            }
            _ => Value::Ints(self.many(n, |r| {
                let value = r.int(kind, what)?;
                i64::try_from(value).map_err(|_| r.damaged(format!("{what} holds {value}")))
            })?),
        })
    }

    fn many<T>(&mut self, n: u64, mut one: impl FnMut(&mut Reader) -> Result<T, Error>) -> Result<Vec<T>, Error> {
        // `expect` has bounded n by the header's length.
        let mut all = Vec::with_capacity(n as usize);
        for _ in 0..n {
            all.push(one(self)?);
        }
        Ok(all)
    }
}
