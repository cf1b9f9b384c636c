#!/usr/bin/env bash
# Tensor and sequence parallelism under mpirun, with pipelines and ZeRO too: losses and norms of the same run on one rank,
# bytes as predicted, checkpoints that any layout reads, killed ranks, refusals. Ends with "N passed, N failed".
#
#   test/program/test_tensor.sh ./train_llama           (what make test runs)
#   test/program/test_tensor.sh ./train_llama --all     more layouts
set -uo pipefail
program=$(realpath "$1")
all=${2:-}
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
model=(--data "$work/data" --preset bytes --seq-len 33 --batch 1 --layers 2 --dim 48 --heads 12 --kv-heads 2 --ffn 70 --device cpu
  --threads 1 --steps 10 --lr-schedule constant --warmup 0 --save-every 0 --val-every 0 --val-tokens 66 --timeout 30)

train() {  # train NAME RANKS FLAGS...
  local name=$1 ranks=$2
  shift 2
  timeout 120 mpirun -n "$ranks" "$program" "${model[@]}" "$@" --out "$work/$name" > "$work/log" 2>&1
}
close() {  # close NAME REFERENCE [FIRST STEP [LOSS NORM]]: losses and norms within 1e-5 and 1e-6 (or LOSS, NORM) of each other, same data
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "${3:-0}" "${4:-1e-5}" "${5:-1e-6}" << 'END'
import json, sys
a, b = ([j for j in map(json.loads, open(path)) if j["step"] >= int(sys.argv[3])] for path in sys.argv[1:3])
bounds = {"loss": float(sys.argv[4]), "val_loss": float(sys.argv[4]), "grad_norm": float(sys.argv[5]), "data_hash": 0, "step": 0}
bad = [(x, y) for x, y in zip(a, b) for k, bound in bounds.items()
       if (k in x) != (k in y) or k in x and x[k] != y[k] and (not x[k] or not y[k] or abs(x[k] / y[k] - 1) > bound)]
sys.exit(0 if len(a) == len(b) > 1 and not bad else f"{len(a)} and {len(b)} lines, {bad[:2]}")
END
}
as() { train "$1" "${@:3}" && close "$1" "$2"; }  # as NAME REFERENCE RANKS FLAGS...
refused() {  # refused RANKS TEXT FLAGS...
  local ranks=$1 text=$2
  shift 2
  ! train refused "$ranks" "$@" && grep -qF -- "$text" "$work/log"
}

check "one rank" train one 1 --batch-tokens 66
check "tp 2" as tp2 one 2 --tp 2 --batch-tokens 66
check "  says so" grep -qF "2 ranks share each tensor, fp32 partial sums: 6 of 12 heads and 1 of 2 kv heads" "$work/log"
check "tp 2, products beside their collectives" as overlap one 2 --tp 2 --batch-tokens 66 --tp-overlap on
check "tp 4, kv heads held twice" as tp4 one 4 --tp 4 --batch-tokens 66
# fp8: a part of an operand has a scale of its own, so products differ by the rounding of codes; losses average it out.
fp8=(--dtype bf16 --grad-dtype fp32 --fp8 tensor --dim 96 --ffn 64 --head-dim 16 --heads 4 --seq-len 32 --batch-tokens 64 --val-tokens 64)
check "fp8 on one rank" train fp8 1 "${fp8[@]}"
near() { train "$1" "${@:2}" && close "$1" fp8 0 1e-2 0.2; }
check "fp8, tp 2" near fp8tp 2 "${fp8[@]}" --tp 2
check "  beside its collectives, to the bit" as fp8overlap fp8tp 2 "${fp8[@]}" --tp 2 --tp-overlap on
check "fp8, cp 2" near fp8cp 2 "${fp8[@]}" --cp 2
check "fp8, pp 2, to the bit" as fp8pp fp8 2 "${fp8[@]}" --pp 2 --pp-schedule 1f1b
# The first rank has the first and the last block, which are not in fp8: it gathers none.
skipped=("${fp8[@]}" --layers 4 "--fp8-skip-blocks=1,1")
check "fp8 but for the outer blocks, on one rank" train outer 1 "${skipped[@]}"
check "fp8, a rank of skipped blocks alone, to the bit" as outerpp outer 2 "${skipped[@]}" --zero 3 --pp 2 --pp-schedule zb-v
# With tiles a part that holds whole ones has the codes of the whole: sums in another order are left, as in bf16.
tiles=(--dtype bf16 --grad-dtype fp32 --dim 128 --ffn 256 --head-dim 128 --heads 2 --kv-heads 2 --seq-len 128 --batch-tokens 256 --val-tokens 128 --steps 3)
for recipe in block mx; do
  check "fp8 $recipe on one rank" train $recipe 1 "${tiles[@]}" --fp8 $recipe
  tiled() { train "$1" "${@:3}" && close "$1" "$2" 0 1e-3 1e-2; }
  check "fp8 $recipe, tp 2" tiled ${recipe}tp $recipe 2 "${tiles[@]}" --fp8 $recipe --tp 2 --tp-wire fp32
  check "fp8 $recipe, pp 2, to the bit" as ${recipe}pp $recipe 2 "${tiles[@]}" --fp8 $recipe --pp 2 --pp-schedule 1f1b
