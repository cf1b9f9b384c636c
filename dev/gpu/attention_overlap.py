#!/usr/bin/env python3
"""What attention's backward pass with five products (kernels/attention/attention_kept.h) would gain if the dq of one
section of key heads ran beside the dk and dv of the next, on a second stream. A count, no measurement.

    dev/gpu/attention_overlap.py        a table of shapes

Two sections are then under way, so each has half of the budget. A block of either kernel takes a multiprocessor for
itself: 197 and 147 KiB of its 227 of shared memory. So what overlaps is a section's end, when multiprocessors run out
of work. Items go to the first multiprocessor that is free, the longest first, dk and dv before dq; a tile of 64 x 64
takes the clocks of dev/results/kernels.md, the start and end of an item as long as three tiles, a launch GAP clocks.
"""

import heapq
import math

MULTIPROCESSORS, GAP, BUDGET, KV = 132, 4000, 260 << 20, 1024
DQ = {"H200": 460, "H100": 660}
SHAPES = [(16, 1024, 32, 32), (8, 2048, 32, 32), (4, 4096, 32, 32), (2, 8192, 32, 32)]
SHAPES += [(16, 1024, 32, 8), (8, 2048, 32, 8)]


def key_items(T, heads, group):
    """Clocks of 128 keys of one key head, the longest first"""
    lengths = [(T // 64 - 2 * i) * group + 3 for i in range(T // 128)]
    return sorted((2 * KV * length for length in lengths for _ in range(heads)), reverse=True)


def query_items(T, heads, group, clocks):
    """Clocks of 192 queries of one head"""
    tiles = T // 64
    ends = [min(q + 3, tiles) for q in range(0, tiles, 3)]
    return sorted((3 * clocks * (end + 3) for end in ends for _ in range(heads * group)), reverse=True)


def time_of(kernels):
    """Clocks of kernels: (items, the kernels that end before it begins), of which those named first go first."""
    left = [list(reversed(items)) for items, _ in kernels]
    running, end, now, idle, events = [0] * len(kernels), [None] * len(kernels), 0, MULTIPROCESSORS, []

    def begin(k):
        ends = [end[d] for d in kernels[k][1]]
        return None if None in ends else max(ends, default=0) + GAP

    while None in end:
        for k, items in enumerate(left):
            if items and begin(k) is not None and begin(k) <= now:
                while idle and items:
                    heapq.heappush(events, (now + items.pop(), k))
                    running[k], idle = running[k] + 1, idle - 1
        starts = [begin(k) for k, items in enumerate(left) if items and begin(k) is not None and begin(k) > now]
        now = min(starts + [e[0] for e in events[:1]])
        while events and events[0][0] <= now:
            k = heapq.heappop(events)[1]
            running[k], idle = running[k] - 1, idle + 1
            if not left[k] and not running[k]:
                end[k] = now
    return now


def sections(B, T, H, K, budget):
    tiles = T // 64
    fit = min(B * K, budget // (tiles * (tiles + 1) // 2 * (H // K) * 8192))
    n = math.ceil(B * K / fit)
    return [B * K * (i + 1) // n - B * K * i // n for i in range(n)]


def one_by_one(B, T, H, K, clocks):
    kernels = []
    for heads in sections(B, T, H, K, BUDGET):
        for items in key_items(T, heads, H // K), query_items(T, heads, H // K, clocks):
            kernels.append((items, [len(kernels) - 1] if kernels else []))
    return time_of(kernels)


def beside(B, T, H, K, clocks, budget):
    parts = sections(B, T, H, K, budget)
    n = len(parts)  # kernels 0 to n - 1 sum dk and dv, the others dq
    keys, queries = [], []
    for i, heads in enumerate(parts):  # its half is free when the dq of two sections before has ended
        keys.append((key_items(T, heads, H // K), [k for k in (i - 1, n + i - 2 if i > 1 else -1) if k >= 0]))
        queries.append((query_items(T, heads, H // K, clocks), [i] + ([n + i - 1] if i else [])))
    return time_of(keys + queries)


def main():
    print("GPU   B x T      heads  sections  one by one : work  beside, same memory  twice the memory")
    for gpu, clocks in DQ.items():
        for B, T, H, K in SHAPES:
            work = sum(key_items(T, B * K, H // K)) + sum(query_items(T, B * K, H // K, clocks))
            now = one_by_one(B, T, H, K, clocks)
            same, twice = (now / beside(B, T, H, K, clocks, budget) for budget in (BUDGET // 2, BUDGET))
            n, of_work = len(sections(B, T, H, K, BUDGET)), now * MULTIPROCESSORS / work
            print(f"{gpu}  {B:2} x {T}  {H:2}/{K:2}  {n:8}  {of_work:17.2f}  {same:17.2f} x  {twice:14.2f} x")


if __name__ == "__main__":
    main()
