//! The real window: the whole job by pointing and clicking, a run that outlives its window, a plan for another card.
//!
//! Needs a display, WebKitWebDriver and the built programs; `cargo xtask test window` sees to all of them.

#![cfg(target_os = "linux")]

mod planning;
mod studio;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use candle_core::{DType, Device, Tensor};
use hearth_tests::tiny_model;
use serde_json::{Value, json};
use studio::{Driver, LATER, Outcome, SOON, Studio};

/// A home of its own, a tiny model and small data, all under a path with a space, Chinese and an emoji.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("hearth 窗口 🔥 ").tempdir()?;
        let bench = Self { folder };
        tiny_model::write(&bench.model(), 7)?;
        let lines = (0..48).map(|i| {
            let (a, b) = (i % 8, i / 8);
            let question = json!({ "role": "user", "content": format!("{a} plus {b}?") });
            let answer = json!({ "role": "assistant", "content": format!("{{\"sum\":{}}}", a + b) });
            json!({ "messages": [question, answer] }).to_string() + "\n"
        });
        fs::write(bench.data(), lines.collect::<String>())?;
        Ok(bench)
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("tiny model")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("加法.jsonl")
    }

    fn merged(&self) -> PathBuf {
        self.folder.path().join("merged 合并")
    }

    /// The only run's folder.
    fn run_folder(&self) -> Outcome<PathBuf> {
        let runs = self.home().join("runs");
        let entries = fs::read_dir(&runs).map_err(|error| format!("{}: {error}", runs.display()))?;
        // Beside them are the speeds that were measured here.
        let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
        let mut folders = paths.into_iter().filter(|path| path.is_dir());
        let only = folders.next().ok_or("no run folder")?;
        if folders.next().is_some() {
            return Err("more than one run folder".into());
        }
        Ok(only)
    }

    /// Steps done as the run's own events say.
    fn steps_done(&self) -> Outcome<u64> {
        let events = fs::read_to_string(self.run_folder()?.join("events.jsonl"))?;
        let parsed = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(parsed.filter(|event| event["type"] == "step").filter_map(|event| event["step"].as_u64()).max().unwrap_or(0))
    }
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("a path of this test is text")
}

/// From the first screen to a running run of `n_steps` steps.
async fn start_run(studio: &Studio, bench: &Bench, n_steps: u64) -> Outcome<()> {
    studio.click("step-card").await?;
    studio.wait("card-ready", SOON).await?;

    studio.click("step-model").await?;
    studio.type_into("model-path", path_text(&bench.model())).await?;
    studio.click("model-open").await?;
    studio.wait("model-ready", LATER).await?;

    studio.click("step-data").await?;
    studio.type_into("data-path", path_text(&bench.data())).await?;
    studio.click("data-open").await?;
    studio.wait("data-ready", LATER).await?;
    let n_examples = studio.number("data-examples", SOON, |n| n > 0).await?;
    if n_examples != 48 {
        return Err(format!("the file has 48 examples and the window says {n_examples}").into());
    }
    studio.wait("token-preview", SOON).await?;

    studio.click("step-plan").await?;
    studio.wait("plan-ready", LATER).await?;
    studio.type_into("run-name", "window test").await?;
    studio.type_into("setting-steps", &n_steps.to_string()).await?;
    // The plan that answers it, not the one that was there.
    studio.settled().await?;
    studio.value_is("setting-steps", &n_steps.to_string()).await?;
    studio.wait("memory-bar", SOON).await?;
    studio.click("plan-start").await
}

#[tokio::test]
#[ignore = "needs a display and WebKitWebDriver: cargo xtask test window"]
async fn the_whole_job_by_pointing_and_clicking_ends_with_a_proven_merged_folder() {
    whole_job().await.unwrap_or_else(|error| panic!("{error}"));
}

async fn whole_job() -> Outcome<()> {
    let bench = Bench::new()?;
    let driver = Driver::start(&bench.home())?;
    let (studio, ()) = driver.open().await?.run("whole-job", async |studio| do_whole_job(studio, &bench).await).await?;
    studio.close().await
}

async fn do_whole_job(studio: &Studio, bench: &Bench) -> Outcome<()> {
    const N_STEPS: u64 = 60;
    studio.wait_until("status-line", SOON, "said", async |line| Ok(!line.text().await?.is_empty())).await?;
    studio.screenshot("first").await?;
    start_run(studio, bench, N_STEPS).await?;
    studio.number("train-step", LATER, |step| step > 0).await?;
    studio.screenshot("training").await?;
    studio.wait("train-finished", LATER).await?;
    studio.number("train-step", SOON, |step| step == N_STEPS).await?;

    studio.click("train-use").await?;
    studio.type_into("chat-input", "3 plus 4?").await?;
    studio.click("chat-send").await?;
    for id in ["chat-base-0", "chat-tuned-0"] {
        studio.attribute_among(id, "data-done", &["true"], LATER).await?;
    }

    if !studio.wait("export-merged", SOON).await?.is_selected().await? {
        studio.click("export-merged").await?;
    }
    studio.type_into("export-folder", path_text(&bench.merged())).await?;
    studio.click("export-start").await?;
    let verdict = studio.attribute_among("proof-merged", "data-verdict", &["proven", "remarks", "not_proven"], LATER);
    let verdict = verdict.await?;
    let proof = check_merged(bench)?;
    if verdict == "not_proven" {
        return Err(format!("the merged model is not proven: {proof}").into());
    }
    screenshots_of_every_step(studio).await
}

