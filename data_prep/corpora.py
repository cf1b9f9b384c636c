"""Where text comes from. Each corpus yields documents in an order that depends on nothing but its settings.

A corpus has
    name          of the dataset and its files
    settings()    everything that determines its documents, for dataset.json and for resuming
    open()        find the data; raises Unavailable if it is not to be had
    total_bytes   roughly, for the ETA; None if unknown
    documents(skip)   yields Document from number `skip` on
"""

import csv
import hashlib
import io
import itertools
import json
import os
import re
import sysconfig
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass

from common import PrepareError, Unavailable
from files import BadFile, is_packed, kind_of_file, open_text, read_array, text_bytes, why_not_text

PIECE_BYTES = 1 << 20  # longer documents are passed on in pieces, cut after a newline
LOOK_BYTES = 64 << 20  # how far a file is searched for lines that end a document
CHAT_FIELDS = {"messages", "conversations", "instruction", "completion"}  # of rows that prepare.py chat reads
END_MARKS = (
    "<|endoftext|>",
    "</s>",
)  # lines equal to one of these end a document, and so does the tokenizer's end token


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

    def use_tokenizer(self, encoder):
        """Text may be divided by the end token of the tokenizer that is used."""

    def _split(self, key):
        return split_of(key, self.seed, self.val_fraction)

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
                yield from self._in_pieces(self._split(path), data)


class ShakespeareCorpus(Corpus):
    """Plays of Shakespeare in one file of 1.1 MB, split as nanoGPT does: the last tenth is the validation text."""

    URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    SIZE = 1115394

    def __init__(self, path=None):
        super().__init__("shakespeare", 0, 0.1)
        self.path = path

    def settings(self):
        return {"kind": type(self).__name__, "sha256": self.SHA256}

    def open(self):
        if self.path:
            with open(self.path, "rb") as f:
                self._text = f.read(self.SIZE + 1)
        else:
            try:
                with urllib.request.urlopen(self.URL, timeout=30) as f:
                    self._text = f.read(self.SIZE + 1)
            except (urllib.error.URLError, TimeoutError, OSError) as e:
                raise Unavailable(
                    f"cannot download {self.URL} ({getattr(e, 'reason', e)}); fetch it elsewhere and pass --from FILE"
                ) from e
        if hashlib.sha256(self._text).hexdigest() != self.SHA256:
            raise PrepareError(
                f"{self.path or self.URL}: not the {self.SIZE} bytes of tiny-shakespeare (sha256 {self.SHA256}); download "
                f"{self.URL} again, or use: prepare.py text FILE"
            )
        self.total_bytes = self.SIZE

    def _documents(self):
        cut = self.SIZE * 9 // 10
        yield from self._in_pieces("train", self._text[:cut])
        yield from self._in_pieces("val", self._text[cut:])


