//! A graphics card: its candle device, views of its memory, and the launch of kernels that were compiled at build time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda::cudarc::driver::sys::{CU_MEMHOSTALLOC_DEVICEMAP, CUfunction_attribute, CUmemPool_attribute};
use candle_core::cuda::cudarc::driver::{
    CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchConfig, PinnedHostSlice,
    PushKernelArg, result, sys,
};
use candle_core::cuda::cudarc::nvrtc::Ptx;
use candle_core::cuda::{CudaDevice, CudaStorage, CudaStorageSlice};
use candle_core::{CpuStorage, DType, Device, Error, Layout, Result, Storage, Tensor, bail};

use super::cpu::{cpu_storage, matrix_layout};

/// The card number `ordinal`, set up for a training process: one stream, whoever asks and however often, and no events between
/// operations. What freed tensors leave in the driver's pool goes back to the card when the device is next waited for: a step allocates
/// nothing that would come quicker out of a pool that kept it, and what answers and checkpoints leave is other programs' again.
///
/// # Errors
/// Where there is no such card or no working driver.
pub fn card(ordinal: usize) -> Result<Device> {
    // One for the process: the scratch that products share, and the lack of events, need all work on a card to be in one order.
    static CARDS: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
    let mut cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = cards.get(&ordinal) {
        // As when it was made: libraries ask the thread for its context.
        let stream = device.as_cuda_device()?.cuda_stream();
        stream.context().bind_to_thread().map_err(|error| Error::Msg(error.to_string()))?;
        return Ok(device.clone());
    }
    // The default constructor's stream differs from thread to thread; a tensor read from another thread could then be read too early.
    let device = Device::new_cuda_with_stream(ordinal)?;
    let stream = device.as_cuda_device()?.cuda_stream();
    // SAFETY: all work of this process goes through this one stream, which orders it.
    unsafe { stream.context().disable_event_tracking() };
    cards.insert(ordinal, device.clone());
    Ok(device)
}

/// The compute capability, 75 for 7.5, of the code in use on a card: of the machine code or PTX that the driver chose for it. An image
/// may have nothing nearer to the card, so this is what kernels were written for, not what the card could do.
///
/// # Errors
/// Where no kernel can be loaded.
pub(crate) fn architecture(device: &CudaDevice) -> Result<i32> {
    let function = super::grad_norm::KERNELS.function(device, "sum_of_squares_total", 0)?;
    let version = function.get_attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION);
    version.map_err(|error| Error::Msg(format!("the driver does not say what its kernels were compiled for: {error}")))
}

/// Whether there are kernels for bf16 on a card: from compute capability 8.0 on.
///
/// # Errors
/// Where the device is no card, or no kernel can be loaded there.
pub fn has_bf16(device: &Device) -> Result<bool> {
    Ok(architecture(device.as_cuda_device()?)? >= 80)
}

/// Memory of a card that is taken away so that the rest is as much as a smaller card has; given back when dropped.
#[derive(Debug)]
pub struct Ballast {
    /// How much.
    pub bytes: u64,
    _memory: CudaSlice<u8>,
}

/// Takes all of the card but `free_bytes`: from here on an allocation beyond them fails as it would on a smaller card.
///
/// # Errors
/// Where less than that is free, or the driver refuses.
pub fn leave(device: &Device, free_bytes: u64) -> Result<Ballast> {
    let device = device.as_cuda_device()?;
    let stream = device.cuda_stream();
    let (free, _) = stream.context().mem_get_info().map_err(|error| Error::Msg(error.to_string()))?;
    let Some(bytes) = (free as u64).checked_sub(free_bytes) else {
        bail!("{free_bytes} bytes were to be left of the card and {free} are free")
    };
    // The driver's pool grows by so much at a time; rounded up, it would take of what was to be left.
    let bytes = bytes - bytes % (32 << 20);
    // SAFETY: the memory is never read.
    let memory = unsafe { device.alloc::<u8>(bytes as usize)? };
    Ok(Ballast { bytes, _memory: memory })
}

