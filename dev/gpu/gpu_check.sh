#!/usr/bin/env bash
# Checks everything that needs a GPU and measures it, in one command, and leaves one report:
#
#   dev/gpu/gpu_check.sh [--small] [--stages a,b,c] [--time-limit SECONDS] [--out DIR] [--programs DIR] [--dry-run]
#
#   --stages      which; they run in this order; default: all but profile
#                   environment  GPU, driver, toolkit, clocks, power limit, commit
#                   build        what the other stages asked for need, for the GPU at hand
#                   tests        the kernel tests on the device, each suite in a process of its own
#                   program      short training runs on the GPU against the same on the CPU; with CUDA graphs, recompute, resumed: to the bit
#                   goldens      every PTX wrapper on the device; DIR/goldens.tgz is what test/simt/golden wants
#                   sanitizer    compute-sanitizer's memcheck, racecheck and synccheck over some of the kernel tests
#                   ranks        several ranks on this GPU, over each transport that permits it; never a bandwidth
#                   memory       ZeRO's bytes per parameter, stage by stage
#                   resources    registers, shared memory and stack of every kernel (no GPU needed)
#                   ceilings     device copy, and cuBLASLt per product of the models: its first choice, and tuned
#                   kernels      every kernel: time, rate, share of the ceiling
#                   training     a step of each model: tokens/s, MFU, peak memory, time by op
#                   curves       200 steps of ringzero and PyTorch from the same weights and data
#                   pytorch      the same models and batches in PyTorch, compiled
#                   profile      hardware counters of every kernel, by ncu: DRAM, L2, tensor pipe, issue slots, occupancy, registers
#   --small       for 15 GiB of GPU memory and two cores, such as a notebook's T4 (dev/gpu/notebook.ipynb): one shape of each op, small
#                 models, and stages that need neither several ranks nor PyTorch; the time limit is 7200 then
#   --time-limit  of the whole; default 570. Stages that find no time left are listed as not run
#   --out         default dev/results/<gpu>-<date>. report.json and report.md are complete after every stage, whatever happens
#                 then; a later call with other --stages, on the same commit and GPU, adds to them. log.txt has all output
#   --programs    takes the programs from DIR instead of building them
#   --dry-run     the same logic without a GPU: the CPU and the smallest sizes where that is possible, and else "not measured"
#
# All of it takes more than ten minutes. Where a command may take no more, two of them, and a third for who tunes kernels:
#   dev/gpu/gpu_check.sh --time-limit 570 --stages environment,build,tests,program,goldens,sanitizer,ranks,memory,resources
#   dev/gpu/gpu_check.sh --time-limit 570 --stages environment,build,ceilings,kernels,training,curves,pytorch
#   dev/gpu/gpu_check.sh --time-limit 570 --stages environment,build,kernels,profile
# A GPU with 78 GiB is enough, and 15 with --small. Where bf16 has no products (before compute capability 8.0), fp16 takes its place. The sources need no git there (COMMIT=name then names them in the report). At most five files are left in
# DIR, a few hundred KiB.
#
# A crash, a CUDA fault or a hang costs the test or program in which it happens, and no other: see the table of failures on top of the
# report. After a fault a program is run once more with CUDA_LAUNCH_BLOCKING=1, so that the launch is named.
#
# Exit code: 0 if every stage asked for went well or could not be had here (unavailable; its note says what it wants), 1 if one failed, ran
# out of time or was not reached, 2 for a request that makes no sense, 130 and 143 when interrupted.
#
# Needs no network, root or MPI. Wants make, nvcc, g++, python3 and the headers of CLI11 and nlohmann-json; GoogleTest for tests and sanitizer,
# MPI for ranks and memory, PyTorch (python3, or $PYTHON) for pytorch and curves, compute-sanitizer, cuobjdump, ncu. Headers and
# libraries that are not installed can be brought along in any folder:
#   here:   apt-get download libcli11-dev nlohmann-json3-dev libgtest-dev && for f in *.deb; do dpkg -x $f bring; done
#   there:  export CPATH=$PWD/bring/usr/include LIBRARY_PATH=$PWD/bring/usr/lib/x86_64-linux-gnu   (then dev/gpu/gpu_check.sh)
# The same way libdnnl-dev with libdnnl2, and mpich, libmpich-dev with libmpich12 (then also PATH and LD_LIBRARY_PATH).
# shellcheck disable=SC2317  # stages are called by name
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
all_stages="environment build tests program goldens sanitizer ranks memory resources ceilings kernels training curves pytorch"
declare -A cap=([environment]=60 [build]=300 [tests]=150 [program]=100 [goldens]=60 [sanitizer]=200 [ranks]=150 [memory]=100 [resources]=60
                [ceilings]=90 [kernels]=150 [training]=180 [curves]=90 [pytorch]=400 [profile]=250)
small_stages="environment build tests program resources ceilings kernels training"
declare -A small_cap=([environment]=60 [build]=4800 [tests]=1200 [program]=600 [resources]=120 [ceilings]=300 [kernels]=600 [training]=600)
export OMP_WAIT_POLICY=passive LC_ALL=C

# ---- what stages use: each runs in a process of its own with these in its environment ----------------------------------------

