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

import collections
import concurrent.futures
import contextlib
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
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "program"))
import checks  # noqa: E402
import run_rows  # noqa: E402
from checks import run, weights, work  # noqa: E402

SHAPE = (
    "--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --batch 1 --seq-len 32 --threads 1"
)
TRAIN = f"{SHAPE} --val-every 0 --val-tokens 256 --steps 6 --save-every 2"


class Setting:
    """The text, the undisturbed runs and the folders that cases begin with. A start of the program that hangs ends with 124."""

    def __init__(self, program, shim, timeout=40.0, device="cpu"):
        self.program, self.shim, self.timeout, self.device = program, shim, timeout, f"--device {device}"
        self.data, self.whole, self.base, self.exported = (
            work / name for name in ("data", "whole", "base", "exported")
        )
        self.exit_codes = exit_codes(self.must(self.start("--help")))
        self.must(self.prepare(self.data))
        self.must(self.train(self.whole))
        self.reference = weights(self.whole)
        self.losses = dict(losses(self.whole, ""))
        self.must(self.train(self.base, FAULT="step:0:4:term"), 75)
        self.generated = self.must(self.generate(self.whole))
        self.must(self.export(self.whole, self.exported))

    def must(self, done, code=0):
        if done.code != code:
            sys.exit(f"the undisturbed program ended with {done.code}:\n{done.text}")
        return done.text

    def start(self, *flags, before=(), **env):
        """before: what starts the program."""
        return run(before, [self.program], *flags, env=env, limit=self.timeout)

    def train(self, out, *flags, **more):
        return self.start(TRAIN, self.device, ["--data", self.data, "--out", out], *flags, **more)

    def resume(self, out, *flags, **more):
        return self.train(out, "--resume auto", *flags, **more)

    def generate(self, folder, **more):
        return self.start(
            f"generate --from {folder} --prompt def --max-tokens 4 --temperature 0 --threads 1", self.device, **more
        )

    def export(self, folder, to, *flags, **more):
        return self.start(f"export --from {folder} --to {to} --dtype bf16", *flags, **more)

    def prepare(self, to, **env):
        command = f"{sys.executable} data_prep/prepare.py stdlib --max-bytes 100K --out {to}"
        return run(command, env=env, limit=self.timeout)


