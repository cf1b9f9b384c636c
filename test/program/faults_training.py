"""Cases of test_faults.py about training: signals, deaths, numbers, what a run has written, memory, other ranks and libraries."""

import array
import json
import math
import re
import resource
import shutil
import signal
import time

import checks
from checks import check, copy, equal, expect, remove, run, same_rows, same_weights, skip, weights, work
from fault_runs import DATA, PROGRAM, QUICK, RESUMED, STEP_6, TRAIN
from fault_runs import background, gone, one, rows, shim, shim_env, status, version_1, wait_for_step

# ---- signals, deaths, hangs ----


def sigterm_to_mpirun():
    job = background("a", fault="step:*:*:sleep=0.2")
    wait_for_step(job, "a", 3)
    job.signal(signal.SIGTERM)
    # The launcher's own code: 75 where it outlives the ranks, else what it makes of the signal. The run's is in run_status.
    expect("mpirun", job.wait(), code=lambda code: code != 0, says="stopped  after step [3-7]: SIGTERM on rank")
    equal("run_status", (status("a", "state"), status("a", "exit_code")), ("stopped", 75))
    equal("saved where it stopped", checks.checkpoints("a")[-1], str(status("a", "step")))
    rows(f"a {RESUMED}")


def ctrl_c():
    # The save that the first one asks for is slow, so that the second comes in the middle of it.
    slow = "step:*:*:sleep=0.1,checkpoint.shard.done:0:4+:sleep=40"
    job = background("a", "--batch 3 --steps 100 --save-every 50", ranks=1, fault=slow)
    wait_for_step(job, "a", 51)
    job.signal(signal.SIGINT)
    time.sleep(0.7)
    began = time.monotonic()
    job.signal(signal.SIGINT)
    expect("two SIGINT", job.wait(), code=130)
    check("two SIGINT: at once", time.monotonic() - began < 30)
    check("two SIGINT: the last checkpoint is whole", "50" in checks.checkpoints("a"))
    rows("a 1 --resume auto --steps 52 --allow-lr-jump | there")
    job = background("m", "--steps 100", fault="step:*:*:sleep=0.2")
    wait_for_step(job, "m", 2)
    job.signal(signal.SIGINT)
    expect("one SIGINT to mpirun", job.wait(), code=75)


def time_limit():
    said = "says stopped  after step [0-9]+: the time limit; the last checkpoint is of step"
    rows(f"a 3 --steps 1000 --time-limit 10 | fault step:*:*:sleep=0.1 | code 75 | {said}")
    check("not at the first step", status("a", "step") > 3)
    rows(f"b 3 --steps 1000 | fault step:*:*:sleep=0.1 | code 75 | with SLURM_JOB_END_TIME={int(time.time()) + 8}")


def killed_rank():
    rows("a 3 | fault step:1:5:kill | fails | status state=running")
    check("no orphan", gone("a"))
    rows(f"a {RESUMED}")


def stopped_rank():
    failed = "status state=failed exit_code=71"
    rows(f"a 3 --timeout 3 | fault step:1:5:stop | fails | {failed} | says rank 1 .*step 5.*(silent|stopped)")
    check("no orphan", gone("a"))
    check("its reason names the rank", "rank 1" in status("a", "reason"))
    rows(f"a {RESUMED}")


def slow_rank():
    named = rows.row("a 3 --steps 14 | fault step:2:*:sleep=0.15 | says slow     rank 2 computes")
    equal("in one line of a hundred steps", named.count("^slow "), 1)
    check("in the metrics", any(row["slow_rank"] == 2 for row in checks.rows("a", "slow_rank")))


def before_mpi():
    """A rank that ends before MPI is there: its job ends with it, long before --timeout."""
    for how in (
        dict(at=1),
        dict(at=40),
        dict(at=1, before_main=1, do="abort"),
        dict(at=40, do="abort"),
        dict(at=40, do="throw"),
    ):
        env = shim_env(**{"kinds": "memory", "rank": 1, "do": "ENOMEM", **how})
        ended = run(rows.by(3), ["--out", work / "a"], TRAIN, "--timeout 600", env=env)
        if "before_main" in how and not ended.says("^FAULT: "):
            skip("this program asks for nothing before main()")
            continue
        words = ["^FAULT: ", "train_llama: (out of memory|crashed before main|aborted;)"]
        expect(f"{how}", ended, checks.dies, words, silent="start-up did not end")
        check(f"{how}: nothing of the job is left", gone("a"))


