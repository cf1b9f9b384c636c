#!/usr/bin/env python3
"""dev/gpu/gpu_check.sh without a GPU: which stages run, what a failing, a slow and a killed one leave. With stand-ins for the
programs that it measures with. Ends with counts.

test/program/test_gpu_check.py BUILD
"""

import json
import os
import pathlib
import re
import shlex
import subprocess

from checks import ROOT, Run, arguments, check, edit, end, equal, expect, holds, remove, run, until, work

for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # `make test-full` runs this: what follows asks make as a user does
    os.environ.pop(name, None)
build = pathlib.Path(arguments[0])
os.environ.update(BUILD=str(build), PYTHON="python3")
gpu_check = [ROOT / "dev/gpu/gpu_check.sh"]
programs, out = work / "p", work / "out"
on_gpu = {"PATH": f"{programs}:{os.environ['PATH']}"}
OPS = re.search(r'^ops="([^"]*)"', gpu_check[0].read_text(), re.MULTILINE)[1].split()
# A benchmark notes its arguments and writes a row to the file that it is told.
GOOD = f"""echo "$(basename "$0") $*" >> {work}/arguments
printf '{{"kind": "kernel", "op": "%s", "shape": "8", "seconds": 1e-3, "rate": 5, "unit": "GB/s", "of_peak": 0.5, "wrong": 0}}\\n' \\
  "$(basename "$0")" >> "$json"
"""
SLOW = f"echo $$ > {work}/pid; exec sleep 100"


def program(name, text, folder=programs):
    """A stand-in; $json is the file that it is told to write rows to."""
    json_of = 'for ((i = 1; i < $#; i++)); do j=$((i + 1)); [ "${!i}" = --json ] && json=${!j}; done'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{json_of}\n{text}\n")
    (folder / name).chmod(0o755)


def fresh():
    remove(out, programs, *(work / name for name in ("pid", "train", "arguments", "metrics")))
    for op in ["gemm", "train", *OPS]:
        program(f"bench_{op}", GOOD)


def checked(flags, **env):
    return run(gpu_check, "--programs", programs, "--out", out, flags, limit=120, env=env)


def dry(flags):
    return checked(f"--dry-run {flags}")


def report():
    return json.loads((out / "report.json").read_text()) if (out / "report.json").exists() else {}


def page():
    return (out / "report.md").read_text()


def stages():
    return {name: stage["status"] for name, stage in report().get("stages", {}).items()}


def rows(stage, kind):
    return [row for row in report()["stages"][stage].get("rows", []) if row["kind"] == kind]


def note(stage):
    return report()["stages"][stage]["note"]


def noted(file):
    return (work / file).read_text().splitlines()


def ran(what, run, code, **wanted):
    """Its exit code, and how each stage ended, in order."""
    expect(what, run, code)
    wanted = [(name.rstrip("_"), state.replace("_", "-")) for name, state in wanted.items()]
    equal(f"{what}: stages", list(stages().items()), wanted)


def gone():
    pid = int((work / "pid").read_text())
    return until(lambda: not pathlib.Path(f"/proc/{pid}/status").exists(), 5)


def counts(stage):
    return [tuple(row[k] for k in ("suite", "passed", "failed", "skipped", "not_run")) for row in rows(stage, "tests")]


# ---- dry runs ----------------------------------------------------------------------------------------------------------

fresh()
ran("an unknown stage is refused", dry("--stages nonsense"), 2)
ran("a time limit that is no number is refused", dry("--time-limit 5m"), 2)
chosen = dry("--stages kernels,environment,goldens")
ran("the chosen stages run, in their order", chosen, 0, environment="ok", goldens="not_measured", kernels="ok")
equal("  rows of every program are in the report", len(rows("kernels", "kernel")), len(OPS))
tiled = [line.split() for line in noted("arguments") if line.startswith(("bench_quantise ", "bench_fp8_gemm "))]
tiles = [size for words in tiled for size in words[words.index("--shape") + 1].split("x")]
check("  its shapes have the rows of fp8 with tiles", len(tiled) == 2 and all(int(n) % 128 == 0 for n in tiles), tiled)
nothing = {"kind": "not measured", "what": "the PTX wrappers on a device", "why": "dry run: no GPU is used"}
equal("  what it can not measure has no figure", report()["stages"]["goldens"]["rows"], [nothing])
says = report()["dry_run"] and "Nothing here is a measurement of a GPU" in page() and "bench_rmsnorm" in page()
check("  it says what it is", says, page())
added = dry("--stages ceilings")
ran("a later call adds to the report", added, 0, environment="ok", goldens="not_measured", kernels="ok", ceilings="ok")
edit("out/report.json", '"commit": "[^"]*"', '"commit": "another"')
before = report()
expect("results of another commit are not mixed", dry("--stages ceilings"), 2)
equal("  and stay", report(), before)

