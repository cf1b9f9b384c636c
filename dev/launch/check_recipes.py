#!/usr/bin/env python3
"""Reads llama/configs/*.toml: does the program take every command that stands there, does its memory fit, how long will it run?

  dev/launch/check_recipes.py [--program ./train_llama] [--gpu-gb 80]

A command is a comment line that begins with "N GPUs", "1 GPU", "N cores", "before" or "then". The program parses each with --print-config
(on stand-in data of the right vocabulary), so a flag or a key that it does not know is an error, and tells the model's size. Memory is then
arithmetic, per rank: parameters, gradients, masters and moments by ZeRO stage, gathered units, activations by --recompute, one chunk of logits,
scratch. Time is FLOPs at 40 % of 989 TFLOP/s per GPU. Neither has been measured. Exit code 1 if a command is refused or does not fit.
"""

import argparse
import glob
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

GB = 1e9
BYTES = {"fp32": 4, "bf16": 2}
VOCABULARIES = {"gpt2": 50257, "llama3": 128256, "bytes": 257}


def vocabulary(tokenizer):
    return int(tokenizer[4:]) if tokenizer.startswith("bpe:") else VOCABULARIES[tokenizer]


def stand_in_data(root, text):
    """Folders that look like the data that the recipe's own prepare.py commands make."""
    for command in re.findall(r"^# +(python3 data_prep/prepare\.py .*)$", text, re.M):
        words = shlex.split(command)
        folder = words[words.index("--out") + 1]
        tokenizer = words[words.index("--tokenizer") + 1] if "--tokenizer" in words else "bytes"
        path = os.path.join(root, folder)
        if not os.path.exists(path):
            here = os.path.dirname(os.path.abspath(__file__))
            subprocess.run([sys.executable, f"{here}/../../data_prep/prepare.py", "synthetic", "--tokens", "20000",
                            "--val-tokens", "9000", "--out", path, "--quiet"], check=True, capture_output=True)
            with open(f"{path}/dataset.json") as f:
                dataset = json.load(f)
            dataset["vocab_size"] = vocabulary(tokenizer)
            with open(f"{path}/dataset.json", "w") as f:
                json.dump(dataset, f)


def read_toml(text):
    """Keys and values of a flat file: strings, numbers, booleans."""
    out = {}
    for line in text.splitlines():
        if m := re.match(r'^([a-z][a-z0-9-]*) *= *(?:"([^"]*)"|([^#\s]+))', line):
            out[m[1]] = m[2] if m[2] is not None else m[3]
    return out


def settings(toml, words):
    out = dict(toml)
    i = 0
    while i < len(words):
        if words[i].startswith("--") and i + 1 < len(words) and not words[i + 1].startswith("--"):
            out[words[i][2:]] = words[i + 1]
            i += 1
        elif words[i].startswith("--"):
            out[words[i][2:]] = "true"
        i += 1
    return out


