"""The runs that test_faults.py's cases are made of: its command line, the undisturbed run `whole`, and `base`, which was stopped after
step 6 and has checkpoints of steps 4 and 6, to be damaged."""

import re
import subprocess
import sys

import checks
from checks import ROOT, Run, Table, copy, remove, run, skip, work

options = checks.options("program", quick=False, only="", launcher=("mpirun", "ranks"))
PROGRAM, QUICK = options.program, options.quick
if options.launcher == "mpirun" and not checks.has_mpi(PROGRAM):
    print("0 passed, 0 failed, 1 skipped (no MPI here)")
    sys.exit()

DATA = f"--data {work}/data --device cpu"
SHAPE = """--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu --batch 1 --seq-len 32"""
TRAIN = f"{SHAPE} {DATA} --val-every 0 --val-tokens 256 --steps 8 --save-every 2 --timeout 60"
STEP_6 = "checkpoints/step_000000006"
SHIM = ROOT / "build/libfile_faults.so"
launcher = "--ranks" if options.launcher == "ranks" else "mpirun -n"
rows = Table(PROGRAM, TRAIN, launcher=launcher, resumed=DATA)
gone = checks.gone
RESUMED = "3 --resume auto | there | weights of whole"


def one(out, flags="", **more):
    """One process."""
    return run([PROGRAM], TRAIN, flags, ["--out", work / out], **more)


def background(out, flags="", ranks=3, **more):
    return Run(rows.by(ranks), ["--out", work / out], TRAIN, flags, **more)


def wait_for_step(job, out, step):
    metrics = work / out / "metrics.jsonl"
    job.until(lambda: metrics.exists() and f'"step":{step},' in metrics.read_text())


def damaged(out):
    folder = copy("base", out)
    remove(folder / "checkpoints/latest")
    return folder


def status(out, key):
    return checks.status(out).get(key)


def can_mount(what):
    may = "unshare -m true && unshare -m mount -t tmpfs none /mnt"
    good = subprocess.run(may, shell=True, capture_output=True).returncode == 0
    if not good:
        skip(f"{what}: may not mount here")
    return good


def shim_env(**variables):
    """Variables of test/faults/file_faults.cpp for a run."""
    if not SHIM.exists():
        raise checks.Skipped("build/libfile_faults.so is not there: make it")
    return {"LD_PRELOAD": SHIM, **{f"FAULT_{name.upper()}": value for name, value in variables.items()}}


def shim(**variables):
    """The same as the words of a row."""
    return " | ".join(f"with {name}={value}" for name, value in shim_env(**variables).items())


def version_1(manifest, *without):
    """A manifest as the first version wrote it, without lines that have these keys."""
    text = re.sub(rf'(?m)^.*"({"|".join(["checksum", *without])})".*\n', "", manifest.read_text())
    manifest.write_text(text.replace('"version": 2', '"version": 1'))


checks.text_data("400K")
rows("""
    whole 3
    base  3 | fault step:0:6:term | code 75 | steps 4 6
""")
if checks.failed:
    checks.end()
