//! Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467).
//!
//! `y = x r w` with `r = 1 / sqrt(mean(x^2) + eps)` a row. With `g = dy w`, `dx = r (g - x r^2 mean(g x))`.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, DType, backend::BackendStorage};

use super::cpu::{Matrix, check_shape, flat, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;
use super::math::{dot, dot3, vectorised};
#[cfg(feature = "cuda")]
use super::rows::vector;

/// `dst[i] = x[i] r_i w`. `dst` and `x` are `[n, h]`, f32, or 16-bit on a card; `weight` is f32 `[h]`. Statistics are
/// f32.
pub fn rms_norm(dst: &Tensor, x: &Tensor, weight: &Tensor, eps: f32) -> Result<()> {
    check_shape("rms_norm", "x", x, dst.dims())?;
    dst.inplace_op1(&Forward { x, weight, eps })
}

/// The gradient of [`rms_norm`] by `x`. `dy` and `x` are `[n, h]`; the result is added to `dst` (the gradient that
/// passes by on the residual stream), or replaces it where `add` is false. Arithmetic in f32, rounded once.
pub fn rms_norm_backward(dst: &Tensor, dy: &Tensor, x: &Tensor, weight: &Tensor, eps: f32, add: bool) -> Result<()> {
    check_shape("rms_norm_backward", "x", x, dst.dims())?;
    check_shape("rms_norm_backward", "dy", dy, dst.dims())?;
    dst.inplace_op1(&Backward { dy, x, weight, eps, add })
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

struct Forward<'a> {
    x: &'a Tensor,
    weight: &'a Tensor,
    eps: f32,
}

impl InplaceOp1 for Forward<'_> {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (x, x_layout) = self.x.storage_and_layout();
        let (w, w_layout) = self.weight.storage_and_layout();
        let x: Matrix = matrix(&x, x_layout)?;
        let w: &[f32] = flat(&w, w_layout)?;
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, dst| {
            vectorised(
                #[inline(always)]
                || {
                    let x = x.row(i);
                    let r = inverse_rms(x, self.eps);
                    for ((y, x), w) in dst.iter_mut().zip(x).zip(w) {
                        *y = x * r * w;
                    }
                },
            );
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let (dst, x) = (cuda::matrix(storage, layout)?, cuda::operand(self.x)?);
        launch("rms_norm", storage.device(), &[dst, x], self.weight, &[self.eps.into()])
    }
}

struct Backward<'a> {
    dy: &'a Tensor,
    x: &'a Tensor,
    weight: &'a Tensor,
    eps: f32,
    add: bool,
}

impl InplaceOp1 for Backward<'_> {
    fn name(&self) -> &'static str {
        "rms_norm_backward"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (dy, dy_layout) = self.dy.storage_and_layout();
        let (x, x_layout) = self.x.storage_and_layout();
        let (w, w_layout) = self.weight.storage_and_layout();
        let dy: Matrix = matrix(&dy, dy_layout)?;
        let x: Matrix = matrix(&x, x_layout)?;
        let w: &[f32] = flat(&w, w_layout)?;
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, dst| {
            vectorised(
                #[inline(always)]
                || {
                    let (x, dy) = (x.row(i), dy.row(i));
                    let r = inverse_rms(x, self.eps);
                    let c = r * r * dot3(x, dy, w) / x.len() as f32;
                    if self.add {
                        for (((d, x), dy), w) in dst.iter_mut().zip(x).zip(dy).zip(w) {
                            *d += r * (dy * w - x * c);
                        }
                    } else {
                        for (((d, x), dy), w) in dst.iter_mut().zip(x).zip(dy).zip(w) {
                            *d = r * (dy * w - x * c);
                        }
                    }
                },
            );
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let matrices = [cuda::matrix(storage, layout)?, cuda::operand(self.dy)?, cuda::operand(self.x)?];
        let last: [cuda::Argument; 2] = [self.eps.into(), self.add.into()];
        launch("rms_norm_backward", storage.device(), &matrices, self.weight, &last)
    }
}

