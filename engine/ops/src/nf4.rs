//! 4-bit NormalFloat with double quantisation, as bitsandbytes stores it.
//!
//! A weight matrix `W [rows, cols]` is read row by row in blocks of 64. Each weight becomes the nearest of 16 quantiles of
//! the normal distribution, scaled by the block's largest magnitude (Dettmers et al. 2023, arXiv:2305.14314 §3):
//!
//! ```text
//! absmax_b = max |w_i|  over block b                       code_i = nearest(w_i / absmax_b)
//! offset   = mean(absmax)                                  absmax code_b = nearest8((absmax_b - offset) / nested)
//! nested   = max |absmax_b - offset|  over 256 blocks
//!
//! absmax'_b = fl(fl(dynamic8[absmax code_b] * nested) + offset)
//! w'_i      = fl(NF4[code_i] * absmax'_b)
//! ```
//!
//! Two roundings for the absmax and no fused multiply-add: the values are bitsandbytes' bit for bit, so an adapter trained
//! here and one trained there see the same base. A byte holds two codes, the earlier weight in the high nibble.
//! 4.127 bits a weight: `n/2 + n/64 + 4n/16384` bytes and the offset.

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, DType, backend::BackendStorage, cuda::CudaDevice};
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use super::adamw::flat;
#[cfg(feature = "cuda")]
use super::cuda;
use super::dynamic8::{self, SIGNED};
use super::host::{self, Element};
#[cfg(feature = "cuda")]
use super::padded::{MAX_MEMBERS, Member};

/// The 16 values of NF4, ascending (arXiv:2305.14314, appendix E). The code of a value is its index.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Weights that share one absmax.
pub const BLOCK: usize = 64;

/// Absmax codes that share one scale.
pub const NESTED_BLOCK: usize = dynamic8::BLOCK;

/// The values of a byte's two codes: one load and one multiplication dequantise two weights, without a branch.
const PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [NF4[byte >> 4], NF4[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Half way between neighbouring values; a value on the threshold takes the lower code.
const THRESHOLDS: [f32; 15] = {
    let mut thresholds = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        thresholds[i] = (NF4[i] + NF4[i + 1]) / 2.0;
        i += 1;
    }
    thresholds
};

/// A quantised weight matrix of `n = rows * cols` weights; `n` is even.
#[derive(Clone, Debug)]
pub struct Nf4 {
    /// Two codes a byte, the earlier weight in the high nibble; u8 `[n / 2]`.
    pub codes: Tensor,
    /// Codes of the blocks' absmax in the signed dynamic map; u8 `[ceil(n / 64)]`.
    pub absmax: Tensor,
    /// Scales of the absmax codes; f32 `[ceil(n / 64 / 256)]`.
    pub nested_absmax: Tensor,
    /// Added to every absmax.
    pub offset: f32,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

impl Nf4 {
    /// Bytes of the three tensors and the offset for `n` weights.
    pub const fn bytes(n: usize) -> usize {
        n.div_ceil(2) + n.div_ceil(BLOCK) + Self::scale_bytes(n)
    }

    /// Of these, those of the nested absmax and the offset.
    pub const fn scale_bytes(n: usize) -> usize {
        4 * n.div_ceil(BLOCK).div_ceil(dynamic8::BLOCK) + 4
    }

    pub(super) fn check(&self) -> Result<()> {
        let n = self.rows * self.cols;
        let n_blocks = n.div_ceil(BLOCK);
        let expected = [n / 2, n_blocks, n_blocks.div_ceil(dynamic8::BLOCK)];
        let got = [self.codes.elem_count(), self.absmax.elem_count(), self.nested_absmax.elem_count()];
        if n % 2 != 0 || expected != got {
            bail!(
                "nf4: {} x {} weights need codes, absmax and nested absmax of {expected:?} elements, got {got:?}",
                self.rows,
                self.cols
            );
        }
        Ok(())
    }
}

/// Quantises `weights`, row-major `[rows, cols]`, and places the result on `device`. The same bits on every device.
///
/// Codes and absmax are computed on `device`, which on a card takes 64 MiB of it for the time of the call; the second
/// quantisation, of one value in 64, runs on the host.
///
/// # Errors
/// Where `weights` isn't `rows * cols` long, its length is odd, or a weight is not finite.
pub fn quantize(weights: &[f32], rows: usize, cols: usize, device: &Device) -> Result<Nf4> {
    let n = rows * cols;
    if weights.len() != n || n % 2 != 0 || n == 0 {
        bail!("nf4: expected an even number of weights, {rows} x {cols}, got {}", weights.len());
    }
    let (codes, absmax) = codes_and_absmax(weights, device)?;
    // Summed in f64: the nearest f32 to the true mean, independent of any order of summation.
    let offset = (absmax.iter().map(|&a| f64::from(a)).sum::<f64>() / absmax.len() as f64) as f32;
    if !offset.is_finite() || absmax.iter().any(|a| !a.is_finite()) {
        bail!("nf4: a weight of the {rows} x {cols} matrix is not finite");
    }
    let (absmax_codes, nested) = quantize_absmax(&absmax, offset);
    Ok(Nf4 {
        codes,
        nested_absmax: Tensor::from_vec(nested, absmax.len().div_ceil(dynamic8::BLOCK), device)?,
        absmax: Tensor::from_vec(absmax_codes, absmax.len(), device)?,
        offset,
        rows,
        cols,
    })
}

/// Codes, on `device`, and absmax of every block of 64.
fn codes_and_absmax(weights: &[f32], device: &Device) -> Result<(Tensor, Vec<f32>)> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return quantize_on_card(weights, 64 * 1024 * 1024 / 4, device);
    }
    let (codes, absmax) = quantize_blocks(weights);
    Ok((Tensor::from_vec(codes, weights.len() / 2, device)?, absmax))
}

