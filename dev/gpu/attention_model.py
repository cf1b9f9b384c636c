#!/usr/bin/env python3
"""What the attention kernels' inner loops need of each unit of a multiprocessor, counted in their machine code.

    dev/gpu/attention_model.py [BUILD] [--all]     BUILD: default build; --all: fp16 too

Needs no GPU: cuobjdump (CUDA Toolkit; $CUOBJDUMP names another) and c++filt. Prints Markdown tables;
dev/results/kernels.md says what they mean. Exit code 1 if a loop touches local memory, if ptxas has serialised
wgmma, if a wait that exponentials should run under has moved in front of them, or if a warpgroup uses more registers
than setmaxnreg leaves it.
"""
import collections
import glob
import re
import sys

from sass import functions, print_head, print_row

MULTIPROCESSORS, CLOCK = 132, 1.83e9
MEMORY_RATE = 4.3e12 / (MULTIPROCESSORS * CLOCK)  # bytes per clock of one multiprocessor, of an H200
WGMMA_RATE = 4096  # FLOP per clock and multiprocessor, dense 16-bit
MMA_RATE = {"sm_80": 2048, "sm_90": 0.63 * 4096}  # of mma.sync; Hopper's as measured in arXiv 2501.12084
SHARED_RATE = 128  # bytes per clock

# Clocks for which an instruction of one warp occupies a unit of its quarter of the multiprocessor: CUDA programming
# guide, throughput of native arithmetic instructions, 8.0 and 9.0.
FP32 = {"FADD", "FMUL", "FFMA"}
ALU = {"FMNMX", "FSEL", "FSETP", "ISETP", "LOP3", "SHF", "LEA", "IADD3", "VIADD", "F2FP", "F2F", "PRMT", "MOV", "SEL",
       "IMNMX", "VIMNMX", "VIADDMNMX", "PLOP3", "IABS"}
MUFU_CLOCKS, ALU_CLOCKS = 8, 2

LOCAL_MEMORY_KNOWN = {("attention_forward_mma_kernel", 128, "sm_80"), ("attention_forward_mma_kernel", 96, "sm_90a"),
                      ("attention_forward_mma_kernel", 128, "sm_90a")}  # see kernel_resources.py

# Per kernel: columns of a streamed tile, products
WGMMA = {
    "attention_forward_wgmma_kernel": dict(columns=128, products=2),
    "attention_backward_kv_wgmma_kernel": dict(columns=64, products=4),
    "attention_backward_q_wgmma_kernel": dict(columns=64, products=3),
    # With the score gradients kept: five products, without and with documents. The loop of dq has three tiles.
    "attention_backward_kv_wgmma_kernel, kept": dict(columns=64, products=4),
    "attention_backward_kv_wgmma_kernel, kept, documents": dict(columns=64, products=4),
    "attention_backward_dq_wgmma_kernel": dict(columns=192, products=1),
}


def variant(name, flags):
    """The name of an instance: forward by mma.sync may have 32 keys in a tile, not 64; what writes dk and dv may keep
    the score gradients, and then see documents or not."""
    first, second = [f in ("1", "true") for f in flags + ["0", "0"]][:2]
    if "wgmma" not in name:
        return name + first * ", 32 keys"
    return name + first * ", kept" + (first and second) * ", documents"


def kernels(path, arch):
    """{(name, dtype, D): [(address, text)]} of the object's code for an architecture."""
    found = {}
    for _, name, code in functions(path, arch):
        if m := re.match(r"(attention_\w+_kernel)<(\w+), (\d+)((?:, \w+)*)>", name):
            found[variant(m[1], re.findall(r"\w+", m[4])), m[2], int(m[3])] = code
    return found


def opcode(text):
    return re.sub(r"^@!?U?P\w+ ", "", text).split()[0].split(".")[0]


def inner_loop(code):
    """The shortest loop with products, and those of its instructions that branches jump over, products aside."""
    index = {address: i for i, (address, _) in enumerate(code)}
    best = None
    for i, (address, text) in enumerate(code):
        m = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if m and int(m[1], 16) <= address:
            body = code[index[int(m[1], 16)]:i + 1]
            if any(opcode(t) in ("HGMMA", "HMMA") for _, t in body) and (best is None or len(body) < len(best)):
                best = body
    skipped = set()
    last = best[-1][0]
    for address, text in best:
        m = re.search(r"^@.*\bBRA\b.*?0x([0-9a-f]+)", text)
        if m and address < int(m[1], 16) <= last:
            between = [(a, t) for a, t in best if address < a < int(m[1], 16)]
            if not any(opcode(t) in ("HGMMA", "HMMA") for _, t in between):
                skipped |= {a for a, _ in between}
    return best, skipped


