#!/usr/bin/env bash
# Functions of more than 80 lines, by indentation: the sources are formatted. Prints each, and exits 1.
#
#   dev/build/long_functions.sh      (part of make lint)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# Those that may be longer: tables that are returned, and kernels whose whole state is in registers.
allowed='
dev/bench/harness_targets.h   bench_targets
kernels/cross_entropy.cu      cross_entropy_kernel
'
{ git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' 2> /dev/null || find . -type f -regex '.*\.\(h\|cpp\|cu\|cuh\)' -not -path './build/*' -printf '%P\n'; } |
  xargs awk -v most=80 -v allowed="$allowed" '
    function forget(   k) { for (k = 0; k <= 4; k += 4) begin[k] = opened[k] = held[k] = 0 }
    function may(   i, n, row, part) {
      n = split(allowed, row, "\n")
      for (i = 1; i <= n; ++i)
        if (split(row[i], part, " ") == 2 && part[1] == FILENAME && index(first[k], part[2] "(")) return 1
      return 0
    }
    FNR == 1 { forget() }
    {
      match($0, /^ */); indent = RLENGTH
      for (k = 0; k <= 4; k += 4) {
        if (indent > k || $0 == "") {  # inside a definition, or between two
          if (begin[k] && !opened[k]) first[k] = first[k] " " $0
          if (begin[k] && $0 ~ /\{$/) opened[k] = 1
          if (begin[k] && !opened[k] && $0 ~ /;$/) begin[k] = 0
          continue
        }
        if (indent < k) { begin[k] = 0; continue }
        text = substr($0, k + 1)
        if (text ~ /^}/) {
          if (text ~ /\{$/) continue  # } else {
          if (begin[k] && !held[k] && (k == 0 || held[0]) && FNR - begin[k] + 1 > most && !may()) {
            print "    " FILENAME ":" begin[k] ": " FNR - begin[k] + 1 " lines"; ++bad
          }
          begin[k] = 0
        } else if (text !~ /^(#|\/\/|namespace|\)|public:|private:|protected:)/ && !begin[k]) {
          begin[k] = FNR; first[k] = text; opened[k] = text ~ /\{$/
          held[k] = text ~ /^(struct|class|enum|union|extern|template <.*> *(struct|class)) ?/ || text ~ /= *\{?$/
          if (text ~ /;$/ || text ~ /\}$/) begin[k] = 0
        } else if (begin[k]) {
          first[k] = first[k] " " text
          if (text ~ /^(struct|class)/) held[k] = 1
          if (text ~ /\{$/) opened[k] = 1
          else if (!opened[k] && text ~ /[;}]$/) begin[k] = 0
        }
      }
    }
    END { exit bad > 0 }'
