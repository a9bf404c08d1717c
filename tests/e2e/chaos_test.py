"""Chaos: many streams while workers are killed, stopped, drained and restarted at random. No reply may fail or differ.

    RAILYARD_CHAOS_S      seconds (6; `sh tests/long.sh chaos` takes 120)
    RAILYARD_CHAOS_SEED   of the order of what happens (the time, printed)

A disturbance waits for its moment: the controller watches the requests in flight, stops a worker that has one in the phase
whose turn it is, and strikes when the requests are seen to be still there. What was really hit is counted afterwards from the router's log, which tells how far each lost
stream was. A worker with a stream that has met a death already is spared the unplanned kinds: two deaths end a request by
design (tests/e2e/resume_test.py)."""

import collections
import contextlib
import os
import random
import re
import signal
import threading
import time

from harness import SMALL, EventReader, Server, check, check_eq, join_chunks, main, note, strict_json, test, wait_for

SECONDS = float(os.environ.get("RAILYARD_CHAOS_S", "6"))
SEED = int(os.environ.get("RAILYARD_CHAOS_SEED", "0")) or int(time.time())
LONG = SECONDS >= 60
WORKERS = 4 if LONG else 2
CLIENTS = 64 if LONG else 16 if SMALL else 32
PATIENCE_S = 4 if LONG else 0.5  # how long a strike waits for its phase
PHASES = ["queue", "fill", "first", "decode", "tool", "last"]
MIDDLE, MIDDLE_MIN = PHASES[2:], 100 if LONG else 5
UNPLANNED, PLANNED = ["kill", "kill", "kill", "stop", "term"], ["move", "restart"]
CHAT = "/v1/chat/completions"

STORY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "ignore_eos": True, "max_tokens": 200}
WORDS = " ".join(f"{w} {i}" for i in range(60) for w in ("red", "green", "blue"))
TOOLS = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "max_tokens": 200, "tools": [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]}


def kinds():
    """Requests of every kind whose replies are known from an undisturbed run."""
    for i in range(4):
        yield {**STORY, "seed": i, "temperature": 0.9, "max_tokens": 150 + 30 * i}
        yield {**STORY, "temperature": 0, "messages": [{"role": "user", "content": f"Tell me a story about {i} mice."}]}
        yield {**STORY, "seed": i, "temperature": 1.2, "top_k": 40, "presence_penalty": 0.5, "repetition_penalty": 1.1,
               "messages": [{"role": "user", "content": f"Repeat: {WORDS} {i}"}], "max_tokens": 100}
        yield {**TOOLS, "temperature": 0, "seed": i}


class Kind:
    def __init__(self, s, body):
        self.body = {**body, "return_token_ids": True}
        reply = s.post(CHAT, self.body)
        self.ok = reply.status == 200
        if not self.ok:  # what this build does not serve is left out, and said
            self.why = reply.body[:200]
            return
        self.wanted = self.facts(reply.json()["choices"][0], reply.json()["usage"])
        ids = self.wanted["ids"]
        self.total = len(ids)
        opened = s.tool_open in ids
        self.tool = (ids.index(s.tool_open) + 1, self.total - 1) if opened else (1, 0)

    @staticmethod
    def facts(choice, usage):
        m = choice["message"]
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in m.get("tool_calls") or []]
        return {"sha": choice["token_sha256"], "text": m["content"] or "", "thought": m.get("reasoning_content") or "",
                "ids": choice["token_ids"], "finish": choice["finish_reason"], "calls": calls,
                "usage": (usage["prompt_tokens"], usage["completion_tokens"])}

    def phase(self, ids):
        if ids == 0:
            return "fill"
        if ids <= 2:
            return "first"
        if ids >= self.total - 2:
            return "last"
        return "tool" if self.tool[0] <= ids <= self.tool[1] else "decode"


def tool_calls_of(chunks):
    calls = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for c in choice["delta"].get("tool_calls") or []:
                name, arguments = calls.get(c["index"], ("", ""))
                f = c["function"]
                calls[c["index"]] = (name + (f.get("name") or ""), arguments + (f.get("arguments") or ""))
    return [calls[i] for i in sorted(calls)]


