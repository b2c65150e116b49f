//! The linear layers of a block, grouped by the input they share.

use std::ops::Range;

use super::shape::ModelShape;
use crate::config::{LoraConfig, Target};

/// Columns of a buffer that an adapter widens: rows of 16-bit numbers start at multiples of 16 bytes whatever the rank, as a card's
/// attention asks, and as its products and its dequantisation are quickest.
pub(crate) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(8)
}

/// Linear layers that read one input, computed as one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Group {
    Qkv,
    O,
    GateUp,
    Down,
}

impl Group {
    /// In the order in which a block uses them.
    pub const ALL: [Group; 4] = [Group::Qkv, Group::O, Group::GateUp, Group::Down];

    /// Members, in the order of their output columns.
    pub fn targets(self) -> &'static [Target] {
        match self {
            Group::Qkv => &[Target::Q, Target::K, Target::V],
            Group::O => &[Target::O],
            Group::GateUp => &[Target::Gate, Target::Up],
            Group::Down => &[Target::Down],
        }
    }
}

/// One linear layer inside its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub target: Target,
    /// Its output columns in the group's.
    pub outputs: Range<usize>,
    /// Its columns in the group's adapter; empty where it is not adapted.
    pub ranks: Range<usize>,
}

/// Sizes of a group: `W` is `[n_out, n_in]`, padded by `rank` rows and columns for the adapter (see [`crate::ops::lora`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GroupShape {
    pub group: Group,
    pub n_in: usize,
    pub n_out: usize,
    /// Sum of the members' ranks.
    pub rank: usize,
    pub members: Vec<Member>,
}

impl GroupShape {
    /// Sizes of `group` in a decoder with an adapter.
    pub fn new(group: Group, shape: &ModelShape, lora: &LoraConfig) -> Self {
        let (mut n_out, mut rank, mut n_in) = (0, 0, 0);
        let members = group
            .targets()
            .iter()
            .map(|&target| {
                let (out, input) = shape.linear(target);
                let r = if lora.targets.contains(&target) { lora.rank } else { 0 };
                let member = Member { target, outputs: n_out..n_out + out, ranks: rank..rank + r };
                n_in = input;
                n_out += out;
                rank += r;
                member
            })
            .collect();
        Self { group, n_in, n_out, rank, members }
    }

    /// The four groups of a block.
    pub fn all(shape: &ModelShape, lora: &LoraConfig) -> [GroupShape; 4] {
        Group::ALL.map(|group| Self::new(group, shape, lora))
    }

    /// Rows and columns of the padded weight.
    pub fn padded_dims(&self) -> (usize, usize) {
        (self.n_out + self.rank, self.n_in + self.rank)
    }

    /// Elements from row to row of the padded weight.
    pub fn stride(&self) -> usize {
        padded(self.n_in + self.rank)
    }

    /// Elements of the padded weight, with those between its rows.
    pub fn padded_elements(&self) -> usize {
        (self.n_out + self.rank) * self.stride()
    }

    /// Elements of the group's adapter: `A` is `[rank, n_in]`, then each member's `B` is `[outputs, rank]`.
    pub fn adapter_elements(&self) -> usize {
        self.rank * self.n_in + self.members.iter().map(|m| m.outputs.len() * m.ranks.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_weight_start_at_multiples_of_16_bytes_whatever_the_rank() {
        for rank in [0, 1, 4, 12, 48] {
            let shape = GroupShape { group: Group::O, n_in: 4096, n_out: 64, rank, members: Vec::new() };
            let (rows, cols) = shape.padded_dims();
            assert!((2 * shape.stride()).is_multiple_of(16) && (cols..cols + 8).contains(&shape.stride()), "{rank}");
            assert_eq!(shape.padded_elements(), rows * shape.stride());
        }
    }
}
