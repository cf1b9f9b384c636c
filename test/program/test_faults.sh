#!/usr/bin/env bash
# Every fault of the matrix, against the real program under mpirun: what it must survive, what it must say, and that the next
# start ends with the weights of a run without faults. test/README.md lists the cases. Ends with "N passed, N failed".
#
#   test/program/test_faults.sh ./train_llama [--quick] [--only NAME] [--launcher ranks]     --quick: those that `make test` runs
#   --launcher ranks: train_llama --ranks N in place of mpirun -n N
# shellcheck disable=SC2010,SC2125  # names of our own making; the stars of a fault's address are meant literally
set -uo pipefail
program=$(realpath "$1")
shift
quick='' only='' launcher=mpirun
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1 ;;
    --only) only=$2; shift ;;
    --launcher) launcher=$2; shift ;;
    *) echo "usage: test/program/test_faults.sh PROGRAM [--quick] [--only NAME] [--launcher mpirun|ranks]"; exit 2 ;;
  esac
  shift
done
cd "$(dirname "$0")/../.." || exit
if [ "$launcher" = mpirun ] && ! { command -v mpirun && ldd "$program" | grep libmpi; } > /dev/null; then
  echo "0 passed, 0 failed, 1 skipped (no MPI here)"
  exit 0
fi
. test/program/check.sh
export OMP_WAIT_POLICY=passive
unset FAULT SLURM_JOB_END_TIME

# ---- tools ------------------------------------------------------------------------------------------------------------

says() { grep -qE -- "$1" "$work/log"; }
shape=(--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --batch 1 --seq-len 32)
train=("${shape[@]}" --data "$work/data" --val-every 0 --val-tokens 256 --steps 8 --save-every 2 --timeout 60)
rc=0
by() { if [ "$launcher" = ranks ]; then by=("$program" --ranks "$1"); else by=(mpirun -n "$1" "$program"); fi; }  # by RANKS: sets ${by[@]}
run() {  # run RANKS OUT ARGS...   with FAULT from the environment; output in the log, exit code in rc
  local ranks=$1 out=$2
  shift 2
  by "$ranks"
  timeout -s KILL 120 "${by[@]}" --out "$work/$out" "$@" > "$work/log" 2>&1
  rc=$?
}
start() { local out=$1; shift; run 3 "$out" "${train[@]}" "$@"; }
resume() { local out=$1; shift; run 3 "$out" --data "$work/data" --device cpu --resume auto "$@"; }
weights() { sha256sum < "$work/$1/final/model.safetensors" 2>/dev/null; }
as_undisturbed() { [ $rc = 0 ] && [ "$(weights "$1")" = "$reference" ]; }
no_leftovers() { ! ls -A "$work/$1/checkpoints" | grep -qE '^\.(tmp|trash)'; }
steps_of() { ls "$work/$1/checkpoints" | sed -n 's/^step_0*\([0-9]*\)$/\1/p' | paste -sd' '; }
status() { python3 -c "import json, sys; print(json.load(open('$work/$1/run_status.json'))['$2'])" 2>/dev/null; }
finite() {  # no NaN or infinity in any tensor of any checkpoint of the run
  python3 - "$work/$1/checkpoints" <<'PY'
import array, glob, json, math, struct, sys
files = glob.glob(sys.argv[1] + "/step_*/**/*.safetensors", recursive=True)
assert files
for path in files:
    data = open(path, "rb").read()
    values = array.array("f", data[8 + struct.unpack("<Q", data[:8])[0]:])
    assert all(map(math.isfinite, values)), path
PY
}
# A run that was stopped after step 6 and has checkpoints of steps 4 and 6, to be damaged.
damaged() { rm -rf "${work:?}/$1"; cp -r "$work/base" "$work/$1"; rm -f "$work/$1/checkpoints/latest"; }
wait_for_step() {  # wait_for_step OUT STEP
  for _ in $(seq 1200); do
    grep -q "\"step\":$2," "$work/$1/metrics.jsonl" 2>/dev/null && return 0
    sleep 0.05
  done
  return 1
}
gone() {  # no process of that run is left
  for _ in $(seq 20); do pgrep -f -- "--out $work/$1 " > /dev/null || return 0; sleep 0.1; done
  return 1
}
seconds() { date +%s.%N; }
within() { python3 -c "import sys; sys.exit(not $(seconds) - $1 < $2)"; }

python3 data_prep/prepare.py stdlib --max-bytes 400K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
start whole
[ $rc = 0 ] || { cat "$work/log"; exit 1; }
reference=$(weights whole)
FAULT=step:0:6:term start base
[ "$(steps_of base)" = "4 6" ] || { echo "no base to damage"; cat "$work/log"; exit 1; }

# ---- checkpoints ------------------------------------------------------------------------------------------------------

