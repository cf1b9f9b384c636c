#!/usr/bin/env python3
"""Fails, kills or shortens every file operation of the program, one at a time, and every allocation and thread.

    test/faults/all_faults.py PROGRAM SHIM [--quick] [--only NAME[,NAME]] [--jobs N] [--case NAME:WHERE:DO]
                              [--minutes M] [--core-minutes M] [--timeout S] [--journal FILE] [--report FILE]

PROGRAM is train_llama, SHIM the library made of file_faults.cpp. A case is a start of the program in which one call goes
wrong; what is asked of each is in judge(). --quick: some, for `make test`. --case: one case again, as it is named
in the report, keeping its folder. --minutes, --core-minutes: the cases come in a random order, those first that are the first
of their place in the program (by the stack; of allocations, by its innermost frames), and no more are begun after M minutes, or
minutes of all cores together; those left out are counted as skipped. --timeout: seconds after which a start hangs. --journal: a line for
each case that was run; the next start with this file, and the same program, does only the others. --report: what was run, by kind of case, as
Markdown. Ends with "N passed, N failed, N skipped".
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "program"))
import checks  # noqa: E402
import run_rows  # noqa: E402
from checks import ROOT, weights, work  # noqa: E402

SHAPE = (
    "--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --batch 1 --seq-len 32 --threads 1"
).split()
TRAIN = SHAPE + "--val-every 0 --val-tokens 256 --steps 6 --save-every 2".split()


@dataclasses.dataclass
class Start:
    """One start of the program in a folder of its own."""

    code: int
    output: str


class Setting:
    """The text, the undisturbed runs and the folders that cases begin with."""

    def __init__(self, program, shim, timeout=40, device="cpu"):
        self.program, self.shim, self.work, self.timeout = program, shim, work, timeout
        self.device = ["--device", device]
        self.data = self.work / "data"
        self.exit_codes = exit_codes(self.must(self.run([program, "--help"])))
        subprocess.run(prepare_command(self.data), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        whole = self.work / "whole"
        self.must(self.train(whole))
        self.reference = weights(whole)
        self.losses = dict(losses(whole, ""))
        self.base = self.work / "base"
        self.must(self.train(self.base, FAULT="step:0:4:term"), 75)
        self.generated = self.must(self.run(self.generate_command(whole)))
        self.exported = self.work / "exported"
        self.must(self.run(export_command(self.program, whole, self.exported)))

    def must(self, start, code=0):
        if start.code != code:
            sys.exit(f"the undisturbed program ended with {start.code}:\n{start.output}")
        return start.output

    def run(self, command, **more):
        env = {**os.environ, **more}
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            done = subprocess.run(command, env=env, timeout=self.timeout, **both)
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, output = "hang", late.stdout or b""
        return Start(code, output.decode(errors="replace"))

    def train(self, out, *flags, limit=(), **more):
        command = [*limit, self.program, *TRAIN, *self.device, "--data", str(self.data), "--out", str(out), *flags]
        return self.run(command, **more)

    def generate_command(self, folder):
        flags = "--prompt def --max-tokens 4 --temperature 0 --threads 1"
        return [self.program, "generate", "--from", str(folder), *flags.split(), *self.device]

    def resume(self, out, *flags, **more):
        return self.train(out, "--resume", "auto", *flags, **more)


def exit_codes(text):
    """Those of the table in --help."""
    return {int(code) for code in re.findall(r"^ +(\d+)\t", text.split("Exit codes:")[1], re.M)}


def prepare_command(to):
    return [sys.executable, str(ROOT / "data_prep/prepare.py"), "stdlib", "--max-bytes", "100K", "--out", str(to)]


def export_command(program, folder, to):
    return [program, "export", "--from", str(folder), "--to", str(to), "--dtype", "bf16"]


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def losses(folder, output):
    """(step, loss) of a run's metrics, and of its console in the console's digits."""
    file = folder / "metrics.jsonl"
    for line in file.read_text(errors="replace").splitlines() if file.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:  # the last one, of a run that was killed
            continue
        if "loss" in row:
            yield row["step"], row["loss"]
    for step, loss in re.findall(r"^step +(\d+)/\d+ \| loss (\S+)", output, re.M):
        yield int(step), loss


def steps(folder):
    names = [p.name for p in (folder / "checkpoints").glob("step_*")]
    return sorted(int(n[5:]) for n in names if re.fullmatch(r"step_\d+", n))


# ---- what is started, and what must hold afterwards --------------------------------------------------------------------


class Scenario:
    def __init__(self, name, setting):
        self.name, self.setting = name, setting
        self.paths = True  # file operations count; else allocations and threads

    def prepare(self, folder):
        if self.name.startswith("resume"):
            shutil.copytree(self.setting.base, folder / "out")

    def start(self, folder, **fault):
        s, out = self.setting, folder / "out"
        env = dict(fault, LD_PRELOAD=s.shim)
        if self.paths:
            env["FAULT_PATHS"] = f"{folder}/:{s.data}/" if self.name != "export" else f"{folder}/:{s.work}/whole/"
            if self.name == "generate":
                env["FAULT_PATHS"] = f"{s.work}/whole/"
        else:
            env["FAULT_KINDS"] = "memory,threads"
        if self.name == "start-memory":
            env["FAULT_BEFORE_MAIN"] = "1"
        kind = self.name.split("-")[0]
        if kind in ("train", "start"):
            return s.train(out, **env)
        if kind == "resume":
            return s.resume(out, **env)
        if kind == "prepare":
            return s.run(prepare_command(out), FAULT_PROGRAM=os.path.basename(sys.executable), **env)
        if kind == "generate":
            return s.run(s.generate_command(s.work / "whole"), **env)
        return s.run(export_command(s.program, s.work / "whole", out), **env)

    def trace(self):
        """Every counted call of a start without faults: (number, site, its innermost frames, operation, path)."""
        with tempfile.TemporaryDirectory(dir=self.setting.work) as name:
            folder = pathlib.Path(name)
            self.prepare(folder)
            log = folder / "trace"
            done = self.start(folder, FAULT_TRACE=str(log))
            if done.code != 0:
                sys.exit(f"{self.name}: the undisturbed start ended with {done.code}:\n{done.output}")
            return [tuple(line.split(" ", 4)) for line in log.read_text(errors="replace").splitlines()]

    def judge(self, folder, done, killed):
        """What is wrong after a start in which a call failed; empty if nothing is."""
        s, out = self.setting, folder / "out"
        if done.code == "hang":
            return "hangs"
        if self.name == "prepare":
            return self.judge_prepare(out, done, killed)
        if done.code == -9 and killed:
            pass
        elif done.code not in s.exit_codes:
            return f"exit code {done.code}"
        if (
            done.code not in (0, -9)
            and "train_llama: " not in done.output
            and "FAULT" not in done.output.split("\n")[-2]
        ):
            if not re.search(r"\w+ \w+", done.output.replace("FAULT:", "")):
                return "no message"
        kind = self.name.split("-")[0]
        if kind == "generate":
            return "" if done.code != 0 or plain(done.output) == plain(s.generated) else "exit code 0 with other text"
        if kind == "export":
            if done.code != 0:
                return ""
            same = all(
                (out / f.name).exists() and (out / f.name).read_bytes() == f.read_bytes() for f in s.exported.iterdir()
            )
            return "" if same else "exit code 0 with other files"
        return self.judge_run(out, done) or (self.other_rows(out) if killed else "")

    def judge_prepare(self, out, done, killed):
        """Python's own exit codes; what says 0 is whole, and what does not is made whole by the same command."""
        s = self.setting
        if done.code not in (0, 1, 2) and not (killed and done.code == -9):
            return f"exit code {done.code}"
        if done.code == 0:
            return "" if files_of(out) == files_of(s.data) else "exit code 0 with other files"
        if not killed and not re.search(r"\w+ \w+", done.output.replace("FAULT:", "")):
            return "no message"
        again = s.run(prepare_command(out))
        if again.code != 0:
            return f"the next start ends with {again.code}: {again.output[-400:]}"
        return "" if files_of(out) == files_of(s.data) else "the next start makes other files"

    def wrong_loss(self, out, output):
        """A loss is printed only of work that was done."""
        for step, loss in losses(out, output):
            want = self.setting.losses.get(step, math.nan)
            if loss != (f"{want:.4f}" if isinstance(loss, str) else want):
                return f"step {step} is said to have loss {loss}, not {want}"
        return ""

    def other_rows(self, out):
        """After a kill and the start that followed: the rows of the undisturbed run, each once."""
        found, want = (run_rows.rows(folder / "metrics.jsonl") for folder in (out, self.setting.work / "whole"))
        return "" if found == want else f"metrics.jsonl has other rows: {[row for row in found if row not in want][:3]}"

    def judge_run(self, out, done):
        s = self.setting
        if wrong := self.wrong_loss(out, done.output):
            return wrong
        before = steps(s.base)[-1] if self.name.startswith("resume") else 0
        had = steps(out)
        if before and (not had or had[-1] < before):
            return f"the checkpoint of step {before} is gone: {had}"
        if before and "resumed  " not in done.output and re.search(r"^step +1/", done.output, re.M):
            return "started a new run without a word"
        if done.code == 0:
            return "" if weights(out) == s.reference else "exit code 0 with other weights"
        again = s.resume(out) if before or had or (out / "metrics.jsonl").exists() else s.train(out, "--resume", "auto")
        if again.code == 2 and not had and "--overwrite" in again.output:
            again = s.train(out, "--overwrite")
        elif again.code != 0 and not had:
            again = s.train(out, "--resume", "auto")
        if again.code != 0:
            return f"the next start ends with {again.code}: {again.output[-400:]}"
        if had and "resumed  " not in again.output:
            return "the next start began a new run"
        return "" if weights(out) == s.reference else "the next start ends with other weights"


