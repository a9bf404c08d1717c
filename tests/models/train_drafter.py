#!/usr/bin/env python3
"""Trains a drafter for the demo model on the model's own answers, greedy and sampled. One GPU.

train_drafter.py --model DIR --kind dflash2|dflash --out DIR [--weak DIR] [--steps 3000]
train_drafter.py ... --piece-seconds 300 [--resume]      leaves with status 3 after that time; goes on from its checkpoint

--weak: an early state of the same run, the first that gives at least --weak-tokens a round, so that rejected drafts are common.
Everything random starts from --seed and the step. The answers are made again from their seed when --work does not hold them.
"""
import argparse, json, math, os, sys, time
import torch, torch.nn.functional as F
import accept, drafter, evaluate, generate

LENGTH, GAMMA = 512, {8: 4.0, 16: 7.0}
WEAK_STEPS = tuple(range(40, 400, 20))


def options():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--kind", choices=list(drafter.KINDS), required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--weak")
    ap.add_argument("--weak-tokens", type=float, default=2.0)
    ap.add_argument("--work", default="/tmp/demo_drafter", help="answers and checkpoint; remove it after changing model or generator")
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--prompts", type=int, default=20000, help="half of them answered greedily, half at temperature 1")
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--anchors", type=int, default=32, help="blocks of a sequence in a step")
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=3)
    ap.add_argument("--new-max", type=int, default=230)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--piece-seconds", type=float, default=1e9)
    ap.add_argument("--resume", action="store_true")
    return ap.parse_args()


def answers(o, m, tok):
    """Rows of prompt and answer: ids [N, LENGTH], and where answers begin and end. Kept in --work."""
    path = f"{o.work}/answers-{o.prompts}.pt"
    if os.path.exists(path): return torch.load(path)
    items = [i for i in generate.items(2 * o.prompts, 500001) if len(i["prompt"]) < 4 * LENGTH][:o.prompts]
    runs = []
    for temperature, part in ((0.0, items[::2]), (1.0, items[1::2])):
        runs += [(p, q) for _, p, q, _ in evaluate.answers(m, tok, part, temperature, 1024, o.new_max) if len(q) >= 3 and len(p) + len(q) <= LENGTH]
    ids = torch.full((len(runs), LENGTH), tok.token_to_id("<|endoftext|>"))
    for row, (p, q) in zip(ids, runs): row[:len(p) + len(q)] = torch.tensor(p + q)
    out = ids, torch.tensor([len(p) for p, _ in runs]), torch.tensor([len(p) + len(q) for p, q in runs])
    torch.save(out, path)
    return out