class Clients:
    def __init__(self, s, all_kinds):
        self.s, self.kinds, self.over = s, all_kinds, threading.Event()
        self.done, self.resumed, self.errors, self.count = 0, 0, [], 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(CLIENTS)]

    def run(self, i):
        turn = i
        while not self.over.is_set() and not self.errors:
            n = turn % len(self.kinds)
            try:
                resumed = self.ask(self.kinds[n], n, i, turn, stream=turn % 3 != 0)
                with self.lock:
                    self.done += 1
                    self.resumed += resumed
            except Exception as e:  # a test's thread: whatever went wrong is its result
                self.errors.append(f"kind {n}, client {i}: {type(e).__name__}: {e}")
            turn += 7

    def ask(self, kind, n, i, turn, stream):
        name = [("X-Request-Id", f"chaos-{n}-{i}-{turn}")]
        if not stream:
            r = self.s.post(CHAT, kind.body, name)
            check_eq(r.status, 200, f"status -> {r.body[:300]!r}")
            reply = r.json()
            check_eq(kind.facts(reply["choices"][0], reply["usage"]), kind.wanted, "a whole reply")
            return reply["railyard"]["resumed"]
        with self.s.connect() as c:
            c.send_request("POST", CHAT, {**kind.body, "stream": True, "stream_options": {"include_usage": True}}, name)
            events = EventReader(c).rest()
        check_eq(events[-1], "[DONE]", "last event")
        chunks = events[:-1]
        j = join_chunks(chunks)
        found = {"sha": j["token_sha256"], "text": j["content"], "thought": j["reasoning_content"], "ids": j["token_ids"],
                 "finish": j["finish_reason"], "calls": tool_calls_of(chunks),
                 "usage": (j["usage"]["prompt_tokens"], j["usage"]["completion_tokens"])}
        check_eq(found, kind.wanted, "a stream")
        return j["railyard"]["resumed"]


class Controller:
    def __init__(self, s, all_kinds, rng):
        self.s, self.kinds, self.rng = s, all_kinds, rng
        self.acts, self.queue_hits, self.turn = collections.Counter(), 0, 0
        self.phases = [p for p in PHASES if p != "tool" or any(k.tool[0] <= k.tool[1] for k in all_kinds)]

    def admin(self, method, path, body=None):
        with self.s.connect(self.s.ops_port) as c:
            return c.request(method, f"/admin/v1/{path}", body)

    def listed(self):
        return strict_json(self.admin("GET", "requests").body)

    def phase_of(self, r):
        if r["worker"] < 0:
            return "queue"
        return self.kinds[int(r["request_id"].split("-")[1])].phase(r["completion_tokens"])

    def revive(self):
        """Ranks that wait after a failure are started again; drained ones go on. At least two have to be there."""
        for w in self.s.workers():
            if w["state"] in ("failed", "backoff", "stopped"):
                self.admin("POST", f"workers/{w['rank']}/start")
            if w["state"] == "drained":
                self.admin("POST", f"workers/{w['rank']}/resume")

    def targets(self, requests, wanted, rank=None):
        """The workers that have a request in this phase."""
        if wanted == "queue" and not any(r["worker"] < 0 for r in requests):
            return set()
        return {r["worker"] for r in requests if r["worker"] >= 0 and rank in (None, r["worker"])
                and wanted in ("queue", self.phase_of(r))}

    def settled(self, rank):
        """The requests in flight, when all that a worker had sent before it was stopped has been taken in."""
        before = None
        while True:
            requests = self.listed()
            now = [(r["id"], r["completion_tokens"]) for r in requests if r["worker"] == rank]
            if now == before:
                return requests
            before = now
            time.sleep(0.002)

    def strike(self, until):
        """One disturbance, in the phase whose turn it is if that comes up soon."""
        wanted, give_up = self.phases[self.turn % len(self.phases)], time.monotonic() + PATIENCE_S
        self.turn += 1
        while time.monotonic() < until:
            ready = {w["rank"]: w["pid"] for w in self.s.workers() if w["state"] == "ready"}
            late = time.monotonic() > give_up
            hit = self.targets(self.listed(), wanted) & set(ready) or (set(ready) if late else set())
            if hit and self.aim(self.rng.choice(sorted(hit)), ready, None if late else wanted):
                return
            if late:
                give_up = time.monotonic() + PATIENCE_S
                self.revive()
            time.sleep(0.002)

    def aim(self, rank, ready, wanted):
        """The worker stands still until it is struck: its streams are then where they were seen. False: they are not."""
        left_stopped = False
        try:
            os.kill(ready[rank], signal.SIGSTOP)
            requests = self.settled(rank)
            if wanted and not self.targets(requests, wanted, rank):
                return False
            left_stopped = self.act(rank, ready, requests) == "stop"
        except ProcessLookupError:  # it has ended by itself: an earlier disturbance was a slow one
            return False
        finally:
            if not left_stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ready[rank], signal.SIGCONT)
        return True

    def act(self, rank, ready, requests):
        marked = [r for r in requests if r["deaths"] and r["worker"] in (rank, -1)]
        kinds = PLANNED if marked else UNPLANNED + PLANNED
        what = self.rng.choice([k for k in kinds if LONG and not self.acts[k]] or kinds)
        if what in ("kill", "term"):
            os.kill(ready[rank], signal.SIGKILL if what == "kill" else signal.SIGTERM)
        elif what == "move":
            self.admin("POST", f"workers/{rank}/drain", {"streams": "move", "force": True})
        elif what == "restart":
            self.admin("POST", f"workers/{rank}/restart", {"streams": self.rng.choice(["move", "finish"]), "force": True})
        self.acts[what] += 1
        self.queue_hits += sum(r["worker"] < 0 for r in requests)
        return what

    def enough(self):
        found, _ = hits(self.s.log_text(), self.kinds)
        return sum(found[p] for p in MIDDLE) >= MIDDLE_MIN

    def run(self, seconds, clients):
        """A short run goes on where a slow machine has got too little done."""
        until, limit = time.monotonic() + seconds, time.monotonic() + max(seconds, 60)
        while not clients.errors and ((now := time.monotonic()) < until or not LONG and now < limit and not self.enough()):
            self.strike(max(until, now + 1))
            time.sleep(self.rng.uniform(0.05, 0.4))
            self.revive()


