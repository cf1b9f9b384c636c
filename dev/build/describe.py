#!/usr/bin/env python3
"""The man page and the shell completion of train_llama, made from its own --help-all: no flag is written twice.

  dev/build/describe.py man PROGRAM > train_llama.1
  dev/build/describe.py bash PROGRAM > train_llama      (for share/bash-completion/completions)
  dev/build/describe.py zsh PROGRAM > _train_llama      (for share/zsh/site-functions)

make install does all.
"""

import re
import subprocess
import sys
import time

HELP_COLUMN = 30  # where --help starts a description


def options_of(text):
    """(group, flag, value, description) of every flag in a --help text, and (name, description) of its subcommands."""
    options, subcommands, group = [], [], ""
    for line in text.splitlines():
        if m := re.match(r"^(\S.*):$", line):
            group = m[1]
        elif group == "Commands":
            if m := re.match(r"^  (\S+) +(.*)$", line):
                subcommands.append((m[1], m[2]))
            elif subcommands and line.startswith("    "):
                subcommands[-1] = (subcommands[-1][0], subcommands[-1][1] + " " + line.strip())
        elif m := re.match(r"^  (?:-\w,)?--([a-z0-9-]+)(.*)$", line):
            # A long flag has its description on the next line.
            beside = len(line) > HELP_COLUMN and line[HELP_COLUMN - 1] == " "
            value = line[m.start(2) : HELP_COLUMN] if beside else m[2]
            options.append([group, m[1], value.strip(), line[HELP_COLUMN:] if beside else ""])
        elif re.match(r"^ {%d}\S" % HELP_COLUMN, line) and options:
            options[-1][3] = (options[-1][3] + " " + line.strip()).strip()
    return options, subcommands


def read(program):
    def helped(*command):
        done = subprocess.run([program, *command, "--help-all"], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"describe.py: {program} {' '.join(command)} --help ended with {done.returncode}")
        return done.stdout

    options, subcommands = options_of(helped())
    if len(options) < 20 or not subcommands:
        sys.exit(f"describe.py: {program} --help has {len(options)} flags and {len(subcommands)} subcommands; is it train_llama?")
    return options, [(name, about, options_of(helped(name))[0]) for name, about in subcommands]


def exit_codes(program):
    text = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    rows = re.findall(r"^  (\d+)\t(.+)$", text[text.find("\nExit codes:") :], re.M)
    if not rows:
        sys.exit(f"describe.py: {program} --help has no table of exit codes")
    return rows


def troff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def man_options(options):
    out, group = [], None
    for where, flag, value, about in options:
        if where != group:
            out.append(f".SS {troff(where)}")
            group = where
        shown = f" \\fI{troff(value)}\\fR" if value else ""
        out.append(f".TP\n\\fB{troff('--' + flag)}\\fR{shown}\n{troff(about) or 'no description'}")
    return out


def man(program, options, subcommands):
    version = subprocess.run(["git", "describe", "--tags", "--always"], capture_output=True, text=True).stdout.strip()
    date = time.strftime("%Y-%m-%d", time.gmtime())
    out = [f'.TH TRAIN_LLAMA 1 "{date}" "ringzero {version}" "User commands"',
           ".SH NAME\ntrain_llama \\- train a LLaMA in raw CUDA C++, or on the CPU",
           ".SH SYNOPSIS", ".B train_llama\n[\\fIflags\\fR]", ".br\n.B mpirun \\-n\n\\fIN\\fR\n.B train_llama\n[\\fIflags\\fR]"]
    out += [f".br\n.B train_llama {troff(name)}\n[\\fIflags\\fR]" for name, _, _ in subcommands]
    out += [".SH DESCRIPTION",
            "Trains, validates, saves and resumes. The value after a flag's = is its default. Flags may stand, without dashes, in a TOML",
            "file given with \\fB\\-\\-config\\fR; those on the command line win.",
            ".SH FLAGS"]
    out += man_options(options)
    for name, about, flags in subcommands:
        out += [f".SH TRAIN_LLAMA {troff(name.upper())}", troff(about) + "."]
        out += man_options(flags)
    out += [".SH EXIT STATUS"] + [f".TP\n{code}\n{troff(meaning)}" for code, meaning in exit_codes(program)]
    return "\n".join(out) + "\n"


