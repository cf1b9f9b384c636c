#!/usr/bin/env python3
"""Where the best learning rate lies at widths 64 to 512, with muP and without.

    python3 dev/run/mup_study.py ./train_llama --work /tmp/mup --report /tmp/mup/report.md

Trains a small LLaMA on the source of Python's standard library at each width, rate and seed, --jobs runs at a time on one thread each, with
--mup-base-width 64 and without; at the base width the two are the same run. A run adds a line to the .jsonl beside REPORT, and what has a line there is
not run again: the study may be stopped and resumed. Lines count only among the same settings. The report has the losses, the best rate of each width
(with half the distance to its neighbours where a parabola through the three has its least), and a picture. --report-only runs nothing."""

import argparse
import datetime
import math

import study
from picture import BLUE, GREEN, ORANGE, PINK, Chart, Picture

WIDTHS = (64, 128, 256, 512)
BASE = WIDTHS[0]
RATES = tuple(2.0**-k for k in range(11, 4, -1))
SEEDS = (1, 2)
WAYS = ("muP", "without")
COLOURS = (BLUE, GREEN, ORANGE, PINK)


def model(width):
    return ["--preset", "bytes", "--dim", width, "--layers", 2, "--head-dim", 32, "--heads", width // 32, "--kv-heads", width // 64, "--ffn", 2 * width,
            "--head", "untied"]  # fmt: skip


def journal(o):
    settings = {"steps": o.steps, "batch": o.batch, "seq_len": o.seq_len, "val_tokens": o.val_tokens}
    return study.Journal(study.beside(o.report, ".jsonl"), "way", "width", "rate", "seed", settings=settings)


def train(o, way, width, rate, seed):
    flags = [*model(width), "--data", f"{o.work}/data", "--batch", o.batch, "--seq-len", o.seq_len, "--steps", o.steps, "--lr", rate,
             "--warmup", o.steps // 10, "--seed", seed, "--threads", 1, "--device", "cpu", "--val-every", 0, "--val-tokens", o.val_tokens,
             "--save-every", 0, "--on-spike", "warn"]  # fmt: skip
    if way == "muP":
        flags += ["--mup-base-width", BASE]
    # A run that diverges ends with another code than 1.
    left, used = study.train(o.program, flags, f"{o.work}/run-{way}-{width}-{rate}-{seed}", allowed=[0, *range(2, 256)])
    row = {"way": way, "width": width, "rate": rate, "seed": seed, "val_loss": left.val_loss, "commit": left.commit, **used}
    journal(o).add(row)
    print(f"seed {seed} width {width} {way:8} rate {rate:.5f}: {row['val_loss']}, {row['cpu_seconds']} s", flush=True)


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


def picture(rows):
    values = [v for way in WAYS for width in WIDTHS for v in mean_losses(rows, way, width) if v is not None]
    low, high = min(values), min(max(values), min(values) + 1.6)
    p = Picture("The best learning rate by width", 330, 880)
    for i, way in enumerate(WAYS):
        p.head("with muP, base width 64" if way == "muP" else "without muP", x=440 * i + 54)
        chart = Chart(p, (440 * i + 54, 46, 360, 230), (RATES[0], RATES[-1]), (low, high), log="x")
        chart.columns(RATES, lambda rate: f"2^{round(math.log2(rate))}")
        chart.rows([low + (high - low) * t / 4 for t in range(5)], "{:.2f}".format)
        p.text(440 * i + 234, 316, "learning rate", 12, "middle")
        for row, (width, colour) in enumerate(zip(WIDTHS, COLOURS)):
            losses = mean_losses(rows, way, width)
            chart.curve([(rate, v) for rate, v in zip(RATES, losses) if v is not None], colour)
            if found := best(losses):
                chart.dot(found[0], found[2], colour)
            p.text(440 * i + 410, 20 + 15 * row, f"width {width}", 12, "end", colour=colour)
    return p.svg()


def report(o):
    rows = journal(o).rows()
    if not rows:
        raise SystemExit(f"mup_study: {journal(o).path} has no run with these settings yet")
    minutes = sum(r["cpu_seconds"] for r in rows.values()) / 60
    text = f"""# The best learning rate by width, with muP and without

By dev/run/mup_study.py, {datetime.date.today()}, {study.cpu_name()}. Commit {', '.join(sorted({r["commit"] for r in rows.values()}))}; {len(rows)} runs, {minutes:.0f} core-minutes, one thread a run. Two layers, heads of 32, half as many kv heads,
ffn 2 x dim, {o.steps} steps of {o.batch * o.seq_len} tokens, cosine; mean validation loss of the seeds on {o.val_tokens} tokens by `--lr`.

"""
    cells = []
    for width in WIDTHS:
        for way in WAYS if width != BASE else ("muP",):
            losses, found = mean_losses(rows, way, width), best(mean_losses(rows, way, width))
            seeds = len({seed for w, d, _, seed in rows if (w, d) == (way, width)})
            row = [width, "both" if width == BASE else way, seeds, *("-" if v is None else f"{v:.3f}" for v in losses)]
            cells.append(row + ([f"2^{round(math.log2(found[0]))}", f"2^{found[1]:.1f}"] if found else ["-", "-"]))
    head = ["dim", "", "seeds", *(f"2^{round(math.log2(r))}" for r in RATES), "best", "between the rates"]
    study.write(o.report, text + study.table(head, cells))
    study.write(study.beside(o.report, ".svg"), picture(rows))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    study.arguments(p, jobs=2)
    p.add_argument("--steps", type=int, default=128)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=64)
    p.add_argument("--val-tokens", type=int, default=8192)
    o = p.parse_args()
    if not o.report_only:
        study.prepare(f"{o.work}/data", "stdlib")
        done = journal(o).rows()
        wanted = [(way, width, rate, seed) for width in WIDTHS for seed in SEEDS for way in WAYS for rate in RATES
                  if way == "muP" or width != BASE]  # fmt: skip
        study.each(o.jobs, lambda *key: train(o, *key), [key for key in wanted if key not in done])
    report(o)


if __name__ == "__main__":
    main()
