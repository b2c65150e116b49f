//! From an example to token ids with labels, and from a conversation to a prompt.

use serde_json::Value;
use tokenizers::{PostProcessorWrapper, Tokenizer};

use super::pieces::Pieces;
use super::python::Moment;
use super::spans::{self, Failure, Habits};
use super::template::{ChatTemplate, PLAIN_TEMPLATE, special_tokens};
use super::{Content, Error, Example, Message, Problem};
use crate::model::TokenizerBundle;

/// Token ids of one example and which of them are learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Row of the example, from 1.
    pub row: usize,
    /// Token ids, `n`.
    pub input_ids: Vec<u32>,
    /// `learned[i]`: predicting token `i` from those before it is learned, `n`. Always false for the first token.
    pub learned: Vec<bool>,
    /// Length before it was cut to the limit.
    pub truncated_from: Option<usize>,
}

impl Sample {
    /// Learned tokens.
    pub fn n_learned(&self) -> usize {
        self.learned.iter().filter(|&&learned| learned).count()
    }
}

/// A model's tokenizer and chat template, ready to encode examples.
///
/// | content | model with chat template | without |
/// | --- | --- | --- |
/// | chat | the template | `### Instruction:` / `### Response:` blocks, each answer ended by EOS |
/// | instruction | system, user = instruction, blank line, input; assistant = output | the Alpaca prompt, output, EOS |
/// | completion | user = prompt, assistant = completion | prompt and completion end to end, EOS |
/// | text | text, EOS | text, EOS |
///
/// Learned are the assistant's answers each with its end-of-turn token, completions and outputs with EOS, and texts as
/// a whole. A tokenizer that begins text with BOS gets it exactly once, also where the template has written it.
pub struct Encoder {
    /// Without post-processor, truncation and padding: special tokens are placed here.
    tokenizer: Tokenizer,
    pieces: Pieces,
    template: ChatTemplate,
    has_own_template: bool,
    habits: Habits,
    bos: Option<u32>,
    adds_bos: bool,
    eos: Option<u32>,
    stop_ids: Vec<u32>,
    notes: Vec<String>,
    moment: Moment,
}

impl Encoder {
    /// Prepares `bundle`'s tokenizer and template. A template that prints the date prints today's.
    ///
    /// Fails where the template does not parse.
    pub fn new(bundle: &TokenizerBundle) -> Result<Self, Error> {
        Self::at(bundle, Moment::now())
    }

    /// As [`Encoder::new`], with the date (`2025-08-01`) that a template prints. A resumed run passes the date it
    /// started with, so that its tokens stay the same. A text that is no date means today.
    pub fn on_date(bundle: &TokenizerBundle, date: &str) -> Result<Self, Error> {
        Self::at(bundle, Moment::of_date(date).unwrap_or_else(Moment::now))
    }

    /// The date that the template prints, where it prints one.
    pub fn date(&self) -> Option<String> {
        self.template.asked_for_date().then(|| self.moment.date())
    }

    fn at(bundle: &TokenizerBundle, moment: Moment) -> Result<Self, Error> {
        let mut tokenizer = bundle.tokenizer.clone();
        let fails = |reason: tokenizers::Error| Error::Tokenizer { n_bytes: 0, reason: reason.to_string() };
        tokenizer.with_padding(None).with_truncation(None).map_err(fails)?;
        let bos = bundle.bos.as_ref().map(|(id, _)| *id);
        let eos = bundle.eos.as_ref().map(|(id, _)| *id);
        let adds_bos = bos.is_some() && bundle.add_bos;
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);

