"""The demo's drafters in plain PyTorch, with the published tensor names: DFlash2 (a two-tap convolution around each sublayer and a
path selector), and DFlash (neither). Both draft a block at once from the target's own hidden states (taps)."""
import json, math
from dataclasses import dataclass
import torch, torch.nn as nn, torch.nn.functional as F


@dataclass
class DraftCfg:
    v2: bool = True
    D: int = 256
    vocab: int = 4096
    target_layers: int = 8
    I: int = 256
    NQ: int = 2
    NK: int = 1
    hd: int = 128
    types: tuple = ("sliding_attention", "sliding_attention")
    window: int = 256
    causal: bool = False  # in the block; None: a layer is causal exactly when it slides
    block: int = 8
    taps: tuple = (3, 7)
    mask_id: int = 4026  # <|audio_start|>, which occurs in no text
    theta: float = 1e7
    group: int = 16
    rank: int = 32
    top: int = 16
    # (first, count) of the ids that drafts are drawn from: the commoner entries, then the last ones with the control tokens.
    spans: tuple = ((0, 2688), (3968, 128))
    quant_min: int = 16384  # tensors of at least so many elements are quantised to 4 bits when they are loaded

    def causal_in(self, layer): return self.types[layer] == "sliding_attention" if self.causal is None else self.causal


KINDS = {"dflash2": DraftCfg(),
         "dflash": DraftCfg(v2=False, causal=None, types=("sliding_attention", "full_attention"), block=16, taps=(1, 7))}


def config(c):
    """config.json as published drafters have it; v1 has its block size at the top level."""
    inner = {"mask_token_id": c.mask_id, "target_layer_ids": list(c.taps), "draft_vocab_spans": [list(s) for s in c.spans],
             "quant_min_elements": c.quant_min}
    out = {"architectures": ["DFlash2DraftModel" if c.v2 else "DFlashDraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
           "hidden_size": c.D, "intermediate_size": c.I, "num_hidden_layers": len(c.types), "num_attention_heads": c.NQ,
           "num_key_value_heads": c.NK, "head_dim": c.hd, "vocab_size": c.vocab, "num_target_layers": c.target_layers,
           "rms_norm_eps": 1e-6, "rope_theta": int(c.theta), "layer_types": list(c.types), "sliding_window": c.window,
           "tie_word_embeddings": True}
    if c.v2:
        out["is_causal"] = c.causal
        inner.update(block_size=c.block, conv_kernel_size=2, conv_group_size=c.group, selector_rank=c.rank, selector_top_k=c.top)
    else: out["block_size"] = c.block
    return {**out, "dflash_config": inner}


def cfg_of(j):
    d, v2 = j["dflash_config"], j["architectures"] == ["DFlash2DraftModel"]
    return DraftCfg(v2=v2, D=j["hidden_size"], vocab=j["vocab_size"], target_layers=j["num_target_layers"], I=j["intermediate_size"],
                    NQ=j["num_attention_heads"], NK=j["num_key_value_heads"], hd=j["head_dim"], types=tuple(j["layer_types"]),
                    window=j["sliding_window"], causal=j.get("is_causal"), block=d.get("block_size") or j["block_size"],
                    taps=tuple(d["target_layer_ids"]), mask_id=d["mask_token_id"], theta=j["rope_theta"], group=d.get("conv_group_size", 16),
                    rank=d.get("selector_rank", 32), top=d.get("selector_top_k", 16), spans=tuple(map(tuple, d["draft_vocab_spans"])),
                    quant_min=d["quant_min_elements"])


class RMS(nn.Module):  # plain weight
    def __init__(self, n): super().__init__(); self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        f = x.float()
        return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight).to(x.dtype)


