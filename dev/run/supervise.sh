#!/usr/bin/env bash
# Keeps a run going: starts it again from its last checkpoint until it has finished, with limits.
#
#   dev/run/supervise.sh [--max-restarts N] [--backoff S] [--requeue exit|restart] [--start-timeout S] -- mpirun -n 4 ./train_llama --out runs/big ...
#
#   --max-restarts N   starts after the first, at most (default 20)
#   --backoff S        seconds before a restart; doubles while there is no progress, up to 300 (default 5)
#   --requeue exit     a run that was asked to stop (exit code 75) is left to whoever asked, as Slurm (default);
#             restart  or started again (time limits of a test, preemption by a scheduler that does not requeue)
#   --start-timeout S  a start is ended, with all its processes, where rank 0 has not taken the folder after S seconds, or
#                      where the run has failed and its launcher stays: Hydra's mpirun waits without end for hosts that its
#                      processes can't reach. It counts as a failed start (default 600; 0: never)
#   --ranks CMD        elastic: before each start CMD prints how many ranks can run now, and {ranks} in the command becomes
#                      the largest number up to that among which the sequences of an update divide. The tokens stay the same.
#   --grow-every S     with --ranks: CMD is asked again every S seconds, and where more ranks could run, the run is stopped,
#                      saved and started again with them (default 60; 0: only at a restart)
#   --hosts FILE       for --snapshot-every: before each start the command's mpirun starts keep.sh on every host of FILE (`name` or
#                      `name:ranks` a line) that has none, and it ends with this script. A line that has changed is a spare host in
#                      a lost one's place
#
#   dev/run/supervise.sh --ranks 'wc -l < hosts' -- mpirun -n {ranks} -f hosts ./train_llama --out runs/big ...
#   dev/run/supervise.sh --hosts hosts -- mpirun -n 32 -f hosts ./train_llama --snapshot-every 50 --out runs/big ...
#
# Adds --resume auto to the command. Snapshots of --snapshot-every outlive the run's processes in a folder in /dev/shm, which goes when this
# script ends, however it ends; after kill -9 of it, with the next one. Ends with
#   0   the run has finished             75  it was asked to stop; its state is saved
#   2   the command line is wrong, or another supervisor keeps this run going, or too few ranks are there for the layout
#   3   given up: no new checkpoint between two restarts, or too many restarts; the last lines say why each start ended
# Signals (TERM, USR1, INT) are passed on to the run. What counts is run_status.json; mpirun's exit code is not trusted.
set -uo pipefail
max_restarts=20 backoff=5 requeue=exit ranks_command="" grow_every=60 start_timeout=600 hosts=""
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
number() { [[ $2 =~ ^[0-9]+$ ]] || { echo "supervise: $1 $2: a whole number is expected" >&2; exit 2; }; }
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --max-restarts) number "$1" "${2:-}"; max_restarts=$2; shift 2 ;;
    --backoff) number "$1" "${2:-}"; backoff=$2; shift 2 ;;
    --start-timeout) number "$1" "${2:-}"; start_timeout=$2; shift 2 ;;
    --ranks) ranks_command=${2:?}; shift 2 ;;
    --hosts) hosts=${2:?}; shift 2 ;;
    --grow-every) number "$1" "${2:-}"; grow_every=$2; shift 2 ;;
    --requeue) requeue=${2:-}; [[ $requeue =~ ^(exit|restart)$ ]] || usage; shift 2 ;;
    *) usage ;;
  esac
done
[ "${1:-}" = -- ] && shift
[ $# -gt 0 ] || usage
say() { echo "supervise: $*" >&2; }
command=("$@") out=
for ((i = 0; i < $#; ++i)); do
  case ${command[i]} in
    --out) out=${command[i + 1]:-} ;;
    --out=*) out=${command[i]#--out=} ;;
    --resume | --resume=*) say "leave --resume out: it is given by this script"; exit 2 ;;
    --overwrite) say "leave --overwrite out: every restart would start from nothing"; exit 2 ;;
  esac
done
[ -z "$hosts" ] || [[ -f $hosts && -r $hosts ]] || { say "--hosts $hosts: it can't be read"; exit 2; }
[ -n "$out" ] || { say "the command needs --out FOLDER, where checkpoints and run_status.json are"; exit 2; }

[[ -z $ranks_command || " ${command[*]} " == *"{ranks}"* ]] || { say "--ranks needs {ranks} in the command: mpirun -n {ranks} ..."; exit 2; }
[[ -n $ranks_command || " ${command[*]} " != *"{ranks}"* ]] || { say "{ranks} in the command needs --ranks CMD"; exit 2; }

# One supervisor per run; nothing in the folder is touched without this lock. It is not inherited by the run.
mkdir -p -- "$out" || exit 2
exec 9>> "$out/supervise.lock" || exit 2
flock -n 9 || { say "another supervisor keeps the run in $out going"; exit 2; }

