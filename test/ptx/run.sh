#!/bin/bash
# run.sh PTX_DIR quick|all: runs what ptx.mk has built, prints each step's time, exits 1 if one fails.
#   quick   the kernel tests on the PTX for each architecture, under one seed, with memory order checked
#   all     the same under more seeds and in order, which lines of PTX none of them executed, and other projects' kernels
# J: processes at a time (default: cores).
set -u
dir=$(realpath "$1")
what=${2:-quick}
. "$(dirname "$0")/../simt/steps.sh" ptx

step "the interpreter's own tests" "$dir/self_tests" --gtest_brief=1
read -r -a arches < "$dir/arches" || true
[[ ${#arches[@]} -gt 0 ]] || echo "skipped: this build has PTX for neither sm_80 nor sm_90a; make SM=\"80 90a\" has"
for arch in "${arches[@]}"; do
    export SIMT_ARCH=$arch
    # Quick: mma.sync for shapes that Hopper's kernels take runs on sm_80's text alone.
    tests='*'
    [[ $what == all ]] || tests='-*WithoutWgmma*'
    GTEST_FILTER=$tests PTX_ORDER=1 step "kernel tests and memory order, PTX for sm_$arch" sharded "$dir/kernel_tests"
    [[ $what == all ]] || continue
    for seed in 2 3; do SIMT_SEED=$seed step "kernel tests, PTX for sm_$arch, seed $seed" sharded "$dir/kernel_tests"; done
    rm -f "$dir/coverage_$arch.txt"
    PTX_SEED=0 PTX_COVERAGE=$dir/coverage_$arch.txt step "kernel tests, PTX for sm_$arch, in order" "$dir/kernel_tests" --gtest_brief=1
    awk -F '\t' '$1 == "loops" || $1 == "total" { printf "sm_'"$arch"': %d of %d %s\n", $2, $3, $1 == "loops" ? "loops repeated" : "lines executed" }
        $2 == "loop" { print "    " $3 " " $5 }' "$dir/coverage_$arch.txt" | sort | uniq -c
done
[[ $what == all ]] && step "kernels proven on GPUs" "$(dirname "$0")/proven/proven.sh" "$(dirname "$1")"
finish
