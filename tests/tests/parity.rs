//! The step against transformers + peft + torch in f32 (`goldens/`, made by `goldens/make/llama.py`), and against itself: recompute
//! modes, packing, accumulation, dropout.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use hearth_engine::config::*;
use hearth_engine::generate::Generator;
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::step::Trainer;
use hearth_tests::goldens::{Document, batch_of, fill, key, relative_error, values};
use hearth_tests::step::settings;
use serde_json::Value;

const MODELS: [&str; 2] = ["tiny-llama3", "tiny-tied"];

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

/// What the goldens of one model say.
struct Golden {
    name: &'static str,
    json: Value,
    tensors: HashMap<String, Tensor>,
}

impl Golden {
    fn load(name: &'static str) -> Self {
        let text = std::fs::read_to_string(goldens().join(format!("{name}.json"))).unwrap();
        let file = goldens().join(format!("{name}.safetensors"));
        Golden {
            name,
            json: serde_json::from_str(&text).unwrap(),
            tensors: candle_core::safetensors::load(file, &Device::Cpu).unwrap(),
        }
    }

    fn source(&self) -> ModelSource {
        ModelSource::open(&goldens().join(self.name)).unwrap()
    }

    fn tensor(&self, key: &str) -> Vec<f32> {
        values(&self.tensors, key)
    }

    fn trainer(&self, settings: &Settings) -> Trainer {
        let source = self.source();
        let model = Model::load(&source, &settings.lora, Precision::f32(settings.base), &Device::Cpu).unwrap();
        let file = goldens().join(format!("{}-adapter/adapter_model.safetensors", self.name));
        let saved = candle_core::safetensors::load(file, &Device::Cpu).unwrap();
        let mut adapter = Adapter::new(source.shape(), &settings.lora, 0, &Device::Cpu).unwrap();
        fill(&mut adapter, &saved, "");
        Trainer::new(model, adapter, settings).unwrap()
    }

    fn documents(&self, path: &str) -> Vec<Document> {
        let list = self.json.pointer(path).unwrap().as_array().unwrap();
        list.iter().map(|d| serde_json::from_value(d.clone()).unwrap()).collect()
    }

    fn number(&self, path: &str) -> f64 {
        self.json.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number {path}"))
    }
}

fn gradients(trainer: &Trainer) -> Vec<f32> {
    trainer.gradients().flat().to_vec1().unwrap()
}

#[test]
fn logits_equal_those_of_transformers_with_peft() {
    for name in MODELS {
        let golden = Golden::load(name);
        let trainer = golden.trainer(&settings());
        let mut generator = Generator::new(trainer.model(), Some(trainer.adapter())).unwrap();
        let mut got = Vec::new();
        for document in golden.documents("/documents") {
            got.extend(generator.logits(&document.ids).unwrap());
        }
        let error = relative_error(&got, &golden.tensor("logits"));
        println!("{name}: logits {error:.2e}");
        assert!(error < 1e-5, "{name}: {error}");
    }
}

#[test]
fn loss_and_every_gradient_equal_those_of_transformers_with_peft() {
    for name in MODELS {
        let golden = Golden::load(name);
        let batch = batch_of(&golden.documents("/documents"));
        let n = golden.number("/n_supervised") as usize;
        assert_eq!(batch.n_supervised(), n);
        for (base, nll, prefix, limit) in
            [(BaseFormat::F32, "/nll", "grads.", 1e-4), (BaseFormat::Nf4, "/nf4_nll", "nf4.grads.", 1e-4)]
        {
            let mut trainer = golden.trainer(&Settings { base, ..settings() });
            let loss = trainer.micro_batch(&batch, n, 0).unwrap();
            let want = golden.number(nll);
            assert!((loss / want - 1.0).abs() < 1e-5, "{name} {base:?}: loss {loss}, want {want}");
            let got = trainer.gradients();
            let mut worst = 0f64;
            for (layer, target) in got.names().collect::<Vec<_>>() {
                for (part, values) in [("A", got.a(layer, target)), ("B", got.b(layer, target))] {
                    let want = golden.tensor(&format!("{prefix}{}", key(layer, target, part)));
                    let error = relative_error(&values.unwrap(), &want);
                    assert!(error <= limit, "{name} {base:?} layer {layer} {} {part}: {error}", target.module());
                    worst = worst.max(error);
                }
            }
            println!("{name} {base:?}: loss {:.1e}, worst gradient {worst:.2e}", (loss / want - 1.0).abs());
        }
    }
}

