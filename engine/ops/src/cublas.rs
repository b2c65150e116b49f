//! Matrix products on a card through cuBLASLt: descriptors and the chosen algorithm are kept for each shape.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaDevice;
use candle_core::cuda::cudarc::cublaslt::{result as lt, sys};
use candle_core::cuda::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::{CudaStorage, DType, Error, Layout, Result, Storage, Tensor, bail};

use super::cuda;

/// Bytes of scratch that the library may use, allocated with the first product: NVIDIA's advice for Hopper and later, ample before.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A row-major operand with any strides, of which one is 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) pointer: u64,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Elements from row to row and from column to column.
    pub(crate) strides: [usize; 2],
    pub(crate) dtype: DType,
}

/// Views a destination as an operand.
pub(crate) fn operand(storage: &CudaStorage, layout: &Layout) -> Result<Operand> {
    let ([rows, cols], [row, col]) = (layout.dims(), layout.stride()) else {
        bail!("gemm: expected a matrix, got {:?}", layout.dims())
    };
    let dtype = storage.dtype();
    let pointer = cuda::address(storage)? + (layout.start_offset() * dtype.size_in_bytes()) as u64;
    Ok(Operand { pointer, rows: *rows, cols: *cols, strides: [*row, *col], dtype })
}

/// Views a captured tensor as an operand.
pub(crate) fn operand_of(tensor: &Tensor) -> Result<Operand> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => operand(storage, layout),
        _ => bail!("a tensor in {:?} was given to a product on the card", tensor.device().location()),
    }
}

impl Operand {
    /// The columns from `start` to `end`.
    pub(crate) fn columns(self, columns: &std::ops::Range<usize>) -> Self {
        let offset_bytes = (columns.start * self.strides[1] * self.dtype.size_in_bytes()) as u64;
        Self { pointer: self.pointer + offset_bytes, cols: columns.len(), ..self }
    }
}

/// How a product's memory looks to the library, which thinks in columns: the transpose of a row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Side {
    transposed: bool,
    leading: usize,
    dtype: DType,
    /// Largest power of two up to 256 that divides the address.
    alignment: u32,
}

