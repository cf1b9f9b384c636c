#!/usr/bin/env python3
"""Views of a run beside its numbers: the report that compares runs, the file for W&B, TensorBoard's extras. Ends with counts.

test/program/test_report.py ./train_llama REPORT      REPORT: build/dev/report
"""

import collections
import json
import math
import re
from xml.etree import ElementTree

from checks import Table, arguments, check, dies, end, equal, expect, has_mpi, holds, load, rows, run, same_file, skip
from checks import text_data, work
from run_rows import fields, records

program, report = arguments
DATA = f"--data {text_data('200K')} --device cpu --preset bytes --seq-len 32"
SHAPE = "--dim 16 --heads 2 --head-dim 8 --ffn 24 --val-tokens 512"
train = Table(program, f"{DATA} {SHAPE} --layers 1 --kv-heads 1 --batch 4 --val-every 5")
train("""
    first    1 --steps 10 --wandb 'my <project>' --wandb-name 'first run' --sample-every 1 --sample-tokens 9 | says wandb sync uploads it
    second   1 --steps 8 --lr 3e-3 --save-every 4 --wandb p
    second   1 --resume auto --steps 12 --allow-lr-jump | there
""")

# ---- time to a loss: the run ends as one that was asked for so many steps, on one rank and on three, and a resume goes on ----
GOAL = "--batch 1 --batch-tokens 384 --threads 1 --lr 1e-2 --lr-schedule constant --warmup 2 --val-every 3"
train(f"nine 1 --steps 9 {GOAL}")
loss = rows("nine", "val_loss")[-1]["val_loss"] + 1e-4
REACHED = f"--steps 60 {GOAL} --stop-at-val-loss {loss}"
train(f"""
    goal1    1 --ranks 1 {REACHED} --save-every 4 | says reached validation loss .* at step 9: 3456 tokens | weights of nine
    goal3    1 --ranks 3 {REACHED} --save-every 4 | says reached validation loss .* at step 9: 3456 tokens
""")
for out in "goal1", "goal3":
    equal(f"{out} saves that step", (work / out / "checkpoints/latest").read_text().strip(), "step_000000009")
train(f"""
    goal1    1 --resume auto --stop-at-val-loss 0 --steps 12 | there | says step 12/12
    timed    1 --ranks 3 {REACHED} --mllog {work}/mllog.txt
""")

# ---- each line's time, and MLPerf's log: its keys as MLCommons' checker wants them, values and times as metrics.jsonl has them ----
ONCE = """submission_benchmark submission_org submission_platform submission_division init_start init_stop run_start run_stop
    train_samples eval_samples lowest_numerical_precision_in_linear lowest_numerical_precision_in_attn config_filename
    lowest_numerical_precision_in_comm tensor_parallelism pipeline_parallelism context_parallelism expert_parallelism
    micro_batch_size global_batch_size gradient_accumulation_steps max_sequence_length opt_name opt_base_learning_rate
    opt_end_learning_rate"""
with holds("MLPerf's log is that of the run"):
    lines = (work / "mllog.txt").read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    log, metrics = [json.loads(line[9:]) for line in lines], rows("timed", "time")
    times = [r["time"] for r in metrics]
    assert len(times) == len((work / "timed/metrics.jsonl").read_text().splitlines())
    assert times == sorted(times) and all(isinstance(t, int) for t in times) and 1.7e12 < times[0] < 4e12, times
    order = [r["key"] for r in log]
    keys = collections.Counter(order)
    assert all(keys[k] == 1 for k in ONCE.split()), keys
    assert [r["time_ms"] for r in log] == sorted(r["time_ms"] for r in log)
    value = {r["key"]: r["value"] for r in log}
    assert (value["micro_batch_size"], value["global_batch_size"], value["gradient_accumulation_steps"]) == (1, 12, 4)
    assert (value["max_sequence_length"], value["eval_samples"], value["opt_base_learning_rate"]) == (32, 16, 0.01)
    assert (value["opt_learning_rate_warmup_steps"], value["opt_learning_rate_decay_steps"]) == (2, 58), value
    assert (
        value["opt_learning_rate_decay_schedule"] == "constant with linear warmup" and value["tensor_parallelism"] == 1
    )
    losses = [(r["step"] * 12, r["val_loss"]) for r in metrics if "val_loss" in r]
    assert [(r["metadata"]["samples_count"], r["value"]) for r in log if r["key"] == "eval_accuracy"] == losses
    assert keys["block_start"] == keys["block_stop"] == keys["eval_start"] == keys["eval_stop"] == len(losses) == 4
    assert order[:2] == ["cache_clear", "init_start"] and order.index("init_stop") + 1 == order.index("run_start")
    assert order[-2:] == ["run_stop", "train_samples"], order
    assert log[-2]["metadata"] == {"samples_count": 108, "status": "success"}, log[-2:]
    began, ended = (log[order.index(key)]["time_ms"] for key in ("run_start", "run_stop"))
    (seconds,) = [r["reached"]["seconds"] for r in metrics if "reached" in r]
    assert 0 < ended - began <= 1e3 * seconds + 500, (began, ended, seconds)