def short(name):
    return name.replace("attention_", "").replace("_kernel", "")


def clocks(body, skipped):
    count = collections.Counter(opcode(t) for a, t in body if a not in skipped)
    return count, dict(issue=sum(count.values()), fp32=sum(count[o] for o in FP32),
                       alu=ALU_CLOCKS * sum(count[o] for o in ALU), exp=MUFU_CLOCKS * count["MUFU"])


def faults(body):
    """What the compiler must not have done to a loop with wgmma."""
    text = [t for _, t in body]
    found = []
    if any(opcode(t) in ("LDL", "STL") for t in text):
        found.append("local memory")
    waits = [i for i, t in enumerate(text) if "WARPGROUP.DEPBAR" in t]
    if len(waits) > 4:
        found.append(f"{len(waits)} waits: wgmma is serialised")
        return found
    exps = [i for i, t in enumerate(text) if opcode(t) == "MUFU"]
    under = sum(1 for i in exps if any(w < i for w in waits) and any(w > i for w in waits))
    if under < 0.9 * len(exps):
        found.append(f"only {under} of {len(exps)} exponentials between two waits")
    return found


def register_faults(code):
    """Registers that a warpgroup uses beyond what setmaxnreg leaves it."""
    def most(part):
        return max((int(r) for _, t in part for r in re.findall(r"\bR(\d+)\b", t)), default=0)

    limits = [(i, int(m[1], 16)) for i, (_, t) in enumerate(code)
              if (m := re.search(r"USETMAXREG\S* .*?(0x[0-9a-f]+)", t))]
    (taken, have), (given, left) = limits  # the consumers' code comes first
    end = next(i for i in range(given, len(code)) if code[i][1].startswith("EXIT"))
    producer = code[given:end]
    found = []
    if most(code[taken:given]) >= have:
        found.append(f"consumers use R{most(code[taken:given])} and have {have} registers")
    if most(producer) >= left or any(opcode(t) == "CALL" for _, t in producer):
        found.append(f"the producer uses R{most(producer)} and more in calls, and has {left} registers")
    return found


