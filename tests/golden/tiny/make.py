#!/usr/bin/python3
"""make: the tiny random models of the golden test, and their stored answers.

    make.py models OUT     writes OUT/<name>/ for each model (the build does this)
    make.py reference [NAME ..]   rewrites <name>.json and <name>.f32 of the EXL3 models beside this file (by hand,
                           minutes); with_transformers.py --write does it for the others
    make.py mtp            rewrites mtp.json, the drafts of the MTP heads (by hand)
    make.py seeds NAME     looks for a seed whose greedy ids, and experts, are decided by a clear margin
"""
import json
import os
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools"))
import make_exl3  # noqa: E402
import make_tiny  # noqa: E402
import reference  # noqa: E402

REAL = ["--real-heads", "--vocab", "256"]
MODELS = {
    # text keys at the top, tied head, one file
    "dense": REAL + ["--seed", "1", "--hidden", "128"],
    # text_config, head of its own, F32 small tensors, shards, vision and MTP tensors to pass by; 3 v heads a k head
    "multimodal": REAL + ["--seed", "3", "--hidden", "192", "--layers", "8", "--heads", "4", "--kv-heads", "2", "--nk",
                          "2", "--nv", "6", "--layout", "multimodal", "--untied", "--f32-small", "--shards", "3",
                          "--vision", "--mtp"],
    # peaked attention, saturated gates, decay from none to total
    "sharp": REAL + ["--seed", "2", "--hidden", "128", "--sharp", "--heads", "4", "--kv-heads", "1"],
    # small head sizes, fp32 weights, YaRN whose original length the prompts pass
    "yarn": ["--seed", "3", "--vocab", "256", "--hidden", "96", "--intermediate", "160", "--head-dim", "64", "--dk", "32",
             "--dv", "32", "--heads", "3", "--dtype", "f32", "--yarn", "4", "--yarn-original", "64"],
    # experts packed in one layer and single in the next, text keys at the top, 3 of 11, F16 weights
    "moe": REAL + ["--seed", "1", "--hidden", "128", "--moe", "mixed", "--experts", "11", "--top-k", "3",
                   "--expert-width", "48", "--shared-width", "72", "--dtype", "f16"],
    # the published MoE layout, with a saturated router and shared gate, one expert a row, YaRN
    "moe-multimodal": REAL + ["--seed", "7", "--hidden", "96", "--moe", "packed", "--experts", "6", "--top-k", "1",
                              "--layout", "multimodal", "--untied", "--f32-small", "--shards", "2", "--vision", "--mtp",
                              "--sharp", "--yarn", "2", "--yarn-original", "64"],
    # EXL3: every width and codebook, packed signs and biases, text keys at the top, a head beside a tied embedding
    "exl3": REAL + ["--seed", "3", "--hidden", "128", "--intermediate", "256", "--odd", "--codebooks", "mul1,mcg,3inst,mcg",
                    "--widths", "4,3.5,1,2,6,8,2.5,5,7,1.5,3,4.5,5.5,6.5,7.5", "--head-width", "6"],
    # EXL3 and plain linears side by side, the multimodal layout in shards, sharpened, the head tied, MTP to pass by
    "exl3-sharp": REAL + ["--seed", "3", "--hidden", "256", "--sharp", "--heads", "4", "--layout", "multimodal", "--shards",
                          "3", "--vision", "--mtp", "--f32-small", "--widths", "3,plain,4,5,plain,3.5"],
    # EXL3 experts, one by one; the last expert's bits are another's
    "exl3-moe": REAL + ["--seed", "7", "--hidden", "128", "--moe", "single", "--experts", "6", "--top-k", "2",
                        "--expert-width", "128", "--shared-width", "256", "--untied", "--head-width", "5",
                        "--widths", "4,4,4,3,2.5"],
}
# MTP heads of each form; small, as only their drafts are stored.
MTP_MODELS = {
    # tied, F32, YaRN that the prompts pass
    "mtp-dense": ["--seed", "5", "--mtp", "--hidden", "96", "--intermediate", "160", "--heads", "3", "--dtype", "f32", "--yarn",
                  "4", "--yarn-original", "64"],
    # a head of its own, experts packed in the MTP layer alone
    "mtp-packed": ["--seed", "6", "--mtp", "--moe", "single", "--untied", "--layout", "multimodal", "--shards", "2"],
    # experts one by one in the MTP layer alone
    "mtp-single": ["--seed", "7", "--mtp", "--moe", "packed", "--experts", "7", "--top-k", "3", "--dtype", "f16"],
    # EXL3 with packed signs and a bias of fc, an EXL3 head beside a tied embedding
    "mtp-exl3": ["--seed", "8", "--mtp", "--hidden", "128", "--intermediate", "256", "--head-dim", "64", "--dk", "32", "--dv",
                 "32", "--odd", "--codebooks", "mul1,mcg,3inst", "--widths", "4,3", "--head-width", "6", "--mtp-width", "3.5"],
    # EXL3 experts, the head tied and plain
    "mtp-exl3-moe": ["--seed", "9", "--mtp", "--hidden", "128", "--moe", "packed", "--experts", "6", "--top-k", "2",
                     "--expert-width", "128", "--shared-width", "128", "--widths", "4", "--codebooks", "mcg"],
}
MTP_IDS, MTP_ANCHORS, MTP_CHAIN, MTP_TEMPERATURE = 80, (1, 2, 14, 65, 79), 5, 0.8
MTP_CANDIDATES = 16  # best ids of which a draft is drawn
PROMPTS = (1, 37, 200)
GREEDY = 32
# The engine is allowed 1e-5 of the range of the logits (about 1e-4): a draw must be decided by more than both sides' error.
MARGIN = 4e-3
# Nor may rounding pick the expert of any row: the router's logits differ by more than the error of both sides.
ROUTING_MARGIN = 1e-4