        let mut tokens = special_tokens(&bundle.tokenizer_config);
        for (name, token) in [("bos_token", &bundle.bos), ("eos_token", &bundle.eos), ("pad_token", &bundle.pad)] {
            if let Some((_, text)) = token {
                tokens.insert(name.into(), text.clone().into());
            }
        }
        let own = bundle.chat_template.as_deref();
        let template = ChatTemplate::new(own.unwrap_or(PLAIN_TEMPLATE), tokens, moment)?;
        let added = tokenizer.get_added_tokens_decoder();
        let first_special = |text: &str| {
            let encoding = tokenizer.encode(text, false).ok()?;
            let at = encoding.get_ids().iter().position(|id| added.contains_key(id) || Some(*id) == eos)?;
            let (start, end) = encoding.get_offsets()[at];
            Some((end, encoding.get_ids()[at], text.get(start..end)?.to_string()))
        };
        let bos_text = bundle.bos.as_ref().map(|(_, text)| text.as_str());
        let habits = spans::probe(&template, bos_text, first_special);

        let mut stop_ids: Vec<u32> = eos.into_iter().chain(bundle.eos_ids.iter().copied()).collect();
        stop_ids.extend(habits.turn_end.as_ref().map(|end| end.id));
        let mut seen = std::collections::HashSet::new();
        stop_ids.retain(|id| seen.insert(*id));

