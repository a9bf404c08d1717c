#!/usr/bin/python3
"""make_tiny: writes a small random qwen3_5 or qwen3_5_moe checkpoint in the published file layout.

    make_tiny.py OUT [--seed N] [--layers 4] [--hidden 64] [--intermediate 128] [--vocab 256]
                 [--heads 2] [--kv-heads 1] [--head-dim 32] [--nk 2] [--nv 4] [--dk 16] [--dv 16] [--conv 4]
                 [--dtype bf16|f16|f32] [--f32-small] [--layout text|multimodal] [--untied] [--shards N]
                 [--mtp] [--vision] [--sharp] [--yarn FACTOR] [--real-heads]
                 [--moe packed|single|mixed|both [--experts 8] [--top-k 2] [--expert-width 48] [--shared-width 40]]

Numpy only. The weights come from a counter-based hash of (seed, tensor name, element), not from numpy's generators, so
the same arguments write the same bytes with every version of numpy.
--real-heads   the family's head sizes: head_dim 256, dk = dv = 128.
--moe          experts in place of the dense MLP: packed in two tensors a layer (the published form), single (three
               tensors an expert), mixed (every second layer single), or both (layer 0 has both forms, the single one
               with other values). The MTP layer takes the other form than the first layer, as a published file does.
--sharp        peaked attention, saturated gates, and decay from none to total.
--f32-small    A_log and the gated norm as F32 in a 16-bit file, as published Qwen3.5 files have them.
--vision, --mtp   tensors of those parts too (random, small), as a loader must pass them by.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

MASK = (1 << 64) - 1


def mix(x):
    """Stafford's mix 13 over an array of u64."""
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(seed, name, count):
    """count values in [-1, 1)."""
    key = seed
    with np.errstate(over="ignore"):
        for b in name.encode():
            key = int(mix(np.array([(key * 257 + b + 1) & MASK], dtype=np.uint64))[0])
        i = np.arange(1, count + 1, dtype=np.uint64)
        u = mix(mix(i + np.uint64(key)) ^ np.uint64(key))
    return (u >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def normal(seed, name, shape):
    """Near-normal values of deviation 1: the scaled sum of four uniforms."""
    n = int(np.prod(shape))
    s = sum(uniform(seed, f"{name}#{k}", n) for k in range(4))
    return (s * np.sqrt(3.0 / 4.0)).reshape(shape)


def to_bf16(x):
    b = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


PACK = {
    "BF16": to_bf16,
    "F16": lambda x: x.astype(np.float16),
    "F32": lambda x: x.astype(np.float32),
    "I16": lambda x: x.astype(np.int16),
    "I32": lambda x: x.astype(np.int32),
}


def text_tensors(a, prefix):
    """(name, values) of the text tower, in the published order of a layer."""
    D, I = a.hidden, a.intermediate
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    kd, vd = a.nk * a.dk, a.nv * a.dv
    sharp = 4.0 if a.sharp else 1.0

    def lin(name, out, inp, gain=1.0):
        return name, normal(a.seed, name, (out, inp)) * (gain / np.sqrt(inp))

    def norm(name, n, centre=0.0):
        return name, centre + 0.2 * normal(a.seed, name, (n,))

    # A tied head sees the token's own row again: small rows keep it from drawing the same token for ever.
    yield "embed_tokens.weight", normal(a.seed, "embed", (a.vocab, D)) * (1 if a.untied else D ** -0.5)
    for i in range(a.layers):
        p = f"layers.{i}."
        yield norm(p + "input_layernorm.weight", D)
        yield norm(p + "post_attention_layernorm.weight", D)
        if (i + 1) % a.interval == 0:
            p += "self_attn."
            name, w = lin(p + "q_proj.weight", 2 * q, D)
            gates = w.reshape(a.heads, 2, a.head_dim, D)
            gates[:, 1] *= 3 * sharp  # sharp: the output gates sit at 0 or 1
            yield name, w
            yield lin(p + "k_proj.weight", kv, D)
            yield lin(p + "v_proj.weight", kv, D)
            yield lin(p + "o_proj.weight", D, q)
            # q and k are normed, so only these weights decide how peaked the softmax is
            yield norm(p + "q_norm.weight", a.head_dim, sharp - 1)
            yield norm(p + "k_norm.weight", a.head_dim, sharp - 1)
        else:
            p += "linear_attn."
            yield lin(p + "in_proj_qkv.weight", 2 * kd + vd, D)
            yield lin(p + "in_proj_z.weight", vd, D, sharp)
            yield lin(p + "in_proj_b.weight", a.nv, D, 2 * sharp)
            yield lin(p + "in_proj_a.weight", a.nv, D, sharp)
            yield p + "conv1d.weight", normal(a.seed, p + "conv1d", (2 * kd + vd, 1, a.conv)) * 0.6
            if a.sharp:  # g = -exp(A_log) softplus(a + dt_bias): from about -1e-5 to about -200 a token
                yield p + "A_log", np.linspace(-9.0, 4.0, a.nv)
                yield p + "dt_bias", np.linspace(-3.0, 3.0, a.nv)
            else:
                yield p + "A_log", 1.2 * uniform(a.seed, p + "A_log", a.nv) - 0.7
                yield p + "dt_bias", uniform(a.seed, p + "dt_bias", a.nv) - 1.0
            yield norm(p + "norm.weight", a.dv, 1.0)
            yield lin(p + "out_proj.weight", D, vd)
        p = f"layers.{i}.mlp."
        if a.moe:
            yield from moe_tensors(a, p, a.moe == "single" or (a.moe == "mixed" and i % 2), sharp)
            if a.moe == "both" and i == 0:
                yield from single_experts(a, p, np.zeros((a.experts, 2 * a.expert_width, D)),
                                          np.zeros((a.experts, D, a.expert_width)))
            continue
        yield lin(p + "gate_proj.weight", I, D, sharp)
        yield lin(p + "up_proj.weight", I, D)
        yield lin(p + "down_proj.weight", D, I)
    yield norm("norm.weight", D)


def single_experts(a, p, gate_up, down):
    for e in range(a.experts):
        yield f"{p}experts.{e}.gate_proj.weight", gate_up[e, :a.expert_width]
        yield f"{p}experts.{e}.up_proj.weight", gate_up[e, a.expert_width:]
        yield f"{p}experts.{e}.down_proj.weight", down[e]


def moe_tensors(a, p, single, sharp=1.0):
    """One layer's experts. Both forms hold the same values."""
    D, E, IM, IS = a.hidden, a.experts, a.expert_width, a.shared_width

    def lin(name, shape, gain=1.0):
        return normal(a.seed, p + name, shape) * (gain / np.sqrt(shape[-1]))

    yield p + "gate.weight", lin("gate.weight", (E, D), 2 * sharp)
    yield p + "shared_expert_gate.weight", lin("shared_expert_gate.weight", (1, D), 2 * sharp)
    yield p + "shared_expert.gate_proj.weight", lin("shared_expert.gate_proj.weight", (IS, D), sharp)
    yield p + "shared_expert.up_proj.weight", lin("shared_expert.up_proj.weight", (IS, D))
    yield p + "shared_expert.down_proj.weight", lin("shared_expert.down_proj.weight", (D, IS))
    gate_up, down = lin("experts.gate_up_proj", (E, 2 * IM, D)), lin("experts.down_proj", (E, D, IM))
    gate_up[:, :IM] *= sharp
    if single:
        yield from single_experts(a, p, gate_up, down)
    else:
        yield p + "experts.gate_up_proj", gate_up
        yield p + "experts.down_proj", down


def mtp_tensors(a):
    D, I, q, kv = a.hidden, a.intermediate, a.heads * a.head_dim, a.kv_heads * a.head_dim
    shapes = {
        "fc.weight": (D, 2 * D), "pre_fc_norm_embedding.weight": (D,), "pre_fc_norm_hidden.weight": (D,),
        "norm.weight": (D,), "layers.0.input_layernorm.weight": (D,),
        "layers.0.post_attention_layernorm.weight": (D,), "layers.0.self_attn.q_proj.weight": (2 * q, D),
        "layers.0.self_attn.k_proj.weight": (kv, D), "layers.0.self_attn.v_proj.weight": (kv, D),
        "layers.0.self_attn.o_proj.weight": (D, q), "layers.0.self_attn.q_norm.weight": (a.head_dim,),
        "layers.0.self_attn.k_norm.weight": (a.head_dim,), "layers.0.mlp.gate_proj.weight": (I, D),
        "layers.0.mlp.up_proj.weight": (I, D), "layers.0.mlp.down_proj.weight": (D, I),
    }
    for name, shape in shapes.items():
        if a.moe and ".mlp." in name:
            continue
        yield "mtp." + name, normal(a.seed, "mtp." + name, shape) * 0.1
    if a.moe:
        yield from moe_tensors(a, "mtp.layers.0.mlp.", a.moe != "single")


def all_tensors(a):
    prefix = "model.language_model." if a.layout == "multimodal" else "model."
    for name, w in text_tensors(a, prefix):
        yield prefix + name, w
    if a.untied:
        yield "lm_head.weight", normal(a.seed, "lm_head", (a.vocab, a.hidden)) / np.sqrt(a.hidden)
    if a.mtp:
        yield from mtp_tensors(a)
    if a.vision:
        for name, shape in (("patch_embed.proj.weight", (8, 3, 2, 16, 16)), ("patch_embed.proj.bias", (8,)),
                            ("merger.norm.weight", (8,)), ("merger.norm.bias", (8,))):
            yield "model.visual." + name, normal(a.seed, "visual." + name, shape) * 0.1


def config(a):
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
        "dtype": {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[a.dtype],
        "eos_token_id": a.vocab - 1, "full_attention_interval": a.interval, "head_dim": a.head_dim,
        "hidden_act": "silu", "hidden_size": a.hidden, "initializer_range": 0.02,
        "intermediate_size": a.intermediate,
        "layer_types": ["full_attention" if (i + 1) % a.interval == 0 else "linear_attention"
                        for i in range(a.layers)],
        "linear_conv_kernel_dim": a.conv, "linear_key_head_dim": a.dk, "linear_num_key_heads": a.nk,
        "linear_num_value_heads": a.nv, "linear_value_head_dim": a.dv, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1 if a.mtp else 0,
        "mtp_use_dedicated_embeddings": False, "num_attention_heads": a.heads, "num_hidden_layers": a.layers,
        "num_key_value_heads": a.kv_heads, "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                            "mrope_section": [11, 11, 10], "mrope_interleaved": True},
        "tie_word_embeddings": not a.untied, "use_cache": True, "vocab_size": a.vocab,
    }
    if a.yarn:
        text["rope_parameters"].update(rope_type="yarn", factor=a.yarn,
                                       original_max_position_embeddings=a.yarn_original)
    arch, kind = ("Qwen3_5Moe", "qwen3_5_moe") if a.moe else ("Qwen3_5", "qwen3_5")
    if a.moe:
        del text["intermediate_size"]
        text.update(num_experts=a.experts, num_experts_per_tok=a.top_k, moe_intermediate_size=a.expert_width,
                    shared_expert_intermediate_size=a.shared_width, output_router_logits=False,
                    router_aux_loss_coef=0.001)
    if a.layout == "text":
        return {"architectures": [arch + "ForCausalLM"], "model_type": kind + "_text", **text}
    return {
        "architectures": [arch + "ForConditionalGeneration"], "model_type": kind,
        "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053,
        "vision_end_token_id": 248054, "tie_word_embeddings": not a.untied,
        "text_config": {"model_type": kind + "_text", **text},
        "vision_config": {"model_type": kind, "depth": 1, "hidden_size": 8, "out_hidden_size": a.hidden,
                          "patch_size": 16, "temporal_patch_size": 2, "in_channels": 3},
    }


def dtype_of(a, name):
    small = name.endswith("A_log") or name.endswith("linear_attn.norm.weight")
    return "F32" if a.f32_small and small else a.dtype.upper()


def write_safetensors(path, tensors):
    """tensors: [(name, dtype, array)]. Wider types first, so that each starts on a multiple of its size."""
    tensors = sorted(tensors, key=lambda t: (t[1] not in ("F32", "I32"), t[0]))
    header, at, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name, dtype, x in tensors:
        blob = PACK[dtype](x).tobytes()
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for blob in blobs:
            f.write(blob)
    return at


def write_checkpoint(a):
    tensors = [(name, dtype_of(a, name), x) for name, x in all_tensors(a)]
    for name, _, x in tensors:
        if a.nan_id >= 0 and name.endswith("embed_tokens.weight"):
            x[a.nan_id] = np.nan  # whoever reads this id has only that in its rows
    write_files(a, config(a), tensors)


def write_files(a, config_object, tensors):
    """tensors: [(name, dtype, array)], in the order that shards cut."""
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.out, "config.json"), "w") as f:
        json.dump(config_object, f, indent=2)
        f.write("\n")
    if a.shards == 1:
        write_safetensors(os.path.join(a.out, "model.safetensors"), tensors)
        return
    weight_map, total = {}, 0
    for s in range(a.shards):
        part = tensors[len(tensors) * s // a.shards:len(tensors) * (s + 1) // a.shards]
        name = f"model-{s + 1:05d}-of-{a.shards:05d}.safetensors"
        total += write_safetensors(os.path.join(a.out, name), part)
        weight_map.update({t[0]: name for t in part})
    with open(os.path.join(a.out, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, f, indent=2)
        f.write("\n")


def arguments(argv):
    p = argparse.ArgumentParser()
    p.add_argument("out")
    for name, dflt in (("seed", 1), ("layers", 4), ("hidden", 64), ("intermediate", 128), ("vocab", 256),
                       ("heads", 2), ("kv-heads", 1), ("head-dim", 32), ("nk", 2), ("nv", 4), ("dk", 16),
                       ("dv", 16), ("conv", 4), ("interval", 4), ("shards", 1), ("yarn-original", 64), ("experts", 8), ("top-k", 2),
                       ("expert-width", 48), ("shared-width", 40), ("nan-id", -1)):
        p.add_argument("--" + name, type=int, default=dflt)
    p.add_argument("--yarn", type=float, default=0.0)
    p.add_argument("--dtype", choices=("bf16", "f16", "f32"), default="bf16")
    p.add_argument("--layout", choices=("text", "multimodal"), default="text")
    p.add_argument("--moe", choices=("packed", "single", "mixed", "both"), default="")
    for flag in ("f32-small", "untied", "mtp", "vision", "sharp", "real-heads"):
        p.add_argument("--" + flag, action="store_true")
    a = p.parse_args(argv)
    if a.real_heads:
        a.head_dim, a.dk, a.dv = 256, 128, 128
    return a


if __name__ == "__main__":
    write_checkpoint(arguments(sys.argv[1:]))
