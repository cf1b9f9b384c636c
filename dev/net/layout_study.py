#!/usr/bin/env python3
"""Tokens/s and bytes of each way to use several ranks, against the rate of the links between them.

Every rank is a "host" of its own (dev/net/netns_hosts.sh: namespaces over shaped links; needs root), with one thread. All layouts
train the same model on the same sequences per update. Beside each measurement stands what an alpha-beta model says, made from the bytes
that the rank sends and the time that one rank takes alone; then the rates at which one layout overtakes another, measured and predicted.

  dev/net/layout_study.py OUT_FOLDER [--ranks 2,4] [--rates 4mbit,16mbit,64mbit,256mbit] [--steps 6]
"""

import argparse
import datetime
import itertools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

SEQUENCES, LENGTH = 8, 64
MODEL = f"--preset bytes --layers 8 --dim 64 --heads 4 --kv-heads 4 --head-dim 16 --ffn 128 --head untied --seq-len {LENGTH}".split()
# Layouts whose messages move while the ranks compute, by construction; the others wait for them.
OVERLAPS = {"dp", "zero-3", "pp", "tp, overlap", "cp, ring"}


def layouts(n):
    """Name and flags; an update is SEQUENCES at each."""
    whole, part = ["--batch", str(SEQUENCES)], ["--batch", str(SEQUENCES // n)]
    return {
        "dp": [*part, "--zero", "0"],
        "zero-3": [*part, "--zero", "3"],
        "tp": [*whole, "--tp", str(n)],
        "tp, overlap": [*whole, "--tp", str(n), "--tp-overlap", "on"],
        "cp": [*whole, "--cp", str(n)],
        "cp, ring": [*whole, "--cp", str(n), "--cp-exchange", "ring"],
        "pp": ["--batch", "1", "--grad-accum", str(SEQUENCES), "--pp", str(n)],
    }


def bytes_per_second(rate):
    return float(rate[:-4]) * {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}[rate[-4:]] / 8


def train(o, root, work, name, flags, launch):
    out = work / name
    command = [
        *launch,
        "env",
        "OMP_NUM_THREADS=1",
        "OMP_WAIT_POLICY=passive",
        "./train_llama",
        *MODEL,
        *flags,
        "--data",
        str(work / "data"),
    ]
    command += f"--device cpu --threads 1 --steps {o.steps} --val-every 0 --val-tokens {LENGTH * 4} --save-every 0 --timeout 300".split()
    done = subprocess.run(
        [*command, "--out", str(out)], check=False, cwd=root, capture_output=True, text=True, timeout=900
    )
    if done.returncode != 0:
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    rows = [r for r in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in r][2:]

    def median(key):
        return statistics.median(r.get(key, 0) for r in rows)

    # The rank that sends most: the inner ranks of a pipeline send up and down.
    ranks = json.loads((out / "ranks.json").read_text())
    most = max(r["bytes_sent"] for r in ranks) / max(1, max(r["steps"] for r in ranks))
    return {
        "step": min(r["seconds"] for r in rows),  # what else runs on the cores only ever adds
        "median": median("seconds"),
        "bytes": most,
        "exposed": median("exposed_seconds"),
        "losses": [r["loss"] for r in rows],
    }


def utilisation(n):
    """Of zb-v with equal costs."""
    return 3 * SEQUENCES / (3 * SEQUENCES + (n - 1) / 2)


def crossing(rates, a, b):
    """Rates (log-log interpolated) at which two lines of step times cross."""
    found = []
    for (r0, a0, b0), (r1, a1, b1) in itertools.pairwise(zip(rates, a, b, strict=True)):
        d0, d1 = math.log(a0 / b0), math.log(a1 / b1)
        if d0 * d1 < 0:
            at = d0 / (d0 - d1)
            found.append(math.exp(math.log(r0) + at * (math.log(r1) - math.log(r0))))
    return found


def human_rate(bytes_s):
    return f"{bytes_s * 8 / 1e6:.0f} Mbit/s"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rates", default="4mbit,16mbit,64mbit,256mbit")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--program", default="./train_llama")
    o = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    out = pathlib.Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    rates = o.rates.split(",")
    results = {
        "rates": rates,
        "model": " ".join(MODEL),
        "sequences": SEQUENCES,
        "command": "dev/net/layout_study.py " + " ".join(sys.argv[1:]),
    }
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        subprocess.run(
            ["python3", "data_prep/prepare.py", "stdlib", "--max-bytes", "200K", "--out", str(work / "data")],
            cwd=root,
            check=True,
            capture_output=True,
        )
        one = train(o, root, work, "one", ["--batch", str(SEQUENCES)], [])
        results["one"] = one
        for n in map(int, o.ranks.split(",")):
            for rate in rates:
                for name, flags in layouts(n).items():
                    launch = ["dev/net/netns_hosts.sh", str(n), rate, "--"]
                    r = train(o, root, work, f"{n}-{rate}-{name}".replace(" ", ""), flags, launch)
                    # One rank computes a share of the work; a pipeline is idle for a part of the step.
                    compute = one["step"] / n / (utilisation(n) if name == "pp" else 1)
                    link = r["bytes"] / bytes_per_second(rate)
                    r["predicted"] = [max(compute, link) if name in OVERLAPS else compute + link, compute + link]
                    print(
                        f"{n} ranks, {rate}, {name}: {r['step']:.3f} s, predicted {r['predicted'][0]:.3f} to {r['predicted'][1]:.3f}",
                        flush=True,
                    )
                    results.setdefault(str(n), {}).setdefault(name, {})[rate] = r
                    worst = max(abs(a / b - 1) for a, b in zip(r["losses"], one["losses"], strict=True))
                    if worst > 1e-4:
                        sys.exit(f"{n} ranks, {name}: losses differ from one rank's by {worst}")
    report(results, out, root)


def report(results, out, root):
    rates = results["rates"]
    beta = [bytes_per_second(r) for r in rates]
    cpu = re.search(r"model name\s*: (.*)|$", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=True, cwd=root, capture_output=True, text=True
    ).stdout.strip()
    load = os.getloadavg()[0]
    tokens = SEQUENCES * LENGTH
    text = f"""# Layouts against link rate

`{results["command"]}`, {datetime.date.today()}, commit {commit}; {cpu}, {os.cpu_count()} cores shared with other work (load {load:.0f} at the end),
every rank a network namespace over TCP with one thread. Model: `{results["model"]}`; an update is {SEQUENCES} sequences of {LENGTH} tokens in fp32 at
every layout, and losses agree with one rank's. One rank alone takes {1e3 * results["one"]["step"]:.0f} ms. The fastest of the steps after the second: what else runs on the cores only ever adds.

Predicted: one rank's time / ranks (a pipeline's: / its utilisation too) and bytes / rate; where transfers overlap compute, from the larger of
the two to their sum; elsewhere their sum. Tokens/s are measured (predicted from .. to).
"""
    for n in [k for k in results if k.isdigit()]:
        rows = results[n]
        text += (
            f"\n## {n} ranks\n\n| layout | MB sent by a rank and step, the most | "
            + " | ".join(rates)
            + " |\n|---|---|"
            + "---|" * len(rates)
            + "\n"
        )
        for name, by_rate in rows.items():
            cells = []
            for rate in rates:
                r = by_rate[rate]
                fast, slow = r["predicted"]
                span = f"{tokens / slow:.0f} .. {tokens / fast:.0f}" if slow > 1.01 * fast else f"{tokens / slow:.0f}"
                cells.append(f"{tokens / r['step']:.0f} ({span})")
            text += f"| {name} | {by_rate[rates[0]]['bytes'] / 1e6:.2f} | " + " | ".join(cells) + " |\n"
        text += "\nWhere one overtakes another:\n\n| layouts | measured | predicted (sums) |\n|---|---|---|\n"
        for a, b in itertools.combinations(rows, 2):
            measured = crossing(beta, [rows[a][r]["step"] for r in rates], [rows[b][r]["step"] for r in rates])
            predicted = crossing(
                beta, [rows[a][r]["predicted"][1] for r in rates], [rows[b][r]["predicted"][1] for r in rates]
            )
            if measured or predicted:
                text += f"| {a} and {b} | {', '.join(map(human_rate, measured)) or 'none'} | {', '.join(map(human_rate, predicted)) or 'none'} |\n"
    (out / "layouts.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "layouts.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
