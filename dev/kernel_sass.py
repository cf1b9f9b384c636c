#!/usr/bin/env python3
"""What the compiled memory-bound kernels do per thread, from the built objects: needs no GPU.

  dev/kernel_sass.py [BUILD | FILE.cu.o ...] [--arch 90a] [--match REGEX]    BUILD: default build

For each kernel instance: how many global loads and stores of which width stand in its code, how many bytes of loads are
under way at most while none of them has been waited for, and, with registers and shared memory, what that makes per
multiprocessor. For that the code is read from top to bottom with no branch taken: right for straight lines and unrolled
loops, an upper bound where two branches exclude each other. Instructions and MUFU operations are counted on one way
through the kernel (Kernel.walk). Needs cuobjdump (CUDA Toolkit; $CUOBJDUMP names another) and c++filt.
"""
import argparse
import collections
import glob
import os
import re
import subprocess
import sys

WIDTH = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
REGISTERS, THREADS, BLOCKS, SHARED = 65536, 2048, 32, {"80": 164 << 10, "90a": 228 << 10}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cuobjdump():
    return os.environ.get("CUOBJDUMP", "cuobjdump")


def width(opcode):
    for part in opcode.split(".")[1:]:
        if part in WIDTH:
            return WIDTH[part]
    return 4


def registers(text, count=1):
    """Numbers of the registers R<n> .. R<n + count - 1> that stand in `text`"""
    found = set()
    for match in re.finditer(r"\bR(\d+)(\.64)?", text):
        first = int(match.group(1))
        found.update(range(first, first + max(count, 2 if match.group(2) else 1)))
    return found


