#!/usr/bin/env bash
# train_llama --ranks N and the launchers without MPI: the bits of mpirun's ranks, what happens when one fails, and that nothing is left.
# Ends with "N passed, N failed, N skipped".
#
#   test/program/test_ranks.sh ./train_llama [--full]      --full: every layout, and every rank killed and stopped
set -uo pipefail
program=$(realpath "$1")
full=${2:-}
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh
export OMP_WAIT_POLICY=passive
unset FAULT

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
train=(--preset bytes --dim 32 --layers 4 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --head untied --device cpu --threads 1 --batch 1
  --seq-len 32 --data "$work/data" --val-every 0 --val-tokens 64 --steps 3 --save-every 0 --timeout 60)
says() { grep -qE -- "$1" "$work/log"; }
same() { cmp "$work/$1/final/model.safetensors" "$work/$2/final/model.safetensors" >> "$work/log" 2>&1; }
rc=0
run() { timeout -s KILL 120 "$@" > "$work/log" 2>&1; rc=$?; return $rc; }
now() { date +%s.%N; }
within() { python3 -c "import sys; sys.exit(not $(now) - $1 < $2)"; }
ranks_of() { pgrep -f -- "--out $work/$1( |\$)" | while read -r pid; do tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | sed -n "s/^RINGZERO_RANK=/$pid /p"; done; }
rank() { ranks_of "$1" | awk -v r="$2" '$2 == r { print $1 }'; }  # rank OUT NUMBER: its process
gone() {  # gone OUT   no process of that run is left
  for _ in $(seq 30); do pgrep -f -- "--out $work/$1( |\$)" > /dev/null || return 0; sleep 0.1; done
  return 1
}
wait_for_step() {  # wait_for_step STEP
  for _ in $(seq 600); do grep -qE "^step +$1/" "$work/log" 2> /dev/null && return 0; sleep 0.05; done
  return 1
}

# Ranks that are started by hand, as torchrun's agent does with these variables.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
agent() {  # agent RANKS COMMAND...
  local ranks=$1 port r pids=() code=0
  shift
  port=$(free_port)
  for ((r = 0; r < ranks; ++r)); do
    env RANK=$r LOCAL_RANK=$r WORLD_SIZE="$ranks" LOCAL_WORLD_SIZE="$ranks" MASTER_ADDR=localhost MASTER_PORT=$((port - 1)) \
      TORCHELASTIC_USE_AGENT_STORE=True "$@" &
    pids+=($!)
  done
  for r in "${pids[@]}"; do wait "$r" || code=$?; done
  return $code
}
export -f agent free_port
by_agent=(bash -c 'agent "$@"' agent)

