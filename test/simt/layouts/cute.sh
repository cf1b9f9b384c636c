#!/usr/bin/env bash
# cute.sh BUILD: compares the emulator's layouts with CuTe's (test_cute.cpp). The headers are those of PyPI's wheel nvidia-cutlass,
# unpacked into BUILD/cutlass and checked against its hash; where the wheel can't be had, the test is skipped and says why.
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$1 out=$1/simt/layouts cuda=${CUDA_HOME:-/usr/local/cuda}
headers=$build/cutlass/cutlass_library/source/include

skip() {
  echo "skipped: $*"
  echo "[  SKIPPED ] 1 test"
  exit 0
}
status=0 reason=$(test/simt/layouts/cutlass.sh "$build") || status=$?
case $status in 0) ;; 1) skip "$reason" ;; *) echo "$reason" && exit 1 ;; esac
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
