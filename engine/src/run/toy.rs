//! A learner whose arithmetic depends on everything the real one depends on: tokens, labels, dropout seeds, rates, the
//! moments and the step count of the optimizer. If any of these is lost on a resume, its weights come out different.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

use super::checkpoint::{State, Tensors};
use super::error::Error;
use super::learner::{Learner, Part};
use crate::config::Settings;
use crate::data::{Batch, DataStats};
use crate::hardware::profile;
use crate::model::ModelShape;
use crate::model::shape::Rope;
use crate::ops::memory::{Held, Site};
use crate::plan::ladder::{Rung, next_rung};
use crate::plan::layout::layout;
use crate::plan::{self, Plan};
use crate::step::{self, LossScale};

const N: usize = 16;

#[derive(Debug)]
pub(crate) struct Toy {
    weights: [f32; N],
    moments: [f32; N],
    gradients: [f32; N],
    n_steps: usize,
    /// Added to the loss of evaluations, so that a test can say how they go.
    pub(crate) evaluations: Vec<f64>,
    pub(crate) n_evaluations: usize,
    /// Step (from 0) whose loss is NaN.
    pub(crate) nan_at: Option<usize>,
    /// Scale of the loss, and the largest at which a step (from 0) does not overflow.
    pub(crate) loss_scale: Option<LossScale>,
    pub(crate) largest_scale: fn(usize) -> u32,
    /// False where it answers with what is no number.
    pub(crate) speaks: bool,
    /// Micro-batches over the whole life of this learner.
    pub(crate) n_micro_batches: usize,
    /// What a step holds, and the tokens it is for.
    buffers: Option<(Held, usize)>,
    /// Documents of every step that was completed, in their order.
    pub(crate) steps: Vec<Vec<Vec<u32>>>,
    /// Those of the step that is under way.
    documents: Vec<Vec<u32>>,
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
            loss_scale: None,
            largest_scale: |_| u32::MAX,
            speaks: true,
            n_micro_batches: 0,
            buffers: None,
            steps: Vec::new(),
            documents: Vec::new(),
        }
    }

    /// What the next step depends on.
    pub(crate) fn state(&self) -> ([f32; N], [f32; N], [f32; N], usize) {
        (self.weights, self.moments, self.gradients, self.n_steps)
    }

    pub(crate) fn weights(&self) -> [f32; N] {
        self.weights
    }
}

/// The decoder that it stands for where bytes are counted.
fn shape() -> ModelShape {
    ModelShape {
        family: "llama".into(),
        hidden: 16,
        n_layers: 3,
        n_heads: 2,
        n_kv_heads: 1,
        head_dim: 8,
        ffn: 32,
        vocab_rows: 97,
        rms_eps: 1e-5,
        rope: Rope { theta: 10_000.0, scaling: None },
        tied: true,
        max_positions: 64,
    }
}

/// A plan of another model, for whoever only needs one.
pub(crate) fn some_plan() -> Plan {
    let config = serde_json::json!({ "model": "m", "data": { "path": "d" } });
    let shape = ModelShape {
        family: "llama".into(),
        hidden: 64,
        n_layers: 2,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 16,
        ffn: 160,
        vocab_rows: 97,
        rms_eps: 1e-5,
        rope: Rope { theta: 10_000.0, scaling: None },
        tied: true,
        max_positions: 512,
    };
    let data = DataStats::of((0..25).map(|i| (4 + i % 9, 3)));
    let hardware = profile("no-card").unwrap().hardware();
    plan::plan(&shape, &data, &serde_json::from_value(config).unwrap(), &hardware).unwrap()
}

/// Asks the gate for some memory, as the real learner does there.
fn admit(held: &Held, n: usize, site: Site) -> Result<(), Error> {
    held.admit(4 * n as u64, &Device::Cpu, site).map_err(|e| Error::Step(step::Error::from(e)))
}

impl Learner for Toy {
    fn allocate(&mut self, settings: &Settings) -> Result<(), Error> {
        self.buffers = None;
        let held = Held::new();
        admit(&held, settings.max_tokens(), Site::Kept)?;
        admit(&held, settings.head_rows, Site::Workspace)?;
        self.buffers = Some((held, settings.max_tokens()));
        Ok(())
    }

    fn release(&mut self) -> Result<(), Error> {
        self.buffers = None;
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.buffers.is_some()
    }

    fn forget(&mut self) -> Result<(), Error> {
        self.gradients = [0.0; N];
        self.documents.clear();
        Ok(())
    }

    fn less(&self, settings: &Settings) -> Option<Rung> {
        next_rung(&shape(), settings)
    }

    fn planned_bytes(&self, settings: &Settings) -> u64 {
        layout(&shape(), settings).buffer_bytes()
    }

