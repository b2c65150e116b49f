//! One training step: a batch in, gradients and an updated adapter out.
//!
//! Forward and backward are written by hand in the order the mathematics is taught (`block.rs`, `head.rs`), over buffers that
//! were all allocated before the first step (`buffers.rs`). Nothing here knows files or events.

mod block;
mod buffers;
mod device;
mod head;
mod loss_scale;

use std::collections::HashMap;

use candle_core::{DType, Tensor};

use crate::config::{ComputeDtype, OptimizerKind, Settings};
use crate::data::Batch;
use crate::error::{Explain, FREE_MEMORY};
use crate::model::weights::Slot;
use crate::model::{Adapter, Model};
use crate::ops::adamw::{Moments, Update, adamw};
use crate::ops::attention::Heads;
use crate::ops::grad_norm::{clip_factor, sum_of_squares};
use crate::ops::memory::{self, Held, OutOfMemory, Site};
use crate::ops::upload::{clear, upload};
use crate::plan::layout::{Layout, layout};
use buffers::{Batched, Buffers};
pub use device::{check_compute, device};
pub use loss_scale::LossScale;

/// Why a step could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings ask for a card and there is none for this engine.
    #[error("the run trains on a graphics card and none can be used here: {reason}")]
    NoCard {
        /// What the driver or the build says.
        reason: String,
    },
    /// The card has no bf16, in which the run was planned.
    #[error("the run computes in bf16 and the graphics card here does not")]
    NoBf16,
    /// A micro-batch larger than the buffers.
    #[error("a micro-batch of {n_tokens} tokens does not fit the {max_tokens} that the buffers were planned for")]
    TooManyTokens {
        /// Tokens given.
        n_tokens: usize,
        /// Tokens planned for.
        max_tokens: usize,
    },
    /// A document longer than the table of rotations.
    #[error("a document of {n_tokens} tokens is longer than the planned length {length}")]
    TooLong {
        /// Longest document given.
        n_tokens: usize,
        /// Length planned for.
        length: usize,
    },
    /// A token id that the embedding has no row for.
    #[error("token id {id} is past the {vocab_rows} rows of the embedding")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Rows there are.
        vocab_rows: usize,
    },
    /// A gradient that is NaN or infinite; nothing was updated.
    #[error("the gradient of {module} in layer {layer} is not finite")]
    NotFinite {
        /// First layer (from the output) with such a gradient.
        layer: usize,
        /// Its linear layer.
        module: &'static str,
    },
    /// The same in f16, where no scale of the loss helps any more.
    #[error("the gradient of {module} in layer {layer} is not finite in f16, although the loss is not scaled any more")]
    BeyondF16 {
        /// First layer (from the output) with such a gradient.
        layer: usize,
        /// Its linear layer.
        module: &'static str,
    },
    /// A pass was asked for while the step has no buffers.
    #[error("the step's buffers were given back and not made again")]
    NoBuffers,
    /// There was no memory for something.
    #[error("{}", crate::error::out_of_memory(.0))]
    OutOfMemory(OutOfMemory),
    /// The tensor library refused.
    #[error("an operation failed: {0}")]
    Tensor(candle_core::Error),
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        match memory::shortage(&error) {
            Some(shortage) => Error::OutOfMemory(shortage),
            None => Error::Tensor(error),
        }
    }
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::NoCard { .. } => "step.no_card",
            Error::NoBf16 => "step.no_bf16",
            Error::TooManyTokens { .. } => "step.too_many_tokens",
            Error::TooLong { .. } => "step.too_long",
            Error::UnknownToken { .. } => "step.unknown_token",
            Error::NotFinite { .. } => "step.not_finite",
            Error::BeyondF16 { .. } => "step.beyond_f16",
            Error::NoBuffers => "step.no_buffers",
            Error::OutOfMemory(_) => "step.out_of_memory",
            Error::Tensor(_) => "step.tensor",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::NoCard { .. } => {
                "Run it where the card is, or start a new run, which is planned for what this computer has.".into()
            }
            Error::NoBf16 => {
                "Run it on a card from the RTX 30 series on, or start a new run, which is planned for what this computer has."
                    .into()
            }
            Error::TooManyTokens { .. } | Error::TooLong { .. } => {
                "Plan the run again with this length and micro-batch.".into()
            }
            Error::UnknownToken { .. } => "The tokenizer does not belong to this model; use the model's own.".into(),
            Error::NotFinite { .. } => {
                "The last checkpoint is safe. Lower the learning rate or clip gradients, then resume.".into()
            }
            Error::BeyondF16 { .. } => {
                "The last checkpoint is safe. Start a new run with compute set to f32, or a lower learning rate.".into()
            }
            Error::OutOfMemory(_) => FREE_MEMORY.into(),
            Error::NoBuffers | Error::Tensor(_) => {
                "This is a fault in Hearth. Report it with the run's engine.log.".into()
            }
        }
    }
}

