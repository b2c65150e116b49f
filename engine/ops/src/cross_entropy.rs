//! Cross-entropy of supervised rows, its gradient in place of the logits.
//!
//! For a row of logits `z` and its label `t`: `lse = log sum exp z`, `loss = lse - z[t]`,
//! `d loss / d z = exp(z - lse) - [t]`. Logits are read twice and never copied.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, DType, backend::BackendStorage};

use super::cpu::{Matrix, flat, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;
use super::math::{exp, max, vectorised};
#[cfg(feature = "cuda")]
use super::rows::vector;

/// Writes `[lse, loss]` of every row into `stats` (f32 `[n, 2]`). `logits` is `[n, v]`, f32, or 16-bit on a card;
/// `labels` is u32 `[n]`, each below `v` (on a card nothing fails past it: the row's loss is NaN).
pub fn cross_entropy(stats: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<()> {
    let (n, _) = logits.dims2()?;
    if stats.dims() != [n, 2] || labels.elem_count() != n {
        bail!("cross_entropy: stats {:?}, logits {:?}, labels {:?}", stats.dims(), logits.dims(), labels.dims());
    }
    stats.inplace_op1(&Forward { logits, labels })
}

/// Replaces `logits` (`[n, v]`) by `scale * d loss / d logits`, given `stats` from [`cross_entropy`].
pub fn cross_entropy_backward(logits: &Tensor, stats: &Tensor, labels: &Tensor, scale: f32) -> Result<()> {
    let (n, _) = logits.dims2()?;
    if stats.dims() != [n, 2] || labels.elem_count() != n {
        bail!("cross_entropy_backward: stats {:?}, labels {:?}, {n} rows", stats.dims(), labels.dims());
    }
    logits.inplace_op1(&Backward { stats, labels, scale })
}

struct Forward<'a> {
    logits: &'a Tensor,
    labels: &'a Tensor,
}

impl InplaceOp1 for Forward<'_> {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (logits, z_layout) = self.logits.storage_and_layout();
        let (labels, l_layout) = self.labels.storage_and_layout();
        let logits: Matrix = matrix(&logits, z_layout)?;
        let labels: &[u32] = flat(&labels, l_layout)?;
        if let Some(&t) = labels.iter().find(|&&t| t as usize >= logits.n_cols) {
            bail!("cross_entropy: label {t} past {} logits", logits.n_cols);
        }
        let stats = matrix_mut::<f32>(storage, layout)?;
        use rayon::prelude::*;
        stats.data.par_chunks_mut(stats.stride).enumerate().for_each(|(i, out)| {
            let z = logits.row(i);
            let (m, sum) = vectorised(
                #[inline(always)]
                || {
                    let m = max(z);
                    let mut lanes = [0f32; 8];
                    let (z8, rest) = z.as_chunks::<8>();
                    for z in z8 {
                        for j in 0..8 {
                            lanes[j] += exp(z[j] - m);
                        }
                    }
                    let tail: f32 = rest.iter().map(|&z| exp(z - m)).sum();
                    (m, lanes.iter().sum::<f32>() + tail)
                },
            );
            let lse = m + sum.ln();
            out[0] = lse;
            out[1] = lse - z[labels[i] as usize];
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        const N_THREADS: usize = 512;
        let (stats, logits) = (cuda::matrix(storage, layout)?, cuda::operand(self.logits)?);
        check_stats("cross_entropy", &stats)?;
        let labels = vector("cross_entropy", self.labels, DType::U32)?;
        let arguments =
            [stats.at(), stats.stride.into(), logits.at(), logits.stride.into(), labels.at(), logits.n_cols.into()];
        let function = format!("cross_entropy_{}", cuda::suffix(logits.dtype)?);
        KERNELS.launch(storage.device(), &function, [logits.n_rows, 1, 1], N_THREADS, 0, &arguments)
    }
}

struct Backward<'a> {
    stats: &'a Tensor,
    labels: &'a Tensor,
    scale: f32,
}

impl InplaceOp1 for Backward<'_> {
    fn name(&self) -> &'static str {
        "cross_entropy_backward"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (stats, s_layout) = self.stats.storage_and_layout();
        let (labels, l_layout) = self.labels.storage_and_layout();
        let stats: Matrix = matrix(&stats, s_layout)?;
        let labels: &[u32] = flat(&labels, l_layout)?;
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, z| {
            let lse = stats.row(i)[0];
            vectorised(
                #[inline(always)]
                || {
                    for z in z.iter_mut() {
                        *z = exp(*z - lse) * self.scale;
                    }
                },
            );
            z[labels[i] as usize] -= self.scale;
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        const N_THREADS: usize = 256;
        /// `UNROLL_BACKWARD` of cross_entropy.cu.
        const VECTORS_PER_THREAD: usize = 4;
        let (logits, stats) = (cuda::matrix(storage, layout)?, cuda::operand(self.stats)?);
        check_stats("cross_entropy_backward", &stats)?;
        let labels = vector("cross_entropy_backward", self.labels, DType::U32)?;
        let arguments = [
            logits.at(),
            logits.stride.into(),
            stats.at(),
            stats.stride.into(),
            labels.at(),
            logits.n_cols.into(),
            self.scale.into(),
        ];
        let n_vectors = (logits.n_cols * logits.dtype.size_in_bytes()).div_ceil(16);
        let grid = [logits.n_rows, n_vectors.div_ceil(N_THREADS * VECTORS_PER_THREAD), 1];
        let function = format!("cross_entropy_backward_{}", cuda::suffix(logits.dtype)?);
        KERNELS.launch(storage.device(), &function, grid, N_THREADS, 0, &arguments)
    }
}

