#!/usr/bin/env bash
# cuda_arches.sh NVCC   make variables (dev/build/configure.sh):
#   CUDA_KNOWS       which of the architectures 75 80 89 90a 100 120 this nvcc makes code for
#   CUDA_HERE        this machine's GPUs; empty without one, or where nvcc does not know one of them
#   CUDA_TOO_SMALL   a GPU of this machine that the kernels have no code for, such as 7.0
set -u
known=" $("$1" --list-gpu-code | sed 's/^sm_//; s/^90$/90a/' | tr '\n' ' ') "
knows='' here='' small=''
for a in 75 80 89 90a 100 120; do [[ "$known" != *" $a "* ]] || knows="$knows $a"; done
for a in $(timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d '. ' | sort -nu); do
  [ "$a" != 90 ] || a=90a
  if [ "${a%a}" -lt 75 ]; then
    small=${a%?}.${a: -1}
    continue
  fi
  if [[ "$known" != *" $a "* ]]; then
    here=''  # such a GPU runs the PTX of an older one, which the default has
    break
  fi
  here="$here $a"
done
echo "CUDA_KNOWS :=$knows"
echo "CUDA_HERE :=$here"
[ -z "$small" ] || echo "CUDA_TOO_SMALL := $small"
