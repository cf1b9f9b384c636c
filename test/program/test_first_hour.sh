#!/usr/bin/env bash
# First hour of a new user: models that stop, files that stay, tokenizers and learning rates that are not what was
# meant. Ends with "N passed, N failed".
#
#   test/program/test_first_hour.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

says() { for t in "$@"; do grep -qF -- "$t" "$work/log" || { echo "does not say: $t"; return 1; }; done; }
silent() { ! grep -qF -- "$1" "$work/log"; }
# exits CODE TEXT... -- ARGS...   the program exits with CODE and says each TEXT
exits() {
  local code=$1 rc=0 texts=()
  shift
  while [ "$1" != -- ]; do texts+=("$1"); shift; done
  shift
  "$program" "$@" > "$work/log" 2>&1 < /dev/null || rc=$?
  [ $rc = "$code" ] || { echo "exit code $rc, expected $code: $*"; return 1; }
  says "${texts[@]}"
}
shape=(--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8)
small=(--device cpu --threads 1 --batch 2 --seq-len 32 --val-tokens 512 --val-every 0 --log-every 5)
json() { python3 -c "import json, sys; value = json.load(open(sys.argv[1])); print($2)" "$1"; }
rates() { python3 - "$work/$1/metrics.jsonl" << 'PY'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "lr" in row:
        print(row["step"], row["lr"])
PY
}
tree() { (cd "$work/$1" && find . -type f -exec sha256sum {} + | sort); }

python3 data_prep/prepare.py stdlib --max-bytes 300K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