        let mut encoder = Self {
            pieces: Pieces::new(&tokenizer, &bundle.tokenizer_json),
            tokenizer,
            template,
            has_own_template: own.is_some(),
            habits,
            bos,
            adds_bos,
            eos,
            stop_ids,
            notes: Vec::new(),
            moment,
        };
        encoder.notes = encoder.observations(bundle);
        Ok(encoder)
    }

    /// What is unusual about the template.
    fn observations(&self, bundle: &TokenizerBundle) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.has_own_template {
            notes.push(
                "The model has no chat template. Conversations and instructions are written with the headings \
                 ### Instruction: and ### Response:, prompts and completions end to end."
                    .to_string(),
            );
            if self.eos.is_none() {
                notes.push("The tokenizer names no end-of-sequence token: the model cannot learn to stop.".into());
            }
            return notes;
        }
        if let Some(end) = &self.habits.turn_end
            && let Some((eos, eos_text)) = &bundle.eos
            && end.id != *eos
        {
            notes.push(format!(
                "The template ends turns with {} ({}), but the tokenizer's end-of-sequence token is \
                 {eos_text} ({eos}). The first is learned; answers stop at both.",
                end.token, end.id
            ));
        }
        if self.habits.probed && self.habits.turn_end.is_none() {
            notes.push(match &bundle.eos {
                Some((eos, text)) => format!(
                    "The template ends turns with no special token; {text} ({eos}) is learned at the end of \
                     each conversation."
                ),
                None => "Neither the template nor the tokenizer ends a turn: the model cannot learn to stop.".into(),
            });
        }
        if let Some(block) = &self.habits.unasked_block {
            notes.push(format!(
                "The template adds a system block to conversations without a system message: {block:?}."
            ));
        }
        if let Some(date) = self.date() {
            notes.push(format!("The template prints the date; {date} is used for all examples."));
        }
        if self.habits.prompt_says_more {
            let added = self.habits.generation_prompt.as_deref().unwrap_or_default();
            notes.push(format!(
                "The template begins answers with {added:?}, which its conversations do not hold; answers are \
                 learned without it."
            ));
        }
        if let (true, Some((id, text))) = (self.adds_bos, &bundle.bos)
            && self
                .template
                .render(&[Message::new("user", "x")], None, false)
                .is_ok_and(|rendered| !rendered.starts_with(text.as_str()))
        {
            notes.push(format!(
                "The template writes no {text} ({id}); it is added once, as the tokenizer does for text."
            ));
        }
        notes
    }

    /// Token ids of an example with its labels, whole.
    ///
    /// The problem says why it cannot be learned: the template's own sentence, or no learned token.
    pub fn encode(&self, example: &Example) -> Result<Sample, Problem> {
        let problem = |code: &str, reason: String| Problem::new(example.row, example.line, code, reason);
        let (text, spans, append_eos) = match self.conversation(&example.content) {
            Some((messages, tools)) => {
                let found =
                    spans::answers(&self.template, &self.habits, &messages, tools).map_err(
                        |failure| match failure {
                            Failure::Template(error @ Error::TemplateRefused { .. }) => {
                                problem("template_refused", error.to_string())
                            }
                            Failure::Template(error) => problem("template_failed", error.to_string()),
                            Failure::Unwritten { turn } => problem(
                                "unwritten_turn",
                                format!(
                                    "the model's chat template does not write all of turn {turn}: \
                                     its text or its tool calls would be lost"
                                ),
                            ),
                            Failure::Unclear { turn } => problem(
                                "mask",
                                format!(
                                    "it cannot be told which part of the template's text is the answer of turn {turn}"
                                ),
                            ),
                        },
                    )?;
                (found.text, found.spans, found.append_eos)
            }
            None => {
                let (prompt, answer) = self.plain_parts(&example.content);
                let text = prompt + answer;
                let start = text.len() - answer.len();
                let span = (start, text.len());
                (text, vec![span], true)
            }
        };
        let (mut input_ids, offsets) = self.tokenise(&text).map_err(|error| problem("tokenizer", error.to_string()))?;
        let mut learned = vec![false; input_ids.len()];
        for &(start, end) in &spans {
            let covered = mark(&mut learned, &offsets, start, end);
            if covered == 0 {
                let lost = text.get(start..end).unwrap_or_default().chars().take(40).collect::<String>();
                return Err(problem("mask", format!("no token belongs to the answer {lost:?}")));
            }
        }
        if append_eos
            && let Some(eos) = self.eos
            && input_ids.last() != Some(&eos)
        {
            input_ids.push(eos);
            learned.push(true);
        }
        self.place_bos(&mut input_ids, Some(&mut learned));
        if let Some(first) = learned.first_mut() {
            *first = false;
        }
        let sample = Sample { row: example.row, input_ids, learned, truncated_from: None };
        match sample.n_learned() {
            0 => Err(problem("nothing_learned", "no token of this row would be learned".into())),
            _ => Ok(sample),
        }
    }

    /// Ids of a chat prompt, up to where the assistant begins to speak; BOS as in training.
    pub fn prompt_ids(&self, messages: &[Message]) -> Result<Vec<u32>, Error> {
        self.prompt_ids_with(messages, None)
    }

    fn prompt_ids_with(&self, messages: &[Message], tools: Option<&Value>) -> Result<Vec<u32>, Error> {
        let text = spans::prompt(&self.template, &self.habits, messages, tools)?;
        self.ids(&text)
    }

    /// Tokens of a text by itself, without what surrounds a turn.
    pub fn n_tokens(&self, text: &str) -> usize {
        self.ids(text).map_or(0, |ids| ids.len())
    }

    /// For samples from held-out examples: ids of everything before the last learned answer, that prompt readable, and
    /// the wanted answer. `None` for plain text, which has no prompt.
    pub fn prompt_of(&self, example: &Example) -> Result<Option<(Vec<u32>, String, String)>, Error> {
        if let Some((messages, tools)) = self.conversation(&example.content) {
            let Some(last) = messages.iter().rposition(Message::is_learned) else { return Ok(None) };
            let before = &messages[..last];
            if before.is_empty() {
                return Ok(None);
            }
            let ids = self.prompt_ids_with(before, tools)?;
            let readable = match before {
                [only] => only.content.clone(),
                turns => turns.iter().map(|m| format!("{}: {}", m.role, m.content)).collect::<Vec<_>>().join("\n"),
            };
            let answer = &messages[last];
            let wanted = match answer.extra.get("tool_calls") {
                Some(calls) if answer.content.trim().is_empty() => super::python::json_dumps(calls, None),
                _ => answer.content.clone(),
            };
            return Ok(Some((ids, readable, wanted)));
        }
        if matches!(example.content, Content::Text(_)) {
            return Ok(None);
        }
        let (prompt, answer) = self.plain_parts(&example.content);
        Ok(Some((self.ids(&prompt)?, prompt, answer.to_string())))
    }

    /// The text of token ids; with `skip_special`, without special tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        // The tokenizer only fails on ids it lacks, which it leaves out.
        self.tokenizer.decode(ids, skip_special).unwrap_or_default()
    }

    /// Tokens that end an answer: EOS, those of the generation config, and the template's end-of-turn token.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The template's end-of-turn token, id and text, where it has one.
    pub fn turn_end(&self) -> Option<(u32, &str)> {
        self.habits.turn_end.as_ref().map(|end| (end.id, end.token.as_str()))
    }

    /// Each token for reading; bytes of split characters as `‹F0›`.
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|&id| self.pieces.shown(&self.tokenizer, id)).collect()
    }

    /// The bytes of one token, for putting a stream of tokens together.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.pieces.bytes(&self.tokenizer, id)
    }

    /// What the person should know about tokenizer and template.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The example as turns, where it is written by a template.
    fn conversation<'e>(&self, content: &'e Content) -> Option<(std::borrow::Cow<'e, [Message]>, Option<&'e Value>)> {
        if let Content::Chat { messages, tools } = content {
            return Some((messages.as_slice().into(), tools.as_ref()));
        }
        if !self.has_own_template {
            return None;
        }
        let mut messages = Vec::new();
        match content {
            Content::Instruction { system, instruction, input, output } => {
                messages.extend(system.as_ref().map(|system| Message::new("system", system)));
                let task = match input {
                    Some(input) => format!("{instruction}\n\n{input}"),
                    None => instruction.clone(),
                };
                messages.extend([Message::new("user", task), Message::new("assistant", output)]);
            }
            Content::Completion { prompt, completion } => {
                messages.extend([Message::new("user", prompt), Message::new("assistant", completion)]);
            }
            Content::Chat { .. } | Content::Text(_) => return None,
        }
        Some((messages.into(), None))
    }

    /// Unlearned and learned text of an example that no template writes.
    fn plain_parts<'e>(&self, content: &'e Content) -> (String, &'e str) {
        match content {
            Content::Instruction { system, instruction, input, output } => {
                (alpaca_prompt(system.as_deref(), instruction, input.as_deref()), output)
            }
            Content::Completion { prompt, completion } => (prompt.clone(), completion),
            Content::Text(text) => (String::new(), text),
            Content::Chat { .. } => (String::new(), ""),
        }
    }

    /// Ids and byte ranges of a text, special tokens recognised, none added.
    fn tokenise(&self, text: &str) -> Result<(Vec<u32>, Vec<(usize, usize)>), Error> {
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|reason| Error::Tokenizer { n_bytes: text.len(), reason: reason.to_string() })?;
        Ok((encoding.get_ids().to_vec(), encoding.get_offsets().to_vec()))
    }

    fn ids(&self, text: &str) -> Result<Vec<u32>, Error> {
        let (mut ids, _) = self.tokenise(text)?;
        self.place_bos(&mut ids, None);
        Ok(ids)
    }

    /// BOS once at the start, where the tokenizer adds it or the text begins with it.
    fn place_bos(&self, ids: &mut Vec<u32>, mut learned: Option<&mut Vec<bool>>) {
        let Some(bos) = self.bos else { return };
        let n = ids.iter().take_while(|&&id| id == bos).count();
        if n > 1 {
            ids.drain(1..n);
            if let Some(learned) = &mut learned {
                learned.drain(1..n);
            }
        } else if n == 0 && self.adds_bos {
            ids.insert(0, bos);
            if let Some(learned) = &mut learned {
                learned.insert(0, false);
            }
        }
    }
}