fresh()
program("bench_rmsnorm", GOOD + """printf '{"kind": "kern' >> "$json"; echo >> "$json"; exit 3""")
remove(programs / "bench_train")
failing = dry("--stages ceilings,kernels,training,sanitizer")
ends = {"sanitizer": "not_measured", "ceilings": "ok", "kernels": "failed", "training": "unavailable"}
ran("a failing stage does not stop later ones", failing, 1, **ends)
kept = len(rows("kernels", "kernel")) == len(OPS) and "exit code 3" in note("kernels")
check("  and keeps what it had found", kept, note("kernels"))
check("  half a line is counted, not kept", "1 lines of results were no JSON" in note("kernels"), note("kernels"))
check("  what is missing is named", "bench_train is not there" in note("training"), note("training"))

fresh()
program("bench_rmsnorm", GOOD + SLOW)
late = dry("--stages ceilings,kernels,training --time-limit 12")
what = "the time limit ends a stage, and leaves no time for the next"
ran(what, late, 1, ceilings="ok", kernels="timed_out", training="not_run")
equal("  what a slow stage had found is kept", len(rows("kernels", "kernel")), 1)
check("  no program outlives its stage", gone())

for signal, state in ((9, "running"), (15, "interrupted")):
    fresh()
    program("bench_rmsnorm", SLOW)
    job = Run(gpu_check, "--dry-run --stages ceilings,kernels,training --programs", programs, "--out", out)
    until(lambda: (work / "pid").exists() and (work / "pid").read_text(), 10)
    job.signal(signal)
    ran(f"signal {signal}", job.wait(), 128 + signal, ceilings="ok", kernels=state, training="not_run")
    if signal == 9:
        check("  leaves a whole report", "was killed" in page(), page())
        os.kill(int((work / "pid").read_text()), 15)
    else:
        check("  no program outlives it", gone())
remove(*build.glob("gpu-check.??????"))  # what the killed one left

# ---- the path that a GPU takes, with stand-ins for the GPU's own tools: which flags reach which program -----------------

fresh()
smi = 'case "$*" in *compute-apps*) ;; *name,compute_cap,driver*) echo "NAME, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10" ;; *) echo "KIND" ;; esac'
listing = 'case "$*" in *list*) printf "%s\\n" LIST ;; *) for a; do f=${a#--gtest_filter=}; done; for t in ${f//:/ }; do OUTPUT; done ;; esac'
result = 'printf "%s\\n" "[ RUN      ] $t" "says $t" "[       OK ] $t (0 ms)"'
tests = '"Running main() from x.cc" "A." "  One" "  DISABLED_Two" "Shapes/B." "  Three/0  # GetParam() = 4" "  Three/1"'
program("nvidia-smi", smi.replace("NAME", "Stand-in, 9.0").replace("KIND", "NVIDIA Stand-in, 9.0"))
program("kernel_tests", listing.replace("LIST", tests).replace("OUTPUT", result))
program(
    "compute-sanitizer",
    """tool=$2; while [ "$1" != --error-exitcode ]; do shift; done; shift 2
"$@" | sed "s/^says .*One/========= Race reported between Write and Read/"; [ $tool = synccheck ] && exit 9; exit 0""",
)
program("train_llama", 'echo "train_llama: no"; exit 1')
program("fidelity_gpu", 'if [ $1 = list ]; then echo "mma sm_80"; else echo 00 > $2/mma.txt; fi')
TIME, DRAM = "gpu__time_duration.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
program(
    "ncu",
    f"""if [ "$1" = --query-metrics ]; then
  printf "%s\\n" "gpu__time_duration   counter" "dram__throughput   x" "sm__pipe_tensor_cycles_active  x"; exit
fi
for a; do [ "$last" = --metrics ] && echo "$a" >> {work}/metrics; [ "$last" = --log-file ] && csv=$a; last=$a; done
case "$*" in *bench_rope*) echo "==ERROR== no" > "$csv"; exit 1 ;; esac
cat > "$csv" <<'CSV'
==PROF== Connected
"ID","Kernel Name","Grid Size","{TIME}","{DRAM}","{TENSOR}"
"","","","ns","%","%"
"0","k<a, ""b"">(int, float)","(8, 1, 1)","12,500","91.5","0"
CSV""",
)
program("mpirun", 'shift 2; exec "$@"')
program("sanity", 'case "$*" in *nccl-shared*) exit 70 ;; esac')
program("bench_train", f'echo "$*" >> {work}/train; [[ "$*" == *"7B-class, 8 layers"* ]] && exit 1; {GOOD}')
program("predict_step", 'echo "predicted: $*"')
whole = checked(
    "--stages environment,tests,program,goldens,ceilings,kernels,training,ranks,sanitizer,profile", **on_gpu
)
expect("on a GPU", whole, 1)
ended = {name: "ok" for name in ("environment", "tests", "goldens", "ceilings", "kernels")}
ended |= {name: "failed" for name in ("program", "sanitizer", "ranks", "training", "profile")}
equal("  all stages are reached", stages(), ended)
device = report()["device"] == "NVIDIA Stand-in" and not report()["dry_run"] and "Dry run" not in page()
check(
    "  the report is the GPU's",
    device and {"kind": "fact", "name": "compute_cap", "value": "9.0"} in rows("environment", "fact"),
)
equal("  tests are counted, disabled ones not", counts("tests"), [("kernel tests", 3, 0, 0, 0)])


