#!/usr/bin/python3
"""make: rewrites the vectors of the EXL3 format beside this file (README.md). Deterministic; numpy only."""
import hashlib
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import exl3  # noqa: E402

SIZE, ROWS = 256, 3
MASK = (1 << 64) - 1


class SplitMix:
    """splitmix64, four 16-bit words a draw, the low ones first: the test draws the trellis words anew."""

    def __init__(self, seed):
        self.state = seed

    def words(self, count):
        out = np.empty((count + 3) // 4, dtype="<u8")
        for i in range(len(out)):
            self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
            z = self.state
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            out[i] = z ^ (z >> 31)
        return out.view("<u2")[:count]

    def normal(self, count):
        return (self.words(12 * count).astype(np.float64).reshape(count, 12).sum(axis=1) + 6) / 65536 - 6


def side(bits):
    r = SplitMix(1000 + bits)
    trellis = r.words(SIZE * SIZE * bits // 16).reshape(SIZE // 16, SIZE // 16, 16 * bits)
    suh = ((0.02 + 0.03 * np.abs(r.normal(SIZE))) * np.where(r.words(SIZE) & 1, -1, 1)).astype(np.float16)
    svh = ((1 + 0.2 * r.normal(SIZE)) * np.where(r.words(SIZE) & 1, -1, 1)).astype(np.float16)
    return trellis, suh, svh, r.normal(ROWS * SIZE).reshape(ROWS, SIZE).astype(np.float16)


def main():
    files = {name: open(os.path.join(HERE, name), "wb") for name in ("suh.f16", "svh.f16", "x.f16", "xh.f16", "y.f32")}
    lines = []
    for c in exl3.CODEBOOKS:
        lines.append(f"codebook {c} {hashlib.sha256(exl3.codebook_values(c).tobytes()).hexdigest()}")
    for bits in range(1, 9):
        trellis, suh, svh, x = side(bits)
        p = (x.astype(np.float64) * suh.astype(np.float64)).astype(np.float16)
        xh = exl3.hadamard(p.astype(np.float32)).astype(np.float16)
        for name, array in (("suh.f16", suh), ("svh.f16", svh), ("x.f16", x), ("xh.f16", xh)):
            files[name].write(array.tobytes())
        for c in exl3.CODEBOOKS:
            w = exl3.decode(trellis, c)
            lines.append(f"decoded {bits} {c} {hashlib.sha256(w.tobytes()).hexdigest()}")
            y = exl3.hadamard(xh.astype(np.float64) @ w.astype(np.float64)) * svh.astype(np.float64)
            files["y.f32"].write(y.astype("<f4").tobytes())
    packed = SplitMix(77).words(16)
    lines.append("signs " + " ".join(f"{w:04x}" for w in packed) + " " +
                 hashlib.sha256(exl3.signs(packed).astype("<f2").tobytes()).hexdigest())
    for f in files.values():
        f.close()
    with open(os.path.join(HERE, "hashes.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
