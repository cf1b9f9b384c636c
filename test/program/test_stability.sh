#!/usr/bin/env bash
# The stability kit as a user runs it: z-loss, the decay of embeddings, updates that are left out, averages, --auto, a
# batch that grows. At other layouts, and resumed in the middle. Ends with "N passed, N failed".
#
#   test/program/test_stability.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
says() { grep -qE -- "$1" "$work/log"; }
# An update is 12 sequences at every layout.
model=(--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 45 --head untied --device cpu --threads 1 --timeout 60)
train=("${model[@]}" --data "$work/data" --seq-len 24 --batch 1 --batch-tokens 288 --lr-schedule constant --warmup 0 --val-every 0
  --val-tokens 48 --keep 0)
run() {  # run OUT FLAGS...
  local out=$1
  shift
  timeout 120 "$program" "${train[@]}" --out "$work/$out" "$@" > "$work/log" 2>&1
}
resume() { local out=$1; shift; timeout 120 "$program" --out "$work/$out" --resume auto "$@" > "$work/log" 2>&1; }
same() { cmp "$work/$1/final/model.safetensors" "$work/$2/final/model.safetensors" > "$work/log" 2>&1; }
close() {  # close NAME REFERENCE: losses, z-losses and norms of each step
  python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" << 'END'
import json, sys
a, b = ([j for j in map(json.loads, open(path)) if "loss" in j] for path in sys.argv[1:])
bad = [(x, y) for x, y in zip(a, b) for k, bound in (("loss", 1e-5), ("z_loss", 1e-5), ("grad_norm", 1e-5))
       if k in y and abs(x[k] / y[k] - 1) > bound]
sys.exit(0 if len(a) == len(b) > 0 and not bad else f"{len(a)} and {len(b)} steps, {bad[:1]}")
END
}

# ---- z-loss and the decay of embeddings ----
kit=(--z-loss 1e-3 --decay-embeddings off --init-scale 1 --steps 6)
check "trains with z-loss" run one "${kit[@]}" --save-every 2
check "says both losses" says "step 1/6 \| loss [0-9.]+ \| z-loss [0-9.]+ "
check "trains without" run none --steps 6 --init-scale 1
check "the first loss is the same, the weights are not" python3 - "$work/one" "$work/none" << 'END'
import json, sys
a, b = (json.loads(open(f + "/metrics.jsonl").readline()) for f in sys.argv[1:])
assert a["loss"] == b["loss"] and "z_loss" not in b
assert abs(a["z_loss"] / (1e-3 * a["loss"] ** 2) - 1) < 0.05, a["z_loss"]  # at first the logits say nothing
assert open(sys.argv[1] + "/final/model.safetensors", "rb").read() != open(sys.argv[2] + "/final/model.safetensors", "rb").read()
END
for layout in "--ranks 3 --zero 3" "--ranks 4 --tp 2 --pp 2" "--ranks 2 --cp 2 --logits-mib 1"; do
  rm -rf "$work/other"
  # shellcheck disable=SC2086
  check "$layout" run other "${kit[@]}" $layout
  check "  as on one rank" close other one
done
cp -r "$work/one" "$work/again"
rm -r "$work/again/checkpoints/step_000000004" "$work/again/checkpoints/step_000000006" "$work/again/final"
check "resumes in the middle" resume again
check "  with the same weights" same again one
check "refuses --init-scale beside weights" bash -c "! $program --data $work/data --init-from $work/one/final --init-scale 1 --steps 1 > $work/log 2>&1"
check "  in words" says "--init-scale is about weights that are drawn"

# ---- updates that are left out: the spike of the loss at step 70 ----
skips=(--on-spike skip --steps 72 --save-every 69)
export FAULT='loss:*:70:spike'
check "trains with --on-spike skip" run skip "${skips[@]}"
check "says that the update was left out" says "step 70/72 .*update left out \(1 so far\)"
check "and no other" bash -c "[ \$(grep -c 'left out (' $work/log) = 1 ]"
check "on three ranks and a pipeline" run skip3 "${skips[@]}" --ranks 6 --zero 1 --pp 2
check "the same decision" says "step 70/72 .*update left out \(1 so far\)"
FAULT='loss:*:70:spike' check "warns only by default" run warned --steps 72
unset FAULT
check "the weights differ" bash -c "! cmp -s $work/skip/final/model.safetensors $work/warned/final/model.safetensors"
cp -r "$work/skip" "$work/half"
rm -r "$work/half/checkpoints/step_000000072" "$work/half/final"
FAULT='loss:*:1:spike' check "resumes before the spike" resume half
check "the window is the checkpoint's" says "step 70/72 .*update left out \(1 so far\)"
check "with the same weights" same half skip