json() {  # a JSON string
  local s
  s=$(tr '\t' ' ' <<< "${1:0:20000}" | tr -cd '\n\040-\176')
  s=${s//\\/\\\\} s=${s//\"/\\\"}
  printf '"%s"' "${s//$'\n'/\\n}"
}
row() { printf '%s\n' "$1" >> "$ROWS"; }
fact() { row "{\"kind\": \"fact\", \"name\": $(json "$1"), \"value\": $(json "$2")}"; }
not_measured() { row "{\"kind\": \"not measured\", \"what\": $(json "$1"), \"why\": $(json "$2")}"; }
note() { printf '%s' "$1" > "$NOTE"; }
unavailable() { note "$1"; exit 3; }
first_line() { timeout 20 "$@" 2>/dev/null | head -n 1; }
program() {  # program NAME: its path
  [ -x "$PROGRAMS/$1" ] || unavailable "$1 is not there: ${2:-run the stage build first}"
  printf '%s' "$PROGRAMS/$1"
}
on_gpu() {  # on_gpu WHAT: whether there is one; else it is said that WHAT was not measured
  [ "$DRY" = 0 ] && return 0
  not_measured "$1" "dry run: no GPU is used"
  return 1
}
half() { if [ "${CAPABILITY:-90}" -ge 80 ]; then echo bf16; else echo fp16; fi; }
pick() { if [ "$DRY" = 0 ]; then printf '%s' "$1"; else printf '%s' "$2"; fi; }  # pick ON_A_GPU IN_A_DRY_RUN
python() { printf '%s' "${PYTHON:-python3}"; }
failures=0
failed() {  # failed NAME HOW [MESSAGE]: a row of its own; the stage's note has the first
  failures=$((failures + 1))
  [ $failures -gt 1 ] || first_failure="$1: $2"
  note "$([ $failures = 1 ] || echo "$failures failures, the first: ")$first_failure"
  row "{\"kind\": \"failure\", \"name\": $(json "$1"), \"how\": $(json "$2"), \"message\": $(json "${3:-}")}"
}
how_it_ended() {  # how_it_ended EXIT_CODE LIMIT
  case $1 in
    124 | 137) echo "killed after $2 s: it hung, or was too slow" ;;
    129 | 1[3-5]?) echo "crashed: signal $(($1 - 128))" ;;
    *) echo "exit code $1" ;;
  esac
}
last_words() { grep -a -v '^ *$' "$1" | tail -n "${2:-2}" | cut -c1-600; }  # last_words FILE [LINES]
limited() {  # limited SECONDS COMMAND...: a stage that is told to end passes it on (see the end of this half)
  local seconds=$1 rc=0
  shift
  timeout -k 3 "$seconds" "$@" < /dev/null &
  running=$!
  wait $running || rc=$?
  running=''
  return $rc
}
left_s() { echo $((STAGE_SECONDS - SECONDS - 1)); }
fault='cudaError|CUBLAS_STATUS|CUDA error'  # in what a program says: CUDA may be of no use to it any more
try_s=120
try() {  # try WHAT COMMAND...: at most try_s; continues after a failure, and remembers it
  local what=$1 rc=0 again='' limit
  shift
  limit=$(left_s)
  [ "$limit" -ge 2 ] || { failed "$what" "not run, nor what comes after it: no time left"; exit 124; }
  [ "$limit" -lt $try_s ] || limit=$try_s
  echo "\$ $*"
  limited "$limit" "$@" > "$WORK/out" 2>&1 || rc=$?
  tail -n 400 "$WORK/out"
  [ $rc = 0 ] && return 0
  # A fault in a kernel is reported by some later call: once more, with each launch waited for.
  if [ "$DRY" = 0 ] && [ $rc != 124 ] && [ "$(left_s)" -gt 40 ] && grep -a -q -E "$fault" "$WORK/out"; then
    CUDA_LAUNCH_BLOCKING=1 limited 30 "$@" > "$WORK/again" 2>&1 || again=$'\nwith CUDA_LAUNCH_BLOCKING=1: '$(last_words "$WORK/again" 1)
  fi
  failed "$what" "$(how_it_ended $rc "$limit")" "$(grep -a '^FAILED' "$WORK/out" | head -n 8; last_words "$WORK/out")$again"
  [ "$(left_s)" -ge 2 ] || exit 124
  return $rc
}

