#!/usr/bin/env python3
"""Number formats trained here and in PyTorch with the same casts: do the losses differ by more than two standard errors?

    dev/golden/precision_curves.py --out runs/curves [--program ./train_llama] [--data data/stdlib] [--seeds 1,2,...,8]
    dev/golden/precision_curves.py --out runs/curves --report runs/curves/report.md      of what has been run
    dev/golden/precision_curves.py --out runs/curves --order      torch beside itself, with sums that are moved in their last places
    dev/golden/precision_curves.py --self-test

A pair has one format and one seed: the same initial weights (train_llama's, as it exports them), the same batches in the same
order, the same rates. The seeds were fixed beforehand: 1 to 8. PyTorch keeps fp32 masters for torch.optim.AdamW; embedding, norm,
attention, softmax and cross-entropy are its own, in the format's type. Products of linear layers are its fp32 products of operands
that its own types have rounded, by the published recipes:

    bf16, fp16   activations, their gradients and the weights' working copies; weight gradients stay fp32. fp16 under torch.amp.GradScaler
    fp8 tensor   one scale for each operand, largest / amax; E4M3, gradients E5M2 (Transformer Engine's Float8CurrentScaling)
    fp8 block    1 x 128 along K, weights 128 x 128, scales of powers of two, all E4M3 (DeepSeek-V3; TE's Float8BlockScaling)
    fp8 mx       1 x 32 along K, E8M0 scales rounded up, all E4M3 (OCP MX 1.0 with TE's and torchao's rounding of scales)

Beside them three recipes that are not the same casts: torch.autocast, which keeps the residual stream in fp32, for bf16 and fp16;
and mx with OCP's own scales, which round down and saturate.

Every run is a line of OUT/journal.jsonl as soon as it is done, so what was stopped goes on. Needs torch, safetensors, numpy.
"""

import datetime
import json
import math
import os
import sys
import time
from fractions import Fraction

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/../run", f"{HERE}/oracle"]
import reference  # noqa: E402
import student  # noqa: E402
import study  # noqa: E402
import whole_run  # noqa: E402
from picture import BLUE, GREEN, GREY, ORANGE, Chart, Picture  # noqa: E402

BATCH, T, VAL_TOKENS = 8, 64, 16384
MODEL = "--preset bytes --dim 128 --layers 2 --heads 4 --kv-heads 2 --ffn 384"
OURS = {
    "fp32": "--dtype fp32",
    "bf16": "--dtype bf16 --grad-dtype fp32",
    "fp16": "--dtype fp16",
    "fp8 tensor": "--dtype bf16 --grad-dtype fp32 --fp8 tensor",
    "fp8 block": "--dtype bf16 --grad-dtype fp32 --fp8 block",
    "fp8 mx": "--dtype bf16 --grad-dtype fp32 --fp8 mx",
}
OTHERS = {"fp8 mx, scales rounded down": "fp8 mx", "bf16, torch.autocast": "bf16", "fp16, torch.autocast": "fp16"}  # torch's recipe: ours beside it
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


# ---- casts -------------------------------------------------------------------------------------------------------------


def scale_of(rule, amax, largest):
    """What numbers are multiplied by before they become codes."""
    nothing = amax == 0
    amax = torch.where(nothing, 1, amax)
    if rule == "largest":
        scale = largest / amax
    elif rule == "power of two":
        scale = torch.ldexp(torch.ones_like(amax), torch.frexp(largest / amax)[1] - 1)
    else:
        fraction, exponent = torch.frexp(amax / largest if rule == "e8m0" else amax)
        exponent = torch.where(fraction == 0.5, exponent - 1, exponent) if rule == "e8m0" else exponent - 1 - 8
        scale = 1 / torch.ldexp(torch.ones_like(amax), exponent).to(torch.float8_e8m0fnu).float()
    return torch.where(nothing, 1, scale)


