#!/usr/bin/env bash
# dev/gpu/gpu_check.sh without a GPU: which stages run, what a failing, a slow and a killed one leave. With stand-ins for the
# programs that it measures with. Ends with counts.
#
#   test/program/test_gpu_check.sh BUILD
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
unset MAKELEVEL MAKEFLAGS MFLAGS  # `make test-full` runs this: what follows asks make as a user does
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
good="echo \"\$(basename \"\$0\") \$*\" >> $work/arguments; $good"
ops=$(sed -n 's/^ops="\([^"]*\)".*/\1/p' dev/gpu/gpu_check.sh)
n_ops=$(wc -w <<< "$ops")
fresh() {
  rm -rf "$work/out" "$work/p"
  mkdir -p "$work/p"
  for op in gemm train $ops; do stand_in bench_$op "$good"; done
}
dry() {  # dry ARGUMENTS...
  timeout 120 dev/gpu/gpu_check.sh --dry-run --programs "$work/p" --out "$work/out" "$@" > "$work/log" 2>&1
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
check "rows of every program are in the report" 'sum(x["kind"] == "kernel" for x in rows("kernels")) == '"$n_ops"
tiled='[w[w.index("--shape") + 1].split("x") for l in open(folder + "/../arguments") for w in [l.split()] if w[0] in ("bench_quantise", "bench_fp8_gemm")]'
check "a dry run's shapes have the rows of fp8 with tiles" "len($tiled) == 2 and all(int(n) % 128 == 0 for shape in $tiled for n in shape)"
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
check "and keeps what it had found" 'sum(x["kind"] == "kernel" for x in rows("kernels")) == '"$n_ops"' and "exit code 3" in r["stages"]["kernels"]["note"]'
check "half a line is counted, not kept" '"1 lines of results were no JSON" in r["stages"]["kernels"]["note"]'
check "what is missing is named" '"bench_train is not there" in r["stages"]["training"]["note"]'

fresh
stand_in bench_rmsnorm "$good; $slow"
dry --stages ceilings,kernels,training --time-limit 12
check "the time limit ends a stage, and leaves no time for the next" 'rc == 1 and s == {"ceilings": "ok", "kernels": "timed-out", "training": "not-run"}'
check "what a slow stage had found is kept" 'sum(x["kind"] == "kernel" for x in rows("kernels")) == 1'
gone && passed=$((passed + 1)) || { failed=$((failed + 1)); echo "FAILED: a program outlives its stage"; }

for signal in KILL TERM; do
  fresh
  rm -f "$work/pid"
  stand_in bench_rmsnorm "$slow"
  dev/gpu/gpu_check.sh --dry-run --programs "$work/p" --out "$work/out" --stages ceilings,kernels,training > "$work/log" 2>&1 &
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
stand_in kernel_tests 'case "$*" in
  *list*) printf "%s\n" "Running main() from x.cc" "A." "  One" "  DISABLED_Two" "Shapes/B." "  Three/0  # GetParam() = 4" "  Three/1" ;;
  *) for a; do f=${a#--gtest_filter=}; done; for t in ${f//:/ }; do printf "%s\n" "[ RUN      ] $t" "says $t" "[       OK ] $t (0 ms)"; done ;;
esac'
stand_in compute-sanitizer 'tool=$2; while [ "$1" != --error-exitcode ]; do shift; done; shift 2; "$@" | sed "s/^says .*One/========= Race reported between Write and Read/"; [ $tool = synccheck ] && exit 9; exit 0'
stand_in train_llama 'echo "train_llama: no"; exit 1'
stand_in fidelity_gpu 'if [ $1 = list ]; then echo "mma sm_80"; else echo 00 > $2/mma.txt; fi'
stand_in ncu 'if [ "$1" = --query-metrics ]; then printf "%s\n" "gpu__time_duration   counter" "dram__throughput   x" "sm__pipe_tensor_cycles_active  x"; exit; fi
for a; do [ "$last" = --metrics ] && echo "$a" >> '"$work"'/metrics; [ "$last" = --log-file ] && csv=$a; last=$a; done
case "$*" in *bench_rope*) echo "==ERROR== no" > "$csv"; exit 1 ;; esac
printf "%s\n" "==PROF== Connected" "\"ID\",\"Kernel Name\",\"Grid Size\",\"gpu__time_duration.sum\",\"dram__throughput.avg.pct_of_peak_sustained_elapsed\",\"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active\"" \
  "\"\",\"\",\"\",\"ns\",\"%%\",\"%%\"" "\"0\",\"k<a, \"\"b\"\">(int, float)\",\"(8, 1, 1)\",\"12,500\",\"91.5\",\"0\"" > "$csv"'
