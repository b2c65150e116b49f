use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use candle_core::Device;

use super::*;
use crate::config::{BaseFormat, LoraConfig, Target};
use crate::model::ModelSource;
use crate::model::weights::Precision;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens")
}

/// A tiny model with an adapter that changes what it says.
fn tuned(name: &str, base: BaseFormat) -> (Model, Adapter) {
    let source = ModelSource::open(&goldens().join(name)).unwrap();
    let lora = LoraConfig { rank: 3, alpha: 6.0, ..LoraConfig::default() };
    let model = Model::load(&source, &lora, Precision::f32(base), &Device::Cpu).unwrap();
    let mut adapter = Adapter::new(&model.shape, &lora, 5, &Device::Cpu).unwrap();
    for (i, (layer, target)) in adapter.names().collect::<Vec<_>>().into_iter().enumerate() {
        let (a, mut b) = (adapter.a(layer, target).unwrap(), adapter.b(layer, target).unwrap());
        for (j, x) in b.iter_mut().enumerate() {
            *x = ((i * 31 + j * 17) % 13) as f32 / 20.0 - 0.3;
        }
        adapter.set(layer, target, &a, &b).unwrap();
    }
    (model, adapter)
}

fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 7 + seed * 31 + i * i * seed) % 320).collect()
}

