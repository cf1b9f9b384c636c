#!/usr/bin/env bash
# Tensor and sequence parallelism under mpirun: losses and norms of the same run on one rank, checkpoints that any layout
# reads, refusals. Ends with "N passed, N failed".
#
#   test/program/test_tensor.sh ./train_llama           (what make test runs)
#   test/program/test_tensor.sh ./train_llama --all     more layouts
set -uo pipefail
program=$(realpath "$1")
all=${2:-}
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
model=(--data "$work/data" --preset bytes --seq-len 33 --batch 1 --layers 2 --dim 48 --heads 12 --kv-heads 2 --ffn 70 --device cpu
  --threads 1 --steps 10 --lr-schedule constant --warmup 0 --save-every 0 --val-every 0 --val-tokens 66 --timeout 30)

train() {  # train NAME RANKS FLAGS...
  local name=$1 ranks=$2
  shift 2
  timeout 120 mpirun -n "$ranks" "$program" "${model[@]}" "$@" --out "$work/$name" > "$work/log" 2>&1
}
close() {  # close NAME REFERENCE [FIRST STEP]: losses and norms within 1e-5 and 1e-6 of each other, on the same data
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "${3:-0}" << 'END'
import json, sys
a, b = ([j for j in map(json.loads, open(path)) if j["step"] >= int(sys.argv[3])] for path in sys.argv[1:3])
bounds = {"loss": 1e-5, "val_loss": 1e-5, "grad_norm": 1e-6, "data_hash": 0, "step": 0}
bad = [(x, y) for x, y in zip(a, b) for k, bound in bounds.items()
       if (k in x) != (k in y) or k in x and (x[k] != y[k] if bound == 0 else abs(x[k] / y[k] - 1) > bound)]
sys.exit(0 if len(a) == len(b) > 1 and not bad else f"{len(a)} and {len(b)} lines, {bad[:2]}")
END
}
as() { train "$1" "${@:3}" && close "$1" "$2"; }  # as NAME REFERENCE RANKS FLAGS...
refused() {  # refused RANKS TEXT FLAGS...
  local ranks=$1 text=$2
  shift 2
  ! train refused "$ranks" "$@" && grep -qF -- "$text" "$work/log"
}

check "one rank" train one 1 --batch-tokens 66
check "tp 2" as tp2 one 2 --tp 2 --batch-tokens 66
check "  says so" grep -qF "2 ranks share each tensor, fp32 partial sums: 6 of 12 heads and 1 of 2 kv heads" "$work/log"
check "tp 4, kv heads held twice" as tp4 one 4 --tp 4 --batch-tokens 66
check "two data ranks" train dp2 2 --batch-tokens 132 --head untied
check "tp 2 x dp 2, ZeRO-3" as tp2dp2 dp2 4 --tp 2 --zero 3 --batch-tokens 132 --head untied
if [ -n "$all" ]; then
  for zero in 0 1 2; do
    check "tp 2 x dp 2, ZeRO-$zero" as "tp2zero$zero" dp2 4 --tp 2 --zero $zero --batch-tokens 132 --head untied
  done
  check "tp 3, no kv head of its own" train kv1 1 --kv-heads 1
  check "tp 3" as tp3 kv1 3 --tp 3 --kv-heads 1
fi
check "no step" train none 2 --tp 2 --steps 0 --overwrite
check "  the loss of one rank" train none1 1 --steps 0
check "  the same weights" cmp "$work/none/final/model.safetensors" "$work/none1/final/model.safetensors"
check "bf16" train bf16 2 --tp 2 --dtype bf16
check "bf16, partial sums in fp32" train bf16wide 2 --tp 2 --dtype bf16 --tp-wire fp32

# Saved by one layout, resumed by another: the files hold whole tensors (their bytes: test/llama/mpi_layouts.cpp).
check "saves at tp 2" train half2 2 --tp 2 --steps 5 --save-every 5 --batch-tokens 66
check "saves at tp 1" train half1 1 --steps 5 --save-every 5 --batch-tokens 66
for way in "half2 1 --tp 1" "half2 4 --tp 4" "half1 2 --tp 2" "half2 4 --tp 2 --zero 2"; do
  # shellcheck disable=SC2086
  set -- $way
  rm -rf "$work/resumed" "$work/loaded"
  cp -r "$work/$1" "$work/resumed" && cp -r "$work/$1" "$work/loaded" && rm -r "$work/loaded/final"
  check "$way: loads" train loaded "${@:2}" --resume auto --steps 5
  check "  the same weights" cmp "$work/loaded/final/model.safetensors" "$work/$1/final/model.safetensors"
  check "  goes on" train resumed "${@:2}" --resume auto --steps 10
  check "  as one rank does" close resumed one 6
done

# A rank of the tp axis that is killed, then the run resumed with another one.
fault() {
  ! FAULT=step:1:4:kill timeout 60 mpirun -n 2 "$program" "${model[@]}" --tp 2 --steps 6 --save-every 1 --no-background-save --timeout 3 \
    --out "$work/killed" > "$work/log" 2>&1
}
check "a killed rank ends the job" fault
check "  resumes" train killed 2 --tp 2 --steps 6 --resume auto
check "  whole run" train whole 2 --tp 2 --steps 6
check "  the same bits" cmp "$work/killed/final/model.safetensors" "$work/whole/final/model.safetensors"

check "refused: heads" refused 5 "nearest: --tp 4 or 6" --tp 5
check "refused: kv heads" refused 3 "of 2 kv heads and 3 ranks one must divide the other" --tp 3
check "refused: ranks" refused 3 "nearest: --tp 3 or --tp 1" --tp 2
check "refused: samples" refused 2 "nearest: --sample-every 0" --tp 2 --sample-every 1
check "refused: --tp-wire without --tp" refused 1 "nearest: --tp 2" --tp-wire fp32
check "refused: a pipeline too" refused 4 "nearest: --tp 1 or --pp 1" --tp 2 --pp 2
summary
