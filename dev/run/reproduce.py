#!/usr/bin/env python3
"""Published results and ours, on this machine's CPU, as a table: is what is known reached?      (make reproduce)

    dev/run/reproduce.py [--program ./train_llama] [--text input.txt] [--only shakespeare,grokking,recall] [--out runs/reproduce]

  shakespeare   nanoGPT's CPU configuration on tiny-shakespeare, published 1.88. The text comes from --text or the network; where
                neither has it, the row says "skipped"
  grokking      (a + b) mod 113 with one layer: the training pairs are known long before the others are (Power et al. 2022)
  recall        pairs of keys and values, then the keys again in another order: attention answers 99 % and more (Arora et al. 2023)

Each run takes one thread; as many run at once as there are cores. OUT gets table.md, grokking.svg and each run's folder with its log;
what a run with the same flags and program has reached there already is not run again. Ends with 1 if something known is not reached.
"""

import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import random
import shlex
import struct
import subprocess
import sys
import time
from array import array

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "../..")
SEEDS = (1, 2, 3)
LINK = "https://github.com/karpathy/nanoGPT/tree/3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
P = 113
SHARE = 0.2  # of the sums train
PAIRS, KEYS, VALUES = 4, 16, 16


# ---- data: rows of one length, the loss on their marked tokens only -------------------------------------------------------


