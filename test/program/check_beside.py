#!/usr/bin/env python3
"""Holds dev/notes/beside-others.md against the program:   test/program/check_beside.py ./train_llama [PAGE]

Our cell of a row is "no", or "yes" and a flag that --help-all has; rows with "no" come first. Every cell of another trainer names a file or a
word in backticks, every column of one a commit and its date. Ends with 1 and the rows that do not.
"""

import pathlib
import re

from checks import ROOT, arguments, check, end, run


def problems(page, flags):
    lines = (line.strip().strip("|") for line in page.splitlines() if line.startswith("|"))
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    head, rows = rows[0], rows[2:]
    for column in head[2:]:
        if not re.search(r"\(https://\S+\) [0-9a-f]{7}, 20\d\d-\d\d-\d\d$", column):
            yield f"{column}: no address, commit and date"
    if len(rows) < 10:
        yield f"only {len(rows)} rows"
    for before, (what, ours, *others) in zip([["", "no"], *rows], rows):
        if len(others) != len(head) - 2:
            yield f"{what}: {len(others)} cells of others"
        flag = re.fullmatch(r"yes `(--[a-z0-9-]+)`", ours)
        if ours != "no" and not (flag and flag[1] in flags):
            yield f"{what}: {ours}: neither no nor yes and a flag that there is"
        if ours == "no" and before[1] != "no":
            yield f"{what}: what we have not comes first"
        yield from (f"{what}: {cell}: no source" for cell in others if not re.search(r"\(`[^`]+`", cell))


program, *named = arguments
flags = set(re.findall(r"^ *(--[a-z0-9-]+)", run([program], "--help-all").text, re.M))
page = pathlib.Path(*named or [ROOT / "dev/notes/beside-others.md"]).read_text(encoding="utf-8")
found = list(problems(page, flags))
print(len(set(re.findall(r"\| yes `(--[a-z0-9-]+)` \|", page))), "flags of ours")
check("every yes has its flag, every cell its source", not found, "\n".join(found))
end()
