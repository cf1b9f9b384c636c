#!/usr/bin/env bash
# onednn.sh BUILD   (make onednn)   a newer oneDNN than Debian 12's 2.6.3, without root: 3.2 with GNU's OpenMP, from PyPI, in BUILD/onednn
#
# `make` uses it if it is there (dev/build/configure.sh); a run's second line says which one multiplies. DNNL_HOME=dir
# takes another one, with dir/include and dir/lib. To go back: rm -r BUILD/onednn, make reconfigure.
# PyPI's newest, onednn-devel 2026.1 (3.13), is built for SYCL and TBB: its threads are not OpenMP's, and it needs Intel's run time.
set -euo pipefail
build=$1
to=$build/onednn
[ ! -e "$to/.whole" ] || exit 0
rm -rf "$to" && mkdir -p "$to/wheels"
fetch() {  # fetch PACKAGE SHA256: unpacks its include and lib
  if ! python3 -m pip download -q --no-deps --only-binary :all: -d "$to/wheels" "$1==2023.2.0" > "$to/log" 2>&1; then
    echo "make onednn: PyPI's $1 2023.2.0 can't be had here: $(tail -n 1 "$to/log")" >&2
    return 1
  fi
  local wheel="$to/wheels/${1//-/_}-2023.2.0-py2.py3-none-manylinux1_x86_64.whl"
  echo "$2  $wheel" | sha256sum -c --quiet
  python3 -m zipfile -e "$wheel" "$to/wheels"
  cp -r "$to/wheels/${1//-/_}-2023.2.0.data/data/." "$to/"
}
fetch onednn-cpu-gomp 2f22a54d6a890ed14bfa185d42a4be65d8b5b1df85dc1f0f3a9abe31620416fb
fetch onednn-devel-cpu-gomp 9763c69e8c907e119056bd52ad918ca84ac9ba939d130a99dfa95ccca3e5e284
rm -r "$to/wheels"
touch "$to/.whole"
