"""Goldens too large to commit: what transformers, peft and bitsandbytes compute on a card, for `tests/tests/card/peers.rs` on the
same card. `card.sh` runs everything; the table in `../../../engine/benches/parity-card.md` has what came out.

    card.py OUT model heads128                     a random Llama with grouped heads of 128, as a Hugging Face folder in bf16
    card.py OUT model smollm2 --gguf FILE          SmolLM2-135M, from the demo's GGUF
    card.py OUT weights MODEL                      quantised weights
    card.py OUT gradients MODEL [--gguf FILE]      gradients of several batches
    card.py OUT curve smollm2 --gguf FILE          200 steps on the demo's data, six runs at a time
    card.py OUT adamw8 smollm2 --gguf FILE         replays gradients that `curve` recorded, or records them

OUT/<model>/ is what both sides read. Nothing here depends on Hearth.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # peft would ask the hub about the base model

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent.parent.parent / "assets" / "demo"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = {"rank": 16, "alpha": 32.0}
SEEDS = [0, 1, 2]
DOCUMENTS_PER_STEP, WARMUP, PEAK_RATE, MAX_GRAD_NORM = 4, 6, 2e-4, 1.0
RECORDED_STEPS, RECORDED_LAYERS = 100, [0, 15, 29]
GRADIENT_BATCHES, GRADIENT_DOCUMENTS, GRADIENT_LENGTH = 20, 4, 256
ADAMW = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
SHAPES = {
    "heads128": {
        "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 4096, "tie_word_embeddings": False,
        "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
    },
    "smollm2": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True,
        "rope_theta": 100000.0, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip


# ---- The models that both sides read


def random_weights(shape: dict) -> dict[str, torch.Tensor]:
    """Larger than an initialisation, so that attention and SwiGLU leave their linear range."""
    generator = torch.Generator().manual_seed(7)
    hidden, heads, kv = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    ffn, head = shape["intermediate_size"], shape["head_dim"]
    matrix = lambda rows, cols, size: torch.randn(rows, cols, generator=generator) * size  # noqa: E731
    linear = lambda rows, cols: matrix(rows, cols, 1.2 / math.sqrt(cols))  # noqa: E731
    norm = lambda: 1.0 + 0.2 * torch.randn(hidden, generator=generator)  # noqa: E731
    weights = {
        "model.embed_tokens.weight": matrix(shape["vocab_size"], hidden, 0.3),
        "model.norm.weight": norm(),
        "lm_head.weight": linear(shape["vocab_size"], hidden),
    }
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        sizes = {
            "self_attn.q_proj": (heads * head, hidden), "self_attn.k_proj": (kv * head, hidden),
            "self_attn.v_proj": (kv * head, hidden), "self_attn.o_proj": (hidden, heads * head),
            "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn),
        }  # fmt: skip
        weights |= {f"{at}{name}.weight": linear(*size) for name, size in sizes.items()}
        weights |= {f"{at}{name}.weight": norm() for name in ("input_layernorm", "post_attention_layernorm")}
    return weights


def gguf_weights(path: str, shape: dict) -> dict[str, torch.Tensor]:
    """All tensors under their Hugging Face names, rows of q and k in Hugging Face order."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    heads = {"attn_q": shape["num_attention_heads"], "attn_k": shape["num_key_value_heads"]}
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    inner = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    weights = {}
    for tensor in GGUFReader(path).tensors:
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        *block, name = tensor.name.removesuffix(".weight").split(".")
        if name in heads:
            n_out, n_in = values.shape
            values = values.reshape(heads[name], n_out // heads[name] // 2, 2, n_in).transpose(1, 2).reshape(n_out, n_in)
        name = f"model.layers.{block[1]}.{inner[name]}" if block else outer[name]
        weights[f"{name}.weight"] = values
    return weights


def model(args) -> None:
    """`<model>/`: configuration and weights in bf16."""
    path, shape = args.out / args.model, SHAPES[args.model]
    path.mkdir(parents=True, exist_ok=True)
    weights = gguf_weights(args.gguf, shape) if args.gguf else random_weights(shape)
    weights = {key: value.to(torch.bfloat16).contiguous() for key, value in weights.items()}
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2, "rope_scaling": None, **shape,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


# ---- Adapted models


def linears(model) -> dict[str, torch.nn.Module]:
    return {n: m for n, m in model.named_modules() if n.rsplit(".", 1)[-1] in TARGETS}


def quantised(path: Path, device: str):
    """In bf16 with the blocks' linear layers in NF4, doubly quantised."""
    from transformers import BitsAndBytesConfig, LlamaForCausalLM

    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
    )
    return LlamaForCausalLM.from_pretrained(
        path, quantization_config=quantization, dtype=torch.bfloat16, device_map={"": device}, attn_implementation="sdpa"
    )


