"""Cases of test_faults.py about what stands around a run: commands of the user, the supervisor, a launcher that hangs."""

import os
import re
import signal

import checks
from checks import Run, check, children, equal, expect, remove, run, same_weights, until, work
from fault_runs import PROGRAM, TRAIN, damaged, options, rows, wait_for_step


def commands():
    """Commands of the user around checkpoints: each checkpoint is seen, whatever happens, and nothing they do hurts the run."""
    save = "--after-save 'echo $RINGZERO_STEP ${PMI_RANK:-none} >> $RINGZERO_OUT/saw; ls $RINGZERO_CHECKPOINT/manifest.json'"
    everything = ["2 none", "4 none", "6 none", "8 none"]

    def saw(out):
        return (work / out / "saw").read_text().splitlines()

    def marks(out):
        names = os.listdir(work / out / "checkpoints")
        return sorted(name.removeprefix(".after-save-") for name in names if name.startswith(".after-save-"))

    rows(f"a 3 {save} | weights of whole | steps 6 8 | says ^hook     --after-save runs: echo")
    equal("sees each checkpoint, without the launcher's variables", saw("a"), everything)
    equal("no mark is left", marks("a"), [])
    rows(f"b 3 --no-background-save {save} | fault checkpoint.renamed:0:2:kill | fails")
    equal("killed between save and command: marked", marks("b"), ["4"])
    rows(f"b 3 --resume auto {save} | there | weights of whole")
    check("  done by the next start", "4 none" in saw("b"))
    again = "says --after-save is not done for [0-9] checkpoints: the next start tries again"
    rows(f"c 3 --after-save 'exit 3' --timeout 16 | weights of whole | steps 2 4 6 8 | {again}")
    equal("a command that fails: all are marked", marks("c"), ["2", "4", "6", "8"])
    rows(f"""
        c 3 --resume auto | there | steps 2 4 6 8 | says 4 checkpoints wait for an earlier start
        c 3 --resume auto {save} | there | steps 6 8
    """)
    equal("given again: all are seen", saw("c"), everything)
    folder = damaged("d")
    (folder / "checkpoints").rename(folder / "remote")
    remove(folder / "run_status.json", folder / "metrics.jsonl")
    said = "says the command of --before-resume ended with exit code 5, and .* has no checkpoint"
    rows(f"d 3 --resume auto --before-resume 'exit 5' | there | code 70 | {said}")
    check("  nothing begins", not (folder / "metrics.jsonl").exists())
    bring = "--before-resume 'cp -r $RINGZERO_OUT/remote $RINGZERO_CHECKPOINT'"
    rows(f"""
        d 3 --resume auto {bring} | there | weights of whole | says ^hook     --before-resume runs: cp -r
        d 3 --resume auto --before-resume 'exit 5' | there
        e 3 {save} --save-every 0 | code 2
    """)


def supervise(out, flags="", more="", **how):
    command = ["dev/run/supervise.sh", "--backoff", "0", *checks.split([flags]), "--", *rows.by(3)]
    return Run(command, ["--out", work / out], TRAIN, more, limit=300, **how)


def supervised(what, out, flags="", more="--no-background-save", code=0, says=(), **how):
    expect(what, supervise(out, flags, more, **how).wait(), code, says)
    if code == 0:
        same_weights(what, out, "whole")


def supervisor():
    # dies in its fourth step, its second one saved: 2, 4, 6, 8
    died = ["killed at step [0-9]+ without a word .*starts again from step 2", "finished after 3 restarts"]
    supervised("starts again until the run has finished", "a", fault="step:0:4:kill", says=died)
    given_up = ["no new checkpoint in 3 starts in a row", "start 3: .*failed with exit code 70: .*an error at step"]
    supervised("gives up without progress", "b", fault="step:1:1:error", code=3, says=given_up)
    limit = "gives up after 2 restarts"
    supervised("too many restarts", "c", "--max-restarts 2", fault="step:0:3:kill", code=3, says=limit)
    supervised("asked to stop", "d", fault="step:1:3:usr1", code=75)
    supervised("--requeue restart continues", "d", "--requeue restart", fault="step:1:3:usr1")
    supervised("a wrong command line is not tried again", "e", more="--batch 4x", code=2)
    job = supervise("f", fault="step:*:*:sleep=0.2")
    wait_for_step(job, "f", 3)
    job.signal(signal.SIGTERM)
    said = "supervise: stopped: SIGTERM on rank [0-9]; saved at step [3-7]"
    expect("passes SIGTERM on, the run saved", job.wait(), code=75, says=said)


