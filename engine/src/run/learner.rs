//! What the loop trains: the step's `Trainer`, or in tests arithmetic that can be checked by hand.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

use super::checkpoint::{State, Tensors};
use super::error::Error;
use crate::config::{Settings, Target};
use crate::data::Batch;
use crate::model::Adapter;
use crate::ops::memory::{Held, Site};
use crate::plan::{
    self,
    ladder::{Rung, next_rung},
};
use crate::step::{LossScale, Trainer};

/// Where a batch stands in its step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Supervised tokens of the whole step.
    pub(crate) n_supervised_step: usize,
    /// Of the micro-batch that it is a part of, or all of.
    pub(crate) dropout_seed: u64,
    /// Row of that micro-batch which its first row is.
    pub(crate) first_row: usize,
}

/// What the loop asks of whatever it trains. The state it can save and restore is all that the next step depends on.
pub(crate) trait Learner {
    /// Makes what a step needs for `settings`, after giving back what there is. Fails without memory and is not ready then.
    fn allocate(&mut self, settings: &Settings) -> Result<(), Error>;
    /// Gives back what [`Self::allocate`] made. Everything that can be saved stays, and so do the gradients.
    fn release(&mut self) -> Result<(), Error>;
    /// Whether a step can be taken.
    fn is_ready(&self) -> bool;
    /// Forgets the gradients since the last optimizer step.
    fn forget(&mut self) -> Result<(), Error>;
    /// The next rung below `settings`.
    fn less(&self, settings: &Settings) -> Option<Rung>;
    /// Planned peak of `settings`, but for what the process takes beside all that a plan lists.
    fn planned_bytes(&self, settings: &Settings) -> u64;
    /// Forward and backward; gradients add up until the optimizer step. Returns the summed negative log-likelihood.
    fn micro_batch(&mut self, batch: &Batch, part: Part) -> Result<f64, Error>;
    /// Summed negative log-likelihood without a gradient.
    fn evaluate(&mut self, batch: &Batch) -> Result<f64, Error>;
    /// Clips, updates, forgets the gradients; returns the gradient norm before clipping. Nothing is updated where it lacks memory, or
    /// where a gradient is not finite.
    fn optimizer_step(&mut self, learning_rate: f64) -> Result<f64, Error>;
    /// The scale of the loss, with what its next change depends on; none where the loss is not scaled.
    fn loss_scale(&self) -> Option<LossScale>;
    /// After a gradient that was not finite: forgets the gradients and halves the scale. False where it can't be halved.
    fn halve_loss_scale(&mut self) -> Result<bool, Error>;
    /// Back to before the first step: no gradients, empty moments, no updates made. The adapter stays as it is.
    fn forget_training(&mut self) -> Result<(), Error>;
    /// Adapter weights by name, copies that count as `held`.
    fn adapter(&self, held: &Held) -> Result<Tensors, Error>;
    /// Optimizer state by name; what its writing will copy counts as `held`.
    fn optimizer(&self, held: &Held) -> Result<Tensors, Error>;
    /// Updates made so far.
    fn optimizer_steps(&self) -> usize;
    /// Puts a saved state in place of this one.
    fn restore(
        &mut self,
        adapter: &HashMap<String, Tensor>,
        optimizer: &HashMap<String, Tensor>,
        state: &State,
    ) -> Result<(), Error>;
}

/// PEFT's names of the two halves of an adapted layer, `A` (`[rank, in]`) and `B` (`[out, rank]`).
pub(crate) fn peft_names(layer: usize, target: Target) -> [String; 2] {
    let module = target.module();
    ["lora_A", "lora_B"].map(|half| format!("base_model.model.model.layers.{layer}.{module}.{half}.weight"))
}

/// Copies of every A and B on the host, named as PEFT names them.
pub(crate) fn adapter_tensors(adapter: &Adapter) -> Result<Tensors, candle_core::Error> {
    let rank = adapter.lora().rank;
    let mut tensors = Tensors::new();
    for (layer, target) in adapter.names() {
        let [a_name, b_name] = peft_names(layer, target);
        if let (Some(a), Some(b)) = (adapter.a(layer, target), adapter.b(layer, target)) {
            let (n_in, n_out) = (a.len() / rank, b.len() / rank);
            tensors.push((a_name, Tensor::from_vec(a, (rank, n_in), &Device::Cpu)?));
            tensors.push((b_name, Tensor::from_vec(b, (n_out, rank), &Device::Cpu)?));
        }
    }
    Ok(tensors)
}