#[test]
fn twenty_optimizer_steps_end_where_torch_ends() {
    for name in MODELS {
        let golden = Golden::load(name);
        let documents = golden.documents("/training/documents");
        let number = |key: &str| golden.number(&format!("/training/{key}"));
        let mut trainer = golden.trainer(&Settings {
            beta1: number("beta1"),
            beta2: number("beta2"),
            epsilon: number("epsilon"),
            weight_decay: number("weight_decay"),
            max_grad_norm: number("max_grad_norm"),
            ..settings()
        });
        let steps = golden.json.pointer("/training/steps").unwrap().as_array().unwrap();
        assert_eq!(steps.len(), 20);
        let (mut worst_loss, mut worst_norm) = (0f64, 0f64);
        for (i, step) in steps.iter().enumerate() {
            let n = step["n_supervised"].as_u64().unwrap() as usize;
            let mut loss = 0.0;
            for indices in step["micro_batches"].as_array().unwrap() {
                let picked = indices.as_array().unwrap().iter().map(|i| &documents[i.as_u64().unwrap() as usize]);
                loss += trainer.micro_batch(&batch_of(picked), n, 0).unwrap();
            }
            let stats = trainer.optimizer_step(step["learning_rate"].as_f64().unwrap()).unwrap();
            let relative = |got: f64, want: &Value| (got / want.as_f64().unwrap() - 1.0).abs();
            worst_loss = worst_loss.max(relative(loss / n as f64, &step["loss"]));
            worst_norm = worst_norm.max(relative(stats.grad_norm, &step["grad_norm"]));
            assert!(worst_loss < 1e-4 && worst_norm < 1e-3, "{name} step {}: {worst_loss} {worst_norm}", i + 1);
        }
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for (layer, target) in trainer.adapter().names().collect::<Vec<_>>() {
            for (part, values) in [("A", trainer.adapter().a(layer, target)), ("B", trainer.adapter().b(layer, target))]
            {
                got.extend(values.unwrap());
                want.extend(golden.tensor(&format!("final.{}", key(layer, target, part))));
            }
        }
        let error = relative_error(&got, &want);
        println!("{name}: after 20 steps: loss {worst_loss:.1e}, norm {worst_norm:.1e}, parameters {error:.2e}");
        assert!(error < 1e-4, "{name}: {error}");
    }
}

/// Loss and gradients of one pass over all documents.
fn one_pass(golden: &Golden, settings: &Settings) -> (f64, Vec<f32>) {
    let batch = batch_of(&golden.documents("/documents"));
    let mut trainer = golden.trainer(settings);
    let loss = trainer.micro_batch(&batch, batch.n_supervised(), 11).unwrap();
    (loss, gradients(&trainer))
}

/// A loss and the adapter after each of two updates.
fn two_updates(golden: &Golden, settings: &Settings) -> Vec<(f64, Vec<f32>)> {
    let batch = batch_of(&golden.documents("/documents"));
    let mut trainer = golden.trainer(settings);
    let update = |i| {
        let loss = trainer.micro_batch(&batch, batch.n_supervised(), i).unwrap();
        trainer.optimizer_step(1e-2).unwrap();
        (loss, trainer.adapter().flat().to_vec1().unwrap())
    };
    (0..2).map(update).collect()
}

