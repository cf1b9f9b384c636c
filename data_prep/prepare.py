#!/usr/bin/env python3
"""Turns text into token shards for train_llama.

    prepare.py fables                        short fables, written by a grammar: no network, no packages
    prepare.py stdlib                        the source of Python's standard library: no network, no packages
    prepare.py text FILE_OR_FOLDER...        text, JSONL or Parquet of your own
    prepare.py shakespeare                   tiny-shakespeare, from the network or --from FILE
    prepare.py tinystories | tinystories-v2 | fineweb-edu | openwebtext     streamed from the Hugging Face hub
    prepare.py synthetic                     a Markov source of known entropy
    prepare.py chat FILE...                  conversations for fine-tuning, with the loss on answers (chat.py)
    prepare.py eval TASK...                  evaluation tasks for train_llama eval (eval_sets.py)

Writes into --out: NAME_train_000000.bin ..., NAME_val_000000.bin ..., tokenizer.json, and last of all dataset.json. An
interrupted run continues when the same command is given again; the result is the same to the byte.
"""

import argparse
import contextlib
import errno
import fcntl
import glob
import importlib
import math
import os
import sys
import time
from array import array

from common import PrepareError, Progress, Unavailable, human, parse_size, read_json, write_json
from corpora import Document, HubCorpus, ShakespeareCorpus, StdlibCorpus, TextCorpus, TinyStoriesV2
from encoders import HUB_NAMES, PlainEncoder, check_tokenizer, load_saved_encoder, make_encoder
from fables import FablesCorpus
from shards import FORMATS, SplitWriter, format_for, head_of_dataset
from synthetic import SYMBOLS, MarkovSource

BATCH_BYTES, BATCH_DOCUMENTS = 4 << 20, 1024  # encoded together (in parallel, where the tokenizer can)
SAVE_SECONDS = 15
FALLBACK_TOKENS = (4 * 10**6, 2 * 10**5)  # train, val


