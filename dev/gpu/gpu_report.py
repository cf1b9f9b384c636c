#!/usr/bin/env python3
"""Keeps the report of dev/gpu/gpu_check.sh: report.json, complete and valid after every stage, and report.md made from it.

  gpu_report.py begin DIR COMMIT DEVICE DATE COMMAND DRY_RUN STAGE...    these are going to run; DRY_RUN is 0 or 1
  gpu_report.py stage DIR NAME STATUS SECONDS NOTE [ROWS]    how one stands; ROWS has a JSON object per line
  gpu_report.py status DIR                                   prints the table; exit code 1 unless all is well
  gpu_report.py profile-rows CSV SHAPE                       prints a row per kernel of what  ncu --csv --page raw  wrote;
                                                             exit code 1 if there is none
  gpu_report.py zero-row RANKS_JSON SAFETENSORS STAGE        prints a row of ZeRO's memory from a run's files; exit code 1
                                                             if a rank keeps 0.5 % more than the paper says

STATUS: running, ok, failed, timed-out, interrupted, unavailable (something it needs is not there), not-measured (in a dry
run) or not-run. Results of other stages that DIR already has are kept if they are of the same commit, device and kind of
run, and refused otherwise. Both files are replaced as a whole.
"""

import csv
import json
import math
import os
import re
import struct
import sys

FP8_GOAL = 1.45  # tokens/s to bf16's, at a 7B model's shape
CURVE_GOAL = 0.005  # by how much a mean of losses may differ

# ---- values of rows: absent, null or of another type is not there ----------------------------------------------------


def number(row, key):
    value = row.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(row, key, otherwise=""):
    value = row.get(key)
    if value is None:
        return otherwise
    return value if isinstance(value, str) else json.dumps(value)


def fixed(how, value, scale=1):
    return "-" if value is None else how % (value * scale)


def size(value):
    if value is None or value < 2**30:
        return fixed("%.1f MiB", value, 2**-20)
    return fixed("%.2f GiB", value, 2**-30)


def rate(row):
    if text(row, "unit") == "GFLOP/s" and (number(row, "rate") or 0) >= 1000:
        return fixed("%.1f TFLOP/s", number(row, "rate"), 1e-3)
    return fixed("%.1f ", number(row, "rate")) + text(row, "unit")


def types(row):
    """The type of weights and activations, of the products if they are in fp8, and of the state."""
    fp8 = text(row, "fp8", "none")
    more = ", also masters and moments" if text(row, "state") == "bf16" else ""
    return text(row, "dtype") + ("" if fp8 == "none" else f", fp8 {fp8}") + more


def types_and_flags(row):
    recompute = text(row, "recompute", "none")
    graphs = ", CUDA graphs" if row.get("cuda_graphs") is True else ""
    return types(row) + ("" if recompute == "none" else f", {recompute}") + graphs


def shape(row):
    return f"{text(row, 'batch')} x {text(row, 'seq_len')}"


def layers(row):
    asked, had = text(row, "layers_asked"), text(row, "layers", "-")
    return had if asked in ("", had) else f"{had} (of {asked}: the rest did not fit)"


def wrong(row):
    return "not checked" if (number(row, "wrong") or 0) < 0 else text(row, "wrong", "-")


def tensor_pipe(row):
    """Its name depends on the architecture."""
    found = [number(row, key) for key in row if "pipe_tensor" in key and number(row, key) is not None]
    return fixed("%.1f %%", max([0, *found]) if found else None)


# ---- tables of the report: by kind of row, head and cell of every column ---------------------------------------------


def words(key, otherwise=""):
    return lambda row: text(row, key, otherwise)


def digits(how, key, scale=1):
    return lambda row: fixed(how, number(row, key), scale)


def percent(key):
    return digits("%.1f %%", key)


def memory(key):
    return lambda row: size(number(row, key))


