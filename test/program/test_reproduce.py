#!/usr/bin/env python3
"""Published results, as make reproduce gets them, with one seed: nanoGPT's configuration on tiny-shakespeare, whose text comes from
$TINYSHAKESPEARE or the network, and associative recall. Ends with counts.

TINYSHAKESPEARE=input.txt test/program/test_reproduce.py ./train_llama
"""

import os

from checks import arguments, end, expect, remove, run, said, skip, work

text = os.environ.get("TINYSHAKESPEARE", "")


def reproduced(what, only, says, *more, **env):
    command = f"dev/run/reproduce.py --program {arguments[0]} --seeds 1 --out {work}/{only} --only {only}"
    expect(what, run(command, *more, limit=900, env=env), says=says)


reproduced("recall", "recall", r"^\| recall .*at least 99\.[0-9]+ % right")
if text or run("python3 data_prep/prepare.py shakespeare --quiet --out", work / "probe").code == 0:
    found = r"^\| shakespeare .*\| 1\.6[678][0-9] nats \|"  # well below the published 1.88
    reproduced("tiny-shakespeare", "shakespeare", found, ["--text", text] if text else [])
else:
    skip(f"tiny-shakespeare: {said('.*$')}")
remove(work / "shakespeare")
reproduced("without the text", "shakespeare", r"\| skipped: no text", https_proxy="http://127.0.0.1:9")
end()
