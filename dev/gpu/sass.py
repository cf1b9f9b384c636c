"""What the tools that read compiled kernels share: cuobjdump's output, the names of kernels, Markdown."""

import glob
import os
import re
import subprocess
import sys


def cuobjdump(*words):
    """Its output: nothing where the object has no code for the architecture."""
    tool = os.environ.get("CUOBJDUMP", "cuobjdump")
    try:
        return subprocess.run([tool, *words], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        print(f"{os.path.basename(sys.argv[0])}: {tool} is not there; it is in the CUDA Toolkit, and a PyPI package "
              "(nvidia-cuda-cuobjdump)", file=sys.stderr)  # fmt: skip
        sys.exit(2)


def objects_of(build):
    return [path for folder in ("*.cu.o", "*/*.cu.o") for path in sorted(glob.glob(f"{build}/cuda*/kernels/{folder}"))]


def demangle(names):
    """As the sources write them: rmsnorm_forward_kernel<bf16, 8>"""
    out = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True).stdout.splitlines() if names else []
    for name in out:
        name = re.sub(r"\(anonymous namespace\)::|rz::|^void |\(bool\)|\(int\)", "", name)
        name = name.replace("__nv_bfloat16", "bf16").replace("__half", "f16")
        cut = name.find(">(")
        yield name[: cut + 1] if cut >= 0 else name.split("(")[0]


def resources(path):
    """(architecture, mangled name, {"REG": number, ...}) of each kernel"""
    arch = ""
    for of, name, numbers in re.findall(r"^arch = (\S+)|Function (\S+):\s+(REG:.*)", cuobjdump("--dump-resource-usage", path), re.M):
        arch = of or arch
        if name:
            yield arch, name, {key: int(n) for key, n in re.findall(r"(\w+):(\d+)", numbers)}


def functions(path, arch):
    """(mangled name, name, [(address, instruction)]) of each kernel"""
    sections = re.split(r"\n\s*Function : ", cuobjdump("-sass", "-arch", arch, path))[1:]
    mangled = [section.split("\n")[0].strip() for section in sections]
    for name, short, section in zip(mangled, demangle(mangled), sections):
        yield name, short, [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,6})\*/\s+(.*?)\s*;", section)]


def print_row(cells):
    print("| " + " | ".join(f"{c:.0f}" if isinstance(c, float) else str(c) for c in cells) + " |")


def print_head(cells):
    print_row(cells)
    print("|" + "---|" * len(cells))
