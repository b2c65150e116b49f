//! The training step on SmolLM2-135M: tokens a second, and planned beside measured memory. Called by `cargo xtask bench`.
//!
//! Each cell runs in a process of its own, so that what one cell leaves behind is not measured in the next. All tokens of a
//! sequence are supervised; rank 8 on all linear layers, f32 base, 32-bit AdamW, as the peer's script.

#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use hearth_engine::config::*;
use hearth_engine::data::Batch;
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::run::memory::anonymous_bytes;
use hearth_engine::step::Trainer;

const HEADER: &str = "date,commit,card,driver,program,model,seq,micro_batch,mode,tokens_per_s_p20,tokens_per_s_p50,\
                      tokens_per_s_p80,plan_bytes,measured_bytes,command";
const LENGTHS: [usize; 3] = [256, 512, 1024];
const MODES: [(&str, Recompute); 3] = [("N", Recompute::N), ("C1", Recompute::C1), ("C0", Recompute::C0)];
const N_WARM_UP: usize = 1;
const N_TIMED: usize = 5;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    let Some(model) = value("--model").map(PathBuf::from) else {
        println!("usage: step --model PATH [--csv FILE]");
        // `cargo test --benches` starts this without arguments.
        return ExitCode::SUCCESS;
    };
    if let (Some(length), Some(mode)) = (value("--length"), value("--mode")) {
        println!("{}", cell(&model, length.parse().expect("--length is a number"), &mode));
        return ExitCode::SUCCESS;
    }
    let mut lines = vec![HEADER.to_string()];
    for length in LENGTHS {
        for (mode, _) in MODES {
            let program = std::env::current_exe().expect("this program has a path");
            let out = Command::new(program)
                .arg("--model")
                .arg(&model)
                .args(["--length", &length.to_string(), "--mode", mode])
                .output()
                .expect("this program starts again");
            assert!(out.status.success(), "{length} {mode}: {}", String::from_utf8_lossy(&out.stderr));
            let line = String::from_utf8_lossy(&out.stdout).trim().to_string();
            println!("{line}");
            lines.push(line);
        }
    }
    if let Some(csv) = value("--csv") {
        std::fs::write(&csv, lines.join("\n") + "\n").expect("the file can be written");
    }
    ExitCode::SUCCESS
}

/// One row of results; date and commit are the caller's.
fn cell(model: &PathBuf, length: usize, mode: &str) -> String {
    let recompute = MODES.iter().find(|(name, _)| *name == mode).expect("a known mode").1;
    let settings = settings(length, recompute);
    let source = ModelSource::open(model).expect("the model opens");
    let before = anonymous_bytes().expect("this system tells a process's memory");
    let device = candle_core::Device::Cpu;
    let base = Model::load(&source, &settings.lora, Precision::f32(settings.base), &device).expect("the model loads");
    let adapter = Adapter::new(&base.shape, &settings.lora, 1, &device).expect("an adapter");
    let n_rows = base.shape.vocab_rows as u32;
    let mut trainer = Trainer::new(base, adapter, &settings).expect("the buffers are allocated");
    // Spread over the vocabulary, so that no cache holds the few rows of the embedding that a short cycle would read.
    let ids: Vec<u32> = (0..length as u32).map(|i| i.wrapping_mul(2_654_435_761) % n_rows).collect();
    let batch = Batch::from_documents([(&ids[..], &vec![true; length][..])]);
    let mut rates = Vec::new();
    let mut peak = 0;
    for step in 0..N_WARM_UP + N_TIMED {
        let begun = Instant::now();
        trainer.micro_batch(&batch, batch.n_supervised(), step as u64).expect("a step");
        trainer.optimizer_step(1e-4).expect("an update");
        if step >= N_WARM_UP {
            rates.push(length as f64 / begun.elapsed().as_secs_f64());
        }
        peak = peak.max(anonymous_bytes().unwrap_or(0));
    }
    rates.sort_by(f64::total_cmp);
    let quantile = |q: f64| rates[((rates.len() - 1) as f64 * q).round() as usize];
    format!(
        ",,cpu,none,hearth,SmolLM2-135M,{length},1,{mode},{:.1},{:.1},{:.1},{},{},cargo xtask bench",
        quantile(0.2),
        quantile(0.5),
        quantile(0.8),
        trainer.planned_bytes(),
        peak - before,
    )
}

fn settings(length: usize, recompute: Recompute) -> Settings {
    let lora = LoraConfig { rank: 8, alpha: 16.0, dropout: 0.0, targets: Target::ALL.to_vec() };
    Settings { lora, length, recompute, ..Settings::default() }
}
