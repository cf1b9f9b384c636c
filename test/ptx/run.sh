#!/bin/bash
# run.sh PTX_DIR quick|all|sm75: runs what ptx.mk has built, prints each step's time, exits 1 if one fails.
#   quick   the kernel tests on the PTX for each architecture, under one seed, with memory order checked
#   all     the same under more seeds and in order, which lines of PTX none of them executed, bits beside the emulator's, and
#           other projects' kernels. A step that these programs have passed is not repeated (PTX_DIR/journal). At the end
#           the report, REPORT (default PTX_DIR/report.md).
#   sm75    some of the kernel tests on a T4's PTX and in the emulator as a T4
# J: processes at a time (default: cores). ONLY: a regular expression; of `all`, the steps whose names match.
set -u
dir=$(realpath "$1")
what=${2:-quick}
here=$(dirname "$0")
# shellcheck source=test/simt/steps.sh
. "$here/../simt/steps.sh" ptx
if [[ $what == sm75 ]]; then
    # The first two shapes of each op; attention in fp16, and without tensor cores where 64 KiB count
    GTEST_FILTER='*/0:*/1:Fma/Attention.Backward*/5:Fma/Attention.Backward*/6:Fma/Attention.Backward*/21:TensorCoreRanges/Attention.*/11'
    for i in 8 9 13 14 19 22; do GTEST_FILTER+=":TensorCore/Attention.*/$i"; done
    export SIMT_ARCH=75 GTEST_FILTER="$GTEST_FILTER:-*WithoutWgmma*:*Presets*:ManyTiles*:TensorCoreRanges/Attention.Hidden*"
    PTX_ORDER=1 step "kernel tests and memory order, PTX for sm_75" sharded "$dir/sm75/kernel_tests"
    step "kernel tests in the emulator, as sm_75" sharded "$dir/../simt/plain/kernel_tests"
    finish
    exit
fi

launched() {  # each kernel was, on some architecture; where it has no text, one instruction stands for it
    grep '^sm_' "$dir/launched.txt" | c++filt | awk -F'\t' '
        $4 && $2 > 0 { ran[$4] }
        $4 && $3 > 1 { asked[$4] }
        $4 && $3 == 1 { empty[$1 FS $4] }
        $2 == "never launched" { never[$1 FS $3] }
        END {
            for (k in never) if (!(k in empty)) { split(k, part, FS); asked[part[2]] }
            for (k in asked) if (!(k in ran)) { print "no test launches " k; missing = 1 }
            exit missing
        }'
}

read -r -a arches < "$dir/arches" || true
[[ ${#arches[@]} -gt 0 ]] || echo "skipped: this build has PTX for neither sm_80 nor sm_90a; make SM=\"80 90a\" has"

if [[ $what != all ]]; then
    step "the interpreter's own tests" "$dir/self_tests" --gtest_brief=1
    rm -f "$dir/launched.txt"
    export PTX_COVERAGE=$dir/launched.txt
    for arch in "${arches[@]}"; do
        # mma.sync for shapes that Hopper's kernels take runs on sm_80's text alone; kernel_counts.py --gate runs Presets.
        SIMT_ARCH=$arch GTEST_FILTER='-*WithoutWgmma*:Ops/Presets*' PTX_ORDER=1 \
            step "kernel tests and memory order, PTX for sm_$arch" sharded "$dir/kernel_tests"
    done
    if [[ " ${arches[*]} " == *" 80 "* ]]; then
        SIMT_ARCH=89 PTX_ORDER=1 step "attention where a multiprocessor has 100 KiB" "$dir/kernel_tests" --gtest_brief=1 \
            --gtest_filter='TensorCore/Attention.ForwardMatchesCpu/4:TensorCore/Attention.ForwardMatchesCpu/15:TensorCore/Attention.ForwardMatchesCpu/16:TensorCore/Attention.ForwardMatchesCpu/17:Chunks/Attention.ForwardMatchesCpu/*'
    fi
    if [[ "${arches[*]}" == *80*90* ]]; then
        SIMT_ARCH=90 PTX_BUILT_FOR=80 \
            step "attention of a build for sm_80 on an sm_90" "$dir/kernel_tests" --gtest_brief=1 \
            --gtest_filter='TensorCore/Attention.*MatchesCpu/0:TensorCore/Attention.*MatchesCpu/1:AttentionKept.*'
    fi
    [[ "${arches[*]}" != *80*90* ]] || step "kernels that no test launches" launched
    finish
    exit
fi

journal=$dir/journal/$(cat "$dir/self_tests" "$dir/kernel_tests" "$dir/source_tests" | sha256sum | cut -c 1-16)
mkdir -p "$journal"
[[ -e $journal/commit ]] || git describe --always --exclude '*' --dirty=", with changes" > "$journal/commit" 2> /dev/null
number=10
kept() {  # kept NAME COMMAND...: a step with its output, times and date in the journal
    local name=$1 before=${#failed[@]}
    local log=$journal/$((number++)).log
    shift
    echo "$name" > "$log.name"
    [[ $name =~ ${ONLY:-} ]] || return
    if [[ -e $log.passed ]]; then
        echo "== ptx: $name: passed on $(sed -n 2p "$log.passed")"
        return
    fi
    local TIMEFORMAT='%R %U'
    { time step "$name" "$@" > "$log" 2>&1; } 2> "$log.time"
    cat "$log"
    printf '%s\n' "$name" "$(date -u '+%Y-%m-%d %H:%M')" "$(cat "$log.time")" > "$log.result"
    [[ ${#failed[@]} -gt $before ]] || mv "$log.result" "$log.passed"
}
in_order() {  # which lines run, what they ask of the memory, and the bits that they leave
    rm -f "$dir/coverage_$SIMT_ARCH.txt" "$dir/counts_$SIMT_ARCH.txt"
    PTX_SEED=0 PTX_COVERAGE=$dir/coverage_$SIMT_ARCH.txt PTX_COUNTS=$dir/counts_$SIMT_ARCH.txt \
        KERNEL_BITS=$journal/bits_$SIMT_ARCH.txt "$dir/kernel_tests" --gtest_brief=1
}
bits() {
    [[ -e $journal/bits_$SIMT_ARCH.txt ]] || { echo "the step \"in order\" has not run; it writes the bits"; return 1; }
    KERNEL_BITS=$journal/bits_source_$SIMT_ARCH.txt "$dir/source_tests" --gtest_brief=1 &&
        "$here/bits.py" "$journal/bits_source_$SIMT_ARCH.txt" "$journal/bits_$SIMT_ARCH.txt"
}

kept "the interpreter's own tests" "$dir/self_tests" --gtest_brief=1
for arch in "${arches[@]}"; do
    export SIMT_ARCH=$arch
    PTX_ORDER=1 kept "kernel tests and memory order, PTX for sm_$arch" sharded "$dir/kernel_tests"
    for seed in 2 3; do SIMT_SEED=$seed kept "kernel tests, PTX for sm_$arch, seed $seed" sharded "$dir/kernel_tests"; done
    kept "kernel tests, PTX for sm_$arch, in order: lines and counts" in_order
    kept "bits beside the emulator's, PTX for sm_$arch" bits
done
unset SIMT_ARCH
kept "kernels proven on GPUs" "$here/proven/proven.sh" "$(dirname "$dir")"
report=${REPORT:-$dir/report.md}
"$here/report.py" "$dir" "$journal" > "$report.new" && mv "$report.new" "$report" && echo "the report is $report"
finish
