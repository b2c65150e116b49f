//! Causal grouped-query attention over documents laid end to end; no row sees another document.
//!
//! For each document and head, with `q, k, v` the head's rows and `c = 1 / sqrt(d)`:
//! `S = c q kᵀ` (causal), `P = softmax(S)`, `o = P v`; the log-sum-exp of each row of `S` is kept, so the backward pass
//! recomputes `P` instead of storing it (Dao et al. 2022, arXiv:2205.14135):
//! `dv = Pᵀ do`, `dP = do vᵀ`, `dS = P (dP - rowsum(do o))`, `dq = c dS k`, `dk = c dSᵀ q`.
//!
//! Memory is linear in the length: on the processor a task holds [`ROWS`] rows of `S`, on a card a thread block holds a
//! tile of it.

use std::cell::RefCell;

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaDevice, CudaStorage, DType, backend::BackendStorage};
use rayon::prelude::*;

use super::cpu::{Matrix, SharedMut, check_f32, check_shape, flat, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm::{Write, product};
use super::host;
use super::math::{dot, exp, max, vectorised};
use super::memory::{Held, Site};

/// Widths of a head for which a card has kernels.
pub const HEAD_DIMS: [usize; 4] = [64, 96, 128, 256];

/// Query rows of one task.
pub(super) const ROWS: usize = 64;

/// Heads and their width.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; query head `i` reads key/value head `i / (n_heads / n_kv_heads)`.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
}

impl Heads {
    /// Columns of queries, keys and values side by side.
    pub fn qkv_dim(self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    pub(super) fn k_start(self) -> usize {
        self.n_heads * self.head_dim
    }

    fn v_start(self) -> usize {
        (self.n_heads + self.n_kv_heads) * self.head_dim
    }

    pub(super) fn group(self) -> usize {
        self.n_heads / self.n_kv_heads
    }
}

/// Makes every thread's scratch before the first step, for documents of at most `length` tokens, as memory that counts as `held`. A
/// card needs none.
///
/// # Errors
/// [`super::memory::OutOfMemory`] where there is no room for it.
pub fn reserve_scratch(length: usize, held: &Held) -> Result<()> {
    held.admit(scratch_bytes(length, rayon::current_num_threads()), &Device::Cpu, Site::Scratch)?;
    rayon::broadcast(|_| with_scratch(2 * ROWS * length, |_| ()));
    Ok(())
}

/// Bytes of scratch that the processor's threads hold for sequences of at most `length` tokens.
pub fn scratch_bytes(length: usize, n_threads: usize) -> u64 {
    (2 * ROWS * length * 4 * n_threads) as u64
}

/// Writes each row's attention output into `out` (`[n, n_heads * head_dim]`) and its log-sum-exp into `lse` (f32
/// `[n, n_heads]`). `qkv` is `[n, qkv_dim]`: queries, keys, values, after rotation. `cu_seqlens` is u32
/// `[documents + 1]`.
///
/// `out` and `qkv` are f32, or 16-bit on a card. A card has kernels for heads of [`HEAD_DIMS`], and 16-bit rows start
/// there at multiples of 16 bytes. The boundaries in `cu_seqlens` are checked on the processor only.
pub fn attention(out: &Tensor, lse: &Tensor, qkv: &Tensor, cu_seqlens: &Tensor, heads: Heads) -> Result<()> {
    let n = qkv.dim(0)?;
    if out.dims() != [n, heads.k_start()] || lse.dims() != [n, heads.n_heads] || qkv.dim(1)? != heads.qkv_dim() {
        bail!("attention: out {:?}, lse {:?}, qkv {:?}, {heads:?}", out.dims(), lse.dims(), qkv.dims());
    }
    if !qkv.device().is_cuda() {
        check_f32("attention", "qkv", qkv)?;
    }
    out.inplace_op1(&Forward { lse, qkv, cu_seqlens, heads })
}

/// Writes the gradient of queries, keys and values into `dqkv` (`[n, qkv_dim]`), given `dout` and what [`attention`]
/// read and wrote. `delta` (f32 `[n, n_heads]`) is scratch: it receives `rowsum(do o)`.
pub fn attention_backward(
    dqkv: &Tensor,
    dout: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    delta: &Tensor,
    qkv: &Tensor,
    cu_seqlens: &Tensor,
    heads: Heads,
) -> Result<()> {
    let n = qkv.dim(0)?;
    if dqkv.dims() != qkv.dims() || dout.dims() != out.dims() || out.dims() != [n, heads.k_start()] {
        bail!("attention_backward: dqkv {:?}, dout {:?}, out {:?}", dqkv.dims(), dout.dims(), out.dims());
    }
    check_shape("attention_backward", "lse", lse, &[n, heads.n_heads])?;
    check_shape("attention_backward", "delta", delta, &[n, heads.n_heads])?;
    dqkv.inplace_op1(&Backward { dout, out, lse, delta, qkv, cu_seqlens, heads })
}

thread_local! {
    /// Scratch of a task, kept between tasks: at most twice ROWS x the longest document.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        f(&mut scratch[..len])
    })
}

