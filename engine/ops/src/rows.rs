//! Rows picked by index: the embedding, and the supervised rows on their way to the head and back.

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, DType, backend::BackendStorage};

use super::cpu::{Matrix, flat, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;

/// Rows to pick from: in the device's memory, or in the system's, where a card reads the rows it needs over its bus.
pub struct Table(Place);

enum Place {
    Device(Tensor),
    #[cfg(feature = "cuda")]
    Host(cuda::HostMatrix),
}

impl Table {
    /// A table of rows that are where they are picked.
    pub fn on_device(rows: Tensor) -> Self {
        Self(Place::Device(rows))
    }

    /// A table in system memory for a card: `rows` is `[n, h]` and contiguous. It takes nothing of the card, and of the bus what
    /// the picked rows have.
    ///
    /// # Errors
    /// Where so much system memory cannot be pinned, and on a device that is no card.
    pub fn on_host(rows: &Tensor, device: &Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        return Ok(Self(Place::Host(cuda::HostMatrix::new(rows, device)?)));
        #[cfg(not(feature = "cuda"))]
        bail!("{:?} for {:?}: this engine has no kernels for a card", rows.dims(), device.location())
    }

    /// [`gather`] from these rows.
    pub fn gather(&self, dst: &Tensor, index: &Tensor) -> Result<()> {
        match &self.0 {
            Place::Device(rows) => gather(dst, rows, index),
            #[cfg(feature = "cuda")]
            Place::Host(rows) => dst.inplace_op1(&GatherFromHost { rows: rows.matrix, index }),
        }
    }
}

/// `dst[i] = src[index[i]]`. `dst` is `[m, h]`, `src` is `[n, h]`, f32, or 16-bit on a card; `index` is u32 `[m]`, each
/// below `n` (on a card nothing fails past it: such a row is not written).
pub fn gather(dst: &Tensor, src: &Tensor, index: &Tensor) -> Result<()> {
    if dst.dim(0)? != index.elem_count() || dst.dim(1)? != src.dim(1)? {
        bail!("gather: {:?} rows of {:?} into {:?}", index.dims(), src.dims(), dst.dims());
    }
    dst.inplace_op1(&Gather { src, index })
}

/// `dst[index[i]] = src[i]`, other rows left as they are: the gradient of [`gather`] for indices that don't repeat.
/// `dst` is `[n, h]`, `src` is `[m, h]`, f32, or 16-bit on a card; `index` is u32 `[m]`, strictly ascending, each below
/// `n` (on a card nothing fails past it: such a row is left out).
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let (dst, src) = (cuda::matrix(storage, layout)?, cuda::operand(self.src)?);
        launch("gather", storage.device(), dst, src, self.index, src.n_rows)
    }
}

#[cfg(feature = "cuda")]
struct GatherFromHost<'a> {
    rows: cuda::Matrix,
    index: &'a Tensor,
}

#[cfg(feature = "cuda")]
impl InplaceOp1 for GatherFromHost<'_> {
    fn name(&self) -> &'static str {
        "gather_from_host"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("gather_from_host: rows pinned for a card were to be picked on the processor")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let dst = cuda::matrix(storage, layout)?;
        if dst.n_cols != self.rows.n_cols || dst.n_rows != self.index.elem_count() {
            bail!("gather_from_host: {:?} rows of {:?} into {dst:?}", self.index.dims(), self.rows);
        }
        launch("gather", storage.device(), dst, self.rows, self.index, self.rows.n_rows)
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let (dst, src) = (cuda::matrix(storage, layout)?, cuda::operand(self.src)?);
        launch("scatter", storage.device(), dst, src, self.index, dst.n_rows)
    }
}

