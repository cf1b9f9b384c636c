#!/usr/bin/env bash
# --max-restarts and --snapshot-every: ranks that are killed or stopped, what is resumed from and why, and that nothing is left in memory.
# Ends with "N passed, N failed, N skipped".
#
#   test/program/test_snapshots.sh ./train_llama [--full]
set -uo pipefail
program=$(realpath "$1")
full=${2:-}
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh
export OMP_WAIT_POLICY=passive
unset FAULT RINGZERO_RESTART

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
train=(--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --threads 1 --batch 1 --seq-len 32
  --data "$work/data" --val-every 8 --val-tokens 64 --steps 24 --save-every 10 --timeout 60 --zero 3)
says() { grep -qE -- "$1" "$work/log"; }
rc=0
run() { timeout -s KILL 120 "$@" > "$work/log" 2>&1; rc=$?; return $rc; }
ends() { [ $rc = "$1" ]; }
same() {  # same RUN   the weights and rows of the run that nothing happened to
  cmp "$work/undisturbed/final/model.safetensors" "$work/$1/final/model.safetensors" >> "$work/log" 2>&1 &&
    diff <(python3 test/faults/run_rows.py "$work/undisturbed") <(python3 test/faults/run_rows.py "$work/$1") >> "$work/log" 2>&1
}
memory_of() { find "/proc/$1/fd" -lname '/dev/shm/ringzero-restart-*' -printf '%l\n' 2> /dev/null | head -n 1; }
folders() { grep -oE '/dev/shm/ringzero-restart-[A-Za-z0-9]+' "$work/log" | sort -u; }
gone() {  # the folder that the log names is there no more
  local folder
  folder=$(folders)
  [ -n "$folder" ] && [ ! -e "$folder" ]
}
lost() {  # lost MOST   steps between the last one printed and the one resumed from, at each restart
  awk -v most="$1" '
    /^step / { split($2, at, "/"); last = at[1] + 0 }
    /^resumed / { match($0, /step_[0-9]+/); from = substr($0, RSTART + 5, RLENGTH - 5) + 0; if (last - from > most) bad = 1; ++n; last = from }
    END { exit bad || n == 0 }' "$work/log"
}

check "the run that nothing happens to" run "$program" "${train[@]}" --ranks 4 --out "$work/undisturbed"

# ---- ranks that die: each start's rank 2 before its 11th step ----
FAULT=step:2:11:kill check "kill -9 of a rank, again and again: the run finishes" \
  run "$program" "${train[@]}" --ranks 4 --max-restarts 5 --snapshot-every 3 --out "$work/kill"
check "  from snapshots" test "$(grep -c '^resumed  the snapshot .*step_0000000' "$work/log")" = 2
check "  at most three steps are lost" lost 3
check "  which restart it is" says "ended with 9; ranks that start again: 1 of 4 \(restart 2 of at most 5\)"
check "  the weights and rows of the undisturbed run" same kill
check "  nothing is left in memory" gone

# ---- survivors keep their process ----
in_place() {  # in_place OUT SIGNAL RANK   the rank, a pattern, gets a signal in the middle; ranks before and after in $before and $after
  FAULT="step:*:9:sleep=2" "$program" "${train[@]}" --timeout 4 --ranks 4 --max-restarts 5 --snapshot-every 3 --out "$work/$1" > "$work/log" 2>&1 &
  job=$!
  for _ in $(seq 600); do says '^step +8/' && break; sleep 0.05; done
  before=$(ranks_of $job)
  memory=$(memory_of $job)
  # shellcheck disable=SC2046
  kill -"$2" $(sed -n "s/^$3 //p" <<< "$before")
  for _ in $(seq 600); do says '^resumed' && break; sleep 0.05; done
  after=$(ranks_of $job)
  rc=0
  wait $job || rc=$?
}
kept() { [ "$(comm -12 <(echo "$before") <(echo "$after") | wc -l)" = 3 ] && [ "$(wc -l <<< "$after")" = 4 ]; }
for victim in 0 3; do
  in_place "place$victim" KILL $victim
  check "kill -9 of rank $victim: the run finishes" ends 0
  check "  the others keep their process" kept
  check "  at most three steps are lost" lost 3
  check "  the weights and rows of the undisturbed run" same "place$victim"
  check "  nothing is left in memory" test -n "$memory" -a ! -e "$memory"
done