# A kill at each point of the second or third save; the rank and how many times it came by are in the fault.
case_kill_in_save() {
  local faults="checkpoint.shard.done:1:5 checkpoint.rename:0:2"
  [ "$quick" ] || faults="checkpoint.mkdir:0:2 checkpoint.made:0:2 checkpoint.snapshot:0:2 checkpoint.snapshot:1:2
    checkpoint.shard:0:4 checkpoint.shard:1:5 checkpoint.shard.done:0:4 checkpoint.shard.done:1:6 checkpoint.fsync:0:5
    checkpoint.fsync:1:4 checkpoint.agreed:0:2 checkpoint.manifest:0:2 checkpoint.manifest.done:0:2 checkpoint.rename:0:2
    checkpoint.renamed:0:2 checkpoint.latest:0:2 checkpoint.gc:0:1 checkpoint.gc.done:0:1"
  local fault
  for fault in $faults; do
    rm -rf "$work/c01"
    FAULT=$fault:kill start c01
    check "kill_in_save: $fault: killed" test $rc != 0
    check "kill_in_save: $fault: said so" says "fault: rank"
    resume c01
    check "kill_in_save: $fault: resumes from a checkpoint" says "resumed  .*step_"
    check "kill_in_save: $fault: same weights" as_undisturbed c01
    check "kill_in_save: $fault: nothing half written is left" no_leftovers c01
  done
}
case_shortened_file() {
  local how
  for how in "truncate -s -1" "truncate -s 0"; do
    damaged c02
    $how "$work/c02/checkpoints/step_000000006/optimizer/v.safetensors"
    run 3 c02 --data "$work/data" --device cpu --resume 6
    check "shortened_file: $how: an explicit step is refused" test $rc = 70
    check "shortened_file: $how: names the file and both sizes" says "step_000000006/optimizer/v.safetensors: has [0-9]+ bytes, the manifest says"
    resume c02
    check "shortened_file: $how: auto names it" says "checkpoint refused: .*v.safetensors"
    check "shortened_file: $how: and falls back" says "resumed  .*step_000000004"
    check "shortened_file: $how: same weights" as_undisturbed c02
  done
}
flip_bit() { python3 -c "
import sys
with open(sys.argv[1], 'r+b') as f:
    f.seek(-400, 2); b = f.read(1); f.seek(-1, 1); f.write(bytes([b[0] ^ 16]))" "$1"; }
case_flipped_bit_in_file() {
  damaged c03
  flip_bit "$work/c03/checkpoints/step_000000006/model.safetensors"
  run 3 c03 --data "$work/data" --device cpu --resume 6
  check "flipped_bit_in_file: an explicit step is refused" test $rc = 70
  resume c03
  check "flipped_bit_in_file: names the tensor" says "checkpoint refused: .*model.safetensors: tensor [a-z]"
  check "flipped_bit_in_file: falls back" says "resumed  .*step_000000004"
  check "flipped_bit_in_file: same weights" as_undisturbed c03
}
case_missing_or_swapped_file() {
  damaged c04
  rm "$work/c04/checkpoints/step_000000006/optimizer/m.safetensors"
  resume c04
  check "missing_or_swapped_file: missing: named" says "optimizer/m.safetensors: missing"
  check "missing_or_swapped_file: missing: same weights" as_undisturbed c04
  damaged c04
  cp "$work/c04/checkpoints/step_000000004/optimizer/m.safetensors" "$work/c04/checkpoints/step_000000006/optimizer/"
  resume c04
  check "missing_or_swapped_file: of another step: named" says "checkpoint refused: .*step_000000006/optimizer/m.safetensors"
  check "missing_or_swapped_file: of another step: falls back" says "resumed  .*step_000000004"
  check "missing_or_swapped_file: of another step: same weights" as_undisturbed c04
}
case_bad_manifest() {
  local name text
  for name in empty garbage truncated version; do
    text=
    [ $name = version ] && text=999
    damaged c05
    local manifest="$work/c05/checkpoints/step_000000006/manifest.json"
    case $name in
      empty) : > "$manifest" ;;
      garbage) head -c 3000 /dev/urandom > "$manifest" ;;
      version) sed -i 's/"version": *[0-9]*/"version": 999/' "$manifest" ;;
      truncated) truncate -s -40 "$manifest" ;;
    esac
    resume c05
    check "bad_manifest: $name: named" says "checkpoint refused: .*manifest.json.*$text"
    check "bad_manifest: $name: same weights" as_undisturbed c05
  done
}
case_leftovers() {
  damaged c06
  mkdir -p "$work/c06/checkpoints/.tmp-step_000000008-dead/optimizer" "$work/c06/checkpoints/.trash-step_000000002"
  echo half > "$work/c06/checkpoints/.tmp-step_000000008-dead/model.safetensors"
  echo step_000000099 > "$work/c06/checkpoints/latest"
  resume c06
  check "leftovers: resumes from the newest" says "resumed  .*step_000000006"
  check "leftovers: same weights" as_undisturbed c06
  check "leftovers: swept" no_leftovers c06
  check "leftovers: the hint is rebuilt" test "$(cat "$work/c06/checkpoints/latest")" = step_000000008
}

# ---- disks ------------------------------------------------------------------------------------------------------------

