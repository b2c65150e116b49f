//! The model of the demo, SmolLM2-135M-Instruct as GGUF Q4_1, against references that are not ours.
//!
//! Where the file is absent (see `demo_model`) the tests say so and pass.

use hearth_engine::model::WeightDtype;
use hearth_tests::demo_model::demo_model;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    text: String,
    ids: Vec<u32>,
}

#[test]
fn token_ids_equal_those_of_an_independent_encoder() {
    let golden = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/goldens/smollm2_tokens.json")).unwrap();
    let golden: Vec<Golden> = serde_json::from_str(&golden).unwrap();
    assert!(golden.len() > 300);
    let Some(source) = demo_model() else { return };
    let bundle = source.tokenizer().unwrap();
    source.check_vocabulary(&bundle).unwrap();
    for Golden { text, ids } in &golden {
        for add_special_tokens in [false, true] {
            let got = bundle.tokenizer.encode_fast(text.as_str(), add_special_tokens).unwrap();
            assert_eq!(got.get_ids(), ids, "{text:?}");
        }
    }
}

#[test]
fn shape_and_special_tokens_are_those_of_the_original() {
    let Some(source) = demo_model() else { return };
    let shape = source.shape();
    assert_eq!((shape.hidden, shape.n_layers, shape.ffn, shape.vocab_rows), (576, 30, 1536, 49_152));
    assert_eq!((shape.n_heads, shape.n_kv_heads, shape.head_dim), (9, 3, 64));
    assert_eq!((shape.rope.theta, shape.rms_eps, shape.tied, shape.max_positions), (100_000.0, 1e-5, true, 8192));
    assert_eq!(source.dtype(), WeightDtype::Quantized("Q4_1".into()));
    let bundle = source.tokenizer().unwrap();
    assert_eq!(bundle.bos, Some((1, "<|im_start|>".into())));
    assert_eq!(bundle.eos, Some((2, "<|im_end|>".into())));
    assert_eq!((bundle.add_bos, &bundle.eos_ids[..]), (false, &[2][..]));
    assert!(bundle.chat_template.unwrap().contains("You are a helpful AI assistant named SmolLM"));
    assert_eq!(source.hf_config()["rope_theta"], 100_000.0);
}

/// Sums and corners of tensors as gguf-py dequantises them and transformers' loader un-permutes them
/// (`goldens/make/smollm2_weights.py`).
#[test]
fn dequantised_weights_equal_those_of_gguf_py() {
    #[derive(Deserialize)]
    struct Weights {
        name: String,
        shape: Vec<usize>,
        sum: f64,
        sum_of_squares: f64,
        /// (flat index, value)
        values: Vec<(usize, f32)>,
    }
    let golden = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/goldens/smollm2_weights.json")).unwrap();
    let golden: Vec<Weights> = serde_json::from_str(&golden).unwrap();
    let Some(source) = demo_model() else { return };
    for wanted in &golden {
        let (shape, values) = source.tensor_f32(&wanted.name).unwrap();
        assert_eq!(shape, wanted.shape, "{}", wanted.name);
        for &(i, value) in &wanted.values {
            assert_eq!(values[i], value, "{} at {i}", wanted.name);
        }
        let sum: f64 = values.iter().map(|&v| f64::from(v)).sum();
        let sum_of_squares: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
        assert!((sum - wanted.sum).abs() <= 1e-9 * wanted.sum.abs().max(1.0), "{}: {sum}", wanted.name);
        assert!((sum_of_squares / wanted.sum_of_squares - 1.0).abs() < 1e-9, "{}", wanted.name);
    }
}