def write_shard(path, rows):
    """Rows of (ids, marks) as a shard of llm.c's with a bit for each token: whether it is a target (data_prep/chat.py)."""
    ids = array("H", (i for row, _ in rows for i in row))
    marks = [m for _, row in rows for m in row]
    bits = bytearray(-(-len(marks) // 8))
    for at, mark in enumerate(marks):
        bits[at // 8] |= mark << at % 8
    if sys.byteorder == "big":
        ids.byteswap()
    with open(path, "wb") as f:
        f.write(struct.pack("<4i", 20240520, 1, len(ids), 1).ljust(1024, b"\0") + ids.tobytes() + bytes(bits))


def make_sums(folder, seed):
    """a, b, =, (a + b) mod 113: a fifth of the 12,769 pairs train, the others validate."""
    rows = [((a, b, P, (a + b) % P), (0, 0, 0, 1)) for a in range(P) for b in range(P)]
    random.Random(seed).shuffle(rows)
    cut = int(SHARE * len(rows))
    write_shard(f"{folder}/train.bin", rows[:cut])
    write_shard(f"{folder}/val.bin", rows[cut:])


def make_recall(folder, seed):
    """Pairs of a key and a value, then each key and its value again in another order; the loss is on the latter."""
    draw = random.Random(seed)

    def row():
        keys = draw.sample(range(KEYS), PAIRS)
        value = {k: KEYS + draw.randrange(VALUES) for k in keys}
        ids = [i for k in keys for i in (k, value[k])] + [i for k in draw.sample(keys, PAIRS) for i in (k, value[k])]
        return ids, [0] * (2 * PAIRS) + [0, 1] * PAIRS

    write_shard(f"{folder}/train.bin", [row() for _ in range(40000)])
    write_shard(f"{folder}/val.bin", [row() for _ in range(1000)])


# ---- runs ------------------------------------------------------------------------------------------------------------------

SHAPE = "--dtype fp32 --device cpu --threads 1 --save-every 0 --head tied"
SHAKESPEARE = (f"{SHAPE} --dim 128 --layers 4 --heads 4 --kv-heads 4 --ffn 344 --vocab 264 --max-seq-len 64 --seq-len 64 --batch 12 --steps 2000 "
               "--lr 1e-3 --min-lr 1e-4 --warmup 100 --beta2 0.99 --weight-decay 0.1 --val-every 250 --val-tokens 111540 --log-every 100")
GROKKING = (f"{SHAPE} --dim 128 --layers 1 --heads 4 --kv-heads 4 --ffn 256 --vocab 120 --max-seq-len 8 --seq-len 4 --batch 512 --steps 3000 "
            "--lr 1e-3 --lr-schedule constant --warmup 10 --beta2 0.98 --weight-decay 1.0 --val-every 50 --val-tokens 8192 --log-every 100 --spike-z 0")
RECALL = (f"{SHAPE} --dim 64 --layers 2 --heads 4 --kv-heads 4 --ffn 128 --init-std 0.05 --vocab 32 --max-seq-len 16 --seq-len 16 --batch 64 "
          "--steps 1000 --lr 3e-3 --warmup 50 --weight-decay 0.1 --val-every 250 --val-tokens 16000 --log-every 100 --spike-z 0")


def rows_of(folder):
    with open(f"{folder}/metrics.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def run(program, identity, folder, flags):
    """CPU seconds, and the validation losses by step. One that ran with this program and these flags is read."""
    words = ["train_llama", *shlex.split(flags), "--out", folder]
    known = f"{folder}/reproduced.json"
    if os.path.exists(known):
        with open(known, encoding="utf-8") as f:
            found = json.load(f)
        if found["identity"] == identity and found["command"] == words:
            return found
    child = subprocess.Popen([program, *words[1:], "--overwrite", "--quiet"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"})
    problem = child.stderr.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{shlex.join(words)}\nended with {child.returncode}\n{problem}")
    val = {r["step"]: r["val_loss"] for r in rows_of(folder) if "val_loss" in r}
    found = {"identity": identity, "command": words, "cpu": used.ru_utime + used.ru_stime, "val": val[max(val)]}
    with open(known, "w", encoding="utf-8") as f:
        json.dump(found, f)
    return found


def accuracy(loss):
    """At least this share of the answers is right: the loss of a wrong one is ln 2 or more."""
    return 1 - loss / math.log(2)


def shakespeare(o):
    data = f"{o.out}/data/shakespeare"
    words = [sys.executable, f"{TOP}/data_prep/prepare.py", "shakespeare", "--out", data, "--quiet", *(["--from", o.text] if o.text else [])]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return "skipped: no text: " + (said[-1] if said else f"prepare.py ended with {done.returncode}")
    return [f"--data {data} {SHAKESPEARE} --seed {s}" for s in SEEDS]


def made(make):
    def prepare(o):
        out = []
        for s in SEEDS:
            folder = f"{o.out}/data/{make.__name__}-{s}"
            os.makedirs(folder, exist_ok=True)
            make(folder, s)
            flags = GROKKING if make is make_sums else RECALL
            out.append(f"--train-data {folder}/train.bin --val-data {folder}/val.bin {flags} --seed {s}")
        return out
    return prepare


def judge_shakespeare(found, _):
    losses = [f["val"] for f in found]
    return ", ".join(f"{x:.3f}" for x in losses) + " nats", max(losses) <= 1.70


def judge_recall(found, _):
    shares = [accuracy(f["val"]) for f in found]
    return "at least " + ", ".join(f"{math.floor(1e4 * x) / 100:.2f}" for x in shares) + " % right", min(shares) >= 0.99


def grok_steps(rows):
    """The step from which on 99 % of the training pairs are right, and that of the others (None: never)."""
    train = next((r["step"] for r in rows if "loss" in r and accuracy(r["loss"]) >= 0.99), None)
    val = next((r["step"] for r in rows if "val_loss" in r and accuracy(r["val_loss"]) >= 0.99), None)
    return train, val


def judge_grokking(found, folders):
    steps = [grok_steps(rows_of(f)) for f in folders]
    said = "99 % of the training pairs at step " + ", ".join(str(t) for t, _ in steps) + "; of the others at " + ", ".join(str(v) for _, v in steps)
    return said, all(t and v and v >= 3 * t for t, v in steps)


RESULTS = {
    "shakespeare": (shakespeare, judge_shakespeare, f"1.88 nats ([nanoGPT]({LINK}), its README, CPU configuration)",
                    "a LLaMA (rotary positions, RMSNorm, SwiGLU 344, no biases, tied) beside a GPT; loss on the whole last tenth beside 20 batches"),
    "grokking": (made(make_sums), judge_grokking, "the pairs that train first, the others much later ([Power et al. 2022](https://arxiv.org/abs/2201.02177))",
                 "one LLaMA layer (theirs: two of a GPT; Nanda et al. 2023 have one, p = 113 and 30 % of the pairs, all in each batch); a fifth of the pairs train, in batches of 512"),
    "recall": (made(make_recall), judge_recall, "99 % and more by attention ([Arora et al. 2023](https://arxiv.org/abs/2312.04927), figure 2)",
               "4 pairs of 32 symbols in 16 tokens (theirs: 4 to 64 pairs of 8,192 in 64 to 512); each key is asked for once, right after the pairs"),
}


def draw_grokking(o, folder):
    """Loss on the training pairs and on the others; steps and losses both on logarithmic axes."""
    rows = rows_of(folder)
    curves = {"training pairs": [(r["step"], r["loss"]) for r in rows if "loss" in r], "the other pairs": [(r["step"], r["val_loss"]) for r in rows if r.get("val_loss") and r["step"]]}
    last = max(s for points in curves.values() for s, _ in points)
    low, high = 1e-4, 20.0
    w, h, left, top, below = 640, 360, 64, 36, 48

    def x(s):
        return left + (w - left - 20) * math.log(s) / math.log(last)

    def y(v):
        return top + (h - top - below) * (math.log(high) - math.log(min(max(v, low), high))) / (math.log(high) - math.log(low))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">', f'<rect width="{w}" height="{h}" fill="#fff"/>',
           f'<text x="{w / 2}" y="20" text-anchor="middle" font-size="14">(a + b) mod 113, one layer: loss by step</text>']
    for power in range(-4, 2):
        out.append(f'<path d="M{left} {y(10.0 ** power):.1f}H{w - 20}" stroke="#ddd"/><text x="{left - 6}" y="{y(10.0 ** power) + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')
    for power in range(0, int(math.log10(last)) + 1):
        out.append(f'<text x="{x(10 ** power):.1f}" y="{h - below + 18}" text-anchor="middle">{10 ** power}</text>')
    out.append(f'<text x="{w / 2}" y="{h - 8}" text-anchor="middle">step</text>')
    for (name, points), colour, at in zip(curves.items(), ("#3b82f6", "#e8710a"), (0, 1)):
        path = "M" + "L".join(f"{x(s):.1f} {y(v):.1f}" for s, v in points)
        out.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/><text x="{left + 12}" y="{h - below - 30 + 16 * at}" fill="{colour}">{name}</text>')
    with open(f"{o.out}/grokking.svg", "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n</svg>\n")


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "a CPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_llama")
    parser.add_argument("--text", help="tiny-shakespeare's input.txt")
    parser.add_argument("--only", default=",".join(RESULTS))
    parser.add_argument("--out", default="runs/reproduce")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="the first so many of 1, 2, 3")
    o = parser.parse_args()
    if unknown := set(o.only.split(",")) - set(RESULTS):
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {', '.join(RESULTS)}")
    program = os.path.abspath(o.program)
    with open(program, "rb") as f:
        identity = hashlib.sha256(f.read()).hexdigest()
    os.makedirs(o.out, exist_ok=True)
    jobs, plans = {}, {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in o.only.split(","):
            plans[name] = RESULTS[name][0](o)
            if isinstance(plans[name], str):
                continue
            plans[name] = [(flags, f"{o.out}/{name}-{s}") for flags, s in zip(plans[name], SEEDS)][: o.seeds]
            jobs[name] = [pool.submit(run, program, identity, folder, flags) for flags, folder in plans[name]]
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()
    lines = [f"{version}, {time.strftime('%Y-%m-%d', time.gmtime())}, {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; one thread a run; CPU seconds of "
             "whole processes, mean over the seeds.", "", "| | published | here | seeds | CPU seconds | what differs | command, log |", "|---|---|---|---|---|---|---|"]
    good = True
    for name, plan in plans.items():
        _, judge, published, differs = RESULTS[name]
        if isinstance(plan, str):
            lines.append(f"| {name} | {published} | {plan} | | | {differs} | |")
            continue
        found, folders = [job.result() for job in jobs[name]], [folder for _, folder in plan]
        said, reached = judge(found, folders)
        good &= reached
        cpu = sum(f["cpu"] for f in found) / len(found)
        lines.append(f"| {name} | {published} | {said}{'' if reached else ' **(not reached)**'} | {', '.join(map(str, SEEDS[: o.seeds]))} | {cpu:.0f} | {differs} | "
                     f"`{shlex.join(found[0]['command'])}`, {folders[0]}/log.txt |")
        if name == "grokking":
            draw_grokking(o, folders[0])
    with open(f"{o.out}/table.md", "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
