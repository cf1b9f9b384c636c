#!/usr/bin/env python3
"""Each architecture beside LLaMA's, in four shapes drawn at random, against transformers' own class and llama.cpp.

    dev/golden/check_models.py [--seed N]            with the packages of dev/golden/oracle (torch, transformers, xllamacpp)

    logits                                            within 1e-5 of the largest
    loss, gradients of all tensors                    within 1e-4 of the tensor's largest
    weights after 12 steps of AdamW, and their losses within 3e-5 of the tensor's largest, on each of some layouts
    16 greedy tokens                                  equal: transformers and this program; llama.cpp, which keeps keys and values in fp16,
                                                      on the exported GGUF: none more than 5e-3 deviations of the logits below the best
    the exported folder, opened by transformers       the same bits

Mistral's windows are shorter than the sequences, as long as those of training, as long as those of the logits, and the model's context; its 12 steps also run with
packed documents (transformers is given their positions, from which it makes its masks). A GGUF of a window below the context is refused, since llama.cpp has none; so is one of a tied OLMo 2, for
which it wants a head.

Weights are fp32. The last line is "N passed, N failed".
"""

import argparse
import copy
import functools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "oracle"), os.path.dirname(os.path.abspath(__file__))]
import torch  # noqa: E402
import transformers  # noqa: E402
from areas import ROOT, llama_cpp, make_model, write_shard  # noqa: E402
from check_hf import compare_gradients, difference, our_logits, their_logits  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

KINDS = ("Qwen2", "Qwen3", "SmolLM3", "Mistral", "Olmo2")
STEPS, LENGTH, BATCH, TOKENS, VOCAB = 12, 24, 4, 16, 440
WINDOWS, CONTEXT, FIRST_OF_DOCUMENT = (5, LENGTH, 33, 64), 64, 7
OPTIMIZER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-4, "weight-decay": 0.1}
LAYOUTS = [{}, {"tp": 2}, {"pp": 2, "pp-schedule": "zb-v", "grad-accum": 4, "batch": 1}, {"cp": 2}, {"dp": 2, "zero": 3, "batch": 2},
           {"recompute": "block"}, {"tp": 2, "dp": 2, "zero": 2, "batch": 2, "recompute": "mlp"}]


def draw(kind, r, number):
    kv = 2 * r.choice([1, 2])
    heads = kv * r.choice([1, 2, 3])
    width = heads * 8 * r.choice([1, 2])
    config = dict(model=kind, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv, head_dim=r.choice([8, 16, 24]) if kind == "Qwen3" else width // heads,
                  intermediate_size=r.choice([24, 64, 96]), num_hidden_layers=4, vocab_size=VOCAB, rms_norm_eps=r.choice([1e-6, 1e-5]), max_position_embeddings=CONTEXT,
                  tie_word_embeddings=r.random() < 0.5, rope_parameters=dict(rope_type="default", rope_theta=r.choice([1e4, 1e6])))
    if kind == "SmolLM3":
        config["no_rope_layer_interval"] = 4  # llama.cpp knows no other
    if kind == "Mistral":
        config["sliding_window"] = WINDOWS[number]
    if kind == "Olmo2":
        config.update(pad_token_id=None, eos_token_id=2)
    return config


def document_positions(inputs):
    """Counted from the row's or the last document's first token."""
    starts = torch.where((inputs == FIRST_OF_DOCUMENT), torch.arange(inputs.shape[1]), 0).cummax(1).values
    return torch.arange(inputs.shape[1]) - starts


