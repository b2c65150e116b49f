//! How long a run still takes.

use std::collections::VecDeque;

/// Steps at the start that say nothing: caches are cold and threads are started.
const WARM_UP_STEPS: usize = 3;
/// Steps the rate is taken over.
const WINDOW: usize = 50;

/// Time left, from the tokens of the steps so far: a step of long examples takes longer than one of short ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Eta {
    n_seen: usize,
    recent: VecDeque<(usize, f64)>,
    evaluation_s: Option<f64>,
    /// Seconds per token to expect until steps have said it.
    expected: Option<f64>,
}

impl Eta {
    /// What a rehearsal says: seconds per token and of an evaluation.
    pub(crate) fn expect(&mut self, seconds_per_token: f64, evaluation_s: f64) {
        self.expected = Some(seconds_per_token).filter(|s| s.is_finite());
        self.evaluation_s = Some(evaluation_s);
    }

    pub(crate) fn step(&mut self, n_tokens: usize, seconds: f64) {
        self.n_seen += 1;
        if self.n_seen > WARM_UP_STEPS {
            self.recent.push_back((n_tokens, seconds));
            if self.recent.len() > WINDOW {
                self.recent.pop_front();
            }
        }
    }

    pub(crate) fn evaluation(&mut self, seconds: f64) {
        self.evaluation_s = Some(seconds);
    }

    /// Seconds for `n_tokens` more and `n_evaluations` more; `None` while warming up without a rehearsal.
    pub(crate) fn seconds(&self, n_tokens: f64, n_evaluations: usize) -> Option<f64> {
        let (tokens, seconds) = self.recent.iter().fold((0, 0.0), |(t, s), (n, x)| (t + n, s + x));
        let per_token = if tokens == 0 { self.expected? } else { seconds / tokens as f64 };
        Some(n_tokens * per_token + n_evaluations as f64 * self.evaluation_s.unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_weighted_by_tokens_and_silent_while_warming_up() {
        let mut eta = Eta::default();
        for _ in 0..WARM_UP_STEPS {
            eta.step(100, 60.0);
            assert_eq!(eta.seconds(1000.0, 0), None);
        }
        eta.step(100, 1.0);
        eta.step(300, 3.0);
        assert_eq!(eta.seconds(1000.0, 0), Some(10.0));
        eta.evaluation(2.5);
        assert_eq!(eta.seconds(1000.0, 2), Some(15.0));
    }

    #[test]
    fn after_a_rehearsal_the_time_left_is_known_from_the_first_step_on() {
        let mut eta = Eta::default();
        eta.expect(0.01, 2.0);
        eta.step(100, 60.0);
        assert_eq!(eta.seconds(1000.0, 3), Some(16.0));
        for _ in 0..WARM_UP_STEPS {
            eta.step(100, 2.0);
        }
        assert_eq!(eta.seconds(1000.0, 3), Some(26.0), "what is measured now counts more");
    }
}
