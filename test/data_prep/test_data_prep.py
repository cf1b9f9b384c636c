"""data_prep, with the standard library only: python3 test/data_prep/test_data_prep.py"""

import contextlib
import gzip
import hashlib
import io
import json
import math
import os
import shutil
import sys
import tempfile
import types
import unittest
import zlib
from array import array
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data_prep"))
import chat_prompt
import corpora
import encoders
import prepare
import shards
import synthetic
from common import parse_size

try:
    import tokenizers
except ImportError:
    tokenizers = None
try:
    import jinja2
except ImportError:
    jinja2 = None
try:
    import transformers
except ImportError:
    transformers = None
try:
    from pyarrow import parquet, table
except ImportError:
    parquet = None


class DataPrepTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="rz_prep_")
        self.addCleanup(shutil.rmtree, self.dir)
        self.out = os.path.join(self.dir, "out")

    def file(self, name, data):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
        return path

    def prepare(self, *argv):
        """(exit code, what was printed)"""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = prepare.main([*argv, "--out", self.out, "--quiet"])
        return code, printed.getvalue()

    def made(self, *argv):
        """What a command that ends well has printed."""
        code, printed = self.prepare(*argv)
        self.assertEqual(code, 0, printed)
        return printed

    def refused(self, words, *argv):
        """What a command that ends with 1 and says the words has printed."""
        code, printed = self.prepare(*argv)
        self.assertEqual(code, 1, printed)
        self.assertIn(words, printed)
        return printed

    def written(self, name):
        """The bytes of a file in the folder that was made."""
        with open(os.path.join(self.out, name), "rb") as f:
            return f.read()

    def dataset(self):
        return json.loads(self.written("dataset.json"))

    def ids(self, split):
        found = []
        for shard in self.dataset()[split]["shards"]:
            found.extend(shards.read_shard(os.path.join(self.out, shard["file"])))
        return found

    def contents(self, end=""):
        return {name: self.written(name) for name in sorted(os.listdir(self.out)) if name.endswith(end)}


