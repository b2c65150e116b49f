//! Data files, chat templates and tokenizers from public bug reports, each with its right outcome.
//!
//! The inputs lie beside the repository in `shared/cases`; where that folder is absent, the tests say so and pass. The
//! engine's own tests hold small fixtures of the same faults.

#![allow(clippy::print_stderr)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hearth_engine::config::{ColumnMapping, OverLength};
use hearth_engine::data::{self, Content, Dataset, Encoder, Error, Format, Message, Prepared, Sample};
use hearth_engine::model::TokenizerBundle;

/// The folder of a case, or `None` with a sentence.
fn case(id: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases").join(id);
    if !folder.is_dir() {
        eprintln!("not checked: the case {} is not here", folder.display());
        return None;
    }
    Some(folder)
}

/// `expected.numbers` of a case.
fn numbers(folder: &Path) -> toml::Table {
    let text = std::fs::read_to_string(folder.join("case.toml")).unwrap();
    let table: toml::Table = toml::from_str(&text).unwrap();
    table["expected"]["numbers"].as_table().unwrap().clone()
}

fn usize_of(numbers: &toml::Table, key: &str) -> usize {
    numbers[key].as_integer().unwrap() as usize
}

fn texts_of(numbers: &toml::Table, key: &str) -> Vec<String> {
    numbers[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_string()).collect()
}

fn ids_of(numbers: &toml::Table, key: &str) -> Vec<u32> {
    numbers[key].as_array().unwrap().iter().map(|id| id.as_integer().unwrap() as u32).collect()
}

fn load(path: &Path) -> Dataset {
    let dataset = data::load(path, None).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(
        dataset.n_rows,
        dataset.examples.len() + dataset.problems.len(),
        "usable and reported rows are all rows"
    );
    dataset
}

fn encoder(folder: &Path) -> Encoder {
    Encoder::new(&TokenizerBundle::open(folder).unwrap()).unwrap()
}

fn prepare(dataset: &Dataset, encoder: &Encoder) -> Prepared {
    data::prepare(dataset, encoder, 1 << 20, OverLength::Drop)
}

fn text(encoder: &Encoder, sample: &Sample) -> String {
    encoder.decode(&sample.input_ids, false)
}

/// Each unbroken run of learned tokens, as text.
fn learned(encoder: &Encoder, sample: &Sample) -> Vec<String> {
    let mut parts: Vec<Vec<u32>> = Vec::new();
    for (i, &id) in sample.input_ids.iter().enumerate().filter(|&(i, _)| sample.learned[i]) {
        match parts.last_mut().filter(|_| sample.learned[i - 1]) {
            Some(part) => part.push(id),
            None => parts.push(vec![id]),
        }
    }
    parts.iter().map(|ids| encoder.decode(ids, false)).collect()
}

/// Instruction, input and answer of each example.
fn instructions(dataset: &Dataset) -> Vec<(String, Option<String>, String)> {
    let parts = |content: &Content| match content {
        Content::Instruction { instruction, input, output, .. } => (instruction.clone(), input.clone(), output.clone()),
        other => panic!("{other:?}"),
    };
    dataset.examples.iter().map(|example| parts(&example.content)).collect()
}

fn lines(dataset: &Dataset) -> Vec<usize> {
    dataset.examples.iter().map(|example| example.line.unwrap()).collect()
}

fn reported_rows(prepared: &Prepared) -> Vec<usize> {
    prepared.problems.iter().filter(|problem| problem.left_out).map(|problem| problem.row).collect()
}

#[test]
fn d01_a_byte_order_mark_is_no_part_of_the_data() {
    let Some(folder) = case("d01-csv-utf8-bom") else { return };
    let read: Vec<_> = ["data.csv", "data.jsonl", "data.json"].map(|name| load(&folder.join(name))).into();
    for dataset in &read {
        assert_eq!(dataset.examples.len(), usize_of(&numbers(&folder), "examples"));
        assert_eq!(dataset.columns, ["instruction", "input", "output"]);
        assert_eq!(dataset.format, Format::Alpaca);
        assert!(dataset.problems.is_empty());
        assert_eq!(instructions(dataset), instructions(&read[0]));
    }
    assert_eq!(instructions(&read[0])[1].2, "ca\u{FEFF}t, written \"cat\"");
}