/// Documents as `(start, end)` rows, checked against the number of rows.
fn documents(cu_seqlens: &[u32], n: usize) -> Result<impl Iterator<Item = (usize, usize)> + Clone + '_> {
    let ascending = cu_seqlens.windows(2).all(|w| w[0] <= w[1]);
    if cu_seqlens.first() != Some(&0) || cu_seqlens.last() != Some(&(n as u32)) || !ascending {
        bail!("attention: document boundaries {cu_seqlens:?} don't cover {n} rows in order");
    }
    Ok(cu_seqlens.windows(2).map(|w| (w[0] as usize, w[1] as usize)))
}

/// One head of a wide matrix as a raw operand of a product, from row `row`.
pub(super) fn operand(m: &Matrix, row: usize, col: usize) -> (*const f32, [usize; 2]) {
    debug_assert!(row < m.n_rows && col < m.n_cols);
    // SAFETY: inside the matrix by the assertion, which the callers' shapes guarantee.
    (unsafe { m.as_ptr().add(row * m.stride + col) }, [m.stride, 1])
}

fn transposed<P>((pointer, [rows, cols]): (P, [usize; 2])) -> (P, [usize; 2]) {
    (pointer, [cols, rows])
}

struct Forward<'a> {
    lse: &'a Tensor,
    qkv: &'a Tensor,
    cu_seqlens: &'a Tensor,
    heads: Heads,
}

impl InplaceOp1 for Forward<'_> {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (qkv, qkv_layout) = self.qkv.storage_and_layout();
        let (cu, cu_layout) = self.cu_seqlens.storage_and_layout();
        let qkv: Matrix = matrix(&qkv, qkv_layout)?;
        let out = matrix_mut::<f32>(storage, layout)?;
        let (heads, d) = (self.heads, self.heads.head_dim);
        let scale = 1.0 / (d as f32).sqrt();
        let tasks: Vec<(usize, usize, usize)> = documents(flat(&cu, cu_layout)?, out.n_rows)?
            .flat_map(|(start, end)| (start..end).step_by(ROWS).map(move |row| (start, row, end.min(row + ROWS))))
            .collect();
        let (out_ptr, out_stride) = (SharedMut(out.data.as_mut_ptr()), out.stride);
        let n_heads = heads.n_heads;
        host::write::<f32, ()>(self.lse, |lse| {
            let lse = SharedMut(lse.as_mut_ptr());
            (0..tasks.len() * heads.n_heads).into_par_iter().for_each(|t| {
                let (start, first, end) = tasks[t / heads.n_heads];
                let head = t % heads.n_heads;
                let (n_q, n_k) = (end - first, end - start);
                let kv = head / heads.group();
                with_scratch(n_q * n_k, |s| {
                    let q = operand(&qkv, first, head * d);
                    let k = operand(&qkv, start, heads.k_start() + kv * d);
                    let v = operand(&qkv, start, heads.v_start() + kv * d);
                    // SAFETY: operands are n_q or n_k rows of one head inside qkv, s is this thread's own.
                    unsafe { scores(s, q, k, [n_q, n_k, d], scale) };
                    for i in 0..n_q {
                        let row = &mut s[i * n_k..][..n_k];
                        let visible = first - start + i + 1;
                        row[visible..].fill(0.0);
                        let row_lse = softmax(&mut row[..visible]);
                        // SAFETY: one task writes row first + i of this head.
                        unsafe { *lse.get().add((first + i) * n_heads + head) = row_lse };
                    }
                    // SAFETY: this task's rows and head of out; no other task writes them.
                    unsafe {
                        let o = (out_ptr.get().add(first * out_stride + head * d), [out_stride, 1]);
                        product([n_q, d, n_k], o, (s.as_ptr(), [n_k, 1]), v, 1.0, Write::Set, gemm::Parallelism::None);
                    }
                });
            });
            Ok(())
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let out = cuda::matrix(storage, layout)?;
        let lse = statistic("lse", self.lse)?;
        let on_card = OnCard::new(storage.device(), out, self.qkv, self.cu_seqlens, self.heads)?;
        let mut arguments = vec![out.at(), out.stride.into(), lse.at()];
        arguments.extend(on_card.operands());
        on_card.launch("forward", &arguments)
    }
}

