//! Metadata of a Llama GGUF as a [`ModelShape`] and as the `config.json` it stands for.

use std::f32::consts::PI;

use serde_json::json;

use super::{GgufFile, Metadata};
use crate::model::shape::{Llama3Scaling, ModelShape, Rope};
use crate::model::{Error, config_json};

const DIMENSION_MAX: usize = 1 << 24;

/// What the metadata and the tensors' sizes say. GGUF has no key for tied embeddings: they are tied where there is no
/// `output.weight`.
pub(in crate::model) fn shape(file: &GgufFile, metadata: &Metadata) -> Result<ModelShape, Error> {
    let key = "general.architecture";
    let family = metadata.text(key)?.ok_or_else(|| metadata.bad(key, "it has to name the family"))?;
    if family != "llama" {
        return Err(config_json::unsupported_family(metadata.path(), family));
    }
    refuse_what_is_not_implemented(file, metadata)?;
    let hidden = required(metadata, "llama.embedding_length")?;
    let n_heads = required(metadata, "llama.attention.head_count")?;
    let n_kv_heads = optional(metadata, "llama.attention.head_count_kv")?.unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n_kv_heads) {
        let text = format!("it has to divide llama.attention.head_count = {n_heads}");
        return Err(metadata.bad("llama.attention.head_count_kv", &text));
    }
    let head_dim = match optional(metadata, "llama.attention.key_length")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(n_heads) => hidden / n_heads,
        None => {
            let text = format!("it is no multiple of llama.attention.head_count = {n_heads}");
            return Err(metadata.bad("llama.embedding_length", &text));
        }
    };
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        if optional(metadata, key)?.is_some_and(|n| n != head_dim) {
            return Err(metadata.unsupported(key, &format!("heads are {head_dim} wide and rotated whole")));
        }
    }
    if !head_dim.is_multiple_of(2) {
        return Err(metadata.bad("llama.attention.key_length", "rotary positions need an even width of heads"));
    }
    let embedding = file.tensors.iter().find(|t| t.name == "token_embd.weight");
    let vocab_rows = embedding.and_then(|t| t.shape.first().copied()).ok_or_else(|| Error::MissingTensor {
        path: file.path.clone(),
        tensor: "token_embd.weight".into(),
        why: String::new(),
    })?;
    if vocab_rows == 0 || vocab_rows > DIMENSION_MAX {
        return Err(Error::TensorDamaged {
            path: file.path.clone(),
            tensor: "token_embd.weight".into(),
            reason: format!("it has {vocab_rows} rows"),
        });
    }
    let theta = positive(metadata, "llama.rope.freq_base")?.unwrap_or(10_000.0);
    let eps_key = "llama.attention.layer_norm_rms_epsilon";
    let rms_eps = positive(metadata, eps_key)?.ok_or_else(|| metadata.bad(eps_key, "RMSNorm needs it"))?;
    Ok(ModelShape {
        family: "llama".into(),
        hidden,
        n_layers: required(metadata, "llama.block_count")?,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn: required(metadata, "llama.feed_forward_length")?,
        vocab_rows,
        rms_eps,
        rope: Rope { theta, scaling: scaling(file, theta, head_dim)? },
        tied: !file.tensors.iter().any(|t| t.name == "output.weight"),
        max_positions: required(metadata, "llama.context_length")?,
    })
}

/// The `config.json` of the same model. Ids of special tokens are those of the metadata.
pub(in crate::model) fn config_json(shape: &ModelShape, metadata: &Metadata) -> Result<serde_json::Value, Error> {
    let scaling = shape.rope.scaling.as_ref().map(|s| {
        json!({
            "rope_type": "llama3",
            "factor": exact(s.factor),
            "low_freq_factor": exact(s.low_freq_factor),
            "high_freq_factor": exact(s.high_freq_factor),
            "original_max_position_embeddings": s.original_max_positions,
        })
    });
    let id = |name: &str| metadata.count(&format!("tokenizer.ggml.{name}_token_id"));
    Ok(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": id("bos")?,
        "eos_token_id": id("eos")?,
        "pad_token_id": id("padding")?,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": false,
        "num_attention_heads": shape.n_heads,
        "num_hidden_layers": shape.n_layers,
        "num_key_value_heads": shape.n_kv_heads,
        "rms_norm_eps": exact(shape.rms_eps),
        "rope_scaling": scaling,
        "rope_theta": exact(shape.rope.theta),
        "tie_word_embeddings": shape.tied,
        "use_cache": true,
        "vocab_size": shape.vocab_rows,
    }))
}