def cast(x, rows, columns, rule, kind):
    """The values of the codes of x, a scale for each tile of rows x columns."""
    tiles, largest = x.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns), torch.finfo(kind).max
    scale = scale_of(rule, tiles.abs().amax((1, 3), keepdim=True), largest)
    return ((tiles * scale).clamp(-largest, largest).to(kind).float() * (1 / scale)).reshape(x.shape)


def operand(recipe, role, x):
    """x (outer, K) as a product reads it; its role: x, w or dy."""
    if recipe == "fp8 tensor":
        return cast(x, *x.shape, "largest", E5M2 if role == "dy" else E4M3)
    if recipe == "fp8 block":
        return cast(x, 128 if role == "w" else 1, 128, "power of two", E4M3)
    if recipe.startswith("fp8 mx"):
        return cast(x, 1, 32, "e8m0" if recipe == "fp8 mx" else "e8m0 down", E4M3)
    return x


class Linear(torch.autograd.Function):
    """y = x w^T: x, y and their gradients in one type, w and its gradient in fp32."""

    moved = 0.0  # --order: what sums in another order could do to y, relative to it

    @staticmethod
    def forward(ctx, x, w, recipe):
        rows, weight = x.flatten(0, -2).float(), w.to(x.dtype).float()
        ctx.save_for_backward(rows, weight)
        ctx.recipe = recipe
        y = operand(recipe, "x", rows) @ operand(recipe, "w", weight).T
        if Linear.moved:
            y = y * (1 + Linear.moved * torch.randn_like(y))
        return y.to(x.dtype).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, dy):
        (rows, weight), q = ctx.saved_tensors, lambda role, x: operand(ctx.recipe, role, x)
        d = dy.flatten(0, -2).float()
        dx = q("dy", d) @ q("w", weight.T).T
        dw = q("dy", d.T) @ q("x", rows.T).T
        return dx.to(dy.dtype).unflatten(0, dy.shape[:-1]), dw, None


class Rounded(torch.autograd.Function):
    """The working copy of a master; the gradient is the master's."""

    @staticmethod
    def forward(ctx, w, dtype):
        return w.to(dtype).float()

    @staticmethod
    def backward(ctx, dy):
        return dy, None


# ---- the two sides -----------------------------------------------------------------------------------------------------


def loss_of(p, c, recipe, rows):
    """p: the fp32 masters by Hugging Face's names; rows (B, T + 1)."""
    auto, half = "autocast" in recipe, torch.float16 if recipe.startswith("fp16") else torch.float32 if recipe == "fp32" else torch.bfloat16
    dtype = torch.float32 if auto else half
    ids, targets, d = rows[:, :-1], rows[:, 1:], c["head_dim"]
    angle = torch.arange(ids.shape[1]).double()[:, None] * reference.frequencies(c, ids.shape[1])[0]
    cos, sin = angle.cos().float(), angle.sin().float()

    def linear(x, *names, recipe=recipe):
        w = torch.cat([p[n + ".weight"] for n in names])
        return F.linear(x, w) if auto else Linear.apply(x, w, recipe)

    def norm(x, name):
        return F.rms_norm(x.float(), x.shape[-1:], Rounded.apply(p[name + ".weight"], dtype), c["rms_norm_eps"]).to(dtype)

    def rotate(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    with torch.autocast("cpu", half, enabled=auto):
        x = F.embedding(ids, p["model.embed_tokens.weight"]).to(dtype)
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            qkv = linear(norm(x, at + "input_layernorm"), *(f"{at}self_attn.{n}_proj" for n in "qkv")).unflatten(-1, (-1, d)).transpose(1, 2)
            q, k, v = qkv.split([c["num_attention_heads"], *[c["num_key_value_heads"]] * 2], 1)
            o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
            x = x + linear(o, at + "self_attn.o_proj")
            gate, up = linear(norm(x, at + "post_attention_layernorm"), at + "mlp.gate_proj", at + "mlp.up_proj").chunk(2, -1)
            x = x + linear((F.silu(gate.float()) * up.float()).to(gate.dtype), at + "mlp.down_proj")
        logits = linear(norm(x, "model.norm"), "lm_head", recipe="none")
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def theirs(o, recipe, seed, last=None):  # last: the step after which to stop
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    initial = f"{o.out}/initial-{seed}/final"
    if not os.path.exists(f"{initial}/config.json"):
        train(o, "fp32", seed, f"{o.out}/initial-{seed}", 0)
    with open(f"{initial}/config.json", encoding="utf-8") as f:
        c = json.load(f)
    c["rope_parameters"] = {"rope_theta": c["rope_theta"]}
    p = {n: w.float().requires_grad_() for n, w in load_file(f"{initial}/model.safetensors").items()}
    text = whole_run.Text(o.data, T, seed)

    def loss_of_rows(rows):
        return loss_of(p, c, recipe, rows)

    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=1000, enabled=recipe.startswith("fp16"))
    losses = []
    for step, loss in whole_run.adamw_steps(p.values(), loss_of_rows, text, BATCH, o.lr, o.steps, scaler):
        losses.append(loss)
        if step == last:
            return losses
    skipped = round(16 - math.log2(scaler.get_scale())) if scaler.is_enabled() else 0
    return {"loss": losses, "val": text.validation(loss_of_rows, VAL_TOKENS, BATCH), "skipped": skipped, "by": f"torch {torch.__version__}"}


