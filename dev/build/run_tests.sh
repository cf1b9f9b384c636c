#!/usr/bin/env bash
# Runs everything that `make test` built, section by section, and ends with a table of times and one line of counts.
#
#   dev/build/run_tests.sh BUILD OBJ [SECTION...]      sections: lint unit learn python mpi tsan program simt ptx (default: these), and long
#   SUITE_LIMIT=SECONDS  a suite that takes longer has failed, and what it started is killed (default: 1400)
#   TEST_UNTIL=SECONDS   the Unix time from which on no suite of the section long begins; the last line names what was left out
#
# Most suites keep one core busy, so as many run at once as there are cores, two at most; TEST_JOBS=1: one after the other.
set -uo pipefail
build=$1 obj=$2
shift 2
sections=${*:-lint unit learn python mpi tsan program simt ptx}
logs=$build/test-logs
mkdir -p "$logs"
cores=$(nproc)
slots=${TEST_JOBS:-$((cores < 2 ? 1 : 2))}
names=() late=() jobs=0
limit=${SUITE_LIMIT:-1400}
set -m  # each suite is a process group, which Ctrl-C ends whole, and SIGINT is not ignored in it
stop() {
  local group
  for group in $(jobs -p); do kill -TERM -- "-$group"; done
  exit 130
}
trap stop INT TERM

# Ranks often outnumber cores here: one thread each, and none spins.
export OMP_WAIT_POLICY=passive

total() { awk '{ sum += $1 } END { print sum + 0 }'; }

# suite NAME COMMAND...   one log per name; counts come from GoogleTest's and unittest's own closing lines
suite() {
  local name=$1 start=$SECONDS log="$logs/$1.log" rc=0 p=0 f=0 s=0
  shift
  timeout --foreground -k 30 $limit "$@" > "$log" 2>&1 || rc=$?
  if [ $((SECONDS - start)) -ge $limit ]; then
    echo "$name did not end within $limit seconds" >> "$log"
    trap : TERM
    kill -TERM 0  # what it started
  fi
  p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p; s/^\([0-9]*\) passed, .*/\1/p' "$log" | total)
  f=$(sed -n 's/^ *\([0-9]*\) FAILED TESTS\{0,1\}$/\1/p; s/^[0-9]* passed, \([0-9]*\) failed.*/\1/p' "$log" | total)
  s=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) test.*/\1/p' "$log" | total)
  if grep -q '^Ran [0-9]* tests\{0,1\} in ' "$log"; then
    # unittest: all that ran, then OK or FAILED (failures=1, errors=2, skipped=3)
    f=$(grep -E '^FAILED \(' "$log" | grep -oE '(failures|errors)=[0-9]+' | cut -d= -f2 | total)
    s=$(grep -E '^(OK|FAILED) \(' "$log" | grep -oE 'skipped=[0-9]+' | cut -d= -f2 | total)
    p=$(($(sed -n 's/^Ran \([0-9]*\) .*/\1/p' "$log" | total) - f - s))
  fi
  if [ $rc != 0 ] && [ "$f" = 0 ]; then f=1; fi
  if [ $rc = 0 ] && [ "$p$s" = 00 ]; then p=1; fi
  local line
  line=$(printf '%-34s %4s s  %5s passed %3s failed %3s skipped' "$name" $((SECONDS - start)) "$p" "$f" "$s")
  if [ $rc != 0 ]; then
    line="$line"$'\n'"---- $name failed (exit code $rc); the end of $log:"$'\n'"$(tail -n 60 "$log")"$'\n----'
  fi
  echo "$line"
  echo "$p $f $s $((SECONDS - start))" > "$logs/$name.counts"
}

# run NAME COMMAND...   starts a suite as soon as a slot is free
run() {
  while [ "$jobs" -ge "$slots" ]; do
    wait -n
    jobs=$((jobs - 1))
  done
  if [ "$section" = long ] && [ -n "${TEST_UNTIL:-}" ] && [ "$(date +%s)" -ge "$TEST_UNTIL" ]; then
    late+=("$1")
    return
  fi
  names+=("$1")
  rm -f "$logs/$1.counts"
  suite "$@" < /dev/null &
  jobs=$((jobs + 1))
}

mpi() {  # mpi NAME RANKS COMMAND...
  local name=$1 ranks=$2
  shift 2
  run "$name" env OMP_NUM_THREADS=1 timeout 300 mpirun -n "$ranks" "$@"
}

