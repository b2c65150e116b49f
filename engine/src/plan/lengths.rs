//! How long the examples are, and what a limit does to them.

use crate::config::OverLength;
use crate::data::DataStats;

/// Distribution of token counts.
///
/// The statistics know it exactly at the edges of their buckets and at three quantiles; in between it is taken as
/// straight, so counts of examples beyond a limit are close, and exact only at 0.
#[derive(Clone, Debug)]
pub(super) struct Lengths {
    /// Ascending in length.
    bins: Vec<Bin>,
    /// Examples in all.
    pub(super) n_examples: usize,
    /// Tokens of the longest example.
    pub(super) max: usize,
    p99: usize,
    /// Share of tokens that are learned.
    pub(super) learned_share: f64,
}

#[derive(Clone, Copy, Debug)]
struct Bin {
    /// Every example in it is longer.
    below: f64,
    /// No example in it is longer.
    longest: f64,
    /// Mean length of its examples.
    mean: f64,
    /// Examples in it.
    count: f64,
}

/// What a limit leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kept {
    /// Examples left.
    pub(super) n_examples: f64,
    /// Their tokens.
    pub(super) n_tokens: f64,
    /// Longer than the limit, left out or cut.
    pub(super) n_over: usize,
    /// Mean, over tokens, of the length of the example a token is in: what attention works on.
    pub(super) attended: f64,
}

impl Kept {
    /// Mean tokens of an example.
    pub(super) fn mean(&self) -> f64 {
        self.n_tokens / self.n_examples
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.n_examples < 0.5
    }
}

impl Lengths {
    pub(super) fn new(data: &DataStats) -> Self {
        let mut bins = bins(data);
        let tokens: f64 = bins.iter().map(|bin| bin.mean * bin.count).sum();
        if tokens > 0.0 {
            // The sum of all tokens is known, and the bins are made to agree with it.
            let factor = data.n_tokens as f64 / tokens;
            for bin in &mut bins {
                bin.mean *= factor;
            }
        }
        Lengths {
            bins,
            n_examples: data.n_examples,
            max: data.max_tokens,
            p99: data.p99_tokens,
            learned_share: (data.n_learned_tokens as f64 / data.n_tokens.max(1) as f64).clamp(0.0, 1.0),
        }
    }

    /// Tokens of about the shortest example.
    pub(super) fn shortest(&self) -> usize {
        self.bins.first().map_or(1, |bin| bin.longest.ceil() as usize)
    }

    /// The length that 99 of 100 examples do not exceed.
    pub(super) fn covering_99(&self) -> usize {
        self.p99.clamp(1, self.max.max(1))
    }

    /// The length that about `share` of the examples do not exceed.
    pub(super) fn covering(&self, share: f64) -> usize {
        let wanted = share * self.n_examples as f64;
        let mut n = 0.0;
        for bin in &self.bins {
            n += bin.count;
            if n >= wanted - 1e-6 {
                return (bin.longest.ceil() as usize).min(self.max);
            }
        }
        self.max
    }

    /// Under a limit of `length` tokens.
    pub(super) fn kept(&self, length: usize, over: OverLength) -> Kept {
        let limit = length as f64;
        let (mut n_examples, mut n_tokens, mut squares, mut n_over) = (0.0, 0.0, 0.0, 0.0);
        for bin in &self.bins {
            // A bin that the limit cuts is divided, its examples spread evenly over its lengths.
            let within = ((limit - bin.below) / (bin.longest - bin.below)).clamp(0.0, 1.0);
            let (count, beyond) = (bin.count * within, bin.count * (1.0 - within));
            let mean = if within < 1.0 { (bin.below + limit) / 2.0 } else { bin.mean.min(limit) };
            n_over += beyond;
            let cut = if over == OverLength::Truncate { beyond } else { 0.0 };
            n_examples += count + cut;
            n_tokens += mean * count + limit * cut;
            squares += mean * mean * count + limit * limit * cut;
        }
        // Binning must not hide the one example that is too long.
        let n_over = if self.max > length { (n_over.round() as usize).max(1) } else { 0 };
        Kept { n_examples, n_tokens, n_over, attended: if n_tokens > 0.0 { squares / n_tokens } else { 0.0 } }
    }
}

/// Pieces into which a stretch between two known lengths is cut.
const PIECES: usize = 4;

