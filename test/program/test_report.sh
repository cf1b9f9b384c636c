#!/usr/bin/env bash
# Views of a run beside its numbers: the report that compares runs, the file for W&B, TensorBoard's extras. Ends with
# "N passed, N failed".
#
#   test/program/test_report.sh ./train_llama REPORT      REPORT: build/dev/report
set -uo pipefail
program=$(realpath "$1") report=$(realpath "$2")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1
train() {  # train OUT ARGS...
  local out=$1
  shift
  timeout 120 "$program" --data "$work/data" --device cpu --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 \
    --ffn 24 --seq-len 32 --batch 4 --val-tokens 512 --val-every 5 --out "$work/$out" "$@" > "$work/log" 2>&1
}
check "trains with a file for W&B" train first --steps 10 --wandb "my <project>" --wandb-name "first run" --sample-every 1 --sample-tokens 9
check "says how it is uploaded" grep -q "wandb sync uploads it" "$work/log"
check "trains again with other settings" train second --steps 8 --lr 3e-3 --save-every 4 --wandb p
check "resumes" train second --resume auto --steps 12 --allow-lr-jump

# Time to a loss: the run ends as one that was asked for so many steps, on one rank and on three, and a resume goes on.
goal=(--batch 1 --batch-tokens 384 --threads 1 --lr 1e-2 --lr-schedule constant --warmup 2 --val-every 3)
check "trains for the goal's number of steps" train nine --steps 9 "${goal[@]}"
loss=$(python3 -c 'import json, sys; print([r["val_loss"] for r in map(json.loads, open(sys.argv[1])) if "val_loss" in r][-1] + 1e-4)' "$work/nine/metrics.jsonl")
for ranks in 1 3; do
  check "stops at a validation loss on $ranks" train "goal$ranks" --steps 60 "${goal[@]}" --ranks "$ranks" --stop-at-val-loss "$loss" --save-every 4
  check "says so on $ranks" grep -q "reached validation loss .* at step 9: 3456 tokens" "$work/log"
  check "and saves that step on $ranks" test "$(cat "$work/goal$ranks/checkpoints/latest")" = step_000000009
done
check "with the same weights" cmp "$work/nine/final/model.safetensors" "$work/goal1/final/model.safetensors"
check "goes on without the goal" train goal1 --resume auto --stop-at-val-loss 0 --steps 12
check "to the step asked for" grep -q "step 12/12" "$work/log"

# ---- each line's time, and MLPerf's log: its keys as MLCommons' checker wants them, values and times as metrics.jsonl has them ----
check "trains with MLPerf's log" train timed --steps 60 "${goal[@]}" --ranks 3 --stop-at-val-loss "$loss" --mllog "$work/mllog.txt"
check "which is that of the run" python3 - "$work/mllog.txt" "$work/timed" << 'EOF'
import collections, json, sys

assert all(line.startswith(":::MLLOG {") for line in open(sys.argv[1]))
log = [json.loads(line[9:]) for line in open(sys.argv[1])]
rows = [json.loads(line) for line in open(sys.argv[2] + "/metrics.jsonl")]
times = [r["time"] for r in rows]
assert times == sorted(times) and all(isinstance(t, int) for t in times), times
assert 1.7e12 < times[0] < 4e12
keys = collections.Counter(r["key"] for r in log)
once = """submission_benchmark submission_org submission_platform submission_division init_start init_stop run_start run_stop train_samples
    eval_samples lowest_numerical_precision_in_linear lowest_numerical_precision_in_attn lowest_numerical_precision_in_comm
    tensor_parallelism pipeline_parallelism context_parallelism expert_parallelism micro_batch_size config_filename
    global_batch_size gradient_accumulation_steps max_sequence_length opt_name opt_base_learning_rate opt_end_learning_rate""".split()
assert all(keys[k] == 1 for k in once), keys
assert [r["time_ms"] for r in log] == sorted(r["time_ms"] for r in log)
value = {r["key"]: r["value"] for r in log}
assert (value["micro_batch_size"], value["global_batch_size"], value["gradient_accumulation_steps"]) == (1, 12, 4), value
assert (value["max_sequence_length"], value["eval_samples"], value["opt_base_learning_rate"]) == (32, 16, 0.01), value
assert (value["opt_learning_rate_warmup_steps"], value["opt_learning_rate_decay_steps"]) == (2, 58), value
assert value["opt_learning_rate_decay_schedule"] == "constant with linear warmup" and value["tensor_parallelism"] == 1
losses = [(r["step"] * 12, r["val_loss"]) for r in rows if "val_loss" in r]
assert [(r["metadata"]["samples_count"], r["value"]) for r in log if r["key"] == "eval_accuracy"] == losses
assert keys["block_start"] == keys["block_stop"] == keys["eval_start"] == keys["eval_stop"] == len(losses) == 4
order = [r["key"] for r in log]
assert order[-2:] == ["run_stop", "train_samples"] and log[-2]["metadata"] == {"samples_count": 108, "status": "success"}, log[-2:]
assert order[:2] == ["cache_clear", "init_start"] and order.index("init_stop") + 1 == order.index("run_start")
seconds = next(r["reached"]["seconds"] for r in rows if "reached" in r)
run = next(r["time_ms"] for r in log if r["key"] == "run_stop") - next(r["time_ms"] for r in log if r["key"] == "run_start")
assert 0 < run <= 1e3 * seconds + 500, (run, seconds)
EOF

