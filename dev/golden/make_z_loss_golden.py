#!/usr/bin/env python3
"""What torch's autograd gives for cross-entropy with z-loss, for test/kernels/z_loss_golden.h (needs: pip install torch).

The loss of a row is F.cross_entropy's plus z * logsumexp^2; rows without a target have neither. With --olmo the same
through OLMo-core's cross_entropy_loss (needs: pip install ai2-olmo-core), which must agree."""
import sys

import torch
import torch.nn.functional as F

N, V, Z, SCALE = 5, 19, 0.02, 0.125
torch.manual_seed(3)
logits = (3 * torch.randn(N, V) + torch.tensor([0.0, 4.0, -6.0, 0.5, 2.0])[:, None]).to(torch.bfloat16).double()
targets = torch.tensor([0, 18, -100, 7, 11])
x = logits.clone().requires_grad_()
loss = F.cross_entropy(x, targets, reduction="none")
z_loss = Z * x.logsumexp(-1).pow(2) * (targets != -100)
(SCALE * (loss + z_loss).sum()).backward()

if "--olmo" in sys.argv:
    import importlib.util
    from importlib.metadata import version

    folder = importlib.util.find_spec("olmo_core").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("ce", folder + "/nn/functional/cross_entropy_loss.py")
    module = importlib.util.module_from_spec(spec)  # the file alone: the package imports much more
    spec.loader.exec_module(module)
    y = logits.float().requires_grad_()
    ce, z = module.cross_entropy_loss(y, targets, reduction="sum", compute_z_loss=True, z_loss_multiplier=Z)
    (SCALE * (ce + z)).backward()
    print(f"olmo-core {version('ai2-olmo-core')}, torch {torch.__version__}: cross-entropy {ce.item():.6f} (autograd in "
          f"double {loss.sum().item():.6f}), z-loss {z.item():.6f} ({z_loss.sum().item():.6f}), largest difference of the "
          f"gradient {(y.grad - x.grad).abs().max().item():.2e} of {x.grad.abs().max().item():.2e}")
    sys.exit()


def array(name, values):
    """Several to a line: clang-format would give each a line of its own."""
    lines = [", ".join(f"{v:.9g}" for v in values[i:i + 6]) for i in range(0, len(values), 6)]
    return f"constexpr double {name}[] = {{\n    " + ",\n    ".join(lines) + "};"


print("// clang-format off")
print(f"// torch {torch.__version__.split('+')[0]}, by dev/golden/make_z_loss_golden.py")
print(f"constexpr int64_t kN = {N}, kV = {V};\nconstexpr float kZ = {Z}f, kScale = {SCALE}f;")
print(f"constexpr int32_t kTargets[] = {{{', '.join(map(str, targets.tolist()))}}};")
print(array("kLogits", logits.flatten().tolist()))
print(array("kLosses", loss.tolist()))
print(array("kZLosses", z_loss.tolist()))
print(array("kGradients", x.grad.flatten().tolist()))
