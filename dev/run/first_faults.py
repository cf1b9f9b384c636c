#!/usr/bin/env python3
"""Wrong flags and wrong files, as people give them on their first day, and what they are told.

    python3 dev/run/first_faults.py ./train_llama              prints the table (dev/results/first-faults.md)
    python3 dev/run/first_faults.py ./train_llama --check      checks exit code, prefix and words of each message

Each case is a command, run in a folder of its own with the files of make_files(), and words that its message must have.
"""

import argparse
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SMALL = "--data data --dim 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 32 --batch 2 --seq-len 32 --threads 1"

# Exit code, arguments, words of the message. $ stands for SMALL.
FLAGS = [
    (2, "--batch 4x", "nearest valid value: 4"),
    (2, "--batch 0", "nearest valid value: 1"),
    (2, "--batch 2.5", "nearest valid value: 3"),
    (2, "--seq-len -3", "nearest valid value: 1"),
    (2, "--steps 1e99", "nearest valid value"),
    (2, "--steps", "--steps"),
    (2, "--lr fast", "is not a number"),
    (2, "--beta2 1", "nearest valid value: 0.999999"),
    (2, "--dropout 0.1", "is no flag"),
    (2, "--stepz 3", "did you mean --steps?"),
    (2, "--learning-rate 1e-3", "did you mean --lr?"),
    (2, "--learning_rate=1e-3", "did you mean --lr?"),
    (2, "--epochs 3", "an epoch is the data's tokens"),
    (2, "--max-steps 10", "did you mean --steps?"),
    (2, "--max_iters 10", "did you mean --steps?"),
    (2, "--batch-size 4", "did you mean --batch?"),
    (2, "--block-size 256", "did you mean --seq-len?"),
    (2, "--gradient-accumulation-steps 4", "did you mean --grad-accum?"),
    (2, "--bf16", "did you mean --dtype bf16?"),
    (2, "--gpus 4", "mpirun -n N"),
    (2, "--model llama", "--init-from"),
    (2, "--eval-interval 10", "did you mean --val-every"),
    (2, "--quux", "--quux is no flag"),
    (2, "--preset tinny", "nearest: tiny"),
    (2, "--dtype fp8", "is not one of"),
    (2, "--device gpu", "is not one of"),
    (2, "--zero 4", "nearest valid value: 3"),
    (2, "--lr-schedule cosin", "nearest: cosine"),
    (2, "--recompute all", "is not one of"),
    (2, "--keep 1", "nearest valid value: 2"),
    (2, "--time-limit 3x", "3x"),
    (2, "--timeout 0", "nearest valid value: 1"),
    (2, "--warmup 50 --steps 10", "nearest: --warmup 10"),
    (2, "--cooldown 20", "nearest: --lr-schedule wsd"),
    (2, "--lr-schedule wsd --steps 100 --cooldown 101", "nearest: --cooldown 100"),
    (2, "--lr-schedule constant --min-lr 1e-5", "stays at --lr"),
    (2, "--lr 1e-4 --min-lr 1e-3", "nearest: --min-lr 0.0001"),
    (2, "--grad-accum 2 --batch-tokens 4096", "leave one of them out"),
    (2, "--preset tiny --init-from model", "both say what the model is"),
    (2, "--raw16 --data data", "leave it out"),
    (2, "--prefetch 2", "nearest: --zero 3"),
    (2, "--accumulate-locally --zero 1", "--zero 2 or 3"),
    (2, "--pp-schedule gpipe", "nearest: --pp 2"),
    (2, "--sample-tokens 20", "nearest: --sample-every 1"),
    (2, "--on-spike stop --spike-z 0", "nearest: --spike-z 5.7"),
    (2, "--on-spike rollback", "name a folder"),
    (2, "--max-rollbacks 2", "nearest: --on-spike rollback"),
    (2, "--save-every 10", "name a folder"),
    (2, "--overwrite", "leave it out"),
    (2, "--overwrite --resume auto --out run", "leave one of them out"),
    (2, "--lr-continue", "nearest: --resume auto"),
    (2, "--resume auto --out run --lr-continue --rewarm 5", "give one of them"),
    (2, "--resume auto --out run --branch 5", "--resume RUN"),
    (2, "--resize-vocab", "leave it out"),
    (2, "--data data generate --from model", "flag of training"),
    (2, "--steps 1", "data_prep/prepare.py"),
    (2, "$ --batch-tokens 500", "nearest: --batch-tokens 448 (7 micro-batches) or --batch-tokens 512 (8)"),
    (2, "$ --seq-len 4096", "nearest: --seq-len 2048"),
    (2, "$ --dim 63", "nearest 56 or 64"),
    (2, "$ --dim 64 --heads 7 --kv-heads 7", "nearest heads 4 or 8"),
    (2, "$ --heads 4 --kv-heads 3", "nearest kv-heads 2 or 4"),
    (2, "$ --head-dim 15", "nearest 14 or 16"),
    (2, "$ --vocab 100", "nearest: --vocab 257"),
    (2, "$ --device cpu --cuda-graphs on", "nearest: --cuda-graphs off"),
    (2, "$ --device cpu --check-replicas 5", "nothing to compare"),
    (2, "$ --device cpu --trace-steps 3", "--out, which is not given"),
    (2, "$ --device cpu --resume auto", "name the run's folder"),
    (2, "$ --device cpu --resume 5 --out run", "holds no such checkpoint"),
    (2, "$ --device cpu --resume nowhere --out new", "neither \"auto\" nor a step nor a folder"),
    (2, "$ --device cpu --out run", "--resume auto continues it"),
    (70, "$ --device cpu --out file", "file"),
    (70, "--init-from nowhere --data data", "no such folder or file"),
    (70, "--init-from meta-llama/Llama-3.2-1B --data data", "hf download"),
    (70, "--init-from data --data data", "holds no config.json"),
    (70, "--init-from mistral --data data", "sliding_window"),
    (70, "--init-from qwen --data data", "Qwen2ForCausalLM"),
    (70, "--init-from broken --data data --device cpu", "broken"),
    (2, "--init-from model --data swapped --device cpu --seq-len 32 --batch 1", "--allow-tokenizer-change"),
]
FILES = [
    (70, "--data nothing", "prepare.py stdlib --out nothing"),
    (70, "--data model", "dataset.json: not found"),
    (2, "--data data --train-data a.bin", "leave --train-data and --val-data out"),
    (70, "--train-data *.none", "no data file matches"),
    (70, "--train-data empty.bin", "the file is empty"),
    (70, "--train-data three.bin", "too short"),
    (70, "--train-data page.bin", "a failed download"),
    (70, "--train-data lfs.bin", "git lfs pull"),
    (70, "--train-data packed.bin", "unpack it first"),
    (70, "--train-data table.bin", "run data_prep/prepare.py on it"),
    (70, "--train-data text.bin", "--raw16"),
    (70, "--train-data cut.bin", "cut off"),
    (70, "--train-data long.bin", "too long"),
    (70, "--train-data version.bin", "version 9"),
    (70, "--train-data swapped.bin", "big-endian"),
    (70, "--train-data eval.bin", "evaluation file"),
    (70, "--train-data ids.bin --seq-len 32 --device cpu", "outside the vocabulary"),
    (70, "--train-data good.bin,good.bin", "listed twice"),
    (2, "--train-data good.bin --sample-every 1 --seq-len 32", "no validation data"),
    (2, "--config nowhere.toml", "nowhere.toml"),
    (2, "--config key.toml", "line 2: 'stepz' is no flag; did you mean steps?"),
    (2, "--config twice.toml", "line 3: 'steps' stands in line 1 already"),
    (2, "--config heading.toml", "line 1: '[mdoel]' is no heading"),
    (2, "--config line.toml", "line 1: 'steps 3' is neither key = value nor a heading"),
    (2, "--config value.toml", "line 2 of value.toml has it"),
    (2, "generate --prompt x", "--from"),
    (70, "generate --from nowhere --prompt x", "no such folder or file"),
    (2, "generate --from model --prompt x --interactive", "give one of them"),
    (70, "generate --from model --prompt-file nowhere", "nowhere"),
    (2, "generate --from model --top-p 2", "nearest valid value: 1"),
    (70, "generate --from model --tokenizer nowhere --prompt x", "no such tokenizer"),
    (2, "export --from model --to model", "is the model itself"),
    (2, "export --from model --to other", "--overwrite"),
    (2, "export --from model --to other --format gguf", "--overwrite"),
]
PREPARE = [
    (1, "text nowhere.txt", "no such file or folder"),
    (1, "text empty.txt", "is empty"),
    (1, "text three.bin", "NUL bytes"),
    (1, "text lfs.bin", "git lfs pull"),
    (1, "text rows.jsonl", "line 2: is not JSON"),
    (1, "text rows.jsonl --field body", "line 1: has no field 'body', only 'text'"),
    (1, "text good.txt --tokenizer gtp2", "no such file"),
    (1, "text good.txt --val good.txt", "name it once"),
    (1, "synthetic --symbols 1", "must be 2 to 64"),
    (2, "text good.txt --max-bytes 4x", "'4x' is not a size; write it like 30M"),
]


