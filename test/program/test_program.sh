#!/usr/bin/env bash
# The program as a user runs it: flags, files, one and several ranks. Ends with "N passed, N failed".
#
#   test/program/test_program.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

says() { grep -qF -- "$1" "$work/log"; }
# refused CODE TEXT... -- ARGS...   the program exits with CODE and says each TEXT
refused() {
  local code=$1 rc=0
  shift
  local texts=()
  while [ "$1" != -- ]; do texts+=("$1"); shift; done
  shift
  "$program" "$@" > "$work/log" 2>&1 || rc=$?
  [ $rc = "$code" ] || { echo "exit code $rc, expected $code: $*"; return 1; }
  for t in "${texts[@]}"; do says "$t" || { echo "does not say: $t"; return 1; }; done
}
trained() {  # trained ARGS...
  local shape=(--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8)
  [[ " $* " == *" --init-from "* ]] && shape=()  # the model is the folder's
  "$program" --data "$work/data" --device cpu "${shape[@]}" --batch 2 --seq-len 32 --val-tokens 512 "$@" > "$work/log" 2>&1
}

python3 data_prep/prepare.py stdlib --max-bytes 400K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

# ---- what can't be honoured is refused, with the nearest valid value ----
check "4x"              refused 2 "nearest valid value: 4" -- --batch 4x
check "1e99"            refused 2 "nearest valid value" -- --steps 1e99
check "negative"        refused 2 "nearest valid value: 1" -- --seq-len -3
check "lr text"         refused 2 "is not a number" -- --lr fast
check "unknown flag"    refused 2 "did you mean --steps" -- --stepz 3
check "unknown preset"  refused 2 "nearest: tiny" -- --preset tinny
check "missing value"   refused 2 "--steps" -- --steps
check "batch-tokens"    refused 2 "nearest: --batch-tokens 448 (7 micro-batches) or --batch-tokens 512 (8)" -- \
  --data "$work/data" --batch 2 --seq-len 32 --batch-tokens 500
check "too long"        refused 2 "nearest: --seq-len 2048" -- --data "$work/data" --seq-len 4096
check "no copies"       refused 2 "no parameter is held twice" -- --data "$work/data" --check-replicas 5 --device cpu
check "no validation"   refused 2 "--sample-every: there are no validation data" -- --device cpu --seq-len 32 \
  --train-data "$work/data/*_train_*.bin" --sample-every 1
check "val-every alone" refused 2 "--val-every: there are no validation data" -- --device cpu --seq-len 32 \
  --train-data "$work/data/*_train_*.bin" --val-every 10
check "no data"         refused 2 "data_prep/prepare.py" -- --steps 1
check "no such data"    refused 70 "data_prep/prepare.py" -- --data "$work/nothing"
check "cuda asked for"  bash -c "nvidia-smi -L >/dev/null 2>&1 || { '$program' --device cuda --data '$work/data' > '$work/log' 2>&1; [ \$? = 70 ] && grep -q 'device cpu or auto' '$work/log'; }"
printf 'stepz = 3\n' > "$work/bad.toml"
check "config key"      refused 2 "did you mean steps" -- --config "$work/bad.toml"

# ---- help and descriptions ----
check "a start opens no cuBLASLt, 200 MB" bash -c "! ldd '$program' | grep cublasLt"
"$program" --help > "$work/log" 2>&1
check "help lists groups and defaults" bash -c "grep -q '^Optimizer (' '$work/log' && grep -q -- '--weight-decay X=0.1' '$work/log'"
check "help ends with the exit codes" bash -c "grep -A 9 '^Exit codes:' '$work/log' | grep -qP '^  75\tstopped on request'"
"$program" --presets > "$work/log" 2>&1
check "presets" says llama3.1-405b
"$program" --preset llama3.1-405b --print-config > "$work/log" 2>&1
check "print-config" says "model.layers.0.self_attn.q_proj.weight"
check "plans memory that this machine does not have" says "3247060292051"  # bytes of m and v

