"""Cases of test_faults.py about files: checkpoints, disks, data, weights, the output folder."""

import os
import re
import resource
import shutil
import time

import checks
from checks import check, copy, edit, equal, expect, flip_bit, remove, run, skip, weights, work
from fault_runs import DATA, PROGRAM, QUICK, RESUMED, SHAPE, STEP_6, TRAIN
from fault_runs import background, can_mount, damaged, one, rows, shim, shim_env, version_1, wait_for_step


# ---- checkpoints ----


def kill_in_save():
    """A kill at each point of the second or third save; the rank and how many times it came by are in the fault."""
    faults = "shard.done:1:5 rename:0:2"
    if not QUICK:
        faults = """mkdir:0:2 made:0:2 snapshot:0:2 snapshot:1:2 shard:0:4 shard:1:5 shard.done:0:4 shard.done:1:6 fsync:0:5 fsync:1:4
            agreed:0:2 manifest:0:2 manifest.done:0:2 rename:0:2 renamed:0:2 latest:0:2 gc:0:1 gc.done:0:1"""
    for fault in faults.split():
        rows(f"""
            a 3 | fault checkpoint.{fault}:kill | fails | says fault: rank
            a {RESUMED} | says resumed  .*step_ | steps 6 8
        """)


def shortened_file():
    for less in 1, None:
        file = damaged("a") / STEP_6 / "optimizer/v.safetensors"
        os.truncate(file, file.stat().st_size - less if less else 0)
        rows(f"""
            a 3 --resume 6 | there | code 70 | says step_000000006/optimizer/v.safetensors: has [0-9]+ bytes, the manifest says
            a {RESUMED} | says checkpoint refused: .*v.safetensors | says resumed  .*step_000000004
        """)


def flipped_bit_in_file():
    flip_bit(damaged("a") / STEP_6 / "model.safetensors", -400, 16)
    rows(f"""
        a 3 --resume 6 | there | code 70
        a {RESUMED} | says checkpoint refused: .*model.safetensors: tensor [a-z] | says resumed  .*step_000000004
    """)


def missing_or_swapped_file():
    moments = "optimizer/m.safetensors"
    remove(damaged("a") / STEP_6 / moments)
    rows(f"a {RESUMED} | says {moments}: missing")
    out = damaged("a")
    shutil.copy(out / "checkpoints/step_000000004" / moments, out / STEP_6 / moments)
    rows(f"a {RESUMED} | says checkpoint refused: .*step_000000006/{moments} | says resumed  .*step_000000004")


def bad_manifest():
    for change, named in (
        (lambda _: b"", ""),
        (lambda _: os.urandom(3000), ""),
        (lambda text: text[:-40], ""),
        (lambda text: re.sub(rb'"version": *\d*', b'"version": 999', text), "999"),
    ):
        manifest = damaged("a") / STEP_6 / "manifest.json"
        manifest.write_bytes(change(manifest.read_bytes()))
        rows(f"a {RESUMED} | says checkpoint refused: .*manifest.json.*{named}")


def leftovers():
    folder = damaged("a") / "checkpoints"
    (folder / ".tmp-step_000000008-dead/optimizer").mkdir(parents=True)
    (folder / ".trash-step_000000002").mkdir()
    (folder / ".tmp-step_000000008-dead/model.safetensors").write_text("half\n")
    (folder / "latest").write_text("step_000000099\n")
    rows(f"a {RESUMED} | says resumed  .*step_000000006 | steps 6 8")
    equal("the hint is rebuilt", (folder / "latest").read_text().strip(), "step_000000008")


def old_manifest():
    """A manifest of version 1 has no checksum: a flag that can't be meant shows that it is damaged."""
    for pattern, text in (
        ('"lr":."0.001"', '"lr": "0.0p1"'),
        ('"steps":."8"', '"steps": "(8"'),
        ('"save-every":."2"', '"save-every": "-2"'),
    ):
        for manifest in damaged("a").glob("checkpoints/step_*/manifest.json"):
            version_1(manifest)
        edit(f"a/{STEP_6}/manifest.json", pattern, text)
        rows(f"a {RESUMED} | says checkpoint refused: .*step_000000006/manifest.json")


# ---- disks ----


