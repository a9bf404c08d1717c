#!/usr/bin/python3
"""make_shape: a checkpoint with the sizes of a published model and random weights, EXL3 with a bf16 embedding.

    make_shape.py OUT [--codebook mul1] [--bits 4] [--head-bits 6] [--sparse] [--text-from MODEL] [--mtp] [--dflash2 DIR] [--dflash DIR]
                  [size flags of make_tiny.py]

The sizes default to the 27B's. --mtp: with an MTP head, its linears as the layers'. --dflash2, --dflash: drafters beside it, bf16, of the
sizes of those published for the 27B. Weights are one random block again and again, written as fast as the disk takes them; factors keep each
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

SIZES = {"hidden": 5120, "layers": 64, "intermediate": 17408, "vocab": 248320, "heads": 24, "kv-heads": 4, "head-dim": 256,
         "nk": 16, "nv": 48, "dk": 128, "dv": 128}
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
    for name, rows, cols in (("gate", a.intermediate, d), ("up", a.intermediate, d), ("down", d, a.intermediate)):
        linear(w, f"{p}.mlp.{name}_proj", rows, cols, bits, codebook)


def mtp(w, a, bits, codebook):
    plain(w, "mtp.fc.weight", (a.hidden, 2 * a.hidden), (2 * a.hidden) ** -0.5)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        plain(w, f"mtp.{norm}.weight", (a.hidden,), 0.1)
    layer(w, a, 3, "mtp.layers.0", bits, codebook)


def drafter(path, a, block):
    """DFlash2 where the block has 8 rows, else DFlash."""
    w, d, heads, kv, dim, layers, rank, groups = Writer(), a.hidden, 32, 8, 128, 5, 256, a.hidden // 16
    second = block == 8
    taps = [5, 19, 33, 47, 61] if second else [1, 16, 31, 46, 61]
    config = {"architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
              "hidden_size": d, "intermediate_size": 17408, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv, "head_dim": dim, "vocab_size": a.vocab, "num_target_layers": a.layers, "rms_norm_eps": 1e-6,
              "rope_theta": 10000000, "layer_types": ["sliding_attention"] * layers, "sliding_window": 2048, "is_causal": False,
              "dflash_config": {"mask_token_id": 248070, "target_layer_ids": taps, "block_size": block}}
    if second:
        config["dflash_config"] |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": rank, "selector_top_k": 16}

    def matrix(name, rows, cols):
        w.add(name + ".weight", "BF16", (rows, cols))

    matrix("fc", d, len(taps) * d)
    for norm in ("hidden_norm", "norm"):
        plain(w, norm + ".weight", (d,), 0.1, 1.0)
    for i in range(layers):
        p = f"layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            plain(w, p + norm + ".weight", (d,), 0.1, 1.0)
        for name, rows, cols in (("q", heads * dim, d), ("k", kv * dim, d), ("v", kv * dim, d), ("o", d, heads * dim)):
            matrix(f"{p}self_attn.{name}_proj", rows, cols)
        for norm in ("q_norm", "k_norm"):
            plain(w, f"{p}self_attn.{norm}.weight", (dim,), 0.1, 1.0)
        for name, rows, cols in (("gate", 17408, d), ("up", 17408, d), ("down", d, 17408)):
            matrix(f"{p}mlp.{name}_proj", rows, cols)
        for conv in ("attention_conv", "mlp_conv") if second else ():
            plain(w, f"{p}{conv}.base_kernel", (2, 2, d), 0.1, 0.5)
            matrix(f"{p}{conv}.kernel_projection", 4 * groups, d)
    if second:
        matrix("candidate_selector.hidden_projection", rank, d)
        for book in ("predecessor", "successor"):
            w.add(f"candidate_selector.{book}_codebook", "BF16", (a.vocab, rank))
    write(path, config, w, False)


def write(path, config, w, sparse):
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    w.write(os.path.join(path, "model.safetensors"), sparse)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--codebook", choices=exl3.CODEBOOKS, default="mul1")
    p.add_argument("--bits", type=float, default=4)
    p.add_argument("--head-bits", type=float, default=6)
    p.add_argument("--sparse", action="store_true")
    p.add_argument("--text-from")
    p.add_argument("--mtp", action="store_true")
    p.add_argument("--dflash2")
    p.add_argument("--dflash")
    for name, size in SIZES.items():
        p.add_argument("--" + name, type=int, default=size)
    o = p.parse_args()
    sizes = [f"--{name}={getattr(o, name.replace('-', '_'))}" for name in SIZES]
    a = make_tiny.arguments([o.out, "--untied", *sizes, *(["--mtp"] if o.mtp else [])])
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
    if o.mtp:
        mtp(w, a, o.bits, o.codebook)
    w.header["__metadata__"]["quant"] = "exl3"
    write(o.out, config, w, o.sparse)
    for path, block in ((o.dflash2, 8), (o.dflash, 16)):
        if path:
            drafter(path, a, block)
    for name in TEXT_FILES if o.text_from else ():
        shutil.copy(os.path.join(o.text_from, name), o.out)


if __name__ == "__main__":
    main()
