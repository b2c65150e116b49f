//! The page around the charts.

use std::fmt::Write;

use crate::event::TrainEvent;
use crate::format;
use crate::plan::Plan;
use crate::run::store::RunRecord;
use crate::run::{History, RunState, RunSummary};

/// The light look of the studio, which the page carries with it.
const STYLE: &str = "\
:root{color-scheme:light;--canvas:#f1f3f4;--surface:#fff;--sunken:#f6f7f8;--line:#dde1e4;--ink:#1a1f24;--ink-2:#4d565e;\
--ember:#b8430f;--good:#1b6e46;--good-wash:#e3f2ea;--warn:#855400;--warn-wash:#fbf0d9;--bad:#b02318;--bad-wash:#fbe7e5}\
body{margin:0;background:var(--canvas);color:var(--ink);font:13px/1.45 system-ui,\"Segoe UI\",-apple-system,\
\"PingFang SC\",\"Microsoft YaHei UI\",\"Noto Sans CJK SC\",sans-serif}\
main{max-width:880px;margin:0 auto;padding:24px 20px 48px}\
h1{font-size:18px;font-weight:600;line-height:1.3;margin:0 0 4px}h2{font-size:15px;font-weight:600;margin:0 0 8px}\
.dim{color:var(--ink-2)}section{background:var(--surface);border:1px solid var(--line);border-radius:5px;\
padding:16px;margin-top:16px;overflow-x:auto}\
.state{display:inline-block;padding:1px 8px;border-radius:3px;font-weight:600}\
.good{color:var(--good);background:var(--good-wash)}.warn{color:var(--warn);background:var(--warn-wash)}\
.bad{color:var(--bad);background:var(--bad-wash)}\
dl.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px;margin:0}\
dl.figures dt{color:var(--ink-2);font-size:12px}dl.figures dd{margin:0;font-size:22px;line-height:1.3}\
svg text{font-family:system-ui,sans-serif}svg{max-width:100%;height:auto}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:4px 12px 4px 0;border-top:1px solid var(--line);\
vertical-align:top}th{font-weight:400;color:var(--ink-2)}td{white-space:pre-wrap;overflow-wrap:anywhere}\
thead th{border-top:0}";

/// The whole page.
pub(super) fn page(
    summary: &RunSummary,
    record: &RunRecord,
    plan: &Plan,
    history: &History,
    charts: &[String],
) -> String {
    let title = if summary.name.is_empty() { &summary.id } else { &summary.name };
    let mut page = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title} – Hearth</title>\
         <style>{STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n\
         <p class=\"dim\">{id} · begun {begun} UTC · <span class=\"state {class}\">{mark} {state}</span></p>\n",
        title = escaped(title),
        id = escaped(&summary.id),
        begun = format::moment(summary.started_ms),
        class = class(summary.state),
        mark = mark(summary.state),
        state = summary.state.word(),
    );
    figures(&mut page, summary, history);
    page.push_str("<section><h2>Charts</h2>\n");
    for chart in charts {
        let _ = writeln!(page, "<figure style=\"margin:0 0 12px\">{chart}</figure>");
    }
    page.push_str("</section>\n");
    evaluations(&mut page, history);
    answers(&mut page, history);
    notes(&mut page, history);
    settings(&mut page, record, plan);
    page.push_str("</main></body></html>\n");
    page
}

fn class(state: RunState) -> &'static str {
    match state {
        RunState::Running | RunState::Finished => "good",
        RunState::Stopped | RunState::Interrupted => "warn",
        RunState::Failed => "bad",
    }
}

/// A sign beside the colour, which never speaks alone.
fn mark(state: RunState) -> &'static str {
    match state {
        RunState::Finished => "✓",
        RunState::Running => "▶",
        RunState::Stopped | RunState::Interrupted => "⏸",
        RunState::Failed => "✕",
    }
}

fn figures(page: &mut String, summary: &RunSummary, history: &History) {
    let (mut n_tokens, mut step_ms, mut peak_bytes) = (0usize, 0.0, 0u64);
    let mut best: Option<(usize, f64)> = None;
    for line in history.lines() {
        match line.event {
            TrainEvent::Step { n_tokens: n, step_ms: ms, memory, .. } => {
                n_tokens += n;
                step_ms += ms;
                peak_bytes = peak_bytes.max(memory.peak_bytes);
            }
            TrainEvent::Evaluation { step, loss, .. } if best.is_none_or(|(_, lowest)| loss < lowest) => {
                best = Some((step, loss));
            }
            _ => {}
        }
    }
    page.push_str("<section><dl class=\"figures\">");
    let mut figure = |name: &str, value: String| {
        let _ = write!(page, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(&value));
    };
    figure("steps", format!("{} of {}", format::count(summary.step), format::count(summary.n_steps)));
    figure("last loss", summary.loss.map_or_else(|| format::UNKNOWN.into(), format::loss));
    match best {
        Some((step, loss)) => figure(&format!("lowest evaluation loss, step {step}"), format::loss(loss)),
        None => figure("evaluation loss", format::UNKNOWN.into()),
    }
    figure("trained for", format::duration(step_ms / 1000.0));
    let rate = if step_ms > 0.0 { n_tokens as f64 / (step_ms / 1000.0) } else { f64::NAN };
    figure("speed", format::tokens_per_second(rate));
    figure("tokens", format::count(n_tokens));
    figure("highest memory", format::bytes(peak_bytes));
    page.push_str("</dl></section>\n");
}