/// Gives the driver back what its pool holds for this process and no tensor uses.
///
/// # Errors
/// Where the device is no card or the driver doesn't answer.
pub(crate) fn trim(device: &Device) -> Result<()> {
    device.synchronize()?;
    let failed = |error: DriverError| Error::Msg(format!("giving back the pool's memory failed: {error}"));
    // SAFETY: the pool is the device's own and lives as long as its context.
    unsafe { result::mem_pool::trim_to(default_pool(device).map_err(failed)?, 0) }.map_err(failed)
}

/// The pool that tensors of a card are taken from.
fn default_pool(device: &Device) -> std::result::Result<sys::CUmemoryPool, DriverError> {
    let stream =
        device.as_cuda_device().map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_DEVICE))?.cuda_stream();
    let card = result::device::get(stream.context().ordinal() as i32)?;
    // SAFETY: the driver gave this device a moment ago.
    unsafe { result::device::get_mem_pool(card) }
}

/// Bytes of a card in use, by this process and all others.
///
/// # Errors
/// Where the device is no card or the driver doesn't answer.
pub fn used_bytes(device: &Device) -> Result<u64> {
    let stream = device.as_cuda_device()?.cuda_stream();
    let (free, total) = stream.context().mem_get_info().map_err(|error| Error::Msg(error.to_string()))?;
    Ok((total - free) as u64)
}

/// Memory of the driver's pool, from which this process's tensors on a card are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// In tensors.
    pub used_bytes: u64,
    /// Taken of the card: that, and what freed tensors left for the next ones.
    pub reserved_bytes: u64,
}

/// The pool of a card. Costs two calls to the driver, which waits for nothing.
///
/// # Errors
/// Where the device is no card, or one whose driver has no pools.
pub fn pool(device: &Device) -> Result<Pool> {
    let failed = |error: DriverError| Error::Msg(format!("the memory pool of the card could not be asked: {error}"));
    let pool = default_pool(device).map_err(failed)?;
    let bytes = |attribute: CUmemPool_attribute| {
        let mut value = 0_u64;
        // SAFETY: the pool is the device's own and lives as long as its context; both attributes are 64 bits wide.
        unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut value).cast()) }.map_err(failed)?;
        Ok::<u64, Error>(value)
    };
    Ok(Pool {
        used_bytes: bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
        reserved_bytes: bytes(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
    })
}

/// The number that a card has for life, as "2b8a4c1e-6f0d-4a6e-9d57-0c1f6d1a7e11"; of a part of a divided card, the part's.
///
/// # Errors
/// Where the device is no card or the driver doesn't answer.
pub fn uuid(device: &Device) -> Result<String> {
    let stream = device.as_cuda_device()?.cuda_stream();
    let uuid = stream.context().uuid().map_err(|error| Error::Msg(error.to_string()))?;
    let hex: Vec<String> = uuid.bytes.iter().map(|&byte| format!("{:02x}", byte as u8)).collect();
    Ok([&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(|group| group.concat()).join("-"))
}

/// A matrix in system memory that the card reads over its bus: the pages are pinned and have the same address on both sides.
pub(crate) struct HostMatrix {
    _memory: PinnedHostSlice<u8>,
    pub(crate) matrix: Matrix,
}

impl HostMatrix {
    /// Copies a contiguous matrix in system memory to pinned pages.
    ///
    /// # Errors
    /// Where the system has not so many pages to pin.
    pub(crate) fn new(tensor: &Tensor, device: &Device) -> Result<Self> {
        let ((n_rows, n_cols), dtype) = (tensor.dims2()?, tensor.dtype());
        let (storage, layout) = tensor.storage_and_layout();
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a matrix for system memory is not contiguous: {layout:?}")
        };
        // Borrowed: the embedding of a large model is a gigabyte, and is there a second time once it is pinned.
        let bytes = match cpu_storage(&storage)? {
            CpuStorage::BF16(values) => bytes_of(&values[start..end]),
            CpuStorage::F16(values) => bytes_of(&values[start..end]),
            CpuStorage::F32(values) => bytes_of(&values[start..end]),
            _ => bail!("no matrix of {dtype:?} is kept in system memory"),
        };
        let context = device.as_cuda_device()?.cuda_stream().context().clone();
        let failed = |error| Error::Msg(format!("{} bytes of system memory could not be pinned: {error}", bytes.len()));
        // SAFETY: all of it is written before anything reads it.
        let mut memory =
            unsafe { context.alloc_pinned_with_flags::<u8>(bytes.len(), CU_MEMHOSTALLOC_DEVICEMAP) }.map_err(failed)?;
        memory.as_mut_slice().map_err(failed)?.copy_from_slice(bytes);
        let pointer = memory.as_ptr().map_err(failed)? as u64;
        Ok(Self { _memory: memory, matrix: Matrix { pointer, n_rows, n_cols, stride: n_cols, dtype } })
    }
}

