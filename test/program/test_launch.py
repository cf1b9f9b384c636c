#!/usr/bin/env python3
"""Launch scripts run dry, the Slurm script against stand-ins, recipes read by the program, installation into a folder. Ends with counts.

test/program/test_launch.py ./train_llama
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

from checks import ROOT, Run, arguments, check, commands, end, equal, expect, free_port, has_mpi, rows, run, said
from checks import skip, text_data, together, until, work

program = arguments[0]
SMALL = f"""--data {text_data("100K")} --device cpu --dim 32 --layers 1 --heads 2 --kv-heads 1 --head-dim 16 --ffn 32 --batch 2
    --seq-len 32 --val-every 0""".replace("\n", "")
TOKEN = "0123456789abcdef"
for name in "PMI_RANK", "PMI_SIZE", "PMI_FD", "SLURM_PROCID":
    os.environ.pop(name, None)


def script(name, text):
    path = work / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# ---- threads that wait ----
UNSET = "env -u OMP_WAIT_POLICY OMP_DISPLAY_ENV=verbose"
commands(f"""
    threads sleep while they wait | 0 | {UNSET} {program} --version | GOMP_SPINCOUNT = '0'
    and wait as the environment says | 0 | {UNSET} GOMP_SPINCOUNT=77 {program} --version | GOMP_SPINCOUNT = '77'
""")
job = Run(f"env -u OMP_WAIT_POLICY {program} --data synthetic --out '' --quiet --device cpu --steps 100000")
found = [pathlib.Path(f"/proc/{job.pid}/{name}") for name in ("environ", "comm")]
until(lambda: "OMP_WAIT_POLICY=passive" in found[0].read_text() and found[1].read_text() != "env\n", 5)
equal("under the program's name, as top shows it", found[1].read_text(), os.path.basename(program)[:15] + "\n")
job.signal(9)
job.wait()

# ---- one machine, several machines ----
CONFIG = "--config llama/configs/124m.toml"
(work / "hosts").write_text("# two machines\nnode1\nnode2:4   # half a machine\n\n")
(work / "twice").write_text("node1\nnode1:4\n")
(work / "slots").write_text("node1 slots=8\n")
ONE, HOSTS = "dev/launch/one_machine.sh", f"dev/launch/hosts.sh {work}"
commands(rf"""
    one machine: the command | 0 | env CUDA_VISIBLE_DEVICES= PATH=/usr/bin:/bin {ONE} --ranks 3 --dry-run -- {CONFIG} --zero 1 | dev/run/supervise.sh -- ./train_llama --ranks 3 {CONFIG} --zero 1 --out runs/124m
    one machine: --out is needed | 2 | {ONE} --dry-run -- --steps 3 | give --out FOLDER
    one machine: no flags | 2 | {ONE} --dry-run | one_machine.sh \[--ranks N\]
    one machine: ranks | 2 | {ONE} --ranks none --dry-run -- --out x | a whole number from 1
    one machine: no such recipe | 2 | {ONE} --dry-run -- --config llama/configs/none.toml | llama/configs/none.toml: can't read
    hosts: the command | 0 | {HOSTS}/hosts --dry-run -- {CONFIG} | ssh node2 sha256sum | mpirun -hosts node1:8\\,node2:4 -n 12 ./train_llama {CONFIG} --out runs/124m
    hosts: snapshots | 0 | {HOSTS}/hosts --dry-run -- {CONFIG} --snapshot-every 50 | supervise.sh --hosts {work}/hosts -- mpirun
    hosts: twice | 2 | {HOSTS}/twice --dry-run -- --out x | node1 stands there twice
    hosts: another format | 2 | {HOSTS}/slots --dry-run -- --out x | is neither a host nor host:ranks
    hosts: nobody | 2 | dev/launch/hosts.sh /dev/null --dry-run -- --out x | names no host
""")

# ---- Slurm: srun runs the program in one process here, scontrol takes a note ----
script("bin/srun", '#!/bin/bash\necho "srun $*"\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n')
script("bin/scontrol", f'#!/bin/bash\necho "$@" > "{work}/requeued"\n')
PATH = f"PATH={work}/bin:{os.environ['PATH']}"
SLURM = f"{PATH} SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=1 bash dev/launch/slurm.sbatch {SMALL}"
commands(f"""
    Slurm: a run that finishes, with MPI's plugin | 0 | env {SLURM} --steps 3 --out {work}/slurm | supervise.sh ended with 0 | srun --mpi=pmi2 ./train_llama
    Slurm: in a container | 0 | env IMAGE=some.sqsh {SLURM} --steps 3 --out {work}/image | srun --mpi=none --kill-on-bad-exit=1 --container-image=some.sqsh --container-mounts={ROOT}:{ROOT}
