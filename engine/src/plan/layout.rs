//! The memory of a step: every buffer by name, with its size and when it is alive.
//!
//! This is both the prediction and the allocator: [`crate::step::Trainer`] allocates exactly what is listed here, and the plan's
//! items are its sums. Buffers of the workspace whose lifetimes don't meet share one slot.

use super::Family;
use crate::config::{BaseFormat, OptimizerKind, Recompute, Settings};
use crate::model::group::GroupShape;
use crate::model::shape::ModelShape;
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

/// A workspace buffer with its place: f32 `[rows, cols]` at the start of slot `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Buffer {
    pub name: Work,
    pub rows: usize,
    pub cols: usize,
    pub slot: usize,
    stages: u8,
}

/// What one layer keeps between forward and backward: columns of f32 `[max_tokens, _]` buffers, `None` where not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// What a layer keeps.
    pub kept: Kept,
    /// Workspace buffers with their slots.
    pub work: Vec<Buffer>,
    /// f32 elements of each slot.
    pub slots: Vec<usize>,
}

impl Layout {
    /// Bytes of all items.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.bytes).sum()
    }
}

/// Anonymous memory a process takes beside the buffers while it trains on the processor: threads, packing panels of the matrix
/// products, the tokenizer's tables. Measured with `cargo xtask bench` on SmolLM2-135M.
const RUNTIME_BYTES: u64 = 8 << 20;

