//! Base layers that wait in system memory and come to the device when they are needed.
//!
//! Codes and absmax of a streamed layer lie end to end in one place of system memory, and on the device in one of two slots
//! that the streamed layers use by turns; the scales of the absmax, a ten-thousandth of the weights, stay on the device. While a layer is
//! computed with, the next one comes. At either end of the stack the pass turns round and finds the last two still there.

use std::sync::Mutex;

use candle_core::{DType, Device, Result, Tensor};

use super::group::GroupShape;
use crate::ops::nf4::{BLOCK, NESTED_BLOCK, Nf4};
use crate::ops::parking::Parking;
use crate::ops::upload::copy;

/// Every matrix starts at a multiple of this, as kernels read it.
const ALIGNMENT_BYTES: usize = 256;

/// Bytes of one streamed layer in system memory, and of one slot.
pub(crate) fn place_bytes(groups: &[GroupShape]) -> usize {
    elements(groups).map(matrix_bytes).sum()
}

/// Bytes that `n_streamed` layers take of the device all the time.
pub(crate) fn device_bytes(groups: &[GroupShape], n_streamed: usize) -> usize {
    if n_streamed == 0 {
        return 0;
    }
    N_SLOTS * place_bytes(groups) + n_streamed * elements(groups).map(Nf4::scale_bytes).sum::<usize>()
}

/// Layers that are streamed take turns in as many places.
pub(crate) const N_SLOTS: usize = 2;

/// Scales of a layer's absmax codes.
fn n_scales(groups: &[GroupShape]) -> usize {
    elements(groups).map(|n| n.div_ceil(BLOCK).div_ceil(NESTED_BLOCK)).sum()
}

/// Elements of each matrix of a layer.
fn elements(groups: &[GroupShape]) -> impl Iterator<Item = usize> {
    groups.iter().flat_map(|group| group.members.iter().map(move |member| member.outputs.len() * group.n_in))
}

fn matrix_bytes(n: usize) -> usize {
    (n / 2).next_multiple_of(ALIGNMENT_BYTES) + n.div_ceil(BLOCK).next_multiple_of(ALIGNMENT_BYTES)
}

/// The first layers of a model, on their way.
pub(crate) struct Stream {
    parking: Parking,
    n_layers: usize,
    slots: [Tensor; N_SLOTS],
    /// Scales of the absmax codes of all these layers, f32, which stay on the device.
    scales: Tensor,
    /// The layer that is in each slot, or on its way there.
    held: Mutex<[Option<usize>; N_SLOTS]>,
}

impl Stream {
    /// Room for the first `n_layers` layers; `None` where that is none.
    pub(crate) fn new(n_layers: usize, groups: &[GroupShape], device: &Device) -> Result<Option<Self>> {
        if n_layers == 0 {
            return Ok(None);
        }
        let bytes = place_bytes(groups);
        let slot = || Tensor::zeros(bytes, DType::U8, device);
        Ok(Some(Self {
            parking: Parking::new(n_layers, bytes, DType::U8, device)?,
            n_layers,
            slots: [slot()?, slot()?],
            scales: Tensor::zeros((n_layers, n_scales(groups)), DType::F32, device)?,
            held: Mutex::new([None; N_SLOTS]),
        }))
    }

    /// Sends a layer's matrices to system memory, and makes of them views of the slot to which it will come.
    pub(crate) fn take<'a>(&self, layer: usize, matrices: impl Iterator<Item = &'a mut Nf4>) -> Result<()> {
        if layer >= self.n_layers {
            return Ok(());
        }
        let slot = &self.slots[layer % N_SLOTS];
        let scales = self.scales.get(layer)?;
        let (mut start, mut first_scale) = (0, 0);
        for matrix in matrices {
            let n = matrix.nested_absmax.elem_count();
            let view = scales.narrow(0, first_scale, n)?;
            copy(&view, &matrix.nested_absmax)?;
            matrix.nested_absmax = view;
            first_scale += n;
            for part in [&mut matrix.codes, &mut matrix.absmax] {
                let view = slot.narrow(0, start, part.elem_count())?;
                copy(&view, &part.flatten_all()?)?;
                start += part.elem_count().next_multiple_of(ALIGNMENT_BYTES);
                *part = view;
            }
        }
        self.parking.put(layer, slot)?;
        self.parking.wait(layer)
    }

    /// Layer `layer` is in its slot for what follows, and `next` is on its way. `next` is a neighbour of `layer`: it takes the other
    /// slot, with which everything asked before is done.
    pub(crate) fn bring(&self, layer: usize, next: Option<usize>) -> Result<()> {
        let mut held = self.held.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut fetch = |layer: usize| -> Result<()> {
            let slot = layer % N_SLOTS;
            if held[slot] == Some(layer) {
                return Ok(());
            }
            // Of a copy that fails nobody knows how far it came.
            held[slot] = None;
            self.parking.fetch(layer, &self.slots[slot])?;
            held[slot] = Some(layer);
            Ok(())
        };
        if layer < self.n_layers {
            fetch(layer)?;
            self.parking.wait(layer)?;
        }
        match next {
            Some(next) if next < self.n_layers => fetch(next),
            _ => Ok(()),
        }
    }
}
