//! The model's chat template, rendered as Hugging Face renders it, in a sandbox.
//!
//! A template is data from a stranger: it has no files, no network and no host functions but the three below; its
//! steps (fuel), its depth and the size of its output are limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::{Kwargs, Rest};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value, json};

use super::python::{Moment, json_dumps, printed};
use super::{Error, Message};

/// Steps a rendering may take; a conversation of a thousand turns takes about a hundred thousand.
const MAX_STEPS: u64 = 10_000_000;
/// Longest template source.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Longest rendered text.
const MAX_TEXT_BYTES: usize = 256 << 20;
/// Deepest nesting of macros and includes.
const MAX_DEPTH: usize = 100;
/// Around what `{% generation %}` encloses, where spans are asked for. Noncharacters: no text holds them by accident.
const OPEN: char = '\u{FDD0}';
const CLOSE: char = '\u{FDD1}';

/// A parsed chat template with the values it always sees.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    /// Special tokens by name (`bos_token`, …).
    tokens: Map<String, Value>,
    has_generation_tags: bool,
    asked_for_date: Arc<AtomicBool>,
}

/// A rendering with the byte ranges that `{% generation %}` enclosed.
pub(crate) struct Tagged {
    pub(crate) text: String,
    pub(crate) spans: Vec<(usize, usize)>,
}

impl ChatTemplate {
    /// Parses `source`. `tokens` are the special tokens' texts by name; `moment` is what `strftime_now` prints.
    pub(crate) fn new(source: &str, tokens: Map<String, Value>, moment: Moment) -> Result<Self, Error> {
        if source.len() > MAX_TEMPLATE_BYTES {
            let reason = format!("it is {} bytes long, more than {MAX_TEMPLATE_BYTES}", source.len());
            return Err(Error::TemplateSyntax { reason });
        }
        let (source, has_generation_tags) = mark_generation_tags(source);
        let asked_for_date = Arc::new(AtomicBool::new(false));
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.set_formatter(|out, state, value| match printed(value) {
            _ if value.is_undefined() => Ok(()),
            Some(text) => Ok(out.write_str(&text)?),
            None => minijinja::escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        let asked = asked_for_date.clone();
        environment.add_function("strftime_now", move |format: String| {
            asked.store(true, Ordering::Relaxed);
            moment.strftime(&format)
        });
        environment
            .add_template_owned("chat", source)
            .map_err(|error| Error::TemplateSyntax { reason: sentence(&error) })?;
        Ok(Self { environment, tokens, has_generation_tags, asked_for_date })
    }

    /// True where the template itself marks what the assistant says.
    pub(crate) fn has_generation_tags(&self) -> bool {
        self.has_generation_tags
    }

    /// True where a rendering so far printed the date.
    pub(crate) fn asked_for_date(&self) -> bool {
        self.asked_for_date.load(Ordering::Relaxed)
    }

    /// The text of a conversation; with `prompt`, up to where the assistant begins to speak.
    pub(crate) fn render(&self, messages: &[Message], tools: Option<&Value>, prompt: bool) -> Result<String, Error> {
        self.render_marked(messages, tools, prompt, "", "")
    }

    /// The text of a conversation and the ranges inside generation tags.
    pub(crate) fn render_tagged(&self, messages: &[Message], tools: Option<&Value>) -> Result<Tagged, Error> {
        let plain = self.render(messages, tools, false)?;
        let marked =
            self.render_marked(messages, tools, false, OPEN.encode_utf8(&mut [0; 4]), CLOSE.encode_utf8(&mut [0; 4]))?;
        let (mut text, mut spans, mut open) = (String::with_capacity(plain.len()), Vec::new(), None);
        for c in marked.chars() {
            match c {
                OPEN => open = Some(text.len()),
                CLOSE => spans.extend(open.take().map(|start| (start, text.len()))),
                c => text.push(c),
            }
        }
        // The marks must not have changed anything, for example what a filter trimmed.
        if text != plain {
            spans.clear();
        }
        Ok(Tagged { text: plain, spans })
    }

    fn render_marked(
        &self,
        messages: &[Message],
        tools: Option<&Value>,
        prompt: bool,
        open: &str,
        close: &str,
    ) -> Result<String, Error> {
        let mut context = self.tokens.clone();
        context.insert("messages".into(), messages.iter().map(turn).collect());
        context.insert("tools".into(), tools.cloned().unwrap_or(Value::Null));
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), prompt.into());
        context.insert("hearth_generation_open".into(), open.into());
        context.insert("hearth_generation_close".into(), close.into());
        let mut out = Limited(Vec::new());
        let template = self.environment.get_template("chat").map_err(failed)?;
        template.render_captured_to(context, &mut out).map_err(failed)?;
        String::from_utf8(out.0).map_err(|error| Error::TemplateFailed { reason: error.to_string() })
    }
}