def train(o, recipe, seed, folder, steps):
    flags = f"{MODEL} {OURS[recipe]} --device cpu --threads 1 --batch {BATCH} --seq-len {T} --lr {o.lr} --warmup {o.steps // 10 if steps else 0} --steps {steps}"
    flags += f" --val-tokens {VAL_TOKENS} --val-every 0 --save-every 0 --log-every 100 --quiet --seed {seed}"
    return study.train(o.program, ["--data", o.data, *flags.split()], folder)[0]


def ours(o, recipe, seed):
    left = train(o, recipe, seed, f"{o.out}/run", o.steps)
    return {"loss": [r["loss"] for r in left.steps], "val": left.val_loss, "skipped": left.steps[-1].get("skipped", 0), "by": f"train_llama {left.commit}"}


def journal(o):
    """{(side, recipe, seed): row}"""
    return study.Journal(f"{o.out}/journal.jsonl", "side", "recipe", "seed")


def run(o):
    done = journal(o).rows()
    if any((len(r["loss"]), r["lr"]) != (o.steps, o.lr) for r in done.values()):
        sys.exit(f"{journal(o).path} has runs of another --steps or --lr\n  give this one another --out")
    seeds = list(map(int, o.seeds.split(",")))
    runs = [(side, r, s) for s in seeds for r in OURS for side in ("ours", "theirs")] + [("theirs", r, s) for r in OTHERS for s in seeds]
    for side, recipe, seed in runs:
        if (side, recipe, seed) not in done and recipe in (o.format or [*OURS, *OTHERS]):
            begun = time.process_time() + os.times().children_user
            row = {"side": side, "recipe": recipe, "seed": seed, "lr": o.lr, "date": f"{datetime.date.today()}", **(ours if side == "ours" else theirs)(o, recipe, seed)}
            row["loss"], row["val"] = [round(x, 6) for x in row["loss"]], round(row["val"], 6)
            row["core_seconds"] = round(time.process_time() + os.times().children_user - begun, 1)
            journal(o).add(row)
            print(f"seed {seed}, {side}, {recipe}: {row['val']:.4f}, {row['core_seconds']} core seconds", flush=True)


def order(o):
    """PyTorch beside itself, the products of its forward passes moved: the gap of ten steps that no cast is to blame for."""
    done = journal(o).rows()
    Linear.moved = 2.0**-21
    for recipe in o.format or list(OURS)[1:]:
        gaps = []
        for seed in map(int, o.seeds.split(",")):
            torch.manual_seed(seed)
            gaps += [abs(x - y) for x, y in zip(theirs(o, recipe, seed, last=10), done["theirs", recipe, seed]["loss"])]
        print(f"{recipe}: {1e6 * mean(gaps):.1f}", flush=True)