class Trainer:
    def __init__(self, o, m, data):
        self.o, self.m, (ids, begin, end) = o, m, data
        self.ids, self.begin, self.end = ids.to(o.device), begin.to(o.device), end.to(o.device)
        torch.manual_seed(o.seed)
        self.dr = dr = drafter.Drafter(drafter.KINDS[o.kind]).to(o.device)
        self.opt = torch.optim.AdamW(dr.parameters(), lr=o.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=o.device == "cuda")
        self.embed, self.keep = m.model.embed_tokens.weight.detach(), dr.in_spans(o.device)
        self.share = torch.exp(-torch.arange(dr.c.block - 1, device=o.device) / GAMMA[dr.c.block])
        self.n, self.seconds, self.log, self.early = 0, 0.0, [], {}
        with torch.no_grad(), torch.autocast(o.device, dtype=torch.bfloat16):
            self.X = torch.cat([m.hidden(self.ids[i:i + 256], taps=dr.c.taps)[1].bfloat16() for i in range(0, len(ids), 256)])

    def batch(self):
        """Rows and anchors of step n, from the seed alone."""
        o = self.o
        g = torch.Generator().manual_seed(o.seed * 1000003 + self.n)
        ix = torch.randint(0, len(self.ids), (o.batch,), generator=g).to(o.device)
        u = torch.rand(o.batch, o.anchors, generator=g).to(o.device)
        begin, end = self.begin[ix][:, None], self.end[ix][:, None]
        return ix, begin + (u * (end - 1 - begin)).long(), end

    def step(self):
        o, dr = self.o, self.dr
        ix, anchors, end = self.batch()
        ids = self.ids[ix]
        with torch.autocast(o.device, dtype=torch.bfloat16):
            h = dr(self.X[ix], ids, anchors, self.embed)
            at = anchors[..., None] + torch.arange(dr.c.block, device=o.device)
            want = ids.gather(1, at.clamp(max=LENGTH - 1).flatten(1)).view_as(at)
            label = want[..., 1:]
            w = ((at[..., 1:] < end[..., None]) & self.keep[label]).float() * self.share
            U = dr.scores(h, self.embed)
            ce = F.cross_entropy(U.flatten(0, 2), label.flatten(), reduction="none").view_as(w)
            loss = (w * ce.nan_to_num(posinf=0.0)).sum() / w.sum()
            if dr.c.v2:  # the selector, over the best ids of each row, behind the true token
                top = U.topk(dr.c.top, -1)
                hit = top.indices == label[..., None]
                s = top.values + dr.edge(h, want[..., :-1], top.indices)
                se = F.cross_entropy(s.flatten(0, 2), hit.float().argmax(-1).flatten(), reduction="none").view_as(w) * hit.any(-1)
                loss = loss + (w * se).sum() / w.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(dr.parameters(), 1.0)
        for group in self.opt.param_groups:
            group["lr"] = o.lr * min(1, (self.n + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * self.n / o.steps)))
        self.opt.step(); self.opt.zero_grad(set_to_none=True)
        return loss.detach()

    def train(self, deadline):
        o, start = self.o, time.time() - self.seconds
        while self.n < o.steps:
            loss = self.step()
            self.n += 1
            if o.weak and self.n in WEAK_STEPS: self.early[self.n] = {k: v.detach().cpu().clone() for k, v in self.dr.state_dict().items()}
            if self.n in (1, 50) or self.n % 250 == 0:
                self.log.append({"step": self.n, "s": round(time.time() - start, 1), "loss": round(float(loss), 4)})
                print(json.dumps(self.log[-1]), flush=True)
                if not math.isfinite(self.log[-1]["loss"]): sys.exit("the loss is not finite")
            if self.n % 10 == 0 and time.time() > deadline: break
        self.seconds = time.time() - start
        return self.n >= o.steps

    FIELDS = ("n", "seconds", "log", "early")

    def save(self, path):
        torch.save({"drafter": self.dr.state_dict(), "adam": self.opt.state_dict(), **{k: getattr(self, k) for k in self.FIELDS}}, path + ".new")
        os.replace(path + ".new", path)

    def load(self, path):
        c = torch.load(path, map_location=self.o.device, weights_only=True)
        self.dr.load_state_dict(c["drafter"]); self.opt.load_state_dict(c["adam"])
        for k in self.FIELDS: setattr(self, k, c[k])


def write_weak(o, t, m, tok):
    """The first early state that is good enough."""
    weak, tried, made = drafter.Drafter(t.dr.c).to(o.device).eval(), {}, accept.runs(m, tok, 8, (0.0,))
    for n in sorted(t.early):
        weak.load_state_dict(t.early[n])
        rounds, tokens = map(sum, zip(*(accept.dflash_walk(weak, m, p, q, temperature, seed) for _, temperature, seed, p, q in made)))
        tried[n] = round(tokens / rounds, 2)
        if tried[n] >= o.weak_tokens: break
    drafter.write(weak, o.weak)
    return tried


def main():
    t0, o = time.time(), options()
    os.makedirs(o.work, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    m, _, tok = evaluate.load(os.path.abspath(o.model), o.device)
    data = answers(o, m, tok)
    t1 = time.time()
    t = Trainer(o, m, data)
    checkpoint = f"{o.work}/{o.kind}.pt"
    if o.resume: t.load(checkpoint)
    count = sum(p.numel() for p in t.dr.parameters())
    start = {"answers": len(data[0]), "answer_tokens": int((data[2] - data[1]).sum()), "answers_s": round(t1 - t0, 1),
             "taps_s": round(time.time() - t1, 1), "parameters": count, "bytes": 2 * count, "step": t.n}
    print(json.dumps(start), flush=True)
    done = t.train(t0 + o.piece_seconds)
    t.save(checkpoint)
    print(json.dumps({"trained": done, "kind": o.kind, "steps": t.n, "training_s": round(t.seconds, 1)}), flush=True)
    if not done: sys.exit(3)
    drafter.write(t.dr, o.out)
    tried = write_weak(o, t, m, tok) if o.weak else {}
    print(json.dumps({"weak": tried}), flush=True)
    with open(f"{o.work}/{o.kind}.json", "w") as f: json.dump({**start, "training_s": t.seconds, "log": t.log, "weak": tried}, f)


if __name__ == "__main__":
    main()