refused() {  # refused TEXT ARGS...
  local text=$1
  shift
  ! "$program" --data "$work/data" --device cpu --preset bytes --seq-len 32 --steps 1 "$@" > "$work/log" 2>&1 && grep -qF -- "$text" "$work/log"
}

check "or over another" refused "is there already, and holds one run" --mllog "$work/mllog.txt" --stop-at-val-loss 1

# ---- the report ----
check "compares them" "$report" "$work/first" "$work/second" --out "$work/report.html"
check "one file, well-formed, with both runs, what differs and a sample" python3 - "$work/report.html" << 'EOF'
import json, re, sys
from html.parser import HTMLParser

text = open(sys.argv[1], encoding="utf-8").read()
outside = [u for u in re.findall(r"(?:https?:)?//[^\s\"'<>)]+", text) if u != "http://www.w3.org/2000/svg"]
assert not outside, outside  # nothing from a network
assert not re.search(r"<(?:link|img|iframe|object|embed)\b|<script(?! type=\"application/json\")|@import|url\(", text)

class Reader(HTMLParser):
    stack, rows, cell, svgs, titles = [], [], None, 0, []
    def handle_starttag(self, tag, attrs):
        if tag == "meta": return
        self.stack.append(tag)
        self.svgs += tag == "svg"
        if tag == "tr": self.rows.append([])
        if tag in ("td", "th"): self.rows[-1].append("")
    def handle_startendtag(self, tag, attrs): pass
    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, tag
    def handle_data(self, data):
        if self.stack and self.stack[-1] in ("td", "th"): self.rows[-1][-1] += data
        if self.stack and self.stack[-1] == "title": self.titles.append(data)

reader = Reader()
reader.feed(text)
assert not reader.stack, reader.stack
rows = {row[0]: row[1:] for row in reader.rows}
assert rows["first"][1] == "10" and rows["second"][1] == "12", rows
assert rows["lr"][0] in ("1e-3", "0.001") and rows["lr"][1] in ("3e-3", "0.003"), rows["lr"]
assert "seq-len" not in rows and "batch" not in rows
for plot in "Training loss", "Validation loss", "Validation loss by time", "Gradient norm", "Learning rate", "Speed":
    assert plot in reader.titles, (plot, reader.titles)
assert reader.svgs >= 7
assert "<h3>first, step 10</h3>" in text
data = json.loads(re.search(r'<script type="application/json" id="runs">(.*?)</script>', text, re.S).group(1))
assert [r["name"] for r in data] == ["first", "second"]
metrics = [json.loads(line) for line in open(sys.argv[1].replace("report.html", "second/metrics.jsonl"))]
assert data[1]["last"]["loss"] == [m["loss"] for m in metrics if "loss" in m][-1]
EOF
mkdir "$work/<b>"
printf '{"step":1,"loss":2.5,"sample":"</pre><script>alert(1)</script>"}\n{"step":2,"lo' > "$work/<b>/metrics.jsonl"
check "a torn line and a name with markup" "$report" "$work/<b>" --out "$work/odd.html"
check "are text" python3 -c "
text = open('$work/odd.html').read()
assert '<b>' not in text and '&lt;b&gt;' in text and '<script>alert' not in text"
not_a_run() { ! "$report" "$work/data" --out "$work/x.html" > "$work/log" 2>&1 && grep -q "metrics.jsonl: not found" "$work/log"; }
check "a folder that is no run" not_a_run

slow() { FAULT="step:1:*:sleep=0.02" train ranks --ranks 2 --steps 21 --batch 2; }
check "trains on two ranks, of which one is slow" slow
check "the report draws time by rank" "$report" "$work/ranks" --out "$work/ranks.html"
check "both are in it" test "$(grep -o 'Time by rank, ranks\|>rank [01]<' "$work/ranks.html" | sort -u | wc -l)" = 3
check "numbers of all ranks are not in metrics.jsonl" test "$(grep -c _by_rank "$work/ranks/metrics.jsonl")" = 0
mkdir "$work/earlier"
cat "$work/ranks/metrics.jsonl" "$work/ranks/ranks.jsonl" > "$work/earlier/metrics.jsonl"
check "where an earlier program has written them they are found" "$report" "$work/earlier" --out "$work/earlier.html"
check "  both" test "$(grep -o 'Time by rank, earlier\|>rank [01]<' "$work/earlier.html" | sort -u | wc -l)" = 3