def disk_full():
    failed = r"says could not be saved \({} failed so far\): .*{}"
    rows(f"""
        a 3 | fault file.write:1:40:enospc | weights of whole | steps 6 8 | {failed.format(1, "No space left")}
        a 3 | fault checkpoint.fsync:2:4:eio | weights of whole | steps 6 8 | {failed.format(1, "Input/output")}
        a 3 | fault checkpoint.shard:1:*:enospc | weights of whole | steps | {failed.format(4, "rank 1: .*No space left")}
    """)
    if not can_mount("on a full tmpfs"):
        return
    small = work / "small"
    small.mkdir()
    script = """mount -t tmpfs -o size=1700k none "$0" && "$@"
        code=$?
        ls "$0/run/checkpoints"
        sha256sum < "$0/run/final/model.safetensors"
        exit $code"""
    full = run("unshare -m sh -c", [script, small], rows.by(3), TRAIN, ["--out", small / "run"])
    said = ["could not be saved .* are needed, .* are free", "^step_000000002", f"^{weights('whole')} "]
    expect("small tmpfs", full, says=said)


def log_full():
    said = rows.row("a 3 | fault log.write:0:3+:enospc | weights of whole").count("can't write metrics.jsonl")
    equal("one warning", said, 1)
    check("what came before is there", '"step":2,' in (work / "a/metrics.jsonl").read_text())


def bad_out_folder():
    # A model that no machine here can hold: were it allocated first, it would not be this message.
    big = [PROGRAM, *f"--preset llama3.1-405b {DATA} --out".split()]
    (work / "file").write_text("x\n")
    for out in f"{work}/file", f"{work}/file/below", "/proc/ringzero":
        began = time.monotonic()
        expect(f"--out {out}", run(big, [out]), code=70, says=f"{out}|{work}/file")
        check(f"--out {out}: at once", time.monotonic() - began < 60)
    if can_mount("read-only folder"):
        readonly = work / "readonly"
        readonly.mkdir()
        mounted = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none "$0" && exec "$@"', readonly]
        expect("read-only", run(mounted, big, [readonly]), code=70, says="Read-only file system")


def file_size_limit():
    # One process: MPICH's shared memory would meet the limit too.
    limited = one("a", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (102400, 102400)))
    expect("no crash", limited, code=70, says=["step 8/8", "could not be saved .*File too large"])
    equal("nothing half written", checks.checkpoints("a"), [])


def hanging_files():
    """A call that takes longer than any deadline of training: said, trained on, and nothing differs in the end."""

    def hang(out, rank, file, seconds, flags, said, least):
        hangs = shim(paths=work / out / file, rank=rank, at=1, do=f"hang={seconds}")
        row = f"{out} 3 --log-every 1 --timeout 5 {flags} | fault step:*:*:sleep=1 | {hangs} | weights of whole | says {said}"
        text = rows.row(row).text
        after = text[re.search(said, text).start() :]
        check(f"{out}: training continued", len(re.findall("^step +[0-9]+/", after, re.M)) >= least, text)

    hang("logs", 0, "loss.svg", 7, "--val-every 2", "the file system of --out hangs: logs have waited", 3)
    equal("logs: nothing of them is lost", len(checks.rows("logs")), 8)
    for rank in 0, 1:
        said = f"rank {rank}: the checkpoint of step 4: the file system has not answered"
        hang(f"save{rank}", rank, "checkpoints/.tmp", 6, "--save-every 4", said, 2)
        equal(f"a save on rank {rank}: both checkpoints are there", checks.checkpoints(f"save{rank}"), ["4", "8"])


def share_fails():
    """A call of another rank's share of a checkpoint fails once; that rank can say so only through the files it shares.

    Rank 0 is late with the folder, so the first call comes before there is anything to open."""
    paths = work / "a/checkpoints/.tmp"
    for call, error in [*((n, "ESTALE") for n in (1, 2, 4, 7, 12, 18, 25)), (1, "EMFILE")]:
        failing = shim(paths=paths, rank=1, at=call, do=error)
        said = rf"says ^FAULT: .* \(call {call}\)"
        rows(f"a 3 | fault checkpoint.mkdir:0:1:sleep=1 | {failing} | weights of whole | steps 6 8 | {said}")
    # Each place where a rank opens the file in which ranks say how far they are, with an error that opening alone doesn't try again.
    for rank in 1, 0:
        trace = work / f"trace{rank}"
        rows(f"a 3 | {shim(paths=paths, rank=rank, trace=trace)}")
        sites = re.findall(r"^[0-9]+ ([0-9a-f]+) [0-9a-f]+ open .*/ranks\.tmp$", trace.read_text(), re.M)
        for site in sorted(set(sites)):
            failing = shim(paths=paths, rank=rank, site=f"{site}:1", do="EMFILE")
            rows(f"a 3 | {failing} | weights of whole | steps 6 8 | says ^FAULT: open | silent could not be saved")


# ---- data ----


