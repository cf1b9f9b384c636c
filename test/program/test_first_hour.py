#!/usr/bin/env python3
"""First hour of a new user: models that stop, files that stay, tokenizers and rates that are not what was meant. Ends with counts.

test/program/test_first_hour.py ./train_llama
"""

import json
import os
import re
import shutil
import struct
import subprocess

from checks import ROOT, Table, arguments, check, copy, dies, edit, end, equal, expect, has_mpi, holds, load, remove
from checks import rows, run, same_file, skip, split, tensors, text_data, work

program = arguments[0]
mpi = has_mpi(program)
SHAPE = "--preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --ffn 48 --head-dim 8"
SMALL = "--device cpu --threads 1 --batch 2 --seq-len 32 --val-tokens 512 --val-every 0 --log-every 5"
DATA = f"--data {text_data('300K')}"
NEW = f"{DATA} {SHAPE} {SMALL}"
train = Table(program, NEW, resumed="--device cpu --threads 1")
fine = Table(program, SMALL, resumed="--device cpu --threads 1")
(here := work / "unnamed").mkdir()


def each(table):
    """Commands, one a line: COMMAND | [CODE |] TEXT...   an exit code other than 0, and what the command must say, to the letter."""
    for line in table.strip().splitlines():
        command, *texts = line.strip().split(" | ")
        code = int(texts.pop(0)) if texts and texts[0].isdigit() else 0
        expect(command, run([program], command), code, map(re.escape, texts))


def generate(*command, **more):
    """Standard output of the program, and the other."""
    ended = subprocess.run(split([program, *command]), capture_output=True, stdin=subprocess.DEVNULL, **more)
    return ended.stdout, ended.stderr.decode()


def rates(out):
    return {row["step"]: row["lr"] for row in rows(out, "lr")}


def vectors(file, name):
    """Rows of a tensor of 32 columns."""
    return list(struct.iter_unpack("<32f", tensors(f"{file}.safetensors")[name][2]))


def memory(table, row):
    """Also the first table's total in the log, and ranks.json: at least the peak, and within 2 %."""
    name = row.split()[0]
    table(row)
    with holds(f"{name}: said total and peak"):
        log = (work / name / "log.txt").read_text()
        said, unit = re.search(r"^  total +[0-9.]+ \w+ +([0-9.]+) (\w+)$", log, re.M).groups()
        said = float(said) * 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)
        rank = load(name, "ranks.json")[0]
        peak = rank["memory_peak"]["total"]
        assert 0 < rank["cpu_scratch_peak"] < rank["memory_reserved"], rank  # of the ops' threads: beside the ledger
        assert 0.996 * peak <= said <= 1.02 * peak, (said, peak)  # three digits are said


def read_back(what, package, script, *variables):
    for python in "python3", *(os.environ[v] for v in variables if v in os.environ):
        if run([python, "-c", f"import {package}"]).code == 0:
            return expect(what, run([python], script))
    skip(f"{what}: no package {package} here (pip install {package}, or {variables[-1]}=a python that has it)")


def unnamed(what, flags, folders, runs="runs", **more):
    expect(what, run([program], flags, cwd=here, env={"RINGZERO_RUNS": runs}, limit=60), **more)
    found = sorted(here.glob("*/*"))
    check(f"  {folders} folders", len(found) == folders and (found or not list(here.iterdir())), found)
    return found


# ---- a model stops where its documents do ----
train("run 1 --steps 20 --save-every 10 --keep 0 | says step 20/20")
config = load("run/final/config.json")
equal("config.json names the data's end token", (config["eos_token_id"], config["bos_token_id"]), (256, 256))
for folder in "final", "checkpoints/step_000000010":
    equal(f"{folder}: generation_config.json too", load("run", folder, "generation_config.json")["eos_token_id"], 256)
model = "test/golden/prompts/model"
MODEL = f"generate --from {model} --threads 1"
FIRST = f"{MODEL} --temperature 0"
for row in load(ROOT, "test/golden/prompts/text.json"):  # dev/golden/make_prompt_golden.py
    text, said = generate(FIRST, "--device cpu --max-tokens 40 --prompt", [row["prompt"]])
    equal("greedy text is that of transformers", text.decode(), row["prompt"] + row["text"] + "\n")
    want = f"{len(row['ids'])} prompt tokens, {len(row['new']) - 1} new up to the end token"  # which is not counted
    check("  up to the end token", want in said, said)
