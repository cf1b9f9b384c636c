#!/usr/bin/env bash
# oracle.py with the packages of $LM_EVAL_PYTHON; if that is not set, with those of build/lm-eval, installed there (gigabytes).
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=${LM_EVAL_PYTHON:-build/lm-eval/bin/python}
if [ -z "${LM_EVAL_PYTHON:-}" ] && ! "$python" -c 'import lm_eval, xllamacpp' 2> /dev/null; then
  python3 -m venv build/lm-eval
  build/lm-eval/bin/pip install -q "lm-eval[hf]" xllamacpp
fi
exec "$python" dev/golden/oracle/oracle.py "$@"
