//! Matrix product into a planned buffer.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
#[cfg(feature = "cuda")]
use candle_core::{CudaStorage, backend::BackendStorage};

use super::cpu::{check_f32, check_shape, cpu_storage, matrix, matrix_mut};
#[cfg(feature = "cuda")]
use super::cublas;

/// Whether a product replaces the destination or is added to it.
#[derive(Clone, Copy, Debug)]
pub enum Write<'a> {
    /// `dst = alpha A B`
    Set,
    /// `dst += alpha A B`
    Add,
    /// `dst = residual + alpha A B`; the residual is `[m, n]` in another storage.
    Residual(&'a Tensor),
}

/// `dst = alpha A B`, or added to what [`Write`] says; accumulated in f32.
///
/// `dst` is `[m, n]`, `a` is `[m, k]`, `b` is `[k, n]`, with any strides, so `.t()` and column views are free. On the processor all are
/// f32; on a card `a` and `b` are of one type and `dst` is of theirs or f32.
pub fn gemm(dst: &Tensor, a: &Tensor, b: &Tensor, alpha: f32, write: Write) -> Result<()> {
    if dst.device().is_cpu() {
        for (name, t) in [("dst", dst), ("a", a), ("b", b)] {
            check_f32("gemm", name, t)?;
        }
    }
    let ((m, n), (am, k), (bk, bn)) = (dst.dims2()?, a.dims2()?, b.dims2()?);
    if (m, n, k) != (am, bn, bk) {
        bail!("gemm: [{m}, {n}] = [{am}, {k}] x [{bk}, {bn}]");
    }
    if let Write::Residual(residual) = write {
        check_shape("gemm", "residual", residual, dst.dims())?;
    }
    dst.inplace_op1(&Gemm { a, b, alpha, write })
}

struct Gemm<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    alpha: f32,
    write: Write<'a>,
}

impl InplaceOp1 for Gemm<'_> {
    fn name(&self) -> &'static str {
        "gemm"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        if let Write::Residual(residual) = self.write {
            let (residual, r_layout) = residual.storage_and_layout();
            let residual = matrix::<f32>(&residual, r_layout)?;
            matrix_mut::<f32>(storage, layout)?.par_rows(|i, row| row.copy_from_slice(residual.row(i)));
        }
        let (a, a_layout) = self.a.storage_and_layout();
        let (b, b_layout) = self.b.storage_and_layout();
        let a = &cpu_storage(&a)?.as_slice::<f32>()?[a_layout.start_offset()..];
        let b = &cpu_storage(&b)?.as_slice::<f32>()?[b_layout.start_offset()..];
        let CpuStorage::F32(dst) = storage else { bail!("gemm: dst is not f32") };
        let dst = &mut dst[layout.start_offset()..];
        let (m, n) = (layout.dims()[0], layout.dims()[1]);
        let k = a_layout.dims()[1];
        let (ds, sa, sb) = (layout.stride(), a_layout.stride(), b_layout.stride());
        // SAFETY: candle checked that each layout lies inside its storage; the three storages are distinct because
        // candle holds a write lock on dst's and read locks on the others'.
        unsafe {
            product(
                [m, n, k],
                (dst.as_mut_ptr(), [ds[0], ds[1]]),
                (a.as_ptr(), [sa[0], sa[1]]),
                (b.as_ptr(), [sb[0], sb[1]]),
                self.alpha,
                self.write,
                threads(m * n * k),
            );
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let dst = cublas::operand(storage, layout)?;
        let (a, b) = (cublas::operand_of(self.a)?, cublas::operand_of(self.b)?);
        let (residual, beta) = match self.write {
            Write::Set => (dst, 0.0),
            Write::Add => (dst, 1.0),
            Write::Residual(residual) => (cublas::operand_of(residual)?, 1.0),
        };
        cublas::product(storage.device(), dst, a, b, self.alpha, (residual, beta))
    }
}

/// Threads worth waking for a product of `mnk` multiply-adds.
pub(crate) fn threads(mnk: usize) -> gemm::Parallelism {
    if mnk < 48 * 48 * 256 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(0) }
}