# ---- a model stops where its documents do ----
check "a run" exits 0 "step 20/20" -- --data "$work/data" "${shape[@]}" "${small[@]}" --steps 20 --save-every 10 --keep 0 --out "$work/run"
check "config.json names the data's end token" test "$(json "$work/run/final/config.json" 'value["eos_token_id"], value["bos_token_id"]')" = "256 256"
check "so does generation_config.json" test "$(json "$work/run/final/generation_config.json" 'value["eos_token_id"]')" = 256
check "and a checkpoint's" test "$(json "$work/run/checkpoints/step_000000010/generation_config.json" 'value["eos_token_id"]')" = 256
model=test/golden/prompts/model
greedy() {  # the text that transformers continues each prompt with (dev/golden/make_prompt_golden.py)
  python3 - "$program" $model << 'PY' > "$work/log" 2>&1
import json, subprocess, sys
program, model = sys.argv[1:]
for row in json.load(open("test/golden/prompts/text.json")):
    run = subprocess.run([program, "generate", "--from", model, "--device", "cpu", "--threads", "1", "--temperature", "0",
                          "--max-tokens", "40", "--prompt", row["prompt"]], capture_output=True, check=True)
    assert run.stdout.decode() == row["prompt"] + row["text"] + "\n", (run.stdout, row)
    # The end token itself is not counted.
    want = f"{len(row['ids'])} prompt tokens, {len(row['new']) - 1} new up to the end token"
    assert want in run.stderr.decode(), (run.stderr, want)
PY
}
check "greedy text is that of transformers, up to the end token" greedy
check "--ignore-eos writes on" exits 0 "40 new, " -- generate --from $model --device cpu --threads 1 --temperature 0 --max-tokens 40 --prompt "the cat" --ignore-eos
printf 'the cat' > "$work/prompt"
check "a prompt from a file" exits 0 "the cat sat on the hill." "7 prompt tokens" -- generate --from $model --threads 1 --temperature 0 --prompt-file "$work/prompt" --max-tokens 30 --raw-prompt
stdin() { "$program" generate --from $model --threads 1 --temperature 0 --prompt-file - < "$work/prompt" > "$work/log" 2>&1 && says "the cat sat on the hill."; }
check "a prompt from standard input" stdin
interactive() {
  printf 'the cat\nthe dog\n\nnever\n' | "$program" generate --from $model --threads 1 --temperature 0 --interactive > "$work/log" 2>&1
  says "the cat sat on" "the dog sat on" && silent never
}
check "one prompt a line, up to an empty one" interactive
check "several samples" exits 0 "--- sample 1 of 3" "--- sample 3 of 3" -- generate --from $model --threads 1 --num-samples 3 --prompt "the" --max-tokens 8
statistics() {  # on a line of their own, behind the text
  "$program" generate --from $model --threads 1 --temperature 0 --prompt "the cat" > "$work/log" 2>&1
  grep -qE '^8 prompt tokens, [0-9]+ new up to the end token, [0-9.]+ tokens/s$' "$work/log"
}
check "statistics have their own line" statistics
cp -r $model "$work/chat"
echo '{{ messages }}' > "$work/chat/chat_template.jinja"
check "a chat template that is not applied is said" exits 0 "has a chat template: --chat applies it" -- generate --from "$work/chat" --threads 1 --prompt a --max-tokens 2
check "but not to a prompt that has it" exits 0 -- generate --from "$work/chat" --threads 1 --prompt a --max-tokens 2 --raw-prompt
check "is silent then" silent "has a chat template"
# A template that is known, by its whole text, needs no Python; a changed one does.
known="{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
echo "$known" > "$work/chat/chat_template.jinja"
mkdir -p "$work/nothing"
no_python() { PATH=$work/nothing "$program" generate --from "$work/chat" --threads 1 --max-tokens 2 --chat --prompt hi > "$work/log" 2>&1; }
check "--chat of a known template needs no Python" no_python
echo "$known " > "$work/chat/chat_template.jinja"
changed() { ! no_python && says "there is no python3 in PATH"; }
check "of a changed one it does" changed
if python3 -c 'import jinja2' 2> /dev/null; then
  # Transformers continues "the cat" with this, up to the end token; the second turn has the first one's answer.
  cat > "$work/chat/chat_template.jinja" << 'EOF'
{% if messages|length == 3 and messages[1]['content'].strip() != 'sat on the hill.' %}{{ raise_exception('the answer is ' + messages[1]['content']) }}{% endif %}
{% if messages[0]['role'] == 'system' %}{{ raise_exception(messages[0]['content']) }}{% endif %}
{{- bos_token }}{{ messages[-1]['content'] }}
EOF
  answer() { test "$("$program" generate --from "$work/chat" --threads 1 --temperature 0 --chat --prompt "the cat" 2> "$work/log")" = " sat on the hill."; }
  check "--chat answers, and prints the answer alone" answer
  turns() {
    printf 'the cat\nthe dog\n' | "$program" generate --from "$work/chat" --threads 1 --temperature 0 --chat --interactive > "$work/log" 2>&1
    says " sat on the hill." && silent "the answer is" && silent "could not be applied" && silent "the dog"
  }
  check "each line is the next turn" turns
  check "a system message reaches the template, whose refusal is told" exits 2 "refuses these messages: be brief" "could not be applied" -- \
    generate --from "$work/chat" --threads 1 --chat --system "be brief" --prompt a
  # Only the program itself, where others may write: what lies beside it, or where it is started, is not run.
  alone() {
    mkdir -p "$work/open/bin" "$work/open/data_prep" "$work/open/share/ringzero"
    cp "$program" "$work/open/bin/"
    for file in chat_prompt chat_template jinja2 json; do echo "open('$work/ran', 'w')" > "$work/open/data_prep/$file.py"; done
    cp "$work/open/data_prep/"* "$work/open/bin/"
    ln -s ../../data_prep "$work/open/share/ringzero/data_prep"
    chmod -R a+w "$work/open"
    local model; model=$(realpath "$work/chat")
    (cd "$work/open/bin" && test "$(./"$(basename "$program")" generate --from "$model" --threads 1 --temperature 0 --chat --prompt "the cat" 2> "$work/log")" = " sat on the hill.") && test ! -e "$work/ran"
  }
  check "chat: the program alone, in a folder that others may write" alone
  others() {  # a python3 that another user could have put there
    mkdir -p "$work/path" && chmod a+w "$work/path"
    printf '#!/bin/sh\ntouch %s\n' "$work/ran" > "$work/path/python3" && chmod a+x "$work/path/python3"
    ! PATH=$work/path "$program" generate --from "$work/chat" --threads 1 --chat --prompt a > "$work/log" 2>&1 && says "other users can change $work/path/python3" && test ! -e "$work/ran"
  }
  check "chat: nor a python3 of others" others
else
  skip "--chat: no jinja2 here"
fi
printf 'a\000b\033[2Jc' > "$work/controls"
piped() { "$program" generate --from $model --threads 1 --temperature 0 --max-tokens 1 --prompt-file "$work/controls" 2> "$work/log" | cat > "$work/text" && head -c 8 "$work/text" | cmp - "$work/controls"; }
check "output: into a pipe text is written as it is" piped
shown() {  # on a terminal
  python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' "$program" generate --from $model --threads 1 --temperature 0 --max-tokens 1 --prompt-file "$work/controls" > "$work/log" < /dev/null 2>&1
  says 'a\x00b\x1b[2Jc' && ! grep -q "$(printf '\033')" "$work/log"
}
check "output: on a terminal control characters are shown" shown

