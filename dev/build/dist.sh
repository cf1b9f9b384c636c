#!/usr/bin/env bash
# dist.sh PROGRAM FOLDER NAME   (make dist)   FOLDER/NAME.tar.gz: the program and all that it needs where no compiler is
#
#   dev/build/clean_root.sh bookworm 'make deps && make dist'    for every system with a glibc as new as Debian 12's
#   dev/build/dist.sh --list                                     the files of this tree that are in it
#
# PROGRAM has libstdc++, libcrypto and the CUDA runtime in it (Makefile). oneDNN, OpenMP and what they need lie in lib/, but for glibc,
# libstdc++ and libgcc, which every system has. Licences are those that Debian's packages and the CUDA Toolkit bring.
set -euo pipefail
cd "$(dirname "$0")/../.."
list() { printf '%s\n' LICENSE llama/configs/*.toml llama/configs/machines/*.toml data_prep/*.py; }
[ "${1:-}" != --list ] || { list; exit; }
[ $# = 3 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
program=$1 folder=$2 name=$3
most=60 at=$folder/$name
case $name in *-cuda-*) most=200 ;; esac
die() { echo "dev/build/dist.sh: $*" >&2; exit 1; }

rm -rf "$at" "$at.tar.gz"
mkdir -p "$at/lib" "$at/licences"
list | xargs cp --parents -t "$at"
strip -o "$at/train_llama" "$program"
if readelf -d "$at/train_llama" | grep -E 'NEEDED.*(libmpi|libnccl|libcu|libstdc|libcrypto)'; then die "$program needs these libraries at its start"; fi

licence() { install -D -m 644 "/usr/share/doc/$1/copyright" "$at/licences/$1"; }
ldd "$program" > "$at.ldd"
! grep 'not found' "$at.ldd" || die "$program needs what is not here"
while read -r _ arrow file _; do
  [ "$arrow" = "=>" ] || continue
  case ${file##*/} in libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libstdc++.so.* | libgcc_s.so.*) continue ;; esac
  cp -L "$file" "$at/lib/"
  licence "$(dpkg -S "$(realpath "$file")" | sed 's/:.*//')"
done < "$at.ldd"
rm "$at.ldd"
# Parts of the program: libstdc++ and libgcc, headers, libcrypto
for package in gcc-12-base libcli11-dev nlohmann-json3-dev libssl-dev; do licence "$package"; done
for text in Apache-2.0 GPL-3; do cp -L "/usr/share/common-licenses/$text" "$at/licences/"; done
case $name in *-cuda-*)
  cp "${CUDA_HOME:-/usr/local/cuda}/EULA.txt" "$at/licences/cuda-runtime" 2> /dev/null ||
    echo "The CUDA runtime (cudart) in train_llama is NVIDIA's, under the CUDA Toolkit's EULA: https://docs.nvidia.com/cuda/eula" > "$at/licences/cuda-runtime" ;;
esac

cat > "$at/README.txt" << END
$("$at/train_llama" --version)

./train_llama --ranks 2 --data synthetic --preset bytes --device cpu --steps 20      two ranks on this machine
./train_llama plan --gpu rtx5090-32g --config 1b-24g                                 what a run would take elsewhere
python3 data_prep/prepare.py --help                                                  tokens of your text (Python 3)
./train_llama --help                                                                 everything else

It was built with $(ldd --version | sed -n '1s/.* //p') of glibc and runs where that or a newer one is. mpirun starts it where MPI has MPICH's binary interface
(libmpi.so.12 or libmpich.so.12); --ranks and torchrun need no MPI. Licences of what is inside are in licences/.
END
# The same bytes of the same files
tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct 2> /dev/null || echo 0)" -c "$name" | gzip -9n > "$at.tar.gz"
rm -r "$at"
bytes=$(stat -c %s "$at.tar.gz")
[ "$bytes" -le $((most * 1000000)) ] || die "$at.tar.gz has $bytes bytes, more than $most MB"
echo "$at.tar.gz: $bytes bytes"
