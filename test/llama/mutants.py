#!/usr/bin/env python3
"""Would the tests notice? Plants faults: of pipelines, the plan, evaluation, masks and mixes, or of number formats.

    test/llama/mutants.py [--table formats] [--only 'the plan|padding'] [--jobs N]
                                         build once, then each fault (or those that match): the tests that must fail; minutes
    test/llama/mutants.py --check        the places and the tests that are named here exist

Works in a copy of the sources, build/mutants. There every fault stands beside what is right, and RZ_PLANTED in the
environment picks one. Prints a line per fault and exits 1 if one survives. Tables: mutants_pipelines.patch and
mutants_formats.patch. A block: what is wrong and the tests of which at least one must fail (GoogleTest's names in
build/cuda/unit_tests, or a script that gets the program), the file, what stands there, what is planted: an expression
for an expression, or statements for statements, which end with ; or }. In what is planted PLANTED may stand for the
condition; a header's block compiles what INCLUDERS names again.
"""

import argparse
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys

TREE = pathlib.Path(__file__).resolve().parents[2]
# Compiled again because they include a planted header: sources, and tests that read the header themselves.
INCLUDERS = {
    "kernels/magnitude.h": """kernels/fp8/quantise.cpp kernels/attention/attention.cpp kernels/qk_norm.cpp kernels/rmsnorm.cpp
        kernels/rope.cpp kernels/swiglu.cpp""",
    "kernels/fp8/quantise.h": "kernels/fp8/quantise.cpp kernels/fp8/fold_scales.cpp",
    "kernels/fp8/quantise_mx.h": "kernels/fp8/quantise_mx.cpp kernels/fp8/fp8_mx_gemm.cpp test/kernels/test_fp8.cpp",
    "kernels/loss_scale.h": "kernels/loss_scale.cpp",
}


def read(name):
    """Rows (what is wrong, file, what stands there, what is planted, tests) of a table."""
    rows = []
    for block in (TREE / f"test/llama/mutants_{name}.patch").read_text().split("\n\n")[1:]:
        head, file, *lines = block.rstrip("\n").split("\n")
        what, names = head.split(" | ")
        before, after = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        rows.append((what, file.removeprefix("--- "), before, after, names.split()))
    return rows


PICK = """#include <cstdlib>
#define RZ_PLANTED(n) (std::getenv("RZ_PLANTED") && std::atoi(std::getenv("RZ_PLANTED")) == (n))
"""


def test_files():
    """By test, as --gtest_filter names it: the file that it is in."""
    found = {}
    for file in sorted((TREE / "test").glob("*/test_*.cpp")):
        text = file.read_text()
        prefixes = dict(re.findall(r"INSTANTIATE_TEST_SUITE_P\((\w+), *\n? *(\w+),", text))
        suites = {suite: prefix for prefix, suite in prefixes.items()}
        for kind, suite, name in re.findall(r"^TEST(_F|_P|)\((\w+), *(\w+)\)", text, re.M):
            full = f"{suites.get(suite, '')}/{suite}.{name}/*" if kind == "_P" else f"{suite}.{name}"
            found[full] = file.relative_to(TREE)
    return found


def check(table, files):
    """Rows whose place is gone, not unique or no whole expression, or whose tests are not there."""
    wrong = []
    for what, file, before, after, names in table:
        if (TREE / file).read_text().count(before) != 1:
            wrong.append(f"{what}: {file} does not have its line, or more than one")
        if "? (if " in with_both(0, before, after):
            wrong.append(f"{what}: {before} is no expression, and no statement that ends")
        for name in names:
            there = (TREE / name).exists() if name.startswith("test/") else fnmatch.filter(files, name)
            if not there:
                wrong.append(f"{what}: there is no test {name}")
    return wrong


def with_both(number, before, after):
    """What is right and what is planted, one of them at run time."""
    if "PLANTED" in after:
        return after.replace("PLANTED", f"RZ_PLANTED({number})")
    if before.endswith("?"):  # a condition, up to its question mark
        return f"(RZ_PLANTED({number}) ? {after[:-1]} : {before[:-1]}) ?"
    if "\n" in before:  # if (condition), and what follows it
        right, rest = before.split("\n", 1)
        return f"if (RZ_PLANTED({number}) ? {after.split(chr(10), 1)[0][4:-1]} : {right[4:-1]})\n{rest}"
    if before.endswith(";"):
        return f"if (RZ_PLANTED({number})) {{ {after} }} else {{ {before} }}"
    if "{" not in before + after and ", " in before:  # arguments, of which the first is another
        right, rest = before.split(", ", 1)
        return f"RZ_PLANTED({number}) ? {after.split(', ', 1)[0]} : {right}, {rest}"
    return f"(RZ_PLANTED({number}) ? ({after}) : ({before}))"


