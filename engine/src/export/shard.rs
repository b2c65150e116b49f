//! Safetensors files written tensor by tensor: the header first, from sizes that are known, then the numbers as they
//! are made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::Error;

/// How the numbers of an export are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
#[allow(missing_docs)]
pub enum ExportDtype {
    F32,
    F16,
    Bf16,
}

impl ExportDtype {
    /// Bytes of one number.
    pub fn size(self) -> u64 {
        match self {
            ExportDtype::F32 => 4,
            ExportDtype::F16 | ExportDtype::Bf16 => 2,
        }
    }

    /// As people write it: `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            ExportDtype::F32 => "f32",
            ExportDtype::F16 => "f16",
            ExportDtype::Bf16 => "bf16",
        }
    }

    /// As transformers writes it in config.json: `bfloat16`.
    pub(super) fn torch_name(self) -> &'static str {
        match self {
            ExportDtype::F32 => "float32",
            ExportDtype::F16 => "float16",
            ExportDtype::Bf16 => "bfloat16",
        }
    }

    fn safetensors_name(self) -> &'static str {
        match self {
            ExportDtype::F32 => "F32",
            ExportDtype::F16 => "F16",
            ExportDtype::Bf16 => "BF16",
        }
    }

    /// Largest relative error of rounding to this format: 2^-24, 2^-11, 2^-8.
    pub(super) fn unit_roundoff(self) -> f64 {
        match self {
            ExportDtype::F32 => 2f64.powi(-24),
            ExportDtype::F16 => 2f64.powi(-11),
            ExportDtype::Bf16 => 2f64.powi(-8),
        }
    }

    /// What `value` reads back as.
    pub(super) fn round(self, value: f32) -> f32 {
        match self {
            ExportDtype::F32 => value,
            ExportDtype::F16 => f16::from_f32(value).to_f32(),
            ExportDtype::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// The first value that is finite and would not be after rounding.
    pub(super) fn too_large(self, values: &[f32]) -> Option<f32> {
        let limit = match self {
            ExportDtype::F32 => return None,
            // Half a step above the largest number of the format, where rounding goes to infinity.
            ExportDtype::F16 => 65520.0,
            ExportDtype::Bf16 => f32::from_bits(0x7f7f_8000),
        };
        values.iter().copied().find(|x| x.is_finite() && x.abs() >= limit)
    }
}

/// Name and shape of a tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
}

impl Tensor {
    pub(super) fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A file in the making.
pub(super) struct Shard {
    path: PathBuf,
    file: BufWriter<File>,
    dtype: ExportDtype,
    left: std::vec::IntoIter<Tensor>,
    bytes: u64,
    /// Numbers on their way to the file.
    halves: Vec<u16>,
}

/// Numbers that are converted at once.
const PIECE: usize = 1 << 20;

impl Shard {
    /// Writes the header for `tensors`, whose numbers follow in this order.
    pub(super) fn create(path: &Path, dtype: ExportDtype, tensors: Vec<Tensor>) -> Result<Self, Error> {
        let mut entries = serde_json::Map::new();
        entries.insert("__metadata__".into(), serde_json::json!({ "format": "pt" }));
        let mut end = 0;
        for tensor in &tensors {
            let begin = end;
            end += tensor.n_elements() as u64 * dtype.size();
            entries.insert(
                tensor.name.clone(),
                serde_json::json!({
                    "dtype": dtype.safetensors_name(),
                    "shape": tensor.shape,
                    "data_offsets": [begin, end],
                }),
            );
        }
        let mut header = serde_json::Value::Object(entries).to_string().into_bytes();
        // The numbers begin at a multiple of eight bytes.
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(Error::write(path))?);
        file.write_all(&(header.len() as u64).to_le_bytes())
            .and_then(|()| file.write_all(&header))
            .map_err(Error::write(path))?;
        let bytes = 8 + header.len() as u64;
        Ok(Self { path: path.into(), file, dtype, left: tensors.into_iter(), bytes, halves: Vec::new() })
    }

    /// Writes the numbers of the next tensor, rounded to nearest (ties to even).
    ///
    /// # Errors
    /// Where a finite value is too large for the format.
    pub(super) fn write(&mut self, values: &[f32]) -> Result<(), Error> {
        let Some(tensor) = self.left.next() else { unreachable!("more tensors than in the header") };
        assert_eq!(tensor.n_elements(), values.len(), "{}", tensor.name);
        if let Some(value) = self.dtype.too_large(values) {
            return Err(Error::DoesNotFit { tensor: tensor.name, value, dtype: self.dtype.name() });
        }
        for values in values.chunks(PIECE) {
            self.write_piece(values).map_err(Error::write(&self.path))?;
        }
        self.bytes += values.len() as u64 * self.dtype.size();
        Ok(())
    }

    fn write_piece(&mut self, values: &[f32]) -> std::io::Result<()> {
        self.halves.resize(values.len(), 0);
        match self.dtype {
            ExportDtype::F32 => {
                return values.iter().try_for_each(|x| self.file.write_all(&x.to_le_bytes()));
            }
            ExportDtype::F16 => {
                let mut converted = vec![f16::ZERO; values.len()];
                converted.convert_from_f32_slice(values);
                self.halves.iter_mut().zip(&converted).for_each(|(bits, x)| *bits = x.to_bits());
            }
            ExportDtype::Bf16 => {
                self.halves.iter_mut().zip(values).for_each(|(bits, &x)| *bits = bf16::from_f32(x).to_bits());
            }
        }
        self.halves.iter().try_for_each(|bits| self.file.write_all(&bits.to_le_bytes()))
    }

