"""The noise that draws are made with: a counter-based Gumbel number for (seed, position, token), as the engine's sampler has it."""
import torch

WRAP = (1 << 64) - 1


def signed(x): return x - (1 << 64) if x >> 63 else x


def mix(x):
    """Stafford's mix 13 on int64 tensors that stand for unsigned numbers."""
    shift = lambda v, n: (v >> n) & ((1 << (64 - n)) - 1)
    x = (x ^ shift(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shift(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ shift(x, 31)


def gumbel(seed, pos, vocab):
    """seed, pos: int64 tensors of one shape. [.., vocab] doubles."""
    x = mix(seed + signed(0x9E3779B97F4A7C15))
    x = mix(x ^ (pos * signed(0xD1B54A32D192ED03)))
    x = mix(x[..., None] ^ torch.arange(vocab, device=x.device))
    u = ((x >> 11) & ((1 << 53) - 1)).double() * 2.0**-53 + 2.0**-54
    return -torch.log(-torch.log(u.clamp(max=1 - 2.0**-53)))


def draws(seeds, firsts, temperature, used):
    """For Demo.generate: the token of each row's position firsts + step, by its own seed, of the first `used` ids. Temperature 0:
    the best one."""
    def draw(logits, step):
        logits = logits[:, :used]
        if temperature == 0: return logits.argmax(-1)
        return (logits.double() / temperature + gumbel(seeds, firsts + step, logits.shape[-1])).argmax(-1)
    return draw


if __name__ == "__main__":  # the published values
    for seed, pos, token, want in ((0, 0, 0, -0.4662735186548661), (1234, 11, 42, 0.02341367249129064), (1234, 11, 43, 1.0704599839551112),
                                   (1, 100000, 248319, 0.13142213752616855), (2**63 - 1, 5, 7, 0.3987993711464117)):
        got = float(gumbel(torch.tensor(seed), torch.tensor(pos), token + 1)[token])
        assert abs(got - want) < 1e-12, (seed, pos, token, got, want)
    print("noise: 5 values right")
