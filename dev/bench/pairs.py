#!/usr/bin/env python3
"""Compares the time of a step of two programs on a machine that others use too: they run in turn, and the ratio is that
of the shortest steps.

  dev/bench/pairs.py PROGRAM_A PROGRAM_B [--pairs 20] -- FLAGS...      flags of train_llama, without --out
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile


def shortest_step(program, flags):
    """Seconds, of one run; the first ten steps warm up."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, *flags, "--out", folder + "/run", "--save-every", "0", "--val-every", "0"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}")
        rows = map(json.loads, pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines())
        return min(r["seconds"] for r in rows if "loss" in r and r["step"] > 10)


def main():
    flags = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs=2)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args(sys.argv[1 : sys.argv.index("--")] if flags else None)
    times = ([], [])
    for pair in range(options.pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            times[which].append(shortest_step(options.programs[which], flags))
    for program, seconds in zip(options.programs, times):
        print(f"{program}: shortest step {1e3 * min(seconds):.3f} ms, median of runs' {1e3 * statistics.median(seconds):.3f} ms")
    print(f"ratio of the shortest, the second to the first: {min(times[1]) / min(times[0]):.4f}, {options.pairs} pairs")


if __name__ == "__main__":
    main()