fn go_on(_: usize, _: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The answer token by token, every logit computed anew over the whole text: no cache, no batch.
fn plain_greedy(generator: &mut Generator, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    for _ in 0..n {
        let logits = generator.logits(&ids).unwrap();
        ids.push(largest(&logits[logits.len() - 320..]).unwrap().0);
    }
    ids.split_off(prompt.len())
}

#[test]
fn many_prompts_at_once_are_answered_as_each_alone_without_a_cache() {
    for (name, base) in [
        ("tiny-llama3", BaseFormat::F32),
        ("tiny-llama3", BaseFormat::Nf4),
        ("tiny-tied", BaseFormat::F32),
        ("tiny-tied", BaseFormat::Nf4),
    ] {
        let (model, adapter) = tuned(name, base);
        // Lengths of 1 and more, one longer than the others together, and two that begin alike.
        let mut prompts: Vec<Vec<u32>> = [5, 1, 90, 17, 2].iter().zip(1..).map(|(&n, seed)| prompt(n, seed)).collect();
        prompts.push([&prompts[3][..9], &[4, 5, 6]].concat());
        let mut answers = Vec::new();
        for adapter in [Some(&adapter), None] {
            let mut generator = Generator::new(&model, adapter).unwrap();
            let together = generator.generate(&prompts, &GenerateOptions::greedy(12, &[]), &mut go_on).unwrap();
            for (prompt, answer) in prompts.iter().zip(&together) {
                assert_eq!(*answer, plain_greedy(&mut generator, prompt, 12), "{name} {base:?}");
            }
            answers.push(together);
        }
        assert_ne!(answers[0], answers[1], "the adapter changes nothing");
    }
}

#[test]
fn a_base_alone_answers_the_same_whatever_it_was_loaded_for() {
    let (model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    let source = ModelSource::open(&goldens().join("tiny-tied")).unwrap();
    let bare = Model::load(&source, &LoraConfig::none(), Precision::f32(BaseFormat::F32), &Device::Cpu).unwrap();
    let ids = prompt(20, 3);
    let _with_adapter_in_the_padding = Generator::new(&model, Some(&adapter)).unwrap();
    let padded = Generator::new(&model, None).unwrap().logits(&ids).unwrap();
    assert_eq!(padded, Generator::new(&bare, None).unwrap().logits(&ids).unwrap());
}

#[test]
fn prompts_that_begin_alike_are_answered_as_alone() {
    let (model, adapter) = tuned("tiny-llama3", BaseFormat::F32);
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let beginning = prompt(40, 9);
    let mut prompts: Vec<Vec<u32>> = (1..6).map(|i| [&beginning[..], &prompt(i, i as u32)].concat()).collect();
    // One is the beginning itself, two are equal.
    prompts.push(beginning.clone());
    prompts.push(prompts[2].clone());
    let together = generator.generate(&prompts, &GenerateOptions::greedy(8, &[]), &mut go_on).unwrap();
    for (prompt, answer) in prompts.iter().zip(&together) {
        assert_eq!(*answer, plain_greedy(&mut generator, prompt, 8));
    }
}

#[test]
fn a_conversation_that_goes_on_is_answered_as_if_read_anew() {
    let (model, adapter) = tuned("tiny-llama3", BaseFormat::F32);
    let mut kept = Generator::new(&model, Some(&adapter)).unwrap();
    let mut ids = prompt(11, 2);
    for turn in 0..4 {
        let answer = kept.generate(&[ids.clone()], &GenerateOptions::greedy(7, &[]), &mut go_on).unwrap().remove(0);
        if turn > 0 {
            assert!(kept.kept.len() > 11, "the beginning was not kept");
        }
        let mut fresh = Generator::new(&model, Some(&adapter)).unwrap();
        assert_eq!(answer, plain_greedy(&mut fresh, &ids, 7), "turn {turn}");
        ids.extend(answer);
        ids.extend(prompt(3, turn + 1));
    }
    // A conversation that begins alike and turns away, and one that is only the beginning.
    for ids in [[&ids[..15], &[7, 7]].concat(), ids[..6].to_vec()] {
        let answer = kept.generate(&[ids.clone()], &GenerateOptions::greedy(7, &[]), &mut go_on).unwrap().remove(0);
        assert_eq!(answer, plain_greedy(&mut Generator::new(&model, Some(&adapter)).unwrap(), &ids, 7));
    }
}

#[test]
fn more_prompts_than_the_cache_holds_are_answered_in_groups() {
    let (model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    let prompts: Vec<Vec<u32>> = (1..8).map(|i| prompt(3 + i, i as u32)).collect();
    let options = GenerateOptions::greedy(6, &[]);
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let wanted = generator.generate(&prompts, &options, &mut go_on).unwrap();
    // Room for about two prompts; then for less than one, which is answered all the same.
    for cache_bytes in [2 * 14 * 2 * 2 * 16 * 4, 1] {
        let mut small = Generator::new(&model, Some(&adapter)).unwrap();
        small.cache_bytes = cache_bytes;
        assert_eq!(small.generate(&prompts, &options, &mut go_on).unwrap(), wanted);
    }
}

#[test]
fn prompts_longer_than_one_pass_are_read_in_pieces() {
    let (mut model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    model.shape.max_positions = 4096;
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let prompts = [prompt(ROWS + 30, 4), prompt(3, 5), prompt(2 * ROWS, 6)];
    let together = generator.generate(&prompts, &GenerateOptions::greedy(4, &[]), &mut go_on).unwrap();
    for (prompt, answer) in prompts.iter().zip(&together) {
        assert_eq!(*answer, plain_greedy(&mut generator, prompt, 4));
    }
}

#[test]
fn logits_agree_with_transformers_for_a_base() {
    // The golden logits have an adapter; the reader of PEFT folders has the test with it.
    let source = ModelSource::open(&goldens().join("tiny-tied")).unwrap();
    let model = Model::load(&source, &LoraConfig::none(), Precision::f32(BaseFormat::F32), &Device::Cpu).unwrap();
    let mut generator = Generator::new(&model, None).unwrap();
    let text = std::fs::read_to_string(goldens().join("tiny-tied.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut nll = 0.0;
    for document in golden["documents"].as_array().unwrap() {
        let ids: Vec<u32> = serde_json::from_value(document["ids"].clone()).unwrap();
        let learned: Vec<bool> = serde_json::from_value(document["learned"].clone()).unwrap();
        let logits = generator.logits(&ids).unwrap();
        for (i, row) in logits.chunks_exact(320).enumerate().take(ids.len() - 1).filter(|(i, _)| learned[i + 1]) {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            nll += sum.ln() - f64::from(row[ids[i + 1] as usize]);
        }
    }
    let wanted = golden["base_nll"].as_f64().unwrap();
    assert!((nll - wanted).abs() < 1e-4 * wanted, "{nll}, transformers {wanted}");
}

#[test]
fn stop_tokens_end_an_answer_and_are_not_part_of_it() {
    let (model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let prompts = [prompt(6, 1), prompt(9, 2)];
    let free = generator.generate(&prompts, &GenerateOptions::greedy(20, &[]), &mut go_on).unwrap();
    let stop = free[0][5];
    let at = |answer: &[u32]| answer.iter().position(|&t| t == stop).unwrap_or(answer.len());
    let options = GenerateOptions::greedy(20, &[stop]);
    let stopped = generator.generate(&prompts, &options, &mut go_on).unwrap();
    for (stopped, free) in stopped.iter().zip(&free) {
        assert_eq!(stopped, &free[..at(free)]);
    }
    assert!(stopped[0].len() <= 5);
}

#[test]
fn the_callback_sees_every_token_and_can_end_one_answer() {
    let (model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let prompts = [prompt(6, 1), prompt(9, 2)];
    let options = GenerateOptions::greedy(10, &[]);
    let free = generator.generate(&prompts, &options, &mut go_on).unwrap();
    let mut seen = vec![Vec::new(); 2];
    let mut on_token = |sequence: usize, token| {
        seen[sequence].push(token);
        if sequence == 0 && seen[0].len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let answers = generator.generate(&prompts, &options, &mut on_token).unwrap();
    assert_eq!(answers, seen);
    assert_eq!(answers, [free[0][..3].to_vec(), free[1].clone()]);
}

#[test]
fn a_sampled_answer_depends_on_the_seed_and_not_on_its_neighbours() {
    let (model, adapter) = tuned("tiny-llama3", BaseFormat::F32);
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let options = |seed| GenerateOptions { temperature: 1.5, top_p: 0.95, seed, ..GenerateOptions::greedy(15, &[]) };
    let prompts = [prompt(6, 1), prompt(30, 2)];
    let both = generator.generate(&prompts, &options(1), &mut go_on).unwrap();
    assert_eq!(both, generator.generate(&prompts, &options(1), &mut go_on).unwrap());
    assert_ne!(both, generator.generate(&prompts, &options(2), &mut go_on).unwrap());
    assert_eq!(both[..1], generator.generate(&prompts[..1], &options(1), &mut go_on).unwrap());
}

#[test]
fn an_answer_ends_with_the_last_position() {
    let (mut model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    model.shape.max_positions = 12;
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let prompts = [prompt(10, 1), prompt(12, 2), prompt(2, 3)];
    let answers = generator.generate(&prompts, &GenerateOptions::greedy(5, &[]), &mut go_on).unwrap();
    assert_eq!(answers.iter().map(Vec::len).collect::<Vec<_>>(), [2, 0, 5]);
}

#[test]
fn what_cannot_be_answered_is_refused_with_its_values() {
    let (model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let options = GenerateOptions::greedy(5, &[]);
    let mut message = |prompts: &[Vec<u32>], options: &GenerateOptions| {
        generator.generate(prompts, options, &mut go_on).unwrap_err().to_string()
    };
    assert_eq!(message(&[vec![1], vec![]], &options), "prompt 2 is empty");
    assert_eq!(message(&[prompt(129, 1)], &options), "prompt 1 has 129 tokens; the model has 128 positions");
    assert!(message(&[vec![320]], &options).contains("token 320"));
    let options = GenerateOptions { top_p: 0.0, ..options };
    assert_eq!(message(&[vec![1]], &options), "top_p is 0; it is above 0 and at most 1");
    let other = LoraConfig { rank: 3, targets: vec![Target::Q], ..LoraConfig::default() };
    let other = Adapter::new(&model.shape, &other, 0, &Device::Cpu).unwrap();
    assert!(matches!(Generator::new(&model, Some(&other)), Err(Error::AdapterMismatch { .. })));
}

#[test]
fn a_model_that_gives_no_numbers_is_named_as_such() {
    let (model, mut adapter) = tuned("tiny-tied", BaseFormat::F32);
    let (a, b) = (adapter.a(1, Target::Down).unwrap(), adapter.b(1, Target::Down).unwrap());
    adapter.set(1, Target::Down, &a, &vec![f32::NAN; b.len()]).unwrap();
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    let error = generator.generate(&[vec![1, 2]], &GenerateOptions::greedy(5, &[]), &mut go_on).unwrap_err();
    assert!(matches!(error, Error::NotFinite { prompt: 0, n_generated: 0 }), "{error}");
}

#[test]
fn the_bytes_reported_are_those_of_the_buffers() {
    let (model, adapter) = tuned("tiny-tied", BaseFormat::F32);
    let mut generator = Generator::new(&model, Some(&adapter)).unwrap();
    assert_eq!(generator.bytes(), 0);
    generator.logits(&prompt(10, 1)).unwrap();
    // Ten rows of x 32, norm 32 + 9, qkv 64, attention 32 + 3, gate and up 160, activation 80 + 3 and three integers;
    // ten rows at the head of 2 x 32, 320 logits and an index; 256 rows of cache in two layers; rotations of 256
    // positions.
    let expected = 10 * (32 + 41 + 64 + 35 + 160 + 83 + 3) + 10 * (64 + 320 + 1) + 2 * 256 * 32 + 256 * 8;
    assert_eq!(generator.bytes(), 4 * expected as u64);
}

#[test]
fn answers_take_the_memory_that_a_plan_foresees() {
    for (name, base, n_prompts, n, cache_bytes) in [
        ("tiny-llama3", BaseFormat::F32, 1, 1, 1 << 20),
        ("tiny-llama3", BaseFormat::Nf4, 3, 40, 1 << 20),
        ("tiny-tied", BaseFormat::F32, 6, 110, 1 << 30),
        // One at a time: the cache holds less than a prompt.
        ("tiny-tied", BaseFormat::Nf4, 4, 100, 1 << 10),
    ] {
        let (model, adapter) = tuned(name, base);
        let slot = model.slot(&crate::ops::memory::Held::new()).unwrap();
        let of_slot = slot.bytes();
        let mut generator = Generator::beside_training(&model, &adapter, Some(slot), cache_bytes).unwrap();
        let prompts: Vec<Vec<u32>> = (1..=n_prompts as u32).map(|seed| prompt(n, seed)).collect();
        generator.generate(&prompts, &GenerateOptions::greedy(12, &[]), &mut go_on).unwrap();
        let asked =
            Asked { n_prompts, prompt_tokens: n_prompts * n, longest_tokens: n, max_new_tokens: 12, cache_bytes };
        let planned = most_bytes(&model.shape, adapter.lora(), ComputeDtype::F32, &asked);
        let held = generator.bytes() - of_slot;
        // Beyond what is held: the logits as they are read; and where not all prompts are answered at once, shorter ones could have
        // been.
        let read = (n_prompts * model.shape.vocab_rows) as u64 * 4;
        let others = if cache_bytes < 1 << 20 { held / 4 } else { 0 };
        assert!((held..=held + read + others).contains(&planned), "{name} {n}: {planned} for {held} and {read}");
    }
}
