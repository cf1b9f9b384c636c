#!/usr/bin/env bash
# The program's CUDA path on the emulator against its CPU path: the same toy run, the same losses. Ends with counts.
#
#   test/program/test_simt_program.sh ./train_llama_simt ./train_llama
#   ON_A_GPU=1 test/program/test_simt_program.sh ./train_llama ./train_llama      the same on a real one, but for several ranks
# NO_BF16=1: a GPU without bf16 products; ends before what needs them.
set -uo pipefail
simt=$(realpath "$1") cpu=$(realpath "$2")
cd "$(dirname "$0")/../.." || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 RINGZERO_RUNS=
passed=0 failed=0
python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

toy="--data $work/data --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --batch 2 --seq-len 24
     --val-every 0 --val-tokens 48 --steps 5 --save-every 3 --lr 5e-3 --warmup 1 --logits-mib 1 --dtype fp32"

# compare NAME TOLERANCE RUN...: losses of two runs, relative. fp32: sums in another order move a loss of 5 by less than 1e-5 at
# first, and five updates multiply that by about ten. bf16: one rounding is 2^-9; a loss averages hundreds of tokens.
compare() {
  local name=$1 tolerance=$2 a=$3 b=$4
  if python3 - "$a" "$b" "$tolerance" <<'PY'; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $name"; tail -n 20 "$work/log"; fi
import json, sys
a, b = ([json.loads(l)["loss"] for l in open(p + "/metrics.jsonl") if '"loss"' in l] for p in sys.argv[1:3])
print([round(x, 6) for x in a], [round(x, 6) for x in b])
assert len(a) == len(b) == 5
sys.exit(any(not abs(x - y) <= float(sys.argv[3]) * x for x, y in zip(a, b)))
PY
}

