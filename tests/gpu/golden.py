"""The demo's stored fp32 logits against this engine's on the GPU and against transformers in bf16, on the same prompts.

  golden.py WORKER SOURCE OUT

The engine's error may be at most 1.5 times that of transformers in bf16: both are printed. Errors are rms over all stored rows, in
parts of the rms of the logits; the worst element is printed too. Then the EXL3 packs (MUL1; MCG with experts), which transformers does
not read, against their forward in double precision. The last line is JSON.
"""

import json
import os
import subprocess
import sys

import numpy as np

LIMIT = 1.5
PACK_LIMIT = 0.02


def of_engine(worker, demo, prompts, out, kv):
    path = os.path.join(out, "golden.npy")
    rows = []
    for p in prompts:
        r = subprocess.run([worker, "logits", demo, "--backend=cuda", "--kv=" + kv, "--memory-fraction=0.1", "--out=" + path],
                           input=json.dumps(p["ids"]), text=True, capture_output=True, check=False)
        if r.returncode:
            sys.exit(r.stderr[-1000:])
        rows.append(np.load(path)[p["positions"]])
    os.remove(path)
    return np.concatenate(rows)


def of_pack(worker, source, name, out):
    """The engine's rows and the stored ones of the longer prompts of a pack."""
    stem = os.path.join(source, "tests", "golden", "packs", name)
    with open(stem + ".json", encoding="utf-8") as f:
        cases = json.load(f)
    want = np.fromfile(stem + ".f32", "<f4").reshape(sum(len(c["rows"]) for c in cases), -1)
    prompts = [{"ids": c["ids"], "positions": c["rows"]} for c in cases[1:]]
    return of_engine(worker, os.path.join(source, "tests", "models", name), prompts, out, "bf16"), want[len(cases[0]["rows"]):]


def of_transformers(demo, prompts):
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(demo, dtype=torch.bfloat16, attn_implementation="eager").cuda().eval()
    rows = []
    with torch.no_grad():
        for p in prompts:
            logits = model(torch.tensor([p["ids"]], device="cuda")).logits[0]
            rows.append(logits[p["positions"]].float().cpu().numpy())
    return np.concatenate(rows)


def error(got, want):
    d = got.astype(np.float64) - want
    return {"rms": float(np.sqrt((d * d).mean() / (want.astype(np.float64) ** 2).mean())),
            "worst": float(np.abs(d).max() / (want.max() - want.min()))}


def main():
    worker, source, out = sys.argv[1:]
    demo = os.path.join(source, "tests", "models", "demo")
    folder = os.path.join(source, "tests", "golden", "demo")
    with open(os.path.join(folder, "prompts.json"), encoding="utf-8") as f:
        prompts = json.load(f)
    prompts = prompts["prompts"] if isinstance(prompts, dict) else prompts
    want = np.load(os.path.join(folder, "logits.npy"))
    libraries = os.environ.pop("LD_LIBRARY_PATH", "")  # ours, not python's
    theirs = of_transformers(demo, prompts)
    os.environ["LD_LIBRARY_PATH"] = libraries
    found = {}
    bad = False
    for kv, step in (("bf16", 1), ("f32", 4), ("fp8", 4)):  # a process for each prompt: some are enough for the others
        rows = [r for p in prompts[::step] for r in range(p["first_row"], p["first_row"] + len(p["positions"]))]
        mine = error(of_engine(worker, demo, prompts[::step], out, kv), want[rows])
        peer = error(theirs[rows], want[rows])
        found[kv] = {"engine": mine, "transformers_bf16": peer, "prompts": len(prompts[::step])}
        ratio = mine["rms"] / peer["rms"]
        bad |= not ratio <= LIMIT
        print(f"kv {kv}: rms {mine['rms']:.3e} worst {mine['worst']:.3e}; transformers bf16: rms {peer['rms']:.3e} "
              f"worst {peer['worst']:.3e}; ratio {ratio:.3f}")
    for name in ("demo-exl3", "demo-moe-exl3"):
        found[name] = error(*of_pack(worker, source, name, out))
        bad |= not found[name]["rms"] <= PACK_LIMIT
        print(f"{name}: rms {found[name]['rms']:.3e} worst {found[name]['worst']:.3e}")
    print(json.dumps(found))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
