#!/usr/bin/python3
"""make_shape: a checkpoint with the sizes of a published model and random weights, EXL3 with a bf16 embedding.

    make_shape.py OUT [--shape 27b|35b-a3b] [--codebook mul1] [--bits 4] [--head-bits 6] [--sparse] [--text-from MODEL] [size flags of make_tiny.py]

The sizes default to the shape's. Weights are one random block again and again, written as fast as the disk takes them; factors keep each
output's size, so that activations stay in range. --sparse: the big tensors are holes, for plans. --text-from: tokeniser and
template of another model, so that the result can be served.
"""
import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import exl3  # noqa: E402
import make_tiny  # noqa: E402

SHAPES = {
    "27b": {"hidden": 5120, "layers": 64, "intermediate": 17408, "vocab": 248320, "heads": 24, "kv-heads": 4, "head-dim": 256,
            "nk": 16, "nv": 48, "dk": 128, "dv": 128},
    "35b-a3b": {"hidden": 2048, "layers": 40, "vocab": 248320, "heads": 16, "kv-heads": 2, "head-dim": 256, "nk": 16, "nv": 32, "dk": 128,
                "dv": 128, "experts": 256, "top-k": 8, "expert-width": 512, "shared-width": 512},
}
BLOCK = 64 << 20
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def bf16(x):
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Writer:
    """Tensors by name, type, shape and either their values or a count of random bytes; written behind one header."""

    def __init__(self):
        self.header, self.at, self.parts = {"__metadata__": {"format": "pt"}}, 0, []

    def add(self, name, dtype, shape, values=None):
        size = int(np.prod(shape)) * {"BF16": 2, "F16": 2, "I16": 2, "I32": 4}[dtype]
        self.header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.at, self.at + size]}
        self.parts.append((dtype, size, None if values is None else values.tobytes()))
        self.at += size

    def write(self, path, sparse):
        text = json.dumps(self.header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        rng = np.random.default_rng(1)
        raw = rng.integers(0, 256, BLOCK, np.uint8).tobytes()
        rows = bf16(rng.standard_normal(BLOCK // 2) * 0.02).tobytes()
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for dtype, size, values in self.parts:
                if values is not None:
                    f.write(values)
                elif sparse:
                    f.seek(size, os.SEEK_CUR)
                else:
                    block = rows if dtype == "BF16" else raw
                    for done in range(0, size, BLOCK):
                        f.write(block[:min(BLOCK, size - done)])
            f.truncate(8 + len(text) + self.at)


def linear(w, key, rows, cols, bits, codebook):
    rng = np.random.default_rng(len(w.parts))
    w.add(key + ".trellis", "I16", (cols // 16, rows // 16, int(16 * bits)))
    sign = lambda n: np.where(rng.integers(0, 2, n) == 1, 1.0, -1.0)  # noqa: E731
    w.add(key + ".suh", "F16", (cols,), sign(cols).astype(np.float16))
    w.add(key + ".svh", "F16", (rows,), (sign(rows) / exl3.SIGMA[codebook] / np.sqrt(cols)).astype(np.float16))
    if codebook in exl3.MARKERS:
        w.add(key + "." + codebook, "I32", (), np.array(exl3.MARKERS[codebook], np.uint32).view(np.int32))


def plain(w, name, shape, scale, centre=0.0):
    rng = np.random.default_rng(len(w.parts))
    w.add(name, "BF16", shape, bf16(centre + scale * rng.standard_normal(shape)))


def mlp(w, p, d, width, bits, codebook):
    for name, rows, cols in (("gate", width, d), ("up", width, d), ("down", d, width)):
        linear(w, f"{p}.{name}_proj", rows, cols, bits, codebook)


def layer(w, a, i, p, bits, codebook):
    d, value, conv = a.hidden, a.nv * a.dv, 2 * a.nk * a.dk + a.nv * a.dv
    for norm in ("input_layernorm", "post_attention_layernorm"):
        plain(w, f"{p}.{norm}.weight", (d,), 0.1)
    if i % 4 == 3:
        p2, q, kv = p + ".self_attn.", a.heads * a.head_dim, a.kv_heads * a.head_dim
        for name, rows, cols in (("q", 2 * q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
            linear(w, f"{p2}{name}_proj", rows, cols, bits, codebook)
        plain(w, p2 + "q_norm.weight", (a.head_dim,), 0.1)
        plain(w, p2 + "k_norm.weight", (a.head_dim,), 0.1)
    else:
        p2 = p + ".linear_attn."
        for name, rows, cols in (("in_proj_qkv", conv, d), ("in_proj_z", value, d), ("out_proj", d, value)):
            linear(w, p2 + name, rows, cols, bits, codebook)
        for name in ("in_proj_b", "in_proj_a"):
            plain(w, f"{p2}{name}.weight", (a.nv, d), d ** -0.5)
        plain(w, p2 + "conv1d.weight", (conv, 1, 4), 0.5)
        plain(w, p2 + "A_log", (a.nv,), 0.5)
        plain(w, p2 + "dt_bias", (a.nv,), 0.5, -1.0)
        plain(w, p2 + "norm.weight", (a.dv,), 0.1, 1.0)
    if not a.moe:
        mlp(w, f"{p}.mlp", d, a.intermediate, bits, codebook)
        return
    plain(w, f"{p}.mlp.gate.weight", (a.experts, d), d ** -0.5)
    plain(w, f"{p}.mlp.shared_expert_gate.weight", (1, d), d ** -0.5)
    mlp(w, f"{p}.mlp.shared_expert", d, a.shared_width, bits, codebook)
    for e in range(a.experts):
        mlp(w, f"{p}.mlp.experts.{e}", d, a.expert_width, bits, codebook)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--shape", choices=SHAPES, default="27b")
    p.add_argument("--codebook", choices=exl3.CODEBOOKS, default="mul1")
    p.add_argument("--bits", type=float, default=4)
    p.add_argument("--head-bits", type=float, default=6)
    p.add_argument("--sparse", action="store_true")
    p.add_argument("--text-from")
    for name in sorted({name for shape in SHAPES.values() for name in shape}):
        p.add_argument("--" + name, type=int)
    o = p.parse_args()
    sizes = [f"--{name}={getattr(o, name.replace('-', '_')) or size}" for name, size in SHAPES[o.shape].items()]
    a = make_tiny.arguments([o.out, "--untied", *(["--moe=single"] if "experts" in SHAPES[o.shape] else []), *sizes])
    config = make_tiny.config(a)
    config["quantization_config"] = {"quant_method": "exl3", "version": "0.0.6", "bits": o.bits, "head_bits": o.head_bits}
    if o.text_from:  # the tokeniser's ids, not the model's last row
        with open(os.path.join(o.text_from, "config.json"), encoding="utf-8") as f:
            config["eos_token_id"] = json.load(f)["eos_token_id"]
    w = Writer()
    w.add("model.embed_tokens.weight", "BF16", (a.vocab, a.hidden))
    for i in range(a.layers):
        layer(w, a, i, f"model.layers.{i}", o.bits, o.codebook)
    plain(w, "model.norm.weight", (a.hidden,), 0.1)
    linear(w, "lm_head", a.vocab, a.hidden, o.head_bits, o.codebook)
    w.header["__metadata__"]["quant"] = "exl3"
    os.makedirs(o.out, exist_ok=True)
    with open(os.path.join(o.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    w.write(os.path.join(o.out, "model.safetensors"), o.sparse)
    for name in TEXT_FILES if o.text_from else ():
        shutil.copy(os.path.join(o.text_from, name), o.out)


if __name__ == "__main__":
    main()