@contextlib.contextmanager
def scratch(keep=False):
    """A folder that goes afterwards; kept, it is not among those that the test removes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="case-", dir=None if keep else work))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def exit_codes(text):
    """Those of the table in --help."""
    return {int(code) for code in re.findall(r"^ +(\d+)\t", text.split("Exit codes:")[1], re.M)}


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
    """train, resume, generate, export or prepare; with -memory allocations and threads count, else file operations."""

    def __init__(self, name, setting):
        self.name, self.setting = name, setting
        self.kind, _, self.memory = name.partition("-")

    def prepare(self, folder):
        if self.kind == "resume":
            shutil.copytree(self.setting.base, folder / "out")

    def start(self, folder, **fault):
        s, out = self.setting, folder / "out"
        read = {"export": f"{folder}/:{s.whole}/", "generate": f"{s.whole}/"}.get(self.kind, f"{folder}/:{s.data}/")
        counted = {"FAULT_KINDS": "memory,threads"} if self.memory else {"FAULT_PATHS": read}
        env = {"LD_PRELOAD": s.shim, **counted, **fault}
        if self.kind == "start":
            return s.train(out, FAULT_BEFORE_MAIN=1, **env)
        if self.kind == "prepare":
            return s.prepare(out, FAULT_PROGRAM=os.path.basename(sys.executable), **env)
        if self.kind == "generate":
            return s.generate(s.whole, **env)
        if self.kind == "export":
            return s.export(s.whole, out, **env)
        return (s.resume if self.kind == "resume" else s.train)(out, **env)

    def trace(self):
        """Every counted call of a start without faults: (number, site, its innermost frames, operation, path)."""
        with scratch() as folder:
            self.prepare(folder)
            self.setting.must(self.start(folder, FAULT_TRACE=folder / "trace"))
            lines = (folder / "trace").read_text(errors="replace").splitlines()
            return [tuple(line.split(" ", 4)) for line in lines]

    def judge(self, folder, done, killed):
        """What is wrong after a start in which a call failed; empty if nothing is."""
        s, out = self.setting, folder / "out"
        if done.code == 124:
            return "hangs"
        # Python has exit codes of its own.
        killed_it = killed and done.code == 137
        if not killed_it and done.code not in ((0, 1, 2) if self.kind == "prepare" else s.exit_codes):
            return f"exit code {done.code}"
        if self.kind == "prepare":
            return self.judge_prepare(out, done, killed)
        nameless = done.code != 0 and not killed_it and "train_llama: " not in done.text
        if nameless and "FAULT" not in done.text.split("\n")[-2] and not has_words(done.text):
            return "no message"
        if self.kind == "generate":
            return "" if done.code != 0 or plain(done.text) == plain(s.generated) else "exit code 0 with other text"
        if self.kind == "export":
            same = done.code != 0 or files_of(s.exported).items() <= files_of(out).items()
            return "" if same else "exit code 0 with other files"
        return self.judge_run(out, done) or (self.other_rows(out) if killed else "")

    def judge_prepare(self, out, done, killed):
        """What says 0 is whole, and what does not is made whole by the same command."""
        s = self.setting
        if done.code == 0:
            return "" if files_of(out) == files_of(s.data) else "exit code 0 with other files"
        if not killed and not has_words(done.text):
            return "no message"
        again = s.prepare(out)
        if again.code != 0:
            return f"the next start ends with {again.code}: {again.text[-400:]}"
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
        found, want = (run_rows.rows(folder / "metrics.jsonl") for folder in (out, self.setting.whole))
        return "" if found == want else f"metrics.jsonl has other rows: {[row for row in found if row not in want][:3]}"

    def judge_run(self, out, done):
        s = self.setting
        if wrong := self.wrong_loss(out, done.text):
            return wrong
        before = steps(s.base)[-1] if self.kind == "resume" else 0
        had = steps(out)
        if before and (not had or had[-1] < before):
            return f"the checkpoint of step {before} is gone: {had}"
        if before and "resumed  " not in done.text and re.search(r"^step +1/", done.text, re.M):
            return "started a new run without a word"
        if done.code == 0:
            return "" if weights(out) == s.reference else "exit code 0 with other weights"
        again = s.resume(out)
        if again.code == 2 and not had and "--overwrite" in again.text:
            again = s.train(out, "--overwrite")
        elif again.code != 0 and not had:
            again = s.resume(out)
        if again.code != 0:
            return f"the next start ends with {again.code}: {again.text[-400:]}"
        if had and "resumed  " not in again.text:
            return "the next start began a new run"
        return "" if weights(out) == s.reference else "the next start ends with other weights"


def has_words(text):
    return re.search(r"\w+ \w+", text.replace("FAULT:", ""))


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
        """What is wrong, and the start in which the call went wrong."""
        with scratch(keep) as folder:
            self.scenario.prepare(folder)
            key, value = self.where.split("=")
            done = self.scenario.start(folder, FAULT_DO=self.do, **{f"FAULT_{key.upper()}": value})
            return self.scenario.judge(folder, done, self.do == "kill"), done


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
        trace = scenario.trace()
        wheres = dict(distinct(trace, innermost=True) + each_of(trace, LEDGER))
        add(scenario, list(wheres.items()), "ENOMEM")
        again = [(where, call) for where, call in distinct(trace) if where not in wheres]
        cases.extend(Case(scenario, where, "ENOMEM", call, False) for where, call in again)
    return cases


def core_minutes():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


class Journal:
    """What was run, by name of the case; in a file, which the next start continues, if one is named."""

    def __init__(self, path, *programs):
        self.rows, self.before, self.file = {}, 0, None  # before: core-minutes of earlier starts
        if not path:
            return
        head = {"of": [hashlib.sha256(pathlib.Path(program).read_bytes()).hexdigest() for program in programs]}
        lines = pathlib.Path(path).read_text().splitlines() if os.path.exists(path) else []
        rows = [json.loads(line) for line in lines if line.endswith("}")]  # a line may be cut
        if rows and rows[0] != head:
            sys.exit(f"{path} is of another program, whose places differ: name another file, or remove it")
        self.rows = {row["case"]: row for row in rows[1:]}
        self.before = max((row["spent"] for row in rows[1:]), default=0)
        self.file = open(path, "w", buffering=1)
        for row in [head, *rows[1:]]:
            self.file.write(json.dumps(row) + "\n")

    def spent(self):
        return self.before + core_minutes()

    def add(self, case, problem, done):
        about = "\n".join([problem, *done.text.splitlines()[-6:]]) if problem else ""
        row = self.rows[case.name()] = {"case": case.name(), "problem": about, "spent": self.spent()}
        if self.file:
            self.file.write(json.dumps(row) + "\n")


def report(cases, journal, seconds):
    """What was run, by scenario and action."""
    table, failures = collections.defaultdict(collections.Counter), []
    for case in cases:
        row = journal.rows.get(case.name())
        table[case.scenario.name, case.do].update(cases=1, firsts=case.first, run=bool(row))
        if row and row["problem"]:
            table[case.scenario.name, case.do].update(failed=1)
            failures.append(f"FAILED: {case.name()}  ({case.call})\n{row['problem']}\n")
    sums = sum(table.values(), collections.Counter())
    columns = "cases", "firsts", "run", "failed"
    rows = [" | ".join([*name, *(str(of[key]) for key in columns)]) for name, of in sorted(table.items())]
    return f"""# Every call fails once: {time.strftime("%Y-%m-%d", time.gmtime())}

