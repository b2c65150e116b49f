//! The planned buffers as tensors: allocated once, handed out as views of the rows a batch needs.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use crate::config::Settings;
use crate::data::Batch;
use crate::model::Model;
use crate::model::weights::Slot;
use crate::ops::memory::{Held, Site};
use crate::ops::parking::Parking;
use crate::ops::rope;
use crate::plan::layout::{Layout, Work};

/// Every tensor of a step.
pub(super) struct Buffers {
    /// Where the layers' inputs wait for the backward pass if they are not each in memory of their own. It comes first: dropped, it
    /// ends its copies before the buffers go.
    parked: Option<Arc<Parking>>,
    /// Inputs of the layers and the output of the last, `[max_tokens, hidden]`: one each, or two by turns.
    inputs: Vec<Tensor>,
    kept: Vec<Kept<Option<Tensor>>>,
    work: Vec<(Work, Tensor)>,
    pub(super) slot: Slot,
    /// Ids, positions, supervised rows, labels; then document boundaries.
    integers: [Tensor; 5],
    stats: Tensor,
    rotations: Tensor,
    head_rows: usize,
    mlp_rows: usize,
    /// Of all of these.
    _held: Held,
}

/// What a layer's backward pass needs of its forward pass besides its input.
#[derive(Clone)]
pub(super) struct Kept<T> {
    /// Queries, keys, values after rotation, `[n, qkv]`.
    pub(super) qkv: T,
    /// Attention output with its adapter columns, `[n, q + rank]`.
    pub(super) attention: T,
    /// `[n, heads]`.
    pub(super) log_sum_exp: T,
    /// Residual stream after attention, `[n, hidden]`.
    pub(super) middle: T,
    /// Gate and up with their adapter columns, `[n, 2 ffn + rank]`.
    pub(super) gate_up: T,
}

/// Views of all buffers for the rows of one batch.
pub(super) struct Batched {
    pub(super) input_ids: Tensor,
    pub(super) positions: Tensor,
    pub(super) cu_seqlens: Tensor,
    pub(super) rows: Tensor,
    pub(super) labels: Tensor,
    /// `[loss rows, 2]`.
    pub(super) stats: Tensor,
    pub(super) rotations: Tensor,
    n_tokens: usize,
    inputs: Vec<Tensor>,
    parked: Option<Arc<Parking>>,
    kept: Vec<Kept<Option<Tensor>>>,
    work: Kept<Option<Tensor>>,
    mlp_rows: usize,
    pub(super) norm: Tensor,
    activation: Tensor,
    pub(super) gradient: Tensor,
    pub(super) qkv_gradient: Tensor,
    pub(super) attention_gradient: Tensor,
    /// Row sums of the attention output times its gradient, f32 `[n, heads]`.
    pub(super) delta: Tensor,
    /// Elements for the input of any group as its adapter sees it under dropout.
    pub(super) dropped: Option<Tensor>,
    pub(super) head: HeadBuffers,
    pub(super) slot: Slot,
}

/// Buffers of the loss, `head_rows` rows each.
pub(super) struct HeadBuffers {
    pub(super) n_rows: usize,
    pub(super) input: Tensor,
    pub(super) norm: Tensor,
    pub(super) gradient: Tensor,
    pub(super) logits: Tensor,
}

