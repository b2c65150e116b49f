//! What the loop trains: the step's `Trainer`, or in tests arithmetic that can be checked by hand.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

use super::checkpoint::Tensors;
use super::error::Error;
use crate::config::Target;
use crate::data::Batch;
use crate::model::Adapter;
use crate::step::Trainer;

/// What the loop asks of whatever it trains. The state it can save and restore is all that the next step depends on.
pub(crate) trait Learner {
    /// Forward and backward; gradients add up until the optimizer step. Returns the summed negative log-likelihood.
    fn micro_batch(&mut self, batch: &Batch, n_supervised_step: usize, dropout_seed: u64) -> Result<f64, Error>;
    /// Summed negative log-likelihood without a gradient.
    fn evaluate(&mut self, batch: &Batch) -> Result<f64, Error>;
    /// Clips, updates, forgets the gradients; returns the gradient norm before clipping.
    fn optimizer_step(&mut self, learning_rate: f64) -> Result<f64, Error>;
    /// Back to before the first step: no gradients, empty moments, no updates made. The adapter stays as it is.
    fn forget(&mut self) -> Result<(), Error>;
    /// Adapter weights by name.
    fn adapter(&self) -> Result<Tensors, Error>;
    /// Optimizer state by name.
    fn optimizer(&self) -> Tensors;
    /// Updates made so far.
    fn optimizer_steps(&self) -> usize;
    /// Puts a saved state in place of this one.
    fn restore(
        &mut self,
        adapter: &HashMap<String, Tensor>,
        optimizer: &HashMap<String, Tensor>,
        optimizer_steps: usize,
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
        let half = |name: &str, expected: Option<Vec<f32>>| -> Result<Vec<f32>, Error> {
            let tensor = saved.get(name).ok_or_else(|| damaged(format!("lacks {name}")))?;
            let values = tensor.flatten_all().and_then(|t| t.to_vec1::<f32>()).map_err(|e| damaged(e.to_string()))?;
            let n = expected.map_or(0, |e| e.len());
            if values.len() == n {
                Ok(values)
            } else {
                Err(damaged(format!("{name} has {} values, not {n}", values.len())))
            }
        };
        let a = half(&a_name, adapter.a(layer, target))?;
        let b = half(&b_name, adapter.b(layer, target))?;
        adapter.set(layer, target, &a, &b).map_err(|e| damaged(e.to_string()))?;
    }
    Ok(())
}

impl Learner for Trainer {
    fn micro_batch(&mut self, batch: &Batch, n_supervised_step: usize, dropout_seed: u64) -> Result<f64, Error> {
        Ok(Trainer::micro_batch(self, batch, n_supervised_step, dropout_seed)?)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<f64, Error> {
        Ok(Trainer::evaluate(self, batch)?)
    }

    fn optimizer_step(&mut self, learning_rate: f64) -> Result<f64, Error> {
        Ok(Trainer::optimizer_step(self, learning_rate)?.grad_norm)
    }

    fn forget(&mut self) -> Result<(), Error> {
        Ok(Trainer::forget(self)?)
    }

    fn adapter(&self) -> Result<Tensors, Error> {
        adapter_tensors(Trainer::adapter(self)).map_err(|e| Error::Model(e.into()))
    }

    fn optimizer(&self) -> Tensors {
        self.optimizer_tensors()
    }

    fn optimizer_steps(&self) -> usize {
        Trainer::optimizer_steps(self)
    }

    fn restore(
        &mut self,
        adapter: &HashMap<String, Tensor>,
        optimizer: &HashMap<String, Tensor>,
        optimizer_steps: usize,
    ) -> Result<(), Error> {
        let model = self.model();
        let lora = Trainer::adapter(self).lora();
        // Of its own storage: the trainer's would be changed under the hands of whoever else looks at it.
        let mut restored = Adapter::new(&model.shape, lora, 0, model.device()).map_err(|e| Error::Model(e.into()))?;
        set_adapter(&mut restored, adapter)?;
        self.load_adapter(restored)?;
        Ok(self.load_optimizer(optimizer, optimizer_steps)?)
    }
}
