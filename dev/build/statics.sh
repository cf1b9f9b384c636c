#!/usr/bin/env bash
# Several ranks live in one process, so what changes while one runs belongs to its context (kernels/runtime/context.h).
# Looks for variables of the process in a built library: writable, and not of a thread.
#
#   dev/build/statics.sh build/cuda/libringzero.a
set -uo pipefail
[ $# = 1 ] && [ -f "$1" ] || { sed -n '5s/^# *//p' "$0" >&2; exit 2; }

# Those that may be: what a process has one of, and what is set once. Constants have names like kThis.
allowed='
rz::(anonymous namespace)::the_process           process.cpp: the job that exit() would leave
rz::segv_action                                  crash.cpp: a process has one action for SIGSEGV
rz::(anonymous namespace)::asked                 stop.cpp: a signal comes to the process
rz::dump_signals                                 watch.cpp: the same
rz::(anonymous namespace)::interrupted_ms        the same
rz::(anonymous namespace)::mpi_mutex             mpi_transport.cpp: MPI is initialised once in a process
rz::(anonymous namespace)::waiting               the same: which thread asks it
rz::mpi_began                                    the same: whether it has been, for the alarm that watches the start
rz::(anonymous namespace)::element_type(         its types too
rz::(anonymous namespace)::pretended             run_lock.cpp: how the process locks files; only tests change it
rz::AtomicFile::AtomicFile(                      names of temporary files differ within a process
rz::live_streams()::live                         device.cpp: a stream of another rank may read a buffer
rz::idle_events()::idle                          device.cpp: events of the GPUs, which ranks of a process may share
rz::current()::level                             simd_level.cpp: the process has one CPU; only tests change it
rz::kernel<                                      gpu.cuh: constants, in the list of kernels
rz::program_kernels()::all                       load.cpp: made before main()
rz::library_allowed()::allowed                   gemm.cpp: what the environment says; only tests change it
rz::(anonymous namespace)::engine()::e           gemm_dnnl.cpp: made once
rz::(anonymous namespace)::WordsForACrash::      gemm_dnnl.cpp: a process has one action for SIGSEGV
rz::cpu_scratch()::count                         scratch.h: threads of OpenMP belong to the process
rz::gemm_dnnl_version()::name                    made once
rz::(anonymous namespace)::Nvml::here()::nvml    made once
rz::gemm_library_cuda()::name                    made once
rz::lt_function(                                 made once
rz::nccl_function(                               made once
rz::print_escaped()::                            output.cpp: a process has one standard output and one standard error
rz::NcclComm::launch_order                       made once
rz::streams                                      queues.cpp: all of a process share the queues of its GPU
rz::builtins()::all                              made once
rz::presets()::all                               made once
rz::published()::all                             made once
rz::ptx::tensor_map(                             made once
rz::unicode::(anonymous namespace)::composed(    made once
'
mapfile -t variables < <(nm -C -f sysv "$1" 2> /dev/null | awk -F'|' '
  { gsub(/^ +| +$/, "", $1); gsub(/ /, "", $4); gsub(/ /, "", $7) }
  $1 ~ /^rz::/ && $4 == "OBJECT" && $7 ~ /^\.(bss|data)(\.|$)/ && $7 !~ /^\.data\.rel\.ro/ { print $1 }' | sort -u)
[ ${#variables[@]} -gt 0 ] || { echo "$1: no symbols were found; is it the built library?"; exit 1; }
found=0
for v in "${variables[@]}"; do
  known=0
  case ${v##*::} in k[A-Z]*) known=1 ;; esac
  while IFS= read -r row; do
    name=${row%%  *}
    [ -z "$name" ] || case $v in "$name"*) known=1 ;; esac
  done <<< "$allowed"
  [ $known = 1 ] || { echo "a variable of the process: $v"; found=$((found + 1)); }
done
echo "$((${#variables[@]} - found)) passed, $found failed"
[ $found = 0 ]
