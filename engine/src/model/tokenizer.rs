//! A model's tokenizer with what belongs to it: chat template, special tokens, generation settings.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use super::gguf::{self, GgufFile};
use super::{Error, text_file};

/// A special token as id and text.
pub(super) type Special = Option<(u32, String)>;

/// Everything about text that an export has to carry along.
#[derive(Clone)]
pub struct TokenizerBundle {
    /// The tokenizer, as transformers would run it.
    pub tokenizer: Tokenizer,
    /// `tokenizer.json`: verbatim from a folder, made from a GGUF's metadata.
    pub tokenizer_json: String,
    /// `tokenizer_config.json` with all keys; an empty object where a folder has none.
    pub tokenizer_config: Value,
    /// The chat template in force (`chat_template.jinja` before the one in `tokenizer_config.json`).
    pub chat_template: Option<String>,
    /// Beginning of sequence.
    pub bos: Option<(u32, String)>,
    /// End of sequence.
    pub eos: Option<(u32, String)>,
    /// Padding.
    pub pad: Option<(u32, String)>,
    /// Raw text gets [`TokenizerBundle::bos`] in front, as transformers does it for this tokenizer.
    pub add_bos: bool,
    /// `generation_config.json` verbatim.
    pub generation_config: Option<String>,
    /// Ids that end a generation, each once: of `generation_config.json`, of `config.json`, and the tokenizer's EOS.
    pub eos_ids: Vec<u32>,
    /// Further files of the tokenizer, by name, for exports to copy.
    pub extra_files: Vec<(String, Vec<u8>)>,
}

