//! `config.json` of a Hugging Face folder as a [`ModelShape`].
//!
//! Keys that are missing have the value that transformers gives them for the family. Keys that change what the model
//! computes and that Hearth does not implement are refused by name; all others are kept and ignored.

use std::path::Path;

use serde_json::{Map, Value};

use super::Error;
use super::shape::{Llama3Scaling, ModelShape, Rope};

/// No dimension of a real model is near this; products of two stay far from overflow.
const DIMENSION_MAX: usize = 1 << 24;

/// Why the families that people ask for are not there yet.
const UNSUPPORTED: [(&str, &str); 22] = [
    ("qwen2", "its q, k and v projections have a bias"),
    ("qwen2_moe", "it is a mixture of experts"),
    ("qwen3", "it normalises queries and keys per head: q_norm, k_norm"),
    ("qwen3_moe", "it is a mixture of experts"),
    ("gemma", "it scales embeddings and uses GeGLU and another RMSNorm"),
    ("gemma2", "it soft-caps logits and mixes local and global attention"),
    ("gemma3", "it normalises queries and keys and mixes local and global attention"),
    ("gemma3_text", "it normalises queries and keys and mixes local and global attention"),
    ("phi", "its blocks run attention and feed-forward in parallel"),
    ("phi3", "its q, k, v and its gate, up projections are fused"),
    ("mixtral", "it is a mixture of experts"),
    ("mistral3", "it is a model of text and images"),
    ("llama4", "it is a mixture of experts of text and images"),
    ("mllama", "it is a model of text and images"),
    ("llava", "it is a model of text and images"),
    ("gpt2", "it has learned positions and LayerNorm"),
    ("gpt_neox", "it uses LayerNorm and partial rotary positions"),
    ("stablelm", "it uses LayerNorm and partial rotary positions"),
    ("cohere", "it uses LayerNorm and parallel blocks"),
    ("olmo2", "it normalises queries and keys and norms after each layer"),
    ("granite", "it scales embeddings, attention and logits"),
    ("deepseek_v3", "it is a mixture of experts with latent attention"),
];

/// Refusal of a family by its name, with the reason where one is known.
pub(super) fn unsupported_family(path: &Path, family: &str) -> Error {
    let reason = UNSUPPORTED
        .iter()
        .find(|(name, _)| *name == family)
        .map_or("Hearth trains decoders of the Llama family and does not know this one", |(_, reason)| reason);
    Error::UnsupportedFamily { path: path.into(), family: family.into(), reason: reason.into() }
}

/// Reads the shape; `path` is the file the object came from, for messages.
pub(super) fn shape(path: &Path, config: &Map<String, Value>) -> Result<ModelShape, Error> {
    let keys = Keys { path, config };
    let family = keys.text("model_type")?.ok_or_else(|| keys.bad("model_type", "it has to name the family"))?;
    // What transformers' LlamaConfig and MistralConfig say where a key is missing.
    let (default_kv_heads, default_max_positions, default_eps) = match family {
        "llama" => (None, 2048, 1e-6),
        "mistral" => (Some(8), 4096 * 32, 1e-6),
        other => return Err(unsupported_family(path, other)),
    };
    refuse_what_is_not_implemented(&keys)?;

    let hidden = keys.required("hidden_size")?;
    let n_heads = keys.required("num_attention_heads")?;
    let n_kv_heads = keys.count("num_key_value_heads")?.or(default_kv_heads).unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(keys.bad("num_key_value_heads", &format!("it has to divide num_attention_heads = {n_heads}")));
    }
    let head_dim = match keys.count("head_dim")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
        None => {
            return Err(keys.bad("hidden_size", &format!("it is no multiple of num_attention_heads = {n_heads}")));
        }
    };
    if !head_dim.is_multiple_of(2) {
        let text = format!("rotary positions need an even width of heads, this one is {head_dim}");
        return Err(keys.bad("head_dim", &text));
    }
    let max_positions = keys.count("max_position_embeddings")?.unwrap_or(default_max_positions);
    refuse_sliding_window(&keys, family, max_positions)?;
    Ok(ModelShape {
        family: family.into(),
        hidden,
        n_layers: keys.required("num_hidden_layers")?,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn: keys.required("intermediate_size")?,
        vocab_rows: keys.required("vocab_size")?,
        rms_eps: keys.positive("rms_norm_eps")?.unwrap_or(default_eps) as f32,
        rope: rope(&keys)?,
        tied: keys.flag("tie_word_embeddings")?.unwrap_or(false),
        max_positions,
    })
}

