#!/usr/bin/env python3
"""Number formats compared: what fp32, fp16, fp8 and bf16 state cost in validation loss against bf16, in pairs.

    nice -n 19 python3 dev/run/precisions.py ./train_llama --work /tmp/precisions --report runs/precisions.md [--minutes 60]

Trains the quickstart's model on the source of Python's standard library. Each type has the same seeds: a pair has the same first
weights and the same batches. Seed after seed, first with the types that have a bar; after --minutes no run begins. A run adds a line to the .jsonl
beside REPORT, and what has a line there is not run again: a comparison may be stopped, resumed, and grown by more seeds. Lines
count only among the same settings and data. The table says how many pairs each type has: the mean of (loss - bf16's) / bf16's, its
95 % interval by Student's t, spikes, memory, and the bytes that each of three ranks sends in a step of ZeRO-3.
--report-only runs nothing and writes table and picture from the lines that are there."""

import argparse
import datetime
import hashlib
import math
import os
import platform
import time

import student
import study
from picture import BLUE, GREY, ORANGE, PINK, Chart, Picture

TYPES = {  # name: flags, the largest gap allowed at the interval's upper end
    "bf16": (["--dtype", "bf16", "--grad-dtype", "fp32"], None),
    "fp8 tensor": (["--dtype", "bf16", "--grad-dtype", "fp32", "--fp8", "tensor"], 0.01),
    "fp8 block": (["--dtype", "bf16", "--grad-dtype", "fp32", "--fp8", "block"], 0.005),
    "fp16": (["--dtype", "fp16"], 0.005),
    "bf16 state": (["--dtype", "bf16", "--grad-dtype", "fp32", "--master-dtype", "bf16", "--adam-dtype", "bf16"], None),
    "fp32": (["--dtype", "fp32"], None),
}
BASE = "bf16"
SETTINGS = ("steps", "lr", "batch", "seq_len", "model", "val_tokens")  # what runs must have in common, beside the data


def data_sum(args):
    """Of the shards' names and bytes: 12 hexadecimal digits."""
    sum_ = hashlib.sha256()
    for name in sorted(os.listdir(f"{args.work}/data")):
        if name.endswith(".bin"):
            sum_.update(name.encode())
            with open(f"{args.work}/data/{name}", "rb") as f:
                while block := f.read(1 << 20):
                    sum_.update(block)
    return sum_.hexdigest()[:12]


def journal(args, what):
    """Of what has been done: "run" or "wire"."""
    settings = {name: getattr(args, name) for name in SETTINGS} | {"data": args.data_sum}
    return study.Journal(study.beside(args.report, ".jsonl"), "type", "seed", "what", settings=settings, what=what)


def done(args, what):
    return {(name, seed): row for (name, seed, _), row in journal(args, what).rows().items() if name in TYPES}


