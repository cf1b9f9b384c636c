#!/usr/bin/env python3
"""Reads exported GGUF files back with PyPI's package gguf and compares them with the model they are from.

    pip install gguf
    test/program/check_gguf.py ./train_llama FOLDER...        folders as transformers or train_llama saves them

For each folder and each of F32, F16 and BF16: every tensor (q and k in llama.cpp's order), the metadata, and the tokenizer:
tokens, kinds, merges or scores, special ids. Ends with counts.
"""

import json
import pathlib

import numpy
from checks import arguments, dies, end, expect, holds, run, tensors, work
from gguf import MODEL_ARCH_NAMES, GGUFReader, TokenType, get_tensor_name_map
from gguf.quants import dequantize

ARCHITECTURES = {"olmo2": "olmo2", "qwen2": "qwen2", "qwen3": "qwen3"}  # others are llama's, or refused
NOT_IN_LLAMA_CPP = {
    "smollm3": "every fourth block",
    "window": "has no window",
}  # arithmetic it lacks, and what a refusal says
DTYPES = {"fp32": ("F32", 0), "fp16": ("F16", 1), "bf16": ("BF16", 32)}


def stored(folder):
    found = {}
    for name, (kind, shape, raw) in tensors(folder / "model.safetensors").items():
        if kind == "BF16":
            values = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = numpy.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[kind]).astype("f4")
        found[name] = values.reshape(shape)
    return found


def new_names(names, architecture, layers):
    """As the package's own converters name them."""
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = get_tensor_name_map(number, layers)
    return {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}


