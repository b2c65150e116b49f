//! What leaves: the adapter in PEFT's format, the merged model as a Hugging Face folder, and the proof of each.
//!
//! ```text
//! base on disk ─┬─> write_adapter ──> folder ─┬─> read back ──> prove_adapter ─┬─> proof.json
//! adapter ──────┴─> write_merged  ──> folder ─┘─> read back ──> prove_merged  ─┘
//! trained model ──> Witness (tokens, logits) ───────────────────────^
//! ```
//!
//! Exports appear under their name only when everything in them is on the disk, and never overwrite anything.

mod adapter;
mod card;
mod error;
mod folder;
mod merge;
mod merged;
mod proof;
mod read;
mod shard;
mod text;
mod witness;

pub use adapter::{WrittenAdapter, write_adapter};
pub use error::Error;
pub(crate) use merge::merge_one;
pub use merged::{MergeOptions, Written, write_merged};
pub use proof::{
    AnswerCheck, Check, ExportKind, LayerChange, Measured, PROOF, Proof, Verdict, prove_adapter, prove_merged,
};
pub use read::{read_adapter, read_checkpoint};
pub use shard::ExportDtype;
pub use witness::{ProofPrompt, Witness};

#[cfg(test)]
mod tests;
