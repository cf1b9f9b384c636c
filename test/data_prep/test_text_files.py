"""data_prep on text as people have it: kinds of files, end marks, small and damaged ones.

python3 test/data_prep/test_text_files.py
"""

import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import unittest
from unittest import mock

from test_data_prep import DataPrepTest, corpora, tokenizers


class FirstTry(DataPrepTest):
    """What people give it on their first day."""

    def texts(self, split):
        return bytes(b if b < 256 else 0 for b in self.ids(split)).split(b"\0")[1:]

    def test_bad_rows_are_named_in_plain_words(self):
        for line, problem in (
            (b"{'text': 1}", "is not JSON"),
            (b'{"text": "\xff"}', "is not JSON"),
            (b'["a"]', "is JSON, but no object with a field 'text'"),
            (b'{"body": "a", "id": 1}', "has no field 'text', only 'body', 'id'"),
            (
                b'{"instruction": "a", "output": "b"}',
                "has no field 'text', only 'instruction', 'output'; prepare.py chat reads conversations such as this",
            ),
            (
                b'{"conversations": []}',
                "has no field 'text', only 'conversations'; prepare.py chat reads conversations such as this",
            ),
            (b'{"text": null}', "has null in 'text', not text"),
            (b'{"text": ["a"]}', "has a list in 'text', not text"),
            (b'{"text": 3}', "has a number in 'text', not text"),
        ):
            path = self.file("a.jsonl", b'{"text": "good"}\n' + line + b"\n")
            printed = self.refused(f"a.jsonl, line 2: {problem}; mend it", "text", path, "--overwrite")
            self.assertNotRegex(printed, "Error|Decode|Traceback|NoneType")

    def test_bad_rows_are_skipped_and_counted(self):
        rows = [json.dumps({"text": f"document {i}"}) for i in range(40)]
        rows[3:3] = ["{", '{"text": null}', '{"body": "x"}']
        printed = self.made("text", self.file("a.jsonl", "\n".join(rows).encode()), "--skip-bad")
        self.assertIn("left out 3 bad rows", printed)
        d = self.dataset()
        self.assertEqual(d["train"]["documents"] + d["val"]["documents"], 40)

    def test_skipped_files_are_named_with_the_reason(self):
        self.file("in/a.txt", b"some text\n" * 50)
        self.file("in/b.bin", b"\0\1\2")
        self.file("in/c.txt", b"")
        self.file("in/d.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
        printed = self.made("text", os.path.join(self.dir, "in"))
        for name, why in (("b.bin", "holds NUL bytes"), ("c.txt", "is empty"), ("d.txt", "is a Git LFS pointer")):
            self.assertRegex(printed, f"skipped .*{name}: {why}")

    def test_a_tokenizer_that_is_a_git_lfs_pointer_is_named(self):
        pointer = self.file("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
        self.refused("git lfs pull" if tokenizers else "pip install", "stdlib", "--tokenizer", pointer)

    def test_packed_text_is_the_text(self):
        text = b"".join(b"line %d\n" % i for i in range(300000))  # in several blocks and pieces
        half = self.file("val.txt", b"validation\n" * 20)
        for name, data in (("a.txt", text), ("a.txt.gz", gzip.compress(text)), ("a.txt.zst", self.zstd(text))):
            if data is None:
                continue
            self.made("text", self.file(name, data), "--val", half, "--overwrite")
            self.assertEqual(self.texts("train"), [text], name)
            self.assertEqual(self.texts("val"), [b"validation\n" * 20])
        code, printed = self.prepare("text", self.file("b.txt.zst", b"no zstd at all"), "--overwrite")
        self.assertEqual(code, 1)
        self.assertRegex(printed, "b.txt.zst: is (damaged or cut off|packed with Zstandard; install)")

    @staticmethod
    def zstd(text):
        if not shutil.which("zstd"):
            return None
        return subprocess.run(["zstd", "-q", "-c"], input=text, capture_output=True, check=True).stdout

    def test_validation_files(self):
        train = self.file("train.txt", b"train\n" * 50)
        val = self.file("val.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
        self.made("text", train, "--val", val)
        self.assertEqual((self.texts("train"), self.texts("val")), ([b"train\n" * 50], [b"one", b"two"]))
        self.refused("leave one of them out", "text", train, "--val", val, "--val-fraction", "0.1", "--overwrite")

    def test_a_separator_inside_a_line_is_reported_or_honoured(self):
        path = self.file("a.txt", b"one<|endoftext|>two\n<|endoftext|>\nthree<|endoftext|>\n")
        val = self.file("v.txt", b"v\n")
        printed = self.made("text", path, "--separator", "<|endoftext|>", "--val", val)
        self.assertIn("2 lines hold the separator and more", printed)
        self.assertEqual(len(self.texts("train")), 2)
        for separator in (("--separator", "<|endoftext|>"), ()):
            self.made("text", path, *separator, "--split-inside", "--val", val, "--overwrite")
            self.assertEqual(self.texts("train"), [b"one", b"two", b"three"])
        self.refused("nothing is split", "text", path, "--split-inside", "--separator", "none", "--overwrite")

    def test_lines_that_are_end_marks_end_documents(self):
        stories = b"".join(b"story %d\nends.\n<|endoftext|>\n" % i for i in range(300))
        for name, data in (("a.txt", stories), ("a.txt.gz", gzip.compress(stories))):
            printed = self.made("text", self.file(name, data), "--overwrite")
            self.assertIn("300 lines are <|endoftext|>: each ends a document", printed)
            texts = self.texts("train") + self.texts("val")
            self.assertEqual(sorted(texts), sorted(b"story %d\nends." % i for i in range(300)))
            self.assertTrue(self.texts("val"))
        path = self.file("b.txt", b"one\n</s>\ntwo\n" * 40)
        self.made("text", path, "--overwrite")
        self.assertEqual(len(self.texts("train") + self.texts("val")), 41)
        self.assertNotIn("each ends", self.made("text", path, "--separator", "none", "--overwrite"))
        self.assertEqual(b"".join(self.texts("train") + self.texts("val")), b"one\n</s>\ntwo\n" * 40)
        plain = self.file("c.txt", b"no mark </s> alone\n" * 40)  # as before: one document, its end validates
        self.made("text", plain, "--overwrite")
        self.assertEqual([len(self.texts("train")), len(self.texts("val"))], [1, 1])

    @unittest.skipUnless(tokenizers, "needs the package tokenizers")
    def test_the_tokenizers_own_end_token_ends_documents(self):
        self.prepare("text", self.file("t.txt", b"some text\n" * 50), "--tokenizer", "bpe:300")
        own = self.file("own.json", self.written("tokenizer.json").replace(b"<|endoftext|>", b"<|fin|>"))
        path = self.file("a.txt", b"one\n<|fin|>\ntwo\n")
        printed = self.made("text", path, "--tokenizer", own, "--eot", "<|fin|>", "--overwrite")
        self.assertIn("1 lines are <|fin|>", printed)
        self.assertEqual((self.dataset()["train"]["documents"], self.dataset()["val"]["documents"]), (1, 1))

    def test_one_short_or_packed_file_has_validation_text(self):
        long = b"".join(b"line %d\n" % i for i in range(200000))
        for name, data, whole in (
            ("a.txt", b"short", b"short"),
            ("b.txt", "ein Kl\u00f6\u00dfe".encode(), "ein Kl\u00f6\u00dfe".encode()),
            ("c.txt.gz", gzip.compress(long), long),
            ("d.jsonl", b'{"text": "one"}\n{"text": "two"}\n', b"onetwo"),
        ):
            self.made("text", self.file(name, data), "--overwrite")
            train, val = (b"".join(self.texts(s)) for s in ("train", "val"))
            self.assertEqual(train + val, whole)
            self.assertTrue(val)
            train.decode(), val.decode()
        self.assertLess(abs(len(self.texts("val")[0]) - 3), 1)

    def test_tables_and_arrays_of_rows(self):
        rows = [f'row {i}, quoted "so"\n' for i in range(60)]
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerows([["id", "text"], *enumerate(rows)])
        tsv = "id\ttext\n" + "".join(f"{i}\t{r.strip()}\n" for i, r in enumerate(rows))
        for name, data in (
            ("a.csv", table.getvalue().encode("utf-8-sig")),
            ("a.json", json.dumps([{"text": r} for r in rows], indent=1).encode()),
            ("a.tsv.gz", gzip.compress(tsv.encode())),
        ):
            self.made("text", self.file(name, data), "--overwrite")
            found = sorted(t.strip() for t in self.texts("train") + self.texts("val"))
            self.assertEqual(found, sorted(r.strip().encode() for r in rows), name)
        for name, data, problem in (
            ("b.csv", b"a,b\n1,2\n", "no column called 'body'; it has a, b"),
            ("b.json", b'[{"body": "x"}, {"text": "y"}]', "object 2: has no field 'body'"),
            ("c.json", b'[{"body": "x"},', "is not JSON"),
            ("u.txt", "text".encode("utf-16"), "iconv -f UTF-16"),
        ):
            self.refused(problem, "text", self.file(name, data), "--field", "body", "--overwrite")
        self.assertIn("taken as running text", self.made("text", self.file("d.csv", b"a,b\n1,2\n3,4\n"), "--overwrite"))
        self.made("text", self.file("d.json", b'{"a": 1}\n'), "--overwrite")  # an object is text
        self.assertEqual(b"".join(self.texts("train") + self.texts("val")), b'{"a": 1}\n')

    def test_the_fallback_covers_the_tokenizer_and_keeps_max_tokens(self):
        path = self.file("a.txt", b"x\n" * 100)
        with mock.patch.dict(sys.modules, {"tokenizers": None}):
            for spec in ("gpt2", "bpe:300"):
                command = ("text", path, "--tokenizer", spec, "--allow-synthetic-fallback", "--max-tokens", "3000")
                self.assertIn("SYNTHETIC", self.made(*command, "--overwrite"))
                self.made(*command)  # again: finished
                d = self.dataset()
                self.assertEqual(d["train"]["tokens"] + d["val"]["tokens"], 3000 + 2)

    def test_shakespeare_is_checked_and_split_as_nanogpt_does(self):
        path = self.file("input.txt", b"not the plays")
        self.refused("not the 1115394 bytes of tiny-shakespeare", "shakespeare", "--from", path)
        text = b"To be, or not to be\n" * 50
        with (
            mock.patch.object(corpora.ShakespeareCorpus, "SHA256", hashlib.sha256(text).hexdigest()),
            mock.patch.object(corpora.ShakespeareCorpus, "SIZE", len(text)),
        ):
            self.made("shakespeare", "--from", self.file("input.txt", text))
            self.assertEqual((self.texts("train"), self.texts("val")), ([text[:900]], [text[900:]]))
            with mock.patch.object(corpora.urllib.request, "urlopen", side_effect=corpora.urllib.error.URLError("no")):
                self.refused("--from FILE", "shakespeare", "--overwrite")

    def test_invalid_utf8_is_counted(self):
        rows = [b"good\n\n", b"bad \xff\n\n", b"good \xe4\xb8\x96\n\n"]
        for i, row in enumerate(rows):
            self.file(f"in/{i}.txt", row * 20)
        printed = self.made("text", os.path.join(self.dir, "in"), "--separator", "==", "--val-fraction", "0")
        self.assertIn("1 documents hold bytes that are no UTF-8, kept as they are", printed)
        self.assertEqual(self.dataset()["invalid_utf8"], 1)

    def test_data_name_their_end_tokens(self):
        self.prepare("text", self.file("a.txt", b"some text\n" * 50))
        tokenizer = self.dataset()["tokenizer"]
        self.assertEqual((tokenizer["eot_id"], tokenizer["eos_id"]), (256, 256))
        template = json.loads(self.written("tokenizer.json"))["post_processor"]
        self.assertEqual(template["special_tokens"]["<|endoftext|>"]["ids"], [256])
        self.assertEqual(list(template["single"][0]), ["SpecialToken"])

    @unittest.skipUnless(tokenizers, "needs the package tokenizers")
    def test_a_vocabulary_that_the_text_does_not_fill_is_said(self):
        printed = self.made("text", self.file("a.txt", b"abc " * 100), "--tokenizer", "bpe:4096")
        self.assertRegex(printed, "pairs for a vocabulary of 2[56][0-9] only")


if __name__ == "__main__":
    unittest.main()
