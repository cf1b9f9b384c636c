#!/usr/bin/env python3
"""What the compiled memory-bound kernels do per thread, from the built objects: needs no GPU.

  dev/gpu/kernel_sass.py [BUILD | FILE.cu.o ...] [--arch 90a] [--all REGEX]    BUILD: default build

For each kernel at the benchmarks' shapes: how many global loads and stores of which width stand in its code; and on one
way through it (Kernel.walk: loop bodies once) how many bytes of loads are under way at most while none of them is waited
for, what that makes per multiprocessor with the blocks that registers and shared memory allow, and how many instructions
and MUFU operations there are to 16 bytes. Needs cuobjdump (CUDA Toolkit; $CUOBJDUMP names another) and c++filt.
"""
import argparse
import collections
import re
import sys

from sass import functions, objects_of, print_head, print_row, resources

WIDTH = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
REGISTERS, THREADS, BLOCKS, SHARED = 65536, 2048, 32, {"80": 164 << 10, "90a": 228 << 10}


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
            opcode, _, operands = text.partition(" ")
            code.append((at, bool(guarded), opcode, operands))
        last_exit = max((at for at, _, opcode, _ in code if opcode.startswith("EXIT")), default=0)
        for at, _, opcode, _ in code:
            if at > last_exit:
                break
            self.stores[width(opcode)] += opcode.startswith("STG")
            self.loads[width(opcode)] += bool(re.match(r"LDG(STS)?\.", opcode))
            self.barriers += opcode.startswith("BAR.SYNC")
        self.loads, self.stores = +self.loads, +self.stores
        pending = {}
        for at, opcode, operands in self.walk(code):
            self.instructions += 1
            self.mufu += opcode.startswith("MUFU")
            load = re.match(r"LDG(STS)?\.", opcode)
            # A destination is overwritten only after its load has arrived, so it counts as a read too
            reads = registers(operands.partition(",")[2] if load else operands)
            for key in [k for k, (_, destination) in pending.items() if destination & reads]:
                del pending[key]
            if load or opcode.startswith("STG"):
                self.moved += width(opcode)
            if load:
                first = int(re.match(r"R(\d+)", operands).group(1)) if operands.startswith("R") else -1
                wide = 0 if load.group(1) else max(1, width(opcode) // 4)  # cp.async has no register
                pending[at] = (width(opcode), set(range(first, first + wide)))
                self.peak = max(self.peak, sum(b for b, _ in pending.values()))

    @staticmethod
    def walk(code):
        """The instructions on one way through the kernel, the way that most threads take: every loop body once; of a
        forward branch the side that moves data, computes a MUFU or meets a barrier, else the one that skips more"""
        index = {at: i for i, (at, _, _, _) in enumerate(code)}
        hot = [bool(re.match(r"(STG|LDG|LDGSTS).*\.128|STG.*\.64|MUFU|BAR\.SYNC", opcode)) for _, _, opcode, _ in code]
        i, seen = 0, set()
        while i < len(code) and i not in seen:
            seen.add(i)
            at, guarded, opcode, operands = code[i]
            yield at, opcode, operands
            target = re.search(r"0x([0-9a-f]+)", operands) if re.match(r"BRA\b", opcode) else None
            to = index.get(int(target.group(1), 16)) if target else None
            i += 1
            if opcode.startswith("EXIT") and not guarded:
                break
            guarded = guarded or bool(re.match(r"!?U?P\d", operands))
            if to is not None and (not guarded or (to > i and not any(hot[i:to]))):
                i = to


def kernels_of(path, arch):
    used = {name: numbers for of, name, numbers in resources(path) if of == arch}
    for name, short, code in functions(path, arch):
        kernel = Kernel(short, code)
        kernel.registers, kernel.shared = used[name]["REG"], used[name]["SHARED"]
        yield kernel


class Launch:
    """How an instance is launched at a benchmark's shape, as in the launch code: threads, blocks (0: as many as the
    device works on at a time) and dynamic shared memory"""

    def __init__(self, pattern, shape, threads, blocks, dynamic=0):
        self.pattern, self.shape, self.threads, self.blocks, self.dynamic = pattern, shape, threads, blocks, dynamic


LAUNCHES = [
    Launch("rmsnorm_forward_kernel<bf16, 8>", "8192x2048", 64, 8192),
    Launch("rmsnorm_forward_kernel<bf16, 8>", "8192x4096", 128, 8192),
    Launch("rmsnorm_forward_kernel<bf16, 8>", "4096x8192", 256, 4096),
    Launch("rmsnorm_backward_kernel<bf16, 8>", "8192x2048", 128, 0),
    Launch("rmsnorm_backward_kernel<bf16, 8>", "8192x4096", 256, 0),
    Launch("rmsnorm_backward_kernel<bf16, 8>", "4096x8192", 512, 0),
    Launch("rmsnorm_backward_kernel<bf16, 8>", "4096x16384", 512, 0),
    Launch("rmsnorm_dw_kernel<float>", "C=4096", 512, 128),
    Launch("swiglu_forward_kernel<bf16, 8>", "8192x14336", 256, 57344),
    Launch("swiglu_backward_kernel<bf16, 8>", "8192x14336", 256, 57344),
    Launch("rope_kernel<bf16, 8, false>", "8192 rows, 24 heads of 128", 256, 1536),
    Launch("embedding_forward_kernel<bf16, 8>", "8192x4096", 256, 4096),
    Launch("embedding_backward_kernel<bf16, float, 8>", "2500 tokens of 8192, C=4096", 256, 5000),
    Launch("cross_entropy_kernel<bf16>", "8192x32000", 512, 8192),
    Launch("cross_entropy_kernel<bf16>", "4096x128256", 1024, 4096, 8 * 16 * 1024),
    Launch("adamw_kernel<bf16, float, float, bf16, 4>", "1e9: 28 bytes each", 256, 488282),
    Launch("adamw_kernel<bf16, float, bf16, bf16, 4>", "1e9: 20 bytes each", 256, 488282),
    Launch("adamw_kernel<bf16, bf16, bf16, bf16, 8>", "1e9: 14 bytes each", 256, 488282),
    Launch("sum_squares_kernel<bf16>", "2.6e8: a unit of 1024 blocks", 256, 1024),
    Launch("reduce_add_kernel", "2.56e8", 256, 125000),
    Launch("sum_rows_kernel", "2.56e8", 256, 125000),
    Launch("cast_kernel", "2.56e8", 256, 125000),
]


class Device:
    """What a multiprocessor must keep under way for its share of the peak if every byte were a load (Little's law); and
    what it can issue while its share of a copy's bytes comes"""

    def __init__(self, name, multiprocessors, clock, peak, copy, latency):
        self.name, self.multiprocessors = name, multiprocessors
        self.need = peak * latency / multiprocessors
        bytes_per_clock = copy / multiprocessors / clock
        self.issue = 4 * 32 * 16 / bytes_per_clock  # instructions per thread and 16 bytes, four schedulers
        self.mufu = 16 * 16 / bytes_per_clock       # MUFU operations per thread and 16 bytes, 16 lanes


DEVICES = {
    "90a": Device("H200", 132, 1.83e9, 4.8e12, 4.3e12, 700e-9),
    "80": Device("A100 80 GB", 108, 1.41e9, 2.04e12, 1.8e12, 600e-9),
}


def occupancy(kernel, launch, arch):
    warps = launch.threads // 32
    by_registers = REGISTERS // (-(-kernel.registers * 32 // 256) * 256 * warps)
    shared = kernel.shared + launch.dynamic + (1024 if arch == "80" else 0)  # on sm_90 the figure has the driver's KiB
    return min(by_registers, THREADS // launch.threads, BLOCKS, SHARED[arch] // shared if shared else BLOCKS)


def counts(counter):
    return " ".join(f"{n}x{b}" for b, n in sorted(counter.items(), reverse=True)) or "-"


def table(kernels, arch):
    device = DEVICES[arch]
    print(f"sm_{arch}, for one {device.name}: {device.need / 1024:.0f} KiB of loads under way per multiprocessor would do")
    print(f"if all bytes were loads; {device.issue:.0f} instructions and {device.mufu:.1f} MUFU operations per thread fit")
    print("into the time of 16 bytes.\n")
    print_head(["kernel", "shape", "loads, stores", "registers", "threads", "blocks per SM", "waves", "under way per thread",
                "per SM, KiB", "instructions per 16 bytes", "MUFU", "barriers"])
    for launch in LAUNCHES:
        for k in (k for k in kernels if k.name == launch.pattern):
            blocks = occupancy(k, launch, arch)
            grid = launch.blocks or blocks * device.multiprocessors
            waves = grid / (blocks * device.multiprocessors)
            under_way = k.peak * launch.threads * min(blocks, grid / device.multiprocessors)
            each = 16 * k.instructions / k.moved
            mufu = 16 * k.mufu / k.moved
            print_row([k.name, launch.shape, f"{counts(k.loads)}, {counts(k.stores)}", k.registers, launch.threads, blocks,
                       f"{waves:.2f}", k.peak, f"{under_way / 1024:.0f}", f"{each:.0f}: {100 * each / device.issue:.0f} %",
                       f"{mufu:.1f}: {100 * mufu / device.mufu:.0f} %", k.barriers])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["build"])
    parser.add_argument("--arch", default="90a", choices=sorted(SHARED))
    parser.add_argument("--all", metavar="REGEX", help="every instance that matches, without a launch's shape")
    options = parser.parse_args()
    files = []
    for path in options.paths:
        files += [path] if path.endswith(".o") else sorted(objects_of(path))
    if not files:
        sys.exit("kernel_sass.py: no objects; run make where nvcc is")
    kernels = [k for file in files for k in kernels_of(file, "sm_" + options.arch)]
    if options.all is None:
        table(kernels, options.arch)
        return
    print_head(["kernel", "loads, stores", "registers", "under way per thread", "instructions per 16 bytes", "MUFU", "barriers"])
    for k in kernels:
        if re.search(options.all, k.name) and k.moved:
            print_row([k.name, f"{counts(k.loads)}, {counts(k.stores)}", k.registers, k.peak,
                       f"{16 * k.instructions / k.moved:.1f}", f"{16 * k.mufu / k.moved:.1f}", k.barriers])


if __name__ == "__main__":
    main()
