#!/usr/bin/env python3
"""Folders and files that a stranger would publish: links, FIFOs, devices, depth, huge headers, escapes, templates that loop.

    test/faults/hostile.py PROGRAM [--quick] [--only WORD] [--seconds S] [--no-strace]

Each case is opened by every command that reads such a file. Asked of each start: exit code 2 or 70 with a message (0 where a
command does not read what is hostile), at most 5 s of a core and 1 GiB, no control character on the screen, no byte of the
files outside in what is printed or written, and by strace: nothing is executed but the program and Python, no file outside is
opened, nothing is written outside of the case's folder. --quick: the first start of each case, without strace. Ends with "N passed, N failed, N skipped".
"""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading

import all_faults
from checks import Run, check, end, options, skip, text_data, work

SECRET = "cafe0ddba11-SECRET"
SEES = "open,openat,openat2,creat,execve,execveat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,symlink,symlinkat,link,linkat,truncate,connect"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"
GIB = 1 << 30


def instead(make):
    """In place of what is there."""

    def act(path):
        path.unlink(missing_ok=True)
        make(path)

    return act


def link_to(target):
    return instead(lambda path: path.symlink_to(target))


fifo, folder = instead(os.mkfifo), instead(pathlib.Path.mkdir)


def text(content):
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def sparse(size, begins=b"{"):
    def act(path):
        path.write_bytes(begins)
        os.truncate(path, size)

    return act


def changed(change):
    """JSON that a function changes; a manifest's own checksum is not made right again, so it is refused."""

    def act(path):
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return act


def header(content, length=None):
    """Of a safetensors file."""
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    return text(struct.pack("<Q", len(content) if length is None else length) + content)


def tensor_called(name):
    def act(path):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        value = json.loads(data[8 : 8 + length])
        value = {(name if key.endswith("norm.weight") else key): entry for key, entry in value.items()}
        new = json.dumps(value).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + length :])

    return act


def index(file):
    def act(path):
        (path.parent / "model.safetensors").unlink()
        path.write_text(json.dumps({"weight_map": {"model.norm.weight": file}}))

    return act


def several(*acts):
    def act(path):
        for one in acts:
            one(path)

    return act


DEEP, WIDE = "[" * 1_000_000, "[" + "[]," * 1_300_000 + "0]"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"

