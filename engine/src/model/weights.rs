//! The frozen base on a device, and its linear layers with the adapter in their padding.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use rayon::prelude::*;

use super::adapter::Adapter;
use super::group::{Group, GroupShape};
use super::shape::ModelShape;
use super::source::ModelSource;
use super::stream::{self, Stream};
use crate::config::{BaseFormat, ComputeDtype, LoraConfig, Settings};
use crate::ops::gemm::{Write, gemm};
use crate::ops::lora::{place, project};
use crate::ops::memory::{Held, Site};
use crate::ops::nf4::{self, Nf4};
use crate::ops::padded;
use crate::ops::rows::Table;

/// A decoder's frozen weights.
pub struct Model {
    /// What it is.
    pub shape: ModelShape,
    /// Sizes of a block's groups, padded for the adapter the model was loaded for.
    pub groups: [GroupShape; 4],
    /// `[vocab_rows, hidden]` in the type of the step, on the device or in system memory.
    pub embedding: Table,
    /// `[vocab_rows, hidden]` in the type of the step: the embedding itself where tied.
    pub head: Tensor,
    /// f32 `[hidden]`.
    pub final_norm: Tensor,
    layers: Vec<Layer>,
    /// Brings the first layers from system memory, where they wait there.
    stream: Option<Stream>,
    device: Device,
    dtype: DType,
    /// Of all of these.
    _held: Held,
}

struct Layer {
    input_norm: Tensor,
    post_norm: Tensor,
    linears: Vec<Linear>,
}

/// In which form a model's weights are held.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    /// The linear layers.
    pub base: BaseFormat,
    /// What is computed in, and everything else held in.
    pub compute: ComputeDtype,
    /// The embedding is in system memory.
    pub embedding_on_host: bool,
    /// The first layers, this many, wait in system memory; of an NF4 base only.
    pub n_layers_streamed: usize,
}

impl Precision {
    /// In f32 on the processor.
    pub fn f32(base: BaseFormat) -> Self {
        Self { base, compute: ComputeDtype::F32, embedding_on_host: false, n_layers_streamed: 0 }
    }
}

impl From<&Settings> for Precision {
    fn from(settings: &Settings) -> Self {
        let Settings { base, compute, embedding_on_host, n_layers_streamed, .. } = *settings;
        Self { base, compute, embedding_on_host, n_layers_streamed }
    }
}

impl Precision {
    /// Layers that wait in system memory, of `n_layers`.
    fn n_streamed(&self, n_layers: usize) -> usize {
        if self.base == BaseFormat::Nf4 { self.n_layers_streamed.min(n_layers) } else { 0 }
    }
}

/// A group's frozen weight.
enum Linear {
    /// [`padded_view`] in the type of the step, kept padded.
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

/// Where quantised weights are dequantised: one buffer, large enough for the largest group, that all use by turns, and where memory
/// is left over a cache of some layers, dequantised once. Empty for a dense base.
#[derive(Clone, Default)]
pub struct Slot {
    shared: Option<Tensor>,
    /// Buffers of the last layers' weights, in their order, see [`padded_view`].
    cached: Arc<[Vec<Tensor>]>,
}

impl Slot {
    /// Bytes of the buffers.
    pub(crate) fn bytes(&self) -> u64 {
        let all = self.shared.iter().chain(self.cached.iter().flatten());
        all.map(|t| (t.elem_count() * t.dtype().size_in_bytes()) as u64).sum()
    }

