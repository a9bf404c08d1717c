#!/usr/bin/python3
"""check_vectors DIR: the committed vectors against those that came with the format's specification (one .npy an array), bit for
bit. By hand: DIR is no part of this repository."""
import hashlib
import os
import sys

import numpy as np

import make
from make import exl3

TILES = ((0, 0), (0, 15), (15, 0), (7, 9))


def committed(name, dtype, *shape):
    return np.fromfile(os.path.join(make.HERE, name), dtype=dtype).reshape(8, *shape)


def main(folder):
    compared = 0
    with open(os.path.join(make.HERE, "hashes.txt")) as f:
        hashes = {tuple(line.split()[:-1]): line.split()[-1] for line in f}

    def same(name, found):
        nonlocal compared
        wanted = np.load(os.path.join(folder, name + ".npy"))
        if wanted.tobytes() != np.ascontiguousarray(found).tobytes():
            raise SystemExit(f"{name}: not the same")
        compared += 1

    for c in exl3.CODEBOOKS:
        same("codebook_" + c, exl3.codebook_values(c))
        assert hashlib.sha256(exl3.codebook_values(c).tobytes()).hexdigest() == hashes["codebook", c]
    xh, y = committed("xh.f16", "<f2", 3, 256), committed("y.f32", "<f4", 3, 3, 256)
    for bits in range(1, 9):
        trellis, suh, svh, x = make.side(bits)
        for name, found in (("trellis", trellis), ("suh", suh), ("svh", svh), ("x", x), ("xh", xh[bits - 1]),
                            ("states_7_9", exl3.states(trellis)[7, 9].astype("<u2"))):
            same(f"b{bits}_{name}", found)
        for k, c in enumerate(exl3.CODEBOOKS):
            w = exl3.decode(trellis, c)
            assert hashlib.sha256(w.tobytes()).hexdigest() == hashes["decoded", str(bits), c]
            same(f"b{bits}_{c}_tiles", np.stack([w[16 * i:16 * i + 16, 16 * j:16 * j + 16] for i, j in TILES]))
            same(f"b{bits}_{c}_y", y[bits - 1, k])
    packed = make.SplitMix(77).words(16)
    same("signs_packed", packed)
    same("signs_f16", exl3.signs(packed).astype("<f2"))
    print(f"{compared} arrays, all the same")


if __name__ == "__main__":
    main(sys.argv[1])
