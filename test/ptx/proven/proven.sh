#!/usr/bin/env bash
# proven.sh BUILD test|flips [PROPERTY]: kernels that others run on GPUs every day, through the interpreter (test_proven.cpp).
#   CUTLASS's GEMMs for sm_80 and sm_90a and its attention for sm_90a: wheel nvidia-cutlass
#   FlashAttention-2, sm_80: sources of flash-attn
# Both come from PyPI into BUILD and are checked against their hashes; without them the tests are skipped, and that is said.
# nvcc needs six core-minutes and 5 GB for all of it: once.
set -euo pipefail
build=$(realpath -m "$1") what=${2:-test}
cd "$(dirname "$0")/../../.."
flash=$build/flash-attn
sha256=1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d

skip() {
  echo "skipped: $*"
  echo "[  SKIPPED ] 1 test"
  exit 0
}
status=0 reason=$(test/simt/layouts/cutlass.sh "$build") || status=$?
case $status in 0) ;; 1) skip "$reason" ;; *) echo "$reason" && exit 1 ;; esac
parts=cutlass
# pip asks a source package for its metadata, which runs its setup.py, which wants PyTorch: ours is three empty names.
if [ ! -e "$flash/.whole" ]; then
  rm -rf "$flash" && mkdir -p "$flash/setup/torch/utils" "$flash/setup/packaging" "$flash/setup/wheel"
  echo '__version__ = "0"' > "$flash/setup/torch/__init__.py"
  touch "$flash/setup/torch/utils/__init__.py" "$flash/setup/wheel/__init__.py"
  printf '%s\n' 'BuildExtension = CppExtension = CUDAExtension = object' 'CUDA_HOME = ROCM_HOME = None' \
    'IS_HIP_EXTENSION = False' > "$flash/setup/torch/utils/cpp_extension.py"
  echo 'import pip._vendor.packaging as p; __path__ = p.__path__' > "$flash/setup/packaging/__init__.py"
  printf '%s\n' 'class bdist_wheel:' '    pass' > "$flash/setup/wheel/bdist_wheel.py"
  if PYTHONPATH=$flash/setup FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE python3 -m pip download -q --no-deps \
    --no-build-isolation --no-binary :all: -d "$flash" flash-attn==2.8.3 > "$flash/log" 2>&1; then
    echo "$sha256  $flash/flash_attn-2.8.3.tar.gz" | sha256sum -c --quiet
    tar xzf "$flash/flash_attn-2.8.3.tar.gz" -C "$flash"
    touch "$flash/.whole"
  else
    echo "skipped: FlashAttention-2: PyPI's flash-attn 2.8.3 can't be had here: $(tail -n 1 "$flash/log")"
  fi
fi
[ ! -e "$flash/.whole" ] || parts="cutlass flash2"

make --no-print-directory BUILD="$build" PROVEN="$parts" "$build/ptx/proven/proven_tests"
for arch in 80 90; do
  export SIMT_ARCH=$arch
  if [ "$what" = flips ]; then
    echo "sm_$arch"
    "$build/ptx/proven/proven_tests" --flips "${3:-}"
  else
    "$build/ptx/proven/proven_tests" --gtest_brief=1
  fi
done
