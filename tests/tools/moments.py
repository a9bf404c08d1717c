#!/usr/bin/python3
"""moments: the second moments of what goes into each linear of a small model, for tests/tools/exl3_quantise.

    moments.py MODEL_DIR IDS.json OUT.safetensors [--rows 20000]

IDS.json: what tests/models/calibration.py writes, texts as ids; they are taken until that many rows went through. Writes KEY.moments,
F32 [inputs, inputs], the mean of x x^T over the rows x, for the linears of the layers, the head and the MTP layer; of an expert over
the rows that chose it, and none where those are too few to trust. Numpy only, through tests/tools/reference.py.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reference  # noqa: E402

ROWS_LEAST = 4  # times the inputs of the linear


class Counting(reference.Model):
    def __init__(self, *a):
        super().__init__(*a)
        self.sums = {}  # key: [sum of x x^T, rows]

    def see(self, x, *keys):
        for key in keys:
            s = self.sums.setdefault(key, [0, 0])
            s[0], s[1] = s[0] + x.T @ x, s[1] + len(x)

    def lin(self, x, name):
        self.see(x, self.prefix + name)
        return super().lin(x, name)

    def gated(self, x, key, gate, up, down):
        self.see(x, key + "gate_proj", key + "up_proj")
        h = reference.silu(x @ gate.T) * (x @ up.T)
        self.see(h, key + "down_proj")
        return h @ down.T

    def mlp(self, x, p):
        if self.prefix + p + "gate.weight" in self.t:
            return self.moe(x, p)
        return self.gated(x, self.prefix + p, *(self.w(f"{p}{n}_proj.weight") for n in ("gate", "up", "down")))

    def moe(self, x, p):
        """As the model's own, but expert by expert."""
        E, K = self.c["num_experts"], self.c["num_experts_per_tok"]
        logits = x @ self.w(p + "gate.weight").T
        prob = np.exp(logits - logits.max(-1, keepdims=True))
        prob /= prob.sum(-1, keepdims=True)
        chosen = np.argsort(-prob, axis=-1, kind="stable")[:, :K]
        share = np.zeros_like(prob)
        np.put_along_axis(share, chosen, np.take_along_axis(prob, chosen, -1), -1)
        share /= share.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for e in range(E):
            rows = np.flatnonzero(share[:, e])
            if len(rows):
                y[rows] += share[rows, e, None] * self.gated(x[rows], f"{self.prefix}{p}experts.{e}.", *self.expert(p, e))
        s = self.gated(x, f"{self.prefix}{p}shared_expert.", *(self.w(f"{p}shared_expert.{n}_proj.weight") for n in ("gate", "up", "down")))
        return y + reference.sigmoid(x @ self.w(p + "shared_expert_gate.weight").T) * s


def write(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(x.tobytes())


def main():
    p = argparse.ArgumentParser(allow_abbrev=False)
    p.add_argument("model")
    p.add_argument("ids")
    p.add_argument("out")
    p.add_argument("--rows", type=int, default=20000)
    o = p.parse_args()
    m, rows = reference.read_model(o.model, Counting), 0
    with open(o.ids) as f:
        texts = json.load(f)
    for ids in (text["ids"] for text in texts):
        x = m.hidden(ids, m.new_state())
        m.see(x, "lm_head")
        if "mtp.fc.weight" in m.t:
            m.mtp_hidden(x[:-1], ids[1:])
        rows += len(ids)
        if rows >= o.rows:
            break
    out = {f"{key}.moments": (s / n).astype("<f4") for key, (s, n) in m.sums.items() if n >= ROWS_LEAST * len(s)}
    few = sorted(key for key, (s, n) in m.sums.items() if n < ROWS_LEAST * len(s))
    write(o.out, out)
    print(f"{rows} rows, {len(out)} linears" + (f"; too few rows for {', '.join(few)}" if few else ""))


if __name__ == "__main__":
    main()
