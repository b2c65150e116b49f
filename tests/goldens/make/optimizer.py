"""AdamW goldens on recorded gradients: PyTorch in 32 bit, bitsandbytes block-wise in 8 bit. Writes ../optimizer.safetensors.

bitsandbytes' processor optimizer is used as it is, except for its 8-bit quantiser, which is replaced by that of its
device-independent backend (see bnb.py).
"""

import math
from pathlib import Path

import bitsandbytes as bnb
import torch
from bitsandbytes.backends.cpu import ops as bnb_cpu
from bitsandbytes.functional import create_dynamic_map
from safetensors.torch import save_file

from bnb import quantize_blockwise

OUT = Path(__file__).resolve().parent.parent / "optimizer.safetensors"
N, STEPS = 900, 30  # three whole blocks of 256 and a part of one
BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.999), 1e-8, 0.01


def main() -> None:
    generator = torch.Generator().manual_seed(2)
    # Gradients of different sizes inside a block, with a common direction and noise. Over more than two decades of sizes
    # 8-bit moments fail, here as there: the small second moments round to zero.
    size = 10 ** (torch.rand(N, generator=generator) * 1.5 - 4)
    direction = torch.randn(N, generator=generator)
    grads = (torch.randn(STEPS, N, generator=generator) + 0.5 * direction) * size
    initial = torch.randn(N, generator=generator) * 0.02
    rates = [2e-3 * min(1.0, step / 5) * 0.5 * (1 + math.cos(math.pi * step / (STEPS + 1))) for step in range(1, STEPS + 1)]
    scales = [1.0 if step % 3 else 0.5 for step in range(1, STEPS + 1)]

    param = torch.nn.Parameter(initial.clone())
    optimizer = torch.optim.AdamW([param], lr=1.0, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY)
    for grad, rate, scale in zip(grads, rates, scales):
        optimizer.param_groups[0]["lr"] = rate
        param.grad = grad * scale
        optimizer.step()

    def quantize(values, code, absmax_out, codes_out, blocksize):
        codes, absmax = quantize_blockwise(values, code)
        codes_out.copy_(codes)
        absmax_out.copy_(absmax)

    bnb_cpu._quant_blockwise_fp32_direct = quantize
    p8, n_blocks = initial.clone(), -(-N // 256)
    m, v = torch.zeros(N, dtype=torch.uint8), torch.zeros(N, dtype=torch.uint8)
    m_absmax, v_absmax = torch.zeros(n_blocks), torch.zeros(n_blocks)
    signed, unsigned = create_dynamic_map(signed=True), create_dynamic_map(signed=False)
    for step, (grad, rate, scale) in enumerate(zip(grads, rates, scales), start=1):
        bnb_cpu._optimizer_update_8bit_blockwise_cpu(
            "adam", grad.clone(), p8, m, v, *BETAS, 0.0, 0.0, EPSILON, step, rate,
            signed, unsigned, m_absmax, v_absmax, WEIGHT_DECAY, scale,
        )  # fmt: skip

    tensors = {
        "params.initial": initial,
        "grads": grads,
        "learning_rates": torch.tensor(rates, dtype=torch.float64),
        "gradient_scales": torch.tensor(scales, dtype=torch.float64),
        "params.torch": param.detach(),
        "params.bnb8": p8,
        "bnb8.m_codes": m,
        "bnb8.m_absmax": m_absmax,
        "bnb8.v_codes": v,
        "bnb8.v_absmax": v_absmax,
    }
    save_file(tensors, OUT, metadata={"bitsandbytes": bnb.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main()
