#!/usr/bin/env python3
"""Twelve steps of --optimizer muon from stored models, beside the weights that transformers with torch.optim.Muon and
torch.optim.AdamW has after them (test/golden/muon, by dev/golden/make_muon_golden.py). Ends with counts.

    test/program/check_muon.py ./train_llama [FLAGS]      more flags for each run, such as --ranks 2 --zero 3

Distances are parts of what the tensor has moved by. Products in fp32, without and with NorMuon's moments of rows: at
most 1e-5. Products in bf16: at most twice the largest that torch itself has between bf16 and fp32, of any tensor (AdamW's
first steps are +-lr where a gradient is all but zero, whatever its noise)."""

import math
import struct

from checks import ROOT, arguments, check, end, expect, run, tensors, work

FP32 = 1e-5
RUN = """--data-order sequential --seq-len 16 --batch-tokens 32 --steps 12 --lr 1e-2 --lr-schedule constant --warmup 0 --val-every 0
    --save-every 0 --threads 1 --device cpu --optimizer muon --overwrite --quiet"""
program, *flags = arguments
batch = max(2 // (int(flags[flags.index("--ranks") + 1]) if "--ranks" in flags else 1), 1)


def read(file):
    found = tensors(file)
    assert {kind for kind, _, _ in found.values()} == {"F32"}, file
    return {name: struct.unpack(f"<{len(data) // 4}f", data) for name, (_, _, data) in found.items()}


for folder in sorted(path for path in (ROOT / "test/golden/muon").iterdir() if path.is_dir()):
    begin, fp32, rows, bf16 = (read(folder / f"{name}.safetensors") for name in ("model", "fp32", "rows", "bf16"))
    for which, beta2, want in ("fp32", 0, fp32), ("rows", 0.95, rows), ("bf16", 0, fp32):
        dtype = "bf16" if which == "bf16" else "fp32"
        data = f"--init-from {folder} --train-data {folder}/data.bin --val-data {folder}/data.bin --out {work}/run"
        muon = f"--batch {batch} --muon-dtype {dtype} --muon-beta2 {beta2}"
        what = f"{folder.name}, {which}"
        expect(what, run([program], data, RUN, muon, flags))
        final = read("run/final/model.safetensors")
        moved = {name: math.dist(w, begin[name]) for name, w in want.items()}
        theirs = max(math.dist(bf16[name], w) / moved[name] for name, w in want.items())
        allowed = FP32 if dtype == "fp32" else 2 * theirs
        worst, name = max((math.dist(w, want[name]) / moved[name] / allowed, name) for name, w in final.items())
        check(what, worst <= 1, f"{worst:.3f} of what is allowed, in {name}")
end()