class Conv(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.group = c.group
        base = torch.zeros(2, 2, c.D)
        base[:, 0] = 1
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(c.D, 4 * (c.D // c.group), bias=False)

    def kernels(self, n): return self.kernel_projection(n).unflatten(-1, (2, 2, -1))

    def run(self, z, d, side):  # z [.., block, D]: taps stay inside the block
        k = self.base_kernel[side] + d[..., side, :, :].repeat_interleave(self.group, -1)
        return (k[..., 0, :] * z + k[..., 1, :] * F.pad(z, (0, 0, 1, 0))[..., :-1, :]).to(z.dtype)


def rope(x, pos, theta):  # x [B, T, heads, hd], pos [B, T]
    n = x.shape[-1]
    a = pos[..., None, None].float() * theta ** (-torch.arange(0, n, 2, device=x.device).float() / n)
    c, s = a.cos(), a.sin()
    u, v = x.float().chunk(2, -1)
    return torch.cat([u * c - v * s, v * c + u * s], -1).to(x.dtype)


class Att(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        lin = lambda o, i: nn.Linear(i, o, bias=False)
        self.q_proj, self.k_proj, self.v_proj = lin(c.NQ * c.hd, c.D), lin(c.NK * c.hd, c.D), lin(c.NK * c.hd, c.D)
        self.o_proj = lin(c.D, c.NQ * c.hd)
        self.q_norm, self.k_norm = RMS(c.hd), RMS(c.hd)

    def kv(self, x, pos):
        c = self.c
        return rope(self.k_norm(self.k_proj(x).unflatten(-1, (c.NK, c.hd))), pos, c.theta), self.v_proj(x).unflatten(-1, (c.NK, c.hd))

    def forward(self, u, pos, f, mask):  # u [B, blocks * block, D]; f [B, T, D]
        c = self.c
        q = rope(self.q_norm(self.q_proj(u).unflatten(-1, (c.NQ, c.hd))), pos, c.theta)
        kb, vb = self.kv(u, pos)
        kc, vc = self.kv(f, torch.arange(f.shape[1], device=f.device)[None])
        k, v = torch.cat([kc, kb], 1), torch.cat([vc, vb], 1)
        k, v = (t.transpose(1, 2).repeat_interleave(c.NQ // c.NK, 1) for t in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(c.D, c.I, bias=False), nn.Linear(c.D, c.I, bias=False)
        self.down_proj = nn.Linear(c.I, c.D, bias=False)

    def forward(self, x): return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.input_layernorm, self.post_attention_layernorm = RMS(c.D), RMS(c.D)
        self.self_attn, self.mlp = Att(c), MLP(c)
        if c.v2: self.attention_conv, self.mlp_conv = Conv(c), Conv(c)

    def sublayer(self, x, norm, conv, fn):
        if not self.c.v2: return x + fn(norm(x))
        blocks = lambda t: t.unflatten(1, (-1, self.c.block))
        n = blocks(norm(x))
        d = conv.kernels(n)
        return x + conv.run(blocks(fn(conv.run(n, d, 0).flatten(1, 2))), d, 1).flatten(1, 2)

    def forward(self, x, pos, f, mask):
        v2 = self.c.v2
        x = self.sublayer(x, self.input_layernorm, self.attention_conv if v2 else None, lambda u: self.self_attn(u, pos, f, mask))
        return self.sublayer(x, self.post_attention_layernorm, self.mlp_conv if v2 else None, self.mlp)


class Selector(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.hidden_projection = nn.Linear(c.D, c.rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.randn(c.vocab, c.rank) * 0.02)
        self.successor_codebook = nn.Parameter(torch.zeros(c.vocab, c.rank))


class Drafter(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.fc = nn.Linear(len(c.taps) * c.D, c.D, bias=False)
        self.hidden_norm, self.norm = RMS(c.D), RMS(c.D)
        self.layers = nn.ModuleList(Layer(c) for _ in c.types)
        if c.v2: self.candidate_selector = Selector(c)
        for n, p in self.named_parameters():
            if p.dim() != 2 or "codebook" in n: continue
            if "kernel_projection" in n: nn.init.zeros_(p)
            else: nn.init.normal_(p, std=p.shape[1] ** -0.5 * (0.3 if "o_proj" in n or "down_proj" in n else 1))

    def masks(self, pos, anchors, T):
        """One a layer, [B, 1, blocks * block, T + blocks * block]: what each row of the blocks sees."""
        c, A = self.c, anchors.shape[1]
        kp, ids = torch.arange(T, device=pos.device), torch.arange(A * c.block, device=pos.device)
        before = kp < anchors.repeat_interleave(c.block, 1)[..., None]
        same = ids[:, None] // c.block == ids[None] // c.block
        out = []
        for i, kind in enumerate(c.types):
            context = before & (pos[..., None] - kp < c.window) if kind == "sliding_attention" else before
            inside = same & (ids[None] <= ids[:, None]) if c.causal_in(i) else same
            out.append(torch.cat([context, inside.expand(len(pos), -1, -1)], -1)[:, None])
        return out

    def forward(self, X, ids, anchors, embed):
        """X [B, T, taps * D], ids [B, T], anchors [B, A] positions. The final hidden of rows 1 .. block - 1: [B, A, block - 1, D]."""
        c, (B, T), A = self.c, ids.shape, anchors.shape[1]
        f = self.hidden_norm(self.fc(X))
        tok = torch.full((B, A, c.block), c.mask_id, device=ids.device)
        tok[..., 0] = ids.gather(1, anchors)
        pos = (anchors[..., None] + torch.arange(c.block, device=ids.device)).flatten(1)
        x = F.embedding(tok.flatten(1), embed).to(f.dtype)
        for layer, mask in zip(self.layers, self.masks(pos, anchors, T)): x = layer(x, pos, f, mask)
        return self.norm(x).unflatten(1, (A, c.block))[:, :, 1:]

    def in_spans(self, device="cpu"):
        keep = torch.zeros(self.c.vocab, dtype=torch.bool, device=device)
        for first, count in self.c.spans: keep[first:first + count] = True
        return keep

    def scores(self, h, head):
        """The head's logits over the draft vocabulary, fp32; other ids have none."""
        return F.linear(h, head).float().masked_fill(~self.in_spans(h.device), -math.inf)

    def edge(self, h, prev, cand):
        """E of the selector. h [.., D], prev [..] ids, cand [.., top]."""
        s = self.candidate_selector
        g = s.hidden_projection(h).float() * s.predecessor_codebook[prev].float()
        return (g[..., None, :] * s.successor_codebook[cand].float()).sum(-1)

    def path(self, h, anchor, head, noise=None, temperature=0.0):
        """Drafts [N, block - 1] behind anchors [N] from hiddens [N, block - 1, D]. noise [N, block - 1, vocab] when sampled."""
        U, out, prev = self.scores(h, head), [], anchor
        for t in range(U.shape[1]):
            if self.c.v2:
                top = U[:, t].topk(self.c.top, -1)
                s, cand = top.values + self.edge(h[:, t], prev, top.indices), top.indices
            else: s, cand = U[:, t], None
            if noise is not None: s = s.double() / temperature + (noise[:, t] if cand is None else noise[:, t].gather(1, cand))
            prev = s.argmax(-1) if cand is None else cand.gather(1, s.argmax(-1, keepdim=True))[:, 0]
            out.append(prev)
        return torch.stack(out, 1)


def write(dr, path):
    """The published files but the card."""
    import os
    from safetensors.torch import save_file
    os.makedirs(path, exist_ok=True)
    save_file({k: v.detach().bfloat16().cpu().contiguous() for k, v in dr.state_dict().items()}, path + "/model.safetensors",
              metadata={"format": "pt"})
    with open(path + "/config.json", "w") as f: f.write(json.dumps(config(dr.c), indent=2) + "\n")


def load(path, device):
    from safetensors.torch import load_file
    dr = Drafter(cfg_of(json.load(open(path + "/config.json"))))
    dr.load_state_dict({k: v.float() for k, v in load_file(path + "/model.safetensors").items()})
    return dr.to(device).eval()
