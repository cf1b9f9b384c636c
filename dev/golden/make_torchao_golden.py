#!/usr/bin/env python3
"""What torchao's float8 training makes of a tensor with one scale, for test/kernels/test_fp8.cpp
(needs: pip install torch torchao numpy).

Tensors of bf16 from a linear congruential generator, with exponents around each of BASES. For both types: FNV-1a (64
bits) over the codes row by row, the codes transposed, and the bits of 1 / scale, of all tensors one after the other."""
import numpy as np
import torch
import torchao
from make_schedule_golden import fnv1a
from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
from torchao.float8.float8_training_tensor import LinearMMConfig

ROWS, COLUMNS, BASES = 96, 160, (100, 127, 180, 250)


def tensor(base):
    i = np.arange(ROWS * COLUMNS, dtype=np.uint64) + np.uint64(base)
    x = ((i * np.uint64(1664525) + np.uint64(1013904223)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    bits = x >> 31 << 15 | (base - (x >> 16 & 15)) << 7 | x >> 8 & 127
    return torch.from_numpy((bits << 16).astype(np.uint32).view(np.float32)).reshape(ROWS, COLUMNS).bfloat16()


print(f"// torchao {torchao.__version__}, torch {torch.__version__}, by dev/golden/make_torchao_golden.py")
for name, kind in (("E4m3", torch.float8_e4m3fn), ("E5m2", torch.float8_e5m2)):
    out = b""
    for base in BASES:
        made = hp_tensor_to_float8_dynamic(tensor(base), kind, LinearMMConfig())
        codes = made._data.view(torch.uint8).numpy()
        out += codes.tobytes() + codes.T.tobytes() + made._scale.reciprocal().numpy().tobytes()
    print(f"constexpr uint64_t kTorchao{name} = 0x{fnv1a(out):016x}u;")
