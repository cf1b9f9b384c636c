#!/usr/bin/env python3
"""Writes test/golden/model/: toy LLaMAs with the logits, loss and gradients that transformers computes for them in fp32.

    pip install torch transformers        # only this script and dev/golden/check_hf.py need them; the tests read the files
    python3 dev/golden/make_golden.py            # then commit test/golden/model

Each case is a folder as transformers saves it (config.json, model.safetensors) and expected.safetensors with

    inputs, targets   (B, T)     I32
    logits            (B, T, V)  F32
    loss              ()         F32   mean cross-entropy over the B*T targets
    grad.<name>       as <name>  F32   d loss / d <name>, for every tensor of the model

test/golden/rope.json has the inverse frequencies and the factor of cos and sin that transformers computes for corner
values of every kind of RoPE (--only rope).

Weights are stored in the case's dtype and computed with in fp32, so a test that loads them starts from the same bits.
"""

import argparse
import copy
import json
import os

import torch
import transformers
from safetensors.torch import save_file

B, T = 2, 17

LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              # so short that positions below T meet all three bands: unchanged, smoothed, divided
              original_max_position_embeddings=32)

SMALL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=31)
TWO_HEADS = dict(SMALL, num_attention_heads=2, num_key_value_heads=1)
ONE_HEAD = dict(SMALL, num_attention_heads=1, num_key_value_heads=1)
CASES = {
    # three query heads share a kv head; nothing is a power of two
    "gqa": (torch.float32, dict(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1,
                                vocab_size=43)),
    "tied": (torch.bfloat16, dict(SMALL, hidden_size=32, vocab_size=53, tie_word_embeddings=True, rms_norm_eps=1e-5)),
    # the heads together are wider than the model
    "llama3_rope": (torch.float16, dict(TWO_HEADS, intermediate_size=28, head_dim=16, vocab_size=37, rope_parameters=LLAMA3)),
    "linear_rope": (torch.float32, dict(TWO_HEADS, num_key_value_heads=2,
                                        rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.5))),
    # sequences reach beyond the positions, where theta grows
    "dynamic_rope": (torch.float32, dict(TWO_HEADS, max_position_embeddings=12,
                                         rope_parameters=dict(rope_type="dynamic", rope_theta=500.0, factor=2.0))),
    "yarn_rope": (torch.float32, dict(ONE_HEAD, rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16, beta_fast=3.0))),
    # q and k are scaled as DeepSeek's models do, the ramp's ends are not rounded
    "yarn_mscale_rope": (torch.float32, dict(ONE_HEAD, rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0, beta_slow=0.5,
        mscale=1.4, mscale_all_dim=0.7, truncate=False))),
    "mistral": (torch.float32, dict(SMALL, model="Mistral", sliding_window=None)),
    "qwen2": (torch.float32, dict(SMALL, model="Qwen2", tie_word_embeddings=True)),
    # a head wider than its share of the model
    "qwen3": (torch.bfloat16, dict(SMALL, model="Qwen3", num_key_value_heads=1, head_dim=12)),
    "smollm3": (torch.float32, dict(TWO_HEADS, model="SmolLM3", num_hidden_layers=4, no_rope_layer_interval=2, pad_token_id=None)),
    # shorter than the sequences
    "mistral_window": (torch.float32, dict(SMALL, model="Mistral", sliding_window=5)),
    # the key heads are normalised together, and so are the query heads
    "olmo2": (torch.float32, dict(SMALL, model="Olmo2", pad_token_id=None)),
}