# ---- a run, its files, and generation from them ----
silent() { trained --steps 2 --val-every 0 --out "$work/quiet" --quiet && [ ! -s "$work/log" ] && grep -q "step 2/2" "$work/quiet/log.txt"; }
check "--quiet prints nothing; log.txt has it" silent
check "trains" trained --steps 6 --val-every 3 --lr 1e-2 --out "$work/run" --sample-every 1 --sample-tokens 8
check "says the loss" says "step 6/6 | loss"
check "validates" says "bits per byte"
check "samples" says "--- sample"
check "metrics are JSON, one line per step and validation" python3 -c "
import json
rows = [json.loads(line) for line in open('$work/run/metrics.jsonl')]
assert [r['step'] for r in rows if 'loss' in r] == [1, 2, 3, 4, 5, 6], rows
validations = [r for r in rows if 'val_loss' in r]
assert [r['step'] for r in validations] == [0, 3, 6], rows
assert validations[-1]['val_loss'] < validations[0]['val_loss']"
check "a loss curve" grep -q '<svg' "$work/run/loss.svg"
check "TensorBoard's events" bash -c "ls '$work'/run/events.out.tfevents.* > /dev/null"
"$program" generate --from "$work/run/final" --prompt "def " --max-tokens 12 --seed 3 > "$work/text1" 2> "$work/log"
check "generates" grep -q '^def ' "$work/text1"
"$program" generate --from "$work/run/final" --prompt "def " --max-tokens 12 --seed 3 > "$work/text2" 2> "$work/log"
check "the same seed, the same text" cmp -s "$work/text1" "$work/text2"
check "trains on from saved weights" trained --init-from "$work/run/final" --steps 1 --lr 1e-3
loss() { sed -n 's/.*step  *1\/[0-9]* | loss \([0-9.]*\).*/\1/p' "$work/log"; }
check "with a better loss than at first" python3 -c "import sys; sys.exit(not float('$(loss)') < 4.5)"
printf 'steps = 2\nval-every = 0\n' > "$work/good.toml"
check "config file" trained --config "$work/good.toml"
check "honours it" says "step 2/2"
check "bf16" trained --steps 2 --dtype bf16 --recompute block --batch-tokens 256

# ---- a source of known entropy ----
python3 data_prep/prepare.py synthetic --tokens 500000 --val-tokens 40000 --out "$work/synthetic" > "$work/log" 2>&1
"$program" --device cpu --data "$work/synthetic" --preset bytes --dim 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 --ffn 128 \
  --batch 16 --seq-len 64 --steps 300 --lr 1e-2 --val-every 0 --val-tokens 32768 --out "$work/entropy" > "$work/log" 2>&1
check "reaches a source's entropy within 3 %" python3 -c "
import json
rows = [json.loads(line) for line in open('$work/entropy/metrics.jsonl')]
loss = [r['val_loss'] for r in rows if 'val_loss' in r][-1]
source = json.load(open('$work/synthetic/entropy.json'))
print(loss, source)
assert 0.99 * source['val_source_nats_per_token'] < loss < 1.03 * source['entropy_nats_per_token']
assert loss < 0.8 * source['unigram_nats_per_token']  # it learned the order, not only the letters"

# ---- several ranks ----
if command -v mpirun >/dev/null && ldd "$program" | grep 'libmpi' > /dev/null; then
  weights() {  # weights DIR RANKS ARGS...: trains and prints the hash of the final weights
    local dir=$1 ranks=$2
    shift 2
    timeout 120 mpirun -n "$ranks" "$program" --data "$work/data" --device cpu --preset bytes --dim 32 --layers 2 --heads 4 \
      --kv-heads 2 --ffn 48 --head-dim 8 --batch 1 --seq-len 32 --val-every 0 --val-tokens 256 --steps 4 --out "$work/$dir" "$@" \
      > "$work/log" 2>&1 && sha256sum < "$work/$dir/final/model.safetensors"
  }
  reference=$(weights z0 3 --zero 0)
  check "three ranks" test -n "$reference"
  for stage in 1 2 3; do
    check "--zero $stage, same weights" test "$(weights z$stage 3 --zero $stage)" = "$reference"
  done
  check "--collectives direct" test -n "$(weights direct 3 --zero 2 --collectives direct)"
  check "--collectives library" test -n "$(weights library 3 --zero 2 --collectives library)"
  check "a trace of two ranks" test -n "$(weights trace 2 --zero 3 --trace-steps 5)"
  check "says where it is" says "trace.json"
  check "its timeline" python3 -c "