prompt, chat = work / "prompt", work / "chat"
prompt.write_text("the cat")
copy(ROOT / model, chat)
CHAT = f"generate --from {chat} --threads 1"
(chat / "chat_template.jinja").write_text("{{ messages }}\n")
each(f"""
    {FIRST} --device cpu --max-tokens 40 --prompt 'the cat' --ignore-eos | 40 new,
    {FIRST} --prompt-file {prompt} --max-tokens 30 --raw-prompt | the cat sat on the hill. | 7 prompt tokens
    {MODEL} --num-samples 3 --prompt the --max-tokens 8 | --- sample 1 of 3 | --- sample 3 of 3
    {CHAT} --prompt a --max-tokens 2 | has a chat template: --chat applies it
""")
stdin = run([program], FIRST, "--prompt-file -", stdin="the cat")
expect("a prompt from standard input", stdin, says="the cat sat on the hill[.]")
lines = run([program], FIRST, "--interactive", stdin="the cat\nthe dog\n\nnever\n")
expect("one prompt a line, up to an empty one", lines, says=["the cat sat on", "the dog sat on"], silent="never")
line = "^8 prompt tokens, [0-9]+ new up to the end token, [0-9.]+ tokens/s$"
expect("statistics have their own line", run([program], FIRST, "--prompt 'the cat'"), says=line)
raw = run([program], CHAT, "--prompt a --max-tokens 2 --raw-prompt")
expect("a prompt that has the template", raw, silent="has a chat template")
# A template that is known, by its whole text, needs no Python; a changed one does.
KNOWN = r"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
for what, end_of_text, code, says in ("known", "\n", 0, ()), ("changed", " \n", dies, "there is no python3 in PATH"):
    (chat / "chat_template.jinja").write_text(KNOWN + end_of_text)
    no_python = run([program], CHAT, "--max-tokens 2 --chat --prompt hi", env={"PATH": work / "nothing"})
    expect(f"--chat of a {what} template without Python", no_python, code, says)
if run("python3 -c 'import jinja2'").code == 0:
    # Transformers continues "the cat" with this, up to the end token; the second turn has the first one's answer.
    (chat / "chat_template.jinja").write_text("""\
{% if messages|length == 3 and messages[1]['content'].strip() != 'sat on the hill.' %}{{ raise_exception('the answer is ' + messages[1]['content']) }}{% endif %}
{% if messages[0]['role'] == 'system' %}{{ raise_exception(messages[0]['content']) }}{% endif %}
{{- bos_token }}{{ messages[-1]['content'] }}
""")
    ASKED = f"{CHAT} --temperature 0 --chat"
    text, said = generate(ASKED, "--prompt 'the cat'")
    equal("--chat answers, and prints the answer alone", text.rstrip(b"\n"), b" sat on the hill.")
    turns = run([program], ASKED, "--interactive", stdin="the cat\nthe dog\n")
    none = ["the answer is", "could not be applied", "the dog"]
    expect("each line is the next turn", turns, None, says=" sat on the hill[.]", silent=none)
    each(f"{CHAT} --chat --system 'be brief' --prompt a | 2 | refuses these messages: be brief | could not be applied")
    # Only the program itself, where others may write: what lies beside it, or where it is started, is not run.
    ran, beside = work / "ran", work / "open/bin"
    (work / "open/share/ringzero").mkdir(parents=True)
    for folder in beside, work / "open/data_prep":
        folder.mkdir()
        for name in "chat_prompt", "chat_template", "jinja2", "json":
            (folder / f"{name}.py").write_text(f"open('{ran}', 'w')")
    (work / "open/share/ringzero/data_prep").symlink_to("../../data_prep")
    shutil.copy(program, beside / "train_llama")
    run(f"chmod -R a+w {work}/open")
    text = subprocess.run(split(["./train_llama", ASKED, "--prompt 'the cat'"]), capture_output=True, cwd=beside).stdout
    equal("chat: the program alone, in a folder that others may write", text.rstrip(b"\n"), b" sat on the hill.")
    (work / "path").mkdir()
    (work / "path/python3").write_text(f"#!/bin/sh\ntouch {ran}\n")  # one that another user could have put there
    run(f"chmod -R a+wx {work}/path")
    found = run([program], CHAT, "--chat --prompt a", env={"PATH": work / "path"})
    expect("chat: nor a python3 of others", found, dies, says=f"other users can change {work}/path/python3")
    check("  neither ran", not ran.exists())
else:
    skip("--chat: no jinja2 here")
