#!/usr/bin/env python3
"""Writes test/golden/tokenizer/: small tokenizers of every supported kind, and what Hugging Face's `tokenizers` makes of
strings that are easy to get wrong; for tokenizer.model, what `sentencepiece` makes of them.

    python3 -m pip install tokenizers==0.23.3 sentencepiece==0.2.3 && python3 dev/golden/make_tokenizer_golden.py

    strings.json    the strings
    KIND.json       a tokenizer; KIND_ids.json: for each string [ids, ids with special tokens or null if the same,
                    decoded text or null if the same]
    nfc.json        [text, text in normalisation form C]
    added.json      the stored tokenizers with more added tokens, of every pair of "normalized" and "special", and what
                    they make of strings with these, [ids, ids with special tokens]; ids drawn at random and what they
                    decode to, [ids, text, text without special tokens]. Alone: make_tokenizer_golden.py --added
"""

import io
import json
import os
import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "data_prep"))
import encoders  # noqa: E402  (found through the path above)

OUT = os.path.join(ROOT, "test", "golden", "tokenizer")
CORPUS = [
    "The cat sat on the mat, and the other cat didn't. It's what they'd said: we've no more than I'll need.\n",
    "def forward(self, x, weight):\n    return x @ weight.T  # 12345 + 678\n\n\nfor i in range(100):\r\n\tprint(i)\r\n",
    "Größe, façade, naïve; Привет, мир! 世界 こんにちは 안녕하세요 🦙🦙 👩‍👩‍👧 e\u0301 \u00a0x\u2003y\n",
    "HELLO'S WE'RE THEY'VE don't   spaces    and more     spaces 2024-11-21 3.14159 1000000\n",
] * 3
STRINGS = [
    "", " ", "  ", "a", " a", "  a", "   a", "a ", "a  ", "a  b", "\n", "\n\n", "\r\n", " \n", "\n ", "\n  a", "a\n\n  b", "\t\tx",
    "a\r\n\r\n  b", "  \n  \n  x", "x  \n", "\u00a0x", "\u2003 y", "\u3000\u3000z", "x\u0085y", "\u180ex", "\u200bx",
    "I'm  here,\r\n\r\n  1234567 don't!\n x", "it's IT'S It'S we're WE'RE they've THEY'VE I'll I'LL he'd HE'D I'M 'S 'ſ 'x '",
    "'sa ''s 'll'll ' s", "don’t", "1", "12", "123", "1234", "12345678", "1 2  3", "a1b22c333", " 1 12", "½¾ Ⅷ ٣٤٥ 一二三 ²",
    "x=3.14e-10;", "!!!", " !!!", "!!!\n\n", "!!! \n", "a!b", "-a", "--a", "_a_b", "$x", "€5", "a\tb", "\ta", " \ta", "\t a",
    "世界", " 世界", "héllo 世界 🦙", "🦙", "🦙🦙🦙", "👩‍👩‍👧‍👦", "🇩🇪", "e\u0301a\u0300", "\u0301a", "नमस्ते", "สวัสดี", "אבג", "العربية",
    "ß ẞ ﬀ Ǆ ʰ ª", "\u0000", "a\u0000b", "\ufeffx", "\ufffd", "\U0010ffff", "\ue000", "\u1c89 \U00010d40 \U0001e5f1 \U0002ebf0",
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|", "<|endoftext|><|endoftext|>", "<|end<|endoftext|>", "<|endoftext|>x",
    "hello world", "The cat sat on the mat.", "    return x\n", "a" * 50, " " * 50, "\n" * 50, "1" * 50, "! " * 20,
    "the the  the", "▁", " ▁x", "<0x41>", "<s>", "</s>a", "<unk>",
]
ADDED = [("<pad>", True, True), ("<|a|>", True, False), ("<|b|>", False, True), ("<c>", False, False), ("x y", True, False),
         ("\u2581\u2581", True, False), ("a>", False, False), ("<a", True, False), ("\u00e9\u00e8", True, False), ("<|b", False, False),
         ("<e\u0301>", True, True), ("u\u0308z", True, False), ("<\u212b", False, True)]
