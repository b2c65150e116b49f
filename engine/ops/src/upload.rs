//! Values from the host into a planned buffer, from one buffer to another, and back to the host.

use candle_core::{CpuStorage, DType, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{
    CudaStorage, Error, Storage,
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

/// Sets every element of `dst` (f32 or u8, or 16-bit on a card; a matrix view or contiguous) to zero.
pub fn clear(dst: &Tensor) -> Result<()> {
    dst.inplace_op1(&Clear)
}

/// Copies `src` over `dst`: of one shape and device, both f32 or u8, contiguous and in storages of their own. On a card the driver does
/// it, where the tensor library would load a kernel of its own, which it has for fewer cards than Hearth.
pub fn copy(dst: &Tensor, src: &Tensor) -> Result<()> {
    if dst.dims() != src.dims() || dst.dtype() != src.dtype() || !dst.is_contiguous() || !src.is_contiguous() {
        bail!("copy: {:?} {:?} over {:?} {:?}", src.dtype(), src.layout(), dst.dtype(), dst.layout());
    }
    dst.inplace_op1(&Copy { src })
}

/// The values of a contiguous tensor of floats as f32. From a card comes the view alone, where the tensor library would bring all of its
/// storage, and the host converts.
pub fn download(src: &Tensor) -> Result<Vec<f32>> {
    #[cfg(feature = "cuda")]
    {
        let (storage, layout) = src.storage_and_layout();
        if let Storage::Cuda(storage) = &*storage {
            let Some((start, end)) = layout.contiguous_offsets() else {
                bail!("download: expected a contiguous tensor, got {layout:?}")
            };
            let device = storage.device();
            return Ok(match &storage.slice {
                CudaStorageSlice::F32(slice) => device.clone_dtoh(&slice.slice(start..end))?,
                CudaStorageSlice::F16(slice) => {
                    device.clone_dtoh(&slice.slice(start..end))?.into_iter().map(half::f16::to_f32).collect()
                }
                CudaStorageSlice::BF16(slice) => {
                    device.clone_dtoh(&slice.slice(start..end))?.into_iter().map(half::bf16::to_f32).collect()
                }
                _ => bail!("download: no floats in {:?}", storage.dtype()),
            });
        }
    }
    src.flatten_all()?.to_dtype(DType::F32)?.to_vec1()
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
        if let CpuStorage::U8(_) = storage {
            host::values_mut::<u8>(storage, layout)?.fill(0);
            return Ok(());
        }
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

struct Copy<'a> {
    src: &'a Tensor,
}

impl InplaceOp1 for Copy<'_> {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        fn copy<T: host::Element>(storage: &mut CpuStorage, layout: &Layout, src: &Tensor) -> Result<()> {
            let dst = host::values_mut::<T>(storage, layout)?;
            host::read::<T, ()>(src, |src| {
                dst.copy_from_slice(src);
                Ok(())
            })
        }
        match storage {
            CpuStorage::U8(_) => copy::<u8>(storage, layout, self.src),
            _ => copy::<f32>(storage, layout, self.src),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let (dst, src) = (cuda::matrix(storage, layout)?, cuda::operand(self.src)?);
        let bytes = dst.n_rows * dst.n_cols * dst.dtype.size_in_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let stream = storage.device().cuda_stream();
        let copy = || {
            stream.context().bind_to_thread()?;
            // SAFETY: both views are contiguous, of as many bytes, and lie inside storages that the operation holds.
            unsafe { result::memcpy_dtod_async(dst.pointer, src.pointer, bytes, stream.cu_stream()) }
        };
        copy().map_err(|error| Error::Msg(format!("copy: {error}")))
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

    #[test]
    fn copy_touches_only_the_view_and_takes_nothing_that_does_not_fit() -> Result<()> {
        let device = candle_core::Device::Cpu;
        let buffer = Tensor::new(&[9u8, 9, 9, 9], &device)?;
        copy(&buffer.narrow(0, 1, 2)?, &Tensor::new(&[1u8, 2], &device)?)?;
        assert_eq!(buffer.to_vec1::<u8>()?, [9, 1, 2, 9]);
        clear(&buffer.narrow(0, 2, 1)?)?;
        assert_eq!(buffer.to_vec1::<u8>()?, [9, 1, 0, 9]);
        assert!(copy(&buffer, &Tensor::new(&[1u8], &device)?).is_err());
        assert!(copy(&buffer, &Tensor::new(&[1u32, 2, 3, 4], &device)?).is_err());
        Ok(())
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn on_the_card_a_copy_touches_its_view_and_nothing_else() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let buffer = Tensor::new(&[9u8, 9, 9, 9], &card)?;
        copy(&buffer.narrow(0, 1, 2)?, &Tensor::new(&[1u8, 2], &card)?)?;
        assert_eq!(buffer.to_vec1::<u8>()?, [9, 1, 2, 9]);
        clear(&buffer.narrow(0, 2, 1)?)?;
        assert_eq!(buffer.to_vec1::<u8>()?, [9, 1, 0, 9]);
        Ok(())
    }

    #[test]
    fn download_gives_the_view_in_order_as_f32() -> Result<()> {
        for device in devices() {
            let table = random(&[5, 4], 1)?;
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let table = table.to_dtype(dtype)?;
                let want = values(&table.narrow(0, 1, 3)?.to_dtype(DType::F32)?)?;
                assert_eq!(download(&table.to_device(&device)?.narrow(0, 1, 3)?)?, want, "{dtype:?} on {device:?}");
            }
        }
        Ok(())
    }

    /// The processor, and a card where there is one.
    fn devices() -> Vec<candle_core::Device> {
        #[cfg(feature = "cuda")]
        return [candle_core::Device::Cpu].into_iter().chain(crate::test_support::card()).collect();
        #[cfg(not(feature = "cuda"))]
        vec![candle_core::Device::Cpu]
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn on_the_card_both_touch_their_view_and_nothing_else() -> Result<()> {
        use candle_core::Device;
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
