#!/usr/bin/env bash
# proven.sh BUILD test|flips: kernels that others run on GPUs every day, through the interpreter (test_proven.cpp).
# CUTLASS's GEMMs for sm_80 and sm_90a, from PyPI's wheel nvidia-cutlass; without it they are skipped, and that is said.
# nvcc needs three core-minutes and 5 GB for them: once.
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=$1 what=${2:-test}

skip() {
  echo "skipped: $*"
  echo "[  SKIPPED ] 1 test"
  exit 0
}
status=0 reason=$(test/simt/layouts/cutlass.sh "$build") || status=$?
case $status in 0) ;; 1) skip "$reason" ;; *) echo "$reason" && exit 1 ;; esac

make --no-print-directory BUILD="$build" PROVEN=cutlass "$build/ptx/proven/proven_tests"
for arch in 80 90; do
  export SIMT_ARCH=$arch
  if [ "$what" = flips ]; then
    echo "sm_$arch"
    "$build/ptx/proven/proven_tests" --flips
  else
    "$build/ptx/proven/proven_tests" --gtest_brief=1
  fi
done
