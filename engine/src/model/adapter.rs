//! The low-rank adapter that is trained: one flat buffer, so that clipping and the optimizer are one pass over it.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::group::{Group, GroupShape};
use super::shape::ModelShape;
use crate::config::{LoraConfig, Target};
use crate::ops::memory::{Held, Site};
use crate::ops::upload::download;

/// `A` and `B` of every adapted layer, f32, in one flat tensor.
///
/// Layer by layer, group by group: the members' `A` stacked to `[rank, n_in]`, then each member's `B`, `[out, r]`. Gradients and
/// optimizer state have the same layout.
#[derive(Clone, Debug)]
pub struct Adapter {
    lora: LoraConfig,
    groups: [GroupShape; 4],
    n_layers: usize,
    flat: Tensor,
    /// Of `flat`, and of whatever else has this layout and was made as an adapter.
    _held: Arc<Held>,
}

impl Adapter {
    /// A fresh adapter that changes nothing: `A` uniform in `±1 / sqrt(n_in)` (Kaiming with a = √5, as PEFT), `B` zero.
    pub fn new(shape: &ModelShape, lora: &LoraConfig, seed: u64, device: &Device) -> Result<Self> {
        let groups = GroupShape::all(shape, lora);
        let per_layer: usize = groups.iter().map(GroupShape::adapter_elements).sum();
        let n = per_layer * shape.n_layers;
        let held = Arc::new(Held::new());
        held.admit((n * size_of::<f32>()) as u64, device, Site::Adapter)?;
        let mut data = Vec::with_capacity(n);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..shape.n_layers {
            for group in &groups {
                let bound = 1.0 / (group.n_in as f32).sqrt();
                data.extend((0..group.rank * group.n_in).map(|_| rng.random_range(-bound..bound)));
                data.resize(data.len() + group.adapter_elements() - group.rank * group.n_in, 0.0);
            }
        }
        let flat = Tensor::from_vec(data, n, device)?;
        Ok(Self { lora: lora.clone(), groups, n_layers: shape.n_layers, flat, _held: held })
    }

    /// Rank, scale and targets.
    pub fn lora(&self) -> &LoraConfig {
        &self.lora
    }

    /// All parameters, f32 `[n]`.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Replaces all parameters: f32 of the length of [`Self::flat`].
    pub fn replace(&mut self, flat: Tensor) -> Result<()> {
        if flat.dims() != self.flat.dims() || flat.dtype() != self.flat.dtype() {
            candle_core::bail!("{:?} parameters for an adapter of {:?}", flat.dims(), self.flat.dims());
        }
        self.flat = flat;
        Ok(())
    }

    /// The same names over another buffer of this layout, such as the gradients.
    pub(crate) fn with_flat(&self, flat: Tensor) -> Self {
        Self { flat, ..self.clone() }
    }

    /// Trained parameters.
    pub fn n_params(&self) -> usize {
        self.flat.elem_count()
    }

    /// Every adapted layer: block and linear layer.
    pub fn names(&self) -> impl Iterator<Item = (usize, Target)> {
        let targets: Vec<Target> =
            self.groups.iter().flat_map(|g| &g.members).filter(|m| !m.ranks.is_empty()).map(|m| m.target).collect();
        (0..self.n_layers).flat_map(move |layer| targets.clone().into_iter().map(move |target| (layer, target)))
    }

    /// Row-major copy of a layer's `A`, `[rank, in]`; `None` where the layer is not adapted.
    pub fn a(&self, layer: usize, target: Target) -> Option<Vec<f32>> {
        let (_, view) = self.member(layer, target)?;
        download(&view.a).ok()
    }

    /// Row-major copy of a layer's `B`, `[out, rank]`; `None` where the layer is not adapted.
    pub fn b(&self, layer: usize, target: Target) -> Option<Vec<f32>> {
        let (_, view) = self.member(layer, target)?;
        download(&view.b).ok()
    }

    /// Replaces a layer's matrices, row-major. Fails where the layer is not adapted or the sizes don't fit.
    pub fn set(&mut self, layer: usize, target: Target, a: &[f32], b: &[f32]) -> Result<()> {
        let Some((_, view)) = self.member(layer, target) else {
            candle_core::bail!("layer {layer} {} has no adapter", target.module());
        };
        for (dst, src) in [(&view.a, a), (&view.b, b)] {
            let src = Tensor::from_slice(src, dst.shape(), dst.device())?;
            crate::ops::lora::place(dst, &src)?;
        }
        Ok(())
    }

    fn member(&self, layer: usize, target: Target) -> Option<(usize, MemberView)> {
        let index = self.groups.iter().position(|g| g.group.targets().contains(&target))?;
        let group = &self.groups[index];
        let i = group.members.iter().position(|m| m.target == target)?;
        let ranks = group.members[i].ranks.clone();
        if ranks.is_empty() || layer >= self.n_layers {
            return None;
        }
        let view = self.view(&self.flat, layer, group.group).ok()?;
        Some((i, MemberView { a: view.a.narrow(0, ranks.start, ranks.len()).ok()?, b: view.b[i].clone()? }))
    }

    /// A group's matrices as views of `flat`, which has this adapter's layout (parameters or gradients).
    pub(crate) fn view(&self, flat: &Tensor, layer: usize, group: Group) -> Result<GroupView> {
        let per_layer: usize = self.groups.iter().map(GroupShape::adapter_elements).sum();
        let mut at = layer * per_layer;
        for shape in &self.groups {
            if shape.group != group {
                at += shape.adapter_elements();
                continue;
            }
            let a = flat.narrow(0, at, shape.rank * shape.n_in)?.reshape((shape.rank, shape.n_in))?;
            at += shape.rank * shape.n_in;
            let mut b = Vec::with_capacity(shape.members.len());
            for member in &shape.members {
                let (rows, r) = (member.outputs.len(), member.ranks.len());
                b.push(if r == 0 { None } else { Some(flat.narrow(0, at, rows * r)?.reshape((rows, r))?) });
                at += rows * r;
            }
            return Ok(GroupView { a, b });
        }
        unreachable!("Group::ALL holds every group")
    }
}

struct MemberView {
    a: Tensor,
    b: Tensor,
}

/// Views of one group's adapter: stacked `A`, `[rank, n_in]`, and each member's `B`, `[out, r]`.
pub(crate) struct GroupView {
    pub(crate) a: Tensor,
    pub(crate) b: Vec<Option<Tensor>>,
}
