"""What is drawn, and what it is compared with. An area has draw(random) -> case, a dict that JSON holds; compare(case, tools)
-> differences and what was compared; smaller(case) -> simpler cases. A refusal of the program is an answer: `Refused`."""

import json
import os
import random
import subprocess
import sys

import reference
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..", "..")
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(ROOT, "dev", "run"), ROOT]
from study import write_shard  # noqa: E402

# Times the error that the other program makes in the same precision, against double; and what one rounding may cost.
FACTOR, FLOOR = 8.0, 1e-6


class Refused(Exception):
    pass


class Tools:
    """Programs, and a folder for the files of one case."""

    def __init__(self, program, logits, tokens, work):
        self.program, self.logits, self.tokens, self.work = map(os.path.abspath, (program, logits, tokens, work))

    def path(self, name):
        return os.path.join(self.work, name)

    def run(self, command, ranks=1, text=None):
        start = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", RINGZERO_RUNS="")
        done = subprocess.run(start + [str(x) for x in command], input=text, capture_output=True, text=True, env=environment,
                              timeout=300)
        if done.returncode == 2 or done.returncode and ("nearest:" in done.stderr or "not supported" in done.stderr):
            raise Refused(done.stderr.strip()[:600])
        if done.returncode:
            raise AssertionError(f"exit code {done.returncode}: {done.stderr[-1500:]}")
        return done.stdout


def flags_of(fields):
    return [f"--{name}={value}" for name, value in fields.items()]


def relative(have, want):
    """Root of the sum of squares of the difference, over that of what is wanted."""
    norm = float(want.double().norm())
    return float((have.double() - want.double()).norm()) / norm if norm > 0 else float(have.double().norm())


class Findings:
    def __init__(self):
        self.compared, self.wrong = 0, []

    def number(self, what, ours, theirs, floor=FLOOR):
        """ours, theirs: errors of both against double."""
        bound = FACTOR * max(theirs, floor)
        self.compared += 1
        if not ours <= bound:
            self.wrong.append(f"{what}: error {ours:.2e}, the reference's own {theirs:.2e}, bound {bound:.2e}")

    def same(self, what, ours, theirs):
        self.compared += 1
        if ours != theirs:
            self.wrong.append(f"{what}: {ours!r}, the reference has {theirs!r}"[:600])


# ---- models ---------------------------------------------------------------------------------------------------------


def draw_config(r, heads_divide=1):
    kv = r.choice([1, 1, 2, 3]) * heads_divide
    heads = kv * r.choice([1, 1, 2, 3])
    d = r.choice([2, 4, 6, 8, 16, 20])
    width = 8 * r.randint(1, 6)
    while width % heads:
        width += 8
    positions = r.choice([16, 32, 64])
    theta = r.choice([10.0, 500.0, 10000.0, 500000.0, 1e6])
    kind = r.choice(["default", "default", "linear", "dynamic", "llama3", "yarn", "yarn"])
    rope = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        rope["factor"] = r.choice([1.0, 1.5, 4.0, 40.0])
    if kind == "dynamic" and d == 2:
        d = 4
    if kind == "llama3":
        rope.update(low_freq_factor=r.choice([0.5, 1.0]), high_freq_factor=r.choice([2.0, 4.0, 8.0]))
    if kind in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = r.choice([1, 6, 8, 16, 32])
    if kind == "yarn":
        for key, values in (("attention_factor", [0.5, 1.0, 1.7]), ("beta_fast", [2.0, 64.0]), ("beta_slow", [0.25, 1.5]),
                            ("truncate", [True, False]), ("mscale", [0.7, 1.4]), ("mscale_all_dim", [0.7, 1.0])):
            if r.random() < 0.3:
                rope[key] = r.choice(values)
    kind = r.choice(["Llama", "Llama", "Qwen2", "Qwen3", "SmolLM3", "Olmo2"])
    more = {} if kind == "Llama" else dict(model=kind)
    if kind == "SmolLM3":
        more["no_rope_layer_interval"] = r.choice([1, 2, 3, 4])
    return dict(more, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv, head_dim=d, intermediate_size=r.choice([8, 24, 41, 64]),
                num_hidden_layers=r.randint(1, 3), vocab_size=r.choice([19, 64, 131, 300]), rms_norm_eps=r.choice([1e-6, 1e-5, 1e-2]),
                max_position_embeddings=positions, tie_word_embeddings=r.random() < 0.4, rope_parameters=rope)