#[test]
fn recompute_modes_are_bit_identical_with_dropout_and_quantised_base_too() {
    for name in MODELS {
        let golden = Golden::load(name);
        for (base, dropout) in [(BaseFormat::F32, 0.0), (BaseFormat::F32, 0.3), (BaseFormat::Nf4, 0.3)] {
            let with = |recompute| {
                let lora = LoraConfig { dropout, ..settings().lora };
                one_pass(&golden, &Settings { base, lora, recompute, ..settings() })
            };
            let kept = with(Recompute::N);
            assert!(kept.1.iter().all(|g| g.is_finite()) && kept.1.iter().any(|&g| g != 0.0));
            assert_eq!(kept, with(Recompute::C1), "{name} {base:?} dropout {dropout}: C1");
            assert_eq!(kept, with(Recompute::C0), "{name} {base:?} dropout {dropout}: C0");
        }
    }
}

#[test]
fn inputs_and_weights_that_wait_in_system_memory_give_the_same_bits() {
    for name in MODELS {
        let golden = Golden::load(name);
        let n_layers = golden.source().shape().n_layers;
        for dropout in [0.0, 0.3] {
            let with = |recompute, offload_inputs, n_layers_streamed| {
                let lora = LoraConfig { dropout, ..settings().lora };
                let base = BaseFormat::Nf4;
                let settings = Settings { base, lora, recompute, offload_inputs, n_layers_streamed, ..settings() };
                one_pass(&golden, &settings)
            };
            let resident = with(Recompute::N, false, 0);
            for (recompute, offload, n_streamed) in [
                (Recompute::N, true, 0),
                (Recompute::C0, true, 1),
                (Recompute::C1, false, n_layers),
                (Recompute::C0, true, n_layers),
            ] {
                let what = format!("{name} dropout {dropout}: {recompute:?}, {offload}, {n_streamed}");
                assert_eq!(resident, with(recompute, offload, n_streamed), "{what}");
            }
        }
    }
}

/// Through two updates, after which the adapter in the padding of the kept weights is another one.
#[test]
fn weights_kept_dequantised_give_the_same_bits() {
    for name in MODELS {
        let golden = Golden::load(name);
        let n_layers = golden.source().shape().n_layers;
        for dropout in [0.0, 0.3] {
            let with = |n_layers_cached, n_layers_streamed| {
                let lora = LoraConfig { dropout, ..settings().lora };
                let base = BaseFormat::Nf4;
                let settings = Settings { base, lora, n_layers_cached, n_layers_streamed, ..settings() };
                two_updates(&golden, &settings)
            };
            let dequantised_each_time = with(0, 0);
            for (n_cached, n_streamed) in [(1, 0), (n_layers, 0), (n_layers + 1, 0), (1, n_layers)] {
                let what = format!("{name} dropout {dropout}: {n_cached} kept, {n_streamed} streamed");
                assert_eq!(dequantised_each_time, with(n_cached, n_streamed), "{what}");
            }
        }
    }
}

/// Rows don't depend on one another, so only the sums of the adapter's gradients are added up in another order.
#[test]
fn an_mlp_in_parts_trains_as_in_one_within_rounding() {
    for name in MODELS {
        let golden = Golden::load(name);
        for (dropout, recompute) in [(0.0, Recompute::N), (0.3, Recompute::C0), (0.3, Recompute::C1)] {
            let with = |mlp_rows| {
                let lora = LoraConfig { dropout, ..settings().lora };
                one_pass(&golden, &Settings { lora, recompute, mlp_rows, ..settings() })
            };
            let (loss, gradients) = with(None);
            for rows in [1, 7, 64, 1000] {
                let (other_loss, other) = with(Some(rows));
                assert!((loss / other_loss - 1.0).abs() < 1e-6, "{name} {rows}: loss {other_loss} for {loss}");
                let error = relative_error(&other, &gradients);
                assert!(error < 2e-6, "{name} {recompute:?} in parts of {rows}: gradients off by {error:.1e}");
            }
        }
    }
}

