#!/usr/bin/env python3
"""Golden values from Hugging Face transformers: small models of every kind the engine reads, their first loss, their logits.

usage: make_hf_golden.py [--out DIR] [--seed N]    makes the models of KINDS in DIR (tests/golden/hf) and their golden files
       make_hf_golden.py --golden DIR...           only golden.bin of directories that exist

Needs `pip install torch transformers`; the tests run without them, and with them compare anew. Exit 77: they are not here.
  tokens.bin        a token shard (src/data/shard.h) of B windows of T + 1 ids at stride T
  KIND/             config.json and the weights, as save_pretrained leaves them: in shards, in bf16, whole
  KIND/golden.bin   f32: the mean loss over all windows, then [B, T/EVERY, vocab] logits of every EVERY-th position
The model is computed in binary64 from the stored weights, but for what transformers itself does in binary32: the norms, the
rotary angles.
"""

import argparse
import os
import pathlib
import struct
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import torch
    import transformers
except ImportError as missing:
    print(missing, file=sys.stderr)
    sys.exit(77)

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

HERE = pathlib.Path(__file__).resolve().parent
HF = HERE / "hf"
B, T, EVERY, VOCAB = 4, 16, 4, 131

BASE = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            intermediate_size=48, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
            bos_token_id=None, eos_token_id=None)
# name: (class, what differs from BASE, base of the rotary frequencies, how it is stored)
KINDS = {
    "llama": ("Llama", dict(num_key_value_heads=4), 10000.0, "sharded"),
    "llama_tied": ("Llama", dict(tie_word_embeddings=True), 500000.0, "float32"),
    "qwen2": ("Qwen2", dict(rms_norm_eps=1e-6), 1000000.0, "float32"),
    "qwen2_tied": ("Qwen2", dict(tie_word_embeddings=True), 10000.0, "bfloat16"),
    "qwen3": ("Qwen3", dict(head_dim=16), 1000000.0, "float16"),
    "qwen3_tied": ("Qwen3", dict(head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6), 10000.0, "float32"),
}


def randomize(model, seed):
    """Weights large enough that every one of them moves the logits."""
    draw = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=draw)
        one_dimensional = 1 + 0.2 * noise if name.endswith("norm.weight") else 0.3 * noise
        weight.data = one_dimensional if weight.dim() == 1 else 0.25 * noise


def make(directory, kind, seed):
    family, keys, theta, storage = KINDS[kind]
    config = getattr(transformers, f"{family}Config")(**{**BASE, **keys, "rope_theta": theta})
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    randomize(model, seed)
    if storage != "sharded":
        model = model.to(getattr(torch, storage))
    model.save_pretrained(directory, max_shard_size="40KB" if storage == "sharded" else "1GB")
    (directory / "generation_config.json").unlink(missing_ok=True)


def write_tokens(path, seed):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (B * T + 1,), generator=draw).tolist()
    path.write_bytes(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + struct.pack(f"<{len(ids)}H", *ids))


def read_windows(path):
    ids = struct.unpack_from(f"<{B * T + 1}H", path.read_bytes(), 1024)
    return torch.tensor([ids[b * T:(b + 1) * T + 1] for b in range(B)])


def opened(directory):
    """The model as from_pretrained finds it; it finds every weight, and knows each."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), f"{directory}: {info}"
    return model.double().eval()


def write_golden(directory):
    model = opened(directory)
    windows = read_windows(directory.parent / "tokens.bin")
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    picked = logits[:, EVERY - 1::EVERY]
    values = [loss.item(), *picked.flatten().tolist()]
    (directory / "golden.bin").write_bytes(struct.pack(f"<{len(values)}f", *values))
    print(f"{directory.name}: {type(model).__name__}, loss {loss.item():.9f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=HF)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--golden", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    directories = options.golden or [options.out / kind for kind in KINDS]
    if not options.golden:
        options.out.mkdir(parents=True, exist_ok=True)
        write_tokens(options.out / "tokens.bin", options.seed)
        for number, directory in enumerate(directories):
            make(directory, directory.name, 100 * options.seed + number)
    for directory in directories:
        write_golden(directory)


if __name__ == "__main__":
    main()
