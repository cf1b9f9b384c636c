#!/usr/bin/env python3
"""The file for W&B, read by the package's own reader in Python (wandb 0.19 is the last with one) and uploaded by the newest client to
a stand-in for the server (wandb_server.py); TensorBoard's events by TensorBoard. Packages are installed into build/wandb and
build/wandb-newest; without a network this is skipped. Part of make test-full. Ends with counts.

    test/program/test_wandb.py ./train_llama
"""

import json
import os
import subprocess
import sys

from checks import Table, arguments, end, expect, holds, installed, load, remove, rows, run, text_data, until, work

try:
    from wandb.sdk.internal.datastore import DataStore
except ImportError:
    DataStore = None
    probe = ["-c", "from wandb.sdk.internal.datastore import DataStore"]
    packages = "wandb==0.19.11", "setuptools", "tensorboard"
    python = installed("wandb's reader in Python", "WANDB_PYTHON", "build/wandb/bin/python", probe, *packages)
    if python:  # this test begins anew with it
        remove(work)
        os.execv(python, [python, __file__, *arguments])

DATA = f"--data {text_data('200K')} --device cpu --preset bytes"
Table(
    program := arguments[0], f"{DATA} --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 --ffn 24 --seq-len 32"
)("""
    run 1 --batch 4 --val-tokens 512 --val-every 100 --steps 300 --log-every 100 --wandb p
""")
(path,) = (work / "run").glob("wandb/offline-run-*/run-*.wandb")
steps = {row["step"]: row["loss"] for row in rows("run")}


def settings(items):
    return {item.key: json.loads(item.value_json) for item in items}


if DataStore:
    import wandb
    from google.protobuf.unknown_fields import UnknownFieldSet
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from wandb.proto import wandb_internal_pb2 as pb

    with holds("its records are those of wandb's own messages"):
        wandb._assert_is_internal_process = True
        store, found = DataStore(), []
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            found.append(pb.Record.FromString(data))
            assert len(UnknownFieldSet(found[-1])) == 0
        kinds = [r.WhichOneof("record_type") for r in found]
        assert kinds == ["header", "run", *["history"] * (len(kinds) - 4), "summary", "exit"], kinds
        assert [r.num for r in found] == list(range(1, len(found) + 1))
        of_run = found[1].run
        assert of_run.project == "p" and len(of_run.run_id) == 8 and of_run.start_time.seconds > 1.7e9
        assert settings(of_run.config.update)["seq-len"] == "32"
        history = {r.history.step.num: settings(r.history.item) for r in found[2:-2]}
        losses = {step: row["train/loss"] for step, row in history.items() if "train/loss" in row}
        assert len(history) == len(found) - 4 and sorted(losses) == sorted(steps)
        assert all(abs(losses[step] - steps[step]) < 1e-7 for step in steps)
        assert settings(found[-2].summary.update)["train/loss"] == losses[max(losses)]
    with holds("TensorBoard reads scalars and settings"):
        events = EventAccumulator(str(work / "run"))
        events.Reload()
        tags = set(events.Tags()["scalars"])
        assert {"train/loss", "val/bits_per_byte", "memory/peak_bytes", "speed/steps_per_second"} <= tags, tags
        assert len(events.Scalars("train/loss")) == 300
        (text,) = events.Tensors("settings")
        assert b"| seq-len | 32 |" in text.tensor_proto.string_val[0]
newest = installed("wandb's newest client", "WANDB_NEWEST", "build/wandb-newest/bin/wandb", "--version", "wandb")
if newest:  # it reads the file to its end and sends all of it
    server = [sys.executable, "test/program/wandb_server.py", work / "got.json", work / "port"]
    with subprocess.Popen(server, stdin=subprocess.PIPE):  # until its standard input ends
        until(lambda: (work / "port").exists() and (work / "port").read_text(), 5)
        env = {"HOME": work, "WANDB_DIR": work, "WANDB_ERROR_REPORTING": "false", "WANDB_API_KEY": "a" * 40}
        env["WANDB_BASE_URL"] = f"http://127.0.0.1:{(work / 'port').read_text()}"
        expect("the newest client uploads it", run([newest, "sync", path], env=env, limit=120))
    got = load("got.json")
    with holds("rows, summary, settings and the end have come"):
        losses = {row["_step"]: row["train/loss"] for row in got["history"] if "train/loss" in row}
        assert sorted(losses) == sorted(steps), (len(losses), len(steps))
        assert all(abs(losses[step] - steps[step]) < 1e-7 for step in steps)
        assert any("val/loss" in row for row in got["history"]) and got["summary"]["_step"] == max(steps)
        of_run = got["runs"][0]
        assert of_run["project"] == "p" and json.loads(of_run["config"])["seq-len"]["value"] == "32", of_run
        assert got["done"] and got["exit"] == 0, (got["done"], got["exit"])
end()
