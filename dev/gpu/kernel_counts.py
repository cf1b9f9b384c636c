#!/usr/bin/env python3
"""What the kernels ask of a multiprocessor, counted while their PTX runs, beside what is predicted of them.

    dev/gpu/kernel_counts.py [BUILD] [--gate]     BUILD: default build; make ptx-quick makes BUILD/ptx/kernel_tests

Needs no GPU: the PTX for sm_90a runs in the interpreter (test/ptx) at the shapes of a few kernel tests, with the addresses
that these really use. Prints Markdown tables; dev/results/kernels.md says what they mean. Nothing in them is a time but
the predictions, which are computed.

--gate (in make test, seconds) prints a line per kernel and fails if its accesses to shared memory take more than 1.5 times the
cycles that they would without bank conflicts, or if it uses less than 90 % of the bytes of the sectors that it asks for.
"""
import os
import re
import subprocess
import sys
import tempfile

import attention_model
from sass import print_head, print_row

COPY_RATE = 4.3e12  # bytes per second, as in dev/notes/kernels-unmeasured.md
KINDS = ("tensor core", "float", "special", "integer", "move", "memory", "shuffle", "control")

# (test, its shape): bf16, one test per head size
ATTENTION = [
    ("TensorCore/Attention.{}MatchesCpu/15", "3 x 330, 4 heads over 2"),
    ("TensorCore/Attention.{}MatchesCpu/4", "1 x 200, 2 heads over 1"),
    ("TensorCore/Attention.{}MatchesCpu/17", "1 x 300 of 500, 5 heads over 1"),
    ("TensorCore/Attention.{}MatchesCpu/16", "2 x 290, 6 heads over 3"),
]

# (what, test, kernel, shape of the test, bytes that its launches can't avoid, elements and such bytes of the shape predicted)
# A test runs its op on the device twice.
MEMORY_BOUND = [
    ("rmsnorm_forward+residual", "Shapes/Rmsnorm.ForwardMatchesCpu/6", "rmsnorm_forward_kernel", "41x2048 bf16",
     2 * 41 * 2048 * 8, "8192x4096", 8192 * 4096 * 8),
    ("rmsnorm_backward", "Shapes/Rmsnorm.BackwardLeavesTheSumOfDw/6", "rmsnorm_backward_kernel", "41x2048 bf16",
     2 * 41 * 2048 * 6, "8192x4096, without a residual", 8192 * 4096 * 6),
    ("swiglu_forward", "Shapes/Swiglu.ForwardMatchesCpu/2", "swiglu_forward_kernel", "7x1536 bf16",
     2 * 7 * 1536 * 6, "8192x14336", 8192 * 14336 * 6),
    ("swiglu_backward, h in two of three", "Shapes/Swiglu.BackwardMatchesCpu/2", "swiglu_backward_kernel", "7x1536 bf16",
     7 * 1536 * (4 * 12 + 2 * 10), "8192x14336, with h", 8192 * 14336 * 12),
    ("rope, there and back", "Shapes/RopeTest.ForwardAndInverseMatchCpu/1", "rope_kernel", "14 rows of 12 heads of 64, bf16",
     4 * 14 * 12 * 64 * 4, "8x1024x16x16x128", 8192 * 32 * 128 * 4),
    ("embedding_forward", "Shapes/Embedding.ForwardMatchesCpu/1", "embedding_forward_kernel", "129x576 bf16",
     2 * 129 * 576 * 4, "8192x4096", 8192 * 4096 * 4),
    ("cross_entropy", "Shapes/CrossEntropyTest.GradientInPlaceMatchesCpu/4", "cross_entropy_kernel", "3x32000 bf16",
     2 * 3 * 32000 * 4, "8192x32000", 8192 * 32000 * 4),
    ("cross_entropy", "Shapes/CrossEntropyTest.GradientInPlaceMatchesCpu/7", "cross_entropy_kernel", "2x128256 bf16",
     2 * 2 * 128256 * 4, "4096x128256", 4096 * 128256 * 4),
    ("adamw, fp32 state and gradient, bf16 parameter", "Shapes/AdamWTest.UpdateMatchesCpu/2", "adamw_kernel", "9001",
     2 * 9001 * 30, "1e9", int(1e9) * 30),
    ("sum_squares", "Shapes/SumSquaresTest.EachBlocksSumMatchesCpu/5", "sum_squares_kernel", "40003 bf16",
     2 * 40003 * 2, "1e9", int(1e9) * 2),
]