/// Places of one size in pinned system memory, a stream that carries values there and back, and events that order it against the
/// stream of the operations.
pub(crate) struct HostPlaces {
    place_bytes: usize,
    places: Vec<HostPlace>,
    compute: Arc<CudaStream>,
    carry: Arc<CudaStream>,
    /// All that was asked of the device before the last copy.
    asked: CudaEvent,
}

struct HostPlace {
    _memory: PinnedHostSlice<u8>,
    address: *mut std::ffi::c_void,
    /// The last copy to or from here.
    copied: CudaEvent,
}

// SAFETY: the address is of memory that the value owns, and only the driver reads and writes there.
unsafe impl Send for HostPlace {}
// SAFETY: as above; nothing is written through a shared reference but by the driver, in the order of its stream.
unsafe impl Sync for HostPlace {}

impl HostPlaces {
    pub(crate) fn new(n_places: usize, place_bytes: usize, device: &Device) -> Result<Self> {
        let compute = device.as_cuda_device()?.cuda_stream();
        let context = compute.context().clone();
        let failed = |error: DriverError| {
            let bytes = n_places * place_bytes;
            Error::Msg(format!("{bytes} bytes of system memory could not be pinned in {n_places} places: {error}"))
        };
        let place = |_| {
            // SAFETY: read only after something was put there.
            let memory = unsafe { context.alloc_pinned_with_flags::<u8>(place_bytes.max(1), 0) }?;
            let address = memory.as_ptr()?.cast_mut().cast();
            Ok(HostPlace { _memory: memory, address, copied: context.new_event(None)? })
        };
        let places = (0..n_places).map(place).collect::<std::result::Result<_, _>>().map_err(failed)?;
        let (carry, asked) = (context.new_stream().map_err(failed)?, context.new_event(None).map_err(failed)?);
        Ok(Self { place_bytes, places, compute, carry, asked })
    }

    pub(crate) fn put(&self, place: usize, src: Matrix) -> Result<()> {
        let (place, bytes) = self.of(place, src)?;
        // SAFETY: the place is as large, and the device's memory lives as long as the buffers of the step; both are left alone until
        // the copy was waited for.
        self.carry(place, || unsafe {
            sys::cuMemcpyDtoHAsync_v2(place.address, src.pointer, bytes, self.carry.cu_stream()).result()
        })
    }

    pub(crate) fn fetch(&self, place: usize, dst: Matrix) -> Result<()> {
        let (place, bytes) = self.of(place, dst)?;
        // SAFETY: as in `put`.
        self.carry(place, || unsafe {
            sys::cuMemcpyHtoDAsync_v2(dst.pointer, place.address, bytes, self.carry.cu_stream()).result()
        })
    }

    pub(crate) fn wait(&self, place: usize) -> Result<()> {
        self.compute.wait(&self.places[place].copied).map_err(carrying)
    }

    fn of(&self, place: usize, matrix: Matrix) -> Result<(&HostPlace, usize)> {
        let bytes = matrix.n_rows * matrix.n_cols * matrix.dtype.size_in_bytes();
        if bytes > self.place_bytes {
            bail!("parking: {bytes} bytes for a place of {}", self.place_bytes);
        }
        Ok((&self.places[place], bytes))
    }

    fn carry(&self, place: &HostPlace, copy: impl FnOnce() -> std::result::Result<(), DriverError>) -> Result<()> {
        let carry = || {
            self.asked.record(&self.compute)?;
            self.carry.wait(&self.asked)?;
            copy()?;
            place.copied.record(&self.carry)
        };
        carry().map_err(carrying)
    }
}

