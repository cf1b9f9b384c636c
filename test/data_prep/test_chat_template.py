"""Templates of strangers: what they may do, and what renders them."""

import json
import os
import pathlib
import random
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "data_prep"))
import chat_template

DATA_PREP = pathlib.Path(chat_template.__file__).parent

try:
    import jinja2
except ImportError:
    jinja2 = None

# As models that this program opens have them: loops, filters, macros, dates, names of roles, white space.
TEMPLATES = {
    "llama-2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama-3": "{{- bos_token }}\n{%- set date_string = strftime_now('%d %b %Y') %}\n{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "namespaces": "{%- macro turn(m, last=false) -%}{{ m.role | upper }}: {{ m.content | tojson }}{{ ';' if last else ',' }}{%- endmacro -%}"
    "{%- set ns = namespace(users=0) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.users = ns.users + 1 -%}{%- endif -%}"
    "{%- if m.content is not string -%}{%- continue -%}{%- endif -%}{{ turn(m, loop.last) }}{%- endfor -%}{{ ns.users }}",
}


@unittest.skipIf(jinja2 is None, "needs jinja2")
class ChatTemplate(unittest.TestCase):
    def ask(self, source, messages=(), **limits):
        asked = {
            "source": source,
            "variables": {"bos_token": "<s>", "eos_token": "</s>"},
            "messages": list(messages),
            "limits": {"seconds": 5, "memory": 512 << 20, "output": 1 << 20, **limits},
        }
        script = (DATA_PREP / "chat_template.py").read_text()  # as the program runs it
        done = subprocess.run([sys.executable, "-I", "-c", script], input=json.dumps(asked).encode(), capture_output=True, check=False)  # fmt: skip
        return json.loads(done.stdout) if done.stdout else {"code": done.returncode, "said": done.stderr}

    def test_the_child_writes_what_jinja2_writes(self):
        """200 conversations; each in all templates in one child."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        chance = random.Random(7)
        words = ["Hi", " a\n", "", "é🦙", "'\"", "<s>[INST]", "{{ x }}", "\t", "\\n", "\u2028", "</s>", "{% if"]
        chats = []
        for _ in range(200):
            roles = ["system"] * (chance.random() < 0.5) + ["user", "assistant"] * chance.randrange(3) + ["user"]
            chats.append([{"role": r, "content": "".join(chance.choices(words, k=chance.randrange(6)))} for r in roles])
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])  # fmt: skip
        environment.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
        environment.globals["strftime_now"] = lambda _: "today"
        for name, source in TEMPLATES.items():
            theirs = environment.from_string(source)
            render = chat_template.renderer(source, lambda _: "today")
            for chat in chats:
                for prompt in (True, False):
                    given = dict(messages=chat, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>")
                    self.assertEqual(render(**given), theirs.render(**given), name)
            self.assertEqual(
                self.ask(source.replace("strftime_now('%d %b %Y')", "'today'"), chats[0])["text"],
                theirs.render(messages=chats[0], add_generation_prompt=True, bos_token="<s>", eos_token="</s>"),
            )

    def test_what_is_refused(self):
        for source, problem in (
            ("{{ raise_exception('no') }}", "refuses these messages: no"),
            ("{{ messages.__class__.__mro__ }}", "unsafe"),
            ("{% include '/etc/passwd' %}", "no loader"),
            ("{{ 'x' * 99999999 }}", "memory|too much"),
            ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
            ("{{ " + "(" * 9999 + " }}", "recursion|too many nested"),
            ("{{ 1 / 0 }}", "division"),
        ):
            self.assertRegex(self.ask(source).get("error", ""), problem)
        self.assertIn("code", self.ask("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", seconds=1))  # fmt: skip

    def test_what_is_given_up(self):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            chat_template.give_up(5, 1 << 30)
            did = []
            for name, act in (
                ("read a file", lambda: open("/etc/passwd")),
                ("wrote a file", lambda: open("/tmp/x", "w")),
                ("made a socket", socket.socket),
                ("started a program", lambda: subprocess.run(["true"], check=False)),
                ("took memory", lambda: bytearray(2 << 30)),
            ):
                try:
                    act()
                    did.append(name)
                except (OSError, MemoryError):
                    pass
            os.write(write, json.dumps(did).encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        self.assertEqual(json.loads(os.read(read, 4096)), [])
        os.close(read)

    def test_folders_that_others_write_are_not_loaded_from(self):
        with tempfile.TemporaryDirectory() as base:
            inner = pathlib.Path(base) / "a/b"
            inner.mkdir(parents=True)
            self.assertTrue(chat_template.written_by_us(inner))
            inner.parent.chmod(0o777)
            self.assertFalse(chat_template.written_by_us(inner))
            inner.parent.chmod(0o1777)  # as /tmp is: what is in it belongs to who made it
            self.assertTrue(chat_template.written_by_us(inner))
            inner.chmod(0o1777)
            self.assertFalse(chat_template.written_by_us(inner))
            inner.chmod(0o755 | stat.S_IWOTH)
            self.assertFalse(chat_template.written_by_us(inner))
            self.assertFalse(chat_template.written_by_us(inner / "absent"))


if __name__ == "__main__":
    unittest.main()
