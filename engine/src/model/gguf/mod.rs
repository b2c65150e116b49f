//! GGUF files (version 2 and 3, little-endian) of Llama-family models: header, tensors, and what stands for
//! `config.json` and `tokenizer.json` in them.
//!
//! The header is parsed here and not with candle's reader because a file is input from anywhere: candle's keeps the
//! last of two tensors of one name, trusts `general.alignment` and multiplies dimensions unchecked, and its messages do
//! not name the tensor. Blocks are dequantised by candle.

mod block;
pub(super) mod config;
mod header;
pub(super) mod names;
pub(super) mod vocabulary;

pub(super) use block::BlockType;
pub(super) use header::{GgufFile, Metadata, Value};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod written;
