#!/usr/bin/env bash
# --doc-mask in the whole program: refusals, any number of ranks and ZeRO stage, recomputation, bf16, resume, and with a second
# program the CUDA path on the emulator. Ends with counts.
#
#   test/program/test_documents.sh ./train_llama [./train_llama_simt]
set -uo pipefail
program=$(realpath "$1") simt=${2:+$(realpath "$2")}
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

make_documents "$work/text.bin"
toy="--train-data $work/text.bin --vocab 257 --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8
     --seq-len 48 --val-every 0 --steps 5 --save-every 3 --lr 5e-3 --warmup 1 --logits-mib 1 --device cpu --dtype fp32"
mask="--doc-mask bos --doc-token 256"

train() {  # train RANKS NAME ARGS...
  local ranks=$1 out=$work/$2
  shift 2
  # shellcheck disable=SC2086
  mpirun -n "$ranks" "$program" $toy "$@" --out "$out" > "$work/log" 2>&1
}
emulated() {  # emulated NAME ARGS...
  local out=$work/$1
  shift
  # shellcheck disable=SC2086
  "$simt" ${toy/--device cpu/--device cuda} "$@" --out "$out" > "$work/log" 2>&1
}
# alike NAME NAME TOLERANCE   losses and attention shares of two runs, relative
alike() {
  python3 - "$work/$1" "$work/$2" "$3" <<'PY'
import json, sys
a, b = ([(r["loss"], r.get("attention_share")) for r in map(json.loads, open(p + "/metrics.jsonl")) if "loss" in r] for p in sys.argv[1:3])
assert len(a) == len(b) == 5
sys.exit(any(not abs(x[0] - y[0]) <= float(sys.argv[3]) * x[0] or x[1] != y[1] for x, y in zip(a, b)) and (print(a, b) or 1))
PY
}
same_weights() { cmp "$work/$1/final/model.safetensors" "$work/$2/final/model.safetensors"; }
refuses() {  # refuses CODE TEXT ARGS...
  local code=$1 text=$2 rc=0
  shift 2
  # shellcheck disable=SC2086
  "$program" $toy --out "$work/refused" "$@" > "$work/log" 2>&1 || rc=$?
  [ $rc = "$code" ] && grep -qF -- "$text" "$work/log"
}

check "no token is known"      refuses 2 "give --doc-token ID, or a --data folder" --doc-mask bos
check "beyond the vocabulary"  refuses 2 "nearest: --doc-token 256" --doc-mask bos --doc-token 257
check "a token for nothing"    refuses 2 "nearest: --doc-mask bos" --doc-token 256
check "no such side"           refuses 2 "--doc-mask" --doc-mask between

# shellcheck disable=SC2086
{
  check "one rank"             train 1 one $mask --batch 8
  check "no mask"              train 1 plain --batch 8
  check "attention's share is told" python3 - "$work/one" "$work/plain" <<'PY'
import json, sys
one, plain = ([json.loads(l) for l in open(p + "/metrics.jsonl") if '"loss"' in l] for p in sys.argv[1:3])
# Documents of 22 tokens on average in rows of 48, cut at the ends: their squares are about half of 48 squared.
assert all(0.3 < r["attention_share"] < 0.8 for r in one) and "attention_share" not in plain[0], one
per_token = [r["flops"] / r["tokens_per_second"] for r in (one[0], plain[0])]
attention = 6 * 2 * 32 * 48
assert abs(per_token[1] - per_token[0] - (1 - one[0]["attention_share"]) * attention) < 1e-3 * attention, per_token
assert one[0]["loss"] != plain[0]["loss"]
PY
  check "rows of many tiles"   train 1 tiles $mask --batch 4 --seq-len 192 --max-seq-len 192 --data-order sequential --steps 1
  check "those that attention skips are told" python3 - "$work/text.bin" "$work/tiles/metrics.jsonl" <<'PY'
import json, struct, sys
ids = struct.unpack("<768H", open(sys.argv[1], "rb").read()[1024:1024 + 2 * 768])
step = [json.loads(l) for l in open(sys.argv[2]) if '"loss"' in l][0]
tiles = skipped = 0
for row in range(0, 768, 192):
    start = [max([0] + [s for s in range(1, t + 1) if ids[row + s] == 256]) for t in range(192)]
    for q in range(0, 192, 64):
        for k in range(0, q + 1, 64):
            tiles += 1
            skipped += not any(start[t] <= s <= t for t in range(q, q + 64) for s in range(k, k + 64))
assert (step["attention_tiles"], step["attention_tiles_skipped"]) == (tiles, skipped) and skipped > 0, (step, tiles, skipped)
PY
  check "accumulation"         train 1 accumulated $mask --batch 2 --grad-accum 4
  check "accumulation, alike"  alike one accumulated 1e-6
  check "recompute block"      train 1 block $mask --batch 8 --recompute block
  check "recompute, the bits"  same_weights one block
  check "recompute mlp"        train 1 mlp $mask --batch 8 --recompute mlp
  check "recompute, the bits"  same_weights one mlp
  for zero in 0 1 2 3; do
    check "4 ranks, ZeRO-$zero"        train 4 zero$zero $mask --batch 2 --zero $zero
    check "4 ranks, ZeRO-$zero, alike" alike one zero$zero 1e-6
  done
  check "2 ranks, tensor parallel"        train 2 tp $mask --batch 8 --tp 2
  check "2 ranks, tensor parallel, alike" alike one tp 1e-5
  check "2 ranks, a pipeline"             train 2 pp $mask --batch 2 --grad-accum 4 --pp 2
  check "2 ranks, a pipeline, alike"      alike one pp 1e-6
  check "bf16"                 train 1 bf16 $mask --batch 8 --dtype bf16
  check "bf16, alike"          alike one bf16 4e-3
  cp -r "$work/one" "$work/resumed"
  rm -r "$work/resumed/final" "$work/resumed/checkpoints/step_000000005"
  check "resumed"              train 1 resumed --resume 3
  check "resumed, the bits"    same_weights one resumed
  if [ -n "$simt" ]; then
    check "emulated CUDA"        emulated simt $mask --batch 8
    check "emulated CUDA, alike" alike one simt 1e-4
    check "emulated CUDA, bf16"  emulated simt16 $mask --batch 8 --dtype bf16 --head-dim 64 --heads 2 --kv-heads 1
    check "bf16 on the CPU"      train 1 cpu16 $mask --batch 8 --dtype bf16 --head-dim 64 --heads 2 --kv-heads 1
    check "emulated CUDA, bf16, alike" alike cpu16 simt16 4e-3
  fi
}
summary
