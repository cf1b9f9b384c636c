#!/usr/bin/env python3
"""Draws dev/pictures/rooms.svg from the list of rooms that dev/build/arrows.sh holds all includes to; make pages compares them.

    dev/build/rooms.py > dev/pictures/rooms.svg
"""

import os
import re

ABOUT = {
    "train_llama.cu": "the command line, the training loop",
    "llama": "run_command: from flags to an exit code",
    "plan": "what a run would take on machines that are not here",
    "train": "flags, the run, resume, stop, guards, metrics",
    "checkpoint": "the state in files, written by all ranks",
    "report": "log, TensorBoard, plots, traces",
    "model": "parameter table, block, stage, generation, Hugging Face's files",
    "zero": "who owns which bytes: gather, release, reduce; the sharded update",
    "comm": "named axes; send and receive by NCCL, MPI, TCP, threads; the ring on top; the watchdog",
    "kernels": "ops: one stem each (.h contract, .cpp CPU, .cu CUDA)",
    "cpu": "SIMD",
    "cuda": "launch, PTX",
    "runtime": "devices, streams, events, memory",
}
COLOURS = {"train_llama.cu": "#3b82f6", "llama": "#10a37f", "zero": "#e8710a", "comm": "#c026d3", "kernels": "#64748b"}
WIDE, ROW, GAP = 760, 40, 8

here = os.path.dirname(os.path.abspath(__file__))
with open(f"{here}/arrows.sh") as f:
    floors = [line.split() for line in re.search(r'rooms="([^"]*)"', f.read())[1].split("\n")][::-1]  # from the top down
out, y, house = [], 16, ""


def box(x, y, width, height, colour, opacity):
    out.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{colour}" '
               f'fill-opacity="{opacity}" stroke="{colour}" stroke-opacity="0.7"/>')


def text(x, y, size, words, more=""):
    out.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}"{more}>{words}</text>')


count = 0
for floor in floors:
    top = floor[0].split("/")[0]
    if top != house:  # a frame around all floors of one house
        if house:
            y += 14 if count > 1 else 6
            out.append(f'<path d="M400 {y - 10}v10m-4 -5l4 5l4 -5" class="axis"/>')
        count = sum(f[0].split("/")[0] == top for f in floors)
        if count > 1:
            box(20, y, WIDE, count * (ROW + GAP) + GAP, COLOURS[top], 0.06)
            text(32, y + 20, 13, f"{top}/", ' class="strong"')
            y += GAP
        house = top
    inside = count > 1
    left, wide = (120, 644) if inside else (20, WIDE)
    each = (wide - 10 * (len(floor) - 1)) / len(floor)
    for k, room in enumerate(floor):
        name = room.split("/")[-1]
        x = left + k * (each + 10)
        box(x, y, each, ROW, COLOURS[top], 0.18)
        title = name if inside or "." in name else f"{name}/"
        about = ABOUT.get(name, "")
        text(x + each / 2, y + (17 if about else 25), 13, title, ' text-anchor="middle" class="strong"')
        if about:
            text(x + each / 2, y + 33, 11, about, ' text-anchor="middle"')
    y += ROW + GAP
text(20, y + 22, 12, "Beside them: data_prep/ makes what llama/data reads; test/ runs all of it; dev/ measures and teaches.")
print(f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {y + 36:g}" width="800" height="{y + 36:g}" \
font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif">
<!-- from: dev/build/rooms.py -->
<title>The rooms of ringzero: a room includes only rooms below it</title>
<style>text{{fill:#75797f}}.strong{{font-weight:600}}.axis{{fill:none;stroke:#85898f}}</style>
""" + "\n".join(out) + "\n</svg>")