# ---- what came with a model stays ----
fine=(--init-from "$work/base" --data "$work/data" "${small[@]}")
cp -r "$work/run/final" "$work/base"
echo '{"temperature": 0.6, "eos_token_id": 256}' > "$work/base/generation_config.json"
for name in chat_template.jinja special_tokens_map.json LICENSE; do echo "{}" > "$work/base/$name"; done
mkdir -p "$work/base/original/deep" "$work/base/other"
echo '{"dim": 32}' > "$work/base/original/params.json"
echo words > "$work/base/original/deep/notes"
echo '{}' > "$work/base/other/config.json"  # another model's folder
dd if=/dev/zero of="$work/base/vocabulary.dat" bs=1M count=65 status=none
check "fine-tuning" exits 0 "lr 5e-05 is the default with --init-from" "vocabulary.dat is left out: it has more than 64.0 MiB" -- "${fine[@]}" --steps 4 --save-every 2 --out "$work/fine"
for folder in final checkpoints/step_000000002; do
  for name in chat_template.jinja special_tokens_map.json LICENSE; do
    check "$folder has $name" cmp -s "$work/base/$name" "$work/fine/$folder/$name"
  done
  check "$folder keeps the rest of generation_config.json" grep -q '"temperature": 0.6' "$work/fine/$folder/generation_config.json"
done
check "resumed" exits 0 "resumed" "changed  --threads 2, was 1" -- --out "$work/fine" --resume auto --steps 6 --device cpu --threads 2 --lr-continue
check "still has them" test -e "$work/fine/final/chat_template.jinja"
check "and the fine-tuning rate" test "$(json "$work/fine/checkpoints/step_000000006/manifest.json" 'value["flags"]["lr"]')" = 5e-05
check "export carries them" exits 0 -- export --from "$work/fine" --to "$work/exported"
for name in original/params.json original/deep/notes; do
  check "folders too: $name" cmp "$work/base/$name" "$work/exported/$name"
done
check "but no other model's" test ! -e "$work/exported/other"
rm -r "$work/exported/original" "$work"/base/{original,other,vocabulary.dat}
check "chat template" test -e "$work/exported/chat_template.jinja"
cp "$work/exported/model.safetensors" "$work/exported/model-00001-of-00002.safetensors"
echo '{"weight_map": {}}' > "$work/exported/model.safetensors.index.json"
echo mine > "$work/exported/notes.txt"
check "export --overwrite" exits 0 -- export --from "$work/run" --to "$work/exported" --overwrite
check "no stale file of the other model stays" test "$(ls "$work/exported" | tr '\n' ' ')" = \
  "LICENSE config.json generation_config.json model.safetensors notes.txt tokenizer.json tokenizer_config.json "

