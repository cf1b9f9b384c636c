"""The published figures beside ours, for tables.py sources: ZeRO's state is planned and measured anew and held to its formulas and to
PyTorch's bytes; times and other models' memory are read from dev/results/, where their commands stand."""

import json
import math
import os
import re

from study import TOP, beside, table, write
from picture import BLUE, COLOURS, GREY, Picture  # study has said where it is

STATE = ("parameters", "gradients", "optimizer")
CPU = """kind = "cpu"
memory-gib = 64
gemm-bf16-tflops = 1
gemm-fp32-tflops = 1
memory-gbs = 10
link-gbs = 1
card-gbs = 1
"""
SMALL = "--preset bytes --vocab 512 --batch 1 --seq-len 64 --data synthetic --val-tokens 64 --val-every 0 --save-every 0 --steps 2".split()
LARGE = "--preset llama3.1-8b --batch 1 --seq-len 4096 --recompute block".split()
BF16 = ["--dtype", "bf16", "--grad-dtype", "bf16"]
FORMULA = ("1", "16 / (4 + 12/N)", "16 / (2 + 14/N)", "N")
TOLERANCE = 0.01


def state(memory):
    return sum(memory[kind] for kind in STATE)


def by_formula(stage, ranks):
    return (1, 16 / (4 + 12 / ranks), 16 / (2 + 14 / ranks), ranks)[stage]


