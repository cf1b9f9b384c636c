#!/usr/bin/env python3
"""Published results and ours, on this machine's CPU, as a table: is what is known reached?      (make reproduce)

    dev/run/reproduce.py [--program ./train_llama] [--text input.txt] [--only shakespeare,grokking,recall] [--out runs/reproduce]

  shakespeare   nanoGPT's CPU configuration on tiny-shakespeare, published 1.88. The text comes from --text or the network; where
                neither has it, the row says "skipped"
  grokking      (a + b) mod 113 with one layer: the training pairs are known long before the others are (Power et al. 2022)
  recall        pairs of keys and values, then the keys again in another order: attention answers 99 % and more (Arora et al. 2023)
  long          tiny-shakespeare with 10.7M parameters, as nanoGPT's GPU configuration, published 1.4697: an hour, so only where --only names
                it (make reproduce-long), with one seed on all cores. What it reaches is found, not promised: there is no dropout here

Each other run takes one thread; as many run at once as there are cores. OUT gets table.md, grokking.svg and each run's folder with its log;
what a run with the same flags and program has reached there already is not run again. Ends with 1 if something known is not reached.
"""

import argparse
import hashlib
import math
import os
import random
import shlex
import subprocess
import sys
import time

import study
from picture import BLUE, ORANGE, Chart, Picture

SEEDS = (1, 2, 3)
LINK = "https://github.com/karpathy/nanoGPT/tree/3adf61e154c3fe3fca428ad6bc3818b27a3b8291"
P = 113
SHARE = 0.2  # of the sums train
PAIRS, KEYS, VALUES = 4, 16, 16


# ---- data: rows of one length, the loss on their marked tokens only -------------------------------------------------------


def write_rows(path, rows):
    """Rows of (ids, marks): which of the ids are targets."""
    study.write_shard(path, [i for ids, _ in rows for i in ids], [mark for _, marks in rows for mark in marks])


def make_sums(folder, seed):
    """a, b, =, (a + b) mod 113: a fifth of the 12,769 pairs train, the others validate."""
    rows = [((a, b, P, (a + b) % P), (0, 0, 0, 1)) for a in range(P) for b in range(P)]
    random.Random(seed).shuffle(rows)
    cut = int(SHARE * len(rows))
    write_rows(f"{folder}/train.bin", rows[:cut])
    write_rows(f"{folder}/val.bin", rows[cut:])


def make_recall(folder, seed):
    """Pairs of a key and a value, then each key and its value again in another order; the loss is on the latter."""
    draw = random.Random(seed)

    def row():
        keys = draw.sample(range(KEYS), PAIRS)
        value = {k: KEYS + draw.randrange(VALUES) for k in keys}
        ids = [i for k in keys for i in (k, value[k])] + [i for k in draw.sample(keys, PAIRS) for i in (k, value[k])]
        return ids, [0] * (2 * PAIRS) + [0, 1] * PAIRS

    write_rows(f"{folder}/train.bin", [row() for _ in range(40000)])
    write_rows(f"{folder}/val.bin", [row() for _ in range(1000)])


# ---- runs ------------------------------------------------------------------------------------------------------------------

CPU = "--dtype fp32 --device cpu --save-every 0 --head tied"
SHAPE = f"{CPU} --threads 1"
SHAKESPEARE = (f"{SHAPE} --dim 128 --layers 4 --heads 4 --kv-heads 4 --ffn 344 --vocab 264 --max-seq-len 64 --seq-len 64 --batch 12 --steps 2000 "
               "--lr 1e-3 --min-lr 1e-4 --warmup 100 --beta2 0.99 --weight-decay 0.1 --val-every 250 --val-tokens 111540 --log-every 100")
LONG = (f"{CPU} --threads {os.cpu_count()} --dim 384 --layers 6 --heads 6 --kv-heads 6 --ffn 1024 --vocab 264 --max-seq-len 256 --seq-len 256 --batch 64 "
        "--steps 500 --lr 1e-3 --min-lr 1e-4 --warmup 100 --beta2 0.99 --weight-decay 0.1 --val-every 50 --val-tokens 111540 --log-every 10")
