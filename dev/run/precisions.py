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
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TYPES = {  # name: flags, the largest gap allowed at the interval's upper end
    "bf16": (["--dtype", "bf16", "--grad-dtype", "fp32"], None),
    "fp8 tensor": (["--dtype", "bf16", "--grad-dtype", "fp32", "--fp8", "tensor"], 0.01),
    "fp8 block": (["--dtype", "bf16", "--grad-dtype", "fp32", "--fp8", "block"], 0.005),
    "fp16": (["--dtype", "fp16"], 0.005),
    "bf16 state": (["--dtype", "bf16", "--grad-dtype", "fp32", "--master-dtype", "bf16", "--adam-dtype", "bf16"], None),
    "fp32": (["--dtype", "fp32"], None),
}
BASE = "bf16"
STUDENT = [0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131]  # 97.5 %, by degrees of freedom
SETTINGS = ("steps", "lr", "batch", "seq_len", "model", "val_tokens")  # what runs must have in common, beside the data


def lines_file(args):
    return os.path.splitext(args.report)[0] + ".jsonl"


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


def settings(args):
    return {name: getattr(args, name) for name in SETTINGS} | {"data": args.data_sum}


def known(args, what):
    """The lines of `what` ("run" or "wire") with these settings, by type and seed."""
    found = {}
    if os.path.exists(lines_file(args)):
        with open(lines_file(args), encoding="utf-8") as f:
            for number, text in enumerate(f, 1):
                try:
                    row = json.loads(text)
                    if row["what"] == what and row["settings"] == settings(args) and row["type"] in TYPES:
                        found[(row["type"], row["seed"])] = row
                except (ValueError, KeyError, TypeError):
                    sys.exit(f"{lines_file(args)}, line {number}: not a line of this program\n  take it out")
    return found


def add_line(args, row):
    row = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"), "settings": settings(args)} | row
    with open(lines_file(args), "a", encoding="utf-8") as f:
        f.write(json.dumps(row) + "\n")


def folder(args, name, seed):
    return f"{args.work}/{name.replace(' ', '-')}-{seed}"


