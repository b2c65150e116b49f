//! The training step on a graphics card, for models of random weights: tokens a second, and planned beside measured memory.
//!
//! ```text
//! card --cell 8b,2048,2,C0 --cell 8b,2048,2,C0+12/o/m4096/s8/w8 --cell 8b,2048,2,plan,12288 --csv FILE
//! card --cell 8b,longest,1,plan,8192
//! card --accuracy 8b --csv FILE
//! ```
//!
//! A cell is model, sequence, micro-batch and mode. NF4 base, rank 16 on all linear layers, 8-bit AdamW, every token supervised, one
//! micro-batch and one update a step: what the peers' script does. Each cell runs in a process of its own.
//!
//! A mode is what is recomputed; `+12` lets the last 12 layers recompute one step less, `/o` keeps the layers' inputs in system memory,
//! `/m4096` sends so many rows through an MLP at once, `/s8` streams the first 8 layers, `/w8` keeps
//! the weights of the last 8 dequantised. Mode `plan` is what the plan proposes. A last number
//! is a smaller card in MiB: all else of the card is taken first, so the limit is a hard one. Sequence `longest` is the longest that
//! the plan says fits there.
//!
//! `--accuracy` measures planned beside used memory over many cells of a model, and tries whether what the plan calls fitting does and
//! what it calls too large does not (see `accuracy.rs`).

#![allow(clippy::print_stdout)]

#[path = "card/accuracy.rs"]
mod accuracy;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use hearth_engine::config::*;
use hearth_engine::data::{Batch, DataStats};
use hearth_engine::hardware::{Hardware, TrainOn, profile};
use hearth_engine::model::shape::{Llama3Scaling, ModelShape, Rope};
use hearth_engine::model::{Adapter, Model};
use hearth_engine::plan::{CARD_OVERHEAD_BYTES, plan};
use hearth_engine::step::{self, Trainer};

const HEADER: &str = "date,commit,card,driver,program,model,seq,micro_batch,mode,tokens_per_s_p20,tokens_per_s_p50,\
                      tokens_per_s_p80,plan_bytes,measured_bytes,command";
const N_WARM_UP: usize = 4;
const LEAST_TIMED: usize = 10;
const MOST_TIMED: usize = 200;
const TIMED: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let values = |name: &str| -> Vec<String> {
        let at = args.iter().enumerate().filter(|(_, a)| *a == name).map(|(i, _)| i + 1);
        at.filter_map(|i| args.get(i).cloned()).collect()
    };
    let cells = values("--cell");
    if let Some(model) = values("--accuracy").first() {
        return accuracy::table(model, values("--csv").first().map(String::as_str));
    }
    if cells.is_empty() {
        println!("usage: card --cell MODEL,SEQ,MICRO_BATCH,MODE[+LAYERS][,MIB] … [--csv FILE]");
        // `cargo test --benches` starts this without arguments.
        return ExitCode::SUCCESS;
    }
    if args.iter().any(|a| a == "--here") {
        println!("{}", measure(&cells[0]));
        return ExitCode::SUCCESS;
    }
    let mut lines = vec![HEADER.to_string()];
    let mut all_ran = true;
    for cell in &cells {
        let program = std::env::current_exe().expect("this program has a path");
        let out = Command::new(program).args(["--here", "--cell", cell]).output().expect("this program starts again");
        if !out.status.success() {
            println!("{cell}: {}", String::from_utf8_lossy(&out.stderr).trim());
            all_ran = false;
            continue;
        }
        let line = String::from_utf8_lossy(&out.stdout).trim().to_string();
        println!("{line}");
        lines.push(line);
    }
    if let Some(csv) = values("--csv").first() {
        std::fs::write(csv, lines.join("\n") + "\n").expect("the file can be written");
    }
    if all_ran { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One row of results; the date and the commit are the caller's.
fn measure(cell: &str) -> String {
    let parts: Vec<&str> = cell.split(',').collect();
    let [model, length, micro_batch, mode, ref limit @ ..] = parts[..] else {
        panic!("{cell}: expected MODEL,SEQ,MICRO_BATCH,MODE[,MIB]")
    };
    let shape = shape(model);
    let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("{cell}: {text} is not a number"));
    let micro_batch = number(micro_batch);
    let limit_bytes = limit.first().map(|mib| (number(mib) as u64) << 20);
    let settings = match (mode, limit_bytes) {
        ("plan", Some(limit_bytes)) if length == "longest" => longest(&shape, micro_batch, limit_bytes),
        ("plan", Some(limit_bytes)) => planned(&shape, number(length), micro_batch, limit_bytes)
            .unwrap_or_else(|| panic!("{cell}: the plan says that it does not fit")),
        _ => settings(&shape, number(length), micro_batch, mode),
    };
    let length = settings.length;
    let device = step::device(TrainOn::Card).expect("a card");
    let ballast = limit_bytes.map(|bytes| ballast(&device, bytes.saturating_sub(process_bytes())));
    let base = Model::random(&shape, &settings.lora, (&settings).into(), &device).expect("a model");
    let adapter = Adapter::new(&shape, &settings.lora, 1, &device).expect("an adapter");
    let mut trainer = Trainer::new(base, adapter, &settings).expect("the buffers are allocated");
    let batch = batch(&shape, &settings);
    let mut rates = Vec::new();
    let mut timed = Duration::ZERO;
    for i in 0.. {
        let begun = Instant::now();
        step(&mut trainer, &batch, i).unwrap_or_else(|error| panic!("{cell}: {error}"));
        // Of a step that takes seconds the first warms up enough.
        if i < N_WARM_UP && (i == 0 || begun.elapsed() < TIMED) {
            continue;
        }
        timed += begun.elapsed();
        rates.push(batch.n_tokens() as f64 / begun.elapsed().as_secs_f64());
        // Of steps that take seconds a few say enough.
        let enough = if timed > 3 * TIMED { 1 } else { LEAST_TIMED };
        if rates.len() >= MOST_TIMED || rates.len() >= enough && timed >= TIMED {
            break;
        }
    }
    rates.sort_by(f64::total_cmp);
    let quantile = |q: f64| rates[((rates.len() - 1) as f64 * q).round() as usize];
    let cards = smi(&["--query-gpu=uuid,name,driver_version"]);
    let uuid = uuid(&device);
    // A part of a divided card has a number of its own, which is not among these.
    let line = cards.lines().find(|line| line.contains(&uuid)).or_else(|| cards.lines().next());
    let (name, driver) = line.and_then(|line| line.split_once(", ")?.1.split_once(", ")).expect("name and driver");
    format!(
        ",,{name},{driver},hearth,{model},{length},{micro_batch},{}{},{:.1},{:.1},{:.1},{},{},card --cell {}",
        mode_of(&settings),
        limit.first().map_or(String::new(), |mib| format!(" in {mib} MiB")),
        quantile(0.2),
        quantile(0.5),
        quantile(0.8),
        trainer.planned_bytes() + CARD_OVERHEAD_BYTES,
        process_bytes() - ballast.map_or(0, |ballast| ballast.bytes),
        cell.replace(',', ";"),
    )
}

