#!/usr/bin/env python3
"""Reference acceptance of drafts, plain and slow: how many tokens a round each kind of draft gives on held-out prompts.

accept.py --model DIR [--drafter DIR ...] [--n 24] [--device cuda|cpu] [--json FILE]

Kinds: mtp (a chain of 3, over the whole vocabulary and over a drafter's spans), dflash and dflash2 (each --drafter), copy
(what followed an earlier match of 8 tokens or more). The target's answers are made first, greedy and sampled at temperature 1
with the engine's own noise; a draft is drawn with the same noise at the same position, and kept while it equals the answer. All
anchors are drafted, then rounds are walked: a round gives the drafts kept and one token more, never past the end.
Classes: chat, code, copy (the edit skill), arithmetic.
"""
import argparse, json, os
import torch, torch.nn.functional as F
import drafter, evaluate, generate, noise
from model import rope

CLASSES = {"chat": ("chat", "after other turns"), "code": ("code",), "copy": ("edit",),
           "arithmetic": ("sums to 999, thinking off", "sums to 99, thinking off", "sums to 99, thinking", "sums to 999, thinking")}
CHAIN, LEAST_ANSWER = 3, 3
COPY_MATCH, COPY_LONGEST, COPY_WIDTHS, COPY_TRIES, COPY_SILENCE, COPY_CHAIN = 8, 64, (15, 31, 63), 4, 16, 256


def walk(kept, n):
    """(rounds, tokens) over an answer of n tokens: kept[i] drafts are right behind answer token i."""
    i, rounds = 0, 0
    while i < n - 1: rounds += 1; i += kept[i] + 1
    return rounds, n - 1


def matches(drafts, answer):
    """How many of each anchor's drafts [anchors, width] are right, one after another."""
    width = drafts.shape[1]
    truth = F.pad(torch.tensor(answer, device=drafts.device), (0, width), value=-1).unfold(0, width, 1)[1:len(drafts) + 1]
    return (drafts == truth).long().cumprod(1).sum(1).tolist()


def gumbels(seed, first, anchors, width, vocab, device):
    """[anchors, width, vocab]: for the tokens behind each anchor, the first anchor at position `first`."""
    pos = first + torch.arange(anchors, device=device)[:, None] + 1 + torch.arange(width, device=device)
    return noise.gumbel(torch.full_like(pos, seed), pos, vocab)


def dflash_drafts(dr, m, p, q, temperature, seed):
    """Drafts behind every answer token but the last."""
    dev, table = m.model.embed_tokens.weight.device, m.model.embed_tokens.weight
    ids = torch.tensor([p + q], device=dev)
    anchors = torch.arange(len(p), len(p) + len(q) - 1, device=dev)[None]
    _, X = m.hidden(ids, taps=dr.c.taps)
    h = dr(X, ids, anchors, table)[0]
    g = gumbels(seed, len(p), anchors.shape[1], dr.c.block - 1, dr.c.vocab, dev) if temperature else None
    return dr.path(h, ids[0, anchors[0]], table if m.lm_head is None else m.lm_head, g, temperature)


