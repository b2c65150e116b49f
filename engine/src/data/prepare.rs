//! All examples of a file as samples within a length limit, with the figures the plan needs.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::packing::shuffle;
use super::{Dataset, Encoder, Error, Problem, Sample};
use crate::config::OverLength;

/// Samples ready for packing, and the rows that are none.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Samples in file order, none longer than the limit.
    pub samples: Vec<Sample>,
    /// The dataset's problems and those found while encoding, by row. Those with `left_out` false are trained, cut.
    pub problems: Vec<Problem>,
    /// Rows of the file.
    pub n_rows: usize,
    /// Samples cut to the limit.
    pub n_truncated: usize,
    /// Examples left out because they are longer than the limit.
    pub n_dropped_long: usize,
    /// Figures of `samples`.
    pub stats: DataStats,
    /// Figures of every encoded example before the limit: what a higher limit would admit.
    pub uncut: DataStats,
}

impl Prepared {
    /// Rows that are not trained.
    pub fn n_left_out(&self) -> usize {
        self.problems.iter().filter(|problem| problem.left_out).count()
    }

    /// Fails, naming the rows, where nothing is left to learn from.
    pub fn check(&self) -> Result<(), Error> {
        match self.samples.is_empty() {
            true => Err(Error::NothingToLearn { n_rows: self.n_rows, problems: self.problems.clone() }),
            false => Ok(()),
        }
    }
}

/// Lengths of a set of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct DataStats {
    /// Samples.
    pub n_examples: usize,
    /// Their tokens.
    pub n_tokens: usize,
    /// Of these, learned.
    pub n_learned_tokens: usize,
    /// Longest sample.
    pub max_tokens: usize,
    /// Mean length.
    pub mean_tokens: f64,
    /// Half of the samples are at most this long.
    pub p50_tokens: usize,
    /// 90 % of the samples are at most this long.
    pub p90_tokens: usize,
    /// 99 % of the samples are at most this long.
    pub p99_tokens: usize,
    /// `(shortest length, samples)` of buckets of equal width, at most 32, from length 0 up to `max_tokens`.
    pub lengths_histogram: Vec<(usize, usize)>,
}

impl DataStats {
    /// Figures of samples of these `(tokens, learned tokens)`.
    pub fn of(lengths: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let (mut tokens, learned): (Vec<usize>, Vec<usize>) = lengths.into_iter().unzip();
        tokens.sort_unstable();
        let Some(&max_tokens) = tokens.last() else { return Self::default() };
        let n_tokens: usize = tokens.iter().sum();
        // Nearest rank: the smallest length that at least this share of the samples does not exceed.
        let quantile = |percent: usize| tokens[(tokens.len() * percent).div_ceil(100).max(1) - 1];
        let width = (max_tokens + 1).div_ceil(32).max(1);
        let mut lengths_histogram: Vec<(usize, usize)> = (0..=max_tokens / width).map(|i| (i * width, 0)).collect();
        for &n in &tokens {
            lengths_histogram[n / width].1 += 1;
        }
        Self {
            n_examples: tokens.len(),
            n_tokens,
            n_learned_tokens: learned.iter().sum(),
            max_tokens,
            mean_tokens: n_tokens as f64 / tokens.len() as f64,
            p50_tokens: quantile(50),
            p90_tokens: quantile(90),
            p99_tokens: quantile(99),
            lengths_histogram,
        }
    }

    /// Figures of `samples`.
    pub fn of_samples(samples: &[Sample]) -> Self {
        Self::of(samples.iter().map(|sample| (sample.input_ids.len(), sample.n_learned())))
    }
}

/// Encodes every example on all cores, in file order, and applies the length limit (tokens).
pub fn prepare(dataset: &Dataset, encoder: &Encoder, length: usize, over_length: OverLength) -> Prepared {
    let encoded: Vec<Result<Sample, Problem>> =
        dataset.examples.par_iter().map(|example| encoder.encode(example)).collect();
    let mut prepared = Prepared {
        samples: Vec::with_capacity(encoded.len()),
        problems: dataset.problems.clone(),
        n_rows: dataset.n_rows,
        n_truncated: 0,
        n_dropped_long: 0,
        stats: DataStats::default(),
        uncut: DataStats::of(encoded.iter().flatten().map(|sample| (sample.input_ids.len(), sample.n_learned()))),
    };
    for (example, result) in dataset.examples.iter().zip(encoded) {
        let mut sample = match result {
            Ok(sample) => sample,
            Err(problem) => {
                prepared.problems.push(problem);
                continue;
            }
        };
        let n = sample.input_ids.len();
        if n <= length {
            prepared.samples.push(sample);
            continue;
        }
        let mut problem = |code: &str, left_out: bool, reason: String| {
            let problem = Problem::new(example.row, example.line, code, reason);
            prepared.problems.push(Problem { left_out, ..problem });
        };
        if over_length == OverLength::Drop {
            problem("too_long", true, format!("{n} tokens against the limit of {length}; left out"));
            prepared.n_dropped_long += 1;
            continue;
        }
        sample.input_ids.truncate(length);
        sample.learned.truncate(length);
        sample.truncated_from = Some(n);
        if sample.n_learned() == 0 {
            let reason =
                format!("{n} tokens against the limit of {length}; what is learned lies behind the cut, left out");
            problem("too_long", true, reason);
            prepared.n_dropped_long += 1;
            continue;
        }
        problem("cut", false, format!("{n} tokens against the limit of {length}; cut to {length}"));
        prepared.n_truncated += 1;
        prepared.samples.push(sample);
    }
    prepared.problems.sort_by_key(|problem| problem.row);
    prepared.stats = DataStats::of_samples(&prepared.samples);
    prepared
}

