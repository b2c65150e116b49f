//! Which samples share a micro-batch, and in what order.
//!
//! ```text
//! packing on     [ a a a a | c c | d d d ]   micro_batch × length tokens at most, first fit on a shuffled order
//! packing off    [ a a a a | b b b b b b ]   micro_batch documents
//! ```
//!
//! Documents lie end to end without padding either way, and attention never crosses their borders
//! ([`Batch::cu_seqlens`]).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Batch, Sample};
use crate::config::Settings;

/// Bins that are looked at for a document; older ones are nearly full.
const OPEN_BINS: usize = 256;

/// Sample indices of each micro-batch of an epoch (from 0). A pure function of the samples' lengths, `settings` and
/// `epoch`: the order comes from `settings.seed` and `epoch` alone, so a resumed run continues it exactly. Every sample
/// is in exactly one micro-batch.
///
/// Samples longer than `settings.length` would not fit the planned buffers; [`super::prepare`] lets none through.
pub fn micro_batches(samples: &[Sample], settings: &Settings, epoch: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..samples.len()).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(settings.seed);
    rng.set_stream(epoch as u64);
    shuffle(&mut order, &mut rng);
    if !settings.packing {
        return order.chunks(settings.micro_batch.max(1)).map(<[usize]>::to_vec).collect();
    }
    let capacity = settings.max_tokens();
    let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
    for index in order {
        let n = samples[index].input_ids.len();
        let oldest = bins.len().saturating_sub(OPEN_BINS);
        match bins[oldest..].iter_mut().find(|(used, _)| used + n <= capacity) {
            Some((used, bin)) => {
                *used += n;
                bin.push(index);
            }
            None => bins.push((n, vec![index])),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}

/// The samples at `indices`, laid end to end.
pub fn batch(samples: &[Sample], indices: &[usize]) -> Batch {
    let documents = indices.iter().map(|&i| &samples[i]);
    Batch::from_documents(documents.map(|sample| (sample.input_ids.as_slice(), sample.learned.as_slice())))
}

/// `indices` in runs of at most `max_tokens` tokens, filled one after the other in their order. A sample longer than that is alone in
/// its run.
pub fn runs<'i>(samples: &[Sample], indices: &'i [usize], max_tokens: usize) -> Vec<&'i [usize]> {
    let mut runs = Vec::new();
    let (mut start, mut n_tokens) = (0, 0);
    for (end, &index) in indices.iter().enumerate() {
        let n = samples[index].input_ids.len();
        if end > start && n_tokens + n > max_tokens {
            runs.push(&indices[start..end]);
            (start, n_tokens) = (end, 0);
        }
        n_tokens += n;
    }
    if start < indices.len() {
        runs.push(&indices[start..]);
    }
    runs
}

/// Fisher–Yates with unbiased bounded numbers (Lemire 2019, arXiv:1805.10941). Written out, because the order is part
/// of what a resumed run relies on and must not change with a library's version.
pub(crate) fn shuffle(items: &mut [usize], rng: &mut ChaCha8Rng) {
    for i in (1..items.len()).rev() {
        let bound = i as u64 + 1;
        let j = loop {
            let product = u128::from(rng.next_u64()) * u128::from(bound);
            if product as u64 >= bound.wrapping_neg() % bound {
                break (product >> 64) as usize;
            }
        };
        items.swap(i, j);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(lengths: &[usize]) -> Vec<Sample> {
        let sample = |(row, &n): (usize, &usize)| Sample {
            row,
            input_ids: vec![row as u32; n],
            learned: (0..n).map(|i| i > 0).collect(),
            truncated_from: None,
        };
        lengths.iter().enumerate().map(sample).collect()
    }

    fn settings(packing: bool, micro_batch: usize, length: usize, seed: u64) -> Settings {
        Settings { length, packing, micro_batch, seed, ..Settings::default() }
    }

    #[test]
    fn every_sample_is_in_exactly_one_micro_batch_within_capacity() {
        let lengths: Vec<usize> = (0..997).map(|i| 1 + (i * 7919) % 128).collect();
        let samples = samples(&lengths);
        for (packing, micro_batch) in [(true, 1), (true, 3), (false, 1), (false, 5)] {
            let batches = micro_batches(&samples, &settings(packing, micro_batch, 128, 7), 2);
            let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..997));
            for indices in &batches {
                let n: usize = indices.iter().map(|&i| lengths[i]).sum();
                assert!(n <= micro_batch * 128, "{n}");
                assert!(packing || indices.len() <= micro_batch);
            }
            if packing {
                let used: usize = lengths.iter().sum();
                assert!(used * 100 > batches.len() * micro_batch * 128 * 95, "{} micro-batches", batches.len());
            }
        }
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch_alone() {
        let samples = samples(&[3; 50]);
        let order = |seed, epoch| micro_batches(&samples, &settings(false, 1, 8, seed), epoch);
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        // Written down so that no update of a library changes the order of a run that is to be resumed.
        let first: Vec<usize> = order(1, 0).concat()[..8].to_vec();
        assert_eq!(first, FIRST_OF_SEED_1);
    }

    const FIRST_OF_SEED_1: [usize; 8] = [35, 26, 18, 15, 24, 14, 43, 7];

    #[test]
    fn runs_keep_the_order_and_the_limit_and_lose_nothing() {
        let samples = samples(&[3, 4, 5, 1, 9, 2]);
        let order = [5, 1, 0, 2, 3, 4];
        for max_tokens in 1..30 {
            let runs = runs(&samples, &order, max_tokens);
            assert_eq!(runs.concat(), order);
            for run in runs {
                let n: usize = run.iter().map(|&i| samples[i].input_ids.len()).sum();
                assert!(n <= max_tokens || run.len() == 1, "{run:?} of {n} tokens for {max_tokens}");
            }
        }
        assert_eq!(runs(&samples, &order, 24), [&order]);
        assert!(runs(&samples, &[], 8).is_empty());
    }

    #[test]
    fn packing_never_crosses_documents() {
        let samples = samples(&[2, 3, 1]);
        let batch = batch(&samples, &[1, 2, 0]);
        assert_eq!(batch.cu_seqlens, [0, 3, 4, 6]);
        assert_eq!(batch.positions, [0, 1, 2, 0, 0, 1]);
        assert_eq!(batch.rows, [0, 1, 4]);
        assert_eq!(batch.labels, [1, 1, 0]);
    }
}
