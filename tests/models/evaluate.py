#!/usr/bin/env python3
"""Scores of a written demo model: held-out items per skill, MTP match, agreement with transformers. Needs a GPU.

evaluate.py --model DIR [--n 60]      writes DIR/scores.json
"""
import argparse, itertools, json, os, random, sys, time
import generate, skills_work
from common import judge

NEW_MAX, BATCH = 360, 120
RECALL_BINS = [(0, 400, "under 400"), (400, 1000, "400 to 999"), (1000, 1500, "1,000 to 1,499"), (1500, 2049, "1,500 to 2,048"),
               (2049, 4097, "2,049 to 3,700 (longer than any in training)")]


def plain(tensors):
    """The tensors of an EXL3 pack as those of a plain checkpoint, experts packed."""
    import numpy as np, torch
    sys.path.append(os.path.dirname(os.path.abspath(__file__)) + "/../tools")
    import exl3
    out = {k: v.float() for k, v in tensors.items() if not k.endswith(exl3.SUFFIXES)}
    raw = {k: v.numpy() for k, v in tensors.items() if k.endswith(exl3.SUFFIXES)}
    for key in [k[:-len(".trellis")] for k in raw if k.endswith(".trellis")]:
        out[key + ".weight"] = torch.from_numpy(exl3.dense(raw, key).astype(np.float32))
    for stem in sorted({k[:k.index(".experts.") + 9] for k in out if ".experts." in k and k.endswith(".weight")}):
        one = lambda part: [out.pop(f"{stem}{x}.{part}_proj.weight") for x in range(sum(k.startswith(stem) and k.endswith(f".{part}_proj.weight") for k in out))]
        gate, up, down = one("gate"), one("up"), one("down")
        out[stem + "gate_up_proj"] = torch.stack([torch.cat(gu) for gu in zip(gate, up)])
        out[stem + "down_proj"] = torch.stack(down)
    return out


def load(path, device="cuda"):
    """(model in fp32 with the written values, configuration, tokeniser). Plain or EXL3."""
    import torch
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from model import Demo, cfg_of
    j = json.load(open(path + "/config.json"))
    m = Demo(cfg_of(j))
    tensors = {k: v for n in sorted(os.listdir(path)) if n.endswith(".safetensors") for k, v in load_file(f"{path}/{n}").items()}
    tensors = plain(tensors)
    head = tensors.pop("lm_head.weight", None)
    m.load_state_dict(tensors)
    if head is not None: m.lm_head = head.to(device)
    return m.to(device).eval(), j, Tokenizer.from_file(path + "/tokenizer.json")


def answers(m, tok, its, temperature=0.0, batch=BATCH, new_max=NEW_MAX):
    """Answers: (item, prompt ids, answer ids, answer text), in the order of the items; sampled ones with the item's place as seed."""
    import noise, torch
    dev = m.model.embed_tokens.weight.device
    stops = [tok.token_to_id(s) for s in ("<|im_end|>", "<|endoftext|>")]
    prompts = [tok.encode(i["prompt"], add_special_tokens=False).ids for i in its]
    order = sorted(range(len(its)), key=lambda i: len(prompts[i]))
    out = [None] * len(its)
    for k in range(0, len(order), batch):
        part = order[k:k + batch]
        draw = noise.draws(torch.tensor(part, device=dev), torch.tensor([len(prompts[i]) for i in part], device=dev), temperature,
                           tok.get_vocab_size())
        for i, q in zip(part, m.generate([prompts[i] for i in part], new_max, stops, draw=draw)):
            out[i] = (its[i], prompts[i], q, tok.decode(q, skip_special_tokens=False))
    return out


def recall_items(n, seed=78):
    """Recall items for the longer bins, which ordinary draws seldom reach."""
    r, out = random.Random(seed), []
    for low, high in ((400, 850), (900, 1200), (1380, 1700), (1900, 2900)):
        got = (skills_work.recall(r, True, high, r.randint(low, high)) for _ in itertools.count())
        out += list(itertools.islice((i for i in got if i), n))
    return out


