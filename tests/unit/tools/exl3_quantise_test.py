#!/usr/bin/python3
"""exl3_quantise_test: tests/tools/exl3_quantise on a tiny random model with experts: its files against the plain numpy reader.

    exl3_quantise_test.py QUANTISE WORKER      prints TAP
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import exl3  # noqa: E402
import make_tiny  # noqa: E402
import reference  # noqa: E402

MODEL = ["--seed", "4", "--hidden", "128", "--layers", "2", "--interval", "2", "--vocab", "128", "--heads", "1", "--head-dim", "128", "--nk", "1",
         "--nv", "2", "--dk", "64", "--dv", "64", "--moe", "packed", "--experts", "2", "--top-k", "1", "--expert-width", "128",
         "--shared-width", "128", "--mtp"]
# Squared error over squared weight that a width may have; the coder gives about a tenth less.
LOSS = {3: 0.0195, 3.5: 0.0100, 4: 0.0052, 6: 0.00036}


def tensors(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            out.update(reference.read_safetensors(os.path.join(folder, name)))
    return out


def plain_weight(plain, key):
    """The matrix that the linear `key` was made of."""
    if key == "lm_head":
        return plain["model.embed_tokens.weight"]
    if key + ".weight" in plain:  # the MTP layer has its experts one by one
        return plain[key + ".weight"]
    stem, rest = key.split(".experts.")
    e, part = rest.split(".")
    both = plain[stem + ".experts." + ("down_proj" if part == "down_proj" else "gate_up_proj")][int(e)]
    half = len(both) // 2
    return {"down_proj": both, "gate_proj": both[:half], "up_proj": both[half:]}[part]


def every_linear_comes_back_within_the_loss_of_its_width(plain, pack, _):
    keys = [k[:-len(".trellis")] for k in pack if k.endswith(".trellis")]
    assert len(keys) > 20, keys
    for key in keys:
        bits, want = pack[key + ".trellis"].shape[2] / 16, plain_weight(plain, key)
        assert bits == (6 if key == "lm_head" else 3.5 if "q_proj" in key else 3 if ".experts." in key else 4), (key, bits)
        got = exl3.dense(pack, key)
        loss = ((got - want) ** 2).sum() / (want**2).sum()
        assert loss < LOSS[bits], f"{key}: loss {loss:.5f} at {bits} bits"
    print(f"# {len(keys)} linears")


def what_is_no_linear_of_the_format_is_copied(plain, pack, _):
    kept = [k for k in pack if not k.endswith(exl3.SUFFIXES)]
    assert "model.embed_tokens.weight" in kept and "model.layers.0.mlp.gate.weight" in kept, kept
    assert any("o_proj" in k for k in kept), "o_proj was asked to stay plain"
    for k in kept:
        assert np.array_equal(pack[k], plain[k]), k
    assert not [k for k in kept if ".experts.gate_up_proj" in k]


def the_config_says_how_it_is_stored(_, pack, folder):
    with open(os.path.join(folder, "config.json")) as f:
        q = json.load(f)["quantization_config"]
    assert (q["quant_method"], q["head_bits"], q["codebook"]) == ("exl3", 6, "mul1"), q
    assert 3 < q["bits"] < 4, q
    with open(os.path.join(folder, "quantization_config.json")) as f:
        storage = json.load(f)["tensor_storage"]
    assert sorted(storage) == sorted(k[:-len(".trellis")] for k in pack if k.endswith(".trellis"))


def the_engine_finds_all_it_needs(_, pack, folder):
    out = subprocess.run([sys.argv[2], "inspect", folder], capture_output=True, text=True, check=False)
    assert out.returncode == 0 and "every tensor that its text model needs" in out.stdout, out.stdout[-500:] + out.stderr


def a_wrong_width_is_refused(_, pack, folder):
    out = subprocess.run([sys.argv[1], folder, folder, "--bits=3.25"], capture_output=True, text=True, check=False)
    assert out.returncode != 0 and "'3.25': wanted 1 to 8 bits in halves, or plain" in out.stderr, out.stderr


TESTS = [every_linear_comes_back_within_the_loss_of_its_width, what_is_no_linear_of_the_format_is_copied, the_config_says_how_it_is_stored,
         the_engine_finds_all_it_needs, a_wrong_width_is_refused]


def main():
    with tempfile.TemporaryDirectory() as tmp:
        plain, folder = os.path.join(tmp, "plain"), os.path.join(tmp, "pack")
        make_tiny.write_checkpoint(make_tiny.arguments([plain] + MODEL))
        subprocess.run([sys.argv[1], plain, folder, "--bits=4", "--width=*.experts.*=3", "--width=*q_proj=3.5", "--width=*o_proj=plain"],
                       check=True, stdout=subprocess.DEVNULL)
        made = tensors(plain), tensors(folder), folder
        print(f"1..{len(TESTS)}")
        for i, t in enumerate(TESTS, 1):
            try:
                t(*made)
                print(f"ok {i} {t.__name__}", flush=True)
            except AssertionError as e:
                print(f"# {e}\nnot ok {i} {t.__name__}", flush=True)


if __name__ == "__main__":
    main()
