"""What the engine takes on a GPU, piece by piece, in the order of their weight, without network: a text and a record in JSON after each.

  python3 tests/gpu/figures.py [--pack DIR] [--source DIR] [--out DIR] [--only PIECE]... [--small] [--models DIR]

The models have a published one's sizes and random weights (tests/tools/make_shape.py); they are made as they are needed, one at a time, in
--models: by itself in memory where that is large enough, else in --out. figures.json in --out has the figures, PIECE.log the
programs' output. A piece that does not fit its budget of seconds is cut off with what it has. --small: the same on small models, to see
that it runs. The last lines say which limits are met; the exit status is 1 where a piece failed.
"""

import argparse
import json
import os
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run as gpu  # noqa: E402

SMALL = ["--layers=4", "--vocab=32768"]
PLANTED = ["--planted=256"]
TEXT_ROWS = 257  # of the planted model that the CPU reads too


class Figures(gpu.Run):
    def __init__(self, args):
        super().__init__(args)
        self.small, self.models, self.made = args.small, args.models, None
        self.limits = {}

    def place(self, gib):
        if self.models:
            return self.models
        for folder in ("/dev/shm", self.out):
            if os.path.isdir(folder) and shutil.disk_usage(folder).free > gib << 30:
                return folder
        return self.out

    def model(self, *flags, gib=17, on_disk=False):
        """The folder of a checkpoint made with these flags; the one before goes."""
        flags = [*flags, *(SMALL if self.small else [])]
        if self.made and self.made[0] == (flags, on_disk):
            return self.made[1]
        self.forget()
        folder = os.path.join(self.out if on_disk else self.place(gib), "figures-model")
        self.made = ((flags, on_disk), folder)
        began = time.time()
        self.call([sys.executable, os.path.join(self.source, "tests", "tools", "make_shape.py"), folder,
                   "--text-from", self.demo, *flags])
        print(f"    {' '.join(flags)}: made in {time.time() - began:.1f} s, in {os.path.dirname(folder)}", flush=True)
        return folder

    def forget(self):
        if self.made:
            shutil.rmtree(self.made[1], ignore_errors=True)
        self.made = None

    def bench(self, model, measure, *flags):
        """The parts of bench engine; their figures are kept even where it is cut off."""
        path = os.path.join(self.out, "bench.json")
        if os.path.exists(path):
            os.remove(path)
        began, text = time.time(), ""
        try:
            text = self.call([self.program("railyard-worker"), "bench", "engine", model, "--backend=cuda", "--drafter=none",
                              "--measure=" + measure, "--json=" + path, *flags])
        except gpu.Failed as e:
            text = e.text
            raise
        finally:
            print("    " + text.strip().replace("\n", "\n    "))
            print(f"    {measure} {' '.join(flags)}: {time.time() - began:.1f} s", flush=True)
            lines = []
            if os.path.exists(path):
                with open(path, encoding="utf-8") as f:
                    lines = [json.loads(line) for line in f]
            self.facts.setdefault("figures", []).extend(lines)
        return lines

    def limit(self, name, met, text):
        self.limits[name] = bool(met)
        self.facts.setdefault("limits", {})[name] = bool(met)
        print(f"    {'met' if met else 'NOT MET'}: {text}")


def contexts(run, most):
    return f"--context={min(most, 70000) if run.small else most}"


def decode(run):
    """The 27B, MUL1, 4 bits: loading, rounds of 1 to 256 rows and 1 to 64 streams, the share of every operation, prompts; crowds."""
    model = run.model(*PLANTED)
    found = run.bench(model, "load,shapes,operations,rounds,prompts,crowd", contexts(run, 33000))
    load = next(f for f in found if f["part"] == "load")
    run.limit("load", load["of_read"] >= 0.7, f"loading at {100 * load['of_read']:.0f}% of a plain read of the file (wanted: 70)")


def scratch(run):
    """The shared scratch costs nothing."""
    found = run.bench(run.model(*PLANTED), "scratch", contexts(run, 2304))
    run.limit("scratch", not found[-1]["apart"], "neither arm lies wholly below the other")


def long_bf16(run):
    run.bench(run.model(*PLANTED), "long", contexts(run, 196700), "--streams=1", "--kv=bf16")


def long_fp8(run):
    run.bench(run.model(*PLANTED), "long", contexts(run, 196700), "--streams=1", "--kv=fp8")


def products(run):
    """The error of EXL3's products against double precision."""
    try:
        run.tests("kernels_gpu", "products_of_exl3_are_as_exact_as_they_must_be")
    except gpu.Failed:
        run.limit("products", False, "rms error at most 7e-4, with one channel 50x 1.5e-3")
        raise
    run.limit("products", True, "rms error at most 7e-4, with one channel 50x 1.5e-3")


