#!/usr/bin/env python3
"""Checkpoints of the program as a user runs it: a run that is cut into pieces is the run that never was. Ends with counts.

test/program/test_resume.py ./train_llama
"""

import json
import os
import struct
import zlib

import checks
from checks import ROOT, Table, arguments, check, cut, end, equal, expect, flip_bit, has_mpi, load, remove, rows
from checks import run, skip, tensors, text_data, weights, work

program = arguments[0]
MODEL = "--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu"
# 2000 tokens: 62 samples of 32, an epoch ends in the sixth step of 12
TRAIN = f"--data {text_data('400K')} --batch 2 --batch-tokens 384 --seq-len 32 --val-tokens 512 --val-every 5 --steps 14 --keep 0"
train = Table(program, f"{MODEL} {TRAIN}")
again = Table(program, "--device cpu")


def short_shard():
    """A short first shard and the rest: shard ends and epoch ends come by within a few steps."""
    (path,) = (work / "data").glob("*train*.bin")
    data = path.read_bytes()
    tokens = data[1024:5024]
    path.write_bytes(data[:8] + struct.pack("<i", 2000) + data[12:1024] + tokens)
    dataset = load("data/dataset.json")
    for shard in dataset["train"]["shards"]:
        if shard["file"] == path.name:
            shard["crc32"] = zlib.crc32(tokens)
    (work / "data/dataset.json").write_text(json.dumps(dataset))
    return path


def refused(text, flags, code=2):
    expect(f"refused: {flags}", run([program], flags), code=code, says=text)


def steps_of(out):
    return sorted(int(p.name[5:]) for p in (work / out / "checkpoints").glob("step_*"))


def one_process():
    train("""
        whole   1 --save-every 1 | says checkpoints/step_000000014
        plain   1 --save-every 0 | weights of whole
        bf16    1 --dtype bf16 --save-every 4
        narrow  1 --dtype bf16 --adam-dtype bf16 --master-dtype bf16 --save-every 4
        fp16    1 --dtype fp16 --loss-scale-window 4 --save-every 3 | fault gradient:0:6:inf,gradient:0:7:inf | says overflow at loss scale 131072, update skipped
        over    1 --dtype fp16 --loss-scale 4 --max-skips 3 | fault gradient:0:1+:inf | code 72
    """)
    check("--save-every 0 saves none", not (work / "plain/checkpoints").exists())
    # Boundaries: the beginning, an evaluated step, the end of an epoch, the last but one, the last. The loss scale has doubled and
    # halved before the cut; lost or begun again, it would change again in another step.
    again("""
        from1   1 --resume auto | from whole to 1 | bits of whole
        from5   1 --resume auto | from whole to 5 | bits of whole
        from6   1 --resume auto | from whole to 6 | bits of whole
        from13  1 --resume auto | from whole to 13 | bits of whole
        from14  1 --resume auto | from whole to 14 | bits of whole
        waits   1 --resume 7 --no-background-save | from whole to 7 | bits of whole
        bf16on  1 --resume auto | from bf16 to 8 | bits of bf16
        narrow8 1 --resume auto | from narrow to 8 | bits of narrow
        fp16on  1 --resume auto | from fp16 to 9 | bits of fp16
    """)
    scales = [[(row["step"], row["loss_scale"]) for row in rows(out, "loss_scale")] for out in ("fp16on", "fp16")]
    equal("the same loss scales", *scales)
    equal("  which change after it", rows("fp16", "loss_scale")[-1]["loss_scale"], 131072)
    equal("  two updates were skipped", load("fp16/checkpoints/step_000000009/manifest.json")["updates"], 7)
    # fp8: files hold masters, never codes, and each scale is found anew: a run that is cut finds the same. It evaluates items of lengths
    # that no fp8 product takes.
    wide = "1 --dim 128 --ffn 128 --head-dim 32 --batch 4 --dtype bf16"
    evaluates = "--seq-len 64 --batch-tokens 256 --steps 1 --eval-every 1 --eval-tasks piqa --eval-data test/golden/eval --eval-limit 3"
    for recipe in "tensor", "block", "mx":
        train(f"""
            {recipe} {wide} --steps 8 --fp8 {recipe} --save-every 4
            piqa     {wide} {evaluates} --fp8 {recipe} | says evaluation: piqa acc
        """)
        again(f"on 1 --resume auto | from {recipe} to 4 | bits of {recipe}")
    equal("fp8's recipes differ", len({weights(recipe) for recipe in ("tensor", "block", "mx")}), 3)