def make_files(program):
    def write(name, data):
        with open(name, "wb") as f:
            f.write(data)

    def shard(magic=20240520, version=1, ids=(5,) * 200, claim=None, order="<"):
        count = len(ids) if claim is None else claim
        return struct.pack(order + "3i", magic, version, count).ljust(1024, b"\0") + struct.pack(f"<{len(ids)}H", *ids)

    write("good.txt", b"def f(x):\n    return x + 1\n\n" * 2000)
    write("empty.txt", b"")
    write("rows.jsonl", b'{"text": "good"}\n{"text: \n')
    prepare("text good.txt --out data --name d --quiet".split(), check=True)
    train = [program, *shlex.split(SMALL), "--device", "cpu", "--steps", "2", "--val-every", "0", "--out", "run"]
    subprocess.run(train, check=True, capture_output=True)
    for name in ("model", "other"):
        shutil.copytree("run/final", name)
    for name, change in (("mistral", {"model_type": "mistral", "architectures": ["MistralForCausalLM"],
                                      "max_position_embeddings": 32768, "sliding_window": 4096}),
                         ("qwen", {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})):
        shutil.copytree("model", name)
        with open(f"{name}/config.json") as f:
            value = json.load(f)
        with open(f"{name}/config.json", "w") as f:
            json.dump({**value, **change}, f)
    shutil.copytree("model", "broken")
    with open("broken/model.safetensors", "r+b") as f:
        f.truncate(1000)
    shutil.copytree("data", "swapped")
    with open("swapped/tokenizer.json") as f:
        value = json.load(f)
    vocab = value["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    with open("swapped/tokenizer.json", "w") as f:
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
    write("value.toml", b"steps = 3\nlr = \"fast\"\n")


def prepare(argv, check=False):
    program = os.path.join(ROOT, "data_prep", "prepare.py")
    return subprocess.run([sys.executable, program, *argv], capture_output=True, text=True, check=check, timeout=120)


def cases(program):
    for code, arguments, words in FLAGS + FILES:
        argv = shlex.split(arguments.replace("$", SMALL))
        yield code, arguments.replace("$", "..."), words, "train_llama: ", [program, *argv]
    for code, arguments, words in PREPARE:
        yield code, "prepare.py " + arguments, words, "prepare.py", [*shlex.split(arguments), "--out", "new", "--overwrite"]


def run_case(prefix, argv):
    if prefix == "prepare.py":
        run = prepare(argv)
    else:
        env = dict(os.environ, HF_HUB_CACHE="hub", OMP_NUM_THREADS="1")
        run = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=env, stdin=subprocess.DEVNULL)
    return run.returncode, run.stderr


