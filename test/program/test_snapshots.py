#!/usr/bin/env python3
"""--max-restarts and --snapshot-every: ranks that are killed or stopped, what is resumed from and why, and that nothing is left in memory.
Ends with counts.

test/program/test_snapshots.py ./train_llama [--full]
"""

import os
import pathlib
import re
import signal
import subprocess
import time

from checks import (
    MACHINE,
    Run,
    Table,
    arguments,
    as_undisturbed,
    check,
    dies,
    end,
    equal,
    expect,
    flip_bit,
    has_mpi,
    in_memory,
)
from checks import load, ranks_of, run, skip, text_data, work

program, *full = arguments
TRAIN = f"""--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --threads 1 --batch 1 --seq-len 32
    --data {text_data("200K")} --val-every 8 --val-tokens 64 --steps 24 --save-every 10 --timeout 60 --zero 3"""
RANKS = f"{program} --max-restarts 5 --ranks 4"
HOSTS = "test/faults/hosts.py"  # a copy of each host's slices is on the next
plain = Table(program, TRAIN, launcher="--ranks", limit=120)


def train(out, start, flags, **more):
    return run(start, TRAIN, flags, ["--out", work / out], limit=120, **more)


def disturbed(text, like="undisturbed", most=3):
    """A run a line: `name | FAULT | what starts it | its flags | what it says...`; it must end as the undisturbed one."""
    for line in text.strip().splitlines():
        what, fault, start, flags, *says = line.strip().split(" | ")
        out = re.sub(r"\W+", "-", what)
        job = expect(what, train(out, start, flags, fault=fault), says=says)
        as_undisturbed(what, job, out, like, most)


def memory_of(job):
    """The folder of snapshots that a launcher holds open."""
    links = [os.path.realpath(link) for link in pathlib.Path(f"/proc/{job.pid}/fd").iterdir()]
    return next((pathlib.Path(link) for link in links if link.startswith("/dev/shm/ringzero-restart-")), None)


def background(out, flags="", step=9, **more):
    job = Run(RANKS, TRAIN, "--snapshot-every 3", flags, ["--out", work / out], limit=120, **more)
    check(f"{out}: begins", job.until(f"^step +{step}/"), job.text)
    return job, memory_of(job)


def in_place(out, sent, *victims):
    """Ranks get a signal in the middle: they alone start again."""
    job, memory = background(out, "--timeout 4", step=8, fault="step:*:9:sleep=2")
    before = ranks_of(job)
    for rank in victims:
        os.kill(before[rank], sent)
    check(f"{out}: resumes", job.until("^resumed"), job.text)
    after = ranks_of(job)
    expect(out, job.wait(), says="all ranks have been stopped for 4[.0-9]* s" if len(victims) == 4 else ())
    kept = [rank for rank in before if before[rank] == after.get(rank)]
    check("  the others keep their process", len(after) == 4 and len(kept) == 4 - len(victims), (before, after))
    as_undisturbed(out, job, out)
    check("  nor is its folder", memory and not memory.exists(), memory)


SNAPSHOT = "^resumed  the snapshot .*/dev/shm/ringzero-restart-.*step_0000000"
LATE = f"{SNAPSHOT}(09|12): "
plain("undisturbed 4")
again = r"ended with 9; ranks that start again: 1 of 4 \(restart 2 of at most 5\)"
disturbed(rf"""
    kill -9 of a rank, again and again | step:2:11:kill | {RANKS} | --snapshot-every 3 | (?s){SNAPSHOT}.*\n{SNAPSHOT[1:]} | {again}
    a host is lost, and a spare one gets its slices | step:2:12:kill | {HOSTS} --lose one 0,1/2/3 {program} | --snapshot-every 3 | the slices of 1 of 4 ranks came from the host that had a copy | {LATE}
""")
in_place("place0", signal.SIGKILL, 0)
in_place("place3", signal.SIGKILL, 3)