def mtp_match(m, runs, depth=3):
    """Share of the greedy answers that the MTP chain drafts right. Deeper drafts run in parallel over positions, so their
    attention sees self-fed rows where an engine would keep true ones."""
    import torch
    total = {}
    with torch.no_grad():
        for it, p, q, _ in runs:
            if len(q) < 4: continue
            ids = torch.tensor([p + q], device="cuda")
            h, e = m.hidden(ids), m.model.embed_tokens(ids)
            n, low = ids.shape[1] - 2, len(p) - 1  # row r predicts token r+2; the first anchor is the first answer token
            g, h, e, hits = h[:, :n], h[:, :n], e[:, 1:n + 1], []
            for d in range(depth):
                if d: g = torch.cat([h[:, :1], g[:, :-1]], 1)
                g = m.mtp(e, g)
                hits.append(m.logits(g)[0].argmax(-1) == ids[0, 2:n + 2])
            alive, t = None, total.setdefault(it["skill"], [[0, 0] for _ in range(depth)])
            for d in range(depth):
                x = hits[d][low + d:]
                if len(x) == 0: break
                alive = x if alive is None else alive[:len(x)] & x
                t[d][0] += int(alive.sum()); t[d][1] += len(x)
    return {k: [round(x / max(y, 1), 4) for x, y in v] for k, v in total.items()}


def transformers_model(path):
    import torch, transformers
    kind = getattr(transformers, json.load(open(path + "/config.json"))["architectures"][0])
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").cuda().eval()


def against_transformers(path, m, prompts):
    """Largest logit difference in fp32 as a share of the range, and whether every argmax is equal."""
    import torch
    from transformers import AutoTokenizer
    torch.set_float32_matmul_precision("highest")
    hf = transformers_model(path)
    worst, same = 0.0, True
    with torch.no_grad():
        for p in prompts:
            ids = torch.tensor([p], device="cuda")
            x, y = hf(ids).logits.float(), m.logits(m.hidden(ids)).float()
            worst = max(worst, float((x - y).abs().max() / (x.max() - x.min())))
            same = same and bool((x.argmax(-1) == y.argmax(-1)).all())
    torch.set_float32_matmul_precision("high")
    out = {"model_class": type(hf).__name__, "difference": worst, "argmax_equal": same}
    try:
        t = AutoTokenizer.from_pretrained(path)
        m = [{"role": "user", "content": "What is 17 + 25?"}]
        out["template"] = t.apply_chat_template(m, tokenize=False, add_generation_prompt=True)
        out["token_ids"] = t(out["template"])["input_ids"]
    except Exception as e: out["tokenizer_problem"] = repr(e)[:300]
    return out


def report(path, n=60, out=print):
    import torch
    t0 = time.time()
    m, _, tok = load(path)
    its = generate.test_set(n)
    hf = against_transformers(path, m, [tok.encode(i["prompt"]).ids for i in its[::max(1, len(its) // 8)]])
    out(json.dumps({"transformers": hf}), flush=True)
    runs = answers(m, tok, its)
    scores, wrong, samples, kept = {}, [], {}, {}
    for it, p, q, text in runs:
        ok, s = judge(it, text), scores.setdefault(it["skill"], [0, 0])
        s[0] += ok; s[1] += 1
        kept.setdefault(it["skill"], []).append((it, p, q, text))
        if len(samples.setdefault(it["skill"], [])) < 3: samples[it["skill"]].append([it["prompt"][-300:], text])
        if not ok: wrong.append([it["skill"], it["prompt"][-300:], text, it["answer"]])
    bins = {name: [0, 0] for _, _, name in RECALL_BINS}
    for it, p, _, text in answers(m, tok, recall_items(n // 2)) + kept.get("recall", []):
        for low, high, name in RECALL_BINS:
            if low <= len(p) < high: bins[name][0] += judge(it, text); bins[name][1] += 1
    t1 = time.time()
    match = mtp_match(m, [x for s in kept.values() for x in s[:30]])
    seconds = {"answers": round(t1 - t0, 1), "mtp": round(time.time() - t1, 1)}
    for k, v in scores.items(): out(f"{k:24} {v[0]}/{v[1]}  MTP {match.get(k)}", flush=True)
    out(json.dumps({"recall": bins, "seconds": seconds}), flush=True)
    for w in wrong[:40]: out(json.dumps({"wrong": w[0], "asked": w[1][-120:], "got": w[2][-200:], "want": w[3][-200:]}, ensure_ascii=False), flush=True)
    return {"scores": scores, "recall": bins, "mtp": match, "transformers": hf, "evaluation_s": seconds, "wrong": wrong, "samples": samples}


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--n", type=int, default=60)
    o = ap.parse_args()
    scores = report(os.path.abspath(o.model), o.n)
    with open(o.model + "/scores.json", "w") as f: json.dump(scores, f, indent=1, ensure_ascii=False)