    /// The cached weights of layer `layer` of `n_layers`, by group.
    fn cached(&self, layer: usize, n_layers: usize) -> Option<&[Tensor]> {
        let i = (layer + self.cached.len()).checked_sub(n_layers)?;
        self.cached.get(i).map(Vec::as_slice)
    }
}

impl Model {
    /// Reads a checkpoint, one tensor at a time. `lora` decides the padding; [`LoraConfig::none`] for a base alone.
    pub fn load(
        source: &ModelSource,
        lora: &LoraConfig,
        precision: Precision,
        device: &Device,
    ) -> std::result::Result<Self, super::Error> {
        let Precision { base, compute, embedding_on_host, .. } = precision;
        let (shape, dtype) = (source.shape().clone(), compute.dtype());
        let groups = GroupShape::all(&shape, lora);
        let held = Held::new();
        let read_host = |name: &str, expected: &[usize], dtype: DType| -> std::result::Result<Tensor, super::Error> {
            let (dims, data) = source.tensor_f32(name)?;
            debug_assert_eq!(dims, expected);
            check_range(name, &data, dtype)?;
            Ok(Tensor::from_vec(data, dims, &Device::Cpu)?)
        };
        let h = shape.hidden;
        let admit_table = |device: &Device| {
            held.admit((shape.vocab_rows * h * dtype.size_in_bytes()) as u64, device, Site::Embeddings)
        };
        let table = |name: &str| {
            admit_table(device)?;
            on_device(read_host(name, &[shape.vocab_rows, h], dtype)?, dtype, device)
        };
        let (embedding, head) = if shape.tied {
            let both = table("model.embed_tokens.weight")?;
            (Table::on_device(both.clone()), both)
        } else {
            admit_table(if embedding_on_host { &Device::Cpu } else { device })?;
            let rows = read_host("model.embed_tokens.weight", &[shape.vocab_rows, h], dtype)?.to_dtype(dtype)?;
            (place_embedding(rows, embedding_on_host, device)?, table("lm_head.weight")?)
        };
        // Before the layers, and all norms in one piece: what lives on must not lie between what loading frees again.
        held.admit(((2 * shape.n_layers + 1) * h * DType::F32.size_in_bytes()) as u64, device, Site::Norms)?;
        let mut norms = Vec::with_capacity(2 * shape.n_layers + 1);
        for i in 0..shape.n_layers {
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                norms.push(read_host(&format!("model.layers.{i}.{norm}.weight"), &[shape.hidden], DType::F32)?);
            }
        }
        norms.push(read_host("model.norm.weight", &[shape.hidden], DType::F32)?);
        let norms = Norms(on_device(Tensor::stack(&norms, 0)?, DType::F32, device)?);
        let n_streamed = precision.n_streamed(shape.n_layers);
        held.admit(stream::device_bytes(&groups, n_streamed) as u64, device, Site::BaseWeights)?;
        let stream = Stream::new(n_streamed, &groups, device)?;
        let mut layers = Vec::with_capacity(shape.n_layers);
        for i in 0..shape.n_layers {
            let prefix = format!("model.layers.{i}");
            let mut linears = Vec::with_capacity(groups.len());
            for group in &groups {
                let place = if i < n_streamed { &Device::Cpu } else { device };
                held.admit(Linear::bytes(group, base, dtype), place, Site::BaseWeights)?;
                linears.push(Linear::load(source, &prefix, group, (base, dtype), device)?);
            }
            send(&stream, i, &mut linears)?;
            layers.push(norms.layer(i, linears)?);
        }
        let (final_norm, device) = (norms.last()?, device.clone());
        Ok(Self { shape, groups, embedding, head, final_norm, layers, stream, device, dtype, _held: held })
    }