/// Files that belong to a tokenizer besides `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.
const EXTRA_FILES: [&str; 6] = [
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Tokenizer classes of transformers that put BOS in front of text unless `add_bos_token` is false.
const ADDS_BOS_BY_ITSELF: [&str; 4] =
    ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast"];

impl TokenizerBundle {
    /// Opens the tokenizer of a folder (which needs no weights and no `config.json`) or of a `.gguf` file.
    pub fn open(path: &Path) -> Result<TokenizerBundle, Error> {
        if !path.exists() {
            return Err(Error::NotFound { path: path.into() });
        }
        if path.is_dir() {
            return from_folder(path);
        }
        let (file, metadata) = GgufFile::open(path)?;
        let max_positions = gguf::config::shape(&file, &metadata)?.max_positions;
        gguf::vocabulary::bundle(&file, &metadata, max_positions)
    }
}

/// A tokenizer from the text of a `tokenizer.json`. Padding and truncation are switched off: they are settings of
/// whoever saved it, and would change ids.
pub(super) fn parse(path: &Path, tokenizer_json: &str) -> Result<Tokenizer, Error> {
    let damaged = |reason: String| Error::TokenizerDamaged { path: path.into(), reason };
    let mut tokenizer = Tokenizer::from_bytes(tokenizer_json.as_bytes()).map_err(|e| damaged(e.to_string()))?;
    tokenizer.with_truncation(None).map_err(|e| damaged(e.to_string()))?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

fn from_folder(folder: &Path) -> Result<TokenizerBundle, Error> {
    let path = folder.join("tokenizer.json");
    if !path.exists() {
        return Err(missing(folder));
    }
    let tokenizer_json = text_file::text(&path, text_file::LARGE_MAX_BYTES)?;
    let mut tokenizer = parse(&path, &tokenizer_json)?;
    let config_path = folder.join("tokenizer_config.json");
    let config = text_file::json_object(&config_path, text_file::LARGE_MAX_BYTES)?.unwrap_or_default();
    add_tokens_of_config(&mut tokenizer, &config_path, &config)?;
    let map_path = folder.join("special_tokens_map.json");
    let special_map = text_file::json_object(&map_path, text_file::CONFIG_MAX_BYTES)?.unwrap_or_default();
    let model = text_file::json_object(&folder.join("config.json"), text_file::CONFIG_MAX_BYTES)?.unwrap_or_default();
    let generation_path = folder.join("generation_config.json");
    let generation_config = match generation_path.exists() {
        true => Some(text_file::text(&generation_path, text_file::CONFIG_MAX_BYTES)?),
        false => None,
    };
    let generation = text_file::json_object(&generation_path, text_file::CONFIG_MAX_BYTES)?.unwrap_or_default();

    let special = |name: &str| -> Result<Special, Error> {
        let key = format!("{name}_token");
        let named = token_text(config.get(&key)).or_else(|| token_text(special_map.get(&key)));
        if let Some(text) = named {
            return match tokenizer.token_to_id(&text) {
                Some(id) => Ok(Some((id, text))),
                // Padding is never looked at; beginnings and ends of text are.
                None if name == "pad" => Ok(None),
                None => Err(Error::TokenizerDamaged {
                    path: config_path.clone(),
                    reason: format!("{key} is {text:?}, which tokenizer.json does not hold"),
                }),
            };
        }
        // A folder without special tokens in the tokenizer's files may still have their ids in config.json.
        let id = model.get(&format!("{key}_id")).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        Ok(id.and_then(|id| tokenizer.id_to_token(id).map(|text| (id, text))))
    };
    let (bos, eos, pad) = (special("bos")?, special("eos")?, special("pad")?);
    let mut eos_ids = Vec::new();
    let named = token_ids(generation.get("eos_token_id")).into_iter().chain(token_ids(model.get("eos_token_id")));
    for id in named.chain(eos.as_ref().map(|(id, _)| *id)) {
        if !eos_ids.contains(&id) {
            eos_ids.push(id);
        }
    }
    let add_bos = bos.as_ref().is_some_and(|(id, _)| adds_bos(&tokenizer, &config, *id));
    let mut extra_files = Vec::new();
    for name in EXTRA_FILES {
        let path = folder.join(name);
        if path.is_file() {
            extra_files.push((name.to_string(), text_file::bytes(&path, text_file::LARGE_MAX_BYTES)?));
        }
    }
    let chat_template = chat_template(folder, &config)?;
    Ok(TokenizerBundle {
        tokenizer,
        tokenizer_json,
        tokenizer_config: Value::Object(config),
        chat_template,
        bos,
        eos,
        pad,
        add_bos,
        generation_config,
        eos_ids,
        extra_files,
    })
}

/// Tokens that only `tokenizer_config.json` lists (`added_tokens_decoder`) are added when transformers loads a
/// tokenizer; so they are here, and have to get the ids that the file says.
fn add_tokens_of_config(tokenizer: &mut Tokenizer, path: &Path, config: &Map<String, Value>) -> Result<(), Error> {
    let Some(Value::Object(listed)) = config.get("added_tokens_decoder") else { return Ok(()) };
    let damaged = |reason: String| Error::TokenizerDamaged { path: path.into(), reason };
    let mut missing = Vec::new();
    for (key, entry) in listed {
        let id: u32 =
            key.parse().map_err(|_| damaged(format!("added_tokens_decoder has the key {key:?}, which is no id")))?;
        let content = entry.get("content").and_then(Value::as_str);
        let content = content.ok_or_else(|| damaged(format!("added_tokens_decoder {id} has no text in `content`")))?;
        match tokenizer.token_to_id(content) {
            Some(known) if known == id => {}
            Some(known) => {
                let reason = format!("{content:?} is token {id} here and token {known} in tokenizer.json");
                return Err(damaged(reason));
            }
            None => missing.push((id, content, entry)),
        }
    }
    missing.sort_by_key(|&(id, ..)| id);
    for (id, content, entry) in missing {
        let flag = |name: &str| entry.get(name).and_then(Value::as_bool);
        let special = flag("special").unwrap_or(false);
        let token = AddedToken::from(content, special)
            .single_word(flag("single_word").unwrap_or(false))
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .normalized(flag("normalized").unwrap_or(!special));
        match special {
            true => tokenizer.add_special_tokens(&[token]),
            false => tokenizer.add_tokens(&[token]),
        };
        if tokenizer.token_to_id(content) != Some(id) {
            return Err(damaged(format!(
                "{content:?} is token {id} here, but tokenizer.json leaves no place for that id"
            )));
        }
    }
    Ok(())
}

fn missing(folder: &Path) -> Error {
    let present = ["tokenizer.model", "vocab.json", "tekken.json"].into_iter().find(|name| folder.join(name).exists());
    let found = present.map_or_else(String::new, |name| format!(", only {name}"));
    Error::TokenizerMissing { path: PathBuf::from(folder), found }
}

/// A token is text, or an object with its text in `content`.
fn token_text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Object(object) => object.get("content")?.as_str().map(str::to_string),
        _ => None,
    }
}

/// `eos_token_id` is a number or a list of them.
pub(crate) fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn adds_bos(tokenizer: &Tokenizer, config: &Map<String, Value>, bos: u32) -> bool {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if ADDS_BOS_BY_ITSELF.contains(&class) {
        // These classes replace the post-processor of tokenizer.json by their own settings.
        return config.get("add_bos_token").and_then(Value::as_bool).unwrap_or(true);
    }
    // Elsewhere the post-processor decides: look at what it does.
    tokenizer.encode_fast("a", true).is_ok_and(|encoding| encoding.get_ids().first() == Some(&bos))
        && !tokenizer.encode_fast("a", false).is_ok_and(|encoding| encoding.get_ids().first() == Some(&bos))
}

