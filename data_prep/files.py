"""What kind of file it is, and its text: plain, .gz or .zst."""

import gzip
import io
import json
import os
import shutil
import struct
import subprocess
import zlib

from common import PrepareError

PACKED = (".gz", ".zst")
ARRAY_BYTES = 1 << 30  # the largest .json array


class BadFile(Exception):
    """The file is damaged or can't be unpacked; the message has no path."""


def is_packed(path):
    return path.endswith(PACKED)


def kind_of_file(path):
    """jsonl, parquet, json, csv, tsv or text by its name, whether packed or not."""
    name = path.lower()
    for end in PACKED:
        name = name.removesuffix(end)
    kind = name.rpartition(".")[2]
    return {"ndjson": "jsonl"}.get(kind, kind if kind in ("jsonl", "parquet", "json", "csv", "tsv") else "text")


def why_not_text(path):
    """None if the file can be read as text."""
    if not os.path.getsize(path):
        return "is empty"
    with open(path, "rb") as f:
        head = f.read(8192)
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the file itself; run: git lfs pull"
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is UTF-16; make UTF-8 of it first: iconv -f UTF-16 -t UTF-8 FILE > NEW"
    if is_packed(path) or kind_of_file(path) == "parquet":
        return None
    if b"\0" in head:
        return "holds NUL bytes in its first 8 KiB, so it is not text; unpack or convert it first"
    return None


def text_bytes(path):
    """Of text, roughly."""
    size = os.path.getsize(path)
    if path.endswith(".gz") and size > 4:
        with open(path, "rb") as f:
            f.seek(-4, os.SEEK_END)
            return max(size, struct.unpack("<I", f.read())[0])  # of the last member, modulo 4 GiB
    return size * 3 if path.endswith(".zst") else size


class _Unpacked(io.RawIOBase):
    """Turns what the unpacker raises into BadFile."""

    def __init__(self, source):
        self._source = source

    def readable(self):
        return True

    def readinto(self, buffer):
        try:
            data = self._source.read(len(buffer))
        except (gzip.BadGzipFile, zlib.error, EOFError) as e:
            raise BadFile("is damaged or cut off; download it again") from e
        buffer[: len(data)] = data
        return len(data)

    def close(self):
        self._source.close()
        super().close()


class _Zstd:
    """The output of the program zstd."""

    def __init__(self, path):
        program = shutil.which("zstd")
        if not program:
            raise BadFile("is packed with Zstandard; install the program zstd, or unpack it first")
        self._process = subprocess.Popen(
            [program, "-dc", "--", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def read(self, size):
        data = self._process.stdout.read(size)
        if not data and self._process.wait() != 0:
            raise EOFError
        return data

    def close(self):
        self._process.stdout.close()
        self._process.wait()


def read_array(path, file):
    """The rows of a JSON array, which is taken whole."""
    data = file.read(ARRAY_BYTES + 1)
    if len(data) > ARRAY_BYTES:
        raise PrepareError(
            f"{path}: a JSON array of more than 1 GiB; make lines of it first: jq -c '.[]' FILE > FILE.jsonl"
        )
    try:
        return json.loads(data)
    except ValueError as e:
        raise PrepareError(f"{path}: is not JSON: {e}") from e


def open_text(path):
    """The unpacked bytes, as a file to read; only a plain one can seek."""
    if path.endswith(".gz"):
        return io.BufferedReader(_Unpacked(gzip.open(path)), 1 << 20)
    if path.endswith(".zst"):
        return io.BufferedReader(_Unpacked(_Zstd(path)), 1 << 20)
    return open(path, "rb")
