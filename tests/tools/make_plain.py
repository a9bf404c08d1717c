#!/usr/bin/python3
"""make_plain: an EXL3 checkpoint with plain weights: every linear decoded and rounded to bf16. For small models; numpy.

    make_plain.py MODEL OUT
"""
import json
import os
import shutil
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import exl3  # noqa: E402
import make_tiny  # noqa: E402

TYPES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "I16": "<i2", "I32": "<i4"}


def read(path):
    """Type and raw array of each tensor."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: (t["dtype"], np.frombuffer(data[slice(*t["data_offsets"])], TYPES[t["dtype"]]).reshape(t["shape"]))
            for name, t in header.items()}


def plain(tensors):
    arrays = {name: x for name, (_, x) in tensors.items()}
    keys = {name[:-len(".trellis")] for name in arrays if name.endswith(".trellis")}
    for name, (dtype, x) in tensors.items():
        key, _, end = name.rpartition(".")
        if key not in keys:
            if dtype == "BF16":
                x = (x.astype(np.uint32) << 16).view(np.float32)
            yield name, dtype, x
        elif end == "trellis":
            yield key + ".weight", "BF16", exl3.dense(arrays, key)


def main():
    model, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    tensors = read(os.path.join(model, "model.safetensors"))
    make_tiny.write_safetensors(os.path.join(out, "model.safetensors"), list(plain(tensors)))
    with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    del config["quantization_config"]
    if "lm_head.trellis" in tensors:
        config["tie_word_embeddings"] = False
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if os.path.exists(os.path.join(model, name)):
            shutil.copy(os.path.join(model, name), out)


if __name__ == "__main__":
    main()