KINDS = {
    "fact": {"what": words("name"), "value": words("value")},
    "tests": {
        "tests": words("suite"),
        "passed": words("passed"),
        "failed": words("failed"),
        "skipped": words("skipped"),
        "not run": words("not_run", "-"),
        "seconds": words("seconds", "-"),
    },
    "ceiling": {"ceiling": words("what"), "rate": rate, "device": words("device")},
    "kernel": {
        "op": words("op"),
        "shape, type": words("shape"),
        "time": digits("%.1f us", "seconds", 1e6),
        "rate": rate,
        "of the measured ceiling": digits("%.1f %%", "of_peak", 100),
        "wrong elements": wrong,
    },
    "train": {
        "model": words("model"),
        "program": words("program"),
        "parameters": digits("%.1f M", "parameters", 1e-6),
        "layers": layers,
        "batch": shape,
        "type, recompute": types_and_flags,
        "tokens/s": digits("%.0f", "tokens_per_s"),
        "TFLOP/s": digits("%.2f", "flops", 1e-12),
        "MFU": digits("%.1f %%", "mfu", 100),
        "peak memory": memory("peak_bytes"),
    },
    "profile": {
        "kernel": words("kernel"),
        "shape": words("shape"),
        "time": digits("%.1f us", "gpu__time_duration.sum", 1e-3),
        "DRAM": percent("dram__throughput.avg.pct_of_peak_sustained_elapsed"),
        "L2": percent("lts__throughput.avg.pct_of_peak_sustained_elapsed"),
        "tensor pipe": tensor_pipe,
        "issue slots": percent("smsp__issue_active.avg.pct_of_peak_sustained_active"),
        "warps": percent("sm__warps_active.avg.pct_of_peak_sustained_active"),
        "registers": digits("%.0f", "launch__registers_per_thread"),
        "bank conflicts": digits("%.0f", "l1tex__data_bank_conflicts_pipe_lsu.sum"),
    },
    "ranks": {"several ranks": words("what"), "ranks": words("ranks"), "result": words("result")},
    "zero_memory": {
        "ZeRO stage": words("stage"),
        "ranks": words("ranks"),
        "bytes per parameter, measured": digits("%.3f", "bytes_per_parameter"),
        "by the paper": digits("%.3f", "expected"),
        "parameters": memory("parameters_bytes"),
        "gradients": memory("gradients_bytes"),
        "optimizer": memory("optimizer_bytes"),
        "peak": memory("peak_bytes"),
    },
    "not measured": {"not measured": words("what"), "why": words("why")},
}
OP = {
    "op": words("op"),
    "calls": digits("%.0f", "calls"),
    "time": digits("%.3f ms", "seconds", 1e3),
    "share": digits("%.1f %%", "share", 100),
}


def cells(kind, row):
    if kind == "train" and "error" in row:
        of = [text(row, "model"), text(row, "program"), "-", text(row, "layers", "-"), shape(row), text(row, "dtype")]
        return [*of, f"not measured: {text(row, 'error')}", "-", "-", "-"]
    return [cell(row) for cell in KINDS[kind].values()]