def perplexity_of(run, model, texts, backend):
    import numpy as np
    path, losses = os.path.join(run.out, "logits.npy"), []
    for ids in texts:
        run.call([run.program("railyard-worker"), "logits", model, "--out=" + path, "--backend=" + backend, "--chunk=256",
                  "--memory-fraction=0.5", "--drafter=none", f"--context={len(ids) + 1}", "--streams=1"], stdin=json.dumps(ids))
        x = np.load(path, mmap_mode="r")
        for row, wanted in zip(x, ids[1:]):
            row = row.astype(np.float64)
            losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[wanted])
    os.remove(path)
    return float(np.exp(np.mean(losses)))


def perplexity(run):
    """That of the GPU beside that of the CPU backend, whose activations are fp32 throughout."""
    with open(os.path.join(run.source, "tests", "golden", "demo", "prompts.json"), encoding="utf-8") as f:
        prompts = json.load(f)
    prompts = prompts["prompts"] if isinstance(prompts, dict) else prompts
    texts = sorted((p["ids"] for p in prompts), key=len)[-3:]
    models = [(name, os.path.join(run.source, "tests", "models", name), texts) for name in ("demo", "demo-exl3", "demo-moe-exl3")]
    planted = run.model(*PLANTED)
    with open(os.path.join(planted, "planted.json"), encoding="utf-8") as f:
        order = json.load(f)
    models.append(("planted 27B", planted, [(order + order)[:TEXT_ROWS]]))
    for name, model, ids in models:
        began = time.time()
        cpu, card = (perplexity_of(run, model, ids, backend) for backend in ("cpu", "cuda"))
        off = card / cpu - 1
        print(f"    {name}: {cpu:.6f} on the CPU, {card:.6f} on the GPU ({100 * off:+.4f}%), {sum(map(len, ids))} ids, "
              f"{time.time() - began:.1f} s", flush=True)
        run.facts[name] = {"cpu": cpu, "gpu": card, "off": off}
        if name != "demo-moe-exl3":  # rounding picks other experts there
            run.limit("perplexity of " + name, abs(off) <= 5e-4, "perplexity within 0.05%")


def other(run, *flags, gib=17):
    run.bench(run.model(*flags, gib=gib), "shapes,operations,rounds,prompts", contexts(run, 8300))


def mcg_4(run):
    other(run, "--codebook=mcg")


def mul1_35(run):
    other(run, "--bits=3.5")


def mcg_35(run):
    """Half of the layers at 3 bits and half at 4: half bits are MUL1's alone."""
    other(run, "--codebook=mcg", "--bits=3,4")


def experts(run):
    other(run, "--like=35b-a3b", gib=22)


def plain(run):
    """bf16."""
    other(run, "--plain", gib=56)


def load_cold(run):
    """A fifth of the 27B, on the disk and out of memory."""
    found = run.bench(run.model("--layers=12", "--vocab=32768", on_disk=True), "load-cold", "--context=4096", "--streams=1")
    run.limit("load from disk", found[0]["of_read"] >= 0.7,
              f"loading at {100 * found[0]['of_read']:.0f}% of a plain read of the file (wanted: 70)")


# Seconds at most. In this order the first five share a model.
PIECES = {decode: 100, perplexity: 75, scratch: 70, long_bf16: 110, long_fp8: 110, products: 30, mcg_4: 60, experts: 60, mul1_35: 50,
          mcg_35: 50, plain: 90, load_cold: 60}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pack")
    p.add_argument("--source", default=os.path.join(HERE, "..", ".."))
    p.add_argument("--out", default="gpu-figures")
    p.add_argument("--models")
    p.add_argument("--only", action="append")
    p.add_argument("--small", action="store_true")
    args = p.parse_args()
    run = Figures(args)
    os.makedirs(run.out, exist_ok=True)
    names = [piece.__name__ for piece in PIECES]
    for name in args.only or []:
        if name not in names:
            sys.exit(f"--only: no piece '{name}'; there are: {' '.join(names)}")
    record = {"small": args.small, "pieces": []}
    try:
        for piece, budget in PIECES.items():
            if args.only and piece.__name__ not in args.only:
                continue
            print(f"{piece.__name__}: {(piece.__doc__ or '').strip()}", flush=True)
            began = time.time()
            run.end, run.facts, error = began + budget, {}, ""
            with open(os.path.join(run.out, piece.__name__ + ".log"), "w+", encoding="utf-8") as run.log:
                try:
                    piece(run)
                except Exception as e:  # pylint: disable=broad-except  # whatever it is, the next piece runs
                    error = f"{type(e).__name__}: {e}"
            took = time.time() - began
            print(f"{piece.__name__}: {took:.1f} s of {budget}: {'FAILED ' + error[-600:] if error else 'done'}\n", flush=True)
            record["pieces"].append({"piece": piece.__name__, "ok": not error, "seconds": round(took, 1), "error": error, **run.facts})
            with open(os.path.join(run.out, "figures.json"), "w", encoding="utf-8") as f:
                json.dump(record, f, indent=1)
    finally:
        run.forget()
    for name, met in run.limits.items():
        print(f"{'met    ' if met else 'NOT MET'} {name}")
    failed = sum(not piece["ok"] for piece in record["pieces"])
    print(f"{len(record['pieces']) - failed} measured, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