# ---- statistics ----
watch() {  # watch OUT ARGS...   with "mpirun -n N" first if $launch has it
  local out=$1
  shift
  # shellcheck disable=SC2086  # two words and a number
  timeout 120 ${launch:-} "$program" --data "$work/data" --device cpu --preset bytes --dim 16 --layers 2 --heads 2 --kv-heads 2 --head-dim 8 \
    --ffn 24 --seq-len 32 --batch-tokens 256 --val-tokens 512 --val-every 0 --lr-schedule constant --warmup 2 --out "$work/$out" "$@" > "$work/log" 2>&1
}
export FAULT="loss:*:20:spike"
check "trains with statistics, and a spike" watch stats --batch 4 --steps 24 --stats-every 3 --save-every 12
unset FAULT
check "every third step: tensors and blocks, and norms that are those of the whole gradient" python3 - "$work/stats" << 'EOF'
import json, math, sys

rows = [json.loads(line) for line in open(sys.argv[1] + "/stats.jsonl")]
steps = {r["step"]: r for r in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "loss" in r}
assert [r["step"] for r in rows] == [3, 6, 9, 12, 15, 18, 21, 24]
for r in rows:
    assert len(r["blocks"]) == 2 and len(r["tensors"]) == 21, (len(r["blocks"]), len(r["tensors"]))
    whole = math.sqrt(sum(t["grad_norm"] ** 2 for t in r["tensors"].values()))
    assert abs(whole - steps[r["step"]]["grad_norm"]) < 1e-5 * whole, (whole, steps[r["step"]])
    assert all(0 < t["update_ratio"] < 1 and t["norm"] > 0 for t in r["tensors"].values()), r
    assert all(b["residual_rms"] > 0 and b["largest_logit"] is not None for b in r["blocks"]), r
(bad,) = [json.load(open(sys.argv[1] + "/bad_step_20.json"))]
assert [s["step"] for s in bad["steps"]] == list(range(1, 21)) and "spike" in bad["steps"][-1]["note"], bad["steps"][-1]
for s in bad["steps"]:
    assert ("statistics" in s) == (s["step"] % 3 == 0)
    assert abs(s["loss"] - steps[s["step"]]["loss"]) < 1e-8 * s["loss"], s
    assert s["batch"]["first"] == 8 * (s["step"] - 1) and s["batch"]["count"] == 8
    (samples,) = s["batch"]["samples"].values()
    assert len(set(samples)) == 8
seen = [n for s in bad["steps"] for n in next(iter(s["batch"]["samples"].values()))]
assert len(set(seen)) == 160, "one epoch: no sample twice"
EOF
cp -r "$work/stats" "$work/stats2"
rm -rf "$work"/stats2/final "$work"/stats2/checkpoints/step_000000024
check "resumes with them" watch stats2 --resume auto --steps 24
check "and leaves each step once" cmp "$work/stats/stats.jsonl" "$work/stats2/stats.jsonl"
check "in ranks.jsonl too" test "$(grep -o '^{"step":[0-9]*' "$work/stats2/ranks.jsonl" | grep -o '[0-9]*' | xargs)" = "$(seq 24 | xargs)"
check "with the weights of a run without" watch nostats --batch 4 --steps 24
check "to the bit" cmp "$work/stats/final/model.safetensors" "$work/nostats/final/model.safetensors"
same_statistics() { python3 - "$work/stats" "$work/$1" << 'EOF'
import json, sys

def compare(a, b, where):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for k in a: compare(a[k], b[k], f"{where}/{k}")
    elif isinstance(a, list):
        for i, (x, y) in enumerate(zip(a, b, strict=True)): compare(x, y, f"{where}/{i}")
    else:  # of the first steps: weights drift apart by the order of sums; a logit may be ln 32 / 65536 too large
        assert abs(a - b) <= 2e-4 * abs(a) + 1e-4, (where, a, b)

rows = [[json.loads(line) for line in open(f + "/stats.jsonl")][:2] for f in sys.argv[1:]]
compare(rows[0], rows[1], "stats.jsonl")
EOF
}
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  layout() {  # layout NAME RANKS FLAGS...
    local name=$1 ranks=$2
    shift 2
    launch="mpirun -n $ranks" watch "$name" --steps 6 --stats-every 3 "$@" && same_statistics "$name"
  }
  check "the same at 2 ranks, ZeRO-3, recomputed" layout stats_zero 2 --zero 3 --batch 2 --recompute block
  check "the same at cp 2" layout stats_cp 2 --cp 2 --batch 4
  check "the same in a ring at cp 2, pp 2" layout stats_ring 4 --cp 2 --cp-exchange ring --pp 2 --batch 2
  check "the same at tp 2" layout stats_tp 2 --tp 2 --batch 4
