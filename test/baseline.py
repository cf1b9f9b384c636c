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
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.join(ROOT, "test", "program"))
sys.dont_write_bytecode = True
import plan_grid  # noqa: E402
import test_refusals  # noqa: E402

EXPECTED = os.path.join(ROOT, "test", "baseline_expected.txt")
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


def both(trees, work):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, trees))


def help_of(tree):
    """The word that shows every flag: --help alone did, before there was --help-all."""
    answer = subprocess.run([program_of(tree), "--help-all"], capture_output=True)
    return "--help" if answer.returncode else "--help-all"


def compare_help(trees, work):
    texts = both(
        trees,
        lambda tree: {
            " ".join(argv).replace("-all", ""): subprocess.run(
                [program_of(tree), *argv], capture_output=True, text=True, cwd=work
            ).stdout
            for argv in [*(([name] if name else []) + [help_of(tree)] for name in SUBCOMMANDS), ["--presets"]]
        },
    )
    out = {}
    for row in texts[0]:
        out.update(changed_lines(row, texts[0][row], texts[1][row]))
    return out


def compare_refusals(trees, work):
    rows = [row for row in test_refusals.read_table() if isinstance(row, test_refusals.Row)]
    rows = [row for row in rows if not row.command.startswith("prepare.py")]

    def answers(tree):
        folder = os.path.join(work, "refusals-" + str(trees.index(tree)))
        os.mkdir(folder)
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


def grid_of(work):
    return plan_grid.Grid(argparse.Namespace(cuda="", capability="9.0", fp8=False, program=""), work)


def compare_plan(trees, work):
    grid, rows = grid_of(work), grid_rows(150)

    def plans(tree):
        out = []
        for row in rows:
            argv = [
                program_of(tree),
                "plan",
                "--gpus",
                row["ranks"],
                "--gpu",
                grid.machine,
                "--json",
                "-",
                "--out",
                "planned",
            ]
            done = subprocess.run(argv + grid.common + flags_of(row), capture_output=True, text=True)
            plan = json.loads(done.stdout) if done.stdout.startswith("{") else {"refused": done.stderr}
            plan.pop("commit", None)
            plan.pop("version", None)
            out.append(plan)
        return out

    old, new = both(trees, plans)
    pairs = {f"{k} {row['ranks']}x {' '.join(flags_of(row))}": (old[k], new[k]) for k, row in enumerate(rows)}
    pairs["at least half of the rows are plans"] = (True, sum("refused" not in plan for plan in new) >= len(rows) / 2)
    return compare(pairs)


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


def compare_ops(trees, work):
    grid, rows = grid_of(work), grid_rows(300)
    lines = [" ".join([row["ranks"], *grid.common, "--out", "planned", *flags_of(row)]) for row in rows]

    def traces(tree):
        tool = os.path.join(work, "op_trace-" + str(trees.index(tree)))
        cflags, libs = link_flags(tree)
        source = os.path.join(ROOT, "test", "op_trace.cpp")
        subprocess.run(
            [
                "g++",
                "-std=c++20",
                "-O1",
                "-w",
                "-fopenmp",
                "-I",
                tree,
                *cflags,
                source,
                "-o",
                tool,
                os.path.join(tree, "build", "cpu", "libringzero.a"),
                *libs,
                "-pthread",
            ],
            check=True,
        )
        # A row that ends the tool must not hide those after it: they are given again.
        out = []
        while len(out) < len(lines):
            done = subprocess.run([tool], input="\n".join(lines[len(out) :]) + "\n", capture_output=True, text=True)
            out += done.stdout.splitlines()
            if len(out) < len(lines):
                out.append(f"ended with {done.returncode}")
        return out

    old, new = both(trees, traces)
    traced = sum(1 for line in new if ":" in line.replace("refused:", ""))
    pairs = {f"{k} {row['ranks']}x {' '.join(flags_of(row))}": (old[k], new[k]) for k, row in enumerate(rows)}
    pairs["at least half of the rows have ops"] = (True, traced >= len(rows) / 2)
    return compare(pairs)