can_mount() { unshare -m true 2> /dev/null && unshare -m mount -t tmpfs none /mnt 2> /dev/null; }
case_disk_full() {
  for fault in file.write:1:40:enospc checkpoint.fsync:2:4:eio; do
    rm -rf "${work:?}/c07"; FAULT=$fault start c07
    check "disk_full: $fault: the run continues" as_undisturbed c07
    check "disk_full: $fault: loud, counted" says "could not be saved \(1 failed so far\): .*(No space left|Input/output)"
    check "disk_full: $fault: the next save works" test "$(steps_of c07)" = "6 8"
    check "disk_full: $fault: swept" no_leftovers c07
  done
  FAULT=checkpoint.shard:1:*:enospc start c07b
  check "disk_full: never any room: the run still ends well" as_undisturbed c07b
  check "disk_full: never any room: all are counted" says "\(4 failed so far\).*rank 1: .*No space left"
  check "disk_full: never any room: nothing half written" test -z "$(steps_of c07b)" -a -z "$(ls -A "$work/c07b/checkpoints")"
  can_mount || { skip "disk_full: on a full tmpfs: may not mount here"; return; }
  mkdir "$work/small"
  by 3
  unshare -m bash -c "
    mount -t tmpfs -o size=1700k none '$work/small' && timeout 60 ${by[*]} ${train[*]} --out '$work/small/run' > '$work/log' 2>&1
    echo \$? > '$work/small.rc'; ls '$work/small/run/checkpoints' > '$work/small.list'; sha256sum < '$work/small/run/final/model.safetensors' > '$work/small.hash'"
  check "disk_full: small tmpfs: ends well" test "$(cat "$work/small.rc")" = 0
  check "disk_full: small tmpfs: says what is needed and free" says "could not be saved .* are needed, .* are free"
  check "disk_full: small tmpfs: the first one stays" grep -q step_000000002 "$work/small.list"
  check "disk_full: small tmpfs: same weights" test "$(cat "$work/small.hash")" = "$reference"
}
case_log_full() {
  FAULT=log.write:0:3+:enospc start c08
  check "log_full: the run continues" as_undisturbed c08
  check "log_full: what came before is there" grep -q '"step":2,' "$work/c08/metrics.jsonl"
  check "log_full: one warning" test "$(grep -c "can't write metrics.jsonl" "$work/log")" = 1
}
case_bad_out_folder() {
  # A model that no machine here can hold: were it allocated first, it would not be this message.
  local big=("$program" --preset llama3.1-405b --data "$work/data" --device cpu) began
  echo x > "$work/file"
  for out in "$work/file" "$work/file/below" /proc/ringzero; do
    began=$(seconds)
    "${big[@]}" --out "$out" > "$work/log" 2>&1
    rc=$?
    check "bad_out_folder: --out $out: at once" within "$began" 10
    check "bad_out_folder: --out $out: refused" test $rc = 70
    check "bad_out_folder: --out $out: named" says "$out|$work/file"
  done
  can_mount || { skip "bad_out_folder: read-only folder: may not mount here"; return; }
  mkdir "$work/readonly"
  unshare -m bash -c "mount -t tmpfs -o ro none '$work/readonly' && '$program' --preset llama3.1-405b --data '$work/data' --device cpu --out '$work/readonly' > '$work/log' 2>&1"
  rc=$?
  check "bad_out_folder: read-only: refused" test $rc = 70
  check "bad_out_folder: read-only: said" says "Read-only file system"
}
case_file_size_limit() {
  # One process: MPICH's shared memory would meet the limit too.
  (ulimit -f 100; "$program" "${train[@]}" --out "$work/c10" > "$work/log" 2>&1)
  rc=$?
  check "file_size_limit: no crash" test $rc = 70
  check "file_size_limit: trains to the end" says "step 8/8"
  check "file_size_limit: said" says "could not be saved .*File too large"
  check "file_size_limit: nothing half written" test -z "$(steps_of c10)"
}

# ---- signals, deaths, hangs --------------------------------------------------------------------------------------

