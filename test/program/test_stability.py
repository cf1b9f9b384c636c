#!/usr/bin/env python3
"""The stability kit as a user runs it: z-loss, the decay of embeddings, updates that are left out, averages, --auto, a batch that
grows. At other layouts, and resumed in the middle. Ends with counts.

    test/program/test_stability.py ./train_llama
"""

import array
import re

from checks import Table, arguments, check, end, equal, expect, rows, run, tensors, text_data, work

program = arguments[0]
DATA = f"--data {text_data('200K')} --seq-len 24 --batch 1 --val-every 0 --val-tokens 48"
# An update is 12 sequences at every layout.
MODEL = """--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 45 --head untied --device cpu --threads 1 --timeout 60"""
UPDATE = f"{MODEL} {DATA} --batch-tokens 288 --lr-schedule constant --warmup 0 --keep 0"
train = Table(program, UPDATE, launcher="--ranks", bounds={"norm": 1e-5})
plain = Table(program, "", launcher="--ranks", bounds={"norm": 1e-5})


def values(folder):
    found = tensors(work / folder / "model.safetensors")
    return array.array("f", b"".join(data for _, _, data in found.values()))


# ---- z-loss and the decay of embeddings ----
KIT = "--z-loss 1e-3 --decay-embeddings off --init-scale 1 --steps 6"
train(f"""
    one      1 {KIT} --save-every 2 | says step 1/6 \\| loss [0-9.]+ \\| z-loss [0-9.]+
    none     1 --steps 6 --init-scale 1 | other than one
    z3       3 {KIT} --zero 3 | close to one
    z4       4 {KIT} --tp 2 --pp 2 | close to one
    z2       2 {KIT} --cp 2 --logits-mib 1 | close to one
    again    1 --resume auto | from one to 2 | weights of one
""")
a, b = rows("one")[0], rows("none")[0]
check("the first loss is the same", a["loss"] == b["loss"] and "z_loss" not in b, f"{a} {b}")
# At first the logits say nothing.
check("  the z-loss is that of such logits", abs(a["z_loss"] / (1e-3 * a["loss"] ** 2) - 1) < 0.05, a["z_loss"])
fine = run([program], f"{DATA} --init-from {work}/one/final --init-scale 1 --steps 1")
expect("--init-scale beside weights", fine, code=2, says="--init-scale is about weights that are drawn")

# ---- updates that are left out: the spike of the loss at step 70 ----
SKIPS = "--on-spike skip --steps 72 --save-every 69"
LEFT_OUT = r"says step 70/72 .*update left out \(1 so far\)"
train(f"""
    skip     1 {SKIPS} | fault loss:*:70:spike | {LEFT_OUT}
    skip3    6 {SKIPS} --zero 1 --pp 2 | fault loss:*:70:spike | {LEFT_OUT}
    warned   1 --steps 72 | fault loss:*:70:spike | other than skip
    half     1 --resume auto | from skip to 69 | fault loss:*:1:spike | {LEFT_OUT} | weights of skip
""")
equal("and no other", (work / "skip/log.txt").read_text().count("left out ("), 1)

# ---- averages ----
steps = [work / f"one/checkpoints/step_00000000{n}" for n in (2, 4, 6)]
expect("averages three checkpoints", run([program, "average", *steps, "--to", work / "mean"]))
mean, *parts = map(values, ["mean", *steps])
wanted = array.array("f", [(x + y + z) / 3 for x, y, z in zip(*parts)])
check("the mean, to the bit", len(mean) > 10000 and mean == wanted)
expect("the mean trains on", run([program], f"--init-from {work}/mean {DATA} --steps 0"))
expect("the mean of one model", run([program, "average", steps[0], "--to", work / "mean1"]), code=2)
train("small 1 --dim 16 --ffn 20 --steps 1")
both = [program, "average", steps[0], work / "small/final", "--to", work / "mean2"]
expect("models that differ", run(both), code=lambda code: code in (2, 70))


# ---- the average that a run keeps of its weights ----
def average(folder):
    return (work / folder / "final_ema/model.safetensors").read_bytes()


train("""
    ema      1 --steps 6 --ema 0.5 --save-every 3 | says step 6 \\| validation loss [0-9.]+ nats.*, of the average [0-9.]+
    no_ema   1 --steps 6 --save-every 3 | weights of ema
    ema_on   1 --resume auto | from ema to 3
    ema_on3  3 --resume auto --zero 3 | from ema
    ema_on4  4 --resume auto --tp 2 --pp 2 --zero 1 | from ema
    began    1 --resume auto --ema 0.5 | from no_ema to 3 | says it has no average of the weights: --ema begins with them
""")
for name in "ema_on", "ema_on3", "ema_on4":
    check(f"{name}: the same average", average(name) == average("ema"))
