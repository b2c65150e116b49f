//! `hearth plan` for a card that is not there, a model that is not here and examples that nobody has yet.

use std::fs;
use std::path::Path;

use hearth_engine::plan::Plan;
use hearth_tests::hearth::{Said, hearth};
use hearth_tests::tiny_model::{self, write_examples};
use serde_json::Value;

/// A plan that needs nothing but the program.
const ASKED: [&str; 9] =
    ["plan", "--card", "rtx-3060-12gb", "--model", "llama-3.1-8b", "--length", "2048", "--effective-batch", "16"];

fn say(folder: &Path, args: &[&str]) -> Said {
    // A folder of its own, so that no path is called like a model.
    Said::by(hearth(&folder.join("runs")).current_dir(folder).args(args))
}

/// The answer to `--json`: the plan, and the sentences on what is assumed.
fn answer(said: &Said) -> (Plan, Vec<String>) {
    let lines = said.json_lines();
    assert_eq!(lines.len(), 1, "one document: {said:?}");
    let document = &lines[0];
    let plan = serde_json::from_value(document.clone()).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let sentences = document["assumed"].as_array().unwrap_or_else(|| panic!("no assumed: {said:?}"));
    (plan, sentences.iter().map(|words| words.as_str().expect("words").to_string()).collect())
}

#[test]
fn a_plan_for_a_card_and_a_model_that_are_not_here_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let json: Vec<&str> = ASKED.into_iter().chain(["--json"]).collect();
    let said = say(folder.path(), &json);
    assert_eq!(said.exit, Some(0), "{said:?}");
    let (plan, assumed) = answer(&said);
    assert!(plan.fits && plan.remedies.is_empty(), "{plan:?}");
    assert_eq!((plan.settings.length, plan.settings.micro_batch * plan.settings.accumulation), (2048, 16));
    assert_eq!(plan.items.iter().map(|item| item.bytes).sum::<u64>(), plan.planned_bytes);
    assert!(plan.planned_bytes <= plan.budget_bytes && plan.budget_bytes < 12 << 30);
    assert!(plan.budget.device.contains("RTX 3060"), "{:?}", plan.budget);
    assert_eq!((plan.data.n_train + plan.data.n_held_out, plan.data.max_tokens), (1000, 2048));
    for setting in ["rank", "length", "packing", "batch", "recompute", "optimizer", "base"] {
        let reason = plan.reasons.iter().find(|reason| reason.setting == setting);
        let reason = reason.unwrap_or_else(|| panic!("no reason for {setting}"));
        assert!(!reason.value.is_empty() && !reason.why.is_empty(), "{reason:?}");
    }
    let rank = plan.reasons.iter().find(|reason| reason.setting == "rank").and_then(|reason| reason.change.as_ref());
    assert!(rank.is_some_and(|change| change.value == "Rank 32" && change.time_s > 0.0), "{rank:?}");
    for words in ["1,000 examples of 2,048 tokens", "no data is given", "Llama 3.1 Community License", "of the card"] {
        assert!(assumed.iter().any(|sentence| sentence.contains(words)), "{words}: {assumed:?}");
    }

    let said = say(folder.path(), &ASKED);
    assert_eq!(said.exit, Some(0), "{said:?}");
    for item in plan.items.iter().filter(|item| item.bytes > 0) {
        assert!(said.out.contains(&item.label), "{}: {said:?}", item.label);
    }
    for reason in &plan.reasons {
        assert!(said.out.contains(&reason.why) && said.out.contains(&reason.if_changed), "{reason:?}: {said:?}");
    }
    assert!(assumed.iter().all(|words| said.out.contains(&format!("assumed: {words}\n"))), "{said:?}");
    for words in ["together, of", "12 GiB of NVIDIA GeForce RTX 3060", "Rank 32: ", " % time)", " ± "] {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
    // Asking leaves nothing behind.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn hardware_and_card_are_one_question() {
    let folder = tempfile::tempdir().unwrap();
    let by = |flag: &str| {
        say(folder.path(), &["plan", "--json", flag, "rtx-4090-24gb", "--model", "llama-3.2-1b", "--length", "512"])
    };
    assert_eq!(by("--card").out, by("--hardware").out);
}

#[test]
fn what_does_not_fit_says_what_would() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["plan", "--card", "rtx-2060-6gb", "--model", "llama-3.1-70b", "--length", "1024"];
    let said = say(folder.path(), &args);
    assert_eq!(said.exit, Some(4), "{said:?}");
    for words in ["It does not fit: ", "Least harm first", "Shorten the length to", "Choose a smaller model"] {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
}