# ---- GGUF, read back by PyPI's package ----
gguf_models=(test/golden/model/* "$model")
for kind in gpt2 llama3 llama2 smollm2; do
  mkdir "$work/$kind"
  cp test/golden/tokenizer/$kind.json "$work/$kind/tokenizer.json"
  check "a model with the tokenizer $kind" exits 0 -- --data synthetic --tokenizer "$work/$kind/tokenizer.json" "${shape[@]}" \
    "${small[@]}" --vocab 1200 --steps 0 --out "$work/$kind/run"
  check "  has it" cmp "$work/$kind/tokenizer.json" "$work/$kind/run/final/tokenizer.json"
  gguf_models+=("$work/$kind/run/final")
done
python=$(for p in python3 "${RZ_PYTHON:-python3}"; do "$p" -c 'import gguf, numpy' 2> /dev/null && echo "$p" && break; done)
if [ -n "$python" ]; then
  gguf() { timeout 200 "$python" test/program/check_gguf.py "$program" "${gguf_models[@]}" > "$work/log" 2>&1; }
  check "GGUF: tensors, metadata and tokenizers as the package gguf reads them" gguf
else
  skip "GGUF files read back: no package gguf here (pip install gguf, or RZ_PYTHON=a python that has it)"
fi
python=$(for p in python3 "${RZ_PYTHON:-python3}" "${RZ_LLAMA_CPP_PYTHON:-python3}"; do "$p" -c 'import xllamacpp' 2> /dev/null && echo "$p" && break; done)
if [ -n "$python" ]; then
  llama_cpp() { timeout 300 "$python" test/program/check_llama_cpp.py "$program" $model "the cat" "a dog and a cat" > "$work/log" 2>&1; }
  check "GGUF: llama.cpp continues with the same greedy text" llama_cpp
else
  skip "GGUF files in llama.cpp: no package xllamacpp here (pip install xllamacpp, or RZ_LLAMA_CPP_PYTHON=a python that has it)"
fi
check "a name that ends with .gguf is a file of that format" exits 0 -- export --from $model --to "$work/mine.gguf"
check "  as llama.cpp reads it" test "$(head -c 4 "$work/mine.gguf")" = GGUF
two_ends=$work/two_ends
cp -r $model "$two_ends"
sed -i 's/"eos_token_id": 256/"eos_token_id": [255, 256]/' "$two_ends/config.json"
ends_of() { "$program" export --from "$two_ends" --to "$work/ends.gguf" > "$work/log" && python3 - "$work/ends.gguf" << 'PY'
import struct, sys
data = open(sys.argv[1], "rb").read()
for key, want in (("eos", 255), ("eot", 256)):
    name = f"tokenizer.ggml.{key}_token_id".encode()
    at = data.index(name) + len(name)
    assert struct.unpack_from("<II", data, at) == (4, want), (key, struct.unpack_from("<II", data, at))
PY
}
check "GGUF: a second end token is the end of a turn" ends_of
check "GGUF is no folder" exits 2 "is a folder" -- export --from "$work/run" --to "$work/base" --format gguf --overwrite

# ---- another tokenizer than the model's ----
cp -r "$work/data" "$work/other"
python3 - "$work/other/tokenizer.json" << 'PY'
import json, sys
value = json.load(open(sys.argv[1]))
vocab = value["model"]["vocab"]
vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
json.dump(value, open(sys.argv[1], "w"))
PY
other=(--init-from "$work/base" --data "$work/other" "${small[@]}" --steps 2)
check "another tokenizer, where it is meant" exits 0 "step 2/2" -- "${other[@]}" --allow-tokenizer-change --out "$work/changed"
check "the model then has the data's" cmp -s "$work/other/tokenizer.json" "$work/changed/final/tokenizer.json"
check "and not the old one's chat template" test ! -e "$work/changed/final/chat_template.jinja"
check "nor does it resume with another" exits 2 "the data's tokenizer is not the model's" -- --out "$work/fine" --resume auto --steps 7 --data "$work/other" --device cpu --lr-continue --allow-data-change

check "a run's folder is a starting point" exits 0 "step 1/1" -- --init-from "$work/run" --data "$work/data" "${small[@]}" --steps 1

# ---- more rows for a larger tokenizer ----
cp -r "$work/data" "$work/larger"
python3 - "$work/larger" << 'PY'
import json, sys
for name in ("tokenizer.json", "dataset.json"):
    path = f"{sys.argv[1]}/{name}"
    value = json.load(open(path))
    if name == "dataset.json":
        value["vocab_size"] = 259
    else:
        value["added_tokens"] += [{**value["added_tokens"][0], "id": 257 + i, "content": f"<|{i}|>"} for i in range(2)]
    json.dump(value, open(path, "w"))
PY
larger=(--init-from "$work/base" --data "$work/larger" "${small[@]}" --steps 0)
check "a larger vocabulary is refused" exits 2 "--resize-vocab" -- "${larger[@]}"
check "--resize-vocab" exits 0 "2 new rows are the mean of the 257 old ones" -- "${larger[@]}" --resize-vocab --out "$work/resized"
rows() {
  python3 - "$work/base" "$work/resized/final" << 'PY'
import json, struct, sys
def rows(folder, name):
    data = open(folder + "/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8:8 + size])[name]
    begin, end = entry["data_offsets"]
    values = data[8 + size + begin:8 + size + end]
    return [values[i:i + 128] for i in range(0, len(values), 128)]  # 32 floats
for name in ("model.embed_tokens.weight", "lm_head.weight"):
    old, new = (rows(folder, name) for folder in sys.argv[1:])
    assert (len(old), len(new)) == (257, 259)
    assert new[:257] == old and new[257] != new[258]
assert json.load(open(sys.argv[2] + "/config.json"))["vocab_size"] == 259
PY
}
check "old rows are the same bits" rows
resumed=(--resume "$work/run" --data "$work/larger" --device cpu --threads 1 --steps 21 --save-every 1 --allow-data-change --lr 0 --allow-lr-jump)
check "a resumed run with a larger vocabulary is refused" exits 2 "--resize-vocab" -- "${resumed[@]}" --out "$work/more"
check "--resize-vocab there" exits 0 "2 new rows are the mean of the 257 old ones" "step 21/21" -- "${resumed[@]}" --out "$work/more" --resize-vocab
grown() {  # at rate 0: what was there is unchanged, and what is new has no history
  python3 - "$work/run/checkpoints/step_000000020" "$work/more/checkpoints/step_000000021" << 'PY'
import json, struct, sys
def rows(folder, file, name):
    data = open(f"{folder}/{file}.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])[name]["data_offsets"]
    values = struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
    return [values[i:i + 32] for i in range(0, len(values), 32)]
for name in ("model.embed_tokens.weight", "lm_head.weight"):
    old, new = (rows(folder, "model", name) for folder in sys.argv[1:])
    assert (len(old), len(new)) == (257, 259) and new[:257] == old, name
    for row in new[257:]:
        for c, x in enumerate(row):
            mean = sum(r[c] for r in old) / 257
            assert x != mean and abs(x - mean) < 0.01, (name, x, mean)
for part in ("optimizer/m", "optimizer/v"):  # no text has the new tokens: their embedding gets no gradient
    moments = rows(sys.argv[2], part, "model.embed_tokens.weight")
    assert len(moments) == 259 and not any(map(any, moments[257:])) and sum(map(any, moments)) > 50, part
PY
}
check "old rows are the same bits, new ones the mean, moments zero" grown
check "it resumes from then on" exits 0 "step 22/22" -- --out "$work/more" --resume auto --device cpu --threads 1 --steps 22
check "and is exported" exits 0 -- export --from "$work/more" --to "$work/more_exported"
check "the larger run writes" exits 0 -- generate --from "$work/more_exported" --threads 1 --prompt a --max-tokens 2
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  shares() { OMP_NUM_THREADS=1 mpirun -n 2 "$program" "${resumed[@]}" --batch 1 --zero 3 --out "$work/shares" --resize-vocab > "$work/log" 2>&1; }
  check "--resize-vocab on two ranks" shares
  check "gives the same rows" cmp "$work/more/checkpoints/step_000000021/model.safetensors" "$work/shares/checkpoints/step_000000021/model.safetensors"
fi
check "the larger model writes" exits 0 -- generate --from "$work/resized" --threads 1 --prompt a --max-tokens 2

# ---- a learning rate that would jump ----
more=(--out "$work/again" --resume auto --steps 40 --device cpu --threads 1)
again() { rm -rf "$work/again"; cp -r "$work/run" "$work/again"; }
again
check "a jump is refused" exits 2 "it was 0.0001 at step 20" "0.0005892 at step 21" "--lr-continue" "--rewarm N" "--allow-lr-jump" -- "${more[@]}"
check "the prefix" grep -q '^train_llama: the learning rate would jump' "$work/log"
check "--lr-continue" exits 0 "from step 20 on at lr 0.0001" -- "${more[@]}" --lr-continue --min-lr 1e-5 --save-every 5
check "goes down from there" python3 - "$work/again/metrics.jsonl" << 'PY'
import json, sys
lr = {r["step"]: r["lr"] for r in map(json.loads, open(sys.argv[1])) if "lr" in r}
assert abs(lr[20] - 1e-4) < 1e-9 and lr[40] == 1e-5, lr
assert all(0.9e-4 < lr[s] <= 1e-4 for s in (21, 22)) and all(lr[s + 1] < lr[s] for s in range(21, 40)), lr
PY
rates again > "$work/whole"
rm -r "$work"/again/checkpoints/step_0000000{30,35,40} "$work/again/final"
check "resumed once more, without saying it again" exits 0 "resumed" -- --out "$work/again" --resume auto --device cpu --threads 1
check "the same rates" test "$(rates again)" = "$(cat "$work/whole")"
again
check "--rewarm" exits 0 "rising to 0.001 in 5 steps" -- "${more[@]}" --rewarm 5
check "rises" test "$(rates again | awk '$1 == 25 { print $2 }')" = 0.001
again
check "--allow-lr-jump" exits 0 "step 40/40" -- "${more[@]}" --allow-lr-jump
check "jumps" test "$(rates again | awk '$1 == 21 { print ($2 > 5e-4) }')" = 1
tree run > "$work/parent"
branch=(--resume "$work/run" --branch 10 --out "$work/branch" --steps 16 --device cpu --threads 1)
check "a branch" exits 0 "resumed" "step 10" "(wsd)" -- "${branch[@]}" --save-every 3
check "decays to the floor" python3 - "$work/run/metrics.jsonl" "$work/branch/metrics.jsonl" << 'PY'
import json, sys
parent, lr = ({r["step"]: r["lr"] for r in map(json.loads, open(p)) if "lr" in r} for p in sys.argv[1:])
assert sorted(lr) == list(range(11, 17)) and abs(lr[16] - 1e-4) < 1e-12, lr
for step in range(11, 17):
    want = 1e-4 + (parent[10] - 1e-4) * (1 - ((step - 10) / 6) ** 0.5)
    assert abs(lr[step] - want) < 1e-9, (step, lr[step], want)
PY
check "the parent is as it was" test "$(tree run)" = "$(cat "$work/parent")"
rates branch > "$work/whole"
rm -r "$work"/branch/checkpoints/step_0000000{15,16} "$work/branch/final"
check "a branch resumes as any run" exits 0 "step 16/16" -- --out "$work/branch" --resume auto --device cpu --threads 1
check "with the same rates" test "$(rates branch)" = "$(cat "$work/whole")"

# ---- the memory that is said before a run is the memory at its peak ----
memory() {  # memory OUT   the first table's total in the log, and ranks.json: at least the peak, and within 2 %
  python3 - "$work/$1" << 'PY'
import json, re, sys
units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
log = open(sys.argv[1] + "/log.txt").read()
now, unit, said, last = re.search(r"^  total +([0-9.]+) (\w+) +([0-9.]+) (\w+)$", log, re.M).groups()
said = float(said) * units[last]
rank = json.load(open(sys.argv[1] + "/ranks.json"))[0]
peak = rank["memory_peak"]["total"]
assert 0 < rank["cpu_scratch_peak"] < rank["memory_reserved"], rank  # of the ops' threads: beside the ledger
assert 0.996 * peak <= said <= 1.02 * peak, (said, peak)  # three digits are said
PY
}
wide=(--preset bytes --dim 128 --layers 3 --heads 4 --kv-heads 2 --ffn 256 --head-dim 32 --data "$work/data" --device cpu --threads 1
      --batch 4 --seq-len 128 --val-tokens 2048 --val-every 2 --steps 4)
check "memory: a run that saves" exits 0 "at the peak" -- "${wide[@]}" --save-every 2 --out "$work/m1"
check "memory: said total and peak" memory m1
check "memory: bf16, recomputing, nothing saved meanwhile" exits 0 -- "${wide[@]}" --dtype bf16 --recompute block --save-every 0 --batch-tokens 2048 --out "$work/m2"
check "memory: said total and peak" memory m2
# A checkpoint is read through two buffers of 4 MiB, the final weights are written through one of 16.
check "memory: a resumed run" exits 0 "resumed" -- --resume "$work/m1" --steps 6 --save-every 0 --device cpu --threads 1 --allow-lr-jump --out "$work/m5"
check "memory: said total and peak" memory m5
sampled=(--sample-every 1 --val-every 0 --max-seq-len 20000 --sample-tokens 19000 --prompt "def f(" --steps 2 --save-every 0)
check "memory: samples" exits 0 "--- sample" -- "${wide[@]}" "${sampled[@]}" --dtype bf16 --batch 1 --out "$work/m6"
check "memory: said total and peak" memory m6
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  ranks() { timeout 120 mpirun -n "$1" "$program" "${wide[@]}" "${@:2}" > "$work/log" 2>&1; }
  check "memory: four ranks, ZeRO-3" ranks 4 --batch 1 --zero 3 --save-every 2 --out "$work/m4"
  check "memory: said total and peak" memory m4
  check "memory: four ranks, resumed with samples, all flags restored" ranks 4 --resume "$work/m4" --steps 6 --batch 1 --save-every 0 --allow-lr-jump \
    --sample-every 1 --max-seq-len 20000 --sample-tokens 19000 --val-every 0 --out "$work/m7"
  check "memory: said total and peak" memory m7
  for way in tp pp; do
    check "memory: samples with --$way 2" ranks 2 --$way 2 --batch-tokens 1024 --batch 1 "${sampled[@]}" --out "$work/m$way"
    check "memory: said total and peak" memory m$way
  done
  check "memory: a pipeline of two" ranks 2 --pp 2 --batch-tokens 2048 --save-every 2 --out "$work/mp"
  check "memory: said total and peak" memory mp
fi

# ---- a run's folder says what it is; data made on the spot ----
head -n 6 "$work/run/config.toml" > "$work/log"
check "config.toml: command, commit, host, data" says "# command: train_llama --data" "# commit:" "# host:" "# data:"
check "config.toml is read again" exits 0 "step 20/20" -- --config "$work/run/config.toml" --out "$work/twin"
check "the same weights" cmp "$work/run/final/model.safetensors" "$work/twin/final/model.safetensors"
check "log.txt has what was shown" grep -q '^step 20/20 | loss' "$work/run/log.txt"
check "and the command" grep -q '^command  train_llama --data' "$work/run/log.txt"
check "validations are counted" test "$(json "$work/run/checkpoints/step_000000010/manifest.json" 'value["validations"]')" = 0
check "synthetic data" exits 0 "synthetic data of" -- --data synthetic "${shape[@]}" "${small[@]}" --steps 3 --save-every 2 --out "$work/synthetic"
check "resume" exits 0 "step 4/4" -- --out "$work/synthetic" --resume auto --steps 4 --device cpu --threads 1 --lr-continue
check "dummy data" exits 0 "dummy data of 5.5452 nats" "step 2/2" -- --data dummy "${shape[@]}" "${small[@]}" --steps 2

# ---- what --data names instead of a dataset's folder ----
printf 'text' > "$work/mine.txt"
check "a text" exits 2 "is a file, and training reads token shards" "prepare.py text $work/mine.txt --out data/mine" -- --data "$work/mine.txt" --steps 1
check "shards" exits 2 "nearest: --train-data $work/data/" -- --data "$(compgen -G "$work/data/*_train_000000.bin")" --steps 1
check "a folder of texts" exits 2 "prepare.py text test/golden/prompts --out data/prompts" -- --data test/golden/prompts --steps 1
check "a misspelt name" exits 2 "did you mean --data synthetic?" -- --data synthetc --steps 1
check "a recipe's data: the command that makes them" exits 70 "make the dataset with: python3 data_prep/prepare.py fineweb-edu --subset sample-10BT" -- --config llama/configs/124m.toml --out "$work/124m"
check "not of other data" exits 70 "prepare.py stdlib --out $work/nothing" -- --config llama/configs/124m.toml --out "$work/124m" --data "$work/nothing"
check "--print-config needs no data" exits 0 "data/fineweb-edu-gpt2 is not here: the vocabulary is the preset's; the data are made by: python3 data_prep/prepare.py fineweb-edu" "FLOPs per token" -- \
  --config llama/configs/124m.toml --print-config
cp -r "$work/data" "$work/broken" && echo '{"model": {"type": "WordPiece", "vocab": {}}}' > "$work/broken/tokenizer.json"
check "a broken tokenizer is known at the start" exits 0 "generate can't use it" -- --data "$work/broken" "${shape[@]}" "${small[@]}" --steps 1 --out ""
check "one that is asked for is refused" exits 70 "tokenizer.json" -- --data "$work/broken" --tokenizer "$work/broken/tokenizer.json" "${shape[@]}" "${small[@]}" --steps 1 --out ""
check "generate with another model's tokenizer" exits 2 "it is another model's" -- generate --from $model --threads 1 --tokenizer test/golden/tokenizer/gpt2.json --prompt a
python3 - $model/tokenizer.json "$work/fewer.json" << 'PYTHON'
import json, sys
tokenizer = json.load(open(sys.argv[1]))
del tokenizer["added_tokens"][-1]
json.dump(tokenizer, open(sys.argv[2], "w"))
PYTHON
check "generate with a tokenizer of fewer ids" exits 2 "has 256 token ids, the model a vocabulary of 257" -- generate --from $model --threads 1 --tokenizer "$work/fewer.json" --prompt a
check "a sample's control characters" exits 0 'ab\x1b[31mred' -- --data "$work/data" "${shape[@]}" "${small[@]}" --steps 1 --sample-every 1 --sample-tokens 2 --prompt $'ab\033[31mred' --out ""

# ---- without --out a run has a folder of its own ----
mkdir "$work/unnamed"
unnamed() { (cd "$work/unnamed" && timeout 60 env "RINGZERO_RUNS=$runs" "$program" "$@" > "$work/log" 2>&1); }  # unnamed ARGS...
tiny_run=(--data "$work/data" "${shape[@]}" "${small[@]}" --steps 2 --save-every 2)
has_runs() { [ "$(find "$work/unnamed" -mindepth 2 -maxdepth 2 | wc -l)" = "$1" ]; }
refuses() { ! unnamed "$@" && [ -z "$(ls "$work/unnamed")" ]; }
runs=runs
check "a start that is refused makes none" refuses "${tiny_run[@]}" --check-replicas 1
check "nor does --print-config" unnamed "${tiny_run[@]}" --print-config
check "--resume auto needs --out" refuses --resume auto
check "a run without --out" unnamed "${tiny_run[@]}"
check "says which folder it has" says "out      runs/20" '--out "" keeps nothing'
check "and keeps its weights there" test -s "$(compgen -G "$work/unnamed/runs/*/final/model.safetensors")"
check "another continues it" unnamed --resume "$(compgen -G "$work/unnamed/runs/*")" --device cpu --threads 1 --steps 3 --allow-lr-jump
check "in a folder of its own" has_runs 2
check "--out with nothing" unnamed "${tiny_run[@]}" --save-every 0 --out ""
check "keeps nothing" says "out      none"
runs=''
check "nor does an empty RINGZERO_RUNS" unnamed "${tiny_run[@]}" --save-every 0
check "no folder was made" has_runs 2

# ---- several ranks ----
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  said() {  # said COUNT TEXT ARGS...   all ranks find the same wrong, and say it COUNT times
    local count=$1 text=$2
    shift 2
    timeout 60 mpirun -n 3 "$program" "$@" > "$work/log" 2>&1
    [ "$(grep -cF -- "$text" "$work/log")" = "$count" ]
  }
  ranks_of() { timeout 60 mpirun -n "$1" "$program" "${@:2}" > "$work/log" 2>&1; }
  check "a wrong flag is said once" said 1 "did you mean --steps" --stepz 3
  check "a wrong combination is said once" said 1 "train_llama: --warmup 50 is longer" --warmup 50 --steps 10
  unequal() { ! timeout 60 mpirun -n 1 "$program" "${tiny_run[@]}" --save-every 0 : -n 1 "$program" "${tiny_run[@]}" --save-every 0 --lr 0.5 > "$work/log" 2>&1; }
  check "other flags on a rank are refused" unequal
  check "and named" says "rank 1 was started with --lr 0.5, rank 0 was not"
  check "missing data are said once" said 1 "dataset.json: not found" --data "$work/nothing"
  check "with the prefix" grep -q '^train_llama: rank [0-2] of 3: ' "$work/log"
  check "a run of 3 ranks" said 1 "step 3/3" --data "$work/data" "${shape[@]}" "${small[@]}" --steps 3 --out "$work/three"
  layout=(--data "$work/data" "${shape[@]}" "${small[@]}" --batch 1 --batch-tokens 64)
  check "a pipeline of two" ranks_of 2 "${layout[@]}" --pp 2 --pp-schedule 1f1b --steps 2 --save-every 2 --out "$work/layout"
  check "resumed on two ranks it is one again" ranks_of 2 --out "$work/layout" --resume auto --steps 3 --lr-continue
  check "and says nothing of the layout" silent "not restored"
  check "pipeline" says "pipeline 1f1b: 2 stages on 2 ranks"
  check "on one rank it is not, and that is said" ranks_of 1 --out "$work/layout" --resume auto --steps 4 --lr-continue
  check "pp" says "changed  --pp 1, was 2: not restored on another number of ranks"
  check "nor beside an axis that is given" ranks_of 2 --out "$work/layout" --resume 2 --steps 4 --lr-continue --tp 2
  check "tp" says "changed  --pp 1, was 2: not restored beside an axis that is given"
  check "memory of every rank" python3 -c "
import json
rows = [json.loads(line) for line in open('$work/three/ranks.jsonl')]
assert [r['step'] for r in rows] == [1, 2, 3] and all(len(r['memory_by_rank']) == 3 and min(r['memory_by_rank']) > 0 for r in rows), rows"
  check "its steps, tokens and FLOP a second, and that the process holds more than the ledger" python3 -c "
import json
rows = [r for r in map(json.loads, open('$work/three/metrics.jsonl')) if 'loss' in r]
by_rank = {r['step']: r for r in map(json.loads, open('$work/three/ranks.jsonl'))}
before = 0
for r in rows:
    tokens, before = r['tokens'] - before, r['tokens']
    of = by_rank[r['step']]
    for rank in range(3):
        seconds = 1 / of['steps_per_second_by_rank'][rank]
        share = r['flops'] * r['seconds'] / 3
        assert abs(of['tokens_per_second_by_rank'][rank] * seconds * 3 / tokens - 1) < 1e-6, r
        assert abs(of['flops_by_rank'][rank] * seconds / share - 1) < 1e-6, r
        assert of['reserved_by_rank'][rank] > of['memory_by_rank'][rank], r
    assert abs(of['steps_per_second_by_rank'][0] * r['seconds'] - 1) < 1e-6, r"
fi
summary