def two_supervisors():
    """A second supervisor, and the death of what lies between mpirun and the ranks."""
    first = supervise("a", fault="step:*:*:sleep=0.5")
    wait_for_step(first, "a", 3)

    def touched():
        return (work / "a/supervise.lock").read_text(), sorted(os.listdir(work / "a"))

    before = touched()
    expect("the second", supervise("a").wait(), code=2)
    equal("  has touched nothing", touched(), before)
    if options.launcher == "ranks":
        (proxy,) = children(first.pid, "--ranks 3")
    else:
        (proxy,) = children(children(first.pid, "mpirun")[0], "hydra_pmi_proxy")
    os.kill(proxy, signal.SIGKILL)
    # 0 is said of a run that is at its end, and of no other.
    expect("kill -9 of mpirun's proxy", first.wait(), says="supervise: finished after")
    same_weights("kill -9 of mpirun's proxy", "a", "whole")


LAUNCHER = """# launcher FOLDER TIMES COMMAND...: hangs so many times, with a child in a session of its own, then runs the command
n=$(cat "$1/starts" 2> /dev/null)
echo $((${n:-0} + 1)) > "$1/starts"
if [ "${n:-0}" -lt "$2" ]; then
  trap '' TERM
  setsid sleep 1000 &
  echo $! >> "$1/children"
  [ "$2" -lt 3 ] || trap 'exit 2' TERM  # a launcher's own code, not that of a wrong command line
  wait
fi
exec "${@:3}"
"""
STAYS = """echo '{"state": "failed", "step": 0, "exit_code": 71, "reason": "rank 1 was not heard of", "started": "now", "pid": 1, "host": "h"}' \\
  > "$4/run_status.json"
sleep 1000 &
echo $! > "$1/children"
wait
"""


def hung_start():
    """A launcher that stays without its ranks, as Hydra's mpirun where its processes can't reach each other."""
    script = work / "launcher"

    def hung(what, out, times, flags, command, code, says):
        (work / out).mkdir()
        supervisor = ["dev/run/supervise.sh", "--backoff", "0", *flags.split(), "--", "bash", script, work / out]
        expect(what, run(supervisor, times, command, limit=300), code, says)
        for pid in (work / out / "children").read_text().split():
            check(f"{what}: nothing is left", until(lambda pid=pid: ended(pid), 20))

    def ended(pid):
        status = checks.proc(pid, "status")
        return not status or re.search(r"(?m)^State:\s*[ZX]", status)

    def train(out):
        return [*rows.by(3), "--out", work / out / "out", *checks.split([TRAIN])]

    script.write_text(LAUNCHER)
    # Seconds that the second start, which is a real one, has too.
    said = "supervise: did not start within 40 s; starts again from step 0"
    hung("once, ignoring SIGTERM", "h1", "1", "--start-timeout 40", train("h1"), 0, said)
    same_weights("once, ignoring SIGTERM", "h1/out", "whole")
    said = "start 3: checkpoints from step 0 to 0; did not start within 5 s"
    hung("always", "h2", "9", "--start-timeout 5", train("h2"), 3, said)
    script.write_text(STAYS)
    said = "failed with exit code 71: rank 1 was not heard of; its launcher stayed and was ended"
    flags = "--max-restarts 0 --start-timeout 10"
    hung("a run that has failed", "h3", "", flags, [PROGRAM, "--out", work / "h3/out"], 3, said)


def elastic():
    """The number of ranks follows the hosts: fewer, more at a restart, and more while the run is going. The same tokens each time."""
    rows("w 4 --batch 3 --steps 24")
    there = work / "there"

    def starts(ranks, flags="", **how):
        there.write_text(f"{ranks}\n")
        by = [part if part != "3" else "{ranks}" for part in map(str, rows.by(3))]
        command = ["dev/run/supervise.sh", "--backoff", "0", "--ranks", f"cat {there}", *flags.split(), "--", *by]
        return Run(command, ["--out", work / "a"], TRAIN, "--batch 3 --steps 24", limit=300, **how)

    expect("starts with all", starts(4, "--requeue exit", fault="step:0:5:term").wait(), code=75)
    four = starts(5, fault="step:0:3:term").wait()
    expect("12 sequences on 5 hosts: 4 of them", four, code=None, says="starts with 4 ranks: 5 are there")
    three = starts(3, fault="step:0:2:term").wait()
    expect("3 are left", three, code=None, says="changed  3 ranks with --zero 0, was 4")
    expect("none", starts(0).wait(), code=2, says="0 ranks are there, and tp 1 x pp 1 x cp 1 needs 1: nearest 1")
    two = starts(2, "--grow-every 1", fault="step:*:*:sleep=1")
    wait_for_step(two, "a", 13)
    there.write_text("4\n")
    grown = ["stopped at step 1[0-9], since more ranks are there", "starts with 4 ranks: 4 are there, it was 2"]
    expect("more while it runs", two.wait(), says=grown)
    equal("the same tokens", *(checks.rows(out, "data_hash")[-1]["data_hash"] for out in "aw"))
    rows("a 5 --resume auto --steps 25 --allow-lr-jump | there | code 2 | says nearest: 4 or 6 of such ranks")