# ---- a start that is over ----
flags = "--ranks 2 --max-restarts 5"
plain.row("before 1 --ranks 2 --max-restarts 5 | fault start:1:1:error | code 70 | silent start again")
job, folder = background("term", f"--steps 100000 {flags}")
equal("a folder of its user alone", oct(folder.stat().st_mode & 0o777), oct(0o700))
check("  with one snapshot at most beside the one being made", len([*folder.glob("checkpoints/step_*")]) <= 2)
job.signal(signal.SIGTERM)
expect("a job that is asked to stop does not start again", job.wait(), 75, silent="start again")
check("  nothing is left in memory", not folder.exists())

# ---- damage: the launcher is stopped while a byte of the snapshot changes ----
job, folder = background("damaged", "--snapshot-every 5", step=4, fault="step:*:5:sleep=2,step:1:18:kill")
job.signal(signal.SIGSTOP)
snapshot = folder / "checkpoints/step_000000015"
job.until(lambda: (snapshot / "manifest.json").exists() and job.says("^step +16/"))
time.sleep(0.5)
flip_bit(snapshot / "optimizer/m.safetensors", 30000)
job.signal(signal.SIGCONT)
named = "snapshot refused: .*step_000000015/optimizer/m.safetensors: tensor .* its contents were changed"
expect("a damaged snapshot is named", job.wait(), says=[named, "going back to the checkpoint of step 10"])
as_undisturbed("damaged", job, "damaged", most=7)
check("  nor is its folder", not folder.exists())

# ---- what a killed launcher leaves goes with the next start ----
job, left = background("orphan", f"--steps 100000 {flags}")
job.signal(signal.SIGKILL)
check("what a killed launcher leaves", left.exists())  # at once: other suites start launchers too
job.wait()
others = pathlib.Path(f"/dev/shm/ringzero-restart-open{os.getpid()}")
others.mkdir(0o755)
plain("next 1 --steps 2 --ranks 2 --max-restarts 5 --snapshot-every 1")
check("  goes with the next start", not left.exists())
left.mkdir(0o700)
expect("  or with a job on a host's keep.sh", run("dev/run/keep.sh -- true"), 0)
check("  which removes it", not left.exists())
check("  but for what others could have made", others.exists())
others.rmdir()

# ---- memory: what is planned, and what the ledger of that run counted ----
machine, hosts = work / "machine.toml", work / "hosts.toml"
machine.write_text(f'kind = "cpu"\n{MACHINE}')
hosts.write_text(f"{machine.read_text()}ranks-per-node = 1\n")
every = "--steps 2 --snapshot-every 1"
expect("on two hosts", train("two", f"{HOSTS} 0/1 {program}", every))


def planned(name, gpu, flags):
    made = train("next", f"{program} plan --gpus 2 --gpu {gpu} --json {work}/{name}.json", flags)
    expect(f"a plan {name}", made)
    return load(f"{name}.json")["planned_ranks"]


plans = planned("with", machine, every), planned("without", machine, "--steps 2")
for real, rank, less in zip(load("next/ranks.json"), *plans):
    # fp32: parameter and two moments, three times, each array rounded up to 256 bytes
    held = rank["bytes_of_snapshots"]
    owned = less["memory_peak"]["gradients"] / 4
    workspace = [of["memory_peak"]["workspace"] for of in (real, rank, less)]
    equal("the memory of snapshots: plan and ledger", workspace, [workspace[1]] * 2 + [workspace[1] - held])
    equal("  none without snapshots", less["bytes_of_snapshots"], 0)
    check("  what is held", 0 <= held - 36 * owned < 9 * 256, (held, 36 * owned))
on_hosts = planned("hosts", hosts, every)
ledger = [sum(rank["memory_peak"]["workspace"] for rank in ranks) for ranks in (load("two/ranks.json"), on_hosts)]
equal("  and on two hosts, where a rank keeps what the other has", *ledger)
held, less = (sum(rank["bytes_of_snapshots"] for rank in ranks) for ranks in (on_hosts, plans[0]))
equal("  a copy and twice two; on its way a small share twice", 3 * held, 7 * less)

no = train("no", program, "--snapshot-every 3", env={"RINGZERO_RESTART": "/dev/shm"})
reason = "RINGZERO_RESTART=/dev/shm in the environment: it is no folder of this user alone"
expect("a folder that is not its user's alone", no, dies, reason)
check("none of them made a folder", not (work / "no").exists())
if not full:
    end()