fn carrying(error: DriverError) -> Error {
    Error::Msg(format!("carrying values between the card and system memory failed: {error}"))
}

impl Drop for HostPlaces {
    fn drop(&mut self) {
        // The pages may be unpinned only when nothing is on its way any more; where the driver is gone, nothing is.
        let _ = self.carry.synchronize();
    }
}

fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: plain numbers without padding; every bit pattern is a byte.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

/// A row-major matrix in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    /// Address of its first element.
    pub(crate) pointer: u64,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    /// Elements from row to row.
    pub(crate) stride: usize,
    pub(crate) dtype: DType,
}

/// Views a destination or an operand as a matrix with contiguous rows.
pub(crate) fn matrix(storage: &CudaStorage, layout: &Layout) -> Result<Matrix> {
    let (start, n_rows, n_cols, stride) = matrix_layout(layout)?;
    let dtype = storage.dtype();
    let pointer = address(storage)? + (start * dtype.size_in_bytes()) as u64;
    Ok(Matrix { pointer, n_rows, n_cols, stride, dtype })
}

/// Views a captured tensor as a matrix. The address stays good while the tensor lives: work on it is ordered by the one stream.
pub(crate) fn operand(tensor: &Tensor) -> Result<Matrix> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => matrix(storage, layout),
        _ => bail!("a tensor in {:?} was given to an operation on the card", tensor.device().location()),
    }
}

/// Address of element 0 of a storage.
pub(crate) fn address(storage: &CudaStorage) -> Result<u64> {
    fn of<T>(slice: &CudaSlice<T>) -> u64 {
        slice.device_ptr(slice.stream()).0
    }
    Ok(match &storage.slice {
        CudaStorageSlice::U8(slice) => of(slice),
        CudaStorageSlice::U32(slice) => of(slice),
        CudaStorageSlice::BF16(slice) => of(slice),
        CudaStorageSlice::F16(slice) => of(slice),
        CudaStorageSlice::F32(slice) => of(slice),
        CudaStorageSlice::F64(slice) => of(slice),
        _ => bail!("no operation here takes {:?}", storage.dtype()),
    })
}

/// The ending of a kernel's name for its element type.
pub(crate) fn suffix(dtype: DType) -> Result<&'static str> {
    Ok(match dtype {
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::F32 => "f32",
        _ => bail!("no kernel takes {dtype:?}"),
    })
}

/// The compiled kernels of one operation, see [`kernels`].
pub(crate) struct Kernels {
    pub(crate) name: &'static str,
    pub(crate) image: &'static [u8],
    /// Values of `__constant__` and `__device__` arrays, set when the module is loaded.
    pub(crate) constants: &'static [(&'static str, fn() -> Vec<u8>)],
}

/// The kernels that `build.rs` compiled from `src/<name>.cu`; then, where they have constant tables, `"symbol" => bytes`.
macro_rules! kernels {
    ($name:literal $(, $symbol:literal => $bytes:expr)*) => {
        $crate::cuda::Kernels {
            name: $name,
            image: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")),
            constants: &[$(($symbol, $bytes)),*],
        }
    };
}
pub(crate) use kernels;

/// A kernel's argument. Sizes and strides are `long long` in the kernels, pointers are addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Pointer(u64),
    I64(i64),
    I32(i32),
    U32(u32),
    F32(f32),
    U64(u64),
    /// A struct by value, as words of 8 bytes; what the kernel's is shorter by is not read.
    Struct([u64; 18]),
}

macro_rules! arguments_from {
    ($($ty:ty => $variant:ident $(as $cast:ty)?),*) => {$(
        impl From<$ty> for Argument {
            fn from(value: $ty) -> Self {
                Argument::$variant(value $(as $cast)?)
            }
        }
    )*};
}
arguments_from!(usize => I64 as i64, i32 => I32, u32 => U32, f32 => F32, u64 => U64, bool => I32 as i32);

