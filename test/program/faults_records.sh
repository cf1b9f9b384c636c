# Cases of test_faults.sh about what a run has written: rows, records, checkpoints, whatever moment it was interrupted at. Sourced by it.
# shellcheck shell=bash disable=SC2154,SC2016,SC2125  # its variables; commands that another shell expands; literal stars

rows_of() { test/faults/run_rows.py "$work/$1" "${@:2}"; }
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
      check "stopped_when_due: $how in step $stop: every $kind row" test "$(grep "\"$kind\"" "$work/$out/metrics.jsonl")" = "$(grep "\"$kind\"" "$work/sd/metrics.jsonl")"
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
