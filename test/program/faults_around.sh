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
  check "commands: --after-save: printed before it runs" says "^hook     --after-save runs: echo"
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
  check "commands: --before-resume: printed before it runs" says "^hook     --before-resume runs: cp -r"
  resume h4 --before-resume 'exit 5'
  check "commands: --before-resume fails and checkpoints are there: continues" test $rc = 0
  start h5 --after-save "$save" --save-every 0
  check "commands: --after-save without checkpoints: exit code 2" test $rc = 2
}

# ---- file systems, hosts, folders --------------------------------------------------------------------------------------

shim=$PWD/build/libfile_faults.so
needs_shim() { [ -r "$shim" ] && return; skip "$1: build/libfile_faults.so is not there: make it"; return 1; }
steps_after() { awk -v text="$1" 'index($0, text) { on = 1 } on && /^step +[0-9]+\// { n++ } END { print n + 0 }' "$work/log"; }

# A call that takes longer than any deadline of training: said, trained on, and nothing differs in the end.
case_hanging_files() {
  needs_shim hanging_files || return
  local rank out
  hang() {  # hang OUT RANK FOLDERS SECONDS FLAGS...
    local out=$1 rank=$2 folders=$3 seconds=$4
    shift 4
    LD_PRELOAD=$shim FAULT_PATHS=$folders FAULT_RANK=$rank FAULT_AT=1 FAULT_DO=hang=$seconds FAULT=step:*:*:sleep=1 \
      start "$out" --log-every 1 --timeout 5 "$@"
  }
  hang f1 0 "$work/f1/loss.svg" 7 --val-every 2
  check "hanging_files: logs: no deadline is met, the same weights" as_undisturbed f1
  check "hanging_files: logs: said" says "the file system of --out hangs: logs have waited"
  check "hanging_files: logs: training continued" test "$(steps_after 'of --out hangs')" -ge 3
  check "hanging_files: logs: nothing of them is lost" test "$(grep -c '"loss"' "$work/f1/metrics.jsonl")" = 8
  for rank in 0 1; do
    out=f2-$rank
    hang $out $rank "$work/$out/checkpoints/.tmp" 6 --save-every 4
    check "hanging_files: a save on rank $rank: the same weights" as_undisturbed $out
    check "hanging_files: a save on rank $rank: said" says "rank $rank: the checkpoint of step 4: the file system has not answered"
    check "hanging_files: a save on rank $rank: training continued" test "$(steps_after 'has not answered')" -ge 2
    check "hanging_files: a save on rank $rank: both checkpoints are there" test "$(steps_of $out)" = "4 8"
  done
}

