#!/usr/bin/env bash
# Checkpoints of the program as a user runs it: a run that is cut into pieces is the run that never was. Ends with
# "N passed, N failed".
#
#   test/program/test_resume.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

says() { grep -qF -- "$1" "$work/log"; }
launch() {  # launch RANKS ARGS...   its output is in the log
  local ranks=$1
  shift
  if [ "$ranks" = 1 ]; then "$program" "$@" > "$work/log" 2>&1
  else timeout 120 mpirun -n "$ranks" "$program" "$@" > "$work/log" 2>&1; fi
}
model=(--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8 --device cpu)
# 2000 tokens: 62 samples of 32, an epoch ends in the sixth step of 12
train=(--data "$work/data" --batch 2 --batch-tokens 384 --seq-len 32 --val-tokens 512 --val-every 5 --steps 14 --keep 0)
refused() {  # refused CODE TEXT ARGS...   with that exit code
  local code=$1 text=$2 rc=0
  shift 2
  launch 1 "$@" || rc=$?
  [ $rc = "$code" ] && says "$text"
}
weights() { sha256sum < "$work/$1/final/model.safetensors"; }
metrics() { sed -e 's/,"seconds":[^,]*//; s/,"phases":{[^}]*}//; s/,"time":[0-9]*//; s/,"tokens_per_second":[^,]*//; s/,"steps_per_second":[^,]*//; s/,"flops":[^,]*//; s/,"memory_bytes":[^,}]*//; s/,"comm_seconds.*}/}/' "$work/$1/metrics.jsonl"; }
# The first `step` steps of a run, as a killed one leaves it: its last lines may be of steps that no checkpoint has.
cut_at() {  # cut_at FROM TO STEP
  mkdir -p "$work/$2"
  cp -r "$work/$1/checkpoints" "$work/$1/metrics.jsonl" "$work/$2/"
  for folder in "$work/$2"/checkpoints/step_*; do
    [ $((10#${folder##*_})) -le "$3" ] || rm -r "$folder"
  done
  printf '{"step":9,"lo' >> "$work/$2/metrics.jsonl"
}

python3 data_prep/prepare.py stdlib --max-bytes 400K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
python3 - "$work/data" <<'PY'
import glob, json, os, struct, sys, zlib  # a short first shard and the rest: shard ends and epoch ends come by within a few steps
path = glob.glob(sys.argv[1] + "/*train*.bin")[0]
data = open(path, "rb").read()
head = list(struct.unpack("<256i", data[:1024]))
head[2] = 2000
tokens = data[1024:1024 + 4000]
open(path, "wb").write(struct.pack("<256i", *head) + tokens)
dataset = json.load(open(sys.argv[1] + "/dataset.json"))
for shard in dataset["train"]["shards"]:
    if shard["file"] == os.path.basename(path):
        shard["crc32"] = zlib.crc32(tokens)
json.dump(dataset, open(sys.argv[1] + "/dataset.json", "w"))
PY

# ---- one process ----
check "a run with checkpoints" launch 1 "${model[@]}" "${train[@]}" --save-every 1 --out "$work/whole"
check "says where they are" says "checkpoints/step_000000014"
launch 1 "${model[@]}" "${train[@]}" --save-every 0 --out "$work/plain"
check "saving changes nothing" test "$(weights whole)" = "$(weights plain)"
check "--save-every 0 saves none" test ! -e "$work/plain/checkpoints"
# Boundaries: the beginning, an evaluated step, the end of an epoch, the last but one, the last
for step in 1 5 6 13 14; do
  cut_at whole "from$step" $step
  check "resumes from step $step" launch 1 --device cpu --out "$work/from$step" --resume auto
  check "same weights from step $step" test "$(weights "from$step")" = "$(weights whole)"
  check "same metrics from step $step" test "$(metrics "from$step")" = "$(metrics whole)"
done
cut_at whole waits 7
check "without background saving" launch 1 --device cpu --out "$work/waits" --resume 7 --no-background-save
check "same weights without background saving" test "$(weights waits)" = "$(weights whole)"
launch 1 "${model[@]}" "${train[@]}" --dtype bf16 --save-every 4 --out "$work/bf16"
cut_at bf16 bf16cut 8
check "bf16 resumes" launch 1 --device cpu --out "$work/bf16cut" --resume auto
check "same bf16 weights" test "$(weights bf16cut)" = "$(weights bf16)"
# The loss scale has doubled and halved before the cut; lost or begun again, it would change again in another step.
FAULT=gradient:0:6:inf,gradient:0:7:inf launch 1 "${model[@]}" "${train[@]}" --dtype fp16 --loss-scale-window 4 --save-every 3 --out "$work/fp16"
check "fp16 says that it overflowed" says "overflow at loss scale 131072, update skipped"
cut_at fp16 fp16cut 9
check "fp16 resumes" launch 1 --device cpu --out "$work/fp16cut" --resume auto
check "same fp16 weights" test "$(weights fp16cut)" = "$(weights fp16)"
check "same loss scales" test "$(grep -o '"step":[0-9]*\|"loss_scale":[0-9]*' "$work/fp16cut/metrics.jsonl")" = "$(grep -o '"step":[0-9]*\|"loss_scale":[0-9]*' "$work/fp16/metrics.jsonl")"
check "which change after it" bash -c "grep '\"step\":14' '$work/fp16/metrics.jsonl' | grep -q '\"loss_scale\":131072,'"
check "that skipped two updates" grep -q '"updates": 7,' "$work/fp16/checkpoints/step_000000009/manifest.json"
check "--loss-scale with bf16" refused 2 "--dtype bf16 needs none" "${model[@]}" "${train[@]}" --dtype bf16 --loss-scale 1024
check "a fixed loss scale that overflows ends the run" bash -c "FAULT=gradient:0:1+:inf '$program' ${model[*]} ${train[*]} --dtype fp16 --loss-scale 4 --max-skips 3 > '$work/log' 2>&1; test \$? = 72"
# fp8: files hold masters, never codes, and each scale is found anew: a run that is cut finds the same.
wide=(--preset bytes --dim 128 --layers 2 --heads 4 --kv-heads 2 --ffn 128 --head-dim 32 --device cpu)
for recipe in tensor block mx; do
  launch 1 "${wide[@]}" "${train[@]}" --batch 4 --steps 8 --dtype bf16 --fp8 $recipe --save-every 4 --out "$work/$recipe"
  # Items of lengths that no fp8 product takes.
  check "fp8 $recipe evaluates" launch 1 "${wide[@]}" "${train[@]}" --batch 4 --seq-len 64 --batch-tokens 256 --steps 1 --dtype bf16 \
    --fp8 $recipe --eval-every 1 --eval-tasks piqa --eval-data test/golden/eval --eval-limit 3
  check "and says the result" says "evaluation: piqa acc"
  cut_at $recipe ${recipe}cut 4
  check "fp8 $recipe resumes" launch 1 --device cpu --out "$work/${recipe}cut" --resume auto
  check "same fp8 $recipe weights" test "$(weights ${recipe}cut)" = "$(weights $recipe)"
  check "same fp8 $recipe metrics" test "$(metrics ${recipe}cut)" = "$(metrics $recipe)"
done
check "which are not each other's" test "$(for r in tensor block mx; do weights $r; done | sort -u | wc -l)" = 3
launch 1 "${model[@]}" "${train[@]}" --dtype bf16 --adam-dtype bf16 --master-dtype bf16 --save-every 4 --out "$work/narrow"
cut_at narrow narrowcut 8
check "bf16 masters and moments resume" launch 1 --device cpu --out "$work/narrowcut" --resume auto
check "same bf16 masters" test "$(weights narrowcut)" = "$(weights narrow)"

# ---- what was kept, and what is refused ----
launch 1 "${model[@]}" "${train[@]}" --keep 2 --save-every 3 --out "$work/keep"
check "--keep 2 keeps the newest two" test "$(ls "$work/keep/checkpoints")" = "latest
step_000000012
step_000000014"
launch 1 "${model[@]}" "${train[@]}" --keep 2 --keep-every 6 --save-every 3 --lr-schedule wsd --cooldown 4 --out "$work/every"
check "--keep-every 6 keeps step 6 too" test "$(ls "$work/every/checkpoints")" = "latest
step_000000006
step_000000012
step_000000014"
rates() { sed -n 's/.*"step":\([0-9]*\),.*"lr":\([^,]*\),.*/\1 \2/p' "$work/$1/metrics.jsonl"; }
planned=$(rates every)
check "a schedule of its own" test "$planned" != "$(rates keep)"
check "a run resumes from a kept step" launch 1 --out "$work/every" --resume 6
check "in the same schedule" test "$(rates every)" = "$planned"
check "a run is not begun over another" refused 2 "--resume auto continues it" "${model[@]}" "${train[@]}" --out "$work/keep"
check "an unknown step" refused 2 "it has: 12, 14" --out "$work/keep" --resume 9
check "auto without --out" refused 2 "--out, which is not given" "${model[@]}" "${train[@]}" --resume auto
check "no such folder" refused 2 'neither "auto" nor a step nor a folder' --out "$work/new" --resume "$work/nothing"
check "another model" refused 2 "layers: 2 in the checkpoint, 3 in what is asked for" --out "$work/keep" --resume auto --layers 3
check "--resume auto begins where there is nothing" launch 1 "${model[@]}" "${train[@]}" --steps 2 --out "$work/fresh" --resume auto
check "a changed flag is named and wins" launch 1 --device cpu --out "$work/fresh" --resume auto --steps 4 --lr 5e-4 --allow-lr-jump
check "the flag" says "--lr 5e-4, was 0.001"
check "it continued" says "step 4/4"
check "a finished run says what continues it, what begins another, and what came too late" launch 1 --device cpu --out "$work/fresh" --resume auto --lr 7e-4
check "  in one line" says "nothing is left to do: raise --steps to train further, or begin anew with --out NEW or --overwrite; without effect: --lr 7e-4"
check "a --batch that does not divide the updates" refused 2 "--batch 5 does not divide the checkpoint's updates, 12 sequences on each of 1 ranks" --device cpu --out "$work/fresh" \
  --resume auto --steps 6 --batch 5 --allow-lr-jump
check "  the nearest" says "nearest: --batch 4"
printf 'resume = "auto"\n' > "$work/recipe.toml"
check "--resume never beats a recipe that resumes" refused 2 "holds checkpoints up to step 4" --config "$work/recipe.toml" "${model[@]}" "${train[@]}" --steps 2 --out "$work/fresh" --resume never
check "--overwrite beats a recipe that resumes" launch 1 --config "$work/recipe.toml" "${model[@]}" "${train[@]}" --steps 2 --out "$work/fresh" --overwrite
check "  and moves the earlier run aside" test -e "$work"/fresh/before-*/checkpoints/step_000000004 -a ! -e "$work/fresh/checkpoints/step_000000004"
printf 'resume = "auto"\noverwrite = true\n' > "$work/recipe.toml"
check "both in a recipe are refused" refused 2 "leave one of them out" --config "$work/recipe.toml" "${model[@]}" "${train[@]}" --steps 2 --out "$work/fresh"
check "both on the command line are refused" refused 2 "leave one of them out" "${model[@]}" "${train[@]}" --steps 2 --out "$work/fresh" --overwrite --resume auto
check "training without --out says that it keeps nothing" launch 1 "${model[@]}" "${train[@]}" --steps 1
check "  in one line" says "nothing of this run is kept"
cut_at whole other 6
shard=$(ls "$work"/data/*train*.bin)
cp "$shard" "$work/shard"
printf 'A' | dd of="$shard" bs=1 seek=1500 conv=notrunc 2>/dev/null
check "changed data are refused" refused 2 "--allow-data-change" --device cpu --out "$work/other" --resume auto
check "unless allowed" launch 1 --device cpu --out "$work/other" --resume auto --allow-data-change
cp "$work/shard" "$shard"
check "a checkpoint of another run" launch 1 --device cpu --out "$work/branch" --resume "$work/whole/checkpoints/step_000000010"
check "ends as that run" test "$(weights branch)" = "$(weights whole)"

# ---- damage ----
cut_at whole hurt 10
printf 'X' | dd of="$work/hurt/checkpoints/step_000000010/optimizer/m.safetensors" bs=1 seek=30000 conv=notrunc 2>/dev/null
truncate -s -1 "$work/hurt/checkpoints/step_000000009/model.safetensors"
rm "$work/hurt/checkpoints/step_000000008/optimizer/v.safetensors"
mkdir "$work/hurt/checkpoints/.tmp-step_000000011-dead"
check "an explicit step does not fall back" refused 70 "optimizer/m.safetensors: tensor" --device cpu --out "$work/hurt" --resume 10
check "auto falls back past three bad ones" launch 1 --device cpu --out "$work/hurt" --resume auto
check "names the tensor" says "m.safetensors: tensor model."
check "names the short file" says "step_000000009/model.safetensors: has"
check "names the missing file" says "step_000000008/optimizer/v.safetensors: missing"
check "same weights after all" test "$(weights hurt)" = "$(weights whole)"
check "left-overs are gone" test ! -e "$work/hurt/checkpoints/.tmp-step_000000011-dead"

# ---- export ----
check "exports a checkpoint" launch 1 export --from "$work/whole/checkpoints/step_000000014" --to "$work/exported"
check "byte for byte" cmp -s "$work/exported/model.safetensors" "$work/whole/final/model.safetensors"
check "twice is the same" launch 1 export --from "$work/exported" --to "$work/again"
check "byte for byte again" cmp -s "$work/exported/model.safetensors" "$work/again/model.safetensors"
check "the golden model, byte for byte" python3 - "$program" "$work" test/golden/model <<'PY'
import glob, json, os, struct, subprocess, sys
program, work, golden = sys.argv[1:]
def tensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in head.items() if k != "__metadata__"}
models = [d for d in sorted(glob.glob(golden + "/*")) if os.path.exists(d + "/model.safetensors")]
assert models
for d in models:
    out = os.path.join(work, "golden-" + os.path.basename(d))
    subprocess.run([program, "export", "--from", d, "--to", out], check=True, stdout=subprocess.DEVNULL)
    a, b = tensors(d + "/model.safetensors"), tensors(out + "/model.safetensors")
    a.pop("lm_head.weight", None) if "lm_head.weight" not in b else None
    assert a == b, d
PY
check "in another type" launch 1 export --from "$work/exported" --to "$work/half" --dtype fp16
check "generates from a checkpoint" launch 1 generate --from "$work/whole/checkpoints/step_000000014" --prompt "def " --max-tokens 4
check "or from a run's folder" launch 1 generate --from "$work/whole" --prompt "def " --max-tokens 4
rm -r "$work/keep/final"
check "or from one that was killed" launch 1 generate --from "$work/keep" --prompt "def " --max-tokens 4

# ---- a file for each block ----
# 2 MiB in fp32: files above 1 MiB are cut. A run that is stopped with many files and continues into one, and back.
large=(--preset bytes --dim 128 --layers 3 --heads 4 --kv-heads 2 --head-dim 32 --ffn 256 --device cpu --data "$work/data" --batch 1
  --seq-len 16 --val-tokens 16 --val-every 0 --save-every 2)
ranks=1
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then ranks=2; fi
both=("${large[@]}" --batch-tokens 32 --steps 4 --zero $((ranks == 2 ? 3 : 0)))
check "checkpoints with a file for each block" launch $ranks "${both[@]}" --max-shard-mib 1 --out "$work/shards"
check "  final weights too" test -e "$work/shards/final/model-00005-of-00005.safetensors" -a ! -e "$work/shards/final/model.safetensors"
launch $ranks "${both[@]}" --max-shard-mib 0 --out "$work/one_file"
check "  exported, they are the bytes of one file" launch 1 export --from "$work/shards" --to "$work/joined" --max-shard-mib 0
check "  to the bit" cmp "$work/joined/model.safetensors" "$work/one_file/final/model.safetensors"
for to in 0 1; do
  from=$([ $to = 0 ] && echo shards || echo one_file)
  cut_at "$from" "again$to" 2
  check "  resumed from $from" launch $ranks --device cpu --out "$work/again$to" --resume auto --max-shard-mib $to
  launch 1 export --from "$work/again$to" --to "$work/again$to.joined" --max-shard-mib 0
  check "    the same weights" cmp "$work/again$to.joined/model.safetensors" "$work/one_file/final/model.safetensors"
done
flip="$work"/shards/checkpoints/step_000000004/optimizer/m-00002-of-00005.safetensors
printf 'X' | dd of="$flip" bs=1 seek=30000 conv=notrunc 2> /dev/null
check "  damage is named by its file" refused 70 "optimizer/m-00002-of-00005.safetensors: tensor" --device cpu --out "$work/shards" --resume 4 --steps 6

# ---- several ranks ----
if command -v mpirun >/dev/null && ldd "$program" | grep 'libmpi' > /dev/null; then
  hash_of() { grep -o '"data_hash":"[0-9a-f]*"' "$work/$1/metrics.jsonl" | tail -n 1; }
  final_loss() { grep -o '"val_loss":[0-9.]*' "$work/$1/metrics.jsonl" | tail -n 1 | cut -d: -f2; }
  # Rounding of sums in another order, grown over 14 steps: far below a thousandth of the loss.
  close() { python3 -c "import sys; a, b = map(float, sys.argv[1:]); sys.exit(abs(a - b) > 1e-4 * a)" "$(final_loss "$1")" "$(final_loss "$2")"; }
  check "three ranks" launch 3 "${model[@]}" "${train[@]}" --batch 4 --save-every 2 --zero 3 --out "$work/three"
  for stage in 0 1 2 3; do
    cut_at three "three$stage" 8
    check "three ranks resume, --zero $stage" launch 3 --device cpu --zero $stage --out "$work/three$stage" --resume auto
    check "same weights, --zero $stage" test "$(weights "three$stage")" = "$(weights three)"
  done
  check "same tokens as one rank" test "$(hash_of three)" = "$(hash_of whole)"
  check "same loss as one rank" close three whole
  # 4 -> 2 -> 3 -> 1 ranks
  check "four ranks" launch 4 "${model[@]}" "${train[@]}" --batch 1 --steps 4 --save-every 4 --zero 3 --out "$work/moves"
  check "two ranks" launch 2 --device cpu --zero 1 --out "$work/moves" --resume auto --steps 7 --allow-lr-jump
  check "three ranks" launch 3 --device cpu --zero 2 --out "$work/moves" --resume auto --steps 10 --allow-lr-jump
  check "one rank" launch 1 --device cpu --out "$work/moves" --resume auto --steps 14 --allow-lr-jump
  check "same tokens, 4 -> 2 -> 3 -> 1" test "$(hash_of moves)" = "$(hash_of whole)"
  cut_at whole ranks 6
  check "one to four, hybrid" launch 4 --device cpu --zero 3 --shard-size 2 --out "$work/ranks" --resume auto
  check "a smaller batch keeps the update" says "--batch 1, was 2"
  check "same tokens, 1 -> 4" test "$(hash_of ranks)" = "$(hash_of whole)"
  check "same loss, 1 -> 4" close ranks whole
  check "five ranks do not divide" bash -c "! timeout 60 mpirun -n 5 '$program' --device cpu --out '$work/ranks' --resume auto --steps 20 > '$work/log' 2>&1 && grep -q 'do not divide among 5 ranks' '$work/log'"
  mkdir "$work/here" "$work/there"
  check "a folder that is not shared" bash -c "! timeout 60 mpirun -n 1 env -C '$work/here' '$program' ${model[*]} ${train[*]} --out mine \\
    : -n 1 env -C '$work/there' '$program' ${model[*]} ${train[*]} --out mine > '$work/log' 2>&1 && grep -q 'is not seen by rank 1' '$work/log'"
else
  skip "runs on several ranks: no MPI here"
fi
summary
