#!/usr/bin/env python3
"""The peer: the same LLaMA training step in plain PyTorch, to be timed beside dev/bench_train on the same machine.

    python3 dev/golden/torch_llama.py                                    the two small models of bench_train, on the CPU
    python3 dev/golden/torch_llama.py --device cuda --compile --dtype bf16 --dim 2048 --layers 24 --heads 16 --kv-heads 8 \
        --ffn 6144 --vocab 32000 --batch 8 --seq-len 2048
    python3 dev/golden/torch_llama.py --device cuda --compile --curve DIR      losses from the weights and tokens of bench_train --curve DIR

What it does for a fair race: bf16 residual stream, torch.compile (of the whole model, or block by block, which takes a tenth of the
time to compile), native grouped-query attention by whichever of flash attention and cuDNN is faster at this shape (both are timed
first), fused AdamW, gradients set to None, no synchronisation between steps. FLOPs are counted as bench_train counts them; --json
writes rows as bench_train does.

--dtype bf16 comes with a choice of --params, all of which --params all times:
    master     bf16 parameters and gradients, fp32 masters, m and v: what ringzero keeps
    fp32       fp32 parameters and gradients under autocast, fp32 m and v: the same precision, PyTorch's usual way
    bf16       parameters and Adam's state in bf16: faster and less exact; to be compared with bf16 masters and moments only

On a CPU whose BLAS is told to use an older instruction set (OPENBLAS_CORETYPE), unset that first.
"""
import argparse
import contextlib
import gc
import json
import os
import resource
import statistics
import struct
import sys
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


def attention(q, k, v, native_gqa):
    n = q.shape[1] // k.shape[1]
    if n > 1 and not native_gqa:
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=n > 1 and native_gqa)


def use_backend(name):  # for every later call, compiled or not
    torch.backends.cuda.enable_flash_sdp(name == "flash")
    torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
    torch.backends.cuda.enable_mem_efficient_sdp(name == "efficient")
    torch.backends.cuda.enable_math_sdp(name == "math")


def choose_attention(o, dtype):
    """Leaves the fastest way to attend at this shape switched on, forward and backward, and returns its name."""
    o.native_gqa = True
    if o.device != "cuda":
        return "CPU"
    d, t = o.dim // o.heads, torch.bfloat16 if dtype == "bf16" else torch.float32
    q, k, v = (torch.randn(o.batch, h, o.seq_len, d, device="cuda", dtype=t, requires_grad=True) for h in (o.heads, o.kv_heads, o.kv_heads))
    times = {}
    for backend in ("flash", "cudnn", "efficient"):
        for native in (True, False) if o.heads != o.kv_heads else (True,):
            use_backend(backend)
            try:
                for i in range(4):
                    if i == 1:
                        torch.cuda.synchronize()
                        start = time.perf_counter()
                    y = attention(q, k, v, native)
                    y.backward(torch.ones_like(y))
                torch.cuda.synchronize()
                times[backend, native] = time.perf_counter() - start
            except RuntimeError:  # not for this shape or type
                pass
    if not times:
        use_backend("math")
        return "math"
    (backend, o.native_gqa), _ = min(times.items(), key=lambda kv: kv[1])
    use_backend(backend)
    return backend + ("" if o.native_gqa else ", keys repeated")


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
        y = attention(q, k, v, o.native_gqa)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed = nn.Embedding(o.vocab, o.dim)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.norm, self.head = Norm(o.dim), nn.Linear(o.dim, o.vocab, bias=False)
        if o.tied:
            self.head.weight = self.embed.weight
        d = o.dim // o.heads
        angle = torch.outer(torch.arange(o.seq_len).float(), o.rope_theta ** (-torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.bfloat16)  # or the whole residual stream would be fp32
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(x, targets)

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def device_name(o):
    if o.device == "cuda":
        return torch.cuda.get_device_name()
    with open("/proc/cpuinfo") as f:
        model = next((line.split(": ", 1)[1].strip() for line in f if line.startswith("model name")), "CPU")
    return f"{model} ({os.cpu_count()} cores)"


def append_row(o, row):
    if o.json:
        with open(o.json, "a") as f:
            f.write(json.dumps({**row, "device": device_name(o), "command": " ".join(sys.argv)}) + "\n")


class Trainer:
    def __init__(self, o, dtype, params, lr, tensors=None):
        torch.manual_seed(1)
        self.attention = choose_attention(o, dtype)
        self.o, model = o, Llama(o)
        if tensors:
            load_hugging_face(model, tensors)
        model = model.to(o.device)
        self.masters = {}
        if dtype == "bf16" and params == "master":
            self.masters = {k: p.detach().clone() for k, p in model.named_parameters()}
        if dtype == "bf16" and params != "fp32":
            cos, sin = model.cos, model.sin
            model = model.to(torch.bfloat16)
            model.cos, model.sin = cos, sin
        self.autocast = dtype == "bf16" and params == "fp32"
        self.model = self.step_model = model
        self.parameters = list(model.parameters())
        updated = self.parameters
        if self.masters:
            updated = [self.masters[k] for k, _ in model.named_parameters()]
            for m in updated:
                m.grad = torch.empty_like(m)
        self.updated = updated
        if o.compile == "model":
            self.step_model = torch.compile(model, dynamic=False)
        elif o.compile == "blocks":  # one compilation serves all of them
            for b in model.blocks:
                b.compile(dynamic=False)
            model.loss = torch.compile(model.loss, dynamic=False)
        groups = [{"params": [p for p in updated if p.dim() > 1], "weight_decay": 0.1},
                  {"params": [p for p in updated if p.dim() == 1], "weight_decay": 0.0}]
        try:
            self.adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
        except (RuntimeError, TypeError):
            self.adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)

    def step(self, tokens, targets):
        with torch.autocast(self.o.device, torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = self.step_model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if self.masters:
            torch._foreach_copy_([m.grad for m in self.updated], [p.grad for p in self.parameters])
        self.adam.step()
        if self.masters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.updated)
        for p in self.parameters:
            p.grad = None
        return loss


