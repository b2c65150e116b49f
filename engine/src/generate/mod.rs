//! Answers: a decoder with a key/value cache over many prompts at once, greedy or sampled.
//!
//! ```text
//! prompts ── end to end, in pieces ──> blocks ──> last row of each ──> head ──> token ─┐
//!                                        ^                                             │
//!                                        └── one row a sequence, one product a layer ──┘
//! ```
//!
//! A decoding step reads the weights once, however many sequences are answered; a finished one leaves the batch. What
//! all prompts begin with (a system text) is computed once.

mod blocks;
mod error;
mod sampling;

use std::ops::ControlFlow;

pub use error::Error;

use crate::config::{ComputeDtype, LoraConfig};
use crate::model::group::GroupShape;
use crate::model::weights::Slot;
use crate::model::{Adapter, Model, ModelShape};
use blocks::{Blocks, Piece, ROWS, Room};
use sampling::Sampler;
pub(crate) use sampling::largest;

/// Bytes of keys and values that are held at once; more prompts than fit are answered one group after the other.
const CACHE_BYTES: usize = 1 << 30;

/// How prompts are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Tokens after which an answer ends in any case.
    pub max_new_tokens: usize,
    /// 0 takes the most probable token; otherwise logits are divided by it before the draw.
    pub temperature: f32,
    /// Draw from the smallest set of tokens with at least this probability together; above 0, at most 1.
    pub top_p: f32,
    /// Of the draws. A prompt's answer depends on the seed and its place among the prompts, not on its neighbours.
    pub seed: u64,
    /// Tokens that end an answer. They are not part of it.
    pub stop_ids: Vec<u32>,
}

impl GenerateOptions {
    /// The most probable tokens until one of `stop_ids`.
    pub fn greedy(max_new_tokens: usize, stop_ids: &[u32]) -> Self {
        Self { max_new_tokens, temperature: 0.0, top_p: 1.0, seed: 0, stop_ids: stop_ids.to_vec() }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |field, value: f32, expected| Err(Error::Option { field, value: value.into(), expected });
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return bad("temperature", self.temperature, "it is 0 or more");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top_p", self.top_p, "it is above 0 and at most 1");
        }
        Ok(())
    }
}

/// What a [`Generator`] is asked for, for a plan of its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) n_prompts: usize,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Tokens of the longest one.
    pub(crate) longest_tokens: usize,
    pub(crate) max_new_tokens: usize,
    /// Keys and values held at once, see [`Generator::beside_training`].
    pub(crate) cache_bytes: usize,
}

/// Most bytes that answering takes beside the model, the adapter and a lent slot.
pub(crate) fn most_bytes(shape: &ModelShape, lora: &LoraConfig, compute: ComputeDtype, asked: &Asked) -> u64 {
    if asked.n_prompts == 0 {
        return 0;
    }
    let Asked { n_prompts, prompt_tokens, longest_tokens, max_new_tokens, cache_bytes } = *asked;
    let longest_tokens = longest_tokens.min(shape.max_positions);
    let n_positions = (longest_tokens + max_new_tokens).min(shape.max_positions);
    // As `Generator::wave` divides them: any prompts that the cache may hold at once, or a single longer one. The last token of an
    // answer is never read again.
    let cached = (prompt_tokens + n_prompts * max_new_tokens.saturating_sub(1)).min(n_prompts * (n_positions - 1));
    let n_cache_rows = cached.min(cache_rows(shape, compute.size_bytes(), cache_bytes)).max(n_positions - 1);
    // Those that wait at once are in one cache.
    let n_rows = prompt_tokens.min(n_cache_rows).clamp(n_prompts.min(ROWS), ROWS);
    let room = Room { n_rows, n_cache_rows, n_positions, n_head_rows: n_prompts };
    // The logits as they are read.
    let logits = (n_prompts.min(ROWS) * shape.vocab_rows) as u64 * ComputeDtype::F32.size_bytes();
    blocks::bytes(shape, lora, compute, room) + logits
}