class Corpora(DataPrepTest):
    def test_bytes_of_one_file_with_head_and_tail(self):
        text = b"".join(b"line %d\n" % i for i in range(100))
        self.made("text", self.file("a.txt", text), "--val-fraction", "0.1")
        train, val = self.ids("train"), self.ids("val")
        self.assertEqual((train[0], val[0]), (256, 256))
        self.assertEqual(bytes(train[1:]) + bytes(val[1:]), text)
        self.assertTrue(bytes(train[1:]).endswith(b"\n"))
        self.assertLess(abs(len(val) - 0.1 * len(text)), 20)
        d = self.dataset()
        self.assertEqual((d["vocab_size"], d["tokenizer"]["eot_id"], d["shard_format"]), (257, 256, "gpt-2"))
        self.assertAlmostEqual(d["val"]["bytes_per_token"], (len(val) - 1) / len(val))

    def test_streamed_shards_are_listed_as_they_are_finished(self):
        lines = [json.dumps({"text": f"document {i} " + "x" * (i % 50)}) for i in range(3000)]
        path, seen = self.file("a.jsonl", "\n".join(lines).encode()), []
        argv = ("text", path, "--shard-tokens", "20000")
        write = prepare.OutputFolder.write_dataset

        def spy(folder, *rest, **extra):
            write(folder, *rest, **extra)
            seen.append(self.dataset())
            for split in ("train", "val"):
                listed = 0
                for shard in seen[-1][split]["shards"]:
                    ids = shards.read_shard(os.path.join(self.out, shard["file"]))
                    self.assertEqual((shard["tokens"], shard["crc32"]), (len(ids), zlib.crc32(ids.tobytes())))
                    listed += len(ids)
                self.assertEqual(seen[-1][split]["tokens"], listed)
            if len(seen) == 3 and extra:
                raise GeneratorExit  # as if it was killed

        patch = mock.patch.object
        with patch(prepare.OutputFolder, "write_dataset", spy), patch(prepare, "BATCH_DOCUMENTS", 300):
            with self.assertRaises(GeneratorExit):
                self.prepare(*argv, "--stream")
            self.assertEqual([d.get("growing") for d in seen], [True] * 3)
            self.made(*argv, "--stream")  # the same command continues
        growth = [d["train"]["shards"] for d in seen]
        for before, after in zip(growth, growth[1:]):
            self.assertEqual(after[: len(before)], before)
        self.assertLess(len(growth[0]), len(growth[2]))
        self.assertNotIn("growing", seen[-1])
        streamed = self.contents()
        self.made(*argv, "--overwrite")
        self.assertEqual(self.contents(), streamed)

    def test_json_lines_and_field(self):
        lines = [json.dumps({"body": f"document {i} \u4e16\u754c"}) for i in range(200)]
        path = self.file("a.jsonl", "\n".join(lines).encode())
        self.refused("a.jsonl, line 1: has no field 'text', only 'body'", "text", path)
        self.made("text", path, "--field", "body", "--overwrite")
        d = self.dataset()
        self.assertEqual(d["train"]["documents"] + d["val"]["documents"], 200)
        self.assertTrue(1 <= d["val"]["documents"] <= 30)
        documents = bytes(b if b < 256 else 0 for b in self.ids("train")).decode().split("\0")[1:]
        self.assertEqual(documents[0], json.loads(lines[0])["body"])

    def test_compressed_json_lines(self):
        text = "\n".join(json.dumps({"text": f"document {i} " * 50}) for i in range(200)).encode()
        self.made("text", self.file("a.jsonl", text))
        plain = self.contents(".bin")
        packed = gzip.compress(text)
        self.made("text", self.file("a.jsonl.gz", packed), "--overwrite")
        self.assertEqual(self.contents(".bin"), plain)
        for damaged in (packed[:-100], packed[:200] + b"\xff" * 64 + packed[264:], b"no gzip at all"):
            self.refused("a.jsonl.gz: is damaged or cut off", "text", self.file("a.jsonl.gz", damaged), "--overwrite")

    @unittest.skipIf(parquet is None, "needs pyarrow")
    def test_parquet_is_read_as_json_lines_are(self):
        documents = [f"document {i} \u4e16\u754c " * (i % 7) for i in range(700)]  # some empty
        lines = "\n".join(json.dumps({"text": d}) for d in documents).encode()
        self.made("text", self.file("a.jsonl", lines))
        plain = self.contents(".bin")
        path = os.path.join(self.dir, "a.parquet")
        parquet.write_table(table({"n": list(range(700)), "text": documents}), path, row_group_size=300)
        self.made("text", path, "--overwrite")
        self.assertEqual(self.contents(".bin"), plain)
        columns = "a.parquet: no column of text called 'n'; it has n (int64), text (string)"
        self.refused(columns, "text", path, "--field", "n", "--overwrite")
        with open(path, "rb") as f:
            cut = self.file("cut.parquet", f.read()[:-40])
        self.refused("cut.parquet: not a Parquet file, damaged or cut off", "text", cut, "--overwrite")

    def test_parquet_without_its_package_says_the_fix(self):
        with mock.patch.dict(sys.modules, {"pyarrow": None}):
            self.refused("python3 -m pip install pyarrow", "text", self.file("a.parquet", b"PAR1"))

    def test_folder_separator_and_binary_files(self):
        self.file("in/a.txt", b"one\n<|endoftext|>\ntwo\nlines\n<|endoftext|>\n")
        self.file("in/b/c.txt", b"three\n")
        self.file("in/.hidden", b"no")
        self.file("in/image.png", b"\x89PNG\0\0")
        self.made("text", os.path.join(self.dir, "in"), "--separator", "<|endoftext|>", "--val-fraction", "0")
        self.assertEqual(self.ids("train"), [256, *b"one", 256, *b"two\nlines", 256, *b"three"])
        self.refused("NUL bytes", "text", os.path.join(self.dir, "in", "image.png"), "--overwrite")

    def test_long_document_is_cut_between_lines_and_characters(self):
        text = ("\u4e16" * 999 + "\n").encode() * 700 + "\U0001f999".encode() * 700000
        parts = list(corpora.pieces(text))
        self.assertEqual(b"".join(parts), text)
        for part in parts:
            self.assertLessEqual(len(part), corpora.PIECE_BYTES)
            part.decode()
        for begin in range(5):  # a wrong cut at any phase would break a character
            for part in corpora.pieces(b"x" * begin + "\u4e16".encode() * 800000):
                part.decode()
        self.made("text", self.file("a.txt", text), "--val-fraction", "0")
        self.assertEqual(bytes(self.ids("train")[1:]), text)

    def test_stdlib_is_deterministic_and_a_prefix_is_stable(self):
        self.made("stdlib", "--max-bytes", "300k")
        first = self.contents()
        train = self.ids("train")
        self.assertEqual(self.dataset()["train"]["bytes"] + self.dataset()["val"]["bytes"], 300000)
        self.made("stdlib", "--max-bytes", "300k", "--overwrite")
        self.assertEqual(self.contents(), first)
        self.made("stdlib", "--max-bytes", "600k", "--overwrite")
        self.assertEqual(self.ids("train")[: len(train)], train)
        root = os.path.dirname(os.__file__)
        corpus = corpora.StdlibCorpus(1, 0.05, root)
        corpus.open()
        self.assertIn("argparse.py", corpus._files)
        self.assertFalse([f for f in corpus._files if "/test" in f or "site-packages" in f])

    def test_fables_are_the_same_everywhere(self):
        self.made("fables")
        ids = self.ids("train")
        both = array("H", ids + self.ids("val")).tobytes()
        self.assertEqual(hashlib.sha256(both).hexdigest()[:16], "d69d17d5093301f4")
        starts = [i for i, token in enumerate(ids) if token == 256] + [len(ids)]
        for begin, end in zip(starts, starts[1:]):
            self.assertLessEqual(end - begin, 251)  # and the model that reads 256 bytes at once has seen whole ones
            self.assertRegex(bytes(ids[begin + 1 : end]).decode(), r"^[A-Z].*[.]\nMoral: [a-z].*[.]\n$")

    def test_max_tokens_and_max_bytes(self):
        path = self.file("a.txt", "\u4e16\u754c".encode() * 1000)
        self.prepare("text", path, "--val-fraction", "0", "--max-bytes", "100")
        self.assertEqual(bytes(self.ids("train")[1:]), ("\u4e16\u754c".encode() * 1000)[:99])
        lines = "\n".join(json.dumps({"text": "x" * 9}) for _ in range(1000)).encode()
        self.prepare("text", self.file("b.jsonl", lines), "--val-fraction", "0", "--max-tokens", "105", "--overwrite")
        self.assertEqual(len(self.ids("train")), 110)

    def test_hub_corpus_streams_skips_and_splits(self):
        calls = []

        def load_dataset(repo, split, streaming, name=None, revision=None, data_files=None):
            calls.append((repo, name, split, revision, streaming))
            if data_files:
                return [{"text": line} for line in ("one", "two", "<|endoftext|>", "", split, "<|endoftext|>")]
            n = 5 if split == "validation" else 40
            return [{"text": f"{split} {i}"} for i in range(n)]

        with mock.patch.dict(sys.modules, {"datasets": types.SimpleNamespace(load_dataset=load_dataset)}):
            self.made("tinystories")
            d = self.dataset()
            self.assertEqual((d["train"]["documents"], d["val"]["documents"]), (40, 5))
            self.made("fineweb-edu", "--subset", "sample-100BT", "--val-fraction", "0.3", "--overwrite")
            self.assertIn(("HuggingFaceFW/fineweb-edu", "sample-100BT", "train", None, True), calls)
            self.assertTrue(3 <= self.dataset()["val"]["documents"] <= 25)
            self.made("tinystories-v2", "--overwrite")
            self.assertEqual(self.ids("train"), [256, *b"one\ntwo", 256, *b"train"])
            self.assertEqual(self.ids("val"), [256, *b"one\ntwo", 256, *b"validation"])
            self.refused("its fields are text", "openwebtext", "--field", "body", "--overwrite")

    def test_missing_package_says_the_fix_and_fallback_says_what_it_is(self):
        with mock.patch.dict(sys.modules, {"datasets": None, "tokenizers": None}):
            printed = self.refused("python3 -m pip install datasets", "tinystories")
            self.assertIn("--allow-synthetic-fallback", printed)
            path = self.file("a.txt", b"x" * 100)
            self.refused("python3 -m pip install tokenizers", "text", path, "--tokenizer", "gpt2", "--overwrite")
            with mock.patch.object(prepare, "FALLBACK_TOKENS", (5000, 1000)):
                printed = self.made("tinystories", "--allow-synthetic-fallback", "--overwrite")
        self.assertIn("SYNTHETIC", printed)
        self.assertEqual((self.dataset()["name"], self.dataset()["fallback_from"]), ("synthetic", "tinystories"))