/// A turn as the template sees it.
fn turn(message: &Message) -> Value {
    let mut turn = Map::new();
    turn.insert("role".into(), message.role.clone().into());
    turn.insert("content".into(), message.content.clone().into());
    turn.extend(message.extra.iter().map(|(key, value)| (key.clone(), value.clone())));
    Value::Object(turn)
}

/// Collects a rendering up to [`MAX_TEXT_BYTES`].
struct Limited(Vec<u8>);

impl std::io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT_BYTES {
            return Err(std::io::Error::other(format!("the text is longer than {MAX_TEXT_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Turns `{% generation %}` and `{% endgeneration %}`, which only transformers knows, into blocks that print the marks.
/// Blocks rather than expressions, so that white space around them is trimmed as before.
fn mark_generation_tags(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let inside = &rest[start + 2..start + 2 + length];
        let left = inside.chars().next().filter(|c| matches!(c, '-' | '+'));
        let right = inside.chars().next_back().filter(|c| matches!(c, '-' | '+'));
        let name = inside.trim_matches(['-', '+']).trim();
        let mark = match name {
            "generation" => Some("hearth_generation_open"),
            "endgeneration" => Some("hearth_generation_close"),
            _ => None,
        };
        let end = start + 2 + length + 2;
        match mark {
            Some(mark) => {
                found = true;
                out.push_str(&rest[..start]);
                out.push_str("{%");
                out.extend(left);
                out.push_str(&format!(" if true %}}{{{{ {mark} }}}}{{% endif "));
                out.extend(right);
                out.push_str("%}");
            }
            None => out.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    (out, found)
}

/// `tojson` as transformers defines it: Python's `json.dumps` without ASCII escapes.
fn to_json(
    value: minijinja::Value,
    Rest(positional): Rest<minijinja::Value>,
    options: Kwargs,
) -> Result<String, minijinja::Error> {
    let indent = match options.get::<Option<usize>>("indent")? {
        Some(indent) => Some(indent),
        None => positional.first().and_then(|value| usize::try_from(value.clone()).ok()),
    };
    // Accepted and without effect, or as asked already.
    let _: Option<minijinja::Value> = options.get("ensure_ascii")?;
    let _: Option<minijinja::Value> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut value = serde_json::to_value(&value)
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    if sort_keys == Some(true) {
        value.sort_all_objects();
    }
    Ok(json_dumps(&value, indent))
}

/// The template's own refusal, told apart from failures by its type.
#[derive(Debug)]
struct Refusal(String);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn raise_exception(sentence: String) -> Result<minijinja::Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, sentence.clone()).with_source(Refusal(sentence)))
}

fn failed(error: minijinja::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(Refusal(sentence)) = cause.downcast_ref::<Refusal>() {
            return Error::TemplateRefused { sentence: sentence.clone() };
        }
        source = cause.source();
    }
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {MAX_STEPS} steps"),
        _ => sentence(&error),
    };
    Error::TemplateFailed { reason }
}

/// A template error in one line: what, and the line of the template.
fn sentence(error: &minijinja::Error) -> String {
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{what} (line {line} of the template)"),
        None => what,
    }
}

