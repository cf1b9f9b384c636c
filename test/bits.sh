#!/usr/bin/env bash
# The same commands with two builds on this machine: do they give the same bits? Compares the weights, the optimizer's
# files of the last checkpoint, and loss, grad_norm, lr and data_hash of metrics.jsonl. Ends with "N passed, N failed".
#
#   test/bits.sh BASELINE NEW [--summed-since DIR] [--cut-since DIR] [--only PATTERN] [--configs DIR] [--list]
#
#   git worktree add ../base 3dc1a36 && make -C ../base train_llama train_llama_simt
#   test/bits.sh ../base .
#   make test-baseline BASE=3dc1a36        does so for the CPU, and compares plans, ops, --help and more (test/baseline.py)
#
# BASELINE and NEW are folders with train_llama and, for the emulated CUDA cases, train_llama_simt.
# --summed-since DIR   a third build: the cases of more than one micro-batch on the CPU are compared with it, not with BASELINE.
#                      The gradients of norm weights are summed per micro-batch first since the commit "rmsnorm: dw of a
#                      micro-batch is summed from zero"; that commit is the baseline of these cases.
# --cut-since DIR      likewise the cases whose name ends in -cut: three ranks and more whose units are large enough for
#                      equal slices. The ring sums a value in an order that its owner begins, and owners are others since
#                      f6cf2a6. One and two ranks, and direct, give the bits of before.
set -uo pipefail
usage() { sed -n '5,8p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
[ $# -ge 2 ] || usage
base=$(realpath "$1") new=$(realpath "$2") since='' cut_since='' only='' configs='' list=0
shift 2
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=$2; shift 2 ;;
    --summed-since) since=$(realpath "$2"); shift 2 ;;
    --cut-since) cut_since=$(realpath "$2"); shift 2 ;;
    --configs) configs=$2; mkdir -p "$2"; shift 2 ;;  # keeps each config.toml: NAME.a.toml and NAME.b.toml
    --list) list=1; shift ;;
    *) usage ;;
  esac
done
cd "$(dirname "$0")/.." || exit
. test/program/check.sh
export OMP_WAIT_POLICY=passive RZ_SIMD=${RZ_SIMD:-}
[ -n "$RZ_SIMD" ] || unset RZ_SIMD

