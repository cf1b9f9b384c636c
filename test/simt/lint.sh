#!/bin/bash
# The rules that let a C++ compiler run the kernels (kernels/cuda/gpu.cuh says why). Run from the root of the repository.
set -u
cd "$(dirname "$0")/../.." || exit
fail=0

# rule TEXT PATTERN FILES...: no line of the files may match, comments aside
rule() {
    local text=$1 pattern=$2 hits
    shift 2
    [[ $# -gt 0 ]] || return 0
    hits=$(awk -v pattern="$pattern" '{ line = $0; sub(/\/\/.*/, "", line) } line ~ pattern { print FILENAME ":" FNR ": " $0 }' "$@")
    [[ -z $hits ]] && return 0
    printf 'lint: %s\n%s\n' "$text" "$(sed 's/^/    /' <<< "$hits")"
    fail=1
}
list() { find "$@" -not -path '*/build/*' | sort; }

mapfile -t kernels < <(list kernels comm -name '*.cu' -o -name '*.cuh' -path 'kernels/*')
mapfile -t all < <(list kernels comm zero llama dev test train_llama.cu \( -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h' \) 2>/dev/null)
not() { local drop=" $1 " f; shift; for f in "$@"; do [[ $drop == *" $f "* ]] || echo "$f"; done; }
mapfile -t no_ptx < <(not "kernels/cuda/ptx.cuh kernels/runtime/call_stack.cpp" "${all[@]}")
mapfile -t no_gpu < <(not "kernels/cuda/gpu.cuh" "${all[@]}")
mapfile -t plain_kernels < <(not "kernels/cuda/gpu.cuh kernels/cuda/ptx.cuh" "${kernels[@]}")

rule "inline PTX belongs in kernels/cuda/ptx.cuh, with a model beside it" '(^|[^A-Za-z0-9_])asm[ \t]*(volatile)?[ \t]*\(' "${no_ptx[@]}"
rule "launch with launch(kernel, LaunchConfig(...), args...)" '<<<' "${all[@]}"
rule "declare dynamic shared memory with GPU_DYN_SMEM(name)" 'extern[ \t]+__shared__' "${no_gpu[@]}"
rule "cooperative groups do not compile on the host" 'cooperative_groups' "${all[@]}"
rule "kernels include kernels/cuda/gpu.cuh (or ptx.cuh) in place of CUDA's headers" \
     '#[ \t]*include[ \t]*<(cuda|cub/|thrust/|mma\.h|device_|vector_types|sm_)' "${plain_kernels[@]}"
rule "a __shared__ variable and its name stand on one line (the ASan build looks for them)" \
     '__shared__[^;]*$' "${plain_kernels[@]}"
rule "no atomics on floats: results would depend on their order" 'atomic[A-Z][a-zA-Z]*\([^)]*(float|double|half|bf)' "${plain_kernels[@]}"
rule "no #ifdef on the emulator in kernels" 'SIMT_EMU' "${plain_kernels[@]}"

# fence_proxy_async: what the tests of wgmma need, whose operands threads write
while read -r wrapper; do
    [[ $wrapper == fence_proxy_async ]] || grep -q "ptx::$wrapper\b" "${plain_kernels[@]}" && continue
    printf 'lint: no kernel uses ptx::%s\n' "$wrapper"
    fail=1
done < <(sed 's|//.*||' kernels/cuda/ptx.cuh | grep -oP '^PTX_FN [^(]*?\b\K(?!smem_u32|copy_now|mma_m16n8k8)\w+(?=\()' | sort -u)

[[ $fail == 0 ]] && echo "lint: ${#kernels[@]} kernel files keep the rules"
exit $fail