def streamed_bytes(name, D):
    """What TMA writes into shared memory per tile and warpgroup that uses it. Forward's keys lie in panels of 64 columns,
    the last of which it fills up; everything else in panels that D is a multiple of."""
    forward, dq = "forward" in name, "_dq_" in name
    columns = D if dq else D + ((D + 63) // 64 * 64 if forward else D)
    return WGMMA[name]["columns"] * columns * 2 / (3 if dq or (forward and D == 64) else 2)


def wgmma_rows(objects, every):
    rows, bad = [], []
    for path in objects:
        for (name, dtype, D), code in kernels(path, "sm_90a").items():
            if name not in WGMMA or (dtype != "bf16" and not every):
                continue
            k = WGMMA[name]
            body, skipped = inner_loop(code)
            bad += [f"{name}<{dtype}, {D}>: {f}" for f in faults(body) + register_faults(code)]
            count, unit = clocks(body, skipped)
            shared = streamed_bytes(name, D)
            tensor = 0
            for _, t in body:
                if m := re.search(r"HGMMA\.64x(\d+)x16\S* \w+, (gdesc)?", t):
                    tensor += 64 * int(m[1]) * 16 * 2 / WGMMA_RATE
                    shared += 16 * 2 * (int(m[1]) + (64 if m[2] else 0))
            unit["tensor"], unit["shared"] = tensor, shared / SHARED_RATE
            if "_dq_" in name:  # reads the score gradients from memory
                unit["memory"] = 64 * k["columns"] * 2 / MEMORY_RATE
            bound = max(unit, key=unit.get)
            flops = k["products"] * 2 * 64 * k["columns"] * D
            rate = flops / unit[bound] * MULTIPROCESSORS * CLOCK / 1e12
            rows.append((short(name), dtype, D, len(body), count, unit, bound, rate, unit[bound] / k["columns"]))
    return sorted(rows, key=lambda r: (r[0], r[1], r[2])), bad


def print_wgmma(rows):
    print_head(["kernel", "D", "instructions: all, always", "HGMMA", "exp", "fp32", "min/max, select, pack, integer",
                "uniform, moves, sync", "tensor", "shared", "exp", "issue", "alu", "bound", "its TFLOP/s"])
    for name, dtype, D, size, count, unit, bound, rate, _ in rows:
        fp32, alu = sum(count[o] for o in FP32), sum(count[o] for o in ALU)
        rest = sum(count.values()) - fp32 - alu - count["HGMMA"] - count["MUFU"]
        label = name if dtype == "bf16" else f"{name}, fp16"
        print_row([label, D, f"{size}, {sum(count.values())}", count["HGMMA"], count["MUFU"], fp32, alu, rest,
                   unit["tensor"], unit["shared"], unit["exp"], unit["issue"], unit["alu"], bound, rate])
    print("\nBackward as a whole, five products counted of the seven computed, or of five where the score gradients are kept:\n")
    print("| D | clocks per 64 x 64 scores: kv, q | TFLOP/s of the five |")
    print("|---|---|---|")
    per = {(r[0], r[2]): r[8] * 64 for r in rows if r[1] == "bf16"}
    def whole(label, D, kv, q):
        print(f"| {label} | {kv:.0f}, {q:.0f} | {5 * 2 * 64 * 64 * D / (kv + q) * MULTIPROCESSORS * CLOCK / 1e12:.0f} |")

    for D in sorted({r[2] for r in rows}):
        whole(D, D, per[("backward_kv_wgmma", D)], per[("backward_q_wgmma", D)])
        if ("backward_dq_wgmma", D) in per:
            whole(f"{D}, score gradients kept", D, per[("backward_kv_wgmma, kept", D)], per[("backward_dq_wgmma", D)])


def print_mma(objects, every):
    print_head(["kernel", "D", "on", "instructions: all, always", "HMMA", "LDSM", "exp", "fp32", "alu", "rest",
                "tensor", "shared", "exp", "issue", "bound", "tensor's share of it"])
    bad = []
    for path in objects:
        for arch in ("sm_80", "sm_90a"):
            for (name, dtype, D), code in sorted(kernels(path, arch).items()):
                if "_mma_" not in name or (dtype != "bf16" and not every):
                    continue
                body, skipped = inner_loop(code)
                if any(opcode(t) in ("LDL", "STL") for _, t in body) and (name, D, arch) not in LOCAL_MEMORY_KNOWN:
                    bad.append(f"{name}<{dtype}, {D}> on {arch}: local memory")
                count, unit = clocks(body, skipped)
                # A warp in each quarter: 4 x 512 bytes per LDSM.x4 go through the one shared memory.
                unit["tensor"] = count["HMMA"] * 4 * 4096 / MMA_RATE[arch[:5]]
                unit["shared"] = count["LDSM"] * 4 * 512 / SHARED_RATE
                bound = max(unit, key=unit.get)
                fp32, alu = sum(count[o] for o in FP32), sum(count[o] for o in ALU)
                rest = sum(count.values()) - fp32 - alu - count["HMMA"] - count["LDSM"] - count["MUFU"]
                print_row([short(name), D, arch, f"{len(body)}, {sum(count.values())}", count["HMMA"], count["LDSM"],
                           count["MUFU"], fp32, alu, rest, unit["tensor"], unit["shared"], unit["exp"], unit["issue"],
                           bound, f"{unit['tensor'] / unit[bound]:.0%}"])
    return bad


def objects_of(build):
    pattern = f"{build}/cuda*/kernels/attention/attention_*mma.cu.o"
    return sorted(glob.glob(pattern)) or sys.exit(f"attention_model.py: no {pattern}; run make where nvcc is")


def main():
    every = "--all" in sys.argv
    build = next((a for a in sys.argv[1:] if not a.startswith("-")), "build")
    found = objects_of(build)
    rows, bad = wgmma_rows([f for f in found if "wgmma" in f], every)
    if not rows:
        sys.exit("attention_model.py: no attention kernel for sm_90a in these objects")
    print_wgmma(rows)
    print()
    bad += print_mma([f for f in found if "wgmma" not in f], every)
    for fault in bad:
        print("FAULT:", fault, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
