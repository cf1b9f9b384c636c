#!/usr/bin/env python3
"""Compares train_llama eval with lm-evaluation-harness, on a model trained here and on the toy model; logits and gradients with
transformers, for every kind of RoPE; the stored draws of dev/golden/oracle with what each is compared with. The packages are those of
$LM_EVAL_PYTHON; without it they are installed into build/lm-eval (gigabytes). Part of make test-full. Ends with counts.

    test/program/test_lm_eval.py ./train_llama build/cuda/dev/model_logits
"""

import json
import os
import shutil

from checks import Table, arguments, copy, end, expect, holds, installed, load, run, text_data, work

program, tool = arguments
probe = ["-c", "import lm_eval, lm_eval.models.huggingface, xllamacpp"]
packages = "lm-eval[hf]", "xllamacpp"
python = installed("lm-evaluation-harness", "LM_EVAL_PYTHON", "build/lm-eval/bin/python", probe, *packages) or end()
for script in (
    f"check_hf.py --no-training --program {program} --tool {tool}",
    # Nine draws agree with float64 and the packages, and each of fifteen faults planted in them is found.
    f"oracle/oracle.py --self-test --program {program} --logits {tool} --tokens {os.path.dirname(tool)}/tokens",
    "precision_curves.py --self-test",  # torch's casts to fp8, beside exact arithmetic
):
    expect(script, run([python], f"dev/golden/{script}", limit=1200))
golden = "test/golden/eval"
copy(f"{os.getcwd()}/{golden}/plain", "bos")
shutil.copytree(f"{golden}/bos", work / "bos", dirs_exist_ok=True)
shutil.copytree(f"{golden}/rows", work / "rows")
shutil.copy(f"{golden}/pairs.jsonl", work / "rows")
Table(program, f"--data {text_data('400K')} --device cpu --preset bytes --dim 64 --layers 3 --heads 4 --kv-heads 2")("""
    run 1 --head-dim 16 --ffn 128 --batch 8 --seq-len 128 --max-seq-len 128 --steps 120 --lr 5e-3 --val-every 0
""")
TASKS = "hellaswag,arc_easy,piqa,winogrande,lambada,perplexity,pairs"
for model in f"{golden}/plain", work / "bos", work / "run/final":
    name = os.path.basename(model)
    flags = f"--data {golden} --tasks {TASKS} --device cpu --requests {work}/ours.jsonl --out {work}/ours.json"
    expect(f"{name}: eval", run([program, "eval", "--from", model], flags))
    oracle = f"{python} dev/golden/lm_eval_oracle.py {model} {work}/rows > {work}/theirs.json"
    expect(f"{name}: lm-evaluation-harness", run(["sh", "-c", oracle], limit=1200))
    lines = [json.loads(line) for line in (work / "ours.jsonl").read_text().splitlines()]
    theirs, ours = (load(f"{whose}.json")["tasks"] for whose in ("theirs", "ours"))
    for task, of in theirs.items():
        with holds(f"{name}, {task}: log-likelihoods within 1e-4, greediness and metrics equal"):
            mine = [line for line in lines if line["task"] == task and "llmc" not in line]
            got = [(line["log_p"], line["greedy"]) for line in mine]
            if "window" in mine[0]:
                sums = dict.fromkeys((line["example"] for line in mine), 0)
                for line in mine:
                    sums[line["example"]] += line["log_p"]
                got = [(sums[example],) for example in sorted(sums)]
            assert len(got) == len(of["requests"]) > 0
            worst = max(abs(a[0] - b[0]) for a, b in zip(got, of["requests"]))
            assert worst <= 1e-4, worst
            assert all(list(a[1:]) == b[1:] for a, b in zip(got, of["requests"]))
            for metric, value in of["metrics"].items():
                assert abs(ours[task][metric] - value) <= 1e-4 * abs(value), (metric, ours[task], value)
end()
