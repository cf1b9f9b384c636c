#!/usr/bin/env python3
"""The tables that the field prints, each by one command, as Markdown with command, hardware, commit, date and load.

  dev/run/tables.py scaling       ranks x method x tokens/s x memory x efficiency; sleeping ops; the plan for GPUs
  dev/run/tables.py gpt2-memory   GPT-2 355M's size in fp32 under DDP and FSDP: plan beside ledger (12 GB of memory)
  dev/run/tables.py recompute     time and memory of --recompute
  dev/run/tables.py precision     number formats: loss on real text, speed, memory
  dev/run/tables.py collectives   ring against library by size
  dev/run/tables.py statistics    what --stats-every 10 costs
  dev/run/tables.py read-ahead    waiting for data with 20 ms at every read; bytes read by two ranks of a host
  dev/run/tables.py sources       every published figure beside ours; --check: exit code 1 if the state's ratios or bytes leave the published
  dev/run/tables.py bandwidth     every ZeRO stage at several link rates (root; dev/net/link_study.py)
  ... --out FILE                  instead of standard output

Needs `make` and `make tools`. Times are of this machine, and mean something only when it has nothing else to do.
"""

import argparse
import datetime
import json
import os
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile

import sources as published
from study import TOP, Left, commit, cpu_name, prepare, table, write

PROGRAM = os.path.join(TOP, "train_llama")
MIB = 1 << 20


