//! What cannot be used is refused before anything is written, with the values and a next step.

use std::fs;
use std::path::{Path, PathBuf};

use hearth_tests::hearth::{Said, hearth};
use hearth_tests::tiny_model::{self, write_examples};
use serde_json::{Value, json};

/// A model and examples that are good, until a test spoils one of them.
struct Bench {
    folder: tempfile::TempDir,
}

/// What a refusal has to be.
struct Refusal<'a> {
    exit: i32,
    code: &'a str,
    /// All of them stand in the message.
    values: &'a [&'a str],
}

impl Bench {
    fn new() -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        tiny_model::write(&bench.model(), 1).expect("the model can be written");
        write_examples(&bench.data(), 40);
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn model(&self) -> PathBuf {
        self.at("model")
    }

    fn data(&self) -> PathBuf {
        self.at("data.jsonl")
    }

    fn with_data(text: &str) -> Self {
        let bench = Self::new();
        fs::write(bench.data(), text).unwrap();
        bench
    }

    fn config(&self) -> Value {
        json!({
            "model": self.model(),
            "data": { "path": self.data(), "length": 128 },
            "lora": { "rank": 2 },
            "max_steps": 2,
            "evaluation": { "fraction": 0.1, "n_samples": 0 },
        })
    }

    fn train(&self, config: &Value) -> Said {
        let path = self.at("config.json");
        fs::write(&path, config.to_string()).unwrap();
        Said::by(hearth(&self.at("runs")).args(["train", "--json", "--config"]).arg(path))
    }

    /// Trains and expects a refusal that leaves nothing behind.
    fn refuses(&self, config: &Value, refusal: &Refusal<'_>) {
        let before = listing(self.folder.path());
        let said = self.train(config);
        self.check(&said, refusal);
        let mut after = listing(self.folder.path());
        after.retain(|path| !path.ends_with("config.json") || before.contains(path));
        assert_eq!(after, before, "something was written: {said:?}");
    }

    fn check(&self, said: &Said, refusal: &Refusal<'_>) {
        assert_eq!(said.exit, Some(refusal.exit), "{said:?}");
        let error = said.error();
        assert_eq!(error["code"], refusal.code, "{error}");
        let message = error["message"].as_str().unwrap();
        for value in refusal.values {
            assert!(message.contains(value), "{value:?} is not in {message:?}");
        }
        assert!(error["next_step"].as_str().unwrap().len() > 10, "no next step: {error}");
        // Nobody reads a type's debug form.
        for debris in ["Error {", "Some(", "Os {", "unwrap", "panicked"] {
            assert!(!message.contains(debris) && !said.err.contains(debris), "{debris:?} in {said:?}");
        }
    }
}

fn listing(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        found.push(entry.path());
        if entry.path().is_dir() {
            found.extend(listing(&entry.path()));
        }
    }
    found.sort();
    found
}

fn line(user: &str, assistant: &str) -> String {
    let messages = json!([{ "role": "user", "content": user }, { "role": "assistant", "content": assistant }]);
    json!({ "messages": messages }).to_string()
}

#[test]
fn no_data_file() {
    let bench = Bench::new();
    let mut config = bench.config();
    config["data"]["path"] = json!(bench.at("nowhere.jsonl"));
    bench.refuses(&config, &Refusal { exit: 3, code: "data.unreadable", values: &["nowhere.jsonl"] });
}

#[test]
fn an_empty_data_file() {
    for text in ["", "\n\n  \n"] {
        let bench = Bench::with_data(text);
        bench.refuses(&bench.config(), &Refusal { exit: 3, code: "data.empty", values: &["data.jsonl"] });
    }
}

#[test]
fn a_data_file_that_is_neither_json_nor_a_table() {
    let bench = Bench::with_data("Dear diary,\nnothing happened today.\n");
    let said = bench.train(&bench.config());
    assert_eq!(said.exit, Some(3), "{said:?}");
    let code = said.error()["code"].as_str().unwrap().to_string();
    assert!(code.starts_with("data."), "{code}");
    assert!(!bench.at("runs").exists());
}

