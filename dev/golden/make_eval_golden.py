#!/usr/bin/env python3
"""Writes test/golden/eval/: a toy LLaMA with two tokenizers, evaluation tasks, and what lm-evaluation-harness makes of them.

    python3 -m venv v && v/bin/pip install "lm-eval[hf]"
    v/bin/python dev/golden/make_eval_golden.py          # then commit test/golden/eval

    rows/NAME.jsonl    rows as the datasets have them; written by hand
    NAME.jsonl         what data_prep/prepare.py eval makes of them
    plain/, bos/       the model with a tokenizer that puts nothing in front of a text, and with one that puts bos there;
                       bos/ has no weights of its own
    plain.json, bos.json     dev/golden/lm_eval_oracle.py
    few_shot.json            the same of plain/ with --few-shot 2, and the contexts
    pairs.jsonl              contexts that end inside words; make_eval_golden.py --pairs asks for these alone, of the
                             models that are stored
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "..", "test", "golden", "eval")
VOCAB = 320


def make_tokenizer(bos):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    texts = []
    for name in sorted(os.listdir(os.path.join(OUT, "rows"))):
        with open(os.path.join(OUT, "rows", name), encoding="utf-8") as f:
            texts += [v for line in f for v in json.loads(line).values() if isinstance(v, str)]
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<s>", "</s>"], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def save(folder, tokenizer, model):
    os.makedirs(folder, exist_ok=True)
    if model:
        model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>",
                                         clean_up_tokenization_spaces=False).save_pretrained(folder)
    for name in os.listdir(folder):
        if name not in ("tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"):
            os.remove(os.path.join(folder, name))


def add_pairs():
    """Into plain.json and bos.json; the model and all other numbers stay."""
    from lm_eval_oracle import evaluate
    for name in ("plain", "bos"):
        with tempfile.TemporaryDirectory() as work:
            for source in ("plain", name):
                shutil.copytree(os.path.join(OUT, source), os.path.join(work, "model"), dirs_exist_ok=True)
            shutil.copy(os.path.join(OUT, "pairs.jsonl"), work)
            found = evaluate(os.path.join(work, "model"), work, 4)["tasks"]
        path = os.path.join(OUT, name + ".json")
        with open(path, encoding="utf-8") as f:
            stored = json.load(f)
        stored["tasks"].update(found)
        with open(path, "w", encoding="utf-8") as f:
            f.write(json.dumps(stored, indent=1) + "\n")


def learn(model):
    """LAMBADA's rows by heart, so that some continuations are what greedy decoding would choose."""
    tokenizer = make_tokenizer(False)
    with open(os.path.join(OUT, "rows", "lambada.jsonl"), encoding="utf-8") as f:
        rows = [torch.tensor([tokenizer.encode(json.loads(line)["text"]).ids]) for line in f]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(150):
        optimizer.zero_grad()
        model(input_ids=rows[step % 2], labels=rows[step % 2]).loss.backward()  # the last row stays unknown
        optimizer.step()


def main():
    if sys.argv[1:] == ["--pairs"]:
        return add_pairs()
    torch.manual_seed(20)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
                                      num_attention_heads=3, num_key_value_heads=1, max_position_embeddings=64,
                                      bos_token_id=0, eos_token_id=1)
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(0, 1.2 * p.shape[1] ** -0.5 if p.shape[0] != VOCAB else 0.5)
    learn(model)
    model = model.to(torch.bfloat16)
    prepare = os.path.join(HERE, "..", "..", "data_prep", "prepare.py")
    for name in sorted(os.listdir(os.path.join(OUT, "rows"))):
        subprocess.run([sys.executable, prepare, "eval", name[: -len(".jsonl")], "--from", os.path.join(OUT, "rows", name),
                        "--out", OUT], check=True)
    for name in ("plain", "bos"):
        shutil.rmtree(os.path.join(OUT, name), ignore_errors=True)
        save(os.path.join(OUT, name), make_tokenizer(name == "bos"), model if name == "plain" else None)
        with tempfile.TemporaryDirectory() as work:
            save(work, make_tokenizer(name == "bos"), model)
            text = subprocess.run([sys.executable, os.path.join(HERE, "lm_eval_oracle.py"), work, os.path.join(OUT, "rows")],
                                  check=True, stdout=subprocess.PIPE).stdout
        with open(os.path.join(OUT, name + ".json"), "wb") as f:
            f.write(text + b"\n")
    oracle = [sys.executable, os.path.join(HERE, "lm_eval_oracle.py"), os.path.join(OUT, "plain"), os.path.join(OUT, "rows")]
    add_pairs()
    with open(os.path.join(OUT, "few_shot.json"), "wb") as f:
        f.write(subprocess.run(oracle + ["--few-shot", "2"], check=True, stdout=subprocess.PIPE).stdout)


if __name__ == "__main__":
    main()