    /// A decoder of random weights, for measuring speed and memory without a checkpoint. All layers hold the same values, each in
    /// memory of its own.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn random(shape: &ModelShape, lora: &LoraConfig, precision: Precision, device: &Device) -> Result<Self> {
        let Precision { base, compute, embedding_on_host, .. } = precision;
        let (groups, dtype) = (GroupShape::all(shape, lora), compute.dtype());
        // Uniform, of standard deviation 0.02, from a counter (SplitMix64's finaliser).
        let uniform = |rows: usize, cols: usize, seed: u64| {
            let value = |i: usize| {
                let mut z = (i as u64 + (seed << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                ((z >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.07
            };
            (0..rows * cols).into_par_iter().map(value).collect::<Vec<f32>>()
        };
        let table = |seed, device: &Device| {
            let values = Tensor::from_vec(
                uniform(shape.vocab_rows, shape.hidden, seed),
                (shape.vocab_rows, shape.hidden),
                &Device::Cpu,
            )?;
            values.to_dtype(dtype)?.to_device(device)
        };
        let first: Vec<Linear> = groups
            .iter()
            .map(|group| {
                if base != BaseFormat::Nf4 {
                    let n = group.padded_elements();
                    let mut buffer = vec![0f32; n];
                    let values = uniform(group.n_out, group.n_in, 1);
                    for (row, values) in buffer.chunks_exact_mut(group.stride()).zip(values.chunks_exact(group.n_in)) {
                        row[..group.n_in].copy_from_slice(values);
                    }
                    let buffer = Tensor::from_vec(buffer, n, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
                    return Ok(Linear::Dense(padded_view(&buffer, group)?));
                }
                let quantise = |member: &super::group::Member| {
                    let rows = member.outputs.len();
                    nf4::quantize(&uniform(rows, group.n_in, member.target as u64), rows, group.n_in, device)
                };
                Ok(Linear::Nf4(group.members.iter().map(quantise).collect::<Result<_>>()?))
            })
            .collect::<Result<_>>()?;
        let ones = Tensor::ones((2 * shape.n_layers + 1, shape.hidden), DType::F32, &Device::Cpu)?;
        let norms = Norms(ones.to_device(device)?);
        let stream = Stream::new(precision.n_streamed(shape.n_layers), &groups, device)?;
        let layer = |i| {
            let mut linears = first.iter().map(Linear::copy).collect::<Result<Vec<_>>>()?;
            send(&stream, i, &mut linears)?;
            norms.layer(i, linears)
        };
        let (embedding, head) = if shape.tied {
            let both = table(8, device)?;
            (Table::on_device(both.clone()), both)
        } else {
            (place_embedding(table(8, &Device::Cpu)?, embedding_on_host, device)?, table(9, device)?)
        };
        Ok(Self {
            head,
            embedding,
            final_norm: norms.last()?,
            layers: (0..shape.n_layers).map(layer).collect::<Result<_>>()?,
            shape: shape.clone(),
            groups,
            stream,
            device: device.clone(),
            dtype,
            _held: Held::new(),
        })
    }

    /// The weights of `layer` can be used from here on, and those of `next`, a neighbour, are on their way: to be called before
    /// [`Self::weight`] for every layer in turn. Costs nothing where all layers are on the device.
    pub(crate) fn bring(&self, layer: usize, next: Option<usize>) -> Result<()> {
        self.stream.as_ref().map_or(Ok(()), |stream| stream.bring(layer, next))
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type of weights in use and of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
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

    /// A slot for this model's weights, of memory that counts as `held`.
    pub(crate) fn slot(&self, held: &Held) -> Result<Slot> {
        if !self.layers.iter().flat_map(|l| &l.linears).any(|l| matches!(l, Linear::Nf4(_))) {
            return Ok(Slot::default());
        }
        let n = self.groups.iter().map(GroupShape::padded_elements).max().unwrap_or(0);
        Ok(Slot { shared: Some(held.zeros(n, self.dtype, &self.device, Site::Slot)?), ..Slot::default() })
    }

    /// [`Self::slot`] with the last `n_layers` layers dequantised in it for good. The adapter is in none of them yet.
    pub(crate) fn slot_caching(&self, n_layers: usize, held: &Held) -> Result<Slot> {
        let slot = self.slot(held)?;
        if slot.shared.is_none() {
            return Ok(slot);
        }
        let total = self.shape.n_layers;
        let cache = |layer| {
            self.bring(layer, (layer + 1 < total).then_some(layer + 1))?;
            let group = |shape: &GroupShape| {
                let buffer = held.zeros(shape.padded_elements(), self.dtype, &self.device, Site::WeightCache)?;
                self.dequantise((layer, shape), None, &padded_view(&buffer, shape)?)?;
                Ok(buffer)
            };
            self.groups.iter().map(group).collect::<Result<_>>()
        };
        let cached = (total.saturating_sub(n_layers)..total).map(cache).collect::<Result<_>>()?;
        Ok(Slot { cached, ..slot })
    }

    /// Copies the adapter into the padding of all weights that stay dequantised, those cached in `slot` included. Must follow every
    /// change of the adapter.
    pub(crate) fn place_adapter(&self, adapter: &Adapter, slot: Option<&Slot>) -> Result<()> {
        for (i, layer) in self.layers.iter().enumerate() {
            let cached = slot.and_then(|slot| slot.cached(i, self.layers.len()));
            for (linear, shape) in layer.linears.iter().zip(&self.groups) {
                match (linear, cached) {
                    (Linear::Dense(weight), _) => place_group(weight, adapter, i, shape)?,
                    (Linear::Nf4(_), Some(cached)) => {
                        place_group(&padded_view(&cached[shape.group as usize], shape)?, adapter, i, shape)?;
                    }
                    (Linear::Nf4(_), None) => {}
                }
            }
        }
        Ok(())
    }

    /// A group's padded weight with the adapter in its place: where it is kept or cached, or dequantised into `slot`, which holds it until
    /// the next call. Without `adapter` the base alone is asked for, and the padding is not to be read.
    pub(crate) fn weight<'a>(
        &'a self,
        (layer, group): (usize, Group),
        adapter: Option<&Adapter>,
        slot: &Slot,
    ) -> Result<PaddedWeight<'a>> {
        let shape = self.group(group);
        let cached = slot.cached(layer, self.layers.len()).map(|groups| &groups[group as usize]);
        let weight = match (&self.layers[layer].linears[group as usize], cached, &slot.shared) {
            (Linear::Dense(weight), ..) => weight.clone(),
            (Linear::Nf4(_), Some(buffer), _) => padded_view(buffer, shape)?,
            (Linear::Nf4(_), None, Some(buffer)) => {
                let weight = padded_view(buffer, shape)?;
                self.dequantise((layer, shape), adapter, &weight)?;
                weight
            }
            (Linear::Nf4(_), None, None) => candle_core::bail!("a quantised base needs a slot to be dequantised into"),
        };
        let scale = adapter.filter(|_| shape.rank > 0).map(|adapter| adapter.lora().scale());
        Ok(PaddedWeight { weight, shape, scale })
    }

    /// Fills `weight` with a quantised group, and its padding with the adapter where one is given.
    fn dequantise(
        &self,
        (layer, shape): (usize, &GroupShape),
        adapter: Option<&Adapter>,
        weight: &Tensor,
    ) -> Result<()> {
        let Linear::Nf4(members) = &self.layers[layer].linears[shape.group as usize] else { return Ok(()) };
        let view = match adapter.filter(|_| shape.rank > 0) {
            Some(adapter) => Some(adapter.view(adapter.flat(), layer, shape.group)?),
            None => None,
        };
        let b = |i: usize| view.as_ref().and_then(|view| view.b[i].as_ref());
        let members: Vec<padded::Member> = members
            .iter()
            .zip(&shape.members)
            .enumerate()
            .map(|(i, (weight, member))| padded::Member { weight, b: b(i).map(|b| (b, member.ranks.start)) })
            .collect();
        padded::dequantize(weight, &members, view.as_ref().map(|view| &view.a))
    }
}

/// A group's weight, `[n_out + rank, n_in + rank]` in the type of the step, for one pass: `W`, `B` beside it, `A` below it (see
/// [`crate::ops::lora`]).
pub(crate) struct PaddedWeight<'a> {
    weight: Tensor,
    shape: &'a GroupShape,
    /// `alpha / rank`; `None` where the base answers alone.
    scale: Option<f32>,
}

impl PaddedWeight<'_> {
    /// Stacked `A`, `[rank, n_in]`.
    pub(crate) fn a(&self) -> Result<Tensor> {
        self.weight.narrow(0, self.shape.n_out, self.shape.rank)?.narrow(1, 0, self.shape.n_in)
    }

    /// Writes `s x Aᵀ` beside `x`.
    ///
    /// `input` is `[n, >= n_in + rank]` with `x` in its first columns; the adapter sees `dropped` (`[n, n_in]`) where dropout is on.
    pub(crate) fn project_input(&self, input: &Tensor, dropped: Option<&Tensor>) -> Result<()> {
        let Some(scale) = self.scale else { return Ok(()) };
        let (a, shape) = (self.a()?.t()?, self.shape);
        match dropped {
            None => project(input, 0..shape.n_in, shape.n_in..shape.n_in + shape.rank, &a, scale),
            Some(dropped) => gemm(&input.narrow(1, shape.n_in, shape.rank)?, dropped, &a, scale, Write::Set),
        }
    }

    /// `output = [x | s x Aᵀ] [W | B]ᵀ`, or added to it. `input` is as [`Self::project_input`] left it; `output` is `[n, n_out]`.
    pub(crate) fn forward(&self, input: &Tensor, output: &Tensor, write: Write) -> Result<()> {
        let n_in = self.shape.n_in + if self.scale.is_some() { self.shape.rank } else { 0 };
        let weight = self.weight.narrow(0, 0, self.shape.n_out)?.narrow(1, 0, n_in)?;
        gemm(output, &input.narrow(1, 0, n_in)?, &weight.t()?, 1.0, write)
    }

    /// Writes `s dy B` beside `dy`: `output_gradient` is `[n, >= n_out + rank]`.
    pub(crate) fn project_gradient(&self, output_gradient: &Tensor) -> Result<()> {
        let Some(scale) = self.scale else { return Ok(()) };
        let shape = self.shape;
        if !output_gradient.device().is_cpu() {
            // One pass over dy with the zeros around the blocks of B: on a card a product this thin costs its reading.
            let b = self.weight.narrow(0, 0, shape.n_out)?.narrow(1, shape.n_in, shape.rank)?;
            return project(output_gradient, 0..shape.n_out, shape.n_out..shape.n_out + shape.rank, &b, scale);
        }
        for member in shape.members.iter().filter(|m| !m.ranks.is_empty()) {
            let rows = self.weight.narrow(0, member.outputs.start, member.outputs.len())?;
            let b = rows.narrow(1, shape.n_in + member.ranks.start, member.ranks.len())?;
            let to = shape.n_out + member.ranks.start..shape.n_out + member.ranks.end;
            project(output_gradient, member.outputs.clone(), to, &b, scale)?;
        }
        Ok(())
    }

    /// `input_gradient = [dy | s dy B] [W ; A]`, or without the adapter's part (`dy W`) where `adapter_part` is false.
    ///
    /// `output_gradient` is as [`Self::project_gradient`] left it; `input_gradient` is `[n, n_in]`.
    pub(crate) fn backward(&self, output_gradient: &Tensor, adapter_part: bool, input_gradient: &Tensor) -> Result<()> {
        let shape = self.shape;
        let n_out = shape.n_out + if adapter_part && self.scale.is_some() { shape.rank } else { 0 };
        let weight = self.weight.narrow(0, 0, n_out)?.narrow(1, 0, shape.n_in)?;
        gemm(input_gradient, &output_gradient.narrow(1, 0, n_out)?, &weight, 1.0, Write::Set)
    }
}

/// A group's padded weight, `[n_out + rank, n_in + rank]`, in the first elements of a buffer.
fn padded_view(buffer: &Tensor, shape: &GroupShape) -> Result<Tensor> {
    let (rows, cols) = shape.padded_dims();
    buffer.narrow(0, 0, shape.padded_elements())?.reshape((rows, shape.stride()))?.narrow(1, 0, cols)
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
    /// Bytes of a group's weight in a format.
    fn bytes(group: &GroupShape, base: BaseFormat, dtype: DType) -> u64 {
        match base {
            BaseFormat::F32 | BaseFormat::Half => (group.padded_elements() * dtype.size_in_bytes()) as u64,
            BaseFormat::Nf4 => group.members.iter().map(|m| Nf4::bytes(m.outputs.len() * group.n_in) as u64).sum(),
        }
    }

    /// The same values in other memory.
    fn copy(&self) -> Result<Self> {
        Ok(match self {
            Linear::Dense(weight) => Linear::Dense(weight.copy()?),
            Linear::Nf4(members) => {
                let copy = |member: &Nf4| {
                    Ok(Nf4 {
                        codes: member.codes.copy()?,
                        absmax: member.absmax.copy()?,
                        nested_absmax: member.nested_absmax.copy()?,
                        ..member.clone()
                    })
                };
                Linear::Nf4(members.iter().map(copy).collect::<Result<_>>()?)
            }
        })
    }

    fn load(
        source: &ModelSource,
        prefix: &str,
        shape: &GroupShape,
        (base, dtype): (BaseFormat, DType),
        device: &Device,
    ) -> std::result::Result<Self, super::Error> {
        let mut buffer = match base {
            BaseFormat::F32 | BaseFormat::Half => vec![0f32; shape.padded_elements()],
            BaseFormat::Nf4 => Vec::new(),
        };
        let mut quantised = Vec::new();
        for member in &shape.members {
            let name = format!("{prefix}.{}.weight", member.target.module());
            let (_, data) = source.tensor_f32(&name)?;
            check_range(&name, &data, dtype)?;
            match base {
                BaseFormat::F32 | BaseFormat::Half => {
                    for (row, values) in member.outputs.clone().zip(data.chunks_exact(shape.n_in)) {
                        buffer[row * shape.stride()..][..shape.n_in].copy_from_slice(values);
                    }
                }
                BaseFormat::Nf4 => quantised.push(nf4::quantize(&data, member.outputs.len(), shape.n_in, device)?),
            }
        }
        Ok(match base {
            BaseFormat::F32 | BaseFormat::Half => {
                let buffer = Tensor::from_vec(buffer, shape.padded_elements(), &Device::Cpu)?;
                Linear::Dense(padded_view(&on_device(buffer, dtype, device)?, shape)?)
            }
            BaseFormat::Nf4 => Linear::Nf4(quantised),
        })
    }
}

/// Weights of all norms, f32 `[2 layers + 1, hidden]`: two a layer, then the last.
struct Norms(Tensor);

impl Norms {
    fn layer(&self, i: usize, linears: Vec<Linear>) -> Result<Layer> {
        Ok(Layer { input_norm: self.0.get(2 * i)?, post_norm: self.0.get(2 * i + 1)?, linears })
    }

