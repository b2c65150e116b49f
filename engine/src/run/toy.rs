//! A learner whose arithmetic depends on everything the real one depends on: tokens, labels, dropout seeds, rates, the
//! moments and the step count of the optimizer. If any of these is lost on a resume, its weights come out different.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

use super::checkpoint::Tensors;
use super::error::Error;
use super::learner::Learner;
use crate::data::Batch;

const N: usize = 16;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Toy {
    weights: [f32; N],
    moments: [f32; N],
    gradients: [f32; N],
    n_steps: usize,
    /// Added to the loss of evaluations, so that a test can say how they go.
    pub(crate) evaluations: Vec<f64>,
    n_evaluations: usize,
    /// Step (from 0) whose loss is NaN.
    pub(crate) nan_at: Option<usize>,
    /// Micro-batches over the whole life of this learner.
    pub(crate) n_micro_batches: usize,
    /// Which of them has no memory.
    pub(crate) fails_at: Option<usize>,
}

impl Toy {
    pub(crate) fn new() -> Self {
        let weights = std::array::from_fn(|i| (i as f32 * 0.37).sin());
        Self {
            weights,
            moments: [0.0; N],
            gradients: [0.0; N],
            n_steps: 0,
            evaluations: Vec::new(),
            n_evaluations: 0,
            nan_at: None,
            n_micro_batches: 0,
            fails_at: None,
        }
    }

    /// True where what the next step depends on is the same.
    pub(crate) fn is_where(&self, other: &Toy) -> bool {
        let state = |toy: &Toy| (toy.weights, toy.moments, toy.gradients, toy.n_steps);
        state(self) == state(other)
    }

    pub(crate) fn weights(&self) -> [f32; N] {
        self.weights
    }
}

impl Learner for Toy {
    fn micro_batch(&mut self, batch: &Batch, n_supervised_step: usize, dropout_seed: u64) -> Result<f64, Error> {
        self.n_micro_batches += 1;
        if self.fails_at == Some(self.n_micro_batches - 1) {
            let error = candle_core::Error::Msg("out of memory".into());
            return Err(Error::Step(crate::step::Error::Tensor(error)));
        }
        if self.nan_at == Some(self.n_steps) {
            return Ok(f64::NAN);
        }
        let mut nll = 0.0;
        for (&row, &label) in batch.rows.iter().zip(&batch.labels) {
            let input = batch.input_ids[row as usize] as usize % N;
            let dropped = (dropout_seed >> (row % 60)) & 1 == 0;
            let error = self.weights[input] - (label as f32 * 0.11).cos();
            self.gradients[input] += if dropped { 0.5 } else { 1.0 } * error / n_supervised_step as f32;
            nll += f64::from(error * error);
        }
        Ok(nll)
    }

    fn evaluate(&mut self, _: &Batch) -> Result<f64, Error> {
        // The numbers wanted by the test, and after them the weights themselves.
        let wanted = self.evaluations.get(self.n_evaluations).copied();
        self.n_evaluations += 1;
        Ok(wanted.unwrap_or_else(|| self.weights.iter().map(|&w| f64::from(w * w)).sum()))
    }

    fn optimizer_step(&mut self, learning_rate: f64) -> Result<f64, Error> {
        self.n_steps += 1;
        let correction = 1.0 - 0.9f32.powi(self.n_steps as i32);
        let norm = self.gradients.iter().map(|g| g * g).sum::<f32>().sqrt();
        for i in 0..N {
            self.moments[i] = 0.9 * self.moments[i] + 0.1 * self.gradients[i];
            self.weights[i] -= learning_rate as f32 * 100.0 * self.moments[i] / correction;
        }
        self.gradients = [0.0; N];
        Ok(f64::from(norm))
    }

    fn forget(&mut self) -> Result<(), Error> {
        (self.moments, self.gradients, self.n_steps) = ([0.0; N], [0.0; N], 0);
        Ok(())
    }

    fn adapter(&self) -> Result<Tensors, Error> {
        Ok(vec![("weights".into(), Tensor::new(&self.weights, &Device::Cpu).unwrap())])
    }

    fn optimizer(&self) -> Tensors {
        vec![("moments".into(), Tensor::new(&self.moments, &Device::Cpu).unwrap())]
    }

    fn optimizer_steps(&self) -> usize {
        self.n_steps
    }

    fn restore(
        &mut self,
        adapter: &HashMap<String, Tensor>,
        optimizer: &HashMap<String, Tensor>,
        optimizer_steps: usize,
    ) -> Result<(), Error> {
        self.weights = adapter["weights"].to_vec1().unwrap().try_into().unwrap();
        self.moments = optimizer["moments"].to_vec1().unwrap().try_into().unwrap();
        self.n_steps = optimizer_steps;
        Ok(())
    }
}
