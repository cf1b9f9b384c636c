#!/usr/bin/env bash
# cuda_headers.sh [VERSION...]   compiles the CUDA half of the project with older toolkits' headers (default: 12.0 12.4 12.8 12.9)
#
# cuda_headers.py fetches the headers from PyPI's wheels of that version, some 3 MB each, into build/cuda-VERSION, once. The host code
# is compiled as the Makefile does, the kernels as the emulator does, by g++: this proves that every name and signature that is used
# exists there. It does not run that version's nvcc. NCCL's header is this machine's. The first version compiles every file, the others
# those that use cuBLASLt or ask for a version. Skipped, and said so, where there are no such headers and PyPI can't be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
versions=${*:-12.0 12.4 12.8 12.9}
cuda=${CUDA_HOME:-/usr/local/cuda}
mpi=$("${MPICXX:-mpicxx}" -show 2> /dev/null | grep -o -- '-I[^ ]*' | tr '\n' ' ') || mpi=
every=$(ls kernels/*.cu kernels/*/*.cu test/simt/fake_*.cpp train_llama.cu
        grep -rlE 'RZ_CUDA|cuda|nccl' kernels comm zero llama --include='*.cpp')
# shellcheck disable=SC2086
versioned=$(grep -lE 'cublasLt\.h|CUBLAS_VERSION|CUDART_VERSION' $every)

compile() {  # compile DIR FILE
  local dir=$1 file=$2 flags=()
  case $file in
    train_llama.cu) flags=(-x c++) ;;
    *.cu) flags=(-x c++ -DSIMT_EMU) ;;
    test/simt/*) flags=(-DSIMT_EMU) ;;
  esac
  # shellcheck disable=SC2086
  "${CXX:-g++}" "${flags[@]}" -std=c++20 -fsyntax-only -fopenmp -Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -Wno-restrict -I. \
    -isystem "$dir/include" $mpi -DRZ_CUDA ${nccl:+-DRZ_HAVE_NCCL} ${mpi:+-DRZ_HAVE_MPI} -DSIMT_SOURCE_ROOT='"."' \
    -DRZ_COMMIT='"headers"' -DRZ_VERSION='"0"' "$file" 2>&1 || { echo "FAILED ${dir#build/}: $file"; return 1; }
}
export -f compile
export mpi

failed=0 skipped=0 files=$every
for version in $versions; do
  dir=build/cuda-$version
  if [ ! -e "$dir/include/cublasLt.h" ]; then
    rc=0
    dev/build/cuda_headers.py "$version" "$dir" || rc=$?
    if [ "$rc" = 3 ]; then
      echo "skipped: the headers of CUDA $version are not in $dir, and PyPI can't be reached"
      skipped=$((skipped + 1))
      continue
    fi
    [ "$rc" = 0 ] || exit "$rc"
  fi
  nccl=$(find -L "$cuda/include" /usr/include -maxdepth 2 -name nccl.h 2> /dev/null | head -n 1) || true
  export nccl
  [ -z "$nccl" ] || cp "$nccl" "$dir/include/"
  xargs -P "$(nproc)" -I '{}' bash -c 'compile "$0" "$1"' "$dir" '{}' <<< "$files" > "$dir/log" || true
  bad=$(grep -c '^FAILED' "$dir/log" || true)
  grep -E '^FAILED|error:' "$dir/log" || true
  echo "CUDA $version ($(grep -hE 'define CUDART_VERSION' "$dir/include/cuda_runtime_api.h" | awk '{ print $3 }')): $(wc -l <<< "$files") files compiled, $bad failed"
  failed=$((failed + bad))
  files=$versioned
done
echo "$(wc -w <<< "$versions") versions of CUDA's headers: $failed failed, $skipped skipped"
[ "$failed" = 0 ]