/// Fails where operands that a kernel takes as one element type are not.
pub(crate) fn check_dtypes(op: &str, operands: &[Matrix]) -> Result<()> {
    let dtypes: Vec<DType> = operands.iter().map(|m| m.dtype).collect();
    if dtypes.windows(2).any(|pair| pair[0] != pair[1]) {
        bail!("{op}: operands of {dtypes:?}, expected one element type");
    }
    Ok(())
}

impl Matrix {
    /// Whether every row starts at a multiple of 16 bytes, so that threads can move that much at a time.
    pub(crate) fn has_vectors(&self) -> bool {
        self.pointer.is_multiple_of(16)
            && (self.n_rows < 2 || (self.stride * self.dtype.size_in_bytes()).is_multiple_of(16))
    }

    /// Its address as an argument; the stride goes beside it, `m.stride.into()`.
    pub(crate) fn at(&self) -> Argument {
        Argument::Pointer(self.pointer)
    }
}

impl Kernels {
    /// Launches `function` (a name inside this module) on the device's stream.
    ///
    /// `arguments` must be what the kernel declares, in order; nothing checks that.
    pub(crate) fn launch(
        &self,
        device: &CudaDevice,
        function: &str,
        grid: [usize; 3],
        n_threads: usize,
        shared_bytes: usize,
        arguments: &[Argument],
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let stream = device.cuda_stream();
        let function = self.function(device, function, shared_bytes)?;
        let mut launch = stream.launch_builder(&function);
        for argument in arguments {
            match argument {
                Argument::Pointer(value) | Argument::U64(value) => launch.arg(value),
                Argument::I64(value) => launch.arg(value),
                Argument::I32(value) => launch.arg(value),
                Argument::U32(value) => launch.arg(value),
                Argument::F32(value) => launch.arg(value),
                Argument::Struct(words) => launch.arg(words),
            };
        }
        let grid_dim = (grid[0] as u32, grid[1] as u32, grid[2] as u32);
        let config =
            LaunchConfig { grid_dim, block_dim: (n_threads as u32, 1, 1), shared_mem_bytes: shared_bytes as u32 };
        // SAFETY: the operation has checked the shapes of its operands; its kernel touches only them.
        unsafe { launch.launch(config) }.map_err(|error| self.error("launch", error))?;
        Ok(())
    }

    /// A function of this module, loaded at its first use on a device.
    fn function(&self, device: &CudaDevice, name: &str, shared_bytes: usize) -> Result<CudaFunction> {
        type Loaded = HashMap<(usize, String), CudaFunction>;
        static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(Mutex::default);
        let stream = device.cuda_stream();
        let context = stream.context();
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.get(&(context.ordinal(), name.to_string())) {
            return Ok(function.clone());
        }
        // Kernels of one operation that are loaded apart each have their own copy of the module; it is small.
        let module =
            context.load_module(Ptx::from_binary(self.image.to_vec())).map_err(|error| self.error("load of", error))?;
        for (symbol, bytes) in self.constants {
            let mut global = module.get_global(symbol, &stream).map_err(|error| self.error(symbol, error))?;
            stream.memcpy_htod(&bytes(), &mut global).map_err(|error| self.error(symbol, error))?;
        }
        let function = module.load_function(name).map_err(|error| {
            if name.contains("bf16") && error.0 == sys::CUresult::CUDA_ERROR_NOT_FOUND {
                return Error::Msg(format!("{name}: this card computes in f16 and f32, not in bf16"));
            }
            self.error(name, error)
        })?;
        if shared_bytes > 48 * 1024 {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function
                .set_attribute(attribute, shared_bytes as i32)
                .map_err(|error| self.error("shared memory of", error))?;
        }
        loaded.insert((context.ordinal(), name.to_string()), function.clone());
        Ok(function)
    }

    fn error(&self, what: &str, error: impl std::fmt::Display) -> Error {
        Error::Msg(format!("{what} the {} kernels failed: {error}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Result;

    #[test]
    fn a_card_has_one_stream_whoever_asks_for_it() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let other = std::thread::spawn(|| super::card(0)).join().expect("no panic")?;
        assert!(card.same_device(&other));
        Ok(())
    }
}
