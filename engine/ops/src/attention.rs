//! Causal grouped-query attention over documents laid end to end; no row sees another document.
//!
//! For each document and head, with `q, k, v` the head's rows and `c = 1 / sqrt(d)`:
//! `S = c q kᵀ` (causal), `P = softmax(S)`, `o = P v`; the log-sum-exp of each row of `S` is kept, so the backward pass
//! recomputes `P` instead of storing it (Dao et al. 2022, arXiv:2205.14135):
//! `dv = Pᵀ do`, `dP = do vᵀ`, `dS = P (dP - rowsum(do o))`, `dq = c dS k`, `dk = c dSᵀ q`.
//!
//! Memory is linear in the length: a task holds [`ROWS`] rows of `S`.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
use rayon::prelude::*;

use super::cpu::{Matrix, SharedMut, check_f32, flat, matrix, matrix_mut};
use super::gemm::{Write, product};
use super::host;
use super::math::{dot, exp, max, vectorised};

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

/// Makes every thread's scratch before the first step, for documents of at most `length` tokens.
pub fn reserve_scratch(length: usize) {
    rayon::broadcast(|_| with_scratch(2 * ROWS * length, |_| ()));
}

/// Bytes of scratch that the processor's threads hold for sequences of at most `length` tokens.
pub fn scratch_bytes(length: usize, n_threads: usize) -> u64 {
    (2 * ROWS * length * 4 * n_threads) as u64
}

/// Writes each row's attention output into `out` (f32 `[n, n_heads * head_dim]`) and its log-sum-exp into `lse` (f32
/// `[n, n_heads]`). `qkv` is f32 `[n, qkv_dim]`: queries, keys, values, after rotation. `cu_seqlens` is u32 `[documents + 1]`.
pub fn attention(out: &Tensor, lse: &Tensor, qkv: &Tensor, cu_seqlens: &Tensor, heads: Heads) -> Result<()> {
    let n = qkv.dim(0)?;
    if out.dims() != [n, heads.k_start()] || lse.dims() != [n, heads.n_heads] || qkv.dim(1)? != heads.qkv_dim() {
        bail!("attention: out {:?}, lse {:?}, qkv {:?}, {heads:?}", out.dims(), lse.dims(), qkv.dims());
    }
    check_f32("attention", "qkv", qkv)?;
    out.inplace_op1(&Forward { lse, qkv, cu_seqlens, heads })
}

/// Writes the gradient of queries, keys and values into `dqkv` (f32 `[n, qkv_dim]`), given `dout` and what
/// [`attention`] read and wrote.
pub fn attention_backward(
    dqkv: &Tensor,
    dout: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    qkv: &Tensor,
    cu_seqlens: &Tensor,
    heads: Heads,
) -> Result<()> {
    let n = qkv.dim(0)?;
    if dqkv.dims() != qkv.dims() || dout.dims() != out.dims() || out.dims() != [n, heads.k_start()] {
        bail!("attention_backward: dqkv {:?}, dout {:?}, out {:?}", dqkv.dims(), dout.dims(), out.dims());
    }
    dqkv.inplace_op1(&Backward { dout, out, lse, qkv, cu_seqlens, heads })
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
        // One task a document and key/value head: it alone writes that head's dk and dv and its queries' dq.
        (0..documents.len() * heads.n_kv_heads).into_par_iter().for_each(|t| {
            let (start, end) = documents[t / heads.n_kv_heads];
            let task = Group { qkv, out, dout, lse, heads, start, end, kv: t % heads.n_kv_heads };
            // SAFETY: destination is dqkv, of the shape of qkv, and tasks write disjoint rows or columns.
            unsafe { task.run(destination.0, destination.1) };
        });
        Ok(())
    }
}

/// The backward pass of one document and key/value head.
struct Group<'a> {
    qkv: Matrix<'a>,
    out: Matrix<'a>,
    dout: Matrix<'a>,
    lse: Matrix<'a>,
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
        let d = self.heads.head_dim;
        let visible = row - self.start + 1;
        p[visible..].fill(0.0);
        ds[visible..].fill(0.0);
        let columns = head * d..(head + 1) * d;
        let lse = self.lse.row(row)[head];
        let (out, dout) = (&self.out.row(row)[columns.clone()], &self.dout.row(row)[columns]);
        vectorised(
            #[inline(always)]
            || {
                let delta = dot(out, dout);
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
        attention_backward(&dqkv, &dout, &out, &lse, &qkv, &cu_tensor, heads)?;
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

    #[test]
    fn boundaries_that_do_not_cover_the_rows_are_refused() -> Result<()> {
        let qkv = random(&[4, HEADS.qkv_dim()], 1)?;
        for cu in [vec![0u32, 3], vec![1, 4], vec![0, 3, 2, 4]] {
            assert!(forward(&qkv, &cu, HEADS).is_err(), "{cu:?}");
        }
        Ok(())
    }
}
