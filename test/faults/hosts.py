#!/usr/bin/env python3
"""Ranks on several hosts of one machine, started again after one has died, as torchrun's agents do it.

    test/faults/hosts.py [--restarts N] [--lose none|one|two] [--rotate] [--every-start] 0,1/2/3 COMMAND...

0,1/2/3: which ranks are on which host. A host is a folder in memory of its own, from dev/run/keep.sh. When a rank dies all are ended and
start again; before that, by --lose, the host of a rank that a signal has killed is lost with its memory, and a spare one takes its place, or
that host and the next. --rotate: the ranks also move to the host after theirs. FAULT is for the first start alone, unless --every-start. Ends with the code of
the last start; nothing stays in /dev/shm.
"""

import argparse
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import time

KEEP = pathlib.Path(__file__).resolve().parents[2] / "dev/run/keep.sh"


class Host:
    def __init__(self):
        command = [str(KEEP), "--", "sh", "-c", 'echo "$RINGZERO_RESTART"; exec sleep 100000']
        self.keeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=without_restart())
        self.memory = self.keeper.stdout.readline().strip()

    def lose(self):
        self.keeper.terminate()
        self.keeper.wait()
        if os.path.exists(self.memory):
            sys.exit(f"hosts: keep.sh has left {self.memory}")


def without_restart():
    return {name: value for name, value in os.environ.items() if name != "RINGZERO_RESTART"}


def one_start(hosts, ranks, command, faults):
    """Exit code, and the hosts of ranks that a signal has killed."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    size = sum(map(len, ranks))
    job = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RINGZERO_TOKEN": secrets.token_hex(16),
    }
    env = without_restart() | job
    if not faults:
        env.pop("FAULT", None)
    running = {}
    try:
        for host, here in enumerate(ranks):
            for r in here:
                own = {"RANK": str(r), "LOCAL_WORLD_SIZE": str(len(here)), "RINGZERO_RESTART": hosts[host].memory}
                running[subprocess.Popen(command, env=env | own)] = host
        while running:
            time.sleep(0.02)
            ended = [p for p in running if p.poll() is not None]
            bad = [p for p in ended if p.returncode != 0]
            if bad:
                return bad[0].returncode, [running[p] for p in bad if p.returncode < 0]
            for p in ended:
                del running[p]
        return 0, []
    finally:
        for p in running:
            p.kill()
            p.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--lose", choices=["none", "one", "two"], default="none")
    parser.add_argument("--rotate", action="store_true")
    parser.add_argument("--every-start", action="store_true")
    parser.add_argument("ranks")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    ranks = [host.split(",") for host in args.ranks.split("/")]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    hosts = []
    try:
        hosts += [Host() for _ in ranks]
        for start in range(args.restarts + 1):
            code, killed = one_start(hosts, ranks, args.command, faults=args.every_start or start == 0)
            if code == 0 or code == 2:
                return code
            lost = set(killed if args.lose != "none" else [])
            if args.lose == "two":
                lost |= {(host + 1) % len(hosts) for host in lost}
            for host in sorted(lost):
                hosts[host].lose()
                hosts[host] = Host()
            if args.rotate:
                ranks = ranks[-1:] + ranks[:-1]
            print(
                f"hosts: ended with {code}; hosts lost: {sorted(lost)}; all ranks start again",
                file=sys.stderr,
                flush=True,
            )
        return code
    finally:
        for host in hosts:
            host.lose()


if __name__ == "__main__":
    sys.exit(main())
