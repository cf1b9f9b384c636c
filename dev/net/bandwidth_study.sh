#!/usr/bin/env bash
# Tokens/s against link rate, ZeRO stage by stage, on N "hosts" of one machine (dev/net/netns_hosts.sh; needs root), beside an
# alpha-beta prediction. Writes a table, the raw numbers and an SVG.
#
#   dev/net/bandwidth_study.sh OUT_FOLDER [N] [RATES...]
#   dev/net/bandwidth_study.sh runs/bandwidth 2 10gbit 1gbit 300mbit 100mbit
#
# The model is MODEL (train_llama flags; default dim 256, 4 layers). One thread per rank.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 2; }
out=$1 hosts=${2:-2}
shift; [ $# = 0 ] || shift
rates=${*:-10gbit 1gbit 300mbit 100mbit}
model=${MODEL:---preset bytes --batch 4 --seq-len 128}
mkdir -p "$out"
[ -e data/stdlib/dataset.json ] || python3 data_prep/prepare.py stdlib --out data/stdlib
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for rate in $rates; do
  for stage in 0 1 2 3; do
    echo "== $rate, --zero $stage" >&2
    # shellcheck disable=SC2086
    COUNTS=$work/$rate-$stage.bytes timeout 300 dev/net/netns_hosts.sh "$hosts" "$rate" -- env OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive \
      ./train_llama $model --data data/stdlib --device cpu --zero $stage --steps 8 --val-every 0 --val-tokens 128 --log-every 100 \
      --out "$work/$rate-$stage" > "$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
  done
done
layers=$(sed -n 's/^model .*, \([0-9]*\) layers.*/\1/p' "$work/log")
{ lscpu | sed -n 's/^Model name: *//p'; git rev-parse --short HEAD; date +%F; } > "$work/facts"
python3 - "$work" "$out" "$hosts" "${layers:-4}" "$model" $rates <<'PY'
import json, statistics, sys
work, out, hosts, layers, model = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
rates = sys.argv[6:]
scale = {"gbit": 1e9 / 8, "mbit": 1e6 / 8}
beta = {r: float(r[:-4]) * scale[r[-4:]] for r in rates}
ALPHA = 60e-6  # a hop of 8 bytes between namespaces, as bench_collectives measures it
cpu, commit, date = open(work + "/facts").read().split("\n")[:3]
rows = []
for r in rates:
    for s in range(4):
        steps = [json.loads(l) for l in open(f"{work}/{r}-{s}/metrics.jsonl")]
        steps = [x for x in steps if "loss" in x][2:]
        m = lambda k: statistics.median(x[k] for x in steps)
        units = layers + 2
        hops = units * (hosts - 1) * {0: 2, 1: 2, 2: 2, 3: 3}[s]
        rows.append(dict(rate=r, stage=s, tokens_per_second=m("tokens_per_second"), step=m("seconds"), comm=m("comm_seconds"),
                         exposed=m("exposed_seconds"), overlap=m("overlap_efficiency"), bytes=m("bytes_sent"),
                         predicted_comm=m("bytes_sent") / beta[r] + ALPHA * hops))
compute = min(x["step"] - x["exposed"] for x in rows)
for x in rows:
    x["best"], x["worst"] = max(compute, x["predicted_comm"]), compute + x["predicted_comm"]
with open(out + "/bandwidth.json", "w") as f:
    json.dump(dict(hosts=hosts, model=model, cpu=cpu, commit=commit, date=date, alpha_s=ALPHA, compute_s=compute, rows=rows), f, indent=1)
with open(out + "/bandwidth.md", "w") as f:
    f.write(f"# Tokens/s against link rate\n\n`dev/net/bandwidth_study.sh`, {hosts} namespaces of one machine over TCP, {cpu}, 2 cores shared with other "
            f"work, commit {commit}, {date}. Model: `{model}`. Compute alone takes {1e3 * compute:.0f} ms a step. The prediction is "
            f"bytes / rate + {1e6 * ALPHA:.0f} us per hop; a step lies between perfect overlap, max(compute, communication), and none, their sum.\n\n"
            "| rate | stage | tokens/s | step ms | between | comm ms | predicted | MB sent/rank/step | overlap |\n|---|---|---|---|---|---|---|---|---|\n")
    for x in rows:
        f.write(f"| {x['rate']} | {x['stage']} | {x['tokens_per_second']:.0f} | {1e3 * x['step']:.0f} | {1e3 * x['best']:.0f} - {1e3 * x['worst']:.0f} | "
                f"{1e3 * x['comm']:.0f} | {1e3 * x['predicted_comm']:.0f} | {x['bytes'] / 1e6:.2f} | {100 * x['overlap']:.0f} % |\n")
# The picture: one line per stage, both axes logarithmic.
import math
W, H, L, B = 640, 400, 70, 50
xs, ys = [math.log10(b * 8 / 1e6) for b in beta.values()], [math.log10(x["tokens_per_second"]) for x in rows]
x0, x1, y0, y1 = min(xs) - .1, max(xs) + .1, min(ys) - .1, max(ys) + .1
px = lambda v: L + (v - x0) / (x1 - x0) * (W - L - 110)
py = lambda v: H - B - (v - y0) / (y1 - y0) * (H - B - 40)
svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="13"><rect width="{W}" height="{H}" fill="#fff"/>',
       f'<text x="{W / 2}" y="22" text-anchor="middle" font-weight="bold">tokens/s against link rate, {hosts} hosts</text>']
for r in rates:
    x = px(math.log10(beta[r] * 8 / 1e6))
    svg.append(f'<line x1="{x}" x2="{x}" y1="40" y2="{H - B}" stroke="#ddd"/><text x="{x}" y="{H - B + 18}" text-anchor="middle">{r}</text>')
for v in sorted({10 ** e * k for e in range(0, 7) for k in (1, 2, 5)}):
    if y0 <= math.log10(v) <= y1:
        y = py(math.log10(v))
        svg.append(f'<line x1="{L}" x2="{W - 110}" y1="{y}" y2="{y}" stroke="#ddd"/><text x="{L - 6}" y="{y + 4}" text-anchor="end">{v}</text>')
for s, c in enumerate(("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728")):
    pts = [(px(math.log10(beta[x["rate"]] * 8 / 1e6)), py(math.log10(x["tokens_per_second"]))) for x in rows if x["stage"] == s]
    svg.append(f'<polyline fill="none" stroke="{c}" stroke-width="2" points="' + " ".join(f"{a:.1f},{b:.1f}" for a, b in pts) + '"/>')
    svg += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{c}"/>' for a, b in pts]
    svg.append(f'<text x="{W - 100}" y="{60 + 20 * s}" fill="{c}">ZeRO-{s}</text>')
open(out + "/bandwidth.svg", "w").write("\n".join(svg) + "</svg>\n")
print(open(out + "/bandwidth.md").read())
PY
