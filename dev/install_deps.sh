#!/usr/bin/env bash
# Installs what ringzero needs on Debian or Ubuntu: as root, or with sudo.
#
#   dev/install_deps.sh           everything for building, training and testing
#   dev/install_deps.sh --check   says what is missing and exits 1, installs nothing
set -euo pipefail

packages="g++ make python3 mpich libmpich-dev libdnnl-dev libcli11-dev nlohmann-json3-dev libgtest-dev libgmock-dev"
packages="$packages libbenchmark-dev iproute2"

if ! command -v dpkg-query > /dev/null; then
  echo "dev/install_deps.sh: no dpkg here, so what is missing is unknown; needed, under your system's names:" >&2
  echo "  $packages" >&2
  if [ "${1:-}" = --check ]; then exit 0; else exit 1; fi
fi
missing=""
for p in $packages; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if [ "${1:-}" = --check ]; then
  echo "missing packages:$missing"
  exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "dev/install_deps.sh: run as root to install:$missing" >&2; exit 1; }
  sudo=sudo
fi
echo "installing:$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