# ---- averages ----
steps=("$work"/one/checkpoints/step_00000000{2,4,6})
check "averages three checkpoints" bash -c "$program average ${steps[*]} --to $work/mean > $work/log 2>&1"
check "the mean, to the bit" python3 - "$work/mean" "${steps[@]}" << 'END'
import array, struct, sys
def tensors(folder):
    data = open(folder + "/model.safetensors", "rb").read()
    return array.array("f", data[8 + struct.unpack("<Q", data[:8])[0]:])
mean, *all = map(tensors, sys.argv[1:])
assert len(mean) == len(all[0]) > 10000
assert mean == array.array("f", [(a + b + c) / 3 for a, b, c in zip(*all)])
END
check "the mean trains on" bash -c "$program --init-from $work/mean --data $work/data --steps 0 --seq-len 24 --batch 2 --val-tokens 48 > $work/log 2>&1"
check "the mean of one model is refused" bash -c "! $program average ${steps[0]} --to $work/mean1 > $work/log 2>&1"
run small --dim 16 --ffn 20 --steps 1
check "models that differ are refused" bash -c "! $program average ${steps[0]} $work/small/final --to $work/mean2 > $work/log 2>&1"

# ---- the average that a run keeps of its weights ----
same_average() { cmp "$work/$1/final_ema/model.safetensors" "$work/$2/final_ema/model.safetensors" > "$work/log" 2>&1; }
check "trains with --ema" run ema --steps 6 --ema 0.5 --save-every 3
check "says the average's loss" says "step 6 \| validation loss [0-9.]+ nats.*, of the average [0-9.]+"
run no_ema --steps 6 --save-every 3
check "the weights are those without" same ema no_ema
average() { "$program" --init-from "$work/ema/final_ema" --data "$work/data" --seq-len 24 --batch 1 --steps 0 --val-tokens 48 --threads 1 --device cpu --out "$work/average"; }
check "the average is a model" bash -c "$(declare -f average); work=$work program=$program; average > $work/log 2>&1"
check "of that loss, to the digit" python3 - "$work/ema" "$work/average" << 'END'
import json, sys
a, b = ([j for j in map(json.loads, open(f + "/metrics.jsonl")) if "val_loss" in j][-1] for f in sys.argv[1:])
assert a["val_loss_ema"] == b["val_loss"] != a["val_loss"], (a, b)
END
check "the checkpoint's is exported" bash -c "$program export --average --from $work/ema/checkpoints/step_000000006 --to $work/exported > $work/log 2>&1"
check "  the same" cmp "$work/exported/model.safetensors" "$work/ema/final_ema/model.safetensors"
check "none to export" bash -c "! $program export --average --from $work/no_ema --to $work/no > $work/log 2>&1"
check "  in words" says "holds no average of the weights"
cp -r "$work/ema" "$work/ema_half"
rm -r "$work/ema_half/checkpoints/step_000000006" "$work/ema_half/final" "$work/ema_half/final_ema"
check "resumes in the middle" resume ema_half
check "  with the same average" same_average ema_half ema
for layout in "--ranks 3 --zero 3" "--ranks 4 --tp 2 --pp 2 --zero 1"; do
  rm -rf "$work/ema_half/final" "$work/ema_half/final_ema"
  # shellcheck disable=SC2086
  check "the average is read by $layout" resume ema_half $layout
  check "  to the bit" same_average ema_half ema
done
rm -r "$work/no_ema/checkpoints/step_000000006" "$work/no_ema/final"
check "a run that had none" resume no_ema --ema 0.5
check "  begins with its weights, and says so" says "it has no average of the weights: --ema begins with them"