# ---- a start that is over ----
FAULT=start:1:1:error run "$program" "${train[@]}" --ranks 2 --max-restarts 5 --out "$work/before"
check "a start that fails before it has begun is not repeated" ends 70
check "  nor said" test "$(grep -c 'start again' "$work/log")" = 0
"$program" "${train[@]}" --steps 100000 --ranks 2 --max-restarts 5 --snapshot-every 3 --out "$work/term" > "$work/log" 2>&1 &
job=$!
for _ in $(seq 600); do says '^step +9/' && break; sleep 0.05; done
folder=$(memory_of $job)
check "a folder of its user alone" test "$(stat -c %a "$folder")" = 700
check "  with one snapshot at most beside the one being made" test "$(find "$folder/checkpoints" -mindepth 1 -maxdepth 1 -name 'step_*' | wc -l)" -le 2
kill -TERM $job
rc=0
wait $job || rc=$?
check "a job that is asked to stop: 75, and no restart" ends 75
check "  nothing is left in memory" test ! -e "$folder"

# ---- damage: the launcher is stopped while a byte of the snapshot changes ----
damaged() {  # damaged OUT   rank 1 dies after step 17; the snapshot of step 15 is changed before the ranks start again
  FAULT=step:1:18:kill "$program" "${train[@]}" --ranks 4 --max-restarts 5 --snapshot-every 5 --out "$work/$1" > "$work/log" 2>&1 &
  job=$!
  for _ in $(seq 600); do says '^step +4/' && break; sleep 0.05; done
  folder=$(memory_of $job)
  kill -STOP $job
  for _ in $(seq 600); do [ -e "$folder/checkpoints/step_000000015/manifest.json" ] && says '^step +16/' && break; sleep 0.05; done
  sleep 0.5
  python3 -c "
import sys
with open(sys.argv[1], 'r+b') as f:
    f.seek(30000)
    bits = f.read(1)[0]
    f.seek(30000)
    f.write(bytes([bits ^ 1]))" "$folder/checkpoints/step_000000015/optimizer/m.safetensors"
  kill -CONT $job
  rc=0
  wait $job || rc=$?
}
damaged damaged
check "a damaged snapshot: the run finishes" ends 0
check "  named" says "snapshot refused: .*step_000000015/optimizer/m.safetensors: tensor .* its contents were changed"
check "  and what is taken instead" says "going back to the checkpoint of step 10"
check "  the weights and rows of the undisturbed run" same damaged
check "  nothing is left in memory" gone

# ---- what a killed launcher leaves goes with the next start ----
"$program" "${train[@]}" --steps 100000 --ranks 2 --max-restarts 5 --snapshot-every 3 --out "$work/orphan" > "$work/log" 2>&1 &
job=$!
for _ in $(seq 600); do says '^step +9/' && break; sleep 0.05; done
left=$(memory_of $job)
kill -KILL $job
{ wait $job; } 2> /dev/null
mkdir -m 755 "/dev/shm/ringzero-restart-open$$"
check "what a killed launcher leaves" test -e "$left"
run "$program" "${train[@]}" --steps 2 --ranks 2 --max-restarts 5 --snapshot-every 1 --out "$work/next"
check "  goes with the next start" test ! -e "$left"
check "  but for what others could have made" test -e "/dev/shm/ringzero-restart-open$$"
rmdir "/dev/shm/ringzero-restart-open$$"

