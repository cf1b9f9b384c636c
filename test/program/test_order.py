#!/usr/bin/env python3
"""All ranks issue their operations in one order over all groups, as NCCL asks of communicators that share a GPU.

    test/program/test_order.py ./train_llama [--all]

Runs layouts on 8 ranks of the CPU, takes what every rank issued, in its order, from the flight recorder (SIGUSR2), and
sorts all of it into one order: an operation is its group and its number there, the same on all members. Where there is
none, the cycle is printed. Each log is then sorted once more with two operations of one rank exchanged, which must
fail. Without --all one layout. Ends with "N passed, N failed".
"""

import graphlib
import os
import pickle
import signal

from checks import Run, arguments, check, children, end, remove, work

RANKS = 8
MODEL = """--device cpu --preset tiny --data synthetic --seq-len 32 --batch 1 --val-every 0 --save-every 0 --dim 32 --ffn 48
    --heads 4 --kv-heads 4 --head-dim 8 --steps 100000 --timeout 60"""
LAYOUTS = [
    "--layers 4 --grad-accum 4 --tp 2 --pp 2 --pp-schedule 1f1b --zero 3 --pp-gather op",
    "--layers 4 --grad-accum 4 --tp 2 --pp 4 --pp-schedule 1f1b",
    "--layers 8 --grad-accum 8 --pp 4 --pp-schedule zb-v --zero 3 --pp-gather op",
    "--layers 4 --grad-accum 4 --pp 2 --pp-schedule interleaved --head tied --zero 2",
    "--layers 4 --grad-accum 8 --pp 4 --pp-schedule dualpipe --head untied",
    "--layers 8 --grad-accum 8 --pp 4 --pp-schedule dualpipev",
    "--layers 4 --grad-accum 4 --tp 2 --cp 2 --pp 2 --pp-schedule zb-h1",
    "--layers 4 --grad-accum 2 --tp 2 --cp 2 --zero 3 --tp-overlap on",
    "--layers 4 --grad-accum 4 --tp 4 --pp 2 --pp-schedule 1f1b --head tied",
    "--layers 4 --grad-accum 2 --cp 4 --zero 1",
    "--layers 4 --grad-accum 2 --zero 3 --shard-size 4 --prefetch 2",
    "--layers 4 --grad-accum 2 --tp 2 --zero 2 --collectives direct --accumulate-locally on",
]


def flight_of(layout):
    """rank -> [(group, number)] as it issued them."""
    folder = work / "flight"
    remove(folder)
    folder.mkdir()
    job = Run(arguments[:1], MODEL, layout, f"--ranks {RANKS}", env={"TMPDIR": folder})
    try:
        wait_for(job, "^step      3/")
        os.kill(children(job.pid)[0], signal.SIGUSR2)
        wait_for(job, "records for torchfrtrace stand in")
        dumps = [pickle.loads(f.read_bytes()) for f in sorted(folder.glob("ringzero-*/flight/rank_*"))]
    finally:
        job.signal(signal.SIGTERM)
        job.wait()
    issued = {}
    for rank, dump in enumerate(dumps):
        entries = sorted(dump["entries"], key=lambda e: e["op_id"])
        members = {name: group["ranks"] for name, group in dump["pg_config"].items()}
        issued[rank] = [((name := e["process_group"][0]) + members[name], e["collective_seq_id"]) for e in entries]
        steps = {e["record_id"] for e in entries}
        if len(steps) < 3:
            raise RuntimeError(f"rank {rank} has records of steps {sorted(steps)}")
    if len(issued) != RANKS:
        raise RuntimeError(f"records of {len(issued)} ranks")
    return issued


def wait_for(job, text):
    if not job.until(text):
        raise RuntimeError(f"no {text!r} in\n{job.text[-2000:]}")


def cycle(issued):
    """[] where there is one order."""
    sorter = graphlib.TopologicalSorter()
    for operations in issued.values():
        for before, after in zip(operations, operations[1:]):
            sorter.add(after, before)
    try:
        sorter.prepare()
        return []
    except graphlib.CycleError as error:
        return error.args[1]


def exchanged(issued):
    """Two operations that two ranks issue one after the other, exchanged on the first of them."""
    for rank, operations in issued.items():
        for other, theirs in issued.items():
            pairs = set(zip(theirs, theirs[1:])) if other != rank else ()
            for i, pair in enumerate(zip(operations, operations[1:])):
                if pair in pairs:
                    return {**issued, rank: [*operations[:i], pair[1], pair[0], *operations[i + 2 :]]}
    raise RuntimeError("no two ranks have two operations in common")


for layout in LAYOUTS if "--all" in arguments else LAYOUTS[:1]:
    try:
        issued = flight_of(layout)
        found = cycle(issued)
        wrong = "in no common order:\n  " + "\n  ".join(map(str, found[:40])) if found else ""
        if not wrong and not cycle(exchanged(issued)):
            wrong = "two operations of a rank were exchanged, and nothing was found"
    except RuntimeError as error:
        wrong = str(error)
    check(layout, not wrong, wrong)
end()
