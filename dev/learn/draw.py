#!/usr/bin/env python3
"""The lessons' pictures, drawn from the same numbers as the lessons' checks.

  dev/learn/draw.py            writes dev/learn/*/picture.svg
  dev/learn/draw.py --check    says which of them are not what this file draws; exit code 1 if any
"""

import glob
import itertools
import math
import os
import sys

from draw_second import SECOND
from picture import BLUE, COLOURS, GREEN, GREY, ORANGE, PINK, SLATE, Picture


def initialisation():
    p = Picture("Initialisation", 300)
    p.head("Variance of the residual stream through 32 blocks, in units of one branch")
    x, y, w, h, layers = 60, 60, 300, 190, 32
    p.axes(x, y, w, h, "block", "variance")
    for scaled, colour, name in ((False, ORANGE, "every matrix at std"), (True, BLUE, "o_proj, down_proj at std / √(2L)")):
        per_branch = 1 / (2 * layers) if scaled else 1.0
        points = [(x + w * b / layers, y + h - h * (2 * b * per_branch) / (2 * layers)) for b in range(layers + 1)]
        p.line(points, colour, 2.5)
        p.text(x + w + 8, points[-1][1] + 4, f"{2 * layers * per_branch:g}", 12, colour=colour)
        p.text(x + (12 if not scaled else 84), y + (14 if not scaled else h - 14), name, 12, colour=colour)
    p.text(420, 70, "Every weight is a pure function:", 13, strong=True)
    for i, (name, what) in enumerate((("seed", "the run's"), ("tensor", "its row in the table"), ("i", "its element"))):
        p.box(420, 86 + 40 * i, 90, 30, COLOURS[i], 0.25, name, 13)
        p.text(518, 106 + 40 * i, what, 11)
        p.arrow(645, 101 + 40 * i, 668, 141 if i == 1 else 135 + 6 * i)
    p.box(670, 116, 74, 50, GREY, 0.2, "Philox", 13)
    p.arrow(707, 168, 707, 200)
    p.text(707, 216, "w[i]", 13, "middle", mono=True)
    p.text(420, 246, "No state: any rank makes any slice,", 12)
    p.text(420, 263, "and the bits are the same on 1 rank or 1,000.", 12)
    return p


def rmsnorm():
    p = Picture("RMSNorm", 300)
    p.head("Forward: only the direction stays")
    cx, cy, r = 180, 175, 90
    p.circle(cx, cy, r)
    for length, angle, colour in ((140, 0.5, BLUE), (45, 0.5, BLUE), (120, 2.2, ORANGE)):
        end = (cx + length * math.cos(angle), cy - length * math.sin(angle))
        on = (cx + r * math.cos(angle), cy - r * math.sin(angle))
        p.arrow(cx, cy, *end, colour, 2)
        p.circle(*on, 5, colour, colour)
    p.text(cx + 128, cy - 78, "x and x/3 give one y", 12, colour=BLUE)
    p.text(20, 285, "the circle: root mean square 1 (times w, element by element)", 12)
    p.head("Backward: nothing along x", x=430)
    cx, cy = 480, 200
    angle = 0.5
    along, across = 90, 75
    u, v = (math.cos(angle), -math.sin(angle)), (-math.sin(angle), -math.cos(angle))
    tip = (cx + along * u[0] + across * v[0], cy + along * u[1] + across * v[1])
    p.line([(cx - 30 * u[0], cy - 30 * u[1]), (cx + 190 * u[0], cy + 190 * u[1])], GREY, 1, True)
    p.arrow(cx, cy, cx + 170 * u[0], cy + 170 * u[1], BLUE, 2)
    p.text(cx + 174 * u[0], cy + 174 * u[1] + 14, "x", 13, colour=BLUE)
    p.arrow(cx, cy, *tip, ORANGE, 2)
    p.text(tip[0] + 6, tip[1], "dy · w", 13, colour=ORANGE)
    p.arrow(cx, cy, cx + across * v[0], cy + across * v[1], GREEN, 3)
    p.text(cx + across * v[0] - 10, cy + across * v[1] - 8, "dx / rstd", 13, "end", colour=GREEN)
    p.line([tip, (cx + across * v[0], cy + across * v[1])], GREY, 1, True)
    p.text(430, 285, "dx = rstd (dy w − x̂ mean(dy w x̂))", 13, mono=True)
    return p