def kept_and_refused(shard):
    train("""
        keep    1 --keep 2 --save-every 3
        every   1 --keep 2 --keep-every 6 --save-every 3 --lr-schedule wsd --cooldown 4
    """)
    equal("--keep 2 keeps the newest two", steps_of("keep"), [12, 14])
    equal("--keep-every 6 keeps step 6 too", steps_of("every"), [6, 12, 14])
    planned, other = ([row["lr"] for row in rows(out, "lr")] for out in ("every", "keep"))
    check("a schedule of its own", planned != other)
    expect("a run resumes from a kept step", run([program], f"--out {work}/every --resume 6"))
    equal("  in the same schedule", [row["lr"] for row in rows("every", "lr")], planned)
    fresh = f"--out {work}/fresh"
    start = f"{MODEL} {TRAIN} --steps 2 {fresh}"
    expect("--resume auto begins where there is nothing", run([program], start, "--resume auto"))
    changed = run([program], f"--device cpu {fresh} --resume auto --steps 4 --lr 5e-4 --allow-lr-jump")
    expect("a changed flag is named and wins", changed, says=["--lr 5e-4, was 0.001", "step 4/4"])
    done = "nothing is left to do: raise --steps to train further, or begin anew with --out NEW or --overwrite; without effect: --lr 7e-4"
    expect("a finished run", run([program], f"--device cpu {fresh} --resume auto --lr 7e-4"), says=done)
    divides = [
        "--batch 5 does not divide the checkpoint's updates, 12 sequences on each of 1 ranks",
        "nearest: --batch 4",
    ]
    refused(divides, f"--device cpu {fresh} --resume auto --steps 6 --batch 5 --allow-lr-jump")
    recipe = work / "recipe.toml"
    recipe.write_text('resume = "auto"\n')
    refused("holds checkpoints up to step 4", f"--config {recipe} {start} --resume never")
    expect("--overwrite beats a recipe that resumes", run([program], f"--config {recipe} {start} --overwrite"))
    moved = list((work / "fresh").glob("before-*/checkpoints/step_000000004"))
    check("  and moves the earlier run aside", moved and not (work / "fresh/checkpoints/step_000000004").exists())
    recipe.write_text('resume = "auto"\noverwrite = true\n')
    refused("leave one of them out", f"--config {recipe} {start}")
    expect("training without --out", run([program], f"{MODEL} {TRAIN} --steps 1"), says="nothing of this run is kept")
    whole_shard = shard.read_bytes()
    flip_bit(shard, 1500, 1)
    again("""
        other   1 --resume auto | from whole to 6 | code 2 | says --allow-data-change
        other   1 --resume auto --allow-data-change | there
    """)
    shard.write_bytes(whole_shard)
    again(f"branch 1 --resume {work}/whole/checkpoints/step_000000010 | weights of whole")


def damage():
    folder = cut("whole", "hurt", 10) / "checkpoints"
    flip_bit(folder / "step_000000010/optimizer/m.safetensors", 30000)
    os.truncate(folder / "step_000000009/model.safetensors", 1000)
    remove(folder / "step_000000008/optimizer/v.safetensors")
    (folder / ".tmp-step_000000011-dead").mkdir()
    short = "step_000000009/model.safetensors: has | says step_000000008/optimizer/v.safetensors: missing"
    again(f"""
        hurt    1 --resume 10 | there | code 70 | says optimizer/m.safetensors: tensor
        hurt    1 --resume auto | there | weights of whole | says m.safetensors: tensor model. | says {short}
    """)
    check("left-overs are gone", not (folder / ".tmp-step_000000011-dead").exists())


def export():
    def exported(source, to, flags=""):
        expect(f"exports {source}", run([program], f"export --from {source} --to {work / to} {flags}"))
        return work / to / "model.safetensors"

    final = work / "whole/final/model.safetensors"
    files = [exported(work / "whole/checkpoints/step_000000014", "exported"), exported(work / "exported", "twice")]
    check("byte for byte, twice", all(file.read_bytes() == final.read_bytes() for file in files))
    exported(work / "exported", "half", "--dtype fp16")
    for golden in sorted((ROOT / "test/golden/model").glob("*/model.safetensors")):
        a, b = tensors(golden), tensors(exported(golden.parent, f"golden-{golden.parent.name}"))
        if "lm_head.weight" not in b:
            a.pop("lm_head.weight", None)
        check(f"the golden model {golden.parent.name}, byte for byte", a == b)
    remove(work / "keep/final")  # as one that was killed
    for folder in "whole/checkpoints/step_000000014", "whole", "keep":
        expect(
            f"generates from {folder}",
            run([program], f"generate --from {work / folder} --prompt 'def ' --max-tokens 4"),
        )


