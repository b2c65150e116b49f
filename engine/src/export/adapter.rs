//! The adapter alone, in PEFT's format, which peft, transformers and vLLM load unchanged.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::folder::Folder;
use super::shard::{ExportDtype, Shard, Tensor};
use super::{Error, card, text};
use crate::config::{LoraConfig, Target};
use crate::model::{Adapter, ModelSource, TokenizerBundle};

/// What was written.
#[derive(Clone, Debug, PartialEq)]
pub struct WrittenAdapter {
    /// The folder.
    pub path: PathBuf,
    /// Bytes in it.
    pub bytes: u64,
    /// What a person should know though nothing is wrong, one sentence each.
    pub notes: Vec<String>,
}

/// Weights of a PEFT folder.
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
/// Settings of a PEFT folder.
pub(super) const CONFIG: &str = "adapter_config.json";

/// Writes the adapter with its tokenizer as a PEFT folder: `adapter_config.json`, `adapter_model.safetensors` (f32,
/// exactly the trained values), the tokenizer's files and a model card. `out` must be new or empty, and appears when
/// everything in it is on the disk.
pub fn write_adapter(
    source: &ModelSource,
    adapter: &Adapter,
    bundle: &TokenizerBundle,
    out: &Path,
) -> Result<WrittenAdapter, Error> {
    let mut files = text::tokenizer_files(source, bundle);
    files.push((CONFIG.into(), text::pretty(&config(source, adapter.lora()))));
    files.push(("README.md".into(), card::adapter(source.path(), adapter.lora()).into_bytes()));
    let mut tensors = Vec::new();
    for (layer, target) in adapter.names() {
        let (rows, cols) = source.shape().linear(target);
        let rank = adapter.lora().rank;
        let [a, b] = names(layer, target);
        tensors.push(Tensor { name: a, shape: vec![rank, cols] });
        tensors.push(Tensor { name: b, shape: vec![rows, rank] });
    }
    let needed_bytes = adapter.n_params() as u64 * 4 + text::bytes(&files) + 256 * tensors.len() as u64;
    let mut folder = Folder::create(out, needed_bytes)?;
    let mut file = Shard::create(&folder.path(WEIGHTS), ExportDtype::F32, tensors)?;
    for (layer, target) in adapter.names() {
        for values in [adapter.a(layer, target), adapter.b(layer, target)] {
            file.write(&values.unwrap_or_default())?;
        }
    }
    folder.add_bytes(file.finish()?);
    text::write_all(&mut folder, &files)?;
    let (path, bytes) = folder.finish()?;
    let mut notes = Vec::new();
    if source.path().is_file() {
        notes.push(
            "The base is a GGUF file: PEFT needs the Hugging Face folder of the same model as base for this adapter; \
             the merged export is complete by itself."
                .into(),
        );
    }
    Ok(WrittenAdapter { path, bytes, notes })
}

/// PEFT's names of a layer's `A` and `B`.
pub(super) fn names(layer: usize, target: Target) -> [String; 2] {
    let module = target.module();
    ["A", "B"].map(|half| format!("base_model.model.model.layers.{layer}.{module}.lora_{half}.weight"))
}

/// `adapter_config.json`. Only keys that every PEFT since 0.9 knows: older versions stop at keys they don't.
fn config(source: &ModelSource, lora: &LoraConfig) -> Value {
    // PEFT declares a whole number and only divides by the rank; a whole number is written as one.
    let whole = lora.alpha.fract() == 0.0 && lora.alpha.abs() < 1e9;
    let alpha = if whole { json!(lora.alpha as i64) } else { number(lora.alpha) };
    let targets: Vec<&str> = lora.targets.iter().filter_map(|t| t.module().split('.').nth(1)).collect();
    let base = std::path::absolute(source.path()).unwrap_or_else(|_| source.path().into());
    json!({
        "alpha_pattern": {},
        "auto_mapping": null,
        "base_model_name_or_path": base.display().to_string(),
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layer_replication": null,
        "layers_pattern": null,
        "layers_to_transform": null,
        "loftq_config": {},
        "lora_alpha": alpha,
        "lora_dropout": number(lora.dropout),
        "megatron_config": null,
        "megatron_core": "megatron.core",
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": lora.rank,
        "rank_pattern": {},
        "revision": null,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    })
}

/// The shortest decimal that reads back as the same f32.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
