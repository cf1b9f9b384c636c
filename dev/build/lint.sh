#!/usr/bin/env bash
# Static checks that take seconds: the rules of the code, the shell scripts, the Python files. What is not installed is
# skipped, and that is said. Exit code 1 if something was found.
#
#   dev/build/lint.sh [--changed]      (make lint)      --changed: formatting and shellcheck of files that differ from HEAD alone
# It uses  apt-get install shellcheck; python3 -m pip install ruff
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
found=0
list() { git ls-files 2> /dev/null || find . -type f -not -path './build/*' -printf '%P\n'; }  # or an unpacked archive
mapfile -t files < <(list | grep -E '\.(cpp|h|cu|cuh|py|sh|mk)$|^Makefile$|^\.ci/run$')
mapfile -t pages < <(list | grep -E '\.md$')
mapfile -t scripts < <(grep -lE '^#!.*(bash|/sh)' "${files[@]}")

mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep -E '\.(cpp|h|cu|cuh)$')
wide=$(awk 'length > 120 { print "    " FILENAME ":" FNR }' "${sources[@]}")
big=$(wc -l "${files[@]}" | awk '$1 > 700 && $2 != "total" { print "    " $2 ": " $1 }')
strangers=$(list | cut -d/ -f1 | sort -u | grep -vxE 'Makefile|train_llama\.cu|README\.md|LICENSE|llama|kernels|comm|zero|dev|data_prep|test|\..*')
heavy=$(list | tr '\n' '\0' | xargs -0 du --apparent-size -k | awk '$1 > 512 { print "    " $2 ": " $1 " KiB" }')
todo=$(grep -nE '(//|#).*\b(TODO|FIXME|XXX|HACK)\b' "${files[@]}" | grep -v '^dev/build/lint.sh')
prose() { grep -nwE "for ever|hangs? on|the own|how manieth|ends? behind|nobody's turn" "${files[@]}" "${pages[@]}" | grep -v '^dev/build/lint.sh' | cut -c1-120 | sed 's/^/    /'; }
# A comment says who does what: subject, verb, object. Files that still have comments of the old kind:
old_comments='^(comm/(planned_transport|restart|tcp_)|kernels/(attention/attention_backward_|fp8/)|llama/(model/(block|fp8_weights|linear_fp8)|plan/|train/snapshots))'
begins() {
  printf '%s\n' "${files[@]}" | grep -vE "$old_comments" | xargs awk '
    FNR == 1 { open = 0 }
    {
      is = match($0, /^[ \t]*(\/\/|#)[\/!<]*[ \t]*/)
      text = is ? substr($0, RLENGTH + 1) : ""
      if (!open && text ~ /^(Of|What|Where|Who|Whether)[^A-Za-z0-9_]/) print "    " FILENAME ":" FNR ": " substr(text, 1, 60)
      open = is && text != "" && text !~ /[.:]$/ && $0 !~ /^#!/
    }'
}
say() { [ -z "$2" ] && return; printf '%s\n%s\n' "$1" "$2"; found=1; }
say "lines of more than 120 columns:" "$wide"
say "files of more than 700 lines:" "$big"
say "functions of more than 80 lines:" "$(dev/build/long_functions.sh)"
say "words that the field has others for (forever, depends on, this rank's, which):" "$(prose)"
say "comments that begin with Of, What, Where, Who or Whether (begin with the subject):" "$(begins)"
say "asks the job for its rank or size, not the mesh for a place on an axis (reports and a run's start may):" "$(
  list | grep -E '^(llama|zero|kernels)/.*\.(h|cpp)$' | xargs grep -nE '\bprocess_?\.(rank|size)\(\)' |
    grep -vE '^llama/(report/|run_command|plan/batch_auto|train/(trainer|prepare|evaluate|statistics|saver|run_guard|courier|neighbours|snapshots)\.cpp|checkpoint/checkpoint\.cpp)' | sed 's/^/    /')"
say "not of the top level's fixed layout:" "$strangers"
say "files of more than 512 KiB (data belongs in a build step):" "$heavy"
say "left to do:" "$todo"
say "a room's README is a map of at most 40 lines, a page of the guide has at most 150:" "$(
  wc -l "${pages[@]}" | awk '($2 ~ /\/README\.md$/ && $2 !~ /^dev\/(notes\/README|learn\/[0-9])/ && $1 > 40) || ($2 ~ /^dev\/guide\// && $1 > 150) { print "    " $2 ": " $1 }')"