/// Takes `fraction` of the samples (rounded, at least one of two or more, never all) for evaluation. The choice depends
/// on `seed` and the number of samples only; both parts keep the file's order. Returns `(train, held_out)`.
pub fn split(samples: Vec<Sample>, fraction: f64, seed: u64) -> (Vec<Sample>, Vec<Sample>) {
    let n = samples.len();
    if fraction.is_nan() || fraction <= 0.0 || n < 2 {
        return (samples, Vec::new());
    }
    let n_held_out = ((n as f64 * fraction).round() as usize).clamp(1, n - 1);
    let mut order: Vec<usize> = (0..n).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(u64::MAX);
    shuffle(&mut order, &mut rng);
    let mut held_out = vec![false; n];
    order[..n_held_out].iter().for_each(|&i| held_out[i] = true);
    let mut parts = (Vec::with_capacity(n - n_held_out), Vec::with_capacity(n_held_out));
    for (sample, held_out) in samples.into_iter().zip(held_out) {
        if held_out { parts.1.push(sample) } else { parts.0.push(sample) }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::data::test_support::bundle;
    use crate::data::{Content, Example, Format};

    fn dataset(texts: &[&str]) -> Dataset {
        let example = |(i, text): (usize, &&str)| Example {
            row: i + 1,
            line: Some(i + 1),
            content: Content::Completion { prompt: "p".into(), completion: text.to_string() },
        };
        Dataset {
            path: PathBuf::new(),
            format: Format::PromptCompletion,
            columns: Vec::new(),
            mapping: None,
            n_rows: texts.len(),
            examples: texts.iter().enumerate().map(example).collect(),
            problems: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn encoder() -> Encoder {
        Encoder::new(&bundle(&["</s>"], None, Some("</s>"), None)).unwrap()
    }

    #[test]
    fn nothing_is_dropped_or_cut_without_a_report() {
        let data = dataset(&["a", "bcdef", "g"]);
        let dropped = prepare(&data, &encoder(), 4, OverLength::Drop);
        assert_eq!((dropped.samples.len(), dropped.n_dropped_long, dropped.n_left_out()), (2, 1, 1));
        assert!(dropped.problems[0].reason.contains("7 tokens against the limit of 4"), "{}", dropped.problems[0]);
        let cut = prepare(&data, &encoder(), 4, OverLength::Truncate);
        assert_eq!((cut.samples.len(), cut.n_truncated, cut.n_left_out(), cut.problems.len()), (3, 1, 0, 1));
        assert_eq!(cut.samples[1].input_ids, "pbcd".bytes().map(u32::from).collect::<Vec<_>>());
        let nothing = prepare(&data, &encoder(), 1, OverLength::Truncate);
        assert!(nothing.check().unwrap_err().to_string().contains("row 1"));
        assert_eq!(nothing.n_left_out(), 3);
    }

    #[test]
    fn figures_are_those_of_the_samples() {
        let stats = DataStats::of((1..=100).map(|n| (n, 1)));
        assert_eq!((stats.n_examples, stats.n_tokens, stats.n_learned_tokens, stats.max_tokens), (100, 5050, 100, 100));
        assert_eq!((stats.p50_tokens, stats.p90_tokens, stats.p99_tokens, stats.mean_tokens), (50, 90, 99, 50.5));
        assert_eq!(stats.lengths_histogram.iter().map(|bucket| bucket.1).sum::<usize>(), 100);
        assert_eq!(stats.lengths_histogram[..2], [(0, 3), (4, 4)]);
        assert_eq!(DataStats::of([]), DataStats::default());
    }

    #[test]
    fn the_held_out_part_is_the_same_for_the_same_seed() {
        let samples = prepare(&dataset(&["a"; 40]), &encoder(), 9, OverLength::Drop).samples;
        let rows = |samples: &[Sample]| samples.iter().map(|sample| sample.row).collect::<Vec<_>>();
        let (train, held_out) = split(samples.clone(), 0.1, 3);
        assert_eq!((train.len(), held_out.len()), (36, 4));
        assert_eq!(rows(&split(samples.clone(), 0.1, 3).1), rows(&held_out));
        assert_ne!(rows(&split(samples.clone(), 0.1, 4).1), rows(&held_out));
        assert!(rows(&train).is_sorted() && rows(&held_out).is_sorted());
        assert_eq!(split(samples[..2].to_vec(), 0.01, 0).1.len(), 1);
        assert_eq!(split(samples[..1].to_vec(), 0.9, 0).1.len(), 0);
        assert_eq!(split(samples, 0.0, 0).1.len(), 0);
    }
}
