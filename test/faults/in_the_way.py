#!/usr/bin/env python3
"""A FIFO or a folder lies where a run wants to write a file, and a call of it is interrupted once (EINTR).

    test/faults/in_the_way.py PROGRAM SHIM [--quick] [--timeout S]

For each name that a run makes in --out, a run that begins and one that resumes: the thing is said or harmless, training is
not stopped by what only describes it, nothing hangs, the weights are the undisturbed run's where it ends with 0, and every line of
metrics.jsonl is whole. What a run cannot do without (the lock, a folder for checkpoints) ends it in words, with 70. Each place of the
program that opens, reads, writes, renames or syncs a file of --out gets one EINTR. --quick: some of each. Ends with "N passed, N failed".
"""

import os
import shutil

import all_faults
import run_rows
from checks import check, end, options, remove, weights, work

# Without these there is no run: who holds it, where checkpoints lie, the end's weights.
NEEDED = {"run.lock", "run.lock.owner", "checkpoints", "final"}
FLAGS = "--wandb p --stats-every 2 --val-every 2 --keep 0".split()
NAMES = [
    *"metrics.jsonl stats.jsonl log.txt run.json config.toml run_status.json loss.svg ranks.json ranks.jsonl wandb wandb/run-id .ranks".split(),
    *"run_status.json.tmp-0 checkpoints/latest checkpoints/step_000000006 final/model.safetensors final/config.json".split(),
    *"final/tokenizer.json checkpoints/.trash-step_000000002 checkpoints/.after-save-2 trace.json".split(),
    *sorted(NEEDED),
]


def put(path, kind):
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
        (path / "inside").write_text("x")


def judge(s, out, done, name, wanted):
    if done.code == 124:
        return "hangs"
    try:
        if (out / "metrics.jsonl").is_file():
            run_rows.rows(out / "metrics.jsonl")
    except ValueError as error:
        return f"a line of metrics.jsonl is torn: {error}"
    if done.code == 0:
        return "" if weights(out) == wanted else "other weights"
    if name.split("/")[0] in NEEDED and done.code == 70 and "train_llama: " in done.text:
        return ""
    if done.code == 2 and "no checkpoint to resume from" in done.text and name == "checkpoints":
        return ""
    return f"exit code {done.code}"


def main():
    def tell(what, problem, done):
        check(what, not problem, "\n".join([problem, *done.text.splitlines()[-5:]]))

    o = options("program", "shim", quick=False, timeout=30.0)
    s = all_faults.Setting(o.program, o.shim, o.timeout)
    whole, base, out = work / "w", work / "b", work / "out"
    s.must(s.train(whole, *FLAGS))
    s.must(s.train(base, *FLAGS, FAULT="step:0:4:term"), 75)
    for number, name in enumerate(NAMES):
        for kind in ("fifo", "folder"):
            for how in ("begins", "resumes"):
                if o.quick and (number % 5 or (kind == "fifo") != (how == "begins")):
                    continue
                if how == "resumes":
                    shutil.copytree(base, out)
                put(out / name, kind)
                done = (s.resume if how == "resumes" else s.train)(out, *FLAGS)
                if done.code == 2 and how == "begins":  # it takes what is there for an earlier run
                    done = s.train(out, *FLAGS, "--overwrite")
                tell(f"a {kind} for {name}, a run that {how}", judge(s, out, done, name, weights(whole)), done)
                shutil.rmtree(out)
    operations = set("open read write rename exchange fsync stat opendir mkdir close truncate reserve link".split())
    for how in ("resumes",) if o.quick else ("begins", "resumes"):
        scenario = all_faults.Scenario("resume" if how == "resumes" else "train", s)
        wheres = all_faults.distinct(scenario.trace(), operations)
        for where, call in wheres[::12] if o.quick else wheres:
            with all_faults.scratch() as folder:
                scenario.prepare(folder)
                done = scenario.start(folder, FAULT_DO="EINTR", FAULT_SITE=where.split("=")[1])
                problem = judge(s, folder / "out", done, "", s.reference)
            tell(f"EINTR once, a run that {how}: {call} {where}", problem, done)
    end()


if __name__ == "__main__":
    main()