def aborts():
    """An end from inside a library, wherever it is: words and 70, never a bare signal; the next start continues."""
    rows("whole1 1")
    said = "aborted; the line above says why"
    for how, words in ("abort", said), ("terminate", said), ("throw", "out of memory where nothing can be undone"):
        hit = shim(paths=work / "a/checkpoints/.tmp", at=20, do=how)
        rows(f"a 1 | {hit} | code 70 | says train_llama: {words}")
        expect(f"{how}: the next start", one("a", "--resume auto"))
        same_weights(f"{how}: the next start", "a", "whole1")
    job = background("b", ranks=1, fault="step:*:*:sleep=0.3")
    wait_for_step(job, "b", 2)
    job.signal(signal.SIGABRT)
    expect("SIGABRT", job.wait(), code=70, says=f"train_llama: {said}")


def hangup_and_clocks():
    job = background("a", ranks=1, fault="step:*:*:sleep=0.3")
    wait_for_step(job, "a", 2)
    job.signal(signal.SIGHUP)
    expect("SIGHUP", job.wait(), code=75)
    check("SIGHUP: saved", checks.checkpoints("a"))
    slow = "fault step:*:*:sleep=0.3"
    rows(f"""
        a 1 --time-limit 1h | {shim(clock="1:86400")} | {slow} | says clock jumps
        b 1 --steps 1000 --time-limit 6 | {shim(clock="1:-86400")} | {slow} | code 75
    """)


# ---- numbers ----


def part(out, step, name):
    return (work / out / f"checkpoints/step_{step:09}" / name).read_bytes()


def nan_gradient():
    for stage in [2] if QUICK else range(4):
        for kind in ["nan"] if QUICK else ["nan", "inf"]:
            skipped = "says step +5/8 .*update skipped [(]1 so far[)]"
            rows(f"a 3 --zero {stage} --save-every 1 --keep 0 | fault gradient:1:5:{kind} | {skipped}")
            for name in "model.safetensors", "optimizer/m.safetensors", "optimizer/v.safetensors":
                before, skipped, after = (part("a", step, name) for step in (4, 5, 6))
                check(f"{kind}, stage {stage}: {name} untouched", before == skipped)
                check(f"{kind}, stage {stage}: {name} moves again", skipped != after)


def resume_across_skip():
    """The count of updates that AdamW's bias correction goes by comes from the manifest."""
    rows("""
        w 3 --zero 1 | fault gradient:1:3:nan | other than whole
        a 3 --zero 1 | fault gradient:1:3:nan,step:0:5:term | code 75
    """)
    manifest = copy("a", "b") / STEP_6 / "manifest.json"
    equal("the manifest counts updates", json.loads(manifest.read_text())["updates"], 5)
    version_1(manifest, "updates")
    rows("""
        a 3 --resume auto | there | weights of w
        b 3 --resume auto | there | other than w
    """)


def finite(out):
    """No NaN or infinity in any tensor of any checkpoint."""
    files = list((work / out / "checkpoints").glob("step_*/**/*.safetensors"))
    found = [data for file in files for _, _, data in checks.tensors(file).values()]
    return bool(found) and all(map(math.isfinite, array.array("f", b"".join(found))))


def nan_in_a_row():
    failed = "code 72 | status state=failed exit_code=72"
    rows(f"a 3 --max-skips 3 | fault gradient:1:5+:inf | {failed} | says not finite 3 steps in a row, up to step 7")
    check("no final weights", not (work / "a/final").exists())
    check("all checkpoints finite", finite("a"))
    rows("a 3 --resume auto | there")


def nan_state():
    check("no final weights are written", not (work / "c/final").exists())


def loss_spike():
    spikes = "--steps 34 --save-every 1"
    rows(f"""
        a 3 {spikes} --keep 0 | fault loss:*:30:spike | says step +30/34 .*spike of the loss, z [0-9]+
        b 3 {spikes} | fault step:0:25:term | code 75
        c 3 {spikes} --on-spike stop | fault loss:*:30:spike | code 72 | steps 28 29
    """)
    rows(f"b 3 --resume auto | there | fault loss:*:{30 - status('b', 'step')}:spike")
    said = [[row["loss_z"] for row in checks.rows(out, "loss_z") if row["step"] == 30] for out in ("a", "b")]
    check("the resumed detector says the same", said[0] and said[0] == said[1], said)


