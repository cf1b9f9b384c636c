#!/bin/bash
# planted.sh SIMT_DIR BUILDS: runs every planted bug in these builds, prints which build catches it in how many seeds, and fails if a
# build misses a bug that it must catch, or finds something in the kernels without their bugs.
set -u
dir=$1
read -ra builds <<< "$2"
declare -A seeds=([plain]=20 [asan]=2 [race]=2)
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=0
fail=0
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT

for build in "${builds[@]}"; do
    if ! "$dir/$build/planted" fixed "${seeds[$build]}" > "$tmp" 2>&1; then
        echo "FAILED: the $build build finds something where nothing is wrong:"; sed 's/^/    /' "$tmp" | head -20
        fail=1
    fi
done

format="%-46s${builds[*]/*/%-8s}  %s\n"
printf "$format" "planted bug" "${builds[@]}" "the most telling message"
while IFS=$'\t' read -r index must name; do
    row=() says='' this=''
    for build in "${builds[@]}"; do
        ("$dir/$build/planted" "$index" "${seeds[$build]}"; exit $?) > "$tmp" 2>&1
        status=$?
        line=$(grep -a -m1 '^caught' "$tmp")
        if [[ -n $line ]]; then
            read -r _ n _ of _ <<< "$line"
            cell="$n/${of%:}"
            [[ $n == 0 ]] && cell=-
            [[ $n != 0 ]] && this=${line#*: }
        else  # a sanitizer, or a signal, ended the process
            cell=stopped
            this=$(grep -a -m1 -E 'ERROR: AddressSanitizer|runtime error' "$tmp" | sed 's/.*AddressSanitizer: //; s/ on address.*//; s/.*runtime error: //')
            [[ -z $this ]] && this="exit status $status"
            at=$(grep -a -E '#[0-9]|runtime error' "$tmp" | grep -o -m1 'planted\.cu:[0-9]*' | head -1)
            this="$this${at:+ at $at}"
        fi
        this=${this#*) thread (*): }
        # The most telling message: the first that names a line, the race check's before all.
        [[ -z $says || ($this == *.cu:* && ($says != *.cu:* || $build == race)) ]] && says=$this
        row+=("$cell")
        if [[ $must == *${build:0:1}* && $cell == - ]]; then
            row[-1]='MISSED'
            fail=1
        fi
    done
    printf "$format" "$name" "${row[@]}" "${says:0:150}"
done < <("$dir/plain/planted" list)
exit $fail
