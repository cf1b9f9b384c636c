#!/usr/bin/env bash
# Every lesson both ways: its solution must pass the check, its exercise as it stands must fail it. Then the pages, and
# train_llama.c beside the program. Ends with "N passed, N failed".
#
#   dev/learn/run.sh BUILT      (make learn)      BUILT: where the lessons' programs are; PROGRAM: train_llama, if not ./train_llama
set -uo pipefail
built=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh
export PROGRAM=${PROGRAM:-./train_llama}

passes() { timeout 60 "$built/$1/solution" > "$work/log" 2>&1; }
# An exercise fails by saying so: exit code 1 and a last line. A crash or a hang teaches nothing.
fails() {
  local rc=0
  timeout 60 "$built/$1/exercise" > "$work/log" 2>&1 || rc=$?
  [ $rc = 1 ] && tail -n 1 "$work/log" | grep -q '^not yet: '
}

for folder in dev/learn/[0-9][0-9]_*/; do
  lesson=$(basename "$folder")
  if [ "${lesson%%_*}" = 18 ] && [ ! -x "$built/$lesson/solution" ]; then
    skip "$lesson: CUDA's headers are not here; make lesson N=18 fetches them"
    continue
  fi
  check "$lesson: the solution passes" passes "$lesson"
  check "$lesson: the exercise fails until its holes are filled" fails "$lesson"
done

. dev/learn/test_train_llama.sh

speedrun() { dev/learn/speedrun/speedrun.py --program "$PROGRAM" --check --data "$work/speedrun" > "$work/log" 2>&1; }
check "speedrun: its data are the fixed ones, and record.toml trains" speedrun

# The pages: what they name exists, and each hole of a lesson has two halves.
pages() { dev/learn/check_pages.py > "$work/log" 2>&1; }
check "pages, pictures and exercises" pages
summary