# ---- memory: what is planned, and what the ledger of that run counted ----
printf 'kind = "cpu"\nmemory-gib = 64\ngemm-bf16-tflops = 1\ngemm-fp32-tflops = 1\nmemory-gbs = 10\nlink-gbs = 1\ncard-gbs = 1\n' > "$work/machine.toml"
"$program" plan --gpus 2 --gpu "$work/machine.toml" "${train[@]}" --steps 2 --snapshot-every 1 --out "$work/next" --json "$work/plan.json" > "$work/log" 2>&1
"$program" plan --gpus 2 --gpu "$work/machine.toml" "${train[@]}" --steps 2 --out "$work/next" --json "$work/without.json" >> "$work/log" 2>&1
as_planned() {
  python3 - "$work" << 'END' >> "$work/log" 2>&1
import json, sys
ranks = json.load(open(f"{sys.argv[1]}/next/ranks.json"))
plan, without = (json.load(open(f"{sys.argv[1]}/{name}.json"))["planned_ranks"] for name in ("plan", "without"))
for real, planned, less in zip(ranks, plan, without, strict=True):
    held = planned["bytes_of_snapshots"]  # fp32: parameter and two moments, three times, each array rounded up to 256 bytes
    owned = less["memory_peak"]["gradients"] / 4
    print(real["memory_peak"], planned["memory_peak"], less["memory_peak"], held, 36 * owned)
    assert real["memory_peak"]["workspace"] == planned["memory_peak"]["workspace"]
    assert planned["memory_peak"]["workspace"] == less["memory_peak"]["workspace"] + held and less["bytes_of_snapshots"] == 0
    assert 0 <= held - 36 * owned < 9 * 256
END
}
check "the memory of snapshots: plan and ledger" as_planned
cp "$work/machine.toml" "$work/hosts.toml"
echo "ranks-per-node = 1" >> "$work/hosts.toml"
run test/faults/hosts.py 0/1 "$program" "${train[@]}" --steps 2 --snapshot-every 1 --out "$work/two"
"$program" plan --gpus 2 --gpu "$work/hosts.toml" "${train[@]}" --steps 2 --snapshot-every 1 --out "$work/two" --json "$work/plan2.json" > "$work/log" 2>&1
on_two_hosts_as_planned() {  # a rank keeps what the other has, so that the sums are alike
  python3 - "$work" << 'END' >> "$work/log" 2>&1
import json, sys
ranks = json.load(open(f"{sys.argv[1]}/two/ranks.json"))
plan, one_host = (json.load(open(f"{sys.argv[1]}/{name}.json"))["planned_ranks"] for name in ("plan2", "plan"))
real, planned = (sum(rank["memory_peak"]["workspace"] for rank in ranks) for ranks in (ranks, plan))
held, less = (sum(rank["bytes_of_snapshots"] for rank in plan) for plan in (plan, one_host))
print(real, planned, held, less)
assert real == planned and 3 * held == 7 * less  # a copy and twice two; on its way a small share twice
END
}
check "  and on two hosts" on_two_hosts_as_planned

# ---- several hosts (test/faults/hosts.py): a copy of each one's slices is on the next ----
hosts() { run test/faults/hosts.py "$@"; }
FAULT=step:2:12:kill check "a host is lost: the run finishes" hosts --lose one 0,1/2/3 "$program" "${train[@]}" --snapshot-every 3 --out "$work/host"
check "  a spare one gets its slices" says "the slices of 1 of 4 ranks came from the host that had a copy"
check "  from the snapshot" says "^resumed  the snapshot .*step_0000000(09|12): "
check "  at most three steps are lost" lost 3
check "  the weights and rows of the undisturbed run" same host
check "  nothing is left in memory" gone

# ---- refused ----
check "a folder that is not its user's alone" \
  bash -c "! RINGZERO_RESTART=/dev/shm timeout 60 '$program' ${train[*]@Q} --snapshot-every 3 --out '$work/no' > '$work/log' 2>&1"
check "  says so" says "RINGZERO_RESTART=/dev/shm in the environment: it is no folder of this user alone"
check "none of them made a folder" test ! -e "$work/no"
[ -n "$full" ] || { summary; exit; }

# ---- minutes ----
FAULT=step:1:11:stop check "a rank that stops" \
  run "$program" "${train[@]}" --timeout 3 --ranks 4 --max-restarts 5 --snapshot-every 3 --out "$work/stop"
