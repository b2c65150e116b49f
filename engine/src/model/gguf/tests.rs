//! Whole GGUF files of a few hundred bytes, opened as models.

use std::path::PathBuf;

use super::written::Written;
use crate::model::{Error, ModelSource};

const HIDDEN: usize = 8;
const HEADS: usize = 2;
const FFN: usize = 12;

/// Words of a byte-level alphabet of three letters with one merge, and two special tokens.
const TOKENS: [&str; 6] = ["<s>", "</s>", "a", "b", "Ġ", "ab"];

/// Metadata of a model with its tokenizer; `replaced` stands in for the text of the same key.
fn described_with(replaced: Option<(&str, &str)>) -> Written {
    let mut file = Written::default();
    for (key, value) in
        [("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")]
    {
        file.text(key, replaced.filter(|(name, _)| *name == key).map_or(value, |(_, value)| value));
    }
    file.u32("llama.block_count", 1)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.feed_forward_length", FFN as u32)
        .u32("llama.attention.head_count", HEADS as u32)
        .u32("llama.attention.head_count_kv", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .f32("llama.rope.freq_base", 100_000.0)
        .texts("tokenizer.ggml.tokens", TOKENS)
        // `</s>` is called normal, as old converters did; the metadata's eos_token_id makes it a control token.
        .i32s("tokenizer.ggml.token_type", &[3, 1, 1, 1, 1, 1])
        .texts("tokenizer.ggml.merges", ["a b"])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1)
        .bool("tokenizer.ggml.add_bos_token", true);
    file
}

fn described() -> Written {
    described_with(None)
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32 / 16.0).collect()
}

fn with_weights(mut file: Written, leave_out: &str) -> Written {
    let head_dim = HIDDEN / HEADS;
    for (name, rows, columns) in [
        ("token_embd.weight", TOKENS.len(), HIDDEN),
        ("output_norm.weight", 0, HIDDEN),
        ("blk.0.attn_norm.weight", 0, HIDDEN),
        ("blk.0.ffn_norm.weight", 0, HIDDEN),
        ("blk.0.attn_q.weight", HIDDEN, HIDDEN),
        ("blk.0.attn_k.weight", head_dim, HIDDEN),
        ("blk.0.attn_v.weight", head_dim, HIDDEN),
        ("blk.0.attn_output.weight", HIDDEN, HIDDEN),
        ("blk.0.ffn_gate.weight", FFN, HIDDEN),
        ("blk.0.ffn_up.weight", FFN, HIDDEN),
        ("blk.0.ffn_down.weight", HIDDEN, FFN),
    ] {
        let dims: Vec<u64> = [rows, columns].iter().filter(|&&d| d > 0).map(|&d| d as u64).collect();
        if name != leave_out {
            file.tensor_f32(name, &dims, &numbers(rows.max(1) * columns));
        }
    }
    file
}

