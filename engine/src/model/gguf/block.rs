//! Number formats of GGUF tensors.

use std::borrow::Cow;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};

use crate::model::Error;

/// A format that can be widened to f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::model) struct BlockType {
    name: &'static str,
    ggml: GgmlDType,
    /// Elements of one block.
    pub(in crate::model) n_elements: usize,
    /// Bytes of one block.
    pub(in crate::model) n_bytes: usize,
}

/// `(id, name, format)` of ggml's types; `None` where candle 0.11.1 cannot widen them.
const TYPES: [(u32, &str, Option<GgmlDType>); 35] = [
    (0, "F32", Some(GgmlDType::F32)),
    (1, "F16", Some(GgmlDType::F16)),
    (2, "Q4_0", Some(GgmlDType::Q4_0)),
    (3, "Q4_1", Some(GgmlDType::Q4_1)),
    (6, "Q5_0", Some(GgmlDType::Q5_0)),
    (7, "Q5_1", Some(GgmlDType::Q5_1)),
    (8, "Q8_0", Some(GgmlDType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(GgmlDType::Q2K)),
    (11, "Q3_K", Some(GgmlDType::Q3K)),
    (12, "Q4_K", Some(GgmlDType::Q4K)),
    (13, "Q5_K", Some(GgmlDType::Q5K)),
    (14, "Q6_K", Some(GgmlDType::Q6K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", None),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", None),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(GgmlDType::BF16)),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (36, "IQ4_NL_4_4", None),
    (37, "IQ4_NL_4_8", None),
    (38, "IQ4_NL_8_8", None),
    (39, "MXFP4", None),
];

impl BlockType {
    /// The format of ggml's type `id`, or the type's name where it is known at all.
    pub(in crate::model) fn from_id(id: u32) -> Result<BlockType, Option<&'static str>> {
        match TYPES.iter().find(|(known, ..)| *known == id) {
            Some(&(_, name, Some(ggml))) => {
                Ok(BlockType { name, ggml, n_elements: ggml.block_size(), n_bytes: ggml.type_size() })
            }
            Some(&(_, name, None)) => Err(Some(name)),
            None => Err(None),
        }
    }

    /// ggml's name.
    pub(in crate::model) fn name(self) -> &'static str {
        self.name
    }

    /// Appends the values of whole blocks.
    pub(in crate::model) fn widen(self, bytes: &[u8], values: &mut Vec<f32>) -> Result<(), Error> {
        let n = bytes.len() / self.n_bytes * self.n_elements;
        let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, self.ggml)?;
        let tensor = QTensor::new(storage, n)?.dequantize(&Device::Cpu)?;
        values.extend(tensor.to_vec1::<f32>()?);
        Ok(())
    }
}