# ---- the report --------------------------------------------------------------------------------------------------------


def compare(gaps):
    """Mean, two standard errors, what they say."""
    mean, error = student.mean_and_error(gaps)
    return mean, 2 * error, "within" if abs(mean) <= 2 * error else "outside"


def pairs_of(done, our, their):
    seeds = sorted(s for side, r, s in done if side == "ours" and r == our and ("theirs", their, s) in done)
    return [(done["ours", our, s], done["theirs", their, s]) for s in seeds]


def tail(row):
    return sum(row["loss"][-10:]) / 10


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def table(done):
    rows = []
    for their, our in [(r, r) for r in OURS] + list(OTHERS.items()):
        pairs = pairs_of(done, our, their)
        if len(pairs) < 2:
            rows.append([their, len(pairs), *["not run"] * 8])
            continue
        cells = [their, len(pairs)]
        for of in (lambda r: r["val"], tail):
            gap, error, verdict = compare([of(a) - of(b) for a, b in pairs])
            cells += [f"{mean(of(a) for a, _ in pairs):.4f}, {mean(of(b) for _, b in pairs):.4f}", f"{gap:+.6f}", f"{error:.6f}", verdict]
        rows.append(cells)
    head = ["format", "seeds", "validation loss: here, torch", "difference", "2 s.e.", "", "last ten steps: here, torch", "difference", "2 s.e.", ""]
    return study.table(head, rows)


def early(done):
    """The mean absolute gap of the first ten losses, of all recipes with all: a format is closest to its own."""
    columns, nearest, rows = [*OURS, *OTHERS], 0, []
    for our in OURS:
        gaps = []
        for their in columns:
            pairs = pairs_of(done, our, their)
            gaps.append(mean(abs(x - y) for a, b in pairs for x, y in zip(a["loss"][:10], b["loss"][:10])) if pairs else math.inf)
        nearest += min(gaps) < math.inf and columns[gaps.index(min(gaps))] == our
        rows.append([our, *("-" if g == math.inf else f"**{g * 1e6:.1f}**" if g == min(gaps) else f"{g * 1e6:.1f}" for g in gaps)])
    return study.table(["here, torch:", *columns], rows), nearest


def cost(done):
    rows = []
    for recipe in [*list(OURS)[1:], *OTHERS]:
        cells = []
        for side in ("ours", "theirs"):
            gaps = [row["val"] - done[side, "fp32", s]["val"] for (w, r, s), row in done.items() if (w, r) == (side, recipe) and (side, "fp32", s) in done]
            gap, error = compare(gaps)[:2] if len(gaps) > 1 else (None, None)
            cells += ["-", "-"] if gap is None else [f"{gap:+.5f}", f"{error:.5f}"]
        rows.append([recipe, *cells])
    return study.table(["against fp32 of the same side, validation loss", "here", "2 s.e.", "torch", "2 s.e."], rows)


