#!/usr/bin/env python3
"""Damages real folders at random, and starts the program on each.

    test/faults/mutations.py PROGRAM [--minutes M] [--cases N] [--seed S] [--jobs N] [--timeout S] [--device cpu|cuda] [--kinds LIST] [--case K]

A case damages one or a few files of a model's folder, a checkpoint or a folder of data: flips, zeros or cuts bytes, copies one
part over another, grows or removes a file, replaces it by a folder, a link or another file, changes a number or a word in
JSON; or it writes a --config file with values of every form for flags drawn at random, or a mix of data sets (--data a:0.5,b:0.5).
Then generate, export, a fine-tuning, a resume, --print-config or a training is started on it, with at most 1 GiB of memory
beyond what it takes on whole folders. Asked: one of the program's exit codes with a message, never a signal or a sanitizer's report; a resume that ends with 0 has the weights of the undamaged run, or fell back and said
so. With a program built with AddressSanitizer and UBSan (make build/simt/asan/train_llama_simt) every read out of bounds
counts, and --device cuda runs its kernels too. --case K: that case again, as it is named in a failure, keeping its folder. Ends with "N passed, N failed".
"""

import concurrent.futures
import json
import os
import random
import re
import shutil
import sys
import time

import all_faults
from checks import check, end, options, weights

KINDS = ["generate", "export", "gguf", "tune", "resume", "resume", "data", "config", "config", "mix"]
NUMBERS = [0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**64, 1e308, -1e-308, 0.5, 10**30]
WORDS = ["", "x", "../x", "/etc/passwd", "\0", "\ud800", "a" * 5000, "%s%n", "nan"]


