#!/usr/bin/env bash
# Context parallelism under mpirun, with ZeRO, documents, pipelines and tensor parallelism too: losses, norms and data of the same
# run on one rank, bytes as predicted, checkpoints that any layout reads, refusals. Ends with counts.
#
#   test/program/test_context.sh ./train_llama [./train_llama_simt]      with the second the CUDA path on the emulator too
set -uo pipefail
program=$(realpath "$1") simt=${2:+$(realpath "$2")}
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

make_documents "$work/text.bin"
model=(--train-data "$work/text.bin" --val-data "$work/text.bin" --vocab 257 --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2
  --ffn 48 --head-dim 8 --seq-len 48 --batch 2 --threads 1 --steps 10 --lr-schedule constant --warmup 0 --save-every 5
  --val-every 5 --val-tokens 192 --timeout 60 --dtype fp32)

train() {  # train NAME RANKS FLAGS...
  local name=$1 ranks=$2
  shift 2
  timeout 120 mpirun -n "$ranks" "$program" "${model[@]}" --device cpu "$@" --out "$work/$name" > "$work/log" 2>&1
}
close() {  # close NAME REFERENCE [BOUND]: losses within 1e-6 of each other, or BOUND, norms too, on the same data; the first loss nearer
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "${3:-1e-6}" << 'END'
import json, sys
a, b = ([json.loads(line) for line in open(path)] for path in sys.argv[1:3])
bound = float(sys.argv[3])
bounds = {"loss": bound, "val_loss": bound, "grad_norm": 10 * bound, "data_hash": 0, "step": 0, "attention_share": 0}
bad = [(k, x, y) for x, y in zip(a, b) for k, most in bounds.items()
       if (k in x) != (k in y) or k in x and (x[k] != y[k] if most == 0 or None in (x[k], y[k]) else abs(x[k] / y[k] - 1) > most)]
sys.exit(0 if len(a) == len(b) > 1 and not bad else f"{len(a)} and {len(b)} lines, {bad[:2]}")
END
}
as() { train "$1" "${@:3}" && close "$1" "$2"; }  # as NAME REFERENCE RANKS FLAGS...
refused() {  # refused RANKS TEXT FLAGS...
  local ranks=$1 text=$2
  shift 2
  ! train refused "$ranks" "$@" && grep -qF -- "$text" "$work/log"
}
mask=(--doc-mask bos --doc-token 256)

check "one rank" train one 1
check "cp 2" as cp2 one 2 --cp 2
check "  says so" grep -qF "2 ranks share each sequence: 2 of 4 chunks of 12 tokens on each" "$work/log"
check "cp 3" as cp3 one 3 --cp 3
check "cp 4" as cp4 one 4 --cp 4
check "cp 4, recompute, ZeRO-3" as cp4zero3 one 4 --cp 4 --zero 3 --recompute block
check "cp 2, accumulation" as accumulated one 2 --cp 2 --batch 1 --grad-accum 2
check "two data ranks" train dp2 2 --batch-tokens 192
for zero in 0 1 2 3; do
  check "cp 2 x dp 2, ZeRO-$zero" as "dp2zero$zero" dp2 4 --cp 2 --zero $zero --batch-tokens 192
done
check "cp 2 x dp 2, hybrid" as hybrid dp2 4 --cp 2 --zero 2 --shard-size 2 --batch-tokens 192
for cp in 2 3 4; do check "a ring of $cp" as ring$cp one $cp --cp $cp --cp-exchange ring; done
check "documents on one rank" train documents 1 "${mask[@]}"
check "documents, cp 4" as documents4 documents 4 --cp 4 --zero 2 "${mask[@]}"
check "documents, a ring of 4, ZeRO-3" as ring_documents documents 4 --cp 4 --cp-exchange ring --zero 3 --recompute block "${mask[@]}"
check "a window on one rank" train window 1 --window 10
check "a window, a ring of 4" as ring_window window 4 --cp 4 --cp-exchange ring --window 10
check "a window, cp 2 x tp 2" as tp2cp2window window 4 --cp 2 --tp 2 --window 10
check "a window and documents on one rank" train window_documents 1 --window 10 "${mask[@]}"
check "a window and documents, cp 2, ZeRO-1" as cp2window_documents window_documents 2 --cp 2 --zero 1 --window 10 "${mask[@]}"
check "  is another loss than without" eval '! close window one 2> /dev/null && ! close window_documents documents 2> /dev/null && ! close window_documents window 2> /dev/null'
check "tp 2 x cp 2" as tp2cp2 one 4 --cp 2 --tp 2
check "a pipeline's micro-batches on one rank" train micro 1 --grad-accum 4
check "pp 2 x cp 2" as pp2cp2 micro 4 --cp 2 --pp 2 --grad-accum 4
check "bf16" train bf16 1 --dtype bf16
check "bf16, cp 2" train bf16cp2 2 --dtype bf16 --cp 2
check "bf16, cp 2, alike" close bf16cp2 bf16 4e-3