# Every op at the presets' widths, and two that have none. Not here: kernels of one block or one thread (bias_correction,
# loss_scale_update, clip_scale, fold_scales, vocab_argmax), and attention by scalars.
GATE = ("Ops/Presets.*", "BlockStatistics.*", "Transpose8.*")
MOST_CONFLICTS, FEWEST_USED = 1.5, 0.9
# kernel: (most conflicts, fewest bytes used), why
EXCEPTIONS = {
    "transpose8_kernel": (1.8, 0.9, "a thread gathers 16 bytes of a column one by one; only codes that were gathered go this way"),
    "quantise_kernel": (1.5, 0.6, "a lane loads 32 bytes in two halves: the second half comes from L1"),
    "quantise_transpose_kernel": (2.0, 0.6, "as quantise_kernel; its column gathers as transpose8_kernel"),
}


def counts(build, test):
    """What the test launches on sm_90a, in order: {kernel: counts}"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "counts")
        done = subprocess.run([f"{build}/ptx/kernel_tests", "--gtest_brief=1", "--gtest_filter=" + test],
                              env=dict(os.environ, SIMT_ARCH="90", PTX_SEED="0", PTX_COUNTS=path, OMP_NUM_THREADS="1"),
                              capture_output=True, text=True, check=False)
        if done.returncode or not os.path.exists(path):
            sys.exit(f"kernel_counts.py: {test} did not run:\n{(done.stdout + done.stderr)[-2000:]}")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    found = {}
    for part in re.split(r"(?m)^sm_90a ", text)[1:]:
        name, kinds = part.splitlines()[:2]
        c = {"kinds": {k.strip(): int(n) for k, n in re.findall(r"([a-z ]+?) (\d+)", kinds)}}
        c["all"] = sum(c["kinds"].values())
        m = re.search(r"lanes: ([\d.]+) % active; (\d+) more", part)
        c["active"], c["idle"] = float(m[1]) / 100 * c["all"], int(m[2])
        m = re.search(r"global: (\d+) requests, (\d+) bytes, ([\d.]+) sectors each", part)
        c["requests"], c["bytes"], c["sectors"] = int(m[1]), int(m[2]), int(m[1]) * float(m[3])
        m = re.search(r"shared: \d+ requests, (\d+) cycles where (\d+) would do; bulk copies: (\d+)", part)
        c["cycles"], c["ideal"], c["bulk"] = map(int, m.groups())
        found[re.sub(r"rz::|\(anonymous namespace\)::|^void ", "", name)] = c
    return found


def added(several):
    """The counts of a test that launches several instances of a kernel"""
    total = {}
    for c in several:
        for key, n in c.items():
            if key == "kinds":
                total[key] = {k: total.get(key, {}).get(k, 0) + n.get(k, 0) for k in KINDS}
            else:
                total[key] = total.get(key, 0) + n
    return total


def by_kind(c, unit):
    return ", ".join(f"{c['kinds'].get(k, 0) / unit:.1f}" for k in KINDS)


def lanes(c):
    return f"{c['active'] / c['all']:.0%}, {c['idle'] / c['all']:.1%}"


def sectors(c):
    return f"{c['sectors'] / c['requests']:.1f}, {c['bytes'] / c['sectors'] / 32:.0%}"


def attention(build):
    objects = [f for f in attention_model.objects_of(build) if "wgmma" in f]
    model = {(r[0], r[2]): r for r in attention_model.wgmma_rows(objects, False)[0]}
    print_head(["kernel", "D", "shape", "tiles of a warp", "PTX: " + ", ".join(KINDS), "PTX: all", "machine code: all, always",
                "exp: counted, in the loop", "bytes by TMA: counted, model", "shared: cycles, without conflicts",
                "global: sectors per request, of their bytes used", "lanes active, more with none",
                "predicted bound: unit, clocks, TFLOP/s"])
    for test, shape in ATTENTION:
        for way in ("Forward", "Backward"):
            for kernel, c in counts(build, test.format(way)).items():
                m = re.match(r"(attention_\w+_wgmma_kernel)<__nv_bfloat16, (\d+)((?:, \w+)*)>", kernel)
                if not m:
                    continue
                whole, D = attention_model.variant(m[1], re.findall(r"\w+", m[3])), int(m[2])
                name = attention_model.short(whole)
                _, _, _, size, code, unit, bound, rate, _ = model[name, D]
                tiles = c["kinds"]["tensor core"] / code["HGMMA"]
                print_row([name, D, shape, f"{tiles:.0f}", by_kind(c, tiles), f"{c['all'] / tiles:.0f}",
                           f"{size}, {sum(code.values())}", f"{c['kinds'].get('special', 0) / tiles:.1f}, {code['MUFU']}",
                           f"{4 * c['bulk'] / tiles:.0f}, {attention_model.streamed_bytes(whole, D):.0f}",
                           f"{c['cycles'] / tiles:.1f}, {c['ideal'] / tiles:.1f}", sectors(c), lanes(c),
                           f"{bound}, {unit[bound]:.0f}, {rate:.0f}"])


def memory_bound(build):
    print_head(["op", "shape counted", "PTX per 512 bytes: " + ", ".join(KINDS), "all", "lanes active, more with none",
                "bytes asked for, of those it can't avoid", "sectors per request, of their bytes used",
                "shared: cycles, without conflicts", "predicted", "us"])
    for what, test, kernel, shape, least, wide, wide_bytes in MEMORY_BOUND:
        c = added([c for name, c in counts(build, test).items() if name.startswith(kernel + "<")])
        if not c:
            sys.exit(f"kernel_counts.py: {test} launches no {kernel}")
        unit = least / 512
        print_row([what, shape, by_kind(c, unit), f"{c['all'] / unit:.1f}", lanes(c),
                   f"{c['bytes'] / least:.2f}", sectors(c), f"{c['cycles']}, {c['ideal']}", wide,
                   f"{wide_bytes / COPY_RATE * 1e6:.0f}"])


def gate(build):
    """A line per kernel, its worst instance; whether all are within limits"""
    worst = {}
    for name, c in counts(build, ":".join(GATE)).items():
        name = re.split(r"[<(]", name)[0]
        conflicts = c["cycles"] / c["ideal"] if c["ideal"] else 1
        used = c["bytes"] / c["sectors"] / 32 if c["sectors"] else 1
        before = worst.get(name, (0, 9))
        worst[name] = max(before[0], conflicts), min(before[1], used)
    bad = 0
    for name, (conflicts, used) in sorted(worst.items()):
        most, fewest, why = EXCEPTIONS.get(name, (MOST_CONFLICTS, FEWEST_USED, ""))
        fault = conflicts > most or used < fewest
        bad += fault
        print(f"{'FAULT ' if fault else ''}{name}: shared memory {conflicts:.2f} x its cycles without conflicts (at most {most}), "
              f"{used:.0%} of its sectors' bytes used (at least {fewest:.0%}){'; ' + why if why else ''}")
    missing = [name for name in EXCEPTIONS if name not in worst]
    if missing:
        print("FAULT exceptions for kernels that did not run:", *missing)
    print(f"{len(worst) - bad} passed, {bad + len(missing)} failed")
    return 1 if bad or missing else 0


def main():
    build = next((a for a in sys.argv[1:] if not a.startswith("-")), "build")
    if "--gate" in sys.argv:
        sys.exit(gate(build))
    attention(build)
    print()
    memory_bound(build)


if __name__ == "__main__":
    main()
