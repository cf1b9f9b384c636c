#!/usr/bin/env python3
"""Faults of GPUs, on the emulator with its model of NCCL: a fault of a device, a call of NCCL that never returns, a job that is stopped
for longer than the deadline, a disk that is slower than it. And ranks without MPI, each on a GPU of its own. Ends with counts.

    test/program/test_nccl.py ./train_llama_simt
"""

import os
import signal
import subprocess
import time

from checks import Run, Table, arguments, check, cut, edit, end, equal, expect, has_mpi, load, no_memory_left, ranks_of
from checks import run, same_rows, same_weights, skip, text_data, until, work

SIMT = arguments[0]
if not has_mpi(SIMT):
    skip("no MPI here")
    end()
TOY = f"""--data {text_data("100K")} --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --ffn 16 --head-dim 8 --batch 1
    --seq-len 16 --val-every 0 --val-tokens 16 --save-every 0 --warmup 1 --dtype fp32"""
simt = Table(SIMT, f"{TOY} --device cuda")
# Two stages of two data ranks: two lanes, three groups. With one thread block for each of them, which is what the program asks for
# on the emulated GPU's four multiprocessors, those that wait leave room for the others; the bits are those of a run with enough.
STAGED = "--layers 4 --head untied --pp 2 --zero 3 --grad-accum 4 --steps 2 --transport nccl --timeout 20"
NCCL = "--kv-heads 2 --zero 3 --steps 2 --transport nccl --timeout 20"
TWO = "--zero 3 --steps 4 --timeout 20"
ORDER = "says NCCL [0-9.]+, NCCL_LAUNCH_ORDER_IMPLICIT"
STUCK = "in ncclGroupEnd of group [a-z]+, which has not returned"

# A fault stays on a device: every later call returns it. Early, in the middle of a step, and where a report waits.
ILLEGAL = "code 70 | says {}cudaErrorIllegalAddress | silent terminate called"
for at in 1, 60, 150:
    simt(f"alone 1 --steps 4 | with SIMT_FAULT={at} | {ILLEGAL.format('')}")
for transport in "nccl", "mpi":
    fault = "with SIMT_FAULT=150 | with SIMT_FAULT_RANK=1"
    simt(f"faulty 2 {TWO} --transport {transport} | {fault} | {ILLEGAL.format('rank 1 of 2: .*')}")
simt(f"""
    hang      2 --steps 4 --timeout 3 --transport nccl | with SIMT_NCCL_HANG=1 | code 71 | says {STUCK} | says NCCL_P2P_DISABLE=1
    enough    4 {STAGED} | {ORDER}=1 | silent share a queue
    one_queue 4 {STAGED} | with NCCL_LAUNCH_ORDER_IMPLICIT=0 | with CUDA_DEVICE_MAX_CONNECTIONS=1 | {ORDER}=0 | says CUDA_DEVICE_MAX_CONNECTIONS is 1, and [0-9]+ streams are used
    withheld  4 {STAGED} | with SIMT_NCCL_BLOCKS=5 | weights of enough
    too_few   4 {STAGED} --timeout 3 | with SIMT_NCCL_BLOCKS=1 | code 71
    tp        4 --tp 2 {NCCL}
    tp_few    4 --tp 2 {NCCL} | with SIMT_NCCL_BLOCKS=3 | weights of tp
    cp        4 --cp 2 {NCCL}
    cp_few    4 --cp 2 {NCCL} | with SIMT_NCCL_BLOCKS=3 | weights of cp
""")


# NCCL's memory is taken when the groups are made, and the plan counts it: the model of NCCL counts first messages and the memory that
# they take, and a pair that met in a step alone would add to it.
def told(name, key):
    lines = [line.split() for line in (work / name).read_text().splitlines()]
    return [int(words[1]) for words in lines if words[0] == key]


(work / "emulated.toml").write_text(open("llama/configs/machines/h100-80g.toml").read())
edit("emulated.toml", "(?m)^multiprocessors = .*", "multiprocessors = 4")
GROUPS = """
    3
    3 --collectives ring
    3 --collectives direct
    4 --ranks-per-node 2
    4 --ranks-per-node 2 --optimizer muon
    3 --collectives symmetric
    4 --tp 2
    4 --cp 2
    4 --pp 2
    3 --pp 3 --pp-schedule 1f1b
    2 --pp 2 --pp-schedule dualpipe
    3 --tp 3 --dim 24 --heads 3 --kv-heads 3 --ffn 24 --collectives tp=ring --optimizer muon
"""
for line in GROUPS.split("\n")[1:-1]:
    number, _, flags = line.strip().partition(" ")
    (work / "calls").write_text("")
    flags = f"{STAGED} --pp 1 --kv-heads 2 {flags}"
    simt(f"connected {number} {flags} | with SIMT_NCCL_CALLS={work}/calls")
    machine = f"plan --gpus {number} --gpu {work}/emulated.toml --device cuda --json {work}/plan.json"
    run([SIMT], machine, TOY, flags)
    planned = load("plan.json")["nccl"]["bytes"] * int(number)
    taken = sum(told("calls", "connected-mib")) << 20
    check(f"connected before the first step, as planned: {line}", planned == taken > 0, (planned, taken))