def rollback():
    """Back before the spike and on without the data in between: the same weights however often it is killed after that."""
    equal("metrics, every step once", [row["step"] for row in checks.rows("r")], list(range(1, 41)))
    equal("the event", [(row["step"], row["rollback"]["from"]) for row in checks.rows("r", "rollback")], [(20, 30)])
    # 10 steps from 20 to 30 and 3 more, of 3 sequences each, are left out: step 25 ends at sequence 3 * (25 + 13).
    manifest = checks.load("r/checkpoints/step_000000025/manifest.json")
    equal("the manifest", (manifest["samples"], manifest["step"]), (114, 25))
    equal("  its rollbacks", [(r["from"], r["to"], r["samples"]) for r in manifest["rollbacks"]], [(30, 20, 39)])


# ---- memory, libraries ----


def bad_flags():
    expect("FAULT", one("a", fault="checkpoint.shart"), code=70, says="nearest: checkpoint.shard")


def address_space(kib):
    """For a process to call before it becomes the program."""
    return lambda: (
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        resource.setrlimit(resource.RLIMIT_AS, (kib * 1024, kib * 1024)),
    )


def out_of_memory():
    flags = f"--preset llama3.1-8b {DATA} --batch 1 --seq-len 64 --out {work}/a"
    expect("too little", run([PROGRAM], flags, before=address_space(3000000)), code=70, says="GiB")
    check("no partial checkpoint", not (work / "a/checkpoints").exists())


def memory_limits():
    """From too little memory for a start to enough: a message each time, never a signal. What ends a start before the loader hands over
    to the program is not the program's: 126, 127, and crashes in the constructors of libraries (UCX's has some)."""
    least = (
        shutil.os.stat(PROGRAM).st_size // 1024 + 12000
    )  # below it the kernel ends a start while it maps the program
    env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": work / "loader"}
    for command in (
        f"{TRAIN} --threads 1 --out {work}/a",
        f"generate --from {work}/whole --prompt def --max-tokens 4 --device cpu --threads 1",
        f"export --from {work}/whole --to {work}/exported --overwrite",
    ):
        limit, bad, code, name = least, [], None, command.split()[0]
        while limit < 8000000 and code != 0:
            remove(work / "a", *work.glob("loader.*"))
            ended = run([PROGRAM], command, env=env, before=address_space(limit))
            code = ended.code
            begun = any(
                f"transferring control: {PROGRAM}" in f.read_text(errors="replace") for f in work.glob("loader.*")
            )
            if code in (70, 71, 126, 127) and not ended.text or code not in (0, 70, 71, 126, 127) and begun:
                bad.append((limit, code))
            limit += limit // 12
        equal(f"{name}: enough in the end", code, 0)
        equal(f"{name}: no limit ends in a signal or silently", bad, [])


def copy_fails():
    """The copy of the state for saves in the background is allocated at the start; where that fails, training waits for each save. Its
    place is the one buffer that a run with --no-background-save has not."""
    sites = []
    for name, flags in ("with", ""), ("without", "--no-background-save"):
        trace = work / f"trace-{name}"
        rows(f"{name} 1 --threads 1 {flags} | {shim(kinds='memory', trace=trace)}")
        words = [line.split() for line in trace.read_text().splitlines()]
        sites.append({w[1] for w in words if len(w) > 3 and w[3] in ("aligned_alloc", "posix_memalign")})
    said = []
    for site in sorted(sites[0] - sites[1]):
        env = shim_env(kinds="memory", site=f"{site}:1", do="ENOMEM")
        remove(work / "a")
        ended = one("a", "--threads 1", env=env)
        if ended.says("no memory for a copy of the state .*training waits for each checkpoint"):
            said.append((ended.code, checks.checkpoints("a"), weights("a") == weights("with")))
    equal("one place is the copy's: said at the start, and the same", said, [(0, ["6", "8"], True)])


