"""The pictures of lessons 17 to 25, for draw.py."""

import collections
import math

from picture import BLUE, COLOURS, GREEN, GREY, ORANGE, PINK, Picture


def merge(ids, pair):
    out, i = [], 0
    while i < len(ids):
        here = tuple(ids[i:i + 2]) == pair
        out.append("".join(pair) if here else ids[i])
        i += 2 if here else 1
    return out


def byte_pairs():
    p = Picture("Byte-pair merges", 330)
    p.head("Learning: merge the most frequent pair, again and again")
    ids, learned, y = list("low.lower.newest.widest.newest."), [], 62
    for row in range(5):
        x = 20
        for piece in ids:
            w = 12 + 7 * (len(piece) - 1)
            colour = COLOURS[learned.index(piece) % 4] if piece in learned else GREY
            p.box(x, y + 30 * row, w, 22, colour, 0.6 if piece in learned else 0.18, piece, 11)
            x += w + 3
        count = collections.Counter(zip(ids, ids[1:]))
        best = max(count, key=count.get)
        if row < 4:
            p.text(530, y + 30 * row + 15, f"{best[0]} + {best[1]}: {count[best]} times", 12, mono=True)
            ids = merge(ids, best)
            learned.append("".join(best))
        else:
            p.text(530, y + 30 * row + 15, f"31 bytes, now {len(ids)} tokens", 12)
    p.head("Encoding: the lowest rank first, not the leftmost pair", 246)
    for row, (pieces, note) in enumerate(((("e", "r", "e"), "GPT-2: r + e is merge 5, e + r is merge 8"),
                                          (("e", "re"), "so e|re; from the left it would be er|e"))):
        x = 20
        for piece in pieces:
            w = 26 + 12 * (len(piece) - 1)
            p.box(x, 262 + 32 * row, w, 24, BLUE if len(piece) > 1 else GREY, 0.6 if len(piece) > 1 else 0.18, piece, 13)
            x += w + 4
        p.text(130, 278 + 32 * row, note, 12)
    return p


