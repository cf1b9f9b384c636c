#!/usr/bin/env python3
"""One run at many layouts of ranks: the same tokens in each step, the same losses and norms within bounds; and each layout's
checkpoint resumed by every other one. Ends with counts. Part of make test-full: minutes.

    test/program/test_layouts.py ./train_llama
"""

from checks import Table, arguments, check, end, text_data, weights, work

# An update is 12 sequences at every layout, in micro-batches of one.
train = Table(
    arguments[0],
    f"""--data {text_data("200K")} --preset bytes --seq-len 24 --batch 1 --batch-tokens 288 --layers 4 --dim 32 --heads 4
    --kv-heads 2 --ffn 45 --head untied --device cpu --threads 1 --lr-schedule constant --warmup 0 --val-every 0 --val-tokens 48
    --keep 0 --timeout 60""",
)
LAYOUTS = [
    "1",
    "4 --tp 1 --zero 3",
    "4 --tp 2 --zero 1",
    "4 --tp 2 --pp 2",
    "8 --tp 2 --pp 2 --zero 3",
    "6 --pp 2 --zero 2 --shard-size 3",
    "4 --cp 2 --zero 2",
    "8 --cp 2 --tp 2 --pp 2 --pp-schedule 1f1b --recompute mlp",
]
MORE = """4 --tp 4
    8 --tp 4 --pp 2 --pp-schedule 1f1b
    6 --cp 3 --cp-exchange ring --zero 3
    8 --tp 2 --pp 2 --zero 0
    8 --tp 2 --pp 2 --zero 1
    8 --tp 2 --pp 2 --zero 2
    6 --pp 2 --zero 3 --shard-size 1
    8 --pp 4 --tp 2"""

# Eight steps; a checkpoint after the third, which the matrix below starts from.
for i, layout in enumerate(LAYOUTS):
    train(f"run{i} {layout} --steps 8 --save-every 3 | close to run0 first=1")
for layout in MORE.splitlines():
    train(f"other {layout} --steps 8 --save-every 0 | close to run0 first=1")
for i in range(len(LAYOUTS)):
    saved = work / f"run{i}/checkpoints/step_000000003"
    for j, layout in enumerate(LAYOUTS):
        train(f"loaded {layout} --save-every 0 --steps 3 --resume {saved}")
        final = work / "loaded/final/model.safetensors"
        check(f"run{i} loaded by {layout}", final.read_bytes() == (saved / "model.safetensors").read_bytes())
        train(f"resumed {layout} --save-every 0 --steps 8 --resume {saved} | close to run0 first=4")
        if i == j:
            check(f"run{i} resumed by itself, to the bit", weights("resumed") == weights(f"run{i}"))
end()
