#!/usr/bin/env bash
# Compares the virtual network's time of collectives with a clock: N "hosts" of one machine over shaped links
# (dev/net/netns_hosts.sh; needs root). The rate and the latency of a link are measured pair by pair (build/dev/sanity --links), the
# model gets these two numbers (build/dev/virtual_net shaped), and its times stand beside those of build/dev/bench_collectives.
#
#   dev/net/shaped_model.sh [N] [RATES...]
#   dev/net/shaped_model.sh 3 100mbit 300mbit > table.md
#
# Exit code 1 where a time from 4 MiB on differs by more than 10 %.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" = --help ]; then sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit; fi
hosts=${1:-3}
shift || true
rates=${*:-100mbit 300mbit}
tools=${TOOLS:-build/dev}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
code=0
for rate in $rates; do
  # A queue that loses nothing: the model has no lost packets, and TCP takes up to a tenth longer where it sends some twice.
  shape=(env LATENCY=4000ms dev/net/netns_hosts.sh "$hosts" "$rate" -- env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive)
  timeout 300 "${shape[@]}" "$tools/sanity" --links --link-mib 8 > "$work/links" 2>&1 || { tail -20 "$work/links" >&2; exit 1; }
  line=$(grep -m 1 ' links [wb][a-z]* ' "$work/links")
  [[ $line =~ median\ ([0-9.]+),.*most\;\ ([0-9.]+)\ us ]]
  "$tools/virtual_net" shaped --ranks "$hosts" --gbs "${BASH_REMATCH[1]}" --us "${BASH_REMATCH[2]}" > "$work/model"
  timeout 900 "${shape[@]}" "$tools/bench_collectives" --op reduce_scatter,all_gather,all_reduce --algo ring,direct --min 1M --max 16M \
    --factor 4 --iterations 3 --warmup 1 --json "$work/json" > "$work/bench" 2>&1 || { tail -20 "$work/bench" >&2; exit 1; }
  python3 - "$work" "$rate" "$line" << 'PY' || code=1
import json, sys
work, rate, links = sys.argv[1:]
model = {}
for line in open(work + "/model"):
    words = line.split()
    if len(words) == 4 and words[2].isdigit():
        model[words[0], words[1], int(words[2])] = float(words[3])
print(f"\nShaped to {rate}; {links.strip()}\n\n| operation | algorithm | MiB | measured ms | model ms | measured / model |\n|---|---|---|---|---|---|")
far = 0
for row in json.load(open(work + "/json"))["results"]:
    key = row["op"], row["algo"], row["size"]
    took, says = 1e-6 * row["in_place"]["time"], model[key]
    far += key[2] >= 4 << 20 and not 0.9 <= took / says <= 1.1
    print(f"| {key[0]} | {key[1]} | {key[2] >> 20} | {1e3 * took:.1f} | {1e3 * says:.1f} | {took / says:.3f} |")
sys.exit(far > 0)
PY
done
exit $code
