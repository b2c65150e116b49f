//! Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740 §3.2), for steps in f16.
//!
//! f16 holds nothing below 6e-8, and gradients of activations are smaller than that. The gradient of the loss is therefore multiplied by
//! `S` where it begins, in the head, and divided by it where gradients, by then sums in f32, are used: in their norm and in the
//! optimizer. `S` is a power of two, so neither rounds anything. A gradient past 65,504 becomes infinite and then there is no update:
//! the step is taken again from its start with `S / 2`. After 2,000 steps without that `S` doubles.

use serde::{Deserialize, Serialize};

/// Steps without an overflow after which the scale doubles.
const GROWS_AFTER: u32 = 2000;
/// There is nothing left to gain beyond it: the least gradient that f16 holds is 2^-24, and what is 2^-24 of that changes no weight.
const MOST: u32 = 1 << 24;

/// The scale of the loss, and what its next change depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// A power of two.
    pub scale: u32,
    /// Steps since it changed.
    pub n_good_steps: u32,
    /// How often it was halved in this run.
    pub n_halved: u32,
}

impl Default for LossScale {
    /// Before the first step.
    fn default() -> Self {
        Self { scale: 1 << 16, n_good_steps: 0, n_halved: 0 }
    }
}

impl LossScale {
    /// After one more step without an overflow.
    pub(crate) fn after_a_good_step(self) -> Self {
        if self.n_good_steps + 1 < GROWS_AFTER {
            return Self { n_good_steps: self.n_good_steps + 1, ..self };
        }
        Self { scale: (self.scale * 2).min(MOST), n_good_steps: 0, ..self }
    }

    /// After an overflow; none where it cannot get smaller.
    pub(crate) fn halved(self) -> Option<Self> {
        (self.scale > 1).then(|| Self { scale: self.scale / 2, n_good_steps: 0, n_halved: self.n_halved + 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_after_2000_good_steps_in_a_row_and_an_overflow_begins_the_count_anew() {
        let after = |scale: LossScale, n: usize| (0..n).fold(scale, |scale, _| scale.after_a_good_step());
        let start = LossScale::default();
        assert_eq!(start.scale, 65_536);
        assert_eq!(after(start, 1999), LossScale { n_good_steps: 1999, ..start });
        assert_eq!(after(start, 2000), LossScale { scale: 131_072, ..start });
        let halved = after(start, 1999).halved().expect("above 1");
        assert_eq!(halved, LossScale { scale: 32_768, n_good_steps: 0, n_halved: 1 });
        assert_eq!(after(halved, 1999).scale, 32_768);
        assert_eq!(after(halved, 2000).scale, 65_536);
    }

    #[test]
    fn it_stays_a_power_of_two_between_1_and_2_to_the_24th() {
        let mut scale = LossScale::default();
        while let Some(halved) = scale.halved() {
            scale = halved;
            assert!(scale.scale.is_power_of_two());
        }
        assert_eq!((scale.scale, scale.n_halved), (1, 16));
        let grown = (0..100 * GROWS_AFTER).fold(scale, |scale, _| scale.after_a_good_step());
        assert_eq!(grown.scale, MOST);
    }
}