def rope():
    p = Picture("Rotary positions", 330)
    p.head("Pairs turn with the position, each at its own speed (D = 8, theta = 10,000)")
    for j in range(4):
        cx = 100 + 180 * j
        p.circle(cx, 120, 62)
        speed = 10000 ** (-2 * j / 8)
        for t in range(6):
            a = t * speed
            p.arrow(cx, 120, cx + 62 * math.cos(a), 120 - 62 * math.sin(a), COLOURS[j], 1 + 0.3 * t)
        p.text(cx, 206, f"x[{j}], x[{j + 4}]", 12, "middle", mono=True)
        p.text(cx, 223, f"{speed:g} rad per token", 11, "middle")
    p.text(20, 252, "positions 0 to 5 as arrows; slow pairs tell far tokens apart, fast ones near tokens", 12)
    p.text(20, 288, "rotate_half", 13, mono=True)
    for i, value in enumerate((1, 2, 3, 4)):
        p.box(120 + 44 * i, 270, 40, 28, COLOURS[i % 2], 0.35, value, 14)
    p.arrow(305, 284, 350, 284)
    for i, value in enumerate((-3, -4, 1, 2)):
        p.box(360 + 44 * i, 270, 40, 28, COLOURS[i % 2], 0.35, value, 14)
    p.text(550, 282, "one colour is one pair:", 12)
    p.text(550, 298, "(1, 3) a quarter turn on is (−3, 1)", 12)
    return p


def attention():
    p = Picture("Causal attention", 340)
    p.head("Softmax under the causal mask")
    n, cell, x, y = 8, 28, 60, 60
    for t in range(n):
        scores = [2 * math.sin(1.7 * t + 2.3 * s) for s in range(t + 1)]
        total = sum(math.exp(s) for s in scores)
        for s in range(n):
            if s <= t:
                p.box(x + cell * s, y + cell * t, cell - 2, cell - 2, BLUE, 0.08 + 0.9 * math.exp(scores[s]) / total)
            else:
                p.frame(x + cell * s, y + cell * t, cell - 2, cell - 2, "#c9ccd1")
        p.text(x - 8, y + cell * t + 18, t, 11, "end")
    p.text(x + cell * n / 2, y + cell * n + 16, "key", 12, "middle")
    p.text(20, y + cell * n / 2, "query", 12, "middle")
    p.text(x, y + cell * n + 36, "every row sums to 1; empty: never computed", 12)
    p.head("One row, one key at a time", x=360)
    scores = [0.5, 2.0, 1.0, 3.5]
    largest, total = -math.inf, 0.0
    for i, head in enumerate(("score", "maximum", "× keep", "sum", "o")):
        p.text(370 + 72 * i, 62, head, 12, mono=i == 2)
    for row, s in enumerate(scores):
        new = max(largest, s)
        keep = math.exp(largest - new)
        total = total * keep + math.exp(s - new)
        largest = new
        values = (f"{s:g}", f"{largest:g}", f"{keep:.3f}" if row else "-", f"{total:.3f}", f"o·keep+p·v{row}" if row else "p·v0")
        for i, value in enumerate(values):
            p.text(370 + 72 * i, 88 + 30 * row, value, 12, mono=True, colour=ORANGE if i == 2 and row and keep < 1 else None)
    p.text(380, 222, "When the maximum grows, what was summed", 12)
    p.text(380, 239, "before shrinks by keep = exp(old − new).", 12)
    p.text(380, 266, "exp never sees a number above 0, and a row", 12)
    p.text(380, 283, "of T scores is never in memory.", 12)
    return p


def grouped_queries():
    p = Picture("Grouped queries", 270)
    p.head("Query heads (top) and the key/value heads they read (bottom)")
    for i, (kv, real, name) in enumerate(((8, 32, "multi-head: K = H"), (2, 8, "grouped: K = H / 4"), (1, 1, "multi-query: K = 1"))):
        x0 = 20 + 250 * i
        for h in range(8):
            group = h // (8 // kv)
            x, to = x0 + 27 * h, x0 + (group + 0.5) * 216 / kv - 13
            p.box(x, 60, 22, 26, COLOURS[group % 4], 0.7)
            p.line([(x + 11, 88), (to + 12, 148)], COLOURS[group % 4], 1.2)
        for g in range(kv):
            p.box(x0 + (g + 0.5) * 216 / kv - 13, 150, 24, 26, COLOURS[g % 4], 0.7)
        p.text(x0, 204, name, 13, strong=True)
        kib = 2 * 32 * real * 128 * 2 / 1024
        p.text(x0, 224, "at 32 query heads of 128, 32 layers and", 11)
        p.text(x0, 239, f"K = {real}: cache of {kib:g} KiB per token in bf16", 11)
    return p


