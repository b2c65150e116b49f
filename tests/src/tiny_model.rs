//! Models for tests, Hugging Face folders of the Llama family with a byte-level tokenizer and a chat template: small enough
//! to train, with random weights, or of a real size to plan for, whose weights are a hole in a file.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::Path,
};

use rand::{Rng, SeedableRng};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Map, Value, json};

/// Width of the residual stream.
const HIDDEN: usize = 64;
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const VOCABULARY: usize = 256 + SPECIAL.len();

/// ChatML, without a default system message.
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                        '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                        {% endif %}";

/// How large a model is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Width of the residual stream, a multiple of 16.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Blocks.
    pub n_layers: usize,
}

impl Size {
    /// Query heads, twice as many as those of keys and values: 64 wide where that makes four or more, as a card has kernels for.
    fn n_heads(self) -> usize {
        (self.hidden / 64).max(4)
    }
}

/// As small as can be.
pub const TINY: Size = Size { hidden: HIDDEN, ffn: 160, n_layers: 2 };

/// Writes the folder of a [`TINY`] model; the same bytes for the same seed.
pub fn write(folder: &Path, seed: u64) -> std::io::Result<()> {
    write_sized(folder, seed, TINY)
}

/// Writes the folder of a model of this size; the same bytes for the same seed.
pub fn write_sized(folder: &Path, seed: u64, size: Size) -> std::io::Result<()> {
    write_but_weights(folder, size)?;
    write_weights(&folder.join("model.safetensors"), seed, size)
}

/// Writes the folder of a model of this size that can be looked at and planned for, not trained: its weights are a hole in
/// the file, which takes no room on the disk.
pub fn write_hollow(folder: &Path, size: Size) -> std::io::Result<()> {
    write_but_weights(folder, size)?;
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in weights(size) {
        let start = end;
        end += size_of::<f32>() * shape.iter().product::<usize>();
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = serde_json::to_vec(&header)?;
    let mut file = File::create(folder.join("model.safetensors"))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.set_len((8 + header.len() + end) as u64)
}

fn write_but_weights(folder: &Path, size: Size) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.n_layers,
        "num_attention_heads": size.n_heads(),
        "num_key_value_heads": size.n_heads() / 2,
        "head_dim": size.hidden / size.n_heads(),
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": true,
        "vocab_size": VOCABULARY,
        "bos_token_id": 256,
        "eos_token_id": 258,
        "pad_token_id": 256,
        "torch_dtype": "float32"
    });
    write_json(&folder.join("config.json"), &config)?;
    let generation = json!({ "bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256 });
    write_json(&folder.join("generation_config.json"), &generation)?;
    let tokenizer_config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 2048,
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

/// Every weight's name and shape, in the order of the model.
fn weights(size: Size) -> Vec<(String, Vec<usize>)> {
    let Size { hidden, ffn, n_layers } = size;
    let kv_dim = size.n_heads() / 2 * (hidden / size.n_heads());
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, hidden])];
    for layer in 0..n_layers {
        let shape_of = [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![kv_dim, hidden]),
            ("self_attn.v_proj", vec![kv_dim, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![ffn, hidden]),
            ("mlp.up_proj", vec![ffn, hidden]),
            ("mlp.down_proj", vec![hidden, ffn]),
        ];
        shapes.extend(shape_of.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    shapes.push(("model.norm.weight".into(), vec![hidden]));
    shapes
}

fn write_weights(path: &Path, seed: u64, size: Size) -> std::io::Result<()> {
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = weights(size)
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
