//! Cross-entropy of supervised rows, its gradient in place of the logits.
//!
//! For a row of logits `z` and its label `t`: `lse = log sum exp z`, `loss = lse - z[t]`,
//! `d loss / d z = exp(z - lse) - [t]`. Logits are read twice and never copied.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};

use super::cpu::{Matrix, flat, matrix, matrix_mut};
use super::math::{exp, max, vectorised};

/// Writes `[lse, loss]` of every row into `stats` (f32 `[n, 2]`). `logits` is f32 `[n, v]`, `labels` u32 `[n]` below `v`.
pub fn cross_entropy(stats: &Tensor, logits: &Tensor, labels: &Tensor) -> Result<()> {
    let (n, _) = logits.dims2()?;
    if stats.dims() != [n, 2] || labels.elem_count() != n {
        bail!("cross_entropy: stats {:?}, logits {:?}, labels {:?}", stats.dims(), logits.dims(), labels.dims());
    }
    stats.inplace_op1(&Forward { logits, labels })
}

/// Replaces `logits` (f32 `[n, v]`) by `scale * d loss / d logits`, given `stats` from [`cross_entropy`].
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
}
