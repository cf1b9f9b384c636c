#!/usr/bin/env bash
# cute.sh BUILD: compares the emulator's layouts with CuTe's (test_cute.cpp). The headers are those of PyPI's wheel nvidia-cutlass,
# unpacked into BUILD/cutlass and checked against its hash; where the wheel can't be had, the test is skipped and says why.
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$1 out=$1/simt/layouts cuda=${CUDA_HOME:-/usr/local/cuda}
wheel=nvidia_cutlass-4.2.0.0-py3-none-any.whl
sha256=f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6
headers=$build/cutlass/cutlass_library/source/include

skip() {
  echo "skipped: $*"
  echo "[  SKIPPED ] 1 test"
  exit 0
}
if [ ! -e "$build/cutlass/.whole" ]; then
  rm -rf "$build/cutlass" && mkdir -p "$build/cutlass"
  python3 -m pip download -q --no-deps -d "$build/cutlass" nvidia-cutlass==4.2.0.0 > "$build/cutlass/log" 2>&1 ||
    skip "PyPI's nvidia-cutlass 4.2.0.0 can't be had here: $(tail -n 1 "$build/cutlass/log")"
  echo "$sha256  $build/cutlass/$wheel" | sha256sum -c --quiet
  python3 -m zipfile -e "$build/cutlass/$wheel" "$build/cutlass"
  touch "$build/cutlass/.whole"
fi
mkdir -p "$out"
flags="-std=c++20 -O1 -I. -isystem $cuda/include -isystem $cuda/include/cccl"
# shellcheck disable=SC2086
{
  ${CXX:-g++} $flags -w -DMODELS_FLIP -isystem "$headers" -c -o "$out/test_cute.o" test/simt/layouts/test_cute.cpp
  ${CXX:-g++} $flags -Wno-psabi -Wno-unknown-pragmas -fno-strict-aliasing -DSIMT_EMU -DSIMT_SOURCE_ROOT="\"$PWD\"" \
    -c -o "$out/operands.o" test/simt/layouts/operands.cpp
  ${CXX:-g++} -o "$out/test_cute" "$out/test_cute.o" "$out/operands.o" -lgtest_main -lgtest -pthread
}
"$out/test_cute" --gtest_brief=1
