//! The step on a card against transformers + peft + bitsandbytes on the same card.
//!
//! What they compute is too large to commit: `goldens/make/card.py` writes it into the folder that `HEARTH_CARD_GOLDENS` names.
//! Without that folder, or without a card, every test here says so and passes.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use hearth_engine::config::*;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::ops::adamw::{Moments, Update, adamw};
use hearth_engine::ops::memory::Held;
use hearth_engine::ops::nf4::{self, Nf4};
use hearth_engine::step::Trainer;
use hearth_tests::goldens::{Document, batch_of, fill, key, values};
use serde::Deserialize;

const VARIABLE: &str = "HEARTH_CARD_GOLDENS";

fn card_and_goldens() -> Option<(Device, PathBuf)> {
    let card = super::card_for(ComputeDtype::Bf16)?;
    let folder = std::env::var_os(VARIABLE);
    if folder.is_none() {
        println!("skipped: {VARIABLE} names no folder written by tests/goldens/make/card.py on this card");
    }
    Some((card, folder?.into()))
}

/// Names of the models for which there is a file `<name><suffix>`.
fn models(folder: &Path, suffix: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
    let mut models: Vec<String> = names.filter_map(|name| Some(name.strip_suffix(suffix)?.to_owned())).collect();
    models.sort();
    assert!(!models.is_empty(), "{} has no file *{suffix}", folder.display());
    models
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn tensors(path: &Path) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// bitsandbytes' own description of a quantised matrix, JSON in a tensor of bytes.
#[derive(Deserialize)]
struct QuantState {
    quant_type: String,
    blocksize: usize,
    nested_blocksize: usize,
    nested_offset: f64,
    shape: [usize; 2],
}

/// A linear layer of a bitsandbytes checkpoint, on the processor.
fn from_checkpoint(checkpoint: &HashMap<String, Tensor>, name: &str) -> Nf4 {
    let tensor = |suffix: &str| checkpoint[&format!("{name}{suffix}")].flatten_all().unwrap();
    let state = tensor(".quant_state.bitsandbytes__nf4").to_vec1::<u8>().unwrap();
    let state: QuantState = serde_json::from_slice(&state).unwrap();
    assert_eq!((&*state.quant_type, state.blocksize, state.nested_blocksize), ("nf4", nf4::BLOCK, 256), "{name}");
    let [rows, cols] = state.shape;
    Nf4 {
        codes: tensor(""),
        absmax: tensor(".absmax"),
        nested_absmax: tensor(".nested_absmax"),
        offset: state.nested_offset as f32,
        rows,
        cols,
    }
}

fn n_different<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

/// `<model>.bnb.safetensors` is a checkpoint's linear layers as bitsandbytes saves them, and `dequantized.<name>` what it makes of
/// each on the card in bf16.
#[test]
fn a_checkpoint_of_bitsandbytes_is_dequantised_to_the_same_bits() {
    let Some((card, folder)) = card_and_goldens() else { return };
    for model in models(&folder, ".bnb.safetensors") {
        let checkpoint = tensors(&folder.join(format!("{model}.bnb.safetensors")));
        let mut names: Vec<&str> = checkpoint.keys().filter_map(|name| name.strip_prefix("dequantized.")).collect();
        names.sort_unstable();
        let (mut n_weights, mut wrong) = (0, Vec::new());
        for name in &names {
            let src = from_checkpoint(&checkpoint, name);
            let to_card = |tensor: &Tensor| tensor.to_device(&card).unwrap();
            let (codes, absmax) = (to_card(&src.codes), to_card(&src.absmax));
            let src = Nf4 { codes, absmax, nested_absmax: to_card(&src.nested_absmax), ..src };
            let dst = Tensor::zeros((src.rows, src.cols), DType::BF16, &card).unwrap();
            nf4::dequantize(&dst, &src).unwrap();
            let bits = |tensor: &Tensor| -> Vec<u32> {
                let values: Vec<f32> = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
                values.into_iter().map(f32::to_bits).collect()
            };
            let n = n_different(&bits(&dst), &bits(&checkpoint[&format!("dequantized.{name}")]));
            n_weights += src.rows * src.cols;
            if n > 0 {
                wrong.push(format!("{name}: {n}"));
            }
        }
        println!("{model}: {} matrices, {n_weights} weights, {} matrices differ", names.len(), wrong.len());
        assert!(!names.is_empty() && wrong.is_empty(), "{model}: weights that differ: {wrong:?}");
    }
}

/// The same weights quantised by both. The kernels of bitsandbytes divide approximately and its offset is a sum in another order, so
/// that a weight or an absmax right at a threshold may fall to the other side.
#[test]
fn weights_are_quantised_to_the_codes_of_bitsandbytes() {
    let Some((card, folder)) = card_and_goldens() else { return };
    for model in models(&folder, ".bnb.safetensors") {
        let checkpoint = tensors(&folder.join(format!("{model}.bnb.safetensors")));
        let source = ModelSource::open(&folder.join(&model)).unwrap();
        let (mut n_weights, mut n_codes, mut n_blocks, mut n_absmax, mut n_offsets) = (0, 0, 0, 0, 0);
        for name in checkpoint.keys().filter_map(|name| name.strip_prefix("dequantized.")) {
            let want = from_checkpoint(&checkpoint, name);
            let weights = source.tensor_f32(name).unwrap().1;
            let got = nf4::quantize(&weights, want.rows, want.cols, &card).unwrap();
            let u8s = |tensor: &Tensor| tensor.to_vec1::<u8>().unwrap();
            let codes = |nf4: &Nf4| u8s(&nf4.codes).into_iter().flat_map(|b| [b >> 4, b & 15]).collect::<Vec<_>>();
            n_weights += weights.len();
            n_codes += n_different(&codes(&got), &codes(&want));
            n_blocks += want.absmax.elem_count();
            n_absmax += n_different(&u8s(&got.absmax), &u8s(&want.absmax));
            n_offsets += usize::from(got.offset != want.offset);
        }
        println!(
            "{model}: {n_codes} of {n_weights} codes, {n_absmax} of {n_blocks} absmax codes and {n_offsets} offsets differ"
        );
        assert!(n_codes as f64 <= 1e-6 * n_weights as f64, "{model}: {n_codes} of {n_weights} codes differ");
        assert!(n_absmax as f64 <= 1e-3 * n_blocks as f64, "{model}: {n_absmax} of {n_blocks} absmax codes differ");
    }
}

/// As QLoRA is trained on a card: NF4, bf16, 8-bit AdamW.
fn settings(lora: &LoraConfig, documents: &[Document], micro_batch: usize) -> Settings {
    Settings {
        base: BaseFormat::Nf4,
        compute: ComputeDtype::Bf16,
        lora: lora.clone(),
        length: documents.iter().map(|d| d.ids.len()).max().unwrap_or(0),
        micro_batch,
        packing: true,
        optimizer: OptimizerKind::AdamW8,
        weight_decay: 0.01,
        ..Settings::default()
    }
}

fn trainer(model: &Path, adapter: &HashMap<String, Tensor>, settings: &Settings, card: &Device) -> Trainer {
    let source = ModelSource::open(model).unwrap();
    let model = Model::load(&source, &settings.lora, settings.into(), card).unwrap();
    let mut fresh = Adapter::new(source.shape(), &settings.lora, 0, card).unwrap();
    fill(&mut fresh, adapter, "adapter.");
    Trainer::new(model, fresh, settings).unwrap()
}

#[derive(Deserialize)]
struct Gradients {
    lora: LoraConfig,
    batches: Vec<GradientBatch>,
}

#[derive(Deserialize)]
struct GradientBatch {
    documents: Vec<Document>,
    /// Negative log-likelihood, summed, of torch in f32 and in bf16.
    f32_nll: f64,
    bf16_nll: f64,
}

/// `<model>.gradients.safetensors` is a random adapter (`adapter.*`); `<model>.gradients.<batch>.safetensors` has the gradients of torch
/// in f32 over the same dequantised weights (`f32.*`) and those of peft over bitsandbytes' layers in bf16 (`bf16.*`).
///
/// Limits are on the root mean square over the batches. The forward pass's roundings, above all of the few largest activations, decide
/// how far all gradients of a batch turn, so that two correct steps' errors over one batch may be a factor of two apart, either way
/// (`engine/benches/parity-card.md`).
#[test]
fn every_gradient_is_as_near_to_f32_as_that_of_peft_in_bf16() {
    let Some((card, folder)) = card_and_goldens() else { return };
    let mut failures = Vec::new();
    for model in models(&folder, ".gradients.safetensors") {
        let golden: Gradients = json(&folder.join(format!("{model}.gradients.json")));
        let adapter = tensors(&folder.join(format!("{model}.gradients.safetensors")));
        let n_documents = golden.batches.iter().map(|batch| batch.documents.len()).max().unwrap_or(0);
        let all: Vec<Document> = golden.batches.iter().flat_map(|batch| batch.documents.clone()).collect();
        let settings = settings(&golden.lora, &all, n_documents);
        let mut trainer = trainer(&folder.join(&model), &adapter, &settings, &card);
        let mut matrices: BTreeMap<String, Matrix> = BTreeMap::new();
        for (i, golden) in golden.batches.iter().enumerate() {
            let tensors = tensors(&folder.join(format!("{model}.gradients.{i}.safetensors")));
            let batch = batch_of(&golden.documents);
            let nll = trainer.micro_batch(&batch, batch.n_supervised(), 0).unwrap();
            let gradients = trainer.gradients();
            for (layer, target) in gradients.names().collect::<Vec<_>>() {
                for (half, got) in [("A", gradients.a(layer, target)), ("B", gradients.b(layer, target))] {
                    let (got, name) = (got.unwrap(), key(layer, target, half));
                    let want = values(&tensors, &format!("f32.{name}"));
                    let matrix = matrices.entry(name.clone()).or_default();
                    matrix.ours.push(Distance::new(&got, &want));
                    matrix.peft.push(Distance::new(&values(&tensors, &format!("bf16.{name}")), &want));
                }
            }
            // At this rate a step leaves the adapter as it is and clears the gradients.
            trainer.optimizer_step(0.0).unwrap();
            let of_batch = |m: &Matrix| m.ours[i].error / m.peft[i].error;
            let loss = |nll: f64| (nll / golden.f32_nll - 1.0).abs();
            println!(
                "{model}, batch {i}: ours / peft's {}; loss off by {:.1e}, peft's {:.1e}",
                spread(matrices.values().map(of_batch)),
                loss(nll),
                loss(golden.bf16_nll),
            );
        }
        let n = matrices.len();
        assert!(n > 0 && !golden.batches.is_empty(), "{model}: nothing to compare");
        println!(
            "{model}, {n} matrices over {} batches: errors {}, peft's {}; ours / peft's {}",
            golden.batches.len(),
            spread(matrices.values().map(|m| error(&m.ours))),
            spread(matrices.values().map(|m| error(&m.peft))),
            spread(matrices.values().map(Matrix::ratio)),
        );
        println!(
            "  1 - cosine {}, peft's {}",
            spread(matrices.values().map(|m| off_cosine(&m.ours))),
            spread(matrices.values().map(|m| off_cosine(&m.peft))),
        );
        let mut past: Vec<(&String, &Matrix)> = matrices.iter().filter(|(_, m)| m.is_past()).collect();
        past.sort_by(|(_, a), (_, b)| b.ratio().total_cmp(&a.ratio()));
        for (name, m) in past.iter().take(10) {
            println!("  past the limit: {:.3}, {:.2e} for {:.2e}, {name}", m.ratio(), error(&m.ours), error(&m.peft));
        }
        if !past.is_empty() {
            failures.push(format!("{model}: {} of {n} matrices", past.len()));
        }
    }
    assert!(failures.is_empty(), "more than {LIMIT} of peft's error, or a smaller cosine: {failures:?}");
}

/// Of our error to peft's.
const LIMIT: f64 = 1.25;

/// How far the gradients of one matrix are from those of f32, batch by batch.
#[derive(Default)]
struct Matrix {
    ours: Vec<Distance>,
    peft: Vec<Distance>,
}

struct Distance {
    error: f64,
    cosine: f64,
}

impl Distance {
    fn new(got: &[f32], want: &[f32]) -> Self {
        assert_eq!(got.len(), want.len());
        let (mut apart, mut dot, mut of_got, mut of_want) = (0.0, 0.0, 0.0, 0.0);
        for (&got, &want) in got.iter().zip(want) {
            let (got, want) = (f64::from(got), f64::from(want));
            apart += (got - want) * (got - want);
            dot += got * want;
            of_got += got * got;
            of_want += want * want;
        }
        Self { error: (apart / of_want).sqrt(), cosine: dot / (of_got * of_want).sqrt() }
    }
}

/// Root mean square.
fn error(of: &[Distance]) -> f64 {
    (of.iter().map(|d| d.error.powi(2)).sum::<f64>() / of.len() as f64).sqrt()
}

/// Mean of what the cosines lack to 1.
fn off_cosine(of: &[Distance]) -> f64 {
    of.iter().map(|d| 1.0 - d.cosine).sum::<f64>() / of.len() as f64
}

impl Matrix {
    fn ratio(&self) -> f64 {
        error(&self.ours) / error(&self.peft)
    }

    /// The cosine is to be above 0.999. That is an error of 4.5 %; where peft's own is larger, the limit is that of the error, squared,
    /// as what a cosine lacks to 1 is half the square of an error across.
    fn is_past(&self) -> bool {
        let is_near = self.ratio() <= LIMIT;
        let is_along = off_cosine(&self.ours) <= f64::max(1e-3, LIMIT.powi(2) * off_cosine(&self.peft));
        // NaN is past every limit.
        !(is_near && is_along)
    }
}

/// Smallest, median and largest.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    format!("{:.2e} to {:.2e}, median {:.2e}", at(0), at(values.len().saturating_sub(1)), at(values.len() / 2))
}

