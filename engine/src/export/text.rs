//! What belongs to an export beside weights: tokenizer, template, generation settings, licences.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::Error;
use super::folder::Folder;
use crate::model::tokenizer::token_ids;
use crate::model::{ModelSource, TokenizerBundle};

/// Files that come with a base model's terms; a name that begins like this is copied.
const LICENCES: [&str; 5] = ["LICENSE", "LICENCE", "NOTICE", "USE_POLICY", "COPYING"];
/// No licence is longer.
const LICENCE_MAX_BYTES: u64 = 1 << 20;

/// A file and its content.
pub(super) type NamedFile = (String, Vec<u8>);

/// Everything about text, each file as the base has it. `tokenizer_config.json` is copied byte for byte where it
/// exists (numbers in it may be larger than a parser keeps).
pub(super) fn tokenizer_files(source: &ModelSource, bundle: &TokenizerBundle) -> Vec<NamedFile> {
    let mut files = vec![("tokenizer.json".to_string(), bundle.tokenizer_json.clone().into_bytes())];
    let name = "tokenizer_config.json";
    let has_keys = bundle.tokenizer_config.as_object().is_some_and(|keys| !keys.is_empty());
    match fs::read(source.path().join(name)) {
        Ok(verbatim) => files.push((name.into(), verbatim)),
        Err(_) if has_keys => files.push((name.into(), pretty(&bundle.tokenizer_config))),
        Err(_) => {}
    }
    files.extend(bundle.extra_files.iter().cloned());
    let in_config = bundle.tokenizer_config.get("chat_template").is_some();
    if let Some(template) = &bundle.chat_template
        && !in_config
        && !files.iter().any(|(name, _)| name == "chat_template.jinja")
    {
        files.push(("chat_template.jinja".into(), template.clone().into_bytes()));
    }
    files
}

/// `generation_config.json` verbatim where generation stops at all of `stop_ids` with it, else with them added, and a
/// sentence that says so. `None` where the base has none and needs none.
pub(super) fn generation_config(
    source: &ModelSource,
    bundle: &TokenizerBundle,
    stop_ids: &[u32],
) -> (Option<Vec<u8>>, Option<String>) {
    let name_of = |id: u32| bundle.tokenizer.id_to_token(id).map_or_else(|| id.to_string(), |t| format!("{t} ({id})"));
    let list = |ids: &[u32]| ids.iter().map(|&id| name_of(id)).collect::<Vec<_>>().join(", ");
    let config = source.hf_config();
    let given: Option<Map<String, Value>> =
        bundle.generation_config.as_ref().and_then(|text| serde_json::from_str(text).ok());
    let verbatim = || bundle.generation_config.as_ref().map(|text| text.clone().into_bytes());
    let own = given.as_ref().map(|g| token_ids(g.get("eos_token_id"))).unwrap_or_default();
    let known = if own.is_empty() { token_ids(config.get("eos_token_id")) } else { own };
    let added: Vec<u32> = stop_ids.iter().copied().filter(|id| !known.contains(id)).collect();
    if added.is_empty() {
        return (verbatim(), None);
    }
    if bundle.generation_config.is_some() && given.is_none() {
        let note = format!(
            "generation_config.json is not JSON and was copied as it is; generation should also stop at {}.",
            list(&added)
        );
        return (verbatim(), Some(note));
    }
    let made = given.is_none();
    let mut keys = given.unwrap_or_default();
    if made {
        for key in ["bos_token_id", "pad_token_id"] {
            if let Some(id) = config.get(key).filter(|id| !id.is_null()) {
                keys.insert(key.into(), id.clone());
            }
        }
    }
    let all: Vec<u32> = known.iter().chain(&added).copied().collect();
    let all_value = if let [id] = all[..] { json!(id) } else { json!(all) };
    keys.insert("eos_token_id".into(), all_value);
    let note = if made {
        format!("generation_config.json was added, so that generation stops at {}.", list(&all))
    } else {
        format!(
            "generation_config.json: {} added to eos_token_id, where turns end in this model's chat template; all \
             other settings are unchanged.",
            list(&added)
        )
    };
    (Some(pretty(&Value::Object(keys))), Some(note))
}

/// Licence files of the base's folder.
pub(super) fn licences(source: &ModelSource) -> Vec<NamedFile> {
    let mut files = Vec::new();
    for entry in fs::read_dir(source.path()).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let upper = name.to_uppercase();
        let small = entry.metadata().is_ok_and(|m| m.is_file() && m.len() <= LICENCE_MAX_BYTES);
        if small && LICENCES.iter().any(|beginning| upper.starts_with(beginning)) {
            files.extend(fs::read(entry.path()).ok().map(|content| (name, content)));
        }
    }
    files.sort();
    files
}

/// Writes files and returns nothing but errors.
pub(super) fn write_all(folder: &mut Folder, files: &[NamedFile]) -> Result<(), Error> {
    files.iter().try_for_each(|(name, content)| folder.write(name, content))
}

/// Bytes of files.
pub(super) fn bytes(files: &[NamedFile]) -> u64 {
    files.iter().map(|(_, content)| content.len() as u64).sum()
}

/// JSON as people read it, with a line feed at the end.
pub(super) fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// A JSON object from a file.
pub(super) fn json_object(path: &Path) -> Result<Map<String, Value>, Error> {
    let text = fs::read_to_string(path).map_err(Error::read(path))?;
    serde_json::from_str(&text).map_err(|e| Error::Json { path: path.into(), reason: e.to_string() })
}
