#!/usr/bin/env bash
# Pipelines under mpirun: whatever the schedule, the cut and the ZeRO stage, weights, loss, norm and data are those of
# one rank, or of the same data ranks without a pipeline, to the bit. Ends with "N passed, N failed".
#
#   test/program/test_pipeline.sh ./train_llama           (what make test runs)
#   test/program/test_pipeline.sh ./train_llama --all     every schedule at 2, 3 and 4 ranks, every ZeRO stage
#   test/program/test_pipeline.sh ./train_llama --schedules  of them, every schedule at 2, 3 and 4 ranks (make test-full)
#   test/program/test_pipeline.sh ./train_llama --faults  a kill and a stop of each of three stages (make test-full)
#   test/program/test_pipeline.sh ./train_llama --few     what takes seconds (for test/llama/mutants.py)
set -uo pipefail
program=$(realpath "$1")
all=${2:-}
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
model=(--data "$work/data" --preset bytes --seq-len 32 --batch 1 --layers 8 --dim 32 --heads 4 --ffn 64 --device cpu
  --threads 1 --steps 10 --save-every 0 --val-every 0 --val-tokens 64 --timeout 30)
[ "$all" = --all ] || model+=(--steps 4)

train() {  # train NAME RANKS FLAGS...
  local name=$1 ranks=$2
  shift 2
  timeout 120 mpirun -n "$ranks" "$program" "${model[@]}" "$@" --out "$work/$name" > "$work/log" 2>&1
}
same() {  # same NAME REFERENCE: final weights, and what was logged of each step but the times
  cmp "$work/$1/final/model.safetensors" "$work/$2/final/model.safetensors" || return 1
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" << 'END'
import json, sys
keys = ("step", "loss", "grad_norm", "lr", "data_hash", "val_loss")
a, b = ([{k: j[k] for k in keys if k in j} for j in map(json.loads, open(path))] for path in sys.argv[1:])
sys.exit(0 if a and a == b else f"metrics differ:\n{a}\n{b}")
END
}
as() { train "$1" "${@:3}" && same "$1" "$2"; }  # as NAME REFERENCE RANKS FLAGS...
refused() {  # refused RANKS TEXT FLAGS...
  local ranks=$1 text=$2
  shift 2
  ! train refused "$ranks" "$@" && grep -qF -- "$text" "$work/log"
}

even=(--lr-schedule constant --warmup 0 --batch-tokens 256 --head untied)
# A stage that is killed or stopped, then the run resumed, at another pp too.
faulty() {  # faulty NAME RANK ACTION: three stages, a fault in step 4 of 4. A rank may be there while rank 0 saves step 2
  local name=$1 rank=$2 action=$3
  ! FAULT=step:$rank:4:$action timeout 60 mpirun -n 3 "$program" "${model[@]}" "${even[@]}" --pp 3 --steps 4 --save-every 1 --no-background-save \
    --timeout 3 --out "$work/$name" > "$work/log" 2>&1
}
faults() {  # faults "RANK ACTION"...   beside the run `whole`
  local fault name layout
  for fault in "$@"; do
    name=fault${fault/ /}
    # shellcheck disable=SC2086
    check "stage $fault: ends" faulty "$name" $fault
    case $fault in
      *stop) check "  names lane, stage and micro-batch" grep -qE "tensor [0-9]+[FI][0-9]+ .*group pp [0-9]>[0-9]" "$work/log" ;;
    esac
    case $fault in 1*) layout=(2 --pp 2) ;; *) layout=(3 --pp 3) ;; esac
    check "  resumes" train "$name" "${layout[@]}" --resume auto --steps 4
    check "  the same bits" cmp "$work/$name/final/model.safetensors" "$work/whole/final/model.safetensors"
  done
}
if [ "$all" = --faults ]; then
  check "whole run" train whole 1 --steps 4 "${even[@]}"
  faults "0 kill" "1 kill" "2 kill" "0 stop" "1 stop" "2 stop"
  summary
  exit