#[cfg(feature = "cuda")]
const KERNELS: cuda::Kernels = cuda::kernels!("attention");

/// The per-row, per-head f32 numbers beside the matrices, `[n, n_heads]` without gaps.
#[cfg(feature = "cuda")]
fn statistic(name: &str, tensor: &Tensor) -> Result<cuda::Matrix> {
    let operand = cuda::operand(tensor)?;
    if operand.dtype != DType::F32 || operand.n_rows > 1 && operand.stride != operand.n_cols {
        bail!("attention: {name} is {:?} with {} elements from row to row", operand.dtype, operand.stride);
    }
    Ok(operand)
}

/// How a kernel covers its rows: `n_rows` of them and one head a thread block.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    n_rows: usize,
    n_threads: usize,
    shared_bytes: usize,
}

#[cfg(feature = "cuda")]
impl Tile {
    /// The tables at the head of `attention.cu`, for code of an architecture (75 is compute capability 7.5). In f32, which is for
    /// comparisons, a warp has a row and shares nothing.
    fn new(kernel: &str, dtype: DType, head_dim: usize, architecture: i32) -> Result<Self> {
        let Some(column) = HEAD_DIMS.iter().position(|&width| width == head_dim) else {
            bail!("attention on a card takes heads of {HEAD_DIMS:?}, these have {head_dim}")
        };
        if dtype == DType::F32 {
            return Ok(Self { n_rows: 4, n_threads: 128, shared_bytes: 0 });
        }
        let is_turing = architecture < 80;
        let shared_bytes = match (is_turing, kernel) {
            (false, "backward_kv") => [58_368, 82_944, 99_328, 100_864],
            (false, _) => [49_152, 73_728, 98_304, 98_304],
            (true, "backward_kv") => [27_136, 39_424, 51_712, 49_920],
            (true, "backward_q") => [32_768, 49_152, 65_536, 65_536],
            (true, _) => [24_576, 24_576, 32_768, 49_152],
        }[column];
        let n_threads = if is_turing && head_dim == 256 { 64 } else { 128 };
        // Matrix tiles of 16 rows that a warp has; two warps share the keys of `backward_kv`.
        let m = if is_turing || head_dim == 256 { 1 } else { 2 };
        let n_rows = n_threads / 32 * 16 * m / if kernel == "backward_kv" { 2 } else { 1 };
        Ok(Self { n_rows, n_threads, shared_bytes })
    }
}

/// What all kernels are given.
#[cfg(feature = "cuda")]
struct OnCard<'a> {
    device: &'a CudaDevice,
    qkv: cuda::Matrix,
    cu_seqlens: cuda::Matrix,
    heads: Heads,
}

#[cfg(feature = "cuda")]
impl<'a> OnCard<'a> {
    fn new(device: &'a CudaDevice, dst: cuda::Matrix, qkv: &Tensor, cu_seqlens: &Tensor, heads: Heads) -> Result<Self> {
        let this = Self { device, qkv: cuda::operand(qkv)?, cu_seqlens: cuda::operand(cu_seqlens)?, heads };
        if this.cu_seqlens.dtype != DType::U32 || this.cu_seqlens.n_cols < 2 {
            bail!("attention: boundaries are {:?} {:?}", this.cu_seqlens.dtype, cu_seqlens.dims());
        }
        this.check(&[dst, this.qkv])?;
        this.tile("forward")?;
        Ok(this)
    }

