//! `hearth` where there is no driver, and `hearth setup-gpu`, as a person or the window runs them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;

use hearth_engine::gpu_setup::{GpuPackage, GpuPackageState, GpuSetup, GpuSetupReason};
use hearth_engine::hardware::{HARDWARE_FILE, Hardware, TrainOn};
use hearth_tests::hearth::{Said, hearth};
use hearth_tests::tiny_model::{self, write_examples};

fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("我的 Hearth 🔥 ").tempdir().unwrap()
}

/// `hearth` that finds no program of a driver, and whose own folder is `home`.
fn without_driver(home: &Path) -> Command {
    let mut command = hearth(&home.join("runs"));
    command.env("PATH", home).env("HEARTH_HOME", home).env_remove("HEARTH_ENGINE").env_remove(HARDWARE_FILE);
    command
}

/// What `hearth` finds here with that environment, by its own word.
fn found(home: &Path) -> Hardware {
    let said = Said::by(without_driver(home).args(["hardware", "--json"]));
    assert_eq!(said.exit, Some(0), "{said:?}");
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

#[test]
fn without_a_driver_hearth_says_so_and_trains_on_the_processor() {
    let home = scratch();
    let hardware = found(home.path());
    tiny_model::write(&home.path().join("model"), 1).unwrap();
    write_examples(&home.path().join("data.jsonl"), 40);
    let mut command = without_driver(home.path());
    let why = match hardware.card_report {
        _ if !hardware.cards.is_empty() => {
            eprintln!("this machine has a card and a driver: it is told to leave the card alone");
            command.env("HEARTH_ENGINE", "processor");
            "HEARTH_ENGINE is set to processor".to_string()
        }
        Some(report) => report.message.trim_end_matches('.').to_string(),
        None => panic!("the search for cards says nothing: {hardware:?}"),
    };
    command.current_dir(home.path());
    command.args(["train", "--model", "model", "--data", "data.jsonl", "--max-steps", "2", "--length", "128"]);
    let said = Said::by(&mut command);
    assert_eq!(said.exit, Some(0), "{said:?}");
    assert!(said.out.contains(&format!("Trains on the processor: {why}.\n")), "{why}: {said:?}");
    assert!(said.out.contains("Finished after 2 steps"), "{said:?}");

    let said = Said::by(without_driver(home.path()).arg("hardware"));
    assert!(said.out.contains("Runs train on the processor: "), "{said:?}");
}

/// A folder's `hearth`, with a `hearth-cuda` beside it that does what `script` says.
#[cfg(unix)]
fn installation(folder: &Path, script: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;

    use hearth_tests::hearth::binary;
    let program = folder.join("hearth");
    if !program.exists() && fs::hard_link(binary(), &program).is_err() {
        fs::copy(binary(), &program).unwrap();
    }
    let other = folder.join("hearth-cuda");
    fs::write(&other, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
#[cfg(unix)]
fn every_reason_is_said_for_a_described_computer() {
    use hearth_engine::hardware::profile;

    let home = scratch();
    let file = home.path().join("computer.json");
    let program = installation(home.path(), "exit 0");
    let say = |capability: &str, driver: &str| -> GpuSetup {
        let mut hardware = profile("rtx-3060-12gb").unwrap().hardware();
        hardware.cards[0].driver = Some(driver.into());
        hardware.cards[0].compute_capability = Some(capability.into());
        fs::write(&file, serde_json::to_string(&hardware).unwrap()).unwrap();
        let mut command = Command::new(&program);
        command.env("HEARTH_HOME", home.path()).env("PATH", home.path()).env(HARDWARE_FILE, &file);
        let said = Said::by(command.env_remove("HEARTH_ENGINE").args(["setup-gpu", "--check", "--json"]));
        assert_eq!(said.exit, Some(0), "{said:?}");
        serde_json::from_value(said.json_lines()[0].clone()).unwrap_or_else(|e| panic!("{e}: {said:?}"))
    };
    let old = say("8.6", "550.120");
    assert_eq!(
        (old.reason, old.driver.as_deref(), old.least_driver),
        (GpuSetupReason::OldDriver, Some("550.120"), 580)
    );
    assert_eq!(old.message, "Runs train on the processor: driver 550.120 was found and 580 or newer is needed.");
    assert_eq!(say("7.0", "581.42").reason, GpuSetupReason::OldCard);

    let bare = say("8.6", "581.42");
    if missing(&bare).is_empty() {
        eprintln!("this machine has CUDA's libraries: none is missing");
        assert_eq!(bare.reason, GpuSetupReason::Ready);
    } else {
        assert_eq!(bare.reason, GpuSetupReason::NoLibraries);
        assert!(bare.message.contains("`hearth setup-gpu` fetches"), "{bare:?}");
    }

    fs::create_dir(home.path().join("lib")).unwrap();
    for name in bare.packages.iter().flat_map(|package| &package.libraries) {
        fs::write(home.path().join("lib").join(name), "").unwrap();
    }
    let ready = say("8.6", "581.42");
    assert_eq!((ready.reason, ready.train_on, ready.fetch_bytes), (GpuSetupReason::Ready, TrainOn::Card, 0));
    assert_eq!((ready.message.as_str(), ready.next_step.as_str()), ("Runs train on the card.", ""));

    installation(home.path(), "echo 'libcublas.so.13: cannot open shared object file' >&2; exit 127");
    let broken = say("8.6", "581.42");
    assert_eq!(broken.reason, GpuSetupReason::DoesNotStart);
    assert!(broken.message.contains("cannot open shared object file"), "{broken:?}");

    fs::remove_file(home.path().join("hearth-cuda")).unwrap();
    assert_eq!(say("8.6", "581.42").reason, GpuSetupReason::NoEngine);
}

#[test]
#[cfg(unix)]
fn an_engine_for_cards_is_not_started_where_there_is_no_card() {
    let home = scratch();
    if !found(home.path()).cards.is_empty() {
        eprintln!("skipped: this machine has a card");
        return;
    }
    let program = installation(home.path(), ": > \"${0%/*}/started\"");
    let mut command = Command::new(&program);
    command.env("PATH", home.path()).env("HEARTH_HOME", home.path()).env_remove("HEARTH_ENGINE");
    command.env_remove(HARDWARE_FILE).arg("hardware");
    let said = Said::by(&mut command);
    assert_eq!(said.exit, Some(0), "{said:?}");
    assert!(said.out.contains("Runs train on the processor: "), "{said:?}");
    assert!(!home.path().join("started").exists());
}

/// The one document of `--check`.
fn check(home: &Path) -> GpuSetup {
    let said = Said::by(without_driver(home).args(["setup-gpu", "--check", "--json"]));
    assert_eq!(said.exit, Some(0), "{said:?}");
    let lines = said.json_lines();
    assert_eq!(lines.len(), 1, "{said:?}");
    serde_json::from_value(lines[0].clone()).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

fn missing(setup: &GpuSetup) -> Vec<&GpuPackage> {
    setup.packages.iter().filter(|package| package.state == GpuPackageState::Missing).collect()
}

#[test]
fn a_check_names_every_library_and_what_is_to_be_fetched_and_leaves_nothing() {
    let home = scratch();
    let setup = check(home.path());
    let hardware = found(home.path());
    // On a machine with a card, its driver or the libraries may be what is missing.
    assert_eq!(setup.reason == GpuSetupReason::NoCard, hardware.cards.is_empty(), "{setup:?}");
    assert_eq!(setup.card, hardware.cards.first().map(|card| card.name.clone()));
    assert_eq!(setup.train_on, TrainOn::Processor);
    assert!(setup.message.starts_with("Runs train on the processor: "), "{setup:?}");
    assert_eq!(setup.packages.len(), 2);
    assert_eq!(setup.fetch_bytes, missing(&setup).iter().map(|package| package.download_bytes).sum::<u64>());
    assert!(setup.licence.contains("End User License Agreement") && setup.licence_url.starts_with("https://"));
    let said = Said::by(without_driver(home.path()).args(["setup-gpu", "--check", "--quick"]));
    assert_eq!(said.exit, Some(0), "{said:?}");
    for library in setup.packages.iter().flat_map(|package| &package.libraries) {
        assert!(said.out.contains(library), "{library}: {said:?}");
    }
    assert!(said.out.contains(&setup.message), "{said:?}");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
}

/// True where a fetch has something to do and NVIDIA publishes for this platform.
fn can_fetch(setup: &GpuSetup) -> bool {
    if setup.folder.is_none() || missing(setup).is_empty() {
        eprintln!("skipped: the libraries are here already, or there are none for this platform");
        return false;
    }
    true
}

#[test]
fn a_fetch_that_cannot_succeed_ends_with_a_reason_and_a_next_step() {
    let home = scratch();
    let setup = check(home.path());
    if !can_fetch(&setup) {
        return;
    }
    // A mirror that has nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}/packages", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let request = lines.next().unwrap_or_default();
        assert!(lines.any(|line| line.is_empty()), "a whole request");
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        request
    });
    let said = Said::by(without_driver(home.path()).args(["setup-gpu", "--json", "--mirror", &mirror]));
    let request = server.join().unwrap();
    assert!(request.starts_with("GET /packages/") && request.contains(".whl "), "{request}");
    assert_eq!(said.exit, Some(3), "{said:?}");
    assert_eq!(said.error()["code"], "gpu.refused");
    assert!(said.error()["next_step"].to_string().contains("--mirror"), "{said:?}");
    let lines = said.json_lines();
    assert!(lines.iter().any(|line| line["progress"]["phase"] == "fetch"), "{said:?}");

    // A folder without the packages.
    let said = Said::by(without_driver(home.path()).args(["setup-gpu", "--json", "--from"]).arg(home.path()));
    assert_eq!((said.exit, said.error()["code"].as_str()), (Some(3), Some("gpu.not_in_folder")), "{said:?}");
    assert!(said.error()["message"].to_string().contains(".whl is not in "), "{said:?}");

    assert_eq!(missing(&check(home.path())).len(), missing(&setup).len());
}

#[test]
fn a_mirror_and_a_folder_at_once_are_a_wrong_command_line() {
    let home = scratch();
    let said =
        Said::by(without_driver(home.path()).args(["setup-gpu", "--from", ".", "--mirror", "http://127.0.0.1:1"]));
    assert_eq!(said.exit, Some(2), "{said:?}");
}
