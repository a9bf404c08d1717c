#!/usr/bin/python3
"""reference: a plain double-precision forward of the qwen3_5 and qwen3_5_moe text models, with numpy and nothing else.

    reference.py MODEL_DIR CASES.json OUT_STEM

CASES.json: [{"name": ..., "ids": [...], "rows": [...], "greedy": N}, ...]. Writes OUT_STEM.json (the cases, with the
greedy ids that follow each prompt and the least margin between the best and second logit among those draws) and
OUT_STEM.f32 (little-endian fp32 logits, [rows, vocab] of each case in turn). With experts, a case also gets the least gap
between the router's logits of the last expert chosen and the first one left, over all rows and layers of the case: where
that is small, rounding picks the expert.

It is slow and direct on purpose: the delta rule runs token by token, attention over the whole prompt, in float64, so
that it can judge the engine. Written from the published architecture (Hugging Face transformers, qwen3_5), not from
the engine.
"""
import copy
import json
import os
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import exl3  # noqa: E402


def read_safetensors(path):
    out = {}
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        raw = data[8 + n + a:8 + n + b]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif t["dtype"] in ("I16", "I32"):  # of an EXL3 linear: as it stands
            out[name] = np.frombuffer(raw, {"I16": "<i2", "I32": "<i4"}[t["dtype"]]).reshape(t["shape"])
            continue
        else:
            x = np.frombuffer(raw, {"F16": np.float16, "F32": np.float32}[t["dtype"]])
        out[name] = x.astype(np.float64).reshape(t["shape"])
    return out


