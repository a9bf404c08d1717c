#!/usr/bin/env python3
"""Trains the demo model or its sibling with experts on one GPU: data, tokeniser, weights with the MTP head, and the published files but the card.

train.py --out DIR [--steps 2700] [--items 1000000]
train.py --out DIR --moe --tokenizer demo/tokenizer.json      the sibling: 4 layers, 8 experts, the demo's own vocabulary
train.py --out DIR --piece-seconds 420      leaves with status 3 after that time, checkpoint written
train.py --out DIR --piece-seconds 420 --resume      goes on from it

Everything random starts from --seed. The data are made again from their seed when --work does not hold them.
"""
import argparse, json, math, os, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))


def options():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", required=True)
    ap.add_argument("--work", default="/tmp/demo_work", help="prepared data and checkpoint; remove it after changing the generator")
    ap.add_argument("--steps", type=int, default=2700)
    ap.add_argument("--items", type=int, default=1000000)
    ap.add_argument("--entries", type=int, default=4000)
    ap.add_argument("--tokenizer", help="take this one instead of training one; it must have --entries entries")
    ap.add_argument("--moe", action="store_true", help="the sibling with experts")
    ap.add_argument("--balance", type=float, default=0.02, help="weight of the load-balancing loss")
    ap.add_argument("--device", default="cuda", help="cpu is for trials of the program alone")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--batch-tokens", type=int, default=65536)
    ap.add_argument("--long-share", type=float, default=0.4, help="share of the steps at length 2048, at the end")
    ap.add_argument("--lr", type=float, default=0.02, help="Muon")
    ap.add_argument("--adam-lr", type=float, default=3e-3)
    ap.add_argument("--warmup", type=int, default=60)
    ap.add_argument("--mtp-weight", type=float, default=0.3)
    ap.add_argument("--piece-seconds", type=float, default=1e9, help="stop training this long after the start")
    ap.add_argument("--resume", action="store_true")
    ap.add_argument("--no-compile", action="store_true", help="slower steps, no compilation: for a short trial")
    return ap.parse_args()


def prepare_data(o):
    """Starts data.py unless its output for the same sizes is there. Returns the process or None."""
    try: info = json.load(open(o.work + "/done.json"))
    except OSError: info = {}
    if (info.get("items"), info.get("entries")) == (o.items, o.entries): return None
    if info: os.remove(o.work + "/done.json")
    return subprocess.Popen([sys.executable, HERE + "/data.py", "--work", o.work, "--items", str(o.items), "--entries", str(o.entries)]
                            + (["--tokenizer", o.tokenizer] if o.tokenizer else []))


def byte_table(m):
    """(part, parameters, bytes in bf16)."""
    parts = {}
    for name, p in m.named_parameters():
        part = ("embedding and head" if "embed" in name else "MTP layer" if name.startswith("mtp.") else
                f"delta net, {sum(not m.c.full(i) for i in range(m.c.L))} layers" if "linear_attn" in name else
                f"attention, {sum(map(m.c.full, range(m.c.L)))} layers" if "self_attn" in name else
                f"{'experts' if m.c.X else 'MLP'}, {m.c.L} layers" if ".mlp." in name else "norms")
        parts[part] = parts.get(part, 0) + p.numel()
    parts["total"] = sum(parts.values())
    return [(k, v, 2 * v) for k, v in parts.items()]