done
check "two data ranks" train dp2 2 --batch-tokens 132 --head untied
check "tp 2 x dp 2, ZeRO-3" as tp2dp2 dp2 4 --tp 2 --zero 3 --batch-tokens 132 --head untied
check "data ranks side by side" as order dp2 4 --tp 2 --zero 1 --axis-order dp,tp,cp,pp --batch-tokens 132 --head untied
check "  drawn" grep -qF "pp 0: [0 2] [1 3]" "$work/log"
check "refused: an order" refused 1 "nearest: tp,cp,dp,pp" --axis-order tp,tp,dp,pp
if [ -n "$all" ]; then
  for zero in 0 1 2; do
    check "tp 2 x dp 2, ZeRO-$zero" as "tp2zero$zero" dp2 4 --tp 2 --zero $zero --batch-tokens 132 --head untied
  done
  check "tp 3, no kv head of its own" train kv1 1 --kv-heads 1
  check "tp 3" as tp3 kv1 3 --tp 3 --kv-heads 1
fi
# Three axes on eight ranks, and what they send.
deep=(--layers 4 --head untied)
check "four blocks, two data ranks" train deep 2 "${deep[@]}" --batch-tokens 264
three=(--tp 2 --pp 2 "${deep[@]}")
check "tp 2 x pp 2 x dp 2, ZeRO-3, zb-v" as three deep 8 "${three[@]}" --zero 3 --batch-tokens 264
check "  draws who is where" grep -qF "pp 1: [4 5] [6 7]" "$work/log"
sent() {  # sent FLAGS...: each step of `three` sent what --print-config says of 8 ranks
  "$program" "${model[@]}" "$@" --print-config > "$work/log" 2>&1 || return 1
  python3 - "$work/log" "$work/three/metrics.jsonl" << 'END'
import json, sys
rows = [line.split() for line in open(sys.argv[1]).read().split("bytes that it sends", 1)[1].splitlines()]
want = sum(int(r[2]) for r in rows if len(r) == 4 and r[0] in ("tp", "pp", "data", "replicate", "model") and r[2].isdigit())
steps = [j for j in map(json.loads, open(sys.argv[2])) if "bytes_sent" in j]
assert {j["bytes_sent"] for j in steps} == {want} and want > 0, (steps[0], want)
by_axis = {r[0]: int(r[2]) for r in rows if len(r) == 4 and r[0] in ("tp", "pp", "data", "replicate", "model") and r[2] != "0"}
for j in steps:
    assert {axis: of["bytes_sent"] for axis, of in j["axes"].items()} == by_axis, (j, by_axis)
    assert j["axes"]["tp"]["seconds"] > 0 and j["axes"]["data"]["seconds"] > 0, j
END
}
check "  and sends what --print-config says" sent "${three[@]}" --zero 3 --batch-tokens 264
places() {  # each rank's report says where it stands
  python3 -c "
import json, sys
ranks = json.load(open(sys.argv[1]))
sys.exit([(r['tp'], r['cp'], r['dp'], r['pp']) for r in ranks] != [(r % 2, 0, r // 2 % 2, r // 4) for r in range(8)])" "$work/three/ranks.json"
}
check "  its ranks' report knows the axes" places
check "  on the console too" grep -qE "^    on tp +[0-9.]+ [KM]iB  rank" "$work/three/log.txt"
if [ -n "$all" ]; then
  for zero in 0 1 2; do
    check "tp 2 x pp 2 x dp 2, ZeRO-$zero" as "three$zero" deep 8 "${three[@]}" --zero $zero --batch-tokens 264
  done
  check "tp 2 x pp 2 x dp 2, 1f1b, recomputed" as threere deep 8 "${three[@]}" --recompute block --batch-tokens 264
  check "tp 4 x pp 2, no data axis" as tp4pp2 deep 8 --tp 4 --pp 2 "${deep[@]}" --batch-tokens 264
fi
check "no step" train none 2 --tp 2 --steps 0 --overwrite
check "  the loss of one rank" train none1 1 --steps 0
check "  the same weights" cmp "$work/none/final/model.safetensors" "$work/none1/final/model.safetensors"
bad_gradient() { FAULT=gradient:$1:3:nan train "${@:2}" --steps 6 --batch-tokens 66; }  # bad_gradient RANK NAME RANKS FLAGS...
check "a gradient that is no number, one rank" bad_gradient 0 bad 1
check "  on one rank of tp 2" bad_gradient 1 bad2 2 --tp 2
check "  all skip the update" close bad2 bad
clipped() { as "$@" --max-grad-norm 0.2 --steps 4 && python3 -c "
import json
assert all(j['grad_norm'] > 0.2 for j in map(json.loads, open('$work/$1/metrics.jsonl')) if 'grad_norm' in j)"; }
check "clipped, one rank" train clip 1 --batch-tokens 66 --max-grad-norm 0.2 --steps 4
check "  on tp 2" clipped clip2 clip 2 --tp 2 --batch-tokens 66
check "  which changes the losses" eval '! close clip2 one'
# A rank that is late at each step is named: the others' waiting for it does not count as their own time.
late() { FAULT="step:1:*:sleep=0.4" train "$@" --steps 8 && grep -q "slow     rank 1 computes" "$work/log"; }
check "a slow rank on the tp axis is named" late late_tp 2 --tp 2
check "  with overlap" late late_overlap 2 --tp 2 --tp-overlap on
check "a slow stage is named" late late_pp 2 --pp 2 --pp-schedule 1f1b --grad-accum 2
check "bf16" train bf16 2 --tp 2 --dtype bf16
check "bf16, partial sums in fp32" train bf16wide 2 --tp 2 --dtype bf16 --tp-wire fp32

# With our own products, whose rows do not depend on each other, overlap changes no bit.
own_products() { RZ_GEMM=own train "$@" && grep -q "own loops GEMM" "$work/log"; }
check "our own products" own_products own 2 --tp 2 --batch-tokens 66
check "  beside their collectives" own_products ownoverlap 2 --tp 2 --batch-tokens 66 --tp-overlap on
check "  the same bits" cmp "$work/own/final/model.safetensors" "$work/ownoverlap/final/model.safetensors"

# Saved by one layout, resumed by another: the files hold whole tensors (their bytes: test/llama/mpi_layouts.cpp).
check "saves at tp 2" train half2 2 --tp 2 --steps 5 --save-every 5 --batch-tokens 66
check "saves at tp 1" train half1 1 --steps 5 --save-every 5 --batch-tokens 66
for way in "half2 1 --tp 1" "half2 4 --tp 4" "half1 2 --tp 2" "half2 4 --tp 2 --zero 2"; do
  # shellcheck disable=SC2086
  set -- $way
  rm -rf "$work/resumed" "$work/loaded"
  cp -r "$work/$1" "$work/resumed" && cp -r "$work/$1" "$work/loaded" && rm -r "$work/loaded/final"
  check "$way: loads" train loaded "${@:2}" --resume auto --steps 5
  check "  the same weights" cmp "$work/loaded/final/model.safetensors" "$work/$1/final/model.safetensors"
  check "  resumes" train resumed "${@:2}" --resume auto --steps 10
  check "  as one rank does" close resumed one 6
done

text() { "$program" generate --from "$work/half2" --prompt "def " --max-tokens 5 --device cpu > "$work/log" 2>&1; }
check "text from a checkpoint of tp 2, in one process" text
check "documents in a row, one rank" train texts1 1 --doc-mask eos --doc-token 10 --steps 4
check "documents in a row, tp 2" as texts2 texts1 2 --tp 2 --doc-mask eos --doc-token 10 --steps 4

# A rank of any axis that is killed or stopped, then the run resumed, there and on one rank.
even=("${deep[@]}" --batch-tokens 132 --steps 6)
check "whole run" train whole 8 --tp 2 --pp 2 "${even[@]}"
check "  on one rank" train alone 1 "${even[@]}"
faulty() {  # faulty NAME RANK ACTION: tp 2 x dp 2 x pp 2, a fault in step 4 of 6; a rank that is stopped is named
  local rc=0
  FAULT=step:$2:4:$3 timeout 100 mpirun -n 8 "$program" "${model[@]}" "${even[@]}" --tp 2 --pp 2 --save-every 2 --no-background-save \
    --timeout 4 --out "$work/$1" > "$work/log" 2>&1 || rc=$?
  [ $rc != 0 ] && [ $rc != 124 ] && { [ "$3" = kill ] || grep -qE "rank $2 .*step 4.*(silent|stopped)" "$work/log"; }
}
faults=("1 kill" "1 stop" "2 kill" "2 stop" "4 kill" "4 stop")  # rank 0's neighbour on tp, dp, pp
for fault in "${faults[@]}"; do
  name=fault${fault/ /}
  # shellcheck disable=SC2086
  check "rank $fault: ends" faulty "$name" $fault
  rm -rf "$work/elsewhere"
  cp -r "$work/$name" "$work/elsewhere"
  check "  resumes" train "$name" 8 --tp 2 --pp 2 "${even[@]}" --resume auto
  check "  the same bits" cmp "$work/$name/final/model.safetensors" "$work/whole/final/model.safetensors"
  check "  resumes on one rank" train elsewhere 1 "${even[@]}" --resume auto
  check "  as one rank does" close elsewhere alone 5
done

# A spike of the loss: back to the checkpoint before it, as one rank does.
rolls=(--steps 36 --save-every 5 --keep 0 --on-spike rollback --rollback-steps 8 --rollback-skip 3)
rolled() { FAULT='loss:*:30:spike' train "$@" && grep -q "rollback spike of the loss, z .* at step 30 .*: on from step 20" "$work/log"; }
check "rollback on one rank" rolled rolled1 1 "${rolls[@]}" --seq-len 32 --batch-tokens 64 --val-tokens 64
check "rollback on tp 2 x cp 2" rolled rolled4 4 --tp 2 --cp 2 "${rolls[@]}" --seq-len 32 --batch-tokens 64 --val-tokens 64
check "  as one rank does" close rolled4 rolled1 0 1e-4 1e-3
# Copies that several ranks of the tp axis hold are compared, at any ZeRO stage.
check "replicas are alike" train alike 4 --tp 2 --zero 2 --check-replicas 1 --steps 3
for damaged in weights moments; do
  differs() {
    ! FAULT=$damaged:1:3:flip train differs 4 --tp 2 --zero 0 --head tied --check-replicas 1 --batch-tokens 66 --steps 5 --overwrite &&
      grep -qE "step 3: .*rank [01] \(hash [0-9a-f]+\), rank [01] .*one of the two is wrong, in model.norm.weight" "$work/log"
  }
  check "$damaged that differ on a tp rank are named" differs
done

check "refused: a tile that the cut goes through" refused 2 "ffn 128 is not a multiple of --tp 2 x 128, which fp8 products need" "${tiles[@]}" --fp8 block --tp 2 --ffn 128
check "refused: heads" refused 5 "nearest: --tp 4 or 6" --tp 5
check "refused: kv heads" refused 3 "of 2 kv heads and 3 ranks one must divide the other" --tp 3
check "refused: ranks" refused 3 "2 does not divide 3" --tp 2
# Samples: each rank has a part of the vocabulary's logits, and the text is that of one rank.
sampled=(--steps 2 --val-every 1 --sample-every 1 --sample-tokens 12 --prompt "def " --grad-accum 2)
drawn() { sed -n '/^--- sample/,/^---$/p' "$work/log"; }
for layout in 1 "2 --tp 2" "4 --tp 4 --tp-overlap on" "4 --tp 2 --pp 2 --zero 3" "1 --post-norm on" "4 --tp 4 --post-norm on"; do
  # shellcheck disable=SC2086
  check "samples on $layout" train sampled $layout "${sampled[@]}" --overwrite
  case $layout in 1*) text=$(drawn) ;; esac
  check "  the same text" test -n "$text" -a "$(drawn)" = "$text"
done

check "refused: graphs with overlap" refused 2 "nearest: --tp-overlap off" --tp 2 --tp-overlap on --cuda-graphs on
check "refused: --tp-wire without --tp" refused 1 "nearest: --tp 2" --tp-wire fp32
summary