def choices(value):
    value = value.split("=")[0]
    return value.split("|") if re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", value) else []


def completion(options, subcommands):
    cases, words_of = {}, {}
    everything = options + [o for _, _, flags in subcommands for o in flags]
    for _, flag, value, _ in everything:  # a flag of two commands may have more choices in one of them
        words_of[flag] = max(words_of.get(flag, []), choices(value), key=len)
    for _, flag, value, _ in everything:
        kind = value.split("=")[0].split(" ")[0]
        if words_of[flag]:
            cases.setdefault(f'compgen -W "{" ".join(words_of[flag])}" -- "$now"', set()).add(flag)
        elif "PATH" in kind or flag == "config":
            cases.setdefault('compgen -f -- "$now"', set()).add(flag)
        elif flag == "preset":
            cases.setdefault("compgen -W \"$(\"$1\" --presets 2> /dev/null | cut -d' ' -f1)\" -- \"$now\"", set()).add(flag)
        elif kind:
            cases.setdefault("true", set()).add(flag)
    out = ["# bash completion of train_llama, made from its --help by dev/build/describe.py", "_train_llama() {",
           '  local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} flags', "  COMPREPLY=()", "  case $before in"]
    for command, flags in sorted(cases.items()):
        out.append(f'    {" | ".join("--" + f for f in sorted(flags))}) mapfile -t COMPREPLY < <({command}); return ;;')
    out += ["  esac", "  case ${COMP_WORDS[1]} in"]
    for name, _, flags in subcommands:
        out.append(f'    {name}) flags="{" ".join("--" + o[1] for o in flags)}" ;;')
    words = [name for name, _, _ in subcommands]
    out += [f'    *) flags="{" ".join("--" + o[1] for o in options)}"',
            f'       [ "$COMP_CWORD" != 1 ] || flags="{" ".join(words)} $flags" ;;',
            "  esac", '  mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$now")', "}", "complete -F _train_llama train_llama", ""]
    return "\n".join(out)


def zsh_row(flag, value, about):
    """One argument of _arguments: '--flag[about]:value:action'."""
    about = about.split(". ")[0].rstrip(".")
    for special in "\\[]:":
        about = about.replace(special, "\\" + special)
    row = f"--{flag}[{about}]"
    kind = value.split("=")[0].split(" ")[0]
    if choices(value):
        row += f":value:({' '.join(choices(value))})"
    elif "PATH" in kind or "FILE" in kind or flag == "config":
        row += ":path:_files"
    elif flag == "preset":
        row += ":preset:_train_llama_presets"
    elif kind:
        row += f":{kind.lower().replace(':', ' ')}:"
    return "'" + row.replace("'", "'\\''") + "'"


def zsh_completion(options, subcommands):
    def rows(flags):
        return " \\\n".join("      " + zsh_row(flag, value, about) for _, flag, value, about in flags)

    def named(name, about):
        return "'" + (name + ":" + about.replace(":", "\\:")).replace("'", "'\\''") + "'"

    words = " ".join(named(name, about) for name, about, _ in subcommands)
    out = ["#compdef train_llama", "# zsh completion of train_llama, made from its --help by dev/build/describe.py",
           "_train_llama_presets() { compadd -- ${(f)\"$(${(Q)words[1]} --presets 2> /dev/null | cut -d' ' -f1)\"} }",
           "_train_llama() {", "  case ${words[2]} in"]
    for name, _, flags in subcommands:
        out += [f"    {name})", "      shift words; (( CURRENT-- ))", "      _arguments \\", rows(flags), "      ;;"]
    out += ["    *)", f"      (( CURRENT == 2 )) && {{ local -a commands=({words}); _describe command commands }}",
            "      _arguments \\", rows(options), "      ;;", "  esac", "}", '_train_llama "$@"', ""]
    return "\n".join(out)


def main():
    makers = {"man": man, "bash": completion, "zsh": zsh_completion}
    if len(sys.argv) != 3 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    options, subcommands = read(sys.argv[2])
    make = makers[sys.argv[1]]
    sys.stdout.write(make(sys.argv[2], options, subcommands) if make is man else make(options, subcommands))


main()
