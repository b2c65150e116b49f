"""A few tensors of SmolLM2-135M-Instruct as gguf-py dequantises them, in Hugging Face order.

    pip install gguf==0.19.0 numpy
    python smollm2_weights.py SmolLM2-135M-Instruct.Q4_1.gguf ../smollm2_weights.json

Rows of q and k are put back as transformers 4.57.1 does it (`LlamaTensorProcessor._reverse_permute_weights`).
"""

import json
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

HEADS = {"q": 9, "k": 3}
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
    "blk.17.attn_k.weight": "model.layers.17.self_attn.k_proj.weight",
    "blk.17.attn_v.weight": "model.layers.17.self_attn.v_proj.weight",
    "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
    "blk.5.attn_norm.weight": "model.layers.5.input_layernorm.weight",
}


def reverse_permute(weights, n_heads):
    dim = weights.shape[0] // n_heads // 2
    w = weights.reshape(n_heads, dim, 2, *weights.shape[1:])
    return w.swapaxes(2, 1).reshape(weights.shape)


golden = []
rng = np.random.default_rng(1)
for tensor in GGUFReader(sys.argv[1]).tensors:
    if tensor.name not in NAMES:
        continue
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    for letter, n_heads in HEADS.items():
        if f"attn_{letter}." in tensor.name:
            values = reverse_permute(values, n_heads)
    flat = values.reshape(-1)
    places = [0, 1, flat.size - 1, *sorted(rng.integers(0, flat.size, 12).tolist())]
    golden.append({
        "name": NAMES[tensor.name],
        "shape": list(values.shape),
        "sum": float(flat.sum(dtype=np.float64)),
        "sum_of_squares": float(np.square(flat, dtype=np.float64).sum()),
        "values": [[i, float(flat[i])] for i in places],
    })
assert len(golden) == len(NAMES)
with open(sys.argv[2], "w") as file:
    json.dump(golden, file, indent=1)
    file.write("\n")
