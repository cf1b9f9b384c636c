#!/usr/bin/env bash
# Registers, shared memory and stack of every kernel as it was compiled, from the built objects: needs no GPU.
#
#   dev/gpu/kernel_resources.sh [BUILD] [--all]     BUILD: default build; --all: a line per instance, else the worst of each kernel
#
# Exit code 1 if a kernel has a stack frame: registers that spilled, or an array that no register could hold. What may have
# one stands in `allowed` with its reason. Shared memory on sm_90 includes the KiB that the driver keeps. A kernel that a run-time check leaves empty on an architecture (4 registers or so)
# is not shown there. Needs cuobjdump (CUDA Toolkit) and c++filt; $CUOBJDUMP names another.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
build=build all=0
for a in "$@"; do if [ "$a" = --all ]; then all=1; else build=$a; fi; done
cuobjdump=${CUOBJDUMP:-cuobjdump}
command -v "$cuobjdump" > /dev/null || { echo "kernel_resources.sh: $cuobjdump is not there; it is in the CUDA Toolkit, and a PyPI package (nvidia-cuda-cuobjdump)" >&2; exit 2; }
shopt -s nullglob
objects=("$build"/cuda*/kernels/*.cu.o "$build"/cuda*/kernels/*/*.cu.o)
[ ${#objects[@]} -gt 0 ] || { echo "kernel_resources.sh: no $build/cuda*/kernels/*.cu.o; run make where nvcc is" >&2; exit 2; }

# instance on architecture: reason
allowed="
attention_forward_mma_kernel<f16, 128> on sm_80: 16 bytes at 254 registers, read once per tile of keys
attention_forward_mma_kernel<f16, 128> on sm_90a: 64 bytes at 255 registers; a Hopper runs it only where its own kernel is turned off
attention_backward_kv_kernel<f16, 128> on sm_80: 48 bytes at 64 registers; the kernels without tensor cores have as many as their threads leave
attention_backward_q_kernel<f16, 64> on sm_80: 16 bytes at 48 registers; the same
attention_forward_kernel<float, 256> on sm_80: 24 bytes at 40 registers; the same
"

for object in "${objects[@]}"; do
  "$cuobjdump" --dump-resource-usage "$object" 2> /dev/null | sed "s|^Resource usage:|object $(basename "$object" .cu.o)|"
done | c++filt | awk -v all=$all -v allowed="${allowed//$'\n'/@}" '
  /^arch = /   { arch = $3 }
  /^object /   { object = $2 }
  / Function / {
    name = $0
    sub(/^ *Function /, "", name); sub(/:$/, "", name)
    gsub(/\(anonymous namespace\)::/, "", name); gsub(/rz::/, "", name); sub(/^void /, "", name)
    n = index(name, ">("); if (n) name = substr(name, 1, n); else sub(/\(.*/, "", name)
    gsub(/__nv_bfloat16/, "bf16", name); gsub(/__half/, "f16", name); gsub(/\(bool\)/, "", name); gsub(/\(int\)/, "", name)
  }
  / REG:/ {
    for (i = 1; i <= NF; i++) { split($i, kv, ":"); v[kv[1]] = kv[2] }
    if (v["REG"] + 0 <= 8 && v["SHARED"] + 0 == 0 && object ~ /wgmma/) next   # empty on this architecture
    base = name; if (!all) sub(/<.*/, "", base)
    key = object "\t" base "\t" arch
    if (!(key in regs)) order[++count] = key
    instances[key]++
    if (v["REG"] + 0 > regs[key] + 0) regs[key] = v["REG"] + 0
    if (v["SHARED"] + 0 > shared[key] + 0) shared[key] = v["SHARED"] + 0
    stack_bytes = v["STACK"] + v["LOCAL"]
    if (stack_bytes > stack[key] + 0) { stack[key] = stack_bytes; where[key] = name }
  }
  END {
    printf "| kernel | file | architecture | instances | registers | static shared memory | stack, local |\n|---|---|---|---|---|---|---|\n"
    for (i = 1; i <= count; i++) {
      split(order[i], part, "\t")
      printf "| %s | %s | %s | %d | %d | %d | %d |\n", part[2], part[1], part[3], instances[order[i]], regs[order[i]], shared[order[i]], stack[order[i]]
      total += instances[order[i]]
      if (stack[order[i]] == 0) continue
      id = where[order[i]] " on " part[3]
      at = index(allowed, "@" id ":")
      if (at) { reason = substr(allowed, at + 1); sub(/@.*/, "", reason); known = known "\n" reason }
      else bad = bad sprintf("\n%s: %d bytes of stack", id, stack[order[i]])
    }
    if (total == 0) { print "kernel_resources.sh: no kernel was found"; exit 2 }
    if (known != "") printf "\nKnown to have a stack frame:%s\n", known
    if (bad != "") { printf "\nSPILLS, or arrays in local memory:%s\n", bad; exit 1 }
    printf "\n%d kernels, no other with a stack frame\n", total
  }'