/// What an optimizer step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
}

/// A model, its adapter and everything needed to train it.
pub struct Trainer {
    model: Model,
    adapter: Adapter,
    settings: Settings,
    layout: Layout,
    /// None while their memory is lent to something else.
    buffers: Option<Buffers>,
    gradients: Tensor,
    moments: Moments,
    optimizer_steps: usize,
    /// In f16.
    loss_scale: Option<LossScale>,
    /// Of gradients and moments.
    _held: Held,
}

/// One micro-batch on its way through the blocks.
struct Pass<'a> {
    model: &'a Model,
    adapter: &'a Adapter,
    gradients: &'a Tensor,
    batch: Batched,
    heads: Heads,
    /// Key and probability of this pass's dropout; none in evaluation.
    dropout: Option<(u64, f32)>,
    /// Row of the whole micro-batch that the first of these rows is.
    first_row: usize,
}

impl Trainer {
    /// Allocates every buffer of the layout. `model` must have been loaded for the adapter's ranks.
    pub fn new(model: Model, adapter: Adapter, settings: &Settings) -> Result<Self, Error> {
        let mut trainer = Self::without_buffers(model, adapter, settings)?;
        trainer.allocate(settings)?;
        Ok(trainer)
    }

    /// All that outlives a step, gradients and optimizer state included; [`Self::allocate`] makes the rest.
    pub fn without_buffers(model: Model, adapter: Adapter, settings: &Settings) -> Result<Self, Error> {
        let layout = layout(&model.shape, settings);
        let (n, device, held) = (adapter.n_params(), model.device(), Held::new());
        // What loading needed for a while is not to lie beside the buffers.
        memory::free_caches(device)?;
        let gradients = held.zeros(n, DType::F32, device, Site::Gradients)?;
        let moments = match settings.optimizer {
            OptimizerKind::AdamW32 => Moments::f32(n, device, &held)?,
            OptimizerKind::AdamW8 => Moments::u8(n, device, &held)?,
        };
        model.place_adapter(&adapter, None)?;
        let (settings, buffers) = (settings.clone(), None);
        let loss_scale = (settings.compute == ComputeDtype::F16).then(LossScale::default);
        Ok(Self {
            model,
            adapter,
            settings,
            layout,
            buffers,
            gradients,
            moments,
            optimizer_steps: 0,
            loss_scale,
            _held: held,
        })
    }

    /// Makes the buffers of a step for `settings`, after giving back those there were. Adapter, gradients and optimizer are left as
    /// they are, so `settings` may differ from those before in how a step is computed: micro-batch, recomputation, rows of the head.
    ///
    /// # Errors
    /// Where there is no memory for them; there are no buffers then.
    pub fn allocate(&mut self, settings: &Settings) -> Result<(), Error> {
        self.buffers = None;
        self.layout = layout(&self.model.shape, settings);
        self.settings = settings.clone();
        self.buffers = Some(Buffers::new(&self.model, &self.layout, settings)?);
        self.place_adapter()
    }

    /// Gives the step's buffers back to the device.
    ///
    /// # Errors
    /// Where the driver refuses.
    pub fn release(&mut self) -> Result<(), Error> {
        self.buffers = None;
        Ok(memory::free_caches(self.model.device())?)
    }

    /// Whether the step has its buffers.
    pub fn has_buffers(&self) -> bool {
        self.buffers.is_some()
    }

    /// Forgets the gradients of the micro-batches since the last optimizer step.
    pub fn clear_gradients(&mut self) -> Result<(), Error> {
        Ok(clear(&self.gradients)?)
    }

    /// Forward and backward of one micro-batch; gradients are added to those of the step's other micro-batches.
    ///
    /// `n_supervised_step` is the number of supervised tokens of the whole optimizer step, by which every loss is divided, so that
    /// 1 x 8 and 8 x 1 train the same. `dropout_seed` must be unique to step and micro-batch. Returns the summed loss in nats.
    pub fn micro_batch(&mut self, batch: &Batch, n_supervised_step: usize, dropout_seed: u64) -> Result<f64, Error> {
        self.part_of_micro_batch(batch, 0, n_supervised_step, dropout_seed)
    }

