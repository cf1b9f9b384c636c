#!/usr/bin/env python3
"""The quickstart's 400 steps on its fables, here and in transformers with torch.optim.AdamW: the same loss at the end?

    dev/golden/whole_run.py [--program ./train_llama] [--data data/fables] [--dtypes fp32,bf16] [--seeds 1,2,...,8] [--out runs/whole_run]
    dev/golden/whole_run.py --data data/stdlib --val-tokens 65536     on Python's library, the quickstart's text before fables were
    dev/golden/whole_run.py --report     of the pairs that are there

A pair has one seed: the same initial weights (train_llama's, opened by from_pretrained), the same batches in the same order, the same
rates; both then validate on the same 53,248 tokens. Parameters are fp32 in both; with bf16, train_llama keeps bf16 parameters with fp32
masters and torch runs under autocast. The seeds were fixed beforehand: 1 to 8. A mean difference within +-0.01 nats is what both
one-sided t tests on the pairs (TOST) must show at p < 0.05. Each side of each pair is kept in OUT as soon as it is done, so a run that
was stopped goes on; torch stays out of the product. Needs torch, transformers, numpy.
"""

import argparse
import contextlib
import glob
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/../run", f"{HERE}/oracle"]
import student  # noqa: E402
import study  # noqa: E402
from picture import BLUE, GREEN, ORANGE, Chart, Picture  # noqa: E402

BATCH, T, LR = 8, 256, 2e-3
MARGIN = 0.01
MASK = 2**64 - 1
FLAGS = (f"--preset bytes --device cpu --threads 1 --batch {BATCH} --seq-len {T} --lr {LR} --val-every 100 "
         "--save-every 0 --log-every 100 --quiet --overwrite").split()


