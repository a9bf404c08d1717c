#!/usr/bin/python3
"""make_shape: a checkpoint with the sizes of a published model and random weights, EXL3 with a bf16 embedding.

    make_shape.py OUT [--like 27b|35b-a3b] [--codebook mul1] [--bits 4] [--head-bits 6] [--plain] [--planted N] [--sparse]
                  [--text-from MODEL] [--mtp] [--dflash2 DIR] [--dflash DIR] [size flags of make_tiny.py]

Weights are one random block again and again, written as fast as the disk takes them; factors keep each output's size, so that
activations stay in range.
--bits       of a weight; several ("3,4") go round from layer to layer, as packs of a width between have them.
--plain      bf16 in place of EXL3.
--planted N  each of the first N ids (a multiple of 128) is followed by another of them, in one cycle: planted.json has it. The embedding's
             row of an id is the head's column of the next one, so the model tells it, with a chance that what the layers add decides.
--sparse     the big tensors are holes, for plans.
--mtp        with an MTP head, its linears as the layers'.
--dflash2    a drafter beside it, bf16, of the size of the one published for it; --dflash one of the other kind.
--text-from  tokeniser and template of another model, so that the result can be served.
"""
import argparse
import concurrent.futures
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

LIKE = {"27b": {"hidden": 5120, "layers": 64, "intermediate": 17408, "vocab": 248320, "heads": 24, "kv-heads": 4, "head-dim": 256,
                "nk": 16, "nv": 48, "dk": 128, "dv": 128},
        "35b-a3b": {"hidden": 2048, "layers": 40, "intermediate": 512, "vocab": 248320, "heads": 16, "kv-heads": 2, "head-dim": 256,
                    "nk": 16, "nv": 32, "dk": 128, "dv": 128, "experts": 256, "top-k": 8, "expert-width": 512, "shared-width": 512}}
# Of drafters: layers, intermediate, key heads, taps, rows of a block.
DRAFTERS = {("27b", "dflash2"): (5, 17408, 8, (5, 19, 33, 47, 61), 8), ("27b", "dflash"): (5, 17408, 8, (1, 16, 31, 46, 61), 16),
            ("35b-a3b", "dflash"): (8, 6144, 4, (1, 10, 19, 28, 37), 16)}
