#!/usr/bin/env bash
# The benchmark harness: pairs run, their results compared, wrong requests refused. No time is asserted. Ends with counts.
#
#   test/program/test_harness.sh HARNESS      HARNESS: build/dev/harness, beside the program of the same build
set -uo pipefail
harness=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
# shellcheck source=test/program/check.sh
. test/program/check.sh
says() { local text; for text in "$@"; do grep -qF -- "$text" "$work/log" || { echo "not said: $text" >> "$work/log"; return 1; }; done; }
ask() {  # ask EXIT_CODE ARGS...
  local want=$1 code=0
  shift
  timeout 200 "$harness" "$@" > "$work/log" 2>&1 || code=$?
  [ "$code" = "$want" ] || { echo "exit code $code, not $want" >> "$work/log"; return 1; }
}
small="--preset bytes --dim 16 --layers 4 --heads 2 --kv-heads 1 --head-dim 8 --ffn 24 --data synthetic --seq-len 16 --batch 2 --batch-tokens 128"

listed() { ask 0 list-targets && says ddp:overlap zero:hybrid pipeline:dualpipev tensor:tp_overlap context:ring precision:fp8_block kernels:gemm; }
check "targets are listed" listed
group() { ask 0 list-targets --group fsdp && says fsdp:bf16 && ! says zero:zero1; }
check "of one group only" group
check "a group that is none" ask 2 list-targets --group zeros
unknown() { ask 2 run --targets zero:zero4 && says "nearest: zero:zero"; }
check "a target that is none: the nearest is named" unknown
check "an extra argument without a name" ask 105 run --targets zero --target-extra-arg "--zero 3"

run() {
  ask 0 run --targets recompute:block,zero:zero3,pipeline:1f1b --base "$small" --steps 5 --repeats 2 --summary --out "$work/a" \
    --target-extra-arg zero3="--prefetch 2" &&
    says "eta " "recompute:none" "pipeline:gpipe" "against" "tokens/s" "stages busy" "queue"
}
check "pairs run with their baselines" run
artifacts() {
  local run=$work/a/zero/zero3/2-ranks/repeat-2
  for file in command log run/metrics.jsonl run/ranks.json run/trace.json run/memory.svg; do [ -s "$run/$file" ] || { echo "no $file" > "$work/log"; return 1; }; done
  grep -q -- "--zero 3 --prefetch 2 --out" "$run/command"
}
check "each run leaves command, log, metrics, trace; extra arguments reach their target" artifacts
links=$(dirname "$harness")/sanity
[ -x "$links" ] || links=
check "results.json is what the runs wrote, and what the machine reaches" python3 - "$work/a" "$links" << 'END'
import json, sys

out = sys.argv[1]
report = json.load(open(out + "/results.json"))
found = {r["target"]: r for r in report["results"]}
assert set(found) == {"recompute:none", "recompute:block", "zero:zero0", "zero:zero3", "pipeline:gpipe", "pipeline:1f1b"}, found.keys()
for r in found.values():
    assert len(r["repeats"]) == 2
    for one in r["repeats"]:
        steps = [json.loads(line) for line in open(f"{out}/{one['folder']}/run/metrics.jsonl")]
        seconds = [s["seconds"] for s in steps if "loss" in s and s["step"] > 3]
        assert one["seconds"] == seconds and len(seconds) == 2, (one["seconds"], seconds)
        ranks = json.load(open(f"{out}/{one['folder']}/run/ranks.json"))
        assert one["used"] == [k["memory_peak"]["total"] for k in ranks] and len(ranks) == r["ranks"]
        assert all(a > b > 0 for a, b in zip(one["reserved"], one["used"]))