def cuda_kernel():
    p = Picture("A kernel's row sum", 330)
    p.head("A row of 1,024 floats on 128 threads, which are four warps")
    for i in range(32):
        p.box(20 + 22 * i, 42, 20, 22, COLOURS[i // 4 % 4], 0.6)
    p.text(20, 84, "a box is 32 elements, a colour a warp: thread t takes t, t + 128, t + 256, ...: a warp reads 128 bytes in a row", 12)
    p.head("Inside a warp: __shfl_xor_sync", 116)
    lanes, x0, y0 = 8, 20, 136
    for step, distance in enumerate((0, 4, 2, 1)):
        for lane in range(lanes):
            group = lane if step == 0 else lane % (8 >> step)
            p.box(x0 + 40 * lane, y0 + 40 * step, 34, 20, COLOURS[group % 4], 0.3 + 0.15 * step, 1 << step, 11)
            if step:
                p.line([(x0 + 40 * (lane ^ distance) + 17, y0 + 40 * step - 20), (x0 + 40 * lane + 17, y0 + 40 * step)], GREY, 0.8)
        p.text(x0 + 40 * lanes + 4, y0 + 40 * step + 14, f"l ^ {distance}" if step else "8 of 32 lanes", 11)
    p.text(20, 296, "the number of values each lane has the sum of: after log₂ 32 = 5", 12)
    p.text(20, 310, "exchanges all lanes have the warp's, without shared memory and", 12)
    p.text(20, 324, "without a barrier", 12)
    p.head("Between warps", 116, x=470)
    for warp in range(4):
        p.box(480 + 64 * warp, 136, 56, 24, COLOURS[warp], 0.6, f"warp {warp}", 11)
        p.arrow(508 + 64 * warp, 162, 508 + 64 * warp, 180)
        p.frame(480 + 64 * warp, 182, 56, 22)
    p.text(480, 222, "of_warp[4], shared memory", 11, mono=True)
    p.line([(470, 234), (740, 234)], PINK, 3)
    p.text(480, 252, "__syncthreads(): nobody passes before all came", 11, colour=PINK)
    p.text(480, 274, "then every thread adds the four in one order:", 12)
    p.text(480, 291, "the same bits in all 128, on every run", 12)
    return p


def sampling():
    p = Picture("Sampling with a cache", 330)
    p.head("With a cache only one row is new")
    cell, x0, y0 = 22, 60, 52
    for t in range(8):
        for s in range(8):
            x, y = x0 + cell * s, y0 + cell * t
            if s > t:
                p.frame(x, y, cell - 2, cell - 2, "#c9ccd1")
            else:
                p.box(x, y, cell - 2, cell - 2, ORANGE if t == 7 else BLUE, 0.8 if t == 7 else 0.18)
    p.text(x0 - 8, y0 + 15, "token 0", 11, "end")
    p.text(x0 - 8, y0 + 169, "token 7", 11, "end", colour=ORANGE)
    p.text(20, y0 + 196, "8 keys and values are kept, 1 query is new;", 12)
    p.text(20, y0 + 213, "without a cache: 36 scores again for this token", 12)
    p.text(20, y0 + 240, "kept per token: 2 · layers · K · D numbers", 12)
    p.text(20, y0 + 257, "Llama 3.1 8B in bf16: 128 KiB", 12)
    logits = [math.log(v) for v in (4, 3, 2, 1)]
    panels = (("temperature 1", 1, 4), ("temperature 0.5", 0.5, 4), ("top_k 2", 1, 2), ("top_p 0.65", 1, 2))
    for i, (name, temperature, kept) in enumerate(panels):
        x, y = 330 + 216 * (i % 2), 56 + 140 * (i // 2)
        p.text(x, y - 16, name, 13, strong=True)
        weights = [math.exp(v / temperature) for v in logits]
        total = sum(weights[:kept])
        p.line([(x, y + 90), (x + 180, y + 90)], GREY, 1)
        for k, w in enumerate(weights):
            share = w / total if k < kept else 0
            if share:
                p.box(x + 8 + 44 * k, y + 90 - 120 * share, 34, 120 * share, (ORANGE, BLUE, GREEN, PINK)[k], 0.75)
            else:
                p.frame(x + 8 + 44 * k, y + 90 - 120 * w / sum(weights), 34, 120 * w / sum(weights), GREY, True)
            p.text(x + 25 + 44 * k, y + 104, f"{share:.2f}", 10, "middle")
    p.text(330, 322, "logits log 4, log 3, log 2, log 1; a draw walks from left to right", 12)
    return p


def tensor_parallel():
    p = Picture("Column- and row-parallel products", 340)
    p.head("Two products on two ranks, one sum for both")
    for r, colour in enumerate((BLUE, ORANGE)):
        y = 70 + 120 * r
        p.text(20, y + 34, f"rank {r}", 13, strong=True)
        p.box(80, y, 60, 60, GREY, 0.25, "x", 14)
        p.text(110, y + 76, "(rows, C), whole", 11, "middle")
        p.text(152, y + 34, "·", 18)
        p.frame(170, y - 10, 100, 60, GREY, True)
        p.box(170 + 50 * r, y - 10, 50, 60, colour, 0.7, "Uᵀ", 13)
        p.text(220, y + 66, f"{'first' if r == 0 else 'second'} half of F", 11, "middle")
        p.arrow(276, y + 30, 300, y + 30)
        p.frame(306, y, 100, 60, GREY, True)
        p.box(306 + 50 * r, y, 50, 60, colour, 0.7, "relu", 12)
        p.text(356, y + 76, "h: its columns, final", 11, "middle")
        p.text(416, y + 34, "·", 18)
        p.frame(434, y - 20, 60, 100, GREY, True)
        p.box(434, y - 20 + 50 * r, 60, 50, colour, 0.7, "Dᵀ", 13)
        p.arrow(500, y + 30, 524, y + 30)
        p.box(530, y, 60, 60, colour, 0.35, "y part", 12)
        p.text(560, y + 76, "all of it, partial", 11, "middle")
    p.arrow(594, 100, 634, 150, GREEN, 2)
    p.arrow(594, 220, 634, 170, GREEN, 2)
    p.box(640, 136, 90, 48, GREEN, 0.6, "all-reduce", 13)
    p.text(685, 200, "y", 13, "middle")
    p.text(20, 306, "Backward the picture runs from right to left: dy is whole, dD and dU stay where they are, dx is partial and is summed.", 12)
    p.text(20, 324, "A sum after the first product would be a second all-reduce, F / C times as large, for nothing.", 12)
    return p


def ring_attention():
    p = Picture("Ring attention", 350)
    ranks, cell = 4, 26
    for panel, (name, chunks) in enumerate((("neighbouring chunks: rank 0 waits", lambda r: (2 * r, 2 * r + 1)),
                                            ("chunks r and 2N − 1 − r: equally many", lambda r: (r, 2 * ranks - 1 - r)))):
        x0, y0 = 60 + 370 * panel, 60
        p.head(name, x=x0 - 40)
        owner = {c: r for r in range(ranks) for c in chunks(r)}
        work = [0] * ranks
        for q in range(8):
            for k in range(8):
                x, y = x0 + cell * k, y0 + cell * q
                if k > q:
                    p.frame(x, y, cell - 2, cell - 2, "#c9ccd1")
                    continue
                p.box(x, y, cell - 2, cell - 2, COLOURS[owner[q]], 0.75 if k < q else 0.4, f"{(owner[q] - owner[k]) % ranks}", 11)
                work[owner[q]] += 2 if k < q else 1
        for r in range(ranks):
            p.box(x0 + 216, y0 + 30 * r, 2.6 * work[r], 20, COLOURS[r], 0.75)
            p.text(x0 + 222 + 2.6 * work[r], y0 + 30 * r + 15, f"rank {r}", 11)
        p.text(x0, y0 + 8 * cell + 16, "chunk of keys", 11)
        p.text(x0 - 10, y0 + 60, "queries", 11, "end")
    p.text(20, 312, "colour: the rank whose queries they are. Number: the hop at which the keys are there; at 0 its own, then from the left.", 12)
    p.text(20, 332, "Each step's output joins the sum by its log-sum-exp, so no rank ever holds more than two parts of the keys.", 12)
    return p


def fp8():
    p = Picture("FP8 and its scales", 330)
    p.head("e4m3: all it has from 0 to 448, on a logarithmic axis")
    x0, w = 30, 700

    def at(v):
        return x0 + w * (math.log2(v) + 10) / 20

    p.line([(x0, 80), (x0 + w, 80)], GREY, 1)
    for code in range(1, 127):
        e, f = code >> 3, code & 7
        v = f * 2.0**-9 if e == 0 else (8 + f) * 2.0**(e - 10)
        p.line([(at(v), 64), (at(v), 80)], ORANGE if e == 0 else BLUE, 1.5)
    for e in (-9, -6, -3, 0, 3, 6):
        p.text(at(2.0**e), 96, f"2^{e}".replace("-", "−"), 10, "middle")
    p.text(at(448), 96, "448", 10, "middle")
    p.text(at(2.0**-7.5), 56, "subnormal", 11, "middle", colour=ORANGE)
    p.text(at(4), 56, "8 steps for each power of two", 11, "middle", colour=BLUE)
    p.text(20, 124, "Gradients of 1e-6 lie left of all this: without a scale every one of them becomes 0.", 12)
    p.head("One outlier of 1 among gradients of 1e-6", 158)
    for row, (name, scaled) in enumerate((("one scale, 448 / 1", lambda b: b == 3), ("a scale per 128", lambda b: True))):
        y = 180 + 60 * row
        p.text(20, y + 16, name, 13, strong=True)
        for b in range(8):
            good = scaled(b) and not b == 3
            p.box(190 + 66 * b, y, 62, 26, PINK if b == 3 else GREEN if good else GREY, 0.6 if good or b == 3 else 0.15,
                  "1, zeros" if b == 3 else "kept" if good else "zeros", 11)
    p.text(20, 308, "A block's scale is 448 / its largest magnitude: only what shares a block with the outlier is lost.", 12)
    return p


def tiles(count, come, update, go):
    """(hand, tile, begin, end): lesson 23's recurrence"""
    out, ends = [], {}
    for i in range(count):
        b = max(ends.get((0, i - 1), 0), ends.get((2, i - 2), 0))
        for hand, cost in enumerate((come, update, go)):
            b = max(b, ends.get((hand, i - 1), 0))
            ends[hand, i] = b + cost
            out.append((hand, i, b, b + cost))
            b += cost
    return out


def offload():
    p = Picture("Offload", 350)
    for k, (name, costs) in enumerate((("the bus is slow: 3 to come, 1 to update, 3 to go", (3, 1, 3)),
                                       ("a fast bus: 1, 3, 1", (1, 3, 1)))):
        y0 = 56 + 118 * k
        p.head(name, y0 - 18)
        passes = tiles(5, *costs)
        for hand, tile, begin, end in passes:
            p.box(90 + 24 * begin, y0 + 26 * hand, 24 * (end - begin) - 1.5, 22, COLOURS[tile % 2], 0.75, tile, 11, "#ffffff")
        for hand, what in enumerate(("comes", "updates", "goes")):
            p.text(82, y0 + 26 * hand + 15, what, 11, "end")
        last = max(end for *_, end in passes)
        p.line([(90 + 24 * last, y0), (90 + 24 * last, y0 + 74)], GREY, 1)
        p.text(94 + 24 * last, y0 + 15, f"{last}", 12, strong=True)
    p.text(560, 200, "two colours: the device", 12)
    p.text(560, 217, "has memory for two tiles;", 12)
    p.text(560, 234, "tile i waits for i − 2", 12)
    y = 290
    p.head("Bytes per parameter and step across the bus", y - 10)
    for i, (name, a, b) in enumerate((("state comes and goes", 12, 12), ("the host updates", 2, 2))):
        p.text(20, y + 16 + 26 * i, name, 12)
        p.box(180, y + 2 + 26 * i, 9 * a, 20, BLUE, 0.7, a, 11, "#ffffff" if a > 5 else None)
        p.box(182 + 9 * a, y + 2 + 26 * i, 9 * b, 20, ORANGE, 0.7, b, 11, "#ffffff" if b > 5 else None)
    p.text(410, y + 16, "blue: to the device", 12)
    p.text(410, y + 42, "orange: to the host", 12)
    return p


def two_levels():
    p = Picture("Two levels of a collective", 350)
    nodes, locals_ = 3, 4
    for panel, (name, x0) in enumerate((("flat ring: one card per node", 20), ("two levels: every card, a slice each", 400))):
        p.head(name, x=x0)
        for node in range(nodes):
            y = 50 + 78 * node
            p.frame(x0, y, 330, 54)
            p.text(x0 + 8, y + 16, f"node {node}", 11)
            for local in range(locals_):
                x = x0 + 70 + 66 * local
                p.box(x, y + 12, 46, 30, COLOURS[local] if panel else GREY, 0.6 if panel else 0.3, node * locals_ + local, 13)
                if panel == 0 and local:
                    p.arrow(x - 19, y + 27, x - 2, y + 27, GREY, 1.5)
                if panel and local:
                    p.line([(x - 19, y + 27), (x - 2, y + 27)], GREY, 1.5)
                if panel and node:
                    p.arrow(x + 23, y - 34, x + 23, y + 10, COLOURS[local], 1.5)
            if panel == 0:
                if node + 1 < nodes:
                    p.arrow(x0 + 70 + 66 * 3 + 23, y + 44, x0 + 93, y + 88, PINK, 4)
                else:
                    p.line([(x0 + 291, y + 44), (x0 + 291, y + 62), (x0 + 52, y + 62), (x0 + 52, 77)], PINK, 4)
                    p.arrow(x0 + 50, 77, x0 + 68, 77, PINK, 4)
    p.text(20, 300, "2 (N − 1)/N of the data over each pink link", 12, colour=PINK)
    p.text(400, 300, "reduce-scatter in the node, all-reduce down the", 12)
    p.text(400, 318, "columns, all-gather in the node. Each card sends", 12)
    p.text(400, 334, "2 (M − 1)/M of a quarter of the data", 12)
    p.text(20, 318, "(N ranks on M nodes, here 12 on 3)", 12)
    return p


def muon():
    p = Picture("Muon", 330)
    p.head("A singular value after 0, 1, 3 and 5 steps")
    x0, y0, w, h = 40, 50, 330, 230
    p.axes(x0, y0, w, h, "part of the norm: 0.001 to 1, each third a factor of ten", "")

    def steps(s, count):
        for _ in range(count):
            s = 3.4445 * s - 4.7750 * s ** 3 + 2.0315 * s ** 5
        return s

    for value in (0.68, 1.21):
        p.line([(x0, y0 + h - h * value / 1.3), (x0 + w, y0 + h - h * value / 1.3)], GREY, 1, dashed=True)
        p.text(x0 - 4, y0 + h - h * value / 1.3 + 4, value, 10, "end")
    for count, colour in ((0, GREY), (1, BLUE), (3, GREEN), (5, ORANGE)):
        points = [(x0 + w * i / 150, y0 + h - h * steps(10 ** (3 * i / 150 - 3), count) / 1.3) for i in range(151)]
        p.line(points, colour, 2)
        p.text(x0 + 8 + 84 * (0, 1, 3, 5).index(count), 306 + 14, f"{count} steps", 11, colour=colour)
    p.head("The check's matrix: 5, 1, 0.3, 0.02", x=420)
    values = (5, 1, 0.3, 0.02)
    norm = math.sqrt(sum(v * v for v in values))
    for row, (name, now) in enumerate((("momentum", [v / norm for v in values]),
                                       ("Muon's step", [steps(v / norm, 5) for v in values]))):
        p.text(420, 62 + 128 * row, name, 12, strong=True)
        for i, v in enumerate(now):
            p.box(420, 72 + 128 * row + 22 * i, max(1, 200 * v), 17, COLOURS[i], 0.7)
            p.text(430 + max(1, 200 * v), 85 + 128 * row + 22 * i, f"{v:.3f}", 11, mono=True)
    return p


SECOND = (byte_pairs, cuda_kernel, sampling, tensor_parallel, ring_attention, fp8, offload, two_levels, muon)