def torch_steps(model, ids, documents=False):
    """12 steps of PyTorch's AdamW; matrices decay. -> losses, weights"""
    model = copy.deepcopy(model)
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": OPTIMIZER["weight-decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["eps"])
    losses = []
    for step in range(STEPS):
        rows = [range(at * LENGTH, (at + 1) * LENGTH) for at in range(step * BATCH, (step + 1) * BATCH)]
        inputs, targets = (torch.tensor([[ids[at + k] for at in row] for row in rows]) for k in (0, 1))
        adam.zero_grad()
        positions = {"position_ids": document_positions(inputs)} if documents else {}
        loss = torch.nn.functional.cross_entropy(model(input_ids=inputs, use_cache=False, **positions).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    return losses, {n: p.detach() for n, p in model.named_parameters()}


def our_steps(program, folder, shard, layout, out):
    layout = dict({"batch": BATCH}, **layout)
    ranks = layout.pop("dp", 1) * layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
    flags = {"init-from": folder, "train-data": shard, "val-data": shard, "data-order": "sequential", "seq-len": LENGTH, "val-every": 0, "val-tokens": 4 * LENGTH, "save-every": 0,
             "device": "cpu", "threads": 1, "steps": STEPS, "lr-schedule": "constant", "warmup": 0, "max-grad-norm": 0, "out": out, **OPTIMIZER, **layout}
    done = subprocess.run((["mpirun", "-n", str(ranks)] if ranks > 1 else []) + [program] + [f"--{k}={v}" for k, v in flags.items()], capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode:
        raise SystemExit(f"{layout}: {done.stderr[-1500:]}")
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as lines:
        return [row["loss"] for row in map(json.loads, lines) if "loss" in row], load_file(os.path.join(out, "final", "model.safetensors"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.path.join(ROOT, "train_llama"))
    parser.add_argument("--tool", default=os.path.join(ROOT, "build", "dev", "model_logits"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=KINDS)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    passed = failed = 0

    def report(what, error, bound):
        nonlocal passed, failed
        ok = error <= bound
        passed, failed = passed + ok, failed + (not ok)
        print(f"{'ok  ' if ok else 'FAIL'} {what:66s} {error:.1e}", flush=True)

    for kind in args.kind or KINDS:
        r = random.Random(f"{args.seed} {kind}")
        for number in range(4):
            config, seed = draw(kind, r, number), r.randrange(10**6)
            with tempfile.TemporaryDirectory() as work:
                path = functools.partial(os.path.join, work)
                model, _ = make_model(config, seed, path("model"))
                shutil.copy(os.path.join(ROOT, "test", "golden", "tokenizer", "llama2.json"), path("model/tokenizer.json"))
                print(f"{kind}: {config['num_attention_heads']} heads ({config['num_key_value_heads']} kv) of {config['head_dim']}, width {config['hidden_size']}, "
                      f"{'tied' if config['tie_word_embeddings'] else 'untied'}" + (f", window {config['sliding_window']}" if kind == "Mistral" else ""))
                inputs, targets = (torch.randint(VOCAB, (2, 33)) for _ in range(2))
                report("  logits", difference(our_logits(args.tool, path("model"), inputs, work), their_logits(path("model"), inputs)), 1e-5)
                report("  loss and gradients", compare_gradients(args.tool, path("model"), inputs, targets, work), 1e-4)
                again, gguf = path("again"), path("model.gguf")
                subprocess.run([args.program, "export", "--from", path("model"), "--to", again], check=True, stdout=subprocess.DEVNULL)
                report("  exported, opened by transformers", difference(their_logits(again, inputs), their_logits(path("model"), inputs)), 0)
                hides = config.get("sliding_window", CONTEXT) < CONTEXT or (kind == "Olmo2" and config["tie_word_embeddings"])
                done = subprocess.run([args.program, "export", "--from", path("model"), "--to", gguf, "--format", "gguf", "--dtype", "fp32"], capture_output=True, text=True)
                report(f"  GGUF {'refused' if hides else 'written'}", int((done.returncode != 0 and any(w in done.stderr for w in ("has no window", "wants a head of its own"))) != hides), 0)
                prompt = [r.randrange(3, VOCAB) for _ in range(9)]
                theirs = list(prompt)
                for _ in range(TOKENS):
                    z = model(input_ids=torch.tensor([theirs])).logits[0, -1].detach()
                    z[2] = -1e9  # </s>, which llama.cpp is asked to leave out
                    theirs.append(int(z.argmax()))
                ours = list(prompt)
                for _ in range(TOKENS):
                    z = our_logits(args.tool, path("model"), torch.tensor([ours]), work)[0, -1]
                    z[2] = -1e9
                    ours.append(int(z.argmax()))
                report("  greedy tokens that differ from transformers'", sum(a != b for a, b in zip(ours, theirs)), 0)
                found, below, path_of_it = [] if hides else llama_cpp(gguf, prompt), 0.0, list(prompt)
                for token in found:
                    z = model(input_ids=torch.tensor([path_of_it])).logits[0, -1].detach()
                    z[2] = -1e9
                    below = max(below, float((z.max() - z[token]) / z[3:].std()))
                    path_of_it.append(token)
                same = sum(a == b for a, b in zip(found, theirs[len(prompt):]))
                if not hides:
                    report(f"  {len(found)} tokens of llama.cpp, {same} the same; most below the best", below if found else 1, 5e-3)
                ids = [r.randrange(VOCAB) for _ in range(STEPS * BATCH * LENGTH + 1)]
                write_shard(path("data.bin"), ids)
                documents = {"doc-mask": "bos", "doc-token": FIRST_OF_DOCUMENT}
                more = [documents, dict(documents, cp=2), {"cp": 3, "cp-exchange": "ring"}] if kind == "Mistral" else []
                apart, whole = torch_steps(model, [FIRST_OF_DOCUMENT if i % 11 == 3 else t for i, t in enumerate(ids)], True) if more else None, torch_steps(model, ids)
                write_shard(path("documents.bin"), [FIRST_OF_DOCUMENT if i % 11 == 3 else t for i, t in enumerate(ids)])
                for i, layout in enumerate(LAYOUTS + more):
                    losses, weights = apart if "doc-mask" in layout else whole
                    mine, final = our_steps(args.program, path("model"), path("documents.bin" if "doc-mask" in layout else "data.bin"), layout, path(f"run{i}"))
                    worst = max([abs(a / b - 1) for a, b in zip(mine, losses)] + [difference(final[n], w) for n, w in weights.items()] + [0 if len(mine) == STEPS else 1])
                    report(f"  12 steps of AdamW, {' '.join(f'--{k} {v}' for k, v in layout.items()) or 'one rank'}", worst, 3e-5)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
