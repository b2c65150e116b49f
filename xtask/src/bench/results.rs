//! `engine/benches/results.csv`: rows of all runs that were kept, each with its date, commit and card.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use anyhow::{Context, Result, ensure};

use crate::{process, repository};

/// Columns of the file. The engine's benchmarks write the same columns; what they say of the first two is replaced.
const COLUMNS: [&str; 15] = [
    "date",
    "commit",
    "card",
    "driver",
    "program",
    "model",
    "seq",
    "micro_batch",
    "mode",
    "tokens_per_s_p20",
    "tokens_per_s_p50",
    "tokens_per_s_p80",
    "plan_bytes",
    "measured_bytes",
    "command",
];

/// One line of results, by column.
pub(super) type Row = HashMap<String, String>;

pub(super) fn value<'a>(row: &'a Row, column: &str) -> &'a str {
    row.get(column).map_or("", String::as_str)
}

pub(super) fn number(row: &Row, column: &str) -> Option<f64> {
    value(row, column).parse().ok()
}

/// What a benchmark wrote.
pub(super) fn read(path: &Path) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("opening {}", path.display()))?;
    let rows = parse(&text).with_context(|| format!("reading {}", path.display()))?;
    ensure!(!rows.is_empty(), "{} has no rows", path.display());
    Ok(rows)
}

fn parse(text: &str) -> Result<Vec<Row>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let unknown: Vec<_> = reader.headers()?.iter().filter(|name| !COLUMNS.contains(name)).map(str::to_owned).collect();
    ensure!(unknown.is_empty(), "it has the unknown columns {unknown:?}");
    Ok(reader.deserialize().collect::<Result<_, _>>()?)
}

/// Keeps the rows of one run under its date and the commit that was measured. Returns the file.
pub(super) fn keep(mut rows: Vec<Row>, date: &str, commit: &str) -> Result<PathBuf> {
    for row in &mut rows {
        row.insert("date".into(), date.into());
        row.insert("commit".into(), commit.into());
    }
    let path = repository::root().join("engine").join("benches").join("results.csv");
    let old = fs::read_to_string(&path).with_context(|| format!("opening {}", path.display()))?;
    fs::write(&path, merged(&old, rows)?).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// The file with these rows last. Rows of the same date and card make way for them, so a run that is merged again changes nothing.
fn merged(old: &str, rows: Vec<Row>) -> Result<String> {
    let mut all = parse(old)?;
    let run = |row: &Row| (value(row, "date").to_owned(), value(row, "card").to_owned());
    all.retain(|kept| rows.iter().all(|row| run(row) != run(kept)));
    all.extend(rows);
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    for row in &all {
        writer.write_record(COLUMNS.map(|column| value(row, column)))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// The commit, and whether anything but the results themselves was changed since.
pub(super) fn commit() -> Result<String> {
    let git = |arguments: &[&str]| process::read(Command::new("git").current_dir(repository::root()).args(arguments));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    let changes = git(&["status", "--porcelain"])?;
    let is_changed = changes.lines().any(|line| !line.ends_with("engine/benches/results.csv"));
    Ok(if is_changed { format!("{commit}+") } else { commit })
}

/// `2026-11-29T17:03Z`, by the algorithm "civil from days" (Hinnant 2014).
pub(super) fn date(now: SystemTime) -> Result<String> {
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).context("the clock stands before 1970")?.as_secs();
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    Ok(format!("{year}-{month:02}-{day:02}T{:02}:{:02}Z", seconds / 3_600 % 24, seconds / 60 % 60))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    pub(in super::super) fn row(pairs: &[(&str, &str)]) -> Row {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        let at = |seconds| date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        assert_eq!(at(0), "1970-01-01T00:00Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00Z");
    }

    #[test]
    fn rows_of_other_runs_stay_to_the_letter_and_a_run_that_is_merged_again_changes_nothing() {
        let kept = include_str!("../../../engine/benches/results.csv");
        assert_eq!(merged(kept, Vec::new()).unwrap(), kept, "the columns or their order changed");
        let run = |date: &str, card: &str, mode: &str| row(&[("date", date), ("card", card), ("mode", mode)]);
        let now = "2999-01-01T00:00Z";
        let first = merged(kept, vec![run(now, "A", "N"), run(now, "A", "no recompute, CUDA graphs")]).unwrap();
        assert!(first.starts_with(kept) && first.lines().count() == kept.lines().count() + 2);
        let other = merged(&first, vec![run(now, "B", "N")]).unwrap();
        assert!(other.starts_with(&first), "another card's rows do not touch them");
        let again = merged(&first, vec![run(now, "A", "N"), run(now, "A", "no recompute, CUDA graphs")]).unwrap();
        assert_eq!(again, first);
    }

    #[test]
    fn a_column_that_is_not_known_is_refused() {
        let error = parse("date,tokens\n2026-11-29T17:03Z,7\n").unwrap_err().to_string();
        assert!(error.contains("tokens"), "{error}");
    }
}