/// The product on raw operands, each a pointer and its row and column stride in elements.
///
/// # Safety
/// Every element that the sizes and strides name must be inside its allocation, and `dst` must not overlap `a` or `b`.
pub(crate) unsafe fn product(
    [m, n, k]: [usize; 3],
    dst: (*mut f32, [usize; 2]),
    a: (*const f32, [usize; 2]),
    b: (*const f32, [usize; 2]),
    alpha: f32,
    write: Write,
    parallelism: gemm::Parallelism,
) {
    // A residual is in dst already.
    let add = !matches!(write, Write::Set);
    let s = |strides: [usize; 2]| (strides[1] as isize, strides[0] as isize);
    let ((dcs, drs), (acs, ars), (bcs, brs)) = (s(dst.1), s(a.1), s(b.1));
    // SAFETY: the caller's promise is gemm's own. gemm's alpha scales dst, its beta the product.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            dst.0,
            dcs,
            drs,
            add,
            a.0,
            acs,
            ars,
            b.0,
            bcs,
            brs,
            1.0,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{assert_close, random};

    #[test]
    fn strided_views_and_transposes_give_the_plain_product() -> Result<()> {
        let wide_a = random(&[7, 20], 1)?;
        let a = wide_a.narrow(1, 3, 13)?;
        let b = random(&[5, 13], 2)?;
        let wide = random(&[7, 9], 3)?;
        let before = wide.copy()?;
        let dst = wide.narrow(1, 2, 5)?;
        gemm(&dst, &a, &b.t()?, 0.5, Write::Add)?;
        let want = (before.narrow(1, 2, 5)? + (a.contiguous()?.matmul(&b.t()?)? * 0.5)?)?;
        assert_close(&dst, &want, 1e-5)?;
        assert_close(&wide.narrow(1, 0, 2)?, &before.narrow(1, 0, 2)?, 0.0)?;
        assert_close(&wide.narrow(1, 7, 2)?, &before.narrow(1, 7, 2)?, 0.0)
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() -> Result<()> {
        let (dst, a, b) = (random(&[2, 2], 1)?, random(&[2, 3], 2)?, random(&[4, 2], 3)?);
        assert!(gemm(&dst, &a, &b, 1.0, Write::Set).is_err());
        Ok(())
    }

    #[test]
    fn a_residual_is_added_and_left_as_it_is() -> Result<()> {
        let (a, b, residual) = (random(&[4, 3], 1)?, random(&[3, 5], 2)?, random(&[4, 5], 3)?);
        let (added, dst) = (residual.copy()?, random(&[4, 9], 4)?);
        gemm(&added, &a, &b, 2.0, Write::Add)?;
        gemm(&dst.narrow(1, 4, 5)?, &a, &b, 2.0, Write::Residual(&residual))?;
        assert_close(&dst.narrow(1, 4, 5)?, &added, 0.0)
    }

    /// Sums of products in another order: f32 differs in the last bits; 16-bit results are rounded once, 16-bit operands are given.
    #[cfg(feature = "cuda")]
    #[test]
    fn products_on_the_card_agree_with_the_reference_in_every_layout() -> Result<()> {
        use candle_core::DType;
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        for (m, n, k) in [(1, 1, 1), (5, 7, 3), (64, 40, 144), (300, 24, 1000)] {
            let inputs = [
                random(&[m, k + 9], 1)?,
                random(&[k, n], 2)?,
                random(&[n, k], 3)?,
                random(&[m, n], 4)?,
                random(&[k, m], 5)?,
            ];
            for case in [(DType::F32, 1e-5), (DType::F16, 1e-3), (DType::BF16, 8e-3)] {
                crate::test_support::assert_same_on_card(&card, &inputs, case, |inputs| {
                    let [wide, b, b_rows, residual, a_columns] = inputs else { unreachable!() };
                    let a = wide.narrow(1, 8, k)?;
                    let results: Vec<Tensor> = (0..5).map(|_| residual.copy()).collect::<Result<_>>()?;
                    gemm(&results[0], &a, b, 0.5, Write::Set)?;
                    gemm(&results[1], &a, &b_rows.t()?, 0.5, Write::Add)?;
                    gemm(&results[2], &a, b, 1.0, Write::Residual(residual))?;
                    gemm(&results[3], &a_columns.t()?, b, 1.0, Write::Set)?;
                    let sums = residual.to_dtype(DType::F32)?;
                    gemm(&sums, &a_columns.t()?, &b_rows.t()?, 1.0, Write::Add)?;
                    Ok(results.into_iter().chain([sums]).collect())
                })?;
            }
        }
        Ok(())
    }
}
