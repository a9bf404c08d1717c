"""The receipt tool against real servers: exit status, the cells it names, its file, and two receipts side by side."""

import json
import os
import tempfile

from harness import (SMALL, FakeWorker, Server, Worker, check, check_eq, check_in, free_port, main, note, run_program, shared,
                     test)

TOKENS = 8 if SMALL else 24
LEVELS = "1,3" if SMALL else "1,2,5"
DIR = tempfile.TemporaryDirectory(prefix="ry-bench-")

COLD = [{"prompt": "Tell me about " + "a small brave cat and a dog and " * 20},
        {"name": "short", "messages": [{"role": "user", "content": "hello"}]}]


def path(name):
    return os.path.join(DIR.name, name)


def write_lines(name, objects):
    with open(path(name), "w") as f:
        f.writelines(json.dumps(o) + "\n" for o in objects)
    return path(name)


def bench(*args):
    """(exit status, stdout, stderr)"""
    code, out, err = run_program("bench", *args)
    note(" ".join(args) + f" -> {code}")
    check(code in (0, 1, 2), lambda: f"it ended with {code}:\n{out}{err}")
    return code, out, err


def concurrent(server, name, *flags):
    return bench("concurrent", f"http://127.0.0.1:{server.port}", f"--tokens={TOKENS}", f"--levels={LEVELS}",
                 f"--json={path(name)}", *flags)


def receipt(name):
    with open(path(name)) as f:
        return json.load(f)


CLEAN = []


def clean():
    """The receipt of a good server, with everything that can be measured; and what was printed with it."""
    if not CLEAN:
        cold = write_lines("cold.jsonl", COLD)
        CLEAN.append(concurrent(shared(), "clean.json", "--reps=2", "--alone", "--serial", f"--cold-prompts={cold}"))
    return CLEAN[0]


class Faulty:
    """A server whose worker is wrong by one unit in the last place, in shared rounds alone."""

    def __enter__(self):
        self.server = Server(command="router", wait_ready=False)
        # A prompt takes many rounds, so that streams which begin together meet in some.
        self.worker = Worker(self.server, "--debug.fault=ulp", "--chunk=1")
        self.server.wait_ready()
        return self.server

    def __exit__(self, *_):
        self.worker.end()
        self.server.end()


@test
def all_cells_of_a_good_server_are_equal_and_it_exits_with_0():
    status, out, err = clean()
    check_eq(status, 0, f"exit status of:\n{out}{err}")
    for cell in ("code/greedy/serial", "code/sampled/alone", "chat/greedy/1", "chat/sampled/" + LEVELS[-1], "cold/1"):
        check_in(cell, out, "the table")
        check_in(cell, err, "the progress")
    check_in(" 0 unequal, 0 failed, ", out.splitlines()[-1], "the last line")


@test
def the_receipt_has_what_the_table_has_and_where_it_came_from():
    clean()
    r = receipt("clean.json")
    version = shared().get("/version").json()
    check_eq(r["build"], f"{version['version']} {version['commit']}", "build")
    check_eq([r["checkpoint"]], version["checkpoints"], "checkpoint")
    check_eq([r["fingerprint"]], version["fingerprints"], "fingerprint")
    check_eq(len(r["prompts_sha256"]), 64, "digits of the prompts' digest")
    levels = [int(n) for n in LEVELS.split(",")]
    for cell in r["cells"]:
        wanted = {"cold": 2, "level": 2 * cell["level"], "alone": max(levels), "serial": max(levels)}[cell["kind"]]
        check_eq(len(cell["replies"]), wanted, f"replies of {cell['name']}")
        # A reference is held against nothing, and the first fill of a cold prompt neither.
        first = {"cold": 1, "level": 0, "alone": 0, "serial": wanted}[cell["kind"]]
        check_eq((cell["first"], cell["equal"]), (first, wanted - first), f"first and equal ones of {cell['name']}")
        for reply in cell["replies"]:
            check_eq(reply["tokens"], 1 if cell["kind"] == "cold" else TOKENS, f"tokens of {cell['name']}")
            check(reply["first_token_ms"] > 0, "no time to the first token")
            check(int(reply["logits_hash"], 16), "a logits hash is missing")
            check(cell["kind"] != "cold" or reply["cached_tokens"] == 0, "a cold prompt was kept")
        if cell["kind"] == "level":
            checks = {k: (v["equal"], v["unequal"]) for k, v in cell["checks"].items()}
            check_eq((checks["serial"], checks["alone"]), ((wanted, 0), (wanted, 0)), f"checks of {cell['name']}")
            check(all(x["by_logits"] for x in cell["replies"]), "a reply was not compared by its logits")


@test
def different_streams_of_a_cell_say_different_things():
    clean()
    for cell in receipt("clean.json")["cells"]:
        if cell["kind"] == "alone":
            hashes = [r["logits_hash"] for r in cell["replies"]]
            check_eq(len(set(hashes)), len(hashes), f"different hashes of {cell['name']}")


@test
def two_runs_of_one_build_are_100_percent_equal():
    clean()
    status, out, _ = concurrent(shared(), "again.json", "--reps=1", "--quiet")
    check_eq(status, 0, f"exit status of:\n{out}")
    status, out, err = bench("compare", path("clean.json"), path("again.json"))
    check_eq(status, 0, f"exit status of:\n{out}{err}")
    check_in("100% equal", out, "the verdict")


