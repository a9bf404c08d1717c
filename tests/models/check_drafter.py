#!/usr/bin/env python3
"""Holds drafter.py against known numbers: a tiny drafter whose weights come from a counter (fill), its block behind one anchor, in
three forms. The numbers come from an array program in double precision, and a C program gave the same. Needs torch.

check_drafter.py        status 0: all as they should be
"""
import math, sys
import torch
import noise
from drafter import DraftCfg, Drafter

TOLERANCE = 1e-4
D, TAPS, HEADS, KV, HD, WIDTH, V, BLOCK, POSITIONS, ANCHOR = 32, 2, 4, 2, 8, 48, 64, 4, 10, 38


def fill(number, shape, size, centre):
    """Tensor `number` of the vectors: (mix(number 2^32 + i + 1) >> 40) / 2^24 spread over centre +- size."""
    n = math.prod(shape)
    x = noise.mix(torch.arange(1, n + 1) + (number << 32))
    return ((((x >> 40) & 0xFFFFFF).double() / 2**24 - 0.5) * 2 * size + centre).float().view(shape)


def weights(v2):
    out = {"fc.weight": fill(3, (D, TAPS * D), 0.2, 0), "hidden_norm.weight": fill(4, (D,), 0.1, 1), "norm.weight": fill(5, (D,), 0.1, 1)}
    for layer in range(2):
        n, p = 15 * layer, f"layers.{layer}."
        a, m = p + "self_attn.", p + "mlp."
        out |= {p + "input_layernorm.weight": fill(n + 6, (D,), 0.1, 1), p + "post_attention_layernorm.weight": fill(n + 7, (D,), 0.1, 1),
                a + "q_proj.weight": fill(n + 8, (HEADS * HD, D), 0.3, 0), a + "k_proj.weight": fill(n + 9, (KV * HD, D), 0.3, 0),
                a + "v_proj.weight": fill(n + 10, (KV * HD, D), 0.3, 0), a + "o_proj.weight": fill(n + 11, (D, HEADS * HD), 0.3, 0),
                a + "q_norm.weight": fill(n + 12, (HD,), 0.1, 1), a + "k_norm.weight": fill(n + 13, (HD,), 0.1, 1),
                m + "gate_proj.weight": fill(n + 14, (WIDTH, D), 0.3, 0), m + "up_proj.weight": fill(n + 15, (WIDTH, D), 0.3, 0),
                m + "down_proj.weight": fill(n + 16, (D, WIDTH), 0.3, 0)}
        for k, name in ((17, "attention_conv"), (19, "mlp_conv")) if v2 else ():
            base = fill(n + k, (2, 2, D), 0.3, 0)
            base[:, 0] += 1
            out |= {f"{p}{name}.base_kernel": base, f"{p}{name}.kernel_projection.weight": fill(n + k + 1, (16, D), 0.05, 0)}
    if v2:
        s = "candidate_selector."
        out |= {s + "hidden_projection.weight": fill(36, (4, D), 1.5, 0), s + "predecessor_codebook": fill(37, (V, 4), 1, 0),
                s + "successor_codebook": fill(38, (V, 4), 1, 0)}
    return out


def drafter(v2, kind, causal):
    dr = Drafter(DraftCfg(v2=v2, D=D, vocab=V, target_layers=4, I=WIDTH, NQ=HEADS, NK=KV, hd=HD, types=(kind,) * 2, window=6, causal=causal,
                          block=BLOCK, taps=(0, 1), mask_id=63, theta=1e4, group=8, rank=4, top=4, spans=((0, V),)))
    dr.load_state_dict(weights(v2))
    return dr.eval()


CASES = [("DFlash, full layers", False, "full_attention", None, [0.873190, -1.166590, -0.172263, -0.377260], [26, 26, 26]),
         ("DFlash, sliding layers", False, "sliding_attention", None, [1.336273, -0.756649, -0.122583, -0.813580], [52, 32, 32]),
         ("DFlash2", True, "sliding_attention", False, [0.366743, 0.807836, -0.880140, -0.152345], [46, 22, 5])]


@torch.no_grad()
def main():
    bad = 0
    embed, head = fill(1, (V, D), 1, 0), fill(2, (V, D), 0.5, 0)
    X = torch.cat([fill(1000, (1, POSITIONS, TAPS * D), 1, 0), torch.zeros(1, 1, TAPS * D)], 1)
    ids = torch.tensor([[0] * POSITIONS + [ANCHOR]])
    for name, v2, kind, causal, hidden, best in CASES:
        dr = drafter(v2, kind, causal)
        h = dr(X, ids, torch.tensor([[POSITIONS]]), embed)[0]
        off = float((h[0, 0, :4] - torch.tensor(hidden)).abs().max())
        ok = off < TOLERANCE and dr.scores(h, head)[0].argmax(-1).tolist() == best
        if v2:
            g = noise.gumbel(torch.full((1, 3), 1234), POSITIONS + 1 + torch.arange(3)[None], V)
            paths = [dr.path(h, torch.tensor([ANCHOR]), head)[0].tolist(), dr.path(h, torch.tensor([ANCHOR]), head, g, 1.0)[0].tolist()]
            ok = ok and paths == [[14, 18, 26], [14, 18, 5]]
        print(f"{name}: off by {off:.1e}, {'right' if ok else 'WRONG'}")
        bad += not ok
    return bad


if __name__ == "__main__":
    sys.exit(main())