def measure(name, o, dtype, params):
    how = {"": "", "model": "-compile", "blocks": "-compile by blocks"}[o.compile]
    variant = f"pytorch{how}{', ' + params + (' masters' if params == 'master' else ' parameters') if dtype == 'bf16' else ''}"
    facts = {"kind": "train", "program": variant.replace("master masters", "fp32 masters"), "model": name, "layers": o.layers,
             "batch": o.batch, "seq_len": o.seq_len, "dtype": dtype, "torch": torch.__version__,
             "state": "bf16" if dtype == "bf16" and params == "bf16" else "fp32"}
    if o.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        t, trainer, first = time_steps(o, dtype, params)
    except torch.OutOfMemoryError:
        print(f"{name:10s} {variant}: out of memory", flush=True)
        append_row(o, {**facts, "error": "out of memory"})
        return
    n = o.batch * o.seq_len
    matrices = sum(p.numel() for k, p in trainer.model.named_parameters() if p.dim() > 1 and (o.tied or not k.startswith("embed")))
    flops = 6 * matrices + 6 * o.layers * o.dim * o.seq_len
    memory = torch.cuda.max_memory_allocated() if o.device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{name:10s} {dtype:5s} {o.batch:4d} x {o.seq_len:<5d} {1e3 * t:9.1f} ms {n / t:10.0f} tok/s "
          f"{n / t * flops / 1e9:10.1f} GFLOP/s {memory / 2**20:10.1f} MiB  {facts['program']}; attention: {trainer.attention}; "
          f"first step {first:.1f} s", flush=True)
    peak = 989e12 if o.device == "cuda" and any(g in device_name(o) for g in ("H100 80GB HBM3", "H200")) else None
    append_row(o, {**facts, "parameters": sum(p.numel() for p in trainer.model.parameters()), "seconds": t, "tokens_per_s": n / t,
                   "flops_per_token": flops, "flops": n / t * flops, "mfu": peak and n / t * flops / peak, "peak_bytes": memory,
                   "attention": trainer.attention, "first_step_seconds": first})


def time_steps(o, dtype, params):
    """Seconds of a step (median), as bench_train takes them: the host runs ahead, events stand between the steps."""
    trainer = Trainer(o, dtype, params, 1e-4)
    tokens, targets = (torch.randint(o.vocab, (o.batch, o.seq_len), device=o.device) for _ in range(2))
    cuda = o.device == "cuda"
    marks, begin = [], time.perf_counter()
    for step in range(3 + o.steps):
        trainer.step(tokens, targets)
        if step == 0:
            if cuda:
                torch.cuda.synchronize()
            first = time.perf_counter() - begin
        if step >= 2:
            mark = torch.cuda.Event(enable_timing=True) if cuda else time.perf_counter()
            if cuda:
                mark.record()
            marks.append(mark)
    if cuda:
        torch.cuda.synchronize()
    times = [a.elapsed_time(b) * 1e-3 if cuda else b - a for a, b in zip(marks, marks[1:])]
    if o.classes:
        report_classes(trainer, tokens, targets)
    return statistics.median(times), trainer, first


