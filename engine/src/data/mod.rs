//! From a file of examples to token ids with labels.
//!
//! ```text
//! file ── encoding ── read_json | read_csv ──> Table ── layout ──> Dataset of Examples
//!                                                                     │ Encoder: template, spans, tokenizer
//!                                                                     v
//!                            Batch <── packing <── Samples(ids, learned) ── prepare: length limit, DataStats
//! ```
//!
//! Two rules hold everywhere: every row of a file is either used or reported as a [`Problem`] with its line and the
//! reason, and nothing is guessed from a file's name.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ts_rs::TS;

use crate::config::ColumnMapping;

pub mod batch;
mod encoder;
mod encoding;
mod error;
mod layout;
mod lines;
mod message;
mod packing;
mod pieces;
mod prepare;
mod python;
mod read_csv;
mod read_json;
mod spans;
mod template;
#[cfg(test)]
mod test_support;
mod tool_calls;

pub use batch::Batch;
pub use encoder::{Encoder, Sample};
pub use error::Error;
pub use message::Message;
pub use packing::{batch, micro_batches, runs};
pub use prepare::{DataStats, Prepared, prepare, split};

/// The examples of one file, and the rows that are none.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Where it was read from.
    pub path: PathBuf,
    /// How rows were understood.
    pub format: Format,
    /// Column names or keys in order of first appearance.
    pub columns: Vec<String>,
    /// Which columns hold what, where that was given or guessed; a guess is also in `notes`.
    pub mapping: Option<ColumnMapping>,
    /// Rows of the file: `examples.len()` plus the left-out rows among `problems`.
    pub n_rows: usize,
    /// Usable rows in file order.
    pub examples: Vec<Example>,
    /// Rows that are not used, in file order.
    pub problems: Vec<Problem>,
    /// What the person should see before training: encoding, guesses, normalisations.
    pub notes: Vec<String>,
}

/// How the rows of a file were understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Format {
    /// `messages` with `role` and `content` (OpenAI, Hugging Face).
    Messages,
    /// `conversations` with `from` and `value`.
    #[serde(rename = "sharegpt")]
    ShareGpt,
    /// `instruction`, optional `input`, `output`.
    Alpaca,
    /// `prompt` and `completion`.
    PromptCompletion,
    /// `text`, learned as a whole.
    Text,
    /// Own column names, by a [`ColumnMapping`].
    Columns,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Format::Messages => "messages (role, content)",
            Format::ShareGpt => "ShareGPT (from, value)",
            Format::Alpaca => "Alpaca (instruction, input, output)",
            Format::PromptCompletion => "prompt and completion",
            Format::Text => "plain text",
            Format::Columns => "own columns",
        })
    }
}

/// One usable row.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Row, from 1.
    pub row: usize,
    /// Physical line on which the row begins, from 1.
    pub line: Option<usize>,
    /// What it holds.
    pub content: Content,
}

/// What an example holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A conversation; the assistant's turns are learned.
    Chat {
        /// Turns in order.
        messages: Vec<Message>,
        /// Tool descriptions for the template.
        tools: Option<Value>,
    },
    /// A task and its answer (Alpaca, own columns): one user turn, or the Alpaca prompt where the model has
    /// no template.
    Instruction {
        /// System text.
        system: Option<String>,
        /// The task.
        instruction: String,
        /// Further context; `None` where the cell is blank.
        input: Option<String>,
        /// The learned answer.
        output: String,
    },
    /// A prompt and its continuation: one user turn, or both laid end to end where the model has no template.
    Completion {
        /// Not learned.
        prompt: String,
        /// Learned.
        completion: String,
    },
    /// Learned as a whole.
    Text(String),
}

/// A row that is not used as it stands, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Problem {
    /// Row, from 1.
    pub row: usize,
    /// Physical line on which the row begins (for an unclosed quote, the line of the quote), from 1.
    pub line: Option<usize>,
    /// Stable name, for example `json_incomplete`.
    pub code: String,
    /// What is wrong, with the values.
    pub reason: String,
    /// False where the row is trained all the same (cut to the length limit).
    pub left_out: bool,
}

impl Problem {
    pub(crate) fn new(row: usize, line: Option<usize>, code: &str, reason: impl Into<String>) -> Self {
        Self { row, line, code: code.into(), reason: reason.into(), left_out: true }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "row {} (line {line}): {}", self.row, self.reason),
            None => write!(f, "row {}: {}", self.row, self.reason),
        }
    }
}

/// Rows as a reader found them, before their meaning is known.
#[derive(Debug, Default)]
pub(crate) struct Table<'a> {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row<'a>>,
    pub(crate) problems: Vec<Problem>,
    /// Rows seen, readable or not.
    pub(crate) n_rows: usize,
    pub(crate) notes: Vec<String>,
}

/// One readable row.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) row: usize,
    pub(crate) line: Option<usize>,
    /// Last physical line of the row.
    pub(crate) last_line: usize,
    /// An object by column; for JSON also a list or a text.
    pub(crate) value: Value,
    /// The row as written, where numbers may have lost their spelling on the way (JSON).
    pub(crate) source: &'a str,
}

impl Row<'_> {
    pub(crate) fn problem(&self, code: &str, reason: impl Into<String>) -> Problem {
        Problem::new(self.row, self.line, code, reason)
    }
}

impl Table<'_> {
    /// Takes the names of `value`'s keys into `columns`.
    fn note_columns(&mut self, value: &Value) {
        let Value::Object(map) = value else { return };
        for key in map.keys() {
            if !self.columns.iter().any(|column| column == key) {
                self.columns.push(key.clone());
            }
        }
    }
}

/// Reads JSONL, JSON or CSV, recognised by content. `columns` names the columns where the person chose them.
///
/// Rows that cannot be used are in [`Dataset::problems`]; the call fails only where no row is usable, the file is no
/// data file, or the columns have to be chosen.
pub fn load(path: &Path, columns: Option<&ColumnMapping>) -> Result<Dataset, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Unreadable { path: path.into(), source })?;
    if let Some(kind) = encoding::foreign_kind(&bytes) {
        return Err(Error::ForeignKind { path: path.into(), kind });
    }
    let decoded = encoding::decode(&bytes);
    drop(bytes);
    let text = decoded.text.as_str();
    if text.trim().is_empty() {
        return Err(Error::Empty { path: path.into() });
    }
    let mut table =
        if read_json::looks_like_json(text) { read_json::read(text, path)? } else { read_csv::read(text, path)? };
    leave_out_broken_lines(&mut table, &decoded);
    table.notes.splice(0..0, decoded.notes.iter().cloned());
    let dataset = layout::examples(table, path, columns)?;
    if dataset.examples.is_empty() {
        return Err(Error::NothingUsable { path: path.into(), n_rows: dataset.n_rows, problems: dataset.problems });
    }
    Ok(dataset)
}

/// Rows with bytes that are no text would be trained with U+FFFD in them: they are reported instead.
fn leave_out_broken_lines(table: &mut Table<'_>, decoded: &encoding::Decoded) {
    if decoded.broken_lines.is_empty() {
        return;
    }
    let problems = &mut table.problems;
    table.rows.retain(|row| {
        let Some((line, byte)) = row.line.and_then(|first| decoded.broken_between(first, row.last_line)) else {
            return true;
        };
        problems.push(row.problem("not_utf8", format!("line {line} holds the byte 0x{byte:02X}, which is not UTF-8")));
        false
    });
}
