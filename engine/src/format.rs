//! How numbers are shown. Every byte count, duration and rate that a person reads in the terminal, in a message or in
//! the report goes through here, so that one value never appears in two forms.
//!
//! The unit is chosen after rounding (1023.999 MiB is "1 GiB", not "1024 MiB"), NaN is shown as NaN, and what is not
//! known is a dash.

/// Shown where a value is not known.
pub const UNKNOWN: &str = "—";

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// A byte count in binary units with at most two decimals: `17 B`, `4.5 KiB`, `1.25 GiB`.
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = 0;
    while unit + 1 < UNITS.len() && round(value, digits_of(unit)) >= 1024.0 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", trimmed(value, digits_of(unit)), UNITS[unit])
}

/// Decimals that carry meaning in a unit: parts of a GiB matter, parts of a MiB hardly.
fn digits_of(unit: usize) -> usize {
    match unit {
        0 => 0,
        1 | 2 => 1,
        _ => 2,
    }
}

fn round(value: f64, digits: usize) -> f64 {
    let scale = 10f64.powi(digits as i32);
    (value * scale).round() / scale
}

/// Rounded to `digits` decimals, without trailing zeros.
fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// A span of time: `0.4 s`, `42 s`, `5 min 07 s`, `3 h 32 min`, `2 d 05 h`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return number(seconds, 0);
    }
    let seconds = seconds.max(0.0);
    if round(seconds, 1) < 10.0 {
        return format!("{} s", trimmed(seconds, 1));
    }
    let whole = seconds.round() as u64;
    if whole < 60 {
        return format!("{whole} s");
    }
    if whole < 3600 {
        return format!("{} min {:02} s", whole / 60, whole % 60);
    }
    let minutes = (seconds / 60.0).round() as u64;
    if minutes < 48 * 60 {
        return format!("{} h {:02} min", minutes / 60, minutes % 60);
    }
    let hours = (seconds / 3600.0).round() as u64;
    format!("{} d {:02} h", hours / 24, hours % 24)
}

/// A span of time, or a dash where it is not known yet.
pub fn duration_or_unknown(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| UNKNOWN.into(), duration)
}

/// A real number with a fixed count of decimals; NaN and infinities by name.
pub fn number(value: f64, digits: usize) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "∞".into() } else { "−∞".into() }
    } else {
        format!("{value:.digits$}")
    }
}

/// A real number with at most `digits` decimals: `0.5`, `2`.
pub fn plain(value: f64, digits: usize) -> String {
    if value.is_finite() { trimmed(value, digits) } else { number(value, digits) }
}

/// A whole number with thousands set apart: `49,152`.
pub fn count(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A count with its noun: `1 example`, `12 examples`.
pub fn counted(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{} {noun}s", count(n)) }
}

/// Bytes as they are, in hexadecimal: `00ff`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A loss: four decimals.
pub fn loss(value: f64) -> String {
    number(value, 4)
}

/// A learning rate: `2e-4`, `1.37e-5`.
pub fn rate(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return number(value, 0);
    }
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
        }
        None => text,
    }
}

/// Throughput: `223 tokens/s`; below ten with one decimal.
pub fn tokens_per_second(value: f64) -> String {
    if !value.is_finite() {
        format!("{} tokens/s", number(value, 0))
    } else if value < 9.95 {
        format!("{value:.1} tokens/s")
    } else {
        format!("{} tokens/s", count(value.round() as usize))
    }
}

/// A moment in UTC as `2026-03-01 09:05:07`; `time_ms` counts from the Unix epoch.
pub fn moment(time_ms: u64) -> String {
    let (y, mo, d, h, mi, s) = civil(time_ms);
    format!("{y:04}-{mo:02}-{d:02} {h:02}:{mi:02}:{s:02}")
}

/// A moment in UTC as it stands in file names: `20260301-090507`.
pub fn moment_in_name(time_ms: u64) -> String {
    let (y, mo, d, h, mi, s) = civil(time_ms);
    format!("{y:04}{mo:02}{d:02}-{h:02}{mi:02}{s:02}")
}

/// Year, month, day, hour, minute, second in UTC (days to civil date after Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil(time_ms: u64) -> (u64, u64, u64, u64, u64, u64) {
    let seconds = time_ms / 1000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day, rest / 3600, rest % 3600 / 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_chosen_after_rounding() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1 MiB");
        assert_eq!(bytes(1024 * 1024 * 1024 - 1), "1 GiB");
        assert_eq!(bytes(1_342_177_280), "1.25 GiB");
        assert_eq!(bytes(5 << 40), "5 TiB");
        assert_eq!(bytes(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn durations_round_before_they_choose_a_unit() {
        assert_eq!(duration(0.0), "0 s");
        assert_eq!(duration(0.44), "0.4 s");
        assert_eq!(duration(9.96), "10 s");
        assert_eq!(duration(59.4), "59 s");
        assert_eq!(duration(59.6), "1 min 00 s");
        assert_eq!(duration(307.0), "5 min 07 s");
        assert_eq!(duration(3599.7), "1 h 00 min");
        assert_eq!(duration(3.0 * 3600.0 + 32.0 * 60.0), "3 h 32 min");
        assert_eq!(duration(53.0 * 3600.0), "2 d 05 h");
        assert_eq!(duration(-1.0), "0 s");
    }

    #[test]
    fn what_is_not_a_number_says_so() {
        assert_eq!(duration(f64::NAN), "NaN");
        assert_eq!(loss(f64::NAN), "NaN");
        assert_eq!(rate(f64::NAN), "NaN");
        assert_eq!(number(f64::INFINITY, 2), "∞");
        assert_eq!(plain(f64::NAN, 2), "NaN");
        assert_eq!(plain(1.50, 2), "1.5");
        assert_eq!(plain(2.0, 2), "2");
        assert_eq!(tokens_per_second(f64::NAN), "NaN tokens/s");
        assert_eq!(duration_or_unknown(None), "—");
    }

    #[test]
    fn counts_and_rates_are_short() {
        assert_eq!(count(7), "7");
        assert_eq!(count(49_152), "49,152");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "example"), "1 example");
        assert_eq!(counted(1200, "example"), "1,200 examples");
        assert_eq!(rate(2e-4), "2e-4");
        assert_eq!(rate(1.372e-5), "1.37e-5");
        assert_eq!(rate(0.0), "0");
        assert_eq!(tokens_per_second(4.25), "4.2 tokens/s");
        assert_eq!(tokens_per_second(223.4), "223 tokens/s");
    }

    #[test]
    fn moments_are_civil_dates_in_utc() {
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(951_827_696_000), "2000-02-29 12:34:56");
        assert_eq!(moment(1_772_356_507_000), "2026-03-01 09:15:07");
        assert_eq!(moment_in_name(1_772_356_507_000), "20260301-091507");
    }
}