def dequantised_weights(model) -> dict[str, torch.Tensor]:
    from bitsandbytes.functional import dequantize_4bit

    return {name: dequantize_4bit(m.weight.data, m.weight.quant_state) for name, m in linears(model).items()}


def reference(path: Path, weights: dict[str, torch.Tensor], device: str):
    """In f32, with the dequantised weights of the other."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").to(device)
    for name, linear in linears(model).items():
        linear.weight.data = weights[name].to(torch.float32)
    return model


def adapted(model, seed: int, random_b: bool):
    """With LoRA in f32 on all linear layers: A as peft draws it, B zero or random. The same values for a seed whatever the base."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=LORA["rank"], lora_alpha=LORA["alpha"], lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(trained(model).items()):
        assert parameter.dtype == torch.float32
        rows, cols = parameter.shape
        bound = 1 / math.sqrt(cols) if rows == LORA["rank"] else 0.02 if random_b else 0.0
        values = (torch.rand(rows, cols, generator=generator) * 2 - 1) * bound
        parameter.data.copy_(values)
    return model


def trained(model) -> dict[str, torch.nn.Parameter]:
    """The adapter under the names of peft's files."""
    return {name.replace(".default", ""): p for name, p in model.named_parameters() if "lora_" in name}


def summed_loss(model, documents: list[dict], device: str) -> torch.Tensor:
    """Negative log-likelihood of the learned tokens of one batch, padded on the right."""
    longest = max(len(d["ids"]) for d in documents)
    pad = lambda values, fill: values + [fill] * (longest - len(values))  # noqa: E731
    ids = torch.tensor([pad(d["ids"], 0) for d in documents], device=device)
    learned = torch.tensor([pad(d["learned"], False) for d in documents], device=device)
    mask = torch.tensor([pad([1] * len(d["ids"]), 0) for d in documents], device=device)
    mask = None if mask.all() else mask
    in_f32 = next(p for n, p in model.named_parameters() if "embed_tokens" in n).dtype == torch.float32
    with torch.autocast(device, torch.bfloat16, enabled=not in_f32):
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    targets = torch.where(learned[:, 1:], ids[:, 1:], -100).flatten()
    return torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), targets, ignore_index=-100, reduction="sum")


def n_supervised(documents: list[dict]) -> int:
    return sum(sum(d["learned"][1:]) for d in documents)


# ---- Token ids


def chats(gguf: str, file: str) -> list[list[int]]:
    """The demo's conversations in the model's chat format."""
    from smollm2_tokens import Encoder

    encoder = Encoder(gguf)
    rows = [json.loads(line)["messages"] for line in (DEMO / file).read_text(encoding="utf-8").splitlines()]
    text = lambda turns: "".join(f"<|im_start|>{t['role']}\n{t['content']}<|im_end|>\n" for t in turns)  # noqa: E731
    return [encoder.encode(text(turns)) for turns in rows]


def learned(ids: list[int]) -> dict:
    return {"ids": ids, "learned": [True] * len(ids)}


# ---- What is written


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)


def weights(args) -> None:
    """`<model>.bnb.safetensors`."""
    model = quantised(args.out / args.model, args.device)
    checkpoint = {f"dequantized.{name}.weight": value for name, value in dequantised_weights(model).items()}
    for name, linear in linears(model).items():
        checkpoint |= {f"{name}.{key}": value.clone() for key, value in linear.state_dict().items()}
    write(args.out / f"{args.model}.bnb.safetensors", checkpoint)


