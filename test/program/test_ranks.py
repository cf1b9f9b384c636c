#!/usr/bin/env python3
"""train_llama --ranks N and the launchers without MPI: the bits of mpirun's ranks, what happens when one fails, and that nothing is left.
Ends with counts.

test/program/test_ranks.py ./train_llama [--full]      --full: every layout, and every rank killed and stopped
"""

import os
import signal
import subprocess
import time

from checks import Run, Table, arguments, check, end, equal, expect, free_port, gone, has_mpi, no_memory_left
from checks import ranks_of, same_weights, skip, text_data, together, variables, work

program, *full = arguments
TRAIN = f"""--preset bytes --dim 32 --layers 4 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --head untied --device cpu --threads 1
    --batch 1 --seq-len 32 --data {text_data("200K")} --val-every 0 --val-tokens 64 --steps 3 --save-every 0 --timeout 60"""
ranks, mpi = Table(program, TRAIN, launcher="--ranks"), Table(program, TRAIN)


def by_hand(size, out, flags="", **env):
    """With the variables of torchrun's agent."""
    env |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port() - 1}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    command, log = ([program], TRAIN, flags, ["--out", work / out]), work / f"{out}.log"
    return together(*(Run(*command, env={**env, "RANK": r, "LOCAL_RANK": r}, log=log) for r in range(size)))


# ---- the same bits ----
LAYOUTS = ["--zero 3", "--pp 2 --grad-accum 4", "--zero 2 --collectives symmetric"]
LAYOUTS += ["--zero 1 --grad-accum 2", "--tp 2 --zero 2", "--cp 2 --pp 2 --grad-accum 2"] if full else []
for at, layout in enumerate(LAYOUTS):
    ranks(f"ranks{at} 4 {layout}")
    if has_mpi(program):
        mpi(f"mpi{at} 4 {layout} | weights of ranks{at}")
if not has_mpi(program):
    skip("the bits of mpirun: no MPI here")
hand = expect("variables of torchrun, --zero 3", by_hand(4, "hand", "--zero 3"))
same_weights("variables of torchrun", "hand", "ranks0")
equal("  one line says that nobody gave a secret", hand.count("warning: no RINGZERO_TOKEN"), 1)
expect("the same with a token", by_hand(2, "token", RINGZERO_TOKEN="0123456789abcdef"), silent="RINGZERO_TOKEN")
ranks("""
    threads 1 --pp-threads 2 --grad-accum 4 | says 2 ranks
    two     2 --pp 2 --grad-accum 4 | weights of threads
""")
both = by_hand(2, "both", "--ranks 4")
expect("--ranks beside another launcher", both, 2, "in one of 2 processes that torchrun has started")


# ---- a rank that fails ----
def start(out, flags="", fault="step:*:*:sleep=0.05"):
    """In the background, until it has trained some steps."""
    job = Run(ranks.by(4), TRAIN, "--steps 100000 --save-every 100000", flags, ["--out", work / out], fault=fault)
    check(f"{out}: begins", job.until("^step +3/"), job.text)
    return job


for rank in range(4) if full else [2]:
    for sent, flags, code, seconds, says in (
        (signal.SIGKILL, "", 9, 2, f"rank {rank} of 4 was killed by signal 9"),  # mpirun's code
        (
            signal.SIGSTOP,
            "--timeout 3",
            71,
            9,
            f"rank {rank} .*the process is stopped or dead",
        ),  # and the reports' time
    ):
        what = f"{sent.name.lower()}{rank}"
        job = start(what, flags)
        began = time.monotonic()
        os.kill(ranks_of(job)[rank], sent)
        expect(what, job.wait(), code, says)
        check(f"  within {seconds} seconds", time.monotonic() - began < seconds, time.monotonic() - began)
        check("  no process is left", gone(what))
check("no memory is left", no_memory_left())
error = ranks.row("error 4 | fault step:1:2:error | code 70")
equal("  said once, with the rank", error.count("rank 1 of 4: .*an error at step"), 1)

# ---- signals, and the death of the parent ----
job = start("once")
secret = variables(ranks_of(job)[1]).get("RINGZERO_TOKEN", "")
check("a secret of 128 bits", len(secret) == 32, secret)
equal("  in no command line", subprocess.run(["pgrep", "-f", secret], capture_output=True).returncode, 1)
job.signal(signal.SIGINT)
expect("one SIGINT: saved", job.wait(), 75, "stopped  after step [0-9]+: SIGINT on rank")
job = start("twice", fault="step:*:*:sleep=0.05,checkpoint.shard.done:0:*:sleep=5")
job.signal(signal.SIGINT)
time.sleep(1)
job.signal(signal.SIGINT)
expect("two: at once", job.wait(), 130)
check("  no process is left", gone("twice"))
job = start("orphans")
job.signal(signal.SIGKILL)
job.wait()
check("kill -9 of the parent: its ranks end", gone("orphans"))
end()
