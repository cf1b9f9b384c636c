#!/usr/bin/env python3
"""Trains while faults of every kind happen, one after another, and asks for the weights of the same work without faults.

    dev/run/soak.py PROGRAM SHIM [--minutes M] [--faults N] [--seed S] [--steps N] [--jobs N] [--timeout S] [--round R [--start K]] [--report FILE]
    dev/run/soak.py PROGRAM SHIM --snapshots [--wide] [...]

SHIM is the library made of test/faults/file_faults.cpp. A round is one run of --steps steps. Each of its starts resumes from
what the one before it left, with another layout: 1 to 4 ranks, ZeRO 0 to 3, tp, pp and cp. In each start one or two faults
happen: kills at a call of the program or at a random moment, of ranks and of the launcher and its proxies; stops; signals;
errors of the file system and a file system that hangs; jumps of the clock; allocations that fail; and, where namespaces can be
made (root), ranks on hosts of their own whose links are slow, go down, or whose sockets are closed. At the end of a round its
sequence of (step, layout) is run once more without faults: final weights, optimizer state and the rows of metrics.jsonl (loss,
gradient norm, rate, hash of the tokens, validations; no times) must be the same. Begins no round after M minutes or N faults.
What is drawn depends on seed, round and start alone, but for moments: --round R runs one round again, --round R --start K one
start of it: after a run without faults up to half the steps, and before one to the end. Exit code 0: every round's bits were those of its replay, and no start ended otherwise than a
fault may end it.

--snapshots: each round is one job that starts its own ranks again (--ranks with --max-restarts, supervise.sh with mpirun, or
test/faults/hosts.py, where the host of a rank that is killed is lost with its memory) from snapshots in memory. Ranks are killed and
stopped at random moments; what is lost of the steps is bounded, the final weights and the rows are those of the same run without
faults, and nothing may stay in /dev/shm. --wide: 8 ranks. The report has the seconds from a fault to the next step.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import hashlib
import math
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import study

ROOT = pathlib.Path(study.TOP)
sys.path.append(f"{ROOT}/test/faults")
import run_rows  # noqa: E402

VAL_EVERY = 5  # beside a checkpoint every 4 steps
SHAPE = (
    "--preset bytes --dim 32 --layers 4 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --threads 1 --batch 1 "
    "--seq-len 32 --lr-schedule constant --warmup 0 --val-tokens 256 --log-every 20 "
    f"--collectives ring --val-every {VAL_EVERY}"
).split()
LAYOUTS = ["1 --zero 0", "1 --zero 3", "2 --tp 2", "2 --pp 2", "2 --cp 2", "4 --zero 3 --shard-size 2"]
LAYOUTS += [f"{n} --zero {z}" for n in (2, 3, 4) for z in range(4)]
LAYOUTS += [f"4 --{axis} 2 --zero {z}" for axis in ("tp", "pp", "cp") for z in range(4)]
LAYOUTS += ["4 --tp 2 --pp 2", "4 --tp 2 --cp 2"]
WIDE = ["8 --zero 3 --shard-size 4", "8 --tp 2 --zero 2", "8 --pp 2 --zero 1", "8 --cp 2 --zero 3", "8 --tp 2 --pp 2"]
WIDE = [f"{name} --batch-tokens 768" for name in [*WIDE, *(f"8 --zero {z}" for z in range(4))]]
# A start keeps what its checkpoint says of the layout, so each flag is given.
PLAIN = {"--zero": "1", "--tp": "1", "--pp": "1", "--cp": "1", "--shard-size": "0", "--batch-tokens": "384"}
NET = {"slow": "a slow link", "down": "a link goes down", "closed": "sockets are closed"}
EXIT_CODES = {0, 2, 70, 71, 72, 73, 75, 130}
WRONG = [
    ("none of its checkpoints", "no checkpoint is good any more"),
    ("but no checkpoint to resume", "its checkpoints are gone"),
    # Not "Segmentation fault (signal 11)": mpirun makes it of the signals 9 and 10 of two ranks.
    (r"EXIT CODE: (?:6|8|11|134|136|139)$|terminate called|AddressSanitizer", "crashed"),
]


def proc(pid, name):
    """What /proc says of a process; nothing of one that is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def stat(pid):
    """Its state, its parent and more."""
    return proc(pid, "stat").rpartition(b")")[2].split()


