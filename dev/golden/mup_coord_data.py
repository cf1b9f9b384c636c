#!/usr/bin/env python3
"""The coordinate check of the `mup` package (its MuAdam and get_coord_data) beside `train_llama coordinates`, on the same LLaMA.

    pip install torch transformers mup
    python3 dev/golden/mup_coord_data.py ./train_llama --data DATA      DATA: a folder of prepare.py, tokens are bytes

Both train the model at four widths for six steps with Adam, muP's base width being the first, and record the root mean square of what enters the last block.
Weights are drawn apart, and mup sees the same batch at each step, as its check does by default: sizes agree within the noise of that, slopes by width
must be those of muP (0) on both sides, and grow on both without it."""

import argparse
import json
import math
import os
import struct
import subprocess
import tempfile

import numpy
import torch
from mup import MuReadout, get_shapes, make_base_shapes, set_base_shapes
from mup.coord_check import get_coord_data
from mup.init import normal_
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

WIDTHS, STEPS, SEQ, BATCH, LR, STD = (32, 64, 128, 256), 6, 24, 12, 3e-3, 0.02
HEAD_DIM, VOCAB, LAYERS = 8, 257, 2


class Llama(nn.Module):
    """Logits of transformers' model. Heads grow in number, not in size: 1 / sqrt(head_dim) is a constant here, as muP's 1 / head_dim is."""

    def __init__(self, dim, readout):
        super().__init__()
        self.of = LlamaForCausalLM(LlamaConfig(
            hidden_size=dim, num_hidden_layers=LAYERS, num_attention_heads=dim // HEAD_DIM, num_key_value_heads=dim // HEAD_DIM // 2,
            intermediate_size=45 * dim // 32, vocab_size=VOCAB, rms_norm_eps=1e-5, tie_word_embeddings=False))  # fmt: skip
        if readout:
            self.of.lm_head = MuReadout(dim, VOCAB, bias=False)

    def forward(self, ids):
        return self.of(input_ids=ids, use_cache=False).logits


def lazy(dim, with_mup):
    def build():
        model = Llama(dim, with_mup)
        if with_mup:
            set_base_shapes(model, BASE_SHAPES)
        for p in model.parameters():
            if p.ndim > 1:
                normal_(p, std=STD) if with_mup else nn.init.normal_(p, std=STD)
        return model

    return build


BASE_SHAPES = make_base_shapes(get_shapes(Llama(WIDTHS[0], True)), get_shapes(Llama(WIDTHS[1], True)))


def theirs(data, with_mup):
    """By width: the root mean square of what enters the last block, of each step."""
    name = next(n for n in sorted(os.listdir(data)) if "_train_" in n and n.endswith(".bin"))
    with open(f"{data}/{name}", "rb") as f:
        f.seek(1024)
        tokens = torch.tensor(struct.unpack(f"<{BATCH * (SEQ + 1)}H", f.read(2 * BATCH * (SEQ + 1))))
    batch = tokens.view(BATCH, SEQ + 1)
    rows = get_coord_data({w: lazy(w, with_mup) for w in WIDTHS}, [(batch[:, :-1].contiguous(), batch[:, 1:].flatten())], optimizer="adam", lr=LR, mup=with_mup, nsteps=STEPS,
                          nseeds=4, cuda=False, flatten_output=True, output_fdict={"l2": "l2"}, show_progress=False,
                          filter_module_by_name=lambda name: name == f"of.model.layers.{LAYERS - 2}")  # its output enters the last block  # fmt: skip
    return {w: [float(rows[(rows.width == w) & (rows.t == t)]["l2"].mean()) for t in range(1, STEPS + 1)] for w in WIDTHS}


def ours(program, data, with_mup):
    with tempfile.TemporaryDirectory() as out:
        command = [program, "coordinates", "--widths", ",".join(map(str, WIDTHS)), "--preset", "bytes", "--dim", WIDTHS[0], "--layers", LAYERS, "--heads", 4,
                   "--kv-heads", 2, "--ffn", 45, "--head", "untied", "--vocab", VOCAB, "--data", data, "--seq-len", SEQ, "--batch", BATCH, "--steps", STEPS,
                   "--lr", LR, "--lr-schedule", "constant", "--warmup", 0, "--beta2", 0.999, "--weight-decay", 0, "--max-grad-norm", 0, "--init-std", STD,
                   "--init-scale", 1, "--device", "cpu", "--threads", 1, "--val-tokens", SEQ, "--out", out]  # fmt: skip
        if with_mup:
            command += ["--mup-base-width", WIDTHS[0]]
        subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL)
        found = {}
        for w in WIDTHS:
            with open(f"{out}/width_{w}/stats.jsonl", encoding="utf-8") as f:
                found[w] = [json.loads(line)["blocks"][-1]["residual_rms"] for line in f]
        return found


def slope(by_width, step):
    return float(numpy.polyfit([math.log2(w) for w in WIDTHS], [math.log2(by_width[w][step - 1]) for w in WIDTHS], 1)[0])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--data", required=True)
    o = p.parse_args()
    torch.set_num_threads(1)
    from importlib.metadata import version

    print(f"mup {version('mup')}, torch {torch.__version__}; root mean square of what enters the last block, by width, and its slope")
    for with_mup in (True, False):
        print("with muP" if with_mup else "without")
        sides = {"mup": theirs(o.data, with_mup), "ringzero": ours(o.program, o.data, with_mup)}
        for step in (1, (STEPS + 1) // 2, STEPS):
            for name, found in sides.items():
                print(f"  step {step}  {name:9}" + "".join(f"{found[w][step - 1]:9.4f}" for w in WIDTHS) + f"   slope {slope(found, step):5.2f}")


if __name__ == "__main__":
    main()
