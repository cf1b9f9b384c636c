#!/usr/bin/env bash
# Mixes of data sets and fine-tuning on conversations, with the whole program. Ends with "N passed, N failed".
#
#   test/program/test_data.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

run() { "$@" > "$work/log" 2>&1; }
python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/code" > "$work/log" 2>&1
cat ./*/README.md > "$work/notes.txt"
python3 data_prep/prepare.py text "$work/notes.txt" --out "$work/notes" > "$work/log" 2>&1
python3 data_prep/prepare.py synthetic --tokens 20k --val-tokens 5k --out "$work/other" > "$work/log" 2>&1
mix="$work/code:0.75,$work/notes:0.25"
ranks() { command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; }

train() { (trainer "$@"); }  # train OUT DATA ARGS...   with "mpirun -n N" first if $launch has it
trainer() {                  # the same in place of this shell
  local out=$1 data=$2
  shift 2
  # shellcheck disable=SC2086  # two words and a number
  exec timeout 120 ${launch:-} "$program" --data "$data" --device cpu --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --head-dim 8 \
    --ffn 24 --seq-len 32 --val-tokens 1024 --out "$work/$out" "$@" > "$work/log" 2>&1
}
metrics() { python3 -c "
import json, sys
rows = [json.loads(line) for line in open('$work/$1/metrics.jsonl')]
steps = [r for r in rows if 'loss' in r]
$2"; }

# ---- mixes ----
check "trains on a mix" train mix "$mix" --batch 8 --steps 6 --val-every 3
check "says what it is made of" grep -q "code: .* tokens, share 0.75" "$work/log"
check "every step has the shares to the sample" metrics mix "
for r in steps:
    notes = 8 * r['step'] * 0.25  # samples; a multiple of 1 here
    per_epoch = notes / r['epochs']['notes']
    assert abs(per_epoch - round(per_epoch)) < 1e-6 and per_epoch > 100, (r['step'], per_epoch)"
check "the validation loss is the mean by shares" metrics mix "
val = [r for r in rows if 'val_loss' in r]
assert [r['step'] for r in val] == [0, 3, 6]
for r in val:
    by_set = r['val_loss_by_set']
    assert abs(0.75 * by_set['code'] + 0.25 * by_set['notes'] - r['val_loss']) < 1e-6, r"
hashes() { metrics "$1" "print([r['data_hash'] for r in steps])"; }
check "trains on it in micro-batches" train micro "$mix" --batch 2 --batch-tokens 256 --steps 6 --val-every 0
check "the same tokens in the same order" test "$(hashes micro)" = "$(hashes mix)"
check "stops half-way" train half "$mix" --batch 8 --steps 6 --val-every 0 --save-every 3 --data-weights-at "5:0.5,0.5"

# ---- read ahead ----
check "each batch read when it is needed" train needed "$mix" --batch 2 --batch-tokens 256 --steps 6 --val-every 0 --data-threads 0
check "gives the same losses as batches read ahead" test "$(metrics needed "print([(r['loss'], r['data_hash']) for r in steps])")" = \
  "$(metrics micro "print([(r['loss'], r['data_hash']) for r in steps])")"
export FAULT="data.read:*:*:sleep=0.02"  # every sample, as on a slow file system
check "slow reads" train slow "$mix" --batch 2 --batch-tokens 256 --steps 6 --val-every 0 --data-threads 4
check "give the same too" test "$(hashes slow)" = "$(hashes micro)"
check "slow reads when they are needed" train slow0 "$mix" --batch 2 --batch-tokens 256 --steps 6 --val-every 0 --data-threads 0
unset FAULT
check "are waited for, and it is said: eight samples of 20 ms" metrics slow0 "assert all(r['phases']['data_wait'] > 0.16 for r in steps), steps"
check "phases of a step are logged" metrics micro "
for r in steps:
    t = r['phases']
    assert t['forward'] > 0 and t['backward'] > 0 and t['optimizer'] > 0, t
    assert t['forward'] + t['backward'] + t['optimizer'] <= r['seconds'] * 1.001, r"

cp -r "$work/half" "$work/again"
rm -rf "$work"/again/checkpoints/step_000000006 "$work/again/final"
if ranks; then
  launch="mpirun -n 2" check "resumes on two ranks" train again "$mix" --resume auto --batch 4 --data-weights-at "5:0.5,0.5"
else
  skip "a mix resumed on two ranks: no MPI here"
  check "resumes" train again "$mix" --resume auto --batch 4 --data-weights-at "5:0.5,0.5"
fi
check "the order continues as if nothing had happened" test "$(hashes again)" = "$(hashes half)"
check "and is that of the mix until the shares change" metrics again "
mix = [json.loads(line) for line in open('$work/mix/metrics.jsonl')]
mix = [r for r in mix if 'loss' in r]
same = [a['data_hash'] == b['data_hash'] for a, b in zip(steps, mix)]
assert same == [True, True, True, True, False, False], same
taken = [r['epochs']['notes'] for r in steps]
assert abs((taken[5] - taken[4]) / (taken[3] - taken[2]) - 2) < 1e-6, taken  # 4 of 8 samples, before 2"
check "one set alone, with a share, is the set" train alone "$work/code:1" --batch 8 --steps 2 --val-every 0
check "as without" train plain "$work/code" --batch 8 --steps 2 --val-every 0
check "to the bit" cmp "$work/alone/final/model.safetensors" "$work/plain/final/model.safetensors"

refused() {  # refused TEXT ARGS...
  local text=$1
  shift
  ! run "$program" --device cpu --preset bytes --seq-len 32 --steps 1 "$@" && grep -qF -- "$text" "$work/log"
}

# ---- data that are still being written ----
python3 data_prep/prepare.py stdlib --max-bytes 100K --shard-tokens 8K --out "$work/whole" > "$work/log" 2>&1
grow() {  # grow FOLDER SECONDS...   lists the next shard of $work/whole in FOLDER after each pause, and then says that it is all
  python3 - "$work/whole" "$@" << 'EOF'
import json, os, shutil, sys, time
whole, folder, *pauses = sys.argv[1:]
dataset = json.load(open(whole + "/dataset.json"))
shards = dataset["train"]["shards"]
os.makedirs(folder, exist_ok=True)
shutil.copy(whole + "/tokenizer.json", folder)
for shard in dataset["val"]["shards"]:
    if not os.path.exists(f"{folder}/{shard['file']}"):  # else it is in use
        shutil.copy(f"{whole}/{shard['file']}", folder)
def publish(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)
for n, pause in enumerate(pauses, 1):
    if os.path.exists(f"{folder}/{shards[n - 1]['file']}"):
        continue
    time.sleep(float(pause))
    shutil.copy(f"{whole}/{shards[n - 1]['file']}", folder + "/new")
    os.rename(folder + "/new", f"{folder}/{shards[n - 1]['file']}")
    train = {**dataset["train"], "shards": shards[:n], "tokens": sum(s["tokens"] for s in shards[:n])}
    publish(folder + "/dataset.json", json.dumps({**dataset, "train": train, **({"growing": True} if n < len(shards) else {})}))
EOF
}
shards=$(python3 -c "import json; print(len(json.load(open('$work/whole/dataset.json'))['train']['shards']))")
pauses=(0 0)
while [ ${#pauses[@]} -lt "$shards" ]; do pauses+=(0.4); done
order=(--data-order sequential --batch 32 --val-every 0)  # 1024 tokens a step: 8 of them for each shard, twice through
steps=$((16 * shards + 4))
check "trains in the order of the shards" train finished "$work/whole" "${order[@]}" --steps $steps
grow "$work/grown" 0 0
check "but not shuffled while they are written" refused "nearest: --data $work/grown --data-order sequential" --data "$work/grown"
grow "$work/grown" "${pauses[@]}" &
check "starts with two of $shards shards" train streamed "$work/grown" "${order[@]}" --steps $steps --save-every 12 --keep 0
wait
check "the weights are those of the finished data, to the bit" cmp "$work/finished/final/model.safetensors" "$work/streamed/final/model.safetensors"
listed() { python3 -c "
import json
data = json.load(open('$work/$1/manifest.json'))['data']
print(len((json.loads(data) if isinstance(data, str) else data)['shards']))"; }
summed() { python3 -c "import json; print(len([s for s in json.load(open('$work/$1/manifest.json'))['shards'] if 'train' in s['name']]))"; }
check "the last checkpoint has the sums of shards that came during the run" test "$(summed "streamed/checkpoints/$(ls "$work/streamed/checkpoints" | sed -n '/^step_[0-9]*$/p' | tail -n 1)")" -gt 2
check "a manifest lists the shards that were used" test "$(listed streamed/checkpoints/step_000000012)" = 2
rm -rf "$work/streamed/final"
rm -rf "$work/again"
check "resumes with more of them" train again "$work/grown" --resume "$work/streamed/checkpoints/step_000000012" --steps $steps
check "to the same weights" cmp "$work/finished/final/model.safetensors" "$work/again/final/model.safetensors"
rm -rf "$work/grown"
grow "$work/grown" 0 0
ends_with() { local code=$1 rc=0; shift; "$@" || rc=$?; [ $rc = "$code" ]; }
check "waits no longer than it is told" ends_with 70 train waited "$work/grown" "${order[@]}" --data-wait 1 --steps $steps
check "says for what" grep -q "nothing came after the first [0-9]* samples for 1 s" "$work/log"
check "and saves what it has" grep -q '"state": "failed"' "$work/waited/run_status.json"
last() { python3 -c "
import glob, json
steps = [r['step'] for r in map(json.loads, open('$work/$1/metrics.jsonl')) if 'loss' in r]
saved = sorted(glob.glob('$work/$1/checkpoints/step_*'))
assert len(saved) == 1 and int(saved[0][-9:]) == steps[-1] == $2, (saved, steps[-1])" >> "$work/log" 2>&1; }
check "after the last step that had its data" last waited 15
stopped() {  # stopped OUT   a run that waits for data is asked to stop
  : > "$work/log"  # an earlier run's line is not this one's
  trainer "$1" "$work/grown" "${order[@]}" --steps $steps &
  local job=$! i
  for ((i = 0; i < 600; ++i)); do grep -q "^waiting  for data" "$work/log" 2> /dev/null && break; sleep 0.1; done
  pkill -TERM -f "^$program .*--out $work/$1( |\$)"  # the ranks: a launcher that is stopped ends with a code of its own
  wait $job
}
check "asked to stop while it waits, a run ends so" ends_with 75 stopped paused
check "saved after the last step that had its data" last paused 15
if ranks; then
  launch="mpirun -n 2" check "so do two ranks" ends_with 75 stopped paused2
  check "  saved too" last paused2 7
fi
grow "$work/grown" "${pauses[@]}" &
check "resumes when there are more" train paused "$work/grown" "${order[@]}" --resume auto
wait
check "to the weights of the finished data" cmp "$work/finished/final/model.safetensors" "$work/paused/final/model.safetensors"
if ranks; then
  rm -rf "$work/grown"
  grow "$work/grown" 0 0
  grow "$work/grown" "${pauses[@]}" &
  launch="mpirun -n 3" check "three ranks read while shards come" train three "$work/grown" --data-order sequential --batch 11 --val-every 0 --steps $steps --save-every 12 --keep 0
  wait
  launch="mpirun -n 3" check "and the finished data" train whole "$work/whole" --data-order sequential --batch 11 --val-every 0 --steps $steps
  check "to the same weights" cmp "$work/whole/final/model.safetensors" "$work/three/final/model.safetensors"
  check "the manifest lists what any rank has read" test "$(listed three/checkpoints/step_000000012)" = 2
fi
rm -rf "$work/grown"
grow "$work/grown" 0 0
sed -i 's/"crc32": [0-9]*/"crc32": 1/' "$work/grown/dataset.json"
check "a shard's sum is checked" refused "dataset.json says 1: it is damaged" --data "$work/grown" --data-order sequential

