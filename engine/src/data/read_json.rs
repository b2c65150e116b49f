//! JSON in the forms people have it in: one object per line, a list, objects one after the other, one list per column.
//!
//! The form is found by content. A list is cut into its elements by a scanner before each is parsed, so that one bad
//! element costs one row and every row knows its line.

use std::path::Path;

use serde_json::{Map, Value};

use super::lines::{LineCounter, lines};
use super::{Error, Problem, Row, Table};

/// Keys under which exports wrap their list of rows.
const WRAPPERS: [&str; 8] = ["data", "rows", "examples", "train", "items", "records", "dataset", "samples"];

/// True where the text is JSON in intent: it begins with a bracket, or most of its first lines do.
pub(crate) fn looks_like_json(text: &str) -> bool {
    let first = text.trim_start_matches(is_blank);
    if first.starts_with('{') {
        return true;
    }
    if let Some(inside) = first.strip_prefix('[') {
        return inside.trim_start_matches(is_blank).starts_with(['{', '[', '"', ']']);
    }
    let head: Vec<&str> = lines(text).map(|l| l.trim_matches(is_blank)).filter(|l| !l.is_empty()).take(20).collect();
    head.iter().filter(|line| line.starts_with(['{', '['])).count() * 2 > head.len()
}

/// White space of JSON, and the byte order marks that joined files carry inside.
fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{FEFF}'
}

/// Reads every row of `text`.
pub(crate) fn read<'a>(text: &'a str, path: &Path) -> Result<Table<'a>, Error> {
    let start = text.find(|c| !is_blank(c)).unwrap_or(text.len());
    let mut table = Table::default();
    match value_end(text, start) {
        // A list, or a list that breaks off.
        _ if text[start..].starts_with('[') && !holds_a_list_per_line(text, start) => {
            read_list(&mut table, text, start);
        }
        Some(end) if text[end..].trim_matches(is_blank).is_empty() => {
            if let Ok(Value::Object(map)) = serde_json::from_str::<Value>(&text[start..end]) {
                return read_document(map, text, start, end, path);
            }
            read_lines(&mut table, text);
        }
        // The first value spans several lines: objects one after the other.
        Some(end) if text[start..end].contains('\n') && serde_json::from_str::<Value>(&text[start..end]).is_ok() => {
            read_stream(&mut table, text, start);
        }
        _ => read_lines(&mut table, text),
    }
    Ok(table)
}

/// True for one list per line, each a row of its own.
fn holds_a_list_per_line(text: &str, start: usize) -> bool {
    value_end(text, start).is_some_and(|end| {
        !text[start..end].contains(['\n', '\r']) && text[end..].trim_start_matches(is_blank).starts_with('[')
    })
}

fn push_row<'a>(table: &mut Table<'a>, value: Value, line: usize, last_line: usize, source: &'a str) {
    table.n_rows += 1;
    table.note_columns(&value);
    table.rows.push(Row { row: table.n_rows, line: Some(line), last_line, value, source });
}

fn push_problem(table: &mut Table<'_>, line: usize, code: &str, reason: String) {
    table.n_rows += 1;
    table.problems.push(Problem::new(table.n_rows, Some(line), code, reason));
}

/// One value per line; several on a line are several rows.
fn read_lines<'a>(table: &mut Table<'a>, text: &'a str) {
    for (number, line) in lines(text).enumerate().map(|(i, line)| (i + 1, line)) {
        let line = line.trim_matches(is_blank);
        if line.is_empty() {
            continue;
        }
        let mut values = serde_json::Deserializer::from_str(line).into_iter::<Value>();
        let mut done = 0;
        loop {
            match values.next() {
                None => break,
                Some(Ok(value)) => {
                    let end = values.byte_offset();
                    push_row(table, value, number, number, &line[done..end]);
                    done = end;
                    // Lines cut out of a list keep its comma.
                    if line[done..].trim_matches(is_blank) == "," {
                        break;
                    }
                }
                Some(Err(error)) => {
                    let (code, reason) = explain(&error, line);
                    push_problem(table, number, code, reason);
                    break;
                }
            }
        }
    }
}

