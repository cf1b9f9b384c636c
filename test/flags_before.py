#!/usr/bin/env python3
"""Two builds of the program read the same flags: random command lines and random resumes, drawn with an earlier build's
names. A line ends with --print-config: exit codes and what is printed are compared. A resume continues a run that the
earlier build saved, each build in a copy of its own: exit codes, lines about the flags, config.toml and the manifest.

    test/flags_before.py EARLIER/train_llama ./train_llama --lines 5000 --resumes 500 --seed 1

What differs on purpose is a row of EXPECTED with its reason; it is counted. Anything else is printed, and ends with 1.
"""

import argparse
import collections
import concurrent.futures
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

SMALL = (
    "--dim 16 --layers 2 --heads 2 --kv-heads 1 --head-dim 8 --ffn 16 --batch 2 --seq-len 16 --threads 1 --val-every 0 "
    "--val-tokens 16 --device cpu --data data"
).split()
RUN = SMALL + "--steps 2 --save-every 2 --out run".split()

# Flags whose values are not told by what --help prints beside them.
VALUES = {
    "batch-tokens": ["64", "1K", "0.5K", "0", "96", "12x"],
    "pp-cut": ["1,1", "2", "0,2", "1,,1"],
    "axis-order": ["tp,cp,dp,pp", "dp,tp,cp,pp", "tp,cp"],
    "fp8-skip-blocks": ["0,0", "1,1", "1"],
    "loss-scale": ["dynamic", "1024", "1000", "0.5"],
    "collectives": ["ring", "direct", "hier", "tp=direct", "data=ring"],
    "resume": ["auto", "2", "7", "run", "nothing"],
    "time-limit": ["90m", "3h30m", "600", "soon"],
    "data-weights-at": ["1:0.5,0.5", "x"],
    "pp-gather": ["step", "op", "window:2", "window:0"],
    "pp-schedule": ["1f1b", "zb-v", "gpipe", "zbv"],
    "preset": ["bytes", "tiny", "125m", "smal"],
    "batch": ["1", "2", "4", "0", "auto"],
    "data": ["data", "synthetic", "nothing"],
    "train-data": ["data/*_train_*.bin", "nothing.bin"],
    "val-data": ["data/*_val_*.bin", ""],
    "steps": ["2", "3", "4", "6", "0"],
    "keep": ["0", "1", "2", "3"],
    "out": ["run", "other", ""],
    "seq-len": ["16", "8", "31", "4096"],
    "tokenizer": ["data/tokenizer.json", ""],
}
NUMBERS = {"N": ["0", "1", "2", "4", "8"], "X": ["0", "0.5", "1e-3", "5e-3", "2E-1"]}
WRONG = ["-1", "two", "1e9", "1.5", "other", ""]
# Flags that start a program, wait, or take a machine that is not there.
NOT_RESUMED = {"before-resume", "after-save", "ranks", "pp-threads", "resume", "out", "steps", "time-limit"}
NOT_RESUMED |= {"init-from", "print-config", "presets"}
MEMORY_LINE = r"  (total|memory .*|peak memory .*|\S+ scratch|parameters|\d|[a-z ]+ +[0-9.]+ [KMG]?i?B)"