class Sources:
    """`plan` and `measured_peak` are tables.py's."""

    def __init__(self, tools, work):
        self.tools, self.work, self.wrong = tools, work, []
        self.cpu = work + "/cpu.toml"
        write(self.cpu, CPU)

    def expect(self, what, got, want):
        if abs(got / want - 1) > TOLERANCE:
            self.wrong.append(f"{what}: {got:.4g}, but {want:.4g} is published (within {100 * TOLERANCE:g} %)")

    def planned(self, ranks, flags, gpu=None):
        return self.tools.plan(ranks, gpu or self.cpu, flags)["memory"]

    def zero(self):
        rows = []
        cases = (("measured, 3M", 4, lambda z: self.tools.measured_peak(4, [*SMALL, *BF16, "--zero", z], f"{self.work}/zero{z}")),
                 ("planned, 8B", 8, lambda z: self.planned(8, [*LARGE, *BF16, "--zero", z], "h100-80g")),
                 ("planned, 8B", 64, lambda z: self.planned(64, [*LARGE, *BF16, "--zero", z], "h100-80g")))  # fmt: skip
        for how, ranks, memory_of in cases:
            stages = [memory_of(str(stage)) for stage in range(4)]
            for stage in (1, 2, 3):
                mine, whole = stages[stage], stages[0]
                ratio = state(whole) / state(mine)
                with_gathered = state(whole) / (state(mine) + mine.get("gathered", 0))
                self.expect(f"state of --zero {stage} on {ranks} ranks, {how}: times less", ratio, by_formula(stage, ranks))
                rows.append([f"ZeRO-{stage}", ("at most 4x", "at most 8x", "N times")[stage - 1], how, ranks, FORMULA[stage],
                             f"{by_formula(stage, ranks):.2f}", f"**{ratio:.2f}**", f"{with_gathered:.2f}", f"{whole['total'] / mine['total']:.2f}"])  # fmt: skip
        self.ratios = [[stage, how, ranks, *(float(cell.strip("*")) for cell in numbers)] for stage, _, how, ranks, _, *numbers in rows]
        head = ["", "published", "here", "N", "formula", "gives", "state", "with gathered units", "everything"]
        text = "## ZeRO: how many times less a rank keeps\n\nThe published factors are of the state (parameters, gradients, fp32 master, m and v). "
        text += "Stage 3 also has the units that are gathered, and every stage has\nactivations and buffers, which sharding does not touch: of a small model, or with a large "
        text += f"batch, they are most of it.\n\n`train_llama {' '.join([*SMALL, *BF16])} --zero 0|1|2|3` on 4 ranks; `train_llama plan --gpu h100-80g {' '.join([*LARGE, *BF16])}`\n\n"
        return text + table(head, rows)

    def picture(self):
        p = Picture("ZeRO: how many times less a rank keeps", 90 + 36 * len(self.ratios))
        p.head(p.title)
        left, unit = 200, 84  # pixels of a factor of two
        for at, colour, name in zip((0, 80, 260), COLOURS, ("state", "with gathered units", "everything")):
            p.box(left + at, 38, 12, 12, colour)
            p.text(left + at + 18, 48, name)
        p.line([(left + 380, 37), (left + 380, 51)], GREY, 3)
        p.text(left + 388, 48, "of the state, as published")
        foot = 62 + 36 * len(self.ratios)
        for power in range(7):
            x = left + unit * power
            p.line([(x, 60), (x, foot)], GREY, 0.5)
            p.text(x, foot + 16, f"{2**power}x", 11, "middle")
        for row, (stage, how, ranks, formula, *ratios) in enumerate(self.ratios):
            y = 66 + 36 * row
            p.text(left - 8, y + 12, f"{stage}, {ranks} ranks", anchor="end", strong=True)
            p.text(left - 8, y + 25, how, 11, "end")
            for at, (colour, ratio) in enumerate(zip(COLOURS, ratios)):
                p.box(left, y + 9 * at, unit * math.log2(ratio), 8, colour)
            x = left + unit * math.log2(formula)
            p.line([(x, y - 2), (x, y + 10)], GREY, 3)
            p.text(max(x, left + unit * math.log2(ratios[0])) + 6, y + 9, f"{ratios[0]:.2f}", 11, colour=BLUE)
        return p.svg()

    def torch(self):
        with open(os.path.join(TOP, "dev/golden/sharding.json")) as file:
            golden = json.load(file)
        rows = []
        for run in golden["runs"]:
            stage, ranks = {"DDP": "0", "FSDP": "3"}[run["how"]], run["ranks"]
            mine = self.planned(ranks, [*SMALL, "--dtype", "fp32", "--zero", stage])
            theirs = max(run["by_rank"], key=lambda kinds: sum(kinds.values()))
            pairs = {kind: (mine[kind], theirs[kind]) for kind in ("parameters", "gradients")}
            pairs["exp_avg, exp_avg_sq"] = (mine["optimizer"], theirs["exp_avg"] + theirs["exp_avg_sq"])
            for kind, (ours, other) in pairs.items():
                self.expect(f"--zero {stage} on {ranks} ranks: bytes of {kind} beside PyTorch's {run['how']}", ours, other)
            rows.append([run["how"], f"`--zero {stage}`", ranks, *[f"{ours:,} / {other:,}" for ours, other in pairs.values()],
                         f"{100 * (state(mine) / sum(theirs.values()) - 1):+.2f} %"])  # fmt: skip
        head = ["PyTorch", "here", "N", *pairs, "state, here to PyTorch"]
        text = f"\n## The state's bytes on a rank, here / PyTorch {golden['torch']}\n\nThe preset `bytes` in fp32, the rank that keeps most. PyTorch's on gloo by "
        text += "`dev/golden/make_sharding_golden.py`, stored in `dev/golden/sharding.json`. What is\nabove 0 % is padding to whole blocks of the norm, and a few hundred bytes of the optimizer's.\n\n"
        return text + table(head, rows)

    def stored(self, page, pattern):
        """Cells of dev/results/PAGE's first line that the pattern finds."""
        with open(os.path.join(TOP, "dev/results", page)) as file:
            found = re.search(pattern, file.read(), re.M)
        if not found:
            self.wrong.append(f"dev/results/{page} has no line like {pattern}")
            return ["?"] * re.compile(pattern).groups
        return found.groups()

    def others(self):
        gb = r"\*\*([\d.]+)\*\* \(([\d.]+) with gathered\)"
        ddp, fsdp = (self.stored("training.md", rf"^\| {how} x 4 .*{gb}") for how in ("DDP", "FSDP"))
        for how, got, want in (("DDP", ddp[0], 4.26), ("FSDP", fsdp[0], 4.26 / 4)):  # 12 bytes of 355M
            if got != "?":
                self.expect(f"GPT-2 355M under {how}: GB of parameters and moments", float(got), want)
        here = self.stored("training.md", r"^\| block \| \d+ \| (\S+ %) .*\| (\S+ %) \|$")
        card = self.stored("training.md", r"One H100[\s\S]*?^\| block \| \d+ \| (\S+ %) .*\| (\S+ %) \|$")
        gaps = [self.stored("precisions.md", rf"^\| {kind} \| \d+ \| \S+ \| (\S+ %)")[0] for kind in ("fp16", "fp8 tensor", "fp8 block")]
        small = self.planned(1, "--preset gpt2-124m --vocab 50304 --dtype fp32 --batch 1 --seq-len 1024".split())
        parameters = small["parameters"] / 4
        rows = [
            ["DDP of GPT-2 355M, 4 ranks", "4.2 GB", f"{ddp[0]} GB", "the same", "equal: parameters and moments, 12 bytes each; gradients are freed there",
             "[page](training.md)"],
            ["FSDP of the same", "1.1 GB", f"{fsdp[0]} GB ({fsdp[1]} with gathered units)", "the same", "equal without gathered units, which are freed there when it is read",
             "[page](training.md)"],
            ["recomputing every block", "30 % slower, 70 % less", f"{here[0]}, {here[1]} of all memory", f"{card[0]}, {card[1]} (one H100)",
             "a block's forward pass is a third of the work, less what attention's backward pass and the head take; memory depends on what is not activations",
             "[page](training.md)"],
            ["GPT-2 124M on 1 to 8 GPUs: 96, 94, 88 % at 12,500 tokens/s", "3.1 GB", "not measured: no GPU",
             f"{16 * parameters / 1e9:.2f} GB of state whole, {16 * parameters / 8e9:.2f} on 8",
             f"sharding alone can't give it: {16 * parameters / 1e9:.2f} GB is all that it divides, the rest of 3.1 GB is activations and buffers; the efficiencies are of another machine's link and batch",
             "`plan --preset gpt2-124m`"],
            ["fp16, fp8 tensor, fp8 block: loss beside bf16's", "the same", f"{', '.join(gaps)}", "-", "8 pairs of seeds of a small model, each within what was allowed before",
             "[page](precisions.md)"],
        ]  # fmt: skip
        text = "\n## Other published figures\n\n"
        text += table(["what", "published", "here, measured", "here, planned", "why they differ", "where"], rows)
        return text

    def sizes(self):
        rows = []
        # From the models' own pages, in elements
        for preset, published in (("llama3.1-8b", 8030261248), ("llama3.1-70b", 70553706496), ("llama3.2-1b", 1235814400),
                                  ("tinyllama-1.1b", 1100048384), ("smollm2-135m", 134515008)):  # fmt: skip
            flags = ["--preset", preset, "--dtype", "fp32", "--batch", "1", "--seq-len", "64"]
            padded = self.planned(1, flags, "h200-141g")["parameters"] // 4
            self.expect(f"parameters of {preset}, with padding", padded, published)
            rows.append([f"`{preset}`", f"{published:,}", f"{padded:,}", f"{100 * (padded / published - 1):+.3f} %"])
        text = "\n## Sizes of presets\n\nPlanned elements have each unit padded to whole blocks of the gradient norm; `make lesson N=6` counts without it, to the last one.\n\n"
        return text + table(["preset", "published parameters", "planned, padded", "padding"], rows)


def sources(tools, work, options):
    made = Sources(tools, work)
    text = made.zero() + made.torch() + made.others() + made.sizes()
    if made.wrong and options.check:
        raise SystemExit("tables.py sources: " + "\n  ".join([f"{len(made.wrong)} figures are not as published", *made.wrong]))
    if options.out:
        svg = beside(options.out, ".svg")
        write(svg, made.picture())
        text = f"![Bars: the factors of the first table, on a logarithmic scale]({os.path.basename(svg)})\n\n{text}"
    return text
