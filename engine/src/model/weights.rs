//! The frozen base on a device, and its linear layers with the adapter in their padding.

use candle_core::{Device, Result, Tensor};

use super::adapter::Adapter;
use super::group::{Group, GroupShape};
use super::shape::ModelShape;
use super::source::ModelSource;
use crate::config::{BaseFormat, LoraConfig};
use crate::ops::gemm::{Write, gemm};
use crate::ops::lora::{place, project};
use crate::ops::nf4::{self, Nf4};

/// A decoder's frozen weights.
pub struct Model {
    /// What it is.
    pub shape: ModelShape,
    /// Sizes of a block's groups, padded for the adapter the model was loaded for.
    pub groups: [GroupShape; 4],
    /// f32 `[vocab_rows, hidden]`.
    pub embedding: Tensor,
    /// f32 `[vocab_rows, hidden]`: the embedding itself where tied.
    pub head: Tensor,
    /// f32 `[hidden]`.
    pub final_norm: Tensor,
    layers: Vec<Layer>,
    device: Device,
}

struct Layer {
    input_norm: Tensor,
    post_norm: Tensor,
    linears: Vec<Linear>,
}

/// A group's frozen weight.
enum Linear {
    /// f32 `[n_out + rank, n_in + rank]`, kept padded.
    Dense(Tensor),
    /// One quantised matrix a member, dequantised into a padded slot at each use.
    Nf4(Vec<Nf4>),
}

/// Which of a block's two norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Norm {
    Input,
    PostAttention,
}

/// Where quantised weights are dequantised: one buffer, large enough for the largest group. Empty for a dense base.
#[derive(Clone)]
pub struct Slot(Option<Tensor>);

impl Slot {
    /// Bytes of the buffer.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |t| (t.elem_count() * t.dtype().size_in_bytes()) as u64)
    }
}