fn on_disk(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("小さな モデル 🙂.gguf");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn refusal(file: &Written) -> Error {
    let (_folder, path) = on_disk(&file.bytes());
    match ModelSource::open(&path).and_then(|source| source.tokenizer()) {
        Ok(_) => panic!("accepted"),
        Err(error) => error,
    }
}

#[test]
fn a_whole_file_gives_shape_weights_and_config() {
    let (_folder, path) = on_disk(&with_weights(described(), "").bytes());
    let source = ModelSource::open(&path).unwrap();
    let shape = source.shape();
    assert_eq!((shape.hidden, shape.n_heads, shape.n_kv_heads, shape.head_dim), (8, 2, 1, 4));
    assert_eq!((shape.vocab_rows, shape.tied, shape.max_positions), (6, true, 64));
    assert_eq!(source.tensor_names().len(), 11);
    let (dims, values) = source.tensor_f32("model.layers.0.mlp.down_proj.weight").unwrap();
    assert_eq!((dims, values), (vec![HIDDEN, FFN], numbers(HIDDEN * FFN)));
    let config = source.hf_config();
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!((&config["tie_word_embeddings"], &config["eos_token_id"]), (&true.into(), &1.into()));
}

#[test]
fn rows_of_q_and_k_come_in_hugging_face_order() {
    let (_folder, path) = on_disk(&with_weights(described(), "").bytes());
    let source = ModelSource::open(&path).unwrap();
    let first_of_row = |name: &str| -> Vec<f32> {
        let (dims, values) = source.tensor_f32(name).unwrap();
        values.chunks(dims[1]).map(|row| row[0] * 16.0 / HIDDEN as f32).collect()
    };
    // Rows of a head in the file: 0, 2, 1, 3 of the Hugging Face matrix.
    assert_eq!(first_of_row("model.layers.0.self_attn.q_proj.weight"), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    assert_eq!(first_of_row("model.layers.0.self_attn.k_proj.weight"), [0.0, 2.0, 1.0, 3.0]);
    assert_eq!(first_of_row("model.layers.0.self_attn.v_proj.weight"), [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn the_tokenizer_is_built_from_metadata() {
    let (_folder, path) = on_disk(&with_weights(described(), "").bytes());
    let source = ModelSource::open(&path).unwrap();
    let bundle = source.tokenizer().unwrap();
    source.check_vocabulary(&bundle).unwrap();
    let ids = |text: &str| bundle.tokenizer.encode_fast(text, true).unwrap().get_ids().to_vec();
    assert_eq!(ids("ab a</s>b"), [0, 5, 4, 2, 1, 3]);
    assert_eq!((bundle.bos.clone(), bundle.eos.clone()), (Some((0, "<s>".into())), Some((1, "</s>".into()))));
    assert!(bundle.add_bos);
    assert_eq!(bundle.eos_ids, [1]);
    assert_eq!(bundle.tokenizer_config["model_max_length"], 64);
    assert_eq!(bundle.tokenizer.decode(&[0, 5, 4, 2, 1], true).unwrap(), "ab a");
    let again = tokenizers::Tokenizer::from_bytes(bundle.tokenizer_json.as_bytes()).unwrap();
    assert_eq!(again.encode_fast("ab a</s>b", true).unwrap().get_ids(), [0, 5, 4, 2, 1, 3]);
}

#[test]
fn what_cannot_be_trained_is_refused_by_name() {
    let changed = |change: &dyn Fn(&mut Written) -> &mut Written| {
        let mut file = described();
        change(&mut file);
        refusal(&with_weights(file, "")).to_string()
    };
    for (message, said) in [
        (changed(&|f| f.u32("llama.expert_count", 8)), "llama.expert_count = 8"),
        (changed(&|f| f.text("llama.rope.scaling.type", "yarn")), "yarn"),
        (changed(&|f| f.u32("llama.attention.sliding_window", 16)), "sliding_window"),
        (changed(&|f| f.u32("llama.attention.value_length", 16)), "value_length"),
        (changed(&|f| f.tensor_f32("blk.0.attn_q.bias", &[8], &[0.0; 8])), "attn_q.bias"),
        (changed(&|f| f.u32("split.count", 3)), "3 parts"),
        (changed(&|f| f.u32("general.alignment", 0)), "general.alignment"),
        (changed(&|f| f.u32("llama.block_count", 1)), "occurs twice"),
        (changed(&|f| f.tensor_f32("rope_freqs.weight", &[2], &[1.0, 5.0])), "rope_freqs.weight"),
    ] {
        assert!(message.contains(said), "{said}: {message}");
    }
    let other = refusal(&described_with(Some(("general.architecture", "qwen3"))));
    assert!(other.to_string().contains("q_norm"), "{other}");
    let missing = refusal(&with_weights(described(), "blk.0.ffn_up.weight"));
    assert!(missing.to_string().contains("model.layers.0.mlp.up_proj.weight"), "{missing}");
}

#[test]
fn damaged_tensors_are_refused_by_name() {
    let with = |dims: &[u64], kind: u32, offset: u64| {
        let mut file = described();
        file.entry("strange", dims, kind, offset);
        refusal(&with_weights(file, "")).to_string()
    };
    for (message, said) in [
        (with(&[4], 99, 0), "unknown type 99"),
        (with(&[4, 256], 16, 0), "IQ2_XXS"),
        (with(&[4, 8], 3, 0), "multiple of the block of 32"),
        (with(&[1 << 40, 1 << 40], 0, 0), "more elements"),
        (with(&[1 << 30, 1 << 15], 0, 0), "cut short"),
        (with(&[8], 0, u64::MAX - 31), "cut short"),
        (with(&[8], 0, 4), "multiple of the alignment"),
        (with(&[8], 0, 0), "overlap"),
    ] {
        assert!(message.contains(said), "{said}: {message}");
        assert!(message.contains("strange") || said == "overlap", "{message}");
    }
    let mut twice = with_weights(described(), "");
    twice.tensor_f32("output_norm.weight", &[8], &[0.0; 8]);
    assert!(refusal(&twice).to_string().contains("occurs twice"));
}

#[test]
fn every_truncation_and_hostile_lengths_are_refused() {
    let whole = with_weights(described(), "").bytes();
    for n in (0..whole.len()).step_by(7) {
        let (_folder, path) = on_disk(&whole[..n]);
        assert!(ModelSource::open(&path).is_err(), "{n} of {} bytes", whole.len());
    }
    // Every 8 bytes of the header overwritten with a huge length, in turn: an answer, never a panic or an allocation.
    for start in (0..whole.len() - 8).step_by(5) {
        for value in [u64::MAX, 1 << 40, 1 << 31] {
            let mut bytes = whole.clone();
            bytes[start..start + 8].copy_from_slice(&value.to_le_bytes());
            let (_folder, path) = on_disk(&bytes);
            let _ = ModelSource::open(&path).and_then(|source| source.tokenizer());
        }
    }
}

#[test]
fn tokenizers_that_would_give_other_ids_are_refused() {
    let with = |key: &str, value: &str| refusal(&with_weights(described_with(Some((key, value))), "")).to_string();
    let message = with("tokenizer.ggml.pre", "brand-new");
    assert!(message.contains("tokenizer.ggml.pre") && message.contains("brand-new"), "{message}");
    let message = with("tokenizer.ggml.model", "llama");
    assert!(message.contains("tokenizer.ggml.model") && message.contains("SentencePiece"), "{message}");
}