controls = work / "controls"
controls.write_bytes(b"a\0b\033[2Jc")
ONE = f"{FIRST} --max-tokens 1 --prompt-file {controls}"
equal("output: into a pipe text is written as it is", generate(ONE)[0][:8], controls.read_bytes())
terminal = run(["python3", "-c", "import pty, sys; pty.spawn(sys.argv[1:])", program], ONE)
shown = re.escape(r"a\x00b\x1b[2Jc")
expect("output: on a terminal control characters are shown", terminal, None, says=shown, silent="\033")

# ---- what came with a model stays ----
base = copy("run/final", "base")
KEPT = "chat_template.jinja", "special_tokens_map.json", "LICENSE"
FOLDERS = "original/params.json", "original/deep/notes"
for name in *KEPT, *FOLDERS, "other/config.json":  # the last one is of another model's folder
    (base / name).parent.mkdir(parents=True, exist_ok=True)
    (base / name).write_text(f'{{"name": "{name}"}}\n')
(base / "generation_config.json").write_text('{"temperature": 0.6, "eos_token_id": 256}\n')
with open(base / "vocabulary.dat", "wb") as file:
    file.truncate(65 << 20)
fine(f"""
    fine 1 --init-from {base} {DATA} --steps 4 --save-every 2 | says lr 5e-05 is the default with --init-from | says vocabulary.dat is left out: it has more than 64.0 MiB
""")
for folder in "fine/final", "fine/checkpoints/step_000000002":
    for name in KEPT:
        same_file("stays", f"base/{name}", f"{folder}/{name}")
    equal(f"{folder} keeps generation_config.json", load(folder, "generation_config.json")["temperature"], 0.6)
ON = "fine 1 --resume auto --steps 6 --threads 2 --lr-continue | there"
fine(f"{ON} | says resumed | says changed  --threads 2, was 1")
check("still has them", (work / "fine/final/chat_template.jinja").exists())
equal("and the fine-tuning rate", load("fine/checkpoints/step_000000006/manifest.json")["flags"]["lr"], "5e-05")
exported = work / "exported"
each(f"export --from {work}/fine --to {exported}")
for name in *FOLDERS, KEPT[0]:
    same_file("export carries it", f"base/{name}", f"exported/{name}")
check("but no other model's", not (exported / "other").exists())
remove(exported / "original", base / "original", base / "other", base / "vocabulary.dat")
shutil.copy(exported / "model.safetensors", exported / "model-00001-of-00002.safetensors")
(exported / "model.safetensors.index.json").write_text('{"weight_map": {}}')
(exported / "notes.txt").write_text("mine")
each(f"export --from {work}/run --to {exported} --overwrite")
left = "LICENSE config.json generation_config.json model.safetensors notes.txt tokenizer.json tokenizer_config.json"
equal("no stale file of the other model stays", sorted(p.name for p in exported.iterdir()), left.split())


# ---- GGUF, read back by PyPI's packages ----
KINDS = "gpt2", "llama3", "llama2", "smollm2"
for kind in KINDS:
    tokenizer = ROOT / f"test/golden/tokenizer/{kind}.json"
    train(f"{kind} 1 --data synthetic --tokenizer {tokenizer} --vocab 1200 --steps 0")
    same_file("its tokenizer", tokenizer, f"{kind}/final/tokenizer.json")
models = [*sorted((ROOT / "test/golden/model").iterdir()), model, *(f"{work}/{kind}/final" for kind in KINDS)]
command = f"test/program/check_gguf.py {program} {' '.join(map(str, models))}"
read_back("GGUF: tensors, metadata and tokenizers as the package reads them", "gguf", command, "RZ_PYTHON")
command = f"test/program/check_llama_cpp.py {program} {model} 'the cat' 'a dog and a cat'"
what = "GGUF: llama.cpp continues with the same greedy text"
read_back(what, "xllamacpp", command, "RZ_PYTHON", "RZ_LLAMA_CPP_PYTHON")
copy(ROOT / model, "two_ends")
edit("two_ends/config.json", '"eos_token_id": 256', '"eos_token_id": [255, 256]')
each(f"""
    export --from {work}/two_ends --to {work}/ends.gguf
    export --from {work}/run --to {base} --format gguf --overwrite | 2 | is a folder
""")
data = (work / "ends.gguf").read_bytes()
equal("a name that ends with .gguf is a file of that format", data[:4], b"GGUF")
for key, want in ("eos", 255), ("eot", 256):
    name = f"tokenizer.ggml.{key}_token_id".encode()
    value = struct.unpack_from("<II", data, data.index(name) + len(name))
    equal(f"GGUF: a second end token is the end of a turn: {key}", value, (4, want))