def failures(stage):
    return {row["name"]: f"{row['how']}: {row['message']}" for row in reversed(rows(stage, "failure"))}


def messages(stage):
    return "\n".join(row["message"] for row in rows(stage, "failure"))


check("  what failed in the program is said", re.search("FAILED: one_gpu: cpu 1(.|\n)*failed", messages("program")))
check("  goldens are packed", (out / "goldens.tgz").stat().st_size > 0)
models = len(rows("training", "kernel")) == 9 and "7B-class" in note("training")
check("  models that fail do not hide others", models, note("training"))
tuned = all("--device cuda --dtype bf16" in line and "--gemm-tune on" in line for line in noted("train"))
check("  training runs on the GPU, tuned, in bf16", tuned, noted("train"))
beside = [row["text"] for row in rows("training", "text")]
foretold = sum("predicted: --preset" in text and "--gpu h200" in text for text in beside)
equal("  steps stand beside their prediction, where there is one", foretold, 5)
results = [row["result"] for row in rows("ranks", "ranks")]
equal("  each transport says for itself", results, ["passed", "passed", "FAILED"])
tools = [(tool, 2, 1, 0, 0) for tool in ("memcheck", "racecheck", "synccheck")]
equal("  the sanitizer's tools run, and a finding fails the test", counts("sanitizer"), tools)
quoted = "Race reported" in failures("sanitizer").get("A.One", "") and "What failed" in page() and "A.One" in page()
check("  and is quoted", quoted, page())
equal("  counters are read", len(rows("profile", "profile")), len(OPS) - 1)
counted = {"kind": "profile", "shape": "8192x4096", "kernel": 'k<a, "b">', "Grid Size": "(8, 1, 1)"}
counted |= {TIME: 12500.0, DRAM: 91.5, TENSOR: 0.0}
check("    as ncu has written them", counted in rows("profile", "profile") and "12.5 us" in page(), page())
check("    only those that ncu knows", "hmma" not in (work / "metrics").read_text())
check("  a kernel without counters is named", "bench_rope under ncu" in failures("profile"))
equal("  few files", len(list(out.iterdir())), 5)

# ---- tests that fail, crash, hang and spoil their process: each is named, and costs no other ----------------------------

PRINT = "print-it: ; @echo $(%s)"


def make_says(variable, *more, of=build):
    return run(["make", "-s", f"BUILD={of}", *more, "--eval", PRINT % variable, "print-it"]).text.strip()


