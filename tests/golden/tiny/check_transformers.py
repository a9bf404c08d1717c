#!/usr/bin/env python3
"""check_transformers: the stored logits against Hugging Face transformers in fp32, on the CPU. By hand: needs torch and
transformers, which no other test does. The multimodal checkpoint's text tower is loaded alone."""
import glob
import json
import os
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM

import make


def load(folder):
    config = AutoConfig.from_pretrained(folder)
    config = getattr(config, "text_config", None) or config
    config._attn_implementation = "eager"
    weights = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        weights.update(load_file(path))
    weights = {k.replace("model.language_model.", "model."): v.float() for k, v in weights.items()
               if not k.startswith(("mtp.", "model.visual."))}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    kind = Qwen3_5MoeForCausalLM if getattr(config, "num_experts", 0) else Qwen3_5ForCausalLM
    if kind is Qwen3_5MoeForCausalLM:
        weights = packed(weights, config.num_hidden_layers, config.num_experts)
    model = kind(config).float().eval()
    model.load_state_dict(weights, strict=True)
    return model


def packed(weights, layers, experts):
    """All experts as transformers holds them in memory."""
    for i in range(layers):
        p = f"model.layers.{i}.mlp.experts."
        if p + "gate_up_proj" in weights:
            continue
        one = [[weights.pop(f"{p}{e}.{n}_proj.weight") for n in ("gate", "up", "down")] for e in range(experts)]
        weights[p + "gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in one])
        weights[p + "down_proj"] = torch.stack([down for _, _, down in one])
    return weights


def check(name):
    with open(os.path.join(make.HERE, name + ".json")) as f:
        cases = json.load(f)
    stored, at = np.fromfile(os.path.join(make.HERE, name + ".f32"), dtype="<f4").reshape(-1, 256), 0
    with tempfile.TemporaryDirectory() as tmp, torch.no_grad():
        make.make(name, tmp)
        model = load(tmp)
        for case in cases:
            got = model(torch.tensor([case["ids"]]), use_cache=False).logits[0].numpy()[case["rows"]]
            worst = np.abs(got - stored[at:at + len(got)]).max() / case["range"]
            at += len(got)
            print(f"{case['name']}: {worst:.2g} of the range", flush=True)


if __name__ == "__main__":
    for model_name in sys.argv[1:] or make.MODELS:
        check(model_name)