LIKE_NOT_GIVEN = {"accumulate-locally", "no-accumulate-locally", "no-overlap", "no-background-save", "raw16"}
FORMER = {"clip": "max-grad-norm", "doc-boundary": "doc-mask", "pp-cut": "pp-layers", "shard-above": "max-shard-mib"}
NAMED = "names and switches of today (dev/guide/flags.md)"
# Lines of the earlier build that differ: pattern, what it became, why.
EXPECTED = [
    *[(rf"(--|^# |^kept |^){was}(?= |:)", rf"\g<1>{now}", NAMED) for was, now in FORMER.items()],
    (r'^(  "(torch_)?dtype": )"(float32|bfloat16)"', r"\1FLOAT", "--dtype auto is bf16 where it is planned for a GPU"),
    (r"--help lists every flag", "--help-all lists every flag", "--help shows a first week's flags"),
    (r"one of auto\|mpi\|nccl; nearest: auto", "one of auto|mpi|tcp|nccl; nearest: tcp", "--transport tcp is new"),
    (r"one of auto\|mpi\|nccl", "one of auto|mpi|tcp|nccl", "--transport tcp is new"),
    (r"('.*') is not (true or false|one of off\|on; nearest: o.*)$", r"\1 is not on or off", NAMED),
    (r"^train_llama: --[a-z-]+: '(-\d+)' is not on or off$", r"train_llama: \1 is no flag", NAMED),
    (r"^train_llama: --[a-z-]+: '' is not on or off$", "train_llama:  is no flag and no command", NAMED),
    (r"(--[a-z0-9-]+: '.*' is not one of ).*", r"\1its values", "values are new, presets too"),
    (r"^changed  --no-(overlap|background-save) true, was $", r"changed  --\1 off, was on", NAMED),
    (r"^changed  --no-accumulate-locally true, was $", "changed  --accumulate-locally off, was ", NAMED),
    (r"(--gemm-tune: '.*' is not).*", r"\1 one of its values", "--gemm-tune bits-free is new"),
    (r"^changed  --raw16 true, was $", "changed  --raw16 on, was off", NAMED),
    (r"(head-dim.*) to 65536$", r"\1 to 256", "--head-dim ends at attention's 256"),
    (r'^(# |kept )pp-gather = "?(step|op)"?$', r"\1pp-gather = DEFAULT", "--pp-gather is op by default"),
    (r"^changed  --pp-gather .*, was step$", "", "--pp-gather step, once the default, did nothing without a pipeline"),
    (r'^(# )?dtype = "fp32"$', "dtype = fp32", "--dtype auto is the default, so a manifest's fp32 is kept as given"),
    (r"^kept (grad|wire)-dtype = (fp32|)$", r"kept \1-dtype = fp32", "a manifest names the types that are meant"),
    (r"^changed  --grad-dtype bf16 stays, the former default: .*", "", "--grad-dtype bf16 was the default"),
    (r"\(built without CUDA\)$", "(BUILD)", "one build is without CUDA"),
    (r"\(no NVIDIA driver, or one older than this program's.*\)$", "(BUILD)", "one build is without CUDA"),
    (r"^  use device cpu or auto, or .*", "  use device cpu or auto", "one build is without CUDA"),
    (r"^(changed  --.*, was )$", r"\1not given", "what was not given is said to be so"),
]
LIFTED = {  # refusals of the earlier build that are none today; what was refused next may be what is said
    r"that is not given: name a folder|give --out and --save-every": "a run without --out gets a folder of its own",
    r"no data file matches|no such tokenizer|dataset.json: not found": "--print-config does without data that are not there",
}
BATCH = "--batch that does not divide a resumed run's update is refused, not replaced"
CODES = [(70, 2, "a refused request ends with 2, whatever its text begins with"), (0, 2, BATCH)]
NEW = {  # lines that only the later build has
    r"^train_llama: --[a-z-]+ is now --[a-z-]+$": NAMED,
    r"^train_llama: --batch \d+ does not divide the checkpoint's updates, |^  nearest: --batch \d+, or another": BATCH,
}


def flags_of(program, help_all="--help"):
    """name -> placeholder of training's flags, "" for a switch."""
    text = subprocess.run([program, help_all], capture_output=True, text=True, check=True).stdout
    text = text.split("\nSubcommands:")[0]
    found = re.findall(r"^  --([a-z0-9-]+)(?: ([^ =\n]+))?", text, re.M)
    return {name: place for name, place in found if name not in ("config", "version", "help", "presets")}


def value_of(rng, name, place):
    if rng.random() < 0.04:
        return rng.choice(WRONG)
    if name in ("pp", "cp", "tp", "shard-size") and rng.random() < 0.7:
        return "1"
    if name in VALUES:
        return rng.choice(VALUES[name])
    if place in NUMBERS:
        return rng.choice(NUMBERS[place])
    if "|" in place:
        return rng.choice(place.split("|"))
    return rng.choice(["text", "a b", "x=y"])


def drawn(rng, flags, most, names):
    words = []
    for name in rng.sample(names, rng.randint(1, most)):
        place = flags[name]
        if not place:
            # "=no" was read as no and written as true; "=false" is not on, whatever the default
            forms = ["", "", "=true"] + ["=false"] * (name not in LIKE_NOT_GIVEN)
            words.append(f"--{name}" + rng.choice(forms))
        elif rng.random() < 0.5:
            words += [f"--{name}", value_of(rng, name, place)]
        else:
            words.append(f"--{name}={value_of(rng, name, place) or 0}")  # an empty one took the next word, once
    return words


