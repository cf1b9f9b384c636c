#!/usr/bin/env python3
"""Reads llama/configs/*.toml: does the program take every command that stands there, does its memory fit, how long will it run?

  dev/launch/check_recipes.py [--program ./train_llama] [--machine h100-80g] [RECIPE...]

A command is a comment line that begins with "N GPUs", "1 GPU", "N cores", "before" or "then". The program parses each with --print-config
(on stand-in data of the right vocabulary), so a flag or a key that it does not know is an error. What is for GPUs goes through `train_llama plan`,
which says the memory of the largest rank and whether it fits. Time is FLOPs at 40 % of 989 TFLOP/s per GPU, and has not been measured. Exit
code 1 if a command is refused or does not fit. A recipe that a plan found names its own machine.
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
import tomllib

GB = 1e9
VOCABULARIES = {"gpt2": 50257, "llama3": 128256, "bytes": 257}


def vocabulary(tokenizer):
    return int(tokenizer[4:]) if tokenizer.startswith("bpe:") else VOCABULARIES[tokenizer]


def stand_in_data(root, text):
    """A folder that looks like the data that the recipe's data-command makes."""
    words = shlex.split(tomllib.loads(text).get("data-command", ""))
    if not words:
        return
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


def settings(text, words):
    """Those of the file, then of the command."""
    out = tomllib.loads(text)
    for word, after in zip(words, [*words[1:], "--"]):
        if word.startswith("--"):
            out[word[2:]] = True if after.startswith("--") else after
    return out


def planned(program, words, ranks, machine, work):
    """Peak bytes of the largest rank by kind, whether it fits the machine, or what was wrong."""
    done = subprocess.run([program, "plan", "--gpus", str(ranks), "--gpu", machine, *words, "--json", "-"], cwd=work, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        return None, (done.stderr or done.stdout).strip()
    plan = json.loads(done.stdout[done.stdout.index("{"):])
    peak = max((rank["memory_peak"] for rank in plan["planned_ranks"]), key=lambda kinds: kinds["total"])
    return peak, None if plan["fits"] == "fits" else f"does not fit {machine}: {plan['fits']}"


def commands(text):
    for who, command in re.findall(r"^# +((?:\d+ )?(?:GPUs?|cores|before|then)) +((?:mpirun|\./train_llama).*)$", text, re.M):
        words = shlex.split(command)
        ranks = int(words[words.index("-n") + 1]) if words[0] == "mpirun" else 1
        yield who, ranks, words[words.index("./train_llama") + 1 :]


def check(path, who, ranks, words, program, work, machine):
    """A line for people, and what is wrong with the command, or None."""
    with open(path) as f:
        flags = settings(f.read(), words)
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
    flops = float(re.search(r"FLOPs per token.*: ([0-9.e+]+)", done.stdout)[1])
    tokens = int(flags.get("batch-tokens", 0)) or int(flags["batch"]) * int(flags["seq-len"]) * ranks
    micro = int(flags["batch"]) * int(flags["seq-len"]) * ranks
    if tokens % micro:
        return "", f"--batch-tokens {tokens} is not a multiple of {micro}"
    if "GPU" not in who:
        return who, None
    peak, wrong = planned(program, absolute, ranks, machine, work)
    if not peak:
        return "", wrong
    total, whole = peak.pop("total"), tokens * int(float(flags["steps"]))
    parts = ", ".join(f"{kind} {size / GB:.1f}" for kind, size in peak.items() if size)
    hours = whole * flops / (ranks * 0.4 * 989e12) / 3600
    return f"{who:8} {total / GB:6.1f} GB a rank ({parts}), {whole / 1e9:.1f}e9 tokens in {hours:.1f} h", wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="./train_llama")
    parser.add_argument("--machine", default="h100-80g", help="as train_llama plan --gpu knows it")
    parser.add_argument("recipes", nargs="*", help="(default: all of llama/configs)")
    o = parser.parse_args()
    program = os.path.abspath(o.program)
    passed = failed = 0
    with tempfile.TemporaryDirectory() as work:
        for path in o.recipes or sorted(glob.glob("llama/configs/*.toml")):
            with open(path) as f:
                text = f.read()
            stand_in_data(work, text)
            print(path)
            found = list(commands(text))
            if not found and "quickstart" not in path:
                print("  FAILED: no command")
                failed += 1
            own = re.search(r"^# +\./train_llama plan .*--gpu (\S+)", text, re.M)
            for who, ranks, words in found:
                line, wrong = check(path, who, ranks, words, program, work, own[1] if own else o.machine)
                print(f"  {line}" + (f"\n  FAILED: {' '.join(words)}: {wrong}" if wrong else ""))
                passed, failed = passed + (not wrong), failed + bool(wrong)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
