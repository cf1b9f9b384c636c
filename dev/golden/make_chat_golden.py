#!/usr/bin/env python3
"""Writes test/golden/chats.json: what jinja2 makes of 200 random chats by each template that llama/train/chat_formats.cpp knows.

    python3 dev/golden/make_chat_golden.py FOLDER      of NAME.jinja, the models' own templates, which are not here: some are gated

A chat is a text of words: S, U or A (who speaks), each followed by letters, the pieces of what is said. Of each answer four hexadecimal
digits of a hash are kept, "----" where the template refuses. Templates are rendered by transformers, and
by data_prep/chat_template.py, which must agree. The instructions in SmolLM3's template are replaced by others.
"""

import argparse
import datetime
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "data_prep"))
import chat_template  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402
from whole_run import MASK, mix  # noqa: E402

PIECES = ["hello", " ", "\n", "\n\n", "Two words.", "é 世界", "\u00a0\u3000", "\x1c\t", "<think>", "</think>", "\nhm\n", "/no_think", "/think", "/system_override",
          "<tool_response>", "</tool_response>", "<|im_end|>", "{{ x }}", "{% y %}", "'\"\\", "😀", "[INST]", "<<SYS>>", "\u200b"]  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ROLES = {"S": "system", "U": "user", "A": "assistant"}
DATE = datetime.datetime(2026, 2, 3)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def text_hash(data):  # llama/base/sum_hash.h
    return (sum(mix((w + (i + 1) * 0x9E3779B97F4A7C15) & MASK) for i, w in enumerate(data)) + 0x9E3779B97F4A7C15 * len(data)) & MASK


def draw(r):
    """Most are as the program asks them: a system message or none, questions and answers, a question."""
    turns = ["U"] + ["A", "U"] * r.randrange(4)
    if r.random() < 0.5:
        turns.insert(0, "S")
    if r.random() < 0.2:
        turns = r.choices("SUA", k=r.randrange(1, 6))
    return " ".join(turn + "".join(r.choices(LETTERS[: len(PIECES)], k=r.randrange(6))) for turn in turns)


def messages(chat):
    return [{"role": ROLES[turn[0]], "content": "".join(PIECES[LETTERS.index(c)] for c in turn[1:])} for turn in chat.split(" ")]


def both(source, chat):
    given = dict(TOKENS, messages=messages(chat), add_generation_prompt=True)
    try:
        ours = chat_template.renderer(source, DATE.strftime)(**given)
    except chat_template.Refused:
        ours = None
    compiled = chat_template_utils._compile_jinja_template(source)
    compiled.globals["strftime_now"] = DATE.strftime
    try:
        theirs = compiled.render(**given)
    except Exception:  # whatever the template raises
        theirs = None
    assert ours == theirs, (chat, ours, theirs)
    return theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    r = random.Random(41)
    chats = ["Ua Aiaiejb", "Ua Aicajajb", "Ua Uoep Aiajb", "Soa Ua Aa Aiajj", "Slma Ua", "Sna Uk Aca"]
    chats += [draw(r) for _ in range(200 - len(chats))]
    out = {"pieces": PIECES, "date": DATE.strftime("%Y-%m-%d"), "instructions": "Think first.", **TOKENS, "chats": chats, "templates": {}}
    for path in sorted(folder.glob("*.jinja")):
        with open(path, newline="", encoding="utf-8") as file:
            source = file.read()
        known = text_hash(source.removesuffix("\n").encode())
        source = re.sub(r'("/think" -%}\n    {{- ").*?(\\n\\n")', rf"\g<1>{out['instructions']}\2", source)
        answers = [both(source, chat) for chat in chats]
        hashes = [f"{text_hash(a.encode()):016x}"[:4] if a is not None else "----" for a in answers]
        out["templates"][path.stem] = {"hash": f"{known:016x}", "answers": " ".join(hashes)}
        print(f"{path.stem}: 0x{known:016x}, {hashes.count('----')} of {len(chats)} refused")
    (ROOT / "test/golden/chats.json").write_text(json.dumps(out, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
