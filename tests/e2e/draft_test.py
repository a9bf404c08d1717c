"""Drafts change no reply: with them, without ("draft": false), whole, streamed, alone, eight together, and after a worker was
killed, each request has the same ids and the same bits of its logits. The comparison counts what was kept and what was wound
back, and must find a planted fault.
"""

import array
import collections
import concurrent.futures
import json
import os
import signal
import subprocess
import tempfile

from harness import KIND, MODEL, SMALL, SOURCE, EventReader, Server, check, check_eq, check_in, main, note, run_program, shared, test, wait_for

# Text that the model copies is where copies come true; a story and a sampled one are where they fail.
LIST = "Copy this list: red lamp, blue key, golden book, small cat, brave dog, old king, young queen, deep river, green forest."
PROMPTS = [LIST + " " + LIST, "Repeat after me: the cat ran under the house and the dog ran under the house and the cat slept.",
           "Tell me a story about a brave fox.", "12 + 7 = ", LIST, "Count: one two three one two three one two three one two",
           "What is your name?", "Write the word lamp twenty times: lamp lamp lamp lamp lamp lamp"]


def request(i, **more):
    body = {"messages": [{"role": "user", "content": PROMPTS[i]}], "max_tokens": 100, "return_logits_hash": True,
            "return_token_ids": True, "seed": 40 + i, "temperature": 0}
    if i % 2:
        body |= {"temperature": 0.9, "top_p": 0.95, "top_k": 50, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    body |= ({"ignore_eos": True, "max_tokens": 200}, {"logprobs": True, "top_logprobs": 3, "max_tokens": 60}, {"thinking_token_budget": 20},
             {"stop": ["lamp", "zz"]}, {"min_tokens": 30}, {"logit_bias": {"40": 5}}, {}, {"ignore_eos": True, "max_tokens": 200, "temperature": 0.7, "presence_penalty": 0, "frequency_penalty": 0})[i]
    return body | more


REQUESTS = [request(i) for i in range(len(PROMPTS))]


def digest(choice, extras):
    """What must be equal of a reply; its logprobs with it."""
    logprobs = choice.get("logprobs")
    return (choice["token_sha256"], extras["logits_hash"], choice["finish_reason"], choice["stop_reason"],
            [(x["token"], x["logprob"], str(x["top_logprobs"])) for x in logprobs["content"]] if logprobs else None)


class Counts:
    """Drafts of replies, by kind."""

    def __init__(self):
        self.drafted, self.accepted, self.rounds, self.tokens = collections.Counter(), collections.Counter(), 0, 0

    def add(self, reply):
        x = reply["railyard"]
        for kind, n in x["drafts"].items():
            self.drafted[kind] += n["drafted"]
            self.accepted[kind] += n["accepted"]
        check_eq((x["drafted"], x["accepted"]),
                 (sum(n["drafted"] for n in x["drafts"].values()), sum(n["accepted"] for n in x["drafts"].values())), "sums by kind")
        self.rounds += x["rounds"]
        self.tokens += reply["usage"]["completion_tokens"]

    def text(self):
        return f"{self.tokens} tokens in {self.rounds} rounds; " + (", ".join(
            f"{k}: accepted {self.accepted[k]}, rejected {self.drafted[k] - self.accepted[k]}" for k in sorted(self.drafted)) or "no drafts")


def ask(server, body, counts=None):
    reply = server.chat(**body)
    if counts:
        counts.add(reply)
    return digest(reply["choices"][0], reply["railyard"])


def stream(server, body):
    """As ask, of a stream: log-probabilities gathered from its chunks."""
    chunks = [c for c in server.stream(**body) if c["choices"]]
    last = chunks[-1]
    found = [x for c in chunks if c["choices"][0].get("logprobs") for x in c["choices"][0]["logprobs"]["content"]]
    return digest({**last["choices"][0], "logprobs": {"content": found} if found else None}, last["railyard"])


KNOWN = []


def plain():
    """Every reply without drafts, each alone."""
    if not KNOWN:
        counts = Counts()
        KNOWN.extend(ask(shared(), {**body, "draft": False}, counts) for body in REQUESTS)
        check_eq(sum(counts.drafted.values()), 0, "drafts of requests that want none")
    return KNOWN


def unequal(found):
    return sum(f != w for f, w in zip(found, plain(), strict=True))


def together(server, requests, counts=None):
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        with server.stopped(server.wait_worker()["pid"]):
            runs = [pool.submit(ask, server, body, counts) for body in requests]
            wait_for(lambda: server.running_streams() + server.metric("vllm:num_requests_waiting") == len(requests), "all are sent")
        return [r.result() for r in runs]


@test
def a_drafted_reply_is_the_undrafted_one_alone_and_streamed():
    counts = Counts()
    check_eq(unequal([ask(shared(), body, counts) for body in REQUESTS]), 0, "replies that differ from undrafted ones")
    for i in (1, 2, 3, 6):
        check_eq(stream(shared(), REQUESTS[i]), plain()[i], "a stream and the undrafted reply")
    note(counts.text())
    check(sum(counts.accepted.values()) > 30 and counts.drafted != counts.accepted, counts.text())
    check(counts.rounds < counts.tokens, counts.text())


@test
def eight_drafted_replies_together_are_the_undrafted_ones_in_as_many_rounds():
    alone, beside = Counts(), Counts()
    for body in REQUESTS:
        ask(shared(), body, alone)
    check_eq(unequal(together(shared(), REQUESTS, beside)), 0, "replies that differ from undrafted ones")
    note(beside.text())
    check_eq((beside.tokens, beside.drafted, beside.accepted), (alone.tokens, alone.drafted, alone.accepted), "drafts together and alone")
    check_eq(beside.rounds, alone.rounds, "rounds together and alone")


@test
def drafted_replies_go_on_after_their_worker_was_killed():
    with Server() as s:
        body = request(0, max_tokens=600)
        wanted = ask(s, {**body, "draft": False})
        resumed = 0
        for _ in range(20):
            pid = s.wait_worker()["pid"]
            with s.connect() as c:
                c.send_request("POST", "/v1/chat/completions", {**body, "stream": True})
                reader = EventReader(c)
                chunks = [reader.next() for _ in range(3)]
                os.kill(pid, signal.SIGKILL)
                chunks += reader.rest()
            chunks = [x for x in chunks if x and x != "[DONE]" and x["choices"]]
            check_eq(digest({**chunks[-1]["choices"][0], "logprobs": None}, chunks[-1]["railyard"]), wanted, "a reply with a death in it")
            s.wait_worker(other_than_pid=pid)
            resumed += chunks[-1]["railyard"]["resumed"]
            if resumed:
                break  # else the reply was through before the kill
        check(resumed, "no reply was interrupted")


@test
def the_counts_of_drafts_are_in_metrics_and_access_log():
    with Server() as s:
        counts = Counts()
        for i in (0, 5):
            ask(s, REQUESTS[i], counts)
        for kind, n in counts.drafted.items():
            check_eq(s.metric("railyard_worker_drafted_total", kind=kind, rank="0"), n, f"drafted of kind {kind}")
            check_eq(s.metric("railyard_worker_accepted_total", kind=kind, rank="0"), counts.accepted[kind], f"accepted of kind {kind}")
        check_in('kind="mtp"', s.get("/metrics").body.decode(), "kinds")
        check('kind="tree"' not in s.get("/metrics").body.decode(), "a kind that no worker has")
        rounds = s.metric("vllm:spec_decode_num_drafts_total")
        check(0 < rounds <= min(counts.rounds, sum(counts.drafted.values())), lambda: f"{rounds} rounds with drafts of {counts.rounds}, {counts.text()}")
        check_eq(s.metric("vllm:spec_decode_num_draft_tokens_total"), sum(counts.drafted.values()), "drafted")
        check_eq(s.metric("vllm:spec_decode_num_accepted_tokens_total"), sum(counts.accepted.values()), "accepted")
        lines = [x for x in s.access_lines() if x.get("completion_tokens")]
        check_eq((sum(x["drafted"] for x in lines), sum(x["accepted"] for x in lines), sum(x["rounds"] for x in lines)),
                 (sum(counts.drafted.values()), sum(counts.accepted.values()), counts.rounds), "the access log")


@test
def a_server_without_drafts_has_none_and_the_same_replies():
    with Server("--drafter=none") as s:
        counts = Counts()
        check_eq(unequal([ask(s, body, counts) for body in REQUESTS]), 0, "replies that differ")
        check_eq((sum(counts.drafted.values()), counts.rounds), (0, counts.tokens), "drafts and rounds")
        check_in("drafts     none", s.log_text(), "the worker's report")


# The demo's own block drafters, the MTP head over a part of the vocabulary, and what a stream says of each.
DRAFTERS = (("demo-dflash2", "dflash2"), ("demo-dflash2-weak", "dflash2"), ("demo-dflash", "dflash"))


def folder(name):
    return os.path.join(SOURCE, "tests", "models", name)


def compare_with_undrafted(server, kind):
    """Whole choices, text and all: drafted alone, drafted together, and without drafts. Gives the counts of those alone."""
    alone, beside = Counts(), Counts()
    for body in REQUESTS:
        drafted, undrafted = server.chat(**body), server.chat(**body, draft=False)
        check_eq(drafted["choices"], undrafted["choices"], "choices drafted and undrafted")
        check_eq(drafted["railyard"]["logits_hash"], undrafted["railyard"]["logits_hash"], "hashes drafted and undrafted")
        check_eq((undrafted["railyard"]["drafted"], undrafted["railyard"]["drafts"]), (0, {}), "drafts of a request that wants none")
        alone.add(drafted)
    check_eq(unequal(together(server, REQUESTS, beside)), 0, "replies that differ from those of another server without drafts")
    check_eq((beside.tokens, beside.rounds, beside.drafted, beside.accepted), (alone.tokens, alone.rounds, alone.drafted, alone.accepted), "together and alone")
    check_in(kind, alone.drafted, "kinds")
    for k in alone.drafted:
        check_eq(server.metric("railyard_worker_drafted_total", kind=k, rank="0"), 2 * alone.drafted[k], f"drafted of kind {k}")
        check_eq(server.metric("railyard_worker_accepted_total", kind=k, rank="0"), 2 * alone.accepted[k], f"accepted of kind {k}")
    return alone


@test
def replies_with_a_block_drafter_beside_the_model_are_the_undrafted_ones():
    if KIND:
        return  # they were made for the demo
    for name, kind in DRAFTERS[:1] if SMALL else DRAFTERS:
        with Server(f"--drafter={folder(name)}") as s:
            counts = compare_with_undrafted(s, kind)
            note(f"{name}: {counts.text()}")
            check(counts.accepted[kind] > 0 and counts.drafted[kind] > counts.accepted[kind], counts.text())
            check_in(f"drafts     {kind} of 2816 of 4096 ids and copies", s.log_text(), "the worker's report")
            check_in("costs      built in, as measured: cpu_demo.json", s.log_text(), "the worker's report")
            check_in("kv blocks of branches", s.log_text(), "the worker's report")


@test
def ids_outside_the_draft_vocabulary_change_no_reply():
    spans = "0-2687,3968-4095"
    with Server("--draft-kinds=mtp", f"--draft-vocab={spans}") as s:
        counts = compare_with_undrafted(s, "mtp")
        note(f"--draft-vocab={spans}: {counts.text()}")
        check_in("drafts     mtp of 2816 of 4096 ids", s.log_text(), "the worker's report")


@test
def a_drafter_of_another_model_is_refused_with_the_reason():
    for key, value, text in (("vocab_size", 4097, "vocab_size: wanted 4096 (vocab_size of the target), found 4097"),
                             ("hidden_size", 512, "hidden_size: wanted 256"), ("rope_theta", None, "rope_theta: wanted a number"),
                             ("num_target_layers", 9, "num_target_layers: wanted")):
        with tempfile.TemporaryDirectory(prefix="ry-drafter-") as d:
            with open(os.path.join(folder("demo-dflash2"), "config.json")) as f:
                config = json.load(f)
            config[key] = value
            with open(os.path.join(d, "config.json"), "w") as f:
                json.dump(config, f)
            os.symlink(os.path.join(folder("demo-dflash2"), "model.safetensors"), os.path.join(d, "model.safetensors"))
            status, _, err = run_program("bench", "engine", folder("demo"), "--context=600", f"--drafter={d}")
            check(status != 0, key)
            check_in(text, err, key)
            if key == "rope_theta":
                status, out, _ = run_program("inspect", d)
                check_eq(status, 3, "exit status of inspect")
                check_in(text, out, "inspect")


@test
def inspect_tells_what_a_drafter_is():
    for name, kind in DRAFTERS:
        status, out, err = run_program("inspect", folder(name))
        check_eq((status, err), (0, ""), "inspect")
        for part in (f"family      {kind}, a drafter for a model of 8 layers, hidden 256, vocabulary 4096 rows", "0-2687, 3968-4095", "right       "):
            check_in(part, out, name)
        check("none" not in out, lambda: f"a drafter has no tokeniser and no template to miss: {out}")
        check_eq(run_program("inspect", "--check", folder(name)), (0, "", ""), "inspect --check of a good one")
        check_eq(run_program("inspect", "--kind", folder(name)), (0, "drafter\n", ""), "inspect --kind of a drafter")
        status, out, err = run_program("serve", folder(name))
        check_eq((status, out), (1, ""), "a drafter is no model to serve")
        check_in("wanted a model, found ", err, "serve")
        check_in("a drafter, which goes beside one: --drafter", err, "serve")


@test
def the_parts_of_a_round_with_drafts_are_told_and_add_up():
    status, out, err = run_program("bench", "engine", folder("demo"), f"--drafter={folder('demo-dflash2')}", "--backend=cpu", "--threads=1",
                                   "--streams=4", "--measure=drafts")
    check_eq((status, err), (0, ""), "bench engine --measure=drafts")
    head, *lines = out[out.index("  streams "):].splitlines()
    names = head.replace("clock ms", "clock").split()
    check_eq(names, "streams rows draft verify draw taps commit host total beside clock tok/round tok/s".split(), "columns")
    cells = [dict(zip(names, (float(x.rstrip("%")) for x in line.split()))) for line in lines]
    check_eq([(c["streams"], c["rows"]) for c in cells], [(1, 1), (4, 1), (1, 8), (4, 8)], "cells")
    for c in cells:
        parts = [c[k] for k in ("draft", "verify", "draw", "taps", "commit", "host")]
        check(abs(sum(parts) - c["total"]) < 0.006, lambda: f"parts are not all of it: {c}")
        check(abs(c["total"] - c["clock"]) < 0.02 * c["clock"] + 0.01, lambda: f"the total is not the time that went by: {c}")
        check(abs(100 * (1 - c["verify"] / c["total"]) - c["beside"]) < 0.5, lambda: f"beside the verify forward: {c}")
        drafted = c["rows"] > 1
        check((c["draft"] > 0) == drafted and c["verify"] > 0 and (not drafted or c["taps"] > 0 and c["commit"] > 0), lambda: f"parts: {c}")
        check(1 <= c["tok/round"] <= c["rows"] and (drafted or c["tok/round"] == 1), lambda: f"tokens a round: {c}")
    status, out, err = run_program("bench", "engine", MODEL, "--drafter=none", "--backend=cpu", "--measure=drafts")
    check(status != 0, "parts without a drafter")
    check_in("measure: wanted a drafter, found none", err, "parts without a drafter")


@test
def a_planted_model_says_what_was_planted_and_its_drafter_guesses_it():
    with tempfile.TemporaryDirectory(prefix="ry-planted-") as d:
        model, drafter, out = os.path.join(d, "model"), os.path.join(d, "drafter"), os.path.join(d, "logits.npy")
        for tool in ((f"make_shape.py {model} --hidden 512 --layers 4 --intermediate 512 --vocab 2048 --heads 2 --kv-heads 1 --nk 2 --nv 4"),
                     (f"make_planted.py {model} {drafter} --ids 512 --period 32 --agree 0.8 --heads 8 --kv-heads 2 --head-dim 64 "
                      "--intermediate 512 --layers 3 --window 256 --rank 32")):
            name, *args = tool.split()
            subprocess.run(["/usr/bin/python3", os.path.join(SOURCE, "tests/tools", name), *args], check=True, capture_output=True)
        with open(os.path.join(model, "follows.json")) as f:
            follows = json.load(f)
        ids = [i * 37 % 512 for i in range(40)]
        check_eq(run_program("logits", model, "--backend=cpu", f"--out={out}", stdin=json.dumps(ids))[0], 0, "logits")
        with open(out, "rb") as f:
            values = array.array("f", f.read()[-len(ids) * 2048 * 4:])
        said = [max(range(2048), key=values[t * 2048:(t + 1) * 2048].__getitem__) for t in range(len(ids))]
        check_eq(said, [follows[i] for i in ids], "the id behind each")
        status, text, err = run_program("bench", "engine", model, f"--drafter={drafter}", "--backend=cpu", "--streams=4", "--measure=drafts")
        check_eq((status, err), (0, ""), "bench engine --measure=drafts")
        kept = [float(line.split()[-2]) for line in text.splitlines()[-2:]]
        note(f"tokens a round of 8 rows: {kept}, wanted about 4.2")
        check(all(2 < x < 6 for x in kept), lambda: f"tokens a round {kept}")


@test
def inspect_calls_nothing_a_model_that_is_none():
    check_eq(run_program("inspect", "--kind", MODEL), (0, "model\n", ""), "a model")
    for wrong in ("/nonexistent", os.path.dirname(MODEL)):
        status, out, _ = run_program("inspect", "--kind", wrong)
        check_eq(status, 3, f"{wrong}: exit status")
        check_in(wrong, out, "what is wrong")


@test
def settings_that_cannot_be_are_refused_by_name():
    status, _, err = run_program("bench", "engine", MODEL, "--context=600", "--drafter=none", "--draft-kinds=copy")
    check(status != 0, "a kind of no drafter")
    check_in("beside drafter 'none', found 'copy'", err, "a kind of no drafter")
    for flag, text in (("--draft-vocab=5-3", "draft-vocab"), ("--draft-vocab=0-9", "draft-vocab: wanted at least 16 ids, found 10"),
                       ("--draft-kinds=copy,eagle", "eagle"), ("--drafter=", "setting drafter: wanted a value"), ("--draft-kinds=", "setting draft-kinds"),
                       ("--draft-rows=1", "setting draft-rows: wanted 0 or 2 to 32, found '1'"), ("--drafter=/nonexistent", "drafter: file '/nonexistent/config.json'"), ("--draft-rows=99", "draft-rows"),
                       ("--drafter-quantize-min=-1", "wanted 0 to 9007199254740992, found '-1'"),
                       ("--costs=/nonexistent", "/nonexistent")):
        status, _, err = run_program("bench", "engine", MODEL, "--context=600", flag)
        check(status != 0, flag)
        check_in(text, err, flag)
    for found in ("dflash2", "copy,dflash2", "dflash2,mtp"):
        status, _, err = run_program("bench", "engine", folder("demo"), "--context=600", f"--draft-kinds={found}")
        check(status != 0, found)
        check_in("draft-kinds: wanted kinds that drafter 'auto' has (copy, mtp), found 'dflash2'", err, found)
    drafter = folder("demo-dflash")
    for flag, text in (("--draft-kinds=dflash2", f"draft-kinds: wanted dflash, which drafter '{drafter}' is, found 'dflash2'"),
                       ("--draft-kinds=dflash,mtp", f"draft-kinds: wanted kinds that drafter '{drafter}' has (copy, dflash), found 'mtp'"),
                       ("--draft-vocab=0-9", "draft-vocab: wanted at least 16 ids, found 10")):
        status, _, err = run_program("bench", "engine", folder("demo"), "--context=600", f"--drafter={drafter}", flag)
        check(status != 0, flag)
        check_in(text, err, f"{flag} beside a drafter")
    for flag, text in (("--drafter=", "setting drafter: wanted a value"), ("--draft-rows=1", "setting draft-rows: wanted 0 or 2 to 32, found '1'")):
        status, _, err = run_program("serve", MODEL, flag)
        check_eq(status, 2, flag)
        check_eq(err.strip().splitlines(), [f"railyard serve: {text}, found ''" if flag.endswith("=") else f"railyard serve: {text}"], flag)


@test
def what_a_worker_would_refuse_is_said_before_one_is_started():
    """By serve at once, and by inspect --check with the same settings."""
    drafter = folder("demo-dflash")
    for flags, code, text in (
            (["--drafter=/nonexistent"], 1, "drafter: file '/nonexistent/config.json': No such file or directory"),
            ([f"--drafter={os.path.dirname(MODEL)}"], 1, f"drafter: file '{os.path.dirname(MODEL)}/config.json': No such file or directory"),
            (["--draft-kinds=eagle"], 2, "draft-kinds: wanted all, or some of copy,mtp,dflash,dflash2, found 'eagle'"),
            ([f"--drafter={drafter}", "--draft-kinds=mtp"], 2, f"draft-kinds: wanted dflash, which drafter '{drafter}' is, found 'mtp'"),
            (["--draft-vocab=0-9"], 2, "draft-vocab: wanted at least 16 ids, found 10"),
            (["--context=99999999"], 2, "context: wanted at most the checkpoint's 4096, found 99999999"),
            (["--context=1"], 2, "context: wanted at least 2, found 1")):
        found = run_program("serve", MODEL, *flags, "--api.listen=127.0.0.1:0", "--ops.listen=127.0.0.1:0")
        check_eq(found, (code, "", f"railyard serve: {text}\n"), f"serve {flags}")
        check_eq(run_program("inspect", "--check", MODEL, *flags), (code if code == 2 else 3, text + "\n", ""), f"inspect --check {flags}")
        status, out, _ = run_program("inspect", MODEL, *flags)
        check_eq((status, out.splitlines()[-1]), (code if code == 2 else 3, f"wrong       {text}"), f"inspect {flags}")
    for flags in ([], [f"--drafter={drafter}"], ["--draft-kinds=copy", "--context=600"], ["--plan"], ["--plan", f"--drafter={drafter}"]):
        check_eq(run_program("inspect", "--check", MODEL, *flags), (0, "", ""), f"inspect --check {flags}")
    status, out, _ = run_program("inspect", "--check", "--plan", MODEL, "--room-gib=0.001")
    check_eq(status, 7, "a plan without room")
    check(out.startswith("memory: "), out)
    status, out, _ = run_program("inspect", "--check", "--plan", MODEL, "--drafter=/nonexistent")
    check_eq((status, out), (3, "drafter: file '/nonexistent/config.json': No such file or directory\n"), "a plan with no such drafter")


@test
def a_drafter_in_a_model_s_place_is_called_one():
    drafter = folder("demo-dflash")
    text = f"wanted a model, found '{drafter}', a drafter, which goes beside one: --drafter"
    check_eq(run_program("inspect", drafter, "--plan"), (3, f"wrong       {text}\n", ""), "inspect --plan")
    check_eq(run_program("inspect", drafter, "--plan", "--check"), (3, f"{text}\n", ""), "inspect --plan --check")
    check_eq(run_program("logits", drafter, "--out=/nonexistent/x", stdin="[1]"), (3, "", f"railyard logits: {text}\n"), "logits")
    for command in ("serve", "router"):
        check_eq(run_program(command, drafter), (1, "", f"railyard {command}: {text}\n"), command)
    check_in(text, run_program("bench", "engine", drafter)[2], "bench engine")


@test
def a_planted_fault_in_windows_is_found():
    for fault in ("window-rope", "short-conv", "short-s"):
        with Server(f"--debug.fault={fault}") as s:
            n = unequal([ask(s, body) for body in REQUESTS])
            note(f"{fault}: {n} replies differ")
            check(n > 0, f"the planted fault {fault} was not found")


main()