/// Rows of a cache of so many bytes.
fn cache_rows(shape: &ModelShape, element_bytes: u64, cache_bytes: usize) -> usize {
    cache_bytes / (shape.n_layers * 2 * shape.kv_dim() * element_bytes as usize)
}

/// Answers prompts with a model, with or without an adapter.
///
/// Memory grows with what is asked and is kept for the next call, as is the beginning of the last call's first
/// sequence: a conversation that goes on is not read again. While a generator with an adapter lives, no other adapter
/// may be used with the same model (a dense base has it in its padding).
pub struct Generator<'a> {
    model: &'a Model,
    blocks: Blocks<'a>,
    /// Tokens whose keys and values are in the first rows of the cache.
    kept: Vec<u32>,
    cache_bytes: usize,
}

/// One prompt on its way.
struct Sequence<'p> {
    /// Index among all prompts.
    prompt: usize,
    prompt_ids: &'p [u32],
    generated: Vec<u32>,
    /// Tokens it may have altogether.
    n_new: usize,
    cache_row: usize,
    /// Rows in the cache.
    n_cached: usize,
    done: bool,
}

impl Sequence<'_> {
    /// Tokens that are not in the cache yet, at most `limit`.
    fn waiting(&self, limit: usize) -> &[u32] {
        let n_prompt = self.prompt_ids.len();
        if self.n_cached < n_prompt {
            let end = n_prompt.min(self.n_cached + limit);
            &self.prompt_ids[self.n_cached..end]
        } else {
            let rest = &self.generated[self.n_cached - n_prompt..];
            &rest[..rest.len().min(limit)]
        }
    }

    fn n_tokens(&self) -> usize {
        self.prompt_ids.len() + self.generated.len()
    }
}

impl<'a> Generator<'a> {
    /// A generator for `model`, which has to be loaded for the adapter's ranks.
    pub fn new(model: &'a Model, adapter: Option<&'a Adapter>) -> Result<Self, Error> {
        Self::with(model, adapter, None, CACHE_BYTES)
    }

    /// A generator that takes little memory beside a training that waits for it: it dequantises in the training's `slot` and holds
    /// at most `cache_bytes` of keys and values at once, or those of one prompt where these are more.
    pub(crate) fn beside_training(
        model: &'a Model,
        adapter: &'a Adapter,
        slot: Option<Slot>,
        cache_bytes: usize,
    ) -> Result<Self, Error> {
        Self::with(model, Some(adapter), slot, cache_bytes)
    }

    fn with(
        model: &'a Model,
        adapter: Option<&'a Adapter>,
        slot: Option<Slot>,
        cache_bytes: usize,
    ) -> Result<Self, Error> {
        if let Some(adapter) = adapter
            && GroupShape::all(&model.shape, adapter.lora()) != model.groups
        {
            let model_ranks = [0, 1, 2, 3].map(|i| model.groups[i].rank);
            return Err(Error::AdapterMismatch { adapter_rank: adapter.lora().rank, model_ranks });
        }
        Ok(Self { model, blocks: Blocks::new(model, adapter, slot)?, kept: Vec::new(), cache_bytes })
    }

    /// Bytes that are allocated at present beside the model and the adapter.
    pub fn bytes(&self) -> u64 {
        self.blocks.bytes()
    }

    /// Answers every prompt; the result is in the prompts' order, without prompts and stop tokens.
    ///
    /// `on_token(prompt, token)` is called as tokens come; `Break` ends that prompt's answer after this token. An
    /// answer also ends where the model has no further position.
    pub fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        on_token: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>, Error> {
        options.check()?;
        let mut samplers: Vec<Sampler> =
            (0..prompts.len()).map(|i| Sampler::new(options.temperature, options.top_p, options.seed, i)).collect();
        let mut choose = |prompt: usize, logits: &[f32]| samplers[prompt].next(logits);
        self.generate_by(prompts, options, &mut choose, on_token)
    }