#[test]
fn d02_problems_have_physical_lines() {
    let Some(folder) = case("d02-jsonl-crlf-blank-lines") else { return };
    let dataset = load(&folder.join("data.jsonl"));
    let numbers = numbers(&folder);
    assert_eq!(lines(&dataset), [1, 2, 4, 8]);
    assert_eq!(dataset.problems.len(), usize_of(&numbers, "problem_rows"));
    assert_eq!(dataset.problems[0].line, Some(usize_of(&numbers, "problem_line")));
    assert!(dataset.problems[0].reason.contains("incomplete JSON"), "{}", dataset.problems[0]);
    let rows = instructions(&dataset);
    assert_eq!(rows[1].2, "Hi.\r\nBye.");
    let all = rows.iter().map(|(a, b, c)| format!("{a}{b:?}{c}")).collect::<String>();
    assert_eq!(all.matches('\r').count(), 1);
}

#[test]
fn d03_one_bad_line_of_ten_thousand_costs_one_row() {
    let Some(folder) = case("d03-one-bad-line-in-10000") else { return };
    let mut content = String::new();
    for n in 1..=10_000 {
        let line = format!("{{\"instruction\": \"What is {n} plus 1?\", \"input\": \"\", \"output\": \"{}\"}}", n + 1);
        writeln!(content, "{}", if n == 7342 { &line[..31] } else { &line }).unwrap();
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("data.jsonl");
    std::fs::write(&path, content).unwrap();
    let dataset = load(&path);
    let numbers = numbers(&folder);
    assert_eq!((dataset.examples.len(), dataset.n_rows), (usize_of(&numbers, "examples"), 10_000));
    assert_eq!(dataset.problems.len(), usize_of(&numbers, "problem_rows"));
    let problem = &dataset.problems[0];
    assert_eq!(problem.line, Some(usize_of(&numbers, "problem_line")));
    assert!(problem.reason.contains("ends early at column 31"), "{problem}");
}

#[test]
fn d05_json_and_jsonl_are_told_apart_by_content() {
    let Some(folder) = case("d05-json-or-jsonl-by-content") else { return };
    for name in ["lines.json", "array.jsonl", "two-on-a-line.jsonl"] {
        let dataset = load(&folder.join(name));
        assert_eq!(dataset.format, Format::PromptCompletion);
        let pairs: Vec<_> = dataset
            .examples
            .iter()
            .map(|example| match &example.content {
                Content::Completion { prompt, completion } => (prompt.as_str(), completion.as_str()),
                other => panic!("{other:?}"),
            })
            .collect();
        let wanted = [("Colour of snow?", "White"), ("Colour of coal?", "Black"), ("Colour of grass?", "Green")];
        assert_eq!(pairs, wanted, "{name}");
    }
}

#[test]
fn d09_lone_surrogates_are_reported_and_split_emoji_shown_as_bytes() {
    let Some(folder) = case("d09-surrogates-and-zwj-emoji") else { return };
    let numbers = numbers(&folder);
    let dataset = load(&folder.join("data.jsonl"));
    assert_eq!(lines(&dataset), [1, 3, 5]);
    let reported: Vec<_> = dataset.problems.iter().map(|p| (p.line.unwrap(), p.code.as_str())).collect();
    assert_eq!(reported, [(2, "lone_surrogate"), (4, "lone_surrogate")]);
    let rows = instructions(&dataset);
    assert_eq!(rows[0].2, "\u{1F600}");
    let encoder = encoder(&folder.join("tokenizer"));
    let prepared = prepare(&dataset, &encoder);
    // Each answer is learned with the end-of-sequence token behind it.
    let answer_tokens = |i: usize| prepared.samples[i].n_learned() - 1;
    assert_eq!(answer_tokens(0), usize_of(&numbers, "line1_output_tokens"));
    assert_eq!(answer_tokens(1), usize_of(&numbers, "line3_output_tokens"));
    assert_eq!(learned(&encoder, &prepared.samples[1]), [format!("{}<|end|>", rows[1].2)]);
    assert!(prepared.samples.iter().all(|s| !encoder.pieces(&s.input_ids).concat().contains('\u{FFFD}')));
}

#[test]
fn d12_quotes_and_separators_are_those_of_the_file() {
    let Some(folder) = case("d12-csv-semicolon-multiline") else { return };
    let numbers = numbers(&folder);
    let dataset = load(&folder.join("semicolon.csv"));
    assert_eq!(dataset.columns, ["instruction", "input", "output"]);
    let rows = instructions(&dataset);
    assert_eq!(rows.len(), usize_of(&numbers, "semicolon_examples"));
    assert_eq!(rows[0].0, "Write a note; keep it short");
    assert_eq!(rows[0].2, "Dear all,\nmeeting at 3;\n\"no\" laptops.");
    assert_eq!((rows[2].1.as_deref(), rows[2].2.as_str()), (Some("one apple; 0,50 EUR"), "0,50 EUR"));

    let dataset = load(&folder.join("unbalanced.csv"));
    assert_eq!(dataset.problems[0].line, Some(usize_of(&numbers, "unbalanced_open_quote_line")));
    assert!(dataset.problems[0].reason.contains("never closed"));
    assert_eq!(instructions(&dataset).iter().map(|row| row.2.as_str()).collect::<Vec<_>>(), ["a", "c", "d"]);

    let dataset = load(&folder.join("short-row.csv"));
    assert_eq!(lines(&dataset), [2, 5]);
    assert_eq!(dataset.examples.len(), usize_of(&numbers, "short_row_examples"));
    let reasons: Vec<_> = dataset.problems.iter().map(|p| (p.line.unwrap(), p.reason.as_str())).collect();
    assert_eq!(reasons, [(3, "2 cells where the header has 3"), (4, "4 cells where the header has 3")]);
}

#[test]
fn d17_a_row_over_the_limit_is_named_and_never_ends_in_a_made_up_token() {
    let Some(folder) = case("d17-row-of-200k-tokens") else { return };
    let (row3, limit) = (usize_of(&numbers(&folder), "row3_tokens"), usize_of(&numbers(&folder), "max_length"));
    let long: String = "0123456789 ".chars().cycle().take(199_999).chain(['Z']).collect();
    let mut content = String::new();
    for (user, assistant) in [("Say a.", "a"), ("Say b.", "b"), ("Write a long list.", &long), ("Say d.", "d")] {
        let messages = serde_json::json!({"messages": [{"role": "user", "content": user},
            {"role": "assistant", "content": assistant}]});
        writeln!(content, "{messages}").unwrap();
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("data.jsonl");
    std::fs::write(&path, content).unwrap();
    let (dataset, encoder) = (load(&path), encoder(&folder.join("tokenizer")));

    let dropped = data::prepare(&dataset, &encoder, limit, OverLength::Drop);
    assert_eq!((dropped.samples.len(), dropped.n_dropped_long, dropped.n_truncated), (3, 1, 0));
    let problem = &dropped.problems[0];
    assert_eq!((problem.row, problem.left_out), (3, true));
    assert!(problem.reason.contains(&row3.to_string()) && problem.reason.contains(&limit.to_string()), "{problem}");
    assert_eq!(dropped.uncut.max_tokens, row3);

    let cut = data::prepare(&dataset, &encoder, limit, OverLength::Truncate);
    assert_eq!((cut.samples.len(), cut.n_dropped_long, cut.n_truncated), (4, 0, 1));
    assert_eq!((cut.problems[0].row, cut.problems[0].left_out), (3, false));
    let sample = &cut.samples[2];
    assert_eq!((sample.input_ids.len(), sample.truncated_from), (limit, Some(row3)));
    assert!(!encoder.stop_ids().contains(sample.input_ids.last().unwrap()));
    assert_eq!(cut.stats.max_tokens, limit);
}

#[test]
fn s01_blank_cells_are_blank_and_none_na_null_are_answers() {
    let Some(folder) = case("s01-alpaca-csv-blank-cells") else { return };
    let dataset = load(&folder.join("data.csv"));
    let numbers = numbers(&folder);
    assert_eq!(dataset.format, Format::Alpaca);
    assert_eq!(dataset.examples.len(), usize_of(&numbers, "examples"));
    let reported: Vec<_> = dataset.problems.iter().map(|p| (p.row, p.code.as_str())).collect();
    assert_eq!(reported, [(6, "empty_answer"), (7, "empty_answer")]);
    let rows = instructions(&dataset);
    assert_eq!(rows.iter().map(|row| row.2.as_str()).collect::<Vec<_>>()[2..], ["None", "NA", "null"]);
    assert_eq!(rows.iter().map(|row| row.1.is_some()).collect::<Vec<_>>(), [false, true, false, false, false]);
    // The rendered text, with a tokenizer that has no template: the Alpaca prompt.
    let Some(tokenizer) = case("d09-surrogates-and-zwj-emoji") else { return };
    let encoder = encoder(&tokenizer.join("tokenizer"));
    for (sample, row) in prepare(&dataset, &encoder).samples.iter().zip(&rows) {
        let text = text(&encoder, sample);
        assert_eq!(text.contains("### Input:"), row.1.is_some(), "{text}");
        assert!(text.ends_with(&format!("### Response:\n{}<|end|>", row.2)), "{text}");
        assert!(!text.contains("nan"));
    }
}

#[test]
fn s04_own_columns_are_guessed_in_the_open_and_cells_stay_text() {
    let Some(folder) = case("s04-csv-own-columns-number-like-answers") else { return };
    let path = folder.join("data.csv");
    let guessed = load(&path);
    let mapping = ColumnMapping { prompt: "Query".into(), response: "Answer".into(), system: None };
    assert_eq!(guessed.format, Format::Columns);
    assert_eq!(guessed.mapping.as_ref(), Some(&mapping));
    assert!(guessed.notes.iter().any(|note| note.contains("Guessed")), "{:?}", guessed.notes);
    let chosen = data::load(&path, Some(&mapping)).unwrap();
    for dataset in [guessed, chosen] {
        let answers: Vec<_> = instructions(&dataset).into_iter().map(|row| row.2).collect();
        assert_eq!(answers, ["007", "3.10", "1e-5", "TRUE", "01067"]);
    }
    let missing = ColumnMapping { prompt: "Question".into(), ..mapping };
    assert!(matches!(data::load(&path, Some(&missing)), Err(Error::MissingColumn { .. })));
}

#[test]
fn s06_turns_may_come_in_any_order_the_template_takes() {
    let Some(folder) = case("s06-sharegpt-odd-turn-order") else { return };
    let (dataset, encoder) = (load(&folder.join("data.jsonl")), encoder(&folder.join("tokenizer")));
    assert_eq!(dataset.format, Format::ShareGpt);
    assert!(dataset.notes.iter().any(|note| note.contains("not learned")), "{:?}", dataset.notes);
    let prepared = prepare(&dataset, &encoder);
    assert_eq!(prepared.samples.len(), 3);
    let reported: Vec<_> = prepared.problems.iter().map(|p| (p.row, p.code.as_str())).collect();
    assert_eq!(reported, [(3, "no_assistant_turn"), (4, "empty_conversation"), (6, "no_conversation")]);
    assert_eq!(
        text(&encoder, &prepared.samples[0]),
        "<|assistant|>Welcome to the desk.<|end|><|user|>Opening hours?<|end|><|assistant|>Nine to five.<|end|>"
    );
    let learned: Vec<_> = prepared.samples.iter().map(|sample| learned(&encoder, sample)).collect();
    assert_eq!(learned[0], ["Welcome to the desk.<|end|>", "Nine to five.<|end|>"]);
    assert_eq!(learned[1..], [["Blue.<|end|>"], ["Four.<|end|>"]]);
}

#[test]
fn s07_rows_the_template_refuses_are_reported_in_its_own_words() {
    let Some(folder) = case("s07-turns-the-template-refuses") else { return };
    let encoder = encoder(&folder.join("tokenizer"));
    let sentence = "Turns have to alternate between user and assistant, beginning with user.";
    let prepared = prepare(&load(&folder.join("data.jsonl")), &encoder);
    assert_eq!(prepared.samples.iter().map(|sample| sample.row).collect::<Vec<_>>(), [1, 4]);
    assert_eq!(reported_rows(&prepared), [2, 3, 5]);
    assert!(prepared.problems.iter().all(|problem| problem.reason.contains(sentence)), "{:?}", prepared.problems);
    assert_eq!((prepared.n_left_out(), prepared.n_rows), (3, 5));
    assert!(prepared.check().is_ok());

    let prepared = prepare(&load(&folder.join("all-bad.jsonl")), &encoder);
    let error = prepared.check().unwrap_err().to_string();
    for part in ["row 1", "row 2", "row 3", sentence] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn s09_tool_calls_are_written_and_learned_whole() {
    let Some(folder) = case("s09-tool-calls-content-null") else { return };
    let numbers = numbers(&folder);
    let (dataset, encoder) = (load(&folder.join("data.jsonl")), encoder(&folder.join("tokenizer")));
    assert_eq!(dataset.format, Format::Messages);
    let prepared = prepare(&dataset, &encoder);
    for (sample, row) in prepared.samples.iter().zip(1..) {
        let wanted = numbers[&format!("row{row}")].as_str().unwrap();
        assert_eq!(text(&encoder, sample), wanted);
        let call = &wanted[wanted.find("<|call|>").unwrap()..wanted.find("<|tool|>").unwrap()];
        let last = &wanted[wanted.rfind("<|assistant|>").unwrap() + "<|assistant|>".len()..];
        assert_eq!(learned(&encoder, sample), [call, last]);
    }
    assert_eq!(prepared.samples.len(), 4);
    assert_eq!(prepared.problems[0].row, 5);
    assert!(prepared.problems[0].reason.contains("rain") && prepared.problems[0].reason.contains("c5"));
}

#[test]
fn t01_a_refused_system_turn_is_reported_not_dropped() {
    let Some(folder) = case("t01-template-refuses-system") else { return };
    let encoder = encoder(&folder.join("tokenizer"));
    let prepared = prepare(&load(&folder.join("data.jsonl")), &encoder);
    assert_eq!(prepared.samples.len(), 1);
    assert_eq!(text(&encoder, &prepared.samples[0]), numbers(&folder)["row1"].as_str().unwrap());
    assert_eq!(learned(&encoder, &prepared.samples[0]), ["Wren.<end>"]);
    assert_eq!(reported_rows(&prepared), [2, 3]);
    assert!(prepared.problems.iter().all(|p| p.reason.contains("This model has no system turn")));
}

#[test]
fn t03_trimmed_answers_are_learned_and_the_default_system_block_is_noticed() {
    let Some(folder) = case("t03-template-adds-date-and-trims") else { return };
    let numbers = numbers(&folder);
    let encoder = encoder(&folder.join("tokenizer"));
    let prepared = prepare(&load(&folder.join("data.jsonl")), &encoder);
    assert!(prepared.problems.is_empty(), "{:?}", prepared.problems);
    for (sample, row) in prepared.samples.iter().zip(["row1", "row2"]) {
        assert_eq!(text(&encoder, sample), numbers[&format!("{row}_text")].as_str().unwrap());
        assert_eq!(sample.input_ids.len(), usize_of(&numbers, &format!("{row}_tokens")));
        assert_eq!(learned(&encoder, sample), texts_of(&numbers, &format!("{row}_trained")));
        assert_eq!(sample.n_learned(), usize_of(&numbers, &format!("{row}_trained_tokens")));
    }
    let notes = encoder.notes().concat();
    assert!(notes.contains("adds a system block") && notes.contains("14 Feb 2022"), "{notes}");
}

#[test]
fn t05_templates_with_and_without_generation_tags_learn_the_same() {
    let Some(folder) = case("t05-generation-tags") else { return };
    let numbers = numbers(&folder);
    let dataset = load(&folder.join("data.jsonl"));
    for name in ["with-tags", "without-tags"] {
        let encoder = encoder(&folder.join(name));
        let sample = encoder.encode(&dataset.examples[0]).unwrap();
        assert_eq!(text(&encoder, &sample), numbers["text"].as_str().unwrap(), "{name}");
        assert_eq!(learned(&encoder, &sample), texts_of(&numbers, "trained"), "{name}");
        assert_eq!(sample.n_learned(), usize_of(&numbers, "trained_tokens"), "{name}");
    }
}

#[test]
fn t07_bos_is_there_exactly_once() {
    let Some(folder) = case("t07-double-bos") else { return };
    let numbers = numbers(&folder);
    let encoder = encoder(&folder.join("tokenizer"));
    let ids = |name: &str| encoder.encode(&load(&folder.join(name)).examples[0]).unwrap().input_ids;
    assert_eq!(ids("chat.jsonl"), ids_of(&numbers, "chat_ids"));
    assert!(ids("raw.jsonl").starts_with(&ids_of(&numbers, "raw_ids_begin")));
    let prompt = encoder.prompt_ids(&[Message::new("user", "Up?")]).unwrap();
    for ids in [ids("raw.jsonl"), ids("alpaca.jsonl"), prompt] {
        assert_eq!((ids[0], ids.iter().filter(|&&id| id == 256).count()), (256, 1));
    }
}

#[test]
fn t10_a_turn_end_that_is_not_eos_is_learned_and_stops_answers() {
    let Some(folder) = case("t10-turn-end-is-not-eos") else { return };
    let numbers = numbers(&folder);
    let encoder = encoder(&folder.join("model"));
    let sample = encoder.encode(&load(&folder.join("data.jsonl")).examples[0]).unwrap();
    assert_eq!(sample.input_ids, ids_of(&numbers, "ids"));
    assert_eq!(learned(&encoder, &sample), ["Hello<|im_end|>"]);
    assert_eq!(sample.n_learned(), usize_of(&numbers, "trained_min"));
    let im_end = usize_of(&numbers, "im_end_id") as u32;
    assert!(encoder.stop_ids().contains(&im_end) && encoder.stop_ids().contains(&256));
    let notes = encoder.notes().concat();
    for part in ["<|im_end|> (258)", "<|endoftext|> (256)"] {
        assert!(notes.contains(part), "{notes}");
    }
}

#[test]
fn k01_added_tokens_are_single_ids() {
    let Some(folder) = case("k01-added-tokens-past-embedding") else { return };
    let encoder = encoder(&folder.join("spare-rows"));
    let sample = encoder.encode(&load(&folder.join("data.jsonl")).examples[0]).unwrap();
    assert_eq!(text(&encoder, &sample), "<|user|>Hi <|note|><|end|><|assistant|>Yo<|end|>");
    assert_eq!(sample.input_ids.iter().filter(|&&id| id == 259).count(), 1);
    assert_eq!(learned(&encoder, &sample), ["Yo<|end|>"]);
}