class TextCorpus(Corpus):
    """Files and folders of text, also packed (.gz, .zst). A .jsonl file holds one document per line, in `field`, a
    .parquet file one per row, in the column `field`, a .json array one per object, a .csv or .tsv file with such a column
    one per row. Any other file is one document, or several between lines equal to `separator` (none given: between lines
    equal to an end mark; "none": always one). Where validation files are given, they are the validation data; else, if
    there are few files of one document, the end of each goes to validation; otherwise whole documents do."""

    FEW_FILES = 20

    def __init__(self, flags, val_fraction):
        """flags: those of prepare.py text."""
        super().__init__(flags.name, flags.seed, 0 if flags.val else val_fraction)
        self.paths, self.val_paths, self.field, self.separator = flags.paths, flags.val, flags.field, flags.separator
        self.skip_bad, self.split_inside = flags.skip_bad, flags.split_inside
        self._marks = {None: END_MARKS, "none": ()}.get(self.separator, (self.separator,))
        self._found = {}  # path -> whether a line of it is an end mark

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

    def use_tokenizer(self, encoder):
        if self.separator is None:
            self._marks = tuple(
                dict.fromkeys((*END_MARKS, encoder.eot_text, getattr(encoder, "eos_text", END_MARKS[0])))
            )

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
        # Few packed files fall to a side whole, unless none would be validation text.
        packed = len(self._files) < self.FEW_FILES and all(is_packed(f) for f in self._files)
        self._cut_packed = packed and not any(self._split(n) == "val" for n in range(len(self._files)))

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
        for mark, count in sorted(self.marked.items()) if self.separator is None else ():
            self.notes.append(f"{count} lines are {mark}: each ends a document; --separator none keeps them as text")
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
        if self.total_bytes > PIECE_BYTES or self.val_fraction == 0:
            return self._by_hash()
        found = list(self._by_hash())
        last = max((i for i, d in enumerate(found) if d.first), default=0)
        if last and all(
            d.split == "train" for d in found
        ):  # a hash gives few documents no validation text: the last is it
            found[last:] = [Document("val", d.data, d.first) for d in found[last:]]
        return iter(found)

    def _by_hash(self):
        # Rows that were left out; lines with a separator that is not the whole line; lines by the end mark that they are.
        self.bad, self.inside, self.marked = 0, 0, {}
        # Validation first: a limit on the size cuts training text.
        numbered = [(len(self._files) + n, path, "val") for n, path in enumerate(self._val_files)]
        numbered += [(number, path, "train" if self._val_files else None) for number, path in enumerate(self._files)]
        for number, path, split in numbered:
            try:
                yield from self._documents_of(number, path, split)
            except BadFile as e:
                raise PrepareError(f"{path}: {e}") from e

    def _documents_of(self, number, path, split):
        if (rows := self._rows(path)) is not None:
            for what, row, text, problem in rows:
                if problem:
                    self._bad(path, f"{what} {row}", problem)
                elif text:
                    side = split or self._split(f"{number}:{row}")
                    yield from self._in_pieces(side, text.encode("utf-8", "replace"))
        elif self.separator not in (None, "none") or self.split_inside or self._has_marks(path):
            yield from self._separated(number, path, split)
        elif split is None and len(self._files) < self.FEW_FILES and (not is_packed(path) or self._cut_packed):
            yield from self._head_and_tail(path)
        else:
            yield from self._read(path, split or self._split(number))

    def _rows(self, path):
        """(what a row is called, its number from 1, its text, what is wrong with it) of a file that has rows; else None."""
        kind = kind_of_file(path)
        if kind == "jsonl":
            return self._json_lines(path)
        if kind == "parquet":
            return self._parquet_rows(path)
        if kind == "json" and self._is_array(path):
            return self._array_rows(path)
        if kind in ("csv", "tsv") and self.field in self._columns(path):
            return self._table_rows(path)
        return None

    def _bad(self, path, row, problem):
        if not self.skip_bad:
            raise PrepareError(f"{path}, {row}: {problem}; mend it, name the field with --field, or --skip-bad")
        self.bad += 1

    def _json_text(self, line):
        """The text of a line, and what is wrong with it."""
        try:
            return self._row_text(json.loads(line))
        except ValueError:  # also bytes that are no UTF-8
            return None, "is not JSON"

    def _row_text(self, row):
        if not isinstance(row, dict):
            return None, f"is JSON, but no object with a field '{self.field}'"
        if self.field not in row:
            chat = "; prepare.py chat reads conversations such as this" if CHAT_FIELDS & row.keys() else ""
            return None, f"has no field '{self.field}', only {', '.join(map(repr, row)) or 'nothing'}{chat}"
        if not isinstance(row[self.field], str):
            kind = {type(None): "null", bool: "true or false", list: "a list", dict: "an object"}
            return None, f"has {kind.get(type(row[self.field]), 'a number')} in '{self.field}', not text"
        return row[self.field], None

    def _json_lines(self, path):
        with open_text(path) as f:
            for number, line in enumerate(f, 1):
                if line.strip():
                    yield "line", number, *self._json_text(line)

    def _is_array(self, path):
        """A .json file that is a list of objects; others are text, as any file is."""
        with open_text(path) as f:
            return re.match(rb"(\xef\xbb\xbf)?\s*\[\s*\{", f.read(4096)) is not None

    def _array_rows(self, path):
        with open_text(path) as f:
            rows = read_array(path, f)
        for number, value in enumerate(rows, 1):
            yield "object", number, *self._row_text(value)

    def _table(self, path):
        """Rows of a .csv or .tsv file as dictionaries."""
        csv.field_size_limit(1 << 30)
        tab = kind_of_file(path) == "tsv"
        text = io.TextIOWrapper(open_text(path), encoding="utf-8-sig", errors="replace", newline="")
        return text, csv.DictReader(
            text, delimiter="\t" if tab else ",", quoting=csv.QUOTE_NONE if tab else csv.QUOTE_MINIMAL
        )

    def _columns(self, path):
        text, rows = self._table(path)
        with text:
            try:
                columns = rows.fieldnames or []
            except csv.Error:  # text of another kind under that name
                columns = []
        if self.field != "text" and self.field not in columns:
            raise PrepareError(
                f"{path}: no column called '{self.field}'; it has {', '.join(columns)}; name one with --field"
            )
        if self.field not in columns:
            self.notes.append(
                f"{path}: no column called 'text', so the file is taken as running text; name a column with --field: "
                f"{', '.join(columns[:20])}"
            )
        return columns

    def _table_rows(self, path):
        text, rows = self._table(path)
        with text:
            try:
                for number, value in enumerate(rows, 1):
                    text = value[self.field]
                    yield "row", number, text, f"has no '{self.field}'" if text is None else None
            except csv.Error as e:
                raise PrepareError(f"{path}, line {rows.line_num}: not a table: {e}") from e

    def _has_marks(self, path):
        """Whether a line of its first LOOK_BYTES is an end mark."""
        if path not in self._found:
            line = re.compile(
                rb"(?m)^[ \t]*(?:" + b"|".join(re.escape(m.encode()) for m in self._marks) + rb")[ \t\r]*$"
            )
            found, looked, rest = False, 0, b""
            with open_text(path) as f:
                while self._marks and not found and looked < LOOK_BYTES and (block := f.read(PIECE_BYTES)):
                    looked += len(block)
                    block = rest + block
                    end = block.rfind(b"\n") + 1  # the last line may go on in the next block
                    found = any(m.encode() in block for m in self._marks) and line.search(block[:end]) is not None
                    rest = block[end:] if len(block) - end < PIECE_BYTES else b""
            self._found[path] = found or bool(self._marks and line.search(rest))
        return self._found[path]

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

    def _parquet_rows(self, path):
        file, row = self._parquet_file(path), 1
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
                yield "row", row, text, f"has null in '{self.field}', not text" if text is None else None
                row += 1

    def _separated(self, number, path, split):
        marks, lines, count = {m.encode() for m in self._marks}, [], 0
        any_mark = re.compile(b"|".join(re.escape(m) for m in sorted(marks)))

        def document():
            nonlocal lines, count
            data, lines = b"".join(lines).strip(b"\r\n"), []
            if data:
                yield from self._in_pieces(split or self._split(f"{number}:{count}"), data)
            count += 1

        with open_text(path) as f:
            for line in f:
                if (mark := line.strip()) in marks:
                    self.marked[mark.decode()] = self.marked.get(mark.decode(), 0) + 1
                    yield from document()
                elif not any_mark.search(line):
                    lines.append(line)
                elif not self.split_inside:
                    self.inside += 1
                    lines.append(line)
                else:
                    *ends, rest = any_mark.split(line)
                    for end in ends:
                        lines.append(end)
                        yield from document()
                    lines.append(rest)
        yield from document()

    def _head_and_tail(self, path):
        size = os.path.getsize(path)
        if is_packed(path):
            with open_text(path) as f:
                size = sum(len(block) for block in iter(lambda: f.read(PIECE_BYTES), b""))
        tail = max(int(size * self.val_fraction), min(1, size - 1) if self.val_fraction > 0 else 0)
        cut = size - tail
        with open_text(path) as f:  # move the cut past the end of its line
            self._skip(f, cut)
            cut = min(cut + len(f.readline(PIECE_BYTES)), size) if cut < size else size
        if cut == size and tail:  # one line: before a character
            with open_text(path) as f:
                self._skip(f, size - tail - 3)
                before = f.read(tail + 3 if size - tail > 3 else size)
            at = max(len(before) - tail, 0)
            while at > 0 and before[at] & 0xC0 == 0x80:
                at -= 1
            cut = size - len(before) + at
        yield from self._read(path, "train", 0, cut)
        yield from self._read(path, "val", cut, size)

    @staticmethod
    def _skip(file, size):
        """A packed file can't seek."""
        if not isinstance(file.raw, io.FileIO):
            while size > 0 and (block := file.read(min(size, PIECE_BYTES))):
                size -= len(block)
        elif size > 0:
            file.seek(size)

    def _read(self, path, split, begin=0, end=None):
        """Bytes [begin, end) of the text; all of it if no end is given."""
        first, rest = True, b""
        with open_text(path) as f:
            self._skip(f, begin)
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

    def __init__(self, flags, val_fraction):
        """flags: those of prepare.py tinystories and the like."""
        super().__init__(flags.corpus, flags.seed, val_fraction)
        self.repo, self.subset, self.revision, self.field = flags.repo, flags.subset, flags.revision, flags.field
        self.val_split = "validation" if self.name.startswith("tinystories") else None

    def settings(self):
        return {
            **super().settings(),
            "repo": self.repo,
            "subset": self.subset,
            "revision": self.revision,
            "field": self.field,
        }

    def _load(self, split):
        return self._stream(self.repo, split, name=self.subset, revision=self.revision)

    def _stream(self, what, split, **rest):
        try:
            import datasets
        except ImportError as e:
            raise Unavailable(
                f"{self.name} is streamed through the Python package `datasets`, which is missing; run: "
                "python3 -m pip install datasets"
            ) from e
        try:
            return datasets.load_dataset(what, split=split, streaming=True, **rest)
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
                yield from self._in_pieces(split or self._split(number), text.encode("utf-8", "replace"))

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


class TinyStoriesV2(HubCorpus):
    """The stories by GPT-4 alone: text files of the hub's TinyStories, a line <|endoftext|> after each story."""

    FILES = {"train": "TinyStoriesV2-GPT4-train.txt", "validation": "TinyStoriesV2-GPT4-valid.txt"}

    def _load(self, split):
        return self._stream(
            "text",
            split,
            data_files={split: f"hf://datasets/{self.repo}@{self.revision or 'main'}/{self.FILES[split]}"},
        )

    def _rows(self, rows, split):
        return super()._rows(self._stories(rows), split)

    def _stories(self, rows):
        lines = []
        for row in rows:
            if row[self.field].strip() != END_MARKS[0]:
                lines.append(row[self.field])
                continue
            yield {self.field: "\n".join(lines).strip("\n")}
            lines = []
        yield {self.field: "\n".join(lines).strip("\n")}
