#!/usr/bin/env python3
"""Whether a run of train_llama.c is the program's: its losses, step by step, and its final weights.

  dev/learn/compare_runs.py LOG WEIGHTS RUN      LOG: what train_llama.c printed; WEIGHTS: its --out; RUN: the program's

Both compute in fp32 and sum in different orders, so values differ by roundings. AdamW divides a gradient by its own size,
so a weight whose gradient is near zero may take another step of up to lr: the largest difference is bounded by a share of
the learning rates' sum (6e-3 in the test), the root mean square far more tightly.
"""

import array
import json
import math
import re
import struct
import sys

LOSS, RMS, LARGEST = 3e-6, 3e-7, 3e-5


def tensors(path):
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        assert t["dtype"] == "F32", f"{path}: {name} is {t['dtype']}; train the program with --dtype fp32"
        begin, end = t["data_offsets"]
        out[name] = (t["shape"], array.array("f", data[8 + length + begin : 8 + length + end]))
    return out


def main():
    log, weights, run = sys.argv[1:]
    with open(log) as f:
        mine = [float(x) for x in re.findall(r"^step \d+/\d+ \| loss (\S+)", f.read(), re.M)]
    with open(f"{run}/metrics.jsonl") as f:
        theirs = [row["loss"] for row in map(json.loads, f) if "loss" in row]
    if not mine or len(mine) != len(theirs):
        sys.exit(f"{len(mine)} steps in {log}, {len(theirs)} in {run}")
    worst = max(abs(a - b) for a, b in zip(mine, theirs))
    print(f"{len(mine)} losses, which differ by {worst:.2g} at most")
    if not worst <= LOSS:
        sys.exit(f"more than {LOSS}: {mine} and {theirs}")

    a, b = tensors(weights), tensors(f"{run}/final/model.safetensors")
    if {k: v[0] for k, v in a.items()} != {k: v[0] for k, v in b.items()}:
        sys.exit(f"other tensors or shapes: {sorted(a)} and {sorted(b)}")
    for name in a:
        d = [abs(x - y) for x, y in zip(a[name][1], b[name][1])]
        rms, largest = math.sqrt(sum(x * x for x in d) / len(d)), max(d)
        if not (rms <= RMS and largest <= LARGEST):
            sys.exit(f"{name} differs by {rms:.2g} (rms; {RMS} allowed), {largest:.2g} at most ({LARGEST} allowed)")
    print(f"{len(a)} tensors agree")


main()
