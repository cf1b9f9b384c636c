#!/usr/bin/env python3
"""Work of a run besides training, with its model on the stages of a pipeline: samples, weights to start from, hybrid sharding,
rollback, replicas that differ, signals. Each gives the bits, or the text, of the same run without a pipeline. Ends with counts.

    test/program/test_pipeline_run.py ./train_llama
"""

import re

from checks import Table, arguments, end, equal, text_data, work

SHAPE = "--preset bytes --layers 6 --dim 32 --heads 4 --ffn 64 --head untied"
UPDATE = f"{SHAPE} --grad-accum 4 --steps 4"
train = Table(
    arguments[0],
    f"""--data {text_data("200K")} --seq-len 32 --batch 1 --device cpu --threads 1 --save-every 0 --val-every 0 --val-tokens 64
    --timeout 30""",
)

# Samples: every rank has the logits, so the text is that of one rank. With dp 2 it trains on other micro-batches.
SAMPLED = f"{UPDATE} --val-every 2 --sample-every 1 --sample-tokens 12 --prompt 'def '"
texts = [
    re.findall(r"(?ms)^--- sample.*?^---$", train.row(f"sampled{i} {layout}").text)
    for i, layout in enumerate(
        (
            f"1 {SAMPLED}",
            f"2 --pp 2 {SAMPLED}",
            f"3 --pp 3 --pp-schedule 1f1b {SAMPLED}",
            f"4 --pp 2 --zero 3 {SAMPLED} --grad-accum 2",
        )
    )
]
equal("two samples", len(texts[0]), 2)
equal("  the same text", texts[1:3], texts[:1] * 2)

# --pp-threads starts its own ranks. Weights to start from, written by a run without a pipeline. Hybrid sharding inside each stage. A
# spike of the loss, back to the checkpoint before it.
HYBRID = f"{UPDATE} --shard-size 2 --accumulate-locally"
ROLLS = f"{SHAPE} --grad-accum 4 --steps 36 --save-every 5 --keep 0 --on-spike rollback --rollback-steps 8 --rollback-skip 3"
SAID = "says rollback spike of the loss, z .* at step 30 .*: on from step 20"
FINAL = f"--init-from {work}/sampled0/final --grad-accum 4 --steps 4"
train(f"""
    whole1    1 {UPDATE}
    threads   1 --pp-threads 3 --pp-schedule zb-v {UPDATE} --save-every 2 | weights of whole1 | says pipeline zb-v: 6 stages on 3 ranks
    resumed   2 --pp 2 --resume 2 | from threads | weights of whole1
    broken    1 --pp-threads 2 {UPDATE} | fault step:1:2:error | code 70
    gpus      1 --pp-threads 2 --device cuda {SHAPE} | fails | says device cuda
    further   1 {FINAL}
    further2  2 --pp 2 {FINAL} | weights of further
    hybrid2   4 {HYBRID} --zero 2
    hybrid2pp 8 {HYBRID} --zero 2 --pp 2 | weights of hybrid2
    hybrid3   4 {HYBRID} --zero 3
    hybrid3pp 8 {HYBRID} --zero 3 --pp 2 | weights of hybrid3
    rolled    1 {ROLLS} | fault loss:*:30:spike
    rolled2   2 --pp 2 {ROLLS} | fault loss:*:30:spike | {SAID} | weights of rolled
""")

# Replicas of a stage that differ: rank 2 stands beside rank 3 on the second stage, 0 beside 1 on the first. A signal to one stage:
# all stop after the same step, saved; resumed to the same bits.
COPIES = f"{UPDATE} --pp 2 --check-replicas 1"
SIGNALS = f"{SHAPE} --grad-accum 4 --steps 6"
STOPPED = "code 75 | says stopped  after step [345]: SIG(USR1|TERM) on rank [01]"
train(f"""
    replicas  4 {COPIES}
    flipped   4 {COPIES} | fault weights:2:3:flip | code 73 | says step 3: .*rank 2 .*rank 3
    moments   4 {COPIES} | fault moments:1:3:flip | code 73 | says step 3: AdamW's m .*rank 0 .*rank 1
    whole     1 {SIGNALS}
    usr1      2 --pp 2 {SIGNALS} --save-every 100 | fault step:1:3:usr1 | {STOPPED}
    usr1_on   1 --resume auto | from usr1 | weights of whole
    term      2 --pp 2 {SIGNALS} --save-every 100 | fault step:0:4:term | {STOPPED}
    term_on   1 --resume auto | from term | weights of whole
""")
end()
