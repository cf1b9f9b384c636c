#!/usr/bin/env python3
"""Trains with record.toml on the speedrun's data, seed after seed: was the loss reached, and in how many CPU seconds?

  dev/learn/speedrun/speedrun.py [--program ./train_llama] [--seeds 5] [--record] [--check]      (make speedrun)

--record appends a line to records.jsonl and writes a log, if the rules (README.md) are kept. --check prepares the data, takes three steps and
stops: what the tests run.
"""

import argparse
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "../../..")
sys.path.insert(0, f"{TOP}/dev/run")
import student  # noqa: E402
import study  # noqa: E402

TARGET, WORST, SIGNIFICANCE = 1.70, 1.71, 0.01
FIXED = ["--device", "cpu", "--threads", "2", "--val-every", "0", "--val-tokens", "131072", "--save-every", "0"]
DATA = ["synthetic", "--order", "2", "--symbols", "16", "--tokens", "4e6", "--val-tokens", "2e5"]
HASHES = {
    "synthetic_train_000000.bin": "6c2f9ac907eb48a526abe52ae176f42a02d5447b271f884b070159a42789cb4e",
    "synthetic_val_000000.bin": "2db548fb5853130d0b0512da173c6a3d46c8f89b291a1993a4bb69df542fa948",
}
RESERVED = {"data", "train-data", "val-data", "val-tokens", "seed", "init-from", "device", "threads", "out"}


def prepare(folder):
    study.prepare(folder, *DATA)
    for name, want in HASHES.items():
        with open(f"{folder}/{name}", "rb") as f:
            if hashlib.sha256(f.read()).hexdigest() != want:
                sys.exit(f"speedrun: {folder}/{name} is not the speedrun's data; remove the folder and start again")


def read_config():
    with open(f"{HERE}/record.toml") as f:
        text = f.read()
    bad = RESERVED & set(re.findall(r"^([a-z-]+) *=", text, re.M))
    if bad:
        sys.exit(f"speedrun: record.toml may not set {', '.join(sorted(bad))} (README.md)")
    return text


def run(program, data, seed, extra):
    """(CPU seconds, seconds, validation loss, what it printed)"""
    flags = ["--config", f"{HERE}/record.toml", "--data", data, "--seed", seed, "--log-every", 100, *FIXED, *extra]
    with tempfile.NamedTemporaryFile("r") as log:
        used = study.run([program, *flags], log.name, OMP_NUM_THREADS="2", NO_COLOR="1")
        said = log.read()
    found = re.findall(r"^step (\d+) \| validation loss ([0-9.]+) nats", said, re.M)
    if not found:
        sys.exit(f"speedrun: seed {seed} has no validation loss\n{said[-2000:]}")
    return used["cpu_seconds"], used["seconds"], float(found[-1][1]), said


def source_hash():
    """Of every source that train_llama is built from, by name and content."""
    found = ["Makefile", "train_llama.cu"]
    for room in ("comm", "kernels", "llama", "zero"):
        for folder, _, names in os.walk(room):
            found += [os.path.join(folder, n) for n in names if n.endswith((".cpp", ".cu", ".cuh", ".h"))]
    whole = hashlib.sha256()
    for path in sorted(found):
        with open(path, "rb") as f:
            whole.update(f"{path} {hashlib.sha256(f.read()).hexdigest()}\n".encode())
    return whole.hexdigest()


def identity(program, config):
    """What a log says of the run before its lines: enough to know whether two are of the same thing."""
    with open(program, "rb") as f:
        built = hashlib.sha256(f.read()).hexdigest()
    flags = config + "\n" + " ".join(FIXED)
    return (f"source {source_hash()}\nprogram {built}\nflags {hashlib.sha256(flags.encode()).hexdigest()}\n"
            + "".join(f"data {want} {name}\n" for name, want in HASHES.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_llama")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--data", default="data/speedrun")
    o = parser.parse_args()
    os.chdir(TOP)
    program, config = os.path.abspath(o.program), read_config()
    prepare(o.data)
    if o.check:
        cpu, _, loss, _ = run(program, o.data, 1, ["--steps", "3"])
        print(f"three steps: loss {loss}, {cpu:.1f} CPU seconds")
        table = abs(student.tail(3.746947, 4) - 0.01) < 1e-6 and abs(student.tail(-1.894579, 7) - 0.95) < 1e-6  # Student's t
        record = student.p_below([1.6972, 1.6989, 1.6992, 1.699, 1.6977], TARGET)  # scipy.stats.ttest_1samp says 0.007981
        print(f"the record's losses lie below {TARGET}: p = {record:.4f}\n{identity(program, config)}", end="")
        sys.exit(0 if 2 < loss < 3.5 and table and abs(record - 0.007981) < 1e-6 else 1)

    runs, logs = [], []
    for seed in range(1, o.seeds + 1):
        cpu, seconds, loss, log = run(program, o.data, seed, [])
        runs.append((cpu, seconds, loss))
        logs.append(f"==== seed {seed}: {cpu:.2f} CPU seconds, {seconds:.2f} seconds, loss {loss:.4f}\n{log}")
        print(f"seed {seed}: loss {loss:.4f}   {cpu:6.2f} CPU seconds   {seconds:6.2f} by the clock", flush=True)
    n = len(runs)
    loss = sum(r[2] for r in runs) / n
    score, error = student.mean_and_error([r[0] for r in runs]) if n > 1 else (runs[0][0], math.nan)
    p = student.p_below([r[2] for r in runs], TARGET) if n > 1 else math.nan
    reached = loss <= TARGET and max(r[2] for r in runs) <= WORST
    shown = reached and p < SIGNIFICANCE
    print(f"mean loss {loss:.4f}: {'reached' if reached else f'not reached, {TARGET} is asked'}; p = {p:.4f}, {SIGNIFICANCE} is asked of a record")
    print(f"score {score:.2f} CPU seconds, standard error {error:.2f}, on {study.cpu_name()}")
    if o.record:
        if not shown or n < 5:
            sys.exit(f"speedrun: no record: the loss must be reached, with 5 seeds and p < {SIGNIFICANCE}")
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        date = time.strftime("%Y-%m-%d", time.gmtime())
        entry = {"date": date, "commit": commit, "cpu": study.cpu_name(), "score": round(score, 2), "standard_error": round(error, 2),
                 "mean_loss": round(loss, 4), "losses": [r[2] for r in runs], "cpu_seconds": [round(r[0], 2) for r in runs],
                 "seconds": [round(r[1], 2) for r in runs], "p": round(p, 5), "load_average": round(os.getloadavg()[0], 1),
                 "config": hashlib.sha256(config.encode()).hexdigest()[:12]}
        with open(f"{HERE}/records.jsonl", "a") as f:
            f.write(json.dumps(entry) + "\n")
        os.makedirs(f"{HERE}/logs", exist_ok=True)
        with open(f"{HERE}/logs/{date}-{commit}.txt", "w") as f:
            f.write(identity(program, config) + "".join(logs))
    sys.exit(0 if reached else 1)


main()
