//! Models for tests, Hugging Face folders of the Llama family with a byte-level tokenizer and a chat template: one small
//! enough to train, with random weights, and one of a real size to plan for, whose weights are a hole in a file.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::Path,
};

use rand::{Rng, SeedableRng};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Map, Value, json};

/// Width of the tiny model's residual stream.
pub const HIDDEN: usize = 64;
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// What the sizes of all weights follow from; the embedding is the output head, too.
struct Size {
    hidden: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    ffn: usize,
    vocabulary: usize,
    max_positions: usize,
}

const TINY: Size = Size {
    hidden: HIDDEN,
    n_layers: 2,
    n_heads: 4,
    n_kv_heads: 2,
    ffn: 160,
    vocabulary: 256 + SPECIAL.len(),
    max_positions: 2048,
};

/// That of Llama 3.2 1B.
const REAL: Size = Size {
    hidden: 2048,
    n_layers: 16,
    n_heads: 32,
    n_kv_heads: 8,
    ffn: 8192,
    vocabulary: 128_256,
    max_positions: 8192,
};

impl Size {
    fn head_dim(&self) -> usize {
        self.hidden / self.n_heads
    }

    /// Every weight's name and shape, in the order of the model.
    fn weights(&self) -> Vec<(String, Vec<usize>)> {
        let &Size { hidden, ffn, .. } = self;
        let (q, kv) = (self.n_heads * self.head_dim(), self.n_kv_heads * self.head_dim());
        let mut weights = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocabulary, hidden])];
        for layer in 0..self.n_layers {
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
            weights.extend(of_layer.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
        }
        weights.push(("model.norm.weight".into(), vec![hidden]));
        weights
    }
}

/// ChatML, without a default system message.
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                        '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                        {% endif %}";

/// Writes the folder of the tiny model; the same bytes for the same seed.
pub fn write(folder: &Path, seed: u64) -> std::io::Result<()> {
    write_but_weights(folder, &TINY, "float32")?;
    write_weights(&folder.join("model.safetensors"), seed)
}

/// Writes the folder of a model of a real size that can be looked at and planned for, not trained: its weights are a
/// hole in the file, which takes no room on the disk.
pub fn write_hollow(folder: &Path) -> std::io::Result<()> {
    write_but_weights(folder, &REAL, "float16")?;
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in REAL.weights() {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name, json!({ "dtype": "F16", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = serde_json::to_vec(&header)?;
    let mut file = File::create(folder.join("model.safetensors"))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.set_len((8 + header.len() + end) as u64)
}

fn write_but_weights(folder: &Path, size: &Size, dtype: &str) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.n_layers,
        "num_attention_heads": size.n_heads,
        "num_key_value_heads": size.n_kv_heads,
        "head_dim": size.head_dim(),
        "max_position_embeddings": size.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "vocab_size": size.vocabulary,
        "bos_token_id": 256,
        "eos_token_id": 258,
        "pad_token_id": 256,
        "torch_dtype": dtype
    });
    write_json(&folder.join("config.json"), &config)?;
    let generation = json!({ "bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256 });
    write_json(&folder.join("generation_config.json"), &generation)?;
    let tokenizer_config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": size.max_positions,
        "clean_up_tokenization_spaces": false,
        "add_bos_token": false,
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "chat_template": TEMPLATE
    });
    write_json(&folder.join("tokenizer_config.json"), &tokenizer_config)?;
    write_json(&folder.join("tokenizer.json"), &tokenizer())
}

fn write_json(path: &Path, value: &Value) -> std::io::Result<()> {
    fs::write(path, serde_json::to_vec_pretty(value)?)
}

/// Byte-level without merges: ids 0 to 255 are the bytes of UTF-8.
fn tokenizer() -> Value {
    let vocabulary: Map<String, Value> = (0..=255u8).map(|byte| (letter_of(byte).to_string(), json!(byte))).collect();
    let special = SPECIAL.iter().enumerate().map(|(i, content)| {
        json!({
            "id": 256 + i, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        })
    });
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": special.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": level,
        "post_processor": null,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocabulary,
            "merges": []
        }
    })
}

/// GPT-2's printable letter for a byte: itself where it is printable, else the next free letter from U+0100.
fn letter_of(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_printable(byte) {
        return char::from(byte);
    }
    let n_before = (0..byte).filter(|&earlier| !is_printable(earlier)).count();
    char::from_u32(0x100 + n_before as u32).expect("a letter of the Latin Extended blocks")
}

fn write_weights(path: &Path, seed: u64) -> std::io::Result<()> {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = TINY
        .weights()
        .into_iter()
        .map(|(name, shape)| {
            let is_norm = shape.len() == 1;
            let fan_in = *shape.last().expect("a shape has a dimension") as f32;
            let width = (3.0 / fan_in).sqrt();
            let n: usize = shape.iter().product();
            let values = (0..n).map(|_| if is_norm { 1.0 } else { random.random_range(-width..width) });
            let bytes = values.flat_map(f32::to_le_bytes).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many bytes as the shape says");
        (name.as_str(), view)
    });
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize_to_file(views, Some(metadata), path).map_err(std::io::Error::other)
}

/// Writes `n` chat examples as JSON lines, of uneven lengths, all different.
pub fn write_examples(path: &Path, n: usize) {
    let lines: Vec<String> = (0..n)
        .map(|i| {
            let question = format!("What is {i} plus {}?{}", i + 1, " Think.".repeat(i % 4));
            let answer = format!("It is {}.", 2 * i + 1);
            json!({ "messages": [
                { "role": "user", "content": question },
                { "role": "assistant", "content": answer },
            ]})
            .to_string()
        })
        .collect();
    fs::write(path, lines.join("\n") + "\n").expect("the examples can be written");
}
