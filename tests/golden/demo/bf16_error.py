#!/usr/bin/env python3
"""What transformers in bf16 loses against fp32 on the demo's prompts: bf16.json, one GPU.

bf16_error.py --model tests/models/demo --reference tests/golden/demo --out bf16.json
"""
import argparse, json, os


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--reference", required=True)
    ap.add_argument("--out", required=True)
    o = ap.parse_args()
    import numpy as np, torch
    from transformers import Qwen3_5ForCausalLM
    hf = Qwen3_5ForCausalLM.from_pretrained(o.model, dtype=torch.bfloat16, attn_implementation="eager").cuda().eval()
    with open(os.path.join(o.reference, "prompts.json"), encoding="utf-8") as f:
        prompts = json.load(f)
    want = np.load(os.path.join(o.reference, "logits.npy"))
    out = []
    with torch.no_grad():
        for p in prompts:
            rows = want[p["first_row"]:p["first_row"] + len(p["positions"])].astype(np.float64)
            got = hf(torch.tensor([p["ids"]], device="cuda"), use_cache=False).logits[0][p["positions"]]
            d = (got.float().cpu().numpy() - rows) / (rows.max() - rows.min())
            out.append({"name": p["name"], "worst": float(np.abs(d).max()), "rms": float(np.sqrt((d * d).mean()))})
    with open(o.out, "w", encoding="utf-8") as f:
        f.write("[" + ",\n ".join(json.dumps(x) for x in out) + "]\n")
    for x in out: print(f"{x['worst']:.3g} {x['rms']:.3g} {x['name']}")


if __name__ == "__main__":
    main()