stage_environment() {
  local query=name,compute_cap,driver_version,memory.total,power.limit,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,ecc.mode.current,mig.mode.current,temperature.gpu
  if on_gpu "the GPU's name, driver, clocks and power limit"; then
    local values
    values=$(first_line nvidia-smi --query-gpu=$query --format=csv,noheader) || true
    [ -n "$values" ] || { note "nvidia-smi does not answer"; return 1; }
    local i=1 name
    for name in ${query//,/ }; do
      fact "$name" "$(cut -d, -f$i <<< "$values" | sed 's/^ *//')"
      i=$((i + 1))
    done
    fact "GPUs in use by others" "$(timeout 20 nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader | grep -c . || true)"
  fi
  fact commit "$COMMIT"
  fact nvcc "$("${NVCC:-nvcc}" --version 2>/dev/null | sed -n 's/.*release //p')"
  fact compiler "$(first_line "${CXX:-g++}" --version)"
  fact CPU "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
  fact memory "$(sed -n 's/^MemTotal: *//p' /proc/meminfo)"
  fact kernel "$(uname -r)"
  fact MPI "$(timeout 20 mpirun --version 2> /dev/null | sed -n 's/^ *Version: */MPICH /p; /Open MPI/p' | grep -m 1 . || echo no)"
  fact PyTorch "$(timeout 60 "$(python)" -c 'import torch; print(torch.__version__)' 2>/dev/null || echo no)"
  fact compute-sanitizer "$(timeout 20 compute-sanitizer --version 2>/dev/null | sed -n 's/^Version //p' | grep . || echo no)"
}

make_variable() { make -s BUILD="$BUILD" SM="$SM" --eval "print-it: ; @echo \$($1)" print-it; }
ops="rmsnorm swiglu rope bias qk_norm embedding cross_entropy adamw offload global_norm elementwise quantise fp8_gemm attention"  # with a dev/bench_ each

stage_build() {
  [ "$GIVEN_PROGRAMS" = 0 ] || unavailable "the programs in $PROGRAMS are used as they are"
  command -v make > /dev/null || unavailable "make is not installed"
  make -s BUILD="$BUILD" reconfigure || return 1
  if [ "$DRY" = 0 ] && [ -z "$(make_variable HAVE_CUDA)" ]; then note "nvcc or cuBLASLt was not found"; return 1; fi
  local obj targets='' first='' stage p
  obj=$(make_variable OBJ)
  for stage in $CHOSEN; do  # nothing that no stage asked for
    case $stage in
      tests | sanitizer) [ -z "$(make_variable HAVE_GTEST)" ] || targets+=" $obj/kernel_tests" ;;
      goldens) [ -z "$(make_variable HAVE_CUDA)" ] || [ "$DRY" = 1 ] || targets+=" $BUILD/simt/fidelity_gpu" ;;
      ranks)
        targets+=" $obj/dev/sanity"
        [ -z "$(make_variable HAVE_GTEST)" ] || [ -z "$(make_variable HAVE_MPI)" ] || targets+=" $obj/mpi_tests" ;;
      memory | program) targets+=" $obj/train_llama" ;;
      ceilings) targets+=" $obj/dev/bench_gemm" ;;
      training) targets+=" $obj/dev/bench_train $obj/dev/predict_step" ;;
      curves) targets+=" $obj/dev/bench_train" ;;
      kernels | profile) for op in $ops; do targets+=" $obj/dev/bench_$op"; done ;;
      resources) targets+=" $obj/libringzero.a" ;;
    esac
  done
  [ -n "$targets" ] || targets="$obj/train_llama"
  [ -n "$(make_variable HAVE_GTEST)" ] || not_measured "tests, sanitizer" "GoogleTest is not installed"
  # The kernels take longest to compile: they begin first.
  [ -z "$(make_variable HAVE_CUDA)" ] || for p in kernels/*.cu kernels/*/*.cu; do first+=" $obj/$p.o"; done
  # shellcheck disable=SC2086,SC2046
  try_s=$((SMALL ? 4700 : 400)) try make make -s -j"$(nproc)" BUILD="$BUILD" SM="$SM" COMMIT="${COMMIT%% *}" \
    $first $(printf '%s\n' $targets | sort -u) || return 1
  rm -rf "$PROGRAMS" && mkdir -p "$PROGRAMS"
  obj=$(realpath "$obj")
  for p in "$obj"/dev/* "$obj/train_llama" "$obj/kernel_tests" "$obj/mpi_tests" "$(realpath "$BUILD")/simt/fidelity_gpu"; do
    [ -f "$p" ] && [ -x "$p" ] && ln -sf "$p" "$PROGRAMS/"
  done
  fact "architectures" "$SM"
  fact "built with" "CUDA $(make_variable HAVE_CUDA), NCCL $(make_variable HAVE_NCCL), MPI $(make_variable HAVE_MPI), oneDNN $(make_variable HAVE_DNNL) (1: yes)"
}

# One shape of each op; offload has none where kernels are profiled, since copies are no kernels.
declare -A one_shape=([adamw]=124000000 [attention]="4x4096x16x16x128 8x2048x32x8x64" [bias]=8192x4608 [cross_entropy]=8192x32000 [elementwise]=16000000
                      [embedding]=8192x2048x32000 [fp8_gemm]=8192x6144x4096 [global_norm]=124000000 [qk_norm]=8x1024x16x8x128 [quantise]=8192x4096
                      [rmsnorm]=8192x4096 [rope]=8x1024x16x16x128 [swiglu]=8192x5632)

# Result of each test, from GoogleTest's output: lines of ok, skipped, failed or died (the last, which did not end), the
# test, 1 if CUDA may be of no use to the process any more, and the first words that it said. compute-sanitizer's findings fail a test.
test_results() {
  awk -v fault="$fault" '
    function put(how) { gsub(/\t/, " ", said); print how "\t" name "\t" sticky "\t" substr(said, 1, 700); name = "" }
    /^\[ RUN      \] / { name = $4; said = ""; lines = sticky = found = 0; next }
    name == "" { next }
    /^\[       OK \] / { put(found ? "failed" : "ok"); next }
    /^\[  SKIPPED \] / { put("skipped"); next }
    /^\[  FAILED  \] / { put("failed"); next }
    $0 ~ fault { sticky = 1 }
    /^========= (Invalid|Error|Warning|Race|Misaligned|Barrier|Divergent|Fatal|Unused)/ { found = 1 }
    NF && !/^========= *$/ && lines < 6 { said = said (lines++ ? " / " : "") $0 }
    END { if (name != "") put("died") }' "$1"
}
# run_tests WHAT SECONDS SECONDS_PER_TEST FILTER COMMAND...: the program is the last word. Each suite in a process of its own, or with
# together=1 all of them in one; after a crash, a CUDA fault or a hang, the rest runs in another.
together=0
run_tests() {
  local what=$1 base=$2 each=$3 filter=$4 suite tests rest begun=$SECONDS
  declare -gA count=([ok]=0 [skipped]=0 [failed]=0 [unrun]=0)
  shift 4
  limited 60 "${@: -1}" --gtest_list_tests --gtest_filter="$filter" > "$WORK/list" 2>&1 || {
    failed "$what" "does not even list its tests: $(how_it_ended $? 60)" "$(last_words "$WORK/list")"
    return 1
  }
  awk -v together=$together '
    function put() { if (line != "") print label line; line = "" }
    /^Running main/ { next }
    /^[^ ]/ { suite = $1; if (!together) { put(); label = suite } else label = "all"; next }
    !/DISABLED_/ { line = line " " suite $1 }
    END { put() }' "$WORK/list" > "$WORK/suites"
  while read -r suite tests <&3; do
    read -ra rest <<< "$tests"
    run_suite "$@"
  done 3< "$WORK/suites"
  row "{\"kind\": \"tests\", \"suite\": $(json "$what"), \"passed\": ${count[ok]}, \"failed\": ${count[failed]}, \"skipped\": ${count[skipped]}, \"not_run\": ${count[unrun]}, \"seconds\": $((SECONDS - begun))}"
  echo "$what: ${count[ok]} passed, ${count[failed]} failed, ${count[skipped]} skipped, ${count[unrun]} not run"
}
run_suite() {  # of run_tests: runs `rest`
  local rc died how name sticky said ended limit left
  while [ ${#rest[@]} -gt 0 ]; do
    limit=$((base + each * ${#rest[@]})) left=$(left_s)
    if [ "$left" -lt 5 ]; then
      failed "${rest[0]}" "$what: not run, nor ${#rest[@]} of its suite: no time left"
      count[unrun]=$((count[unrun] + ${#rest[@]}))
      return
    fi
    [ $limit -lt "$left" ] || limit=$left
    rc=0 died='' ended=0
    limited $limit "$@" --gtest_filter="$(IFS=:; echo "${rest[*]}")" > "$WORK/out" 2>&1 || rc=$?
    while IFS=$'\t' read -r how name sticky said; do
      ended=$((ended + 1))
      case $how in
        failed) failed "$name" "$what: failed" "$said" ;;
        died) failed "$name" "$what: $(how_it_ended $rc $limit)" "$said"; how=failed died=$name ;;
      esac
      count[$how]=$((count[$how] + 1))
      [ "$how$sticky" != failed1 ] || died=$name
      [ -z "$died" ] || break
    done < <(test_results "$WORK/out")
    rest=("${rest[@]:ended}")
    [ $rc = 0 ] || { echo "---- $what, $suite: exit code $rc"; tail -n 60 "$WORK/out"; }
    if [ -n "$died" ]; then
      once_more "$died" "$base" "$@"
    elif [ ${#rest[@]} -gt 0 ] || { [ $rc != 0 ] && [ "$(grep -a -c -E '^\[  FAILED  \]|^========= ' "$WORK/out")" = 0 ]; }; then
      failed "$suite" "$what: $(how_it_ended $rc $limit), but in none of its tests" "$(last_words "$WORK/out")"
      count[unrun]=$((count[unrun] + ${#rest[@]}))
      return
    fi
  done
}
reruns=0
once_more() {  # once_more TEST LIMIT COMMAND...: which launch it is that fails
  [ $((reruns += 1)) -le 3 ] && [ "$(left_s)" -gt $(($2 + 10)) ] || return 0
  local test=$1 limit=$2 rc=0
  shift 2
  CUDA_LAUNCH_BLOCKING=1 limited "$limit" "$@" --gtest_filter="$test" > "$WORK/again" 2>&1 || rc=$?
  row "{\"kind\": \"failure\", \"name\": $(json "$test"), \"how\": $(json "alone, with CUDA_LAUNCH_BLOCKING=1: $(how_it_ended $rc "$limit")"), \"message\": $(json "$(test_results "$WORK/again" | tail -n 1 | cut -f4)")}"
}

stage_tests() {
  local tests
  on_gpu "the kernel tests on a device" || exit 4
  tests=$(program kernel_tests "it needs GoogleTest when it is built") || exit 3
  run_tests "kernel tests" "${GPU_CHECK_TEST_SECONDS:-$((SMALL ? 120 : 20))}" $((SMALL ? 4 : 1)) '*' "$tests"
}

stage_program() {
  local train
  on_gpu "the program on a GPU against itself on the CPU" || exit 4
  train=$(program train_llama) || exit 3
  [ "$SMALL" = 0 ] || try_s=500
  try "the program, CPU and GPU" env ON_A_GPU=1 NO_BF16="$([ "$(half)" = bf16 ] || echo 1)" test/program/test_simt_program.py "$train" "$train"
}

stage_goldens() {
  on_gpu "the PTX wrappers on a device" || exit 4
  local fidelity folder=$WORK/golden
  fidelity=$(program fidelity_gpu) || exit 3
  mkdir -p "$folder"
  try "fidelity write" "$fidelity" write "$folder" || return 1
  fact "wrappers written" "$(find "$folder" -name '*.txt' | wc -l) of $("$fidelity" list | wc -l)"
  tar -C "$folder" -czf "$OUT/goldens.tgz" .
  note "unpack goldens.tgz into test/simt/golden; build/simt/fidelity check then compares the emulator's models with it"
}

# The products of a layer and of the head's chunk: qkv, o, gate and up, down.
gemm_shapes() {
  if [ "$DRY" = 1 ]; then echo 64x96x64 64x64x96; return; fi
  if [ "$SMALL" = 1 ]; then echo 4096x1536x1024 4096x1024x1024 4096x5120x1024 4096x1024x2560 4096x32000x1024; return; fi  # small
  local M=8192
  echo ${M}x4096x2048 ${M}x2048x2048 ${M}x12288x2048 ${M}x2048x6144 ${M}x32000x2048      # medium
  echo ${M}x2048x1536 ${M}x1536x1536 ${M}x17920x1536 ${M}x1536x8960 3532x151936x1536     # 1.5B-class
  echo ${M}x12288x4096 ${M}x4096x4096 ${M}x22016x4096 ${M}x4096x11008 ${M}x32000x4096    # 7B-class
}

stage_ceilings() {
  local bench flags=() s
  bench=$(program bench_gemm) || exit 3
  for s in $(gemm_shapes); do flags+=(--shape "$s"); done
  local tune=()
  on_gpu "cuBLASLt" && tune=(--gemm-tune on --gemm-cache "$WORK/gemm_tuning.txt")
  try bench_gemm "$bench" --device "$DEVICE" --dtype "$(half)" --iters "$(pick 9 2)" "${tune[@]}" --json "$ROWS" "${flags[@]}" || true
}

stage_kernels() {
  local op bench s shape=()
  declare -A small=([adamw]=65536 [attention]=1x64x4x2x32 [bias]=64x256 [cross_entropy]=32x512 [elementwise]=65536 [embedding]=64x64x512
                    [fp8_gemm]=128x128x128 [global_norm]=65536 [offload]=65536 [qk_norm]=1x64x4x2x32 [quantise]=128x256 [rmsnorm]=64x256 [rope]=1x64x4x2x32 [swiglu]=64x256)
  on_gpu "the CUDA kernels (rows below are the CPU's)" || true
  for op in $ops; do
    if [ $op = fp8_gemm ] && [ "$CAPABILITY" -lt 89 ]; then
      not_measured "bench_fp8_gemm" "a GPU before compute capability 8.9 has no fp8 products"
      continue
    fi
    bench=$(program bench_$op) || exit 3
    shape=()
    [ "$SMALL" = 0 ] || for s in ${one_shape[$op]:-16777216}; do shape+=(--shape "$s"); done
    [ "$DRY" = 0 ] || shape=(--shape "${small[$op]}")
    try_s=$((SMALL ? 120 : 60)) try bench_$op "$bench" --device "$DEVICE" --dtype "$(half)" --iters "$(pick 15 2)" --json "$ROWS" "${shape[@]}" || true
  done
}

# A few hardware counters of each kernel, at one shape of each op.
stage_profile() {
  on_gpu "hardware counters" || exit 4
  command -v ncu > /dev/null || unavailable "ncu is not on the PATH; it is in the CUDA Toolkit (Nsight Compute)"
  local op bench shape known metrics=launch__registers_per_thread m
  known=$(timeout 60 ncu --query-metrics < /dev/null 2>&1) || { note "ncu --query-metrics: $(tail -n 1 <<< "$known")"; return 1; }
  for m in gpu__time_duration.sum {dram,lts}__throughput.avg.pct_of_peak_sustained_elapsed \
    {sm__pipe_tensor_cycles,sm__pipe_tensor_op_hmma_cycles,smsp__issue,sm__warps}_active.avg.pct_of_peak_sustained_active \
    l1tex__data_bank_conflicts_pipe_lsu.sum; do
    grep -q "^${m%%.*}[[:space:]]" <<< "$known" && metrics+=,$m
  done
  for op in $ops; do
    bench=$(program bench_$op) || exit 3
    for shape in ${one_shape[$op]:-}; do
      rm -f "$WORK/ncu.csv"
      try_s=60 try "bench_$op under ncu" ncu --profile-from-start off --clock-control none --csv --page raw --print-units base \
        --metrics "$metrics" --log-file "$WORK/ncu.csv" "$bench" --device cuda --profile --shape "$shape" || true
      cat "$WORK/ncu.csv" >> "$OUT/profile.csv" 2> /dev/null
      "$REPORT" profile-rows "$WORK/ncu.csv" "$shape" >> "$ROWS" && continue
      failed "bench_$op under ncu" "no counters" "$(grep -a '==ERROR==' "$WORK/ncu.csv" | head -n 2)"
      ! grep -a -q ERR_NVGPUCTRPERM "$WORK/ncu.csv" || unavailable "only root may read the counters here"
    done
  done
}

stage_resources() {
  command -v cuobjdump > /dev/null || unavailable "cuobjdump is not on the PATH; it is in the CUDA Toolkit, and a PyPI package (nvidia-cuda-cuobjdump)"
  local table rc=0
  table=$(dev/gpu/kernel_resources.py "$BUILD" 2>&1) || rc=$?
  row "{\"kind\": \"text\", \"text\": $(json "$table")}"
  [ $rc = 0 ] || note "$(tail -n 1 <<< "$table")"
  return $rc
}

# name | flags of bench_train | the same for torch_llama.py
training_models() {
  if [ "$DRY" = 1 ]; then
    echo "smallest|--preset bytes --vocab 512 --layers 1 --batch 1 --seq-len 32|--dim 256 --layers 1 --heads 8 --kv-heads 4 --ffn 688 --vocab 512 --batch 1 --seq-len 32"
    echo "smallest, bf16|--preset bytes --vocab 512 --layers 1 --ffn 768 --batch 1 --seq-len 128 --dtype bf16|"
    echo "smallest, bf16|--preset bytes --vocab 512 --layers 1 --ffn 768 --batch 1 --seq-len 128 --dtype bf16 --fp8 tensor|"
    echo "smallest, bf16|--preset bytes --vocab 512 --layers 1 --ffn 768 --batch 1 --seq-len 128 --dtype bf16 --fp8 block|"
    return
  fi
  if [ "$SMALL" = 1 ]; then
    echo "small|--preset small --batch 4 --seq-len 1024|"
    echo "small|--preset small --batch 4 --seq-len 1024 --recompute block|"
    echo "tiny|--preset tiny --batch 16 --seq-len 1024|"
    echo "tiny|--preset tiny --batch 16 --seq-len 1024 --cuda-graphs on|"
    echo "tiny, fp32|--preset tiny --batch 8 --seq-len 1024 --dtype fp32|"
    return
  fi
  local b7="--preset medium --dim 4096 --ffn 11008 --heads 32 --kv-heads 32 --layers" t7="--dim 4096 --ffn 11008 --heads 32 --kv-heads 32 --vocab 32000 --layers"
  local b15="--preset medium --dim 1536 --ffn 8960 --heads 12 --kv-heads 2 --layers 28 --vocab 151936 --head tied"
  local t15="--dim 1536 --ffn 8960 --heads 12 --kv-heads 2 --layers 28 --vocab 151936 --tied" tm="--dim 2048 --ffn 6144 --heads 16 --kv-heads 8 --layers 24 --vocab 32000"
  echo "medium|--preset medium --batch 16 --seq-len 1024|$tm --batch 16 --seq-len 1024"
  echo "1.5B-class|$b15 --batch 8 --seq-len 1024|$t15 --batch 8 --seq-len 1024"
  echo "7B-class, 8 layers|$b7 8 --batch 8 --seq-len 1024|$t7 8 --batch 8 --seq-len 1024"
  echo "7B-class, 8 layers|$b7 8 --batch 8 --seq-len 1024 --fp8 tensor|"
  echo "7B-class, 8 layers|$b7 8 --batch 8 --seq-len 1024 --fp8 block|"
  echo "medium|--preset medium --batch 16 --seq-len 1024 --cuda-graphs on|"
  echo "medium|--preset medium --batch 16 --seq-len 1024 --master-dtype bf16 --adam-dtype bf16|"
  echo "medium, T=4096|--preset medium --batch 4 --seq-len 4096|$tm --batch 4 --seq-len 4096"
  echo "7B-class|$b7 32 --batch 4 --seq-len 1024 --recompute block --fit|"
  echo "7B-class, 8 layers, T=4096|$b7 8 --batch 2 --seq-len 4096|$t7 8 --batch 2 --seq-len 4096"
  echo "small|--preset small --batch 32 --seq-len 1024|--dim 1024 --ffn 2560 --heads 16 --kv-heads 4 --layers 24 --vocab 32000 --batch 32 --seq-len 1024"
  echo "tiny|--preset tiny --batch 64 --seq-len 1024|--dim 512 --ffn 1280 --heads 8 --kv-heads 4 --layers 5 --vocab 32000 --batch 64 --seq-len 1024"
  echo "tiny|--preset tiny --batch 64 --seq-len 1024 --cuda-graphs on|"
}

stage_training() {
  local bench name flags torch dtype tune=()
  bench=$(program bench_train) || exit 3
  on_gpu "training on a GPU (rows below are the CPU's)" && tune=(--gemm-tune on --gemm-cache "$WORK/gemm_tuning.txt")
  while IFS='|' read -r name flags torch; do
    dtype="--dtype $(pick "$(half)" fp32)"
    [[ $flags != *--dtype* ]] || dtype=''
    # shellcheck disable=SC2086
    try_s=$((SMALL ? 150 : 60)) try "$name" "$bench" --device "$DEVICE" $dtype $flags --name "$name" --steps "$(pick 10 1)" --classes \
      "${tune[@]}" --json "$ROWS" && beside_the_prediction "$name" $flags
  done < <(training_models)
  return 0
}
beside_the_prediction() {  # beside_the_prediction NAME FLAGS...: op by op, of a step as predict_step knows it
  local name=$1 text gpu=h200
  shift
  [ -x "$PROGRAMS/predict_step" ] && [ "$DRY$SMALL" = 00 ] && [[ "$*" != *--cuda-graphs* && "$*" != *--recompute* && "$*" != *--master* && "$*" != *--fp8* ]] || return 0
  [[ "$GPU" != *H100* ]] || gpu=h100
  grep -a '"classes"' "$ROWS" | tail -n 1 > "$WORK/classes.json"
  text=$(limited 20 "$PROGRAMS/predict_step" "$@" --gpu $gpu --measured "$WORK/classes.json" 2>&1) || return 0
  row "{\"kind\": \"text\", \"text\": $(json "$name"$'\n'"$text")}"
}

have_torch() {
  timeout 60 "$(python)" -c "import torch, sys; sys.exit('$DEVICE' == 'cuda' and not torch.cuda.is_available())" 2> /dev/null
}

# Compiling a whole model takes minutes, its blocks seconds: so that first for all, and then the whole of one to see what it gains.
stage_pytorch() {
  have_torch || unavailable "$(python) has no PyTorch that can use this device"
  local name flags torch compile=() params=master
  [ "$DRY" = 1 ] || compile=(--compile blocks)
  while IFS='|' read -r name flags torch; do
    [ -n "$torch" ] || continue
    [ "$name" != medium ] || params=all
    # shellcheck disable=SC2086
    torch_step "$name" $torch --params $params "${compile[@]}"
    params=master
    [ "$name" != "7B-class, 8 layers" ] || torch_step medium $tm --params master --compile model
    [ "$name" != medium ] || tm=$torch
  done < <(training_models)
}
torch_step() {  # torch_step NAME FLAGS...
  local name=$1
  shift
  try "$name in PyTorch" "$(python)" dev/golden/torch_llama.py --device "$DEVICE" --dtype "$(pick bf16 fp32)" "$@" --name "$name" --steps "$(pick 10 1)" \
    --json "$ROWS" || true
}

stage_curves() {
  local bench folder=$WORK/curve compile=()
  bench=$(program bench_train) || exit 3
  [ "$DRY" = 1 ] || compile=(--compile blocks)
  local shape
  shape=$(pick "--preset tiny --batch 8 --seq-len 512 --steps 200 --dtype bf16" "--preset bytes --vocab 512 --layers 1 --batch 1 --seq-len 32 --steps 3 --dtype fp32")
  rm -rf "$folder"
  # shellcheck disable=SC2086
  try "curve of ringzero" "$bench" --device "$DEVICE" $shape --curve "$folder" --json "$ROWS" || return 1
  have_torch || unavailable "$(python) has no PyTorch that can use this device: only our own curve"
  try "curve of PyTorch" "$(python)" dev/golden/torch_llama.py --device "$DEVICE" --curve "$folder" "${compile[@]}" --json "$ROWS"
}

ranks_row() { row "{\"kind\": \"ranks\", \"what\": $(json "$1"), \"ranks\": $2, \"result\": $(json "$3")}"; }
several() {  # several WHAT RANKS COMMAND...
  local what=$1 ranks=$2
  shift 2
  if try_s=60 try "$what" mpirun -n "$ranks" "$@"; then ranks_row "$what" "$ranks" passed; else ranks_row "$what" "$ranks" FAILED; fi
}

stage_ranks() {
  command -v mpirun > /dev/null || unavailable "mpirun is not installed: one rank is all there can be"
  local sanity tests transport
  sanity=$(program sanity) || exit 3
  export OMP_NUM_THREADS=1
  if [ "$DRY" = 1 ]; then
    several "collectives over MPI, on the CPU" 2 "$sanity" --device cpu --transport mpi --timeout 30
    on_gpu "several ranks on one GPU" || true
    return $((failures > 0))
  fi
  several "collectives through NCCL, alone" 1 "$sanity" --device cuda --transport nccl --timeout 40
  for transport in mpi nccl-shared; do
    several "collectives over $transport, all on one GPU" 3 "$sanity" --device cuda --transport $transport --timeout 40
  done
  tests=$PROGRAMS/mpi_tests
  [ -x "$tests" ] || { not_measured "mpi_tests on the device" "not built"; return $((failures > 0)); }
  for transport in mpi nccl-shared; do
    several "mpi_tests over $transport, all on one GPU" 3 env RZ_TEST_DEVICE=cuda RZ_TEST_TRANSPORT=$transport RZ_TEST_TIMEOUT=40 \
      "$tests" --gtest_brief=1 --gtest_filter="*AnySize*:*Random*"
  done
}

stage_memory() {
  command -v mpirun > /dev/null || unavailable "mpirun is not installed: the table needs several ranks"
  local train stage ranks transport=mpi data=$WORK/data model
  train=$(program train_llama) || exit 3
  export OMP_NUM_THREADS=1
  ranks=$(pick 4 2)
  "$(python)" data_prep/prepare.py stdlib --max-bytes 300K --out "$data" > /dev/null || return 1
  model=$(pick "--preset small --batch 1 --seq-len 256" "--preset bytes --batch 1 --seq-len 32")
  for stage in 0 1 2 3; do
    # shellcheck disable=SC2086
    try "ZeRO-$stage" mpirun -n "$ranks" "$train" --data "$data" $model --dtype bf16 --grad-dtype bf16 --device "$DEVICE" --transport $transport --zero $stage \
      --steps 2 --warmup 0 --val-every 0 --val-tokens 256 --timeout 60 --out "$WORK/zero$stage" || continue
    "$REPORT" zero-row "$WORK/zero$stage/ranks.json" "$WORK/zero$stage/final/model.safetensors" $stage >> "$ROWS" ||
      { failures=$((failures + 1)); note "ZeRO-$stage: more than the paper says, or no numbers"; }
  done
}

stage_sanitizer() {
  on_gpu "compute-sanitizer" || exit 4
  command -v compute-sanitizer > /dev/null || unavailable "compute-sanitizer is not on the PATH; it is in the CUDA Toolkit"
  local tests tool filter more
  tests=$(program kernel_tests "it needs GoogleTest when it is built") || exit 3
  together=1  # a process takes seconds to begin under it
  for tool in memcheck racecheck synccheck; do
    filter='*/0:*/1:*Limits*:-*Gemm*'  # the first two shapes of every op
    [ $tool != synccheck ] || filter='TensorCore/Attention.*/0:TensorCore/Attention.*/1'
    more=()
    [ $tool != memcheck ] || more=(--report-api-errors no)  # the program checks those itself
    run_tests "$tool" 30 4 "$filter" compute-sanitizer --tool $tool "${more[@]}" --error-exitcode 9 "$tests"
  done
}