def plain(text):
    """Without what the shim says, also in the middle of a line, what was tried again, and the line with the speed."""
    text = re.sub(r"FAULT: .*\n", "", text)
    return [line for line in text.splitlines() if not re.search("; trying again$|tokens/s", line)]


@dataclasses.dataclass
class Case:
    scenario: Scenario
    where: str  # "at=17" or "site=0123456789ab:1"
    do: str
    call: str  # for people
    first: bool = True  # of its place: before those that repeat one

    def name(self):
        return f"{self.scenario.name}:{self.where}:{self.do}"

    def run(self, keep=False):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="case-", dir=None if keep else work))
        try:
            self.scenario.prepare(folder)
            key, value = self.where.split("=")
            done = self.scenario.start(folder, FAULT_DO=self.do, **{f"FAULT_{key.upper()}": value})
            problem = self.scenario.judge(folder, done, self.do == "kill")
            return self, problem, done
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)


def distinct(trace, operations=None, innermost=False):
    """The first call of every place in the program, or of every place by its innermost frames."""
    seen = {}
    for _, site, near, operation, path in trace:
        key = near if innermost else site
        if key not in seen and (operations is None or operation in operations):
            seen[key] = (f"site={site}:1", f"{operation} {path}")
    return list(seen.values())


def each_of(trace, operations):
    """Every call of these operations, by its place and how many of that place came before: threads do not move it."""
    seen, found = {}, []
    for _, site, _, operation, path in trace:
        if operation in operations:
            seen[site] = seen.get(site, 0) + 1
            found.append((f"site={site}:{seen[site]}", f"{operation} {path}"))
    return found


