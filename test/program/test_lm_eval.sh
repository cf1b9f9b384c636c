#!/usr/bin/env bash
# Compares train_llama eval with lm-evaluation-harness, on a model trained here and on the toy model, logits and gradients
# with transformers, for every kind of RoPE, and the stored draws of dev/golden/oracle with what each is compared with. The packages are those of $LM_EVAL_PYTHON; if it has none, they are installed into
# build/lm-eval (gigabytes); without a network the script is skipped. Part of make test-full. Ends with "N passed, N failed".
#
#   test/program/test_lm_eval.sh ./train_llama build/cuda/dev/model_logits
set -uo pipefail
program=$(realpath "$1") tool=$(realpath "$2")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

python=${LM_EVAL_PYTHON:-build/lm-eval/bin/python}
has_package() { "$python" -c 'import lm_eval, lm_eval.models.huggingface, xllamacpp' > "$work/log" 2>&1; }
if ! has_package && [ -z "${LM_EVAL_PYTHON:-}" ]; then
  python3 -m venv build/lm-eval > "$work/log" 2>&1 && build/lm-eval/bin/pip install -q "lm-eval[hf]" xllamacpp > "$work/log" 2>&1
fi
if ! has_package; then
  skip "lm-evaluation-harness can't be had here: $(tail -n 1 "$work/log")"
  summary
  exit
fi

transformers() { "$python" dev/golden/check_hf.py --no-training --program "$program" --tool "$tool" > "$work/log" 2>&1; }
check "logits within 1e-5 and gradients within 1e-4 of transformers', every kind of RoPE" transformers

drawn() {
  "$python" dev/golden/oracle/oracle.py --self-test --program "$program" --logits "$tool" --tokens "$(dirname "$tool")/tokens" \
    > "$work/log" 2>&1
}
check "nine stored draws agree with float64 and the packages, and each of fifteen faults planted in them is found" drawn

formats() { "$python" dev/golden/precision_curves.py --self-test > "$work/log" 2>&1; }
check "torch's fp8 casts, as precision_curves.py has them, are those of exact arithmetic; its statistic" formats

golden=test/golden/eval
python3 data_prep/prepare.py stdlib --max-bytes 400K --out "$work/data" > "$work/log" 2>&1
"$program" --data "$work/data" --device cpu --preset bytes --dim 64 --layers 3 --heads 4 --kv-heads 2 --head-dim 16 --ffn 128 \
  --batch 8 --seq-len 128 --max-seq-len 128 --steps 120 --lr 5e-3 --val-every 0 --out "$work/run" > "$work/log" 2>&1
cp -r $golden/plain "$work/bos"
cp $golden/bos/* "$work/bos/"
cp -r $golden/rows $golden/pairs.jsonl "$work/"
mv "$work/pairs.jsonl" "$work/rows/"
tasks=hellaswag,arc_easy,piqa,winogrande,lambada,perplexity,pairs
for model in $golden/plain "$work/bos" "$work/run/final"; do
  "$program" eval --from "$model" --data $golden --tasks $tasks --device cpu --requests "$work/ours.jsonl" --out "$work/ours.json" \
    > "$work/log" 2>&1
  "$python" dev/golden/lm_eval_oracle.py "$model" "$work/rows" > "$work/theirs.json" 2> "$work/log"
  check "$(basename "$model"): log-likelihoods within 1e-4, greediness and metrics equal" python3 -c "
import json
theirs, ours = json.load(open('$work/theirs.json'))['tasks'], json.load(open('$work/ours.json'))['tasks']
lines = [json.loads(line) for line in open('$work/ours.jsonl')]
for task, of in theirs.items():
    mine = [l for l in lines if l['task'] == task and 'llmc' not in l]
    if 'window' in mine[0]:
        sums = {}
        for l in mine: sums[l['example']] = sums.get(l['example'], 0) + l['log_p']
        got = [[sums[k]] for k in sorted(sums)]
    else:
        got = [[l['log_p'], l['greedy']] for l in mine]
    assert len(got) == len(of['requests']), task
    worst = max(abs(a[0] - b[0]) for a, b in zip(got, of['requests']))
    print(task, 'largest difference', worst)
    assert worst <= 1e-4, (task, worst)
    assert all(a[1:] == b[1:] for a, b in zip(got, of['requests'])), task
    for name, value in of['metrics'].items():
        assert abs(ours[task][name] - value) <= 1e-4 * abs(value), (task, name)"
done
summary