stand_in mpirun 'shift 2; exec "$@"'
stand_in sanity 'case "$*" in *nccl-shared*) exit 70 ;; esac'
stand_in bench_train 'echo "$*" >> '"$work"'/train; [[ "$*" == *"7B-class, 8 layers"* ]] && exit 1; '"$good"
stand_in predict_step 'echo "predicted: $*"'
rm -f "$work/train"
PATH=$work/p:$PATH timeout 120 dev/gpu/gpu_check.sh --programs "$work/p" --out "$work/out" \
  --stages environment,tests,program,goldens,ceilings,kernels,training,ranks,sanitizer,profile > "$work/log" 2>&1
rc=$?
check "all stages are reached" 'rc == 1 and s == {"environment": "ok", "tests": "ok", "program": "failed", "goldens": "ok", "sanitizer": "failed", "ranks": "failed", "ceilings": "ok", "kernels": "ok", "training": "failed", "profile": "failed"}'
check "the report is the GPU's" 'r["device"] == "NVIDIA Stand-in" and not r["dry_run"] and "Dry run" not in md and {"kind": "fact", "name": "compute_cap", "value": "9.0"} in rows("environment")'
counts='[(x["suite"], x["passed"], x["failed"], x["skipped"], x["not_run"]) for x in rows(stage) if x["kind"] == "tests"]'
check "tests are counted, disabled ones not" "[$counts for stage in ['tests']] == [[('kernel tests', 3, 0, 0, 0)]]"
check "what failed in the program is said" 'any("FAILED: one_gpu: cpu 1" in x["message"] and "failed" in x["message"] for x in rows("program"))'
check "goldens are packed" 'os.path.getsize(folder + "/goldens.tgz") > 0'
check "models that fail do not hide others" 'sum(x["kind"] == "kernel" for x in rows("training")) == 9 and "7B-class" in r["stages"]["training"]["note"]'
check "training runs on the GPU, tuned, in bf16" 'all("--device cuda --dtype bf16" in l and "--gemm-tune on" in l for l in open(folder + "/../train"))'
check "steps stand beside their prediction, where there is one" 'sum("predicted: --preset" in x["text"] and "--gpu h200" in x["text"] for x in rows("training") if x["kind"] == "text") == 5'
check "each transport says for itself" '[x["result"] for x in rows("ranks") if x["kind"] == "ranks"] == ["passed", "passed", "FAILED"]'
check "the sanitizer's tools run, and a finding fails the test" "[$counts for stage in ['sanitizer']] == [[(t, 2, 1, 0, 0) for t in ('memcheck', 'racecheck', 'synccheck')]]"
check "and is quoted" 'any(x["name"] == "A.One" and "Race reported" in x["message"] for x in rows("sanitizer") if x["kind"] == "failure") and "What failed" in md and "A.One" in md'

check "counters are read, but only those that ncu knows" 'sum(x["kind"] == "profile" for x in rows("profile")) == '"$((n_ops - 1))"' and {"kind": "profile", "shape": "8192x4096", "kernel": "k<a, \"b\">", "Grid Size": "(8, 1, 1)", "gpu__time_duration.sum": 12500.0, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 91.5, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": 0.0} in rows("profile") and "12.5 us" in md and "hmma" not in open(folder + "/../metrics").read()'
check "a kernel without counters is named" 'any(x["name"] == "bench_rope under ncu" for x in rows("profile") if x["kind"] == "failure")'
check "few files" 'len(os.listdir(folder)) == 5'