TRANSFERS = {"read", "write"}
LEDGER = {"aligned_alloc", "posix_memalign"}  # what buffers are made with
NAMING = {"open", "stat", "access", "opendir", "mkdir", "rename", "exchange", "remove", "link", "statvfs"}
WRITING = {"open", "write", "mkdir", "rename", "exchange", "link", "fsync", "close", "truncate", "reserve"}
OTHERS = {"ESTALE": None, "ENOSPC": WRITING, "EACCES": NAMING, "ENOENT": NAMING}  # and the calls that may end so


def choose(setting, quick, only):
    cases = []

    def add(scenario, wheres, *actions):
        cases.extend(Case(scenario, where, do, call) for do in actions for where, call in wheres)

    def add_every(scenario, trace, *actions):
        """Each call; those that come again from the same place last."""
        for do in actions:
            seen = set()
            for number, site, _, operation, path in trace:
                cases.append(Case(scenario, f"at={number}", do, f"{operation} {path}", site not in seen))
                seen.add(site)

    def wanted(name):
        return not only or name in only

    for name in ("resume", "train", "generate", "export", "prepare"):
        if not wanted(name):
            continue
        scenario = Scenario(name, setting)
        trace = scenario.trace()
        if quick:
            if name == "resume":
                add(scenario, distinct(trace, innermost=True)[::2], "EIO")
            elif name == "train":
                add_every(scenario, trace[::90], "kill")
            continue
        add_every(scenario, trace, "EIO")
        if name in ("resume", "train", "prepare"):
            add_every(scenario, trace, "kill")
        if name == "prepare":
            continue
        for error, calls in OTHERS.items():
            add(scenario, distinct(trace, calls), error)
        add(scenario, distinct(trace, TRANSFERS), "short")
    for name in ("start-memory", "resume-memory", "generate-memory"):
        if quick or not wanted(name):
            continue
        scenario = Scenario(name, setting)
        scenario.paths = False
        trace = scenario.trace()
        wheres = dict(distinct(trace, innermost=True) + each_of(trace, LEDGER))
        add(scenario, list(wheres.items()), "ENOMEM")
        again = [(where, call) for where, call in distinct(trace) if where not in wheres]
        cases.extend(Case(scenario, where, "ENOMEM", call, False) for where, call in again)
    return cases


