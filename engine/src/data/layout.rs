//! What the columns of a table mean, and rows turned into examples accordingly.
//!
//! The layout is found from the columns' names and values; where names are none of the known ones the two columns are
//! guessed and the guess is shown, or the person is asked.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Content, Dataset, Error, Example, Format, Message, Problem, Row, Table, tool_calls};
use crate::config::ColumnMapping;

const CONVERSATIONS: [&str; 7] = ["messages", "conversations", "conversation", "dialogue", "dialog", "turns", "chat"];
const PROMPTS: [&str; 18] = [
    "prompt",
    "instruction",
    "query",
    "question",
    "input",
    "user",
    "human",
    "problem",
    "request",
    "ask",
    "source",
    "q",
    "问题",
    "提问",
    "指令",
    "输入",
    "用户",
    "问",
];
const RESPONSES: [&str; 18] = [
    "completion",
    "response",
    "answer",
    "output",
    "reply",
    "assistant",
    "solution",
    "target",
    "bot",
    "gpt",
    "label",
    "chosen",
    "a",
    "答案",
    "回答",
    "输出",
    "回复",
    "答",
];
const SYSTEMS: [&str; 4] = ["system", "system_prompt", "system prompt", "系统"];

/// Which columns hold what.
#[derive(Clone, Debug)]
enum Layout {
    /// Lists of turns under a key; `None` where the rows themselves are the lists.
    Conversation(Option<String>),
    /// Lists of turns under two keys, one after the other.
    ConversationHalves(String, String),
    Instruction {
        instruction: String,
        input: Option<String>,
        output: String,
        system: Option<String>,
    },
    Completion {
        prompt: String,
        completion: String,
    },
    /// `None` where the rows themselves are texts.
    Text(Option<String>),
}

/// Turns the readable rows into examples; rows that do not fit the layout are reported.
pub(crate) fn examples(table: Table<'_>, path: &Path, mapping: Option<&ColumnMapping>) -> Result<Dataset, Error> {
    let mut notes = table.notes.clone();
    let mut used_mapping = mapping.cloned();
    let layout = match mapping {
        Some(mapping) => chosen(&table, path, mapping)?,
        None => match known(&table) {
            Some(layout) => layout,
            None if table.rows.is_empty() => Layout::Text(Some("text".into())),
            None => {
                let guess = guess(&table.columns)
                    .ok_or_else(|| Error::UnknownColumns { path: path.into(), columns: table.columns.clone() })?;
                notes.push(format!(
                    "The columns' names are not of a known format. Guessed: {:?} is the prompt and {:?} the answer. \
                     Choose other columns if that is wrong.",
                    guess.prompt, guess.response
                ));
                let layout = chosen(&table, path, &guess)?;
                used_mapping = Some(guess);
                layout
            }
        },
    };
    let mut problems = table.problems;
    let mut examples = Vec::with_capacity(table.rows.len());
    for row in &table.rows {
        match content(row, &layout) {
            Ok(content) => examples.push(Example { row: row.row, line: row.line, content }),
            Err(problem) => problems.push(problem),
        }
    }
    problems.sort_by_key(|problem| problem.row);
    let format = format_of(&layout, &table.rows, used_mapping.is_some());
    notes.extend(conversation_notes(&examples));
    Ok(Dataset {
        path: path.into(),
        format,
        columns: table.columns,
        mapping: used_mapping,
        n_rows: table.n_rows,
        examples,
        problems,
        notes,
    })
}

/// The column whose name is `name`, whatever its case.
fn column<'t>(columns: &'t [String], name: &str) -> Option<&'t String> {
    columns.iter().find(|column| column.trim().to_lowercase() == name)
}

fn first_column(columns: &[String], names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| column(columns, name)).cloned()
}