/// Marks the tokens that overlap the bytes `start..end`; a token across a border counts as inside, as in
/// transformers' assistant mask. Returns how many.
fn mark(learned: &mut [bool], offsets: &[(usize, usize)], start: usize, end: usize) -> usize {
    // Offsets ascend, but tokens of one split character share theirs.
    let first = offsets.partition_point(|&(_, token_end)| token_end <= start);
    let mut n = 0;
    for (at, _) in offsets.iter().enumerate().skip(first).take_while(|(_, (token_start, _))| *token_start < end) {
        learned[at] = true;
        n += 1;
    }
    n
}

/// The prompt of Stanford Alpaca (Taori et al. 2023), for models without a chat template.
fn alpaca_prompt(system: Option<&str>, instruction: &str, input: Option<&str>) -> String {
    let opening = match (system, input) {
        (Some(system), _) => system,
        (None, Some(_)) => {
            "Below is an instruction that describes a task, paired with an input that provides further context. \
             Write a response that appropriately completes the request."
        }
        (None, None) => {
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        }
    };
    let input = input.map(|input| format!("### Input:\n{input}\n\n")).unwrap_or_default();
    format!("{opening}\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::test_support::{bundle, learned_parts};

    const TURNS: &str = "{{ bos_token }}{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endfor %}\
        {%- if add_generation_prompt %}<|assistant|>{% endif %}";
    const SPECIAL: [&str; 7] = ["<s>", "</s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>"];

    fn encoder(template: Option<&str>) -> Encoder {
        Encoder::new(&bundle(&SPECIAL, Some("<s>"), Some("</s>"), template)).unwrap()
    }

    fn example(content: Content) -> Example {
        Example { row: 1, line: Some(1), content }
    }

    fn chat(turns: &[(&str, &str)]) -> Example {
        let messages = turns.iter().map(|(role, content)| Message::new(*role, *content)).collect();
        example(Content::Chat { messages, tools: None })
    }

    fn instruction(input: Option<&str>) -> Example {
        let input = input.map(str::to_string);
        example(Content::Instruction { system: None, instruction: "Add.".into(), input, output: "3".into() })
    }

    #[test]
    fn answers_are_learned_with_their_end_and_nothing_else() {
        let encoder = encoder(Some(TURNS));
        let sample =
            encoder.encode(&chat(&[("assistant", "Hi"), ("user", "Hi"), ("assistant", "Hi"), ("user", "?")])).unwrap();
        let text = "<s><|assistant|>Hi<|end|><|user|>Hi<|end|><|assistant|>Hi<|end|><|user|>?<|end|>";
        assert_eq!(encoder.decode(&sample.input_ids, false), text);
        assert_eq!(learned_parts(&encoder, &sample), ["Hi<|end|>", "Hi<|end|>"]);
        assert_eq!(encoder.stop_ids(), [257, 258]);
        assert!(encoder.notes()[0].contains("ends turns with <|end|> (258)"), "{:?}", encoder.notes());
    }

    #[test]
    fn bos_is_there_exactly_once() {
        for template in [Some(TURNS), Some(&TURNS[15..]), None] {
            let encoder = encoder(template);
            let contents =
                [chat(&[("user", "a"), ("assistant", "b")]), instruction(None), example(Content::Text("t".into()))];
            for example in contents {
                let ids = encoder.encode(&example).unwrap().input_ids;
                assert_eq!((ids[0], ids.iter().filter(|&&id| id == 256).count()), (256, 1), "{template:?}");
            }
            let prompt = encoder.prompt_ids(&[Message::new("user", "a")]).unwrap();
            assert_eq!((prompt[0], prompt.iter().filter(|&&id| id == 256).count()), (256, 1));
        }
    }

    #[test]
    fn turns_of_weight_zero_are_kept_but_not_learned() {
        let encoder = encoder(Some(TURNS));
        let mut example = chat(&[("user", "a"), ("assistant", "no"), ("user", "b"), ("assistant", "yes")]);
        if let Content::Chat { messages, .. } = &mut example.content {
            messages[1].extra.insert("weight".into(), json!(0));
        }
        let sample = encoder.encode(&example).unwrap();
        assert_eq!(learned_parts(&encoder, &sample), ["yes<|end|>"]);
    }

    #[test]
    fn a_template_without_turn_ends_learns_eos_behind_the_last_answer() {
        let template = "{%- for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{%- endfor %}\
            {%- if add_generation_prompt %}{{ 'assistant: ' }}{%- endif %}";
        let encoder = encoder(Some(template));
        let sample =
            encoder.encode(&chat(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")])).unwrap();
        assert_eq!(encoder.decode(&sample.input_ids, false), "<s>user: a\nassistant: b\nuser: c\nassistant: d</s>");
        assert_eq!(learned_parts(&encoder, &sample), ["b", "d</s>"]);
    }

    #[test]
    fn without_a_template_the_alpaca_prompt_has_an_input_block_only_for_input() {
        let encoder = encoder(None);
        let sample = encoder.encode(&instruction(None)).unwrap();
        let text = encoder.decode(&sample.input_ids, false);
        assert!(text.contains("### Instruction:\nAdd.\n\n### Response:\n3</s>") && !text.contains("Input"), "{text}");
        assert_eq!(learned_parts(&encoder, &sample), ["3</s>"]);
        let text = encoder.decode(&encoder.encode(&instruction(Some("1, 2"))).unwrap().input_ids, false);
        assert!(text.contains("Add.\n\n### Input:\n1, 2\n\n### Response:\n3</s>"), "{text}");
    }

    #[test]
    fn without_a_template_conversations_and_completions_have_their_plain_forms() {
        let encoder = encoder(None);
        let sample = encoder.encode(&chat(&[("system", "S"), ("user", "a"), ("assistant", "b")])).unwrap();
        let text = "<s>S\n\n### Instruction:\na\n\n### Response:\nb</s>\n\n";
        assert_eq!(encoder.decode(&sample.input_ids, false), text);
        assert_eq!(learned_parts(&encoder, &sample), ["b</s>"]);
        let completion = example(Content::Completion { prompt: "1+1=".into(), completion: "2".into() });
        let sample = encoder.encode(&completion).unwrap();
        assert_eq!(encoder.decode(&sample.input_ids, false), "<s>1+1=2</s>");
        assert_eq!(learned_parts(&encoder, &sample), ["2</s>"]);
        let sample = encoder.encode(&example(Content::Text("abc".into()))).unwrap();
        assert_eq!(learned_parts(&encoder, &sample), ["abc</s>"]);
        assert!(!encoder.encode(&chat(&[("tool", "x"), ("assistant", "b")])).unwrap_err().reason.is_empty());
    }

    #[test]
    fn held_out_prompts_are_what_training_saw_before_the_answer() {
        for template in [Some(TURNS), None] {
            let encoder = encoder(template);
            for example in [chat(&[("user", "q"), ("assistant", "a")]), instruction(Some("x"))] {
                let ids = encoder.encode(&example).unwrap().input_ids;
                let (prompt, _, wanted) = encoder.prompt_of(&example).unwrap().unwrap();
                assert_eq!(prompt, ids[..prompt.len()]);
                assert!(encoder.decode(&ids[prompt.len()..], false).starts_with(&wanted));
            }
        }
    }

    #[test]
    fn split_characters_are_shown_as_bytes_and_real_replacement_characters_as_bytes_too() {
        let encoder = encoder(None);
        let ids = encoder.encode(&example(Content::Text("a\u{1F600}\u{FFFD}".into()))).unwrap().input_ids;
        let shown = encoder.pieces(&ids).concat();
        assert_eq!(shown, "<s>a‹F0›‹9F›‹98›‹80›‹EF›‹BF›‹BD›</s>");
        assert_eq!(
            ids.iter().flat_map(|&id| encoder.token_bytes(id)).collect::<Vec<_>>(),
            "<s>a\u{1F600}\u{FFFD}</s>".as_bytes()
        );
    }

    #[test]
    fn a_token_across_the_border_counts_as_the_answers() {
        let offsets = [(0, 2), (2, 5), (5, 6), (6, 6), (6, 9)];
        let mut learned = [false; 5];
        assert_eq!(mark(&mut learned, &offsets, 4, 7), 4);
        assert_eq!(learned, [false, true, true, true, true]);
        assert_eq!(mark(&mut [false; 5], &offsets, 9, 9), 0);
    }
}
