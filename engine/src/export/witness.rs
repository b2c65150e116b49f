//! What the trained model says, written down before it makes room for the export that is compared with it.

use std::ops::ControlFlow;

use super::Error;
use crate::generate::{self, GenerateOptions, Generator};
use crate::model::{Adapter, Model};

/// Memory for logits; prompts with more rows are compared at their ends.
const LOGITS_BYTES: usize = 128 << 20;
/// Most rows compared of one prompt with its answer.
const ROWS_PER_PROMPT: usize = 64;
/// Candidates remembered at each generated token.
const CANDIDATES: usize = 5;

/// A prompt on which an export is compared with the trained model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofPrompt {
    /// As people read it; both tokenizers have to encode it alike.
    pub text: String,
    /// As the model gets it, chat template and special tokens included.
    pub input_ids: Vec<u32>,
}

/// The trained model's tokens and logits on some prompts.
#[derive(Clone, Debug)]
pub struct Witness {
    pub(super) prompts: Vec<ProofPrompt>,
    pub(super) n_new_tokens: usize,
    pub(super) stop_ids: Vec<u32>,
    pub(super) answers: Vec<Answer>,
    /// Standard deviation of the logits over the vocabulary, mean over all rows.
    pub(super) logit_scale: f64,
    /// Of the tuned model's logits from the base's.
    pub(super) from_base: Distance,
}

/// The trained model's answer to one prompt.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    /// The most probable tokens and their logits, best first, for every token generated and for the stop.
    pub(super) candidates: Vec<Vec<(u32, f32)>>,
    /// First position of prompt and answer whose logits are kept.
    pub(super) first_row: usize,
    /// Row-major `[rows, vocab]`.
    pub(super) logits: Vec<f32>,
}

impl Witness {
    /// Lets the model answer the prompts greedily and keeps its logits along prompts and answers. `model` was loaded
    /// for `adapter`'s ranks.
    pub fn record(
        model: &Model,
        adapter: &Adapter,
        prompts: &[ProofPrompt],
        n_new_tokens: usize,
        stop_ids: &[u32],
    ) -> Result<Self, Error> {
        let vocab = model.shape.vocab_rows;
        let rows_each = (LOGITS_BYTES / (4 * vocab) / prompts.len().max(1)).clamp(1, ROWS_PER_PROMPT);
        let mut tuned = Generator::new(model, Some(adapter))?;
        let (tokens, candidates) = greedy(&mut tuned, prompts, n_new_tokens, stop_ids)?;
        let mut answers = Vec::new();
        let (mut deviation, mut n_rows) = (0.0, 0);
        for ((prompt, tokens), candidates) in prompts.iter().zip(tokens).zip(candidates) {
            let ids = [&prompt.input_ids[..], &tokens].concat();
            let first_row = ids.len() - ids.len().min(rows_each);
            let mut logits = Vec::with_capacity(rows_each.min(ids.len()) * vocab);
            tuned.each_logits(&ids, first_row, &mut |_, row| {
                deviation += standard_deviation(row);
                n_rows += 1;
                logits.extend_from_slice(row);
            })?;
            answers.push(Answer { tokens, candidates, first_row, logits });
        }
        drop(tuned);
        let mut witness = Self {
            prompts: prompts.to_vec(),
            n_new_tokens,
            stop_ids: stop_ids.to_vec(),
            answers,
            logit_scale: deviation / n_rows.max(1) as f64,
            from_base: Distance::default(),
        };
        witness.from_base = witness.compare(&mut Generator::new(model, None)?)?;
        Ok(witness)
    }

    /// Distance of another model's logits from the kept ones, on the same tokens.
    pub(super) fn compare(&self, other: &mut Generator) -> Result<Distance, generate::Error> {
        let mut distance = Distance::default();
        for (prompt, answer) in self.prompts.iter().zip(&self.answers) {
            let ids = [&prompt.input_ids[..], &answer.tokens].concat();
            other.each_logits(&ids, answer.first_row, &mut |position, row| {
                let at = (position - answer.first_row) * row.len();
                // A vocabulary of another size has no row to compare with.
                match answer.logits.get(at..at + row.len()) {
                    Some(kept) => distance.add(kept, row),
                    None => distance.add(&[0.0], &[f32::NAN]),
                }
            })?;
        }
        Ok(distance)
    }
}

/// Greedy answers, with the best candidates at every token.
type Greedy = (Vec<Vec<u32>>, Vec<Vec<Vec<(u32, f32)>>>);

