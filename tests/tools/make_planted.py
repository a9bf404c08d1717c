#!/usr/bin/python3
"""make_planted: makes a model of make_shape.py say something known, and a DFlash2 drafter of the published form that often guesses it.

    make_planted.py MODEL DRAFTER [--ids 4096] [--period 128] [--agree 0.8] [--block 8] [size flags of the drafter]

MODEL, in place: the embedding's rows of the first `ids` ids become, each, the head's column of the id that is to follow, so that whatever the
random layers add, the next id is that one. What follows what: the ids make cycles of `period`; those that the
tokeniser adds lead into one. follows.json has the list. All of the forward is still computed, and none of its matrices changes.

DRAFTER: DFlash2 with the sizes of Qwen3.8-27B-DFlash2 and random weights, but for a way through its first attention: a head of each group
looks `period` positions back, where the reply had the same id, and passes a code of what the target's first tap has there on to a
matrix that makes the head's column of that id of it. So it guesses right once a reply is longer than `period`. The
selector's random codebooks are the noise that spoils a guess: their size is chosen for guesses to be right with the chance `agree`, about; which
ids are guessed wrong does not change from one period to the next.
"""
import argparse
import json
import math
import os
import statistics
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import exl3  # noqa: E402

TAPS, TAPS_OF = (5, 19, 33, 47, 61), 64
STRENGTH = 4.0  # of a planted row, beside what the layers add, each up to about 0.6
COMMON = 0.5    # of what all planted rows share: the drafter's keys are made of it
SHARP = 45.0    # of the copying heads' scores: the neighbours of the position they look at weigh e^-9
LAYER = 0.72    # mean square of what a random layer of the target adds
NOISE = 0.1     # what a random sublayer of the drafter adds, beside 1 of the planted way
SIGNS = 64      # inputs that say what all positions have in common
TYPES = {"BF16": np.uint16, "F16": np.float16, "I16": np.int16, "F32": np.float32, "I32": np.int32}


def to_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def unit(x):
    """Rows of root mean square 1."""
    return x / np.sqrt((x ** 2).mean(axis=-1, keepdims=True))