# Before any update the ranks compute with the same weights: each token's loss has the bits of one rank with our own products.
same_first_validation() {
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" << 'END'
import json, sys
a, b = ([json.loads(line) for line in open(path)][0] for path in sys.argv[1:3])
sys.exit(0 if a["step"] == 0 and a["val_loss"] == b["val_loss"] else f"{a} {b}")
END
}
check "the first validation, to the digit" same_first_validation cp4 one

# Any layout resumes what any other saved.
resumes() { cp -r "$work/$2" "$work/$1" && rm -rf "$work/$1/final" && train "$1" "${@:3}" --resume 5 && close "$1" one 1e-5; }
check "cp 4's checkpoint on one rank" resumes one_of_cp4 cp4 1
check "one rank's checkpoint at cp 2, ZeRO-3" resumes cp2_of_one one 2 --cp 2 --zero 3

# Targets that shards mark: their mean is of the whole update, however ranks share the sequences.
python3 - "$work/marked.bin" "$work/text.bin" << 'END'
import struct, sys
raw = open(sys.argv[2], "rb").read()
n = struct.unpack("<i", raw[8:12])[0]
marks = bytearray((n + 7) // 8)
for i in range(n):  # some rows have many, some none
    if i % 97 < 30 and i % 5: marks[i // 8] |= 1 << (i % 8)
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, n, 1, *[0] * 252) + raw[1024:] + marks)
END
marked=(--train-data "$work/marked.bin" --val-data "$work/marked.bin")
check "marked targets on one rank" train marked 1 "${marked[@]}"
check "  are seen" grep -q "the loss is on the tokens that the shards mark as targets" "$work/log"
check "marked targets, cp 2" as marked2 marked 2 --cp 2 "${marked[@]}"
check "marked targets, cp 2 x tp 2, a ring" as marked4 marked 4 --cp 2 --tp 2 --cp-exchange ring "${marked[@]}"

# A rank that is killed or stopped, then the run resumed: there to the same bits, and on one rank.
faulty() {  # faulty NAME RANK ACTION: cp 2 x dp 2, a fault in step 7 of 10, saved after 5; a rank that is stopped is named
  local rc=0
  FAULT=step:$2:7:$3 timeout 100 mpirun -n 4 "$program" "${model[@]}" --device cpu --cp 2 --batch-tokens 192 --no-background-save \
    --cp-exchange $exchange --timeout 4 --out "$work/$1" > "$work/log" 2>&1 || rc=$?
  [ $rc != 0 ] && [ $rc != 124 ] && { [ "$3" = kill ] || grep -qE "rank $2 .*step 7.*(silent|stopped)" "$work/log"; }
}
exchange=gather
for fault in "1 kill" "1 stop" "2 kill" "2 stop"; do  # rank 0's neighbour on cp, dp
  name=fault${fault/ /}
  # shellcheck disable=SC2086
  check "rank $fault: ends" faulty "$name" $fault
  cp -r "$work/$name" "$work/elsewhere$name"
  check "  resumes" train "$name" 4 --cp 2 --batch-tokens 192 --resume auto
  check "  the same bits" cmp "$work/$name/final/model.safetensors" "$work/dp2zero0/final/model.safetensors"
  check "  resumes without cp" train "elsewhere$name" 2 --batch-tokens 192 --resume auto
  check "  as without cp" close "elsewhere$name" dp2 1e-5
done

exchange=ring check "in a ring a stopped rank is named" faulty ringstop 1 stop

# Norm, clipping, skips, replicas and slow ranks with a cp axis.
bad_gradient() { FAULT=gradient:$1:3:nan train "${@:2}" --steps 6 --save-every 0; }
check "a gradient that is no number, one rank" bad_gradient 0 bad 1
check "  on one rank of cp 2" bad_gradient 1 bad2 2 --cp 2
check "  all skip the update" close bad2 bad
check "  and say so" grep -q "update skipped (1 so far)" "$work/log"
check "clipped, one rank" train clip 1 --max-grad-norm 0.2 --steps 4
check "  on cp 2" as clip2 clip 2 --cp 2 --max-grad-norm 0.2 --steps 4
check "  which is below the norms" python3 -c "
import json
assert all(j['grad_norm'] > 0.2 for j in map(json.loads, open('$work/clip2/metrics.jsonl')) if 'grad_norm' in j)"
check "replicas are alike" train alike 4 --cp 2 --zero 2 --shard-size 2 --check-replicas 1 --steps 3 --batch-tokens 192
differs() {
  ! FAULT=$1:1:3:flip train differs 2 --cp 2 --zero 0 --check-replicas 1 --steps 5 --overwrite &&
    grep -qE "step 3: .*rank [01] \(hash [0-9a-f]+\), rank [01] .*one of the two is wrong" "$work/log"
}
for damaged in weights moments; do check "$damaged that differ on a cp rank are named" differs $damaged; done
late() { FAULT="step:1:*:sleep=0.4" train "$@" --steps 8 --save-every 0 --val-every 0 && grep -q "slow     rank 1 computes" "$work/log"; }
check "a slow rank on the cp axis is named" late late_cp 2 --cp 2
check "  in a ring" late late_ring 2 --cp 2 --cp-exchange ring