import json
events = json.load(open('$work/trace/trace.json'))['traceEvents']
spans = [e for e in events if e['ph'] == 'X']
for rank in (0, 1):
    own = [e for e in spans if e['pid'] == rank]
    assert [e['name'] for e in own if e['tid'] == 0] == ['step 3', 'step 4'], own
    assert {'RmsnormForward', 'AttentionBackward', 'AdamW'} & {e['name'] for e in own if e['tid'] == 1}, own
    assert any(e['name'] == 'reduce_scatter' and e['args']['bytes_sent'] > 0 for e in own if e['tid'] == 2)
    for tid in (1, 2):  # a stream does one thing at a time
        row = sorted((e['ts'], e['ts'] + e['dur']) for e in own if e['tid'] == tid and not e['name'].startswith('wait'))
        assert all(b[0] >= a[1] - 0.01 for a, b in zip(row, row[1:])), (rank, tid)"
  check "its memory: never more than the ledger's peak, and every change has a name" python3 -c "
import json, re
events = json.load(open('$work/trace/trace.json'))['traceEvents']
for rank in json.load(open('$work/trace/ranks.json')):
    own = [e for e in events if e['pid'] == rank['rank']]
    counts = [e for e in own if e['ph'] == 'C']
    assert counts and all(0 < sum(e['args'].values()) <= rank['memory_peak']['total'] for e in counts), counts
    assert counts[-1]['args']['optimizer'] == rank['memory_peak']['optimizer'], counts[-1]
    assert all(e['name'][:2] in ('+ ', '- ') and len(e['name'].split()) > 3 for e in own if e['ph'] == 'i')
svg = open('$work/trace/memory.svg').read()
number, unit = re.search(r'peak memory ([\d.]+) (\w+)', svg).groups()
peak = json.load(open('$work/trace/ranks.json'))[0]['memory_peak']['total']
assert abs(float(number) * 1024 ** ['B', 'KiB', 'MiB', 'GiB'].index(unit) / peak - 1) < 0.005, (number, unit, peak)
assert svg.count('<title>') > 10 and 'gathered' in svg and 'of optimizer, from' in svg, svg[:2000]"
  check "overlap in the metrics" grep -q overlap_efficiency "$work/z3/metrics.jsonl"
  timeout 60 mpirun -n 2 "$program" generate --from "$work/run/final" --prompt x > "$work/log" 2>&1
  check "generate in one process" says "run in one process, this is one of 2"
  check "hybrid on four ranks" test -n "$(weights hybrid 4 --zero 3 --shard-size 2)"
fi

# ---- what a profiler of NVTX sees ----
cuda=${CUDA_HOME:-/usr/local/cuda}
if grep -q NVTX_INJECTION64_PATH "$program" && gcc -shared -fPIC -I"$cuda/include" -o "$work/names.so" test/program/nvtx_names.c 2> "$work/log"; then
  named() {
    NVTX_NAMES="$work/names" NVTX_INJECTION64_PATH="$work/names.so" "$program" --data "$work/data" --device cpu --preset bytes --dim 32 --layers 2 \
      --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --batch 1 --seq-len 32 --batch-tokens 64 --steps 2 --val-every 0 --val-tokens 256 > "$work/log" 2>&1 || return 1
    printf '%s\n' "0 step 1" "1 forward 0 of stage 0" "1 backward 0 of stage 0" "1 forward 1 of stage 0" "1 backward 1 of stage 0" > "$work/want"
    sed 's/^0 step 1$/0 step 2/' "$work/want" | cat "$work/want" - > "$work/wanted" && head -n 10 "$work/names" | diff "$work/wanted" - > "$work/log"
  }
  check "steps and tasks are ranges under the names of trace.json" named
else
  skip "ranges of NVTX: the program has none, or CUDA's headers are not here"
fi

command -v mpirun > /dev/null || skip "runs on several ranks: no MPI here"
summary
