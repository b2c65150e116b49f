//! The skinny products of a LoRA that rides in the padding of its group's buffers, and its placement there.
//!
//! A group is the linear layers that read one input: q/k/v, o, gate/up, down. With `N` outputs, `K` inputs and `R` the sum of
//! its members' ranks, its weight is padded to `[N + R, K + R]`:
//!
//! ```text
//!            K        R
//!        +--------+-------+
//!      N |   W    |   B   |   B block-diagonal: a member's rows meet its own columns only
//!        +--------+-------+
//!      R |   A    |   0   |
//!        +--------+-------+
//! ```
//!
//! With `X A` beside `X` and `dY B` beside `dY`, both scaled by `s = alpha / r`, one product gives the layer with its adapter:
//! `Y = [X | s X Aᵀ] [W | B]ᵀ` and `dX = [dY | s dY B] [W ; A]`.

use std::ops::Range;

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};

use super::cpu::{cpu_storage, matrix_mut};
use super::gemm::{Write, product, threads};

/// Writes `scale * X M` beside `X` inside one buffer: `buffer[:, to] = scale * buffer[:, from] M`, `M` being
/// `[from.len(), to.len()]` with any strides. `buffer` is f32 `[n, >= to.end]`, and `from` and `to` don't meet.
pub fn project(buffer: &Tensor, from: Range<usize>, to: Range<usize>, m: &Tensor, scale: f32) -> Result<()> {
    let (_, width) = buffer.dims2()?;
    let disjoint = from.end <= to.start || to.end <= from.start;
    if m.dims() != [from.len(), to.len()] || !disjoint || from.end.max(to.end) > width {
        bail!("project: columns {from:?} to {to:?} of {width} by a matrix of {:?}", m.dims());
    }
    buffer.inplace_op1(&Project { from, to, m, scale })
}

struct Project<'a> {
    from: Range<usize>,
    to: Range<usize>,
    m: &'a Tensor,
    scale: f32,
}

impl InplaceOp1 for Project<'_> {
    fn name(&self) -> &'static str {
        "lora_project"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (m, m_layout) = self.m.storage_and_layout();
        let m = &cpu_storage(&m)?.as_slice::<f32>()?[m_layout.start_offset()..];
        let strides = [m_layout.stride()[0], m_layout.stride()[1]];
        let buffer = matrix_mut::<f32>(storage, layout)?;
        let (n, k, r) = (buffer.n_rows, self.from.len(), self.to.len());
        if n == 0 || k == 0 || r == 0 {
            return Ok(());
        }
        let base = buffer.data.as_mut_ptr();
        // SAFETY: both column ranges lie inside the buffer's width and don't meet, so dst and a don't overlap; m is another
        // storage (candle holds a write lock on the buffer's).
        unsafe {
            let dst = (base.add(self.to.start), [buffer.stride, 1]);
            let a = (base.add(self.from.start).cast_const(), [buffer.stride, 1]);
            product([n, r, k], dst, a, (m.as_ptr(), strides), self.scale, Write::Set, threads(n * r * k));
        }
        Ok(())
    }
}

/// Copies an adapter matrix into its place in a padded weight: `dst = src`, both f32 of one shape, rows at any stride.
pub fn place(dst: &Tensor, src: &Tensor) -> Result<()> {
    if dst.dims() != src.dims() {
        bail!("place: {:?} into {:?}", src.dims(), dst.dims());
    }
    dst.inplace_op1(&Place { src })
}

struct Place<'a> {
    src: &'a Tensor,
}

impl InplaceOp1 for Place<'_> {
    fn name(&self) -> &'static str {
        "lora_place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (src, s_layout) = self.src.storage_and_layout();
        let src = super::cpu::matrix::<f32>(&src, s_layout)?;
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, row| row.copy_from_slice(src.row(i)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::gemm;
    use crate::test_support::{assert_close, assert_gradient, random, zeros};

    #[test]
    fn project_writes_its_columns_and_no_others() -> Result<()> {
        let buffer = random(&[6, 12], 1)?;
        let before = buffer.copy()?;
        let a = random(&[3, 8], 2)?;
        project(&buffer, 0..8, 8..11, &a.t()?, 2.0)?;
        let want = (before.narrow(1, 0, 8)?.contiguous()?.matmul(&a.t()?)? * 2.0)?;
        assert_close(&buffer.narrow(1, 8, 3)?, &want, 1e-5)?;
        assert_close(&buffer.narrow(1, 0, 8)?, &before.narrow(1, 0, 8)?, 0.0)?;
        assert_close(&buffer.narrow(1, 11, 1)?, &before.narrow(1, 11, 1)?, 0.0)?;
        assert!(project(&buffer, 0..8, 7..10, &a.t()?, 1.0).is_err());
        Ok(())
    }

    /// The algebra of the padded group with two members, against finite differences of the plain formula.
    #[test]
    fn padded_products_are_the_layer_with_its_adapter_and_its_gradient() -> Result<()> {
        let (n, k, ns, r, s) = (4, 5, [3, 2], 2, 1.5f32);
        let n_out = ns[0] + ns[1];
        let rank = 2 * r;
        let w = random(&[n_out, k], 1)?;
        let a = random(&[rank, k], 2)?;
        let b = [random(&[ns[0], r], 3)?, random(&[ns[1], r], 4)?];
        let padded = zeros(&[n_out + rank, k + rank])?;
        place(&padded.narrow(0, 0, n_out)?.narrow(1, 0, k)?, &w)?;
        place(&padded.narrow(0, n_out, rank)?.narrow(1, 0, k)?, &a)?;
        place(&padded.narrow(0, 0, ns[0])?.narrow(1, k, r)?, &b[0])?;
        place(&padded.narrow(0, ns[0], ns[1])?.narrow(1, k + r, r)?, &b[1])?;

        let plain = |x: &Tensor| -> Result<Tensor> {
            let xa = (x.matmul(&a.t()?)? * s as f64)?;
            let lora = |i: usize| xa.narrow(1, i * r, r)?.contiguous()?.matmul(&b[i].t()?);
            x.matmul(&w.t()?)? + Tensor::cat(&[lora(0)?, lora(1)?], 1)?
        };
        let x = random(&[n, k], 5)?;
        let x_buffer = zeros(&[n, k + rank])?;
        place(&x_buffer.narrow(1, 0, k)?, &x)?;
        project(&x_buffer, 0..k, k..k + rank, &a.t()?, s)?;
        let y = zeros(&[n, n_out])?;
        gemm(&y, &x_buffer, &padded.narrow(0, 0, n_out)?.t()?, 1.0, Write::Set)?;
        assert_close(&y, &plain(&x)?, 1e-5)?;

        let dy = random(&[n, n_out], 6)?;
        let dy_buffer = zeros(&[n, n_out + rank])?;
        place(&dy_buffer.narrow(1, 0, n_out)?, &dy)?;
        project(&dy_buffer, 0..ns[0], n_out..n_out + r, &b[0], s)?;
        project(&dy_buffer, ns[0]..n_out, n_out + r..n_out + rank, &b[1], s)?;
        let dx = zeros(&[n, k])?;
        gemm(&dx, &dy_buffer, &padded.narrow(1, 0, k)?, 1.0, Write::Set)?;
        assert_gradient(plain, &x, &dy, &dx)
    }
}
