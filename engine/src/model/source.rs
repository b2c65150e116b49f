//! A base model on disk: [`ModelSource`] opens a Hugging Face folder or a GGUF file and checks everything that can be
//! checked without reading weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::folder::FolderWeights;
use super::gguf::{self, GgufFile, Metadata};
use super::shape::ModelShape;
use super::span::{self, Plain, Span};
use super::tokenizer::TokenizerBundle;
use super::{Error, config_json, safetensors, text_file};
use crate::config::Target;
use crate::format;

/// Names that a message lists before it says how many more there are.
const LISTED: usize = 8;

/// A base model on disk. Holds headers and no open file; weights are read one tensor at a time.
#[derive(Clone, Debug)]
pub struct ModelSource {
    path: PathBuf,
    shape: ModelShape,
    config: Value,
    notes: Vec<String>,
    weights: Weights,
    dtype: WeightDtype,
}

/// How most elements of a checkpoint's weights are stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum WeightDtype {
    F32,
    F16,
    Bf16,
    /// ggml's name of the format, for example `Q4_1`.
    Quantized(String),
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightDtype::F32 => f.write_str("f32"),
            WeightDtype::F16 => f.write_str("f16"),
            WeightDtype::Bf16 => f.write_str("bf16"),
            WeightDtype::Quantized(name) => f.write_str(name),
        }
    }
}

#[derive(Clone, Debug)]
enum Weights {
    Folder(FolderWeights),
    Gguf {
        file: GgufFile,
        /// Hugging Face name to index in `file.tensors`.
        places: BTreeMap<String, usize>,
    },
}

/// A tensor as it lies on disk.
struct Stored<'a> {
    path: &'a Path,
    file_bytes: u64,
    span: Span,
    shape: &'a [usize],
    dtype: Option<WeightDtype>,
    /// For messages.
    format: String,
}

impl ModelSource {
    /// Opens a folder with `config.json` and safetensors, or a `.gguf` file. Reads headers only; everything that would
    /// stop a run later for reasons that can be seen in them is an error here.
    pub fn open(path: &Path) -> Result<ModelSource, Error> {
        if !path.exists() {
            return Err(Error::NotFound { path: path.into() });
        }
        let mut source = if path.is_dir() { open_folder(path)? } else { open_file(path)? };
        source.check_tensors()?;
        source.dtype = source.main_dtype();
        source.note_unused();
        Ok(source)
    }

    /// The folder or file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the configuration describes; all tensors have the sizes it says.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// What a person should know though nothing is wrong, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The model's tokenizer, read anew at each call.
    pub fn tokenizer(&self) -> Result<TokenizerBundle, Error> {
        TokenizerBundle::open(&self.path)
    }

    /// A tensor by its Hugging Face name (`model.layers.0.self_attn.q_proj.weight`): shape, outermost dimension first,
    /// and row-major values widened or dequantised to f32. Rows of q and k are in Hugging Face order, whatever the
    /// file's. Nothing of the file stays in memory.
    pub fn tensor_f32(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), Error> {
        match &self.weights {
            Weights::Folder(folder) => {
                let (header, entry) = folder.entry(name).ok_or_else(|| self.missing(name, String::new()))?;
                Ok((entry.shape.clone(), header.read_f32(entry)?))
            }
            Weights::Gguf { file, places } => {
                let &place = places.get(name).ok_or_else(|| self.missing(name, String::new()))?;
                let tensor = &file.tensors[place];
                let values = file.read_f32(tensor)?;
                if !gguf::names::is_permuted(name) {
                    return Ok((tensor.shape.clone(), values));
                }
                let n_heads = tensor.shape[0] / self.shape.head_dim;
                Ok((tensor.shape.clone(), gguf::names::unpermute(&values, n_heads, tensor.shape[1])))
            }
        }
    }

    /// Hugging Face names of all tensors in the order of the files, also of those that training doesn't use. Tensors of
    /// a GGUF that no Hugging Face checkpoint has (`rope_freqs.weight`) are part of the configuration and not listed.
    pub fn tensor_names(&self) -> Vec<String> {
        match &self.weights {
            Weights::Folder(folder) => folder.names().map(str::to_string).collect(),
            Weights::Gguf { places, .. } => {
                let mut ordered: Vec<_> = places.iter().map(|(name, &place)| (place, name)).collect();
                ordered.sort_unstable();
                ordered.into_iter().map(|(_, name)| name.clone()).collect()
            }
        }
    }