def model():
    p = Picture("Block and model", 420)
    p.head("One block on the residual stream (N = B·T rows; Llama 3.1 8B's sizes)")
    steps = [("rmsnorm", "(N, 4096)", GREY), ("q, k, v", "(N, 6144)", BLUE), ("rope", "q, k", BLUE), ("attention", "(N, 4096)", BLUE),
             ("o_proj", "(N, 4096)", BLUE)]
    mlp = [("rmsnorm", "(N, 4096)", GREY), ("gate, up", "(N, 28672)", ORANGE), ("silu · mul", "(N, 14336)", ORANGE),
           ("down_proj", "(N, 4096)", ORANGE)]
    for row, items in enumerate((steps, mlp)):
        y = 70 + 130 * row
        p.line([(20, y - 18), (700, y - 18)], GREEN, 3)
        p.text(20, y - 26, "residual stream (N, 4096)", 11, colour=GREEN)
        p.arrow(50, y - 18, 50, y + 18, GREY)
        for i, (name, shape, colour) in enumerate(items):
            x = 40 + 125 * i
            p.box(x, y + 18, 100, 34, colour, 0.25, name, 13)
            p.text(x + 50, y + 68, shape, 11, "middle", mono=True)
            if i:
                p.arrow(x - 24, y + 35, x - 1, y + 35, GREY)
        last = 40 + 125 * (len(items) - 1) + 100
        p.line([(last, y + 35), (680, y + 35)], GREY)
        p.arrow(680, y + 35, 680, y - 16, GREY)
        p.text(690, y + 14, "+", 16)
    y = 330
    p.head("The model", y)
    for i, (name, count) in enumerate((("embedding", "V·C = 525M"), ("32 blocks", "32 · 218M = 6,980M"), ("norm", "C = 4,096"),
                                       ("head", "V·C = 525M"), ("loss", "log V = 11.76 at first"))):
        x = 20 + 146 * i
        p.box(x, y + 14, 126, 34, (GREY, BLUE, GREY, GREY, PINK)[i], 0.25, name, 13)
        p.text(x + 63, y + 66, count, 11, "middle")
        if i:
            p.arrow(x - 19, y + 31, x - 1, y + 31)
    return p


def units():
    p = Picture("Units", 330)
    p.head("How finely to cut: Llama 3.1 8B in bf16, gathered by ZeRO-3 with one unit ahead")
    c = {"embedding": 128256 * 4096, "block": 218112000, "head": 128256 * 4096 + 4096}
    total = c["embedding"] + 32 * c["block"] + c["head"]
    rows = (("the whole model at once", [total], 1, total),
            ("a unit is a block", [c["embedding"]] + [c["block"]] * 32 + [c["head"]], 34, c["head"] + c["block"]),
            ("a unit is a tensor", None, 291, c["head"] + 4096))
    for i, (name, cut, messages, peak) in enumerate(rows):
        y = 60 + 74 * i
        p.text(20, y, name, 13, strong=True)
        x = 20.0
        sizes = cut if cut else [c["embedding"]] + [s for _ in range(32) for s in
                                                    (4096, 16777216, 4194304, 4194304, 16777216, 4096, 58720256, 58720256, 58720256)] + [4096, c["head"]]
        for k, s in enumerate(sizes):
            w = 470 * s / total
            p.box(x, y + 8, max(w - (0.7 if len(sizes) > 40 else 1.2), 0.3), 26, COLOURS[k % 2], 0.6)
            x += w
        p.text(505, y + 18, f"{messages} all-gathers a pass", 12)
        p.text(505, y + 36, f"{2 * peak / 1e9:.1f} GB gathered at most", 12)
    y = 284
    p.text(20, y, "and a unit's slices on 4 ranks:", 13)
    for r in range(4):
        p.box(230 + 70 * r, y - 16, 68, 24, COLOURS[r], 0.6, f"rank {r}", 12)
    p.text(20, y + 28, "Every rank sends a quarter of every unit. With one slice of the whole buffer per rank, one rank would send all of it.", 12)
    return p


