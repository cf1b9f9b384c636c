#!/usr/bin/env python3
"""Every refusal in one table, test/program/refusals.txt: wrong flags, wrong files, and flags that do not go together.

    test/program/test_refusals.py ./train_llama              each row's exit code and text; ends with counts
    test/program/test_refusals.py ./train_llama --write      writes what is said now into the table, to be read in git diff

A row is a command with its exit code, and the text that follows "train_llama: ". $ stands for SMALL, {N} in a text for a
number of this machine. Commands run in a folder with the files of make_files(). So do those of first_day.txt: what four users
type on their first day, each with its exit code and some of its words.
"""

import concurrent.futures
import itertools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from checks import ROOT, arguments, change, check, edit, end, has_mpi, shard, work

TABLE, FIRST_DAY = ROOT / "test/program/refusals.txt", ROOT / "test/program/first_day.txt"
SMALL = (
    "--data data --dim 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 32 --batch 2 --seq-len 32 --threads 1"
)


FIVES = [5] * 200
FILES = {
    "good.txt": b"def f(x):\n    return x + 1\n\n" * 2000,
    "empty.txt": b"",
    "rows.jsonl": b'{"text": "good"}\n{"text: \n',
    "file": b"",
    "empty.bin": b"",
    "three.bin": b"\0\1\2",
    "page.bin": b"<html><body>404</body></html>",
    "lfs.bin": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
    "packed.bin": b"\x1f\x8b\x08\0" * 100,
    "table.bin": b"PAR1" * 100,
    "text.bin": b"Once upon a time" * 100,
    "good.bin": shard(FIVES),
    "cut.bin": shard(FIVES, claim=300),
    "long.bin": shard(FIVES, claim=100),
    "version.bin": shard(FIVES, kind=(20240520, 9)),
    "swapped.bin": shard(FIVES, order=">"),
    "eval.bin": shard(FIVES, kind=(20240522, 1)),
    "ids.bin": shard([5, 60000] * 100),
    "llama.bin": shard(FIVES, kind=(20240801, 7), size=4),
    "key.toml": b"steps = 3\nstepz = 3\n",
    "twice.toml": b"steps = 3\nlr = 1e-3\nsteps = 4\n",
    "heading.toml": b"[mdoel]\ndim = 64\n",
    "line.toml": b"steps 3\n",
    "value.toml": b'steps = 3\nlr = "fast"\n',
}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
# Copies of the model with other fields in config.json.
MODELS = {
    "model": {},
    "other": {},
    "broken": {},
    "absurd": {},
    "heads": dict(num_attention_heads=5),
    "giant": dict(num_attention_heads=10**18),
    "deeper": dict(num_hidden_layers=2),
    "mistral": dict(MISTRAL, max_position_embeddings=32768, sliding_window=4096),
    "qwen": dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], use_sliding_window=True),
    "olmo": dict(model_type="olmo", architectures=["OlmoForCausalLM"]),
}


def make_files(program, folder):
    folder = pathlib.Path(folder)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    for command in (
        "prepare.py text good.txt --out data --name d --quiet",
        "$ --device cpu --steps 2 --val-every 0 --out run",
        "$ --device cpu --steps 2 --val-every 0 --out wide --head-dim 24 --qkv-bias on",
    ):
        ask(program, command, folder).check_returncode()
    for name, fields in MODELS.items():
        shutil.copytree(folder / "run/final", folder / name)
        change(folder / name / "config.json", **fields)
    os.truncate(folder / "broken/model.safetensors", 1000)
    with open(folder / "absurd/model.safetensors", "r+b") as file:
        file.write(b"\xff" * 7 + b"\x7f")  # the length of its header
    for name in "more", "swapped":
        shutil.copytree(folder / "data", folder / name)
    edit(folder / "swapped/tokenizer.json", '"([ab])":', lambda found: '"b":' if found[1] == "a" else '"a":')


def ask(program, command, folder, ranks=1, more=(), **environment):
    """The process, which has ended."""
    argv = shlex.split(command.replace("$", SMALL)) + list(more)
    argv = [sys.executable, f"{ROOT}/data_prep/prepare.py", *argv[1:]] if argv[0] == "prepare.py" else [program, *argv]
    argv = ["mpirun", "-n", str(ranks)] * (ranks > 1) + argv
    env = {**os.environ, "HF_HUB_CACHE": "hub", **environment}
    how = dict(capture_output=True, errors="replace", stdin=subprocess.DEVNULL, timeout=120)
    return subprocess.run(argv, env=env, cwd=folder, **how)


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
    for line in path.read_text().splitlines():
        if line.startswith("    "):
            out[-1].text.append(line[4:])
        else:
            out.append(Row(line) if line[:1].isdigit() else line)
    return out


def run(program, row, folder):
    """Exit code, text from the program's name on, and what is wrong beside them."""
    prefix = "prepare.py" if row.command.startswith("prepare.py") else "train_llama"
    more = ["--out", "new", "--overwrite"] if prefix == "prepare.py" else ()
    done = ask(program, row.command, folder, row.ranks, more)
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
    """Of rows that follow each other: each one, what is wrong with it, and the last lines that it said."""
    for row in rows:
        more = {"RINGZERO_RUNS": "runs", "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}
        done = ask(program, row.command, folder, **more)
        said = done.stdout + done.stderr
        wrong = [f"does not say: {words}" for words in row.text if words not in said]
        wrong += [f"code {done.returncode}"] if done.returncode != int(row.code) else []
        yield row, wrong, said.splitlines()[-5:]


def matches(text, wanted):
    pattern = re.escape("\n".join(wanted)).replace(re.escape("{N}"), r"[0-9.]+")
    return re.fullmatch(pattern, "\n".join(text)) is not None


def main():
    program, *write = arguments
    table = read_table()
    rows = [row for row in table if isinstance(row, Row) and (row.ranks == 1 or has_mpi(program))]
    make_files(program, work)
    side_by_side = concurrent.futures.ThreadPoolExecutor(2)
    in_turn = concurrent.futures.ThreadPoolExecutor(1)  # those that lock or write a folder
    found = {
        row: (in_turn if re.search("--out|prepare.py", row.command) else side_by_side).submit(run, program, row, work)
        for row in rows
    }
    for row in rows:
        code, text, wrong = found[row].result()
        wrong += [f"exit code {code}, expected {row.code}"] if code != row.code else []
        wrong += [f"says {work}"] if any(str(work) in line for line in text) else []
        if not matches(text, row.text):
            wrong += ["says", *text, "expected", *row.text]
            row.text = text if write else row.text
        row.code = code if write else row.code
        check(row.head(), not wrong, "\n".join(wrong))
    (work / "a").mkdir()
    situations = [[]]
    for row in read_table(FIRST_DAY):
        situations.append([]) if isinstance(row, str) else situations[-1].append(row)
    # The last of the four goes on with the first one's models.
    first, card, cluster, models = (rows for rows in situations if rows)
    turns = [
        side_by_side.submit(lambda s=s: list(first_day(program, s, work))) for s in (first + models, card + cluster)
    ]
    for row, wrong, said in (answer for turn in turns for answer in turn.result()):
        check(row.head(), not wrong, "\n".join([*wrong, *said]))
    if write:
        lines = (row if isinstance(row, str) else "\n    ".join([row.head(), *row.text]) for row in table)
        TABLE.write_text("".join(f"{line}\n" for line in lines))
    end()


if __name__ == "__main__":
    main()
