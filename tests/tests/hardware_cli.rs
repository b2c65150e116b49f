//! `hearth hardware`, and a described computer in place of the one that is here.

use std::fs;
use std::path::{Path, PathBuf};

use hearth_engine::hardware::{Hardware, TrainOn};
use hearth_tests::hearth::{Said, hearth};
use hearth_tests::tiny_model::{self, write_examples};

/// A folder with a described computer: an RTX 4090 whose driver is too old and whose slot has too few lanes.
fn described() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("我的 Hearth 🔥").tempdir().expect("folder");
    let said = Said::by(hearth(&folder.path().join("runs")).args(["hardware", "--json"]));
    let mut hardware: Hardware = serde_json::from_value(said.json_lines().remove(0)).expect("hardware");
    hardware.cards = hearth_engine::hardware::profile("rtx-4090-24gb").expect("bundled").hardware().cards;
    hardware.train_on = TrainOn::Card;
    let card = &mut hardware.cards[0];
    card.driver = Some("550.120".into());
    card.link = Some("PCIe 1.0 x4").and_then(hearth_engine::hardware::PcieLink::parse);
    let path = folder.path().join("a computer.json");
    fs::write(&path, serde_json::to_string(&hardware).expect("json")).expect("written");
    (folder, path)
}

fn say(folder: &Path, hardware: &Path, args: &[&str]) -> Said {
    Said::by(hearth(&folder.join("runs")).current_dir(folder).env("HEARTH_HARDWARE", hardware).args(args))
}

#[test]
fn a_described_computer_is_shown_with_what_is_worth_knowing() {
    let (folder, path) = described();
    let said = say(folder.path(), &path, &["hardware"]);
    assert_eq!(said.exit, Some(0), "{said:?}");
    for words in
        ["a computer.json", "NVIDIA GeForce RTX 4090", "PCIe 4.0 x4 of x16", "550.120 is too old", "4 of its 16"]
    {
        assert!(said.out.contains(words), "{words}: {}", said.out);
    }
    let said = say(folder.path(), &path, &["hardware", "--json"]);
    let again: Hardware = serde_json::from_value(said.json_lines().remove(0)).expect("hardware");
    let codes: Vec<_> = again.advice.iter().map(|advice| advice.code.as_str()).collect();
    assert_eq!(codes, ["hardware.old_driver", "hardware.narrow_link"]);
}

#[test]
fn a_described_card_is_planned_for_and_training_on_it_is_refused_in_a_sentence() {
    let (folder, path) = described();
    let asked = ["plan", "--model", "llama-3.1-8b", "--length", "1024", "--json"];
    let said = say(folder.path(), &path, &asked);
    assert_eq!(said.exit, Some(0), "{said:?}");
    assert!(said.out.contains("RTX 4090"), "{said:?}");

    let (model, data) = (folder.path().join("model"), folder.path().join("data.jsonl"));
    tiny_model::write(&model, 1).expect("written");
    write_examples(&data, 40);
    let said = say(folder.path(), &path, &["train", "--json", "--model", "model", "--data", "data.jsonl"]);
    assert_ne!(said.exit, Some(0), "{said:?}");
    let error = said.error();
    assert_eq!(error["code"], "hardware.not_here", "{said:?}");
    let message = error["message"].as_str().expect("words");
    assert!(message.contains("RTX 4090") && message.contains("a computer.json"), "{message}");
    assert!(!folder.path().join("runs").exists(), "nothing was written");
}

#[test]
fn a_file_that_describes_nothing_is_refused_by_every_command_that_asks() {
    let (folder, _) = described();
    let path = folder.path().join("empty.json");
    fs::write(&path, "{}").expect("written");
    for args in [vec!["hardware"], vec!["plan", "--model", "llama-3.1-8b", "--length", "1024"]] {
        let said = say(folder.path(), &path, &args);
        assert_eq!(said.exit, Some(3), "{said:?}");
        assert!(said.err.contains("empty.json"), "{said:?}");
    }
}

#[test]
fn the_disk_is_measured_when_asked_and_left_as_it_was() {
    let folder = tempfile::tempdir().expect("folder");
    let speeds = |args: &[&str]| {
        let said = Said::by(hearth(&folder.path().join("runs")).args(args));
        let hardware: Hardware = serde_json::from_value(said.json_lines().remove(0)).expect("hardware");
        hardware.disks.iter().filter_map(|disk| disk.write_bytes_per_s).collect::<Vec<_>>()
    };
    assert_eq!(speeds(&["hardware", "--json"]), Vec::<f64>::new());
    let measured = speeds(&["hardware", "--json", "--disk"]);
    // A disk that no list of mounts names has no place for the figure.
    assert!(measured.len() <= 1 && measured.iter().all(|&speed| speed > 0.0), "{measured:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
}
