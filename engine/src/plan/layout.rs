//! The memory of a step: every buffer by name, with its size and when it is alive.
//!
//! This is both the prediction and the allocator: [`crate::step::Trainer`] allocates exactly what is listed here, and the plan's
//! items are its sums. Buffers of the workspace whose lifetimes don't meet share one slot.

use super::Family;
use crate::config::{BaseFormat, ComputeDtype, OptimizerKind, Recompute, Settings};
use crate::model::group::{GroupShape, padded};
use crate::model::shape::ModelShape;
use crate::model::stream;
use crate::ops::adamw::Moments;
use crate::ops::nf4::Nf4;

/// One line of the plan's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Stable name.
    pub name: &'static str,
    /// As shown.
    pub label: &'static str,
    /// What it is for.
    pub family: Family,
    /// Bytes.
    pub bytes: u64,
    /// The setting that changes it, where one does.
    pub changed_by: Option<&'static str>,
}

/// A buffer of the workspace: used by every layer in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the step's names, see step/block.rs
pub enum Work {
    Norm,
    Qkv,
    Attention,
    LogSumExp,
    Delta,
    Middle,
    GateUp,
    Activation,
    Gradient,
    QkvGradient,
    AttentionGradient,
    Dropped,
    HeadInput,
    HeadNorm,
    HeadGradient,
    Logits,
}

/// Parts of a step, as bits, in the order in which a layer goes through them.
mod stage {
    pub(super) const FORWARD_ATTENTION: u8 = 1;
    pub(super) const FORWARD_MLP: u8 = 2;
    pub(super) const HEAD: u8 = 4;
    pub(super) const RECOMPUTE: u8 = 8;
    pub(super) const BACKWARD_MLP: u8 = 16;
    pub(super) const BACKWARD_ATTENTION: u8 = 32;
    pub(super) const LAYERS: u8 = FORWARD_ATTENTION | FORWARD_MLP | RECOMPUTE | BACKWARD_MLP | BACKWARD_ATTENTION;
    pub(super) const BACKWARD: u8 = HEAD | RECOMPUTE | BACKWARD_MLP | BACKWARD_ATTENTION;
}

/// A workspace buffer with its place: `[rows, cols]` at the start of slot `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Buffer {
    pub name: Work,
    pub rows: usize,
    pub cols: usize,
    pub slot: usize,
    /// The type of the step, or f32 for what is summed in it.
    pub dtype: ComputeDtype,
    stages: u8,
}

/// Memory that buffers of the workspace share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct WorkSlot {
    pub elements: usize,
    pub dtype: ComputeDtype,
    stages: u8,
}

/// What one layer keeps between forward and backward: columns of `[max_tokens, _]` buffers in the type of the step (the log-sum-exp
/// in f32), `None` where not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Kept {
    pub qkv: Option<usize>,
    pub attention: Option<usize>,
    pub log_sum_exp: Option<usize>,
    pub middle: Option<usize>,
    pub gate_up: Option<usize>,
}

/// All memory of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The lines of the plan, whose sum is [`Layout::bytes`].
    pub items: Vec<Item>,
    /// Most tokens of a micro-batch.
    pub max_tokens: usize,
    /// Supervised rows that go through the head at once.
    pub head_rows: usize,
    /// Rows that go through a layer's MLP at once.
    pub mlp_rows: usize,
    /// Buffers for the layers' inputs and the last one's output: one each, or two by turns where they wait in system memory.
    pub n_inputs: usize,
    /// Lines of the system memory beside a card: what waits there, pinned.
    pub host_items: Vec<Item>,
    /// What each layer keeps.
    pub kept: Vec<Kept>,
    /// Workspace buffers with their slots.
    pub work: Vec<Buffer>,
    /// The slots.
    pub slots: Vec<WorkSlot>,
}

impl Layout {
    /// Bytes of all items.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.bytes).sum()
    }

    /// Bytes of the buffers alone, without what the process takes beside them.
    pub fn buffer_bytes(&self) -> u64 {
        self.items.iter().filter(|item| item.name != RUNTIME).map(|item| item.bytes).fold(0, u64::saturating_add)
    }
}