# Hosts whose flock sees no other's, hosts without one, and one of each: two never hold a folder.
case_two_hosts() {
  needs_shim two_hosts || return
  local how first second n flocks won
  on_host() {  # on_host NAME FLOCK OUT: one process. FLOCK: real, local (each host its own), absent
    local flock=()
    [ "$2" = real ] || flock=(FAULT_FLOCK="$2")
    env LD_PRELOAD="$shim" FAULT_HOST="$1" "${flock[@]}" timeout 120 "$program" "${train[@]}" --out "$work/$3" --resume auto
  }
  for how in local:local absent:absent real:absent absent:real; do
    first=${how%:*} second=${how#*:}
    two_in_turn two_hosts "flock $first, $second" on_host nodea "$first" nodeb "$second"
    rm -rf "$work/g"
    FAULT=step:0:3:kill on_host nodea "$first" g > "$work/log" 2>&1
    flocks=("$first" "$second")
    for n in 1 2 3 4; do
      # The one that continues is still there when the last of the others looks.
      (export FAULT=step:*:*:sleep=2; on_host node$n "${flocks[n % 2]}" g > "$work/log.$n" 2>&1; echo $? > "$work/g.rc.$n") &
    done
    wait
    won=$(cat "$work"/g.rc.[1-4] | grep -c '^0$')
    cat "$work"/log.[1-4] > "$work/log"
    check "two_hosts: flock $first, $second: of four that find a dead one's lock one continues" test "$won" = 1
    check "two_hosts: flock $first, $second: after looking whether it lives" says "looks for [0-9]+ s whether its run still lives"
  done
  # Host names and process numbers of the kernel's own: namespaces.
  in_namespaces() {  # in_namespaces NAME FLOCK OUT
    local flock=()
    [ "$2" = real ] || flock=(LD_PRELOAD="$shim" FAULT_FLOCK="$2")
    timeout 120 unshare --uts --pid --fork --kill-child --mount-proc sh -c 'hostname "$1" && shift && exec "$@"' host "$1" \
      env "${flock[@]}" "$program" "${train[@]}" --out "$work/$3" --resume auto
  }
  if ! unshare --uts --pid --fork --mount-proc hostname nodea 2> /dev/null; then
    skip "two_hosts: namespaces can't be made here"
    return
  fi
  for how in real:absent absent:real; do
    two_in_turn two_hosts "namespaces, flock ${how%:*}, ${how#*:}" in_namespaces nodea "${how%:*}" nodeb "${how#*:}"
  done
}
# two_in_turn CASE WHAT STARTER HOST FLOCK HOST FLOCK: the second is refused while the first runs, which ends well.
two_in_turn() {
  local running
  rm -rf "$work/g"
  (export FAULT=step:*:*:sleep=2; "$3" "$4" "$5" g > "$work/log.first" 2>&1; echo $? > "$work/g.rc") &
  running=$!
  wait_for_step g 2
  "$3" "$6" "$7" g > "$work/log" 2>&1
  rc=$?
  check "$1: $2: the second is refused" test $rc = 70
  check "$1: $2: and told who has it" says "another run writes there \(pid [0-9]+ on host $4 "
  wait $running
  check "$1: $2: the first ends well" test "$(cat "$work/g.rc")" = 0
  check "$1: $2: its lock goes with it" test ! -e "$work/g/run.lock.owner"
}

# A call of another rank's share of a checkpoint fails once; that rank can say so only through the files it shares.
# Rank 0 is late with the folder, so the first call comes before there is anything to open.
case_share_fails() {
  needs_shim share_fails || return
  local k what site in_save
  for what in "1 ESTALE" "2 ESTALE" "4 ESTALE" "7 ESTALE" "12 ESTALE" "18 ESTALE" "25 ESTALE" "1 EMFILE"; do
    k=${what% *}
    rm -rf "$work/sf"
    LD_PRELOAD=$shim FAULT_PATHS=$work/sf/checkpoints/.tmp FAULT_RANK=1 FAULT_AT=$k FAULT_DO=${what#* } FAULT=checkpoint.mkdir:0:1:sleep=1 start sf
    check "share_fails: call $what: happened" says "^FAULT: .* \(call $k\)"
    check "share_fails: call $what: no rank waits for it; the same weights" as_undisturbed sf
    check "share_fails: call $what: the next saves work" test "$(steps_of sf)" = "6 8"
  done
  # Each place where a rank opens the file in which ranks say how far they are, with an error that opening alone doesn't try again.
  for k in 1 0; do
    rm -rf "$work/sf" "$work/sf.trace"
    LD_PRELOAD=$shim FAULT_PATHS=$work/sf/checkpoints/.tmp FAULT_RANK=$k FAULT_TRACE=$work/sf.trace start sf
    while read -r site <&3; do
      rm -rf "$work/sf"
      LD_PRELOAD=$shim FAULT_PATHS=$work/sf/checkpoints/.tmp FAULT_RANK=$k FAULT_SITE=$site:1 FAULT_DO=EMFILE start sf
      in_save="share_fails: rank $k can't open the file of reports at $site"
      check "$in_save: happened" says "^FAULT: open"
      check "$in_save: no rank waits for it; the same weights" as_undisturbed sf
      check "$in_save: every save works" test "$(steps_of sf)" = "6 8" -a "$(grep -c 'could not be saved' "$work/log")" = 0
    done 3< <(sed -nE 's/^[0-9]+ ([0-9a-f]+) [0-9a-f]+ open .*\/ranks\.tmp$/\1/p' "$work/sf.trace" | sort -u)
  done
}

# A rank that ends before MPI is there: its job ends with it, long before --timeout.
case_before_mpi() {
  needs_shim before_mpi || return
  local how
  for how in "FAULT_AT=1" "FAULT_AT=40" "FAULT_AT=1 FAULT_BEFORE_MAIN=1 FAULT_DO=abort" "FAULT_AT=40 FAULT_DO=abort" "FAULT_AT=40 FAULT_DO=throw"; do
    # shellcheck disable=SC2086
    (export LD_PRELOAD=$shim FAULT_KINDS=memory FAULT_RANK=1 FAULT_DO=ENOMEM; export $how; start bm --timeout 600; exit $rc)
    rc=$?
    if [[ $how == *BEFORE_MAIN* ]] && ! says "^FAULT: "; then skip "before_mpi: this program asks for nothing before main()"; continue; fi
    check "before_mpi: $how: happened" says "^FAULT: "
    check "before_mpi: $how: the job ends" test $rc != 0 -a $rc != 137
    check "before_mpi: $how: the one rank says why" says "train_llama: (out of memory|crashed before main|aborted;)"
    check "before_mpi: $how: the others did not wait for it" test -z "$(grep "start-up did not end" "$work/log")"
    check "before_mpi: $how: nothing of the job is left" gone bm
  done
}

# An end from inside a library, wherever it is: words and 70, never a bare signal; the next start continues.
case_aborts() {
  needs_shim aborts || return
  local how words job
  one() { timeout -s KILL 120 "$program" "${train[@]}" --out "$work/$1" --resume auto > "$work/log" 2>&1; rc=$?; }
  one ab0
  while read -r how words <&3; do
    (export LD_PRELOAD=$shim FAULT_PATHS=$work/ab-$how/checkpoints/.tmp FAULT_AT=20 FAULT_DO=$how; one "ab-$how"; exit $rc)
    rc=$?
    check "aborts: $how: exit code 70" test $rc = 70
    check "aborts: $how: said" says "train_llama: $words"
    one "ab-$how"
    check "aborts: $how: the next start has the same weights" test $rc = 0 -a "$(weights "ab-$how")" = "$(weights ab0)"
  done 3<<'END'
abort aborted; the line above says why
terminate aborted; the line above says why
throw out of memory where nothing can be undone
END
  FAULT=step:*:*:sleep=0.3 "$program" "${train[@]}" --out "$work/ab1" > "$work/log" 2>&1 &
  job=$!
  wait_for_step ab1 2
  kill -ABRT $job
  wait $job
  rc=$?
  check "aborts: SIGABRT: exit code 70" test $rc = 70
  check "aborts: SIGABRT: said" says "train_llama: aborted; the line above says why"
}

# Files that a run has read at its start are not needed again.
case_vanished_files() {
  cp -r "$work/data" "$work/gone"
  FAULT=step:*:*:sleep=0.4 timeout 60 "$program" "${train[@]}" --data "$work/gone" --out "$work/v1" > "$work/log" 2>&1 &
  local job=$!
  wait_for_step v1 1
  rm -r "$work/gone"
  wait $job
  rc=$?
  check "vanished_files: the run ends well" test $rc = 0
  check "vanished_files: every checkpoint is saved" test "$(steps_of v1)" = "6 8" -a -z "$(grep 'could not be saved' "$work/log")"
  check "vanished_files: with the tokenizer" cmp "$work/v1/final/tokenizer.json" "$work/data/tokenizer.json"
}

# Names are data: of no shell, of no program, of no encoding.
case_odd_paths() {
  local odd="$work/o'q\"; touch $work/owned; echo \$(touch $work/owned)" bytes=$'caf\xe9'
  timeout 60 dev/run/supervise.sh --backoff 0 -- "$program" --out "$odd" "${train[@]}" > "$work/log" 2>&1
  rc=$?
  check "odd_paths: the supervisor: quotes and commands in --out" test $rc = 0 -a -e "$odd/final/model.safetensors" -a ! -e "$work/owned"
  mkdir "$work/$bytes"
  cp -r "$work/data" "$work/$bytes/data"
  (cd "$work/$bytes" && FAULT=step:0:5:term "$program" "${train[@]}" --data data --out run > "$work/log" 2>&1)
  rc=$?
  check "odd_paths: bytes that are no UTF-8: saved" test $rc = 75 -a -z "$(grep 'could not be saved' "$work/log")"
  "$program" --out "$work/$bytes/run" --resume auto --device cpu > "$work/log" 2>&1
  rc=$?
  check "odd_paths: a relative --data is found from another folder" test $rc = 0
}

# Two supervisors, and the death of what lies between mpirun and the ranks.
case_two_supervisors() {
  local job before proxy
  by 3
  FAULT=step:*:*:sleep=0.5 dev/run/supervise.sh --backoff 0 -- "${by[@]}" --out "$work/u1" "${train[@]}" > "$work/log.first" 2>&1 &
  job=$!
  wait_for_step u1 3
  before=$(cat "$work/u1/supervise.lock"; ls "$work/u1")
  dev/run/supervise.sh -- "${by[@]}" --out "$work/u1" "${train[@]}" > "$work/log" 2>&1
  rc=$?
  check "two_supervisors: the second is refused" test $rc = 2
  check "two_supervisors: and has touched nothing" test "$before" = "$(cat "$work/u1/supervise.lock"; ls "$work/u1")"
  if [ "$launcher" = ranks ]; then proxy=$(pgrep -P $job -f -- "--ranks 3"); else proxy=$(pgrep -P "$(pgrep -P $job mpirun)" hydra_pmi_proxy); fi
  kill -KILL "$proxy"
  wait $job
  rc=$?
  cp "$work/log.first" "$work/log"
  check "two_supervisors: kill -9 of mpirun's proxy: 0 is said of a run that is at its end, and of no other" as_undisturbed u1
  check "two_supervisors: kill -9 of mpirun's proxy: said" says "supervise: finished after"
}

case_hangup_and_clocks() {
  FAULT=step:*:*:sleep=0.3 "$program" "${train[@]}" --out "$work/hup" > "$work/log" 2>&1 &
  local job=$! began
  wait_for_step hup 2
  kill -HUP $job
  wait $job
  rc=$?
  check "hangup_and_clocks: SIGHUP: saved, 75" test $rc = 75 -a -n "$(steps_of hup)"
  needs_shim hangup_and_clocks || return
  LD_PRELOAD=$shim FAULT_CLOCK=1:86400 FAULT=step:*:*:sleep=0.3 "$program" "${train[@]}" --time-limit 1h --out "$work/clock1" > "$work/log" 2>&1
  rc=$?
  check "hangup_and_clocks: the clock jumps a day: --time-limit has not come" test $rc = 0 -a -n "$(grep 'clock jumps' "$work/log")"
  began=$(seconds)
  LD_PRELOAD=$shim FAULT_CLOCK=1:-86400 FAULT=step:*:*:sleep=0.3 "$program" "${train[@]}" --steps 1000 --time-limit 6 --out "$work/clock" > "$work/log" 2>&1
  rc=$?
  check "hangup_and_clocks: the clock goes back a day: --time-limit comes" test $rc = 75
  check "hangup_and_clocks: in time" within "$began" 30
}

# Numbers that are none: on the way in, and without a folder to save to.
case_nan_weights() {
  local file
  cp -r "$work/whole/final" "$work/nan"
  python3 - "$work/nan/model.safetensors" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(-4, 2)
    f.write(b"\0\0\xc0\x7f")
PY
  file="model.safetensors: tensor [a-z_.0-9]+, element [0-9]+ is nan"
  "$program" generate --from "$work/nan" --prompt a --max-tokens 2 --device cpu > "$work/log" 2>&1
  rc=$?
  check "nan_weights: generate: named, exit code 72 or 70" bash -c "[[ $rc == 7[02] ]] && grep -qE '$file' '$work/log'"
  "$program" export --from "$work/nan" --to "$work/nan-exported" > "$work/log" 2>&1
  rc=$?
  check "nan_weights: export: named, and nothing is written" bash -c "[[ $rc == 7[02] ]] && grep -qE '$file' '$work/log' && [ ! -e '$work/nan-exported/model.safetensors' ]"
  "$program" --init-from "$work/nan" --data "$work/data" --device cpu --batch 1 --seq-len 32 --steps 2 --val-every 0 > "$work/log" 2>&1
  rc=$?
  check "nan_weights: a run without --out: named" bash -c "[[ $rc == 7[02] ]] && grep -qE '$file' '$work/log'"
  "$program" "${shape[@]}" --data "$work/data" --val-every 0 --steps 60 --lr 1000 --warmup 0 --max-grad-norm 0 > "$work/log" 2>&1
  rc=$?
  check "nan_weights: a rate that blows the weights up, without --out: exit code 72" test $rc = 72
}

# The run directories of jobs that were killed are removed by a later one; those with a reason after a day. A job that has
# said its reason leaves none.
case_left_folders() {
  export TMPDIR=$work/tmp
  mkdir "$TMPDIR"
  left() { ls "$TMPDIR" | grep -c '^ringzero-'; }
  FAULT=step:1:2:kill start t1 --save-every 0
  check "left_folders: a killed job leaves one" test "$(left)" = 1
  mv "$TMPDIR"/ringzero-* "$TMPDIR/ringzero-killed"
  FAULT=step:1:2:error start t2 --save-every 0
  check "left_folders: a job that fails in words leaves none" test "$(left)" = 1 -a $rc = 70
  mkdir "$TMPDIR/ringzero-reason"
  touch "$TMPDIR/ringzero-reason/failure.txt" "$TMPDIR/ringzero-reason/alive"
  start t3 --save-every 0
  check "left_folders: young ones stay" test "$(left)" = 2
  find "$TMPDIR" -exec touch -d '2 hours ago' {} +
  start t4 --save-every 0
  check "left_folders: the killed one's goes, the reason stays for a day" test "$(cd "$TMPDIR" && echo ringzero-*)" = ringzero-reason
  find "$TMPDIR" -exec touch -d '2 days ago' {} +
  start t5 --save-every 0
  check "left_folders: then it goes too" test "$(left)" = 0
  unset TMPDIR
}

# A manifest of version 1 has no checksum: a flag that can't be meant shows that it is damaged.
case_old_manifest() {
  local from to
  while read -r from to <&3; do
    damaged w1
    sed -i '/"checksum"/d; s/"version": 2/"version": 1/' "$work"/w1/checkpoints/step_*/manifest.json
    sed -i "s/$from/$to/" "$work/w1/checkpoints/step_000000006/manifest.json"
    resume w1
    check "old_manifest: $to: named" says "checkpoint refused: .*step_000000006/manifest.json"
    check "old_manifest: $to: falls back, the same weights" as_undisturbed w1
  done 3<<'END'
"lr":."0.001" "lr": "0.0p1"
"steps":."8" "steps": "(8"
"save-every":."2" "save-every": "-2"
END
}

# ---- the supervisor --------------------------------------------------------------------------------------------------------

supervised() {  # supervised OUT FLAGS... -- MORE ARGS: exit code in rc
  local out=$1 flags=()
  shift
  while [ "$1" != -- ]; do flags+=("$1"); shift; done
  shift
  by 3
  timeout 120 dev/run/supervise.sh --backoff 0 "${flags[@]}" -- "${by[@]}" --out "$work/$out" "${train[@]}" \
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
  FAULT=step:*:*:sleep=0.2 dev/run/supervise.sh -- "${by[@]}" --out "$work/s6" "${train[@]}" > "$work/log" 2>&1 &
  local job=$!
  wait_for_step s6 3
  kill -TERM $job
  wait $job
  rc=$?
  check "supervisor: passes SIGTERM on: exit code 75" test $rc = 75
  check "supervisor: passes SIGTERM on: the run saved" says "supervise: stopped: SIGTERM on rank [0-9]; saved at step [3-7]"
}

# The copy of the state for saves in the background is allocated at the start; where that fails, training waits for each save.
# Its place is the one buffer that a run with --no-background-save has not.
case_copy_fails() {
  needs_shim copy_fails || return
  local how site
  one() { timeout -s KILL 120 "$program" "${train[@]}" --threads 1 --out "$work/$1" "${@:2}" > "$work/log" 2>&1; rc=$?; }
  for how in "" --no-background-save; do
    # shellcheck disable=SC2086
    LD_PRELOAD=$shim FAULT_KINDS=memory FAULT_TRACE=$work/cf-trace$how one "cf$how" $how
    awk '$4 ~ /^(aligned_alloc|posix_memalign)$/ { print $2 }' "$work/cf-trace$how" | sort -u > "$work/cf-sites$how"
  done
  local tried=0 said=0 wrong=""
  while read -r site <&3; do
    tried=$((tried + 1))
    LD_PRELOAD=$shim FAULT_KINDS=memory FAULT_SITE=$site:1 FAULT_DO=ENOMEM one "cf-$site"
    says "no memory for a copy of the state .*training waits for each checkpoint" || continue
    said=$((said + 1))
    [ $rc = 0 ] && [ "$(weights "cf-$site")" = "$(weights cf)" ] && [ "$(steps_of "cf-$site")" = "6 8" ] || wrong="$wrong $site"
  done 3< <(comm -23 "$work/cf-sites" "$work/cf-sites--no-background-save")
  check "copy_fails: one place of $tried is the copy's: said at the start, and the same checkpoints and weights:$wrong" test $said = 1 -a -z "$wrong"
}

# A launcher that stays without its ranks, as Hydra's mpirun where its processes can't reach each other.
case_hung_start() {
  cat > "$work/launcher" <<'END'
# launcher FOLDER TIMES COMMAND...: hangs so many times, with a child in a session of its own, then runs the command
n=$(cat "$1/starts" 2> /dev/null)
echo $((${n:-0} + 1)) > "$1/starts"
if [ "${n:-0}" -lt "$2" ]; then
  trap '' TERM
  setsid sleep 1000 &
  echo $! >> "$1/children"
  [ "$2" -lt 3 ] || trap 'exit 2' TERM  # a launcher's own code, not that of a wrong command line
  wait
fi
exec "${@:3}"
END
  hung() {  # hung FOLDER TIMES FLAGS...
    mkdir "$work/$1"
    by 3
    timeout 300 dev/run/supervise.sh --backoff 0 "${@:3}" -- bash "$work/launcher" "$work/$1" "$2" "${by[@]}" --out "$work/$1/out" "${train[@]}" \
      > "$work/log" 2>&1
    rc=$?
  }
  none_left() {  # none_left FILE: the processes whose numbers it holds have ended, or do so now
    local pid n
    while read -r pid; do
      for ((n = 0; n < 50; ++n)); do grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$pid/status" || continue 2; sleep 0.1; done
      return 1
    done < "$1"
  }
  hung h1 1 --start-timeout 20  # seconds that the second start, which is a real one, has too
  check "hung_start: said" says "supervise: did not start within 20 s; starts again from step 0"
  check "hung_start: the launcher and its child are ended, though it ignores SIGTERM" none_left "$work/h1/children"
  check "hung_start: the next start has the weights of an undisturbed run" as_undisturbed h1/out
  hung h2 9 --start-timeout 5
  check "hung_start: always: gives up after three, exit code 3" test $rc = 3
  check "hung_start: always: says why" says "start 3: checkpoints from step 0 to 0; did not start within 5 s"
  check "hung_start: always: nothing is left" none_left "$work/h2/children"
  mkdir "$work/h3"
  cat > "$work/launcher" <<'END'
echo '{"state": "failed", "step": 0, "exit_code": 71, "reason": "rank 1 was not heard of", "started": "now", "pid": 1, "host": "h"}' > "$4/run_status.json"
sleep 1000 &
echo $! > "$1/children"
wait
END
  timeout 300 dev/run/supervise.sh --max-restarts 0 --start-timeout 10 -- bash "$work/launcher" "$work/h3" "$program" --out "$work/h3/out" \
    > "$work/log" 2>&1
  rc=$?
  check "hung_start: a run that has failed and whose launcher stays: exit code 3" test $rc = 3
  check "hung_start: a run that has failed and whose launcher stays: said" \
    says "failed with exit code 71: rank 1 was not heard of; its launcher stayed and was ended"
  check "hung_start: a run that has failed and whose launcher stays: nothing is left" none_left "$work/h3/children"
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

# A bit that changes between two ranks' memories, on each way that messages take.
case_changed_message() {
  local how
  start x1 --check-wire 2
  check "changed_message: no fault: as undisturbed" as_undisturbed x1
  for how in "--zero 0" "--zero 1" "--zero 2 --collectives direct" "--zero 3"; do
    # shellcheck disable=SC2086
    FAULT=wire:1:40:flip start "x2${how// /}" $how --check-wire 1
    check "changed_message: $how: exit code 73" test $rc = 73
    check "changed_message: $how: ranks, operation and group are named" says "step [1-8]: bits changed between the memories of two ranks: from rank [02] to rank 1 in [a-z_]+ #[0-9]+ of group [a-z]+, message [0-9]+ between them in a step, of [0-9]+ bytes"
  done
  for how in "--tp 2" "--cp 2" "--pp 2 --batch-tokens 64"; do
    # shellcheck disable=SC2086
    FAULT=wire:1:9:flip run 2 "x3${how// /}" "${train[@]}" $how --check-wire 1
    check "changed_message: $how: exit code 73" test $rc = 73
    check "changed_message: $how: named" says "from rank 0 to rank 1 in "
  done
  FAULT=wire:1:60:flip start x4 --check-wire 100
  check "changed_message: compared before a save: 73" test $rc = 73
  resume x4
  check "changed_message: what was saved is good: the next start has the same weights" as_undisturbed x4
  start x5 --check-wire 1 --collectives library
  check "changed_message: MPI's own collectives: refused, 2" test $rc = 2
}

# The number of ranks follows the hosts: fewer, more at a restart, and more while the run is going. The same tokens each time.
case_elastic() {
  local hash
  run 4 e0 "${train[@]}" --batch 3 --steps 24
  hash=$(data_hash e0)
  elastic() {  # elastic OUT FLAGS...: ranks there are in the file $work/there
    local out=$1
    shift
    by "{ranks}"
    timeout 200 dev/run/supervise.sh --backoff 0 --ranks "cat $work/there" "$@" -- "${by[@]}" --out "$work/$out" \
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

# Threads that OpenMP or the program asks for, and allocations inside oneDNN, fail one at a time: words and an
# exit code of the table, or the undisturbed weights; no loss is printed that is not the undisturbed run's. More threads
# than any machine here could use are refused.
case_libraries_fail() {
  needs_shim libraries_fail || return
  local what k bad='' reached=0 wanted kinds
  printed() { sed -nE 's/^(step +[0-9]+\/[0-9]+ \| loss [^ ]+).*/\1/p' "$work/log"; }
  timeout 60 "$program" "${train[@]}" --threads 65536 --out "$work/l-absurd" > "$work/log" 2>&1
  rc=$?
  check "libraries_fail: absurd --threads: exit code 2, the nearest" bash -c "[ $rc = 2 ] && grep -q 'nearest: --threads ' '$work/log'"
  timeout 60 "$program" "${train[@]}" --threads 3 --steps 3 --log-every 1 --out "$work/l-whole" > "$work/log" 2>&1
  wanted=$(weights l-whole)
  printed > "$work/l-losses"
  for what in threads:{1,2,3,4,5,6,7,8,9,10,12,14} libdnnl:{1,8,11,64,128,512}; do
    k=${what#*:} kinds="FAULT_KINDS=threads"
    [ "${what%:*}" = threads ] || kinds="FAULT_KINDS=memory FAULT_MODULE=libdnnl"
    rm -rf "$work/l"
    # shellcheck disable=SC2086
    env LD_PRELOAD="$shim" $kinds FAULT_AT=$k FAULT_DO=ENOMEM timeout -s KILL 60 "$program" "${train[@]}" --threads 3 --steps 3 \
      --log-every 1 --out "$work/l" > "$work/log" 2>&1
    rc=$?
    says "^FAULT: " || continue
    reached=$((reached + 1))
    printed | grep -vxqFf "$work/l-losses" && bad="$bad $what:other-loss"
    case $rc in
      0) [ "$(weights l)" = "$wanted" ] || bad="$bad $what:other-weights" ;;
      70) says "train_llama: [^ ]+ [^ ]+" || bad="$bad $what:silent" ;;
      *) bad="$bad $what:$rc" ;;
    esac
  done
  check "libraries_fail: $reached threads and allocations, each with words or the same weights, and no other loss:$bad" test -z "$bad" -a $reached -gt 10
  LD_PRELOAD=$shim FAULT_KINDS=memory FAULT_MODULE=libdnnl FAULT_RANK=0 FAULT_AT=300 FAULT_DO=ENOMEM run 2 l-pp "${train[@]}" --threads 1 --log-every 1 --pp 2 --batch-tokens 64
  check "libraries_fail: a product of a pipeline's first rank: 70 at once, not the other rank's deadline; no loss" test $rc = 70 -a -z "$(printed)"
  check "libraries_fail: a product of a pipeline's first rank: named" says "rank 0 of 2: out of memory: an allocation of the host failed"
}

# From too little memory for a start to enough: a message each time, never a signal. What ends a start before the loader hands over
# to the program is not the program's: 126, 127, and crashes in the constructors of libraries (UCX's has some).
case_memory_limits() {
  local command limit least tries bad args
  least=$(($(stat -c %s "$program") / 1024 + 12000))  # below it the kernel ends a start while it maps the program
  for command in train generate export; do
    case $command in
      train) args=("${train[@]}" --threads 1 --out "$work/m-train") ;;
      generate) args=(generate --from "$work/whole" --prompt def --max-tokens 4 --device cpu --threads 1) ;;
      export) args=(export --from "$work/whole" --to "$work/m-export" --overwrite) ;;
    esac
    bad='' tries=0 rc=1
    for ((limit = least; limit < 8000000 && rc != 0; limit += limit / 12)); do
      rm -rf "$work/m-train" "$work"/loader.*
      (ulimit -c 0 -v $limit; LD_DEBUG=files LD_DEBUG_OUTPUT=$work/loader timeout -s KILL 120 "$program" "${args[@]}" > "$work/log" 2>&1)
      rc=$?
      tries=$((tries + 1))
      case $rc in
        0) ;;
        70 | 71 | 126 | 127) [ -s "$work/log" ] || bad="$bad $limit:silent" ;;
        *) grep -qsF "transferring control: $program" "$work"/loader.* && bad="$bad $limit:$rc" ;;
      esac
    done
    check "memory_limits: $command: enough in the end" test $rc = 0
    check "memory_limits: $command: $tries limits, none ends in a signal or silently:$bad" test -z "$bad"
  done
}
