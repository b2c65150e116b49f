//! The plan for a card that is not in the machine: chosen, slid, fixed by hand, kept under a name and found again.

use std::fs;
use std::path::{Path, PathBuf};

use hearth_tests::tiny_model::{self, Size};
use serde_json::json;
use thirtyfour::Key;

use super::path_text;
use super::studio::{Driver, LATER, Outcome, SOON, Studio};

const KEPT: &str = "窗口 settings";
/// So that sliders move figures that can be seen.
const ONE_BILLION: Size = Size { hidden: 2048, ffn: 8192, n_layers: 16 };
/// From a change of a slider until it is laid out, in milliseconds: one frame.
const MOST_MS: f64 = 16.0;

/// A home of its own, a model of a real size and answers of uneven lengths, under a path with a space, Chinese and an
/// emoji.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Outcome<Self> {
        let desk = Self { folder: tempfile::Builder::new().prefix("hearth 方案 🔥 ").tempdir()? };
        tiny_model::write_hollow(&desk.model(), ONE_BILLION)?;
        let lines = (0..300_usize).map(|i| {
            let answer = format!("Answer {i}:{}", " and so on".repeat(i * i % 83));
            let turns =
                json!([{ "role": "user", "content": format!("{i}?") }, { "role": "assistant", "content": answer }]);
            json!({ "messages": turns }).to_string() + "\n"
        });
        fs::write(desk.data(), lines.collect::<String>())?;
        Ok(desk)
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("十亿 model")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("answers 回答.jsonl")
    }
}

#[tokio::test]
#[ignore = "needs a display and WebKitWebDriver: cargo xtask test window"]
async fn a_plan_for_another_card_follows_its_sliders_and_kept_settings_come_back() {
    planning().await.unwrap_or_else(|error| panic!("{error}"));
}

async fn planning() -> Outcome<()> {
    let desk = Desk::new()?;
    let driver = Driver::start(&desk.home())?;
    let first = driver.open().await?.run("planning", async |studio| {
        // A home of its own remembers no other's model and data.
        studio.wait("start", SOON).await?;
        choose_card(studio).await?;
        open_model_and_data(studio, &desk.model(), &desk.data()).await?;
        sliders_move_bar_and_reasons(studio).await?;
        the_rest_follows_what_is_fixed(studio).await?;
        keep_and_load(studio).await?;
        screenshots(studio).await
    });
    let (studio, ()) = first.await?;
    studio.close().await?;

    let again = driver.open().await?.run("planning-again", async |studio| {
        // The window remembers which model and which data, not what was wished.
        studio.click("step-plan").await?;
        studio.wait("plan-ready", LATER).await?;
        studio.value_is("setting-rank", "16").await?;
        studio.select("preset-select", KEPT).await?;
        studio.click("preset-load").await?;
        kept_values_are_there(studio).await
    });
    let (studio, ()) = again.await?;
    studio.close().await
}

/// By group and by search; the chosen card is what the step says.
async fn choose_card(studio: &Studio) -> Outcome<()> {
    studio.click("step-card").await?;
    studio.wait("card-ready", SOON).await?;
    for group in ["rtx40", "laptop", "workstation"] {
        studio.click_css(&format!("[data-testid=card-group][data-group={group}][aria-expanded=false]")).await?;
    }
    studio.click_css("[data-card=rtx-4070-12gb]").await?;
    studio.text_has("verdict", "RTX 4070").await?;
    studio.type_into("card-search", "3060 12gb").await?;
    studio.number("card-found", SOON, |n| n == 1).await?;
    studio.click_css("[data-card=rtx-3060-12gb]").await?;
    studio.text_has("verdict", "RTX 3060").await
}

async fn open_model_and_data(studio: &Studio, model: &Path, data: &Path) -> Outcome<()> {
    studio.click("step-model").await?;
    studio.type_into("model-path", path_text(model)).await?;
    studio.click("model-open").await?;
    studio.wait("model-ready", LATER).await?;
    for (model, level) in [("smollm2-135m", "whole"), ("llama-3.1-70b", "large")] {
        studio.wait_css(&format!("[data-model=\"{model}\"][data-level={level}]"), LATER).await?;
    }
    studio.click("step-data").await?;
    studio.type_into("data-path", path_text(data)).await?;
    studio.click("data-open").await?;
    studio.wait("data-ready", LATER).await.map(drop)
}

