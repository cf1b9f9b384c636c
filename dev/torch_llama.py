#!/usr/bin/env python3
"""The peer: the same LLaMA training step in plain PyTorch, to be timed beside dev/bench_train on the same machine.

    python3 dev/torch_llama.py                                    the two small models of bench_train, on the CPU
    python3 dev/torch_llama.py --device cuda --compile --dtype bf16 --dim 2048 --layers 24 --heads 16 --kv-heads 8 \
        --ffn 6144 --vocab 32000 --batch 8 --seq-len 2048

fp32, or bf16 by autocast; scaled_dot_product_attention, fused AdamW where there is one, clipping at 1. FLOPs are counted as
bench_train counts them. On a CPU whose BLAS is told to use an older instruction set (OPENBLAS_CORETYPE), unset that first.
"""
import argparse
import resource
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotate(x, cos, sin):  # (B, H, T, D), half-rotated
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o, d = o, o.dim // o.heads
        self.norm1, self.norm2 = Norm(o.dim), Norm(o.dim)
        self.qkv = nn.Linear(o.dim, (o.heads + 2 * o.kv_heads) * d, bias=False)
        self.out = nn.Linear(o.dim, o.dim, bias=False)
        self.gate_up = nn.Linear(o.dim, 2 * o.ffn, bias=False)
        self.down = nn.Linear(o.ffn, o.dim, bias=False)

    def forward(self, x, cos, sin):
        o, (B, T, C) = self.o, x.shape
        d = C // o.heads
        q, k, v = self.qkv(self.norm1(x)).split((o.heads * d, o.kv_heads * d, o.kv_heads * d), -1)
        q, k, v = (t.view(B, T, -1, d).transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        n = o.heads // o.kv_heads
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed = nn.Embedding(o.vocab, o.dim)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm, self.head = Norm(o.dim), nn.Linear(o.dim, o.vocab, bias=False)
        d = o.dim // o.heads
        angle = torch.outer(torch.arange(o.seq_len).float(), 10000 ** (-torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def measure(name, o, dtype):
    torch.manual_seed(1)
    model = Llama(o).to(o.device)
    matrices = sum(p.numel() for n, p in model.named_parameters() if p.dim() > 1 and not n.startswith("embed"))
    step_model = torch.compile(model) if o.compile else model
    try:
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
    except (RuntimeError, TypeError):
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, betas=(0.9, 0.95))
    tokens, targets = (torch.randint(o.vocab, (o.batch, o.seq_len), device=o.device) for _ in range(2))
    times = []
    for step in range(3 + o.steps):
        start = time.perf_counter()
        with torch.autocast(o.device, torch.bfloat16, enabled=dtype == "bf16"):
            loss = step_model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        if o.device == "cuda":
            torch.cuda.synchronize()
        if step >= 3:
            times.append(time.perf_counter() - start)
    t, n = statistics.median(times), o.batch * o.seq_len
    flops = 6 * matrices + 6 * o.layers * o.dim * o.seq_len
    memory = torch.cuda.max_memory_allocated() if o.device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{name:10s} {dtype:5s} {o.batch:4d} x {o.seq_len:<5d} {1e3 * t:9.1f} ms {n / t:10.0f} tok/s "
          f"{n / t * flops / 1e9:10.1f} GFLOP/s {memory / 2**20:10.1f} MiB", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("dim", "layers", "heads", "kv-heads", "ffn", "vocab"):
        p.add_argument("--" + flag, type=int, default=0)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq-len", type=int, default=1024)
    p.add_argument("--dtype", choices=("fp32", "bf16"))
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--compile", action="store_true")
    o = p.parse_args()
    if o.threads:
        torch.set_num_threads(o.threads)
    print(f"# PyTorch {torch.__version__}, {torch.cuda.get_device_name() if o.device == 'cuda' else 'CPU'}, "
          f"{torch.get_num_threads()} threads")
    models = [("custom", vars(o))]
    if not o.dim:
        models = [("256x4", dict(vars(o), dim=256, layers=4, heads=8, kv_heads=4, ffn=688, vocab=512, batch=8, seq_len=256)),
                  ("tiny", dict(vars(o), dim=512, layers=5, heads=8, kv_heads=4, ffn=1280, vocab=32000, batch=4, seq_len=128))]
    for name, options in models:
        for dtype in (o.dtype,) if o.dtype else ("fp32", "bf16"):
            measure(name, argparse.Namespace(**options), dtype)


if __name__ == "__main__":
    main()
