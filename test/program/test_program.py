#!/usr/bin/env python3
"""The program as a user runs it: flags, files, one and several ranks. Ends with counts. Refusals: test_refusals.py.

test/program/test_program.py ./train_llama
"""

import os
import re
import shutil
import subprocess

from checks import Table, arguments, check, end, equal, expect, has_mpi, load, rows, run, skip, text_data, work

program = arguments[0]
DATA = f"--data {text_data('400K')} --device cpu --seq-len 32"
SHAPE = "--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8"
train = Table(program, f"{DATA} {SHAPE} --batch 2 --val-tokens 512")
on = Table(program, f"{DATA} --batch 2 --val-tokens 512")

if subprocess.run("nvidia-smi -L", shell=True, capture_output=True).returncode:
    expect("no GPU", run([program], f"--device cuda --data {work}/data"), code=70, says="device cpu or auto")
linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
check("a start opens no cuBLASLt, 200 MB", "cublasLt" not in linked)
groups = ["^Optimizer [(]", "--weight-decay X=0.1", "(?s)^Exit codes:.*^  75\tstopped on request"]
expect("--help", run([program], "--help"), says=groups)
# The number: bytes of m and v, memory that this machine does not have.
planned = ["model.layers.0.self_attn.q_proj.weight", "3247060292051"]
expect("--print-config", run([program], "--preset llama3.1-405b --print-config"), says=planned)

# ---- a run, its files, and generation from them ----
quiet = train.row("quiet 1 --steps 2 --val-every 0 --quiet")
equal("--quiet prints nothing", quiet.text, "")
check("  log.txt has it", "step 2/2" in (work / "quiet/log.txt").read_text())
train("""
    run     1 --steps 6 --val-every 3 --lr 1e-2 --sample-every 1 --sample-tokens 8 | says step 6/6 \\| loss | says bits per byte | says --- sample
    bf16    1 --steps 2 --dtype bf16 --recompute block --batch-tokens 256
""")
equal("metrics: a line for each step", [row["step"] for row in rows("run")], [1, 2, 3, 4, 5, 6])
validations = rows("run", "val_loss")
equal("  and validation", [row["step"] for row in validations], [0, 3, 6])
check("  which fall", validations[-1]["val_loss"] < validations[0]["val_loss"])
check("a loss curve", "<svg" in (work / "run/loss.svg").read_text())
check("TensorBoard's events", list((work / "run").glob("events.out.tfevents.*")))
generate = f"generate --from {work}/run/final --prompt 'def ' --max-tokens 12 --seed 3"
texts = [expect("generates", run([program], generate), says="^def ").text for _ in range(2)]
equal("the same seed, the same text", *(re.sub(" [0-9.]+ tokens/s", "", text) for text in texts))
further = on.row(f"on 1 --init-from {work}/run/final --steps 1 --lr 1e-3")
check("trains on with a better loss than at first", rows("on")[0]["loss"] < 4.5, further.text)
(work / "good.toml").write_text("steps = 2\nval-every = 0\n")
train(f"config 1 --config {work}/good.toml | says step 2/2")

# ---- a source of known entropy ----
run(f"python3 data_prep/prepare.py synthetic --tokens 500000 --val-tokens 40000 --out {work}/synthetic")
known = Table(
    program,
    f"--device cpu --data {work}/synthetic --preset bytes --dim 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16",
)
known("entropy 1 --ffn 128 --batch 16 --seq-len 64 --steps 300 --lr 1e-2 --val-every 0 --val-tokens 32768")
loss = rows("entropy", "val_loss")[-1]["val_loss"]
source = load("synthetic/entropy.json")
near = 0.99 * source["val_source_nats_per_token"] < loss < 1.03 * source["entropy_nats_per_token"]
check("reaches a source's entropy within 3 %", near, f"{loss} {source}")
check("  it learned the order, not only the letters", loss < 0.8 * source["unigram_nats_per_token"])