case_sigterm_to_mpirun() {
  by 3; FAULT=step:*:*:sleep=0.2 timeout 60 "${by[@]}" "${train[@]}" --out "$work/c11" > "$work/log" 2>&1 &
  local job=$!
  wait_for_step c11 3
  pkill -TERM -P $job
  wait $job
  rc=$?
  # The launcher's own code: 75 where it outlives the ranks, else what it makes of the signal. The run's is in run_status.
  check "sigterm_to_mpirun: mpirun does not end with 0 but $rc" test $rc != 0
  check "sigterm_to_mpirun: said" says "stopped  after step [3-7]: SIGTERM on rank"
  check "sigterm_to_mpirun: run_status" test "$(status c11 state) $(status c11 exit_code)" = "stopped 75"
  check "sigterm_to_mpirun: saved where it stopped" test "$(steps_of c11 | sed 's/.* //')" = "$(status c11 step)"
  resume c11
  check "sigterm_to_mpirun: same weights" as_undisturbed c11
}
case_sigusr1_to_a_rank() {
  FAULT=step:1:5:usr1 start c12
  check "sigusr1_to_a_rank: exit code 75" test $rc = 75
  check "sigusr1_to_a_rank: all after the same step" says "stopped  after step ([56]): SIGUSR1 on rank 1; the last checkpoint is of step \1"
  check "sigusr1_to_a_rank: the reason is kept" test "$(status c12 reason)" = "SIGUSR1 on rank 1"
  resume c12
  check "sigusr1_to_a_rank: same weights" as_undisturbed c12
}
case_sigterm_in_save() {
  FAULT=checkpoint.shard.done:1:1:term,checkpoint.shard.done:2:2:term,checkpoint.agreed:0:1:term start c13
  check "sigterm_in_save: exit code 75" test $rc = 75
  check "sigterm_in_save: no save failed" test -z "$(grep 'could not be saved' "$work/log")"
  resume c13
  check "sigterm_in_save: same weights" as_undisturbed c13
}
case_ctrl_c() {
  by 3
  # The save that the first one asks for is slow, so that the second comes in the middle of it.
  FAULT=step:*:*:sleep=0.1,checkpoint.shard.done:0:4+:sleep=3 "$program" "${train[@]}" --batch 3 --steps 100 --save-every 50 \
    --out "$work/c14" > "$work/log" 2>&1 &
  local job=$! began
  wait_for_step c14 51
  kill -INT $job
  sleep 0.7; began=$(seconds)
  kill -INT $job
  wait $job
  rc=$?
  check "ctrl_c: two SIGINT: exit code 130" test $rc = 130
  check "ctrl_c: two SIGINT: at once" within "$began" 2
  check "ctrl_c: two SIGINT: the last checkpoint is whole" test "$(steps_of c14)" = 50
  run 1 c14 --data "$work/data" --device cpu --resume auto --steps 52 --allow-lr-jump
  check "ctrl_c: two SIGINT: it resumes" test $rc = 0
  by 3; FAULT=step:*:*:sleep=0.2 timeout 60 "${by[@]}" "${train[@]}" --steps 100 --out "$work/c14m" > "$work/log" 2>&1 &
  job=$!
  wait_for_step c14m 2
  pkill -INT -P $job
  wait $job
  rc=$?
  check "ctrl_c: one SIGINT to mpirun: exit code 75" test $rc = 75
}
case_time_limit() {
  local began
  began=$(seconds)
  FAULT=step:*:*:sleep=0.1 start c15 --steps 1000 --time-limit 10
  check "time_limit: exit code 75" test $rc = 75
  check "time_limit: before it is over, but for the time to come up" within "$began" 14
  check "time_limit: said" says "stopped  after step [0-9]+: the time limit; the last checkpoint is of step"
  check "time_limit: not at the first step" test "$(status c15 step)" -gt 3
  SLURM_JOB_END_TIME=$(($(date +%s) + 8)) FAULT=step:*:*:sleep=0.1 start c15s --steps 1000
  check "time_limit: Slurm's end: exit code 75" test $rc = 75
}
case_killed_rank() {
  FAULT=step:1:5:kill start c16
  check "killed_rank: the job ends" test $rc != 0 -a $rc != 137
  check "killed_rank: no orphan" gone c16
  check "killed_rank: no rank could write its end" test "$(status c16 state)" = running
  resume c16
  check "killed_rank: same weights" as_undisturbed c16
}
case_stopped_rank() {
  local began
  began=$(seconds)
  FAULT=step:1:5:stop start c17 --timeout 3
  check "stopped_rank: ends" test $rc != 0 -a $rc != 137
  check "stopped_rank: within the deadline and a grace" within "$began" 15
  check "stopped_rank: names rank and step" says "rank 1 .*step 5.*(silent|stopped)"
  check "stopped_rank: no orphan" gone c17
  check "stopped_rank: run_status" test "$(status c17 state) $(status c17 exit_code)" = "failed 71"
  check "stopped_rank: its reason names the rank" bash -c "[[ \"$(status c17 reason)\" == *'rank 1'* ]]"
  resume c17
  check "stopped_rank: same weights" as_undisturbed c17
}
case_slow_rank() {
  FAULT=step:2:*:sleep=0.15 start c18 --steps 14
  check "slow_rank: named" says "slow     rank 2 computes"
  check "slow_rank: in one line of a hundred steps" test "$(grep -c '^slow ' "$work/log")" = 1
  check "slow_rank: continues" test $rc = 0
  check "slow_rank: in the metrics" grep -q '"slow_rank":2' "$work/c18/metrics.jsonl"
}

# ---- numbers -----------------------------------------------------------------------------------------------------