""")
check("Slurm: they are not requeued", not (work / "requeued").exists())
job = Run(f"env {SLURM} --steps 1000000 --out {work}/stopped")
job.until("^step ")
job.signal(15)  # to the batch script, as --signal=B:TERM sends it
expect("Slurm: at the end of the allocation it saves itself", job.wait(), code=75)
until(lambda: (work / "requeued").exists(), 5)
check("  and is requeued", "requeue 7" in (work / "requeued").read_text())
head = re.match(r"(#.*\n|\s*\n)*", (ROOT / "dev/launch/slurm.sbatch").read_text())[0]  # Slurm reads no further
check("Slurm: directives", len(re.findall(r"(?m)^#SBATCH --[a-z-]+", head)) >= 8, head)

# ---- what launchers say of a process: in the environment, and by a hostfile ----
TASK = f"SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=node7 SLURM_JOB_ID={os.getpid()} RINGZERO_PORT={free_port()}"
TASK = f"env {TASK} RINGZERO_TOKEN={TOKEN} {program} {SMALL} --steps 1 --timeout 20"
tasks = [Run(TASK, env={"SLURM_PROCID": rank}) for rank in (0, 1)]
expect("two tasks of srun without an MPI plugin find each other", together(*tasks), says="2 ranks")
ONE_STEP = f"{program} {SMALL} --steps 1"
commands(f"""
    srun of one task is one process | 0 | env SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4 {ONE_STEP} | 1 rank,
""")
if has_mpi(program):
    # Two hosts: addresses of this machine that the launcher takes for others', reached by what it takes for ssh.
    ssh = script("bin/ssh_here", '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nshift\nexec bash -c "$*"\n')
    (work / "blocks").write_text("127.0.0.2:2\n127.0.0.3:2\n")
    (work / "turns").write_text("127.0.0.2\n127.0.0.3\n")
    hosts = f"mpirun -launcher ssh -launcher-exec {ssh} -n 4 -hostfile {work}"
    flags = f"{program} {SMALL} --zero 1 --steps 3 --out {work}"
    alone = "the launcher started 3 processes, and MPI finds this one alone | mpirun --version"
    commands(f"""
        ranks of srun --mpi=pmi2 find each other | 0 | mpirun -n 2 env SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 {ONE_STEP} | 2 ranks
        Open MPI's mpirun with another MPI's program | 70 | env OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=2 {ONE_STEP} | {alone}
        srun --mpi=pmix with another MPI's program | 70 | env PMIX_RANK=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=3 SLURM_NTASKS=8 {ONE_STEP} | {alone}
        a hostfile with ranks by host | 0 | {hosts}/blocks {flags}/blocks_run | hier collectives
        a hostfile in turns | 0 | {hosts}/turns {flags}/turns_run | hier collectives
    """)
    found = [[(row["step"], row["data_hash"]) for row in rows(out)] for out in ("blocks_run", "turns_run")]
    equal("the same data in the same order", *found)
    losses = [[row["loss"] for row in rows(out)] for out in ("blocks_run", "turns_run")]
    check("  and losses", len(losses[0]) == 3 and all(abs(a - b) < 1e-5 * a for a, b in zip(*losses)), losses)
    check("records are not left after a good run", not (work / "turns_run/.ranks").exists())
else:
    skip("ranks of several hosts: no MPI here")

# ---- Kubernetes: the JobSet's shell, as two pods of two ranks, with a stand-in that takes a small model and the address of this host ----
block = re.search(r"(?ms)^ *- \|\n(.*?)^ *ports:$", (ROOT / "dev/launch/jobset.yaml").read_text())[1]
script("pods/command", re.sub("(?m)^ *", "", block))
exits = 'echo "$*" > asked.$RANK; [ "$RANK" != "$FAILS" ] || exit 9'
script("pods/train_llama", f"#!/bin/bash\n{exits}\nexec {program} {SMALL} --steps 1 --timeout 20\n")
POD = f"env -C {work}/pods GPUS=2 MASTER_ADDR=127.0.0.1 RINGZERO_PORT={free_port()} RINGZERO_TOKEN={TOKEN}"
pods = [Run(f"{POD} PODS=2 FAILS=none JOB_COMPLETION_INDEX={pod} bash command") for pod in (0, 1)]
expect("JobSet: the ranks of two pods find each other", together(*pods), says=["4 ranks", "step 1/1"])
asked = "--config llama/configs/8b.toml --zero 3 --out /runs/8b --resume auto\n"
equal("JobSet: with the flags that stand there", (work / "pods/asked.3").read_text(), asked)
failed = "JobSet: a rank that fails at its start ends its pod, with its code"
commands(f"{failed} | 9 | {POD} PODS=1 FAILS=1 JOB_COMPLETION_INDEX=0 bash command")

# ---- the container file: instructions, and the paths that they name; what make dist packs; recipes ----
text = (ROOT / "dev/launch/Containerfile").read_text().replace("\\\n", "")
lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
words = [word for word, _ in lines]
check("container: instructions", not {*words} - {*"ARG FROM WORKDIR COPY RUN ENTRYPOINT CMD ENV".split()}, words)
equal("  in their order", [*words[:2], words[-2]], ["ARG", "FROM", "ENTRYPOINT"])
copied = [source for what, rest in lines if what == "COPY" for source in rest.split()[:-1]]
run_words = [word for what, rest in lines if what == "RUN" for word in shlex.split(rest) if word.startswith("dev/")]
check("  what it copies is there", copied and all(map(os.path.exists, copied)), copied)
check("  and what it runs", run_words and all(os.access(word, os.X_OK) for word in run_words), run_words)
LIMITS = f"dev/launch/check_recipes.py --program {program}"
ROWS = f"""
    container: the packages that it installs are known here | 0 | dev/build/install_deps.sh --program --check
    dist: the machines are among what it packs | 0 | dev/build/dist.sh --list | machines/gb10
    recipes: the program takes every command, and each fits | 0 | {LIMITS}
    recipes: what does not fit is found | 1 | {LIMITS} --machine rtx4090-24g llama/configs/8b.toml | does not fit rtx4090-24g
    beside others: each yes of ours has its flag, each cell of another its source | 0 | test/program/check_beside.py {program}
