//! Views of processor storage, shared by the references of all operations.

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor, bail};
use rayon::prelude::*;

use super::host::{self, Element};

/// A row-major matrix whose rows may lie further apart than they are wide.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T = f32> {
    data: &'a [T],
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) stride: usize,
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// Row `i`, `n_cols` long.
    pub(crate) fn row(&self, i: usize) -> &'a [T] {
        &self.data[i * self.stride..][..self.n_cols]
    }

    pub(crate) fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }
}

/// The same, writable.
pub(crate) struct MatrixMut<'a, T = f32> {
    pub(crate) data: &'a mut [T],
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) stride: usize,
}

impl<T: Send> MatrixMut<'_, T> {
    /// Calls `f(row index, row)` for every row, rows spread over the threads.
    pub(crate) fn par_rows(&mut self, f: impl Fn(usize, &mut [T]) + Sync + Send) {
        let n_cols = self.n_cols;
        // Enough rows a task that scheduling costs nothing beside the work.
        let min_rows = (4096 / n_cols.max(1)).max(1);
        self.data
            .par_chunks_mut(self.stride)
            .with_min_len(min_rows)
            .enumerate()
            .for_each(|(i, row)| f(i, &mut row[..n_cols]));
    }
}

/// Start, rows, columns and row stride of a layout of one or two dimensions with contiguous rows; leading dimensions
/// of more are folded into rows where they are contiguous.
pub(crate) fn matrix_layout(layout: &Layout) -> Result<(usize, usize, usize, usize)> {
    let (dims, strides) = (layout.dims(), layout.stride());
    let (n_rows, n_cols, stride, inner) = match dims.len() {
        1 => (1, dims[0], dims[0], strides[0]),
        2 => (dims[0], dims[1], if dims[0] > 1 { strides[0] } else { dims[1] }, strides[1]),
        _ if layout.is_contiguous() => {
            let n_cols = dims[dims.len() - 1];
            (layout.shape().elem_count() / n_cols.max(1), n_cols, n_cols, 1)
        }
        _ => bail!("expected a matrix with contiguous rows, got shape {dims:?} strides {strides:?}"),
    };
    if n_cols > 1 && inner != 1 {
        bail!("expected contiguous rows, got shape {dims:?} strides {strides:?}");
    }
    Ok((layout.start_offset(), n_rows, n_cols, stride))
}

fn span(n_rows: usize, n_cols: usize, stride: usize) -> usize {
    if n_rows == 0 { 0 } else { (n_rows - 1) * stride + n_cols }
}

/// A tensor's processor storage; an error for tensors on a card.
pub(crate) fn cpu_storage(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("this operation's processor reference was given a tensor that is not in processor memory"),
    }
}

/// Reads a tensor as a matrix.
pub(crate) fn matrix<'a, T: Element>(storage: &'a Storage, layout: &Layout) -> Result<Matrix<'a, T>> {
    let (start, n_rows, n_cols, stride) = matrix_layout(layout)?;
    let data = cpu_storage(storage)?.as_slice::<T>()?;
    Ok(Matrix { data: &data[start..start + span(n_rows, n_cols, stride)], n_rows, n_cols, stride })
}

/// Writes a destination as a matrix.
pub(crate) fn matrix_mut<'a, T: Element>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<MatrixMut<'a, T>> {
    let (start, n_rows, n_cols, stride) = matrix_layout(layout)?;
    let Some(data) = T::vector(storage) else { bail!("expected a destination of {:?}", T::DTYPE) };
    Ok(MatrixMut { data: &mut data[start..start + span(n_rows, n_cols, stride)], n_rows, n_cols, stride })
}

/// Fails with the shapes where two operands don't fit.
pub(crate) fn check_shape(op: &str, name: &str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.dims() != expected {
        bail!("{op}: {name} has shape {:?}, expected {expected:?}", tensor.dims());
    }
    Ok(())
}

/// Fails where an operand is not f32.
pub(crate) fn check_f32(op: &str, name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype() != DType::F32 {
        bail!("{op}: {name} is {:?}, expected f32", tensor.dtype());
    }
    Ok(())
}

/// A pointer that tasks write through at places that do not meet.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut(pub(crate) *mut f32);

// SAFETY: whoever shares the pointer promises, at the place of use, that tasks write disjoint elements.
unsafe impl Send for SharedMut {}
// SAFETY: as above.
unsafe impl Sync for SharedMut {}

impl SharedMut {
    /// The pointer; a method so that closures capture the whole wrapper.
    pub(crate) fn get(self) -> *mut f32 {
        self.0
    }
}

/// All elements of a contiguous tensor.
pub(crate) fn flat<'a, T: Element>(storage: &'a Storage, layout: &Layout) -> Result<&'a [T]> {
    host::values(cpu_storage(storage)?, layout)
}
