#!/usr/bin/env bash
# Keeps a run going: starts it again from its last checkpoint until it has finished, with limits.
#
#   dev/run/supervise.sh [--max-restarts N] [--backoff S] [--requeue exit|restart] -- mpirun -n 4 ./train_llama --out runs/big ...
#
#   --max-restarts N   starts after the first, at most (default 20)
#   --backoff S        seconds before a restart; doubles while there is no progress, up to 300 (default 5)
#   --requeue exit     a run that was asked to stop (exit code 75) is left to whoever asked, as Slurm (default);
#             restart  or started again (time limits of a test, preemption by a scheduler that does not requeue)
#
# Adds --resume auto to the command. Ends with
#   0   the run has finished             75  it was asked to stop; its state is saved
#   2   the command line is wrong         3  given up: no new checkpoint between two restarts, or too many restarts;
#                                            the last lines say why each start ended
# Signals (TERM, USR1, INT) are passed on to the run. What counts is run_status.json; mpirun's exit code is not trusted.
set -uo pipefail
max_restarts=20 backoff=5 requeue=exit
usage() { sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 2; }
number() { [[ $2 =~ ^[0-9]+$ ]] || { echo "supervise: $1 $2: a whole number is expected" >&2; exit 2; }; }
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --max-restarts) number "$1" "${2:-}"; max_restarts=$2; shift 2 ;;
    --backoff) number "$1" "${2:-}"; backoff=$2; shift 2 ;;
    --requeue) requeue=${2:-}; [[ $requeue =~ ^(exit|restart)$ ]] || usage; shift 2 ;;
    *) usage ;;
  esac
done
[ "${1:-}" = -- ] && shift
[ $# -gt 0 ] || usage
command=("$@") out=
for ((i = 0; i < $#; ++i)); do
  case ${command[i]} in
    --out) out=${command[i + 1]:-} ;;
    --out=*) out=${command[i]#--out=} ;;
    --resume | --resume=*) echo "supervise: leave --resume out: it is given by this script" >&2; exit 2 ;;
  esac
done
[ -n "$out" ] || { echo "supervise: the command needs --out FOLDER, where checkpoints and run_status.json are" >&2; exit 2; }

say() { echo "supervise: $*" >&2; }
field() { python3 -c "
import json, sys
try: print(json.load(open('$out/run_status.json')).get('$1', ''))
except Exception: pass" 2> /dev/null; }
newest() { ls "$out/checkpoints" 2> /dev/null | sed -n 's/^step_0*\([0-9][0-9]*\)$/\1/p' | tail -n 1; }

job='' stopping=''
pass_on() {  # bash tells of it once wait returns
  stopping=1
  [ -n "$job" ] && kill -"$1" "$job" 2> /dev/null
}
trap 'pass_on TERM' TERM
trap 'pass_on USR1' USR1
trap 'pass_on TERM' INT  # children that bash starts in the background ignore INT

pause=$backoff history="" idle=0
for ((attempt = 0; ; ++attempt)); do
  before=$(newest)
  before=${before:-0}
  # A status of an earlier start must not be taken for this one's.
  [ -e "$out/run_status.json" ] && mv -f "$out/run_status.json" "$out/run_status.previous.json"
  "${command[@]}" --resume auto &
  job=$!
  rc=0
  wait "$job" || rc=$?
  while kill -0 "$job" 2> /dev/null; do  # a signal ended the wait, not the run
    rc=0
    wait "$job" || rc=$?
  done
  job=
  state=$(field state) reason=$(field reason | head -n 1) code=$(field exit_code)
  after=$(newest)
  after=${after:-0}
  case $state in
    finished)
      say "finished after $attempt restart$([ $attempt = 1 ] || echo s)"
      exit 0 ;;
    stopped)
      why="stopped: $reason"
      if [ -n "$stopping" ] || [ $requeue = exit ]; then
        say "$why; saved at step $after"
        exit 75
      fi ;;
    failed) why="failed with exit code $code: $reason" ;;
    running) why="killed at step $(field step) without a word (mpirun's exit code $rc)" ;;
    *) why="did not come as far as training (exit code $rc)" ;;
  esac
  history="$history
  start $((attempt + 1)): checkpoints from step $before to $after; $why"
  if [ $rc = 2 ] && [ -z "$state" ]; then
    say "the command line is wrong; nothing is started again"
    exit 2
  fi
  if [ -n "$stopping" ]; then
    say "$why; not started again, since a signal came"
    exit 75
  fi
  if [ "$after" -gt "$before" ]; then
    idle=0 pause=$backoff
  else
    idle=$((idle + 1))
  fi
  if [ $idle -ge 3 ]; then
    say "gives up: no new checkpoint in $idle starts in a row$history"
    exit 3
  fi
  if [ $attempt -ge "$max_restarts" ]; then
    say "gives up after $max_restarts restarts$history"
    exit 3
  fi
  say "$why; starts again from step $after in $pause s (restart $((attempt + 1)) of at most $max_restarts)"
  sleep "$pause" &
  wait $! || true
  [ -n "$stopping" ] && { say "a signal came while nothing ran"; exit 75; }
  [ $idle -gt 0 ] && pause=$((pause * 2 > 300 ? 300 : pause * 2))
done
