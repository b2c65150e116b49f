//! What the page may call. Each command asks the engine, reads a run folder or opens something; none decides anything.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use hearth_engine::config::{GovernorConfig, RunConfig, Settings};
use hearth_engine::data::DataStats;
use hearth_engine::error::Explain;
use hearth_engine::event::{EventLine, TrainEvent};
use hearth_engine::gpu_setup::GpuSetup;
use hearth_engine::hardware::Hardware;
use hearth_engine::model::ModelShape;
use hearth_engine::plan::{self, Plan};
use hearth_engine::run::{self, Inspection, RunFolder, RunSummary};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tauri::async_runtime::spawn_blocking;
use tauri::ipc::Channel;
use tauri::{AppHandle, State};
use tauri_plugin_dialog::DialogExt;
use tauri_plugin_opener::OpenerExt;

use crate::drops::{Drop, Drops};
use crate::engine::{self, Answer};
use crate::streams::{Message, Sink, Streams};

/// The demo's examples and settings travel in the program, so that they are there wherever it is installed.
const DEMO_DATA: &[u8] = include_bytes!("../../assets/demo/train.jsonl");
const DEMO_CONFIG: &str = include_str!("../../assets/demo/config.json");
/// Where the demo's model is fetched to, below the user's cache folder.
const DEMO_MODEL: [&str; 4] = ["hearth", "models", "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1.gguf"];
/// With this example a model is asked what it makes of a turn.
const PROBE: &[u8] = br#"{"messages":[{"role":"user","content":"What is a hearth?"},{"role":"assistant","content":"The place in a house where the fire burns."}]}
"#;
/// Exports of one kind of one run in one folder; more than anybody makes.
const MOST_EXPORTS: u32 = 1000;
/// Points of a small curve.
const CURVE_POINTS: usize = 120;

/// Work that waits for a process or a disk, away from the window's own thread.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> Answer<T> + Send + 'static) -> Answer<T> {
    spawn_blocking(work).await.map_err(|e| engine::error("window.internal", e.to_string(), "Try again."))?
}

fn io(what: &str, path: &Path, e: &std::io::Error) -> hearth_engine::error::ErrorReport {
    let message = format!("{what} {}: {e}", path.display());
    engine::error("window.io", message, "Check that the folder exists and can be written.")
}

/// On Linux a second start is noticed over the session bus; without one there is nobody to ask.
pub(crate) fn has_session_bus() -> bool {
    cfg!(not(target_os = "linux")) || env::var_os("DBUS_SESSION_BUS_ADDRESS").is_some_and(|value| !value.is_empty())
}

// ---- places ----

/// What is known before anything is chosen.
#[derive(Debug, Serialize)]
pub(crate) struct Defaults {
    bundled_model: Option<PathBuf>,
    demo_data: Option<PathBuf>,
    demo_config: Option<RunConfig>,
    export_dir: PathBuf,
    runs_dir: PathBuf,
    /// Run named on the command line, `--run ID`.
    open_run: Option<String>,
    version: &'static str,
}

#[tauri::command]
pub(crate) async fn defaults() -> Answer<Defaults> {
    aside(|| {
        let runs_dir = run::runs_dir();
        let home = runs_dir.parent().map(Path::to_path_buf).unwrap_or_default();
        let cached = dirs::cache_dir().map(|cache| DEMO_MODEL.iter().fold(cache, |path, part| path.join(part)));
        let moved = env::var_os("HEARTH_HOME").is_some_and(|value| !value.is_empty());
        let documents = dirs::document_dir().or_else(dirs::home_dir).map(|path| path.join("Hearth"));
        Ok(Defaults {
            bundled_model: cached.filter(|path| path.is_file()),
            demo_data: engine::keep_file(&home.join("demo"), "train.jsonl", DEMO_DATA).ok(),
            demo_config: serde_json::from_str(DEMO_CONFIG).ok(),
            export_dir: documents.filter(|_| !moved).unwrap_or_else(|| home.join("exports")),
            runs_dir,
            open_run: named_run(env::args()),
            version: env!("CARGO_PKG_VERSION"),
        })
    })
    .await
}

fn named_run(mut arguments: impl Iterator<Item = String>) -> Option<String> {
    arguments.find(|argument| argument == "--run")?;
    arguments.next()
}

// ---- the six steps ----

#[tauri::command]
pub(crate) async fn hardware() -> Answer<Hardware> {
    aside(|| engine::ask(engine::command(["hardware"])?, None)).await
}

