#!/usr/bin/env python3
"""Where the best learning rate lies at widths 64 to 512, with muP and without.

    python3 dev/run/mup_study.py ./train_llama --work /tmp/mup --report /tmp/mup/report.md

Trains a small LLaMA on the source of Python's standard library at each width, rate and seed, --jobs runs at a time on one thread each, with
--mup-base-width 64 and without; at the base width the two are the same run. A run adds a line to the .jsonl beside REPORT, and what has a line there is
not run again: the study may be stopped and resumed. Lines count only among the same settings. The report has the losses, the best rate of each width
(with half the distance to its neighbours where a parabola through the three has its least), and a picture. --report-only runs nothing."""

import argparse
import concurrent.futures
import datetime
import json
import math
import os
import shutil
import subprocess
import sys
import time

WIDTHS = (64, 128, 256, 512)
BASE = WIDTHS[0]
RATES = tuple(2.0**-k for k in range(11, 4, -1))
SEEDS = (1, 2)
WAYS = ("muP", "without")
COLORS = ("#1b6ca8", "#2a9d5c", "#d98b1f", "#b8323a")


def model(width):
    return ["--preset", "bytes", "--dim", width, "--layers", 2, "--head-dim", 32, "--heads", width // 32, "--kv-heads", width // 64, "--ffn", 2 * width,
            "--head", "untied"]  # fmt: skip


def settings(o):
    return {"steps": o.steps, "batch": o.batch, "seq_len": o.seq_len, "val_tokens": o.val_tokens}


def lines_file(o):
    return os.path.splitext(o.report)[0] + ".jsonl"


