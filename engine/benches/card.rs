//! The training step on a graphics card, for models of random weights: tokens a second, and planned beside measured memory.
//!
//! ```text
//! card --cell 8b,2048,2,C0 --cell 8b,2048,2,C0+12 --cell 8b,2048,2,fit,12288 --csv FILE
//! ```
//!
//! A cell is model, sequence, micro-batch and recompute mode; `+12` lets the last 12 layers recompute one step less. NF4 base, rank 16 on all
//! linear layers, 8-bit AdamW, every token supervised, one micro-batch and one update a step: what the peers' script does. Each
//! cell runs in a process of its own. A last number is a smaller card in MiB: all else of the card is taken first, so the limit is a hard
//! one; mode `fit` then recomputes as little as the plan says has room.

#![allow(clippy::print_stdout)]

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use hearth_engine::config::*;
use hearth_engine::data::Batch;
use hearth_engine::hardware::TrainOn;
use hearth_engine::model::shape::{Llama3Scaling, ModelShape, Rope};
use hearth_engine::model::{Adapter, Model};
use hearth_engine::plan::CARD_OVERHEAD_BYTES;
use hearth_engine::plan::layout::layout;
use hearth_engine::step::{self, Trainer};

const HEADER: &str = "date,commit,card,driver,program,model,seq,micro_batch,mode,tokens_per_s_p20,tokens_per_s_p50,\
                      tokens_per_s_p80,plan_bytes,measured_bytes,command";
const N_WARM_UP: usize = 4;
const LEAST_TIMED: usize = 10;
const MOST_TIMED: usize = 200;
const TIMED: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let values = |name: &str| -> Vec<String> {
        let at = args.iter().enumerate().filter(|(_, a)| *a == name).map(|(i, _)| i + 1);
        at.filter_map(|i| args.get(i).cloned()).collect()
    };
    let cells = values("--cell");
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
    let (length, micro_batch) = (number(length), number(micro_batch));
    let (recompute, n_layers_eased) = mode.split_once('+').map_or((mode, 0), |(mode, layers)| (mode, number(layers)));
    let recompute = match recompute {
        "N" => Recompute::N,
        "C1" => Recompute::C1,
        "C0" | "fit" => Recompute::C0,
        _ => panic!("{cell}: {recompute} is no recompute mode"),
    };
    let limit_bytes = limit.first().map(|mib| (number(mib) as u64) << 20);
    let mut settings = Settings {
        train_on: TrainOn::Card,
        base: BaseFormat::Nf4,
        compute: ComputeDtype::Bf16,
        embedding_on_host: !shape.tied,
        lora: LoraConfig { rank: 16, alpha: 16.0, dropout: 0.0, targets: Target::ALL.to_vec() },
        length,
        micro_batch,
        recompute,
        n_layers_eased,
        head_rows: 512,
        optimizer: OptimizerKind::AdamW8,
        ..Settings::default()
    };
    if mode == "fit" {
        settings = fitting(&shape, settings, limit_bytes.expect("a limit to fit into"));
    }
    let device = step::device(TrainOn::Card).expect("a card");
    let ballast = limit_bytes.map(|bytes| leave(&device, bytes.saturating_sub(process_bytes())));
    let base = Model::random(&shape, &settings.lora, (&settings).into(), &device).expect("a model");
    let adapter = Adapter::new(&shape, &settings.lora, 1, &device).expect("an adapter");
    let mut trainer = Trainer::new(base, adapter, &settings).expect("the buffers are allocated");
    // Spread over the vocabulary, so that no cache holds the few rows of the embedding that a short cycle would read.
    let ids = |document: usize| -> Vec<u32> {
        (0..length)
            .map(|i| ((document * length + i) as u32).wrapping_mul(2_654_435_761) % shape.vocab_rows as u32)
            .collect()
    };
    let documents: Vec<Vec<u32>> = (0..micro_batch).map(ids).collect();
    let learned = vec![true; length];
    let batch = Batch::from_documents(documents.iter().map(|ids| (&ids[..], &learned[..])));
    let n_tokens = batch.n_tokens();
    let mut rates = Vec::new();
    let mut timed = Duration::ZERO;
    for i in 0.. {
        let begun = Instant::now();
        let loss = trainer.micro_batch(&batch, batch.n_supervised(), i).expect("a step");
        trainer.optimizer_step(1e-4).expect("an update");
        device.synchronize().expect("the card answers");
        assert!(loss.is_finite(), "{cell}: the loss is {loss}");
        if i < N_WARM_UP as u64 {
            continue;
        }
        timed += begun.elapsed();
        rates.push(n_tokens as f64 / begun.elapsed().as_secs_f64());
        if rates.len() >= MOST_TIMED || rates.len() >= LEAST_TIMED && timed >= TIMED {
            break;
        }
    }
    rates.sort_by(f64::total_cmp);
    let quantile = |q: f64| rates[((rates.len() - 1) as f64 * q).round() as usize];
    let card = smi(&["--query-gpu=name,driver_version"]);
    let (name, driver) = card.trim().split_once(", ").expect("name and driver");
    format!(
        ",,{name},{driver},hearth,{model},{length},{micro_batch},{:?}+{}{},{:.1},{:.1},{:.1},{},{},card --cell {}",
        settings.recompute,
        settings.n_layers_eased,
        limit.first().map_or(String::new(), |mib| format!(" in {mib} MiB")),
        quantile(0.2),
        quantile(0.5),
        quantile(0.8),
        trainer.planned_bytes() + CARD_OVERHEAD_BYTES,
        process_bytes() - ballast.unwrap_or(0),
        cell.replace(',', ";"),
    )
}

/// The least recomputing that the plan has room for in so many bytes of a card.
fn fitting(shape: &ModelShape, settings: Settings, limit_bytes: u64) -> Settings {
    let with = |recompute, n_layers_eased| Settings { recompute, n_layers_eased, ..settings.clone() };
    let eased = |mode| (0..shape.n_layers).rev().map(move |n| (mode, n));
    let least_first = [(Recompute::N, 0)].into_iter().chain(eased(Recompute::C1)).chain(eased(Recompute::C0));
    least_first
        .map(|(mode, n)| with(mode, n))
        .find(|settings| layout(shape, settings).bytes() + CARD_OVERHEAD_BYTES <= limit_bytes)
        .unwrap_or_else(|| panic!("nothing fits in {limit_bytes} bytes"))
}

/// Takes all of the card but so much, for as long as the process lives; says how much that was.
#[cfg(feature = "cuda")]
fn leave(device: &candle_core::Device, free_bytes: u64) -> u64 {
    let ballast = hearth_engine::ops::leave(device, free_bytes).expect("the rest of the card is free");
    let bytes = ballast.bytes;
    std::mem::forget(ballast);
    bytes
}

#[cfg(not(feature = "cuda"))]
fn leave(_: &candle_core::Device, _: u64) -> u64 {
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