def read_model(folder, kind=None):
    """kind: a subclass of Model."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(read_safetensors(os.path.join(folder, name)))
    for key in [name[:-len(".trellis")] for name in tensors if name.endswith(".trellis")]:
        tensors[key + ".weight"] = exl3.dense(tensors, key)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    for prefix in ("model.language_model.", "language_model.model.", "model."):
        if prefix + "embed_tokens.weight" in tensors:
            return (kind or Model)(text, tensors, prefix)
    raise SystemExit(f"{folder}: no embed_tokens.weight")


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


class Model:
    def __init__(self, c, tensors, prefix):
        self.c, self.t, self.prefix = c, tensors, prefix
        self.eps = c.get("rms_norm_eps", 1e-6)
        self.head = tensors.get("lm_head.weight", tensors[prefix + "embed_tokens.weight"])
        self.freq, self.rope_scale = self.rope_table()
        self.routing_margin = np.inf

    def w(self, name):
        return self.t[self.prefix + name]

    def lin(self, x, name):
        y = x @ self.w(name + ".weight").T
        bias = self.t.get(self.prefix + name + ".bias")
        return y if bias is None else y + bias.astype(np.float16).astype(np.float64)

    def rope_table(self):
        r = self.c.get("rope_parameters") or {}
        d = int(self.c.get("head_dim", 256) * r.get("partial_rotary_factor", 0.25))
        base = r.get("rope_theta", 10000.0)
        j = np.arange(d // 2)
        freq = base ** (-2.0 * j / d)
        if r.get("rope_type", "default") != "yarn":
            return freq, 1.0
        original = r["original_max_position_embeddings"]

        def find(n):
            return d * np.log(original / (n * 2 * np.pi)) / (2 * np.log(base))

        low = max(0, np.floor(find(r.get("beta_fast", 32))))
        high = min(d - 1, np.ceil(find(r.get("beta_slow", 1))))
        ramp = np.clip((j - low) / (high - low if high != low else 0.001), 0, 1)
        scale = 0.1 * np.log(r["factor"]) + 1 if r["factor"] > 1 else 1.0
        return freq * (1 - ramp) + freq / r["factor"] * ramp, r.get("attention_factor") or scale

    def norm(self, x, name):
        """Zero-centred: the weight is added to 1."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * (1 + self.w(name))

    def rope(self, x, first):
        """x [T, heads, head_dim]; the two halves of the rotary part make the pairs."""
        n = len(self.freq)
        angle = (np.arange(first, first + x.shape[0])[:, None] * self.freq)[:, None, :]
        cos, sin = np.cos(angle) * self.rope_scale, np.sin(angle) * self.rope_scale
        a, b = x[..., :n], x[..., n:2 * n]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * n:]], -1)

    def attention(self, x, p, st):
        c, T = self.c, x.shape[0]
        H, KV, d = c["num_attention_heads"], c["num_key_value_heads"], c.get("head_dim", 256)
        u = self.lin(x, p + "q_proj").reshape(T, H, 2 * d)
        q, gate = u[..., :d], u[..., d:].reshape(T, H * d)
        k = self.lin(x, p + "k_proj").reshape(T, KV, d)
        v = self.lin(x, p + "v_proj").reshape(T, KV, d)
        first = 0 if st["k"] is None else len(st["k"])
        q = self.rope(self.norm(q, p + "q_norm.weight"), first)
        k = self.rope(self.norm(k, p + "k_norm.weight"), first)
        st["k"] = k if st["k"] is None else np.concatenate([st["k"], k])
        st["v"] = v if st["v"] is None else np.concatenate([st["v"], v])
        hidden = np.arange(len(st["k"]))[None, :] > np.arange(first, first + T)[:, None]
        out = np.empty((T, H, d))
        for h in range(H):
            s = q[:, h] @ st["k"][:, h // (H // KV)].T / np.sqrt(d)
            s = np.exp(np.where(hidden, -np.inf, s) - np.where(hidden, -np.inf, s).max(-1, keepdims=True))
            out[:, h] = s / s.sum(-1, keepdims=True) @ st["v"][:, h // (H // KV)]
        return self.lin(out.reshape(T, H * d) * sigmoid(gate), p + "o_proj")

    def delta(self, x, p, st):
        c, T = self.c, x.shape[0]
        NK, NV = c.get("linear_num_key_heads", 16), c.get("linear_num_value_heads", 32)
        dk, dv = c.get("linear_key_head_dim", 128), c.get("linear_value_head_dim", 128)
        K = c.get("linear_conv_kernel_dim", 4)
        m = self.lin(x, p + "in_proj_qkv")
        z = self.lin(x, p + "in_proj_z").reshape(T, NV, dv)
        beta = sigmoid(self.lin(x, p + "in_proj_b"))
        g = -np.exp(self.w(p + "A_log")) * softplus(self.lin(x, p + "in_proj_a") + self.w(p + "dt_bias"))
        if st["conv"] is None:
            st["conv"] = np.zeros((K - 1, m.shape[1]))
            st["S"] = np.zeros((NV, dk, dv))
        rows = np.concatenate([st["conv"], m])
        st["conv"] = rows[len(rows) - (K - 1):]
        w = self.w(p + "conv1d.weight")[:, 0]
        y = silu(sum(w[:, j] * rows[j:j + T] for j in range(K)))
        q = y[:, :NK * dk].reshape(T, NK, dk)
        k = y[:, NK * dk:2 * NK * dk].reshape(T, NK, dk)
        v = y[:, 2 * NK * dk:].reshape(T, NV, dv)
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / np.sqrt(dk)
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        q, k = np.repeat(q, NV // NK, axis=1), np.repeat(k, NV // NK, axis=1)
        o, S = np.empty((T, NV, dv)), st["S"]
        for t in range(T):
            S = np.exp(g[t])[:, None, None] * S
            d = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", S, k[t]))
            S = S + k[t][:, :, None] * d[:, None, :]
            o[t] = np.einsum("hkv,hk->hv", S, q[t])
        st["S"] = S
        # The gated norm: plain weight, norm first, then the gate.
        o = o / np.sqrt((o * o).mean(-1, keepdims=True) + self.eps) * self.w(p + "norm.weight") * silu(z)
        return self.lin(o.reshape(T, NV * dv), p + "out_proj")

    def swiglu(self, x, gate, up, down):
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def mlp(self, x, p):
        if self.prefix + p + "gate.weight" in self.t:
            return self.moe(x, p)
        return self.swiglu(x, *(self.w(p + n + "_proj.weight") for n in ("gate", "up", "down")))

    def expert(self, p, e):
        """Gate, up and down of a routed expert, in whichever form the layer has; packed where it has both."""
        if self.prefix + p + "experts.gate_up_proj" in self.t:
            gate_up = self.w(p + "experts.gate_up_proj")[e]
            return gate_up[:len(gate_up) // 2], gate_up[len(gate_up) // 2:], self.w(p + "experts.down_proj")[e]
        return (self.w(f"{p}experts.{e}.{n}_proj.weight") for n in ("gate", "up", "down"))

    def moe(self, x, p):
        E, K = self.c["num_experts"], self.c["num_experts_per_tok"]
        logits = x @ self.w(p + "gate.weight").T
        prob = np.exp(logits - logits.max(-1, keepdims=True))
        prob /= prob.sum(-1, keepdims=True)
        order = np.argsort(-prob, axis=-1, kind="stable")  # of equals, the lowest number first
        if K < E:
            ranked = np.take_along_axis(logits, order, -1)
            self.routing_margin = min(self.routing_margin, (ranked[:, K - 1] - ranked[:, K]).min())
        y = np.zeros_like(x)
        for t in range(len(x)):
            chosen = order[t, :K]
            for e in chosen:
                y[t] += prob[t, e] / prob[t, chosen].sum() * self.swiglu(x[t], *self.expert(p, e))
        s = self.swiglu(x, *(self.w(f"{p}shared_expert.{n}_proj.weight") for n in ("gate", "up", "down")))
        return y + sigmoid(x @ self.w(p + "shared_expert_gate.weight").T) * s

    def full(self, i):
        types = self.c.get("layer_types")
        return types[i] == "full_attention" if types else (i + 1) % self.c.get("full_attention_interval", 4) == 0

    def new_state(self):
        return [dict(k=None, v=None, conv=None, S=None) for _ in range(self.c["num_hidden_layers"])]

    def hidden(self, ids, state):
        """What the head takes, [len(ids), hidden]; state moves on by the ids."""
        h = self.w("embed_tokens.weight")[np.asarray(ids)]
        for i, st in enumerate(state):
            p = f"layers.{i}."
            x = self.norm(h, p + "input_layernorm.weight")
            h = h + (self.attention(x, p + "self_attn.", st) if self.full(i) else self.delta(x, p + "linear_attn.", st))
            x = self.norm(h, p + "post_attention_layernorm.weight")
            h = h + self.mlp(x, p + "mlp.")
        return self.norm(h, "norm.weight")

    def forward(self, ids, state):
        """Logits [len(ids), vocab]; state moves on by the ids."""
        return self.hidden(ids, state) @ self.head.T

    def mtp_hidden(self, hidden, tokens, state=None):
        """What the head takes of the MTP layer: row q has the hidden of position q and the token of position q + 1. state:
        dict(k=None, v=None), moves on by the rows; without it they start at position 0."""
        m = copy.copy(self)
        m.prefix = "mtp."
        e = m.norm(self.w("embed_tokens.weight")[np.asarray(tokens)], "pre_fc_norm_embedding.weight")
        x = m.lin(np.concatenate([e, m.norm(hidden, "pre_fc_norm_hidden.weight")], -1), "fc")
        p = "layers.0."
        state = dict(k=None, v=None) if state is None else state
        x = x + m.attention(m.norm(x, p + "input_layernorm.weight"), p + "self_attn.", state)
        x = x + m.mlp(m.norm(x, p + "post_attention_layernorm.weight"), p + "mlp.")
        self.routing_margin = m.routing_margin
        return m.norm(x, "norm.weight")

    def mtp_chain(self, hidden, ids, pos, count, draw):
        """Drafts behind ids[pos], the last known id; hidden: of positions 0 .. pos - 1 at least. draw(logits, position) gives
        an id and by how much it won. Returns the drafts and the least of the margins up to each."""
        state, drafts, margins = dict(k=None, v=None), [], []
        o = self.mtp_hidden(hidden[:pos], ids[1:pos + 1], state)[-1]
        for j in range(count):
            token, margin = draw(o @ self.head.T, pos + 1 + j)
            drafts.append(token)
            margins.append(min([margin] + margins[-1:]))
            o = self.mtp_hidden(o[None], [token], state)[-1]
        return drafts, margins

    def greedy(self, last, state, count):
        ids, margin = [], np.inf
        for _ in range(count):
            best = np.argsort(-last, kind="stable")[:2]
            margin = min(margin, last[best[0]] - last[best[1]])
            ids.append(int(best[0]))
            last = self.forward([ids[-1]], state)[-1]
        return ids, float(margin)


def run_case(model, case):
    """Completes the case; returns the logits of all its ids."""
    state, model.routing_margin = model.new_state(), np.inf
    logits = model.forward(case["ids"], state)
    case["range"] = float(logits.max() - logits.min())
    case["greedy_ids"], case["greedy_margin"] = model.greedy(logits[-1], state, case.pop("greedy"))
    if np.isfinite(model.routing_margin):
        case["routing_margin"] = float(model.routing_margin)
    return logits


def write_cases(stem, cases, logits):
    """logits: of each case, of all its ids."""
    with open(stem + ".f32", "wb") as f:
        for case, of_case in zip(cases, logits):
            f.write(of_case[case["rows"]].astype("<f4").tobytes())
    with open(stem + ".json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def run_cases(model, cases, stem):
    write_cases(stem, cases, [run_case(model, case) for case in cases])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    with open(sys.argv[2]) as cases_file:
        run_cases(read_model(sys.argv[1]), json.load(cases_file), sys.argv[3])
