//! `cargo xtask bench`: the training step beside torch + peft, and planned beside measured memory.
//!
//! Both programs run one after the other on an otherwise quiet machine; their rows are appended to
//! `engine/benches/results.csv` under one date and one commit.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{model, process, repository, setup};

/// Columns of `results.csv`. The engine's benchmark writes the same columns; what it says of the first two is replaced.
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

/// What the table shows; the rest is in the file.
const SHOWN: [&str; 9] = [
    "program",
    "seq",
    "micro_batch",
    "mode",
    "tokens_per_s_p20",
    "tokens_per_s_p50",
    "tokens_per_s_p80",
    "plan_bytes",
    "measured_bytes",
];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Python with torch, transformers and peft for the peer, instead of an environment made under target/peers
    #[arg(long)]
    python: Option<PathBuf>,
    /// Measure Hearth alone
    #[arg(long)]
    no_peer: bool,
}

pub(crate) fn bench(options: &Options) -> Result<()> {
    setup::for_engine()?;
    let model = model::fetched()?;
    let folder = repository::target()?.join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    // Fetching and installing come before the first measurement: the machine is quiet from there on.
    let python = match (&options.python, options.no_peer) {
        (_, true) => None,
        (Some(python), _) => Some(python.clone()),
        (None, _) => Some(peer_environment()?),
    };
    let mut rows = measured_engine(&model, &folder.join("hearth.csv"))?;
    if let Some(python) = python {
        rows.extend(measured_peer(&python, &rows)?);
    }
    let (date, commit) = (date(SystemTime::now())?, commit()?);
    for row in &mut rows {
        row.insert("date".into(), date.clone());
        row.insert("commit".into(), commit.clone());
    }
    let results = repository::root().join("engine").join("benches").join("results.csv");
    append(&results, &rows)?;
    print!("\n{}", table(&rows));
    for line in remarks(&rows) {
        println!("{line}");
    }
    println!("Written to {}", results.display());
    Ok(())
}

/// One line of results, by column.
type Row = HashMap<String, String>;

/// The engine's own benchmark, in the profile that everything else uses.
fn measured_engine(model: &Path, out: &Path) -> Result<Vec<Row>> {
    let mut command = process::cargo();
    command.args(["bench", "--profile", "dev", "--package", "hearth-engine", "--bench", "step", "--"]);
    command.arg("--model").arg(model).arg("--csv").arg(out);
    process::run(&mut command)?;
    read(out)
}

/// torch + peft on the same shapes and threads, one process for each, keeping every activation as mode N does.
fn measured_peer(python: &Path, ours: &[Row]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut shapes = Vec::new();
    for row in ours.iter().filter(|row| value(row, "mode") == "N") {
        let shape = (value(row, "seq"), value(row, "micro_batch"));
        if shapes.contains(&shape) {
            continue;
        }
        shapes.push(shape);
        let mut command = Command::new(python);
        command.arg(peers().join("train.py")).args(["--length", shape.0, "--micro-batch", shape.1]);
        command.args(["--rank", "8", "--recompute", "N"]);
        println!("$ {}", process::line(&command));
        let said = process::read(&mut command)?;
        let said: Peer = serde_json::from_str(said.trim()).context("reading what the peer printed")?;
        let same = ["card", "driver", "model", "seq", "micro_batch", "mode"];
        let mut peer: Row = same.map(|column| (column.to_owned(), value(row, column).to_owned())).into();
        peer.insert("program".into(), said.engine);
        for quantile in ["p20", "p50", "p80"] {
            let rate = said.tokens_per_s.get(quantile).with_context(|| format!("the peer gave no {quantile}"))?;
            peer.insert(format!("tokens_per_s_{quantile}"), format!("{rate:.1}"));
        }
        peer.insert("measured_bytes".into(), said.peak_growth_bytes.to_string());
        peer.insert("command".into(), process::line(&command));
        rows.push(peer);
    }
    Ok(rows)
}

/// The line that the peer prints.
#[derive(Deserialize)]
struct Peer {
    engine: String,
    tokens_per_s: HashMap<String, f64>,
    peak_growth_bytes: u64,
}

fn peers() -> PathBuf {
    repository::root().join("engine").join("benches").join("peers")
}

/// A Python environment with what `requirements.txt` pins.
fn peer_environment() -> Result<PathBuf> {
    let folder = repository::target()?.join("peers");
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python3" });
    let requirements = peers().join("requirements.txt");
    let installed = folder.join("installed.sha256");
    let wanted = setup::sha256_of(&requirements)?;
    if python.exists() && fs::read_to_string(&installed).is_ok_and(|is| is == wanted) {
        return Ok(python);
    }
    println!("Installing torch and peft for the peer into {} (some GB, once).", folder.display());
    setup::for_python_environments()?;
    process::run(process::python().args(["-m", "venv", "--clear"]).arg(&folder))?;
    let flags = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    process::run(Command::new(&python).args(flags).arg(&requirements))?;
    fs::write(&installed, wanted)?;
    Ok(python)
}