/// Launches one of the two kernels: matrices of one shape, the destination first, then the weight and `last`.
#[cfg(feature = "cuda")]
fn launch(
    name: &str,
    device: &candle_core::CudaDevice,
    matrices: &[cuda::Matrix],
    weight: &Tensor,
    last: &[cuda::Argument],
) -> Result<()> {
    const KERNELS: cuda::Kernels = cuda::kernels!("rms_norm");
    /// `KEPT` of rms_norm.cu.
    const VECTORS_PER_THREAD: usize = 2;
    const MAX_THREADS: usize = 1024;
    cuda::check_dtypes(name, matrices)?;
    let weight = vector(name, weight, DType::F32)?;
    let (n, h, dtype) = (matrices[0].n_rows, matrices[0].n_cols, matrices[0].dtype);
    if weight.n_rows * weight.n_cols != h {
        candle_core::bail!("{name}: {} weights for rows of {h}", weight.n_rows * weight.n_cols);
    }
    let row_bytes = h * dtype.size_in_bytes();
    let vectors = matrices.iter().chain([&weight]).all(cuda::Matrix::has_vectors) && row_bytes.is_multiple_of(16);
    let n_kept_threads = (row_bytes / 16).div_ceil(VECTORS_PER_THREAD).next_multiple_of(32);
    let kept = vectors && n_kept_threads <= MAX_THREADS;
    let n_threads = if kept { n_kept_threads.max(32) } else { 256 };
    let mut arguments: Vec<cuda::Argument> = matrices.iter().flat_map(|m| [m.at(), m.stride.into()]).collect();
    arguments.extend([weight.at(), h.into()]);
    arguments.extend(last);
    arguments.push(kept.into());
    KERNELS.launch(device, &format!("{name}_{}", cuda::suffix(dtype)?), [n, 1, 1], n_threads, 0, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_close, assert_gradient, random, zeros};

    #[test]
    fn forward_equals_its_formula_on_odd_widths_and_strided_rows() -> Result<()> {
        let x = random(&[5, 37], 1)?;
        let w = random(&[37], 2)?;
        let wide = zeros(&[5, 50])?;
        let dst = wide.narrow(1, 4, 37)?;
        rms_norm(&dst, &x, &w, 1e-5)?;
        let r = ((x.sqr()?.mean_keepdim(1)? + 1e-5)?.sqrt()?).recip()?;
        assert_close(&dst, &x.broadcast_mul(&r)?.broadcast_mul(&w)?, 1e-6)
    }

    #[test]
    fn gradient_agrees_with_finite_differences() -> Result<()> {
        let x = random(&[3, 11], 1)?;
        let w = random(&[11], 2)?;
        let dy = random(&[3, 11], 3)?;
        let dx = zeros(&[3, 11])?;
        rms_norm_backward(&dx, &dy, &x, &w, 1e-5, false)?;
        let forward = |x: &Tensor| {
            let y = zeros(&[3, 11])?;
            rms_norm(&y, x, &w, 1e-5)?;
            Ok(y)
        };
        assert_gradient(forward, &x, &dy, &dx)?;
        rms_norm_backward(&dx, &dy, &x, &w, 1e-5, true)?;
        let once = zeros(&[3, 11])?;
        rms_norm_backward(&once, &dy, &x, &w, 1e-5, false)?;
        assert_close(&dx, &(once * 2.0)?, 1e-6)
    }

    /// f32: sums in another order. 16-bit: the result is rounded once, by half an ulp of the largest element at most.
    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_agree_with_the_reference_at_any_width_and_stride() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        for (n, h) in [(5, 37), (3, 8), (70, 264), (9, 4096), (2, 16_384), (2, 20_000)] {
            let inputs = [random(&[n, h], 1)?, random(&[h], 2)?, random(&[n, h], 3)?, random(&[n, h + 8], 4)?];
            for case in [(DType::F32, 5e-6), (DType::F16, 1e-3), (DType::BF16, 5e-3)] {
                crate::test_support::assert_same_on_card(&card, &inputs, case, |inputs| {
                    let [x, w, dy, wide] = inputs else { unreachable!() };
                    let w = w.to_dtype(DType::F32)?;
                    let results: Vec<Tensor> = (0..3).map(|_| wide.copy()).collect::<Result<_>>()?;
                    let view = |i: usize| results[i].narrow(1, 8, h);
                    rms_norm(&view(0)?, x, &w, 1e-5)?;
                    rms_norm_backward(&view(1)?, dy, x, &w, 1e-5, false)?;
                    rms_norm_backward(&view(2)?, dy, x, &w, 1e-5, true)?;
                    Ok(results)
                })?;
            }
        }
        Ok(())
    }
}