fi

check "one rank" train one 1 --batch-tokens 256 --head untied
check "zb-v by default" as default one 2 --pp 2 --batch-tokens 256 --head untied
check "  says so" grep -qF "pipeline zb-v: 4 stages on 2 ranks, blocks" "$work/log"
if [ "$all" = --few ]; then
  stopped() {
    ! FAULT=step:1:2:stop timeout 60 mpirun -n 2 "$program" "${model[@]}" --pp 2 --batch-tokens 256 --timeout 3 --out "$work/stopped" > "$work/log" 2>&1 &&
      grep -qE "tensor [0-9]+[FI][0-9]+ .*group pp [0-9]>[0-9]" "$work/log"
  }
  check "a stage that is stopped is named with lane, stage and micro-batch" stopped
  summary
  exit
fi
for pp in 2 3 4; do
  for schedule in gpipe 1f1b interleaved zb-h1 zb-v dualpipev; do
    case $all$pp$schedule in 31f1b | 4zb-v | --all* | --schedules*) ;; *) continue ;; esac
    [ "$pp$schedule" != 3interleaved ] || continue  # 8 micro-batches do not divide
    check "$schedule on $pp" as "$pp$schedule" one "$pp" --pp "$pp" --pp-schedule "$schedule" --batch-tokens 256 --head untied
  done
done
if [ "$all" = --schedules ]; then
  summary
  exit
fi
told() {  # told NAME: what each step says of the pipeline is what the schedule holds
  python3 - "$work/$1" << 'END'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
steps = [j["pipeline"] for j in map(json.loads, open(folder / "metrics.jsonl")) if "pipeline" in j]
tasks = [list(map(json.loads, open(folder / f"pipeline_tasks.{r}.jsonl"))) for r in range(4)]
good = steps and all(p["in_flight"] == [8] * 4 and p["pending_weight"] == [1, 3, 5, 7] and 0 < p["util_step"] <= p["util_span"] <= 1
                     for p in steps)
good = good and all(len(t) == 2 * 2 * 8 * 3 and all(a["t1"] <= b["t0"] for a, b in zip(t, t[1:]) if a["step"] == b["step"])
                    for t in tasks)
sys.exit(0 if good else f"{steps}\n{[len(t) for t in tasks]}")
END
}
check "zb-v on 4, with its tasks" as tasks one 4 --pp 4 --pp-schedule zb-v --batch-tokens 256 --head untied --pp-tasks 2
check "  what it held" told tasks
check "  and on the console" grep -qE '^stages +busy [0-9.]+ % of the step, [0-9.]+ % of their spans \| idle .* warm-up, .* drain; .* waiting .* 8 in flight$' "$work/log"
# --trace-steps: of each message an arrow, from the task that made it to the one on another rank that reads it.
arrows() {  # arrows NAME MESSAGES   a step
  python3 - "$work/$1/trace.json" "$2" << 'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
out, into = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "sf")
tasks = [e for e in events if e["ph"] == "X" and e["tid"] == 3]
inside = lambda e: any(t["pid"] == e["pid"] and t["ts"] <= e["ts"] <= t["ts"] + t["dur"] for t in tasks)
good = len(out) == sum(e["ph"] == "s" for e in events) == 2 * int(sys.argv[2]) and out.keys() == into.keys()
good = good and all(out[i]["pid"] != into[i]["pid"] and inside(out[i]) and inside(into[i]) for i in out)
sys.exit(0 if good else f"{len(out)} {len(into)} {len(tasks)}")
END
}
check "a trace of zb-v on 2" as traced one 2 --pp 2 --batch-tokens 256 --head untied --trace-steps 2
check "  an arrow for each message" arrows traced $((2 * 2 * 8))
if [ -n "$all" ]; then
  check "dp 3" train dp3 3 --batch-tokens 384 --head untied
  for zero in "0" "1" "2 --accumulate-locally" "3 --accumulate-locally --pp-gather step"; do
    for schedule in 1f1b zb-v dualpipev; do
      # shellcheck disable=SC2086
      check "dp 3, zero $zero, $schedule" as "dp3${zero:0:1}$schedule" dp3 6 --pp 2 --pp-schedule "$schedule" --zero $zero \
        --batch-tokens 384 --head untied
    done
  done