def gradients(args) -> None:
    """`<model>.gradients.{json,safetensors}` and `<model>.gradients.<batch>.safetensors`."""
    path, device = args.out / args.model, args.device
    n_tokens = GRADIENT_BATCHES * GRADIENT_DOCUMENTS * GRADIENT_LENGTH
    if args.gguf:
        stream = [i for ids in chats(args.gguf, "train.jsonl") for i in ids]
        assert len(stream) >= n_tokens
    else:
        generator = torch.Generator().manual_seed(8)
        stream = torch.randint(SHAPES[args.model]["vocab_size"], (n_tokens,), generator=generator).tolist()
    # All of one length: nothing is padded.
    documents = [learned(stream[i : i + GRADIENT_LENGTH]) for i in range(0, n_tokens, GRADIENT_LENGTH)]
    groups = [documents[i : i + GRADIENT_DOCUMENTS] for i in range(0, len(documents), GRADIENT_DOCUMENTS)]

    base = quantised(path, device)
    exact = reference(path, dequantised_weights(base), device)
    models = {"bf16": adapted(base, 11, random_b=True), "f32": adapted(exact, 11, random_b=True)}
    write(args.out / f"{args.model}.gradients.safetensors", {f"adapter.{key}": p for key, p in trained(models["f32"]).items()})
    golden = {"lora": LORA, "batches": []}
    for i, batch in enumerate(groups):
        tensors, nll = {}, {}
        for kind, model in models.items():
            model.zero_grad()
            loss = summed_loss(model, batch, device)
            (loss / n_supervised(batch)).backward()
            nll[f"{kind}_nll"] = loss.item()
            tensors |= {f"{kind}.{key}": p.grad for key, p in trained(model).items()}
        write(args.out / f"{args.model}.gradients.{i}.safetensors", tensors)
        golden["batches"].append({"documents": batch, **nll})
        print(args.model, "gradients", {key: value / n_supervised(batch) for key, value in nll.items()}, flush=True)
    (args.out / f"{args.model}.gradients.json").write_text(json.dumps(golden))


def rate(step: int, n_steps: int) -> float:
    if step < WARMUP:
        return PEAK_RATE * (step + 1) / WARMUP
    return PEAK_RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (n_steps - WARMUP)))


def batches(n_documents: int, n_steps: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    order = []
    while len(order) < n_steps * DOCUMENTS_PER_STEP:
        order += torch.randperm(n_documents, generator=generator).tolist()
    return [order[i * DOCUMENTS_PER_STEP : (i + 1) * DOCUMENTS_PER_STEP] for i in range(n_steps)]


def curve_run(args) -> None:
    """A run or its first steps: OUT/run-<kind>-<seed>.json; seed 0 in bf16 also writes its adapter and records gradients."""
    import bitsandbytes as bnb

    path, device = args.out / args.model, args.device
    data = json.loads((args.out / f"{args.model}.data.json").read_text())
    documents, held_out = data["documents"], data["held_out"]
    model = quantised(path, device)
    if args.kind == "f32":
        model = reference(path, dequantised_weights(model), device)
    model = adapted(model, args.seed, random_b=False)
    parameters = trained(model)
    records = args.seed == 0 and args.kind == "bf16"
    if records:
        write(args.out / f"{args.model}.curve.safetensors", {f"adapter.{key}": p for key, p in parameters.items()})
    recorded = {key: [] for key in parameters if any(f".layers.{i}." in key for i in RECORDED_LAYERS)}
    initial = {key: parameters[key].detach().clone() for key in recorded}
    optimizer = bnb.optim.AdamW8bit(list(parameters.values()), lr=1.0, **ADAMW)
    losses, rates = [], []
    steps = batches(len(documents), args.steps)
    for step, indices in enumerate(steps[: args.until]):
        batch = [documents[i] for i in indices]
        loss = summed_loss(model, batch, device) / n_supervised(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), MAX_GRAD_NORM)
        if records and step < RECORDED_STEPS:
            for key, grads in recorded.items():
                grads.append(parameters[key].grad.flatten().clone())
        rates.append(rate(step, args.steps))
        optimizer.param_groups[0]["lr"] = rates[-1]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    with torch.no_grad():
        chunks = [held_out[i : i + 10] for i in range(0, len(held_out), 10)]
        nll = sum(summed_loss(model, chunk, device).item() for chunk in chunks)
    result = {"losses": losses, "held_out_loss": nll / n_supervised(held_out), "rates": rates, "steps": steps}
    (args.out / f"run-{args.kind}-{args.seed}.json").write_text(json.dumps(result))
    print(args.kind, args.seed, "loss", losses[0], "->", losses[-1], "held out", result["held_out_loss"], flush=True)
    if records:
        tensors = {"learning_rates": torch.tensor(rates[:RECORDED_STEPS], dtype=torch.float64)}
        for key, grads in recorded.items():
            tensors |= {f"grads.{key}": torch.stack(grads), f"initial.{key}": initial[key]}
        write(args.out / "recorded.safetensors", tensors)