# ---- several ranks ----
def timeline(events):
    """A trace of two ranks: spans of steps, of ops, of messages."""
    spans = [e for e in events if e["ph"] == "X"]
    for rank in 0, 1:
        own = {tid: [e for e in spans if e["pid"] == rank and e["tid"] == tid] for tid in (0, 1, 2)}
        equal(f"the timeline of rank {rank}", [e["name"] for e in own[0]], ["step 3", "step 4"])
        check("  its ops", {"RmsnormForward", "AttentionBackward", "AdamW"} & {e["name"] for e in own[1]}, own[1])
        messages = [e for e in own[2] if e["name"] == "reduce_scatter"]
        check("  its messages", any(e["args"]["bytes_sent"] > 0 for e in messages))
        for tid in 1, 2:  # a stream does one thing at a time
            row = sorted((e["ts"], e["ts"] + e["dur"]) for e in own[tid] if not e["name"].startswith("wait"))
            check(f"  stream {tid}", all(b[0] >= a[1] - 0.01 for a, b in zip(row, row[1:])))


def memory(events, ranks):
    """Never more than the ledger's peak, and every change has a name."""
    for rank in ranks:
        own = [e for e in events if e["pid"] == rank["rank"]]
        counts = [e for e in own if e["ph"] == "C"]
        peak = rank["memory_peak"]["total"]
        check("memory within the peak", counts and all(0 < sum(e["args"].values()) <= peak for e in counts), counts)
        equal("  of the optimizer", counts[-1]["args"]["optimizer"], rank["memory_peak"]["optimizer"])
        names = [e["name"] for e in own if e["ph"] == "i"]
        check("  changes have names", all(n[:2] in ("+ ", "- ") and len(n.split()) > 3 for n in names), names)
    svg = (work / "trace/memory.svg").read_text()
    number, unit = re.search(r"peak memory ([\d.]+) (\w+)", svg).groups()
    said = float(number) * 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)
    check("  drawn", abs(said / ranks[0]["memory_peak"]["total"] - 1) < 0.005, (number, unit))
    check("  with names", svg.count("<title>") > 10 and "gathered" in svg and "of optimizer, from" in svg, svg[:2000])


if has_mpi(program):
    ranks = Table(program, f"{DATA} {SHAPE} --batch 1 --val-every 0 --val-tokens 256 --steps 4")
    ranks("""
        z0      3 --zero 0
        z1      3 --zero 1 | weights of z0
        z2      3 --zero 2 | weights of z0
        z3      3 --zero 3 | weights of z0
        direct  3 --zero 2 --collectives direct
        library 3 --zero 2 --collectives library
        trace   2 --zero 3 --trace-steps 5 | says trace.json
        hybrid  4 --zero 3 --shard-size 2
    """)
    events = load("trace/trace.json")["traceEvents"]
    timeline(events)
    memory(events, load("trace/ranks.json"))
    check("overlap in the metrics", rows("z3", "overlap_efficiency"))
else:
    skip("runs on several ranks: no MPI here")

# ---- what a profiler of NVTX sees ----
names = work / "names.so"
cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
made = (
    shutil.which("gcc")
    and run(["gcc", "-shared", "-fPIC", f"-I{cuda}/include", "-o", names, "test/program/nvtx_names.c"]).code == 0
)
if made and b"NVTX_INJECTION64_PATH" in open(program, "rb").read():
    env = {"NVTX_NAMES": work / "names", "NVTX_INJECTION64_PATH": names}
    flags = f"{DATA} {SHAPE} --batch 1 --batch-tokens 64 --steps 2 --val-every 0 --val-tokens 256 --out {work}/nvtx"
    expect("a run under a profiler", run([program], flags, env=env))
    tasks = [f"1 {way} {batch} of stage 0" for batch in (0, 1) for way in ("forward", "backward")]
    wanted = ["0 step 1", *tasks, "0 step 2", *tasks]
    equal(
        "steps and tasks are ranges under the names of trace.json",
        (work / "names").read_text().splitlines()[:10],
        wanted,
    )
else:
    skip("ranges of NVTX: the program has none, or CUDA's headers are not here")
end()