class Resuming(DataPrepTest):
    ARGS = ("--shard-tokens", "7000", "--val-fraction", "0.2")

    def interrupted(self, path, after_batches, args=ARGS):
        """Runs until `after_batches` batches were written and saved, and one more was written but not saved."""
        real, count = prepare.encode_batch, 0

        def failing(*args):
            nonlocal count
            result = real(*args)
            count += 1
            if count > after_batches:
                raise KeyboardInterrupt
            return result

        with mock.patch.object(prepare, "SAVE_SECONDS", -1), mock.patch.object(prepare, "encode_batch", failing):
            self.assertEqual(self.prepare("text", path, *args)[0], 130)
        self.assertFalse(os.path.exists(os.path.join(self.out, "dataset.json")))

    def test_same_bytes_wherever_it_was_interrupted(self):
        lines = "\n".join(json.dumps({"text": f"{i} " * (i % 97 + 1)}) for i in range(700)).encode()
        path = self.file("a.jsonl", lines)
        with mock.patch.object(prepare, "BATCH_BYTES", 4000):
            self.made("text", path, *self.ARGS)
            expected = self.contents()
            self.assertGreater(len([n for n in expected if "_train_" in n]), 5)
            for after in (0, 1, 2, 5, 9, 17):
                shutil.rmtree(self.out)
                self.interrupted(path, after)
                self.interrupted(path, 3)  # twice
                self.made("text", path, *self.ARGS)
                self.assertEqual(self.contents(), expected, f"interrupted after {after} batches")

    @unittest.skipIf(tokenizers is None, "needs the package tokenizers")
    def test_a_tokenizer_of_a_file_is_the_same_after_an_interruption(self):
        path = self.file("a.jsonl", "\n".join(json.dumps({"text": f"{i} " * 30}) for i in range(300)).encode())
        self.made("text", path, "--tokenizer", "bpe:300")
        args = ("--tokenizer", self.file("mine.json", self.written("tokenizer.json")))
        with mock.patch.object(prepare, "BATCH_BYTES", 4000):
            self.made("text", path, *args, "--overwrite")
            expected = self.contents()
            shutil.rmtree(self.out)
            self.interrupted(path, 2, args)
            self.made("text", path, *args)
        self.assertEqual(self.contents(), expected)

    def test_a_missing_shard_is_named(self):
        path = self.file("a.txt", b"some text\n" * 1000)
        args = ("text", path, "--shard-tokens", "3000")
        with mock.patch.object(prepare, "BATCH_BYTES", 1000), mock.patch.object(corpora, "PIECE_BYTES", 1000):
            self.interrupted(path, 5, args[2:])
            first = os.path.join(self.out, "text_train_000000.bin")
            os.remove(first)
            self.refused("text_train_000000.bin is missing or of another size", *args)
            self.made(*args, "--overwrite")
        os.remove(first)
        self.refused("dataset.json lists text_train_000000.bin, which is missing", *args)

    def test_finished_is_left_alone_and_other_settings_are_refused(self):
        path = self.file("a.txt", b"some text\n" * 100)
        self.made("text", path)
        before = os.stat(os.path.join(self.out, "dataset.json")).st_mtime_ns
        self.made("text", path)
        self.assertEqual(os.stat(os.path.join(self.out, "dataset.json")).st_mtime_ns, before)
        self.refused("(shard_tokens)", "text", path, "--shard-tokens", "50")
        self.made("text", path, "--shard-tokens", "50", "--overwrite")

    def test_a_look_that_fails_leaves_nothing_unfinished(self):
        path = self.file("a.txt", b"some text\n" * 100)
        really = os.path.exists
        # False is what it says of EIO, too.
        with mock.patch.object(os.path, "exists", lambda p: not p.endswith("unfinished.json") and really(p)):
            self.made("text", path)
        self.assertNotIn("unfinished.json", os.listdir(self.out))

    def test_shards_of_others_are_not_removed(self):
        path = self.file("a.txt", b"some text\n" * 100)
        self.file("out/text_train_000000.bin", b"precious")
        self.refused("text_train_000000.bin, which no prepare.py left unfinished", "text", path)
        self.assertEqual(self.contents(".bin"), {"text_train_000000.bin": b"precious"})

    def test_two_at_once_are_refused(self):
        path = self.file("a.txt", b"some text\n" * 100)
        os.makedirs(self.out)
        with open(os.path.join(self.out, ".lock"), "w") as lock:
            prepare.fcntl.flock(lock, prepare.fcntl.LOCK_EX)
            self.refused("another prepare.py", "text", path)


