#!/usr/bin/env python3
"""Compares this program with transformers, in both directions, through files and command lines only.

    pip install torch transformers          # 4 or 5
    make && make tools
    python3 dev/golden/check_hf.py [--model DIR_OR_REPO_ID] [--no-training]

For each toy LLaMA (grouped queries, tied, each RoPE scaling, Mistral; single and sharded; fp32, bf16, fp16):

    theirs -> ours   transformers saves it; our logits are theirs, and so are loss and the gradient of every tensor
    ours -> theirs   train_llama trains it for a few steps and saves; transformers loads that without a missing or
                     unexpected key, and its logits are ours again; what `train_llama export` makes of it opens as
                     well, with the same bits

All is computed in fp32; the largest difference may be 1e-5 of the largest logit, and 1e-4 of a tensor's largest gradient.
--model checks the logits of a real model as well. --no-training leaves the second direction out: that is part of make
test-full (test/program/test_lm_eval.py), beside the unit tests with what make_golden.py stored. Exit code 1 if anything
disagrees; the last line is "N passed, N failed".
"""

import argparse
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.append(os.path.join(ROOT, "dev", "run"))
from study import write_shard  # noqa: E402

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)


def rope(**scaling):
    if int(transformers.__version__.split(".")[0]) >= 5:
        return dict(rope_parameters=dict(rope_theta=20000.0, **scaling))
    return dict(rope_theta=20000.0, rope_scaling=scaling)


CASES = [
    ("grouped queries", "float32", "100MB", dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=2)),
    ("tied, sharded", "bfloat16", "20KB", dict(tie_word_embeddings=True, rms_norm_eps=1e-5)),
    ("llama3 rope", "float16", "100MB", dict(head_dim=32, num_key_value_heads=1, **rope(**LLAMA3))),
    ("list of eos, sharded", "float32", "30KB", dict(eos_token_id=[2, 5], num_key_value_heads=4)),
    ("linear rope", "float32", "100MB", rope(rope_type="linear", factor=2.0)),
    ("dynamic rope", "float32", "100MB", rope(rope_type="dynamic", factor=2.0)),
    ("yarn rope", "bfloat16", "100MB", rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    ("mistral without a window", "float32", "100MB", dict(model="Mistral", sliding_window=None)),
    ("mistral, a window of 16", "float32", "100MB", dict(model="Mistral", sliding_window=16)),
    ("qwen2, tied", "bfloat16", "100MB", dict(model="Qwen2", tie_word_embeddings=True)),
    ("qwen3, sharded", "float32", "30KB", dict(model="Qwen3", head_dim=24)),
    ("smollm3", "float32", "100MB", dict(model="SmolLM3", num_hidden_layers=4, bos_token_id=1, eos_token_id=2, pad_token_id=None)),
    ("olmo2", "float32", "100MB", dict(model="Olmo2", num_key_value_heads=2, eos_token_id=2, pad_token_id=None)),
]
# Tokens of a sequence of which gradients are compared: beyond the positions of the model, where dynamic's theta grows.
GRADIENT_TOKENS = {"dynamic rope": 160}


def toy_config(model="Llama", **fields):
    return getattr(transformers, model + "Config")(**{**dict(
        vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.15), **fields})


def their_logits(folder, inputs):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind]:
            sys.exit(f"{folder}: transformers reports {kind}: {info[kind]}")
    with torch.no_grad():
        return model.eval()(input_ids=inputs).logits


def ours_of(tool, folder, work, **tokens):
    """What model_logits makes of inputs: logits; of inputs and targets: the loss and gradients."""
    given, out = os.path.join(work, "inputs.safetensors"), os.path.join(work, "outputs.safetensors")
    save_file({name: ids.int() for name, ids in tokens.items()}, given)
    subprocess.run([tool, folder, given, out], check=True)
    return load_file(out)


def our_logits(tool, folder, inputs, work):
    return ours_of(tool, folder, work, inputs=inputs)["logits"]


