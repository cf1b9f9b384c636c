#!/usr/bin/env python3
"""The exercise of dev/guide/contribute.md, done by a patch in a copy of this tree: a new flag takes at most five files.

test/program/test_exercise.py build/cuda      (the objects that the copy is built from)
"""

import json
import pathlib
import re

from checks import ROOT, arguments, check, end, equal, expect, run, work

objects = pathlib.Path(arguments[0]).relative_to(ROOT)
patch = ROOT / "test/program/exercise_flag.patch"
tree = work / "copy"
tree.mkdir()
copied = """set -eo pipefail
{ git ls-files -z 2> /dev/null || find . -path ./build -prune -o -type f -print0; } |
    tar -c --null -T - --ignore-failed-read | tar -x -C "$2"
tar -c --exclude='*/test/*' --exclude='*test_*' --exclude=unit_tests "$1" build/*.* | tar -x -C "$2"
"""
expect("a copy of the tree", run(["bash", "-c", copied, "copied", objects, tree]))
touched = re.findall(r"^\+\+\+ .*", patch.read_text(), re.M)
check("the patch touches at most five files", 0 < len(touched) <= 5, touched)
expect("  and applies", run("patch -p1 -s --no-backup-if-mismatch -i", patch, cwd=tree))
program = tree / "train_llama"
program.unlink(missing_ok=True)
expect("it builds", run("make -j2 train_llama", cwd=tree, limit=1000))
expect("its test compiles", run("g++ -std=c++20 -I. -fsyntax-only test/llama/test_plan.cpp", cwd=tree))
expect("--help has it", run(program, "--help reserve-mib"), says="^--reserve-mib N=0")


def outside(*flags):
    """Bytes of a GPU that the plan leaves to others."""
    told = run(program, "plan --gpus 1 --gpu h100-80g --data synthetic --json -", *flags).text
    return json.JSONDecoder().raw_decode(told[told.index("{") :])[0]["outside_ledger"][1]


equal("plan counts it", outside("--reserve-mib 1024") - outside(), 1 << 30)
tiny = f"""--data synthetic --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --ffn 16 --batch 1 --seq-len 16 --threads 1 --device cpu
    --val-every 0 --val-tokens 16 --save-every 1 --out {work}/run""".replace("\n", " ")
expect("a run has it", run(program, tiny, "--steps 1 --reserve-mib 7"))
expect("a resumed run takes it", run(program, tiny, "--steps 2 --resume auto --allow-lr-jump"))
settings = (work / "run/config.toml").read_text()
check("  and config.toml has it", re.search("^reserve-mib = 7", settings, re.M), settings)
(work / "wrong.toml").write_text("reserve-mib = -1\n")
refused = run(program, "--config", work / "wrong.toml")
expect("a file may have it, within its range", refused, 2, "nearest valid value: 0")
end()