class Kernel:
    def __init__(self, name, lines):
        self.name = name
        self.loads, self.stores = collections.Counter(), collections.Counter()
        self.mufu = self.barriers = self.instructions = self.moved = self.peak = 0
        self.read(lines)

    def read(self, lines):
        code = []
        for at, text in lines:
            guarded = re.match(r"@!?U?P\w+\s+", text)
            text = text[guarded.end():] if guarded else text
            opcode, _, operands = text.strip().partition(" ")
            code.append((int(at, 16), bool(guarded), opcode, operands))
        last_exit = max((at for at, _, opcode, _ in code if opcode.startswith("EXIT")), default=0)
        pending = {}
        for at, _, opcode, operands in code:
            if at > last_exit:
                break
            bytes_ = width(opcode)
            if opcode.startswith("STG"):
                self.stores[bytes_] += 1
            self.barriers += opcode.startswith("BAR.SYNC")
            load = re.match(r"LDG(STS)?\.", opcode)
            # A destination is overwritten only after its load has arrived, so it counts as a read too
            reads = registers(operands.partition(",")[2] if load else operands)
            for key in [k for k, (_, destination) in pending.items() if destination & reads]:
                del pending[key]
            if load:
                self.loads[bytes_] += 1
                first = int(re.match(r"R(\d+)", operands).group(1)) if operands.startswith("R") else -1
                pending[at] = (bytes_, set() if load.group(1) else set(range(first, first + max(1, bytes_ // 4))))
                self.peak = max(self.peak, sum(b for b, _ in pending.values()))
        self.walk(code)

    def walk(self, code):
        """Instructions on the way that most threads take, and the bytes they move: every loop body once; of a forward
        branch the way that moves data, computes a MUFU or meets a barrier, else the one that skips instructions"""
        index = {at: i for i, (at, _, _, _) in enumerate(code)}
        hot = [bool(re.match(r"(STG|LDG|LDGSTS).*\.128|STG.*\.64|MUFU|BAR\.SYNC", opcode)) for _, _, opcode, _ in code]
        i, seen = 0, set()
        while i < len(code) and i not in seen:
            seen.add(i)
            at, guarded, opcode, operands = code[i]
            self.instructions += 1
            self.mufu += opcode.startswith("MUFU")
            if re.match(r"(STG|LDG|LDGSTS)\.", opcode):
                self.moved += width(opcode)
            target = re.search(r"0x([0-9a-f]+)", operands) if re.match(r"BRA\b", opcode) else None
            to = index.get(int(target.group(1), 16)) if target else None
            i += 1
            if opcode.startswith("EXIT") and not guarded:
                break
            guarded = guarded or bool(re.match(r"!?U?P\d", operands))
            if to is not None and (not guarded or (to > i and not any(hot[i:to]))):
                i = to


def demangle(names):
    out = run("c++filt", *names).splitlines() if names else []
    for i, name in enumerate(out):
        name = re.sub(r"\(anonymous namespace\)::|rz::|^void ", "", name)
        name = name.replace("__nv_bfloat16", "bf16").replace("__half", "f16").replace("(bool)", "").replace("(int)", "")
        cut = name.find(">(")
        out[i] = name[: cut + 1] if cut >= 0 else name.split("(")[0]
    return out


def kernels_of(path, arch):
    sass = run(cuobjdump(), "-sass", "-arch", "sm_" + arch, path)
    usage = run(cuobjdump(), "--dump-resource-usage", "-arch", "sm_" + arch, path)
    resources = {}
    for name, registers_, shared in re.findall(r"Function (\S+):\s*\n\s*REG:(\d+).*?SHARED:(\d+)", usage):
        resources[name] = (int(registers_), int(shared))
    sections = re.split(r"\n\s*Function : ", sass)[1:]
    names = [section.split("\n")[0].strip() for section in sections]
    for name, short, section in zip(names, demangle(names), sections):
        lines = re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?);", section)
        kernel = Kernel(short, lines)
        kernel.registers, kernel.shared = resources.get(name, (0, 0))
        yield kernel


# Threads of a block, and dynamic shared memory, as the launch code chooses them; the shapes are the benchmarks'. More
# than one entry where the block follows the shape.
LAUNCHES = [
    (r"^adamw_kernel", "any n", 256, 0),
    (r"^rmsnorm_forward_kernel<\w+, [48]>", "C=2048", 64, 0),
    (r"^rmsnorm_forward_kernel<\w+, [48]>", "C=4096", 128, 0),
    (r"^rmsnorm_backward_kernel<\w+, [48]", "C=2048", 128, 0),
    (r"^rmsnorm_backward_kernel<\w+, [48]", "C=4096", 256, 0),
    (r"^rmsnorm_dw_kernel", "any C", 512, 0),
    (r"^cross_entropy_kernel", "V=32000", 512, 0),
    (r"^cross_entropy_kernel", "V=128256", 1024, 131072),
    (r"^(swiglu|rope|embedding|cast|reduce_add|sum_rows|sum_squares)", "", 256, 0),
]


def occupancy(kernel, threads, dynamic, arch):
    warps = threads // 32
    by_registers = REGISTERS // (-(-kernel.registers * 32 // 256) * 256 * warps)
    shared = kernel.shared + dynamic + (1024 if arch == "80" else 0)  # on sm_90 cuobjdump's figure has the driver's KiB
    return min(by_registers, THREADS // threads, BLOCKS, SHARED[arch] // shared if shared else BLOCKS)


def counts(counter):
    return " ".join(f"{n}x{b}" for b, n in sorted(counter.items(), reverse=True)) or "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["build"])
    parser.add_argument("--arch", default="90a", choices=sorted(SHARED))
    parser.add_argument("--match", default="", help="only instances whose name matches")
    options = parser.parse_args()
    files = []
    for path in options.paths:
        files += [path] if path.endswith(".o") else sorted(
            f for f in glob.glob(path + "/cuda*/kernels/*.cu.o") if not re.search(r"attention|gemm", f))
    if not files:
        sys.exit("kernel_sass.py: no objects; run make where nvcc is")
    print(f"sm_{options.arch}. Loads, stores: number x bytes. In flight: bytes of loads before the first is waited for.\n")
    print("| kernel | loads | stores | registers | in flight, thread | block, at | blocks per SM | in flight, SM KiB "
          "| instructions per 16 bytes | MUFU per 16 bytes | barriers |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for file in files:
        for k in kernels_of(file, options.arch):
            if not re.search(options.match, k.name) or not (k.loads or k.stores):
                continue
            launches = [(what, t, s) for pattern, what, t, s in LAUNCHES if re.search(pattern, k.name)] or [("", 0, 0)]
            for what, threads, dynamic in launches:
                blocks = occupancy(k, threads, dynamic, options.arch) if threads else 0
                fly = f"{k.peak * threads * blocks / 1024:.0f}" if threads else ""
                per16 = f"{16 * k.instructions / k.moved:.1f}" if k.moved else ""
                mufu = f"{16 * k.mufu / k.moved:.1f}" if k.moved else ""
                print(f"| {k.name} | {counts(k.loads)} | {counts(k.stores)} | {k.registers} | {k.peak} | {threads}"
                      f"{', ' + what if what else ''} | {blocks} | {fly} | {per16} | {mufu} | {k.barriers} |")


if __name__ == "__main__":
    main()
