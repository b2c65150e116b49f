//! GGUF names of tensors as Hugging Face names, and the order of rows that goes with them.

/// The Hugging Face name of a Llama tensor; `None` for tensors that no Hugging Face checkpoint has.
pub(in crate::model) fn hugging_face(name: &str) -> Option<String> {
    let outer = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(outer) = outer {
        return Some(outer.into());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let (part, kind) = rest.rsplit_once('.')?;
    if kind != "weight" && kind != "bias" {
        return None;
    }
    let module = match part {
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{module}.{kind}"))
}

/// True for the tensors whose rows llama.cpp's converter interleaves.
pub(in crate::model) fn is_permuted(hugging_face_name: &str) -> bool {
    hugging_face_name.ends_with("self_attn.q_proj.weight") || hugging_face_name.ends_with("self_attn.k_proj.weight")
}

/// Undoes the interleaving of rotary pairs. Inside each head of `d` rows, the file holds rows
/// `0, d/2, 1, d/2 + 1, …` of the Hugging Face matrix: pairs that rotate together lie side by side for llama.cpp, half
/// a head apart for transformers.
pub(in crate::model) fn unpermute(values: &[f32], n_heads: usize, n_columns: usize) -> Vec<f32> {
    let head_dim = values.len() / n_columns.max(1) / n_heads.max(1);
    let half = head_dim / 2;
    let mut out = Vec::with_capacity(values.len());
    for head in 0..n_heads {
        for i in 0..2 {
            for j in 0..half {
                let row = head * head_dim + 2 * j + i;
                out.extend_from_slice(&values[row * n_columns..(row + 1) * n_columns]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_block_are_mapped() {
        for (gguf, hf) in [
            ("token_embd.weight", Some("model.embed_tokens.weight")),
            ("output.weight", Some("lm_head.weight")),
            ("blk.0.attn_norm.weight", Some("model.layers.0.input_layernorm.weight")),
            ("blk.12.ffn_norm.weight", Some("model.layers.12.post_attention_layernorm.weight")),
            ("blk.12.ffn_down.weight", Some("model.layers.12.mlp.down_proj.weight")),
            ("blk.1.attn_q.bias", Some("model.layers.1.self_attn.q_proj.bias")),
            ("rope_freqs.weight", None),
            ("blk.x.attn_q.weight", None),
            ("blk.1.attn_q", None),
        ] {
            assert_eq!(hugging_face(gguf).as_deref(), hf, "{gguf}");
        }
    }

    #[test]
    fn unpermute_undoes_what_the_converter_does() {
        let (n_heads, head_dim, n_columns) = (3, 8, 5);
        let original: Vec<f32> = (0..n_heads * head_dim * n_columns).map(|i| i as f32).collect();
        // convert_hf_to_gguf: reshape(heads, 2, d/2, columns).swapaxes(1, 2)
        let mut permuted = Vec::new();
        for head in 0..n_heads {
            for j in 0..head_dim / 2 {
                for i in 0..2 {
                    let row = head * head_dim + i * head_dim / 2 + j;
                    permuted.extend_from_slice(&original[row * n_columns..][..n_columns]);
                }
            }
        }
        assert_ne!(permuted, original);
        assert_eq!(unpermute(&permuted, n_heads, n_columns), original);
    }
}
