//! One micro-batch as the step takes it: documents laid end to end, no padding.

/// A micro-batch of `n` tokens.
///
/// ```text
/// input_ids   a0 a1 a2 | b0 b1 b2 b3 |
/// positions    0  1  2 |  0  1  2  3 |
/// cu_seqlens   0         3             7
/// ```
///
/// Attention never crosses a boundary in `cu_seqlens`. `rows[i]` is a position whose logits are supervised and
/// `labels[i]` the id of the *next* token there, so no document's last position is ever in `rows`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids, `n`.
    pub input_ids: Vec<u32>,
    /// Position inside the document, `n`.
    pub positions: Vec<u32>,
    /// Document boundaries, number of documents + 1, first 0, last `n`.
    pub cu_seqlens: Vec<u32>,
    /// Supervised positions, ascending.
    pub rows: Vec<u32>,
    /// Next-token ids at `rows`.
    pub labels: Vec<u32>,
}

impl Batch {
    /// Lays documents end to end. `learned[i]` says that token `i` of the document is learned (predicted from `i - 1`);
    /// the first token of a document has no predecessor and is never learned.
    pub fn from_documents<'a>(documents: impl IntoIterator<Item = (&'a [u32], &'a [bool])>) -> Self {
        let mut batch = Batch { cu_seqlens: vec![0], ..Default::default() };
        for (ids, learned) in documents {
            let start = batch.input_ids.len() as u32;
            for (i, (&id, &is_learned)) in ids.iter().zip(learned).enumerate() {
                if is_learned && i > 0 {
                    batch.rows.push(start + i as u32 - 1);
                    batch.labels.push(id);
                }
                batch.input_ids.push(id);
                batch.positions.push(i as u32);
            }
            batch.cu_seqlens.push(batch.input_ids.len() as u32);
        }
        batch
    }

    /// Tokens.
    pub fn n_tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Tokens whose prediction is learned.
    pub fn n_supervised(&self) -> usize {
        self.rows.len()
    }
}