/// [`quantize_blocks`] by a card, which holds `piece` weights at a time, whole blocks.
#[cfg(feature = "cuda")]
fn quantize_on_card(weights: &[f32], piece: usize, device: &Device) -> Result<(Tensor, Vec<f32>)> {
    const WARPS: usize = 8; // a block of weights each
    let codes = Tensor::zeros(weights.len() / 2, DType::U8, device)?;
    let absmax = Tensor::zeros(weights.len().div_ceil(BLOCK), DType::F32, device)?;
    for (i, weights) in weights.chunks(piece).enumerate() {
        let n_blocks = weights.len().div_ceil(BLOCK);
        let codes = codes.narrow(0, i * piece / 2, weights.len() / 2)?;
        let absmax = absmax.narrow(0, i * piece / BLOCK, n_blocks)?;
        let weights = Tensor::from_slice(weights, weights.len(), device)?;
        let (codes, absmax, weights) = (cuda::operand(&codes)?, cuda::operand(&absmax)?, cuda::operand(&weights)?);
        let arguments = [codes.at(), absmax.at(), weights.at(), weights.n_cols.into()];
        let grid = [n_blocks.div_ceil(WARPS), 1, 1];
        KERNELS.launch(device.as_cuda_device()?, "nf4_quantize", grid, 32 * WARPS, 0, &arguments)?;
    }
    Ok((codes, absmax.to_vec1()?))
}

#[cfg(feature = "cuda")]
const KERNELS: cuda::Kernels = cuda::kernels!(
    "nf4",
    "NF4_VALUES" => || dynamic8::bytes(&NF4),
    "NF4_THRESHOLDS" => || dynamic8::bytes(&THRESHOLDS),
    "ABSMAX_VALUES" => || SIGNED.value_bytes()
);