/// The layout of a known format.
fn known(table: &Table<'_>) -> Option<Layout> {
    let columns = &table.columns;
    let holds_list = |key: &str| {
        table.rows.iter().any(|row| match row.value.get(key) {
            Some(Value::Array(_)) => true,
            Some(Value::String(text)) => text.trim_start().starts_with('['),
            _ => false,
        })
    };
    if let Some(key) = CONVERSATIONS.iter().filter_map(|name| column(columns, name)).find(|key| holds_list(key)) {
        return Some(Layout::Conversation(Some(key.clone())));
    }
    let n_lists = table.rows.iter().filter(|row| row.value.is_array()).count();
    let n_texts = table.rows.iter().filter(|row| row.value.is_string()).count();
    if n_lists * 2 > table.rows.len() {
        return Some(Layout::Conversation(None));
    }
    if n_texts * 2 > table.rows.len() {
        return Some(Layout::Text(None));
    }
    let system = first_column(columns, &SYSTEMS);
    if let Some(instruction) = column(columns, "instruction")
        && let Some(output) = first_column(columns, &["output", "response", "completion", "answer"])
    {
        let input = first_column(columns, &["input", "context"]);
        return Some(Layout::Instruction { instruction: instruction.clone(), input, output, system });
    }
    if let Some(prompt) = column(columns, "prompt")
        && let Some(completion) = first_column(columns, &["completion", "response"])
    {
        let (prompt, completion) = (prompt.clone(), completion);
        if holds_turns(table, &prompt) && holds_turns(table, &completion) {
            return Some(Layout::ConversationHalves(prompt, completion));
        }
        return Some(match system {
            Some(_) => Layout::Instruction { instruction: prompt, input: None, output: completion, system },
            None => Layout::Completion { prompt, completion },
        });
    }
    column(columns, "text").map(|key| Layout::Text(Some(key.clone())))
}

/// True where a column holds lists of turns.
fn holds_turns(table: &Table<'_>, key: &str) -> bool {
    table.rows.iter().any(|row| {
        row.value.get(key).and_then(Value::as_array).is_some_and(|turns| {
            turns.first().is_some_and(|turn| turn.get("role").is_some() || turn.get("from").is_some())
        })
    })
}

/// The layout a person chose.
fn chosen(table: &Table<'_>, path: &Path, mapping: &ColumnMapping) -> Result<Layout, Error> {
    let find = |name: &String| {
        table.columns.iter().find(|column| *column == name).cloned().ok_or_else(|| Error::MissingColumn {
            path: path.into(),
            column: name.clone(),
            columns: table.columns.clone(),
        })
    };
    Ok(Layout::Instruction {
        instruction: find(&mapping.prompt)?,
        input: None,
        output: find(&mapping.response)?,
        system: mapping.system.as_ref().map(find).transpose()?,
    })
}

/// Prompt and answer among unknown names: both by name, or one by name where there are only two columns.
fn guess(columns: &[String]) -> Option<ColumnMapping> {
    let mut prompt = first_column(columns, &PROMPTS);
    let mut response = first_column(columns, &RESPONSES);
    if let [first, second] = columns {
        let other = |column: &String| if column == first { second.clone() } else { first.clone() };
        match (&prompt, &response) {
            (Some(found), None) => response = Some(other(found)),
            (None, Some(found)) => prompt = Some(other(found)),
            _ => {}
        }
    }
    let (prompt, response) = (prompt?, response?);
    (prompt != response).then(|| ColumnMapping { prompt, response, system: first_column(columns, &SYSTEMS) })
}

fn format_of(layout: &Layout, rows: &[Row<'_>], mapped: bool) -> Format {
    match layout {
        Layout::Conversation(key) => {
            let turns = |row: &Row<'_>| match key {
                Some(key) => row.value.get(key).cloned(),
                None => Some(row.value.clone()),
            };
            let sharegpt = rows.iter().filter_map(turns).find_map(|turns| {
                let first = turns.as_array()?.first()?;
                Some(first.get("from").is_some())
            });
            if sharegpt == Some(true) { Format::ShareGpt } else { Format::Messages }
        }
        Layout::ConversationHalves(..) => Format::Messages,
        _ if mapped => Format::Columns,
        Layout::Instruction { instruction, .. } if instruction.trim().eq_ignore_ascii_case("prompt") => {
            Format::PromptCompletion
        }
        Layout::Instruction { .. } => Format::Alpaca,
        Layout::Completion { .. } => Format::PromptCompletion,
        Layout::Text(_) => Format::Text,
    }
}

