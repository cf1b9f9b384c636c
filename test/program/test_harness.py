#!/usr/bin/env python3
"""The benchmark harness: pairs run, their results compared, wrong requests refused. No time is asserted. Ends with counts.

test/program/test_harness.py HARNESS      HARNESS: build/dev/harness, beside the program of the same build
"""

import os
import pathlib
import re

from checks import arguments, check, commands, end, equal, load, rows, skip, work

harness = pathlib.Path(arguments[0])
SMALL = """--base '--preset bytes --dim 16 --layers 4 --heads 2 --kv-heads 1 --head-dim 8 --ffn 24 --data synthetic --seq-len 16 --batch 2
    --batch-tokens 128'""".replace("\n", "")


def ask(text):
    """What is asked of the harness, a line: its name, exit code, flags, what it says."""
    commands(text.replace("SMALL", SMALL), [harness], limit=200)


def there(*tools):
    return all(os.access(harness.parent / tool, os.X_OK) for tool in tools)


ask(f"""
    targets are listed | 0 | list-targets | ddp:overlap | zero:hybrid | pipeline:dualpipev | tensor:tp_overlap | context:ring | precision:fp8_block | kernels:gemm
    of one group only | 0 | list-targets --group fsdp | fsdp:bf16 | (?s)\\A(?!.*zero:zero1)
    a group that is none | 2 | list-targets --group zeros
    a target that is none: the nearest is named | 2 | run --targets zero:zero4 | nearest: zero:zero
    an extra argument without a name | 105 | run --targets zero --target-extra-arg '--zero 3'
    pairs run with their baselines | 0 | run --targets recompute:block,zero:zero3,pipeline:1f1b SMALL --steps 5 --repeats 2 --summary --out {work}/a --target-extra-arg zero3='--prefetch 2' | eta  | recompute:none | pipeline:gpipe | against | tokens/s | stages busy | queue
""")
zero3 = work / "a/zero/zero3/2-ranks/repeat-2"
for name in "command log run/metrics.jsonl run/ranks.json run/trace.json run/memory.svg".split():
    check(f"each run leaves {name}", (zero3 / name).exists() and (zero3 / name).stat().st_size > 0)
command = (zero3 / "command").read_text()
check("  extra arguments reach their target", "--zero 3 --prefetch 2 --out" in command, command)

# ---- results.json is what the runs wrote, and what the machine reaches ----
report = load("a/results.json")
found = {result["target"]: result for result in report["results"]}
targets = ["recompute:none", "recompute:block", "zero:zero0", "zero:zero3", "pipeline:gpipe", "pipeline:1f1b"]
equal("results of each target", sorted(found), sorted(targets))
for target, result in found.items():
    equal(f"{target}: repeats", len(result["repeats"]), 2)
    for one in result["repeats"]:
        run = f"a/{one['folder']}/run"
        seconds = [row["seconds"] for row in rows(run) if row["step"] > 3]
        check("  seconds of two steps", one["seconds"] == seconds and len(seconds) == 2, (one["seconds"], seconds))
        peaks = [rank["memory_peak"]["total"] for rank in load(run, "ranks.json")]
        check("  memory of each rank", one["used"] == peaks and len(peaks) == result["ranks"], (one["used"], peaks))
        reserved = list(zip(one["reserved"], one["used"]))
        check("  within what is reserved", reserved and all(a > b > 0 for a, b in reserved), reserved)
known = {"commit", "version", "compiler", "cpu", "clock", "mpi", "gemm", "command", "date", "host", "load at the start"}
known |= {"measured copy", "measured GEMM fp32", "measured GEMM bf16", *(["measured links"] if there("sanity") else [])}
equal("what is known of the machine and not said", known - set(report["environment"]), set())
block, none = (found[f"recompute:{kind}"]["repeats"][0]["used"][0] for kind in ("block", "none"))
check("recomputing takes less memory", block < none, (block, none))
pipeline = found["pipeline:1f1b"]["repeats"][0]["numbers"]
check("a pipeline's queue, and how busy it is", pipeline["queue"] >= 0 and 0 < pipeline["utilisation"] <= 1, pipeline)
page = (work / "a/report.html").read_text()
links = {*re.findall(r"(?:https?:)?//[^\s\"'<>)]+", page)} - {"http://www.w3.org/2000/svg"}
equal("the page needs nothing from a network", links, set())
check("  a picture for each group", page.count("<svg") == 3 and "zero:zero3" in page)

