//! Ask a model held-out examples and count the answers that are exactly the wanted ones.

use std::ops::ControlFlow;
use std::path::PathBuf;

use hearth_engine::data::{self, Encoder};
use hearth_engine::generate::{GenerateOptions, Generator};
use hearth_engine::model::{Adapter, Model};
use serde::Serialize;

use super::failure::{Exit, Failure};
use super::pair::Pair;
use super::{Context, emit, export};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of examples that were not trained on.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Base model; that of the run where left out.
    #[arg(long, value_name = "PATH", required_unless_present = "run")]
    model: Option<PathBuf>,
    /// Run whose adapter is the tuned side.
    #[arg(long)]
    run: Option<String>,
    /// Checkpoint of the run: best, last or a step.
    #[arg(long, default_value = "best", value_name = "WHICH")]
    checkpoint: export::Which,
    /// Longest answer; half as much again as the longest wanted one where left out.
    #[arg(long, value_name = "TOKENS")]
    max_new_tokens: Option<usize>,
}

/// How many answers were exactly the wanted ones, and all of them to look at.
#[derive(Serialize)]
struct Score {
    n: usize,
    /// Exact answers of the base.
    base_exact: usize,
    /// Exact answers with the adapter, where a run was named.
    tuned_exact: Option<usize>,
    examples: Vec<Asked>,
}

#[derive(Serialize)]
struct Asked {
    prompt: String,
    wanted: String,
    base: String,
    tuned: Option<String>,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let dataset = data::load(&args.data, None)?;
    let Pair { encoder, model, adapter } = Pair::open(context, args.model, args.run.as_deref(), args.checkpoint)?;
    let mut prompts = Vec::new();
    let mut examples = Vec::new();
    let mut longest = 0;
    for example in &dataset.examples {
        let Some((ids, prompt, wanted)) = encoder.prompt_of(example)? else { continue };
        longest = longest.max(encoder.n_tokens(&wanted));
        prompts.push(ids);
        examples.push(Asked { prompt, wanted, base: String::new(), tuned: None });
    }
    if prompts.is_empty() {
        return Err(Failure::usage(
            &format!("{} has no example with a prompt and an answer", args.data.display()),
            "Score needs prompts with the wanted answers: messages, or prompt and completion.",
        ));
    }
    let options = GenerateOptions::greedy(args.max_new_tokens.unwrap_or(longest + longest / 2), encoder.stop_ids());
    for (asked, answer) in examples.iter_mut().zip(answers(&model, None, &encoder, &prompts, &options)?) {
        asked.base = answer;
    }
    if let Some(adapter) = &adapter {
        for (asked, answer) in examples.iter_mut().zip(answers(&model, Some(adapter), &encoder, &prompts, &options)?) {
            asked.tuned = Some(answer);
        }
    }
    let is_exact = |answer: &str, wanted: &str| answer.trim() == wanted.trim();
    let score = Score {
        n: examples.len(),
        base_exact: examples.iter().filter(|e| is_exact(&e.base, &e.wanted)).count(),
        tuned_exact: adapter
            .is_some()
            .then(|| examples.iter().filter(|e| is_exact(e.tuned.as_deref().unwrap_or(""), &e.wanted)).count()),
        examples,
    };
    if context.json {
        context.print_json(&score)?;
    } else {
        emit(&format!("base: {} of {} exactly right", score.base_exact, score.n))?;
        if let Some(tuned) = score.tuned_exact {
            emit(&format!("tuned: {tuned} of {} exactly right", score.n))?;
        }
    }
    Ok(Exit::Done)
}

/// All prompts answered at once.
fn answers(
    model: &Model,
    adapter: Option<&Adapter>,
    encoder: &Encoder,
    prompts: &[Vec<u32>],
    options: &GenerateOptions,
) -> Result<Vec<String>, Failure> {
    let mut generator = Generator::new(model, adapter)?;
    let answers = generator.generate(prompts, options, &mut |_, _| ControlFlow::Continue(()))?;
    Ok(answers.iter().map(|ids| encoder.decode(ids, true)).collect())
}