#[test]
fn without_data_and_length_the_length_is_assumed_too_and_within_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let with = |model: &str| {
        let said = say(folder.path(), &["plan", "--json", "--card", "rtx-3090-24gb", "--model", model]);
        assert_eq!(said.exit, Some(0), "{said:?}");
        answer(&said)
    };
    let (plan, assumed) = with("smollm2-135m");
    assert_eq!(plan.settings.length, 2048);
    assert!(assumed.iter().any(|words| words.contains("neither data nor a length is given")), "{assumed:?}");

    let model = folder.path().join("model");
    tiny_model::write(&model, 1).unwrap();
    let config = model.join("config.json");
    let mut values: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    values["max_position_embeddings"] = 512.into();
    fs::write(&config, values.to_string()).unwrap();
    let (plan, assumed) = with(model.to_str().unwrap());
    assert_eq!(plan.settings.length, 512);
    let limited = |words: &String| words.contains("512 tokens each, the model's limit");
    assert!(assumed.iter().any(limited), "{assumed:?}");
}

#[test]
fn a_path_that_exists_wins_over_the_catalogue() {
    let folder = tempfile::tempdir().unwrap();
    tiny_model::write(&folder.path().join("llama-3.1-8b"), 1).unwrap();
    let said = say(folder.path(), &ASKED.into_iter().chain(["--json"]).collect::<Vec<_>>());
    assert_eq!(said.exit, Some(0), "{said:?}");
    let (plan, assumed) = answer(&said);
    assert!(plan.planned_bytes < 2 << 30, "{} bytes are not those of the tiny model", plan.planned_bytes);
    assert!(!assumed.iter().any(|words| words.contains("as published")), "{assumed:?}");
}

#[test]
fn with_data_nothing_is_assumed_about_it() {
    let folder = tempfile::tempdir().unwrap();
    tiny_model::write(&folder.path().join("model"), 1).unwrap();
    write_examples(&folder.path().join("data.jsonl"), 60);
    let said = say(
        folder.path(),
        &["plan", "--json", "--card", "no-card", "--model", "model", "--data", "data.jsonl", "--length", "128"],
    );
    assert_eq!(said.exit, Some(0), "{said:?}");
    let (plan, assumed) = answer(&said);
    assert!(assumed.is_empty(), "{assumed:?}");
    assert_eq!(plan.data.n_train + plan.data.n_held_out, 60);
}

#[test]
fn an_unknown_name_is_refused_with_those_near_it() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| {
        let said = say(folder.path(), args);
        assert_eq!(said.exit, Some(3), "{said:?}");
        let error = said.error();
        (error["code"].clone(), error["message"].to_string(), error["next_step"].to_string())
    };
    let (code, message, next_step) = refused(&["plan", "--json", "--model", "lama-3.1-8b"]);
    assert_eq!(code, "model.unknown_name");
    assert!(message.contains("lama-3.1-8b") && next_step.contains("near this one: llama-3.1-8b"), "{next_step}");

    let (_, _, next_step) = refused(&["plan", "--json", "--model", "qwen3-8b"]);
    assert!(next_step.contains("smollm2-135m") && next_step.contains("mistral-7b-v0.3"), "{next_step}");

    // What can only be a path is refused as one.
    let (code, _, _) = refused(&["plan", "--json", "--model", "models/llama"]);
    assert_eq!(code, "model.not_found");

    let (code, _, next_step) = refused(&["plan", "--json", "--model", "llama-3.1-8b", "--card", "rtx-3060"]);
    assert_eq!(code, "hardware.unknown_profile");
    assert!(next_step.contains("rtx-3060-12gb"), "{next_step}");
}

#[test]
fn a_published_model_has_no_tokenizer_to_count_data_with() {
    let folder = tempfile::tempdir().unwrap();
    write_examples(&folder.path().join("data.jsonl"), 5);
    let said = say(folder.path(), &["plan", "--json", "--model", "llama-3.1-8b", "--data", "data.jsonl"]);
    assert_eq!(said.exit, Some(3), "{said:?}");
    assert_eq!(said.error()["code"], "model.not_here");
    assert!(said.error()["next_step"].to_string().contains("--data"), "{said:?}");
}

#[test]
fn a_plan_needs_a_model_and_training_needs_data_too() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["plan"][..], &["plan", "--length", "128"], &["train", "--model", "llama-3.1-8b"]] {
        assert_eq!(say(folder.path(), args).exit, Some(2), "{args:?}");
    }
}
