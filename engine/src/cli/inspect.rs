use std::path::PathBuf;

use hearth_engine::config::OverLength;
use hearth_engine::format;
use hearth_engine::run::{Inspection, inspect};

use super::config_args::ColumnArgs;
use super::failure::{Exit, Failure};
use super::{Context, emit};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Examples: JSONL, JSON or CSV.
    data: PathBuf,
    /// Base model: Hugging Face folder or GGUF file.
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// Longest sequence in tokens; without it nothing is cut.
    #[arg(long, value_name = "TOKENS")]
    length: Option<usize>,
    /// Cut longer examples instead of leaving them out.
    #[arg(long)]
    truncate: bool,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Examples shown token by token.
    #[arg(long, default_value_t = 3, value_name = "N")]
    limit: usize,
    /// First row shown.
    #[arg(long, default_value_t = 1, value_name = "ROW")]
    from: usize,
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let columns = args.columns.mapping();
    let over_length = if args.truncate { OverLength::Truncate } else { OverLength::Drop };
    let found = inspect(&args.data, &args.model, columns.as_ref(), args.length, over_length, args.from, args.limit)?;
    if context.json {
        context.print_json(&found)?;
    } else {
        show(&found)?;
    }
    Ok(Exit::Done)
}

/// Problems listed in the terminal; all are in `--json`.
const SHOWN_PROBLEMS: usize = 20;

fn show(found: &Inspection) -> Result<(), Failure> {
    let data = &found.dataset;
    emit(&format!(
        "{}: {}, {} understood; columns {}",
        data.format,
        format::counted(data.n_rows, "row"),
        format::count(data.n_examples),
        data.columns.join(", ")
    ))?;
    emit(&format!(
        "{} tokens, {} learned; the longest example has {}",
        format::count(found.stats.n_tokens),
        format::count(found.stats.n_learned_tokens),
        format::count(found.stats.max_tokens)
    ))?;
    if found.n_truncated + found.n_dropped_long > 0 {
        emit(&format!("too long: {} cut, {} left out", found.n_truncated, found.n_dropped_long))?;
    }
    for note in data.notes.iter().chain(&found.model.notes).chain(&found.encoder_notes) {
        emit(&format!("note: {note}"))?;
    }
    for problem in found.problems.iter().take(SHOWN_PROBLEMS) {
        emit(&problem.to_string())?;
    }
    if found.problems.len() > SHOWN_PROBLEMS {
        emit(&format!("and {} more", found.problems.len() - SHOWN_PROBLEMS))?;
    }
    for example in &found.examples {
        emit(&format!(
            "\n--- row {}: {}, {} learned (between ⟦ and ⟧)",
            example.row,
            format::counted(example.n_tokens, "token"),
            example.n_learned
        ))?;
        let mut text = String::new();
        let mut was_learned = false;
        for token in &example.tokens {
            if token.learned != was_learned {
                text.push(if token.learned { '⟦' } else { '⟧' });
                was_learned = token.learned;
            }
            text.push_str(&token.text);
        }
        if was_learned {
            text.push('⟧');
        }
        emit(&text)?;
    }
    Ok(())
}