/// Lays out the step of a decoder.
pub fn layout(shape: &ModelShape, settings: &Settings) -> Layout {
    let groups = GroupShape::all(shape, &settings.lora);
    let [qkv, o, gate_up, down] = &groups;
    let (t, h, layers) = (settings.max_tokens(), shape.hidden, shape.n_layers as u64);
    let head_rows = settings.head_rows.clamp(1, t.max(1));

    let attention_cols = shape.q_dim() + o.rank;
    let gate_up_cols = gate_up.n_out + gate_up.rank;
    let keeps = |modes: &[Recompute], cols: usize| modes.contains(&settings.recompute).then_some(cols);
    let n_and_c1 = [Recompute::N, Recompute::C1];
    let kept = Kept {
        qkv: keeps(&[Recompute::N], qkv.n_out),
        attention: keeps(&n_and_c1, attention_cols),
        log_sum_exp: keeps(&n_and_c1, shape.n_heads),
        middle: keeps(&n_and_c1, h),
        gate_up: keeps(&[Recompute::N], gate_up_cols),
    };

    use stage::*;
    let mut work = Vec::new();
    let mut add = |name, rows, cols, stages| work.push(Buffer { name, rows, cols, slot: 0, stages });
    add(Work::Norm, t, h + qkv.rank.max(gate_up.rank), LAYERS);
    if kept.qkv.is_none() {
        add(Work::Qkv, t, qkv.n_out, FORWARD_ATTENTION | RECOMPUTE | BACKWARD_MLP | BACKWARD_ATTENTION);
    }
    if kept.attention.is_none() {
        let stages = FORWARD_ATTENTION | RECOMPUTE | BACKWARD_MLP | BACKWARD_ATTENTION;
        add(Work::Attention, t, attention_cols, stages);
        add(Work::LogSumExp, t, shape.n_heads, stages);
        add(Work::Middle, t, h, FORWARD_ATTENTION | FORWARD_MLP | RECOMPUTE | BACKWARD_MLP);
    }
    if kept.gate_up.is_none() {
        add(Work::GateUp, t, gate_up_cols, FORWARD_MLP | RECOMPUTE | BACKWARD_MLP);
    }
    add(Work::Activation, t, down.n_in + down.rank, FORWARD_MLP | BACKWARD_MLP);
    add(Work::Gradient, t, h + o.rank.max(down.rank), BACKWARD);
    add(Work::QkvGradient, t, qkv.n_out + qkv.rank, BACKWARD_ATTENTION);
    add(Work::AttentionGradient, t, shape.q_dim(), BACKWARD_ATTENTION);
    if settings.lora.dropout > 0.0 {
        let widest = groups.iter().map(|g| g.n_in).max().unwrap_or(0);
        add(Work::Dropped, t, widest, LAYERS);
    }
    add(Work::HeadInput, head_rows, h, HEAD);
    add(Work::HeadNorm, head_rows, h, HEAD);
    add(Work::HeadGradient, head_rows, h, HEAD);
    add(Work::Logits, head_rows, shape.vocab_rows, HEAD);
    let slots = assign_slots(&mut work);
    let work_elements: usize = slots.iter().sum();
    let mut dequantised = 0;
    if settings.base == BaseFormat::Nf4 {
        dequantised = groups.iter().map(GroupShape::padded_elements).max().unwrap_or(0);
    }

    let base_bytes = match settings.base {
        BaseFormat::F32 => groups.iter().map(|g| 4 * g.padded_elements() as u64).sum::<u64>() * layers,
        BaseFormat::Nf4 => {
            let members = groups.iter().flat_map(|g| g.members.iter().map(move |m| m.outputs.len() * g.n_in));
            members.map(|n| Nf4::bytes(n) as u64).sum::<u64>() * layers
        }
    };
    let n_trained = groups.iter().map(GroupShape::adapter_elements).sum::<usize>() * shape.n_layers;
    let optimizer_bytes = match settings.optimizer {
        OptimizerKind::AdamW32 => Moments::f32_bytes(n_trained),
        OptimizerKind::AdamW8 => Moments::u8_bytes(n_trained),
    };
    let kept_cols: usize =
        [kept.qkv, kept.attention, kept.log_sum_exp, kept.middle, kept.gate_up].into_iter().flatten().sum();
    // Every mode keeps each layer's input, and the last layer's output for the head.
    let kept_elements = t * (kept_cols * shape.n_layers + h * (shape.n_layers + 1));
    // Ids, positions, supervised rows and labels, document boundaries; losses; the table of rotations.
    let inputs_bytes = 4 * (4 * t + t + 1) + 8 * t + 4 * settings.length * shape.head_dim;

    let f32s = |elements: usize| 4 * elements as u64;
    let embedding = f32s(shape.vocab_rows * h);
    let item = |name, label, family, bytes, changed_by| Item { name, label, family, bytes, changed_by };
    let base_label = match settings.base {
        BaseFormat::F32 => "Base weights, f32",
        BaseFormat::Nf4 => "Base weights, NF4",
    };
    let optimizer_label = match settings.optimizer {
        OptimizerKind::AdamW32 => "Optimizer state, 32-bit",
        OptimizerKind::AdamW8 => "Optimizer state, 8-bit",
    };
    let mut items = vec![
        item("base_weights", base_label, Family::Weights, base_bytes, Some("base")),
        item("embeddings", "Embeddings, f32", Family::Weights, embedding, None),
        item("norms", "Norms", Family::Weights, f32s((2 * shape.n_layers + 1) * h), None),
        item("adapter", "LoRA adapter, f32", Family::Trained, f32s(n_trained), Some("rank")),
        item("gradients", "Gradients, f32", Family::Trained, f32s(n_trained), Some("rank")),
        item("optimizer", optimizer_label, Family::Trained, optimizer_bytes as u64, Some("optimizer")),
        item("kept", "Kept activations", Family::Activations, f32s(kept_elements), Some("recompute")),
        item("workspace", "Layer and loss workspace", Family::Activations, f32s(work_elements), Some("length")),
        item("inputs", "Batch and positions", Family::Activations, inputs_bytes as u64, Some("length")),
        item("runtime", "Threads and libraries", Family::Runtime, RUNTIME_BYTES, None),
    ];
    if !shape.tied {
        items.insert(2, item("head", "Output head, f32", Family::Weights, embedding, None));
    }
    if dequantised > 0 {
        let slot = item("slot", "Dequantisation slot", Family::Activations, f32s(dequantised), Some("base"));
        let at = items.iter().position(|i| i.name == "inputs").unwrap_or(items.len());
        items.insert(at, slot);
    }
    Layout { items, max_tokens: t, head_rows, kept, work, slots }
}

/// Gives each buffer the first slot in which nobody lives at the same time, largest buffers first; returns slot sizes.
fn assign_slots(work: &mut [Buffer]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(work[i].rows * work[i].cols));
    let mut slots: Vec<(usize, u8)> = Vec::new();
    for i in order {
        let (elements, stages) = (work[i].rows * work[i].cols, work[i].stages);
        match slots.iter().position(|(_, taken)| taken & stages == 0) {
            Some(slot) => {
                work[i].slot = slot;
                slots[slot].1 |= stages;
            }
            None => {
                work[i].slot = slots.len();
                slots.push((elements, stages));
            }
        }
    }
    slots.into_iter().map(|(elements, _)| elements).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(name: Work, elements: usize, stages: u8) -> Buffer {
        Buffer { name, rows: 1, cols: elements, slot: 0, stages }
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
        assert_eq!(slots.iter().sum::<usize>(), 250);
        for (i, a) in work.iter().enumerate() {
            assert!(a.cols <= slots[a.slot]);
            for b in &work[i + 1..] {
                assert!(a.slot != b.slot || a.stages & b.stages == 0, "{a:?} and {b:?} would overwrite each other");
            }
        }
    }
}