def picture(done, steps):
    """A format: the mean losses of both sides, each with a band of two standard errors over the seeds; below, their difference in pairs."""
    formats = [r for r in OURS if len(pairs_of(done, r, r)) > 1]
    p = Picture("Training loss by step (nats)", 660, 1020)
    p.text(60, 16, "Training loss by step (nats): train_llama,", 13, colour=BLUE)
    p.text(330, 16, "PyTorch with the same casts.", 13, colour=ORANGE)
    p.text(60, 33, "Below: train_llama - PyTorch, in pairs (thousandths of a nat).", 13, colour=GREEN)
    p.text(450, 33, "Bands: two standard errors.", 13)

    def band(chart, values, colour, width):  # values: by pair and step
        points = [(i + 1, *compare(at_step)[:2]) for i, at_step in enumerate(zip(*values))]
        for sign in (1, -1):
            chart.curve([(s, m + sign * e) for s, m, e in points], colour, width / 4)
        chart.curve([(s, m) for s, m, _ in points], colour, width)

    for n, recipe in enumerate(formats):
        left, top, pairs = 60 + n % 3 * 330, 64 + n // 3 * 300, pairs_of(done, recipe, recipe)
        gaps = [[x - y for x, y in zip(a["loss"], b["loss"])] for a, b in pairs]
        most = max([1e-6, *(abs(m) + e for m, e, _ in map(compare, zip(*gaps)))])  # a scale of its own
        unit = max(u for u in (k * 10.0**e for k in (1, 2, 5) for e in range(-8, 2)) if u <= most)
        p.text(left + 125, top - 10, f"{recipe}, {len(pairs)} seeds", 14, "middle")
        losses = Chart(p, (left, top, 250, 130), (0, steps), (2, 6))
        losses.rows((2, 3, 4, 5, 6))
        band(losses, [a["loss"] for a, _ in pairs], BLUE, 2)
        band(losses, [b["loss"] for _, b in pairs], ORANGE, 1)
        below = Chart(p, (left, top + 145, 250, 90), (0, steps), (-most, most))
        below.rows((-unit, 0, unit), lambda v: f"{1000 * v:.3g}")
        below.columns(range(0, steps + 1, steps // 4))
        below.curve([(0, 0), (steps, 0)], GREY, 1)
        band(below, gaps, GREEN, 1.2)
    return p.svg()


def report(o, about):
    done = journal(o).rows()
    first = next(iter(done.values()))
    steps, lr = len(first["loss"]), first["lr"]
    rows, nearest = early(done)
    svg = study.beside(o.report, ".svg")
    seconds = sum(r["core_seconds"] for r in done.values())
    lines = [
        "# Loss curves of the number formats, beside PyTorch with the same casts",
        "",
        f"    dev/golden/precision_curves.py --out runs/curves --steps {steps} --lr {lr:g}",
        "",
        f"{', '.join(sorted({r['date'] for r in done.values()}))}; {', '.join(sorted({r['by'] for r in done.values()}))}; {study.cpu_name()}, one core of {os.cpu_count()} shared with other work, the CPU backend, no GPU; "
        f"{len(done)} runs, {seconds / 60:.0f} core minutes.",
        f"`{MODEL}` ({BATCH * T} tokens a step, {steps} steps, peak rate {lr:g}), the source of Python's standard library as bytes, validation on {VAL_TOKENS} tokens.",
        "Difference: the mean over the seeds of train_llama minus PyTorch, in pairs, in nats; 2 s.e.: twice the standard error of that mean.",
        "",
        table(done),
        f"![Loss curves and differences, by format]({os.path.basename(svg)})",
        "",
        f"Which recipe is it: the mean absolute gap of the first ten training losses, before runs part, in millionths of a nat. The smallest of a row stands at its own recipe in {nearest} of {len(OURS)}.",
        "",
        rows,
        "What a format costs:",
        "",
        cost(done),
        f"Updates skipped by the loss scale: {sum(r['skipped'] for r in done.values() if r['side'] == 'ours')} here, {sum(r['skipped'] for r in done.values() if r['side'] == 'theirs')} in torch.",
    ]
    if about:
        with open(about, encoding="utf-8") as f:
            lines += ["", f.read().strip()]
    study.write(svg, picture(done, steps))
    study.write(o.report, "\n".join(lines) + "\n")
    print("\n".join(lines))


# ---- the self-test -----------------------------------------------------------------------------------------------------


def nearest_code(x, fraction_bits, bias, largest):
    """x (exact) to the nearest number of a format, ties to even, by the formula of OCP OFP8; what is larger saturates."""
    exponent = max(1 - bias, math.frexp(float(abs(x)))[1] - 1) if x else 1 - bias
    place = Fraction(2) ** (exponent - fraction_bits)
    return max(-largest, min(largest, round(x / place) * place))


def exact(x, tile, rule, kind):
    """cast() of one row, in exact arithmetic."""
    bits, bias, largest = (3, 7, 448) if kind == E4M3 else (2, 15, 57344)
    out = []
    for i in range(0, len(x), tile):
        amax = max(map(abs, x[i : i + tile]))
        if rule == "largest":
            scale = Fraction(largest) / amax if amax else Fraction(1)
        else:
            power = {"power of two": Fraction(largest), "e8m0": Fraction(largest), "e8m0 down": Fraction(2) ** 9 - 1}[rule]  # below which the tile's amax stays
            scale = Fraction(2) ** 40
            while amax and amax * scale > power:
                scale /= 2
        out += [nearest_code(v * scale, bits, bias, largest) / scale for v in x[i : i + tile]]
    return out


def self_test():
    failed = []

    def check(name, good):
        failed.extend([] if good else [name])

    draw_ = torch.Generator().manual_seed(1)
    for rule, tile, kind in (("largest", 256, E4M3), ("largest", 256, E5M2), ("power of two", 128, E4M3), ("e8m0", 32, E4M3), ("e8m0 down", 32, E4M3)):
        x = torch.randn(256, generator=draw_) * torch.exp2(torch.randint(-12, 6, (256,), generator=draw_))
        x[7], x[64:96], x[130] = 448, 0, -0.9375  # exactly at the edge, a tile of zeros
        x = x.bfloat16().float()
        if rule == "largest":
            x[7], x[8:] = 448 if kind == E4M3 else 57344, x[8:].clamp(-440, 440)  # scale 1, which exact arithmetic has too
        got, want = cast(x[None], 1, tile, rule, kind)[0], exact([Fraction(float(v)) for v in x], tile, rule, kind)
        check(f"{rule}, {kind}", [Fraction(float(v)) for v in got] == want)
    square = torch.randn(256, 128, generator=draw_)
    check("a square's transpose has the square's codes", torch.equal(operand("fp8 block", "w", square), operand("fp8 block", "w", square.T).T))
    check("gradients are E5M2", not torch.equal(operand("fp8 tensor", "dy", square), operand("fp8 tensor", "x", square)))

    # The gradient of a product without codes is autograd's own.
    x, w = (torch.randn(s, generator=draw_, requires_grad=True) for s in ((2, 4, 32), (16, 32)))
    weight = torch.randn(2, 4, 16, generator=draw_)
    mine, torchs = (torch.autograd.grad((f(x, w) * weight).sum(), (x, w)) for f in (lambda x, w: Linear.apply(x, w, "fp32"), F.linear))
    check("gradients of a product", all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, torchs)))

    # Values 1, 2, 3, 4: mean 2.5, variance 5 / 3, standard error sqrt(5 / 12).
    found = compare([1.0, 2.0, 3.0, 4.0])
    check("mean and two standard errors", abs(found[0] - 2.5) < 1e-12 and abs(found[1] - 2 * math.sqrt(5 / 12)) < 1e-12 and found[2] == "outside")
    check("a mean within two standard errors", compare([-1.0, 2.0, -3.0, 4.0])[2] == "within")
    total = 5 + 2 + 1 + 1
    print(*(f"FAILED: {name}" for name in failed), f"{total - len(failed)} passed, {len(failed)} failed", sep="\n")
    return bool(failed)


def main():
    parser = whole_run.flags(__doc__, "runs/curves", "stdlib")
    parser.add_argument("--format", action="append", choices=[*OURS, *OTHERS], help="this one only; again for more")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--report", help="run nothing, write this page and the picture beside it")
    parser.add_argument("--about", help="a file of Markdown to put below the tables")
    parser.add_argument("--order", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    o = parser.parse_args()
    if o.self_test:
        return self_test()
    os.makedirs(o.out, exist_ok=True)
    order(o) if o.order else report(o, o.about) if o.report else run(o)
    return 0


if __name__ == "__main__":
    sys.exit(main())
