#!/usr/bin/env python3
"""Tensor and sequence parallelism under mpirun, with pipelines and ZeRO too: losses and norms of the same run on one rank,
bytes as predicted, checkpoints that any layout reads, killed ranks, refusals. Ends with counts.

    test/program/test_tensor.py ./train_llama
"""

import re

from checks import Table, arguments, check, end, equal, expect, load, rows, run, sent_as_planned, text_data, work

MODEL = f"""--data {text_data("200K")} --preset bytes --seq-len 33 --batch 1 --layers 2 --dim 48 --heads 12 --kv-heads 2 --ffn 70
    --device cpu --threads 1 --steps 10 --lr-schedule constant --warmup 0 --save-every 0 --val-every 0 --val-tokens 66 --timeout 30"""
train = Table(arguments[0], MODEL)

# fp8: a part of an operand has a scale of its own, so products differ by the rounding of codes; losses average it out. With tiles a
# part that holds whole ones has the codes of the whole: sums in another order are left, as in bf16. Of `outer` the first rank has the
# first and the last block, which are not in fp8: it gathers none.
FP8 = "--dtype bf16 --grad-dtype fp32 --fp8 tensor --dim 96 --ffn 64 --head-dim 16 --heads 4 --seq-len 32"
FP8 += " --batch-tokens 64 --val-tokens 64"
OUTER = f"{FP8} --layers 4 --fp8-skip-blocks=1,1"
TILES = "--dtype bf16 --grad-dtype fp32 --dim 128 --ffn 256 --head-dim 128 --heads 2 --kv-heads 2 --seq-len 128"
TILES += " --batch-tokens 256 --val-tokens 128 --steps 3"
UNTIED = "--batch-tokens 132 --head untied"
train(f"""
    one      1 --batch-tokens 66
    tp2      2 --tp 2 --batch-tokens 66 | close to one | says 2 ranks share each tensor, fp32 partial sums: 6 of 12 heads and 1 of 2 kv heads
    overlap  2 --tp 2 --batch-tokens 66 --tp-overlap on | close to one
    tp4      4 --tp 4 --batch-tokens 66 | close to one
    kv1      1 --kv-heads 1
    tp3      3 --tp 3 --kv-heads 1 | close to kv1
    fp8      1 {FP8}
    fp8tp    2 {FP8} --tp 2 | close to fp8 loss=1e-2 norm=0.2
    fp8over  2 {FP8} --tp 2 --tp-overlap on | close to fp8tp
    fp8cp    2 {FP8} --cp 2 | close to fp8 loss=1e-2 norm=0.2
    fp8pp    2 {FP8} --pp 2 --pp-schedule 1f1b | close to fp8
    outer    1 {OUTER}
    outerpp  2 {OUTER} --zero 3 --pp 2 --pp-schedule zb-v | close to outer
    dp2      2 {UNTIED}
    tp2dp2   4 --tp 2 --zero 3 {UNTIED} | close to dp2
    order    4 --tp 2 --zero 1 --axis-order dp,tp,cp,pp {UNTIED} | close to dp2 | says pp 0: \\[0 2\\] \\[1 3\\]
    bf16     2 --tp 2 --dtype bf16
    bf16wide 2 --tp 2 --dtype bf16 --tp-wire fp32
""")
for recipe in "block", "mx":
    train(f"""
        {recipe}   1 {TILES} --fp8 {recipe}
        {recipe}tp 2 {TILES} --fp8 {recipe} --tp 2 --tp-wire fp32 | close to {recipe} loss=1e-3 norm=1e-2
        {recipe}pp 2 {TILES} --fp8 {recipe} --pp 2 --pp-schedule 1f1b | close to {recipe}
    """)

