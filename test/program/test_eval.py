#!/usr/bin/env python3
"""train_llama eval, and evaluation while a model trains. Ends with counts.

test/program/test_eval.py ./train_llama
"""

import json
import math

from checks import ROOT, Table, arguments, check, end, equal, expect, has_mpi, load, rows, run, skip
from checks import dies, text_data, work

program = arguments[0]
golden = ROOT / "test/golden/eval"
WITH_CHOICES = ["hellaswag", "arc_easy", "piqa", "winogrande", "lambada"]
TASKS = [*WITH_CHOICES, "perplexity"]
SHAPE = "--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --head-dim 8 --ffn 48"
DATA = f"--data {text_data('200K')} --device cpu --seq-len 64 --steps 4 --val-every 0 --val-tokens 256"
train = Table(program, f"{SHAPE} {DATA}")


def evaluate(name, flags, ranks=1, model=golden / "plain", data=golden, tasks=TASKS):
    files = f"--from {model} --data {data} --out {work}/{name}.json --requests {work}/{name}.jsonl"
    command = [*train.by(ranks), "eval", "--tasks", ",".join(tasks)]
    expect(f"evaluates {name}", run(command, files, "--device cpu", flags))
    return load(f"{name}.json")


def requests(name):
    return [(r["task"], r["log_p"], r["greedy"]) for r in map(json.loads, (work / f"{name}.jsonl").open())]


def same_numbers(what, got, want):
    """Each number of each task, within 1e-4 of it."""
    pairs = [(task, key, got[task].get(key, math.nan), want[task][key]) for task in want for key in want[task]]
    differ = [pair for pair in pairs if not abs(pair[2] - pair[3]) <= 1e-4 * abs(pair[3])]
    check(what, pairs and not differ, differ)


def same_requests(what, got, want):
    """The same tasks in the same order; log-likelihoods within 1e-4."""
    alike = len(got) == len(want) > 0
    alike = alike and all(a[::2] == b[::2] and abs(a[1] - b[1]) <= 1e-4 for a, b in zip(got, want))
    check(what, alike, f"{got}\n{want}")


one = evaluate("one", "--batch 3")
metrics = {task: found["metrics"] for task, found in json.load((golden / "plain.json").open())["tasks"].items()}
same_numbers("its metrics are those of lm-evaluation-harness", one["tasks"], {task: metrics[task] for task in TASKS})
check("llm.c's accuracy of hellaswag", "llmc_acc_norm" in one["tasks"]["hellaswag"])
equal("all examples", one["tasks"]["perplexity"]["examples"], 3)
if has_mpi(program):
    for name, ranks, flags in ("two", 2, ""), ("five", 5, ""), ("cut", 4, "--zero 3"):  # units are gathered
        evaluate(name, f"--batch 3 {flags}", ranks)
        bits = [(work / f"{run}.jsonl").read_bytes() for run in (name, "one")]
        check("  the same log-likelihoods to the bit", bits[0] == bits[1])
    for name, ranks, flags in ("tp", 3, "--tp 3"), ("both", 6, "--tp 3 --zero 3"):  # tensors stay cut
        evaluate(name, f"--batch 3 {flags}", ranks)
        same_requests("  log-likelihoods within 1e-4", requests(name), requests("one"))
    (whole,), cut, tp, both = (load(f"{run}.json")["parameter_bytes_by_rank"] for run in ("one", "cut", "tp", "both"))
    check("no rank of ZeRO-3 holds the model", len(cut) == 4 and sum(cut) == whole and max(cut) < 0.3 * whole, cut)
    check("  nor of tp", len(tp) == 3 and max(tp) < 0.4 * whole, tp)
    check("  nor of both", len(both) == 6 and sum(both) == sum(tp) and max(both) < 0.6 * max(tp), both)
else:
    skip("evaluation on several ranks: no MPI here")

