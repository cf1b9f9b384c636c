"""Conversations into token shards for supervised fine-tuning, with the loss on the answers only.

    prepare.py chat FILE.jsonl... --tokenizer MODEL_FOLDER --out data/chat

A row is one conversation:
    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}     ShareGPT
    {"prompt": "...", "completion": "..."}                   text as it is, without a template
    {"instruction": "...", "input": "...", "output": "..."}  Alpaca: a question and an answer
in JSON lines or one JSON array, also packed (.gz, .zst).

Messages become text by the chat template of the tokenizer's folder (chat_template.jinja, or in tokenizer_config.json), by
--template FILE, or by --template plain. A message of the role "assistant" is an answer: its tokens, the one that ends the turn
among them, are the targets; everything else is read and not predicted. With --pack T no sample of T tokens cuts a conversation.
The shards are llm.c's with a mark in the header (the fourth number is 1) and, after the ids, one bit for each token: whether it is
a target.
"""

import argparse
import codecs
import glob
import json
import os
import re
import struct
import sys
from array import array

import chat_template
from common import PrepareError, human, parse_size, read_json, write_atomically, write_json
from corpora import split_of
from encoders import EOT, PlainEncoder, make_encoder, write_tokenizer_config
from files import BadFile, open_text, read_array, why_not_text
from shards import FORMATS, HEADER_BYTES, format_for, head_of_dataset

PLAIN = (
    "{% for m in messages %}### {{ m['role'] }}\n{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}### assistant\n{% endif %}"
)
ROLES = ("system", "user", "assistant", "tool")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}  # others as they are


# ---- rows ------------------------------------------------------------------------------------------------------------


def conversation(row, where):
    """Messages, or (prompt, completion)."""

    def text(key):
        if not isinstance(row.get(key), str):
            raise PrepareError(f"{where}: '{key}' must be a text")
        return row[key]

    if not isinstance(row, dict):
        raise PrepareError(f"{where}: a row is a JSON object")
    if "messages" in row or "conversations" in row:
        messages = row.get("messages", row.get("conversations"))
        if isinstance(messages, list):
            messages = [
                {"role": SHAREGPT_ROLES.get(str(m["from"]), m["from"]), "content": m.get("value")}
                if isinstance(m, dict) and "from" in m
                else m
                for m in messages
            ]
        for m in messages if isinstance(messages, list) else [None]:
            if not isinstance(m, dict) or m.get("role") not in ROLES or not isinstance(m.get("content"), str):
                raise PrepareError(
                    f"{where}: 'messages' must be a list of objects with a 'content' and a 'role' of {', '.join(ROLES)} "
                    "(or, as ShareGPT has them, 'conversations' with 'value' and 'from')"
                )
        if not any(m["role"] == "assistant" for m in messages):
            raise PrepareError(f"{where}: no message of the role assistant, so there is nothing to learn")
        return messages
    if "prompt" in row:
        return text("prompt"), text("completion")
    if "instruction" in row:
        question = text("instruction") + ("\n\n" + text("input") if row.get("input") else "")
        return [{"role": "user", "content": question}, {"role": "assistant", "content": text("output")}]
    raise PrepareError(
        f"{where}: neither 'messages' nor 'conversations' nor 'prompt' nor 'instruction'; its keys are {', '.join(sorted(row)) or 'none'}"
    )


def read_rows(paths):
    for path in paths:
        if (why := why_not_text(path)) is not None:
            raise PrepareError(f"{path}: {why}")
        try:
            with open_text(path) as f:
                start = f.peek(4096).removeprefix(codecs.BOM_UTF8).lstrip()
                if start.startswith(b"["):
                    yield from ((f"{path}, row {n}", row) for n, row in enumerate(read_array(path, f), 1))
                else:
                    yield from _lines(path, f)
        except BadFile as e:
            raise PrepareError(f"{path}: {e}") from e


