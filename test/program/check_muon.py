#!/usr/bin/env python3
"""Twelve steps of --optimizer muon from stored models, beside the weights that transformers with torch.optim.Muon and
torch.optim.AdamW has after them (test/golden/muon, by dev/golden/make_muon_golden.py).

    test/program/check_muon.py ./train_llama [FLAGS]      more flags for each run, such as --ranks 3 --zero 3

Distances are parts of what the tensor has moved by. Products in fp32, without and with NorMuon's moments of rows: at
most 1e-5. Products in bf16: at most twice the largest that torch itself has between bf16 and fp32, of any tensor (AdamW's
first steps are +-lr where a gradient is all but zero, whatever its noise)."""

import json
import os
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
FP32 = 1e-5
GOLDEN = os.path.join(ROOT, "test", "golden", "muon")


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        assert entry["dtype"] == "F32", (path, name)
        out[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return out


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def main():
    program, flags = sys.argv[1], sys.argv[2:]
    failed = 0
    for case in sorted(os.listdir(GOLDEN)):
        folder = os.path.join(GOLDEN, case)
        if not os.path.isdir(folder):
            continue
        begin = read(os.path.join(folder, "model.safetensors"))
        stored = {which: read(os.path.join(folder, which + ".safetensors")) for which in ("fp32", "rows", "bf16")}
        for which, dtype, beta2 in (("fp32", "fp32", "0"), ("rows", "fp32", "0.95"), ("bf16", "bf16", "0")):
            with tempfile.TemporaryDirectory() as out:
                shard = os.path.join(folder, "data.bin")
                sequences = 2 // (int(flags[flags.index("--ranks") + 1]) if "--ranks" in flags else 1)
                command = [
                    program,
                    "--init-from",
                    folder,
                    "--train-data",
                    shard,
                    "--val-data",
                    shard,
                    "--data-order",
                    "sequential",
                    "--seq-len",
                    "16",
                    "--batch",
                    str(max(sequences, 1)),
                    "--batch-tokens",
                    "32",
                    "--steps",
                    "12",
                    "--lr",
                    "1e-2",
                    "--lr-schedule",
                    "constant",
                    "--warmup",
                    "0",
                    "--val-every",
                    "0",
                    "--save-every",
                    "0",
                    "--threads",
                    "1",
                    "--device",
                    "cpu",
                    "--optimizer",
                    "muon",
                    "--muon-dtype",
                    dtype,
                    "--muon-beta2",
                    beta2,
                    "--out",
                    out,
                    "--overwrite",
                    "--quiet",
                    *flags,
                ]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{case}: exit code {done.returncode}: {done.stderr[-1000:]}")
                final = read(os.path.join(out, "final", "model.safetensors"))
            want = stored["rows" if which == "rows" else "fp32"]
            moved = {name: distance(w, begin[name]) for name, w in want.items()}
            theirs = max(distance(stored["bf16"][name], w) / moved[name] for name, w in want.items())
            allowed = FP32 if dtype == "fp32" else 2 * theirs
            worst = max((distance(w, want[name]) / moved[name] / allowed, name) for name, w in final.items())
            failed += worst[0] > 1
            print(
                f"{'FAIL' if worst[0] > 1 else 'ok'}: {case}, {which}: {worst[0]:.3f} of what is allowed, in {worst[1]}"
            )
    return failed


sys.exit(main() > 0)