def cross_entropy():
    p = Picture("Cross-entropy", 300)
    logits, target = [1.0, 2.0, 3.0, 4.0, 0.0, 2.5], 2
    total = sum(math.exp(v) for v in logits)
    probs = [math.exp(v) / total for v in logits]
    gradient = [q - (i == target) for i, q in enumerate(probs)]
    for k, (name, values, scale, low) in enumerate((("logits", logits, 30, 230), ("softmax p", probs, 180, 230),
                                                    ("gradient p − 1[target]", gradient, 105, 150))):
        x0 = 30 + 250 * k
        p.head(name, x=x0)
        p.line([(x0, low), (x0 + 200, low)], GREY, 1)
        for i, v in enumerate(values):
            h = v * scale
            p.box(x0 + 6 + 33 * i, low - max(h, 0), 26, max(abs(h), 1), ORANGE if i == target else BLUE, 0.75)
            p.text(x0 + 19 + 33 * i, low - h - 5 if h >= 0 else low - h + 14, f"{v:.2f}".replace("-", "−"), 10, "middle")
    p.text(30, 262, f"loss = log Σ exp(logits) − logits[target] = {math.log(total) - logits[target]:.3f}", 13, mono=True)
    p.text(30, 285, "The gradient sums to 0 and is never beyond ±1: what the target gains, the others give.", 12)
    return p


def adamw():
    p = Picture("AdamW", 300)
    p.head("Warm-up, then a cosine to a tenth")
    x, y, w, h = 50, 60, 300, 160
    p.axes(x, y, w, h, "step", "lr")
    rates = [s / 20 if s <= 20 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (s - 20) / 80)) for s in range(101)]
    p.line([(x + w * step / 100, y + h - h * rate) for step, rate in enumerate(rates)], BLUE, 2.5)
    p.text(x + 60, y - 8, "peak", 12, "middle")
    p.text(x + w + 4, y + h - 12, "floor", 12)
    p.text(20, 262, "decays: matrices (embedding, q, k, v, o, gate, up, down, head)", 12)
    p.text(20, 280, "does not: norm gains, whose natural value is 1", 12)
    p.head("Two weights, gradients 100 : 1", x=430)
    x, w = 450, 250
    p.axes(x, y, w, h, "step", "weight")
    for size, colour, dashed in ((1.0, BLUE, False), (0.01, ORANGE, True)):
        m = v = value = sgd_value = 0.0
        adam, sgd = [], []
        for step in range(1, 31):
            g = size * math.cos(step / 9)
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            value -= 0.02 * (m / (1 - 0.9**step)) / (math.sqrt(v / (1 - 0.95**step)) + 1e-8)
            sgd_value -= 0.02 * g
            adam.append((x + w * step / 30, y + 20 - value * 380))
            sgd.append((x + w * step / 30, y + 20 - sgd_value * 380))
        p.line(sgd, colour, 1, True)
        p.line(adam, colour, 3 if not dashed else 1.5, False)
    p.text(450, 250, "solid: Adam, the same path for both", 12)
    p.text(450, 268, "dashed: plain gradient descent", 12)
    return p


def accumulation():
    p = Picture("Accumulation and clipping", 300)
    p.head("Three micro-batches of one update")
    with_target = (4, 0, 1)
    for m, n in enumerate(with_target):
        for i in range(4):
            x = 20 + 120 * m + 26 * i
            if i < n:
                p.box(x, 50, 24, 30, COLOURS[m], 0.7)
            else:
                p.frame(x, 50, 24, 30, "#c9ccd1")
        p.text(20 + 120 * m, 98, f"{n} targets", 12)
    p.text(20, 132, "right: every token counts 1/5", 13, strong=True)
    p.text(20, 158, "wrong: mean of means", 13, strong=True)
    for k in range(5):
        p.box(250 + 40 * k, 118, 38, 18, COLOURS[0] if k < 4 else COLOURS[2], 0.7)
    for k in range(4):
        p.box(250 + 25 * k, 144, 24, 18, COLOURS[0], 0.7)
    p.box(350, 144, 98, 18, COLOURS[2], 0.7)
    p.text(250, 182, "four tokens share half, one gets half", 12)
    p.text(20, 222, "Scale each micro-batch by 1 / targets of the whole update,", 12)
    p.text(20, 239, "counted before the first backward pass, over all ranks.", 12)
    cx, cy = 570, 200
    p.head("Clipping keeps the direction", x=500)
    p.circle(cx, cy, 60)
    p.arrow(cx, cy, cx + 140, cy - 140, ORANGE, 2)
    p.arrow(cx, cy, cx + 60 / math.sqrt(2), cy - 60 / math.sqrt(2), BLUE, 3)
    p.text(cx + 66, cy - 134, "norm 3.3", 12, colour=ORANGE)
    p.text(cx + 50, cy - 34, "norm 1", 12, colour=BLUE)
    p.text(cx - 70, cy + 84, "one root over all pieces", 12)
    return p