def flags(args, name):
    fixed = ["--preset", "bytes", *args.model.split(), "--data", f"{args.work}/data", "--batch", args.batch, "--seq-len", args.seq_len]
    fixed += ["--lr", args.lr, "--warmup", args.steps // 10, "--device", "cpu", "--log-every", 50, "--spike-z", 6]
    return [*fixed, *TYPES[name][0], "--val-every", 0, "--save-every", 0]


def folder(args, name, seed):
    return f"{args.work}/{name.replace(' ', '-')}-{seed}"


def train(args, seed, name, until):
    start = time.monotonic()
    if start > until:
        return
    more = ["--seed", seed, "--steps", args.steps, "--val-tokens", args.val_tokens, "--threads", args.threads]
    left, _ = study.train(args.program, flags(args, name) + more, folder(args, name, seed), OMP_NUM_THREADS=str(args.threads))
    row = {"date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M}", "commit": left.commit, "type": name, "seed": seed, "val_loss": left.val_loss,
           "spikes": sum("spike" in row for row in left.rows), "skipped": left.steps[-1].get("skipped", 0),
           "memory": max(row["memory_bytes"] for row in left.steps), "seconds": round(sum(row["seconds"] for row in left.steps), 1)}  # fmt: skip
    journal(args, "run").add(row)
    print(f"seed {seed}, {name}: {row['val_loss']:.4f}, {time.monotonic() - start:.0f} s", flush=True)


def measure_wire(args, name):
    """Bytes that a rank of three sends in a step of ZeRO-3, on average."""
    more = "--batch 2 --seq-len 64 --zero 3 --collectives ring --steps 3 --warmup 1 --val-tokens 1 --threads 1".split()
    left, _ = study.train(args.program, flags(args, name) + more, folder(args, name, "wire"), ranks=3)
    journal(args, "wire").add({"type": name, "seed": 0, "bytes_sent": left.steps[-1].get("bytes_sent", 0)})


def picture(gaps):
    """Dots: pairs by seed; a bar: the mean and its interval; a dashed line: what is allowed."""
    most = max([abs(g) for of_type in gaps.values() for g in of_type] + [0.0105])
    p = Picture("Validation loss of the number formats against bf16", 60 + 46 * len(gaps))
    p.text(130, 18, "validation loss against bf16, by pairs of a seed: dots; mean and 95 % interval: bar; allowed: dashed")
    chart = Chart(p, (130, 28, 610, 46 * len(gaps)), (-most, most), (0, 1))
    percents = range(-int(most * 100), int(most * 100) + 1)
    chart.columns([percent / 100 for percent in percents], lambda gap: f"{100 * gap:+.0f} %")
    for i, (name, values) in enumerate(gaps.items()):
        y = 50 + i * 46
        p.text(122, y + 4, f"{name}, {len(values)}", anchor="end")
        if values:
            mean, half = student.interval(values)
            half = 0 if math.isnan(half) else half
            p.line([(chart.x(max(-most, mean - half)), y), (chart.x(min(most, mean + half)), y)], BLUE, 3)
            p.line([(chart.x(mean), y - 8), (chart.x(mean), y + 8)], BLUE, 3)
        for v in values:
            p.circle(round(chart.x(v), 1), y + 13, 3, ORANGE, ORANGE)
        if limit := TYPES[name][1]:
            p.line([(chart.x(limit), y - 14), (chart.x(limit), y + 18)], PINK, dashed=True)
    p.line([(chart.x(0), 28), (chart.x(0), 28 + 46 * len(gaps))], GREY)
    return p.svg()


def verdict(limit, mean, half, pairs):
    if limit is None:
        return "-"
    if pairs < 2:
        return f"{100 * limit:.1f} %: not known"
    if mean + half <= limit:
        return f"{100 * limit:.1f} %: met"
    return f"{100 * limit:.1f} %: {'missed' if mean - half > limit else 'not settled, the interval holds it'}"


def report(args):
    runs, wire = done(args, "run"), done(args, "wire")
    by = {name: {seed: row for (type_, seed), row in runs.items() if type_ == name} for name in TYPES}
    if not by[BASE]:
        raise SystemExit(f"precisions: {journal(args, 'run').path} has no run in {BASE} with these settings and data yet")
    gaps = {name: [row["val_loss"] / by[BASE][seed]["val_loss"] - 1 for seed, row in sorted(rows.items()) if seed in by[BASE]]
            for name, rows in by.items() if name != BASE}  # fmt: skip
    commits, dates = sorted({r["commit"] for r in runs.values()}), sorted(r["date"][:10] for r in runs.values())
    lines = [
        "# Number formats compared on real text",
        "",
        f"    python3 dev/run/precisions.py ./train_llama --work WORK --report runs/precisions.md --steps {args.steps} --lr {args.lr} --batch {args.batch} --seq-len {args.seq_len} --val-tokens {args.val_tokens} --model '{args.model}'",
        "",
        f"Commit {', '.join(commits)}; {dates[0]}{'' if dates[0] == dates[-1] else ' to ' + dates[-1]}; {study.cpu_name()}, {os.cpu_count()} cores shared with other work, {platform.system()}; the CPU backend, no GPU.",
        f"The quickstart's model (`--preset bytes`) with {args.model}, since `block` needs multiples of 128; {args.steps} steps of {args.batch * args.seq_len} tokens at a learning rate of {args.lr},",
        f"the source of Python's standard library as bytes (sum {args.data_sum}), validation on {args.val_tokens} tokens. With a seed all types have the",
        "same first weights and the same batches. Gap: (loss - loss of bf16) / loss of bf16, of a pair; below 0 is better than bf16.",
        f"[Every run, one line each]({os.path.basename(journal(args, 'run').path)}).",
        "",
    ]
    rows = []
    for name in TYPES:
        r, limit = list(by[name].values()), TYPES[name][1]
        if not r:
            rows.append([name, 0, *["not run"] * 8])
            continue
        cells = [name, str(len(r)), f"{sum(v['val_loss'] for v in r) / len(r):.4f}"]
        if name == BASE:
            cells += ["0", "-", "-"]
        elif not gaps[name]:
            cells += ["no pair", "-", "-"]
        else:
            mean, half = student.interval(gaps[name])
            more = len(gaps[name]) > 1
            cells += [f"{100 * mean:+.3f} %", f"{100 * (mean - half):+.3f} to {100 * (mean + half):+.3f} %" if more else "one pair has none"]
            cells.append(verdict(limit, mean, half, len(gaps[name])))
        sent = wire.get((name, 0))
        cells += [str(sum(v["spikes"] for v in r)), str(sum(v["skipped"] for v in r)), f"{r[0]['memory'] / 2**20:.1f}"]
        rows.append([*cells, f"{sent['bytes_sent'] / 1e6:.2f}" if sent else "not measured"])
    head = ["type", "seeds", "validation loss, mean", "gap to bf16, mean", "95 % interval", "allowed at its upper end", "spikes", "updates skipped",
            "peak memory, MiB", "MB sent in a step, ZeRO-3 on 3 ranks"]  # fmt: skip
    svg = study.beside(args.report, ".svg")
    lines += [study.table(head, rows), f"![Gap to bf16, by type and number of pairs]({os.path.basename(svg)})", "", "Losses by seed:", ""]
    seeds = sorted({seed for _, seed in runs})
    losses = [[seed, *(f"{of[seed]['val_loss']:.4f}" if seed in of else "-" for of in by.values())] for seed in seeds]
    lines += study.table(["seed", *TYPES], losses).splitlines()
    if args.about and os.path.exists(args.about):
        with open(args.about, encoding="utf-8") as f:
            lines += ["", f.read().strip()]
    study.write(svg, picture(gaps))
    study.write(args.report, "\n".join([*lines, ""]))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    study.arguments(p)
    p.add_argument("--about", default="", help="a file of Markdown to put below the tables")
    p.add_argument("--seeds", type=int, default=8)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--lr", default="2e-3")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--model", default="--ffn 768", help="flags that change the model (default: --ffn 768; block needs multiples of 128)")
    p.add_argument("--val-tokens", type=int, default=1 << 19)
    p.add_argument("--threads", type=int, default=2, help="of each run")
    p.add_argument("--minutes", type=float, default=1e9, help="no run begins after them")
    args = p.parse_args()
    study.prepare(f"{args.work}/data", "stdlib")
    args.data_sum = data_sum(args)
    if not args.report_only:
        compared = [name for name in TYPES if name == BASE or TYPES[name][1]]  # all seeds of these come first
        until, known = time.monotonic() + 60 * args.minutes, done(args, "run")
        for names in (compared, [name for name in TYPES if name not in compared]):
            todo = [(seed, name) for seed in range(1, args.seeds + 1) for name in names if (name, seed) not in known]
            study.each(args.jobs, lambda seed, name: train(args, seed, name, until), todo)
        for name in TYPES:
            if (name, 0) not in done(args, "wire"):
                measure_wire(args, name)
    report(args)


if __name__ == "__main__":
    main()