def their_gradients(folder, inputs, targets):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    logits = model(input_ids=inputs, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def compare_gradients(tool, folder, inputs, targets, work):
    """The worst tensor's difference, the loss among them; infinite if the two do not have the same tensors."""
    found = ours_of(tool, folder, work, inputs=inputs, targets=targets)
    loss, gradients = found.pop("loss"), {name.removeprefix("grad."): g for name, g in found.items()}
    their_loss, theirs = their_gradients(folder, inputs, targets)
    if gradients.keys() != theirs.keys():
        return float("inf")
    return max([difference(loss, their_loss)] + [difference(gradients[name], g) for name, g in theirs.items()])


def difference(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def train(program, model, shard, dtype, out):
    flags = {"init-from": model, "train-data": shard, "val-data": shard, "steps": 4, "batch": 2, "seq-len": 64, "lr": 3e-3,
             "val-every": 0, "val-tokens": 128, "dtype": dtype, "device": "cpu", "out": out}
    subprocess.run([program] + [f"--{name}={value}" for name, value in flags.items()], check=True, stdout=subprocess.DEVNULL)
    return os.path.join(out, "final")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a model folder or repo id in the local cache, to check besides")
    parser.add_argument("--no-training", action="store_true", help="compare logits and gradients only")
    parser.add_argument("--program", default=os.path.join(ROOT, "train_llama"))
    parser.add_argument("--tool", default=os.path.join(ROOT, "build", "dev", "model_logits"))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(1)
    passed = failures = 0

    def report(what, error, wanted=lambda e: e < TOLERANCE):
        nonlocal passed, failures
        passed, failures = passed + wanted(error), failures + (not wanted(error))
        print(f"{'ok  ' if wanted(error) else 'FAIL'} {what:58s} {error:.1e}")

    with tempfile.TemporaryDirectory() as work:
        for number, (name, dtype, shard_size, fields) in enumerate(CASES):
            config = toy_config(**fields)
            inputs = torch.randint(config.vocab_size, (2, 33))
            theirs, shard = os.path.join(work, f"theirs{number}"), os.path.join(work, f"shard{number}.bin")
            model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
            with torch.no_grad():  # transformers begins with ones, and biases with zeros
                for p in model.parameters():
                    if p.dim() == 1:
                        p.uniform_(0.5, 1.5)
            model.save_pretrained(theirs, max_shard_size=shard_size)
            before = their_logits(theirs, inputs)
            report(f"{name}, {dtype}: theirs -> ours", difference(our_logits(args.tool, theirs, inputs, work), before))
            shape = (2, GRADIENT_TOKENS.get(name, 33))
            pair = torch.randint(config.vocab_size, shape), torch.randint(config.vocab_size, shape)
            report("  loss and gradients", compare_gradients(args.tool, theirs, *pair, work), lambda e: e < GRADIENT_TOLERANCE)
            if args.no_training:
                continue
            write_shard(shard, torch.randint(config.vocab_size, (4096,)).tolist())
            for ours_dtype in ("fp32", "bf16"):
                ours = train(args.program, theirs, shard, ours_dtype, os.path.join(work, f"ours{number}-{ours_dtype}"))
                after = their_logits(ours, inputs)
                report(f"{name}, trained in {ours_dtype}: ours -> theirs",
                       difference(our_logits(args.tool, ours, inputs, work), after))
                report("  and training has changed the logits", difference(after, before), lambda e: e > 1e-2)
                again = os.path.join(work, "exported")
                subprocess.run([args.program, "export", "--from", ours, "--to", again, "--overwrite"], check=True,
                               stdout=subprocess.DEVNULL)
                report("  exported: the same logits", difference(their_logits(again, inputs), after), lambda e: e == 0)
        if args.model:
            vocab = transformers.AutoConfig.from_pretrained(args.model).vocab_size
            inputs = torch.randint(vocab, (1, 33))
            report(args.model, difference(our_logits(args.tool, args.model, inputs, work), their_logits(args.model, inputs)))
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    print(f"{passed} passed, {failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