/// With a fixed mask the loss is a smooth function of the adapter, so its gradient can be checked end to end.
#[test]
fn gradients_under_dropout_agree_with_finite_differences_of_the_loss() {
    let golden = Golden::load("tiny-tied");
    let lora = LoraConfig { dropout: 0.4, ..settings().lora };
    let settings = Settings { lora, ..settings() };
    let batch = batch_of(&golden.documents("/documents"));
    let n = batch.n_supervised();
    let mut trainer = golden.trainer(&settings);
    trainer.micro_batch(&batch, n, 5).unwrap();
    let gradient = gradients(&trainer);
    // Along a few random directions, since the loss is a sum in f32 and single elements drown in its rounding.
    for seed in 0..4u64 {
        use rand::{Rng, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let direction: Vec<f32> = (0..gradient.len()).map(|_| rng.random_range(-1.0..1.0)).collect();
        let want: f64 = direction.iter().zip(&gradient).map(|(d, g)| *d as f64 * *g as f64).sum();
        let moved = |by: f64| {
            let mut trainer = golden.trainer(&settings);
            let direction = Tensor::new(&direction[..], &Device::Cpu).unwrap();
            let mut adapter = trainer.adapter().clone();
            let flat = (adapter.flat() + (direction * by).unwrap()).unwrap();
            adapter.replace(flat).unwrap();
            trainer.load_adapter(adapter).unwrap();
            trainer.micro_batch(&batch, n, 5).unwrap() / n as f64
        };
        let h = 2e-3;
        let central = |h: f64| (moved(h) - moved(-h)) / (2.0 * h);
        let got = (4.0 * central(h) - central(2.0 * h)) / 3.0;
        println!("direction {seed}: gradient {want:.6}, finite difference {got:.6}");
        assert!((got - want).abs() < 5e-3 * want.abs().max(0.1), "direction {seed}: {want} against {got}");
    }
}

#[test]
fn packed_documents_train_as_if_each_were_alone() {
    for name in MODELS {
        let golden = Golden::load(name);
        let documents = golden.documents("/documents");
        let n = batch_of(&documents).n_supervised();
        let (packed_loss, packed) = one_pass(&golden, &settings());
        let mut trainer = golden.trainer(&settings());
        let alone_loss: f64 = documents.iter().map(|d| trainer.micro_batch(&batch_of([d]), n, 0).unwrap()).sum();
        let error = relative_error(&packed, &gradients(&trainer));
        println!("{name}: packed against alone: {error:.2e}");
        // The same products, summed in another order.
        assert!((packed_loss / alone_loss - 1.0).abs() < 1e-6 && error < 1e-5, "{name}: {error}");
    }
}

#[test]
fn one_by_eight_accumulates_to_eight_by_one_with_uneven_lengths() {
    let golden = Golden::load("tiny-llama3");
    let documents = golden.documents("/training/documents");
    let eight: Vec<Document> = documents.iter().cycle().take(8).cloned().collect();
    let lengths: Vec<usize> = eight.iter().map(|d| d.ids.len()).collect();
    assert!(lengths.windows(2).any(|w| w[0] != w[1]), "{lengths:?} are even");
    let n = batch_of(&eight).n_supervised();
    let settings = Settings { micro_batch: 8, ..settings() };

    let mut at_once = golden.trainer(&settings);
    at_once.micro_batch(&batch_of(&eight), n, 0).unwrap();
    let mut one_by_one = golden.trainer(&settings);
    for document in &eight {
        one_by_one.micro_batch(&batch_of([document]), n, 0).unwrap();
    }
    let error = relative_error(&gradients(&one_by_one), &gradients(&at_once));
    println!("1 x 8 against 8 x 1: {error:.2e}");
    assert!(error < 1e-5, "{error}");
    at_once.optimizer_step(1e-3).unwrap();
    one_by_one.optimizer_step(1e-3).unwrap();
    let flat = |t: &Trainer| t.adapter().flat().to_vec1::<f32>().unwrap();
    let error = relative_error(&flat(&one_by_one), &flat(&at_once));
    assert!(error < 1e-5, "after a step: {error}");
}

#[test]
fn every_trainable_tensor_gets_a_finite_gradient_that_is_not_zero() {
    for targets in [Target::ALL.to_vec(), vec![Target::Q, Target::V], vec![Target::Up]] {
        let golden = Golden::load("tiny-llama3");
        let lora = LoraConfig { targets, ..settings().lora };
        let settings = Settings { lora: lora.clone(), ..settings() };
        let source = golden.source();
        let model = Model::load(&source, &lora, Precision::f32(BaseFormat::F32), &Device::Cpu).unwrap();
        let mut adapter = Adapter::new(source.shape(), &lora, 1, &Device::Cpu).unwrap();
        for (layer, target) in adapter.names().collect::<Vec<_>>() {
            let (a, mut b) = (adapter.a(layer, target).unwrap(), adapter.b(layer, target).unwrap());
            b.iter_mut().enumerate().for_each(|(i, b)| *b = ((i % 7) as f32 - 3.0) * 0.01);
            adapter.set(layer, target, &a, &b).unwrap();
        }
        let mut trainer = Trainer::new(model, adapter, &settings).unwrap();
        let batch = batch_of(&golden.documents("/documents"));
        trainer.micro_batch(&batch, batch.n_supervised(), 0).unwrap();
        let gradients = trainer.gradients();
        let names: Vec<_> = gradients.names().collect();
        assert_eq!(names.len(), lora.targets.len() * source.shape().n_layers);
        for (layer, target) in names {
            for values in [gradients.a(layer, target), gradients.b(layer, target)] {
                let values = values.unwrap();
                assert!(values.iter().all(|g| g.is_finite()), "layer {layer} {}", target.module());
                assert!(values.iter().any(|&g| g != 0.0), "layer {layer} {}", target.module());
            }
        }
    }
}

#[test]
fn two_runs_of_twenty_steps_are_bit_identical() {
    let golden = Golden::load("tiny-llama3");
    let lora = LoraConfig { dropout: 0.1, ..settings().lora };
    let settings = Settings { lora, optimizer: OptimizerKind::AdamW8, recompute: Recompute::C1, ..settings() };
    let run = || {
        let batch = batch_of(&golden.documents("/documents"));
        let mut trainer = golden.trainer(&settings);
        for step in 0..20 {
            trainer.micro_batch(&batch, batch.n_supervised(), step).unwrap();
            trainer.optimizer_step(1e-3).unwrap();
        }
        trainer.adapter().flat().to_vec1::<f32>().unwrap()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_gradient_that_is_not_finite_updates_nothing_and_names_its_layer() {
    let golden = Golden::load("tiny-tied");
    let mut trainer = golden.trainer(&settings());
    let mut adapter = trainer.adapter().clone();
    adapter.replace(adapter.flat().copy().unwrap()).unwrap();
    let poisoned = adapter.names().next().unwrap();
    let (a, mut b) = (adapter.a(poisoned.0, poisoned.1).unwrap(), adapter.b(poisoned.0, poisoned.1).unwrap());
    b[0] = f32::INFINITY;
    adapter.set(poisoned.0, poisoned.1, &a, &b).unwrap();
    trainer.load_adapter(adapter).unwrap();
    let before: Vec<f32> = trainer.adapter().flat().to_vec1().unwrap();
    let batch = batch_of(&golden.documents("/documents"));
    trainer.micro_batch(&batch, batch.n_supervised(), 0).unwrap();
    let error = trainer.optimizer_step(1e-3).unwrap_err();
    assert!(error.to_string().contains("is not finite"), "{error}");
    let after: Vec<f32> = trainer.adapter().flat().to_vec1().unwrap();
    assert!(before.iter().zip(&after).all(|(b, a)| b.to_bits() == a.to_bits()));
}