# name, what the commands are, the file in the folder (*: none is named), what is done to it. OUT/: a folder with secrets beside the case's.
MODEL = "generate export gguf tune eval".split()
CASES = [
    ("link_private_key", ["tune", "export", "generate"], "tokenizer_config.json", link_to("../outside/id_rsa")),
    ("link_config", MODEL, "config.json", link_to("../outside/config.json")),
    ("link_weights", MODEL, "model.safetensors", link_to("../outside/model.safetensors")),
    ("link_tokenizer", MODEL, "tokenizer.json", link_to("../outside/tokenizer.json")),
    ("link_generation", MODEL, "generation_config.json", link_to("../outside/id_rsa")),
    ("link_absolute", ["tune", "export"], "README.md", link_to("/etc/passwd")),
    ("link_folder", ["export", "tune"], "inner", link_to("../outside")),
    ("link_dangling", MODEL, "tokenizer.json", link_to("nowhere")),
    ("link_to_itself", MODEL, "config.json", link_to("config.json")),
    ("link_zero", MODEL, "config.json", link_to("/dev/zero")),
    ("link_zero_weights", MODEL, "model.safetensors", link_to("/dev/zero")),
    ("link_memory", MODEL, "tokenizer.json", link_to("/proc/self/mem")),
    ("fifo_config", MODEL, "config.json", fifo),
    ("fifo_tokenizer", MODEL, "tokenizer.json", fifo),
    ("fifo_weights", MODEL, "model.safetensors", fifo),
    ("fifo_beside", ["tune", "export"], "notes.txt", fifo),
    ("fifo_template", ["chat", "generate", "export"], "chat_template.jinja", fifo),
    ("folder_config", MODEL, "tokenizer_config.json", folder),
    ("huge_config", MODEL, "config.json", sparse(200 << 20)),
    ("huge_tokenizer", MODEL, "tokenizer.json", sparse(8 << 30)),
    ("huge_index", MODEL, "model.safetensors.index.json", several(index("x"), sparse(8 << 30))),
    ("deep_config", MODEL, "config.json", text(DEEP)),
    ("deep_tokenizer", MODEL, "tokenizer.json", text(DEEP)),
    ("wide_config", MODEL, "config.json", text(WIDE[:3_900_000] + "0]")),
    ("wide_tokenizer", ["generate", "export"], "tokenizer.json", text("[" + "[]," * 20_000_000 + "0]")),
    ("config_of_2_62", MODEL, "config.json", changed(lambda c: c.update(hidden_size=1 << 62))),
    ("config_of_terabytes", MODEL, "config.json", changed(lambda c: c.update(vocab_size=(1 << 31) - 8, hidden_size=1 << 16, num_attention_heads=1 << 10))),
    ("header_of_2_63", MODEL, "model.safetensors", header({}, (1 << 63) - 1)),
    ("header_of_zeros", MODEL, "model.safetensors", several(header({}, 99_000_000), lambda p: os.truncate(p, 8 << 30))),
    ("header_wide", ["generate", "tune"], "model.safetensors", header(b'{"a":[' + b"[]," * 30_000_000 + b"0]}")),
    ("tensor_escapes", MODEL, "model.safetensors", tensor_called("x" + ESCAPE + "\r\u009b31m\u202e")),
    ("tensor_lines", ["generate"], "model.safetensors", tensor_called("x\n  run this: rm -rf ~")),
    ("index_upwards", MODEL, "model.safetensors.index.json", index("../outside/model.safetensors")),
    ("index_absolute", MODEL, "model.safetensors.index.json", index("/etc/passwd")),
    ("index_escapes", MODEL, "model.safetensors.index.json", index("a" + ESCAPE)),
    ("name_escapes", ["export", "tune"], "a" + ESCAPE + ".txt", link_to("../outside/id_rsa")),
    ("key_escapes", MODEL, "config.json", text(json.dumps({"a" + ESCAPE: 1, "model_type": "x" + ESCAPE}).replace("\\u001b", "\x1b"))),
    ("template_loops", ["chat"], "chat_template.jinja", text(LOOP)),
    ("template_memory", ["chat"], "chat_template.jinja", text("{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}")),
    ("template_output", ["chat"], "chat_template.jinja", text("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}")),
    ("template_classes", ["chat"], "chat_template.jinja", text("{{ messages.__class__.__mro__[1].__subclasses__() }}")),
    ("template_file", ["chat"], "chat_template.jinja", text("{% include '/etc/passwd' %}{% include '../outside/id_rsa' %}")),
    ("template_says", ["chat"], "chat_template.jinja", text("{{ raise_exception('no" + ESCAPE + "') }}")),
    ("template_huge", ["chat"], "chat_template.jinja", text("x" * (2 << 20))),
    ("template_deep", ["chat"], "chat_template.jinja", text("{{ " + "(" * 100_000 + " }}")),
    ("template_numbers", ["chat"], "chat_template.jinja", text("{{ 9 ** (9 ** 9) }}")),
    ("config_commands", ["config"], "run.toml", text('after-save = "touch HERE"\nsave-every = 1\nout = "o"\n')),
    ("config_before", ["config"], "run.toml", text('before-resume = "touch HERE"\nresume = "auto"\nout = "o"\n')),
    ("config_fifo", ["config", "plan"], "run.toml", fifo),
    ("config_zero", ["config", "plan"], "run.toml", link_to("/dev/zero")),
    ("config_huge", ["config", "plan"], "run.toml", sparse(8 << 30, b"#")),
    ("config_folder", ["config", "plan"], "run.toml", folder),
    ("config_escapes", ["config", "plan"], "run.toml", text("step" + ESCAPE + " = 1\n")),
    ("config_deep", ["config", "plan"], "run.toml", text("lr = " + "[" * 100_000 + "\n")),
    ("machine_fifo", ["machine"], "gpu.toml", fifo),
    ("machine_zero", ["machine"], "gpu.toml", link_to("/dev/zero")),
    ("schedule_fifo", ["schedule"], "plan.csv", fifo),
    ("schedule_zero", ["schedule"], "plan.csv", link_to("/dev/zero")),
    ("prompt_fifo", ["prompt"], "prompt.txt", fifo),
    ("prompt_huge", ["prompt"], "prompt.txt", sparse(8 << 30)),
    ("data_upwards", ["data"], "dataset.json", lambda p: p.write_text(p.read_text().replace('"file": "', '"file": "../outside/'))),
    ("data_huge", ["data"], "dataset.json", sparse(8 << 30)),
    ("data_fifo", ["data"], "dataset.json", fifo),
    ("manifest_link", ["resume"], "manifest.json", link_to("../../../outside/manifest.json")),
    ("manifest_fifo", ["resume"], "manifest.json", fifo),
    ("manifest_huge", ["resume"], "manifest.json", sparse(8 << 30)),
    ("manifest_upwards", ["resume"], "manifest.json", changed(lambda m: m["files"][0].update(path="../../../outside/id_rsa"))),
    ("manifest_commands", ["resume"], "manifest.json", changed(lambda m: m["flags"].update({"after-save": "touch HERE", "a" + ESCAPE: ESCAPE}))),
    ("state_link", ["resume"], "model.safetensors", link_to("../../../outside/model.safetensors")),
    ("state_fifo", ["resume"], "model.safetensors", fifo),
]  # fmt: skip


