#!/usr/bin/env bash
# Launch scripts run dry, the Slurm script against stand-ins, recipes read by the program, installation into a folder.
# Ends with "N passed, N failed".
#
#   test/program/test_launch.sh ./train_llama
set -uo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit
. test/program/check.sh

says() { for t in "$@"; do grep -qF -- "$t" "$work/log" || { echo "does not say: $t"; return 1; }; done; }
run_says() {  # run_says CODE TEXT... -- COMMAND...
  local code=$1 rc=0 texts=()
  shift
  while [ "$1" != -- ]; do texts+=("$1"); shift; done
  shift
  "$@" > "$work/log" 2>&1 || rc=$?
  [ $rc = "$code" ] || { echo "exit code $rc, expected $code: $*"; return 1; }
  says "${texts[@]}"
}

# ---- threads that wait ----
waits() { env -u OMP_WAIT_POLICY "$@" OMP_DISPLAY_ENV=verbose "$program" --version 2>&1 | grep -o "GOMP_SPINCOUNT = .*" | tail -n 1; }
check "threads sleep while they wait" test "$(waits)" = "GOMP_SPINCOUNT = '0'"
check "and wait as the environment says" test "$(waits GOMP_SPINCOUNT=77)" = "GOMP_SPINCOUNT = '77'"

name_of_run() {  # as `top` shows it, once main has begun
  env -u OMP_WAIT_POLICY "$program" --data synthetic --out "" --quiet --device cpu --steps 100000 > "$work/log" 2>&1 &
  for _ in $(seq 50); do
    grep -qz OMP_WAIT_POLICY=passive "/proc/$!/environ" && break
    sleep 0.1
  done
  cat "/proc/$!/comm"
  kill -9 $!
}
check "under the program's name" test "$(name_of_run)" = "$(basename "$program" | cut -c1-15)"

# ---- one machine, several machines ----
config=llama/configs/124m.toml
check "one machine: the command" run_says 0 "dev/run/supervise.sh -- ./train_llama --ranks 3 --config $config --zero 1 --out runs/124m" -- \
  env CUDA_VISIBLE_DEVICES= PATH="/usr/bin:/bin" dev/launch/one_machine.sh --ranks 3 --dry-run -- --config $config --zero 1
check "one machine: --out is needed" run_says 2 "give --out FOLDER" -- dev/launch/one_machine.sh --dry-run -- --steps 3
check "one machine: no flags" run_says 2 "one_machine.sh [--ranks N]" -- dev/launch/one_machine.sh --dry-run
check "one machine: ranks" run_says 2 "a whole number from 1" -- dev/launch/one_machine.sh --ranks none --dry-run -- --out x
check "one machine: no such recipe" run_says 2 "llama/configs/none.toml: can't read" -- \
  dev/launch/one_machine.sh --dry-run -- --config llama/configs/none.toml
printf '# two machines\nnode1\nnode2:4   # half a machine\n\n' > "$work/hosts"
check "hosts: the command" run_says 0 "ssh node2 sha256sum" \
  "mpirun -hosts node1:8\\,node2:4 -n 12 ./train_llama --config $config --out runs/124m" -- \
  dev/launch/hosts.sh "$work/hosts" --dry-run -- --config $config
check "hosts: snapshots" run_says 0 "supervise.sh --hosts $work/hosts -- mpirun" -- \
  dev/launch/hosts.sh "$work/hosts" --dry-run -- --config $config --snapshot-every 50
printf 'node1\nnode1:4\n' > "$work/twice"
check "hosts: twice" run_says 2 "node1 stands there twice" -- dev/launch/hosts.sh "$work/twice" --dry-run -- --out x
printf 'node1 slots=8\n' > "$work/slots"
check "hosts: another format" run_says 2 "is neither a host nor host:ranks" -- dev/launch/hosts.sh "$work/slots" --dry-run -- --out x
check "hosts: nobody" run_says 2 "names no host" -- dev/launch/hosts.sh /dev/null --dry-run -- --out x

