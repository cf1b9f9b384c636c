#!/usr/bin/env bash
# Throttles what a network device sends (tc's token bucket), shows it, or takes it off again. Needs root.
#
#   dev/net/throttle.sh apply  DEV RATE [BURST] [LATENCY]     e.g.  apply eth0 1gbit 256kb 50ms
#   dev/net/throttle.sh status DEV
#   dev/net/throttle.sh delete DEV
#
# RATE in tc's notation (100mbit, 1gbit, 10gbit). BURST is how much may pass unshaped at once: it needs about RATE/250
# per tick; transfers shorter than it seem faster than the link. LATENCY bounds the queue: a packet that would wait
# longer is dropped. It limits queueing, it adds no delay. In a network namespace:  NETNS=name dev/net/throttle.sh ...
# Check with a byte counter that the traffic really passes DEV (/sys/class/net/DEV/statistics/tx_bytes).
set -euo pipefail

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 2; }
tc=(tc ${NETNS:+-n "$NETNS"})

[ $# -ge 2 ] || usage
command -v tc >/dev/null || { echo "throttle: tc is missing; apt-get install iproute2" >&2; exit 1; }
verb=$1 dev=$2

case $verb in
apply)
    if [ $# -lt 3 ] || [ $# -gt 5 ]; then usage; fi
    rate=$3 burst=${4:-256kb} latency=${5:-50ms}
    "${tc[@]}" qdisc replace dev "$dev" root tbf rate "$rate" burst "$burst" latency "$latency" || {
        echo "throttle: could not shape $dev to $rate: it needs root, an existing device and the tbf queue" >&2
        exit 1
    }
    "${tc[@]}" -s qdisc show dev "$dev" ;;
status)
    [ $# -eq 2 ] || usage
    "${tc[@]}" -s qdisc show dev "$dev" ;;
delete)
    [ $# -eq 2 ] || usage
    if "${tc[@]}" qdisc show dev "$dev" | grep -q 'qdisc tbf'; then "${tc[@]}" qdisc del dev "$dev" root; fi
    "${tc[@]}" qdisc show dev "$dev" ;;
*) usage ;;
esac
