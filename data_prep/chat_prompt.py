#!/usr/bin/env python3
"""A chat as the model was trained to see it: applies the chat template of a model's folder, and prints the text.

    chat_prompt.py FOLDER "What is a llama?"
    chat_prompt.py FOLDER --system "Be brief." --messages chat.json

--messages is a JSON list of {"role": ..., "content": ...}. Templates are Jinja programs: they are run as transformers
runs them, by the package jinja2 in its sandbox. Needs no other package. `train_llama generate --chat` does this by itself.
"""

import argparse
import datetime
import json
import os
import sys

from chat import Template
from common import PrepareError, read_json


def template_of(folder, name=None):
    path = os.path.join(folder, "chat_template.jinja")
    if name is None and os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            return f.read()
    found = None
    for file in ("chat_template.json", "tokenizer_config.json"):
        found = found or (read_json(os.path.join(folder, file)) or {}).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {t["name"]: t["template"] for t in found}
        if (name or "default") not in named:
            raise PrepareError(f"{folder}: chat templates are {', '.join(named)}; name one with --template")
        return named[name or "default"]
    if not found:
        raise PrepareError(f"{folder} has no chat template: it is a model for plain text; give it a prompt as it is")
    return found


def special_tokens(folder):
    config = read_json(os.path.join(folder, "tokenizer_config.json")) or {}
    tokens = {}
    for key, value in config.items():
        if key.endswith("_token") and value is not None and not isinstance(value, bool):
            tokens[key] = value["content"] if isinstance(value, dict) else value
    return tokens


def messages_of(args):
    messages = [{"role": "system", "content": args.system}] if args.system else []
    if args.messages:
        if args.messages == "-":
            try:
                found = json.load(sys.stdin)
            except ValueError as e:
                raise PrepareError(f"standard input: not JSON: {e}") from e
        else:
            found = read_json(args.messages)
        if found is None:
            raise PrepareError(f"{args.messages}: no such file")
        if not isinstance(found, list) or not all(
            isinstance(m, dict) and {"role", "content"} <= m.keys() for m in found
        ):
            raise PrepareError(f'{args.messages}: a JSON list of {{"role": ..., "content": ...}} is expected')
        messages += found
    if args.user is not None:
        messages.append({"role": "user", "content": args.user})
    if not messages:
        raise PrepareError("nothing to say: give a text or --messages FILE")
    return messages


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="chat_prompt.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="a model's folder")
    parser.add_argument("user", nargs="?", help="what the user says, last")
    parser.add_argument("--system", help="a system message, first")
    parser.add_argument("--messages", metavar="FILE", help="JSON list of messages; -: standard input")
    parser.add_argument("--template", metavar="NAME", help="of several chat templates")
    args = parser.parse_args(argv)
    try:
        source, messages = template_of(args.folder, args.template), messages_of(args)
        template = Template(source, special_tokens(args.folder), "the chat template", datetime.datetime.now().strftime)
        text = template.render(messages, args.folder, prompt=True)
    except PrepareError as e:
        print(f"chat_prompt.py: {e}", file=sys.stderr)
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
