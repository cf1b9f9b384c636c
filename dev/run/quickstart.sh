#!/usr/bin/env bash
# From a bare machine to a trained model and a sample of its text, in one command: make quickstart
set -euo pipefail
cd "$(dirname "$0")/../.."
say() { printf '\n== %s\n' "$*"; }

say "packages"
# Installed packages are looked for again.
dev/build/install_deps.sh --program --check || { dev/build/install_deps.sh --program && rm -f build/config.mk; }
echo "all there"

# The CUDA half is built only where there is a GPU to run it.
cuda=0
nvidia-smi -L >/dev/null 2>&1 && cuda=auto
say "building ./train_llama"
# On a terminal the steps share a line. Without line tables for a debugger.
make --no-print-directory -j"$(nproc)" CUDA=$cuda DEBUG_INFO=-g0 train_llama | while IFS= read -r line; do
  if [ -t 1 ] && [[ $line = \[* ]]; then printf '\r\033[K%s' "$line"; else printf '%s%s\n' "${cr-}" "$line"; fi
  [ ! -t 1 ] || cr=$'\r\033[K'
done

say "text: fables written by a grammar (data_prep/fables.py), as bytes"
python3 data_prep/prepare.py fables --out data/fables

say "training"
./train_llama --config llama/configs/quickstart.toml

say "three fables of the model"
./train_llama generate --from runs/quickstart/final --prompt 'Once there was ' --num-samples 3 --max-tokens 240 --temperature 0.7
say "loss curve: runs/quickstart/loss.svg    metrics: runs/quickstart/metrics.jsonl    model: runs/quickstart/final"
cat << 'END'

== next
  ./train_llama generate --from runs/quickstart/final --interactive       # a prompt a line
  python3 data_prep/prepare.py text FILES --out data/mine                 # your text, then: ./train_llama --data data/mine --out runs/mine
  make lesson N=1                                                         # how it works: dev/learn/README.md
END