# Commands that write no shards of running text have a module of their own.
OTHER_COMMANDS = {"chat": "chat", "eval": "eval_sets"}


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    args = None
    try:
        if argv and argv[0] in OTHER_COMMANDS:
            return importlib.import_module(OTHER_COMMANDS[argv[0]]).main(argv[1:])
        args = parse_arguments(argv)
        return run(args)
    except PrepareError as e:
        print(f"prepare.py: {e}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space or choose another --out, then give" if full else "mend that and give"
        print(
            f"prepare.py: {e.filename or getattr(args, 'out', None) or 'the output'}: {e.strerror or e}; {advice} the same command again "
            "to continue",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\nprepare.py: interrupted; give the same command again to continue", file=sys.stderr)
        return 130


def common_arguments():
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--out", metavar="DIR", help="folder to write (default: data/NAME)")
    add("--seed", type=int, default=1, help="of the validation split and of synthetic text (default: %(default)s)")
    add("--shard-tokens", type=size, default=10**8, metavar="N", help="tokens per shard (default: 1e8)")
    add(
        "--format",
        choices=["auto", *FORMATS],
        default="auto",
        help="llm.c's gpt-2 (uint16) or llama-3 (uint32); auto: the smallest that fits (default: %(default)s)",
    )
    add("--overwrite", action="store_true", help="replace what --out holds")
    add("--quiet", action="store_true", help="no progress")
    return common


def text_arguments():
    text = argparse.ArgumentParser(add_help=False)
    add = text.add_argument
    add(
        "--tokenizer",
        default="bytes",
        metavar="T",
        help=f"bytes; bpe:SIZE (trained here); {', '.join(HUB_NAMES)} or hf:REPO (from the hub); or a "
        "tokenizer.json (default: %(default)s)",
    )
    add(
        "--bpe-split",
        choices=["llama3", "gpt2", "smollm2"],
        default="llama3",
        help="how bpe:SIZE splits text into words (default: %(default)s)",
    )
    add(
        "--bpe-bytes",
        type=size,
        default=10**8,
        metavar="N",
        help="text that bpe:SIZE is trained on (default: 1e8)",
    )
    add("--eot", metavar="TOKEN", help="the token that begins each document (default: the tokenizer's own)")
    add("--max-bytes", type=size, metavar="N", help="stop after so much text, such as 30M")
    add("--max-tokens", type=size, metavar="N", help="stop after so many tokens, such as 1e9")
    add(
        "--stream",
        action="store_true",
        help="list each training shard in dataset.json as soon as it is written, so that training may start: "
        "train_llama --data-order sequential",
    )
    add(
        "--val-fraction",
        type=fraction,
        metavar="F",
        help="share of the text kept for validation (default: 0.05, from the hub 0.005)",
    )
    add(
        "--allow-synthetic-fallback",
        action="store_true",
        help="if the corpus cannot be had, write the synthetic one instead and say so",
    )
    return text


def parse_arguments(argv):
    common, text = common_arguments(), text_arguments()
    parser = argparse.ArgumentParser(
        prog="prepare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="corpus", required=True, metavar="CORPUS")
    commands.add_parser(
        "fables", parents=[common, text], help="short fables, written by a grammar: make quickstart's text"
    )
    commands.add_parser("stdlib", parents=[common, text], help="Python's standard library, as source")
    p = commands.add_parser(
        "text", parents=[common, text], help="text, .jsonl and .parquet files, also .gz and .zst, and folders of them"
    )
    p.add_argument("paths", nargs="+", metavar="PATH")
    p.add_argument("--name", default="text", help="of the dataset (default: %(default)s)")
    p.add_argument(
        "--field",
        default="text",
        help="of a JSONL line, or column of a Parquet file, that holds the text (default: %(default)s)",
    )
    p.add_argument(
        "--separator",
        help="documents in a file are separated by lines equal to this; none: a file is one document (default: lines equal "
        "to <|endoftext|>, </s> or the tokenizer's end token)",
    )
    p.add_argument("--split-inside", action="store_true", help="also where the separator stands inside a line")
    p.add_argument("--val", nargs="+", default=[], metavar="PATH", help="files or folders that are the validation text")
    p.add_argument("--skip-bad", action="store_true", help="leave out rows that hold no text, and count them")
    for name, repo, subset, revision in (
        ("tinystories", "roneneldan/TinyStories", None, None),
        ("tinystories-v2", "roneneldan/TinyStories", None, None),
        ("fineweb-edu", "HuggingFaceFW/fineweb-edu", "sample-10BT", None),
        ("openwebtext", "Skylion007/openwebtext", None, "refs/convert/parquet"),
    ):
        p = commands.add_parser(name, parents=[common, text], help=f"{repo} from the hub")
        p.add_argument("--subset", default=subset, help="configuration of the dataset (default: %(default)s)")
        p.add_argument("--revision", default=revision, help="branch or commit (default: %(default)s)")
        p.add_argument("--field", default="text", help="that holds the text (default: %(default)s)")
        p.set_defaults(repo=repo)
    p = commands.add_parser("shakespeare", parents=[common, text], help="tiny-shakespeare, 1.1 MB; nanoGPT's split")
    p.add_argument("--from", dest="source", metavar="FILE", help="its input.txt, if it is here already")
    p = commands.add_parser("synthetic", parents=[common], help="a Markov source of known entropy")
    p.add_argument("--order", type=int, choices=[1, 2], default=1, help="symbols of context (default: %(default)s)")
    p.add_argument("--symbols", type=int, default=32, metavar="K", help="2 to 64 (default: %(default)s)")
    p.add_argument("--tokens", type=size, default=4 * 10**6, metavar="N", help="for training (default: 4e6)")
    p.add_argument("--val-tokens", type=size, default=2 * 10**5, metavar="N", help="(default: 2e5)")
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        argv = ["stdlib", *argv]
    return parser.parse_args(argv)


def size(text):
    try:
        return parse_size(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def fraction(text):
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


def run(args):
    if args.corpus == "synthetic":
        return prepare_synthetic(args)
    corpus = make_corpus(args)
    try:
        corpus.open()
        if args.allow_synthetic_fallback:
            check_tokenizer(args.tokenizer, args.eot)
    except Unavailable as e:
        if not args.allow_synthetic_fallback:
            raise PrepareError(f"{e}; --allow-synthetic-fallback would write a synthetic corpus instead") from e
        print(
            f"prepare.py: {e}\nprepare.py: writing the SYNTHETIC corpus instead, as allowed; this is not {corpus.name}",
            file=sys.stderr,
        )
        args.order, args.symbols = 1, 32
        args.tokens, args.val_tokens = FALLBACK_TOKENS
        if args.max_tokens and args.max_tokens < sum(FALLBACK_TOKENS):
            args.val_tokens = max(args.max_tokens * args.val_tokens // sum(FALLBACK_TOKENS), 1)
            args.tokens = max(args.max_tokens - args.val_tokens, 1)
        return prepare_synthetic(args, fallback_from=corpus.name)
    return prepare_text(args, corpus)


def make_corpus(args):
    hub = args.corpus not in ("fables", "stdlib", "text", "shakespeare")
    val_fraction = args.val_fraction if args.val_fraction is not None else 0.005 if hub else 0.05
    if args.corpus == "fables":
        return FablesCorpus(args.seed, val_fraction)
    if args.corpus == "stdlib":
        return StdlibCorpus(args.seed, val_fraction)
    if args.corpus == "shakespeare":
        if args.val_fraction is not None:
            raise PrepareError("--val-fraction: shakespeare has nanoGPT's split, the last tenth; leave it out")
        return ShakespeareCorpus(args.source)
    if args.corpus == "text":
        if args.split_inside and args.separator == "none":
            raise PrepareError("--split-inside: with --separator none nothing is split; leave one of them out")
        if args.val and args.val_fraction:
            raise PrepareError(
                "--val names the validation text and --val-fraction cuts some off; leave one of them out"
            )
        return TextCorpus(args, val_fraction)
    return (TinyStoriesV2 if args.corpus == "tinystories-v2" else HubCorpus)(args, val_fraction)


class OutputFolder:
    """The folder being written: its lock, its state between interruptions, and dataset.json at the end."""

    def __init__(self, args, name, settings):
        self.path = args.out or os.path.join("data", name)
        self.name, self.settings = name, settings
        os.makedirs(self.path, exist_ok=True)
        self._lock = open(os.path.join(self.path, ".lock"), "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise PrepareError(
                f"{self.path}: another prepare.py is writing here; wait for it or choose another --out"
            ) from e
        self._state_path = os.path.join(self.path, "unfinished.json")
        self._dataset_path = os.path.join(self.path, "dataset.json")
        if args.overwrite:
            self._remove_all()
        self.dataset, self.state = read_json(self._dataset_path), read_json(self._state_path)
        if self.dataset and self.dataset.get("growing"):  # --stream: of the shards so far
            self.dataset = None
        for found, what in ((self.dataset, "a finished dataset"), (self.state, "an unfinished dataset")):
            if found is not None and (old := found.get("settings", {})) != settings:
                changed = sorted(k for k in {**settings, **old} if settings.get(k) != old.get(k))
                raise PrepareError(
                    f"{self.path} holds {what} made with other settings ({', '.join(changed)}); pass "
                    "--overwrite or another --out"
                )

        if self.dataset and self.state:  # its last run ended between the two
            os.remove(self._state_path)
            self.state = None

        for split in ("train", "val") if self.dataset else ():
            for shard in self.dataset[split]["shards"]:
                try:
                    os.stat(os.path.join(self.path, shard["file"]))
                except FileNotFoundError as e:
                    raise PrepareError(
                        f"{self.path}: dataset.json lists {shard['file']}, which is missing; pass --overwrite to make "
                        "it again"
                    ) from e
        shards = glob.glob(os.path.join(glob.escape(self.path), f"{glob.escape(name)}_*_[0-9]*.bin*"))
        if shards and self.dataset is None and self.state is None:
            raise PrepareError(
                f"{self.path} holds {os.path.basename(sorted(shards)[0])}, which no prepare.py left unfinished; choose "
                "another --out, or pass --overwrite to remove it"
            )

    def _remove_all(self):
        for pattern in (
            "dataset.json",
            "unfinished.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "entropy.json",
            "*_train_[0-9]*.bin*",
            "*_val_[0-9]*.bin*",
        ):
            for path in glob.glob(os.path.join(glob.escape(self.path), pattern)):
                os.remove(path)

    def save_state(self, **values):
        write_json(self._state_path, {"settings": self.settings, **values})

    def finish(self, encoder, shard_format, writers, **extra):
        for writer in writers.values():
            writer.finish()
        self.write_dataset(encoder, shard_format, writers, **extra)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._state_path)

    def write_dataset(self, encoder, shard_format, writers, **extra):
        dataset = head_of_dataset(self.name, encoder, shard_format)
        dataset["tokenizer"]["eos_id"] = encoder.eos
        dataset |= {split: writer.summary() for split, writer in writers.items()}
        write_json(self._dataset_path, dataset | extra | {"settings": self.settings})

    def report(self):
        d = read_json(self._dataset_path)
        for split in ("train", "val"):
            s = d[split]
            ratio = f", {s['bytes_per_token']:.3f} bytes per token" if s["bytes_per_token"] else ""
            print(
                f"{split:5}  {human(s['tokens'])} tokens in {len(s['shards'])} "
                f"{'shard' if len(s['shards']) == 1 else 'shards'}, {human(s['documents'])} documents{ratio}"
            )
        print(
            f"{d['name']} is ready in {self.path} (vocabulary {d['vocab_size']}, tokenizer {d['tokenizer']['kind']}"
            + (f", entropy {d['entropy_nats_per_token']:.4f} nats per token" if "entropy_nats_per_token" in d else "")
            + ")"
        )


def check_val(writers, val_fraction):
    if writers["train"].tokens == 0:
        raise PrepareError("no text for training was found")
    if writers["val"].tokens == 0 and val_fraction > 0:
        raise PrepareError("no document fell to validation; use a larger --val-fraction (or 0 for none)")


def prepare_text(args, corpus):
    settings = {
        "corpus": corpus.settings(),
        "tokenizer": args.tokenizer,
        "eot": args.eot,
        "format": args.format,
        "shard_tokens": args.shard_tokens,
        "max_bytes": args.max_bytes,
        "max_tokens": args.max_tokens,
    }
    if args.tokenizer.startswith("bpe:"):
        settings.update(bpe_split=args.bpe_split, bpe_bytes=args.bpe_bytes)
    out = OutputFolder(args, corpus.name, settings)
    if out.dataset:
        out.report()
        return 0
    state = out.state or {"documents": 0, "train": None, "val": None}
    if out.state:
        encoder = load_saved_encoder(out.path, args.tokenizer, state["eot"])
        corpus.use_tokenizer(encoder)
        if not args.quiet:
            print(f"resuming after {state['documents']} documents", file=sys.stderr)
    else:
        if args.tokenizer.startswith("bpe:") and not args.quiet:
            print(
                f"training {args.tokenizer} on up to {human(args.bpe_bytes, 'B')} of {corpus.name} ...", file=sys.stderr
            )
        encoder = make_encoder(args.tokenizer, args.eot, training_texts(corpus, args.bpe_bytes), args.bpe_split)
        corpus.use_tokenizer(encoder)
        if args.tokenizer.startswith("bpe:") and encoder.vocab_size < int(args.tokenizer[4:]):
            corpus.notes.append(
                f"--tokenizer {args.tokenizer}: the text has pairs for a vocabulary of {encoder.vocab_size} only; more "
                "text or a smaller size fills it"
            )
        encoder.save(out.path)
    shard_format = format_for(encoder.vocab_size) if args.format == "auto" else args.format
    if shard_format == "gpt-2" and encoder.vocab_size > 1 << 16:
        raise PrepareError(
            f"--format gpt-2 holds ids below 65536, but the vocabulary has {encoder.vocab_size}; use llama-3"
        )
    writers = {
        split: SplitWriter(out.path, corpus.name, split, shard_format, args.shard_tokens, state[split])
        for split in ("train", "val")
    }
    if not out.state:
        out.save_state(documents=0, eot=encoder.eot_text, train=None, val=None)
    invalid = encode_corpus(args, corpus, encoder, writers, out, state)
    corpus.finished()
    check_val(writers, corpus.val_fraction)
    out.finish(encoder, shard_format, writers, **({"invalid_utf8": invalid} if invalid else {}))
    if invalid:
        kept = "kept as they are" if args.tokenizer == "bytes" else "replaced by U+FFFD"
        corpus.notes.append(f"{invalid} documents hold bytes that are no UTF-8, {kept}")
    for note in corpus.notes:
        print(f"prepare.py: {note}", file=sys.stderr)
    out.report()
    return 0


def training_texts(corpus, limit):
    for document in corpus.documents():
        if limit <= 0:
            return
        if document.split == "train":
            limit -= len(document.data)
            yield document.data


def batches(documents):
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += len(document.data)
        if size >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def is_utf8(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_corpus(args, corpus, encoder, writers, out, state):
    """Everything after the documents that `state` counts; returns how many documents are not UTF-8."""
    done_documents, invalid = state["documents"], state.get("invalid_utf8", 0)

    def written(what):
        return sum(getattr(w, what) for w in writers.values())

    limit = args.max_bytes or float("inf")
    total = min(corpus.total_bytes or limit, limit)
    progress = Progress(total if total < float("inf") else None, written("bytes"), args.quiet)
    eot, saved = array(writers["train"].typecode, [encoder.eot]), time.monotonic()

    def save():
        out.save_state(
            documents=done_documents,
            invalid_utf8=invalid,
            eot=encoder.eot_text,
            **{s: w.sync() for s, w in writers.items()},
        )

    source, full, listed = batches(corpus.documents(done_documents)), False, 0
    while not full:
        try:
            batch = next(source, None)
        except PrepareError:  # a stream that broke: what was written so far is whole
            save()
            raise
        if batch is None:
            break
        full = encode_batch(args, encoder, writers, batch, limit - written("bytes"), eot)
        done_documents += len(batch)
        invalid += sum(not is_utf8(d.data) for d in batch)
        progress.update(written("bytes"), written("tokens"))
        grown = args.stream and len(writers["train"].shards) > listed
        if grown or time.monotonic() - saved > SAVE_SECONDS:
            save()
            saved = time.monotonic()
        if grown:  # saved first: a shard that is listed is never written again
            out.write_dataset(encoder, writers["train"].format, writers, growing=True)
            listed = len(writers["train"].shards)
    progress.update(written("bytes"), written("tokens"), last=True)
    return invalid


def encode_batch(args, encoder, writers, batch, room, eot):
    """Writes the documents of `batch` until `room` bytes or --max-tokens are used up; True if they are."""
    kept = []
    for document in batch:
        data = document.data if len(document.data) <= room else cut_text(document.data, int(room))
        if data:
            kept.append(Document(document.split, data, document.first))
        room -= len(document.data)
        if room <= 0:
            break
    for document, ids in zip(kept, encoder.encode_batch([d.data for d in kept], eot.typecode)):
        writer = writers[document.split]
        if document.first:
            writer.write(eot)
            writer.documents += 1
        writer.write(ids)
        writer.bytes += len(document.data)
        if args.max_tokens and sum(w.tokens for w in writers.values()) >= args.max_tokens:
            return True
    return room <= 0


def cut_text(data, size):
    """At most `size` bytes, without a broken UTF-8 sequence at the end."""
    while 0 < size < len(data) and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[: max(size, 0)]


def prepare_synthetic(args, fallback_from=None):
    if not 2 <= args.symbols <= 64:
        raise PrepareError(f"--symbols {args.symbols}: must be 2 to 64")
    source = MarkovSource(args.symbols, args.order, args.seed)
    settings = {
        "corpus": {"kind": "MarkovSource", **source.settings()},
        "tokens": args.tokens,
        "val_tokens": args.val_tokens,
        "format": args.format,
        "shard_tokens": args.shard_tokens,
    }
    if fallback_from:
        settings["fallback_from"] = fallback_from
    out = OutputFolder(args, "synthetic", settings)
    if out.dataset:
        out.report()
        return 0
    encoder = PlainEncoder(f"markov order {args.order}", SYMBOLS[: args.symbols].encode())
    encoder.save(out.path)
    out.save_state()  # the folder is ours; an interrupted run starts again
    shard_format = "gpt-2" if args.format == "auto" else args.format
    typecode = FORMATS[shard_format][2]
    nats, done = {}, 0
    progress = Progress(args.tokens + args.val_tokens, quiet=args.quiet)
    writers = {}
    for split, tokens in (("val", args.val_tokens), ("train", args.tokens)):
        writers[split] = writer = SplitWriter(out.path, "synthetic", split, shard_format, args.shard_tokens)
        writer.write(array(typecode, [encoder.eot]))
        writer.documents, nats[split] = 1, 0.0
        for symbols, block_nats in source.blocks(split, tokens):
            writer.write(symbols if typecode == "H" else array(typecode, symbols))
            nats[split] += block_nats
            done += len(symbols)
            progress.update(done, done)
    entropy = {
        "entropy_nats_per_token": source.entropy_nats,
        "entropy_bits_per_token": source.entropy_nats / math.log(2),
        "val_source_nats_per_token": nats["val"] / args.val_tokens,
        "train_source_nats_per_token": nats["train"] / args.tokens,
    }
    write_json(
        os.path.join(out.path, "entropy.json"),
        {
            **entropy,
            "unigram_nats_per_token": source.unigram_nats,
            "order": args.order,
            "symbols": args.symbols,
            "seed": args.seed,
            "note": "the entropy rate of the source, and the mean -log P that the source itself gives to the text written; "
            "a model that sees at least `order` tokens cannot do better on average",
        },
    )
    extra = {"fallback_from": fallback_from} if fallback_from else {}
    out.finish(encoder, shard_format, {"train": writers["train"], "val": writers["val"]}, **entropy, **extra)
    out.report()
    return 0


if __name__ == "__main__":
    sys.exit(main())
