"""What every module here uses: the one error type, sizes, atomic files, progress with ETA."""

import json
import os
import re
import sys
import time


class PrepareError(Exception):
    """A problem the user can mend; the message says how. prepare.py prints it and exits with 1."""


class Unavailable(PrepareError):
    """A corpus or tokenizer cannot be had here: a package or the network is missing."""


_UNITS = {
    unit + end: factor
    for unit, factor in (("K", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))
    for end in ("", "B")
} | {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "B": 1, "": 1}


def parse_size(text):
    """'30M', '1e8', '512KiB' -> int. Raises ValueError, which argparse turns into a message."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]{1,2})?)\s*([A-Za-z]*)", text.strip())
    unit = match and match.group(2).upper()
    if not match or unit not in _UNITS:
        raise ValueError(f"'{text}' is not a size; write it like 30M, 1e8 or 512KiB")
    number = match.group(1)
    value = (int(number) if number.isdigit() else float(number)) * _UNITS[unit]
    if value != int(value) or value < 1:
        raise ValueError(f"'{text}' is not a whole number of at least 1")
    return int(value)


def human(n, unit=""):
    for size, suffix in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.{2 if n < 10 * size else 1}f}{' ' if unit else ''}{suffix}{unit}"
    return f"{n:.0f}{' ' if unit else ''}{unit}"


def duration(seconds):
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds // 60 % 60:02d}m"


def sync_folder(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path, data):
    """The file is there whole or not at all, also after a power cut."""
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path) or ".")


def write_json(path, value):
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path):
    """None if the file is not there."""
    try:
        with open(path, "rb") as f:
            return json.load(f)
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise PrepareError(f"{path}: not valid JSON ({e}); remove the file or pass --overwrite") from e


class Progress:
    """A bar on a terminal, a line every ten seconds elsewhere, on stderr."""

    def __init__(self, total_bytes, done_bytes=0, quiet=False):
        self.total, self.begin_bytes, self.quiet = total_bytes, done_bytes, quiet
        self.begin = self.shown = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def update(self, done_bytes, tokens, last=False):
        now = time.monotonic()
        if self.quiet or (not last and now - self.shown < (0.2 if self.terminal else 10)):
            return
        self.shown = now
        elapsed = max(now - self.begin, 1e-3)
        rate = (done_bytes - self.begin_bytes) / elapsed
        line = f"{human(done_bytes, 'B')} of text, {human(tokens)} tokens, {human(rate, 'B/s')}"
        if self.total and not last:
            part = min(done_bytes / self.total, 1.0)
            filled = int(part * 24)
            eta = duration(max(self.total - done_bytes, 0) / rate) if rate > 0 else "?"
            line = f"[{'#' * filled}{'.' * (24 - filled)}] {part:5.1%}  {line}, ETA {eta}"
        elif last:
            line = f"{line}, {duration(elapsed)}"
        if self.terminal:
            sys.stderr.write(f"\r\033[K{line}" + ("\n" if last else ""))
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