mean = (
    f"--data {work}/data --init-from {work}/ema/final_ema --seq-len 24 --batch 1 --steps 0 --val-tokens 48 --device cpu"
)
expect("the average is a model", run([program], mean, f"--out {work}/average"))
a, b = (rows(name, "val_loss")[-1] for name in ("ema", "average"))
check("of that loss, to the digit", a["val_loss_ema"] == b["val_loss"] != a["val_loss"], f"{a} {b}")
export = run([program], f"export --average --from {work}/ema/checkpoints/step_000000006 --to {work}/exported")
expect("the checkpoint's is exported", export)
check("  the same", (work / "exported/model.safetensors").read_bytes() == average("ema"))

# ---- recommended rates and batches ----
auto = plain.row(
    f"auto 1 {MODEL} {DATA} --auto --steps 20 --save-every 10 | says auto     --lr [0-9.e-]+: 0.3118 C\\^-0.1250 for C ="
)
equal("all of it", auto.count("^auto     --"), 5)
on = plain.row("auto_on 1 --resume auto | from auto to 10")
last = r"step 20/20 \| loss [0-9.]* \| norm [0-9.]* \| lr [^ ]*"
equal("a resume goes on at the same rates and batches", on.says(last)[0], auto.says(last)[0])
presets = run([program], "--presets")
expect("--presets recommends, as published", presets, says=r"lr 0.0003, 4.2M to 17M tokens an update \(Llama 3 8B")
steep = run(
    [program],
    """--layers 1 --dim 128 --heads 4 --ffn 64 --vocab 49152 --seq-len 8 --batch 1 --lr 0.1 --steps 0 --val-tokens 8 --data synthetic
    --device cpu""",
)
expect("a rate that nobody published", steep, says="advice   lr 0.1 is 100 x above any published one of this size")

# ---- a batch that grows: the bits of runs that are resumed by hand ----
RAMP = "--batch-ramp 96:400,192:1000 --batch-tokens 384 --steps 12"
train("hand1 1 --steps 5 --batch-tokens 96")
plain("""
    hand2    1 --resume auto --steps 8 --batch-tokens 192 | from hand1
    hand     1 --resume auto --steps 12 --batch-tokens 384 | from hand2
""")
train(f"""
    ramp     1 {RAMP} | says until 1000 tokens are seen | weights of hand
    ramp_a   2 {RAMP} --zero 3 | close to ramp
    ramp_b   4 {RAMP} --tp 2 --pp 2 | close to ramp
    ramp_c   2 {RAMP} --tp 2 | close to ramp
    ramp_d   4 {RAMP} --tp 2 --zero 3 | close to ramp
    ramp_e   2 {RAMP} --zero 2 | close to ramp
    ramp_f   4 {RAMP} --zero 1 | close to ramp
    ramp_g   2 {RAMP} --pp 2 --pp-schedule zb-h1 | close to ramp
    ramp_h   2 {RAMP} --cp 2 --logits-mib 1 | close to ramp
    refused  1 --batch-tokens 384 --batch-ramp 120:400 | fails | says nearest: --batch-tokens 360
""")
plain("""
    cut5     1 --resume auto | from ramp to 5 | weights of ramp
    cut8     1 --resume auto | from ramp to 8 | weights of ramp
    cut4     4 --resume auto | from ramp to 5 | close to ramp
""")

# ---- muP ----
MUP = "--steps 6 --mup-base-width 8 --mup-base-depth 1 --lr 1e-2"
train(f"""
    base     1 --steps 4 --mup-base-width 32
    plain    1 --steps 4 | weights of base
    wide     1 {MUP} --save-every 3
    wide3    3 {MUP} --zero 3 | close to wide
    wide4    4 {MUP} --tp 2 --pp 2 | close to wide
    narrow   1 --resume auto | from wide to 3 | weights of wide
""")
slopes = []
for name, flags in ("coordinates", "--mup-base-width 32"), ("sp", ""):
    widths = f"coordinates --widths 32,64,128,256 {UPDATE} --lr 3e-3 --steps 6 {flags} --out {work / name}"
    drawn = expect(f"the coordinate check {flags}", run([program], widths))
    slopes.append(float(re.findall(r"(?m)^residual stream.* (\S+)$", drawn.text)[-1]))
check("  a picture", (work / "coordinates/coordinates.svg").stat().st_size)
check("activations grow with the width without muP alone", abs(slopes[0]) < 0.15 and slopes[1] > 0.3, slopes)
end()
