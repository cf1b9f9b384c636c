#!/usr/bin/env bash
# --optimizer muon: beside torch.optim.Muon, under every layout, killed and resumed under another, from AdamW's checkpoint.
# Ends with "N passed, N failed".
#
#   test/program/test_muon.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 100K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
model=(--data "$work/data" --preset bytes --seq-len 32 --batch-tokens 128 --layers 3 --dim 48 --heads 4 --kv-heads 2 --ffn 72 --device cpu
  --threads 1 --lr-schedule constant --warmup 0 --val-every 0 --val-tokens 128 --collectives direct --quiet)

train() {  # train NAME RANKS FLAGS...
  local name=$1 ranks=$2
  shift 2
  timeout 120 "$program" "${model[@]}" --ranks "$ranks" --out "$work/$name" "$@" > "$work/log" 2>&1
}
same() { cmp "$work/$1/final/model.safetensors" "$work/$2/final/model.safetensors" >> "$work/log" 2>&1; }
as() { train "$1" "${@:3}" && same "$1" "$2"; }  # as NAME REFERENCE RANKS FLAGS...
says() { grep -qF -- "$1" "$work/log"; }

check "twelve steps beside torch.optim.Muon and AdamW, six shapes" test/program/check_muon.py "$program"
muon=(--optimizer muon --steps 6 --save-every 3)
check "two ranks, ZeRO-0" train two 2 "${muon[@]}" --batch 2 --zero 0
for zero in 1 2 3; do check "the same bits with ZeRO-$zero" as "zero$zero" two 2 "${muon[@]}" --batch 2 --zero "$zero"; done
check "four ranks, ZeRO-0" train four 4 "${muon[@]}" --batch 1 --zero 0
check "the same bits with ZeRO-3" as four3 four 4 "${muon[@]}" --batch 1 --zero 3
check "one rank, two micro-batches" train one 1 "${muon[@]}" --batch 2
check "the same bits with pp 2" as pp2 one 2 "${muon[@]}" --batch 2 --pp 2
check "tp 2 trains on whole matrices" train tp2 2 "${muon[@]}" --batch 2 --tp 2
check "... and on parts" train parts2 2 "${muon[@]}" --batch 2 --tp 2 --muon-blocks tp
differs() { ! same "$1" "$2"; }
check "... with other weights" differs tp2 parts2
check "cp 2, ZeRO-0" train cp2 4 "${muon[@]}" --batch 2 --cp 2 --zero 0
check "the same bits with ZeRO-3" as cp2_3 cp2 4 "${muon[@]}" --batch 2 --cp 2 --zero 3
check "shards of two ranks, ZeRO-1" train hybrid 4 "${muon[@]}" --batch 1 --shard-size 2 --zero 1
check "the same bits with ZeRO-3" as hybrid3 hybrid 4 "${muon[@]}" --batch 1 --shard-size 2 --zero 3
check "the same bits rechecked, replicas compared" as checked two 2 "${muon[@]}" --batch 2 --zero 1 --recheck-every 2 --check-replicas 1
for types in "--dtype fp16" "--dtype bf16 --master-dtype bf16 --adam-dtype bf16"; do
  # shellcheck disable=SC2086
  check "$types, ZeRO-0" train narrow 2 "${muon[@]}" --batch 2 --zero 0 $types --overwrite
  # shellcheck disable=SC2086
  check "the same bits with ZeRO-3" as narrow3 narrow 2 "${muon[@]}" --batch 2 --zero 3 $types --overwrite
done
rows=("${muon[@]}" --muon-beta2 0.9)
check "NorMuon, two ranks, ZeRO-0" train rows 2 "${rows[@]}" --batch 2 --zero 0
check "... has other weights" differs rows two
check "the same bits with ZeRO-3" as rows3 rows 2 "${rows[@]}" --batch 2 --zero 3
check "tp 2" train rowstp 2 "${rows[@]}" --batch 2 --tp 2
moments() { grep -q '"model.layers.0.self_attn.k_proj.weight":{"dtype":"F32","shape":\[24\]' "$work/rows3/checkpoints/step_000000003/optimizer/row_v.safetensors"; }
check "a moment of each row in a checkpoint" moments
no_matrices() { ! grep -q "self_attn.q_proj" "$work/two/checkpoints/step_000000003/optimizer/v.safetensors"; }
check "no second moment of matrices in a checkpoint" no_matrices

# Steps 1 to 3 on two ranks, the rest on four: bits of a run that was there from the start, of whatever stage.
resumed() {  # resumed NAME FROM FLAGS...
  cp -r "$work/$2" "$work/$1" && rm -r "$work/$1/checkpoints/step_000000006" "$work/$1/final" &&
    train "$1" 4 --resume auto "${@:3}"
}
check "resumed on four ranks, ZeRO-1" resumed again1 two --batch 1 --zero 1
check "resumed on four ranks, ZeRO-3" resumed again3 two --batch 1 --zero 3
check "... with the same bits" same again1 again3
check "NorMuon resumed on four ranks, ZeRO-1" resumed rows_again1 rows --batch 1 --zero 1
check "... and ZeRO-3 from two of ZeRO-3" resumed rows_again3 rows3 --batch 1 --zero 3
check "... with the same bits" same rows_again1 rows_again3
check "... and from tp 2 on four ranks" resumed rows_tp rowstp --batch 1 --zero 2 --tp 1
on() { resumed on two --batch 1 --muon-beta2 0.9 && says "it has no moments of rows: NorMuon's start at zero"; }
check "moments of rows switched on" on
off() { resumed off rows --batch 1 --muon-beta2 0 && says "NorMuon's moments of rows are left behind"; }
check "... and off" off
from_its_own() { cp -r "$work/one" "$work/own" && rm -r "$work/own/checkpoints/step_000000006" "$work/own/final" && train own 1 --resume auto; }
check "resumed on one rank" from_its_own
check "... with the bits of the undisturbed run" same own one

# Killed between two checkpoints; two ranks of another stage end as if nothing had been.
killed() { ! FAULT=step:1:5:kill train "$@" --no-background-save && [ -e "$work/$1/checkpoints/step_000000003" ]; }
goes_on() { cp -r "$work/$1" "$work/$2" && train "$2" 2 --resume auto "${@:3}"; }
check "killed after step 4" killed dead 2 "${muon[@]}" --batch 2 --zero 1
check "... goes on with ZeRO-3" goes_on dead dead3 --zero 3
check "... to the bits of the undisturbed run" same dead3 two
check "NorMuon killed after step 4" killed rows_dead 2 "${rows[@]}" --batch 2 --zero 3
check "... goes on with ZeRO-0" goes_on rows_dead rows_dead0 --zero 0
check "... to the bits of the undisturbed run" same rows_dead0 rows

check "AdamW" train adamw 1 --steps 3 --save-every 3 --batch 2
switches() { train adamw 1 --resume auto --optimizer muon --steps 6; }
check "AdamW's checkpoint goes on with Muon" switches
check "... says that the momentum starts" says "the momentum of Muon's matrices starts at zero"
back() { ! train two 2 --resume auto --optimizer adamw --steps 9 && says "the checkpoint is of --optimizer muon"; }
check "Muon's goes on with no AdamW" back
summary