def curve_data(args) -> dict[str, list[dict]]:
    """What the runs learn and are measured on, also written to OUT/<model>.data.json."""
    data = {"documents": [learned(ids) for ids in chats(args.gguf, "train.jsonl")]}
    data["held_out"] = [learned(ids) for ids in chats(args.gguf, "held-out.jsonl")]
    (args.out / f"{args.model}.data.json").write_text(json.dumps(data))
    return data


def curve(args) -> None:
    """`<model>.curve.{json,safetensors}`."""
    data = curve_data(args)
    runs = [(kind, seed) for kind in ("f32", "bf16") for seed in SEEDS]
    common = [sys.executable, __file__, str(args.out), "curve-run", args.model, "--device", args.device, "--steps", str(args.steps)]
    processes = [subprocess.Popen([*common, "--kind", kind, "--seed", str(seed)]) for kind, seed in runs]
    exits = [process.wait() for process in processes]
    if any(exits):
        raise SystemExit(f"of the runs {runs} some failed: {exits}")
    results = {run: json.loads((args.out / f"run-{run[0]}-{run[1]}.json").read_text()) for run in runs}
    first = results[runs[0]]
    golden = {
        "lora": LORA, **data,
        "steps": [{"documents": batch, "learning_rate": rate} for batch, rate in zip(first["steps"], first["rates"])],
        **{kind: [results[kind, seed] for seed in SEEDS] for kind in ("f32", "bf16")},
    }  # fmt: skip
    (args.out / f"{args.model}.curve.json").write_text(json.dumps(golden))


def adamw8(args) -> None:
    """`adamw8.safetensors`. All matrices have 8-bit moments here; by default bitsandbytes keeps those below 4096 elements in f32."""
    import bitsandbytes as bnb

    if not (args.out / "recorded.safetensors").exists():
        curve_data(args)
        args.kind, args.seed, args.until = "bf16", 0, RECORDED_STEPS
        curve_run(args)
    recorded = load_file(args.out / "recorded.safetensors", device=args.device)
    rates = recorded["learning_rates"].tolist()
    tensors = dict(recorded)
    for key in [key.removeprefix("grads.") for key in recorded if key.startswith("grads.")]:
        parameter = torch.nn.Parameter(recorded[f"initial.{key}"].clone())
        optimizer = bnb.optim.AdamW8bit([parameter], lr=1.0, min_8bit_size=1, **ADAMW)
        for grad, rate in zip(recorded[f"grads.{key}"], rates):
            optimizer.param_groups[0]["lr"] = rate
            parameter.grad = grad.reshape(parameter.shape).clone()
            optimizer.step()
        state = optimizer.state[parameter]
        assert state["state1"].dtype == torch.uint8
        tensors |= {f"final.{key}": parameter, f"m_codes.{key}": state["state1"], f"v_codes.{key}": state["state2"]}
    write(args.out / "adamw8.safetensors", tensors)
    print("adamw8", len(rates), "steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("what", choices=["model", "weights", "gradients", "curve", "curve-run", "adamw8"])
    parser.add_argument("model", choices=list(SHAPES))
    parser.add_argument("--gguf")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--until", type=int, help="stop after so many of the steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=["bf16", "f32"], default="bf16")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    todo = {
        "model": model, "weights": weights, "gradients": gradients, "curve": curve, "curve-run": curve_run, "adamw8": adamw8,
    }  # fmt: skip
    todo[args.what](args)


if __name__ == "__main__":
    main()
