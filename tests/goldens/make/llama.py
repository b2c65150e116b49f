"""Training goldens: two tiny random Llamas with a LoRA adapter, computed by transformers + peft + torch in f32 with eager
attention. Writes ../tiny-llama3 and ../tiny-tied (Hugging Face folders), their -adapter folders (peft's format), and
../tiny-llama3.safetensors, ../tiny-llama3.json and the same for tiny-tied. ../README.md has the layout.
"""

import json
import math
import os
import re
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # peft would ask the hub about the base model

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from bnb import nf4

OUT = Path(__file__).resolve().parent.parent
VOCAB = 320
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
N_STEPS, ACCUMULATION, WARMUP = 20, 2, 3
ADAMW = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}
PEAK_RATE = 5e-3
# Norms lie between 2 and 6: the first model clips some steps, the second all.
MAX_GRAD_NORM = {"tiny-llama3": 3.0, "tiny-tied": 1.0}

MODELS = {
    # Rope rescaled, own head, heads wider than hidden / n_heads, weights in bf16.
    "tiny-llama3": (
        dict(
            hidden_size=48, intermediate_size=112, head_dim=16, tie_word_embeddings=False, rope_theta=500000.0,
            max_position_embeddings=256, rms_norm_eps=1e-5,
            rope_scaling={
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
        torch.bfloat16,
    ),
    # Plain rope, embedding as head, weights in f32.
    "tiny-tied": (
        dict(
            hidden_size=32, intermediate_size=80, head_dim=8, tie_word_embeddings=True, rope_theta=10000.0,
            max_position_embeddings=128, rms_norm_eps=1e-6,
        ),
        torch.float32,
    ),
}  # fmt: skip


def tokenizer() -> Tokenizer:
    """Byte-level BPE with all 256 bytes, the special tokens and merges up to VOCAB."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = "the cat sat on the mat and the rain in spain stays mainly in the plain while other words are here to be merged"
    tokenizer.train_from_iterator([text, "user assistant system answer question what where when"] * 2, trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def build(name: str, seed: int) -> LlamaForCausalLM:
    settings, dtype = MODELS[name]
    config = LlamaConfig(
        vocab_size=VOCAB, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, bos_token_id=0,
        eos_token_id=2, pad_token_id=3, attn_implementation="eager", **settings,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for key, parameter in model.named_parameters():
        # Larger than an initialisation, so that attention and SwiGLU leave their linear range.
        if "norm" in key:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.3 if "embed" in key else 1.2 / math.sqrt(parameter.shape[1]))
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": SPECIAL[0],
                "eos_token": SPECIAL[2],
                "pad_token": SPECIAL[3],
                "add_bos_token": False,
                "clean_up_tokenization_spaces": False,
                "model_max_length": settings["max_position_embeddings"],
                "chat_template": CHAT_TEMPLATE,
            },
            indent=2,
        )
        + "\n"
    )
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    assert all(p.dtype == torch.float32 for p in model.parameters())
    return model


def documents(generator: torch.Generator, lengths: list[int]) -> list[dict]:
    """Random ids; a prompt that is not learned, then an answer that is. One document has a second unlearned stretch."""
    result = []
    for i, length in enumerate(lengths):
        ids = torch.randint(len(SPECIAL), VOCAB, (length,), generator=generator).tolist()
        learned = [j >= length // 3 for j in range(length)]
        if i == 0 and length > 6:
            learned[length // 2] = False
        result.append({"ids": ids, "learned": learned})
    return result


def n_supervised(batch: list[dict]) -> int:
    return sum(sum(document["learned"][1:]) for document in batch)


def forward(model, batch: list[dict]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of all tokens, document after document, and the summed negative log-likelihood."""
    all_logits, nll = [], 0.0
    for document in batch:
        ids = torch.tensor(document["ids"])
        learned = torch.tensor(document["learned"])
        logits = model(input_ids=ids[None]).logits[0]
        targets = torch.where(learned[1:], ids[1:], -100)
        nll = nll + torch.nn.functional.cross_entropy(logits[:-1], targets, ignore_index=-100, reduction="sum")
        all_logits.append(logits)
    return torch.cat(all_logits), nll


def lora_tensors(model, get) -> dict[str, torch.Tensor]:
    """`get(parameter)` of every adapter matrix under the names of peft's files."""
    return {
        name.replace(".default", ""): get(parameter).detach().clone().contiguous()
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }


def gradients(model, batch: list[dict]) -> tuple[torch.Tensor, float, dict[str, torch.Tensor]]:
    model.zero_grad()
    logits, nll = forward(model, batch)
    (nll / n_supervised(batch)).backward()
    return logits, nll.item(), lora_tensors(model, lambda p: p.grad)


def train(model, generator: torch.Generator, max_grad_norm: float) -> tuple[list[dict], list[dict]]:
    """The pool of documents and what happened in every step."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    betas = (ADAMW["beta1"], ADAMW["beta2"])
    optimizer = torch.optim.AdamW(
        parameters, lr=1.0, betas=betas, eps=ADAMW["epsilon"], weight_decay=ADAMW["weight_decay"]
    )
    # Learnable: every step takes its documents from the same few.
    pool = documents(generator, [5, 9, 14, 7, 11, 3])
    steps = []
    for step in range(1, N_STEPS + 1):
        if step <= WARMUP:
            rate = PEAK_RATE * step / WARMUP
        else:
            rate = PEAK_RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (N_STEPS - WARMUP + 1)))
        # The micro-batches hold different numbers of supervised tokens.
        micro_batches = [[(step * 2) % 6], [(step * 2 + 1) % 6, (step * 5 + 3) % 6]]
        assert len(micro_batches) == ACCUMULATION
        total = sum(n_supervised([pool[i] for i in micro_batch]) for micro_batch in micro_batches)
        optimizer.zero_grad()
        nll_sum = 0.0
        for micro_batch in micro_batches:
            _, nll = forward(model, [pool[i] for i in micro_batch])
            (nll / total).backward()
            nll_sum += nll.item()
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm).item()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        steps.append(
            {
                "micro_batches": micro_batches,
                "n_supervised": total,
                "learning_rate": rate,
                "loss": nll_sum / total,
                "grad_norm": norm,
            }
        )
    return pool, steps


def make(name: str, seed: int) -> None:
    base = build(name, seed)
    generator = torch.Generator().manual_seed(seed + 100)
    batch = documents(generator, [11, 4, 17, 1, 8])
    tensors = {}
    with torch.no_grad():
        _, base_nll = forward(base, batch)

    torch.manual_seed(seed + 200)
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    initial = {key: value.clone() for key, value in get_peft_model_state_dict(model).items()}
    adapter = OUT / f"{name}-adapter"
    shutil.rmtree(adapter, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = name
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)

    tensors["logits"], nll, grads = gradients(model, batch)
    tensors |= {f"grads.{key}": value for key, value in grads.items()}

    # The same with the seven linear layers of every block in NF4.
    linears = [m.base_layer for n, m in model.named_modules() if n.rsplit(".", 1)[-1] in TARGETS]
    weights = [linear.weight.data.clone() for linear in linears]
    for linear in linears:
        linear.weight.data = nf4(linear.weight.data.flatten())["dequantized"].reshape(linear.weight.shape)
    _, nf4_nll, grads = gradients(model, batch)
    tensors |= {f"nf4.grads.{key}": value for key, value in grads.items()}
    for linear, weight in zip(linears, weights):
        linear.weight.data = weight

    pool, steps = train(model, generator, MAX_GRAD_NORM[name])
    final = lora_tensors(model, lambda p: p)
    assert final.keys() == initial.keys() == grads.keys()
    tensors |= {f"final.{key}": value for key, value in final.items()}

    tensors = {key: value.detach().contiguous() for key, value in tensors.items()}
    save_file(tensors, OUT / f"{name}.safetensors", metadata={"torch": torch.__version__})
    golden = {
        "documents": batch,
        "n_supervised": n_supervised(batch),
        "base_nll": base_nll.item(),
        "nll": nll,
        "nf4_nll": nf4_nll,
        "training": {
            **ADAMW,
            "max_grad_norm": MAX_GRAD_NORM[name],
            "documents": pool,
            "steps": steps,
        },
    }
    text = json.dumps(golden, indent=1)
    (OUT / f"{name}.json").write_text(compact(text) + "\n")
    print(name, "loss", nll / n_supervised(batch), "->", [round(s["loss"], 3) for s in steps])
    print("  norms", [round(s["grad_norm"], 2) for s in steps])


def compact(text: str) -> str:
    """Puts lists of numbers and booleans on one line each."""
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)


if __name__ == "__main__":
    make("tiny-llama3", 3)
    make("tiny-tied", 4)
