#!/usr/bin/env python3
"""Reference vectors of the demo model from transformers in fp32: logits, argmax, margins, greedy continuations. One GPU.

make_reference.py --model tests/models/demo --out tests/golden/demo
"""
import argparse, itertools, json, os, random, sys
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "models"))
import numpy as np
import evaluate, generate, skills_work

CUTS = [1, 2, 15, 16, 17, 64, 65, 129]  # prompts cut to these lengths; the others keep their own
WHOLE = ["sums to 99, thinking", "sums to 99, thinking off", "story", "json", "edit", "code", "chat", "tool call", "tool result", "several calls"]
EDGES = [15, 16, 63, 64, 65, 127, 128, 191, 192, 255, 256, 511, 512]
GREEDY = 32


def prompts(tok):
    """20 of (name, thinking, ids)."""
    its = generate.test_set(3, 901)
    ids = lambda it: tok.encode(it["prompt"], add_special_tokens=False).ids
    by = lambda skill: [it for it in its if it["skill"] == skill]
    out = []
    for k, n in enumerate(CUTS):  # a different skill each time
        it = next(it for it in its[5 * k:] + its if len(ids(it)) > n)
        out.append((f"{it['skill']}, first {n}", it["think"], ids(it)[:n]))
    out += [(s, it["think"], ids(it)) for s in WHOLE for it in by(s)[:1]]
    r = random.Random(5)
    for low, high, words in ((500, 620, 480), (660, 720, 590)):
        drawn = (skills_work.recall(r, True, words, words) for _ in itertools.count())
        it = next(it for it in drawn if it and low <= len(ids(it)) <= high)
        out.append(("recall", it["think"], ids(it)))
    assert len(out) == 20, len(out)
    return out


def positions(n):
    """First, last and up to four between, at and around the multiples of 16 and 64 first."""
    inner = [p for p in EDGES if 0 < p < n - 1]
    inner = inner if len(inner) <= 4 else [inner[i * (len(inner) - 1) // 3] for i in range(4)]
    return sorted({0, n - 1, *inner, *([n // 2] if len(inner) < 4 else [])})


def top2(logits):
    v, i = logits.topk(2, -1)
    return i[..., 0].cpu().numpy().astype(np.int32), (v[..., 0] - v[..., 1]).cpu().numpy().astype(np.float32)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--out", required=True)
    o = ap.parse_args()
    import torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    own, _, tok = evaluate.load(os.path.abspath(o.model))
    hf = evaluate.transformers_model(os.path.abspath(o.model))
    listed, offset, rows, worst = [], 0, 0, 0.0
    out = {k: [] for k in ("logits", "argmax", "margin", "greedy", "greedy_margin", "mtp_logits", "mtp_argmax", "mtp_margin")}
    with torch.no_grad():
        for name, think, p in prompts(tok):
            n, seq, cache, x = len(p), list(p), None, torch.tensor([p], device="cuda")
            for _ in range(GREEDY):  # with the cache, checked below against one pass over everything
                r = hf(x, past_key_values=cache, use_cache=True)
                cache, t = r.past_key_values, int(r.logits[0, -1].argmax())
                seq.append(t); x = torch.tensor([[t]], device="cuda")
            ids = torch.tensor([seq], device="cuda")
            whole = hf(ids[:, :-1], use_cache=False).logits[0].float()
            logits = hf(ids[:, :n], use_cache=False).logits[0].float()
            arg, margin = top2(whole[n - 1:])
            if arg.tolist() != seq[n:]: print(f"{name}: cached and whole pass choose differently, margins {margin[arg != np.array(seq[n:])]}")
            out["greedy"].append(arg); out["greedy_margin"].append(margin)
            a, b = top2(logits)
            out["argmax"].append(a); out["margin"].append(b)
            at = positions(n)
            out["logits"].append(logits[at].cpu().numpy())
            h = own.hidden(ids[:, :n])
            worst = max(worst, float((own.logits(h)[0] - logits).abs().max() / (logits.max() - logits.min())))
            # MTP row t: the hidden of position t and the token at t+1 (the last row takes the first greedy token)
            g = own.logits(own.mtp(own.model.embed_tokens(ids[:, 1:n + 1]), h))[0].float()
            a, b = top2(g)
            out["mtp_argmax"].append(a); out["mtp_margin"].append(b); out["mtp_logits"].append(g[-1:].cpu().numpy())
            listed.append({"name": name, "think": think, "length": n, "offset": offset, "positions": at, "first_row": rows, "ids": p})
            offset += n; rows += len(at)
    os.makedirs(o.out, exist_ok=True)
    for k, v in out.items(): np.save(f"{o.out}/{k}.npy", np.stack(v) if k.startswith("greedy") else np.concatenate(v))
    with open(o.out + "/prompts.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(p) for p in listed) + "\n]\n")
    sizes = {f: os.path.getsize(f"{o.out}/{f}") for f in os.listdir(o.out) if f.endswith((".npy", ".json"))}
    print(json.dumps({"reference": {"lengths": [p["length"] for p in listed], "rows": rows, "bytes": sum(sizes.values()),
                                    "own_code_against_transformers": worst, "least_margin": float(min(m.min() for m in out["margin"]))}}), flush=True)


if __name__ == "__main__":
    main()