over = run([program], DATA, f"--steps 1 --mllog {work}/mllog.txt --stop-at-val-loss 1")
expect("a log over another", over, code=2, says="is there already, and holds one run")


# ---- the report ----
def reported(what, *runs):
    """The report of runs, as text."""
    expect(what, run([report, *(work / r for r in runs)], f"--out {work}/report.html"))
    return (work / "report.html").read_text()


def by_rank(name):
    """Both ranks' times are drawn."""
    found = re.findall(f"Time by rank, {name}|>rank [01]<", reported(f"the report draws {name}'s time by rank", name))
    equal("  both are in it", sorted(set(found)), [">rank 0<", ">rank 1<", f"Time by rank, {name}"])


text = reported("compares them", "first", "second")
with holds("one file, well-formed, with both runs, what differs and a sample"):
    outside = set(re.findall(r"(?:https?:)?//[^\s\"'<>)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not outside, outside  # nothing from a network
    assert not re.search(
        r"<(?:link|img|iframe|object|embed)\b|<script(?! type=\"application/json\")|@import|url\(", text
    )
    page = ElementTree.fromstring(re.sub("^<!doctype html>|<meta [^>]*>", "", text))
    cells = {"".join(row[0].itertext()): ["".join(cell.itertext()) for cell in row[1:]] for row in page.iter("tr")}
    assert cells["first"][1] == "10" and cells["second"][1] == "12", cells
    assert cells["lr"][0] in ("1e-3", "0.001") and cells["lr"][1] in ("3e-3", "0.003"), cells["lr"]
    assert "seq-len" not in cells and "batch" not in cells
    plots = {"Training loss", "Validation loss", "Validation loss by time", "Gradient norm", "Learning rate", "Speed"}
    titles = {title.text for title in page.iterfind(".//{*}title")}
    assert plots <= titles and len(page.findall(".//{*}svg")) >= 7, titles
    assert "<h3>first, step 10</h3>" in text
    data = json.loads(re.search(r'<script type="application/json" id="runs">(.*?)</script>', text, re.S)[1])
    assert [r["name"] for r in data] == ["first", "second"]
    assert data[1]["last"]["loss"] == rows("second")[-1]["loss"]
(work / "<b>").mkdir()
torn = '{"step":1,"loss":2.5,"sample":"</pre><script>alert(1)</script>"}\n{"step":2,"lo'
(work / "<b>/metrics.jsonl").write_text(torn)
text = reported("a torn line and a name with markup", "<b>")
check("  are text", "<b>" not in text and "&lt;b&gt;" in text and "<script>alert" not in text, text)
none = run([report, work / "data"], f"--out {work}/x.html")
expect("a folder that is no run", none, code=dies, says="metrics.jsonl: not found")
train("ranks 1 --ranks 2 --steps 21 --batch 2 | fault step:1:*:sleep=0.02")
by_rank("ranks")
metrics, ranks = ((work / f"ranks/{name}.jsonl").read_text() for name in ("metrics", "ranks"))
equal("numbers of all ranks are not in metrics.jsonl", metrics.count("_by_rank"), 0)
(work / "earlier").mkdir()  # a run of an earlier program, which has written them there
(work / "earlier/metrics.jsonl").write_text(metrics + ranks)
by_rank("earlier")

# ---- statistics ----
watch = Table(
    program,
    f"{DATA} {SHAPE} --layers 2 --kv-heads 2 --batch-tokens 256 --val-every 0 --lr-schedule constant --warmup 2",
)
watch("stats 1 --batch 4 --steps 24 --stats-every 3 --save-every 12 | fault loss:*:20:spike")
with holds("every third step: tensors and blocks, and norms that are those of the whole gradient"):
    steps = {r["step"]: r for r in rows("stats")}
    stats = rows("stats", "step", "stats.jsonl")
    assert [r["step"] for r in stats] == [3, 6, 9, 12, 15, 18, 21, 24]
    for r in stats:
        assert len(r["blocks"]) == 2 and len(r["tensors"]) == 21, (len(r["blocks"]), len(r["tensors"]))
        whole = math.hypot(*(t["grad_norm"] for t in r["tensors"].values()))
        assert abs(whole - steps[r["step"]]["grad_norm"]) < 1e-5 * whole, (whole, steps[r["step"]])
        assert all(0 < t["update_ratio"] < 1 and t["norm"] > 0 for t in r["tensors"].values()), r
        assert all(b["residual_rms"] > 0 and b["largest_logit"] is not None for b in r["blocks"]), r
    bad = load("stats/bad_step_20.json")["steps"]
    assert [s["step"] for s in bad] == list(range(1, 21)) and "spike" in bad[-1]["note"], bad[-1]
    seen = []
    for s in bad:
        assert ("statistics" in s) == (s["step"] % 3 == 0)
        assert abs(s["loss"] - steps[s["step"]]["loss"]) < 1e-8 * s["loss"], s
        assert s["batch"]["first"] == 8 * (s["step"] - 1) and s["batch"]["count"] == 8
        (samples,) = s["batch"]["samples"].values()
        assert len(set(samples)) == 8
        seen += samples
    assert len(set(seen)) == 160, "one epoch: no sample twice"
watch("""
    stats2   1 --resume auto --steps 24 | from stats to 12
    nostats  1 --batch 4 --steps 24 | weights of stats
""")
same_file("a resume leaves each step once", "stats/stats.jsonl", "stats2/stats.jsonl")
equal("  in ranks.jsonl too", [r["step"] for r in rows("stats2", "step", "ranks.jsonl")], list(range(1, 25)))


def numbers(value, where=""):
    """Each number of nested lists and objects, and where it is."""
    if not isinstance(value, (dict, list)):
        return {where: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {path: x for key, item in items for path, x in numbers(item, f"{where}/{key}").items()}


LAYOUTS = "2 --zero 3 --batch 2 --recompute block", "2 --cp 2 --batch 4", "2 --tp 2 --batch 4"
if has_mpi(program):
    for layout in *LAYOUTS, "4 --cp 2 --cp-exchange ring --pp 2 --batch 2":
        watch(f"layout {layout} --steps 6 --stats-every 3")
        a, b = (numbers(rows(o, "step", "stats.jsonl")[:2]) for o in ("stats", "layout"))
        equal(f"{layout}: the same statistics are there", b.keys(), a.keys())
        # The first steps: weights drift apart by the order of sums; a logit may be ln 32 / 65536 too large.
        far = {k: (a[k], b[k]) for k in a if abs(a[k] - b[k]) > 2e-4 * abs(a[k]) + 1e-4}
        equal("  with the same values", far, {})
else:
    skip("statistics at other layouts: no MPI here")


# ---- W&B: read by the standard library, zlib and the wire format (test/faults/run_rows.py) ----
def settings(items):
    """Items of a name and a value in JSON."""
    found = (dict(fields(item)) for item in items)
    return {item[1].decode(): json.loads(item[16]) for item in found}


def files(out):
    return list((work / out).glob("wandb/offline-run-*/run-*.wandb"))


with holds("the file for W&B: header, run, rows, summary, exit"):
    (path,) = files("first")
    found = [dict(fields(r)) for r in records(path)]
    assert [r[1] for r in found] == list(range(1, len(found) + 1))
    kinds = [next(k for k in r if k != 1) for r in found]
    assert kinds[:2] == [21, 17] and kinds[-2:] == [3, 18] and set(kinds[2:-2]) == {2}, kinds
    of_run = dict(fields(found[1][17]))
    assert of_run[3] == b"my <project>" and of_run[8] == b"first run"
    config = settings(v for k, v in fields(of_run[4]))
    assert config["batch"] == "4" and config["ranks"] == "1", config
    history = [settings(v for k, v in fields(r[2]) if k == 1) for r in found[2:-2]]
    assert [r["_step"] for r in history] == [0, *range(1, 11)], history
    steps, val = ({r["step"]: r for r in rows("first", key)} for key in ("loss", "val_loss"))
    names = {"train/loss": "loss", "grad_norm": "grad_norm", "lr": "lr", "tokens_per_second": "tokens_per_second"}
    for r in history:
        for key, name in names.items() if r["_step"] in steps else ():
            assert abs(r[key] - steps[r["_step"]][name]) <= 1e-8 * abs(r[key]), (key, r)
        assert ("val/loss" in r) == (r["_step"] in val) == ("val/bits_per_byte" in r)
    assert dict(fields(found[-1][18])).get(1, 0) == 0
paths = files("second")
check("a resumed run keeps its id", len(paths) == 2 and len({p.name for p in paths}) == 1, paths)
train("long 1 --steps 400 --val-every 0 --log-every 400 --wandb p")
with holds("a file of several blocks is read to its end"):
    (path,) = files("long")
    assert path.stat().st_size > 3 * 32768
    assert len(list(records(path))) == 400 + 4  # the validation at the end is in the last row

# ---- TensorBoard ----
with holds("TensorBoard has the settings and the extras"):
    (path,) = (work / "first").glob("events.out.tfevents.*")
    events = path.read_bytes()
    tags = "train/loss", "val/bits_per_byte", "memory/peak_bytes", "speed/steps_per_second", "settings", "| batch | 4 |"
    missing = [tag for tag in tags if tag.encode() not in events]
    assert not missing, missing
end()
