"""data_prep/chat.py: what is a target, and that text and tokens are those of transformers' apply_chat_template (where that
package is installed; else its tests are skipped)."""

import gzip
import json
import os
import struct
import unittest

from test_data_prep import DataPrepTest, encoders, jinja2, tokenizers, transformers

import chat

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# As CHATML, and transformers' mark around what the model says.
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% else %}"
    "{{ message['content'] + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "H\u00e9, what is \u4e16\u754c?"},
    {"role": "assistant", "content": "The world.  "},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes \U0001f30d."},
]


class ChatTest(DataPrepTest):
    def prepare(self, rows, *argv):
        """rows: a list of them, or a file."""
        path = rows if isinstance(rows, str) else self.file("rows.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
        return super().prepare("chat", path, "--val-fraction", "0", "--overwrite", *argv)

    def shard(self):
        """Ids and, for each, whether it is a target."""
        data = self.written("chat_train_000000.bin")
        magic, _, count, marked = struct.unpack_from("<4i", data)
        self.assertEqual((magic, marked), (20240520, 1))
        ids = struct.unpack_from(f"<{count}H", data, 1024)
        bits = data[1024 + 2 * count :]
        self.assertEqual(len(bits), (count + 7) // 8)
        return ids, [bits[i // 8] >> (i % 8) & 1 for i in range(count)]

    def text_of(self, which):
        """Bytes of the tokens whose mark is in `which`; | stands for the end-of-text token."""
        ids, marks = self.shard()
        return b"".join(bytes([i]) if i < 256 else b"|" for i, m in zip(ids, marks) if m in which).decode()


@unittest.skipIf(jinja2 is None, "needs the package jinja2")
class Rows(ChatTest):
    def test_only_answers_and_what_ends_them_are_targets(self):
        rows = [
            {"messages": TALK},
            {"prompt": "2+2=", "completion": "4"},
            {"instruction": "Say hi", "input": "loud", "output": "HI"},
            {"instruction": "Say ho", "input": "", "output": "ho"},
        ]
        self.made(rows, "--template", "plain")
        self.assertEqual(self.text_of({1}), "The world.  |Yes \U0001f30d.|4|HI|ho|")
        whole = self.text_of({0, 1})
        begin = "|### system\nBe short.\n### user\nH\u00e9, what is \u4e16\u754c?\n### assistant\nThe"
        end = "|2+2=4||### user\nSay hi\n\nloud\n### assistant\nHI|\n|### user\nSay ho\n### assistant\nho|\n"
        self.assertTrue(whole.startswith(begin) and whole.endswith(end), whole)
        d = self.dataset()
        _, marks = self.shard()
        self.assertEqual((d["train"]["documents"], d["train"]["targets"]), (4, sum(marks)))
        self.assertEqual(json.loads(self.written("tokenizer_config.json"))["chat_template"], chat.PLAIN)

    def test_a_template_of_ones_own(self):
        path = self.file("t.jinja", CHATML)
        self.made([{"messages": TALK}], "--template", path)
        # These are no special tokens of the byte tokenizer, so the newline after them belongs to the answer.
        self.assertEqual(self.text_of({1}), "The world.  <|im_end|>\nYes \U0001f30d.<|im_end|>\n")

    def test_equal_rows_fall_to_the_same_side_and_the_sides_do_not_mix(self):
        rows = [{"prompt": str(i % 40), "completion": "x"} for i in range(400)]
        self.made(rows, "--val-fraction", "0.3", "--template", "plain")
        d = self.dataset()
        self.assertEqual((d["train"]["documents"] + d["val"]["documents"], d["val"]["documents"] % 10), (400, 0))
        self.assertTrue(20 <= d["val"]["documents"] <= 250)

    def test_arrays_and_sharegpt_are_read_as_rows_of_messages(self):
        talks = [[("user", f"question {i}"), ("assistant", f"answer {i}")] for i in range(40)]
        messages = [{"messages": [{"role": r, "content": c} for r, c in t]} for t in talks]
        names = {"user": "human", "assistant": "gpt"}
        sharegpt = [{"conversations": [{"from": names[r], "value": c} for r, c in t]} for t in talks]
        alpaca = [{"instruction": t[0][1], "output": t[1][1]} for t in talks]
        expected = None
        for name, data in (
            ("rows.jsonl", "\n".join(map(json.dumps, messages)).encode()),
            ("array.json", json.dumps(messages, indent=1).encode("utf-8-sig")),
            ("sharegpt.json", json.dumps(sharegpt).encode()),
            ("alpaca.json.gz", gzip.compress(json.dumps(alpaca).encode())),
        ):
            self.assertIn("validation is empty", self.made(self.file(name, data), "--template", "plain"))
            expected = expected or self.contents(".bin")
            self.assertEqual(self.contents(".bin"), expected, name)

    def test_refusals_name_the_row_and_the_remedy(self):
        forgetful = self.file("f.jinja", "{{ messages | length }}{{ messages[-1]['content'] }}")
        strict = self.file("s.jinja", "{{ raise_exception('no system role') }}")
        evil = self.file("e.jinja", "{{ messages.__class__.__mro__[1].__subclasses__() }}")
        good = {"prompt": "a", "completion": "b"}
        for row, template, words in (
            ({"messages": [{"role": "robot", "content": "x"}]}, "plain", "'messages' must be a list"),
            ({"messages": TALK[:2]}, "plain", "nothing to learn"),
            ({"text": "x"}, "plain", "its keys are text"),
            ({"prompt": "a<|endoftext|>", "completion": "b"}, "plain", "--allow-special"),
            ({"messages": TALK}, forgetful, "split the conversation"),
            ({"messages": TALK}, strict, "no system role"),
            ({"messages": TALK}, evil, "unsafe"),
        ):
            self.assertIn("line 2", self.refused(words, [good, row], "--template", template))
        self.refused("--template plain", [good])

    def test_no_sample_of_packed_rows_cuts_a_conversation(self):
        length = 64
        rows = [{"prompt": f"{i}:" + "q" * (7 * i % 23), "completion": "a" * (1 + 11 * i % 29)} for i in range(200)]
        self.made(rows, "--template", "plain", "--pack", str(length))
        ids, marks = self.shard()
        want = sorted(f"{r['prompt']}{r['completion']}" for r in rows)
        self.assertEqual((len(ids) - 1) % length, 0)
        found, answers = [], 0
        for k in range((len(ids) - 1) // length):  # what the trainer reads as sample k: T + 1 tokens
            inputs, targets = ids[k * length : (k + 1) * length], ids[k * length + 1 : (k + 1) * length + 1]
            self.assertEqual(inputs[0], 256)
            text = "".join("|" if i == 256 else chr(i) for i in inputs)
            found += [part for part in text.split("|") if part]
            answers += sum(marks[k * length + 1 : (k + 1) * length + 1])
            self.assertEqual(targets[-1], 256)
        self.assertEqual(sorted(found), want)
        # Each answer with its end token is predicted in the sample that holds its question.
        self.assertEqual(answers, sum(len(r["completion"]) + 1 for r in rows))
        d = self.dataset()
        self.assertEqual((d["packed"], d["train"]["documents"]), (length, 200))
        self.assertEqual(d["train"]["padding"] + sum(len(w) + 2 for w in want) + 1, d["train"]["tokens"])
        self.assertLess(d["train"]["padding"], 0.1 * len(ids))

    def test_a_conversation_that_is_longer_than_a_packed_row(self):
        rows = [{"prompt": "q", "completion": "ok"}, {"prompt": "q" * 20, "completion": "a" * 20}]
        printed = self.refused("line 2", rows, "--template", "plain", "--pack", "32")
        self.assertIn("--too-long skip or cut", printed)
        printed = self.made(rows, "--template", "plain", "--pack", "32", "--too-long", "skip")
        self.assertIn("1 conversations of more than 32 tokens were skipped", printed)
        self.assertEqual(self.text_of({1}), "ok|")
        self.made(rows, "--template", "plain", "--pack", "32", "--too-long", "cut")
        self.assertEqual(self.text_of({1}), "a" * 11 + "ok|")  # the full row is written first


@unittest.skipIf(transformers is None, "needs the package transformers")
class AgainstTransformers(ChatTest):
    def make_tokenizer(self, template):
        text = b"assistant user system The world. Yes. Sure?\n"
        tokenizer = encoders.train_bpe(tokenizers, "bpe:300", [text] * 3, "gpt2")
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|im_end|>"
        )
        fast.chat_template = template
        folder = os.path.join(self.dir, "model")
        fast.save_pretrained(folder)
        return fast, folder

    def test_tokens_and_targets_are_those_of_apply_chat_template(self):
        fast, folder = self.make_tokenizer(MARKED)
        self.made([{"messages": TALK}], "--tokenizer", folder, "--eot", "<|endoftext|>")
        want = fast.apply_chat_template(TALK, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        ids, marks = self.shard()
        self.assertEqual(list(ids), [0, *want["input_ids"]])
        self.assertEqual(marks, [0, *want["assistant_masks"]])
        self.assertGreater(sum(marks), 10)


if __name__ == "__main__":
    unittest.main()