/// Anonymous memory a process takes beside the buffers while it trains on the processor: threads, packing panels of the matrix
/// products, the tokenizer's tables. What `benches/accuracy-cpu.csv` leaves for it is 1.6 to 2.3 MB where a checkpoint is the peak and
/// up to 4.9 MB where answers are; the attention's scratch, which grows with the length and the threads, is counted beside it.
pub const RUNTIME_BYTES: u64 = 4 << 20;
/// Name of their item.
pub const RUNTIME: &str = "runtime";

impl Kept {
    /// What a layer keeps in a mode.
    fn new(mode: Recompute, shape: &ModelShape, [qkv, o, gate_up, _]: &[GroupShape; 4]) -> Self {
        let all = |cols: usize| (mode == Recompute::N).then_some(cols);
        let most = |cols: usize| (mode != Recompute::C0).then_some(cols);
        Kept {
            qkv: all(qkv.n_out),
            attention: most(padded(shape.q_dim() + o.rank)),
            log_sum_exp: most(shape.n_heads),
            middle: most(shape.hidden),
            gate_up: all(padded(gate_up.n_out + gate_up.rank)),
        }
    }

    /// Bytes a token.
    fn token_bytes(&self, dtype: ComputeDtype) -> u64 {
        let cols: usize = [self.qkv, self.attention, self.middle, self.gate_up].into_iter().flatten().sum();
        cols as u64 * dtype.size_bytes() + 4 * self.log_sum_exp.unwrap_or(0) as u64
    }
}