impl Side {
    fn new(operand: &Operand) -> Result<Self> {
        let [row, col] = operand.strides;
        // A dimension of one element has no stride of its own.
        let (transposed, leading) = if col == 1 || operand.cols == 1 {
            (false, if operand.rows == 1 { operand.cols } else { row })
        } else if row == 1 || operand.rows == 1 {
            (true, col)
        } else {
            bail!("gemm: an operand of strides {:?} has neither rows nor columns side by side", operand.strides)
        };
        let minimum = if transposed { operand.rows } else { operand.cols };
        let alignment = 1 << operand.pointer.trailing_zeros().min(8);
        Ok(Self { transposed, leading: leading.max(minimum), dtype: operand.dtype, alignment })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    ordinal: usize,
    sizes: [usize; 3],
    left: Side,
    right: Side,
    residual: Side,
    dst: Side,
}

/// Shapes that are kept. Nearly every micro-batch has a number of tokens of its own, and each number a few dozen products.
const MOST_PLANNED: usize = 4096;

/// Descriptors and algorithm of one shape.
#[derive(Clone, Copy)]
struct Planned {
    operation: sys::cublasLtMatmulDesc_t,
    left: sys::cublasLtMatrixLayout_t,
    right: sys::cublasLtMatrixLayout_t,
    residual: sys::cublasLtMatrixLayout_t,
    dst: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

struct Library {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    planned: HashMap<Key, Planned>,
}

impl Library {
    /// Gives back the descriptors of all shapes. A product that was enqueued has no more need of them.
    fn forget(&mut self) {
        self.planned.drain().for_each(|(_, planned)| {
            // SAFETY: made by `plan` and held here alone. Where one cannot be given back, its memory is all that is lost.
            unsafe {
                let _ = lt::destroy_matmul_desc(planned.operation);
                for layout in [planned.left, planned.right, planned.residual, planned.dst] {
                    let _ = lt::destroy_matrix_layout(layout);
                }
            }
        });
    }
}

// SAFETY: the library's handles and descriptors may be used from any thread, one at a time, which the mutex sees to.
unsafe impl Send for Library {}

/// `dst = alpha A B + beta residual`, sums in f32. `residual` may be `dst` itself.
pub(crate) fn product(
    device: &CudaDevice,
    dst: Operand,
    a: Operand,
    b: Operand,
    alpha: f32,
    (residual, beta): (Operand, f32),
) -> Result<()> {
    static LIBRARIES: LazyLock<Mutex<HashMap<usize, Library>>> = LazyLock::new(Mutex::default);
    let (m, n, k) = (dst.rows, dst.cols, a.cols);
    if m == 0 || n == 0 || k == 0 {
        return Ok(());
    }
    let stream = device.cuda_stream();
    let ordinal = stream.context().ordinal();
    // In columns, dstᵀ = Bᵀ Aᵀ: the right factor comes first.
    let key = Key {
        ordinal,
        sizes: [n, m, k],
        left: Side::new(&b)?,
        right: Side::new(&a)?,
        residual: Side::new(&residual)?,
        dst: Side::new(&dst)?,
    };
    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let library = match libraries.entry(ordinal) {
        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::hash_map::Entry::Vacant(entry) => {
            let handle = lt::create_handle().map_err(|error| failed("start", &key, error))?;
            // SAFETY: scratch, written before it is read by whoever uses it.
            let workspace = unsafe { device.alloc::<u8>(WORKSPACE_BYTES)? };
            entry.insert(Library { handle, workspace, planned: HashMap::new() })
        }
    };
    let planned = match library.planned.get(&key) {
        Some(planned) => *planned,
        None => {
            if library.planned.len() >= MOST_PLANNED {
                library.forget();
            }
            let planned = plan(library.handle, &key)?;
            library.planned.insert(key, planned);
            planned
        }
    };
    let (workspace, _) = library.workspace.device_ptr(&stream);
    let pointer = |address: u64| address as *const c_void;
    // SAFETY: sizes and strides were checked against the tensors by the caller; the descriptors are those of the key.
    unsafe {
        lt::matmul(
            library.handle,
            planned.operation,
            (&raw const alpha).cast(),
            (&raw const beta).cast(),
            pointer(b.pointer),
            planned.left,
            pointer(a.pointer),
            planned.right,
            pointer(residual.pointer),
            planned.residual,
            dst.pointer as *mut c_void,
            planned.dst,
            &raw const planned.algorithm,
            workspace as *mut c_void,
            WORKSPACE_BYTES,
            stream.cu_stream().cast(),
        )
    }
    .map_err(|error| failed("run", &key, error))
}

/// Makes the descriptors of a shape and takes the library's first choice of algorithm, so that the same shape is computed by the same
/// algorithm in every run.
fn plan(handle: sys::cublasLtHandle_t, key: &Key) -> Result<Planned> {
    use sys::cublasLtMatmulDescAttributes_t::{CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
    use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
    let error = |error| failed("plan", key, error);
    let [m, n, k] = key.sizes;
    let layout = |side: &Side, rows: usize, cols: usize| {
        let (rows, cols) = if side.transposed { (cols, rows) } else { (rows, cols) };
        lt::create_matrix_layout(data_type(side.dtype)?, rows as u64, cols as u64, side.leading as i64).map_err(error)
    };
    let (left, right) = (layout(&key.left, m, k)?, layout(&key.right, k, n)?);
    let (residual, dst) = (layout(&key.residual, m, n)?, layout(&key.dst, m, n)?);
    let operation =
        lt::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F)
            .map_err(error)?;
    let sides = [(CUBLASLT_MATMUL_DESC_TRANSA, &key.left), (CUBLASLT_MATMUL_DESC_TRANSB, &key.right)];
    for (attribute, side) in sides {
        let transposed = i32::from(side.transposed);
        // SAFETY: the attribute is a 32-bit cublasOperation_t, of which 0 is none and 1 is transpose.
        unsafe { lt::set_matmul_desc_attribute(operation, attribute, (&raw const transposed).cast(), 4) }
            .map_err(error)?;
    }
    let preference = lt::create_matmul_pref().map_err(error)?;
    let alignments = [
        (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &key.left),
        (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &key.right),
        (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &key.residual),
        (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &key.dst),
    ];
    let workspace_bytes = WORKSPACE_BYTES;
    // A product that is split along `k` is added up in f32, never in the 16 bits of its result.
    let reductions = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    // SAFETY: each attribute is given with its documented type: u64 bytes of workspace, u32 alignments and bits of reduction schemes;
    // what is destroyed here is used nowhere else.
    let found = unsafe {
        let attribute = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        lt::set_matmul_pref_attribute(preference, attribute, (&raw const workspace_bytes).cast(), 8).map_err(error)?;
        let attribute = Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        lt::set_matmul_pref_attribute(preference, attribute, (&raw const reductions).cast(), 4).map_err(error)?;
        for (attribute, side) in alignments {
            lt::set_matmul_pref_attribute(preference, attribute, (&raw const side.alignment).cast(), 4)
                .map_err(error)?;
        }
        let found = lt::get_matmul_algo_heuristic(handle, operation, left, right, residual, dst, preference);
        lt::destroy_matmul_pref(preference).map_err(error)?;
        found.map_err(error)?
    };
    Ok(Planned { operation, left, right, residual, dst, algorithm: found.algo })
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType_t> {
    Ok(match dtype {
        DType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        DType::F32 => sys::cudaDataType_t::CUDA_R_32F,
        _ => bail!("gemm: no product of {dtype:?}"),
    })
}

fn failed(what: &str, key: &Key, error: lt::CublasError) -> Error {
    let [n, m, k] = key.sizes;
    Error::Msg(format!("cuBLASLt could not {what} a product [{m}, {k}] x [{k}, {n}] ({key:?}): {error}"))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::gemm::{Write, gemm};
    use crate::test_support::{card, random, values};

    #[test]
    fn a_shape_that_was_forgotten_is_computed_with_the_same_bits_again() -> Result<()> {
        let Some(card) = card() else { return Ok(()) };
        let a = random(&[MOST_PLANNED + 1, 8], 1)?.to_device(&card)?;
        let b = random(&[8, 8], 2)?.to_device(&card)?;
        let dst = a.zeros_like()?;
        let product = |m: usize| gemm(&dst.narrow(0, 0, m)?, &a.narrow(0, 0, m)?, &b, 1.0, Write::Set);
        let first = || -> Result<Vec<f32>> {
            product(300)?;
            values(&dst.narrow(0, 0, 300)?.to_device(&Device::Cpu)?)
        };
        let before = first()?;
        for m in 1..=MOST_PLANNED + 1 {
            product(m)?;
        }
        assert_eq!(first()?, before);
        Ok(())
    }
}
