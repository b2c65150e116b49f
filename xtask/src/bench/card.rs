//! `cargo xtask bench card`: Hearth's cells and the peers' on this machine's card, in one call.
//!
//! `peers/card/grid.json` lists what is measured, an entry for each row of the README's table. `peers/card/run.py` measures it, here
//! or on a machine that has the card and no Rust; `--from` takes up what it left there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Peers, environment, peers,
    results::{self, Row, number, value},
};
use crate::{cuda, process, repository, setup};

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    peers: Peers,
    /// Only build Hearth's benchmark, for a machine that has no Rust
    #[arg(long, conflicts_with = "from")]
    build: bool,
    /// Measure nothing and merge what run.py left in this folder
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
    /// The commit that run.py measured, where it is not the one that is checked out
    #[arg(long, requires = "from")]
    commit: Option<String>,
}

pub(super) fn bench(options: &Options) -> Result<()> {
    let out = match &options.from {
        Some(folder) => folder.clone(),
        None => {
            let program = cuda::benchmark()?;
            println!("Built {}", program.display());
            if options.build {
                return Ok(());
            }
            measured(&program, &options.peers)?
        }
    };
    let read = |name: &str| {
        let path = out.join(name);
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    };
    let ours = results::read(&out.join("hearth.csv"))?;
    let theirs = if out.join("cells.jsonl").exists() { cells(&read("cells.jsonl")?)? } else { Vec::new() };
    for cell in theirs.iter().filter(|cell| !cell.ok && !cell.oom) {
        println!("{}: {}", cell.cell, cell.error);
    }
    let mut rows = ours.clone();
    rows.extend(theirs.iter().filter(|cell| cell.ok || cell.oom).map(|cell| cell.row(&ours[0])));
    let commit = options.commit.clone().map_or_else(results::commit, Ok)?;
    let path = results::keep(rows, read("date")?.trim(), &commit)?;
    print!("\n{}", table(&grid()?, &ours, &theirs));
    println!("Written to {}", path.display());
    Ok(())
}

/// Runs the grid; returns the folder with what was measured.
fn measured(program: &Path, wanted: &Peers) -> Result<PathBuf> {
    let folder = repository::target()?.join("bench").join("card");
    let out = folder.join("out");
    let _ = fs::remove_dir_all(&out);
    // Fetching and installing come before the first measurement.
    let mut command = match (&wanted.python, wanted.no_peer) {
        (_, true) => process::python(),
        (Some(python), _) => Command::new(python),
        (None, _) => {
            setup::for_triton()?;
            Command::new(environment("peers-card", &["card/machine.txt", "card/requirements.txt"])?)
        }
    };
    command.arg(peers().join("card").join("run.py"));
    command.arg("--hearth").arg(program).arg("--scratch").arg(&folder).arg("--out").arg(&out);
    command.arg("--libraries").arg(cuda::libraries()?);
    if wanted.no_peer {
        command.arg("--no-peers");
    }
    process::run(&mut command)?;
    Ok(out)
}

/// A row of the README's table.
#[derive(Deserialize)]
struct Entry {
    title: String,
    hearth: Side<String>,
    peer: Side<Value>,
}

#[derive(Deserialize)]
struct Side<T> {
    /// For Hearth the argument of `card --cell`; for a peer what worker.py is told, and says again in its record.
    cell: T,
    /// What has to be known beside the title.
    note: Option<String>,
}

fn grid() -> Result<Vec<Entry>> {
    serde_json::from_str(include_str!("../../../engine/benches/peers/card/grid.json")).context("reading grid.json")
}

/// What run.py says of a peer's cell.
#[derive(Deserialize)]
struct Cell {
    cell: Value,
    ok: bool,
    #[serde(default)]
    oom: bool,
    #[serde(default)]
    error: String,
    tokens_per_s: Option<f64>,
    /// Of the process, as the driver counts it.
    smi_process_mib: Option<u64>,
    settled: Option<Settled>,
}

/// What a peer's settings came to.
#[derive(Deserialize)]
struct Settled {
    layers: usize,
    /// Layers whose forward pass is not recomputed.
    skipped: Vec<usize>,
}