/// The shortest decimal that reads back as the same f32: 1e-5, not 9.999999747378752e-06.
fn exact(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn refuse_what_is_not_implemented(file: &GgufFile, metadata: &Metadata) -> Result<(), Error> {
    if metadata.count("llama.expert_count")?.is_some_and(|n| n > 0) {
        return Err(metadata.unsupported("llama.expert_count", "mixtures of experts"));
    }
    let key = "llama.rope.scaling.type";
    if metadata.text(key)?.is_some_and(|kind| kind != "none") {
        let factor = metadata.float("llama.rope.scaling.factor")?;
        if metadata.text(key)? != Some("linear") || factor.is_some_and(|f| f != 1.0 && f != 0.0) {
            return Err(metadata.unsupported(key, "rotary positions are unscaled or scaled as in Llama 3.1"));
        }
    }
    if metadata.get("llama.attention.sliding_window").is_some() {
        let key = "llama.attention.sliding_window";
        let window = metadata.count(key)?.unwrap_or(0);
        let longest = metadata.count("llama.context_length")?.unwrap_or(0);
        if window > 0 && window < longest {
            return Err(metadata.unsupported(key, "every token sees all tokens before it"));
        }
    }
    if let Some(tensor) = file.tensors.iter().find(|t| t.name.ends_with(".bias")) {
        return Err(Error::UnsupportedFeature {
            path: file.path.clone(),
            key: "tensor".into(),
            value: tensor.name.clone(),
            reason: "projections with a bias".into(),
        });
    }
    Ok(())
}

/// Llama 3.1's rescaling. The file holds only its result, one divisor per frequency in `rope_freqs.weight`; the
/// released models differ in `factor` alone, which is the divisor of the lowest frequency. The others are recomputed
/// and compared, so that another scheme is refused and not misread.
fn scaling(file: &GgufFile, theta: f32, head_dim: usize) -> Result<Option<Llama3Scaling>, Error> {
    let Some(tensor) = file.tensors.iter().find(|t| t.name == "rope_freqs.weight") else { return Ok(None) };
    if tensor.shape != [head_dim / 2] {
        return Err(Error::ShapeMismatch {
            path: file.path.clone(),
            tensor: tensor.name.clone(),
            expected: vec![head_dim / 2],
            got: tensor.shape.clone(),
            config: "the width of heads".into(),
        });
    }
    let divisors = file.read_f32(tensor)?;
    if divisors.iter().all(|&d| d == 1.0) {
        return Ok(None);
    }
    let scaling = Llama3Scaling {
        factor: divisors.last().copied().unwrap_or(1.0),
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    let same = divisors.iter().enumerate().all(|(i, &got)| {
        let wanted = divisor(&scaling, theta, head_dim, i);
        (got - wanted).abs() <= 1e-3 * wanted.abs()
    });
    if !same {
        return Err(Error::UnsupportedFeature {
            path: file.path.clone(),
            key: "tensor".into(),
            value: "rope_freqs.weight".into(),
            reason: "it holds another rescaling of frequencies than that of Llama 3.1".into(),
        });
    }
    Ok(Some(scaling))
}

/// What frequency `i` of `head_dim / 2` is divided by (transformers, `_compute_llama3_parameters`).
fn divisor(scaling: &Llama3Scaling, theta: f32, head_dim: usize, i: usize) -> f32 {
    let wavelength = 2.0 * PI * theta.powf(2.0 * i as f32 / head_dim as f32);
    let original = scaling.original_max_positions as f32;
    if wavelength < original / scaling.high_freq_factor {
        1.0
    } else if wavelength > original / scaling.low_freq_factor {
        scaling.factor
    } else {
        let smooth =
            (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
        1.0 / ((1.0 - smooth) / scaling.factor + smooth)
    }
}

fn optional(metadata: &Metadata, key: &str) -> Result<Option<usize>, Error> {
    match metadata.count(key)? {
        Some(n) if n == 0 || n > DIMENSION_MAX => {
            Err(metadata.bad(key, &format!("it has to be a whole number from 1 to {DIMENSION_MAX}")))
        }
        other => Ok(other),
    }
}

fn required(metadata: &Metadata, key: &str) -> Result<usize, Error> {
    optional(metadata, key)?.ok_or_else(|| metadata.bad(key, "the model's shape cannot be known without it"))
}

fn positive(metadata: &Metadata, key: &str) -> Result<Option<f32>, Error> {
    match metadata.float(key)? {
        Some(v) if v <= 0.0 || v > 1e12 => Err(metadata.bad(key, "it has to be a positive number")),
        other => Ok(other.map(|v| v as f32)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::written::Written;
    use super::*;

    fn scaling_of(divisors: &[f32], theta: f32) -> Result<Option<Llama3Scaling>, Error> {
        let mut written = Written::default();
        written.tensor_f32("rope_freqs.weight", &[divisors.len() as u64], divisors);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, written.bytes()).unwrap();
        let (file, _) = GgufFile::open(&path)?;
        scaling(&file, theta, 2 * divisors.len())
    }

    #[test]
    fn llama3_scaling_is_recovered_from_its_divisors() {
        // transformers 4.57.1, `ROPE_INIT_FUNCTIONS["llama3"]` for Llama 3.2 1B: unscaled over scaled frequencies.
        let mut divisors = vec![1.0; 15];
        divisors.extend([1.651_329, 3.292_263, 9.666_73]);
        divisors.extend([32.0; 14]);
        let scaling = scaling_of(&divisors, 500_000.0).unwrap().unwrap();
        assert_eq!((scaling.factor, scaling.original_max_positions), (32.0, 8192));
        assert_eq!((scaling.low_freq_factor, scaling.high_freq_factor), (1.0, 4.0));
        // The same divisors belong to no Llama 3 scaling of another base.
        let error = scaling_of(&divisors, 10_000.0).unwrap_err();
        assert!(matches!(error, Error::UnsupportedFeature { .. }), "{error}");
        assert_eq!(scaling_of(&[1.0; 32], 500_000.0).unwrap(), None);
    }

    #[test]
    fn decimals_in_config_json_read_back_as_the_same_f32() {
        for value in [1e-5f32, 1e-6, 500_000.0, 0.1] {
            assert_eq!(exact(value) as f32, value);
        }
        assert_eq!(exact(9.999_999_7e-6), 1e-5);
    }
}