def mixed_precision():
    p = Picture("Number formats", 330)
    p.head("Sign, exponent, fraction")
    for i, (name, e, f) in enumerate((("fp32", 8, 23), ("bf16", 8, 7), ("fp16", 5, 10))):
        y = 46 + 34 * i
        p.text(20, y + 17, name, 13, mono=True)
        x = 70
        for count, colour in ((1, GREY), (e, ORANGE), (f, BLUE)):
            for _ in range(count):
                p.box(x, y, 13, 24, colour, 0.65)
                x += 15
        p.text(x + 10, y + 17, f"{e} exponent, {f + 1} significant bits", 12)
    p.head("What they can hold", 180)
    x0, w, low, high = 90, 620, -150, 130

    def at(exponent):
        return x0 + w * (exponent - low) / (high - low)

    for i, (name, smallest, largest) in enumerate((("fp32", -149, 128), ("bf16", -133, 128), ("fp16", -24, 16))):
        y = 196 + 24 * i
        p.text(20, y + 13, name, 13, mono=True)
        p.box(at(smallest), y, at(largest) - at(smallest), 16, COLOURS[i], 0.5)
    for e in (-149, -100, -50, 0, 50, 100):
        p.text(at(e), 286, f"2^{e}".replace("-", "−"), 10, "middle")
    p.frame(at(-40), 192, at(-5) - at(-40), 78, PINK, True)
    p.text(at(-22), 304, "most gradients are here: bf16 holds them all, fp16 only with the loss scaled up", 12, "middle", colour=PINK)
    p.text(20, 322, "bf16 near 1: steps of 2^−7, so an update of 2^−9 is lost. Hence fp32 masters.", 12)
    return p


def ring():
    p = Picture("Ring all-reduce", 330)
    p.head("Four ranks, four slices: how many ranks' values each holds, hop by hop")
    n = 4
    have = [[1] * n for _ in range(n)]
    frames = [("start", [r[:] for r in have], [])]
    for name in ("reduce", "gather"):
        for s in range(n - 1):  # rank r sends slice r - 1 - s, which s more have been added to; then r - s, complete
            arrived = [((r + 1) % n, (r - s - (name == "reduce")) % n) for r in range(n)]
            for to, c in arrived:
                have[to][c] = s + 2 if name == "reduce" else n
            frames.append((f"{name} {s + 1}", [r[:] for r in have], arrived))
    for f, (name, grid, changed) in enumerate(frames):
        x0 = 70 + 98 * f
        p.text(x0 + 40, 58, name, 12, "middle")
        for r in range(n):
            for c in range(n):
                x, y = x0 + 21 * c, 70 + 30 * r
                p.box(x, y, 19, 24, COLOURS[c], 0.12 + 0.2 * grid[r][c], grid[r][c], 11, "#ffffff" if grid[r][c] > 2 else None)
                if (r, c) in changed:
                    p.frame(x - 1, y - 1, 21, 26, "#55595f")
    for r in range(n):
        p.text(60, 87 + 30 * r, f"rank {r}", 12, "end")
    p.text(20, 222, "framed: what has just arrived from the left neighbour. Columns are slices 0 to 3.", 12)
    p.text(20, 250, "After 3 hops rank c has slice c complete; 3 more hops take it around.", 12)
    p.text(20, 278, "Each rank sends 2 · 3 quarters: 2 (N − 1) / N of the data, 1.5 times on 4 ranks and 2 times on 4,000.", 12)
    p.text(20, 306, "Slice c is ((g[c+1] + g[c+2]) + g[c+3]) + g[c]: the owner decides the order, not the timing.", 12)
    return p