#[test]
fn columns_that_say_nothing() {
    let bench = Bench::with_data("{\"spam\": \"a\", \"eggs\": \"b\"}\n{\"spam\": \"c\", \"eggs\": \"d\"}\n");
    bench.refuses(
        &bench.config(),
        &Refusal { exit: 3, code: "data.unknown_columns", values: &["spam", "eggs", "data.jsonl"] },
    );
}

#[test]
fn one_bad_line_in_many_is_named_and_the_rest_is_trained() {
    let mut lines: Vec<String> = (0..30).map(|i| line(&format!("question {i}"), &format!("answer {i}"))).collect();
    lines[16] = lines[16][..20].to_string();
    let bench = Bench::with_data(&(lines.join("\n") + "\n"));
    let said = bench.train(&bench.config());
    assert_eq!(said.exit, Some(0), "{said:?}");
    let warnings: Vec<String> = said
        .json_lines()
        .iter()
        .filter(|l| l["type"] == "warning" && l["code"] == "data.rows_reported")
        .map(|l| l["message"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(warnings.len(), 1, "{said:?}");
    assert!(warnings[0].contains("1 of 30 rows") && warnings[0].contains("line 17"), "{warnings:?}");
    let run = fs::read_dir(bench.at("runs")).unwrap().flatten().find(|e| e.path().is_dir()).unwrap();
    let problems: Value = serde_json::from_slice(&fs::read(run.path().join("problems.json")).unwrap()).unwrap();
    assert_eq!((problems.as_array().unwrap().len(), &problems[0]["line"]), (1, &json!(17)));
}

#[test]
fn examples_longer_than_the_limit_are_dropped_or_cut_and_counted() {
    for (over_length, word) in [("drop", "longer than"), ("truncate", "cut to")] {
        let mut lines: Vec<String> = (0..30).map(|i| line(&format!("question {i}"), "yes")).collect();
        lines[4] = line("short", &"long ".repeat(100));
        let bench = Bench::with_data(&lines.join("\n"));
        let mut config = bench.config();
        config["data"]["over_length"] = json!(over_length);
        let said = bench.train(&config);
        assert_eq!(said.exit, Some(0), "{said:?}");
        let warning = said.json_lines().into_iter().find(|l| l["code"] == "data.rows_reported").unwrap();
        let message = warning["message"].as_str().unwrap();
        assert!(message.contains("1 of 30 rows") && message.contains(word), "{message}");
        assert!(message.contains("128 tokens") && message.contains("line 5"), "{message}");
    }
}

#[test]
fn all_examples_longer_than_the_limit() {
    let lines: Vec<String> = (0..8).map(|i| line(&format!("question {i}"), &"long ".repeat(100))).collect();
    let bench = Bench::with_data(&lines.join("\n"));
    let said = bench.train(&bench.config());
    assert_eq!(said.exit, Some(3), "{said:?}");
    let message = said.error()["message"].as_str().unwrap().to_string();
    assert!(message.contains("128") && message.contains('8'), "{message}");
    assert!(!bench.at("runs").exists());
}

#[test]
fn all_labels_masked() {
    let text: String = (0..6)
        .map(|i| json!({ "messages": [{ "role": "user", "content": format!("question {i}") }] }).to_string() + "\n")
        .collect();
    let bench = Bench::with_data(&text);
    bench.refuses(
        &bench.config(),
        &Refusal { exit: 3, code: "data.nothing_usable", values: &["6 rows", "no assistant turn", "line 1"] },
    );
}

#[test]
fn no_model() {
    let bench = Bench::new();
    let mut config = bench.config();
    config["model"] = json!(bench.at("no such model"));
    bench.refuses(&config, &Refusal { exit: 3, code: "model.not_found", values: &["no such model"] });
}

#[test]
fn a_model_folder_with_pickle_weights_only() {
    let bench = Bench::new();
    fs::remove_file(bench.model().join("model.safetensors")).unwrap();
    fs::write(bench.model().join("pytorch_model.bin"), b"PK\x03\x04 not opened").unwrap();
    bench.refuses(&bench.config(), &Refusal { exit: 3, code: "model.pickle_only", values: &["pytorch_model.bin"] });
}

#[test]
fn truncated_safetensors() {
    let bench = Bench::new();
    let path = bench.model().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    for n in [bytes.len() - 1, bytes.len() / 2, 100, 5, 0] {
        fs::write(&path, &bytes[..n]).unwrap();
        let said = bench.train(&bench.config());
        assert_eq!(said.exit, Some(3), "{n} bytes: {said:?}");
        let error = said.error();
        // Cut in the header, or in a tensor, which is named then.
        assert!(["model.truncated", "model.tensor_damaged"].contains(&error["code"].as_str().unwrap()), "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("model.safetensors") && message.contains("cut short"), "{error}");
        assert!(!bench.at("runs").exists());
    }
}

#[test]
fn a_gguf_with_a_tensor_of_an_unknown_type() {
    let bench = Bench::new();
    let path = bench.at("odd.gguf");
    fs::write(&path, gguf_with_type(113)).unwrap();
    let mut config = bench.config();
    config["model"] = json!(path);
    bench.refuses(
        &config,
        &Refusal { exit: 3, code: "model.unsupported_dtype", values: &["odd.gguf", "token_embd.weight", "113"] },
    );
}

/// The smallest GGUF that says it is a Llama; its only tensor has a type that nobody defined.
fn gguf_with_type(kind: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    file.extend(b"GGUF");
    file.extend(3u32.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    text(&mut file, "general.architecture");
    file.extend(8u32.to_le_bytes());
    text(&mut file, "llama");
    text(&mut file, "token_embd.weight");
    file.extend(2u32.to_le_bytes());
    file.extend(32u64.to_le_bytes());
    file.extend(32u64.to_le_bytes());
    file.extend(kind.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.resize(file.len().next_multiple_of(32) + 32 * 32 * 4, 0);
    file
}

#[test]
fn a_tokenizer_that_does_not_match_the_embedding() {
    let bench = Bench::new();
    let path = bench.model().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // Special tokens get their ids by the vocabulary where it has them, and after its end where not.
    for token in tokenizer["added_tokens"].as_array().unwrap().clone() {
        tokenizer["model"]["vocab"][token["content"].as_str().unwrap()] = token["id"].clone();
    }
    let mut token = tokenizer["added_tokens"][0].clone();
    token["id"] = json!(5000);
    token["content"] = json!("<|of another model|>");
    tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    tokenizer["model"]["vocab"]["<|of another model|>"] = json!(5000);
    fs::write(&path, tokenizer.to_string()).unwrap();
    bench.refuses(
        &bench.config(),
        &Refusal {
            exit: 3,
            code: "model.tokens_past_embedding",
            values: &["1 token", "259 rows", "<|of another model|>", "5000"],
        },
    );
}

#[test]
fn a_disk_too_small_for_the_checkpoints() {
    let bench = Bench::new();
    let mut config = bench.config();
    // More checkpoints than any disk holds.
    config["checkpoints"] = json!({ "keep": 1 << 24 });
    bench.refuses(&config, &Refusal { exit: 4, code: "run.disk_too_small", values: &["TiB needed", "free", "runs"] });
}

#[test]
fn a_run_that_does_not_exist_is_answered_with_the_near_ones() {
    let bench = Bench::new();
    let mut config = bench.config();
    config["name"] = json!("harvest");
    assert_eq!(bench.train(&config).exit, Some(0));
    for command in ["resume", "stop", "watch", "report"] {
        let said = Said::by(hearth(&bench.at("runs")).args([command, "harwest", "--json"]));
        bench.check(&said, &Refusal { exit: 5, code: "run.not_found", values: &["harwest", "harvest-"] });
    }
    let said = Said::by(hearth(&bench.at("runs")).args(["resume", "../runs", "--json"]));
    bench.check(&said, &Refusal { exit: 5, code: "run.not_found", values: &["../runs"] });
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let bench = Bench::new();
    let cases: [(&str, Value, &str, i32); 6] = [
        ("/lora/rank", json!(0), "rank", 3),
        ("/lora/dropout", json!(1.5), "1.5", 3),
        ("/optimizer/learning_rate", json!(-1.0), "-1", 3),
        ("/data/length", json!(100_000), "100000", 3),
        ("/evaluation/fraction", json!(1.0), "fraction", 3),
        ("/micro_batch", json!(0), "micro_batch", 3),
    ];
    for (place, value, named, exit) in cases {
        let mut config = bench.config();
        config["optimizer"] = json!({ "learning_rate": 1e-4 });
        config["lora"] = json!({ "rank": 2, "dropout": 0.0 });
        config["micro_batch"] = json!(1);
        *config.pointer_mut(place).unwrap() = value;
        let said = bench.train(&config);
        assert_eq!(said.exit, Some(exit), "{place}: {said:?}");
        assert!(said.error()["message"].as_str().unwrap().contains(named), "{place}: {said:?}");
        assert!(!bench.at("runs").exists(), "{place}");
    }
    let mut config = bench.config();
    config["lora"]["rang"] = json!(3);
    let said = bench.train(&config);
    assert_eq!(said.exit, Some(3), "{said:?}");
    assert!(said.error()["message"].as_str().unwrap().contains("rang"), "{said:?}");
}

#[test]
fn memory_that_does_not_suffice() {
    let bench = Bench::new();
    let mut config = bench.config();
    config["memory_limit_bytes"] = json!(10_000);
    bench.refuses(&config, &Refusal { exit: 4, code: "plan.does_not_fit", values: &["KiB"] });
}

#[test]
fn output_folders_that_cannot_be_written() {
    let bench = Bench::new();
    fs::write(bench.at("occupied"), "").unwrap();
    let full = bench.at("has-a-run");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("adapter_model.safetensors"), "keep me\n").unwrap();
    fs::write(full.join("adapter_config.json"), "{\"mine\":true}\n").unwrap();
    fs::write(bench.at("config.json"), bench.config().to_string()).unwrap();
    let before = listing(bench.folder.path());
    let train = |runs: &Path, out: Option<&Path>| {
        let mut command = hearth(runs);
        command.current_dir(bench.folder.path()).args(["train", "--json", "--config"]).arg(bench.at("config.json"));
        if let Some(out) = out {
            command.arg("--out").arg(out);
        }
        Said::by(&mut command)
    };
    let runs = bench.at("runs");
    let cases: Vec<(Said, &[&str])> = vec![
        (train(&bench.at("occupied/run1"), None), &["occupied", "is a file"]),
        (train(&bench.at("occupied"), None), &["occupied", "not a folder"]),
        (train(Path::new(""), None), &["no folder given to write to"]),
        (train(&runs, Some(&full)), &["has-a-run", "adapter_config.json", "adapter_model.safetensors"]),
        (train(&runs, Some(&bench.at("occupied"))), &["occupied", "not a folder"]),
        (train(&runs, Some(Path::new(""))), &["no folder given to write to"]),
    ];
    for (said, values) in cases {
        bench.check(&said, &Refusal { exit: 3, code: "run.folder", values });
    }
    assert_eq!(listing(bench.folder.path()), before);
    assert_eq!(fs::read_to_string(full.join("adapter_model.safetensors")).unwrap(), "keep me\n");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(bench.at("nowhere/deeper"), bench.at("dangling")).unwrap();
        let said = train(&bench.at("dangling"), None);
        bench.check(&said, &Refusal { exit: 3, code: "run.folder", values: &["dangling", "broken link", "deeper"] });
    }
}

#[test]
#[cfg(unix)]
fn a_read_only_output_folder() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let folder = bench.at("readonly");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(folder.join("probe"), "").is_ok() {
        // Permissions do not bind this user (root), so there is nothing to refuse.
        return;
    }
    fs::write(bench.at("config.json"), bench.config().to_string()).unwrap();
    let mut command = hearth(&folder.join("run1"));
    let said = Said::by(command.args(["train", "--json", "--config"]).arg(bench.at("config.json")));
    bench.check(&said, &Refusal { exit: 3, code: "run.folder", values: &["readonly", "permission"] });
}

#[test]
fn a_wrong_command_line_exits_with_2() {
    let bench = Bench::new();
    for args in [&["train", "--rank", "many"][..], &["trian"], &["train"], &["plan", "--recompute", "c9"]] {
        let said = Said::by(hearth(&bench.at("runs")).args(args));
        assert_eq!(said.exit, Some(2), "{args:?}: {said:?}");
    }
    let help = Said::by(hearth(&bench.at("runs")).arg("--help"));
    assert_eq!(help.exit, Some(0));
    for line in ["Exit status", "70", "HEARTH_HOME"] {
        assert!(help.out.contains(line), "{line}");
    }
}