def message(prefix, said):
    """From the line with the prefix on; argparse shows its usage before it."""
    lines = said.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith(prefix) and "no GPU is used" not in line), None)
    return None if begin is None else "\n".join(lines[begin:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--check", action="store_true", help="say which cases are not as they should be, and count")
    args = parser.parse_args()
    program = os.path.abspath(args.program)
    passed, failed, rows = 0, 0, []
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        make_files(program)
        for code, shown, words, prefix, argv in cases(program):
            found, said = run_case(prefix, argv)
            text = message(prefix, said)
            good = found == code and text is not None and words in text and work not in text and "Traceback" not in said
            passed, failed = passed + good, failed + (not good)
            if args.check and not good:
                print(f"FAILED: {shown}\n  exit code {found}, expected {code}; expected words: {words}\n  said: {said}")
            rows.append((shown, found, text or said))
        os.chdir(ROOT)
    if args.check:
        print(f"{passed} passed, {failed} failed")
        return failed > 0
    print(f"`...` is `{SMALL}`.\n\n| given | exit code | said |\n|---|---|---|")
    for shown, found, text in rows:
        cell = "<br>".join(line.strip().replace("|", "\\|").replace("<", "&lt;") for line in text.splitlines())
        print(f"| `{shown}` | {found} | {cell} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
