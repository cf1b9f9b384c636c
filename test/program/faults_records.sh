# Cases of test_faults.sh about what a run has written: rows, records, checkpoints, whatever moment it was interrupted at. Sourced by it.
# shellcheck shell=bash disable=SC2154,SC2016,SC2125  # its variables; commands that another shell expands; literal stars

rows_of() { test/faults/run_rows.py "$work/$1" "${@:2}"; }
timeless() { grep "\"$2\"" "$work/$1/metrics.jsonl" | sed 's/,"time":[0-9]*//'; }  # rows with a key, without when they were written
same_rows() { diff <(rows_of "$1") <(rows_of "$2") > "$work/log" 2>&1; }
# Validations at 3, 6, 9; samples with every second of them; evaluations at 2, 4, 6, 8, 10; checkpoints at 3, 6, 9, 10
written=(--steps 10 --val-every 3 --sample-every 2 --sample-tokens 4 --stats-every 3 --save-every 3 --keep-every 6 --wandb p --eval-every 2
  --eval-tasks piqa --eval-data test/golden/eval --eval-limit 3 --seq-len 64)
kept_of() { python3 -c "
import json, sys
m = json.load(open('$work/$1/checkpoints/step_000000010/manifest.json'))
print(m['validations'], m['samples'], m['data_hash'], m['guards'], 'reports_due' in m)"; }

# Every kind of thing that is due, at a step at which the run is asked to stop: the same rows and checkpoints as if nobody had asked.
case_stopped_when_due() {
  local stop how out hook='echo $RINGZERO_STEP >> $RINGZERO_OUT/saw'
  due() { run 1 "$1" "${train[@]}" "${written[@]}" --after-save "$hook" "${@:2}"; }
  saw() { sort -un "$work/$1/saw" | paste -sd' '; }
  due sd
  check "stopped_when_due: undisturbed" test $rc = 0 -a "$(steps_of sd)" = "6 9 10" -a "$(grep -c val_loss "$work/sd/metrics.jsonl")" = 5
  check "stopped_when_due: undisturbed: evaluations and samples are there" test "$(grep -c '"eval"' "$work/sd/metrics.jsonl")" = 5 -a "$(grep -c '"sample"' "$work/sd/metrics.jsonl")" = 2
  for stop in 6:term $([ "$quick" ] || echo 3:usr1 4:int 8:limit); do
    how=${stop#*:} out=sd-$how stop=${stop%:*}
    # A limit that is over when its step ends.
    if [ "$how" = limit ]; then FAULT=step:0:$stop:sleep=9 due $out --time-limit 8; else FAULT=step:0:$stop:$how due $out; fi
    check "stopped_when_due: $how in step $stop: stopped after it" test $rc = 75 -a "$(status $out step)" = $stop
    check "stopped_when_due: $how in step $stop: its reports are still to be made" grep -q '"reports_due": true' "$work/$out/checkpoints/$(printf step_%09d $stop)/manifest.json"
    if [ "$how" = term ]; then  # killed after they are made, and before anything is saved
      FAULT=step:0:2:kill due $out --resume auto
      check "stopped_when_due: term in step 6: made by the next start, which is killed" grep -q '"step":6,"val_loss"' "$work/$out/metrics.jsonl"
    fi
    due $out --resume auto
    check "stopped_when_due: $how in step $stop: resumed: ends" test $rc = 0
    for kind in val_loss eval sample; do
      check "stopped_when_due: $how in step $stop: every $kind row" test "$(timeless "$out" "$kind")" = "$(timeless sd "$kind")"
    done
    check "stopped_when_due: $how in step $stop: every row of metrics, statistics, TensorBoard and W&B" same_rows sd $out
    check "stopped_when_due: $how in step $stop: the manifest's counts" test "$(kept_of $out)" = "$(kept_of sd)"
    check "stopped_when_due: $how in step $stop: the same checkpoints stay" test "$(steps_of $out)" = "$(steps_of sd)"
    check "stopped_when_due: $how in step $stop: --after-save has seen what it would have" test -z "$(comm -23 <(saw sd | tr ' ' '\n' | sort) <(saw $out | tr ' ' '\n' | sort))"
    check "stopped_when_due: $how in step $stop: the same weights" test "$(weights $out)" = "$(weights sd)"
  done
}

# A kill right after a checkpoint has appeared: what was logged before it is in its files.
case_killed_when_saved() {
  local out at
  due() { run 1 "$1" "${train[@]}" "${written[@]}" "${@:2}"; }
  due ks
  for at in 1 2; do
    out=ks-$at
    # The log's thread is late with every row.
    FAULT=log.write:0:*:sleep=0.1,checkpoint.renamed:0:$at:kill due $out
    check "killed_when_saved: save $at: killed" test $rc != 0
    check "killed_when_saved: save $at: the row of its step is there" grep -q "\"step\":$((3 * at)),\"loss\"" "$work/$out/metrics.jsonl"
    check "killed_when_saved: save $at: so is its validation" grep -q "\"step\":$((3 * at)),\"val_loss\"" "$work/$out/metrics.jsonl"
    due $out --resume auto
    check "killed_when_saved: save $at: resumed: every row of metrics, statistics, TensorBoard and W&B" same_rows ks $out
  done
}

# The flags of a start are the run's from its first step: a kill before the next save, and a plain --resume auto.
case_killed_before_a_save() {
  local how flags whole
  more() { run 1 "$1" --device cpu --threads 1 "${@:2}"; }
  python3 data_prep/prepare.py stdlib --max-bytes 300K --out "$work/data-b" > "$work/log" 2>&1
  FAULT=step:0:4:term run 1 kb "${train[@]}" --threads 1 --data "$work/data:0.5,$work/data-b:0.5" --steps 12
  cp "$work/kb/checkpoints/step_000000004/manifest.json" "$work/kb.manifest"
  cp -r "$work/kb" "$work/kb-plain"
  FAULT=step:0:2:kill more kb-plain --resume auto
  check "killed_before_a_save: nothing changed: the manifest stays as it is" cmp "$work/kb.manifest" "$work/kb-plain/checkpoints/step_000000004/manifest.json"
  more kb-plain --resume auto
  while read -r how flags <&3; do
    cp -r "$work/kb" "$work/kb-$how"
    cp -r "$work/kb" "$work/kb-$how-cut"
    # shellcheck disable=SC2086
    more kb-$how --resume auto ${flags//@/$work}
    whole=$(weights kb-$how)
    check "killed_before_a_save: $how: ends" test $rc = 0 -a "$whole" != "$(weights kb-plain)"
    # shellcheck disable=SC2086
    FAULT=step:0:2:kill more kb-$how-cut --resume auto ${flags//@/$work}
    check "killed_before_a_save: $how: killed" test $rc != 0 -a "$(steps_of kb-$how-cut)" = "2 4"
    more kb-$how-cut --resume auto
    check "killed_before_a_save: $how: a plain resume: the same weights" test $rc = 0 -a "$(weights kb-$how-cut)" = "$whole"
    check "killed_before_a_save: $how: every row" same_rows kb-$how kb-$how-cut
  done 3<< 'WAYS'
rewarm --rewarm 3 --lr 2e-3
jump --lr 5e-3 --allow-lr-jump
continue --lr-continue --min-lr 1e-4 --steps 14
shares --data @/data:0.9,@/data-b:0.1 --allow-data-change
mix --data @/data --allow-data-change
batch --batch-tokens 64
clip --clip 0.01 --weight-decay 0.5
WAYS
  # From another run's folder: the checkpoint becomes one of its own before the first step.
  more kb-branch --resume "$work/kb" --branch 4 --steps 10
  FAULT=step:0:2:kill more kb-branch-cut --resume "$work/kb" --branch 4 --steps 10
  check "killed_before_a_save: another run's checkpoint: killed" test $rc != 0
  more kb-branch-cut --resume auto
  check "killed_before_a_save: another run's checkpoint: a plain resume: the same weights" test $rc = 0 -a "$(weights kb-branch-cut)" = "$(weights kb-branch)"
}

# The one record of a run: another rank that fails forgets nothing of it, and nothing begins over what was saved.
case_record_of_another_rank() {
  FAULT=step:1:6:error start ro
  check "record_of_another_rank: ends" test $rc = 70
  check "record_of_another_rank: says who and why" bash -c "[ '$(status ro rank)' = 1 ] && [[ '$(status ro reason)' == *'an error at step'* ]]"
  check "record_of_another_rank: what was saved stays in it" test "$(status ro saved_step)" -ge 2
  rm -r "$work/ro/checkpoints"
  cp "$work/ro/metrics.jsonl" "$work/ro.metrics"
  start ro --resume auto
  check "record_of_another_rank: without the checkpoints: refused" test $rc = 2
  check "record_of_another_rank: without the checkpoints: says what was saved" says "run_status.json says that step [24] was saved.*, but no checkpoint to resume from"
  check "record_of_another_rank: without the checkpoints: metrics.jsonl stays" cmp "$work/ro.metrics" "$work/ro/metrics.jsonl"
  : > "$work/ro/run_status.json"
  start ro --resume auto
  check "record_of_another_rank: an empty record: refused" test $rc = 2
  check "record_of_another_rank: an empty record: said" says "run_status.json, which can't be read, may tell of a checkpoint"
}

# A command of the user may hold a token: no file of the run shows it, in text, TensorBoard's events or the file for W&B.
case_token_in_no_record() {
  run 1 tk "${train[@]}" --wandb p --stats-every 2 --after-save 'true token-4711'
  check "token_in_no_record: the command runs" test $rc = 0 -a -n "$(grep 'runs: true token-4711' "$work/log")"
  run 1 tk --device cpu --resume auto --steps 10 --allow-lr-jump "--after-save=true token-4711" --before-resume 'true token-4711'
  check "token_in_no_record: resumed" test $rc = 0 -a -n "$(ls "$work"/tk/wandb/offline-run-*/run-*.wandb "$work"/tk/events.out.tfevents.*)"
  grep -ral token-4711 "$work/tk" > "$work/log"
  check "token_in_no_record: no file has it" test ! -s "$work/log"
}