/// Whether runs can train on the card, and what is missing. `thorough` reads every library, which takes seconds.
#[tauri::command]
pub(crate) async fn gpu_setup(thorough: bool) -> Answer<GpuSetup> {
    aside(move || {
        let quick = (!thorough).then_some("--quick");
        engine::ask(engine::command(["setup-gpu", "--check"].into_iter().chain(quick))?, None)
    })
    .await
}

/// From where NVIDIA's libraries are fetched; the Python package index where neither is given.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct GpuOrigin {
    /// Address below which a mirror of the index has its files.
    mirror: Option<String>,
    /// Folder with the packages.
    folder: Option<PathBuf>,
}

impl GpuOrigin {
    fn arguments(self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["setup-gpu".into()];
        if let Some(folder) = self.folder {
            arguments.extend(["--from".into(), folder.into()]);
        } else if let Some(mirror) = self.mirror {
            arguments.extend(["--mirror".into(), mirror.into()]);
        }
        arguments
    }
}

/// Fetches NVIDIA's libraries. Lines are `{"progress": GpuSetupProgress}` and at the end a `GpuSetup`. Closing the stream ends the
/// download; what was fetched is kept, and the next call goes on behind it.
#[tauri::command]
pub(crate) fn fetch_gpu_libraries(
    streams: State<'_, Streams>,
    origin: GpuOrigin,
    channel: Channel<Message>,
) -> Answer<u32> {
    streams.start(engine::command(origin.arguments())?, sink(channel))
}

/// Which examples of which file, through which model.
#[derive(Debug, Deserialize)]
pub(crate) struct InspectRequest {
    data: PathBuf,
    model: PathBuf,
    length: Option<usize>,
    from: usize,
    limit: usize,
}

impl InspectRequest {
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["inspect".into(), self.data.clone().into()];
        arguments.extend(["--model".into(), self.model.clone().into()]);
        if let Some(length) = self.length {
            arguments.extend(["--length".into(), length.to_string().into()]);
        }
        arguments.extend(["--from".into(), self.from.to_string().into()]);
        arguments.extend(["--limit".into(), self.limit.to_string().into()]);
        arguments
    }
}

#[tauri::command]
pub(crate) async fn inspect(request: InspectRequest) -> Answer<Inspection> {
    aside(move || engine::ask(engine::command(request.arguments())?, None)).await
}

/// What a model is, found by showing it one example: its shape, its tokenizer, its template, or why it is refused.
#[tauri::command]
pub(crate) async fn inspect_model(model: PathBuf) -> Answer<Inspection> {
    aside(move || {
        let folder = env::temp_dir().join("hearth-window");
        let data = engine::keep_file(&folder, "probe.jsonl", PROBE).map_err(|e| io("writing into", &folder, &e))?;
        let request = InspectRequest { data, model, length: None, from: 1, limit: 1 };
        engine::ask(engine::command(request.arguments())?, None)
    })
    .await
}

/// Everything a plan follows from; all of it values, so every slider is answered without a process.
#[derive(Debug, Deserialize)]
pub(crate) struct PlanRequest {
    pub(crate) config: RunConfig,
    pub(crate) shape: ModelShape,
    pub(crate) stats: DataStats,
    pub(crate) hardware: Hardware,
}

/// The plan, or its outline: what other choices would do is most of the work and of the answer.
#[tauri::command]
pub(crate) async fn plan(request: PlanRequest, outline: bool) -> Answer<Plan> {
    aside(move || {
        let PlanRequest { config, shape, stats, hardware } = request;
        let plan = if outline { plan::outline } else { plan::plan };
        plan(&shape, &stats, &config, &hardware).map_err(|e| e.report())
    })
    .await
}

// ---- runs ----

/// A run that was started and goes on without the window.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    run_id: String,
    path: PathBuf,
}

#[tauri::command]
pub(crate) async fn start_run(config: RunConfig) -> Answer<Started> {
    aside(move || {
        let config = serde_json::to_vec(&config).map_err(|e| engine::error("window.internal", e.to_string(), ""))?;
        engine::ask(engine::command(["train", "--config", "-", "--detach"])?, Some(&config))
    })
    .await
}

#[tauri::command]
pub(crate) async fn resume_run(run: String) -> Answer<()> {
    aside(move || engine::ask::<Value>(engine::command(["resume", &run, "--detach"])?, None).map(drop)).await
}