class Hostile:
    def __init__(self, program, seconds):
        self.program, self.strace, self.seconds = program, False, seconds
        self.data, self.run_folder = text_data("100K"), work / "run"
        shape = f"{all_faults.SHAPE} --device cpu --val-every 0 --val-tokens 64 --steps 1 --save-every 1"
        done = self.start([[program], shape, f"--data {self.data} --out {self.run_folder}"], work)
        if done.code != 0:
            sys.exit(f"the undisturbed program ended with {done.code}:\n{done.text}")
        self.step = next((self.run_folder / "checkpoints").glob("step_*")).relative_to(self.run_folder)

    def start(self, command, place):
        """The process, which has ended, with its `seconds` of a core, its `bytes` of memory, and what strace has `seen`."""
        log = work / "strace.log"
        traced = ["strace", "-f", "-qq", "-s", "512", "-e", f"trace={SEES}", "-o", log] if self.strace else []
        env = {"HOME": place, "XDG_CACHE_HOME": place / "cache"}
        job = Run(traced, *command, env=env, cwd=place, before=os.setsid)
        # Other work may have the cores.
        timer = threading.Timer(12 * self.seconds, os.killpg, (job.pid, signal.SIGKILL))
        timer.start()
        _, status, usage = os.wait4(job.pid, 0)
        timer.cancel()
        job.code = job.process.returncode = os.waitstatus_to_exitcode(status)
        job.seconds = 0 if traced else usage.ru_utime + usage.ru_stime
        job.bytes = 0 if traced else usage.ru_maxrss << 10
        job.seen = log.read_text(errors="replace") if traced else ""
        return job

    def folder_of(self, command, place):
        """A copy of what the command reads."""
        to = place / "case"
        if command == "resume":
            shutil.copytree(self.run_folder, to)
            return to, to / self.step
        if command == "data":
            shutil.copytree(self.data, to)
        elif command in ("config", "plan", "machine", "schedule", "prompt"):
            to.mkdir()
        else:
            shutil.copytree(self.run_folder / "final", to)
        return to, to

    def command(self, kind, to, file):
        short = "--device cpu --steps 2 --val-every 0 --val-tokens 64"
        train = f"{all_faults.SHAPE} {short}"
        generate = "--max-tokens 2 --temperature 0 --threads 1 --device cpu"
        prompt = f"{generate} --prompt def"
        return [self.program], {
            "generate": f"generate --from {to} {prompt}",
            "chat": f"generate --chat --from {to} {prompt}",
            "prompt": f"generate --from {self.run_folder}/final {generate} --prompt-file {to / file}",
            "export": f"export --from {to} --to made",
            "gguf": f"export --format gguf --from {to} --to made.gguf",
            "eval": f"eval --from {to} --tasks perplexity --device cpu --data {work}/eval",
            "tune": f"--init-from {to} --data {self.data} --out made --seq-len 32 --batch 1 --threads 1 {short}",
            "config": f"--config {to / file} {train} --data {self.data}",
            "plan": f"plan --gpus 1 --gpu cpu --config {to / file}",
            "machine": f"plan --gpus 1 --gpu {to / file}",
            "schedule": f"schedule --pp 2 --pp-schedule {to / file}",
            "data": f"{train} --data {to}",
            "resume": f"{train} --data {self.data} --out {to} --resume 1",
        }[kind]

    def outside_of(self, place):
        outside = place / "outside"
        outside.mkdir()
        (outside / "id_rsa").write_text(SECRET + "\n")
        for file in ("config.json", "tokenizer.json"):
            (outside / file).write_text(json.dumps({SECRET: SECRET}))
        shutil.copy(self.run_folder / "final/model.safetensors", outside)
        shutil.copy(self.run_folder / self.step / "manifest.json", outside)
        for shard in self.data.glob("*.bin"):
            shutil.copy(shard, outside)
        return outside

    def one(self, kind, file, act):
        """The problems of one start."""
        place = work / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        outside = self.outside_of(place)
        before = all_faults.files_of(outside)
        to, inner = self.folder_of(kind, place)
        if kind == "resume" and file == "model.safetensors":
            shutil.rmtree(to / "final", ignore_errors=True)
        act(inner / file)
        done = self.start(self.command(kind, to, file), place)
        harmless = file in ("README.md", "notes.txt", "inner") or (kind == "generate" and "template" in file)
        control = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ufffd]", done.text)
        found = {
            f"ends with {done.code}": done.code not in ((2, 70, 0) if harmless else (2, 70)),
            "no message": done.code != 0 and not done.says(r"train_llama: \S+"),
            f"took {done.seconds:.1f} s of a core": done.seconds > self.seconds,
            f"took {done.bytes / GIB:.2f} GiB": done.bytes > GIB,
            "prints control characters": control and (kind != "generate" or done.code != 0),
            "prints a line that a file made up": "\n  run this" in done.text,
            "prints a file outside": SECRET in done.text,
            "wrote outside, or ran a command": all_faults.files_of(outside) != before or list(place.rglob("HERE")),
        }
        for made in place.rglob("*"):
            small = made.is_file() and not made.is_symlink() and made.stat().st_size < 1 << 24
            secret = small and outside not in made.parents and SECRET.encode() in made.read_bytes()
            found[f"copied a file outside to {made.relative_to(place)}"] = secret
        return [problem for problem, there in found.items() if there] + self.judge(done.seen, place, outside), done

    def judge(self, seen, place, outside):
        """What strace saw."""
        problems = []
        for line in seen.splitlines():
            found = re.match(r'\d+ +(\w+)\((?:AT_FDCWD, |\d+, )*"((?:[^"\\]|\\.)*)"', line)
            if not found:
                if " connect(" in line:
                    problems.append(f"connects: {line}")
                continue
            call, name = found.groups()
            if " = -1 " in line:
                continue
            whole = os.path.realpath(os.path.join(place, name)) if not name.startswith("/proc/") else name
            if call.startswith("execve") and not re.search(
                r"/(train_llama\w*|python3[.\d]*|bash|env|pyenv[-\w]*|\w*pyenv\w*)$", name
            ):
                problems.append(f"executes {name}")
            if (
                whole.startswith(str(outside))
                or whole in ("/etc/passwd", "/proc/self/mem")
                or name.startswith("/dev/zero")
            ):
                problems.append(f"{call} of {name}")
            writes = call not in ("open", "openat", "openat2", "execve", "execveat") or re.search(
                r"O_WRONLY|O_RDWR|O_CREAT", line
            )
            inside = whole.startswith(str(place)) or re.match(
                r"/dev/(null|tty|shm/)|/proc/self/|/tmp/[\w.-]*(mpi|yaksa|hydra)", whole
            )
            if writes and not call.startswith("exec") and not inside:
                problems.append(f"{call} of {name} writes outside")
        return problems


def main():
    args = options("program", quick=False, only="", seconds=5.0, no_strace=False)
    can = subprocess.run("strace -o /dev/null true", shell=True, capture_output=True).returncode == 0
    has_jinja = subprocess.run([sys.executable, "-c", "import jinja2"], capture_output=True).returncode == 0
    if not can and not args.quick:
        skip("what is opened and executed: no strace here, or it may not trace")
    hostile = Hostile(args.program, args.seconds)
    for name, kinds, file, act in (case for case in CASES if args.only in case[0]):
        for kind in kinds[:1] if args.quick else kinds:
            if kind == "chat" and not has_jinja:
                skip(f"{name}: no jinja2 here")
                continue
            problems, done = hostile.one(kind, file, act)
            if can and not args.quick and not args.no_strace and kind == kinds[0]:
                hostile.strace = True
                problems += hostile.one(kind, file, act)[0]
                hostile.strace = False
            said = done.text[-600:].encode("unicode_escape").decode()
            check(f"{name} by {kind}", not problems, "\n".join([*dict.fromkeys(problems), said]))
    end()


if __name__ == "__main__":
    main()
