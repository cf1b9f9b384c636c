#!/usr/bin/env python3
"""Writes test/golden/muon/: toy LLaMAs, tokens, and the weights after 12 steps of transformers' LlamaForCausalLM with
torch.optim.Muon on the blocks' matrices and torch.optim.AdamW on all else, for test/program/check_muon.py.

    pip install torch transformers        # torch 2.9 or newer
    python3 dev/golden/make_muon_golden.py

Each case is a folder as transformers saves it, data.bin (llm.c's shard), and three files of weights: fp32.safetensors, by
torch's function without its cast to bf16, rows.safetensors, by the same with NorMuon's moments of rows (Li et al. 2025,
arXiv 2510.05491: the formulas of its normuon_update), and bf16.safetensors, by torch's function as it is. Everything but
the cast is fp32. bf16.safetensors may differ from fp32.safetensors by what bf16 costs: that is the bound for ours."""
import json
import os
import random
import sys

import torch
import transformers
from safetensors.torch import save_file
from torch.optim import _muon

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "run"))
from study import write_shard  # noqa: E402

B, T, STEPS, CLIP = 2, 16, 12, 1.0
RATE, DECAY = 1e-2, 0.1
CASES = {
    "square": dict(hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, vocab_size=61),
    "wide": dict(hidden_size=24, intermediate_size=16, num_attention_heads=3, num_key_value_heads=3, vocab_size=43),
    "tall": dict(hidden_size=16, intermediate_size=72, num_attention_heads=2, num_key_value_heads=2, head_dim=16, vocab_size=37),
    "gqa": dict(hidden_size=24, intermediate_size=40, num_attention_heads=3, num_key_value_heads=1, vocab_size=43),
    "tied": dict(hidden_size=32, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=53,
                 tie_word_embeddings=True),
    "deep": dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, vocab_size=31,
                 num_hidden_layers=4),
}


def without_cast(grad, coefficients, steps, eps):
    a, b, c = coefficients
    x = grad.T.clone() if grad.size(0) > grad.size(1) else grad.clone()
    x.div_(x.norm().clamp(min=eps))
    for _ in range(steps):
        s = x @ x.T
        x = torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


def with_rows(matrices, beta2=0.95):
    """torch calls it for one matrix after the other, in each step."""
    moments, calls = [0.0] * matrices, [0]

    def function(grad, coefficients, steps, eps):
        x = without_cast(grad, coefficients, steps, eps)
        i = calls[0] % matrices
        calls[0] += 1
        moments[i] = beta2 * moments[i] + (1 - beta2) * (x * x).mean(dim=-1, keepdim=True)
        y = x / (moments[i].sqrt() + 1e-10)
        return y * (x.norm() / (y.norm() + 1e-10))

    return function


def train(folder, ids, function):
    model = transformers.LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and ".layers." in n]
    rest = [p for p in model.parameters() if not any(p is m for m in matrices)]
    torch_function, _muon._zeropower_via_newtonschulz = _muon._zeropower_via_newtonschulz, function or _muon._zeropower_via_newtonschulz
    optimizers = [
        torch.optim.Muon(matrices, lr=RATE, weight_decay=DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([dict(params=[p for p in rest if p.dim() == 2], weight_decay=DECAY),
                           dict(params=[p for p in rest if p.dim() == 1], weight_decay=0.0)],
                          lr=RATE, betas=(0.9, 0.95), eps=1e-8)]
    for step in range(STEPS):
        rows = [range((step * B + b) * T, (step * B + b + 1) * T) for b in range(B)]
        inputs = torch.tensor([[ids[at] for at in row] for row in rows])
        targets = torch.tensor([[ids[at + 1] for at in row] for row in rows])
        for o in optimizers:
            o.zero_grad()
        logits = model(inputs).logits
        torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for o in optimizers:
            o.step()
    _muon._zeropower_via_newtonschulz = torch_function
    return {n: p.detach().contiguous() for n, p in model.named_parameters()}


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden", "muon")
    for name, fields in CASES.items():
        folder = os.path.join(root, name)
        torch.manual_seed(len(name))
        config = transformers.LlamaConfig(**{**dict(num_hidden_layers=1, max_position_embeddings=64, bos_token_id=1,
                                                    eos_token_id=2), **fields})
        model = transformers.LlamaForCausalLM(config).float()
        with torch.no_grad():
            for p in model.parameters():
                p.uniform_(0.5, 1.5) if p.dim() == 1 else p.normal_(0, 0.7 * p.shape[1] ** -0.5)
        model.save_pretrained(folder)
        draw = random.Random(name)
        ids = [draw.randrange(config.vocab_size) for _ in range(STEPS * B * T + 1)]
        write_shard(os.path.join(folder, "data.bin"), ids)
        for which, function in (("fp32", without_cast), ("rows", with_rows(7 * config.num_hidden_layers)), ("bf16", None)):
            save_file(train(folder, ids, function), os.path.join(folder, which + ".safetensors"))
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters")
    with open(os.path.join(root, "made.json"), "w") as f:
        json.dump(dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__), f)
        f.write("\n")


main()