    fn tile(&self, kernel: &str) -> Result<Tile> {
        Tile::new(kernel, self.qkv.dtype, self.heads.head_dim, cuda::architecture(self.device)?)
    }

    /// Fails where the kernels can't take these matrices.
    fn check(&self, matrices: &[cuda::Matrix]) -> Result<()> {
        cuda::check_dtypes("attention", matrices)?;
        // Tiles are copied 16 bytes at a time; the f32 kernels copy element by element.
        if self.qkv.dtype != DType::F32 && !matrices.iter().all(cuda::Matrix::has_vectors) {
            bail!("attention: rows must start at multiples of 16 bytes, strides are {:?} elements", strides(matrices));
        }
        Ok(())
    }

    /// `qkv` and all that follows it in every kernel's parameters.
    fn operands(&self) -> [cuda::Argument; 8] {
        let Heads { n_heads, n_kv_heads, head_dim } = self.heads;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let n_documents = self.cu_seqlens.n_cols - 1;
        [
            self.qkv.at(),
            self.qkv.stride.into(),
            self.cu_seqlens.at(),
            (n_documents as i32).into(),
            (self.qkv.n_rows as i32).into(),
            (n_heads as i32).into(),
            (n_kv_heads as i32).into(),
            scale.into(),
        ]
    }

    fn function(&self, kernel: &str) -> Result<String> {
        Ok(format!("attention_{kernel}_{}_{}", cuda::suffix(self.qkv.dtype)?, self.heads.head_dim))
    }

    /// Launches one of the kernels that go over tiles.
    fn launch(&self, kernel: &str, arguments: &[cuda::Argument]) -> Result<()> {
        let tile = self.tile(kernel)?;
        let n_heads = if kernel == "backward_kv" { self.heads.n_kv_heads } else { self.heads.n_heads };
        let grid = [n_heads, self.qkv.n_rows.div_ceil(tile.n_rows), 1];
        KERNELS.launch(self.device, &self.function(kernel)?, grid, tile.n_threads, tile.shared_bytes, arguments)
    }

    /// `delta = rowsum(do o)`, a warp for each row and head.
    fn launch_delta(&self, delta: cuda::Matrix, dout: cuda::Matrix, out: cuda::Matrix) -> Result<()> {
        const N_THREADS: usize = 128;
        let (n, n_heads) = (self.qkv.n_rows, self.heads.n_heads);
        let grid = [(n * n_heads).div_ceil(N_THREADS / 32), 1, 1];
        let [n, n_heads] = [n as i32, n_heads as i32];
        let arguments =
            [delta.at(), dout.at(), dout.stride.into(), out.at(), out.stride.into(), n.into(), n_heads.into()];
        KERNELS.launch(self.device, &self.function("delta")?, grid, N_THREADS, 0, &arguments)
    }
}

#[cfg(feature = "cuda")]
fn strides(matrices: &[cuda::Matrix]) -> Vec<usize> {
    matrices.iter().map(|m| m.stride).collect()
}

/// `s = scale q kᵀ`, `[n_q, n_k]`.
///
/// # Safety
/// `q` and `k` are `n_q` and `n_k` readable rows of `d` elements; `s` holds `n_q * n_k`.
pub(super) unsafe fn scores(
    s: &mut [f32],
    q: (*const f32, [usize; 2]),
    k: (*const f32, [usize; 2]),
    [n_q, n_k, d]: [usize; 3],
    scale: f32,
) {
    let dst = (s.as_mut_ptr(), [n_k, 1]);
    // SAFETY: the caller's promise.
    unsafe { product([n_q, n_k, d], dst, q, transposed(k), scale, Write::Set, gemm::Parallelism::None) }
}