if [ "${1:-}" = --one-stage ]; then  # called by this script
  running=''
  trap 'trap "" TERM; [ -z "$running" ] || { kill -TERM "$running"; wait "$running"; }; exit 143' TERM
  "stage_$2"
  rc=$?
  [ $rc = 0 ] && [ $failures != 0 ] && rc=1
  exit $rc
fi

# ---- the request -------------------------------------------------------------------------------------------------------------

usage() {  # usage [WHAT IS WRONG]
  if [ $# != 0 ]; then
    echo "gpu_check.sh: $*; --help explains everything" >&2
    exit 2
  fi
  sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//;p}' "$0"
  exit 0
}
stages='' limit='' SMALL=0 OUT='' DRY=0 GIVEN_PROGRAMS=0 PROGRAMS='' command="dev/gpu/gpu_check.sh $*"
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) DRY=1 ;;
    --small) SMALL=1 ;;
    --stages | --time-limit | --out | --programs)
      [ $# -ge 2 ] || usage "$1 needs a value"
      case $1 in
        --stages) stages=${2//,/ } && [ -n "${stages// /}" ] || usage "--stages names none" ;;
        --time-limit) limit=$2 ;;
        --out) OUT=$2 ;;
        --programs) PROGRAMS=$(realpath -e "$2") || usage "--programs $2: no such folder"; GIVEN_PROGRAMS=1 ;;
      esac
      shift ;;
    --help | -h) usage ;;
    *) usage "$1 is no option" ;;
  esac
  shift
