#!/bin/bash
# Sourced by the runners of emulator and interpreter: steps with their times, GoogleTest programs in several processes.
#   . steps.sh SECTION     J: processes at a time (default: cores)
section=$1
jobs=${J:-$(nproc)}
failed=()
begin=$SECONDS
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

step() {  # step NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    echo "== $section: $name"
    "$@" || failed+=("$name")
    echo "== $section: $name: $((SECONDS - start)) s"
}
sharded() {  # sharded BINARY: a GoogleTest program in $jobs processes
    local binary=$1 i status=0 pids=() log
    log=$(mktemp -d)
    for ((i = 0; i < jobs; i++)); do
        GTEST_TOTAL_SHARDS=$jobs GTEST_SHARD_INDEX=$i "$binary" --gtest_brief=1 > "$log/$i" 2>&1 &
        pids+=($!)
    done
    for ((i = 0; i < jobs; i++)); do
        if wait "${pids[i]}"; then
            grep -a -E '^\[ +(PASSED|SKIPPED)' "$log/$i"
        else
            status=1
            cat "$log/$i"
        fi
    done
    rm -rf "$log"
    return $status
}
finish() {  # the time of all steps, and which failed; 1 if any did
    echo "== $section: $((SECONDS - begin)) s in all${failed[*]:+, FAILED: $(printf '%s; ' "${failed[@]}")}"
    [[ ${#failed[@]} == 0 ]]
}
