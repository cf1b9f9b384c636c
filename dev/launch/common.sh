# shellcheck shell=bash
# What the launch scripts share; sourced from the top of the project.

die() { echo "${0##*/}: $*" >&2; exit 2; }
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$1" >&2; exit 2; }
whole() { [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "$1 ${2:-}: a whole number from 1 is expected"; echo "$2"; }
gpu_count() { nvidia-smi -L 2> /dev/null | grep -c '^GPU ' || true; }

# Sets flags to what follows --, and refuses what would end in an error later.
flags_after() {
  local script=$1
  shift
  [ "${1:-}" = -- ] || usage "$script"
  shift
  flags=("$@")
  [ ${#flags[@]} -gt 0 ] || die "no flags for train_llama after --"
  [ -x ./train_llama ] || die "there is no ./train_llama: run make first"
  local out='' i
  for ((i = 0; i < ${#flags[@]}; ++i)); do
    case ${flags[i]} in
      --out | --out=*) out=1 ;;
      --config)
        local file=${flags[i + 1]:-}
        [ -r "$file" ] || die "--config $file: can't read it"
        # supervise.sh looks for --out on the command line.
        [ -n "$out" ] || out=$(sed -n 's/^out *= *"\(.*\)".*/\1/p' "$file") ;;
    esac
  done
  [ -n "$out" ] || die "give --out FOLDER, so that the run can be started again"
  [ "$out" = 1 ] || flags+=(--out "$out")
}

run() {  # run DRY COMMAND...   says the command; runs it unless DRY is set
  local dry=$1
  shift
  printf '%q ' "$@"
  echo
  [ -n "$dry" ] || "$@"
}