def memory(model, flags, ranks):
    """Bytes per rank by kind, as zero/ and llama/model allocate them."""
    dim, layers, heads, kv = (model[k] for k in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"))
    head, ffn, vocab = model["head_dim"], model["intermediate_size"], model["vocab_size"]
    block = dim * head * (2 * heads + 2 * kv) + 3 * dim * ffn + 2 * dim
    embedding = vocab * dim
    last = dim + (0 if model["tie_word_embeddings"] else embedding)
    parameters = embedding + layers * block + last
    stage, prefetch = int(flags.get("zero", 0)), int(flags.get("prefetch", 1))
    e = BYTES[flags.get("dtype", "fp32")]
    g = BYTES[flags.get("grad-dtype", flags.get("dtype", "fp32"))]
    master = BYTES[flags.get("master-dtype", "fp32")]
    adam = BYTES[flags.get("adam-dtype", "fp32")]
    share = ranks if stage >= 1 else 1
    whole_gradients = stage <= 1 or "accumulate-locally" in flags
    out = {
        "parameters": parameters * e / (ranks if stage == 3 else 1),
        "gradients": parameters * g / (1 if whole_gradients else ranks),
        "optimizer": parameters * (2 * adam + (0 if master == e else master)) / share,
        "gathered": 0,
    }
    slots = embedding + max(last, 1) + block  # a slot for each size of unit
    if stage == 3:
        out["gathered"] += e * (slots + prefetch * block)
    if not whole_gradients:
        out["gathered"] += g * (slots + block + max(embedding, last, block) / ranks)
    rows = int(flags.get("batch", 8)) * int(flags.get("seq-len", 256))
    qkv, q = (heads + 2 * kv) * head, heads * head
    rest = 3 * dim + qkv + q
    recompute = flags.get("recompute", "none")
    if recompute == "none":
        kept = layers * (dim + rest + 2 * ffn)
    elif recompute == "mlp":
        kept = layers * (dim + rest) + 2 * ffn
    else:
        kept = layers * dim + rest + 2 * ffn
    out["activations"] = rows * (e * (kept + 3 * dim) + 4 * layers * (heads + 2))
    out["workspace"] = min(1 << 30, rows * vocab * e) + rows * e * (2 * max(dim, q) + ffn + qkv) + rows * 4 * q
    return out


def commands(text):
    for who, command in re.findall(r"^# +((?:\d+ )?(?:GPUs?|cores|before|then)) +((?:mpirun|\./train_llama).*)$", text, re.M):
        words = shlex.split(command)
        ranks = int(words[words.index("-n") + 1]) if words[0] == "mpirun" else 1
        yield who, ranks, words[words.index("./train_llama") + 1 :]


def check(path, who, ranks, words, program, work, gpu_gb):
    """A line for people, and what is wrong with the command, or None."""
    with open(path) as f:
        flags = settings(read_toml(f.read()), words)
    if words[0] == "generate":
        names = re.findall(r"--([a-z-]+)", " ".join(words))
        text = subprocess.run([program, "generate", "--help"], capture_output=True, text=True).stdout
        bad = [n for n in names if f"--{n}" not in text]
        return f"{who:8} generate", f"generate has no --{bad[0]}" if bad else None
    absolute = [os.path.abspath(w) if w.endswith(".toml") else w for w in words]
    if flags.get("init-from"):  # the model is another run's: parsed without it
        at = os.path.join(work, "recipe.toml")
        with open(path) as f, open(at, "w") as g:
            g.write(re.sub(r"^init-from.*$", "", f.read(), flags=re.M))
        absolute = [at if w.endswith(".toml") else w for w in absolute]
    done = subprocess.run([program, *absolute, "--print-config"], cwd=work, capture_output=True, text=True)
    if done.returncode:
        return "", (done.stderr or done.stdout).strip()
    model = json.loads(re.search(r"^\{.*?^\}", done.stdout, re.M | re.S)[0])
    flops = float(re.search(r"FLOPs per token.*: ([0-9.e+]+)", done.stdout)[1])
    tokens = int(flags.get("batch-tokens", 0)) or int(flags["batch"]) * int(flags["seq-len"]) * ranks
    micro = int(flags["batch"]) * int(flags["seq-len"]) * ranks
    if tokens % micro:
        return "", f"--batch-tokens {tokens} is not a multiple of {micro}"
    parts = memory(model, flags, ranks)
    total = sum(parts.values())
    whole = tokens * int(float(flags["steps"]))
    line = f"{who:8} {total / GB:6.1f} GB a rank ({', '.join(f'{k} {v / GB:.1f}' for k, v in parts.items() if v)})"
    if "GPU" in who:
        hours = whole * flops / (ranks * 0.4 * 989e12) / 3600
        line += f", {whole / 1e9:.1f}e9 tokens in {hours:.1f} h"
        if total > 0.95 * gpu_gb * GB:  # the driver, NCCL and cuBLASLt need some
            return line, f"{total / GB:.1f} GB do not fit {gpu_gb:g} GB"
    return line, None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_llama")
    parser.add_argument("--gpu-gb", type=float, default=80)
    o = parser.parse_args()
    program = os.path.abspath(o.program)
    passed = failed = 0
    with tempfile.TemporaryDirectory() as work:
        for path in sorted(glob.glob("llama/configs/*.toml")):
            with open(path) as f:
                text = f.read()
            stand_in_data(work, text)
            print(path)
            found = list(commands(text))
            if not found and "quickstart" not in path:
                print("  FAILED: no command")
                failed += 1
            for who, ranks, words in found:
                line, wrong = check(path, who, ranks, words, program, work, o.gpu_gb)
                print(f"  {line}" + (f"\n  FAILED: {' '.join(words)}: {wrong}" if wrong else ""))
                passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
