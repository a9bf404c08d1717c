"""The published files of a demo model but the card: weights in two shards, configurations, tokeniser."""
import json
from data import PLAIN, REGEX, SPECIAL

SHARD_BYTES = 10_500_000
CONTEXT = 4096


def mlp_config(c):
    if not c.X: return {"intermediate_size": c.I}
    return {"moe_intermediate_size": c.IX, "num_experts": c.X, "num_experts_per_tok": c.K, "output_router_logits": False,
            "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": c.IX}


def config(c, ids):
    kind = "Moe" if c.X else ""
    return {
        "architectures": [f"Qwen3_5{kind}ForCausalLM"], "model_type": f"qwen3_5{kind and '_moe'}_text", "dtype": "bfloat16",
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "bos_token_id": None,
        "eos_token_id": ids["<|endoftext|>"], "pad_token_id": ids["<|endoftext|>"], "full_attention_interval": c.every,
        "head_dim": c.hd, "hidden_act": "silu", "hidden_size": c.D, "initializer_range": 0.02, **mlp_config(c),
        "layer_types": ["full_attention" if c.full(i) else "linear_attention" for i in range(c.L)],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": c.dk, "linear_num_key_heads": c.NK,
        "linear_num_value_heads": c.NV, "linear_value_head_dim": c.dk, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": CONTEXT, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": c.H, "num_hidden_layers": c.L, "num_key_value_heads": c.KV, "output_gate_type": "swish",
        "partial_rotary_factor": c.rot / c.hd, "rms_norm_eps": c.eps,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": c.rot / c.hd,
                            "rope_theta": int(c.theta), "rope_type": "default"},
        "tie_word_embeddings": True, "use_cache": True, "vocab_size": c.vocab}


def tokenizer_config(ids):
    added = {str(ids[s]): {"content": s, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": s not in PLAIN}
             for s in SPECIAL}
    return {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added,
            "additional_special_tokens": [s for s in SPECIAL if s not in PLAIN and s not in ("<|endoftext|>", "<|im_end|>")],
            "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
            "model_max_length": CONTEXT, "pad_token": "<|endoftext|>", "pretokenize_regex": REGEX, "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}


def write_json(path, value):
    with open(path, "w") as f: f.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_model(m, c, tok, out):
    import torch
    from safetensors.torch import save_file
    tensors = {k: v.detach().to(torch.bfloat16).contiguous().cpu() for k, v in m.state_dict().items()}
    shards, size = [{}], 0
    for k, v in tensors.items():
        if size + 2 * v.numel() > SHARD_BYTES: shards.append({}); size = 0
        shards[-1][k] = v; size += 2 * v.numel()
    index = {"metadata": {"total_size": sum(2 * v.numel() for v in tensors.values())}, "weight_map": {}}
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, f"{out}/{name}", metadata={"format": "pt"})
        index["weight_map"].update(dict.fromkeys(shard, name))
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    write_json(out + "/model.safetensors.index.json", index)
    ids = {s: tok.token_to_id(s) for s in SPECIAL}
    write_json(out + "/config.json", config(c, ids))
    write_json(out + "/generation_config.json", {"do_sample": True, "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
                                                 "pad_token_id": ids["<|endoftext|>"], "temperature": 0.6, "top_k": 20, "top_p": 0.95})
    write_json(out + "/tokenizer_config.json", tokenizer_config(ids))
    tok.save(out + "/tokenizer.json")
