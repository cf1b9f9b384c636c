#!/usr/bin/env bash
# train_llama eval, and evaluation while a model trains. Ends with "N passed, N failed".
#
#   test/program/test_eval.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

golden=test/golden/eval
tasks=hellaswag,arc_easy,piqa,winogrande,lambada,perplexity
eval_with() {  # eval_with NAME ARGS...: results in $work/NAME.json
  local name=$1
  shift
  timeout 120 "$@" eval --from $golden/plain --data $golden --tasks $tasks --device cpu --batch 3 --out "$work/$name.json" \
    --requests "$work/$name.jsonl" "${flags[@]}" > "$work/log" 2>&1
}
flags=()

check "evaluates" eval_with one "$program"
check "its metrics are those of lm-evaluation-harness" python3 -c "
import json
got, want = json.load(open('$work/one.json'))['tasks'], json.load(open('$golden/plain.json'))['tasks']
for task in '$tasks'.split(','):
    for name, value in want[task]['metrics'].items():
        assert abs(got[task][name] - value) <= 1e-4 * abs(value), (task, name, got[task][name], value)
assert 'llmc_acc_norm' in got['hellaswag'] and got['perplexity']['examples'] == 3"
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  for ranks in 2 5; do
    check "on $ranks ranks" eval_with "ranks$ranks" mpirun -n $ranks "$program"
    check "the same log-likelihoods to the bit" cmp "$work/one.jsonl" "$work/ranks$ranks.jsonl"
  done
  # Parts of the parameters on each rank: units are gathered, or tensors stay cut.
  flags=(--zero 3)
  check "with parameters cut over 4 ranks" eval_with cut mpirun -n 4 "$program"
  check "the same log-likelihoods to the bit" cmp "$work/one.jsonl" "$work/cut.jsonl"
  flags=(--tp 3)
  check "with tensors cut over 3 ranks" eval_with tp mpirun -n 3 "$program"
  flags=(--tp 3 --zero 3)
  check "with both" eval_with both mpirun -n 6 "$program"
  flags=()
  check "log-likelihoods within 1e-4, and no rank holds the model" python3 -c "
import json
read = lambda run: [json.loads(line) for line in open('$work/' + run + '.jsonl')]
held = lambda run: json.load(open('$work/' + run + '.json'))['parameter_bytes_by_rank']
for run in 'tp', 'both':
    for a, b in zip(read('one'), read(run), strict=True):
        assert abs(a['log_p'] - b['log_p']) <= 1e-4 and a['greedy'] == b['greedy'], (run, a, b)
(whole,) = held('one')
assert len(held('cut')) == 4 and sum(held('cut')) == whole and max(held('cut')) < 0.3 * whole, held('cut')
assert len(held('tp')) == 3 and max(held('tp')) < 0.4 * whole, held('tp')
assert len(held('both')) == 6 and sum(held('both')) == sum(held('tp')) and max(held('both')) < 0.6 * max(held('tp')), held('both')"
else
  skip "evaluation on several ranks: no MPI here"
fi

# ---- while a model trains ----
python3 data_prep/prepare.py stdlib --max-bytes 200K --out "$work/data" > "$work/log" 2>&1
train() {  # train OUT ARGS...
  local out=$1
  shift
  timeout 120 "$@" --data "$work/data" --device cpu --preset bytes --dim 32 --layers 2 --heads 4 --kv-heads 2 --head-dim 8 --ffn 48 \
    --seq-len 64 --steps 4 --val-every 0 --val-tokens 256 --out "$work/$out" > "$work/log" 2>&1
}
evaluating=(--eval-every 2 --eval-tasks "piqa,lambada" --eval-data "$golden" --eval-limit 2)
check "trains without" train without "$program" --batch 4
check "trains and evaluates" train with "$program" --batch 4 "${evaluating[@]}"
check "the weights are the same to the bit" cmp "$work/without/final/model.safetensors" "$work/with/final/model.safetensors"
check "the metrics have it at its steps" python3 -c "
import json
rows = [json.loads(line) for line in open('$work/with/metrics.jsonl')]
found = {r['step']: r['eval'] for r in rows if 'eval' in r}
assert sorted(found) == [2, 4], found
assert found[4]['piqa']['examples'] == 2 and 0 <= found[4]['piqa']['acc_norm'] <= 1, found
assert found[2]['lambada']['perplexity'] != found[4]['lambada']['perplexity'], found"
"$program" eval --from "$work/with" --data $golden --tasks piqa,lambada --limit 2 --device cpu --max-length 64 --batch 4 \
  --out "$work/after.json" > "$work/log" 2>&1