# ---- another tokenizer than the model's ----
copy("data", "other")
edit("other/tokenizer.json", '"([ab])":', lambda found: '"b":' if found[1] == "a" else '"a":')
fine(f"""
    fine     1 --resume auto --steps 7 --data {work}/other --lr-continue --allow-data-change | there | code 2 | says the data's tokenizer is not the model's
    changed  1 --init-from {base} --data {work}/other --steps 2 --allow-tokenizer-change | says step 2/2
    start    1 --init-from {work}/run {DATA} --steps 1 | says step 1/1
""")
same_file("the model has the data's tokenizer", "other/tokenizer.json", "changed/final/tokenizer.json")
check("  and not the old one's chat template", not (work / "changed/final/chat_template.jinja").exists())

# ---- more rows for a larger tokenizer ----
copy("data", "larger")
edit("larger/dataset.json", '"vocab_size": 257', '"vocab_size": 259')
value = load("larger/tokenizer.json")
value["added_tokens"] += [{**value["added_tokens"][0], "id": 257 + i, "content": f"<|{i}|>"} for i in range(2)]
(work / "larger/tokenizer.json").write_text(json.dumps(value))
LARGER = f"--data {work}/larger"
RESUMED = f"--resume {work}/run {LARGER} --steps 21 --save-every 1 --allow-data-change --lr 0 --allow-lr-jump"
NEW_ROWS = "says 2 new rows are the mean of the 257 old ones"
fine(f"""
    resized  1 --init-from {base} {LARGER} --steps 0 | code 2 | says --resize-vocab
    resized  1 --init-from {base} {LARGER} --steps 0 --resize-vocab | {NEW_ROWS}
    more     1 {RESUMED} | code 2 | says --resize-vocab
    more     1 {RESUMED} --resize-vocab | {NEW_ROWS} | says step 21/21
""")
STEP = "more/checkpoints/step_000000021"
for before, after in ("base", "resized/final"), ("run/checkpoints/step_000000020", STEP):  # at rate 0
    for name in "model.embed_tokens.weight", "lm_head.weight":
        old, new = (vectors(f"{folder}/model", name) for folder in (before, after))
        same = (len(old), len(new)) == (257, 259) and str(new[:257]) == str(old)
        check(f"{after}, {name}: old rows are the same", same, new)
        off = [x - sum(row[c] for row in old) / 257 for row in new[257:] for c, x in enumerate(row)]
        check("  new ones the mean, and differ", all(off) and max(map(abs, off)) < 0.01 and new[257] != new[258], off)
equal("config.json has the size", load("resized/final/config.json")["vocab_size"], 259)
for part in "m", "v":  # no text has the new tokens: their embedding gets no gradient
    moments = vectors(f"{STEP}/optimizer/{part}", "model.embed_tokens.weight")
    zero = len(moments) == 259 and not any(map(any, moments[257:])) and sum(map(any, moments)) > 50
    check(f"moments {part} of new rows are zero", zero, moments[257:])
fine("more 1 --resume auto --steps 22 | there | says step 22/22")
each(f"""
    export --from {work}/more --to {work}/more_exported
    generate --from {work}/more_exported --threads 1 --prompt a --max-tokens 2
    generate --from {work}/resized --threads 1 --prompt a --max-tokens 2
""")
if mpi:
    fine(f"shares 2 {RESUMED} --batch 1 --zero 3 --resize-vocab")
    same_file("the same rows", f"{STEP}/model.safetensors", "shares/checkpoints/step_000000021/model.safetensors")