/// The conversation style for models without a template of their own, with the headings of the Alpaca prompt. Each
/// answer ends with the end-of-sequence token.
pub(crate) const PLAIN_TEMPLATE: &str = concat!(
    "{%- for m in messages %}",
    "{%- if m.role == 'assistant' %}{{- '### Response:\\n' }}{%- generation %}{{- m.content + (eos_token or '') }}",
    "{%- endgeneration %}{{- '\\n\\n' }}",
    "{%- elif m.role == 'user' %}{{- '### Instruction:\\n' + m.content + '\\n\\n' }}",
    "{%- elif m.role == 'system' %}{{- m.content + '\\n\\n' }}",
    "{%- else %}{{- raise_exception('The model has no chat template, and the plain form has no place for the role ' ",
    "+ m.role) }}",
    "{%- endif %}",
    "{%- endfor %}",
    "{%- if add_generation_prompt %}{{- '### Response:\\n' }}{%- endif %}"
);

/// The special tokens a template may print, from `tokenizer_config.json`: texts, or objects with `content`.
pub(crate) fn special_tokens(tokenizer_config: &Value) -> Map<String, Value> {
    let Value::Object(config) = tokenizer_config else { return Map::new() };
    let text = |value: &Value| match value {
        Value::String(text) => Some(json!(text)),
        Value::Object(token) => token.get("content").filter(|content| content.is_string()).cloned(),
        _ => None,
    };
    config
        .iter()
        .filter(|(key, _)| key.ends_with("_token") && !key.starts_with("add_"))
        .filter_map(|(key, value)| Some((key.clone(), text(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        let tokens =
            special_tokens(&json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true}));
        ChatTemplate::new(source, tokens, Moment::of_date("2025-08-01").unwrap()).unwrap()
    }

    fn chat() -> Vec<Message> {
        vec![Message::new("user", " Hi "), Message::new("assistant", "Yo")]
    }

    #[test]
    fn generation_tags_are_read_and_do_not_change_the_text() {
        let tagged = template(
            "{% for m in messages %}\n  {% generation %}\n{{ m.content }}|\n  {% endgeneration %}\n{% endfor %}",
        );
        let rendered = tagged.render_tagged(&chat(), None).unwrap();
        assert_eq!(rendered.text, " Hi |\nYo|\n");
        assert_eq!(rendered.spans, [(0, 6), (6, 10)]);
        assert!(tagged.has_generation_tags());
    }

    #[test]
    fn white_space_control_of_generation_tags_is_kept() {
        let source =
            "{%- for m in messages %}A \n{%- generation -%} {{ m.content }} {%- endgeneration -%} \nB{%- endfor %}";
        let rendered = template(source).render_tagged(&chat(), None).unwrap();
        assert_eq!(rendered.text, "A Hi BAYoB");
        assert_eq!(&rendered.text[rendered.spans[0].0..rendered.spans[0].1], " Hi ");
    }

    #[test]
    fn the_templates_own_sentence_is_the_reason() {
        let error = template("{{ raise_exception('No system turn') }}").render(&chat(), None, false).unwrap_err();
        assert!(matches!(&error, Error::TemplateRefused { sentence } if sentence == "No system turn"), "{error}");
        let error = template("{{ messages[5].content.strip() }}").render(&chat(), None, false).unwrap_err();
        assert!(matches!(error, Error::TemplateFailed { .. }), "{error}");
    }

    #[test]
    fn python_ways_work() {
        let source = "{{ bos_token }}{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}\
            {% set ns.n = ns.n + 1 %}\
            {{ m['content'].strip().upper() }}{% if loop.first %}{% continue %}{% endif %}{% endfor %}{{ ns.n }}\
            {{ tools | tojson }}{{ none }}{{ true }}{{ missing }}{{ strftime_now('%d %b %Y') }}\
            {{ {'a': 1.0} | tojson(indent=2) }}";
        let text = template(source).render(&chat(), Some(&json!([{"b": "ü", "a": 1}])), false).unwrap();
        assert_eq!(text, "<s>YOHI2[{\"b\": \"ü\", \"a\": 1}]NoneTrue01 Aug 2025{\n  \"a\": 1.0\n}");
    }

    #[test]
    fn endless_work_and_endless_text_are_stopped() {
        let work = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a * b %}{% endfor %}{% endfor %}";
        let error = template(work).render(&[], None, false).unwrap_err();
        assert!(error.to_string().contains("steps"), "{error}");
        let deep = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
        assert!(template(deep).render(&[], None, false).is_err());
    }

    #[test]
    fn a_broken_template_names_its_line() {
        let error = ChatTemplate::new("a\n{% if x %}", Map::new(), Moment::now()).err().unwrap();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
