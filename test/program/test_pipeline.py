#!/usr/bin/env python3
"""Pipelines under mpirun: whatever the schedule, the cut and the ZeRO stage, weights, loss, norm and data are those of
one rank, or of the same data ranks without a pipeline, to the bit. Ends with counts.

    test/program/test_pipeline.py ./train_llama               (what make test runs)
    test/program/test_pipeline.py ./train_llama --schedules   every schedule at 2, 3 and 4 ranks (make test-full)
    test/program/test_pipeline.py ./train_llama --faults      a kill and a stop of each of three stages (make test-full)
    test/program/test_pipeline.py ./train_llama --few         what takes seconds (for test/llama/mutants.py)
"""

import json

from checks import Table, arguments, check, end, equal, expect, load, rows, run, text_data, work

program, section = (arguments + [""])[:2]
MODEL = f"""--data {text_data("200K")} --preset bytes --seq-len 32 --batch 1 --layers 8 --dim 32 --heads 4 --ffn 64 --device cpu
    --threads 1 --steps 4 --save-every 0 --val-every 0 --val-tokens 64 --timeout 30"""
train = Table(program, MODEL, bounds={"norm": 1e9, "loss": 1e-5})
UNTIED = "--batch-tokens 256 --head untied"
EVEN = f"--lr-schedule constant --warmup 0 {UNTIED}"
STOPPED = "fails | says tensor [0-9]+[FI][0-9]+ .*group pp [0-9]>[0-9]"  # lane, stage and micro-batch


def faults(*of_ranks):
    """A stage that is killed or stopped in step 4 of 4, then the run resumed, at another pp too."""
    for rank, action in of_ranks:
        again = "2 --pp 2" if rank == 1 else "3 --pp 3"
        ends = STOPPED if action == "stop" else "fails"
        train(f"""
            dead  3 {EVEN} --pp 3 --save-every 1 --no-background-save --timeout 3 | fault step:{rank}:4:{action} | {ends}
            again {again} --resume auto --steps 4 | from dead | weights of whole
        """)


def main():
    if section == "--faults":
        train(f"whole 1 {EVEN}")
        return faults(*((rank, action) for action in ("kill", "stop") for rank in range(3)))
    train(f"""
        one     1 {UNTIED}
        default 2 --pp 2 {UNTIED} | bits of one | says pipeline zb-v: 4 stages on 2 ranks, blocks
    """)
    if section == "--few":
        return train(f"stopped 2 --pp 2 --batch-tokens 256 --timeout 3 | fault step:1:2:stop | {STOPPED}")
    if section == "--schedules":
        for pp in 2, 3, 4:
            for schedule in "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev":
                if (pp, schedule) != (3, "interleaved"):  # 8 micro-batches do not divide
                    train(f"{schedule}{pp} {pp} --pp {pp} --pp-schedule {schedule} {UNTIED} | bits of one")
        return None
    return whole()