ADDED_STRINGS = [
    "<pad>", "a<pad>b", "a <pad> b", "<pad><pad>", " <pad>", "  <pad>", "<|a|>", "x<|a|>", "<|a|>x", "a <|a|>b", "<|b|>a <pad>", "<|b|><pad>",
    "<c> <c>", "a<c><|a|>", "<c><|a|> <|a|>", "x y", "ax y", "a x y", "x  y", "  ", "   a", "a    b", "<a>", "<a>a>", " <a <a", "the <a>",
    "\u00e9\u00e8", "a \u00e9\u00e8", "a\u00e9\u00e8", "<|b|", "<|b|>", "<|b |> <|b|><|a|> <|a|>", "\u2581<pad>", "a\u2581<pad>\u2581<|a|>", "", " ", "\n<pad>\n",
    "<s><pad>", "<s> <pad>", "</s>x y<unk>x y", "x y<c>x y",
    "<e\u0301>", "a<\u00e9> <e\u0301>", "u\u0308z \u00fcz", "<\u212b<\u00c5", "<A\u030a",
]
# As bytes, so that ids may end inside a character; the decoders must agree.
ILL_FORMED = [b"\xff", b"a\xe4\xb8", b"\xe4\xb8\xadx", b"\xe4\xb8x", b"\xf0\x9f\xa6", b"\xf0\x9f\xa6\x99", b"\xc0\x80", b"\xed\xa0\x80",
              b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\x80\x80", b"\xc3\xc3\xa9", b"\xf0\x9f\xe4\xb8\xad"]


QWEN2_SPLIT = encoders.LLAMA3_SPLIT.replace("{1,3}", "")


def byte_level(split, size):
    """One file per way of splitting; two notations of merges and other variations are spread over them."""
    regex = {"gpt2": True, "smollm2": True, "llama3": False, "qwen2": False, "gpt2_split": False}[split]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    t = Tokenizer(models.BPE(ignore_merges=split == "llama3"))
    if split == "smollm2":
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    elif split == "llama3":
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(encoders.LLAMA3_SPLIT), "isolated"), level])
    elif split == "qwen2":
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"), level])
    else:
        t.pre_tokenizer = level
    t.decoder = decoders.ByteLevel()
    special = {"gpt2": ["<|endoftext|>"], "smollm2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "llama3": [], "qwen2": ["<|endoftext|>"]}[split]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    t.train_from_iterator(CORPUS, trainer)
    if split == "llama3":
        t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|endoftext|>", "<|end"])
        bos = t.token_to_id("<|begin_of_text|>")
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])])
    return json.loads(t.to_str())