# ---- fine-tuning ----
python3 - "$work/rows.jsonl" << 'EOF'
import json, sys
names = ["ann", "bob", "cleo", "dan", "eve", "fay", "gus", "hal"]
with open(sys.argv[1], "w") as f:
    for i in range(400):
        name = names[i * 7 % 8]
        talk = [{"role": "user", "content": f"Spell {name}."}, {"role": "assistant", "content": "-".join(name).upper()}]
        f.write(json.dumps({"messages": talk}) + "\n")
EOF
if python3 -c 'import jinja2' 2> /dev/null; then
  check "prepares conversations" run python3 data_prep/prepare.py chat "$work/rows.jsonl" --template plain --out "$work/chat"
  tune=("$work/chat" --val-every 0 --doc-mask bos)
  check "fine-tunes" train one "${tune[@]}" --batch 8 --steps 4
  check "says that the loss is on targets" grep -q "the loss is on the tokens that the shards mark as targets" "$work/log"
  check "in micro-batches" train parts "${tune[@]}" --batch 1 --batch-tokens 256 --steps 4
  # Sums of 256 rows in fp32 in another order: 256 roundings of 2^-24 at most in the first step.
  same='
one = [json.loads(line) for line in open("WORK/one/metrics.jsonl")]
for a, b in zip(steps, [r for r in one if "loss" in r]):
    assert a["targets"] == b["targets"] < 256, (a, b)
    assert abs(a["loss"] - b["loss"]) <= (2e-5 if a["step"] == 1 else 1e-3) * b["loss"], (a, b)
    assert abs(a["grad_norm"] - b["grad_norm"]) <= (2e-5 if a["step"] == 1 else 1e-3) * b["grad_norm"], (a, b)'
  same=${same//WORK/$work}
  check "the loss and the norm are the same" metrics parts "$same"
  if ranks; then
    launch="mpirun -n 4" check "on four ranks" train four "${tune[@]}" --batch 2 --steps 4 --zero 2
    check "the same too" metrics four "$same"
  fi
  check "prepares rows that cut no conversation" run python3 data_prep/prepare.py chat "$work/rows.jsonl" --template plain --pack 64 --out "$work/packed"
  check "they have the length of a sample" refused "nearest: --seq-len 64" --data "$work/packed"
  check "and train so" train packed "$work/packed" --seq-len 64 --max-seq-len 64 --doc-mask bos --batch 4 --steps 2 --val-every 0
  check "graphs keep a gradient's scale" refused "$(nvidia-smi -L > /dev/null 2>&1 && echo 'another gradient scale' || echo 'which has none')" \
    --data "$work/chat" --cuda-graphs on
else
  skip "fine-tuning: no jinja2 here"
fi
summary
