# shellcheck shell=bash
# train_llama.c beside the program: ten steps on the same shards, from the same seed. Sourced by run.sh ($built, $work).

c_data=$work/c-data
shards() {  # two uint32 shards of text-like noise, to be read in the order given
  python3 - "$c_data" << 'END'
import array, hashlib, struct, sys
for k, tokens in enumerate((5000, 3000)):
    noise = hashlib.shake_128(b"shard %d" % k).digest(tokens)
    ids = array.array("I", (b % 16 * (b // 64 + 1) for b in noise))
    with open(f"{sys.argv[1]}/{k}.bin", "wb") as f:
        f.write(struct.pack("<256i", 20240801, 7, tokens, *[0] * 253) + ids.tobytes())
END
}

# same NAME FILES MICRO_BATCHES C_FLAGS PROGRAM_FLAGS SHAPE...
same() {
  local name=$1 files=$2 micro=$3 extra=$4 program_extra=$5
  shift 5
  "$built/train_llama" --train-data "$files" --micro-batches "$micro" --steps 10 --batch 4 --seq-len 64 --seed 7 \
    --out "$work/$name.safetensors" $extra "$@" > "$work/$name.log" 2>&1 || { cp "$work/$name.log" "$work/log"; return 1; }
  rm -rf "$work/$name"
  "$PROGRAM" --device cpu --preset bytes --train-data "$files" --batch-tokens $((256 * micro)) --steps 10 --batch 4 \
    --seq-len 64 --seed 7 --val-every 0 --save-every 0 --out "$work/$name" $program_extra "$@" > "$work/log" 2>&1 || return 1
  dev/learn/compare_runs.py "$work/$name.log" "$work/$name.safetensors" "$work/$name" > "$work/log" 2>&1
}

mkdir -p "$c_data"
shards
python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/stdlib" > "$work/log" 2>&1
text=$(ls "$work"/stdlib/*_train_*.bin)
shape=(--dim 64 --layers 2 --heads 4 --kv-heads 2 --ffn 96)

check "train_llama.c: at most 1000 lines" test "$(wc -l < dev/learn/train_llama.c)" -le 1000
check "train_llama.c: ten steps of the program, grouped queries, two micro-batches" \
  same grouped "$text" 2 "" "" "${shape[@]}" --vocab 512
check "train_llama.c: the same with a tied head, uint32 ids in two shards, more than an epoch" \
  same tied "$c_data/0.bin,$c_data/1.bin" 4 "--tied 1" "--head tied" --dim 48 --layers 1 --heads 4 --kv-heads 4 --head-dim 12 --ffn 64 --vocab 64
# The comparison can fail: another decay.
other_decay() {
  ! same decay "$text" 1 "--weight-decay 0.2" "" "${shape[@]}" --vocab 512 && grep -qE 'differs by|more than' "$work/log"
}
check "train_llama.c: the comparison notices another weight decay" other_decay
