#!/usr/bin/env python3
"""Published tokens/s of other trainers beside what `train_llama plan` predicts for the same runs.

    dev/run/published.py [PROGRAM]           ends with 1 if the table of dev/notes/plan-published.md is not what is
                                             planned now, or a row is not where this file says that it is
    dev/run/published.py --write [PROGRAM]   writes the table
    dev/run/published.py --fit [PROGRAM]     prints the three constants of llama/configs/machines/h100-96g-titan.toml

torchtitan ran on H100 with 96 GB of HBM2e (2.4 TB/s) at 500 W, with kernels of its own. h100-96g-titan has h100-80g's
rates times three constants, of products in bf16, of products in fp8 and of attention, fitted on five rows (the sum of
the squares of the logarithms of planned : published is least). The others are held out: a row holds where planned :
published is within 25 % of one factor, the geometric mean of all rows. Those that do not are named in MISSES, and fail
here if they hold, as any other fails that does not. In each family the order of the rows must be the published one, but for pairs that are nearer than 6 %
to each other in either. Megatron's row is planned with h100-80g as it is: cards at full power, no constant fitted.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TITAN, H100 = "h100-96g-titan", "h100-80g"
PAGE = "dev/notes/plan-published.md"
BAND, NEAR = 0.25, 0.06
MEMORY = 2080  # GB/s of a copy on torchtitan's cards: h100-80g's 2900 times 2.4 / 3.35
MISSES = {}  # family, what, GPUs: why such a row does not hold

TYPES = "--dtype bf16 --grad-dtype fp32 --wire-dtype bf16"
SAC = f"--preset llama3.1-8b {TYPES} --zero 3 --recompute mlp --seq-len 8192"
FULL = f"--preset llama3.1-8b {TYPES} --zero 3 --recompute block --batch 1 --fp8 tensor"
B70 = f"--preset llama3.1-70b {TYPES} --zero 3 --recompute block --seq-len 8192 --tp 8 --batch 16"
B405 = (
    f"--preset llama3.1-405b {TYPES} --zero 1 --recompute block --fp8 tensor --tp 8 --tp-overlap on --pp 8 --grad-accum 8"
)
LONG = f"{B405} --pp-schedule 1f1b --batch 1"
M70 = f"--preset llama3.1-70b {TYPES} --zero 1 --fp8 tensor --seq-len 8192 --batch 1 --grad-accum 128 --tp 4 --pp 8"
MOST, LOOP = "--seq-len 262144 --max-seq-len 262144", "--pp-schedule interleaved"
DEC = "T1"  # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md
JUN = "T2"  # torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md
MEG = "M"  # Megatron-Bridge, docs/performance-summary-archive.md, 26.04.01

# family, what, GPUs, flags, published tokens/s of a GPU, source, fitted
ROWS = [
    ("8B", "bf16", 8, f"{SAC} --batch 2", 6667, DEC, True),
    ("8B", "fp8", 8, f"{SAC} --batch 2 --fp8 tensor", 8532, DEC, True),
    ("8B", "bf16", 128, f"{SAC} --batch 2", 6514, DEC, False),
    ("8B", "fp8", 128, f"{SAC} --batch 2 --fp8 tensor", 8380, DEC, False),
    ("8B context", "32,768 tokens, cp 1", 8, f"{FULL} --seq-len 32768", 3890, DEC, True),
    ("8B context", "65,536 tokens, cp 2", 8, f"{FULL} --seq-len 65536 --cp 2", 2540, DEC, False),
    ("8B context", "131,072 tokens, cp 4", 8, f"{FULL} --seq-len 131072 --cp 4", 1071, DEC, False),
    ("8B context", "262,144 tokens, cp 8", 8, f"{FULL} {MOST} --cp 8", 548, DEC, True),
    ("8B tp 8", "bf16", 64, f"{SAC} --tp 8 --batch 12", 4378, JUN, False),
    ("8B tp 8", "bf16, overlapped", 64, f"{SAC} --tp 8 --batch 12 --tp-overlap on", 4809.4, JUN, False),
    ("8B tp 8", "fp8", 64, f"{SAC} --tp 8 --batch 12 --fp8 tensor", 5078.1, JUN, False),
    ("70B tp 8", "bf16", 256, B70, 597.3, JUN, False),
    ("70B tp 8", "bf16, overlapped", 256, f"{B70} --tp-overlap on", 652.4, JUN, False),
    ("70B tp 8", "fp8", 256, f"{B70} --fp8 tensor", 829, DEC, True),
    ("70B tp 8", "fp8, overlapped", 256, f"{B70} --fp8 tensor --tp-overlap on", 876, DEC, False),
    ("405B tp 8 pp 8", "1f1b", 512, f"{B405} --pp-schedule 1f1b --seq-len 8192 --batch 4", 100, DEC, False),
    ("405B tp 8 pp 8", "interleaved", 512, f"{B405} {LOOP} --seq-len 8192 --batch 4", 128, DEC, False),
    ("405B context", "32,768 tokens, cp 1", 512, f"{LONG} --seq-len 32768", 76, DEC, False),
    ("405B context", "65,536 tokens, cp 2", 512, f"{LONG} --seq-len 65536 --cp 2", 47, DEC, False),
    ("405B context", "131,072 tokens, cp 4", 512, f"{LONG} --seq-len 131072 --cp 4", 31, DEC, False),
    ("405B context", "262,144 tokens, cp 8", 512, f"{LONG} {MOST} --cp 8", 16, DEC, False),
    ("70B", "tp 4 pp 8, five stages a rank", 64, f"{M70} {LOOP} --pp-stages-per-rank 5", 1664, MEG, False),
]


def machine_with(folder, name, shares=(1, 1, 1), memory=None):
    """A copy in which every row fits, since a plan that does not has another to name, and memory is not judged here."""
    with open(f"llama/configs/machines/{name}.toml") as f:
        text = re.sub(r"(?m)^memory-gib = .*$", "memory-gib = 4000", f.read())
    if memory:
        text = re.sub(r"(?m)^memory-gbs = .*$", f"memory-gbs = {memory}", text)
    keys = ["gemm-bf16-tflops", "gemm-fp8-tflops", r"attention-(?:forward|backward)-\d+-tflops"]
    numbers = re.compile(r"\d[\d.]*")
    for key, share in zip(keys, shares):
        text = re.sub(
            rf"(?m)^({key} = )(.*)$",
            lambda m, k=share: m[1] + numbers.sub(lambda n: f"{float(n[0]) * k:.4g}", m[2]),
            text,
        )
    path = os.path.join(folder, f"{name}-{'-'.join(map(str, shares))}.toml")
    with open(path, "w") as f:
        f.write(text)
    return path


def tokens_per_second(program, machine, row):
    command = [program, "plan", "--gpus", str(row[2]), "--gpu", machine, *row[3].split(), "--json", "-"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    plan = json.loads(run.stdout)
    return plan["tokens_per_step"] / plan["step_seconds"] / row[2]


def planned(program, folder):
    machines = {name: machine_with(folder, name) for name in (TITAN, H100)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(tokens_per_second, program, machines[H100 if r[5] == MEG else TITAN], r) for r in ROWS]
        return [job.result() for job in jobs]


def fit(program, folder):
    """Seconds of a token are taken as a sum of four parts, of which three shrink with a constant each."""
    fitted = [row for row in ROWS if row[6]]
    shares = [(1, 1, 1), (0.5, 1, 1), (1, 0.5, 1), (1, 1, 0.5)]
    parts = []
    for row in fitted:
        took = [1 / tokens_per_second(program, machine_with(folder, H100, s, MEMORY), row) for s in shares]
        of_rates = [t - took[0] for t in took[1:]]
        parts.append((row[4], of_rates, took[0] - sum(of_rates)))

    def error(x):
        return sum(math.log(published * (sum(a * b for a, b in zip(x, p)) + rest)) ** 2 for published, p, rest in parts)

    x, step = [1.0, 1.0, 1.0], 0.25
    while step > 1e-5:
        near = [[v + (s if i == j else 0) for j, v in enumerate(x)] for i in range(3) for s in (step, -step)]
        best = min(near, key=error)
        x, step = (best, step) if error(best) < error(x) else (x, step / 2)
    print("products in bf16 %.4g, in fp8 %.4g, attention %.4g" % tuple(1 / v for v in x))


def table(found):
    lines = ["| run | GPUs | published | planned | planned : published | |", "|---|---:|---:|---:|---:|---|"]
    for row, rate in zip(ROWS, found):
        family, what, gpus, _, published, source, fitted = row
        mark = "fitted" if fitted else "does not hold" if row[:3] in MISSES else "held out"
        if source == MEG:
            mark = "nothing fitted"
        ratio = f"{rate / published:.2f}"
        lines.append(f"| {family}: {what} [{source}] | {gpus} | {published:,} | {rate:,.0f} | {ratio} | {mark} |")
    lines.append(f"| geometric mean of all rows: the factor | | | | {factor(found):.2f} | |")
    return "\n".join(lines) + "\n"


def factor(found):
    return math.exp(sum(math.log(rate / row[4]) for row, rate in zip(ROWS, found)) / len(ROWS))


def wrong(found):
    common = factor(found)
    for row, rate in zip(ROWS, found):
        holds = abs(rate / row[4] / common - 1) <= BAND
        if holds == (row[:3] in MISSES):
            yield f"{row[0]}, {row[1]}, {row[2]} GPUs: planned : published is {rate / row[4]:.3f}: " + (
                "it holds now: take it out of MISSES" if holds else f"not within {BAND:.0%} of {common:.2f}"
            )
    rows = list(zip(ROWS, found))
    for i, (a, of_a) in enumerate(rows):
        for b, of_b in rows[:i]:
            theirs, ours = math.log(a[4] / b[4]), math.log(of_a / of_b)
            if a[0] == b[0] and theirs * ours < 0 and min(abs(theirs), abs(ours)) > NEAR:
                yield f"{a[0]}: {a[1]} and {b[1]} are in the other order"


def main():
    asked = sys.argv[1:]
    program = os.path.abspath(([a for a in asked if not a.startswith("--")] or ["./train_llama"])[0])
    os.chdir(TOP)
    with tempfile.TemporaryDirectory() as folder:
        if "--fit" in asked:
            return fit(program, folder)
        found = planned(program, folder)
    text = table(found)
    with open(PAGE) as f:
        page = f.read()
    begin, end = page.index("| run |"), page.index("\n\n", page.index("| run |")) + 1
    bad = list(wrong(found))
    if "--write" in asked:
        with open(PAGE, "w") as f:
            f.write(page[:begin] + text + page[end:])
    elif page[begin:end] != text:
        bad.append(f"{PAGE} has another table: dev/run/published.py --write\n{text}")
    print("\n".join(bad) or f"{len(ROWS)} rows are as said, about a factor of {factor(found):.3f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
