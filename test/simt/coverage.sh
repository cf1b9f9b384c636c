#!/bin/bash
# coverage.sh COUNTS: what the emulator appended to COUNTS (SIMT_COVERAGE), against every __global__ function in kernels/ and comm/.
# Prints how often each ran and fails if one never did.
set -u
counts=$1
cd "$(dirname "$0")/../.." || exit
defined=$(for f in kernels/*.cu kernels/*/*.cu comm/*.cu; do
    sed 's://.*$::; s/__launch_bounds__([^)]*)//' "$f" | tr '\n' ' ' | grep -o '__global__[^(]*(' | sed -E 's/[[:space:]]*\($//; s/.*[^A-Za-z0-9_]//' |
        sed "s|\$|\t$f|"
done)
awk -F'\t' -v defined="$defined" '
    $1 == "kernel" {
        base = $3; sub(/<.*/, "", base); sub(/.*::/, "", base)
        launches[base] += $4; blocks[base] += $5
        if (!(($3) in seen)) { seen[$3] = 1; variants[base]++ }
        if ($6 == "external") external[$3] = $2
    }
    $1 == "time" { seconds[$2] += $3; threads[$2] += $4 }
    END {
        n = split(defined, lines, "\n")
        printf "%-38s %-34s %8s %9s %10s\n", "kernel", "file", "variants", "launches", "blocks"
        for (i = 1; i <= n; i++) {
            split(lines[i], x, "\t")
            printf "%-38s %-34s %8d %9d %10d%s\n", x[1], x[2], variants[x[1]], launches[x[1]], blocks[x[1]], launches[x[1]] ? "" : "   NEVER RAN"
            if (!launches[x[1]]) bad++
        }
        for (k in external) {
            printf "%s: %s has external linkage; put it into an anonymous namespace, or the ASan build misses its shared memory\n", external[k], k
            bad++
        }
        for (b in seconds) printf "emulator, %-5s build: %7.1f s in kernels, %.1f million threads\n", b, seconds[b], threads[b] / 1e6
        if (bad) printf "FAILED: %d\n", bad
        exit bad > 0
    }' "$counts"