/// Objects one after the other, each over several lines. After a broken one, reading goes on at the next line that
/// begins with `{`.
fn read_stream<'a>(table: &mut Table<'a>, text: &'a str, start: usize) {
    let mut counter = LineCounter::new(text);
    let mut at = start;
    while let Some(skip) = text[at..].find(|c| !is_blank(c) && c != ',') {
        at += skip;
        let line = counter.line_of(at);
        let end = value_end(text, at);
        let parsed = match end {
            Some(end) => serde_json::from_str::<Value>(&text[at..end]),
            None => serde_json::from_str::<Value>(&text[at..]),
        };
        match (parsed, end) {
            (Ok(value), Some(end)) => {
                let last = counter.line_of(end);
                push_row(table, value, line, last, &text[at..end]);
                at = end;
            }
            (Ok(_), None) => return,
            (Err(error), end) => {
                let source = end.map_or(&text[at..], |end| &text[at..end]);
                let (code, reason) = explain(&error, source);
                push_problem(table, line, code, reason);
                match text[at..].find("\n{") {
                    Some(next) => at += next + 1,
                    None => return,
                }
            }
        }
    }
}

/// The elements of the list that begins at `start`.
fn read_list<'a>(table: &mut Table<'a>, text: &'a str, start: usize) {
    let mut counter = LineCounter::new(text);
    let mut at = start + 1;
    loop {
        let Some(skip) = text[at..].find(|c| !is_blank(c) && c != ',') else {
            let line = counter.line_of(text.len());
            let reason = "the list is never closed with ]: the file may have been cut off here, after whole rows";
            push_problem(table, line, "json_incomplete", reason.into());
            return;
        };
        at += skip;
        let line = counter.line_of(at);
        if text[at..].starts_with(']') {
            let rest = text[at + 1..].trim_matches(is_blank);
            if !rest.is_empty() {
                let line = counter.line_of(at + 1);
                let reason = format!("text after the end of the list was not read: {:?}", head(rest));
                push_problem(table, line, "json_invalid", reason);
            }
            return;
        }
        let Some(end) = value_end(text, at) else {
            let error = serde_json::from_str::<Value>(&text[at..]).err();
            let (code, reason) = match error {
                Some(error) => explain(&error, &text[at..]),
                None => ("json_invalid", "text that is no JSON value".into()),
            };
            push_problem(table, line, code, format!("{reason}; nothing after this row could be read"));
            return;
        };
        match serde_json::from_str::<Value>(&text[at..end]) {
            Ok(value) => {
                let last = counter.line_of(end);
                push_row(table, value, line, last, &text[at..end]);
            }
            Err(error) => {
                let (code, reason) = explain(&error, &text[at..end]);
                push_problem(table, line, code, reason);
            }
        }
        at = end;
    }
}

/// A file that is one object: rows under a wrapper key, one list per column, or a single example.
fn read_document<'a>(
    map: Map<String, Value>,
    text: &'a str,
    start: usize,
    end: usize,
    path: &Path,
) -> Result<Table<'a>, Error> {
    let mut table = Table::default();
    let is_rows = |value: &Value| {
        value.as_array().is_some_and(|rows| {
            !rows.is_empty()
                && rows.iter().all(Value::is_object)
                && !rows.iter().any(|row| row.get("role").is_some() || row.get("from").is_some())
        })
    };
    let wrapper = map.iter().find(|(key, value)| {
        is_rows(value) && (map.len() == 1 || WRAPPERS.contains(&key.to_ascii_lowercase().as_str()))
    });
    if let Some((key, _)) = wrapper {
        table.notes.push(format!("The rows were taken from the list under {key:?}."));
        // Found again in the text, so that rows know their lines.
        if let Some(list) = list_under(text, start, key) {
            read_list(&mut table, text, list);
            // What follows the list inside the object is no row.
            table.problems.retain(|problem| !problem.reason.starts_with("text after the end of the list"));
            table.n_rows = table.rows.len() + table.problems.len();
        }
        return Ok(table);
    }
    if let Some(rows) = columns_to_rows(&map, path)? {
        table.notes.push(format!(
            "The file holds one list per column ({}); it was read as {} rows.",
            map.keys().cloned().collect::<Vec<_>>().join(", "),
            rows.len()
        ));
        for value in rows {
            table.n_rows += 1;
            table.note_columns(&value);
            table.rows.push(Row { row: table.n_rows, line: None, last_line: 0, value, source: "" });
        }
        return Ok(table);
    }
    let mut counter = LineCounter::new(text);
    let line = counter.line_of(start);
    let last = counter.line_of(end);
    push_row(&mut table, Value::Object(map), line, last, &text[start..end]);
    Ok(table)
}

