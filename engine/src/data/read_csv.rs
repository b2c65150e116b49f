//! Tables with a header line: comma, semicolon, tab or bar between cells, RFC 4180 quoting, physical line numbers.
//!
//! The scanner is our own because a quote that is never closed has to be reported with its line and must not swallow
//! the rows after it; the usual readers return the rest of the file as one cell. Cells are text and stay as written:
//! `007`, `NA` and `None` are answers. Line breaks inside cells become LF.

use std::path::Path;

use serde_json::{Map, Value};

use super::lines::count_breaks;
use super::{Error, Problem, Row, Table};

const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];
/// A header of one column is believed only where its name is one of these.
const SINGLE_COLUMNS: [&str; 4] = ["text", "messages", "conversations", "content"];

/// Reads every row of `text`.
pub(crate) fn read<'a>(text: &'a str, path: &Path) -> Result<Table<'a>, Error> {
    let (body, first_line, declared) = declared_delimiter(text);
    let Some(delimiter) = declared.or_else(|| delimiter(body)) else {
        let head = text.trim().chars().take(60).collect();
        return Err(Error::NotATable { path: path.into(), head });
    };
    let mut scanner = Scanner::new(body, first_line, delimiter);
    let header = scanner.next().map(|record| record.cells).unwrap_or_default();
    let mut table =
        Table { columns: header.iter().map(|name| name.trim().to_string()).collect(), ..Default::default() };
    if delimiter != b',' {
        let name = match delimiter {
            b'\t' => "tabs",
            b';' => "semicolons",
            _ => "bars",
        };
        table.notes.push(format!("Columns are separated by {name}."));
    }
    let columns = table.columns.clone();
    for record in scanner {
        table.n_rows += 1;
        let row = table.n_rows;
        match checked(&record, &columns) {
            Ok(value) => table.rows.push(Row {
                row,
                line: Some(record.line),
                last_line: record.last_line,
                value: Value::Object(value),
                source: "",
            }),
            Err((line, code, reason)) => table.problems.push(Problem::new(row, Some(line), code, reason)),
        }
    }
    table.columns.retain(|name| !name.is_empty());
    Ok(table)
}

/// The record as an object, or line, code and reason why not.
fn checked(record: &Record, columns: &[String]) -> Result<Map<String, Value>, (usize, &'static str, String)> {
    if let Some(fault) = &record.fault {
        return Err(match *fault {
            Fault::Unclosed { line } => (
                line,
                "unclosed_quote",
                format!(
                    "the quote opened on line {line} is never closed; the rows after this line were read on their own"
                ),
            ),
            Fault::TextAfterQuote { line, closed_line } => (
                line,
                "text_after_quote",
                format!(
                    "the quoted cell that begins on line {line} ends on line {closed_line} but is followed by text; \
                     quotes inside a quoted cell are written twice"
                ),
            ),
        });
    }
    let (n, wanted) = (record.cells.len(), columns.len());
    // Blank cells beyond the header lose nothing.
    if n < wanted || record.cells[wanted..].iter().any(|cell| !cell.trim().is_empty()) {
        let reason = format!("{n} cells where the header has {wanted}");
        return Err((record.line, "field_count", reason));
    }
    let cells = columns.iter().zip(&record.cells).filter(|(name, _)| !name.is_empty());
    Ok(cells.map(|(name, cell)| (name.clone(), Value::String(cell.clone()))).collect())
}

/// Excel's `sep=;` line, the text after it and the number of its first line.
fn declared_delimiter(text: &str) -> (&str, usize, Option<u8>) {
    let line = text.split(['\n', '\r']).next().unwrap_or_default();
    match line.strip_prefix("sep=").map(str::as_bytes) {
        Some(&[delimiter]) => {
            let rest = &text[line.len()..];
            let rest = rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix(['\n', '\r'])).unwrap_or(rest);
            (rest, 2, Some(delimiter))
        }
        _ => (text, 1, None),
    }
}