class Trainer:
    MTP_SHARES = (1.0, 0.5, 0.3)  # loss of the first, second and third chained draft

    def __init__(self, o):
        import torch, torch.nn.functional as F
        import optim
        from model import Cfg, Demo
        size = {"L": 4, "X": 8} if o.moe else {}
        self.o, self.torch, self.F, self.cfg = o, torch, F, Cfg(vocab=-(-(o.entries + 33) // 128) * 128, **size)
        torch.manual_seed(o.seed)
        self.m = m = Demo(self.cfg).to(o.device).train()
        for layer in list(m.model.layers) + list(m.mtp.layers): layer.compile()
        matrices = [p for n, p in m.named_parameters() if p.dim() >= 2 and "embed" not in n and min(p.shape[-2:]) >= 64]
        known = {id(p) for p in matrices}
        self.rest = [p for p in m.parameters() if id(p) not in known]
        self.muon = optim.Muon(matrices, o.lr)
        self.adam = torch.optim.AdamW(self.rest, lr=o.adam_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=o.device == "cuda")
        self.ce = torch.compile(self._ce)
        self.n, self.seconds, self.tokens, self.at, self.log = 0, 0.0, 0, {}, []

    def _ce(self, h, table, y, w):
        loss = self.F.cross_entropy(self.F.linear(h, table).float().flatten(0, 1), y.flatten(), reduction="none")
        return (loss * w.flatten()).sum() / w.sum()

    def step(self, ids, w, scale):
        """One update on rows ids [B, T+1] with weights w; scale 0 leaves the weights as they are."""
        torch, m = self.torch, self.m
        m.fast = m.mtp.fast = True
        x, y, wy = ids[:, :-1], ids[:, 1:], w[:, 1:].float() / 10
        with torch.autocast(self.o.device, dtype=torch.bfloat16):
            h = m.hidden(x)
            table = m.model.embed_tokens.weight
            loss = self.ce(h, table, y, wy)
            e = m.model.embed_tokens(y).bfloat16()  # row q: token q+1, to predict token q+2
            y2 = torch.cat([y[:, 1:], y[:, -1:]], 1)
            w2 = torch.cat([wy[:, 1:], torch.zeros_like(wy[:, -1:])], 1)
            g, mtp = h, 0
            balance = 0  # the MTP layer's is of its last chained pass
            for d, share in enumerate(self.MTP_SHARES):
                if d: g = torch.cat([h[:, :1], g[:, :-1]], 1)  # chained: row q gets the head's own output of row q-1
                g = m.mtp(e, g)
                mtp = mtp + share * self.ce(g, table, y2, w2)
            if m.c.X: balance = m.balance()
        (loss + self.o.mtp_weight * mtp + self.o.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        for group in self.adam.param_groups: group["lr"] = self.o.adam_lr * scale
        self.adam.step(); self.muon.step(scale)
        m.zero_grad(set_to_none=True)
        m.fast = m.mtp.fast = False
        return loss.detach(), mtp.detach()

    def warm_up(self):
        """Compiles both lengths on random rows, then puts the weights and the optimisers back."""
        torch, o = self.torch, self.o
        keep = {k: v.clone() for k, v in self.m.state_dict().items()}
        for T in (512, 2048):
            t = time.time()
            for _ in range(2):
                ids = torch.randint(0, self.cfg.vocab, (o.batch_tokens // T, T + 1), device=o.device)
                self.step(ids, torch.ones_like(ids), 0.0)
            self.wait()
            print(json.dumps({"compiled": T, "seconds": round(time.time() - t, 1)}), flush=True)
        self.m.load_state_dict(keep)
        self.adam.state.clear()
        for b in self.muon.state: b.zero_()

    def rows(self, data, T):
        """The next batch of that length; each pass over the rows is shuffled from the seed."""
        torch, B, n = self.torch, self.o.batch_tokens // T, len(data[f"t{T}"])
        B = min(B, n)
        epoch, pos = self.at.get(T, (0, 0))
        if pos + B > n: epoch, pos = epoch + 1, 0
        if getattr(self, "_order_of", None) != (T, epoch):
            gen = torch.Generator().manual_seed(self.o.seed * 1000 + epoch)
            self._order, self._order_of = torch.randperm(n, generator=gen).to(self.o.device), (T, epoch)
        self.at[T] = (epoch, pos + B)
        ix = self._order[pos:pos + B]
        return data[f"t{T}"][ix].long(), data[f"w{T}"][ix]

    def train(self, data, deadline):
        """True when all steps are done, false when the piece is over."""
        o, start = self.o, time.time() - self.seconds
        while self.n < o.steps:
            share = self.n / o.steps
            T = 512 if share < 1 - o.long_share else 2048
            scale = min(1, (self.n + 1) / o.warmup) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
            ids, w = self.rows(data, T)
            loss, mtp = self.step(ids, w, scale)
            self.n += 1; self.tokens += ids.numel() - len(ids)
            if self.n % 100 == 0 or self.n in (1, 20) or self.n == o.steps:
                line = {"step": self.n, "s": round(time.time() - start, 1), "length": T, "loss": round(float(loss), 4), "mtp": round(float(mtp), 4)}
                self.log.append(line)
                if self.n % 300 == 0 or len(self.log) < 4: print(json.dumps(line), flush=True)
                if not math.isfinite(line["loss"]): sys.exit("the loss is not finite")
            if self.n % 10 == 0 and time.time() > deadline: break
        self.wait()
        self.seconds = time.time() - start
        return self.n >= o.steps

    def wait(self):
        if self.o.device == "cuda": self.torch.cuda.synchronize()

    FIELDS = ("n", "seconds", "tokens", "at", "log")

    def save(self, path):
        torch = self.torch
        torch.save({"model": self.m.state_dict(), "muon": self.muon.state, "adam": self.adam.state_dict(), "rng": torch.get_rng_state(),
                    "rng_cuda": torch.cuda.get_rng_state_all(), **{k: getattr(self, k) for k in self.FIELDS}}, path + ".new")
        os.replace(path + ".new", path)

    def load(self, path):
        c = self.torch.load(path, map_location=self.o.device, weights_only=True)
        self.m.load_state_dict(c["model"]); self.adam.load_state_dict(c["adam"])
        for b, x in zip(self.muon.state, c["muon"]): b.copy_(x)
        self.torch.set_rng_state(c["rng"].cpu()); self.torch.cuda.set_rng_state_all([r.cpu() for r in c["rng_cuda"]])
        for k in self.FIELDS: setattr(self, k, c[k])


def main():
    t0, o = time.time(), options()
    os.makedirs(o.work, exist_ok=True); os.makedirs(o.out, exist_ok=True)
    preparing = prepare_data(o)
    if o.no_compile: os.environ["TORCH_COMPILE_DISABLE"] = "1"
    import numpy as np, torch
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.cache_size_limit = 64
    torch._dynamo.config.automatic_dynamic_shapes = False
    if o.no_compile: torch._dynamo.config.disable = True
    t = Trainer(o)
    table = byte_table(t.m)
    for part, count, size in table: print(f"{part:22} {count:>12,} parameters {size:>12,} bytes", flush=True)
    checkpoint = o.work + "/checkpoint.pt"
    if not o.no_compile: t.warm_up()
    if o.resume: t.load(checkpoint)
    if preparing and preparing.wait() != 0: sys.exit("preparing the data failed")
    z = np.load(o.work + "/data.npz")
    data = {k: torch.from_numpy(z[k]).to(o.device) for k in z.files}
    t_ready = time.time()
    print(json.dumps({"start_up_s": round(t_ready - t0, 1), "step": t.n}), flush=True)
    done = t.train(data, t0 + o.piece_seconds)
    t.save(checkpoint)
    print(json.dumps({"trained": done, "steps": t.n, "tokens": t.tokens, "training_s": round(t.seconds, 1)}), flush=True)
    if not done: sys.exit(3)
    import export
    from tokenizers import Tokenizer
    export.write_model(t.m, t.cfg, Tokenizer.from_file(o.work + "/tokenizer.json"), o.out)
    export.write_json(o.out + "/train.json", {"bytes": table, "steps": t.n, "tokens": t.tokens, "training_s": round(t.seconds, 1), "log": t.log,
                                              "start_up_s": round(t_ready - t0, 1), "data": json.load(open(o.work + "/done.json"))})


if __name__ == "__main__":
    main()
