#!/usr/bin/env bash
# Keeps snapshots in this host's memory while a command starts the ranks of this host, again and again.
#
#   dev/run/keep.sh -- torchrun --nnodes 4 --nproc-per-node 8 --max-restarts 20 ... --no-python ./train_llama --snapshot-every 50 ...
#   dev/run/keep.sh --hold     the folder that RINGZERO_RESTART names, until standard input ends; for supervise.sh --hosts. Says "kept"
#                              once it is there; where another holds it, that is all
#
# One on every host of a job (srun --ntasks-per-node=1 dev/run/keep.sh -- torchrun ...). --snapshot-every puts the slices of the
# host's ranks, and a copy of those of another host, into a folder in /dev/shm, which goes when the command ends, however it ends;
# after kill -9 of this script, with the next one. Ends with the command's code; signals (TERM, USR1, INT) are passed on.
set -uo pipefail
if [ "$*" = --hold ] && [[ ${RINGZERO_RESTART:-} == /dev/shm/ringzero-restart-* ]]; then
  memory=$RINGZERO_RESTART
elif [ "${1:-}" = -- ] && [ $# -gt 1 ]; then
  shift
  memory=''
else
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
  exit 2
fi
# No lock is held on what a killed one has left.
find /dev/shm -maxdepth 1 -name 'ringzero-restart-*' ! -path "$memory" -type d -user $EUID -perm 700 \
  -exec flock -n {} rm -rf {} \; 2> /dev/null
if [ -n "$memory" ]; then
  until [ "$memory" -ef /proc/self/fd/7 ]; do  # again where another start has taken the new one for a left one
    mkdir -m 700 -- "$memory" 2> /dev/null || [ -O "$memory" ] || exit 70
    exec 7< "$memory"
    flock -w 1 7 || { echo kept; exit 0; }
  done
  exec 8<&0
  set -- sh -c 'echo kept; exec cat <&8 > /dev/null'
else
  until [ "$memory" -ef /proc/self/fd/7 ]; do
    memory=$(mktemp -d /dev/shm/ringzero-restart-XXXXXX) || exit 70
    exec 7< "$memory"
    flock -n 7 || memory=''
  done
fi
trap 'rm -rf -- "$memory"' EXIT
export RINGZERO_RESTART=$memory
"$@" 7<&- &
job=$!
for signal in TERM USR1; do trap 'kill -'$signal' "$job" 2> /dev/null' $signal; done
trap 'kill -TERM "$job" 2> /dev/null' INT  # what bash starts in the background ignores INT
rc=0
wait "$job" || rc=$?
while kill -0 "$job" 2> /dev/null; do  # a signal ended the wait, not the command
  rc=0
  wait "$job" || rc=$?
done
exit "$rc"