check "train_llama eval says the same of the final weights" python3 -c "
import json
rows = [json.loads(line) for line in open('$work/with/metrics.jsonl')]
during, after = [r['eval'] for r in rows if 'eval' in r][-1], json.load(open('$work/after.json'))['tasks']
for task in during:
    for name, value in during[task].items():
        assert abs(after[task][name] - value) <= 1e-4 * abs(value), (task, name, value, after[task][name])"
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  check "evaluates with parameters sharded over three ranks" train sharded mpirun -n 3 "$program" --batch 1 --zero 3 "${evaluating[@]}"
  check "and over the stages of a pipeline" train stages mpirun -n 2 "$program" --batch 2 --grad-accum 2 --pp 2 "${evaluating[@]}"
  # Requests over parts of the vocabulary, and over parts of each sequence: the numbers of one rank.
  alike() {  # alike NAME: as `with`, whose updates are of the same data
    python3 -c "
import json, sys
a, b = ([r['eval'] for r in map(json.loads, open(f'$work/{run}/metrics.jsonl')) if 'eval' in r] for run in ('$1', 'with'))
assert len(a) == len(b) == 2
for x, y in zip(a, b):
    for task in y:
        for name, value in y[task].items():
            assert abs(x[task][name] - value) <= 1e-4 * abs(value), (task, name, x[task][name], value)" >> "$work/log" 2>&1
  }
  for layout in "2 --tp 2" "2 --cp 2" "4 --tp 2 --cp 2 --cp-exchange ring"; do
    # shellcheck disable=SC2086
    check "evaluates on $layout" train layout mpirun -n ${layout%% *} "$program" --batch 4 ${layout#* } "${evaluating[@]}" --overwrite
    check "  as one rank does" alike layout
  done
  check "every rank scored its share once" python3 -c "
import json
for run in 'sharded', 'stages':
    rows = [json.loads(line) for line in open('$work/' + run + '/metrics.jsonl')]
    assert len([r for r in rows if 'eval' in r]) == 2, run"
fi

# ---- refusals ----
refused() {  # refused TEXT ARGS...
  local text=$1
  shift
  ! "$program" "$@" > "$work/log" 2>&1 && grep -qF -- "$text" "$work/log"
}
check "a stage that keeps parameters whole" refused "whole (0) or cut (3)" eval --from $golden/plain --data $golden --tasks piqa --zero 2
check "more parts than there are ranks" refused "nearest" eval --from $golden/plain --data $golden --tasks piqa --tp 3
check "an unknown task" refused "the folder has arc_easy" eval --from $golden/plain --data $golden --tasks hellaswig
check "a window beyond the model" refused "nearest: 64" eval --from $golden/plain --data $golden --tasks piqa --max-length 65

# ---- tasks from rows ----
for task in hellaswag arc_easy piqa winogrande lambada perplexity; do
  python3 data_prep/prepare.py eval $task --from $golden/rows/$task.jsonl --out "$work/tasks" > "$work/log" 2>&1
  check "prepares $task" cmp "$work/tasks/$task.jsonl" $golden/$task.jsonl
done

# ---- solved examples before each one: contexts and log-likelihoods of lm-eval's --num_fewshot 2 ----
few() { python3 data_prep/prepare.py eval "$@" --few-shot 2 --out "$work/few" > "$work/log" 2>&1; }
for task in hellaswag arc_easy piqa winogrande lambada; do
  check "prepares $task with examples" few $task --from $golden/rows/$task.jsonl
done
"$program" eval --from $golden/plain --data "$work/few" --tasks hellaswag,arc_easy,piqa,winogrande,lambada --device cpu --batch 3 \
  --requests "$work/few.jsonl" > "$work/log" 2>&1
check "contexts are the harness's, log-likelihoods within 1e-4" python3 -c "
import json
tasks = json.load(open('$golden/few_shot.json'))['tasks']
lines = [json.loads(line) for line in open('$work/few.jsonl')]
assert sorted(tasks) == sorted({l['task'] for l in lines}) and len(tasks) == 5
for task, want in tasks.items():
    contexts = []
    for line in open('$work/few/' + task + '.jsonl'):
        row = json.loads(line)
        context = row['context']
        contexts += context if isinstance(context, list) else [context] * len(row.get('choices', [0]))
    assert contexts == want['contexts'], task
    got = [l for l in lines if l['task'] == task]
    assert len(got) == len(want['requests']), task
    for g, w in zip(got, want['requests']):
        assert abs(g['log_p'] - w[0]) <= 1e-4 and g['greedy'] == w[1], (task, g, w)"
check "examples of one's own rows" few piqa --from $golden/rows/piqa.jsonl --few-shot-from $golden/rows/piqa.jsonl
refuses() { ! few "$@" && grep -q -- "$text" "$work/log"; }
text="needs 3 rows" check "too few rows to draw from" refuses piqa --from <(head -n 2 $golden/rows/piqa.jsonl) --few-shot-from <(head -n 2 $golden/rows/piqa.jsonl)
text="perplexity has no examples" check "none for perplexity" refuses perplexity --from $golden/rows/perplexity.jsonl
summary
