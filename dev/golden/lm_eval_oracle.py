#!/usr/bin/env python3
"""lm-evaluation-harness itself on a model folder and on local rows: log-likelihood and greediness of every request, and its
metrics, as JSON.

    python3 -m venv v && v/bin/pip install "lm-eval[hf]"
    v/bin/python dev/golden/lm_eval_oracle.py MODEL ROWS_DIR [--batch N] [--few-shot N] > oracle.json

ROWS_DIR/pairs.jsonl, if there, holds {"context", "continuation"}, which the package is asked for as they are. Else
ROWS_DIR holds rows as the datasets have them: hellaswag.jsonl, arc_easy.jsonl, piqa.jsonl, winogrande.jsonl, lambada.jsonl,
perplexity.jsonl (with WikiText's "page"). The tasks are the package's own; only the place of their data is changed: every split is these rows.
"""

import argparse
import json
import logging
import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

TASKS = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "piqa": "piqa/piqa.yaml",
    "winogrande": "winogrande/default.yaml",
    "lambada": "lambada/lambada_openai.yaml",
    "perplexity": "wikitext/wikitext.yaml",
}


def ask_pairs(lm, path):
    """Any context and continuation; the package's tasks only cut at white space."""
    from lm_eval.api.instance import Instance

    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    arguments = [(row["context"], row["continuation"]) for row in rows]
    answers = lm.loglikelihood([Instance("loglikelihood", {}, each, i) for i, each in enumerate(arguments)])
    requests = [[float(x) for x in answer] for answer in answers]
    return {"metrics": {"acc": sum(r[1] for r in requests) / len(requests)}, "requests": requests}


def evaluate(model, rows, batch, few_shot=0):
    import lm_eval
    import lm_eval.tasks
    import torch
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    lm = HFLM(pretrained=model, device="cpu", dtype="float32", batch_size=batch)
    folder = os.path.dirname(lm_eval.tasks.__file__)
    names = [t for t in TASKS if os.path.exists(os.path.join(rows, t + ".jsonl"))]
    if few_shot:
        names.remove("perplexity")
    pairs = os.path.join(rows, "pairs.jsonl")
    out = {"pairs": ask_pairs(lm, pairs)} if os.path.exists(pairs) and not few_shot else {}
    if not names:
        return {"lm_eval": lm_eval.__version__, "tasks": out}
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            path = os.path.abspath(os.path.join(rows, name + ".jsonl"))
            with open(os.path.join(work, name + ".yaml"), "w") as f:
                json.dump(
                    {
                        "include": os.path.join(folder, TASKS[name]),
                        "task": "local_" + name,
                        "tag": None,
                        "dataset_path": "json",
                        "dataset_name": None,
                        "dataset_kwargs": {"data_files": dict.fromkeys(("train", "validation", "test"), path)},
                    },
                    f,
                )
        manager = lm_eval.tasks.TaskManager(include_path=work)
        found = lm_eval.simple_evaluate(
            model=lm, tasks=["local_" + n for n in names], task_manager=manager, num_fewshot=few_shot,
            log_samples=True, bootstrap_iters=0,
        )
    for name in names:
        requests = []
        for sample in sorted(found["samples"]["local_" + name], key=lambda s: s["doc_id"]):
            for response in sample["resps"]:
                answer = response[0]
                requests.append([float(a) for a in answer] if isinstance(answer, (tuple, list)) else [float(answer)])
        metrics = {
            key.split(",")[0]: value
            for key, value in found["results"]["local_" + name].items()
            if isinstance(value, float) and "stderr" not in key
        }
        out[name] = {"metrics": metrics, "requests": requests}
        if few_shot:  # what the model was given, in the order of the requests
            out[name]["contexts"] = [
                arguments[0]
                for sample in sorted(found["samples"]["local_" + name], key=lambda s: s["doc_id"])
                for arguments in sample["arguments"]
            ]
    return {"lm_eval": lm_eval.__version__, "tasks": out}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("rows")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--few-shot", type=int, default=0)
    args = parser.parse_args()
    stdout, sys.stdout = sys.stdout, sys.stderr  # the package prints
    result = evaluate(args.model, args.rows, args.batch, args.few_shot)
    json.dump(result, stdout, indent=1)


if __name__ == "__main__":
    main()
