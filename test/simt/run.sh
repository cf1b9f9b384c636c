#!/bin/bash
# run.sh SIMT_DIR [lint|selftest|kernels|train|all]: runs what simt.mk has built, prints each step's time, exits 1 if one fails.
# SIMT_SEEDS: seeds of the plain build (default "1 2 3"). J: processes at a time (default: cores).
set -u
dir=$(realpath "$1")
what=${2:-all}
here=$(dirname "$0")
seeds=${SIMT_SEEDS:-1 2 3}
jobs=${J:-$(nproc)}
failed=()
begin=$SECONDS
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
wants() { [[ $what == all || $what == "$1" ]]; }

step() {  # step NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    echo "== simt: $name"
    "$@" || failed+=("$name")
    echo "== simt: $name: $((SECONDS - start)) s"
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

if wants lint; then step lint "$here/lint.sh"; fi
if wants selftest; then
    for build in plain asan race; do step "self tests, $build" sharded "$dir/$build/self_tests"; done
    step "planted bugs" "$here/planted.sh" "$dir"
    step "models against goldens" "$dir/fidelity" check "$here/golden"
fi
if wants kernels && [[ -x $dir/plain/kernel_tests ]]; then
    export SIMT_COVERAGE=$dir/counts.txt
    rm -f "$SIMT_COVERAGE"
    for seed in $seeds; do SIMT_SEED=$seed step "kernels, plain, seed $seed" sharded "$dir/plain/kernel_tests"; done
    for build in race asan; do step "kernels, $build" sharded "$dir/$build/kernel_tests"; done
    step coverage "$here/coverage.sh" "$SIMT_COVERAGE"
fi
echo "== simt: $((SECONDS - begin)) s in all${failed[*]:+, FAILED: $(printf '%s; ' "${failed[@]}")}"
[[ ${#failed[@]} == 0 ]]
