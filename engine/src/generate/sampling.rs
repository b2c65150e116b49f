//! The next token from a row of logits.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Chooses tokens for one sequence. Sequences draw from streams of their own, so what a prompt is answered does not
/// depend on which prompts are answered beside it.
pub(super) struct Sampler {
    temperature: f32,
    top_p: f32,
    rng: ChaCha8Rng,
    /// Candidates with their probability, kept between calls.
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    pub(super) fn new(temperature: f32, top_p: f32, seed: u64, sequence: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(sequence as u64);
        Self { temperature, top_p, rng, candidates: Vec::new() }
    }

    /// A token; `None` where a logit is not finite.
    ///
    /// Temperature 0 takes the largest logit (the first of equals). Otherwise a draw from the smallest set of tokens
    /// whose probabilities after division by the temperature add up to `top_p` (Holtzman et al. 2019,
    /// arXiv:1904.09751).
    pub(super) fn next(&mut self, logits: &[f32]) -> Option<u32> {
        let (best, max) = largest(logits)?;
        if self.temperature == 0.0 {
            return Some(best);
        }
        let inverse = 1.0 / self.temperature;
        let weight = |x: f32| ((x - max) * inverse).exp();
        let total: f32 = logits.iter().map(|&x| weight(x)).sum();
        // A token below this probability is never in the set: all such tokens together have less than 1 - top_p.
        let least = (1.0 - self.top_p) / logits.len() as f32;
        self.candidates.clear();
        self.candidates.extend(
            (0u32..).zip(logits).map(|(id, &x)| (id, weight(x) / total)).filter(|&(_, p)| p > 0.0 && p >= least),
        );
        let mut mass: f32 = self.candidates.iter().map(|c| c.1).sum();
        if self.top_p < 1.0 {
            self.candidates.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let mut sum = 0.0;
            let n = self.candidates.iter().take_while(|c| {
                let before = sum;
                sum += c.1;
                before < self.top_p
            });
            let n = n.count().max(1);
            self.candidates.truncate(n);
            mass = self.candidates.iter().map(|c| c.1).sum();
        }
        let mut left = self.rng.random::<f32>() * mass;
        for &(id, p) in &self.candidates {
            left -= p;
            if left < 0.0 {
                return Some(id);
            }
        }
        // Rounding left a little: the last candidate is where it belongs.
        self.candidates.last().map(|c| c.0)
    }
}

/// The largest logit and its id, the first of equals; `None` where one is not finite.
pub(crate) fn largest(logits: &[f32]) -> Option<(u32, f32)> {
    let mut best = (0u32, f32::NEG_INFINITY);
    let mut finite = true;
    for (id, &x) in (0u32..).zip(logits) {
        finite &= x.is_finite();
        if x > best.1 {
            best = (id, x);
        }
    }
    (finite && !logits.is_empty()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits whose softmax is the given probabilities.
    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() + 3.0).collect()
    }

    fn frequencies(temperature: f32, top_p: f32, logits: &[f32]) -> Vec<f32> {
        let mut sampler = Sampler::new(temperature, top_p, 1, 0);
        let n = 20_000;
        let mut counts = vec![0f32; logits.len()];
        for _ in 0..n {
            counts[sampler.next(logits).unwrap() as usize] += 1.0 / n as f32;
        }
        counts
    }

    #[track_caller]
    fn assert_near(got: &[f32], want: &[f32]) {
        // Four standard deviations of a frequency near one half in 20,000 draws.
        let near = got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.015);
        assert!(near, "{got:?}, expected {want:?}");
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = logits(&[0.1, 0.5, 0.15, 0.25]);
        assert_near(&frequencies(1.0, 1.0, &logits), &[0.1, 0.5, 0.15, 0.25]);
        // Temperature 1/2 squares the probabilities: 0.01, 0.25, 0.0225, 0.0625 of 0.345.
        assert_near(&frequencies(0.5, 1.0, &logits), &[0.029, 0.7246, 0.0652, 0.1812]);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        let logits = logits(&[0.1, 0.5, 0.15, 0.25]);
        assert_near(&frequencies(1.0, 0.7, &logits), &[0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]);
        assert_near(&frequencies(1.0, 0.8, &logits), &[0.0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9]);
        assert_near(&frequencies(1.0, 0.01, &logits), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_largest() {
        assert_eq!(Sampler::new(0.0, 1.0, 0, 0).next(&[1.0, 4.0, 4.0, -1.0]), Some(1));
    }

    #[test]
    fn the_same_seed_draws_the_same_and_sequences_draw_apart() {
        let logits = logits(&[0.25; 4]);
        let draw = |seed, sequence| {
            let mut sampler = Sampler::new(1.0, 0.9, seed, sequence);
            (0..32).map(|_| sampler.next(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(5, 1), draw(5, 1));
        assert_ne!(draw(5, 1), draw(5, 2));
        assert_ne!(draw(5, 1), draw(6, 1));
    }

    #[test]
    fn logits_that_are_not_finite_give_no_token() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(Sampler::new(0.0, 1.0, 0, 0).next(&[1.0, bad]), None);
            assert_eq!(Sampler::new(1.0, 0.9, 0, 0).next(&[1.0, bad]), None);
        }
    }
}
