#!/usr/bin/env python3
"""What PyTorch's DDP and FSDP keep on each rank, in bytes: parameters, gradients, exp_avg, exp_avg_sq.

  dev/golden/make_sharding_golden.py > dev/golden/sharding.json      needs torch, transformers (PyPI), no GPU; a minute

A LLaMA of the preset `bytes` in fp32 takes one step of AdamW on gloo. Bytes are those of the storage that a rank's tensors keep,
of FSDP (fully_shard of each block and of the rest) its local part. dev/run/tables.py sources --check compares ours with them.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, intermediate_size=688, vocab_size=512)
T = 32


def kept(tensors):  # FSDP's gradients of a block are parts of one storage
    local = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())


def rank_main(rank, ranks, how, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", OMP_NUM_THREADS="1")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(CONFIG)
    if how == "DDP":
        wrapped = DistributedDataParallel(model)
    else:
        for block in model.model.layers:
            fully_shard(block)
        wrapped = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(T + 1).view(1, -1)
    cross_entropy(wrapped(input_ids=tokens[:, :-1], use_cache=False).logits[0], tokens[0, 1:]).backward()
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