absent() {
  local page file
  printf '%s\n' "${pages[@]}" | grep -E '^(kernels|comm|zero|llama|test)/' | xargs grep -oHE '`[a-z_0-9/]+\.(h|cpp|cu|cuh|sh)`' | tr -d '`' |
    while IFS=: read -r page file; do
      printf '%s\n' "${files[@]}" | grep -E "(^|/)$file$" > /dev/null || echo "    $page: $file"
    done
}
say "files that a room's pages name and that are not there:" "$(absent)"

unmeasured() {
  comm -23 <(grep -hoE '^void [a-z0-9_]+\(Stream&, const [A-Z]' kernels/*.h kernels/*/*.h | sed 's/^void //; s/(.*//' | sort -u) \
    <(grep -ohE '[a-z0-9_]+' dev/bench/bench_*.cpp | sort -u) | sed 's/^/    /'
}
say "public ops that no microbenchmark in dev/bench calls:" "$(unmeasured)"
test/simt/lint.sh || found=1
cases() {
  { sed -n 's/^def \([a-z_0-9]*\)():$/\1/p' test/program/faults_*.py
    sed -n "/^CASES = /,/^\"\"\"/p" test/program/test_faults.py | grep -x '[a-z_0-9]*'; } | sort -u
}
rows() { grep -oE '`[a-z_0-9]+`( \*)? \|$' test/faults/MATRIX.md | grep -oE '[a-z_0-9]+' | sort -u; }
say "cases of test_faults.py that test/faults/MATRIX.md does not have, or the other way round:" "$(diff <(cases) <(rows) | sed -n 's/^[<>]/   &/p')"
named() { grep -oE '`[^` ]+(`| )' test/faults/MATRIX.md | tr -d '` ' | sort -u; }
missing() {
  local name
  for name in $(named | grep -E '^[A-Z][A-Za-z]+\.([A-Z][A-Za-z0-9]*|\*)$'); do  # of unit tests
    local test=${name#*.}
    git grep -qE "^TEST(_F|_P)?\\(${name%.*}, ${test/\*/}" -- test || echo "    $name"
  done
  for name in $(named | grep -E '/[a-z_]+\.(sh|py|cpp)$|^test/[a-z]+$'); do
    [ -e "$name" ] || [ -e "test/$name" ] || echo "    $name"
  done
}
say "tests that test/faults/MATRIX.md names and that are not there:" "$(missing)"
planted() { for table in pipelines formats; do python3 test/llama/mutants.py --table "$table" --check; done; }
say "faults of test/llama/mutants.py whose line of source is not there:" "$(planted)"
if up=$(dev/build/arrows.sh); then echo "includes point down only"; else say "includes that point up or aside:" "$up"; fi
if [ "${1:-}" = --changed ]; then
  only() { printf '%s\n' "$@" | grep -Fxf <({ git diff --name-only --diff-filter=d HEAD; git ls-files --others --exclude-standard; }); }
  mapfile -t sources < <(only "${sources[@]}")
  mapfile -t scripts < <(only "${scripts[@]}")
fi
# Formatting: by the one version that install_deps.sh knows, since each formats a little differently.
format=""
for c in clang-format clang-format-14 build/tools/bin/clang-format; do
  [ -n "$format" ] || ! "$c" --version 2> /dev/null | grep -q "version 14.0.6" || format=$c
done
if [ ${#sources[@]} = 0 ]; then
  echo "clang-format: nothing to look at"
elif [ -n "$format" ]; then
  if "$format" --dry-run --Werror "${sources[@]}" > /tmp/rz-format.$$ 2>&1; then
    echo "clang-format: ${#sources[@]} files are formatted"
  else
    say "not formatted as .clang-format says (clang-format 14.0.6 -i FILE mends it):" \
      "$(grep -oE '^[^:]+:[0-9]+' /tmp/rz-format.$$ | sort -u | sed 's/^/    /' | head -n 20)"
  fi
  rm -f /tmp/rz-format.$$
else
  say "clang-format 14.0.6 is not installed:" "    make deps installs it"
fi
if [ ${#scripts[@]} = 0 ]; then
  echo "shellcheck: nothing to look at"
elif command -v shellcheck > /dev/null; then
  if shellcheck -x -S warning "${scripts[@]}"; then echo "shellcheck: ${#scripts[@]} scripts are clean"; else found=1; fi
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
