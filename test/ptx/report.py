#!/usr/bin/env python3
"""report.py PTX_DIR JOURNAL: what `make test-ptx` has run and seen, as Markdown (run.sh calls it)."""

import collections
import glob
import os
import platform
import re
import subprocess
import sys


def output(*command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = re.search(r"model name\s*: (.*)", file.read())
    return f"{name[1].strip() if name else platform.machine()}, {os.cpu_count()} cores, no GPU used"


def short(kernel):
    return re.sub(r"[<(].*", "", re.sub(r"rz::|\(anonymous namespace\)::|^void ", "", kernel))


def steps(journal):
    print("| step | result | finished | seconds of a clock | of a processor |\n|---|---|---|---|---|")
    for path in sorted(glob.glob(os.path.join(journal, "*.name"))):
        with open(path, encoding="utf-8") as file:
            name = file.read().strip()
        log_path = path[: -len(".name")]
        passed, failed = os.path.exists(log_path + ".passed"), os.path.exists(log_path + ".result")
        if not passed and not failed:
            print(f"| {name} | not run | | | |")
            continue
        with open(log_path + (".passed" if passed else ".result"), encoding="utf-8") as file:
            _, date, times = file.read().splitlines()[:3]
        with open(log_path, encoding="utf-8", errors="replace") as file:
            log = file.read()
        tests = {w: sum(map(int, re.findall(rf"\[  {w} +\] (\d+) test", log))) for w in ("PASSED", "SKIPPED")}
        result = ", ".join(f"{n} {w.lower()}" for w, n in tests.items() if n) or "passed"
        wall, user = times.split()
        print(f"| {name} | {result if passed else 'FAILED'} | {date} | {float(wall):.0f} | {float(user):.0f} |")


def coverage(path):
    """{kernel: [instantiations, lines, executed]}, totals, loops that no test repeats by line of source"""
    kernels, loops, totals = collections.defaultdict(lambda: [0, 0, 0]), collections.Counter(), {}
    never = 0
    with open(path, encoding="utf-8") as file:
        for row in file:
            part = row.rstrip("\n").split("\t")
            if part[0] in ("loops", "total"):
                totals[part[0]] = int(part[1]), int(part[2])
            elif part[0] == "" and part[1] == "loop":
                loops[re.sub(r"^.*/(?=kernels/)", "", part[2]), part[4]] += 1
            elif part[0] and part[1] == "never launched":
                never += 1
            elif part[0] and part[1].isdigit():
                for i, n in enumerate((1, int(part[2]), int(part[1]))):
                    kernels[short(part[3])][i] += n
    return kernels, totals, loops, never


def main():
    folder, journal = sys.argv[1:3]
    print("# make test-ptx\n")
    with open(os.path.join(journal, "commit"), encoding="utf-8") as file:
        commit = file.read().strip() or "unknown"
    compiler = re.search(
        r"V(\d+\.\d+\.\d+)", output("nvcc", "--version") or output("/usr/local/cuda/bin/nvcc", "--version")
    )
    print(
        f"    make test-ptx\n\nCommit {commit}; nvcc {compiler[1] if compiler else '?'}; "
        f"{machine()}. Written by `test/ptx/report.py`; other\nprograms may have shared the cores, so that the seconds are no measurement.\n"
    )
    steps(journal)
    for path in sorted(glob.glob(os.path.join(folder, "coverage_*.txt"))):
        arch = re.search(r"coverage_(\w+)\.txt", path)[1]
        kernels, totals, loops, never = coverage(path)
        (run, lines), (repeated, all_loops) = totals["total"], totals["loops"]
        print(
            f"\n## Lines of PTX, sm_{arch}\n\n{run} of {lines} lines executed ({run / lines:.1%}); {repeated} of {all_loops} loops gone through "
            f"twice; {sum(k[0] for k in kernels.values())}\ninstantiations launched, {never} never.\n"
        )
        print("| kernel | instantiations | lines | executed | |\n|---|---|---|---|---|")
        for name, (n, of, ran) in sorted(kernels.items(), key=lambda x: x[1][2] / x[1][1]):
            print(f"| `{name}` | {n} | {of} | {ran} | {ran / of:.0%} |")
        print("\nLoops that no test repeats, by line of source:\n\n| | | instances |\n|---|---|---|")
        for (where, how), n in sorted(loops.items()):
            print(f"| {where} | {how} | {n} |")
    for path in sorted(glob.glob(os.path.join(journal, "*.log"))):
        with open(path, encoding="utf-8", errors="replace") as file:
            log = file.read()
        if title := re.search(r"^== ptx: (bits .*)$", log, re.M):
            rows = re.findall(r"^ *\d+ of +\d+ (?:equal|tests).*$", log, re.M)
            print(f"\n## {title[1][0].upper() + title[1][1:]}\n\n```\n" + "\n".join(rows) + "\n```")


main()
