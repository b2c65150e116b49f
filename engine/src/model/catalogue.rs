//! Published models by name, with their shapes: `assets/models.toml`. What is planned for one of them needs no download.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::ModelShape;

const FILE: &str = include_str!("../../../assets/models.toml");

static BUNDLED: LazyLock<Catalogue> = LazyLock::new(|| {
    // A test reads the file, so a broken one cannot ship.
    Catalogue::parse(FILE).unwrap_or_default()
});

/// 16-bit elements of the published weights.
const ELEMENT_BYTES: u64 = 2;

/// Models that people fine-tune at home and that this engine trains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// By family and size.
    #[serde(rename = "model")]
    pub models: Vec<CatalogueModel>,
}

/// A published model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueModel {
    /// Stable name, `llama-3.1-8b`.
    pub id: String,
    /// "Llama 3.1 8B".
    pub title: String,
    /// Its repository on the Hugging Face hub.
    pub hub: String,
    /// That of the variant tuned to answer, which has the same shape.
    #[serde(default)]
    pub instruct: Option<String>,
    /// On which terms it may be used.
    pub licence: Licence,
    /// Parameters as its page counts them.
    pub published_params: u64,
    /// Where the shape was read, in words.
    pub source: String,
    /// What its `config.json` says.
    pub shape: ModelShape,
}

/// Terms of use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Licence {
    /// "Apache-2.0", "Llama 3.1 Community License".
    pub name: String,
    /// It has to be accepted on the model's page before a download.
    pub accept: bool,
}

impl Catalogue {
    /// The one that comes with the engine.
    pub fn bundled() -> &'static Catalogue {
        &BUNDLED
    }

    fn parse(text: &str) -> Result<Catalogue, toml::de::Error> {
        toml::from_str(text)
    }

    /// The model with this id or this repository on the hub, in either case of letters.
    pub fn find(&self, name: &str) -> Option<&CatalogueModel> {
        let is_named = |other: &str| other.eq_ignore_ascii_case(name);
        self.models.iter().find(|model| {
            is_named(&model.id) || is_named(&model.hub) || model.instruct.as_deref().is_some_and(is_named)
        })
    }

    /// All ids, in the catalogue's order.
    pub fn ids(&self) -> impl Iterator<Item = &str> + Clone {
        self.models.iter().map(|model| model.id.as_str())
    }
}

impl CatalogueModel {
    /// The weights on disk in 16 bit, as they are published.
    pub fn bytes_16bit(&self) -> u64 {
        self.shape.params() as u64 * ELEMENT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::config_json;
    use super::*;

    fn models() -> Vec<CatalogueModel> {
        Catalogue::parse(FILE).unwrap_or_else(|e| panic!("assets/models.toml: {e}")).models
    }

    #[test]
    fn the_bundled_file_reads_and_says_where_each_shape_is_from() {
        assert_eq!(Catalogue::bundled().models, models());
        for model in models() {
            assert!(!model.title.is_empty() && !model.source.is_empty(), "{}", model.id);
            assert!(!model.licence.name.is_empty(), "{}", model.id);
            assert!(model.hub.split('/').count() == 2, "{}: {}", model.id, model.hub);
        }
    }

    #[test]
    fn no_two_models_share_a_name() {
        let mut seen = BTreeSet::new();
        for model in models() {
            for name in [Some(model.id), Some(model.hub), model.instruct].into_iter().flatten() {
                assert!(seen.insert(name.to_lowercase()), "{name} is there twice");
            }
        }
    }

    #[test]
    fn an_id_is_no_path_and_nothing_to_quote() {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        for model in models() {
            assert!(model.id.chars().all(is_plain) && !model.id.ends_with(".gguf"), "{}", model.id);
        }
    }

    #[test]
    fn shapes_have_as_many_parameters_as_were_published() {
        for model in models() {
            let ratio = model.shape.params() as f64 / model.published_params as f64;
            assert!((ratio - 1.0).abs() < 0.01, "{}: {} parameters", model.id, model.shape.params());
            assert_eq!(model.bytes_16bit(), 2 * model.shape.params() as u64);
        }
    }

    /// Through the reader that also refuses what the engine does not train.
    #[test]
    fn every_shape_is_one_that_the_engine_reads_from_a_config_json() {
        for model in models() {
            let s = &model.shape;
            let scaling = s.rope.scaling.as_ref().map(|scaling| {
                json!({
                    "rope_type": "llama3",
                    "factor": scaling.factor,
                    "low_freq_factor": scaling.low_freq_factor,
                    "high_freq_factor": scaling.high_freq_factor,
                    "original_max_position_embeddings": scaling.original_max_positions,
                })
            });
            let Value::Object(config) = json!({
                "model_type": s.family,
                "hidden_size": s.hidden,
                "num_hidden_layers": s.n_layers,
                "num_attention_heads": s.n_heads,
                "num_key_value_heads": s.n_kv_heads,
                "head_dim": s.head_dim,
                "intermediate_size": s.ffn,
                "vocab_size": s.vocab_rows,
                "rms_norm_eps": s.rms_eps,
                "rope_theta": s.rope.theta,
                "rope_scaling": scaling,
                "tie_word_embeddings": s.tied,
                "max_position_embeddings": s.max_positions,
                "sliding_window": null,
            }) else {
                unreachable!()
            };
            let read = config_json::shape(Path::new(&model.id), &config).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(&read, s, "{}", model.id);
        }
    }

    #[test]
    fn a_model_is_found_by_id_and_by_either_repository_whatever_the_case() {
        let found = |name: &str| Catalogue::bundled().find(name).map(|model| model.id.as_str());
        assert_eq!(found("llama-3.1-8b"), Some("llama-3.1-8b"));
        assert_eq!(found("Llama-3.1-8B"), Some("llama-3.1-8b"));
        assert_eq!(found("meta-llama/Llama-3.1-8B"), Some("llama-3.1-8b"));
        assert_eq!(found("meta-llama/Llama-3.1-8B-Instruct"), Some("llama-3.1-8b"));
        assert_eq!(found("llama-3.1-9b"), None);
        assert_eq!(found(""), None);
    }
}
