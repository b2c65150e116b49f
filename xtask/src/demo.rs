//! `cargo xtask demo`: one whole job on a small model, from the bundled examples to a proven merged model.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{app, display, model, process, repository, setup};

/// What the demo promises of the tuned model on the held-out examples.
const PROMISED_EXACT: f64 = 0.7;
/// Held-out examples that are shown.
const N_SHOWN: usize = 5;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Open the window on the run at the end; it fails where there is no display
    #[arg(long, conflicts_with = "no_window")]
    window: bool,
    /// Don't open the window
    #[arg(long)]
    no_window: bool,
}

pub(crate) fn demo(options: &Options) -> Result<()> {
    let with_window = options.window || display::is_there() && !options.no_window;
    if with_window {
        ensure!(display::is_there(), "--window needs a display: neither DISPLAY nor WAYLAND_DISPLAY is set");
        setup::for_window()?;
        setup::build_window()?;
    } else {
        setup::for_engine()?;
        setup::build_engine()?;
    }
    let model = model::fetched()?;

    let begun = Instant::now();
    let hearth = repository::program("hearth")?;
    let run = train(&hearth, &model)?;
    let merged = run.path.join("exports").join("merged");
    export(&hearth, &run, &merged)?;
    let score = score(&hearth, &model, &run)?;
    show(&score, &merged, begun.elapsed());
    let tuned = score.exact(|example| example.tuned.as_deref());
    ensure!(
        tuned as f64 >= PROMISED_EXACT * score.examples.len() as f64,
        "the tuned model answers {tuned} of {} held-out examples exactly; at least {:.0} % were expected",
        score.examples.len(),
        100.0 * PROMISED_EXACT
    );
    if with_window {
        println!("Opening the window on this run. It can be closed any time.");
        app::open(Some(&run.id))?;
    }
    Ok(())
}

/// What `hearth runs --json` says of a run, as far as it is needed here.
#[derive(Deserialize)]
struct Run {
    id: String,
    path: PathBuf,
}

fn runs(hearth: &Path) -> Result<Vec<Run>> {
    let text = process::read(Command::new(hearth).args(["runs", "--json"]))?;
    serde_json::from_str(&text).context("reading what `hearth runs --json` printed")
}

fn train(hearth: &Path, model: &Path) -> Result<Run> {
    let config = repository::target()?.join("demo").join("config.json");
    fs::create_dir_all(config.parent().context("the config has no folder")?)?;
    fs::write(&config, serde_json::to_vec_pretty(&resolved_config(model)?)?)?;

    let before: HashSet<_> = runs(hearth)?.into_iter().map(|run| run.id).collect();
    process::run(Command::new(hearth).arg("train").arg("--config").arg(&config))?;
    let new = runs(hearth)?.into_iter().find(|run| !before.contains(&run.id));
    new.context("`hearth train` succeeded and `hearth runs` shows no new run")
}

/// `assets/demo/config.json` with the paths of this machine.
fn resolved_config(model: &Path) -> Result<Value> {
    let folder = assets();
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut config: Value = serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
    let data = config["data"]["path"].as_str().context("the demo's config names no data")?;
    config["data"]["path"] = json!(folder.join(data));
    config["model"] = json!(model);
    Ok(config)
}

fn assets() -> PathBuf {
    repository::root().join("assets").join("demo")
}

/// Merges and proves; `hearth` ends with a code of its own where the proof fails.
fn export(hearth: &Path, run: &Run, out: &Path) -> Result<()> {
    let mut command = Command::new(hearth);
    command.args(["export", &run.id, "--kind", "merged", "--out"]).arg(out);
    process::run(&mut command)?;
    let proof = out.join("proof.json");
    ensure!(proof.is_file(), "the export succeeded and left no {}", proof.display());
    Ok(())
}

/// What `hearth score --json` says.
#[derive(Deserialize)]
struct Score {
    examples: Vec<Example>,
}

#[derive(Deserialize)]
struct Example {
    prompt: String,
    wanted: String,
    base: Option<String>,
    tuned: Option<String>,
}

impl Score {
    fn exact(&self, answer: impl Fn(&Example) -> Option<&str>) -> usize {
        self.examples.iter().filter(|example| is_exact(answer(example), example)).count()
    }
}

/// The whole answer, byte for byte, but for white space around it.
fn is_exact(answer: Option<&str>, example: &Example) -> bool {
    answer.is_some_and(|answer| answer.trim() == example.wanted.trim())
}

fn score(hearth: &Path, model: &Path, run: &Run) -> Result<Score> {
    println!("Asking the base and the tuned model the held-out examples.");
    let mut command = Command::new(hearth);
    command.arg("score").arg("--model").arg(model).args(["--run", &run.id]);
    command.arg("--data").arg(assets().join("held-out.jsonl")).arg("--json");
    let score: Score =
        serde_json::from_str(&process::read(&mut command)?).context("reading what `hearth score --json` printed")?;
    ensure!(!score.examples.is_empty(), "`hearth score` had no examples");
    Ok(score)
}

fn show(score: &Score, merged: &Path, time: Duration) {
    println!("\nHeld-out examples, before and after\n");
    let step = (score.examples.len() / N_SHOWN).max(1);
    for example in score.examples.iter().step_by(step).take(N_SHOWN) {
        println!("  asked    {}", asked(&example.prompt));
        println!("  wanted   {}", one_line(&example.wanted));
        for (name, answer) in [("before", &example.base), ("after", &example.tuned)] {
            let mark = if is_exact(answer.as_deref(), example) { "exact" } else { "not exact" };
            println!("  {name:<8} {}   [{mark}]", one_line(answer.as_deref().unwrap_or("–")));
        }
        println!();
    }
    let n = score.examples.len();
    let share = |exact: usize| format!("{exact} of {n} ({:.0} %)", 100.0 * exact as f64 / n as f64);
    let (before, after) = (score.exact(|e| e.base.as_deref()), score.exact(|e| e.tuned.as_deref()));
    println!("Exact match on held-out examples: before {}, after {}.", share(before), share(after));
    println!("Merged model, proven: {}", merged.display());
    println!("From examples to proven model in {}.", process::duration(time));
}

/// What the person wrote: the last turn, where the prompt is a conversation of `role: content` lines.
fn asked(prompt: &str) -> String {
    one_line(prompt.rsplit_once("\nuser: ").map_or(prompt, |(_, turn)| turn))
}

/// On one line of a terminal, cut where it is long.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 100;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_names_files_that_exist() {
        let config = resolved_config(Path::new("/models/m.gguf")).unwrap();
        assert_eq!(config["model"], "/models/m.gguf");
        assert!(Path::new(config["data"]["path"].as_str().unwrap()).is_file());
    }

    #[test]
    fn only_the_whole_answer_counts_as_exact() {
        let example = Example { prompt: String::new(), wanted: r#"{"a":1}"#.into(), base: None, tuned: None };
        assert!(is_exact(Some("{\"a\":1}\n"), &example));
        assert!(!is_exact(Some(r#"{"a": 1}"#), &example));
        assert!(!is_exact(Some(r#"Sure: {"a":1}"#), &example));
        assert!(!is_exact(None, &example));
    }

    #[test]
    fn the_shown_sentence_is_the_last_turn() {
        let prompt = "system: Answer.\nuser: Hello\nassistant: Hi\nuser: Meet\nRuth.";
        assert_eq!(asked(prompt), "Meet Ruth.");
        assert_eq!(asked("Meet Ruth."), "Meet Ruth.");
    }
}
