#!/usr/bin/env python3
"""Training over slow links: every rank is a "host" of its own with one thread (dev/net/netns_hosts.sh: namespaces over shaped links;
needs root).

  dev/net/link_study.py bandwidth OUT [--hosts 2] [--rates 10gbit,1gbit,300mbit,100mbit]
      tokens/s of every ZeRO stage against the rate, beside an alpha-beta prediction: a table, the numbers and an SVG
  dev/net/link_study.py buckets OUT [--hosts 2] [--rates 1gbit,300mbit,100mbit] [--buckets 0,1,2,4,16] [--stage 1] [--repeats 3]
      one collective for each block beside one for several of them, repeats in turn over the buckets
  dev/net/link_study.py layouts OUT [--hosts 2,4] [--rates 4mbit,16mbit,64mbit,256mbit] [--steps 6]
      tokens/s and bytes of each way to use several ranks, measured and predicted, and at which rates one overtakes another.
      All layouts train the same model on the same sequences per update, with one rank's losses

--model: train_llama flags of bandwidth and buckets."""

import argparse
import datetime
import hashlib
import itertools
import json
import math
import os
import statistics
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../run"))
import study  # noqa: E402
from picture import COLOURS, Chart, Picture  # noqa: E402

FIXED = "--device cpu --threads 1 --val-every 0 --save-every 0 --log-every 100".split()
ALPHA = 60e-6  # a hop of 8 bytes between namespaces, as bench_collectives measures it


def bytes_per_second(rate):
    return float(rate[:-4]) * {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}[rate[-4:]] / 8


def train(o, name, flags, hosts=1, rate=""):
    """What a run leaves, and its steps without the first two."""
    start = [f"{study.TOP}/dev/net/netns_hosts.sh", hosts, rate, "--"] if hosts > 1 else []
    command = [*start, f"{study.TOP}/train_llama", *flags, *FIXED, "--data", f"{o.work}/data", "--out", f"{o.work}/{name}"]
    study.run(command, f"{o.work}/log", OMP_WAIT_POLICY="passive")
    left = study.Left(f"{o.work}/{name}")
    return left, left.steps[2:]


def median(steps, key):
    return statistics.median(r.get(key, 0) for r in steps)


def where(o, hosts):
    return (f"`dev/net/link_study.py {' '.join(sys.argv[1:])}`, {datetime.date.today()}, commit {study.commit()}; {study.cpu_name()}, {os.cpu_count()} cores "
            f"shared with other work (load {os.getloadavg()[0]:.0f} at the end), {hosts} namespaces of one machine over TCP.")  # fmt: skip


# ---- every stage of ZeRO at several rates ----------------------------------------------------------------------------


def bandwidth(o):
    (hosts,), rows = o.hosts, []
    for rate in o.rates:
        for stage in range(4):
            flags = [*o.model.split(), "--zero", stage, "--steps", 8, "--val-tokens", 128]
            left, steps = train(o, f"{rate}-{stage}", flags, hosts, rate)
            with open(f"{left.folder}/final/config.json", encoding="utf-8") as f:
                units = json.load(f)["num_hidden_layers"] + 2
            sent, hops = median(steps, "bytes_sent"), units * (hosts - 1) * (3 if stage == 3 else 2)
            keys = {"tokens_per_second": "tokens_per_second", "step": "seconds", "comm": "comm_seconds", "exposed": "exposed_seconds",
                    "overlap": "overlap_efficiency", "bytes": "bytes_sent"}  # fmt: skip
            rows.append({"rate": rate, "stage": stage, **{name: median(steps, key) for name, key in keys.items()},
                         "predicted_comm": sent / bytes_per_second(rate) + ALPHA * hops})  # fmt: skip
    compute = min(x["step"] - x["exposed"] for x in rows)
    cells = [[x["rate"], x["stage"], f"{x['tokens_per_second']:.0f}", f"{1e3 * x['step']:.0f}",
              f"{1e3 * max(compute, x['predicted_comm']):.0f} - {1e3 * (compute + x['predicted_comm']):.0f}", f"{1e3 * x['comm']:.0f}",
              f"{1e3 * x['predicted_comm']:.0f}", f"{x['bytes'] / 1e6:.2f}", f"{100 * x['overlap']:.0f} %"] for x in rows]  # fmt: skip
    text = (f"# Tokens/s against link rate\n\n{where(o, hosts)} Model: `{o.model}`. Compute alone takes {1e3 * compute:.0f} ms a step. The prediction is "
            f"bytes / rate + {1e6 * ALPHA:.0f} us per hop; a step lies between perfect overlap, max(compute, communication), and none, their sum.\n\n")  # fmt: skip
    text += study.table(["rate", "stage", "tokens/s", "step ms", "between", "comm ms", "predicted", "MB sent/rank/step", "overlap"], cells)
    study.write(f"{o.out}/bandwidth.json", json.dumps({"hosts": hosts, "model": o.model, "compute_s": compute, "rows": rows}, indent=1))
    study.write(f"{o.out}/bandwidth.svg", picture(o.rates, rows, hosts))
    return "bandwidth.md", text