case_nan_gradient() {
  local stage kind
  for stage in $([ "$quick" ] && echo 2 || echo 0 1 2 3); do
    for kind in $([ "$quick" ] && echo nan || echo nan inf); do
      FAULT=gradient:1:5:$kind start c19-$stage-$kind --zero $stage --save-every 1 --keep 0
      check "nan_gradient: $kind, stage $stage: continues" test $rc = 0
      check "nan_gradient: $kind, stage $stage: skipped once" says "step +5/8 .*update skipped \(1 so far\)"
      local part
      for part in model.safetensors optimizer/m.safetensors optimizer/v.safetensors; do
        check "nan_gradient: $kind, stage $stage: $part untouched" cmp -s "$work/c19-$stage-$kind/checkpoints/step_000000004/$part" \
          "$work/c19-$stage-$kind/checkpoints/step_000000005/$part"
        check "nan_gradient: $kind, stage $stage: $part moves again" bash -c "! cmp -s '$work/c19-$stage-$kind/checkpoints/step_000000005/$part' \
          '$work/c19-$stage-$kind/checkpoints/step_000000006/$part'"
      done
    done
  done
}
# Across the skip: the count of updates that AdamW's bias correction goes by comes from the manifest.
case_resume_across_skip() {
  FAULT=gradient:1:3:nan start c19whole --zero 1
  local whole
  whole=$(weights c19whole)
  FAULT=gradient:1:3:nan,step:0:5:term start c19cut --zero 1
  check "resume_across_skip: stopped before the end" test $rc = 75
  check "resume_across_skip: the manifest counts updates" bash -c \
    "grep -q '\"updates\": 5' '$work/c19cut/checkpoints/step_000000006/manifest.json'"
  cp -r "$work/c19cut" "$work/c19old"
  sed -i '/"updates"/d; /"checksum"/d; s/"version": 2/"version": 1/' "$work/c19old/checkpoints/step_000000006/manifest.json"
  resume c19cut
  check "resume_across_skip: the same weights" \
    test $rc = 0 -a "$(weights c19cut)" = "$whole" -a "$whole" != "$reference"
  resume c19old
  check "resume_across_skip: a manifest without the count: reads, and corrects as it did" test $rc = 0 -a "$(weights c19old)" != "$whole"
}
case_nan_in_a_row() {
  FAULT=gradient:1:5+:inf start c20 --max-skips 3
  check "nan_in_a_row: exit code 72" test $rc = 72
  check "nan_in_a_row: said" says "not finite 3 steps in a row, up to step 7"
  check "nan_in_a_row: run_status" test "$(status c20 state) $(status c20 exit_code)" = "failed 72"
  check "nan_in_a_row: no final weights" test ! -e "$work/c20/final"
  check "nan_in_a_row: all checkpoints finite" finite c20
  resume c20
  check "nan_in_a_row: continues" test $rc = 0
}
# A state that went bad by itself: not saved, named, the run ends; the checkpoint before it is what the next start resumes from.
case_nan_state() {
  local what
  for what in weights:0:5:nan moments:2:5:nan; do
    rm -rf "$work/c20b"
    FAULT=$what start c20b --save-every 1 --zero 1 --dtype bf16
    check "nan_state: $what: exit code 72" test $rc = 72
    check "nan_state: $what: names tensor, element and step" says "state of step 5 is not finite: .*safetensors: tensor [a-z_.0-9]+, element [0-9]+ is nan"
    check "nan_state: $what: run_status" test "$(status c20b state) $(status c20b exit_code)" = "failed 72"
    check "nan_state: $what: so does its reason" bash -c "[[ '$(status c20b reason)' == *'rank '*'step 5 is not finite'* ]]"
    check "nan_state: $what: the good ones stay" test "$(steps_of c20b)" = "3 4" -a ! -e "$work/c20b/final"
    resume c20b
    check "nan_state: $what: resumes from them" test $rc = 0 -a "$(steps_of c20b)" = "7 8"
  done
  FAULT=weights:0:8:nan start c20c --save-every 0 --zero 2
  check "nan_state: final weights: exit code 72, not written" test $rc = 72 -a ! -e "$work/c20c/final"
  check "nan_state: final weights: named" says "not finite after step 8: .*tensor [a-z_.0-9]+, element"
}
case_loss_spike() {
  local a b
  FAULT=loss:*:30:spike start c21 --steps 34 --save-every 1 --keep 0
  check "loss_spike: flagged with z" says "step +30/34 .*spike of the loss, z [0-9]+"
  check "loss_spike: continues by default" test $rc = 0
  FAULT=step:0:25:term start c21b --steps 34 --save-every 1
  FAULT=loss:*:$((30 - $(status c21b step))):spike resume c21b
  a=$(grep '"step":30,' "$work/c21/metrics.jsonl" | grep -o '"loss_z":[-0-9.e]*')
  b=$(grep '"step":30,' "$work/c21b/metrics.jsonl" | grep -o '"loss_z":[-0-9.e]*')
  check "loss_spike: the resumed detector says the same ($a, $b)" test -n "$a" -a "$a" = "$b"
  FAULT=loss:*:30:spike start c21c --steps 34 --save-every 1 --on-spike stop
  check "loss_spike: --on-spike stop: exit code 72" test $rc = 72
  check "loss_spike: --on-spike stop: nothing saved after it" test "$(steps_of c21c)" = "28 29"
}
# Back before the spike and on without the data in between: the same weights however often it is killed after that.
case_rollback() {
  local rolls=(--steps 40 --save-every 5 --keep 0 --on-spike rollback --rollback-steps 8 --rollback-skip 3) whole at
  FAULT=loss:*:30:spike start c21r "${rolls[@]}"
  whole=$(weights c21r)
  check "rollback: continues to the end" test $rc = 0
  check "rollback: said" says "rollback spike of the loss, z .* at step 30 .*: on from step 20, without 39 sequences of the data \(1 of at most 3\)"
  check "rollback: run_status" test "$(status c21r state) $(status c21r rollbacks)" = "finished 1"
  check "rollback: metrics, every step once" python3 - "$work/c21r/metrics.jsonl" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [r["step"] for r in rows if "loss" in r] == list(range(1, 41))
event = [r for r in rows if "rollback" in r]
assert len(event) == 1 and event[0]["step"] == 20 and event[0]["rollback"]["from"] == 30
PY
  # 10 steps from 20 to 30 and 3 more, of 3 sequences each, are left out: step 25 ends at sequence 3 * (25 + 13).
  check "rollback: the manifest" python3 - "$work/c21r/checkpoints/step_000000025/manifest.json" <<'PY'
import json, sys
m = json.load(open(sys.argv[1]))
assert m["samples"] == 114 and m["step"] == 25, m["samples"]
assert [(r["from"], r["to"], r["samples"]) for r in m["rollbacks"]] == [(30, 20, 39)]
PY
  start c21plain "${rolls[@]}"
  check "rollback: other data, other weights" test $rc = 0 -a "$(weights c21plain)" != "$whole"
  for at in 33 38; do  # before and after the first checkpoint that follows
    FAULT=loss:*:30:spike,step:0:$at:kill start c21k$at "${rolls[@]}"
    check "rollback: killed: killed" test $rc != 0
    resume c21k$at
    check "rollback: killed: the same weights" test $rc = 0 -a "$(weights c21k$at)" = "$whole"
    check "rollback: killed: counted once" test "$(status c21k$at rollbacks)" = 1
  done
  FAULT=gradient:1:25:nan,gradient:1:26:inf,gradient:1:27:nan start c21n "${rolls[@]}" --max-skips 3 --zero 3
  check "rollback: of bad steps" says "rollback the loss or the gradient was not finite 3 steps in a row.*: on from step 15"
  check "rollback: of bad steps: continues" test $rc = 0
  FAULT=loss:*:30+:spike start c21m "${rolls[@]}" --max-rollbacks 1
  check "rollback: --max-rollbacks: exit code 72" test $rc = 72
  check "rollback: --max-rollbacks: said" says "spike of the loss.*; after 1 rollbacks \(--max-rollbacks\)"
  FAULT=loss:*:30:spike start c21o "${rolls[@]}" --save-every 0
  check "rollback: to nothing: exit code 72" test $rc = 72
  check "rollback: to nothing: said" says "there is no checkpoint to roll back to"
}
case_differing_replicas() {
  FAULT=weights:1:5:flip start c22 --check-replicas 2 --zero 0
  check "differing_replicas: flipped bit: exit code 73" test $rc = 73
  check "differing_replicas: flipped bit: named within K steps" says "step 6: .*: rank 1 \(hash [0-9a-f]+\)"
  check "differing_replicas: flipped bit: not saved" test "$(steps_of c22)" = "2 4"
  check "differing_replicas: flipped bit: run_status" test "$(status c22 exit_code)" = 73
  resume c22
  check "differing_replicas: flipped bit: same weights" as_undisturbed c22
  FAULT=weights:1:5:flip run 2 c22b "${train[@]}" --check-replicas 1
  check "differing_replicas: two ranks: both are named" says "step 5: .*rank 0 .*rank 1 .*one of the two is wrong"
  start c22c --check-replicas 1 --zero 2
  check "differing_replicas: no fault: none is found" as_undisturbed c22c
  FAULT=moments:1:5:flip start c22e --check-replicas 1 --zero 0
  check "differing_replicas: moments: exit code 73" test $rc = 73
  check "differing_replicas: moments: named, with the tensor" says "step 5: AdamW's m of these ranks are not those .*: rank 1 \(hash [0-9a-f]+\), in [a-z_.]+$"
  FAULT=masters:2:5:flip start c22f --check-replicas 1 --zero 0 --dtype bf16
  check "differing_replicas: masters: named" says "step 5: the master weights of these ranks are not those .*: rank 2 \(hash [0-9a-f]+\), in [a-z_.]+$"
  [ "$quick" ] && return
  FAULT=moments:3:5:flip run 4 c22g "${train[@]}" --check-replicas 5 --zero 2 --shard-size 2
  check "differing_replicas: hybrid moments: the pair that holds the same" says "step 5: AdamW's m .*rank 1 .*rank 3 .*one of the two is wrong"
  FAULT=weights:3:5:flip run 4 c22d "${train[@]}" --check-replicas 5 --zero 3 --shard-size 2
  check "differing_replicas: hybrid: the pair that holds the same" says "step 5: .*rank 1 .*rank 3 .*one of the two is wrong"
}