# ---- Slurm: srun runs the program in one process here, scontrol takes a note ----
mkdir -p "$work/bin"
cat > "$work/bin/srun" << 'END'
#!/usr/bin/env bash
echo "srun $*"
while [[ $1 == -* ]]; do shift; done
exec "$@"
END
printf '#!/usr/bin/env bash\necho "$@" > "%s/requeued"\n' "$work" > "$work/bin/scontrol"
chmod +x "$work"/bin/*
python3 data_prep/prepare.py stdlib --max-bytes 100K --out "$work/data" > "$work/log" 2>&1
small=(--data "$work/data" --device cpu --dim 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 32 --batch 2 --seq-len 32 --val-every 0)
slurm=(env PATH="$work/bin:$PATH" SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=1 bash dev/launch/slurm.sbatch)
check "Slurm: a run that finishes" run_says 0 "supervise.sh ended with 0" -- "${slurm[@]}" "${small[@]}" --steps 3 --out "$work/slurm"
check "Slurm: it is not requeued" test ! -e "$work/requeued"
check "Slurm: with MPI's plugin" says "srun --mpi=pmi2 ./train_llama"
check "Slurm: in a container" run_says 0 "srun --mpi=none --kill-on-bad-exit=1 --container-image=some.sqsh --container-mounts=$PWD:$PWD" -- \
  env IMAGE=some.sqsh "${slurm[@]}" "${small[@]}" --steps 3 --out "$work/image"
stopped() {  # TERM to the batch script, as --signal=B:TERM sends it
  : > "$work/log"  # an earlier run's steps are not this one's
  "${slurm[@]}" "${small[@]}" --steps 1000000 --out "$work/stopped" > "$work/log" 2>&1 &
  local job=$! rc=0 i
  for ((i = 0; i < 600; ++i)); do grep -q '^step ' "$work/log" 2> /dev/null && break; sleep 0.1; done
  kill -TERM $job
  wait $job || rc=$?
  [ $rc = 75 ] && grep -q "requeue 7" "$work/requeued"
}
check "Slurm: at the end of the allocation it saves itself and is requeued" stopped
check "Slurm: directives" bash -c "[ \$(grep -c '^#SBATCH --[a-z-]*=\?' dev/launch/slurm.sbatch) -ge 8 ] && ! grep -n '^#SBATCH' dev/launch/slurm.sbatch | tail -n 1 | grep -q ':set '"

# ---- what launchers say of a process: in the environment, and by a hostfile ----
unlaunched=(env -u PMI_RANK -u PMI_SIZE -u PMI_FD -u SLURM_PROCID)
tasks() {  # two tasks of srun --mpi=none
  local r pids=() code=0
  for r in 0 1; do
    "${unlaunched[@]}" SLURM_PROCID=$r SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=node7 SLURM_JOB_ID=$((RANDOM + $$)) RINGZERO_PORT="$1" \
      "$program" "${small[@]}" --steps 1 --timeout 20 &
    pids+=($!)
  done
  for r in "${pids[@]}"; do wait "$r" || code=$?; done
  return $code
}
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export RINGZERO_TOKEN=0123456789abcdef
check "two tasks of srun without an MPI plugin find each other" run_says 0 "2 ranks" -- tasks "$port"
unset RINGZERO_TOKEN
check "srun of one task is one process" run_says 0 "1 rank," -- \
  "${unlaunched[@]}" SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4 "$program" "${small[@]}" --steps 1
if command -v mpirun > /dev/null && ldd "$program" | grep libmpi > /dev/null; then
  check "ranks of srun --mpi=pmi2 find each other" run_says 0 "2 ranks" -- \
    mpirun -n 2 env SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 "$program" "${small[@]}" --steps 1
  other() {  # other NAME=VALUE...   the launcher of another MPI: this one's library finds one process
    run_says 70 "the launcher started 3 processes, and MPI finds this one alone" "mpirun --version" -- \
      "${unlaunched[@]}" "$@" "$program" "${small[@]}" --steps 1
  }
  check "Open MPI's mpirun with another MPI's program" other OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=2
  check "srun --mpi=pmix with another MPI's program" other PMIX_RANK=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=8
  # Two hosts: addresses of this machine that the launcher takes for others', reached by what it takes for ssh.
  cat > "$work/bin/ssh_here" << 'END'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
shift
exec bash -c "$*"
END
  chmod +x "$work/bin/ssh_here"
  printf '127.0.0.2:2\n127.0.0.3:2\n' > "$work/blocks"
  printf '127.0.0.2\n127.0.0.3\n' > "$work/turns"
  on_hosts() {  # on_hosts HOSTFILE OUT TEXT...   four ranks on the two hosts
    local file=$1 out=$2
    shift 2
    run_says 0 "$@" "hier collectives" -- timeout 120 mpirun -launcher ssh -launcher-exec "$work/bin/ssh_here" -hostfile "$work/$file" -n 4 \
      "$program" "${small[@]}" --zero 1 --steps 3 --out "$work/$out"
  }
  check "a hostfile with ranks by host" on_hosts blocks blocks_run
  check "a hostfile in turns" on_hosts turns turns_run
  check "the same data in the same order" python3 -c "
import json
a, b = ([(r['step'], r['data_hash'], r['loss']) for r in map(json.loads, open(f'$work/{run}/metrics.jsonl')) if 'loss' in r] for run in ('blocks_run', 'turns_run'))
assert len(a) == 3 and all(x[:2] == y[:2] and abs(x[2] - y[2]) < 1e-5 * x[2] for x, y in zip(a, b)), (a, b)"
  check "records are not left after a good run" test ! -e "$work/turns_run/.ranks"
else
  skip "ranks of several hosts: no MPI here"
fi

# ---- Kubernetes: the JobSet's shell, as two pods of two ranks, with a stand-in that takes a small model and the address of this host ----
mkdir -p "$work/pods"
sed -n '/^ *- |$/,/^ *ports:$/p' dev/launch/jobset.yaml | sed '1d;$d; s/^ *//' > "$work/pods/command"
printf '#!/usr/bin/env bash\necho "$*" > asked.$RANK\n[ "$RANK" != "$FAILS" ] || exit 9\nexec "%s" %s --steps 1 --timeout 20\n' "$program" "${small[*]}" > "$work/pods/train_llama"
chmod +x "$work/pods/train_llama"
pods() {  # pods NUMBER FAILS   FAILS: a rank that ends with code 9 at its start
  local pod pids=() code=0
  for ((pod = 0; pod < $1; ++pod)); do
    (cd "$work/pods" && exec "${unlaunched[@]}" PODS="$1" GPUS=2 JOB_COMPLETION_INDEX=$pod MASTER_ADDR=127.0.0.1 RINGZERO_PORT="$port" \
      RINGZERO_TOKEN=0123456789abcdef FAILS="$2" bash "$work/pods/command") &
    pids+=($!)
  done
  for pod in "${pids[@]}"; do wait "$pod" || code=$?; done
  return $code
}
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
check "JobSet: the ranks of two pods find each other" run_says 0 "4 ranks" "step 1/1" -- pods 2 none
check "JobSet: with the flags that stand there" grep -qxF -- "--config llama/configs/8b.toml --zero 3 --out /runs/8b --resume auto" "$work/pods/asked.3"
check "JobSet: a rank that fails ends its pod, with its code" run_says 9 -- pods 1 1