def libraries_fail():
    """Threads that OpenMP or the program asks for, and allocations inside oneDNN, fail one at a time: words and an exit code of the table,
    or the undisturbed weights; no loss is printed that is not the undisturbed run's."""

    def printed(text):
        return set(re.findall(r"^(step +[0-9]+/[0-9]+ \| loss [^ ]+)", text, re.M))

    flags = "--threads 3 --steps 3 --log-every 1"
    rows("a 1 --threads 65536 | code 2 | says nearest: --threads ")
    losses = printed(rows.row(f"w 1 {flags}").text)
    bad, reached = [], 0
    for what, calls in ("threads", (*range(1, 11), 12, 14)), ("libdnnl", (1, 8, 11, 64, 128, 512)):
        kinds = dict(kinds="threads") if what == "threads" else dict(kinds="memory", module="libdnnl")
        for call in calls:
            remove(work / "a")
            ended = one("a", flags, limit=60, env=shim_env(**kinds, at=call, do="ENOMEM"))
            if not ended.says("^FAULT: "):
                continue
            reached += 1
            good = (
                weights("a") == weights("w")
                if ended.code == 0
                else ended.code == 70 and ended.says("train_llama: [^ ]+ [^ ]+")
            )
            if not good or not printed(ended.text) <= losses:
                bad.append((what, call, ended.code))
    check("each with words or the same weights, and no other loss", not bad and reached > 10, f"{reached} {bad}")
    first = shim(kinds="memory", module="libdnnl", rank=0, at=300, do="ENOMEM")
    words = "says rank 0 of 2: out of memory: an allocation of the host failed | silent ^step +[0-9]+/[0-9]+ [|] loss"
    rows(f"p 2 --threads 1 --log-every 1 --pp 2 --batch-tokens 64 | {first} | code 70 | {words}")


# ---- what a run has written ----
# Validations at 3, 6, 9; samples with every second of them; evaluations at 2, 4, 6, 8, 10; checkpoints at 3, 6, 9, 10
WRITTEN = "--steps 10 --val-every 3 --sample-every 2 --sample-tokens 4 --stats-every 3 --save-every 3 --keep-every 6 --wandb p"
WRITTEN += " --eval-every 2 --eval-tasks piqa --eval-data test/golden/eval --eval-limit 3 --seq-len 64"


def stopped_when_due():
    """Every kind of thing that is due, at a step at which the run is asked to stop: the same rows and checkpoints as if nobody had
    asked."""

    def due(out, flags="", **more):
        return run(
            [PROGRAM],
            ["--out", work / out],
            TRAIN,
            WRITTEN,
            ["--after-save", "echo $RINGZERO_STEP >> $RINGZERO_OUT/saw"],
            flags,
            **more,
        )

    def kept(out):
        manifest = checks.load(out, "checkpoints/step_000000010/manifest.json")
        return [manifest[key] for key in ("validations", "samples", "data_hash", "guards")], "reports_due" in manifest

    def timeless(out, key):
        return [{k: v for k, v in row.items() if k != "time"} for row in checks.rows(out, key)]

    def saw(out):
        return set((work / out / "saw").read_text().split())

    expect("undisturbed", due("u"))
    equal("undisturbed: checkpoints", checks.checkpoints("u"), ["6", "9", "10"])
    equal("undisturbed: reports", [len(checks.rows("u", key)) for key in ("val_loss", "eval", "sample")], [5, 5, 2])
    for step, how in [(6, "term")] if QUICK else [(6, "term"), (3, "usr1"), (4, "int"), (8, "limit")]:
        what = f"{how} in step {step}"
        remove(work / "a")
        if how == "limit":  # a limit that is over when its step ends
            stopped = due("a", "--time-limit 8", fault=f"step:0:{step}:sleep=9")
        else:
            stopped = due("a", fault=f"step:0:{step}:{how}")
        expect(what, stopped, code=75)
        equal(f"{what}: stopped after it", status("a", "step"), step)
        manifest = checks.load("a", f"checkpoints/step_{step:09}/manifest.json")
        check(f"{what}: its reports are still to be made", manifest["reports_due"] is True, manifest)
        if how == "term":  # killed after they are made, and before anything is saved
            # Rows are written beside training (llama/base/background.h): they have a second.
            due("a", "--resume auto", fault="step:0:2:sleep=1,step:0:2:kill")
            check(
                f"{what}: made by the next start, which is killed",
                any(row["step"] == 6 for row in checks.rows("a", "val_loss")),
            )
        expect(f"{what}: resumed", due("a", "--resume auto"))
        for kind in "val_loss", "eval", "sample":
            equal(f"{what}: every {kind} row", timeless("a", kind), timeless("u", kind))
        same_rows(what, "a", "u")
        equal(f"{what}: the manifest's counts", kept("a"), kept("u"))
        equal(f"{what}: the same checkpoints stay", checks.checkpoints("a"), checks.checkpoints("u"))
        check(f"{what}: --after-save has seen what it would have", saw("u") <= saw("a"))
        same_weights(what, "a", "u")


