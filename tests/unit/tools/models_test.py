#!/usr/bin/python3
"""models_test: the files of tests/models keep to their limits, and the drafters to their published layout. Prints TAP."""
import json
import os
import shutil
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "..", "models")
ALL_BYTES_MAX, FILE_BYTES_MAX = 40_000_000, 12_000_000
DRAFTERS = ("demo-dflash2", "demo-dflash2-weak", "demo-dflash")


def header(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        return {k: tuple(v["shape"]) for k, v in json.loads(f.read(n)).items() if k != "__metadata__"}


def read_config(name):
    with open(os.path.join(MODELS, name, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def wanted_tensors(c):
    """The published names and shapes of a drafter with this config."""
    d, H, I, hd = c["dflash_config"], c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv, v2 = c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd, c["architectures"] == ["DFlash2DraftModel"]
    out = {"fc.weight": (H, len(d["target_layer_ids"]) * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        out |= {p + "input_layernorm.weight": (H,), p + "post_attention_layernorm.weight": (H,), p + "self_attn.q_proj.weight": (q, H),
                p + "self_attn.k_proj.weight": (kv, H), p + "self_attn.v_proj.weight": (kv, H), p + "self_attn.o_proj.weight": (H, q),
                p + "self_attn.q_norm.weight": (hd,), p + "self_attn.k_norm.weight": (hd,), p + "mlp.gate_proj.weight": (I, H),
                p + "mlp.up_proj.weight": (I, H), p + "mlp.down_proj.weight": (H, I)}
        for conv in ("attention_conv", "mlp_conv") if v2 else ():
            k = d["conv_kernel_size"]
            out |= {f"{p}{conv}.base_kernel": (2, k, H), f"{p}{conv}.kernel_projection.weight": (2 * k * (H // d["conv_group_size"]), H)}
    if v2:
        s, r, V = "candidate_selector.", d["selector_rank"], c["vocab_size"]
        out |= {s + "hidden_projection.weight": (r, H), s + "predecessor_codebook": (V, r), s + "successor_codebook": (V, r)}
    return out


def all_of_it_is_small_enough_to_keep():
    names = []
    if shutil.which("git"):  # what is committed; without git, or in a copy without its folder, what is there
        listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=MODELS, capture_output=True, text=True, check=False).stdout
        names = [n for n in listed.split("\0") if n]
    names = names or [os.path.relpath(os.path.join(d, f), MODELS) for d, _, fs in os.walk(MODELS) for f in fs]
    sizes = {n: os.lstat(os.path.join(MODELS, n)).st_size for n in names}
    print(f"# {len(sizes)} files, {sum(sizes.values()):,} bytes")
    assert sum(sizes.values()) <= ALL_BYTES_MAX, sum(sizes.values())
    assert max(sizes.values()) <= FILE_BYTES_MAX, max(sizes, key=sizes.get)


def drafters_have_the_published_tensors_and_no_others():
    for name in DRAFTERS:
        found, wanted = header(os.path.join(MODELS, name, "model.safetensors")), wanted_tensors(read_config(name))
        assert found == wanted, f"{name}: {sorted(set(found.items()) ^ set(wanted.items()))[:4]}"


def drafters_fit_the_demo():
    t = read_config("demo")
    for name in DRAFTERS:
        c = read_config(name)
        for theirs, ours in (("hidden_size", "hidden_size"), ("vocab_size", "vocab_size"), ("num_hidden_layers", "num_target_layers")):
            assert t[theirs] == c[ours], f"{name}: {ours} {c[ours]}, the demo's {t[theirs]}"
        assert all(0 <= i < t["num_hidden_layers"] for i in c["dflash_config"]["target_layer_ids"]), name
        assert c["rope_theta"] == t["rope_parameters"]["rope_theta"], name


def draft_vocabularies_are_two_spans_that_leave_out_a_third_but_no_control_token():
    with open(os.path.join(MODELS, "demo", "tokenizer.json"), encoding="utf-8") as f:
        tok = json.load(f)
    used = len(tok["model"]["vocab"]) + len(tok["added_tokens"])
    for name in DRAFTERS:
        spans = read_config(name)["dflash_config"]["draft_vocab_spans"]
        inside = {i for first, count in spans for i in range(first, first + count)}
        left_out = 1 - len([i for i in inside if i < used]) / used
        assert len(spans) == 2 and all(x % 128 == 0 for s in spans for x in s), spans
        assert 0.25 < left_out < 0.35, f"{name}: {left_out:.2f} left out"
        assert all(t["id"] in inside for t in tok["added_tokens"]), name


TESTS = [all_of_it_is_small_enough_to_keep, drafters_have_the_published_tensors_and_no_others, drafters_fit_the_demo,
         draft_vocabularies_are_two_spans_that_leave_out_a_third_but_no_control_token]


def main():
    print(f"1..{len(TESTS)}")
    for i, t in enumerate(TESTS, 1):
        try:
            t()
            print(f"ok {i} {t.__name__}", flush=True)
        except AssertionError as e:
            print(f"# {e}\nnot ok {i} {t.__name__}", flush=True)


if __name__ == "__main__":
    main()
