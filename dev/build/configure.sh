#!/usr/bin/env bash
# Finds what this machine can build, by compiling and linking a probe for each (names of packages prove nothing), and
# prints make variables. The Makefile stores them in build/config.mk; `make reconfigure` runs this again.
set -u
: "${CXX:=g++}" "${CUDA_HOME:=/usr/local/cuda}"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

probe() {  # probe 'source text' flags...   compiles and links
  local source=$1
  shift
  printf '%s\n' "$source" > "$tmp/probe.cpp"
  $CXX -std=c++20 -o "$tmp/probe" "$tmp/probe.cpp" "$@" > "$tmp/log" 2>&1
}

echo "# written by dev/build/configure.sh"

# oneDNN: DNNL_HOME's, else what `make onednn` has fetched, else the system's.
own_dnnl=$(realpath -m "${DNNL_HOME:-${BUILD:-build}/onednn}")
for flags in "-isystem $own_dnnl/include" ""; do
  libs="-ldnnl"
  [ -z "$flags" ] || libs="-L$own_dnnl/lib -Wl,-rpath,$own_dnnl/lib -ldnnl"
  [ -z "$flags" ] || [ -d "$own_dnnl/include" ] || continue
  # shellcheck disable=SC2086
  if probe '#include <oneapi/dnnl/dnnl.hpp>
int main() { dnnl::engine e(dnnl::engine::kind::cpu, 0); }' $flags $libs && "$tmp/probe" > "$tmp/log" 2>&1; then
    echo "HAVE_DNNL := 1"
    echo "DNNL_CFLAGS := $flags"
    echo "DNNL_LIBS := $libs"
    break
  fi
  [ -z "$flags" ] || echo "# $own_dnnl: a program with its oneDNN does not build or start: $(tail -n 1 "$tmp/log")"
done

# MPI: ask the compiler wrapper (MPICH or Open MPI), else pkg-config.
for flags in "$("${MPICXX:-mpicxx}" -show 2>/dev/null | cut -d' ' -f2-)" "$(pkg-config --cflags --libs mpich 2>/dev/null)"; do
  [ -n "$flags" ] || continue
  # shellcheck disable=SC2086
  if probe '#include <mpi.h>
int main(int c, char** v) { MPI_Init(&c, &v); MPI_Finalize(); }' $flags; then
    cflags='' ; libs=''
    for f in $flags; do
      case $f in
        -I* | -D*) cflags="$cflags $f" ;;
        -L* | -l* | -Wl,*) libs="$libs $f" ;;
      esac
    done
    echo "HAVE_MPI := 1"
    echo "MPI_CFLAGS :=$cflags"
    echo "MPI_LIBS :=$libs"
    break
  fi
done

# HMAC, for ranks without MPI
if probe '#include <openssl/evp.h>
#include <openssl/hmac.h>
int main() { return EVP_sha256() == nullptr; }' -lcrypto; then
  echo "HAVE_CRYPTO := 1"
fi

nvcc=${NVCC:-$(command -v nvcc || true)}
[ -n "$nvcc" ] || { [ -x "$CUDA_HOME/bin/nvcc" ] && nvcc=$CUDA_HOME/bin/nvcc; }
if [ -n "$nvcc" ]; then
  home=$(dirname "$(dirname "$(readlink -f "${nvcc##* }")")")  # NVCC may be "ccache /path/to/nvcc"
  lib=$home/lib64
  [ -d "$lib" ] || lib=$home/lib
  if ! probe '#include <cuda_runtime_api.h>
static_assert(CUDART_VERSION >= 12000);
int main() {}' -I"$home/include" && probe '#include <cuda_runtime_api.h>
int main() {}' -I"$home/include"; then
    echo "CUDA_TOO_OLD := $("${nvcc##* }" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') in $home"
  elif probe '#include <cublasLt.h>
#include <cuda_runtime_api.h>
int main() { int n = 0; cudaGetDeviceCount(&n); cublasLtGetVersion(); }' -I"$home/include" -L"$lib" -lcudart -lcublasLt; then
    echo "HAVE_CUDA := 1"
    echo "NVCC := $nvcc"
    echo "CUDA_HOME := $home"
    echo "CUDA_LIB := $lib"
    dev/build/cuda_arches.sh "${nvcc##* }"
    nccl=${NCCL_HOME:-$home}
    if probe '#include <nccl.h>
int main() { int v = 0; ncclGetVersion(&v); }' -I"$nccl/include" -I"$home/include" -L"$nccl/lib" -L"$lib" -lnccl -lcudart; then
      echo "HAVE_NCCL := 1"
      echo "NCCL_CFLAGS := -I$nccl/include"
      echo "NCCL_LIBS := -Wl,-rpath,$nccl/lib"
    fi
  fi
fi

if probe '#include <gtest/gtest.h>
TEST(A, B) {}' -lgtest_main -lgtest -pthread; then
  echo "HAVE_GTEST := 1"
fi