def make_model(config, seed, folder, dtype="float32", shard="100MB"):
    """Saved by transformers; -> its weights."""
    import transformers
    torch.manual_seed(seed)
    fields = json.loads(json.dumps(config))
    kind = fields.pop("model", "Llama")
    if kind in ("SmolLM3", "Olmo2"):  # their own ids are beyond these vocabularies
        fields.update(bos_token_id=1, eos_token_id=2, pad_token_id=None)
    model = getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**fields))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.5) if name.endswith("bias") else p.uniform_(0.5, 1.5) if p.dim() == 1 else p.normal_(0, 0.5 if p.shape[0] == config["vocab_size"] else 1.2 * p.shape[1] ** -0.5)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=shard)
    return model, {n: p.detach() for n, p in model.named_parameters()}


class Models:
    """Logits, loss and gradients of a model that transformers made, against double and transformers' own in fp32."""

    name = "models"

    def draw(self, r):
        config = draw_config(r)
        length = r.randint(2, config["max_position_embeddings"])
        if config["rope_parameters"]["rope_type"] == "dynamic" and r.random() < 0.5:
            length = min(int(config["max_position_embeddings"] * config["rope_parameters"]["factor"]), 2 * length + 3)
        return dict(config=config, seed=r.randrange(10**6), length=length, batch=r.randint(1, 3),
                    dtype=r.choice(["float32", "bfloat16", "float16"]), shard=r.choice(["100MB", "10KB"]))

    def compare(self, case, tools):
        from safetensors.torch import load_file, save_file
        f, c, folder = Findings(), case["config"], tools.path("model")
        model, weights = make_model(c, case["seed"], folder, case["dtype"], case["shard"])
        shape = (case["batch"], case["length"])
        ids, targets = (torch.randint(c["vocab_size"], shape) for _ in range(2))
        double = {n: w.double() for n, w in weights.items()}
        exact, sound = reference.logits(double, c, ids), reference.soundly(reference.logits, double, c, ids)
        loss, grads = reference.loss_and_gradients(double, c, ids, targets)
        sound_loss, sound_grads = reference.soundly(reference.loss_and_gradients, double, c, ids, targets)
        model = model.float()
        theirs = model(input_ids=ids, use_cache=False).logits
        their_loss = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), targets.flatten())
        their_loss.backward()
        where, out = tools.path("in.safetensors"), tools.path("out.safetensors")
        if case["length"] <= c["max_position_embeddings"]:  # generation ends there
            save_file({"inputs": ids.int()}, where)
            tools.run([tools.logits, folder, where, out])
            f.number("logits", relative(load_file(out)["logits"], exact), relative(theirs.detach(), sound))
        save_file({"inputs": ids.int(), "targets": targets.int()}, where)
        tools.run([tools.logits, folder, where, out])
        found = load_file(out)
        f.number("loss", abs(float(found["loss"]) / float(loss) - 1), abs(float(their_loss.detach()) / float(sound_loss) - 1))
        named = dict(model.named_parameters())
        f.same("names of gradients", sorted(n for n in found if n != "loss"), sorted("grad." + n for n in grads))
        # A gradient that is all but zero (q and k of the only token) is compared with the largest one's size.
        size = max(float(g.norm()) for g in grads.values())
        for n, g in grads.items():
            scale = max(float(g.norm()), 1e-3 * size)
            f.number("gradient of " + n, float((found["grad." + n].double() - g).norm()) / scale,
                     float((named[n].grad.double() - sound_grads[n]).norm()) / scale)
        return f

    def smaller(self, case):
        yield from smaller_models(case)
        for key, value in (("batch", 1), ("length", 2), ("dtype", "float32"), ("shard", "100MB")):
            if case[key] != value:
                yield dict(case, **{key: value})
        if case["length"] > 3:
            yield dict(case, length=case["length"] // 2)


def smaller_models(case):
    c = case["config"]
    if c["num_hidden_layers"] > 1 and case.get("flags", {}).get("pp", 1) == 1:
        yield dict(case, config=dict(c, num_hidden_layers=1))
    if "model" in c:
        yield dict(case, config={k: v for k, v in c.items() if k not in ("model", "no_rope_layer_interval")})
    for key, value in (("tie_word_embeddings", False), ("intermediate_size", 8), ("vocab_size", 19), ("rms_norm_eps", 1e-5)):
        if c[key] != value:
            yield dict(case, config=dict(c, **{key: value}))
    if c["rope_parameters"]["rope_type"] != "default":
        yield dict(case, config=dict(c, rope_parameters=dict(rope_type="default", rope_theta=10000.0)))
    for key in list(c["rope_parameters"]):
        if key in ("attention_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim"):
            yield dict(case, config=dict(c, rope_parameters={k: v for k, v in c["rope_parameters"].items() if k != key}))
    if c["num_key_value_heads"] > case.get("flags", {}).get("tp", 1) or c["num_attention_heads"] > c["num_key_value_heads"]:
        n = case.get("flags", {}).get("tp", 1)
        yield dict(case, config=dict(c, num_key_value_heads=n, num_attention_heads=n, hidden_size=8 * n))


# ---- training -------------------------------------------------------------------------------------------------------


class Training:
    """Losses, norms, learning rates and weights of a run under any layout, against double and torch in fp32 (or bf16)."""

    name = "training"

    def draw(self, r):
        tp, pp, cp, dp = r.choice([(1, 1, 1, 1), (1, 1, 1, 2), (1, 1, 1, 3), (2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (2, 1, 1, 2), (2, 2, 1, 1),
                                   (1, 2, 1, 2), (1, 1, 2, 2), (1, 2, 2, 1), (2, 1, 2, 1), (1, 3, 1, 1)])
        config = draw_config(r, heads_divide=tp)
        config["rope_parameters"].pop("original_max_position_embeddings", None) if config["rope_parameters"]["rope_type"] == "yarn" else None
        length = 2 * cp * r.randint(2, 6)
        config["max_position_embeddings"] = max(config["max_position_embeddings"], length)
        flags = dict(tp=tp, pp=pp, cp=cp, batch=r.randint(1, 3), zero=r.randint(0, 3) if dp > 1 else 0, dtype=r.choice(["fp32"] * 4 + ["bf16"]),
                     recompute=r.choice(["none", "none", "mlp", "block"]))
        flags["grad-accum"] = r.choice([1, 2, 3])
        if pp > 1:
            schedule = r.choice(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"])
            flags.update({"pp-schedule": schedule, "grad-accum": 2 * pp})
            config["num_hidden_layers"] = 2 * pp
        if cp > 1:
            flags["cp-exchange"] = r.choice(["gather", "ring"])
        if tp > 1:
            flags["tp-overlap"] = r.choice(["off", "on"])
        if dp > 1:
            flags["collectives"] = r.choice(["ring", "direct", "library"])
        steps = r.randint(2, 5)
        optimizer = {"lr": r.choice([1e-3, 1e-2]), "lr-schedule": r.choice(["cosine", "linear", "constant", "wsd"]), "warmup": r.choice([0, 1, 2]),
                     "cooldown": r.choice([1, 2]), "min-lr": r.choice([0.0, 1e-4]), "beta1": r.choice([0.9, 0.5]), "beta2": r.choice([0.95, 0.999]),
                     "eps": r.choice([1e-8, 1e-5, 1e-3]), "weight-decay": r.choice([0.0, 0.1, 1.0]), "max-grad-norm": r.choice([0.0, 0.1, 1.0]), "steps": steps}
        optimizer = self.without_idle(optimizer)
        return dict(config=config, seed=r.randrange(10**6), length=length, dp=dp, flags=flags, optimizer=optimizer,
                    documents=r.choice(["none", "none", "bos", "eos"]), masked=r.random() < 0.3)

    @staticmethod
    def without_idle(optimizer):
        """Without the flags that this schedule refuses."""
        idle = {"constant": ["cooldown", "min-lr"], "wsd": []}.get(optimizer["lr-schedule"], ["cooldown"])
        return {k: v for k, v in optimizer.items() if k not in idle}

    def batches(self, case):
        """Shard and, by step, ids, targets and where documents begin."""
        c, length, flags = case["config"], case["length"], case["flags"]
        per_step, steps = flags["batch"] * flags["grad-accum"] * case["dp"], case["optimizer"]["steps"]
        r = random.Random(case["seed"])
        ids = [0 if case["documents"] != "none" and r.random() < 0.15 else r.randrange(1, c["vocab_size"]) for _ in range(per_step * steps * length + 1)]
        wanted = [r.random() < 0.6 for _ in ids] if case["masked"] else None
        out = []
        for step in range(steps):
            rows = [range(at * length, (at + 1) * length) for at in range(step * per_step, (step + 1) * per_step)]
            first = []
            for row in rows:
                begin, starts = 0, []
                for t, at in enumerate(row):
                    if case["documents"] == "bos" and ids[at] == 0 or case["documents"] == "eos" and t > 0 and ids[at - 1] == 0:
                        begin = t
                    starts.append(begin)
                first.append(starts)
            out.append((torch.tensor([[ids[at] for at in row] for row in rows]),
                        torch.tensor([[ids[at + 1] if wanted is None or wanted[at + 1] else -100 for at in row] for row in rows]),
                        None if case["documents"] == "none" else torch.tensor(first)))
        return ids, wanted, out

    def compare(self, case, tools):
        from safetensors.torch import load_file
        f, c, flags, o = Findings(), case["config"], case["flags"], case["optimizer"]
        _, weights = make_model(c, case["seed"], tools.path("model"))
        ids, wanted, batches = self.batches(case)
        write_shard(tools.path("data.bin"), ids, wanted)
        ranks, out = flags["tp"] * flags["pp"] * flags["cp"] * case["dp"], tools.path("run")
        documents = {} if case["documents"] == "none" else {"doc-mask": case["documents"], "doc-token": 0}
        tools.run([tools.program, *flags_of({
            "init-from": tools.path("model"), "train-data": tools.path("data.bin"), "val-data": tools.path("data.bin"), "data-order": "sequential",
            "seq-len": case["length"], "val-every": 0, "val-tokens": case["length"] * flags["batch"] * case["dp"], "save-every": 0, "device": "cpu", "threads": 1, "out": out,
            **flags, **o, **documents})], ranks)
        with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as lines:
            rows = [row for row in map(json.loads, lines) if "loss" in row]
        settings = dict(o, tp=flags["tp"], **{k: o.get(k, 0) for k in ("cooldown", "min-lr")})
        exact = reference.train(weights, c, batches, settings, torch.float64)
        low = flags["dtype"] == "bf16"
        sound = reference.soundly(reference.train, weights, c, batches, settings, torch.float64) if reference.FAULT else exact
        single = reference.soundly(reference.train, weights, c, batches, settings, torch.float32, torch.bfloat16 if low else None)
        f.same("steps", len(rows), o["steps"])
        for step, row in enumerate(rows):
            for key, i in (("loss", 1), ("grad_norm", 2)):
                theirs = max(abs(single[i][s] / sound[i][s] - 1) for s in range(step + 1))
                f.number(f"{key} of step {step + 1}", abs(row[key] / exact[i][step] - 1), theirs, 2e-3 if low else FLOOR)
            f.number(f"learning rate of step {step + 1}", abs(row["lr"] - exact[3][step]) / o["lr"], 0.0)
        if not low:
            final = load_file(os.path.join(out, "final", "model.safetensors"))
            # Adam's first steps are +-lr where a gradient is all but zero, whatever its noise: as a part of what has moved.
            moved = {n: float((exact[0][n] - start.double()).norm()) or 1.0 for n, start in weights.items()}
            theirs = max(float((single[0][n].double() - sound[0][n]).norm()) / moved[n] for n in weights)
            for n in weights:
                f.number("weights of " + n, float((final[n].double() - exact[0][n]).norm()) / moved[n], theirs, 5e-5)
        return f

    def smaller(self, case):
        flags, o = case["flags"], case["optimizer"]
        for key in ("tp", "cp", "pp"):
            if flags[key] > 1:
                gone = {"tp": ["tp-overlap"], "cp": ["cp-exchange"], "pp": ["pp-schedule"]}[key]
                yield dict(case, flags={k: (1 if k == key else v) for k, v in flags.items() if k not in gone})
        if case["dp"] > 1:
            yield dict(case, dp=1, flags={k: (0 if k == "zero" else v) for k, v in flags.items() if k != "collectives"})
        for key, value in (("batch", 1), ("zero", 0), ("recompute", "none"), ("dtype", "fp32"), ("tp-overlap", "off"), ("cp-exchange", "gather")):
            if key in flags and flags[key] != value:
                yield dict(case, flags=dict(flags, **{key: value}))
        if flags["grad-accum"] > 1 and flags["pp"] == 1:
            yield dict(case, flags=dict(flags, **{"grad-accum": 1}))
        for key, value in (("documents", "none"), ("masked", False)):
            if case[key] != value:
                yield dict(case, **{key: value})
        for key, value in (("steps", 1), ("weight-decay", 0.0), ("max-grad-norm", 0.0), ("lr-schedule", "constant"), ("warmup", 0), ("eps", 1e-3)):
            if o[key] != value and not (key == "steps" and o.get("warmup", 0) >= value):
                yield dict(case, optimizer=self.without_idle(dict(o, **{key: value})))
        if case["length"] > 4 * flags["cp"]:
            yield dict(case, length=4 * flags["cp"])
        yield from smaller_models(case)


# ---- tokenizers -----------------------------------------------------------------------------------------------------


class Tokenizers:
    """Ids and texts, against the package tokenizers."""

    name = "tokenizers"
    kinds = ("gpt2", "gpt2_split", "llama3", "qwen2", "smollm2", "llama2", "metaspace first", "metaspace always")
    pieces = ("<pad>", "<|a|>", "[x]", "x y", "a>", "<a", "<|a", "\u2581", "\u2581\u2581", " ", "  ", "\u00e9", "\u00e9\u00e8", "\n", "th", "the", "\u4e16\u754c", "<s", "\U0001f999", "A", "'s", "12", "e\u0301", "\u0120x")

    def draw(self, r):
        added = [[text, r.random() < 0.5, r.random() < 0.5] for text in r.sample(self.pieces, r.randint(0, 6))]
        return dict(kind=r.choice(self.kinds), size=r.randint(280, 420), added=added, template=r.random() < 0.5,
                    texts=[self.text(r, added) for _ in range(60)], ids=[[r.randrange(450) if r.random() < 0.5 else r.randrange(3, 259) for _ in range(r.randint(1, 14))] for _ in range(60)])

    def text(self, r, added):
        from make_tokenizer_golden import CORPUS, STRINGS
        parts = []
        for _ in range(r.randint(1, 7)):
            source = r.random()
            if source < 0.3:
                parts.append(r.choice(STRINGS))
            elif source < 0.6 and added:
                parts.append(r.choice(added)[0])
            elif source < 0.7:
                parts.append(r.choice(self.pieces))
            elif source < 0.8:
                parts.append(r.choice(["<s>", "</s>", "<unk>", "<|endoftext|>", "<|end"]))
            elif source < 0.9:
                at = r.randrange(300)
                parts.append(r.choice(CORPUS)[at % 50:at % 50 + r.randint(1, 12)])
            else:
                parts.append("".join(chr(r.choice([r.randrange(32, 127), r.randrange(0xa0, 0x3000), r.randrange(0x10000, 0x1ffff)])) for _ in range(r.randint(1, 4))))
        return "".join(parts)

    def make(self, case):
        from make_tokenizer_golden import byte_level, characters, metaspace
        kind = case["kind"]
        if kind in ("llama2", "metaspace first", "metaspace always"):
            value = characters(case["size"] + 60)
            if kind != "llama2":
                value = metaspace(value)
                value["pre_tokenizer"]["prepend_scheme"] = kind.split()[1]
        else:
            value = byte_level(kind if kind != "gpt2_split" else "gpt2", case["size"])
        if not case["template"]:
            value["post_processor"] = None
        known = {t["content"] for t in value["added_tokens"]}
        first = 1 + max([*value["model"]["vocab"].values(), *(t["id"] for t in value["added_tokens"])])
        for text, normalized, special in case["added"]:
            if text not in known:
                number = value["model"]["vocab"].get(text, first)
                first += number == first
                value["added_tokens"].append(dict(id=number, content=text, single_word=False, lstrip=False, rstrip=False, normalized=normalized, special=special))
        return value

    def compare(self, case, tools):
        from tokenizers import Tokenizer
        f, value = Findings(), self.make(case)
        with open(tools.path("tokenizer.json"), "w", encoding="utf-8") as out:
            json.dump(value, out)
        t = Tokenizer.from_str(json.dumps(value))
        ids = [[i for i in row if t.id_to_token(i) is not None] for row in case["ids"]]
        ours = json.loads(tools.run([tools.tokens, tools.path("tokenizer.json")], text=json.dumps({"texts": case["texts"], "ids": ids})))
        # Text never makes a special token of ours unless that is asked for; theirs may through the vocabulary (ignore_merges).
        special = {a["id"] for a in value["added_tokens"] if a["special"]}
        for i, text in enumerate(case["texts"]):
            asked = text.replace("t", "T") if reference.FAULT == "another string" and "th" in text else text
            t.encode_special_tokens = reference.FAULT != "special tokens are always read"
            plain = t.encode(asked, add_special_tokens=False).ids
            if special.isdisjoint(plain) or reference.FAULT:
                f.same(f"ids of {text!r}, special tokens as text", ours["plain"][i], plain)
            t.encode_special_tokens = False
            f.same(f"ids of {text!r}", ours["special"][i], t.encode(asked, add_special_tokens=False).ids)
            f.same(f"ids of the prompt {text!r}", ours["prompt"][i], t.encode(asked).ids)
        for i, row in enumerate(ids):
            f.same(f"text of {row}", ours["decoded"][i], t.decode(row, skip_special_tokens=False))
            f.same(f"text of {row} without special tokens", ours["shown"][i], t.decode(row))
        return f

    def smaller(self, case):
        for key in ("texts", "ids"):
            half = len(case[key]) // 2
            if half:
                yield dict(case, **{key: case[key][:half]})
                yield dict(case, **{key: case[key][half:]})
            elif case[key]:
                yield dict(case, **{key: []})
        for i in range(len(case["added"])):
            yield dict(case, added=case["added"][:i] + case["added"][i + 1:])
        if case["template"]:
            yield dict(case, template=False)
        if len(case["texts"]) == 1 and len(case["texts"][0]) > 1:
            text = case["texts"][0]
            for i in range(len(text)):
                yield dict(case, texts=[text[:i] + text[i + 1:]])


# ---- evaluation -----------------------------------------------------------------------------------------------------


class Tasks:
    """log p of continuations, and whether greedy decoding gives them, against lm-evaluation-harness."""

    name = "tasks"
    words = "the cat sat on mat and dog a rose is she said \u00e9t\u00e9 12 don't , . \u4e16\u754c".split()

    def draw(self, r):
        pairs = []
        for _ in range(12):
            text = r.choice([" ", "  ", ""]).join(r.choice(self.words) for _ in range(r.randint(2, 9)))
            cut = r.randint(0, len(text) - 1)
            pairs.append([text[:cut], text[cut:]])
        return dict(seed=r.randrange(10**6), kind=r.choice(["gpt2", "llama3", "llama2", "metaspace first"]), template=r.random() < 0.5, pairs=pairs, length=r.choice([16, 64]))

    def compare(self, case, tools):
        import logging

        import transformers
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM
        from tokenizers import Tokenizer
        logging.disable(logging.WARNING)
        f, folder = Findings(), tools.path("model")
        value = Tokenizers().make(dict(kind=case["kind"], size=300, added=[], template=case["template"]))
        t = Tokenizer.from_str(json.dumps(value))
        names = {n for n in ("<s>", "</s>", "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>") if t.token_to_id(n) is not None}
        begin = next((n for n in ("<s>", "<|begin_of_text|>", "<|endoftext|>") if n in names), None)
        end = next((n for n in ("</s>", "<|end_of_text|>", "<|endoftext|>") if n in names), None)
        config = dict(hidden_size=24, num_attention_heads=3, num_key_value_heads=1, head_dim=8, intermediate_size=40, num_hidden_layers=2, vocab_size=t.get_vocab_size(),
                      rms_norm_eps=1e-5, max_position_embeddings=case["length"], tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
        _, weights = make_model(config, case["seed"], folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=t, bos_token=begin, eos_token=end, clean_up_tokenization_spaces=False).save_pretrained(folder)
        lm = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=1)
        rows = []
        for context, continuation in case["pairs"]:
            # A context of white space alone has no token there; a continuation without one, or longer than the model
            # sees, is refused.
            if context and not context.strip():
                continue
            scored = lm._encode_pair(context, continuation)[1] if context else lm.tok_encode(continuation)
            if not 0 < len(scored) < case["length"]:
                continue
            rows.append((context, continuation))
        if not rows:
            return f
        with open(tools.path("drawn.jsonl"), "w", encoding="utf-8") as out:
            out.writelines(json.dumps({"context": a, "continuation": b}) + "\n" for a, b in rows)
        tools.run([tools.program, "eval", "--from", folder, "--data", tools.work, "--tasks", "drawn", "--device", "cpu", "--threads", "1", "--requests", tools.path("ours.jsonl")])
        with open(tools.path("ours.jsonl"), encoding="utf-8") as lines:
            ours = [json.loads(line) for line in lines]
        f.same("requests", len(ours), len(rows))
        double = {n: w.double() for n, w in weights.items()}
        for (context, continuation), mine in zip(rows, ours):
            a, b = lm._encode_pair(context, continuation) if context else ([lm.prefix_token_id], lm.tok_encode(continuation, add_special_tokens=False))
            if not context and b[:1] == a:
                continue  # the prefix, twice: lm-eval then scores it
            theirs, greedy = lm.loglikelihood([Instance("loglikelihood", {}, (context, continuation), 0)], disable_tqdm=True)[0]
            seen = (a + b)[-(lm.max_length + 1):]
            z = reference.logits(double, config, torch.tensor([seen[:-1]]))[0].log_softmax(-1)
            scored = len(b) - (1 if reference.FAULT == "a token is not scored" and len(b) > 1 else 0)
            exact = float(sum(z[len(seen) - 1 - i, seen[len(seen) - i]] for i in range(1, scored + 1)))
            f.number(f"log p of {continuation!r} after {context!r}", abs(mine["log_p"] / exact - 1), abs(theirs / exact - 1) if not reference.FAULT else 0.0)
            best = z[-len(b):].topk(2, -1).values
            if float((best[:, 0] - best[:, 1]).min()) > 1e-4:
                f.same(f"greediness of {continuation!r} after {context!r}", bool(mine["greedy"]), bool(greedy))
        return f

    def smaller(self, case):
        half = len(case["pairs"]) // 2
        if half:
            yield dict(case, pairs=case["pairs"][:half])
            yield dict(case, pairs=case["pairs"][half:])
        if case["template"]:
            yield dict(case, template=False)


# ---- schedules ------------------------------------------------------------------------------------------------------


class Schedules:
    """Orders of pipeline schedules, against torch.distributed.pipelining."""

    name = "schedules"

    def draw(self, r):
        kind = r.choice(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"])
        ranks = r.randint(2, 9)
        return dict(kind=kind, ranks=ranks, micro_batches=ranks * r.randint(2, 5) + (0 if kind in ("interleaved", "zb-h1") else r.randint(0, 3)), stages=r.choice([2, 3, 4]) if kind == "interleaved" else 0)

    def compare(self, case, tools):
        import make_schedule_golden as golden
        f, kind = Findings(), case["kind"]
        order = golden.order(golden.load(None), kind, case["ranks"], case["micro_batches"], case["stages"])
        flags = {"pp": case["ranks"], "micro-batches": case["micro_batches"], "pp-schedule": kind, "csv": "-"}
        if case["stages"]:
            flags["pp-stages-per-rank"] = case["stages"]
        ours = tools.run([tools.program, "schedule", *flags_of(flags)]).splitlines()
        theirs = golden.csv(order).splitlines()
        if kind == "1f1b":  # make_schedule_golden.py says why
            ours, theirs = ours[:-1], theirs[:-1]
        if reference.FAULT == "two tasks change places":
            theirs[0] = ",".join([*theirs[0].split(",")[1::-1], *theirs[0].split(",")[2:]])
        f.same("order", ours, theirs)
        return f

    def smaller(self, case):
        if case["ranks"] > 2:
            yield dict(case, ranks=2, micro_batches=4)


# ---- exports --------------------------------------------------------------------------------------------------------


def llama_cpp(path, prompt):
    """16 greedy tokens of a GGUF file, none of which ends the text."""
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_gpu_layers, params.cpuparams.n_threads = 64, 0, 1
    params.warmup, params.fit_params, params.verbosity = False, False, -1
    answer = xllamacpp.Server(params).handle_completions({"prompt": prompt, "n_predict": 16, "temperature": 0, "cache_prompt": False,
                                                          "return_tokens": True, "verbose": True, "ignore_eos": True})
    return (json.loads(answer) if isinstance(answer, (str, bytes)) else answer)["__verbose"]["tokens"]


class Exports:
    """Greedy tokens of llama.cpp on an exported GGUF, by the logits of double; and what `export` writes, opened by transformers."""

    name = "exports"

    def draw(self, r):
        config = draw_config(r)
        config.update(vocab_size=440, max_position_embeddings=64)
        if config["rope_parameters"]["rope_type"] == "dynamic":  # beyond 64 positions llama.cpp has no such thing
            config["rope_parameters"] = dict(rope_type="default", rope_theta=10000.0)
        if config.get("model") and config["rope_parameters"]["rope_type"] != "linear":  # it reads no others of these
            config["rope_parameters"] = dict(rope_type="default", rope_theta=config["rope_parameters"]["rope_theta"])
        if config.get("model") == "SmolLM3":
            config["no_rope_layer_interval"] = 4  # it knows no other
        config["head_dim"] = max(8, config["head_dim"])
        if config.get("model") == "Olmo2":  # nor another width of heads, nor a tied head
            config.update(tie_word_embeddings=False, head_dim=16, hidden_size=16 * config["num_attention_heads"])
        return dict(config=config, seed=r.randrange(10**6), prompt=[r.randrange(3, 440) for _ in range(r.randint(3, 30))])

    def compare(self, case, tools):
        import shutil

        import transformers
        f, c, folder = Findings(), case["config"], tools.path("model")
        _, weights = make_model(c, case["seed"], folder)
        shutil.copy(os.path.join(ROOT, "test", "golden", "tokenizer", "llama2.json"), os.path.join(folder, "tokenizer.json"))
        export = [tools.program, "export", "--from", folder, "--to"]
        tools.run([*export, tools.path("again")])
        again = transformers.AutoModelForCausalLM.from_pretrained(tools.path("again"), dtype=torch.float32)
        for n, p in again.named_parameters():
            f.same("weights of " + n, bool(torch.equal(p, weights[n])), True)
        tools.run([*export, tools.path("model.gguf"), "--format", "gguf", "--dtype", "fp32"])
        double = {n: w.double() for n, w in weights.items()}
        prompt = torch.tensor([case["prompt"]])
        exact = reference.logits(double, c, prompt)
        f.number("logits of the exported folder", relative(again(input_ids=prompt).logits.detach(), exact), 0.0, 1e-5)
        found = llama_cpp(tools.path("model.gguf"), case["prompt"])
        f.same("llama.cpp has continued", len(found) > 0, True)
        ids = list(case["prompt"])
        for token in found[:16]:
            z = reference.logits(double, c, torch.tensor([ids]))[0, -1]
            z[2] = -1e9  # </s>, since ignore_eos is asked for
            # llama.cpp keeps keys and values in fp16.
            f.number(f"llama.cpp's token {len(ids) - len(case['prompt'])}, below the best", float((z.max() - z[token]) / z[3:].std()), 0.0, 5e-3)
            ids.append(token)
        return f

    def smaller(self, case):
        yield from smaller_models(case)
        if len(case["prompt"]) > 3:
            yield dict(case, prompt=case["prompt"][:3])


AREAS = {a.name: a for a in (Models(), Training(), Tokenizers(), Tasks(), Schedules(), Exports())}
FAULTS = {  # by name, the area whose draws should show it
    "no attention factor": "models", "mask off by one": "training", "another epsilon": "models", "other groups of heads": "models", "the last target is lost": "training",
    "divided by tp": "training", "no bias correction": "training", "decay on norms": "training", "norms not in the norm": "training", "special tokens are always read": "tokenizers",
    "biases are lost": "models", "a norm after the rotation": "models", "all layers rotate": "models", "norms of the sums": "models",
    "a token is not scored": "tasks", "two tasks change places": "schedules",
}
