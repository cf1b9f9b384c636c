#!/usr/bin/env python3
"""Writes BUILD/compile_commands.json from the commands that `make -nB V=1` prints.

    make -nB V=1 PCH=0 train_llama | dev/build/compile_commands.py BUILD
"""

import json
import os
import shlex
import sys


def entries(lines):
    for line in lines:
        words = shlex.split(line, comments=True) if " -c -o " in line else []
        if words and words[-1].endswith((".cpp", "train_llama.cu")):
            yield {"directory": os.getcwd(), "file": words[-1], "arguments": words}


if __name__ == "__main__":
    (build,) = sys.argv[1:]
    found = list(entries(sys.stdin))
    if not found:
        sys.exit("compile_commands.py: no command that compiles was read")
    path = os.path.join(build, "compile_commands.json")
    with open(path + ".tmp", "w") as f:
        json.dump(found, f, indent=1)
    os.replace(path + ".tmp", path)
    print(f"{path}: {len(found)} sources")