class Shards(DataPrepTest):
    def test_headers_of_both_formats(self):
        os.makedirs(self.out)
        for name, magic, version, typecode in (("gpt-2", 20240520, 1, "H"), ("llama-3", 20240801, 7, "I")):
            writer = shards.SplitWriter(self.out, name, "train", name, 10)
            writer.write(array(typecode, range(25)))
            writer.finish()
            self.assertEqual([s["tokens"] for s in writer.shards], [10, 10, 5])
            data = self.written(f"{name}_train_000002.bin")
            header = array("i", data[:1024])
            self.assertEqual(list(header[:4]), [magic, version, 5, 0])
            self.assertEqual(list(array(typecode, data[1024:])), list(range(20, 25)))
        self.assertFalse([n for n in os.listdir(self.out) if n.endswith(".partial")])

    def test_format_follows_the_vocabulary(self):
        self.assertEqual([shards.format_for(v) for v in (257, 65536, 65537)], ["gpt-2", "gpt-2", "llama-3"])
        path = self.file("a.txt", b"some text\n" * 100)
        self.made("text", path, "--format", "llama-3")
        self.assertEqual(bytes(self.ids("train")[1:11]), b"some text\n")


class Synthetic(DataPrepTest):
    def test_entropy_of_a_source_that_can_be_computed_by_hand(self):
        source = synthetic.MarkovSource(2, 1, 0)
        source.counts = [[192, 64], [128, 128]]
        self.assertTrue(all(abs(a - b) < 1e-12 for a, b in zip(source._stationary(), (2 / 3, 1 / 3))))
        h0 = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
        self.assertAlmostEqual(source._row_entropy(source.counts[0]), h0, places=14)

    def test_rows_are_distributions_and_text_follows_them(self):
        for order, symbols in ((1, 32), (2, 8)):
            source = synthetic.MarkovSource(symbols, order, 7)
            self.assertTrue(all(sum(row) == 256 and min(row) >= 1 for row in source.counts))
            self.assertAlmostEqual(math.fsum(source.stationary), 1, places=12)
            ((text, nats),) = source.blocks("train", 200000)
            # -log P per token has standard deviation below 2 nats; the sum mixes within tens of tokens. Five of them.
            self.assertLess(abs(nats / len(text) - source.entropy_nats), 5 * 2 / math.sqrt(len(text) / 10))
            self.assertLess(source.entropy_nats, 0.9 * source.unigram_nats, "context must matter")
            self.assertEqual(list(text), list(next(source.blocks("train", 200000))[0]))
            self.assertNotEqual(list(text), list(next(source.blocks("val", 200000))[0]))

    def test_command(self):
        self.made("synthetic", "--tokens", "20k", "--val-tokens", "5k", "--symbols", "16")
        d, val = self.dataset(), self.ids("val")
        self.assertEqual((d["vocab_size"], d["train"]["tokens"], d["val"]["tokens"]), (17, 20001, 5001))
        source = synthetic.MarkovSource(16, 1, 1)
        self.assertEqual(d["entropy_nats_per_token"], source.entropy_nats)
        nats = -sum(math.log(source.counts[a][b] / 256) for a, b in zip([0, *val[1:]], val[1:])) / 5000
        self.assertAlmostEqual(d["val_source_nats_per_token"], nats, places=10)


