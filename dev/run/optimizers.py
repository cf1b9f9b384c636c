#!/usr/bin/env python3
"""Does Muon learn faster than AdamW here? Small trainings on one thread of a CPU.

    python3 dev/run/optimizers.py ./train_llama --work /tmp/optimizers --report dev/results/optimizers.md

Seven learning rates with one seed each, then --seeds seeds at the best rate of each and its neighbours. A run adds a
line to the .jsonl beside REPORT, and what has a line there is not run again; no run starts after --minutes of CPU time.
The report has the losses, and after how many steps and CPU seconds Muon has the last loss of AdamW at its best rate.
Muon is better where the means differ by 0.004 nats over the root of the number of seeds (modded-nanogpt's rule) and by
Welch's t of at least 3."""

import argparse
import datetime
import itertools
import math
import os
import statistics

import student
import study
from picture import BLUE, ORANGE, Chart, Picture

SETUPS = {  # name: arguments of prepare.py, flags of a run, what differs from the original
    "stdlib": (
        "stdlib --max-bytes 1M",
        "--preset bytes --dim 64 --layers 2 --heads 4 --kv-heads 2 --ffn 128 --seq-len 64 --batch 8 "
        + "--batch-tokens 512 --steps 200 --val-every 25 --val-tokens 16384",
        "A small model of Python's library as bytes.",
    ),
    "speedrun-300": (
        "synthetic --order 2 --symbols 16 --tokens 4e6 --val-tokens 2e5",
        "--config dev/learn/speedrun/record.toml --steps 300 --val-every 30 --val-tokens 16384",
        "The speedrun below, ended after 300 steps.",
    ),
    "speedrun": (
        "synthetic --order 2 --symbols 16 --tokens 4e6 --val-tokens 2e5",
        "--config dev/learn/speedrun/record.toml --val-every 100 --val-tokens 16384",
        "`make speedrun` has 131,072 validation tokens and two threads; the rest is its own, 2000 steps too. The text's "
        + "source itself has 1.6637 nats: both are near the end of what can be learned.",
    ),
    "quickstart": (
        "fables",
        "--config llama/configs/quickstart.toml --steps 30 --warmup 3 --val-every 10 --val-tokens 8192",
        "`make quickstart` has 400 steps, 40 of them warm-up, 65,536 validation tokens, all cores; the rest is alike. "
        + "38 runs of its length would take more than four core-hours, and this page has 90 core-minutes.",
    ),
}
ALWAYS = "--save-every 0 --on-spike warn --threads 1 --device cpu --quiet"
RATES = ["0.0005", "0.001", "0.002", "0.005", "0.01", "0.02", "0.05"]
WAYS = {"AdamW": [], "Muon": ["--optimizer", "muon"]}
COLOURS = {"AdamW": ORANGE, "Muon": BLUE}
RULE, WELCH = 0.004, 3


def journal(o):
    return study.Journal(study.beside(o.report, ".jsonl"), "setup", "way", "rate", "seed")


def train(o, setup, way, rate, seed):
    if sum(r["cpu_seconds"] for r in journal(o).rows().values()) > 60 * o.minutes:
        return
    flags = [*SETUPS[setup][1].split(), *ALWAYS.split(), "--data", f"{o.work}/{setup}", "--lr", rate, "--seed", seed]
    left, used = study.train(o.program, [*flags, *WAYS[way]], f"{o.work}/{setup}-{way}-{rate}-{seed}")
    row = {"setup": setup, "way": way, "rate": rate, "seed": seed, "commit": left.commit}
    row |= {"curve": [*map(list, left.validations.items())], "cpu_seconds": used["cpu_seconds"]}
    journal(o).add(row)
    print(f"{setup} {way} {rate} seed {seed}: {last(row):.4f}, {row['cpu_seconds']} s", flush=True)


def of(rows, setup, way, rate):
    return [r for key, r in sorted(rows.items()) if key[:3] == (setup, way, rate)]


def last(row):
    return row["curve"][-1][1]


def mean_last(rows):
    return statistics.fmean(map(last, rows)) if rows else math.inf


def best(rows, setup, way):
    """The rate with the least mean loss among those with the most seeds."""
    most = max(len(of(rows, setup, way, r)) for r in RATES)
    tried = [r for r in RATES if len(of(rows, setup, way, r)) == most]
    return min(tried, key=lambda r: mean_last(of(rows, setup, way, r)))


def missing(o, rows, setup):
    wanted = [(setup, way, rate, 1) for rate in RATES for way in WAYS]
    if all(key in rows for key in wanted):
        for seed in range(2, o.seeds + 1):
            for way in WAYS:
                at = min(range(len(RATES)), key=lambda k, way=way: last(rows[setup, way, RATES[k], 1]))
                wanted += [(setup, way, rate, seed) for rate in RATES[max(at - 1, 0) : at + 2]]
    return [key for key in wanted if key not in rows]


def mean_curve(rows):
    return [(a[0], statistics.fmean(r["curve"][i][1] for r in rows)) for i, a in enumerate(rows[0]["curve"])]


def reaches(rows, loss):
    """Steps of the mean curve to a loss, between two points by a line."""
    points = mean_curve(rows)
    for (s0, l0), (s1, l1) in itertools.pairwise(points):
        if l1 <= loss < l0:
            return s0 + (s1 - s0) * (l0 - loss) / (l0 - l1)
    return None


def welch(a, b):
    """(mean a - mean b) over its standard error."""
    if min(len(a), len(b)) < 2:
        return 0.0
    (mean_a, error_a), (mean_b, error_b) = student.mean_and_error(a), student.mean_and_error(b)
    return (mean_a - mean_b) / math.hypot(error_a, error_b)