fn conversation_notes(examples: &[Example]) -> Vec<String> {
    let ends_with_user = examples.iter().filter(|example| match &example.content {
        Content::Chat { messages, .. } => messages.last().is_some_and(|last| !last.is_assistant()),
        _ => false,
    });
    match ends_with_user.count() {
        0 => Vec::new(),
        1 => vec![
            "1 conversation does not end with the assistant; its last turn is kept as text but not learned.".into(),
        ],
        n => vec![format!(
            "{n} conversations do not end with the assistant; their last turns are kept as text but not learned."
        )],
    }
}

/// What one row holds under `layout`.
fn content(row: &Row<'_>, layout: &Layout) -> Result<Content, Problem> {
    match layout {
        Layout::Conversation(None) => conversation(row, &row.value, &Map::new()),
        Layout::Text(None) => text_content(row, row.value.as_str().map(str::to_string)),
        _ => {
            let Value::Object(map) = &row.value else {
                let kind = kind_of(&row.value);
                return Err(row.problem("not_an_object", format!("the row is {kind}, not an object with columns")));
            };
            object_content(row, map, layout)
        }
    }
}

fn object_content(row: &Row<'_>, map: &Map<String, Value>, layout: &Layout) -> Result<Content, Problem> {
    match layout {
        Layout::Conversation(Some(key)) => match map.get(key) {
            Some(turns) if !turns.is_null() => conversation(row, turns, map),
            _ => Err(row.problem("no_conversation", format!("no conversation: {key:?} is missing"))),
        },
        Layout::ConversationHalves(first, second) => {
            let mut turns = Vec::new();
            for key in [first, second] {
                match map.get(key) {
                    Some(Value::Array(half)) => turns.extend(half.iter().cloned()),
                    Some(turn @ Value::Object(_)) => turns.push(turn.clone()),
                    _ => {
                        return Err(
                            row.problem("no_conversation", format!("no conversation: {key:?} is no list of turns"))
                        );
                    }
                }
            }
            conversation(row, &Value::Array(turns), map)
        }
        Layout::Instruction { instruction, input, output, system } => {
            let input = input.as_ref().map(|key| cell(row, map, key)).transpose()?.flatten();
            let system = system.as_ref().map(|key| cell(row, map, key)).transpose()?.flatten();
            let task = cell(row, map, instruction)?;
            let answer = cell(row, map, output)?.ok_or_else(|| empty_answer(row, map, output))?;
            let (instruction, input) = match (task, input) {
                (Some(task), input) => (task, input),
                (None, Some(input)) => (input, None),
                (None, None) => {
                    return Err(
                        row.problem("empty_prompt", format!("the prompt is empty ({instruction:?} holds no text)"))
                    );
                }
            };
            Ok(Content::Instruction { system, instruction, input, output: answer })
        }
        Layout::Completion { prompt, completion } => {
            let answer = cell(row, map, completion)?.ok_or_else(|| empty_answer(row, map, completion))?;
            let prompt = cell(row, map, prompt)?.ok_or_else(|| {
                row.problem("empty_prompt", format!("the prompt is empty ({prompt:?} holds no text)"))
            })?;
            Ok(Content::Completion { prompt, completion: answer })
        }
        Layout::Text(key) => {
            let key = key.as_deref().unwrap_or("text");
            text_content(row, cell(row, map, key)?)
        }
        Layout::Conversation(None) => conversation(row, &row.value, map),
    }
}

fn text_content(row: &Row<'_>, text: Option<String>) -> Result<Content, Problem> {
    text.map(Content::Text).ok_or_else(|| row.problem("empty_text", "the text is empty"))
}

fn empty_answer(row: &Row<'_>, map: &Map<String, Value>, key: &str) -> Problem {
    let what = if map.contains_key(key) { "holds no text" } else { "is missing" };
    row.problem("empty_answer", format!("the answer is empty ({key:?} {what})"))
}