def ask(words, allowed=(0,), env=None):
    done = subprocess.run(words, cwd=TOP, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode not in allowed:
        sys.exit(f"tables.py: {' '.join(words)}: exit code {done.returncode}\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def ask_ranks(ranks, words):
    """On so many ranks of one thread each."""
    return ask(["mpirun", "-n", str(ranks), *words], env={"OMP_NUM_THREADS": "1"})


def tool(name):
    for folder in ("build/dev", "build/cuda/dev", "build/cpu/dev"):
        path = os.path.realpath(os.path.join(TOP, folder, name))
        if os.path.exists(path):
            return path
    raise SystemExit(f"tables.py: build/dev/{name} is not there\n  nearest: make tools")


def plan(gpus, gpu, flags):
    """JSON of the plan, and tokens/s that it prints; None where it is refused or does not fit."""
    with tempfile.TemporaryDirectory() as work:
        words = [PROGRAM, "plan", "--gpus", str(gpus), "--gpu", gpu, "--json", work + "/plan.json", *flags]
        text = ask(words, allowed=(0, 3))
        found = json.load(open(work + "/plan.json"))
    rate = re.search(r", (\d+) tokens/s", text)
    most = max(found["planned_ranks"], key=lambda r: r["memory_peak"]["total"])
    return {"fits": found["fits"], "memory": most["memory_peak"], "rate": int(rate.group(1)) if rate else 0}


def repeats_of(options, usual):
    return ["--repeats", str(options.repeats or usual)]


def harness(work, flags):
    ask([tool("harness"), "run", "--out", work, *flags])
    return json.load(open(work + "/results.json"))["results"]


def seconds(result):
    return result["seconds"]["median"]


def number(result, name):
    return statistics.median(r["numbers"][name] for r in result["repeats"] if name in r["numbers"])


def best_rate(result):
    """Tokens/s of the fastest repeat, by the median of its steps: other work on the machine only slows a run down."""
    return max(r["numbers"]["tokens_per_second"] for r in result["repeats"])


def run_of(work, result):
    """The folder of the last repeat's run."""
    return os.path.join(work, result["repeats"][-1]["folder"], "run")


def peak_of(folder):
    """Peak bytes by kind of the rank that takes most."""
    return max((rank["memory_peak"] for rank in Left(folder).ranks), key=lambda memory: memory["total"])


def measured_peak(ranks, flags, out):
    ask_ranks(ranks, [PROGRAM, *flags, "--device", "cpu", "--threads", "1", "--out", out])
    return peak_of(out)


def times(value):
    return f"{value:.2f}"


def more(value, than):
    return f"{100 * (value / than - 1):+.0f} %"


# ---- tables ----------------------------------------------------------------------------------------------------------


def scaling(work, options):
    methods = "zero:zero0,zero:zero1,zero:zero2,zero:zero3,pipeline:1f1b,tensor:tp,context:gather"
    flags = ["--targets", methods, "--ranks", "1,2,4", *repeats_of(options, 3)]
    results = harness(work + "/ranks", flags)
    one = {r["target"]: r for r in results if r["ranks"] == 1}
    rows = []
    for r in results:
        alone = one.get(r["target"]) or one["zero:zero0"]
        if r["target"].startswith("context"):
            alone = one["context:data"]
        rate, of = number(r, "tokens_per_second"), number(alone, "tokens_per_second")
        mib = max(r["repeats"][-1]["used"]) / MIB
        rows.append([r["target"], r["ranks"], f"{rate:,.0f}", f"{mib:.1f}", f"{100 * rate / of:.0f} %"])
    text = "## Ranks of this machine\n\n"
    text += "Strong scaling: the same 4,096 tokens an update. One rank computes with a thread for each core, several share the cores. Efficiency is "
    text += "the rate over that of one rank: what is below 100 % is what the method costs; above it, ranks use the cores better than threads do.\n\n"
    text += f"`build/dev/harness run {' '.join(flags)}`\n\n"
    text += table(["method", "ranks", "tokens/s", "MiB at the peak, largest rank", "efficiency"], rows)
    text += "\n## Sleeping ops\n\nWeak scaling: each rank has its own micro-batches; a unit's pass sleeps for a known time, so ranks do not "
    text += "compete for cores, and messages are real. Efficiency is one rank's step over this one's.\n\n"
    text += "`mpirun -n N build/dev/plan_clock links --unit-mib 1`\n\n"
    rows, alone = [], 0
    for ranks in (1, 2, 4, 8):
        start = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        out = ask([*start, tool("plan_clock"), "links", "--unit-mib", "1"])
        for found in re.finditer(r"^\| (\d+) \| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", out, re.M):
            measured = float(found.group(3))
            alone = alone or measured
            rows.append([*found.groups(), f"{100 * alone / measured:.0f} %"])
    text += table(["ranks", "ZeRO", "measured, ms", "predicted, ms", "predicted : measured", "efficiency"], rows)
    text += "\n## GPUs: the plan's prediction, not a measurement\n\n"
    base = "--preset llama3.1-8b --dtype bf16 --seq-len 8192 --batch 1 --grad-accum 8".split()
    text += f"`train_llama plan --gpus N --gpu h100-80g {' '.join(base)} FLAGS`: weak scaling; efficiency is the rate of a GPU over that on 8.\n\n"
    rows = []
    methods = ["--zero 3 --recompute mlp", "--zero 3 --shard-size 8 --recompute mlp", "--tp 8 --zero 1", "--pp 8 --pp-schedule 1f1b --zero 1"]
    for method in methods:
        each = 0
        for gpus in (8, 16, 64, 256, 512):
            found = plan(gpus, "h100-80g", base + method.split())
            each = each or found["rate"] / gpus
            gib, efficiency = found["memory"]["total"] / 2**30, 100 * found["rate"] / gpus / each
            rows.append([f"`{method}`", gpus, f"{found['rate']:,}", f"{gib:.1f}", f"{efficiency:.0f} %", found["fits"]])
    return text + table(["method", "GPUs", "tokens/s", "GiB of a GPU", "efficiency", "fits 80 GB"], rows)


def gpt2_memory(work, options):
    flags = "--preset gpt2-355m --vocab 50304 --dtype fp32 --batch 1 --seq-len 64 --data synthetic --val-tokens 64 --val-every 0 --save-every 0 --steps 2".split()
    machine_file = work + "/machine.toml"
    write(machine_file, published.CPU)
    rows = []
    for name, zero, ranks, measured in (("DDP", 0, 4, 2), ("FSDP", 3, 4, 4)):
        how = flags + ["--zero", str(zero)]
        out = f"{work}/{name}"
        said = plan(ranks, machine_file, [*how, "--out", out])["memory"]
        took = measured_peak(measured, how, out)
        gb = [said[k] / 1e9 for k in ("parameters", "optimizer", "gradients", "gathered", "activations")]
        state = (said["parameters"] + said["optimizer"]) / 1e9
        with_pool = state + said["gathered"] / 1e9
        theirs = {"DDP": "4.2", "FSDP": "about 1.1"}[name]
        rows.append(
            [f"{name} x {ranks}", *[f"{x:.3f}" for x in gb], f"**{state:.2f}** ({with_pool:.2f} with gathered)", theirs, f"{said['total']:,}",
             f"{took['total']:,} ({measured} ranks)" if ranks != measured else f"{took['total']:,}", f"{said['total'] - took['total']:,}"]
        )  # fmt: skip
    text = "GB of the rank that takes most, by the ledger's kinds. The published figures are of PyTorch after a step with gradients freed: parameters and\n"
    text += "Adam's two moments, 12 bytes for each of 355M parameters, whole or in four parts. DDP is measured on two ranks: four need 23 GB.\n\n"
    text += f"`train_llama {' '.join(flags)} --zero 0|3`, and `train_llama plan` of the same flags\n\n"
    head = ["method", "parameters", "moments", "gradients", "gathered", "activations", "parameters + moments", "published"]
    return text + table([*head, "planned peak, bytes", "ledger's peak, bytes", "plan - ledger"], rows)


def recompute(work, options):
    base = "--preset bytes --dim 128 --ffn 344 --heads 4 --kv-heads 2 --head-dim 32 --layers 16 --data synthetic --seq-len 256 --batch 8 --batch-tokens 2048"
    flags = ["--targets", "recompute", *repeats_of(options, 5), "--base", base]
    results = harness(work + "/r", flags)
    none = next(r for r in results if r["target"] == "recompute:none")
    rows = []
    for r in results:
        mine, whole = (peak_of(run_of(work + "/r", result)) for result in (r, none))
        rows.append([r["target"].split(":")[1], f"{1e3 * seconds(r):.0f}", more(seconds(r), seconds(none))])
        for kind in ("activations", "total"):
            rows[-1] += [f"{mine[kind] / MIB:.1f}", more(mine[kind], whole[kind])]
    head = ["--recompute", "ms a step", "time", "activations, MiB", "activations", "all memory, MiB", "all memory"]
    text = "Published for checkpointing every block: about 30 % slower, about 70 % less memory.\n\n## This machine\n\n"
    text += f'`build/dev/harness run {" ".join(flags[:4])} --base "{base}"`\n\n' + table(head, rows)
    gpu = "--preset llama3.2-1b --dtype bf16 --seq-len 4096 --batch 8".split()
    rows, first = [], None
    for how in ("none", "mlp", "block"):
        found = plan(1, "h100-80g", [*gpu, "--recompute", how])
        first = first or found
        rows.append([how, f"{8 * 4096 / found['rate'] * 1e3:.0f}", more(first["rate"], found["rate"])])
        for kind in ("activations", "total"):
            rows[-1] += [f"{found['memory'][kind] / MIB:,.0f}", more(found["memory"][kind], first["memory"][kind])]
    text += f"\n## One H100: the plan; memory is exact, times are predictions\n\n`train_llama plan --gpus 1 --gpu h100-80g {' '.join(gpu)} --recompute ...`\n\n"
    return text + table(head, rows)


def precision(work, options):
    data = toy_data(work)
    base = f"--preset bytes --dim 128 --heads 4 --kv-heads 4 --ffn 384 --data {data} --batch 4 --seq-len 256"
    flags = ["--targets", "precision", *repeats_of(options, 3), "--steps", str(options.steps), "--base", base, "--timeout", "1800"]
    results = harness(work + "/p", flags)
    first = next(r for r in results if r["target"] == "precision:fp32")
    rows = []
    for r in results:
        tail = statistics.mean(step["loss"] for step in Left(run_of(work + "/p", r)).steps[-20:])
        rows.append(
            [r["target"].split(":")[1], f"{tail:.4f}", f"{best_rate(r):,.0f}", times(best_rate(r) / best_rate(first)),
             f"{max(r['repeats'][-1]['used']) / MIB:.1f}"]
        )  # fmt: skip
    text = f"Loss: the mean of the last 20 of {options.steps} steps of 1,024 tokens, one seed, the same batches: no statement about small differences\n"
    text += "(`dev/run/precisions.py` compares by pairs of seeds). fp16 has dynamic loss scaling. Speed: the fastest of the repeats, each by the median of its steps.\n\n"
    text += f'`build/dev/harness run {" ".join(flags[:6])} --base "{base.replace(data, "data/stdlib")}"`\n\n'
    return text + table(["type", "training loss", "tokens/s", "speed, fp32 = 1", "MiB at the peak"], rows)


def collectives(work, options):
    text = "busbw in GB/s out of place, the best of 11 runs, the algorithms in turn; every result is checked, none is wrong.\n"
    for ranks in (2, 4):
        flags = "--best --op all_reduce,reduce_scatter,all_gather --algo ring,direct,library,symmetric --min 64K --max 64M --factor 4"
        flags += " --iterations 11"
        ask_ranks(ranks, [tool("bench_collectives"), *flags.split(), "--json", work + "/c.json"])
        found = {}
        for row in json.load(open(work + "/c.json"))["results"]:
            assert row["out_of_place"]["nwrong"] == 0, row
            found.setdefault((row["op"], row["size"]), {})[row["algo"]] = row["out_of_place"]["bus_bw"]
        rows = []
        for (op, size), by in found.items():
            cells = [f"{by[a]:.2f}" if a in by else "" for a in ("ring", "direct", "symmetric", "library")]
            rows.append([op, f"{size >> 10:,} KiB", *cells, times(by["ring"] / by["library"])])
        text += f"\n## {ranks} ranks\n\n`mpirun -n {ranks} build/dev/bench_collectives {flags}`\n\n"
        text += table(["operation", "size", "ring", "direct", "symmetric", "library (MPI)", "ring : library"], rows)
    return text


def bandwidth(work, options):
    ask(["dev/net/link_study.py", "bandwidth", work + "/b", "--rates", "1gbit,300mbit,100mbit"])
    return open(work + "/b/bandwidth.md").read().split("\n", 2)[2]


def sources(work, options):
    return published.sources(sys.modules[__name__], work, options)


def toy_data(work):
    data = os.path.join(TOP, "data", "stdlib")
    if not os.path.exists(os.path.join(data, "dataset.json")):
        data = work + "/data"
        prepare(data, "stdlib")
    return data


def statistics_cost(work, options):
    base = "--preset bytes --data synthetic --batch 8 --val-every 0 --val-tokens 256 --save-every 0"
    rows = []
    micro = base.replace("--batch 8 ", "--batch 2 --batch-tokens 8192 ")
    for name, flags in (("fp32", base), ("bf16", f"{base} --dtype bf16"), ("fp32, 16 micro-batches of 2", micro)):
        out = f"{work}/{len(rows)}"
        ask([PROGRAM, *flags.split(), "--steps", str(options.steps), "--stats-every", "10", "--out", out])
        found = Left(out).steps[3:]
        watched = statistics.median(r["seconds"] for r in found if r["step"] % 10 == 0)
        plain = statistics.median(r["seconds"] for r in found if r["step"] % 10)
        cost = watched - plain
        rows.append([name, f"{1e3 * plain:.1f}", f"{1e3 * watched:.1f}", f"{1e3 * cost:+.1f}", f"{100 * cost / (10 * plain):+.2f} %"])
    text = "Every tenth step of a run has statistics: medians of those steps beside those of the nine between them, in the same run.\n\n"
    text += f"`train_llama {base} --steps {options.steps} --stats-every 10`\n\n"
    head = ["run", "a step without, ms", "a step with, ms", "difference, ms", "of the run's time at N = 10"]
    return text + table(head, rows)


def read_ahead(work, options):
    data = toy_data(work)
    base = f"--preset bytes --data {data} --batch 8 --seq-len 256 --val-every 0 --val-tokens 256 --save-every 0 --steps {min(options.steps, 40)}"
    rows = []
    for fault in ("", "data.read:*:*:sleep=0.02"):
        for threads in (0, 4):
            out = f"{work}/{len(rows)}"
            ask([PROGRAM, *base.split(), "--data-threads", str(threads), "--out", out], env={"FAULT": fault} if fault else None)
            found = Left(out).steps[3:]
            wait, step = (statistics.median(x) for x in zip(*((r["phases"]["data_wait"], r["seconds"]) for r in found)))
            delay, share = "20 ms" if fault else "none", 100 * wait / step
            rows.append([delay, threads, f"{1e3 * step:.0f}", f"{1e3 * wait:.3f}", f"{share:.3f} %"])
    text = f"A delay in front of every sample's read, as on a shared file system; 8 samples a step. Medians.\n\n`FAULT=data.read:*:*:sleep=0.02 train_llama {base.replace(data, 'data/stdlib')} --data-threads 0|4`\n\n"
    text += table(["delay of each read", "--data-threads", "ms a step", "waited for data, ms", "of the step"], rows)
    # Bytes that the ranks of a host read from the disk, of a shard that is in no cache before.
    shard, ids = work + "/large.bin", 4_000_000
    with open(shard, "wb") as file:
        file.write(struct.pack("<3i", 20240520, 1, ids).ljust(1024, b"\0") + bytes(2 * ids))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    tiny = "--preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --ffn 24 --seq-len 1000 --batch 20 --steps 100 --log-every 100"
    how = f"{tiny} --train-data {shard} --val-data {shard} --val-every 0 --val-tokens 1000 --device cpu --threads 1"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
    ask(["mpirun", "-n", "2", PROGRAM, *how.split()])
    read = 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before)
    size = os.path.getsize(shard)
    text += f"\nOne epoch by two ranks of a host over a shard of {size / 1e6:.1f} MB that is in no cache: {read / 1e6:.1f} MB came from the disk, {read / size:.2f} times the shard.\n"
    return text + f"\n`mpirun -n 2 train_llama {tiny}`\n"


TABLES = {
    "scaling": (scaling, "Ranks, methods, speed, memory, efficiency"),
    "gpt2-memory": (gpt2_memory, "GPT-2 355M in fp32: memory under DDP and FSDP"),
    "recompute": (recompute, "Recomputation: time and memory"),
    "precision": (precision, "Number formats: loss and speed"),
    "collectives": (collectives, "Ring against library by size"),
    "statistics": (statistics_cost, "What --stats-every 10 costs"),
    "read-ahead": (read_ahead, "Data that are read ahead"),
    "sources": (sources, "What the sources publish, beside what is here"),
    "bandwidth": (bandwidth, "The effect of the link's rate on each ZeRO stage"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--out", default="")
    parser.add_argument("--check", action="store_true", help="of sources: fail where a figure is not as published")
    parser.add_argument("--steps", type=int, default=200, help="of precision and statistics")
    parser.add_argument("--repeats", type=int, default=0, help="of scaling, recompute and precision")
    options = parser.parse_args()
    make, title = TABLES[options.table]
    began = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as work:
        body = make(work, options)
    command = f"dev/run/tables.py {options.table}" + (f" --steps {options.steps}" if options.steps != 200 else "")
    text = f"# {title}\n\n    {command}\n\n{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, commit {commit()}, {cpu_name()}, {os.cpu_count()} cores; "
    text += f"load {began:.1f} when it began, {os.getloadavg()[0]:.1f} at the end.\n\n{body}"
    if options.out:
        write(options.out, text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
