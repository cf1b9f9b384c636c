#!/usr/bin/env python3
"""The flight recorder: SIGUSR2 to one rank brings the table and the records of all, and the job goes on; failed runs leave
no temporary folder. --full, part of make test-full: twenty planted hangs, of which PyTorch's torchfrtrace must name the
same rank and number from our records. It comes with torch: build/lm-eval's, $TORCH_PYTHON's, or installed into
build/torch (gigabytes); without a network that part is skipped. Ends with counts.

test/program/test_recorder.py ./train_llama
test/program/test_recorder.py --full build/cuda/unit_tests
"""

import os
import pickle
import re
import signal

import checks
from checks import Run, arguments, check, end, equal, expect, installed, ranks_of, remove, run, until, work

*full, program = arguments
TMP = work / "tmp"
TMP.mkdir()
os.environ["TMPDIR"] = str(TMP)
TRACE = "torch.distributed.flight_recorder.fr_trace"
TRAIN = "--device cpu --preset tiny --data synthetic --seq-len 32 --batch 1 --val-every 0 --dim 32 --layers 2 --ffn 48 --zero 3"


if full:
    env = {"RZ_HANGS": "all", "RZ_HANG_DUMPS": work / "hangs"}
    hangs = run([program], "--gtest_brief=1 --gtest_filter=PlantedHangs.*", env=env, limit=120)
    expect("the verdict names rank, group, operation and unit of twenty planted hangs", hangs)
    venvs = [p for p in ("build/lm-eval/bin/python", "build/torch/bin/python") if os.path.exists(p)]
    python = installed(
        "torch", "TORCH_PYTHON", [*venvs, "build/torch/bin/python"][0], ["-c", f"import {TRACE}"], "torch", "numpy"
    )
    for folder in (work / "hangs").iterdir() if python else []:
        # The first operation that it complains of. A stopped rank: the one that the verdict names.
        said = run([python, "-m", TRACE, folder / "flight"]).text
        number = re.search(r"verdict: .*?#(\d+)", (folder / "failure.txt").read_text())[1]
        found = re.findall(r"equence number: \d+|Culprit rank \d+|missing ranks: .*", said)[:2]
        wanted = [[f"equence number: {number}", rank] for rank in ("Culprit rank 1", "missing ranks: {1}")]
        check(f"torchfrtrace, {folder.name}: the same rank and number", found in wanted, f"{found}\n{wanted}")
    end()

job = Run([program], TRAIN, "--ranks 3 --steps 100000")
job.until("^step +3/")
os.kill(ranks_of(job)[1], signal.SIGUSR2)
check("SIGUSR2 to one rank: the table", job.until("records for torchfrtrace stand in", 15), job.text)
steps = job.count("^step")
check("the job goes on", until(lambda: job.count("^step") > steps + 2, 5), job.text)
equal("one rank has spoken", job.count("has SIGUSR2, the job goes on; all ranks:"), 1)
equal("  of all", job.count(r"^  rank [0-2] \(.*\): step [0-9]+, issued"), 3)
job.signal(signal.SIGTERM)
expect("it ends as asked", job.wait(), code=75)
files = sorted(TMP.glob("ringzero-*/flight/*"))
equal("its records", [file.name for file in files], ["rank_0", "rank_1", "rank_2"])
for file in files:
    dump = pickle.loads(file.read_bytes())
    groups = [(group["ranks"], group["desc"]) for group in dump["pg_config"].values()]
    check("  the group of all", dump["version"] and ("[0, 1, 2]", "data") in groups, groups)
    data = [entry for entry in dump["entries"] if entry["process_group"][1] == "data"]
    numbers = [entry["collective_seq_id"] for entry in data]
    check("  without a gap", len(numbers) > 20 and numbers == [*range(numbers[0], numbers[-1] + 1)], numbers)
    check("  what for", "unit 1, micro-batch 0, stage 0" in str([entry["frames"] for entry in data]), data[0])
    times = ["time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"]
    times = [[entry[key] for key in times] for entry in data if entry["state"] == "completed"]
    check("  times in order", times and all(of == sorted(of) for of in times), times)

remove(*TMP.glob("ringzero-??????"))
expect("refused", run([program], TRAIN, "--ranks 2 --tp 3", limit=60), code=checks.dies)
failed = run([program], TRAIN, "--ranks 2 --steps 5", fault="step:1:2:error", limit=60)
expect("an error is printed", failed, checks.dies, "fault: an error at step")
equal("refused and failed runs leave no temporary folder", [*TMP.glob("ringzero-??????")], [])
end()