# ---- recommended rates and batches ----
small=("${model[@]}" --data "$work/data" --seq-len 24 --batch 1 --val-every 0 --val-tokens 48)
check "--auto trains" bash -c "$program ${small[*]} --auto --steps 20 --save-every 10 --out $work/auto > $work/log 2>&1"
cp "$work/log" "$work/auto.log"
check "and says what it chose, and why" says "auto     --lr [0-9.e-]+: 0.3118 C\^-0.1250 for C = "
check "all of it" bash -c "[ \$(grep -c '^auto     --' $work/log) = 5 ]"
rm -r "$work/auto/checkpoints/step_000000020" "$work/auto/final"
check "a resume goes on with it" resume auto
check "at the same rates and batches" bash -c "[ \"\$(grep -o 'step 20/20 | loss [0-9.]* | norm [0-9.]* | lr [^ ]*' $work/log)\" = \"\$(grep -o 'step 20/20 | loss [0-9.]* | norm [0-9.]* | lr [^ ]*' $work/auto.log)\" ]"
check "--presets recommends" bash -c "$program --presets > $work/log 2>&1"
check "as published" says "lr 0.0003, 4.2M to 17M tokens an update \(Llama 3 8B"
check "a rate that nobody published" bash -c "$program --layers 1 --dim 128 --heads 4 --ffn 64 --vocab 49152 --seq-len 8 --batch 1 --lr 0.1 --steps 0 --val-tokens 8 --data synthetic --device cpu > $work/log 2>&1"
check "is named" says "advice   lr 0.1 is 100 x above any published one of this size"

# ---- a batch that grows: the bits of runs that are resumed by hand ----
hand() { run hand --steps 5 --batch-tokens 96 && resume hand --steps 8 --batch-tokens 192 && resume hand --steps 12 --batch-tokens 384; }
check "three runs, each with a larger batch" hand
ramp=(--batch-ramp '96:400,192:1000' --batch-tokens 384 --steps 12)
check "--batch-ramp" run ramp "${ramp[@]}"
check "says where it grows" says "until 1000 tokens are seen"
check "with their weights" same ramp hand
for step in 5 8; do
  rm -rf "$work/cut"
  cp -r "$work/ramp" "$work/cut"
  for after in 8 12; do [ $after -le $step ] || rm -r "$work/cut/checkpoints/step_$(printf %09d $after)"; done
  rm -r "$work/cut/final"
  check "resumes at step $step" resume cut
  check "with the same weights" same cut ramp
done
for layout in "--ranks 2 --zero 3" "--ranks 4 --tp 2 --pp 2" "--ranks 2 --tp 2" "--ranks 4 --tp 2 --zero 3" "--ranks 2 --zero 2" \
  "--ranks 4 --zero 1" "--ranks 2 --pp 2 --pp-schedule zb-h1" "--ranks 2 --cp 2 --logits-mib 1"; do
  rm -rf "$work/other"
  # shellcheck disable=SC2086
  check "a ramp on $layout" run other "${ramp[@]}" $layout
  check "  as on one rank" close other ramp
done
check "resumes on other ranks" bash -c "rm -r $work/cut/final $work/cut/checkpoints/step_0000000{08,12}; $program --ranks 4 --out $work/cut --resume auto > $work/log 2>&1"
check "  as on one rank" close cut ramp
check "refuses batches that do not divide" bash -c "! $program ${train[*]} --out $work/no --batch-tokens 384 --batch-ramp 120:400 > $work/log 2>&1"
check "  and says the nearest" says "nearest: --batch-tokens 360"

# ---- muP ----
check "muP at its base width" run base --steps 4 --mup-base-width 32
check "and without" run plain --steps 4
check "the same weights" same base plain
mup=(--steps 6 --mup-base-width 8 --mup-base-depth 1 --lr 1e-2)
check "muP at four times its base width" run wide "${mup[@]}" --save-every 3
for layout in "--ranks 3 --zero 3" "--ranks 4 --tp 2 --pp 2"; do
  rm -rf "$work/other"
  # shellcheck disable=SC2086
  check "  on $layout" run other "${mup[@]}" $layout
  check "  as on one rank" close other wide
done
cp -r "$work/wide" "$work/narrow"
rm -r "$work/narrow/checkpoints/step_000000006" "$work/narrow/final"
check "resumes in the middle" resume narrow
check "with the same weights" same narrow wide
widths=(coordinates --widths "32,64,128,256" "${train[@]}" --lr 3e-3 --steps 6)
check "draws the coordinate check" bash -c "$program ${widths[*]} --mup-base-width 32 --out $work/coordinates > $work/log 2>&1"
cp "$work/log" "$work/with.log"
check "and a picture" test -s "$work/coordinates/coordinates.svg"
check "the same without muP" bash -c "$program ${widths[*]} --out $work/sp > $work/log 2>&1"
check "activations grow with the width without muP alone" python3 - "$work/with.log" "$work/log" << 'END'
import sys
def slope(path):
    rows = [l.split() for l in open(path) if l.startswith("residual stream")]
    return float(rows[-1][-1])
with_mup, without = map(slope, sys.argv[1:])
assert abs(with_mup) < 0.15 and without > 0.3, (with_mup, without)
END
summary