/// Puts saved tensors into an adapter of the same form.
pub(crate) fn set_adapter(adapter: &mut Adapter, saved: &HashMap<String, Tensor>) -> Result<(), Error> {
    let damaged = |reason: String| Error::Damaged { path: super::checkpoint::ADAPTER.into(), reason };
    let names: Vec<_> = adapter.names().collect();
    for (layer, target) in names {
        let [a_name, b_name] = peft_names(layer, target);
        let half = |name: &str| -> Result<Vec<f32>, Error> {
            let tensor = saved.get(name).ok_or_else(|| damaged(format!("lacks {name}")))?;
            tensor.flatten_all().and_then(|t| t.to_vec1::<f32>()).map_err(|e| damaged(format!("{name}: {e}")))
        };
        // Of another size they are refused there.
        let (a, b) = (half(&a_name)?, half(&b_name)?);
        adapter.set(layer, target, &a, &b).map_err(|e| Error::reading(super::checkpoint::ADAPTER.as_ref(), e))?;
    }
    Ok(())
}

impl Learner for Trainer {
    fn allocate(&mut self, settings: &Settings) -> Result<(), Error> {
        Ok(Trainer::allocate(self, settings)?)
    }

    fn release(&mut self) -> Result<(), Error> {
        Ok(Trainer::release(self)?)
    }

    fn is_ready(&self) -> bool {
        self.has_buffers()
    }

    fn forget(&mut self) -> Result<(), Error> {
        Ok(self.clear_gradients()?)
    }

    fn less(&self, settings: &Settings) -> Option<Rung> {
        next_rung(&self.model().shape, settings)
    }

    fn planned_bytes(&self, settings: &Settings) -> u64 {
        plan::planned_bytes(&self.model().shape, settings) - plan::assumed_overhead_bytes(settings.train_on)
    }

    fn micro_batch(&mut self, batch: &Batch, part: Part) -> Result<f64, Error> {
        let Part { n_supervised_step, dropout_seed, first_row } = part;
        Ok(self.part_of_micro_batch(batch, first_row, n_supervised_step, dropout_seed)?)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<f64, Error> {
        Ok(Trainer::evaluate(self, batch)?)
    }

    fn optimizer_step(&mut self, learning_rate: f64) -> Result<f64, Error> {
        Ok(Trainer::optimizer_step(self, learning_rate)?.grad_norm)
    }

    fn loss_scale(&self) -> Option<LossScale> {
        Trainer::loss_scale(self)
    }

    fn halve_loss_scale(&mut self) -> Result<bool, Error> {
        Ok(Trainer::halve_loss_scale(self)?)
    }

    fn forget_training(&mut self) -> Result<(), Error> {
        Ok(Trainer::forget_training(self)?)
    }

    fn adapter(&self, held: &Held) -> Result<Tensors, Error> {
        let adapter = Trainer::adapter(self);
        let copy = || {
            held.admit((adapter.n_params() * size_of::<f32>()) as u64, &Device::Cpu, Site::Checkpoint)?;
            adapter_tensors(adapter)
        };
        copy().map_err(|e| Error::Model(e.into()))
    }

    fn optimizer(&self, held: &Held) -> Result<Tensors, Error> {
        let tensors = self.optimizer_tensors();
        // They are written one after the other, each from a copy.
        let largest_bytes = tensors.iter().map(|(_, t)| t.elem_count() * t.dtype().size_in_bytes()).max().unwrap_or(0);
        held.admit(largest_bytes as u64, &Device::Cpu, Site::Checkpoint).map_err(|e| Error::Model(e.into()))?;
        Ok(tensors)
    }

    fn optimizer_steps(&self) -> usize {
        Trainer::optimizer_steps(self)
    }

    fn restore(
        &mut self,
        adapter: &HashMap<String, Tensor>,
        optimizer: &HashMap<String, Tensor>,
        state: &State,
    ) -> Result<(), Error> {
        let model = self.model();
        let lora = Trainer::adapter(self).lora();
        // Of its own storage: the trainer's would be changed under the hands of whoever else looks at it.
        let mut restored = Adapter::new(&model.shape, lora, 0, model.device()).map_err(|e| Error::Model(e.into()))?;
        set_adapter(&mut restored, adapter)?;
        self.load_adapter(restored)?;
        if let Some(loss_scale) = state.loss_scale {
            self.set_loss_scale(loss_scale);
        }
        Ok(self.load_optimizer(optimizer, state.optimizer_steps)?)
    }
}
