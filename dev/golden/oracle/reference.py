"""A LLaMA and its training in plain torch, in any precision: float64 is what both programs are measured against.

Faults are planted here, on the side of the reference, by name: `plant("decay on norms")`. What finds a difference then
would find the same fault in the program.
"""

import math

import torch

FAULT = None


def plant(name):
    global FAULT
    FAULT = name


def soundly(f, *arguments):
    """Without the fault: what the other programs err by is measured against this."""
    global FAULT
    fault, FAULT = FAULT, None
    try:
        return f(*arguments)
    finally:
        FAULT = fault


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def frequencies(c, length):
    """Inverse frequencies in double, and the factor of cos and sin."""
    d, r = head_dim(c), c["rope_parameters"]
    kind, theta, factor, most = r.get("rope_type", "default"), r["rope_theta"], r.get("factor", 1.0), c["max_position_embeddings"]
    i = torch.arange(0, d, 2, dtype=torch.float64)
    if kind == "dynamic" and length > most:
        theta *= (factor * length / most - (factor - 1)) ** (d / (d - 2))
    plain = theta ** (-i / d)
    if kind == "linear":
        return plain / factor, 1.0
    original = r.get("original_max_position_embeddings") or most
    if kind == "llama3":
        low, high = r["low_freq_factor"], r["high_freq_factor"]
        share = ((original * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return plain * (share + (1 - share) / factor), 1.0
    if kind != "yarn":
        return plain, 1.0

    def dimension(turns):
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(r.get("beta_fast") or 32), dimension(r.get("beta_slow") or 1)
    if r.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    share = ((i / 2 - low) / ((high - low) or 0.001)).clamp(0, 1)

    def scale(m):
        return 0.1 * m * math.log(factor) + 1 if factor > 1 else 1.0

    attention = r.get("attention_factor")
    if attention is None:
        m, n = r.get("mscale"), r.get("mscale_all_dim")
        attention = scale(m) / scale(n) if m and n else scale(1)
    return plain * (share / factor + 1 - share), 1.0 if FAULT == "no attention factor" else attention


def logits(params, c, ids, first=None):
    """first (B, T): where the document of each token begins; attention sees nothing before, and positions restart."""
    dtype, (batch, length) = next(iter(params.values())).dtype, ids.shape
    d, heads, kv = head_dim(c), c["num_attention_heads"], c["num_key_value_heads"]
    first = torch.zeros_like(ids) if first is None else first
    at = torch.arange(length)
    turns, factor = frequencies(c, length)
    angle = (at - first).double()[..., None] * turns
    cos, sin = ((factor * f(angle)).to(dtype)[:, None] for f in (torch.cos, torch.sin))
    seen = (at[None, None, :] <= at[None, :, None]) & (at[None, None, :] >= first[:, :, None])
    if FAULT == "mask off by one":
        seen = seen & ((at[None, None, :] > first[:, :, None]) | (at[None, None, :] == at[None, :, None]))
    eps = 1e-6 if FAULT == "another epsilon" else c["rms_norm_eps"]

    def norm(x, name):  # where the model has it
        if name + ".weight" not in params:
            return x
        y = x.float() if dtype == torch.bfloat16 else x
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(dtype) * params[name + ".weight"]

    def norm_heads(x, name):  # each head, or all of them together
        if name + ".weight" not in params or params[name + ".weight"].numel() == d:
            return norm(x, name)
        return norm(x.transpose(1, 2).flatten(2), name).view(batch, length, -1, d).transpose(1, 2)

    def linear(x, name):
        y = x @ params[name + ".weight"].T
        return y + params[name + ".bias"] if name + ".bias" in params and FAULT != "biases are lost" else y

    def rotate(x, layer):
        every = c.get("no_rope_layer_interval")
        if every and (layer + 1) % every == 0 and FAULT != "all layers rotate":
            return x
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    x = params["model.embed_tokens.weight"][ids]
    for layer in range(c["num_hidden_layers"]):
        at_layer = f"model.layers.{layer}."
        h, after = norm(x, at_layer + "input_layernorm"), at_layer + "post_attention_layernorm"
        last = at_layer + "post_feedforward_layernorm"
        post = last + ".weight" in params  # norms of what the branches add, not of what they read
        q, k, v = (linear(h, f"{at_layer}self_attn.{n}_proj").view(batch, length, -1, d).transpose(1, 2) for n in "qkv")
        names = (at_layer + "self_attn.q_norm", at_layer + "self_attn.k_norm")
        if FAULT == "a norm after the rotation":
            q, k = (norm_heads(rotate(x, layer), name) for x, name in zip((q, k), names))
        else:
            q, k = (rotate(norm_heads(x, name), layer) for x, name in zip((q, k), names))
        if FAULT == "other groups of heads":
            k, v = (t.repeat(1, heads // kv, 1, 1) for t in (k, v))
        else:
            k, v = (t.repeat_interleave(heads // kv, 1) for t in (k, v))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(d)).masked_fill(~seen[:, None], -math.inf)
        o = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, heads * d)
        y = linear(o, at_layer + "self_attn.o_proj")
        x = x + (norm(y, after) if post else y)
        h = x if post else norm(x, after)
        y = linear(torch.nn.functional.silu(linear(h, at_layer + "mlp.gate_proj")) * linear(h, at_layer + "mlp.up_proj"), at_layer + "mlp.down_proj")
        x = norm(x + y, last) if FAULT == "norms of the sums" else x + norm(y, last)
    x = norm(x, "model.norm")
    head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    return linear(x, head)


def loss_and_gradients(params, c, ids, targets, first=None):
    """targets of -100 are none. Summed row by row in the dtype, so that long batches need little memory."""
    leaves = {n: p.detach().clone().requires_grad_() for n, p in params.items()}
    if FAULT == "the last target is lost":
        targets = targets.clone()
        row, column = (targets != -100).nonzero()[-1].tolist()
        targets[row, column] = -100
    count = int((targets != -100).sum())
    z = logits(leaves, c, ids, first).flatten(0, 1).float() if next(iter(params.values())).dtype == torch.bfloat16 else \
        logits(leaves, c, ids, first).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(z, targets.flatten(), ignore_index=-100, reduction="sum") / count
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in leaves.items()}


def rate(o, step):
    """As the help describes --lr-schedule: a linear warm-up, then the shape down to --min-lr in the last step."""
    peak, low, warm, steps = o["lr"], o["min-lr"], o["warmup"], o["steps"]
    if step <= warm:
        return peak * step / warm
    begin = max(warm, steps - o["cooldown"]) if o["lr-schedule"] == "wsd" else warm
    if o["lr-schedule"] == "constant" or step <= begin:
        return peak
    done = (step - begin) / (steps - begin)
    left = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "wsd": 1 - math.sqrt(done)}[o["lr-schedule"]]
    return low + (peak - low) * left


def train(weights, c, batches, o, dtype, products=None):
    """AdamW as --help has it: decay on matrices, eps added to the root. -> weights, losses, norms of gradients, rates.

    dtype: of weights, moments and sums; products: of forward and backward, if another."""
    params = {n: w.to(dtype) for n, w in weights.items()}
    m, v = ({n: torch.zeros_like(p) for n, p in params.items()} for _ in range(2))
    losses, norms, rates = [], [], []
    for step, (ids, targets, first) in enumerate(batches, 1):
        loss, grads = loss_and_gradients({n: p.to(products or dtype) for n, p in params.items()}, c, ids, targets, first)
        grads = {n: g.to(dtype) / (o["tp"] if FAULT == "divided by tp" else 1) for n, g in grads.items()}
        counted = [g for n, g in grads.items() if not (FAULT == "norms not in the norm" and g.dim() == 1)]
        norm = torch.sqrt(sum(g.double().pow(2).sum() for g in counted))
        scale = min(1.0, o["max-grad-norm"] / (float(norm) + 1e-6)) if o["max-grad-norm"] > 0 else 1.0
        lr = rate(o, step)
        for n, p in params.items():
            g = grads[n] * scale
            m[n] = o["beta1"] * m[n] + (1 - o["beta1"]) * g
            v[n] = o["beta2"] * v[n] + (1 - o["beta2"]) * g * g
            one, two = (1.0, 1.0) if FAULT == "no bias correction" else (1 - o["beta1"] ** step, 1 - o["beta2"] ** step)
            decay = o["weight-decay"] if p.dim() > 1 or FAULT == "decay on norms" else 0.0
            params[n] = p - lr * (m[n] / one / ((v[n] / two).sqrt() + o["eps"]) + decay * p)
        losses.append(float(loss)), norms.append(float(norm)), rates.append(lr)
    return params, losses, norms, rates