# Token shards of a text that repeats: 2,000 tokens, then 20,000, so that a shard and an epoch end within the runs.
python3 - "$work" <<'PY'
import random, struct, sys
r = random.Random(1)
for name, n in (("a", 2000), ("b", 20000), ("v", 3000)):
    with open(f"{sys.argv[1]}/{name}.bin", "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253))
        f.write(struct.pack(f"<{n}H", *[(i * i * 7 + r.randrange(9)) % 251 for i in range(n)]))
PY
toy="--train-data $work/a.bin,$work/b.bin --val-data $work/v.bin --preset bytes --dim 48 --layers 3 --heads 6 --kv-heads 2
     --ffn 80 --head-dim 8 --batch 2 --seq-len 24 --val-every 3 --val-tokens 480 --steps 6 --save-every 6 --lr 5e-3 --warmup 2
     --logits-mib 1 --seed 11 --timeout 60 --dtype fp32"

# run BUILD WHAT RANKS THREADS OUT FLAGS...
run() {
  local build=$1 what=$2 ranks=$3 threads=$4 out=$5 launcher='' program=train_llama device=cpu
  shift 5
  [ "$ranks" = 1 ] || launcher="mpirun -n $ranks"
  [ "$what" = cpu ] || { program=train_llama_simt device=cuda; }
  # shellcheck disable=SC2086
  OMP_NUM_THREADS=$threads timeout 300 $launcher "$build/$program" $toy --device $device --out "$out" "$@" > "$work/log" 2>&1
}
same_bits() {
  python3 - "$1" "$2" >> "$work/log" 2>&1 <<'PY'
import glob, json, os, sys
a, b = sys.argv[1:]
names = [sorted(os.path.relpath(p, d) for p in glob.glob(d + "/**/*.safetensors", recursive=True)) for d in (a, b)]
assert names[0] == names[1], names
assert len(names[0]) >= 2, "no weights and no checkpoint"
for n in names[0]:
    x, y = (open(os.path.join(d, n), "rb").read() for d in (a, b))
    assert x == y, f"{n} differs ({len(x)} and {len(y)} bytes)"
def rows(d):
    out = []
    for line in open(d + "/metrics.jsonl"):
        r = json.loads(line)
        out.append({k: r[k] for k in ("step", "loss", "grad_norm", "lr", "data_hash", "val_loss") if k in r})
    return out
x, y = rows(a), rows(b)
assert len(x) >= 6, "too few steps"
assert x == y, next((p, q) for p, q in zip(x, y) if p != q)
print(len(names[0]), "files,", len(x), "rows: equal")
PY
}
number=0
# bits NAME WHAT RANKS THREADS FLAGS...    a resume in the middle: --cut STEP as the first flag
bits() {
  local name=$1 what=$2 ranks=$3 threads=$4 cut='' from=$base d build ok=1
  shift 4
  [ "${1:-}" != --cut ] || { cut=$2; shift 2; }
  if [ -n "$only" ] && [[ ! $name =~ $only ]]; then return; fi
  if [ $list = 1 ]; then echo "$name: $what, $ranks ranks, $threads threads, $*"; return; fi
  if [ "$what" = simt ] && ! { [ -x "$base/train_llama_simt" ] && [ -x "$new/train_llama_simt" ]; }; then
    skip "$name: no train_llama_simt"
    return
  fi
  if [ "$what" = cpu ] && [ -n "$since" ] && [[ "$*" = *--batch-tokens* ]]; then from=$since; fi
  if [[ $name = *-cut ]]; then
    if [ -z "$cut_since" ]; then skip "$name: no --cut-since"; return; fi
    from=$cut_since
  fi
  number=$((number + 1))
  d=$work/$number
  for build in "$from" "$new"; do
    local out=$d/a
    [ "$build" = "$from" ] && [ ! -e "$d/a" ] || out=$d/b
    if [ -n "$cut" ]; then
      run "$build" "$what" "$ranks" "$threads" "$out" --save-every "$cut" --keep 0 "$@" || ok=0
      rm -rf "$out/final" "$out"/checkpoints/step_000000006
      run "$build" "$what" "$ranks" "$threads" "$out" --resume "$cut" --keep 0 || ok=0
    else
      run "$build" "$what" "$ranks" "$threads" "$out" "$@" || ok=0
    fi
  done
  [ -z "$configs" ] || for build in a b; do cp "$d/$build/config.toml" "$configs/$name.$build.toml" || ok=0; done
  if [ $ok = 1 ]; then check "$name" same_bits "$d/a" "$d/b"; else check "$name: a run failed" false; fi
  rm -rf "$d"
}

twice="--batch-tokens"  # of an update: two micro-batches of 2 x 24 tokens on each rank
for dtype in fp32 bf16; do
  bits "one-$dtype" cpu 1 1 --dtype $dtype
  bits "one-threads-2-$dtype" cpu 1 2 --dtype $dtype
  bits "one-accumulated-$dtype" cpu 1 1 --dtype $dtype $twice 96
  bits "one-tied-$dtype" cpu 1 1 --dtype $dtype --head tied
  bits "one-resumed-$dtype" cpu 1 1 --cut 3 --dtype $dtype
  for recompute in mlp block; do bits "one-recompute-$recompute-$dtype" cpu 1 1 --dtype $dtype --recompute $recompute; done
  for zero in 0 1 2 3; do
    bits "three-zero-$zero-$dtype" cpu 3 1 --dtype $dtype --zero $zero
    bits "three-zero-$zero-accumulated-$dtype" cpu 3 1 --dtype $dtype --zero $zero $twice 288
    bits "three-zero-$zero-tied-$dtype" cpu 3 1 --dtype $dtype --zero $zero --head tied
  done
done
for zero in 1 2 3; do
  bits "one-zero-$zero" cpu 1 1 --zero $zero
  bits "four-hybrid-zero-$zero" cpu 4 1 --zero $zero --shard-size 2
  bits "three-zero-$zero-no-overlap" cpu 3 1 --zero $zero --no-overlap
done
for zero in 2 3; do
  bits "three-zero-$zero-accumulated-locally" cpu 3 1 --zero $zero $twice 288 --accumulate-locally
  bits "three-zero-$zero-resumed" cpu 3 1 --cut 3 --zero $zero
done
bits four-zero-3-direct cpu 4 1 --zero 3 --collectives direct
bits four-zero-3-prefetch-3 cpu 4 1 --zero 3 --prefetch 3
bits four-zero-3-recompute-block cpu 4 1 --zero 3 --recompute block $twice 384
bits three-narrow cpu 3 1 --zero 2 --dtype bf16 --adam-dtype bf16 --master-dtype bf16
bits one-fp32-gradients cpu 1 1 --dtype bf16 --grad-dtype fp32 $twice 96
bits one-many-chunks-of-logits cpu 1 2 --vocab 40000
# An embedding and a head of 556,800 and 638,400 elements: equal slices on 2 ranks and on 3, which end within a block of
# the norm.
bits two-equal-zero-0 cpu 2 1 --vocab 11600
bits two-equal-zero-2 cpu 2 1 --vocab 11600 --zero 2 --dtype bf16
bits two-equal-zero-3 cpu 2 1 --vocab 11600 --zero 3
bits three-equal-zero-3-direct cpu 3 1 --vocab 13300 --zero 3 --collectives direct
for zero in 0 2 3; do bits three-equal-zero-$zero-cut cpu 3 1 --vocab 13300 --zero $zero; done
bits four-equal-zero-3-cut cpu 4 1 --vocab 11600 --zero 3
for dtype in fp32 bf16; do
  bits "cuda-one-$dtype" simt 1 1 --dtype $dtype
  bits "cuda-one-accumulated-$dtype" simt 1 1 --dtype $dtype $twice 96
done
bits cuda-one-tied simt 1 1 --head tied
bits cuda-one-recompute-block simt 1 1 --recompute block
bits cuda-one-recompute-mlp simt 1 1 --dtype bf16 --recompute mlp
bits cuda-one-graphs simt 1 1 --cuda-graphs on $twice 96
bits cuda-one-resumed simt 1 1 --cut 3
bits cuda-three-zero-3 simt 3 1 --zero 3 $twice 288
bits cuda-three-zero-2-graphs simt 3 1 --zero 2 --cuda-graphs on
[ $list = 1 ] || summary