check "  at most three steps are lost" lost 3
check "  the weights and rows of the undisturbed run" same stop
in_place place-stop STOP 2
check "a rank is stopped in the middle: it is ended and starts again" ends 0
check "  the others keep their process" kept
check "  the weights and rows of the undisturbed run" same place-stop
in_place stop-all STOP '[0-3]'
check "all ranks are stopped, of which none can notice it: all start again" ends 0
check "  said" says "all ranks have been stopped for 4[.0-9]* s"
check "  at most three steps are lost" lost 3
check "  the weights and rows of the undisturbed run" same stop-all
FAULT=step:1:11:error check "an error" run "$program" "${train[@]}" --ranks 4 --max-restarts 5 --snapshot-every 3 --out "$work/error"
check "  the weights and rows of the undisturbed run" same error
FAULT=step:3:6:kill run "$program" "${train[@]}" --ranks 4 --max-restarts 1 --snapshot-every 3 --out "$work/most"
check "restarts have an end: the failure's code" ends 9
check "  said" says "the last of 1 restarts has failed"
check "  nothing is left in memory" gone
FAULT=step:2:13:kill check "without snapshots: from checkpoints" run "$program" "${train[@]}" --no-background-save --ranks 4 --max-restarts 5 --out "$work/plain"
check "  said" says "^resumed  $work/plain/checkpoints/step_000000010"
check "  the weights and rows of the undisturbed run" same plain
(cd "$work" && RINGZERO_RUNS=$work/runs FAULT=step:0:8:kill run "$program" "${train[@]}" --ranks 2 --max-restarts 5 --snapshot-every 3)
check "without --out: in the folder of the first start" test "$(find "$work/runs" -mindepth 1 -maxdepth 1 | wc -l)" = 1
check "  which is finished" test -e "$work"/runs/*/final/model.safetensors

FAULT=step:0:12:kill check "rank 0's host is lost, and the others change places" \
  hosts --lose one --rotate 0,1/2/3 "$program" "${train[@]}" --snapshot-every 3 --out "$work/root-host"
check "  the slices come" says "the slices of 1 of 4 ranks came"
check "  at most three steps are lost" lost 3
check "  the weights and rows of the undisturbed run" same root-host
check "  nothing is left in memory" gone
FAULT=step:2:14:kill check "two neighbours are lost at once" \
  hosts --lose two 0,1/2/3 "$program" "${train[@]}" --no-background-save --snapshot-every 3 --out "$work/two-hosts"
check "  said, and whose slices" says "of the snapshot of step 12 no host that is left has the slices of rank 2"
check "  and what is taken instead" says "going back to the checkpoint of step 10"
check "  the weights and rows of the undisturbed run" same two-hosts
FAULT=step:3:12:kill check "no host is lost: nothing has to come" hosts 0,1/2/3 "$program" "${train[@]}" --snapshot-every 3 --out "$work/no-host"
check "  nor does" test "$(grep -c 'slices of' "$work/log")" = 0
check "  at most three steps are lost" lost 3
check "  the weights and rows of the undisturbed run" same no-host
FAULT=snapshot.arrived:3:2:eio check "a bit changes on the way to another host" \
  hosts 0,1/2/3 "$program" "${train[@]}" --snapshot-every 3 --out "$work/bit"
check "  no such snapshot" says "no snapshot of step 6: rank 3: slices of rank 2 came with other bits than they were sent with"
check "  the weights and rows of the undisturbed run" same bit
FAULT="step:2:14:kill,snapshot.share:*:1:eio" check "what another host says of its slices is cut" \
  hosts --restarts 9 --lose one --every-start 0,1/2/3 "$program" "${train[@]}" --no-background-save --snapshot-every 3 --out "$work/words"
check "  said" says "snapshot refused: step 12: rank [0-9]: .*: not valid JSON"
check "  and what is taken instead" says "^resumed  $work/words/checkpoints/step_000000010"
check "  the weights and rows of the undisturbed run" same words
for layout in "--tp 2" "--pp 2" "--shard-size 2" "--zero 1"; do  # tp's copies of norms are on two hosts, and ZeRO-1 shares parameters
  name=${layout// /}
  run "$program" "${train[@]}" $layout --batch-tokens 128 --ranks 4 --out "$work/undisturbed$name"
  FAULT=step:1:12:kill check "a host is lost, $layout" hosts --lose one 0/1/2/3 "$program" "${train[@]}" $layout --batch-tokens 128 --snapshot-every 3 --out "$work/host$name"
  check "  from the snapshot" says "^resumed  the snapshot .*step_0000000(09|12): "
  check "  the undisturbed run's weights" cmp "$work/undisturbed$name/final/model.safetensors" "$work/host$name/final/model.safetensors"
done

if unshare -m true 2> /dev/null; then
  check "too little memory: 70, before anything is made" bash -c "unshare -m sh -c 'mount -t tmpfs -o size=64k none /dev/shm && exec \"\$@\"' sh \
    '$program' ${train[*]@Q} --ranks 2 --max-restarts 3 --snapshot-every 3 --out '$work/small' > '$work/log' 2>&1; [ \$? = 70 ]"
  check "  with advice" says "two snapshots need .* in /dev/shm, which has room for"
  check "  no restart" test "$(grep -c 'start again' "$work/log")" = 0
else
  skip "a small /dev/shm: no namespaces here"
fi

# ---- mpirun, under supervise.sh ----
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  run mpirun -n 3 "$program" "${train[@]}" --batch-tokens 96 --out "$work/three"
  mv "$work/undisturbed" "$work/four" && mv "$work/three" "$work/undisturbed"
  FAULT=step:2:11:kill check "mpirun: the run finishes" run dev/run/supervise.sh --backoff 0 -- mpirun -n 3 "$program" "${train[@]}" \
    --batch-tokens 96 --snapshot-every 3 --out "$work/mpi"
  check "  from snapshots" test "$(grep -c '^resumed  the snapshot .*step_0000000' "$work/log")" = 2
  check "  at most three steps are lost" lost 3
  check "  the weights and rows of the undisturbed run" same mpi
  check "  nothing is left in memory" gone
else
  skip "snapshots of mpirun's ranks: no MPI here"
fi
summary