    fn micro_batch(&mut self, batch: &Batch, part: Part) -> Result<f64, Error> {
        let Part { n_supervised_step, dropout_seed, first_row } = part;
        self.n_micro_batches += 1;
        let max_tokens = self.buffers.as_ref().expect("a step has its buffers").1;
        assert!(batch.n_tokens() <= max_tokens, "{} tokens for {max_tokens}", batch.n_tokens());
        for bounds in batch.cu_seqlens.windows(2) {
            self.documents.push(batch.input_ids[bounds[0] as usize..bounds[1] as usize].to_vec());
        }
        if self.nan_at == Some(self.n_steps) {
            return Ok(f64::NAN);
        }
        let mut nll = 0.0;
        for (&row, &label) in batch.rows.iter().zip(&batch.labels) {
            let input = batch.input_ids[row as usize] as usize % N;
            let dropped = (dropout_seed >> ((first_row + row as usize) % 60)) & 1 == 0;
            let error = self.weights[input] - (label as f32 * 0.11).cos();
            self.gradients[input] += if dropped { 0.5 } else { 1.0 } * error / n_supervised_step as f32;
            nll += f64::from(error * error);
        }
        // The gradients are there, and then there is no memory for what comes back.
        admit(&Held::new(), batch.n_tokens(), Site::Losses)?;
        Ok(nll)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<f64, Error> {
        assert!(self.buffers.is_some());
        admit(&Held::new(), batch.n_tokens(), Site::Losses)?;
        // The numbers wanted by the test, and after them the weights themselves.
        let wanted = self.evaluations.get(self.n_evaluations).copied();
        self.n_evaluations += 1;
        Ok(wanted.unwrap_or_else(|| self.weights.iter().map(|&w| f64::from(w * w)).sum()))
    }

    fn optimizer_step(&mut self, learning_rate: f64) -> Result<f64, Error> {
        admit(&Held::new(), 1, Site::GradientNorm)?;
        let is_beyond = |loss_scale: LossScale| loss_scale.scale > (self.largest_scale)(self.n_steps);
        if self.loss_scale.is_some_and(is_beyond) && self.gradients.iter().any(|&g| g != 0.0) {
            return Err(step::Error::NotFinite { layer: 1, module: "mlp.down_proj" }.into());
        }
        self.loss_scale = self.loss_scale.map(LossScale::after_a_good_step);
        self.n_steps += 1;
        self.steps.push(std::mem::take(&mut self.documents));
        let correction = 1.0 - 0.9f32.powi(self.n_steps as i32);
        let norm = self.gradients.iter().map(|g| g * g).sum::<f32>().sqrt();
        for i in 0..N {
            self.moments[i] = 0.9 * self.moments[i] + 0.1 * self.gradients[i];
            self.weights[i] -= learning_rate as f32 * 100.0 * self.moments[i] / correction;
        }
        self.gradients = [0.0; N];
        Ok(f64::from(norm))
    }

    fn loss_scale(&self) -> Option<LossScale> {
        self.loss_scale
    }

    fn halve_loss_scale(&mut self) -> Result<bool, Error> {
        let Some(halved) = self.loss_scale.and_then(LossScale::halved) else { return Ok(false) };
        self.loss_scale = Some(halved);
        self.forget()?;
        Ok(true)
    }

    fn forget_training(&mut self) -> Result<(), Error> {
        self.forget()?;
        self.loss_scale = self.loss_scale.map(|_| LossScale::default());
        (self.moments, self.n_steps) = ([0.0; N], 0);
        self.steps.clear();
        Ok(())
    }

    fn adapter(&self, held: &Held) -> Result<Tensors, Error> {
        admit(held, N, Site::Checkpoint)?;
        Ok(vec![("weights".into(), Tensor::new(&self.weights, &Device::Cpu).unwrap())])
    }

    fn optimizer(&self, held: &Held) -> Result<Tensors, Error> {
        admit(held, N, Site::Checkpoint)?;
        Ok(vec![("moments".into(), Tensor::new(&self.moments, &Device::Cpu).unwrap())])
    }

    fn optimizer_steps(&self) -> usize {
        self.n_steps
    }

    fn restore(
        &mut self,
        adapter: &HashMap<String, Tensor>,
        optimizer: &HashMap<String, Tensor>,
        state: &State,
    ) -> Result<(), Error> {
        self.weights = adapter["weights"].to_vec1().unwrap().try_into().unwrap();
        self.moments = optimizer["moments"].to_vec1().unwrap().try_into().unwrap();
        self.n_steps = state.optimizer_steps;
        self.loss_scale = state.loss_scale.or(self.loss_scale);
        Ok(())
    }
}