fn read(path: &Path) -> Result<Vec<Row>> {
    let mut reader = csv::Reader::from_path(path).with_context(|| format!("opening {}", path.display()))?;
    let rows: Vec<Row> =
        reader.deserialize().collect::<Result<_, _>>().with_context(|| format!("reading {}", path.display()))?;
    ensure!(!rows.is_empty(), "{} has no rows", path.display());
    for row in &rows {
        let mut unknown: Vec<_> = row.keys().filter(|name| !COLUMNS.contains(&name.as_str())).collect();
        unknown.sort();
        ensure!(unknown.is_empty(), "{} has the unknown columns {unknown:?}", path.display());
    }
    Ok(rows)
}

fn append(path: &Path, rows: &[Row]) -> Result<()> {
    let is_new = !path.exists();
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    let mut writer = csv::Writer::from_writer(file.with_context(|| format!("writing {}", path.display()))?);
    if is_new {
        writer.write_record(COLUMNS)?;
    }
    for row in rows {
        writer.write_record(COLUMNS.map(|column| value(row, column)))?;
    }
    writer.flush().with_context(|| format!("writing {}", path.display()))
}

fn value<'a>(row: &'a Row, column: &str) -> &'a str {
    row.get(column).map_or("", String::as_str)
}

fn number(row: &Row, column: &str) -> Option<f64> {
    value(row, column).parse().ok()
}

fn table(rows: &[Row]) -> String {
    let mut lines: Vec<Vec<&str>> = vec![SHOWN.to_vec()];
    lines.extend(rows.iter().map(|row| SHOWN.map(|column| value(row, column)).to_vec()));
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..SHOWN.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Hearth against the peer of the same shape, and the plan against what was measured.
fn remarks(rows: &[Row]) -> Vec<String> {
    let is_hearth = |row: &&Row| value(row, "program") == "hearth";
    let mut lines = Vec::new();
    for hearth in rows.iter().filter(is_hearth) {
        let shape = ["seq", "micro_batch"].map(|column| value(hearth, column));
        let title = format!("length {}, micro-batch {}, mode {}", shape[0], shape[1], value(hearth, "mode"));
        for peer in rows.iter().filter(|row| !is_hearth(row)) {
            let same = ["seq", "micro_batch"].map(|column| value(peer, column)) == shape;
            let rates = (number(hearth, "tokens_per_s_p50"), number(peer, "tokens_per_s_p50"));
            if let (true, "N", (Some(ours), Some(theirs))) = (same, value(hearth, "mode"), rates) {
                lines.push(format!("{title}: {:.2} times {}", ours / theirs, value(peer, "program")));
            }
        }
        if let (Some(plan), Some(measured)) = (number(hearth, "plan_bytes"), number(hearth, "measured_bytes")) {
            lines.push(format!("{title}: planned {:+.1} % against measured", 100.0 * (plan - measured) / measured));
        }
    }
    lines
}

/// The commit, and whether anything but the results themselves was changed since.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| process::read(Command::new("git").current_dir(repository::root()).args(arguments));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    let changes = git(&["status", "--porcelain"])?;
    let is_changed = changes.lines().any(|line| !line.ends_with("engine/benches/results.csv"));
    Ok(if is_changed { format!("{commit}+") } else { commit })
}

/// `2026-11-29T17:03Z`, by the algorithm "civil from days" (Hinnant 2014).
fn date(now: SystemTime) -> Result<String> {
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
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(pairs: &[(&str, &str)]) -> Row {
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
    fn hearth_is_compared_with_the_peer_of_its_shape_only() {
        let ours = row(&[
            ("program", "hearth"),
            ("seq", "512"),
            ("mode", "N"),
            ("tokens_per_s_p50", "300"),
            ("plan_bytes", "103"),
            ("measured_bytes", "100"),
        ]);
        let same = row(&[("program", "peft"), ("seq", "512"), ("tokens_per_s_p50", "200")]);
        let other = row(&[("program", "peft"), ("seq", "256"), ("tokens_per_s_p50", "100")]);
        let lines = remarks(&[ours, same, other]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].ends_with("1.50 times peft"), "{lines:?}");
        assert!(lines[1].ends_with("+3.0 % against measured"), "{lines:?}");
    }
}
