#!/usr/bin/env python3
"""Golden values of the network and of five training steps, from an implementation of our own in PyTorch, binary64.

Written here (needs `pip install torch`; the tests themselves do not):
  model_KIND.bin         f32: loss, logits [B*T, vocab], the gradient of every parameter in registry order
  train_weights.bin      f32: every weight in registry order after 5 steps of golden_train.yaml, whether direct or gram
  tiny_init/             the weights that those steps start from, as a Hugging Face directory (F32)
  golden_train.txt       their data
Weights, tokens and targets follow a formula of integers (`formula`), which tests/unit/test_model_golden.c repeats exactly.
Nothing of the engine is used, and no model library: autograd gives the gradients.
"""

import json
import math
import pathlib
import struct

import torch

HERE = pathlib.Path(__file__).resolve().parent
MASK = 0xFFFFFFFF
torch.set_default_dtype(torch.float64)

BASE = dict(d_model=32, n_layers=2, n_heads=4, n_kv_heads=4, head_dim=8, d_ff=48, vocab=64, theta=10000.0, eps=1e-5,
            tied=False, qkv_bias=False, qk_norm=False)
KINDS = {
    "mha": dict(BASE),
    "gqa_tied_qk_norm": dict(BASE, n_kv_heads=2, tied=True, qk_norm=True),
    "bias_vocab61": dict(BASE, n_kv_heads=2, vocab=61, qkv_bias=True),
}
TRAINED = dict(BASE, n_kv_heads=2, vocab=256)
B, T = 2, 16


def formula(stream, index):
    """A 32-bit mix of two integers."""
    h = (stream * 0x9E3779B9 + index * 0x85EBCA6B + 0x1234567) & MASK
    h ^= h >> 15
    h = (h * 0x2C1B3C6D) & MASK
    h ^= h >> 12
    h = (h * 0x297A2D39) & MASK
    return h ^ (h >> 15)


def formula_tensor(row, name, shape):
    """Multiples of 2^-11 in [-1, 1), times 1/4 except in the embedding; gains lie around 1. All exact in binary32."""
    n = math.prod(shape)
    unit = torch.tensor([((formula(row, i) >> 20) - 2048) / 2048 for i in range(n)]).reshape(shape)
    if "embed_tokens" in name:
        return unit
    if name.endswith("norm.weight"):
        return 1 + unit / 4
    return unit / 4


def registry(m):
    """Names and shapes in the engine's order."""
    c, d, h, k, f = m["d_model"], m["head_dim"], m["n_heads"], m["n_kv_heads"], m["d_ff"]
    rows = [("model.embed_tokens.weight", (m["vocab"], c))]
    for i in range(m["n_layers"]):
        layer = [("input_layernorm.weight", (c,)), ("self_attn.q_proj.weight", (h * d, c)),
                 ("self_attn.k_proj.weight", (k * d, c)), ("self_attn.v_proj.weight", (k * d, c))]
        if m["qkv_bias"]:
            layer += [("self_attn.q_proj.bias", (h * d,)), ("self_attn.k_proj.bias", (k * d,)),
                      ("self_attn.v_proj.bias", (k * d,))]
        if m["qk_norm"]:
            layer += [("self_attn.q_norm.weight", (d,)), ("self_attn.k_norm.weight", (d,))]
        layer += [("self_attn.o_proj.weight", (c, h * d)), ("post_attention_layernorm.weight", (c,)),
                  ("mlp.gate_proj.weight", (f, c)), ("mlp.up_proj.weight", (f, c)), ("mlp.down_proj.weight", (c, f))]
        rows += [(f"model.layers.{i}.{name}", shape) for name, shape in layer]
    rows.append(("model.norm.weight", (c,)))
    if not m["tied"]:
        rows.append(("lm_head.weight", (m["vocab"], c)))
    return rows


def formula_weights(m):
    return {name: formula_tensor(row, name, shape) for row, (name, shape) in enumerate(registry(m))}


# ---- the network ----------------------------------------------------------------------------------------------------