async fn sliders_move_bar_and_reasons(studio: &Studio) -> Outcome<()> {
    studio.click("step-plan").await?;
    studio.wait("plan-ready", LATER).await?;
    studio.text_has("plan-verdict", "Fits").await?;
    let sliders = [
        ("slider-rank", "reason-rank", 5),
        ("slider-length", "reason-length", 2),
        ("slider-micro-batch", "reason-batch", 1),
    ];
    for (slider, reason, presses) in sliders {
        let (bar, row) = (studio.bar("memory-bar").await?, studio.text(reason).await?);
        // To the start first: a slider at its end has nowhere to go.
        studio.press(slider, Key::Home, 1).await?;
        studio.press(slider, Key::Right, presses).await?;
        studio.wait_until(reason, SOON, "changed", async |r| Ok(r.text().await? != row)).await?;
        if studio.bar("memory-bar").await? == bar {
            return Err(format!("{slider} moved and every segment of the bar is as wide as before: {bar:?}").into());
        }
    }
    let times = studio.slide("slider-rank", "memory-bar", &[8, 64, 16, 96, 32, 48], 40).await?;
    let (page, whole) = (sorted(times.iter().map(|t| t.0)), sorted(times.iter().map(|t| t.1)));
    // Without a graphics device drawing a frame keeps every core of a small machine busy, and the engine's answer waits for one: what
    // the page itself takes is judged by its median, the whole by its fastest tenth.
    let (page_ms, quick_ms, usual_ms) = (page[page.len() / 2], whole[whole.len() / 10], whole[whole.len() / 2]);
    println!("a slider shows in the bar after {quick_ms:.1} to {usual_ms:.1} ms, {page_ms:.1} ms of them in the page");
    if page_ms.max(quick_ms) > MOST_MS {
        return Err(
            format!("a change shows after {quick_ms:.1} ms at best, {page_ms:.1} ms in the page: {times:?}").into()
        );
    }
    Ok(())
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

async fn the_rest_follows_what_is_fixed(studio: &Studio) -> Outcome<()> {
    studio.click("plan-reset").await?;
    // The rank is back at once, what is proposed with it when the plan is there.
    studio.settled().await?;
    studio.value_is("setting-rank", "16").await?;
    let batch = studio.number("effective-batch", SOON, |n| n > 1).await?;
    studio.type_into("setting-micro-batch", "2").await?;
    studio.value_is("setting-accumulation", &(batch / 2).to_string()).await?;
    studio.number("effective-batch", SOON, |n| n == batch).await?;
    studio.select("setting-recompute", "c0").await?;
    studio.type_into("setting-rank", "48").await?;
    // Alpha keeps its ratio to the rank.
    studio.value_is("setting-alpha", "96").await?;
    studio.select("compare-select", "any").await?;
    studio.attribute_among("compare-verdict", "data-fits", &["true", "false"], SOON).await.map(drop)
}

async fn keep_and_load(studio: &Studio) -> Outcome<()> {
    studio.type_into("preset-name", KEPT).await?;
    studio.click("preset-save").await?;
    studio.value_is("preset-select", KEPT).await?;
    studio.click("plan-reset").await?;
    studio.value_is("setting-rank", "16").await?;
    studio.click("preset-load").await?;
    kept_values_are_there(studio).await
}

async fn kept_values_are_there(studio: &Studio) -> Outcome<()> {
    for (setting, value) in
        [("setting-rank", "48"), ("setting-alpha", "96"), ("setting-micro-batch", "2"), ("setting-recompute", "c0")]
    {
        studio.value_is(setting, value).await?;
    }
    Ok(())
}

async fn screenshots(studio: &Studio) -> Outcome<()> {
    for language in ["en", "zh"] {
        for theme in ["light", "dark"] {
            studio.click("nav-settings").await?;
            studio.click(&format!("language-{language}")).await?;
            studio.click(&format!("theme-{theme}")).await?;
            for (step, ready) in [("card", "card-ready"), ("model", "catalogue-row"), ("plan", "plan-ready")] {
                studio.click(&format!("step-{step}")).await?;
                studio.wait(ready, LATER).await?;
                studio.screenshot(&format!("planning-{theme}-{language}-{step}")).await?;
            }
        }
    }
    Ok(())
}
