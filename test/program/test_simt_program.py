#!/usr/bin/env python3
"""The program's CUDA path on the emulator against its CPU path: the same toy run, the same losses. Ends with counts.

    test/program/test_simt_program.py ./train_llama_simt ./train_llama
    ON_A_GPU=1 test/program/test_simt_program.py ./train_llama ./train_llama      the same on a real one, but for several ranks

NO_BF16=1: a GPU without bf16 products; ends before what needs them. Bounds of losses: in fp32 sums in another order move a loss of 5 by
less than 1e-5 at first, and five updates multiply that by about ten. In bf16 one rounding is 2^-9, in fp16 2^-12; a loss averages
hundreds of tokens. In fp8 a layer's products are off by 6 % of random sign, which codes on the two sides of a rounding make differ.
"""

import collections
import os
import re
import shutil

from checks import MACHINE, Table, arguments, check, end, equal, expect, load, run, run_case, text_data, work

SIMT, CPU = arguments
ON_A_GPU = bool(os.environ.get("ON_A_GPU"))
SHAPE = f"""--data {text_data("200K")} --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --seq-len 24
    --val-every 0 --val-tokens 48 --lr 5e-3 --warmup 1 --logits-mib 1"""
TOY = f"{SHAPE} --batch 2 --steps 5 --save-every 3 --dtype fp32"
FP8 = "--seq-len 32 --dtype bf16 --fp8 tensor --fp8-skip-blocks 0,1"
AWAY = "--dtype bf16 --zero 3 --recompute block"
ALL = "--offload-optimizer stream --offload-params on --offload-grads on --offload-activations on"
BF16 = {"loss": 4e-3, "norm": 1e9}
cpu = Table(CPU, f"{TOY} --device cpu", bounds=BF16)
simt = Table(SIMT, f"{TOY} --device cuda", bounds=BF16)
deep_cpu = Table(CPU, f"{TOY} --batch 1 --layers 4 --head untied --batch-tokens 96 --device cpu")
deep = Table(
    SIMT,
    f"{TOY} --batch 1 --layers 4 --head untied --batch-tokens 96 --device cuda",
    bounds={"loss": 1e-4, "norm": 1e9},
)


def one_gpu():
    cpu("""
        cpu         1
        cpu_f16     1 --dtype fp16
    """)
    simt("""
        simt        1 | close to cpu loss=1e-4
        f16         1 --dtype fp16 --cuda-graphs on | close to cpu_f16 loss=1e-3 | close to cpu loss=2e-3
        launches    1 --batch-tokens 96 --val-every 2
        graphs      1 --batch-tokens 96 --val-every 2 --cuda-graphs on | bits of launches | says is one graph from
        again       1 --recompute block | bits of simt
        to_cuda     1 --resume auto | from cpu to 3 | close to cpu loss=1e-4
    """)
    cpu("to_cpu 1 --resume auto | from simt to 3 | close to simt loss=1e-4")


def narrow():
    cpu(f"""
        cpu16       1 --dtype bf16
        cpu8        1 {FP8}
        cpu8b       1 --seq-len 32 --dtype bf16
        narrow      1 --dtype bf16 --adam-dtype bf16 --master-dtype bf16
        post        1 {FP8} --post-norm on
        refused     1 --offload-optimizer stream | fails | says --offload-optimizer stream: this run is on the CPU
    """)
    simt(f"""
        simt16      1 --dtype bf16 | close to cpu16
        simt8       1 {FP8} | close to cpu8 | close to cpu8b loss=1e-2
        simt8g      1 {FP8} --cuda-graphs on --recompute block | bits of simt8
        simt_narrow 1 --dtype bf16 --adam-dtype bf16 --master-dtype bf16 | close to narrow
        simt_post   1 {FP8} --post-norm on --cuda-graphs on --recompute block | close to post
        scalar      1 --steps 1 --dtype bf16 | says head dimension 8 has no tensor-core kernel.*nearest: 64
        scalar32    1 --steps 1 --dtype fp32 | silent tensor-core
    """)


def offload():
    """State on the host: the bits of none of it, but where the CPU's AdamW takes the place of the GPU's. A checkpoint of one way is
    resumed with another. Heads of 128: score gradients that Hopper's backward pass keeps. Norms after the branches, and of q and k over
    all heads."""
    (work / "machine.toml").write_text(f"{MACHINE}compute-capability = 9.0\n")
    ways = [f"--offload-optimizer {way}" for way in ("stream", "zero-copy")]
    ways += [f"--offload-{what} on" for what in ("params", "grads", "activations")]
    host = "--offload-optimizer cpu --offload-params on --offload-grads on"
    for name, flags, like in [
        ("here", "", ""),
        *((f"away{i}", way, "bits of here") for i, way in enumerate([*ways, ALL])),
        ("away_cpu", host, "close to here"),
        ("heads", "--head-dim 128", ""),
        ("post_here", "--post-norm on", ""),
        ("post_away", f"--post-norm on {ALL}", "bits of post_here"),
    ]:
        simt(f"{name} 1 {AWAY} {flags} | {like}")
        planned(name, f"{AWAY} {flags}")
    simt(f"resumed 1 {AWAY} {ALL} --resume auto | from here to 3 | weights of here")