    /// How most elements of the weights are stored.
    pub fn dtype(&self) -> WeightDtype {
        self.dtype.clone()
    }

    /// `config.json` as it is in the folder, all keys kept; made from the metadata for a GGUF.
    pub fn hf_config(&self) -> Value {
        self.config.clone()
    }

    /// Refuses a tokenizer with tokens past the last row of the embedding, naming them. Spare rows are fine.
    pub fn check_vocabulary(&self, bundle: &TokenizerBundle) -> Result<(), Error> {
        let rows = self.shape.vocab_rows;
        let mut past: Vec<(u32, String)> = bundle
            .tokenizer
            .get_vocab(true)
            .into_iter()
            .filter(|&(_, id)| id as usize >= rows)
            .map(|(text, id)| (id, text))
            .collect();
        if past.is_empty() {
            return Ok(());
        }
        past.sort_unstable();
        let listed: Vec<String> = past.iter().take(LISTED).map(|(id, text)| format!("{text} {id}")).collect();
        let more = past.len().saturating_sub(LISTED);
        let named = listed.join(", ") + &(if more > 0 { format!(" and {more} more") } else { String::new() });
        Err(Error::TokensPastEmbedding { path: self.path.clone(), rows, n_tokens: past.len(), named })
    }

    /// SHA-256, in hexadecimal, over every tensor's name, format, shape and bytes in the order of names: the same for
    /// one file and for any sharding of it. Reads all weights once.
    pub fn fingerprint(&self) -> Result<String, Error> {
        let mut hash = Sha256::new();
        let names: BTreeSet<String> = self.tensor_names().into_iter().collect();
        for name in &names {
            let Some(stored) = self.stored(name) else { continue };
            // Lengths in front, so that no two lists of tensors give the same bytes.
            let label = format!("{name}\0{}\0{:?}\0", stored.format, stored.shape);
            hash.update((label.len() as u64).to_le_bytes());
            hash.update(label.as_bytes());
            hash.update(stored.span.n_bytes.to_le_bytes());
            span::read_pieces(stored.path, stored.file_bytes, stored.span, 1, |bytes| {
                hash.update(bytes);
                Ok(())
            })?;
        }
        Ok(format::hex(&hash.finalize()))
    }

