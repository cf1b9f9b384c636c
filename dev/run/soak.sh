#!/usr/bin/env bash
# Trains on 4 ranks while faults of every kind happen, one after another, and asks for the very weights of an undisturbed run.
#
#   dev/run/soak.sh MINUTES [--faults N] [--seed S] [--steps N] [--report FILE] [--program ./train_llama]
#
# kill -9 of a rank at a step or inside a save, kill -9 of mpirun or of a rank at any moment, SIGSTOP (the watchdog ends the
# job), SIGTERM and SIGUSR1 (saved, exit code 75), disk full while saving. Ends after MINUTES or N faults, whichever is first,
# once the round under way has finished. The faults of a seed are the same every time, but for the moments of the kills from
# outside. Exit code 0: every round ended with the undisturbed run's weights and tokens.
set -uo pipefail
minutes=${1:-}
[[ $minutes =~ ^[0-9]+$ ]] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
shift
faults_wanted=1000000 seed=1 steps=240 report='' program=./train_llama
while [ $# -gt 0 ]; do
  case $1 in
    --faults) faults_wanted=$2 ;;
    --seed) seed=$2 ;;
    --steps) steps=$2 ;;
    --report) report=$2 ;;
    --program) program=$2 ;;
    *) echo "soak: what is $1?"; exit 2 ;;
  esac
  shift 2
done
program=$(realpath "$program")
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
unset FAULT
RANDOM=$seed
declare -A count=()
total=0 starts=0 rounds=0 bad=0
began=$SECONDS

python3 data_prep/prepare.py stdlib --max-bytes 400K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
train=(--data "$work/data" --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --batch 1
  --seq-len 32 --val-every 0 --val-tokens 256 --steps "$steps" --save-every 4 --timeout 3)