# Tests that fail, crash, hang and spoil their process: each is named, and costs no other.
if [ -n "$(make -s BUILD="$BUILD" --eval 'print-it: ; @echo $(HAVE_GTEST)' print-it)" ]; then
  cat > "$work/bad.cpp" <<'CPP'
#include <gtest/gtest.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
static bool spoilt = false;
static void sound() { ASSERT_FALSE(spoilt) << "cudaErrorIllegalAddress, from before"; }
TEST(Good, First) { sound(); }
TEST(Good, Skipped) { GTEST_SKIP() << "no"; }
TEST(Fails, Plainly) { EXPECT_EQ(1, 2) << "wrong element 7"; }
TEST(Fails, NotThis) { sound(); }
TEST(Spoils, Itself) { spoilt = true; ADD_FAILURE() << "x.cu:12: cudaErrorIllegalAddress " << (getenv("CUDA_LAUNCH_BLOCKING") ? "at launch" : "at the end"); }
TEST(Spoils, NotThis) { sound(); }
TEST(Crashes, Here) { std::raise(SIGSEGV); }
TEST(Crashes, NotThis) { sound(); }
class Param : public testing::TestWithParam<int> {};
TEST_P(Param, Hangs) { if (GetParam() == 1) sleep(60); }
INSTANTIATE_TEST_SUITE_P(Shapes, Param, testing::Values(0, 1, 2));
TEST(AtTheEnd, Exits) { atexit([] { _exit(3); }); }
CPP
  rm -f "$work/p/kernel_tests"
  ${CXX:-g++} -std=c++20 -o "$work/p/kernel_tests" "$work/bad.cpp" -lgtest_main -lgtest -pthread || exit 1
  rm -rf "$work/out"
  GPU_CHECK_TEST_SECONDS=2 PATH=$work/p:$PATH timeout 120 dev/gpu/gpu_check.sh --programs "$work/p" --out "$work/out" --stages tests > "$work/log" 2>&1
  rc=$?
  how='{x["name"]: x["how"] + ": " + x["message"] for x in reversed(rows("tests")) if x["kind"] == "failure"}'
  check "each bad test is found, and no other" "set($how) == {'Fails.Plainly', 'Spoils.Itself', 'Crashes.Here', 'Shapes/Param.Hangs/1', 'AtTheEnd.'} and rc == 1"
  check "all are counted" "[$counts for stage in ['tests']] == [[('kernel tests', 7, 4, 1, 0)]]"
  check "a failure has its message" "'wrong element 7' in ($how)['Fails.Plainly']"
  check "a crash has its signal" "'signal 11' in ($how)['Crashes.Here']"
  check "a hang is named, and what came after it ran" "'hung' in ($how)['Shapes/Param.Hangs/1']"
  check "a CUDA fault is tried alone, launch by launch" 'any("at launch" in x["message"] and "BLOCKING" in x["how"] for x in rows("tests") if x["kind"] == "failure")'
  check "the report begins with them" 'md.index("What failed") < md.index("## tests") and "wrong element 7" in md'
fi