# ---- the container file: instructions, and the paths that they name ----
container() {
  python3 - << 'END'
import os, re, shlex
text = re.sub(r"\\\n", "", open("dev/launch/Containerfile").read())
lines = [l.split(None, 1) for l in text.splitlines() if l.strip() and not l.startswith("#")]
known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD", "ENV"}
assert [w for w, _ in lines if w not in known] == [], lines
assert [w for w, _ in lines][:2] == ["ARG", "FROM"] and lines[-2][0] == "ENTRYPOINT"
for what, rest in lines:
    if what == "COPY":
        for source in rest.split()[:-1]:
            assert os.path.exists(source), source
    if what == "RUN":
        for word in shlex.split(rest):
            assert not word.startswith("dev/") or os.access(word, os.X_OK), word
END
}
check "container: what it copies and runs is there" container
check "container: the packages that it installs are known here" dev/build/install_deps.sh --program --check

# ---- make dist: the files that it packs ----
check "dist: what it packs is there" bash -c 'for f in $(dev/build/dist.sh --list); do test -r "$f" || exit 1; done'
check "dist: the machines among them" bash -c 'dev/build/dist.sh --list | grep -q machines/gb10'

# ---- recipes ----
recipes() { timeout 600 dev/launch/check_recipes.py --program "$program" > "$work/log" 2>&1; }
check "recipes: the program takes every command, and each fits" recipes
too_large() { ! timeout 600 dev/launch/check_recipes.py --program "$program" --machine rtx4090-24g llama/configs/8b.toml > "$work/log" 2>&1 && says "does not fit rtx4090-24g"; }
check "recipes: what does not fit is found" too_large

