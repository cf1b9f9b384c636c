#!/usr/bin/env python3
"""Which updates OLMo-core's SkipStepOptimizer leaves out, for test/llama/test_guards.cpp.

    pip install torch; pip install --no-deps ai2-olmo-core      # only this script needs them

The series is exact in fp32 and drawn by a generator that the test writes down again: noise, single outliers of the loss
(up and down) and of the norm, one before the window is long enough, and a change that lasts."""
import importlib.util
import sys
import types
from importlib.metadata import version

import torch

# The file alone: the package imports much more. Of it, two functions about devices are asked for.
sys.modules["olmo_core.utils"] = types.SimpleNamespace(get_default_device=lambda: torch.device("cpu"),
                                                       move_to_device=lambda x, device: x)
folder = importlib.util.find_spec("olmo_core").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("skip_step", folder + "/optim/skip_step_optimizer.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

optimizer = module.SkipStepOptimizer([torch.nn.Parameter(torch.zeros(1))], {})
state = 1


def draw(n):
    global state
    state = (state * 1103515245 + 12345) % 2**31
    return (state >> 16) % n


skipped = ""
for step in range(1, 401):
    loss = 3 + draw(256) / 1024
    norm = 1 + draw(256) / 512
    if step in (40, 90, 91, 150):
        loss += 2
    if step == 120:
        loss -= 2
    if step in (30, 130, 200):
        norm += 4
    if step >= 250:
        loss += 1
    optimizer.latest_loss = torch.tensor(loss)
    optimizer.latest_grad_norm = torch.tensor(norm)
    skipped += "." if optimizer.get_step_factor() else "X"
print(f"// ai2-olmo-core {version('ai2-olmo-core')}, torch {torch.__version__.split('+')[0]}, by dev/golden/make_skip_step_golden.py")
steps = ", ".join(str(i + 1) for i, c in enumerate(skipped) if c == "X")
print(f"constexpr int kOlmoSkips[] = {{{steps}}};")