    /// Syncs the file. Returns its size.
    pub(super) fn finish(self) -> Result<u64, Error> {
        assert_eq!(self.left.len(), 0, "fewer tensors than in the header");
        let file = self.file.into_inner().map_err(|e| e.into_error()).map_err(Error::write(&self.path))?;
        file.sync_all().map_err(Error::write(&self.path))?;
        Ok(self.bytes)
    }
}

/// Tensors in their order, cut into files of at most `max_bytes` (one tensor alone may be larger).
pub(super) fn cut(tensors: Vec<Tensor>, dtype: ExportDtype, max_bytes: u64) -> Vec<Vec<Tensor>> {
    let mut shards: Vec<Vec<Tensor>> = Vec::new();
    let mut bytes = 0;
    for tensor in tensors {
        let n = tensor.n_elements() as u64 * dtype.size();
        match shards.last_mut() {
            Some(shard) if bytes + n <= max_bytes => shard.push(tensor),
            _ => {
                shards.push(vec![tensor]);
                bytes = 0;
            }
        }
        bytes += n;
    }
    shards
}

/// File name of a shard, counted from 0.
pub(super) fn file_name(shard: usize, n_shards: usize) -> String {
    if n_shards == 1 {
        return "model.safetensors".into();
    }
    format!("model-{:05}-of-{n_shards:05}.safetensors", shard + 1)
}

/// `model.safetensors.index.json`: where each tensor is.
pub(super) fn index(shards: &[Vec<Tensor>], dtype: ExportDtype) -> serde_json::Value {
    let n_params: usize = shards.iter().flatten().map(Tensor::n_elements).sum();
    let map: BTreeMap<&str, String> = shards
        .iter()
        .enumerate()
        .flat_map(|(i, shard)| shard.iter().map(move |t| (t.name.as_str(), file_name(i, shards.len()))))
        .collect();
    serde_json::json!({
        "metadata": { "total_parameters": n_params, "total_size": n_params as u64 * dtype.size() },
        "weight_map": map,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize]) -> Tensor {
        Tensor { name: name.into(), shape: shape.to_vec() }
    }

    #[test]
    fn files_read_back_as_the_rounded_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let values = [[1.0f32, -0.1, 3.0e-6, 12345.678], [0.0, -0.0, 1.0 / 3.0, -65000.0]];
        for dtype in [ExportDtype::F32, ExportDtype::F16, ExportDtype::Bf16] {
            let mut shard = Shard::create(&path, dtype, vec![tensor("a", &[2, 2]), tensor("\"b\" 名", &[4])]).unwrap();
            shard.write(&values[0]).unwrap();
            shard.write(&values[1]).unwrap();
            assert_eq!(shard.finish().unwrap(), std::fs::metadata(&path).unwrap().len());
            let read = candle_core::safetensors::load(&path, &candle_core::Device::Cpu).unwrap();
            for (name, values) in ["a", "\"b\" 名"].iter().zip(&values) {
                let got = read[*name].to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap();
                let want: Vec<f32> = values.iter().map(|&x| dtype.round(x)).collect();
                assert_eq!(got.to_vec1::<f32>().unwrap(), want, "{dtype:?}");
            }
        }
    }

    #[test]
    fn values_past_the_format_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let write = |dtype, value: f32| {
            let mut shard = Shard::create(&path, dtype, vec![tensor("a", &[1])]).unwrap();
            shard.write(&[value])
        };
        assert!(write(ExportDtype::F16, 65519.9).is_ok());
        let error = write(ExportDtype::F16, -65520.0).unwrap_err();
        assert_eq!(error.to_string(), "tensor `a` does not fit into f16: it holds -65520");
        assert!(write(ExportDtype::Bf16, 3.38e38).is_ok());
        assert!(write(ExportDtype::Bf16, 3.4e38).is_err());
        assert!(write(ExportDtype::F32, f32::MAX).is_ok());
        for dtype in [ExportDtype::F16, ExportDtype::Bf16] {
            for i in 0..2000 {
                let value = 65500.0 + i as f32 * 0.05;
                assert_eq!(dtype.too_large(&[value]).is_some(), dtype.round(value).is_infinite(), "{dtype:?} {value}");
            }
        }
    }

    #[test]
    fn shards_keep_the_order_and_their_limit() {
        let tensors: Vec<Tensor> = [3, 3, 10, 2, 2, 2].iter().map(|&n| tensor(&format!("t{n}"), &[n])).collect();
        let sizes = |max_bytes| -> Vec<Vec<usize>> {
            let shards = cut(tensors.clone(), ExportDtype::F16, max_bytes);
            shards.iter().map(|s| s.iter().map(Tensor::n_elements).collect()).collect()
        };
        assert_eq!(sizes(12), [vec![3, 3], vec![10], vec![2, 2, 2]]);
        assert_eq!(sizes(1000), [vec![3, 3, 10, 2, 2, 2]]);
        assert_eq!(sizes(1).len(), 6);
        assert_eq!(file_name(0, 1), "model.safetensors");
        assert_eq!(file_name(1, 12), "model-00002-of-00012.safetensors");
    }
}
