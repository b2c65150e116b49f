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
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};

use super::cpu::{cpu_storage, matrix_mut};
use super::gemm::{Write, product, threads};
#[cfg(feature = "cuda")]
use super::{cublas, cuda};

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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let buffer = cublas::operand(storage, layout)?;
        let (dst, from) = (buffer.columns(&self.to), buffer.columns(&self.from));
        cublas::product(storage.device(), dst, from, cublas::operand_of(self.m)?, self.scale, (dst, 0.0))
    }
}

/// Copies an adapter matrix into its place in a padded weight: `dst = src`, of one shape, rows at any stride. Both are
/// f32; on a card both are of one type, or an f32 `src` is rounded to the 16 bits of `dst`.
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        const KERNELS: cuda::Kernels = cuda::kernels!("lora");
        const N_THREADS: usize = 256;
        /// `ROWS` of lora.cu.
        const ROWS_PER_THREAD: usize = 4;
        let (dst, src) = (cuda::matrix(storage, layout)?, cuda::operand(self.src)?);
        if dst.dtype != src.dtype && src.dtype != candle_core::DType::F32 {
            bail!("place: {:?} into {:?}", src.dtype, dst.dtype);
        }
        let (n, n_columns, vector_elements) = (dst.n_rows, dst.n_cols, 16 / dst.dtype.size_in_bytes());
        let vectors = dst.has_vectors() && src.has_vectors() && n_columns.is_multiple_of(vector_elements);
        let n_items = n_columns / if vectors { vector_elements } else { 1 };
        // The block's threads lie over as many columns as there are, the rest over rows: a B of rank 16 is narrow.
        let log2_columns = n_items.min(N_THREADS).next_power_of_two().ilog2();
        let n_row_groups = n.div_ceil((N_THREADS >> log2_columns) * ROWS_PER_THREAD);
        let arguments = [
            dst.at(),
            dst.stride.into(),
            src.at(),
            src.stride.into(),
            n.into(),
            n_columns.into(),
            (log2_columns as i32).into(),
            vectors.into(),
        ];
        let function = format!("place_{}_{}", cuda::suffix(dst.dtype)?, cuda::suffix(src.dtype)?);
        let grid = [n_items.div_ceil(1 << log2_columns) * n_row_groups, 1, 1];
        KERNELS.launch(storage.device(), &function, grid, N_THREADS, 0, &arguments)
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

    /// A copy: bits are equal, those of an f32 rounded to the destination's type where that is narrower.
    #[cfg(feature = "cuda")]
    #[test]
    fn place_copies_and_rounds_on_the_card_and_touches_nothing_beside() -> Result<()> {
        use candle_core::{DType, Device};
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        for (n, k) in [(1, 1), (5, 37), (300, 16), (16, 4096), (70, 264), (1, 100_000)] {
            let (src, dst) = (random(&[n, k + 8], 1)?, random(&[n, k + 16], 2)?);
            for (from, to) in [
                (DType::F32, DType::F32),
                (DType::F16, DType::F16),
                (DType::BF16, DType::BF16),
                (DType::F32, DType::F16),
                (DType::F32, DType::BF16),
            ] {
                if !crate::test_support::computes_in(&card, to)? {
                    continue;
                }
                let (src, dst) = (src.to_dtype(from)?, dst.to_dtype(to)?);
                let got = dst.to_device(&card)?;
                place(&got.narrow(1, 8, k)?, &src.to_device(&card)?.narrow(1, 0, k)?)?;
                let copied = src.narrow(1, 0, k)?.to_dtype(to)?;
                let want = Tensor::cat(&[dst.narrow(1, 0, 8)?, copied, dst.narrow(1, 8 + k, 8)?], 1)?;
                let got = got.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
                assert_close(&got, &want.to_dtype(DType::F32)?, 0.0)?;
            }
        }
        Ok(())
    }
}
