#!/usr/bin/env python3
"""Mixes of data sets, data that are still being written, and fine-tuning on conversations. Ends with counts.

test/program/test_data.py ./train_llama
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from checks import ROOT, Run, Table, arguments, check, dies, end, equal, expect, has_mpi, holds, load, remove, rows, run
from checks import skip, text_data, work

program = arguments[0]
mpi = has_mpi(program)
text_data("200K", "code")
(work / "notes.txt").write_text("".join(page.read_text() for page in sorted(ROOT.glob("*/README.md"))))
run(f"python3 data_prep/prepare.py text {work}/notes.txt --out {work}/notes")
SHAPE = "--device cpu --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --ffn 24 --seq-len 32"
train = Table(program, f"{SHAPE} --val-tokens 1024", limit=120)


def refused(text, flags):
    ended = run([program], "--device cpu --preset bytes --seq-len 32 --steps 1", flags)
    expect(f"refused: {flags}", ended, code=dies, says=re.escape(text))


def hashes(out):
    return [row["data_hash"] for row in rows(out)]


# ---- mixes ----
MIX = f"--data {work}/code:0.75,{work}/notes:0.25 --steps 6"
train(f"""
    mix     1 {MIX} --batch 8 --val-every 3 | says code: .* tokens, share 0.75
    micro   1 {MIX} --batch 2 --batch-tokens 256 --val-every 0
    half    1 {MIX} --batch 8 --val-every 0 --save-every 3 --data-weights-at 5:0.5,0.5
""")
for r in rows("mix"):
    per_epoch = 8 * r["step"] * 0.25 / r["epochs"]["notes"]  # samples; those of notes are a whole number here
    whole = abs(per_epoch - round(per_epoch)) < 1e-6 and per_epoch > 100
    check(f"step {r['step']} has the shares to the sample", whole, per_epoch)
val = rows("mix", "val_loss")
equal("validations", [r["step"] for r in val], [0, 3, 6])
means = [0.75 * r["val_loss_by_set"]["code"] + 0.25 * r["val_loss_by_set"]["notes"] - r["val_loss"] for r in val]
check("  their loss is the mean by shares", max(map(abs, means)) < 1e-6, val)
equal("micro-batches have the same tokens in the same order", hashes("micro"), hashes("mix"))

# ---- read ahead; with a fault every sample is read as from a slow file system ----
train(f"""
    needed  1 {MIX} --batch 2 --batch-tokens 256 --val-every 0 --data-threads 0 | bits of micro
    slow    1 {MIX} --batch 2 --batch-tokens 256 --val-every 0 --data-threads 4 | fault data.read:*:*:sleep=0.02 | bits of micro
    slow0   1 {MIX} --batch 2 --batch-tokens 256 --val-every 0 --data-threads 0 | fault data.read:*:*:sleep=0.02
""")
waits = [r["phases"]["data_wait"] for r in rows("slow0")]
check("slow reads are waited for, and it is said: eight samples of 20 ms", waits and min(waits) > 0.16, waits)
with holds("phases of a step are logged"):
    for r in rows("micro"):
        parts = [r["phases"][name] for name in ("forward", "backward", "optimizer")]
        assert min(parts) > 0 and sum(parts) <= r["seconds"] * 1.001, r
ranks, batch = (2, 4) if mpi else (1, 8)
train(f"again {ranks} {MIX} --resume auto --batch {batch} --data-weights-at 5:0.5,0.5 | from half to 3")
equal("the order continues as if nothing had happened", hashes("again"), hashes("half"))
same = [a == b for a, b in zip(hashes("again"), hashes("mix"))]
equal("  and is that of the mix until the shares change", same, [True] * 4 + [False] * 2)
taken = [r["epochs"]["notes"] for r in rows("again")]
check("  4 of 8 samples, before 2", abs((taken[5] - taken[4]) / (taken[3] - taken[2]) - 2) < 1e-6, taken)
train(f"""
    plain   1 --data {work}/code --batch 8 --steps 2 --val-every 0
    alone   1 --data {work}/code:1 --batch 8 --steps 2 --val-every 0 | weights of plain
""")

# ---- data that are still being written ----
run(f"python3 data_prep/prepare.py stdlib --max-bytes 100K --shard-tokens 8K --out {work}/whole-data")
whole, grown = load("whole-data/dataset.json"), work / "grown"
shards = whole["train"]["shards"]


def publish(n):
    """Lists shard n in `grown` too, and with the last one that it is all."""
    name = shards[n - 1]["file"]
    shutil.copy(work / "whole-data" / name, grown / "new").rename(grown / name)
    listed = {**whole["train"], "shards": shards[:n], "tokens": sum(s["tokens"] for s in shards[:n])}
    growing = {"growing": True} if n < len(shards) else {}
    (grown / "new").write_text(json.dumps({**whole, "train": listed, **growing}))
    (grown / "new").rename(grown / "dataset.json")


def begin():
    remove(grown)
    shutil.copytree(work / "whole-data", grown, ignore=shutil.ignore_patterns("*_train_*", "dataset.json"))
    publish(1)
    publish(2)


def while_it_grows(table):
    """Runs while one shard comes after the other."""
    writer = threading.Thread(target=lambda: [time.sleep(0.4) or publish(n) for n in range(3, len(shards) + 1)])
    writer.start()
    train(table)
    writer.join()


def manifest(checkpoint):
    """How many shards a checkpoint's data had, and the sums of how many it has."""
    value = load(checkpoint, "manifest.json")
    data = json.loads(value["data"]) if isinstance(value["data"], str) else value["data"]
    return len(data["shards"]), sum("train" in shard["name"] for shard in value["shards"])


