#!/usr/bin/env bash
# Registers, shared memory and stack of every kernel as it was compiled, from the built objects: needs no GPU.
#
#   dev/gpu/kernel_resources.sh [BUILD] [--all]     BUILD: default build; --all: a line per instance, else the worst of each kernel
#
# Names every kernel that has a stack frame, and says what its machine code does with it: registers that spilled, or an array
# that no register could hold. Exit code 1 if one has more than stands in `allowed`. Shared memory on sm_90 includes the KiB
# that the driver keeps. A kernel that a run-time check leaves empty on an architecture (4 registers or so) is not shown
# there. Needs cuobjdump and nvdisasm (CUDA Toolkit) and c++filt; $CUOBJDUMP names another.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
build=build all=0
for a in "$@"; do if [ "$a" = --all ]; then all=1; else build=$a; fi; done
cuobjdump=${CUOBJDUMP:-cuobjdump}
command -v "$cuobjdump" > /dev/null || { echo "kernel_resources.sh: $cuobjdump is not there; it is in the CUDA Toolkit, and a PyPI package (nvidia-cuda-cuobjdump)" >&2; exit 2; }
shopt -s nullglob
objects=("$build"/cuda*/kernels/*.cu.o "$build"/cuda*/kernels/*/*.cu.o)
[ ${#objects[@]} -gt 0 ] || { echo "kernel_resources.sh: no $build/cuda*/kernels/*.cu.o; run make where nvcc is" >&2; exit 2; }

# instance on architecture: bytes at most; reason
allowed="
attention_forward_mma_kernel<f16, 128, false> on sm_80: 16 bytes; read once per tile of keys
attention_forward_mma_kernel<bf16, 128, false> on sm_80: 16 bytes; read once per tile of keys
attention_forward_mma_kernel<f16, 128, false> on sm_90a: 64 bytes; a Hopper runs it only where its own kernel is turned off
attention_forward_mma_kernel<bf16, 128, false> on sm_90a: 64 bytes; a Hopper runs it only where its own kernel is turned off
attention_forward_mma_kernel<f16, 96, false> on sm_90a: 24 bytes; a Hopper runs it only where its own kernel is turned off
attention_forward_mma_kernel<bf16, 96, false> on sm_90a: 24 bytes; a Hopper runs it only where its own kernel is turned off
attention_backward_kv_kernel<f16, 128> on sm_80: 48 bytes; no tensor cores, and no registers beyond these for its many threads
attention_backward_kv_kernel<bf16, 128> on sm_80: 48 bytes; no tensor cores, and no registers beyond these for its many threads
attention_backward_kv_kernel<float, 128> on sm_80: 32 bytes; no tensor cores, and no registers beyond these for its many threads
attention_backward_q_kernel<f16, 64> on sm_80: 16 bytes; no tensor cores, and no registers beyond these for its many threads
attention_forward_kernel<float, 256> on sm_80: 24 bytes; no tensor cores, and no registers beyond these for its many threads
"

# The resources of every kernel of every object; then, of those with a stack frame, what their code does with it
usage() {
  local object
  for object in "${objects[@]}"; do
    echo "object $object"
    "$cuobjdump" --dump-resource-usage "$object" 2> /dev/null
  done
}
stack_use() {  # instance by instance: stores and loads of local memory, and how many of them at an address from a register
  local object arch name
  while read -r object arch name; do
    echo "use $arch $("$cuobjdump" -sass -arch "$arch" -fun "$name" "$object" 2> /dev/null | awk '
      /\/\*[0-9a-f]+\*\// { code++ }
      /[ \t](STL|LDL)/ { if (/[ \t]STL/) s++; else l++; if (!/\[R1(\+0x[0-9a-f]+)?\]/) moving++ }
      END { print code ? s + 0 : "-", l + 0, moving + 0 }') $name"
  done
}
# shellcheck disable=SC2016  # awk's $
with_stack='
  /^object / { object = $2 }
  /^arch = / { arch = $3 }
  / Function / { name = $2; sub(/:$/, "", name) }
  / REG:/ { if (match($0, /STACK:[0-9]+/) && substr($0, RSTART + 6, RLENGTH - 6) + 0 > 0) print object, arch, name }'
resources=$(usage)

{ awk "$with_stack" <<< "$resources" | sort -u | stack_use; echo "$resources"; } | c++filt | awk -v all=$all -v allowed="${allowed//$'\n'/@}" '
  function instance(text) {
    gsub(/\(anonymous namespace\)::/, "", text); gsub(/rz::/, "", text); sub(/^void /, "", text)
    n = index(text, ">("); if (n) text = substr(text, 1, n); else sub(/\(.*/, "", text)
    gsub(/__nv_bfloat16/, "bf16", text); gsub(/__half/, "f16", text); gsub(/\(bool\)/, "", text); gsub(/\(int\)/, "", text)
    return text
  }
  /^use / {
    head = $1 " " $2 " " $3 " " $4 " " $5 " "
    use[instance(substr($0, length(head) + 1)) " on " $2] = $3 == "-" ? "what for is not known: no nvdisasm" : \
      $5 ? $3 " stores and " $4 " loads, " $5 " at an address from a register: an array" : \
      "registers that spilled: " $3 " stores, " $4 " loads, all at fixed places"
  }
  /^arch = /   { arch = $3 }
  /^object /   { object = $2; sub(/.*\//, "", object); sub(/\.cu\.o$/, "", object) }
  / Function / { name = $0; sub(/^ *Function /, "", name); sub(/:$/, "", name); name = instance(name) }
  / REG:/ {
    for (i = 1; i <= NF; i++) { split($i, kv, ":"); v[kv[1]] = kv[2] }
    if (v["REG"] + 0 <= 8 && v["SHARED"] + 0 == 0 && object ~ /^attention/) next   # empty on this architecture
    base = name; if (!all) sub(/<.*/, "", base)
    key = object "\t" base "\t" arch
    if (!(key in regs)) order[++count] = key
    instances[key]++
    if (v["REG"] + 0 > regs[key] + 0) regs[key] = v["REG"] + 0
    if (v["SHARED"] + 0 > shared[key] + 0) shared[key] = v["SHARED"] + 0
    stack_bytes = v["STACK"] + v["LOCAL"]
    if (stack_bytes > stack[key] + 0) stack[key] = stack_bytes
    if (stack_bytes > 0) framed[++frames] = name " on " arch "\t" stack_bytes "\t" v["REG"]
  }
  END {
    printf "| kernel | file | architecture | instances | registers | static shared memory | stack, local |\n|---|---|---|---|---|---|---|\n"
    for (i = 1; i <= count; i++) {
      split(order[i], part, "\t")
      printf "| %s | %s | %s | %d | %d | %d | %d |\n", part[2], part[1], part[3], instances[order[i]], regs[order[i]], shared[order[i]], stack[order[i]]
      total += instances[order[i]]
    }
    if (total == 0) { print "kernel_resources.sh: no kernel was found"; exit 2 }
    for (i = 1; i <= frames; i++) {
      split(framed[i], part, "\t")
      line = sprintf("\n%s: %d bytes at %d registers; %s", part[1], part[2], part[3], use[part[1]])
      at = index(allowed, "@" part[1] ":")
      if (at) {
        reason = substr(allowed, at + length(part[1]) + 3); sub(/@.*/, "", reason)
        limit = reason + 0
        sub(/^[0-9]+ bytes; /, "", reason)
        line = line "; " reason
      }
      if (at && part[2] <= limit) known = known line
      else bad = bad line (at ? sprintf("; MORE than the %d bytes that are known", limit) : "")
    }
    if (known != "") printf "\nKnown to have a stack frame:%s\n", known
    if (bad != "") { printf "\nSPILLS, or arrays in local memory:%s\n", bad; exit 1 }
    printf "\n%d kernels, no other with a stack frame\n", total
  }'
