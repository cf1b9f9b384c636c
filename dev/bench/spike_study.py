#!/usr/bin/env python3
"""How often the spike detector (llama/train/guards.h) fires on healthy runs, and how often on real spikes.

    python3 dev/bench/spike_study.py ./train_llama --work /tmp/spikes [--healthy-steps 1900] [--seeds 1 2]

Trains tiny models on the CPU with the detector off, takes loss and norm of every step from metrics.jsonl and applies
rules to them. What a real spike is, is known from outside the rules: the first batch of damaged data, or with a rate
that is far too high the first loss a nat above the last 128. Runs that are there already are not made again."""
import argparse
import math
import os
import random
import shutil
import statistics
import struct
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../run"))
import study  # noqa: E402

MODELS = {  # dim, layers, heads, kv heads, ffn, head dim, batch, sequence length, rate
    "noisy": (16, 1, 2, 1, 32, 8, 1, 32, 3e-3),  # one short sequence a step
    "small": (16, 2, 2, 2, 32, 8, 4, 32, 3e-3),
    "wide": (32, 2, 4, 2, 48, 8, 4, 48, 2e-3),
    "deep": (32, 4, 4, 4, 64, 8, 4, 64, 1e-3),
}


def flags(model, seed, dtype):
    d, layers, heads, kv, ffn, head, batch, length, rate = MODELS[model]
    return ["--preset", "bytes", "--dim", d, "--layers", layers, "--heads", heads, "--kv-heads", kv, "--ffn", ffn,
            "--head-dim", head, "--batch", batch, "--seq-len", length, "--lr", rate, "--seed", seed, "--dtype", dtype,
            "--device", "cpu", "--threads", 1, "--val-every", 0, "--spike-z", 0, "--log-every", 1000]


def run(args, name, more):
    """metrics of the run, made if it is not there: [(loss, norm)] by step"""
    out = f"{args.work}/{name}"
    if not os.path.exists(f"{out}/ranks.json"):
        study.train(args.program, [*more, "--save-every", 1200, "--keep", 2], out, allowed=(0, 72))
    return rows_of(args, name)


def rows_of(args, name):
    steps = study.Left(f"{args.work}/{name}").steps
    return [(float(r["loss"] or "nan"), float(r["grad_norm"] or "nan")) for r in steps]


def run_all(args, jobs):
    with ThreadPoolExecutor(args.jobs) as pool:
        return dict(zip((name for name, _ in jobs), pool.map(lambda job: run(args, *job), jobs)))


def damaged(args, kind, seed):
    """A folder of data with every training token replaced."""
    out = f"{args.work}/data-{kind}-{seed}"
    if os.path.exists(out):
        return out
    shutil.copytree(f"{args.work}/data", out)
    name = [f for f in os.listdir(out) if "train" in f and f.endswith(".bin")][0]
    data = open(f"{out}/{name}", "rb").read()
    tokens = list(struct.unpack(f"<{(len(data) - 1024) // 2}H", data[1024:]))
    draw = random.Random(seed)
    if kind == "noise":
        tokens = [draw.randrange(256) for _ in tokens]
    else:  # as if encoded with another vocabulary
        tokens = [(7 * t + 91) % 256 for t in tokens]
    study.write_shard(f"{out}/{name}", tokens)
    return out


class Robust:
    """(x - median) / max(1.4826 MAD, floor |median|) over the last `window` values, from `least` on"""

    def __init__(self, floor, window=128, least=16):
        self.floor, self.window, self.least = floor, deque(maxlen=window), least

    def observe(self, x):
        self.third = self.mean = 0.0
        if not math.isfinite(x):
            return 0.0
        z = 0.0
        if len(self.window) >= self.least:
            middle = statistics.median(self.window)
            mad = statistics.median(abs(v - middle) for v in self.window)
            scale = max(1.4826 * mad, self.floor * abs(middle), 1e-12)
            z = (x - middle) / scale
            recent = [(v - middle) / scale for v in [*list(self.window)[-7:], x]]
            self.third = sorted(recent)[-3]
            self.mean = sum(min(v, 6) for v in recent) / len(recent)
        self.window.append(x)
        return z


def scores(series):
    """Of each step: z of the loss, z of the norm, how far the loss is above its window's largest, and of the z of the last
    eight losses the third largest and the mean, each counted as 6 at most; as in guards.h"""
    loss, norm, recent, rows = Robust(0.01), Robust(0.1), deque(maxlen=128), []
    for x, n in series:
        zl, zn = (loss.observe(x), norm.observe(n)) if math.isfinite(x) and math.isfinite(n) else (0.0, 0.0)
        over = x - max(recent) if len(recent) >= 16 else -1.0
        if math.isfinite(x):
            recent.append(x)
        rows.append((zl, zn, over, loss.third, loss.mean))
    return rows


