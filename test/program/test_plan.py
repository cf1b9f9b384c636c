#!/usr/bin/env python3
"""`train_llama plan`: what it says, what it refuses, and its memory beside the ledger of real runs. Ends with counts.

test/program/test_plan.py ./train_llama [./train_llama_simt]
"""

import os
import re

import checks
from checks import ROOT, Table, arguments, check, commands, end, load, said, skip, text_data, work

program, *simt = arguments
LLAMA = "--preset llama3.1-8b --dtype bf16 --seq-len 8192 --batch 1"
NODE = f"--gpus 8 --gpu h100-80g {LLAMA}"
NODES = f"--gpus 64 --gpu h100-80g {LLAMA} --zero 3 --recompute block"
TINY = "--gpus 16 --gpu h100-80g --preset tiny --dtype bf16 --seq-len 256 --batch 2 --collectives ring"
TOY = "--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --seq-len 32"
# 8B on one card of 24 GB and of 16 GB, with its state on the host: masters and moments are 12 bytes per parameter.
CARD = "--gpus 1 --preset llama3.1-8b --dtype bf16 --zero 3 --recompute block --seq-len 2048 --batch 4 --logits-mib 256"
ON_HOST = "--offload-optimizer stream --offload-grads on --offload-params on"
PINNED = f"{CARD} {ON_HOST} --offload-activations on"
small_host, no_key, no_range = (work / name for name in ("small_host.toml", "no_key.toml", "no_range.toml"))
card = (ROOT / "llama/configs/machines/rtx4090-24g.toml").read_text()
small_host.write_text(re.sub("(?m)^host-memory-gib = .*", "host-memory-gib = 64", card))
no_key.write_text("memory-gib = 80\ngemm-bf16-tflops = 700\ngemm-fp32-tflop = 50\n")
no_range.write_text("memory-gib = -1\n")


def number(pattern):
    return float(said(pattern) or "nan")


def near(what, got, want, bound=1e-3):
    check(what, abs(got / want - 1) < bound, f"got {got}, wanted {want}\n{checks.last}")


def plan(text):
    commands(text, [program, "plan"])


plan(rf"""
    a run that fits: memory by kind, the largest micro-batch | 0 | {NODES} | : fits,  | ^  outside the ledger: .* an estimate | ^largest  --batch \d
    MFU is measured against one peak, whatever the types: fp8 | 0 | {NODE} --zero 3 --fp8 tensor |  of 989 TFLOP/s \(bf16, dense\),
      fp32 | 0 | {NODE} --zero 3 --dtype fp32 --recompute block |  of 989 TFLOP/s \(bf16, dense\),
    nothing fits | 3 | {NODE} | ^  nearest, same numerics: (.*) needs  | ^plan: nothing fits 8 x 79.1 GiB: this needs
      the nearest that is named does fit | 0 | {NODE} $1
    of what fits the micro-batch is the first to change | 3 | {NODE} --zero 3 --batch 16 | ^  nearest, same numerics: --batch 1 needs
    numerics are the last, in a line of their own | 3 | {NODE} --dtype fp32 --zero 3 --batch 16 | ^  nearest, same numerics: --batch 1 --recompute norms needs | ^  nearest, other numerics: --batch 1 --dtype bf16 needs
    8B on a card of 24 GB | 3 | {CARD} --gpu rtx4090-24g | {ON_HOST} needs
      with its state on the host | 0 | {PINNED} --gpu rtx4090-24g | : fits,  | host, pinned +14665[0-9]*
    8B on a card of 16 GB | 3 | {CARD} --gpu rtx4080-16g | {ON_HOST} needs
      with its state on the host | 0 | {PINNED} --gpu rtx4080-16g | : fits,  | host, pinned +14665[0-9]*
    more pinned than another machine's host has | 3 | {PINNED} --gpu {small_host} | plan: needs 136.6 GiB pinned on each host, which has 64.0 GiB \(host-memory-gib of {small_host}\) | ^  nearest,
    the same by --host-gib, and a machine's name in any case | 3 | {PINNED} --gpu RTX4090-24G --host-gib 100 | which has 100.0 GiB \(--host-gib\)
    a machine's file with a key that is none | 70 | --gpus 8 --gpu {no_key} --preset tiny | gemm-fp32-tflop is no key of a machine | nearest: gemm-fp32-tflops
    a machine's file with a number out of range | 70 | --gpus 8 --gpu {no_range} --preset tiny
    what the run would refuse, in its words | 2 | --gpus 6 --gpu h100-80g --preset tiny --batch 4 --seq-len 256 --batch-tokens 500000 | --batch-tokens 500000 does not divide into micro-batches | nearest: --batch-tokens
    flags that the run does not know | 2 | --gpus 8 --gpu h100-80g --presets tiny --stepz 3
    --batch-tokens 0.5M is 524288 | 0 | {NODES} --batch-tokens 0.5M | = 524288 tokens per step
    half a token, and what is meant | 2 | {NODE} --batch-tokens 1.5 | is no whole number of tokens | 4M \(of 2\^20\)
    more ranks than parts of a unit, and what to change | 0 | --gpus 128 --gpu h100-80g {TOY} --dim 16 --layers 1 --heads 2 --kv-heads 1 --ffn 24 --batch 1 --zero 3 | others own nothing; --shard-size  | takes no more memory | ^change   same numerics: --batch
    formulas of bytes | 0 | --help | block            2G 2S     4G 2S | ^replicate
    --search: what nothing beats, as command lines | 0 | {NODE} --search --collectives ring --adam-dtype fp32 --tp 1 | ^mpirun -n 8 ./train_llama( --preset llama3.1-8b.*) | beaten by none | ^same numerics | ^other numerics
      the first of them fits | 0 | --gpus 8 --gpu h100-80g $1 | : fits,
""")
if simt:
    axes = "--preset llama3.2-1b --dtype bf16 --seq-len 2048 --batch-tokens 128K --adam-dtype fp32 --collectives ring"
    plan(
        rf"--search over all axes | 0 | --gpus 8 --gpu h100-80g {axes} --search | --fp8 tensor | mpirun -n 8 | searched ([0-9]+) of \1$"
    )
