"""NF4 goldens: what bitsandbytes makes of random matrices. Writes ../bnb.safetensors.

The 8-bit quantisation of the absmax is taken from bitsandbytes' device-independent backend, which computes what its
CUDA kernel computes. Its processor kernel looks the code up in a table of 65,536 equal steps and so differs now and
then; how often is printed.
"""

from pathlib import Path

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState, create_dynamic_map, dequantize_4bit, quantize_4bit
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parent.parent / "bnb.safetensors"
DEFAULT_BACKEND = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)


def quantize_blockwise(values: torch.Tensor, code: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    op = torch.ops.bitsandbytes.quantize_blockwise.default
    return op.redispatch(DEFAULT_BACKEND, values, code, 256)


def nf4(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """`weights` is flat: where a row isn't a whole number of blocks, the AVX-512 kernel takes wrong scales."""
    codes, state = quantize_4bit(weights, blocksize=64, compress_statistics=False, quant_type="nf4")
    absmax = state.absmax
    offset = absmax.mean()
    code = create_dynamic_map(signed=True)
    absmax_codes, nested = quantize_blockwise(absmax - offset, code)
    theirs = bnb.functional.quantize_blockwise(absmax - offset, blocksize=256)[0]
    print(f"  the processor kernel gives another absmax code for {(theirs != absmax_codes).sum()} of {absmax.numel()}")
    nested_state = QuantState(absmax=nested, code=code, blocksize=256, dtype=torch.float32)
    state = QuantState(
        absmax=absmax_codes, shape=weights.shape, dtype=torch.float32, blocksize=64, code=state.code,
        quant_type="nf4", offset=offset, state2=nested_state,
    )  # fmt: skip
    return {
        "weights": weights,
        "codes": codes.flatten(),
        "absmax_f32": absmax,
        "absmax": absmax_codes,
        "nested_absmax": nested,
        "offset": offset.reshape(1),
        "dequantized": dequantize_4bit(codes, state).flatten(),
    }


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    scale = lambda n: torch.exp(torch.randn(n, generator=generator) * 0.3) * 0.02  # noqa: E731
    matrices = {
        "two_blocks": torch.randn(2 * 64, generator=generator),
        "odd_tail": torch.randn(6 * 55, generator=generator) * 0.05,
        "zero_block": torch.randn(8 * 32, generator=generator) * 0.05,
        "many": (torch.randn(280, 64, generator=generator) * scale(280)[:, None]).flatten(),
    }
    matrices["zero_block"][64:128] = 0.0
    tensors = {"map.signed": create_dynamic_map(signed=True), "map.unsigned": create_dynamic_map(signed=False)}
    for name, weights in matrices.items():
        print(name)
        for part, tensor in nf4(weights).items():
            tensors[f"nf4.{name}.{part}"] = tensor.contiguous()
    save_file(tensors, OUT, metadata={"bitsandbytes": bnb.__version__, "torch": torch.__version__})


if __name__ == "__main__":
    main()
