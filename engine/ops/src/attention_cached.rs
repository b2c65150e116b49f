//! Causal grouped-query attention of new rows against keys and values that are kept: what answering a prompt needs.
//!
//! Sequences lie one after the other in one cache, each in rows of its own:
//!
//! ```text
//! cache     | a0 a1 a2 .. .. | b0 b1 b2 b3 b4 .. |     one row: keys | values of all key/value heads
//! queries     a2               b3 b4                   new rows of all sequences end to end
//! ```
//!
//! Row `a2` reads `a0 a1 a2`; `b3` reads `b0 … b3`. The formulas are those of [`super::attention`]; there is no
//! gradient, answers are not trained on.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};
use rayon::prelude::*;

use super::attention::{Heads, ROWS, operand, scores, softmax, with_scratch};
use super::cpu::{Matrix, SharedMut, check_f32, check_shape, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm::{Write, product};
use super::math::{dot, vectorised};

/// The new rows of one sequence, which lie side by side, and where its keys and values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First new row among the queries.
    pub row: usize,
    /// New rows.
    pub n_new: usize,
    /// First row of the sequence in the cache.
    pub cache_row: usize,
    /// Rows that the sequence had before the new ones. The cache holds `n_before + n_new` of it.
    pub n_before: usize,
}

/// Writes each new row's attention output into `out` (`[n, n_heads * head_dim]`). `queries` is `[n, >= n_heads * head_dim]`, rotated.
/// All are f32, or of one 16-bit type on a card. `cache` is `[rows, 2 * n_kv_heads * head_dim]`, keys (rotated) before values, and
/// holds the new rows already. `spans` cover the `n` rows in order, and `rows` is what [`Span::rows`] says of them, u32 `[n]`
/// each: a card reads it there, and a block has it for its other operations.
pub fn attention_cached(
    out: &Tensor,
    queries: &Tensor,
    cache: &Tensor,
    spans: &[Span],
    rows: (&Tensor, &Tensor),
    heads: Heads,
) -> Result<()> {
    let (n, q_dim, kv_dim) = (out.dim(0)?, heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim);
    let (cache_rows, cache_cols) = cache.dims2()?;
    if out.dims() != [n, q_dim] || queries.dim(0)? != n || queries.dim(1)? < q_dim || cache_cols != 2 * kv_dim {
        bail!(
            "attention_cached: out {:?}, queries {:?}, cache {:?}, {heads:?}",
            out.dims(),
            queries.dims(),
            cache.dims()
        );
    }
    if out.device().is_cpu() {
        for (name, t) in [("out", out), ("queries", queries), ("cache", cache)] {
            check_f32("attention_cached", name, t)?;
        }
    }
    let mut next = 0;
    for span in spans {
        if span.row != next || span.n_new == 0 || span.cache_row + span.n_before + span.n_new > cache_rows {
            bail!("attention_cached: {span:?} does not follow row {next} inside {n} rows and a cache of {cache_rows}");
        }
        next += span.n_new;
    }
    if next != n {
        bail!("attention_cached: spans cover {next} of {n} rows");
    }
    check_shape("attention_cached", "positions", rows.0, &[n])?;
    check_shape("attention_cached", "cache rows", rows.1, &[n])?;
    out.inplace_op1(&Forward {
        queries,
        cache,
        spans,
        #[cfg(feature = "cuda")]
        rows,
        heads,
    })
}

struct Forward<'a> {
    queries: &'a Tensor,
    cache: &'a Tensor,
    spans: &'a [Span],
    #[cfg(feature = "cuda")]
    rows: (&'a Tensor, &'a Tensor),
    heads: Heads,
}