steps = 16 * len(shards) + 4  # 1024 tokens each: 8 of them for each shard, twice through
ORDER = "--data-order sequential --val-every 0"
FINISHED, GROWN = (f"--data {folder} {ORDER} --batch 32" for folder in (work / "whole-data", grown))
train(f"finished 1 {FINISHED} --steps {steps}")
begin()
refused(f"nearest: --data {grown} --data-order sequential", f"--data {grown}")
while_it_grows(f"streamed 1 {GROWN} --steps {steps} --save-every 12 --keep 0 | weights of finished")
newest = max(p.name for p in (work / "streamed/checkpoints").glob("step_*"))
check("the last checkpoint has the sums of shards that came", manifest(f"streamed/checkpoints/{newest}")[1] > 2)
equal("a manifest lists the shards that were used", manifest("streamed/checkpoints/step_000000012")[0], 2)
train(f"""
    more    1 --data {grown} --resume {work}/streamed/checkpoints/step_000000012 --steps {steps} | weights of finished
""")
begin()
train(f"""
    waited  1 {GROWN} --data-wait 1 --steps {steps} | code 70 | says nothing came after the first [0-9]* samples for 1 s | status state=failed | steps 15
""")
equal("saved after the last step that had its data", rows("waited")[-1]["step"], 15)
for ranks, out, last in (1, "paused", 15), (2, "paused2", 7):
    if ranks == 1 or mpi:
        job = Run(train.by(ranks), train.model, GROWN, f"--steps {steps} --out {work / out} --threads 1", limit=120)
        job.until("^waiting  for data")
        # The ranks: a launcher that is stopped ends with a code of its own.
        found = subprocess.run(["pgrep", "-f", f"^{program} .*--out {work / out} "], capture_output=True, text=True)
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGTERM)
        expect(f"{out}: asked to stop while it waits, a run ends so", job.wait(), code=75)
        saved = [p.name for p in (work / out / "checkpoints").glob("step_*")]
        equal("  saved after the last step that had its data", saved, [f"step_{last:09}"])
        equal("  and logged", rows(out)[-1]["step"], last)
while_it_grows(f"paused 1 {GROWN} --resume auto | there | weights of finished")
if mpi:
    begin()
    three = f"{ORDER} --batch 11 --steps {steps}"
    train(f"whole 3 --data {work}/whole-data {three}")
    while_it_grows(f"three 3 --data {grown} {three} --save-every 12 --keep 0 | weights of whole")
    equal("the manifest lists what any rank has read", manifest("three/checkpoints/step_000000012")[0], 2)
else:
    skip("ranks that read while shards come: no MPI here")
begin()
dataset = grown / "dataset.json"
dataset.write_text(re.sub('"crc32": [0-9]*', '"crc32": 1', dataset.read_text()))
refused("dataset.json says 1: it is damaged", f"--data {grown} --data-order sequential")


# ---- fine-tuning ----
def tuned(out):
    """Sums of 256 rows in fp32 in another order: 256 roundings of 2^-24 at most in the first step."""
    with holds(f"{out}: the targets, the loss and the norm of one batch"):
        assert len(rows(out)) == len(rows("one")) == 4
        for a, b in zip(rows(out), rows("one")):
            assert a["targets"] == b["targets"] < 256, (a, b)
            for key in "loss", "grad_norm":
                assert abs(a[key] - b[key]) <= (2e-5 if a["step"] == 1 else 1e-3) * b[key], (key, a, b)


if importlib.util.find_spec("jinja2"):
    names = ["ann", "bob", "cleo", "dan", "eve", "fay", "gus", "hal"]
    with open(work / "talks.jsonl", "w") as file:
        for name in (names[i * 7 % 8] for i in range(400)):
            talk = {"user": f"Spell {name}.", "assistant": "-".join(name).upper()}
            messages = [{"role": role, "content": content} for role, content in talk.items()]
            file.write(json.dumps({"messages": messages}) + "\n")
    prepare = f"python3 data_prep/prepare.py chat {work}/talks.jsonl --template plain"
    expect("prepares conversations", run(prepare, f"--out {work}/chat"))
    expect("prepares rows that cut no conversation", run(prepare, f"--pack 64 --out {work}/rows"))
    tune = "--val-every 0 --doc-mask bos"
    train(f"""
        one     1 --data {work}/chat {tune} --steps 4 --batch 8 | says the loss is on the tokens that the shards mark as targets
        parts   1 --data {work}/chat {tune} --steps 4 --batch 1 --batch-tokens 256
        packed  1 --data {work}/rows {tune} --steps 2 --batch 4 --seq-len 64 --max-seq-len 64
    """)
    tuned("parts")
    if mpi:
        train(f"four 4 --data {work}/chat {tune} --steps 4 --batch 2 --zero 2")
        tuned("four")
    refused("nearest: --seq-len 64", f"--data {work}/rows")
    gpu = subprocess.run("nvidia-smi -L", shell=True, capture_output=True).returncode == 0
    refused("another gradient scale" if gpu else "which has none", f"--data {work}/chat --cuda-graphs on")
else:
    skip("fine-tuning: no jinja2 here")
end()