# Ranks that start again continue from here (comm/restart.h): no lock is held on what a killed supervisor has left.
if [ -z "${RINGZERO_RESTART:-}" ]; then
  find /dev/shm -maxdepth 1 -name 'ringzero-restart-*' -type d -user $EUID -perm 700 -exec flock -n {} rm -rf {} \; 2> /dev/null
  while memory=$(mktemp -d /dev/shm/ringzero-restart-XXXXXX 2> /dev/null); do  # again where another start took it for a left one
    exec 7< "$memory" && flock -n 7 && [ "$memory" -ef /proc/self/fd/7 ] && export RINGZERO_RESTART=$memory && break
  done
fi

# field NAME...: the values in run_status.json, one per line; empty lines where there are none
field() {
  python3 -c '
import json, sys
try: status = json.load(open(sys.argv[1], errors="replace"))
except (OSError, ValueError): status = {}
for name in sys.argv[2:]: print(str(status.get(name, "")).split("\n")[0])' "$out/run_status.json" "$@"
}
newest() {
  local name step=0
  for name in "$out"/checkpoints/step_* "${RINGZERO_RESTART:-$out}"/checkpoints/step_*; do
    name=${name##*/step_}
    [[ $name =~ ^[0-9]+$ ]] && step=$((10#$name > step ? 10#$name : step))
  done
  echo "$step"
}

# usable NUMBER: how many of so many ranks to start; or nothing, and on standard error why not
usable() {
  python3 -c '
import re, sys
present, path, *words = sys.argv[1:]
value = {"tp": 1, "pp": 1, "cp": 1, "batch-tokens": 0, "seq-len": 0}
def take(name, text):
    if name in value and re.fullmatch(r"[0-9]{1,15}", text): value[name] = int(text)
try:  # what the last start was, defaults too
    for line in open(path, errors="replace"):
        if m := re.fullmatch(r"(?:# )?([a-z-]+) = ([0-9]+)\s*", line): take(*m.groups())
except OSError: pass
for word, after in zip(words, words[1:] + [""]):
    name, equals, text = word.partition("=")
    if name.startswith("--"): take(name[2:], text if equals else after)
tp, pp, cp = value["tp"], value["pp"], value["cp"]
layout = tp * pp * cp
if not re.fullmatch(r"[0-9]{1,9}", present): sys.exit(f"--ranks printed {present[:80]!r}, not a number")
sequences = value["batch-tokens"] // max(1, value["seq-len"])
copies = int(present) // layout  # data-parallel
while sequences and copies and sequences % copies: copies -= 1
if not copies:
    sys.exit(f"{present} ranks are there, and tp {tp} x pp {pp} x cp {cp} needs {layout}: nearest {layout}")
print(copies * layout)' "$1" "$out/config.toml" "${command[@]}"
}
present() { sh -c "$ranks_command" 9>&- < /dev/null | tail -n 1; }

# nap S: sleeps without a process of its own, which would outlive its caller and hold the output open
nap() { read -rt "$1" -u 8 || true; }

# The folder of snapshots on every host, held there as long as the pipe 6 is open, which nothing but this script writes to.
unkept=''
[ -z "$hosts" ] || [ -n "${RINGZERO_RESTART:-}" ] || { say "--hosts: no folder can be made in /dev/shm"; exit 2; }
[ -z "$hosts" ] || exec 6<> <(:)
keep_on_hosts() {
  local name i words=$RINGZERO_RESTART/keepers launcher=mpirun names=()
  [[ ${command[0]##*/} != mpi* ]] || launcher=${command[0]}
  mkdir -p -- "$words"
  while read -r name _; do
    name=${name%%[:#]*}
    [ -n "$name" ] || continue
    names+=("$name")
    setsid "$launcher" -hosts "$name" -n 1 "$(dirname "$0")/keep.sh" --hold < /dev/fd/6 > "$words/$name" 2>&1 6<&- 7<&- 9>&- &
  done < "$hosts"
  for ((i = 0; i < 150; ++i)); do
    unkept=''
    for name in "${names[@]}"; do grep -qsx kept "$words/$name" || unkept=$name; done
    [ -n "$unkept" ] || return 0
    sleep 0.2
  done
  say "no snapshots can be kept on $unkept: $(tail -n 1 "$words/$unkept")"
}
at_end() {
  local i
  exec 6<&-
  for ((i = 0; i < 50; ++i)); do  # a keeper's launcher whose host is gone may stay
    [ -n "$(jobs -rp)" ] || break
    sleep 0.1
  done
  # shellcheck disable=SC2046  # numbers
  kill $(jobs -rp) 2> /dev/null
  [ -z "${memory:-}" ] || rm -rf -- "$memory"
}
trap at_end EXIT

# The folder's owner: a start writes run_status.json once nothing refuses it, after its checkpoint is loaded.
owner() { sed 's/, boot .*//' "$out/run.lock.owner" 2> /dev/null; }

job='' stopping='' ranks=''
grow() {  # asks the run to stop, saved, once more ranks could run
  local more
  exec 8<> <(:)
  while nap "$grow_every"; do
    more=$(usable "$(present)" 2> /dev/null) || continue
    [ "${more:-0}" -gt "$ranks" ] || continue
    : > "$out/supervise.grows"
    kill -USR1 "$job" 2> /dev/null
    return
  done
}
tree() {  # a process and its descendants; Hydra gives each a session of its own
  local child
  echo "$1"
  for child in $(cat /proc/"$1"/task/*/children 2> /dev/null); do tree "$child"; done
}
end_late() {  # ends the start whose launcher hangs
  local state before='' pids
  exec 8<> <(:)
  while nap "$start_timeout"; do
    state=$(field state)
    if [ "$(field started pid host)" = "$earlier" ] && [ "$(owner)" = "$earlier_owner" ]; then
      echo "did not start within $start_timeout s" > "$out/supervise.late"
    elif [ "$state" = failed ] && [ "$before" = failed ]; then
      echo failed > "$out/supervise.late"
    else
      before=$state
      continue
    fi
    pids=$(tree "$job")
    kill -TERM "$job" 2> /dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$job" 2> /dev/null && nap 1; done
    # shellcheck disable=SC2086,SC2046  # numbers; one that has ended since is nobody's yet
    kill -KILL $pids $(tree "$job") 2> /dev/null
    return
  done
}
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
  earlier=$(field started pid host)  # a status of an earlier start must not be taken for this one's
  earlier_owner=$(owner)
  start=("${command[@]}") grower='' watch=''
  rm -f -- "$out/supervise.grows" "$out/supervise.late"
  if [ -n "$ranks_command" ]; then
    there=$(present)
    now=$(usable "$there" 2>&1) || { say "$now"; exit 2; }
    if [ "$now" != "$ranks" ] || [ "$now" != "$there" ]; then
      say "starts with $now rank$([ "$now" = 1 ] || echo s): $there are there${ranks:+, it was $ranks}"
    fi
    ranks=$now start=("${command[@]//\{ranks\}/$now}")
  fi
  [ -z "$hosts" ] || keep_on_hosts
  "${start[@]}" --resume auto 6<&- 9>&- &
  job=$!
  if [ -n "$ranks_command" ] && [ "$grow_every" -gt 0 ]; then
    grow 6<&- 9>&- &
    grower=$!
  fi
  if [ "$start_timeout" -gt 0 ]; then
    end_late 6<&- 9>&- &
    watch=$!
  fi
  rc=0
  wait "$job" || rc=$?
  while kill -0 "$job" 2> /dev/null; do  # a signal ended the wait, not the run
    rc=0
    wait "$job" || rc=$?
  done
  job=
  [ -z "$grower" ] || { kill "$grower"; wait "$grower"; } 2> /dev/null
  if [ -n "$watch" ]; then  # it may have processes to end that the launcher has left
    [ -e "$out/supervise.late" ] || kill "$watch"
    wait "$watch"
  fi 2> /dev/null
  { read -r state; read -r reason; read -r code; read -r step; } <<< "$(field state reason exit_code step)"
  [ "$(field started pid host)" != "$earlier" ] || state=
  after=$(newest) late=''
  [ ! -e "$out/supervise.late" ] || late=$(cat "$out/supervise.late")
  [ "${late:-failed}" = failed ] || state=  # it may have begun at the last moment, and saved when it was ended
  case $state in
    finished)
      say "finished after $attempt restart$([ $attempt = 1 ] || echo s)"
      exit 0 ;;
    stopped)
      why="stopped: $reason"
      if [ -e "$out/supervise.grows" ] && [ -z "$stopping" ]; then
        say "stopped at step $after, since more ranks are there"
        attempt=$((attempt - 1))
        continue
      fi
      if [ -n "$stopping" ] || [ $requeue = exit ]; then
        say "$why; saved at step $after"
        exit 75
      fi ;;
    failed) why="failed with exit code $code: $reason" ;;
    running) why="killed at step $step without a word (mpirun's exit code $rc)" ;;
    *) why="did not come as far as training (exit code $rc)" ;;
  esac
  case $late in
    "") ;;
    failed) why="$why; its launcher stayed and was ended" ;;
    *) why=$late ;;
  esac
  history="$history
  start $((attempt + 1)): checkpoints from step $before to $after; $why"
  if [ $rc = 2 ] && [ -z "$state$late$unkept" ]; then  # after a signal 2 may be a launcher's own code
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
  sleep "$pause" 6<&- 9>&- &
  wait $! || true
  [ -n "$stopping" ] && { say "a signal came while nothing ran"; exit 75; }
  [ $idle -gt 0 ] && pause=$((pause * 2 > 300 ? 300 : pause * 2))
done
