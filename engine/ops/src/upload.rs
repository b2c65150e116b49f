//! Host values into a planned buffer.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{
    CudaStorage, Error,
    backend::BackendStorage,
    cuda::{
        CudaStorageSlice,
        cudarc::driver::{result, sys},
    },
};

#[cfg(feature = "cuda")]
use super::cuda;
use super::host;

/// Copies `values` into `dst`, a contiguous u32 tensor of as many elements.
pub fn upload(dst: &Tensor, values: &[u32]) -> Result<()> {
    if dst.elem_count() != values.len() {
        bail!("upload: {} values for {} elements", values.len(), dst.elem_count());
    }
    dst.inplace_op1(&Upload { values })
}

/// Sets every element of `dst` (f32, or 16-bit on a card; a matrix view or contiguous) to zero.
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

    /// `values` may be dropped when this returns: the driver has copied them to memory of its own by then.
    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = storage.device().clone();
        let place = layout.contiguous_offsets();
        let (CudaStorageSlice::U32(slice), Some((start, end))) = (&mut storage.slice, place) else {
            bail!("upload: expected a contiguous u32 destination, got {layout:?}");
        };
        if self.values.is_empty() {
            return Ok(());
        }
        device.memcpy_htod(self.values, &mut slice.slice_mut(start..end))
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

    /// The driver has a kernel for both cases.
    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let dst = cuda::matrix(storage, layout)?;
        let bytes = |elements: usize| elements * dst.dtype.size_in_bytes();
        if dst.n_rows * dst.n_cols == 0 {
            return Ok(());
        }
        let stream = storage.device().cuda_stream();
        let set = || {
            stream.context().bind_to_thread()?;
            // SAFETY: the view lies inside its storage, which this operation holds for writing; zero bytes are zeros of
            // every element type.
            unsafe {
                if dst.n_rows == 1 || dst.stride == dst.n_cols {
                    result::memset_d8_async(dst.pointer, 0, bytes(dst.n_rows * dst.n_cols), stream.cu_stream())
                } else {
                    let (pitch, width) = (bytes(dst.stride), bytes(dst.n_cols));
                    sys::cuMemsetD2D8Async(dst.pointer, pitch, 0, width, dst.n_rows, stream.cu_stream()).result()
                }
            }
        };
        set().map_err(|error| Error::Msg(format!("clear: {error}")))
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

    #[cfg(feature = "cuda")]
    #[test]
    fn on_the_card_both_touch_their_view_and_nothing_else() -> Result<()> {
        use candle_core::{DType, Device};
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let buffer = Tensor::new(&[9u32, 9, 9, 9], &card)?;
        upload(&buffer.narrow(0, 1, 2)?, &[1, 2])?;
        assert_eq!(buffer.to_vec1::<u32>()?, [9, 1, 2, 9]);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let before = random(&[7, 50], 1)?.to_dtype(dtype)?;
            let (columns, rows) = (before.to_device(&card)?, before.to_device(&card)?);
            clear(&columns.narrow(1, 3, 17)?)?;
            clear(&rows.narrow(0, 2, 4)?)?;
            let host = |t: &Tensor| values(&t.to_device(&Device::Cpu)?.to_dtype(DType::F32)?);
            let (columns, rows) = (host(&columns)?, host(&rows)?);
            for (i, before) in host(&before)?.into_iter().enumerate() {
                let (row, column) = (i / 50, i % 50);
                let kept = |is_cleared: bool| if is_cleared { 0.0 } else { before };
                assert_eq!(columns[i], kept((3..20).contains(&column)), "row {row}, column {column}");
                assert_eq!(rows[i], kept((2..6).contains(&row)), "row {row}, column {column}");
            }
        }
        Ok(())
    }
}