class Encoders(DataPrepTest):
    def test_byte_tokenizer_json(self):
        value = encoders.plain_tokenizer_json(bytes(range(256)))
        self.assertEqual(sorted(value["model"]["vocab"].values()), list(range(256)))
        self.assertEqual(len({*value["model"]["vocab"]}), 256)
        self.assertEqual(value["model"]["vocab"]["A"], 65)
        self.assertEqual(value["model"]["vocab"]["\u0120"], 32)  # GPT-2's visible space
        self.assertEqual(value["added_tokens"][0]["id"], 256)

    def test_sizes(self):
        self.assertEqual(
            [parse_size(t) for t in ("30M", "1e8", "512KiB", "1.5k", "2GB", "7")],
            [30000000, 10**8, 524288, 1500, 2 * 10**9, 7],
        )
        for bad in ("4x", "-3", "0", "1e99x", "0.5", ""):
            with self.assertRaises(ValueError, msg=bad):
                parse_size(bad)

    @unittest.skipUnless(tokenizers, "needs the package tokenizers")
    def test_byte_tokenizer_agrees_with_tokenizers(self):
        text = "a\r\n \u00e9\u4e16\U0001f999<|endoftext|>"
        path = self.file("t.json", json.dumps(encoders.plain_tokenizer_json(bytes(range(256)))).encode())
        theirs = tokenizers.Tokenizer.from_file(path)
        self.assertEqual(theirs.encode(text).ids, [256, *text[:-13].encode(), 256])
        theirs.encode_special_tokens = True
        self.assertEqual(theirs.encode(text).ids, [256, *text.encode()])
        self.assertEqual(theirs.encode(text, add_special_tokens=False).ids, [*text.encode()])
        self.assertEqual(theirs.decode([*"\u4e16x".encode()]), "\u4e16x")
        ours = encoders.make_encoder(path)
        self.assertEqual((ours.vocab_size, ours.eot), (257, 256))
        plain = encoders.PlainEncoder().encode_batch([text.encode()], "I")
        self.assertEqual(list(ours.encode_batch([text.encode()], "I")[0]), list(plain[0]))

    @unittest.skipUnless(tokenizers, "needs the package tokenizers")
    def test_trained_bpe(self):
        text = b"the cat sat on the mat; the cat ran 12345 times.\n" * 200 + b"<|endoftext|> is text here\n"
        for split in ("llama3", "gpt2", "smollm2"):
            self.made("text", self.file("a.txt", text), "--tokenizer", "bpe:270", "--bpe-split", split, "--overwrite")
            train, val, d = self.ids("train"), self.ids("val"), self.dataset()
            self.assertEqual((train[0], val[0], d["tokenizer"]["eot_id"], d["vocab_size"]), (0, 0, 0, 270))
            self.assertNotIn(0, train[1:] + val[1:], "text must not produce special tokens")
            saved = tokenizers.Tokenizer.from_file(os.path.join(self.out, "tokenizer.json"))
            self.assertEqual((saved.decode(train[1:]) + saved.decode(val[1:])).encode(), text)
            self.assertGreater(d["val"]["bytes_per_token"], 1.5)


