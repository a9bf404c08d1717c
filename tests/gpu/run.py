"""The whole GPU check in one call, without network: stage by stage, each within its budget, a record in JSON after each.

  sh tests/gpu/run.sh [--pack DIR] [--source DIR] [--out DIR] [--only STAGE]...

--pack: what tests/gpu/pack.sh made, for a machine that cannot build; without it, the programs of build/. gpu.json in --out (default
gpu-results) has the stages, STAGE.log their output. The last line is `N passed, N failed`.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
EXACT = "unit_worker_exact"
OPS = tuple(("kernels_gpu", which, {}) for which in (("exl3",), ("experts",), ("-exl3", "-experts")))
PROMPT = json.dumps([i * 37 % 4000 for i in range(1, 200)])


class Failed(RuntimeError):
    def __init__(self, why, text, late):
        super().__init__(why)
        self.text, self.late = text, late


class Run:
    def __init__(self, args):
        self.pack = os.path.abspath(args.pack) if args.pack else None
        self.source = os.path.abspath(args.source)
        self.out = os.path.abspath(args.out)
        self.demo = os.path.join(self.source, "tests", "models", "demo")
        self.end = 0
        self.log = None
        self.facts = {}
        self.compiling = None

    def program(self, name):
        if self.pack:
            return os.path.join(self.pack, "bin", name)
        for folder in (".", "tests/gpu", "tests/unit", "tests/golden/demo"):
            path = os.path.join(self.source, "build", folder, name)
            if os.path.isfile(path):
                return path
        sys.exit(f"wanted {name} in build/: build it first")

    def env(self, **more):
        """Our own programs alone get our libraries: python3 has its own."""
        e = dict(os.environ, RAILYARD_SOURCE=self.source, RAILYARD_BUILD=os.path.join(self.source, "build"),
                 RAILYARD_BACKEND="cuda", RAILYARD_PYTHON=sys.executable, **more)
        if self.pack:
            e["LD_LIBRARY_PATH"] = os.path.join(self.pack, "lib")
        return e

    def call(self, command, stdin=None, want=0, **more):
        """Runs to its end or to the stage's; the output goes to the log as it comes, and comes back. Failed has it too."""
        self.log.write("$ " + " ".join(command) + "\n")
        self.log.flush()
        begin, late = os.path.getsize(self.log.name), False
        left = max(1, self.end - time.time())
        p = subprocess.Popen(command, env=self.env(**more), stdin=subprocess.PIPE if stdin else subprocess.DEVNULL, text=True,
                             stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            p.communicate(stdin, timeout=left)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
        self.log.seek(0, os.SEEK_END)
        with open(self.log.name, encoding="utf-8", errors="replace") as f:
            f.seek(begin)
            text = f.read()
        if late or p.returncode != want:
            how = f"not done after {left:.0f} s" if late else f"exit {p.returncode}, wanted {want}"
            raise Failed(f"{os.path.basename(command[0])}: {how}: {text[-1500:]}", text, late)
        return text

    def tests(self, name, *which, **more):
        """A TAP program: prints its notes and failures, counts its tests."""
        self.together((name, which, more))

    def together(self, *programs):
        """TAP programs side by side, each (name, words, settings of the environment); the first failure once all are over."""
        began, jobs, failed = time.time(), [], None
        for i, (name, which, more) in enumerate(programs):
            with open(f"{self.log.name}.{i}", "w", encoding="utf-8") as out:
                jobs.append(subprocess.Popen([self.program(name), *which], env=self.env(**more), stdin=subprocess.DEVNULL, stdout=out,
                                             stderr=subprocess.STDOUT, start_new_session=True))
        for i, (name, which, more) in enumerate(programs):
            late = False
            try:
                jobs[i].wait(max(0.1, self.end - time.time()))
            except subprocess.TimeoutExpired:
                late = True
                os.killpg(jobs[i].pid, signal.SIGKILL)
                jobs[i].wait()
            words = " ".join([name, *which, *(f"{k}={v}" for k, v in more.items())])
            with open(f"{self.log.name}.{i}", encoding="utf-8", errors="replace") as f:
                text = f.read()
            os.remove(f"{self.log.name}.{i}")
            self.log.write(f"$ {words}\n{text}")
            self.log.flush()
            for line in text.splitlines():
                if line.startswith(("# ", "not ok")):
                    print("   ", line)
            print(f"    {words}: over after {time.time() - began:.1f} s", flush=True)
            self.facts[name] = self.facts.get(name, 0) + len(re.findall(r"^ok ", text, re.M))
            if late or jobs[i].returncode:
                how = "not done in time" if late else f"exit {jobs[i].returncode}"
                failed = failed or Failed(f"{words}: {how}: {text[-1500:]}", text, late)
        if failed:
            raise failed

    def logits(self, name, *flags, model="demo", **more):
        path = os.path.join(self.out, name + ".npy")
        model = os.path.join(self.source, "tests", "models", model)
        self.call([self.program("railyard-worker"), "logits", model, "--out=" + path, *flags], stdin=PROMPT, **more)
        with open(path, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        return path, digest


def smoke(run):
    """The card, a forward, and its distance from the CPU backend's."""
    import numpy as np
    devices = json.loads(run.call([run.program("railyard-worker"), "--list-devices"]))
    print("   ", devices[0])
    run.facts["device"] = devices[0]
    gpu, digest = run.logits("gpu", "--backend=cuda")
    cpu, _ = run.logits("cpu", "--backend=cpu")
    a, b = np.load(gpu), np.load(cpu)
    error = float(np.abs(a - b).max() / (b.max() - b.min()))
    print(f"    logits on the GPU {digest[:16]}, {error:.5f} of the range from the CPU's")
    run.facts["error_against_cpu"] = error
    os.remove(gpu), os.remove(cpu)
    if not error < 0.05:
        raise RuntimeError("the GPU's logits are not those of the model")


def golden(run):
    text = run.call([sys.executable, os.path.join(HERE, "golden.py"), run.program("railyard-worker"), run.source, run.out])
    print("    " + text.strip().replace("\n", "\n    "))
    run.facts["golden"] = json.loads(text.strip().splitlines()[-1])


def ops(run):
    """Every operation against its twin, and the error of EXL3's products at a 27B's sizes."""
    run.together(*OPS)


def exact(run):
    """Bits of logits alone and in company, for both caches that serve; fp32's, which is slow, with the demo alone."""
    run.together((EXACT, (), {"RAILYARD_KV": "bf16"}), (EXACT, (), {"RAILYARD_KV": "fp8"}),
                 (EXACT, ("the_demo_answers_the_same_alone_and_beside_others",), {"RAILYARD_KV": "f32"}))


def drafts(run):
    """Operations of drafters against their formulas; drafted replies and wound-back windows against serial ones, every kind."""
    run.together(*((name, (), {}) for name in ("unit_kernels_draft", "unit_worker_draft", "unit_worker_rewind", "golden_demo_drafted")))


def memory(run):
    """The embedding's place with the card filled to the last page; no memory taken in rounds; counters at 0."""
    run.tests("engine_gpu")


def ask(port, path, body=None):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as r:
        return json.load(r)


def serve_and_ask(run, model, workers, flags, body, count):
    """A server with that many workers; the replies to the same question, and what the workers say of themselves."""
    port = 18000
    command = [run.program("railyard"), "serve", model, f"--api.listen=127.0.0.1:{port}", f"--ops.listen=127.0.0.1:{port + 1}",
               f"--workers={workers}", f"--run.dir={run.out}", *flags]
    run.log.write("$ " + " ".join(command) + "\n")
    run.log.flush()
    p = subprocess.Popen(command, env=run.env(), stdout=run.log, stderr=run.log, start_new_session=True)
    try:
        while True:
            if p.poll() is not None or time.time() > run.end:
                raise RuntimeError("the server did not come up: see the log")
            try:
                state = [w["state"] for w in ask(port + 1, "/admin/v1/workers")]
                if state.count("ready") == workers:
                    break
            except OSError:
                pass
            time.sleep(0.2)
        replies = [ask(port, "/v1/chat/completions", body) for _ in range(count)]
        return replies, ask(port + 1, "/admin/v1/workers")
    finally:
        p.send_signal(signal.SIGTERM)
        try:
            p.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)


def serve(run):
    """The demo over HTTP, two workers on one GPU."""
    body = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "temperature": 0, "max_tokens": 60}
    replies, workers = serve_and_ask(run, run.demo, 2, ["--memory-fraction=0.2"], body, 6)
    hashes = {r["choices"][0]["token_sha256"] for r in replies}
    print("   ", replies[0]["choices"][0]["message"]["content"][:100].replace("\n", " "))
    print("   ", workers[0]["gpu"], workers[0]["memory"])
    if len(hashes) != 1:
        raise RuntimeError(f"replies differ: {hashes}")
    if len(workers) != 2 or not all(w["gpu"]["uuid"] for w in workers):
        raise RuntimeError(f"workers: {workers}")
    run.facts["memory"] = workers[0]["memory"]