/// Softmax in place; returns the log-sum-exp.
pub(super) fn softmax(row: &mut [f32]) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let m = max(row);
            let mut lanes = [0f32; 8];
            let (row8, rest) = row.as_chunks_mut::<8>();
            for x in row8 {
                for i in 0..8 {
                    x[i] = exp(x[i] - m);
                    lanes[i] += x[i];
                }
            }
            let mut sum: f32 = lanes.iter().sum();
            for x in rest {
                *x = exp(*x - m);
                sum += *x;
            }
            let inverse = 1.0 / sum;
            for x in row.iter_mut() {
                *x *= inverse;
            }
            m + sum.ln()
        },
    )
}

struct Backward<'a> {
    dout: &'a Tensor,
    out: &'a Tensor,
    lse: &'a Tensor,
    delta: &'a Tensor,
    qkv: &'a Tensor,
    cu_seqlens: &'a Tensor,
    heads: Heads,
}

impl InplaceOp1 for Backward<'_> {
    fn name(&self) -> &'static str {
        "attention_backward"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (qkv, qkv_layout) = self.qkv.storage_and_layout();
        let (out, out_layout) = self.out.storage_and_layout();
        let (dout, dout_layout) = self.dout.storage_and_layout();
        let (lse, lse_layout) = self.lse.storage_and_layout();
        let (cu, cu_layout) = self.cu_seqlens.storage_and_layout();
        let qkv: Matrix = matrix(&qkv, qkv_layout)?;
        let out: Matrix = matrix(&out, out_layout)?;
        let dout: Matrix = matrix(&dout, dout_layout)?;
        let lse: Matrix = matrix(&lse, lse_layout)?;
        let dqkv = matrix_mut::<f32>(storage, layout)?;
        let heads = self.heads;
        let documents: Vec<_> = documents(flat(&cu, cu_layout)?, dqkv.n_rows)?.collect();
        let destination = (SharedMut(dqkv.data.as_mut_ptr()), dqkv.stride);
        host::write::<f32, ()>(self.delta, |delta| {
            delta.par_chunks_mut(heads.n_heads).enumerate().with_min_len(ROWS).for_each(|(row, delta)| {
                let (out, dout) = (out.row(row), dout.row(row));
                for (head, delta) in delta.iter_mut().enumerate() {
                    let columns = head * heads.head_dim..(head + 1) * heads.head_dim;
                    let (out, dout) = (&out[columns.clone()], &dout[columns]);
                    *delta = vectorised(
                        #[inline(always)]
                        || dot(out, dout),
                    );
                }
            });
            let delta = &*delta;
            // One task a document and key/value head: it alone writes that head's dk and dv and its queries' dq.
            (0..documents.len() * heads.n_kv_heads).into_par_iter().for_each(|t| {
                let (start, end) = documents[t / heads.n_kv_heads];
                let task = Group { qkv, dout, lse, delta, heads, start, end, kv: t % heads.n_kv_heads };
                // SAFETY: destination is dqkv, of the shape of qkv, and tasks write disjoint rows or columns.
                unsafe { task.run(destination.0, destination.1) };
            });
            Ok(())
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let dqkv = cuda::matrix(storage, layout)?;
        let (dout, out) = (cuda::operand(self.dout)?, cuda::operand(self.out)?);
        let (lse, delta) = (statistic("lse", self.lse)?, statistic("delta", self.delta)?);
        let on_card = OnCard::new(storage.device(), dqkv, self.qkv, self.cu_seqlens, self.heads)?;
        on_card.check(&[dqkv, dout, out])?;
        on_card.launch_delta(delta, dout, out)?;
        let mut arguments = vec![dqkv.at(), dqkv.stride.into(), dout.at(), dout.stride.into(), lse.at(), delta.at()];
        arguments.extend(on_card.operands());
        on_card.launch("backward_kv", &arguments)?;
        on_card.launch("backward_q", &arguments)
    }
}

/// The backward pass of one document and key/value head.
struct Group<'a> {
    qkv: Matrix<'a>,
    dout: Matrix<'a>,
    lse: Matrix<'a>,
    /// `rowsum(do o)`, `[n, n_heads]`.
    delta: &'a [f32],
    heads: Heads,
    start: usize,
    end: usize,
    kv: usize,
}