fn evaluations(page: &mut String, history: &History) {
    let mut rows = String::new();
    for line in history.lines() {
        if let TrainEvent::Evaluation { step, loss, best, n_supervised_tokens } = line.event {
            let best = if best { "lowest so far" } else { "" };
            let tokens = format::count(n_supervised_tokens);
            let _ =
                write!(rows, "<tr><td>{step}</td><td>{}</td><td>{tokens}</td><td>{best}</td></tr>", format::loss(loss));
        }
    }
    if !rows.is_empty() {
        let _ = writeln!(
            page,
            "<section><h2>Evaluation on held-out examples</h2><table><thead><tr><th>step</th><th>loss</th>\
             <th>learned tokens</th><th></th></tr></thead>{rows}</table></section>"
        );
    }
}

/// The held-out prompts as the last evaluation answered them.
fn answers(page: &mut String, history: &History) {
    let samples = || {
        history.lines().iter().filter_map(|line| match &line.event {
            TrainEvent::Sample { step, prompt, answer, wanted, .. } => Some((*step, prompt, answer, wanted)),
            _ => None,
        })
    };
    let Some(last) = samples().map(|s| s.0).max() else { return };
    let mut rows = String::new();
    for (_, prompt, answer, wanted) in samples().filter(|s| s.0 == last) {
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(prompt),
            escaped(answer),
            escaped(wanted)
        );
    }
    let _ = writeln!(
        page,
        "<section><h2>Held-out prompts, answered after step {last}</h2><table><thead><tr><th>prompt</th>\
         <th>answer</th><th>wanted, from the file</th></tr></thead>{rows}</table></section>"
    );
}

fn notes(page: &mut String, history: &History) {
    let mut rows = String::new();
    for line in history.lines() {
        let text = match &line.event {
            TrainEvent::Warning { message, .. } => message.clone(),
            TrainEvent::Rung { reason, words, .. } => format!("{reason} {words}"),
            TrainEvent::LossScale { reason, to, n_halved, .. } => {
                let times = format::counted(*n_halved as usize, "time");
                format!(
                    "{reason} The loss scale is {} from there on; it was halved {times}.",
                    format::count(*to as usize)
                )
            }
            TrainEvent::Failed { error } => format!("Fault: {} {}", error.message, error.next_step),
            TrainEvent::Exported { kind, path, proven } => {
                let outcome = if *proven { "proven" } else { "not proven" };
                format!("Exported ({kind}, {outcome}) to {}", path.display())
            }
            TrainEvent::Started { resumed: true, step, .. } => format!("Taken up again after step {step}."),
            _ => continue,
        };
        let _ = write!(rows, "<tr><th>{}</th><td>{}</td></tr>", format::moment(line.time_ms), escaped(&text));
    }
    if !rows.is_empty() {
        let _ = writeln!(page, "<section><h2>What happened</h2><table>{rows}</table></section>");
    }
}

fn settings(page: &mut String, record: &RunRecord, plan: &Plan) {
    let mut rows = String::new();
    let mut row = |name: &str, value: String| {
        let _ = write!(rows, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(&value));
    };
    row("model", record.given.model.display().to_string());
    row("data", record.given.data.path.display().to_string());
    if let Some(path) = &record.given.data.evaluation_path {
        row("evaluation data", path.display().to_string());
    }
    row("planned memory", format::bytes(plan.planned_bytes));
    // The settings as they stand in run.toml, so that what is read here can be copied from there.
    if let Ok(text) = toml::to_string_pretty(&record.resolved) {
        row("settings", text.trim_end().to_string());
    }
    row("engine", format!("Hearth {}", record.engine));
    let _ = writeln!(page, "<section><h2>Settings</h2><table>{rows}</table></section>");
}

/// Text as it may stand in HTML, in an attribute too.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventLine;

    #[test]
    fn what_the_model_says_cannot_become_markup() {
        let event = TrainEvent::Sample {
            step: 3,
            index: 0,
            prompt: "<script>alert(1)</script>".into(),
            answer: "\"><img src=x>".into(),
            wanted: "a & b".into(),
        };
        let history = History::replay([EventLine { time_ms: 0, event }]);
        let mut page = String::new();
        answers(&mut page, &history);
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert!(page.contains("a &amp; b"));
    }
}
