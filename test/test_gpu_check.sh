#!/usr/bin/env bash
# dev/gpu_check.sh without a GPU: which stages run, what a failing, a slow and a killed one leave. With stand-ins for the
# programs that it measures with. Ends with counts.
#
#   test/test_gpu_check.sh BUILD
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export BUILD PYTHON=python3
BUILD=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

check() {  # check NAME CONDITION: a Python expression over r (report.json), s (its stages), md and rc
  if python3 - "$work/out" "$rc" "$2" <<'PY'; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1: $2"; tail -n 5 "$work/log"; fi
import json, os, sys
folder, rc, condition = sys.argv[1], int(sys.argv[2]), sys.argv[3]
r = json.load(open(folder + "/report.json")) if os.path.exists(folder + "/report.json") else {}
md = open(folder + "/report.md").read() if os.path.exists(folder + "/report.md") else ""
s = {k: v["status"] for k, v in r.get("stages", {}).items()}
rows = lambda stage: r["stages"][stage].get("rows", [])
if not eval(condition):
    print(rc, s)
    sys.exit(1)
PY
}
stand_in() {  # stand_in NAME SHELL...: a program; $json is the file that it is told to write rows to
  { echo '#!/bin/bash'; echo 'for ((i = 1; i < $#; i++)); do j=$((i + 1)); [ "${!i}" = --json ] && json=${!j}; done'; echo "$2"; } > "$work/p/$1"
  chmod +x "$work/p/$1"
}
good='echo "{\"kind\": \"kernel\", \"op\": \"$(basename "$0")\", \"shape\": \"8\", \"seconds\": 1e-3, \"rate\": 5, \"unit\": \"GB/s\", \"of_peak\": 0.5, \"wrong\": 0}" >> "$json"'
fresh() {
  rm -rf "$work/out" "$work/p"
  mkdir -p "$work/p"
  for op in gemm rmsnorm swiglu rope embedding cross_entropy adamw global_norm elementwise attention train; do stand_in bench_$op "$good"; done
}
# Compiled once, before anything is timed.
if [ dev/gpu_report.cpp -nt "$BUILD/gpu_report" ]; then "${CXX:-g++}" -std=c++20 -O1 -o "$BUILD/gpu_report" dev/gpu_report.cpp || exit 1; fi
dry() {  # dry ARGUMENTS...
  timeout 120 dev/gpu_check.sh --dry-run --programs "$work/p" --out "$work/out" "$@" > "$work/log" 2>&1
  rc=$?
}
started() { for _ in $(seq 100); do [ -s "$work/pid" ] && return; sleep 0.1; done; }
gone() { for _ in $(seq 50); do kill -0 "$(cat "$work/pid")" 2> /dev/null || return 0; sleep 0.1; done; return 1; }
slow="echo \$\$ > $work/pid; exec sleep 100"

fresh
dry --stages nonsense
check "an unknown stage is refused" 'rc == 2 and not r'
dry --time-limit 5m
check "a time limit that is no number is refused" 'rc == 2 and not r'

dry --stages kernels,environment,goldens
check "the chosen stages run, in their order" 'rc == 0 and list(s.items()) == [("environment", "ok"), ("goldens", "not-measured"), ("kernels", "ok")]'
check "rows of every program are in the report" 'sum(x["kind"] == "kernel" for x in rows("kernels")) == 9'
check "what a dry run can not measure has no figure" 'rows("goldens") == [{"kind": "not measured", "what": "the PTX wrappers on a device", "why": "dry run: no GPU is used"}]'
check "a dry run says what it is" 'r["dry_run"] and "Nothing here is a measurement of a GPU" in md and "bench_rmsnorm" in md'
dry --stages ceilings
check "a later call adds to the report" 'rc == 0 and s == {"environment": "ok", "goldens": "not-measured", "kernels": "ok", "ceilings": "ok"}'
sed -i 's/"commit": "[^"]*"/"commit": "another"/' "$work/out/report.json"
dry --stages ceilings
check "results of another commit are not mixed" 'rc == 2 and r["commit"] == "another" and s["kernels"] == "ok"'

fresh
stand_in bench_rmsnorm "$good; printf '{\"kind\": \"kern' >> \"\$json\"; echo >> \"\$json\"; exit 3"
rm "$work/p/bench_train"
dry --stages ceilings,kernels,training,sanitizer
check "a failing stage does not stop later ones" 'rc == 1 and s == {"ceilings": "ok", "kernels": "failed", "training": "unavailable", "sanitizer": "not-measured"}'
check "and keeps what it had found" 'sum(x["kind"] == "kernel" for x in rows("kernels")) == 9 and "exit code 3" in r["stages"]["kernels"]["note"]'
check "half a line is counted, not kept" '"1 lines of results were no JSON" in r["stages"]["kernels"]["note"]'
check "what is missing is named" '"bench_train is not there" in r["stages"]["training"]["note"]'

fresh
stand_in bench_rmsnorm "$good; $slow"
dry --stages ceilings,kernels,training --time-limit 6
check "the time limit ends a stage, and leaves no time for the next" 'rc == 1 and s == {"ceilings": "ok", "kernels": "timed-out", "training": "not-run"}'
check "what a slow stage had found is kept" 'sum(x["kind"] == "kernel" for x in rows("kernels")) == 1'
gone && passed=$((passed + 1)) || { failed=$((failed + 1)); echo "FAILED: a program outlives its stage"; }

