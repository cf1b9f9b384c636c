#!/usr/bin/env python3
"""The plan beside the ledger: `train_llama plan` and a run of the same flags, for a set of runs in which every pair of settings
occurs. Peak memory of every kind on every rank, and bytes sent, must be equal; what the plan refuses, the run refuses, both with 2.

  test/program/plan_grid.py PROGRAM                                   the CPU, all pairs at 1 to 4 ranks
  test/program/plan_grid.py PROGRAM --most-ranks 8                    at 1 to 8 ranks, and with more flags
  test/program/plan_grid.py PROGRAM --fp8 --most-ranks 8              products and gathers in fp8, another model
  test/program/plan_grid.py PROGRAM --muon                            Muon and NorMuon, with fewer of the other flags
  test/program/plan_grid.py PROGRAM --cuda ./train_llama_simt         CUDA's choices, on the emulator
  ... --rows 8 --table FILE --seed 2 --capability 9.0                 the first rows only; the table as Markdown; that device's
"""

import itertools
import json
import random
import subprocess

from checks import MACHINE, check, end, load, options, remove, run, shard, split, work

KINDS = ["parameters", "gradients", "optimizer", "gathered", "activations", "comm", "workspace", "data", "total"]

# "": the flag is left out.
SETTINGS = {
    "ranks": ["1", "2", "3", "4"],
    "zero": ["0", "1", "2", "3"],
    "recompute": ["", "mlp", "norms,attention", "block"],
    "dtype": ["fp32", "bf16"],
    "grad-dtype": ["", "bf16"],
    "adam-dtype": ["", "bf16"],
    "master-dtype": ["", "bf16"],
    "wire-dtype": ["", "fp32", "bf16"],
    "batch": ["1", "3"],
    "grad-accum": ["1", "2", "6"],
    "collectives": ["", "direct", "library", "symmetric"],
    "ring-chunk": ["", "1"],
    "no-overlap": ["", "on"],
    "prefetch": ["", "0", "3"],
    "bucket-mib": ["", "1"],
    "accumulate-locally": ["", "on"],
    "shard-size": ["", "2"],
    "head": ["", "tied"],
    "logits-mib": ["", "1"],
    "tp": ["", "2"],
    "pp": ["", "2"],
    "pp-schedule": ["", "gpipe", "1f1b", "zb-v"],
    "pp-gather": ["", "step"],
    "save-every": ["0", "2"],
    "no-background-save": ["", "on"],
    "val-every": ["0", "2"],
    "check-wire": ["", "2"],
    "stats-every": ["", "1", "2"],
}
# Settings of --most-ranks 8 beside those: more ranks, context parallelism, fp16, masks, readers.
MORE_SETTINGS = {
    "ranks": ["1", "2", "3", "4", "5", "6", "7", "8"],
    "dtype": ["fp32", "bf16", "fp16"],
    "pp-schedule": ["", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipev"],
    "cp": ["", "2"],
    "cp-exchange": ["", "ring"],
    "tp-overlap": ["", "on"],
    "doc-mask": ["", "bos"],
    "ema": ["", "0.9"],
    "data-threads": ["", "0"],
}
# Settings of --fp8 instead: products need sides that are multiples of 16.
FP8_SETTINGS = {
    "fp8": ["tensor"],
    "fp8-gather": ["", "off"],
    "fp8-keep-weights": ["", "on"],
    "fp8-skip-blocks": ["", "1,1"],
    "dtype": ["bf16"],
    "collectives": ["", "direct"],
    "pp-schedule": ["", "1f1b", "zb-v", "dualpipe"],
    "cp": ["", "2"],
    "stats-every": ["", "2"],
    "head": [""],
    "ring-chunk": [""],
    "bucket-mib": [""],
    "logits-mib": [""],
    "check-wire": [""],
    "no-background-save": [""],
    "tp-overlap": ["", "on"],
}
# Settings of --muon beside its own; of the others the first value.
MUON_SETTINGS = {
    **{name: values[:1] for name, values in SETTINGS.items()},
    **{name: SETTINGS[name] for name in ("ranks", "zero", "dtype", "tp", "pp", "save-every", "head")},
    "optimizer": ["muon"],
    "muon-beta2": ["", "0.9"],
    "muon-blocks": ["", "tp"],
    "muon-dtype": ["", "fp32"],
}
MODEL = "--dim 32 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --vocab 9200 --seq-len 24"
FP8_MODEL = "--dim 64 --heads 4 --kv-heads 4 --ffn 96 --head-dim 16 --vocab 512 --seq-len 32"
SWITCHES = {"no-overlap", "accumulate-locally", "no-background-save"}


def sensible(row):
    """Left out: what the command line refuses because it does nothing, and what a run of 6 steps can't be."""
    zero, pp, ranks = int(row["zero"]), int(row["pp"] or 1), int(row["ranks"])
    tp, cp = int(row["tp"] or 1), int(row.get("cp") or 1)
    refused = (
        ranks % (tp * pp * cp),
        tp > 1 and pp > 1 and ranks < 8,
        row.get("cp-exchange") and cp == 1,
        row.get("tp-overlap") and tp == 1,
        row["grad-dtype"] and row["dtype"] != "bf16",
        row["dtype"] == "fp16" and row["wire-dtype"] == "bf16",
        row["pp-schedule"].startswith("dualpipe") and row["grad-accum"] != "6",
        row["prefetch"] and (zero != 3 or (row["no-overlap"] and row["prefetch"] != "0")),
        row["accumulate-locally"] and zero < 2,
        row["shard-size"] and (zero == 0 or ranks // (tp * pp * cp) % 2),
        row["master-dtype"] and (row["dtype"] != "bf16" or row.get("ema")),
        (row["pp-schedule"] or row["pp-gather"]) and pp == 1,
        pp > 1 and (row["grad-accum"] == "1" or (row["head"] and row["pp-schedule"])),
        row.get("fp8-gather") and zero != 3,
        row.get("fp8-keep-weights") and zero == 3,
        row["check-wire"] and row["collectives"] in ("library", "symmetric"),
        row.get("muon-blocks") and (tp == 1 or row["muon-beta2"]),
        row["bucket-mib"] and pp > 1,
        row["pp-gather"] and (zero != 3 or row["no-overlap"]),
        row["no-background-save"] and row["save-every"] == "0",
    )
    return not any(refused)


def pairs_of(row, bits):
    """The pairs of settings as bits of a number; `bits` has the bit of each pair that was met."""
    pairs = 0
    for pair in itertools.combinations(sorted(row.items()), 2):
        pairs |= 1 << bits.setdefault(pair, len(bits))
    return pairs


def drawn_rows(rng, cuda, settings):
    """Sensible rows, one after the other."""
    even = [n for n in settings["ranks"] if int(n) % 2 == 0]
    while True:
        row = {name: rng.choice(values) for name, values in settings.items()}
        if cuda:  # a pipeline of GPUs sends over NCCL, which the emulator's ranks do not
            row.update({"pp": "", "pp-schedule": "", "pp-gather": ""})
        elif int(row["pp"] or 1) > 1 or rng.random() < 0.2:
            row.update({"pp": "2", "ranks": rng.choice(even), "grad-accum": rng.choice("26")})
        if sensible(row):
            yield row


def covering_rows(seed, cuda, settings):
    """Rows in which every pair that a sensible row can have occurs, found greedily."""
    rng, bits = random.Random(seed), {}
    pool = [(row, pairs_of(row, bits)) for row in itertools.islice(drawn_rows(rng, cuda, settings), 20000)]
    missing = (1 << len(bits)) - 1
    rows = []
    while missing:
        row, found = max(rng.sample(pool, 1500), key=lambda one: (one[1] & missing).bit_count())
        if not found & missing:
            row, found = max(pool, key=lambda one: (one[1] & missing).bit_count())
        rows.append(row)
        missing &= ~found
    return rows


def flags_of(row):
    flags = []
    for name, value in row.items():
        if name != "ranks" and value:
            flags += [f"--{name}"] if name in SWITCHES else [f"--{name}", value]
        if name == "doc-mask" and value:
            flags += ["--doc-token", "0"]
    return flags


class Grid:
    def __init__(self, program, cuda="", capability="9.0", fp8=False):
        self.program, self.cuda, self.machine = program, cuda, work / "machine.toml"
        tokens = work / "tokens.bin"
        tokens.write_bytes(shard([i * 7919 % 251 for i in range(6000)]))
        kind = "gpu" if cuda else "cpu"
        self.machine.write_text(f'kind = "{kind}"\n{MACHINE}compute-capability = {capability}\n')
        self.common = (
            f"--preset bytes {FP8_MODEL if fp8 else MODEL} --layers 4 --steps 3 --lr 1e-3 --warmup 1 --threads 1 "
            f"--val-tokens {64 if fp8 else 48} --train-data {tokens} --val-data {tokens}"
            f"{' --transport mpi' if cuda else ''}"
        )

    def plan(self, row, out, program, flags):
        """JSON, or None where it is refused; exit code and what was said."""
        asked = f"plan --gpus {row['ranks']} --gpu {self.machine} --json - --out {out}"
        command = split([[program], asked, self.common, flags])
        done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None, (done.returncode, done.stderr)

    def run(self, row, out):
        remove(out)
        start = ["mpirun", "-n", row["ranks"]] if row["ranks"] != "1" else []
        device = f"--device {'cuda' if self.cuda else 'cpu'} --out {out}"
        done = run(start, [self.cuda or self.program], device, self.common, flags_of(row), limit=900)
        made = done.code == 0 and (out / "ranks.json").exists()
        return load(out, "ranks.json") if made else None, (done.code, done.text)

    def compare(self, row):
        """What differs, by rank and kind; peak of the largest rank; what was refused."""
        out = work / "run"
        plan, (plan_code, plan_said) = self.plan(row, out, self.program, flags_of(row))
        run, (run_code, run_said) = self.run(row, out)
        if plan is None and run is None and plan_code == run_code == 2:
            return [], 0, (plan_said.strip() or "refused").splitlines()[-1]
        if plan is None or run is None:
            return [f"plan: {plan_code} {plan_said.strip()[-300:]}; run: {run_code} {run_said.strip()[-300:]}"], 0, ""
        wrong = []
        for planned, real in zip(plan["planned_ranks"], run, strict=True):
            for kind in KINDS:
                if planned["memory_peak"][kind] != real["memory_peak"][kind]:
                    wrong.append(
                        f"rank {real['rank']}: {kind} planned {planned['memory_peak'][kind]}, taken {real['memory_peak'][kind]}"
                    )
                # Plans are of NCCL; through what CUDA over MPI is staged on the host is in the run alone.
                host = [dict(one.get("host_memory_peak", {})) for one in (planned, real)]
                for one in host:
                    one["total"] = one.get("total", 0) - one.pop("comm", 0)
                here, there = (one.get(kind, 0) for one in host)
                if here != there:
                    wrong.append(f"rank {real['rank']}: {kind} on the host planned {here}, taken {there}")
            sent = planned["bytes_sent_first_step"]
            for step in range(2, real["steps"] + 1):
                watched = row["stats-every"] and step % int(row["stats-every"]) == 0
                sent += planned["bytes_sent_watched_step" if watched else "bytes_sent"]
            if sent != real["bytes_sent"]:
                wrong.append(f"rank {real['rank']}: planned to send {sent}, sent {real['bytes_sent']}")
        return wrong, max(r["memory_peak"]["total"] for r in run), ""


def main():
    o = options(
        "program", cuda="", capability="9.0", most_ranks=(4, 8), fp8=False, muon=False, rows=0, table="", seed=1
    )
    settings = SETTINGS if o.most_ranks == 4 else {**SETTINGS, **MORE_SETTINGS}
    if o.fp8:
        settings = {**settings, **FP8_SETTINGS, "ranks": [n for n in settings["ranks"] if n in "1248"]}
    if o.muon:
        settings = MUON_SETTINGS
    every = covering_rows(o.seed, bool(o.cuda), settings)
    rows = every[: o.rows or None]
    refusals, lines = 0, []
    grid = Grid(o.program, o.cuda, o.capability, o.fp8)
    for number, row in enumerate(rows, 1):
        wrong, peak, refused = grid.compare(row)
        text = " ".join(flags_of(row))
        refusals += bool(refused)
        if refused:
            print(f"row {number} is refused: {refused}", flush=True)
        check(f"row {number}, {row['ranks']} ranks, {text}", not wrong, "\n".join(wrong))
        result = "refused by both" if refused else f"{peak:,}"
        difference = "-" if refused else "0" if not wrong else "; ".join(wrong)
        lines.append(f"| {number} | {row['ranks']} | `{text}` | {result} | {difference} |\n")
    if o.table:
        with open(o.table, "w") as file:
            file.write(
                "| row | ranks | flags | peak of the largest rank, bytes | difference of any kind on any rank, and of bytes sent |\n"
                "|---|---|---|---|---|\n" + "".join(lines)
            )
    print(f"{len(rows)} of {len(every)} rows, in which every pair of settings occurs")
    print(f"{refusals} of them refused by plan and run")
    end()


if __name__ == "__main__":
    main()