def flags(args, name):
    fixed = ["--preset", "bytes", *args.model.split(), "--data", f"{args.work}/data", "--batch", args.batch, "--seq-len", args.seq_len]
    fixed += ["--lr", args.lr, "--warmup", args.steps // 10, "--device", "cpu", "--log-every", 50, "--spike-z", 6]
    return [str(x) for x in fixed] + TYPES[name][0]


def call(command, log):
    with open(log, "w", encoding="utf-8") as f:
        code = subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        with open(log, encoding="utf-8") as f:
            sys.exit(f"{' '.join(command)}\nended with {code}:\n{f.read()[-2000:]}")


def train(args, name, seed):
    out = folder(args, name, seed)
    shutil.rmtree(out, ignore_errors=True)
    command = [args.program, *flags(args, name), "--seed", str(seed), "--steps", str(args.steps), "--val-every", "0", "--val-tokens",
               str(args.val_tokens), "--save-every", "0", "--threads", str(args.threads), "--out", out]  # fmt: skip
    call(command, f"{out}.log")
    with open(f"{out}/metrics.jsonl", encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    steps = [row for row in lines if "loss" in row]
    with open(f"{out}/run_status.json", encoding="utf-8") as f:
        commit = json.load(f)["commit"]
    row = {"commit": commit, "what": "run", "type": name, "seed": seed, "val_loss": float([row["val_loss"] for row in lines if "val_loss" in row][-1]),
           "spikes": sum("spike" in row for row in lines), "skipped": steps[-1].get("skipped", 0),
           "memory": max(row["memory_bytes"] for row in steps), "seconds": round(sum(row["seconds"] for row in steps), 1)}  # fmt: skip
    add_line(args, row)
    shutil.rmtree(out)
    return row


def measure_wire(args, name):
    """Bytes that a rank of three sends in a step of ZeRO-3, on average."""
    out = folder(args, name, "wire")
    shutil.rmtree(out, ignore_errors=True)
    command = ["mpirun", "-n", "3", args.program, *flags(args, name), "--batch", "2", "--seq-len", "64", "--zero", "3", "--collectives",
               "ring", "--steps", "3", "--warmup", "1", "--val-every", "0", "--val-tokens", "1", "--save-every", "0", "--threads", "1", "--out", out]  # fmt: skip
    call(command, f"{out}.log")
    with open(f"{out}/metrics.jsonl", encoding="utf-8") as f:
        sent = [row for row in map(json.loads, f) if "loss" in row][-1].get("bytes_sent", 0)
    add_line(args, {"what": "wire", "type": name, "seed": 0, "bytes_sent": sent})
    shutil.rmtree(out)


def interval(values):
    n, mean = len(values), sum(values) / len(values)
    if n < 2:
        return mean, float("nan")
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return mean, STUDENT[min(n - 1, len(STUDENT) - 1)] * deviation / math.sqrt(n)


def picture(path, gaps):
    """Dots: pairs by seed; a bar: the mean and its interval; a dashed line: what is allowed."""
    width, row, left, right = 760, 46, 130, 20
    largest = max([abs(g) for all_ in gaps.values() for g in all_] + [0.0105])
    height = row * len(gaps) + 60

    def x(gap):
        return left + (gap + largest) / (2 * largest) * (width - left - right)

    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="18">validation loss against bf16, by pairs of a seed: dots; mean and 95 % interval: bar; allowed: dashed</text>',
        f'<line x1="{x(0):.1f}" y1="28" x2="{x(0):.1f}" y2="{height - 26}" stroke="#999"/>',
    ]
    for i, (name, values) in enumerate(gaps.items()):
        y = 50 + i * row
        text.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{name}, {len(values)}</text>')
        if values:
            mean, half = interval(values)
            half = 0 if math.isnan(half) else half
            low, high = max(-largest, mean - half), min(largest, mean + half)
            text.append(f'<line x1="{x(low):.1f}" y1="{y}" x2="{x(high):.1f}" y2="{y}" stroke="#1f5fa8" stroke-width="3"/>')
            text.append(f'<line x1="{x(mean):.1f}" y1="{y - 8}" x2="{x(mean):.1f}" y2="{y + 8}" stroke="#1f5fa8" stroke-width="3"/>')
        text += [f'<circle cx="{x(v):.1f}" cy="{y + 13}" r="3" fill="#c4622d"/>' for v in values]
        limit = TYPES[name][1]
        if limit:
            text.append(f'<line x1="{x(limit):.1f}" y1="{y - 14}" x2="{x(limit):.1f}" y2="{y + 18}" stroke="#a33" stroke-dasharray="4 3"/>')
    for percent in range(-int(largest * 100), int(largest * 100) + 1):
        text.append(f'<text x="{x(percent / 100):.1f}" y="{height - 10}" text-anchor="middle">{percent:+d} %</text>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join([*text, "</svg>", ""]))


def verdict(limit, mean, half, pairs):
    if limit is None:
        return "-"
    if pairs < 2:
        return f"{100 * limit:.1f} %: not known"
    if mean + half <= limit:
        return f"{100 * limit:.1f} %: met"
    return f"{100 * limit:.1f} %: {'missed' if mean - half > limit else 'not settled, the interval holds it'}"


def report(args):
    runs, wire = known(args, "run"), known(args, "wire")
    by = {name: {seed: row for (type_, seed), row in runs.items() if type_ == name} for name in TYPES}
    if not by[BASE]:
        sys.exit(f"precisions: {lines_file(args)} has no run in {BASE} with these settings and data yet")
    gaps = {name: [row["val_loss"] / by[BASE][seed]["val_loss"] - 1 for seed, row in sorted(rows.items()) if seed in by[BASE]]
            for name, rows in by.items() if name != BASE}  # fmt: skip
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    commits, dates = sorted({r["commit"] for r in runs.values()}), sorted(r["date"][:10] for r in runs.values())
    lines = [
        "# Number formats compared on real text",
        "",
        f"    python3 dev/run/precisions.py ./train_llama --work WORK --report runs/precisions.md --steps {args.steps} --lr {args.lr} --batch {args.batch} --seq-len {args.seq_len} --val-tokens {args.val_tokens} --model '{args.model}'",
        "",
        f"Commit {', '.join(commits)}; {dates[0]}{'' if dates[0] == dates[-1] else ' to ' + dates[-1]}; {cpu}, {os.cpu_count()} cores shared with other work, {platform.system()}; the CPU backend, no GPU.",
        f"The quickstart's model (`--preset bytes`) with {args.model}, since `block` needs multiples of 128; {args.steps} steps of {args.batch * args.seq_len} tokens at a learning rate of {args.lr},",
        f"the source of Python's standard library as bytes (sum {args.data_sum}), validation on {args.val_tokens} tokens. With a seed all types have the",
        "same first weights and the same batches. Gap: (loss - loss of bf16) / loss of bf16, of a pair; below 0 is better than bf16.",
        f"[Every run, one line each]({os.path.basename(lines_file(args))}).",
        "",
        "| type | seeds | validation loss, mean | gap to bf16, mean | 95 % interval | allowed at its upper end | spikes | updates skipped | peak memory, MiB | MB sent in a step, ZeRO-3 on 3 ranks |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in TYPES:
        r, limit = list(by[name].values()), TYPES[name][1]
        if not r:
            lines.append(f"| {name} | 0 |" + " not run |" * 8)
            continue
        cells = [name, str(len(r)), f"{sum(v['val_loss'] for v in r) / len(r):.4f}"]
        if name == BASE:
            cells += ["0", "-", "-"]
        elif not gaps[name]:
            cells += ["no pair", "-", "-"]
        else:
            mean, half = interval(gaps[name])
            more = len(gaps[name]) > 1
            cells += [f"{100 * mean:+.3f} %", f"{100 * (mean - half):+.3f} to {100 * (mean + half):+.3f} %" if more else "one pair has none"]
            cells.append(verdict(limit, mean, half, len(gaps[name])))
        sent = wire.get((name, 0))
        cells += [str(sum(v["spikes"] for v in r)), str(sum(v["skipped"] for v in r)), f"{r[0]['memory'] / 2**20:.1f}"]
        lines.append("| " + " | ".join([*cells, f"{sent['bytes_sent'] / 1e6:.2f}" if sent else "not measured"]) + " |")
    svg = os.path.splitext(args.report)[0] + ".svg"
    lines += ["", f"![Gap to bf16, by type and number of pairs]({os.path.basename(svg)})", "", "Losses by seed:", ""]
    lines += ["| seed | " + " | ".join(TYPES) + " |", "|---" * (1 + len(TYPES)) + "|"]
    for seed in sorted({seed for _, seed in runs}):
        lines.append(f"| {seed} | " + " | ".join(f"{by[name][seed]['val_loss']:.4f}" if seed in by[name] else "-" for name in TYPES) + " |")
    if args.about and os.path.exists(args.about):
        with open(args.about, encoding="utf-8") as f:
            lines += ["", f.read().strip()]
    picture(svg, gaps)
    with open(args.report + ".tmp", "w", encoding="utf-8") as f:
        f.write("\n".join([*lines, ""]))
    os.replace(args.report + ".tmp", args.report)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("program")
    p.add_argument("--work", required=True, help="folder for data and runs")
    p.add_argument("--report", required=True, help="the table to write; runs (.jsonl) and picture (.svg) are beside it")
    p.add_argument("--report-only", action="store_true", help="run nothing")
    p.add_argument("--about", default="", help="a file of Markdown to put below the tables")
    p.add_argument("--seeds", type=int, default=8)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--lr", default="2e-3")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq-len", type=int, default=256)
    p.add_argument("--model", default="--ffn 768", help="flags that change the model (default: --ffn 768; block needs multiples of 128)")
    p.add_argument("--val-tokens", type=int, default=1 << 19)
    p.add_argument("--jobs", type=int, default=1, help="runs at a time")
    p.add_argument("--threads", type=int, default=2, help="of each run")
    p.add_argument("--minutes", type=float, default=1e9, help="no run begins after them")
    args = p.parse_args()
    args.program = os.path.realpath(args.program)
    os.makedirs(args.work, exist_ok=True)
    if not os.path.exists(f"{args.work}/data/dataset.json"):
        subprocess.run([sys.executable, "data_prep/prepare.py", "stdlib", "--out", f"{args.work}/data", "--quiet"], check=True)
    args.data_sum = data_sum(args)
    began, runs, wire = time.monotonic(), known(args, "run"), known(args, "wire")

    def job(pair):
        seed, name = pair
        start = time.monotonic()
        if (name, seed) in runs or start - began > 60 * args.minutes:
            return
        row = train(args, name, seed)
        print(f"seed {seed}, {name}: {row['val_loss']:.4f}, {time.monotonic() - start:.0f} s", flush=True)

    if not args.report_only:
        with ThreadPoolExecutor(args.jobs) as pool:
            seeds = range(1, args.seeds + 1)
            compared = [name for name in TYPES if name == BASE or TYPES[name][1]]  # all seeds of these come first
            list(pool.map(job, [(seed, name) for seed in seeds for name in compared]))
            list(pool.map(job, [(seed, name) for seed in seeds for name in TYPES if name not in compared]))
        for name in TYPES:
            if (name, 0) not in wire:
                measure_wire(args, name)
    report(args)


if __name__ == "__main__":
    main()
