//! Gives every command of the window its own permission, so that the capability lists exactly what the page may call.

#![allow(clippy::print_stderr)] // how a build script says why it failed

use tauri_build::{AppManifest, Attributes};

const COMMANDS: &[&str] = &[
    "card_table",
    "close_stream",
    "control_run",
    "defaults",
    "delete_card",
    "delete_preset",
    "export_card",
    "export_run",
    "fetch_gpu_libraries",
    "govern_run",
    "gpu_setup",
    "hardware",
    "import_card",
    "inspect",
    "inspect_model",
    "largest",
    "list_presets",
    "model_fits",
    "open_chat",
    "open_path",
    "pick_path",
    "plan",
    "profiles",
    "resume_run",
    "reveal_path",
    "run_curve",
    "run_files",
    "runs",
    "save_card",
    "save_preset",
    "send_chat",
    "start_run",
    "watch_drops",
    "watch_run",
    "write_report",
];

fn main() {
    let attributes = Attributes::new().app_manifest(AppManifest::new().commands(COMMANDS));
    if let Err(error) = tauri_build::try_build(attributes) {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}
