#!/usr/bin/env python3
"""What PyTorch's DDP and FSDP keep on each rank, in bytes: parameters, gradients, exp_avg, exp_avg_sq.

  dev/golden/make_sharding_golden.py > dev/golden/sharding.json      needs torch (PyPI), no GPU; a minute

A LLaMA of the preset `bytes` in fp32 takes one step of AdamW on gloo. Bytes are those of the storage that a rank's tensors keep,
of FSDP (fully_shard of each block and of the rest) its local part. dev/run/tables.py sources --check compares ours with them.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.nn.parallel import DistributedDataParallel

DIM, LAYERS, HEADS, KV_HEADS, HEAD, FFN, VOCAB, T = 256, 4, 8, 4, 32, 688, 512, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q, self.o = nn.Linear(DIM, HEADS * HEAD, bias=False), nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.k, self.v = nn.Linear(DIM, KV_HEADS * HEAD, bias=False), nn.Linear(DIM, KV_HEADS * HEAD, bias=False)
        self.gate, self.up = nn.Linear(DIM, FFN, bias=False), nn.Linear(DIM, FFN, bias=False)
        self.down = nn.Linear(FFN, DIM, bias=False)

    def forward(self, x):  # without positions: they keep nothing
        h = self.norm1(x)
        q, k, v = (f(h).view(1, T, -1, HEAD).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(1, T, -1))
        h = self.norm2(x)
        return x + self.down(silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCAB, DIM), nn.RMSNorm(DIM)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def kept(tensors):  # FSDP's gradients of a block are parts of one storage
    local = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())


def rank_main(rank, ranks, how, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", OMP_NUM_THREADS="1")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    model = Llama()
    if how == "DDP":
        wrapped = DistributedDataParallel(model)
    else:
        for block in model.blocks:
            fully_shard(block)
        wrapped = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(T + 1).view(1, -1) % VOCAB
    cross_entropy(wrapped(tokens[:, :-1])[0], tokens[0, 1:]).backward()
    optimizer.step()
    parameters = list(model.parameters())
    mine = {"parameters": kept(parameters), "gradients": kept(p.grad for p in parameters)}
    for name in ("exp_avg", "exp_avg_sq"):
        mine[name] = kept(optimizer.state[p][name] for p in parameters)
    gathered = [None] * ranks
    dist.all_gather_object(gathered, mine)
    if rank == 0:
        out.put({"how": how, "ranks": ranks, "elements": sum(p.numel() for p in parameters), "by_rank": gathered})
    dist.destroy_process_group()


def main():
    found = []
    for how, ranks in (("DDP", 2), ("DDP", 4), ("FSDP", 2), ("FSDP", 4)):
        out = mp.get_context("spawn").SimpleQueue()
        mp.spawn(rank_main, (ranks, how, out), nprocs=ranks)
        found.append(out.get())
    json.dump({"torch": torch.__version__, "model": "bytes", "dtype": "fp32", "runs": found}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