BAD = r"""
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
TEST(Spoils, Itself) {
    spoilt = true;
    ADD_FAILURE() << "x.cu:12: cudaErrorIllegalAddress " << (getenv("CUDA_LAUNCH_BLOCKING") ? "at launch" : "at the end");
}
TEST(Spoils, NotThis) { sound(); }
TEST(Crashes, Here) { std::raise(SIGSEGV); }
TEST(Crashes, NotThis) { sound(); }
class Param : public testing::TestWithParam<int> {};
TEST_P(Param, Hangs) { if (GetParam() == 1) sleep(60); }
INSTANTIATE_TEST_SUITE_P(Shapes, Param, testing::Values(0, 1, 2));
TEST(AtTheEnd, Exits) { atexit([] { _exit(3); }); }
"""
if make_says("HAVE_GTEST"):
    (work / "bad.cpp").write_text(BAD)
    remove(programs / "kernel_tests", out)
    compiler = os.environ.get("CXX", "g++")
    libraries = "-lgtest_main -lgtest -pthread"
    run(compiler, "-std=c++20 -o", programs / "kernel_tests", work / "bad.cpp", libraries)
    expect("bad tests", checked("--stages tests", GPU_CHECK_TEST_SECONDS=2, **on_gpu), 1)
    how = failures("tests")
    bad = {"Fails.Plainly", "Spoils.Itself", "Crashes.Here", "Shapes/Param.Hangs/1", "AtTheEnd."}
    equal("  each is found, and no other", set(how), bad)
    equal("  all are counted", counts("tests"), [("kernel tests", 7, 4, 1, 0)])
    for name, text in (
        ("Fails.Plainly", "wrong element 7"),
        ("Crashes.Here", "signal 11"),
        ("Shapes/Param.Hangs/1", "hung"),
    ):
        check(f"  {name}: {text}", text in how.get(name, ""), how)
    alone = [row for row in rows("tests", "failure") if "at launch" in row["message"] and "BLOCKING" in row["how"]]
    check("  a CUDA fault is tried alone, launch by launch", alone, how)
    first = page().find("What failed") < page().find("## tests") and "wrong element 7" in page()
    check("  the report begins with them", first, page())

# ---- the same as a T4, small: fp16 in place of bf16, no fp8, nothing that needs ranks or PyTorch, within 15 GiB ---------

fresh()
program("nvidia-smi", smi.replace("NAME", "Tesla T4, 7.5").replace("KIND", "Tesla T4, 7.5"))
passes = 'printf "%s\\n" "[ RUN      ] A.One" "[       OK ] A.One (0 ms)"'
program("kernel_tests", f'case "$*" in *list*) printf "%s\\n" "A." "  One" ;; *) {passes} ;; esac')
program("train_llama", 'echo "train_llama: no"; exit 1')
program("bench_train", f'echo "$*" >> {work}/train; {GOOD}')
checked("--small", **on_gpu)
there = "environment build tests program resources ceilings kernels training".split()
equal("small: its stages", list(stages()), there)
good = {name: stages().get(name) for name in ("tests", "ceilings", "kernels", "training")}
equal("  that pass", good, dict.fromkeys(good, "ok"))
told = messages("program")
fp16 = "FAILED: one_gpu: cpu_f16 1 --dtype fp16" in told and "bf16" not in told and "fp8" not in told
check("  what needs bf16 is left out of the program's runs", fp16, told)
halves = noted("train")
types = all(("--dtype fp16" in x) != ("--dtype fp32" in x) and "bf16" not in x for x in halves)
sizes = not any("--preset medium" in x for x in halves)
check("  training in fp16, and fp32 where it says so", halves and types and sizes, halves)
lines = [line for line in noted("arguments") if not line.startswith("bench_train")]
short = all("--dtype fp16" in x and "--shape" in x and "fp8_gemm" not in x for x in lines)
check("  kernels in fp16, one shape of each op, no fp8", len(lines) == len(OPS) and short, lines)
missed = [row["what"] for row in rows("kernels", "not measured")]
check("  what was not measured is said", "bench_fp8_gemm" in missed, missed)
fresh()
ran("small: stages can be chosen", dry("--small --stages kernels"), 0, kernels="ok")

# ---- the notebook: three cells, as nbformat 4.5 has them; what it calls is there ----------------------------------------

