#!/usr/bin/env python3
"""What torch.optim.swa_utils.get_ema_multi_avg_fn makes of six updates, for test/kernels/ema_golden.h (needs: pip install torch)."""

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

N, STEPS, DECAYS = 21, 6, (0.9, 0.999)
torch.manual_seed(7)
weights = [torch.randn(N) * 10.0 ** torch.arange(-3, 4).repeat(N // 7)]
for _ in range(STEPS):
    weights.append(weights[-1] + 0.1 * torch.randn(N))


def array(name, values):
    lines = [", ".join(float(v).hex() + "f" for v in values[i : i + 5]) for i in range(0, len(values), 5)]
    return f"constexpr float {name}[] = {{\n    " + ",\n    ".join(lines) + "};"


print("// clang-format off")
print(f"// torch {torch.__version__.split('+')[0]}, by dev/golden/make_ema_golden.py")
print(f"constexpr int64_t kN = {N}, kSteps = {STEPS};\nconstexpr double kDecays[] = {{{', '.join(map(str, DECAYS))}}};")
print(array("kWeights", torch.cat(weights).tolist()))
for k, decay in enumerate(DECAYS):
    average, update = [weights[0].clone()], get_ema_multi_avg_fn(decay)
    for w in weights[1:]:
        update(average, [w], None)
    print(array(f"kAverage{k}", average[0].tolist()))