impl Buffers {
    pub(super) fn new(model: &Model, layout: &Layout, settings: &Settings) -> Result<Self> {
        let device = model.device();
        let t = layout.max_tokens;
        let held = Held::new();
        if device.is_cpu() {
            crate::ops::attention::reserve_scratch(settings.length, &held)?;
        }
        let n_layers = model.shape.n_layers;
        let dtype = settings.compute.dtype();
        let rows = |cols: usize, dtype: DType| held.zeros((t, cols), dtype, device, Site::Kept);
        let keep = |cols: Option<usize>| cols.map(|cols| rows(cols, dtype)).transpose();
        let kept = layout
            .kept
            .iter()
            .map(|kept| {
                Ok(Kept {
                    qkv: keep(kept.qkv)?,
                    attention: keep(kept.attention)?,
                    log_sum_exp: kept.log_sum_exp.map(|cols| rows(cols, DType::F32)).transpose()?,
                    middle: keep(kept.middle)?,
                    gate_up: keep(kept.gate_up)?,
                })
            })
            .collect::<Result<_>>()?;
        let slots: Vec<Tensor> = layout
            .slots
            .iter()
            .map(|slot| held.zeros(slot.elements, slot.dtype.dtype(), device, Site::Workspace))
            .collect::<Result<_>>()?;
        let work = layout
            .work
            .iter()
            .map(|b| {
                let view = slots[b.slot].narrow(0, 0, b.rows * b.cols)?.reshape((b.rows, b.cols))?;
                Ok((b.name, view))
            })
            .collect::<Result<_>>()?;
        let integers = |n: usize| held.zeros(n, DType::U32, device, Site::Inputs);
        if settings.offload_inputs {
            let parked = t * model.shape.hidden * dtype.size_in_bytes() * (n_layers - 1);
            held.admit(parked as u64, &Device::Cpu, Site::Kept)?;
        }
        held.admit((settings.length * model.shape.head_dim * DType::F32.size_in_bytes()) as u64, device, Site::Inputs)?;
        Ok(Self {
            inputs: (0..layout.n_inputs).map(|_| rows(model.shape.hidden, dtype)).collect::<Result<_>>()?,
            parked: settings
                .offload_inputs
                .then(|| Parking::new(n_layers - 1, t * model.shape.hidden, dtype, device).map(Arc::new))
                .transpose()?,
            kept,
            work,
            slot: model.slot_caching(settings.n_layers_cached, &held)?,
            integers: [integers(t)?, integers(t)?, integers(t)?, integers(t)?, integers(t + 1)?],
            stats: held.zeros((t, 2), DType::F32, device, Site::Inputs)?,
            rotations: rope::table(&model.shape.rope.frequencies(model.shape.head_dim), settings.length, device)?,
            head_rows: layout.head_rows,
            mlp_rows: layout.mlp_rows,
            _held: held,
        })
    }

    /// Views of the first rows, as many as `batch` has.
    pub(super) fn batch(&self, batch: &Batch) -> Result<Batched> {
        let n = batch.n_tokens();
        let first = |t: &Tensor| t.narrow(0, 0, n);
        let optional = |t: &Option<Tensor>| t.as_ref().map(first).transpose();
        let find = |name: Work| self.work.iter().find(|(work, _)| *work == name).map(|(_, tensor)| tensor);
        let work = |name: Work| find(name).map(first).transpose();
        let required = |name: Work| match find(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => candle_core::bail!("the layout has no buffer {name:?}"),
        };
        let rows = |name: Work| first(&required(name)?);
        let mlp_rows = self.mlp_rows.min(n).max(1);
        let kept = self
            .kept
            .iter()
            .map(|k| {
                Ok(Kept {
                    qkv: optional(&k.qkv)?,
                    attention: optional(&k.attention)?,
                    log_sum_exp: optional(&k.log_sum_exp)?,
                    middle: optional(&k.middle)?,
                    gate_up: optional(&k.gate_up)?,
                })
            })
            .collect::<Result<_>>()?;
        let [ids, positions, rows_index, labels, boundaries] = &self.integers;
        let n_supervised = batch.n_supervised();
        Ok(Batched {
            input_ids: first(ids)?,
            positions: first(positions)?,
            cu_seqlens: boundaries.narrow(0, 0, batch.cu_seqlens.len())?,
            rows: rows_index.narrow(0, 0, n_supervised)?,
            labels: labels.narrow(0, 0, n_supervised)?,
            stats: self.stats.narrow(0, 0, n_supervised)?,
            rotations: self.rotations.clone(),
            n_tokens: n,
            inputs: self.inputs.iter().map(first).collect::<Result<_>>()?,
            parked: self.parked.clone(),
            kept,
            work: Kept {
                qkv: work(Work::Qkv)?,
                attention: work(Work::Attention)?,
                log_sum_exp: work(Work::LogSumExp)?,
                middle: work(Work::Middle)?,
                gate_up: find(Work::GateUp).map(|t| t.narrow(0, 0, mlp_rows.min(n))).transpose()?,
            },
            mlp_rows,
            norm: rows(Work::Norm)?,
            activation: required(Work::Activation)?.narrow(0, 0, mlp_rows.min(n))?,
            gradient: rows(Work::Gradient)?,
            qkv_gradient: rows(Work::QkvGradient)?,
            attention_gradient: rows(Work::AttentionGradient)?,
            delta: rows(Work::Delta)?,
            dropped: find(Work::Dropped).map(Tensor::flatten_all).transpose()?,
            head: HeadBuffers {
                n_rows: self.head_rows,
                input: required(Work::HeadInput)?,
                norm: required(Work::HeadNorm)?,
                gradient: required(Work::HeadGradient)?,
                logits: required(Work::Logits)?,
            },
            slot: self.slot.clone(),
        })
    }
}