    /// [`Self::generate`] with `choose(prompt, logits)` in place of the sampler; `None` where the logits are not
    /// finite.
    pub(crate) fn generate_by(
        &mut self,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
        choose: &mut dyn FnMut(usize, &[f32]) -> Option<u32>,
        on_token: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<u32>>, Error> {
        for (i, prompt) in prompts.iter().enumerate() {
            self.check_prompt(i, prompt)?;
        }
        let mut answers = vec![Vec::new(); prompts.len()];
        let mut left: &[Vec<u32>] = prompts;
        while !left.is_empty() && options.max_new_tokens > 0 {
            let first = prompts.len() - left.len();
            let (mut wave, n_rows) = self.wave(left, first, options.max_new_tokens);
            left = &left[wave.len()..];
            self.answer(&mut wave, n_rows, options, choose, on_token)?;
            for sequence in wave {
                answers[sequence.prompt] = sequence.generated;
            }
        }
        Ok(answers)
    }

    /// As many of the first prompts as the cache may hold, at least one, with the rows they need.
    fn wave<'p>(&self, prompts: &'p [Vec<u32>], first: usize, max_new_tokens: usize) -> (Vec<Sequence<'p>>, usize) {
        let shape = &self.model.shape;
        let budget = cache_rows(shape, self.model.dtype().size_in_bytes() as u64, self.cache_bytes);
        let mut wave = Vec::new();
        let mut n_rows = 0;
        for (i, prompt_ids) in prompts.iter().enumerate() {
            let n_new = max_new_tokens.min(shape.max_positions - prompt_ids.len());
            // The last token is never read again.
            let n = prompt_ids.len() + n_new.saturating_sub(1);
            if i > 0 && n_rows + n > budget {
                break;
            }
            wave.push(Sequence {
                prompt: first + i,
                prompt_ids,
                generated: Vec::new(),
                n_new,
                cache_row: n_rows,
                n_cached: 0,
                done: n_new == 0,
            });
            n_rows += n;
        }
        (wave, n_rows)
    }

    fn answer(
        &mut self,
        wave: &mut [Sequence],
        n_cache_rows: usize,
        options: &GenerateOptions,
        choose: &mut dyn FnMut(usize, &[f32]) -> Option<u32>,
        on_token: &mut dyn FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let n_positions = wave.iter().map(|s| s.prompt_ids.len() + s.n_new).max().unwrap_or(0);
        let n_waiting: usize = wave.iter().map(|s| s.prompt_ids.len()).sum();
        // What the cache keeps from the last call, but at least one row of the prompt has to be computed.
        let ids = wave[0].prompt_ids;
        let n_kept = common_prefix(&self.kept, ids).min(ids.len() - 1);
        self.kept.truncate(n_kept);
        self.blocks.reserve(n_waiting.min(ROWS).max(wave.len().min(ROWS)), n_cache_rows, n_positions, n_kept)?;
        wave[0].n_cached = n_kept;
        self.share_beginning(wave)?;

        while wave.iter().any(|s| !s.done) {
            // Some rows of every sequence in turn: all of a prompt, or the token that came last.
            let mut n_rows = 0;
            let mut pieces = Vec::new();
            let mut taken = Vec::new();
            for (i, sequence) in wave.iter().enumerate().filter(|(_, s)| !s.done) {
                let ids = sequence.waiting(ROWS - n_rows);
                // A prompt comes first: a sequence that waits for its next token waits a little longer.
                if ids.is_empty() {
                    continue;
                }
                pieces.push(Piece { ids, cache_row: sequence.cache_row, n_before: sequence.n_cached });
                n_rows += ids.len();
                taken.push((i, ids.len(), n_rows));
                if n_rows == ROWS {
                    break;
                }
            }
            self.blocks.forward(&pieces)?;
            drop(pieces);
            let mut ends = Vec::new();
            for &(i, n, end) in &taken {
                wave[i].n_cached += n;
                if wave[i].n_cached == wave[i].n_tokens() {
                    ends.push((i, end as u32 - 1));
                }
            }
            let rows: Vec<u32> = ends.iter().map(|&(_, row)| row).collect();
            let mut tokens = vec![None; ends.len()];
            self.blocks.logits(&rows, |r, logits| tokens[r] = choose(wave[ends[r].0].prompt, logits))?;
            for (&(i, _), token) in ends.iter().zip(tokens) {
                let sequence = &mut wave[i];
                let n_generated = sequence.generated.len();
                let token = token.ok_or(Error::NotFinite { prompt: sequence.prompt, n_generated })?;
                if options.stop_ids.contains(&token) {
                    sequence.done = true;
                    continue;
                }
                sequence.generated.push(token);
                let ended = on_token(sequence.prompt, token).is_break();
                sequence.done = ended || sequence.generated.len() == sequence.n_new;
            }
        }
        let first = &wave[0];
        self.kept.clear();
        self.kept.extend(first.prompt_ids.iter().chain(&first.generated).take(first.n_cached));
        Ok(())
    }

