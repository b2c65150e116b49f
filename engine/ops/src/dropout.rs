//! Dropout of adapter inputs, replayed instead of stored.
//!
//! Element `i` of a call is kept where word `i % 4` of `Philox4x32-10(key = seed, counter = i / 4)` is at least
//! `p * 2^32`; kept elements are scaled by `1 / (1 - p)`. The generator is counter-based (Salmon et al. 2011, "Parallel
//! random numbers: as easy as 1, 2, 3"), so a recomputed forward pass and the backward pass see the same mask without a byte of it being kept.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};

use super::cpu::{Matrix, check_shape, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;

/// The mask of one call: a seed, unique to step, micro-batch, layer and group, and the probability of a zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Key of the generator.
    pub seed: u64,
    /// Probability of a zero, in [0, 1).
    pub p: f32,
    /// Row of the mask that the first row of a call takes: a part of a batch is masked as it is in the whole.
    pub first_row: usize,
}

impl Dropout {
    fn scale(self) -> f32 {
        1.0 / (1.0 - self.p)
    }

    fn threshold(self) -> u32 {
        (self.p as f64 * 4_294_967_296.0) as u32
    }

    /// Calls `f` with each element of row `row` and its factor: 0 or `1 / (1 - p)`. Rows are padded to whole counters, so
    /// that they are independent.
    fn row(self, row: usize, n_cols: usize, mut f: impl FnMut(usize, f32)) {
        let counters = n_cols.div_ceil(4);
        for c in 0..counters {
            let words = philox4x32(self.seed, ((self.first_row + row) * counters + c) as u64);
            for (w, word) in words.iter().enumerate().take(n_cols - c * 4) {
                f(c * 4 + w, if *word >= self.threshold() { self.scale() } else { 0.0 });
            }
        }
    }
}

/// `dst = mask * x`; both `[n, k]`, f32, or 16-bit on a card.
pub fn dropout(dst: &Tensor, x: &Tensor, mask: Dropout) -> Result<()> {
    check_shape("dropout", "x", x, dst.dims())?;
    dst.inplace_op1(&Apply { x, mask, add: false })
}

/// `dst += mask * dy`: the gradient of [`dropout`], added to what is there.
pub fn dropout_backward(dst: &Tensor, dy: &Tensor, mask: Dropout) -> Result<()> {
    check_shape("dropout_backward", "dy", dy, dst.dims())?;
    dst.inplace_op1(&Apply { x: dy, mask, add: true })
}

struct Apply<'a> {
    x: &'a Tensor,
    mask: Dropout,
    add: bool,
}

impl InplaceOp1 for Apply<'_> {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (x, x_layout) = self.x.storage_and_layout();
        let x: Matrix = matrix(&x, x_layout)?;
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, dst| {
            let x = x.row(i);
            if self.add {
                self.mask.row(i, x.len(), |j, factor| dst[j] += factor * x[j]);
            } else {
                self.mask.row(i, x.len(), |j, factor| dst[j] = factor * x[j]);
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        const KERNELS: cuda::Kernels = cuda::kernels!("dropout");
        const N_THREADS: usize = 256;
        /// `VECTORS` of dropout.cu.
        const VECTORS_PER_THREAD: usize = 2;
        let (dst, x) = (cuda::matrix(storage, layout)?, cuda::operand(self.x)?);
        cuda::check_dtypes("dropout", &[dst, x])?;
        let (k, element_bytes) = (dst.n_cols, dst.dtype.size_in_bytes());
        let vectors = dst.has_vectors() && x.has_vectors() && (k * element_bytes).is_multiple_of(16);
        let thread_elements = if vectors { VECTORS_PER_THREAD * 16 / element_bytes } else { 4 };
        let arguments = [
            dst.at(),
            dst.stride.into(),
            x.at(),
            x.stride.into(),
            dst.n_rows.into(),
            k.into(),
            self.mask.first_row.into(),
            self.mask.seed.into(),
            self.mask.threshold().into(),
            self.mask.scale().into(),
            vectors.into(),
        ];
        let name = if self.add { "dropout_backward" } else { "dropout" };
        let grid = [k.div_ceil(thread_elements * N_THREADS), dst.n_rows.min(65_535), 1];
        let function = format!("{name}_{}", cuda::suffix(dst.dtype)?);
        KERNELS.launch(storage.device(), &function, grid, N_THREADS, 0, &arguments)
    }
}

