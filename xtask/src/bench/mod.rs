//! `cargo xtask bench`: the training step beside torch + peft, and planned beside measured memory; `bench card` the same on a
//! graphics card.
//!
//! Both programs run one after the other on an otherwise quiet machine; their rows are kept in `engine/benches/results.csv`
//! under one date and one commit.

mod card;
mod results;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use self::results::{Row, number, value};
use crate::{model, process, repository, setup};

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
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(flatten)]
    peers: Peers,
    #[command(subcommand)]
    place: Option<Place>,
}

#[derive(clap::Subcommand)]
enum Place {
    /// The same on this machine's graphics card, over the README's grid
    Card(card::Options),
}

#[derive(clap::Args)]
struct Peers {
    /// Python with the peers' packages, instead of an environment made under target/
    #[arg(long)]
    python: Option<PathBuf>,
    /// Measure Hearth alone
    #[arg(long)]
    no_peer: bool,
}

pub(crate) fn bench(options: &Options) -> Result<()> {
    match &options.place {
        None => on_processor(&options.peers),
        Some(Place::Card(options)) => card::bench(options),
    }
}

fn on_processor(wanted: &Peers) -> Result<()> {
    setup::for_engine()?;
    let model = model::fetched()?;
    let folder = repository::target()?.join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    // Fetching and installing come before the first measurement: the machine is quiet from there on.
    let python = match (&wanted.python, wanted.no_peer) {
        (_, true) => None,
        (Some(python), _) => Some(python.clone()),
        (None, _) => Some(environment("peers", &["requirements.txt"])?),
    };
    let mut rows = measured_engine(&model, &folder.join("hearth.csv"))?;
    if let Some(python) = python {
        rows.extend(measured_peer(&python, &rows)?);
    }
    let path = results::keep(rows.clone(), &results::date(SystemTime::now())?, &results::commit()?)?;
    print!("\n{}", table(&rows));
    for line in remarks(&rows) {
        println!("{line}");
    }
    println!("Written to {}", path.display());
    Ok(())
}

/// The engine's own benchmark, in the profile that everything else uses.
fn measured_engine(model: &Path, out: &Path) -> Result<Vec<Row>> {
    let mut command = process::cargo();
    command.args(["bench", "--profile", "dev", "--package", "hearth-engine", "--bench", "step", "--"]);
    command.arg("--model").arg(model).arg("--csv").arg(out);
    process::run(&mut command)?;
    results::read(out)
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

/// A Python environment under the target folder with what these files of the peers' folder pin.
fn environment(name: &str, requirements: &[&str]) -> Result<PathBuf> {
    let folder = repository::target()?.join(name);
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python3" });
    let requirements: Vec<_> = requirements.iter().map(|file| peers().join(file)).collect();
    let installed = folder.join("installed.sha256");
    let wanted = requirements.iter().map(|file| setup::sha256_of(file)).collect::<Result<Vec<_>>>()?.join("\n");
    if python.exists() && fs::read_to_string(&installed).is_ok_and(|is| is == wanted) {
        return Ok(python);
    }
    println!("Installing torch and the peers' packages into {} (some GB, once).", folder.display());
    setup::for_python_environments()?;
    process::run(process::python().args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    for file in requirements {
        pip.arg("--requirement").arg(file);
    }
    process::run(&mut pip)?;
    fs::write(&installed, wanted)?;
    Ok(python)
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

#[cfg(test)]
mod tests {
    use super::results::tests::row;
    use super::*;

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