fn chat_template(folder: &Path, config: &Map<String, Value>) -> Result<Option<String>, Error> {
    let path = folder.join("chat_template.jinja");
    if path.exists() {
        return text_file::text(&path, text_file::CONFIG_MAX_BYTES).map(Some);
    }
    Ok(match config.get("chat_template") {
        Some(Value::String(template)) => Some(template.clone()),
        // Several templates by name: the one called `default` is for chats.
        Some(Value::Array(named)) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_string),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A folder with a byte-level tokenizer of 256 bytes and `<|end|>` as 256.
    fn folder(config: &Value) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let alphabet: Vec<char> = (0u32..256).filter_map(|i| char::from_u32(0x100 + i)).collect();
        let vocab: Map<String, Value> = alphabet.iter().enumerate().map(|(i, c)| (c.to_string(), json!(i))).collect();
        let tokenizer = json!({
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": null, "normalizer": null, "pre_tokenizer": null, "decoder": null, "post_processor": null,
            "added_tokens": [{"id": 256, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        folder
    }

    fn added(id: u32, content: &str) -> Value {
        json!({id.to_string(): {"content": content, "special": true}})
    }

    #[test]
    fn saved_truncation_is_switched_off() {
        let folder = folder(&json!({}));
        let bundle = TokenizerBundle::open(folder.path()).unwrap();
        assert_eq!(bundle.tokenizer.encode_fast("ĀāĂă", true).unwrap().get_ids(), [0, 1, 2, 3]);
        assert!(bundle.tokenizer_json.contains("max_length"), "the file itself stays as it is");
    }

    #[test]
    fn special_tokens_are_found_as_text_as_object_and_by_id() {
        for (config, model) in [
            (json!({"eos_token": "<|end|>"}), json!({})),
            (json!({"eos_token": {"content": "<|end|>", "lstrip": false}}), json!({})),
            (json!({}), json!({"eos_token_id": 256})),
        ] {
            let folder = folder(&config);
            std::fs::write(folder.path().join("config.json"), model.to_string()).unwrap();
            let bundle = TokenizerBundle::open(folder.path()).unwrap();
            assert_eq!(bundle.eos, Some((256, "<|end|>".into())), "{config} {model}");
            assert_eq!(bundle.eos_ids, [256]);
        }
        let folder = folder(&json!({"eos_token": "<|end|>"}));
        std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [7, 256, 7]}"#).unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"eos_token_id": 8}"#).unwrap();
        assert_eq!(TokenizerBundle::open(folder.path()).unwrap().eos_ids, [7, 256, 8]);
    }

    #[test]
    fn tokens_of_the_config_get_the_ids_it_says() {
        let good = folder(&json!({"added_tokens_decoder": added(257, "<|new|>")}));
        let bundle = TokenizerBundle::open(good.path()).unwrap();
        assert_eq!(bundle.tokenizer.encode_fast("Ā<|new|>ā", true).unwrap().get_ids(), [0, 257, 1]);
        for (config, said) in [
            (json!({"added_tokens_decoder": added(300, "<|new|>")}), "300"),
            (json!({"added_tokens_decoder": added(9, "<|end|>")}), "256"),
            (json!({"eos_token": "<|other|>"}), "<|other|>"),
        ] {
            let bad = folder(&config);
            let message = TokenizerBundle::open(bad.path()).err().unwrap().to_string();
            assert!(message.contains(said), "{config}: {message}");
        }
    }

    #[test]
    fn the_jinja_file_is_before_the_template_in_the_config() {
        let folder = folder(
            &json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}),
        );
        let template = || TokenizerBundle::open(folder.path()).unwrap().chat_template;
        assert_eq!(template().as_deref(), Some("d"));
        std::fs::write(folder.path().join("chat_template.jinja"), "j").unwrap();
        assert_eq!(template().as_deref(), Some("j"));
        let bundle = TokenizerBundle::open(folder.path()).unwrap();
        assert_eq!(bundle.extra_files, [("chat_template.jinja".to_string(), b"j".to_vec())]);
    }

    #[test]
    fn a_folder_without_tokenizer_json_says_what_it_has() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.model"), b"\n").unwrap();
        let message = TokenizerBundle::open(folder.path()).err().unwrap().to_string();
        assert!(message.contains("only tokenizer.model"), "{message}");
    }
}
