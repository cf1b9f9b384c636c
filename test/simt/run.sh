#!/bin/bash
# run.sh SIMT_DIR [lint|selftest|kernels|race|asan|all]: runs what simt.mk has built, prints each step's time, exits 1 if one fails.
# SIMT_SEEDS: seeds of the plain build (default 1). SIMT_BUILDS: builds whose self tests and planted bugs run (default plain and race).
# J: processes at a time (default: cores).
set -u
dir=$(realpath "$1")
what=${2:-all}
here=$(dirname "$0")
seeds=${SIMT_SEEDS:-1} builds=${SIMT_BUILDS:-plain race}
. "$here/steps.sh" simt
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
wants() { [[ $what == all || $what == "$1" ]]; }

if wants lint; then step lint "$here/lint.sh"; fi
if wants selftest; then
    for build in $builds; do step "self tests, $build" sharded "$dir/$build/self_tests"; done
    if [[ -x $dir/plain/nccl_tests ]]; then step "NCCL's contract" "$dir/plain/nccl_tests" --gtest_brief=1; fi
    step "planted bugs" "$here/planted.sh" "$dir" "$builds"
    step "models against goldens" "$dir/fidelity" check "$here/golden"
fi
if wants kernels && [[ -x $dir/plain/kernel_tests ]]; then
    export SIMT_COVERAGE=$dir/counts.txt
    rm -f "$SIMT_COVERAGE"
    for seed in $seeds; do SIMT_SEED=$seed step "kernels, plain, seed $seed" sharded "$dir/plain/kernel_tests"; done
    SIMT_ARCH=100 step "mx products, which Hopper lacks" "$dir/plain/kernel_tests" --gtest_brief=1 --gtest_filter='*Fp8Mx*'
    SIMT_ARCH=89 step "attention where a multiprocessor has 100 KiB" "$dir/plain/kernel_tests" --gtest_brief=1 \
        --gtest_filter='TensorCore/Attention.ForwardMatchesCpu/4:TensorCore/Attention.ForwardMatchesCpu/15:TensorCore/Attention.ForwardMatchesCpu/16:TensorCore/Attention.ForwardMatchesCpu/17'
    step coverage "$here/coverage.sh" "$SIMT_COVERAGE"
    unset SIMT_COVERAGE
fi
if wants race; then
    step "kernels, race" sharded "$dir/race/kernel_tests"
    step "late copies of offloading, race" "$dir/race/late_copies" --gtest_brief=1
fi
if wants asan; then step "kernels, asan" sharded "$dir/asan/kernel_tests"; fi
finish