else
  skip "statistics at other layouts: no MPI here"
fi

# ---- W&B: read by the standard library, zlib and the wire format ----
cat > "$work/wandb_reader.py" << 'EOF'
import struct, zlib

def records(path):
    data = open(path, "rb").read()
    assert data[:7] == struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    at, parts = 7, None  # the record's bytes so far: none, or its first part, which may be empty
    while at < len(data):
        room = 32768 - at % 32768
        if room < 7:
            assert data[at:at + room] == bytes(room)
            at += room
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7:at + 7 + length]
        assert zlib.crc32(bytes([kind]) + body) == crc and length + 7 <= room
        at += 7 + length
        assert (kind in (1, 2)) == (parts is None), "a part without its beginning"
        parts = (parts or b"") + body
        if kind in (1, 4):
            yield fields(parts)
            parts = None
    assert parts is None

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128: return value, at

def fields(data):
    found, at = [], 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        else:
            assert tag & 7 == 2, tag
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        found.append((tag >> 3, value))
    return found
EOF
check "the file for W&B: header, run, rows, summary, exit" env PYTHONPATH="$work" python3 - "$work" << 'EOF'
import glob, json, sys
from wandb_reader import fields, records

work = sys.argv[1]
(path,) = glob.glob(work + "/first/wandb/offline-run-*/run-*.wandb")
found = [dict(r) for r in records(path)]
assert [r[1] for r in found] == list(range(1, len(found) + 1))
kinds = [next(k for k in r if k != 1) for r in found]
assert kinds[:2] == [21, 17] and kinds[-2:] == [3, 18] and set(kinds[2:-2]) == {2}, kinds
run = fields(found[1][17])
assert dict(run)[3] == b"my <project>" and dict(run)[8] == b"first run"
config = {dict(fields(v))[1].decode(): json.loads(dict(fields(v))[16]) for k, v in fields(dict(run)[4])}
assert config["batch"] == "4" and config["ranks"] == "1", config
rows = []
for r in found[2:-2]:
    items = [dict(fields(v)) for k, v in fields(r[2]) if k == 1]
    rows.append({i[1].decode(): json.loads(i[16]) for i in items})
metrics = [json.loads(line) for line in open(work + "/first/metrics.jsonl")]
steps = {m["step"]: m for m in metrics if "loss" in m}
val = {m["step"]: m for m in metrics if "val_loss" in m}
assert [r["_step"] for r in rows] == [0, *range(1, 11)], [r["_step"] for r in rows]
for r in rows:
    if r["_step"] in steps:
        for key, name in ("train/loss", "loss"), ("grad_norm", "grad_norm"), ("lr", "lr"), ("tokens_per_second", "tokens_per_second"):
            assert abs(r[key] - steps[r["_step"]][name]) <= 1e-8 * abs(r[key]), (key, r)
    assert ("val/loss" in r) == (r["_step"] in val) and ("val/bits_per_byte" in r) == (r["_step"] in val)
assert dict(fields(found[-1][18])).get(1, 0) == 0
# A resumed run keeps its id.
paths = glob.glob(work + "/second/wandb/offline-run-*/run-*.wandb")
assert len(paths) == 2 and len({p.rsplit("/", 1)[1] for p in paths}) == 1, paths
EOF
long_run() { train long --steps 400 --val-every 0 --log-every 400 --wandb p; }
check "a run of several blocks" long_run
check "is read to its end" env PYTHONPATH="$work" python3 -c "
import glob, os
from wandb_reader import records
(path,) = glob.glob('$work/long/wandb/offline-run-*/run-*.wandb')
assert os.path.getsize(path) > 3 * 32768
assert len(list(records(path))) == 400 + 4"  # the validation at the end is in the last row

# ---- TensorBoard ----
check "TensorBoard has the settings and the extras" python3 - "$work" << 'EOF'
import glob, struct, sys

(path,) = glob.glob(sys.argv[1] + "/first/events.out.tfevents.*")
data = open(path, "rb").read()
at, events = 0, []
while at < len(data):
    (n,) = struct.unpack_from("<Q", data, at)
    events.append(data[at + 12:at + 12 + n])
    at += 12 + n + 4
whole = b"".join(events)
for tag in b"train/loss", b"val/bits_per_byte", b"memory/peak_bytes", b"speed/steps_per_second", b"settings", b"| batch | 4 |":
    assert tag in whole, tag
EOF
summary
