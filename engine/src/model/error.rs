//! What can be wrong with a model, said so that a person can act on it.

use std::path::PathBuf;

use crate::error::{Explain, FREE_MEMORY};
use crate::ops::memory::{self, OutOfMemory};

/// Everything that makes Hearth refuse a model. Each variant names the file, tensor or key and the values.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields hold
pub enum Error {
    #[error("{path} does not exist", path = path.display())]
    NotFound { path: PathBuf },
    #[error("cannot read {path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "{path} changed while it was in use: it had {expected_bytes} bytes and has {got_bytes} now",
        path = path.display()
    )]
    Changed { path: PathBuf, expected_bytes: u64, got_bytes: u64 },
    #[error("{path} is not a model: {reason}", path = path.display())]
    NotAModel { path: PathBuf, reason: String, next_step: String },
    #[error(
        "{path} holds its weights only as pickle files ({files}), which can run programs when they are opened",
        path = path.display()
    )]
    PickleOnly { path: PathBuf, files: String },
    #[error(
        "{path} is a Git LFS pointer, not the file itself: it holds {pointer_bytes} bytes of text, the real file has \
         {real}",
        path = path.display(),
        real = real_bytes.map_or_else(|| "an unknown size".to_string(), |n| format!("{n} bytes"))
    )]
    LfsPointer { path: PathBuf, pointer_bytes: u64, real_bytes: Option<u64> },
    #[error("{path} has {got_bytes} bytes; a file of this kind has at most {limit_bytes}", path = path.display())]
    TooLarge { path: PathBuf, got_bytes: u64, limit_bytes: u64 },
    #[error("{path} cannot be read as JSON: {reason}", path = path.display())]
    Json { path: PathBuf, reason: String },

    #[error("{path}: {key} is {got}; {expected}", path = path.display())]
    ConfigKey { path: PathBuf, key: String, got: String, expected: String },
    #[error("{path}: models of the family `{family}` are not supported yet ({reason})", path = path.display())]
    UnsupportedFamily { path: PathBuf, family: String, reason: String },
    #[error("{path}: {key} = {value} is not supported ({reason})", path = path.display())]
    UnsupportedFeature { path: PathBuf, key: String, value: String, reason: String },

    #[error("{path} is cut short: {what} needs {needed_bytes} bytes, the file has {got_bytes}", path = path.display())]
    Truncated { path: PathBuf, what: String, needed_bytes: u64, got_bytes: u64 },
    #[error("the header of {path} is damaged: {reason}", path = path.display())]
    HeaderDamaged { path: PathBuf, reason: String },
    #[error("tensor `{tensor}` in {path} is damaged: {reason}", path = path.display())]
    TensorDamaged { path: PathBuf, tensor: String, reason: String },
    #[error(
        "tensor `{tensor}` in {path} is stored as {dtype}, which cannot be trained on ({reason})",
        path = path.display()
    )]
    UnsupportedDtype { path: PathBuf, tensor: String, dtype: String, reason: String },

    #[error("tensor `{tensor}` holds {value}, more than f16 can")]
    BeyondF16 { tensor: String, value: f32 },

    #[error("{path} is damaged: {reason}", path = path.display())]
    IndexDamaged { path: PathBuf, reason: String },
    #[error(
        "{path} names `{shard}` for tensor `{tensor}`, which is not a plain file name inside the folder",
        path = path.display()
    )]
    IndexOutside { path: PathBuf, shard: String, tensor: String },
    #[error(
        "{shard} is missing in {path}; {n_tensors} tensors are in it (the first is `{first}`)",
        path = path.display()
    )]
    ShardMissing { path: PathBuf, shard: String, n_tensors: usize, first: String },
    #[error("{shard} in {path} is missing, one of {n_shards} shards by their names", path = path.display())]
    ShardOfSetMissing { path: PathBuf, shard: String, n_shards: usize },
    #[error("{shard} in {path} lacks the tensor `{tensor}`, which the index says is in it", path = path.display())]
    ShardLacksTensor { path: PathBuf, shard: String, tensor: String },
    #[error("{path} lacks the tensor `{tensor}`{why}", path = path.display())]
    MissingTensor { path: PathBuf, tensor: String, why: String },
    #[error("tensor `{tensor}` in {path} has the shape {got:?}, but {config} says {expected:?}", path = path.display())]
    ShapeMismatch { path: PathBuf, tensor: String, expected: Vec<usize>, got: Vec<usize>, config: String },

    #[error("{path} has no tokenizer.json{found}", path = path.display())]
    TokenizerMissing { path: PathBuf, found: String },
    #[error("the tokenizer in {path} cannot be used: {reason}", path = path.display())]
    TokenizerDamaged { path: PathBuf, reason: String },
    #[error("the tokenizer in {path} is not supported: {key} = {value} ({reason})", path = path.display())]
    UnsupportedTokenizer { path: PathBuf, key: String, value: String, reason: String },
    #[error(
        "{n_tokens} tokens of the tokenizer have no row in the embedding of {path}, which has {rows} rows: {named}",
        path = path.display()
    )]
    TokensPastEmbedding { path: PathBuf, rows: usize, n_tokens: usize, named: String },

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
            Error::NotFound { .. } => "model.not_found",
            Error::Io { .. } => "model.io",
            Error::Changed { .. } => "model.changed",
            Error::NotAModel { .. } => "model.not_a_model",
            Error::PickleOnly { .. } => "model.pickle_only",
            Error::LfsPointer { .. } => "model.lfs_pointer",
            Error::TooLarge { .. } => "model.too_large",
            Error::Json { .. } => "model.json",
            Error::ConfigKey { .. } => "model.config_key",
            Error::UnsupportedFamily { .. } => "model.unsupported_family",
            Error::UnsupportedFeature { .. } => "model.unsupported_feature",
            Error::Truncated { .. } => "model.truncated",
            Error::HeaderDamaged { .. } => "model.header_damaged",
            Error::TensorDamaged { .. } => "model.tensor_damaged",
            Error::UnsupportedDtype { .. } => "model.unsupported_dtype",
            Error::BeyondF16 { .. } => "model.beyond_f16",
            Error::IndexDamaged { .. } => "model.index_damaged",
            Error::IndexOutside { .. } => "model.index_outside",
            Error::ShardMissing { .. } => "model.shard_missing",
            Error::ShardOfSetMissing { .. } => "model.shard_missing",
            Error::ShardLacksTensor { .. } => "model.shard_lacks_tensor",
            Error::MissingTensor { .. } => "model.missing_tensor",
            Error::ShapeMismatch { .. } => "model.shape_mismatch",
            Error::TokenizerMissing { .. } => "model.tokenizer_missing",
            Error::TokenizerDamaged { .. } => "model.tokenizer_damaged",
            Error::UnsupportedTokenizer { .. } => "model.unsupported_tokenizer",
            Error::TokensPastEmbedding { .. } => "model.tokens_past_embedding",
            Error::OutOfMemory(_) => "model.out_of_memory",
            Error::Tensor { .. } => "model.tensor",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::NotFound { .. } => "Check the path, or choose the model's folder or .gguf file again.".into(),
            Error::Io { .. } => {
                "Check that the file may be read and that its disk is connected, then try again.".into()
            }
            Error::Changed { .. } => "Let whatever writes the file finish, then choose the model again.".into(),
            Error::NotAModel { next_step, .. } => next_step.clone(),
            Error::PickleOnly { .. } => {
                "Choose a copy of the model that has .safetensors files, or convert it where you trust its source \
                 (transformers: model.save_pretrained(folder, safe_serialization=True))."
                    .into()
            }
            Error::LfsPointer { path, .. } => format!(
                "Download the weights: run `git lfs pull` in the folder, or fetch {} again from where the model came \
                 from.",
                file_name(path)
            ),
            Error::TooLarge { .. } => "Choose a complete, original copy of the model.".into(),
            Error::Json { path, .. } | Error::IndexDamaged { path, .. } => {
                format!("Replace {} with the original of the model.", file_name(path))
            }
            Error::ConfigKey { key, .. } => {
                format!("Correct {key}, or replace the file with the original of the model.")
            }
            Error::UnsupportedFamily { .. } => {
                "Choose a model of the Llama or Mistral family (for example SmolLM2, TinyLlama, Llama 3, Mistral 7B \
                 v0.3)."
                    .into()
            }
            Error::UnsupportedFeature { .. } => "Choose another model, or a variant of this one without it.".into(),
            Error::Truncated { path, .. } | Error::HeaderDamaged { path, .. } | Error::TensorDamaged { path, .. } => {
                format!("Download {} again and compare its size with the original.", file_name(path))
            }
            Error::UnsupportedDtype { .. } => {
                "Choose a copy of the model in f32, f16 or bf16 (safetensors), or a GGUF in Q8_0, Q6_K, Q5_K, Q4_K, \
                 Q4_0, Q4_1, F16 or F32."
                    .into()
            }
            Error::BeyondF16 { .. } => {
                "Set compute to f32, or to bf16 on a card from the RTX 30 series on; f16 ends at 65,504.".into()
            }
            Error::IndexOutside { .. } => {
                "Do not use this copy: get the model from its original source. Shards lie in the model's own folder."
                    .into()
            }
            Error::ShardMissing { shard, .. } | Error::ShardOfSetMissing { shard, .. } => {
                format!("Download {shard} into the folder.")
            }
            Error::ShardLacksTensor { shard, .. } => {
                format!("Download {shard} and the index again; they come from different versions of the model.")
            }
            Error::MissingTensor { .. } => {
                "Choose a complete copy of the model; Hearth never fills missing weights with random ones.".into()
            }
            Error::ShapeMismatch { .. } => {
                "Weights and configuration come from different models: download both from the same place.".into()
            }
            Error::TokenizerMissing { .. } => "Put the model's tokenizer.json beside its config.json (transformers: \
                 AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes one)."
                .into(),
            Error::TokenizerDamaged { .. } => "Get the tokenizer's files again from where the model came from.".into(),
            Error::UnsupportedTokenizer { .. } => {
                "Choose the Hugging Face folder of the same model, which has a tokenizer.json.".into()
            }
            Error::TokensPastEmbedding { .. } => {
                "Use the tokenizer that belongs to these weights, or have the embedding resized \
                 (transformers: model.resize_token_embeddings(len(tokenizer)))."
                    .into()
            }
            Error::OutOfMemory(_) => FREE_MEMORY.into(),
            Error::Tensor { .. } => "This is a fault in Hearth; please report it with the message.".into(),
        }
    }
}

fn file_name(path: &std::path::Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}