done
: "${stages:=$([ $SMALL = 1 ] && echo "$small_stages" || echo "$all_stages")}" "${limit:=$((SMALL ? 7200 : 570))}"
[[ $limit =~ ^[1-9][0-9]*$ ]] || usage "--time-limit $limit: it must be a number of seconds"
[ $SMALL = 0 ] || for s in "${!small_cap[@]}"; do cap[$s]=${small_cap[$s]}; done
for s in $stages; do [[ " $all_stages profile " == *" $s "* ]] || usage "--stages: $s is none of: $all_stages profile"; done
chosen=""
for s in $all_stages profile; do [[ " $stages " == *" $s "* ]] && chosen="$chosen $s"; done

DEVICE=cpu SM="80 90a" CAPABILITY=90 gpu="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
BUILD=${BUILD:-build}
if [ $DRY = 0 ]; then
  DEVICE=cuda
  gpu=$(timeout 30 nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader 2> /dev/null | head -n 1)
  [ -n "$gpu" ] || { echo "gpu_check.sh: nvidia-smi shows no GPU; --dry-run runs the logic without one" >&2; exit 2; }
  CAPABILITY=$(sed 's/.*, *//; s/\.//' <<< "$gpu")
  gpu=${gpu%,*}
  # Only for this GPU, which halves the time; but what `make` has built for it already serves too.
  case $CAPABILITY-$(compgen -G "$BUILD/cuda*/libringzero.a") in
    80-?* | 90-?*) ;;
    75-?*) SM=auto ;;
    90-) SM=90a BUILD=$BUILD/sm90a ;;
    *) SM=$CAPABILITY BUILD=$BUILD/sm$CAPABILITY ;;
  esac