# The same as a T4, small: fp16 in place of bf16, no fp8, nothing that needs ranks or PyTorch, within 15 GiB.
fresh
stand_in nvidia-smi 'case "$*" in *compute-apps*) ;; *name,compute_cap,driver*) echo "Tesla T4, 7.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10" ;; *) echo "Tesla T4, 7.5" ;; esac'
stand_in kernel_tests 'case "$*" in *list*) printf "%s\n" "A." "  One" ;; *) printf "%s\n" "[ RUN      ] A.One" "[       OK ] A.One (0 ms)" ;; esac'
stand_in train_llama 'echo "train_llama: no"; exit 1'
stand_in bench_train 'echo "$*" >> '"$work"'/train; '"$good"
rm -f "$work/train" "$work/arguments"
PATH=$work/p:$PATH timeout 120 dev/gpu/gpu_check.sh --small --programs "$work/p" --out "$work/out" > "$work/log" 2>&1
rc=$?
check "small: its stages" 'list(s) == "environment build tests program resources ceilings kernels training".split() and s["tests"] == s["ceilings"] == s["kernels"] == s["training"] == "ok"'
check "small: what needs bf16 is left out of the program's runs" 'any("FAILED: one_gpu: cpu_f16 1 --dtype fp16" in x["message"] for x in rows("program")) and not any("bf16" in x["message"] or "fp8" in x["message"] for x in rows("program"))'
check "small: training in fp16, and fp32 where it says so" 'all(("--dtype fp16" in l) != ("--dtype fp32" in l) and "bf16" not in l and "--preset medium" not in l for l in open(folder + "/../train"))'
arguments='[l for l in open(folder + "/../arguments") if not l.startswith("bench_train")]'
check "small: kernels in fp16, one shape of each op, no fp8" "len($arguments) == $n_ops and all('--dtype fp16' in l and '--shape' in l and 'fp8_gemm' not in l for l in $arguments)"
check "small: what was not measured is said" 'any(x["what"] == "bench_fp8_gemm" for x in rows("kernels") if x["kind"] == "not measured")'
fresh
dry --small --stages kernels
check "small: stages can be chosen" 'rc == 0 and list(s) == ["kernels"]'