# ---- data --------------------------------------------------------------------------------------------------------

shard=$(ls "$work"/data/*train*.bin)
refused() {  # refused NAME TEXT ARGS...: one process, exit code 70
  local name=$1 text=$2
  shift 2
  local flags=("${shape[@]}")
  [[ " $* " == *" --init-from "* ]] && flags=(--device cpu --batch 1 --seq-len 32)  # the model is the folder's
  "$program" "${flags[@]}" --steps 2 --val-every 0 "$@" > "$work/log" 2>&1
  rc=$?
  check "$name" test $rc = 70
  check "$name: $text" says "$text"
}
edit_shard() {  # edit_shard NAME PYTHON: `head`, `body` -> a file
  python3 -c "
import struct
data = open('$shard', 'rb').read()
head, body = list(struct.unpack('<256i', data[:1024])), bytearray(data[1024:])
$2
open('$work/$1', 'wb').write(struct.pack('<256i', *head) + bytes(body))"
}
case_token_beyond_vocab() {
  edit_shard bad.bin "head[2] = 4000; body = body[:8000]; body[4000:4002] = struct.pack('<H', 60000)"
  refused "token_beyond_vocab: token id beyond the vocabulary" "bad.bin.*60000" --train-data "$work/bad.bin" --vocab 257 --steps 200
}
case_bad_shard() {
  : > "$work/bad.bin"
  refused "bad_shard: empty" "bad.bin: the file is empty" --train-data "$work/bad.bin" --vocab 257
  head -c 100 "$shard" > "$work/bad.bin"
  refused "bad_shard: shorter than a header" "bad.bin: the header is cut off" --train-data "$work/bad.bin" --vocab 257
  edit_shard bad.bin "head[0] = 7"
  refused "bad_shard: wrong magic" "bad.bin: not a token shard" --train-data "$work/bad.bin" --vocab 257
  edit_shard bad.bin "head[1] = 99"
  refused "bad_shard: wrong version" "bad.bin: .*version 99" --train-data "$work/bad.bin" --vocab 257
  edit_shard bad.bin "head[2] += 5"
  refused "bad_shard: shorter than its header says" "bad.bin: .*cut off" --train-data "$work/bad.bin" --vocab 257
  edit_shard bad.bin "body += b'x'"
  refused "bad_shard: odd bytes" "bad.bin: .*too long" --train-data "$work/bad.bin" --vocab 257
}
case_short_data() {
  edit_shard tiny.bin "head[2] = 20; body = body[:40]"
  refused "short_data: too short for one sample" "has 20 tokens, but one sample of sequence length 32 takes 33" --train-data "$work/tiny.bin" --vocab 257
  edit_shard tiny.bin "head[2] = 100; body = body[:200]"
  run 3 c26 "${shape[@]}" --train-data "$work/tiny.bin" --val-data "$work/tiny.bin" --vocab 257 --steps 3 --val-tokens 100000 --batch 4
  check "short_data: shorter than a global batch, and than the evaluation asks for: works" test $rc = 0
}
case_bad_shard_set() {
  refused "bad_shard_set: a pattern that matches nothing" "$work/none" --train-data "$work/none*.bin" --vocab 257
  python3 -c "
import struct; open('$work/gpt.bin', 'wb').write(struct.pack('<256i', 20240520, 1, 1000, *[0] * 253) + struct.pack('<1000H', *[i % 256 for i in range(1000)]))
open('$work/llama.bin', 'wb').write(struct.pack('<256i', 20240801, 7, 1000, *[0] * 253) + struct.pack('<1000I', *[i % 256 for i in range(1000)]))"
  refused "bad_shard_set: two formats" "(gpt.bin.*llama.bin|llama.bin.*gpt.bin)|gpt.bin" --train-data "$work/gpt.bin,$work/llama.bin" --vocab 257
  check "bad_shard_set: two formats: both files named" says "llama.bin"
}
case_changed_data() {
  damaged c28
  cp -r "$work/data" "$work/data28"
  printf 'A' | dd of="$work/data28/$(basename "$shard")" bs=1 seek=1500 conv=notrunc 2> /dev/null
  run 3 c28 --data "$work/data28" --device cpu --resume auto
  check "changed_data: refused" test $rc != 0
  check "changed_data: the way on is named" says "--allow-data-change"
  run 3 c28 --data "$work/data28" --device cpu --resume auto --allow-data-change
  check "changed_data: allowed" test $rc = 0
  # Beyond the ends, which are compared in any case; of validation data too. A file that was only copied is no other one.
  local name middle
  for name in train val; do
    damaged c28b
    rm -r "$work/data28"
    cp -r "$work/data" "$work/data28"
    middle=$(ls "$work"/data28/*_${name}_*.bin)
    python3 - "$middle" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:  # another token of the vocabulary
    at = f.seek(0, 2) // 4 * 2
    f.seek(at)
    byte = f.read(1)
    f.seek(at)
    f.write(bytes([byte[0] ^ 1]))
PY
    run 3 c28b --data "$work/data28" --device cpu --resume auto
    check "changed_data: $name shard rewritten in its middle: exit code 2" test $rc = 2
    check "changed_data: $name shard rewritten in its middle: named" says "_${name}_.*has the same size but other contents"
    check "changed_data: $name shard rewritten in its middle: nothing was saved" test "$(steps_of c28b)" = "4 6"
  done
  rm -r "$work/data28"
  cp -r "$work/data" "$work/data28"
  run 3 c28b --data "$work/data28" --device cpu --resume auto
  check "changed_data: only copied: the same weights" as_undisturbed c28b
}

# ---- resume ------------------------------------------------------------------------------------------------------

data_hash() { grep -o '"data_hash":"[0-9a-f]*"' "$work/$1/metrics.jsonl" | tail -n 1; }
case_other_rank_count() {
  run 4 c29 "${train[@]}" --batch 6 --steps 6
  local whole ranks
  whole=$(data_hash c29)
  for ranks in 2 3 8 1; do
    FAULT=step:0:4:term run 4 c29-$ranks "${train[@]}" --batch 6 --steps 6
    run $ranks c29-$ranks --data "$work/data" --device cpu --resume auto --zero 2
    check "other_rank_count: 4 -> $ranks ranks: resumes" test $rc = 0
    check "other_rank_count: 4 -> $ranks ranks: the same tokens" test "$(data_hash c29-$ranks)" = "$whole"
  done
}
case_other_flags() {
  damaged c31
  run 3 c31 --data "$work/data" --device cpu --resume auto --dim 64
  check "other_flags: another shape: refused" test $rc = 2
  check "other_flags: another shape: a table of differences" says "dim: 32 in the checkpoint, 64"
  run 3 c31 --data "$work/data" --device cpu --resume auto --lr 5e-4
  check "other_flags: another rate: listed, and wins" says "changed  --lr 5e-4, was"
}

# ---- files, flags, memory, neighbours ------------------------------------------------------------------------------

case_bad_weights_header() {
  mkdir "$work/hf"
  cp "$work"/whole/final/* "$work/hf/"
  printf '\377\377\377\377\377\377\377\177' | dd of="$work/hf/model.safetensors" bs=1 conv=notrunc 2> /dev/null
  refused "bad_weights_header: safetensors with an absurd header" "model.safetensors: not a valid safetensors file" --data "$work/data" --init-from "$work/hf"
}
case_bad_config() {
  mkdir "$work/hf34"
  cp "$work"/whole/final/* "$work/hf34/"
  sed -i 's/"num_attention_heads": *4/"num_attention_heads": 5/' "$work/hf34/config.json"
  refused "bad_config: heads that do not divide" "config.json.*(num_attention_heads|heads)" --data "$work/data" --init-from "$work/hf34"
  sed -i 's/"num_attention_heads": *5/"num_attention_heads": 1000000000000000000/' "$work/hf34/config.json"
  refused "bad_config: absurd size" "config.json.*num_attention_heads" --data "$work/data" --init-from "$work/hf34"
}
case_missing_tensors() {
  mkdir "$work/hf35"
  cp "$work"/whole/final/* "$work/hf35/"
  sed -i 's/"num_hidden_layers": *2/"num_hidden_layers": 3/' "$work/hf35/config.json"
  refused "missing_tensors" "model.layers.2" --data "$work/data" --init-from "$work/hf35"
}
case_bad_flags() {
  local began
  began=$(seconds)
  "$program" --batch 4x > "$work/log" 2>&1
  rc=$?
  check "bad_flags: 4x: exit code 2" test $rc = 2
  check "bad_flags: 4x: at once" within "$began" 10
  check "bad_flags: 4x: nearest value" says "nearest valid value: 4"
  "$program" --time-limit 3x > "$work/log" 2>&1
  rc=$?
  check "bad_flags: time limit: exit code 2" test $rc = 2
  check "bad_flags: time limit: examples" says "90m, 3h30m"
  FAULT=checkpoint.shart "$program" "${train[@]}" --out "$work/c37" > "$work/log" 2>&1
  rc=$?
  check "bad_flags: FAULT: nearest point" says "nearest: checkpoint.shard"
}
case_no_gpu() {
  nvidia-smi -L > /dev/null 2>&1 && { skip "no_gpu: there is one"; return; }
  refused "no_gpu: --device cuda without a GPU" "device cpu or auto" --data "$work/data" --device cuda
}
case_out_of_memory() {
  (ulimit -v 3000000; "$program" --preset llama3.1-8b --data "$work/data" --device cpu --batch 1 --seq-len 64 --out "$work/c39" > "$work/log" 2>&1)
  rc=$?
  check "out_of_memory: exit code 70" test $rc = 70
  check "out_of_memory: says what and how much" says "GiB"
  check "out_of_memory: no partial checkpoint" test ! -e "$work/c39/checkpoints"
}
case_second_run() {
  by 3
  FAULT=step:*:*:sleep=1 timeout 60 "${by[@]}" "${train[@]}" --out "$work/c40" > "$work/log.first" 2>&1 &
  local job=$!
  wait_for_step c40 2
  run 3 c40 --data "$work/data" --device cpu --resume auto
  check "second_run: a second run: refused" test $rc = 70
  check "second_run: a second run: told who has it" says "another run writes there \(pid [0-9]+ on host "
  wait $job
  rc=$?
  check "second_run: the first one is undisturbed" as_undisturbed c40
  resume c40
  check "second_run: the lock ends with the run" test $rc = 0
  FAULT=file.write:1:20:eio,file.write:1:21:estale,file.read:0:2:eio start c40b
  check "second_run: passing EIO and ESTALE: tried again" says "failed: (Input/output error|Stale file handle); trying again"
  check "second_run: passing EIO and ESTALE: nothing is lost" as_undisturbed c40b
  check "second_run: passing EIO and ESTALE: no save failed" test -z "$(grep 'could not be saved' "$work/log")"
}

# Nothing begins over a run that has saved something, whatever became of its checkpoints.
case_used_folder() {
  damaged c41
  rm -r "$work/c41/checkpoints"
  resume c41
  check "used_folder: checkpoints gone: refused" test $rc = 2
  check "used_folder: checkpoints gone: said, with the way on" says "holds an earlier run \(.*step 6 was saved\), but no checkpoint.*"
  resume c41
  check "used_folder: checkpoints gone: still known at the next start" test $rc = 2
  start c41
  check "used_folder: a used folder: refused" test $rc = 2
  check "used_folder: a used folder: the way on is named" says "give another --out, or --overwrite, which starts here and moves the earlier run aside"
  start c41 --overwrite
  check "used_folder: --overwrite: starts a new run" as_undisturbed c41
  check "used_folder: --overwrite: the old run is kept" bash -c "grep -q '\"step\":5,' '$work'/c41/before-*/metrics.jsonl"
  damaged c41b
  rm "$work"/c41b/checkpoints/*/manifest.json
  resume c41b
  check "used_folder: no manifests: refused" test $rc = 70
  check "used_folder: no manifests: both folders are named" says "step_000000004: not a checkpoint: it holds no manifest.json"
}

. test/program/faults_around.sh
. test/program/faults_records.sh

all=$(sed -n 's/^case_\([a-z_0-9]*\)().*/\1/p' test/program/test_faults.sh test/program/faults_{around,records}.sh | xargs)
if [ "$quick" ]; then
  all="kill_in_save flipped_bit_in_file log_full bad_out_folder sigusr1_to_a_rank killed_rank nan_gradient
    resume_across_skip nan_in_a_row nan_state differing_replicas second_run used_folder stopped_when_due
    record_of_another_rank token_in_no_record"
fi
if [ "$only" ]; then
  declare -F "case_$only" > /dev/null || { echo "no case is called $only; there are:" $all; exit 2; }
  all=$only
fi
for n in $all; do
  began=$SECONDS before=$((passed + failed))
  case_$n
  printf 'case %-24s %3d checks, %3d s\n' "$n" $((passed + failed - before)) $((SECONDS - began))
done
summary