#[cfg(feature = "cuda")]
const KERNELS: cuda::Kernels = cuda::kernels!("cross_entropy");

#[cfg(feature = "cuda")]
fn check_stats(op: &str, stats: &cuda::Matrix) -> Result<()> {
    if stats.dtype != DType::F32 {
        bail!("{op}: stats of {:?}, expected f32", stats.dtype);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_gradient, random, values, zeros};

    #[test]
    fn loss_equals_log_softmax_and_its_gradient_agrees_with_finite_differences() -> Result<()> {
        let logits = (random(&[3, 21], 1)? * 5.0)?;
        let labels = Tensor::new(&[20u32, 0, 7], logits.device())?;
        let loss = |z: &Tensor| {
            let stats = zeros(&[3, 2])?;
            cross_entropy(&stats, z, &labels)?;
            stats.narrow(1, 1, 1)
        };
        for (row, (got, label)) in values(&loss(&logits)?)?.iter().zip([20, 0, 7]).enumerate() {
            let z: Vec<f64> = logits.get(row)?.to_vec1::<f32>()?.iter().map(|&z| z as f64).collect();
            let want = z.iter().map(|z| z.exp()).sum::<f64>().ln() - z[label];
            assert!((*got as f64 - want).abs() < 1e-5, "row {row}: {got} against {want}");
        }
        let stats = zeros(&[3, 2])?;
        cross_entropy(&stats, &logits, &labels)?;
        let gradient = logits.copy()?;
        cross_entropy_backward(&gradient, &stats, &labels, 0.25)?;
        let quarter = Tensor::full(0.25f32, (3, 1), logits.device())?;
        assert_gradient(loss, &logits, &quarter, &gradient)
    }

    #[test]
    fn large_logits_neither_overflow_nor_vanish() -> Result<()> {
        let logits = Tensor::new(&[[1e4f32, 0.0, -1e4]], &candle_core::Device::Cpu)?;
        let labels = Tensor::new(&[1u32], logits.device())?;
        let stats = zeros(&[1, 2])?;
        cross_entropy(&stats, &logits, &labels)?;
        assert_eq!(values(&stats)?, [1e4, 1e4]);
        Ok(())
    }

    /// Sums are in another order and the exponential is the card's, within 2 ulp. Statistics are f32 whatever the
    /// logits; the gradient is rounded once.
    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_agree_with_the_reference_at_any_width_and_stride() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        for (n, v) in [(3, 1), (4, 21), (5, 264), (7, 50_257), (600, 4096)] {
            let labels: Vec<u32> = (0..n).map(|i| (i * 7919 + v - 1) as u32 % v as u32).collect();
            let labels = Tensor::new(labels, &candle_core::Device::Cpu)?;
            let inputs = [(random(&[n, v + 11], 1)? * 8.0)?, labels];
            for (dtype, tolerance) in [(DType::F32, 5e-6), (DType::F16, 1e-3), (DType::BF16, 5e-3)] {
                let stats = |inputs: &[Tensor]| -> Result<Tensor> {
                    let logits = inputs[0].narrow(1, 3, v)?;
                    let stats = Tensor::zeros((n, 2), DType::F32, logits.device())?;
                    cross_entropy(&stats, &logits, &inputs[1])?;
                    Ok(stats)
                };
                crate::test_support::assert_same_on_card(&card, &inputs, (dtype, 5e-6), |inputs| {
                    Ok(vec![stats(inputs)?])
                })?;
                crate::test_support::assert_same_on_card(&card, &inputs, (dtype, tolerance), |inputs| {
                    let gradient = inputs[0].copy()?;
                    cross_entropy_backward(&gradient.narrow(1, 3, v)?, &stats(inputs)?, &inputs[1], 0.25)?;
                    // Beside the view all is as it was; apart from it, since its scale is another.
                    let beside = Tensor::cat(&[gradient.narrow(1, 0, 3)?, gradient.narrow(1, 3 + v, 8)?], 1)?;
                    Ok(vec![gradient.narrow(1, 3, v)?, beside])
                })?;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn on_the_card_infinite_logits_add_nothing_and_a_label_past_the_vocabulary_has_no_loss() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let logits = Tensor::new(&[[1e4f32, f32::NEG_INFINITY, -1e4], [0.0, 1e4, 0.0]], &card)?;
        let labels = Tensor::new(&[2u32, 3], &card)?;
        let stats = Tensor::zeros((2, 2), DType::F32, &card)?;
        cross_entropy(&stats, &logits, &labels)?;
        let stats = values(&stats.to_device(&candle_core::Device::Cpu)?)?;
        assert_eq!(stats[..3], [1e4, 2e4, 1e4]);
        assert!(stats[3].is_nan());
        Ok(())
    }
}
