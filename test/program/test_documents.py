#!/usr/bin/env python3
"""--doc-mask in the whole program: any number of ranks and ZeRO stage, recomputation, bf16, resume, and with a second
program the CUDA path on the emulator. Ends with counts.

    test/program/test_documents.py ./train_llama [./train_llama_simt]
"""

import struct

from checks import Table, arguments, check, documents, end, rows, work

documents(work / "text.bin")
MODEL = f"""--train-data {work}/text.bin --vocab 257 --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8
    --seq-len 48 --val-every 0 --steps 5 --save-every 3 --lr 5e-3 --warmup 1 --logits-mib 1 --dtype fp32"""
MASK = "--doc-mask bos --doc-token 256"
train = Table(arguments[0], f"{MODEL} --device cpu", bounds={"loss": 1e-6, "norm": 1e-5})

train(f"""
    one          1 {MASK} --batch 8
    plain        1 --batch 8
    tiles        1 {MASK} --batch 4 --seq-len 192 --max-seq-len 192 --data-order sequential --steps 1
    accumulated  1 {MASK} --batch 2 --grad-accum 4 | close to one
    block        1 {MASK} --batch 8 --recompute block | weights of one
    mlp          1 {MASK} --batch 8 --recompute mlp | weights of one
    zero0        4 {MASK} --batch 2 --zero 0 | close to one
    zero1        4 {MASK} --batch 2 --zero 1 | close to one
    zero2        4 {MASK} --batch 2 --zero 2 | close to one
    zero3        4 {MASK} --batch 2 --zero 3 | close to one
    tp           2 {MASK} --batch 8 --tp 2 | close to one loss=1e-5 norm=1e-4
    pp           2 {MASK} --batch 2 --grad-accum 4 --pp 2 | close to one
    bf16         1 {MASK} --batch 8 --dtype bf16 | close to one loss=4e-3 norm=4e-2
    resumed      1 --resume 3 | from one to 3 | weights of one
""")

one, plain = rows("one"), rows("plain")
# Documents of 22 tokens on average in rows of 48, cut at the ends: their squares are about half of 48 squared.
check("attention's share is told", all(0.3 < row["attention_share"] < 0.8 for row in one), one)
check("  only with a mask", "attention_share" not in plain[0] and one[0]["loss"] != plain[0]["loss"], plain[0])
per_token = [row["flops"] / row["tokens_per_second"] for row in (one[0], plain[0])]
attention = 6 * 2 * 32 * 48
left_out = (1 - one[0]["attention_share"]) * attention
check("  and counts in FLOPs", abs(per_token[1] - per_token[0] - left_out) < 1e-3 * attention, per_token)


def tiles_of(ids):
    """Tiles of 64 x 64 of four rows of 192, and those that no token of theirs attends to."""
    tiles = skipped = 0
    for row in range(0, 768, 192):
        start = [max([0] + [s for s in range(1, t + 1) if ids[row + s] == 256]) for t in range(192)]
        for q in range(0, 192, 64):
            for k in range(0, q + 1, 64):
                tiles += 1
                skipped += not any(start[t] <= s <= t for t in range(q, q + 64) for s in range(k, k + 64))
    return tiles, skipped


wanted = tiles_of(struct.unpack("<768H", (work / "text.bin").read_bytes()[1024 : 1024 + 2 * 768]))
(step,) = rows("tiles")
told = step["attention_tiles"], step["attention_tiles_skipped"]
check("tiles that attention skips are told", told == wanted and wanted[1] > 0, f"{told} {wanted}")

if len(arguments) > 1:
    narrow = f"{MASK} --batch 8 --dtype bf16 --head-dim 64 --heads 2 --kv-heads 1"
    emulated = Table(arguments[1], f"{MODEL} --device cuda", bounds={"loss": 1e-4, "norm": 1e-3})
    train(f"cpu16 1 {narrow}")
    emulated(f"simt 1 {MASK} --batch 8 | close to one")
    emulated(f"simt16 1 {narrow} | close to cpu16 loss=4e-3 norm=4e-2")
end()
