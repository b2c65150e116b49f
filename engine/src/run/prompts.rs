//! Held-out prompts: which are answered at evaluations, and for whoever compares answers later.

use std::ops::ControlFlow;

use super::error::Error;
use super::prepare::{Opened, Samples};
use super::store::RunRecord;
use super::training::Answer;
use crate::data::Sample;
use crate::generate::{GenerateOptions, Generator};
use crate::plan;
use crate::step::Trainer;

/// Held-out prompts that are answered at each evaluation.
pub(super) struct Prompts {
    pub(super) ids: Vec<Vec<u32>>,
    /// Prompt and wanted answer, readable.
    texts: Vec<(String, String)>,
    max_new_tokens: usize,
}

impl Prompts {
    /// Up to `n` prompts of at most `length` tokens, what the training sees at most.
    pub(super) fn choose(opened: &Opened, held_out: &[Sample], n: usize, length: usize) -> Result<Self, Error> {
        let dataset = opened.held_out.as_ref().unwrap_or(&opened.dataset);
        let mut prompts = Prompts { ids: Vec::new(), texts: Vec::new(), max_new_tokens: 0 };
        for sample in held_out {
            if prompts.ids.len() == n {
                break;
            }
            let Ok(i) = dataset.examples.binary_search_by_key(&sample.row, |e| e.row) else { continue };
            let Some((ids, prompt, wanted)) = opened.encoder.prompt_of(&dataset.examples[i])? else { continue };
            // A byte count is a fair bound: few tokens are shorter than two bytes.
            let n_new = (wanted.len() / 2 + 8).clamp(16, plan::SAMPLE_TOKENS);
            if ids.len() > length || ids.len() + n_new > opened.source.shape().max_positions {
                continue;
            }
            prompts.max_new_tokens = prompts.max_new_tokens.max(n_new);
            prompts.ids.push(ids);
            prompts.texts.push((prompt, wanted));
        }
        Ok(prompts)
    }

    pub(super) fn answer(&self, trainer: &Trainer, opened: &Opened) -> Result<Vec<Answer>, Error> {
        if self.ids.is_empty() {
            return Ok(Vec::new());
        }
        let options = GenerateOptions {
            max_new_tokens: self.max_new_tokens,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            stop_ids: opened.encoder.stop_ids().to_vec(),
        };
        let (model, adapter) = (trainer.model(), trainer.adapter());
        let mut generator = Generator::beside_training(model, adapter, trainer.slot(), plan::SAMPLE_CACHE_BYTES)?;
        let answers = generator.generate(&self.ids, &options, &mut |_, _| ControlFlow::Continue(()))?;
        let answers = answers.iter().zip(&self.texts).map(|(ids, (prompt, wanted))| Answer {
            prompt: prompt.clone(),
            answer: opened.encoder.decode(ids, true),
            wanted: wanted.clone(),
        });
        Ok(answers.collect())
    }
}

/// A prompt of a run's data with the answer that the file gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// As the model gets it.
    pub input_ids: Vec<u32>,
    /// As people read it.
    pub text: String,
    /// The answer in the file.
    pub wanted: String,
}

/// Up to `n` prompts of a run's held-out examples, of its training examples where nothing is held out.
///
/// # Errors
/// Model or data cannot be opened any more.
pub fn prompts(record: &RunRecord, n: usize) -> Result<Vec<Prompt>, Error> {
    let opened = Opened::open(&record.given, record.date.as_deref())?;
    let samples = Samples::make(&opened, &record.given, &record.resolved)?;
    let length = record.resolved.length;
    let mut chosen = Prompts::choose(&opened, &samples.held_out, n, length)?;
    if chosen.ids.is_empty() && opened.held_out.is_none() {
        chosen = Prompts::choose(&opened, &samples.train, n, length)?;
    }
    let prompts = chosen.ids.into_iter().zip(chosen.texts);
    Ok(prompts.map(|(input_ids, (text, wanted))| Prompt { input_ids, text, wanted }).collect())
}