/// What a run can be asked while it lives.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Control {
    Pause,
    Continue,
    Stop,
}

#[tauri::command]
pub(crate) async fn control_run(run: String, action: Control) -> Answer<()> {
    let action = match action {
        Control::Pause => "pause",
        Control::Continue => "continue",
        Control::Stop => "stop",
    };
    aside(move || engine::ask::<Value>(engine::command([action, &run])?, None).map(drop)).await
}

/// When a run rests or pauses by itself from now on.
#[derive(Debug, Deserialize)]
pub(crate) struct Limits {
    /// 0 leaves heat to the driver.
    temperature_limit_c: f64,
    power_limit_w: Option<f64>,
    quiet_hours: Option<String>,
    yield_to_others: bool,
}

impl Limits {
    fn arguments(&self, run: &str) -> Vec<OsString> {
        let power = self.power_limit_w.unwrap_or(0.0).to_string();
        let quiet = self.quiet_hours.as_deref().unwrap_or("none");
        let heat = self.temperature_limit_c.to_string();
        let yields = self.yield_to_others.to_string();
        let flags = [
            ("--temperature-limit", heat.as_str()),
            ("--power-limit", &power),
            ("--quiet-hours", quiet),
            ("--yield-to-others", &yields),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag, value]);
        ["govern", run].into_iter().chain(flags).map(Into::into).collect()
    }
}

#[tauri::command]
pub(crate) async fn govern_run(run: String, limits: Limits) -> Answer<()> {
    aside(move || engine::ask::<Value>(engine::command(limits.arguments(&run))?, None).map(drop)).await
}

#[tauri::command]
pub(crate) async fn runs() -> Answer<Vec<RunSummary>> {
    aside(|| engine::ask(engine::command(["runs"])?, None)).await
}

/// What a run folder says besides its events. Parts that are not there yet are absent.
#[derive(Debug, Serialize)]
pub(crate) struct RunFiles {
    plan: Option<Plan>,
    config: Option<RunConfig>,
    settings: Option<Settings>,
    /// When it rests or pauses by itself now, which may be other than at its start.
    limits: Option<GovernorConfig>,
}

#[tauri::command]
pub(crate) async fn run_files(run: String) -> Answer<RunFiles> {
    aside(move || {
        let folder = RunFolder::find(&run::runs_dir(), &run).map_err(|e| e.report())?;
        let (config, settings) = folder.record().ok().map(|record| (record.given, record.resolved)).unzip();
        Ok(RunFiles { plan: folder.plan().ok(), config, settings, limits: folder.governor().ok() })
    })
    .await
}

/// The loss of a run in at most [`CURVE_POINTS`] points; `null` is NaN.
#[tauri::command]
pub(crate) async fn run_curve(run: String) -> Answer<Vec<Option<f64>>> {
    aside(move || {
        let folder = RunFolder::find(&run::runs_dir(), &run).map_err(|e| e.report())?;
        let path = folder.path().join("events.jsonl");
        let text = std::fs::read_to_string(&path).map_err(|e| io("reading", &path, &e))?;
        // Steps taken again after a resume replace those taken first.
        let mut losses = BTreeMap::new();
        for line in text.lines().filter_map(|line| serde_json::from_str::<EventLine>(line).ok()) {
            if let TrainEvent::Step { step, loss, .. } = line.event {
                losses.insert(step, loss);
            }
        }
        Ok(thinned(&losses.into_values().collect::<Vec<_>>(), CURVE_POINTS))
    })
    .await
}

/// At most `n` points, each the mean of its part.
fn thinned(values: &[f64], n: usize) -> Vec<Option<f64>> {
    let parts = n.min(values.len());
    let part = |i: usize| &values[i * values.len() / parts..(i + 1) * values.len() / parts];
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    (0..parts).map(|i| Some(mean(part(i))).filter(|mean| mean.is_finite())).collect()
}

// ---- streams ----

fn sink(channel: Channel<Message>) -> Sink {
    // A page that is gone is told nothing; its streams are ended when the next one loads.
    Box::new(move |message| drop(channel.send(message)))
}

#[tauri::command]
pub(crate) fn watch_run(streams: State<'_, Streams>, run: String, channel: Channel<Message>) -> Answer<u32> {
    streams.start(engine::command(["watch", &run])?, sink(channel))
}

