"""Loads an export with transformers (and peft) and compares it with the model that the export was made from.

    python check_export.py merged  EXPORT BASE ADAPTER     merged folder against base + adapter in peft
    python check_export.py adapter EXPORT BASE ADAPTER     adapter folder against another adapter folder on the same base

BASE is a Hugging Face folder or a .gguf file, ADAPTER a PEFT folder with the trained weights. Everything is computed in f32.
Prints the versions, the warnings of the loaders, and for some prompts the largest difference of a logit, the mean KL
divergence, the share of equal most probable tokens and whether the greedy texts are equal. Exit status 1 where a logit is
further off than the rounding of the export's format explains (see engine/src/export/proof.rs), or where a folder does
not load without complaint.
"""

import json
import logging
import os
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import peft
import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "The capital of France is",
    "Write one sentence about the sea.",
    "the cat sat on the mat and",
    "1 + 1 =",
]
N_NEW_TOKENS = 24
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}

complaints: list[str] = []


class Collect(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            complaints.append(record.getMessage())


def load(path: str, **options):
    """A model in f32 and the dtype its files have."""
    path = Path(path)
    if path.is_file():
        options |= {"gguf_file": path.name}
        path = path.parent
    else:
        dtype = AutoModelForCausalLM.from_pretrained(path, dtype="auto").dtype
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **options)
    return model.eval(), torch.float32 if "gguf_file" in options else dtype


def inputs(tokenizer) -> list[list[int]]:
    if tokenizer.chat_template is None:
        return [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    render = tokenizer.apply_chat_template
    return [list(render(m, add_generation_prompt=True, return_dict=True)["input_ids"]) for m in messages]


@torch.no_grad()
def main(kind: str, export: str, base: str, adapter: str) -> int:
    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    handler = Collect()
    for name in ["transformers", "peft"]:
        logging.getLogger(name).addHandler(handler)
    warnings.showwarning = lambda message, *rest: complaints.append(str(message))

    trained_base, _ = load(base)
    complaints.clear()  # whatever the base's own files give rise to is not the export's
    tokenizer = AutoTokenizer.from_pretrained(export)
    if kind == "merged":
        exported, dtype = load(export)
    else:
        second_base, _ = load(base)
        complaints.clear()
        exported, dtype = PeftModel.from_pretrained(second_base, export).eval(), torch.float32
    seen = list(dict.fromkeys(complaints))
    trained = PeftModel.from_pretrained(trained_base, adapter).eval()
    for complaint in seen:
        print(f"complaint: {complaint}")

    config = trained.config
    k = max(config.intermediate_size, config.hidden_size)
    failed = bool(seen)
    for prompt, ids in zip(PROMPTS, inputs(tokenizer)):
        ids = torch.tensor([ids])
        one, two = trained(ids).logits[0].double(), exported(ids).logits[0].double()
        difference = (one - two).abs().max().item()
        p, q = one.log_softmax(-1), two.log_softmax(-1)
        kl = (p.exp() * (p - q)).sum(-1).mean().item()
        top1 = (one.argmax(-1) == two.argmax(-1)).double().mean().item()
        scale = one.std(-1, unbiased=False).mean().item()
        sigma = 8 * scale * (UNIT_ROUNDOFF[dtype] / 3**0.5 + 2.0**-24 * k**0.5)
        options = dict(max_new_tokens=N_NEW_TOKENS, do_sample=False, attention_mask=torch.ones_like(ids))
        texts = [tokenizer.decode(m.generate(ids, **options)[0, ids.shape[1] :]) for m in (trained, exported)]
        print(
            json.dumps(
                {
                    "prompt": prompt,
                    "dtype": str(dtype).removeprefix("torch."),
                    "max_abs_difference": difference,
                    "limit": 16 * sigma,
                    "mean_kl": kl,
                    "top1_equal": top1,
                    "greedy_equal": texts[0] == texts[1],
                    "text": texts[1],
                },
                ensure_ascii=False,
            )
        )
        failed |= difference > 16 * sigma
    return int(failed)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("merged", "adapter"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
