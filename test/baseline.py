#!/usr/bin/env python3
"""An earlier commit beside this tree, on this machine: what the two programs do must be equal, but for what is listed.

    test/baseline.py BASE NEW                        (make test-baseline BASE=fd65b2a builds both and calls it)
    test/baseline.py BASE NEW --parts help,plan      some parts only
    test/baseline.py BASE NEW --table FILE           every row and whether it is equal

BASE and NEW are source trees with ./train_llama, or else build/cpu/train_llama.

    bits      weights, optimizer files, loss, grad_norm, lr, data_hash of LAYOUTS, below; of CUDA's where both trees have a
              train_llama_simt
    config    config.toml of those runs
    resume    12 checkpoints that BASE has made, which NEW resumes to the end of BASE's undisturbed run

These are the default. Between commits that are nearer to each other, by --parts:

    ops       ordered ops of 300 rows of plan_grid.py on the planned device, of CPU and CUDA (test/op_trace.cpp); needs
              build/cpu/libringzero.a in both
    plan      `plan --json` of 150 rows
    refusals  the commands of test/program/refusals.txt: exit code and text
    help      --help of the program and of each subcommand, --presets
    ptx       PTX of every kernel file, with symbols numbered in order; compiles all twice

Weights depend on the CPU, so nothing is stored: both programs run here. test/baseline_expected.txt names the differences
that are meant: a pattern of "PART ROW", two spaces, the reason. One that matches nothing is an error of this list.
"""

import argparse
import concurrent.futures
import difflib
import fnmatch
import glob
import hashlib
import itertools
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(f"{ROOT}/test/program")
sys.dont_write_bytecode = True
import checks  # noqa: E402
import plan_grid  # noqa: E402
import test_refusals  # noqa: E402
from checks import check, end, run, split, work  # noqa: E402

EXPECTED = ROOT / "test/baseline_expected.txt"
SUBCOMMANDS = ["", "generate", "eval", "export", "schedule", "plan"]


def program_of(tree):
    program = os.path.join(tree, "train_llama")
    return program if os.path.exists(program) else os.path.join(tree, "build", "cpu", "train_llama")


def changed_lines(row, old, new):
    """A row for each line that only one of the two has, named by its flag or key."""
    out = {row: ""}
    for line in difflib.ndiff(old.splitlines(), new.splitlines()):
        if line[:2] in ("- ", "+ "):
            name = re.search(r"--[a-z0-9-]+|^[a-z0-9-]+(?= =)", line[2:])
            out[f"{row} {name.group() if name else line[2:].strip()}"] = line
    return out


def compare(pairs):
    """Row -> (old, new) to row -> how they differ; "" where they do not."""
    return {
        row: "" if old == new else f"- {str(old)[:400]}\n+ {str(new)[:400]}"
        for row, (old, new) in sorted(pairs.items())
    }


def both(trees, function):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(function, trees))


def compare_help(trees):
    """By the word that shows every flag: --help alone did, before there was --help-all."""

    def texts(tree):
        word = "--help" if run([program_of(tree)], "--help-all").code else "--help-all"
        asked = {f"{name} --help".strip(): f"{name} {word}" for name in SUBCOMMANDS} | {"--presets": "--presets"}
        return {row: run([program_of(tree)], flags).text for row, flags in asked.items()}

    old, new = both(trees, texts)
    return {name: how for row in old for name, how in changed_lines(row, old[row], new[row]).items()}


def compare_refusals(trees):
    rows = [row for row in test_refusals.read_table() if isinstance(row, test_refusals.Row)]
    rows = [row for row in rows if not row.command.startswith("prepare.py")]

    def answers(tree):
        folder = work / f"refusals-{trees.index(tree)}"
        folder.mkdir()
        test_refusals.make_files(program_of(tree), folder)
        return [test_refusals.run(program_of(tree), row, folder)[:2] for row in rows]

    pairs = {}
    for row, (old_code, old), (new_code, new) in zip(rows, *both(trees, answers), strict=True):
        name = f"{row.ranks}x {row.command}"
        if old_code != new_code:
            name += f" {old_code}->{new_code}"
        same_text = test_refusals.matches(old, new) or row.ranks > 1 and without_rank(old) == without_rank(new)
        pairs[name] = ((old_code, "" if same_text else old), (new_code, "" if same_text else new))
    return compare(pairs)