fn refuse_what_is_not_implemented(keys: &Keys<'_>) -> Result<(), Error> {
    for (key, reason) in
        [("attention_bias", "projections with a bias"), ("mlp_bias", "feed-forward layers with a bias")]
    {
        if keys.flag(key)? == Some(true) {
            return Err(keys.unsupported(key, reason));
        }
    }
    if let Some(act) = keys.text("hidden_act")?
        && act != "silu"
        && act != "swish"
    {
        return Err(keys.unsupported("hidden_act", "the feed-forward layer is SwiGLU, hidden_act silu"));
    }
    if keys.get("quantization_config").is_some() {
        return Err(keys.unsupported(
            "quantization_config",
            "the weights are already quantised for another program; Hearth quantises full-precision weights itself",
        ));
    }
    if keys.positive("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(keys.unsupported("partial_rotary_factor", "every element of a head is rotated"));
    }
    if keys.count("num_local_experts")?.is_some_and(|n| n > 1) {
        return Err(keys.unsupported("num_local_experts", "mixtures of experts"));
    }
    if let Some(Value::Array(architectures)) = keys.get("architectures")
        && !architectures.is_empty()
        && !architectures.iter().any(|a| a.as_str().is_some_and(|a| a.ends_with("ForCausalLM")))
    {
        return Err(keys.unsupported("architectures", "only language models with an output head, …ForCausalLM"));
    }
    Ok(())
}

/// A window at least as long as the longest sequence hides nothing; a shorter one is not implemented.
fn refuse_sliding_window(keys: &Keys<'_>, family: &str, max_positions: usize) -> Result<(), Error> {
    if family != "mistral" {
        return Ok(());
    }
    let window = match keys.config.get("sliding_window") {
        Some(Value::Null) => return Ok(()),
        Some(_) => keys.required("sliding_window")?,
        // MistralConfig's default where the key is missing.
        None => 4096,
    };
    if window >= max_positions {
        return Ok(());
    }
    Err(Error::UnsupportedFeature {
        path: keys.path.into(),
        key: "sliding_window".into(),
        value: match keys.config.get("sliding_window") {
            Some(_) => window.to_string(),
            None => format!("{window}, the family's default where the key is missing"),
        },
        reason: format!("tokens see at most that many before them, of {max_positions}; null means all"),
    })
}

fn rope(keys: &Keys<'_>) -> Result<Rope, Error> {
    // Newer configurations hold everything in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`.
    let (key, object) = ["rope_parameters", "rope_scaling"]
        .into_iter()
        .find_map(|key| keys.get(key).map(|value| (key, value)))
        .map_or(Ok(("rope_scaling", None)), |(key, value)| match value.as_object() {
            Some(object) => Ok((key, Some(object))),
            None => Err(keys.bad(key, "it has to be an object or null")),
        })?;
    let inner = object.map(|config| Keys { path: keys.path, config });
    let theta = match &inner {
        Some(inner) => inner.positive("rope_theta")?,
        None => None,
    };
    let theta = theta.or(keys.positive("rope_theta")?).unwrap_or(10_000.0) as f32;
    let Some(inner) = inner else { return Ok(Rope { theta, scaling: None }) };
    let kind = match inner.text("rope_type")? {
        Some(kind) => kind,
        None => inner.text("type")?.unwrap_or("default"),
    };
    let scaling = match kind {
        "default" => None,
        "llama3" => {
            let number = |name: &str| {
                inner.positive(name)?.ok_or_else(|| inner.bad(name, &format!("`{key}` of type llama3 needs it")))
            };
            let scaling = Llama3Scaling {
                factor: number("factor")? as f32,
                low_freq_factor: number("low_freq_factor")? as f32,
                high_freq_factor: number("high_freq_factor")? as f32,
                original_max_positions: inner.required("original_max_position_embeddings")?,
            };
            if scaling.high_freq_factor <= scaling.low_freq_factor {
                return Err(inner.bad("high_freq_factor", "it has to be greater than low_freq_factor"));
            }
            Some(scaling)
        }
        other => {
            return Err(Error::UnsupportedFeature {
                path: keys.path.into(),
                key: format!("{key}.rope_type"),
                value: other.into(),
                reason: "rotary positions are unscaled or scaled as in Llama 3.1: default, llama3".into(),
            });
        }
    };
    Ok(Rope { theta, scaling })
}