#[derive(Deserialize)]
struct Curve {
    lora: LoraConfig,
    /// All documents; steps name them by index.
    documents: Vec<Document>,
    held_out: Vec<Document>,
    steps: Vec<Step>,
    /// Runs over the same dequantised weights with torch's step in f32: from the adapter that Hearth starts with, and from two others.
    f32: Vec<Run>,
    /// The same adapters over bitsandbytes' layers, the step in bf16.
    bf16: Vec<Run>,
}

#[derive(Deserialize)]
struct Step {
    documents: Vec<usize>,
    learning_rate: f64,
}

#[derive(Deserialize)]
struct Run {
    /// Mean over each step's supervised tokens, before its update.
    losses: Vec<f64>,
    /// Mean on `held_out` after the last step.
    held_out_loss: f64,
}

/// The largest relative distance between the means over `WINDOW` steps.
fn smoothed_distance(a: &[f64], b: &[f64]) -> f64 {
    const WINDOW: usize = 20;
    let mean = |window: &[f64]| window.iter().sum::<f64>() / WINDOW as f64;
    let pairs = a.windows(WINDOW).zip(b.windows(WINDOW));
    pairs.map(|(a, b)| (mean(a) / mean(b) - 1.0).abs()).fold(0.0, f64::max)
}

/// `<model>.curve.json` and `<model>.curve.safetensors` (the first adapter, B zero): peft with bitsandbytes' 8-bit AdamW.
///
/// The limit is on the distance to its step in f32. In bf16 peft adds the adapter's part to a product already rounded, which swallows
/// the first updates; Hearth rounds their sum once. Its distance is printed beside.
#[test]
fn two_hundred_steps_follow_peft_and_bitsandbytes() {
    let Some((card, folder)) = card_and_goldens() else { return };
    for model in models(&folder, ".curve.safetensors") {
        let golden: Curve = json(&folder.join(format!("{model}.curve.json")));
        let adapter = tensors(&folder.join(format!("{model}.curve.safetensors")));
        let n_per_step = golden.steps.iter().map(|s| s.documents.len()).max().unwrap();
        let all: Vec<Document> = golden.documents.iter().chain(&golden.held_out).cloned().collect();
        let mut trainer = trainer(&folder.join(&model), &adapter, &settings(&golden.lora, &all, n_per_step), &card);
        let mut losses = Vec::new();
        for step in &golden.steps {
            let batch = batch_of(step.documents.iter().map(|&i| &golden.documents[i]));
            let n = batch.n_supervised();
            losses.push(trainer.micro_batch(&batch, n, 0).unwrap() / n as f64);
            trainer.optimizer_step(step.learning_rate).unwrap();
        }
        let (mut nll, mut n) = (0.0, 0);
        for documents in golden.held_out.chunks(n_per_step) {
            let batch = batch_of(documents);
            nll += trainer.evaluate(&batch).unwrap();
            n += batch.n_supervised();
        }
        let held_out = nll / n as f64;
        println!("{model}: {} steps, first loss {:.4}, held out after the last {held_out:.5}", losses.len(), losses[0]);
        for (name, runs) in [("f32", &golden.f32), ("bf16", &golden.bf16)] {
            let ends: Vec<f64> = runs.iter().map(|run| run.held_out_loss).collect();
            let distance = 100.0 * smoothed_distance(&losses, &runs[0].losses);
            println!("  off peft in {name} by {distance:.3} % smoothed; its seeds end at {ends:.5?}");
        }
        let of_peft = smoothed_distance(&golden.bf16[0].losses, &golden.f32[0].losses);
        println!("  peft in bf16 off peft in f32 by {:.3} %", 100.0 * of_peft);
        for at in (19..losses.len()).step_by(20) {
            let mean = |losses: &[f64]| losses[at - 19..=at].iter().sum::<f64>() / 20.0;
            let [f32, bf16] = [&golden.f32[0], &golden.bf16[0]].map(|run| mean(&run.losses));
            println!(
                "  steps {} to {}: {:.4}, peft in f32 {f32:.4}, in bf16 {bf16:.4}",
                at - 18,
                at + 1,
                mean(&losses)
            );
        }
        let distance = smoothed_distance(&losses, &golden.f32[0].losses);
        assert!(distance <= 5e-3, "{model}: smoothed losses differ by {:.3} %", 100.0 * distance);
        let ends = golden.f32.iter().map(|run| run.held_out_loss);
        let (least, most) = ends.fold((f64::MAX, 0f64), |(least, most), end| (least.min(end), most.max(end)));
        // The end of the same seed may itself be the band's edge.
        let edge = 5e-3 * golden.f32[0].held_out_loss;
        assert!((least - edge..=most + edge).contains(&held_out), "{model}: {held_out} outside {least} to {most}");
    }
}

