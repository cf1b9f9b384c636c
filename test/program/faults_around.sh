# Cases of test_faults.sh about what stands around a run: commands of the user, the supervisor. Sourced by it.
# shellcheck shell=bash disable=SC2154,SC2016,SC2125  # its variables; commands that another shell expands; literal stars

# Commands of the user around checkpoints: each checkpoint is seen, whatever happens, and nothing they do hurts the run.
case_commands() {
  local save='echo $RINGZERO_STEP ${PMI_RANK:-none} >> $RINGZERO_OUT/saw; ls $RINGZERO_CHECKPOINT/manifest.json'
  saw() { tr '\n' ' ' < "$work/$1/saw"; }
  marks() { ls -A "$work/$1/checkpoints" | sed -n 's/^\.after-save-//p' | sort -n | paste -sd' '; }
  start h1 --after-save "$save"
  check "commands: --after-save: the run is as undisturbed" as_undisturbed h1
  check "commands: --after-save: sees each checkpoint, without the launcher's variables" test "$(saw h1)" = "2 none 4 none 6 none 8 none "
  check "commands: --after-save: no mark is left" test -z "$(marks h1)" -a "$(steps_of h1)" = "6 8"
  FAULT=checkpoint.renamed:0:2:kill start h2 --no-background-save --after-save "$save"
  check "commands: killed between save and command: marked" test "$(marks h2)" = 4
  resume h2 --after-save "$save"
  check "commands: killed: done by the next start" test "$(saw h2 | grep -o '4 none ')" = "4 none "
  check "commands: killed: the same weights" as_undisturbed h2
  start h3 --after-save "exit 3" --timeout 16
  check "commands: a command that fails: the same weights" as_undisturbed h3
  check "commands: a command that fails: nothing it has not seen is deleted" test "$(steps_of h3)" = "2 4 6 8" -a "$(marks h3)" = "2 4 6 8"
  check "commands: a command that fails: said" says "--after-save is not done for [0-9] checkpoints: the next start tries again"
  resume h3
  check "commands: left out at the next start: said, and they stay" bash -c "grep -q '4 checkpoints wait for an earlier start' '$work/log' && [ '$(steps_of h3)' = '2 4 6 8' ]"
  resume h3 --after-save "$save"
  check "commands: given again: all are seen, and collected" test "$(saw h3)" = "2 none 4 none 6 none 8 none " -a "$(steps_of h3)" = "6 8"
  damaged h4
  mv "$work/h4/checkpoints" "$work/h4/remote"
  rm -r "$work/h4/run_status.json" "$work/h4/metrics.jsonl"
  resume h4 --before-resume 'exit 5'
  check "commands: --before-resume fails and nothing is there: nothing begins" test $rc = 70 -a ! -e "$work/h4/metrics.jsonl"
  check "commands: --before-resume fails: said" says "the command of --before-resume ended with exit code 5, and .* has no checkpoint"
  resume h4 --before-resume 'cp -r $RINGZERO_OUT/remote $RINGZERO_CHECKPOINT'
  check "commands: --before-resume brings checkpoints: the same weights" as_undisturbed h4
  resume h4 --before-resume 'exit 5'
  check "commands: --before-resume fails and checkpoints are there: goes on" test $rc = 0
  start h5 --after-save "$save" --save-every 0
  check "commands: --after-save without checkpoints: exit code 2" test $rc = 2
}

# ---- the supervisor --------------------------------------------------------------------------------------------------------

supervised() {  # supervised OUT FLAGS... -- MORE ARGS: exit code in rc
  local out=$1 flags=()
  shift
  while [ "$1" != -- ]; do flags+=("$1"); shift; done
  shift
  timeout 120 dev/run/supervise.sh --backoff 0 "${flags[@]}" -- mpirun -n 3 "$program" --out "$work/$out" "${train[@]}" \
    --no-background-save "$@" > "$work/log" 2>&1
  rc=$?
}
case_supervisor() {
  FAULT=step:0:4:kill supervised s1 --   # dies in its fourth step, its second one saved: 2, 4, 6, 8
  check "supervisor: starts again until the run has finished" as_undisturbed s1
  check "supervisor: says why" says "killed at step [0-9]+ without a word .*starts again from step 2"
  check "supervisor: counts" says "finished after 3 restarts"
  FAULT=step:1:1:error supervised s2 --
  check "supervisor: gives up without progress: exit code 3" test $rc = 3
  check "supervisor: gives up after three" says "no new checkpoint in 3 starts in a row"
  check "supervisor: knows the reason" says "start 3: .*failed with exit code 70: .*an error at step"
  FAULT=step:0:3:kill supervised s3 --max-restarts 2 --
  check "supervisor: too many restarts: exit code 3" test $rc = 3
  check "supervisor: too many restarts: said" says "gives up after 2 restarts"
  FAULT=step:1:3:usr1 supervised s4 --
  check "supervisor: asked to stop: exit code 75" test $rc = 75
  FAULT=step:1:3:usr1 supervised s4 --requeue restart --
  check "supervisor: --requeue restart continues" as_undisturbed s4
  supervised s5 -- --batch 4x
  check "supervisor: a wrong command line is not tried again" test $rc = 2
  FAULT=step:*:*:sleep=0.2 dev/run/supervise.sh -- mpirun -n 3 "$program" --out "$work/s6" "${train[@]}" > "$work/log" 2>&1 &
  local job=$!
  wait_for_step s6 3
  kill -TERM $job
  wait $job
  rc=$?
  check "supervisor: passes SIGTERM on: exit code 75" test $rc = 75
  check "supervisor: passes SIGTERM on: the run saved" says "supervise: stopped: SIGTERM on rank [0-9]; saved at step [3-7]"
}