# Sequences cp times as long on cp ranks: what the ledger of each rank has for activations stays the same to the byte.
long() { train "long$1" "$1" --cp "$1" --seq-len $((48 * $1)) --max-seq-len 192 --val-every 0 --val-tokens 768 --steps 2 --save-every 0; }
for cp in 1 2 4; do check "sequences of $((48 * cp)) tokens at cp $cp" long $cp; done
check "  the same activations" python3 -c "
import json
held = [[r['memory_peak']['activations'] for r in json.load(open(f'$work/long{cp}/ranks.json'))] for cp in (1, 2, 4)]
assert [len(h) for h in held] == [1, 2, 4] and len({x for h in held for x in h}) == 1 and held[0][0] > 0, held"

sent() {  # what --print-config says 8 ranks send, of which cp 4 is the layout
  train eight 8 --cp 4 --zero 0 --batch-tokens 192 || return 1
  "$program" "${model[@]}" --device cpu --cp 4 --zero 0 --batch-tokens 192 --out "$work/eight" --print-config > "$work/log" 2>&1 || return 1
  python3 - "$work/log" "$work/eight/metrics.jsonl" << 'END'
import json, re, sys
rows = dict(re.findall(r"^  (tp|cp|pp|data|replicate|model) +\S+ +(\d+)", open(sys.argv[1]).read(), re.M))
step = [json.loads(line) for line in open(sys.argv[2]) if "bytes_sent" in line][1]
assert {a: of["bytes_sent"] for a, of in step["axes"].items()} == {a: int(n) for a, n in rows.items() if int(n)}, (step, rows)
assert step["axes"]["cp"]["seconds"] > 0 and step["exposed_seconds"] > 0, step
# Each of 2 blocks: 2 x 12 rows of k and v of 16 fp32 each, gathered twice, and their gradients, to 3 other ranks.
assert int(rows["cp"]) == 2 * 3 * (2 * 12 * 32 * 4) * 3, rows
sys.exit(0 if sum(map(int, rows.values())) == step["bytes_sent"] else f"{rows} {step}")
END
}
check "bytes sent, by axis" sent
check "the ranks' report knows places and axes" python3 -c "
import json
ranks = json.load(open('$work/eight/ranks.json'))
assert [(r['tp'], r['cp'], r['dp'], r['pp']) for r in ranks] == [(0, r % 4, r // 4, 0) for r in range(8)], ranks
assert all(sum(r['bytes_sent_by_axis'].values()) == r['bytes_sent'] and r['bytes_sent_by_axis']['cp'] > 0 for r in ranks), ranks"

check "a length that does not cut" refused 2 "nearest: --seq-len 48 or 52" --cp 2 --seq-len 50
check "ranks that do not divide" refused 3 "nearest: cp 3 or cp 1" --cp 2
if [ -n "$simt" ]; then
  check "emulated CUDA, cp 2, fp32 and documents" eval 'mpirun -n 2 "$simt" "${model[@]}" "${mask[@]}" --device cuda --transport nccl --cp 2 --out "$work/simt" > "$work/log" 2>&1 && close simt documents 1e-4'
  check "emulated CUDA, a ring of 2" eval 'mpirun -n 2 "$simt" "${model[@]}" "${mask[@]}" --device cuda --transport nccl --cp 2 --cp-exchange ring --out "$work/simt_ring" > "$work/log" 2>&1 && close simt_ring documents 1e-4'
  narrow=(--dtype bf16 --head-dim 64 --heads 2 --kv-heads 1 --steps 5)
  check "bf16, heads of 64, one rank" train bf16wide 1 "${narrow[@]}"
  check "emulated CUDA, cp 2, bf16" eval 'mpirun -n 2 "$simt" "${model[@]}" "${narrow[@]}" --device cuda --transport nccl --cp 2 --out "$work/simt16" > "$work/log" 2>&1 && close simt16 bf16wide 4e-3'
fi
summary
