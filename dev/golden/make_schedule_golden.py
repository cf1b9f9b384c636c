#!/usr/bin/env python3
"""Pipeline schedules as PyTorch makes them, for test/golden/pipelines.txt.

    make_schedule_golden.py                     with an installed torch
    make_schedule_golden.py --pytorch DIR       with the folder torch/distributed/pipelining of any torch wheel

Each line: schedule, ranks, micro-batches, stages a rank, FNV-1a of the text that PyTorch's own CSV writer would print
for it, idle fields left out, and what newer versions say of the reduction of gradients. Orders are pure Python, so the second form needs none of torch's libraries: what
schedules.py imports beside them is replaced by placeholders. DualPipe is not in PyTorch. ZB-H1 is there as
ScheduleInterleavedZeroBubble with one stage on each rank. Of 1f1b the last rank is left out: torch 2.9.1 numbers its forwards from 1 in the printed order, which is not what it runs.
"""
import argparse
import importlib.util
import pathlib
import sys
import types
from unittest import mock

MAKE = {"gpipe": ("GPipe", 1), "1f1b": ("1F1B", 1), "interleaved": ("Interleaved1F1B", 2),
        "interleaved4": ("Interleaved1F1B", 4), "zb-h1": ("InterleavedZeroBubble", 1), "zb-v": ("ZBVZeroBubble", 2),
        "dualpipev": ("DualPipeV", 2)}  # class, stages a rank
GRID = [(2, 4), (3, 6), (4, 8), (4, 16), (8, 16), (8, 32), (2, 8), (3, 12), (5, 10), (6, 12)]


def load(folder):
    """The module schedules.py, from an installed torch or from a folder of its sources."""
    if not folder:
        try:
            from torch.distributed.pipelining import schedules
        except ImportError as error:
            sys.exit(f"make_schedule_golden.py: {error}\n  install torch, or give --pytorch DIR")
        return schedules
    for name in ("torch", "torch.distributed", "torch.fx", "torch._dynamo", "torch.distributed.fsdp", "torch.nn",
                 "torch.nn.modules", "torch.nn.modules.loss", "torch.profiler"):
        sys.modules[name] = mock.MagicMock(__name__=name, __spec__=None)
    package = types.ModuleType("pipelining")
    package.__path__ = [str(folder)]
    sys.modules["pipelining"] = package
    for name in ("microbatch", "stage"):
        sys.modules["pipelining." + name] = mock.MagicMock(__name__=name, __spec__=None)
    spec = importlib.util.spec_from_file_location("pipelining.schedules", pathlib.Path(folder) / "schedules.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stages(ranks, stages_per_rank):
    """What a schedule asks of the stages of rank 0."""
    return [types.SimpleNamespace(num_stages=ranks * stages_per_rank, group_size=ranks, group_rank=0, stage_index=i,
                                  has_backward=True, is_first=i == 0, is_last=False, submod=None)
            for i in range(stages_per_rank)]


def csv(order):
    return "".join(",".join(str(a) for a in order[r] if a is not None and "REDUCE_GRAD" not in str(a)) + "\n" for r in sorted(order))


def fnv1a(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value


def order(module, name, ranks, micro_batches, stages_per_rank=None):
    """By rank, PyTorch's actions."""
    kind = getattr(module, "Schedule" + MAKE[name][0])
    held = stages(ranks, stages_per_rank or MAKE[name][1])
    return kind(held[0] if issubclass(kind, module.PipelineScheduleSingle) else held, micro_batches).pipeline_order


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytorch", metavar="DIR", help="torch/distributed/pipelining, if torch is not installed")
    parser.add_argument("--csv", nargs=3, metavar=("NAME", "RANKS", "MICRO_BATCHES"), help="print one schedule instead")
    args = parser.parse_args()
    module = load(args.pytorch)
    if args.csv:
        print(csv(order(module, args.csv[0], int(args.csv[1]), int(args.csv[2]))), end="")
        return
    for name, (_, v) in MAKE.items():
        for ranks, micro_batches in GRID:
            made = order(module, name, ranks, micro_batches)
            text = csv({r: made[r] for r in range(ranks - (name == "1f1b"))})
            print(name.rstrip("4"), ranks, micro_batches, v, f"{fnv1a(text.encode()):016x}")


if __name__ == "__main__":
    main()