@test
def replies_that_were_held_against_nothing_are_not_called_equal():
    status, out, err = concurrent(shared(), "lone.json", "--reps=1", "--levels=1")
    check_eq(status, 0, f"exit status of:\n{out}{err}")
    check_in("nothing was compared", out, "the table")
    check_in("0 equal, 0 unequal, 0 failed, 4 first of their kind", out.splitlines()[-1], "the last line")


@test
def receipts_of_another_checkpoint_are_refused():
    clean()
    r = receipt("clean.json")
    r["checkpoint"] = "0" * 64
    with open(path("other.json"), "w") as f:
        json.dump(r, f)
    status, out, err = bench("compare", path("clean.json"), path("other.json"))
    check_eq((status, out), (2, ""), f"what it says beside {err}")
    check_in("cannot compare: A has checkpoint", err, "the refusal")


@test
def a_planted_inexactness_is_found_and_its_cell_named():
    with Faulty() as server:
        status, out, err = concurrent(server, "faulty.json", "--reps=1", "--alone")
    note(out)
    check_eq(status, 1, f"exit status of:\n{out}{err}")
    named = [line.split()[1].rstrip(":") for line in out.splitlines() if line.startswith("UNEQUAL")]
    check(named, "no cell is named")
    for cell in named:
        check(int(cell.rsplit("/", 1)[1]) > 1, f"{cell} has no shared rounds, so it cannot be wrong")


@test
def compare_finds_the_planted_inexactness_between_two_receipts():
    clean()
    if not os.path.exists(path("faulty.json")):
        with Faulty() as server:
            concurrent(server, "faulty.json", "--reps=1", "--alone")
    status, out, err = bench("compare", path("clean.json"), path("faulty.json"))
    check_eq(status, 1, f"exit status of:\n{out}{err}")
    check_in("UNEQUAL ", out, "the verdict")
    check("100% equal" not in out, "it says 100% equal")


@test
def receipts_of_other_prompts_or_lengths_are_refused():
    clean()
    prompts = write_lines("prompts.jsonl", [{"class": "chat", "prompt": "hello"}])
    url = f"http://127.0.0.1:{shared().port}/v1"
    for name, says, *flags in (("prompts.json", "prompts", f"--prompts={prompts}", f"--tokens={TOKENS}"),
                               ("tokens.json", "--tokens", "--tokens=4")):
        status, out, err = bench("concurrent", url, "--levels=1", "--reps=1", f"--json={path(name)}", *flags)
        check_eq(status, 0, f"exit status of:\n{out}{err}")
        status, out, err = bench("compare", path("clean.json"), path(name))
        check_eq((status, out), (2, ""), f"what it says beside {err}")
        check_in("cannot compare", err, "the refusal")
        check_in(says, err, "the refusal")


@test
def replies_that_fail_are_counted_and_named():
    with open(path("script"), "w") as f:
        f.write("reply " + "5 " * 64 + "\n")  # the unmeasured first request
        f.write("fail internal the engine stopped\n" * 2)
    with Server(command="router", wait_ready=False) as server:
        with FakeWorker(server, f"--script={path('script')}"):
            server.wait_ready()
            status, out, err = bench("concurrent", f"127.0.0.1:{server.port}", "--levels=1", "--reps=1", "--tokens=4")
    check_eq(status, 1, f"exit status of:\n{out}{err}")
    check_in("FAILED code/greedy/1: 1 of 1", out, "the table")
    check_in("FAILED code/sampled/1: 1 of 1", out, "the table")
    check("FAILED chat" not in out, "a good cell is named")


@test
def wrong_use_and_a_missing_server_have_one_clear_line():
    nobody = f"127.0.0.1:{free_port()}"
    for status, says, *args in (
            (1, "refused", "concurrent", nobody),
            (2, "https", "concurrent", "https://localhost:1"),
            (2, "--levels", "concurrent", nobody, "--levels=0"),
            (2, "tokens", "concurrent", nobody, "--tokens=1"),
            (2, "/nowhere/p.jsonl", "concurrent", nobody, "--prompts=/nowhere/p.jsonl"),
            (2, "/nowhere/r.json", "concurrent", nobody, "--json=/nowhere/r.json"),
            (2, "/nowhere/a.json", "compare", "/nowhere/a.json", "/nowhere/b.json"),
            (2, "no setting 'level'", "concurrent", nobody, "--level=1")):
        found, out, err = bench(*args)
        check_eq((found, out), (status, ""), f"of {args}, with {err}")
        check_in(says, err, "the line")
        check_eq(len(err.splitlines()), 1, f"lines of {err!r}")


@test
def ctl_lists_the_workers():
    code, out, err = run_program("ctl", "workers", f"--ops=127.0.0.1:{shared().ops_port}")
    check_eq((code, err), (0, ""), "what ctl says")
    check_in("ready", out, "the table")
    code, _, err = run_program("ctl", "workers", "--ops=nonsense")
    check_eq(code, 1, "exit status")
    check_in("--ops: wanted", err, "the line")


main()