/// The folder is a Hugging Face model with its proof, and its weights differ from the base's.
fn check_merged(bench: &Bench) -> Outcome<Value> {
    const Q: &str = "model.layers.0.self_attn.q_proj.weight";
    let folder = &bench.merged();
    // An export may make a folder of its own inside the chosen one.
    let is_model = |folder: &Path| folder.join("config.json").is_file();
    let inner =
        || fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path()).find(|path| is_model(path));
    let found = if is_model(folder) { Some(folder.to_owned()) } else { inner() };
    let found = found.ok_or_else(|| format!("no merged model in {}", folder.display()))?;
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        if !found.join(name).is_file() {
            return Err(format!("the merged folder has no {name}").into());
        }
    }
    let q = |folder: &Path| -> Outcome<Tensor> {
        let mut tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu)?;
        tensors.remove(Q).ok_or_else(|| format!("{} has no {Q}", folder.display()).into())
    };
    let merged = q(&found)?;
    // The base's, rounded as the export is: else rounding alone would be a difference.
    let base = q(&bench.model())?.to_dtype(merged.dtype())?;
    if merged.dims() != base.dims() {
        return Err(format!("{Q} of the merged model has shape {:?}", merged.dims()).into());
    }
    let values =
        |tensor: &Tensor| -> candle_core::Result<Vec<f32>> { tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1() };
    if values(&merged)? == values(&base)? {
        return Err(format!("{Q} of the merged model is the base's").into());
    }
    Ok(serde_json::from_slice(&fs::read(found.join("proof.json"))?)?)
}

/// Every step in light and dark, in English and Chinese, as files.
async fn screenshots_of_every_step(studio: &Studio) -> Outcome<()> {
    const STEPS: [&str; 6] = ["card", "model", "data", "plan", "train", "use"];
    for language in ["en", "zh"] {
        for theme in ["light", "dark"] {
            studio.click("nav-settings").await?;
            studio.click(&format!("language-{language}")).await?;
            studio.click(&format!("theme-{theme}")).await?;
            studio.screenshot(&format!("{theme}-{language}-settings")).await?;
            for (i, step) in STEPS.iter().enumerate() {
                studio.click(&format!("step-{step}")).await?;
                let ready = match *step {
                    "train" => "train-strip",
                    "use" => "chat-input",
                    _ => &format!("{step}-ready"),
                };
                studio.wait(ready, LATER).await?;
                studio.screenshot(&format!("{theme}-{language}-{}-{step}", i + 1)).await?;
            }
            studio.click("nav-runs").await?;
            studio.wait("run-row", SOON).await?;
            studio.screenshot(&format!("{theme}-{language}-runs")).await?;
        }
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs a display and WebKitWebDriver: cargo xtask test window"]
async fn a_run_outlives_its_window_and_is_found_when_it_opens_again() {
    reopened().await.unwrap_or_else(|error| panic!("{error}"));
}

async fn reopened() -> Outcome<()> {
    /// More than any machine does while the window is closed.
    const N_STEPS: u64 = 1_000_000;
    let bench = Bench::new()?;
    let driver = Driver::start(&bench.home())?;
    let first = driver.open().await?.run("before-closing", async |studio| {
        start_run(studio, &bench, N_STEPS).await?;
        studio.number("train-step", LATER, |step| step > 0).await
    });
    let (studio, _) = first.await?;
    studio.close().await?;

    let at_closing = bench.steps_done()?;
    let deadline = Instant::now() + SOON;
    while bench.steps_done()? <= at_closing {
        if Instant::now() > deadline {
            return Err(format!("the run stood still at step {at_closing} after its window was closed").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let again = driver.open().await?.run("after-opening-again", async |studio| {
        let result = found_again(studio, at_closing).await;
        if result.is_err() {
            // The run must not train on after a failed test.
            fs::write(bench.run_folder()?.join("stop"), "")?;
        }
        result
    });
    let (studio, ()) = again.await?;
    studio.close().await
}

async fn found_again(studio: &Studio, at_closing: u64) -> Outcome<()> {
    studio.click("rail-run").await?;
    studio.number("train-step", LATER, |step| step > at_closing).await?;
    studio.attribute_among("train-state", "data-state", &["running"], SOON).await?;
    studio.screenshot("found-again").await?;

    studio.click("train-stop").await?;
    studio.attribute_among("train-state", "data-state", &["stopped"], LATER).await?;
    let stopped_at = studio.number("train-step", SOON, |_| true).await?;
    studio.screenshot("stopped").await?;

    studio.click("train-resume").await?;
    studio.number("train-step", LATER, |step| step > stopped_at).await?;
    studio.attribute_among("train-state", "data-state", &["running"], SOON).await?;
    studio.click("train-stop").await?;
    studio.attribute_among("train-state", "data-state", &["stopped"], LATER).await.map(drop)
}
