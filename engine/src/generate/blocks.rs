//! New rows of many sequences through the decoder: the buffers, the cache, and the blocks in inference form.
//!
//! All rows of a call lie end to end, whatever sequences they belong to, so every linear layer is one product and
//! reads its weights once. Only attention looks at where a row belongs.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use crate::config::{ComputeDtype, LoraConfig};
use crate::model::group::{Group, GroupShape};
use crate::model::shape::ModelShape;
use crate::model::weights::{Norm, Slot};
use crate::model::{Adapter, Model};
use crate::ops::attention::Heads;
use crate::ops::attention_cached::{Span, attention_cached};
use crate::ops::gemm::{Write, gemm};
use crate::ops::lora::place;
use crate::ops::memory::{Held, Site};
use crate::ops::rms_norm::rms_norm;
use crate::ops::rope::{self, rope};
use crate::ops::rows::{gather, scatter};
use crate::ops::swiglu::swiglu;
use crate::ops::upload::{download, upload};

/// Rows that go through the blocks at once: enough that a product runs at full speed, few enough that the buffers are
/// small.
pub(super) const ROWS: usize = 512;
/// Rows that go through the head at once.
const HEAD_ROWS: usize = 64;
/// The cache grows by this many rows.
const CACHE_STEP: usize = 256;

/// New rows of one sequence: `ids` follow the `n_before` rows that the cache holds from `cache_row` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) ids: &'a [u32],
    pub(super) cache_row: usize,
    pub(super) n_before: usize,
}

/// A model with room for the rows in flight and for keys and values.
pub(super) struct Blocks<'a> {
    model: &'a Model,
    adapter: Option<&'a Adapter>,
    heads: Heads,
    slot: Slot,
    /// Of a slot of its own.
    _held: Held,
    /// A layer each: `[rows, 2 kv_dim]`, keys | values, with what they hold.
    cache: Vec<(Tensor, Held)>,
    /// f32 `[positions, head_dim]`, with what it holds.
    rotations: (Tensor, Held),
    work: Work,
    head: Head,
}

/// Buffers of the rows in flight, `[n, …]` in the type of the model but for the integers.
struct Work {
    x: Tensor,
    norm: Tensor,
    qkv: Tensor,
    attention: Tensor,
    gate_up: Tensor,
    activation: Tensor,
    ids: Tensor,
    positions: Tensor,
    cache_rows: Tensor,
    held: Arc<Held>,
}

/// Buffers of the rows at the head.
struct Head {
    x: Tensor,
    norm: Tensor,
    logits: Tensor,
    rows: Tensor,
    _held: Held,
}

impl Work {
    fn new(model: &Model, n: usize) -> Result<Self> {
        let (shape, device) = (&model.shape, model.device());
        let rank = |group| model.group(group).rank;
        let held = Held::new();
        let floats = |cols: usize| held.zeros((n, cols), model.dtype(), device, Site::Answers);
        let integers = || held.zeros(n, DType::U32, device, Site::Answers);
        Ok(Self {
            x: floats(shape.hidden)?,
            norm: floats(shape.hidden + rank(Group::Qkv).max(rank(Group::GateUp)))?,
            qkv: floats(shape.q_dim() + 2 * shape.kv_dim())?,
            attention: floats(shape.q_dim() + rank(Group::O))?,
            gate_up: floats(2 * shape.ffn)?,
            activation: floats(shape.ffn + rank(Group::Down))?,
            ids: integers()?,
            positions: integers()?,
            cache_rows: integers()?,
            held: Arc::new(held),
        })
    }

    fn capacity(&self) -> usize {
        self.ids.elem_count()
    }

    fn all(&self) -> [&Tensor; 9] {
        let Work { x, norm, qkv, attention, gate_up, activation, ids, positions, cache_rows, .. } = self;
        [x, norm, qkv, attention, gate_up, activation, ids, positions, cache_rows]
    }

    /// Views of the first `n` rows.
    fn first(&self, n: usize) -> Result<Self> {
        let first = |t: &Tensor| t.narrow(0, 0, n);
        Ok(Self {
            x: first(&self.x)?,
            norm: first(&self.norm)?,
            qkv: first(&self.qkv)?,
            attention: first(&self.attention)?,
            gate_up: first(&self.gate_up)?,
            activation: first(&self.activation)?,
            ids: first(&self.ids)?,
            positions: first(&self.positions)?,
            cache_rows: first(&self.cache_rows)?,
            held: Arc::clone(&self.held),
        })
    }
}

impl Head {
    fn new(model: &Model, n: usize) -> Result<Self> {
        let (shape, device) = (&model.shape, model.device());
        let held = Held::new();
        let floats = |cols: usize| held.zeros((n, cols), model.dtype(), device, Site::Answers);
        Ok(Self {
            x: floats(shape.hidden)?,
            norm: floats(shape.hidden)?,
            logits: floats(shape.vocab_rows)?,
            rows: held.zeros(n, DType::U32, device, Site::Answers)?,
            _held: held,
        })
    }

    fn capacity(&self) -> usize {
        self.rows.elem_count()
    }
}

