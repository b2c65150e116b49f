//! What can be wrong with a data file or a chat template as a whole.

use std::path::PathBuf;

use super::Problem;
use crate::error::Explain;

/// A data file or template that cannot be used. Single rows are [`Problem`]s, not errors.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are the values in the message
pub enum Error {
    /// The file cannot be opened.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// No character but blanks.
    #[error("{} is empty", path.display())]
    Empty { path: PathBuf },
    /// A well-known kind of file that is not a data file Hearth reads.
    #[error("{} is {kind}, not JSONL, JSON or CSV", path.display())]
    ForeignKind { path: PathBuf, kind: &'static str },
    /// Text, but neither JSON nor a table.
    #[error("{} is neither JSON nor a table with a header line; it begins {head:?}", path.display())]
    NotATable { path: PathBuf, head: String },
    /// A JSON object whose columns are lists of different lengths.
    #[error("{} holds one list per column, but the lists differ in length: {lengths}", path.display())]
    UnevenColumns { path: PathBuf, lengths: String },
    /// Readable rows whose columns say nothing about their meaning.
    #[error("the columns of {} are not of a known format: {}", path.display(), columns.join(", "))]
    UnknownColumns { path: PathBuf, columns: Vec<String> },
    /// A chosen column is not in the file.
    #[error("{} has no column {column:?}; it has: {}", path.display(), columns.join(", "))]
    MissingColumn { path: PathBuf, column: String, columns: Vec<String> },
    /// Every row was reported.
    #[error("none of the {n_rows} rows of {} can be used: {}", path.display(), first_of(problems))]
    NothingUsable { path: PathBuf, n_rows: usize, problems: Vec<Problem> },
    /// Every example was left out by the template, the tokenizer or the length limit.
    #[error("no example is left to learn from, of {n_rows}: {}", first_of(problems))]
    NothingToLearn { n_rows: usize, problems: Vec<Problem> },
    /// The model's chat template does not parse.
    #[error("the model's chat template cannot be read: {reason}")]
    TemplateSyntax { reason: String },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the model's chat template refuses this conversation: {sentence}")]
    TemplateRefused { sentence: String },
    /// The template failed while rendering.
    #[error("the model's chat template fails on this conversation: {reason}")]
    TemplateFailed { reason: String },
    /// The tokenizer failed on a text.
    #[error("the tokenizer fails on a text of {n_bytes} bytes: {reason}")]
    Tokenizer { n_bytes: usize, reason: String },
}

/// The first few problems, one after the other.
fn first_of(problems: &[Problem]) -> String {
    const SHOWN: usize = 5;
    let mut text = problems.iter().take(SHOWN).map(Problem::to_string).collect::<Vec<_>>().join("; ");
    if problems.len() > SHOWN {
        text.push_str(&format!("; and {} more", problems.len() - SHOWN));
    }
    text
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::Unreadable { .. } => "data.unreadable",
            Error::Empty { .. } => "data.empty",
            Error::ForeignKind { .. } => "data.foreign_kind",
            Error::NotATable { .. } => "data.not_a_table",
            Error::UnevenColumns { .. } => "data.uneven_columns",
            Error::UnknownColumns { .. } => "data.unknown_columns",
            Error::MissingColumn { .. } => "data.missing_column",
            Error::NothingUsable { .. } => "data.nothing_usable",
            Error::NothingToLearn { .. } => "data.nothing_to_learn",
            Error::TemplateSyntax { .. } => "data.template_syntax",
            Error::TemplateRefused { .. } => "data.template_refused",
            Error::TemplateFailed { .. } => "data.template_failed",
            Error::Tokenizer { .. } => "data.tokenizer",
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::Unreadable { .. } => "Check the path and that the file may be read.".into(),
            Error::Empty { .. } => "Choose a file with examples, one JSON object per line or a CSV table.".into(),
            Error::ForeignKind { .. } => {
                "Convert it to JSONL (one JSON object per line) or save it as CSV (UTF-8), then open that file.".into()
            }
            Error::NotATable { .. } => concat!(
                "Write one JSON object per line, for example {\"prompt\": \"…\", \"completion\": \"…\"}, ",
                "or a CSV table with a header line such as instruction,input,output."
            )
            .into(),
            Error::UnevenColumns { .. } => {
                "Make the lists equally long, or write the file as one object per example.".into()
            }
            Error::UnknownColumns { .. } => {
                "Choose the column that holds the prompt and the column that holds the answer.".into()
            }
            Error::MissingColumn { .. } => "Choose among the columns of the file.".into(),
            Error::NothingUsable { .. } => "Mend the named rows and open the file again.".into(),
            Error::NothingToLearn { .. } => {
                "Mend the named rows, raise the length limit, or choose a model whose template accepts them.".into()
            }
            Error::TemplateSyntax { .. } => {
                "Use a model folder with another chat template, or mend chat_template in tokenizer_config.json.".into()
            }
            Error::TemplateRefused { .. } | Error::TemplateFailed { .. } => {
                "Change the turns so that the template accepts them, for example by moving system text into \
                 the first user turn."
                    .into()
            }
            Error::Tokenizer { .. } => "Check that tokenizer.json belongs to the model.".into(),
        }
    }
}
