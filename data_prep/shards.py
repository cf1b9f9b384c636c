"""Token shards in llm.c's two formats, written so that an interrupted run continues where it was.

A shard is 256 int32 (magic, version, tokens, 0 ...) and then the ids, all little-endian:
    gpt-2    magic 20240520, version 1, uint16 ids
    llama-3  magic 20240801, version 7, uint32 ids
"""

import os
import struct
import sys
import zlib
from array import array

from common import PrepareError, sync_folder

HEADER_BYTES = 1024
FORMATS = {"gpt-2": (20240520, 1, "H"), "llama-3": (20240801, 7, "I")}
MAX_SHARD_TOKENS = 2**31 - 1  # the count is an int32


def format_for(vocab_size):
    return "gpt-2" if vocab_size <= 1 << 16 else "llama-3"


def head_of_dataset(name, encoder, shard_format, beside=""):
    """What dataset.json begins with; `beside`: what the shards hold besides ids."""
    return {
        "format_version": 1,
        "name": name,
        "vocab_size": encoder.vocab_size,
        "shard_format": shard_format,
        "tokenizer": {
            "kind": encoder.kind,
            "file": "tokenizer.json",
            "eot": encoder.eot_text,
            "eot_id": encoder.eot,
        },
        "documents": f"each document begins with the eot token{beside}",
    }


class SplitWriter:
    """Appends ids to DIR/NAME_SPLIT_000000.bin, 000001, ... of `shard_tokens` each.

    The shard being written is called *.partial. sync() makes everything so far durable and returns a state; a
    writer made from that state continues as if what came after had never been written.
    """

    def __init__(self, folder, name, split, shard_format, shard_tokens, state=None):
        self.prefix = os.path.join(folder, f"{name}_{split}_")
        self.format = shard_format
        self.magic, self.version, self.typecode = FORMATS[shard_format]
        self.width = array(self.typecode).itemsize
        assert self.width == (2 if shard_format == "gpt-2" else 4)
        if not 1 <= shard_tokens <= MAX_SHARD_TOKENS:
            raise PrepareError(f"--shard-tokens {shard_tokens}: a shard's header can count 1 to {MAX_SHARD_TOKENS}")
        self.shard_tokens = shard_tokens
        state = state or {"shards": [], "partial_tokens": 0, "documents": 0, "bytes": 0}
        self.shards = list(state["shards"])
        self.partial_tokens = state["partial_tokens"]
        self.documents, self.bytes = state["documents"], state["bytes"]
        self._file, self._crc = None, 0
        self._discard_after_state()

    @property
    def tokens(self):
        return sum(s["tokens"] for s in self.shards) + self.partial_tokens

    def _path(self, index):
        return f"{self.prefix}{index:06d}.bin"

    def _discard_after_state(self):
        for shard in self.shards:
            path = os.path.join(os.path.dirname(self.prefix), shard["file"])
            if not os.path.exists(path) or os.path.getsize(path) != HEADER_BYTES + shard["tokens"] * self.width:
                raise PrepareError(f"{path} is missing or of another size than recorded; start again with --overwrite")
        index = len(self.shards)
        current = self._path(index)
        if not os.path.exists(current + ".partial") and os.path.exists(current):
            os.rename(current, current + ".partial")  # finished after the state was saved
        if self.partial_tokens:
            size = HEADER_BYTES + self.partial_tokens * self.width
            if not os.path.exists(current + ".partial") or os.path.getsize(current + ".partial") < size:
                raise PrepareError(
                    f"{current}.partial is missing or shorter than recorded; start again with --overwrite"
                )
            self._file = open(current + ".partial", "r+b")
            self._file.truncate(size)
            self._file.seek(HEADER_BYTES)
            while piece := self._file.read(1 << 20):
                self._crc = zlib.crc32(piece, self._crc)
            index += 1
        while any(os.path.exists(self._path(index) + end) for end in ("", ".partial")):
            for end in ("", ".partial"):
                if os.path.exists(self._path(index) + end):
                    os.remove(self._path(index) + end)
            index += 1

    def write(self, ids):
        """`ids` is an array of this writer's typecode."""
        begin = 0
        while begin < len(ids):
            if self._file is None:
                self._file = open(self._path(len(self.shards)) + ".partial", "wb")
                self._file.write(bytes(HEADER_BYTES))
            part = ids[begin : begin + self.shard_tokens - self.partial_tokens]
            if sys.byteorder == "big":
                part.byteswap()
            self._file.write(part)
            self._crc = zlib.crc32(part, self._crc)
            self.partial_tokens += len(part)
            begin += len(part)
            if self.partial_tokens == self.shard_tokens:
                self._finish_shard()

    def _finish_shard(self):
        path = self._path(len(self.shards))
        self._file.seek(0)
        self._file.write(struct.pack("<3i", self.magic, self.version, self.partial_tokens))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(path + ".partial", path)
        sync_folder(os.path.dirname(path))
        self.shards.append({"file": os.path.basename(path), "tokens": self.partial_tokens, "crc32": self._crc})
        self._file, self.partial_tokens, self._crc = None, 0, 0

    def sync(self):
        if self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        return {
            "shards": self.shards,
            "partial_tokens": self.partial_tokens,
            "documents": self.documents,
            "bytes": self.bytes,
        }

    def finish(self):
        if self._file:
            self._finish_shard()

    def summary(self):
        """Of the finished shards; the ratio of all."""
        return {
            "tokens": self.tokens - self.partial_tokens,
            "documents": self.documents,
            "bytes": self.bytes,
            "bytes_per_token": self.bytes / self.tokens if self.bytes and self.tokens else None,
            "shards": self.shards,
        }


def read_shard(path):
    """The ids of one shard as an array; for tests and inspection."""
    with open(path, "rb") as f:
        magic, version, tokens = struct.unpack_from("<3i", f.read(HEADER_BYTES))
        typecode = {(m, v): t for m, v, t in FORMATS.values()}.get((magic, version))
        if typecode is None:
            raise PrepareError(f"{path}: not a token shard (magic {magic}, version {version})")
        ids = array(typecode, f.read())
    if sys.byteorder == "big":
        ids.byteswap()
    if len(ids) != tokens:
        raise PrepareError(f"{path}: {len(ids)} tokens, but the header says {tokens}")
    return ids
