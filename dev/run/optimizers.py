#!/usr/bin/env python3
"""Does Muon learn faster than AdamW here? Small trainings on one thread of a CPU.

    python3 dev/run/optimizers.py ./train_llama --work /tmp/optimizers --report dev/results/optimizers.md

Seven learning rates with one seed each, then --seeds seeds at the best rate of each and its neighbours. A run adds a
line to the .jsonl beside REPORT, and what has a line there is not run again; no run starts after --minutes of CPU time.
The report has the losses, and after how many steps and CPU seconds Muon has the last loss of AdamW at its best rate.
Muon is better where the means differ by 0.004 nats over the root of the number of seeds (modded-nanogpt's rule) and by
Welch's t of at least 3. --minutes 0 runs nothing."""

import argparse
import concurrent.futures
import datetime
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import threading

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
WIDTH, HEIGHT = 460, 300
COLORS = {"AdamW": "#b8323a", "Muon": "#1b6ca8"}
RULE, WELCH = 0.004, 3


def lines_file(o):
    return os.path.splitext(o.report)[0] + ".jsonl"


def known(o):
    if not os.path.exists(lines_file(o)):
        return {}
    with open(lines_file(o), encoding="utf-8") as f:
        return {(r["setup"], r["way"], r["rate"], r["seed"]): r for r in map(json.loads, f)}


