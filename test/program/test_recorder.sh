#!/usr/bin/env bash
# The flight recorder: SIGUSR2 to one rank brings the table and the records of all, and the job goes on; failed runs leave
# no temporary folder. --full, part of make test-full: twenty planted hangs, of which PyTorch's torchfrtrace must name the
# same rank and number from our records. It comes with torch: build/lm-eval's, $TORCH_PYTHON's, or installed into
# build/torch (gigabytes); without a network that part is skipped. Ends with "N passed, N failed, N skipped".
#
#   test/program/test_recorder.sh ./train_llama
#   test/program/test_recorder.sh --full build/cuda/unit_tests
set -uo pipefail
full=
[ "$1" != --full ] || { full=1; shift; }
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh
export OMP_WAIT_POLICY=passive TMPDIR=$work/tmp
mkdir "$TMPDIR"
unset FAULT
says() { grep -qE -- "$1" "$work/log"; }

if [ -n "$full" ]; then
  hangs() { RZ_HANGS=all RZ_HANG_DUMPS=$work/hangs timeout 120 "$program" --gtest_brief=1 --gtest_filter='PlantedHangs.*' > "$work/log" 2>&1; }
  check "the verdict names rank, group, operation and unit of twenty planted hangs" hangs
  python=${TORCH_PYTHON:-}
  has_tool() { "$python" -c 'import torch.distributed.flight_recorder.fr_trace' > "$work/log" 2>&1; }
  for python in ${TORCH_PYTHON:-build/lm-eval/bin/python build/torch/bin/python}; do has_tool && break; done
  if ! has_tool && [ -z "${TORCH_PYTHON:-}" ]; then
    python3 -m venv build/torch > "$work/log" 2>&1 && build/torch/bin/pip install -q torch numpy > "$work/log" 2>&1
  fi
  if ! has_tool; then
    skip "torch can't be had here: $(tail -n 1 "$work/log")"
    summary
    exit
  fi
  # The first operation that it complains of. A stopped rank: the one that the verdict names.
  named() {  # named FOLDER
    "$python" -m torch.distributed.flight_recorder.fr_trace "$1/flight" > "$work/log" 2>&1
    local number
    number=$(grep -ho 'verdict: .*' "$1/failure.txt" | grep -o '#[0-9]*' | head -n 1)
    grep -oE 'equence number: [0-9]+|Culprit rank [0-9]+|missing ranks: .*' "$work/log" | head -n 2 | tr '\n' ' ' |
      grep -qE "^equence number: ${number#\#} (Culprit rank 1|missing ranks: \{1\}) $"
  }
  for folder in "$work"/hangs/*; do check "torchfrtrace, $(basename "$folder"): the same rank and number" named "$folder"; done
  summary
  exit
fi

train=(--device cpu --preset tiny --data synthetic --seq-len 32 --batch 1 --val-every 0 --dim 32 --layers 2 --ffn 48 --zero 3)
"$program" "${train[@]}" --ranks 3 --steps 100000 > "$work/log" 2>&1 &
job=$!
wait_for() { for _ in $(seq 300); do says "$1" && return 0; sleep 0.05; done; return 1; }
wait_for '^step +3/'
rank=$(pgrep -P $job | sed -n 2p)
kill -USR2 "$rank"
check "SIGUSR2 to one rank: the table" wait_for 'records for torchfrtrace stand in'
steps=$(grep -c '^step' "$work/log")
goes_on() { for _ in $(seq 100); do [ "$(grep -c '^step' "$work/log")" -gt $((steps + 2)) ] && return 0; sleep 0.05; done; return 1; }
check "the job goes on" goes_on
check "one rank has spoken, of all" test "$(grep -c 'has SIGUSR2, the job goes on; all ranks:' "$work/log") $(grep -cE '^  rank [0-2] \(.*\): step [0-9]+, issued' "$work/log")" = "1 3"
kill -TERM $job
wait $job
rc=$?
check "it ends as asked" test $rc = 75
read_dumps() {
  python3 - "$TMPDIR"/ringzero-*/flight > "$work/log" 2>&1 << 'END'
import pickle, sys, os
folder = sys.argv[1]
assert sorted(os.listdir(folder)) == ["rank_0", "rank_1", "rank_2"], os.listdir(folder)
for rank in range(3):
    dump = pickle.load(open(f"{folder}/rank_{rank}", "rb"))
    assert dump["version"] and any(c["ranks"] == "[0, 1, 2]" and c["desc"] == "data" for c in dump["pg_config"].values())
    data = [e for e in dump["entries"] if e["process_group"][1] == "data"]
    numbers = [e["collective_seq_id"] for e in data]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) > 20, numbers
    assert "unit 1, micro-batch 0, stage 0" in str([e["frames"] for e in data]), data[0]
    for e in data:
        if e["state"] == "completed":
            assert e["time_created_ns"] <= e["time_discovered_started_ns"] <= e["time_discovered_completed_ns"], e
END
}
check "its records are whole" read_dumps

rm -rf "$TMPDIR"/ringzero-??????
timeout 60 "$program" "${train[@]}" --ranks 2 --tp 3 > "$work/log" 2>&1
FAULT=step:1:2:error timeout 60 "$program" "${train[@]}" --ranks 2 --steps 5 > "$work/log" 2>&1
check "an error is printed" says 'fault: an error at step'
check "refused and failed runs leave no temporary folder" test -z "$(find "$TMPDIR" -maxdepth 1 -name 'ringzero-??????')"
summary
