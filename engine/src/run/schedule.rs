//! The learning rate of each step, and the seeds that belong to it. Both are pure functions of the step's index, so a
//! resumed run sees the values an uninterrupted one sees.

use std::f64::consts::PI;

use crate::config::{ScheduleKind, Settings};

/// Linear warm-up, then the chosen curve.
///
/// With peak `p`, warm-up `w` and `n` steps, step `s` (from 0) has
/// `p (s + 1) / w` while `s < w`, then with `t = (s - w) / (n - w)`: constant `p`, linear `p (1 - t)`, cosine
/// `p (1 + cos πt) / 2`. No step has rate 0, so none is wasted.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    kind: ScheduleKind,
    peak: f64,
    warmup_steps: usize,
    n_steps: usize,
}

impl Schedule {
    /// The schedule of a run.
    pub fn of(settings: &Settings) -> Self {
        Self {
            kind: settings.schedule,
            peak: settings.learning_rate,
            warmup_steps: settings.warmup_steps,
            n_steps: settings.n_steps,
        }
    }

    /// Rate of step `step`, counted from 0.
    pub fn learning_rate(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let rest = self.n_steps.saturating_sub(self.warmup_steps).max(1) as f64;
        let t = ((step - self.warmup_steps) as f64 / rest).min(1.0);
        match self.kind {
            ScheduleKind::Constant => self.peak,
            ScheduleKind::Linear => self.peak * (1.0 - t),
            ScheduleKind::Cosine => self.peak * 0.5 * (1.0 + (PI * t).cos()),
        }
    }
}

/// Seed of the dropout masks of one micro-batch of one step, both counted from 0.
pub fn dropout_seed(seed: u64, step: usize, micro_batch: usize) -> u64 {
    mix(mix(mix(seed) ^ step as u64) ^ micro_batch as u64)
}

/// One round of SplitMix64 (Steele et al. 2014, doi:10.1145/2660193.2660195): a bijection whose outputs look independent.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn schedule(kind: ScheduleKind, warmup_steps: usize, n_steps: usize) -> Schedule {
        Schedule { kind, peak: 2e-4, warmup_steps, n_steps }
    }

    #[test]
    fn warm_up_is_linear_and_reaches_the_peak_at_its_last_step() {
        let s = schedule(ScheduleKind::Cosine, 4, 20);
        let rates: Vec<f64> = (0..5).map(|i| s.learning_rate(i)).collect();
        for (rate, expected) in rates.iter().zip([0.5e-4, 1e-4, 1.5e-4, 2e-4, 2e-4]) {
            // Thirds and quarters of the peak round in the last bit.
            assert!((rate - expected).abs() < 1e-18, "{rates:?}");
        }
    }

    #[test]
    fn curves_have_their_closed_forms() {
        let (w, n) = (10, 110);
        for step in [10, 35, 60, 85, 109] {
            let t = (step - w) as f64 / 100.0;
            assert_eq!(schedule(ScheduleKind::Constant, w, n).learning_rate(step), 2e-4);
            assert!((schedule(ScheduleKind::Linear, w, n).learning_rate(step) - 2e-4 * (1.0 - t)).abs() < 1e-18);
            // cos²(πt/2) is the same curve written differently.
            let expected = 2e-4 * (PI * t / 2.0).cos().powi(2);
            assert!((schedule(ScheduleKind::Cosine, w, n).learning_rate(step) - expected).abs() < 1e-18);
        }
    }

    #[test]
    fn no_step_has_rate_zero() {
        for kind in [ScheduleKind::Constant, ScheduleKind::Linear, ScheduleKind::Cosine] {
            for (w, n) in [(0, 1), (1, 1), (3, 3), (0, 7), (5, 40)] {
                for step in 0..n {
                    assert!(schedule(kind, w, n).learning_rate(step) > 0.0, "{kind:?} {w} {n} {step}");
                }
            }
        }
    }

    #[test]
    fn a_warm_up_longer_than_the_run_never_reaches_the_peak() {
        let s = schedule(ScheduleKind::Linear, 10, 4);
        assert_eq!(s.learning_rate(3), 2e-4 * 0.4);
    }

    #[test]
    fn dropout_seeds_differ_between_steps_micro_batches_and_runs() {
        let mut seen = HashSet::new();
        for seed in 0..4 {
            for step in 0..50 {
                for micro_batch in 0..8 {
                    assert!(seen.insert(dropout_seed(seed, step, micro_batch)), "{seed} {step} {micro_batch}");
                }
            }
        }
        assert_eq!(dropout_seed(7, 3, 1), dropout_seed(7, 3, 1));
    }
}