def planned(name, flags):
    """The plan's bytes of each kind of memory, on the GPU and pinned on its host, are those of the run's ledger."""
    machine = f"--gpus 1 --gpu {work}/machine.toml --json {work}/plan.json --out {work}/{name}"
    expect(f"plan {flags}", run([CPU], "plan", machine, TOY, flags))
    peaks = [
        [[rank[side] for side in ("memory_peak", "host_memory_peak")] for rank in ranks]
        for ranks in (load("plan.json")["planned_ranks"], load(name, "ranks.json"))
    ]
    told = [[{k: of.get(k) for k in real} for of, real in zip(*sides)] for sides in zip(*peaks)]
    check(f"plan {flags}: the ledger's bytes", peaks[1] and told == peaks[1], peaks)


def other_gpus():
    """A card that no file knows: MFU is measured against what is measured. A T4: fp16 by itself, with the bits of another GPU's fp16
    where attention has no tensor cores (head dimension 8); bf16 is refused. Recipes of fp8 where the card or its library has none."""
    unknown = "MFU [(]of .* TFLOP/s, that a bf16 product of .* reached just now: SIMT emulator"
    check("the peak of an unknown card", re.search(unknown, (work / "simt8/log.txt").read_text()))
    blocks = "--dim 128 --layers 1 --ffn 128 --head-dim 32 --seq-len 64 --val-tokens 128 --save-every 0 --dtype bf16"
    cpu(f"""
        cpu_mx      1 {blocks} --fp8 mx
        cpu_mx_post 1 {blocks} --fp8 mx --post-norm on
        cpu_block   1 {blocks} --fp8 block
    """)
    printed = f"{AWAY} {ALL} --print-config"
    simt(f"""
        simt80      1 {FP8} | with SIMT_ARCH=80 | fails | says [(]8.0[)] has no fp8 products
        f16a        1 --dtype fp16
        simt75      1 --dtype auto | with SIMT_ARCH=75 | bits of f16a
        refused     1 --dtype bf16 | with SIMT_ARCH=75 | code 2 | says nearest: --dtype fp16, which scales the loss
        refused     1 --dtype auto --optimizer muon | with SIMT_ARCH=75 | code 2 | says nearest: --muon-dtype fp32
        refused     1 {FP8} --dtype auto | with SIMT_ARCH=75 | code 2 | says compute capability 7.5 has no fp8 products
        printed     1 {printed} | says NVLink-C2C
        mx          1 {blocks} --fp8 mx | with SIMT_ARCH=100 | close to cpu_mx
        mx_graphs   1 {blocks} --fp8 mx --cuda-graphs on | with SIMT_ARCH=100 | bits of mx | says is one graph from
        mx_post     1 {blocks} --fp8 mx --post-norm on --cuda-graphs on | with SIMT_ARCH=100 | close to cpu_mx_post
        block       1 {blocks} --fp8 block --cuda-graphs on | close to cpu_block
        refused     1 {blocks} --fp8 block | with SIMT_ARCH=100 | fails | says needs compute capability 9.0, this is 10.0
        refused     1 {blocks} --fp8 mx | fails | says needs compute capability 10.0, this is 9.0
        refused     1 {blocks} --fp8 block | with SIMT_CUBLASLT=120805 | fails | says needs cuBLASLt 12.9 or newer; the cuBLASLt found is 12.8
        refused     1 {blocks} --fp8 mx | with SIMT_ARCH=100 | with SIMT_CUBLASLT=120400 | fails | says needs cuBLASLt 12.8 or newer; the cuBLASLt found is 12.4
    """)
    prompt = f"generate --from {work}/simt75 --prompt a --dtype bf16 --device cuda"
    expect("text on a T4", run([SIMT], prompt, env={"SIMT_ARCH": 75}), code=2, says="nearest: --dtype fp32")
    large = "--preset llama3.1-70b --data synthetic --device cuda --dtype bf16 --batch 1 --seq-len 128"
    pinned = ["offload needs 7.* GiB pinned, the host .* free", "nearest: more ranks, or --adam-dtype bf16"]
    expect("more than the host has", run([SIMT], large, "--offload-optimizer stream"), code=None, says=pinned)
    copy_for_saves = run([SIMT], large, f"--save-every 5 --out {work}/refused")
    expect(
        "the copy for saves too", copy_for_saves, code=None, says="this run needs [0-9.]* .iB pinned, the host .* free"
    )


