#!/usr/bin/env bash
# cutlass.sh BUILD: CUTLASS's headers and examples in BUILD/cutlass/cutlass_library/source, from PyPI's wheel nvidia-cutlass,
# checked against its hash. Where the wheel can't be had, says why on standard output and exits 1; another hash: 2.
set -euo pipefail
build=$1
wheel=nvidia_cutlass-4.2.0.0-py3-none-any.whl
sha256=f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6
[ ! -e "$build/cutlass/.whole" ] || exit 0
rm -rf "$build/cutlass" && mkdir -p "$build/cutlass"
if ! python3 -m pip download -q --no-deps -d "$build/cutlass" nvidia-cutlass==4.2.0.0 > "$build/cutlass/log" 2>&1; then
  echo "PyPI's nvidia-cutlass 4.2.0.0 can't be had here: $(tail -n 1 "$build/cutlass/log")"
  exit 1
fi
echo "$sha256  $build/cutlass/$wheel" | sha256sum -c --quiet || exit 2
python3 -m zipfile -e "$build/cutlass/$wheel" "$build/cutlass"
touch "$build/cutlass/.whole"