else
  check "dp 3" train dp3 3 --batch-tokens 384 --head untied
  for case in "1f1b --zero 1" "dualpipev --zero 2 --accumulate-locally" "zb-v --zero 3 --accumulate-locally --pp-gather step"; do
    # all twelve: PipelineBits, with ranks in one process
    # shellcheck disable=SC2086
    check "dp 3, $case" as "dp3${case%% *}" dp3 6 --pp 2 --pp-schedule $case --batch-tokens 384 --head untied
  done
  check "  says what is accumulated locally" grep -qE "gradients are accumulated locally, [0-9.]+ [KMG]iB on this rank" "$work/log"
fi
for gather in window:1 op; do
  [ -n "$all" ] || [ $gather = op ] || continue
  check "gathers for $gather" as "gather$gather" dp3 6 --pp 2 --zero 3 --accumulate-locally --pp-gather $gather --batch-tokens 384 --head untied
done
check "uneven cut" as cut one 2 --pp 2 --pp-schedule 1f1b --pp-layers 7,1 --batch-tokens 256 --head untied
check "  says what the stages cost" grep -qE "^ +work of the stages: [0-9.]+, [0-9.]+ %" "$work/log"
check "one micro-batch of two stages" train lone 2 --pp 2 --pp-schedule 1f1b --batch-tokens 32 --head untied
check "  says how busy it is, and what would help" eval 'grep -qF "ranks busy for 5" "$work/log" && grep -qF "9 micro-batches would give 90 %" "$work/log"'
check "a window of 2" as window one 2 --pp 2 --pp-schedule gpipe --pp-window 2 --batch-tokens 256 --head untied
check "  holds 2" grep -q '"in_flight":\[2,2\]' "$work/window/metrics.jsonl"
check "recomputing blocks takes 1f1b" as recompute one 2 --pp 2 --recompute block --batch-tokens 256 --head untied
for case in "zb-v --recompute mlp" "zb-h1 --recompute block"; do
  # shellcheck disable=SC2086
  check "$case" as again one 2 --pp 2 --pp-schedule $case --batch-tokens 256 --head untied --overwrite
done
"$program" schedule --pp 2 --micro-batches 8 --pp-schedule zb-h1 --csv "$work/schedule.csv" > "$work/log" 2>&1
check "a schedule from a file" as file one 2 --pp 2 --pp-schedule "$work/schedule.csv" --batch-tokens 256 --head untied

# Saved by one layout, resumed by another.
check "saves" train half 2 --pp 2 --steps 2 --save-every 2 "${even[@]}"
check "whole run" train whole 1 --steps 4 "${even[@]}"
for layout in "1 --pp 1" "3 --pp 3"; do
  rm -rf "$work/resumed"
  cp -r "$work/half" "$work/resumed"
  # shellcheck disable=SC2086
  check "resumed by $layout" train resumed $layout --resume auto --steps 4
  check "  the same bits" cmp "$work/resumed/final/model.safetensors" "$work/whole/final/model.safetensors"
done

if [ -n "$all" ]; then faults "0 kill" "1 kill" "2 kill" "0 stop" "1 stop" "2 stop"; else faults "0 kill" "1 stop" "2 kill"; fi