/// Offset of the `[` of the list under `key` in the object that begins at `start`.
fn list_under(text: &str, start: usize, key: &str) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += text[at..].find(|c| !is_blank(c) && c != ',')?;
        let end = value_end(text, at)?;
        let found = serde_json::from_str::<String>(&text[at..end]).is_ok_and(|name| name == key);
        at = end + text[end..].find(':')? + 1;
        at += text[at..].find(|c| !is_blank(c))?;
        if found {
            return text[at..].starts_with('[').then_some(at);
        }
        at = value_end(text, at)?;
    }
}

/// Rows of a column-oriented object: `{"a": [1, 2], "b": [3, 4]}`, or `{"a": {"0": 1, "1": 2}, …}` as pandas writes it.
fn columns_to_rows(map: &Map<String, Value>, path: &Path) -> Result<Option<Vec<Value>>, Error> {
    let cells: Option<Vec<(&String, Vec<&Value>)>> = map
        .iter()
        .map(|(key, value)| match value {
            Value::Array(cells) => Some((key, cells.iter().collect())),
            Value::Object(cells) if cells.keys().all(|key| key.parse::<u64>().is_ok()) => {
                Some((key, cells.values().collect()))
            }
            _ => None,
        })
        .collect();
    let Some(cells) = cells else { return Ok(None) };
    // {"messages": [{"role": …}, …]} and {"prompt": [{"role": …}], "completion": […]} are one example, no columns.
    let is_turns = |cells: &[&Value]| {
        !cells.is_empty() && cells.iter().all(|cell| cell.get("role").is_some() || cell.get("from").is_some())
    };
    if cells.is_empty() || cells.iter().any(|(_, cells)| is_turns(cells)) || cells.iter().all(|(_, c)| c.is_empty()) {
        return Ok(None);
    }
    let n = cells[0].1.len();
    if cells.iter().any(|(_, column)| column.len() != n) {
        let lengths = cells.iter().map(|(key, c)| format!("{key} {}", c.len())).collect::<Vec<_>>().join(", ");
        return Err(Error::UnevenColumns { path: path.into(), lengths });
    }
    let row = |i: usize| cells.iter().map(|(key, column)| ((*key).clone(), column[i].clone())).collect();
    Ok(Some((0..n).map(|i| Value::Object(row(i))).collect()))
}