def characters(size):
    """Llama-2's kind: BPE over characters with byte fallback."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t = Tokenizer(models.BPE())
    t.normalizer = normalizer
    t.train_from_iterator([w for line in CORPUS for w in line.split(" ")],
                          trainers.BpeTrainer(vocab_size=size - 259, show_progress=False))
    trained = json.loads(t.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    vocab = {n: i for i, n in enumerate([*names, *trained["vocab"]])}
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in trained["merges"]]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizer
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return json.loads(t.to_str())


def metaspace(value):
    """The same as newer files write it."""
    value = json.loads(json.dumps(value))
    value["normalizer"] = None
    value["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return value


def cases(value):
    t = Tokenizer.from_str(json.dumps(value))
    result = []
    for text in STRINGS:
        t.encode_special_tokens = True
        plain = t.encode(text, add_special_tokens=False).ids
        t.encode_special_tokens = False
        special = t.encode(text, add_special_tokens=False).ids
        decoded = t.decode(plain, skip_special_tokens=False)
        result.append([plain, special if special != plain else None, decoded if decoded != text else None])
    return result


def sentencepiece_model():
    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for text in CORPUS for line in text.splitlines()), model_writer=model, vocab_size=400,
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        character_coverage=0.98, split_digits=True, allow_whitespace_only_pieces=True, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    result = []
    for text in STRINGS:
        ids, decoded = processor.encode(text), processor.decode(processor.encode(text))
        result.append([ids, None, decoded if decoded != text else None])
    return model.getvalue(), result


def added():
    """From the files that are stored already."""
    import sentencepiece
    out = {"tokens": [[text, normalized, special] for text, normalized, special in ADDED], "strings": ADDED_STRINGS}
    random.seed(1)
    for kind in ("gpt2", "llama3", "qwen2", "llama2", "metaspace", "sentencepiece"):
        drawn = [[random.choice(range(3, 259)) if random.random() < 0.6 else random.randrange(330) for _ in range(random.randint(1, 12))]
                 for _ in range(60)]
        if kind == "sentencepiece":
            processor = sentencepiece.SentencePieceProcessor(model_file=os.path.join(OUT, "sentencepiece.model"))
            drawn = [[i for i in ids if i > 2] for ids in drawn]
            out[kind] = {"decoded": [[ids, text, text] for ids in drawn for text in [processor.decode(ids)]]}
            continue
        with open(os.path.join(OUT, ("llama2" if kind == "metaspace" else kind) + ".json")) as f:
            value = json.load(f)
        value = metaspace(value) if kind == "metaspace" else value
        first = max(*value["model"]["vocab"].values(), *(t["id"] for t in value["added_tokens"])) + 1
        value["added_tokens"] += [dict(id=first + i, content=text, single_word=False, lstrip=False, rstrip=False,
                                       normalized=normalized, special=special)
                                  for i, (text, normalized, special) in enumerate(ADDED)]
        t = Tokenizer.from_str(json.dumps(value))
        encoded = []
        for text in ADDED_STRINGS:
            ids = []
            for t.encode_special_tokens in (True, False):
                ids.append(t.encode(text, add_special_tokens=False).ids)
            encoded.append(ids)
        drawn = [[first + i % len(ADDED) if i % 11 == 0 else i for i in ids] for ids in drawn]
        out[kind] = {"encoded": encoded, "decoded": [[ids, t.decode(ids, skip_special_tokens=False), t.decode(ids)] for ids in drawn]}
    write("added.json", out)


def nfc():
    """Texts that normalisation changes, drawn, and what unicodedata2 16.0.0 (of PyPI) makes of them."""
    import unicodedata2
    r = random.Random(1)
    points = [chr(c) for c in range(0x300, 0x110000) if not 0xd800 <= c < 0xe000]
    marks = [c for c in points if ord(c) < 0x20000 and unicodedata2.combining(c)]
    singles = [c for c in points if unicodedata2.normalize("NFC", c) != c or unicodedata2.combining(c)]
    bases = "aeiouAEIOU\u0144\u01ce\ud55c\uae00\u1100\u1161\u11a8\uac00\u11a8\u4e16\u03b0\u03ac" + "".join(r.sample(singles, 40))
    texts = ["".join(r.choice(bases) + "".join(r.choice(marks if r.random() < 0.3 else "\u0301\u0323\u0308\u0327\u0345") for _ in range(r.randrange(4)))
                     for _ in range(r.randint(1, 4))) for _ in range(300)]
    return [[t, unicodedata2.normalize("NFC", t)] for t in texts]


def write(name, value):
    path = os.path.join(OUT, name)
    with open(path, "w") as f:
        f.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{os.path.getsize(path):7} {os.path.relpath(path, ROOT)}")


def main():
    if sys.argv[1:] == ["--added"]:
        return added()
    os.makedirs(OUT, exist_ok=True)
    kinds = {"gpt2": byte_level("gpt2", 330), "smollm2": byte_level("smollm2", 330), "llama3": byte_level("llama3", 330), "qwen2": byte_level("qwen2", 330),
             "llama2": characters(420), "bytes": encoders.plain_tokenizer_json(bytes(range(256)))}
    kinds["metaspace"] = metaspace(kinds["llama2"])
    kinds["gpt2"]["model"]["merges"] = [" ".join(m) for m in kinds["gpt2"]["model"]["merges"]]  # the older notation
    write("strings.json", STRINGS)
    for name, value in kinds.items():
        if name != "metaspace":
            write(f"{name}.json", value)
        if name != "bytes":
            write(f"{name}_ids.json", cases(value))
    write("nfc.json", nfc())
    model, ids = sentencepiece_model()
    with open(os.path.join(OUT, "sentencepiece.model"), "wb") as f:
        f.write(model)
    write("sentencepiece_ids.json", ids)
    byte_tokenizer = Tokenizer.from_str(json.dumps(kinds["bytes"]))
    write("ill_formed.json", [[list(b), byte_tokenizer.decode(list(b))] for b in ILL_FORMED])
    added()


if __name__ == "__main__":
    main()