/// Bins between the lengths at which the cumulative count is known.
fn bins(data: &DataStats) -> Vec<Bin> {
    let (n, max) = (data.n_examples as f64, data.max_tokens as f64);
    if data.n_tokens == data.n_examples * data.max_tokens {
        return vec![Bin { below: max - 1.0, longest: max, mean: max, count: n }];
    }
    let known = cumulative(data);
    let mut bins = Vec::with_capacity(known.len() * PIECES);
    for pair in known.windows(2) {
        let ((low, before), (high, after)) = (pair[0], pair[1]);
        let count = after - before;
        if count <= 0.0 {
            continue;
        }
        // Lengths are whole: a stretch of one token has one piece.
        let pieces = if high - low <= 1.0 { 1 } else { PIECES };
        let width = (high - low) / pieces as f64;
        for piece in 1..=pieces {
            let longest = low + width * piece as f64;
            let mean = if pieces == 1 { longest } else { longest - width / 2.0 };
            // Two counts known at one length are examples of that length.
            let below = longest - if pieces == 1 { 1.0 } else { width };
            bins.push(Bin { below, longest, mean: mean.max(1.0), count: count / pieces as f64 });
        }
    }
    bins
}

/// `(length, examples not longer than it)`, ascending in both, from nothing to everything.
fn cumulative(data: &DataStats) -> Vec<(f64, f64)> {
    let n = data.n_examples as f64;
    let mut sum = 0;
    let mut edges = vec![(0.0, 0.0)];
    // A bucket begins where the one before it ends; `sum` counts the examples shorter than `start`.
    for &(start, count) in &data.lengths_histogram {
        if start > 0 {
            edges.push(((start - 1) as f64, sum as f64));
        }
        sum += count;
    }
    edges.push((data.max_tokens as f64, n));
    let between = |length: f64| {
        let at = edges.partition_point(|edge| edge.0 < length).clamp(1, edges.len() - 1);
        let ((x0, y0), (x1, y1)) = (edges[at - 1], edges[at]);
        if x1 > x0 { y0 + (y1 - y0) * ((length - x0) / (x1 - x0)).clamp(0.0, 1.0) } else { y1 }
    };
    let mut known = edges.clone();
    for (percent, length) in [(50, data.p50_tokens), (90, data.p90_tokens), (99, data.p99_tokens)] {
        // Nearest rank: `rank` examples are not longer, and fewer than `rank` are shorter.
        let rank = (data.n_examples * percent).div_ceil(100) as f64;
        let length = length as f64;
        known.push((length, between(length).max(rank)));
        known.push((length - 1.0, between(length - 1.0).min(rank - 1.0)));
    }
    known.retain(|&(length, _)| (0.0..=data.max_tokens as f64).contains(&length));
    known.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut most: f64 = 0.0;
    for point in &mut known {
        most = most.max(point.1.clamp(0.0, n));
        point.1 = most;
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(lengths: &[usize]) -> Lengths {
        Lengths::new(&DataStats::of(lengths.iter().map(|&n| (n, n / 2))))
    }

    #[test]
    fn counts_are_exact_at_the_ends_and_close_between() {
        let all: Vec<usize> = (1..=1000).collect();
        let l = lengths(&all);
        assert_eq!(l.kept(1000, OverLength::Drop).n_over, 0);
        assert!(l.kept(999, OverLength::Drop).n_over >= 1);
        for limit in [100, 500, 900, 990] {
            let kept = l.kept(limit, OverLength::Drop);
            assert!((kept.n_examples - limit as f64).abs() <= 12.0, "{limit}: {kept:?}");
            let sum = (limit * (limit + 1) / 2) as f64;
            assert!((kept.n_tokens / sum - 1.0).abs() < 0.06, "{limit}: {kept:?} for {sum}");
            let attended = (2 * limit + 1) as f64 / 3.0;
            assert!((kept.attended / attended - 1.0).abs() < 0.06, "{limit}: {kept:?} for {attended}");
        }
        let cut = l.kept(500, OverLength::Truncate);
        assert!((cut.n_examples - 1000.0).abs() < 1e-6);
        assert!((cut.n_tokens / (125_250.0 + 250_000.0) - 1.0).abs() < 0.03, "{cut:?}");
    }

    #[test]
    fn one_far_longer_example_does_not_blur_the_others() {
        let mut all = vec![100; 990];
        all.extend([200; 8]);
        all.extend([7000; 2]);
        let l = lengths(&all);
        assert_eq!(l.covering_99(), 100);
        let kept = l.kept(128, OverLength::Drop);
        assert!((8..=10).contains(&kept.n_over), "{kept:?}");
        assert!((kept.n_examples - 990.0).abs() < 2.5, "{kept:?}");
    }

    #[test]
    fn equal_lengths_are_one_length() {
        let l = lengths(&[64; 40]);
        assert_eq!((l.covering(0.5), l.covering(0.99), l.shortest()), (64, 64, 64));
        let kept = l.kept(64, OverLength::Drop);
        assert_eq!((kept.n_over, kept.n_examples, kept.n_tokens, kept.attended), (0, 40.0, 2560.0, 64.0));
        assert_eq!(l.kept(63, OverLength::Drop).n_examples, 0.0);
    }

    #[test]
    fn a_single_example_of_a_single_token_is_counted() {
        let l = lengths(&[1]);
        let kept = l.kept(2, OverLength::Drop);
        assert_eq!((kept.n_examples, kept.n_tokens), (1.0, 1.0));
    }
}