def zero():
    p = Picture("ZeRO", 330)
    p.head("Bytes per parameter on each of 4 ranks (bf16 training, fp32 master, m and v)")
    for stage in range(4):
        y = 50 + 56 * stage
        p.text(20, y + 24, f"ZeRO-{stage}", 13, strong=True)
        x, total = 100.0, 0
        for name, size, shared, colour in (("parameters", 2, stage >= 3, BLUE), ("gradients", 2, stage >= 2, ORANGE),
                                           ("master, m, v", 12, stage >= 1, SLATE)):
            mine = size / 4 if shared else size
            total += mine
            p.box(x, y, 24 * mine, 36, colour, 0.7)
            if shared:
                p.frame(x + 24 * mine, y, 24 * (size - mine), 36, colour, True)
            if stage == 0:
                p.text(x + 12 * size, y + 22, name if size > 2 else name[:5] + ".", 11, "middle", colour="#ffffff")
            x += 24 * size
        p.text(500, y + 16, f"{total:g} bytes", 13, strong=True)
        p.text(500, y + 32, ("", "4 + 12/N, at most 4x less", "2 + 14/N, at most 8x less", "16/N, N times less")[stage], 12)
        p.text(680, y + 22, f"sends {3 if stage == 3 else 2}x", 12)
    p.text(20, 292, "dashed: kept by the three other ranks.  sends: multiples of (N−1)/N of the parameters per step.", 12)
    p.text(20, 312, "An all-reduce is a reduce-scatter and an all-gather, so stages 1 and 2 send no more than stage 0.", 12)
    return p


def recomputation():
    p = Picture("Recomputation", 320)
    p.head("Values kept during a step through 64 layers")
    x, y, w, h = 50, 60, 480, 200
    p.axes(x, y, w, h, "time", "kept")
    for k, colour in ((1, ORANGE), (8, BLUE), (64, PINK)):
        # Each pass: how long it takes, and by how much what is kept grows.
        passes = [(1, layer % k == 0) for layer in range(64)]
        passes += 64 // k * ([(1, 1)] * (k - 1) + [(2, 0)] * (k - 1) + [(2, -k)])
        trace = list(itertools.accumulate(passes, lambda at, by: (at[0] + by[0], at[1] + by[1]), initial=(0, 0)))
        p.line([(x + w * t / 260, y + h - h * v / 70) for t, v in trace], colour, 2)
        most = max(v for _, v in trace)
        row = (1, 8, 64).index(k)
        what = ("keep every input", "segments of 8", "keep only the first")[row]
        p.line([(555, 90 + 50 * row), (580, 90 + 50 * row)], colour, 3)
        p.text(588, 94 + 50 * row, what, 12)
        p.text(588, 110 + 50 * row, f"{most} kept, {128 - 64 // k} forward", 12)
    p.text(20, 295, "√64 = 8: the shortest peak is where L/k + k is smallest. One more forward pass is a third more work, at most.", 12)
    return p


def checkpoint():
    p = Picture("Checkpoint and resume", 330)
    p.head("What step t + 1 reads, and so what a checkpoint holds")
    items = (("weights", "fp32 masters", BLUE), ("m, v", "AdamW's moments", BLUE), ("updates", "for 1 − β^t", ORANGE),
             ("position", "which samples follow", ORANGE), ("flags", "schedule, batch, types", GREEN))
    for i, (name, what, colour) in enumerate(items):
        p.box(20 + 146 * i, 42, 130, 36, colour, 0.3, name, 14)
        p.text(85 + 146 * i, 94, what, 11, "middle")
    p.text(20, 120, "No generator has to be saved: order and rounding are functions of seed, position and step.", 12)
    p.head("Written whole or not at all", 156)
    steps = ("write beside", "sync", "read back, hash", "rename", "drop the oldest")
    for i, name in enumerate(steps):
        p.box(20 + 146 * i, 172, 126, 34, GREEN if i >= 3 else GREY, 0.3, name, 13)
        if i:
            p.arrow(20 + 146 * i - 19, 189, 19 + 146 * i, 189)
    for i in range(5):
        p.text(83 + 146 * i, 226, "step 200" if i < 3 else "step 300", 12, "middle", colour=ORANGE if i < 3 else GREEN)
    p.text(20, 250, "what a kill at this moment leaves to resume from", 12)
    p.line([(20, 290), (700, 290)], GREY, 1)
    for i in range(11):
        p.line([(20 + 68 * i, 285), (20 + 68 * i, 295)], GREY, 1)
    p.line([(20, 282), (500, 282)], ORANGE, 3)
    p.text(506, 284, "killed", 12, colour=ORANGE)
    p.line([(428, 300), (700, 300)], BLUE, 3)
    p.text(428, 320, "resumed from 300: the same bits", 12, colour=BLUE)
    p.text(428, 274, "300", 11, "middle")
    return p


