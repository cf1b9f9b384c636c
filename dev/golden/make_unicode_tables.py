#!/usr/bin/env python3
"""Writes llama/tokenizer/unicode_tables.cpp: which code points are letters (L*) and numbers (N*); and nfc_tables.cpp, what normalisation
reads: canonical decompositions, whether they are composed again, and combining classes. Hangul is arithmetic, in unicode.cpp.

Uses unicodedata2 if it is installed, else Python's own tables. Hugging Face's tokenizers 0.23 follow Unicode 16.0:
    python3 -m pip install unicodedata2==16.0.0 && python3 dev/golden/make_unicode_tables.py
"""

import itertools
import os

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata


def runs(value):
    """(first, last, value) of neighbouring code points with the same value, where it is not 0 or False."""
    for found, points in itertools.groupby(range(0x110000), lambda c: value(chr(c))):
        if found:
            points = list(points)
            yield points[0], points[-1], found


def decompositions():
    for c in range(0x110000):
        parts = unicodedata.decomposition(chr(c))
        if parts and not parts.startswith("<"):
            first, second = [*(int(x, 16) for x in parts.split()), 0][:2]
            yield f"{{0x{c:x}, 0x{first:x}, 0x{second:x}, {int(unicodedata.normalize('NFC', chr(c)) == chr(c))}}}"


def table(name, category):
    found = runs(lambda c: unicodedata.category(c)[0] == category)
    return rows("CodeRange", name, [f"{{0x{a:x}, 0x{b:x}}}" for a, b, _ in found])


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
    combining = [f"{{0x{a:x}, 0x{b:x}, {k}}}" for a, b, k in runs(unicodedata.combining)]
    write("unicode_tables.cpp", table("kLetters", "L"), table("kNumbers", "N"))
    write("nfc_tables.cpp", rows("Decomposition", "kDecompositions", list(decompositions())), rows("CombiningRange", "kCombining", combining))


if __name__ == "__main__":
    main()
