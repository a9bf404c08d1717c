#!/usr/bin/env python3
"""check_transformers: the stored logits against Hugging Face transformers in fp32, on the CPU. By hand: needs torch and
transformers, which no other test does. The multimodal checkpoint's text tower is loaded alone."""
import glob
import json
import os
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, Qwen3_5ForCausalLM

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
    model = Qwen3_5ForCausalLM(config).float().eval()
    model.load_state_dict(weights, strict=True)
    return model


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
    for model_name in make.MODELS:
        check(model_name)
