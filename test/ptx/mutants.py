#!/usr/bin/env python3
"""Would the tests notice? Changes one place of the kernels' PTX at a time and runs the tests that launch that kernel.

mutants.py PTX_DIR [--arch 90] [--per-class 6] [--seed 1] [--only REGEX] [--kernel REGEX] [--journal FILE] > report

A mutant is a line of the PTX that the unchanged tests execute. It counts only if the edit has hit (the program says so).
Killed: a test fails, by its values or by the checks of memory order; the report says which. A few cheap tests run first;
a mutant survives if all tests that launch its kernel pass. Prints a line per mutant, for a survivor with the line of
source that it comes from, and killed/total per class; exits 1 if one survives. Each kind gets one place, then each a second,
so that a run that is cut short has seen all kinds. With a journal, a run goes on where the last one was stopped.
"""

import argparse
import collections
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time


def nothing(_):
    return ""


def substitute(pattern, replacement):
    return lambda text: re.sub(pattern, replacement, text, count=1)


def next_number(pattern):
    return lambda text: re.sub(pattern, lambda m: m.group(1) + str(int(m.group(2)) + 1) + m.group(3), text, count=1)


def swap_sources(text):
    m = re.match(r"(\S+\s+)([^,]+), ([^,]+), ([^,;]+)(.*)$", text)
    return f"{m[1]}{m[2]}, {m[4]}, {m[3]}{m[5]}" if m else text


def flip_bit(bit):
    return lambda text: re.sub(r"(, )(\d{19})(;)", lambda m: m[1] + str(int(m[2]) ^ (1 << bit)) + m[3], text)


def flipped_parity(text):
    return re.sub(r"^(.*\], )(%r\d+);", r".reg .b32 flipped; xor.b32 flipped, \2, 1; \1flipped;", text)


def next_element(text):
    """The address that nvcc 13.0.88 once made of an unrolled loop of ours: that of the neighbour, in the same array."""
    parts = text.split()[0].split(".")
    width = int(parts[-1].lstrip("busf")) // 8 * (4 if "v4" in parts else 2 if "v2" in parts else 1)
    return re.sub(r"\+(-?\d+)\]", lambda m: f"+{int(m[1]) + width}]", text, count=1)


def compare(lt, gt, le, ge):
    names = {"lt": lt, "gt": gt, "le": le, "ge": ge}
    return substitute(r"setp\.(lt|gt|le|ge)", lambda m: "setp." + names[m[1]])


# name, which lines, what becomes of them. Those marked `order` need the checks of memory order to be seen.
CLASSES = [
    ("bar.sync removed", r"^bar\.sync", nothing),
    ("bar.warp.sync removed", r"^bar\.warp\.sync", nothing),
    ("cp.async.wait_group one later", r"^cp\.async\.wait_group", next_number(r"(wait_group\s+)(\d+)(;)")),
    ("cp.async.commit_group removed", r"^cp\.async\.commit_group", nothing),
    ("wgmma.fence removed", r"^wgmma\.fence", nothing),
    ("wgmma.wait_group one later", r"^wgmma\.wait_group", next_number(r"(aligned\s+)(\d+)(;)")),
    ("wgmma.commit_group removed", r"^wgmma\.commit_group", nothing),
    ("fence.mbarrier_init removed", r"^fence\.mbarrier_init", nothing),
    ("setmaxnreg removed", r"^setmaxnreg", nothing),
    ("mbarrier wait not repeated", r"^@!p bra wait_|^@!%p\d+ bra.*wait", nothing),
    ("mbarrier parity flipped", r"^mbarrier\.try_wait", flipped_parity),
    ("mbarrier parity fixed", r"^mbarrier\.try_wait", substitute(r"\], %r\d+;", "], 0;")),
    ("mbarrier.arrive removed", r"^mbarrier\.arrive\.shared", nothing),
    ("expected bytes wrong", r"^mbarrier\.arrive\.expect_tx", substitute(r"\], %r\d+;", "], 1024;")),
    ("TMA coordinate wrong", r"^cp\.async\.bulk\.tensor", substitute(r"\{%r\d+,", "{0,")),
    ("ldmatrix.trans dropped", r"^ldmatrix.*\.trans", substitute(r"\.trans", "")),
    ("ldmatrix.trans added", r"^ldmatrix\.sync\.aligned\.m8n8\.x\d\.shared", substitute(r"\.shared", ".trans.shared")),
    ("mma operands a swapped", r"^mma\.sync", substitute(r"(\{[^}]*\},\s*\{)(%r\d+),(%r\d+)", r"\1\3,\2")),
    ("wgmma transposition", r"^wgmma\.mma_async", substitute(r", (\d);", lambda m: f", {1 - int(m[1])};")),
    ("wgmma scale of b negative", r"^wgmma\.mma_async", substitute(r"p, 1, 1,", "p, 1, -1,")),
    ("descriptor stride", r", \d{19};", flip_bit(38)),
    ("descriptor leading", r", \d{19};", flip_bit(25)),
    ("descriptor swizzle", r", \d{19};", flip_bit(63)),
    ("shuffle bfly to down", r"^shfl\.sync\.bfly", substitute("bfly", "down")),
    ("shuffle removed", r"^shfl\.sync\.bfly", substitute(r"^\S+\s+(%r\d+)\|%p\d+, (%r\d+),.*;", r"mov.b32 \1, \2;")),
    ("sub operands swapped", r"^sub\.(rn\.)?(ftz\.)?f32", swap_sources),
    ("add to sub", r"^add\.(rn\.)?(ftz\.)?f32", substitute("^add", "sub")),
    ("max to min", r"^max\.(ftz\.)?f32", substitute("^max", "min")),
    ("comparison reversed", r"^setp\.(lt|gt|le|ge)\.", compare("ge", "le", "gt", "lt")),
    ("comparison off by one", r"^setp\.(lt|gt|le|ge)\.[su]", compare("le", "ge", "lt", "gt")),
    ("address of the next element", r"^(ld|st)\.(global|shared)\S*\.[busf]\d+\s.*\+-?\d+\]", next_element),
    ("store removed", r"^st\.(global|shared)", nothing),
    ("shift by one more", r"^sh[lr]\.", next_number(r"(, )(\d+)(;)")),
]