/// End of the JSON value that begins at `start`, by brackets and strings alone; `None` where the text ends first.
fn value_end(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0usize;
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                loop {
                    match bytes.get(at)? {
                        b'\\' => at += 2,
                        b'"' => break,
                        _ => at += 1,
                    }
                }
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                // At depth 0 this is a stray bracket: it ends at itself, and parsing it reports it.
                if depth <= 1 {
                    return Some(at + 1);
                }
                depth -= 1;
            }
            // A bare number or word ends before what cannot belong to it.
            _ if depth == 0 => {
                let word = text[at..].find([',', ']', '}', ':', '"', '{', '[']).unwrap_or(text.len() - at);
                let word = text[at..at + word].find(is_blank).unwrap_or(word);
                return Some(at + word.max(text[at..].chars().next().map_or(1, char::len_utf8)));
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Code and reason of a parse error in `source`, with the column counted in characters.
fn explain(error: &serde_json::Error, source: &str) -> (&'static str, String) {
    let line_text = lines(source).nth(error.line().saturating_sub(1)).unwrap_or_default();
    let mut bytes = error.column().min(line_text.len());
    while !line_text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    let column = line_text[..bytes].chars().count();
    let place = match error.line() {
        0 | 1 => format!("column {column}"),
        line => format!("column {column} of its line {line}"),
    };
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    if message.contains("surrogate") || message.contains("hex escape") {
        let reason = format!(
            "lone surrogate at {place}: a \\u escape of D800 to DFFF is half of a character and the \
             other half is missing"
        );
        return ("lone_surrogate", reason);
    }
    if error.is_eof() {
        return ("json_incomplete", format!("incomplete JSON, it ends early at {place} ({message})"));
    }
    ("json_invalid", format!("invalid JSON at {place}: {message}"))
}

fn head(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table<'_> {
        assert!(looks_like_json(text), "{text}");
        read(text, Path::new("data")).unwrap()
    }

    fn lines_of(table: &Table<'_>) -> Vec<usize> {
        table.rows.iter().map(|row| row.line.unwrap()).collect()
    }

    #[test]
    fn blank_lines_are_neither_rows_nor_problems() {
        let table = table("{\"a\":1}\r\n\r\n  \t\r\n{\"a\": \r\n{\"a\":\"x\\r\\ny\"}\r\n\r\n");
        assert_eq!(lines_of(&table), [1, 5]);
        assert_eq!(table.rows[1].value["a"], "x\r\ny");
        assert_eq!(table.n_rows, 3);
        let problem = &table.problems[0];
        assert_eq!((problem.row, problem.line, problem.code.as_str()), (2, Some(4), "json_incomplete"));
    }

    #[test]
    fn several_values_on_a_line_are_several_rows() {
        let table = table("{\"a\":1}\n{\"a\":2} {\"a\":3}\n");
        assert_eq!(lines_of(&table), [1, 2, 2]);
        assert!(table.problems.is_empty());
    }

    #[test]
    fn a_list_gives_rows_with_lines_and_one_bad_element_costs_one_row() {
        let table = table("[\n {\"a\": 1},\n {\"a\": tru},\n {\n  \"a\": \"]},{[\\\"\"\n }\n]\n");
        assert_eq!(lines_of(&table), [2, 4]);
        assert_eq!(table.problems[0].line, Some(3));
        assert_eq!(table.n_rows, 3);
    }

    #[test]
    fn a_list_that_breaks_off_keeps_its_whole_rows_and_says_so() {
        let cut = table("[{\"a\":1},\n{\"a\":2},\n{\"a\":\"x");
        assert_eq!(cut.rows.len(), 2);
        assert_eq!((cut.problems[0].line, cut.problems[0].code.as_str()), (Some(3), "json_incomplete"));
        let unclosed = table("[{\"a\":1},\n{\"a\":2}\n");
        assert_eq!((unclosed.rows.len(), unclosed.problems.len()), (2, 1));
        let trailing = table("[{\"a\":1}]\n[1]\n oops");
        assert!(!trailing.problems.is_empty());
    }

    #[test]
    fn objects_over_several_lines_are_a_stream() {
        let table = table("{\n \"a\": 1\n}\n{\n \"a\": 2,\n}\n{\n \"a\": 3\n}\n");
        assert_eq!(lines_of(&table), [1, 7]);
        assert_eq!((table.problems.len(), table.problems[0].line), (1, Some(4)));
    }

    #[test]
    fn one_list_per_column_is_turned_into_rows() {
        for text in [
            r#"{"prompt": ["a", "b"], "completion": ["c", "d"]}"#,
            r#"{"prompt": {"0": "a", "1": "b"}, "completion": {"0": "c", "1": "d"}}"#,
        ] {
            let table = table(text);
            assert_eq!(table.columns, ["prompt", "completion"]);
            assert_eq!(table.rows[1].value["completion"], "d");
            assert!(table.notes[0].contains("one list per column"));
        }
        let uneven = r#"{"prompt": ["a", "b"], "completion": ["c"]}"#;
        let error = read(uneven, Path::new("x.json")).unwrap_err();
        assert!(error.to_string().contains("prompt 2, completion 1"), "{error}");
    }

    #[test]
    fn a_single_conversation_is_a_row_and_a_wrapper_is_opened() {
        let one = table(r#"{"messages": [{"role": "user", "content": "x"}]}"#);
        assert_eq!(one.rows.len(), 1);
        let wrapped = table("{\"version\": 1,\n\"data\": [\n{\"text\": \"x\"},\n{\"text\": \"y\"}],\n\"end\": 2}");
        assert_eq!(lines_of(&wrapped), [3, 4]);
        assert!(wrapped.problems.is_empty(), "{:?}", wrapped.problems);
    }

    #[test]
    fn a_lone_surrogate_is_named_and_a_pair_is_one_character() {
        let table = table("{\"a\":\"\\ud83d\\ude00\"}\n{\"a\":\"\\ud83d\"}\n{\"a\":\"\\ude00\\ud83d\"}\n");
        assert_eq!(table.rows[0].value["a"], "😀");
        assert_eq!(table.problems.iter().map(|p| p.code.as_str()).collect::<Vec<_>>(), ["lone_surrogate"; 2]);
    }
}