def hits(log, all_kinds):
    """What was hit, by phase, from the router's own words."""
    found, planned = collections.Counter(), collections.Counter()
    for n, ids, how in re.findall(r"stream_lost request=chaos-(\d+)-\S+ rank=\d+ ids=(\d+) .* planned=(\d)", log):
        phase = all_kinds[int(n)].phase(int(ids))
        found[phase] += 1
        planned[how] += 1
    return found, planned


def drafted(s):
    """Drafted ids of the streams that came to their end, by kind."""
    found = collections.Counter()
    for labels, count in s.metrics()["railyard_worker_drafted_total"].items():
        found[dict(labels)["kind"]] += count
    return found


@test
def case_39_no_reply_fails_or_differs_while_workers_come_and_go():
    rng = random.Random(SEED)
    note(f"seed {SEED}, {SECONDS:g} s, {WORKERS} workers, {CLIENTS} clients")
    with Server(f"--workers={WORKERS}", "--threads=1", "--streams=8", "--worker.progress_s=2", "--queue.requests_max=4096",
                "--queue.wait_s=600", "--route.wait_ready_s=600", "--log.level=info") as s:
        for rank in range(WORKERS):
            s.wait_worker(rank)
        tool = s.post("/v1/tokenize", {"prompt": "<tool_call>"}).json()["tokens"]
        s.tool_open = tool[0] if len(tool) == 1 else -1
        all_kinds = [Kind(s, b) for b in kinds()]
        for k in all_kinds:
            if not k.ok:
                note(f"left out: {k.why!r}")
        all_kinds = [k for k in all_kinds if k.ok]
        clients, controller = Clients(s, all_kinds), Controller(s, all_kinds, rng)
        for t in clients.threads:
            t.start()
        try:
            controller.run(SECONDS, clients)
        finally:
            clients.over.set()
            deadline = time.monotonic() + 120
            while any(t.is_alive() for t in clients.threads) and time.monotonic() < deadline:
                controller.revive()
                time.sleep(0.1)
        check(not any(t.is_alive() for t in clients.threads), "a client still waits for its reply")
        check_eq(clients.errors[:3], [], "what went wrong")
        found, planned = hits(s.log_text(), all_kinds)
        found["queue"] = controller.queue_hits
        middle = sum(found[p] for p in MIDDLE)
        note(f"{clients.done} replies, {clients.resumed} resumes; {dict(controller.acts)}")
        note(f"lost streams by phase: {', '.join(f'{p} {found[p]}' for p in PHASES)}; unplanned {planned['0']}, planned {planned['1']}")
        # Drafts are on by default: what a dead worker had drafted is no token, and its successor drafts anew.
        drafts = drafted(s)
        note(f"drafted: {', '.join(f'{k} {drafts[k]:g}' for k in ('copy', 'mtp'))}")
        check(drafts["mtp"] > 0, "nothing was drafted")
        check_eq(s.metric("railyard_resumes_total", result="poisoned") + s.metric("railyard_resumes_total", result="no_worker"), 0,
                 "requests given up")
        check(middle >= MIDDLE_MIN, f"only {middle} streams were hit in their middle")
        if LONG:
            check_eq([p for p in PHASES if found[p] < 5], [], "phases that were hit fewer than five times")
            check_eq([k for k in UNPLANNED + PLANNED if not controller.acts[k]], [], "what was never done")
        s.wait_idle()
        wait_for(lambda: s.metric("railyard_requests_in_flight") == 0, "nothing is in flight")


main(limit_s=int(SECONDS) + 240)