def picture(rows, setups):
    """The mean curves at the best rates."""
    p = Picture("Muon beside AdamW", 300, 460 * len(setups))
    for k, setup in enumerate(setups):
        rates = {way: best(rows, setup, way) for way in WAYS}
        curves = {way: mean_curve(of(rows, setup, way, rate))[1:] for way, rate in rates.items()}
        values, steps = [v for c in curves.values() for _, v in c], [step for step, _ in curves["AdamW"]]
        low, high = min(values), max(values)
        p.text(460 * k + 50, 20, f"{setup}: validation loss (nats per token) by step", strong=True)
        chart = Chart(p, (460 * k + 50, 50, 390, 210), (0, steps[-1]), (low, high))
        chart.rows((low, (low + high) / 2, high), "{:.2f}".format)
        chart.columns(steps[::-1][:: -(-len(steps) // 10)])
        for row, (way, rate) in enumerate(rates.items()):
            chart.curve(curves[way], COLOURS[way])
            name = f"{way}, --lr {rate}, mean of {len(of(rows, setup, way, rate))}"
            p.text(460 * k + 436, 60 + 16 * row, name, 12, "end", colour=COLOURS[way])
    return p.svg()


def section(rows, setup):
    data, flags, differs = SETUPS[setup]
    cells = [[way, *(of(rows, setup, way, rate) for rate in RATES)] for way in WAYS]
    cells = [[way, *(f"{mean_last(c):.4f} ({len(c)})" if c else "-" for c in of_rates)] for way, *of_rates in cells]
    rates = {way: best(rows, setup, way) for way in WAYS}
    base, mine = (of(rows, setup, way, rates[way]) for way in WAYS)
    loss, n = mean_last(base), min(len(base), len(mine))
    gain, t = loss - mean_last(mine), welch([*map(last, base)], [*map(last, mine)])
    steps, whole = reaches(mine, loss), base[0]["curve"][-1][0]
    seconds = [statistics.fmean(r["cpu_seconds"] for r in r) for r in (base, mine)]
    edges = " and ".join(way for way in WAYS if rates[way] in (RATES[0], RATES[-1]))
    edge = f"\nThe best rate of {edges} is at the edge of those tried: another may be better.\n" if edges else ""
    proof = "One seed shows no significance."
    if n > 1:
        proof = f"Modded-nanogpt's rule wants at least {RULE} / sqrt(n) = {RULE / math.sqrt(n):.4f} less; Welch's t is {t:.1f}, {WELCH} is wanted."
    shown = n > 1 and gain * math.sqrt(n) >= RULE and t >= WELCH
    reached = "Muon's mean curve does not reach AdamW's last loss"
    if steps:
        reached = f"Muon has AdamW's last loss after {steps:.0f} of {whole} steps, {steps / whole:.2f} of them, "
        reached += f"and {seconds[1] * steps / whole:.1f} of {seconds[0]:.1f} CPU seconds"
    return f"""## {setup.capitalize()}

Data: `prepare.py {data}`. A run: `train_llama {flags} {ALWAYS}` with `--lr` and `--seed`. {differs}

Validation loss after the last step, nats per token: mean of the seeds (how many).

{study.table(["`--lr`", *RATES], cells)}{edge}
At the best rate of each, {n} {'seeds' if n > 1 else 'seed'}: AdamW ({rates['AdamW']}) {loss:.4f}, Muon ({rates['Muon']}) {mean_last(mine):.4f}: \
{abs(gain):.4f} nats {'less' if gain > 0 else 'more'}. {proof} Muon is {'' if shown else 'not shown to be '}better here.

{reached}; a step takes {seconds[1] / seconds[0]:.2f} of AdamW's CPU time, validation included.

"""


def report(o):
    rows = journal(o).rows()
    setups = [s for s in SETUPS if all((s, way, rate, 1) in rows for way in WAYS for rate in RATES)]
    commits = ", ".join(sorted({r["commit"] for r in rows.values()}))
    spent = sum(r["cpu_seconds"] for r in rows.values()) / 60
    text = f"""# Muon beside AdamW

By `dev/run/optimizers.py`, {datetime.date.today()}, {study.cpu_name()}, one thread a run, commit {commits}: {len(rows)} runs, {spent:.1f} core-minutes. \
Muon has `--optimizer muon` beside the other flags, and nothing else is tuned. These are small and short trainings: no more is shown than that. \
Where Muon's curve has AdamW's last loss, its learning rate is still that of a run of all steps: a run that ends there would be further.

"""
    for setup in setups:
        text += section(rows, setup)
    for setup in SETUPS:
        if left := missing(o, rows, setup):
            further = ", nor any further seed" if any(seed == 1 for *_, seed in left) else ""
            text += f"Not run, for want of time: {len(left)} runs of the {setup}{further}.\n\n"
    if setups:
        text += f"![Validation loss by step, at the best rate of each]({os.path.basename(o.report)[:-3]}.svg)\n"
        study.write(study.beside(o.report, ".svg"), picture(rows, setups))
    study.write(o.report, text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    study.arguments(p)
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--minutes", type=float, default=75, help="CPU time of all runs together")
    o = p.parse_args()
    for setup, (data, *_) in {} if o.report_only else SETUPS.items():
        study.prepare(f"{o.work}/{setup}", *data.split())
    for setup in () if o.report_only else SETUPS:
        for _ in range(2):  # the second finds the best rates of the first
            study.each(o.jobs, lambda *key: train(o, *key), missing(o, journal(o).rows(), setup))
    report(o)


if __name__ == "__main__":
    main()
