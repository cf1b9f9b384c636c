"""From text to ids, and the tokenizer.json that goes beside the shards.

`tokenizers` is imported only for what needs it; bytes need nothing but the standard library.
"""

import json
import os
import sys
from array import array

from common import PrepareError, Unavailable, write_atomically

EOT = "<|endoftext|>"
# Names of the token that begins or separates documents in different tokenizers, in order of preference.
EOT_NAMES = ("<|begin_of_text|>", EOT, "<s>", "<|im_start|>", "</s>")

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_characters():
    """GPT-2's mapping of the 256 bytes to visible characters, in which every byte-level tokenizer.json is written."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {**{b: chr(b) for b in visible}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


def begin_template(token, token_id):
    """A text that is encoded for the model begins as each document of the data does."""
    begin, a, b = {"SpecialToken": {"id": token, "type_id": 0}}, ("A", 0), ("B", 1)
    sequence = [{"Sequence": {"id": name, "type_id": kind}} for name, kind in (a, b)]
    return {
        "type": "TemplateProcessing",
        "single": [begin, sequence[0]],
        "pair": [begin, *sequence],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def plain_tokenizer_json(symbols):
    """A byte-level tokenizer without merges: symbol i of the list is token i, then the end-of-text token."""
    characters = byte_characters()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": len(symbols),
                "content": EOT,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": begin_template(EOT, len(symbols)),
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
            **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
            "vocab": {characters[b]: i for i, b in enumerate(symbols)},
            "merges": [],
        },
    }


class PlainEncoder:
    """Token i is the byte symbols[i]. For bytes, that is token i = byte i."""

    def __init__(self, kind="bytes", symbols=bytes(range(256))):
        self.kind, self.symbols = kind, symbols
        self.eot, self.eos, self.eot_text = len(symbols), len(symbols), EOT
        self.vocab_size = len(symbols) + 1

    def encode_batch(self, texts, typecode):
        assert self.kind == "bytes"
        ids = []
        for data in texts:
            wide = bytearray(len(data) * array(typecode).itemsize)
            wide[:: array(typecode).itemsize] = data  # little-endian: the low byte of each id
            out = array(typecode)
            out.frombytes(wide)
            if sys.byteorder == "big":
                out.byteswap()
            ids.append(out)
        return ids

    def save(self, folder):
        text = json.dumps(plain_tokenizer_json(self.symbols), indent=1, ensure_ascii=False)
        write_atomically(os.path.join(folder, "tokenizer.json"), text.encode())
        write_tokenizer_config(folder, EOT, EOT)


class HuggingFaceEncoder:
    """Any tokenizer that the `tokenizers` package can load."""

    def __init__(self, kind, tokenizer, eot_text=None):
        self.kind, self._tokenizer = kind, tokenizer
        names = [eot_text] if eot_text else EOT_NAMES
        self.eot_text = next((n for n in names if tokenizer.token_to_id(n) is not None), None)
        if self.eot_text is None:
            raise PrepareError(
                f"the tokenizer {kind} has no token {' or '.join(names)} to begin documents with; name "
                "one of its special tokens with --eot"
            )
        self.eot = tokenizer.token_to_id(self.eot_text)
        ends = ("<|end_of_text|>", "</s>", self.eot_text)
        self.eos_text = next(e for e in ends if tokenizer.token_to_id(e) is not None)
        self.eos = tokenizer.token_to_id(self.eos_text)
        self.vocab_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # text cannot produce special tokens
        if not tokenizer.encode_special_tokens:
            raise PrepareError(
                "this version of `tokenizers` lets text produce special tokens; run: "
                "python3 -m pip install -U tokenizers"
            )

    def encode_batch(self, texts, typecode):
        decoded = [t.decode("utf-8", "replace") for t in texts]
        return [array(typecode, e.ids) for e in self._tokenizer.encode_batch(decoded, add_special_tokens=False)]

    def save(self, folder):
        write_atomically(os.path.join(folder, "tokenizer.json"), self._tokenizer.to_str(pretty=False).encode())
        write_tokenizer_config(folder, self.eot_text, self.eos_text)


def write_tokenizer_config(folder, bos, eos):
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**30,
    }
    write_atomically(os.path.join(folder, "tokenizer_config.json"), (json.dumps(config, indent=1) + "\n").encode())


def _import_tokenizers(spec):
    try:
        import tokenizers

        return tokenizers
    except ImportError as e:
        raise Unavailable(
            f"--tokenizer {spec} needs the Python package `tokenizers`; run: python3 -m pip install "
            "tokenizers (or use --tokenizer bytes, which needs nothing)"
        ) from e


HUB_NAMES = {
    "gpt2": "openai-community/gpt2",
    "llama2": "meta-llama/Llama-2-7b-hf",
    "llama3": "meta-llama/Meta-Llama-3-8B",
    "llama3.1": "meta-llama/Llama-3.1-8B",
    "smollm2": "HuggingFaceTB/SmolLM2-135M",
    "tinyllama": "TinyLlama/TinyLlama_v1.1",
}


def kind_of(spec):
    """The tokenizer's name in dataset.json: of a path the last part."""
    return spec if spec.startswith(("bpe:", "hf:")) else os.path.basename(os.path.abspath(spec))


