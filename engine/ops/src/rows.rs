//! Rows picked by index: the embedding, and the supervised rows on their way to the head and back.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};

use super::cpu::{Matrix, flat, matrix, matrix_mut};

/// `dst[i] = src[index[i]]`. `dst` is `[m, h]`, `src` is `[n, h]`, f32; `index` is u32 `[m]`, each below `n`.
pub fn gather(dst: &Tensor, src: &Tensor, index: &Tensor) -> Result<()> {
    if dst.dim(0)? != index.elem_count() || dst.dim(1)? != src.dim(1)? {
        bail!("gather: {:?} rows of {:?} into {:?}", index.dims(), src.dims(), dst.dims());
    }
    dst.inplace_op1(&Gather { src, index })
}

/// `dst[index[i]] = src[i]`, other rows left as they are: the gradient of [`gather`] for indices that don't repeat.
/// `dst` is `[n, h]`, `src` is `[m, h]`, f32; `index` is u32 `[m]`, strictly ascending.
pub fn scatter(dst: &Tensor, src: &Tensor, index: &Tensor) -> Result<()> {
    if src.dim(0)? != index.elem_count() || dst.dim(1)? != src.dim(1)? {
        bail!("scatter: {:?} into {:?} at {:?}", src.dims(), dst.dims(), index.dims());
    }
    dst.inplace_op1(&Scatter { src, index })
}

struct Gather<'a> {
    src: &'a Tensor,
    index: &'a Tensor,
}

impl InplaceOp1 for Gather<'_> {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (src, s_layout) = self.src.storage_and_layout();
        let (index, i_layout) = self.index.storage_and_layout();
        let src: Matrix = matrix(&src, s_layout)?;
        let index: &[u32] = flat(&index, i_layout)?;
        if let Some(&i) = index.iter().find(|&&i| i as usize >= src.n_rows) {
            bail!("gather: index {i} past {} rows", src.n_rows);
        }
        matrix_mut::<f32>(storage, layout)?.par_rows(|i, dst| dst.copy_from_slice(src.row(index[i] as usize)));
        Ok(())
    }
}

struct Scatter<'a> {
    src: &'a Tensor,
    index: &'a Tensor,
}

impl InplaceOp1 for Scatter<'_> {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (src, s_layout) = self.src.storage_and_layout();
        let (index, i_layout) = self.index.storage_and_layout();
        let src: Matrix = matrix(&src, s_layout)?;
        let index: &[u32] = flat(&index, i_layout)?;
        let dst = matrix_mut::<f32>(storage, layout)?;
        for (i, &row) in index.iter().enumerate() {
            if row as usize >= dst.n_rows || (i > 0 && index[i - 1] >= row) {
                bail!("scatter: index {row} at {i} is past {} rows or not ascending", dst.n_rows);
            }
            let start = row as usize * dst.stride;
            dst.data[start..start + dst.n_cols].copy_from_slice(src.row(i));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_close, assert_gradient, random, zeros};

    #[test]
    fn gather_picks_rows_and_scatter_is_its_gradient() -> Result<()> {
        let src = random(&[5, 3], 1)?;
        let index = Tensor::new(&[1u32, 4], src.device())?;
        let forward = |x: &Tensor| {
            let y = zeros(&[2, 3])?;
            gather(&y, x, &index)?;
            Ok(y)
        };
        assert_close(&forward(&src)?, &src.index_select(&index, 0)?, 0.0)?;
        let dy = random(&[2, 3], 2)?;
        let dx = zeros(&[5, 3])?;
        scatter(&dx, &dy, &index)?;
        assert_gradient(forward, &src, &dy, &dx)
    }

    #[test]
    fn an_index_past_the_rows_is_refused() -> Result<()> {
        let index = Tensor::new(&[5u32], &candle_core::Device::Cpu)?;
        assert!(gather(&zeros(&[1, 3])?, &random(&[5, 3], 1)?, &index).is_err());
        assert!(scatter(&zeros(&[5, 3])?, &random(&[1, 3], 1)?, &index).is_err());
        Ok(())
    }
}