# A launcher of one's own: its arguments arrive as they were given, between the number of ranks and the program.
start, started = work / "start", work / "started"
note = """printf '%s|' "$1" "$2" "$3" "$4" "${5##*/}" >> FILE; echo >> FILE""".replace("FILE", str(started))
answer = '[ "$1" = --version ] && exec mpirun --version'
start.write_text(f'#!/bin/sh\n{answer}\n{note}\nranks=$2; shift 4; exec mpirun -n "$ranks" "$@"\n')
start.chmod(0o755)
ask(f"""
    --profile roofline | 0 | run --targets recompute:none --profile roofline SMALL --repeats 1 --out {work}/r
    one more report | 0 | run --targets zero:zero3 SMALL --steps 5 --repeats 1 --out {work}/b
    two reports are compared, with what differs | 0 | compare {work}/a {work}/b --html {work}/c.html | zero:zero3 | B / A | command of zero:zero3 | --prefetch 2
    the table | 0 | table {work}/a | \\| method \\| ranks \\| tokens/s \\| | \\| zero:zero3 \\| 2 \\|
    other numbers of ranks | 0 | run --targets zero:zero1 SMALL --steps 4 --repeats 1 --ranks 1,2 --out {work}/s
      in the table | 0 | table {work}/s | \\| zero:zero1 \\| 1 \\| | \\| zero:zero1 \\| 2 \\|
    a launcher's arguments | 0 | run --targets zero:zero0 SMALL --steps 4 --repeats 1 --out {work}/l --launcher {start} --launcher-arg=--label --launcher-arg 'two words; false'
    a run that fails is said to, and the others are run | 1 | run --targets zero:zero3 SMALL --steps 4 --repeats 1 --target-extra-arg zero3='--stepz 3' --out {work}/f | FAILED: exit code 2 | zero:zero0
    a link without a rate | 2 | run --targets zero:zero3 --link fast --out {work}/n | nearest: --link 200mbit
    a link, and a launcher of one's own | 2 | run --targets zero:zero3 --link 200mbit --launcher mpiexec --out {work}/n
""")
roofline = "r/recompute/none/1-ranks/repeat-1/run"
spans = [e["name"] for e in load(roofline, "trace.json")["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
equal("--profile roofline: two steps are traced", spans, ["step 3", "step 4"])
equal("  of twelve", len(rows(roofline)), 12)
check("a comparison is a page", "A is the earlier report" in (work / "c.html").read_text())
lines = started.read_text().splitlines()
given = "-n|2|--label|two words; false|"
check("a launcher's arguments as they were given, of runs", f"{given}train_llama|" in lines, lines)
check("  and of the links' measurement", all(given in line for line in lines), lines)
command = (work / "l/zero/zero0/2-ranks/repeat-1/command").read_text()
check("  the command can be given to a shell", f"{start} -n 2 --label 'two words; false' " in command, command)


def sleeping(what, target, flags=""):
    """Known times in place of compute. Ratios are predicted, and said beside what is measured; which, no test asserts."""
    run = f"run --compute sleep --targets {target} --steps 2 --repeats 1 --summary --out {work}/z {flags}"
    ask(f"{what} | 0 | {run} | sleep-{target} | predicted")
    report = load("z/results.json")
    check("  said", report["environment"]["compute"].startswith("sleep"), report["environment"])
    found = {result["target"]: result["repeats"][0] for result in report["results"]}
    check("  with its baseline", len(found) == 2 and f"sleep-{target}" in found, found)
    for name, one in found.items():
        check("  with predictions", name.startswith("sleep-") and one["numbers"]["predicted"] > 0, one)
        equal("  two steps", len(one["seconds"]), 2)


if there("plan_clock", "bench_pipeline"):
    sleeping("passes that sleep: a pipeline", "pipeline:1f1b")
    sleeping("passes that sleep: ZeRO", "zero:zero3")
    if os.getuid() == 0:
        sleeping("the same behind shaped links", "zero:zero3", "--link 200mbit")
        check("  the page says both", "200mbit, each host's" in (work / "z/report.html").read_text())
else:
    skip("tools that sleep are not built")
if there("bench_rope"):
    rope = f"run --targets kernels:rope --target-extra-arg rope='--shape 1x64x4x2x32' --repeats 1 --out {work}/k"
    ask(f"a microbenchmark's rows are results | 0 | {rope} | kernels:rope/rope | of peak")
else:
    skip("microbenchmarks are not built")
end()