# ---- llama/data/data_loader.cpp: the order of the samples --------------------------------------------------------------


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def permutation(n, seed):
    bits = max(2, (n - 1).bit_length())
    right_bits = bits - bits // 2
    state = mix((seed + 0x9E3779B97F4A7C15) & MASK) ^ mix(1)
    keys = []
    for _ in range(8):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        keys.append(mix(state))

    def at(x):
        while True:
            left, right = x >> right_bits, x & (1 << right_bits) - 1
            for r in range(0, 8, 2):
                left ^= mix(right ^ keys[r]) & (1 << bits // 2) - 1
                right ^= mix(left ^ keys[r + 1]) & (1 << right_bits) - 1
            x = left << right_bits | right
            if x < n:
                return x

    return at


class Text:
    """train_llama's windows of `length` tokens, of shards of 16-bit ids, and the order in which a seed takes them."""

    def __init__(self, data, length, seed):
        import numpy

        self.length = length
        self.ids = {}
        for split in ("train", "val"):
            shards = glob.glob(f"{glob.escape(data)}/*_{split}_*.bin")
            if len(shards) != 1:
                sys.exit(f"{data} has {len(shards)} shards of {split}: this reads one (data_prep/prepare.py fables makes one)")
            self.ids[split] = numpy.fromfile(shards[0], dtype="<u2", offset=1024)
        self.order = permutation((len(self.ids["train"]) - 1) // length, seed)

    def rows(self, split, numbers):
        """(windows, length + 1): the inputs, and the targets one place on"""
        import torch

        t, ids = self.length, self.ids[split]
        return torch.stack([torch.from_numpy(ids[i * t : i * t + t + 1].astype("int64")) for i in numbers])

    def batch(self, step, size):
        return self.rows("train", [self.order((step - 1) * size + k) for k in range(size)])

    def validation(self, loss_of, tokens, size):
        """The mean over the first so many tokens."""
        import torch

        with torch.no_grad():
            losses = [float(loss_of(self.rows("val", range(i, i + size)))) for i in range(0, tokens // self.length, size)]
        return sum(losses) / len(losses)


def adamw_steps(parameters, loss_of, text, size, lr, steps, scaler=None):
    """Step and loss of PyTorch's AdamW at the program's rates; matrices decay."""
    import reference
    import torch

    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    parameters = list(parameters)
    groups = [{"params": [p for p in parameters if (p.dim() > 1) == matrices], "weight_decay": 0.1 * matrices} for matrices in (True, False)]
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)
    rates = {"lr": lr, "min-lr": lr / 10, "warmup": steps // 10, "steps": steps, "lr-schedule": "cosine", "cooldown": 0}
    for step in range(1, steps + 1):
        for group in adamw.param_groups:
            group["lr"] = reference.rate(rates, step)
        adamw.zero_grad()
        loss = loss_of(text.batch(step, size))
        scaler.scale(loss).backward()
        scaler.unscale_(adamw)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(adamw)
        scaler.update()
        yield step, float(loss.detach())


# ---- the two sides -----------------------------------------------------------------------------------------------------


def ours(o, dtype, seed, folder, steps):
    flags = [*FLAGS, "--data", o.data, "--dtype", dtype, "--grad-dtype", "fp32", "--steps", steps, "--warmup", steps // 10,
             "--val-tokens", o.val_tokens, "--seed", seed]  # fmt: skip
    left, _ = study.train(o.program, flags, folder)
    return {"loss": [r["loss"] for r in left.steps], "val": {str(step): loss for step, loss in left.validations.items()}}


def bf16_products():
    """A context in which PyTorch's products of bf16 matrices take an fp32 GEMM, rounded to bf16 at its end. So does oneDNN, which
    sums in fp32 the products that fp32 holds exactly; without AVX-512 PyTorch does not call it, and a step takes eight times longer."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op is torch.ops.aten.mm.default and args[0].dtype == torch.bfloat16:
                return op(args[0].float(), args[1].float()).bfloat16()
            return op(*args, **(kwargs or {}))

    return Products()


def check_products(o, weights):
    """bf16_products() beside PyTorch's own products, in the first step of the first seed."""
    import time

    import torch
    import transformers

    torch.set_num_threads(1)
    rows = Text(o.data, T, int(o.seeds.split(",")[0])).batch(1, BATCH)
    found = []
    for context in (contextlib.nullcontext(), bf16_products()):
        model = transformers.AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
        start = time.process_time()
        with context:
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(input_ids=rows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
            loss.backward()
        found.append((loss.item(), [p.grad for p in model.parameters()], time.process_time() - start))
    (loss, gradients, seconds), (our_loss, our_gradients, our_seconds) = found
    worst = max(float((a - b).norm() / a.norm()) for a, b in zip(gradients, our_gradients))
    print(f"PyTorch's products: loss {loss:.6f}, {seconds:.1f} CPU seconds a step; by fp32: {our_loss:.6f}, {our_seconds:.1f}; "
          f"a weight's gradient differs by {worst:.2%} of its norm at most ({torch.backends.cpu.get_cpu_capability()})")  # fmt: skip


def theirs(o, dtype, seed, weights):
    import torch
    import transformers

    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    text = Text(o.data, T, seed)

    def loss_of(rows):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(input_ids=rows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    slow = dtype == "bf16" and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    with bf16_products() if slow else contextlib.nullcontext():
        out = {"loss": [], "val": {"0": text.validation(loss_of, o.val_tokens, BATCH)}}
        for step, loss in adamw_steps(model.parameters(), loss_of, text, BATCH, LR, o.steps):
            out["loss"].append(loss)
            if step % 100 == 0 or step == o.steps:
                out["val"][str(step)] = text.validation(loss_of, o.val_tokens, BATCH)
    out["versions"] = [torch.__version__, transformers.__version__, torch.backends.cpu.get_cpu_capability()]
    return out


def side(path, compute):
    """What was computed before, or is now."""
    if not os.path.exists(path):
        study.write(path, json.dumps(compute()))
    with open(path, encoding="utf-8") as f:
        return json.load(f)


# ---- the report --------------------------------------------------------------------------------------------------------


def parts_at(a, b):
    """The first step whose losses differ by more than 0.01 nats, and the largest difference of the first ten steps."""
    gaps = [abs(x - y) for x, y in zip(a["loss"], b["loss"])]
    return next((i + 1 for i, g in enumerate(gaps) if g > 0.01), None), max(gaps[:10])


def picture(pairs, steps):
    p = Picture(f"{steps} steps of the quickstart's model: train_llama and PyTorch", 640, 720)
    p.head(p.title, x=180)
    low, top = int(min(min(a["loss"]) for _, _, a, _ in pairs)), max(max(a["loss"]) for _, _, a, _ in pairs)
    losses, gaps = Chart(p, (56, 32, 648, 260), (0, steps), (low, top)), Chart(p, (56, 332, 648, 260), (0, steps), (1e-8, 1), log="y")
    losses.rows(range(low, int(top) + 1))
    gaps.rows([10.0**power for power in range(-8, 1, 2)])
    for chart in (losses, gaps):
        chart.columns(range(0, steps + 1, max(1, steps // 4)))
    for dtype, _, *runs in pairs:
        for run, colour, width in zip(runs, (BLUE, ORANGE), (2.5, 0.8)):
            losses.curve(list(enumerate(run["loss"], 1)), colour, width)
        gaps.curve([(i, abs(x - y)) for i, (x, y) in enumerate(zip(*(run["loss"] for run in runs)), 1) if x != y], BLUE if dtype == "fp32" else GREEN, 0.8)
    there = [(dtype, colour) for dtype, colour in (("fp32", BLUE), ("bf16", GREEN)) if dtype in {pair[0] for pair in pairs}]
    legend = [(60, "train_llama, training loss (nats)", BLUE), (78, "PyTorch", ORANGE)]
    legend += [(538 + 18 * i, f"how far a pair's losses are apart: {dtype}", colour) for i, (dtype, colour) in enumerate(there)]
    for y, words, colour in legend:
        p.text(356, y, words, colour=colour)
    p.text(360, 632, "step", 12, "middle")
    return p.svg()


def report(o):
    pairs = []
    for dtype in o.dtypes.split(","):
        for seed in map(int, o.seeds.split(",")):
            names = [f"{o.out}/{dtype}-{seed}.{who}.json" for who in ("ours", "theirs")]
            if all(map(os.path.exists, names)):
                pairs.append((dtype, seed, *(side(n, None) for n in names)))
    last = str(o.steps)
    rows = []
    for dtype, seed, a, b in pairs:
        step, most = parts_at(a, b)
        rows.append([dtype, seed, f"{a['val']['0']:.6f}, {b['val']['0']:.6f}", f"{a['val'][last]:.4f}, {b['val'][last]:.4f}",
                     f"{a['val'][last] - b['val'][last]:+.4f}", f"{most:.1e}", step or "none"])  # fmt: skip
    head = ["type", "seed", "validation at 0: here, PyTorch", "at the end: here, PyTorch", "difference", "most in steps 1 to 10", "first step 0.01 apart"]
    lines = [study.table(head, rows)]
    for dtype in o.dtypes.split(","):
        gaps, all_seeds = [a["val"][last] - b["val"][last] for d, _, a, b in pairs if d == dtype], len(o.seeds.split(","))
        if len(gaps) < 2:
            lines.append(f"{dtype}: {len(gaps)} of {all_seeds} pairs: no test can be made.")
            continue
        mean, error = student.mean_and_error(gaps)
        p = student.p_within(gaps, MARGIN)
        told = f"; the test is for {all_seeds}" if len(gaps) < all_seeds else ", shown" if p < 0.05 else ", not shown"
        lines.append(f"{dtype}: {len(gaps)} of {all_seeds} pairs, mean difference {mean:+.5f} nats, standard error {error:.5f}; within +-{MARGIN}: p = {p:.2g}{told}.")
    text = "\n".join(lines) + "\n"
    print(text)
    study.write(f"{o.out}/report.md", text)
    if pairs:
        study.write(f"{o.out}/curves.svg", picture(pairs, o.steps))


def flags(doc, out, data):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_llama", type=os.path.abspath)
    parser.add_argument("--data", default=f"data/{data}", type=os.path.abspath, help=f"made by prepare.py {data}")
    parser.add_argument("--out", default=out)
    parser.add_argument("--seeds", default="1,2,3,4,5,6,7,8")
    return parser


def main():
    parser = flags(__doc__, "runs/whole_run", "fables")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--steps", type=int, default=400, help="fewer for a try, in an --out of its own")
    parser.add_argument("--val-tokens", type=int, default=53248)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--check-products", action="store_true", help="bf16_products() beside PyTorch's own, in one step")
    o = parser.parse_args()
    os.makedirs(o.out, exist_ok=True)
    if o.check_products:
        ours(o, "fp32", o.seeds.split(",")[0], f"{o.out}/initial", 0)
        return check_products(o, f"{o.out}/initial/final")
    for dtype in [] if o.report else o.dtypes.split(","):
        for seed in map(int, o.seeds.split(",")):
            name, initial = f"{o.out}/{dtype}-{seed}", f"{o.out}/initial-{seed}"
            if not os.path.exists(f"{initial}/final/config.json"):
                ours(o, "fp32", seed, initial, 0)
            side(f"{name}.theirs.json", lambda d=dtype, s=seed, i=initial: theirs(o, d, s, f"{i}/final"))
            side(f"{name}.ours.json", lambda d=dtype, s=seed, n=name: ours(o, d, s, n, o.steps))
            report(o)
    if o.report:
        report(o)


if __name__ == "__main__":
    main()