/// Four random words of a counter.
pub fn philox4x32(key: u64, counter: u64) -> [u32; 4] {
    const M: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut k = [key as u32, (key >> 32) as u32];
    let mut c = [counter as u32, (counter >> 32) as u32, 0, 0];
    for _ in 0..10 {
        let (p0, p1) = (M[0] as u64 * c[0] as u64, M[1] as u64 * c[2] as u64);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(W[0]), k[1].wrapping_add(W[1])];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_close, assert_gradient, random, values, zeros};

    #[test]
    fn philox_equals_its_authors_known_answer() {
        // kat_vectors of the Random123 distribution: philox4x32 10, zero counter and key.
        assert_eq!(philox4x32(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }

    #[test]
    fn the_mask_keeps_its_share_and_the_mean_and_replays_exactly() -> Result<()> {
        let x = Tensor::ones((64, 127), candle_core::DType::F32, &candle_core::Device::Cpu)?;
        let mask = Dropout { seed: 7, p: 0.25, first_row: 0 };
        let (a, b) = (zeros(&[64, 127])?, zeros(&[64, 127])?);
        dropout(&a, &x, mask)?;
        dropout(&b, &x, mask)?;
        let a = values(&a)?;
        assert_eq!(a, values(&b)?);
        let kept = a.iter().filter(|&&x| x > 0.0).count() as f64 / a.len() as f64;
        assert!((kept - 0.75).abs() < 0.02, "{kept} kept");
        dropout(&b, &x, Dropout { seed: 8, p: 0.25, first_row: 0 })?;
        assert_ne!(a, values(&b)?);
        Ok(())
    }

    #[test]
    fn a_part_is_masked_as_it_is_in_the_whole() -> Result<()> {
        let x = random(&[9, 13], 1)?;
        let mask = Dropout { seed: 5, p: 0.4, first_row: 0 };
        let (whole, part) = (zeros(&[9, 13])?, zeros(&[4, 13])?);
        dropout(&whole, &x, mask)?;
        dropout(&part, &x.narrow(0, 3, 4)?, Dropout { first_row: 3, ..mask })?;
        assert_close(&part, &whole.narrow(0, 3, 4)?, 0.0)
    }

    #[test]
    fn gradient_agrees_with_finite_differences_and_adds() -> Result<()> {
        let mask = Dropout { seed: 3, p: 0.5, first_row: 0 };
        let (x, dy) = (random(&[3, 7], 1)?, random(&[3, 7], 2)?);
        let dx = zeros(&[3, 7])?;
        dropout_backward(&dx, &dy, mask)?;
        let forward = |x: &Tensor| {
            let y = zeros(&[3, 7])?;
            dropout(&y, x, mask)?;
            Ok(y)
        };
        assert_gradient(forward, &x, &dy, &dx)?;
        let twice = dx.copy()?;
        dropout_backward(&twice, &dy, mask)?;
        assert_close(&twice, &(dx * 2.0)?, 1e-6)
    }

    /// The mask must be the same one, and each operation is rounded alone, so all bits are equal: those of the
    /// reference in f32, rounded to the element type.
    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_equal_the_reference_bit_by_bit() -> Result<()> {
        use candle_core::{DType, Device};
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let mask = Dropout { seed: 0x0123_4567_89ab_cdef, p: 0.3, first_row: 3 };
        for (n, k) in [(1, 1), (5, 37), (64, 264), (70_000, 8)] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                if !crate::test_support::computes_in(&card, dtype)? {
                    continue;
                }
                let [x, wide] = [random(&[n, k], 1)?.to_dtype(dtype)?, random(&[n, k + 8], 2)?.to_dtype(dtype)?];
                let run = |x: &Tensor, wide: &Tensor| -> Result<[Tensor; 2]> {
                    let (dst, added) = (wide.copy()?, wide.copy()?);
                    dropout(&dst.narrow(1, 8, k)?, x, mask)?;
                    dropout_backward(&added.narrow(1, 0, k)?, x, mask)?;
                    Ok([dst, added])
                };
                let want = run(&x.to_dtype(DType::F32)?, &wide.to_dtype(DType::F32)?)?;
                let got = run(&x.to_device(&card)?, &wide.to_device(&card)?)?;
                for (got, want) in got.iter().zip(&want) {
                    let got = values(&got.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)?;
                    assert_eq!(got, values(&want.to_dtype(dtype)?.to_dtype(DType::F32)?)?, "{dtype:?} [{n}, {k}]");
                }
            }
        }
        Ok(())
    }
}