# ---- while a model trains ----
EVAL = f"--eval-every 2 --eval-tasks piqa,lambada --eval-data {golden} --eval-limit 2"
train(f"""
    without 1 --batch 4
    with    1 --batch 4 {EVAL} | weights of without
""")
found = {row["step"]: row["eval"] for row in rows("with", "eval")}
equal("the metrics have it at its steps", sorted(found), [2, 4])
check("  a limit", found[4]["piqa"]["examples"] == 2 and 0 <= found[4]["piqa"]["acc_norm"] <= 1, found)
check("  of that step's weights", found[2]["lambada"]["perplexity"] != found[4]["lambada"]["perplexity"], found)
after = evaluate("after", "--batch 4 --limit 2 --max-length 64", model=work / "with", tasks=["piqa", "lambada"])
same_numbers("train_llama eval says the same of the final weights", after["tasks"], found[4])
if has_mpi(program):
    # Parameters in parts, stages; then parts of the vocabulary and of each sequence, whose updates are of the data of `with`.
    train(f"""
        sharded 3 --batch 1 --zero 3 {EVAL}
        stages  2 --batch 2 --grad-accum 2 --pp 2 {EVAL}
        tensor  2 --batch 4 --tp 2 {EVAL}
        context 2 --batch 4 --cp 2 {EVAL}
        ring    4 --batch 4 --tp 2 --cp 2 --cp-exchange ring {EVAL}
    """)
    for name in "sharded", "stages", "tensor", "context", "ring":
        equal(f"{name}: each step's numbers once", len(rows(name, "eval")), 2)
    for name in "tensor", "context", "ring":
        for mine, ones in zip(rows(name, "eval"), rows("with", "eval")):
            same_numbers(f"{name}: as one rank, step {ones['step']}", mine["eval"], ones["eval"])

for flags, text in {
    "--tasks piqa --zero 2": r"whole \(0\) or cut \(3\)",  # a stage that keeps parameters whole
    "--tasks piqa --tp 3": "nearest",
    "--tasks hellaswig": "the folder has arc_easy",
    "--tasks piqa --max-length 65": "nearest: 64",
}.items():
    expect(f"refused: {flags}", run([program], f"eval --from {golden}/plain --data {golden}", flags), dies, text)


# ---- tasks from rows, and with solved examples before each one: contexts and log-likelihoods of lm-eval's --num_fewshot 2 ----
def prepare(task, flags="", source=None, code=0, says=()):
    source = source or golden / f"rows/{task}.jsonl"
    made = run(f"python3 data_prep/prepare.py eval {task} --from {source} --out {work}/tasks {flags}")
    expect(f"prepares {task} {flags}", made, code, says)


for task in TASKS:
    prepare(task)
    equal("  as lm-eval has it", (work / f"tasks/{task}.jsonl").read_bytes(), (golden / f"{task}.jsonl").read_bytes())
for task in WITH_CHOICES:
    prepare(task, "--few-shot 2")
evaluate("few", "--batch 3", data=work / "tasks", tasks=WITH_CHOICES)
few = json.load((golden / "few_shot.json").open())["tasks"]
equal("as many tasks as lm-eval's", (len(few), sorted({r[0] for r in requests("few")})), (5, sorted(few)))
for task, want in few.items():
    made = [(row["context"], row.get("choices", [0])) for row in map(json.loads, (work / f"tasks/{task}.jsonl").open())]
    contexts = [c for context, of in made for c in (context if isinstance(context, list) else [context] * len(of))]
    equal(f"{task}: the harness's contexts", contexts, want["contexts"])
    wanted = [(task, *request) for request in want["requests"]]
    same_requests("  log-likelihoods within 1e-4", [r for r in requests("few") if r[0] == task], wanted)
own = golden / "rows/piqa.jsonl"
prepare("piqa", f"--few-shot 2 --few-shot-from {own}")
two = work / "two.jsonl"
two.write_text("".join(own.read_text().splitlines(keepends=True)[:2]))
prepare("piqa", f"--few-shot 2 --few-shot-from {two}", source=two, code=dies, says="needs 3 rows")
prepare("perplexity", "--few-shot 2", code=dies, says="perplexity has no examples")
end()
