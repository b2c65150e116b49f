//! What can go wrong while answering.

use crate::error::{Explain, FREE_MEMORY};
use crate::ops::memory::{self, OutOfMemory};

/// A prompt that cannot be answered, or a model that answers with nonsense.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields hold
pub enum Error {
    #[error("prompt {} is empty", prompt + 1)]
    EmptyPrompt { prompt: usize },
    #[error("prompt {} has {n_tokens} tokens; the model has {max_positions} positions", prompt + 1)]
    PromptTooLong { prompt: usize, n_tokens: usize, max_positions: usize },
    #[error("prompt {} holds token {id}; the model's embedding has {vocab_rows} rows", prompt + 1)]
    TokenPastEmbedding { prompt: usize, id: u32, vocab_rows: usize },
    #[error("{field} is {value}; {expected}")]
    Option { field: &'static str, value: f64, expected: &'static str },
    #[error("the model's output for prompt {} is not a number after {n_generated} generated tokens", prompt + 1)]
    NotFinite { prompt: usize, n_generated: usize },
    #[error("the model was loaded for another adapter: rank {adapter_rank} against padding for {model_ranks:?}")]
    AdapterMismatch { adapter_rank: usize, model_ranks: [usize; 4] },
    #[error("{}", crate::error::out_of_memory(.0))]
    OutOfMemory(OutOfMemory),
    #[error("a tensor operation failed: {source}")]
    Tensor { source: candle_core::Error },
}

impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        match memory::shortage(&source) {
            Some(shortage) => Error::OutOfMemory(shortage),
            None => Error::Tensor { source },
        }
    }
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::EmptyPrompt { .. } => "generate.empty_prompt",
            Error::PromptTooLong { .. } => "generate.prompt_too_long",
            Error::TokenPastEmbedding { .. } => "generate.token_past_embedding",
            Error::Option { .. } => "generate.option",
            Error::NotFinite { .. } => "generate.not_finite",
            Error::AdapterMismatch { .. } => "generate.adapter_mismatch",
            Error::OutOfMemory(_) => "generate.out_of_memory",
            Error::Tensor { .. } => "generate.tensor",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::EmptyPrompt { .. } => "Write something for the model to answer.".into(),
            Error::PromptTooLong { .. } => "Shorten the prompt, or begin a new conversation.".into(),
            Error::TokenPastEmbedding { .. } => "Use the tokenizer that belongs to this model.".into(),
            Error::Option { field, .. } => format!("Choose another {field}."),
            Error::NotFinite { .. } => {
                "The weights are damaged or the training diverged: use an earlier checkpoint, or check the base model."
                    .into()
            }
            Error::OutOfMemory(_) => FREE_MEMORY.into(),
            Error::AdapterMismatch { .. } | Error::Tensor { .. } => {
                "This is a fault in Hearth; please report it with the message.".into()
            }
        }
    }
}