def table(head, rows, before=""):
    """Nothing where there are no rows."""
    if not rows:
        return ""
    lines = [[c.replace("|", "\\|").replace("\n", " ") for c in row] for row in [head, *rows]]
    lines = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([before + lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n\n"


def section(rows):
    """What one stage found."""
    out = ""
    for kind, columns in KINDS.items():
        out += table(columns, [cells(kind, row) for row in rows if text(row, "kind") == kind])
    for row in rows:
        if text(row, "kind") == "classes":
            out += (
                f"Where a step goes: {text(row, 'model')}, {shape(row)}, {text(row, 'dtype')}; "
                f"{fixed('%.2f ms', number(row, 'step_seconds'), 1e3)} with events around each op, which makes it slower.\n\n"
            )
            ops = row["ops"] if isinstance(row.get("ops"), list) else []
            out += table(OP, [[cell(op) for cell in OP.values()] for op in ops])
    return out + "".join(f"```\n{text(row, 'text')}\n```\n\n" for row in rows if text(row, "kind") == "text")


# ---- both programs side by side --------------------------------------------------------------------------------------


def of_kind(report, kind):
    """(stage, row) of every stage"""
    return [(name, r) for name, s in report["stages"].items() for r in s.get("rows", []) if text(r, "kind") == kind]


def identity(row):
    return [text(row, key) for key in ("model", "layers", "batch", "seq_len", "dtype", "state", "device")]


def failures(report):
    rows = [[stage, *(text(r, k) for k in ("name", "how", "message"))] for stage, r in of_kind(report, "failure")]
    return table(["stage", "what failed", "how", "its first or last words"], rows, "## What failed\n\n")


def beside_pytorch(report):
    """The same model, batch and device; PyTorch's fastest variant counts."""
    measured = [r for _, r in of_kind(report, "train") if number(r, "tokens_per_s") is not None]
    rows = []
    for ours in (r for r in measured if text(r, "program") == "ringzero"):
        others = [r for r in measured if text(r, "program").startswith("pytorch") and identity(r) == identity(ours)]
        if not others:
            continue
        best, mine = max(others, key=lambda r: r["tokens_per_s"]), ours["tokens_per_s"]
        name = text(ours, "model") + (", CUDA graphs" if ours.get("cuda_graphs") is True else "")
        rows.append([name, shape(ours), types(ours), f"{mine:.0f}", f"{best['tokens_per_s']:.0f}", text(best, "program"),
                     f"{mine / best['tokens_per_s']:.2f}"])  # fmt: skip
    head = ["model", "batch", "type", "ringzero tokens/s", "PyTorch tokens/s", "PyTorch variant", "ratio"]
    about = "The same model, batch and types of masters and moments in the same run, PyTorch's fastest variant."
    return table(head, rows, f"## Beside PyTorch\n\n{about}\n\n")


def fp8_beside_bf16(report):
    def alike(row):
        return [*identity(row), *(text(row, key) for key in ("recompute", "cuda_graphs", "moments"))]

    measured = [r for _, r in of_kind(report, "train") if number(r, "tokens_per_s") is not None]
    rows = []
    for fp8 in (r for r in measured if text(r, "fp8", "none") != "none"):
        for bf16 in measured:
            plain = text(bf16, "fp8", "none") == "none" and text(bf16, "program") == "ringzero"
            if plain and alike(bf16) == alike(fp8):
                a, b = fp8["tokens_per_s"], bf16["tokens_per_s"]
                rows.append([text(fp8, "model"), shape(fp8), text(fp8, "fp8"), f"{a:.0f}", f"{b:.0f}", f"{a / b:.2f}"])
                break
    head = ["model", "batch", "fp8", "tokens/s", "bf16 tokens/s", "ratio"]
    return table(head, rows, f"## fp8 beside bf16\n\nThe goal is {FP8_GOAL:.2f} at a 7B model's shape.\n\n")


def curve(ours, theirs):
    """Means over windows of ten steps, so that a single batch's noise does not decide."""
    a, b = ours.get("losses", []), theirs.get("losses", [])
    if len(a) != len(b) or not a:
        return f"## Loss curves\n\nringzero has {len(a)} steps, PyTorch {len(b)}: not compared.\n\n"
    steps = len(a)
    window = 10 if steps >= 50 else 1
    every = max(1, steps // window // 10)
    worst, rows = 0, []
    for first in range(0, steps - window + 1, window):
        x, y = (sum(losses[first : first + window]) / window for losses in (a, b))
        worst = max(worst, abs(x - y) / y)
        if first // window % every == 0 or first + 2 * window > steps:
            name = f"{first + 1} to {first + window}"
            rows.append([name, f"{x:.4f}", f"{y:.4f}", f"{100 * (x - y) / y:+.3f} %"])
    about = (
        f"## Loss curves\n\nThe same weights and data, {text(ours, 'model')}, {text(ours, 'dtype')}, {steps} steps, means "
        f"of {window}: they differ by at most {100 * worst:.3f} % ({'within' if worst <= CURVE_GOAL else '**beyond**'} the "
        "0.5 % asked for).\n\n"
    )
    return table(["steps", "ringzero", text(theirs, "program"), "difference"], rows, about)


def curves(report):
    rows = [r for _, r in of_kind(report, "curve")]
    ours = [r for r in rows if text(r, "program") == "ringzero"]
    theirs = [r for r in rows if text(r, "program").startswith("pytorch")]
    return "".join(curve(a, b) for a in ours for b in theirs if identity(a) == identity(b))


# ---- the report ------------------------------------------------------------------------------------------------------

METHOD = (
    "Rates count only the bytes or operations that an op cannot avoid, and are compared with a device copy or the largest "
    "GEMM measured in the same run. Training FLOPs per token: 6 per matrix parameter and 6 L H D T of causal attention; "
    "MFU = FLOPs per token x tokens/s / the vendor's dense bf16 peak (989 TFLOP/s for H100 and H200). Memory is the "
    "ledger's peak for ringzero and the allocator's for PyTorch. No bandwidth between ranks is reported from a shared GPU.\n"
)


class Wrong(Exception):
    pass


def read(folder):
    path = f"{folder}/report.json"
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as f:
            report = json.load(f)
        if report["version"] == 1 and isinstance(report["stages"], dict):
            return report
    except (ValueError, KeyError, TypeError):
        pass
    raise Wrong(f"{path} is no report of gpu_check: choose another --out")


def read_begun(folder):
    report = read(folder)
    if report is None:
        raise Wrong(f"{folder}/report.json is not there: begin first")
    return report


def write_whole(path, content):
    try:
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".tmp", path)
    except OSError as error:
        raise Wrong(f"can't write {path}: {error}") from error


def write(folder, report):
    dry, stages = report["dry_run"], report["stages"]
    md = f"# {'Dry run of the GPU check' if dry else 'GPU check: ' + text(report, 'device')}\n\n"
    if dry:
        md += f"**A dry run: the check's logic on the CPU ({text(report, 'device')}), at the smallest sizes. Nothing here is a measurement of a GPU.**\n\n"
    md += f"{text(report, 'date')}, commit {text(report, 'commit')}\n\n    {text(report, 'command')}\n\n"
    rows = []
    for name, stage in stages.items():
        status = text(stage, "status")
        if status == "running":
            status = "**was running when the check was killed**"
        elif status in ("failed", "timed-out", "interrupted", "not-run"):
            status = f"**{status}**"
        rows.append([name, status, fixed("%.0f", number(stage, "seconds")), text(stage, "note")])
    md += table(["stage", "result", "seconds", "note"], rows)
    md += failures(report) + beside_pytorch(report) + fp8_beside_bf16(report) + curves(report)
    md += "".join(f"## {name}\n\n{section(stage['rows'])}" for name, stage in stages.items() if stage.get("rows"))
    write_whole(f"{folder}/report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    write_whole(f"{folder}/report.md", md + METHOD)


def begin(folder, commit, device, date, command, dry_run, *stages):
    report = {"version": 1, "commit": commit, "device": device, "date": date, "command": command,
              "dry_run": dry_run == "1", "stages": {}}  # fmt: skip
    if old := read(folder):
        for key in ("commit", "device", "dry_run"):
            if old[key] != report[key]:
                was, now = json.dumps(old[key]), json.dumps(report[key])
                raise Wrong(f"{folder}/report.json has results with another {key} ({was}, now {now}): choose another --out")
        report["stages"] = old["stages"]
    for stage in stages:
        report["stages"][stage] = {"status": "not-run"}
    write(folder, report)


def rows_of(path):
    """One object per line; what a killed program left half written is counted, not kept."""
    rows, bad = [], 0
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            for line in filter(None, f.read().split("\n")):
                try:
                    row = json.loads(line)
                    row["kind"]
                    rows.append(row)
                except (ValueError, KeyError, TypeError):
                    bad += 1
    return rows, bad


def stage(folder, name, status, seconds, note, path=None):
    report = read_begun(folder)
    entry = {"status": status, "seconds": float(seconds), "note": note}
    if path:
        entry["rows"], bad = rows_of(path)
        if bad:
            entry["note"] += f" ({bad} lines of results were no JSON objects)"
    report["stages"][name] = entry
    write(folder, report)


def status(folder):
    report = read_begun(folder)
    well = {"ok", "unavailable", *(["not-measured"] if report["dry_run"] else [])}
    for name, entry in report["stages"].items():
        seconds = fixed("%.0f", number(entry, "seconds"))
        print(f"{name:12} {text(entry, 'status'):12} {seconds:>6} s  {text(entry, 'note')}")
    return any(text(entry, "status") not in well for entry in report["stages"].values())


def profile_rows(path, of_shape):
    """Lines of the profiler's own come first, then names, then units, then a line per kernel. Numbers may have commas."""
    names, kernels = [], 0
    with open(path, encoding="utf-8", errors="replace") as f:
        for fields in csv.reader(f):
            if fields[:1] == ["ID"]:
                names = fields
            if len(fields) != len(names) or not fields or not fields[0].isdigit():
                continue
            row = {"kind": "profile", "shape": of_shape}
            for name, value in list(zip(names, fields))[1:]:
                if name == "Kernel Name":
                    row["kernel"] = value.split("(")[0]
                elif name in ("Grid Size", "Block Size"):
                    row[name] = value
                elif "__" in name and re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value.replace(",", "")):
                    row[name] = float(value.replace(",", ""))
            print(json.dumps(row))
            kernels += 1
    return kernels == 0


def count_parameters(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        tensors = json.loads(f.read(length))
    return sum(math.prod(t["shape"]) for t in tensors.values() if "shape" in t)


def zero_row(path, weights, stage_of):
    """bf16 parameters and gradients, fp32 master, m and v: table 1 of Rajbhandari et al. 2020. Of the rank that keeps most."""

    def kept(peak):
        return sum(peak[kind] for kind in ("parameters", "gradients", "optimizer"))

    with open(path, encoding="utf-8") as f:
        peaks = [rank["memory_peak"] for rank in json.load(f)]
    parameters, n, most = count_parameters(weights), len(peaks), max(peaks, key=kept)
    expected = (16, 4 + 12 / n, 2 + 14 / n, 16 / n)[int(stage_of)]
    measured = kept(most) / parameters
    row = {"kind": "zero_memory", "stage": int(stage_of), "ranks": n, "parameters": parameters,
           "bytes_per_parameter": measured, "expected": expected, "peak_bytes": most["total"]}  # fmt: skip
    print(json.dumps(row | {f"{kind}_bytes": most[kind] for kind in ("parameters", "gradients", "optimizer")}))
    return measured > 1.005 * expected


COMMANDS = {"begin": begin, "stage": stage, "status": status, "profile-rows": profile_rows, "zero-row": zero_row}


def main():
    command, arguments = COMMANDS.get(sys.argv[1] if sys.argv[1:] else ""), sys.argv[2:]
    try:
        return int(command(*arguments) or 0)
    except (Wrong, TypeError, OSError, ValueError, KeyError) as error:
        print(f"gpu_report: {error if command else __doc__}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