impl Model {
    /// Reads a checkpoint, one tensor at a time. `lora` decides the padding; [`LoraConfig::none`] for a base alone.
    pub fn load(
        source: &ModelSource,
        lora: &LoraConfig,
        base: BaseFormat,
        device: &Device,
    ) -> std::result::Result<Self, super::Error> {
        let shape = source.shape().clone();
        let groups = GroupShape::all(&shape, lora);
        let read = |name: &str, expected: &[usize]| -> std::result::Result<Tensor, super::Error> {
            let (dims, data) = source.tensor_f32(name)?;
            debug_assert_eq!(dims, expected);
            Ok(Tensor::from_vec(data, dims, device)?)
        };
        let h = shape.hidden;
        let embedding = read("model.embed_tokens.weight", &[shape.vocab_rows, h])?;
        let head = if shape.tied { embedding.clone() } else { read("lm_head.weight", &[shape.vocab_rows, h])? };
        let final_norm = read("model.norm.weight", &[h])?;
        let mut layers = Vec::with_capacity(shape.n_layers);
        for i in 0..shape.n_layers {
            let prefix = format!("model.layers.{i}");
            let mut linears = Vec::with_capacity(groups.len());
            for group in &groups {
                linears.push(Linear::load(source, &prefix, group, base, device)?);
            }
            layers.push(Layer {
                input_norm: read(&format!("{prefix}.input_layernorm.weight"), &[h])?,
                post_norm: read(&format!("{prefix}.post_attention_layernorm.weight"), &[h])?,
                linears,
            });
        }
        Ok(Self { shape, groups, embedding, head, final_norm, layers, device: device.clone() })
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A block's norm weight, f32 `[hidden]`.
    pub fn norm(&self, layer: usize, norm: Norm) -> &Tensor {
        match norm {
            Norm::Input => &self.layers[layer].input_norm,
            Norm::PostAttention => &self.layers[layer].post_norm,
        }
    }

    /// Sizes of a group.
    pub fn group(&self, group: Group) -> &GroupShape {
        &self.groups[group as usize]
    }

    /// A slot for this model's weights, allocated; `memory` where the plan has laid it out.
    pub(crate) fn slot(&self, memory: Option<Tensor>) -> Result<Slot> {
        if !self.layers.iter().flat_map(|l| &l.linears).any(|l| matches!(l, Linear::Nf4(_))) {
            return Ok(Slot(None));
        }
        let n = self.groups.iter().map(GroupShape::padded_elements).max().unwrap_or(0);
        let memory = match memory {
            Some(memory) => memory,
            None => Tensor::zeros(n, candle_core::DType::F32, &self.device)?,
        };
        Ok(Slot(Some(memory)))
    }

    /// Copies the adapter into the padding of all dense weights. Must follow every change of the adapter.
    pub(crate) fn place_adapter(&self, adapter: &Adapter) -> Result<()> {
        for (i, layer) in self.layers.iter().enumerate() {
            for (linear, shape) in layer.linears.iter().zip(&self.groups) {
                if let Linear::Dense(weight) = linear {
                    place_group(weight, adapter, i, shape)?;
                }
            }
        }
        Ok(())
    }

    /// A group's padded weight, `[n_out + rank, n_in + rank]`, with the adapter in its place.
    fn weight(&self, layer: usize, group: Group, adapter: Option<&Adapter>, slot: &Slot) -> Result<Tensor> {
        let shape = self.group(group);
        match (&self.layers[layer].linears[group as usize], &slot.0) {
            (Linear::Dense(weight), _) => Ok(weight.clone()),
            (Linear::Nf4(members), Some(slot)) => {
                let weight = slot
                    .narrow(0, 0, shape.padded_elements())?
                    .reshape((shape.n_out + shape.rank, shape.n_in + shape.rank))?;
                for (quantised, member) in members.iter().zip(&shape.members) {
                    let dst = weight.narrow(0, member.outputs.start, member.outputs.len())?.narrow(1, 0, shape.n_in)?;
                    nf4::dequantize(&dst, quantised)?;
                }
                if let Some(adapter) = adapter {
                    crate::ops::upload::clear(&weight.narrow(0, 0, shape.n_out)?.narrow(1, shape.n_in, shape.rank)?)?;
                    place_group(&weight, adapter, layer, shape)?;
                }
                Ok(weight)
            }
            (Linear::Nf4(_), None) => candle_core::bail!("a quantised base needs a slot to be dequantised into"),
        }
    }

    /// `output = [x | s x Aᵀ] [W | B]ᵀ`, or added to it.
    ///
    /// `input` is f32 `[n, >= n_in + rank]` with `x` in its first columns; the adapter's part is written beside it, computed from
    /// `dropped` (`[n, n_in]`) where dropout is on. Without `adapter` the base alone answers. `output` is `[n, n_out]`.
    pub(crate) fn forward(
        &self,
        (layer, group): (usize, Group),
        input: &Tensor,
        dropped: Option<&Tensor>,
        adapter: Option<&Adapter>,
        output: &Tensor,
        write: Write,
        slot: &Slot,
    ) -> Result<()> {
        let shape = self.group(group);
        let adapter = adapter.filter(|_| shape.rank > 0);
        if let Some(adapter) = adapter {
            self.project_input((layer, group), input, dropped, adapter)?;
        }
        let weight = self.weight(layer, group, adapter, slot)?;
        let n_in = shape.n_in + if adapter.is_some() { shape.rank } else { 0 };
        let weight = weight.narrow(0, 0, shape.n_out)?.narrow(1, 0, n_in)?;
        gemm(output, &input.narrow(1, 0, n_in)?, &weight.t()?, 1.0, write)
    }

    /// Writes `s x Aᵀ` beside `x`; see [`Self::forward`].
    pub(crate) fn project_input(
        &self,
        (layer, group): (usize, Group),
        input: &Tensor,
        dropped: Option<&Tensor>,
        adapter: &Adapter,
    ) -> Result<()> {
        let shape = self.group(group);
        if shape.rank == 0 {
            return Ok(());
        }
        let (a, scale) = (adapter.view(adapter.flat(), layer, group)?.a.t()?, adapter.lora().scale());
        match dropped {
            None => project(input, 0..shape.n_in, shape.n_in..shape.n_in + shape.rank, &a, scale),
            Some(dropped) => gemm(&input.narrow(1, shape.n_in, shape.rank)?, dropped, &a, scale, Write::Set),
        }
    }

    /// Writes `s dy B` beside `dy`: `output_gradient` is f32 `[n, >= n_out + rank]`.
    pub(crate) fn project_gradient(
        &self,
        (layer, group): (usize, Group),
        output_gradient: &Tensor,
        adapter: &Adapter,
    ) -> Result<()> {
        let shape = self.group(group);
        let view = adapter.view(adapter.flat(), layer, group)?;
        for (member, b) in shape.members.iter().zip(&view.b) {
            let Some(b) = b else { continue };
            let to = shape.n_out + member.ranks.start..shape.n_out + member.ranks.end;
            project(output_gradient, member.outputs.clone(), to, b, adapter.lora().scale())?;
        }
        Ok(())
    }

    /// `input_gradient = [dy | s dy B] [W ; A]`, or without the adapter's part (`dy W`) where `adapter_part` is false.
    ///
    /// `output_gradient` is as [`Self::project_gradient`] left it; `input_gradient` is `[n, n_in]`.
    pub(crate) fn backward(
        &self,
        (layer, group): (usize, Group),
        output_gradient: &Tensor,
        adapter: &Adapter,
        adapter_part: bool,
        input_gradient: &Tensor,
        slot: &Slot,
    ) -> Result<()> {
        let shape = self.group(group);
        let weight = self.weight(layer, group, Some(adapter), slot)?;
        let n_out = shape.n_out + if adapter_part { shape.rank } else { 0 };
        let weight = weight.narrow(0, 0, n_out)?.narrow(1, 0, shape.n_in)?;
        gemm(input_gradient, &output_gradient.narrow(1, 0, n_out)?, &weight, 1.0, Write::Set)
    }
}

/// Copies a group's `A` into the rows below `W` and each member's `B` into its own columns beside it.
fn place_group(weight: &Tensor, adapter: &Adapter, layer: usize, shape: &GroupShape) -> Result<()> {
    if shape.rank == 0 {
        return Ok(());
    }
    let view = adapter.view(adapter.flat(), layer, shape.group)?;
    place(&weight.narrow(0, shape.n_out, shape.rank)?.narrow(1, 0, shape.n_in)?, &view.a)?;
    for (member, b) in shape.members.iter().zip(&view.b) {
        let Some(b) = b else { continue };
        let rows = weight.narrow(0, member.outputs.start, member.outputs.len())?;
        place(&rows.narrow(1, shape.n_in + member.ranks.start, member.ranks.len())?, b)?;
    }
    Ok(())
}

impl Linear {
    fn load(
        source: &ModelSource,
        prefix: &str,
        shape: &GroupShape,
        base: BaseFormat,
        device: &Device,
    ) -> std::result::Result<Self, super::Error> {
        let stride = shape.n_in + shape.rank;
        let mut padded = match base {
            BaseFormat::F32 => vec![0f32; shape.padded_elements()],
            BaseFormat::Nf4 => Vec::new(),
        };
        let mut quantised = Vec::new();
        for member in &shape.members {
            let (_, data) = source.tensor_f32(&format!("{prefix}.{}.weight", member.target.module()))?;
            match base {
                BaseFormat::F32 => {
                    for (row, values) in member.outputs.clone().zip(data.chunks_exact(shape.n_in)) {
                        padded[row * stride..][..shape.n_in].copy_from_slice(values);
                    }
                }
                BaseFormat::Nf4 => quantised.push(nf4::quantize(&data, member.outputs.len(), shape.n_in, device)?),
            }
        }
        Ok(match base {
            BaseFormat::F32 => Linear::Dense(Tensor::from_vec(padded, (shape.n_out + shape.rank, stride), device)?),
            BaseFormat::Nf4 => Linear::Nf4(quantised),
        })
    }
}
