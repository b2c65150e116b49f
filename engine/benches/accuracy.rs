//! Planned against measured memory of whole runs on the processor: reading the model, steps, evaluations with their answers, and
//! checkpoints. `cargo bench --profile dev --package hearth-engine --bench accuracy -- --measure [--csv FILE]`.
//!
//! Each cell is a run of its own in a process of its own, of a model of random weights. Planned is what the plan says before the run
//! starts; measured is the highest growth of anonymous memory, looked at every two milliseconds from before the model is read.

#![allow(clippy::print_stdout)]

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hearth_engine::config::RunConfig;
use hearth_engine::event::TrainEvent;
use hearth_engine::hardware::detect;
use hearth_engine::run::memory::anonymous_bytes;
use hearth_engine::run::{self, Notice};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

const HEADER: &str = "model,base,seq,micro_batch,mode,samples,plan_bytes,measured_bytes,error_percent,command";
/// Model, base, length, micro-batch, recompute mode, prompts answered at an evaluation.
const CELLS: [&str; 14] = [
    "29m,f32,256,1,n,0",
    "29m,f32,512,1,n,0",
    "29m,f32,512,1,c0,0",
    "29m,f32,512,2,c1,0",
    "29m,f32,1024,1,c1,0",
    "29m,nf4,512,1,n,0",
    "29m,nf4,1024,2,c0,0",
    "29m,f32,512,2,n,3",
    "29m,nf4,512,1,c0,3",
    "99m,f32,256,1,n,0",
    "99m,f32,512,1,c0,0",
    "99m,nf4,512,1,n,0",
    "99m,f32,512,2,c1,3",
    "99m,nf4,1024,1,c0,3",
];
/// To which the plan is held, in percent.
const TARGET_PERCENT: f64 = 3.0;
/// Examples: a step, one evaluation and its answers.
const N_EXAMPLES: usize = 10;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    if let (Some(cell), Some(folder)) = (value("--here"), value("--in")) {
        let (planned, measured) = measure(&cell, Path::new(&folder));
        println!("{planned},{measured}");
        return ExitCode::SUCCESS;
    }
    if !args.iter().any(|a| a == "--measure") {
        println!("usage: accuracy --measure [--csv FILE]");
        // `cargo test --benches` starts this without arguments.
        return ExitCode::SUCCESS;
    }
    let mut csv = format!("{HEADER}\n");
    let mut worst: f64 = 0.0;
    println!("{:<22} {:>12} {:>12} {:>8}", "cell", "planned", "measured", "error");
    for cell in CELLS {
        let folder = tempfile::tempdir().expect("a folder");
        prepare(cell, folder.path());
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        let out =
            command.args(["--here", cell, "--in"]).arg(folder.path()).output().expect("this program starts again");
        assert!(out.status.success(), "{cell}: {}", String::from_utf8_lossy(&out.stderr));
        let said = String::from_utf8_lossy(&out.stdout);
        let numbers = said.trim().split_once(',').expect("two numbers");
        let (planned, measured): (f64, f64) = (numbers.0.parse().expect("bytes"), numbers.1.parse().expect("bytes"));
        let error = 100.0 * (planned / measured - 1.0);
        worst = worst.max(error.abs());
        println!("{cell:<22} {planned:>12} {measured:>12} {error:>+7.2}%");
        writeln!(csv, "{cell},{planned},{measured},{error:.2},accuracy --measure").expect("text grows");
    }
    println!("largest error {worst:.2} %, target {TARGET_PERCENT} %");
    if let Some(path) = value("--csv") {
        fs::write(&path, csv).expect("the file can be written");
    }
    if worst <= TARGET_PERCENT { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Model, base, length, micro-batch, mode, samples.
fn parts(cell: &str) -> ([&str; 3], [usize; 3]) {
    let parts: Vec<&str> = cell.split(',').collect();
    let [model, base, length, micro_batch, mode, samples] = parts[..] else { panic!("{cell}: six parts") };
    let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("{cell}: {text} is not a number"));
    ([model, base, mode], [number(length), number(micro_batch), number(samples)])
}