/// Codes and absmax of every block of 64.
fn quantize_blocks(weights: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut codes = vec![0u8; weights.len() / 2];
    let mut absmax = vec![0f32; weights.len().div_ceil(BLOCK)];
    codes
        .par_chunks_mut(BLOCK / 2)
        .zip(absmax.par_iter_mut())
        .zip(weights.par_chunks(BLOCK))
        .with_min_len(64)
        .for_each(|((codes, absmax), weights)| {
            *absmax = weights.iter().fold(0f32, |max, w| if w.is_nan() { f32::NAN } else { larger(max, w.abs()) });
            let reciprocal = dynamic8::reciprocal(*absmax);
            for (byte, pair) in codes.iter_mut().zip(weights.chunks_exact(2)) {
                *byte = nearest(pair[0] * reciprocal) << 4 | nearest(pair[1] * reciprocal);
            }
        });
    (codes, absmax)
}

/// The larger of the two; NaN once `max` is NaN.
fn larger(max: f32, value: f32) -> f32 {
    if value > max { value } else { max }
}

/// The code nearest to `value`: the number of thresholds below it.
fn nearest(value: f32) -> u8 {
    THRESHOLDS.iter().map(|&threshold| u8::from(value > threshold)).sum()
}

/// Second quantisation: codes and scales of `absmax - offset` in blocks of 256.
fn quantize_absmax(absmax: &[f32], offset: f32) -> (Vec<u8>, Vec<f32>) {
    let centred: Vec<f32> = absmax.iter().map(|a| a - offset).collect();
    let mut codes = vec![0u8; absmax.len()];
    let nested = centred
        .chunks(dynamic8::BLOCK)
        .zip(codes.chunks_mut(dynamic8::BLOCK))
        .map(|(values, codes)| SIGNED.quantize_block(values, codes))
        .collect();
    (codes, nested)
}

/// Writes the weights of `src` into `dst`, a view `[rows, cols]` whose rows may lie further apart than `cols`: f32, or
/// 16-bit on a card (the f32 weight, rounded to nearest).
///
/// The bytes between the rows of `dst` are not touched.
///
/// # Errors
/// Where shapes differ, `dst` has another element type or its columns are not adjacent.
pub fn dequantize(dst: &Tensor, src: &Nf4) -> Result<()> {
    src.check()?;
    if dst.dims() != [src.rows, src.cols] {
        bail!("nf4: weights of {} x {} do not go into a buffer of {:?}", src.rows, src.cols, dst.dims());
    }
    dst.inplace_op1(&Dequantize { src })
}

struct Dequantize<'a> {
    src: &'a Nf4,
}

