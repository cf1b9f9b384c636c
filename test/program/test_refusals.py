#!/usr/bin/env python3
"""Every refusal in one table, test/program/refusals.txt: wrong flags, wrong files, and flags that do not go together.

    test/program/test_refusals.py ./train_llama              each row's exit code and text; ends with "N passed, N failed"
    test/program/test_refusals.py ./train_llama --write      writes what is said now into the table, to be read in git diff

A row is a command with its exit code, and the text that follows "train_llama: ". $ stands for SMALL, {N} in a text for a
number of this machine. Commands run in a folder with the files of make_files(). So do those of first_day.txt: what four users
type on their first day, each with its exit code and some of its words.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TABLE = os.path.join(ROOT, "test", "program", "refusals.txt")
FIRST_DAY = os.path.join(ROOT, "test", "program", "first_day.txt")
SMALL = (
    "--data data --dim 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 32 --batch 2 --seq-len 32 --threads 1"
)


def make_files(program, folder):
    def at(name):
        return os.path.join(folder, name)

    def write(name, data):
        with open(at(name), "wb") as f:
            f.write(data)

    def shard(magic=20240520, version=1, ids=(5,) * 200, claim=None, order="<"):
        count = len(ids) if claim is None else claim
        return struct.pack(order + "3i", magic, version, count).ljust(1024, b"\0") + struct.pack(f"<{len(ids)}H", *ids)

    write("good.txt", b"def f(x):\n    return x + 1\n\n" * 2000)
    write("empty.txt", b"")
    write("rows.jsonl", b'{"text": "good"}\n{"text: \n')
    prepare("text good.txt --out data --name d --quiet".split(), folder, check=True)
    train = [program, *shlex.split(SMALL), "--device", "cpu", "--steps", "2", "--val-every", "0", "--out", "run"]
    subprocess.run(train, check=True, capture_output=True, cwd=folder)
    wide = [*train[:-1], "wide", "--head-dim", "24", "--qkv-bias", "on"]
    subprocess.run(wide, check=True, capture_output=True, cwd=folder)
    for name in ("model", "other"):
        shutil.copytree(at("run/final"), at(name))
    for name, change in (
        (
            "mistral",
            {
                "model_type": "mistral",
                "architectures": ["MistralForCausalLM"],
                "max_position_embeddings": 32768,
                "sliding_window": 4096,
            },
        ),
        ("qwen", {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}),
        ("olmo", {"model_type": "olmo", "architectures": ["OlmoForCausalLM"]}),
    ):
        shutil.copytree(at("model"), at(name))
        with open(at(f"{name}/config.json")) as f:
            value = json.load(f)
        with open(at(f"{name}/config.json"), "w") as f:
            json.dump({**value, **change}, f)
    shutil.copytree(at("model"), at("broken"))
    with open(at("broken/model.safetensors"), "r+b") as f:
        f.truncate(1000)
    shutil.copytree(at("data"), at("more"))
    shutil.copytree(at("data"), at("swapped"))
    with open(at("swapped/tokenizer.json")) as f:
        value = json.load(f)
    vocab = value["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    with open(at("swapped/tokenizer.json"), "w") as f:
        json.dump(value, f)
    write("file", b"")
    write("empty.bin", b"")
    write("three.bin", b"\0\1\2")
    write("page.bin", b"<html><body>404</body></html>")
    write("lfs.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    write("packed.bin", b"\x1f\x8b\x08\0" * 100)
    write("table.bin", b"PAR1" * 100)
    write("text.bin", b"Once upon a time" * 100)
    write("good.bin", shard())
    write("cut.bin", shard(claim=300))
    write("long.bin", shard(claim=100))
    write("version.bin", shard(version=9))
    write("swapped.bin", shard(order=">"))
    write("eval.bin", shard(magic=20240522))
    write("ids.bin", shard(ids=(5, 60000) * 100))
    write("key.toml", b"steps = 3\nstepz = 3\n")
    write("twice.toml", b"steps = 3\nlr = 1e-3\nsteps = 4\n")
    write("heading.toml", b"[mdoel]\ndim = 64\n")
    write("line.toml", b"steps 3\n")
    write("value.toml", b'steps = 3\nlr = "fast"\n')


def prepare(argv, folder, check=False):
    argv = [sys.executable, os.path.join(ROOT, "data_prep", "prepare.py"), *argv]
    return subprocess.run(argv, capture_output=True, text=True, check=check, timeout=120, cwd=folder)


class Row:
    def __init__(self, line):
        self.code, ranks, self.command = re.fullmatch(r"(\d+)(?: on (\d+) ranks)?  (.+)", line).groups()
        self.ranks = int(ranks or 1)
        self.text = []

    def head(self):
        return f"{self.code}{f' on {self.ranks} ranks' if self.ranks > 1 else ''}  {self.command}"


def read_table(path=TABLE):
    """Rows, and the lines between them as they are."""
    out = []
    with open(path) as f:
        for line in f.read().splitlines():
            if line.startswith("    "):
                out[-1].text.append(line[4:])
            else:
                out.append(Row(line) if line[:1].isdigit() else line)
    return out


def run(program, row, folder):
    """Exit code, text from the program's name on, and what is wrong beside them."""
    argv = shlex.split(row.command.replace("$", SMALL))
    env = dict(os.environ, HF_HUB_CACHE="hub", OMP_NUM_THREADS="1", RINGZERO_RUNS="")
    if argv[0] == "prepare.py":
        done, prefix = prepare([*argv[1:], "--out", "new", "--overwrite"], folder), "prepare.py"
    else:
        argv = ["mpirun", "-n", str(row.ranks), program, *argv] if row.ranks > 1 else [program, *argv]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=120, env=env, stdin=subprocess.DEVNULL, cwd=folder
        )
        prefix = "train_llama"
    lines = [line for line in done.stderr.splitlines() if "no GPU is used" not in line]
    begin = [i for i, line in enumerate(lines) if line.startswith(prefix)]
    text = lines[begin[0] :] if begin else []
    wrong = [] if len(begin) == 1 else [f"says it {len(begin)} times"]
    if text:
        text[0] = re.sub(rf"^{prefix}( \w+: error)?: ", "", text[0])
    if row.ranks > 1:
        if row.code == "2" and any("operation" in line for line in lines):
            wrong.append("has flight records")
        if row.code == "2" and re.match(r"rank [1-9]", text[0] if text else ""):
            wrong.append("is not said by rank 0")
        # After it: the launcher's words, and where reports stand.
        text = text[:1] + list(itertools.takewhile(lambda line: line.startswith("  "), text[1:]))
    if "Traceback" in done.stderr:
        wrong.append("has a traceback")
    return str(done.returncode), text, wrong