    /// Computes what all prompts of a wave begin with once, in the rows of the first, and copies it to the others.
    fn share_beginning(&mut self, wave: &mut [Sequence]) -> Result<(), Error> {
        let Some((first, others)) = wave.split_first_mut() else { return Ok(()) };
        let shared = others.iter().map(|s| common_prefix(s.prompt_ids, first.prompt_ids).min(s.prompt_ids.len() - 1));
        let Some(n) = shared.min().map(|n| n.min(first.prompt_ids.len() - 1)) else { return Ok(()) };
        while first.n_cached < n {
            let ids = first.waiting(ROWS.min(n - first.n_cached));
            let n_new = ids.len();
            self.blocks.forward(&[Piece { ids, cache_row: 0, n_before: first.n_cached }])?;
            first.n_cached += n_new;
        }
        let starts: Vec<usize> = others.iter().map(|s| s.cache_row).collect();
        self.blocks.copy_first_rows(n, &starts)?;
        others.iter_mut().for_each(|s| s.n_cached = n);
        Ok(())
    }

    /// Logits after every token of `ids`, row-major `[ids.len(), vocab_rows]`.
    pub fn logits(&mut self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        let mut all = Vec::with_capacity(ids.len() * self.model.shape.vocab_rows);
        self.each_logits(ids, 0, &mut |_, logits| all.extend_from_slice(logits))?;
        Ok(all)
    }

    /// Calls `each(position, logits)` for every token of `ids` from position `from` on, without holding all of them.
    pub(crate) fn each_logits(
        &mut self,
        ids: &[u32],
        from: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.check_prompt(0, ids)?;
        self.kept.clear();
        self.blocks.reserve(ids.len().min(ROWS), ids.len(), ids.len(), 0)?;
        for (chunk, ids) in ids.chunks(ROWS).enumerate() {
            let n_before = chunk * ROWS;
            self.blocks.forward(&[Piece { ids, cache_row: 0, n_before }])?;
            let wanted = from.saturating_sub(n_before).min(ids.len());
            let rows: Vec<u32> = (wanted as u32..ids.len() as u32).collect();
            self.blocks.logits(&rows, |i, logits| each(n_before + wanted + i, logits))?;
        }
        Ok(())
    }

    fn check_prompt(&self, prompt: usize, ids: &[u32]) -> Result<(), Error> {
        let shape = &self.model.shape;
        if ids.is_empty() {
            return Err(Error::EmptyPrompt { prompt });
        }
        if ids.len() > shape.max_positions {
            return Err(Error::PromptTooLong { prompt, n_tokens: ids.len(), max_positions: shape.max_positions });
        }
        match ids.iter().find(|&&id| id as usize >= shape.vocab_rows) {
            Some(&id) => Err(Error::TokenPastEmbedding { prompt, id, vocab_rows: shape.vocab_rows }),
            None => Ok(()),
        }
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