GROKKING = (f"{SHAPE} --dim 128 --layers 1 --heads 4 --kv-heads 4 --ffn 256 --vocab 120 --max-seq-len 8 --seq-len 4 --batch 512 --steps 3000 "
            "--lr 1e-3 --lr-schedule constant --warmup 10 --beta2 0.98 --weight-decay 1.0 --val-every 50 --val-tokens 8192 --log-every 100 --spike-z 0")
RECALL = (f"{SHAPE} --dim 64 --layers 2 --heads 4 --kv-heads 4 --ffn 128 --init-std 0.05 --vocab 32 --max-seq-len 16 --seq-len 16 --batch 64 "
          "--steps 1000 --lr 3e-3 --warmup 50 --weight-decay 0.1 --val-every 250 --val-tokens 16000 --log-every 100 --spike-z 0")


def run(program, journal, folder, flags, known):
    """One that ran with this program and these flags is read."""
    command = shlex.join(["train_llama", *shlex.split(flags), "--out", folder])
    if (folder, command) not in known or not os.path.exists(f"{folder}/metrics.jsonl"):
        left, used = study.train(program, [*shlex.split(flags), "--quiet"], folder)
        journal.add({"folder": folder, "command": command, "cpu": used["cpu_seconds"], "val": left.val_loss})


def accuracy(loss):
    """At least this share of the answers is right: the loss of a wrong one is ln 2 or more."""
    return 1 - loss / math.log(2)


def of_text(o, *runs):
    data = f"{o.out}/data/shakespeare"
    words = [sys.executable, f"{study.TOP}/data_prep/prepare.py", "shakespeare", "--out", data, "--quiet", *(["--from", o.text] if o.text else [])]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return "skipped: no text: " + (said[-1] if said else f"prepare.py ended with {done.returncode}")
    return [f"--data {data} {run}" for run in runs]


def of_seeds(make):
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


def judge_long(_, folders):
    best = [min((loss, step) for step, loss in study.Left(f).validations.items()) for f in folders]
    return ", ".join(f"{loss:.4f} nats at step {step}" for loss, step in best) + " at best", True


def judge_recall(found, _):
    shares = [accuracy(f["val"]) for f in found]
    return "at least " + ", ".join(f"{math.floor(1e4 * x) / 100:.2f}" for x in shares) + " % right", min(shares) >= 0.99


def grok_steps(rows):
    """The step from which on 99 % of the training pairs are right, and that of the others (None: never)."""
    train = next((r["step"] for r in rows if "loss" in r and accuracy(r["loss"]) >= 0.99), None)
    val = next((r["step"] for r in rows if "val_loss" in r and accuracy(r["val_loss"]) >= 0.99), None)
    return train, val


def judge_grokking(found, folders):
    steps = [grok_steps(study.Left(f).rows) for f in folders]
    said = "99 % of the training pairs at step " + ", ".join(str(t) for t, _ in steps) + "; of the others at " + ", ".join(str(v) for _, v in steps)
    return said, all(t and v and v >= 3 * t for t, v in steps)


RESULTS = {
    "shakespeare": (lambda o: of_text(o, *(f"{SHAKESPEARE} --seed {s}" for s in SEEDS)), judge_shakespeare, f"1.88 nats ([nanoGPT]({LINK}), its README, CPU configuration)",
                    "a LLaMA (rotary positions, RMSNorm, SwiGLU 344, no biases, tied) beside a GPT; loss on the whole last tenth beside 20 batches"),
    "grokking": (of_seeds(make_sums), judge_grokking, "the pairs that train first, the others much later ([Power et al. 2022](https://arxiv.org/abs/2201.02177))",
                 "one LLaMA layer (theirs: two of a GPT; Nanda et al. 2023 have one, p = 113 and 30 % of the pairs, all in each batch); a fifth of the pairs train, in batches of 512"),
    "recall": (of_seeds(make_recall), judge_recall, "99 % and more by attention ([Arora et al. 2023](https://arxiv.org/abs/2312.04927), figure 2)",
               "4 pairs of 32 symbols in 16 tokens (theirs: 4 to 64 pairs of 8,192 in 64 to 512); each key is asked for once, right after the pairs"),
    "long": (lambda o: of_text(o, f"{LONG} --seed 1"), judge_long, f"1.4754 nats at step 2,500 ([this shape, dropout 0.3](https://huggingface.co/bmeyer2025/tiny-gpt-shakespeare)); 1.4697 ([nanoGPT]({LINK}), its README, GPU configuration, dropout 0.2)",
             "no dropout, so 500 steps; loss on the whole last tenth"),
}