def shape(run):
    """A model of the 27B's sizes with random weights, over HTTP: that it fits, loads, answers, and gives the same bits twice."""
    model = os.path.join(run.out, "shape")
    began = time.time()
    run.call([sys.executable, os.path.join(run.source, "tests", "tools", "make_shape.py"), model, "--text-from", run.demo])
    made = time.time()
    body = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "temperature": 0, "max_tokens": 32, "ignore_eos": True}
    try:
        replies, workers = serve_and_ask(run, model, 1, ["--context=8192"], body, 2)
        took = time.time() - made
        text = run.call([run.program("railyard-worker"), "bench", "engine", model, "--backend=cuda", "--context=2048"])
    finally:
        shutil.rmtree(model)
    hashes = {r["choices"][0]["token_sha256"] for r in replies}
    print(f"    made in {made - began:.0f} s, served and asked in {took:.0f} s; {replies[1]['railyard']}")
    print("   ", workers[0]["memory"])
    print("    " + text.strip().replace("\n", "\n    "))
    run.facts.update(memory=workers[0]["memory"], figures=text.strip().splitlines())
    if len(hashes) != 1:
        raise RuntimeError(f"replies differ: {hashes}")


def sanitizer(run):
    """Every kernel once under both checkers, then what time allows of the shapes that change a kernel's form."""
    tool = "compute-sanitizer"
    for check, which, step in (("memcheck", "each_kernel", 1), ("racecheck", "each_kernel", 1), ("memcheck", "", 25)):
        command = [tool, "--tool", check, "--error-exitcode", "9", run.program("kernels_gpu"), *([which] if which else [])]
        began = time.time()
        try:
            text = run.call(command, RAILYARD_CASES_STEP=str(step))
            found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
        except Failed as e:
            text = e.text
            if which or not e.late or re.search(r"^========= (?!COMPUTE-SANITIZER)\S", text, re.M):
                raise
            found = ["nothing found until the time was over"]
        print(f"    {check} {which or 'one case in 25'}: {found[-1] if found else 'no summary'}, {time.time() - began:.1f} s", flush=True)
        if not found:
            raise RuntimeError(f"{check} said nothing: {text[-500:]}")


