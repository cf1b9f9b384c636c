#!/usr/bin/env python3
"""Starts, kills and resumes runs in poor surroundings, crossed pairwise.

    test/faults/surroundings.py PROGRAM [--case KEY=VALUE,...] [--seed N] [--timeout S] [--report FILE]

A case draws one of each: process ids (own, or the same at every start as in a container), descriptors (plain, few, nobody
reads standard output, all three closed), the folder for temporary files (plain, full, absent), /dev/shm (plain, 24 MiB: what
MPI takes itself for three ranks, and little more), the
disk of --out (plain, small tmpfs, small ext3 on a loop device, which reserves nothing), ranks, flags, and where the first
start is killed (start, save, resume, end). Every pair of values is in some case. Each case has three starts: one that is
killed, one of the same kind that is not, and one in good surroundings that resumes. What must hold: an exit code that
--help lists, and never that of a hang; no signal; no time limit; a reason where the code is not 0; in the end the undisturbed
run's weights, the undisturbed run's names in final/ and no temporary file. Needs root (mount, unshare) and the word for it:
without, all cases are skipped. Ends with "N passed, N failed, N skipped".
"""

import contextlib
import fcntl
import itertools
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import all_faults
from checks import check, end, options, remove, run, split, text_data, weights, work

FACTORS = {
    "pids": ["own", "same"],
    "descriptors": ["plain", "few", "unread", "closed"],
    "temporary": ["plain", "full", "absent"],
    "shm": ["plain", "small"],
    "disk": ["plain", "tmpfs 700", "tmpfs 1800", "ext3 1100", "ext3 2200"],  # KiB
    "ranks": ["1", "3"],
    "flags": [
        "",
        "--no-background-save",
        "--max-shard-mib 0 --keep 3",
        "--collectives symmetric",
        "--after-save false",
    ],
    "killed": ["start", "save", "resume", "end"],
}
KILLS = {
    "start": "file.rename:0:2:kill",
    "save": "checkpoint.shard.done:0:2:kill",
    "resume": "resume.done:0:1:kill",
    "end": "file.rename:0:24:kill",
}
TEMPORARY = re.compile(r"\.tmp-[0-9a-f-]+$|^\.tmp-|^\.trash-")


def pairs_of(case):
    return set(itertools.combinations(sorted(case.items()), 2))


def draw_cases(seed):
    """Greedy: of some drawn cases, the one with most pairs that no case has yet."""
    rng = random.Random(seed)
    missing = set()
    for a, b in itertools.combinations(sorted(FACTORS), 2):
        missing |= {((a, x), (b, y)) for x in FACTORS[a] for y in FACTORS[b]}
    cases = []
    while missing:
        first = dict(rng.choice(sorted(missing)))
        drawn = [{f: first.get(f, rng.choice(v)) for f, v in FACTORS.items()} for _ in range(60)]
        best = max(drawn, key=lambda c: len(pairs_of(c) & missing))
        missing -= pairs_of(best)
        cases.append(best)
    return cases


def name_of(case):
    return ",".join(f"{k}={v}" for k, v in case.items())


def unread(folder):
    """A pipe of 4 KiB, which this process holds open and nobody reads."""
    pipe = tempfile.mktemp(dir=folder)
    os.mkfifo(pipe)
    fcntl.fcntl(os.open(pipe, os.O_RDWR), 1031, 4096)  # F_SETPIPE_SZ
    return pipe


