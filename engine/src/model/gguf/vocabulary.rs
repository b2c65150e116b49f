//! The tokenizer in a GGUF's metadata as the `tokenizer.json` and `tokenizer_config.json` it was made from.
//!
//! Byte-level BPE only (`tokenizer.ggml.model` = `gpt2`). A GGUF names how text is cut before merging
//! (`tokenizer.ggml.pre`) and does not say it: the cuts are those of the Hugging Face tokenizers of that name. A name
//! that is not known here is refused, since a wrong cut gives other ids in silence.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{GgufFile, Metadata};
use crate::model::tokenizer::{Special, TokenizerBundle};
use crate::model::{Error, tokenizer};

/// llama.cpp's `token_type`.
const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;

/// Llama 3's cuts (its tokenizer.json).
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Qwen 2's cuts: Llama 3's with single digits.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// How text is cut, and what goes with it.
struct Cuts {
    pre_tokenizer: Value,
    normalizer: Value,
    /// Whole words that are in the vocabulary are not merged up to.
    ignore_merges: bool,
    /// Where `tokenizer.ggml.add_bos_token` is missing.
    add_bos: bool,
}

/// The byte alphabet, as pre-tokenizer, post-processor and decoder alike.
fn byte_level(add_prefix_space: bool, trim_offsets: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    })
}

fn sequence(first: Value, second: Value) -> Value {
    json!({"type": "Sequence", "pretokenizers": [first, second]})
}

fn cuts(metadata: &Metadata) -> Result<Cuts, Error> {
    let sequence = |first: Value, use_regex: bool| sequence(first, byte_level(false, true, use_regex));
    let split =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let plain =
        |pre_tokenizer: Value| Cuts { pre_tokenizer, normalizer: Value::Null, ignore_merges: false, add_bos: false };
    let key = "tokenizer.ggml.pre";
    Ok(match metadata.text(key)?.unwrap_or_default() {
        "gpt-2" | "gpt2" => plain(byte_level(false, true, true)),
        "smollm" | "starcoder" | "refact" | "codeshell" => {
            plain(sequence(json!({"type": "Digits", "individual_digits": true}), true))
        }
        "llama-bpe" | "llama3" | "llama-v3" => {
            Cuts { ignore_merges: true, add_bos: true, ..plain(sequence(split(LLAMA3), false)) }
        }
        "smaug-bpe" | "dbrx" => plain(sequence(split(LLAMA3), false)),
        "qwen2" => Cuts { normalizer: json!({"type": "NFC"}), ..plain(sequence(split(QWEN2), false)) },
        "" => return Err(unsupported(metadata, key, "the file does not say how text is cut into words")),
        _ => return Err(unsupported(metadata, key, "these rules for cutting text into words are not known")),
    })
}

/// The whole bundle. `max_positions` becomes `model_max_length`.
pub(in crate::model) fn bundle(
    file: &GgufFile,
    metadata: &Metadata,
    max_positions: usize,
) -> Result<TokenizerBundle, Error> {
    let words = Words::read(metadata)?;
    let cuts = cuts(metadata)?;
    let special = |name: &str| words.special(metadata, &format!("tokenizer.ggml.{name}_token_id"));
    let (bos, eos) = (special("bos")?, special("eos")?);
    let (pad, unk) = (special("padding")?, special("unknown")?);
    let mut eos_ids: Vec<u32> = eos.iter().map(|(id, _)| *id).collect();
    for name in ["eot", "eom"] {
        eos_ids.extend(special(name)?.map(|(id, _)| id).filter(|id| !eos_ids.contains(id)));
    }
    let add_bos = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(cuts.add_bos) && bos.is_some();
    let add_eos = metadata.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false) && eos.is_some();

    let chat_template = metadata.text("tokenizer.chat_template")?.map(str::to_string);
    let tokenizer_json =
        words.tokenizer_json(&cuts, bos.as_ref().filter(|_| add_bos), eos.as_ref().filter(|_| add_eos))?;
    let tokenizer_config = json!({
        "added_tokens_decoder": words.added_tokens_decoder(),
        "bos_token": text(&bos),
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": false,
        "eos_token": text(&eos),
        "extra_special_tokens": {},
        "model_max_length": max_positions,
        "pad_token": text(&pad),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": text(&unk),
    });
    let tokenizer = tokenizer::parse(&file.path, &tokenizer_json)?;
    Ok(TokenizerBundle {
        tokenizer,
        tokenizer_json,
        tokenizer_config: without_nulls(tokenizer_config),
        chat_template,
        bos,
        eos,
        pad,
        add_bos,
        generation_config: None,
        eos_ids,
        extra_files: Vec::new(),
    })
}

