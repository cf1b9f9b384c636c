#!/usr/bin/env python3
"""Opens the small files of the LLaMA family: a table of what this program makes of each, for dev/results/others.md.

    v/bin/python dev/golden/oracle/conformance.py [--tokenizers DIR] > table.md

Each model is made by transformers' own class, thin and with random weights, under the fields of the published config.json
that change what is computed. It is opened with the logits that transformers computes in fp32 (to 1e-4 of the largest), or
refused with a message that names the field; anything else is WRONG. DIR holds tokenizer.model files, such as
mistral_common/data of PyPI's mistral-common; their reference is sentencepiece. Exit code 1 if anything is wrong.
"""

import argparse
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch  # noqa: E402
from areas import ROOT, Refused, Tools, relative  # noqa: E402

THIN = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=320)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
# Class, what it stands for, fields.
MODELS = [
    ("Llama", "LLaMA 1", dict(rms_norm_eps=1e-6, max_position_embeddings=2048)),
    ("Llama", "Llama 2 7B", dict(rms_norm_eps=1e-5, max_position_embeddings=4096)),
    ("Llama", "Llama 2 70B", dict(num_key_value_heads=2, rms_norm_eps=1e-5)),
    ("Llama", "Code Llama", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6), max_position_embeddings=16384)),
    ("Llama", "Llama 3", dict(num_key_value_heads=2, rope_parameters=dict(rope_type="default", rope_theta=5e5), eos_token_id=[1, 9])),
    ("Llama", "Llama 3.1", dict(num_key_value_heads=2, rope_parameters=LLAMA3)),
    ("Llama", "Llama 3.2 1B", dict(num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, rope_parameters=dict(LLAMA3, factor=32.0))),
    ("Llama", "SmolLM2", dict(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e5))),
    ("Llama", "TinyLlama", dict(num_key_value_heads=1, pad_token_id=0)),
    ("Llama", "Vicuna 16k: linear RoPE", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0))),
    ("Llama", "dynamic RoPE", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0))),
    ("Llama", "Yarn Llama 2", dict(rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=16.0, original_max_position_embeddings=64))),
    ("Llama", "yarn with a factor of attention", dict(rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=1.0, original_max_position_embeddings=64, attention_factor=1.3))),
    ("Llama", "longrope", dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4, factor=2.0, original_max_position_embeddings=64, short_factor=[1.0] * 8, long_factor=[2.0] * 8))),
    ("Llama", "Falcon 3: a head wider than dim / heads", dict(num_key_value_heads=2, head_dim=32)),
    ("Llama", "InternLM: attention_bias", dict(attention_bias=True)),
    ("Llama", "mlp_bias", dict(mlp_bias=True)),
    ("Llama", "gelu", dict(hidden_act="gelu")),
    ("Mistral", "Mistral 7B 0.1: a window of 32", dict(num_key_value_heads=2, sliding_window=32)),
    ("Mistral", "Mistral 7B 0.3", dict(num_key_value_heads=2, sliding_window=None, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    ("Ministral", "Ministral", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    ("Mixtral", "Mixtral 8x7B", dict(num_local_experts=2)),
    ("Qwen2", "Qwen 2.5", dict(num_key_value_heads=2)),
    ("Qwen3", "Qwen 3", dict(num_key_value_heads=2, head_dim=16)),
    ("SmolLM3", "SmolLM3", dict(num_key_value_heads=2, pad_token_id=0)),
    ("Olmo", "OLMo", {}),
    ("Olmo2", "OLMo 2", {}),
    ("Olmo3", "OLMo 3", {}),
    ("Gemma", "Gemma", dict(head_dim=16)),
    ("Gemma2", "Gemma 2", dict(head_dim=16)),
    ("Gemma3Text", "Gemma 3", dict(head_dim=16)),
    ("Phi3", "Phi-3", dict(pad_token_id=0)),
    ("Granite", "Granite 3: multipliers", dict(embedding_multiplier=12.0, attention_multiplier=0.015, residual_multiplier=0.22, logits_scaling=8.0)),
    ("Cohere", "Command R", {}),
    ("Starcoder2", "StarCoder 2", {}),
    ("StableLm", "StableLM", {}),
    ("Nemotron", "Nemotron", {}),
    ("Helium", "Helium", dict(head_dim=16)),
    ("Glm", "GLM", dict(head_dim=16, pad_token_id=0)),
    ("Exaone4", "EXAONE 4", {}),
    ("Arcee", "Arcee AFM", {}),
    ("SeedOss", "Seed OSS", dict(head_dim=16)),
    ("Apertus", "Apertus", {}),
]


def try_model(kind, fields, tools):
    """-> (outcome, detail)"""
    import transformers
    from safetensors.torch import load_file, save_file
    folder = tools.path("model")
    torch.manual_seed(1)
    try:
        config = getattr(transformers, kind + "Config")(**{**THIN, **json.loads(json.dumps(fields))})
        model = getattr(transformers, kind.removesuffix("Text") + "ForCausalLM")(config).float().eval()
    except Exception as error:  # this version wants more fields
        return "not made", f"{type(error).__name__}: {error}".splitlines()[0]
    with torch.no_grad():
        for p in model.parameters():
            p.uniform_(0.5, 1.5) if p.dim() == 1 else p.normal_(0, p.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    ids = torch.randint(config.vocab_size, (2, 40))
    save_file({"inputs": ids.int()}, tools.path("in.safetensors"))
    try:
        tools.run([tools.logits, folder, tools.path("in.safetensors"), tools.path("out.safetensors")])
    except Refused as refusal:
        return "refused", str(refusal).splitlines()[0].split("config.json: ")[-1].removeprefix("model_logits: ")
    with torch.no_grad():
        error = relative(load_file(tools.path("out.safetensors"))["logits"], model(input_ids=ids, use_cache=False).logits)
    return ("opened, equal" if error < 1e-4 else "WRONG"), f"{error:.1e}"


def try_tokenizer(path, tools):
    import sentencepiece
    from make_tokenizer_golden import CORPUS, STRINGS
    texts = STRINGS + CORPUS[:4]
    try:
        ours = json.loads(tools.run([tools.tokens, path], text=json.dumps({"texts": texts, "ids": []})))
    except Refused as refusal:
        return "refused", str(refusal).splitlines()[0].split(path + ": ")[-1]
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    wrong = [text for text, ids in zip(texts, ours["plain"]) if processor.encode(text) != ids]
    return ("WRONG", f"{len(wrong)} of {len(texts)}, as {wrong[0]!r}") if wrong else ("opened, equal", f"{len(texts)} texts")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.path.join(ROOT, "train_llama"))
    parser.add_argument("--logits", default=os.path.join(ROOT, "build", "dev", "model_logits"))
    parser.add_argument("--tokens", default=os.path.join(ROOT, "build", "dev", "tokens"))
    parser.add_argument("--tokenizers")
    options = parser.parse_args()
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    counts = {}

    def row(*cells):
        print("| " + " | ".join(c.replace("|", "\\|")[:150] for c in cells) + " |", flush=True)
        counts[cells[2]] = counts.get(cells[2], 0) + 1

    print("| stands for | transformers | outcome | largest difference, or what the refusal says |\n|---|---|---|---|")
    for kind, what, fields in MODELS:
        with tempfile.TemporaryDirectory() as work:
            if not hasattr(transformers, kind + "Config"):
                continue
            row(what, kind, *try_model(kind, fields, Tools(options.program, options.logits, options.tokens, work)))
    if options.tokenizers:
        print("\n| file | reference | outcome | |\n|---|---|---|---|")
        for folder, _, names in sorted(os.walk(options.tokenizers)):
            for name in sorted(names):
                if ".model" in name:
                    with tempfile.TemporaryDirectory() as work:
                        tools = Tools(options.program, options.logits, options.tokens, work)
                        row(name, "sentencepiece", *try_tokenizer(os.path.join(folder, name), tools))
    print(f"\ntransformers {transformers.__version__}, torch {torch.__version__}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return counts.get("WRONG", 0) > 0


if __name__ == "__main__":
    sys.exit(main())
