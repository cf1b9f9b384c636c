#!/usr/bin/env bash
# The file for W&B, read by the package's own reader in Python (wandb 0.19 is the last with one) and uploaded by the newest client to
# a stand-in for the server (wandb_server.py); TensorBoard's events by TensorBoard. Packages are installed into build/wandb and
# build/wandb-newest; without a network this is skipped. Part of make test-full. Ends with "N passed, N failed".
#
#   test/program/test_wandb.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python=${WANDB_PYTHON:-build/wandb/bin/python}
has_package() { "$python" -c 'from wandb.sdk.internal.datastore import DataStore' > "$work/log" 2>&1; }
if ! has_package && [ -z "${WANDB_PYTHON:-}" ]; then
  python3 -m venv build/wandb > "$work/log" 2>&1 && build/wandb/bin/pip install -q "wandb==0.19.11" setuptools tensorboard > "$work/log" 2>&1
fi
python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1
"$program" --data "$work/data" --device cpu --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --ffn 24 \
  --seq-len 32 --batch 4 --val-tokens 512 --val-every 100 --steps 300 --log-every 100 --wandb p --out "$work/run" > "$work/log" 2>&1
if has_package; then
  check "its records are those of wandb's own messages" "$python" - "$work" << 'EOF'
import glob, json, sys
import wandb
from google.protobuf.unknown_fields import UnknownFieldSet
from wandb.proto import wandb_internal_pb2 as pb
from wandb.sdk.internal.datastore import DataStore

wandb._assert_is_internal_process = True
(path,) = glob.glob(sys.argv[1] + "/run/wandb/offline-run-*/run-*.wandb")
store, found = DataStore(), []
store.open_for_scan(path)
while (data := store.scan_data()) is not None:
    record = pb.Record()
    record.ParseFromString(data)
    assert len(UnknownFieldSet(record)) == 0
    found.append(record)
kinds = [r.WhichOneof("record_type") for r in found]
assert kinds[:2] == ["header", "run"] and kinds[-2:] == ["summary", "exit"] and set(kinds[2:-2]) == {"history"}, kinds[:5]
assert [r.num for r in found] == list(range(1, len(found) + 1))
run = found[1].run
assert run.project == "p" and len(run.run_id) == 8 and run.start_time.seconds > 1.7e9
config = {i.key: json.loads(i.value_json) for i in run.config.update}
assert config["seq-len"] == "32"
steps = {m["step"]: m for m in map(json.loads, open(sys.argv[1] + "/run/metrics.jsonl")) if "loss" in m}
rows = [{i.key: json.loads(i.value_json) for i in r.history.item} | {"num": r.history.step.num} for r in found[2:-2]]
assert sorted(r["num"] for r in rows if "train/loss" in r) == sorted(steps)
assert all(abs(r["train/loss"] - steps[r["num"]]["loss"]) < 1e-7 for r in rows if "train/loss" in r)
summary = {i.key: json.loads(i.value_json) for i in found[-2].summary.update}
assert summary["train/loss"] == rows[-1].get("train/loss", summary["train/loss"])
print(len(found), "records")
EOF
else
  skip "wandb's reader in Python can't be had here: $(tail -n 1 "$work/log")"
fi
newest=${WANDB_NEWEST:-build/wandb-newest/bin/wandb}
if ! "$newest" --version > "$work/log" 2>&1 && [ -z "${WANDB_NEWEST:-}" ]; then
  python3 -m venv build/wandb-newest > "$work/log" 2>&1 && build/wandb-newest/bin/pip install -q wandb > "$work/log" 2>&1
fi
uploads() {  # the newest client reads the file to its end and sends all of it
  mkfifo "$work/hold"
  python3 test/program/wandb_server.py "$work/got.json" "$work/port" < "$work/hold" &
  local server=$! rc=0 i
  exec 8> "$work/hold"
  for ((i = 0; i < 50; ++i)); do [ -s "$work/port" ] && break; sleep 0.1; done
  HOME=$work WANDB_DIR=$work WANDB_ERROR_REPORTING=false WANDB_BASE_URL=http://127.0.0.1:$(cat "$work/port") WANDB_API_KEY=$(printf 'a%.0s' {1..40}) \
    timeout 120 "$newest" sync "$work"/run/wandb/offline-run-*/run-*.wandb 8>&- > "$work/log" 2>&1 || rc=$?
  exec 8>&-
  wait $server
  return $rc
}
if "$newest" --version > "$work/log" 2>&1; then
  check "$(tail -n 1 "$work/log") uploads it" uploads
  check "rows, summary, settings and the end have come" python3 - "$work" << 'EOF'
import json, sys

got = json.load(open(sys.argv[1] + "/got.json"))
steps = {m["step"]: m for m in map(json.loads, open(sys.argv[1] + "/run/metrics.jsonl")) if "loss" in m}
rows = {r["_step"]: r for r in got["history"] if "train/loss" in r}
assert sorted(rows) == sorted(steps), (len(rows), len(steps))
assert all(abs(rows[s]["train/loss"] - steps[s]["loss"]) < 1e-7 for s in steps)
assert any("val/loss" in r for r in got["history"]) and got["summary"]["_step"] == max(steps)
run = got["runs"][0]
assert run["project"] == "p" and json.loads(run["config"])["seq-len"]["value"] == "32", run
assert got["done"] and got["exit"] == 0, (got["done"], got["exit"])
EOF
else
  skip "wandb's newest client can't be had here: $(tail -n 1 "$work/log")"
fi
if "$python" -c 'import tensorboard' 2> /dev/null; then
  check "TensorBoard reads scalars and settings" "$python" - "$work" << 'EOF'
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1] + "/run")
events.Reload()
tags = events.Tags()
assert {"train/loss", "val/bits_per_byte", "memory/peak_bytes", "speed/steps_per_second"} <= set(tags["scalars"]), tags
assert len(events.Scalars("train/loss")) == 300
(text,) = events.Tensors("settings")
assert b"| seq-len | 32 |" in text.tensor_proto.string_val[0]
EOF
else
  skip "TensorBoard is not installed"
fi
summary