impl InplaceOp1 for Dequantize<'_> {
    fn name(&self) -> &'static str {
        "nf4-dequantize"
    }

    fn cpu_fwd(&self, dst: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let &[row_stride, 1] = layout.stride() else {
            bail!("nf4: the columns of the destination are not adjacent, strides {:?}", layout.stride());
        };
        let Nf4 { codes, absmax, nested_absmax, offset, rows, cols } = self.src;
        let row_stride = row_stride.max(self.src.cols); // of a single row, the stride may be anything
        let Some(dst) = f32::vector(dst) else { bail!("nf4: the destination is not f32") };
        let end = layout.start_offset() + (rows - 1) * row_stride + cols;
        let dst = &mut dst[layout.start_offset()..end];
        host::read(codes, |codes| {
            host::read(absmax, |absmax| {
                host::read(nested_absmax, |nested| {
                    let blocks = Blocks { codes, absmax, nested, offset: *offset };
                    // Rows of about 16k weights per task: enough to pay for the hand-over.
                    let rows_per_task = (16_384 / cols).max(1);
                    dst.par_chunks_mut(rows_per_task * row_stride).enumerate().for_each(|(task, chunk)| {
                        for (i, row) in chunk.chunks_mut(row_stride).enumerate() {
                            blocks.dequantize((task * rows_per_task + i) * cols, &mut row[..*cols]);
                        }
                    });
                    Ok(())
                })
            })
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, dst: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let member = Member { weight: self.src, b: None };
        dequantize_on_card(dst.device(), cuda::matrix(dst, layout)?, &[member], None)
    }
}

/// Dequantises `members` below one another into `dst`, with the adapter around them where there is an `a`, by one launch. See
/// [`super::padded::dequantize`], which has checked the shapes.
#[cfg(feature = "cuda")]
pub(super) fn dequantize_on_card(
    device: &CudaDevice,
    dst: cuda::Matrix,
    members: &[Member],
    a: Option<&Tensor>,
) -> Result<()> {
    let operand = |tensor: &Tensor, dtype| flat("nf4", cuda::operand(tensor)?, dtype);
    let pair = |low: u32, high: usize| u64::from(low) | (high as u64) << 32;
    let (mut n_out, mut cols, mut has_whole_words) = (0, 0, true);
    // `Group` of nf4.cu: six words a member.
    let mut group = [0; 6 * MAX_MEMBERS];
    for (words, Member { weight, b }) in group.chunks_exact_mut(6).zip(members) {
        n_out += weight.rows;
        cols = weight.cols;
        let codes = operand(&weight.codes, DType::U8)?.pointer;
        let absmax = operand(&weight.absmax, DType::U8)?.pointer;
        let nested = operand(&weight.nested_absmax, DType::F32)?.pointer;
        let (b, columns) = match b {
            Some((b, first)) => {
                let b = operand(b, DType::F32)?;
                (b.pointer, *first..first + b.n_cols)
            }
            None => (0, 0..0),
        };
        has_whole_words &= codes.is_multiple_of(4);
        let (end, columns) = (pair(weight.offset.to_bits(), n_out), pair(columns.start as u32, columns.end));
        words.copy_from_slice(&[codes, absmax, nested, b, end, columns]);
    }
    let (a, rank) = match a {
        Some(a) => (operand(a, DType::F32)?.at(), a.dim(0)?),
        None => (cuda::Argument::Pointer(0), 0),
    };
    let mut arguments = vec![dst.at(), dst.stride.into(), n_out.into(), cols.into(), rank.into(), a];
    arguments.push(cuda::Argument::Struct(group));
    let suffix = cuda::suffix(dst.dtype)?;
    if cols.is_multiple_of(BLOCK) && has_whole_words {
        // A warp writes a tile of up to 1024 weights of a row; a thread of those for the adapter, 4 elements or pairs.
        const WARPS: usize = 8;
        let vectors = dst.has_vectors() && rank.is_multiple_of(2);
        let n_tiles = n_out * cols.div_ceil(1024);
        let n_per_thread = if vectors { 8 } else { 4 };
        let n_padding_blocks = (rank * (n_out + cols)).div_ceil(n_per_thread * 32 * WARPS);
        arguments.push(vectors.into());
        let function = format!("nf4_dequantize_{suffix}");
        let grid = [n_padding_blocks + n_tiles.div_ceil(WARPS), 1, 1];
        KERNELS.launch(device, &function, grid, 32 * WARPS, 0, &arguments)
    } else {
        const N_THREADS: usize = 256;
        let function = format!("nf4_dequantize_each_{suffix}");
        let grid = [(cols + rank).div_ceil(N_THREADS), (n_out + rank).min(65_535), 1];
        KERNELS.launch(device, &function, grid, N_THREADS, 0, &arguments)
    }
}

/// The host form of a quantised matrix.
struct Blocks<'a> {
    codes: &'a [u8],
    absmax: &'a [u8],
    nested: &'a [f32],
    offset: f32,
}

