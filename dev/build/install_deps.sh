#!/usr/bin/env bash
# Installs what ringzero needs on Debian or Ubuntu: as root, or with sudo.
#
#   dev/build/install_deps.sh             everything for building, training and testing
#   dev/build/install_deps.sh --program   what building and training need
#   dev/build/install_deps.sh --check     says what is missing and exits 1, installs nothing   (--program --check too)
set -euo pipefail

packages="g++ make python3 mpich libmpich-dev libdnnl-dev libssl-dev libcli11-dev nlohmann-json3-dev"
# One version of clang-format, since each formats a little differently: the distribution's, or PyPI's where it has none.
format_version=14.0.6 format=clang-format-14
check=0
test=1
for a in "$@"; do
  case $a in
    --check) check=1 ;;
    --program) test=0 ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ $test = 0 ] || packages="$packages libgtest-dev libgmock-dev iproute2 strace"

if ! command -v dpkg-query > /dev/null; then
  echo "dev/build/install_deps.sh: no dpkg here, so what is missing is unknown; needed, under your system's names:" >&2
  echo "  $packages, and clang-format $format_version for make lint" >&2
  if [ $check = 1 ]; then exit 0; else exit 1; fi
fi
missing=""
for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $p"
done
has_format() {
  local c
  for c in clang-format clang-format-14 build/tools/bin/clang-format; do
    "$c" --version 2>/dev/null | grep -q "version $format_version" && return 0
  done
  return 1
}
need_format=0
[ $test = 0 ] || has_format || need_format=1
[ -n "$missing" ] || [ $need_format = 1 ] || exit 0
if [ $check = 1 ]; then
  echo "missing packages:$missing$([ $need_format = 0 ] || echo " $format")"
  exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "dev/build/install_deps.sh: run as root to install:$missing" >&2; exit 1; }
  sudo=sudo
fi
$sudo apt-get update -qq
if [ $need_format = 1 ] && apt-cache show $format > /dev/null 2>&1; then
  missing="$missing $format" need_format=0
fi
if [ -n "$missing" ]; then
  echo "installing:$missing"
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi
if [ $need_format = 1 ] || { [ $test = 1 ] && ! has_format; }; then
  echo "installing: clang-format $format_version from PyPI into build/tools"
  python3 -m venv build/tools || { $sudo apt-get install -y -qq python3-venv && python3 -m venv build/tools; }
  build/tools/bin/pip install -q "clang-format==$format_version"
fi