def known(o):
    """Lines with these settings by (way, width, rate, seed)."""
    if not os.path.exists(lines_file(o)):
        return {}
    with open(lines_file(o), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return {(r["way"], r["width"], r["rate"], r["seed"]): r for r in rows if r["settings"] == settings(o)}


def train(o, way, width, rate, seed):
    out = f"{o.work}/run-{way}-{width}-{rate}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    command = [o.program, *model(width), "--data", f"{o.work}/data", "--batch", o.batch, "--seq-len", o.seq_len, "--steps", o.steps, "--lr", rate,
               "--warmup", o.steps // 10, "--seed", seed, "--threads", 1, "--device", "cpu", "--val-every", 0, "--val-tokens", o.val_tokens,
               "--save-every", 0, "--on-spike", "warn", "--out", out]  # fmt: skip
    if way == "muP":
        command += ["--mup-base-width", BASE]
    began = time.monotonic()
    log = f"{out}.log"
    with open(log, "w", encoding="utf-8") as f:
        process = subprocess.Popen([str(x) for x in command], stdout=f, stderr=f, env=os.environ | {"OMP_NUM_THREADS": "1"})
        _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) == 1:
        raise RuntimeError(" ".join(map(str, command)) + "; its output: " + log)
    with open(f"{out}/metrics.jsonl", encoding="utf-8") as f:
        losses = [row["val_loss"] for row in map(json.loads, f) if "val_loss" in row]
    with open(f"{out}/run_status.json", encoding="utf-8") as f:
        commit = json.load(f)["commit"]
    shutil.rmtree(out)
    return {"way": way, "width": width, "rate": rate, "seed": seed, "val_loss": losses[-1] if losses else None, "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1), "commit": commit, "settings": settings(o)}  # fmt: skip


def mean_losses(rows, way, width):
    """By rate: the mean over the seeds that were run; None where none was, or one diverged."""
    found = []
    for rate in RATES:
        of_seeds = [rows[key] for seed in SEEDS if (key := (way if width != BASE else "muP", width, rate, seed)) in rows]
        good = of_seeds and all(r["val_loss"] is not None and math.isfinite(r["val_loss"]) for r in of_seeds)
        found.append(sum(r["val_loss"] for r in of_seeds) / len(of_seeds) if good else None)
    return found


def best(losses):
    """The rate of least loss, and log2 of the least of the parabola through it and its neighbours."""
    known_losses = [(loss, k) for k, loss in enumerate(losses) if loss is not None]
    if not known_losses:
        return None
    loss, k = min(known_losses)
    at = math.log2(RATES[k])
    if 0 < k < len(RATES) - 1 and losses[k - 1] is not None and losses[k + 1] is not None:
        left, right = losses[k - 1] - loss, losses[k + 1] - loss
        at += 0.5 * (left - right) / max(left + right, 1e-9)
    return RATES[k], at, loss


def picture(path, rows):
    w, h, top, bottom = 440, 330, 46, 46
    values = [v for way in WAYS for width in WIDTHS for v in mean_losses(rows, way, width) if v is not None]
    low, high = min(values), min(max(values), min(values) + 1.6)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * w}" height="{h}" viewBox="0 0 {2 * w} {h}" font-family="sans-serif" font-size="12">',
           f'<rect width="{2 * w}" height="{h}" fill="white"/>']  # fmt: skip
    for i, way in enumerate(WAYS):

        def x(k, i=i):
            return i * w + 54 + k * (w - 80) / (len(RATES) - 1)

        def y(v):
            return top + (high - min(v, high)) / (high - low) * (h - top - bottom)

        out.append(f'<text x="{x(0)}" y="24" font-weight="bold">{"with muP, base width 64" if way == "muP" else "without muP"}</text>')
        for k, rate in enumerate(RATES):
            out.append(f'<text x="{x(k):.1f}" y="{h - 26}" text-anchor="middle">2^{round(math.log2(rate))}</text>')
            out.append(f'<line x1="{x(k):.1f}" y1="{top}" x2="{x(k):.1f}" y2="{h - bottom}" stroke="#eee"/>')
        out.append(f'<text x="{x(len(RATES) // 2):.1f}" y="{h - 8}" text-anchor="middle">learning rate</text>')
        for v in [low + (high - low) * t / 4 for t in range(5)]:
            out.append(f'<text x="{x(0) - 8:.1f}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
        for width, color in zip(WIDTHS, COLORS, strict=True):
            losses = mean_losses(rows, way, width)
            points = [(x(k), y(v)) for k, v in enumerate(losses) if v is not None]
            out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>')
            found = best(losses)
            if found:
                out.append(f'<circle cx="{x(RATES.index(found[0])):.1f}" cy="{y(found[2]):.1f}" r="4.5" fill="{color}"/>')
            row = 20 + 15 * WIDTHS.index(width)
            out.append(f'<text x="{(i + 1) * w - 30}" y="{row}" text-anchor="end" fill="{color}">width {width}</text>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join([*out, "</svg>", ""]))


def report(o):
    rows = known(o)
    if not rows:
        sys.exit(f"mup_study: {lines_file(o)} has no run with these settings yet")
    commits = sorted({r["commit"] for r in rows.values()})
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = next(line.split(":")[1].strip() for line in f if line.startswith("model name"))
    text = ["# The best learning rate by width, with muP and without", "",
            f"By dev/run/mup_study.py, {datetime.date.today()}, {cpu}. Commit {', '.join(commits)}; {len(rows)} runs, {sum(r['cpu_seconds'] for r in rows.values()) / 60:.0f} core-minutes, one thread a run. Two layers, heads of 32, half as many kv heads,",
            f"ffn 2 x dim, {o.steps} steps of {o.batch * o.seq_len} tokens, cosine; mean validation loss of the seeds on {o.val_tokens} tokens by `--lr`.", "",
            "| dim | | seeds | " + " | ".join(f"2^{round(math.log2(r))}" for r in RATES) + " | best | between the rates |", "|---" * (5 + len(RATES)) + "|"]  # fmt: skip
    for width in WIDTHS:
        for way in WAYS if width != BASE else ("muP",):
            losses, found = mean_losses(rows, way, width), best(mean_losses(rows, way, width))
            name = "both" if width == BASE else way
            cells = [("-" if v is None else f"{v:.3f}") for v in losses]
            cells += [f"2^{round(math.log2(found[0]))}", f"2^{found[1]:.1f}"] if found else ["-", "-"]
            seeds = len({seed for w, d, _, seed in rows if d == width and w == (way if width != BASE else "muP")})
            text.append(f"| {width} | {name} | {seeds} | " + " | ".join(cells) + " |")
    with open(o.report, "w", encoding="utf-8") as f:
        f.write("\n".join([*text, ""]))
    picture(os.path.splitext(o.report)[0] + ".svg", rows)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("program")
    p.add_argument("--work", required=True, help="folder for data and runs")
    p.add_argument("--report", required=True, help="the table to write; runs (.jsonl) and picture (.svg) are beside it")
    p.add_argument("--report-only", action="store_true")
    p.add_argument("--jobs", type=int, default=2, help="runs at a time")
    p.add_argument("--steps", type=int, default=128)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=64)
    p.add_argument("--val-tokens", type=int, default=8192)
    o = p.parse_args()
    o.program = os.path.realpath(o.program)
    os.makedirs(o.work, exist_ok=True)
    if not os.path.exists(f"{o.work}/data/dataset.json") and not o.report_only:
        subprocess.run([sys.executable, "data_prep/prepare.py", "stdlib", "--out", f"{o.work}/data", "--quiet"], check=True)
    rows = known(o)
    todo = [key for width in WIDTHS for seed in SEEDS for way in (WAYS if width != BASE else ("muP",)) for rate in RATES
            if not o.report_only and (key := (way, width, rate, seed)) not in rows]  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(train, o, *key) for key in todo]):
            row = done.result()
            with open(lines_file(o), "a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")
            print(f"seed {row['seed']} width {row['width']} {row['way']:8} rate {row['rate']:.5f}: {row['val_loss']}, {row['cpu_seconds']} s", flush=True)
    report(o)


if __name__ == "__main__":
    main()
