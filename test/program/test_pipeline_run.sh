#!/usr/bin/env bash
# Work of a run besides training, with its model on the stages of a pipeline: samples, weights to start from, hybrid
# sharding, rollback, replicas that differ, signals. Each gives the bits, or the text, of the same run without a pipeline. Ends with
# "N passed, N failed".
#
#   test/program/test_pipeline_run.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
shape=(--preset bytes --layers 6 --dim 32 --heads 4 --ffn 64 --head untied)
train=(--data "$work/data" --seq-len 32 --batch 1 --device cpu --threads 1 --save-every 0 --val-every 0 --val-tokens 64 --timeout 30)

rc=0
run() {  # run NAME RANKS FLAGS...   with FAULT from the environment; exit code in rc
  local name=$1 ranks=$2
  shift 2
  timeout -s KILL 120 mpirun -n "$ranks" "$program" "${train[@]}" --out "$work/$name" "$@" > "$work/log" 2>&1
  rc=$?
  return $rc
}
says() { grep -qE -- "$1" "$work/log"; }
same() { cmp "$work/$1/final/model.safetensors" "$work/$2/final/model.safetensors" >> "$work/log" 2>&1; }
update=(--grad-accum 4 --steps 4)

# ---- samples: every rank has the logits, so the text is that of one rank
sampled=("${shape[@]}" "${update[@]}" --val-every 2 --sample-every 1 --sample-tokens 12 --prompt "def ")
text() { sed -n '/^--- sample/,/^---$/p' "$work/log"; }
check "samples on one rank" run one 1 "${sampled[@]}"
want=$(text)
check "  there are two" test "$(grep -c '^--- sample' "$work/log")" = 2
for layout in "2 --pp 2" "3 --pp 3 --pp-schedule 1f1b" "4 --pp 2 --zero 3"; do
  # shellcheck disable=SC2086
  check "samples on $layout" run sampled $layout "${sampled[@]}" --overwrite --grad-accum $((4 / (${layout%% *} / 2)))
  case $layout in 4*) ;; *) check "  the same text" test "$(text)" = "$want" ;; esac  # dp 2 trains on other micro-batches
done

# ---- --pp-threads starts its own ranks
check "three stages of --pp-threads" run threads 1 --pp-threads 3 --pp-schedule zb-v "${shape[@]}" "${update[@]}" --save-every 2
check "  a pipeline" says "pipeline zb-v: 6 stages on 3 ranks"
check "  the same bits as one rank" run whole1 1 "${shape[@]}" "${update[@]}"
check "  in the weights" same threads whole1
rm -rf "$work/threads/final"
check "  resumed by mpirun" run threads 2 --pp 2 --resume 2
check "  to the same bits" same threads whole1
FAULT=step:1:2:error run broken 1 --pp-threads 2 "${shape[@]}" "${update[@]}"
check "  an error of one rank ends all" test $rc = 70
check "  refused where there is no GPU" eval '! run gpus 1 --pp-threads 2 --device cuda "${shape[@]}" && says "device cuda"'
check "  refused under an mpirun of others" eval '! run both 4 --pp-threads 2 "${shape[@]}" && says "in one of 4 processes"'

# ---- weights to start from, written by a run without a pipeline
check "--init-from on one rank" run further 1 --init-from "$work/one/final" "${update[@]}"
check "--init-from on two stages" run further2 2 --pp 2 --init-from "$work/one/final" "${update[@]}"
check "  the same bits" same further2 further

# ---- hybrid sharding inside each stage
hybrid=("${shape[@]}" "${update[@]}" --shard-size 2 --accumulate-locally)
for zero in 2 3; do
  check "hybrid, --zero $zero" run hybrid$zero 4 "${hybrid[@]}" --zero $zero
  check "hybrid, --zero $zero, on two stages" run hybrid${zero}pp 8 "${hybrid[@]}" --zero $zero --pp 2
  check "  the same bits" same hybrid${zero}pp hybrid$zero
done

# ---- a spike of the loss, back to the checkpoint before it
rolls=("${shape[@]}" --grad-accum 4 --steps 36 --save-every 5 --keep 0 --on-spike rollback --rollback-steps 8 --rollback-skip 3)
FAULT='loss:*:30:spike' check "rollback on one rank" run rolled 1 "${rolls[@]}"
FAULT='loss:*:30:spike' check "rollback on two stages" run rolled2 2 --pp 2 "${rolls[@]}"
check "  says so" says "rollback spike of the loss, z .* at step 30 .*: on from step 20"
check "  the same bits" same rolled2 rolled

# ---- replicas of a stage that differ: rank 2 stands beside rank 3 on the second stage, 0 beside 1 on the first
copies=("${shape[@]}" "${update[@]}" --pp 2 --check-replicas 1)
check "replicas agree" run replicas 4 "${copies[@]}"
FAULT=weights:2:3:flip run flipped 4 "${copies[@]}"
check "a flipped bit on the second stage: exit code 73" test $rc = 73
check "  names the two that differ" says "step 3: .*rank 2 .*rank 3 "
FAULT=moments:1:3:flip run flipped 4 "${copies[@]}" --overwrite
check "a flipped bit of the first stage's moments" test $rc = 73
check "  names the two that differ" says "step 3: AdamW's m .*rank 0 .*rank 1 "

# ---- a signal to one stage: all stop after the same step, saved; resumed to the same bits
signals=("${shape[@]}" --grad-accum 4 --steps 6)
check "undisturbed" run whole 1 "${signals[@]}"
for fault in 1:3:usr1 0:4:term; do
  rm -rf "$work/stopped"
  FAULT=step:$fault run stopped 2 --pp 2 "${signals[@]}" --save-every 100
  check "signal $fault: exit code 75" test $rc = 75
  check "  saved after that step" says "stopped  after step [345]: SIG(USR1|TERM) on rank [01]"
  check "  resumes on one rank" run stopped 1 --resume auto
  check "  the same bits" same stopped whole
done
summary
