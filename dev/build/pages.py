#!/usr/bin/env python3
"""Compares what pages say with what the program says: make pages

    <!-- from: ./train_llama plan --gpus 8 ... -->50.0 GiB, 4.2 s a step<!-- /from -->
        Each number between the marks, with its unit, stands in what the command prints.
    <!-- from: COMMAND --> and <!-- /from --> around a block in ```
        The block is what the command prints, but for lines "$ COMMAND"; a line of three dots stands for any lines.

    <!-- from: COMMAND --> in a picture (.svg)
        The picture is what the command prints.

Marks are comments of Markdown, which readers do not see. Commands run in the top folder, each once; a page without marks
is left alone. Measured figures have a date and stand outside.

    dev/build/pages.py [PAGE...]        default: all pages of the repository. Ends with "N passed, N failed".
"""

import os
import re
import subprocess
import sys

MARK = re.compile(r"<!-- from: (.*?) -->(.*?)<!-- /from -->", re.S)
DRAWN = re.compile(r"<!-- from: (.*?) -->")
NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)(?: ?(%|[TGMK]iB|TFLOP/s|tokens/s|ms|s)(?![\w/]))?")
said = {}


def printed(command):
    if command not in said:
        environment = {**os.environ, "RINGZERO_RUNS": "", "COLUMNS": "120"}
        run = subprocess.run(command, shell=True, text=True, capture_output=True, timeout=100, env=environment)
        said[command] = run.stdout + run.stderr
    return said[command]


def numbers(text):
    return {(value.replace(",", ""), unit) for value, unit in NUMBER.findall(text)}


def wrong_block(block, output):
    want = [line for line in block.strip().split("\n")[1:-1] if not line.startswith("$ ")]
    pattern = "".join("(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + " *\n" for line in want)
    return "" if re.fullmatch(pattern, output.rstrip() + "\n") else "prints\n" + output


def wrong_numbers(text, output):
    known = numbers(output)
    values = {value for value, _ in known}
    asked = numbers(text)
    if not asked:
        return "has no number between its marks"
    bad = [f"{v} {u}".strip() for v, u in sorted(asked) if (v not in values if not u else (v, u) not in known)]
    return f"does not print {', '.join(bad)}; it prints\n{output}" if bad else ""


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    listed = subprocess.run(["git", "ls-files", "*.md", "*.svg"], capture_output=True, text=True, check=True).stdout
    pages = sys.argv[1:] or listed.split()
    passed = failed = 0
    for page in pages:
        with open(page) as f:
            text = f.read()
        if page.endswith(".svg"):
            if command := DRAWN.search(text):
                wrong = printed(command[1]) != text
                passed, failed = passed + (not wrong), failed + wrong
                if wrong:
                    print(f"FAILED: {page} is not what {command[1]} prints")
            continue
        marks = list(MARK.finditer(text))
        if len(marks) != text.count("<!-- from: "):
            failed += 1
            print(f"FAILED: {page}: a mark has no end")
        for mark in marks:
            command, between = mark.group(1).strip(), mark.group(2)
            wrong = (wrong_block if between.strip().startswith("```") else wrong_numbers)(between, printed(command))
            passed, failed = passed + (not wrong), failed + bool(wrong)
            if wrong:
                line = text.count("\n", 0, mark.start()) + 1
                print(f"FAILED: {page}:{line}: {command}\n  {wrong.rstrip()}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
