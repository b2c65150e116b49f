//! Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467).
//!
//! `y = x r w` with `r = 1 / sqrt(mean(x^2) + eps)` a row. With `g = dy w`, `dx = r (g - x r^2 mean(g x))`.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor};

use super::cpu::{Matrix, check_shape, flat, matrix, matrix_mut};
use super::math::{dot, dot3, vectorised};

/// `dst[i] = x[i] r_i w`. `dst` and `x` are `[n, h]`, `weight` is `[h]`; f32, statistics in f32.
pub fn rms_norm(dst: &Tensor, x: &Tensor, weight: &Tensor, eps: f32) -> Result<()> {
    check_shape("rms_norm", "x", x, dst.dims())?;
    dst.inplace_op1(&Forward { x, weight, eps })
}

/// The gradient of [`rms_norm`] by `x`. `dy` and `x` are `[n, h]`; the result is added to `dst` (the gradient that
/// passes by on the residual stream), or replaces it where `add` is false.
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
}
