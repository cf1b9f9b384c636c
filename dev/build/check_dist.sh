#!/usr/bin/env bash
# check_dist.sh ARCHIVE   what make dist has packed, on a system without compilers: plans, trains on two ranks, generates
#
#   export ROOTS=build/clean PACKAGES=python3; for suite in bookworm trixie noble; do dev/build/clean_root.sh $suite true
#     cp build/dist/ringzero-*.tar.gz $ROOTS/$suite/ && dev/build/clean_root.sh $suite 'dev/build/check_dist.sh /ringzero-*.tar.gz'; done
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" --strip-components=1 -xzf "$1"
cd "$work"
says() { if ! grep -F -- "$1" log; then cat log; echo "FAILED: does not say: $1"; exit 1; fi; }
! command -v gcc g++ nvcc mpirun || echo "(there is a compiler or MPI here)"
./train_llama --version
./train_llama plan --gpus 1 --gpu rtx5090-32g --config 1b-24g --data synthetic > log 2>&1
says "RTX 5090 32 GB"
python3 data_prep/prepare.py stdlib --max-bytes 100K --out data --quiet
small=(--zero 1 --device cpu --data data --preset bytes --dim 32 --layers 2 --heads 2 --kv-heads 1 --head-dim 16 --ffn 48 --batch 2 --seq-len 32
  --steps 20 --threads 1)
./train_llama --ranks 2 "${small[@]}" --out run > log 2>&1
says "step 20/20"
says "oneDNN"
./train_llama generate --from run/final --device cpu --prompt "def " --max-tokens 8 > log 2>&1
says "def "
if ./train_llama --device cuda --data synthetic --steps 1 --out "" > log 2>&1; then echo "(there is a GPU here)"; else says "no usable CUDA device"; fi
if command -v mpirun > /dev/null; then
  mpirun -n 2 ./train_llama "${small[@]}" --out mpi > log 2>&1
  cmp run/final/model.safetensors mpi/final/model.safetensors && echo "mpirun: the same weights"
elif PMI_SIZE=2 ./train_llama "${small[@]}" --out "" > log 2>&1; then
  echo "FAILED: it ignores mpirun"; exit 1
else
  says "./train_llama --ranks 2"
fi
echo "ok: $(. /etc/os-release && echo "$PRETTY_NAME")"