def rms_norm(x, gain, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def rotary(x, theta):
    """x [B, heads, T, D]; the two halves of D form the pairs."""
    d, t = x.shape[-1], x.shape[-2]
    frequency = torch.tensor([theta ** (-2.0 * j / d) for j in range(d // 2)])
    angle = torch.arange(t, dtype=frequency.dtype)[:, None] * frequency[None, :]
    cos, sin = torch.cos(angle), torch.sin(angle)
    x0, x1 = x[..., : d // 2], x[..., d // 2:]
    return torch.cat((x0 * cos - x1 * sin, x1 * cos + x0 * sin), -1)


def attention(m, w, prefix, h):
    b, t, _ = h.shape

    def heads(name, count):
        y = h @ w[f"{prefix}{name}_proj.weight"].T
        if m["qkv_bias"]:
            y = y + w[f"{prefix}{name}_proj.bias"]
        return y.reshape(b, t, count, m["head_dim"]).transpose(1, 2)

    q, k, v = heads("q", m["n_heads"]), heads("k", m["n_kv_heads"]), heads("v", m["n_kv_heads"])
    if m["qk_norm"]:
        q = rms_norm(q, w[f"{prefix}q_norm.weight"], m["eps"])
        k = rms_norm(k, w[f"{prefix}k_norm.weight"], m["eps"])
    q, k = rotary(q, m["theta"]), rotary(k, m["theta"])
    group = m["n_heads"] // m["n_kv_heads"]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(m["head_dim"])
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
    o = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, -1)
    return o @ w[f"{prefix}o_proj.weight"].T


def network(m, w, tokens):
    """Logits [B, T, vocab]."""
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(m["n_layers"]):
        p = f"model.layers.{i}."
        x = x + attention(m, w, p + "self_attn.", rms_norm(x, w[p + "input_layernorm.weight"], m["eps"]))
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], m["eps"])
        z = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (z * torch.sigmoid(z) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    x = rms_norm(x, w["model.norm.weight"], m["eps"])
    return x @ w["model.embed_tokens.weight" if m["tied"] else "lm_head.weight"].T


def mean_loss(logits, targets):
    picked = logits.gather(-1, targets[..., None])[..., 0]
    return (torch.logsumexp(logits, -1) - picked).mean()


def gradients(m, weights, tokens, targets):
    w = {name: x.clone().requires_grad_(True) for name, x in weights.items()}
    logits = network(m, w, tokens)
    loss = mean_loss(logits, targets)
    loss.backward()
    return loss.detach(), logits.detach(), {name: x.grad for name, x in w.items()}


# ---- the optimizer --------------------------------------------------------------------------------------------------

TRAIN = dict(steps=5, batch=4, seq_len=16, muon_lr=0.02, momentum=0.95, muon_decay=0.1, adamw_lr=3e-3, beta1=0.9,
             beta2=0.999, adamw_eps=1e-8, adamw_decay=0.01, max_norm=0.5)


def polar_express():
    table = json.loads((HERE / "upstream_ns_golden.json").read_text())
    return table["coefficients"]["polar_express_scaled"]


def newton_schulz(x, algorithm):
    if x.shape[0] > x.shape[1]:
        return newton_schulz(x.T, algorithm).T
    x = x / torch.linalg.norm(x)
    triples = polar_express()
    if algorithm == "direct":
        for a, b, c in triples:
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x
    identity = torch.eye(x.shape[0], dtype=x.dtype)
    r, q, restart = x @ x.T, None, 2
    for i, (a, b, c) in enumerate(triples):
        if i == restart:
            x = q @ x
            r, q = x @ x.T, None
        z = b * r + c * r @ r
        q = z + a * identity if q is None else q @ z + a * q
        if i != len(triples) - 1 and i + 1 != restart:
            t = r @ z + a * r
            r = z @ t + a * t
    return q @ x


def is_muon(name, x):
    return x.dim() == 2 and name.startswith("model.layers.")


def muon_step(w, g, state, algorithm):
    momentum = state.setdefault("m", torch.zeros_like(w))
    momentum.mul_(TRAIN["momentum"]).add_(g)
    update = newton_schulz(g + TRAIN["momentum"] * momentum, algorithm)
    w.sub_(TRAIN["muon_lr"] * TRAIN["muon_decay"] * w)
    w.sub_(TRAIN["muon_lr"] * 0.2 * math.sqrt(max(w.shape)) * update)


def adamw_step(w, g, state, step):
    m, v = state.setdefault("m", torch.zeros_like(w)), state.setdefault("v", torch.zeros_like(w))
    b1, b2 = TRAIN["beta1"], TRAIN["beta2"]
    m.mul_(b1).add_((1 - b1) * g)
    v.mul_(b2).add_((1 - b2) * g * g)
    if w.dim() == 2:
        w.sub_(TRAIN["adamw_lr"] * TRAIN["adamw_decay"] * w)
    w.sub_(TRAIN["adamw_lr"] * (m / (1 - b1**step)) / (torch.sqrt(v / (1 - b2**step)) + TRAIN["adamw_eps"]))


def train(text, algorithm, dtype):
    """Weights after TRAIN["steps"] steps on windows of seq_len + 1 bytes at stride seq_len, in order."""
    weights = {name: x.to(dtype) for name, x in formula_weights(TRAINED).items()}
    state = {name: {} for name in weights}
    length, batch = TRAIN["seq_len"], TRAIN["batch"]
    for step in range(1, TRAIN["steps"] + 1):
        first = (step - 1) * batch
        windows = torch.tensor([list(text[s * length:(s + 1) * length + 1]) for s in range(first, first + batch)])
        loss, _, grads = gradients(TRAINED, weights, windows[:, :-1], windows[:, 1:])
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads.values()))
        assert norm > TRAIN["max_norm"], "the clip must be active"
        print(f"{algorithm} {dtype} step {step} loss {float(loss):.9f} norm {norm:.6f}")
        for name, w in weights.items():
            g = grads[name] * (TRAIN["max_norm"] / (norm + 1e-6))
            if is_muon(name, w):
                muon_step(w, g, state[name], algorithm)
            else:
                adamw_step(w, g, state[name], step)
    return weights


# ---- files ----------------------------------------------------------------------------------------------------------


def floats(x):
    values = x.double().flatten().tolist()
    return struct.pack(f"<{len(values)}f", *values)


def formula_text(nbytes):
    """Lower-case words."""
    letters = (formula(1001, i) % 32 for i in range(nbytes))
    return bytes(97 + n if n < 26 else 32 for n in letters)


def formula_tokens(m):
    """Tokens [B,T] and targets [B,T]: windows of T + 1, one after the other."""
    window = torch.tensor([[formula(1000, b * (T + 1) + t) % m["vocab"] for t in range(T + 1)] for b in range(B)])
    return window[:, :-1], window[:, 1:]


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in tensors.items():
        blob = floats(x)
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def hf_config(m):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": m["d_model"],
        "num_hidden_layers": m["n_layers"], "num_attention_heads": m["n_heads"], "num_key_value_heads": m["n_kv_heads"],
        "head_dim": m["head_dim"], "intermediate_size": m["d_ff"], "vocab_size": m["vocab"],
        "max_position_embeddings": 64, "rope_theta": m["theta"], "rms_norm_eps": m["eps"],
        "tie_word_embeddings": m["tied"], "attention_bias": False, "initializer_range": 0.02, "torch_dtype": "float32",
    }