/// Room that is asked for at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) n_rows: usize,
    pub(super) n_cache_rows: usize,
    pub(super) n_positions: usize,
    /// Rows at the head.
    pub(super) n_head_rows: usize,
}

/// Bytes that a decoder takes after [`Blocks::reserve`] and [`Blocks::logits`] with this much, without its slot.
pub(super) fn bytes(shape: &ModelShape, lora: &LoraConfig, compute: ComputeDtype, room: Room) -> u64 {
    let [qkv, o, gate_up, down] = GroupShape::all(shape, lora).map(|group| group.rank);
    let element = compute.size_bytes();
    // As Work::new and Head::new have them.
    let work = [
        shape.hidden,
        shape.hidden + qkv.max(gate_up),
        shape.q_dim() + 2 * shape.kv_dim(),
        shape.q_dim() + o,
        2 * shape.ffn,
        shape.ffn + down,
    ];
    let head = 2 * shape.hidden + shape.vocab_rows;
    let (n_rows, n_head_rows) = (room.n_rows as u64, room.n_head_rows.min(HEAD_ROWS) as u64);
    let cache_rows = room.n_cache_rows.next_multiple_of(CACHE_STEP) as u64;
    let positions = room.n_positions.next_multiple_of(CACHE_STEP) as u64;
    n_rows * (element * work.iter().sum::<usize>() as u64 + 3 * 4)
        + n_head_rows * (element * head as u64 + 4)
        + cache_rows * element * (2 * shape.kv_dim() * shape.n_layers) as u64
        + positions * 4 * shape.head_dim as u64
}

/// A layer's cache before the first row.
fn no_rows(model: &Model) -> Result<(Tensor, Held)> {
    let held = Held::new();
    Ok((held.zeros((0, 2 * model.shape.kv_dim()), model.dtype(), model.device(), Site::Cache)?, held))
}

impl<'a> Blocks<'a> {
    /// `slot` is where a quantised base is dequantised; one of its own where nobody lends one.
    pub(super) fn new(model: &'a Model, adapter: Option<&'a Adapter>, slot: Option<Slot>) -> Result<Self> {
        let (shape, device) = (&model.shape, model.device());
        if let Some(adapter) = adapter {
            model.place_adapter(adapter, slot.as_ref())?;
        }
        let held = Held::new();
        Ok(Self {
            model,
            adapter,
            heads: Heads { n_heads: shape.n_heads, n_kv_heads: shape.n_kv_heads, head_dim: shape.head_dim },
            slot: slot.map_or_else(|| model.slot(&held), Ok)?,
            _held: held,
            cache: (0..shape.n_layers).map(|_| no_rows(model)).collect::<Result<_>>()?,
            rotations: (rope::table(&shape.rope.frequencies(shape.head_dim), 0, device)?, Held::new()),
            work: Work::new(model, 0)?,
            head: Head::new(model, 0)?,
        })
    }

    /// Makes room for `n_rows` rows at once, `n_cache_rows` in the cache and positions below `n_positions`. The first
    /// `n_kept` rows of the cache keep their content.
    pub(super) fn reserve(
        &mut self,
        n_rows: usize,
        n_cache_rows: usize,
        n_positions: usize,
        n_kept: usize,
    ) -> Result<()> {
        let (shape, device) = (&self.model.shape, self.model.device());
        // What is replaced goes first, so that never more is held than is asked for.
        if n_rows > self.work.capacity() {
            self.work = Work::new(self.model, 0)?;
            self.work = Work::new(self.model, n_rows)?;
        }
        if n_positions > self.rotations.0.dim(0)? {
            let n = n_positions.next_multiple_of(CACHE_STEP);
            let held = Held::new();
            held.admit((n * shape.head_dim * DType::F32.size_in_bytes()) as u64, device, Site::Answers)?;
            self.rotations = (rope::table(&shape.rope.frequencies(shape.head_dim), n, device)?, held);
        }
        for layer in &mut self.cache {
            if n_cache_rows > layer.0.dim(0)? {
                if n_kept == 0 {
                    *layer = no_rows(self.model)?;
                }
                let n = n_cache_rows.next_multiple_of(CACHE_STEP);
                let held = Held::new();
                let grown = held.zeros((n, 2 * shape.kv_dim()), self.model.dtype(), device, Site::Cache)?;
                if n_kept > 0 {
                    place(&grown.narrow(0, 0, n_kept)?, &layer.0.narrow(0, 0, n_kept)?)?;
                }
                *layer = (grown, held);
            }
        }
        Ok(())
    }