fi
if [ -z "${COMMIT:-}" ]; then  # may be given, where the sources have come without their history
  COMMIT=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)
  [ -z "$(git status --porcelain --untracked-files=no 2> /dev/null)" ] || COMMIT="$COMMIT and changes"
fi
: "${OUT:=dev/results/$(tr -cs 'A-Za-z0-9' '-' <<< "${gpu#NVIDIA }" | sed 's/-$//')-$(date +%F)}"
mkdir -p "$OUT" "$BUILD" || exit 2
OUT=$(realpath "$OUT")
WORK=$(mktemp -d "$BUILD/gpu-check.XXXXXX") && WORK=$(realpath "$WORK") || exit 2
trap 'rm -rf "$WORK"' EXIT
[ -n "$PROGRAMS" ] || PROGRAMS=$(realpath "$BUILD")/gpu-check-programs

REPORT=$(realpath dev/gpu/gpu_report.py)
"$REPORT" > /dev/null 2>&1
[ $? = 2 ] || { echo "gpu_check.sh: dev/gpu/gpu_report.py does not run; it needs python3" >&2; exit 2; }
export OUT WORK DRY SMALL CAPABILITY DEVICE SM BUILD COMMIT PROGRAMS GIVEN_PROGRAMS REPORT CHOSEN="$chosen" GPU="$gpu"
# shellcheck disable=SC2086
"$REPORT" begin "$OUT" "$COMMIT" "$gpu" "$(date -u '+%F %H:%M UTC')" "$command" $DRY $chosen || exit 2

# ---- the stages ----------------------------------------------------------------------------------------------------------------

interrupted() {
  trap '' INT TERM
  kill -TERM "$child" 2> /dev/null
  wait "$child" 2> /dev/null
  end_stage interrupted "by a signal"
  "$REPORT" status "$OUT"
  exit "$1"
}
end_stage() {  # end_stage STATUS [NOTE]
  local text=${2:-}
  [ -s "$NOTE" ] && text="$text${text:+; }$(cat "$NOTE")"
  "$REPORT" stage "$OUT" "$stage" "$1" $((SECONDS - begun)) "$text" "$ROWS"
}

for stage in $chosen; do
  export ROWS=$WORK/$stage.jsonl NOTE=$WORK/$stage.note
  : > "$ROWS"
  begun=$SECONDS left=$((limit - SECONDS))
  if [ $left -lt 3 ]; then
    end_stage not-run "no time left"
    continue
  fi
  [ $left -lt "${cap[$stage]}" ] || left=${cap[$stage]}
  export STAGE_SECONDS=$left
  "$REPORT" stage "$OUT" "$stage" running 0 ""
  printf '== %s (at most %s s)\n' "$stage" "$left" | tee -a "$OUT/log.txt"
  timeout -k 5 "$left" bash "dev/gpu/$(basename "$0")" --one-stage "$stage" >> "$OUT/log.txt" 2>&1 &
  child=$!
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM
  wait $child
  rc=$?
  trap - INT TERM
  case $rc in
    0) end_stage ok ;;
    3) end_stage unavailable ;;
    4) end_stage not-measured ;;
    124 | 137) end_stage timed-out "after $left s" ;;
    *) end_stage failed "$([ -s "$NOTE" ] || tail -n 1 "$OUT/log.txt" | cut -c1-200)" ;;
  esac
done
echo
"$REPORT" status "$OUT"
rc=$?
echo "report: $OUT/report.md"
exit $rc
