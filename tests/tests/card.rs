//! The step on a graphics card against the step on the processor, whose own parity is in `parity.rs`; `card/peers.rs` has it against
//! what others compute on a card. Without a card, or in the engine for the processor, every test here says so and passes.

use candle_core::{Device, Tensor};
use hearth_engine::config::*;
use hearth_engine::data::Batch;
use hearth_engine::hardware::TrainOn;
use hearth_engine::model::shape::{ModelShape, Rope};
use hearth_engine::model::{Adapter, Model};
use hearth_engine::ops::upload;
use hearth_engine::step::{self, LossScale, Trainer};
use hearth_tests::goldens::relative_error;

#[path = "card/peers.rs"]
mod peers;

fn card() -> Option<Device> {
    let card = step::device(TrainOn::Card);
    if let Err(error) = &card {
        println!("skipped: {error}");
    }
    card.ok()
}

/// A card with kernels for `compute`.
fn card_for(compute: ComputeDtype) -> Option<Device> {
    let card = card()?;
    if let Err(error) = step::check_compute(&card, compute) {
        println!("skipped: {error}");
        return None;
    }
    Some(card)
}

/// The 16-bit type that a card's steps are computed in.
fn half(card: &Device) -> ComputeDtype {
    if step::check_compute(card, ComputeDtype::Bf16).is_ok() { ComputeDtype::Bf16 } else { ComputeDtype::F16 }
}

/// Three blocks with grouped heads of 64, odd widths elsewhere.
fn shape(tied: bool) -> ModelShape {
    ModelShape {
        family: "llama".into(),
        n_layers: 3,
        hidden: 192,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 64,
        ffn: 328,
        vocab_rows: 301,
        rms_eps: 1e-5,
        rope: Rope { theta: 10_000.0, scaling: None },
        tied,
        max_positions: 512,
    }
}

fn settings(base: BaseFormat, compute: ComputeDtype) -> Settings {
    Settings {
        base,
        compute,
        lora: LoraConfig { rank: 8, alpha: 16.0, dropout: 0.0, targets: Target::ALL.to_vec() },
        length: 128,
        micro_batch: 2,
        packing: true,
        head_rows: 50,
        optimizer: OptimizerKind::AdamW8,
        learning_rate: 1e-3,
        ..Settings::default()
    }
}

/// Documents of uneven lengths, one of a single token, partly supervised.
fn batch(lengths: &[usize]) -> Batch {
    let document = |(i, &n): (usize, &usize)| -> (Vec<u32>, Vec<bool>) {
        let ids = (0..n).map(|j| ((i * 131 + j * 37 + j * j) % 301) as u32).collect();
        (ids, (0..n).map(|j| j % 3 != 0).collect())
    };
    let documents: Vec<_> = lengths.iter().enumerate().map(document).collect();
    Batch::from_documents(documents.iter().map(|(ids, learned)| (&ids[..], &learned[..])))
}

const LENGTHS: [usize; 4] = [77, 1, 100, 30];

/// A trainer on `device` whose adapter changes something: with `B` of zero `A` would have no gradient.
fn trainer(device: &Device, settings: &Settings, tied: bool) -> Trainer {
    let shape = shape(tied);
    let model = Model::random(&shape, &settings.lora, settings.into(), device).unwrap();
    let mut adapter = Adapter::new(&shape, &settings.lora, 5, device).unwrap();
    let names: Vec<_> = adapter.names().collect();
    for (layer, target) in names {
        let (a, mut b) = (adapter.a(layer, target).unwrap(), adapter.b(layer, target).unwrap());
        for (i, b) in b.iter_mut().enumerate() {
            *b = ((i * 2_654_435_761 + layer) % 1000) as f32 / 10_000.0 - 0.05;
        }
        adapter.set(layer, target, &a, &b).unwrap();
    }
    Trainer::new(model, adapter, settings).unwrap()
}

