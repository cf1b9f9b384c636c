#!/usr/bin/env bash
# clean_root.sh SUITE [COMMAND]   runs a command in a fresh root of another distribution; as root, on Debian or Ubuntu
#
#   dev/build/clean_root.sh trixie                         make quickstart, in Debian 13 with nothing but make
#   dev/build/clean_root.sh noble 'make -j2 && make test-unit'
#   CUDA=/usr/local/cuda PACKAGES=g++-13 dev/build/clean_root.sh trixie 'make SM=80 CXX=g++-13'
#
# SUITE: bookworm, trixie, forky, sid (Debian 12, 13, next, unstable), noble (Ubuntu 24.04), or another that debootstrap knows.
# The root is made once, in ROOTS (default: build/roots), and gets the commit that is checked out, in /ringzero, each time; what
# was built there stays, and make compiles what has changed since. CUDA=dir is seen there read-only. PACKAGES are installed first. Debian's debootstrap is installed if it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
suite=${1:?"clean_root.sh SUITE [COMMAND]"}
command=${2:-make quickstart}
root=$(realpath -m "${ROOTS:-build/roots}")/$suite
[ "$(id -u)" = 0 ] || { echo "clean_root.sh: run as root: it mounts, and changes its root" >&2; exit 1; }

command -v debootstrap > /dev/null || apt-get install -y -qq --no-install-recommends debootstrap
# Suites that an older debootstrap does not know yet are made as the one before them was.
components=main,contrib,non-free options=() script=$suite
[ -e "/usr/share/debootstrap/scripts/$suite" ] || script=sid
case $suite in
  focal | jammy | noble)
    components=main,universe,multiverse
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || script=jammy
    # Debian 12 has no package with Ubuntu's keys.
    [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || { echo "clean_root.sh: $suite: signatures are not checked"; options=(--no-check-gpg); }
    ;;
esac
if [ ! -e "$root/.whole" ]; then
  rm -rf "$root"
  mkdir -p "$root"
  debootstrap "${options[@]}" --variant=minbase --components=$components --include=ca-certificates,make "$suite" "$root" "" "$script" > "$root.log" 2>&1 ||
    { echo "clean_root.sh: debootstrap $suite: $(tail -n 1 "$root.log")" >&2; exit 1; }
  touch "$root/.whole"
fi
mkdir -p "$root/ringzero" "$root/usr/local/cuda"

# Files changed since the commit that is there; the others keep their time.
last=$(cat "$root.commit" 2> /dev/null || true)
rm -f "$root.commit"
if [ -n "$last" ] && git cat-file -e "$last^{commit}" 2> /dev/null; then
  git diff --name-only --no-renames --diff-filter=D -z "$last" HEAD | (cd "$root/ringzero" && xargs -0 -r rm -f)
  mapfile -t -d '' changed < <(git diff --name-only --no-renames --diff-filter=d -z "$last" HEAD)
  [ ${#changed[@]} = 0 ] || git archive HEAD -- "${changed[@]}" | tar -x -m -C "$root/ringzero"
else
  rm -rf "$root/ringzero"
  mkdir "$root/ringzero"
  git archive HEAD | tar -x -m -C "$root/ringzero"
fi
git rev-parse HEAD > "$root.commit"

# Mounts of a name space of its own go when the command ends.
# shellcheck disable=SC2016
exec unshare --mount --pid --fork --kill-child bash -euc '
  root=$1 command=$2
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"  # MPI looks there for cores and network cards
  [ -z "${CUDA:-}" ] || { mount --bind "$(readlink -f "$CUDA")" "$root/usr/local/cuda"; mount -o remount,bind,ro "$root/usr/local/cuda"; }
  cp -L /etc/resolv.conf "$root/etc/" 2> /dev/null || true
  [ -z "${PACKAGES:-}" ] || command="apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $PACKAGES && $command"
  exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin ${CUDA:+CUDA_HOME=/usr/local/cuda} \
    bash -euc "cd /ringzero; $command"
' bash "$root" "$command"