def train(o, lock, setup, way, rate, seed):
    with lock:
        if sum(r["cpu_seconds"] for r in known(o).values()) > 60 * o.minutes:
            return
    out = f"{o.work}/{setup}-{way}-{rate}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    command = [o.program, *SETUPS[setup][1].split(), *ALWAYS.split(), "--data", f"{o.work}/{setup}"]
    command += ["--lr", rate, "--seed", str(seed), "--out", out]
    with open(f"{out}.log", "w", encoding="utf-8") as f:
        process = subprocess.Popen([*command, *WAYS[way]], stdout=f, stderr=f)
        _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"{' '.join(command)} failed; its output: {out}.log")
    with open(f"{out}/metrics.jsonl", encoding="utf-8") as f:
        curve = [[r["step"], r["val_loss"]] for r in map(json.loads, f) if r.get("val_loss") is not None]
    version = subprocess.run([o.program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    row = {"setup": setup, "way": way, "rate": rate, "seed": seed, "commit": version[-1], "curve": curve}
    row["cpu_seconds"] = round(used.ru_utime + used.ru_stime, 2)
    with lock, open(lines_file(o), "a", encoding="utf-8") as f:
        f.write(json.dumps(row) + "\n")
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
    return (statistics.fmean(a) - statistics.fmean(b)) / math.sqrt(
        statistics.variance(a) / len(a) + statistics.variance(b) / len(b)
    )


def panel(rows, setup, left):
    """The mean curves at the best rates, `left` from the picture's edge."""
    curves = {way: mean_curve(of(rows, setup, way, best(rows, setup, way)))[1:] for way in WAYS}
    values = [v for c in curves.values() for _, v in c]
    low, high, steps = min(values), max(values), curves["AdamW"][-1][0]

    def x(step):
        return left + 50 + step / steps * (WIDTH - 70)

    def y(loss):
        return HEIGHT - 40 - (loss - low) / (high - low) * (HEIGHT - 90)

    out = [f'<text x="{left + 50}" y="20" font-weight="bold">{setup}: validation loss (nats per token) by step</text>']
    for v in (low, (low + high) / 2, high):
        out.append(f'<line x1="{x(0):.1f}" y1="{y(v):.1f}" x2="{x(steps):.1f}" y2="{y(v):.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{left + 44}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
    for step, _ in curves["AdamW"][::-1][:: -(-len(curves["AdamW"]) // 10)]:
        out.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{step}</text>')
    for k, (way, curve) in enumerate(curves.items()):
        at = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in curve)
        rate = best(rows, setup, way)
        out.append(f'<polyline fill="none" stroke="{COLORS[way]}" stroke-width="2" points="{at}"/>')
        out.append(
            f'<text x="{x(steps) - 4:.1f}" y="{60 + 16 * k}" text-anchor="end" fill="{COLORS[way]}">'
            f"{way}, --lr {rate}, mean of {len(of(rows, setup, way, rate))}</text>"
        )
    return out


def picture(o, rows, setups):
    size = f'width="{WIDTH * len(setups)}" height="{HEIGHT}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for k, setup in enumerate(setups):
        out += panel(rows, setup, k * WIDTH)
    with open(os.path.splitext(o.report)[0] + ".svg", "w", encoding="utf-8") as f:
        f.write("\n".join([*out, "</svg>", ""]))


def section(rows, setup):
    data, flags, differs = SETUPS[setup]
    text = [
        f"## {setup.capitalize()}",
        "",
        f"Data: `prepare.py {data}`. A run: `train_llama {flags} {ALWAYS}` with `--lr` and `--seed`. {differs}",
        "",
        "Validation loss after the last step, nats per token: mean of the seeds (how many).",
        "",
        "| `--lr` | " + " | ".join(RATES) + " |",
        "|---" * (1 + len(RATES)) + "|",
    ]
    for way in WAYS:
        cells = [of(rows, setup, way, rate) for rate in RATES]
        text.append(f"| {way} | " + " | ".join(f"{mean_last(c):.4f} ({len(c)})" if c else "-" for c in cells) + " |")
    rates = {way: best(rows, setup, way) for way in WAYS}
    base, mine = (of(rows, setup, way, rates[way]) for way in WAYS)
    loss, n = mean_last(base), min(len(base), len(mine))
    gain, t = loss - mean_last(mine), welch([*map(last, base)], [*map(last, mine)])
    steps, whole = reaches(mine, loss), base[0]["curve"][-1][0]
    seconds = [statistics.fmean(r["cpu_seconds"] for r in r) for r in (base, mine)]
    shown = n > 1 and gain * math.sqrt(n) >= RULE and t >= WELCH
    edges = [way for way in WAYS if rates[way] in (RATES[0], RATES[-1])]
    if edges:
        text += ["", f"The best rate of {' and '.join(edges)} is at the edge of those tried: another may be better."]
    text += [
        "",
        f"At the best rate of each, {n} {'seeds' if n > 1 else 'seed'}: AdamW ({rates['AdamW']}) {loss:.4f}, "
        f"Muon ({rates['Muon']}) {mean_last(mine):.4f}: {abs(gain):.4f} nats {'less' if gain > 0 else 'more'}. "
        + (
            f"Modded-nanogpt's rule wants at least {RULE} / sqrt(n) = {RULE / math.sqrt(n):.4f} less; "
            f"Welch's t is {t:.1f}, {WELCH} is wanted. "
            if n > 1
            else "One seed shows no significance. "
        )
        + ("Muon is better here." if shown else "Muon is not shown to be better here."),
        "",
        (
            f"Muon has AdamW's last loss after {steps:.0f} of {whole} steps, {steps / whole:.2f} of them, "
            f"and {seconds[1] * steps / whole:.1f} of {seconds[0]:.1f} CPU seconds"
            if steps
            else "Muon's mean curve does not reach AdamW's last loss"
        )
        + f"; a step takes {seconds[1] / seconds[0]:.2f} of AdamW's CPU time, validation included.",
        "",
    ]
    return text


def report(o):
    rows = known(o)
    setups = [s for s in SETUPS if all((s, way, rate, 1) in rows for way in WAYS for rate in RATES)]
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "CPU")
    commits = ", ".join(sorted({r["commit"] for r in rows.values()}))
    spent = sum(r["cpu_seconds"] for r in rows.values()) / 60
    intro = (
        f"By `dev/run/optimizers.py`, {datetime.date.today()}, {cpu}, one thread a run, commit {commits}: "
        f"{len(rows)} runs, {spent:.1f} core-minutes. Muon has `--optimizer muon` beside the other flags, and nothing "
        "else is tuned. These are small and short trainings: no more is shown than that. Where Muon's curve "
        "has AdamW's last loss, its learning rate is still that of a run of all steps: a run that ends there would be "
        "further."
    )
    text = ["# Muon beside AdamW", "", intro, ""]
    for setup in setups:
        text += section(rows, setup)
    for setup in SETUPS:
        left = missing(o, rows, setup)
        further = ", nor any further seed" if any(seed == 1 for *_, seed in left) else ""
        text += [f"Not run, for want of time: {len(left)} runs of the {setup}{further}.", ""] if left else []
    if setups:
        text += [f"![Validation loss by step, at the best rate of each]({os.path.basename(o.report)[:-3]}.svg)", ""]
        picture(o, rows, setups)
    with open(o.report, "w", encoding="utf-8") as f:
        f.write("\n".join(text))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--work", required=True, help="folder for data and runs")
    p.add_argument("--report", required=True, help="the page to write; runs (.jsonl) and picture (.svg) are beside it")
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--jobs", type=int, default=1, help="runs at a time")
    p.add_argument("--minutes", type=float, default=75, help="CPU time of all runs together")
    o = p.parse_args()
    o.program = os.path.realpath(o.program)
    os.makedirs(o.work, exist_ok=True)
    for setup, (data, *_) in SETUPS.items():
        if o.minutes > 0 and not os.path.exists(f"{o.work}/{setup}/dataset.json"):
            prepare = [sys.executable, "data_prep/prepare.py", *data.split(), "--out", f"{o.work}/{setup}", "--quiet"]
            subprocess.run(prepare, check=True)
    lock = threading.Lock()
    for setup in SETUPS if o.minutes > 0 else ():
        for _ in range(2):
            with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
                for run in [pool.submit(train, o, lock, *key) for key in missing(o, known(o), setup)]:
                    run.result()
    report(o)


if __name__ == "__main__":
    main()
