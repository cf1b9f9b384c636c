#!/usr/bin/env python3
"""--optimizer muon: beside torch.optim.Muon, under every layout, killed and resumed under another, from AdamW's checkpoint.
Ends with counts.

    test/program/test_muon.py ./train_llama
"""

from checks import Table, arguments, check, end, expect, run, text_data, work

train = Table(
    arguments[0],
    f"""--data {text_data("100K")} --preset bytes --seq-len 32 --batch-tokens 128 --layers 3 --dim 48 --heads 4 --kv-heads 2 --ffn 72
    --device cpu --threads 1 --lr-schedule constant --warmup 0 --val-every 0 --val-tokens 128 --collectives direct --quiet""",
    launcher="--ranks",
)
MUON = "--optimizer muon --steps 6 --save-every 3"
ROWS = f"{MUON} --muon-beta2 0.9"
NARROW = "--dtype bf16 --master-dtype bf16 --adam-dtype bf16"

beside = run("test/program/check_muon.py", arguments[:1])
expect("twelve steps beside torch.optim.Muon and AdamW, six shapes", beside)
train(f"""
    two       2 {MUON} --batch 2 --zero 0
    zero1     2 {MUON} --batch 2 --zero 1 | weights of two
    zero2     2 {MUON} --batch 2 --zero 2 | weights of two
    zero3     2 {MUON} --batch 2 --zero 3 | weights of two
    checked   2 {MUON} --batch 2 --zero 1 --recheck-every 2 --check-replicas 1 | weights of two
    four      4 {MUON} --batch 1 --zero 0
    four3     4 {MUON} --batch 1 --zero 3 | weights of four
    one       1 {MUON} --batch 2
    pp2       2 {MUON} --batch 2 --pp 2 | weights of one
    tp2       2 {MUON} --batch 2 --tp 2
    parts2    2 {MUON} --batch 2 --tp 2 --muon-blocks tp | other than tp2
    cp2       4 {MUON} --batch 2 --cp 2 --zero 0
    cp2_3     4 {MUON} --batch 2 --cp 2 --zero 3 | weights of cp2
    hybrid    4 {MUON} --batch 1 --shard-size 2 --zero 1
    hybrid3   4 {MUON} --batch 1 --shard-size 2 --zero 3 | weights of hybrid
    fp16      2 {MUON} --batch 2 --zero 0 --dtype fp16
    fp16_3    2 {MUON} --batch 2 --zero 3 --dtype fp16 | weights of fp16
    narrow    2 {MUON} --batch 2 --zero 0 {NARROW}
    narrow3   2 {MUON} --batch 2 --zero 3 {NARROW} | weights of narrow
    rows      2 {ROWS} --batch 2 --zero 0 | other than two
    rows3     2 {ROWS} --batch 2 --zero 3 | weights of rows
    rowstp    2 {ROWS} --batch 2 --tp 2
""")


def optimizer(name, file):
    return (work / name / "checkpoints/step_000000003/optimizer" / file).read_bytes()


row_moment = b'"model.layers.0.self_attn.k_proj.weight":{"dtype":"F32","shape":[24]'
check("a moment of each row in a checkpoint", row_moment in optimizer("rows3", "row_v.safetensors"))
check("no second moment of matrices in a checkpoint", b"self_attn.q_proj" not in optimizer("two", "v.safetensors"))

# Steps 1 to 3 on two ranks, the rest on four: bits of a run that was there from the start, of whatever stage. Or killed between two
# checkpoints: two ranks of another stage end as if nothing had been.
train(f"""
    again1      4 --resume auto --batch 1 --zero 1 | from two to 3
    again3      4 --resume auto --batch 1 --zero 3 | from two to 3 | weights of again1
    rows_again1 4 --resume auto --batch 1 --zero 1 | from rows to 3
    rows_again3 4 --resume auto --batch 1 --zero 3 | from rows3 to 3 | weights of rows_again1
    rows_tp     4 --resume auto --batch 1 --zero 2 --tp 1 | from rowstp to 3
    on          4 --resume auto --batch 1 --muon-beta2 0.9 | from two to 3 | says it has no moments of rows: NorMuon's start at zero
    off         4 --resume auto --batch 1 --muon-beta2 0 | from rows to 3 | says NorMuon's moments of rows are left behind
    own         1 --resume auto | from one to 3 | weights of one
    dead        2 {MUON} --batch 2 --zero 1 --no-background-save | fault step:1:5:kill | fails
    dead3       2 --resume auto --zero 3 | from dead | weights of two
    rows_dead   2 {ROWS} --batch 2 --zero 3 --no-background-save | fault step:1:5:kill | fails
    rows_dead0  2 --resume auto --zero 0 | from rows_dead | weights of rows
    adamw       1 --steps 3 --save-every 3 --batch 2
    switched    1 --resume auto --optimizer muon --steps 6 | from adamw | says the momentum of Muon's matrices starts at zero
    back        2 --resume auto --optimizer adamw --steps 9 | from two | fails | says the checkpoint is of --optimizer muon
""")
end()
