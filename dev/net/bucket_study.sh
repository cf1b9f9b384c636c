#!/usr/bin/env bash
# Effect of --bucket-mib on a step, on N "hosts" of one machine whose links are shaped (dev/net/netns_hosts.sh; needs root): one
# collective for each block beside one for several of them. Prints a table.
#
#   dev/net/bucket_study.sh [N] [RATES...]
#   dev/net/bucket_study.sh 4 1gbit 100mbit > table.md
#
# In the environment: BUCKETS="0 2 8", STAGE=1, REPEATS=3 (in turn over the buckets), MODEL (train_llama flags).
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" = --help ]; then sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit; fi
hosts=${1:-2}
shift || true
rates=${*:-1gbit 300mbit 100mbit}
buckets=${BUCKETS:-0 1 2 4 16} stage=${STAGE:-1} repeats=${REPEATS:-3}
model=${MODEL:---preset bytes --dim 128 --layers 12 --heads 4 --kv-heads 4 --head-dim 32 --ffn 384 --batch 1 --seq-len 64}
[ -e data/stdlib/dataset.json ] || python3 data_prep/prepare.py stdlib --out data/stdlib >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for rate in $rates; do
  for ((i = 0; i < repeats; i++)); do
    for bucket in $buckets; do
      # shellcheck disable=SC2086
      timeout 300 dev/net/netns_hosts.sh "$hosts" "$rate" -- env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive \
        ./train_llama $model --data data/stdlib --device cpu --zero "$stage" --bucket-mib "$bucket" --steps 12 --val-every 0 \
        --val-tokens 64 --save-every 0 --log-every 100 --out "$work/$rate-$bucket-$i" > "$work/log" 2>&1 ||
        { tail -20 "$work/log" >&2; exit 1; }
      # The same bits whatever the bucket.
      sha256sum < "$work/$rate-$bucket-$i/final/model.safetensors" >> "$work/sums"
      rm -rf "$work/$rate-$bucket-$i/final"
    done
  done
done
[ "$(sort -u "$work/sums" | wc -l)" = 1 ] || { echo "bucket_study: runs differ in their weights" >&2; exit 1; }
python3 - "$work" "$repeats" "$rates" "$buckets" << 'PY'
import json, statistics, sys
work, repeats, rates, buckets = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(), sys.argv[4].split()
print("| link | --bucket-mib | step ms | to one block at a time | communication ms | of it exposed ms |\n|---|---|---|---|---|---|")
for rate in rates:
    base = None
    for bucket in buckets:
        runs = []
        for i in range(repeats):
            steps = [json.loads(line) for line in open(f"{work}/{rate}-{bucket}-{i}/metrics.jsonl")]
            steps = [s for s in steps if "loss" in s][2:]
            runs.append([statistics.median(s[k] for s in steps) for k in ("seconds", "comm_seconds", "exposed_seconds")])
        step, comm, exposed = min(runs)
        base = base or step
        print(f"| {rate} | {bucket} | {1e3 * step:.1f} | {step / base:.2f} | {1e3 * comm:.1f} | {1e3 * exposed:.1f} |")
PY
