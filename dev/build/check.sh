#!/usr/bin/env bash
# Before a commit, in under a minute beside the compiling: lint, the tests that reach what has changed since HEAD, the
# pages that have changed, and two steps of training. `make test` runs all tests.
#
#   dev/build/check.sh OBJ      (make check)      OBJ: where unit_tests is
set -uo pipefail
unit_tests=$1/unit_tests
cd "$(dirname "$0")/../.." || exit
mapfile -t changed < <({ git diff --name-only --diff-filter=d HEAD; git ls-files --others --exclude-standard; } | sort -u)
failed=0
step() {  # step NAME COMMAND...
  local name=$1 start=$SECONDS rc=0 log
  shift
  log=$(mktemp)
  "$@" > "$log" 2>&1 || rc=$?
  printf '%-28s %3s s  %s\n' "$name" $((SECONDS - start)) "$([ $rc = 0 ] && echo ok || echo "failed ($rc)")"
  [ $rc = 0 ] || { failed=1 && tail -n 40 "$log"; }
  rm -f "$log"
}
has() { printf '%s\n' "${changed[@]}" | grep -qE "$1"; }

step lint dev/build/lint.sh --changed
# Test files that changed, and those that include a header which changed or whose source did.
headers=$(printf '%s\n' "${changed[@]}" | grep -E '^(llama|zero|comm|kernels)/.*\.(h|cuh|cpp|cu)$' | sed -E 's/\.[a-z]+$/.h/' | sort -u)
tests=$({ printf '%s\n' "${changed[@]}" | grep -E '^test/[a-z]+/test_[a-z_0-9]*\.cpp$'
  [ -z "$headers" ] || git grep -lFf <(sed 's/.*/#include "&"/' <<< "$headers") -- 'test/*/test_*.cpp'; } | sort -u)
if [ -n "$tests" ]; then
  suites=$(xargs grep -hoE '^TEST(_F|_P)?\([A-Za-z0-9_]+' <<< "$tests" | sed 's/.*(//' | sort -u)
  filter=$(sed 's/.*/&.*:*\/&.*/' <<< "$suites" | paste -sd:)
  if [ "$(wc -l <<< "$suites")" -gt 40 ]; then
    echo "unit tests                   $(wc -l <<< "$suites") suites reach what changed, too many for a minute: make test-unit"
  else
    step "unit tests: $(wc -l <<< "$suites") suites" timeout 300 "$unit_tests" --gtest_brief=1 --gtest_filter="$filter"
  fi
fi
if has '^data_prep/|^test/data_prep/'; then step "data_prep" python3 test/data_prep/test_text_files.py; fi
mapfile -t pages < <(printf '%s\n' "${changed[@]}" | grep -E '\.md$')
if [ ${#pages[@]} -gt 0 ]; then step "pages" dev/build/pages.py "${pages[@]}"; fi
if has '^dev/learn/'; then step "lessons' pages" dev/learn/check_pages.py; fi
step "two steps of training" ./train_llama --data synthetic --dim 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 64 \
  --seq-len 32 --batch 2 --steps 2 --device cpu --out ""
exit $failed