simt(f"""
    auto      2 --batch auto --steps 1 --transport nccl | with SIMT_NCCL_CALLS={work}/auto_calls | with SIMT_MEMORY={960 << 20} | says planned of 57[0-9][.0-9]* MiB free
""")
equal("the run uses the groups that were measured", sum(told("auto_calls", "connected-mib")), 2 * 384)

# --comm-sms: of the emulated GPU's four multiprocessors attention and RMSNorm take those that are left, and NCCL asks for no more
# than the others. Grids are counted, all launches of all ranks but for one of a block each: attention's, compared with the CPU's at
# the start.
WIDE = "--heads 2 --kv-heads 2 --head-dim 64 --batch 4 --seq-len 64 --val-tokens 256 --dtype bf16 --steps 1 --zero 3"
simt(f"""
    beside    2 {WIDE} --transport nccl --comm-sms 2 | with SIMT_COVERAGE={work}/grids | with SIMT_NCCL_BLOCKS=2
    more      2 --steps 2 --zero 3 --transport nccl | with SIMT_NCCL_BLOCKS=2 | fails | says an operation of 32 thread blocks, there are 2 for NCCL
    refused   4 {STAGED} --comm-sms 3 | fails | says nearest: --comm-sms 5
    refused   1 --steps 2 --comm-sms 4 | fails | says the GPU has 4 multiprocessors
    refused   1 --steps 2 --device cpu --comm-sms 2 | fails | says this run is on the CPU
""")


def grid(kernel, start):
    """Blocks of a kernel's launches, in the mean."""
    lines = [line.split("\t") for line in (work / "grids").read_text().splitlines()]
    of = [(int(w[3]) - start, int(w[4]) - start) for w in lines if w[0] == "kernel" and kernel in w[2]]
    return sum(blocks for _, blocks in of) / max(1, sum(n for n, _ in of))


for kernel in "attention_forward_wgmma", "attention_backward_kv_wgmma", "attention_backward_q_wgmma":
    equal(f"{kernel}_kernel takes two of four multiprocessors", grid(f"{kernel}_kernel", 1), 2)
equal("rmsnorm_backward_kernel too, four blocks on each", grid("rmsnorm_backward_kernel", 0), 8)

# Collectives in each other's memory have the bits of messages in rank order: windows of NCCL, pinned memory of the host where GPUs do
# not reach each other, and over MPI. Three ranks: with two every order has the same bits. With `library` a block is cut into equal
# slices. On one node of GPUs the default chooses by bytes; here that is direct. A checkpoint names the choice: a run of the former
# default keeps its ring, also where nothing is named.
THREE = "--steps 3 --zero 2 --grad-accum 2 --timeout 20"
SYMMETRIC = f"3 {THREE} --collectives symmetric"
PINNED = "through pinned memory of the host"
EQUAL = "--dim 128 --heads 8 --kv-heads 4 --head-dim 16 --ffn 254 --steps 1 --zero 1 --collectives library"
NODES = f"4 {THREE} --ranks-per-node 2"
simt(f"""
    direct    3 {THREE} --collectives direct
    windows   {SYMMETRIC} | with SIMT_P2P=1 | weights of direct | says symmetric collectives over nccl, by memory that all GPUs map
    no_p2p    {SYMMETRIC} | with SIMT_P2P=0 | weights of direct | says over nccl, {PINNED}: GPU [0-9] does not reach GPUs
    mpi       {SYMMETRIC} --transport mpi | with SIMT_P2P=1 | weights of direct | says over mpi, {PINNED}: messages go over MPI
    library   2 {EQUAL} | with SIMT_NCCL_CALLS={work}/registered | says library collectives over nccl, summed in NCCL's order, buffers registered with it
    levels    {NODES} --transport mpi
    hier      {NODES} --check-wire 1 | with SIMT_NCCL_BLOCKS=2 | with SIMT_NCCL_CALLS={work}/hier.calls | weights of levels
    hiersym   {NODES} --collectives hier-symmetric | weights of hier | says hier-symmetric collectives over nccl, by memory that all GPUs map
    default   3 {THREE} --save-every 2 --keep 0 | weights of direct | says hier collectives over nccl
    ring      3 {THREE} --save-every 2 --keep 0 --collectives ring | other than default
    ring_on   3 {THREE} --resume auto | from ring to 2 | weights of ring
    def_on    3 {THREE} --resume auto | from default to 2 | weights of default
""")
cut("ring", "unnamed", 2)
for manifest in (work / "unnamed").glob("checkpoints/*/manifest.json"):
    for pattern, text in (
        ('(?m)^.*"checksum".*\n', ""),
        ('"version": 2', '"version": 1'),
        ('"collectives": *"ring",? *', ""),
    ):
        edit(manifest, pattern, text)