class ChatPrompt(DataPrepTest):
    TEMPLATE = (
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )

    def model(self, **files):
        for name, value in files.items():
            self.file(f"model/{name}", value.encode())
        return os.path.join(self.dir, "model")

    def render(self, *argv):
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = chat_prompt.main([*argv])
        return code, out.getvalue() or errors.getvalue()

    @unittest.skipIf(jinja2 is None, "needs jinja2")
    def test_a_template_of_the_folder_is_applied(self):
        config = {"bos_token": {"content": "<s>"}, "chat_template": self.TEMPLATE}
        folder = self.model(**{"tokenizer_config.json": json.dumps(config)})
        code, text = self.render(folder, " Hi ", "--system", "Be brief.")
        self.assertEqual((code, text), (0, "<s><|system|>Be brief.</s><|user|>Hi</s><|assistant|>"))
        folder = self.model(**{"chat_template.jinja": "{{ raise_exception('no system') }}"})
        code, text = self.render(folder, "Hi")
        self.assertEqual((code, "refuses these messages: no system" in text), (1, True), text)

    @unittest.skipIf(jinja2 is None, "needs jinja2")
    def test_marks_of_what_is_trained_on_and_the_date(self):
        template = "{{ strftime_now('%Y') }}{% generation %}{{ messages[0].content }}{% endgeneration %}"
        code, text = self.render(self.model(**{"chat_template.jinja": template}), "Hi")
        self.assertEqual((code, text[4:], text[:4].isdigit()), (0, "Hi", True), text)

    @unittest.skipIf(transformers is None, "needs transformers")
    def test_text_is_that_of_transformers(self):
        self.prepare("text", self.file("a.txt", b"some text\n" * 50))
        self.file("out/chat_template.jinja", self.TEMPLATE)
        theirs = transformers.AutoTokenizer.from_pretrained(self.out)
        for messages in ([("user", "Hi")], [("system", "x"), ("user", " a\n"), ("assistant", "b"), ("user", "c")]):
            messages = [{"role": r, "content": c} for r, c in messages]
            path = self.file("m.json", json.dumps(messages).encode())
            want = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            self.assertEqual(self.render(self.out, "--messages", path), (0, want))

    def test_what_can_not_be_rendered_is_refused(self):
        for args, problem in (
            ((self.dir, "Hi"), "has no chat template"),
            ((self.model(**{"chat_template.jinja": "x"}),), "nothing to say"),
            ((self.model(), "--messages", self.file("m.json", b'{"role": "user"}')), "a JSON list of"),
        ):
            code, text = self.render(*args)
            self.assertEqual((code, problem in text), (1, True), text)


if __name__ == "__main__":
    unittest.main()
