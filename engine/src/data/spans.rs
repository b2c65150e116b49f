//! Which part of a conversation's text the model has to produce.
//!
//! Templates trim, reorder, add dates and whole blocks, so the original text is never searched for. Where the template
//! marks its answers with `{% generation %}`, the marks decide. Otherwise each answer is found from two
//! more renderings:
//!
//! ```text
//! whole text   <s>[user]Hi[end] | [assistant] | Yo | [end] | [user]Bye[end]…
//! prompt       <s>[user]Hi[end]   [assistant]                                turns before it, add_generation_prompt
//! stand-in     <s>[user]Hi[end]   [assistant]  ▒▒▒▒  [end]   [user]Bye[end]…     the turn replaced by a unique text
//! ```
//!
//! An answer begins where the prompt ends, if the whole text begins with the prompt (that is what the model is given
//! when it is asked), else where the stand-in begins. It ends where the stand-in ends, plus the end-of-turn token that
//! follows. A rendering is only believed where it agrees with the whole text to the byte on both sides; where none
//! does, the row is reported rather than learned from a guess.

use serde_json::Value;

use super::template::ChatTemplate;
use super::{Error, Message};

/// Stands in for an answer: noncharacters, which no template trims or splits at.
const STAND_IN: &str = "\u{FDD2}answer\u{FDD3}";

/// How a template ends an assistant turn: the text from the answer to the end of the first special token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TurnEnd {
    pub(crate) text: String,
    pub(crate) id: u32,
    /// The token alone.
    pub(crate) token: String,
}

/// What two probe renderings say about a template.
#[derive(Clone, Debug, Default)]
pub(crate) struct Habits {
    /// What `add_generation_prompt` adds; `None` where the template ignores it.
    pub(crate) generation_prompt: Option<String>,
    /// What a template writes between the turns before an answer and the answer's text.
    pub(crate) header: Option<String>,
    /// How turns end; `None` where no special token ends them.
    pub(crate) turn_end: Option<TurnEnd>,
    /// True where a probe conversation was accepted at all, so that a missing `turn_end` is a fact.
    pub(crate) probed: bool,
    /// Text before the first user turn that no row asked for (a default system block).
    pub(crate) unasked_block: Option<String>,
    /// The generation prompt holds text that trained conversations lack (an opened reasoning block).
    pub(crate) prompt_says_more: bool,
}

impl Habits {
    /// True where `answer` holds something beside the end of the turn, and every tool call of `message` by name.
    fn is_written(&self, message: &Message, answer: &str) -> bool {
        let said = match &self.turn_end {
            Some(end) => answer.strip_suffix(end.token.as_str()).unwrap_or(answer),
            None => answer,
        };
        let calls = message.extra.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        let mut names = calls.filter_map(|call| call.get("function").unwrap_or(call).get("name")?.as_str());
        !said.trim().is_empty() && names.all(|name| answer.contains(name))
    }
}

/// Finds a template's habits. `first_special` gives byte end, id and text of the first special token in a text.
pub(crate) fn probe(
    template: &ChatTemplate,
    bos: Option<&str>,
    first_special: impl Fn(&str) -> Option<(usize, u32, String)>,
) -> Habits {
    const USER: &str = "\u{FDD4}user\u{FDD5}";
    let user = || Message::new("user", USER);
    let answer = || Message::new("assistant", STAND_IN);
    let system = || Message::new("system", "\u{FDD4}system\u{FDD5}");
    let mut habits = Habits::default();
    let attempts = [vec![user()], vec![system(), user()]];
    let Some((before, text)) = attempts.into_iter().find_map(|turns| {
        let whole: Vec<Message> = turns.iter().cloned().chain([answer()]).collect();
        let text = template.render(&whole, None, false).ok()?;
        text.contains(STAND_IN).then_some((turns, text))
    }) else {
        return habits;
    };
    habits.probed = true;
    if let Some((_, tail)) = text.split_once(STAND_IN) {
        habits.turn_end =
            first_special(tail).map(|(end, id, token)| TurnEnd { text: tail[..end].to_string(), id, token });
    }
    let closed = template.render(&before, None, false).ok();
    let prompt = template.render(&before, None, true).ok();
    habits.header = closed.as_ref().and_then(|closed| text.strip_prefix(closed)).and_then(|rest| {
        let (header, _) = rest.split_once(STAND_IN)?;
        Some(header.to_string())
    });
    if let (Some(closed), Some(prompt)) = (closed, prompt) {
        habits.generation_prompt = prompt.strip_prefix(&closed).filter(|added| !added.is_empty()).map(str::to_string);
        habits.prompt_says_more = habits.generation_prompt.is_some() && !text.starts_with(&prompt);
    }
    // What precedes the first user turn and not the second is no part of a user turn.
    let again = [user(), answer(), Message::new("user", "\u{FDD4}again\u{FDD5}")];
    if let Ok(text) = template.render(&again, None, false)
        && let Some((first, rest)) = text.split_once(USER)
        && let Some((_, between)) = rest.split_once(STAND_IN)
        && let Some((between, _)) = between.split_once("\u{FDD4}again")
    {
        let first = first.trim_start();
        let first = bos.and_then(|bos| first.strip_prefix(bos)).unwrap_or(first);
        let common = first.chars().rev().zip(between.chars().rev()).take_while(|(a, b)| a == b);
        let n = common.map(|(c, _)| c.len_utf8()).sum::<usize>();
        let block = first[..first.len() - n].trim();
        habits.unasked_block = (!block.is_empty()).then(|| block.to_string());
    }
    habits
}

