#!/usr/bin/env bash
# Builds every fuzzer of this folder into build/fuzz/, the readers instrumented: test/fuzz/build.sh [CLANG++]
set -euo pipefail
cd "$(dirname "$0")/../.."
compiler=${1:-clang++}
flags=(-std=c++20 -g -O1 -fsanitize=address -fsanitize=undefined -fsanitize=fuzzer-no-link -fno-sanitize-recover=undefined -I. -fopenmp=libgomp -w)
# clang 14 has no _Float16 on most machines
echo '_Float16 x;' | "$compiler" -x c++ -fsyntax-only - 2> /dev/null || flags+=(-mf16c -D_Float16=__fp16)
out=build/fuzz
mkdir -p $out
# Sources of the readers, and what they need: the linker takes its part of the archive.
sources=(llama/base/*.cpp llama/tokenizer/*.cpp llama/data/*.cpp llama/model/{config,presets,hf,param_table}.cpp
  llama/checkpoint/manifest.cpp kernels/runtime/{check,dtype}.cpp)
objects=()
for source in "${sources[@]}"; do
  [ -f "$source" ] || continue
  object=$out/${source//\//_}.o
  objects+=("$object")
  [ "$object" -nt "$source" ] || echo "$compiler ${flags[*]} -c $source -o $object"
done | xargs -P "$(nproc)" -I{} sh -c '{}'
for source in "${sources[@]}"; do [ -f "$source" ] && objects+=("$out/${source//\//_}.o"); done
# GCC's vectors; of it the linker keeps the functions without a stream
g++ -std=c++20 -O2 -I. -w -ffunction-sections -c kernels/rope.cpp kernels/cpu/simd_level.cpp
mv rope.o simd_level.o $out
rm -f $out/readers.a
ar rcs $out/readers.a "${objects[@]}" $out/rope.o $out/simd_level.o
for target in test/fuzz/fuzz_*.cpp; do
  "$compiler" "${flags[@]}" -fsanitize=fuzzer -Wl,--gc-sections "$target" $out/readers.a -o "$out/$(basename "$target" .cpp)"
  echo "$out/$(basename "$target" .cpp)"
done