# ---- the same bits ----
layouts=("--zero 3" "--pp 2 --grad-accum 4" "--zero 2 --collectives symmetric")
[ -z "$full" ] || layouts+=("--zero 1 --grad-accum 2" "--tp 2 --zero 2" "--cp 2 --pp 2 --grad-accum 2")
mpi=
command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null && mpi=1
[ -n "$mpi" ] || skip "the bits of mpirun: no MPI here"
for layout in "${layouts[@]}"; do
  name=${layout// /}
  # shellcheck disable=SC2086
  check "--ranks 4 $layout" run "$program" "${train[@]}" $layout --ranks 4 --out "$work/ranks$name"
  [ -n "$mpi" ] || continue
  # shellcheck disable=SC2086
  check "mpirun -n 4 $layout" run mpirun -n 4 "$program" "${train[@]}" $layout --out "$work/mpi$name"
  check "  the same bits" same "ranks$name" "mpi$name"
done
check "variables of torchrun, --zero 3" run "${by_agent[@]}" 4 "$program" "${train[@]}" --zero 3 --out "$work/agent"
check "  the same bits" same agent ranks--zero3
check "  one line says that nobody gave a secret" test "$(grep -c 'warning: no RINGZERO_TOKEN' "$work/log")" = 1
RINGZERO_TOKEN=0123456789abcdef check "the same with a token" run "${by_agent[@]}" 2 "$program" "${train[@]}" --out "$work/token"
check "  no such line" test "$(grep -c 'RINGZERO_TOKEN' "$work/log")" = 0
check "--pp-threads 2 is --pp 2 --ranks 2" run "$program" "${train[@]}" --pp-threads 2 --grad-accum 4 --out "$work/threads"
check "  a pipeline of two ranks" says "2 ranks"
run "$program" "${train[@]}" --pp 2 --ranks 2 --grad-accum 4 --out "$work/two"
check "  the same bits" same threads two

# ---- refused ----
refused() { ! run "$@" && [ $rc = 2 ]; }
check "--ranks beside another launcher" refused "${by_agent[@]}" 2 "$program" "${train[@]}" --ranks 4 --out "$work/both"
check "  says so" says "in one of 2 processes that torchrun has started"
check "--transport mpi without MPI" refused "$program" "${train[@]}" --ranks 2 --transport mpi --out "$work/no_mpi"
check "  the nearest" says "nearest: --transport auto, or tcp"
check "  said once" test "$(grep -c 'transport mpi: this job' "$work/log")" = 1

# ---- a rank that fails ----
long=("${train[@]}" --steps 100000 --save-every 100000 --ranks 4)
began=0
start() {  # start OUT FLAGS...   in the background, until it has trained some steps; the launcher is $job
  local out=$1
  shift
  : > "$work/log"
  FAULT=${FAULT:-step:*:*:sleep=0.05} "$program" "${long[@]}" "$@" --out "$work/$out" > "$work/log" 2>&1 &
  job=$!
  wait_for_step 3
}
ends() {  # ends CODE   the launcher ends with it
  rc=0
  wait "$job" || rc=$?
  [ $rc = "$1" ]
}
victims=2
[ -z "$full" ] || victims="0 1 2 3"
for r in $victims; do
  start "kill$r"
  began=$(now)
  kill -KILL "$(rank "kill$r" "$r")"
  check "kill -9 of rank $r: mpirun's code, 9" ends 9
  check "  within two seconds" within "$began" 2
  check "  named" says "rank $r of 4 was killed by signal 9"
  check "  no process is left" gone "kill$r"
  start "stop$r" --timeout 3
  began=$(now)
  kill -STOP "$(rank "stop$r" "$r")"
  check "kill -STOP of rank $r: 71" ends 71
  check "  at --timeout, and the time of the reports" within "$began" 9
  check "  named" says "rank $r .*the process is stopped or dead"
  check "  no process is left" gone "stop$r"
done
check "no memory is left" no_memory_left
FAULT=step:1:2:error run "$program" "${train[@]}" --ranks 4 --out "$work/error"
check "an error of a rank: 70" test $rc = 70
check "  said once, with the rank" test "$(grep -c 'rank 1 of 4: .*an error at step' "$work/log")" = 1

# ---- signals, and the death of the parent ----
start once
secret=$(tr '\0' '\n' < "/proc/$(rank once 1)/environ" | sed -n 's/^RINGZERO_TOKEN=//p')
check "a secret of 128 bits, in no command line" test ${#secret} = 32 -a -z "$(pgrep -f "$secret")"
kill -INT "$job"
check "one SIGINT: saved, 75" ends 75
check "  said" says "stopped  after step [0-9]+: SIGINT on rank"
FAULT="step:*:*:sleep=0.05,checkpoint.shard.done:0:*:sleep=5" start twice
kill -INT "$job"
sleep 1
kill -INT "$job"
check "two: at once, 130" ends 130
check "  no process is left" gone twice
start orphans
kill -KILL "$job"
{ wait "$job"; } 2> /dev/null
check "kill -9 of the parent: its ranks end" gone orphans
summary