def copy_and_plant(table, tree):
    """The sources, those of the table with every fault in them. Files that are as they were keep their times."""
    listed = subprocess.run(["git", "ls-files"], cwd=TREE, capture_output=True, text=True, check=True).stdout
    for name in [n for n in listed.split("\n") if n and (TREE / n).is_file()] + ["build/config.mk"]:
        data = (TREE / name).read_bytes()
        rows = [(n, before, after) for n, (_, file, before, after, _) in enumerate(table) if file == name]
        if rows:
            text = data.decode()
            for number, before, after in rows:
                text = text.replace(before, with_both(number, before, after), 1)
            data = (PICK + text).encode()
        target = tree / name
        if not target.exists() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            shutil.copymode(TREE / name, target)


def must(command, **how):
    done = subprocess.run(command, capture_output=True, text=True, **how)
    if done.returncode != 0:
        sys.exit(f"{command} ends with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(table, tree, files, jobs):
    """The planted files' objects stand before the library's, and the linker takes the first of two definitions."""
    cuda = "build/cuda/"
    sources = {source for _, file, _, _, _ in table for source in INCLUDERS.get(file, file).split()}
    tests = {str(files[t]) for _, _, _, _, names in table for n in names for t in fnmatch.filter(files, n)}
    objects = [cuda + re.sub("cpp$", "o", t) for t in sorted(tests - sources)]
    must(["make", f"-j{jobs}", cuda + "libringzero.a", "train_llama", *objects], cwd=TREE)
    planted = [cuda + re.sub("cpp$", "o", source) for source in sorted(sources)]
    must(["make", f"-j{jobs}", *planted], cwd=tree)
    link = must(["make", "-n", "-W", "Makefile", cuda + "train_llama"], cwd=TREE)
    link = [line for line in link.split("\n") if f"-o {cuda}train_llama " in line][-1]
    compiler, rest = link.split(f" -o {cuda}train_llama ")
    libraries = rest.split("libringzero.a", 1)[1].split("&&")[0].split()
    first = [str(tree / p) for p in planted if not p.startswith(cuda + "test/")]
    objects += [str(tree / p) for p in planted if p.startswith(cuda + "test/")]
    options = [*compiler.split(), "-Wl,-z,muldefs", "-o"]
    must(
        [*options, str(tree / "train_llama"), cuda + "train_llama.o", *first, cuda + "libringzero.a", *libraries],
        cwd=TREE,
    )
    end = [cuda + "libringzero.a", "-lgtest_main", "-lgtest", *libraries]
    must([*options, str(tree / "tests"), *objects, *first, *end], cwd=TREE)


def failing(tree, number, names):
    """Which of the tests fail with this fault."""
    environment = dict(os.environ, RZ_PLANTED=str(number))
    if names[0].startswith("test/"):
        command = [tree / names[0], tree / "train_llama", "--few"]
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
        return [f"{names[0]}: {line.strip()}" for line in re.findall(r"^FAILED: +(.*)", done.stdout, re.M)]
    command = ["timeout", "300", tree / "tests", "--gtest_brief=1", "--gtest_filter=" + ":".join(names)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment)
    if " 0 tests from " in done.stdout:
        sys.exit(f"no test is called {' or '.join(names)}")
    found = sorted(set(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", done.stdout, re.M)))
    if not found and done.returncode != 0:
        ended = "hangs" if done.returncode == 124 else f"ends with {done.returncode}"
        found = [f"{':'.join(names)} {ended}"]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", choices=["pipelines", "formats"], default="pipelines")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    table = read(args.table)
    files = test_files()
    if wrong := check(table, files):
        print("\n".join("    " + w for w in wrong))
    if args.check or wrong:
        return len(wrong) > 0
    table = [row for row in table if re.search(args.only, row[0])]
    tree = TREE / "build/mutants" / args.table
    copy_and_plant(table, tree)
    build(table, tree, files, args.jobs)
    caught = survived = 0
    for number, (what, _, _, _, names) in enumerate(table):
        found = failing(tree, number, names)
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        print(f"caught    {what}: {'; '.join(found[:3])}{more}" if found else f"SURVIVES  {what}", flush=True)
        caught, survived = caught + bool(found), survived + (not found)
    print(f"{caught} passed, {survived} failed")
    return survived > 0


if __name__ == "__main__":
    sys.exit(main())
