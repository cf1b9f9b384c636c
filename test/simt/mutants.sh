#!/bin/bash
# mutants.sh BUILD_DIR FILE.cu GTEST_FILTER: would the tests notice? Takes out each barrier and each wait of a kernel file in turn,
# builds that mutant in the race build and runs the kernel tests that the filter names. Prints a line per mutant; exits 1
# if one survives. A survivor is either a barrier that nothing needs or a case that no test has. Not part of make test:
# a mutant takes as long as compiling the file.
set -u
dir=$1/simt/race file=$2 filter=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make -s BUILD="$1" "$dir/kernel_tests" || exit 2
compile=$(make -n BUILD="$1" -W "$file" "$dir/k/${file%.cu}.o" | grep -e ' -c -o ' | tail -1)
link=$(make -n BUILD="$1" -W "$file" "$dir/kernel_tests" | grep -e "-o $dir/kernel_tests " | tail -1)
[[ -n $compile && -n $link ]] || { echo "mutants: can't learn the commands for $file from make"; exit 2; }
"$dir/kernel_tests" --gtest_filter="$filter" --gtest_brief=1 > "$work/log" 2>&1 && ! grep -q ' 0 tests from' "$work/log" ||
    { echo "mutants: the tests that $filter names fail before anything is taken out, or there are none"; exit 2; }
survivors=0
while IFS=: read -r line text; do
    mutant=$work/$(basename "$file")
    sed -E "${line}s/(__syncthreads|__syncwarp)\([^)]*\)/((void)0)/; ${line}s/(ptx::)?(bar_sync|m?bar_arrive(_expect_tx)?|cp_async_wait<[0-9]>|mbar_wait|wgmma_wait<[0-9]>)\([^;]*;/;/" "$file" > "$mutant"
    cmp -s "$mutant" "$file" && continue
    command=${compile/ -o * / -o $work/mutant.o }
    command=${command% *}
    if ! ${command//\'/} "$mutant" 2> "$work/log"; then
        echo "$file:$line does not compile:$text"
        continue
    fi
    relink=$(sed "s| -o $dir/kernel_tests | -o $work/tests $work/mutant.o |; s/'//g" <<< "$link")
    $relink || exit 2
    if timeout 600 "$work/tests" --gtest_filter="$filter" --gtest_brief=1 > "$work/log" 2>&1; then
        echo "$file:$line SURVIVES without:$text"
        survivors=$((survivors + 1))
    else
        says=$(grep -a -m1 '^simt:' "$work/log" | sed 's/.*thread ([^)]*): //' | cut -c1-110)
        echo "$file:$line noticed: ${says:-wrong values}"
    fi
done < <(grep -n -E '__syncthreads|__syncwarp|bar_sync|bar_arrive|cp_async_wait|mbar_wait|wgmma_wait' "$file")
exit $((survivors > 0))