`test/faults/all_faults.py {" ".join(sys.argv[1:])}` at commit {run("git rev-parse --short HEAD").text.strip()}, {os.cpu_count()} cores, CPU.

**{sums["run"]} of {sums["cases"]} cases in {seconds:.0f} s, {journal.spent():.1f} core-minutes; {sums["failed"]} failed.** {sums["firsts"]} are the
first of a place in the program and come first. A case is a start of the program in which one call goes wrong, and where it
trains, the start after it; `judge()` in the script says what is asked. Those not run were drawn by chance.

| scenario | the call | cases | of a new place | run | failed |
|---|---|---|---|---|---|
""" + "\n".join([*(f"| {row} |" for row in rows), *(["", "```", *failures, "```"] if failures else []), ""])


def main():
    args = checks.options(
        "program",
        "shim",
        quick=False,
        only="",
        case="",
        jobs=os.cpu_count(),
        minutes=math.inf,
        core_minutes=math.inf,
        seed=1,
        timeout=40.0,
        journal="",
        report="",
    )
    setting = Setting(args.program, args.shim, args.timeout)
    if args.case:
        name, where, do = re.fullmatch(r"([^:]+):(.*):(\w+)", args.case).groups()
        problem, done = Case(Scenario(name, setting), where, do, "").run(keep=True)
        print(done.text, problem or "passed", sep="\n")
        sys.exit(bool(problem))
    cases = choose(setting, args.quick, args.only.split(",") if args.only else [])
    journal, began = Journal(args.journal, args.program, args.shim), time.monotonic()
    if min(args.minutes, args.core_minutes) < math.inf:
        random.Random(args.seed).shuffle(cases)
        cases.sort(key=lambda case: not case.first)
    left = [case for case in cases if case.name() not in journal.rows]

    def one(case):
        over = time.monotonic() - began > 60 * args.minutes or core_minutes() > args.core_minutes
        return None if over else case.run()

    def count(case):
        problem = journal.rows[case.name()]["problem"]
        checks.check(f"{case.name()}  ({case.call})", not problem, problem)

    for case in cases:
        if case.name() in journal.rows:
            count(case)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for case, result in zip(left, pool.map(one, left)):
            if result:
                journal.add(case, *result)
                count(case)
    if args.report:
        pathlib.Path(args.report).write_text(report(cases, journal, time.monotonic() - began))
    print(f"{len(journal.rows)} cases in {time.monotonic() - began:.0f} s and {core_minutes():.1f} core-minutes")
    checks.skipped = len(cases) - checks.passed - checks.failed
    checks.end()


if __name__ == "__main__":
    main()
