#!/usr/bin/env python3
"""The yardstick for gpu_check.py: the same model and batch in PyTorch, bf16 products, AdamW. One JSON object on stdout.

usage: gpu_torch.py MODEL.yaml GLOBAL MICRO SEQ_LEN
"""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

STEPS, WARM_UP = 8, 3


def read_model(path: str) -> dict:
    """`name: number` lines; a model file has no other values that matter here."""
    pairs = (line.split("#")[0].strip().split(": ") for line in open(path, encoding="utf-8") if ": " in line.split("#")[0])
    return {name: value for name, value in pairs}


class Norm(nn.Module):
    def __init__(self, d: int, eps: float):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), self.eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self, d: int, heads: int, kv: int, head: int, ff: int, eps: float):
        super().__init__()
        self.heads, self.kv, self.head = heads, kv, head
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.q, self.k, self.v, self.o = linear(d, heads * head), linear(d, kv * head), linear(d, kv * head), linear(heads * head, d)
        self.gate, self.up, self.down = linear(d, ff), linear(d, ff), linear(ff, d)
        self.norm1, self.norm2 = Norm(d, eps), Norm(d, eps)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        h = self.norm1(x)
        q, k, v = (w(h).view(B, T, n, self.head).transpose(1, 2) for w, n in ((self.q, self.heads), (self.k, self.kv), (self.v, self.kv)))
        o = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=self.kv != self.heads)
        x = x + self.o(o.transpose(1, 2).reshape(B, T, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, m: dict):
        super().__init__()
        number = lambda name: int(m[name])
        d, head, eps = number("d_model"), number("head_dim"), float(m["norm_eps"])
        self.theta, self.head_dim = float(m["rope_theta"]), head
        self.embed = nn.Embedding(number("vocab_size"), d)
        self.layers = nn.ModuleList(Layer(d, number("n_heads"), number("n_kv_heads"), head, number("d_ff"), eps) for _ in range(number("n_layers")))
        self.norm = Norm(d, eps)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)
        angle = at[:, None] * self.theta ** (-torch.arange(0, self.head_dim, 2, device=ids.device) / self.head_dim)
        x = self.embed(ids).bfloat16()
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def main() -> None:
    model = Llama(read_model(sys.argv[1])).cuda()
    batch, micro, seq_len = map(int, sys.argv[2:5])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    times = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(batch // micro):
            ids = torch.randint(256, (micro, seq_len + 1), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(ids[:, :-1], ids[:, 1:])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.monotonic() - begin)
    middle = sorted(times[WARM_UP:])[(STEPS - WARM_UP) // 2]
    print(json.dumps({"torch": torch.__version__, "tokens_per_s": round(batch * seq_len / middle), "step_ms": round(1e3 * middle, 1)}))


if __name__ == "__main__":
    main()
