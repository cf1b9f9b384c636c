#!/usr/bin/env python3
"""Context parallelism under mpirun, with ZeRO, documents, pipelines and tensor parallelism too: losses, norms and data of the same
run on one rank, bytes as predicted, checkpoints that any layout reads. Ends with counts.

    test/program/test_context.py ./train_llama [./train_llama_simt]      with the second the CUDA path on the emulator too
"""

import struct

from checks import Table, arguments, check, documents, end, equal, load, rows, sent_as_planned, work

documents(work / "text.bin")
MODEL = f"""--train-data {work}/text.bin --val-data {work}/text.bin --vocab 257 --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2
    --ffn 48 --head-dim 8 --seq-len 48 --batch 2 --threads 1 --steps 10 --lr-schedule constant --warmup 0 --save-every 5
    --val-every 5 --val-tokens 192 --timeout 60 --dtype fp32"""
train = Table(arguments[0], f"{MODEL} --device cpu", bounds={"loss": 1e-6, "norm": 1e-5})
MASK = "--doc-mask bos --doc-token 256"
RING = "--cp-exchange ring"

train(f"""
    one       1
    cp2       2 --cp 2 | close to one | says 2 ranks share each sequence: 2 of 4 chunks of 12 tokens on each
    cp3       3 --cp 3 | close to one
    cp4       4 --cp 4 | close to one
    cp4zero3  4 --cp 4 --zero 3 --recompute block | close to one
    parts     2 --cp 2 --batch 1 --grad-accum 2 | close to one
    dp2       2 --batch-tokens 192
    dp2zero0  4 --cp 2 --zero 0 --batch-tokens 192 | close to dp2
    dp2zero1  4 --cp 2 --zero 1 --batch-tokens 192 | close to dp2
    dp2zero2  4 --cp 2 --zero 2 --batch-tokens 192 | close to dp2
    dp2zero3  4 --cp 2 --zero 3 --batch-tokens 192 | close to dp2
    hybrid    4 --cp 2 --zero 2 --shard-size 2 --batch-tokens 192 | close to dp2
    ring2     2 --cp 2 {RING} | close to one
    ring3     3 --cp 3 {RING} | close to one
    ring4     4 --cp 4 {RING} | close to one
    texts     1 {MASK}
    texts4    4 --cp 4 --zero 2 {MASK} | close to texts
    texts4r   4 --cp 4 {RING} --zero 3 --recompute block {MASK} | close to texts
    window    1 --window 10
    window4   4 --cp 4 {RING} --window 10 | close to window
    window22  4 --cp 2 --tp 2 --window 10 | close to window
    both      1 --window 10 {MASK}
    both2     2 --cp 2 --zero 1 --window 10 {MASK} | close to both
    tp2cp2    4 --cp 2 --tp 2 | close to one
    micro     1 --grad-accum 4
    pp2cp2    4 --cp 2 --pp 2 --grad-accum 4 | close to micro
    bf16      1 --dtype bf16
    bf16cp2   2 --dtype bf16 --cp 2 | close to bf16 loss=4e-3 norm=4e-2
""")
losses = [[row["loss"] for row in rows(name)] for name in ("one", "texts", "window", "both")]
check("masks and windows give other losses", all(a != b for a in losses for b in losses if a is not b), losses)
# Before any update the ranks compute with the same weights: each token's loss has the bits of one rank with our own products.
first = [rows(name, "val_loss")[0] for name in ("cp4", "one")]
check(
    "the first validation, to the digit", first[0]["step"] == 0 and first[0]["val_loss"] == first[1]["val_loss"], first
)

