#!/usr/bin/env bash
# Includes point down only: a file includes its own room and rooms below it. Prints every one that does not, and exits 1.
#
#   dev/build/arrows.sh      (part of make lint)
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# From the bottom up; rooms of one line do not know each other.
rooms="kernels/runtime
kernels/cpu kernels/cuda
kernels
kernels/attention kernels/gemm
kernels/fp8
comm
zero
llama/base
llama/tokenizer llama/data llama/parallel
llama/model
llama/checkpoint llama/report
llama/train
llama/plan
llama
train_llama.cu"
{ git ls-files 'kernels/*' 'comm/*' 'zero/*' 'llama/*' train_llama.cu 2> /dev/null || find kernels comm zero llama train_llama.cu -type f; } |
  grep -E '\.(h|cpp|cu|cuh)$' | xargs grep -HoE '^#include "(kernels|comm|zero|llama|test|dev)/[^"]+"' |
  awk -v rooms="$rooms" '
    function room(path,   n, p) {
      n = split(path, p, "/")
      if (n == 1) return path
      return (p[1] == "llama" || p[1] == "kernels") && n > 2 ? p[1] "/" p[2] : p[1]
    }
    BEGIN {
      floors = split(rooms, floor, "\n")
      for (i = 1; i <= floors; ++i) { n = split(floor[i], r, " "); for (k = 1; k <= n; ++k) height[r[k]] = i }
    }
    {
      from = $0; sub(/:.*/, "", from)
      to = $0; sub(/^[^"]*"/, "", to); sub(/".*/, "", to)
      if (from == "kernels/cuda/gpu.cuh" || from == "kernels/cuda/ptx.cuh") next  # the emulator stands in for CUDA there
      a = room(from); b = room(to)
      if (a == b) next
      if (!(a in height) || !(b in height) || height[b] >= height[a]) { print "    " from " includes " to; ++bad }
    }
    END { exit bad > 0 }'
