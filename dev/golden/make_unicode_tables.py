#!/usr/bin/env python3
"""Writes llama/tokenizer/unicode_tables.cpp: which code points are letters (L*) and numbers (N*).

Uses unicodedata2 if it is installed, else Python's own tables. Hugging Face's tokenizers 0.23 follow Unicode 16.0:
    python3 -m pip install unicodedata2==16.0.0 && python3 dev/golden/make_unicode_tables.py
"""

import os

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata


def ranges(category):
    found = []
    for c in range(0x110000):
        if unicodedata.category(chr(c))[0] != category:
            continue
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def table(name, category):
    cells = [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(category)]
    lines, line = [], ""
    for cell in cells:
        if len(line) + len(cell) + 2 > 114:
            lines.append(line)
            line = ""
        line += cell + ", "
    body = "\n".join("    " + text.rstrip() for text in [*lines, line])
    return f"const CodeRange {name}[] = {{\n{body}\n}};\nconst int {name}Size = {len(cells)};\n"


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "llama", "tokenizer", "unicode_tables.cpp")
    with open(path, "w") as f:
        f.write(f"// Written by dev/golden/make_unicode_tables.py from Unicode {unicodedata.unidata_version}. Do not edit.\n"
                "// clang-format off\n"
                '#include "llama/tokenizer/unicode.h"\n\nnamespace rz::unicode {\n\n'
                + table("kLetters", "L") + "\n" + table("kNumbers", "N") + "\n}  // namespace rz::unicode\n")


if __name__ == "__main__":
    main()
