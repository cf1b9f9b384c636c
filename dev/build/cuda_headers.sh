#!/usr/bin/env bash
# cuda_headers.sh [VERSION...]   compiles the CUDA half of the project against older toolkits' headers (default: 12.0 12.4)
#
# The headers come from PyPI's wheels of that version, about 400 MB each, into build/cuda-VERSION. The host code is compiled as the
# Makefile does, the kernels as the emulator does, by g++: this proves that every name and signature that is used exists there. It does
# not run that version's nvcc. NCCL's header is this machine's.
set -euo pipefail
cd "$(dirname "$0")/../.."
versions=${*:-12.0 12.4}
cuda=${CUDA_HOME:-/usr/local/cuda}
mpi=$("${MPICXX:-mpicxx}" -show | grep -o -- '-I[^ ]*' | tr '\n' ' ')
failed=0

fetch() {  # fetch VERSION DIR: the include folders of the wheels, in DIR/include
  local version=$1 dir=$2 package
  mkdir -p "$dir/wheels"
  for package in cuda-runtime cuda-nvcc cublas; do
    python3 -m pip download -q --no-deps --only-binary :all: -d "$dir/wheels" "nvidia-$package-cu12==$version.*"
  done
  python3 - "$dir" <<'PY'
import pathlib, sys, zipfile

folder = pathlib.Path(sys.argv[1])
for wheel in sorted((folder / "wheels").glob("*.whl")):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            _, found, rest = name.partition("/include/")
            if found and rest and not rest.endswith("/") and ".." not in rest:
                to = folder / "include" / rest
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(z.read(name))
PY
  cp "$(find -L "$cuda/include" /usr/include -name nccl.h | head -n 1)" "$dir/include/"
  rm -r "$dir/wheels"
}

for version in $versions; do
  dir=build/cuda-$version
  [ -e "$dir/include/cublasLt.h" ] || fetch "$version" "$dir"
  mapfile -t files < <(ls kernels/*.cu kernels/*/*.cu test/simt/fake_*.cpp train_llama.cu
                       grep -rlE 'RZ_CUDA|cuda|nccl' kernels comm zero llama --include='*.cpp')
  n=0
  for file in "${files[@]}"; do
    n=$((n + 1))
    flags=()
    case $file in
      train_llama.cu) flags=(-x c++) ;;
      *.cu) flags=(-x c++ -DSIMT_EMU) ;;
      test/simt/*) flags=(-DSIMT_EMU) ;;
    esac
    # shellcheck disable=SC2086
    "${CXX:-g++}" "${flags[@]}" -std=c++20 -fsyntax-only -fopenmp -Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -Wno-restrict -I. \
      -isystem "$dir/include" $mpi -DRZ_CUDA -DRZ_HAVE_NCCL -DRZ_HAVE_MPI -DRZ_HAVE_DNNL -DSIMT_SOURCE_ROOT='"."' \
      -DRZ_COMMIT='"headers"' "$file" > "$dir/log" 2>&1 ||
      { failed=$((failed + 1)); echo "CUDA $version: $file"; grep -m 3 'error' "$dir/log"; }
  done
  echo "CUDA $version ($(grep -hE 'define CUDART_VERSION' "$dir/include/cuda_runtime_api.h" | awk '{ print $3 }')): $n files compiled, $failed failed so far"
done
[ "$failed" = 0 ]
