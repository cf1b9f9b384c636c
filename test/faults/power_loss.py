#!/usr/bin/env python3
"""Power cuts: builds the states that a file system may leave, at every moment of a run, and resumes from each.

    test/faults/power_loss.py PROGRAM SHIM [--states N] [--seed S] [--jobs N] [--timeout S]

The shim records every change of a run's files with its data. From the record a model of the file system is built, with the
rules of POSIX and no more: what a file holds is safe once it was synced, a name once its folder was, in the state that both
had then; anything later may be there or not, whole or in part, names before data (CrashMonkey and ALICE do the same). Each
state is a folder, which the program is started in again. Asked: never a signal; a start that resumes ends with the weights of
a run without a power cut; and from the moment a checkpoint was published and synced, every state resumes from one, however
the rest was torn. --states: that many, drawn evenly from all different ones (0: all). Ends with "N passed, N failed".
"""

import concurrent.futures
import dataclasses
import hashlib
import os
import random

import all_faults
from checks import check, end, options, weights, work


class File:
    def __init__(self):
        self.now = bytearray()
        self.safe = b""  # as it was when it was last synced
        self.writes = []  # since then: (offset, bytes)

    def write(self, at, data):
        self.writes.append((at, data))
        if len(self.now) < at:
            self.now.extend(bytes(at - len(self.now)))
        self.now[at : at + len(data)] = data

    def resize(self, size):
        del self.now[size:]
        self.now.extend(bytes(size - len(self.now)))

    def sync(self):
        self.safe, self.writes = bytes(self.now), []

    def left(self, how, chance):
        """What a power cut leaves of it."""
        if how == "safe" or not self.writes and len(self.now) == len(self.safe):
            return self.safe
        if how == "now":
            return bytes(self.now)
        if how == "zeros":  # the size was journalled, the data was not
            return bytes(len(self.now))
        content = bytearray(self.safe[: len(self.now)].ljust(len(self.now), b"\0"))
        for at, data in self.writes:  # in any order, or not at all; the last one torn
            if chance.random() < 0.5:
                content[at : at + len(data)] = data
            elif chance.random() < 0.5:
                content[at : at + len(data) // 2] = data[: len(data) // 2]
        return bytes(content)


class Folder:
    def __init__(self):
        self.now, self.safe = {}, {}  # name: File or Folder

    def sync(self):
        self.safe = dict(self.now)


class Disk:
    """What the record says, so far."""

    def __init__(self, root):
        self.root, self.top = root, Folder()

    def place(self, path):
        """The folder that holds the name, and the name; None outside the root or where nothing is."""
        if not path.startswith(self.root + "/"):
            return None
        *folders, name = path[len(self.root) + 1 :].split("/")
        at = self.top
        for folder in folders:
            at = at.now.get(folder)
            if not isinstance(at, Folder):
                return None
        return at, name

    def apply(self, operation, at, data, path, other):
        if path == self.root and operation == "fsync":
            self.top.sync()
            return
        place = self.place(path)
        if place is None:
            return
        folder, name = place
        node = folder.now.get(name)
        if operation == "create" and node is None:
            folder.now[name] = File()
        elif operation == "mkdir":
            folder.now.setdefault(name, Folder())
        elif operation in ("rename", "exchange") and (target := self.place(other)) and node is not None:
            to, to_name = target
            folder.now.pop(name)
            if operation == "exchange":
                folder.now[name] = to.now[to_name]
            to.now[to_name] = node
        elif operation == "remove":
            folder.now.pop(name, None)
        elif operation == "fsync" and node is not None:
            node.sync()
        elif isinstance(node, File):
            if operation == "write":
                node.write(at, data)
            elif operation == "truncate" or (operation == "reserve" and at > len(node.now)):
                node.resize(at)

    def left(self, names, how, chance):
        """{path: content, or None for a folder} after a power cut."""
        out = {}

        def walk(folder, path):
            which = names if names != "any" else chance.choice(("safe", "now"))
            for name, node in sorted((folder.safe if which == "safe" else folder.now).items()):
                if isinstance(node, Folder):
                    out[path + name] = None
                    walk(node, path + name + "/")
                else:
                    out[path + name] = node.left(chance.choice(KINDS) if how == "any" else how, chance)

        walk(self.top, "")
        return out


KINDS = ("safe", "now", "zeros", "torn")
VARIANTS = [
    ("safe", "safe"),
    ("now", "safe"),
    ("now", "zeros"),
    ("now", "torn"),
    ("safe", "now"),
    ("any", "any"),
    ("any", "any"),
]


def read_record(path):
    text, at, entries = path.read_bytes(), 0, []
    while at < len(text):
        end = text.index(b"\n", at)
        operation, offset, size, first, other = text[at:end].decode(errors="surrogateescape").split(" ", 4)
        at = end + 1
        entries.append((operation, int(offset), text[at : at + int(size)], first, other))
        at += int(size)
    return entries


@dataclasses.dataclass
class State:
    number: int
    moment: int  # after so many changes
    call: str
    names: str
    how: str
    files: dict
    must_resume: bool


def all_states(entries, root, seed):
    """Every different state of every moment: after each change that names or syncs something, and the last of a row of writes."""
    disk, states, seen, published = Disk(root), [], set(), False
    for i, entry in enumerate(entries):
        disk.apply(*entry)
        operation, _, _, path, other = entry
        if operation == "fsync" and path.endswith("/checkpoints"):
            folder = disk.place(path)
            names = folder[0].now[folder[1]].safe if folder and folder[1] in folder[0].now else {}
            published = published or any(n.startswith("step_") for n in names)
        if operation == "write" and i + 1 < len(entries) and entries[i + 1][0] == "write":
            continue
        for variant, (names, how) in enumerate(VARIANTS):
            files = disk.left(names, how, random.Random(f"{seed} {i} {variant}"))
            print_of = hashlib.sha256(repr(sorted(files.items())).encode()).digest()
            if print_of not in seen:
                seen.add(print_of)
                states.append(State(len(states), i + 1, f"{operation} {path} {other}", names, how, files, published))
    return states


def resume(setting, state):
    with all_faults.scratch() as folder:
        for path, content in state.files.items():
            at = folder / path
            if content is None:
                at.mkdir(parents=True, exist_ok=True)
            else:
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_bytes(content)
        out = folder / "out"
        done = setting.resume(out)
        if done.code not in setting.exit_codes:
            return f"ends with {done.code}", done
        if done.code == 0:
            if state.must_resume and "resumed  " not in done.text:
                return "began a new run, although a checkpoint had been published", done
            return "" if weights(out) == setting.reference else "ends with other weights", done
        if state.must_resume:
            return f"does not resume ({done.code}), although a checkpoint had been published", done
        return "" if "train_llama: " in done.text else "no message", done


def main():
    args = options("program", "shim", states=0, seed=1, jobs=os.cpu_count(), timeout=40.0)
    setting = all_faults.Setting(args.program, args.shim, args.timeout)
    root, record = work / "recorded", work / "record"
    root.mkdir()
    setting.must(setting.train(root / "out", LD_PRELOAD=args.shim, FAULT_PATHS=f"{root}/", FAULT_RECORD=record))
    entries = read_record(record)
    every = all_states(entries, str(root), args.seed)
    chosen = every
    if 0 < args.states < len(every):
        chosen = [every[i * len(every) // args.states] for i in range(args.states)]
    resumed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for state, (problem, done) in zip(chosen, pool.map(lambda s: resume(setting, s), chosen), strict=True):
            resumed += "resumed  " in done.text
            when = f"after change {state.moment} ({state.call}), names {state.names}, data {state.how}"
            about = "\n".join([problem, *done.text.splitlines()[-6:]])
            check(f"state {state.number}: {when}", not problem, about)
    print(f"{len(entries)} changes, {len(every)} states, {len(chosen)} tried, {resumed} of them resumed")
    end()


if __name__ == "__main__":
    main()
