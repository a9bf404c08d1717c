#!/usr/bin/env python3
"""with_transformers: the logits of the tiny models by Hugging Face transformers on the CPU.

    with_transformers.py [NAME ..]           compares them with the stored ones
    with_transformers.py --write [NAME ..]   compares, and stores those of the models that are not EXL3

By hand: needs torch and transformers (README.md names the versions), which no other test does. Every forward goes
through transformers' own from_pretrained and model classes, in plain torch:

    fp32       one id a call with a cache, so that the delta rule is transformers' recurrent one: what is stored
    chunked    fp32, the whole prompt in one call: transformers' chunked delta rule
    float64    the whole prompt in one call, with whatever transformers does in fp32 by name done in float64

transformers does not read EXL3: such a model is loaded as its plain twin, a checkpoint of the decoded weights in F32.
"""
import json
import os
import sys
import tempfile
from unittest import mock

import numpy as np
import torch
import transformers

import make
import make_tiny
import reference

AGREE = 1e-5  # of the range: the golden test's tolerance


def load(folder, model, dtype):
    """model: the reference's, whose tensors a plain twin holds."""
    biases = {}
    with tempfile.TemporaryDirectory() as twin:
        if any(name.endswith(".trellis") for name in model.t):
            biases = {k: v for k, v in model.t.items() if k.endswith(".bias") and ".visual." not in k}
            folder = write_twin(folder, model, twin)
        got, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    if any(info.values()):
        raise SystemExit(f"{folder}: transformers did not load all of it: {info}")
    for name, bias in biases.items():  # no linear of these families has one; EXL3 may give it one
        linear = got.get_submodule(name.replace(model.prefix, "model.").removesuffix(".bias"))
        linear.bias = torch.nn.Parameter(torch.tensor(bias.astype(np.float16), dtype=dtype))
    return got.eval()


def write_twin(folder, model, out):
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    for part in (config, config.get("text_config", {})):
        part.pop("quantization_config", None)
    exl3 = {name.removesuffix(".trellis") for name in model.t if name.endswith(".trellis")}
    plain = [(name, "F32", x) for name, x in model.t.items()
             if name.rsplit(".", 1)[0] not in exl3 or name.endswith(".weight")]
    make_tiny.write_files(make_tiny.arguments([out]), config, plain)
    return out


def stepwise(model, case, greedy):
    """Logits of all ids, one id a call; then the ids that follow, and the least margin of those draws."""
    ids, rows, margin = list(case["ids"]), [], np.inf
    cache = transformers.DynamicCache(config=model.config)
    for at in range(len(ids) + greedy):
        row = model(torch.tensor([ids[at:at + 1]]), cache=cache, use_cache=True).logits[0, 0].numpy()
        rows.append(row)
        if at >= len(case["ids"]) - 1 and len(ids) < len(case["ids"]) + greedy:
            best = np.argsort(-row, kind="stable")[:2]
            margin = min(margin, float(row[best[0]] - row[best[1]]))
            ids.append(int(best[0]))
    return np.stack(rows[:len(case["ids"])]), ids[len(case["ids"]):], margin


def whole(model, case):
    return model(torch.tensor([case["ids"]]), use_cache=False).logits[0].numpy()


def in_double(model, case):
    """model in float64; all that transformers casts to fp32 by name becomes float64 too, the table of rope as well."""
    double = torch.float64
    with (mock.patch.multiple(torch, float32=double, float=double),
          mock.patch.object(torch.Tensor, "float", torch.Tensor.double)):
        rope = model.model.rotary_emb
        model.model.rotary_emb = type(rope)(config=rope.config)
        return whole(model, case)


def run(name, write):
    stem, cases, logits, at = os.path.join(make.HERE, name), list(make.cases(name)), [], 0
    stored = np.fromfile(stem + ".f32", dtype="<f4").reshape(-1, 256) if os.path.exists(stem + ".f32") else None
    with tempfile.TemporaryDirectory() as tmp, torch.no_grad():
        make.make(name, tmp)
        numpy_model = reference.read_model(tmp)
        single, double = (load(tmp, numpy_model, d) for d in (torch.float32, torch.float64))
    for case in cases:
        greedy = case["greedy"]
        with torch.no_grad():
            got, ids, margin = stepwise(single, case, greedy)
            chunked, exact = whole(single, case), in_double(double, case)
        ref = reference.run_case(numpy_model, case)
        spread = case["range"]

        def off(a, b):
            return float(np.abs(np.asarray(a, np.float64) - b).max() / spread)

        was = "none stored" if stored is None else f"stored {off(got, stored[at:at + len(got)]):.2g}"
        at += len(got)
        print(f"{case['name']}: fp32 against {was}, reference.py {off(got, ref):.2g}, float64 {off(got, exact):.2g}, "
              f"chunked {off(got, chunked):.2g}; float64 against reference.py {off(exact, ref):.2g}; "
              f"greedy margin {margin:.4f}", flush=True)
        if ids != case["greedy_ids"]:
            raise SystemExit(f"{case['name']}: greedy ids {ids}, those of reference.py {case['greedy_ids']}")
        if off(got, ref) > AGREE:
            raise SystemExit(f"{case['name']}: {off(got, ref):.2g} of the range from reference.py, wanted {AGREE}")
        case["range"], case["greedy_margin"] = float(got.max() - got.min()), margin
        make.check_margins(case)
        logits.append(got)
    if write and not make.exl3(name):
        reference.write_cases(stem, cases, logits)


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, numpy {np.__version__}", flush=True)
    storing = sys.argv[1:2] == ["--write"]
    for model_name in sys.argv[1 + storing:] or make.MODELS:
        run(model_name, storing)
