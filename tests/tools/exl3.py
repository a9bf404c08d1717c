"""exl3: the EXL3 format with numpy, written from its definition (ExLlamaV3; a trellis after QTIP) and not from the engine.

A linear [K inputs, N outputs] is stored as .trellis I16 [K/16, N/16, 16 B], .suh F16 [K], .svh F16 [N] (or packed signs .su, .sv),
perhaps .bias, and a marker for its codebook. Its weight is diag(suh) H W H diag(svh): W the decoded values, H the 128-channel
Sylvester matrix over sqrt(128), block by block.
"""
import numpy as np

CODEBOOKS = ("3inst", "mcg", "mul1")
SUFFIXES = (".trellis", ".suh", ".svh", ".su", ".sv", ".mcg", ".mul1")  # of what a linear stores
MARKERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
SIGMA = {"3inst": 1.24371, "mcg": 1.24411, "mul1": 1.00031}  # deviation of the values over all states


def f16_bits(u):
    return u.astype(np.uint16).view(np.float16).astype(np.float64)


def codebook_values(codebook):
    """The fp16 value of each of the 65536 states."""
    s, low32 = np.arange(65536, dtype=np.uint64), np.uint64(0xFFFFFFFF)
    if codebook == "mul1":
        x = (s * np.uint64(MARKERS["mul1"])) & low32
        b = sum(((x >> np.uint64(8 * i)) & np.uint64(255)).astype(np.int64) for i in range(4))
        return ((1774 * b - 905216) / 2.0**18).astype(np.float16)
    x = s * np.uint64(MARKERS["mcg"]) if codebook == "mcg" else s * np.uint64(89226354) + np.uint64(64248484)
    x = (x & np.uint64(0x8FFF8FFF)) ^ np.uint64(0x3B603B60)
    return (f16_bits(x & np.uint64(0xFFFF)) + f16_bits(x >> np.uint64(16))).astype(np.float16)


def symbol_places():
    """Row (input) and column (output) in its tile of each of the 256 symbols."""
    i = np.arange(256)
    lane, j = i >> 3, i & 7
    return 2 * (lane & 3) + (j & 1) + 8 * ((j >> 1) & 1), (lane >> 2) + 8 * (j >> 2)


def states(trellis):
    """[K/16, N/16, 16 B] 16-bit words to [K/16, N/16, 256] states."""
    half_bits = trellis.shape[2] // 8
    words = np.ascontiguousarray(trellis).view("<u4")
    bits = np.unpackbits(words.astype(">u4").view(np.uint8), axis=-1)  # the most significant bit of each word first
    ring = 128 * half_bits
    ends = (np.arange(256) + 1) * half_bits // 2
    out = np.zeros(trellis.shape[:2] + (256,), dtype=np.uint32)
    for k in range(16):
        out = out << 1 | bits[..., (ends - 16 + k) % ring]
    return out


def decode(trellis, codebook):
    """The decoded values [K, N], fp16."""
    kt, nt = trellis.shape[:2]
    row, col = symbol_places()
    tiles = np.empty((kt, nt, 16, 16), dtype=np.float16)
    tiles[:, :, row, col] = codebook_values(codebook)[states(trellis)]
    return tiles.transpose(0, 2, 1, 3).reshape(kt * 16, nt * 16)


def hadamard(x):
    """The rotation along the last axis, in the type of x."""
    a, s = x.reshape(-1, 128), 1
    while s < 128:
        b = a.reshape(len(a), 64 // s, 2, s)
        a = np.stack((b[:, :, 0] + b[:, :, 1], b[:, :, 0] - b[:, :, 1]), axis=2).reshape(-1, 128)
        s *= 2
    factor = np.float32(0.088388347648) if x.dtype == np.float32 else 1 / np.sqrt(128.0)
    return (a * factor).reshape(x.shape)


def signs(packed):
    """Packed signs: bit i of word j set, channel 16 j + i is negative."""
    bits = (packed.astype(np.uint16)[:, None] >> np.arange(16, dtype=np.uint16)) & 1
    return 1.0 - 2.0 * bits.reshape(-1)


def dense(tensors, key):
    """The weight [N, K] of the EXL3 linear `key` in double precision. tensors: raw arrays by name."""
    t = tensors
    codebook = next((c for c in MARKERS if f"{key}.{c}" in t), "3inst")
    suh = t[key + ".suh"].astype(np.float64) if key + ".suh" in t else signs(t[key + ".su"])
    svh = t[key + ".svh"].astype(np.float64) if key + ".svh" in t else signs(t[key + ".sv"])
    w = decode(t[key + ".trellis"], codebook).astype(np.float64)
    w = hadamard(hadamard(w.T).T)
    return (suh[:, None] * w * svh[None, :]).T
