//! A complete Hugging Face folder: base and adapter in one, streamed a tensor at a time.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::folder::Folder;
use super::shard::{self, ExportDtype, Shard, Tensor};
use super::{Error, card, merge, text};
use crate::config::BaseFormat;
use crate::model::{Adapter, ModelSource, TokenizerBundle, WeightDtype};

/// How a merged model is written.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeOptions {
    /// Absent: the base's own 16-bit format, else f16 where every weight fits, else bf16.
    pub dtype: Option<ExportDtype>,
    /// Largest file of weights; a single larger tensor still gets a file of its own.
    pub max_shard_bytes: u64,
    /// What the adapter was trained on. With NF4 the merged model is built on the dequantised weights, so that it
    /// behaves as trained.
    pub base: BaseFormat,
    /// Tokens at which generation has to stop; those that the base's generation settings lack are added.
    pub stop_ids: Vec<u32>,
}

impl Default for MergeOptions {
    fn default() -> Self {
        Self { dtype: None, max_shard_bytes: 5_000_000_000, base: BaseFormat::F32, stop_ids: Vec::new() }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The folder.
    pub path: PathBuf,
    /// Bytes in it.
    pub bytes: u64,
    /// Format of the weights.
    pub dtype: ExportDtype,
    /// What a person should know though nothing is wrong, one sentence each.
    pub notes: Vec<String>,
}

/// Writes base and adapter as one Hugging Face folder. `out` must be new or empty, and appears when everything in it
/// is on the disk. `progress(done, total)` counts tensors; a total may be gone through twice where f16 turns out too
/// small. Memory: one tensor in f32, twice for a moment.
pub fn write_merged(
    source: &ModelSource,
    adapter: &Adapter,
    bundle: &TokenizerBundle,
    options: &MergeOptions,
    out: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Written, Error> {
    if let Some(dtype) = options.dtype {
        return write(source, adapter, bundle, options, dtype, out, progress);
    }
    let own = match source.dtype() {
        WeightDtype::Bf16 => return write(source, adapter, bundle, options, ExportDtype::Bf16, out, progress),
        own => own,
    };
    match write(source, adapter, bundle, options, ExportDtype::F16, out, progress) {
        Err(Error::DoesNotFit { tensor, value, .. }) => {
            let mut written = write(source, adapter, bundle, options, ExportDtype::Bf16, out, progress)?;
            written
                .notes
                .push(format!("Written as bf16 (the base is {own}): {tensor} holds {value}, more than f16 can."));
            Ok(written)
        }
        result => result,
    }
}

fn write(
    source: &ModelSource,
    adapter: &Adapter,
    bundle: &TokenizerBundle,
    options: &MergeOptions,
    dtype: ExportDtype,
    out: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Written, Error> {
    let (tensors, mut notes) = tensors(source)?;
    let total = tensors.len();
    let shards = shard::cut(tensors, dtype, options.max_shard_bytes);
    let mut files = text::tokenizer_files(source, bundle);
    let (generation_config, note) = text::generation_config(source, bundle, &options.stop_ids);
    notes.extend(note);
    files.extend(generation_config.map(|content| ("generation_config.json".to_string(), content)));
    files.extend(text::licences(source));
    files.push(("config.json".into(), text::pretty(&config(source, dtype))));
    let card = card::merged(source.path(), adapter.lora(), dtype, options.base);
    files.push(("README.md".into(), card.into_bytes()));
    if shards.len() > 1 {
        files.push(("model.safetensors.index.json".into(), text::pretty(&shard::index(&shards, dtype))));
    }
    let n_params: usize = shards.iter().flatten().map(Tensor::n_elements).sum();
    // A header has some 150 bytes for each tensor.
    let needed_bytes = n_params as u64 * dtype.size() + text::bytes(&files) + 256 * total as u64;

    let mut folder = Folder::create(out, needed_bytes)?;
    let n_shards = shards.len();
    let mut done = 0;
    progress(done, total);
    for (i, tensors) in shards.into_iter().enumerate() {
        let names: Vec<String> = tensors.iter().map(|t| t.name.clone()).collect();
        let mut file = Shard::create(&folder.path(&shard::file_name(i, n_shards)), dtype, tensors)?;
        for name in &names {
            file.write(&merge::tensor(source, adapter, options.base, name, false)?.values)?;
            done += 1;
            progress(done, total);
        }
        folder.add_bytes(file.finish()?);
    }
    text::write_all(&mut folder, &files)?;
    let (path, bytes) = folder.finish()?;
    Ok(Written { path, bytes, dtype, notes })
}

/// Names and shapes of what is written, in the base's order, and sentences about what is not.
pub(super) fn tensors(source: &ModelSource) -> Result<(Vec<Tensor>, Vec<String>), Error> {
    let shape = source.shape();
    let (mut tensors, mut notes) = (Vec::new(), Vec::new());
    for name in source.tensor_names() {
        let dims = match (name.as_str(), merge::linear(&name)) {
            ("lm_head.weight", _) if shape.tied => {
                notes.push(
                    "lm_head.weight of the base is left out: the embedding is the output head \
                     (tie_word_embeddings=true)."
                        .into(),
                );
                continue;
            }
            ("model.embed_tokens.weight" | "lm_head.weight", _) => vec![shape.vocab_rows, shape.hidden],
            (_, Some((layer, target))) if layer < shape.n_layers => {
                let (rows, cols) = shape.linear(target);
                vec![rows, cols]
            }
            ("model.norm.weight", _) => vec![shape.hidden],
            // Norms, and what the model does not compute with: its shape is known to the file alone.
            _ => match source.tensor_f32(&name) {
                Ok((dims, _)) => dims,
                Err(crate::model::Error::UnsupportedDtype { dtype, .. }) => {
                    notes.push(format!("{name} ({dtype}) is left out: the model does not compute with it."));
                    continue;
                }
                Err(error) => return Err(error.into()),
            },
        };
        tensors.push(Tensor { name, shape: dims });
    }
    Ok((tensors, notes))
}

/// The base's config.json with the number format of the export. Old and new versions of transformers name the key
/// differently: whichever is there is kept, and `torch_dtype`, which both read, added where neither is.
fn config(source: &ModelSource, dtype: ExportDtype) -> Value {
    let mut config = source.hf_config();
    let mut found = false;
    for key in ["dtype", "torch_dtype"] {
        if let Some(value) = config.get_mut(key) {
            *value = json!(dtype.torch_name());
            found = true;
        }
    }
    if let (false, Some(keys)) = (found, config.as_object_mut()) {
        keys.insert("torch_dtype".into(), json!(dtype.torch_name()));
    }
    config
}
