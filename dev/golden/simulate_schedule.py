#!/usr/bin/env python3
"""How long a pipeline schedule takes: a second simulator, for test/golden/pipeline_times.txt.

    simulate_schedule.py TRAIN_LLAMA > test/golden/pipeline_times.txt
    simulate_schedule.py --pytorch BENCH_PIPELINE [RANKS]      (with an installed torch)

Schedules are read as text from `TRAIN_LLAMA schedule --csv -`. Times are found by relaxation: every start is 0, then is
raised until no rule is broken (the cell before, the inputs, the message before on the same lane). That is the least
solution, and shares nothing with llama/parallel/simulate.cpp but the rules. Costs are ticks of one task of one stage.

--pytorch: the orders that PyTorch's pipelining makes, timed at F = I = W, beside what BENCH_PIPELINE (build/dev/bench_pipeline)
measures on RANKS ranks [2] with work that sleeps as long. Fused cells run one pass after the other, as PyTorch's runtime
and ours run them. Exit code 1 if a utilisation is more than 3 % off.

Each line of the first form: schedule, ranks, micro-batches, stages a rank, ticks of F, I, W and a message, makespan, idle ticks by rank.
"""
import re
import subprocess
import sys

import make_schedule_golden

GRID = [(2, 4), (3, 6), (4, 8), (4, 16), (6, 12), (8, 16), (8, 32), (1, 2), (5, 10), (7, 14)]
COSTS = [(1, 1, 1, 0), (1, 2, 1, 0), (2, 1, 3, 0), (100, 120, 87, 0), (4, 4, 4, 1), (3, 5, 2, 2), (7, 1, 1, 9)]
NAMES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zb-h1", 1), ("zb-v", 2), ("dualpipe", 1),
         ("dualpipev", 2)]


def read(text):
    """By rank, cells as lists of (stage, op, micro-batch)."""
    task = re.compile(r"(\d+)([FIWB])(\d+)")
    return [[[(int(s), op, int(m)) for s, op, m in task.findall(field)] for field in row.split(",") if field]
            for row in text.splitlines()]


def simulate(ranks, cost, message):
    """Cells are (rank, place), messages (kind, stage, micro-batch). A rule (a, gap, b): b begins `gap` after a does, or later."""
    stages = 1 + max(s for cells in ranks for cell in cells for s, _, _ in cell)
    length, made, readers, rules = {}, {}, {}, []
    for r, cells in enumerate(ranks):
        for k, cell in enumerate(cells):
            length[r, k] = sum(cost["I"] + cost["W"] if op == "B" else cost[op] for _, op, _ in cell)
            if k:
                rules.append(((r, k - 1), length[r, k - 1], (r, k)))
            for s, op, m in cell:
                if op != "W":
                    kind, source = ("F", s - 1) if op == "F" else ("I", s + 1)
                    made[kind, s, m] = (r, k)
                    if 0 <= source < stages:
                        readers[kind, source, m] = (r, k)
    assert readers.keys() <= made.keys()
    lanes = {}  # the latest message on each
    for tensor, maker in made.items():
        reader = readers.get(tensor)
        if reader and reader[0] == maker[0]:
            rules.append((maker, length[maker], reader))
        elif reader:
            lane = maker[0], reader[0]
            rules += [(maker, length[maker], tensor), (tensor, message, reader)]
            rules += [(lanes[lane], message, tensor)] if lane in lanes else []
            lanes[lane] = tensor
    begins, changed = dict.fromkeys([*length, *made], 0), True
    while changed:
        changed = False
        for a, gap, b in rules:
            if begins[b] < begins[a] + gap:
                begins[b], changed = begins[a] + gap, True
        if max(begins.values()) > 10**9:
            sys.exit("simulate_schedule.py: the schedule never ends")
    makespan = max(begins[cell] + length[cell] for cell in length)
    busy = [sum(length[r, k] for k in range(len(cells))) for r, cells in enumerate(ranks)]
    return makespan, [makespan - b for b in busy]


def beside_pytorch(bench, p):
    module = make_schedule_golden.load(None)
    worst = 0
    print("| schedule | P, M | PyTorch's % | measured % | off % |\n|---|---|---|---|---|")
    for m in (4 * p, 8 * p):
        run = subprocess.run(["mpirun", "-n", str(p), bench, "--micro-batches", str(m)], capture_output=True, text=True,
                             check=True)
        measured = {cells[1]: float(cells[4]) for cells in
                    ([c.strip() for c in line.split("|")] for line in run.stdout.splitlines()[2:])}
        for name in make_schedule_golden.MAKE:
            if name not in measured:
                continue
            order = make_schedule_golden.order(module, name, p, m)
            ranks = [[[task] for cell in read(",".join(str(a) for a in order[r] if a is not None))[0] for task in cell]
                     for r in sorted(order)]
            if name == "1f1b":  # PyTorch prints the last rank's forward passes from 1, and runs them from 0
                ranks[-1] = [[(s, op, k // 2)] for k, ((s, op, _),) in enumerate(ranks[-1])]
            makespan, idle = simulate(ranks, {"F": 1, "I": 1, "W": 1}, 0)
            published = 100 * (1 - sum(idle) / (p * makespan))
            off = 100 * (measured[name] / published - 1)
            worst = max(worst, abs(off))
            print(f"| {name} | {p}, {m} | {published:.2f} | {measured[name]:.2f} | {off:+.2f} |")
    return worst > 3


def main():
    if sys.argv[1:2] == ["--pytorch"] and len(sys.argv) in (3, 4):
        sys.exit(beside_pytorch(sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 2))
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, v in NAMES:
        for p, m in GRID:
            command = [sys.argv[1], "schedule", "--pp", str(p), "--micro-batches", str(m), "--pp-schedule", name,
                       "--csv", "-"]
            if name == "interleaved":
                command += ["--pp-stages-per-rank", str(v)]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode:
                continue  # dualpipe on odd ranks
            ranks = read(run.stdout)
            for f, i, w, c in COSTS:
                makespan, idle = simulate(ranks, {"F": f, "I": i, "W": w}, c)
                print(name, p, m, v, f, i, w, c, makespan, *idle)


if __name__ == "__main__":
    main()
