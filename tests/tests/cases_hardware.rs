//! Real-world answers of `nvidia-smi`, from the shared cases beside the repository.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hearth_engine::hardware::{CardOutcome, CardProbe, Hardware, detect_with};

/// The case's folder, or a sentence why there is nothing to test.
fn case() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases/g02-driver-broken-or-absent");
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: {} is not there", folder.display());
    None
}

fn detect(program: PathBuf) -> Hardware {
    let hardware =
        detect_with(&CardProbe { libraries: vec![], programs: vec![program], limit: Duration::from_secs(2) });
    // Whatever the driver does, the computer itself is seen and the work goes on.
    assert!(hardware.processor.n_cores >= 1 && hardware.memory_available_bytes > 0);
    assert!(hardware.cards.is_empty());
    hardware
}

#[test]
fn each_broken_driver_has_its_own_plain_sentence() {
    let Some(case) = case() else { return };
    let expected = [
        ("bin-mismatch", CardOutcome::DriverMismatch, "550.144"),
        ("bin-no-driver", CardOutcome::NoDriver, "does not answer"),
        ("bin-no-devices", CardOutcome::NoDevices, "works but shows no GPU"),
        ("bin-garbage", CardOutcome::NoReport, "no usable GPU report"),
        ("bin-empty", CardOutcome::NoReport, "no usable GPU report"),
        ("bin-that-is-not-there", CardOutcome::Absent, "No NVIDIA GPU found."),
    ];
    for (folder, outcome, words) in expected {
        let report = detect(case.join(folder).join("nvidia-smi")).card_report.expect("looked");
        assert_eq!(report.outcome, outcome, "{folder}: {}", report.message);
        assert!(report.message.contains(words), "{folder}: {}", report.message);
        assert!(report.next_step.contains("processor"), "{folder}: {}", report.next_step);
    }
    let mismatch = detect(case.join("bin-mismatch/nvidia-smi")).card_report.expect("looked");
    assert!(mismatch.next_step.contains("restart"), "{}", mismatch.next_step);
}

#[test]
fn a_driver_that_hangs_is_given_up_and_leaves_no_process() {
    let Some(case) = case() else { return };
    let program = case.join("bin-hangs/nvidia-smi");
    let started = Instant::now();
    let report = detect(program).card_report.expect("looked");
    assert_eq!(report.outcome, CardOutcome::TimedOut);
    assert!(report.message.contains("within 2 seconds"), "{}", report.message);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    if cfg!(target_os = "linux") {
        assert_eq!(children(), Vec::<String>::new());
    }
}

/// Command lines of this process's children that sleep, from /proc.
fn children() -> Vec<String> {
    let me = format!(" {} ", std::process::id());
    let processes = std::fs::read_dir("/proc").expect("proc").flatten();
    processes
        .filter_map(|process| {
            let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
            let (_, after_name) = stat.rsplit_once(") ")?;
            // state, then the parent's id
            let is_child = after_name[1..].starts_with(&me);
            let command = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
            (is_child && command.contains("sleep")).then_some(command)
        })
        .collect()
}