    fn last(&self) -> Result<Tensor> {
        self.0.get(self.0.dim(0)? - 1)
    }
}

/// Sends a layer's quantised weights to system memory where it is to wait there.
fn send(stream: &Option<Stream>, layer: usize, linears: &mut [Linear]) -> Result<()> {
    let Some(stream) = stream else { return Ok(()) };
    let members = linears.iter_mut().filter_map(|linear| match linear {
        Linear::Nf4(members) => Some(members),
        Linear::Dense(_) => None,
    });
    stream.take(layer, members.flatten())
}

fn place_embedding(rows: Tensor, on_host: bool, device: &Device) -> Result<Table> {
    if on_host { Table::on_host(&rows, device) } else { Ok(Table::on_device(rows.to_device(device)?)) }
}

/// A host tensor as the step wants it: converted before it travels.
fn on_device(tensor: Tensor, dtype: DType, device: &Device) -> std::result::Result<Tensor, super::Error> {
    Ok(tensor.to_dtype(dtype)?.to_device(device)?)
}

/// Refuses a weight that would be infinite in the type of the step.
fn check_range(name: &str, values: &[f32], dtype: DType) -> std::result::Result<(), super::Error> {
    let is_beyond = |value: &f32| value.is_finite() && half::f16::from_f32(*value).is_infinite();
    let beyond = if dtype == DType::F16 { values.par_iter().copied().find_first(is_beyond) } else { None };
    beyond.map_or(Ok(()), |value| Err(super::Error::BeyondF16 { tensor: name.into(), value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_that_f16_cannot_hold_is_refused_in_f16_alone_with_its_name_and_value() {
        let values = [0.5, -65_504.0, 65_519.0, f32::NAN];
        assert!(check_range("w", &values, DType::F16).is_ok(), "these round to what f16 has");
        let values = [0.5, -65_520.0, 1e9];
        let error = check_range("model.norm.weight", &values, DType::F16).expect_err("refused").to_string();
        assert_eq!(error, "tensor `model.norm.weight` holds -65520, more than f16 can");
        for dtype in [DType::F32, DType::BF16] {
            assert!(check_range("w", &values, dtype).is_ok());
        }
    }
}