def processes(folder):
    """Those of a run, by role: their numbers."""
    found = {"launcher": [], "proxy": [], "rank": []}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        words = proc(pid, "cmdline").split(b"\0")
        name = os.path.basename(words[0])
        if os.fsencode(str(folder)) in words:
            role = "rank" if name == b"train_llama" else "launcher" if name.startswith(b"mpi") else None
            if role:
                found[role].append(pid)
        elif name.startswith(b"hydra_pmi_proxy"):
            found["proxy"].append(pid)
    parents = set(found["launcher"])
    found["proxy"] = [p for p in found["proxy"] if ancestors(p) & parents]
    return found


def ancestors(pid):
    seen = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        pid = int((stat(pid)[1:2] or [0])[0])
    return seen


def send(pids, number):
    sent = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            sent += 1
        except OSError:
            pass
    return sent


@dataclasses.dataclass
class Segment:
    layout: str
    begin: int
    end: int


@dataclasses.dataclass
class Drawn:
    """The faults of one start."""

    env: dict
    inside: str  # what FAULT: lines in the log stand for
    outside: tuple  # (kind, role, signal) or ()
    moment: float  # of it, as a part of the time that a start takes
    net: str


NONE = Drawn({}, "", (), 0, "")


class Round:
    def __init__(self, soak, number):
        self.soak, self.number = soak, number
        self.folder = soak.work / f"round{number}"
        self.made = {0: []}  # how the checkpoint of each step was made: segments
        self.counts, self.problems, self.log_lines = collections.Counter(), [], []
        self.starts, self.lost_rows = 0, False
        self.seconds = collections.defaultdict(list)  # of SnapshotRound: from a fault to the next step

    def draw(self, start):
        soak = self.soak
        chance = random.Random(f"{soak.seed} {self.number} {start}")
        layout = chance.choice(LAYOUTS)
        ranks = int(layout.split()[0])
        rank = str(chance.randrange(ranks))
        env, inside, outside, net = {}, "", (), ""
        if chance.random() < 0.62:
            paths = {"LD_PRELOAD": soak.shim, "FAULT_PATHS": f"{self.folder}/:{soak.data}/", "FAULT_RANK": rank}
            at = {"FAULT_AT": str(int(chance.uniform(1, 20) * chance.choice([1, 5, 25])))}
            kind = chance.randrange(8)
            if kind <= 2:
                env, inside = {**paths, **at, "FAULT_DO": "kill"}, "kill -9 at a call of the program"
            elif kind == 3:
                error = chance.choice(["EIO", "ENOSPC", "ESTALE", "EDQUOT", "EMFILE"])
                env, inside = {**paths, **at, "FAULT_DO": error}, "an error of the file system"
            elif kind == 4:
                env, inside = {**paths, **at, "FAULT_DO": "hang=5"}, "the file system hangs for 5 s"
            elif kind == 5:
                jump = chance.choice([-7200, -30, 30, 86400])
                env = {"LD_PRELOAD": soak.shim, "FAULT_CLOCK": f"{chance.uniform(0, 2):.2f}:{jump}"}
                inside = "a jump of the clock"
            elif kind == 6:
                env = {"LD_PRELOAD": soak.shim, "FAULT_KINDS": "memory,threads", "FAULT_RANK": rank}
                env.update({"FAULT_AT": str(chance.randrange(200, 20000)), "FAULT_DO": "ENOMEM"})
                inside = "an allocation fails"
            else:
                point = chance.choice(["shard", "fsync", "manifest", "rename", "mkdir"])
                env = {"FAULT": f"checkpoint.{point}:{'*' if point in ('shard', 'fsync') else 0}:1:enospc"}
                inside = "disk full in a save"
        if not inside or chance.random() < 0.35:
            outside = chance.choice(
                [("kill -9 of a rank", "rank", signal.SIGKILL)] * 3
                + [
                    ("kill -9 of the launcher", "launcher", signal.SIGKILL),
                    ("kill -9 of the launcher's proxy", "proxy", signal.SIGKILL),
                    ("a rank is stopped", "rank", signal.SIGSTOP),
                    ("the job is stopped and continues", "job", signal.SIGSTOP),
                    ("SIGTERM to the launcher", "launcher", signal.SIGTERM),
                    ("SIGUSR1 to the launcher", "launcher", signal.SIGUSR1),
                    ("SIGINT to the launcher", "launcher", signal.SIGINT),
                    ("SIGTERM to a rank", "rank", signal.SIGTERM),
                    ("SIGUSR1 to a rank", "rank", signal.SIGUSR1),
                    ("SIGHUP to a rank", "rank", signal.SIGHUP),
                ]
            )
        if soak.namespaces and ranks > 1 and chance.random() < 0.2:
            net = chance.choice(list(NET))
            outside = (NET[net], "net", 0)
        return layout, Drawn(env, inside, outside, chance.random(), net)

    def command(self, layout, net, folder, steps, save_every):
        ranks, *flags = layout.split()
        for flag, value in PLAIN.items():
            flags += [] if flag in flags else [flag, value]
        flags += f"--timeout {self.soak.timeout} --steps {steps} --save-every {save_every} --resume auto".split()
        program = [self.soak.program, "--out", str(folder), "--data", str(self.soak.data), *SHAPE, *flags]
        if net:
            return [str(ROOT / "dev/net/netns_hosts.sh"), ranks, "--", *program]
        return ["mpirun", "-n", ranks, *program]

    def launch(self, command, env, log):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FAULT")}
        clean.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", **env)
        return subprocess.Popen(command, env=clean, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def strike(self, drawn, job, folder):
        """The fault from outside; returns how many happened."""
        kind, role, number = drawn.outside
        time.sleep(drawn.moment * self.soak.typical)
        if job.poll() is not None:
            return 0
        if role == "net":
            name = f"rz{job.pid}{1 if kind != 'a slow link' else 0}"
            if drawn.net == "slow":
                args = ["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf"]
                args += ["rate", "10mbit", "burst", "16kb", "latency", "400ms"]
                return int(subprocess.run(args, stderr=subprocess.DEVNULL).returncode == 0)
            if drawn.net == "closed":
                args = ["ip", "netns", "exec", name, "ss", "-K", "dst", "10.77.0.0/24"]
                done = subprocess.run(args, capture_output=True, text=True)
                return int(done.returncode == 0 and len(done.stdout.splitlines()) > 1)
            for state, pause in (("down", 1.5), ("up", 0)):
                args = ["ip", "-n", name, "link", "set", "eth0", state]
                if subprocess.run(args, stderr=subprocess.DEVNULL).returncode != 0:
                    return 0
                time.sleep(pause)
            return 1
        found = processes(folder)
        if role == "job":
            everybody = found["rank"]
            sent = send(everybody, number)
            time.sleep(1 + 6 * drawn.moment)
            send(everybody, signal.SIGCONT)
            return int(sent > 0)
        if not found[role]:
            return 0
        sent = send([sorted(found[role])[int(drawn.moment * 997) % len(found[role])]], number)
        if kind == "a rank is stopped" and len(found["rank"]) == 1:  # nobody is there who would miss it
            time.sleep(1 + 6 * drawn.moment)
            send(found["rank"], signal.SIGCONT)
        return sent

    def manifests(self):
        """{step: which file its manifest is}"""
        found = {}
        for path in (self.folder / "checkpoints").glob("step_*/manifest.json"):
            if re.fullmatch(r"step_\d+", path.parent.name):
                there = path.stat()
                found[int(path.parent.name[5:])] = (there.st_ino, there.st_mtime_ns)
        return found

    def one_start(self, start, layout, drawn, steps=0):
        files, steps = self.manifests(), steps or self.soak.steps
        before = max(files, default=0)
        log_path = self.soak.work / f"round{self.number}.log"
        began = time.monotonic()
        with open(log_path, "wb") as log:
            command = self.command(layout, drawn.net, self.folder, steps, 4)
            job = self.launch(command, drawn.env, log)
            struck = []
            thread = None
            if drawn.outside:
                thread = threading.Thread(target=lambda: struck.append(self.strike(drawn, job, self.folder)))
                thread.start()
            hung = self.wait(job)
            if thread:
                thread.join()
            left = self.end_all(grace=0 if hung else 30 + 6 * self.soak.typical)
            try:
                job.wait(timeout=60)  # netns_hosts.sh removes its namespaces
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
        self.starts += 1
        text = log_path.read_text(errors="replace")
        self.lost_rows |= "; training continues without it" in text
        happened = []
        if drawn.inside and re.search(r"^FAULT: |fault: rank .* reached", text, re.M):
            happened.append(drawn.inside)
        if struck and struck[0]:
            happened.append(drawn.outside[0])
        for kind in happened:
            self.counts[kind] += 1
        now = self.manifests()
        after = max(now, default=0)
        resumed = re.search(r"^resumed  .*step_(\d+)", text, re.M)
        began_at = int(resumed.group(1)) if resumed else before  # the line may be lost with the launcher
        note = f"round {self.number} start {start}: {layout}; {', '.join(happened) or 'nothing happened'}; rc {job.returncode}"
        self.log_lines.append(f"{note}; step {before} -> {after} in {time.monotonic() - began:.1f} s")
        problem = self.judge(job.returncode, text, before, after, resumed, hung, left, happened)
        if problem:
            self.problems.append(f"{note}\n  env {drawn.env}\n  {problem}\n  " + "\n  ".join(text.splitlines()[-25:]))
        base = self.made[began_at]
        for step, file in now.items():
            if files.get(step) != file and step > began_at:  # a start writes its flags into the one it resumes from
                self.made[step] = [*base, Segment(layout, began_at, step)]
        return job.returncode == 0 and (self.folder / "final/model.safetensors").exists() and after == steps

    def judge(self, rc, text, before, after, resumed, hung, left, happened):
        networked = any("link" in kind or "sockets" in kind for kind in happened)
        if hung == "launcher" and not networked:
            return "the launcher stays, and there is no rank any more"
        # The last rank to leave is missed by nobody: the launcher waits for a rank that was stopped in MPI_Finalize.
        left_last = "a rank is stopped" in happened and "all ranks are done; ends without it, exit code 0" in text
        if hung == "job" and not left_last:
            return "hangs"
        for pattern, what in WRONG:
            if re.search(pattern, text, re.M):
                return what
        if after < before:
            return f"the checkpoint of step {before} is gone"
        if before > 0 and not resumed and re.search(r"^step +1/", text, re.M):
            return "began a new run"
        if left and not networked and not any("launcher" in kind for kind in happened):
            return f"{left} processes were left"
        if rc in EXIT_CODES or happened:
            return ""
        return f"ended with {rc}, though nothing happened"

    def wait(self, job):
        """Until the job has ended: "". "job": it hangs. "launcher": its ranks have ended, and the launcher has not: Hydra's
        waits for a proxy that could not reach it."""
        began = seen = time.monotonic()
        limit = 120 + 4 * self.soak.timeout + 40 * self.soak.typical
        while True:
            try:
                job.wait(timeout=2)
                return ""
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if processes(self.folder)["rank"]:
                seen = now
            if now - began > limit:
                return "job"
            if now - seen > 60 + 6 * self.soak.typical:
                return "launcher"

    def end_all(self, grace):
        """Waits for the processes of the run, then kills what is left; how many there were."""
        end = time.monotonic() + grace
        while True:
            found = processes(self.folder)
            pids = found["rank"] + found["launcher"] + found["proxy"]
            if not pids:
                return 0
            if time.monotonic() > end:
                send(pids, signal.SIGKILL)
                time.sleep(0.5)
                return len(pids)
            time.sleep(0.2)

    def run(self):
        done, only = False, self.soak.start
        if only >= 0:
            self.one_start(-1, self.draw(only + 1)[0], NONE, self.soak.steps // 2)
        for start in range(max(only, 0), 60):
            layout, drawn = self.draw(start)
            if start >= 30 or self.soak.over() or only >= 0 and start != only:
                drawn = NONE
            done = self.one_start(start, layout, drawn)
            if done or len(self.problems) > 3:
                break
        if not done:
            self.problems.append(f"round {self.number} did not come to its end")
        else:
            self.replay()
        if not self.problems:
            shutil.rmtree(self.folder, ignore_errors=True)
        return self

    def replay(self):
        folder = self.soak.work / f"replay{self.number}"
        merged = []
        for s in self.made[self.soak.steps]:
            if merged and merged[-1].layout == s.layout:
                merged[-1].end = s.end
            else:
                merged.append(dataclasses.replace(s))
        log_path = self.soak.work / f"replay{self.number}.log"
        for s in merged:
            with open(log_path, "wb") as log:
                command = self.command(s.layout, "", folder, s.end, 1000)
                rc = self.launch(command, {}, log).wait(timeout=600 + 60 * self.soak.typical)
            if rc != 0:
                tail = log_path.read_text(errors="replace").splitlines()[-12:]
                self.problems.append(f"round {self.number}: the replay of {s} ended with {rc}:\n  " + "\n  ".join(tail))
                return
        self.segments = merged
        ours, theirs = state(self.folder, self.soak.steps), state(folder, self.soak.steps)
        for name in ours:
            if ours[name] != theirs.get(name):
                self.problems.append(f"round {self.number}: {name} differs from the replay; {merged}")
        for problem in other_rows(self.folder, folder, self.soak.steps, self.lost_rows):
            self.problems.append(f"round {self.number}: {problem}; {merged}")
        shutil.rmtree(folder, ignore_errors=True)


class SnapshotRound(Round):
    """One job on one layout, whose ranks die until it has ended."""

    EVERY, SAVE_EVERY, MOST = 3, 10, 4  # steps between snapshots, and checkpoints; faults of a round
    STARTERS = ("--ranks", "supervise.sh", "hosts.py")
    BEGUN = re.compile(rb"\nresumed |the run begins again")

    def command_with(self, layout, starter):
        command = self.command(layout, "", self.folder, self.soak.steps, self.SAVE_EVERY)
        ranks, program = command[2], command[3:-2]  # without --resume auto
        program[program.index("--log-every") + 1] = "1"
        program += ["--snapshot-every", str(self.EVERY)]
        if starter == "hosts.py":
            own = "/".join(map(str, range(int(ranks))))
            hosts = [str(ROOT / "test/faults/hosts.py"), "--restarts", "50", "--lose", "one", "--every-start"]
            return [*hosts, "0,1/2/3" if own == "0/1/2/3" and self.number % 2 else own, *program]
        if starter == "supervise.sh":
            keeper = [str(ROOT / "dev/run/supervise.sh"), "--max-restarts", "50", "--backoff", "0"]
            return [*keeper, "--", "mpirun", "-n", ranks, *program]
        return [*program, "--ranks", ranks, "--max-restarts", "50"]

    def ranks(self):
        named = (b"RINGZERO_RANK=", b"PMI_RANK=", b"RANK=")
        pids = sorted(processes(self.folder)["rank"])
        return [pid for pid in pids if any(word.startswith(named) for word in proc(pid, "environ").split(b"\0"))]

    def run(self):
        soak = self.soak
        chance = random.Random(f"{soak.seed} snapshots {self.number}")
        layout = chance.choice(WIDE if soak.wide else [name for name in LAYOUTS if not name.startswith("1 ")])
        starter = self.STARTERS[self.number % 3]
        log_path = soak.work / f"round{self.number}.log"
        with open(log_path, "wb") as log:
            job = self.launch(self.command_with(layout, starter), {"FAULT": "step:*:*:sleep=0.05"}, log)
            kind, struck = "", 0.0
            for fault in range(self.MOST):
                # Some steps later, and at any moment of one. The third waits for a new snapshot: after three starts in a row
                # without one a run is given up, as it should be.
                text, steps = log_path.read_bytes(), chance.randint(1, 9)
                starts, wanted = len(self.BEGUN.split(text)), text.count(b"\nstep ") + steps
                while job.poll() is None:
                    begun = self.BEGUN.split(text)
                    done = begun[-1].count(b"\nstep ") if len(begun) > starts else 0
                    if kind and done:
                        self.seconds[kind].append(time.monotonic() - struck)
                        kind = ""
                    if done >= max(steps, self.EVERY + 2) if fault == 2 else text.count(b"\nstep ") >= wanted:
                        break
                    time.sleep(0.05)
                    text = log_path.read_bytes()
                time.sleep(chance.uniform(0, 0.1))
                number = signal.SIGSTOP if chance.random() < 0.3 else signal.SIGKILL
                there = self.ranks()
                if any(stat(pid)[:1] == [b"T"] for pid in there):  # of ranks that are all stopped none could notice it
                    number = signal.SIGKILL
                struck = time.monotonic()
                if there and send([there[int(chance.random() * len(there))]], number):
                    kind = "a rank is stopped" if number == signal.SIGSTOP else "kill -9 of a rank"
                    kind += f", under {starter}"
                    self.counts[kind] += 1
            hung = self.wait(job)
            left = self.end_all(grace=0 if hung else 10)
        text = log_path.read_text(errors="replace")
        self.judge_job(job, text, layout, hung, left)
        if not self.problems:
            self.made[soak.steps] = [Segment(layout, 0, soak.steps)]
            self.replay()
        if not self.problems:
            shutil.rmtree(self.folder, ignore_errors=True)
        return self

    def judge_job(self, job, text, layout, hung, left):
        lost, last = [], 0
        for step, resumed, anew in re.findall(
            r"^step +(\d+)/|^resumed  .*step_(\d+)|(the run begins again)", text, re.M
        ):
            if step:
                last = int(step)
            elif resumed or anew:
                lost.append(last - int(resumed or 0))
                last = int(resumed or 0)
        self.starts = len(lost) + 1
        from_memory = text.count("resumed  the snapshot")
        note = f"round {self.number}: {layout}; {dict(self.counts)}; rc {job.returncode}; steps lost {lost}, {from_memory} from snapshots"
        self.log_lines.append(note)
        problem = f"ended with {job.returncode}" if hung or job.returncode != 0 else ""
        if left:
            problem = f"{left} processes were left"
        # A second host that is lost before the next snapshot may have had the only copy.
        most = self.SAVE_EVERY + 1 if "no host that is left has the slices" in text else self.EVERY
        if any(n > most for n in lost):
            problem = f"more than {most} steps were lost"
        if any(os.path.exists(name) for name in re.findall(r"/dev/shm/ringzero-restart-\w+", text)):
            problem = "something is left in /dev/shm"
        if problem:
            self.problems.append(f"{note}\n  {problem}\n  " + "\n  ".join(text.splitlines()[-40:]))


def state(folder, step):
    out = {}
    last = folder / f"checkpoints/step_{step:09d}"
    for path in [folder / "final/model.safetensors", *sorted(last.glob("optimizer/*.safetensors"))]:
        out[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return out


def other_rows(folder, replay, steps, may_lack):
    """Where metrics.jsonl differs from the replay's. A validation may have been made by the start after, at another layout: it
    is compared to 1e-5. The replay has one at the end of each segment, too."""

    def read(where):
        rows = run_rows.rows(where / "metrics.jsonl")
        return {(row["step"], [*row, ""][1]): row for row in rows}, len(rows)

    def same(key, one, other):
        if key.startswith("val_") and one is not None and other is not None:
            return math.isclose(one, other, rel_tol=1e-5)
        return one == other

    (ours, lines), (theirs, _) = read(folder), read(replay)
    theirs = {at: row for at, row in theirs.items() if at[1] != "val_loss" or at[0] % VAL_EVERY == 0 or at[0] == steps}
    if len(ours) != lines:
        yield "metrics.jsonl has a row twice"
    for at in sorted(ours.keys() | theirs.keys()):
        mine, wanted = ours.get(at, {}), theirs.get(at, {})
        keys = {key for key in mine.keys() | wanted.keys() if not same(key, mine.get(key), wanted.get(key))}
        if keys and not (may_lack and not mine):
            yield f"metrics.jsonl has {mine or 'no row'} where the replay has {wanted or 'none'}"


class Soak:
    def __init__(self, args, work):
        self.program, self.shim = os.path.abspath(args.program), os.path.abspath(args.shim)
        self.seed, self.steps, self.work = args.seed, args.steps, pathlib.Path(work)
        self.timeout, self.start = args.timeout, args.start
        self.snapshots, self.wide = args.snapshots, args.wide
        self.limit, self.wanted = 60 * args.minutes, args.faults
        self.began, self.total = time.monotonic(), 0
        self.lock = threading.Lock()
        self.data = self.work / "data"
        study.prepare(self.data, "stdlib", "--max-bytes", "200K")
        probe = [str(ROOT / "dev/net/netns_hosts.sh"), "2", "--", "true"]
        self.namespaces = subprocess.run(probe, capture_output=True).returncode == 0
        self.typical = 5.0

    def over(self):
        return time.monotonic() - self.began > self.limit or self.total >= self.wanted

    def measure(self):
        """Seconds of a run on four ranks."""
        began = time.monotonic()
        trial = Round(self, "-trial")
        if not trial.one_start(0, "4 --zero 2", NONE):
            sys.exit("a run without faults fails:\n" + "\n".join(trial.problems) + "".join(trial.log_lines))
        self.typical = time.monotonic() - began
        shutil.rmtree(trial.folder)

    def run(self, jobs, only):
        rounds = []
        numbers = iter([only] if only >= 0 else range(10**6))

        def work():
            while only >= 0 or not self.over():
                with self.lock:
                    number = next(numbers, None)
                if number is None:
                    return
                done = (SnapshotRound if self.snapshots else Round)(self, number).run()
                with self.lock:
                    rounds.append(done)
                    self.total += sum(done.counts.values())
                    print(*done.log_lines, *done.problems, sep="\n", flush=True)
                    seconds = time.monotonic() - self.began
                    print(f"== {len(rounds)} rounds, {self.total} faults, {seconds:.0f} s", flush=True)

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for task in [pool.submit(work) for _ in range(jobs)]:
                task.result()
        return rounds

    def report(self, rounds, command):
        counts = sum((r.counts for r in rounds), collections.Counter())
        bad = sum(bool(r.problems) for r in rounds)
        how = (
            "Each start has another layout (1 to 4 ranks, ZeRO 0 to 3, tp, pp, cp) and resumes\nfrom what the one before "
            "left; a checkpoint every 4 steps."
        )
        if self.snapshots:
            how = (
                f"Each round is one job with a snapshot every {SnapshotRound.EVERY} steps and a checkpoint every 10,\nwhich "
                f"starts its ranks again; at most {SnapshotRound.EVERY} steps were lost by a fault."
            )
        faults, replays = [], []
        for kind, n in sorted(counts.items()):
            took = [s for r in rounds for s in r.seconds[kind]]
            faults.append([kind, n, f"{statistics.median(took):.1f}, {max(took):.1f}" if took else ""])
        for r in sorted(rounds, key=lambda r: r.number):
            result = "PROBLEM" if r.problems else "equal"
            replays.append([r.number, r.starts, sum(r.counts.values()), len(getattr(r, "segments", [])), result])
        return f"""# Soak: {time.strftime("%Y-%m-%d", time.gmtime())}

`{command}` at commit {study.commit()}, {os.cpu_count()} cores, CPU.

**{sum(counts.values())} faults in {sum(r.starts for r in rounds)} starts, {len(rounds)} rounds of {self.steps} steps and
{time.monotonic() - self.began:.0f} s; {bad} rounds with a problem.** {how} Each round's sequence of (step, layout) was run again without
faults: final weights, optimizer state and rows of metrics.jsonl were compared. Namespaces: {"yes" if self.namespaces else "none could be made"}.

{study.table(["fault", "times", "seconds to the next step: median, most"], faults)}
{study.table(["round", "starts", "faults", "segments of (step, layout) replayed", "result"], replays)}
{"".join(f"{problem}{chr(10)}" for r in rounds for problem in r.problems)}"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("shim")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--faults", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=8, help="of the ranks; more where the machine does other work")
    parser.add_argument("--round", type=int, default=-1)
    parser.add_argument("--start", type=int, default=-1)
    parser.add_argument("--snapshots", action="store_true")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--report", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as work:
        soak = Soak(args, work)
        soak.measure()
        rounds = soak.run(args.jobs, args.round)
        text = soak.report(rounds, " ".join(["dev/run/soak.py", *sys.argv[1:]]))
        print(text)
        if args.report:
            pathlib.Path(args.report).write_text(text)
        return int(any(r.problems for r in rounds))


if __name__ == "__main__":
    sys.exit(main())
