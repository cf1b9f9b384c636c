#!/usr/bin/env bash
# Installs the program with its recipes, data_prep, man page and shell completion, or takes them away again.
#
#   dev/build/install.sh PROGRAM PREFIX     make install [PREFIX=/usr/local] [DESTDIR=]
#   dev/build/install.sh --remove PREFIX    make uninstall
#
# The program keeps the paths of the libraries that it was linked with.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
prefix=$2
man=$prefix/share/man/man1/train_llama.1
completion=$prefix/share/bash-completion/completions/train_llama
zsh=$prefix/share/zsh/site-functions/_train_llama
recipes=$prefix/share/ringzero/configs

if [ "$1" = --remove ]; then
  rm -f "$prefix/bin/train_llama" "$man" "$completion" "$zsh"
  rm -rf "$prefix/share/ringzero"
  echo "removed train_llama from $prefix"
  exit 0
fi
program=$1
[ -x "$program" ] || { echo "dev/build/install.sh: there is no $program: run make first" >&2; exit 1; }
mkdir -p "$prefix/bin" "$(dirname "$man")" "$(dirname "$completion")" "$(dirname "$zsh")" "$recipes"
# Under other names first: a program that is running, or half a file, is never in the way.
dev/build/describe.py man "$program" > "$man.new" && mv "$man.new" "$man"
dev/build/describe.py bash "$program" > "$completion.new" && mv "$completion.new" "$completion"
dev/build/describe.py zsh "$program" > "$zsh.new" && mv "$zsh.new" "$zsh"
cp llama/configs/*.toml "$recipes/"
mkdir -p "$prefix/share/ringzero/data_prep"
cp data_prep/*.py "$prefix/share/ringzero/data_prep/"
cp "$program" "$prefix/bin/train_llama.new" && mv "$prefix/bin/train_llama.new" "$prefix/bin/train_llama"
printf '%s\n' "$prefix/bin/train_llama" "$man" "$completion" "$zsh" "$recipes"
