#!/usr/bin/env bash
# cuda_arches.sh NVCC   two make variables (dev/build/configure.sh):
#   CUDA_KNOWS   which of the architectures 80 89 90a 100 120 this nvcc makes code for
#   CUDA_HERE    this machine's GPUs; empty without one, or where nvcc does not know one of them
set -u
known=" $("$1" --list-gpu-code | sed 's/^sm_//; s/^90$/90a/' | tr '\n' ' ') "
knows='' here=''
for a in 80 89 90a 100 120; do [[ "$known" != *" $a "* ]] || knows="$knows $a"; done
for a in $(timeout 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d '. ' | sort -nu); do
  [ "$a" != 90 ] || a=90a
  if [[ "$known" != *" $a "* ]]; then
    here=''  # such a GPU runs the PTX of an older one, which the default has
    break
  fi
  here="$here $a"
done
echo "CUDA_KNOWS :=$knows"
echo "CUDA_HERE :=$here"