with holds("dev/gpu/notebook.ipynb"):
    book = json.loads((ROOT / "dev/gpu/notebook.ipynb").read_text())
    cells = book["cells"]
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5) and set(book) == {
        "cells",
        "metadata",
        "nbformat",
        "nbformat_minor",
    }
    assert len(cells) == 3 and len({c["id"] for c in cells}) == 3
    for c in cells:
        assert set(c) == {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}, c
        assert (c["cell_type"], c["outputs"], c["execution_count"]) == ("code", [], None)
        assert all(isinstance(line, str) for line in c["source"]) and re.fullmatch("[a-zA-Z0-9_-]{1,64}", c["id"])
    calls = [x[1:].strip() for c in cells for x in "".join(c["source"]).splitlines() if x.startswith("!")]
    scripts = [word for call in calls for word in call.split() if word.startswith("dev/")]
    assert scripts == ["dev/gpu/gpu_check.sh"]
    assert subprocess.check_output([*gpu_check, "--small", "--help"], text=True).count("--small") >= 2
    assert [call.split()[-1] for call in calls if call.startswith("make")] == ["train_llama"]
    assert re.search("^train_llama:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    install = next(call for call in calls if " install " in call)
    asked = set(re.search(r"install -y ([^>]*)", install)[1].split())
    known = set(re.findall(r"[a-z0-9+.-]+", (ROOT / "dev/build/install_deps.sh").read_text()))
    assert asked - {"g++-12"} <= known, asked - known

# ---- the loss curves of two programs are compared, and a difference is seen ---------------------------------------------

same = {"model": "m", "batch": 1, "seq_len": 2, "dtype": "bf16"}
speeds = (
    ("ringzero", 300, "fp32"),
    ("pytorch-compile, fp32 parameters", 100, "fp32"),
    ("pytorch-compile, fp32 masters", 200, "fp32"),
    ("pytorch-compile, bf16 parameters", 400, "bf16"),
)
for last, word in ((3.01, "within"), (3.02, "beyond")):
    written = [
        {"kind": "curve", "program": name, **same, "losses": [4.0] * 190 + [end_of] * 10}
        for name, end_of in (("ringzero", 3.0), ("pytorch-compile", last))
    ]
    written += [{"kind": "train", "program": p, **same, "state": t, "tokens_per_s": v} for p, v, t in speeds]
    (work / "rows").write_text("".join(json.dumps(row) + "\n" for row in written))
    remove(out)
    out.mkdir()
    run("dev/gpu/gpu_report.py begin", out, "c d now x 0 curves")
    expect("a report of curves", run("dev/gpu/gpu_report.py stage", out, "curves ok 1 ''", work / "rows"))
    compared = page().split("## Loss curves")[1].split("asked")[0]
    check(f"curves that end at 3.0 and {last}: {word}", word in compared, compared)
best = "| 300 | 200 | pytorch-compile, fp32 masters | 1.50 |"
check("the ratio is to PyTorch's fastest variant of the same types", best in page(), page())

# ---- for which GPUs make compiles: those of this machine, as far as nvcc knows them -------------------------------------

sm = work / "sm"
for row in """
    two H100 under CUDA 12.0 | sm_80 sm_89 sm_90 | 9.0 9.0 | 80 89 90a; 90a;
    a workstation of two kinds | sm_80 sm_86 sm_89 sm_90 sm_100 sm_103 sm_120 | 8.6 12.0 | 80 89 90a 100 120; 86 120;
    a GPU that nvcc does not know | sm_80 sm_89 sm_90 | 9.0 12.0 | 80 89 90a;;
    a T4 | sm_75 sm_80 sm_86 sm_90 | 7.5 | 75 80 90a; 75;
    a V100 beside a T4 | sm_70 sm_75 sm_80 | 7.0 7.5 | 75 80; 75; 7.0;
""".strip().splitlines():
    what, knows, has, wanted = row.strip().split(" | ")
    program("nvcc", f'printf "%s\\n" {knows}', sm)
    program("nvidia-smi", f'printf "%s\\n" {has}', sm)
    told = run("dev/build/cuda_arches.sh", sm / "nvcc", env={"PATH": f"{sm}:{os.environ['PATH']}"}).text
    equal(what, "".join(line.split(":=")[1] + ";" for line in told.splitlines()).strip(), wanted)

# Architectures of a goal: all that nvcc knows for a program that travels, two for the tests; what is there suffices.
known = "HAVE_CUDA := 1\nNVCC := false\nCUDA_KNOWS := 75 80 89 90a 100 120\nCUDA_HERE :=\n"
arches = sm / "build/arches"
arches.mkdir(parents=True)
(sm / "build/config.mk").write_text(known)
for row in """
    make without a GPU | all | | 80 89 90a 100 120
    make dist without a GPU | dist | | 75 80 89 90a 100 120
    make test without a GPU | test | | 80 90a
    make test after make | test | 80-89-90a-100-120 | 80 89 90a 100 120
    make after make test | all | 80-90a | 80 89 90a 100 120
    make on a machine with an H100 | all CUDA_HERE=90a | | 90a
    make on a machine with a T4 | all CUDA_HERE=75 | | 75
    architectures that were asked for | all 'SM=80 100' | 80-89-90a-100-120 | 80 100
""".strip().splitlines():
    what, goal, made, wanted = (word.strip() for word in row.split(" |"))
    remove(*arches.iterdir())
    if made:
        (arches / made).touch()
    equal(what, make_says("ARCHES", *shlex.split(f"MAKECMDGOALS={goal}"), of=sm / "build"), wanted)
for what, variable in (("an older architecture is refused", "SM=70"), ("an older GPU is named", "CUDA_TOO_SMALL=7.0")):
    told = make_says("ARCHES", variable, of=sm / "build")
    check(what, "the kernels need compute capability 7.5" in told, told)
end()
