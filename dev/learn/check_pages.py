#!/usr/bin/env python3
"""Keeps dev/learn/ honest: what its pages name exists, and each hole of a lesson has two halves.

  dev/learn/check_pages.py      from the top of the project; prints "N passed, N failed"

In a page, a path in backquotes is a file or folder of the project. In a line  - `path`: `name`, `name` - ...  every name
stands in that file as a whole word. A flag (--like-this) is one of ./train_llama's, and make targets are the Makefile's.
"""

import glob
import os
import re
import subprocess
import sys

ROOMS = ("llama/", "kernels/", "comm/", "zero/", "dev/", "data_prep/", "test/", "train_llama.cu", "Makefile", "README.md")
MADE = ("build/", "runs/", "data/")  # what commands make
SECTIONS = ("## The idea", "## Key insight", "## Depends on", "## In the code", "## Exercise")
passed, failed = 0, 0


def expect(good, text):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAILED: {text}")


HOLE = r"// >>> hole[^\n]*\n(?: *//[^\n]*\n)*#ifdef HOLE\n(.*?)#else\n(.*?)#endif\n *// <<<\n"


def check_holes(folder):
    (path,) = glob.glob(f"{folder}/lesson.c*")
    with open(path) as f:
        text = f.read()
    holes = re.findall(HOLE, text, re.S)
    marks = {text.count(mark) for mark in ("// >>> hole", "#ifdef HOLE", "// <<<")}
    expect(holes and marks == {len(holes)}, f"{path}: holes, their halves and their ends do not pair up")
    expect(all(hole != answer for hole, answer in holes), f"{path}: a hole has its solution in it")


def words_of(path):
    with open(path, errors="replace") as f:
        return set(re.findall(r"\w+", f.read()))


def check_names(page, text, flags, targets):
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for name in re.findall(r"`([^`\n]+)`", text):
        path = name.split(" ")[0].split(":")[0]
        if path.startswith(ROOMS) and not path.startswith(MADE) and not re.search(r"[*{<]", path):
            expect(os.path.exists(path), f"{page}: {path} does not exist")
    for path, names in re.findall(r"^ *- `([^`\n]+)`: ((?:`[^`\n]+`(?:, )?)+)", text, re.M):
        if not os.path.isfile(path):
            expect(False, f"{page}: {path} is no file")
            continue
        words = words_of(path)
        for name in re.findall(r"`([^`]+)`", names):
            parts = re.findall(r"\w+", name)
            expect(parts and all(p in words for p in parts), f"{page}: {path} has no {name}")


def check_commands(page, text, flags, targets):
    for line in re.findall(r"(?:\./|^|mpirun -n \d+ \./)train_llama( [^|`\n]*)", text, re.M):
        if "train_llama.c" in line or "/learn/" in line:
            continue
        for flag in re.findall(r" --([a-z][a-z0-9-]*)", line):
            expect(flag in flags, f"{page}: train_llama has no --{flag}")
    for name in re.findall(r"`(--[a-z][a-z0-9-]*)[^`]*`", text):
        expect(name[2:] in flags, f"{page}: train_llama has no {name}")
    for target in re.findall(r"\bmake ([a-z][a-z-]+)(?=[ `\n])", re.sub(r"[.:,;](?= )", "", "\n".join(
            re.findall(r"`(make [^`\n]*)`", text)) + "\n")):
        expect(target in targets, f"{page}: make has no target {target}")


def check_links(page, text):
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", link):
            path = os.path.join(os.path.dirname(page), link.split("#")[0])
            expect(os.path.exists(path), f"{page}: the link to {link} leads nowhere")


def main():
    flags, commands = set(), [[]]
    for command in commands:
        text = subprocess.run([os.environ.get("PROGRAM", "./train_llama"), *command, "--help-all"], capture_output=True, text=True).stdout
        if not command:
            commands += [[name] for name in re.findall(r"^  ([a-z]+) ", text.split("\nCommands:")[-1], re.M)]
        flags |= set(re.findall(r"^ *(?:-\w,)?--([a-z][a-z0-9-]*)", text, re.M))
        flags |= {f"no-{switch}" for switch in re.findall(r"^ *--([a-z][a-z0-9-]*) on\|off", text, re.M)}
    expect(len(flags) > 50 and len(commands) > 2, f"--help: {len(flags)} flags, {len(commands) - 1} subcommands")
    with open("Makefile") as f, open("dev/learn/learn.mk") as g:
        rules = f.read() + g.read()
    targets = {t for line in re.findall(r"^([a-z][a-z -]*):", rules, re.M) for t in line.split()}

    lessons = sorted(glob.glob("dev/learn/[0-9][0-9]_*"))
    expect(len(lessons) == 25, f"{len(lessons)} lessons, 25 expected")
    with open("dev/learn/README.md") as f:
        index = f.read()
    for folder in lessons:
        check_holes(folder)
        with open(f"{folder}/README.md") as f:
            text = f.read()
        for section in SECTIONS:
            expect(section in text, f"{folder}/README.md has no section {section}")
        expect("![" in text and "](picture.svg)" in text, f"{folder}/README.md does not show picture.svg")
        number = int(os.path.basename(folder)[:2])
        expect(f"make lesson N={number}\n" in text, f"{folder}/README.md does not say: make lesson N={number}")
        expect(os.path.basename(folder) + "/README.md" in index, f"dev/learn/README.md does not link {folder}")
    for page in sorted(glob.glob("dev/learn/**/*.md", recursive=True)):
        with open(page) as f:
            text = f.read()
        check_names(page, text, flags, targets)
        check_commands(page, text, flags, targets)
        check_links(page, text)
    drawn = subprocess.run([sys.executable, "dev/learn/draw.py", "--check"], capture_output=True, text=True)
    expect(drawn.returncode == 0, drawn.stdout + drawn.stderr)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