plan(rf"the largest micro-batch | 0 | {NODES} --batch-tokens 33554432 | ^largest  --batch \d+ ")
batch = int(said(r"^largest  --batch (\d+) ") or 0)
plan(f"  fits | 0 | {NODES} --batch {batch}")
plan(f"  and twice as many sequences do not | 3 | {NODES} --batch {2 * batch}")

# ---- times: 989 TFLOP/s is of the card's data sheet; of 8,030,261,248 parameters the embedding's are in no product ----
plan(f"a plan of 15T tokens | 0 | {NODES} --tokens 15T")
rate, tokens = number(r", (\d+) tokens/s"), number(r"= (\d+) tokens per step")
near("  seconds of a step", number(r"time +([\d.e+-]+) s a step") * rate, tokens)
near("  tokens", number(r"([\d.e+]+) tokens: "), 15e12, 1e-9)
near("  steps", number(r" tokens: ([\d.e+]+) steps") * tokens, 15e12)
hours = 24 * number(r"steps, (\d+)d\d+h") + number(r"steps, \d+d(\d+)h")
check("  days and hours", abs(hours - 15e12 / rate / 3600) <= 1)
near("  GPU hours", number(r", (\d+) GPU hours"), 64 * 15e12 / rate / 3600)
flops = 6 * (8030261248 - 128256 * 4096) + 6 * 32 * 4096 * 8192
mfu = number(r"MFU ([\d.]+) % of 989 TFLOP/s \(bf16, dense\), causal")
check("  MFU", abs(mfu - 100 * flops * rate / 64 / 989e12) < 0.1)
# Whole steps end within seven days, by the rate that is printed with four digits.
plan(f"--days 7: how many tokens they are | 0 | {NODES} --days 7 | , 7d00h, 10752 GPU hours")
near("  tokens", number(r"([\d.e+]+) tokens: "), 7 * 86400 * number(r", (\d+) tokens/s"))

# ---- recipes ----
for name in "1b-24g", "3b-48g", "8b-80g":
    recipe, found = ROOT / f"llama/configs/{name}.toml", work / "found.toml"
    command = re.search(r"^# *\./train_llama plan (.*) --write-config ", recipe.read_text(), re.M)[1]
    plan(f"the recipe {name} | 0 | {command} --write-config {found}")
    lines = {line for line in found.read_text().splitlines() if not line.startswith("#")}
    check("  is what the planner finds", lines and lines <= set(recipe.read_text().splitlines()), lines)
    plan(f"  fits | 0 | {command.partition(' --preset')[0]} --config {recipe} | : fits, ")