def _lines(path, file):
    for number, line in enumerate(file, 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield where, json.loads(line.removeprefix(codecs.BOM_UTF8))
            except ValueError as e:
                raise PrepareError(f"{where}: not JSON: {e}") from e


# ---- text ------------------------------------------------------------------------------------------------------------


class Template:
    """A chat template, rendered as transformers does: sandboxed, blocks trimmed."""

    def __init__(self, source, variables, name, now=None):
        """now: what strftime_now() calls with the format; without it a template that asks for the date is refused."""
        self._variables, self._name = variables, name
        try:
            self._render = chat_template.renderer(source, now)
        except chat_template.Refused as e:
            raise PrepareError(f"{name}: {e}") from e

    def render(self, messages, where, prompt=False):
        try:
            return self._render(messages=messages, add_generation_prompt=prompt, **self._variables)
        except chat_template.Refused as e:
            raise PrepareError(f"{where}: {self._name} {e}") from e

    def parts(self, messages, where):
        """The whole text, and where the answers stand in it: what follows the prompt for each of them."""
        whole, spans = self.render(messages, where), []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.render(messages[:i], where, prompt=True)
            after = self.render(messages[: i + 1], where)
            if not after.startswith(before) or not whole.startswith(after):
                raise PrepareError(
                    f"{where}: {self._name} writes message {i} differently once others follow it, so its answer can't be "
                    "told from the prompt; split the conversation after it, or give --template FILE"
                )
            spans.append((len(before), len(after)))
        return whole, spans


def find_template(args, folder, config, encoder):
    def special(key, otherwise):
        value = config.get(key)
        return value.get("content", otherwise) if isinstance(value, dict) else value or otherwise

    variables = {
        "bos_token": special("bos_token", encoder.eot_text),
        "eos_token": special("eos_token", encoder.eot_text),
    }
    if args.template == "plain":
        return Template(PLAIN, variables, "--template plain"), variables, None
    source, name = None, args.template or (folder and os.path.join(folder, "chat_template.jinja"))
    if name and os.path.exists(name):
        with open(name, encoding="utf-8") as f:
            source = f.read()
    elif args.template:
        raise PrepareError(f"--template {args.template}: no such file, and not `plain`")
    else:
        source, name = config.get("chat_template"), f"{folder}/tokenizer_config.json"
        if isinstance(source, list):  # several by name
            source = next((t["template"] for t in source if t.get("name") == "default"), None)
    if not source:
        raise PrepareError(
            f"--tokenizer {args.tokenizer} has no chat template; give --template FILE with one, or --template plain"
        )
    return Template(source, variables, name), variables, source


# ---- tokens ----------------------------------------------------------------------------------------------------------


class Tokens:
    """Ids of a text and where in it each begins. Special tokens that the text names count as such."""

    def __init__(self, encoder):
        self.encoder = encoder
        self._plain = isinstance(encoder, PlainEncoder)
        if not self._plain:
            self._tokenizer = encoder._tokenizer
            self._tokenizer.encode_special_tokens = False
            self.special = [t.content for t in self._tokenizer.get_added_tokens_decoder().values() if t.special]
        else:
            self.special = [EOT]

    def encode(self, text):
        if not self._plain:
            found = self._tokenizer.encode(text, add_special_tokens=False)
            return found.ids, [begin for begin, _ in found.offsets]
        ids, begins, at = [], [], 0
        for part in re.split(f"({re.escape(EOT)})", text):
            if part == EOT:
                ids.append(self.encoder.eot)
                begins.append(at)
            else:
                for i, character in enumerate(part):
                    data = character.encode("utf-8", "surrogatepass")
                    ids.extend(data)
                    begins.extend([at + i] * len(data))
            at += len(part)
        return ids, begins


def text_and_answers(row, where, template, variables, tokens, allow_special):
    """Text, spans of the answers in it."""
    talk = conversation(row, where)
    contents = talk if isinstance(talk, tuple) else [m["content"] for m in talk]
    named = [s for s in tokens.special if any(s in c for c in contents)]
    if named and not allow_special:
        raise PrepareError(
            f"{where}: the text itself names the special token {named[0]}, with which a user could end a turn; remove it, "
            "or pass --allow-special"
        )
    if isinstance(talk, tuple):
        prompt, answer = talk[0], talk[1] + variables["eos_token"]
        return prompt + answer, [(len(prompt), len(prompt + answer))]
    whole, spans = template.parts(talk, where)
    cut = []
    for begin, end in spans:  # what follows the token that ends the turn is not the model's to say
        answer = whole[begin:end].rstrip()
        cut.append((begin, begin + len(answer) if answer.endswith(tuple(tokens.special)) else end))
    return whole, cut


def encode_row(text, spans, tokens):
    """Ids, targets (0 or 1 for each), bytes of the answers. A document begins with the end-of-text token."""
    ids, begins = tokens.encode(text)
    targets = [int(any(a <= at < b for a, b in spans)) for at in begins]
    if not ids or ids[0] != tokens.encoder.eot:
        ids, targets = [tokens.encoder.eot, *ids], [0, *targets]
    targets[0] = 0
    return ids, targets, sum(len(text[a:b].encode("utf-8", "surrogatepass")) for a, b in spans)


# ---- shards ----------------------------------------------------------------------------------------------------------


def pack_bits(flags):
    out = bytearray((len(flags) + 7) // 8)
    for i, flag in enumerate(flags):
        out[i >> 3] |= flag << (i & 7)
    return bytes(out)


class Packer:
    """Rows of exactly `length` tokens out of whole conversations: each goes where it leaves the least room, and end-of-text tokens,
    which are no targets, fill the rest. Sample k of a training run with --seq-len `length` is row k, so it cuts none."""

    OPEN = 256  # rows that still take more; the fullest is closed when there are more

    def __init__(self, length, eot):
        self.length, self.eot, self.open, self.padding = length, eot, [], 0

    def add(self, ids, targets):
        """A row that is closed by this, or None."""
        fits = [row for row in self.open if len(row[0]) + len(ids) <= self.length]
        row = max(fits, key=lambda r: len(r[0]), default=None)
        if row is None:
            row = ([], [])
            self.open.append(row)
        row[0].extend(ids)
        row[1].extend(targets)
        if len(row[0]) == self.length or len(self.open) > self.OPEN:
            return self.close(max(self.open, key=lambda r: len(r[0])))
        return None

    def close(self, row):
        self.open = [r for r in self.open if r is not row]
        room = self.length - len(row[0])
        self.padding += room
        return row[0] + [self.eot] * room, row[1] + [0] * room

    def rest(self):
        while self.open:
            yield self.close(self.open[0])


class TargetWriter:
    """Shards with targets, each written whole."""

    def __init__(self, args, split, encoder):
        """args: the flags of prepare.py chat."""
        self.folder, self.prefix, self.shard_tokens = args.out, f"{args.name}_{split}_", args.shard_tokens
        self.eot, self.packer = encoder.eot, Packer(args.pack, encoder.eot) if args.pack else None
        self.magic, self.version, self.typecode = FORMATS[format_for(encoder.vocab_size)]
        self.ids, self.flags, self.shards = array(self.typecode), bytearray(), []
        self.tokens = self.targets = self.documents = self.bytes = 0

    def write(self, ids, targets, answer_bytes):
        self.documents += 1
        self.bytes += answer_bytes
        if not self.packer:
            self.append(ids, targets)
        elif full := self.packer.add(ids, targets):
            self.append(*full)

    def append(self, ids, targets):
        self.ids.extend(ids)
        self.flags.extend(targets)
        self.tokens += len(ids)
        self.targets += sum(targets)
        if len(self.ids) >= self.shard_tokens:
            self.finish_shard()

    def finish(self):
        for row in self.packer.rest() if self.packer else []:
            self.append(*row)
        self.finish_shard()

    def finish_shard(self):
        if not self.ids:
            return
        if self.packer:  # the last row's last token predicts the token after it
            self.ids.append(self.eot)
            self.flags.append(0)
            self.tokens += 1
        name = f"{self.prefix}{len(self.shards):06d}.bin"
        header = struct.pack("<4i", self.magic, self.version, len(self.ids), 1).ljust(HEADER_BYTES, b"\0")
        if sys.byteorder == "big":
            self.ids.byteswap()
        write_atomically(os.path.join(self.folder, name), header + self.ids.tobytes() + pack_bits(self.flags))
        self.shards.append({"file": name, "tokens": len(self.ids), "targets": sum(self.flags)})
        self.ids, self.flags = array(self.typecode), bytearray()

    def summary(self):
        return {
            "tokens": self.tokens,
            "targets": self.targets,
            "documents": self.documents,
            "bytes": self.bytes,  # of the answers
            "bytes_per_token": self.bytes / self.targets if self.targets else None,
            **({"padding": self.packer.padding} if self.packer else {}),
            "shards": self.shards,
        }


def parse(argv):
    parser = argparse.ArgumentParser(
        prog="prepare.py chat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="rows: .jsonl, or a .json array")
    add("--out", default=os.path.join("data", "chat"), metavar="DIR", help="folder to write (default: %(default)s)")
    add("--name", default="chat", help="of the dataset (default: %(default)s)")
    add(
        "--tokenizer",
        default="bytes",
        metavar="T",
        help="folder of the model to fine-tune, or as for text (default: bytes)",
    )
    add("--template", metavar="FILE", help="chat template, or `plain` (default: the tokenizer's own)")
    add("--eot", metavar="TOKEN", help="the token that begins each conversation (default: the tokenizer's own)")
    add(
        "--val-fraction", type=float, default=0.05, metavar="F", help="share of the rows for validation (default: 0.05)"
    )
    add("--seed", type=int, default=1, help="of the validation split (default: %(default)s)")
    add("--shard-tokens", type=parse_size, default=10**8, metavar="N", help="tokens per shard, about (default: 1e8)")
    add(
        "--pack",
        type=int,
        default=0,
        metavar="T",
        help="rows of T tokens that cut no conversation; train with --seq-len T",
    )
    add("--too-long", choices=("refuse", "skip", "cut"), default="refuse",
        help="a conversation of more than T tokens with --pack: skip it, or cut its end off (default: %(default)s)")  # fmt: skip
    add("--allow-special", action="store_true", help="let contents name special tokens")
    add("--overwrite", action="store_true", help="replace what --out holds")
    add("--quiet", action="store_true", help="no progress")
    return parser.parse_args(argv)


def main(argv):
    args = parse(argv)
    if args.pack and args.pack < 2:
        raise PrepareError(f"--pack {args.pack}: a row has at least 2 tokens")
    if not 0 <= args.val_fraction < 1:
        raise PrepareError(f"--val-fraction {args.val_fraction:g} is not in [0, 1)")
    if os.path.exists(os.path.join(args.out, "dataset.json")) and not args.overwrite:
        raise PrepareError(f"{args.out} holds a finished dataset; pass --overwrite or another --out")
    encoder = make_encoder(args.tokenizer, args.eot)
    folder = None
    if os.path.exists(args.tokenizer):
        folder = args.tokenizer if os.path.isdir(args.tokenizer) else os.path.dirname(args.tokenizer)
    config = (read_json(os.path.join(folder, "tokenizer_config.json")) or {}) if folder else {}
    tokens = Tokens(encoder)
    template, variables, source = find_template(args, folder, config, encoder)
    os.makedirs(args.out, exist_ok=True)
    for pattern in ("dataset.json", "*_train_[0-9]*.bin*", "*_val_[0-9]*.bin*"):
        for path in glob.glob(os.path.join(glob.escape(args.out), pattern)):
            if not args.overwrite:
                raise PrepareError(f"{path} is in the way; choose another --out, or pass --overwrite to remove it")
            os.remove(path)
    writers = {split: TargetWriter(args, split, encoder) for split in ("train", "val")}
    long = 0
    for where, row in read_rows(args.files):
        text, spans = text_and_answers(row, where, template, variables, tokens, args.allow_special)
        key = json.dumps(row, sort_keys=True, ensure_ascii=False)  # equal rows fall to the same side
        ids, targets, answer_bytes = encode_row(text, spans, tokens)
        if args.pack and len(ids) > args.pack:
            if args.too_long == "refuse":
                raise PrepareError(
                    f"{where}: {len(ids)} tokens do not fit into a row of {args.pack}; give a larger --pack, or --too-long skip or cut"
                )
            long += 1
            if args.too_long == "skip" or not any(targets[: args.pack]):
                continue
            answer_bytes = answer_bytes * sum(targets[: args.pack]) // sum(targets)
            ids, targets = ids[: args.pack], targets[: args.pack]
        writers[split_of(key, args.seed, args.val_fraction)].write(ids, targets, answer_bytes)
    if not writers["train"].documents:
        raise PrepareError("no row for training was found")
    for writer in writers.values():
        writer.finish()
    encoder.save(args.out)
    save_tokenizer_config(args.out, config, variables, source)
    marks = "; after the ids one bit for each token: a target or not"
    dataset = head_of_dataset(args.name, encoder, format_for(encoder.vocab_size), marks)
    dataset |= {"packed": args.pack} if args.pack else {}
    dataset |= {split: writer.summary() for split, writer in writers.items()}
    write_json(os.path.join(args.out, "dataset.json"), dataset)
    for split, w in writers.items():
        packed = f", {human(w.packer.padding)} of padding" if w.packer else ""
        print(
            f"{split:5}  {human(w.tokens)} tokens, {human(w.targets)} of them targets, {human(w.documents)} conversations{packed}"
        )
    if not writers["val"].documents:
        print(
            "validation is empty: no row fell to it"
            + ("; use a larger --val-fraction" if args.val_fraction else " (--val-fraction 0)")
        )
    if long:
        print(
            f"{long} conversations of more than {args.pack} tokens were {'skipped' if args.too_long == 'skip' else 'cut'}"
        )
    print(f"{args.name} is ready in {args.out} (vocabulary {encoder.vocab_size}, tokenizer {encoder.kind})")
    return 0


def save_tokenizer_config(out, config, variables, source):
    """The tokenizer's own configuration with the template in use, so that the fine-tuned model is asked as it was taught."""
    path = os.path.join(out, "tokenizer_config.json")
    write_tokenizer_config(out, variables["bos_token"], variables["eos_token"])
    config = {**read_json(path), **config, "chat_template": source or PLAIN}
    write_atomically(path, (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode())