class Case:
    def __init__(self, case, setting, folder):
        self.case, self.s, self.folder = case, setting, folder
        self.disk, self.temporary = folder / "disk", folder / "temporary"
        self.out = self.disk / "out"

    @contextlib.contextmanager
    def mounted(self):
        self.disk.mkdir()
        self.temporary.mkdir()
        kind = self.case["disk"].split()
        if kind[0] == "tmpfs":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kind[1]}k", "disk", self.disk], check=True)
        if kind[0] == "ext3":
            image = self.folder / "image"
            with open(image, "wb") as f:
                f.truncate((int(kind[1]) + 1300) * 1024)  # and its journal
            subprocess.run(["mke2fs", "-q", "-t", "ext3", "-b", "1024", "-m", "0", "-J", "size=1", image], check=True)
            subprocess.run(["mount", "-o", "loop", "-t", "ext3", image, self.disk], check=True)
        try:
            yield
        finally:
            if kind[0] != "plain":
                subprocess.run(["umount", "-l", self.disk], check=True)

    def start(self, poor, fault="", resume=False, out=None):
        """Exit code (124: it hangs) and what was said."""
        c, s = self.case, self.s
        flags = c["flags"] if c["ranks"] != "1" or "symmetric" not in c["flags"] else ""
        command = [s.program, *split([all_faults.TRAIN, "--device cpu", flags, "--resume auto" if resume else ""])]
        command += ["--data", s.data, "--out", out or self.out]
        if poor and c["descriptors"] == "closed":
            command = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *command]
        if c["ranks"] != "1":
            command = ["mpirun", "-n", c["ranks"], *command]
        script, space, temporary = "", "unshare --mount", self.temporary
        if poor:
            if c["temporary"] == "full":
                script += f"mount -t tmpfs -o size=64k full {temporary} && "
                script += f"head -c 1M /dev/zero > {temporary}/filler 2> /dev/null; "
            if c["temporary"] == "absent":
                temporary = self.folder / "no such folder"
            if c["shm"] == "small":
                script += "mount -t tmpfs -o size=24m small /dev/shm; "
            if c["descriptors"] == "few":
                script += "ulimit -n 64; "
            if c["descriptors"] == "unread":
                script += f"exec > {unread(self.folder)}; "
            if c["pids"] == "same":
                space += " --pid --fork --kill-child --mount-proc"
        # Process 1 of a namespace can't be killed from inside: the shell is that one, and the program always the same other.
        script += '"$@"; exit $?' if "--pid" in space else 'exec "$@"'
        how = {"env": {"TMPDIR": temporary}, "fault": fault, "limit": s.timeout}
        done = run(space, ["bash", "-c", script, "bash", *command], **how)
        return done.code, done.text

    def judge(self, code, said, killed):
        c = self.case
        if code == 124:
            return "hangs"
        if code in (9, 137) and killed:
            return ""
        if code not in self.s.exit_codes:
            return f"exit code {code}"
        if code == 71:
            return "ends as a hang"
        if code == 0 or c["descriptors"] == "closed":
            return ""
        return "" if "train_llama: " in said else "no reason"

    def run(self):
        with self.mounted():
            if self.case["killed"] == "resume":  # there is something to resume from
                self.start(True, fault="checkpoint.renamed:0:1:kill")
            starts = [("killed", KILLS[self.case["killed"]], self.case["killed"] == "resume"), ("next", "", True)]
            for what, fault, resume in starts:
                code, said = self.start(True, fault, resume)
                if problem := self.judge(code, said, bool(fault)):
                    return f"{what} start: {problem}", said
            status = self.out / "run_status.json"
            if self.case["disk"] == "plain" and status.exists() and '"running"' in status.read_text():
                return "run_status.json still says running", said
            left = [p.name for p in self.temporary.glob("ringzero-*") if code == 70]
            if left:
                return f"left in the folder for temporary files: {left}", said
            good = self.folder / "good"
            if self.out.exists():
                shutil.copytree(self.out, good, symlinks=True)
        want = self.s.reference(self.case)
        code, said = self.start(False, resume=True, out=good)
        if code == 2 and "no checkpoint to resume from" in said:  # all saves failed, and the final weights did not
            if weights(good) != want:
                return "final weights of no run", said
        elif code != 0:
            return f"in good surroundings: {code}", said
        elif weights(good) != want:
            return "other weights", said
        names = sorted(p.name for p in (good / "final").iterdir())
        if names != self.s.names:
            return f"final/ holds {names}", said
        left = [str(p) for p in good.rglob("*") if TEMPORARY.search(p.name)]
        return (f"left: {left}", said) if left else ("", "")


class Setting:
    def __init__(self, program, timeout):
        self.program, self.timeout, self.data = program, timeout, text_data("100K")
        self.exit_codes = all_faults.exit_codes(run([program], "--help").text)
        self.references, self.names = {}, []

    def reference(self, case):
        """The weights of the undisturbed run; `names` are then what its final/ holds."""
        flags = case["flags"] if "symmetric" in case["flags"] and case["ranks"] != "1" else ""
        key = case["ranks"], flags
        if key not in self.references:
            folder = work / f"whole{len(self.references)}"
            folder.mkdir()
            whole = Case(dict({f: v[0] for f, v in FACTORS.items()}, ranks=case["ranks"], flags=flags), self, folder)
            with whole.mounted():
                code, said = whole.start(False)
                if code != 0:
                    sys.exit(f"the undisturbed run ended with {code}:\n{said}")
                self.references[key] = weights(whole.out)
                self.names = sorted(p.name for p in (whole.out / "final").iterdir())
        return self.references[key]


def main():
    o = options("program", case="", seed=1, timeout=60.0, report="")
    cases = draw_cases(o.seed)
    if o.case:
        cases = [dict(part.split("=", 1) for part in o.case.split(","))]
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        print(f"surroundings: needs root and namespaces\n0 passed, 0 failed, {len(cases)} skipped")
        return
    lines, began = ["| case | result |\n|---|---|\n"], time.monotonic()
    setting = Setting(o.program, o.timeout)
    for number, case in enumerate(cases):
        folder = work / f"case{number}"
        folder.mkdir()
        start, name = time.monotonic(), name_of(case)
        problem, said = Case(case, setting, folder).run()
        lines.append(f"| {name.replace('|', ' ')} | {problem or 'ok'} |\n")
        print(f"{'FAILED' if problem else 'ok':6} {time.monotonic() - start:5.1f} s  {name}", flush=True)
        check(name, not problem, "\n".join([problem, *said.splitlines()[-12:]]))
        remove(folder)
    if o.report:
        head = f"{len(cases)} cases, seed {o.seed}, {time.monotonic() - began:.0f} s.\n\n"
        pathlib.Path(o.report).write_text(head + "".join(lines))
    end()


if __name__ == "__main__":
    main()