# ---- a learning rate that would jump ----
SUMS = f"find {work}/run -type f -exec sha256sum {{}} +"
parent = run(SUMS).text
MORE = "--resume auto --steps 40"
train(f"""
    again    1 {MORE} | from run | code 2 | says ^train_llama: the learning rate would jump | says it was 0.0001 at step 20 | says 0.0005892 at step 21 | says --lr-continue | says --rewarm N | says --allow-lr-jump
    down     1 {MORE} --lr-continue --min-lr 1e-5 --save-every 5 | from run | says from step 20 on at lr 0.0001
    down25   1 --resume auto | from down to 25 | says resumed | bits of down
    rewarm   1 {MORE} --rewarm 5 | from run | says rising to 0.001 in 5 steps
    jump     1 {MORE} --allow-lr-jump | from run | says step 40/40
    branch   1 --resume {work}/run --branch 10 --steps 16 --save-every 3 | says resumed | says step 10 | says \\(wsd\\)
    branch12 1 --resume auto | from branch to 12 | says step 16/16 | bits of branch
""")
lr = rates("down")
good = abs(lr[20] - 1e-4) < 1e-9 and lr[40] == 1e-5 and 0.9e-4 < lr[22] and lr[21] <= 1e-4
check("goes down from there", good and all(lr[s + 1] < lr[s] for s in range(21, 40)), lr)
equal("rises", rates("rewarm")[25], 0.001)
check("jumps", rates("jump")[21] > 5e-4)
lr, first = rates("branch"), rates("run")[10]
want = {s: 1e-4 + (first - 1e-4) * (1 - ((s - 10) / 6) ** 0.5) for s in range(11, 17)}
near = lr.keys() == want.keys() and all(abs(lr[s] - want[s]) < 1e-9 for s in want) and abs(lr[16] - 1e-4) < 1e-12
check("a branch decays to the floor", near, lr)
equal("the parent is as it was", run(SUMS).text, parent)


# ---- the memory that is said before a run is the memory at its peak ----
WIDE = f"""--preset bytes --dim 128 --layers 3 --heads 4 --kv-heads 2 --ffn 256 --head-dim 32 {DATA} --device cpu --threads 1 --batch 4
    --seq-len 128 --val-tokens 2048 --val-every 2 --steps 4"""
wide = Table(program, WIDE)
LONG = "--sample-every 1 --val-every 0 --max-seq-len 20000 --sample-tokens 19000"
SAMPLED = f"{LONG} --prompt 'def f(' --steps 2 --save-every 0"
memory(wide, "m1 1 --save-every 2 | says at the peak")
memory(wide, "m2 1 --dtype bf16 --recompute block --save-every 0 --batch-tokens 2048")
# A checkpoint is read through two buffers of 4 MiB, the final weights are written through one of 16.
memory(train, f"m5 1 --resume {work}/m1 --steps 6 --save-every 0 --allow-lr-jump | says resumed")
memory(wide, f"m6 1 {SAMPLED} --dtype bf16 --batch 1 | says --- sample")
if mpi:
    memory(wide, "m4 4 --batch 1 --zero 3 --save-every 2")
    memory(wide, f"m7 4 --resume {work}/m4 --steps 6 --batch 1 --save-every 0 --allow-lr-jump {LONG}")
    memory(wide, f"mtp 2 --tp 2 --batch-tokens 1024 --batch 1 {SAMPLED}")
    memory(wide, f"mpp 2 --pp 2 --batch-tokens 1024 --batch 1 {SAMPLED}")
    memory(wide, "mp 2 --pp 2 --batch-tokens 2048 --save-every 2")

# ---- a run's folder says what it is; data made on the spot ----
head = (work / "run/config.toml").read_text().splitlines()[:6]
for begins in "# command: train_llama --out", "# commit:", "# host:", "# data:":
    check(f"config.toml begins with {begins}", any(line.startswith(begins) for line in head), head)
shown = (work / "run/log.txt").read_text()
for begins in "step 20/20 | loss", "command  train_llama --out":
    check(f"log.txt has {begins}", f"\n{begins}" in f"\n{shown}", shown)
Table(program, "")(f"twin 1 --config {work}/run/config.toml | says step 20/20 | weights of run")
equal("validations are counted", load("run/checkpoints/step_000000010/manifest.json")["validations"], 0)
train("""
    synthetic 1 --data synthetic --steps 3 --save-every 2 | says synthetic data of
    synthetic 1 --resume auto --steps 4 --lr-continue | there | says step 4/4
    dummy     1 --data dummy --steps 2 | says dummy data of 5.5452 nats | says step 2/2
""")

