//! One transformer block, forward and backward, by hand.
//!
//! ```text
//! x ──┬─ norm ─ q,k,v ─ rope ─ attention ─ o ─(+)─┬─ norm ─ gate,up ─ swiglu ─ down ─(+)── next x
//!     └────────────────────────────────────────┘ └───────────────────────────────────┘
//!                                               middle
//! ```
//!
//! Backward runs the same line from right to left; what the recompute mode did not keep is computed again first, by the same
//! operations on the same inputs, so all modes give the same bits. `down` is never recomputed: nobody needs its output.

use candle_core::{Result, Tensor};

use super::Pass;
use super::buffers::MlpRows;
use crate::model::group::Group;
use crate::model::weights::Norm;
use crate::ops::attention::{attention, attention_backward};
use crate::ops::dropout::{Dropout, dropout, dropout_backward, philox4x32};
use crate::ops::gemm::{Write, gemm};
use crate::ops::rms_norm::{rms_norm, rms_norm_backward};
use crate::ops::rope::rope;
use crate::ops::swiglu::{swiglu, swiglu_backward};

impl Pass<'_> {
    /// Block `layer`: from `input(layer)` to `input(layer + 1)`.
    pub(super) fn forward(&self, layer: usize) -> Result<()> {
        self.bring_weights(layer, layer + 1)?;
        self.queries_keys_values(layer)?;
        self.attend(layer)?;
        self.batch.before_writing_input(layer + 1)?;
        let next = self.batch.input(layer + 1);
        for part in self.batch.mlp_parts(layer)? {
            self.gate_and_up(layer, &part)?;
            self.activate(&part)?;
            let next = next.narrow(0, part.rows.start, part.rows.len())?;
            let down = At { layer, group: Group::Down, first_row: part.rows.start };
            self.linear(down, &part.activation, &next, Write::Residual(&part.middle))?;
        }
        Ok(())
    }

    /// `qkv = rope(norm(x) [Wq; Wk; Wv]ᵀ)`
    fn queries_keys_values(&self, layer: usize) -> Result<()> {
        let kept = self.batch.layer(layer)?;
        self.normalise(layer, Norm::Input, self.batch.input(layer), &self.batch.norm)?;
        self.linear(At::all(layer, Group::Qkv), &self.batch.norm, &kept.qkv, Write::Set)?;
        self.rotate(&kept.qkv, false)
    }

    /// `middle = x + attention(qkv) Woᵀ`
    fn attend(&self, layer: usize) -> Result<()> {
        let kept = self.batch.layer(layer)?;
        let out = kept.attention.narrow(1, 0, self.model.shape.q_dim())?;
        attention(&out, &kept.log_sum_exp, &kept.qkv, &self.batch.cu_seqlens, self.heads)?;
        let x = self.batch.input(layer);
        self.linear(At::all(layer, Group::O), &kept.attention, &kept.middle, Write::Residual(x))
    }

    /// `gate_up = norm(middle) [Wgate; Wup]ᵀ`
    fn gate_and_up(&self, layer: usize, part: &MlpRows) -> Result<()> {
        self.normalise(layer, Norm::PostAttention, &part.middle, &part.norm)?;
        let gate_up = part.gate_up.narrow(1, 0, 2 * self.model.shape.ffn)?;
        let at = At { layer, group: Group::GateUp, first_row: part.rows.start };
        self.linear(at, &part.norm, &gate_up, Write::Set)
    }

    /// Block `layer` backward: the gradient by `input(layer + 1)` becomes the gradient by `input(layer)`, in place, and
    /// the adapter's gradients are added up.
    pub(super) fn backward(&self, layer: usize) -> Result<()> {
        self.bring_weights(layer, layer.wrapping_sub(1))?;
        self.batch.bring_inputs(layer, self.model.shape.n_layers)?;
        let kept = self.batch.kept(layer);
        if !kept.qkv {
            self.queries_keys_values(layer)?;
        }
        if !kept.attention {
            self.attend(layer)?;
        }
        for part in self.batch.mlp_parts(layer)? {
            if !kept.gate_up {
                self.gate_and_up(layer, &part)?;
            }
            self.backward_mlp(layer, &part)?;
        }
        self.backward_attention(layer)
    }

    fn backward_mlp(&self, layer: usize, part: &MlpRows) -> Result<()> {
        let shape = &self.model.shape;
        let first_row = part.rows.start;
        // With room for the adapter's columns.
        let output_gradient = self.batch.gradient.narrow(0, first_row, part.rows.len())?;

        self.activate(part)?;
        let activation = part.activation.narrow(1, 0, shape.ffn)?;
        let down = Backward { input: &part.activation, has_projection: false, output_gradient: &output_gradient };
        self.backward_linear(At { layer, group: Group::Down, first_row }, down, Some(&activation))?;
        swiglu_backward(&part.gate_up.narrow(1, 0, 2 * shape.ffn)?, &activation)?;

        self.normalise(layer, Norm::PostAttention, &part.middle, &part.norm)?;
        let norm = part.norm.narrow(1, 0, shape.hidden)?;
        let gate_up = Backward { input: &part.norm, has_projection: false, output_gradient: &part.gate_up };
        self.backward_linear(At { layer, group: Group::GateUp, first_row }, gate_up, Some(&norm))?;
        let weight = self.model.norm(layer, Norm::PostAttention);
        let gradient = output_gradient.narrow(1, 0, shape.hidden)?;
        rms_norm_backward(&gradient, &norm, &part.middle, weight, shape.rms_eps, true)
    }

    fn backward_attention(&self, layer: usize) -> Result<()> {
        let (batch, shape) = (&self.batch, &self.model.shape);
        let kept = batch.layer(layer)?;
        let gradient = batch.gradient.narrow(1, 0, shape.hidden)?;

        // The adapter's columns beside the attention output are those of the forward pass.
        let o = Backward { input: &kept.attention, has_projection: true, output_gradient: &batch.gradient };
        self.backward_linear(At::all(layer, Group::O), o, Some(&batch.attention_gradient))?;
        let dqkv = batch.qkv_gradient.narrow(1, 0, self.heads.qkv_dim())?;
        let out = kept.attention.narrow(1, 0, shape.q_dim())?;
        let (dout, lse) = (&batch.attention_gradient, &kept.log_sum_exp);
        attention_backward(&dqkv, dout, &out, lse, &batch.delta, &kept.qkv, &batch.cu_seqlens, self.heads)?;
        self.rotate(&dqkv, true)?;

        self.normalise(layer, Norm::Input, batch.input(layer), &batch.norm)?;
        // Nothing below the first block is trained.
        let norm = if layer > 0 { Some(batch.norm.narrow(1, 0, shape.hidden)?) } else { None };
        let qkv = Backward { input: &batch.norm, has_projection: false, output_gradient: &batch.qkv_gradient };
        self.backward_linear(At::all(layer, Group::Qkv), qkv, norm.as_ref())?;
        let Some(norm) = norm else { return Ok(()) };
        let weight = self.model.norm(layer, Norm::Input);
        rms_norm_backward(&gradient, &norm, batch.input(layer), weight, shape.rms_eps, true)
    }

    /// `dst = norm(x)` in its first columns.
    fn normalise(&self, layer: usize, norm: Norm, x: &Tensor, dst: &Tensor) -> Result<()> {
        let shape = &self.model.shape;
        rms_norm(&dst.narrow(1, 0, shape.hidden)?, x, self.model.norm(layer, norm), shape.rms_eps)
    }

    /// The weights of `layer` are there from here on, and those of `next`, if there is such a layer, are on their way.
    fn bring_weights(&self, layer: usize, next: usize) -> Result<()> {
        self.model.bring(layer, (next < self.model.shape.n_layers).then_some(next))
    }

    fn rotate(&self, qkv: &Tensor, inverse: bool) -> Result<()> {
        let n_heads = self.heads.n_heads + self.heads.n_kv_heads;
        rope(qkv, &self.batch.positions, &self.batch.rotations, n_heads, inverse)
    }

    fn activate(&self, part: &MlpRows) -> Result<()> {
        let ffn = self.model.shape.ffn;
        swiglu(&part.activation.narrow(1, 0, ffn)?, &part.gate_up.narrow(1, 0, 2 * ffn)?)
    }

    /// A group forward, adapter and dropout included.
    fn linear(&self, at: At, input: &Tensor, output: &Tensor, write: Write) -> Result<()> {
        let dropped = self.drop_out(at, input)?;
        let weight = self.model.weight((at.layer, at.group), Some(self.adapter), &self.batch.slot)?;
        weight.project_input(input, dropped.as_ref())?;
        weight.forward(input, output, write)
    }

    /// The mask of a group in this pass.
    fn mask(&self, At { layer, group, first_row }: At) -> Option<Dropout> {
        let (seed, p) = self.dropout?;
        let [low, high, ..] = philox4x32(seed, (layer * Group::ALL.len() + group as usize) as u64);
        let first_row = self.first_row + first_row;
        Some(Dropout { seed: (high as u64) << 32 | low as u64, p, first_row })
    }

    /// The input as the adapter sees it under dropout; `None` where dropout is off.
    fn drop_out(&self, at: At, input: &Tensor) -> Result<Option<Tensor>> {
        let (n, n_in) = (input.dim(0)?, self.model.group(at.group).n_in);
        let (Some(mask), Some(buffer)) = (self.mask(at), &self.batch.dropped) else { return Ok(None) };
        if self.model.group(at.group).rank == 0 {
            return Ok(None);
        }
        let dropped = buffer.narrow(0, 0, n * n_in)?.reshape((n, n_in))?;
        dropout(&dropped, &input.narrow(1, 0, n_in)?, mask)?;
        Ok(Some(dropped))
    }

    /// A group backward: the gradients of `A` and `B` are added up, then `dx` is written to `input_gradient`, which may be the
    /// columns of `x`.
    fn backward_linear(&self, at: At, pass: Backward<'_>, input_gradient: Option<&Tensor>) -> Result<()> {
        let At { layer, group, .. } = at;
        let Backward { input, has_projection, output_gradient } = pass;
        let shape = self.model.group(group);
        let weight = self.model.weight((layer, group), Some(self.adapter), &self.batch.slot)?;
        let dropped = self.drop_out(at, input)?;
        if shape.rank > 0 {
            if !has_projection {
                weight.project_input(input, dropped.as_ref())?;
            }
            weight.project_gradient(output_gradient)?;
            let gradients = self.adapter.view(self.gradients, layer, group)?;
            let d = output_gradient.narrow(1, shape.n_out, shape.rank)?;
            let x = match &dropped {
                Some(dropped) => dropped.clone(),
                None => input.narrow(1, 0, shape.n_in)?,
            };
            gemm(&gradients.a, &d.t()?, &x, 1.0, Write::Add)?;
            for (member, db) in shape.members.iter().zip(&gradients.b) {
                let Some(db) = db else { continue };
                let dy = output_gradient.narrow(1, member.outputs.start, member.outputs.len())?;
                let xa = input.narrow(1, shape.n_in + member.ranks.start, member.ranks.len())?;
                gemm(db, &dy.t()?, &xa, 1.0, Write::Add)?;
            }
        }
        let Some(input_gradient) = input_gradient else { return Ok(()) };
        weight.backward(output_gradient, dropped.is_none(), input_gradient)?;
        if let (Some(dropped), Some(mask)) = (&dropped, self.mask(at)) {
            // The adapter's part passes through the mask, so it can't ride in the same product.
            gemm(dropped, &output_gradient.narrow(1, shape.n_out, shape.rank)?, &weight.a()?, 1.0, Write::Set)?;
            dropout_backward(input_gradient, dropped, mask)?;
        }
        Ok(())
    }
}

/// A group's linear layers, applied to rows of the batch from `first_row` on.
#[derive(Clone, Copy)]
struct At {
    layer: usize,
    group: Group,
    first_row: usize,
}

impl At {
    /// To all rows.
    fn all(layer: usize, group: Group) -> Self {
        Self { layer, group, first_row: 0 }
    }
}

/// What a group's backward pass starts from.
struct Backward<'a> {
    /// `x` with room for the adapter's columns.
    input: &'a Tensor,
    /// Whether those columns are still there from the forward pass.
    has_projection: bool,
    /// `dy` with room for its own.
    output_gradient: &'a Tensor,
}