# ---- minutes ----
snapshots = "--snapshot-every 3"
disturbed(rf"""
    a rank that stops | step:1:11:stop | {RANKS} | --timeout 3 {snapshots} | {SNAPSHOT}
    an error of a rank | step:1:11:error | {RANKS} | {snapshots} | {SNAPSHOT}
    without snapshots, from checkpoints | step:2:13:kill | {RANKS} | --no-background-save | ^resumed  {work}/.*/checkpoints/step_000000010
    rank 0's host is lost, and the others change places | step:0:12:kill | {HOSTS} --lose one --rotate 0,1/2/3 {program} | {snapshots} | the slices of 1 of 4 ranks came | {SNAPSHOT}
    two neighbours are lost at once | step:2:14:kill | {HOSTS} --lose two 0,1/2/3 {program} | --no-background-save {snapshots} | of the snapshot of step 12 no host that is left has the slices of rank 2 | going back to the checkpoint of step 10
    a bit changes on the way to another host | snapshot.arrived:3:2:eio | {HOSTS} 0,1/2/3 {program} | {snapshots} | no snapshot of step 6: rank 3: slices of rank 2 came with other bits than they were sent with
    what another host says of its slices is cut | step:2:14:kill,snapshot.share:*:1:eio | {HOSTS} --restarts 9 --lose one --every-start 0,1/2/3 {program} | --no-background-save {snapshots} | snapshot refused: step 12: rank [0-9]: .*: not valid JSON | ^resumed  {work}/.*/checkpoints/step_000000010
    no host is lost, and nothing has to come | step:3:12:kill | {HOSTS} 0,1/2/3 {program} | {snapshots} | {SNAPSHOT} | (?s)\A(?!.*slices of)
""")
in_place("place-stop", signal.SIGSTOP, 2)
in_place("stop-all", signal.SIGSTOP, 0, 1, 2, 3)  # none of them can notice it
# Copies of norms, and shared parameters, are on two hosts.
for at, layout in enumerate(["--tp 2", "--pp 2", "--shard-size 2", "--zero 1"]):
    flags = f"{layout} --batch-tokens 128"
    plain(f"layout{at} 4 {flags}")
    lost = f"a host is lost, {layout} | step:1:12:kill | {HOSTS} --lose one 0/1/2/3 {program} | {flags} {snapshots} | {LATE}"
    disturbed(lost, like=f"layout{at}")
most = train("most", RANKS, f"--max-restarts 1 {snapshots}", fault="step:3:6:kill")
expect("restarts have an end: the failure's code", most, 9, "the last of 1 restarts has failed")
check("  nothing is left in memory", most.says("/dev/shm/ringzero-restart-") and not in_memory(most), most.text)
env, start = {"RINGZERO_RUNS": work / "runs"}, f"{RANKS} --ranks 2"
named = run(start, TRAIN, snapshots, env=env, fault="step:0:8:kill", cwd=work, limit=120)
expect("without --out, in the folder of the first start", named)
equal("  which is finished", [(out / "final").exists() for out in (work / "runs").iterdir()], [True])
if subprocess.run("unshare -m true", shell=True, capture_output=True).returncode == 0:
    mount = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
    small = train("small", ["unshare", "-m", "sh", "-c", mount, "sh", *RANKS.split()], snapshots)
    advice = "two snapshots need .* in /dev/shm, which has room for"
    expect("too little memory, before anything is made", small, 70, advice, silent="start again")
else:
    skip("a small /dev/shm: no namespaces here")

# ---- mpirun, under supervise.sh ----
if has_mpi(program):
    Table(program, TRAIN)("three 3 --batch-tokens 96")
    start = f"dev/run/supervise.sh --backoff 0 -- mpirun -n 3 {program}"
    twice = rf"(?s){SNAPSHOT}.*\n{SNAPSHOT[1:]}"
    disturbed(f"mpirun | step:2:11:kill | {start} | --batch-tokens 96 {snapshots} | {twice}", like="three")
else:
    skip("snapshots of mpirun's ranks: no MPI here")
end()