# shellcheck disable=SC2086
{
  "$cpu" $toy --device cpu --out "$work/cpu" > "$work/log" 2>&1
  "$simt" $toy --device cuda --out "$work/simt" > "$work/log" 2>&1
  compare "fp32" 1e-4 "$work/cpu" "$work/simt"
  # fp16: one rounding is 2^-12.
  "$cpu" $toy --device cpu --dtype fp16 --out "$work/cpuf16" > "$work/log" 2>&1
  "$simt" $toy --device cuda --dtype fp16 --cuda-graphs on --out "$work/simtf16" > "$work/log" 2>&1
  compare "fp16" 1e-3 "$work/cpuf16" "$work/simtf16"
  compare "fp16 against fp32" 2e-3 "$work/cpu" "$work/simtf16"
  "$simt" $toy --device cuda --batch-tokens 96 --val-every 2 --out "$work/launches" > "$work/log" 2>&1
  "$simt" $toy --device cuda --batch-tokens 96 --val-every 2 --cuda-graphs on --out "$work/graphs" > "$work/log" 2>&1
  compare "CUDA graphs, to the bit" 0 "$work/launches" "$work/graphs"
  if [ "$(grep -c "is one graph from" "$work/log")" = 1 ] && cmp "$work/launches/final/model.safetensors" "$work/graphs/final/model.safetensors"; then
    passed=$((passed + 1))
  else failed=$((failed + 1)); echo "FAILED: one graph, and the same weights"; fi
  "$simt" $toy --device cuda --recompute block --out "$work/recompute" > "$work/log" 2>&1
  compare "recompute, to the bit" 0 "$work/simt" "$work/recompute"
  # A checkpoint of either backend is resumed on the other: the first steps are kept, the rest is compared.
  for pair in "cpu cuda $simt" "simt cpu $cpu"; do
    read -r from device program <<< "$pair"
    mkdir -p "$work/to-$device"
    cp -r "$work/$from/checkpoints" "$work/$from/metrics.jsonl" "$work/to-$device/"
    rm -r "$work/to-$device/checkpoints/step_000000005"
    "$program" --device "$device" --out "$work/to-$device" --resume auto > "$work/log" 2>&1
    compare "from a checkpoint of the other backend, on $device" 1e-4 "$work/$from" "$work/to-$device"
  done
  if [ -n "${NO_BF16:-}" ]; then
    echo "$passed passed, $failed failed"
    exit $((failed > 0))
  fi
  "$cpu" $toy --device cpu --dtype bf16 --out "$work/cpu16" > "$work/log" 2>&1
  "$simt" $toy --device cuda --dtype bf16 --out "$work/simt16" > "$work/log" 2>&1
  compare "bf16" 4e-3 "$work/cpu16" "$work/simt16"
  # fp8: a layer's products are off by 6 % of random sign, which codes on the two sides of a rounding make differ. A loss averages them.
  sides="${toy/--seq-len 24/--seq-len 32}" fp8="--dtype bf16 --fp8 tensor --fp8-skip-blocks 0,1"
  "$cpu" $sides $fp8 --device cpu --out "$work/cpu8" > "$work/log" 2>&1
  "$simt" $sides $fp8 --device cuda --out "$work/simt8" > "$work/log" 2>&1
  compare "fp8" 4e-3 "$work/cpu8" "$work/simt8"
  "$cpu" $sides --dtype bf16 --device cpu --out "$work/cpu8b" > "$work/log" 2>&1
  compare "fp8 against bf16" 1e-2 "$work/cpu8b" "$work/simt8"
  "$simt" $sides $fp8 --device cuda --cuda-graphs on --recompute block --out "$work/simt8g" > "$work/log" 2>&1
  compare "fp8 in graphs with recomputation, to the bit" 0 "$work/simt8" "$work/simt8g"
  if [ -z "${ON_A_GPU:-}" ]; then
    # A card that no file knows: what MFU is measured against is measured, and said to be.
    if grep -q "MFU (of .* TFLOP/s, that a bf16 product of .* reached just now: SIMT emulator" "$work/simt8/log.txt"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: the peak of an unknown card"; fi
    SIMT_ARCH=80 "$simt" $sides $fp8 --device cuda --out "$work/simt80" > "$work/log" 2>&1
    if grep -q "(8.0) has no fp8 products" "$work/log"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: fp8 before 8.9"; fi
    # A T4: fp16 by itself, with the bits of another GPU's fp16 where attention has no tensor cores (head dimension 8); bf16 is refused.
    "$simt" $toy --dtype fp16 --device cuda --out "$work/simtf16a" > "$work/log" 2>&1
    SIMT_ARCH=75 "$simt" ${toy/--dtype fp32/} --device cuda --out "$work/simt75" > "$work/log" 2>&1
    compare "--dtype auto on a T4 is fp16, to the bit" 0 "$work/simtf16a" "$work/simt75"
    turing() {  # turing WORDS FLAGS...
      local words=$1 rc=0
      shift
      SIMT_ARCH=75 "$simt" "$@" > "$work/log" 2>&1 || rc=$?
      if [ $rc = 2 ] && grep -q -- "$words" "$work/log"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: on a T4, exit code $rc: $words"; tail -n 3 "$work/log"; fi
    }
    turing "nearest: --dtype fp16, which scales the loss" $toy --dtype bf16 --device cuda --out "$work/refused"
    turing "nearest: --muon-dtype fp32" $toy --optimizer muon --device cuda --out "$work/refused"
    turing "compute capability 7.5 has no fp8 products" $sides --dtype auto --fp8 tensor --device cuda --out "$work/refused"
    turing "nearest: --dtype fp32" generate --from "$work/simt75" --prompt a --dtype bf16 --device cuda
  fi
  # State on the host: the bits of none of it, but where the CPU's AdamW takes the place of the GPU's. A checkpoint of one way is resumed
  # with another.
  "$simt" $toy --device cuda --dtype bf16 --zero 3 --recompute block --out "$work/here" > "$work/log" 2>&1
  same() { if cmp "$work/here/final/model.safetensors" "$work/$1/final/model.safetensors"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1, to the bit"; tail -n 5 "$work/log"; fi; }
  # The plan's bytes of each kind of memory, on the GPU and pinned on its host, are those of the run's ledger.
  printf 'memory-gib = 64\ngemm-bf16-tflops = 1\ngemm-fp32-tflops = 1\nmemory-gbs = 10\nlink-gbs = 1\ncard-gbs = 1\ncompute-capability = 9.0\n' > "$work/machine.toml"
  planned() {  # planned RUN RANKS FLAGS...
    local run=$1 ranks=$2
    shift 2
    if "$cpu" plan --gpus "$ranks" --gpu "$work/machine.toml" --json - --out "$work/$run" $toy --dtype bf16 --zero 3 --recompute block "$@" > "$work/plan.json" 2> "$work/log" &&
      python3 - "$work/plan.json" "$work/$run/ranks.json" >> "$work/log" 2>&1 << 'PY'; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $run: plan and ledger"; tail -n 8 "$work/log"; fi
import json, sys
plan, run = (json.load(open(p)) for p in sys.argv[1:3])
wrong = [(real["rank"], where, kind, planned[where][kind], real[where][kind])
         for planned, real in zip(plan["planned_ranks"], run, strict=True) for where in ("memory_peak", "host_memory_peak") for kind in real[where]
         if planned[where][kind] != real[where][kind]]
print("rank, side, kind, planned, taken:", wrong)
sys.exit(bool(wrong) or not run)
PY
  }
  planned here 1
  for way in stream zero-copy; do
    "$simt" $toy --device cuda --dtype bf16 --zero 3 --recompute block --offload-optimizer $way --out "$work/offload-$way" > "$work/log" 2>&1
    same "offload-$way"
    planned "offload-$way" 1 --offload-optimizer $way
  done
  for what in params grads activations; do
    "$simt" $toy --device cuda --dtype bf16 --zero 3 --recompute block --offload-$what on --out "$work/offload-$what" > "$work/log" 2>&1
    same "offload-$what"
    planned "offload-$what" 1 --offload-$what on
  done
  all="--offload-optimizer stream --offload-params on --offload-grads on --offload-activations on"
  "$simt" $toy --device cuda --dtype bf16 --zero 3 --recompute block $all --out "$work/offload-all" > "$work/log" 2>&1
  same offload-all
  planned offload-all 1 $all
  "$simt" $toy --device cuda --dtype bf16 --zero 3 --recompute block --offload-optimizer cpu --offload-params on --offload-grads on --out "$work/offload-cpu" > "$work/log" 2>&1
  compare "AdamW of the host" 4e-3 "$work/here" "$work/offload-cpu"
  planned offload-cpu 1 --offload-optimizer cpu --offload-params on --offload-grads on
  # Heads of 128, whose score gradients Hopper's backward pass keeps
  kept=${toy/--head-dim 8/--head-dim 128}
  "$simt" $kept --device cuda --dtype bf16 --zero 3 --recompute block --out "$work/kept" > "$work/log" 2>&1
  toy=$kept planned kept 1
  mkdir -p "$work/offload-resumed" && cp -r "$work/here/checkpoints" "$work/here/metrics.jsonl" "$work/offload-resumed/"
  rm -r "$work/offload-resumed/checkpoints/step_000000005"
  "$simt" --device cuda $all --out "$work/offload-resumed" --resume auto > "$work/log" 2>&1
  same offload-resumed
  # Norms after the branches, and of q and k over all heads
  "$simt" $toy --device cuda --dtype bf16 --zero 3 --recompute block --post-norm on --out "$work/here" --overwrite > "$work/log" 2>&1
  "$simt" $toy --device cuda --dtype bf16 --zero 3 --recompute block --post-norm on $all --out "$work/offload-post" > "$work/log" 2>&1
  same offload-post
  planned offload-post 1 --post-norm on $all
  "$cpu" $sides $fp8 --post-norm on --device cpu --out "$work/cpupost" > "$work/log" 2>&1
  "$simt" $sides $fp8 --post-norm on --device cuda --cuda-graphs on --recompute block --out "$work/simtpost" > "$work/log" 2>&1
  compare "norms after the branches: fp8 in graphs with recomputation" 4e-3 "$work/cpupost" "$work/simtpost"
  refused() { if grep -q -e "$2" "$work/log"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1"; tail -n 5 "$work/log"; fi; }
  "$cpu" $toy --device cpu --offload-optimizer stream --out "$work/refused" > "$work/log" 2>&1
  refused "offload on the CPU" "--offload-optimizer stream: this run is on the CPU"
  if [ -z "${ON_A_GPU:-}" ]; then
    "$simt" --preset llama3.1-70b --data synthetic --device cuda --dtype bf16 --batch 1 --seq-len 128 --offload-optimizer stream > "$work/log" 2>&1
    refused "more than the host has, before anything is allocated" "offload needs 7.* GiB pinned, the host .* free"
    refused "and what would help" "nearest: more ranks, or --adam-dtype bf16"
    "$simt" --preset llama3.1-70b --data synthetic --device cuda --dtype bf16 --batch 1 --seq-len 128 --save-every 5 --out "$work/refused" > "$work/log" 2>&1
    refused "the copy for saves too" "this run needs [0-9.]* .iB pinned, the host .* free"
    "$simt" $toy --dtype bf16 --zero 3 --recompute block $all --out "$work/printed" --print-config > "$work/log" 2>&1
    refused "--print-config: what the bus takes" "NVLink-C2C"
    blocks="--data $work/data --preset bytes --dim 128 --layers 1 --heads 4 --kv-heads 2 --ffn 128 --head-dim 32 --batch 2 --seq-len 64
      --val-every 0 --val-tokens 128 --steps 5 --save-every 0 --lr 5e-3 --warmup 1 --logits-mib 1 --dtype bf16"
    "$cpu" $blocks --fp8 mx --device cpu --out "$work/cpumx" > "$work/log" 2>&1
    SIMT_ARCH=100 "$simt" $blocks --fp8 mx --device cuda --out "$work/simtmx" > "$work/log" 2>&1
    compare "mx" 4e-3 "$work/cpumx" "$work/simtmx"
    SIMT_ARCH=100 "$simt" $blocks --fp8 mx --device cuda --cuda-graphs on --out "$work/simtmxg" > "$work/log" 2>&1
    if grep -q "is one graph from" "$work/log" && cmp "$work/simtmx/final/model.safetensors" "$work/simtmxg/final/model.safetensors"; then
      passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: fp8 mx in graphs, to the bit"; tail -n 5 "$work/log"; fi
    "$cpu" $blocks --fp8 mx --post-norm on --device cpu --out "$work/cpumxpost" > "$work/log" 2>&1
    SIMT_ARCH=100 "$simt" $blocks --fp8 mx --post-norm on --device cuda --cuda-graphs on --out "$work/simtmxpost" > "$work/log" 2>&1
    compare "mx, norms after the branches, in graphs" 4e-3 "$work/cpumxpost" "$work/simtmxpost"
    "$cpu" $blocks --fp8 block --device cpu --out "$work/cpublock" > "$work/log" 2>&1
    "$simt" $blocks --fp8 block --device cuda --cuda-graphs on --out "$work/simtblock" > "$work/log" 2>&1
    compare "fp8 block" 4e-3 "$work/cpublock" "$work/simtblock"
    SIMT_ARCH=100 "$simt" $blocks --fp8 block --device cuda > "$work/log" 2>&1
    refused "blocks on Blackwell" "needs compute capability 9.0, this is 10.0"
    "$simt" $blocks --fp8 mx --device cuda > "$work/log" 2>&1
    refused "mx on Hopper" "needs compute capability 10.0, this is 9.0"
    SIMT_CUBLASLT=120805 "$simt" $blocks --fp8 block --device cuda > "$work/log" 2>&1
    refused "blocks with an older library" "needs cuBLASLt 12.9 or newer; the cuBLASLt found is 12.8"
    SIMT_CUBLASLT=120400 SIMT_ARCH=100 "$simt" $blocks --fp8 mx --device cuda > "$work/log" 2>&1
    refused "mx with an older library" "needs cuBLASLt 12.8 or newer; the cuBLASLt found is 12.4"
  fi
  # Nothing in a step makes the host wait for the device, but for the report of the step before: one event. Counted in what five more
  # steps of three micro-batches add. With a peak given, as the start measures an unknown card's with products until they take long enough.
  [ -n "${ON_A_GPU:-}" ] || for how in "--cuda-graphs off" "--cuda-graphs on" "--adam-dtype bf16 --dtype bf16 --recompute mlp --zero 3"; do
    for steps in 6 11; do
      rm -rf "$work/waits" "$work/waits-$steps"
      SIMT_WAITS=$work/waits-$steps "$simt" ${toy/--steps 5 --save-every 3/--steps $steps --save-every 0} --peak-tflops 1 --device cuda --batch-tokens 144 $how --out "$work/waits" > "$work/log" 2>&1
    done
    more=$(diff <(sort "$work/waits-6") <(sort "$work/waits-11") | grep '^[<>]' | sort | uniq -c | xargs)
    if [ "$more" = "5 > cudaEventSynchronize" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: five steps wait, $how: $more"; fi
  done
  narrow="--dtype bf16 --adam-dtype bf16 --master-dtype bf16"
  "$cpu" $toy --device cpu $narrow --out "$work/cpu_narrow" > "$work/log" 2>&1
  "$simt" $toy --device cuda $narrow --out "$work/simt_narrow" > "$work/log" 2>&1
  compare "bf16 throughout, rounded by the same chance" 4e-3 "$work/cpu_narrow" "$work/simt_narrow"
  timeout 100 "$simt" $toy --steps 1 --dtype bf16 --device cuda --out "$work/scalar" > "$work/log" 2>&1
  timeout 100 "$simt" $toy --steps 1 --dtype fp32 --device cuda --out "$work/scalar32" > "$work/log32" 2>&1
  if grep -q 'head dimension 8 has no tensor-core kernel.*nearest: 64' "$work/log" && ! grep -q 'tensor-core' "$work/log32"; then
    passed=$((passed + 1))
  else failed=$((failed + 1)); echo "FAILED: attention on scalar units in bf16 is said, in fp32 not"; fi
  if [ -z "${ON_A_GPU:-}" ] && command -v mpirun > /dev/null; then
    many="${toy/--batch 2/--batch 1}"
    mpirun -n 2 "$cpu" $many --device cpu --out "$work/cpu2" > "$work/log" 2>&1
    # Blocks as graphs, between which ranks communicate; pool slots change under them, and a validation shares them.
    for how in "--zero 0" "--zero 2 --accumulate-locally" "--zero 3 --transport mpi" "--zero 3 --prefetch 0 --recompute block"; do
      for graphs in off on; do
        rm -rf "${work:?}/$graphs"
        timeout 200 mpirun -n 2 "$simt" $many --batch-tokens 96 --val-every 2 --device cuda $how --cuda-graphs $graphs --out "$work/$graphs" > "$work/log" 2>&1
      done
      compare "CUDA graphs, two ranks, $how, to the bit" 0 "$work/off" "$work/on"
      if grep -q "graphs of their own" "$work/log" && cmp "$work/off/final/model.safetensors" "$work/on/final/model.safetensors"; then
        passed=$((passed + 1))
      else failed=$((failed + 1)); echo "FAILED: graphs of blocks, and the same weights, $how"; fi
    done
    # Three ranks: with two any order of summation gives the same bits. In fp8 the gather of stage 3 carries codes.
    for how in "--zero 0" "--zero 3" "--zero 3 --fp8-gather off --cuda-graphs on"; do
      timeout 200 mpirun -n 3 "$simt" ${sides/--batch 2/--batch 1} $fp8 --grad-dtype fp32 --device cuda --transport mpi $how --out "$work/ranks8${how// /_}" > "$work/log" 2>&1
    done
    if cmp "$work/ranks8--zero_0/final/model.safetensors" "$work/ranks8--zero_3/final/model.safetensors" &&
      cmp "$work/ranks8--zero_0/final/model.safetensors" "$work/ranks8--zero_3_--fp8-gather_off_--cuda-graphs_on/final/model.safetensors"; then
      passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: fp8 on three ranks, stage 3 as stage 0"; tail -n 5 "$work/log"; fi
    # A pipeline tunes before it starts, on rank 0 (the emulator's algorithms differ in their last bits, and its first is made slow). With
    # "on" the weights keep their bits. With bits-free they don't, and a resumed run goes on with its own choices without measuring.
    tune() {  # tune FOLDER FLAGS...
      local out=$work/tune-$1; shift
      timeout 200 mpirun -n 2 "$simt" $many --device cuda --dtype bf16 --grad-dtype fp32 --pp 2 --out "$out" "$@" > "$work/log" 2>&1
    }
    tune off
    export SIMT_CUBLASLT_SLOW=1000
    tune on --gemm-tune on --gemm-cache "$work/gemm.txt"
    tune free --gemm-tune bits-free --save-every 3
    cp -r "$work/tune-free" "$work/tune-again"
    rm -rf "$work"/tune-again/{final,checkpoints/step_000000005}
    unset SIMT_CUBLASLT_SLOW
    tune again --resume auto
    weights=final/model.safetensors
    if [ -s "$work/gemm.txt" ] && cmp "$work/tune-off/$weights" "$work/tune-on/$weights" && ! cmp -s "$work/tune-off/$weights" "$work/tune-free/$weights" &&
      grep -q 'GEMM tuning: [1-9][0-9]* shapes measured, 0 known' "$work/tune-on/log.txt" && [ -s "$work/tune-free/gemm_choices.txt" ] &&
      grep -q 'GEMM tuning: 0 shapes measured, [1-9][0-9]* known' "$work/log" && cmp "$work/tune-free/$weights" "$work/tune-again/$weights"; then
      passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: a pipeline tunes, and a resume keeps its choices"; tail -n 3 "$work/log"; fi
    for transport in nccl mpi; do
      timeout 200 mpirun -n 2 "$simt" $many --device cuda --zero 3 --transport $transport --out "$work/$transport" > "$work/log" 2>&1
      compare "two ranks over $transport, ZeRO-3" 1e-4 "$work/cpu2" "$work/$transport"
    done
    # Three axes: each tensor's parts on two ranks, its stages on two.
    deep="${many/--layers 2/--layers 4} --head untied --batch-tokens 96"
    "$cpu" $deep --device cpu --out "$work/cpu_deep" > "$work/log" 2>&1
    timeout 200 mpirun -n 2 "$simt" $deep --device cuda --tp 2 --transport mpi --out "$work/tp2" > "$work/log" 2>&1
    compare "tp 2 over mpi" 1e-4 "$work/cpu_deep" "$work/tp2"
    # Ranks communicate inside a block: graphs of what lies between, the same bits.
    for how in "--tp 2" "--cp 2" "--cp 2 --cp-exchange ring"; do
      for graphs in off on; do
        rm -rf "${work:?}/$graphs"
        timeout 200 mpirun -n 2 "$simt" $many --batch-tokens 48 --val-every 2 --device cuda $how --cuda-graphs $graphs --out "$work/$graphs" > "$work/log" 2>&1
      done
      compare "CUDA graphs, $how, to the bit" 0 "$work/off" "$work/on"
      if grep -q "graphs of their own" "$work/log" && cmp "$work/off/final/model.safetensors" "$work/on/final/model.safetensors"; then
        passed=$((passed + 1))
      else failed=$((failed + 1)); echo "FAILED: graphs between what ranks exchange, and the same weights, $how"; fi
    done
    timeout 200 mpirun -n 2 "$simt" $deep --device cuda --pp 2 --transport mpi --zero 3 --out "$work/pp2" > "$work/log" 2>&1
    compare "pp 2 over mpi, all on one lane" 1e-4 "$work/cpu_deep" "$work/pp2"
    # Graphs of blocks, one for each slot and what it points to; between them lanes of their own.
    for graphs in off on; do
      timeout 200 mpirun -n 2 "$simt" $deep --device cuda --pp 2 --transport nccl --cuda-graphs $graphs --out "$work/pp2-$graphs" > "$work/log" 2>&1
    done
    compare "pp 2 over nccl" 1e-4 "$work/cpu_deep" "$work/pp2-off"
    if grep -q "graphs of their own" "$work/log" && cmp "$work/pp2-off/final/model.safetensors" "$work/pp2-on/final/model.safetensors"; then
      passed=$((passed + 1))
    else failed=$((failed + 1)); echo "FAILED: CUDA graphs with pp 2, and the same weights"; tail -n 5 "$work/log"; fi
    # Tensors recomputed before a half of the backward pass go into the weight slot.
    for how in "zb-h1 --recompute norms,attention" "zb-v --recompute mlp" "dualpipev --recompute block"; do
      timeout 200 mpirun -n 2 "$simt" $deep --device cuda --pp 2 --pp-schedule $how --out "$work/${how// /_}" > "$work/log" 2>&1
      compare "pp 2, $how" 1e-4 "$work/cpu_deep" "$work/${how// /_}"
    done
    # A product begins with the rows that are here; codes travel, and some are made again from what norms give.
    tp8="$fp8 --batch 1 --ffn 64 --tp 2 --tp-overlap on --recompute norms,mlp"
    mpirun -n 2 "$cpu" $sides $tp8 --device cpu --out "$work/cpu_tp8" > "$work/log" 2>&1
    timeout 200 mpirun -n 2 "$simt" $sides $tp8 --device cuda --out "$work/tp8" > "$work/log" 2>&1
    compare "--tp-overlap on with fp8" 4e-3 "$work/cpu_tp8" "$work/tp8"
    timeout 200 mpirun -n 4 "$simt" $deep --device cuda --tp 2 --pp 2 --transport nccl --out "$work/tp2pp2" > "$work/log" 2>&1
    compare "tp 2 x pp 2 over nccl" 1e-4 "$work/cpu_deep" "$work/tp2pp2"
  fi
}
echo "$passed passed, $failed failed"
[ $failed = 0 ]
