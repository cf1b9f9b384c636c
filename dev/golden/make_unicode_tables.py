#!/usr/bin/env python3
"""Writes llama/tokenizer/unicode_tables.cpp: which code points are letters (L*) and numbers (N*); and nfc_tables.cpp, what normalisation
reads: canonical decompositions, whether they are composed again, and combining classes. Hangul is arithmetic, in unicode.cpp.

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


def decompositions():
    for c in range(0x110000):
        parts = unicodedata.decomposition(chr(c))
        if parts and not parts.startswith("<"):
            first, second = [*(int(x, 16) for x in parts.split()), 0][:2]
            yield f"{{0x{c:x}, 0x{first:x}, 0x{second:x}, {int(unicodedata.normalize('NFC', chr(c)) == chr(c))}}}"


def combining():
    found = []
    for c in range(0x110000):
        k = unicodedata.combining(chr(c))
        if k and found and found[-1][1:] == [c - 1, k]:
            found[-1][1] = c
        elif k:
            found.append([c, c, k])
    return [f"{{0x{a:x}, 0x{b:x}, {k}}}" for a, b, k in found]


def table(name, category):
    return rows("CodeRange", name, [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(category)])


def rows(kind, name, cells):
    lines, line = [], ""
    for cell in cells:
        if len(line) + len(cell) + 2 > 114:
            lines.append(line)
            line = ""
        line += cell + ", "
    body = "\n".join("    " + text.rstrip() for text in [*lines, line])
    return f"const {kind} {name}[] = {{\n{body}\n}};\nconst int {name}Size = {len(cells)};\n"


def write(name, *tables):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "llama", "tokenizer", name)
    with open(path, "w") as f:
        f.write(f"// Written by dev/golden/make_unicode_tables.py from Unicode {unicodedata.unidata_version}. Do not edit.\n"
                "// clang-format off\n"
                '#include "llama/tokenizer/unicode.h"\n\nnamespace rz::unicode {\n\n'
                + "\n".join(tables) + "\n}  // namespace rz::unicode\n")


def main():
    write("unicode_tables.cpp", table("kLetters", "L"), table("kNumbers", "N"))
    write("nfc_tables.cpp", rows("Decomposition", "kDecompositions", list(decompositions())), rows("CombiningRange", "kCombining", combining()))


if __name__ == "__main__":
    main()
