//! The decoder a checkpoint describes, with nothing about files in it.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::config::Target;

/// A Llama-family decoder: pre-norm blocks, grouped-query attention with rotary positions, SwiGLU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct ModelShape {
    /// `model_type` of the checkpoint: `llama`, `mistral`.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; `hidden / n_heads` unless the checkpoint says otherwise.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Rows of the embedding (may exceed the tokenizer's tokens).
    pub vocab_rows: usize,
    /// Epsilon of RMSNorm.
    pub rms_eps: f32,
    /// Rotary positions.
    pub rope: Rope,
    /// The output head is the embedding.
    pub tied: bool,
    /// Longest sequence the checkpoint was made for.
    pub max_positions: usize,
}

/// Rotary position embedding (Su et al. 2021, arXiv:2104.09864), halves convention of Hugging Face.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f32,
    /// Rescaling for long contexts.
    pub scaling: Option<Llama3Scaling>,
}

/// Llama 3.1's frequency rescaling (`rope_type: llama3`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
#[allow(missing_docs)] // config.json's names
pub struct Llama3Scaling {
    pub factor: f32,
    pub low_freq_factor: f32,
    pub high_freq_factor: f32,
    pub original_max_positions: usize,
}

impl ModelShape {
    /// Columns of all query heads.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of all key (or value) heads.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// `(out, in)` of a linear layer of a block.
    pub fn linear(&self, target: Target) -> (usize, usize) {
        let (h, f) = (self.hidden, self.ffn);
        match target {
            Target::Q => (self.q_dim(), h),
            Target::K | Target::V => (self.kv_dim(), h),
            Target::O => (h, self.q_dim()),
            Target::Gate | Target::Up => (f, h),
            Target::Down => (h, f),
        }
    }

    /// Elements of the linear layers of all blocks.
    pub fn linear_params(&self) -> usize {
        let per_layer: usize = Target::ALL.iter().map(|&t| self.linear(t)).map(|(o, i)| o * i).sum();
        per_layer * self.n_layers
    }

    /// Elements of the whole checkpoint.
    pub fn params(&self) -> usize {
        let embeddings = self.vocab_rows * self.hidden * if self.tied { 1 } else { 2 };
        self.linear_params() + embeddings + (2 * self.n_layers + 1) * self.hidden
    }
}

impl Rope {
    /// Radians a position for each pair of elements of a head: `theta^(-2i / head_dim)`, rescaled by wavelength where the
    /// checkpoint says so: long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1).
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| {
                let f = 1.0 / self.theta.powf((2 * i) as f32 / head_dim as f32);
                let Some(s) = &self.scaling else { return f };
                let wavelength = 2.0 * std::f32::consts::PI / f;
                let original = s.original_max_positions as f32;
                if wavelength < original / s.high_freq_factor {
                    f
                } else if wavelength > original / s.low_freq_factor {
                    f / s.factor
                } else {
                    let smooth = (original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
                    (1.0 - smooth) * f / s.factor + smooth * f
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_short_waves_and_stretches_long_ones() {
        let scaling =
            Llama3Scaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 8192 };
        let scaled = Rope { theta: 500_000.0, scaling: Some(scaling) }.frequencies(128);
        let plain = Rope { theta: 500_000.0, scaling: None }.frequencies(128);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]));
    }
}