# The notebook: three cells, as nbformat 4.5 has them; what it calls is there.
if python3 - <<'PY'; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: dev/gpu/notebook.ipynb"; fi
import json, os, re, subprocess, sys
book = json.load(open("dev/gpu/notebook.ipynb"))
assert (book["nbformat"], book["nbformat_minor"]) == (4, 5) and set(book) == {"cells", "metadata", "nbformat", "nbformat_minor"}
assert len(book["cells"]) == 3 and len({c["id"] for c in book["cells"]}) == 3
for c in book["cells"]:
    assert set(c) == {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}, c
    assert c["cell_type"] == "code" and c["outputs"] == [] and c["execution_count"] is None and all(isinstance(l, str) for l in c["source"])
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", c["id"])
calls = [l[1:].strip() for c in book["cells"] for l in "".join(c["source"]).splitlines() if l.startswith("!")]
scripts = [w for l in calls for w in l.split() if w.startswith("dev/")]
assert scripts == ["dev/gpu/gpu_check.sh"] and all(os.access(s, os.X_OK) for s in scripts)
assert subprocess.run(["dev/gpu/gpu_check.sh", "--small", "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout.count("--small") >= 2
targets = [l.split()[-1] for l in calls if l.startswith("make")]
assert targets == ["train_llama"] and re.search(r"^train_llama:", open("Makefile").read(), re.M)
asked = set(re.search(r"install -y ([^>]*)", next(l for l in calls if " install " in l)).group(1).split())
known = set(re.findall(r"[a-z0-9+.-]+", open("dev/build/install_deps.sh").read()))
assert asked - {"g++-12"} <= known, asked - known
PY

# The loss curves of two programs are compared, and a difference is seen.
rm -rf "$work/out"; mkdir "$work/out"
rows() {  # rows LAST: 200 steps of both, of which the last ten differ
  python3 -c "
import json
for p, last in ('ringzero', 3.0), ('pytorch-compile', float('$1')):
    print(json.dumps(dict(kind='curve', program=p, model='m', batch=1, seq_len=2, dtype='bf16', losses=[4.0] * 190 + [last] * 10)))
for p, v, t in ('ringzero', 300, 'fp32'), ('pytorch-compile, fp32 parameters', 100, 'fp32'), ('pytorch-compile, fp32 masters', 200, 'fp32'), ('pytorch-compile, bf16 parameters', 400, 'bf16'):
    print(json.dumps(dict(kind='train', program=p, model='m', batch=1, seq_len=2, dtype='bf16', state=t, tokens_per_s=v)))"
}
for last in 3.01 3.02; do
  rows $last > "$work/rows"
  rm -rf "$work/out/report.json"
  dev/gpu/gpu_report.py begin "$work/out" c d now x 0 curves && dev/gpu/gpu_report.py stage "$work/out" curves ok 1 "" "$work/rows" && rc=0
  check "curves that end at 3.0 and $last" "('beyond' if $last > 3.015 else 'within') in md.split('## Loss curves')[1].split('asked')[0]"
done
check "the ratio is to PyTorch's fastest variant of the same types" '"| 300 | 200 | pytorch-compile, fp32 masters | 1.50 |" in md'

# For which GPUs make compiles: those of this machine, as far as nvcc knows them.
mkdir -p "$work/sm"
arches() {  # arches NAME WHAT_NVCC_KNOWS CAPABILITIES WANTED
  printf '#!/bin/sh\nprintf "%%s\\n" %s\n' "$2" > "$work/sm/nvcc"
  printf '#!/bin/sh\nprintf "%%s\\n" %s\n' "$3" > "$work/sm/nvidia-smi"
  chmod +x "$work/sm/nvcc" "$work/sm/nvidia-smi"
  local got
  got=$(PATH="$work/sm:$PATH" dev/build/cuda_arches.sh "$work/sm/nvcc" | sed 's/.*:=//' | tr '\n' ';')
  if [ "$got" = "$4" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1: $got"; fi
}
arches "two H100 under CUDA 12.0" "sm_80 sm_89 sm_90" "9.0 9.0" " 80 89 90a; 90a;"
arches "a workstation of two kinds" "sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120" "8.6 12.0" " 80 89 90a 100 120; 86 120;"
arches "a GPU that nvcc does not know" "sm_80 sm_89 sm_90" "9.0 12.0" " 80 89 90a;;"
arches "a T4" "sm_75 sm_80 sm_86 sm_90" "7.5" " 75 80 90a; 75;"
arches "a V100 beside a T4" "sm_70 sm_75 sm_80" "7.0 7.5" " 75 80; 75; 7.0;"

# Architectures of a goal: all that nvcc knows for a program that travels, two for the tests; what is there suffices.
mkdir -p "$work/sm/build/arches"
printf 'HAVE_CUDA := 1\nNVCC := false\nCUDA_KNOWS := 75 80 89 90a 100 120\nCUDA_HERE :=\n' > "$work/sm/build/config.mk"
goal() {  # goal NAME BUILT WANTED MAKE_VARIABLE...
  rm -f "$work/sm/build/arches"/*
  [ -z "$2" ] || touch "$work/sm/build/arches/$2"
  local got
  got=$(make -s BUILD="$work/sm/build" "${@:4}" --eval 'print-it: ; @echo $(ARCHES)' print-it)
  if [ "$got" = "$3" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1: $got"; fi
}
goal "make without a GPU" "" "80 89 90a 100 120" MAKECMDGOALS=all
goal "make dist without a GPU" "" "75 80 89 90a 100 120" MAKECMDGOALS=dist
goal "make test without a GPU" "" "80 90a" MAKECMDGOALS=test
goal "make test after make" "80-89-90a-100-120" "80 89 90a 100 120" MAKECMDGOALS=test
goal "make after make test" "80-90a" "80 89 90a 100 120" MAKECMDGOALS=all
goal "make on a machine with an H100" "" "90a" MAKECMDGOALS=all CUDA_HERE=90a
goal "make on a machine with a T4" "" "75" MAKECMDGOALS=all CUDA_HERE=75
goal "architectures that were asked for" "80-89-90a-100-120" "80 100" MAKECMDGOALS=all SM="80 100"

too_small() {  # too_small NAME MAKE_VARIABLE...: one sentence
  if { make -s BUILD="$work/sm/build" "${@:2}" --eval 'print-it: ; @:' print-it 2>&1 || true; } | grep -q 'the kernels need compute capability 7.5'; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1"; fi
}
too_small "an older architecture is refused" SM=70
too_small "an older GPU is named" CUDA_TOO_SMALL=7.0

echo "$passed passed, $failed failed"
[ $failed = 0 ]
