//! Tokens as readable pieces, one by one.
//!
//! A token may hold part of a character. Showing it as U+FFFD would look like damage in the data, so such bytes are
//! shown as `‹F0›`.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

/// How a tokenizer's vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// GPT-2's: each byte is one printable character.
    ByteLevel,
    /// SentencePiece's: `▁` is a blank, `<0xE2>` a byte.
    Metaspace,
    /// Anything else: as the tokenizer decodes a token alone.
    Other,
}

/// The bytes behind token ids.
pub(crate) struct Pieces {
    spelling: Spelling,
    byte_of: HashMap<char, u8>,
    /// Added tokens, which are spelled as they are.
    added: HashMap<u32, String>,
}

impl Pieces {
    pub(crate) fn new(tokenizer: &Tokenizer, tokenizer_json: &str) -> Self {
        let json: Value = serde_json::from_str(tokenizer_json).unwrap_or_default();
        let spelling = match () {
            _ if mentions(&json["decoder"], "ByteLevel") || mentions(&json["pre_tokenizer"], "ByteLevel") => {
                Spelling::ByteLevel
            }
            _ if mentions(&json["decoder"], "ByteFallback")
                || mentions(&json["decoder"], "Metaspace")
                || mentions(&json["pre_tokenizer"], "Metaspace") =>
            {
                Spelling::Metaspace
            }
            _ => Spelling::Other,
        };
        let added = tokenizer.get_added_tokens_decoder().into_iter().map(|(id, token)| (id, token.content)).collect();
        Self { spelling, byte_of: byte_characters(), added }
    }

    /// The bytes of one token.
    pub(crate) fn bytes(&self, tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
        if let Some(added) = self.added.get(&id) {
            return added.clone().into_bytes();
        }
        let Some(token) = tokenizer.id_to_token(id) else { return format!("‹{id}?›").into_bytes() };
        match self.spelling {
            Spelling::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(|c| self.byte_of.get(&c).copied()).collect();
                bytes.unwrap_or_else(|| token.into_bytes())
            }
            Spelling::Metaspace => {
                let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => token.replace('\u{2581}', " ").into_bytes(),
                }
            }
            Spelling::Other => tokenizer.decode(&[id], false).unwrap_or(token).into_bytes(),
        }
    }

    /// One token for reading.
    pub(crate) fn shown(&self, tokenizer: &Tokenizer, id: u32) -> String {
        let mut out = String::new();
        for chunk in self.bytes(tokenizer, id).utf8_chunks() {
            out.push_str(chunk.valid());
            chunk.invalid().iter().for_each(|byte| out.push_str(&format!("‹{byte:02X}›")));
        }
        out
    }
}

/// True where `json` or a step of its sequence is of type `kind`.
fn mentions(json: &Value, kind: &str) -> bool {
    match json {
        Value::Object(map) => map.get("type").is_some_and(|t| t == kind) || map.values().any(|v| mentions(v, kind)),
        Value::Array(items) => items.iter().any(|item| mentions(item, kind)),
        _ => false,
    }
}

/// GPT-2's table: printable Latin-1 bytes are themselves, the others follow from U+0100 on.
fn byte_characters() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| {
            let code = if printable(byte) { u32::from(byte) } else { next };
            next += u32::from(!printable(byte));
            (char::from_u32(code).unwrap_or('\u{FFFD}'), byte)
        })
        .collect()
}
