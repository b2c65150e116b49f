//! Host values into a planned buffer.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};

use super::host;

/// Copies `values` into `dst`, a contiguous u32 tensor of as many elements.
pub fn upload(dst: &Tensor, values: &[u32]) -> Result<()> {
    if dst.elem_count() != values.len() {
        bail!("upload: {} values for {} elements", values.len(), dst.elem_count());
    }
    dst.inplace_op1(&Upload { values })
}

/// Sets every element of `dst` (f32, a matrix view or contiguous) to zero.
pub fn clear(dst: &Tensor) -> Result<()> {
    dst.inplace_op1(&Clear)
}

struct Upload<'a> {
    values: &'a [u32],
}

impl InplaceOp1 for Upload<'_> {
    fn name(&self) -> &'static str {
        "upload"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        host::values_mut(storage, layout)?.copy_from_slice(self.values);
        Ok(())
    }
}

struct Clear;

impl InplaceOp1 for Clear {
    fn name(&self) -> &'static str {
        "clear"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        super::cpu::matrix_mut::<f32>(storage, layout)?.par_rows(|_, row| row.fill(0.0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{random, values};

    #[test]
    fn upload_replaces_the_view_and_nothing_else() -> Result<()> {
        let buffer = Tensor::new(&[9u32, 9, 9, 9], &candle_core::Device::Cpu)?;
        upload(&buffer.narrow(0, 1, 2)?, &[1, 2])?;
        assert_eq!(buffer.to_vec1::<u32>()?, [9, 1, 2, 9]);
        assert!(upload(&buffer, &[1]).is_err());
        Ok(())
    }

    #[test]
    fn clear_touches_only_the_columns_of_the_view() -> Result<()> {
        let buffer = random(&[2, 3], 1)?;
        let before = values(&buffer)?;
        clear(&buffer.narrow(1, 1, 1)?)?;
        let after = values(&buffer)?;
        assert_eq!(after, [before[0], 0.0, before[2], before[3], 0.0, before[5]]);
        Ok(())
    }
}