impl Blocks<'_> {
    /// The scale of a block, in two roundings.
    fn absmax(&self, block: usize) -> f32 {
        SIGNED.values()[usize::from(self.absmax[block])] * self.nested[block / dynamic8::BLOCK] + self.offset
    }

    /// Writes `dst.len()` weights from number `start` on, which may lie inside a block or a byte.
    fn dequantize(&self, mut start: usize, mut dst: &mut [f32]) {
        while !dst.is_empty() {
            let absmax = self.absmax(start / BLOCK);
            let n = (BLOCK - start % BLOCK).min(dst.len());
            let (head, rest) = dst.split_at_mut(n);
            if start % 2 == 0 && n % 2 == 0 {
                let codes = &self.codes[start / 2..(start + n) / 2];
                for (pair, &byte) in head.chunks_exact_mut(2).zip(codes) {
                    let [high, low] = PAIRS[usize::from(byte)];
                    pair[0] = high * absmax;
                    pair[1] = low * absmax;
                }
            } else {
                for (i, weight) in (start..).zip(head) {
                    *weight = PAIRS[usize::from(self.codes[i / 2])][i % 2] * absmax;
                }
            }
            start += n;
            dst = rest;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use candle_core::DType;

    use super::*;

    /// Tensors of a file in `tests/goldens`.
    pub(crate) fn golden(name: &str) -> HashMap<String, Tensor> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name);
        candle_core::safetensors::load(path, &Device::Cpu).unwrap()
    }

    fn random(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..n).map(|_| uniform() + uniform() + uniform()).collect()
    }

    /// A quantised matrix on another device.
    pub(crate) fn moved(src: &Nf4, device: &Device) -> Nf4 {
        let to = |tensor: &Tensor| tensor.to_device(device).unwrap();
        Nf4 { codes: to(&src.codes), absmax: to(&src.absmax), nested_absmax: to(&src.nested_absmax), ..src.clone() }
    }

    /// Golden matrices: name, rows, cols.
    const MATRICES: [(&str, usize, usize); 4] =
        [("two_blocks", 2, 64), ("odd_tail", 6, 55), ("zero_block", 8, 32), ("many", 280, 64)];

    #[test]
    fn codes_and_scales_are_those_of_bitsandbytes() {
        let golden = golden("bnb.safetensors");
        for (name, rows, cols) in MATRICES {
            let get = |part: &str| golden[&format!("nf4.{name}.{part}")].clone();
            let weights = get("weights").flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (codes, absmax) = quantize_blocks(&weights);
            assert_eq!(codes, get("codes").to_vec1::<u8>().unwrap(), "{name}");
            assert_eq!(absmax, get("absmax_f32").to_vec1::<f32>().unwrap(), "{name}");

            // Given their offset, the second quantisation is exact too.
            let offset = get("offset").to_vec1::<f32>().unwrap()[0];
            let (absmax_codes, nested) = quantize_absmax(&absmax, offset);
            assert_eq!(absmax_codes, get("absmax").to_vec1::<u8>().unwrap(), "{name}");
            assert_eq!(nested, get("nested_absmax").to_vec1::<f32>().unwrap(), "{name}");

            // Our own offset is the correctly rounded mean; theirs depends on torch's order of summation.
            let ours = quantize(&weights, rows, cols, &Device::Cpu).unwrap();
            let ulps = (i64::from(ours.offset.to_bits()) - i64::from(offset.to_bits())).abs();
            assert!(ulps <= 2, "{name}: offset {} against {offset}", ours.offset);
        }
    }

    #[test]
    fn dequantised_values_are_those_of_bitsandbytes_bit_for_bit() {
        let golden = golden("bnb.safetensors");
        for (name, rows, cols) in MATRICES {
            let get = |part: &str| golden[&format!("nf4.{name}.{part}")].clone();
            let src = Nf4 {
                codes: get("codes"),
                absmax: get("absmax"),
                nested_absmax: get("nested_absmax"),
                offset: get("offset").to_vec1::<f32>().unwrap()[0],
                rows,
                cols,
            };
            let theirs = get("dequantized").flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let devices = std::iter::once(Device::Cpu);
            #[cfg(feature = "cuda")]
            let devices = devices.chain(crate::test_support::card());
            for device in devices {
                let dst = Tensor::zeros((rows, cols), DType::F32, &device).unwrap();
                dequantize(&dst, &moved(&src, &device)).unwrap();
                let ours = dst.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                    assert_eq!(ours.to_bits(), theirs.to_bits(), "{name}[{i}]: {ours} against {theirs}");
                }
            }
        }
    }

    #[test]
    fn a_padded_buffer_receives_the_rows_and_keeps_its_padding() {
        for (rows, cols) in [(5, 64), (3, 130), (7, 6), (4, 33), (300, 192)] {
            let weights = random(rows * cols, 7);
            let src = quantize(&weights, rows, cols, &Device::Cpu).unwrap();
            let plain = Tensor::zeros((rows, cols), DType::F32, &Device::Cpu).unwrap();
            dequantize(&plain, &src).unwrap();

            let buffer = Tensor::full(9f32, (rows + 2, cols + 5), &Device::Cpu).unwrap();
            dequantize(&buffer.narrow(0, 1, rows).unwrap().narrow(1, 2, cols).unwrap(), &src).unwrap();
            let (plain, buffer) = (plain.to_vec2::<f32>().unwrap(), buffer.to_vec2::<f32>().unwrap());
            for (r, row) in buffer.iter().enumerate() {
                for (c, &value) in row.iter().enumerate() {
                    let inside = (1..=rows).contains(&r) && (2..cols + 2).contains(&c);
                    let expected = if inside { plain[r - 1][c - 2] } else { 9.0 };
                    assert_eq!(value, expected, "{rows} x {cols} at {r}, {c}");
                }
            }
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_give_the_bits_of_the_reference_and_keep_the_padding() {
        let Some(card) = crate::test_support::card() else { return };
        let golden = golden("bnb.safetensors");
        let of_golden = MATRICES.iter().map(|&(name, rows, cols)| {
            let weights = golden[&format!("nf4.{name}.weights")].flatten_all().unwrap().to_vec1::<f32>().unwrap();
            (rows, cols, weights)
        });
        // Rows of whole and part tiles, of blocks that straddle rows, of odd length; more rows than a grid is high.
        let shapes = [(5, 64), (3, 130), (7, 6), (4, 33), (300, 192), (3, 1088), (2, 4160), (70_000, 2)];
        let of_shape = shapes.iter().map(|&(rows, cols)| (rows, cols, random(rows * cols, 7)));
        for (rows, cols, weights) in of_golden.chain(of_shape) {
            let src = quantize(&weights, rows, cols, &Device::Cpu).unwrap();
            let on_card = moved(&src, &card);
            // The view's first column and the buffer's padding: with and without whole vectors.
            for (start, padding) in [(0, 0), (0, 16), (8, 16), (2, 5)] {
                let fill = |dtype, src: &Nf4, device: &Device| {
                    let buffer = Tensor::full(9f32, (rows + 2, cols + padding), device).unwrap();
                    let buffer = buffer.to_dtype(dtype).unwrap();
                    dequantize(&buffer.narrow(0, 1, rows).unwrap().narrow(1, start, cols).unwrap(), src).unwrap();
                    buffer.to_device(&Device::Cpu).unwrap()
                };
                let bits = |buffer: &Tensor| -> Vec<u32> {
                    let values = buffer.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                    values.into_iter().map(f32::to_bits).collect()
                };
                let want = fill(DType::F32, &src, &Device::Cpu);
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    if !crate::test_support::computes_in(&card, dtype).unwrap() {
                        continue;
                    }
                    let (got, want) = (bits(&fill(dtype, &on_card, &card)), bits(&want.to_dtype(dtype).unwrap()));
                    let wrong = got.iter().zip(&want).position(|(a, b)| a != b);
                    assert_eq!(wrong, None, "{rows} x {cols} in {dtype:?}, columns from {start} of {padding} more");
                }
            }
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_card_quantises_to_the_bits_of_the_host() {
        let Some(card) = crate::test_support::card() else { return };
        for (rows, cols) in [(1, 2), (2, 64), (6, 55), (8, 32), (280, 64), (33, 1000)] {
            let mut weights = random(rows * cols, 5);
            weights[rows * cols / 2..].iter_mut().take(BLOCK).for_each(|w| *w = 0.0);
            let (got, want) =
                (quantize(&weights, rows, cols, &card).unwrap(), quantize(&weights, rows, cols, &Device::Cpu).unwrap());
            let u8s = |tensor: &Tensor| tensor.to_vec1::<u8>().unwrap();
            assert_eq!(u8s(&got.codes), u8s(&want.codes), "{rows} x {cols}");
            assert_eq!(u8s(&got.absmax), u8s(&want.absmax), "{rows} x {cols}");
            let nested = |src: &Nf4| src.nested_absmax.to_vec1::<f32>().unwrap();
            assert_eq!(nested(&got), nested(&want), "{rows} x {cols}");
            assert_eq!(got.offset.to_bits(), want.offset.to_bits(), "{rows} x {cols}");

            let (codes, absmax) = quantize_on_card(&weights, 2 * BLOCK, &card).unwrap();
            assert_eq!((u8s(&codes), absmax), quantize_blocks(&weights), "{rows} x {cols} in pieces");
        }
        assert!(quantize(&[0.0, f32::NAN], 1, 2, &card).is_err());
        assert!(quantize(&[f32::NEG_INFINITY, 0.0], 1, 2, &card).is_err());
    }

    #[test]
    fn the_error_of_a_weight_is_at_most_half_a_gap_of_its_block() {
        let (rows, cols) = (40, 96);
        let weights = random(rows * cols, 11);
        let src = quantize(&weights, rows, cols, &Device::Cpu).unwrap();
        let dst = Tensor::zeros((rows, cols), DType::F32, &Device::Cpu).unwrap();
        dequantize(&dst, &src).unwrap();
        let values = dst.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        // The widest half gap is 0.152; the scale of a block is itself off by up to 1.4 % of the nested absmax.
        for (values, weights) in values.chunks(BLOCK).zip(weights.chunks(BLOCK)) {
            let absmax = weights.iter().fold(0f32, |max, w| max.max(w.abs()));
            for (value, weight) in values.iter().zip(weights) {
                assert!((value - weight).abs() <= 0.17 * absmax, "{weight} became {value}, absmax {absmax}");
            }
        }
    }

    #[test]
    fn wrong_sizes_and_weights_that_are_not_finite_are_refused() {
        let cpu = &Device::Cpu;
        assert!(quantize(&[0.0; 3], 1, 3, cpu).is_err());
        assert!(quantize(&[0.0; 4], 1, 6, cpu).is_err());
        assert!(quantize(&[0.0, f32::NAN], 1, 2, cpu).is_err());
        assert!(quantize(&[0.0, f32::INFINITY], 1, 2, cpu).is_err());
        let src = quantize(&[0.5; 12], 3, 4, cpu).unwrap();
        assert!(dequantize(&Tensor::zeros((4, 3), DType::F32, cpu).unwrap(), &src).is_err());
        assert!(dequantize(&Tensor::zeros((3, 4), DType::F64, cpu).unwrap(), &src).is_err());
        assert!(dequantize(&Tensor::zeros((4, 3), DType::F32, cpu).unwrap().t().unwrap(), &src).is_err());
    }

    #[test]
    fn the_size_of_a_quantised_matrix_is_what_the_plan_counts() {
        let (rows, cols) = (48, 80);
        let src = quantize(&random(rows * cols, 3), rows, cols, &Device::Cpu).unwrap();
        let tensors = [&src.codes, &src.absmax, &src.nested_absmax];
        let bytes: usize = tensors.iter().map(|t| t.elem_count() * t.dtype().size_in_bytes()).sum();
        assert_eq!(Nf4::bytes(rows * cols), bytes + 4);
    }
}
