//! Rotary positions (Su et al. 2021, arXiv:2104.09864) in the halves convention of Hugging Face:
//! element `i` of a head's first half turns with element `i` of its second half by `position * frequency[i]`.

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, DType, backend::BackendStorage};

use super::cpu::{Matrix, flat, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "cuda")]
use super::rows::vector;

/// Rotates the first `n_heads` heads of every row of `dst` (`[n, >= n_heads * head_dim]`, f32, or 16-bit on a card) in
/// place by the row's position (`positions`: u32 `[n]`). `table` is [`table`]'s. The rotation is orthogonal, so its
/// gradient is the rotation by the negative angle: `inverse`. On a card nothing fails at a position past the table: its
/// row stays as it is.
pub fn rope(dst: &Tensor, positions: &Tensor, table: &Tensor, n_heads: usize, inverse: bool) -> Result<()> {
    let (n, width) = dst.dims2()?;
    let (_, head_dim) = table.dims2()?;
    if positions.elem_count() != n || n_heads * head_dim > width {
        bail!("rope: dst [{n}, {width}], {} positions, {n_heads} heads of {head_dim}", positions.elem_count());
    }
    dst.inplace_op1(&Rotate { positions, table, n_heads, inverse })
}

/// Cosines and sines of `n_positions` positions for heads of twice as many elements as there are `frequencies`: f32
/// `[n_positions, head_dim]`, cosines in the first half of a row. Angles are computed in f32, as Hugging Face does.
pub fn table(frequencies: &[f32], n_positions: usize, device: &Device) -> Result<Tensor> {
    let half = frequencies.len();
    let mut data = vec![0f32; n_positions * 2 * half];
    for (p, row) in data.chunks_exact_mut((2 * half).max(1)).enumerate() {
        for (i, &f) in frequencies.iter().enumerate() {
            let angle = p as f32 * f;
            row[i] = angle.cos();
            row[half + i] = angle.sin();
        }
    }
    Tensor::from_vec(data, (n_positions, 2 * half), device)
}

struct Rotate<'a> {
    positions: &'a Tensor,
    table: &'a Tensor,
    n_heads: usize,
    inverse: bool,
}

impl InplaceOp1 for Rotate<'_> {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (positions, p_layout) = self.positions.storage_and_layout();
        let (table, t_layout) = self.table.storage_and_layout();
        let positions: &[u32] = flat(&positions, p_layout)?;
        let table: Matrix = matrix(&table, t_layout)?;
        if let Some(&p) = positions.iter().find(|&&p| p as usize >= table.n_rows) {
            bail!("rope: position {p} past the table's {} rows", table.n_rows);
        }
        let (head_dim, half) = (table.n_cols, table.n_cols / 2);
        let sign = if self.inverse { -1.0 } else { 1.0 };
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, row| {
            let (cos, sin) = table.row(positions[i] as usize).split_at(half);
            for head in row[..self.n_heads * head_dim].chunks_exact_mut(head_dim) {
                let (a, b) = head.split_at_mut(half);
                for j in 0..half {
                    let (x, y, s) = (a[j], b[j], sign * sin[j]);
                    a[j] = x * cos[j] - y * s;
                    b[j] = y * cos[j] + x * s;
                }
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        const KERNELS: cuda::Kernels = cuda::kernels!("rope");
        const N_THREADS: usize = 256;
        /// `HEADS` of rope.cu.
        const HEADS_PER_THREAD: usize = 2;
        let dst = cuda::matrix(storage, layout)?;
        let positions = vector("rope", self.positions, DType::U32)?;
        let table = cuda::operand(self.table)?;
        if table.dtype != DType::F32 {
            bail!("rope: a table of {:?}, expected f32", table.dtype);
        }
        let (head_dim, half, element_bytes) = (table.n_cols, table.n_cols / 2, dst.dtype.size_in_bytes());
        let vectors = dst.has_vectors()
            && table.has_vectors()
            && head_dim.is_multiple_of(2)
            && (half * element_bytes).is_multiple_of(16);
        let n_columns = if vectors { half * element_bytes / 16 } else { half };
        let items_per_row = n_columns * self.n_heads.div_ceil(HEADS_PER_THREAD);
        if items_per_row == 0 {
            return Ok(());
        }
        let rows_per_block = (N_THREADS / items_per_row).max(1);
        let arguments = [
            dst.at(),
            dst.stride.into(),
            positions.at(),
            table.at(),
            table.stride.into(),
            table.n_rows.into(),
            dst.n_rows.into(),
            (self.n_heads as i32).into(),
            (head_dim as i32).into(),
            (if self.inverse { -1f32 } else { 1.0 }).into(),
            (rows_per_block as i32).into(),
            vectors.into(),
        ];
        let grid = [dst.n_rows.div_ceil(rows_per_block), 1, 1];
        KERNELS.launch(storage.device(), &format!("rope_{}", cuda::suffix(dst.dtype)?), grid, N_THREADS, 0, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_close, assert_gradient, random};

    #[test]
    fn gradient_agrees_with_finite_differences_and_the_inverse_undoes_the_rotation() -> Result<()> {
        let positions = Tensor::new(&[0u32, 5, 2], &Device::Cpu)?;
        let table = table(&[1.0, 0.1, 0.01], 8, &Device::Cpu)?;
        let x = random(&[3, 14], 1)?;
        let forward = |x: &Tensor| {
            let y = x.copy()?;
            rope(&y, &positions, &table, 2, false)?;
            Ok(y)
        };
        let dy = random(&[3, 14], 2)?;
        let dx = dy.copy()?;
        rope(&dx, &positions, &table, 2, true)?;
        assert_gradient(forward, &x, &dy, &dx)?;
        let back = forward(&x)?;
        rope(&back, &positions, &table, 2, true)?;
        assert_close(&back, &x, 1e-6)
    }

    /// f32: products and sums may be fused. 16-bit: each element is rounded once, in the inverse once more.
    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernel_agrees_with_the_reference_on_odd_heads_and_strided_rows() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        for (n, n_heads, half) in [(5, 3, 5), (7, 1, 8), (300, 5, 64), (9, 40, 64), (3, 130, 128)] {
            let frequencies: Vec<f32> = (0..half).map(|i| 0.7f32.powi(i)).collect();
            let width = n_heads * 2 * half as usize;
            let inputs = [random(&[n, width + 24], 1)?];
            for case in [(DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 1e-2)] {
                crate::test_support::assert_same_on_card(&card, &inputs, case, |inputs| {
                    let (device, positions) = (inputs[0].device(), (0..n as u32).map(|i| i * 7 % 31));
                    let positions = Tensor::new(positions.collect::<Vec<_>>(), device)?;
                    let table = table(&frequencies, 31, device)?;
                    let (once, back) = (inputs[0].copy()?, inputs[0].copy()?);
                    rope(&once.narrow(1, 8, width + 8)?, &positions, &table, n_heads, false)?;
                    rope(&back, &positions, &table, n_heads, false)?;
                    rope(&back, &positions, &table, n_heads, true)?;
                    Ok(vec![once, back])
                })?;
            }
        }
        Ok(())
    }
}
