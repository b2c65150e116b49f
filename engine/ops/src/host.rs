//! Borrowing the host memory behind candle tensors, with the checks that every operation needs.

use std::cell::Cell;

use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Storage, Tensor, WithDType, bail};

/// Element types whose host vector can be borrowed for writing.
pub(crate) trait Element: WithDType {
    /// The vector of a storage of this element type.
    fn vector(storage: &mut CpuStorage) -> Option<&mut Vec<Self>>;
}

macro_rules! element {
    ($($ty:ty => $variant:ident),*) => {$(
        impl Element for $ty {
            fn vector(storage: &mut CpuStorage) -> Option<&mut Vec<Self>> {
                match storage {
                    CpuStorage::$variant(values) => Some(values),
                    _ => None,
                }
            }
        }
    )*};
}
element!(u8 => U8, u32 => U32, f32 => F32, f64 => F64);

/// The values of a contiguous operand, in order.
pub(crate) fn values<'a, T: Element>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let (start, end) = layout.contiguous_offsets().ok_or(Error::RequiresContiguous { op: "values" })?;
    Ok(&storage.as_slice::<T>()?[start..end])
}

/// The values of a contiguous destination, in order.
pub(crate) fn values_mut<'a, T: Element>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [T]> {
    let (start, end) = layout.contiguous_offsets().ok_or(Error::RequiresContiguous { op: "values_mut" })?;
    let dtype = storage_dtype(storage);
    match T::vector(storage) {
        Some(values) => Ok(&mut values[start..end]),
        None => Err(Error::UnexpectedDType { msg: "destination of an operation", expected: T::DTYPE, got: dtype }),
    }
}

fn storage_dtype(storage: &CpuStorage) -> candle_core::DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

/// Reads a contiguous host tensor that an operation has captured. It must not share its storage with the operation's
/// destination, which is already locked for writing.
pub(crate) fn read<T: Element, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(values(storage, layout)?),
        _ => bail!("expected a tensor in host memory, got {:?}", tensor.device().location()),
    }
}

/// Lends a contiguous host tensor for writing. Calls nest, which gives one operation several destinations; the tensors
/// must not share storage.
pub(crate) fn write<T: Element, R>(tensor: &Tensor, f: impl FnOnce(&mut [T]) -> Result<R>) -> Result<R> {
    struct Lend<F, T, R> {
        f: Cell<Option<F>>,
        result: Cell<Option<R>>,
        element: std::marker::PhantomData<T>,
    }
    impl<T: Element, R, F: FnOnce(&mut [T]) -> Result<R>> InplaceOp1 for Lend<F, T, R> {
        fn name(&self) -> &'static str {
            "lend"
        }

        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
            if let Some(f) = self.f.take() {
                self.result.set(Some(f(values_mut(storage, layout)?)?));
            }
            Ok(())
        }
    }
    let lend = Lend { f: Cell::new(Some(f)), result: Cell::new(None), element: std::marker::PhantomData::<T> };
    tensor.inplace_op1(&lend)?;
    lend.result.take().ok_or_else(|| Error::Msg("a lent tensor was not visited".into()))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn several_tensors_are_written_together_through_views() -> Result<()> {
        let a = Tensor::zeros(4, DType::F32, &Device::Cpu)?;
        let b = Tensor::zeros(2, DType::U8, &Device::Cpu)?;
        write::<f32, ()>(&a.narrow(0, 1, 2)?, |a| {
            write::<u8, ()>(&b, |b| {
                a.copy_from_slice(&[1.0, 2.0]);
                b.copy_from_slice(&[3, 4]);
                Ok(())
            })
        })?;
        assert_eq!(a.to_vec1::<f32>()?, [0.0, 1.0, 2.0, 0.0]);
        assert_eq!(b.to_vec1::<u8>()?, [3, 4]);
        Ok(())
    }

    #[test]
    fn a_wrong_dtype_and_a_strided_view_are_refused() -> Result<()> {
        let a = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
        assert!(write::<u8, ()>(&a, |_| Ok(())).is_err());
        assert!(write::<f32, ()>(&a.narrow(1, 0, 2)?, |_| Ok(())).is_err());
        assert!(read::<f32, ()>(&a.narrow(1, 0, 2)?, |_| Ok(())).is_err());
        Ok(())
    }
}