    fn stored(&self, name: &str) -> Option<Stored<'_>> {
        match &self.weights {
            Weights::Folder(folder) => {
                let (header, entry) = folder.entry(name)?;
                let dtype = entry.plain().map(|plain| match plain {
                    Plain::F32 => WeightDtype::F32,
                    Plain::F16 => WeightDtype::F16,
                    Plain::Bf16 => WeightDtype::Bf16,
                });
                Some(Stored {
                    path: header.path(),
                    file_bytes: header.file_bytes(),
                    span: entry.span,
                    shape: &entry.shape,
                    dtype,
                    format: format!("{:?}", entry.dtype),
                })
            }
            Weights::Gguf { file, places } => {
                let tensor = &file.tensors[*places.get(name)?];
                let format = tensor.block.name();
                Some(Stored {
                    path: &file.path,
                    file_bytes: file.file_bytes,
                    span: tensor.span,
                    shape: &tensor.shape,
                    dtype: Some(match format {
                        "F32" => WeightDtype::F32,
                        "F16" => WeightDtype::F16,
                        "BF16" => WeightDtype::Bf16,
                        quantized => WeightDtype::Quantized(quantized.into()),
                    }),
                    format: format.into(),
                })
            }
        }
    }

    fn missing(&self, tensor: &str, why: String) -> Error {
        let path = match &self.weights {
            Weights::Folder(folder) => folder.blame.clone(),
            Weights::Gguf { file, .. } => file.path.clone(),
        };
        Error::MissingTensor { path, tensor: tensor.into(), why }
    }

    /// Every tensor of the shape is there, has its size, and is stored in a format that can be read.
    fn check_tensors(&self) -> Result<(), Error> {
        for (name, expected) in required(&self.shape) {
            let Some(stored) = self.stored(&name) else {
                let why = match name == "lm_head.weight" {
                    true => ", and tie_word_embeddings=false says that the embedding does not stand in for it".into(),
                    false => String::new(),
                };
                return Err(self.missing(&name, why));
            };
            if stored.shape != expected {
                let config = match self.weights {
                    Weights::Folder(_) => "config.json",
                    Weights::Gguf { .. } => "its metadata",
                };
                return Err(Error::ShapeMismatch {
                    path: stored.path.into(),
                    tensor: name,
                    expected,
                    got: stored.shape.to_vec(),
                    config: config.into(),
                });
            }
            if stored.dtype.is_none() {
                return Err(Error::UnsupportedDtype {
                    path: stored.path.into(),
                    tensor: name,
                    dtype: stored.format,
                    reason: "weights are f32, f16 or bf16".into(),
                });
            }
        }
        Ok(())
    }

    fn main_dtype(&self) -> WeightDtype {
        let mut elements: BTreeMap<WeightDtype, usize> = BTreeMap::new();
        for (name, shape) in required(&self.shape) {
            if let Some(dtype) = self.stored(&name).and_then(|stored| stored.dtype) {
                *elements.entry(dtype).or_default() += shape.iter().product::<usize>();
            }
        }
        elements.into_iter().max_by_key(|&(_, n)| n).map_or(WeightDtype::F32, |(dtype, _)| dtype)
    }

    fn note_unused(&mut self) {
        let used: BTreeSet<String> = required(&self.shape).map(|(name, _)| name).collect();
        let names = self.tensor_names();
        // Old checkpoints carry the frequencies of rotary positions, which follow from the configuration.
        let unused: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| !used.contains(*name) && !name.ends_with(".rotary_emb.inv_freq"))
            .collect();
        if self.shape.tied && unused.contains(&"lm_head.weight") {
            self.notes.push(
                "lm_head.weight is in the weights but not used: tie_word_embeddings=true makes the embedding the \
                 output head."
                    .into(),
            );
        }
        let others: Vec<&str> = unused.into_iter().filter(|&name| name != "lm_head.weight").collect();
        if !others.is_empty() {
            let more = others.len().saturating_sub(LISTED);
            let listed = others[..others.len().min(LISTED)].join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            self.notes.push(format!("Tensors that the model does not use: {listed}{more}."));
        }
    }
}

/// Names and shapes of all tensors a model computes with.
fn required(shape: &ModelShape) -> impl Iterator<Item = (String, Vec<usize>)> + '_ {
    let outer = [
        ("model.embed_tokens.weight", vec![shape.vocab_rows, shape.hidden]),
        ("model.norm.weight", vec![shape.hidden]),
        ("lm_head.weight", vec![shape.vocab_rows, shape.hidden]),
    ];
    let n_outer = if shape.tied { 2 } else { 3 };
    let outer = outer.into_iter().take(n_outer).map(|(name, dims)| (name.to_string(), dims));
    let blocks = (0..shape.n_layers).flat_map(move |layer| {
        let norms = ["input_layernorm", "post_attention_layernorm"]
            .map(|name| (format!("model.layers.{layer}.{name}.weight"), vec![shape.hidden]));
        let linears = Target::ALL.map(|target| {
            let (rows, columns) = shape.linear(target);
            (format!("model.layers.{layer}.{}.weight", target.module()), vec![rows, columns])
        });
        norms.into_iter().chain(linears)
    });
    outer.chain(blocks)
}

fn open_folder(folder: &Path) -> Result<ModelSource, Error> {
    let path = folder.join("config.json");
    let Some(config) = text_file::json_object(&path, text_file::CONFIG_MAX_BYTES)? else {
        return Err(no_config(folder));
    };
    let shape = config_json::shape(&path, &config)?;
    let weights = FolderWeights::open(folder)?;
    let mut notes = weights.notes.clone();
    notes.extend(generation_note(folder)?);
    Ok(ModelSource {
        path: folder.into(),
        shape,
        config: Value::Object(config),
        notes,
        weights: Weights::Folder(weights),
        dtype: WeightDtype::F32,
    })
}

