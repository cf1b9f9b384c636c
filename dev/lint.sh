#!/usr/bin/env bash
# Static checks that take seconds: the rules of the code, the shell scripts, the Python files. What is not installed is
# skipped, and that is said. Exit code 1 if something was found.
#
#   dev/lint.sh [--wide]      (make lint)      --wide: which files have long lines
# It uses  apt-get install shellcheck; python3 -m pip install ruff
set -uo pipefail
cd "$(dirname "$0")/.." || exit
found=0
list() { git ls-files 2> /dev/null || find . -type f -not -path './build/*' -printf '%P\n'; }  # or an unpacked archive
mapfile -t files < <(list | grep -E '\.(cpp|h|cu|cuh|py|sh|mk)$|^Makefile$|^\.ci/run$')
mapfile -t scripts < <(grep -lE '^#!.*(bash|/sh)' "${files[@]}")

wide=$(awk 'length > 120 { n[FILENAME]++ } END { for (f in n) printf "    %s: %d\n", f, n[f] }' "${files[@]}" | sort)
big=$(wc -l "${files[@]}" | awk '$1 > 700 && $2 != "total" { print "    " $2 ": " $1 }')
todo=$(grep -nE '(//|#).*\b(TODO|FIXME|XXX|HACK)\b' "${files[@]}" | grep -v '^dev/lint.sh')
say() { [ -z "$2" ] && return; printf '%s\n%s\n' "$1" "$2"; found=1; }
[ -z "$wide" ] || echo "note: lines of more than 120 columns in $(wc -l <<< "$wide") files${1:+:}${1:+$'\n'$wide}"
say "files of more than 700 lines:" "$big"
say "left to do:" "$todo"

test/simt/lint.sh || found=1
if command -v shellcheck > /dev/null; then
  if shellcheck -x -S warning "${scripts[@]}" test/check.sh; then echo "shellcheck: ${#scripts[@]} scripts are clean"; else found=1; fi
else
  echo "shellcheck is not installed: skipped"
fi
if command -v ruff > /dev/null; then
  ruff check --quiet --line-length 120 --select E4,E7,E9,F,B,W --ignore B905 data_prep dev test || found=1
  ruff format --quiet --line-length 120 --check data_prep test || found=1
else
  echo "ruff is not installed: skipped"
fi
exit $found