def one_forward_one_backward(stage, stages, micro_batches):
    ahead = min(stages - 1 - stage, micro_batches)
    out = list(range(1, ahead + 1))
    for b in range(1, micro_batches + 1):
        out += [ahead + b, -b] if ahead + b <= micro_batches else [-b]
    return out


def all_forward_all_backward(stage, stages, micro_batches):
    return list(range(1, micro_batches + 1)) + list(range(-1, -micro_batches - 1, -1))


def play(order):
    """(stage, what, begin, end) for every pass; forward passes take 1 tick, backward passes 2."""
    stages, done, free, index, out = len(order), {}, [0] * len(order), [0] * len(order), []
    while any(index[s] < len(order[s]) for s in range(stages)):
        for s in range(stages):
            if index[s] == len(order[s]):
                continue
            what = order[s][index[s]]
            need = (s - 1, what) if what > 0 else (s + 1, what) if s + 1 < stages else (s, -what)
            if not (what > 0 and s == 0) and need not in done:
                continue
            begin = max(free[s], done.get(need, 0))
            end = begin + (1 if what > 0 else 2)
            done[s, what] = free[s] = end
            index[s] += 1
            out.append((s, what, begin, end))
    return out


def pipeline():
    p = Picture("Pipeline schedules", 400)
    stages, batches = 4, 8
    for k, (name, make) in enumerate((("All forward, all backward", all_forward_all_backward),
                                      ("One forward, one backward", one_forward_one_backward))):
        passes = play([make(s, stages, batches) for s in range(stages)])
        ticks = max(end for *_, end in passes)
        y0 = 50 + 170 * k
        p.head(f"{name}: {ticks} ticks, idle {1 - batches * 3 / ticks:.0%}", y0 - 20)
        for s, what, begin, end in passes:
            p.box(60 + 20 * begin, y0 + 26 * s, 20 * (end - begin) - 1.5, 22, BLUE if what > 0 else ORANGE, 0.75, abs(what),
                  11, "#ffffff")
        for s in range(stages):
            p.text(52, y0 + 26 * s + 15, f"stage {s}", 11, "end")
            mine = sorted((q for q in passes if q[0] == s), key=lambda q: q[2])
            most = max(itertools.accumulate(1 if what > 0 else -1 for _, what, *_ in mine))
            p.text(728, y0 + 26 * s + 15, f"{most}", 12, strong=True)
        p.text(728, y0 + 26 * stages + 12, "kept", 11)
    p.box(60, 364, 16, 16, BLUE, 0.75)
    p.text(82, 377, "forward pass", 12)
    p.box(190, 364, 16, 16, ORANGE, 0.75)
    p.text(212, 377, "backward pass (twice as long)", 12)
    p.text(420, 377, "kept: micro-batches in memory, at most", 12)
    return p


DRAWN = (initialisation, rmsnorm, rope, attention, grouped_queries, model, units, cross_entropy, adamw, accumulation,
         mixed_precision, ring, zero, recomputation, checkpoint, pipeline, *SECOND)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    stale = []
    for i, draw in enumerate(DRAWN, 1):
        (folder,) = glob.glob(f"{here}/{i:02d}_*")
        path, svg = f"{folder}/picture.svg", draw().svg()
        if sys.argv[1:] == ["--check"]:
            if not os.path.exists(path) or open(path).read() != svg:
                stale.append(path)
        else:
            with open(path, "w") as f:
                f.write(svg)
    for path in stale:
        print(f"{path} is not what draw.py draws: run dev/learn/draw.py")
    sys.exit(1 if stale else 0)


main()
