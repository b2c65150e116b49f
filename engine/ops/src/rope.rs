//! Rotary positions (Su et al. 2021, arXiv:2104.09864) in the halves convention of Hugging Face:
//! element `i` of a head's first half turns with element `i` of its second half by `position * frequency[i]`.

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};

use super::cpu::{Matrix, flat, matrix, matrix_mut};

/// Rotates the first `n_heads` heads of every row of `dst` (`[n, >= n_heads * head_dim]`, f32) in place by the row's
/// position (`positions`: u32 `[n]`). `table` is [`table`]'s. The rotation is orthogonal, so its gradient is the rotation
/// by the negative angle: `inverse`.
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
}
