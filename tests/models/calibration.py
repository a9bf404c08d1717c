#!/usr/bin/env python3
"""Texts as ids, each a prompt and the answer it should get, for quantising a demo model and for measuring what that cost.

calibration.py --model DIR --count 200 > ids.json      (--held-out: from the test split, other seeds)
Writes a JSON list of {"ids": [...], "prompt": N}, N of the ids the prompt's. Needs tokenizers.
"""
import argparse, json, sys
import generate
from tokenizers import Tokenizer

LONGEST = 1024

if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--count", type=int, default=200)
    ap.add_argument("--held-out", action="store_true")
    o = ap.parse_args()
    tok = Tokenizer.from_file(o.model + "/tokenizer.json")
    encode = lambda text: tok.encode(text, add_special_tokens=False).ids
    out = []
    for it in generate.items(10 * o.count, 700001, o.held_out):
        p, q = encode(it["prompt"]), encode(it["answer"])
        if len(p) + len(q) <= LONGEST: out.append({"ids": p + q, "prompt": len(p)})
        if len(out) == o.count: break
    json.dump(out, sys.stdout)