# ---- bytes ----
LAYOUTS = """--zero 1
--zero 3 --shard-size 4
--tp 2 --cp 2 --pp 2 --zero 2 --grad-accum 4
--tp 4 --pp 4 --grad-accum 8 --pp-schedule 1f1b
--cp 8 --cp-exchange ring --recompute block --zero 3 --grad-accum 6"""
for layout in LAYOUTS.splitlines():
    plan(f"bytes by axis, {layout} | 0 | {TINY} {layout} --json {work}/plan.json")
    ranks = load("plan.json")["planned_ranks"]
    differ = [r for r in ranks if sum(r["bytes_sent_by_axis"].values()) != r["bytes_sent"]]
    check("  their sum is what collectives and links count", ranks and not differ, differ)
large = "--gpus 16384 --gpu h200-141g --preset llama3.1-405b --seq-len 8192 --batch 1 --zero 3 --recompute block"
plan(f"16,384 GPUs | 0 | {large} --dtype bf16 --json {work}/plan.json")
held = [rank["memory_peak"]["parameters"] for rank in load("plan.json")["planned_ranks"]]
least = 405_853_388_800 * 2 / 16384  # bf16; every rank owns its part, and padding takes less than a thousandth
check("  by three ranks at most", 0 < len(held) < 4, held)
check("  each with its part of the parameters", all(least <= size < least * 1.001 for size in held), held)

# ---- --batch auto, and a machine's file that calibration makes here, which a plan then reads ----
toy = f"{TOY} --device cpu --data {text_data('200K')} --val-every 0 --val-tokens 64"
Table(program, toy, launcher="--ranks")(r"""
    auto    1 --batch auto --batch-tokens 512 --steps 4 --save-every 2 | says --batch auto: 16 sequences,  | says the margin is | says 16 sequences x 32 tokens x 1 ranks x 1 micro-batches = 512 tokens
    little  1 --batch auto --batch-tokens 96 --steps 2 | says --batch auto: 3 sequences,  | says = 96 tokens
    resumed 1 --batch auto --steps 6 --resume auto | from auto to 2 | silent --batch auto: | says 16 sequences x 32 tokens x 1 ranks x 1 micro-batches = 512 tokens
    two     2 --batch auto --batch-tokens 512 --steps 2 --zero 2 | says --batch auto: 8 sequences,  | says 8 sequences x 32 tokens x 2 ranks x 1 micro-batches = 512 tokens
    peak    1 --batch 4 --steps 2 --peak-tflops 0.05 | says MFU \(of 0.05 TFLOP/s, as --peak-tflops says\) | says % MFU
""")
clocks = [path for path in ("build/cpu/dev/plan_clock", "build/cuda/dev/plan_clock") if os.access(path, os.X_OK)]
if clocks:
    steps = f"{TOY} --data synthetic --batch 2"
    commands(f"""
        this CPU is measured | 0 | {clocks[0]} steps {steps} --rounds 1 --machine {work}/here.toml
        and planned with | 0 | {program} plan --gpus 1 --gpu {work}/here.toml {steps} | this CPU | : fits,  | a prediction
    """)
else:
    skip("plan_clock is not built")

# ---- neighbours of what is found; the plan beside the ledger; pages ----
GRID = f"0 | test/program/plan_grid.py {program}"
NEAR = f"no other flag of the same numerics is faster | 0 | test/program/plan_neighbours.py {program} --most-gpus 1 --every"
QUICK = f"""{NEAR} 10
    the first settings: plan = ledger to the byte | {GRID} --rows 5"""
WHOLE = f"""{NEAR} 3
    every pair of settings: plan = ledger to the byte | {GRID}
    Muon and NorMuon: plan = ledger to the byte | {GRID} --muon
    every pair of settings on the emulated GPU: plan = ledger to the byte | {GRID} --cuda {"".join(simt)}
    published rows are where dev/notes/plan-published.md has them | 0 | dev/run/published.py {program}"""
commands(WHOLE if simt else QUICK, limit=3600)
end()