fn cells(text: &str) -> Result<Vec<Cell>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("reading {line}"))).collect()
}

impl Cell {
    fn text(&self, key: &str) -> &str {
        self.cell[key].as_str().unwrap_or_default()
    }

    /// A row of results; the card is the one that `ours` was measured on.
    fn row(&self, ours: &Row) -> Row {
        let stack = self.text("stack");
        let program = if stack.starts_with("unsloth") { "unsloth" } else { stack };
        let mut row: Row = ["card", "driver"].map(|column| (column.to_owned(), value(ours, column).to_owned())).into();
        let mut set = |column: &str, value: String| row.insert(column.into(), value);
        set("program", program.into());
        set("model", self.text("model").into());
        set("seq", self.cell["seq"].to_string());
        set("micro_batch", self.cell["mb"].to_string());
        set("mode", self.mode());
        set("tokens_per_s_p50", self.tokens_per_s.map_or_else(String::new, |rate| rate.to_string()));
        set("measured_bytes", self.smi_process_mib.map_or_else(String::new, |mib| (mib << 20).to_string()));
        set("command", "peers/card/run.py".into());
        row
    }

    /// Its settings in words.
    fn mode(&self) -> String {
        let (n_skipped, n_layers) = self.settled.as_ref().map_or((0, 0), |found| (found.skipped.len(), found.layers));
        let mut mode = match (self.cell["tune"]["skip"].as_str(), self.text("checkpoint")) {
            (Some("max"), _) if n_skipped == n_layers => "max: nothing recomputed".to_owned(),
            (Some(skip), _) => format!("{skip}: skips {n_skipped} layers"),
            (None, "off") => "no recompute".into(),
            (None, _) => "default".into(),
        };
        if let Some(mib) = self.cell["cap_mib"].as_u64() {
            mode += &format!(" in {mib} MiB");
        }
        if self.cell["env"]["UNSLOTH_BLOCK_CUDAGRAPHS"] == "1" {
            mode += "; CUDA graphs";
        }
        if self.oom {
            mode += ": out of memory";
        }
        mode
    }
}

/// The README's table: tokens a second, in bold where they are more, and MiB of the process.
fn table(grid: &[Entry], ours: &[Row], theirs: &[Cell]) -> String {
    let mut text = String::from("| model, sequence × micro-batch | Hearth | Unsloth |\n| --- | --- | --- |\n");
    for Entry { title, hearth, peer } in grid {
        let command = format!("card --cell {}", hearth.cell.replace(',', ";"));
        let our = ours.iter().find(|row| value(row, "command") == command);
        let their = theirs.iter().find(|cell| cell.cell == peer.cell);
        let our_rate = our.and_then(|row| number(row, "tokens_per_s_p50"));
        let their_rate = their.and_then(|cell| cell.tokens_per_s);
        let our_mib = our.and_then(|row| number(row, "measured_bytes")).map(|bytes| bytes as u64 >> 20);
        let their_mib = their.and_then(|cell| cell.smi_process_mib);
        let ours = shown(our_rate, our_mib, &hearth.note, their_rate);
        let theirs = match their {
            Some(cell) if cell.oom => format!("out of memory at {}", thousands(cell.cell["seq"].as_u64().unwrap_or(0))),
            _ => shown(their_rate, their_mib, &peer.note, our_rate),
        };
        text += &format!("| {title} | {ours} | {theirs} |\n");
    }
    text
}

/// `**11,902** in 7,308 (tuned)`, or a dash where there is no such row.
fn shown(rate: Option<f64>, mib: Option<u64>, note: &Option<String>, other: Option<f64>) -> String {
    let Some(rate) = rate else { return "–".into() };
    let mut text = thousands(rate.round() as u64);
    if other.is_none_or(|other| rate > other) {
        text = format!("**{text}**");
    }
    text += &mib.map_or_else(String::new, |mib| format!(" in {}", thousands(mib)));
    text += &note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
    text
}

