#!/usr/bin/env bash
# Lines of code by room: every line of the tracked C, C++, CUDA, Python, shell and make files, as wc -l counts them.
# Tables, configs and goldens are no code; they are counted beside it, so that code which becomes data is seen.
#
#   dev/build/lines.sh [COMMIT]      of the work tree, or of a commit
set -euo pipefail
cd "$(dirname "$0")/../.."
list() { if [ "${1:-}" ]; then git ls-tree -r --name-only "$1"; else git ls-files; fi; }
lines() { if [ "${1:-}" ]; then git show "$1:$2"; else cat "$2"; fi | wc -l; }
code='(\.(c|cpp|h|cu|cuh|py|sh|mk)|(^|/)Makefile)$'
data='\.(json|jsonl|txt|toml|dict|patch|csv|tsv)$'
list "${1:-}" | grep -E "$code|$data" | while read -r file; do
  kind=data
  [[ $file =~ $code ]] && kind=code
  [[ $file == */* ]] && room=${file%%/*} || room="top level"
  printf '%s\t%s\t%s\n' "$kind" "$room" "$(lines "${1:-}" "$file")"
done | awk -F'\t' '
  { sum[$1] += $3 }
  $1 == "code" { of[$2] += $3 }
  END {
    for (room in of) printf "%-10s %7d\n", room, of[room] | "sort"
    close("sort")
    printf "%-10s %7d    data files %d\n", "code", sum["code"], sum["data"]
  }'
