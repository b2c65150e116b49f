//! The demo's score means something only if nothing of the held-out part was in the training part.

use std::{collections::HashSet, fs, path::PathBuf, process::Command};

use serde_json::Value;

fn demo() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../assets/demo")
}

fn rows(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(demo().join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn messages(row: &Value) -> Vec<(&str, &str)> {
    let messages = row["messages"].as_array().unwrap();
    messages.iter().map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap())).collect()
}

/// The values of `field` over all instances of `part`.
fn values(instances: &[Value], part: &str, field: &str) -> HashSet<String> {
    let of_part = instances.iter().filter(|instance| instance["part"] == part);
    of_part.map(|instance| instance.pointer(field).unwrap().to_string()).collect()
}

#[test]
fn train_and_held_out_share_no_template_instance() {
    let instances = rows("instances.jsonl");
    let (train, held_out) = (rows("train.jsonl"), rows("held-out.jsonl"));
    for (part, n) in [("train", train.len()), ("held-out", held_out.len())] {
        let of_part: Vec<_> = instances.iter().filter(|instance| instance["part"] == part).collect();
        assert_eq!(of_part.len(), n, "{part}: one instance for each example");
        assert!(of_part.iter().enumerate().all(|(i, instance)| instance["row"] == i + 1), "{part}: rows in order");
    }
    for field in ["/frame", "/slots"] {
        let (a, b) = (values(&instances, "train", field), values(&instances, "held-out", field));
        let shared: Vec<_> = a.intersection(&b).collect();
        assert!(shared.is_empty(), "{field} in both parts: {shared:?}");
    }
    let mut seen = HashSet::new();
    for row in train.iter().chain(&held_out) {
        assert!(seen.insert(messages(row)[1].1), "twice: {}", messages(row)[1].1);
    }
}

#[test]
fn no_person_of_the_held_out_part_is_named_in_training() {
    let names = |rows: &[Value]| -> HashSet<String> {
        let titles = ["Dr", "Mr", "Mrs", "Ms", "Prof"];
        let words = rows.iter().flat_map(|row| {
            let answer: Value = serde_json::from_str(messages(row)[2].1).unwrap();
            let who = answer["who"].as_str().unwrap().to_owned();
            who.split(' ').map(str::to_owned).collect::<Vec<_>>()
        });
        words.filter(|word| !titles.contains(&word.as_str())).collect()
    };
    let (train, held_out) = (names(&rows("train.jsonl")), names(&rows("held-out.jsonl")));
    assert!(train.is_disjoint(&held_out), "{:?}", train.intersection(&held_out));
}

#[test]
fn every_answer_is_one_strict_line_of_json_and_copies_the_person() {
    for row in rows("train.jsonl").iter().chain(&rows("held-out.jsonl")) {
        let [(system, _), (user, sentence), (assistant, answer)] = messages(row)[..] else { panic!("{row}") };
        assert_eq!((system, user, assistant), ("system", "user", "assistant"));
        let value: Value = serde_json::from_str(answer).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), answer, "compact, keys in order");
        let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["task", "who", "day", "time", "remind"]);
        assert!(sentence.contains(value["who"].as_str().unwrap()), "{sentence} -> {answer}");
        let (hour, minute) = value["time"].as_str().unwrap().split_once(':').unwrap();
        assert!(hour.parse::<u32>().unwrap() < 24 && minute.parse::<u32>().unwrap() < 60, "{answer}");
    }
}

#[test]
fn the_files_are_what_their_generator_writes() {
    let generator = demo().join("make.py");
    let python = if cfg!(windows) { "python" } else { "python3" };
    let output = Command::new(python).arg(generator).arg("--check").output().expect("Python 3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
