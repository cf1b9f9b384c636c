#!/usr/bin/env bash
# One run at many layouts of ranks: the same tokens in each step, the same losses and norms within bounds; and each
# layout's checkpoint resumed by every other one. Ends with "N passed, N failed". Part of make test-full: minutes.
#
#   test/program/test_layouts.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# An update is 12 sequences at every layout, in micro-batches of one.
model=(--data "$work/data" --preset bytes --seq-len 24 --batch 1 --batch-tokens 288 --layers 4 --dim 32 --heads 4 --kv-heads 2 --ffn 45
  --head untied --device cpu --threads 1 --lr-schedule constant --warmup 0 --val-every 0 --val-tokens 48 --keep 0 --timeout 60)
layouts=("1" "4 --tp 1 --zero 3" "4 --tp 2 --zero 1" "4 --tp 2 --pp 2" "8 --tp 2 --pp 2 --zero 3" "6 --pp 2 --zero 2 --shard-size 3"
  "4 --cp 2 --zero 2" "8 --cp 2 --tp 2 --pp 2 --pp-schedule 1f1b --recompute mlp")
more=("4 --tp 4" "8 --tp 4 --pp 2 --pp-schedule 1f1b" "6 --cp 3 --cp-exchange ring --zero 3" "8 --tp 2 --pp 2 --zero 0" "8 --tp 2 --pp 2 --zero 1" "8 --tp 2 --pp 2 --zero 2" "6 --pp 2 --zero 3 --shard-size 1" "8 --pp 4 --tp 2")

train() {  # train NAME RANKS FLAGS...
  local name=$1 ranks=$2
  shift 2
  timeout 120 mpirun -n "$ranks" "$program" "${model[@]}" "$@" --out "$work/$name" > "$work/log" 2>&1
}
close() {  # close NAME REFERENCE FIRST LAST: steps on the same data, losses within 1e-5, norms within 1e-6
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "$3" "$4" << 'END'
import json, sys
first, last = int(sys.argv[3]), int(sys.argv[4])
a, b = ([j for j in map(json.loads, open(path)) if first <= j["step"] <= last and "loss" in j] for path in sys.argv[1:3])
bad = [(x, y) for x, y in zip(a, b) if x["step"] != y["step"] or x["data_hash"] != y["data_hash"]
       or abs(x["loss"] / y["loss"] - 1) > 1e-5 or abs(x["grad_norm"] / y["grad_norm"] - 1) > 1e-6]
sys.exit(0 if len(a) == len(b) == last - first + 1 and not bad else f"{len(a)} and {len(b)} steps, {bad[:1]}")
END
}

# Eight steps; a checkpoint after the third, which the matrix below starts from.
for i in "${!layouts[@]}"; do
  # shellcheck disable=SC2086
  check "${layouts[i]}" train "run$i" ${layouts[i]} --steps 8 --save-every 3
  check "  as on one rank" close "run$i" run0 1 8
done
for layout in "${more[@]}"; do
  # shellcheck disable=SC2086
  check "$layout" train other $layout --steps 8 --save-every 0 --overwrite
  check "  as on one rank" close other run0 1 8
done

for from in "${!layouts[@]}"; do
  for to in "${!layouts[@]}"; do
    rm -rf "$work/resumed" "$work/loaded"
    # shellcheck disable=SC2086
    check "saved by ${layouts[from]}, loaded by ${layouts[to]}" train loaded ${layouts[to]} --save-every 0 --steps 3 \
      --resume "$work/run$from/checkpoints/step_000000003"
    check "  the same weights" cmp "$work/loaded/final/model.safetensors" "$work/run$from/checkpoints/step_000000003/model.safetensors"
    # shellcheck disable=SC2086
    check "  continues" train resumed ${layouts[to]} --save-every 0 --steps 8 --resume "$work/run$from/checkpoints/step_000000003"
    check "  as on one rank" close resumed run0 4 8
    [ "$from" != "$to" ] || check "  to the bit" cmp "$work/resumed/final/model.safetensors" "$work/run$from/final/model.safetensors"
  done
done
summary