impl InplaceOp1 for Forward<'_> {
    fn name(&self) -> &'static str {
        "attention_cached"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (queries, q_layout) = self.queries.storage_and_layout();
        let (cache, c_layout) = self.cache.storage_and_layout();
        let queries: Matrix = matrix(&queries, q_layout)?;
        let cache: Matrix = matrix(&cache, c_layout)?;
        let out = matrix_mut::<f32>(storage, layout)?;
        let out = (SharedMut(out.data.as_mut_ptr()), out.stride);
        let n_kv_heads = self.heads.n_kv_heads;
        // A task is some rows of one sequence and the query heads of one key/value head, which read the same memory.
        let tasks: Vec<Span> = self.spans.iter().flat_map(Span::tasks).collect();
        (0..tasks.len() * n_kv_heads).into_par_iter().for_each(|t| {
            let (task, kv) = (&tasks[t / n_kv_heads], t % n_kv_heads);
            if task.n_new == 1 {
                self.one_row(task, kv, &queries, &cache, out);
            } else {
                self.some_rows(task, kv, &queries, &cache, out);
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        const KERNELS: cuda::Kernels = cuda::kernels!("attention_cached");
        /// Eight warps, as the kernel says; its registers hold heads of up to this many elements.
        const N_THREADS: usize = 256;
        const MAX_HEAD_DIM: usize = 256;
        let out = cuda::matrix(storage, layout)?;
        let (queries, cache) = (cuda::operand(self.queries)?, cuda::operand(self.cache)?);
        cuda::check_dtypes("attention_cached", &[out, queries, cache])?;
        let heads = self.heads;
        if heads.head_dim > MAX_HEAD_DIM {
            bail!("attention_cached: heads of {}, on a card at most {MAX_HEAD_DIM}", heads.head_dim);
        }
        let integers = |tensor: &Tensor| super::rows::vector("attention_cached", tensor, candle_core::DType::U32);
        let (positions, cache_rows) = (integers(self.rows.0)?, integers(self.rows.1)?);
        let grid = [out.n_rows, heads.n_heads, 1];
        let arguments = [
            out.at(),
            out.stride.into(),
            queries.at(),
            queries.stride.into(),
            cache.at(),
            cache.stride.into(),
            positions.at(),
            cache_rows.at(),
            (heads.n_heads as i32).into(),
            (heads.n_kv_heads as i32).into(),
            (heads.head_dim as i32).into(),
            (1.0 / (heads.head_dim as f32).sqrt()).into(),
        ];
        let function = format!("attention_cached_{}", cuda::suffix(out.dtype)?);
        KERNELS.launch(storage.device(), &function, grid, N_THREADS, 0, &arguments)
    }
}

impl Span {
    /// Of each new row of `spans`, in order, its position in its sequence and its row in the cache.
    pub fn rows(spans: &[Span]) -> (Vec<u32>, Vec<u32>) {
        let rows = |span: &Span| {
            let first = span.cache_row;
            (span.n_before..span.n_before + span.n_new).map(move |at| (at as u32, (first + at) as u32))
        };
        spans.iter().flat_map(rows).unzip()
    }

    /// The same rows, at most [`ROWS`] at once.
    fn tasks(&self) -> impl Iterator<Item = Span> + '_ {
        (0..self.n_new).step_by(ROWS).map(|i| Span {
            row: self.row + i,
            n_new: ROWS.min(self.n_new - i),
            n_before: self.n_before + i,
            ..*self
        })
    }
}