/// Views of the MLP's buffers for some rows of a batch.
pub(super) struct MlpRows {
    pub(super) rows: Range<usize>,
    /// `[rows, hidden]`.
    pub(super) middle: Tensor,
    /// With room for the adapter's columns, as all of these.
    pub(super) norm: Tensor,
    pub(super) gate_up: Tensor,
    pub(super) activation: Tensor,
}

impl Batched {
    /// The input of layer `layer`, and with one more than the last the output of that, `[n, hidden]`.
    pub(super) fn input(&self, layer: usize) -> &Tensor {
        &self.inputs[layer % self.inputs.len()]
    }

    /// Sends the input of `layer` to system memory where inputs wait there: all but the last layer's.
    pub(super) fn park_input(&self, layer: usize, n_layers: usize) -> Result<()> {
        match &self.parked {
            Some(parked) if layer + 1 < n_layers => parked.put(layer, self.input(layer)),
            _ => Ok(()),
        }
    }

    /// Holds what follows until the buffer that the input of `layer` shares with that of `layer - 2` may be written.
    pub(super) fn before_writing_input(&self, layer: usize) -> Result<()> {
        match (&self.parked, layer.checked_sub(2)) {
            (Some(parked), Some(before)) => parked.wait(before),
            _ => Ok(()),
        }
    }

    /// For the backward pass of `layer`: its input is there from here on, and the one before is on its way.
    pub(super) fn bring_inputs(&self, layer: usize, n_layers: usize) -> Result<()> {
        let Some(parked) = &self.parked else { return Ok(()) };
        if layer + 1 < n_layers {
            parked.wait(layer)?;
        }
        if let Some(next) = layer.checked_sub(1) {
            parked.fetch(next, self.input(next))?;
        }
        Ok(())
    }

    /// The rows in parts that go through the MLP at once.
    pub(super) fn mlp_parts(&self, layer: usize) -> Result<Vec<MlpRows>> {
        let kept = self.layer(layer)?;
        let has_own = self.kept[layer].gate_up.is_some();
        let part = |start: usize| {
            let rows = start..(start + self.mlp_rows).min(self.n_tokens);
            let of = |t: &Tensor| t.narrow(0, rows.start, rows.len());
            let gate_up = if has_own { of(&kept.gate_up)? } else { kept.gate_up.narrow(0, 0, rows.len())? };
            Ok(MlpRows {
                middle: of(&kept.middle)?,
                norm: of(&self.norm)?,
                gate_up,
                activation: self.activation.narrow(0, 0, rows.len())?,
                rows,
            })
        };
        (0..self.n_tokens).step_by(self.mlp_rows).map(part).collect()
    }

    /// Where a layer's intermediate results are: kept of its own where the recompute mode keeps them, else shared.
    pub(super) fn layer(&self, layer: usize) -> Result<Kept<Tensor>> {
        let own = &self.kept[layer];
        let pick = |own: &Option<Tensor>, shared: &Option<Tensor>| match own.as_ref().or(shared.as_ref()) {
            Some(tensor) => Ok(tensor.clone()),
            None => candle_core::bail!("a buffer of layer {layer} is neither kept nor in the workspace"),
        };
        Ok(Kept {
            qkv: pick(&own.qkv, &self.work.qkv)?,
            attention: pick(&own.attention, &self.work.attention)?,
            log_sum_exp: pick(&own.log_sum_exp, &self.work.log_sum_exp)?,
            middle: pick(&own.middle, &self.work.middle)?,
            gate_up: pick(&own.gate_up, &self.work.gate_up)?,
        })
    }

    /// What a layer kept, so that it needs no recomputation.
    pub(super) fn kept(&self, layer: usize) -> Kept<bool> {
        let own = &self.kept[layer];
        Kept {
            qkv: own.qkv.is_some(),
            attention: own.attention.is_some(),
            log_sum_exp: own.log_sum_exp.is_some(),
            middle: own.middle.is_some(),
            gate_up: own.gate_up.is_some(),
        }
    }
}