YARN = dict(rope_type="yarn", rope_theta=10000.0)
ROPES = [dict(rope_parameters=r, max_position_embeddings=p, head_dim=d) for p, d, r in [
    (2048, 64, dict(rope_type="linear", rope_theta=10000.0, factor=2.0)),
    (8192, 64, dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=8192)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=32)),
    (64, 16, dict(YARN, factor=1.0, original_max_position_embeddings=32, attention_factor=1.7)),
    (64, 16, dict(YARN, factor=1.0, original_max_position_embeddings=32)),
    (64, 16, dict(YARN, factor=1.0, original_max_position_embeddings=32, mscale=1.4, mscale_all_dim=0.7)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=32, attention_factor=0.5)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=32, mscale=1.4, mscale_all_dim=0.7)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=32, mscale=1.4)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=32, beta_fast=8.0, beta_slow=2.0)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=32, truncate=False)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=5)),
    (64, 16, dict(YARN, factor=4.0, original_max_position_embeddings=1)),
    (4096, 128, dict(YARN, factor=40.0, original_max_position_embeddings=4096, beta_fast=64.0, beta_slow=0.25, truncate=False)),
    (4096, 128, dict(YARN, factor=16.0, original_max_position_embeddings=4096)),
    (64, 2, dict(YARN, factor=4.0, original_max_position_embeddings=32)),
    (32, 16, dict(YARN, factor=4.0)),
]]


def write_ropes(path):
    """One file of {config.json's fields, inverse_frequencies, attention_factor}."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    out = []
    for fields in ROPES:
        config = transformers.LlamaConfig(hidden_size=2 * fields["head_dim"], num_attention_heads=2, num_hidden_layers=1,
                                          intermediate_size=8, vocab_size=16, **copy.deepcopy(fields))
        frequencies, factor = ROPE_INIT_FUNCTIONS[fields["rope_parameters"]["rope_type"]](config, device="cpu")
        out.append({"fields": fields, "inverse_frequencies": frequencies.tolist(), "attention_factor": factor})
    with open(path, "w") as f:
        f.write("[" + ",\n ".join(json.dumps(x) for x in out) + "]\n")


def make_model(dtype, fields):
    fields = dict(fields)
    name = fields.pop("model", "Llama")
    config = getattr(transformers, name + "Config")(**{**dict(
        num_hidden_layers=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, attn_implementation="eager"),
        **fields})
    model = getattr(transformers, name + "ForCausalLM")(config).float().train()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(0, 0.5)
            elif p.dim() == 1:
                p.uniform_(0.5, 1.5)
            elif "embed" in name:
                p.normal_(0, 0.3 if config.tie_word_embeddings else 0.7)
            else:  # large enough that attention is far from uniform and the loss far from log(V)
                p.normal_(0, 1.2 * p.shape[1] ** -0.5)
            p.copy_(p.to(dtype))
    return config, model


def evaluate(model, inputs, targets):
    model.zero_grad()
    logits = model(input_ids=inputs, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return logits.detach(), loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "..", "test", "golden", "model"))
    parser.add_argument("--only", nargs="+", choices=[*CASES, "rope"], default=[*CASES, "rope"], help="these cases, not all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if "rope" in args.only:
        write_ropes(os.path.join(args.out, "..", "rope.json"))
    total = 0
    for seed, (case, (dtype, fields)) in enumerate(CASES.items(), start=1):
        if case not in args.only:
            continue
        torch.manual_seed(seed)
        config, model = make_model(dtype, fields)
        inputs = torch.randint(config.vocab_size, (B, T))
        targets = torch.randint(config.vocab_size, (B, T))
        logits, loss, grads = evaluate(model, inputs, targets)

        folder = os.path.join(args.out, case)
        os.makedirs(folder, exist_ok=True)
        model.config.dtype = dtype
        model.config.save_pretrained(folder)
        save_file({name: p.detach().to(dtype).contiguous() for name, p in model.named_parameters()},
                  os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        save_file({"inputs": inputs.int(), "targets": targets.int(), "logits": logits.contiguous(), "loss": loss,
                   **{"grad." + name: g for name, g in grads.items()}},
                  os.path.join(folder, "expected.safetensors"), metadata={"format": "pt"})

        for file in os.listdir(folder):
            os.chmod(os.path.join(folder, file), 0o644)
        exact = evaluate(model.double(), inputs, targets)
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        total += size
        print(f"{case:12s} {sum(p.numel() for p in model.parameters()):6d} parameters, loss {loss.item():.6f}, fp32 against "
              f"fp64: logits {relative(logits, exact[0]):.1e}, worst gradient "
              f"{max(relative(g, exact[2][n]) for n, g in grads.items()):.1e}, {size / 1024:.0f} KiB")
    print(f"{total / 1024:.0f} KiB in all, transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