def without_rank(text):
    """Any of the ranks that find an error may be the one that prints it."""
    return [re.sub(r"^rank \d+ of", "rank N of", line) for line in text]


def grid_rows(count):
    """Rows as plan_grid.py draws them, a half with its wider settings."""
    wide = {**plan_grid.SETTINGS, **plan_grid.MORE_SETTINGS}
    rows = [plan_grid.drawn_rows(random.Random(seed), False, s) for seed, s in ((1, plan_grid.SETTINGS), (2, wide))]
    return [next(rows[k % 2]) for k in range(count)]


def flags_of(row):
    """By the names that both programs take."""
    return [{"--doc-mask": "--doc-boundary"}.get(word, word) for word in plan_grid.flags_of(row)]


def compare_rows(what, trees, rows, answers, good):
    """answers(tree): of each row of the grid; good(answer) of at least half of them."""
    old, new = both(trees, answers)
    pairs = {f"{k} {row['ranks']}x {' '.join(flags_of(row))}": (old[k], new[k]) for k, row in enumerate(rows)}
    pairs[f"at least half of the rows {what}"] = (True, sum(map(good, new)) >= len(rows) / 2)
    return compare(pairs)


def compare_plan(trees):
    grid, rows = plan_grid.Grid(""), grid_rows(150)

    def plans(tree):
        out = []
        for row in rows:
            plan, (_, said) = grid.plan(row, "planned", program_of(tree), flags_of(row))
            out.append({k: v for k, v in (plan or {"refused": said}).items() if k not in ("commit", "version")})
        return out

    return compare_rows("are plans", trees, rows, plans, lambda plan: "refused" not in plan)


def link_flags(tree):
    """Of the CPU's program: what configure.sh found there, but for CUDA and NCCL."""
    cflags, libs = [], []
    for line in open(os.path.join(tree, "build", "config.mk")):
        name, _, value = line.strip().partition(" := ")
        if "CUDA" in name or "NCCL" in name:
            continue
        cflags += value.split() if name.endswith("_CFLAGS") else []
        cflags += [f"-DRZ_{name}"] if name.startswith("HAVE_") and value else []
        libs += value.split() if name.endswith("_LIBS") else []
        libs += ["-lcrypto"] if name == "HAVE_CRYPTO" and value else []
    return cflags, libs


def compare_ops(trees):
    grid, rows = plan_grid.Grid(""), grid_rows(300)
    lines = [f"{row['ranks']} {grid.common} --out planned {' '.join(flags_of(row))}" for row in rows]

    def traces(tree):
        tool = work / f"op_trace-{trees.index(tree)}"
        cflags, libs = link_flags(tree)
        source = f"-I {tree} {ROOT}/test/op_trace.cpp -o {tool} {tree}/build/cpu/libringzero.a"
        subprocess.run(split(["g++ -std=c++20 -O1 -w -fopenmp -pthread", cflags, source, libs]), check=True)
        # A row that ends the tool must not hide those after it: they are given again.
        out = []
        while len(out) < len(lines):
            done = subprocess.run([tool], input="\n".join(lines[len(out) :]) + "\n", capture_output=True, text=True)
            out += done.stdout.splitlines()
            if len(out) < len(lines):
                out.append(f"ended with {done.returncode}")
        return out

    return compare_rows("have ops", trees, rows, traces, lambda line: ":" in line.replace("refused:", ""))


def ptx_of(tree, name):
    """PTX for sm_90a without line information, symbols numbered in the order of their first use."""
    argv = ["nvcc", "-ptx", "-std=c++20", "-O3", "-arch=sm_90a", "--expt-relaxed-constexpr", "-DRZ_CUDA", "-I.", name]
    done = subprocess.run([*argv, "-o", "-"], capture_output=True, text=True, cwd=tree)
    if done.returncode != 0:
        return "not compiled: " + done.stderr[-300:]
    lines = [line for line in done.stdout.splitlines() if not line.lstrip().startswith("//")]
    numbers = {}
    return re.sub(r"\b_[A-Z][\w$]*", lambda m: f"S{numbers.setdefault(m.group(), len(numbers))}", "\n".join(lines))