/// `12,345`
fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::row;

    const DEFAULT: &str = r#"{"stack": "unsloth", "model": "8b", "seq": 2048, "mb": 2, "checkpoint": "unsloth"}"#;
    const TUNED: &str = r#"{"stack": "unsloth_tuned", "model": "8b", "seq": 2048, "mb": 2, "checkpoint": "unsloth",
        "tune": {"skip": "most", "first": 10}, "cap_mib": 12288}"#;

    fn cell(text: &str) -> Cell {
        cells(&text.replace('\n', "")).unwrap().remove(0)
    }

    fn ours(asked: &str, rate: &str, bytes: &str) -> Row {
        let command = format!("card --cell {asked}");
        row(&[
            ("card", "NVIDIA H200"),
            ("driver", "580"),
            ("command", &command),
            ("tokens_per_s_p50", rate),
            ("measured_bytes", bytes),
        ])
    }

    #[test]
    fn a_peers_record_becomes_a_row_that_says_its_settings() {
        let ours = ours("8b;2048;2;C0", "11902.0", "7662993408");
        let record = format!(
            r#"{{"cell": {TUNED}, "at_s": 9.1, "ok": true, "tokens_per_s": 11246.0, "smi_process_mib": 12184,
            "settled": {{"layers": 32, "skipped": [0, 1, 2], "embedding": "cuda"}}}}"#
        );
        let row = cell(&record).row(&ours);
        let says = |column| value(&row, column);
        assert_eq!((says("card"), says("driver"), says("program")), ("NVIDIA H200", "580", "unsloth"));
        assert_eq!(says("mode"), "most: skips 3 layers in 12288 MiB");
        assert_eq!((says("tokens_per_s_p50"), says("measured_bytes")), ("11246", "12775849984"));
        let graphs = r#"{"cell": {"checkpoint": "unsloth", "tune": {"skip": "max"}, "env": {"UNSLOTH_BLOCK_CUDAGRAPHS": "1"}},
            "ok": true, "settled": {"layers": 2, "skipped": [0, 1]}}"#;
        assert_eq!(cell(graphs).mode(), "max: nothing recomputed; CUDA graphs");
        let full = r#"{"cell": {"checkpoint": "unsloth", "cap_mib": 8192}, "ok": false, "oom": true, "error": "…"}"#;
        assert_eq!(cell(full).mode(), "default in 8192 MiB: out of memory");
    }

    #[test]
    fn the_table_has_a_row_for_each_entry_and_the_faster_in_bold() {
        let grid = format!(
            r#"[{{"title": "A", "hearth": {{"cell": "8b,2048,2,C0"}}, "peer": {{"cell": {DEFAULT}, "note": "default"}}}},
            {{"title": "B", "hearth": {{"cell": "8b,2048,2,N", "note": "all kept"}}, "peer": {{"cell": {TUNED}}}}},
            {{"title": "C", "hearth": {{"cell": "8b,4096,1,N"}}, "peer": {{"cell": {{"seq": 4096}}}}}}]"#
        );
        let ours = [ours("8b;2048;2;C0", "11902.0", "7662993408"), ours("8b;2048;2;N", "999.6", "1048576")];
        let theirs = [
            format!(r#"{{"cell": {DEFAULT}, "ok": true, "tokens_per_s": 10393.6, "smi_process_mib": 7942}}"#),
            format!(r#"{{"cell": {TUNED}, "ok": true, "tokens_per_s": 2000.0, "smi_process_mib": null}}"#),
            r#"{"cell": {"seq": 4096}, "ok": false, "oom": true}"#.into(),
        ];
        let table = table(&serde_json::from_str::<Vec<Entry>>(&grid).unwrap(), &ours, &theirs.map(|text| cell(&text)));
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| A | **11,902** in 7,308 | 10,394 in 7,942 (default) |",
                "| B | 1,000 in 1 (all kept) | **2,000** |",
                "| C | – | out of memory at 4,096 |"
            ]
        );
    }

    #[test]
    fn every_entry_of_the_grid_names_a_cell_of_its_own() {
        let grid = grid().unwrap();
        for (i, entry) in grid.iter().enumerate() {
            assert!(grid[..i].iter().all(|other| other.hearth.cell != entry.hearth.cell), "{}", entry.title);
            let model = entry.peer.cell["model"].as_str().unwrap();
            assert!(entry.hearth.cell.starts_with(&format!("{model},")), "{}: another model", entry.title);
        }
    }
}