    /// [`Self::micro_batch`] for some whole documents of a micro-batch, of which `first_row` is the first row: its parts together train
    /// what it would have trained in one, dropout included.
    pub fn part_of_micro_batch(
        &mut self,
        part: &Batch,
        first_row: usize,
        n_supervised_step: usize,
        dropout_seed: u64,
    ) -> Result<f64, Error> {
        let dropout = (self.settings.lora.dropout > 0.0).then_some((dropout_seed, self.settings.lora.dropout));
        let pass = Pass { first_row, ..self.pass(part, dropout)? };
        for layer in 0..self.model.shape.n_layers {
            pass.batch.park_input(layer, self.model.shape.n_layers)?;
            pass.forward(layer)?;
        }
        clear(&pass.batch.gradient)?;
        pass.head(Some(self.scale() / n_supervised_step as f32))?;
        for layer in (0..self.model.shape.n_layers).rev() {
            pass.backward(layer)?;
        }
        Ok(pass.loss()?)
    }

    /// Forward of one micro-batch without dropout or gradients. Returns the summed loss in nats.
    pub fn evaluate(&mut self, batch: &Batch) -> Result<f64, Error> {
        let pass = self.pass(batch, None)?;
        for layer in 0..self.model.shape.n_layers {
            pass.forward(layer)?;
        }
        pass.head(None)?;
        Ok(pass.loss()?)
    }

