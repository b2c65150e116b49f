//! Where a run stands in its data.

use crate::config::Settings;
use crate::data::{self, Sample};

/// Walks over the micro-batches of pass after pass. The order of a pass follows from the seed and the pass alone, so
/// `(epoch, position)` is all there is to remember.
pub(crate) struct Cursor<'a> {
    samples: &'a [Sample],
    settings: &'a Settings,
    epoch: usize,
    position: usize,
    /// Sample indices of each micro-batch of `epoch`, and its tokens.
    plan: Vec<Vec<usize>>,
    n_tokens: Vec<usize>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn at(samples: &'a [Sample], settings: &'a Settings, epoch: usize, position: usize) -> Self {
        let mut cursor = Self { samples, settings, epoch, position, plan: Vec::new(), n_tokens: Vec::new() };
        cursor.begin(epoch);
        cursor.position = position.min(cursor.plan.len());
        cursor
    }

    fn begin(&mut self, epoch: usize) {
        self.epoch = epoch;
        self.position = 0;
        self.plan = data::micro_batches(self.samples, self.settings, epoch);
        let tokens = |indices: &Vec<usize>| indices.iter().map(|&i| self.samples[i].input_ids.len()).sum::<usize>();
        self.n_tokens = self.plan.iter().map(tokens).collect();
    }

    /// Sample indices of the micro-batches of the next step: `accumulation` of them, fewer where the pass ends. A step
    /// never mixes two passes, so `epochs = 1` shows every example exactly once.
    pub(crate) fn next_step(&mut self) -> Vec<Vec<usize>> {
        if self.position == self.plan.len() {
            self.begin(self.epoch + 1);
        }
        let end = (self.position + self.settings.accumulation).min(self.plan.len());
        let step = self.plan[self.position..end].to_vec();
        self.position = end;
        step
    }

    /// Pass of the last micro-batch handed out, from 0.
    pub(crate) fn epoch(&self) -> usize {
        self.epoch
    }

    /// Micro-batches of that pass handed out.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Passes over the data so far.
    pub(crate) fn epochs_done(&self) -> f64 {
        self.epoch as f64 + self.position as f64 / self.plan.len().max(1) as f64
    }

    /// Tokens of the next `n_steps` steps: exact in this pass, by the mean for the passes after it.
    pub(crate) fn tokens_ahead(&self, n_steps: usize) -> f64 {
        let here = &self.n_tokens[self.position..];
        let n_here = here.len().div_ceil(self.settings.accumulation).min(n_steps);
        let in_this_pass: usize = here.iter().take(n_here * self.settings.accumulation).sum();
        let per_pass: usize = self.n_tokens.iter().sum();
        let steps_per_pass = self.plan.len().div_ceil(self.settings.accumulation).max(1);
        in_this_pass as f64 + (n_steps - n_here) as f64 * per_pass as f64 / steps_per_pass as f64
    }
}

/// Steps of `epochs` passes over the data.
pub(crate) fn steps_of(samples: &[Sample], settings: &Settings, epochs: f64) -> usize {
    let steps_in = |epoch: usize| data::micro_batches(samples, settings, epoch).len().div_ceil(settings.accumulation);
    let whole = epochs.floor() as usize;
    let fraction = epochs - whole as f64;
    let in_whole: usize = (0..whole).map(steps_in).sum();
    let in_rest = if fraction > 0.0 { (steps_in(whole) as f64 * fraction).ceil() as usize } else { 0 };
    (in_whole + in_rest).max(1)
}
