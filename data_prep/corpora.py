"""Where text comes from. Each corpus yields documents in an order that depends on nothing but its settings.

A corpus has
    name          of the dataset and its files
    settings()    everything that determines its documents, for dataset.json and for resuming
    open()        find the data; raises Unavailable if it is not to be had
    total_bytes   roughly, for the ETA; None if unknown
    documents(skip)   yields Document from number `skip` on
"""

import hashlib
import itertools
import json
import os
import sysconfig
import zlib
from dataclasses import dataclass

from common import PrepareError
from files import BadFile, is_packed, kind_of_file, open_text, text_bytes, why_not_text

PIECE_BYTES = 1 << 20  # longer documents are passed on in pieces, cut after a newline


class Unavailable(PrepareError):
    """The corpus cannot be had here: a package or the network is missing."""


@dataclass
class Document:
    split: str  # "train" or "val"
    data: bytes  # UTF-8 as a rule; tokenizers other than bytes see invalid sequences as U+FFFD
    first: bool = True  # False: continues the document before


def pieces(data):
    """Cuts long text after newlines (else at PIECE_BYTES), never inside a UTF-8 sequence."""
    begin = 0
    while len(data) - begin > PIECE_BYTES:
        end = data.rfind(b"\n", begin, begin + PIECE_BYTES) + 1
        if end <= begin:
            end = begin + PIECE_BYTES
            for _ in range(3):
                if data[end] & 0xC0 != 0x80:
                    break
                end -= 1
        yield data[begin:end]
        begin = end
    if begin < len(data):
        yield data[begin:]


def split_of(key, seed, val_fraction):
    """Every document falls to one side by a hash of its key: no counts, so any prefix of a corpus is split alike."""
    return "val" if zlib.crc32(f"{seed}:{key}".encode()) < val_fraction * 2**32 else "train"


class Corpus:
    total_bytes = None

    def __init__(self, name, seed, val_fraction):
        self.name, self.seed, self.val_fraction = name, seed, val_fraction
        self.notes = []  # lines for the user, when all is written

    def settings(self):
        return {"kind": type(self).__name__, "seed": self.seed, "val_fraction": self.val_fraction}

    def open(self):
        pass

    def finished(self):
        """All documents were taken: what there is to say goes to `notes`."""

    def documents(self, skip=0):
        return itertools.islice(self._documents(), skip, None)

    def _in_pieces(self, split, data):
        for i, piece in enumerate(pieces(data)):
            yield Document(split, piece, first=i == 0)


class StdlibCorpus(Corpus):
    """The source of Python's standard library, which every machine with Python already has.

    Without tests, installed packages and files that differ between machines. One document per file, in the order of a
    hash of the path, so that a prefix of any size is a fair sample.
    """

    EXCLUDED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}

    def __init__(self, seed, val_fraction, root=None):
        super().__init__("stdlib", seed, val_fraction)
        self.root = root or sysconfig.get_paths()["stdlib"]

    def settings(self):
        return {**super().settings(), "python": sysconfig.get_python_version(), "files": len(self._files)}

    def open(self):
        found = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if f not in self.EXCLUDED_FOLDERS and not f.startswith("config-")]
            for file in files:
                path = os.path.join(folder, file)
                if file.endswith(".py") and not file.startswith("_sysconfigdata") and not os.path.islink(path):
                    found.append((os.path.relpath(path, self.root), os.path.getsize(path)))
        if not found:
            raise Unavailable(
                f"no Python source under {self.root}; install the package libpython3-stdlib, or use: "
                "prepare.py text FILE"
            )
        found.sort(key=lambda f: hashlib.sha256(f[0].encode()).digest())
        self._files = [f[0] for f in found]
        self.total_bytes = sum(f[1] for f in found)

    def _documents(self):
        for path in self._files:
            with open(os.path.join(self.root, path), "rb") as f:
                data = f.read()
            if data:
                yield from self._in_pieces(split_of(path, self.seed, self.val_fraction), data)


