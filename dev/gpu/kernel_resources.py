#!/usr/bin/env python3
"""Registers, shared memory and stack of every kernel as it was compiled, from the built objects: needs no GPU.

  dev/gpu/kernel_resources.py [BUILD] [--all]     BUILD: default build; --all: a line per instance, else the worst of each kernel

Names every kernel that has a stack frame, and says what its machine code does with it: registers that spilled, or an array
that no register could hold. Exit code 1 if one has more than stands in ALLOWED. Shared memory on sm_90 includes the KiB
that the driver keeps. A kernel that a run-time check leaves empty on an architecture (4 registers or so) is not shown
there. Needs cuobjdump and nvdisasm (CUDA Toolkit) and c++filt; $CUOBJDUMP names another.
"""
import os
import re
import sys

from sass import cuobjdump, demangle, objects_of, print_head, print_row, resources

OFF = "a Hopper runs it only where its own kernel is turned off"
SCALARS = "no tensor cores, and no registers beyond these for its many threads"
ALLOWED = {  # instance on architecture: bytes at most, why
    "attention_forward_mma_kernel<f16, 128, false> on sm_80": (16, "read once per tile of keys"),
    "attention_forward_mma_kernel<bf16, 128, false> on sm_80": (16, "read once per tile of keys"),
    "attention_forward_mma_kernel<f16, 128, false> on sm_90a": (64, OFF),
    "attention_forward_mma_kernel<bf16, 128, false> on sm_90a": (64, OFF),
    "attention_forward_mma_kernel<f16, 96, false> on sm_90a": (24, OFF),
    "attention_forward_mma_kernel<bf16, 96, false> on sm_90a": (24, OFF),
    "attention_backward_kv_kernel<f16, 128> on sm_80": (48, SCALARS),
    "attention_backward_kv_kernel<bf16, 128> on sm_80": (48, SCALARS),
    "attention_backward_kv_kernel<float, 128> on sm_80": (32, SCALARS),
    "attention_backward_q_kernel<f16, 64> on sm_80": (16, SCALARS),
    "attention_forward_kernel<float, 256> on sm_80": (24, SCALARS),
}


def use_of_stack(path, arch, name):
    """Stores and loads of local memory, and how many of them are at an address from a register"""
    code = cuobjdump("-sass", "-arch", arch, "-fun", name, path)
    if not re.search(r"/\*[0-9a-f]+\*/", code):
        return "what for is not known: no nvdisasm"
    found = re.findall(r"[ \t](STL|LDL)(.*)", code)
    stores = sum(op == "STL" for op, _ in found)
    moving = sum(not re.search(r"\[R1(\+0x[0-9a-f]+)?\]", operands) for _, operands in found)
    if moving:
        return f"{stores} stores and {len(found) - stores} loads, {moving} at an address from a register: an array"
    return f"registers that spilled: {stores} stores, {len(found) - stores} loads, all at fixed places"


def main():
    build = next((a for a in sys.argv[1:] if a != "--all"), "build")
    objects = objects_of(build)
    if not objects:
        print(f"kernel_resources.py: no {build}/cuda*/kernels/*.cu.o; run make where nvcc is", file=sys.stderr)
        return 2
    worst, known, bad = {}, [], []  # by kernel, file and architecture: instances, registers, shared memory, stack
    for path in objects:
        file, found = os.path.basename(path)[: -len(".cu.o")], [*resources(path)]
        for (arch, mangled, n), name in zip(found, demangle([name for _, name, _ in found])):
            if n["REG"] <= 8 and n["SHARED"] == 0 and file.startswith("attention"):
                continue  # empty on this architecture
            numbers = n["REG"], n["SHARED"], n["STACK"] + n["LOCAL"]
            row = worst.setdefault((name if "--all" in sys.argv else name.split("<")[0], file, arch), [0, 0, 0, 0])
            row[:] = row[0] + 1, *map(max, row[1:], numbers)
            if stack := numbers[-1]:
                most, why = ALLOWED.get(f"{name} on {arch}", (0, ""))
                line = f"{name} on {arch}: {stack} bytes at {n['REG']} registers; {use_of_stack(path, arch, mangled)}"
                line += f"; {why}" if why else ""
                (known if stack <= most else bad).append(line)
                if 0 < most < stack:
                    bad[-1] += f"; MORE than the {most} bytes that are known"
    if not worst:
        print("kernel_resources.py: no kernel was found")
        return 2
    print_head(["kernel", "file", "architecture", "instances", "registers", "static shared memory", "stack, local"])
    for key, numbers in worst.items():
        print_row([*key, *numbers])
    if known:
        print("\nKnown to have a stack frame:", *known, sep="\n")
    if bad:
        print("\nSPILLS, or arrays in local memory:", *bad, sep="\n")
        return 1
    print(f"\n{sum(row[0] for row in worst.values())} kernels, no other with a stack frame")
    return 0


if __name__ == "__main__":
    sys.exit(main())