def make_encoder(spec, eot_text=None, texts=None, split="llama3"):
    """spec: bytes | bpe:SIZE | one of HUB_NAMES | hf:REPO | a tokenizer.json or its folder.
    `texts` yields bytes to train bpe:SIZE on."""
    if spec == "bytes":
        return PlainEncoder()
    path = os.path.join(spec, "tokenizer.json") if os.path.isdir(spec) else spec
    repo = spec[3:] if spec.startswith("hf:") else HUB_NAMES.get(spec)
    if repo is None and not spec.startswith("bpe:") and not os.path.exists(path):
        raise PrepareError(
            f"--tokenizer {spec}: no such file, and not one of bytes, bpe:SIZE, {', '.join(HUB_NAMES)}, hf:REPO"
        )
    tokenizers = _import_tokenizers(spec)
    if spec.startswith("bpe:"):
        return HuggingFaceEncoder(spec, train_bpe(tokenizers, spec, texts, split), EOT)
    if os.path.exists(path):
        with open(path, "rb") as f:
            if f.read(23) == b"version https://git-lfs":
                raise PrepareError(f"{path}: is a Git LFS pointer, not the file itself; run: git lfs pull")
        try:
            return HuggingFaceEncoder(kind_of(spec), tokenizers.Tokenizer.from_file(path), eot_text)
        except Exception as e:
            if isinstance(e, PrepareError):
                raise
            raise PrepareError(
                f"{path}: not a tokenizer that `tokenizers` {tokenizers.__version__} can read: {e}"
            ) from e
    try:
        return HuggingFaceEncoder(spec, tokenizers.Tokenizer.from_pretrained(repo), eot_text)
    except PrepareError:
        raise
    except Exception as e:
        raise Unavailable(
            f"cannot get the tokenizer of {repo} from the Hugging Face hub ({str(e).splitlines()[0]}); "
            "check the network (and `hf auth login` for gated repositories), or pass the path of its "
            "tokenizer.json"
        ) from e


def check_tokenizer(spec, eot_text=None):
    """Raises Unavailable where make_encoder would."""
    if spec.startswith("bpe:"):
        _import_tokenizers(spec)
    else:
        make_encoder(spec, eot_text)


def train_bpe(tokenizers, spec, texts, split="llama3"):
    """Byte-level BPE with GPT-2's or Llama-3's way of splitting text, deterministic for the same texts."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    if not spec[4:].isdigit() or not 257 <= int(spec[4:]) <= 1 << 24:
        raise PrepareError(f"--tokenizer {spec}: the size must be a number from 257 (256 bytes and {EOT})")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split != "llama3")
    tokenizer = Tokenizer(models.BPE(ignore_merges=split == "llama3"))
    tokenizer.pre_tokenizer = {
        "gpt2": lambda: byte_level,
        "smollm2": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
        "llama3": lambda: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"), byte_level]),
    }[split]()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=int(spec[4:]),
        special_tokens=[EOT],
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator((t.decode("utf-8", "replace") for t in texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A", pair=f"{EOT} $A $B:1", special_tokens=[(EOT, tokenizer.token_to_id(EOT))]
    )
    return tokenizer


def load_saved_encoder(folder, spec, eot_text):
    """The encoder of an interrupted run, from the tokenizer.json that it wrote."""
    if spec == "bytes":
        return PlainEncoder()
    tokenizer = _import_tokenizers(spec).Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    return HuggingFaceEncoder(kind_of(spec), tokenizer, eot_text)