/// Loss of one micro-batch, and the gradient of every `A` and `B` by name, without the loss's scale.
fn gradients(device: &Device, settings: &Settings, tied: bool) -> (f64, Vec<(String, Vec<f32>)>) {
    let mut trainer = trainer(device, settings, tied);
    let batch = batch(&LENGTHS);
    let loss = trainer.micro_batch(&batch, batch.n_supervised(), 9).unwrap() / batch.n_supervised() as f64;
    let scale = trainer.loss_scale().map_or(1.0, |loss_scale| loss_scale.scale as f32);
    let gradients = trainer.gradients();
    let named = gradients.names().flat_map(|(layer, target)| {
        let halves = [gradients.a(layer, target).unwrap(), gradients.b(layer, target).unwrap()];
        let unscaled = halves.map(|half| half.into_iter().map(|g| g / scale).collect::<Vec<f32>>());
        ["A", "B"].into_iter().zip(unscaled).map(move |(half, g)| (format!("{layer} {} {half}", target.module()), g))
    });
    (loss, named.collect())
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_device(&Device::Cpu).unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn in_f32_the_card_agrees_with_the_processor() {
    let Some(card) = card() else { return };
    for (base, dropout, tied) in
        [(BaseFormat::F32, 0.0, true), (BaseFormat::Nf4, 0.0, false), (BaseFormat::Nf4, 0.2, true)]
    {
        let mut settings = settings(base, ComputeDtype::F32);
        settings.lora.dropout = dropout;
        let (loss, got) = gradients(&card, &settings, tied);
        let (expected, want) = gradients(&Device::Cpu, &settings, tied);
        println!("{base:?} dropout {dropout}: loss off by {:.1e}", (loss / expected - 1.0).abs());
        assert!((loss / expected - 1.0).abs() < 1e-5, "{base:?}: loss {loss} for {expected}");
        for ((name, got), (_, want)) in got.iter().zip(&want) {
            let error = relative_error(got, want);
            assert!(error < 1e-4, "{base:?} {name}: {error:.1e}");
        }
    }
}

/// bf16 keeps 8 bits of a number: a sum of independent roundings of 2^-9 each through three blocks and back.
#[test]
fn in_bf16_every_gradient_points_where_the_processors_does() {
    // The cosine of a relative error of 4 % is above 0.999.
    points_where_the_processors_does(BaseFormat::Nf4, ComputeDtype::Bf16, 5e-3, 4e-2);
}

/// f16 keeps 11 bits: an eighth of bf16's errors, with as much again for small gradients, which have fewer bits there.
#[test]
fn in_f16_every_gradient_points_where_the_processors_does() {
    points_where_the_processors_does(BaseFormat::Nf4, ComputeDtype::F16, 1e-3, 1e-2);
    points_where_the_processors_does(BaseFormat::Half, ComputeDtype::F16, 1e-3, 1e-2);
}

fn points_where_the_processors_does(base: BaseFormat, compute: ComputeDtype, loss_off: f64, gradient_off: f64) {
    let Some(card) = card_for(compute) else { return };
    let (loss, got) = gradients(&card, &settings(base, compute), false);
    let exact = if base == BaseFormat::Nf4 { base } else { BaseFormat::F32 };
    let (expected, want) = gradients(&Device::Cpu, &settings(exact, ComputeDtype::F32), false);
    assert!((loss / expected - 1.0).abs() < loss_off, "loss {loss} for {expected}");
    let mut worst = 0f64;
    for ((name, got), (_, want)) in got.iter().zip(&want) {
        assert!(got.iter().all(|g| g.is_finite()), "{name} is not finite");
        assert!(got.iter().any(|&g| g != 0.0), "{name} has no gradient");
        let error = relative_error(got, want);
        worst = worst.max(error);
        assert!(error < gradient_off, "{name}: {error:.1e}");
    }
    println!("{compute:?}: loss off by {:.1e}, worst gradient by {worst:.1e}", (loss / expected - 1.0).abs());
}

/// Scales are powers of two, so nothing but overflow depends on them until gradients become too small for f16.
#[test]
fn a_scale_that_overflows_is_halved_until_the_step_can_be_taken_and_nothing_of_the_tries_stays() {
    let Some(card) = card_for(ComputeDtype::F16) else { return };
    let batch = batch(&LENGTHS);
    let step_at = |scale: u32| {
        let mut trainer = trainer(&card, &settings(BaseFormat::Nf4, ComputeDtype::F16), false);
        trainer.set_loss_scale(LossScale { scale, n_good_steps: 7, n_halved: 0 });
        let before = bits(trainer.adapter().flat());
        loop {
            trainer.micro_batch(&batch, batch.n_supervised(), 9).unwrap();
            match trainer.optimizer_step(1e-3) {
                Ok(stats) => return (trainer.loss_scale().unwrap(), stats.grad_norm, bits(trainer.adapter().flat())),
                Err(step::Error::NotFinite { .. }) => {
                    assert!(bits(trainer.adapter().flat()) == before, "an overflow updated something");
                    assert!(trainer.halve_loss_scale().unwrap());
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    // The loss's gradient itself, up to S / 139, is past f16's 65,504 there.
    let (found, norm, adapter) = step_at(1 << 24);
    println!("from 2^24 down to {}, halved {} times", found.scale, found.n_halved);
    assert!(found.n_halved > 0 && found.scale == (1 << 24) >> found.n_halved && found.n_good_steps == 1);
    let (same, same_norm, same_adapter) = step_at(found.scale);
    assert_eq!((same.scale, same.n_halved, same.n_good_steps), (found.scale, 0, 8));
    assert!(same_norm == norm && same_adapter == adapter);
    // The norm is the gradient's, not the scaled one's.
    let (_, smaller_norm, _) = step_at(found.scale / 4);
    assert!((smaller_norm / norm - 1.0).abs() < 1e-3, "{smaller_norm} for {norm}");
}

#[test]
fn recompute_modes_and_places_of_inputs_and_weights_give_the_same_bits() {
    let Some(card) = card() else { return };
    // A rank of 3 leaves no padding row or column where a vector of 16 bytes would start.
    for (dropout, rank) in [(0.0, 8), (0.3, 8), (0.0, 3)] {
        let with = |change: &dyn Fn(&mut Settings)| {
            let mut settings = settings(BaseFormat::Nf4, half(&card));
            (settings.lora.dropout, settings.lora.rank) = (dropout, rank);
            change(&mut settings);
            let mut trainer = trainer(&card, &settings, false);
            let batch = batch(&LENGTHS);
            // Twice, so that the second pass begins with what the first left behind.
            let mut passes = (0..2).map(|_| {
                upload::clear(trainer.gradients().flat()).unwrap();
                let loss = trainer.micro_batch(&batch, batch.n_supervised(), 9).unwrap();
                (loss.to_bits(), bits(trainer.gradients().flat()))
            });
            let first = passes.next().unwrap();
            assert!(passes.next().unwrap() == first);
            first
        };
        let all = with(&|settings| settings.recompute = Recompute::N);
        for (recompute, eased, on_host) in
            [(Recompute::C1, 0, false), (Recompute::C1, 2, true), (Recompute::C0, 0, true), (Recompute::C0, 1, false)]
        {
            let other = with(&|settings| {
                (settings.recompute, settings.n_layers_eased) = (recompute, eased);
                settings.embedding_on_host = on_host;
            });
            assert!(other == all, "{recompute:?}+{eased}, dropout {dropout}, rank {rank}");
        }
        for (recompute, offload, streamed) in
            [(Recompute::N, true, 0), (Recompute::C0, true, 1), (Recompute::C1, false, 3), (Recompute::C0, true, 3)]
        {
            let other = with(&|settings| {
                (settings.recompute, settings.offload_inputs) = (recompute, offload);
                settings.n_layers_streamed = streamed;
            });
            let what = format!("{recompute:?}, offload {offload}, {streamed} streamed, dropout {dropout}, rank {rank}");
            assert!(other == all, "{what}");
        }
        for (recompute, cached, streamed) in [(Recompute::N, 1, 0), (Recompute::C0, 3, 0), (Recompute::C1, 1, 2)] {
            let other = with(&|settings| {
                (settings.recompute, settings.n_layers_cached) = (recompute, cached);
                settings.n_layers_streamed = streamed;
            });
            let what =
                format!("{recompute:?}, {cached} dequantised, {streamed} streamed, dropout {dropout}, rank {rank}");
            assert!(other == all, "{what}");
        }
    }
}

/// Parts of a batch may take another algorithm of a product, whose sums round otherwise.
#[test]
fn an_mlp_in_parts_trains_as_in_one_within_rounding() {
    let Some(card) = card() else { return };
    let with = |mlp_rows| {
        let mut settings = settings(BaseFormat::Nf4, half(&card));
        (settings.mlp_rows, settings.recompute, settings.lora.dropout) = (mlp_rows, Recompute::C0, 0.2);
        let mut trainer = trainer(&card, &settings, false);
        let batch = batch(&LENGTHS);
        let loss = trainer.micro_batch(&batch, batch.n_supervised(), 9).unwrap();
        let gradients: Vec<f32> = trainer.gradients().flat().to_device(&Device::Cpu).unwrap().to_vec1().unwrap();
        (loss, gradients)
    };
    let (loss, whole) = with(None);
    for rows in [16, 40, 100] {
        let (other_loss, parts) = with(Some(rows));
        let error = relative_error(&parts, &whole);
        println!("parts of {rows}: gradients off by {error:.1e}");
        assert!((loss / other_loss - 1.0).abs() < 1e-3 && error < 1e-2, "{rows}: {other_loss} for {loss}, {error:.1e}");
    }
}

#[test]
fn two_runs_give_the_same_bytes() {
    let Some(card) = card() else { return };
    let run = || {
        let mut trainer = trainer(&card, &settings(BaseFormat::Nf4, half(&card)), true);
        for step in 0..5 {
            for (micro_batch, lengths) in [LENGTHS, [128, 60, 3, 60]].iter().enumerate() {
                let batch = batch(lengths);
                trainer.micro_batch(&batch, 2 * batch.n_supervised(), step * 2 + micro_batch as u64).unwrap();
            }
            trainer.optimizer_step(1e-3).unwrap();
        }
        bits(trainer.adapter().flat())
    };
    assert!(run() == run());
}

#[test]
fn documents_that_lie_together_are_as_each_alone_within_rounding() {
    let Some(card) = card() else { return };
    let settings = settings(BaseFormat::Nf4, half(&card));
    let whole = batch(&LENGTHS);
    let mut together = trainer(&card, &settings, false);
    let loss = together.micro_batch(&whole, whole.n_supervised(), 0).unwrap();
    let mut apart = trainer(&card, &settings, false);
    let mut sum = 0.0;
    for document in 0..LENGTHS.len() {
        let (start, end) = (whole.cu_seqlens[document] as usize, whole.cu_seqlens[document + 1] as usize);
        let rows = (0..whole.rows.len()).filter(|&i| (start..end).contains(&(whole.rows[i] as usize)));
        let (rows, labels): (Vec<u32>, Vec<u32>) =
            rows.map(|i| (whole.rows[i] - start as u32, whole.labels[i])).unzip();
        if rows.is_empty() {
            continue;
        }
        let alone = Batch {
            input_ids: whole.input_ids[start..end].to_vec(),
            positions: whole.positions[start..end].to_vec(),
            cu_seqlens: vec![0, (end - start) as u32],
            rows,
            labels,
        };
        sum += apart.micro_batch(&alone, whole.n_supervised(), 0).unwrap();
    }
    assert!((loss / sum - 1.0).abs() < 1e-3, "loss {loss} together, {sum} apart");
    let host = |trainer: &Trainer| -> Vec<f32> {
        trainer.gradients().flat().to_device(&Device::Cpu).unwrap().to_vec1().unwrap()
    };
    // Products of other sizes may take another algorithm, whose sums round otherwise.
    let error = relative_error(&host(&together), &host(&apart));
    assert!(error < 1e-2, "gradients off by {error:.1e}");
}

#[test]
fn a_card_that_is_not_there_is_refused_with_what_to_do() {
    if step::device(TrainOn::Card).is_ok() {
        println!("skipped: there is a card");
        return;
    }
    let error = step::device(TrainOn::Card).unwrap_err();
    assert!(error.to_string().contains("graphics card"), "{error}");
}
