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
use crate::model::group::Group;
use crate::model::weights::Norm;
use crate::ops::attention::{attention, attention_backward};
use crate::ops::dropout::{Dropout, dropout, dropout_backward, philox4x32};
use crate::ops::gemm::{Write, gemm};
use crate::ops::rms_norm::{rms_norm, rms_norm_backward};
use crate::ops::rope::rope;
use crate::ops::swiglu::{swiglu, swiglu_backward};

impl Pass<'_> {
    /// Block `layer`: from `inputs[layer]` to `inputs[layer + 1]`.
    pub(super) fn forward(&self, layer: usize) -> Result<()> {
        self.queries_keys_values(layer)?;
        self.attend(layer)?;
        self.gate_and_up(layer)?;

        let (kept, next) = (self.batch.layer(layer)?, &self.batch.inputs[layer + 1]);
        self.activation(&kept.gate_up)?;
        self.linear(layer, Group::Down, &self.batch.activation, next, Write::Residual(&kept.middle))
    }

    /// `qkv = rope(norm(x) [Wq; Wk; Wv]ᵀ)`
    fn queries_keys_values(&self, layer: usize) -> Result<()> {
        let kept = self.batch.layer(layer)?;
        self.normalise(layer, Norm::Input, &self.batch.inputs[layer])?;
        self.linear(layer, Group::Qkv, &self.batch.norm, &kept.qkv, Write::Set)?;
        self.rotate(&kept.qkv, false)
    }

    /// `middle = x + attention(qkv) Woᵀ`
    fn attend(&self, layer: usize) -> Result<()> {
        let kept = self.batch.layer(layer)?;
        let out = kept.attention.narrow(1, 0, self.model.shape.q_dim())?;
        attention(&out, &kept.log_sum_exp, &kept.qkv, &self.batch.cu_seqlens, self.heads)?;
        let x = &self.batch.inputs[layer];
        self.linear(layer, Group::O, &kept.attention, &kept.middle, Write::Residual(x))
    }

    /// `gate_up = norm(middle) [Wgate; Wup]ᵀ`
    fn gate_and_up(&self, layer: usize) -> Result<()> {
        let kept = self.batch.layer(layer)?;
        self.normalise(layer, Norm::PostAttention, &kept.middle)?;
        let gate_up = kept.gate_up.narrow(1, 0, 2 * self.model.shape.ffn)?;
        self.linear(layer, Group::GateUp, &self.batch.norm, &gate_up, Write::Set)
    }

    /// Block `layer` backward: the gradient by `inputs[layer + 1]` becomes the gradient by `inputs[layer]`, in place, and the
    /// adapter's gradients are added up.
    pub(super) fn backward(&self, layer: usize) -> Result<()> {
        let kept = self.batch.kept(layer);
        if !kept.qkv {
            self.queries_keys_values(layer)?;
        }
        if !kept.attention {
            self.attend(layer)?;
        }
        if !kept.gate_up {
            self.gate_and_up(layer)?;
        }
        self.backward_mlp(layer)?;
        self.backward_attention(layer)
    }

    fn backward_mlp(&self, layer: usize) -> Result<()> {
        let (batch, shape) = (&self.batch, &self.model.shape);
        let kept = batch.layer(layer)?;
        let gradient = batch.gradient.narrow(1, 0, shape.hidden)?;

        self.activation(&kept.gate_up)?;
        let activation = batch.activation.narrow(1, 0, shape.ffn)?;
        let down = Backward { input: &batch.activation, has_projection: false, output_gradient: &batch.gradient };
        self.backward_linear(layer, Group::Down, down, Some(&activation))?;
        swiglu_backward(&kept.gate_up.narrow(1, 0, 2 * shape.ffn)?, &activation)?;

        self.normalise(layer, Norm::PostAttention, &kept.middle)?;
        let norm = batch.norm.narrow(1, 0, shape.hidden)?;
        let gate_up = Backward { input: &batch.norm, has_projection: false, output_gradient: &kept.gate_up };
        self.backward_linear(layer, Group::GateUp, gate_up, Some(&norm))?;
        let weight = self.model.norm(layer, Norm::PostAttention);
        rms_norm_backward(&gradient, &norm, &kept.middle, weight, shape.rms_eps, true)
    }

    fn backward_attention(&self, layer: usize) -> Result<()> {
        let (batch, shape) = (&self.batch, &self.model.shape);
        let kept = batch.layer(layer)?;
        let gradient = batch.gradient.narrow(1, 0, shape.hidden)?;

        // The adapter's columns beside the attention output are those of the forward pass.
        let o = Backward { input: &kept.attention, has_projection: true, output_gradient: &batch.gradient };
        self.backward_linear(layer, Group::O, o, Some(&batch.attention_gradient))?;
        let dqkv = batch.qkv_gradient.narrow(1, 0, self.heads.qkv_dim())?;
        let out = kept.attention.narrow(1, 0, shape.q_dim())?;
        let (dout, lse) = (&batch.attention_gradient, &kept.log_sum_exp);
        attention_backward(&dqkv, dout, &out, lse, &batch.delta, &kept.qkv, &batch.cu_seqlens, self.heads)?;
        self.rotate(&dqkv, true)?;

        self.normalise(layer, Norm::Input, &batch.inputs[layer])?;
        // Nothing below the first block is trained.
        let norm = if layer > 0 { Some(batch.norm.narrow(1, 0, shape.hidden)?) } else { None };
        let qkv = Backward { input: &batch.norm, has_projection: false, output_gradient: &batch.qkv_gradient };
        self.backward_linear(layer, Group::Qkv, qkv, norm.as_ref())?;
        let Some(norm) = norm else { return Ok(()) };
        let weight = self.model.norm(layer, Norm::Input);
        rms_norm_backward(&gradient, &norm, &batch.inputs[layer], weight, shape.rms_eps, true)
    }

    fn normalise(&self, layer: usize, norm: Norm, x: &Tensor) -> Result<()> {
        let shape = &self.model.shape;
        let dst = self.batch.norm.narrow(1, 0, shape.hidden)?;
        rms_norm(&dst, x, self.model.norm(layer, norm), shape.rms_eps)
    }

    fn rotate(&self, qkv: &Tensor, inverse: bool) -> Result<()> {
        let n_heads = self.heads.n_heads + self.heads.n_kv_heads;
        rope(qkv, &self.batch.positions, &self.batch.rotations, n_heads, inverse)
    }

    fn activation(&self, gate_up: &Tensor) -> Result<()> {
        let ffn = self.model.shape.ffn;
        swiglu(&self.batch.activation.narrow(1, 0, ffn)?, &gate_up.narrow(1, 0, 2 * ffn)?)
    }

    /// A group forward, adapter and dropout included.
    fn linear(&self, layer: usize, group: Group, input: &Tensor, output: &Tensor, write: Write) -> Result<()> {
        let dropped = self.drop_out(layer, group, input)?;
        let weight = self.model.weight((layer, group), Some(self.adapter), &self.batch.slot)?;
        weight.project_input(input, dropped.as_ref())?;
        weight.forward(input, output, write)
    }

    /// The mask of a group in this pass.
    fn mask(&self, layer: usize, group: Group) -> Option<Dropout> {
        let (seed, p) = self.dropout?;
        let [low, high, ..] = philox4x32(seed, (layer * Group::ALL.len() + group as usize) as u64);
        Some(Dropout { seed: (high as u64) << 32 | low as u64, p })
    }

    /// The input as the adapter sees it under dropout; `None` where dropout is off.
    fn drop_out(&self, layer: usize, group: Group, input: &Tensor) -> Result<Option<Tensor>> {
        let n_in = self.model.group(group).n_in;
        let (Some(mask), Some(buffer)) = (self.mask(layer, group), &self.batch.dropped) else { return Ok(None) };
        if self.model.group(group).rank == 0 {
            return Ok(None);
        }
        let dropped = buffer.narrow(1, 0, n_in)?;
        dropout(&dropped, &input.narrow(1, 0, n_in)?, mask)?;
        Ok(Some(dropped))
    }

    /// A group backward: the gradients of `A` and `B` are added up, then `dx` is written to `input_gradient`, which may be the
    /// columns of `x`.
    fn backward_linear(
        &self,
        layer: usize,
        group: Group,
        pass: Backward<'_>,
        input_gradient: Option<&Tensor>,
    ) -> Result<()> {
        let Backward { input, has_projection, output_gradient } = pass;
        let shape = self.model.group(group);
        let weight = self.model.weight((layer, group), Some(self.adapter), &self.batch.slot)?;
        let dropped = self.drop_out(layer, group, input)?;
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
        if let (Some(dropped), Some(mask)) = (&dropped, self.mask(layer, group)) {
            // The adapter's part passes through the mask, so it can't ride in the same product.
            gemm(dropped, &output_gradient.narrow(1, shape.n_out, shape.rank)?, &weight.a()?, 1.0, Write::Set)?;
            dropout_backward(input_gradient, dropped, mask)?;
        }
        Ok(())
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