class TextCorpus(Corpus):
    """Files and folders of text, also packed (.gz, .zst). A .jsonl file holds one document per line, in `field`, a
    .parquet file one per row, in the column `field`; any other file is one document, or several between lines equal to
    `separator`. Where validation files are given, they are the validation data; else, if there are few files (and no
    separator), the end of each goes to validation; otherwise whole documents do."""

    FEW_FILES = 20

    def __init__(
        self,
        paths,
        name,
        seed,
        val_fraction,
        field="text",
        separator=None,
        val_paths=(),
        skip_bad=False,
        split_inside=False,
    ):
        super().__init__(name, seed, 0 if val_paths else val_fraction)
        self.paths, self.val_paths = paths, list(val_paths)
        self.field, self.separator, self.skip_bad, self.split_inside = field, separator, skip_bad, split_inside
        self.bad, self.inside = 0, 0  # rows that were left out; lines with a separator that is not the whole line

    def settings(self):
        extra = {"val_files": [self._identity(p) for p in self._val_files]} if self._val_files else {}
        for name in ("skip_bad", "split_inside"):
            if getattr(self, name):
                extra[name] = True
        return {
            **super().settings(),
            "field": self.field,
            "separator": self.separator,
            "files": [self._identity(p) for p in self._files],
            **extra,
        }

    @staticmethod
    def _identity(path):
        return [os.path.basename(path), os.path.getsize(path)]

    def open(self):
        skipped = []
        self._files = self._find(self.paths, skipped)
        self._val_files = self._find(self.val_paths, skipped)
        training = {os.path.realpath(p) for p in self._files}
        both = [p for p in self._val_files if os.path.realpath(p) in training]
        if both:
            raise PrepareError(f"{both[0]}: is to be training and validation text; name it once")
        for file, why in skipped[:20]:
            self.notes.append(f"skipped {file}: {why}")
        if len(skipped) > 20:
            self.notes.append(f"skipped {len(skipped) - 20} more files of these folders")
        if not self._files:
            reasons = "".join(f"\n  {file}: {why}" for file, why in skipped[:20])
            raise PrepareError(f"no text files in {', '.join(self.paths)}{reasons}")
        self.total_bytes = sum(self._text_bytes(f) for f in self._files + self._val_files)

    def _find(self, paths, skipped):
        files = []
        for path in paths:
            if not os.path.exists(path):
                raise PrepareError(f"{path}: no such file or folder")
            for file in [path] if os.path.isfile(path) else self._walk(path):
                why = why_not_text(file)
                if why is None:
                    files.append(file)
                elif os.path.isfile(path):
                    raise PrepareError(f"{file}: {why}")
                else:
                    skipped.append((file, why))
        return files

    def finished(self):
        if self.bad:
            self.notes.append(f"left out {self.bad} bad rows (--skip-bad)")
        if self.inside:
            self.notes.append(
                f"{self.inside} lines hold the separator and more: not split there; --split-inside splits them"
            )

    def _text_bytes(self, path):
        """Of text, roughly."""
        return self._column_bytes(path) if kind_of_file(path) == "parquet" else text_bytes(path)

    @staticmethod
    def _walk(root):
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            for file in sorted(files):
                path = os.path.join(folder, file)
                if not file.startswith(".") and os.path.isfile(path):
                    yield path

    def _documents(self):
        # Validation first: a limit on the size cuts training text.
        numbered = [(len(self._files) + n, path, "val") for n, path in enumerate(self._val_files)]
        numbered += [(number, path, "train" if self._val_files else None) for number, path in enumerate(self._files)]
        for number, path, split in numbered:
            try:
                yield from self._documents_of(number, path, split)
            except BadFile as e:
                raise PrepareError(f"{path}: {e}") from e

    def _documents_of(self, number, path, split):
        kind = kind_of_file(path)
        if kind == "jsonl":
            yield from self._json_lines(number, path, split)
        elif kind == "parquet":
            yield from self._parquet_rows(number, path, split)
        elif self.separator is not None:
            yield from self._separated(number, path, split)
        elif split is None and len(self._files) < self.FEW_FILES and not is_packed(path):
            yield from self._head_and_tail(path)
        else:
            yield from self._read(path, split or self._split(number))

    def _split(self, key):
        return split_of(key, self.seed, self.val_fraction)

    def _bad(self, path, row, problem):
        if not self.skip_bad:
            raise PrepareError(f"{path}, {row}: {problem}; mend it, name the field with --field, or --skip-bad")
        self.bad += 1

    def _json_text(self, line):
        """The text of a line, and what is wrong with it."""
        try:
            row = json.loads(line)
        except ValueError:  # also bytes that are no UTF-8
            return None, "is not JSON"
        if not isinstance(row, dict):
            return None, f"is JSON, but no object with a field '{self.field}'"
        if self.field not in row:
            return None, f"has no field '{self.field}', only {', '.join(map(repr, row)) or 'nothing'}"
        if not isinstance(row[self.field], str):
            kind = {type(None): "null", bool: "true or false", list: "a list", dict: "an object"}
            return None, f"has {kind.get(type(row[self.field]), 'a number')} in '{self.field}', not text"
        return row[self.field], None

    def _json_lines(self, number, path, split):
        with open_text(path) as f:
            for line_number, line in enumerate(f, 1):
                if not line.strip():
                    continue
                text, problem = self._json_text(line)
                if problem:
                    self._bad(path, f"line {line_number}", problem)
                elif text:
                    data = text.encode("utf-8", "replace")
                    yield from self._in_pieces(split or self._split(f"{number}:{line_number}"), data)

    def _parquet_file(self, path):
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as e:
            raise Unavailable(
                f"{path}: a Parquet file is read through the Python package `pyarrow`, which is missing; run: "
                "python3 -m pip install pyarrow"
            ) from e
        try:
            file = parquet.ParquetFile(path)
        except (ArrowException, OSError) as e:
            raise PrepareError(f"{path}: not a Parquet file, damaged or cut off ({e}); download it again") from e
        columns = {field.name: str(field.type) for field in file.schema_arrow}
        if columns.get(self.field) not in ("string", "large_string", "string_view"):
            raise PrepareError(
                f"{path}: no column of text called '{self.field}'; it has "
                f"{', '.join(f'{n} ({t})' for n, t in columns.items())}; name one with --field"
            )
        return file

    def _column_bytes(self, path):
        metadata = self._parquet_file(path).metadata
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        columns = [group.column(c) for group in groups for c in range(group.num_columns)]
        return sum(c.total_uncompressed_size for c in columns if c.path_in_schema == self.field)

    def _parquet_rows(self, number, path, split=None):
        file, row = self._parquet_file(path), 1  # counted as the lines of JSONL are
        batches = file.iter_batches(batch_size=256, columns=[self.field])
        while True:
            try:
                batch = next(batches, None)
            except Exception as e:  # of many types: a damaged page
                raise PrepareError(
                    f"{path}, after row {row}: damaged; download it again ({str(e).splitlines()[0]})"
                ) from e
            if batch is None:
                return
            for text in batch.column(0).to_pylist():
                if text:
                    side = split or self._split(f"{number}:{row}")
                    yield from self._in_pieces(side, text.encode("utf-8", "replace"))
                elif text is None:
                    self._bad(path, f"row {row}", f"has null in '{self.field}', not text")
                row += 1

    def _separated(self, number, path, split):
        mark, lines, count = self.separator.encode(), [], 0

        def document():
            nonlocal lines, count
            data, lines = b"".join(lines).strip(b"\r\n"), []
            if data:
                yield from self._in_pieces(split or self._split(f"{number}:{count}"), data)
            count += 1

        with open_text(path) as f:
            for line in f:
                if line.strip() == mark:
                    yield from document()
                elif mark not in line:
                    lines.append(line)
                elif not self.split_inside:
                    self.inside += 1
                    lines.append(line)
                else:
                    *ends, rest = line.split(mark)
                    for end in ends:
                        lines.append(end)
                        yield from document()
                    lines.append(rest)
        yield from document()

    def _head_and_tail(self, path):
        size = os.path.getsize(path)
        cut = size - int(size * self.val_fraction)
        with open(path, "rb") as f:  # move the cut past the end of its line
            f.seek(cut)
            cut = min(cut + len(f.readline(PIECE_BYTES)), size) if cut < size else size
        if cut == size and self.val_fraction > 0:  # one line
            cut = size - int(size * self.val_fraction)
        yield from self._read(path, "train", 0, cut)
        yield from self._read(path, "val", cut, size)

    def _read(self, path, split, begin=0, end=None):
        """Bytes [begin, end) of the text; all of it if no end is given."""
        first, rest = True, b""
        with open_text(path) as f:
            if begin:
                f.seek(begin)
            while end is None or begin < end:
                block = f.read(16 * PIECE_BYTES if end is None else min(16 * PIECE_BYTES, end - begin))
                if not block and end is not None:
                    raise PrepareError(f"{path}: became shorter while it was read")
                begin += len(block)
                last = not block if end is None else begin >= end
                parts = list(pieces(rest + block))
                rest = b"" if last or not parts else parts.pop()  # may continue in the next block
                for part in parts:
                    yield Document(split, part, first)
                    first = False
                if last:
                    return