def killed_when_saved():
    """A kill right after a checkpoint has appeared: what was logged before it is in its files."""
    rows(f"u 1 {WRITTEN}")
    for save in 1, 2:
        # The log's thread is late with every row.
        rows(f"a 1 {WRITTEN} | fault log.write:0:*:sleep=0.1,checkpoint.renamed:0:{save}:kill | fails")
        for key in "loss", "val_loss":
            check(
                f"save {save}: the {key} of its step is there",
                any(row["step"] == 3 * save for row in checks.rows("a", key)),
            )
        expect("resumed", run([PROGRAM], ["--out", work / "a"], TRAIN, WRITTEN, "--resume auto"))
        same_rows(f"save {save}, resumed", "a", "u")


def killed_before_a_save():
    """The flags of a start are the run's from its first step: a kill before the next save, and a plain --resume auto."""
    second = checks.text_data("300K", to="data-b")
    rows(f"b 1 --threads 1 --data {work}/data:0.5,{second}:0.5 --steps 12 | fault step:0:4:term | code 75")
    more = checks.Table(PROGRAM, "--device cpu --threads 1")

    def manifest(out):
        return (work / out / "checkpoints/step_000000004/manifest.json").read_text()

    more("plain 1 --resume auto | from b | fault step:0:2:kill | fails")
    equal("nothing changed: the manifest stays as it is", manifest("plain"), manifest("b"))
    more("plain 1 --resume auto | there")
    for flags in (
        "--rewarm 3 --lr 2e-3",
        "--lr 5e-3 --allow-lr-jump",
        "--lr-continue --min-lr 1e-4 --steps 14",
        f"--data {work}/data:0.9,{second}:0.1 --allow-data-change",
        f"--data {work}/data --allow-data-change",
        "--batch-tokens 64",
        "--clip 0.01 --weight-decay 0.5",
    ):
        more(f"""
            w 1 --resume auto {flags} | from b | other than plain
            a 1 --resume auto {flags} | from b | fault step:0:2:kill | fails | steps 2 4
            a 1 --resume auto | there | weights of w
        """)
        same_rows(flags, "a", "w")
    # From another run's folder: the checkpoint becomes one of its own before the first step.
    branch = f"1 --resume {work}/b --branch 4 --steps 10"
    more(f"""
        w {branch}
        a {branch} | fault step:0:2:kill | fails
        a 1 --resume auto | there | weights of w
    """)


def record_of_another_rank():
    """The one record of a run: another rank that fails forgets nothing of it, and nothing begins over what was saved."""
    rows("a 3 | fault step:1:6:error | code 70 | status rank=1")
    check("says why", "an error at step" in status("a", "reason"))
    check("what was saved stays in it", status("a", "saved_step") >= 2)
    remove(work / "a/checkpoints")
    metrics = (work / "a/metrics.jsonl").read_bytes()
    gone = "run_status.json says that step [24] was saved.*, but no checkpoint to resume from"
    expect("without the checkpoints", run(rows.by(3), ["--out", work / "a"], TRAIN, "--resume auto"), code=2, says=gone)
    check("  metrics.jsonl stays", (work / "a/metrics.jsonl").read_bytes() == metrics)
    (work / "a/run_status.json").write_text("")
    unread = "run_status.json, which can't be read, may tell of a checkpoint"
    expect("an empty record", run(rows.by(3), ["--out", work / "a"], TRAIN, "--resume auto"), code=2, says=unread)


def token_in_no_record():
    """A command of the user may hold a token: no file of the run shows it, in text, TensorBoard's events or the file for W&B."""
    rows("a 1 --wandb p --stats-every 2 --after-save 'true token-4711' | says runs: true token-4711")
    rows(
        "a 1 --resume auto --steps 10 --allow-lr-jump '--after-save=true token-4711' --before-resume 'true token-4711' | there"
    )
    for pattern in "wandb/offline-run-*/run-*.wandb", "events.out.tfevents.*":
        check(f"{pattern} is there", list((work / "a").glob(pattern)))
    found = [str(file) for file in (work / "a").rglob("*") if file.is_file() and b"token-4711" in file.read_bytes()]
    equal("no file has it", found, [])
