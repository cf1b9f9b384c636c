#!/usr/bin/env python3
"""Lets llama.cpp's own converter open exported folders: it must make of them what `export --format gguf` writes.

    pip install torch transformers sentencepiece       # and llama.cpp's sources
    test/program/check_converter.py ./train_llama llama.cpp/convert_hf_to_gguf.py MODEL

MODEL is a folder with Llama 2's kind of tokenizer; its weights are tried under each kind of RoPE scaling and under Mistral's name.
Compared: the names, types and bits of all tensors, the shape and RoPE of the model, tokens (the converter gives all of them one
score). Ends with counts.
"""

import sys

import numpy
from checks import arguments, end, expect, holds, run, work
from gguf import GGUFReader
from rope_kinds import KINDS, scaled


def values(reader):
    """What both files say of the model; not what only one of them names, nor who wrote it."""
    return {
        name: field.contents()
        for name, field in reader.fields.items()
        if name.startswith("llama.") or name in ("tokenizer.ggml.model", "tokenizer.ggml.tokens")
    }


def close(a, b):
    if isinstance(a, list):  # by token; rows of the model beyond the tokenizer's are padding, which only we name
        a = a[: len(b)]
    number = a[0] if isinstance(a, list) and a else a
    return a == b if isinstance(number, str) else numpy.shape(a) == numpy.shape(b) and numpy.allclose(a, b, rtol=1e-6)


def compare(ours, theirs):
    mine, other = ({t.name: t for t in r.tensors} for r in (ours, theirs))
    said, read = values(ours), values(theirs)
    if read.get("llama.rope.scaling.type") == "yarn":  # ours has its frequencies and its factor instead: see gguf.h
        assert mine.pop("rope_freqs.weight", None) is not None or read["llama.rope.scaling.factor"] == 1
        said, read = ({k: v for k, v in x.items() if ".rope.scaling." not in k} for x in (said, read))
    assert mine.keys() == other.keys(), mine.keys() ^ other.keys()
    for name, t in mine.items():
        u = other[name]
        assert (t.tensor_type, list(t.shape)) == (u.tensor_type, list(u.shape)), name
        # The factors of llama3 are computed by both.
        same = (
            numpy.allclose(t.data, u.data, rtol=1e-6)
            if name == "rope_freqs.weight"
            else t.data.tobytes() == u.data.tobytes()
        )
        assert same, name
    both = said.keys() & read.keys()
    assert {
        "llama.rope.freq_base",
        "llama.rope.dimension_count",
        "tokenizer.ggml.tokens",
        "llama.block_count",
    } <= both, both
    for key in both:
        assert close(said[key], read[key]), f"{key}: {said[key]}"[:200] + f" and {read[key]}"[:200]
    scaling = {k for k in read if k.startswith("llama.rope.scaling.")}
    assert scaling <= said.keys(), f"the converter says more of RoPE: {scaling - said.keys()}"


program, converter, model = arguments
MISTRAL = dict(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None)
for kind, scaling, more in [*((kind, scaling, {}) for kind, scaling in KINDS.items()), ("Mistral", None, MISTRAL)]:
    folder, exported = work / kind, work / f"{kind} exported"
    ours, theirs = work / f"{kind} by us.gguf", work / f"{kind} by them.gguf"
    scaled(model, folder, scaling, **more)
    for command in (
        [program, "export", "--from", folder, "--to", exported],
        [program, "export", "--from", folder, "--to", ours, "--format", "gguf", "--dtype", "fp32"],
        [sys.executable, converter, exported, "--outfile", theirs, "--outtype", "f32"],
    ):
        expect(f"{kind}: {command[1]}", run(command))
    with holds(f"{kind}: the same"):
        compare(GGUFReader(ours), GGUFReader(theirs))
end()