/// Lays out the step of a decoder.
pub fn layout(shape: &ModelShape, settings: &Settings) -> Layout {
    let groups = GroupShape::all(shape, &settings.lora);
    let [qkv, o, gate_up, down] = &groups;
    let (t, h, layers) = (settings.max_tokens(), shape.hidden, shape.n_layers as u64);
    let head_rows = settings.head_rows.clamp(1, t.max(1));
    let mlp_rows = settings.mlp_rows.unwrap_or(t).clamp(1, t.max(1));
    let dtype = settings.compute;
    let n_eased = settings.n_layers_eased.min(shape.n_layers);
    let mut kept = vec![Kept::new(settings.recompute, shape, &groups); shape.n_layers - n_eased];
    kept.resize(shape.n_layers, Kept::new(settings.recompute.eased(), shape, &groups));
    // Layers that don't keep a buffer of their own share one.
    let ends = [kept.first(), kept.last()];
    let shared = |part: fn(&Kept) -> Option<usize>| ends.into_iter().flatten().any(|kept| part(kept).is_none());

    use stage::*;
    let mut work = Vec::with_capacity(16);
    let mut add = |name, rows, cols, stages| {
        let dtype = if matches!(name, Work::LogSumExp | Work::Delta) { ComputeDtype::F32 } else { dtype };
        work.push(Buffer { name, rows, cols, slot: 0, dtype, stages });
    };
    add(Work::Norm, t, padded(h + qkv.rank.max(gate_up.rank)), LAYERS);
    if shared(|kept| kept.qkv) {
        add(Work::Qkv, t, qkv.n_out, FORWARD_ATTENTION | RECOMPUTE | BACKWARD_MLP | BACKWARD_ATTENTION);
    }
    if shared(|kept| kept.attention) {
        let stages = FORWARD_ATTENTION | RECOMPUTE | BACKWARD_MLP | BACKWARD_ATTENTION;
        add(Work::Attention, t, padded(shape.q_dim() + o.rank), stages);
        add(Work::LogSumExp, t, shape.n_heads, stages);
        add(Work::Middle, t, h, FORWARD_ATTENTION | FORWARD_MLP | RECOMPUTE | BACKWARD_MLP);
    }
    if shared(|kept| kept.gate_up) {
        add(Work::GateUp, mlp_rows, padded(gate_up.n_out + gate_up.rank), FORWARD_MLP | RECOMPUTE | BACKWARD_MLP);
    }
    add(Work::Activation, mlp_rows, padded(down.n_in + down.rank), FORWARD_MLP | BACKWARD_MLP);
    add(Work::Gradient, t, padded(h + o.rank.max(down.rank)), BACKWARD);
    add(Work::QkvGradient, t, padded(qkv.n_out + qkv.rank), BACKWARD_ATTENTION);
    add(Work::AttentionGradient, t, shape.q_dim(), BACKWARD_ATTENTION);
    add(Work::Delta, t, shape.n_heads, BACKWARD_ATTENTION);
    if settings.lora.dropout > 0.0 {
        // Groups use it by turns, each in its own width.
        add(Work::Dropped, 1, (t * qkv.n_in.max(o.n_in)).max(mlp_rows * gate_up.n_in.max(down.n_in)), LAYERS);
    }
    add(Work::HeadInput, head_rows, h, HEAD);
    add(Work::HeadNorm, head_rows, h, HEAD);
    add(Work::HeadGradient, head_rows, h, HEAD);
    add(Work::Logits, head_rows, shape.vocab_rows, HEAD);
    let slots = assign_slots(&mut work);
    let work_bytes: u64 = slots.iter().map(|slot| slot.elements as u64 * slot.dtype.size_bytes()).sum();
    let (mut dequantised, mut cached) = (0, 0);
    if settings.base == BaseFormat::Nf4 {
        let elements = groups.each_ref().map(GroupShape::padded_elements);
        dequantised = elements.into_iter().max().unwrap_or(0);
        cached = elements.iter().sum::<usize>() * settings.n_layers_cached.min(shape.n_layers);
    }

    let n_streamed = if settings.base == BaseFormat::Nf4 { layers.min(settings.n_layers_streamed as u64) } else { 0 };
    let base_bytes = match settings.base {
        BaseFormat::F32 | BaseFormat::Half => {
            groups.iter().map(|g| g.padded_elements() as u64).sum::<u64>() * layers * dtype.size_bytes()
        }
        BaseFormat::Nf4 => {
            let members = groups.iter().flat_map(|g| g.members.iter().map(move |m| m.outputs.len() * g.n_in));
            let layer_bytes = members.map(|n| Nf4::bytes(n) as u64).sum::<u64>();
            layer_bytes * (layers - n_streamed) + stream::device_bytes(&groups, n_streamed as usize) as u64
        }
    };
    let n_trained = groups.iter().map(GroupShape::adapter_elements).sum::<usize>() * shape.n_layers;
    let optimizer_bytes = match settings.optimizer {
        OptimizerKind::AdamW32 => Moments::f32_bytes(n_trained),
        OptimizerKind::AdamW8 => Moments::u8_bytes(n_trained),
    };
    // Every mode keeps each layer's input, and the last layer's output for the head.
    let n_inputs = if settings.offload_inputs { 2 } else { layers + 1 };
    let input_bytes = dtype.size_bytes() * h as u64;
    let inputs_kept = input_bytes * n_inputs;
    // The last layer's input is still there when its backward pass begins.
    let inputs_parked = if settings.offload_inputs { t as u64 * input_bytes * (layers - 1) } else { 0 };
    let kept_of_token = inputs_kept + kept.iter().map(|kept| kept.token_bytes(dtype)).sum::<u64>();
    // The most sequences that may be asked for, at a large model's length.
    let kept_bytes = (t as u64).saturating_mul(kept_of_token);
    // Ids, positions, supervised rows and labels, document boundaries; losses; the table of rotations.
    let inputs_bytes = 4 * (4 * t + t + 1) + 8 * t + 4 * settings.length * shape.head_dim;

    let f32s = |elements: usize| 4 * elements as u64;
    let embedding = dtype.size_bytes() * (shape.vocab_rows * h) as u64;
    let item = |name, label, family, bytes, changed_by| Item { name, label, family, bytes, changed_by };
    let base_label = match settings.base {
        BaseFormat::F32 => "Base weights, f32",
        BaseFormat::Half => "Base weights, 16-bit",
        BaseFormat::Nf4 => "Base weights, NF4",
    };
    let optimizer_label = match settings.optimizer {
        OptimizerKind::AdamW32 => "Optimizer state, 32-bit",
        OptimizerKind::AdamW8 => "Optimizer state, 8-bit",
    };
    let mut items = vec![
        item("base_weights", base_label, Family::Weights, base_bytes, Some("base")),
        item("norms", "Norms", Family::Weights, f32s((2 * shape.n_layers + 1) * h), None),
        item("adapter", "LoRA adapter, f32", Family::Trained, f32s(n_trained), Some("rank")),
        item("gradients", "Gradients, f32", Family::Trained, f32s(n_trained), Some("rank")),
        item("optimizer", optimizer_label, Family::Trained, optimizer_bytes as u64, Some("optimizer")),
        item("kept", "Kept activations", Family::Activations, kept_bytes, Some("recompute")),
        item("workspace", "Layer and loss workspace", Family::Activations, work_bytes, Some("length")),
        item("inputs", "Batch and positions", Family::Activations, inputs_bytes as u64, Some("length")),
        item(RUNTIME, "Threads and libraries", Family::Runtime, RUNTIME_BYTES, None),
    ];
    let streamed = n_streamed * stream::place_bytes(&groups) as u64;
    let mut host_items = vec![
        item("streamed", "Layers' weights, NF4", Family::Weights, streamed, Some("n_layers_streamed")),
        item("parked", "Layers' inputs", Family::Activations, inputs_parked, Some("offload_inputs")),
    ];
    let embeddings = item("embeddings", "Embeddings", Family::Weights, embedding, Some("embedding_on_host"));
    if settings.embedding_on_host {
        host_items.insert(0, embeddings);
    } else {
        items.insert(1, embeddings);
    }
    host_items.retain(|item| item.bytes > 0);
    if !shape.tied {
        let at = items.iter().position(|item| item.name == "norms").unwrap_or(items.len());
        items.insert(at, item("head", "Output head", Family::Weights, embedding, None));
    }
    if cached > 0 {
        let bytes = cached as u64 * dtype.size_bytes();
        let label = "Dequantised weights kept";
        items.insert(1, item("weight_cache", label, Family::Weights, bytes, Some("n_layers_cached")));
    }
    if dequantised > 0 {
        let slot = item(
            "slot",
            "Dequantisation slot",
            Family::Activations,
            dequantised as u64 * dtype.size_bytes(),
            Some("base"),
        );
        let at = items.iter().position(|i| i.name == "inputs").unwrap_or(items.len());
        items.insert(at, slot);
    }
    let n_inputs = n_inputs as usize;
    Layout { items, max_tokens: t, head_rows, mlp_rows, n_inputs, host_items, kept, work, slots }
}