# Tied on one rank's two stages: the head's share is added in another order, so not to the bit.
close() {  # close NAME REFERENCE: losses within 1e-5 of each other
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" << 'END'
import json, sys
a, b = ([j["loss"] for j in map(json.loads, open(path)) if "loss" in j] for path in sys.argv[1:])
sys.exit(0 if len(a) == len(b) > 0 and all(abs(x / y - 1) < 1e-5 for x, y in zip(a, b)) else f"{a}\n{b}")
END
}
check "tied, one rank" train tied 1 --head tied --batch-tokens 256
check "tied, zb-v" train tiedzb 2 --pp 2 --head tied --batch-tokens 256
check "  the same loss" close tiedzb tied
# Tied on two ranks: each has the embedding, and both add the other's gradients of it.
for layout in "2 --pp 2 --pp-schedule 1f1b" "3 --pp 3 --pp-schedule zb-h1" "4 --pp 2 --pp-schedule 1f1b --zero 3"; do
  # shellcheck disable=SC2086
  check "tied, $layout" train tiedtwo $layout --head tied --batch-tokens 256 --overwrite --save-every 2
  check "  the same loss" close tiedtwo tied
done
rm -rf "$work/tiedon"
check "tied, saved by two" train tiedon 3 --pp 3 --pp-schedule 1f1b --head tied --steps 2 --save-every 2 "${even[@]:0:6}"
check "  resumed by one" train tiedon 1 --resume auto --steps 4 --head tied

# DualPipe: two copies of the model, whose gradients are added: the sum of the first half and of the second.
for layout in "2 --pp 2" "4 --pp 4"; do
  # shellcheck disable=SC2086
  check "dualpipe on $layout" train dual $layout --pp-schedule dualpipe --batch-tokens 256 --head untied --overwrite --save-every 2
  check "  the same loss" close dual one
done
check "dualpipe, dp 2, zero 3" train dual3 4 --pp 2 --pp-schedule dualpipe --zero 3 --batch-tokens 512 --head untied
check "dp 2" train dp2 2 --batch-tokens 512 --head untied
check "  the same loss" close dual3 dp2
check "ZeRO-2 reduces at every weight gradient" train each 6 --pp 2 --zero 2 --batch-tokens 384 --head untied
check "  and says so" grep -qE "gradients are reduced 4 times a step, which saves this rank [0-9.]+ [KMG]iB .* --accumulate-locally sends less" "$work/log"
check "  the same loss" close each dp3
check "ZeRO-3 gathers for each use too" as each3 each 6 --pp 2 --zero 3 --batch-tokens 384 --head untied
check "  and says so" grep -qE "and parameters gathered for each use, .* --accumulate-locally --pp-gather step " "$work/log"
check "bf16, one rank" train bf16 1 --dtype bf16 --batch-tokens 256 --head untied
check "bf16, zb-v" as bf16zb bf16 2 --dtype bf16 --pp 2 --batch-tokens 256 --head untied

planned() {  # --print-config knows the memory of a rank of 8 and of 64
  "$program" --print-config --device cpu --preset small --pp 2 --grad-accum 4 --zero "$1" > "$work/log" 2>&1 &&
    [ "$(awk '$1 == "activations" && $3 ~ /^[0-9]+$/ && $4 ~ /^[0-9]+$/' "$work/log" | wc -l)" = 1 ] && ! grep -q sum_squares "$work/log"
}
check "memory of a stage is planned" planned 1
check "refused: too many stages" refused 4 "make 16 stages of 8 blocks" --pp 4 --pp-schedule interleaved --pp-stages-per-rank 4
check "refused: tied dualpipe" refused 2 "nearest: schedule dualpipev" --pp 2 --pp-schedule dualpipe --head tied --batch-tokens 256
check "refused: tied on two ranks, reduced each" refused 4 "nearest: accumulate locally" --pp 2 --pp-schedule 1f1b --head tied --zero 2 \
  --no-accumulate-locally
check "refused: too few micro-batches" refused 2 "needs at least 2 x pp = 4" --pp 2 --pp-schedule dualpipev
check "refused: a cut" refused 2 "these are 7 blocks" --pp 2 --pp-schedule 1f1b --pp-layers 3,4
check "refused: --pp-layers without --pp" refused 1 "and --pp is 1" --pp-layers 3,5
summary