# ---- the version: of the last tag, in a clone ----
# shellcheck disable=SC2016  # make's variable
version() { make -C "$work/clone" -s --no-print-directory --eval 'print-version:;@echo "$(VERSION) "' print-version >> "$work/log" 2>&1; }
tagged() {
  git clone -q --depth 1 "file://$PWD" "$work/clone" > "$work/log" 2>&1 || return 1
  git -C "$work/clone" tag v9.8
  version
  git -C "$work/clone" -c user.name=test -c user.email=test@test commit -q --allow-empty -m "one more"
  version
  says "9.8 " "9.8-1-g"
}
if git rev-parse --git-dir > /dev/null 2>&1; then
  check "a tag is the version, and what is after it says so" tagged
else
  skip "the version of a tag: no git folder here"
fi

# ---- installation: into a folder, used from there, taken away again ----
prefix=$work/prefix
check "install" run_says 0 "$prefix/bin/train_llama" -- dev/build/install.sh "$program" "$prefix"
check "install: the program runs" run_says 0 "llama3.1-405b" -- "$prefix/bin/train_llama" --presets
mkdir "$work/alone" && cp "$program" "$work/alone/train_llama"
alone() (cd "$work/alone" && ./train_llama plan --gpus 1 "$@")
check "a copy alone: recipes and machines are in it" run_says 0 "RTX 4090 24 GB" "1.24B parameters" -- alone --gpu rtx4090-24g --config 1b-24g
check "a copy alone: the machines that it knows" run_says 2 "nearest: rtx5090-32g" -- alone --gpu rtx5090 --config 1b-24g
check "install: so does data_prep" test -r "$prefix/share/ringzero/data_prep/chat_prompt.py"
check "install: it says its version" run_says 0 "ringzero " ", commit " -- "$prefix/bin/train_llama" --version
check "install: recipes lie beside it" test -r "$prefix/share/ringzero/configs/124m.toml"
manual() {
  local flag flags
  "$program" --help-all > "$work/help"
  flags=$(grep -oE '^  (-h,)?--[a-z0-9-]+' "$work/help" | grep -oE '[a-z0-9-]+$' | sed 's/^-*//')
  [ "$(wc -w <<< "$flags")" -gt 50 ] || { echo "few flags: $flags"; return 1; }
  sed 's/\\-/-/g' "$prefix/share/man/man1/train_llama.1" > "$work/log"
  for flag in $flags; do grep -qF -- "\fB--$flag\fR" "$work/log" || { echo "not in the man page: --$flag"; return 1; }; done
  says "$(sed -n 's/^  --weight-decay [^ ]* *//p' "$work/help")" "fp32|bf16=fp32" "TRAIN_LLAMA GENERATE" \
    "$("$program" generate --help | sed -n 's/^  --max-tokens [^ ]* *//p')" || return 1
  ! command -v man > /dev/null || [ -z "$(man --warnings -l "$prefix/share/man/man1/train_llama.1" 2>&1 > /dev/null)" ]
}
check "beside others: each yes of ours has its flag, each cell of another its source" test/program/check_beside.py "$program"
check "install: the man page has every flag of --help-all, and man has no complaint" manual
completes() {  # completes WORDS... = the last is completed to what the log then holds
  bash -c ". '$prefix/share/bash-completion/completions/train_llama'; COMP_WORDS=(\"\$@\"); COMP_CWORD=\$((\$# - 1)); _train_llama '$program'; printf '%s\n' \"\${COMPREPLY[@]}\"" \
    completes "$@" > "$work/log" 2>&1
}
check "completion: flags" bash -c "$(declare -f completes says); prefix='$prefix' program='$program' work='$work'; completes train_llama --weight && says --weight-decay"
check "completion: choices" bash -c "$(declare -f completes says); prefix='$prefix' program='$program' work='$work'; completes train_llama --recompute b && says block"
check "completion: presets" bash -c "$(declare -f completes says); prefix='$prefix' program='$program' work='$work'; completes train_llama --preset llama3.1-8 && says llama3.1-8b"
check "completion: a subcommand's flags" bash -c "$(declare -f completes says); prefix='$prefix' program='$program' work='$work'; completes train_llama generate --top && says --top-k --top-p"
if command -v zsh > /dev/null; then
  check "completion in zsh: its syntax" zsh -n "$prefix/share/zsh/site-functions/_train_llama"
else
  skip "zsh's completion: there is no zsh here"
fi
check "uninstall" run_says 0 "removed" -- dev/build/install.sh --remove "$prefix"
check "uninstall: nothing is left" test -z "$(find "$prefix" -type f)"

summary