for signal in KILL TERM; do
  fresh
  rm -f "$work/pid"
  stand_in bench_rmsnorm "$slow"
  dev/gpu_check.sh --dry-run --programs "$work/p" --out "$work/out" --stages ceilings,kernels,training > "$work/log" 2>&1 &
  started
  kill -$signal $!
  wait $! 2> /dev/null
  rc=$?
  if [ $signal = KILL ]; then
    check "a killed check leaves a whole report" 'rc == 137 and s == {"ceilings": "ok", "kernels": "running", "training": "not-run"} and "was killed" in md'
    kill "$(cat "$work/pid")"
  else
    check "an interrupted check says so" 'rc == 143 and s == {"ceilings": "ok", "kernels": "interrupted", "training": "not-run"}'
    gone && passed=$((passed + 1)) || { failed=$((failed + 1)); echo "FAILED: a program outlives an interrupted check"; }
  fi
done
rm -rf "$BUILD"/gpu-check.??????  # what the killed one left

# The path that a GPU takes, with stand-ins for the GPU's own tools: which flags reach which program.
fresh
stand_in nvidia-smi 'case "$*" in *compute-apps*) ;; *name,compute_cap,driver*) echo "Stand-in, 9.0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10" ;; *) echo "NVIDIA Stand-in, 9.0" ;; esac'
stand_in kernel_tests 'echo "$*" >> '"$work"'/tests; echo "[==========] 3 tests ran."; echo "[  PASSED  ] 3 tests."'
stand_in compute-sanitizer 'tool=$2; shift 4; "$@"; [ $tool = memcheck ] || { echo " 1 FAILED TEST"; exit 9; }'
stand_in fidelity_gpu 'if [ $1 = list ]; then echo "mma sm_80"; else echo 00 > $2/mma.txt; fi'
stand_in mpirun 'shift 2; exec "$@"'
stand_in sanity 'case "$*" in *nccl-shared*) exit 70 ;; esac'
stand_in bench_train 'echo "$*" >> '"$work"'/train; [[ "$*" == *"7B-class, 8 layers"* ]] && exit 1; '"$good"
rm -f "$work/train" "$work/tests"
PATH=$work/p:$PATH timeout 120 dev/gpu_check.sh --programs "$work/p" --out "$work/out" \
  --stages environment,tests,goldens,ceilings,kernels,training,ranks,sanitizer > "$work/log" 2>&1
rc=$?
check "all stages are reached" 'rc == 1 and s == {"environment": "ok", "tests": "ok", "goldens": "ok", "ceilings": "ok", "kernels": "ok", "training": "failed", "ranks": "failed", "sanitizer": "failed"}'
check "the report is the GPU's" 'r["device"] == "NVIDIA Stand-in" and not r["dry_run"] and "Dry run" not in md and {"kind": "fact", "name": "compute_cap", "value": "9.0"} in rows("environment")'
check "tests are counted" 'rows("tests") == [{"kind": "tests", "suite": "kernel tests", "passed": 3, "failed": 0, "skipped": 0}]'
check "goldens are packed" 'os.path.getsize(folder + "/goldens.tgz") > 0'
check "models that fail do not hide others" 'sum(x["kind"] == "kernel" for x in rows("training")) == 8 and "7B-class" in r["stages"]["training"]["note"]'
check "training runs on the GPU, tuned, in bf16" 'all("--device cuda --dtype bf16" in l and "--gemm-tune on" in l for l in open(folder + "/../train"))'
check "each transport says for itself" '[x["result"] for x in rows("ranks") if x["kind"] == "ranks"] == ["passed", "passed", "FAILED"]'
check "both tools of the sanitizer run" '[(x["suite"], x["passed"]) for x in rows("sanitizer") if x["kind"] == "tests"] == [("memcheck", 3), ("racecheck", 3)]'

# The loss curves of two programs are compared, and a difference is seen.
rm -rf "$work/out"; mkdir "$work/out"
rows() {  # rows LAST: 200 steps of both, of which the last ten differ
  python3 -c "
import json
for p, last in ('ringzero', 3.0), ('pytorch-compile', float('$1')):
    print(json.dumps(dict(kind='curve', program=p, model='m', batch=1, seq_len=2, dtype='bf16', losses=[4.0] * 190 + [last] * 10)))
for p, v in ('ringzero', 300), ('pytorch-compile, fp32 parameters', 100), ('pytorch-compile, bf16 parameters', 200):
    print(json.dumps(dict(kind='train', program=p, model='m', batch=1, seq_len=2, dtype='bf16', tokens_per_s=v)))"
}
for last in 3.01 3.02; do
  rows $last > "$work/rows"
  rm -rf "$work/out/report.json"
  "$BUILD/gpu_report" begin "$work/out" c d now x 0 curves && "$BUILD/gpu_report" stage "$work/out" curves ok 1 "" "$work/rows" && rc=0
  check "curves that end at 3.0 and $last" "('beyond' if $last > 3.015 else 'within') in md.split('## Loss curves')[1].split('asked')[0]"
done
check "the ratio is to PyTorch's fastest variant" '"| 300 | 200 | pytorch-compile, bf16 parameters | 1.50 |" in md'

echo "$passed passed, $failed failed"
[ $failed = 0 ]
