#!/usr/bin/env bash
# Faults of GPUs, on the emulator with its model of NCCL: a fault of a device, a call of NCCL that never returns, a job
# that is stopped for longer than the deadline, a disk that is slower than it. And ranks without MPI, each on a GPU of its own.
# Ends with "N passed, N failed, N skipped".
#
#   test/program/test_nccl.sh ./train_llama_simt
set -uo pipefail
simt=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh
if ! command -v mpirun > /dev/null || ! ldd "$simt" | grep libmpi > /dev/null; then skip "no MPI here"; summary; exit; fi
python3 data_prep/prepare.py stdlib --max-bytes 100K --out "$work/data" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
toy=(--data "$work/data" --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 1 --ffn 16 --head-dim 8 --batch 1 --seq-len 16
  --val-every 0 --val-tokens 16 --save-every 0 --warmup 1 --device cuda --dtype fp32)
rc=0
run() { timeout -s KILL 120 "$@" > "$work/log" 2>&1; rc=$?; }
says() { grep -qE -- "$1" "$work/log"; }

# A fault stays on a device: every later call returns it. Early, in the middle of a step, and where a report waits.
for at in 1 60 150; do
  SIMT_FAULT=$at run "$simt" "${toy[@]}" --steps 4 --out "$work/alone$at"
  check "a fault at $at, one process: exit code 70" test $rc = 70
  check "a fault at $at, one process: its cause" says "cudaErrorIllegalAddress"
done
for transport in nccl mpi; do
  SIMT_FAULT=150 SIMT_FAULT_RANK=1 run mpirun -n 2 "$simt" "${toy[@]}" --steps 4 --timeout 20 --zero 3 --transport $transport --out "$work/$transport"
  check "a fault on rank 1 of 2 over $transport: exit code 70" test $rc = 70
  check "a fault on rank 1 of 2 over $transport: its cause" says "rank 1 of 2: .*cudaErrorIllegalAddress"
done
check "no terminate" test -z "$(grep -l 'terminate called' "$work/log")"

SIMT_NCCL_HANG=1 run mpirun -n 2 "$simt" "${toy[@]}" --steps 4 --timeout 3 --transport nccl --out "$work/hang"
check "a call of NCCL that never returns: exit code 71" test $rc = 71
check "a call of NCCL that never returns: named" says "in ncclGroupEnd of group [a-z]+, which has not returned"
check "a call of NCCL that never returns: what to try" says "NCCL_P2P_DISABLE=1"

# Two stages of two data ranks: two lanes, three groups. With one thread block for each of them, which is what the program asks for
# on the emulated GPU's four multiprocessors, those that wait leave room for the others; the bits are those of a run with enough.
staged=("${toy[@]}" --layers 4 --head untied --pp 2 --zero 3 --grad-accum 4 --steps 2 --transport nccl --timeout 20)
run mpirun -n 4 "$simt" "${staged[@]}" --out "$work/enough"
check "two stages of two over NCCL" test $rc = 0
check "  launches in one order, said" says "NCCL [0-9.]+, NCCL_LAUNCH_ORDER_IMPLICIT=1"
check "  a hardware queue for each stream: nothing to say" eval '! says "share a queue"'
NCCL_LAUNCH_ORDER_IMPLICIT=0 CUDA_DEVICE_MAX_CONNECTIONS=1 run mpirun -n 4 "$simt" "${staged[@]}" --out "$work/one_queue"
check "  what the environment sets stands" says "NCCL [0-9.]+, NCCL_LAUNCH_ORDER_IMPLICIT=0"
check "  one hardware queue: said" says "CUDA_DEVICE_MAX_CONNECTIONS is 1, and [0-9]+ streams are used"
SIMT_NCCL_BLOCKS=5 run mpirun -n 4 "$simt" "${staged[@]}" --out "$work/withheld"
check "  the other thread blocks are withheld: it ends" test $rc = 0
check "  the same bits" cmp "$work/enough/final/model.safetensors" "$work/withheld/final/model.safetensors"
SIMT_NCCL_BLOCKS=1 run mpirun -n 4 "$simt" "${staged[@]}" --timeout 3 --out "$work/too_few"
check "  with one for all of them ranks wait for each other: exit code 71" test $rc = 71

