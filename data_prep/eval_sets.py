"""Evaluation tasks as files that `train_llama eval` reads (llama/train/eval_tasks.h has the format).

    prepare.py eval hellaswag arc_easy perplexity --out data/eval        from the Hugging Face hub
    prepare.py eval hellaswag --from rows.jsonl --out data/eval          from rows of that dataset that are here
    prepare.py eval hellaswag --few-shot 5 --out data/eval5              five solved examples before each one

The texts are those that lm-evaluation-harness makes of the same rows: its tasks hellaswag, arc_easy, arc_challenge, piqa,
winogrande, lambada_openai and wikitext (here `perplexity`). Solved examples are those that it draws, with its seed, from the
training split, or from the rows themselves where there is none (lambada); they stand in the context, so `train_llama eval` needs
no flag for them.
"""

import argparse
import json
import os
import random
import re
import sys

from common import PrepareError, write_atomically

OUT = os.path.join("data", "eval")


def hellaswag_text(text):
    """What is left of WikiHow's markup goes: " [title]" ends a sentence, anything else in brackets says nothing."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def hellaswag(row):
    context = row["ctx_a"] + " " + row["ctx_b"].capitalize()  # capitalize() also lowers the rest
    return {
        "context": hellaswag_text(row["activity_label"] + ": " + context),
        "choices": [hellaswag_text(e) for e in row["endings"]],
        "gold": int(row["label"]),
        "llmc": {"context": row["ctx"], "choices": list(row["endings"])},  # llm.c takes the text as it is
    }


def arc(row):
    return {
        "context": f"Question: {row['question']}\nAnswer:",
        "choices": list(row["choices"]["text"]),
        "gold": list(row["choices"]["label"]).index(row["answerKey"]),
    }


def piqa(row):
    return {
        "context": f"Question: {row['goal']}\nAnswer:",
        "choices": [row["sol1"], row["sol2"]],
        "gold": int(row["label"]),
    }


def winogrande(row):
    """The two contexts differ, and what follows the blank is scored after each."""
    at = row["sentence"].index("_")
    return {
        "context": [row["sentence"][:at] + row[option] for option in ("option1", "option2")],
        "continuation": " " + row["sentence"][at + 1 :].strip(),
        "gold": {"1": 0, "2": 1}[row["answer"]],
    }


def lambada(row):
    words = row["text"].split(" ")
    return {"context": " ".join(words[:-1]), "continuation": " " + words[-1]}


def counts(text):
    return {"words": len(re.split(r"\s+", text)), "bytes": len(text.encode())}


def plain_text(row):
    return {"text": row["text"], **counts(row["text"])}


# WikiText's tokenisation put these between words; they are taken away in this order.
WIKITEXT = (
    (r"s '", "s'"), (r" @-@ ", "-"), (r" @,@ ", ","), (r" @.@ ", "."), (r" : ", ": "), (r" ; ", "; "), (r" . ", ". "),
    (r" ! ", "! "), (r" ? ", "? "), (r" , ", ", "),
)  # fmt: skip
WIKITEXT_PAIRS = (
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"), (r"\[\s*([^\]]*?)\s*\]", r"[\1]"), (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r'"\s*([^"]*?)\s*"', r'"\1"'), (r"'\s*([^']*?)\s*'", r"'\1'"),
)  # fmt: skip
WIKITEXT_REST = (
    ("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00b0 ", "\u00b0"), (" \n", "\n"), ("\n ", "\n"),
    (" N ", " 1 "), (" 's", "'s"),
)  # fmt: skip


def wikitext(row):
    """Words and bytes are those of the page as it was."""
    text = row["page"]
    for a, b in WIKITEXT:
        text = text.replace(a, b)
    text = re.sub(r"/' [0-9]/", r"/'[0-9]/", text)  # as theirs, slashes and all
    for pattern, by in WIKITEXT_PAIRS:
        text = re.sub(pattern, by, text)
    for a, b in WIKITEXT_REST:
        text = text.replace(a, b)
    return {"text": text, **counts(row["page"])}


def perplexity(row):
    return wikitext(row) if "page" in row else plain_text(row)


# name: (row -> example, repository on the hub, its configuration, split, split of the solved examples)
TASKS = {
    "hellaswag": (hellaswag, "Rowan/hellaswag", None, "validation", "train"),
    "arc_easy": (arc, "allenai/ai2_arc", "ARC-Easy", "test", "train"),
    "arc_challenge": (arc, "allenai/ai2_arc", "ARC-Challenge", "test", "train"),
    "piqa": (piqa, "baber/piqa", None, "validation", "train"),
    "winogrande": (winogrande, "allenai/winogrande", "winogrande_xl", "validation", "train"),
    "lambada": (lambada, "EleutherAI/lambada_openai", "default", "test", "test"),
    "perplexity": (perplexity, "EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test", None),
}
HARNESS_SEED = 1234


# ---- solved examples -------------------------------------------------------------------------------------------------


def solved(example):
    """Question and right answer as they stand before the question that is asked."""
    context = example["context"]
    if isinstance(context, list):
        return context[example["gold"]] + example["continuation"]
    return context + " " + (example["choices"][example["gold"]] if "choices" in example else example["continuation"])


class Shots:
    """The harness's sampler: one generator for the whole task, drawn from in the order of the rows. Where the task has no test
    split of its own, a row is not among its own examples: one more is drawn, and it or the last one goes."""

    def __init__(self, name, pool, count):
        self.make, _, _, split, _ = TASKS[name]
        self.pool, self.count, self.random = list(pool), count, random.Random(HARNESS_SEED)
        self.leaves_out = split != "test"
        needs = count + self.leaves_out
        if len(self.pool) < needs:
            raise PrepareError(
                f"--few-shot {count}: {name} needs {needs} rows to draw from, and there are {len(self.pool)}"
            )

    def draw(self, row):
        if not self.leaves_out:
            return self.random.sample(self.pool, self.count)
        drawn = [r for r in self.random.sample(self.pool, self.count + 1) if r != row][: self.count]
        if len(drawn) < self.count:  # the row stands there more than once
            drawn = self.random.sample([r for r in self.pool if r != row], self.count)
        return drawn

    def put_before(self, example, row):
        before = "".join(solved(self.make(r)) + "\n\n" for r in self.draw(row))
        context = example["context"]
        example["context"] = [before + c for c in context] if isinstance(context, list) else before + context
        example.pop("llmc", None)  # llm.c asks without examples


# ---- rows ------------------------------------------------------------------------------------------------------------


def rows_of_files(paths):
    """Rows of JSONL files with their places; a .txt is one row with its text."""
    for path in paths:
        if path.endswith(".txt"):
            with open(path, encoding="utf-8") as f:
                yield path, {"text": f.read()}
            continue
        with open(path, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                if not line.strip():
                    continue
                try:
                    yield f"{path}:{number}", json.loads(line)
                except ValueError as e:
                    raise PrepareError(f"{path}:{number}: not JSON: {e}") from e


def rows_of_hub(repo, subset, split):
    try:
        from datasets import load_dataset
    except ImportError as e:
        raise PrepareError(
            f"{repo} comes from the Hugging Face hub, which needs the Python package `datasets`; run: "
            "python3 -m pip install datasets, or give rows that are here with --from FILE.jsonl"
        ) from e
    try:
        for number, row in enumerate(load_dataset(repo, subset, split=split, streaming=True)):
            yield f"{repo} row {number}", row
    except Exception as e:
        raise PrepareError(
            f"cannot read {repo} from the Hugging Face hub ({(str(e).splitlines() or ['?'])[0]}); check the network, or "
            "give rows that are here with --from FILE.jsonl"
        ) from e


def prepare(name, rows, shots=None):
    """The lines of NAME.jsonl."""
    make, lines = TASKS[name][0], []
    for where, row in rows:
        try:
            example = make(row)
            if shots:
                shots.put_before(example, row)
            lines.append(json.dumps(example, ensure_ascii=False))
        except (KeyError, ValueError, TypeError, AttributeError) as e:
            raise PrepareError(f"{where}: no row of {name}: {type(e).__name__} {e}") from e
    if not lines:
        raise PrepareError(f"{name}: no rows were found")
    return lines


def main(argv):
    parser = argparse.ArgumentParser(
        prog="prepare.py eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", metavar="TASK", choices=list(TASKS), help=", ".join(TASKS))
    parser.add_argument("--from", dest="rows", nargs="+", metavar="FILE", help="JSONL rows (or .txt for perplexity)")
    parser.add_argument(
        "--few-shot", type=int, default=0, metavar="N", help="solved examples before each one (default: 0)"
    )
    parser.add_argument(
        "--few-shot-from", nargs="+", metavar="FILE", help="rows to draw them from, with --from (default: its own)"
    )
    parser.add_argument("--out", default=OUT, metavar="DIR", help="folder to write (default: %(default)s)")
    args = parser.parse_args(argv)
    if args.rows and len(args.tasks) > 1:
        raise PrepareError("--from has the rows of one task; name one")
    if args.few_shot < 0 or (args.few_shot and "perplexity" in args.tasks):
        raise PrepareError(f"--few-shot {args.few_shot}: perplexity has no examples; other tasks take 0 or more")
    if args.few_shot_from and not (args.rows and args.few_shot):
        raise PrepareError("--few-shot-from says where --few-shot N draws from beside --from FILE; give both")
    os.makedirs(args.out, exist_ok=True)
    for name in args.tasks:
        _, repo, subset, split, pool_split = TASKS[name]
        rows = rows_of_files(args.rows) if args.rows else rows_of_hub(repo, subset, split)
        shots = None
        if args.few_shot:
            pool = (
                rows_of_files(args.few_shot_from or args.rows) if args.rows else rows_of_hub(repo, subset, pool_split)
            )
            shots = Shots(name, (row for _, row in pool), args.few_shot)
        lines = prepare(name, rows, shots)
        path = os.path.join(args.out, name + ".jsonl")
        write_atomically(path, ("\n".join(lines) + "\n").encode())
        print(f"{path}: {len(lines)} examples", file=sys.stdout)
    return 0