def answer(program, words, folder):
    try:
        done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stderr + done.stdout.split("\nbytes of rank")[0]  # planned memory is no flag's
    except subprocess.TimeoutExpired:
        return -1, "no end in 120 s"


class Comparison:
    def __init__(self, programs, work):
        self.programs, self.work = programs, work
        self.flags = flags_of(programs[0])
        renamed = {*FORMER.values(), *(name.removeprefix("no-") for name in LIKE_NOT_GIVEN)}
        later = set(flags_of(programs[1], "--help-all")) - set(self.flags) - renamed
        self.new = {**NEW, rf"^(# |kept )({'|'.join(sorted(later))}) = ": "flags that the earlier build lacks"}
        self.reasons, self.differences = collections.Counter(), 0
        self.codes = collections.Counter()

    def compare(self, what, before, after):
        """Two of (exit code, text)."""
        self.codes[after[0]] += 1
        for pattern, reason in LIFTED.items():
            if before[0] and re.search(pattern, before[1]):
                self.reasons[reason] += 1
                return
        old = before[1].splitlines()
        new, why = [], set()
        for line in after[1].splitlines():
            reasons = [reason for pattern, reason in self.new.items() if re.search(pattern, line)]
            why.update(reasons)
            if not reasons:
                new.append(line)
        for pattern, to, reason in EXPECTED:
            changed = [re.sub(pattern, to, line) for line in old]
            new = [re.sub(pattern, to, line) for line in new]  # a refused start leaves the earlier build's files
            if changed != old:
                why.add(reason)
            old = changed
        old, new = [self.plain([line for line in lines if line]) for lines in (old, new)]
        told = [sorted(line for line in lines if line.startswith("changed")) for lines in (old, new)]
        old, new = [a + [line for line in b if line not in a] for a, b in zip(told, (old, new))]
        codes = (before[0], after[0])
        for a, b, reason in CODES:
            if codes == (a, b):  # before anything is announced
                why.add(reason)
                codes = (b, b)
                old = [line for line in old if line in new]
        if codes[0] != codes[1] or old != new:
            lines = difflib.unified_diff(old, new, "before", "after", lineterm="", n=0)
            self.differences += 1
            print(f"{what}\n  exit codes {before[0]}, {after[0]}\n  " + "\n  ".join(lines), flush=True)
        self.reasons.update(why)

    @staticmethod
    def plain(lines):
        """Lines of config.toml and, from [kept] on, of the manifest: sorted by name, with switches of today."""
        if "[kept]" in lines:
            at = lines.index("[kept]")
            return Comparison.plain(lines[:at]) + Comparison.plain(lines[at + 1 :])
        out, flags = [], {}
        for line in lines:
            if m := re.match(r"(# |kept |)([a-z0-9-]+) = (.*)$", line):
                value = {"true": "on", "false": "off"}.get(m[3].strip('"'), m[3].strip('"'))
                flags[m[2]] = [m[1], value]
            else:
                out.append(line)
        if flags.get("raw16", [""])[1:] == [""]:
            flags["raw16"][1] = "off"  # a switch that was not given
        for now in ("overlap", "background-save"):
            if where_value := flags.pop("no-" + now, None):
                flags[now] = [where_value[0], "off" if where_value[1] == "on" else "on"]
        reduces = flags.pop("no-accumulate-locally", ["", ""])
        if reduces[1] == "on":
            flags["accumulate-locally"] = [reduces[0], "off"]
        elif flags.get("accumulate-locally", ["# "])[0] == "# " or flags["accumulate-locally"][1] == "":
            flags.pop("accumulate-locally", None)  # not given
        return out + [f"{where}{name} = {value}" for name, (where, value) in sorted(flags.items())]

    def one_line(self, seed):
        rng = random.Random(f"line {seed}")
        words = drawn(rng, self.flags, 4, sorted(self.flags))
        words = SMALL[:] + words + ["--print-config"] if rng.random() < 0.8 else words + ["--print-config"]
        return " ".join(words), *[answer(p, words, self.work) for p in self.programs]

    def saved_run(self, number):
        """A run of the earlier build with some flags; None where they were refused."""
        rng = random.Random(f"run {number}")
        names = sorted(set(self.flags) - NOT_RESUMED - {"data", "train-data"})
        folder = os.path.join(self.work, f"run_{number}")
        os.mkdir(folder)
        os.symlink(os.path.join(self.work, "data"), os.path.join(folder, "data"))
        for _ in range(40):
            words = RUN + drawn(rng, self.flags, 6, names)
            code, _ = answer(self.programs[0], words, folder)
            if code == 0 and os.path.isdir(f"{folder}/run/checkpoints/step_000000002"):
                return folder, words
            shutil.rmtree(f"{folder}/run", ignore_errors=True)
        return None

    def one_resume(self, saved, seed):
        folder, first = saved
        rng = random.Random(f"resume {seed}")
        words = "--out run --resume auto --steps 4 --allow-lr-jump".split()
        words = [w for w in words if w != "--allow-lr-jump" or rng.random() < 0.8]
        words += drawn(rng, self.flags, 4, sorted(set(self.flags) - NOT_RESUMED)) if rng.random() < 0.9 else []
        texts = []
        for k, program in enumerate(self.programs):
            copy = os.path.join(self.work, f"resume_{seed}_{k}")
            shutil.copytree(folder, copy, symlinks=True)
            code, text = answer(program, words, copy)
            keep = [line for line in text.splitlines() if re.match(r"changed |train_llama:|  ", line)]
            keep = [line for line in keep if not re.match(MEMORY_LINE, line)]
            files = self.files(copy) if code == 0 else ""
            texts.append((code, ("\n".join(keep) + "\n" + files).replace(copy, "FOLDER")))
            shutil.rmtree(copy)
        return f"{' '.join(first)}\n  resumed with {' '.join(words)}", *texts

    @staticmethod
    def files(folder):
        text = ""
        if os.path.exists(f"{folder}/run/config.toml"):
            with open(f"{folder}/run/config.toml") as f:
                text += "".join(line for line in f if not re.match(r"# (command|commit|host|A run)", line))
        at = f"{folder}/run/checkpoints/step_000000004/manifest.json"
        if os.path.exists(at):
            with open(at) as f:
                kept = sorted(json.load(f).get("flags", {}).items())
            text += "\n[kept]\n" + "\n".join(f"kept {k} = {v}" for k, v in kept)
        return text


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("earlier")
    p.add_argument("program")
    p.add_argument("--lines", type=int, default=5000)
    p.add_argument("--resumes", type=int, default=500)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=2)
    args = p.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with tempfile.TemporaryDirectory(prefix="flags-") as work, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        with open(f"{work}/text.txt", "w") as f:
            f.write("def f(x):\n    return x + 1\n\n" * 2000)
        prepare = [sys.executable, f"{root}/data_prep/prepare.py", "text", "text.txt", "--out", "data", "--quiet"]
        subprocess.run(prepare, cwd=work, check=True, capture_output=True)
        c = Comparison([os.path.abspath(args.earlier), os.path.abspath(args.program)], work)
        print(f"{len(c.flags)} flags of the earlier build, seed {args.seed}")
        for what, before, after in pool.map(c.one_line, range(args.seed * 10**6, args.seed * 10**6 + args.lines)):
            c.compare(what, before, after)
        print(f"{args.lines} command lines, by exit code: {dict(sorted(c.codes.items()))}", flush=True)
        c.codes.clear()
        runs = [r for r in pool.map(c.saved_run, range((args.resumes + 9) // 10)) if r]
        seeds = range(args.seed * 10**6, args.seed * 10**6 + args.resumes)
        for what, before, after in pool.map(lambda s: c.one_resume(runs[s % len(runs)], s), seeds):
            c.compare(what, before, after)
        print(f"{args.resumes} resumes of {len(runs)} runs, by exit code: {dict(sorted(c.codes.items()))}")
    for reason, count in sorted(c.reasons.items()):
        print(f"expected in {count}: {reason}")
    print(f"{c.differences} unexplained differences")
    return 1 if c.differences else 0


sys.exit(main())