# tp and cp have streams of their own: three groups, and a thread block for each, are enough there too.
for axis in tp cp; do
  run mpirun -n 4 "$simt" "${toy[@]}" --$axis 2 --kv-heads 2 --zero 3 --steps 2 --transport nccl --timeout 20 --out "$work/$axis"
  check "--$axis 2 over NCCL" test $rc = 0
  SIMT_NCCL_BLOCKS=3 run mpirun -n 4 "$simt" "${toy[@]}" --$axis 2 --kv-heads 2 --zero 3 --steps 2 --transport nccl --timeout 20 \
    --out "$work/${axis}_withheld"
  check "  the other thread blocks are withheld: the same bits" cmp "$work/$axis/final/model.safetensors" "$work/${axis}_withheld/final/model.safetensors"
done

# NCCL's memory is taken when the groups are made, and the plan counts it: the model of NCCL counts first messages and
# the memory that they take, and a pair that met in a step alone would add to it.
sed 's/^multiprocessors = .*/multiprocessors = 4/' llama/configs/machines/h100-80g.toml > "$work/emulated.toml"
connected() {  # connected RANKS FLAGS...
  local ranks=$1
  shift
  : > "$work/calls"
  SIMT_NCCL_CALLS=$work/calls run mpirun -n "$ranks" "$simt" "${staged[@]}" --pp 1 --kv-heads 2 "$@" --out "$work/connected" --overwrite
  test $rc = 0 || return 1
  run "$simt" plan --gpus "$ranks" --gpu "$work/emulated.toml" "${staged[@]}" --pp 1 --kv-heads 2 "$@" --json "$work/plan.json"
  python3 - "$work/plan.json" "$work/calls" "$ranks" >> "$work/log" 2>&1 << 'END'
import json, sys
planned = json.load(open(sys.argv[1]))["nccl"]["bytes"] * int(sys.argv[3])
taken = sum(int(line.split()[1]) for line in open(sys.argv[2]) if line.startswith("connected-mib ")) << 20
assert planned == taken > 0, (planned, taken)
END
}
check "three of one node are connected before the first step, as planned" connected 3
check "  a ring" connected 3 --collectives ring
check "  direct" connected 3 --collectives direct
check "  two nodes of two: row and column" connected 4 --ranks-per-node 2
check "  beside any two, for Muon's pieces" connected 4 --ranks-per-node 2 --optimizer muon
check "  symmetric: one channel for handshakes" connected 3 --collectives symmetric
check "  tp 2 of four" connected 4 --tp 2
check "  cp 2 of four" connected 4 --cp 2
check "  two stages of two" connected 4 --pp 2
check "  three stages" connected 3 --pp 3 --pp-schedule 1f1b
check "  two stages, dualpipe: both hold both units" connected 2 --pp 2 --pp-schedule dualpipe
check "  Muon under tp: pieces of matrices between any two" connected 3 --tp 3 --dim 24 --heads 3 --kv-heads 3 --ffn 24 --collectives tp=ring --optimizer muon
SIMT_NCCL_CALLS=$work/auto_calls SIMT_MEMORY=$((960 << 20)) run mpirun -n 2 "$simt" "${toy[@]}" --batch auto --steps 1 --transport nccl --out "$work/auto"
check "--batch auto measures beside NCCL's 384 MiB, and runs" eval 'test $rc = 0 && says "planned of 57[0-9][.0-9]* MiB free"'
once() { awk '$1 == "connected-mib" { n += $2 } END { exit n != 2 * 384 }' "$work/auto_calls"; }
check "  the run uses the groups that were measured" once

# --comm-sms: of the emulated GPU's four multiprocessors attention and RMSNorm take those that are left, and NCCL asks for no more
# than the others. Grids are counted, all launches of all ranks but for one of a block each: attention's, compared with the CPU's at the start.
wide=(--data "$work/data" --preset bytes --dim 16 --layers 1 --heads 2 --kv-heads 2 --ffn 16 --head-dim 64 --batch 4 --seq-len 64
  --dtype bf16 --val-every 0 --val-tokens 256 --save-every 0 --warmup 1 --device cuda --steps 1)