/// A conversation's text and what of it is learned.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    pub(crate) text: String,
    /// Learned byte ranges, ascending, each with its end-of-turn token.
    pub(crate) spans: Vec<(usize, usize)>,
    /// The template ends turns with no special token: end-of-sequence is to be learned after the text, which was cut
    /// behind the last answer.
    pub(crate) append_eos: bool,
}

/// Why no answers were found.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The template refused or failed.
    Template(Error),
    /// The renderings disagree about turn `turn` (from 1).
    Unclear { turn: usize },
    /// The template leaves out the text or the tool calls of turn `turn` (from 1).
    Unwritten { turn: usize },
}

/// Renders `messages` and finds the learned answers.
pub(crate) fn answers(
    template: &ChatTemplate,
    habits: &Habits,
    messages: &[Message],
    tools: Option<&Value>,
) -> Result<Answers, Failure> {
    let turns: Vec<usize> = (0..messages.len()).filter(|&i| messages[i].is_assistant()).collect();
    let finder = |text| Finder { template, habits, messages, tools, text };
    let tagged = match template.has_generation_tags() {
        true => Some(template.render_tagged(messages, tools).map_err(Failure::Template)?),
        false => None,
    };
    let (text, mut spans) = match tagged.filter(|tagged| !tagged.spans.is_empty()) {
        Some(tagged) => {
            let finder = finder(&tagged.text);
            let ends = tagged.spans.iter().map(|&(start, end)| (start, finder.with_turn_end(end)));
            let spans: Vec<_> = match tagged.spans.len() == turns.len() {
                true => {
                    ends.zip(&turns).filter(|(_, turn)| messages[**turn].is_learned()).map(|(span, _)| span).collect()
                }
                // Several marks in a turn: which belong to a turn of weight 0 cannot be told.
                false if turns.iter().all(|&turn| messages[turn].is_learned()) => ends.collect(),
                false => return Err(Failure::Unclear { turn: turns.first().map_or(1, |turn| turn + 1) }),
            };
            (tagged.text.clone(), spans)
        }
        None => {
            let text = template.render(messages, tools, false).map_err(Failure::Template)?;
            let finder = finder(&text);
            let learned = turns.iter().filter(|&&turn| messages[turn].is_learned());
            let spans = learned
                .map(|&turn| finder.span(turn).ok_or(Failure::Unclear { turn: turn + 1 }))
                .collect::<Result<Vec<_>, _>>()?;
            (text, spans)
        }
    };
    let learned: Vec<usize> = turns.iter().copied().filter(|&turn| messages[turn].is_learned()).collect();
    if learned.len() == spans.len() {
        let unwritten = |&(turn, &(start, end)): &(usize, &(usize, usize))| {
            !habits.is_written(&messages[turn], text.get(start..end).unwrap_or_default())
        };
        if let Some((turn, _)) = learned.into_iter().zip(&spans).find(unwritten) {
            return Err(Failure::Unwritten { turn: turn + 1 });
        }
    }
    spans.retain(|(start, end)| start < end);
    if let Some(overlap) = spans.windows(2).position(|pair| pair[0].1 > pair[1].0) {
        return Err(Failure::Unclear { turn: turns.get(overlap + 1).map_or(1, |turn| turn + 1) });
    }
    let ends_with_answer = messages.last().is_some_and(Message::is_learned);
    let last_end = spans.last().map_or(0, |span| span.1);
    let append_eos =
        habits.probed && habits.turn_end.is_none() && ends_with_answer && text[last_end..].trim().is_empty();
    let text = if append_eos { text[..last_end].to_string() } else { text };
    Ok(Answers { text, spans, append_eos })
}