def picture(rates, rows, hosts):
    """One line per stage, both axes logarithmic."""
    p = Picture(f"tokens/s against link rate, {hosts} hosts", 400, 640)
    p.head(p.title, x=180)
    beta, speeds = [bytes_per_second(rate) for rate in rates], [x["tokens_per_second"] for x in rows]
    chart = Chart(p, (70, 40, 460, 310), (min(beta) / 1.3, max(beta) * 1.3), (min(speeds) / 1.3, max(speeds) * 1.3), "xy")
    chart.columns(beta, lambda b: rates[beta.index(b)])
    chart.rows([v for e in range(7) for v in (10**e, 2 * 10**e, 5 * 10**e) if min(speeds) / 1.3 <= v <= max(speeds) * 1.3])
    for stage, colour in enumerate(COLOURS):
        points = [(bytes_per_second(x["rate"]), x["tokens_per_second"]) for x in rows if x["stage"] == stage]
        chart.curve(points, colour)
        for point in points:
            chart.dot(*point, colour, 3.5)
        p.text(540, 60 + 20 * stage, f"ZeRO-{stage}", 13, colour=colour)
    return p.svg()


# ---- --bucket-mib ----------------------------------------------------------------------------------------------------


def buckets(o):
    (hosts,), sums, rows = o.hosts, set(), []
    for rate in o.rates:
        runs = {bucket: [] for bucket in o.buckets.split(",")}
        for i in range(o.repeats):
            for bucket, of_bucket in runs.items():
                flags = [*o.model.split(), "--zero", o.stage, "--bucket-mib", bucket, "--steps", 12, "--val-tokens", 64]
                left, steps = train(o, f"{rate}-{bucket}-{i}", flags, hosts, rate)
                of_bucket.append([median(steps, key) for key in ("seconds", "comm_seconds", "exposed_seconds")])
                with open(f"{left.folder}/final/model.safetensors", "rb") as f:
                    sums.add(hashlib.sha256(f.read()).digest())
        base = min(next(iter(runs.values())))[0]
        for bucket, of_bucket in runs.items():
            step, comm, exposed = min(of_bucket)
            rows.append([rate, bucket, f"{1e3 * step:.1f}", f"{step / base:.2f}", f"{1e3 * comm:.1f}", f"{1e3 * exposed:.1f}"])
    if len(sums) > 1:
        sys.exit("link_study: runs differ in their weights")
    head = ["link", "--bucket-mib", "step ms", "to one block at a time", "communication ms", "of it exposed ms"]
    return "buckets.md", f"# Buckets\n\n{where(o, hosts)} Model: `{o.model}`, `--zero {o.stage}`.\n\n{study.table(head, rows)}"


# ---- ways to use several ranks ---------------------------------------------------------------------------------------

SEQUENCES, LENGTH = 8, 64
MODEL = f"--preset bytes --layers 8 --dim 64 --heads 4 --kv-heads 4 --head-dim 16 --ffn 128 --head untied --seq-len {LENGTH}"
# Layouts whose messages move while the ranks compute, by construction; the others wait for them.
OVERLAPS = {"dp", "zero-3", "pp", "tp, overlap", "cp, ring"}


def layouts_of(n):
    """Name and flags; an update is SEQUENCES at each."""
    whole, part = f"--batch {SEQUENCES}", f"--batch {SEQUENCES // n}"
    return {
        "dp": f"{part} --zero 0",
        "zero-3": f"{part} --zero 3",
        "tp": f"{whole} --tp {n}",
        "tp, overlap": f"{whole} --tp {n} --tp-overlap on",
        "cp": f"{whole} --cp {n}",
        "cp, ring": f"{whole} --cp {n} --cp-exchange ring",
        "pp": f"--batch 1 --grad-accum {SEQUENCES} --pp {n}",
    }


def measured(o, name, flags, hosts=1, rate=""):
    flags = f"{MODEL} {flags} --steps {o.steps} --val-tokens {4 * LENGTH} --timeout 300".split()
    left, steps = train(o, name, flags, hosts, rate)
    # The rank that sends most: the inner ranks of a pipeline send up and down.
    most = max(r["bytes_sent"] for r in left.ranks) / max(1, max(r["steps"] for r in left.ranks))
    return {
        "step": min(r["seconds"] for r in steps),  # what else runs on the cores only ever adds
        "median": median(steps, "seconds"),
        "bytes": most,
        "exposed": median(steps, "exposed_seconds"),
        "losses": [r["loss"] for r in steps],
    }


def crossing(rates, a, b):
    """Rates (log-log interpolated) at which two lines of step times cross."""
    found = []
    for (r0, a0, b0), (r1, a1, b1) in itertools.pairwise(zip(rates, a, b, strict=True)):
        d0, d1 = math.log(a0 / b0), math.log(a1 / b1)
        if d0 * d1 < 0:
            at = d0 / (d0 - d1)
            found.append(math.exp(math.log(r0) + at * (math.log(r1) - math.log(r0))))
    return ", ".join(f"{8 * rate / 1e6:.0f} Mbit/s" for rate in found)