/// The delimiter with which most of the first rows have as many cells as the header, at least two; then the one with
/// more cells. `None` where the text is no table.
fn delimiter(text: &str) -> Option<u8> {
    const LOOKED_AT: usize = 200;
    let score = |delimiter: u8| {
        let mut records = Scanner::new(text, 1, delimiter);
        let header = records.next()?;
        let n = header.cells.len();
        if n < 2 || header.fault.is_some() || header.cells.iter().all(|name| name.trim().is_empty()) {
            return None;
        }
        let (mut equal, mut all) = (0usize, 0usize);
        for record in records.take(LOOKED_AT) {
            equal += usize::from(record.fault.is_none() && record.cells.len() == n);
            all += 1;
        }
        // Prose with commas is not a table: header cells are names, and some rows must agree with them.
        let names = header.cells.iter().all(|name| name.trim().chars().count() <= 64);
        (names && (equal * 4 >= all || all == 0)).then(|| (equal * 100 / all.max(1), n, delimiter))
    };
    if let Some((_, _, found)) = DELIMITERS.iter().filter_map(|&d| score(d)).max_by_key(|&(equal, n, _)| (equal, n)) {
        return Some(found);
    }
    let header = Scanner::new(text, 1, b',').next()?;
    let name = header.cells.first()?.trim().to_lowercase();
    (header.cells.len() == 1 && SINGLE_COLUMNS.contains(&name.as_str())).then_some(b',')
}

/// Why a record cannot be trusted.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// The file ends inside the quote that was opened on `line`.
    Unclosed { line: usize },
    /// The quote opened on `line` is closed on `closed_line`, and text follows.
    TextAfterQuote { line: usize, closed_line: usize },
}

#[derive(Debug)]
struct Record {
    line: usize,
    last_line: usize,
    cells: Vec<String>,
    fault: Option<Fault>,
}

/// Cuts a text into records. Lines without any character are skipped.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    delimiter: u8,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str, line: usize, delimiter: u8) -> Self {
        Self { text, at: 0, line, delimiter }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Steps over a line end, if one is here.
    fn line_end(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let n = if rest.starts_with("\r\n") { 2 } else { usize::from(rest.starts_with(['\n', '\r'])) };
        self.at += n;
        self.line += usize::from(n > 0);
        n > 0
    }

    /// Steps over the rest of the physical line that `offset` (on line `line`) is on.
    fn resume_after_line(&mut self, offset: usize, line: usize) {
        let rest = &self.text[offset..];
        self.at = offset + rest.find(['\n', '\r']).unwrap_or(rest.len());
        self.line = line;
        self.line_end();
    }

    /// One cell; on a fault the scanner stands behind what cannot be trusted.
    fn cell(&mut self) -> Result<String, Fault> {
        let rest = &self.text[self.at..];
        let padding = rest.len() - rest.trim_start_matches(' ').len();
        if !rest[padding..].starts_with('"') {
            let delimiter = self.delimiter;
            let n = rest.bytes().position(|b| b == delimiter || b == b'\n' || b == b'\r').unwrap_or(rest.len());
            self.at += n;
            return Ok(rest[..n].to_string());
        }
        let (opened_at, opened_line) = (self.at + padding, self.line);
        self.at = opened_at + 1;
        let mut cell = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(n) = rest.find('"') else {
                self.resume_after_line(opened_at, opened_line);
                return Err(Fault::Unclosed { line: opened_line });
            };
            cell.push_str(&rest[..n]);
            self.line += count_breaks(&rest[..n]);
            self.at += n + 1;
            if self.peek() != Some(b'"') {
                break;
            }
            cell.push('"');
            self.at += 1;
        }
        let rest = &self.text[self.at..];
        let after = rest.trim_start_matches(' ');
        if !(after.is_empty() || after.starts_with(['\n', '\r', self.delimiter as char])) {
            let fault = Fault::TextAfterQuote { line: opened_line, closed_line: self.line };
            self.resume_after_line(self.at, self.line);
            return Err(fault);
        }
        self.at += rest.len() - after.len();
        if cell.contains('\r') {
            cell = cell.replace("\r\n", "\n").replace('\r', "\n");
        }
        Ok(cell)
    }
}