class Model:
    """A checkpoint in one file, its tensors mapped for writing."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "model.safetensors")
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        self.config = config.get("text_config", config)
        with open(self.path, "rb") as f:
            (size,) = struct.unpack("<Q", f.read(8))
            self.header, self.base = json.loads(f.read(size)), 8 + size

    def tensor(self, name):
        t = self.header[name]
        return np.memmap(self.path, TYPES[t["dtype"]], "r+", self.base + t["data_offsets"][0], tuple(t["shape"]) or (1,))

    def head(self, count):
        """The head's columns of the first ids, fp32 [count, hidden]."""
        if "lm_head.weight" in self.header:
            return from_bf16(np.array(self.tensor("lm_head.weight")[:count]))
        codebook = next((c for c in exl3.MARKERS if f"lm_head.{c}" in self.header), "3inst")
        w = exl3.decode(np.array(self.tensor("lm_head.trellis")[:, :count // 16]), codebook).astype(np.float32)
        w = exl3.hadamard(np.ascontiguousarray(exl3.hadamard(np.ascontiguousarray(w.T)).T))
        suh, svh = (np.array(self.tensor("lm_head." + s)).astype(np.float32) for s in ("suh", "svh"))
        return np.ascontiguousarray((suh[:, None] * w * svh[:count]).T)


def added_from(folder, ids):
    """The first of the ids that a tokeniser adds."""
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        return ids
    with open(path, encoding="utf-8") as f:
        return min([ids] + [t["id"] for t in json.load(f).get("added_tokens", [])])


def followers(ids, plain, period):
    """The id behind each id."""
    rng = np.random.default_rng(7)
    cycles = rng.permutation(plain)[:plain // period * period].reshape(-1, period)
    follows = rng.choice(cycles.reshape(-1), ids)
    follows[cycles] = np.roll(cycles, -1, axis=1)
    return follows


class Noise:
    """Random values, one block again and again, from another place each time."""

    def __init__(self):
        self.normal, self.at, self.blocks = np.random.default_rng(1).standard_normal(1 << 22, np.float32), 0, {}

    def pieces(self, count, scale):
        if scale not in self.blocks:
            self.blocks[scale] = to_bf16(self.normal * np.float32(scale))
        block = self.blocks[scale]
        while count:
            n = min(count, len(block) - self.at)
            yield block[self.at:self.at + n]
            self.at = (self.at + n + 12347) % len(block)
            count -= n

    def matrix(self, shape, scale):
        return np.concatenate(list(self.pieces(int(np.prod(shape)), scale))).reshape(shape)


class Planted:
    """The rows of the drafter that are not random, from what was planted in the target."""

    def __init__(self, a, columns, rows, common, mask):
        rng = np.random.default_rng(11)
        self.a, self.code = a, a.kv_heads * a.head_dim
        self.mask, self.common = unit(mask) / math.sqrt(a.hidden), common
        self.reader = rng.choice(np.array([-1, 1], np.float32), (self.code, a.hidden)) / np.float32(math.sqrt(a.hidden))
        self.reader -= np.outer(self.reader @ common, common) / (common @ common)
        codes = unit(rows @ self.reader.T)
        self.maker = columns.T @ codes
        self.maker /= np.sqrt(((self.maker @ codes[:64].T) ** 2).mean())
        self.share = float(np.mean(unit((codes[:64] @ self.maker.T)) * columns[:64]))

    def fc(self, w):
        w[:self.code + SIGNS] = 0
        w[:self.code, :self.a.hidden] = to_bf16(self.reader)
        w[self.code:self.code + SIGNS, :self.a.hidden] = to_bf16(self.common / self.a.hidden)
        return w

    def q(self, w):
        half = self.a.head_dim // 2
        angle = -self.a.period * self.a.theta ** (-np.arange(half) / half)
        head = np.concatenate((np.cos(angle), np.sin(angle))).astype(np.float32)
        heads = w.reshape(self.a.heads, self.a.head_dim, self.a.hidden)
        heads[::self.a.heads // self.a.kv_heads] = to_bf16(np.outer(head, self.mask))
        return w

    def k(self, w):
        heads = w.reshape(self.a.kv_heads, 2, self.a.head_dim // 2, self.a.hidden)
        heads[:] = 0
        heads[:, 0, :, self.code:self.code + SIGNS] = to_bf16(np.float32(1 / SIGNS))
        return w

    def v(self, w):
        return to_bf16(np.eye(self.code, self.a.hidden, dtype=np.float32))

    def o(self, w):
        every = self.a.heads // self.a.kv_heads
        w.reshape(self.a.hidden, self.a.kv_heads, every, self.a.head_dim)[:, :, 0] = to_bf16(
            self.maker.reshape(self.a.hidden, self.a.kv_heads, self.a.head_dim))
        return w


def selector_scale(a, share):
    """Of the codebooks' values, for the best of 16 candidates to stay the planted one with the chance a.agree."""
    # Others of the 16 are about as good as the eighth best of so many normal values.
    kept = 1 / math.sqrt(1 + LAYER * (a.taps[0] + 1) / STRENGTH ** 2)
    gap = kept * share * math.sqrt(a.hidden) - math.sqrt(2 * math.log(min(a.vocab, 98304) / 8))
    if a.agree >= 1 or gap <= 0:
        return 0.0
    z = statistics.NormalDist().inv_cdf(a.agree)  # the best of 15 normal values: 1.74, give or take 0.55
    return math.sqrt(gap / (1.74 + 1.14 * z) / math.sqrt(a.rank))


def tensors(a, p):
    """(name, shape, scale of random values, what is planted in them); scale None: the value itself."""
    D, I, q, kv = a.hidden, a.intermediate, a.heads * a.head_dim, a.kv_heads * a.head_dim
    size = lambda n: 1 / math.sqrt(n)  # noqa: E731
    yield "fc.weight", (D, len(a.taps) * D), size(len(a.taps) * D), p.fc
    yield "hidden_norm.weight", (D,), None, 1.0
    yield "norm.weight", (D,), None, 1.0
    for i in range(a.layers):
        l, first, sharp = f"layers.{i}.", i == 0, math.sqrt(SHARP) if i == 0 else 1.0
        yield l + "input_layernorm.weight", (D,), None, 1.0
        yield l + "post_attention_layernorm.weight", (D,), None, 1.0
        yield l + "self_attn.q_proj.weight", (q, D), size(D), p.q if first else None
        yield l + "self_attn.k_proj.weight", (kv, D), size(D), p.k if first else None
        yield l + "self_attn.v_proj.weight", (kv, D), size(D), p.v if first else None
        yield l + "self_attn.o_proj.weight", (D, q), NOISE * size(q), p.o if first else None
        yield l + "self_attn.q_norm.weight", (a.head_dim,), None, sharp
        yield l + "self_attn.k_norm.weight", (a.head_dim,), None, sharp
        yield l + "mlp.gate_proj.weight", (I, D), size(D), None
        yield l + "mlp.up_proj.weight", (I, D), size(D), None
        yield l + "mlp.down_proj.weight", (D, I), 2 * NOISE * size(I), None
        for conv in ("attention_conv", "mlp_conv"):
            yield f"{l}{conv}.base_kernel", (2, 2, D), None, np.array([[1, 0], [1, 0]], np.float32)[:, :, None]
            yield f"{l}{conv}.kernel_projection.weight", (4 * (D // a.group), D), 0.02 * size(D), None
    yield "candidate_selector.hidden_projection.weight", (a.rank, D), size(D), None
    for book in ("predecessor", "successor"):
        yield f"candidate_selector.{book}_codebook", (a.vocab, a.rank), selector_scale(a, p.share), None


def config(a):
    return {
        "architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_size": a.hidden,
        "intermediate_size": a.intermediate, "num_hidden_layers": a.layers, "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim, "vocab_size": a.vocab, "num_target_layers": a.target_layers,
        "rms_norm_eps": 1e-06, "rope_theta": a.theta, "layer_types": ["sliding_attention"] * a.layers, "sliding_window": a.window,
        "is_causal": False,
        "dflash_config": {"mask_token_id": a.mask_id, "target_layer_ids": a.taps, "block_size": a.block, "conv_kernel_size": 2,
                          "conv_group_size": a.group, "selector_rank": a.rank, "selector_top_k": 16},
    }


def write_drafter(a, p, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config(a), f, indent=1)
    header, at, all_tensors = {"__metadata__": {"format": "pt"}}, 0, list(tensors(a, p))
    for name, shape, _, _ in all_tensors:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    noise = Noise()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, shape, scale, plant in all_tensors:
            if scale is None:
                f.write(to_bf16(np.broadcast_to(np.float32(plant), shape)))
            elif plant:
                f.write(plant(noise.matrix(shape, scale)))
            else:
                for piece in noise.pieces(int(np.prod(shape)), scale):
                    f.write(piece)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("drafter")
    for name, value in (("ids", 4096), ("period", 128), ("block", 8), ("layers", 5), ("heads", 32), ("kv-heads", 8), ("head-dim", 128),
                        ("intermediate", 17408), ("window", 2048), ("group", 16), ("rank", 256)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--agree", type=float, default=0.8)
    parser.add_argument("--theta", type=float, default=1e7)
    a = parser.parse_args()
    model = Model(a.model)
    a.hidden, a.vocab, a.target_layers = (model.config[k] for k in ("hidden_size", "vocab_size", "num_hidden_layers"))
    a.taps = sorted({t * a.target_layers // TAPS_OF for t in TAPS})
    a.mask_id = a.vocab - 250 if a.vocab - 250 >= a.ids else a.vocab - 1
    follows = followers(a.ids, added_from(a.model, a.ids), a.period)
    columns = unit(model.head(a.ids))
    common = np.random.default_rng(3).choice(np.array([-1, 1], np.float32), a.hidden)
    rows = from_bf16(to_bf16(STRENGTH * (columns[follows] + COMMON * common)))
    embedding = model.tensor("model.embed_tokens.weight")
    embedding[:a.ids] = to_bf16(rows)
    mask = from_bf16(np.array(embedding[a.mask_id]))
    embedding.flush()
    with open(os.path.join(a.model, "follows.json"), "w", encoding="utf-8") as f:
        json.dump(follows.tolist(), f)
    p = Planted(a, columns, rows, common, mask)
    write_drafter(a, p, a.drafter)
    print(f"planted: {a.ids} ids in cycles of {a.period}; the drafter's share of a guess {p.share:.2f}, codebooks {selector_scale(a, p.share):.3f}")


if __name__ == "__main__":
    main()