fn open_file(path: &Path) -> Result<ModelSource, Error> {
    if path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("safetensors")) {
        // A damaged file is told as such before its folder is asked for.
        safetensors::Header::read(path)?;
        return Err(Error::NotAModel {
            path: path.into(),
            reason: "safetensors hold weights without the configuration that says how they are used".into(),
            next_step: "Choose the folder that the file lies in.".into(),
        });
    }
    if path
        .extension()
        .is_some_and(|ext| ["bin", "pt", "pth", "ckpt", "pkl"].iter().any(|e| ext.eq_ignore_ascii_case(e)))
    {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(Error::PickleOnly { path: path.into(), files: file });
    }
    let (file, metadata) = GgufFile::open(path)?;
    let shape = gguf::config::shape(&file, &metadata)?;
    let config = gguf::config::config_json(&shape, &metadata)?;
    let mut notes = Vec::new();
    let mut places = BTreeMap::new();
    let mut unknown = Vec::new();
    for (i, tensor) in file.tensors.iter().enumerate() {
        match gguf::names::hugging_face(&tensor.name) {
            Some(name) => {
                places.insert(name, i);
            }
            None if tensor.name == "rope_freqs.weight" || tensor.name.ends_with("attn_rot_embd.weight") => {}
            None => unknown.push(tensor.name.as_str()),
        }
    }
    if !unknown.is_empty() {
        let listed = unknown[..unknown.len().min(LISTED)].join(", ");
        notes.push(format!("{} tensors are not part of a Llama model and are left out: {listed}.", unknown.len()));
    }
    notes.extend(quantisation_note(&metadata, &file));
    Ok(ModelSource {
        path: path.into(),
        shape,
        config,
        notes,
        weights: Weights::Gguf { file, places },
        dtype: WeightDtype::F32,
    })
}

fn quantisation_note(metadata: &Metadata, file: &GgufFile) -> Option<String> {
    let mut formats: Vec<&str> = file.tensors.iter().filter(|t| t.shape.len() > 1).map(|t| t.block.name()).collect();
    formats.sort_unstable();
    formats.dedup();
    if formats.iter().all(|f| ["F32", "F16", "BF16"].contains(f)) {
        return None;
    }
    let name = metadata.text("general.name").ok().flatten().map_or_else(String::new, |name| format!(" of {name}"));
    Some(format!(
        "The weights{name} are quantised ({}): they are trained and merged as they are in this file, not as in the \
         original.",
        formats.join(", ")
    ))
}

/// Settings that transformers refuses to save; they are copied byte for byte and never stop an export here.
fn generation_note(folder: &Path) -> Result<Option<String>, Error> {
    let path = folder.join("generation_config.json");
    let Some(config) = text_file::json_object(&path, text_file::CONFIG_MAX_BYTES)? else { return Ok(None) };
    let samples = config.get("do_sample").and_then(Value::as_bool).unwrap_or(false);
    let set: Vec<String> = [("temperature", 1.0), ("top_p", 1.0), ("top_k", 50.0)]
        .into_iter()
        .filter_map(|(key, default)| {
            config.get(key).filter(|v| !v.is_null() && v.as_f64() != Some(default)).map(|v| format!("{key} {v}"))
        })
        .collect();
    if samples || set.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!(
        "generation_config.json sets {} although do_sample is not true; exports keep the file unchanged.",
        set.join(", ")
    )))
}

fn no_config(folder: &Path) -> Error {
    let not_a_model = |reason: String, next_step: String| Error::NotAModel { path: folder.into(), reason, next_step };
    if folder.join("adapter_config.json").exists() {
        return not_a_model(
            "it holds an adapter (adapter_config.json) and no base model".into(),
            "Choose the base model that the adapter was trained on.".into(),
        );
    }
    let ggufs: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.to_ascii_lowercase().ends_with(".gguf"))
        .collect();
    match ggufs.first() {
        Some(first) => not_a_model(
            format!("it has no config.json, but {} GGUF file(s), for example {first}", ggufs.len()),
            format!("Choose the .gguf file itself, for example {first}."),
        ),
        None => not_a_model(
            "it has no config.json".into(),
            "Choose the folder that holds the model's config.json and .safetensors files, or a .gguf file.".into(),
        ),
    }
}
