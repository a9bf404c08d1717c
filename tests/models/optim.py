"""Muon for the matrices: momentum made orthogonal by Newton-Schulz steps; equal shapes go through one call."""
import torch


@torch.compile
def newton_schulz(g):
    x = g.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall: x = x.mT
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon:
    def __init__(self, params, lr, momentum=0.95):
        groups = {}
        for p in params: groups.setdefault(tuple(p.shape), []).append(p)
        self.groups, self.lr, self.momentum = list(groups.values()), lr, momentum
        self.state = [torch.zeros((len(ps), *ps[0].shape), device=ps[0].device) for ps in self.groups]

    @torch.no_grad()
    def step(self, scale):
        for ps, b in zip(self.groups, self.state):
            g = torch.stack([p.grad for p in ps])
            b.lerp_(g, 1 - self.momentum)
            u = newton_schulz(g.lerp(b, self.momentum))
            rate = self.lr * scale * max(1, u.size(-2) / u.size(-1)) ** 0.5
            torch._foreach_add_(ps, [x.float() for x in u.unbind(0)], alpha=-rate)
