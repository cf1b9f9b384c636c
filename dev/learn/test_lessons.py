#!/usr/bin/env python3
"""Every lesson both ways: its solution must pass the check, its exercise as it stands must fail it. Then the pages, and
train_llama.c beside the program. Ends with counts.

dev/learn/test_lessons.py BUILT      (make learn)      BUILT: where the lessons' programs are; PROGRAM: train_llama, if not ./train_llama
"""

import hashlib
import math
import os
import pathlib
import re
import sys
from array import array

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/program"))
from checks import arguments, check, end, expect, rows, run, shard, skip, tensors, text_data, work  # noqa: E402

built = pathlib.Path(arguments[0])
program = os.environ.get("PROGRAM", "./train_llama")

for folder in sorted(ROOT.glob("dev/learn/[0-9][0-9]_*/")):
    lesson = built / folder.name
    if folder.name.startswith("18") and not (lesson / "solution").exists():
        skip(f"{folder.name}: CUDA's headers are not here; make lesson N=18 fetches them")
        continue
    expect(f"{folder.name}: the solution passes", run(lesson / "solution", limit=60))
    # An exercise fails by saying so: exit code 1 and a last line. A crash or a hang teaches nothing.
    expect(
        f"{folder.name}: the exercise fails until its holes are filled",
        run(lesson / "exercise", limit=60),
        1,
        r"^not yet: .*\n\Z",
    )

# ---- train_llama.c beside the program: ten steps on the same shards, from the same seed ---------------------------------

# Both compute in fp32 and sum in different orders, so values differ by roundings. AdamW divides a gradient by its own size,
# so a weight whose gradient is near zero may take another step of up to lr: the largest difference is bounded by a share
# of the learning rates' sum (6e-3), the root mean square far more tightly.
LOSS, RMS, LARGEST = 3e-6, 3e-7, 3e-5


def apart(c, weights, out):
    """By what the losses of all steps or the final weights differ, if it is more than roundings."""
    mine = [float(x) for x in re.findall(r"^step \d+/10 \| loss (\S+)", c.text, re.M)]
    theirs = [row["loss"] for row in rows(out)]
    if len(mine) != 10 or len(theirs) != 10 or not max(abs(a - b) for a, b in zip(mine, theirs)) <= LOSS:
        return f"losses {mine} and {theirs}"
    a, b = tensors(weights), tensors(out / "final/model.safetensors")
    if {k: v[:2] for k, v in a.items()} != {k: v[:2] for k, v in b.items()}:
        return f"other tensors, types or shapes: {sorted(a)} and {sorted(b)}"
    for name in a:
        d = [abs(x - y) for x, y in zip(array("f", a[name][2]), array("f", b[name][2]))]
        rms, largest = math.sqrt(sum(x * x for x in d) / len(d)), max(d)
        if not (rms <= RMS and largest <= LARGEST):
            return f"{name} differs by {rms:.2g} (rms; {RMS} allowed), {largest:.2g} at most ({LARGEST} allowed)"
    return ""


def beside(what, files, micro, c_flags, program_flags, shape, differs="^$"):
    flags = f"--train-data {files} --steps 10 --batch 4 --seq-len 64 --seed 7 {shape}"
    weights, out = work / "c.safetensors", work / "program"
    c = run(built / "train_llama", flags, f"--micro-batches {micro} {c_flags} --out", weights)
    expect(f"train_llama.c: {what}", c)
    device = f"--device cpu --preset bytes --val-every 0 --save-every 0 --overwrite --batch-tokens {256 * micro}"
    expect("  the program", run(program, device, flags, program_flags, "--out", out))
    found = apart(c, weights, out)
    check("  compared", re.search(differs, found), found)


for k, tokens in enumerate((5000, 3000)):
    noise = hashlib.shake_128(b"shard %d" % k).digest(tokens)
    (work / f"{k}.bin").write_bytes(shard([b % 16 * (b // 64 + 1) for b in noise], kind=(20240801, 7), size=4))
text = next(text_data("200K", "stdlib").glob("*_train_*.bin"))
small = "--dim 64 --layers 2 --heads 4 --kv-heads 2 --ffn 96 --vocab 512"
tiny = "--dim 48 --layers 1 --heads 4 --kv-heads 4 --head-dim 12 --ffn 64 --vocab 64"
two = f"{work}/0.bin,{work}/1.bin"
check("train_llama.c: at most 1000 lines", len((ROOT / "dev/learn/train_llama.c").read_text().splitlines()) <= 1000)
beside("grouped queries, two micro-batches", text, 2, "", "", small)
beside("a tied head, uint32 ids in two shards, more than an epoch", two, 4, "--tied 1", "--head tied", tiny)
beside("another weight decay is noticed", text, 1, "--weight-decay 0.2", "", small, differs="^losses|differs by")

speedrun = ["dev/learn/speedrun/speedrun.py", "--program", program, "--check", "--data", work / "speedrun"]
expect("speedrun: its data are the fixed ones, and record.toml trains", run(speedrun))
# The pages: what they name exists, and each hole of a lesson has two halves.
expect("pages, pictures and exercises", run("dev/learn/check_pages.py"))
end()