fn text(special: &Special) -> Option<&str> {
    special.as_ref().map(|(_, text)| text.as_str())
}

fn without_nulls(config: Value) -> Value {
    match config {
        Value::Object(object) => Value::Object(object.into_iter().filter(|(_, v)| !v.is_null()).collect()),
        other => other,
    }
}

fn unsupported(metadata: &Metadata, key: &str, reason: &str) -> Error {
    let value = metadata.get(key).map_or_else(|| "missing".to_string(), super::Value::shown);
    Error::UnsupportedTokenizer { path: metadata.path().into(), key: key.into(), value, reason: reason.into() }
}

/// The vocabulary with its merges.
struct Words<'a> {
    metadata: &'a Metadata,
    tokens: &'a [String],
    types: &'a [i64],
    merges: &'a [String],
    /// Ids that the metadata names as beginning, end or padding: control tokens whatever their type says.
    named: Vec<usize>,
}

impl<'a> Words<'a> {
    fn read(metadata: &'a Metadata) -> Result<Words<'a>, Error> {
        let key = "tokenizer.ggml.model";
        match metadata.text(key)? {
            Some("gpt2") => {}
            Some("llama") => {
                return Err(unsupported(metadata, key, "SentencePiece vocabularies cannot be read from GGUF yet"));
            }
            _ => return Err(unsupported(metadata, key, "only byte-level BPE, gpt2, can be read from GGUF")),
        }
        let missing = |key: &str| metadata.bad(key, "the tokenizer needs it");
        let tokens = metadata.texts("tokenizer.ggml.tokens")?.ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        let merges = metadata.texts("tokenizer.ggml.merges")?.ok_or_else(|| missing("tokenizer.ggml.merges"))?;
        let types = metadata.ints("tokenizer.ggml.token_type")?.unwrap_or(&[]);
        if !types.is_empty() && types.len() != tokens.len() {
            return Err(metadata.bad("tokenizer.ggml.token_type", &format!("there are {} tokens", tokens.len())));
        }
        let mut named = Vec::new();
        for name in ["bos", "eos", "eot", "eom", "padding"] {
            named.extend(metadata.count(&format!("tokenizer.ggml.{name}_token_id"))?);
        }
        Ok(Words { metadata, tokens, types, merges, named })
    }

    fn special(&self, metadata: &Metadata, key: &str) -> Result<Special, Error> {
        let Some(id) = metadata.count(key)? else { return Ok(None) };
        match self.tokens.get(id) {
            Some(text) => Ok(Some((id as u32, text.clone()))),
            None => Err(metadata.bad(key, &format!("the vocabulary has {} tokens", self.tokens.len()))),
        }
    }

    fn kind(&self, id: usize) -> i64 {
        match self.named.contains(&id) {
            true => CONTROL,
            false => self.types.get(id).copied().unwrap_or(NORMAL),
        }
    }

    /// Control and user-defined tokens: matched as they stand, before text is cut.
    fn added(&self) -> impl Iterator<Item = (usize, &'a str, bool)> {
        self.tokens.iter().enumerate().filter_map(|(id, text)| match self.kind(id) {
            CONTROL => Some((id, text.as_str(), true)),
            USER_DEFINED => Some((id, text.as_str(), false)),
            _ => None,
        })
    }

    fn added_tokens_decoder(&self) -> Value {
        let entries = self.added().map(|(id, text, special)| {
            let value = json!({"content": text, "lstrip": false, "normalized": false, "rstrip": false,
                "single_word": false, "special": special});
            (id.to_string(), value)
        });
        Value::Object(entries.collect())
    }

    fn tokenizer_json(
        &self,
        cuts: &Cuts,
        bos: Option<&(u32, String)>,
        eos: Option<&(u32, String)>,
    ) -> Result<String, Error> {
        let damaged = |reason: String| Error::TokenizerDamaged { path: self.metadata.path().into(), reason };
        let mut vocab: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, token) in self.tokens.iter().enumerate() {
            // Converters fill rows that the tokenizer doesn't use with words like `[PAD49153]`; no text may match them.
            if self.kind(id) == UNUSED {
                continue;
            }
            if let Some(other) = vocab.insert(token, id) {
                return Err(damaged(format!("the token {token:?} has two ids, {other} and {id}")));
            }
        }
        let mut merges = Vec::with_capacity(self.merges.len());
        for (i, merge) in self.merges.iter().enumerate() {
            let (left, right) = split_merge(merge)
                .ok_or_else(|| damaged(format!("merge {i}, {merge:?}, is not two words with a space between")))?;
            let known = vocab.contains_key(left)
                && vocab.contains_key(right)
                && vocab.contains_key(format!("{left}{right}").as_str());
            if !known {
                return Err(damaged(format!("merge {i}, {merge:?}, is not made of tokens of the vocabulary")));
            }
            merges.push(json!([left, right]));
        }
        let mut by_id: Vec<(&str, usize)> = vocab.into_iter().collect();
        by_id.sort_by_key(|&(_, id)| id);
        let vocab: Map<String, Value> = by_id.into_iter().map(|(text, id)| (text.to_string(), json!(id))).collect();
        let added: Vec<Value> = self
            .added()
            .map(|(id, content, special)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special})
            })
            .collect();
        let post_processor = match (bos, eos) {
            (None, None) => byte_level(true, false, true),
            _ => json!({"type": "Sequence", "processors": [byte_level(true, false, true), template(bos, eos)]}),
        };
        let whole = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": cuts.normalizer,
            "pre_tokenizer": cuts.pre_tokenizer,
            "post_processor": post_processor,
            "decoder": byte_level(true, true, true),
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": cuts.ignore_merges,
                "vocab": vocab,
                "merges": merges,
            },
        });
        Ok(whole.to_string())
    }
}

/// A merge's words. Their alphabet has no space, which byte-level BPE writes as `Ġ`.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let (left, right) = merge.split_once(' ')?;
    (!left.is_empty() && !right.is_empty() && !right.contains(' ')).then_some((left, right))
}

/// `BOS text EOS`, for one text and for a pair.
fn template(bos: Option<&(u32, String)>, eos: Option<&(u32, String)>) -> Value {
    let part = |special: Option<&(u32, String)>, type_id: u32| {
        special.map(|(_, text)| json!({"SpecialToken": {"id": text, "type_id": type_id}}))
    };
    let sequence = |name: &str, type_id: u32| {
        let text = Some(json!({"Sequence": {"id": name, "type_id": type_id}}));
        [part(bos, type_id), text, part(eos, type_id)].into_iter().flatten().collect::<Vec<_>>()
    };
    let special_tokens: Map<String, Value> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|(id, text)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let pair: Vec<Value> = sequence("A", 0).into_iter().chain(sequence("B", 1)).collect();
    json!({"type": "TemplateProcessing", "single": sequence("A", 0), "pair": pair, "special_tokens": special_tokens})
}