RULES = {
    "norm z >= 8": lambda zl, zn, over, third, mean: zn >= 8,
    "loss z >= 8 or norm z >= 8": lambda zl, zn, over, third, mean: zl >= 8 or zn >= 8,
    "loss z >= 4": lambda zl, zn, over, third, mean: zl >= 4,
    "loss z >= 5": lambda zl, zn, over, third, mean: zl >= 5,
    "loss z >= 6": lambda zl, zn, over, third, mean: zl >= 6,
    "loss z >= 8": lambda zl, zn, over, third, mean: zl >= 8,
    "loss z >= 5 and above all 128": lambda zl, zn, over, third, mean: zl >= 5 and over > 0,
    "loss z >= 8 or (loss z >= 5 and norm z >= 8)":
        lambda zl, zn, over, third, mean: zl >= 8 or (zl >= 5 and zn >= 8),
    "loss z >= 6 or 3 of the last 8 z >= 4": lambda zl, zn, over, third, mean: zl >= 6 or third >= 4,
    "loss z >= 6 or 3 of the last 8 z >= 3": lambda zl, zn, over, third, mean: zl >= 6 or third >= 3,
    "loss z >= 6 or mean of 8 z >= 1.8": lambda zl, zn, over, third, mean: zl >= 6 or mean >= 1.8,
    "loss z >= 5.7 or mean of 8 z >= 1.71": lambda zl, zn, over, third, mean: zl >= 5.7 or mean >= 1.71,
}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("program")
    p.add_argument("--work", required=True)
    p.add_argument("--healthy-steps", type=int, default=1900)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    args = p.parse_args()
    pairs = [(model, seed) for model in MODELS for seed in args.seeds]
    study.prepare(f"{args.work}/data", "stdlib", "--max-bytes", "3M")
    clean = ["--data", f"{args.work}/data"]

    jobs = [(f"healthy-{model}-{dtype}-{seed}",
             flags(model, seed, dtype) + clean + ["--steps", args.healthy_steps])
            for seed in args.seeds for dtype in ("fp32", "bf16") for model in MODELS]
    healthy = run_all(args, jobs)
    total = sum(map(len, healthy.values()))
    judged = {name: scores(series) for name, series in healthy.items()}
    print(f"healthy: {len(healthy)} runs, {total} steps; largest z of the loss",
          f"{max(r[0] for rows in judged.values() for r in rows):.2f}, third of eight",
          f"{max(r[3] for rows in judged.values() for r in rows):.2f}, mean of eight",
          f"{max(r[4] for rows in judged.values() for r in rows):.2f}, of the norm",
          f"{max(r[1] for rows in judged.values() for r in rows):.1f}")

    constant, jobs, kinds = ["--lr-schedule", "constant"], [], ("noise", "shifted", "rate30", "rate100")
    run_all(args, [(f"base-{model}-{seed}", flags(model, seed, "fp32") + clean + constant + ["--steps", 1200])
                   for model, seed in pairs])
    for model, seed in pairs:
        begin = ["--resume", f"{args.work}/base-{model}-{seed}", "--steps", 1232, "--device", "cpu", "--spike-z", 0]
        for kind in kinds:
            if kind.startswith("rate"):
                more = clean + ["--lr", MODELS[model][8] * int(kind[4:]), "--allow-lr-jump"]
            else:
                more = ["--data", damaged(args, kind, seed), "--allow-data-change"]
            jobs.append((f"{kind}-{model}-{seed}", begin + more))
    runs = run_all(args, jobs)
    spikes, without = [], 0  # (what, series, step of its first spike)
    for model, seed in pairs:
        before = rows_of(args, f"base-{model}-{seed}")
        for kind in kinds:
            series = before + runs[f"{kind}-{model}-{seed}"]
            bound = max(x for x, _ in before[-128:]) + (1.0 if kind.startswith("rate") else 0.0)
            labels = [i for i in range(1200, len(series)) if not series[i][0] < bound]
            if kind.startswith("rate"):
                spikes += [(f"{kind} ({model})", series, i) for i in labels[:1]]
                without += not labels
            else:
                spikes.append((f"{kind} ({model})", series, 1200))  # the first batch of the damaged data
        for at in (400, 1000):  # ten times the loss of one step, and so ten times its gradient
            spikes.append((f"loss x10 ({model})", [(10 * x, 10 * n) if i == at else (x, n)
                                                   for i, (x, n) in enumerate(before)], at))
    print(f"spikes: {len(spikes)} labelled; {without} runs had none by the label")
    print(f"{'rule':48} {'false':>6} {'/10,000':>8} {'found at once':>14} {'within 8':>9}")
    graded = [(what, scores(series[:i + 9]), i) for what, series, i in spikes]
    for name, rule in RULES.items():
        false = sum(rule(*r) for rows in judged.values() for r in rows)
        at_once = sum(rule(*rows[i]) for _, rows, i in graded)
        soon = sum(any(rule(*r) for r in rows[i:i + 9]) for _, rows, i in graded)
        missed = [f"{what}, z {max(r[0] for r in rows[i:i + 9]):.2f}" for what, rows, i in graded
                  if not any(rule(*r) for r in rows[i:i + 9])]
        print(f"{name:48} {false:6} {1e4 * false / total:8.2f} {at_once:7}/{len(graded)} {soon:5}/{len(graded)}",
              f"missed: {'; '.join(missed)}" if len(missed) <= 3 and missed else "")
    whats = sorted({what for what, _, _ in graded})
    for kind in whats:
        z = sorted(max(r[0] for r in rows[i:i + 9]) for what, rows, i in graded if what == kind)
        print(f"  {kind:20} {len(z):3} spikes, z of the loss {z[0]:.1f} to {z[-1]:.1f}")
    worst = sorted(((r[0], name, i + 1) for name, rows in judged.items() for i, r in enumerate(rows)), reverse=True)
    print("largest z of the loss in healthy runs:", *(f"{z:.2f} ({name}, step {i})" for z, name, i in worst[:8]))


if __name__ == "__main__":
    main()
