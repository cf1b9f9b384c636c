#!/usr/bin/env bash
# N "hosts" on one machine: network namespaces with their own addresses on a bridge, and MPICH launching one rank in
# each, talking TCP. Needs root. Nothing outside the namespaces is touched, and they go when the command ends, however
# it ends.
#
#   dev/net/netns_hosts.sh N [RATE] -- command...
#   dev/net/netns_hosts.sh 4 1gbit -- build/dev/bench_collectives --max 16M
#
# RATE (tc notation: 100mbit, 1gbit) throttles what every host sends, by tc's token bucket. After the command, one line
# per host with the bytes it sent:
#   # host 0 sent 123456 bytes
# In the environment: BURST=256kb, how much may pass unshaped at once (it needs about RATE/250 per tick; transfers shorter
# than it seem faster than the link); LATENCY=50ms, which bounds the queue: a packet that would wait longer is dropped; no
# delay is added; RANKS_PER_HOST=1; and COUNTS=file, where the byte counts are written too.
# Exit code: the command's; 77 where namespaces can't be made.
set -euo pipefail

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 2; }
[ $# -ge 3 ] || usage
count=$1; shift
rate=
if [ "$1" != -- ]; then rate=$1; shift; fi
[ "${1:-}" = -- ] || usage
shift
if ! [[ $count =~ ^[0-9]{1,3}$ ]] || [ "$count" -lt 1 ] || [ "$count" -gt 200 ] || [ $# -lt 1 ]; then usage; fi
[ "$(id -u)" = 0 ] || { echo "netns_hosts: network namespaces need root" >&2; exit 77; }
for tool in ip tc mpirun; do
    command -v $tool >/dev/null || { echo "netns_hosts: $tool is missing (iproute2, mpich)" >&2; exit 77; }
done

tag=rz$$                       # names carry the pid: other programs may have namespaces of their own
work=$(mktemp -d)
made=()
cleanup() {
    trap - EXIT INT TERM HUP
    for ns in "${made[@]}"; do
        ip netns pids "$ns" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns del "$ns" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

add() {
    ip netns add "$1" 2>/dev/null || { echo "netns_hosts: no namespaces can be made here" >&2; exit 77; }
    made+=("$1")
}
add ${tag}sw
ip -n ${tag}sw link add br0 type bridge
ip -n ${tag}sw link set br0 up
: > "$work/hosts"
for ((i = 0; i < count; i++)); do
    ns=$tag$i
    add "$ns"
    ip -n "$ns" link add eth0 type veth peer name p$i netns ${tag}sw
    ip -n "$ns" addr add 10.77.0.$((i + 1))/24 dev eth0
    ip -n "$ns" link set lo up
    ip -n "$ns" link set eth0 up
    ip -n ${tag}sw link set p$i master br0
    ip -n ${tag}sw link set p$i up
    echo "10.77.0.$((i + 1)):${RANKS_PER_HOST:-1}" >> "$work/hosts"
    if [ -n "$rate" ]; then
        tc -n "$ns" qdisc replace dev eth0 root tbf rate "$rate" burst "${BURST:-256kb}" latency "${LATENCY:-50ms}"
    fi
done

# hydra calls it like ssh:  nsssh HOST "hydra_pmi_proxy" arguments...
cat > "$work/nsssh" <<X
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
host=\$1; shift
exec ip netns exec $tag\$(( \${host##*.} - 1 )) /bin/bash -c "\$*"
X
chmod +x "$work/nsssh"

sent() { ip netns exec $tag$1 cat /sys/class/net/eth0/statistics/tx_bytes; }
before=(); for ((i = 0; i < count; i++)); do before+=("$(sent $i)"); done

# Without UCX_TLS UCX would tunnel through shared memory, past the network.
code=0
ip netns exec ${tag}0 mpirun -launcher ssh -launcher-exec "$work/nsssh" \
    -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0 -f "$work/hosts" \
    -n $((count * ${RANKS_PER_HOST:-1})) "$@" || code=$?

for ((i = 0; i < count; i++)); do
    line="# host $i sent $(( $(sent $i) - before[i] )) bytes"
    echo "$line"
    if [ -n "${COUNTS:-}" ]; then echo "$line" >> "$COUNTS"; fi
done
exit $code