grid() { awk -F '\t' -v name="$1" -v start="${2:-0}" '$1 == "kernel" && index($3, name) { n += $4 - start; blocks += $5 - start } END { print n ? blocks / n : "none" }' "$work/grids"; }
SIMT_COVERAGE=$work/grids SIMT_NCCL_BLOCKS=2 run mpirun -n 2 "$simt" "${wide[@]}" --zero 3 --transport nccl --comm-sms 2 --out "$work/beside"
check "--comm-sms 2: NCCL stays within two thread blocks" test $rc = 0
for kernel in attention_forward_wgmma_kernel attention_backward_kv_wgmma_kernel attention_backward_q_wgmma_kernel; do
  check "  $kernel takes two of four multiprocessors" test "$(grid $kernel 1)" = 2
done
check "  rmsnorm_backward_kernel too, four blocks on each" test "$(grid rmsnorm_backward_kernel)" = 8
SIMT_NCCL_BLOCKS=2 run mpirun -n 2 "$simt" "${toy[@]}" --steps 2 --zero 3 --transport nccl --out "$work/wants_more"
check "  without it asks for more" says "an operation of 32 thread blocks, there are 2 for NCCL"
run mpirun -n 4 "$simt" "${staged[@]}" --comm-sms 3 --out "$work/refused"
check "  refused where each operation could not have one" says "nearest: --comm-sms 5"
run "$simt" "${toy[@]}" --steps 2 --comm-sms 4 --out "$work/refused"
check "  refused where nothing would be left for compute" says "the GPU has 4 multiprocessors"
run "$simt" "${toy[@]}" --steps 2 --device cpu --comm-sms 2 --out "$work/refused"
check "  refused on a CPU" says "this run is on the CPU"

# Collectives in each other's memory have the bits of messages in rank order: windows of NCCL, pinned memory of the host where GPUs do
# not reach each other, and over MPI. Three ranks: with two every order has the same bits. What the run says of it.
three=("${toy[@]}" --steps 3 --zero 2 --grad-accum 2 --timeout 20)
run mpirun -n 3 "$simt" "${three[@]}" --collectives direct --out "$work/direct"
symmetric() {  # symmetric NAME LINE VARIABLE=VALUE FLAGS...
  local name=$1 line=$2 variable=$3
  shift 3
  run env "$variable" mpirun -n 3 "$simt" "${three[@]}" --collectives symmetric "$@" --out "$work/$name"
  check "symmetric, $name: the sharing line" says "symmetric collectives over $line"
  check "symmetric, $name: the bits of direct" cmp "$work/direct/final/model.safetensors" "$work/$name/final/model.safetensors"
}
symmetric windows "nccl, by memory that all GPUs map" SIMT_P2P=1
symmetric no_p2p "nccl, through pinned memory of the host: GPU [0-9] does not reach GPUs" SIMT_P2P=0
symmetric mpi "mpi, through pinned memory of the host: messages go over MPI" SIMT_P2P=1 --transport mpi
check "no memory of the host is left behind" no_memory_left
SIMT_NCCL_CALLS=$work/registered run mpirun -n 2 "$simt" "${toy[@]}" --dim 128 --heads 8 --kv-heads 4 --head-dim 16 --ffn 254 --steps 1 --zero 1 \
  --collectives library --out "$work/library"  # a block cut into equal slices
check "library: the order of sums is NCCL's, said" says "library collectives over nccl, summed in NCCL's order, buffers registered with it"
check "  gathers take place in registered buffers" grep -qE "^ncclAllGather-registered [1-9]" "$work/registered"
check "  and reductions" grep -qE "^ncclReduceScatter-registered [1-9]" "$work/registered"
levels() {  # levels NAME FLAGS...
  local name=$1
  shift
  SIMT_NCCL_CALLS=$work/$name.calls run mpirun -n 4 "$simt" "${three[@]}" --ranks-per-node 2 --out "$work/$name" "$@"
}
levels mpi_levels --transport mpi
SIMT_NCCL_BLOCKS=2 levels hier --check-wire 1
check "hier, two nodes of two: a thread block each for row and column is enough" test $rc = 0
check "  the bits of one communicator" cmp "$work/mpi_levels/final/model.safetensors" "$work/hier/final/model.safetensors"
check "  the columns alone ask for four channels over the network" test "$(awk '/^nChannelsPerNetPeer/' "$work/hier.calls" | sort | uniq -c | tr -s ' ')" = " 4 nChannelsPerNetPeer-4 1"
levels hier-symmetric --collectives hier-symmetric
check "hier-symmetric, two nodes of two: windows inside a node" says "hier-symmetric collectives over nccl, by memory that all GPUs map"
check "hier-symmetric, two nodes of two: the bits of hier" cmp "$work/hier/final/model.safetensors" "$work/hier-symmetric/final/model.safetensors"