impl Group<'_> {
    /// # Safety
    /// `dqkv` has the rows of `qkv` at `stride`, and nobody else touches this group's columns in rows `start..end`.
    unsafe fn run(&self, dqkv: SharedMut, stride: usize) {
        let (heads, d) = (self.heads, self.heads.head_dim);
        let scale = 1.0 / (d as f32).sqrt();
        let (k_col, v_col) = (heads.k_start() + self.kv * d, heads.v_start() + self.kv * d);
        let k = operand(&self.qkv, self.start, k_col);
        let v = operand(&self.qkv, self.start, v_col);
        // SAFETY (all uses): rows start..end exist and columns lie inside qkv_dim.
        let at = |row: usize, col: usize| (unsafe { dqkv.get().add(row * stride + col) }, [stride, 1]);
        let (dk, dv) = (at(self.start, k_col), at(self.start, v_col));
        for row in self.start..self.end {
            for col in [k_col, v_col] {
                // SAFETY: this group's own columns.
                unsafe { std::slice::from_raw_parts_mut(at(row, col).0, d) }.fill(0.0);
            }
        }
        for head in self.kv * heads.group()..(self.kv + 1) * heads.group() {
            for first in (self.start..self.end).step_by(ROWS) {
                let n_q = ROWS.min(self.end - first);
                // Keys past the block's last query are masked for all of it.
                let n_k = first + n_q - self.start;
                with_scratch(2 * n_q * n_k, |scratch| {
                    let (p, ds) = scratch.split_at_mut(n_q * n_k);
                    let q = operand(&self.qkv, first, head * d);
                    let dout = operand(&self.dout, first, head * d);
                    // SAFETY: operands lie inside their matrices, scratch is this thread's, destinations this group's.
                    unsafe {
                        scores(p, q, k, [n_q, n_k, d], scale);
                        scores(ds, dout, v, [n_q, n_k, d], 1.0);
                        for i in 0..n_q {
                            self.row(&mut p[i * n_k..][..n_k], &mut ds[i * n_k..][..n_k], first + i, head);
                        }
                        let (p, ds) = ((p.as_ptr(), [n_k, 1]), (ds.as_ptr(), [n_k, 1]));
                        let one = gemm::Parallelism::None;
                        product([n_q, d, n_k], at(first, head * d), ds, k, scale, Write::Set, one);
                        product([n_k, d, n_q], dk, transposed(ds), q, scale, Write::Add, one);
                        product([n_k, d, n_q], dv, transposed(p), dout, 1.0, Write::Add, one);
                    }
                });
            }
        }
    }

    /// Turns scores into probabilities and `dP` into `dS` for one query row.
    fn row(&self, p: &mut [f32], ds: &mut [f32], row: usize, head: usize) {
        let visible = row - self.start + 1;
        p[visible..].fill(0.0);
        ds[visible..].fill(0.0);
        let (lse, delta) = (self.lse.row(row)[head], self.delta[row * self.heads.n_heads + head]);
        vectorised(
            #[inline(always)]
            || {
                for (p, ds) in p[..visible].iter_mut().zip(&mut ds[..visible]) {
                    *p = exp(*p - lse);
                    *ds = *p * (*ds - delta);
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_close, assert_gradient, random, values, zeros};

    const HEADS: Heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 6 };

    fn forward(qkv: &Tensor, cu: &[u32], heads: Heads) -> Result<(Tensor, Tensor)> {
        let n = qkv.dim(0)?;
        let cu = Tensor::new(cu, qkv.device())?;
        let (out, lse) = (zeros(&[n, heads.k_start()])?, zeros(&[n, heads.n_heads])?);
        attention(&out, &lse, qkv, &cu, heads)?;
        Ok((out, lse))
    }

    /// The definition, in f64, one row at a time.
    fn definition(qkv: &Tensor, cu: &[u32], h: Heads) -> Result<Tensor> {
        let rows: Vec<Vec<f32>> = qkv.to_vec2()?;
        let d = h.head_dim;
        let mut out = vec![0f32; rows.len() * h.k_start()];
        for w in cu.windows(2) {
            for i in w[0] as usize..w[1] as usize {
                for head in 0..h.n_heads {
                    let kv = head / h.group();
                    let part = |row: usize, start: usize| &rows[row][start..start + d];
                    let q = part(i, head * d);
                    let weights: Vec<f64> = (w[0] as usize..=i)
                        .map(|j| {
                            let k = part(j, h.k_start() + kv * d);
                            let s: f64 = q.iter().zip(k).map(|(a, b)| (*a as f64) * (*b as f64)).sum();
                            (s / (d as f64).sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = weights.iter().sum();
                    for c in 0..d {
                        let sum: f64 = weights
                            .iter()
                            .enumerate()
                            .map(|(j, w_j)| w_j * part(w[0] as usize + j, h.v_start() + kv * d)[c] as f64)
                            .sum();
                        out[i * h.k_start() + head * d + c] = (sum / total) as f32;
                    }
                }
            }
        }
        Tensor::from_vec(out, (rows.len(), h.k_start()), qkv.device())
    }

    #[test]
    fn output_equals_the_definition_across_blocks_and_documents() -> Result<()> {
        let n = 150;
        let qkv = (random(&[n, HEADS.qkv_dim()], 1)? * 2.0)?;
        for cu in [vec![0u32, 150], vec![0, 1, 67, 67, 150]] {
            let (out, _) = forward(&qkv, &cu, HEADS)?;
            assert_close(&out, &definition(&qkv, &cu, HEADS)?, 1e-5)?;
        }
        Ok(())
    }

    #[test]
    fn gradient_agrees_with_finite_differences() -> Result<()> {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 4 };
        let cu = [0u32, 3, 8];
        let qkv = random(&[8, heads.qkv_dim()], 1)?;
        let dout = random(&[8, heads.k_start()], 2)?;
        let (out, lse) = forward(&qkv, &cu, heads)?;
        let dqkv = zeros(&[8, heads.qkv_dim()])?;
        let cu_tensor = Tensor::new(&cu, qkv.device())?;
        let delta = lse.zeros_like()?;
        attention_backward(&dqkv, &dout, &out, &lse, &delta, &qkv, &cu_tensor, heads)?;
        assert_gradient(|x| Ok(forward(x, &cu, heads)?.0), &qkv, &dout, &dqkv)
    }

    #[test]
    fn a_document_is_unmoved_by_its_neighbours() -> Result<()> {
        let qkv = random(&[90, HEADS.qkv_dim()], 1)?;
        let (together, _) = forward(&qkv, &[0, 20, 90], HEADS)?;
        let (alone, _) = forward(&qkv.narrow(0, 20, 70)?.copy()?, &[0, 70], HEADS)?;
        assert_eq!(values(&together.narrow(0, 20, 70)?)?, values(&alone)?);
        Ok(())
    }

    /// Output, log-sum-exp and gradient.
    #[cfg(feature = "cuda")]
    fn both_passes(qkv: &Tensor, dout: &Tensor, cu: &Tensor, heads: Heads) -> Result<Vec<Tensor>> {
        // Rows further apart than they are wide, as in a step's buffers.
        let n = qkv.dim(0)?;
        let narrow =
            |columns: usize| Tensor::zeros((n, columns + 16), qkv.dtype(), qkv.device())?.narrow(1, 8, columns);
        let statistic = || Tensor::zeros((n, heads.n_heads), DType::F32, qkv.device());
        let (out, lse, delta) = (narrow(heads.k_start())?, statistic()?, statistic()?);
        attention(&out, &lse, qkv, cu, heads)?;
        let dqkv = narrow(heads.qkv_dim())?;
        attention_backward(&dqkv, dout, &out, &lse, &delta, qkv, cu, heads)?;
        Ok(vec![out.contiguous()?, lse, dqkv.contiguous()?])
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_agree_with_the_reference_and_repeat_their_bits() -> Result<()> {
        use crate::test_support::{assert_same_on_card, card};

        let Some(card) = card() else { return Ok(()) };
        // Documents of one row, of less and more than a tile, across tiles; none ends where a tile does.
        let cu = Tensor::new(&[0u32, 1, 38, 39, 300, 487], &Device::Cpu)?;
        for (n_heads, n_kv_heads, head_dim) in [(4, 2, 64), (3, 1, 128), (2, 2, 96), (2, 1, 256)] {
            let heads = Heads { n_heads, n_kv_heads, head_dim };
            let qkv = (random(&[487, heads.qkv_dim()], 1)? * 2.0)?;
            let inputs = [qkv, random(&[487, heads.k_start()], 2)?, cu.clone()];
            // In f32 only the order of additions differs. In 16 bits the kernels round P and dS before the next product,
            // the results, and the output before it enters delta: each by up to 2^-11 or 2^-8 of the value.
            for case in [(DType::F32, 2e-5), (DType::F16, 3e-3), (DType::BF16, 2e-2)] {
                assert_same_on_card(&card, &inputs, case, |inputs| {
                    let [qkv, dout, cu] = inputs else { unreachable!() };
                    let results = both_passes(qkv, dout, cu, heads)?;
                    if qkv.device().is_cuda() {
                        let bits = |t: &Tensor| values(&t.to_dtype(DType::F32)?.to_device(&Device::Cpu)?);
                        for (first, second) in results.iter().zip(both_passes(qkv, dout, cu, heads)?) {
                            assert_eq!(bits(first)?, bits(&second)?, "{heads:?} in {:?}", case.0);
                        }
                    }
                    Ok(results)
                })?;
            }
        }
        Ok(())
    }

    /// What a thread block may have: 99 KiB on RTX 30 and 40, less than on other cards from compute capability 8.0 on; 64 KiB before.
    #[cfg(feature = "cuda")]
    #[test]
    fn tiles_fit_the_shared_memory_of_every_architecture() -> Result<()> {
        for head_dim in [64, 96, 128, 256] {
            for (architecture, most_bytes) in [(75, 64 << 10), (80, 99 << 10), (120, 99 << 10)] {
                for kernel in ["forward", "backward_q", "backward_kv"] {
                    let tile = Tile::new(kernel, DType::F16, head_dim, architecture)?;
                    assert!(tile.shared_bytes <= most_bytes, "{kernel} {head_dim} {architecture}: {tile:?}");
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_card_names_the_widths_of_heads_it_takes() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let qkv = random(&[4, HEADS.qkv_dim()], 1)?.to_device(&card)?;
        let dout = random(&[4, HEADS.k_start()], 2)?.to_device(&card)?;
        let error = both_passes(&qkv, &dout, &Tensor::new(&[0u32, 4], &card)?, HEADS).unwrap_err();
        assert!(error.to_string().contains(&format!("{HEAD_DIMS:?}")), "{error}");
        Ok(())
    }

    #[test]
    fn boundaries_that_do_not_cover_the_rows_are_refused() -> Result<()> {
        let qkv = random(&[4, HEADS.qkv_dim()], 1)?;
        for cu in [vec![0u32, 3], vec![1, 4], vec![0, 3, 2, 4]] {
            assert!(forward(&qkv, &cu, HEADS).is_err(), "{cu:?}");
        }
        Ok(())
    }

    /// Where a card cannot hold all thread blocks at once, they take the tiles in another order than everywhere above.
    #[cfg(feature = "cuda")]
    #[test]
    fn a_grid_of_more_blocks_than_a_card_holds_agrees_with_the_reference() -> Result<()> {
        use crate::test_support::{assert_same_on_card, card};

        let Some(card) = card() else { return Ok(()) };
        // Of each kernel 400 blocks at least, enough for 199 multiprocessors.
        let heads = Heads { n_heads: 32, n_kv_heads: 16, head_dim: 64 };
        let cu = Tensor::new(&[0u32, 300, 301, 687, 1100, 1600], &Device::Cpu)?;
        let inputs = [(random(&[1600, heads.qkv_dim()], 1)? * 2.0)?, random(&[1600, heads.k_start()], 2)?, cu];
        for case in [(DType::F16, 3e-3), (DType::BF16, 2e-2)] {
            assert_same_on_card(&card, &inputs, case, |inputs| {
                let [qkv, dout, cu] = inputs else { unreachable!() };
                both_passes(qkv, dout, cu, heads)
            })?;
        }
        Ok(())
    }
}