/// Writes a cell's model and examples, in another process than the one whose memory is measured.
fn prepare(cell: &str, folder: &Path) {
    let ([model, ..], [length, ..]) = parts(cell);
    write_model(&folder.join("model"), model);
    // Longer than the length, so that every sequence is full. A digit is a token, so the prompt is half of a sequence: the run's plan
    // counts the prompts that it asks, not the longest that there could be.
    let words =
        |n_bytes: usize| -> String { (0..n_bytes).map(|i| char::from(b'0' + (i * i % 7 + i % 3) as u8)).collect() };
    let example = json!({ "prompt": words(length / 2), "completion": words(4 * length) }).to_string();
    fs::write(folder.join("data.jsonl"), format!("{example}\n").repeat(N_EXAMPLES))
        .expect("the examples can be written");
}

/// Planned and measured bytes of a run.
fn measure(cell: &str, folder: &Path) -> (u64, u64) {
    let ([_, base, mode], [length, micro_batch, samples]) = parts(cell);
    let at = |name: &str| folder.join(name);
    let config: RunConfig = serde_json::from_value(json!({
        "model": at("model"),
        "data": { "path": at("data.jsonl"), "length": length, "over_length": "truncate", "packing": false },
        "base": base,
        "recompute": mode,
        "micro_batch": micro_batch,
        "accumulation": 1,
        "max_steps": 3,
        "evaluation": { "fraction": 0.3, "every_steps": 2, "n_samples": samples },
    }))
    .expect("a config");

    let (begun, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let looker = {
        let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
        std::thread::spawn(move || {
            let mut most = 0;
            while !ended.load(Ordering::Relaxed) {
                // What reading the examples took before is not the run's.
                if begun.load(Ordering::Relaxed) > 0 {
                    most = most.max(anonymous_bytes().expect("this system tells a process's memory"));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        })
    };
    let mut planned = 0;
    run::train(config, &detect(), &at("runs"), None, &mut |notice| match notice {
        Notice::Planned(plan) => planned = plan.planned_bytes,
        Notice::Event(line) => {
            if matches!(&line.event, TrainEvent::Phase { name } if name == "load_model") {
                begun.store(anonymous_bytes().expect("this system tells a process's memory"), Ordering::Relaxed);
            }
        }
        Notice::Created(_) => {}
    })
    .expect("the run trains");
    ended.store(true, Ordering::Relaxed);
    let most = looker.join().expect("it looked");
    (planned, most - begun.load(Ordering::Relaxed))
}

/// A model of random weights with the tokenizer of the goldens.
fn write_model(folder: &Path, name: &str) {
    let (hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn) = match name {
        "29m" => (512, 8, 8, 4, 64, 1536),
        "99m" => (768, 14, 12, 4, 64, 2048),
        _ => panic!("{name}: 29m or 99m"),
    };
    let vocab = 8192;
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens/tiny-tied");
    fs::create_dir_all(folder).expect("a folder");
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        if goldens.join(file).exists() {
            fs::copy(goldens.join(file), folder.join(file)).expect("the goldens are there");
        }
    }
    let text = fs::read(goldens.join("config.json")).expect("the goldens are there");
    let mut config: Value = serde_json::from_slice(&text).expect("json");
    for (key, value) in [
        ("hidden_size", hidden),
        ("num_hidden_layers", n_layers),
        ("num_attention_heads", n_heads),
        ("num_key_value_heads", n_kv_heads),
        ("head_dim", head_dim),
        ("intermediate_size", ffn),
        ("vocab_size", vocab),
        ("max_position_embeddings", 8192),
    ] {
        config[key] = json!(value);
    }
    fs::write(folder.join("config.json"), config.to_string()).expect("the config can be written");
    let (q, kv) = (n_heads * head_dim, n_kv_heads * head_dim);
    let mut shapes = vec![("model.embed_tokens.weight".to_string(), vec![vocab, hidden])];
    for layer in 0..n_layers {
        let of_layer = [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, q]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![ffn, hidden]),
            ("mlp.up_proj", vec![ffn, hidden]),
            ("mlp.down_proj", vec![hidden, ffn]),
        ];
        shapes.extend(of_layer.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    shapes.push(("model.norm.weight".into(), vec![hidden]));
    let mut state = 1_u64;
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let n = shape.iter().product::<usize>();
            let value = |_| {
                // A linear congruential generator is random enough for weights that nobody asks.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let uniform = (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
                if shape.len() == 1 { 1.0 } else { 0.07 * uniform }
            };
            let bytes = (0..n).map(value).flat_map(f32::to_le_bytes).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("the weights can be written");
}