def waits():
    """Nothing in a step makes the host wait for the device, but for the report of the step before: one event. Counted in what five more
    steps of three micro-batches add. With a peak given, as the start measures an unknown card's with products until they take long
    enough."""
    for how in "--cuda-graphs off", "--cuda-graphs on", "--adam-dtype bf16 --dtype bf16 --recompute mlp --zero 3":
        found = []
        for steps in 6, 11:
            file = work / f"waits{steps}.txt"
            file.unlink(missing_ok=True)
            flags = f"--steps {steps} --save-every 0 --peak-tflops 1 --batch-tokens 144 {how}"
            simt(f"waits 1 {flags} | with SIMT_WAITS={file}")
            found.append(collections.Counter(file.read_text().splitlines()))
        equal(f"five steps wait, {how}", dict(found[1] - found[0]), {"cudaEventSynchronize": 5})


def graphs(name, ranks, flags, table=simt):
    """Blocks as graphs, between which ranks communicate; pool slots change under them, and a validation shares them."""
    table(f"""
        {name}     {ranks} {flags} --cuda-graphs off
        {name}_on  {ranks} {flags} --cuda-graphs on | bits of {name} | says graphs of their own
    """)


def ranks():
    cpu(f"""
        cpu2        2 --batch 1
        cpu_tp8     2 {FP8} --batch 1 --ffn 64 --tp 2 --tp-overlap on --recompute norms,mlp
    """)
    deep_cpu("cpu_deep 1")
    for how in (
        "--zero 0",
        "--zero 2 --accumulate-locally",
        "--zero 3 --transport mpi",
        "--zero 3 --prefetch 0 --recompute block",
    ):
        graphs("graphs2", 2, f"--batch 1 --batch-tokens 96 --val-every 2 {how}")
    for how in "--tp 2", "--cp 2", "--cp 2 --cp-exchange ring":
        graphs("between", 2, f"--batch 1 --batch-tokens 48 --val-every 2 {how}")
    graphs("pp2", 2, "--pp 2 --transport nccl", deep)
    # Three ranks: with two any order of summation gives the same bits. In fp8 the gather of stage 3 carries codes. A product begins
    # with the rows that are here; codes travel, and some are made again from what norms give.
    fp8 = f"{FP8} --batch 1 --grad-dtype fp32 --transport mpi"
    simt(f"""
        codes       3 {fp8} --zero 0
        codes3      3 {fp8} --zero 3 | weights of codes
        codes3g     3 {fp8} --zero 3 --fp8-gather off --cuda-graphs on | weights of codes
        tp8         2 {FP8} --batch 1 --ffn 64 --tp 2 --tp-overlap on --recompute norms,mlp | close to cpu_tp8
        nccl        2 --batch 1 --zero 3 --transport nccl | close to cpu2 loss=1e-4
        mpi         2 --batch 1 --zero 3 --transport mpi | close to cpu2 loss=1e-4
    """)
    # Three axes: each tensor's parts on two ranks, its stages on two. Tensors recomputed before a half of the backward pass go into
    # the weight slot.
    deep("""
        tp2         2 --tp 2 --transport mpi | close to cpu_deep
        pp2_mpi     2 --pp 2 --transport mpi --zero 3 | close to cpu_deep
        pp2_nccl    2 --pp 2 --transport nccl | close to cpu_deep
        zbh1        2 --pp 2 --pp-schedule zb-h1 --recompute norms,attention | close to cpu_deep
        zbv         2 --pp 2 --pp-schedule zb-v --recompute mlp | close to cpu_deep
        dualpipev   2 --pp 2 --pp-schedule dualpipev --recompute block | close to cpu_deep
        tp2pp2      4 --tp 2 --pp 2 --transport nccl | close to cpu_deep
    """)
    # A pipeline tunes before it starts, on rank 0 (the emulator's algorithms differ in their last bits, and its first is made slow).
    # With "on" the weights keep their bits. With bits-free they don't (in fp32; bf16 may round all differences away), and a resumed
    # run goes on with its choices without measuring.
    tune = "2 --batch 1 --pp 2"
    slow = "with SIMT_CUBLASLT_SLOW=1000"
    measured = "GEMM tuning: [1-9][0-9]* shapes measured, 0 known"
    simt(f"""
        tune        {tune}
        tune_on     {tune} --gemm-tune on --gemm-cache {work}/gemm.txt | {slow} | weights of tune | says {measured}
        tune_free   {tune} --gemm-tune bits-free --save-every 3 | {slow} | other than tune
        tune_again  {tune} --resume auto | from tune_free to 3 | weights of tune_free | says GEMM tuning: 0 shapes measured, [1-9][0-9]* known
    """)
    for file in "gemm.txt", "tune_free/gemm_choices.txt":
        check(f"{file} is written", (work / file).exists() and (work / file).stat().st_size)


cases = [one_gpu]
if not os.environ.get("NO_BF16"):
    cases += [narrow, offload]
if not ON_A_GPU:
    cases += [other_gpus, waits] + [ranks] * bool(shutil.which("mpirun"))
for case in cases:
    run_case(case.__name__, [case])
end()
