//! What chat templates expect of Python: `json.dumps`, how values print, and `strftime`.

use std::fmt::Write;

use serde_json::Value;

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: spaces after `,` and `:` unless indented, keys in order.
pub(crate) fn json_dumps(value: &Value, indent: Option<usize>) -> String {
    let mut out = String::new();
    dump(value, indent, 0, &mut out);
    out
}

fn dump(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let newline = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                out.push_str(if i > 0 { comma } else { "" });
                newline(out, depth + 1);
                out.push_str(&json_string(key));
                out.push_str(": ");
                dump(item, indent, depth + 1, out);
            }
            newline(out, depth);
            out.push('}');
        }
        Value::String(text) => out.push_str(&json_string(text)),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => out.push_str(&float_repr(float)),
            None => out.push_str(&number.to_string()),
        },
        other => out.push_str(&other.to_string()),
    }
}

/// serde_json escapes as Python does, but for U+007F, which neither does.
fn json_string(text: &str) -> String {
    Value::String(text.into()).to_string()
}

/// Python's `repr` of a float: shortest digits, an exponent below 1e-4 and from 1e16 on, of at least two digits.
pub(crate) fn float_repr(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) && value.is_finite() {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |rest| ("-", rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value:?}")
}

/// How Python prints a value inside `{{ … }}`, where that differs from Jinja in Rust; `None` where it doesn't.
pub(crate) fn printed(value: &minijinja::Value) -> Option<String> {
    use minijinja::value::ValueKind;
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(&serde_json::to_value(value).ok()?, &mut out);
            Some(out)
        }
        ValueKind::Number if !value.is_integer() => f64::try_from(value.clone()).ok().map(float_repr),
        _ => None,
    }
}

fn repr(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(_) => out.push_str(&json_dumps(value, None)),
        Value::String(text) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            out.push(quote);
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote => out.extend(['\\', c]),
                    c => out.push(c),
                }
            }
            out.push(quote);
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&Value::String(key.clone()), out);
                out.push_str(": ");
                repr(item, out);
            }
            out.push('}');
        }
    }
}

/// A moment in UTC, for templates that print the date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub(crate) unix_s: i64,
}

impl Moment {
    pub(crate) fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { unix_s: since.as_secs() as i64 }
    }

    /// Noon of an ISO date, `2025-08-01`.
    pub(crate) fn of_date(date: &str) -> Option<Self> {
        let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
        let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
        let valid = (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        valid.then(|| Self { unix_s: days_from_civil(year, month, day) * 86_400 + 43_200 })
    }

    /// The ISO date.
    pub(crate) fn date(self) -> String {
        self.strftime("%Y-%m-%d")
    }

    /// C's `strftime` in the C locale, for the directives that make dates and times; others stay as they are.
    pub(crate) fn strftime(self, format: &str) -> String {
        const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
        const MONTHS: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        let days = self.unix_s.div_euclid(86_400);
        let second_of_day = self.unix_s.rem_euclid(86_400);
        let (year, month, day) = civil_from_days(days);
        let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
        let weekday = DAYS[days.rem_euclid(7) as usize];
        let month_name = MONTHS[month as usize - 1];
        let hour_12 = (hour + 11) % 12 + 1;
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let unpadded = rest.starts_with('-');
            rest = rest.strip_prefix('-').unwrap_or(rest);
            let Some(directive) = rest.chars().next() else {
                out.push('%');
                break;
            };
            rest = &rest[directive.len_utf8()..];
            let width = if unpadded { 0 } else { 2 };
            // Writing to a String cannot fail.
            let _ = match directive {
                'Y' => write!(out, "{year}"),
                'm' => write!(out, "{month:0width$}"),
                'd' => write!(out, "{day:0width$}"),
                'e' => write!(out, "{day:>2}"),
                'y' => write!(out, "{:0width$}", year.rem_euclid(100)),
                'B' => write!(out, "{month_name}"),
                'b' | 'h' => write!(out, "{}", &month_name[..3]),
                'A' => write!(out, "{weekday}"),
                'a' => write!(out, "{}", &weekday[..3]),
                'H' => write!(out, "{hour:0width$}"),
                'I' => write!(out, "{hour_12:0width$}"),
                'M' => write!(out, "{minute:0width$}"),
                'S' => write!(out, "{second:0width$}"),
                'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
                'j' => write!(out, "{:03}", days - days_from_civil(year, 1, 1) + 1),
                'F' => write!(out, "{year}-{month:02}-{day:02}"),
                'T' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
                'Z' => write!(out, "UTC"),
                'z' => write!(out, "+0000"),
                '%' => write!(out, "%"),
                other => write!(out, "%{other}"),
            };
        }
        out.push_str(rest);
        out
    }
}

/// Days since 1970-01-01 of a date in the proleptic Gregorian calendar (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Inverse of [`days_from_civil`]: year, month, day.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z - era * 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value = json!({"b": "Ö\"", "a": [1, 2.0, 1e-5, 1e16, 123456.5, null, true], "e": {}, "l": []});
        let wanted = r#"{"b": "Ö\"", "a": [1, 2.0, 1e-05, 1e+16, 123456.5, null, true], "e": {}, "l": []}"#;
        assert_eq!(json_dumps(&value, None), wanted);
        let wanted = "{\n  \"a\": [\n    1\n  ],\n  \"b\": {}\n}";
        assert_eq!(json_dumps(&json!({"a": [1], "b": {}}), Some(2)), wanted);
    }

    #[test]
    fn values_print_as_in_python() {
        let print = |value: Value| printed(&minijinja::Value::from_serialize(value));
        assert_eq!(print(json!(null)).as_deref(), Some("None"));
        assert_eq!(
            print(json!([true, "it's", "a\nb", {"k": 1.5}])).as_deref(),
            Some("[True, \"it's\", 'a\\nb', {'k': 1.5}]")
        );
        assert_eq!(print(json!("plain")), None);
        assert_eq!(print(json!(0.1)).as_deref(), Some("0.1"));
    }

    #[test]
    fn dates_are_civil_dates() {
        let moment = Moment::of_date("2024-02-29").unwrap();
        assert_eq!(
            moment.strftime("%d %b %Y, %A, day %j, %H:%M %p %-d %%"),
            "29 Feb 2024, Thursday, day 060, 12:00 PM 29 %"
        );
        assert_eq!(Moment { unix_s: 951_827_696 }.strftime("%F %T %-d/%-m/%y"), "2000-02-29 12:34:56 29/2/00");
        assert_eq!(Moment { unix_s: -1 }.date(), "1969-12-31");
        assert_eq!(Moment::of_date("2025-13-01"), None);
        assert_eq!(Moment::of_date("today"), None);
    }
}
