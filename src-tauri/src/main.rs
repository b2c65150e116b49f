//! Hearth's window. It never trains: it starts the engine as a child process, speaks JSON lines with it, and shows what
//! it says. Closing the window ends the conversation, never a run.

#![cfg_attr(not(debug_assertions), windows_subsystem = "windows")]

mod cards;
mod commands;
mod drops;
mod engine;
mod models;
mod presets;
mod streams;

use std::fs;
use std::process::ExitCode;

use hearth_engine::run;
use tauri::webview::PageLoadEvent;
use tauri::{App, Manager, RunEvent, WebviewWindowBuilder};

use crate::streams::Streams;

fn main() -> ExitCode {
    let mut builder = tauri::Builder::default();
    if commands::has_session_bus() {
        // First, so that a second start only brings the window that is there to the front.
        builder = builder.plugin(tauri_plugin_single_instance::init(|app, _arguments, _folder| {
            if let Some(window) = app.get_webview_window("main") {
                let _ = window.unminimize();
                let _ = window.set_focus();
            }
        }));
    }
    let app = builder
        .plugin(tauri_plugin_dialog::init())
        .plugin(tauri_plugin_opener::init())
        .setup(|app| Ok(open_window(app)?))
        .manage(Streams::default())
        .manage(drops::Drops::default())
        .on_page_load(|webview, payload| {
            // A page that is loaded anew knows nothing of the streams of the one before.
            if matches!(payload.event(), PageLoadEvent::Started) {
                webview.state::<Streams>().end_all();
            }
        })
        .on_window_event(drops::on_window_event)
        .invoke_handler(tauri::generate_handler![
            cards::delete_card,
            cards::export_card,
            cards::import_card,
            cards::profiles,
            cards::save_card,
            commands::close_stream,
            commands::control_run,
            commands::defaults,
            commands::export_run,
            commands::fetch_gpu_libraries,
            commands::govern_run,
            commands::gpu_setup,
            commands::hardware,
            commands::inspect,
            commands::inspect_model,
            commands::open_chat,
            commands::open_path,
            commands::pick_path,
            commands::plan,
            commands::resume_run,
            commands::reveal_path,
            commands::run_curve,
            commands::run_files,
            commands::runs,
            commands::send_chat,
            commands::start_run,
            commands::watch_drops,
            commands::watch_run,
            commands::write_report,
            models::card_table,
            models::largest,
            models::model_fits,
            presets::delete_preset,
            presets::list_presets,
            presets::save_preset,
        ])
        .build(tauri::generate_context!());
    let app = match app {
        Ok(app) => app,
        Err(error) => {
            report(&format!("The window cannot be opened: {error}"));
            return ExitCode::FAILURE;
        }
    };
    app.run(|app, event| {
        if matches!(event, RunEvent::Exit) {
            app.state::<Streams>().end_all();
        }
    });
    ExitCode::SUCCESS
}

/// The window of `tauri.conf.json`. What its page keeps lies with the runs, so that a moved `HEARTH_HOME` is whole; where
/// nothing can be written there, at the system's place for it, so that the window can say so.
fn open_window(app: &App) -> tauri::Result<()> {
    for window in &app.config().app.windows {
        let mut builder = WebviewWindowBuilder::from_config(app, window)?;
        let kept = run::home().join("window");
        if fs::create_dir_all(&kept).is_ok() {
            builder = builder.data_directory(kept);
        }
        builder.build()?;
    }
    Ok(())
}

/// There is no window to say it in.
#[allow(clippy::print_stderr)]
fn report(message: &str) {
    eprintln!("{message}");
}