# Three axes on eight ranks, and what they send.
THREE = "--tp 2 --pp 2 --layers 4 --head untied --zero 3 --batch-tokens 264"
train(f"""
    deep     2 --layers 4 --head untied --batch-tokens 264
    three    8 {THREE} | close to deep | says pp 1: \\[4 5\\] \\[6 7\\]
""")
sent_as_planned("three", arguments[:1], MODEL, THREE)
places = [(r["tp"], r["cp"], r["dp"], r["pp"]) for r in load("three/ranks.json")]
equal("  its ranks' report knows the axes", places, [(r % 2, 0, r // 2 % 2, r // 4) for r in range(8)])
console = (work / "three/log.txt").read_text()
check("  on the console too", re.search(r"(?m)^    on tp +[0-9.]+ [KM]iB  rank", console))

# A gradient that is no number: all skip the update. Clipping. A rank that is late at each step is named: the others' waiting for it
# does not count as their own time. With our own products, whose rows do not depend on each other, overlap changes no bit.
train("""
    none     2 --tp 2 --steps 0
    none1    1 --steps 0 | weights of none
    bad      1 --steps 6 --batch-tokens 66 | fault gradient:0:3:nan
    bad2     2 --tp 2 --steps 6 --batch-tokens 66 | fault gradient:1:3:nan | close to bad
    clip     1 --batch-tokens 66 --max-grad-norm 0.2 --steps 4 | other than one
    clip2    2 --tp 2 --batch-tokens 66 --max-grad-norm 0.2 --steps 4 | close to clip
    late_tp  2 --tp 2 --steps 8 | fault step:1:*:sleep=0.4 | says slow     rank 1 computes
    late_two 2 --tp 2 --tp-overlap on --steps 8 | fault step:1:*:sleep=0.4 | says slow     rank 1 computes
    late_pp  2 --pp 2 --pp-schedule 1f1b --grad-accum 2 --steps 8 | fault step:1:*:sleep=0.4 | says slow     rank 1 computes
    own      2 --tp 2 --batch-tokens 66 | with RZ_GEMM=own | says own loops GEMM
    own_two  2 --tp 2 --batch-tokens 66 --tp-overlap on | with RZ_GEMM=own | says own loops GEMM | weights of own
    texts1   1 --doc-mask eos --doc-token 10 --steps 4
    texts2   2 --tp 2 --doc-mask eos --doc-token 10 --steps 4 | close to texts1
""")
check("clipped, below the norms", all(row["grad_norm"] > 0.2 for row in rows("clip2")))

# Saved by one layout, resumed by another: the files hold whole tensors (their bytes: test/llama/mpi_layouts.cpp).
train("""
    half2    2 --tp 2 --steps 5 --save-every 5 --batch-tokens 66
    half1    1 --steps 5 --save-every 5 --batch-tokens 66
""")
for source, layout in (
    ("half2", "1 --tp 1"),
    ("half2", "4 --tp 4"),
    ("half1", "2 --tp 2"),
    ("half2", "4 --tp 2 --zero 2"),
):
    train(f"""
        loaded  {layout} --resume auto --steps 5 | from {source} | weights of {source}
        resumed {layout} --resume auto --steps 10 | from {source} | close to one first=6
    """)
expect(
    "text, in one process",
    run(arguments[:1], f"generate --from {work}/half2 --prompt 'def ' --max-tokens 5 --device cpu"),
)

# A rank of any axis that is killed or stopped, then the run resumed, there and on one rank. Ranks 1, 2, 4: rank 0's neighbour on
# tp, dp, pp. A rank that is stopped is named.
EVEN = "--layers 4 --head untied --batch-tokens 132 --steps 6"
train(f"""
    whole    8 --tp 2 --pp 2 {EVEN}
    alone    1 {EVEN}
""")
for rank in 1, 2, 4:
    for action, said in ("kill", ""), ("stop", f"rank {rank} .*step 4.*(silent|stopped)"):
        faulty = f"8 {EVEN} --tp 2 --pp 2 --save-every 2 --no-background-save --timeout 4"
        train(f"""
            dead  {faulty} | fault step:{rank}:4:{action} | fails | says {said}
            again 8 --tp 2 --pp 2 {EVEN} --resume auto | from dead | weights of whole
            other 1 {EVEN} --resume auto | from dead | close to alone first=5
        """)

# A spike of the loss: back to the checkpoint before it, as one rank does. Copies that several ranks of the tp axis hold are compared,
# at any ZeRO stage.
ROLLS = "--steps 36 --save-every 5 --keep 0 --on-spike rollback --rollback-steps 8 --rollback-skip 3"
ROLLS += " --seq-len 32 --batch-tokens 64 --val-tokens 64"
SAID = "says rollback spike of the loss, z .* at step 30 .*: on from step 20"
DIFFERS = r"says step 3: .*rank [01] \(hash [0-9a-f]+\), rank [01] .*one of the two is wrong, in model.norm.weight"
train(f"""
    rolled1  1 {ROLLS} | fault loss:*:30:spike | {SAID}
    rolled4  4 --tp 2 --cp 2 {ROLLS} | fault loss:*:30:spike | {SAID} | close to rolled1 loss=1e-4 norm=1e-3
    alike    4 --tp 2 --zero 2 --check-replicas 1 --steps 3
    weights  4 --tp 2 --zero 0 --head tied --check-replicas 1 --batch-tokens 66 --steps 5 | fault weights:1:3:flip | fails | {DIFFERS}
    moments  4 --tp 2 --zero 0 --head tied --check-replicas 1 --batch-tokens 66 --steps 5 | fault moments:1:3:flip | fails | {DIFFERS}
    refused  2 {TILES} --fp8 block --tp 2 --ffn 128 | fails | says ffn 128 is not a multiple of --tp 2 x 128, which fp8 products need
    refused  5 --tp 5 | fails | says nearest: --tp 4 or 6
    refused  3 --tp 3 | fails | says of 2 kv heads and 3 ranks one must divide the other
""")

# Samples: each rank has a part of the vocabulary's logits, and the text is that of one rank.
LAYOUTS = (
    "1",
    "2 --tp 2",
    "4 --tp 4 --tp-overlap on",
    "4 --tp 2 --pp 2 --zero 3",
    "1 --post-norm on",
    "4 --tp 4 --post-norm on",
)
for layout in LAYOUTS:
    sampled = f"{layout} --steps 2 --val-every 1 --sample-every 1 --sample-tokens 12 --prompt 'def ' --grad-accum 2"
    text = re.findall(r"(?ms)^--- sample.*?^---$", train.row(f"sampled {sampled}").text)
    if layout.startswith("1"):
        reference = text
    check(f"samples of {layout}: the text of one rank", text and text == reference, f"{text}\n{reference}")
end()
