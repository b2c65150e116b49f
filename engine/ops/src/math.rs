//! Elementary functions written so that loops over them vectorise, and the dispatch to the machine's vector width.

use std::sync::LazyLock;

static ARCH: LazyLock<pulp::Arch> = LazyLock::new(pulp::Arch::new);

/// Runs `f` compiled for the widest vector instructions this processor has. `f` must be `#[inline(always)]` all through.
#[inline]
pub(crate) fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    ARCH.dispatch(f)
}

/// `e^x` within 2 ulp for finite results; 0 below -87.3, and 88.7 is the largest argument told apart.
///
/// Range reduction by powers of two and a polynomial, without a branch, so that a loop of it vectorises
/// (the C library's `expf` does not). No fused multiply-add, so results are the same on every processor.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts: the first has few bits, so that n * LN2_HI is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.336_54, 88.722_83);
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits of the float.
    const ROUND: f32 = 12_582_912.0;
    let rounded = clamped * LOG2_E + ROUND;
    let n = rounded - ROUND;
    let exponent = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    // Minimax coefficients of Moshier's Cephes library.
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5.000_000_1e-1;
    let value = (p * (r * r) + r) + 1.0;
    // 2^n in two factors: n = 128 has no single-float exponent.
    let half = exponent >> 1;
    let scale = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
    let value = value * scale(half) * scale(exponent.wrapping_sub(half));
    if x < -87.336_54 { 0.0 } else { value }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Sum of products in eight lanes, an order that does not depend on the vector width.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..8 {
            lanes[i] += x[i] * y[i];
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for (x, y) in a_rest.iter().zip(b_rest) {
        sum += x * y;
    }
    sum
}

/// Sum of triple products, in the order of [`dot`].
#[inline(always)]
pub(crate) fn dot3(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let mut lanes = [0f32; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    let (c8, c_rest) = c.as_chunks::<8>();
    for ((x, y), z) in a8.iter().zip(b8).zip(c8) {
        for i in 0..8 {
            lanes[i] += x[i] * y[i] * z[i];
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for ((x, y), z) in a_rest.iter().zip(b_rest).zip(c_rest) {
        sum += x * y * z;
    }
    sum
}

/// Largest element; negative infinity for none.
#[inline(always)]
pub(crate) fn max(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 8];
    let (a8, rest) = a.as_chunks::<8>();
    for x in a8 {
        for i in 0..8 {
            lanes[i] = if x[i] > lanes[i] { x[i] } else { lanes[i] };
        }
    }
    let mut m = f32::NEG_INFINITY;
    for &x in lanes.iter().chain(rest) {
        m = if x > m { x } else { m };
    }
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_and_saturates() {
        for i in -870_000..887_000 {
            let x = i as f32 * 1e-4;
            let (got, want) = (exp(x), (x as f64).exp());
            let ulp = f32::EPSILON as f64 * want;
            assert!((got as f64 - want).abs() <= 2.0 * ulp, "exp({x}) = {got}, want {want}");
        }
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
