#!/usr/bin/env python3
"""Plans a run on each machine with 1, 2, 4, ... 64 GPUs and checks the fastest command that `plan --search` finds.

The command must fit. No change of one flag that keeps the numerics may make it more than 1 % faster.

  test/program/plan_neighbours.py PROGRAM                              all: a quarter of an hour of one core
  test/program/plan_neighbours.py PROGRAM --most-gpus 2 --every 3      every third case of 1 and 2 GPUs
"""

import concurrent.futures
import json
import re
import subprocess

from checks import ROOT, check, end, options, split

MODEL = "--preset llama3.1-8b --layers 4 --dtype bf16 --seq-len 2048 --batch-tokens 256K --data synthetic"
FASTER = 1.01  # llama/plan/plan.h


def plan(program, gpus, machine, *flags):
    command = [[program], f"plan --gpus {gpus} --gpu {machine}", *flags]
    done = subprocess.run(split(command), capture_output=True, text=True)
    assert done.returncode in (0, 2, 3), done.stderr
    return done


def rate(program, gpus, machine, flags):
    """Tokens per second, or None: refused, or does not fit."""
    done = plan(program, gpus, machine, [word for flag in flags.items() for word in flag], "--json -")
    if done.returncode:
        return None
    made = json.loads(done.stdout)
    return made["tokens_per_step"] / made["step_seconds"]


def neighbours(flags, gpus):
    def number(name, otherwise):
        return int(flags.get(name, otherwise))

    batch = number("--batch", 4)
    parts = ["norms", "attention", "mlp", "norms,attention", "norms,mlp", "attention,mlp", "norms,attention,mlp"]
    values = {
        "--zero": range(4),
        "--recompute": ["none", *parts, "block"],
        "--collectives": ["ring", "direct"],
        "--logits-mib": [128],
        "--offload-optimizer": ["none", "stream"],
        "--offload-grads": ["off", "on"],
        "--offload-params": ["off", "on"],
        "--shard-size": [0, 8, 32],
        "--batch": [b for b in range(1, 129) if b in (batch // 2, batch - 1, batch + 1, 2 * batch)],
    }
    for part in ("--tp", "--cp", "--pp"):
        values[part] = [n for n in (number(part, 1) // 2, 2 * number(part, 1)) if 1 <= n <= min(8, gpus)]
    for name, some in values.items():
        for value in some:
            if flags.get(name) != str(value):
                yield {**flags, name: str(value)}


def tried(program, machine, gpus):
    """How many neighbours there are, and what is wrong."""
    done = plan(program, gpus, machine, MODEL, "--search")
    assert done.returncode != 2, done.stderr
    if done.returncode == 3:
        assert "  nearest, " in done.stderr, done.stderr
        return 0, None
    same = done.stdout.split("\nother numerics")[0]
    line = re.search(r"^(?:mpirun -n (\d+) )?\./train_llama (.*)$", same, re.M)
    if not line or "same numerics" not in same:
        return 0, None  # fits by other numerics only
    assert int(line[1] or 1) == gpus, line[0]
    words = line[2].split()
    flags = dict(zip(words[::2], words[1::2]))
    best = rate(program, gpus, machine, flags)
    if not best:
        return 0, f"does not fit: {line[0]}"
    count = 0
    for other in neighbours(flags, gpus):
        count += 1
        faster = rate(program, gpus, machine, other)
        if faster and faster > FASTER * best:
            changed = [f"{name} {value}" for name, value in other.items() if flags.get(name) != value]
            return count, f"{changed[0]} is {100 * (faster / best - 1):.1f} % faster than {line[0]}"
    return count, None


o = options("program", every=1, most_gpus=64, jobs=1)
machines = sorted(path.stem for path in (ROOT / "llama/configs/machines").glob("*.toml"))
cases = [(machine, 2**n) for machine in machines for n in range(7) if 2**n <= o.most_gpus]
cases, total = cases[:: o.every], 0
pool = concurrent.futures.ThreadPoolExecutor(o.jobs)
for (machine, gpus), (count, wrong) in zip(cases, pool.map(lambda case: tried(o.program, *case), cases)):
    total += count
    print(f"{gpus:3} x {machine:14} {count:3} neighbours", flush=True)
    check(f"{gpus} x {machine}", not wrong, wrong)
check("there are neighbours", total)
print(f"{total} neighbours")
end()
