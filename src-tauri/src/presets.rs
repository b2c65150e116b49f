//! Settings kept under a name, one file each beside the runs: what was chosen, without which model, which data and what
//! the run was called.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use hearth_engine::config::RunConfig;
use hearth_engine::disk;
use hearth_engine::named::{self, BadName, NamedFiles};
use hearth_engine::run;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::commands::aside;
use crate::engine::{self, Answer};

/// Parts of a configuration that are no choice of settings.
const NOT_KEPT: [&str; 2] = ["name", "model"];
const NOT_KEPT_OF_DATA: [&str; 3] = ["path", "evaluation_path", "columns"];

/// Settings under a name. The configuration has no model, no data and no name of its own.
#[derive(Debug, Serialize)]
pub(crate) struct Preset {
    name: String,
    config: RunConfig,
}

/// As it stands in its file.
#[derive(Deserialize, Serialize)]
struct Kept {
    name: String,
    config: Value,
}

#[tauri::command]
pub(crate) async fn list_presets() -> Answer<Vec<Preset>> {
    aside(|| Ok(list(&folder()))).await
}

/// Keeps settings, in place of those that had the name; answers with all there are.
#[tauri::command]
pub(crate) async fn save_preset(name: String, config: RunConfig) -> Answer<Vec<Preset>> {
    aside(move || {
        let folder = folder();
        save(&folder, &name, &config)?;
        Ok(list(&folder))
    })
    .await
}

/// Forgets settings; answers with those that are left.
#[tauri::command]
pub(crate) async fn delete_preset(name: String) -> Answer<Vec<Preset>> {
    aside(move || {
        let folder = folder();
        delete(&folder, &name)?;
        Ok(list(&folder))
    })
    .await
}

fn folder() -> PathBuf {
    run::runs_dir().with_file_name("presets")
}

fn files(folder: &Path) -> NamedFiles {
    NamedFiles::new(folder.into(), "json")
}

/// All that can be read, by name. A file somebody else put there, or damaged, is none.
fn list(folder: &Path) -> Vec<Preset> {
    let texts = files(folder).read_all().unwrap_or_default().into_iter().filter_map(|(_, text)| text.ok());
    let mut presets: Vec<Preset> = texts.filter_map(|text| parse(&text)).collect();
    presets.sort_by_cached_key(|preset| (preset.name.to_lowercase(), preset.name.clone()));
    presets
}

fn parse(text: &str) -> Option<Preset> {
    let Kept { name, mut config } = serde_json::from_str(text).ok()?;
    let blank = json!("");
    for key in NOT_KEPT {
        config.as_object_mut()?.insert(key.into(), blank.clone());
    }
    config.get_mut("data")?.as_object_mut()?.insert("path".into(), blank);
    // What a later version adds to the configuration is filled in as open.
    Some(Preset { name, config: serde_json::from_value(config).ok()? })
}

fn save(folder: &Path, name: &str, config: &RunConfig) -> Answer<()> {
    let name = clean(name)?;
    let config = choices(config).map_err(|e| engine::error("window.internal", e.to_string(), ""))?;
    let path = files(folder).path(&name);
    let content = serde_json::to_string_pretty(&Kept { name, config })
        .map_err(|e| engine::error("window.internal", e.to_string(), ""))?;
    disk::write_shared(&path, content.as_bytes()).map_err(|e| {
        let message = format!("writing {}: {e}", path.display());
        engine::error("window.io", message, "Check that the folder exists and can be written.")
    })
}

fn delete(folder: &Path, name: &str) -> Answer<()> {
    let path = files(folder).path(&clean(name)?);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            let message = format!("deleting {}: {e}", path.display());
            Err(engine::error("window.io", message, "Check that the folder can be written."))
        }
        _ => Ok(()),
    }
}

fn choices(config: &RunConfig) -> serde_json::Result<Value> {
    let mut config = serde_json::to_value(config)?;
    let mut drop_keys = |at: &str, keys: &[&str]| {
        if let Some(object) = config.pointer_mut(at).and_then(Value::as_object_mut) {
            object.retain(|key, _| !keys.contains(&key.as_str()));
        }
    };
    drop_keys("", &NOT_KEPT);
    drop_keys("/data", &NOT_KEPT_OF_DATA);
    Ok(config)
}

