#!/bin/bash
# The exercise of dev/guide/contribute.md, done by a patch in a copy of this tree: a new flag takes at most five files.
#
#   test/program/test_exercise.sh build/cuda       (the objects that the copy is built from)
set -u
cd "$(dirname "$0")/../.." || exit 1
objects=$1
. test/program/check.sh
root=$PWD
patch=$root/test/program/exercise_flag.patch

copied() {
  { git ls-files -z 2> /dev/null || find . -path ./build -prune -o -type f -print0; } > "$work/files"
  mkdir "$work/copy" && tar -c --null -T "$work/files" --ignore-failed-read | tar -x -C "$work/copy" &&
    tar -c --exclude='*/test/*' --exclude='*test_*' --exclude=unit_tests "$objects" build/*.* | tar -x -C "$work/copy"
}
check "a copy of the tree" copied
cd "$work/copy" || exit 1
check "the patch touches at most five files" test "$(grep -c '^+++ ' "$patch")" -le 5
check "  and applies" patch -p1 -s --no-backup-if-mismatch -i "$patch"
program=$work/copy/train_llama
rm -f "$program"
built() { make -j2 train_llama > "$work/log" 2>&1; }
check "it builds" built
check "its test compiles" g++ -std=c++20 -I. -fsyntax-only test/llama/test_plan.cpp
check "--help has it" bash -c "'$program' --help reserve-mib | grep -q '^--reserve-mib N=0'"

outside() { "$program" plan --gpus 1 --gpu h100-80g --data synthetic --json - "$@" 2> /dev/null | python3 -c "
import json, re, sys
text = sys.stdin.read()
print(json.loads(text[text.index('{'):])['outside_ledger'][1])"; }
planned() { [ $(($(outside --reserve-mib 1024) - $(outside))) = 1073741824 ]; }
check "plan counts it" planned

tiny=(--data synthetic --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --ffn 16 --batch 1 --seq-len 16 --threads 1
  --device cpu --val-every 0 --val-tokens 16 --save-every 1 --out "$work/run")
resumed() {
  "$program" "${tiny[@]}" --steps 1 --reserve-mib 7 > /dev/null && "$program" "${tiny[@]}" --steps 2 --resume auto --allow-lr-jump > /dev/null &&
    grep -q '^reserve-mib = 7' "$work/run/config.toml"
}
check "a resumed run takes it, config.toml has it" resumed
printf 'reserve-mib = -1\n' > "$work/wrong.toml"
refused() { "$program" --config "$work/wrong.toml" 2>&1 | grep -q "nearest valid value: 0"; }
check "a file may have it, within its range" refused
summary