def cases(name):
    for count in PROMPTS:
        ids = (make_tiny.uniform(count, name + " prompt", count) + 1) * 128
        yield {"name": f"{name}, {count} ids", "ids": [int(i) for i in ids], "rows": list(range(count)), "greedy": GREEDY}


def exl3(name):
    return name.startswith("exl3")


def make(name, out, extra=()):
    argv = [out] + {**MODELS, **MTP_MODELS}[name] + list(extra)
    if "exl3" in name:
        make_exl3.write_checkpoint(*make_exl3.arguments(argv))
    else:
        make_tiny.write_checkpoint(make_tiny.arguments(argv))


def make_models(out):
    for name in (*MODELS, *MTP_MODELS):
        make(name, os.path.join(out, name))
    with open(os.path.join(out, "tiny.stamp"), "w") as f:
        f.write("made\n")


def check_margins(case):
    if case["greedy_margin"] < MARGIN:
        raise SystemExit(f"{case['name']}: margin {case['greedy_margin']:.2g}, wanted {MARGIN}: take another seed")
    if case.get("routing_margin", 1) < ROUTING_MARGIN:
        raise SystemExit(f"{case['name']}: routing margin {case['routing_margin']:.2g}, wanted {ROUTING_MARGIN}: "
                         "take another seed")


def make_reference(names):
    for name in names:
        if not exl3(name):
            raise SystemExit(f"{name}: not EXL3: with_transformers.py --write {name}")
        with tempfile.TemporaryDirectory() as tmp:
            make(name, tmp)
            done = list(cases(name))
            reference.run_cases(reference.read_model(tmp), done, os.path.join(HERE, name))
        for case in done:
            print(f"{case['name']}: range {case['range']:.3f}, least greedy margin {case['greedy_margin']:.4f}")
            check_margins(case)


def gumbel(seed, position, vocab):
    """The noise of the draws (docs/sampling.md)."""
    u64 = np.uint64
    with np.errstate(over="ignore"):
        x = make_tiny.mix(np.array([seed], u64) + u64(0x9E3779B97F4A7C15))
        x = make_tiny.mix(x ^ u64(position * 0xD1B54A32D192ED03 & make_tiny.MASK))
        x = make_tiny.mix(x ^ np.arange(vocab, dtype=u64))
    u = (x >> u64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    return -np.log(-np.log(np.minimum(u, 1 - 2.0**-53)))


def draw_with(seed):
    """One of the best ids, of which a draft is drawn; seed None: the best one. The margin is the narrower of two: to the second,
    and of the last of the best to the next."""
    def draw(logits, position):
        order = np.argsort(-logits, kind="stable")
        best, edge = order[:MTP_CANDIDATES], logits[order[MTP_CANDIDATES - 1]] - logits[order[MTP_CANDIDATES]]
        score = logits[best]
        if seed is not None:
            score = score / MTP_TEMPERATURE + gumbel(seed, position, len(logits))[best]
        first, second = np.argsort(-score, kind="stable")[:2]
        margin = score[first] - score[second]
        return int(best[first]), float(margin if seed is None else min(margin, edge))
    return draw


def mtp_cases(name):
    with tempfile.TemporaryDirectory() as tmp:
        make(name, tmp)
        model = reference.read_model(tmp)
    ids = [int(i) for i in (make_tiny.uniform(1, name + " prompt", MTP_IDS) + 1) * 128]
    hidden = model.hidden(ids, model.new_state())
    for pos in MTP_ANCHORS:
        for seed in (None, 1000 + pos):
            drafts, margins = model.mtp_chain(hidden, ids, pos, MTP_CHAIN, draw_with(seed))
            yield {"pos": pos, "seed": seed, "drafts": drafts, "margins": [round(m, 6) for m in margins]}, ids


def make_mtp():
    out = []
    for name in MTP_MODELS:
        done = list(mtp_cases(name))
        least = min(m for c, _ in done for m in c["margins"])
        print(f"{name}: least margin {least:.4f}")
        out.append({"model": name, "ids": done[0][1], "temperature": MTP_TEMPERATURE, "cases": [c for c, _ in done]})
    with open(os.path.join(HERE, "mtp.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(m) for m in out) + "\n]\n")


def find_seed(name):
    for seed in range(1, 100):
        with tempfile.TemporaryDirectory() as tmp:
            make(name, tmp, ["--seed", str(seed)])
            model, margin = reference.read_model(tmp), 1e9
            for case in cases(name):
                state = model.new_state()
                last = model.forward(case["ids"], state)[-1]
                margin = min(margin, model.greedy(last, state, GREEDY)[1])
                if margin < MARGIN or model.routing_margin < ROUTING_MARGIN:
                    break
        routing = model.routing_margin
        print(f"{name} seed {seed}: margin {margin:.4f}, routing {routing:.2g}", flush=True)
        if margin >= MARGIN and routing >= ROUTING_MARGIN:
            return


if __name__ == "__main__":
    if sys.argv[1:2] == ["models"] and len(sys.argv) == 3:
        make_models(sys.argv[2])
    elif sys.argv[1:2] == ["reference"]:
        make_reference(sys.argv[2:] or filter(exl3, MODELS))
    elif sys.argv[1:] == ["mtp"]:
        make_mtp()
    elif sys.argv[1:2] == ["seeds"] and len(sys.argv) == 3:
        find_seed(sys.argv[2])
    else:
        raise SystemExit(__doc__)