impl Forward<'_> {
    /// Many rows: products of matrices, a query head at a time.
    fn some_rows(&self, task: &Span, kv: usize, queries: &Matrix, cache: &Matrix, (out, stride): (SharedMut, usize)) {
        let (d, group) = (self.heads.head_dim, self.heads.group());
        let (n_q, n_k) = (task.n_new, task.n_before + task.n_new);
        let k = operand(cache, task.cache_row, kv * d);
        let v = operand(cache, task.cache_row, (self.heads.n_kv_heads + kv) * d);
        with_scratch(n_q * n_k, |s| {
            for head in kv * group..(kv + 1) * group {
                let q = operand(queries, task.row, head * d);
                // SAFETY: operands are n_q or n_k rows of one head inside their matrices, s is this thread's own.
                unsafe { scores(s, q, k, [n_q, n_k, d], 1.0 / (d as f32).sqrt()) };
                for i in 0..n_q {
                    let (seen, hidden) = s[i * n_k..][..n_k].split_at_mut(task.n_before + i + 1);
                    hidden.fill(0.0);
                    softmax(seen);
                }
                // SAFETY: this task's rows and head of out; no other task writes them.
                unsafe {
                    let o = (out.get().add(task.row * stride + head * d), [stride, 1]);
                    product([n_q, d, n_k], o, (s.as_ptr(), [n_k, 1]), v, 1.0, Write::Set, gemm::Parallelism::None);
                }
            }
        });
    }

    /// One row, the case of every decoding step: the keys and values are read once for all query heads of the group.
    fn one_row(&self, task: &Span, kv: usize, queries: &Matrix, cache: &Matrix, (out, stride): (SharedMut, usize)) {
        let (d, group) = (self.heads.head_dim, self.heads.group());
        let (n_k, scale) = (task.n_before + 1, 1.0 / (d as f32).sqrt());
        let q = &queries.row(task.row)[kv * group * d..][..group * d];
        // SAFETY: this task's row and heads of out, which lie side by side; no other task writes them.
        let o = unsafe { std::slice::from_raw_parts_mut(out.get().add(task.row * stride + kv * group * d), group * d) };
        with_scratch(group * n_k, |s| {
            let (k_at, v_at) = (kv * d, (self.heads.n_kv_heads + kv) * d);
            vectorised(
                #[inline(always)]
                || {
                    for j in 0..n_k {
                        let k = &cache.row(task.cache_row + j)[k_at..][..d];
                        for (g, q) in q.chunks_exact(d).enumerate() {
                            s[g * n_k + j] = scale * dot(q, k);
                        }
                    }
                },
            );
            s.chunks_exact_mut(n_k).for_each(|row| {
                softmax(row);
            });
            o.fill(0.0);
            vectorised(
                #[inline(always)]
                || {
                    for j in 0..n_k {
                        let v = &cache.row(task.cache_row + j)[v_at..][..d];
                        for (g, o) in o.chunks_exact_mut(d).enumerate() {
                            let p = s[g * n_k + j];
                            for (o, v) in o.iter_mut().zip(v) {
                                *o += p * v;
                            }
                        }
                    }
                },
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::attention::attention;
    use crate::lora::place;
    use crate::test_support::{assert_close, random, zeros};

    const HEADS: Heads = Heads { n_heads: 6, n_kv_heads: 2, head_dim: 8 };

    /// [`attention_cached`] with what a card reads of the rows beside what the spans say of them.
    fn answer(out: &Tensor, queries: &Tensor, cache: &Tensor, spans: &[Span], heads: Heads) -> Result<()> {
        let (positions, cache_rows) = Span::rows(spans);
        let integers = |values: Vec<u32>| Tensor::new(values, out.device());
        attention_cached(out, queries, cache, spans, (&integers(positions)?, &integers(cache_rows)?), heads)
    }

    /// Sequences of the given lengths: attention over all rows at once, and the same rows given piece by piece.
    fn whole_and_pieces(lengths: &[usize], pieces: &[usize]) -> Result<(Tensor, Tensor)> {
        let n: usize = lengths.iter().sum();
        let (q_dim, kv_dim) = (48, 16);
        let qkv = random(&[n, HEADS.qkv_dim()], 7)?;
        let mut boundaries = vec![0u32];
        boundaries.extend(lengths.iter().scan(0, |end, &len| {
            *end += len as u32;
            Some(*end)
        }));
        let whole = zeros(&[n, q_dim])?;
        let cu_seqlens = Tensor::new(boundaries.as_slice(), &Device::Cpu)?;
        attention(&whole, &zeros(&[n, 6])?, &qkv, &cu_seqlens, HEADS)?;

        // Rows between sequences hold what must never be read.
        let cache = Tensor::full(f32::NAN, (n + 3 * lengths.len(), 2 * kv_dim), &Device::Cpu)?;
        let result = zeros(&[n, q_dim])?;
        let mut done = vec![0; lengths.len()];
        let mut piece = pieces.iter().cycle();
        while done.iter().zip(lengths).any(|(done, len)| done < len) {
            let (mut spans, mut rows) = (Vec::new(), Vec::new());
            let (mut start, mut cache_row) = (0, 1);
            for (&len, done) in lengths.iter().zip(&mut done) {
                let n_new = (*piece.next().unwrap_or(&1)).min(len - *done);
                if n_new > 0 {
                    let source = qkv.narrow(0, start + *done, n_new)?;
                    place(&cache.narrow(0, cache_row + *done, n_new)?, &source.narrow(1, q_dim, 2 * kv_dim)?)?;
                    spans.push(Span { row: rows.len(), n_new, cache_row, n_before: *done });
                    rows.extend((start + *done) as u32..(start + *done + n_new) as u32);
                    *done += n_new;
                }
                start += len;
                cache_row += len + 3;
            }
            let index = Tensor::new(rows.as_slice(), &Device::Cpu)?;
            let queries = qkv.index_select(&index, 0)?;
            let out = Tensor::full(f32::NAN, (rows.len(), q_dim), &Device::Cpu)?;
            answer(&out, &queries, &cache, &spans, HEADS)?;
            for (i, &row) in rows.iter().enumerate() {
                place(&result.narrow(0, row as usize, 1)?, &out.narrow(0, i, 1)?)?;
            }
        }
        Ok((whole, result))
    }

    /// Rounding of f32 in another order of summation.
    const TOLERANCE: f32 = 2e-6;

    #[test]
    fn rows_one_by_one_and_in_uneven_pieces_are_the_rows_of_the_whole() -> Result<()> {
        for pieces in [&[1][..], &[200], &[3, 1, 70], &[64, 65, 1, 1]] {
            let (whole, result) = whole_and_pieces(&[5, 130, 1, 71], pieces)?;
            assert_close(&result, &whole, TOLERANCE)?;
        }
        Ok(())
    }

    #[test]
    fn spans_outside_the_rows_or_the_cache_are_refused() -> Result<()> {
        let (out, queries, cache) = (zeros(&[2, 48])?, random(&[2, 48], 1)?, random(&[4, 32], 2)?);
        let span = |row, n_new, cache_row, n_before| Span { row, n_new, cache_row, n_before };
        assert!(answer(&out, &queries, &cache, &[span(0, 2, 0, 2)], HEADS).is_ok());
        for spans in [
            vec![span(0, 2, 1, 2)],
            vec![span(0, 1, 0, 0)],
            vec![span(1, 1, 0, 0)],
            vec![span(0, 2, 0, 0), span(1, 1, 0, 0)],
        ] {
            assert!(answer(&out, &queries, &cache, &spans, HEADS).is_err(), "{spans:?}");
        }
        let doubles = cache.to_dtype(DType::F64)?;
        assert!(answer(&out, &queries, &doubles, &[span(0, 2, 0, 2)], HEADS).is_err());
        Ok(())
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernel_agrees_with_the_reference_for_heads_of_every_width() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let spans = [
            Span { row: 0, n_new: 1, cache_row: 0, n_before: 40 },
            Span { row: 1, n_new: 5, cache_row: 50, n_before: 0 },
            Span { row: 6, n_new: 3, cache_row: 60, n_before: 300 },
        ];
        for head_dim in [8, 64, 96, 128, 256] {
            let heads = Heads { n_heads: 6, n_kv_heads: 2, head_dim };
            let inputs = [random(&[9, heads.qkv_dim()], 1)?, random(&[400, 4 * head_dim], 2)?];
            for case in [(DType::F32, 2e-6), (DType::F16, 2e-3), (DType::BF16, 1e-2)] {
                crate::test_support::assert_same_on_card(&card, &inputs, case, |inputs| {
                    let [queries, cache] = inputs else { unreachable!() };
                    let out = queries.narrow(1, 0, heads.k_start())?.zeros_like()?;
                    answer(&out, queries, cache, &spans, heads)?;
                    Ok(vec![out])
                })?;
            }
        }
        Ok(())
    }
}
