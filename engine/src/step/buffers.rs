//! The planned buffers as tensors: allocated once, handed out as views of the rows a batch needs.

use candle_core::{DType, Device, Result, Tensor};

use crate::config::Settings;
use crate::data::Batch;
use crate::model::Model;
use crate::model::weights::Slot;
use crate::ops::rope;
use crate::plan::layout::{Layout, Work};

/// Every tensor of a step.
pub(super) struct Buffers {
    /// Inputs of each layer and the output of the last, `[max_tokens, hidden]`.
    inputs: Vec<Tensor>,
    kept: Vec<Kept<Option<Tensor>>>,
    work: Vec<(Work, Tensor)>,
    pub(super) slot: Slot,
    /// Ids, positions, supervised rows, labels; then document boundaries.
    integers: [Tensor; 5],
    stats: Tensor,
    rotations: Tensor,
    head_rows: usize,
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
    pub(super) inputs: Vec<Tensor>,
    kept: Vec<Kept<Option<Tensor>>>,
    work: Kept<Option<Tensor>>,
    pub(super) norm: Tensor,
    pub(super) activation: Tensor,
    pub(super) gradient: Tensor,
    pub(super) qkv_gradient: Tensor,
    pub(super) attention_gradient: Tensor,
    /// Row sums of the attention output times its gradient, f32 `[n, heads]`.
    pub(super) delta: Tensor,
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
        if device.is_cpu() {
            crate::ops::attention::reserve_scratch(settings.length);
        }
        let n_layers = model.shape.n_layers;
        let dtype = settings.compute.dtype();
        let rows = |cols: usize, dtype: DType| touched(t * cols, dtype, device)?.reshape((t, cols));
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
            .map(|slot| touched(slot.elements, slot.dtype.dtype(), device))
            .collect::<Result<_>>()?;
        let work = layout
            .work
            .iter()
            .map(|b| {
                let view = slots[b.slot].narrow(0, 0, b.rows * b.cols)?.reshape((b.rows, b.cols))?;
                Ok((b.name, view))
            })
            .collect::<Result<_>>()?;
        let integers = |n: usize| Tensor::zeros(n, DType::U32, device);
        Ok(Self {
            inputs: (0..=n_layers).map(|_| rows(model.shape.hidden, dtype)).collect::<Result<_>>()?,
            kept,
            work,
            slot: model.slot(None)?,
            integers: [integers(t)?, integers(t)?, integers(t)?, integers(t)?, integers(t + 1)?],
            stats: Tensor::zeros((t, 2), DType::F32, device)?,
            rotations: rope::table(&model.shape.rope.frequencies(model.shape.head_dim), settings.length, device)?,
            head_rows: layout.head_rows,
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
            inputs: self.inputs.iter().map(first).collect::<Result<_>>()?,
            kept,
            work: Kept {
                qkv: work(Work::Qkv)?,
                attention: work(Work::Attention)?,
                log_sum_exp: work(Work::LogSumExp)?,
                middle: work(Work::Middle)?,
                gate_up: work(Work::GateUp)?,
            },
            norm: rows(Work::Norm)?,
            activation: rows(Work::Activation)?,
            gradient: rows(Work::Gradient)?,
            qkv_gradient: rows(Work::QkvGradient)?,
            attention_gradient: rows(Work::AttentionGradient)?,
            delta: rows(Work::Delta)?,
            dropped: work(Work::Dropped)?,
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

impl Batched {
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

/// Memory that is really there: an untouched zero page would be counted only when a step first writes it, and a machine that
/// has too little would fail in the middle of the run instead of before it.
fn touched(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let tensor = Tensor::zeros(n, dtype, device)?;
    if device.is_cpu() {
        crate::ops::upload::clear(&tensor)?;
    }
    Ok(tensor)
}