def report_classes(trainer, tokens, targets, steps=3):
    """Time by op, on the CPU, where ops follow one another: what an op's own code takes, without the ops it calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(steps):
            trainer.step(tokens, targets)
    ops = sorted(((e.self_cpu_time_total * 1e-3 / steps, e.key) for e in profile.key_averages()), reverse=True)
    total = sum(t for t, _ in ops)
    products = sum(t for t, key in ops if key in ("aten::mm", "aten::addmm", "aten::bmm", "aten::addmm_", "aten::baddbmm"))
    print(f"  {total:.1f} ms a step in ops: {products:.1f} in matrix products, {total - products:.1f} ms outside", flush=True)
    for t, key in ops[:14]:
        print(f"  {key:48s} {t:9.3f} ms {100 * t / total:6.1f}%", flush=True)


# ---- the same weights and data as bench_train --curve --------------------------------------------------------------------------


def read_safetensors(path):
    """All tensors of an fp32 file."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = bytearray(f.read())
    return {name: torch.frombuffer(data, dtype=torch.float32, offset=t["data_offsets"][0],
                                   count=(t["data_offsets"][1] - t["data_offsets"][0]) // 4).view(t["shape"])
            for name, t in header.items() if name != "__metadata__"}


def load_hugging_face(model, tensors):
    left = dict(tensors)

    def take(*names):
        return torch.cat([left.pop(n) for n in names])

    with torch.no_grad():
        model.embed.weight.copy_(take("model.embed_tokens.weight"))
        for i, b in enumerate(model.blocks):
            p = f"model.layers.{i}."
            b.norm1.weight.copy_(take(p + "input_layernorm.weight"))
            b.norm2.weight.copy_(take(p + "post_attention_layernorm.weight"))
            b.qkv.weight.copy_(take(*(p + f"self_attn.{x}_proj.weight" for x in "qkv")))
            b.out.weight.copy_(take(p + "self_attn.o_proj.weight"))
            b.gate_up.weight.copy_(take(p + "mlp.gate_proj.weight", p + "mlp.up_proj.weight"))
            b.down.weight.copy_(take(p + "mlp.down_proj.weight"))
        model.norm.weight.copy_(take("model.norm.weight"))
        if "lm_head.weight" in left:
            model.head.weight.copy_(take("lm_head.weight"))
    if left:
        sys.exit(f"torch_llama.py: tensors that this model does not have: {sorted(left)}")


def curve(o):
    with open(o.curve + "/curve.json") as f:
        c = json.load(f)
    with open(o.curve + "/weights/config.json") as f:
        config = json.load(f)
    o.dim, o.layers, o.heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    o.kv_heads, o.ffn, o.vocab = config["num_key_value_heads"], config["intermediate_size"], config["vocab_size"]
    o.tied, o.rope_theta, o.batch, o.seq_len = config["tie_word_embeddings"], config["rope_theta"], c["batch"], c["seq_len"]
    expected = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
    for key, value in expected.items():
        if abs(c[key] - value) > 1e-6 * value:
            sys.exit(f"torch_llama.py: {key} is {c[key]} in {o.curve}, {value} here")
    with open(o.curve + "/tokens.i32", "rb") as f:
        text = torch.frombuffer(bytearray(f.read()), dtype=torch.int32).view(c["steps"], o.batch, o.seq_len + 1).long()
    trainer = Trainer(o, c["dtype"], "master", c["lr"], read_safetensors(o.curve + "/weights/model.safetensors"))
    losses = []
    for step in range(c["steps"]):
        for group in trainer.adam.param_groups:
            group["lr"] = c["lr"] * min(1.0, (step + 1) / c["warmup"])
        batch = text[step].to(o.device)
        losses.append(trainer.step(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()).item())
    print(f"{c['model']} {c['dtype']} {c['steps']} steps: loss {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
    append_row(o, {"kind": "curve", "program": "pytorch" + ("-compile" if o.compile else ""), "model": c["model"], "batch": o.batch,
                   "seq_len": o.seq_len, "dtype": c["dtype"], "losses": losses})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("dim", "layers", "heads", "kv-heads", "ffn", "vocab"):
        p.add_argument("--" + flag, type=int, default=0)
    p.add_argument("--tied", action="store_true")
    p.add_argument("--rope-theta", type=float, default=10000)
    p.add_argument("--name", default="custom")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq-len", type=int, default=1024)
    p.add_argument("--dtype", choices=("fp32", "bf16"))
    p.add_argument("--params", choices=("master", "fp32", "bf16", "all"), default="master", help="with --dtype bf16")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--classes", action="store_true", help="time by op, in a few steps of their own (CPU)")
    p.add_argument("--compile", nargs="?", choices=("model", "blocks"), const="model", default="")
    p.add_argument("--curve", default="", help="folder that bench_train --curve has filled")
    p.add_argument("--json", default="", help="append one JSON object per result to this file")
    o = p.parse_args()
    if o.threads:
        torch.set_num_threads(o.threads)
    o.native_gqa = True
    print(f"# PyTorch {torch.__version__}, {device_name(o)}, {torch.get_num_threads()} threads")
    if o.curve:
        return curve(o)
    models = [(o.name, vars(o))]
    if not o.dim:
        models = [("256x4", dict(vars(o), dim=256, layers=4, heads=8, kv_heads=4, ffn=688, vocab=512, batch=8, seq_len=256)),
                  ("tiny", dict(vars(o), dim=512, layers=5, heads=8, kv_heads=4, ffn=1280, vocab=32000, batch=4, seq_len=128))]
    for name, options in models:
        for dtype in (o.dtype,) if o.dtype else ("fp32", "bf16"):
            for params in ("fp32",) if dtype == "fp32" else ("master", "fp32", "bf16") if o.params == "all" else (o.params,):
                measure(name, argparse.Namespace(**options), dtype, params)
                gc.collect()
                if o.device == "cuda":
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