#[tauri::command]
pub(crate) fn open_chat(
    streams: State<'_, Streams>,
    model: PathBuf,
    run: Option<String>,
    channel: Channel<Message>,
) -> Answer<u32> {
    let mut arguments: Vec<OsString> = vec!["chat".into(), "--model".into(), model.into()];
    if let Some(run) = run {
        arguments.extend(["--run".into(), run.into()]);
    }
    streams.start(engine::command(arguments)?, sink(channel))
}

#[tauri::command]
pub(crate) fn send_chat(streams: State<'_, Streams>, id: u32, request: Value) -> Answer<()> {
    // serde_json writes one line, whatever the text holds.
    streams.send(id, &request.to_string())
}

/// What is exported, and into which folder.
#[derive(Debug, Deserialize)]
pub(crate) struct ExportRequest {
    run: String,
    kind: String,
    folder: PathBuf,
    dtype: Option<String>,
}

impl ExportRequest {
    /// A folder of its own inside the chosen one, `<run>-merged`; an earlier export is left as it is.
    fn out(&self) -> PathBuf {
        let name = format!("{}-{}", self.run, self.kind);
        let mut out = self.folder.join(&name);
        for n in 2.. {
            let is_free =
                std::fs::read_dir(&out).map_or_else(|e| e.kind() == ErrorKind::NotFound, |mut e| e.next().is_none());
            if is_free || n > MOST_EXPORTS {
                break;
            }
            out = self.folder.join(format!("{name}-{n}"));
        }
        out
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["export".into(), self.run.clone().into()];
        arguments.extend(["--kind".into(), self.kind.clone().into(), "--out".into(), self.out().into()]);
        if let Some(dtype) = &self.dtype {
            arguments.extend(["--dtype".into(), dtype.into()]);
        }
        arguments
    }
}

#[tauri::command]
pub(crate) fn export_run(
    streams: State<'_, Streams>,
    request: ExportRequest,
    channel: Channel<Message>,
) -> Answer<u32> {
    streams.start(engine::command(request.arguments())?, sink(channel))
}

#[tauri::command]
pub(crate) fn close_stream(streams: State<'_, Streams>, id: u32) {
    streams.end(id);
}

/// Where the engine wrote something.
#[derive(Debug, Deserialize)]
struct Written {
    path: PathBuf,
}

/// Writes the report into the run folder, where the engine keeps it.
#[tauri::command]
pub(crate) async fn write_report(run: String) -> Answer<PathBuf> {
    aside(move || {
        let Written { path } = engine::ask(engine::command(["report", &run])?, None)?;
        Ok(path)
    })
    .await
}

// ---- the desktop ----

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PickKind {
    Data,
    Gguf,
    Folder,
}

/// Asks for a path in the system's dialog; nothing where it was dismissed.
#[tauri::command]
pub(crate) async fn pick_path(app: AppHandle, kind: PickKind) -> Answer<Option<PathBuf>> {
    let dialog = app.dialog().file();
    let picked = aside(move || {
        Ok(match kind {
            PickKind::Data => dialog
                .add_filter("JSONL, JSON, CSV, TXT", &["jsonl", "json", "ndjson", "csv", "tsv", "txt"])
                .add_filter("*", &["*"])
                .blocking_pick_file(),
            PickKind::Gguf => dialog.add_filter("GGUF", &["gguf"]).add_filter("*", &["*"]).blocking_pick_file(),
            PickKind::Folder => dialog.blocking_pick_folder(),
        })
    })
    .await?;
    Ok(picked.and_then(|path| path.into_path().ok()))
}

#[tauri::command]
pub(crate) fn watch_drops(drops: State<'_, Drops>, channel: Channel<Drop>) {
    drops.listen(channel);
}

/// Shows a file or folder in the system's file manager.
#[tauri::command]
pub(crate) async fn reveal_path(app: AppHandle, path: PathBuf) -> Answer<()> {
    let folder = path.is_dir();
    aside(move || {
        let opener = app.opener();
        let shown = if folder {
            opener.open_path(path.to_string_lossy(), None::<&str>)
        } else {
            opener.reveal_item_in_dir(&path)
        };
        shown.map_err(|e| engine::error("window.open", format!("{} cannot be shown: {e}", path.display()), ""))
    })
    .await
}

