#!/usr/bin/env bash
# cuda_headers.sh [VERSION...]   compiles the CUDA half of the project with older toolkits' headers (default: 12.0 12.4 12.8 12.9)
#
# cuda_headers.py fetches the headers from PyPI's wheels of that version, some 3 MB each, into build/cuda-VERSION, once. The host code
# is compiled as the Makefile does, the kernels as the emulator does, by g++: this proves that every name and signature that is used
# exists there. It does not run that version's nvcc. NCCL's header is this machine's. The first version compiles every file, the others
# those that use cuBLASLt or ask for a version. Files that use NCCL are compiled with its headers from 2.18, the first for CUDA 12,
# to 2.29 (NCCL_VERSIONS). Skipped, and said so, where there are no such headers and PyPI can't be reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
versions=${*:-12.0 12.4 12.8 12.9}
cuda=${CUDA_HOME:-/usr/local/cuda}
mpi=$("${MPICXX:-mpicxx}" -show 2> /dev/null | grep -o -- '-I[^ ]*' | tr '\n' ' ') || mpi=
every=$(ls kernels/*.cu kernels/*/*.cu comm/*.cu test/simt/fake_*.cpp train_llama.cu
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
  ${CXX:-g++} "${flags[@]}" -std=c++20 -fsyntax-only -fopenmp -include build/cuda-std.h -Wall -Wextra -Wno-psabi -Wno-unknown-pragmas -Wno-restrict -I. \
    -isystem "$dir/include" ${toolkit:+-isystem "$toolkit"} $mpi -DRZ_CUDA ${nccl:+-DRZ_HAVE_NCCL} ${mpi:+-DRZ_HAVE_MPI} -DSIMT_SOURCE_ROOT='"."' \
    -DRZ_COMMIT='"headers"' -DRZ_VERSION='"0"' "$file" 2>&1 || { echo "FAILED ${dir#build/}: $file"; return 1; }
}
export -f compile
export mpi

# The standard headers once for all files
mkdir -p build
cp dev/build/std.h build/cuda-std.h
${CXX:-g++} -std=c++20 -fopenmp -x c++-header -o build/cuda-std.h.gch build/cuda-std.h

failed=0 skipped=0
# headers NAME VERSION FOLDER FILE [PACKAGE...]   fetches them where FILE is not there; 1 if they can't be had
headers() {
  local rc=0
  [ -e "$3/include/$4" ] || dev/build/cuda_headers.py "$2" "$3" "${@:5}" || rc=$?
  [ "$rc" != 3 ] || { echo "skipped: the headers of $1 $2 are not in $3, and PyPI can't be reached"; skipped=$((skipped + 1)); return 1; }
  [ "$rc" = 0 ] || exit "$rc"
}
# all_compile NAME FOLDER FILES
all_compile() {
  xargs -P "$(nproc)" -I '{}' bash -c 'compile "$0" "$1"' "$2" '{}' <<< "$3" > "$2/log" || true
  local bad
  bad=$(grep -c '^FAILED' "$2/log" || true)
  grep -E '^FAILED|error:' "$2/log" || true
  echo "$1: $(wc -l <<< "$3") files compiled, $bad failed"
  failed=$((failed + bad))
}

files=$every
for version in $versions; do
  dir=build/cuda-$version
  headers CUDA "$version" "$dir" cublasLt.h || continue
  nccl=$(find -L "$cuda/include" /usr/include -maxdepth 2 -name nccl.h 2> /dev/null | head -n 1) || true
  export nccl
  [ -z "$nccl" ] || cp "$nccl" "$dir/include/"
  all_compile "CUDA $version ($(grep -hE 'define CUDART_VERSION' "$dir/include/cuda_runtime_api.h" | awk '{ print $3 }'))" "$dir" "$files"
  newest=$dir files=$versioned
done
# NCCL's own headers come before those of the newest toolkit.
nccl=yes
for version in ${newest:+${NCCL_VERSIONS:-2.18 2.27 2.28 2.29}}; do
  dir=build/nccl-$version
  headers NCCL "$version" "$dir" nccl.h nvidia-nccl-cu12 || continue
  toolkit=$newest/include all_compile "NCCL $version" "$dir" "$(grep -lE '<nccl.h>|"comm/nccl_window.h"' comm/*.cpp comm/*.cu)"
done
echo "headers of CUDA $versions and NCCL: $failed failed, $skipped skipped"
[ "$failed" = 0 ]