launch() {  # launch OUT ARGS...: exit code in rc
  local out=$1
  shift
  timeout -s KILL 300 mpirun -n 4 "$program" --out "$work/$out" "${train[@]}" --resume auto "$@" > "$work/log" 2>&1
  rc=$?
}
hashes() { sha256sum < "$work/$1/final/model.safetensors" 2> /dev/null; grep -o '"data_hash":"[0-9a-f]*"' "$work/$1/metrics.jsonl" | tail -n 1; }
happened() { count[$1]=$((${count[$1]:-0} + $2)); total=$((total + $2)); }
pick() { shift $((RANDOM % $#)); echo "$1"; }

# Sets `fault` and `kind`; `outside` is the delay in tenths of a second of a kill from outside, or empty.
draw() {
  local rank=$((RANDOM % 4)) step=$((RANDOM % 14 + 1))
  fault='' kind='' outside=''
  case $((RANDOM % 10)) in
    0 | 1) kind="kill -9 of a rank at a step" fault=step:$rank:$step:kill ;;
    2) kind="kill -9 of a rank in a save" fault=$(pick checkpoint.shard checkpoint.shard.done checkpoint.fsync):$rank:$((RANDOM % 9 + 1)):kill ;;
    3) kind="kill -9 of rank 0 in a save"
       fault=$(pick checkpoint.mkdir checkpoint.made checkpoint.agreed checkpoint.manifest checkpoint.manifest.done \
         checkpoint.rename checkpoint.renamed checkpoint.latest checkpoint.gc checkpoint.gc.done):0:$((RANDOM % 3 + 1)):kill ;;
    4) kind="SIGSTOP of a rank" fault=step:$rank:$step:stop ;;
    5) kind="SIGTERM to a rank" fault=step:$rank:$step:term ;;
    6) kind="SIGUSR1 to a rank" fault=step:$rank:$step:usr1 ;;
    7 | 8) kind="disk full in a save"
       fault=$(pick checkpoint.shard:$rank checkpoint.fsync:$rank checkpoint.mkdir:0 checkpoint.manifest:0 checkpoint.rename:0):$((RANDOM % 3 + 1)):enospc,step:$rank:$((step + 4)):kill ;;
    9) kind="kill -9 from outside" outside=$((RANDOM % 25 + 5)) ;;
  esac
}
outside_kill() {  # in the background: a rank, or mpirun itself
  sleep "$((outside / 10)).$((outside % 10))"
  local victims victim
  mapfile -t victims < <(pgrep -f -- "^(mpirun|$program) .*--out $work/$1 ")
  [ ${#victims[@]} -gt 0 ] || return
  victim=${victims[$(($2 % ${#victims[@]}))]}
  kill -KILL "$victim" 2> /dev/null && touch "$work/killed"
}

round() {
  local name=round$1 stage=$(($1 % 4)) n
  while [ $total -lt "$faults_wanted" ] && [ $((SECONDS - began)) -lt $((minutes * 60)) ]; do
    draw
    rm -f "$work/killed"
    if [ -n "$outside" ]; then outside_kill "$name" $RANDOM & fi
    export FAULT=$fault
    launch "$name" --zero $stage
    unset FAULT
    if [ -n "$outside" ]; then
      wait $!
      for _ in $(seq 100); do pgrep -f -- "^$program .*--out $work/$name " > /dev/null || break; sleep 0.1; done
    fi
    starts=$((starts + 1))
    if [ -n "$outside" ]; then
      [ -e "$work/killed" ] && happened "$kind" 1
    else
      n=$(grep -c '^fault: rank .* reached ' "$work/log")
      if [[ $kind == disk* ]] && [ "$n" -gt 0 ]; then
        local full
        full=$(grep -c '^fault: rank .* reached checkpoint' "$work/log")
        happened "$kind" "$full"
        happened "kill -9 of a rank at a step" $((n - full))
      else
        [ "$n" -gt 0 ] && happened "$kind" "$n"
      fi
    fi
    [ $rc = 0 ] && break
    if grep -qE 'none of its checkpoints|holds checkpoints up to|another run writes' "$work/log"; then
      echo "soak: start $starts of $name (FAULT=$fault) could not resume:"
      tail -n 12 "$work/log"
      bad=$((bad + 1))
      return
    fi
    printf '\r%s: %d faults, %d starts, %d s ' "$name" $total $starts $((SECONDS - began)) >&2
  done
  if [ ! -e "$work/$name/final/model.safetensors" ] || [ "${rc:-1}" != 0 ]; then
    launch "$name" --zero $stage
    starts=$((starts + 1))
  fi
  rounds=$((rounds + 1))
  if [ $rc = 0 ] && [ "$(hashes "$name")" = "$reference" ]; then
    echo "soak: $name, ZeRO-$stage: weights and tokens as undisturbed after $total faults" >&2
  else
    bad=$((bad + 1))
    echo "soak: $name, ZeRO-$stage DIFFERS (exit code $rc)"
    tail -n 12 "$work/log"
  fi
  rm -rf "${work:?}/$name"
}

launch undisturbed
[ $rc = 0 ] || { cat "$work/log"; exit 1; }
reference=$(hashes undisturbed)
for ((r = 0; ; ++r)); do
  rc=1
  round $r
  if [ $total -ge "$faults_wanted" ] || [ $((SECONDS - began)) -ge $((minutes * 60)) ]; then break; fi
done

text="# Soak: $(date -u +%Y-%m-%d)

\`dev/run/soak.sh $minutes --seed $seed --steps $steps$([ $faults_wanted = 1000000 ] || echo " --faults $faults_wanted")\` at commit $(git rev-parse --short HEAD), $(nproc --all) cores ($(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)), 4 ranks, CPU.

**$total faults in $starts starts and $((SECONDS - began)) s; $rounds rounds of $steps steps, $bad of them ended otherwise than the
undisturbed run** (sha256 of the final weights and hash of all tokens consumed, $(echo "$reference" | head -c 16)...). Rounds go through
ZeRO 0, 1, 2, 3; a checkpoint every 4 steps; each start is a resume from what the one before it left.

| fault | times |
|---|---|
$(for k in "${!count[@]}"; do echo "| $k | ${count[$k]} |"; done | sort)"
echo "$text"
[ -z "$report" ] || echo "$text" > "$report"
[ $bad = 0 ]