def mtp_drafts(m, p, q, temperature, seed, keep=None):
    """A chain of CHAIN drafts behind every answer token but the last. The layer's rows below the anchor are true ones (the target's
    hidden, the true next token); the chain's own rows come behind them, and no other chain sees them."""
    dev, layer, at = m.model.embed_tokens.weight.device, m.mtp.layers[0], m.mtp.layers[0].self_attn
    c, ids = m.c, torch.tensor(p + q, device=dev)
    anchors = torch.arange(len(p), len(p) + len(q) - 1, device=dev)  # positions; row r takes hidden r and token r + 1
    h, e = m.hidden(ids[None])[:, :-1], m.model.embed_tokens(ids[None, 1:])

    def rows(e, hid, pos):
        x = m.mtp.fc(torch.cat([m.mtp.pre_fc_norm_embedding(e), m.mtp.pre_fc_norm_hidden(hid)], -1))
        n = layer.input_layernorm(x)
        u = at.q_proj(n).view(1, -1, c.H, 2 * c.hd)
        heads = lambda t: t.transpose(1, 2)
        query = rope(heads(at.q_norm(u[..., :c.hd])), pos, c)[0]
        key = rope(heads(at.k_norm(at.k_proj(n).view(1, -1, c.KV, c.hd))), pos, c)[0]
        return x, query, torch.sigmoid(u[..., c.hd:].flatten(2)), key, heads(at.v_proj(n).view(1, -1, c.KV, c.hd))[0]

    def finish(x, out, gate):
        y = x + at.o_proj(out.transpose(0, 1).flatten(1)[None] * gate)
        return m.mtp.norm(y + layer.mlp(layer.post_attention_layernorm(y)))

    many = lambda t: t.repeat_interleave(c.H // c.KV, 0)  # heads of keys and values for the query heads
    pos = torch.arange(len(ids) - 1, device=dev)
    x, query, gate, K, V = rows(e, h, pos)
    K, V, own_k, own_v, drafts = many(K), many(V), [], [], []
    seen = pos[None] <= (anchors - 1)[:, None]
    o = finish(x, F.scaled_dot_product_attention(query, K, V, is_causal=True), gate)[:, anchors - 1]
    for j in range(CHAIN):
        logits = m.logits(o)[0].float()
        if keep is not None: logits = logits.masked_fill(~keep, -torch.inf)
        if temperature:
            at_pos = anchors + 1 + j
            logits = logits.double() / temperature + noise.gumbel(torch.full_like(at_pos, seed), at_pos, logits.shape[-1])
        drafts.append(logits.argmax(-1))
        if j + 1 == CHAIN: break
        x, query, gate, key, value = rows(m.model.embed_tokens(drafts[-1])[None], o, anchors + j)
        own_k.append(many(key)); own_v.append(many(value))
        far = (query @ K.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        near = torch.stack([(query * k).sum(-1) for k in own_k], -1)
        w = F.softmax(torch.cat([far, near], -1) * c.hd ** -0.5, -1)
        out = w[..., :len(pos)] @ V + sum(w[..., len(pos) + i, None] * v for i, v in enumerate(own_v))
        o = finish(x, out, gate)
    return torch.stack(drafts, 1)


class Copies:
    """The copy rule of one stream without another drafter: docs in the engine's drafting spec, section 4.2."""
    def __init__(self, ids):
        self.ctx, self.ends = [], {}
        self.level, self.misses, self.silent = 0, 0, 0
        for t in ids: self.add(t)

    def add(self, token):
        n = len(self.ctx)
        if n >= 4: self.ends.setdefault(tuple(self.ctx[n - 4:n]), []).append(n)  # an end goes in when what follows is known
        self.ctx.append(token)

    def find(self):
        n, best = len(self.ctx), (0, None)
        for e in reversed(self.ends.get(tuple(self.ctx[n - 4:]), [])[-COPY_CHAIN:]):
            k = 0
            while k < COPY_LONGEST and k < e and self.ctx[e - 1 - k] == self.ctx[n - 1 - k]: k += 1
            if k > best[0]: best = (k, e)
        return best

    def draft(self):
        length, e = self.find()
        if self.silent: self.silent -= 1; return []
        if length < COPY_MATCH: return []
        n, out = len(self.ctx), []
        for i in range(COPY_WIDTHS[self.level]): out.append(self.ctx[e + i] if e + i < n else out[i - (n - e)])
        return out

    def result(self, drafted, kept):
        if not drafted: return
        self.level = min(self.level + 1, len(COPY_WIDTHS) - 1) if kept == drafted else 0
        self.misses = self.misses + 1 if kept == 0 else 0
        if self.misses == COPY_TRIES: self.misses, self.silent = 0, COPY_SILENCE


def copy_rounds(p, q):
    """(rounds, tokens, rounds with a copy, tokens of those)."""
    c, i, total = Copies(p + q[:1]), 0, [0, len(q) - 1, 0, 0]
    while i < len(q) - 1:
        d = c.draft()[:len(q) - 1 - i]
        kept = next((k for k, t in enumerate(d) if t != q[i + 1 + k]), len(d))
        c.result(len(d), kept)
        got = min(kept + 1, len(q) - 1 - i)
        for t in q[i + 1:i + 1 + got]: c.add(t)
        total[0] += 1; total[2] += bool(d); total[3] += got if d else 0
        i += got
    return total


def held_out(n):
    """{class: items}."""
    out = {}
    for it in generate.test_set(n, seed=91):
        for name, skills in CLASSES.items():
            if it["skill"] in skills: out.setdefault(name, []).append(it)
    return {name: [its[i * len(its) // n] for i in range(n)] for name, its in out.items()}


def runs(m, tok, n, temperatures=(0.0, 1.0), new_max=evaluate.NEW_MAX):
    """The target's answers: (class, temperature, seed, prompt ids, answer ids)."""
    return [(name, temperature, seed, p, q) for name, its in held_out(n).items() for temperature in temperatures
            for seed, (_, p, q, _) in enumerate(evaluate.answers(m, tok, its, temperature, new_max=new_max)) if len(q) >= LEAST_ANSWER]


@torch.no_grad()
def dflash_walk(dr, m, p, q, temperature, seed): return walk(matches(dflash_drafts(dr, m, p, q, temperature, seed), q), len(q))


@torch.no_grad()
def measure(m, made, drafters):
    """{(kind, class, temperature): [rounds, tokens]}, and the copies' own counts. made: what runs gives; drafters: {name: Drafter}."""
    out, copies = {}, {}
    keep = next((dr.in_spans(m.model.embed_tokens.weight.device) for dr in drafters.values()), None)
    for name, temperature, seed, p, q in made:
        got = {k: dflash_walk(dr, m, p, q, temperature, seed) for k, dr in drafters.items()}
        got["mtp"] = walk(matches(mtp_drafts(m, p, q, temperature, seed), q), len(q))
        if keep is not None: got["mtp, spans"] = walk(matches(mtp_drafts(m, p, q, temperature, seed, keep), q), len(q))
        c = copy_rounds(p, q)
        got["copy"] = c[:2]
        for kind, (rounds, tokens) in got.items():
            t = out.setdefault((kind, name, temperature), [0, 0])
            t[0] += rounds; t[1] += tokens
        t = copies.setdefault((name, temperature), [0, 0])
        t[0] += c[2]; t[1] += c[3]
    return out, copies


def table(result, copies):
    """Lines of a table: tokens a round by kind, temperature and class."""
    names = list(CLASSES)
    rows = [["kind", "temperature", *names, "all"]]
    for kind, temperature in dict.fromkeys((k, t) for k, _, t in result):
        cells = [result.get((kind, name, temperature), [0, 0]) for name in names]
        cells.append([sum(c[0] for c in cells), sum(c[1] for c in cells)])
        rows.append([kind, f"{temperature:g}", *(f"{c[1] / max(c[0], 1):.2f}" for c in cells)])
    for temperature in dict.fromkeys(t for _, t in copies):
        cells = [copies[name, temperature] for name in names]
        rows.append(["copy, rounds with one", f"{temperature:g}", *(f"{c[1] / c[0]:.2f}" if c[0] else "-" for c in cells), ""])
    return ["| " + " | ".join(r) + " |" for r in [rows[0], ["---"] * len(rows[0]), *rows[1:]]]


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--drafter", action="append", default=[])
    ap.add_argument("--n", type=int, default=24, help="prompts of a class")
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--json")
    o = ap.parse_args()
    m, _, tok = evaluate.load(os.path.abspath(o.model), o.device)
    drafters = {os.path.basename(os.path.abspath(d)): drafter.load(d, o.device) for d in o.drafter}
    result, copies = measure(m, runs(m, tok, o.n), drafters)
    print("\n".join(table(result, copies)), flush=True)
    if o.json:
        with open(o.json, "w") as f: json.dump([[*k, *v] for k, v in result.items()], f)


if __name__ == "__main__":
    main()
