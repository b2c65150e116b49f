//! What the model will see of a data file.

use std::path::Path;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::error::Error;
use crate::config::{ColumnMapping, OverLength};
use crate::data::{self, DataStats, Encoder, Format, Problem};
use crate::model::{ModelShape, ModelSource};

/// A data file through the eyes of a model.
#[derive(Clone, Debug, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Inspection {
    /// The file.
    pub dataset: InspectedDataset,
    /// Rows that are left out or cut, with the reason.
    pub problems: Vec<Problem>,
    /// Lengths and counts of the usable examples, before any limit.
    pub stats: DataStats,
    /// Examples cut to the length.
    pub n_truncated: usize,
    /// Examples left out because they are longer.
    pub n_dropped_long: usize,
    /// The model.
    pub model: InspectedModel,
    /// What the tokenizer and the template do that a person should know.
    pub encoder_notes: Vec<String>,
    /// Some examples, token by token.
    pub examples: Vec<InspectedExample>,
}

/// A data file.
#[derive(Clone, Debug, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct InspectedDataset {
    /// How rows were understood.
    pub format: Format,
    /// Its columns.
    pub columns: Vec<String>,
    /// Which columns hold what, where given or guessed.
    pub mapping: Option<ColumnMapping>,
    /// Rows of the file.
    pub n_rows: usize,
    /// Rows that were understood.
    pub n_examples: usize,
    /// What was guessed or normalised.
    pub notes: Vec<String>,
}

/// A model.
#[derive(Clone, Debug, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct InspectedModel {
    /// The decoder.
    pub shape: ModelShape,
    /// What a person should know about its files.
    pub notes: Vec<String>,
}

/// An example as the model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct InspectedExample {
    /// Row in the file, from 1.
    pub row: usize,
    /// Physical line, from 1.
    pub line: Option<usize>,
    /// Its tokens.
    pub n_tokens: usize,
    /// Of these, learned.
    pub n_learned: usize,
    /// The tokens.
    pub tokens: Vec<InspectedToken>,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct InspectedToken {
    /// Its id.
    pub id: u32,
    /// What it stands for.
    pub text: String,
    /// True where the model learns to say it.
    pub learned: bool,
}

/// Reads `data` as `model` would see it; shows `limit` examples from row `from_row` on.
///
/// # Errors
/// What is wrong with model, tokenizer or data as a whole; single rows are in [`Inspection::problems`].
pub fn inspect(
    data_path: &Path,
    model: &Path,
    columns: Option<&ColumnMapping>,
    length: Option<usize>,
    over_length: OverLength,
    from_row: usize,
    limit: usize,
) -> Result<Inspection, Error> {
    let source = ModelSource::open(model)?;
    let bundle = source.tokenizer()?;
    source.check_vocabulary(&bundle)?;
    let encoder = Encoder::new(&bundle)?;
    let dataset = data::load(data_path, columns)?;
    let prepared = data::prepare(&dataset, &encoder, length.unwrap_or(usize::MAX), over_length);
    let line_of =
        |row: usize| dataset.examples.binary_search_by_key(&row, |e| e.row).ok().and_then(|i| dataset.examples[i].line);
    let examples = prepared
        .samples
        .iter()
        .filter(|sample| sample.row >= from_row)
        .take(limit)
        .map(|sample| {
            let pieces = encoder.pieces(&sample.input_ids);
            let tokens = sample.input_ids.iter().zip(pieces).zip(&sample.learned);
            let tokens: Vec<InspectedToken> =
                tokens.map(|((&id, text), &learned)| InspectedToken { id, text, learned }).collect();
            InspectedExample {
                row: sample.row,
                line: line_of(sample.row),
                n_tokens: tokens.len(),
                n_learned: tokens.iter().filter(|t| t.learned).count(),
                tokens,
            }
        })
        .collect();
    Ok(Inspection {
        dataset: InspectedDataset {
            format: dataset.format,
            columns: dataset.columns.clone(),
            mapping: dataset.mapping.clone(),
            n_rows: dataset.n_rows,
            n_examples: dataset.examples.len(),
            notes: dataset.notes.clone(),
        },
        problems: prepared.problems,
        stats: prepared.uncut,
        n_truncated: prepared.n_truncated,
        n_dropped_long: prepared.n_dropped_long,
        model: InspectedModel { shape: source.shape().clone(), notes: source.notes().to_vec() },
        encoder_notes: encoder.notes().to_vec(),
        examples,
    })
}