# Whole programs over namespaces; gradients at SIMD levels between the lowest and the highest.
slow='ZeroProgram.*:Simd/Gradients.AttentionsAreCentralDifferences/avx2:Simd/Gradients.AttentionsAreCentralDifferences/avx512'
# A minute and a half of deadlines and sleep: these run beside the others.
waits='RunLock*:FlockOrNot/*:CommFaults.*:TcpNet*:Watch.*:SnapshotCourier.*:PlantedHangs.*:CheckpointOfThreeRanks.*:AfterSave*:BatchAuto.*'

for section in $sections; do
  case $section in
    lint) run lint dev/build/lint.sh ;;
    unit)
      run unit bash -c '
        "$0" --gtest_brief=1 --gtest_filter="$1" &
        "$0" --gtest_brief=1 --gtest_filter="-$1:$2"
        rc=$?
        wait $! && exit $rc' "$obj/unit_tests" "$waits" "$slow"
      run requests test/llama/requests.py "$obj/unit_tests" --cases 400
      run statics dev/build/statics.sh "$obj/libringzero.a" ;;
    learn) run learn dev/learn/test_lessons.py "$obj/learn" ;;
    python)
      run python python3 test/data_prep/test_data_prep.py
      run python-text python3 test/data_prep/test_text_files.py
      run python-chat python3 test/data_prep/test_chat.py
      run python-template python3 test/data_prep/test_chat_template.py ;;
    mpi)
      [ -x "$obj/mpi_tests" ] || { echo "mpi: not built here (no MPI)"; continue; }
      for n in 1 2 3 4 5 8; do mpi "mpi-$n" $n "$obj/mpi_tests"; done ;;
    tsan)  # four ranks race wherever three do
      run tsan env TSAN_OPTIONS=halt_on_error=0 "$build/tsan/tests" --gtest_brief=1 --gtest_filter='-Ranks/ZeroRanks.*/0' ;;
    program)
      run program test/program/test_program.py ./train_llama
      run resume test/program/test_resume.py ./train_llama
      run refusals test/program/test_refusals.py ./train_llama
      run untouched test/program/test_untouched.py ./train_llama
      run first-hour test/program/test_first_hour.py ./train_llama
      run hostile test/faults/hostile.py ./train_llama --quick
      run launch test/program/test_launch.py ./train_llama
      run ranks test/program/test_ranks.py ./train_llama
      run snapshots test/program/test_snapshots.py ./train_llama
      run hosts test/program/test_hosts.py ./train_llama
      run recorder test/program/test_recorder.py ./train_llama
      run order test/program/test_order.py ./train_llama
      run eval test/program/test_eval.py ./train_llama
      run plan test/program/test_plan.py ./train_llama
      run data test/program/test_data.py ./train_llama
      run report test/program/test_report.py ./train_llama "$obj/dev/report"
      run stability test/program/test_stability.py ./train_llama
      run pipeline test/program/test_pipeline.py ./train_llama
      run pipeline-run test/program/test_pipeline_run.py ./train_llama
      run documents test/program/test_documents.py ./train_llama
      run faults test/program/test_faults.py ./train_llama --quick
      run faults-all-quick test/faults/all_faults.py ./train_llama "$build/libfile_faults.so" --quick --timeout 120 ;;
    simt)
      [ -x "$build/simt/plain/kernel_tests" ] ||
        { echo "simt: not built here (it needs the CUDA Toolkit's headers)"; continue; }
      for part in lint selftest kernels; do run "simt-$part" test/simt/run.sh "$build/simt" $part; done
      run simt-layouts test/simt/layouts/cute.sh "$build"
      run simt-program test/program/test_simt_program.py ./train_llama_simt ./train_llama
      run simt-nccl test/program/test_nccl.py ./train_llama_simt ;;
    ptx)
      [ -x "$build/ptx/kernel_tests" ] || { echo "ptx: not built here (it needs nvcc)"; continue; }
      run machine-code dev/gpu/machine_code.sh "$build"
      ! grep -q 90 "$build/ptx/arches" || run memory-access dev/gpu/kernel_counts.py "$build" --gate
      run ptx test/ptx/run.sh "$build/ptx" quick ;;
    long)  # make test-full: minutes, and what they show has a shorter witness above. The longest first: the other core would wait for it
      run faults-whole test/program/test_faults.py ./train_llama
      [ ! -x ./train_llama_simt ] || run plan-whole test/program/test_plan.py ./train_llama ./train_llama_simt
      # It installs torch into build/lm-eval, which recorder-full, at the end, takes from there.
      run lm-eval test/program/test_lm_eval.py ./train_llama "$obj/dev/model_logits"
      run unit-slow "$obj/unit_tests" --gtest_brief=1 --gtest_filter="$slow"
      run pages dev/build/pages.py
      run sources dev/run/tables.py sources --check
      run baseline env -u MAKEFLAGS make --no-print-directory -j2 BUILD="$build" test-baseline
      run gpu-check test/program/test_gpu_check.py "$build"
      run harness test/program/test_harness.py "$obj/dev/harness"
      run mutations test/faults/mutations.py ./train_llama --cases 48
      run reproduce test/program/test_reproduce.py ./train_llama
      run ranks-full test/program/test_ranks.py ./train_llama --full
      run snapshots-full test/program/test_snapshots.py ./train_llama --full
      run hosts-full test/program/test_hosts.py ./train_llama --full
      run snapshots-soak dev/run/soak.py ./train_llama "$build/libfile_faults.so" --snapshots --wide --minutes 3 --steps 30
      run order-whole test/program/test_order.py ./train_llama --all
      run layouts test/program/test_layouts.py ./train_llama
      run muon test/program/test_muon.py ./train_llama
      run tensor test/program/test_tensor.py ./train_llama
      run context test/program/test_context.py ./train_llama
      run pipeline-schedules test/program/test_pipeline.py ./train_llama --schedules
      run pipeline-faults test/program/test_pipeline.py ./train_llama --faults
      run untouched-whole test/program/test_untouched.py ./train_llama --starts 120 --seed 2
      run hostile-whole test/faults/hostile.py ./train_llama
      run in-the-way test/faults/in_the_way.py ./train_llama "$build/libfile_faults.so" --quick
      run cuda-headers dev/build/cuda_headers.sh
      run exercise test/program/test_exercise.py "$obj"
      if [ -x ./train_llama_simt ]; then
        run simt-documents test/program/test_documents.py ./train_llama ./train_llama_simt
        run simt-context test/program/test_context.py ./train_llama ./train_llama_simt
        run simt-planted env SIMT_BUILDS=asan test/simt/run.sh "$build/simt" selftest
        run simt-race env SIMT_SEED=2 test/simt/run.sh "$build/simt" race
        run sm75 test/ptx/run.sh "$build/ptx" sm75
      else
        echo "long: no emulated program (it needs the CUDA Toolkit's headers)"
      fi
      run wandb test/program/test_wandb.py ./train_llama
      run recorder-full test/program/test_recorder.py --full "$obj/unit_tests" ;;
    *) echo "dev/build/run_tests.sh: no section is called $section; there are: lint unit learn python mpi tsan program simt ptx long" >&2
       exit 2 ;;
  esac