/// Launches one of the two kernels for the largest unit that rows are made of; an index is below `n_indexed`.
#[cfg(feature = "cuda")]
fn launch(
    name: &str,
    device: &candle_core::CudaDevice,
    dst: cuda::Matrix,
    src: cuda::Matrix,
    index: &Tensor,
    n_indexed: usize,
) -> Result<()> {
    const KERNELS: cuda::Kernels = cuda::kernels!("rows");
    const N_THREADS: usize = 256;
    /// `ROWS` of rows.cu.
    const ROWS_PER_THREAD: usize = 4;
    cuda::check_dtypes(name, &[dst, src])?;
    let index = vector(name, index, DType::U32)?;
    let element_bytes = dst.dtype.size_in_bytes();
    let row_bytes = dst.n_cols * element_bytes;
    let vectors = dst.has_vectors() && src.has_vectors() && row_bytes.is_multiple_of(16);
    let unit_bytes = if vectors { 16 } else { element_bytes };
    let units = |elements: usize| elements * element_bytes / unit_bytes;
    // The stride of a single row is never used, and may not be in whole units.
    let n_units = units(dst.n_cols);
    let log2_columns = n_units.min(N_THREADS).next_power_of_two().ilog2();
    let n_groups = n_units.div_ceil(1 << log2_columns);
    let n_rows = index.n_rows * index.n_cols;
    let grid = [n_groups * n_rows.div_ceil((N_THREADS >> log2_columns) * ROWS_PER_THREAD), 1, 1];
    let arguments = [
        dst.at(),
        units(dst.stride).into(),
        src.at(),
        units(src.stride).into(),
        index.at(),
        n_indexed.into(),
        n_rows.into(),
        n_units.into(),
        (log2_columns as i32).into(),
    ];
    KERNELS.launch(device, &format!("{name}_{unit_bytes}"), grid, N_THREADS, 0, &arguments)
}

/// A contiguous operand of one element type on the card: indices, labels, the weight of a norm.
#[cfg(feature = "cuda")]
pub(crate) fn vector(op: &str, tensor: &Tensor, dtype: DType) -> Result<cuda::Matrix> {
    if tensor.dtype() != dtype || !tensor.is_contiguous() {
        bail!("{op}: {:?} of {:?}, expected contiguous values of {dtype:?}", tensor.layout(), tensor.dtype());
    }
    cuda::operand(tensor)
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

    /// A copy: bits are equal.
    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_copy_the_same_rows_at_any_width_and_stride() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        for (m, n, h) in [(1, 1, 1), (5, 9, 37), (70, 300, 264), (2000, 2100, 8)] {
            let index: Vec<u32> = (0..m as u32).map(|i| i * (n / m) as u32).collect();
            let index = Tensor::new(index, &candle_core::Device::Cpu)?;
            let inputs = [random(&[n, h + 8], 1)?, random(&[m, h + 16], 2)?, index];
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                crate::test_support::assert_same_on_card(&card, &inputs, (dtype, 0.0), |inputs| {
                    let [long, short, index] = inputs else { unreachable!() };
                    let (gathered, scattered) = (short.copy()?, long.copy()?);
                    gather(&gathered.narrow(1, 8, h)?, &long.narrow(1, 0, h)?, index)?;
                    scatter(&scattered.narrow(1, 0, h)?, &short.narrow(1, 0, h)?, index)?;
                    Ok(vec![gathered, scattered])
                })?;
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn an_index_past_the_rows_touches_nothing_on_the_card() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let index = Tensor::new(&[1u32, 5], &card)?;
        let (long, short) = (random(&[5, 3], 1)?.to_device(&card)?, random(&[2, 3], 2)?.to_device(&card)?);
        let (gathered, scattered) = (short.copy()?, long.copy()?);
        gather(&gathered, &long, &index)?;
        scatter(&scattered, &short, &index)?;
        let host = |t: &Tensor| t.to_device(&candle_core::Device::Cpu);
        assert_close(&host(&gathered.narrow(0, 1, 1)?)?, &host(&short.narrow(0, 1, 1)?)?, 0.0)?;
        assert_close(&host(&scattered.narrow(0, 1, 1)?)?, &host(&short.narrow(0, 0, 1)?)?, 0.0)?;
        assert_close(&host(&scattered.narrow(0, 2, 3)?)?, &host(&long.narrow(0, 2, 3)?)?, 0.0)
    }
}
