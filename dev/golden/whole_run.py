#!/usr/bin/env python3
"""The quickstart's 400 steps here and in transformers with torch.optim.AdamW: do whole runs end at the same loss?

    dev/golden/whole_run.py [--program ./train_llama] [--data data/stdlib] [--dtypes fp32,bf16] [--seeds 1,2,...,8] [--out runs/whole_run]
    dev/golden/whole_run.py --report     of the pairs that are there

A pair has one seed: the same initial weights (train_llama's, opened by from_pretrained), the same batches in the same order, the same
rates; both then validate on the same 65,536 tokens. Parameters are fp32 in both; with bf16, train_llama keeps bf16 parameters with fp32
masters and torch runs under autocast. The seeds were fixed beforehand: 1 to 8. A mean difference within +-0.01 nats is what both one-sided
t tests on the pairs (TOST) must show at p < 0.05. Each side of each pair is kept in OUT as soon as it is done, so a run that was stopped
goes on; torch stays out of the product. Needs torch, transformers, numpy.
"""

import argparse
import json
import math
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../run")
import student  # noqa: E402

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


# ---- the two sides -----------------------------------------------------------------------------------------------------


def ours(o, dtype, seed, folder, steps):
    subprocess.run([o.program, "--data", o.data, *FLAGS, "--dtype", dtype, "--grad-dtype", "fp32", "--steps", str(steps), "--warmup", str(steps // 10), "--val-tokens", str(o.val_tokens),
                    "--seed", str(seed), "--out", folder],
                   check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    with open(f"{folder}/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return {"loss": [r["loss"] for r in rows if "loss" in r], "val": {str(r["step"]): r["val_loss"] for r in rows if "val_loss" in r}}


def theirs(o, dtype, seed, weights):
    import numpy
    import torch
    import transformers

    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    shard = {s: numpy.fromfile(f"{o.data}/stdlib_{s}_000000.bin", dtype="<u2", offset=1024) for s in ("train", "val")}

    def window(split, i):
        return torch.from_numpy(shard[split][i * T : i * T + T + 1].astype("int64"))

    def loss_of(rows):
        x = torch.stack(rows)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(input_ids=x[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())

    def validate():
        with torch.no_grad():
            return sum(float(loss_of([window("val", i + k) for k in range(BATCH)])) for i in range(0, o.val_tokens // T, BATCH)) * BATCH * T / o.val_tokens

    warmup = o.steps // 10

    def rate(step):
        if step <= warmup:
            return LR * step / warmup
        return 0.1 * LR + 0.9 * LR * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (o.steps - warmup)))

    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == m] for m in (True, False))
    adamw = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.95), eps=1e-8)
    sample = permutation((len(shard["train"]) - 1) // T, seed)
    out = {"loss": [], "val": {"0": validate()}}
    for step in range(1, o.steps + 1):
        for group in adamw.param_groups:
            group["lr"] = rate(step)
        adamw.zero_grad()
        loss = loss_of([window("train", sample((step - 1) * BATCH + k)) for k in range(BATCH)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        out["loss"].append(float(loss.detach()))
        if step % 100 == 0 or step == o.steps:
            out["val"][str(step)] = validate()
    out["versions"] = [torch.__version__, transformers.__version__]
    return out


def side(path, compute):
    """What was computed before, or is now."""
    if not os.path.exists(path):
        found = compute()
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            json.dump(found, f)
        os.replace(path + ".tmp", path)
    with open(path, encoding="utf-8") as f:
        return json.load(f)


# ---- the report --------------------------------------------------------------------------------------------------------


def parts_at(a, b):
    """The first step whose losses differ by more than 0.01 nats, and the largest difference of the first ten steps."""
    gaps = [abs(x - y) for x, y in zip(a["loss"], b["loss"])]
    return next((i + 1 for i, g in enumerate(gaps) if g > 0.01), None), max(gaps[:10])


def draw(path, pairs, steps):
    w, h, left = 720, 380, 56
    top = max(max(a["loss"]) for _, _, a, _ in pairs)
    x, y = lambda s: left + (w - left - 16) * s / steps, lambda v: 32 + (h - 80) * (top - v) / (top - 1)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12"><rect width="{w}" height="{h}" fill="#fff"/>',
           f'<text x="{w / 2}" y="18" text-anchor="middle" font-size="14">{steps} steps of the quickstart: train_llama and PyTorch</text>']
    out += [f'<text x="{left - 6}" y="{y(v) + 4:.0f}" text-anchor="end">{v}</text><path d="M{left} {y(v):.1f}H{w - 16}" stroke="#ddd"/>' for v in range(1, int(top) + 1)]
    out += [f'<text x="{x(s):.0f}" y="{h - 28}" text-anchor="middle">{s}</text>' for s in range(0, steps + 1, max(1, steps // 4))]
    for _, _, a, b in pairs:
        for run, style in ((a, 'stroke="#4477aa" stroke-width="2.5" opacity="0.6"'), (b, 'stroke="#cc3311" stroke-width="0.8"')):
            out.append(f'<path fill="none" {style} d="M{"L".join(f"{x(i + 1):.1f} {y(v):.1f}" for i, v in enumerate(run["loss"]))}"/>')
    out.append(f'<text x="{left + 300}" y="60" fill="#4477aa">train_llama, training loss (nats)</text><text x="{left + 300}" y="78" fill="#cc3311">PyTorch</text><text x="{w / 2}" y="{h - 8}" text-anchor="middle">step</text></svg>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


def report(o):
    pairs = []
    for dtype in o.dtypes.split(","):
        for seed in map(int, o.seeds.split(",")):
            names = [f"{o.out}/{dtype}-{seed}.{who}.json" for who in ("ours", "theirs")]
            if all(map(os.path.exists, names)):
                pairs.append((dtype, seed, *(side(n, None) for n in names)))
    last = str(o.steps)
    lines = ["| type | seed | validation at 0: here, PyTorch | at the end: here, PyTorch | difference | most in steps 1 to 10 | first step 0.01 apart |", "|---|---|---|---|---|---|---|"]
    for dtype, seed, a, b in pairs:
        step, most = parts_at(a, b)
        lines.append(f"| {dtype} | {seed} | {a['val']['0']:.6f}, {b['val']['0']:.6f} | {a['val'][last]:.4f}, {b['val'][last]:.4f} | {a['val'][last] - b['val'][last]:+.4f} | {most:.1e} | {step or 'none'} |")
    lines.append("")
    for dtype in o.dtypes.split(","):
        gaps = [a["val"][last] - b["val"][last] for d, _, a, b in pairs if d == dtype]
        if len(gaps) < 2:
            lines.append(f"{dtype}: {len(gaps)} of 8 pairs: no test can be made.")
            continue
        mean, error = student.mean_and_error(gaps)
        p = student.p_within(gaps, MARGIN)
        lines.append(f"{dtype}: {len(gaps)} of 8 pairs, mean difference {mean:+.5f} nats, standard error {error:.5f}; within +-{MARGIN}: p = {p:.2g}"
                     f"{', shown' if p < 0.05 and len(gaps) == 8 else ', not shown' if len(gaps) == 8 else '; the test is for 8'}.")
    text = "\n".join(lines) + "\n"
    print(text)
    with open(f"{o.out}/report.md", "w", encoding="utf-8") as f:
        f.write(text)
    if pairs:
        draw(f"{o.out}/curves.svg", pairs, o.steps)


def flags(doc, out):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_llama", type=os.path.abspath)
    parser.add_argument("--data", default="data/stdlib", type=os.path.abspath, help="made by prepare.py stdlib")
    parser.add_argument("--out", default=out)
    parser.add_argument("--seeds", default="1,2,3,4,5,6,7,8")
    return parser


def main():
    parser = flags(__doc__, "runs/whole_run")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--steps", type=int, default=400, help="fewer for a try, in an --out of its own")
    parser.add_argument("--val-tokens", type=int, default=65536)
    parser.add_argument("--report", action="store_true")
    o = parser.parse_args()
    os.makedirs(o.out, exist_ok=True)
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
