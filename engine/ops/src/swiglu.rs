//! SwiGLU (Shazeer 2020, arXiv:2002.05202): `y = silu(gate) * up`, gate and up side by side in one buffer.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};

use super::cpu::{Matrix, check_shape, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;
use super::math::{sigmoid, vectorised};

/// `dst = silu(gate) * up`. `dst` is `[n, f]`, `gate_up` is `[n, 2f]`, gate first; f32.
pub fn swiglu(dst: &Tensor, gate_up: &Tensor) -> Result<()> {
    let (n, f) = dst.dims2()?;
    check_shape("swiglu", "gate_up", gate_up, &[n, 2 * f])?;
    dst.inplace_op1(&Forward { gate_up })
}

/// Replaces `gate_up` (`[n, 2f]`) by its gradient, given `dy` (`[n, f]`):
/// `d gate = dy up (s + gate s (1 - s))`, `d up = dy gate s`, with `s = sigmoid(gate)`.
pub fn swiglu_backward(gate_up: &Tensor, dy: &Tensor) -> Result<()> {
    let (n, f) = dy.dims2()?;
    check_shape("swiglu_backward", "gate_up", gate_up, &[n, 2 * f])?;
    gate_up.inplace_op1(&Backward { dy })
}

struct Forward<'a> {
    gate_up: &'a Tensor,
}

impl InplaceOp1 for Forward<'_> {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (gate_up, gu_layout) = self.gate_up.storage_and_layout();
        let gate_up: Matrix = matrix(&gate_up, gu_layout)?;
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, dst| {
            let (gate, up) = gate_up.row(i).split_at(dst.len());
            vectorised(
                #[inline(always)]
                || {
                    for ((y, g), u) in dst.iter_mut().zip(gate).zip(up) {
                        *y = g * sigmoid(*g) * u;
                    }
                },
            );
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let dst = cuda::matrix(storage, layout)?;
        let gate_up = cuda::operand(self.gate_up)?;
        launch("swiglu", storage.device(), dst, gate_up, dst.n_cols)
    }
}

struct Backward<'a> {
    dy: &'a Tensor,
}

impl InplaceOp1 for Backward<'_> {
    fn name(&self) -> &'static str {
        "swiglu_backward"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (dy, dy_layout) = self.dy.storage_and_layout();
        let dy: Matrix = matrix(&dy, dy_layout)?;
        let mut gate_up = matrix_mut::<f32>(storage, layout)?;
        if dy.n_rows != gate_up.n_rows {
            bail!("swiglu_backward: {} rows of gradient for {}", dy.n_rows, gate_up.n_rows);
        }
        gate_up.par_rows(|i, row| {
            let dy = dy.row(i);
            let (gate, up) = row.split_at_mut(dy.len());
            vectorised(
                #[inline(always)]
                || {
                    for ((g, u), d) in gate.iter_mut().zip(up).zip(dy) {
                        let s = sigmoid(*g);
                        let silu = *g * s;
                        let slope = s + silu * (1.0 - s);
                        *g = d * *u * slope;
                        *u = d * silu;
                    }
                },
            );
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let gate_up = cuda::matrix(storage, layout)?;
        let dy = cuda::operand(self.dy)?;
        launch("swiglu_backward", storage.device(), gate_up, dy, dy.n_cols)
    }
}

/// Launches one of the two kernels: a destination and an operand, `f` columns of activation.
#[cfg(feature = "cuda")]
fn launch(name: &str, device: &candle_core::CudaDevice, dst: cuda::Matrix, src: cuda::Matrix, f: usize) -> Result<()> {
    const KERNELS: cuda::Kernels = cuda::kernels!("swiglu");
    const N_THREADS: usize = 256;
    cuda::check_dtypes("swiglu", &[dst, src])?;
    let vectors = dst.has_vectors() && src.has_vectors() && (f * dst.dtype.size_in_bytes()).is_multiple_of(16);
    let columns = f.div_ceil(if vectors { 16 / dst.dtype.size_in_bytes() } else { 1 });
    let function = format!("{name}_{}", cuda::suffix(dst.dtype)?);
    let grid = [columns.div_ceil(N_THREADS), dst.n_rows.min(65_535), 1];
    let arguments =
        [dst.at(), dst.stride.into(), src.at(), src.stride.into(), dst.n_rows.into(), f.into(), vectors.into()];
    KERNELS.launch(device, &function, grid, N_THREADS, 0, &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_close, assert_gradient, random, zeros};

    #[test]
    fn forward_equals_its_formula_on_odd_widths() -> Result<()> {
        let gate_up = random(&[5, 46], 1)?;
        let y = zeros(&[5, 23])?;
        swiglu(&y, &gate_up)?;
        let (g, u) = (gate_up.narrow(1, 0, 23)?.contiguous()?, gate_up.narrow(1, 23, 23)?);
        assert_close(&y, &(g.silu()? * u)?, 1e-6)
    }

    #[test]
    fn gradient_agrees_with_finite_differences() -> Result<()> {
        let gate_up = (random(&[3, 14], 1)? * 3.0)?;
        let dy = random(&[3, 7], 2)?;
        let dx = gate_up.copy()?;
        swiglu_backward(&dx, &dy)?;
        let forward = |x: &Tensor| {
            let y = zeros(&[3, 7])?;
            swiglu(&y, x)?;
            Ok(y)
        };
        assert_gradient(forward, &gate_up, &dy, &dx)
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_agree_with_the_reference_on_odd_widths_and_strided_rows() -> Result<()> {
        use candle_core::DType;
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        for (n, f) in [(5, 23), (3, 512), (70_000, 8)] {
            let inputs = [(random(&[n, 2 * f + 8], 1)? * 4.0)?, random(&[n, f], 2)?];
            for case in [(DType::F32, 2e-6), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
                crate::test_support::assert_same_on_card(&card, &inputs, case, |inputs| {
                    let [wide, dy] = inputs else { unreachable!() };
                    let gate_up = wide.narrow(1, 0, 2 * f)?;
                    let y = dy.zeros_like()?;
                    swiglu(&y, &gate_up)?;
                    let dx = wide.copy()?;
                    swiglu_backward(&dx.narrow(1, 0, 2 * f)?, dy)?;
                    Ok(vec![y, dx])
                })?;
            }
        }
        Ok(())
    }
}