def whole():
    expect(
        "a schedule", run([program], f"schedule --pp 2 --micro-batches 8 --pp-schedule zb-h1 --csv {work}/schedule.csv")
    )
    dp3 = "--batch-tokens 384 --head untied"  # all twelve of schedules and stages: PipelineBits, with ranks in one process
    local = "says gradients are accumulated locally, [0-9.]+ [KMG]iB on this rank"
    each = r"gradients are reduced 4 times a step, which saves this rank [0-9.]+ [KMG]iB .* --accumulate-locally sends less"
    parts = "and parameters gathered for each use, .* --accumulate-locally --pp-gather step "
    busy = "ranks busy for 5 | says 9 micro-batches would give 90 %"
    spans = "of the step, [0-9.]+ % of their spans"
    console = f"says ^stages +busy [0-9.]+ % {spans} [|] idle .* warm-up, .* drain; .* waiting .* 8 in flight$"
    train(f"""
        1f1b3     3 --pp 3 --pp-schedule 1f1b {UNTIED} | bits of one
        zbv4      4 --pp 4 --pp-schedule zb-v {UNTIED} | bits of one
        tasks     4 --pp 4 --pp-schedule zb-v {UNTIED} --pp-tasks 2 | bits of one | {console}
        traced    2 --pp 2 {UNTIED} --trace-steps 2 | bits of one
        dp3       3 {dp3}
        dp3_1     6 --pp 2 --pp-schedule 1f1b --zero 1 {dp3} | bits of dp3
        dp3_2     6 --pp 2 --pp-schedule dualpipev --zero 2 --accumulate-locally {dp3} | bits of dp3
        dp3_3     6 --pp 2 --pp-schedule zb-v --zero 3 --accumulate-locally --pp-gather step {dp3} | bits of dp3 | {local}
        gather_op 6 --pp 2 --zero 3 --accumulate-locally --pp-gather op {dp3} | bits of dp3
        gather_1  6 --pp 2 --zero 3 --accumulate-locally --pp-gather window:1 {dp3} | bits of dp3
        cut       2 --pp 2 --pp-schedule 1f1b --pp-layers 7,1 {UNTIED} | bits of one | says ^ +work of the stages: [0-9.]+, [0-9.]+ %
        lone      2 --pp 2 --pp-schedule 1f1b --batch-tokens 32 --head untied | says {busy}
        window    2 --pp 2 --pp-schedule gpipe --pp-window 2 {UNTIED} | bits of one
        block     2 --pp 2 --recompute block {UNTIED} | bits of one
        zbv_mlp   2 --pp 2 --pp-schedule zb-v --recompute mlp {UNTIED} | bits of one
        zbh1_mlp  2 --pp 2 --pp-schedule zb-h1 --recompute block {UNTIED} | bits of one
        file      2 --pp 2 --pp-schedule {work}/schedule.csv {UNTIED} | bits of one
        each      6 --pp 2 --zero 2 {dp3} | close to dp3 | says {each}
        each3     6 --pp 2 --zero 3 {dp3} | bits of each | says {parts}
        bf16      1 --dtype bf16 {UNTIED}
        bf16zb    2 --dtype bf16 --pp 2 {UNTIED} | bits of bf16
        half      2 --pp 2 --steps 2 --save-every 2 {EVEN}
        whole     1 {EVEN}
        half_on_1 1 --pp 1 --resume auto --steps 4 | from half | weights of whole
        half_on_3 3 --pp 3 --resume auto --steps 4 | from half | weights of whole
    """)
    held_tasks()
    arrows("traced", 2 * 2 * 8)
    check("a window of 2 holds 2", all(row["pipeline"]["in_flight"] == [2, 2] for row in rows("window", "pipeline")))
    faults((0, "kill"), (1, "stop"), (2, "kill"))
    # Tied: each rank that has the embedding adds the other's gradients of it, in another order, so not to the bit. DualPipe: two copies
    # of the model, whose gradients are added: the sum of the first half and of the second.
    train(f"""
        tied      1 --head tied --batch-tokens 256
        tied_zbv  2 --pp 2 --head tied --batch-tokens 256 | close to tied
        tied_2    2 --pp 2 --pp-schedule 1f1b --head tied --batch-tokens 256 --save-every 2 | close to tied
        tied_3    3 --pp 3 --pp-schedule zb-h1 --head tied --batch-tokens 256 --save-every 2 | close to tied
        tied_4    4 --pp 2 --pp-schedule 1f1b --zero 3 --head tied --batch-tokens 256 --save-every 2 | close to tied
        tied_on   3 --pp 3 --pp-schedule 1f1b --head tied --steps 2 --save-every 2 --lr-schedule constant --warmup 0 --batch-tokens 256
        tied_one  1 --resume auto --steps 4 --head tied | from tied_on
        dual      2 --pp 2 --pp-schedule dualpipe {UNTIED} --save-every 2 | close to one
        dual4     4 --pp 4 --pp-schedule dualpipe {UNTIED} --save-every 2 | close to one
        dp2       2 --batch-tokens 512 --head untied
        dual3     4 --pp 2 --pp-schedule dualpipe --zero 3 --batch-tokens 512 --head untied | close to dp2
        refused   4 --pp 4 --pp-schedule interleaved --pp-stages-per-rank 4 | fails | says make 16 stages of 8 blocks
        refused   4 --pp 2 --pp-schedule 1f1b --head tied --zero 2 --no-accumulate-locally | fails | says nearest: accumulate locally
    """)
    planned = run([program], "--print-config --device cpu --preset small --pp 2 --grad-accum 4 --zero 1")
    expect("memory of a stage is planned", planned, silent="sum_squares")
    equal("  of a rank of 8 and of 64", planned.count(r"^ *activations +\S+ +\d+ +\d+(?: |$)"), 1)


def held_tasks():
    """What each step says of the pipeline is what the schedule holds."""
    steps = [row["pipeline"] for row in rows("tasks", "pipeline")]
    equal(
        "what it held", [(s["in_flight"], s["pending_weight"]) for s in steps], [([8] * 4, [1, 3, 5, 7])] * len(steps)
    )
    check("  how busy it was", steps and all(0 < s["util_step"] <= s["util_span"] <= 1 for s in steps), steps)
    for rank in range(4):
        tasks = [json.loads(line) for line in open(work / f"tasks/pipeline_tasks.{rank}.jsonl")]
        equal(f"  tasks of rank {rank}", len(tasks), 2 * 2 * 8 * 3)
        ordered = all(a["t1"] <= b["t0"] for a, b in zip(tasks, tasks[1:]) if a["step"] == b["step"])
        check(f"  rank {rank}: one after the other", ordered)


def arrows(name, messages):
    """--trace-steps: of each message of a step an arrow, from the task that made it to the one on another rank that reads it."""
    events = load(name, "trace.json")["traceEvents"]
    out, into = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
    tasks = [e for e in events if e["ph"] == "X" and e["tid"] == 3]

    def inside(e):
        return any(t["pid"] == e["pid"] and t["ts"] <= e["ts"] <= t["ts"] + t["dur"] for t in tasks)

    equal("an arrow for each message", (len(out), sum(e["ph"] == "s" for e in events)), (2 * messages, 2 * messages))
    check("  with two ends", out.keys() == into.keys())
    check(
        "  on two ranks, in tasks",
        all(out[i]["pid"] != into[i]["pid"] and inside(out[i]) and inside(into[i]) for i in out),
    )


main()
end()
