//! A group's quantised weight in its padded buffer, with the adapter in its place.
//!
//! The linear layers of a group are quantised each for itself and used as one matrix, padded for the adapter as
//! [`super::lora`] draws it: the members' `W` below one another, `B` beside them and `A` below. It is built anew for every
//! use of the group, several times a step, so a card does all of it in one launch (nf4.cu).

use candle_core::{Result, Tensor, bail};

use super::cpu::{check_f32, check_shape};
use super::lora::place;
use super::nf4::{self, Nf4};
use super::upload::clear;

/// Linear layers of the largest group: q, k and v.
pub const MAX_MEMBERS: usize = 3;

/// One linear layer of a group.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its frozen weight, `[outputs, n_in]`.
    pub weight: &'a Nf4,
    /// Its `B`, contiguous f32 `[outputs, r]`, and the first of its columns in the padding; `None` where it is not adapted.
    pub b: Option<(&'a Tensor, usize)>,
}

/// Writes a group's weight into `dst`: f32, or 16-bit on a card (every element rounded to nearest).
///
/// With `a`, the members' `A` stacked to contiguous f32 `[rank, n_in]`, `dst` is `[n_out + rank, n_in + rank]`: each
/// member's `W` with its own `B` beside it and zeros in the other columns of the padding, then `A`. The corner of
/// `[rank, rank]` is not touched. Without `a` only the `W` are written, and `dst` may be larger by any padding.
///
/// # Errors
/// Where shapes don't fit, the columns of a `B` lie outside the padding, or there is no member or more than
/// [`MAX_MEMBERS`].
pub fn dequantize(dst: &Tensor, members: &[Member], a: Option<&Tensor>) -> Result<()> {
    let (n_out, n_in, rank) = check(dst, members, a)?;
    #[cfg(feature = "cuda")]
    if dst.device().is_cuda() {
        return nf4::dequantize_on_card(dst.device().as_cuda_device()?, super::cuda::operand(dst)?, members, a);
    }
    let rows = |first: usize, n: usize| dst.narrow(0, first, n);
    if let Some(a) = a {
        place(&rows(n_out, rank)?.narrow(1, 0, n_in)?, a)?;
        clear(&rows(0, n_out)?.narrow(1, n_in, rank)?)?;
    }
    let mut first_row = 0;
    for Member { weight, b } in members {
        let rows = rows(first_row, weight.rows)?;
        nf4::dequantize(&rows.narrow(1, 0, n_in)?, weight)?;
        if let Some((b, first_column)) = b {
            place(&rows.narrow(1, n_in + first_column, b.dim(1)?)?, b)?;
        }
        first_row += weight.rows;
    }
    Ok(())
}

