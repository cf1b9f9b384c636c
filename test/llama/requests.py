#!/usr/bin/env python3
"""Draws command lines and --config files and compares what the program reads with what Python reads: argv by the plain
rule below, files by tomllib. A value is equal or the request is refused; plain requests are never refused.

    test/llama/requests.py build/cpu/unit_tests --cases 20000 --seed 1
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import tomllib

TEXTS = [
    "a",
    "runs/x y",
    "",
    "true",
    "-1",
    "--lr",
    "x=y",
    "a,b",
    "é ☃",
    "#",
    "a#b",
    "'",
    '"',
    "\\",
    "[1]",
    "1e3",
    "auto",
    "\t",
    "{}",
]


SWITCH = {"on": "on", "true": "on", "yes": "on", "off": "off", "false": "off", "no": "off"}


def plain_value(rng, row):
    """A value that the flag takes, as text; None if its kind is not simple."""
    place = row["placeholder"]
    if row["switch"]:
        return rng.choice(["on", "off", "true", "false"])
    if place == "N":
        return str(rng.randint(0, 12))
    if place == "X":
        return rng.choice(["0.5", "1e-3", "0", ".25", "2E-1"])
    if row["text"]:
        return rng.choice(TEXTS)
    if "|" in place and not any(c in place for c in "[:"):
        return rng.choice([p for p in place.split("|") if p[:1].islower() or p.isdigit()] or [None])
    return None


def read_argv(words, rows):
    """name -> value of a command line; None if it can't be read."""
    found, at = {}, 0
    while at < len(words):
        if words[at] == "--" and at + 1 == len(words):  # nothing comes after the end of the flags
            break
        name, equals, value = words[at].partition("=")
        at += 1
        row = rows.get(name[2:]) if name.startswith("--") else None
        if row is None:
            return None
        if row["switch"]:
            if not equals:
                bare = at == len(words) or words[at] not in SWITCH
                value = "on" if bare else words[at]
                at += not bare
            if value not in SWITCH:
                return None
            value = SWITCH[value]
        elif not equals:
            if at == len(words):
                return None
            value = words[at]
            at += 1
        found[row["name"]] = value
    return found


def read_toml(data, rows):
    try:
        tree = tomllib.loads(data.decode())
    except Exception:  # pylint: disable=broad-except
        return None
    found = {}
    for key, value in tree.items():
        pairs = list(value.items()) if isinstance(value, dict) else [(key, value)]
        for name, one in pairs:
            if name not in rows or isinstance(one, dict) or rows[name]["name"] in found:
                return None
            if isinstance(one, list) and (
                not rows[name]["list"] or not one or any(isinstance(x, (list, dict)) for x in one)
            ):
                return None
            found[rows[name]["name"]] = one
    return found


def same(text, value):
    """Whether the program's text says the value that Python read."""
    try:
        if isinstance(value, bool) or text in ("on", "off"):
            return text == ("on" if value in (True, "on", "true") else "off")
        if isinstance(value, int):
            return int(text) == value
        if isinstance(value, float):
            return float(text) == value or (math.isnan(value) and math.isnan(float(text)))
    except ValueError:
        return False
    if isinstance(value, list):
        parts = text.split(",")
        return len(parts) == len(value) and all(same(a, b) for a, b in zip(parts, value))
    if isinstance(value, str) and text != value:
        try:
            return float(text) == float(value)  # the command line's own numbers
        except ValueError:
            return False
    return isinstance(value, str)


def draw_argv(rng, names, rows):
    words, plain = [], rng.random() < 0.6
    for _ in range(rng.randint(1, 5)):
        name = rng.choice(names)
        value = plain_value(rng, rows[name])
        if value is None:
            value, plain = rng.choice(TEXTS), False
        if not plain and rng.random() < 0.2:
            value = rng.choice(TEXTS)
        if rows[name]["switch"]:
            words += rng.choice([["--" + name], ["--" + name + "=" + value], ["--" + name, value]])
            continue
        parted = rng.random() < 0.5
        plain = plain and not (parted and value.startswith("--"))
        words += ["--" + name, value] if parted else ["--" + name + "=" + value]
    if not plain and rng.random() < 0.3:
        words.insert(rng.randint(0, len(words)), rng.choice(["x", "--", "--nosuch", "-1", "--lr", "--out", "--wandb="]))
    return words, plain


def toml_text(rng, text):
    if "'" not in text and not any(ord(c) < 32 and c != "\t" for c in text) and rng.random() < 0.3:
        return "'" + text + "'"
    return json.dumps(text, ensure_ascii=rng.random() < 0.5)


