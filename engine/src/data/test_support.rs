//! A byte-level tokenizer without merges: ids 0 to 255 are UTF-8 bytes, special tokens follow, so spans read as text.

use serde_json::{Map, Value, json};

use super::{Encoder, Sample};
use crate::model::TokenizerBundle;

/// `special` get the ids from 256 on; a tokenizer with `bos` adds it to text.
pub(crate) fn bundle(
    special: &[&str],
    bos: Option<&str>,
    eos: Option<&str>,
    template: Option<&str>,
) -> TokenizerBundle {
    let mut next = 0x100;
    let mut vocabulary = Map::new();
    for byte in 0..=255u32 {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable { byte } else { next };
        next += u32::from(!printable);
        vocabulary.insert(char::from_u32(code).unwrap().to_string(), byte.into());
    }
    let added = special.iter().enumerate().map(|(i, content)| {
        json!({"id": 256 + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer_json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<Value>>(),
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": []}
    })
    .to_string();
    let id = |text: &str| (256 + special.iter().position(|token| *token == text).unwrap() as u32, text.to_string());
    TokenizerBundle {
        tokenizer: tokenizers::Tokenizer::from_bytes(tokenizer_json.as_bytes()).unwrap(),
        tokenizer_json,
        tokenizer_config: json!({}),
        chat_template: template.map(str::to_string),
        bos: bos.map(id),
        eos: eos.map(id),
        pad: None,
        add_bos: bos.is_some(),
        generation_config: None,
        eos_ids: Vec::new(),
        extra_files: Vec::new(),
    }
}

/// The learned tokens of a sample, each unbroken run as text.
pub(crate) fn learned_parts(encoder: &Encoder, sample: &Sample) -> Vec<String> {
    let mut parts: Vec<Vec<u32>> = Vec::new();
    for (i, &id) in sample.input_ids.iter().enumerate().filter(|&(i, _)| sample.learned[i]) {
        if i == 0 || !sample.learned[i - 1] {
            parts.push(Vec::new());
        }
        parts.last_mut().unwrap().push(id);
    }
    parts.iter().map(|ids| encoder.decode(ids, false)).collect()
}