class Tally:
    """What was run, by scenario and action."""

    def __init__(self, cases):
        self.began, self.rows, self.failures = time.monotonic(), {}, []
        self.before = 0  # core-minutes of earlier starts
        for case in cases:
            self.row(case)["cases"] += 1
            self.row(case)["firsts"] += case.first

    def row(self, case):
        empty = {"cases": 0, "firsts": 0, "run": 0, "failed": 0}
        return self.rows.setdefault((case.scenario.name, case.do), empty)

    def add(self, case, problem, output):
        self.row(case)["run"] += 1
        what, about = f"{case.name()}  ({case.call})", "\n".join([problem, *output.splitlines()[-6:]])
        checks.check(what, not problem, about)
        if problem:
            self.row(case)["failed"] += 1
            self.failures.append(f"FAILED: {what}\n{about}")

    def total(self, key):
        return sum(row[key] for row in self.rows.values())

    def report(self, command):
        git = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
        text = [
            f"# Every call fails once: {time.strftime('%Y-%m-%d', time.gmtime())}",
            "",
            f"`{command}` at commit {commit}, {os.cpu_count()} cores, CPU.",
            "",
            f"**{self.total('run')} of {self.total('cases')} cases in {time.monotonic() - self.began:.0f} s, "
            f"{self.before + core_minutes():.1f} core-minutes; {self.total('failed')} failed.** Of {self.total('firsts')} first calls of a place,"
            f" which come first, {min(self.total('run'), self.total('firsts'))} were run. A case is a start of the program in which one call goes wrong, and where it",
            "trains, the start after it; `judge()` in the script says what is asked. Those not run were drawn by chance.",
            "",
            "| scenario | the call | cases | of a new place | run | failed |",
            "|---|---|---|---|---|---|",
        ]
        text += [
            f"| {name} | {do} | {r['cases']} | {r['firsts']} | {r['run']} | {r['failed']} |"
            for (name, do), r in sorted(self.rows.items())
        ]
        if self.failures:
            text += ["", "```", *self.failures, "```"]
        return "\n".join(text) + "\n"


def core_minutes():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


class Journal:
    """What earlier starts have done, and what this one does."""

    def __init__(self, path, setting):
        self.path, self.done, self.before = path, {}, 0
        if not path:
            return
        hashes = [hashlib.sha256(pathlib.Path(f).read_bytes()).hexdigest() for f in (setting.program, setting.shim)]
        lines = pathlib.Path(path).read_text().splitlines() if os.path.exists(path) else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]  # a line may be cut
        if rows and rows[0].get("of") != hashes:
            sys.exit(f"{path} is of another program, whose places differ: name another file, or remove it")
        spent = 0
        for row in rows[1:]:
            if row["spent"] < spent:  # another start
                self.before += spent
            spent = row["spent"]
            self.done[row["case"]] = row
        self.before += spent
        self.file = open(path, "a", buffering=1)
        self.file.write("\n" if lines and not lines[-1].endswith("}") else "")
        if not rows:
            self.file.write(json.dumps({"of": hashes}) + "\n")

    def add(self, case, problem, output):
        if self.path:
            row = {"case": case.name(), "problem": problem, "spent": core_minutes(), "output": output[-800:]}
            self.file.write(json.dumps(row) + "\n")


def run_all(cases, args, journal):
    tally = Tally(cases)
    tally.before = journal.before
    if args.minutes or args.core_minutes:
        random.Random(args.seed).shuffle(cases)
        cases.sort(key=lambda case: not case.first)

    def one(case):
        if args.minutes and time.monotonic() - tally.began > 60 * args.minutes:
            return None
        if args.core_minutes and core_minutes() > args.core_minutes:
            return None
        return case.run()

    for case in cases:
        if row := journal.done.get(case.name()):
            tally.add(case, row["problem"], row["output"])
    left = [case for case in cases if case.name() not in journal.done]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(one, left):
            if result:
                case, problem, done = result
                tally.add(case, problem, done.output)
                journal.add(case, problem, done.output)
            if args.report:
                command = " ".join(["test/faults/all_faults.py", *sys.argv[1:]])
                pathlib.Path(args.report).write_text(tally.report(command))
    run = tally.total("run")
    print(f"{run} cases in {time.monotonic() - tally.began:.0f} s and {core_minutes():.1f} core-minutes")
    checks.skipped = len(cases) - run
    checks.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("shim")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--case", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--core-minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=40)
    parser.add_argument("--journal", default="")
    parser.add_argument("--report", default="")
    args = parser.parse_args(checks.arguments)
    setting = Setting(args.program, args.shim, args.timeout)
    if args.case:
        name, where, do = re.fullmatch(r"([^:]+):(.*):(\w+)", args.case).groups()
        scenario = Scenario(name, setting)
        scenario.paths = not name.endswith("memory")
        _, problem, done = Case(scenario, where, do, "").run(keep=True)
        print(done.output, problem or "passed", sep="\n")
        sys.exit(bool(problem))
    cases = choose(setting, args.quick, args.only.split(",") if args.only else [])
    run_all(cases, args, Journal(args.journal, setting))


if __name__ == "__main__":
    main()
