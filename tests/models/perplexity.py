#!/usr/bin/python3
"""Perplexity of models on the same texts, by the engine on this computer. Numpy.

perplexity.py --worker build/railyard-worker --ids held_out.json MODEL [MODEL ...]
The texts are calibration.py's; the answers' tokens count, and all tokens are given too. Later models are compared with the first.
"""
import argparse, json, os, subprocess, tempfile
import numpy as np


def losses(worker, model, texts):
    """Mean of -ln p over the answers' tokens and over all but each text's first."""
    answers, every = [], []
    with tempfile.TemporaryDirectory() as d:
        for t in texts:
            subprocess.run([worker, "logits", model, f"--out={d}/x.npy", "--threads=2"], input=json.dumps(t["ids"]).encode(), check=True)
            x = np.load(d + "/x.npy").astype(np.float64)[:-1]
            x -= x.max(-1, keepdims=True)
            nll = np.log(np.exp(x).sum(-1)) - x[np.arange(len(x)), t["ids"][1:]]
            every.append(nll); answers.append(nll[t["prompt"] - 1:])
    return np.concatenate(answers).mean(), np.concatenate(every).mean()


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--worker", required=True)
    ap.add_argument("--ids", required=True)
    ap.add_argument("models", nargs="+")
    o = ap.parse_args()
    texts, first = json.load(open(o.ids)), None
    print(f"{len(texts)} texts, {sum(len(t['ids']) - t['prompt'] for t in texts)} tokens of answers")
    for model in o.models:
        a, e = losses(o.worker, model, texts)
        first = first or (a, e)
        print(f"{os.path.basename(os.path.normpath(model)):20} answers {np.exp(a):.4f} ({100 * (np.exp(a - first[0]) - 1):+.2f}%)   "
              f"all tokens {np.exp(e):.4f} ({100 * (np.exp(e - first[1]) - 1):+.2f}%)", flush=True)


if __name__ == "__main__":
    main()