/// `adamw8.safetensors`: for each matrix its parameters before and after, recorded gradients `[steps, n]`, and bitsandbytes' codes
/// at the end; `learning_rates`.
///
/// The limit of 1e-3 of the way is on all parameters together. Where a code of theirs and of ours differ, which a last bit of one moment
/// decides, that weight takes other steps from there on; a small matrix of few such weights may be past the mean, so the limit of
/// one matrix is twice as wide.
#[test]
fn a_hundred_steps_of_8_bit_adamw_follow_bitsandbytes() {
    let Some((card, folder)) = card_and_goldens() else { return };
    let golden = tensors(&folder.join("adamw8.safetensors"));
    let rates = golden["learning_rates"].to_vec1::<f64>().unwrap();
    let mut matrices: Vec<&str> = golden.keys().filter_map(|name| name.strip_prefix("grads.")).collect();
    matrices.sort_unstable();
    assert!(!matrices.is_empty() && rates.len() >= 100);
    let (mut n_codes, mut n_equal) = ([0; 2], [0; 2]);
    // Squared distances to theirs and along their way, of all matrices; largest quotient of one and its name.
    let (mut apart, mut way, mut worst) = (0.0, 0.0, (0.0, ""));
    for name in &matrices {
        let get = |part: &str| golden[&format!("{part}.{name}")].flatten_all().unwrap();
        let (initial, grads) = (get("initial"), golden[&format!("grads.{name}")].to_device(&card).unwrap());
        let params = initial.to_device(&card).unwrap().copy().unwrap();
        let moments = Moments::u8(params.elem_count(), &card, &Held::new()).unwrap();
        for (i, &learning_rate) in rates.iter().enumerate() {
            let update = Update {
                learning_rate,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.01,
                step: i + 1,
                gradient_scale: 1.0,
            };
            adamw(&params, &grads.get(i).unwrap(), &moments, &update).unwrap();
        }
        for (part, tensor) in moments.tensors() {
            let Some(which) = ["m_codes", "v_codes"].iter().position(|&name| name == part) else { continue };
            let (ours, theirs) = (tensor.to_vec1::<u8>().unwrap(), get(part).to_vec1::<u8>().unwrap());
            n_codes[which] += ours.len();
            n_equal[which] += ours.len() - n_different(&ours, &theirs);
        }
        let vector = |tensor: &Tensor| tensor.to_vec1::<f32>().unwrap();
        let (initial, ours, theirs) = (vector(&initial), vector(&params), vector(&get("final")));
        let squared = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        let (of_apart, of_way) = (squared(&ours, &theirs), squared(&theirs, &initial));
        (apart, way) = (apart + of_apart, way + of_way);
        let off = (of_apart / of_way).sqrt();
        assert!(off.is_finite(), "{name}: its parameters went nowhere");
        if off >= worst.0 {
            worst = (off, name);
        }
    }
    let share = [0, 1].map(|i| n_equal[i] as f64 / n_codes[i] as f64);
    let (off, (worst, name)) = (f64::sqrt(apart / way), worst);
    println!(
        "{} matrices, {} steps: equal codes of m {:.4} %, of v {:.4} %; parameters off by {off:.2e} of the way, at most {worst:.2e} ({name})",
        matrices.len(),
        rates.len(),
        100.0 * share[0],
        100.0 * share[1],
    );
    assert!(
        share.iter().all(|&share| share >= 0.999) && off <= 1e-3 && worst <= 2e-3,
        "{share:?} of the codes; parameters {off:.2e} of the way, {worst:.2e} in {name}"
    );
}
