"""Chat templates are Jinja programs of others: renders one as transformers does, in jinja2's sandbox with its blocks trimmed.

`train_llama generate --chat` has this file in it and runs it in a child: JSON {"source", "variables", "messages", "limits"} on
standard input, JSON {"text"} or {"error"} on standard output. The child loads jinja2 from folders that nobody else can
write, and then gives up files, network, processes, memory and time, before it looks at the template. chat.py and
chat_prompt.py import it.
"""

import codecs
import datetime
import json
import os
import re
import resource
import site
import sys


class Refused(Exception):
    """What a template, jinja2 or the sandbox says."""


def renderer(source, now=None):
    """A function of the variables. now: what strftime_now() calls; without it a template that asks for the date is refused."""
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as e:
        raise Refused("chat templates need the package jinja2; run: python3 -m pip install jinja2") from e

    def raise_exception(message):
        raise TemplateError(message)

    def no_date(_):
        raise TemplateError("the template asks for today's date; a data set can't depend on it")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    environment.globals.update(raise_exception=raise_exception, strftime_now=now or no_date)
    source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source)  # transformers' marks
    try:
        template = environment.from_string(source)
    except (TemplateError, RecursionError, OverflowError) as e:
        raise Refused(f"not a chat template: {e}") from e

    def render(**variables):
        try:
            return template.render(**variables)
        except (
            TemplateError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            AttributeError,
        ) as e:
            raise Refused(f"refuses these messages: {e}") from e

    return render


def written_by_us(path):
    """Whether only root and this user can change what is in the folder, and which folder the path names."""
    path, leaf = os.path.realpath(path), True
    while True:
        try:
            found = os.stat(path)
        except OSError:
            return False
        trusted = found.st_uid in (0, os.getuid())
        by_group = found.st_mode & 0o020 and found.st_gid not in (0, 50, found.st_uid)  # 50: Debian's staff; one's own
        sticky = found.st_mode & 0o1000 and not leaf
        if not trusted or ((by_group or found.st_mode & 0o002) and not sticky):
            return False
        if path == os.path.dirname(path):
            return True
        path, leaf = os.path.dirname(path), False


def give_up(seconds, memory):
    """Whatever runs from here on opens no file and no socket, writes no file, starts no process."""
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


WARM = """{% macro f(x) %}{{ x }}{% endmacro %}{% set ns = namespace(a=1) %}{% for x in [1, 2] %}{{ f(x) }}{% endfor %}
{{ 'a\\n\u00e9' | upper | trim | tojson(indent=1) }}{{ {'a': [1.5, none]} | tojson }}{{ "%s" | format(1) }}{{ x | string | length }}"""


def load_all():
    """What Python and jinja2 would otherwise load where no file can be opened any more, or only where something fails."""
    datetime.datetime.now().strftime("%c %x %X %Z %B")
    for codec in ("unicode_escape", "ascii", "latin-1", "idna"):
        codecs.lookup(codec)
    renderer(WARM)(x=1)
    for source in (
        "{% for %}",
        "{{ raise_exception('x') }}",
        "{{ x.y.z }}",
        "{{ 1 / 0 }}",
        "{{ x.__class__.__mro__ }}",
    ):
        try:
            renderer(source)(x=1)
        except Refused:
            pass


def answer(asked):
    try:
        load_all()
        give_up(asked["limits"]["seconds"], asked["limits"]["memory"])
        render = renderer(asked["source"], datetime.datetime.now().strftime)
        text = render(messages=asked["messages"], add_generation_prompt=True, **asked["variables"])
        if len(text) > asked["limits"]["output"]:
            return {"error": "refuses these messages: it writes too much"}
        return {"text": text}
    except Refused as e:
        return {"error": str(e)[:2000]}
    except OSError as e:
        return {"error": f"needs a file or a socket, which it can't have: {e}"[:2000]}
    except MemoryError:
        return {"error": "refuses these messages: it needs too much memory"}


def main():
    sys.path[:] = [p for p in [*sys.path, site.getusersitepackages()] if p and written_by_us(p)]
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
