"""Training speed and memory of torch + transformers + peft on the processor, for the shape of SmolLM2-135M.

Random weights (speed doesn't depend on them), f32, LoRA on all seven linear layers of every block, AdamW, every token
supervised. Prints one JSON line. See README.md.
"""

import argparse
import json
import os
import statistics
import threading
import time

# Before torch starts its threads: all processors this process may use, no more.
N_THREADS = len(os.sched_getaffinity(0))
os.environ.setdefault("OMP_NUM_THREADS", str(N_THREADS))

import peft
import torch
import transformers

SHAPE = dict(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)  # fmt: skip
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def rss_anon_bytes() -> int:
    """Private memory that is really there, without file-backed pages such as libraries."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


class PeakMemory(threading.Thread):
    """Samples the process's private memory every 5 ms until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_bytes = self.peak_bytes = rss_anon_bytes()
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.005):
            self.peak_bytes = max(self.peak_bytes, rss_anon_bytes())

    def stop(self) -> None:
        self.peak_bytes = max(self.peak_bytes, rss_anon_bytes())
        self.stopped.set()
        self.join()


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between the sorted values."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[round(q * 100) - 1]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sequence")
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences of a step")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--recompute", choices=["N", "C0"], default="N", help="C0: gradient checkpointing of every block")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--threads", type=int, default=N_THREADS)
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (needs a C++ compiler)")
    return parser.parse_args()


def build(args: argparse.Namespace):
    config = transformers.LlamaConfig(**SHAPE, attn_implementation=args.attention, use_cache=False)
    model = transformers.LlamaForCausalLM(config).float()
    lora = peft.LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(model, lora)
    if args.recompute == "C0":
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return torch.compile(model) if args.compile else model


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    memory = PeakMemory()
    memory.start()

    model = build(args)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-4, weight_decay=0.0, fused=True)
    weights_bytes = sum(p.numel() * p.element_size() for p in model.parameters())

    tokens_per_s, losses = [], []
    for step in range(args.warmup + args.steps):
        ids = torch.randint(0, SHAPE["vocab_size"], (args.micro_batch, args.length))
        start = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - start
        losses.append(loss.item())
        if step >= args.warmup:
            tokens_per_s.append(ids.numel() / seconds)
    memory.stop()
    assert all(loss == loss for loss in losses), "the loss is not a number"

    print(
        json.dumps(
            {
                "engine": "torch+transformers+peft" + ("+compile" if args.compile else ""),
                "length": args.length,
                "micro_batch": args.micro_batch,
                "rank": args.rank,
                "recompute": args.recompute,
                "attention": args.attention,
                "threads": args.threads,
                "n_steps": args.steps,
                "tokens_per_s": {f"p{round(q * 100)}": round(quantile(tokens_per_s, q), 2) for q in (0.2, 0.5, 0.8)},
                "peak_growth_bytes": memory.peak_bytes - memory.start_bytes,
                "weights_bytes": weights_bytes,
                "last_loss": round(losses[-1], 4),
                "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft)},
            }
        )
    )


if __name__ == "__main__":
    main()
