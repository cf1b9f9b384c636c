#!/usr/bin/env bash
# `train_llama plan`: what it says, what it refuses, and its memory beside the ledger of real runs. Ends with counts.
#
#   test/program/test_plan.sh ./train_llama [./train_llama_simt]
set -uo pipefail
program=$(realpath "$1") simt=${2:+$(realpath "$2")}
cd "$(dirname "$0")/../.." || exit
# shellcheck source=test/program/check.sh
. test/program/check.sh
says() { local text; for text in "$@"; do grep -qF -- "$text" "$work/log" || { echo "not said: $text" >> "$work/log"; return 1; }; done; }
plan() {  # plan EXIT_CODE FLAGS...
  local want=$1 code=0
  shift
  "$program" plan "$@" > "$work/log" 2>&1 || code=$?
  [ "$code" = "$want" ] || { echo "exit code $code, not $want" >> "$work/log"; return 1; }
}
big="--gpu h100-80g --preset llama3.1-8b --dtype bf16 --seq-len 8192 --batch 1"

# shellcheck disable=SC2086
{
  fits() { plan 0 --gpus 64 $big --zero 3 --recompute block && says "fits, " "outside the ledger: " "an estimate" "largest  --batch "; }
  check "a run that fits: exit code 0, memory by kind, the largest micro-batch" fits
  whole() {  # 989 TFLOP/s: of the card's data sheet; 8,030,261,248 parameters, of which the embedding's are in no product
    plan 0 --gpus 64 $big --zero 3 --recompute block --tokens 15T && python3 - "$work/log" << 'END'
import re, sys
text = open(sys.argv[1]).read()
def number(words): return float(re.search(words, text)[1].replace(",", ""))
rate, tokens = number(r", (\d+) tokens/s"), number(r"= (\d+) tokens per step")
assert abs(number(r"time +([\d.e+-]+) s a step") * rate / tokens - 1) < 1e-3
assert number(r"([\d.e+]+) tokens: ") == 15e12 and abs(number(r" tokens: ([\d.e+]+) steps") * tokens / 15e12 - 1) < 1e-3
days, hours = map(int, re.search(r"steps, (\d+)d(\d+)h", text).groups())
assert abs(days * 24 + hours - 15e12 / rate / 3600) <= 1
assert abs(number(r", (\d+) GPU hours") / (64 * 15e12 / rate / 3600) - 1) < 1e-3
flops = 6 * (8030261248 - 128256 * 4096) + 6 * 32 * 4096 * 8192
assert abs(number(r"MFU ([\d.]+) % of 989 TFLOP/s \(bf16, dense\), causal") - 100 * flops * rate / 64 / 989e12) < 0.1
END
  }
  check "days, GPU hours and MFU follow from the rate" whole
  days() {  # whole steps that end within seven days, by the rate that is printed with four digits
    plan 0 --gpus 64 $big --zero 3 --recompute block --days 7 && python3 - "$work/log" << 'END'
import re, sys
text = open(sys.argv[1]).read()
tokens, rate = (float(re.search(words, text)[1]) for words in (r"([\d.e+]+) tokens: ", r", (\d+) tokens/s"))
assert abs(tokens / (7 * 86400 * rate) - 1) < 1e-3 and ", 7d00h, 10752 GPU hours" in text
END
  }
  check "--days 7: how many tokens they are" days
  check "  beside --tokens it is refused" plan 2 --gpus 64 $big --days 7 --tokens 1B
  one_peak() {  # 989 TFLOP/s, whatever the types: rows in fp8 compare with those in bf16
    plan 0 --gpus 8 $big --zero 3 --fp8 tensor && says " of 989 TFLOP/s (bf16, dense), " && plan 0 --gpus 8 $big --zero 3 --dtype fp32 --recompute block && says " of 989 TFLOP/s (bf16, dense), "
  }
  check "MFU is measured against one peak" one_peak
  nothing() { plan 3 --gpus 8 $big && says "plan: nothing fits 8 x 79.1 GiB: this needs " "  nearest, same numerics: "; }
  check "a run that does not fit: exit code 3, and the nearest that does" nothing
  nearest() {  # what is named as nearest does fit
    plan 3 --gpus 8 $big || return 1
    local flags
    flags=$(sed -n 's/^  nearest, same numerics: \(.*\) needs .*/\1/p' "$work/log")
    plan 0 --gpus 8 $big $flags
  }
  check "the nearest that is named does fit" nearest
  batch_first() { plan 3 --gpus 8 $big --zero 3 --batch 16 && says "  nearest, same numerics: --batch 1 needs"; }
  check "of what fits the micro-batch is the first to change" batch_first
  numerics() { plan 3 --gpus 8 $big --dtype fp32 --zero 3 --batch 16 && says "  nearest, same numerics: --batch 1 --recompute norms needs" "  nearest, other numerics: --batch 1 --dtype bf16 needs"; }
  check "numerics are the last, in a line of their own" numerics
  largest() {  # and one sequence more does not
    plan 0 --gpus 64 $big --zero 3 --recompute block --batch-tokens 33554432 || return 1
    local batch
    batch=$(sed -n 's/^largest  --batch \([0-9]*\) .*/\1/p' "$work/log")
    plan 0 --gpus 64 ${big/--batch 1/} --zero 3 --recompute block --batch "$batch" && plan 3 --gpus 64 ${big/--batch 1/} --zero 3 --recompute block --batch $((2 * batch))
  }
  check "the largest micro-batch fits, and twice as many sequences do not" largest
  # 8B on one card of 24 GB and of 16 GB, with its state on the host: masters and moments are 12 bytes per parameter.
  card="--gpus 1 --preset llama3.1-8b --dtype bf16 --zero 3 --recompute block --seq-len 2048 --batch 4 --logits-mib 256"
  offloaded="--offload-optimizer stream --offload-grads on --offload-params on --offload-activations on"
  for gpu in rtx4090-24g rtx4080-16g; do
    alone() { plan 3 $card --gpu $gpu && says "--offload-optimizer stream --offload-grads on --offload-params on needs"; }
    check "8B on $gpu does not fit; what would is named" alone
    away() { plan 0 $card --gpu $gpu $offloaded && says "fits, " && grep -q "host, pinned  *14665[0-9]* " "$work/log"; }
    check "  with its state on the host it does" away
  done
  # The host's memory counts too: 136.6 GiB of it are pinned.
  sed 's/^host-memory-gib = .*/host-memory-gib = 64/' llama/configs/machines/rtx4090-24g.toml > "$work/small_host.toml"
  host() { plan 3 $card --gpu "$work/small_host.toml" $offloaded && says "plan: needs 136.6 GiB pinned on each host, which has 64.0 GiB (host-memory-gib of $work/small_host.toml)" "  nearest, "; }
  check "more pinned than another machine's host has" host
  host_gib() { plan 3 $card --gpu RTX4090-24G $offloaded --host-gib 100 && says "which has 100.0 GiB (--host-gib)"; }
  check "the same by --host-gib, and a machine's name in any case" host_gib
  printf 'memory-gib = 80\ngemm-bf16-tflops = 700\ngemm-fp32-tflop = 50\n' > "$work/mine.toml"
  check "a machine's file with a key that is none" plan 70 --gpus 8 --gpu "$work/mine.toml" --preset tiny
  check "the same: the nearest key" says "gemm-fp32-tflop is no key of a machine" "nearest: gemm-fp32-tflops"
  printf 'memory-gib = -1\n' > "$work/mine.toml"
  check "a machine's file with a number out of range" plan 70 --gpus 8 --gpu "$work/mine.toml" --preset tiny
  check "what the run would refuse is refused" plan 2 --gpus 6 --gpu h100-80g --preset tiny --batch 4 --seq-len 256 --batch-tokens 500000
  check "the same: with the run's own words" says "--batch-tokens 500000 does not divide into micro-batches" "nearest: --batch-tokens"
  check "flags that the run does not know are refused" plan 2 --gpus 8 --gpu h100-80g --presets tiny --stepz 3
  searched() { plan 0 --gpus 8 $big --search --collectives ring --adam-dtype fp32 --tp 1 && says "beaten by none" "same numerics" "other numerics" "mpirun -n 8 ./train_llama --preset llama3.1-8b"; }
  check "--search: what nothing beats, as command lines" searched
  first_line() {  # what it prints is a run, and a plan of it says the same
    local flags
    flags=$(sed -n 's/^mpirun -n 8 \.\/train_llama//p' "$work/log" | head -n 1)
    plan 0 --gpus 8 --gpu h100-80g $flags && says "fits, "
  }
  check "the first of them is planned to fit" first_line
  all_axes() { plan 0 --gpus 8 --gpu h100-80g --preset llama3.2-1b --dtype bf16 --seq-len 2048 --batch-tokens 128K --search --adam-dtype fp32 --collectives ring && says "--fp8 tensor" "mpirun -n 8" && grep -qE 'searched ([0-9]+) of \1$' "$work/log"; }
  [ -z "$simt" ] || check "--search over tp, cp, pp, fp8 and micro-batches" all_axes
  recipe() {  # recipe NAME: what the command at its top finds stands in it, and fits
    local words
    words=$(sed -n 's/^# *\.\/train_llama plan \(.*\) --write-config .*/\1/p' "llama/configs/$1.toml")
    plan 0 $words --write-config "$work/found.toml" && ! grep -v '^#' "$work/found.toml" | grep -vxFf "llama/configs/$1.toml" && plan 0 ${words%% --preset*} --config "llama/configs/$1.toml" && says "fits, "
  }
  for name in 1b-24g 3b-48g 8b-80g; do check "the recipe $name is what the planner finds" recipe $name; done
  one_flag() { test/program/plan_neighbours.py "$program" --most-gpus 1 --every "$1" > "$work/log" 2>&1; }
  check "--search: no other flag of the same numerics is faster" one_flag "$([ -n "$simt" ] && echo 3 || echo 10)"
  suffix() { plan 0 --gpus 8 $big --zero 3 --recompute block --batch-tokens 0.5M && says "= 524288 tokens per step"; }
  check "--batch-tokens 0.5M is 524288" suffix
  by_axis() {  # by_axis FLAGS...: the formulas' bytes are those that the collectives and links of each planned rank count
    "$program" plan --gpus 16 --gpu h100-80g --preset tiny --dtype bf16 --seq-len 256 --batch 2 --json - "$@" > "$work/plan.json" 2> "$work/log" || return 1
    python3 - "$work/plan.json" > "$work/log" 2>&1 << 'END'
import json, sys
ranks = json.load(open(sys.argv[1]))["planned_ranks"]
print(ranks)
sys.exit(not ranks or any(sum(r["bytes_sent_by_axis"].values()) != r["bytes_sent"] for r in ranks))
END
  }
  for layout in "--zero 1" "--zero 3 --shard-size 4" "--tp 2 --cp 2 --pp 2 --zero 2 --grad-accum 4" "--tp 4 --pp 4 --grad-accum 8 --pp-schedule 1f1b" "--cp 8 --cp-exchange ring --recompute block --zero 3 --grad-accum 6"; do
    check "bytes by axis, $layout: their sum is what is counted" by_axis $layout --collectives ring
  done
  formulas() { "$program" plan --help > "$work/log" 2>&1 && says "block            2G 2S     4G 2S" && grep -q "^replicate " "$work/log"; }
  check "  the formulas are in --help" formulas
  check "half a token is refused" plan 2 --gpus 8 $big --batch-tokens 1.5
  check "the same: with what is meant" says "is no whole number of tokens" "4M (of 2^20)"
  thousands() {
    plan 0 --gpus 16384 --gpu h200-141g --preset llama3.1-405b --dtype bf16 --seq-len 8192 --batch 1 --zero 3 --recompute block --json "$work/plan.json" && python3 - "$work/plan.json" >> "$work/log" 2>&1 << 'END'
import json, sys
ranks = json.load(open(sys.argv[1]))["planned_ranks"]
share = 405_853_388_800 * 2 / 16384  # bf16; every rank owns its part, and padding takes less than a thousandth
assert len(ranks) < 4 and all(share <= r["memory_peak"]["parameters"] < share * 1.001 for r in ranks), (ranks, share)
END
  }
  check "16,384 GPUs: by three ranks at most, each with its part of the parameters" thousands
  idle() { plan 0 --gpus 128 --gpu h100-80g --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --ffn 24 --seq-len 32 --batch 1 --zero 3 && says "others own nothing; --shard-size " "takes no more memory" "change   same numerics: --batch "; }
  check "more ranks than parts of a unit: said, and what to change" idle
}
# ---- --batch auto ----
python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1
toy="--device cpu --data $work/data --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --seq-len 32 --val-every 0 --val-tokens 64"
# shellcheck disable=SC2086
{
  auto() { "$program" $toy --batch auto --batch-tokens 512 --steps 4 --save-every 2 --out "$work/auto" > "$work/log" 2>&1 && says "--batch auto: 16 sequences, " "the margin is" "16 sequences x 32 tokens x 1 ranks x 1 micro-batches = 512 tokens"; }
  check "--batch auto: the whole update where it fits" auto
  little() {
    "$program" $toy --batch auto --batch-tokens 96 --steps 2 > "$work/log" 2>&1 && says "--batch auto: 3 sequences, " "= 96 tokens"
  }
  check "--batch auto: tokens of an update are kept" little
  resumed() {
    rm -rf "$work/auto/checkpoints/step_000000004" "$work/auto/final"
    "$program" $toy --batch auto --steps 6 --out "$work/auto" --resume auto > "$work/log" 2>&1 && ! says "--batch auto:" && says "16 sequences x 32 tokens x 1 ranks x 1 micro-batches = 512 tokens"
  }
  check "--batch auto: a resumed run stays with what was chosen" resumed
  two() { mpirun -n 2 "$program" $toy --batch auto --batch-tokens 512 --steps 2 --zero 2 > "$work/log" 2>&1 && says "--batch auto: 8 sequences, " "8 sequences x 32 tokens x 2 ranks x 1 micro-batches = 512 tokens"; }
  check "--batch auto: two ranks choose the same" two
  peak() { "$program" $toy --batch 4 --steps 2 --peak-tflops 0.05 > "$work/log" 2>&1 && says "MFU (of 0.05 TFLOP/s, as --peak-tflops says)" "% MFU"; }
  check "--peak-tflops: MFU, and what it is measured against" peak
}
# A machine's file made here by calibration, which a plan then reads.
clock=
for path in build/dev/plan_clock build/cuda/dev/plan_clock build/cpu/dev/plan_clock; do [ ! -x $path ] || clock=$path; done
if [ -n "$clock" ]; then
  calibrated() {
    local small="--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --data synthetic --batch 2 --seq-len 32"
    # shellcheck disable=SC2086
    "$clock" steps $small --rounds 1 --machine "$work/here.toml" > "$work/log" 2>&1 && plan 0 --gpus 1 --gpu "$work/here.toml" $small && says "this CPU" "fits, " "a prediction"
  }
  check "this CPU is measured by a command, and planned with" calibrated
else
  skip "plan_clock is not built"
fi
grid() { test/program/plan_grid.py "$program" --rows "${1:-0}" > "$work/log" 2>&1; }
if [ -n "$simt" ]; then
  check "every pair of settings: plan = ledger to the byte" grid
  muon() { test/program/plan_grid.py "$program" --muon > "$work/log" 2>&1; }
  check "Muon and NorMuon: plan = ledger to the byte" muon
  cuda() { test/program/plan_grid.py "$program" --cuda "$simt" > "$work/log" 2>&1; }
  check "every pair of settings on the emulated GPU: plan = ledger to the byte" cuda
  published() { dev/run/published.py "$program" > "$work/log" 2>&1; }
  check "published rows are where dev/notes/plan-published.md has them" published
else
  check "the first settings: plan = ledger to the byte" grid 5
fi
summary