def first_day(program, rows, folder):
    """What is wrong with each of some rows that follow each other; "": nothing."""
    for row in rows:
        argv = shlex.split(row.command.replace("$", SMALL))
        script = os.path.join(ROOT, "data_prep", "prepare.py")
        argv = [sys.executable, script, *argv[1:]] if argv[0] == "prepare.py" else [program, *argv]
        env = dict(os.environ, HF_HUB_CACHE="hub", OMP_NUM_THREADS="1", COLUMNS="120", PYTHONDONTWRITEBYTECODE="1")
        done = subprocess.run(
            argv, capture_output=True, errors="replace", timeout=120, env=env, stdin=subprocess.DEVNULL, cwd=folder
        )
        said = done.stdout + done.stderr
        wrong = [f"does not say: {words}" for words in row.text if words not in said]
        if done.returncode != int(row.code):
            wrong.insert(0, f"code {done.returncode}")
        yield f"{row.head()}\n    " + "\n    ".join([*wrong, *said.splitlines()[-5:]]) if wrong else ""


def matches(text, wanted):
    pattern = re.escape("\n".join(wanted)).replace(re.escape("{N}"), r"[0-9.]+")
    return re.fullmatch(pattern, "\n".join(text)) is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--write", action="store_true", help="write exit codes and texts into the table")
    args = parser.parse_args()
    program = os.path.abspath(args.program)
    table = read_table()
    rows = [row for row in table if isinstance(row, Row)]
    if not shutil.which("mpirun"):
        rows = [row for row in rows if row.ranks == 1]
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        make_files(program, work)
        side_by_side = concurrent.futures.ThreadPoolExecutor(2)
        in_turn = concurrent.futures.ThreadPoolExecutor(1)  # those that lock or write a folder
        found = {
            r: (in_turn if re.search("--out|prepare.py", r.command) else side_by_side).submit(run, program, r, work)
            for r in rows
        }
        for row in rows:
            code, text, wrong = found[row].result()
            wrong += [f"exit code {code}, expected {row.code}"] if code != row.code else []
            wrong += [f"says {work}"] if any(work in line for line in text) else []
            if not matches(text, row.text):
                wrong.append("says\n    " + "\n    ".join(text) + "\n  expected\n    " + "\n    ".join(row.text))
                row.text = text if args.write else row.text
            row.code = code if args.write else row.code
            failed += bool(wrong)
            if wrong:
                print(f"{'CHANGED' if args.write else 'FAILED'}: {row.head()}\n  " + "\n  ".join(wrong))
        os.mkdir(os.path.join(work, "a"))
        situations = [[]]
        for row in read_table(FIRST_DAY):
            situations.append([]) if isinstance(row, str) else situations[-1].append(row)
        # The last of the four goes on with the first one's models.
        first, card, cluster, models = (rows for rows in situations if rows)
        turns = [
            side_by_side.submit(lambda s=s: list(first_day(program, s, work))) for s in (first + models, card + cluster)
        ]
        days = [wrong for turn in turns for wrong in turn.result()]
        for wrong in filter(None, days):
            print(f"FAILED: {wrong}")
    if args.write:
        with open(TABLE, "w") as f:
            for row in table:
                f.write(row + "\n" if isinstance(row, str) else "\n    ".join([row.head(), *row.text]) + "\n")
    failed += sum(map(bool, days))
    print(f"{len(rows) + len(days) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
