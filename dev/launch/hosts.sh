#!/usr/bin/env bash
# Trains on several machines named in a hostfile, by MPICH's mpirun over ssh; starts again after a crash.
#
#   dev/launch/hosts.sh HOSTFILE [--ranks-per-host N] [--no-check] [--dry-run] -- --config llama/configs/8b.toml --zero 3
#
#   HOSTFILE             a host per line, `name` or `name:ranks`; # begins a comment
#   --ranks-per-host N   for hosts without :ranks (default 8)
#   --no-check           do not ask every host first whether it has this program and this folder
#   --dry-run            print the commands and stop
#
# Every host needs this folder under the same path (a shared file system, which checkpoints need anyway) and ssh without a
# password. Before it trains, every rank says where it is: build/dev/sanity (make tools).
set -euo pipefail
cd "$(dirname "$0")/../.."
. dev/launch/common.sh
[ $# -gt 0 ] || usage "$0"
case $1 in -*) usage "$0" ;; esac
hostfile=$1 per_host=8 dry='' checks=1
shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --ranks-per-host) per_host=$(whole "$1" "${2:-}"); shift 2 ;;
    --no-check) checks=''; shift ;;
    --dry-run) dry=1; shift ;;
    *) usage "$0" ;;
  esac
done
flags_after "$0" "$@"
[ -r "$hostfile" ] || die "$hostfile: can't read this hostfile"

hosts='' names=() ranks=0
while read -r line; do
  line=${line%%#*}
  line=${line//[[:space:]]/}
  [ -n "$line" ] || continue
  name=${line%%:*} here=$per_host
  [[ $line != *:* ]] || here=${line##*:}
  [[ $name =~ ^[A-Za-z0-9._-]+$ && $here =~ ^[1-9][0-9]*$ ]] || die "$hostfile: '$line' is neither a host nor host:ranks"
  for seen in "${names[@]:-}"; do [ "$seen" != "$name" ] || die "$hostfile: $name stands there twice"; done
  names+=("$name") hosts="$hosts${hosts:+,}$name:$here" ranks=$((ranks + here))
done < "$hostfile"
[ "$ranks" -gt 0 ] || die "$hostfile names no host"

if [ -n "$checks" ]; then
  want=$(sha256sum < ./train_llama)
  for name in "${names[@]}"; do
    if [ -n "$dry" ]; then
      echo "ssh $name sha256sum < $PWD/train_llama"
    else
      found=$(ssh -o BatchMode=yes -o ConnectTimeout=10 "$name" "sha256sum < '$PWD/train_llama'") ||
        die "$name: no answer over ssh, or no $PWD/train_llama there"
      [ "$found" = "$want" ] || die "$name: another train_llama under $PWD; share the folder or copy it"
    fi
  done
fi
[ -x build/dev/sanity ] && run "$dry" mpirun -hosts "$hosts" -n "$ranks" build/dev/sanity
keeps=()
case " ${flags[*]}" in *" --snapshot-every"*) keeps=(--hosts "$hostfile") ;; esac
run "$dry" dev/run/supervise.sh "${keeps[@]}" -- mpirun -hosts "$hosts" -n "$ranks" ./train_llama "${flags[@]}"