def compare_ptx(trees):
    if not shutil.which("nvcc"):
        return "no nvcc here"
    names = {os.path.relpath(p, t) for t in trees for p in glob.glob(t + "/kernels/**/*.cu", recursive=True)}
    pairs = {}
    for name in sorted(names):
        old, new = both(trees, lambda tree, name=name: ptx_of(tree, name))
        pairs[name] = (old, new)
        pairs[name + " compiles"] = (True, not new.startswith("not compiled"))
    return compare(pairs)


# A run's name, ranks, threads and flags; "cut N": resumed from its checkpoint of step N. An update of --batch-tokens 96 is two
# micro-batches of 2 x 24 tokens on one rank. Vocabularies of 11,600 and more: an embedding and a head whose slices are equal
# on the ranks, and end within a block of the norm.
LAYOUTS = """
    one-{dtype}                             1 1 --dtype {dtype}
    one-threads-2-{dtype}                   1 2 --dtype {dtype}
    one-accumulated-{dtype}                 1 1 --dtype {dtype} --batch-tokens 96
    one-tied-{dtype}                        1 1 --dtype {dtype} --head tied
    one-resumed-{dtype}                     1 1 --dtype {dtype} cut 3
    one-recompute-mlp-{dtype}               1 1 --dtype {dtype} --recompute mlp
    one-recompute-block-{dtype}             1 1 --dtype {dtype} --recompute block
    three-zero-{zero}-{dtype}               3 1 --dtype {dtype} --zero {zero}
    three-zero-{zero}-accumulated-{dtype}   3 1 --dtype {dtype} --zero {zero} --batch-tokens 288
    three-zero-{zero}-tied-{dtype}          3 1 --dtype {dtype} --zero {zero} --head tied
    one-zero-{sharded}                      1 1 --zero {sharded}
    four-hybrid-zero-{sharded}              4 1 --zero {sharded} --shard-size 2
    three-zero-{sharded}-no-overlap         3 1 --zero {sharded} --no-overlap
    three-zero-{local}-accumulated-locally  3 1 --zero {local} --batch-tokens 288 --accumulate-locally
    three-zero-{local}-resumed              3 1 --zero {local} cut 3
    four-zero-3-direct                      4 1 --zero 3 --collectives direct
    four-zero-3-prefetch-3                  4 1 --zero 3 --prefetch 3
    four-zero-3-recompute-block             4 1 --zero 3 --recompute block --batch-tokens 384
    three-narrow                            3 1 --zero 2 --dtype bf16 --adam-dtype bf16 --master-dtype bf16
    one-fp32-gradients                      1 1 --dtype bf16 --grad-dtype fp32 --batch-tokens 96
    one-many-chunks-of-logits               1 2 --vocab 40000
    two-equal-zero-0                        2 1 --vocab 11600
    two-equal-zero-2                        2 1 --vocab 11600 --zero 2 --dtype bf16
    two-equal-zero-3                        2 1 --vocab 11600 --zero 3
    three-equal-zero-3-direct               3 1 --vocab 13300 --zero 3 --collectives direct
    three-equal-zero-{cut}                  3 1 --vocab 13300 --zero {cut}
    four-equal-zero-3                       4 1 --vocab 11600 --zero 3
    cuda-one-{dtype}                        1 1 --dtype {dtype}
    cuda-one-accumulated-{dtype}            1 1 --dtype {dtype} --batch-tokens 96
    cuda-one-tied                           1 1 --head tied
    cuda-one-recompute-block                1 1 --recompute block
    cuda-one-recompute-mlp                  1 1 --dtype bf16 --recompute mlp
    cuda-one-graphs                         1 1 --cuda-graphs on --batch-tokens 96
    cuda-one-resumed                        1 1 cut 3
    cuda-three-zero-3                       3 1 --zero 3 --batch-tokens 288
    cuda-three-zero-2-graphs                3 1 --zero 2 --cuda-graphs on
"""
# Checkpoints of BASE that NEW resumes.
RESUMED = """
    one                 1 1 --dtype fp32 cut 3
    one-tied            1 1 --dtype bf16 --head tied cut 3
    one-fp8             1 1 --dtype bf16 --fp8 tensor cut 3
    two-zero-0          2 1 --zero 0 --batch-tokens 192 cut 3
    two-zero-1          2 1 --zero 1 --dtype bf16 cut 3
    three-zero-2        3 1 --zero 2 cut 3
    four-zero-3         4 1 --zero 3 --dtype bf16 --head tied cut 3
    four-hybrid         4 1 --zero 3 --shard-size 2 cut 3
    two-tp              2 1 --tp 2 cut 3
    two-cp              2 1 --cp 2 cut 3
    two-pp              2 1 --pp 2 --batch-tokens 96 cut 3
    four-tp-fp8         4 1 --tp 2 --zero 2 --dtype bf16 --fp8 tensor --ffn 96 --dim 64 --heads 4 --head-dim 16 cut 3
"""
SAVES = ["--save-every", "3", "--keep", "0"]
VALUES = {"dtype": ["fp32", "bf16"], "zero": "0123", "sharded": "123", "local": "23", "cut": "023"}
TOY = """--preset bytes --dim 48 --layers 3 --heads 6 --kv-heads 2 --ffn 80 --head-dim 8 --batch 2 --seq-len 24 --val-every 3
    --val-tokens 480 --steps 6 --save-every 6 --lr 5e-3 --warmup 2 --logits-mib 1 --seed 11 --timeout 60 --dtype fp32"""