simt(
    f"unnamed_on 3 {THREE} --resume auto | from unnamed | weights of ring | says --collectives ring stays, the former default"
)
check("no memory of the host is left behind", no_memory_left())
for call in "ncclAllGather", "ncclReduceScatter":
    check(f"{call} takes place in registered buffers", sum(told("registered", f"{call}-registered")) > 0)
channels = [line for line in (work / "hier.calls").read_text().splitlines() if line.startswith("nChannelsPerNetPeer")]
equal("the columns alone ask for four channels over the network", channels, ["nChannelsPerNetPeer-4 1"] * 4)

# A bit that changes on the way: the sums are a kernel's, before and after NCCL. Ranks that the program starts itself, each on a GPU of
# its own: the bits of mpirun's. NCCL's identifier goes over TCP. Rank 0 takes longer with its files than a rank may wait for another.
LAB = "--layers 4 --head untied --grad-accum 4 --steps 2 --timeout 20"
WIRE = "--zero 2 --transport nccl --check-wire 1"
DISK = "--device cpu --save-every 2 --no-background-save --steps 4 --timeout 2"
SHARE = "start 2 ranks per host, or share the GPU on purpose [(]slow[)] with .*transport tcp"
simt(f"""
    wire      2 --steps 2 {WIRE}
    flipped   2 --steps 4 {WIRE} | fault wire:1:7:flip | code 73 | says from rank 0 to rank 1 in [a-z_]+ #[0-9]+ of group
    mpi2      2 {LAB} --pp 2 --transport nccl
    own2      1 {LAB} --pp-threads 2 | with SIMT_DEVICES=2 | weights of mpi2
    mpi4      4 {LAB} --pp 2 --tp 2 --transport nccl
    own4      1 {LAB} --pp-threads 2 --tp 2 | with SIMT_DEVICES=4 | weights of mpi4
    staged    2 {LAB} --zero 2 --transport mpi
    shared    1 {LAB} --zero 2 --transport tcp --ranks 2 | weights of staged
    three     1 {LAB} --ranks 3 | with SIMT_DEVICES=2 | fails | says 3 ranks on host .*, but 2 GPUs are visible | says {SHARE}
    broken    1 {LAB} --ranks 2 | with SIMT_DEVICES=2 | fault step:1:2:error | code 70
    fault     1 {LAB} --ranks 2 | with SIMT_DEVICES=2 | with SIMT_FAULT=150 | with SIMT_FAULT_RANK=1 | code 70
    hung      1 {LAB} --timeout 3 --ranks 2 | with SIMT_DEVICES=2 | with SIMT_NCCL_HANG=1 | code 71
    slow      2 {DISK} | fault checkpoint.made:0:1:sleep=5
    stuck     2 {DISK} --disk-timeout 4 | fault checkpoint.made:0:1:sleep=60 | code 71
""")


def survive(name, number, victim, flags):
    """A rank dies, or stops: the others abort their communicators and keep their process. The bits of the run that nothing happens to."""
    flags = f"--device cuda --zero 3 --steps 16 --timeout 20 --ranks 4 --max-restarts 5 --snapshot-every 3 {flags}"
    env = {"SIMT_DEVICES": 4}
    run([SIMT], TOY, flags, "--out", work / f"undisturbed_{name}", env=env)
    job = Run([SIMT], TOY, flags, "--out", work / name, fault="step:*:9:sleep=2", env=env, limit=120)
    if not job.until("^step +8/") or not until(lambda: len(ranks_of(job)) == 4):
        check(f"{name}: four ranks at step 8", False, f"exit code {job.wait().code}\n{job.text}")
        return job
    before = ranks_of(job)
    os.kill(before[victim], number)
    job.until("^resumed")
    after = ranks_of(job)
    expect(name, job.wait(), says="^resumed  the snapshot ")
    kept = sorted(rank for rank, pid in after.items() if before[rank] == pid)
    if name != "lost_window":  # queued copies find none any more: a fault, which a process keeps
        equal(f"{name}: the others keep their process", kept, [rank for rank in range(4) if rank != victim])
    same_weights(name, name, f"undisturbed_{name}")
    same_rows(name, name, f"undisturbed_{name}")
    return job


survive("kill_0", signal.SIGKILL, 0, "--cuda-graphs on")
survive("kill_2", signal.SIGKILL, 2, "--collectives library")
survive("stop_3", signal.SIGSTOP, 3, "")
windows = survive("lost_window", signal.SIGKILL, 1, "--collectives symmetric")
check("all at once", not windows.says("restart 2 of"), windows.text)

# The whole job is stopped for longer than the deadline, and continues.
out = work / "paused"
flags = f"--device cuda --steps 30 --timeout 6 --transport nccl --out {out}"
paused = Run("mpirun -n 2", [SIMT], TOY, flags, fault="step:*:*:sleep=0.2", limit=300)
paused.until("^step ")
for name in "STOP", "CONT":
    subprocess.run(["pkill", f"-{name}", "-f", f"out {out}"])
    time.sleep(9 if name == "STOP" else 0)
expect("stopped for longer than the deadline, over NCCL", paused.wait(), says="step 30/30")
end()
