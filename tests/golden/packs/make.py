#!/usr/bin/python3
"""make: the stored answers of the golden test of the demo packs.

    make.py [NAME ..]   rewrites <name>.json and <name>.f32 beside this file, by hand; minutes

The prompts are some of tests/golden/demo; the answers are tests/tools/reference.py's, in double precision from the decoded weights.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import reference  # noqa: E402

PACKS = ("demo-exl3", "demo-moe-exl3")
LONGEST, CASES, ROWS, GREEDY = 160, 4, 4, 24


def cases():
    with open(os.path.join(HERE, "..", "demo", "prompts.json")) as f:
        prompts = [p for p in json.load(f) if p["length"] <= LONGEST]
    for p in prompts[:: max(1, len(prompts) // CASES)][:CASES]:
        n = p["length"]
        rows = sorted({i * (n - 1) // (ROWS - 1) for i in range(ROWS)})
        yield {"name": p["name"], "ids": p["ids"], "rows": rows, "greedy": GREEDY}


for name in sys.argv[1:] or PACKS:
    model = reference.read_model(os.path.join(HERE, "..", "..", "models", name))
    done = list(cases())
    reference.run_cases(model, done, os.path.join(HERE, name))
    for case in done:
        print(f"{name}, {case['name']}, {len(case['ids'])} ids: least greedy margin {case['greedy_margin']:.4f}, "
              f"routing margin {case.get('routing_margin', float('nan')):.2g}")