def jit_of(run):
    """The driver compiles the PTX, and keeps it for the programs that follow."""
    return {"CUDA_FORCE_PTX_JIT": "1", "CUDA_CACHE_PATH": os.path.join(run.out, "jit"), "CUDA_CACHE_MAXSIZE": str(2 << 30)}


def compile_ptx(run):
    """Minutes of one core, beside the stages before the one that needs it."""
    os.makedirs(os.path.join(run.out, "jit"), exist_ok=True)  # the driver keeps nothing where there is no such folder
    demo = os.path.join(run.source, "tests", "models", "demo")
    command = [run.program("railyard-worker"), "logits", demo, "--out=" + os.path.join(run.out, "compiled.npy"), "--backend=cuda"]
    run.compiling = subprocess.Popen(command, env=run.env(**jit_of(run)), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL, text=True)
    run.compiling.stdin.write("[1, 2, 3]")
    run.compiling.stdin.close()


def ptx(run):
    """All of it from the PTX that stands for later chips, with the bits of the native code."""
    jit = jit_of(run)
    if run.compiling:
        run.compiling.wait(max(1, run.end - time.time()))
    for model in ("demo", "demo-exl3", "demo-moe-exl3"):
        native, a = run.logits("native", "--backend=cuda", model=model)
        forced, b = run.logits("ptx", "--backend=cuda", model=model, **jit)
        os.remove(native), os.remove(forced)
        print(f"    logits of {model}: native {a[:16]}, from PTX {b[:16]}", flush=True)
        if a != b:
            raise RuntimeError(f"{model}: the logits' bits differ")
    run.together(*((name, which, jit) for name, which, _ in OPS), (EXACT, (), jit))


def figures(run):
    text = run.call([run.program("railyard-worker"), "bench", "engine", run.demo, "--backend=cuda"])
    print("    " + text.strip().replace("\n", "\n    "))
    run.facts["figures"] = text.strip().splitlines()


STAGES = {smoke: 6, memory: 40, golden: 35, ops: 80, serve: 12, exact: 100, drafts: 65, figures: 8, shape: 35, sanitizer: 75,
          ptx: 135}  # seconds; all of them under ten minutes


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pack")
    p.add_argument("--source", default=os.path.join(HERE, "..", ".."))
    p.add_argument("--out", default="gpu-results")
    p.add_argument("--only", action="append")
    args = p.parse_args()
    run = Run(args)
    os.makedirs(run.out, exist_ok=True)
    names = [s.__name__ for s in STAGES]
    for name in args.only or []:
        if name not in names:
            sys.exit(f"--only: no stage '{name}'; there are: {' '.join(names)}")
    record = {"stages": []}
    todo = [s for s in STAGES if not args.only or s.__name__ in args.only]
    for stage in todo:
        budget, began = STAGES[stage], time.time()
        # Not beside `memory`, which watches what is free.
        if ptx in todo and not run.compiling and (memory not in todo or todo.index(stage) > todo.index(memory)):
            compile_ptx(run)
        run.end, run.facts = began + budget, {}
        error = ""
        with open(os.path.join(run.out, stage.__name__ + ".log"), "w+", encoding="utf-8") as run.log:
            try:
                stage(run)
            except Exception as e:  # pylint: disable=broad-except  # whatever it is, the next stage runs
                error = f"{type(e).__name__}: {e}"
        took = time.time() - began
        print(f"{stage.__name__:10} {took:6.1f} s of {budget:3}   {'FAILED ' + error[-1500:] if error else 'ok'}", flush=True)
        record["stages"].append({"stage": stage.__name__, "ok": not error, "seconds": round(took, 1), "budget_s": budget,
                                 "error": error, **run.facts})
        with open(os.path.join(run.out, "gpu.json"), "w", encoding="utf-8") as f:
            json.dump(record, f, indent=1)
    failed = sum(not s["ok"] for s in record["stages"])
    print(f"{len(record['stages']) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
