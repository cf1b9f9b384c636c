#!/usr/bin/env python3
"""What torch.amp.GradScaler does, for test/zero/test_loss_scaling.cpp (needs: pip install torch).

Runs a real scaler and optimizer on the CPU: a parameter whose gradient is infinite at random steps. By step: X where
it was infinite, the exponent of the scale after update() as a letter (a is 2^0), and in all the updates that were
applied."""
import math
import random

import torch

print(f"// torch {torch.__version__.split('+')[0]}, by dev/golden/make_loss_scale_golden.py")
print("constexpr struct {\n    int window;\n    const char *overflows, *exponents;\n    int updates;\n} kGradScaler[] = {")
for seed, window, share in ((1, 7, 0.1), (2, 3, 0.2), (3, 20, 0.02), (4, 1, 0.45)):
    draw = random.Random(seed)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=window)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    overflows = exponents = ""
    for _ in range(80):
        bad = draw.random() < share
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        if bad:
            weight.grad.fill_(math.inf)
        scaler.step(optimizer)
        scaler.update()
        overflows += "X" if bad else "."
        exponents += chr(ord("a") + round(math.log2(scaler.get_scale())))
    print(f'    {{{window},\n     "{overflows}",\n     "{exponents}",\n     {round(-weight.item())}}},')
print("};")
