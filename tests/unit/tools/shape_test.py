#!/usr/bin/python3
"""shape_test: make_shape.py and make_plain.py write checkpoints that the engine takes. Prints TAP. shape_test.py WORKER"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools")
WORKER = sys.argv[1]
SMALL = ["--layers=4", "--hidden=512", "--intermediate=512", "--vocab=512", "--heads=2", "--kv-heads=1", "--nk=2", "--nv=4"]
EXPERTS = ["--like=35b-a3b", "--experts=6", "--top-k=2", "--expert-width=128", "--shared-width=128"]


def make(tool, *args):
    subprocess.run(["/usr/bin/python3", os.path.join(TOOLS, tool), *args], check=True)


def right(model):
    r = subprocess.run([WORKER, "inspect", model], stdout=subprocess.PIPE, text=True, check=False)
    return r.returncode == 0 and "\nright " in r.stdout


def logits(model, ids):
    path = model + ".npy"
    subprocess.run([WORKER, "logits", model, "--out=" + path, "--backend=cpu"], input=json.dumps(ids), text=True, check=True)
    return np.load(path)


def every_form_is_a_checkpoint(folder):
    forms = ([], ["--bits=3.5"], ["--codebook=mcg", "--bits=3,4"], ["--plain"], EXPERTS, [*EXPERTS, "--plain"])
    for i, form in enumerate(forms):
        model = os.path.join(folder, f"form{i}")
        make("make_shape.py", model, *SMALL, *form)
        assert right(model), form
        assert np.isfinite(logits(model, [1, 2, 3])).all(), form


def planted_ids_follow_one_another(folder):
    model = os.path.join(folder, "planted")
    make("make_shape.py", model, *SMALL, "--planted=128")
    with open(os.path.join(model, "planted.json"), encoding="utf-8") as f:
        order = json.load(f)
    assert sorted(order) == list(range(128))
    told = logits(model, order)[:-1].argmax(axis=1) == order[1:]
    print(f"# the next id told after {told.sum()} of {len(told)}")
    assert told.mean() > 0.5


def a_plain_copy_has_the_logits_of_the_pack(folder):
    pack, copy = os.path.join(folder, "pack"), os.path.join(folder, "copy")
    make("make_shape.py", pack, *SMALL)
    make("make_plain.py", pack, copy)
    assert right(copy)
    a, b = (logits(m, list(range(5, 25))) for m in (pack, copy))
    assert np.abs(a - b).max() < 0.05 * (a.max() - a.min()), np.abs(a - b).max()


TESTS = (every_form_is_a_checkpoint, planted_ids_follow_one_another, a_plain_copy_has_the_logits_of_the_pack)
print(f"1..{len(TESTS)}")
for i, test in enumerate(TESTS):
    with tempfile.TemporaryDirectory() as d:
        try:
            test(d)
            print(f"ok {i + 1} {test.__name__}", flush=True)
        except Exception as e:  # pylint: disable=broad-except
            print(f"# {type(e).__name__}: {e}\nnot ok {i + 1} {test.__name__}", flush=True)
