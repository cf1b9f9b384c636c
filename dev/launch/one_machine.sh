#!/usr/bin/env bash
# Trains on all GPUs of this machine, one rank each, or on its cores where there is none; starts again after a crash.
#
#   dev/launch/one_machine.sh [--ranks N] [--dry-run] -- --config llama/configs/124m.toml --zero 1
#
#   --ranks N    instead of one per GPU (on a CPU: one)
#   --dry-run    print the command and stop
#
# Words after -- are train_llama's flags; --out must be among them or in the --config file.
set -euo pipefail
cd "$(dirname "$0")/../.."
. dev/launch/common.sh
ranks='' dry=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --ranks) ranks=$(whole "$1" "${2:-}"); shift 2 ;;
    --dry-run) dry=1; shift ;;
    *) usage "$0" ;;
  esac
done
flags_after "$0" "$@"

gpus=$(gpu_count)
[ -n "$ranks" ] || ranks=$((gpus > 0 ? gpus : 1))
if [ "$gpus" -gt 0 ] && [ "$ranks" -gt "$gpus" ]; then
  die "--ranks $ranks, but there are $gpus GPUs; nearest: --ranks $gpus"
fi
run "$dry" dev/run/supervise.sh -- ./train_llama --ranks "$ranks" "${flags[@]}"