    fn pass(&self, batch: &Batch, dropout: Option<(u64, f32)>) -> Result<Pass<'_>, Error> {
        let n_tokens = batch.n_tokens();
        if n_tokens > self.layout.max_tokens {
            return Err(Error::TooManyTokens { n_tokens, max_tokens: self.layout.max_tokens });
        }
        let longest = batch.cu_seqlens.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
        if longest > self.settings.length {
            return Err(Error::TooLong { n_tokens: longest, length: self.settings.length });
        }
        // A card's kernels don't refuse an index; it is looked at here, where it is still on the host.
        let past = |ids: &[u32]| ids.iter().copied().find(|&id| id as usize >= self.model.shape.vocab_rows);
        if let Some(id) = past(&batch.input_ids).or_else(|| past(&batch.labels)) {
            return Err(Error::UnknownToken { id, vocab_rows: self.model.shape.vocab_rows });
        }
        let on_device = self.buffers.as_ref().ok_or(Error::NoBuffers)?.batch(batch)?;
        upload(&on_device.input_ids, &batch.input_ids)?;
        upload(&on_device.positions, &batch.positions)?;
        upload(&on_device.cu_seqlens, &batch.cu_seqlens)?;
        upload(&on_device.rows, &batch.rows)?;
        upload(&on_device.labels, &batch.labels)?;
        self.model.embedding.gather(on_device.input(0), &on_device.input_ids)?;
        let shape = &self.model.shape;
        let heads = Heads { n_heads: shape.n_heads, n_kv_heads: shape.n_kv_heads, head_dim: shape.head_dim };
        Ok(Pass {
            model: &self.model,
            adapter: &self.adapter,
            gradients: &self.gradients,
            batch: on_device,
            heads,
            dropout,
            first_row: 0,
        })
    }

    /// What gradients are multiplied with until the optimizer divides by it: a power of two, 1 but in f16.
    fn scale(&self) -> f32 {
        self.loss_scale.map_or(1.0, |loss_scale| loss_scale.scale as f32)
    }

    /// Clips, updates the adapter and clears the gradients. Where a gradient is not finite nothing is updated, and memory is taken before
    /// the update only: after a lack of it the step can be taken again, and in f16 after [`Self::halve_loss_scale`] too.
    pub fn optimizer_step(&mut self, learning_rate: f64) -> Result<StepStats, Error> {
        let scale = f64::from(self.scale());
        let norm = sum_of_squares(&self.gradients)?.sqrt() / scale;
        if !norm.is_finite() {
            return Err(self.blame()?);
        }
        let s = &self.settings;
        let update = Update {
            learning_rate,
            beta1: s.beta1,
            beta2: s.beta2,
            epsilon: s.epsilon,
            weight_decay: s.weight_decay,
            step: self.optimizer_steps + 1,
            gradient_scale: clip_factor(norm, s.max_grad_norm) / scale,
        };
        adamw(self.adapter.flat(), &self.gradients, &self.moments, &update)?;
        self.optimizer_steps += 1;
        self.place_adapter()?;
        clear(&self.gradients)?;
        self.loss_scale = self.loss_scale.map(LossScale::after_a_good_step);
        Ok(StepStats { grad_norm: norm })
    }

    /// The scale of the loss, with what its next change depends on; none but in f16.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.loss_scale
    }

    /// Replaces it, as a resumed run does. Nothing changes but in f16.
    pub fn set_loss_scale(&mut self, loss_scale: LossScale) {
        self.loss_scale = self.loss_scale.map(|_| loss_scale);
    }

    /// After a gradient that was not finite: forgets the gradients and halves the scale, so that the step can be taken again from its
    /// start. False where the loss is not scaled, or not any more.
    pub fn halve_loss_scale(&mut self) -> Result<bool, Error> {
        let Some(halved) = self.loss_scale.and_then(LossScale::halved) else { return Ok(false) };
        clear(&self.gradients)?;
        self.loss_scale = Some(halved);
        Ok(true)
    }

    /// Back to before the first step: no gradients, empty moments, no updates made. The adapter stays as it is, so after an update
    /// at a rate of 0 all is as if there had been none.
    pub fn forget_training(&mut self) -> Result<(), Error> {
        clear(&self.gradients)?;
        for (_, tensor) in self.moments.tensors() {
            clear(tensor)?;
        }
        self.optimizer_steps = 0;
        self.loss_scale = self.loss_scale.map(|_| LossScale::default());
        Ok(())
    }

    /// The last layer (the first the backward pass met) whose gradient is not finite.
    fn blame(&self) -> Result<Error, Error> {
        let error = |layer, module| match self.loss_scale {
            Some(LossScale { scale: 1, .. }) => Error::BeyondF16 { layer, module },
            _ => Error::NotFinite { layer, module },
        };
        let mut names: Vec<_> = self.adapter.names().collect();
        names.reverse();
        let gradients = self.adapter.with_flat(self.gradients.clone());
        for (layer, target) in names {
            let values = [gradients.a(layer, target), gradients.b(layer, target)];
            if values.iter().flatten().flatten().any(|g| !g.is_finite()) {
                return Ok(error(layer, target.module()));
            }
        }
        Ok(error(0, "the whole adapter"))
    }

    /// The adapter as it is now.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// The frozen base.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Where this training dequantises its base, for whoever uses the model while no step is under way; none while the step has no
    /// buffers.
    pub(crate) fn slot(&self) -> Option<Slot> {
        self.buffers.as_ref().map(|buffers| buffers.slot.clone())
    }

    /// Gradients summed so far, by the adapter's names; in f16 times the scale of the loss.
    pub fn gradients(&self) -> Adapter {
        self.adapter.with_flat(self.gradients.clone())
    }

    /// Replaces the adapter's values, as a resumed run does.
    pub fn load_adapter(&mut self, adapter: Adapter) -> Result<(), Error> {
        crate::ops::lora::place(self.adapter.flat(), adapter.flat())?;
        self.place_adapter()
    }

    /// The weights that stay dequantised have the adapter in their padding.
    fn place_adapter(&self) -> Result<(), Error> {
        Ok(self.model.place_adapter(&self.adapter, self.buffers.as_ref().map(|buffers| &buffers.slot))?)
    }

    /// Optimizer state by name: the live buffers, not copies.
    pub fn optimizer_tensors(&self) -> Vec<(String, Tensor)> {
        self.moments.tensors().into_iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect()
    }

    /// Replaces the optimizer's state after `steps` steps.
    pub fn load_optimizer(&mut self, tensors: &HashMap<String, Tensor>, steps: usize) -> Result<(), Error> {
        self.moments.load(tensors)?;
        self.optimizer_steps = steps;
        Ok(())
    }

    /// Optimizer steps done.
    pub fn optimizer_steps(&self) -> usize {
        self.optimizer_steps
    }

    /// Bytes of what a checkpoint holds: adapter and optimizer state.
    pub fn saved_bytes(&self) -> u64 {
        let bytes = |t: &Tensor| (t.elem_count() * t.dtype().size_in_bytes()) as u64;
        bytes(self.adapter.flat()) + self.moments.tensors().iter().map(|(_, t)| bytes(t)).sum::<u64>()
    }

    /// Bytes of all buffers, as planned.
    pub fn planned_bytes(&self) -> u64 {
        self.layout.bytes()
    }
}