def change_json(value, chance):
    """One leaf or branch of it is another."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        if chance.random() < 0.1:
            del value[key]
        else:
            value[key] = change_json(value[key], chance)
        return value
    kind = chance.randrange(5)
    if kind == 0:
        return chance.choice(NUMBERS)
    if kind == 1:
        return chance.choice(WORDS)
    if kind == 2:
        return chance.choice([None, True, [], {}, [[[[]]]], {"a": 1}])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value + chance.choice([-1, 1, 7, -(2**31), 2**40])
    if isinstance(value, str) and value:
        at = chance.randrange(len(value))
        return value[:at] + chance.choice(["", "0", "f", "\u00e9"]) + value[at + 1 :]
    return chance.choice(NUMBERS)


def damage_bytes(data, chance):
    data = bytearray(data)
    size = len(data)
    # Headers are where a reader can be led astray.
    at = chance.randrange(min(size, 2048)) if chance.random() < 0.6 else chance.randrange(size)
    kind = chance.randrange(7)
    if kind == 0:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        for _ in range(chance.randrange(1, 16)):
            data[chance.randrange(size)] = chance.randrange(256)
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data += bytes(chance.randrange(256) for _ in range(chance.choice([1, 7, 4096])))
    elif kind == 4:
        length = chance.randrange(1, 5000)
        data[at : at + length] = bytes(len(data[at : at + length]))
    elif kind == 5:
        other, length = chance.randrange(size), chance.randrange(1, 200)
        data[at : at + length] = data[other : other + length]
    else:
        value = chance.choice([0, 1, 0xFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF])
        data[at : at + 8] = value.to_bytes(8, "little")[: len(data[at : at + 8])]
    return bytes(data)


def damage(path, chance):
    """What was done, for people."""
    if path.suffix == ".json" and chance.random() < 0.7:
        try:
            value = change_json(json.loads(path.read_text()), chance)
            path.write_text(json.dumps(value), errors="surrogatepass")
            return "JSON"
        except ValueError:
            pass
    kind = chance.randrange(20)
    if kind == 0:
        path.unlink()
        return "removed"
    if kind == 1:
        path.unlink()
        path.mkdir()
        return "a folder"
    if kind == 2:
        path.unlink()
        path.symlink_to(chance.choice(["/dev/null", "/dev/zero", path.name, "/proc/self/mem", "nowhere"]))
        return "a link"
    if kind == 3:
        path.write_bytes(chance.choice([b"", b"{}", b"\0" * 100000, b"[" * 100000, b"PK\3\4" + b"x" * 100]))
        return "another file"
    data = path.read_bytes()
    if data:
        path.write_bytes(damage_bytes(data, chance))
    return "bytes"


CONFIG = r"""# a run
[model]
preset = "bytes"
dim = 32
layers = 2   # few
heads = 4
[training]
steps = 2
batch = 1
lr = 1e-3
lr-schedule = 'cosine'
no-overlap = true
[output]
prompt = "a \"word\" # here\n"
"""
# Every form of TOML's values, and what is none.
FORMS = r"""[] [[]] [[],[]] [1,2] [1,"a"] [1 [ ] {} {a=1} {a={b=[]}} 1979-05-27 07:32:00 1979-05-27T07:32:00Z inf -inf nan +1 -0 0x10 0b1 0o7
1_000 1e400 1e-400 -1 99999999999999999999 -99999999999999999999 1.5 .5 5. "" \'\' "x" 'x' "\u0000" "\U0010ffff" "\ud800" "\q" "x
true false TRUE null auto # = == 1=2 a.b "a" "b" /dev/zero ../../x""".split() + [" ", "[" * 5000, "1" * 5000, '"""a"""', "\'\'\'a\'\'\'", "\x1b[2J", "\0", "\u00e9"]  # fmt: skip


def damaged_config(flags, chance):
    lines = CONFIG.split("\n")
    for _ in range(chance.choice([1, 1, 2, 3])):
        at = chance.randrange(len(lines))
        kind = chance.randrange(8)
        if kind < 4:
            lines.insert(at, f"{chance.choice(flags)} = {chance.choice(FORMS)}")
        elif kind == 4:
            lines[at] = lines[at].partition("=")[0] + "= " + chance.choice(FORMS)
        elif kind == 5:
            lines[at] = chance.choice(
                ["[" + chance.choice(FORMS) + "]", "[[model]]", "[model", "a.b = 1", "=", "\t", lines[-1]]
            )
        elif kind == 6:
            del lines[at]
        else:
            text = damage_bytes("\n".join(lines).encode(errors="surrogateescape") or b"x", chance)
            lines = text.decode(errors="surrogateescape").split("\n")
        lines = lines or [""]
    return "\n".join(lines).encode(errors="surrogateescape")


def mix_of(folders, chance):
    """A value of --data, most often a good one."""
    parts = [f"{f}:{chance.choice(['0.5', '0.5', '1', '3'])}" for f in folders]
    if chance.random() < 0.6:
        at = chance.randrange(len(parts))
        share = chance.choice(
            ["0", "-1", "nan", "inf", "1e400", "", "x", "0.5:0.5", "99999999999999999999", "0x1", " 1", "1e-300"]
        )
        parts[at] = chance.choice(
            [f"{folders[at]}:{share}", folders[at], ":1", "", "nowhere:1", parts[0], "/dev/zero:1"]
        )
    return chance.choice([",", ",", ",", ",,", ";", ", "]).join(parts)


class Mutations:
    def __init__(self, setting, seed, kinds=""):
        self.setting, self.seed = setting, seed
        self.kinds = kinds.split(",") if kinds else KINDS
        text = setting.must(setting.start("--help-all"))
        self.flags = re.findall(r"^ +--([a-z][-a-z0-9]*)", text, re.M)
        # 256 to 400 MiB on whole folders, and 1 GiB. What a sanitizer's shadow takes would count too.
        self.limit = [] if "asan" in setting.program else ["prlimit", f"--data={1424 << 20}"]

    def run(self, number, keep=False):
        chance = random.Random(f"{self.seed} {number}")
        with all_faults.scratch(keep) as folder:
            return (number, *self.one(folder, chance))

    def one(self, folder, chance):
        s = self.setting
        kind = chance.choice(self.kinds)
        if kind == "config":
            opened = folder / "run.toml"
            opened.write_bytes(damaged_config(self.flags, chance))
            what = [opened.read_bytes().decode(errors="backslashreplace")]
        else:
            opened, what = folder / "it", []
            source = {"resume": s.base, "data": s.data, "mix": s.data}.get(kind, s.whole / "final")
            shutil.copytree(source, opened)
            files = sorted(p for p in opened.rglob("*") if p.is_file())
            if kind == "resume":  # its log is not what is read
                files = [p for p in files if "checkpoints" in p.parts or p.name == "run_status.json"]
            for path in chance.sample(files, min(len(files), chance.choice([1, 1, 1, 2, 3]))):
                what.append(f"{path.relative_to(opened)}: {damage(path, chance)}")
        if kind == "mix":
            folders = [str(opened), str(s.data), *([str(s.data)] * (chance.random() < 0.2))]
            mix = mix_of(chance.sample(folders, len(folders)), chance)
            if chance.random() >= 0.5:
                what = ["whole"]
                shutil.rmtree(opened)
                shutil.copytree(source, opened)
            what.append(f"--data {mix}")
            opened = mix
        done = self.start(kind, opened, folder)
        return kind, ", ".join(what), self.judge(kind, opened, done), done

    def start(self, kind, target, folder):
        s, limit = self.setting, {"before": self.limit}
        short = f"--seq-len 32 --batch 1 --steps 1 --val-every 0 --val-tokens 64 {s.device}"
        if kind == "generate":
            return s.generate(target, **limit)
        if kind == "export":
            return s.export(target, folder / "to", **limit)
        if kind == "gguf":
            return s.export(target, folder / "to.gguf", "--format gguf", **limit)
        if kind == "resume":
            return s.resume(target, **limit)
        if kind == "config":
            return s.start(f"--config {target} --data {s.data} --print-config", **limit)
        if kind == "tune":
            return s.start(f"--init-from {target} --data {s.data} {short}", **limit)
        return s.start(f"{all_faults.SHAPE} {short} --data", [target], **limit)

    def judge(self, kind, target, done):
        if done.code == 124:
            return "hangs"
        if re.search(r"Sanitizer|runtime error:", done.text):
            return "a sanitizer's report"
        if "out of memory" in done.text or "bad_alloc" in done.text:
            return "takes more than 1 GiB beyond its due"
        if re.search("[\x00-\x08\x0b-\x1f\x7f]", done.text) and kind != "generate":
            return "prints control characters"
        if done.code not in self.setting.exit_codes:
            return f"ends with {done.code}"
        if done.code != 0:
            return "" if re.search(r"\w+ \w+", done.text) else "no message"
        if kind != "resume" or weights(target) == self.setting.reference:
            return ""
        # The checkpoint's own words for people or a skipped check allow other weights, and that is said.
        return "" if "changed  " in done.text or "began" in done.text else "resumed to other weights"


def main():
    args = options(
        "program", minutes=10.0, cases=10**9, seed=1, jobs=os.cpu_count(), timeout=60.0, device="cpu", kinds="", case=-1
    )
    os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1:exitcode=99")
    os.environ.setdefault("UBSAN_OPTIONS", "halt_on_error=1:exitcode=99:print_stacktrace=1")
    setting = all_faults.Setting(args.program, "", args.timeout, args.device)
    mutations = Mutations(setting, args.seed, args.kinds)
    if args.case >= 0:
        _, kind, what, problem, done = mutations.run(args.case, keep=True)
        print(kind, what, done.text, problem or "passed", sep="\n")
        sys.exit(bool(problem))
    chosen = f" --kinds {args.kinds}" if args.kinds else ""
    began, count, refused = time.monotonic(), 0, 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        while count < args.cases and time.monotonic() - began < 60 * args.minutes:
            batch = range(count, min(args.cases, count + 8 * args.jobs))
            for number, kind, what, problem, done in pool.map(mutations.run, batch):
                count += 1
                refused += done.code != 0
                about = "\n".join([problem, *done.text.splitlines()[-12:]])
                check(f"--seed {args.seed}{chosen} --case {number}: {kind} of {what}", not problem, about)
    print(f"{count} cases in {time.monotonic() - began:.0f} s, {refused} of them refused")
    end()


if __name__ == "__main__":
    main()
