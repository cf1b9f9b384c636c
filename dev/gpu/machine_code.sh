#!/usr/bin/env bash
# machine_code.sh [BUILD]   fails where ptxas has spilled a register that is not known to spill, or has serialised wgmma
#
# Runs kernel_resources.py and attention_model.py over the objects that the build left; needs no GPU, and no compilation beyond the
# build's own. Without cuobjdump and nvdisasm, which a small toolkit lacks, they come from PyPI (6 MB) into build/cuda-tools, once;
# skipped, and said so, where they can't be had or the objects have no code for sm_90a.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
build=${1:-build}
tools=$build/cuda-tools
export PATH=$PATH:$PWD/$tools/nvidia/cu13/bin:$tools/nvidia/cu13/bin
if ! command -v cuobjdump > /dev/null || ! command -v nvdisasm > /dev/null; then
  python3 -m pip install -q --no-deps --no-warn-script-location --root-user-action=ignore --target "$tools" \
    nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm > "$build/cuda-tools.log" 2>&1
  hash -r
fi
if ! command -v cuobjdump > /dev/null || ! command -v nvdisasm > /dev/null; then
  echo "skipped: cuobjdump and nvdisasm are not in the CUDA Toolkit here, and PyPI did not give them: $(tail -n 1 "$build/cuda-tools.log")"
  exit 0
fi
if ! cuobjdump -lelf "$build"/cuda*/kernels/attention/attention_forward_wgmma.cu.o 2> /dev/null | grep -q sm_90a; then
  echo "skipped: these objects have no code for sm_90a; make SM=\"80 90a\" makes it"
  exit 0
fi
rc=0
dev/gpu/kernel_resources.py "$build" || rc=1
dev/gpu/attention_model.py "$build" || rc=1
[ "$rc" = 0 ] && echo "2 passed, 0 failed" || echo "0 passed, 1 failed"
exit "$rc"