# A step computed twice: a bit that differs is found at the step, on the rank that has it, and nothing is saved after it.
case_recheck() {
  local stage fault
  start r1 --recheck-every 2
  check "recheck: no fault: as undisturbed" as_undisturbed r1
  for stage in 0 1 2 3; do
    FAULT=recheck:1:5:flip start r2-$stage --zero $stage --recheck-every 3
    check "recheck: ZeRO-$stage, a flipped bit: exit code 73" test $rc = 73
    check "recheck: ZeRO-$stage: rank and step are named" says "step 3: computed twice, .* the second time on rank 1 \(gradients of "
    check "recheck: ZeRO-$stage: not said of others" test -z "$(grep 'computed twice.*rank [02]' "$work/log")"
    check "recheck: ZeRO-$stage: the checkpoint before stays, none comes after" test "$(steps_of r2-$stage)" = 2
    resume r2-$stage
    check "recheck: ZeRO-$stage: resumed: the same weights" as_undisturbed r2-$stage
  done
  FAULT=recheck:0:2:flip run 1 r3 "${train[@]}" --recheck-every 1
  check "recheck: one process: exit code 73" test $rc = 73
  for fault in "--tp 2" "--cp 2" "--pp 2 --batch-tokens 64"; do
    # shellcheck disable=SC2086
    FAULT=recheck:1:3:flip run 2 "r4${fault// /}" "${train[@]}" $fault --recheck-every 2
    check "recheck: $fault: exit code 73" test $rc = 73
  done
}

# The number of ranks follows the hosts: fewer, more at a restart, and more while the run is going. The same tokens each time.
case_elastic() {
  local hash
  run 4 e0 "${train[@]}" --batch 3 --steps 24
  hash=$(data_hash e0)
  elastic() {  # elastic OUT FLAGS...: ranks there are in the file $work/there
    local out=$1
    shift
    timeout 200 dev/run/supervise.sh --backoff 0 --ranks "cat $work/there" "$@" -- mpirun -n "{ranks}" "$program" --out "$work/$out" \
      "${train[@]}" --batch 3 --steps 24 > "$work/log" 2>&1
    rc=$?
  }
  echo 4 > "$work/there"
  FAULT=step:0:5:term elastic e1 --requeue exit
  check "elastic: starts with all: exit code 75" test $rc = 75
  echo 5 > "$work/there"
  FAULT=step:0:3:term elastic e1
  check "elastic: 12 sequences on 5 hosts: 4 of them, said" says "starts with 4 ranks: 5 are there"
  echo 3 > "$work/there"
  FAULT=step:0:2:term elastic e1
  check "elastic: 3 are left" says "changed  3 ranks with --zero 0, was 4"
  echo 0 > "$work/there"
  elastic e1
  check "elastic: none: exit code 2, the nearest" bash -c "[ $rc = 2 ] && grep -q '0 ranks are there, and tp 1 x pp 1 x cp 1 needs 1: nearest 1' '$work/log'"
  echo 2 > "$work/there"
  (wait_for_step e1 13 && echo 4 > "$work/there") &
  FAULT=step:*:*:sleep=1 elastic e1 --grow-every 1
  wait $!
  check "elastic: more while it runs: stopped, saved, started with them" says "stopped at step 1[0-9], since more ranks are there"
  check "elastic: says so" says "starts with 4 ranks: 4 are there, it was 2"
  check "elastic: ends" test $rc = 0
  check "elastic: the same tokens" test "$(data_hash e1)" = "$hash"
  run 5 e1 --data "$work/data" --device cpu --resume auto --steps 25 --allow-lr-jump
  check "elastic: without the supervisor: exit code 2, both nearest" bash -c "[ $rc = 2 ] && grep -q 'nearest: 4 or 6 of such ranks' '$work/log'"
}

# From too little memory for a start to enough: a message each time, never a signal. 126, 127: the loader's, before the program.
case_memory_limits() {
  local command limit tries bad args
  for command in train generate export; do
    case $command in
      train) args=("${train[@]}" --threads 1 --out "$work/m-train") ;;
      generate) args=(generate --from "$work/whole" --prompt def --max-tokens 4 --device cpu --threads 1) ;;
      export) args=(export --from "$work/whole" --to "$work/m-export" --overwrite) ;;
    esac
    bad='' tries=0 rc=1
    for ((limit = 40000; limit < 8000000 && rc != 0; limit += limit / 12)); do
      rm -rf "$work/m-train"
      (ulimit -c 0 -v $limit; timeout -s KILL 120 "$program" "${args[@]}" > "$work/log" 2>&1)
      rc=$?
      tries=$((tries + 1))
      case $rc in
        0) ;;
        70 | 71 | 126 | 127) [ -s "$work/log" ] || bad="$bad $limit:silent" ;;
        *) bad="$bad $limit:$rc" ;;
      esac
    done
    check "memory_limits: $command: enough in the end" test $rc = 0
    check "memory_limits: $command: $tries limits, none ends in a signal or silently:$bad" test -z "$bad"
  done
}