# ---- what --data names instead of a dataset's folder ----
(work / "mine.txt").write_text("text")
(broken := copy("data", "broken") / "tokenizer.json").write_text('{"model": {"type": "WordPiece", "vocab": {}}}')
value = load(ROOT, model, "tokenizer.json")
del value["added_tokens"][-1]
(work / "fewer.json").write_text(json.dumps(value))
BROKEN = f"--data {work}/broken {SHAPE} {SMALL} --steps 1 --out ''"
RECIPE = f"--config llama/configs/124m.toml --out {work}/124m"
MAKES = "python3 data_prep/prepare.py fineweb-edu"
each(f"""
    --data {work}/mine.txt --steps 1 | 2 | is a file, and training reads token shards | prepare.py text {work}/mine.txt --out data/mine
    --data {next((work / "data").glob("*_train_000000.bin"))} --steps 1 | 2 | nearest: --train-data {work}/data/
    --data test/golden/prompts --steps 1 | 2 | prepare.py text test/golden/prompts --out data/prompts
    --data synthetc --steps 1 | 2 | did you mean --data synthetic?
    {RECIPE} | 70 | make the dataset with: {MAKES} --subset sample-10BT
    {RECIPE} --data {work}/nothing | 70 | prepare.py stdlib --out {work}/nothing
    --config llama/configs/124m.toml --print-config | data/fineweb-edu-gpt2 is not here: the vocabulary is the preset's; the data are made by: {MAKES} | FLOPs per token
    {BROKEN} | generate can't use it
    {BROKEN} --tokenizer {broken} | 70 | tokenizer.json
    {MODEL} --tokenizer test/golden/tokenizer/gpt2.json --prompt a | 2 | it is another model's
    {MODEL} --tokenizer {work}/fewer.json --prompt a | 2 | has 256 token ids, the model a vocabulary of 257
""")
sample = run([program], NEW, "--steps 1 --sample-every 1 --sample-tokens 2 --out '' --prompt", ["ab\033[31mred"])
expect("a sample's control characters", sample, says=re.escape(r"ab\x1b[31mred"))

# ---- without --out a run has a folder of its own ----
TINY = f"{NEW} --steps 2 --save-every 2"
unnamed("a start that is refused makes none", f"{TINY} --check-replicas 1", 0, code=dies)
unnamed("nor does --print-config", f"{TINY} --print-config", 0)
unnamed("--resume auto needs --out", "--resume auto", 0, code=dies)
says = ["out      runs/20", '--out "" keeps nothing']
(found,) = unnamed("a run without --out says which folder it has", TINY, 1, says=says)
check("  and keeps its weights there", (found / "final/model.safetensors").stat().st_size)
on = f"--resume {found} --device cpu --threads 1 --steps 3 --allow-lr-jump"
unnamed("another continues it, in a folder of its own", on, 2)
unnamed("--out with nothing keeps nothing", f"{TINY} --save-every 0 --out ''", 2, says="out      none")
unnamed("nor does an empty RINGZERO_RUNS", f"{TINY} --save-every 0", 2, runs="")


# ---- several ranks ----
if mpi:
    three = run("mpirun -n 3", [program], NEW, f"--steps 3 --out {work}/three", limit=60)
    equal("three ranks: say each step once", three.count("step 3/3"), 1)
    apart = run("mpirun -n 1", [program], TINY, "--save-every 0 : -n 1", [program], TINY, "--save-every 0 --lr 0.5")
    expect("other flags on a rank", apart, dies, says="rank 1 was started with --lr 0.5, rank 0 was not")
    Table(program, f"{NEW} --batch 1 --batch-tokens 64", resumed="")("""
        layout 2 --pp 2 --pp-schedule 1f1b --steps 2 --save-every 2
        layout 2 --resume auto --steps 3 --lr-continue | there | silent not restored | says pipeline 1f1b: 2 stages on 2 ranks
        layout 1 --resume auto --steps 4 --lr-continue | there | says changed  --pp 1, was 2: not restored on another number of ranks
        layout 2 --resume 2 --steps 4 --lr-continue --tp 2 | there | says changed  --pp 1, was 2: not restored beside an axis that is given
    """)
    by_rank = rows("three", "step", "ranks.jsonl")
    equal("rows of every rank", [r["step"] for r in by_rank], [1, 2, 3])
    before = 0
    for r, of in zip(rows("three"), by_rank):
        tokens, before = r["tokens"] - before, r["tokens"]
        with holds(f"step {r['step']}: memory, steps, tokens and FLOP a second of each rank, and more than the ledger"):
            assert len(of["memory_by_rank"]) == 3 and min(of["memory_by_rank"]) > 0, of
            for rank in range(3):
                seconds = 1 / of["steps_per_second_by_rank"][rank]
                assert abs(of["tokens_per_second_by_rank"][rank] * seconds * 3 / tokens - 1) < 1e-6, of
                share = r["flops"] * r["seconds"] / 3
                assert abs(of["flops_by_rank"][rank] * seconds / share - 1) < 1e-6, of
                assert of["reserved_by_rank"][rank] > of["memory_by_rank"][rank], of
            assert abs(of["steps_per_second_by_rank"][0] * r["seconds"] - 1) < 1e-6, r
else:
    skip("several ranks: no MPI here")
end()