BLOCK = 64 << 20
PLANTED_RMS = 0.09  # of a planted row, for each that the layers add: with it the next id is likely and not certain
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def bf16(x):
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Writer:
    """Tensors by name, type, shape and their values, which random bytes go on from where they are fewer; behind one header."""

    def __init__(self):
        self.header, self.at, self.parts, self.rng = {"__metadata__": {"format": "pt"}}, 0, [], np.random.default_rng(1)
        self.raw = self.rng.integers(0, 256, BLOCK, np.uint8).tobytes()
        self.rows = bf16(self.rng.standard_normal(BLOCK // 2) * 0.02).tobytes()

    def add(self, name, dtype, shape, values=None):
        size = int(np.prod(shape)) * {"BF16": 2, "F16": 2, "I16": 2, "I32": 4}[dtype]
        self.header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.at, self.at + size]}
        self.parts.append((dtype, self.at, size, b"" if values is None else values.tobytes()))
        self.at += size

    def random_bytes(self, dtype, first, count):
        """count bytes from byte `first` of a tensor that has no values."""
        block, first = self.rows if dtype == "BF16" else self.raw, first % BLOCK
        return block[first:first + count] + block[:max(0, first + count - BLOCK)]

    def write(self, path, sparse):
        text = json.dumps(self.header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        begin = 8 + len(text)
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(begin + self.at)
        jobs, small, small_at = [], [], 0
        for dtype, at, size, values in self.parts:
            if len(values) == size:  # neighbours go together
                if small and small_at + sum(map(len, small)) != at:
                    jobs.append((small_at, b"".join(small)))
                    small = []
                small_at = small_at if small else at
                small.append(values)
                continue
            jobs.append((at, values))
            first = len(values)
            while first < size and not sparse:  # pieces that end with the block
                count = min(size - first, BLOCK - first % BLOCK)
                jobs.append((at + first, (dtype, first, count)))
                first += count
        jobs.append((small_at, b"".join(small)))

        def put(job):
            at, what = job
            if isinstance(what, tuple):
                dtype, first, count = what
                what = memoryview(self.rows if dtype == "BF16" else self.raw)[first % BLOCK:first % BLOCK + count]
            while what:
                done = os.pwrite(fd, what, begin + at)
                what, at = what[done:], at + done
        fd = os.open(path, os.O_WRONLY)
        try:
            with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # one thread copies slower than memory takes
                list(pool.map(put, jobs))
        finally:
            os.close(fd)


def linear(w, key, rows, cols, bits, codebook):
    rng = np.random.default_rng(len(w.parts))
    if not bits:
        w.add(key + ".weight", "BF16", (rows, cols))
        return
    w.add(key + ".trellis", "I16", (cols // 16, rows // 16, int(16 * bits)))
    sign = lambda n: np.where(rng.integers(0, 2, n) == 1, 1.0, -1.0)  # noqa: E731
    w.add(key + ".suh", "F16", (cols,), sign(cols).astype(np.float16))
    w.add(key + ".svh", "F16", (rows,), (sign(rows) / exl3.SIGMA[codebook] / np.sqrt(cols)).astype(np.float16))
    if codebook in exl3.MARKERS:
        w.add(key + "." + codebook, "I32", (), np.array(exl3.MARKERS[codebook], np.uint32).view(np.int32))


def head_columns(w, a, count, bits, codebook):
    """What each of the first `count` ids has in the head that linear() is about to add at the end: [count, hidden]."""
    h = Writer.__new__(Writer)
    h.header, h.at, h.parts = {}, 0, [None] * w.head_parts
    linear(h, "h", a.vocab, a.hidden, bits, codebook)
    suh, svh = (np.frombuffer(p[3], np.float16).astype(np.float32) for p in h.parts[w.head_parts + 1:w.head_parts + 3])
    tile, tiles = int(32 * bits), a.vocab // 16  # bytes of a tile; tiles side by side
    words = [w.random_bytes("I16", k * tiles * tile, count // 16 * tile) for k in range(a.hidden // 16)]
    trellis = np.frombuffer(b"".join(words), np.int16).reshape(a.hidden // 16, count // 16, tile // 2)
    x = exl3.hadamard(exl3.decode(trellis, codebook).astype(np.float32)) * svh[:count]
    return exl3.hadamard(np.ascontiguousarray(x.T)) * suh


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
    def mlp(key, width):
        for name, rows, cols in (("gate", width, d), ("up", width, d), ("down", d, width)):
            linear(w, f"{p}.mlp.{key}{name}_proj", rows, cols, bits, codebook)
    if not a.moe:
        mlp("", a.intermediate)
        return
    plain(w, p + ".mlp.gate.weight", (a.experts, d), d ** -0.5)
    plain(w, p + ".mlp.shared_expert_gate.weight", (1, d), d ** -0.5)
    mlp("shared_expert.", a.shared_width)
    if bits:
        for e in range(a.experts):
            mlp(f"experts.{e}.", a.expert_width)
    else:
        w.add(p + ".mlp.experts.gate_up_proj", "BF16", (a.experts, 2 * a.expert_width, d))
        w.add(p + ".mlp.experts.down_proj", "BF16", (a.experts, d, a.expert_width))


def mtp(w, a, bits, codebook):
    plain(w, "mtp.fc.weight", (a.hidden, 2 * a.hidden), (2 * a.hidden) ** -0.5)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        plain(w, f"mtp.{norm}.weight", (a.hidden,), 0.1)
    layer(w, a, 3, "mtp.layers.0", bits, codebook)


def drafter(path, a, like, kind):
    layers, width, kv, taps, block = DRAFTERS[like, kind]
    w, d, heads, dim, rank, second = Writer(), a.hidden, 32, 128, 256, kind == "dflash2"
    slides = like == "27b"
    config = {"architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
              "hidden_size": d, "intermediate_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv, "head_dim": dim, "vocab_size": a.vocab, "num_target_layers": a.layers, "rms_norm_eps": 1e-6,
              "rope_theta": 10000000, "layer_types": ["sliding_attention" if slides else "full_attention"] * layers,
              **({"sliding_window": 2048, "is_causal": False} if slides else {}),
              "dflash_config": {"mask_token_id": 248070, "target_layer_ids": taps, "block_size": block,
                                **({"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": rank, "selector_top_k": 16}
                                   if second else {})}}

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
        for name, rows, cols in (("gate", width, d), ("up", width, d), ("down", d, width)):
            matrix(f"{p}mlp.{name}_proj", rows, cols)
        for conv in ("attention_conv", "mlp_conv") if second else ():
            plain(w, f"{p}{conv}.base_kernel", (2, 2, d), 0.1, 0.5)
            matrix(f"{p}{conv}.kernel_projection", 4 * (d // 16), d)
    if second:
        matrix("candidate_selector.hidden_projection", rank, d)
        for book in ("predecessor", "successor"):
            w.add(f"candidate_selector.{book}_codebook", "BF16", (a.vocab, rank))
    save(path, config, w, False)


def save(path, config, w, sparse):
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    w.write(os.path.join(path, "model.safetensors"), sparse)


def widths(text):
    return [float(b) for b in text.split(",")]


def plant(w, a, o):
    """The embedding's first rows, and the order in which their ids follow one another."""
    order = np.random.default_rng(7).permutation(o.planted)
    columns = head_columns(w, a, o.planted, o.head_bits, o.codebook)
    columns *= PLANTED_RMS * np.sqrt(2 * a.layers) / np.sqrt((columns ** 2).mean(axis=1, keepdims=True))
    rows = np.empty_like(columns)
    rows[order] = columns[np.roll(order, -1)]
    return bf16(rows), order


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--like", choices=LIKE, default="27b")
    p.add_argument("--codebook", choices=exl3.CODEBOOKS, default="mul1")
    p.add_argument("--bits", type=widths, default=[4])
    p.add_argument("--head-bits", type=float, default=6)
    p.add_argument("--plain", action="store_true")
    p.add_argument("--planted", type=int, default=0)
    p.add_argument("--sparse", action="store_true")
    p.add_argument("--text-from")
    p.add_argument("--mtp", action="store_true")
    p.add_argument("--dflash2")
    p.add_argument("--dflash")
    for name in LIKE["35b-a3b"]:
        p.add_argument("--" + name, type=int)
    o = p.parse_args()
    if any(2 * b % 2 for b in o.bits) and o.codebook != "mul1":
        p.error("half bits are mul1's alone: --bits 3,4")
    kinds = [kind for kind in ("dflash2", "dflash") if getattr(o, kind)]
    if any((o.like, kind) not in DRAFTERS for kind in kinds):
        p.error(f"no drafter of that kind is known for {o.like}")
    sizes = {name: getattr(o, name.replace("-", "_")) or size for name, size in LIKE[o.like].items()}
    a = make_tiny.arguments([o.out, "--untied", *(["--moe=single"] if "experts" in sizes else []), *(["--mtp"] if o.mtp else []),
                             *(f"--{name}={size}" for name, size in sizes.items())])
    config = make_tiny.config(a)
    if o.plain:
        o.bits, o.head_bits = [0], 0
    else:
        config["quantization_config"] = {"quant_method": "exl3", "version": "0.0.6", "bits": sum(o.bits) / len(o.bits),
                                         "head_bits": o.head_bits}
    if o.text_from:  # the tokeniser's ids, not the model's last row
        with open(os.path.join(o.text_from, "config.json"), encoding="utf-8") as f:
            config["eos_token_id"] = json.load(f)["eos_token_id"]
    w = Writer()
    w.add("model.embed_tokens.weight", "BF16", (a.vocab, a.hidden))
    for i in range(a.layers):
        layer(w, a, i, f"model.layers.{i}", o.bits[i % len(o.bits)], o.codebook)
    plain(w, "model.norm.weight", (a.hidden,), 0.1)
    w.head_parts = len(w.parts)
    linear(w, "lm_head", a.vocab, a.hidden, o.head_bits, o.codebook)
    if o.mtp:
        mtp(w, a, o.bits[0], o.codebook)
    os.makedirs(o.out, exist_ok=True)
    if o.planted:
        rows, order = plant(w, a, o)
        w.parts[0] = (*w.parts[0][:3], rows.tobytes())
        with open(os.path.join(o.out, "planted.json"), "w", encoding="utf-8") as f:
            json.dump(order.tolist(), f)
    if not o.plain:
        w.header["__metadata__"]["quant"] = "exl3"
    save(o.out, config, w, o.sparse)
    for kind in kinds:
        drafter(getattr(o, kind), a, o.like, kind)
    for name in TEXT_FILES if o.text_from else ():
        shutil.copy(os.path.join(o.text_from, name), o.out)


if __name__ == "__main__":
    main()