/// Typed look at an object of the file. `null` counts as missing, as it does in transformers.
struct Keys<'a> {
    path: &'a Path,
    config: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.config.get(key).filter(|v| !v.is_null())
    }

    fn bad(&self, key: &str, expected: &str) -> Error {
        let got = self.config.get(key).map_or_else(|| "missing".to_string(), shown);
        Error::ConfigKey { path: self.path.into(), key: key.into(), got, expected: expected.into() }
    }

    fn unsupported(&self, key: &str, reason: &str) -> Error {
        let value = self.config.get(key).map_or_else(String::new, shown);
        Error::UnsupportedFeature { path: self.path.into(), key: key.into(), value, reason: reason.into() }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        self.get(key).map(|v| v.as_str().ok_or_else(|| self.bad(key, "it has to be text"))).transpose()
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        self.get(key).map(|v| v.as_bool().ok_or_else(|| self.bad(key, "it has to be true or false"))).transpose()
    }

    fn count(&self, key: &str) -> Result<Option<usize>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if n > 0 && n <= DIMENSION_MAX as u64 => Ok(Some(n as usize)),
            _ => Err(self.bad(key, &format!("it has to be a whole number from 1 to {DIMENSION_MAX}"))),
        }
    }

    fn required(&self, key: &str) -> Result<usize, Error> {
        self.count(key)?.ok_or_else(|| self.bad(key, "the model's shape cannot be known without it"))
    }

    fn positive(&self, key: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x > 0.0 && x < 1e12 => Ok(Some(x)),
            _ => Err(self.bad(key, "it has to be a positive number")),
        }
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(changes: &[(&str, Value)]) -> Map<String, Value> {
        let Value::Object(mut config) = json!({
            "model_type": "llama", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 300, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 512, "tie_word_embeddings": true, "rope_theta": 500000,
        }) else {
            unreachable!()
        };
        for (key, value) in changes {
            config.insert(key.to_string(), value.clone());
        }
        config
    }

    fn read(changes: &[(&str, Value)]) -> Result<ModelShape, Error> {
        shape(Path::new("config.json"), &config(changes))
    }

    #[test]
    fn head_dim_is_taken_where_given_and_computed_where_not() {
        assert_eq!(read(&[]).unwrap().head_dim, 8);
        assert_eq!(read(&[("head_dim", Value::Null)]).unwrap().head_dim, 8);
        let given = read(&[("head_dim", json!(16))]).unwrap();
        assert_eq!((given.head_dim, given.q_dim(), given.kv_dim()), (16, 96, 32));
    }

    #[test]
    fn missing_keys_have_the_familys_defaults() {
        let mut bare = config(&[]);
        for key in
            ["num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "rope_theta"]
        {
            bare.remove(key);
        }
        let llama = shape(Path::new("config.json"), &bare).unwrap();
        assert_eq!((llama.n_kv_heads, llama.max_positions, llama.tied), (6, 2048, false));
        assert_eq!((llama.rms_eps, llama.rope.theta), (1e-6, 10_000.0));
    }

    #[test]
    fn rope_is_read_in_both_generations_of_keys() {
        let scaling = json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let old = read(&[("rope_scaling", scaling.clone())]).unwrap().rope;
        assert_eq!(old.theta, 500_000.0);
        let got = old.scaling.clone().unwrap();
        assert_eq!(
            (got.factor, got.low_freq_factor, got.high_freq_factor, got.original_max_positions),
            (32.0, 1.0, 4.0, 8192)
        );
        let mut parameters = scaling;
        parameters["rope_theta"] = json!(500000.0);
        let new = read(&[("rope_theta", Value::Null), ("rope_parameters", parameters)]).unwrap().rope;
        assert_eq!(new, old);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_key_and_value() {
        for (key, value, said) in [
            ("model_type", json!("qwen3"), "q_norm"),
            ("model_type", json!("qwen2"), "bias"),
            ("model_type", json!("brand_new"), "brand_new"),
            ("attention_bias", json!(true), "attention_bias = true"),
            ("mlp_bias", json!(true), "mlp_bias = true"),
            ("hidden_act", json!("gelu"), "gelu"),
            ("rope_scaling", json!({"type": "linear", "factor": 2.0}), "linear"),
            ("quantization_config", json!({"quant_method": "gptq"}), "gptq"),
            ("architectures", json!(["LlamaForSequenceClassification"]), "LlamaForSequenceClassification"),
        ] {
            let message = read(&[(key, value)]).unwrap_err().to_string();
            assert!(message.contains(said), "{key}: {message}");
        }
    }

    #[test]
    fn values_that_make_no_model_are_refused() {
        for (key, value) in [
            ("hidden_size", json!(0)),
            ("hidden_size", json!(-48)),
            ("hidden_size", json!("48")),
            ("hidden_size", json!(1u64 << 60)),
            ("hidden_size", json!(49)),
            ("num_key_value_heads", json!(4)),
            ("head_dim", json!(7)),
            ("rms_norm_eps", json!(-1.0)),
            ("rope_theta", json!("10000")),
            ("vocab_size", Value::Null),
        ] {
            let error = read(&[(key, value.clone())]).unwrap_err();
            assert!(matches!(&error, Error::ConfigKey { .. }), "{key} = {value}: {error}");
        }
    }

    #[test]
    fn mistral_loads_without_a_window_only() {
        let mistral = ("model_type", json!("mistral"));
        assert!(read(&[mistral.clone(), ("sliding_window", Value::Null)]).is_ok());
        assert!(read(&[mistral.clone(), ("sliding_window", json!(512))]).is_ok());
        let message = read(&[mistral.clone(), ("sliding_window", json!(128))]).unwrap_err().to_string();
        assert!(message.contains("sliding_window = 128"), "{message}");
        let long = ("max_position_embeddings", json!(32768));
        assert!(read(&[mistral, long]).unwrap_err().to_string().contains("4096"));
    }
}