def a_file_for_each_block():
    """2 MiB in fp32: files above 1 MiB are cut. A run that is stopped with many files and continues into one, and back."""
    ranks = 2 if has_mpi(program) else 1
    large = Table(
        program,
        f"""--preset bytes --dim 128 --layers 3 --heads 4 --kv-heads 2 --head-dim 32 --ffn 256 --device cpu --data {work}/data --batch 1
        --seq-len 16 --val-tokens 16 --val-every 0 --save-every 2 --batch-tokens 32 --steps 4 --zero {3 if ranks == 2 else 0}""",
    )

    def joined(out):
        expect(
            f"{out}: exported",
            run([program], f"export --from {work / out} --to {work}/joined --max-shard-mib 0 --overwrite"),
        )
        one = work / "one_file/final/model.safetensors"
        check(f"{out}: the bytes of one file", (work / "joined/model.safetensors").read_bytes() == one.read_bytes())

    large(f"""
        shards    {ranks} --max-shard-mib 1
        one_file  {ranks} --max-shard-mib 0
    """)
    final = work / "shards/final"
    check(
        "final weights too",
        (final / "model-00005-of-00005.safetensors").exists() and not (final / "model.safetensors").exists(),
    )
    joined("shards")
    for source, size in ("shards", 0), ("one_file", 1):
        again(f"on {ranks} --resume auto --max-shard-mib {size} | from {source} to 2")
        joined("on")
    name = "optimizer/m-00002-of-00005.safetensors"
    flip_bit(work / "shards/checkpoints/step_000000004" / name, 30000)
    refused(f"{name}: tensor", f"--device cpu --out {work}/shards --resume 4 --steps 6", code=70)


def several_ranks():
    def same_tokens(out):
        equal(f"{out}: the tokens of one rank", *(rows(o, "data_hash")[-1]["data_hash"] for o in (out, "whole")))

    def same_loss(out):  # rounding of sums in another order, grown over 14 steps: far below a thousandth of the loss
        a, b = (rows(o, "val_loss")[-1]["val_loss"] for o in (out, "whole"))
        check(f"{out}: the loss of one rank", abs(a - b) <= 1e-4 * a, f"{a} {b}")

    train("three 3 --batch 4 --save-every 2 --zero 3")
    again("""
        three0    3 --resume auto --zero 0 | from three to 8 | weights of three
        three1    3 --resume auto --zero 1 | from three to 8 | weights of three
        three2    3 --resume auto --zero 2 | from three to 8 | weights of three
        three3    3 --resume auto --zero 3 | from three to 8 | weights of three
    """)
    same_tokens("three")
    same_loss("three")
    train("moves4 4 --batch 1 --steps 4 --save-every 4 --zero 3")
    again("""
        moves2    2 --resume auto --zero 1 --steps 7 --allow-lr-jump | from moves4
        moves3    3 --resume auto --zero 2 --steps 10 --allow-lr-jump | from moves2
        moves     1 --resume auto --steps 14 --allow-lr-jump | from moves3
        ranks     4 --resume auto --zero 3 --shard-size 2 | from whole to 6 | says --batch 1, was 2
        five      5 --resume auto --steps 20 | from ranks | fails | says do not divide among 5 ranks
    """)
    same_tokens("moves")
    same_tokens("ranks")
    same_loss("ranks")
    for name in "here", "there":
        (work / name).mkdir()
    part = f"-n 1 env -C {work}/{{}} {program} {MODEL} {TRAIN} --out mine"
    parts = f"mpirun {part.format('here')} : {part.format('there')}"
    expect("a folder that is not shared", run(parts), code=checks.dies, says="is not seen by rank 1")


shard = short_shard()
one_process()
kept_and_refused(shard)
damage()
export()
a_file_for_each_block()
if has_mpi(program):
    several_ranks()
else:
    skip("runs on several ranks: no MPI here")
end()