/// The name as it is kept.
fn clean(name: &str) -> Answer<String> {
    named::clean(name).map_err(|bad| match bad {
        BadName::Empty => engine::error("window.preset_name", "the settings have no name", "Give them a name."),
        BadName::TooLong { n_chars } => {
            let next_step = format!("Give at most {} characters.", named::MOST_CHARS);
            engine::error("window.preset_name", format!("the name has {n_chars} characters"), &next_step)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 7] =
        ["quick", "速度优先 训练", "🔥", "a b", "a-b", "../../etc/passwd", "CON: <pipe|star*> \"quote\"?"];

    fn config(rank: usize) -> RunConfig {
        let config = json!({
            "name": "my run",
            "model": "/home/ana/models/m.gguf",
            "data": {
                "path": "/home/ana/数据.jsonl",
                "evaluation_path": "/home/ana/eval.jsonl",
                "columns": { "prompt": "q", "response": "a" },
                "length": 448
            },
            "lora": { "rank": rank, "alpha": 2.0 * rank as f64 },
            "micro_batch": 2,
        });
        serde_json::from_value(config).expect("a configuration")
    }

    fn names(folder: &Path) -> Vec<String> {
        list(folder).into_iter().map(|preset| preset.name).collect()
    }

    fn temporary() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("a b 设置").tempdir().expect("folder")
    }

    #[test]
    fn what_was_saved_under_any_name_comes_back_and_can_be_deleted() {
        let folder = temporary();
        let folder = folder.path().join("presets");
        assert!(list(&folder).is_empty(), "before there is a folder");
        for (i, name) in NAMES.iter().enumerate() {
            save(&folder, name, &config(4 + i)).unwrap_or_else(|e| panic!("{name}: {}", e.message));
        }
        let mut expected = NAMES.map(str::to_string).to_vec();
        let mut found = names(&folder);
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        for preset in list(&folder) {
            let i = NAMES.iter().position(|name| *name == preset.name).expect("a name of the list");
            assert_eq!((preset.config.lora.rank, preset.config.micro_batch), (4 + i, Some(2)), "{}", preset.name);
            assert_eq!(preset.config.data.length, Some(448));
        }
        for name in NAMES {
            delete(&folder, name).expect("deleted");
            delete(&folder, name).expect("not there is deleted, too");
        }
        assert_eq!(fs::read_dir(&folder).expect("folder").count(), 0);
    }

    #[test]
    fn the_file_holds_no_model_no_data_and_no_name_of_a_run() {
        let folder = temporary();
        save(folder.path(), "x", &config(8)).expect("saved");
        let text = fs::read_to_string(files(folder.path()).path("x")).expect("written");
        for gone in ["my run", "m.gguf", "jsonl", "prompt", "\"path\"", "\"model\""] {
            assert!(!text.contains(gone), "{gone} is in {text}");
        }
        let presets = list(folder.path());
        let [preset] = &presets[..] else { panic!("{} settings instead of one", presets.len()) };
        assert_eq!(preset.config.name, "");
        assert_eq!((preset.config.model.as_os_str().len(), preset.config.data.path.as_os_str().len()), (0, 0));
        assert!(preset.config.data.evaluation_path.is_none() && preset.config.data.columns.is_none());
    }

    #[test]
    fn the_same_name_with_other_spaces_is_the_same_settings() {
        let folder = temporary();
        save(folder.path(), " 速度  优先\n", &config(4)).expect("saved");
        save(folder.path(), "速度 优先", &config(8)).expect("saved again");
        assert_eq!(names(folder.path()), ["速度 优先"]);
        assert_eq!(list(folder.path())[0].config.lora.rank, 8);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1, "nothing half written is left");
    }

    #[test]
    fn settings_without_a_name_or_with_an_endless_one_are_refused() {
        let folder = temporary();
        for name in ["", " \t\n", &"x".repeat(named::MOST_CHARS + 1)] {
            let refused = save(folder.path(), name, &config(4)).expect_err("no name");
            assert_eq!(refused.code, "window.preset_name");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 0);
    }

    #[test]
    fn files_of_others_and_damaged_ones_are_passed_over() {
        let folder = temporary();
        save(folder.path(), "good", &config(4)).expect("saved");
        for (name, text) in [
            ("half.json", "{\"name\": \"ha"),
            ("other.json", "{\"name\": \"x\", \"config\": 3}"),
            ("unknown.json", "{\"name\": \"y\", \"config\": {\"data\": {}, \"no_such_setting\": 1}}"),
            ("good.writing", "{}"),
            ("notes.txt", "x"),
        ] {
            fs::write(folder.path().join(name), text).expect("written");
        }
        assert_eq!(names(folder.path()), ["good"]);
    }
}