def layouts(text):
    """Name -> (ranks, threads, flags, the step to resume from or "")."""
    out = {}
    for line in text.strip().splitlines():
        for values in itertools.product(
            *([(name, v) for v in VALUES[name]] for name in VALUES if f"{{{name}}}" in line)
        ):
            words, _, cut = line.format(**dict(values)).partition(" cut ")
            name, ranks, threads, *flags = words.split()
            out[name] = (int(ranks), threads, flags, cut)
    return out


def write_text():
    """Shards of a text that repeats: 2,000 tokens, then 20,000, so that a shard and an epoch end within the runs."""
    draw = random.Random(1)
    for name, n in (("a", 2000), ("b", 20000), ("v", 3000)):
        ids = [(i * i * 7 + draw.randrange(9)) % 251 for i in range(n)]
        (work / f"{name}.bin").write_bytes(checks.shard(ids))


def run_layout(program, layout, out, resumed_by=None):
    """What the run leaves: each tensor file, and the rows of its metrics; a text where it fails."""
    ranks, threads, flags, cut = layout
    device = "cuda" if program.endswith("_simt") else "cpu"
    data = f"--train-data {work}/a.bin,{work}/b.bin --val-data {work}/v.bin --device {device} --out {out}"
    starts = [(program, flags)]
    if cut:
        starts = [(program, [*flags, *SAVES]), (resumed_by or program, [*flags, "--resume", cut, "--keep", "0"])]
    for k, (binary, more) in enumerate(starts):
        if k == 1:
            checks.remove(out / "final", out / "checkpoints/step_000000006")
        command = [["mpirun", "-n", ranks] * (ranks > 1), [binary], data, TOY, more]
        done = run(*command, env={"OMP_NUM_THREADS": threads})
        if done.code:
            return f"ended with {done.code}: {done.text[-1000:]}"
    left = {}
    for path in sorted(out.rglob("*.safetensors")):
        left[str(path.relative_to(out))] = hashlib.sha256(path.read_bytes()).hexdigest()
    left["rows"] = checks.logged(out)
    return left if len(left) >= 3 and len(left["rows"]) >= 6 else f"too little: {left}"