# Targets that shards mark: their mean is of the whole update, however ranks share the sequences. Some rows have many, some none.
raw = (work / "text.bin").read_bytes()
(count,) = struct.unpack("<i", raw[8:12])
marks = bytearray((count + 7) // 8)
for i in range(count):
    marks[i // 8] |= (i % 97 < 30 and i % 5 > 0) << i % 8
(work / "marked.bin").write_bytes(struct.pack("<256i", 20240520, 1, count, 1, *[0] * 252) + raw[1024:] + marks)
MARKED = f"--train-data {work}/marked.bin --val-data {work}/marked.bin"
# Any layout resumes what any other saved. Norm, clipping, skips, replicas and slow ranks with a cp axis.
LATE = "--steps 8 --save-every 0 --val-every 0 | fault step:1:*:sleep=0.4 | says slow     rank 1 computes"
DIFFERS = r"fails | says step 3: .*rank [01] \(hash [0-9a-f]+\), rank [01] .*one of the two is wrong"
train(f"""
    cp4_on_1  1 --resume 5 | from cp4 | close to one loss=1e-5 norm=1e-4
    one_on_2  2 --cp 2 --zero 3 --resume 5 | from one | close to one loss=1e-5 norm=1e-4
    marked    1 {MARKED} | says the loss is on the tokens that the shards mark as targets
    marked2   2 --cp 2 {MARKED} | close to marked
    marked4   4 --cp 2 --tp 2 {RING} {MARKED} | close to marked
    bad       1 --steps 6 --save-every 0 | fault gradient:0:3:nan
    bad2      2 --cp 2 --steps 6 --save-every 0 | fault gradient:1:3:nan | close to bad | says update skipped \\(1 so far\\)
    clip      1 --max-grad-norm 0.2 --steps 4
    clip2     2 --cp 2 --max-grad-norm 0.2 --steps 4 | close to clip
    alike     4 --cp 2 --zero 2 --shard-size 2 --check-replicas 1 --steps 3 --batch-tokens 192
    weights   2 --cp 2 --zero 0 --check-replicas 1 --steps 5 | fault weights:1:3:flip | {DIFFERS}
    moments   2 --cp 2 --zero 0 --check-replicas 1 --steps 5 | fault moments:1:3:flip | {DIFFERS}
    late_cp   2 --cp 2 {LATE}
    late_ring 2 --cp 2 {RING} {LATE}
""")
check("clipped, below the norms", all(row["grad_norm"] > 0.2 for row in rows("clip2")))

# A rank that is killed or stopped, then the run resumed: there to the same bits, and on one rank. Ranks 1 and 2: rank 0's
# neighbours on cp and dp. A rank that is stopped is named.
FAULTY = "--cp 2 --batch-tokens 192 --no-background-save --timeout 4"
STOPPED = "fails | says rank {} .*step 7.*(silent|stopped)"
for rank in 1, 2:
    for action, ends in ("kill", "fails"), ("stop", STOPPED.format(rank)):
        train(f"""
            dead    4 {FAULTY} | fault step:{rank}:7:{action} | {ends}
            again   4 --cp 2 --batch-tokens 192 --resume auto | from dead | weights of dp2zero0
            without 2 --batch-tokens 192 --resume auto | from dead | close to dp2 loss=1e-5 norm=1e-4
        """)
train(f"dead 4 {FAULTY} {RING} | fault step:1:7:stop | {STOPPED.format(1)}")

# Sequences cp times as long on cp ranks: what the ledger of each rank has for activations stays the same to the byte.
for cp in 1, 2, 4:
    longer = f"--seq-len {48 * cp} --max-seq-len 192 --val-every 0 --val-tokens 768 --steps 2 --save-every 0"
    train(f"long{cp} {cp} --cp {cp} {longer}")
held = [[rank["memory_peak"]["activations"] for rank in load(f"long{cp}/ranks.json")] for cp in (1, 2, 4)]
equal("each rank reports", list(map(len, held)), [1, 2, 4])
check("  the same activations", len({x for ranks in held for x in ranks}) == 1 and held[0][0] > 0, held)

# 8 ranks of cp 4 send what --print-config says. Each of 2 blocks: 2 x 12 rows of k and v of 16 fp32 each,
# gathered twice, and their gradients, to 3 other ranks.
EIGHT = "--cp 4 --zero 0 --batch-tokens 192"
train(f"eight 8 {EIGHT}")
axes = sent_as_planned("eight", arguments[:1], MODEL, "--device cpu", EIGHT)
equal("  of cp", axes["cp"], 2 * 3 * (2 * 12 * 32 * 4) * 3)
check("  not hidden", all(step["exposed_seconds"] > 0 for step in rows("eight", "exposed_seconds")))
ranks = load("eight/ranks.json")
places = [(r["tp"], r["cp"], r["dp"], r["pp"]) for r in ranks]
equal("the ranks' report knows places", places, [(0, r % 4, r // 4, 0) for r in range(8)])
for r in ranks:
    by_axis = r["bytes_sent_by_axis"]
    check("  and axes", sum(by_axis.values()) == r["bytes_sent"] and by_axis["cp"] > 0, r)

if len(arguments) > 1:
    emulated = Table(arguments[1], f"{MODEL} --device cuda --transport nccl", bounds={"loss": 1e-4, "norm": 1e-3})
    narrow = "--dtype bf16 --head-dim 64 --heads 2 --kv-heads 1 --steps 5"
    train(f"narrow 1 {narrow}")
    emulated(f"""
        simt      2 {MASK} --cp 2 | close to texts
        simt_ring 2 {MASK} --cp 2 {RING} | close to texts
        simt16    2 {narrow} --cp 2 | close to narrow loss=4e-3 norm=4e-2
    """)
end()