known = {"commit", "version", "compiler", "cpu", "clock", "mpi", "gemm", "command", "date", "host", "load at the start"}
known |= {"measured copy", "measured GEMM fp32", "measured GEMM bf16"} | ({"measured links"} if sys.argv[2] else set())
assert known <= set(report["environment"]), known - set(report["environment"])
block, none = (found["recompute:" + k]["repeats"][0]["used"][0] for k in ("block", "none"))
assert block < none, (block, none)
assert found["pipeline:1f1b"]["repeats"][0]["numbers"]["queue"] >= 0
assert 0 < found["pipeline:1f1b"]["repeats"][0]["numbers"]["utilisation"] <= 1
END
page() { python3 - "$work/a/report.html" << 'END'
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()
assert not [u for u in re.findall(r"(?:https?:)?//[^\s\"'<>)]+", text) if u != "http://www.w3.org/2000/svg"]
assert text.count("<svg") == 3 and "zero:zero3" in text
END
}
check "the page has a picture for each group and nothing from a network" page
roofline() {
  ask 0 run --targets recompute:none --profile roofline --base "$small" --repeats 1 --out "$work/r" && python3 - "$work/r/recompute/none/1-ranks/repeat-1/run" << 'END'
import json, sys
steps = [e["name"] for e in json.load(open(sys.argv[1] + "/trace.json"))["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
assert steps == ["step 3", "step 4"], steps
assert len([1 for line in open(sys.argv[1] + "/metrics.jsonl") if '"loss"' in line]) == 12
END
}
check "--profile roofline: 12 steps, of which two are traced" roofline
again() { ask 0 run --targets zero:zero3 --base "$small" --steps 5 --repeats 1 --out "$work/b" && ask 0 compare "$work/a" "$work/b" --html "$work/c.html"; }
check "two reports are compared" again
check "the same: with what differs" says "zero:zero3" "B / A" "command of zero:zero3" "--prefetch 2"
check "the same: as a page" grep -q "A is the earlier report" "$work/c.html"
table() { ask 0 table "$work/a" && says "| method | ranks | tokens/s |" "| zero:zero3 | 2 |"; }
check "the table" table
scaled() { ask 0 run --targets zero:zero1 --base "$small" --steps 4 --repeats 1 --ranks 1,2 --out "$work/s" && ask 0 table "$work/s" && says "| zero:zero1 | 1 |" "| zero:zero1 | 2 |"; }
check "other numbers of ranks" scaled
# A launcher of one's own: its arguments arrive as they were given, between the number of ranks and the program.
cat > "$work/start" << END
#!/bin/sh
[ "\$1" = --version ] && exec mpirun --version
printf '%s|' "\$1" "\$2" "\$3" "\$4" "\${5##*/}" >> "$work/started"
echo >> "$work/started"
ranks=\$2
shift 4
exec mpirun -n "\$ranks" "\$@"
END
chmod +x "$work/start"
launched() {
  ask 0 run --targets zero:zero0 --base "$small" --steps 4 --repeats 1 --out "$work/l" --launcher "$work/start" --launcher-arg=--label --launcher-arg "two words; false" || return 1
  cp "$work/started" "$work/log"
  grep -qxF -- "-n|2|--label|two words; false|train_llama|" "$work/started" && ! grep -vF -- "-n|2|--label|two words; false|" "$work/started" > "$work/log"
}
check "a launcher's arguments, of runs and of the links' measurement" launched
check "the same: the command that is left can be given to a shell" grep -qF -- "$work/start -n 2 --label 'two words; false' " "$work/l/zero/zero0/2-ranks/repeat-1/command"
failing() { ask 1 run --targets zero:zero3 --base "$small" --steps 4 --repeats 1 --target-extra-arg zero3="--stepz 3" --out "$work/f" && says "FAILED: exit code 2" "zero:zero0"; }
check "a run that fails is said to, and the others are run" failing
# Known times in place of compute. Ratios are predicted, and said beside what is measured; which, no test asserts.
sleeping() {
  ask 0 run --compute sleep --targets "$1" --steps 2 --repeats 1 --summary --out "$work/z" "${@:2}" && says "sleep-$1" "predicted" && python3 - "$work/z" "$1" << 'END'
import json, sys
report = json.load(open(sys.argv[1] + "/results.json"))
assert report["environment"]["compute"].startswith("sleep"), report["environment"]
found = {r["target"]: r["repeats"][0] for r in report["results"]}
assert all(t.startswith("sleep-") and r["numbers"]["predicted"] > 0 and len(r["seconds"]) == 2 for t, r in found.items()), found
assert len(found) == 2 and "sleep-" + sys.argv[2] in found, found.keys()
END
}
tools=$(dirname "$harness")
if [ -x "$tools/plan_clock" ] && [ -x "$tools/bench_pipeline" ]; then
  check "passes that sleep: a pipeline" sleeping pipeline:1f1b
  check "passes that sleep: ZeRO" sleeping zero:zero3
  if [ "$(id -u)" = 0 ]; then
    check "the same behind shaped links" sleeping zero:zero3 --link 200mbit
    check "the same: the page says both" grep -q "200mbit, each host's" "$work/z/report.html"
  fi
else
  skip "tools that sleep are not built"
fi
rated() { ask 2 run --targets zero:zero3 --link fast --out "$work/n" && says "nearest: --link 200mbit"; }
check "a link without a rate" rated
check "a link, and a launcher of one's own" ask 2 run --targets zero:zero3 --link 200mbit --launcher mpiexec --out "$work/n"
kernels() { ask 0 run --targets kernels:rope --target-extra-arg rope="--shape 64x2x8" --repeats 1 --out "$work/k" && says "kernels:rope/rope" "of peak"; }
if [ -x "$(dirname "$harness")/bench_rope" ]; then check "a microbenchmark's rows are results" kernels; else skip "microbenchmarks are not built"; fi
summary