class HubCorpus(Corpus):
    """A dataset of the Hugging Face hub, streamed through `datasets`."""

    def __init__(self, name, repo, seed, val_fraction, subset=None, revision=None, val_split=None, field="text"):
        super().__init__(name, seed, val_fraction)
        self.repo, self.subset, self.revision = repo, subset, revision
        self.val_split, self.field = val_split, field

    def settings(self):
        return {
            **super().settings(),
            "repo": self.repo,
            "subset": self.subset,
            "revision": self.revision,
            "field": self.field,
        }

    def _load(self, split):
        try:
            import datasets
        except ImportError as e:
            raise Unavailable(
                f"{self.name} is streamed through the Python package `datasets`, which is missing; run: "
                "python3 -m pip install datasets"
            ) from e
        try:
            return datasets.load_dataset(self.repo, self.subset, split=split, revision=self.revision, streaming=True)
        except Exception as e:  # the package raises many types for a missing network or repository
            reason = str(e).strip().splitlines()
            raise Unavailable(
                f"cannot open {self.repo} on the Hugging Face hub ("
                f"{reason[0] if reason else 'no reason given'}); check the network and the name, or download it and "
                "use: prepare.py text FILES"
            ) from e

    def open(self):
        self._train = self._load("train")
        self._val = self._load(self.val_split) if self.val_split else None
        splits = getattr(getattr(self._train, "info", None), "splits", None) or {}
        self.total_bytes = sum(getattr(s, "num_bytes", 0) or 0 for s in splits.values()) or None

    def _rows(self, rows, split):
        for number, row in enumerate(self._unbroken(rows)):
            text = row.get(self.field)
            if not isinstance(text, str):
                raise PrepareError(
                    f"{self.repo}, row {number}: no text in '{self.field}'; its fields are "
                    f"{', '.join(row)}; name one with --field"
                )
            if text:
                yield from self._in_pieces(
                    split or split_of(number, self.seed, self.val_fraction), text.encode("utf-8", "replace")
                )

    def _unbroken(self, rows):
        try:
            yield from rows
        except Exception as e:  # of many types: the network
            raise PrepareError(f"the stream of {self.repo} broke ({e}); give the same command again to continue") from e

    def _documents(self):
        if self._val is None:
            yield from self._rows(self._train, None)
        else:  # validation first: a limit on the size cuts training text
            yield from self._rows(self._val, "val")
            yield from self._rows(self._train, "train")