def short_data():
    tiny = work / "bad.bin"
    tiny.write_bytes(checks.shard([5] * 20))
    says = "has 20 tokens, but one sample of sequence length 32 takes 33"
    expect("no sample", run([PROGRAM], SHAPE, f"--train-data {tiny} --vocab 257"), code=70, says=says)
    tiny.write_bytes(checks.shard([5] * 100))
    # Shorter than a global batch, and than the evaluation asks for
    flags = f"--train-data {tiny} --val-data {tiny} --vocab 257 --steps 3 --val-tokens 100000 --batch 4"
    expect("it works", run(rows.by(3), ["--out", work / "a"], SHAPE, flags))


def changed_data():
    def other(pattern, at):
        """A copy of the data in which one token has become another one of the vocabulary."""
        folder = copy("data", "data28")
        for file in folder.glob(pattern):
            flip_bit(file, 1500 if at else file.stat().st_size // 4 * 2)
        damaged("a")
        return f"a 3 --data {folder} --resume auto"

    rows(f"""
        {other("*train*.bin", 1500)} | there | fails | says --allow-data-change
        a 3 --data {work}/data28 --resume auto --allow-data-change | there
    """)
    # Beyond the ends, which are compared in any case; of validation data too. A file that was only copied is no other one.
    for name in "train", "val":
        said = f"says _{name}_.*has the same size but other contents"
        rows(f"{other(f'*_{name}_*.bin', None)} | there | code 2 | steps 4 6 | {said}")
    rows(f"{other('none', None)} | there | weights of whole")


# ---- weights, names, the folder ----


def nan_weights():
    """Numbers that are none: on the way in, and without a folder to save to."""
    nan = copy("whole/final", "nan")
    with open(nan / "model.safetensors", "r+b") as file:
        file.seek(-4, 2)
        file.write(b"\0\0\xc0\x7f")
    named = "model.safetensors: tensor [a-z_.0-9]+, element [0-9]+ is nan"
    for command in (
        f"generate --from {nan} --prompt a --max-tokens 2 --device cpu",
        f"export --from {nan} --to {work}/nan-exported",
        f"--init-from {nan} {DATA} --batch 1 --seq-len 32 --steps 2 --val-every 0",
    ):
        expect(command, run([PROGRAM], command), code=lambda code: code in (70, 72), says=named)
    check("export: nothing is written", not (work / "nan-exported/model.safetensors").exists())
    steep = f"{SHAPE} {DATA} --val-every 0 --steps 60 --lr 1000 --warmup 0 --max-grad-norm 0"
    expect("a rate that blows the weights up, without --out", run([PROGRAM], steep), code=72)


def vanished_files():
    """Files that a run has read at its start are not needed again."""
    copy("data", "gone")
    job = background("a", f"--data {work}/gone", ranks=1, fault="step:*:*:sleep=0.4")
    wait_for_step(job, "a", 1)
    remove(work / "gone")
    expect("the run ends well", job.wait(), silent="could not be saved")
    equal("every checkpoint is saved", checks.checkpoints("a"), ["6", "8"])
    equal("with the tokenizer", *((work / folder / "tokenizer.json").read_bytes() for folder in ("a/final", "data")))


def odd_paths():
    """Names are data: of no shell, of no program, of no encoding."""
    odd = work / f"o'q\"; touch {work.name}-owned; echo $(touch {work.name}-owned)"
    expect("the supervisor", run("dev/run/supervise.sh --backoff 0 --", [PROGRAM, "--out", odd], TRAIN))
    owned = checks.ROOT / f"{work.name}-owned"
    check("  no command of --out is run", (odd / "final/model.safetensors").exists() and not owned.exists())
    raw = os.fsencode(work) + b"/caf\xe9"
    os.mkdir(raw)
    shutil.copytree(os.fsencode(work / "data"), raw + b"/data")
    stopped = run([PROGRAM], TRAIN, "--data data --out run", fault="step:0:5:term", cwd=raw)
    expect("bytes that are no UTF-8", stopped, code=75, silent="could not be saved")
    elsewhere = run([PROGRAM, "--out", os.fsdecode(raw + b"/run")], "--resume auto --device cpu")
    expect("a relative --data is found from another folder", elsewhere)


def second_run():
    first = background("a", fault="step:*:*:sleep=1")
    wait_for_step(first, "a", 2)
    rows(r"a 3 --resume auto | there | code 70 | says another run writes there \(pid [0-9]+ on host ")
    expect("the first one", first.wait())
    checks.same_weights("the first one", "a", "whole")
    again = "says failed: (Input/output error|Stale file handle); trying again"
    rows(f"""
        a 3 --resume auto | there
        b 3 | fault file.write:1:20:eio,file.write:1:21:estale,file.read:0:2:eio | weights of whole | {again} | silent could not be saved
    """)


def used_folder():
    """Nothing begins over a run that has saved something, whatever became of its checkpoints."""
    remove(damaged("a") / "checkpoints")
    rows(r"""
        a 3 --resume auto | there | code 2 | says holds an earlier run \(.*step 6 was saved\), but no checkpoint.*
        a 3 --resume auto | there | code 2
        a 3 | there | code 2 | says give another --out, or --overwrite, which starts here and moves the earlier run aside
        a 3 --overwrite | there | weights of whole
    """)
    moved = [file.read_text() for file in (work / "a").glob("before-*/metrics.jsonl")]
    check("--overwrite: the old run is kept", len(moved) == 1 and '"step":5,' in moved[0])
    remove(*damaged("a").glob("checkpoints/*/manifest.json"))
    rows("a 3 --resume auto | there | code 70 | says step_000000004: not a checkpoint: it holds no manifest.json")


def two_hosts():
    """Hosts whose flock sees no other's, hosts without one, and one of each: two never hold a folder."""

    def on_host(name, flock, **more):
        """One process. flock: real, local (each host its own), absent"""
        env = shim_env(host=name, **({} if flock == "real" else {"flock": flock}))
        return background("g", "--resume auto", ranks=1, env=env, **more)

    for flocks in ("local", "local"), ("absent", "absent"), ("real", "absent"), ("absent", "real"):
        what = f"flock {', '.join(flocks)}"
        two_in_turn(what, on_host, flocks)
        remove(work / "g")
        on_host("nodea", flocks[0], fault="step:0:3:kill").wait()
        # The one that continues is still there when the last of the others looks.
        four = [on_host(f"node{n}", flocks[n % 2], fault="step:*:*:sleep=2") for n in (1, 2, 3, 4)]
        equal(
            f"{what}: of four that find a dead one's lock one continues", [job.wait().code for job in four].count(0), 1
        )
        looked = any(job.says("looks for [0-9]+ s whether its run still lives") for job in four)
        check(f"{what}: after looking whether it lives", looked)

    def in_namespaces(name, flock, **more):
        """Host names and process numbers of the kernel's own."""
        env = {} if flock == "real" else shim_env(flock=flock)
        own = 'unshare --uts --pid --fork --kill-child --mount-proc sh -c \'hostname "$0" && exec "$@"\''
        return checks.Run(own, [name, PROGRAM], TRAIN, ["--out", work / "g"], "--resume auto", env=env, **more)

    if run("unshare --uts --pid --fork --mount-proc hostname nodea").code != 0:
        return skip("namespaces can't be made here")
    for flocks in ("real", "absent"), ("absent", "real"):
        two_in_turn(f"namespaces, flock {', '.join(flocks)}", in_namespaces, flocks)


def two_in_turn(what, starter, flocks):
    """The second is refused while the first runs, which ends well."""
    remove(work / "g")
    first = starter("nodea", flocks[0], fault="step:*:*:sleep=2")
    wait_for_step(first, "g", 2)
    second = starter("nodeb", flocks[1]).wait()
    expect(f"{what}: the second", second, code=70, says=r"another run writes there \(pid [0-9]+ on host nodea ")
    expect(f"{what}: the first", first.wait())
    check(f"{what}: its lock goes with it", not (work / "g/run.lock.owner").exists())


def left_folders():
    """The run directories of jobs that were killed are removed by a later one; those with a reason after a day. A job that has said its
    reason leaves none."""
    folder = work / "tmp"
    folder.mkdir()

    def after(words=""):
        rows(f"a 3 --save-every 0 | with TMPDIR={folder} {words}")
        return sorted(p.name for p in folder.glob("ringzero-*"))

    def age(hours):
        then = time.time() - 3600 * hours
        for file in [folder, *folder.rglob("*")]:
            os.utime(file, (then, then), follow_symlinks=False)

    left = after("| fault step:1:2:kill | fails")
    equal("a killed job leaves one", len(left), 1)
    (folder / left[0]).rename(folder / "ringzero-killed")
    equal("a job that fails in words leaves none", after("| fault step:1:2:error | code 70"), ["ringzero-killed"])
    (folder / "ringzero-reason").mkdir()
    for name in "failure.txt", "alive":
        (folder / "ringzero-reason" / name).touch()
    equal("young ones stay", after(), ["ringzero-killed", "ringzero-reason"])
    age(2)
    equal("the killed one's goes, the reason stays for a day", after(), ["ringzero-reason"])
    age(48)
    equal("then it goes too", after(), [])
