//! The dynamic 8-bit data type and block-wise quantisation with it.
//!
//! A code stands for `sign · 10^-e · fraction`: the exponent `e` is counted in leading zero bits, and what is left of the
//! byte divides the decade `[0.1, 1]` linearly (Dettmers 2015, arXiv:1511.04561 §2; as block-wise state of optimizers
//! Dettmers et al. 2021, arXiv:2110.02861 §1.3). The 256 values are sorted, so codes order like values.
//!
//! The values are those of bitsandbytes' `create_dynamic_map` bit for bit, and a value takes the nearest code, the lower
//! one at exactly half way, as in its device-independent and CUDA quantisers. Its processor kernel rounds the value to a
//! grid of 2/65535 first and so picks other codes near zero; that is not copied.

use std::sync::LazyLock;

/// Elements that share one absmax when 8-bit codes are stored block-wise.
pub(crate) const BLOCK: usize = 256;

/// The 256 values and the thresholds between them.
pub(crate) struct DynamicMap {
    values: [f32; 256],
    /// `midpoints[i]` is half way between values `i` and `i + 1`; the last is +∞ to make the search branch-free.
    midpoints: [f32; 256],
}

/// For values of either sign, normalised to `[-1, 1]`.
pub(crate) static SIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(true));

/// For values that are never negative, normalised to `[0, 1]`.
pub(crate) static UNSIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(false));

impl DynamicMap {
    fn new(signed: bool) -> Self {
        const EXPONENTS: i32 = 7;
        let mut data = vec![0.0f32, 1.0];
        for i in 0..EXPONENTS {
            let n_fractions = 1usize << if signed { i } else { i + 1 };
            // The scale is computed in f64 and applied in f32, as a Python float times a float tensor is.
            let scale = 10f64.powi(i - (EXPONENTS - 1)) as f32;
            let boundaries = linspace(0.1, 1.0, n_fractions + 1);
            for pair in boundaries.windows(2) {
                let value = scale * ((pair[0] + pair[1]) / 2.0);
                data.push(value);
                if signed {
                    data.push(-value);
                }
            }
        }
        data.sort_by(f32::total_cmp);
        let mut values = [0.0; 256];
        values.copy_from_slice(&data);
        let mut midpoints = [f32::INFINITY; 256];
        for (midpoint, pair) in midpoints.iter_mut().zip(values.windows(2)) {
            *midpoint = (pair[0] + pair[1]) / 2.0;
        }
        Self { values, midpoints }
    }

    /// The value of every code, ascending.
    pub(crate) fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The values as kernels read them.
    #[cfg(feature = "cuda")]
    pub(crate) fn value_bytes(&self) -> Vec<u8> {
        bytes(&self.values)
    }

    /// The thresholds as kernels read them.
    #[cfg(feature = "cuda")]
    pub(crate) fn midpoint_bytes(&self) -> Vec<u8> {
        bytes(&self.midpoints)
    }

    /// The code nearest to `value`; values outside the range take the outermost code, NaN takes code 0.
    #[inline]
    pub(crate) fn code(&self, value: f32) -> u8 {
        // Branch-free lower bound: the number of midpoints below `value`.
        let mut code = 0usize;
        let mut half = 128;
        while half > 0 {
            code += half * usize::from(self.midpoints[(code + half - 1) & 255] < value);
            half /= 2;
        }
        code as u8
    }

    /// Quantises one block: `codes[i]` nearest to `values[i] / absmax`. Returns the absmax, `max |values[i]|`.
    pub(crate) fn quantize_block(&self, values: &[f32], codes: &mut [u8]) -> f32 {
        let absmax = values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
        let reciprocal = reciprocal(absmax);
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = self.code(value * reciprocal);
        }
        absmax
    }

    /// `values[i] = map[codes[i]] · absmax`, rounded once.
    pub(crate) fn dequantize_block(&self, codes: &[u8], absmax: f32, values: &mut [f32]) {
        for (value, &code) in values.iter_mut().zip(codes) {
            *value = self.values[usize::from(code)] * absmax;
        }
    }
}

/// What a block's values are multiplied with. A block of zeros keeps its zeros instead of becoming NaN.
pub(crate) fn reciprocal(absmax: f32) -> f32 {
    1.0 / absmax.max(1e-38)
}

/// A table as a kernel's constant.
#[cfg(feature = "cuda")]
pub(crate) fn bytes(table: &[f32]) -> Vec<u8> {
    table.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// `torch.linspace` in f32: counted from the nearer end, with one rounding a value (it is compiled to fused operations).
fn linspace(start: f32, end: f32, n: usize) -> Vec<f32> {
    let step = (end - start) / (n - 1) as f32;
    let value = |i: usize| {
        if i < n / 2 { step.mul_add(i as f32, start) } else { (-step).mul_add((n - 1 - i) as f32, end) }
    };
    (0..n).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nf4::tests::golden;

    #[test]
    fn both_maps_are_those_of_bitsandbytes_bit_for_bit() {
        let golden = golden("bnb.safetensors");
        for (name, map) in [("map.signed", &SIGNED), ("map.unsigned", &UNSIGNED)] {
            let expected = golden[name].to_vec1::<f32>().unwrap();
            for (code, (ours, theirs)) in map.values().iter().zip(&expected).enumerate() {
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{name}[{code}]: {ours} against {theirs}");
            }
        }
    }

    #[test]
    fn every_value_takes_the_nearest_code() {
        for map in [&*SIGNED, &*UNSIGNED] {
            for (code, &value) in map.values().iter().enumerate() {
                assert_eq!(map.code(value), code as u8);
            }
            for i in -20_000..=20_000 {
                let value = i as f32 / 16_384.0 * 1.1;
                let error = (map.values()[usize::from(map.code(value))] - value).abs();
                let least = map.values().iter().map(|v| (v - value).abs()).fold(f32::INFINITY, f32::min);
                assert!(error <= least * (1.0 + 1e-5) + 1e-9, "{value}: off by {error}, nearest {least}");
            }
            assert_eq!(map.code(f32::INFINITY), 255);
            assert_eq!(map.code(f32::NEG_INFINITY), 0);
            assert_eq!(map.code(f32::NAN), 0);
        }
    }

    #[test]
    fn a_block_of_zeros_stays_zero() {
        let mut codes = [9u8; 5];
        let absmax = SIGNED.quantize_block(&[0.0; 5], &mut codes);
        let mut values = [1.0f32; 5];
        SIGNED.dequantize_block(&codes, absmax, &mut values);
        assert_eq!(values, [0.0; 5]);
    }
}