/// The settings of a mode, see above.
fn settings(shape: &ModelShape, length: usize, micro_batch: usize, mode: &str) -> Settings {
    let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("{mode}: {text} is not a number"));
    let mut parts = mode.split('/');
    let recompute = parts.next().unwrap_or_default();
    let (recompute, n_layers_eased) = recompute.split_once('+').map_or((recompute, 0), |(mode, n)| (mode, number(n)));
    let mut settings = Settings {
        train_on: TrainOn::Card,
        base: BaseFormat::Nf4,
        compute: ComputeDtype::Bf16,
        embedding_on_host: !shape.tied,
        lora: LoraConfig { rank: 16, alpha: 16.0, dropout: 0.0, targets: Target::ALL.to_vec() },
        length,
        micro_batch,
        recompute: match recompute {
            "N" => Recompute::N,
            "C1" => Recompute::C1,
            "C0" => Recompute::C0,
            _ => panic!("{recompute} is no recompute mode"),
        },
        n_layers_eased,
        head_rows: 512,
        optimizer: OptimizerKind::AdamW8,
        ..Settings::default()
    };
    for part in parts {
        match part.split_at(1) {
            ("o", "") => settings.offload_inputs = true,
            ("m", rows) => settings.mlp_rows = Some(number(rows)),
            ("s", layers) => settings.n_layers_streamed = number(layers),
            ("w", layers) => settings.n_layers_cached = number(layers),
            _ => panic!("{mode}: {part} is not known"),
        }
    }
    settings
}

/// How the plan proposes to train so many sequences of one length in so much of a card's memory; `None` where it says that it does not fit.
fn planned(shape: &ModelShape, length: usize, micro_batch: usize, limit_bytes: u64) -> Option<Settings> {
    let mut hardware: Hardware = profile("h200-sxm-141gb").expect("a bundled profile").hardware();
    // An empty card of so much memory, of which the plan leaves its margin.
    (hardware.cards[0].memory_bytes, hardware.cards[0].memory_free_bytes) = (limit_bytes, Some(limit_bytes));
    hardware.memory_available_bytes = 100 << 30;
    let mut config = RunConfig::new("model".into(), "data.jsonl".into());
    config.base = Some(BaseFormat::Nf4);
    config.lora = LoraConfig { rank: 16, alpha: 16.0, dropout: 0.0, targets: Target::ALL.to_vec() };
    config.data.length = Some(length);
    (config.micro_batch, config.accumulation) = (Some(micro_batch), Some(1));
    config.optimizer.kind = Some(OptimizerKind::AdamW8);
    config.evaluation.n_samples = 0;
    let data = DataStats::of((0..1000).map(|_| (length, length)));
    let plan = plan(shape, &data, &config, &hardware).expect("wishes that make sense");
    plan.fits.then_some(plan.settings)
}

