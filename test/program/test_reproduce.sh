#!/usr/bin/env bash
# Published results, as make reproduce gets them, with one seed: nanoGPT's configuration on tiny-shakespeare, whose text comes from
# $TINYSHAKESPEARE or the network, and associative recall. Ends with "N passed, N failed, N skipped".
#
#   TINYSHAKESPEARE=input.txt test/program/test_reproduce.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

reproduce() { dev/run/reproduce.py --program "$program" --seeds 1 --out "$work/out" "$@" > "$work/log" 2>&1; }
check "recall: 99 % and more" reproduce --only recall
check "and says how much" grep -qE "^\| recall .*at least 99\.[0-9]+ % right" "$work/log"
if [ -n "${TINYSHAKESPEARE:-}" ] || python3 data_prep/prepare.py shakespeare --out "$work/probe" --quiet > "$work/log" 2>&1; then
  check "tiny-shakespeare: well below the published 1.88" reproduce --only shakespeare ${TINYSHAKESPEARE:+--text "$TINYSHAKESPEARE"}
  check "in the range that was found" grep -qE "^\| shakespeare .*\| 1\.6[678][0-9] nats \|" "$work/log"
else
  skip "tiny-shakespeare: $(tail -n 1 "$work/log")"
fi
no_text() {
  https_proxy=http://127.0.0.1:9 reproduce --only shakespeare --out "$work/none" && grep -q "| skipped: no text" "$work/log"
}
check "without the text it says so" no_text
summary