/// Opens a report in the system's browser. Nothing else: the page cannot make the window open a program.
#[tauri::command]
pub(crate) async fn open_path(app: AppHandle, path: PathBuf) -> Answer<()> {
    aside(move || {
        if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("html")) {
            return Err(engine::error("window.open", format!("{} is not a report", path.display()), ""));
        }
        app.opener()
            .open_path(path.to_string_lossy(), None::<&str>)
            .map_err(|e| engine::error("window.open", format!("{} cannot be opened: {e}", path.display()), ""))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_keeps_its_ends_and_its_holes() {
        assert!(thinned(&[], 5).is_empty());
        assert_eq!(thinned(&[1.0, 2.0], 5), [Some(1.0), Some(2.0)]);
        assert_eq!(thinned(&[1.0, 3.0, f64::NAN, 5.0], 2), [Some(2.0), None]);
        assert_eq!(thinned(&vec![1.0; 1001], 120).len(), 120);
    }

    #[test]
    fn a_run_is_named_on_the_command_line() {
        let arguments = |text: &str| named_run(text.split(' ').map(str::to_string).collect::<Vec<_>>().into_iter());
        assert_eq!(arguments("hearth-studio --run demo-1").as_deref(), Some("demo-1"));
        assert_eq!(arguments("hearth-studio --run"), None);
        assert_eq!(arguments("hearth-studio"), None);
    }

    #[test]
    fn limits_that_are_none_are_said_to_be_none() {
        let limits =
            |json: &str| serde_json::from_str::<Limits>(json).expect("limits").arguments("r-1").join(" ".as_ref());
        let none =
            r#"{"temperature_limit_c": 0, "power_limit_w": null, "quiet_hours": null, "yield_to_others": false}"#;
        let said = "govern r-1 --temperature-limit 0 --power-limit 0 --quiet-hours none --yield-to-others false";
        assert_eq!(limits(none), said);
        let some = r#"{"temperature_limit_c": 80.5, "power_limit_w": 140, "quiet_hours": "22:00-07:00",
                       "yield_to_others": true, "yield_bytes": 5}"#;
        let said =
            "govern r-1 --temperature-limit 80.5 --power-limit 140 --quiet-hours 22:00-07:00 --yield-to-others true";
        assert_eq!(limits(some), said);
    }

    #[test]
    fn libraries_come_from_the_index_a_mirror_or_a_folder() {
        let arguments = |json: &str| serde_json::from_str::<GpuOrigin>(json).expect("an origin").arguments();
        assert_eq!(arguments("{}"), ["setup-gpu"]);
        assert_eq!(arguments(r#"{"mirror": "https://a/b", "folder": null}"#), ["setup-gpu", "--mirror", "https://a/b"]);
        assert_eq!(arguments(r#"{"folder": "/下载 1"}"#), ["setup-gpu", "--from", "/下载 1"]);
    }

    #[test]
    fn the_demo_configuration_is_one_the_engine_understands() {
        let config: RunConfig = serde_json::from_str(DEMO_CONFIG).expect("config.json of the demo");
        assert!(config.epochs.is_some() || config.max_steps.is_some());
    }

    #[test]
    fn every_command_has_its_permission_and_the_page_may_call_nothing_else() {
        let capability: Value = serde_json::from_str(include_str!("../capabilities/main.json")).expect("capability");
        let granted: Vec<&str> =
            capability["permissions"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
        let main = include_str!("main.rs");
        let mut commands: Vec<String> = main
            .lines()
            .filter_map(|line| line.trim().strip_suffix(',')?.split_once("::"))
            .filter(|(module, _)| ["cards", "commands", "models", "presets"].contains(module))
            .map(|(_, name)| format!("allow-{}", name.replace('_', "-")))
            .collect();
        commands.sort();
        assert_eq!(granted, commands);
    }

    #[test]
    fn an_export_goes_into_a_folder_of_its_own_and_never_over_an_earlier_one() {
        let folder = tempfile::Builder::new().prefix("a b 导出").tempdir().expect("folder");
        let kind = "merged".to_string();
        let request =
            ExportRequest { run: "r-1".into(), kind, folder: folder.path().into(), dtype: Some("f16".into()) };
        let first = folder.path().join("r-1-merged");
        assert_eq!(request.out(), first);
        assert!(request.arguments().contains(&first.clone().into_os_string()));
        std::fs::create_dir(&first).expect("made");
        assert_eq!(request.out(), first, "an empty folder is free");
        std::fs::write(first.join("config.json"), "{}").expect("written");
        assert_eq!(request.out(), folder.path().join("r-1-merged-2"));
    }
}