done

wait

echo
passed=0 failed=0 skipped=0
for name in "${names[@]}"; do
  p=0 f=1 s=0 seconds="?"  # a suite that left no counts has failed
  [ ! -f "$logs/$name.counts" ] || read -r p f s seconds < "$logs/$name.counts"
  printf '%-34s %4s s  %5s passed %3s failed %3s skipped\n' "$name" "$seconds" "$p" "$f" "$s"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done

# Failures once more at the end: the end of a cut log is what remains.
what_failed() {  # what_failed LOG
  grep -hE -A 5 ': Failure$|^FAILED: |^(FAIL|ERROR): |^WARNING: ThreadSanitizer' "$1" | head -n 30
  grep -hE '^ *\[  FAILED  \] ' "$1" | sort -u | head -n 10
  echo "(the last lines)"
  tail -n 12 "$1"
}
for name in "${names[@]}"; do
  f=1
  [ ! -f "$logs/$name.counts" ] || read -r _ f _ < "$logs/$name.counts"
  [ "$f" != 0 ] || continue
  printf '\n%s failed (%s/%s.log):\n' "$name" "$logs" "$name"
  what_failed "$logs/$name.log" | cut -c1-300 | sed 's/^/    /'
done
echo
echo "total $SECONDS s, $slots at once"
[ ${#late[@]} = 0 ] || echo "not begun, since the time was up (TEST_UNTIL): ${late[*]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