def compare_runs(rows, run_pair):
    """Two rows at a time: how both of run_pair(row)'s runs differ; None leaves a row out."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pairs = dict(zip(rows, pool.map(run_pair, rows)))
    found = compare({name: pair for name, pair in pairs.items() if pair})
    return {name: how or ("" if isinstance(pairs[name][0], dict) else pairs[name][0]) for name, how in found.items()}


def compare_bits(trees):
    """The runs leave their config.toml for the part `config`."""
    write_text()
    rows = layouts(LAYOUTS)

    def run_pair(name):
        programs = [f"{t}/train_llama_simt" if name.startswith("cuda-") else program_of(t) for t in trees]
        if not all(map(os.path.exists, programs)):
            return None
        outs = [work / f"{name}.{side}" for side in "ab"]
        ranks, threads, flags, cut = rows[name]
        if "bf16" in flags and "--grad-dtype" not in flags:
            flags = [*flags, "--grad-dtype", "bf16"]  # the default of fd65b2a; fp32 is today's
        pair = [run_layout(program, (ranks, threads, flags, cut), out) for program, out in zip(programs, outs)]
        for out in outs:
            if (out / "config.toml").exists():
                shutil.copy(out / "config.toml", f"{out}.toml")
        checks.remove(*outs)
        return pair

    return compare_runs(rows, run_pair)


def compare_resume(trees):
    """BASE's undisturbed run, and NEW's from BASE's checkpoint."""
    write_text()
    rows = layouts(RESUMED)
    base, new = map(program_of, trees)

    def run_pair(name):
        ranks, threads, flags, cut = rows[name]
        whole = run_layout(base, (ranks, threads, flags + SAVES, ""), work / f"{name}.whole")
        return whole, run_layout(base, rows[name], work / f"{name}.resumed", new)

    return compare_runs(rows, run_pair)


def compare_config(trees):
    out = {}
    for old in sorted(work.glob("*.a.toml")):
        name = old.name.removesuffix(".a.toml")
        new = old.with_name(f"{name}.b.toml")
        texts = [path.read_text() if path.exists() else "absent" for path in (old, new)]
        # Folders of the two runs, and the commit that a heading names.
        texts = [re.sub(rf"{name}\.[ab]\b", "OUT", re.sub(r"(?m)^#.*\n", "", text)) for text in texts]
        out.update(changed_lines(name, *texts))
    return out or "part bits was not run"


PARTS = {
    "help": compare_help,
    "refusals": compare_refusals,
    "plan": compare_plan,
    "ops": compare_ops,
    "ptx": compare_ptx,
    "bits": compare_bits,
    "config": compare_config,
    "resume": compare_resume,
}


def read_expected():
    lines = [line for line in EXPECTED.read_text().splitlines() if line.strip() and not line.startswith("#")]
    expected = {pattern: reason.strip() for pattern, _, reason in (line.partition("  ") for line in lines)}
    for pattern in expected:
        check(f"{EXPECTED.name}: {pattern}", expected[pattern], "no reason")
    return expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("--parts", default="bits,config,resume", help="which, joined by commas")
    parser.add_argument("--table", default="", help="file for all rows")
    options = parser.parse_args(checks.arguments)
    trees = [options.base, options.new]
    expected, used, table, parts = read_expected(), set(), [], options.parts.split(",")
    for part in parts:
        start, before = time.monotonic(), len(table)
        rows = PARTS[part](trees)
        if isinstance(rows, str):
            checks.skip(f"{part}: {rows}")
            continue
        for row, how in rows.items():
            pattern = next((p for p in expected if how and fnmatch.fnmatchcase(f"{part} {row}", p)), None)
            used.add(pattern)
            check(f"{part} {row}", not how or pattern, how)
            result = f"differs: {expected.get(pattern, 'NOT EXPECTED')}" if how else "equal"
            table.append(f"{part}\t{row}\t{result}\n")
        differ = sum("\tdiffers: " in line for line in table[before:])
        print(f"{part}: {len(rows)} rows, {differ} differ, {time.monotonic() - start:.0f} s", flush=True)
    for pattern in expected:
        if pattern.partition(" ")[0] in parts:
            check(f"{EXPECTED.name}: {pattern}", pattern in used, "nothing differs as this says")
    if options.table:
        pathlib.Path(options.table).write_text("".join(table))
    end()


if __name__ == "__main__":
    main()
