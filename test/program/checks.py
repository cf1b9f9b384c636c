"""What the program tests share: a folder, runs of the program, checks that are counted, the closing line.

A command is written as in a shell, `run(f"{program} plan --gpus 2", ["a flag", folder])`: text is split, lists are taken
as they are. A run has an exit code and a text; `expect` counts one check for its code and one for each text that it must say.
"""

import argparse
import atexit
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(f"{ROOT}/test/faults")
import run_rows  # noqa: E402

work = pathlib.Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, work, ignore_errors=True)
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
# One thread for each rank, and none spins; a run without --out keeps nothing.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", RINGZERO_RUNS="")
for name in ("FAULT", "SLURM_JOB_END_TIME", "RINGZERO_RESTART"):
    os.environ.pop(name, None)
arguments = [os.path.realpath(a) if os.path.exists(a) else a for a in sys.argv[1:]]
os.chdir(ROOT)


def options(*positional, **defaults):
    """The command line: its arguments, and a flag for each keyword, of its default's type. False: a switch; a tuple: choices."""
    about = {"description": sys.modules["__main__"].__doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(**about)
    for name in positional:
        parser.add_argument(name)
    for name, default in defaults.items():
        if default is False:
            kind = {"action": "store_true"}
        elif isinstance(default, tuple):
            kind = {"type": type(default[0]), "choices": default, "default": default[0]}
        else:
            kind = {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", **kind)
    return parser.parse_args(arguments)


# A machine for plans, whose rates nobody measured.
MACHINE = """memory-gib = 64
gemm-bf16-tflops = 1
gemm-fp32-tflops = 1
memory-gbs = 10
link-gbs = 1
card-gbs = 1
"""
passed = failed = skipped = 0
prefix = ""  # of the names of checks: the case that runs
last = ""  # what the last run printed


def check(name, good, about=None):
    """Counts a check. `about` is printed if it failed, else the end of what the last run has printed."""
    global passed, failed
    if good:
        passed += 1
        return
    failed += 1
    lines = (last if about is None else str(about)).splitlines()[-20:]
    print(f"FAILED: {prefix}{name}", *(f"    {line}" for line in lines), sep="\n", flush=True)


def equal(name, got, want):
    check(name, got == want, f"got    {got}\nwanted {want}")


@contextlib.contextmanager
def holds(name):
    """One check of all that a block asserts, for `with holds("name"):`."""
    try:
        yield
        about = None
    except Exception:
        about = traceback.format_exc()
    check(name, about is None, about)


def skip(name):
    global skipped
    skipped += 1
    print(f"skipped: {prefix}{name}", flush=True)


def end():
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    sys.exit(failed > 0)


class Skipped(Exception):
    """Ends a case for which something is not here."""


def run_case(name, functions):
    """A named part of a test. One that throws has failed, and the next one runs."""
    global prefix
    prefix, began, before = f"{name}: ", time.monotonic(), passed + failed
    try:
        for function in functions:
            function()
    except Skipped as reason:
        skip(reason)
    except Exception:
        check("ends", False, last + traceback.format_exc())
    print(f"case {name:24} {passed + failed - before:3} checks, {time.monotonic() - began:3.0f} s", flush=True)
    prefix = ""


# ---- runs --------------------------------------------------------------------------------------------------------------


def split(parts):
    """One command from texts, which are split as a shell does, and lists and paths, which are not."""
    command = []
    for part in parts:
        if isinstance(part, (list, tuple)):
            command += map(str, part)
        elif isinstance(part, str):
            command += shlex.split(part)
        else:
            command.append(str(part))
    return command


class Run:
    """A process: `code` once it has ended, `text` of both outputs."""

    def __init__(self, *command, fault="", env=None, limit=300, cwd=ROOT, stdin=None, log=None, before=None):
        if not log:
            handle, log = tempfile.mkstemp(dir=work, suffix=".log")
            os.close(handle)
        self.log, self.limit, self.code = pathlib.Path(log), limit, None
        variables = {**os.environ, **({"FAULT": fault} if fault else {}), **{k: str(v) for k, v in (env or {}).items()}}
        with open(self.log, "ab") as out, contextlib.ExitStack() as files:
            input_of = subprocess.DEVNULL
            if stdin is not None:
                input_of = files.enter_context(tempfile.TemporaryFile())
                input_of.write(stdin if isinstance(stdin, bytes) else stdin.encode())
                input_of.seek(0)
            self.process = subprocess.Popen(
                split(command),
                stdin=input_of,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=cwd,
                preexec_fn=before,
            )
        self.pid = self.process.pid

    @property
    def text(self):
        return self.log.read_text(errors="replace")

    def says(self, pattern):
        return re.search(pattern, self.text, re.M)

    def count(self, pattern):
        return len(re.findall(pattern, self.text, re.M))

    def signal(self, number):
        os.kill(self.pid, number)

    def until(self, condition, seconds=90):
        """Waits until the text matches, or the function gives something true; says whether it came to that."""
        find = (lambda: self.says(condition)) if isinstance(condition, str) else condition
        return until(lambda: find() or self.process.poll() is not None, seconds) and bool(find())

    def wait(self):
        """Exit code in `code`: as a shell counts, 128 + N for signal N. One that takes too long is killed: 124."""
        global last
        try:
            code = self.process.wait(self.limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = 124
        self.code = code if code >= 0 else 128 - code
        last = self.text
        return self


def until(condition, seconds=60):
    end_of_wait = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end_of_wait:
            return False
        time.sleep(0.05)
    return True


def run(*command, **more):
    return Run(*command, **more).wait()


def dies(code):
    """Ended with an error, and not since it took too long."""
    return code not in (0, 124)


def expect(what, run, code=0, says=(), silent=()):
    """Checks a run: its code (a number, or a function of it; None: any), each pattern that it must say, each that it must not."""
    about = f"exit code {run.code}\n{run.text}"
    if callable(code):
        check(f"{what}: exit code", code(run.code), about)
    elif code is not None:
        check(f"{what}: exit code {code}", run.code == code, about)
    for pattern in listed(says):
        check(f"{what}: says {pattern}", run.says(pattern), about)
    for pattern in listed(silent):
        check(f"{what}: does not say {pattern}", not run.says(pattern), about)
    return run


def said(pattern):
    """What the last run has said: the pattern's last group, or all of it; nothing: an empty text."""
    found = re.search(pattern, last, re.M)
    return found[found.lastindex or 0] if found else ""


def commands(text, *before, **more):
    """A command a line: `name | exit code | command | pattern | pattern`, as expect() has them; the command goes after `before`.
    $1 in a line is what the first pattern of the line before has found, its (...)."""
    says = []
    for line in text.strip().splitlines():
        line = line.strip().replace("$1", said(says[0]) if says else "")
        what, code, command, *says = line.split(" | ")
        expect(what, run(*before, command, **more), int(code), says)


def together(*runs):
    """Processes with one log as one: it ends with the code of one that failed."""
    codes = [run.wait().code for run in runs]
    runs[0].code = next(filter(None, codes), 0)
    return runs[0]


def proc(pid, name):
    """A file of /proc about a process; of one that is gone nothing."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def variables(pid):
    """A process's environment."""
    return dict(pair.split("=", 1) for pair in proc(pid, "environ").split("\0") if "=" in pair)


def children(pid, pattern=""):
    """The processes that a process has started and whose command line has a pattern."""
    lists = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for file in lists for child in file.read_text().split()]
    return [child for child in found if re.search(pattern, proc(child, "cmdline").replace("\0", " "))]


def ranks_of(job):
    """The processes that --ranks has started, by rank."""
    return {int(rank): pid for pid in children(job.pid) if (rank := variables(pid).get("RINGZERO_RANK"))}


def gone(out):
    """No process of that run is left."""
    found = ["pgrep", "-f", "--", f"--out {work / out}( |$)"]
    return until(lambda: subprocess.run(found, capture_output=True).returncode, 10)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listed(one_or_more):
    return [one_or_more] if isinstance(one_or_more, str) else one_or_more


def has_mpi(program):
    return (
        shutil.which("mpirun") and "libmpi" in subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    )


def installed(what, variable, path, probe, *packages):
    """A program that a variable names, or one of a venv in build/, into which packages are installed first. None, and skipped, where
    it doesn't run."""

    def fails():
        return run("env", [program], probe).code != 0

    program = os.environ.get(variable, path)
    if fails() and variable not in os.environ:
        venv = pathlib.Path(path).parents[1]
        run("python3 -m venv", venv)
        run("env", [venv / "bin/pip"], "install -q", packages, limit=3000)
    if not fails():
        return program
    skip(f"{what} can't be had here: {last.splitlines()[-1]}")


# ---- what runs leave ---------------------------------------------------------------------------------------------------


def weights(out):
    """A hash of the final weights; of none, a text that no other run has."""
    file = work / out / "final/model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else f"{out} has no final weights"


def same_weights(what, a, b):
    check(f"{what}: the same weights", weights(a) == weights(b), f"{a}: {weights(a)}\n{b}: {weights(b)}\n{last}")


def same_file(what, a, b):
    one, other = (file.read_bytes() if file.exists() else None for file in (work / a, work / b))
    check(f"{what}: {b}", one is not None and one == other, f"not the bytes of {a}")


def load(*path):
    return json.loads(work.joinpath(*path).read_text())


def tensors(file):
    """{name: (type, shape, bytes)} of a safetensors file."""
    data = (work / file).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    head, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    head.pop("__metadata__", None)
    return {name: (of["dtype"], of["shape"], body[slice(*of["data_offsets"])]) for name, of in head.items()}


def same_rows(what, out, other):
    """Every row of metrics, statistics, TensorBoard and W&B."""
    equal(f"{what}: the rows of {other}", *(run_rows.text(work / name) for name in (out, other)))


def as_undisturbed(what, job, out, like="undisturbed", most=3):
    """A run that started again: few steps are lost at each restart, its weights and rows are those of a run that nothing happened to,
    and nothing is left in memory."""
    lost, at = [], 0
    for step, source in re.findall(r"^step +(\d+)/|^resumed .*?step_(\d+)", job.text, re.M):
        lost += [at - int(source)] if source else []
        at = int(step or source)
    check(f"{what}: at most {most} steps are lost", max(lost, default=0) <= most, f"{lost}\n{job.text}")
    same_weights(f"{what} and {like}", out, like)
    same_rows(what, out, like)
    check("  nothing is left in memory", not in_memory(job), in_memory(job))


def in_memory(job):
    """Folders of snapshots that a job has named and that are there."""
    return [folder for folder in re.findall(r"/dev/shm/ringzero-restart-\w+", job.text) if os.path.exists(folder)]


def rows(out, key="loss", name="metrics.jsonl"):
    """The rows of a run's metrics that have a key."""
    file = work / out / name
    lines = file.read_text().splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if key in row]


def sent_as_planned(out, *command):
    """Each step of a run has sent what --print-config says of the same flags; gives that by axis."""
    told = expect(f"{out}: --print-config", run(*command, ["--out", work / out, "--print-config"])).text
    found = re.findall(
        r"^ +(tp|cp|pp|data|replicate|model) +\S+ +(\d+)", told.split("bytes that it sends", 1)[-1], re.M
    )
    axes = {axis: int(bytes) for axis, bytes in found if int(bytes)}
    steps = rows(out, "bytes_sent")
    by_axis = [{axis: of["bytes_sent"] for axis, of in step["axes"].items()} for step in steps]
    check("  each step sent that, by axis", steps and all(of == axes for of in by_axis), f"{by_axis} {axes}")
    equal("  and in sum", {step["bytes_sent"] for step in steps}, {sum(axes.values())})
    some = [of["seconds"] > 0 for step in steps for axis, of in step["axes"].items() if axis in ("tp", "cp", "data")]
    check("  in some time", some and all(some), steps)
    return axes


def far(out, other, first=0, last=1 << 30, loss=1e-5, norm=1e-6):
    """What differs between two runs' metrics: losses and norms by more than a relative bound, steps and tokens at all."""
    exact = dict.fromkeys(("step", "data_hash", "attention_share", "lr"), 0)
    bounds = {"loss": loss, "val_loss": loss, "z_loss": loss, "grad_norm": norm, **exact}
    a, b = ([row for row in rows(run, "step") if first <= row["step"] <= last] for run in (out, other))
    if len(a) != len(b) or len(a) < 2:
        return f"{len(a)} and {len(b)} rows"
    for x, y in zip(a, b):
        for key, bound in bounds.items():
            near = x.get(key) and y.get(key) and abs(x[key] / y[key] - 1) <= bound if bound else False
            if x.get(key) != y.get(key) and not near:
                return f"{key}: {x}\n{y}"
    return ""


def close(what, out, other, **bounds):
    differs = far(out, other, **bounds)
    check(f"{what}: losses and norms of {other}", not differs, differs)


class Table:
    """Runs as rows of a text, one a line; each must end well, or as the row says:

        tp2    2 --tp 2 | close to one | says 2 ranks share each tensor
        half   8 --tp 2 --pp 2 | fault step:1:4:kill | fails
        on     4 --tp 4 --resume auto | from half | bits of whole

    A row is the run's folder, how many ranks, flags, and then words:
        weights of RUN                  the same final weights
        bits of RUN                     and the same losses, norms, rates and tokens of each step
        close to RUN [BOUND=VALUE]...   losses, norms and tokens as far() compares them
        other than RUN                  other final weights
        says TEXT, silent TEXT          a regular expression of its output
        code N, fails                   instead of an exit code of 0; no final weights
        status KEY=VALUE...             in run_status.json
        steps N...                      the checkpoints that are left, and nothing half written
        fault FAULT, with NAME=VALUE    in its environment
        from RUN [to STEP]              begins with a copy of that run's folder, without its end, and what came after a step
        there                           goes on in the folder that is there
    """

    WORDS = set("weights bits close other says silent code fails status steps fault with from there".split())

    def __init__(self, program, model, launcher="mpirun -n", limit=300, bounds=None, resumed=None):
        """launcher: mpirun -n, or --ranks, the program itself; one rank needs none. resumed: flags of a row with --resume."""
        self.program, self.model, self.launcher, self.limit = program, split([model]), launcher, limit
        self.resumed = self.model if resumed is None else split([resumed])
        self.bounds = bounds or {}

    def __call__(self, text):
        for line in text.strip().splitlines():
            if line.strip():
                self.row(line)

    def by(self, ranks):
        """What starts so many ranks."""
        if int(ranks) == 1:
            return [self.program]
        if self.launcher == "--ranks":
            return [self.program, "--ranks", ranks]
        return [*self.launcher.split(), ranks, self.program]

    def row(self, line):
        command, *words = (part.strip() for part in re.split(r" \|(?: |$)", line.rstrip()))
        name, ranks, *flags = shlex.split(command)
        words = [word.partition(" ")[::2] for word in words if word]
        given = dict(words)
        if unknown := given.keys() - self.WORDS:
            raise ValueError(f"{line}: no word of a row: {unknown}")
        if "from" in given:
            source, _, step = given["from"].partition(" to ")
            if not (work / source).exists():
                return check(line.strip(), False, f"no run {source}")
            cut(source, name, int(step or 1 << 30))
        elif "there" not in given:
            remove(work / name)
        env = dict(value.split("=", 1) for word, value in words if word == "with")
        model = self.resumed if "--resume" in flags else self.model
        out = ["--out", work / name]
        ended = run(self.by(ranks), out, model, flags, fault=given.get("fault"), env=env, limit=self.limit)
        code = dies if "fails" in given else int(given.get("code", 0))
        what = " ".join(command.split())
        expect(what, ended, code, *([v for w, v in words if w == word and v] for word in ("says", "silent")))
        for word, value in words:
            if word in ("weights", "bits", "close", "other"):
                self.compare(what, name, word, *value.split()[1:])
            if word == "status":
                wanted = dict(pair.split("=", 1) for pair in shlex.split(value))
                equal(f"{what}: run_status", {key: str(status(name).get(key)) for key in wanted}, wanted)
            if word == "steps":
                equal(f"{what}: checkpoints", checkpoints(name), value.split())
        return ended

    def compare(self, what, name, how, other, *bounds):
        if how in ("weights", "bits"):
            same_weights(what, name, other)
        if how == "bits":
            mine, others = logged(name), logged(other)
            check(f"{what}: the rows of {other}", mine and mine == others, f"{mine}\n{others}")
        if how == "other":
            final = (work / name / "final").exists()
            check(f"{what}: other weights than {other}", final and weights(name) != weights(other))
        if how == "close":
            own = {key: float(value) for key, value in (bound.split("=") for bound in bounds)}
            close(what, name, other, **{**self.bounds, **own})


def status(out):
    try:
        return load(out, "run_status.json")
    except (OSError, ValueError):
        return {}


def checkpoints(out):
    """Steps of a run's checkpoints, and the names of what is half written."""
    folder = work / out / "checkpoints"
    names = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    return [name.removeprefix("step_").lstrip("0") for name in names if name.startswith(("step_", ".tmp", ".trash"))]


def logged(out):
    keys = ("step", "loss", "grad_norm", "lr", "data_hash", "val_loss")
    return [{key: row[key] for key in keys if key in row} for row in rows(out, "step")]


def cut(source, to, step=1 << 30):
    """A copy of a run as one leaves it that was killed after a step: without final weights and the checkpoints that came later, and
    with rows of steps that no checkpoint has."""
    folder = copy(source, to)
    later = [p for p in folder.glob("checkpoints/step_*") if int(p.name[5:]) > step]
    remove(*folder.glob("final*"), *later)
    if later:
        with open(folder / "metrics.jsonl", "a") as file:
            file.write('{"step":9,"lo')
    return folder


def copy(source, to):
    """A copy of a folder in place of what is there."""
    shutil.rmtree(work / to, ignore_errors=True)
    shutil.copytree(work / source, work / to, symlinks=True)
    return work / to


def edit(file, pattern, text):
    """Replaces a pattern in a file."""
    path = work / file
    path.write_text(re.sub(pattern, text, path.read_text()))


def change(file, **fields):
    """Sets fields of a JSON object in a file."""
    path = work / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def remove(*paths):
    for path in paths:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(
            missing_ok=True
        )


def no_memory_left():
    """No segment stays in /dev/shm. Suites run beside one another: what another has just named gets three seconds; snapshots are
    test_snapshots.py's."""
    found = pathlib.Path("/dev/shm").glob
    return until(lambda: all(p.name.startswith("ringzero-restart-") for p in found("ringzero*")), 3)


def text_data(size, to="data"):
    """The standard library's sources as tokens. A test ends where they can't be made."""
    made = run(f"python3 data_prep/prepare.py stdlib --max-bytes {size} --out {work / to}")
    if made.code != 0:
        sys.exit(made.text)
    return work / to


def shard(ids, kind=(20240520, 1), size=2, claim=None, order="<"):
    """A token shard. claim: how many tokens its header says; order: that of the header's bytes."""
    count = len(ids) if claim is None else claim
    head = struct.pack(f"{order}256i", *kind, count, *[0] * 253)
    return head + b"".join(i.to_bytes(size, "little") for i in ids)


def flip_bit(file, at, bit=1):
    """Changes a bit of one byte; `at` counts from the end if it is negative."""
    with open(file, "r+b") as f:
        at = f.seek(at, 2 if at < 0 else 0)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ bit]))


def documents(file):
    """A shard of documents of 3 to 40 tokens, each counting up from a random byte, begun by 256."""
    draw = random.Random(3)
    ids = []
    while len(ids) < 30000:
        first = draw.randrange(256)
        ids += [256] + [(first + i) % 256 for i in range(draw.randrange(2, 40))]
    file.write_bytes(shard(ids))
