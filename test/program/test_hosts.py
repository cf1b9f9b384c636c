#!/usr/bin/env python3
"""--snapshot-every under mpirun on several hosts, kept by supervise.sh --hosts: a host that is lost, ranks that change places, what is
said where nothing is kept, and that nothing is left in any host's memory. Needs root.

    test/program/test_hosts.py ./train_llama [--full]

A host is a process namespace of this machine with a /dev/shm, a name and a boot of its own; mpirun takes what enters one for ssh.
Whoever kills its first process has killed all, and its memory is gone."""

import os
import signal
import subprocess
import uuid

import checks
from checks import Run, check, children, end, equal, expect, has_mpi, run, run_case, skip, until, work

program = checks.arguments[0]
full = "--full" in checks.arguments
LIFE = """mount -t tmpfs -o size=64m none /dev/shm && mount --bind {boot} /proc/sys/kernel/random/boot_id && hostname {name} &&
echo up && exec sleep 100000"""
SSH = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
[ -e "{work}/$1.pid" ] || {{ echo "$1: no route to host" >&2; exit 255; }}
exec nsenter -t "$(cat "{work}/$1.pid")" -m -u -p -- bash -c "${{*:2}}"
"""


class Host:
    def __init__(self, number):
        self.address, name = f"127.0.0.{number}", f"host{number}"
        (work / name).write_text(f"{uuid.uuid4()}\n")
        life = LIFE.format(boot=work / name, name=name)
        command = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", life]
        self.first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.there = self.first.stdout.readline() == "up\n"
        self.pid = children(self.first.pid)[0] if self.there else ""
        self.route = work / f"{self.address}.pid"
        self.route.write_text(f"{self.pid}\n")

    def memory(self):
        return os.listdir(f"/proc/{self.pid}/root/dev/shm")

    def lose(self):
        self.route.unlink(missing_ok=True)
        self.first.kill()
        self.first.wait()


model = """--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --threads 1 --batch 1
    --seq-len 32 --val-every 8 --val-tokens 64 --steps 24 --save-every 10 --timeout 30 --zero 3 --no-background-save"""
hosts = {}


def on(*numbers, there=True):
    """Makes the host file: two ranks on the first."""
    if there:
        live(*numbers)
    (work / "hosts").write_text("".join(f"127.0.0.{n}{':2' * (n == numbers[0])}\n" for n in numbers))


def live(*numbers):
    for n in numbers:
        if n not in hosts:
            hosts[n] = Host(n)
    return all(hosts[n].there for n in numbers)


def lose(*numbers):
    for n in numbers:
        hosts.pop(n).lose()


def mpirun(out, *flags):
    return ["mpirun", "-n", "4", "-f", work / "hosts", program, *checks.split([model, *flags]), "--out", work / out]


def supervise(out, *flags, keeps=("--hosts", work / "hosts"), fault=""):
    supervisor = ["dev/run/supervise.sh", "--backoff", "0", *keeps, "--"]
    return Run([*supervisor, *mpirun(out, "--snapshot-every 3", *flags)], fault=fault, limit=240)


def as_undisturbed(out, job, most=3):
    checks.as_undisturbed(out, job, out, most=most)
    nothing_left()


def nothing_left(*jobs):
    for host in hosts.values():
        check(f"{host.address}: nothing is left", until(lambda host=host: not host.memory(), 15), host.memory())
    for job in jobs:
        check("nor here", not checks.in_memory(job), checks.in_memory(job))


def undisturbed():
    on(2, 3, 4)
    expect("three hosts", run(mpirun("undisturbed"), limit=120))


def a_rank():
    job = supervise("rank", fault="step:2:15:kill").wait()
    expect("a rank dies", job, says="^resumed  the snapshot ", silent="slices of")
    as_undisturbed("rank", job)


def a_host():
    """The host of rank 2 is lost in the middle, and a spare one stands in the file."""
    job = supervise("host", fault="step:*:*:sleep=0.3")
    check("comes to step 14", job.until(r"^step +14/"))
    on(2, 5, 4)
    lose(3)
    came = "the slices of 1 of 4 ranks came from the host that had a copy"
    expect("a host is lost", job.wait(), says=[came, r"^resumed  the snapshot .*step_00000001[258]"])
    as_undisturbed("host", job)


def first_host():
    """That of rank 0, and the ranks change places: two are on what was the second host."""
    on(2, 3, 4)
    job = supervise("first", fault="step:*:*:sleep=0.3")
    check("comes to step 14", job.until(r"^step +14/"))
    on(3, 4, 6)
    lose(2)
    came = "the slices of [1-4] of 4 ranks came from the host that had a copy"
    expect("rank 0's host is lost", job.wait(), says=[came, r"^resumed  the snapshot .*step_00000001[258]"])
    as_undisturbed("first", job)


def neighbours():
    on(2, 3, 4)
    job = supervise("two", fault="step:*:*:sleep=0.3")
    check("comes to step 14", job.until(r"^step +14/"))
    on(2, 7, 8)
    lose(3, 4)
    none = "of the snapshot of step 1[25] no host that is left has the slices of rank 2"
    said = [none, "going back to the checkpoint of step 10", "^resumed  .*/two/checkpoints/step_000000010"]
    expect("two neighbours are lost", job.wait(), says=said)
    as_undisturbed("two", job, most=7)


def not_kept():
    on(2, 3, 4)
    said = "--snapshot-every: the host of rank 0 has no folder in memory that outlives its ranks"
    expect("without --hosts", supervise("no", keeps=()).wait(), code=2, says=said)
    check("nothing is made", not (work / "no/checkpoints").exists())
    expect("no such file", supervise("no", keeps=("--hosts", work / "no file")).wait(), code=2, says="it can't be read")


def unreachable():
    live(2, 3)
    on(2, 3, 9, there=False)
    keeps = ("--max-restarts", "0", "--start-timeout", "5", "--hosts", work / "hosts")
    said = ["no snapshots can be kept on 127.0.0.9: 127.0.0.9: no route to host", "gives up after 0 restarts"]
    nothing_left(expect("a host that can't be reached", supervise("none", keeps=keeps).wait(), code=3, says=said))


def killed():
    """kill -9 of the supervisor and of its run: the keepers see it."""
    on(2, 3, 4)
    keeps = ("--start-timeout", "0", "--hosts", work / "hosts")
    job = supervise("killed", "--steps 100000", keeps=keeps, fault="step:*:*:sleep=0.3")
    check("comes to step 4", job.until(r"^step +4/"))
    equal("a folder on each host", [len(hosts[n].memory()) for n in (2, 3, 4)], [1, 1, 1])
    runs = children(job.pid, "^(?!.*--hold)")
    equal("the run", len(runs), 1)
    for pid, number in ((job.pid, signal.SIGKILL), (runs[0], signal.SIGTERM)):
        os.kill(pid, number)
    nothing_left(job.wait())


if not has_mpi(program):
    skip("hosts of mpirun: no MPI here")
    end()
(work / "ssh").write_text(SSH.format(work=work))
(work / "ssh").chmod(0o755)
os.environ.update(HYDRA_LAUNCHER="ssh", HYDRA_LAUNCHER_EXEC=str(work / "ssh"), UCX_TLS="tcp,self")
if not live(2):
    skip("hosts of mpirun: no namespaces can be made here")
    end()
try:
    model += f" --data {checks.text_data('200K')}"
    more = [first_host, neighbours, unreachable, killed] if full else []
    for case in [undisturbed, a_rank, a_host, *more, not_kept]:
        run_case(case.__name__, [case])
finally:
    lose(*list(hosts))
end()
