//! A run as it is shown while it trains: event lines, a progress bar, or plain lines for a log.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use hearth_engine::event::{EventLine, FinishReason, TrainEvent};
use hearth_engine::format;
use hearth_engine::run::{self, Notice};
use indicatif::{ProgressBar, ProgressStyle};

use super::write_line;

/// How often a log gets a line about the steps.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Shows one run.
pub(crate) struct Display {
    json: bool,
    /// Progress bar or spinner; none where standard error is not a terminal.
    bar: Option<ProgressBar>,
    in_steps: bool,
    n_steps: usize,
    last_log: Option<Instant>,
    is_unheard: bool,
}

impl Display {
    pub(crate) fn new(json: bool) -> Self {
        let bar = (!json && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { json, bar, in_steps: false, n_steps: 0, last_log: None, is_unheard: false }
    }

    /// Shows what a run in this process says.
    pub(crate) fn notice(&mut self, notice: Notice<'_>) {
        match notice {
            Notice::Event(line) => self.event(line),
            _ if self.json => {}
            Notice::Planned(plan) => {
                self.line(&run::sentence(plan));
                for warning in &plan.warnings {
                    self.line(&format!("note: {}", warning.message));
                }
            }
            Notice::Created(folder) => self.line(&format!("Run {} in {}", folder.id(), folder.path().display())),
        }
    }

    /// Shows one event.
    pub(crate) fn event(&mut self, line: &EventLine) {
        if self.json {
            if let Ok(text) = serde_json::to_string(line) {
                self.write(&text);
            }
            return;
        }
        match &line.event {
            TrainEvent::Started { step, n_steps, resumed, .. } => {
                self.n_steps = *n_steps;
                if *resumed {
                    self.line(&format!("Taken up after step {step} of {n_steps}."));
                }
            }
            TrainEvent::Phase { name } => self.phase(name),
            TrainEvent::Step { step, loss, n_tokens, step_ms, eta_s, .. } => {
                let rate = format::tokens_per_second(*n_tokens as f64 / (step_ms / 1000.0));
                let left = match eta_s {
                    Some(s) => format!("{} left", format::duration(*s)),
                    None => "time left not known yet".into(),
                };
                let message = format!("loss {} · {rate} · {left}", format::loss(*loss));
                self.step(*step, &message);
            }
            TrainEvent::Evaluation { step, loss, best, .. } => {
                let best = if *best { ", the lowest so far" } else { "" };
                self.line(&format!("step {step}: evaluation loss {}{best}", format::loss(*loss)));
            }
            TrainEvent::Rung { reason, words, .. } => self.line(&format!("note: {reason} {words}")),
            TrainEvent::LossScale { reason, to, n_halved, .. } => {
                let (to, times) = (format::count(*to as usize), format::counted(*n_halved as usize, "time"));
                self.line(&format!("note: {reason} It is {to} from here on, halved {times} so far."));
            }
            TrainEvent::Rehearsal { rehearsal } => {
                let (said, found) = (rehearsal.predicted, rehearsal.measured);
                self.line(&format!(
                    "Rehearsed in {}: {} and {} (planned {} and {}).",
                    format::duration(rehearsal.seconds),
                    format::duration(found.total_s),
                    format::bytes(found.memory_bytes),
                    format::duration(said.total_s),
                    format::bytes(said.memory_bytes),
                ));
            }
            TrainEvent::Governor { message, .. } => self.line(&format!("note: {message}")),
            TrainEvent::Warning { message, .. } => self.line(&format!("note: {message}")),
            TrainEvent::Exported { kind, path, proven } => {
                let proven = if *proven { "proven" } else { "not proven" };
                self.line(&format!("{kind} exported to {}, {proven}", path.display()));
            }
            TrainEvent::Finished { reason, step, best_step } => {
                self.close();
                let best = best_step.map_or_else(String::new, |s| format!("; the best is step {s}"));
                self.line(&match reason {
                    FinishReason::Completed => format!("Finished after {}{best}.", format::counted(*step, "step")),
                    FinishReason::EarlyStopped => {
                        format!("Ended early at step {step}, as the evaluation loss no longer fell{best}.")
                    }
                    FinishReason::Stopped => format!("Stopped after {}{best}.", format::counted(*step, "step")),
                });
            }
            // The command that ends with it says it.
            TrainEvent::Failed { .. } => self.close(),
            TrainEvent::Sample { .. } | TrainEvent::Checkpoint { .. } => {}
        }
    }

    fn phase(&mut self, name: &str) {
        let words = match name {
            "load_model" => "reading the model",
            "prepare_data" => "preparing the examples",
            "allocate" => "allocating the buffers",
            "rehearse" => "rehearsing",
            "train" => "training",
            "evaluate" => "evaluating",
            "checkpoint" => "writing a checkpoint",
            "export" => "exporting",
            "prove" => "proving the export",
            "pause" => "paused",
            other => other,
        };
        match self.bar.clone() {
            Some(bar) if name == "train" && !self.in_steps => {
                let style = ProgressStyle::with_template("{bar:28} {pos}/{len} {wide_msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
                bar.set_style(style);
                bar.set_length(self.n_steps as u64);
                self.in_steps = true;
            }
            Some(bar) => bar.set_message(words.to_string()),
            // In the log a phase is a line, but the steps between evaluations speak for themselves.
            None if !self.in_steps => {
                self.in_steps = name == "train";
                self.line(words);
            }
            None if name == "pause" => self.line(words),
            None => {}
        }
    }

    fn step(&mut self, step: usize, message: &str) {
        if let Some(bar) = &mut self.bar {
            bar.set_position(step as u64);
            bar.set_message(message.to_string());
        } else if self.last_log.is_none_or(|t| t.elapsed() >= LOG_EVERY) || step == self.n_steps {
            self.last_log = Some(Instant::now());
            self.line(&format!("step {step} of {}: {message}", self.n_steps));
        }
    }

    fn line(&mut self, text: &str) {
        match self.bar.clone() {
            Some(bar) => bar.suspend(|| self.write(text)),
            None => self.write(text),
        }
    }

    /// A reader that has gone does not end a training.
    fn write(&mut self, text: &str) {
        if !self.is_unheard && write_line(text).is_err() {
            self.is_unheard = true;
        }
    }

    /// True once nobody reads what is written.
    pub(crate) fn is_unheard(&self) -> bool {
        self.is_unheard
    }

    /// Takes the bar away.
    pub(crate) fn close(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
