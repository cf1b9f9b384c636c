#!/usr/bin/env python3
"""A start that is refused changes no byte of the folder that it was to write into.

    test/program/test_untouched.py PROGRAM [--starts N] [--seed N]

Draws N starts (24) of a finished run, a stopped one, one whose checkpoints are gone and a folder that is not there, each with
a request that must be refused, beside flags that matter to nobody; compares the names, contents and times of
all files and folders before and after. Ends with "N passed, N failed".
"""

import hashlib
import random

from checks import Table, check, copy, end, options, remove, run, text_data, work

SHAPE = """--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --batch 1 --seq-len 32
    --threads 1 --val-every 0 --val-tokens 256"""

# Questions, and a part of each answer. {out} is the run's folder.
RESUMED = [
    ("--resume 2 --steps 20", "learning rate would jump"),
    ("--resume 4 --lr 1", "learning rate would jump"),
    ("--resume {out}/checkpoints/step_000000002 --steps 20", "learning rate would jump"),
    ("--resume auto --steps 40 --lr 0.5", "learning rate would jump"),
    ("--resume 3", "holds no such checkpoint"),
    ("--resume auto --dim 64", "another model than is asked for"),
    ("--resume 2 --check-replicas 2", "--check-replicas"),
    ("--resume auto --data {data2}", "--allow-data-change"),
    ("--resume 2 --data {data2}", "--allow-data-change"),
    ("--resume 2 --cp 2", "cp 2 with 1 rank"),
    ("--resume 2 --cuda-graphs on", "--cuda-graphs"),
    ("--resume auto --offload-optimizer cpu", "--offload-optimizer"),
    ("--resume 2 --threads 999999", "--threads"),
    ("--resume 2 --seq-len 64", "do not divide"),
    ("--resume 2 --tp-wire bf16", "--tp"),
    ("--resume nowhere", "holds checkpoints"),
    ("--resume 2 --ranks 2 --batch-tokens 32", "does not divide"),
]
BEGUN = [
    ("{new}", "holds"),
    ("{new} --overwrite --cp 2", "cp 2 with 1 rank"),
    ("{new} --overwrite --check-replicas 1", "--check-replicas"),
    ("{new} --overwrite --cuda-graphs on", "--cuda-graphs"),
    ("{new} --overwrite --seq-len 100000", "--seq-len"),
    ("{new} --overwrite --threads 999999", "--threads"),
    ("{new} --overwrite --ranks 2 --seq-len 100000", "--seq-len"),
]
# No request that would be refused again, but a file that is not there yet: 70. The record of a finished run stays.
MISSING = [
    ("--resume 2 --eval-every 2 --eval-tasks nothing", "nothing.jsonl is not there"),
    ("--resume auto --eval-every 2 --eval-tasks piqa --eval-data {out}/nowhere", "piqa.jsonl is not there"),
    ("{new} --overwrite --eval-every 2 --eval-tasks nothing", "nothing.jsonl is not there"),
]
GONE = [("--resume auto --data {data}", "no checkpoint to resume from"), *BEGUN]
HARMLESS = [
    "",
    "--log-every 2",
    "--save-every 1",
    "--keep 3",
    "--keep-every 2",
    "--stats-every 1",
    "--wandb p",
    "--max-skips 3",
]


def picture(folder):
    """A folder and every name below it, with what it holds and when it was written: no find -newer sees a change."""
    found = {}
    for path in [folder, *folder.rglob("*")] if folder.exists() else []:
        name = str(path.relative_to(folder))
        there = path.lstat()
        content = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        found[name] = (content, there.st_ino, there.st_mtime_ns)
    return found


o = options("program", starts=24, seed=1)
chance = random.Random(o.seed)
data, data2 = text_data("400K"), text_data("300K", to="data2")
new = f"{SHAPE} --data {data} --steps 6 --save-every 2 --keep 0"
Table(o.program, new)("""
    finished 1
    stopped  1 | fault step:0:5:term | code 75
""")
for name in "gone", "unreadable":
    folder = copy("finished", name)
    remove(folder / "checkpoints", folder / "final")
(work / "unreadable/run_status.json").write_text('{"state": "running", "sa')
RUNS = {
    "finished": RESUMED + BEGUN + MISSING,
    "stopped": RESUMED[2:] + BEGUN,
    "gone": GONE,
    "unreadable": GONE,
    "fresh": BEGUN[1:],
}
# Every request of the finished run first, then drawn ones.
drawn = [("finished", request) for request in RUNS["finished"]]
chance.shuffle(drawn)
while len(drawn) < o.starts:
    name = chance.choice(sorted(RUNS))
    drawn.append((name, chance.choice(RUNS[name])))
for name, (request, answer) in drawn[: o.starts]:
    out = work / name
    flags = request.format(new=new, out=out, data=data, data2=data2) + " " + chance.choice(HARMLESS)
    before = picture(out)
    refused = run([o.program, "--out", out], flags)
    after = picture(out)
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    good = refused.code == (70 if (request, answer) in MISSING else 2) and answer in refused.text and not changed
    about = f"exit code {refused.code}, wanted: {answer}, changed: {', '.join(changed)}\n{refused.text}"
    check(f"{name}: {flags}", good, about)
end()