def ptx_of(tree, name):
    """PTX for sm_90a without line information, symbols numbered in the order of their first use."""
    argv = ["nvcc", "-ptx", "-std=c++20", "-O3", "-arch=sm_90a", "--expt-relaxed-constexpr", "-DRZ_CUDA", "-I.", name]
    done = subprocess.run([*argv, "-o", "-"], capture_output=True, text=True, cwd=tree)
    if done.returncode != 0:
        return "not compiled: " + done.stderr[-300:]
    lines = [line for line in done.stdout.splitlines() if not line.lstrip().startswith("//")]
    numbers = {}
    return re.sub(r"\b_[A-Z][\w$]*", lambda m: f"S{numbers.setdefault(m.group(), len(numbers))}", "\n".join(lines))


def compare_ptx(trees, work):
    if not shutil.which("nvcc"):
        return "no nvcc here"
    names = {os.path.relpath(p, t) for t in trees for p in glob.glob(t + "/kernels/**/*.cu", recursive=True)}
    pairs = {}
    for name in sorted(names):
        old, new = both(trees, lambda tree, name=name: ptx_of(tree, name))
        pairs[name] = tuple(hashlib.sha256(text.encode()).hexdigest() for text in (old, new))
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


def write_text(folder):
    """Shards of a text that repeats: 2,000 tokens, then 20,000, so that a shard and an epoch end within the runs."""
    draw = random.Random(1)
    for name, n in (("a", 2000), ("b", 20000), ("v", 3000)):
        ids = [(i * i * 7 + draw.randrange(9)) % 251 for i in range(n)]
        with open(f"{folder}/{name}.bin", "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253) + struct.pack(f"<{n}H", *ids))


def run_layout(program, layout, out, resumed_by=None):
    """What the run leaves: each tensor file, and the rows of its metrics; a text where it fails."""
    ranks, threads, flags, cut = layout
    text, device = os.path.dirname(out), "cuda" if program.endswith("_simt") else "cpu"
    common = (
        f"--train-data {text}/a.bin,{text}/b.bin --val-data {text}/v.bin {TOY} --device {device} --out {out}".split()
    )
    starts = [(program, flags)]
    if cut:
        starts = [(program, [*flags, *SAVES]), (resumed_by or program, [*flags, "--resume", cut, "--keep", "0"])]
    for k, (binary, more) in enumerate(starts):
        if k == 1:
            shutil.rmtree(f"{out}/final", ignore_errors=True)
            shutil.rmtree(f"{out}/checkpoints/step_000000006", ignore_errors=True)
        command = ["mpirun", "-n", str(ranks)] * (ranks > 1) + [binary, *common, *more]
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        if done.returncode:
            return f"ended with {done.returncode}: {(done.stdout + done.stderr)[-1000:]}"
    left = {}
    for path in sorted(glob.glob(out + "/**/*.safetensors", recursive=True)):
        with open(path, "rb") as f:
            left[os.path.relpath(path, out)] = hashlib.sha256(f.read()).hexdigest()
    with open(out + "/metrics.jsonl") as f:
        keys = ("step", "loss", "grad_norm", "lr", "data_hash", "val_loss")
        left["rows"] = [{k: row[k] for k in keys if k in row} for row in map(json.loads, f)]
    return left if len(left) >= 3 and len(left["rows"]) >= 6 else f"too little: {left}"


def compare_runs(rows, run_pair):
    """Two rows at a time: how both of run_pair(row)'s runs differ; None leaves a row out."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pairs = dict(zip(rows, pool.map(run_pair, rows)))
    found = compare({name: pair for name, pair in pairs.items() if pair})
    return {name: how or ("" if isinstance(pairs[name][0], dict) else pairs[name][0]) for name, how in found.items()}


def compare_bits(trees, work):
    """The runs leave their config.toml for the part `config`."""
    write_text(work)
    rows = layouts(LAYOUTS)

    def run_pair(name):
        programs = [f"{t}/train_llama_simt" if name.startswith("cuda-") else program_of(t) for t in trees]
        if not all(map(os.path.exists, programs)):
            return None
        outs = [f"{work}/{name}.{side}" for side in "ab"]
        ranks, threads, flags, cut = rows[name]
        if "bf16" in flags and "--grad-dtype" not in flags:
            flags = [*flags, "--grad-dtype", "bf16"]  # the default of fd65b2a; fp32 is today's
        pair = [run_layout(program, (ranks, threads, flags, cut), out) for program, out in zip(programs, outs)]
        for out in outs:
            if os.path.exists(f"{out}/config.toml"):
                shutil.copy(f"{out}/config.toml", f"{out}.toml")
            shutil.rmtree(out, ignore_errors=True)
        return pair

    return compare_runs(rows, run_pair)


def compare_resume(trees, work):
    """BASE's undisturbed run, and NEW's from BASE's checkpoint."""
    write_text(work)
    rows = layouts(RESUMED)
    base, new = map(program_of, trees)

    def run_pair(name):
        ranks, threads, flags, cut = rows[name]
        whole = run_layout(base, (ranks, threads, flags + SAVES, ""), f"{work}/{name}.whole")
        return whole, run_layout(base, rows[name], f"{work}/{name}.resumed", new)

    return compare_runs(rows, run_pair)


def compare_config(trees, work):
    out = {}
    for old in sorted(glob.glob(os.path.join(work, "*.a.toml"))):
        new = old[: -len("a.toml")] + "b.toml"
        name = os.path.basename(old)[: -len(".a.toml")]
        texts = [open(path).read() if os.path.exists(path) else "absent" for path in (old, new)]
        # Folders of the two runs, and the commit that a heading names.
        out.update(
            changed_lines(name, *(re.sub(rf"{name}\.[ab]\b", "OUT", re.sub(r"(?m)^#.*\n", "", t)) for t in texts))
        )
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
    out = {}
    if os.path.exists(EXPECTED):
        for line in open(EXPECTED):
            if line.strip() and not line.startswith("#"):
                pattern, _, reason = line.rstrip("\n").partition("  ")
                if not reason.strip():
                    raise SystemExit(f"{EXPECTED}: no reason: {line}")
                out[pattern] = reason.strip()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("new")
    parser.add_argument("--parts", default="bits,config,resume", help="which, joined by commas")
    parser.add_argument("--table", default="", help="file for all rows")
    options = parser.parse_args()
    trees = [os.path.realpath(options.base), os.path.realpath(options.new)]
    expected, used, table = read_expected(), set(), []
    passed = failed = skipped = meant = 0
    with tempfile.TemporaryDirectory() as work:
        os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
        for part in options.parts.split(","):
            start = time.monotonic()
            rows = PARTS[part](trees, work)
            if isinstance(rows, str):
                print(f"skipped: {part}: {rows}")
                skipped += 1
                continue
            differ = {row: how for row, how in rows.items() if how}
            for row, how in differ.items():
                pattern = next((p for p in expected if fnmatch.fnmatchcase(f"{part} {row}", p)), None)
                used.add(pattern)
                meant += pattern is not None
                failed += pattern is None
                if pattern is None:
                    print(f"FAILED: {part} {row}\n" + "\n".join("    " + line for line in how.splitlines()))
                table.append((part, row, "differs: " + expected.get(pattern, "NOT EXPECTED")))
            table += [(part, row, "equal") for row in rows if row not in differ]
            passed += len(rows) - len(differ)
            print(f"{part}: {len(rows)} rows, {len(differ)} differ, {time.monotonic() - start:.0f} s", flush=True)
        for pattern in expected:
            if pattern.partition(" ")[0] in options.parts.split(",") and pattern not in used:
                print(f"FAILED: {os.path.basename(EXPECTED)}: nothing differs as this says: {pattern}")
                failed += 1
    if options.table:
        with open(options.table, "w") as f:
            f.writelines(f"{part}\t{row}\t{result}\n" for part, row, result in table)
    print(f"{meant} differences are expected")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