fn greedy(
    generator: &mut Generator,
    prompts: &[ProofPrompt],
    n_new_tokens: usize,
    stop_ids: &[u32],
) -> Result<Greedy, generate::Error> {
    let ids: Vec<Vec<u32>> = prompts.iter().map(|p| p.input_ids.clone()).collect();
    let mut candidates = vec![Vec::new(); prompts.len()];
    let mut choose = |prompt: usize, logits: &[f32]| {
        let (best, _) = generate::largest(logits)?;
        candidates[prompt].push(top(logits));
        Some(best)
    };
    let options = GenerateOptions::greedy(n_new_tokens, stop_ids);
    let tokens = generator.generate_by(&ids, &options, &mut choose, &mut |_, _| ControlFlow::Continue(()))?;
    Ok((tokens, candidates))
}

/// Greedy answers alone.
pub(super) fn answers(generator: &mut Generator, witness: &Witness) -> Result<Vec<Vec<u32>>, generate::Error> {
    Ok(greedy(generator, &witness.prompts, witness.n_new_tokens, &witness.stop_ids)?.0)
}

/// The best candidates, best first, the first of equals first.
fn top(logits: &[f32]) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(CANDIDATES + 1);
    for (id, &x) in (0u32..).zip(logits) {
        if best.len() == CANDIDATES && x <= best[CANDIDATES - 1].1 {
            continue;
        }
        let at = best.partition_point(|&(_, b)| b >= x);
        best.insert(at, (id, x));
        best.truncate(CANDIDATES);
    }
    best
}

/// How far two models' logits are apart, over some rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Distance {
    pub(super) n_rows: usize,
    pub(super) max_abs: f64,
    sum_kl: f64,
    pub(super) max_kl: f64,
    /// Rows with another most probable token: how far apart the first model had the two.
    pub(super) disagreements: Vec<f64>,
    /// Something was not a number.
    pub(super) not_finite: bool,
}

impl Distance {
    /// Mean Kullback-Leibler divergence of the second model's distributions from the first's, in nats.
    pub(super) fn mean_kl(&self) -> f64 {
        self.sum_kl / self.n_rows.max(1) as f64
    }

    fn add(&mut self, first: &[f32], second: &[f32]) {
        self.n_rows += 1;
        let (Some((a, a_logit)), Some((b, _))) = (generate::largest(first), generate::largest(second)) else {
            self.not_finite = true;
            return;
        };
        if a != b {
            self.disagreements.push(f64::from(a_logit) - f64::from(first[b as usize]));
        }
        let (p, q) = (log_sum_exp(first), log_sum_exp(second));
        let mut kl = 0.0;
        for (&x, &y) in first.iter().zip(second) {
            let (x, y) = (f64::from(x), f64::from(y));
            self.max_abs = self.max_abs.max((x - y).abs());
            kl += (x - p).exp() * ((x - p) - (y - q));
        }
        // Rounding may leave a zero slightly below it.
        let kl = kl.max(0.0);
        self.sum_kl += kl;
        self.max_kl = self.max_kl.max(kl);
    }
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(max) + sum.ln()
}

fn standard_deviation(row: &[f32]) -> f64 {
    let n = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    (row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_zero_for_equal_rows_and_known_for_two() {
        let mut distance = Distance::default();
        distance.add(&[1.0, 2.0, -3.0], &[1.0, 2.0, -3.0]);
        assert_eq!(distance, Distance { n_rows: 1, ..Distance::default() });
        // p = (3/4, 1/4), q = (1/4, 3/4): KL = 1/2 ln 3.
        let ln3 = 3f32.ln();
        distance.add(&[ln3, 0.0], &[0.0, ln3]);
        assert!((distance.mean_kl() - 0.25 * 3f64.ln()).abs() < 1e-6);
        assert!((distance.max_abs - 3f64.ln()).abs() < 1e-6);
        assert_eq!(distance.disagreements.len(), 1);
        assert!(!distance.not_finite);
        distance.add(&[1.0], &[f32::NAN]);
        assert!(distance.not_finite);
    }

    #[test]
    fn candidates_are_the_best_in_order() {
        let logits = [0.0, 5.0, 1.0, 5.0, -1.0, 4.0, 2.0];
        assert_eq!(top(&logits), [(1, 5.0), (3, 5.0), (5, 4.0), (6, 2.0), (2, 1.0)]);
        assert_eq!(top(&logits[..2]), [(1, 5.0), (0, 0.0)]);
    }
}
