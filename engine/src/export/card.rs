//! `README.md` of an export: what it is, what it needs, how it is used.

use std::path::Path;

use super::shard::ExportDtype;
use crate::config::{BaseFormat, LoraConfig};

/// The base model as other programs find it, and as people know it.
pub(super) fn base_name(path: &Path) -> String {
    let name = path.file_stem().filter(|_| path.is_file()).or_else(|| path.file_name());
    name.map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned())
}

/// Card of an adapter.
pub(super) fn adapter(base: &Path, lora: &LoraConfig) -> String {
    let targets: Vec<&str> = lora.targets.iter().filter_map(|t| t.module().split('.').nth(1)).collect();
    let name = base_name(base);
    let path = json(&base.display().to_string());
    let gguf = if base.is_file() {
        "\nThe base is a GGUF file, which PEFT cannot attach an adapter to: give it the Hugging Face folder of the \
         same model, or use Hearth's merged export.\n"
    } else {
        ""
    };
    format!(
        "---\nbase_model: {path}\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n- lora\n- hearth\n---\n\n\
         # A LoRA adapter for {name}\n\n\
         Trained with Hearth: rank {rank}, alpha {alpha}, dropout {dropout}, on {targets}. The scale is alpha / rank = \
         {scale}.\n\n\
         It changes the base model that it was trained on and is of no use with another. `proof.json` says how the \
         adapter in this folder, read back, compares with the model as trained.\n{gguf}\n\
         ```python\n\
         from peft import PeftModel\n\
         from transformers import AutoModelForCausalLM, AutoTokenizer\n\n\
         base = AutoModelForCausalLM.from_pretrained({path})\n\
         model = PeftModel.from_pretrained(base, \"this folder\")\n\
         tokenizer = AutoTokenizer.from_pretrained(\"this folder\")\n\
         ```\n\n\
         The licence of the base model applies to what is derived from it.\n",
        rank = lora.rank,
        alpha = lora.alpha,
        dropout = lora.dropout,
        targets = targets.join(", "),
        scale = lora.scale(),
    )
}

/// Card of a merged model.
pub(super) fn merged(base: &Path, lora: &LoraConfig, dtype: ExportDtype, base_format: BaseFormat) -> String {
    let name = base_name(base);
    let weights = match base_format {
        BaseFormat::F32 | BaseFormat::Half => "the base's weights",
        BaseFormat::Nf4 => "the base's weights as they were in training (NF4, dequantised)",
    };
    format!(
        "---\nbase_model: {path}\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- hearth\n---\n\n\
         # {name}, fine-tuned\n\n\
         A complete model: {weights} with a LoRA of rank {rank} and alpha {alpha} added, W + (alpha / rank) B A, \
         computed in f32 and stored as {dtype}. `proof.json` says how the model in this folder, read back, compares \
         with the model as trained.\n\n\
         ```python\n\
         from transformers import AutoModelForCausalLM, AutoTokenizer\n\n\
         model = AutoModelForCausalLM.from_pretrained(\"this folder\")\n\
         tokenizer = AutoTokenizer.from_pretrained(\"this folder\")\n\
         ```\n\n\
         The licence of the base model applies to what is derived from it.\n",
        path = json(&base.display().to_string()),
        rank = lora.rank,
        alpha = lora.alpha,
        dtype = dtype.name(),
    )
}

/// Text in quotes, as YAML and Python both read it.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
