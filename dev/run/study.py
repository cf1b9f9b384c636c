"""What the studies share: runs of the program and what they leave, a journal from which a study that was stopped goes on, Markdown,
and the facts of the machine. Charts are dev/learn/picture.py's."""

import concurrent.futures
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(f"{TOP}/dev/learn")
sys.path.append(f"{TOP}/dev/run")


def read(path):
    """The JSON object of each line."""
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def write(path, text):
    """Replaces the file as a whole."""
    with open(path + ".part", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".part", path)


def beside(report, ending):
    return os.path.splitext(report)[0] + ending


def table(head, rows):
    lines = ["|" + "".join(f" {cell} |" if cell != "" else " |" for cell in row) for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "a CPU")


def commit():
    git = ["git", "-C", TOP]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True).stdout
    return name + (" with changes" if changed else "")


def prepare(folder, *what):
    """Makes a folder of data that is not there yet."""
    if not os.path.exists(f"{folder}/dataset.json"):
        subprocess.run(
            [sys.executable, f"{TOP}/data_prep/prepare.py", *what, "--out", folder, "--quiet"], cwd=TOP, check=True
        )


def write_shard(path, ids, targets=None):
    """llm.c's shard of 16-bit ids; ours, with a bit for each token that is a target, if there are `targets` (data_prep/chat.py)."""
    with open(path, "wb") as f:
        f.write(struct.pack("<4i", 20240520, 1, len(ids), targets is not None).ljust(1024, b"\0"))
        f.write(struct.pack(f"<{len(ids)}H", *ids))
        if targets is not None:
            f.write(bytes(sum(bool(t) << i for i, t in enumerate(targets[at : at + 8])) for at in range(0, len(targets), 8)))


# ---- runs ------------------------------------------------------------------------------------------------------------


def run(command, log, allowed=(0,), **environment):
    """Seconds by the clock and of the CPU. `log` gets what the command prints; where it fails, the study ends with that."""
    command, began = [str(x) for x in command], time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "RINGZERO_RUNS": "", **environment}
    with open(log, "w", encoding="utf-8") as f:
        child = subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, env=environment)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in allowed:
        with open(log, encoding="utf-8", errors="replace") as f:
            sys.exit(f"{' '.join(command)}\nended with {child.returncode}:\n{f.read()[-2000:]}")
    cpu = used.ru_utime + used.ru_stime
    return {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(cpu, 2)}


class Left:
    """What a run has left in the folder that was its --out."""

    def __init__(self, folder):
        self.folder = folder
        self.rows = read(f"{folder}/metrics.jsonl")
        self.steps = [row for row in self.rows if "loss" in row]
        self.validations = {row["step"]: row["val_loss"] for row in self.rows if row.get("val_loss") is not None}

    @property
    def val_loss(self):
        """After the last step; None of a run that diverged before."""
        return self.validations[max(self.validations)] if self.validations else None

    @property
    def commit(self):
        with open(f"{self.folder}/run_status.json", encoding="utf-8") as f:
            return json.load(f)["commit"]

    @property
    def ranks(self):
        with open(f"{self.folder}/ranks.json", encoding="utf-8") as f:
            return json.load(f)


def train(program, flags, out, ranks=1, **how):
    """A run into a folder that is empty at first, and its times."""
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    start = ["mpirun", "-n", ranks] if ranks > 1 else []
    used = run([*start, program, *flags, "--out", out], f"{out}.log", **how)
    return Left(out), used


def each(jobs, function, items):
    """function(*item) of every item, `jobs` at a time; the first failure ends it."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(function, *item) for item in items]:
            job.result()


class Journal:
    """A line of JSON for each run that is done, named by some of its fields. Lines with other values of `fixed` do not count."""

    def __init__(self, path, *keys, **fixed):
        self.path, self.keys, self.fixed, self.lock = path, keys, fixed, threading.Lock()

    def rows(self):
        found, lines = {}, []
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                lines = [line for line in f if line.endswith("\n")]  # one that was cut off is run again
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if all(row[name] == value for name, value in self.fixed.items()):
                    found[tuple(row[key] for key in self.keys)] = row
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{self.path}, line {number}: not a line of this study\n  take it out")
        return found

    def add(self, row):
        with self.lock, open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(row | self.fixed) + "\n")


def arguments(parser, jobs=1):
    """Of a study that has a journal and a picture beside its report."""
    parser.add_argument("program", type=os.path.realpath)
    parser.add_argument("--work", required=True, type=os.path.realpath, help="folder for data and runs")
    parser.add_argument("--report", required=True, help="the page to write; runs (.jsonl) and picture (.svg) are beside it")
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--jobs", type=int, default=jobs, help="runs at a time")
