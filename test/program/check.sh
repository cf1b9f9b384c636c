# shellcheck shell=bash
# What the shell tests share; sourced from the top of the project. Makes $work, which goes at the end, and counts.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 RINGZERO_RUNS=  # a run without --out keeps nothing
passed=0 failed=0 skipped=0

check() {  # check NAME COMMAND...   passes if the command does; else shows the end of $work/log
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    sed 's/^/    /' "$work/log" | tail -n 20
  fi
}
skip() { skipped=$((skipped + 1)); echo "skipped: $1"; }

# The last line of a test, and its exit code.
summary() {
  echo "$passed passed, $failed failed, $skipped skipped"
  [ $failed = 0 ]
}
