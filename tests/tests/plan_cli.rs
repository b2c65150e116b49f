//! `hearth plan` for a card that is not there, a model that is not here and examples that nobody has yet.

use std::fs;
use std::path::Path;

use hearth_engine::plan::{Bound, CardTable, Fit, Largest, Plan, Quantity, TableCell};
use hearth_tests::hearth::{Said, hearth};
use hearth_tests::tiny_model::{self, Size, TINY, write_examples};
use serde_json::Value;

/// A plan that needs nothing but the program.
const ASKED: [&str; 9] =
    ["plan", "--card", "rtx-3060-12gb", "--model", "llama-3.1-8b", "--length", "2048", "--effective-batch", "16"];

/// As small as a model can be whose heads a card has kernels for.
const SMALL: Size = Size { hidden: 256, ..TINY };

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
    // The embedding of an untied model waits in system memory.
    let host = plan.host.as_ref().expect("there is a card");
    assert_eq!(host.items.iter().map(|item| item.bytes).sum::<u64>(), host.bytes);
    assert!(host.bytes > 1 << 30 && host.bytes <= host.budget_bytes && host.budget_bytes < host.free_bytes, "{host:?}");
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
    assert!(said.out.contains("Embeddings in system memory") && said.out.contains("pinned there"), "{said:?}");
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
    for words in
        ["It does not fit: ", "Least harm first", "Shorten the length to", "Choose a smaller model", "Use a card with"]
    {
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
    tiny_model::write_sized(&model, 1, SMALL).unwrap();
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
    tiny_model::write_sized(&folder.path().join("llama-3.1-8b"), 1, SMALL).unwrap();
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

#[test]
fn the_reverse_questions_are_answered_in_words_and_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |question: &str, more: &[&str]| {
        let asked = ["plan", question, "--card", "rtx-3060-12gb", "--model", "llama-3.1-8b"];
        say(folder.path(), &asked.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    };
    for (question, quantity, words) in [
        ("--longest", Quantity::Length, "The longest sequence is "),
        ("--largest-rank", Quantity::Rank, "The largest rank is "),
        ("--largest-batch", Quantity::MicroBatch, "At most "),
        ("--largest-model", Quantity::Model, "The largest model of the catalogue is "),
    ] {
        let said = ask(question, &["--json"]);
        assert_eq!(said.exit, Some(0), "{said:?}");
        let document = &said.json_lines()[0];
        let largest: Largest = serde_json::from_value(document.clone()).unwrap_or_else(|e| panic!("{e}: {said:?}"));
        assert_eq!(largest.quantity, quantity);
        assert!(largest.planned_bytes <= largest.budget.budget_bytes && largest.value > 0, "{largest:?}");
        assert_eq!(largest.bound == Bound::Memory, largest.next.is_some(), "{largest:?}");
        assert!(!document["assumed"].as_array().unwrap().is_empty(), "{said:?}");
        let said = ask(question, &[]);
        assert_eq!(said.exit, Some(0), "{said:?}");
        assert!(said.out.starts_with(words) && said.out.contains(&largest.words), "{said:?}");
        assert!(said.out.contains("\nwith ") && said.out.contains("\ntime = "), "{said:?}");
    }
    assert_eq!(ask("--longest", &["--table"]).exit, Some(2), "one question at a time");
    let said = say(folder.path(), &["plan", "--longest", "--card", "rtx-2060-6gb", "--model", "llama-3.1-70b"]);
    assert_eq!(said.exit, Some(4), "{said:?}");
}

#[test]
fn the_table_says_which_card_does_what_with_which_model() {
    let folder = tempfile::tempdir().unwrap();
    let said = say(folder.path(), &["plan", "--table", "--length", "1024", "--json"]);
    assert_eq!(said.exit, Some(0), "{said:?}");
    let table: CardTable = serde_json::from_value(said.json_lines()[0].clone()).unwrap_or_else(|e| panic!("{e}"));
    let fit = |model: &str, card: &str| {
        let column = table.cards.iter().position(|column| column.id == card).expect(card);
        let row = table.rows.iter().find(|row| row.id == model).expect(model);
        match &row.cells[column] {
            TableCell::Planned(plan) => plan.fit,
            TableCell::Refused(why) => panic!("{why}"),
        }
    };
    assert_eq!(fit("llama-3.1-70b", "rtx-4060-8gb"), Fit::No);
    assert_eq!(fit("smollm2-135m", "rtx-4090-24gb"), Fit::Comfortable);
    assert_ne!(fit("llama-3.1-8b", "rtx-3060-12gb"), Fit::No);
    let all = say(folder.path(), &["plan", "--table", "--all", "--json"]);
    let all: CardTable = serde_json::from_value(all.json_lines()[0].clone()).unwrap_or_else(|e| panic!("{e}"));
    assert!(all.cards.len() > 120 && all.rows.len() == table.rows.len(), "{}", all.cards.len());
    let said = say(folder.path(), &["plan", "--table"]);
    assert_eq!(said.exit, Some(0), "{said:?}");
    for words in ["RTX 3060, 12 GB", "Llama 3.1 8B", "tokens/s", "+ 16 bit", "− ", "assumed: 1,000 examples of 2,048"]
    {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
}

#[test]
fn prices_give_energy_and_money() {
    let folder = tempfile::tempdir().unwrap();
    let prices = ["--price-per-kwh", "0.30", "--currency", "EUR", "--price-per-hour", "1.2"];
    let said = say(folder.path(), &ASKED.into_iter().chain(prices).chain(["--json"]).collect::<Vec<_>>());
    let (plan, _) = answer(&said);
    let price = plan.price.expect("prices are given");
    assert!(price.energy_kwh > 0.0 && price.energy_cost.is_some() && price.rent_cost.is_some(), "{price:?}");
    let said = say(folder.path(), &ASKED.into_iter().chain(prices).collect::<Vec<_>>());
    assert!(said.out.contains(&format!("cost = {}", price.words())) && said.out.contains("EUR"), "{said:?}");
    let said = say(folder.path(), &ASKED);
    assert!(!said.out.contains("cost = "), "{said:?}");
}

#[test]
fn a_card_of_ones_own_is_kept_planned_for_shared_and_forgotten() {
    let folder = tempfile::Builder::new().prefix("a b 显卡 🔥").tempdir().unwrap();
    let ask = |args: &[&str]| {
        let home = folder.path().join("home");
        Said::by(hearth(&folder.path().join("runs")).env("HEARTH_HOME", home).current_dir(folder.path()).args(args))
    };
    let done = |args: &[&str]| {
        let said = ask(args);
        assert_eq!(said.exit, Some(0), "{said:?}");
        said
    };
    const NAME: &str = "My 显卡 🔥";
    assert_eq!(ask(&["cards", "save", NAME, "--memory", "20"]).exit, Some(2), "not all is said");
    done(&["cards", "save", NAME, "--from", "rtx-3060-12gb", "--memory", "20", "--board-power", "150.5"]);
    let shown = done(&["cards", "show", NAME]).out;
    assert!(shown.contains("20 GiB  (entered by hand)") && shown.contains("150.5 W  (entered by hand)"), "{shown}");
    assert!(shown.contains("360 GB/s  (NVIDIA"), "{shown}");
    let plan = |card: &str| answer(&done(&["plan", "--json", "--card", card, "--model", "llama-3.1-8b"])).0;
    assert_eq!(plan(NAME).budget.total_bytes, 20 << 30);
    // Edited, the rest stays.
    done(&["cards", "save", NAME, "--memory", "16"]);
    assert_eq!(plan(NAME).budget.total_bytes, 16 << 30);
    assert!(done(&["cards", "show", NAME]).out.contains("150.5 W"));
    done(&["cards", "export", NAME, "shared 卡.toml"]);
    assert_eq!(ask(&["cards", "export", NAME, "shared 卡.toml"]).exit, Some(3), "never over another file");
    done(&["cards", "import", "shared 卡.toml", "--name", "theirs"]);
    assert_eq!(plan("theirs"), plan("shared 卡.toml"));
    // A broken file is said, and the others are there.
    fs::write(folder.path().join("home/cards/broken.toml"), "name = ").unwrap();
    let listed = done(&["cards"]).out;
    assert!(listed.starts_with(NAME) && listed.contains("theirs") && listed.contains("rtx-3060-12gb"), "{listed}");
    assert!(listed.contains("broken.toml cannot be used"), "{listed}");
    let table = done(&["plan", "--table", "--all", "--json"]);
    let table: CardTable = serde_json::from_value(table.json_lines()[0].clone()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(table.cards[0].id, NAME);
    done(&["cards", "delete", NAME]);
    assert_eq!(ask(&["cards", "delete", NAME]).exit, Some(3));
    let refused = ask(&["plan", "--json", "--card", "theirz", "--model", "llama-3.1-8b"]);
    assert!(refused.error()["next_step"].to_string().contains("theirs"), "{refused:?}");
    assert_eq!(ask(&["cards", "save", "rtx-3060-12gb", "--from", "rtx-3060-12gb"]).exit, Some(3), "it stays as it is");
}