"""
commands(ROWS, limit=600)
packed = run("dev/build/dist.sh --list").text.split()
check("dist: what it packs is there", packed and all(os.access(file, os.R_OK) for file in packed))

# ---- the version: of the last tag, in a clone ----
if subprocess.run("git rev-parse --git-dir", shell=True, capture_output=True).returncode == 0:
    version = f"make -C {work}/clone -s --eval 'print-version:;@echo \"$(VERSION) \"' print-version"
    commands(f"""
        a clone | 0 | git clone -q --depth 1 file://{ROOT} {work}/clone
        with a tag | 0 | git -C {work}/clone tag v9.8
        is of that version | 0 | {version} | ^9.8 $
        one commit later | 0 | git -C {work}/clone -c user.name=test -c user.email=test@test commit -q --allow-empty -m 'one more'
        it says so | 0 | {version} | ^9.8-1-g
    """)
else:
    skip("the version of a tag: no git folder here")

# ---- installation: into a folder, used from there, taken away again; a copy alone ----
prefix = work / "prefix"
(work / "alone").mkdir()
shutil.copy(program, work / "alone/train_llama")
completes = f"""bash -c '. {prefix}/share/bash-completion/completions/train_llama; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));
    _train_llama {program}; printf "%s\\n" "${{COMPREPLY[@]}}"' completes train_llama""".replace("\n", "")
alone = f"env -C {work}/alone ./train_llama plan --gpus 1 --config 1b-24g --gpu"
commands(f"""
    install | 0 | dev/build/install.sh {program} {prefix} | {prefix}/bin/train_llama
    install: the program runs | 0 | {prefix}/bin/train_llama --presets | llama3.1-405b
    install: it says its version | 0 | {prefix}/bin/train_llama --version | ringzero  | , commit
    a copy alone: recipes and machines are in it | 0 | {alone} rtx4090-24g | RTX 4090 24 GB | 1.24B parameters
    a copy alone: the machines that it knows | 2 | {alone} rtx5090 | nearest: rtx5090-32g
    completion: flags | 0 | {completes} --weight | --weight-decay
    completion: choices | 0 | {completes} --recompute b | block
    completion: presets | 0 | {completes} --preset llama3.1-8 | llama3.1-8b
    completion: a subcommand's flags | 0 | {completes} generate --top | --top-k | --top-p
""")
for file in "data_prep/chat_prompt.py", "configs/124m.toml":
    check(f"install: {file}", os.access(prefix / "share/ringzero" / file, os.R_OK))
page = prefix / "share/man/man1/train_llama.1"
manual = page.read_text().replace("\\-", "-")
flags = re.findall(r"^  (?:-h,)?--([a-z0-9-]+)", run([program], "--help-all").text, re.M)
missing = [flag for flag in flags if rf"\fB--{flag}\fR" not in manual]
check("install: the man page has every flag of --help-all", len(flags) > 50 and not missing, f"{len(flags)}: {missing}")
decay = said("^  --weight-decay [^ ]* *(.*)")
run([program], "generate --help")
for words in decay, said("^  --max-tokens [^ ]* *(.*)"), "fp32|bf16=fp32", "TRAIN_LLAMA GENERATE":
    check(f"  and {words}", words and words in manual)
if shutil.which("man"):
    complaints = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True).stderr
    equal("  man has no complaint", complaints, "")
if shutil.which("zsh"):
    commands(f"completion in zsh: its syntax | 0 | zsh -n {prefix}/share/zsh/site-functions/_train_llama")
else:
    skip("zsh's completion: there is no zsh here")
commands(f"uninstall | 0 | dev/build/install.sh --remove {prefix} | removed")
equal("uninstall: nothing is left", [path for path in prefix.rglob("*") if path.is_file()], [])
end()