/// Gives each buffer the first slot of its type in which nobody lives at the same time, largest buffers first.
fn assign_slots(work: &mut [Buffer]) -> Vec<WorkSlot> {
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(work[i].rows * work[i].cols));
    let mut slots: Vec<WorkSlot> = Vec::new();
    for i in order {
        let (elements, dtype, stages) = (work[i].rows * work[i].cols, work[i].dtype, work[i].stages);
        match slots.iter().position(|slot| slot.dtype == dtype && slot.stages & stages == 0) {
            Some(slot) => {
                work[i].slot = slot;
                slots[slot].stages |= stages;
            }
            None => {
                work[i].slot = slots.len();
                slots.push(WorkSlot { elements, dtype, stages });
            }
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(name: Work, elements: usize, stages: u8) -> Buffer {
        Buffer { name, rows: 1, cols: elements, slot: 0, dtype: ComputeDtype::F32, stages }
    }

    #[test]
    fn buffers_share_a_slot_only_when_their_lifetimes_never_meet() {
        let mut work = [
            buffer(Work::GateUp, 100, stage::BACKWARD_MLP),
            buffer(Work::QkvGradient, 60, stage::BACKWARD_ATTENTION),
            buffer(Work::Norm, 50, stage::LAYERS),
            buffer(Work::Logits, 200, stage::HEAD),
        ];
        let slots = assign_slots(&mut work);
        assert_eq!(slots.iter().map(|slot| slot.elements).sum::<usize>(), 250);
        for (i, a) in work.iter().enumerate() {
            assert!(a.cols <= slots[a.slot].elements);
            for b in &work[i + 1..] {
                assert!(a.slot != b.slot || a.stages & b.stages == 0, "{a:?} and {b:?} would overwrite each other");
            }
        }
    }
}