def run(binary, env, gtest_filter, seconds):
    """Exit code and output; limited by processor time, so that a busy machine kills no mutant."""
    done = subprocess.run(
        [binary, "--gtest_brief=1", "--gtest_filter=" + gtest_filter],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds)),
    )
    output = done.stdout.decode(errors="replace")
    return done.returncode, output + (f"\nptx: no end in {seconds} s" if done.returncode == -signal.SIGXCPU else "")


def reason(output):
    for pattern in (r"^ptx: (?!edited)[^\n]*?seed \d+: ([^\n]*)", r"^ptx: (?!edited)([^\n]*)"):
        found = re.search(pattern, output, re.M)
        if not found:
            continue
        return found[1][:110]
    return "wrong values" if "differ by" in output or "Failure" in output else "stopped"


def short(kernel):
    return re.sub(r"\(.*", "", re.sub(r"rz::|\(anonymous namespace\)::|^void ", "", kernel))


def drawn(places, o):
    """(kind, change, place): the first place of every kind, then the second of every kind, ..."""
    draw = random.Random(o.seed)
    by_class = []
    for name, pattern, change in CLASSES:
        if re.search(o.only, name):
            found = [
                x for x in places if re.search(pattern, x[3]) and change(x[3]) != x[3] and re.search(o.kernel, x[2])
            ]
            by_class.append([(name, change, x) for x in draw.sample(found, min(o.per_class, len(found)))])
    return [c[i] for i in range(o.per_class) for c in by_class if i < len(c)]


def journal_of(o):
    if not o.journal or not os.path.exists(o.journal):
        return {}
    with open(o.journal, encoding="utf-8") as file:
        return {x["key"]: x for x in map(json.loads, file)}


def try_one(binary, env, tests):
    """Whether the edit has hit, the exit code, and what noticed it"""
    half = len(tests) // 2
    for some in (tests[:2], tests[half : half + 1], tests[half + 1 : half + 4] + tests[-2:], tests):
        usual = sum(ms for ms, _ in some) / 1000
        code, output = run(binary, env, ":".join(sorted({t for _, t in some})), int(20 + 10 * usual))
        if code or "ptx: edited:" not in output:
            break
    return "ptx: edited:" in output, code, reason(output) if code else ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--arch", default="90")
    p.add_argument("--per-class", type=int, default=6, help="places of each kind, drawn at random from all kernels")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="", help="regular expression of the kind of mutant")
    p.add_argument("--kernel", default="", help="regular expression of the kernel")
    p.add_argument("--baseline", default="", help="folder that keeps what the unchanged tests execute, between runs")
    p.add_argument("--journal", default="", help="file that remembers each mutant; of the same programs and tests")
    p.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    o = p.parse_args()
    binary = os.path.join(o.dir, "kernel_tests")
    work = o.baseline or tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    env = dict(os.environ, SIMT_ARCH=o.arch, PTX_ORDER="1", OMP_NUM_THREADS="1")
    lines, tests = os.path.join(work, "lines"), os.path.join(work, "tests")
    if not os.path.exists(lines):
        code, output = run(binary, dict(env, PTX_LINES=lines, PTX_TESTS=tests), "*", 3000)
        if code:
            sys.exit("mutants: the tests fail before anything is changed\n" + output[-2000:])
    by_kernel = collections.defaultdict(list)
    for row in open(tests):
        ms, test, *kernels = row.rstrip("\n").split("\t")
        for k in kernels:
            by_kernel[k].append((int(ms), test))
    places = [row.rstrip("\n").split("\t") for row in open(lines)]
    chosen_places = drawn(places, o)
    before = journal_of(o)
    begin = time.time()
    killed, total, missed = collections.Counter(), collections.Counter(), 0
    for name, change, (mangled, line, kernel, text, source) in chosen_places:
        key = f"{o.arch} {name} {mangled} {line} {text}"
        if key not in before:
            if time.time() - begin > o.seconds:
                break
            edit = f"{mangled}\t{line}\t{change(text)}"
            hit, code, why = try_one(binary, dict(env, PTX_EDIT=edit), sorted(by_kernel[kernel]))
            before[key] = dict(key=key, hit=hit, killed=code != 0, why=why)
            if o.journal:
                with open(o.journal, "a", encoding="utf-8") as file:
                    file.write(json.dumps(before[key]) + "\n")
        seen = before[key]
        if not seen["hit"]:
            missed += 1
            print(f"not hit    {name}: {short(kernel)} line {line}")
            continue
        total[name] += 1
        killed[name] += seen["killed"]
        print(f"{'killed  ' if seen['killed'] else 'SURVIVES'}   {name}: {short(kernel)} line {line}: {text[:90]}")
        print("             " + (seen["why"] if seen["killed"] else source), flush=True)
    print()
    for name, _, _ in CLASSES:
        if total[name]:
            print(f"{killed[name]:4} of {total[name]:4} killed   {name}")
    print(
        f"{sum(killed.values()):4} of {sum(total.values()):4} killed, {missed} edits did not hit; sm_{o.arch}, seed {o.seed}"
    )
    sys.exit(sum(killed.values()) < sum(total.values()))


main()