/// The text up to where the assistant begins to speak.
pub(crate) fn prompt(
    template: &ChatTemplate,
    habits: &Habits,
    messages: &[Message],
    tools: Option<&Value>,
) -> Result<String, Error> {
    if habits.generation_prompt.is_some() || !habits.probed {
        return template.render(messages, tools, true);
    }
    // The template has no generation prompt: the header of an answer is found with a stand-in.
    let whole: Vec<Message> = messages.iter().cloned().chain([Message::new("assistant", STAND_IN)]).collect();
    let text = template.render(&whole, tools, false)?;
    Ok(text.split_once(STAND_IN).map_or(text.as_str(), |(before, _)| before).trim_end_matches(' ').to_string())
}

struct Finder<'a> {
    template: &'a ChatTemplate,
    habits: &'a Habits,
    messages: &'a [Message],
    tools: Option<&'a Value>,
    text: &'a str,
}

impl Finder<'_> {
    /// The learned range of the assistant turn at `turn`.
    fn span(&self, turn: usize) -> Option<(usize, usize)> {
        let after_prompt = self.after_prompt(turn);
        // The turn as text alone; then with its tool calls kept, for templates that insist on them.
        let bare = Message::new("assistant", STAND_IN);
        if let Some((start, end)) = self.around(turn, bare) {
            let start = after_prompt.unwrap_or_else(|| self.before_blanks(start));
            return (start <= end).then(|| (start, self.with_turn_end(end)));
        }
        let kept = Message { content: STAND_IN.into(), ..self.messages[turn].clone() };
        let around = self.around(turn, kept);
        let (start, end) = match after_prompt.or(around.map(|(start, _)| self.before_blanks(start))) {
            Some(start) => match self.after_turn(turn) {
                Some(end) => (start, end),
                None => (start, self.next_turn_end(around.map_or(start, |(_, end)| end))?),
            },
            // Nothing but the turns around it says where the answer is: both have to agree with the text.
            None => (self.after_header(turn)?, self.after_turn(turn)?),
        };
        (start < end).then_some((start, end))
    }

    /// `start`, moved in front of the blanks before it where the template has no generation prompt: [`prompt`] leaves
    /// them to the model, because tokenizers join a blank with the word behind it.
    fn before_blanks(&self, start: usize) -> usize {
        match self.habits.generation_prompt {
            Some(_) => start,
            None => self.text[..start].trim_end_matches(' ').len(),
        }
    }

    /// Where the prompt for `turn` ends, if the text begins with it.
    fn after_prompt(&self, turn: usize) -> Option<usize> {
        let added = self.habits.generation_prompt.as_ref()?;
        let prompt = self.template.render(&self.messages[..turn], self.tools, true).ok()?;
        (prompt.ends_with(added) && self.text.starts_with(&prompt)).then_some(prompt.len())
    }

    /// Where the turns before `turn` end, behind the header of an answer where one follows; for templates without a
    /// generation prompt.
    fn after_header(&self, turn: usize) -> Option<usize> {
        if self.habits.generation_prompt.is_some() {
            return None;
        }
        let header = self.habits.header.as_ref()?;
        let closed = self.template.render(&self.messages[..turn], self.tools, false).ok()?;
        let rest = self.text.strip_prefix(&closed)?;
        Some(closed.len() + if rest.starts_with(header) { header.len() } else { 0 })
    }

    /// The range that stands in for `stand_in` in the text, if everything around it agrees.
    fn around(&self, turn: usize, stand_in: Message) -> Option<(usize, usize)> {
        let mut messages = self.messages.to_vec();
        messages[turn] = stand_in;
        let other = self.template.render(&messages, self.tools, false).ok()?;
        let (before, after) = other.split_once(STAND_IN)?;
        let agrees = !after.contains(STAND_IN)
            && before.len() + after.len() <= self.text.len()
            && self.text.starts_with(before)
            && self.text.ends_with(after);
        agrees.then_some((before.len(), self.text.len() - after.len()))
    }

    /// Where the turn ends by the conversation up to it, if the text begins with that.
    fn after_turn(&self, turn: usize) -> Option<usize> {
        let closed = self.template.render(&self.messages[..=turn], self.tools, false).ok()?;
        if !self.text.starts_with(&closed) {
            return None;
        }
        match &self.habits.turn_end {
            Some(end) => closed.rfind(&end.token).map(|at| at + end.token.len()),
            None => Some(closed.trim_end().len()),
        }
    }

    /// The end of the first end-of-turn token from `from` on.
    fn next_turn_end(&self, from: usize) -> Option<usize> {
        let token = &self.habits.turn_end.as_ref()?.token;
        self.text[from..].find(token.as_str()).map(|at| from + at + token.len())
    }

    /// `end`, moved behind the end-of-turn token where that follows.
    fn with_turn_end(&self, end: usize) -> usize {
        let Some(turn_end) = &self.habits.turn_end else { return end };
        let rest = &self.text[end..];
        if rest.starts_with(&turn_end.text) {
            return end + turn_end.text.len();
        }
        let trimmed = rest.trim_start();
        match trimmed.starts_with(turn_end.text.trim_start()) {
            true => end + (rest.len() - trimmed.len()) + turn_end.text.trim_start().len(),
            false => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::python::Moment;

    /// Learned parts of `messages` under `template`, whose special tokens are `<…>`.
    fn learned(source: &str, messages: &[Message]) -> Result<Vec<String>, Failure> {
        let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"}).as_object().unwrap().clone();
        let template = ChatTemplate::new(source, tokens, Moment::now()).unwrap();
        let habits = probe(&template, Some("<s>"), |text| {
            let start = text.find('<')?;
            let end = start + text[start..].find('>')? + 1;
            Some((end, 7, text[start..end].to_string()))
        });
        let found = answers(&template, &habits, messages, None)?;
        Ok(found.spans.iter().map(|&(start, end)| found.text[start..end].to_string()).collect())
    }

    fn turns(turns: &[(&str, &str)]) -> Vec<Message> {
        turns.iter().map(|(role, content)| Message::new(*role, *content)).collect()
    }

    const TRIMMING: &str = "{{- bos_token }}{%- if messages[0].role != 'system' %}{{- '<h>system\\n<e>' }}{%- endif %}\
        {%- for m in messages %}{{- '<h>' ~ m.role ~ '\\n\\n' ~ (m.content | trim) ~ '<e>\\n' }}{%- endfor %}\
        {%- if add_generation_prompt %}{{- '<h>assistant\\n\\n' }}{%- endif %}";

    #[test]
    fn trimmed_answers_are_found_where_the_template_puts_them() {
        let messages =
            turns(&[("user", "Yo "), ("assistant", " Yo\n"), ("user", "<e>"), ("assistant", "\nassistant\n\n")]);
        assert_eq!(learned(TRIMMING, &messages).unwrap(), ["Yo<e>", "assistant<e>"]);
    }

    #[test]
    fn a_conversation_may_begin_with_the_assistant_where_the_template_reads_its_first_turn() {
        let messages = turns(&[("assistant", "Hi"), ("user", "Hi"), ("assistant", "Hi")]);
        assert_eq!(learned(TRIMMING, &messages).unwrap(), ["Hi<e>", "Hi<e>"]);
    }

    #[test]
    fn headers_are_not_learned_where_the_template_has_no_generation_prompt() {
        let template = "{%- for m in messages %}{{- '<' ~ m.role ~ '>' ~ m.content ~ '<e>' }}{%- endfor %}";
        let messages = turns(&[("user", "a"), ("assistant", "b")]);
        assert_eq!(learned(template, &messages).unwrap(), ["b<e>"]);
        let parsed = ChatTemplate::new(template, Default::default(), Moment::now()).unwrap();
        let habits = probe(&parsed, None, |_| None);
        assert_eq!(prompt(&parsed, &habits, &messages[..1], None).unwrap(), "<user>a<e><assistant>");
    }

    #[test]
    fn a_blank_between_header_and_answer_is_learned_as_the_model_has_to_write_it() {
        let template = "{%- for m in messages %}{%- if m.role == 'user' %}{{- '<s>[INST] ' + m.content + ' [/INST]' }}\
            {%- else %}{{- ' ' + m.content + ' </s>' }}{%- endif %}{%- endfor %}";
        let messages = turns(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]);
        assert_eq!(learned(template, &messages).unwrap(), [" b </s>", " d </s>"]);
    }

    #[test]
    fn reasoning_that_the_template_drops_from_earlier_turns_is_not_missed() {
        // Qwen3's way: only the last turn keeps its reasoning block.
        let template = "{%- for m in messages %}{%- set c = m.content.split('</think>')[-1].lstrip('\\n') %}\
            {%- if m.role == 'assistant' and loop.last %}\
            {{- '<h>assistant\\n<think>\\n\\n</think>\\n\\n' + c + '<e>\\n' }}\
            {%- else %}{{- '<h>' + m.role + '\\n' + c + '<e>\\n' }}{%- endif %}{%- endfor %}\
            {%- if add_generation_prompt %}{{- '<h>assistant\\n' }}{%- endif %}";
        let messages = turns(&[("user", "a"), ("assistant", "<think>x</think>\nb"), ("user", "c"), ("assistant", "d")]);
        assert_eq!(learned(template, &messages).unwrap(), ["b<e>", "<think>\n\n</think>\n\nd<e>"]);
    }

    #[test]
    fn tool_calls_are_learned_whole() {
        let template = "{%- for m in messages %}{{- '<' ~ m.role ~ '>' ~ m.content }}{%- if m.tool_calls %}\
            {%- for c in m.tool_calls %}\
            {{- '<call>' ~ c.function.name ~ ' ' ~ (c.function.arguments | tojson) }}{%- endfor %}\
            {%- endif %}{{- '<e>' }}{%- endfor %}{%- if add_generation_prompt %}<assistant>{% endif %}";
        // Mistral's way: tool turns are refused where no call precedes them, and calls carry no blank.
        let strict = "{%- for m in messages %}{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}\
            {{- raise_exception('no call') }}{%- endif %}{%- if m.role == 'user' %}{{- '<i> ' + m.content + '</i>' }}\
            {%- elif m.tool_calls %}{{- '<call>' + (m.tool_calls | tojson) + '</s>' }}\
            {%- elif m.role == 'tool' %}{{- '<r>' + m.content + '</r>' }}\
            {%- else %}{{- ' ' + m.content + '</s>' }}{%- endif %}\
            {%- endfor %}";
        let mut messages = turns(&[("user", "Rain?"), ("assistant", ""), ("tool", "no"), ("assistant", "No.")]);
        let call = json!([{"function": {"name": "rain", "arguments": {"city": "Oslo"}}}]);
        messages[1].extra.insert("tool_calls".into(), call);
        let found = learned(template, &messages).unwrap();
        assert_eq!(found, ["<call>rain {\"city\": \"Oslo\"}<e>", "No.<e>"]);
        let found = learned(strict, &messages).unwrap();
        let call = "<call>[{\"function\": {\"name\": \"rain\", \"arguments\": {\"city\": \"Oslo\"}}}]</s>";
        assert_eq!(found, [call, " No.</s>"]);
    }

    #[test]
    fn tool_calls_that_the_template_leaves_out_are_reported() {
        let template = "{%- for m in messages %}{{- '<' ~ m.role ~ '>' ~ m.content ~ '<e>' }}{%- endfor %}\
            {%- if add_generation_prompt %}<assistant>{% endif %}";
        for content in ["", "Let me look."] {
            let mut messages = turns(&[("user", "Rain?"), ("assistant", content)]);
            messages[1].extra.insert("tool_calls".into(), json!([{"function": {"name": "rain", "arguments": {}}}]));
            assert!(matches!(learned(template, &messages), Err(Failure::Unwritten { turn: 2 })), "{content:?}");
        }
    }

    #[test]
    fn a_default_system_block_is_noticed() {
        let template = |source| ChatTemplate::new(source, Default::default(), Moment::now()).unwrap();
        let habits = probe(&template(TRIMMING), None, |_| None);
        assert_eq!(habits.unasked_block.as_deref(), Some("<h>system\n<e>"));
        let plain = "{%- for m in messages %}{{- '<' ~ m.role ~ '>' ~ m.content ~ '<e>' }}{%- endfor %}";
        assert_eq!(probe(&template(plain), None, |_| None).unasked_block, None);
    }

    #[test]
    fn a_template_that_drops_answers_is_reported_rather_than_guessed() {
        let template = "{%- for m in messages %}{%- if m.role == 'user' or loop.last %}\
            {{- '<' ~ m.role ~ '>' ~ m.content ~ '<e>' }}\
            {%- endif %}{%- endfor %}{%- if add_generation_prompt %}<assistant>{% endif %}";
        let messages = turns(&[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]);
        assert!(matches!(learned(template, &messages), Err(Failure::Unclear { turn: 2 })));
    }
}
