#!/usr/bin/env python3
"""Writes test/golden/prompts/: how transformers tokenises prompts, and the text that it continues them with.

    pip install torch transformers tokenizers
    make && python3 dev/golden/make_prompt_golden.py

    ids.json     for each tokenizer of test/golden/tokenizer, with several post-processors and tokenizer_config.json: the ids of
                 prompts, special tokens in the text included
    model/       a model of a few thousand parameters, trained here on short documents with end tokens, as train_llama leaves it
    text.json    prompts, the ids transformers makes of them and its greedy continuation; generation stops at the end token
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
TOKENIZERS = os.path.join(ROOT, "test", "golden", "tokenizer")
OUT = os.path.join(ROOT, "test", "golden", "prompts")
PROMPTS = ["", "Once upon a time", " leading space", "two\nlines\n", "caf\u00e9 \u4e16\u754c", "a<|endoftext|>b", "<s>x</s>",
           "<|begin_of_text|>hi", "tab\tand  two"]


def template(tokens, ids):
    special = [{"SpecialToken": {"id": t, "type_id": 0}} for t in tokens[:-1]]
    end = [{"SpecialToken": {"id": tokens[-1], "type_id": 0}}] if tokens[-1] else []
    known = {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in tokens if t}
    a, b = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {"type": "TemplateProcessing", "single": [*special, a, *end], "pair": [*special, a, b], "special_tokens": known}


def cases():
    """name, tokenizer file, post-processor, tokenizer_config"""
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, bos, eos in (("bytes", "<|endoftext|>", "<|endoftext|>"), ("gpt2", "<|endoftext|>", "<|endoftext|>"),
                           ("llama3", "<|begin_of_text|>", "<|end_of_text|>"), ("llama2", "<s>", "</s>")):
        with open(os.path.join(TOKENIZERS, name + ".json")) as f:
            value = json.load(f)
        ids = {t["content"]: t["id"] for t in value["added_tokens"]}
        config = {**plain, "bos_token": bos, "eos_token": eos}
        yield f"{name}, no template", name, None, config
        yield f"{name}, begins", name, template([bos, None], ids), config
        yield f"{name}, begins and ends", name, template([bos, eos], ids), config
        yield f"{name}, add_bos_token", name, None, {**config, "add_bos_token": True}
        yield f"{name}, told to leave it", name, template([bos, eos], ids), {**config, "add_bos_token": False}
        yield f"{name}, add_eos_token", name, template([bos, None], ids), {**config, "add_eos_token": True}
        if name != "llama2":
            level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
            both = {"type": "Sequence", "processors": [level, template([bos, None], ids)]}
            yield f"{name}, a sequence", name, both, config


def write_ids(work):
    out = []
    for name, tokenizer, post, config in cases():
        with open(os.path.join(TOKENIZERS, tokenizer + ".json")) as f:
            value = json.load(f)
        value["post_processor"] = post
        shutil.rmtree(work, ignore_errors=True)
        os.makedirs(work)
        for file, content in (("tokenizer.json", value), ("tokenizer_config.json", config)):
            with open(os.path.join(work, file), "w") as f:
                json.dump(content, f)
        theirs = transformers.AutoTokenizer.from_pretrained(work)
        prompts = [[p, theirs(p)["input_ids"]] for p in PROMPTS]
        out.append({"case": name, "tokenizer": tokenizer, "post_processor": post, "config": config, "prompts": prompts})
    with open(os.path.join(OUT, "ids.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]\n")
    print(f"{len(out)} cases of {len(PROMPTS)} prompts")


def train(program, work):
    rng = random.Random(1)
    animals, places = ("cat", "dog", "llama"), ("mat", "hill", "sofa")
    with open(os.path.join(work, "a.jsonl"), "w") as f:
        for _ in range(3000):
            text = f"the {rng.choice(animals)} sat on the {rng.choice(places)}.\n"
            f.write(json.dumps({"text": text}) + "\n")
    prepare = [sys.executable, os.path.join(ROOT, "data_prep", "prepare.py"), "text", os.path.join(work, "a.jsonl")]
    subprocess.run([*prepare, "--out", os.path.join(work, "data"), "--quiet"], check=True)
    flags = {"data": os.path.join(work, "data"), "dim": 16, "layers": 2, "heads": 2, "kv-heads": 1, "head-dim": 8, "ffn": 32,
             "max-seq-len": 128, "batch": 16, "seq-len": 32, "steps": 400, "lr": 1e-2, "val-every": 0, "head": "tied",
             "device": "cpu", "threads": 1, "save-every": 0, "out": os.path.join(work, "run")}
    subprocess.run([program, "--preset", "bytes"] + [f"--{k}={v}" for k, v in flags.items()], check=True)
    shutil.rmtree(os.path.join(OUT, "model"), ignore_errors=True)
    shutil.copytree(os.path.join(work, "run", "final"), os.path.join(OUT, "model"))


def write_text():
    folder = os.path.join(OUT, "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    for prompt in ("the cat", "the dog sat on", "the llama sat on the hill.", "th", "the cat sat<|endoftext|>the"):
        inputs = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**inputs, do_sample=False, max_new_tokens=40)[0].tolist()
        new = made[inputs["input_ids"].shape[1]:]
        rows.append({"prompt": prompt, "ids": inputs["input_ids"][0].tolist(), "new": new,
                     "text": tokenizer.decode(new, skip_special_tokens=True)})
        print(repr(prompt), rows[-1]["text"], len(new))
    with open(os.path.join(OUT, "text.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.path.join(ROOT, "train_llama"))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    os.makedirs(OUT, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        write_ids(os.path.join(work, "tokenizer"))
        train(args.program, work)
    write_text()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