    /// Bytes of all buffers.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |t: &Tensor| (t.elem_count() * t.dtype().size_in_bytes()) as u64;
        let head = [&self.head.x, &self.head.norm, &self.head.logits, &self.head.rows];
        let cache = self.cache.iter().map(|(layer, _)| layer);
        let tensors = cache.chain(self.work.all()).chain(head).chain([&self.rotations.0]);
        tensors.map(bytes).sum::<u64>() + self.slot.bytes()
    }

    /// Takes the pieces' rows, in the order of their sequences in the cache, through all blocks. Their outputs stay in
    /// the buffers for [`Self::logits`]; their keys and values are in the cache. At most as many rows as were
    /// reserved.
    pub(super) fn forward(&mut self, pieces: &[Piece]) -> Result<()> {
        let (mut ids, mut spans) = (vec![], vec![]);
        for &Piece { ids: new, cache_row, n_before } in pieces {
            spans.push(Span { row: ids.len(), n_new: new.len(), cache_row, n_before });
            ids.extend_from_slice(new);
        }
        let (positions, cache_rows) = Span::rows(&spans);
        let work = self.work.first(ids.len())?;
        upload(&work.ids, &ids)?;
        upload(&work.positions, &positions)?;
        upload(&work.cache_rows, &cache_rows)?;
        self.model.embedding.gather(&work.x, &work.ids)?;
        for layer in 0..self.model.shape.n_layers {
            let next = (layer + 1 < self.model.shape.n_layers).then_some(layer + 1);
            self.model.bring(layer, next)?;
            self.block(layer, &work, &spans)?;
        }
        Ok(())
    }

    /// `x += attention(norm(x))`, then `x += mlp(norm(x))`, see [`crate::step`]'s block.
    fn block(&self, layer: usize, work: &Work, spans: &[Span]) -> Result<()> {
        let shape = &self.model.shape;
        let (q_dim, kv_dim, ffn) = (shape.q_dim(), shape.kv_dim(), shape.ffn);
        self.normalise(layer, Norm::Input, work)?;
        self.linear(layer, Group::Qkv, &work.norm, &work.qkv, Write::Set)?;
        rope(&work.qkv, &work.positions, &self.rotations.0, shape.n_heads + shape.n_kv_heads, false)?;
        scatter(&self.cache[layer].0, &work.qkv.narrow(1, q_dim, 2 * kv_dim)?, &work.cache_rows)?;
        let queries = work.qkv.narrow(1, 0, q_dim)?;
        let (out, rows) = (work.attention.narrow(1, 0, q_dim)?, (&work.positions, &work.cache_rows));
        attention_cached(&out, &queries, &self.cache[layer].0, spans, rows, self.heads)?;
        self.linear(layer, Group::O, &work.attention, &work.x, Write::Add)?;

        self.normalise(layer, Norm::PostAttention, work)?;
        self.linear(layer, Group::GateUp, &work.norm, &work.gate_up, Write::Set)?;
        swiglu(&work.activation.narrow(1, 0, ffn)?, &work.gate_up)?;
        self.linear(layer, Group::Down, &work.activation, &work.x, Write::Add)
    }

    fn normalise(&self, layer: usize, norm: Norm, work: &Work) -> Result<()> {
        let shape = &self.model.shape;
        rms_norm(&work.norm.narrow(1, 0, shape.hidden)?, &work.x, self.model.norm(layer, norm), shape.rms_eps)
    }

    fn linear(&self, layer: usize, group: Group, input: &Tensor, output: &Tensor, write: Write) -> Result<()> {
        let weight = self.model.weight((layer, group), self.adapter, &self.slot)?;
        weight.project_input(input, None)?;
        weight.forward(input, output, write)
    }

    /// Calls `each(i, logits)` for `rows[i]`, a row of the last [`Self::forward`].
    pub(super) fn logits(&mut self, rows: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<()> {
        if rows.len().min(HEAD_ROWS) > self.head.capacity() {
            self.head = Head::new(self.model, rows.len().min(HEAD_ROWS))?;
        }
        let model = self.model;
        for (chunk, rows) in rows.chunks(HEAD_ROWS).enumerate() {
            let first = |t: &Tensor| t.narrow(0, 0, rows.len());
            let index = first(&self.head.rows)?;
            let (x, norm, logits) = (first(&self.head.x)?, first(&self.head.norm)?, first(&self.head.logits)?);
            upload(&index, rows)?;
            gather(&x, &self.work.x, &index)?;
            rms_norm(&norm, &x, &model.final_norm, model.shape.rms_eps)?;
            gemm(&logits, &norm, &model.head.t()?, 1.0, Write::Set)?;
            let values = download(&logits)?;
            for (i, row) in values.chunks_exact(model.shape.vocab_rows).enumerate() {
                each(chunk * HEAD_ROWS + i, row);
            }
        }
        Ok(())
    }

    /// Copies the keys and values of `n` rows from the cache's first row on to the rows from each of `starts` on,
    /// which are ascending and past them.
    pub(super) fn copy_first_rows(&mut self, n: usize, starts: &[usize]) -> Result<()> {
        // No tensor is copied within itself: the rows go through a buffer of which no row in flight has need now.
        let through = self.work.qkv.narrow(1, 0, 2 * self.model.shape.kv_dim())?;
        for (layer, _) in &self.cache {
            for first in (0..n).step_by(self.work.capacity().max(1)) {
                let n = (n - first).min(self.work.capacity());
                let shared = through.narrow(0, 0, n)?;
                place(&shared, &layer.narrow(0, first, n)?)?;
                for &start in starts {
                    place(&layer.narrow(0, start + first, n)?, &shared)?;
                }
            }
        }
        Ok(())
    }
}
