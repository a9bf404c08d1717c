#!/usr/bin/python3
"""make_exl3: writes a small random EXL3 checkpoint in the published file layout.

    make_exl3.py OUT [--widths 4,3.5,plain] [--codebooks mul1,mcg,3inst] [--head-width W] [--mtp-width W] [--odd]
                 [arguments of make_tiny.py]

The model is make_tiny.py's with those arguments; of its linears, each whose sizes are multiples of 128 becomes EXL3: random
trellis bits, factors that keep each output's size. Widths (bits of a weight, 1 to 8, in halves) and codebooks go round from
linear to linear, each list by itself; "plain" leaves that one as it was. Half widths are always mul1, as in the format.
--head-width   of lm_head, which a tied model gets too (its embedding stays plain); 0, the default: the head as it was.
--odd          some linears as early files have them: packed signs in place of factors, on either side; and a few biases.
"""
import argparse
import json
import os
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import exl3  # noqa: E402
import make_tiny  # noqa: E402

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj",
           "gate_proj", "up_proj", "down_proj", "fc", "lm_head")


def words(seed, name, count):
    return ((make_tiny.uniform(seed, name, count) + 1) * 32768).astype(np.uint16)


def signs(seed, name, count):
    return np.where(make_tiny.uniform(seed, name, count) < 0, -1.0, 1.0)


def pack_signs(s):
    return ((s.reshape(-1, 16) < 0) << np.arange(16)).sum(axis=1).astype(np.uint16)


def quantised(seed, key, w, width, codebook, odd):
    """The tensors of the linear `key` that takes the place of w [N, K]: (name, dtype, values)."""
    n, k = w.shape
    trellis = words(seed, key + ".trellis", int(k * n * width / 16)).reshape(k // 16, n // 16, int(16 * width))
    suh, svh = signs(seed, key + ".suh", k), signs(seed, key + ".svh", n)
    size = w.std(axis=1) / exl3.SIGMA[codebook]
    yield key + ".trellis", "I16", trellis.view(np.int16)
    if odd % 4 == 1:
        yield key + ".su", "I16", pack_signs(suh).view(np.int16)
    else:
        yield key + ".suh", "F16", suh * (1 + 0.3 * make_tiny.uniform(seed, key + ".suh size", k)) * \
            (size.mean() if odd % 4 == 2 else 1)
    if odd % 4 == 2:
        yield key + ".sv", "I16", pack_signs(svh).view(np.int16)
    else:
        yield key + ".svh", "F16", svh * size
    if odd and odd % 3 == 0 and ("_attn." in key or key == "mtp.fc"):
        yield key + ".bias", "F32" if odd % 2 else "F16", 0.3 * make_tiny.uniform(seed, key + ".bias", n)
    if codebook in exl3.MARKERS:
        yield key + "." + codebook, "I32", np.array(exl3.MARKERS[codebook], dtype=np.uint32).view(np.int32)


class Converter:
    def __init__(self, o, a):
        self.o, self.a, self.count, self.bits, self.weights, self.storage = o, a, 0, 0, 0, {}

    def width_of(self, key, index):
        if key == "lm_head":
            return self.o.head_width
        if key.startswith("mtp."):
            return self.o.mtp_width
        w = self.o.widths.split(",")[index % len(self.o.widths.split(","))]
        return 0 if w == "plain" else float(w)

    def convert(self, name, w):
        """The tensors that take the place of (name, w)."""
        key, _, end = name.rpartition(".")
        plain = [(name, make_tiny.dtype_of(self.a, name), w)]
        if end != "weight" or key.split(".")[-1] not in LINEARS or w.shape[0] % 128 or w.shape[1] % 128:
            return plain
        width, codebooks = self.width_of(key, self.count), self.o.codebooks.split(",")
        codebook = "mul1" if width % 1 else codebooks[self.count % len(codebooks)]
        self.count += 1
        if not width:
            return plain
        tensors = list(quantised(self.a.seed, key, w, width, codebook, self.count if self.o.odd else 0))
        self.bits += width * w.size
        self.weights += w.size
        self.storage[key] = {"stored_tensors": {t[0]: {"shape": list(np.shape(t[2])), "dtype": t[1]} for t in tensors},
                             "quant_format": "exl3", "bits_per_weight": width}
        return tensors


def write_checkpoint(o, a):
    c, tensors = Converter(o, a), []
    for name, w in make_tiny.all_tensors(a):
        tensors += c.convert(name, w)
    if not a.untied and o.head_width:
        w = make_tiny.normal(a.seed, "lm_head", (a.vocab, a.hidden)) / np.sqrt(a.hidden)
        tensors += c.convert("lm_head.weight", w)
    q = {"quant_method": "exl3", "version": "1.4.2", "bits": round(c.bits / max(c.weights, 1), 2),
         "head_bits": int(o.head_width) or 16, "calibration": {"rows": 250, "cols": 2048}, "out_scales": "always",
         "codebook": o.codebooks.split(",")[0]}
    make_tiny.write_files(a, {**make_tiny.config(a), "quantization_config": q}, tensors)
    with open(os.path.join(a.out, "quantization_config.json"), "w") as f:
        json.dump({**q, "tensor_storage": c.storage}, f, indent=1)
        f.write("\n")


def arguments(argv):
    p = argparse.ArgumentParser(allow_abbrev=False)
    p.add_argument("--widths", default="4")
    p.add_argument("--codebooks", default="mul1")
    p.add_argument("--head-width", type=float, default=0)
    p.add_argument("--mtp-width", type=float, default=4)
    p.add_argument("--odd", action="store_true")
    o, rest = p.parse_known_args(argv)
    return o, make_tiny.arguments(rest)


if __name__ == "__main__":
    write_checkpoint(*arguments(sys.argv[1:]))