/// The longest sequence that [`planned`] finds room for.
fn longest(shape: &ModelShape, micro_batch: usize, limit_bytes: u64) -> Settings {
    let (mut fits, mut beyond) = (1, shape.max_positions / 256 + 1);
    let mut best = planned(shape, 256, micro_batch, limit_bytes).expect("256 tokens fit");
    while beyond - fits > 1 {
        let middle = (fits + beyond) / 2;
        match planned(shape, 256 * middle, micro_batch, limit_bytes) {
            Some(settings) => (fits, best) = (middle, settings),
            None => beyond = middle,
        }
    }
    best
}

/// A full micro-batch.
fn batch(shape: &ModelShape, settings: &Settings) -> Batch {
    let length = settings.length;
    // Spread over the vocabulary, so that no cache holds the few rows of the embedding that a short cycle would read.
    let ids = |document: usize| -> Vec<u32> {
        (0..length)
            .map(|i| ((document * length + i) as u32).wrapping_mul(2_654_435_761) % shape.vocab_rows as u32)
            .collect()
    };
    let documents: Vec<Vec<u32>> = (0..settings.micro_batch).map(ids).collect();
    let learned = vec![true; length];
    Batch::from_documents(documents.iter().map(|ids| (&ids[..], &learned[..])))
}

/// One micro-batch and one update, waited for.
fn step(trainer: &mut Trainer, batch: &Batch, i: usize) -> Result<(), step::Error> {
    let loss = trainer.micro_batch(batch, batch.n_supervised(), i as u64)?;
    trainer.optimizer_step(1e-4)?;
    trainer.model().device().synchronize()?;
    assert!(loss.is_finite(), "the loss is {loss}");
    Ok(())
}

/// Settings in the words of a mode.
fn mode_of(settings: &Settings) -> String {
    let mut mode = format!("{:?}+{}", settings.recompute, settings.n_layers_eased);
    if settings.offload_inputs {
        mode += "/o";
    }
    if let Some(rows) = settings.mlp_rows {
        mode += &format!("/m{rows}");
    }
    if settings.n_layers_streamed > 0 {
        mode += &format!("/s{}", settings.n_layers_streamed);
    }
    if settings.n_layers_cached > 0 {
        mode += &format!("/w{}", settings.n_layers_cached);
    }
    mode
}

/// Takes all of the card but so much.
#[cfg(feature = "cuda")]
fn ballast(device: &candle_core::Device, free_bytes: u64) -> hearth_engine::ops::Ballast {
    hearth_engine::ops::leave(device, free_bytes).expect("the rest of the card is free")
}

#[cfg(feature = "cuda")]
fn uuid(device: &candle_core::Device) -> String {
    hearth_engine::ops::uuid(device).expect("the driver answers")
}

#[cfg(not(feature = "cuda"))]
fn uuid(_: &candle_core::Device) -> String {
    panic!("this benchmark needs the feature `cuda`")
}

#[cfg(not(feature = "cuda"))]
struct Ballast {
    bytes: u64,
}

#[cfg(not(feature = "cuda"))]
fn ballast(_: &candle_core::Device, _: u64) -> Ballast {
    panic!("this benchmark needs the feature `cuda`")
}

/// Memory of the card that the driver counts for this process: context, libraries and all buffers.
fn process_bytes() -> u64 {
    let pid = std::process::id().to_string();
    let apps = smi(&["--query-compute-apps=pid,used_memory"]);
    let mine = apps.lines().filter_map(|line| line.split_once(", ")).find(|(id, _)| *id == pid);
    let mib = mine.and_then(|(_, used)| used.trim().split(' ').next()?.parse::<u64>().ok());
    mib.unwrap_or_else(|| panic!("the driver doesn't list this process: {apps}")) << 20
}

fn smi(query: &[&str]) -> String {
    let out = Command::new("nvidia-smi").args(query).arg("--format=csv,noheader").output();
    String::from_utf8_lossy(&out.expect("nvidia-smi answers").stdout).into_owned()
}

/// Shapes of published models.
fn shape(name: &str) -> ModelShape {
    let (hidden, ffn, n_layers, n_heads, n_kv_heads, head_dim, vocab_rows, tied, factor) = match name {
        "8b" => (4096, 14336, 32, 32, 8, 128, 128_256, false, 8.0),
        "1b" => (2048, 8192, 16, 32, 8, 64, 128_256, true, 32.0),
        "135m" => (576, 1536, 30, 9, 3, 64, 49_152, true, 1.0),
        _ => panic!("{name}: 8b (Llama-3.1-8B), 1b (Llama-3.2-1B) or 135m (SmolLM2-135M)"),
    };
    let scaling = Llama3Scaling { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 8192 };
    ModelShape {
        family: "llama".into(),
        n_layers,
        hidden,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn,
        vocab_rows,
        rms_eps: 1e-5,
        rope: Rope { theta: 500_000.0, scaling: Some(scaling) },
        tied,
        max_positions: 131_072,
    }
}
