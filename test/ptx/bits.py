#!/usr/bin/env python3
"""Do the compiled kernels leave the same bits as their source in the emulator?

bits.py EMULATOR PTX     two files that the kernel tests have written (KERNEL_BITS)

Kernels that only move, compare, add or convert must: their tests are named below. nvcc fuses a product and a sum into one
instruction, g++ does not; exponentials and roots are approximate in one and exact in the other: there the tests' tolerances
hold. Prints how many tests of each suite agree; exits 1 if one differs that must not, or if one of those did not run.
"""

import collections
import re
import sys

EQUAL = [
    r"AbsMax\..*",
    r"Argmax(Test)?\..*",
    r"BitSumTest\..*",
    r"CopyRows.*",
    r"Elementwise\..*",
    r"Embedding.*",
    r"FoldScales\..*",
    r"LossScaleUpdate\..*",
    r"Quantise.*",
    r"Transpose8\..*",
    r"VocabArgmax\..*",
]


def read(path):
    with open(path, encoding="utf-8") as file:
        return {name: (copies, bits) for name, copies, bits in (line.rstrip("\n").split("\t") for line in file)}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, compiled = read(sys.argv[1]), read(sys.argv[2])
    same, all_tests, wrong = collections.Counter(), collections.Counter(), []
    for name in sorted(source.keys() & compiled.keys()):
        suite = re.sub(r"^.*/(?=.*\.)|/\d+$", "", name)
        all_tests[suite] += 1
        same[suite] += source[name] == compiled[name]
        if source[name] != compiled[name] and any(re.fullmatch(e, suite) for e in EQUAL):
            wrong.append(name)
    for suite, n in sorted(all_tests.items(), key=lambda x: (-same[x[0]] / x[1], x[0])):
        must = any(re.fullmatch(e, suite) for e in EQUAL)
        print(f"{same[suite]:4} of {n:4} {'equal, must be' if must else 'equal'}   {suite}")
    print(f"{sum(same.values())} of {sum(all_tests.values())} tests leave the same bits")
    missing = [e for e in EQUAL if not any(re.fullmatch(e, suite) for suite in all_tests)]
    for name in wrong:
        print(f"bits.py: {name} leaves other bits on PTX than in the emulator")
    for e in missing:
        print(f"bits.py: no test called {e} ran in both")
    sys.exit(bool(wrong or missing))


main()