def rounded(x, dtype):
    if dtype == "fp16":
        return x.astype("<f2").astype("f4")
    if dtype == "bf16":  # to nearest even
        bits = x.astype("<f4").view("<u4").astype("u8")
        return ((((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16) & 0xFFFFFFFF).astype("<u4").view("<f4")
    return x


def interleaved(w, heads):
    """llama.cpp rotates elements 2j and 2j+1 of a head where Hugging Face's layout rotates j and j + D/2."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def value(reader, key):
    field = reader.get_field(key)
    assert field is not None, f"{key} is missing"
    return field.contents()


def check_model(reader, architecture, config, rope):
    theta = config.get("rope_theta") or rope.get("rope_theta", 10000.0)
    heads = config["num_attention_heads"]
    want = {
        "general.architecture": architecture,
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.key_length": config.get("head_dim") or config["hidden_size"] // heads,
        f"{architecture}.vocab_size": config["vocab_size"],
    }
    for key, expected in want.items():
        assert value(reader, key) == expected, (key, value(reader, key), expected)
    for key, expected in (
        (f"{architecture}.rope.freq_base", theta),
        (f"{architecture}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"]),
    ):
        assert numpy.float32(value(reader, key)) == numpy.float32(expected), (key, value(reader, key), expected)
    if rope.get("rope_type") == "linear":
        assert value(reader, f"{architecture}.rope.scaling.type") == "linear"
        assert value(reader, f"{architecture}.rope.scaling.factor") == rope["factor"]


def check_tensors(reader, architecture, folder, config, rope, dtype):
    weights = stored(folder)
    found = {t.name: t for t in reader.tensors}
    new_name = new_names(weights, architecture, config["num_hidden_layers"])
    names = set(new_name.values())
    if rope.get("rope_type") in ("llama3", "yarn"):
        names.add("rope_freqs.weight")
    assert set(found) == names, set(found) ^ names
    for name, w in weights.items():
        t = found[new_name[name]]
        kind = "F32" if w.ndim == 1 else DTYPES[dtype][0]
        assert t.tensor_type.name == kind, (t.name, t.tensor_type)
        if architecture == "llama" and ".q_proj" in name:
            w = interleaved(w, config["num_attention_heads"])
        if architecture == "llama" and ".k_proj" in name:
            w = interleaved(w, config["num_key_value_heads"])
        got = dequantize(t.data, t.tensor_type).reshape(w.shape)
        assert numpy.array_equal(got, rounded(w, dtype if w.ndim > 1 else "fp32")), t.name
    if rope.get("rope_type") == "llama3":
        check_frequencies(found["rope_freqs.weight"].data, config, rope)


def check_frequencies(factors, config, rope):
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta") or rope["rope_theta"]
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    for i, got in enumerate(factors):
        length = 2 * numpy.pi * theta ** (2 * i / dim)
        smooth = (original / length - low) / (high - low)
        want = 1.0 if smooth > 1 else rope["factor"] if smooth < 0 else 1 / ((1 - smooth) / rope["factor"] + smooth)
        assert abs(got - want) < 1e-5 * want, (i, got, want)


def check_tokenizer(reader, folder, config):
    path = folder / "tokenizer.json"
    if not path.exists():
        assert reader.get_field("tokenizer.ggml.model") is None
        return
    tokenizer = json.loads(path.read_text())
    model, added = tokenizer["model"], {t["content"]: t for t in tokenizer["added_tokens"]}
    fallback = bool(model.get("byte_fallback"))
    assert value(reader, "tokenizer.ggml.model") == ("llama" if fallback else "gpt2")
    tokens, kinds = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    assert len(tokens) == len(kinds) == config["vocab_size"]
    everything = {**model["vocab"], **{t["content"]: t["id"] for t in added.values()}}
    for text, number in everything.items():
        assert tokens[number] == text, (number, tokens[number], text)
        if text == "<unk>":
            assert kinds[number] == TokenType.UNKNOWN
        elif text in added:
            assert kinds[number] == (TokenType.CONTROL if added[text]["special"] else TokenType.USER_DEFINED)
        elif fallback and len(text) == 6 and text.startswith("<0x"):
            assert kinds[number] == TokenType.BYTE
        else:
            assert kinds[number] == TokenType.NORMAL, (text, kinds[number])
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    if fallback:
        scores = value(reader, "tokenizer.ggml.scores")
        order = [scores[model["vocab"]["".join(m.split(" "))]] for m in merges]
        assert order == sorted(order, reverse=True), "what is merged sooner has the higher score"
    else:
        assert (value(reader, "tokenizer.ggml.merges") if merges else []) == merges
        split = json.dumps(tokenizer["pre_tokenizer"])
        llama3 = "llama-bpe" if model.get("ignore_merges") else "dbrx"
        want = "smollm" if "Digits" in split else llama3 if "{1,3}" in split else "gpt-2"
        assert value(reader, "tokenizer.ggml.pre") == want
    eos = config["eos_token_id"]
    assert value(reader, "tokenizer.ggml.eos_token_id") == (eos[0] if isinstance(eos, list) else eos)
    for key, number in zip(("eot", "eom"), eos[1:] if isinstance(eos, list) else []):
        assert value(reader, f"tokenizer.ggml.{key}_token_id") == number
    template = json.dumps(tokenizer.get("post_processor"))
    assert value(reader, "tokenizer.ggml.add_bos_token") == ("SpecialToken" in template)


program, *folders = arguments
for folder in map(pathlib.Path, folders):
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES.get(config["model_type"], "llama")
    windowed = config.get("sliding_window") and config["model_type"] == "mistral"
    refusal = NOT_IN_LLAMA_CPP.get("window" if windowed else config["model_type"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    for dtype in DTYPES:
        what, path = f"{folder.name} in {dtype}", work / "model.gguf"
        export = run([program, "export", "--from", folder, "--to", path, "--dtype", dtype], "--format gguf --overwrite")
        if refusal:
            expect(what, export, dies, refusal)
            continue
        expect(what, export)
        with holds(f"{what}: metadata, tensors and tokenizer"):
            reader = GGUFReader(path)
            assert value(reader, "general.file_type") == DTYPES[dtype][1]
            check_model(reader, architecture, config, rope)
            check_tensors(reader, architecture, folder, config, rope, dtype)
            check_tokenizer(reader, folder, config)
end()