/// A cell as text; `None` where it is missing, null or blank. Numbers keep the spelling they have in the file.
fn cell(row: &Row<'_>, map: &Map<String, Value>, key: &str) -> Result<Option<String>, Problem> {
    let text = match map.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(number)) => {
            let text = number.to_string();
            // 3.10 is read as 3.1: such a number can only be used as text where it is written as text.
            if number.is_f64() && !is_spelled(row.source, &text) {
                let reason = format!("{key:?} is a number whose spelling is lost ({text}); write it in quotes");
                return Err(row.problem("wrong_type", reason));
            }
            text
        }
        Some(other) => {
            let reason = format!("{key:?} holds {} where text is expected", kind_of(other));
            return Err(row.problem("wrong_type", reason));
        }
    };
    Ok((!text.trim().is_empty()).then_some(text))
}

/// True where `source` holds the number `text` spelled just so, and not as a part of a longer one.
fn is_spelled(source: &str, text: &str) -> bool {
    let is_more = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    source
        .match_indices(text)
        .any(|(at, _)| !source[..at].ends_with(is_more) && !source[at + text.len()..].starts_with(is_more))
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A list of turns (or a JSON string of one, as tables hold it) as a conversation.
fn conversation(row: &Row<'_>, turns: &Value, map: &Map<String, Value>) -> Result<Content, Problem> {
    let parsed;
    let turns = match turns {
        Value::String(text) => {
            parsed = serde_json::from_str::<Value>(text).map_err(|error| {
                row.problem("no_conversation", format!("no conversation: the text in its place is not JSON ({error})"))
            })?;
            &parsed
        }
        other => other,
    };
    let Value::Array(turns) = turns else {
        let reason = format!("no conversation: {} in its place", kind_of(turns));
        return Err(row.problem("no_conversation", reason));
    };
    if turns.is_empty() {
        return Err(row.problem("empty_conversation", "the conversation is an empty list"));
    }
    let mut messages = Vec::with_capacity(turns.len() + 1);
    for (number, turn) in turns.iter().enumerate().map(|(i, turn)| (i + 1, turn)) {
        messages.push(message(row, number, turn)?);
    }
    let has_system = messages.first().is_some_and(|first| first.role == "system");
    if let Some(Value::String(system)) = SYSTEMS.iter().find_map(|name| map.get(*name))
        && !has_system
        && !system.trim().is_empty()
    {
        messages.insert(0, Message::new("system", system.clone()));
    }
    let said = |message: &Message| !message.content.trim().is_empty() || message.has_more_than_text();
    if !messages.iter().any(Message::is_assistant) {
        return Err(row.problem("no_assistant_turn", "no assistant turn: there is nothing to learn"));
    }
    if !messages.iter().any(Message::is_learned) {
        return Err(row.problem("no_assistant_turn", "every assistant turn has weight 0: there is nothing to learn"));
    }
    if let Some(empty) = messages.iter().position(|message| message.is_learned() && !said(message)) {
        return Err(row.problem("empty_answer", format!("the assistant's turn {} is empty", empty + 1)));
    }
    let tools = tool_calls::descriptions(map).map_err(|reason| row.problem("tools", reason))?;
    Ok(Content::Chat { messages, tools })
}

/// One turn, in OpenAI's (`role`, `content`) or ShareGPT's (`from`, `value`) names.
fn message(row: &Row<'_>, number: usize, turn: &Value) -> Result<Message, Problem> {
    let Value::Object(turn) = turn else {
        return Err(row.problem("turn", format!("turn {number} is {}, not an object", kind_of(turn))));
    };
    let mut extra = turn.clone();
    let mut take = |keys: [&str; 2]| keys.iter().find_map(|key| extra.shift_remove(*key));
    let role = take(["role", "from"]);
    let content = take(["content", "value"]).unwrap_or(Value::Null);
    let Some(Value::String(role)) = role else {
        return Err(row.problem("turn", format!("turn {number} does not say who speaks (role or from)")));
    };
    let content = turn_text(&content).map_err(|what| row.problem("turn", format!("turn {number} {what}")))?;
    let spoken = role.trim().to_lowercase();
    let role = match spoken.as_str() {
        "human" | "user" => "user",
        "gpt" | "assistant" | "bot" | "model" | "chatgpt" | "bard" | "bing" => "assistant",
        "system" => "system",
        "tool" | "observation" | "function_response" | "tool_response" => "tool",
        // Only function names in these places tell a call from a result.
        "function_call" | "tool_call" => {
            let call: Value = serde_json::from_str(&content).map_err(|error| {
                row.problem("tool_arguments", format!("the call in turn {number} is not valid JSON: {error}"))
            })?;
            let calls = if call.is_array() { call } else { Value::Array(vec![call]) };
            let wrap = |call: &Value| serde_json::json!({"type": "function", "function": call});
            extra.insert("tool_calls".into(), calls.as_array().into_iter().flatten().map(wrap).collect());
            tool_calls::normalise(&mut extra).map_err(|reason| row.problem("tool_arguments", reason))?;
            return Ok(Message { role: "assistant".into(), content: String::new(), extra });
        }
        "" => return Err(row.problem("turn", format!("turn {number} does not say who speaks"))),
        // `developer`, `function`, `ipython`, …: the template decides.
        other => other,
    }
    .to_string();
    tool_calls::normalise(&mut extra).map_err(|reason| row.problem("tool_arguments", reason))?;
    Ok(Message { role, content, extra })
}

/// A turn's text: a string, nothing, or OpenAI's list of text parts.
fn turn_text(content: &Value) -> Result<String, String> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let mut text = String::new();
            for part in parts {
                let is_text = part.get("type").is_none_or(|kind| kind == "text" || kind == "input_text");
                let piece = part.as_str().or_else(|| part.get("text").and_then(Value::as_str).filter(|_| is_text));
                text.push_str(piece.ok_or_else(|| {
                    let kind = part.get("type").and_then(Value::as_str).unwrap_or("unknown");
                    format!("holds a part of type {kind}; only text can be learned")
                })?);
            }
            Ok(text)
        }
        other => Err(format!("holds {} where text is expected", kind_of(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::load;

    fn loaded(text: &str) -> Result<Dataset, Error> {
        let folder = tempfile::tempdir().unwrap();
        // The name says nothing, and is one that makes careless path handling fail.
        let path = folder.path().join("数据 😀 'x'.dat");
        std::fs::write(&path, text).unwrap();
        load(&path, None)
    }

    fn codes(dataset: &Dataset) -> Vec<(usize, &str)> {
        dataset.problems.iter().map(|problem| (problem.row, problem.code.as_str())).collect()
    }

    #[test]
    fn formats_are_recognised_by_content() {
        let cases = [
            (
                r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
                Format::Messages,
            ),
            (
                r#"{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}"#,
                Format::ShareGpt,
            ),
            (r#"[[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]]"#, Format::Messages),
            (r#"{"instruction": "a", "output": "b"}"#, Format::Alpaca),
            (r#"{"instruction": "a", "context": "", "response": "b", "category": "c"}"#, Format::Alpaca),
            (r#"{"Prompt": "a", "Completion": "b"}"#, Format::PromptCompletion),
            (r#"{"text": "a", "id": 4}"#, Format::Text),
            (r#"["a", "b"]"#, Format::Text),
            ("text\na\n", Format::Text),
            ("question;answer\na;b\n", Format::Columns),
            ("messages\n\"[{\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"b\"\"}]\"\n", Format::Messages),
        ];
        for (text, format) in cases {
            assert_eq!(loaded(text).unwrap().format, format, "{text}");
        }
    }

    #[test]
    fn unknown_columns_are_asked_for_by_name() {
        let error = loaded("{\"x\": \"a\", \"y\": \"b\", \"z\": \"c\"}\n").unwrap_err();
        assert!(matches!(&error, Error::UnknownColumns { columns, .. } if columns == &["x", "y", "z"]), "{error}");
        // One known name of two columns is a guess, shown as such.
        let guessed = loaded("aufgabe,answer\na,b\n").unwrap();
        assert_eq!(guessed.mapping.unwrap().prompt, "aufgabe");
        assert!(guessed.notes[0].contains("Guessed"));
    }

    #[test]
    fn files_without_a_usable_row_are_refused_with_the_rows() {
        assert!(matches!(loaded(" \r\n\t"), Err(Error::Empty { .. })));
        assert!(matches!(loaded("Dear diary,\nnothing here.\n"), Err(Error::NotATable { .. })));
        let error = loaded("{\"prompt\": \"a\", \"completion\"\n{\"prompt\": \n").unwrap_err();
        assert!(matches!(&error, Error::NothingUsable { problems, .. } if problems.len() == 2), "{error}");
        assert!(error.to_string().contains("line 1"), "{error}");
        let missing = load(Path::new("/no/such/file"), None).unwrap_err();
        assert!(matches!(missing, Error::Unreadable { .. }));
    }

    #[test]
    fn every_row_is_used_or_reported() {
        let text = concat!(
            "{\"instruction\": \"a\", \"output\": \"b\"}\n",
            "{\"instruction\": \"a\", \"output\": null}\n",
            "{\"instruction\": \"\", \"output\": \"b\"}\n",
            "{\"instruction\": \"a\", \"output\": {\"k\": 1}}\n",
            "{\"instruction\": \"a\", \"output\": 3.10}\n",
            "{\"instruction\": \"a\", \"output\": 42}\n",
            "{\"instruction\": \"\", \"input\": \"i\", \"output\": 0.5}\n",
            "17\n",
            "{\"instruction\": \"a\"",
        );
        let dataset = loaded(text).unwrap();
        let wanted = [
            (2, "empty_answer"),
            (3, "empty_prompt"),
            (4, "wrong_type"),
            (5, "wrong_type"),
            (8, "not_an_object"),
            (9, "json_incomplete"),
        ];
        assert_eq!(codes(&dataset), wanted);
        assert_eq!((dataset.n_rows, dataset.examples.len()), (9, 3));
        let Content::Instruction { output, .. } = &dataset.examples[1].content else { panic!() };
        assert_eq!(output, "42");
        let Content::Instruction { instruction, input, .. } = &dataset.examples[2].content else { panic!() };
        assert_eq!((instruction.as_str(), input), ("i", &None));
    }

    #[test]
    fn a_row_with_bytes_that_are_no_text_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.csv");
        let mut bytes = "prompt,completion\n你,好\nx,".as_bytes().to_vec();
        bytes.extend(b"\xE9\n");
        bytes.extend("再,见\n再,见\n".as_bytes());
        std::fs::write(&path, bytes).unwrap();
        let dataset = load(&path, None).unwrap();
        assert_eq!((codes(&dataset), dataset.problems[0].line), (vec![(2, "not_utf8")], Some(3)));
        assert_eq!(dataset.examples.len(), 3);
    }

    #[test]
    fn turns_have_one_form_whatever_the_file_calls_them() {
        let text = concat!(
            r#"{"system": "S", "tools": "[{\"name\": \"f\"}]", "conversations": [{"from": "human", "value": "a"}, "#,
            r#"{"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"}, "#,
            r#"{"from": "observation", "value": "r"}, {"from": "gpt", "value": "b"}]}"#
        );
        let dataset = loaded(text).unwrap();
        let Content::Chat { messages, tools } = &dataset.examples[0].content else { panic!() };
        let roles: Vec<_> = messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
        assert_eq!(messages[2].extra["tool_calls"][0]["function"]["name"], "f");
        assert!(tools.is_some());
        let parts = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"}]}"#;
        let dataset = loaded(parts).unwrap();
        let Content::Chat { messages, .. } = &dataset.examples[0].content else { panic!() };
        assert_eq!(messages[0].content, "ab");
    }

    #[test]
    fn turns_that_cannot_be_learned_are_reported() {
        let row = |turns: &str| format!("{{\"messages\": {turns}}}\n");
        let text = [
            row(r#"[{"role": "assistant", "content": "ok"}]"#),
            row(r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}]"#),
            row(r#"[{"role": "user", "content": [{"type": "image_url"}]}, {"role": "assistant", "content": "b"}]"#),
            row(r#"["a"]"#),
            row(r#"[{"content": "a"}]"#),
            row(r#"{"role": "user"}"#),
            row(r#"[{"role": "assistant", "content": "b", "weight": 0}]"#),
        ];
        let dataset = loaded(&text.concat()).unwrap();
        let wanted = [
            (2, "empty_answer"),
            (3, "turn"),
            (4, "turn"),
            (5, "turn"),
            (6, "no_conversation"),
            (7, "no_assistant_turn"),
        ];
        assert_eq!(codes(&dataset), wanted);
    }
}