def write_model(kind):
    m = KINDS[kind]
    loss, logits, grads = gradients(m, formula_weights(m), *formula_tokens(m))
    parts = [floats(loss), floats(logits)] + [floats(grads[name]) for name, _ in registry(m)]
    (HERE / f"model_{kind}.bin").write_bytes(b"".join(parts))
    print(f"{kind}: loss {float(loss):.9f}")


def write_training():
    directory = HERE / "tiny_init"
    directory.mkdir(exist_ok=True)
    write_safetensors(directory / "model.safetensors", formula_weights(TRAINED))
    (directory / "config.json").write_text(json.dumps(hf_config(TRAINED), indent=2) + "\n")
    text = formula_text((TRAIN["steps"] * TRAIN["batch"] + 2) * TRAIN["seq_len"])
    (HERE / "golden_train.txt").write_bytes(text)
    weights, gram = (train(text, algorithm, torch.float64) for algorithm in ("direct", "gram"))
    for name, w in weights.items():
        assert float((w - gram[name]).norm()) < 1e-12 * float(w.norm()), "the same polynomial, ordered differently"
    (HERE / "train_weights.bin").write_bytes(b"".join(floats(x) for x in weights.values()))


if __name__ == "__main__":
    for name in KINDS:
        write_model(name)
    write_training()