/// `n_out`, `n_in` and `rank` of a group that fits `dst`.
fn check(dst: &Tensor, members: &[Member], a: Option<&Tensor>) -> Result<(usize, usize, usize)> {
    let (Some(first), true) = (members.first(), members.len() <= MAX_MEMBERS) else {
        bail!("padded: {} members in a group, expected 1 to {MAX_MEMBERS}", members.len());
    };
    let n_in = first.weight.cols;
    let rank = a.map_or(Ok(0), |a| a.dim(0))?;
    let mut n_out = 0;
    for Member { weight, b } in members {
        weight.check()?;
        if weight.cols != n_in {
            bail!("padded: members of {n_in} and {} inputs in one group", weight.cols);
        }
        if let Some((b, first_column)) = b {
            let r = b.dim(1)?;
            check_shape("padded", "B", b, &[weight.rows, r])?;
            check_f32("padded", "B", b)?;
            if first_column + r > rank {
                bail!("padded: B takes columns {first_column} to {} of {rank}", first_column + r);
            }
        }
        n_out += weight.rows;
    }
    if let Some(a) = a {
        check_shape("padded", "A", a, &[rank, n_in])?;
        check_f32("padded", "A", a)?;
        check_shape("padded", "the destination", dst, &[n_out + rank, n_in + rank])?;
    }
    let (n_rows, n_cols) = dst.dims2()?;
    if n_rows < n_out || n_cols < n_in {
        bail!("padded: weights of {n_out} x {n_in} do not go into a buffer of {n_rows} x {n_cols}");
    }
    Ok((n_out, n_in, rank))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::test_support::random;

    /// A group's parts, in host memory.
    struct Parts {
        weights: Vec<Nf4>,
        a: Tensor,
        /// With the first column of each.
        b: Vec<Option<(Tensor, usize)>>,
    }

    impl Parts {
        /// Members of the given outputs and ranks; of rank 0 a member is not adapted.
        fn new(members: &[(usize, usize)], n_in: usize) -> Result<Self> {
            let (mut weights, mut b, mut rank) = (Vec::new(), Vec::new(), 0);
            for (i, &(outputs, r)) in members.iter().enumerate() {
                let values = random(&[outputs * n_in], i as u64)?.to_vec1::<f32>()?;
                weights.push(nf4::quantize(&values, outputs, n_in, &Device::Cpu)?);
                b.push(if r == 0 { None } else { Some((random(&[outputs, r], 10 + i as u64)?, rank)) });
                rank += r;
            }
            Ok(Self { weights, a: random(&[rank, n_in], 20)?, b })
        }

        #[cfg(feature = "cuda")]
        fn on(&self, device: &Device) -> Result<Self> {
            let b = |b: &Option<(Tensor, usize)>| -> Result<Option<(Tensor, usize)>> {
                b.as_ref().map(|(b, first)| Ok((b.to_device(device)?, *first))).transpose()
            };
            Ok(Self {
                weights: self.weights.iter().map(|weight| nf4::tests::moved(weight, device)).collect(),
                a: self.a.to_device(device)?,
                b: self.b.iter().map(b).collect::<Result<_>>()?,
            })
        }

        fn members<'a>(&'a self, is_adapted: bool) -> Vec<Member<'a>> {
            let b = |b: &'a Option<(Tensor, usize)>| b.as_ref().filter(|_| is_adapted).map(|(b, first)| (b, *first));
            self.weights.iter().zip(&self.b).map(|(weight, of)| Member { weight, b: b(of) }).collect()
        }

        /// A buffer of nines with the group in it, its first column and the columns beyond it as given.
        fn padded(&self, is_adapted: bool, dtype: DType, (start, more): (usize, usize)) -> Result<Tensor> {
            let n_out = self.weights.iter().map(|w| w.rows).sum::<usize>();
            let (rank, n_in) = self.a.dims2()?;
            let buffer = Tensor::full(9f32, (n_out + rank, n_in + rank + more), self.a.device())?.to_dtype(dtype)?;
            let dst = buffer.narrow(1, start, n_in + rank)?;
            dequantize(&dst, &self.members(is_adapted), Some(&self.a).filter(|_| is_adapted))?;
            buffer.to_device(&Device::Cpu)
        }
    }

    #[test]
    fn each_member_has_its_own_b_beside_it_and_zeros_elsewhere() -> Result<()> {
        // q and v are adapted, k is not.
        let (n_in, members) = (6, [(4, 2), (3, 0), (2, 1)]);
        let (n_out, rank) = (9, 3);
        let parts = Parts::new(&members, n_in)?;
        let a = parts.a.to_vec2::<f32>()?;
        for is_adapted in [true, false] {
            let got = parts.padded(is_adapted, DType::F32, (0, 0))?.to_vec2::<f32>()?;
            let mut first_row = 0;
            for (weight, b) in parts.weights.iter().zip(&parts.b) {
                let plain = Tensor::zeros((weight.rows, n_in), DType::F32, &Device::Cpu)?;
                nf4::dequantize(&plain, weight)?;
                for (i, plain) in plain.to_vec2::<f32>()?.iter().enumerate() {
                    let mut beside = vec![if is_adapted { 0.0 } else { 9.0 }; rank];
                    if let Some((b, first)) = b.as_ref().filter(|_| is_adapted) {
                        let b = b.to_vec2::<f32>()?.swap_remove(i);
                        beside[*first..first + b.len()].copy_from_slice(&b);
                    }
                    let (row, want) = (first_row + i, [plain.as_slice(), beside.as_slice()].concat());
                    assert_eq!(got[row], want, "row {row}");
                }
                first_row += weight.rows;
            }
            for (i, a) in a.iter().enumerate() {
                let a = if is_adapted { a.clone() } else { vec![9.0; n_in] };
                assert_eq!(got[n_out + i], [a, vec![9.0; rank]].concat(), "row {i} of A");
            }
        }
        Ok(())
    }

    #[test]
    fn a_group_that_does_not_fit_is_refused() -> Result<()> {
        let parts = Parts::new(&[(4, 2), (2, 2)], 6)?;
        let (dst, members) = (random(&[10, 10], 1)?, parts.members(true));
        assert!(dequantize(&dst, &members, Some(&parts.a)).is_ok());
        assert!(dequantize(&dst, &members, None).is_err(), "B without A");
        assert!(dequantize(&dst, &[], None).is_err());
        assert!(dequantize(&dst, &[members[0]; 4], Some(&parts.a)).is_err());
        assert!(dequantize(&dst, &members[..1], Some(&parts.a)).is_err(), "rows that nobody writes");
        assert!(dequantize(&dst.narrow(0, 0, 9)?, &members, Some(&parts.a)).is_err());
        assert!(dequantize(&dst.narrow(0, 0, 5)?, &parts.members(false), None).is_err());
        let outside = Member { b: members[1].b.map(|(b, _)| (b, 3)), ..members[1] };
        assert!(dequantize(&dst, &[members[0], outside], Some(&parts.a)).is_err());
        Ok(())
    }

    /// The bits of the reference, rounded where the buffer is 16-bit; what the reference leaves alone is left alone.
    #[cfg(feature = "cuda")]
    #[test]
    fn one_launch_gives_the_bits_of_the_reference() -> Result<()> {
        let Some(card) = crate::test_support::card() else { return Ok(()) };
        let bits = |buffer: Tensor| -> Result<Vec<u32>> {
            let values = buffer.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            Ok(values.into_iter().map(f32::to_bits).collect())
        };
        let groups: &[(&[(usize, usize)], usize)] = &[
            (&[(128, 16), (32, 16), (32, 16)], 192),
            (&[(70, 16), (30, 0), (41, 16)], 2048), // k is not adapted
            (&[(333, 8), (333, 8)], 1088),          // a part of a tile at the end of a row
            (&[(10, 100)], 4160),
            (&[(2000, 8)], 64),
            (&[(6, 4), (3, 4), (5, 4)], 64), // rows of 76: no whole vectors of 16 bits
            (&[(40, 0), (24, 3)], 128),      // an odd rank
            (&[(9, 3), (7, 3)], 130),        // blocks that straddle rows
            (&[(4, 1), (6, 2), (2, 5)], 33),
            (&[(70_000, 1)], 2), // more rows than a grid is high
        ];
        for &(members, n_in) in groups {
            let on_host = Parts::new(members, n_in)?;
            let on_card = on_host.on(&card)?;
            for is_adapted in [true, false] {
                for at in [(0, 0), (0, 16), (2, 5)] {
                    let want = on_host.padded(is_adapted, DType::F32, at)?;
                    for dtype in [DType::F32, DType::F16, DType::BF16] {
                        if !crate::test_support::computes_in(&card, dtype)? {
                            continue;
                        }
                        let got = bits(on_card.padded(is_adapted, dtype, at)?)?;
                        let wrong = got.iter().zip(bits(want.to_dtype(dtype)?)?).position(|(got, want)| *got != want);
                        let with = if is_adapted { "with" } else { "without" };
                        assert_eq!(wrong, None, "{members:?} of {n_in} {with} adapter in {dtype:?} at {at:?}");
                    }
                }
            }
        }
        Ok(())
    }
}
