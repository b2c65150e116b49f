//! Talk to a model: a line protocol for programs, a prompt for people.

use std::io::{BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use hearth_engine::data::Message;
use hearth_engine::error::{ErrorReport, Explain};
use hearth_engine::format;
use hearth_engine::generate::{GenerateOptions, Generator};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::failure::{Exit, Failure};
use super::pair::Pair;
use super::{Context, emit};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Base model; that of the run where left out.
    #[arg(long, value_name = "PATH", required_unless_present = "run")]
    model: Option<PathBuf>,
    /// Run whose adapter is the tuned side.
    #[arg(long)]
    run: Option<String>,
    /// Checkpoint of the run: best, last or a step.
    #[arg(long, default_value = "best", value_name = "WHICH")]
    checkpoint: super::export::Which,
    /// Longest answer in tokens (people only; programs say it with each question).
    #[arg(long, default_value_t = 256, value_name = "TOKENS")]
    max_new_tokens: usize,
    /// 0 takes the most probable token.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
}

/// One question of a program.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    messages: Vec<Message>,
    #[serde(default = "default_max_new_tokens")]
    max_new_tokens: usize,
    #[serde(default)]
    temperature: f32,
    #[serde(default = "default_top_p")]
    top_p: f32,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    which: Option<Which>,
}

fn default_max_new_tokens() -> usize {
    256
}

fn default_top_p() -> f32 {
    1.0
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Which {
    Base,
    Tuned,
    Both,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let talk = Talk(Pair::open(context, args.model, args.run.as_deref(), args.checkpoint)?);
    if context.json {
        context.print_json(&json!({ "ready": true }))?;
        talk.with_program(context)?;
    } else {
        talk.with_person(args.max_new_tokens, args.temperature)?;
    }
    Ok(Exit::Done)
}

struct Talk(Pair);

impl Talk {
    /// Answers lines of JSON until the input ends. A question that cannot be answered gets an error line; the next one
    /// is waited for.
    fn with_program(&self, context: &Context) -> Result<(), Failure> {
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|e| Failure::internal(format!("cannot read standard input: {e}")))?;
            if line.trim().is_empty() {
                continue;
            }
            let answered = match serde_json::from_str::<Question>(&line) {
                Ok(question) => self.answer_program(context, &question),
                Err(e) => Err(ErrorReport {
                    code: "chat.question".into(),
                    message: format!("the line is not a question: {e}"),
                    next_step: "Send {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}]}.".into(),
                }),
            };
            if let Err(error) = answered {
                context.print_json(&json!({ "error": error }))?;
            }
        }
        Ok(())
    }

    fn answer_program(&self, context: &Context, question: &Question) -> Result<(), ErrorReport> {
        let default = if self.0.adapter.is_some() { Which::Tuned } else { Which::Base };
        let sides: &[Which] = match question.which.unwrap_or(default) {
            Which::Both if self.0.adapter.is_none() => &[Which::Base],
            Which::Both => &[Which::Base, Which::Tuned],
            Which::Base => &[Which::Base],
            Which::Tuned => &[Which::Tuned],
        };
        let options = GenerateOptions {
            max_new_tokens: question.max_new_tokens,
            temperature: question.temperature,
            top_p: question.top_p,
            seed: question.seed,
            stop_ids: self.0.encoder.stop_ids().to_vec(),
        };
        for &which in sides {
            let answer = self.answer(which, &question.messages, &options, &mut |piece| {
                let _ = context.print_json(&json!({ "which": which, "token": piece }));
            })?;
            let Answer { text, n_tokens, tokens_per_s } = answer;
            let done = json!({
                "which": which, "done": true, "text": text, "n_tokens": n_tokens, "tokens_per_s": tokens_per_s
            });
            let _ = context.print_json(&done);
        }
        Ok(())
    }

    fn with_person(&self, max_new_tokens: usize, temperature: f32) -> Result<(), Failure> {
        let options = GenerateOptions {
            max_new_tokens,
            temperature,
            top_p: 1.0,
            seed: 0,
            stop_ids: self.0.encoder.stop_ids().to_vec(),
        };
        let is_terminal = std::io::stdin().is_terminal();
        if is_terminal {
            emit("Write something; Ctrl-D ends.")?;
        }
        let sides: &[Which] = if self.0.adapter.is_some() { &[Which::Base, Which::Tuned] } else { &[Which::Base] };
        // Each side remembers its own answers.
        let mut so_far = vec![Vec::<Message>::new(); sides.len()];
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if is_terminal {
                print!("> ");
                let _ = std::io::stdout().flush();
            }
            let Some(line) = lines.next() else { return Ok(()) };
            let line = line.map_err(|e| Failure::internal(format!("cannot read standard input: {e}")))?;
            if line.trim().is_empty() {
                continue;
            }
            for (&which, messages) in sides.iter().zip(&mut so_far) {
                messages.push(Message::new("user", line.as_str()));
                print!("{}: ", if which == Which::Base { "base" } else { "tuned" });
                let answer = self.answer(which, messages, &options, &mut |piece| {
                    print!("{piece}");
                    let _ = std::io::stdout().flush();
                });
                match answer {
                    Ok(answer) => {
                        emit(&format!("  [{}]", format::tokens_per_second(answer.tokens_per_s)))?;
                        messages.push(Message::new("assistant", answer.text));
                    }
                    Err(error) => {
                        messages.pop();
                        emit(&format!("\nerror: {}\n{}", error.message, error.next_step))?;
                    }
                }
            }
        }
    }

    fn answer(
        &self,
        which: Which,
        messages: &[Message],
        options: &GenerateOptions,
        say: &mut dyn FnMut(&str),
    ) -> Result<Answer, ErrorReport> {
        let adapter = match which {
            Which::Base => None,
            _ if self.0.adapter.is_none() => {
                return Err(ErrorReport {
                    code: "chat.no_adapter".into(),
                    message: "there is no tuned model in this conversation".into(),
                    next_step: "Start `hearth chat` with --run.".into(),
                });
            }
            _ => self.0.adapter.as_ref(),
        };
        let prompt = self.0.encoder.prompt_ids(messages).map_err(|e| e.report())?;
        let mut generator = Generator::new(&self.0.model, adapter).map_err(|e| e.report())?;
        let started = Instant::now();
        let mut ids = Vec::new();
        let mut said = 0;
        let answers = generator
            .generate(std::slice::from_ref(&prompt), options, &mut |_, id| {
                ids.push(id);
                let text = self.0.encoder.decode(&ids, true);
                // A character of several tokens is said when it is whole.
                if !text.ends_with('\u{fffd}')
                    && let Some(piece) = text.get(said..).filter(|piece| !piece.is_empty())
                {
                    say(piece);
                    said = text.len();
                }
                ControlFlow::Continue(())
            })
            .map_err(|e| e.report())?;
        let ids = answers.into_iter().next().unwrap_or_default();
        let text = self.0.encoder.decode(&ids, true);
        if let Some(rest) = text.get(said..).filter(|rest| !rest.is_empty()) {
            say(rest);
        }
        let tokens_per_s = ids.len() as f64 / started.elapsed().as_secs_f64().max(1e-9);
        Ok(Answer { text, n_tokens: ids.len(), tokens_per_s })
    }
}

struct Answer {
    text: String,
    n_tokens: usize,
    tokens_per_s: f64,
}