def picture_of_grokking(left):
    """Loss on the training pairs and on the others; steps and losses both on logarithmic axes."""
    curves = {"training pairs": [(r["step"], r["loss"]) for r in left.steps],
              "the other pairs": [(step, loss) for step, loss in left.validations.items() if step and loss]}  # fmt: skip
    last = max(step for points in curves.values() for step, _ in points)
    p = Picture("(a + b) mod 113, one layer: loss by step", 360, 640)
    p.head(p.title, x=180)
    chart = Chart(p, (64, 36, 556, 276), (1, last), (1e-4, 20), log="xy")
    chart.rows([10.0**power for power in range(-4, 2)])
    chart.columns([10**power for power in range(int(math.log10(last)) + 1)])
    p.text(320, 352, "step", 12, "middle")
    for row, ((name, points), colour) in enumerate(zip(curves.items(), (BLUE, ORANGE))):
        chart.curve(points, colour, 1.5)
        p.text(76, 282 + 16 * row, name, 12, colour=colour)
    return p.svg()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_llama")
    parser.add_argument("--text", help="tiny-shakespeare's input.txt")
    parser.add_argument("--only", default="shakespeare,grokking,recall")
    parser.add_argument("--out", default="runs/reproduce")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="the first so many of 1, 2, 3")
    o = parser.parse_args()
    if unknown := set(o.only.split(",")) - set(RESULTS):
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {', '.join(RESULTS)}")
    program = os.path.abspath(o.program)
    with open(program, "rb") as f:
        identity = hashlib.sha256(f.read()).hexdigest()
    os.makedirs(o.out, exist_ok=True)
    journal = study.Journal(f"{o.out}/journal.jsonl", "folder", "command", program=identity)
    plans, runs = {}, []
    for name in o.only.split(","):
        made = plans[name] = RESULTS[name][0](o)
        if not isinstance(made, str):
            plans[name] = [f"{o.out}/{name}-{s}" for s, _ in zip(SEEDS[: o.seeds], made)]
            runs += zip(plans[name], made)
    known = journal.rows()
    study.each(os.cpu_count(), lambda folder, flags: run(program, journal, folder, flags, known), runs)
    done = {folder: row for (folder, _), row in journal.rows().items()}
    rows, good = [], True
    for name, folders in plans.items():
        _, judge, published, differs = RESULTS[name]
        if isinstance(folders, str):
            rows.append([name, published, folders, "", "", differs, ""])
            continue
        found = [done[folder] for folder in folders]
        said, reached = judge(found, folders)
        good &= reached
        cpu = sum(f["cpu"] for f in found) / len(found)
        rows.append([name, published, f"{said}{'' if reached else ' **(not reached)**'}", ", ".join(f.rsplit("-", 1)[1] for f in folders), f"{cpu:.0f}", differs,
                     f"`{found[0]['command']}`, {folders[0]}/log.txt"])  # fmt: skip
        if name == "grokking":
            study.write(f"{o.out}/grokking.svg", picture_of_grokking(study.Left(folders[0])))
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()
    text = f"{version}, {time.strftime('%Y-%m-%d', time.gmtime())}, {study.cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; one thread a run, long all; "
    text += "CPU seconds of whole processes, mean over the seeds.\n\n"
    text += study.table(["", "published", "here", "seeds", "CPU seconds", "what differs", "command, log"], rows)
    study.write(f"{o.out}/table.md", text)
    print(text, end="")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