def draw_toml(rng, names, rows):
    lines, plain = [], rng.random() < 0.6
    for name in rng.sample(names, rng.randint(1, 6)):
        row = rows[name]
        plain = plain and not row["command"]  # a file needs leave for those
        value = plain_value(rng, row)
        if value is None:
            value, plain = "a", False
        if row["switch"]:
            text = value if value in ("true", "false") else json.dumps(value)
        elif row["list"] and rng.random() < 0.5:
            text = "[" + rng.choice(["", "\n ", "# x\n"]) + '"a", ' + rng.choice(["'b'", '"b",', "'c d'"]) + "]"
            plain = plain and row["text"]
        elif row["placeholder"] in ("N", "X") and not value.startswith("."):
            text = value
        else:
            text = toml_text(rng, value)
        if not plain and rng.random() < 0.3:
            text = rng.choice(
                [
                    "[]",
                    "[[1]]",
                    "{a = 1}",
                    "1979-05-27",
                    "inf",
                    "-nan",
                    "+1",
                    "1_000",
                    "0x1F",
                    "007",
                    "1.",
                    "true",
                    '"\\u00e9"',
                    '"\\U0001F600"',
                    '"\\uD800"',
                    '"""a"""',
                    "9" * 30,
                    "1e999",
                    "bare",
                    "",
                    "1__0",
                ]
            )
        key = rng.choice([name, name, '"' + name + '"', " " + name])
        lines.append(key + rng.choice([" = ", "=", "\t="]) + text + rng.choice(["", " # note", " "]))
        if rng.random() < 0.2:
            lines.append(rng.choice(["", "# [x]", "  "]))
    if rng.random() < 0.4:
        lines.insert(0, rng.choice(["[model]", "[data] # d", "[ training ]"]))
    data = rng.choice(["\n", "\r\n"]).join(lines).encode() + b"\n"
    if not plain:
        for _ in range(rng.choice([0, 0, 1, 1, 2, 4])):
            at = rng.randrange(len(data))
            piece = rng.choice(
                [
                    b"",
                    b'"',
                    b"'",
                    b"#",
                    b"[",
                    b"]",
                    b"=",
                    b",",
                    b".",
                    b"\n",
                    b"\\",
                    b"\x00",
                    b"\xff",
                    b"_",
                    b"+",
                    b"\r",
                    b"{",
                ]
            )
            data = data[:at] + piece + data[at + rng.choice([0, 1]) :]
    return data, plain


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("unit_tests")
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)

    def ask(folder, requests):
        path = os.path.join(folder, "requests.jsonl")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(r) + "\n" for r in requests)
        env = dict(os.environ, RINGZERO_REQUESTS=path)
        run = subprocess.run(
            [args.unit_tests, "--gtest_also_run_disabled_tests", "--gtest_filter=Requests.DISABLED_AreAnswered"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            sys.exit(f"the program's reader ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        with open(path + ".answers", encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    wrong = accepted = 0
    with tempfile.TemporaryDirectory() as folder:
        table = ask(folder, [])[0]
        rows = {row["name"]: row for row in table}
        names = sorted(rows)
        cases = []
        for n in range(args.cases):
            if n % 2:
                words, plain = draw_argv(rng, names, rows)
                cases.append((words, read_argv(words, rows), plain, words))
            else:
                data, plain = draw_toml(rng, names, rows)
                path = os.path.join(folder, f"{n}.toml")
                with open(path, "wb") as f:
                    f.write(data)
                cases.append((["--config", path], read_toml(data, rows), plain, data))
        for (_, want, plain, shown), got in zip(cases, ask(folder, [c[0] for c in cases])[1:]):
            bad = ""
            if got["code"] == 0:
                accepted += 1
                if want is None:
                    bad = "accepted, and Python does not read it"
                elif set(got["given"]) != set(want):
                    bad = f"other flags: {sorted(set(got['given']) ^ set(want))}"
                else:
                    bad = "; ".join(
                        f"{k}: {got['given'][k]!r} for {v!r}" for k, v in want.items() if not same(got["given"][k], v)
                    )
            elif plain and "nearest valid value" not in got["said"]:  # of a number out of range
                bad = "refused: " + got["said"]
            if bad:
                wrong += 1
                if wrong <= 10:
                    print(f"WRONG {shown!r}\n  {bad}")
    print(
        f"seed {args.seed}: {args.cases} requests, {accepted} accepted with equal values, {args.cases - accepted} refused"
    )
    print(f"{args.cases - wrong} passed, {wrong} failed, 0 skipped")
    sys.exit(wrong > 0)


main()