impl Iterator for Scanner<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            // Blank lines, also of blanks only, are no records.
            let rest = &self.text[self.at..];
            let blank = rest.len() - rest.trim_start_matches(' ').len();
            if rest[blank..].is_empty() {
                return None;
            }
            if !rest[blank..].starts_with(['\n', '\r']) {
                break;
            }
            self.at += blank;
            self.line_end();
        }
        let mut record = Record { line: self.line, last_line: self.line, cells: Vec::new(), fault: None };
        loop {
            match self.cell() {
                Ok(cell) => record.cells.push(cell),
                Err(fault) => {
                    record.last_line = self.line;
                    record.fault = Some(fault);
                    return Some(record);
                }
            }
            record.last_line = self.line;
            if self.peek() == Some(self.delimiter) {
                self.at += 1;
            } else {
                self.line_end();
                return Some(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table<'_> {
        read(text, Path::new("data.csv")).unwrap()
    }

    fn lines_of(table: &Table<'_>) -> Vec<usize> {
        table.rows.iter().map(|row| row.line.unwrap()).collect()
    }

    #[test]
    fn line_breaks_and_doubled_quotes_stay_inside_their_cell() {
        let table = table("a;b\r\n\"x; y\";\"one\r\n\"\"two\"\"; 3\"\r\n\r\n1, 2;0,50\r\n");
        assert_eq!(table.columns, ["a", "b"]);
        assert_eq!(table.rows[0].value["b"], "one\n\"two\"; 3");
        assert_eq!(table.rows[1].value["b"], "0,50");
        assert_eq!(lines_of(&table), [2, 5]);
    }

    #[test]
    fn an_unclosed_quote_costs_one_row_and_is_reported_at_its_line() {
        let table = table("a,b\n1,x\n2,\"y\n3,z\n4,w\n");
        assert_eq!(lines_of(&table), [2, 4, 5]);
        assert_eq!((table.problems[0].line, table.problems[0].code.as_str()), (Some(3), "unclosed_quote"));
        assert_eq!(table.n_rows, 4);
    }

    #[test]
    fn quotes_that_are_not_doubled_are_reported() {
        let table = table("a,b\n1,\"say \"hi\" now\"\n2,ok\n");
        assert_eq!(lines_of(&table), [3]);
        assert_eq!(table.problems[0].code, "text_after_quote");
    }

    #[test]
    fn rows_of_other_width_are_reported_unless_the_surplus_is_blank() {
        let table = table("a,b,c\n1,,x\n2,y\n3,,z,extra\n4,,w,,\n");
        assert_eq!(lines_of(&table), [2, 5]);
        let reasons: Vec<_> = table.problems.iter().map(|p| (p.line.unwrap(), p.reason.as_str())).collect();
        assert_eq!(reasons, [(3, "2 cells where the header has 3"), (4, "4 cells where the header has 3")]);
    }

    #[test]
    fn prose_is_not_a_table_and_sep_lines_are_obeyed() {
        assert!(read("Dear all,\nthis is a letter, with commas, and more.\nBye\n", Path::new("x")).is_err());
        let table = table("sep=;\na;b\n1;2,5\n");
        assert_eq!((table.rows[0].value["b"].as_str(), table.rows[0].line), (Some("2,5"), Some(3)));
    }

    #[test]
    fn a_lone_carriage_return_ends_a_line() {
        assert_eq!(lines_of(&table("a,b\r1,2\r3,4\r")), [2, 3]);
    }
}