# On one node of GPUs the default chooses by bytes; here that is direct. A checkpoint names the choice: a run of the former default
# keeps its ring, also where nothing is named.
run mpirun -n 3 "$simt" "${three[@]}" --save-every 2 --keep 0 --out "$work/default"
check "the default on one node of GPUs" says "hier collectives over nccl"
check "  few bytes: the bits of direct" cmp "$work/direct/final/model.safetensors" "$work/default/final/model.safetensors"
run mpirun -n 3 "$simt" "${three[@]}" --save-every 2 --keep 0 --collectives ring --out "$work/ring"
check "  not those of the ring" eval '! cmp -s "$work/ring/final/model.safetensors" "$work/default/final/model.safetensors"'
for kept in ring default unnamed; do
  from=$kept; [ $kept = unnamed ] && from=ring
  mkdir -p "$work/resumed_$kept" && cp -r "$work/$from/checkpoints" "$work/$from/metrics.jsonl" "$work/resumed_$kept"
  rm -r "$work/resumed_$kept/checkpoints/step_000000003"
  [ $kept = unnamed ] && sed -i '/"checksum"/d; s/"version": 2/"version": 1/; s/"collectives": *"ring",* *//' "$work/resumed_$kept"/checkpoints/*/manifest.json
  run mpirun -n 3 "$simt" "${three[@]}" --out "$work/resumed_$kept" --resume auto
  check "  a resume of $kept" cmp "$work/$from/final/model.safetensors" "$work/resumed_$kept/final/model.safetensors"
done
check "  nothing named: said" says "--collectives ring stays, the former default"

# A bit that changes on the way: the sums are a kernel's, before and after NCCL.
run mpirun -n 2 "$simt" "${toy[@]}" --steps 2 --zero 2 --transport nccl --check-wire 1 --out "$work/wire"
check "--check-wire over NCCL: nothing is found where nothing happens" test $rc = 0
FAULT=wire:1:7:flip run mpirun -n 2 "$simt" "${toy[@]}" --steps 4 --zero 2 --transport nccl --check-wire 1 --out "$work/wire_flip"
check "--check-wire over NCCL: a flipped bit: exit code 73" test $rc = 73
check "--check-wire over NCCL: ranks and operation are named" says "from rank 0 to rank 1 in [a-z_]+ #[0-9]+ of group "

# Ranks that the program starts itself, each on a GPU of its own: the bits of mpirun's. NCCL's identifier goes over TCP.
lab=("${toy[@]}" --layers 4 --head untied --grad-accum 4 --steps 2 --timeout 20)
for layout in "2" "4 --tp 2"; do
  read -r gpus axes <<< "$layout"
  # shellcheck disable=SC2086
  run mpirun -n "$gpus" "$simt" "${lab[@]}" --pp 2 $axes --transport nccl --out "$work/mpi$gpus"
  # shellcheck disable=SC2086
  SIMT_DEVICES=$gpus run "$simt" "${lab[@]}" --pp-threads 2 $axes --out "$work/own$gpus"
  check "two stages without MPI on $gpus GPUs" test $rc = 0
  check "  the same bits" cmp "$work/mpi$gpus/final/model.safetensors" "$work/own$gpus/final/model.safetensors"
done
run mpirun -n 2 "$simt" "${lab[@]}" --zero 2 --transport mpi --out "$work/staged_mpi"
run "$simt" "${lab[@]}" --zero 2 --transport tcp --ranks 2 --out "$work/staged_tcp"
check "  two ranks that share a GPU, through memory of the host" test $rc = 0
check "  the same bits" cmp "$work/staged_mpi/final/model.safetensors" "$work/staged_tcp/final/model.safetensors"
SIMT_DEVICES=2 run "$simt" "${lab[@]}" --ranks 3 --out "$work/three"
check "  refused where they are more than the GPUs" says "3 ranks on host .*, but 2 GPUs are visible"
check "  the nearest" says "start 2 ranks per host, or share the GPU on purpose \(slow\) with .*transport tcp"
SIMT_DEVICES=2 FAULT=step:1:2:error run "$simt" "${lab[@]}" --ranks 2 --out "$work/broken"
check "  an error of one ends all: exit code 70" test $rc = 70
SIMT_DEVICES=2 SIMT_FAULT=150 SIMT_FAULT_RANK=1 run "$simt" "${lab[@]}" --ranks 2 --out "$work/faulted"
check "  a fault of a device: exit code 70" test $rc = 70
SIMT_DEVICES=2 SIMT_NCCL_HANG=1 run "$simt" "${lab[@]}" --timeout 3 --ranks 2 --out "$work/hung"
check "  a call of NCCL that never returns: exit code 71" test $rc = 71

# A rank dies, or stops: the others abort their communicators and keep their process. The bits of the run that nothing happens to.
spare=("${toy[@]}" --zero 3 --steps 16 --timeout 8 --ranks 4 --max-restarts 5 --snapshot-every 3)
survive() {  # survive NAME SIGNAL RANK FLAGS...
  local name=$1 signal=$2 victim=$3 job
  shift 3
  SIMT_DEVICES=4 run "$simt" "${spare[@]}" "$@" --out "$work/undisturbed-$name"
  : > "$work/log"
  FAULT="step:*:*:sleep=0.1" SIMT_DEVICES=4 timeout -s KILL 120 "$simt" "${spare[@]}" "$@" --out "$work/$name" > "$work/log" 2>&1 &
  for _ in $(seq 600); do says '^step +8/' && break; sleep 0.1; done
  job=$(pgrep -P $!)
  before=$(ranks_of "$job")
  kill -"$signal" "$(sed -n "s/^$victim //p" <<< "$before")"
  for _ in $(seq 600); do says '^resumed' && break; sleep 0.1; done
  after=$(ranks_of "$job")
  rc=0
  wait $! || rc=$?
  check "$name: the run finishes" test $rc = 0
  check "  from a snapshot" says '^resumed  the snapshot '
  [ "$name" = windows ] ||  # queued copies find none any more: a fault, which a process keeps
    check "  the others keep their process" test "$(comm -12 <(echo "$before") <(echo "$after") | wc -l) $(wc -l <<< "$after")" = "3 4"
  check "  the undisturbed run's weights" cmp "$work/undisturbed-$name/final/model.safetensors" "$work/$name/final/model.safetensors"
  check "  and rows" diff <(python3 test/faults/run_rows.py "$work/undisturbed-$name") <(python3 test/faults/run_rows.py "$work/$name")
}
survive kill-0 KILL 0 --cuda-graphs on
survive kill-2 KILL 2 --collectives library
survive stop-3 STOP 3
survive windows KILL 1 --collectives symmetric
check "  all at once" eval '! says "restart 2 of"'

# The whole job is stopped for longer than the deadline, and continues.
paused() {
  : > "$work/log"  # an earlier run's steps are not this one's
  FAULT="step:*:*:sleep=0.2" timeout -s KILL 120 mpirun -n 2 "$simt" "${toy[@]}" --steps 30 --timeout 6 --transport nccl --out "$work/paused" > "$work/log" 2>&1 &
  local job=$! i
  for ((i = 0; i < 300; ++i)); do grep -q '^step ' "$work/log" && break; sleep 0.1; done
  pkill -STOP -f "out $work/paused"
  sleep 9
  pkill -CONT -f "out $work/paused"
  wait $job
  rc=$?
  [ $rc = 0 ] && grep -q "step 30/30" "$work/log"
}
check "stopped for longer than the deadline, over NCCL: it continues" paused

# Rank 0 takes longer with its files than a rank may wait for another in training.
cpu=("${toy[@]/cuda/cpu}" --save-every 2 --no-background-save --steps 4)
FAULT=checkpoint.made:0:1:sleep=5 run mpirun -n 2 "$simt" "${cpu[@]}" --timeout 2 --out "$work/slow_disk"
check "a disk slower than --timeout" test $rc = 0
FAULT=checkpoint.made:0:1:sleep=60 run mpirun -n 2 "$simt" "${cpu[@]}" --timeout 2 --disk-timeout 4 --out "$work/stuck_disk"
check "a disk slower than --disk-timeout" test $rc = 71
summary
