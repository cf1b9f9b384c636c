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

# make_documents FILE   a shard of documents of 3 to 40 tokens, each counting up from a random byte, begun by 256
make_documents() {
  python3 - "$1" << 'END'
import random, struct, sys
random.seed(3)
ids = []
while len(ids) < 30000:
    first = random.randrange(256)
    ids += [256] + [(first + i) % 256 for i in range(random.randrange(2, 40))]
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + struct.pack(f"<{len(ids)}H", *ids))
END
}

# The last line of a test, and its exit code.
summary() {
  echo "$passed passed, $failed failed, $skipped skipped"
  [ $failed = 0 ]
}

# ranks_of JOB   "rank pid" of each process that --ranks has started
ranks_of() {
  local pid
  for pid in $(cat /proc/"$1"/task/*/children 2> /dev/null); do
    echo "$(tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | sed -n 's/^RINGZERO_RANK=//p') $pid"
  done | sort
}

# No segment stays in /dev/shm. Suites run beside one another: what another has just named gets three seconds, and folders of snapshots are
# test_snapshots.py's.
no_memory_left() {
  for _ in $(seq 30); do
    [ -n "$(find /dev/shm -maxdepth 1 -name 'ringzero*' ! -name 'ringzero-restart-*' 2> /dev/null)" ] || return 0
    sleep 0.1
  done
  return 1
}