def layouts(o):
    one, results = measured(o, "one", f"--batch {SEQUENCES}"), {}
    for n, rate in itertools.product(o.hosts, o.rates):
        for name, flags in layouts_of(n).items():
            r = measured(o, f"{n}-{rate}-{name}".replace(" ", ""), flags, n, rate)
            # One rank computes a share of the work; a pipeline (zb-v with equal costs) is idle for a part of the step.
            used = 3 * SEQUENCES / (3 * SEQUENCES + (n - 1) / 2) if name == "pp" else 1
            compute, link = one["step"] / n / used, r["bytes"] / bytes_per_second(rate)
            r["predicted"] = [max(compute, link) if name in OVERLAPS else compute + link, compute + link]
            print(f"{n} ranks, {rate}, {name}: {r['step']:.3f} s, predicted {r['predicted'][0]:.3f} to {r['predicted'][1]:.3f}", flush=True)
            results.setdefault(n, {}).setdefault(name, {})[rate] = r
            worst = max(abs(a / b - 1) for a, b in zip(r["losses"], one["losses"], strict=True))
            if worst > 1e-4:
                sys.exit(f"{n} ranks, {name}: losses differ from one rank's by {worst}")
    study.write(f"{o.out}/layouts.json", json.dumps({"model": MODEL, "sequences": SEQUENCES, "one": one, "ranks": results}, indent=1))
    text = f"""# Layouts against link rate

{where(o, ' and '.join(map(str, o.hosts)))} Model: `{MODEL}`; an update is {SEQUENCES} sequences of {LENGTH} tokens in fp32 at
every layout, and losses agree with one rank's. One rank alone takes {1e3 * one["step"]:.0f} ms. The fastest of the steps after the second: what else runs on the cores only ever adds.

Predicted: one rank's time / ranks (a pipeline's: / its utilisation too) and bytes / rate; where transfers overlap compute, from the larger of
the two to their sum; elsewhere their sum. Tokens/s are measured (predicted from .. to).
"""
    tokens, beta = SEQUENCES * LENGTH, [bytes_per_second(rate) for rate in o.rates]
    for n, of_ranks in results.items():
        rows, crossings = [], []
        for name, by_rate in of_ranks.items():
            cells = []
            for r in by_rate.values():
                fast, slow = r["predicted"]
                span = f"{tokens / slow:.0f} .. {tokens / fast:.0f}" if slow > 1.01 * fast else f"{tokens / slow:.0f}"
                cells.append(f"{tokens / r['step']:.0f} ({span})")
            rows.append([name, f"{by_rate[o.rates[0]]['bytes'] / 1e6:.2f}", *cells])
        for a, b in itertools.combinations(of_ranks, 2):
            real, said = (crossing(beta, *([time(of_ranks[x][rate]) for rate in o.rates] for x in (a, b)))
                          for time in (lambda r: r["step"], lambda r: r["predicted"][1]))  # fmt: skip
            if real or said:
                crossings.append([f"{a} and {b}", real or "none", said or "none"])
        text += f"\n## {n} ranks\n\n{study.table(['layout', 'MB sent by a rank and step, the most', *o.rates], rows)}"
        text += f"\nWhere one overtakes another:\n\n{study.table(['layouts', 'measured', 'predicted (sums)'], crossings)}"
    return "layouts.md", text


STUDIES = {  # its function, hosts, rates, model
    "bandwidth": (bandwidth, "2", "10gbit,1gbit,300mbit,100mbit", "--preset bytes --batch 4 --seq-len 128"),
    "buckets": (buckets, "2", "1gbit,300mbit,100mbit",
                "--preset bytes --dim 128 --layers 12 --heads 4 --kv-heads 4 --head-dim 32 --ffn 384 --batch 1 --seq-len 64"),
    "layouts": (layouts, "2,4", "4mbit,16mbit,64mbit,256mbit", MODEL),
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("out")
    parser.add_argument("--hosts")
    parser.add_argument("--rates")
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int, default=6, help="of layouts")
    parser.add_argument("--buckets", default="0,1,2,4,16")
    parser.add_argument("--stage", type=int, default=1, help="of buckets")
    parser.add_argument("--repeats", type=int, default=3, help="of buckets")
    o = parser.parse_args()
    run, hosts, rates, model = STUDIES[o.study]
    o.hosts, o.rates = [int(n) for n in (o.hosts or hosts).split(",")], (o.rates or rates).split(",")
    o.model = o.model or model
    os.makedirs(o.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as o.work:
        study.prepare(f"{o.work}/data", "stdlib", "--max-bytes", "200K")
        name, text = run(o)
    study.write(f"{o.out}/{name}", text)
    print(text)


if __name__ == "__main__":
    main()
