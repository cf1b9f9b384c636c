#!/usr/bin/env python3
"""Every fault of test/faults/MATRIX.md whose test is a case here, or a function of faults_*.py, against the real program.

    test/program/test_faults.py ./train_llama [--quick] [--only NAME] [--launcher ranks]

What the program must survive, what it must say, and that the next start ends with the weights of a run without faults.
--quick: the rows with a star, which `make test` runs. --launcher ranks: train_llama --ranks N in place of mpirun -n N.
Ends with counts.
"""

import re
import sys

import checks
import fault_runs
import faults_around
import faults_files
import faults_training

# A case's name, then its runs (checks.Table); `whole` is the undisturbed run.
ROLLS = "--steps 40 --save-every 5 --keep 0 --on-spike rollback --rollback-steps 8 --rollback-skip 3"
CASES = rf"""
sigusr1_to_a_rank
    a  3 | fault step:1:5:usr1 | code 75 | status 'reason=SIGUSR1 on rank 1' | says stopped  after step ([56]): SIGUSR1 on rank 1; the last checkpoint is of step \1
    a  {fault_runs.RESUMED}
sigterm_in_save
    a  3 | fault checkpoint.shard.done:1:1:term,checkpoint.shard.done:2:2:term,checkpoint.agreed:0:1:term | code 75 | silent could not be saved
    a  {fault_runs.RESUMED}
nan_state
    a  3 --save-every 1 --zero 1 --dtype bf16 | fault weights:0:5:nan | code 72 | steps 3 4 | status state=failed exit_code=72 | says state of step 5 is not finite: .*safetensors: tensor [a-z_.0-9]+, element [0-9]+ is nan
    a  3 --resume auto | there | steps 7 8
    b  3 --save-every 1 --zero 1 --dtype bf16 | fault moments:2:5:nan | code 72 | steps 3 4 | status state=failed exit_code=72 | says state of step 5 is not finite: .*safetensors: tensor [a-z_.0-9]+, element [0-9]+ is nan
    b  3 --resume auto | there | steps 7 8
    c  3 --save-every 0 --zero 2 | fault weights:0:8:nan | code 72 | says not finite after step 8: .*tensor [a-z_.0-9]+, element
rollback
    r  3 {ROLLS} | fault loss:*:30:spike | status state=finished rollbacks=1 | says rollback spike of the loss, z .* at step 30 .*: on from step 20, without 39 sequences of the data \(1 of at most 3\)
    p  3 {ROLLS} | other than r
    a  3 {ROLLS} | fault loss:*:30:spike,step:0:33:kill | fails
    a  3 --resume auto | there | weights of r | status rollbacks=1
    b  3 {ROLLS} | fault loss:*:30:spike,step:0:38:kill | fails
    b  3 --resume auto | there | weights of r | status rollbacks=1
    n  3 {ROLLS} --max-skips 3 --zero 3 | fault gradient:1:25:nan,gradient:1:26:inf,gradient:1:27:nan | says rollback the loss or the gradient was not finite 3 steps in a row.*: on from step 15
    m  3 {ROLLS} --max-rollbacks 1 | fault loss:*:30+:spike | code 72 | says spike of the loss.*; after 1 rollbacks \(--max-rollbacks\)
    o  3 {ROLLS} --save-every 0 | fault loss:*:30:spike | code 72 | says there is no checkpoint to roll back to
differing_replicas
    a  3 --check-replicas 2 --zero 0 | fault weights:1:5:flip | code 73 | steps 2 4 | status exit_code=73 | says step 6: .*: rank 1 \(hash [0-9a-f]+\)
    a  {fault_runs.RESUMED}
    b  2 --check-replicas 1 | fault weights:1:5:flip | code 73 | says step 5: .*rank 0 .*rank 1 .*one of the two is wrong
    c  3 --check-replicas 1 --zero 2 | weights of whole
    d  3 --check-replicas 1 --zero 0 | fault moments:1:5:flip | code 73 | says step 5: AdamW's m of these ranks are not those .*: rank 1 \(hash [0-9a-f]+\), in [a-z_.]+$
    e  3 --check-replicas 1 --zero 0 --dtype bf16 | fault masters:2:5:flip | code 73 | says step 5: the master weights of these ranks are not those .*: rank 2 \(hash [0-9a-f]+\), in [a-z_.]+$
    f  4 --check-replicas 5 --zero 2 --shard-size 2 | fault moments:3:5:flip | code 73 | says step 5: AdamW's m .*rank 1 .*rank 3 .*one of the two is wrong
    g  4 --check-replicas 5 --zero 3 --shard-size 2 | fault weights:3:5:flip | code 73 | says step 5: .*rank 1 .*rank 3 .*one of the two is wrong
recheck
    a  3 --recheck-every 2 | weights of whole
    b  3 --zero 0 --recheck-every 3 | fault recheck:1:5:flip | code 73 | steps 2 | says step 3: computed twice, .* the second time on rank 1 \(gradients of | silent computed twice.*rank [02]
    b  {fault_runs.RESUMED}
    c  3 --zero 1 --recheck-every 3 | fault recheck:1:5:flip | code 73 | steps 2 | says step 3: computed twice, .* the second time on rank 1 \(gradients of | silent computed twice.*rank [02]
    c  {fault_runs.RESUMED}
    d  3 --zero 2 --recheck-every 3 | fault recheck:1:5:flip | code 73 | steps 2 | says step 3: computed twice, .* the second time on rank 1 \(gradients of | silent computed twice.*rank [02]
    d  {fault_runs.RESUMED}
    e  3 --zero 3 --recheck-every 3 | fault recheck:1:5:flip | code 73 | steps 2 | says step 3: computed twice, .* the second time on rank 1 \(gradients of | silent computed twice.*rank [02]
    e  {fault_runs.RESUMED}
    f  1 --recheck-every 1 | fault recheck:0:2:flip | code 73
    g  2 --tp 2 --recheck-every 2 | fault recheck:1:3:flip | code 73
    h  2 --cp 2 --recheck-every 2 | fault recheck:1:3:flip | code 73
    i  2 --pp 2 --batch-tokens 64 --recheck-every 2 | fault recheck:1:3:flip | code 73
changed_message
    a  3 --check-wire 2 | weights of whole
    b  3 --zero 0 --check-wire 1 | fault wire:1:40:flip | code 73 | says step [1-8]: bits changed between the memories of two ranks: from rank [02] to rank 1 in [a-z_]+ #[0-9]+ of group [a-z]+, message [0-9]+ between them in a step, of [0-9]+ bytes
    c  3 --zero 1 --check-wire 1 | fault wire:1:40:flip | code 73 | says from rank [02] to rank 1 in [a-z_]+ #[0-9]+ of group [a-z]+, message [0-9]+
    d  3 --zero 2 --collectives direct --check-wire 1 | fault wire:1:40:flip | code 73 | says from rank [02] to rank 1 in [a-z_]+ #[0-9]+ of group [a-z]+, message [0-9]+
    e  3 --zero 3 --check-wire 1 | fault wire:1:40:flip | code 73 | says from rank [02] to rank 1 in [a-z_]+ #[0-9]+ of group [a-z]+, message [0-9]+
    f  2 --tp 2 --check-wire 1 | fault wire:1:9:flip | code 73 | says from rank 0 to rank 1 in
    g  2 --cp 2 --check-wire 1 | fault wire:1:9:flip | code 73 | says from rank 0 to rank 1 in
    h  2 --pp 2 --batch-tokens 64 --check-wire 1 | fault wire:1:9:flip | code 73 | says from rank 0 to rank 1 in
    i  3 --check-wire 100 | fault wire:1:60:flip | code 73
    i  {fault_runs.RESUMED}
"""


def main():
    cases = {}
    for line in CASES.strip().splitlines():
        if not line.startswith(" "):
            cases[line] = []
        else:
            cases[list(cases)[-1]].append(line)
    modules = faults_files, faults_training, faults_around
    matrix = (checks.ROOT / "test/faults/MATRIX.md").read_text()
    names = dict(re.findall(r"`([a-z_0-9]+)`( \*)? \|$", matrix, re.M))
    chosen = [name for name, star in names.items() if star or not fault_runs.QUICK]
    if fault_runs.options.only:
        chosen = [name for name in names if name == fault_runs.options.only]
        if not chosen:
            sys.exit(f"no case is called {fault_runs.options.only}; there are: {' '.join(names)}")
    kept = set(checks.work.iterdir())
    for name in chosen:
        functions = [getattr(module, name) for module in modules if hasattr(module, name)]
        steps = [lambda name=name: fault_runs.rows("\n".join(cases[name]))] if name in cases else []
        checks.run_case(name, steps + functions)
        checks.remove(*set(checks.work.iterdir()) - kept)
    checks.end()


main()
