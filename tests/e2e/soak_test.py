"""Soak: a full queue for a long time. Memory and descriptors stay flat, and the books balance at every look.

    RAILYARD_SOAK_S    seconds (30; `sh tests/long.sh soak` takes 1,800)

Clients ask whole and streamed, hang up in every phase, are refused by the full queue and come again. Flat means: after the
first fifth, which is for caches and pools to fill, the largest seen is at most a twelfth and 8 MiB above the largest of that
fifth (memory), and at most as many as the clients could account for (descriptors); and when all clients have left, no more
descriptors are open than before they came."""

import collections
import os
import random
import threading
import time

from harness import SMALL, EventReader, Server, check, check_eq, fd_count, main, note, test, wait_for

SECONDS = float(os.environ.get("RAILYARD_SOAK_S", "90"))
CLIENTS = 12 if SMALL else 32
CHAT = "/v1/chat/completions"
QUEUE_MAX = 8


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Client(threading.Thread):
    def __init__(self, s, number, over, tally):
        super().__init__()
        self.s, self.over, self.tally = s, over, tally
        self.rng = random.Random(number)

    def run(self):
        while not self.over.is_set():
            try:
                self.tally[self.ask()] += 1
            except Exception as e:  # its result
                self.tally[f"{type(e).__name__}: {e}"[:200]] += 1
                self.over.set()

    def body(self):
        words = " ".join(self.rng.choice(["cat", "dog", "sun", "tree"]) for _ in range(self.rng.choice([1, 5, 50, 400])))
        return {"messages": [{"role": "user", "content": words}], "max_tokens": self.rng.choice([1, 10, 80, 300]),
                "temperature": self.rng.choice([0, 1]), "seed": self.rng.randrange(5), "ignore_eos": True,
                "stream": self.rng.random() < 0.6}

    def ask(self):
        body, leaves = self.body(), self.rng.random() < 0.25
        with self.s.connect() as c:
            c.send_request("POST", CHAT, body)
            if leaves:
                time.sleep(self.rng.choice([0, 0.01, 0.05, 0.3]))
                return "left"
            if not body["stream"]:
                status = c.read_response().status
            else:
                reader = EventReader(c)
                status = reader.head.status
                events = reader.rest() if status == 200 else [None]
                if status == 200:
                    check_eq(events[-1], "[DONE]", "last event")
        if status == 429:
            time.sleep(self.rng.uniform(0.01, 0.2))
        check(status in (200, 429), f"status {status}")
        return status


def books(m):
    def total(name):
        return sum(m.get(name, {}).values())
    return (total("railyard_requests_accepted_total"), total("railyard_requests_finished_total"),
            total("railyard_requests_failed_total"), total("railyard_requests_cancelled_total"),
            total("railyard_requests_in_flight"))


@test
def memory_and_descriptors_stay_flat_and_the_books_balance():
    with Server("--workers=2", "--threads=1", "--streams=4", f"--queue.requests_max={QUEUE_MAX}") as s:
        pids = {"router": s.pid, "worker 0": s.wait_worker(0)["pid"], "worker 1": s.wait_worker(1)["pid"]}
        s.chat(messages=[{"role": "user", "content": "cat"}], max_tokens=1)
        idle = {name: fd_count(pid) for name, pid in pids.items()}
        over, tally = threading.Event(), collections.Counter()
        clients = [Client(s, i, over, tally) for i in range(CLIENTS)]
        for c in clients:
            c.start()
        began, looks, full = time.monotonic(), 0, 0
        early, late = {}, {}
        try:
            while (at := time.monotonic() - began) < SECONDS and not over.is_set():
                m = s.metrics()
                accepted, finished, failed, cancelled, live = books(m)
                check_eq(accepted, finished + failed + cancelled + live, "accepted requests")
                looks += 1
                full += sum(m["vllm:num_requests_waiting"].values()) >= QUEUE_MAX
                seen = early if at < SECONDS / 5 else late
                for name, pid in pids.items():
                    for what, value in (("memory", resident(pid)), ("fds", fd_count(pid))):
                        seen[name, what] = max(seen.get((name, what), 0), value)
                time.sleep(min(1, SECONDS / 60))
        finally:
            over.set()
            for c in clients:
                c.join(120)
        check(not any(c.is_alive() for c in clients), "a client still waits")
        wrong = {k: v for k, v in tally.items() if k not in (200, 429, "left")}
        check_eq(wrong, {}, "replies that are wrong")
        check(full > looks / 10, f"the queue was full at {full} of {looks} looks only")
        for (name, what), most in sorted(late.items()):
            before = early[name, what]
            note(f"{name} {what}: {before} early, {most} late")
            limit = before * 13 / 12 + (8 << 20) if what == "memory" else max(before, 4 * CLIENTS + 64)
            check(most <= limit, f"{name} {what} grew from {before} to {most}")
        note(f"{dict(tally)}; {looks} looks, {full} with a full queue")
        s.wait_idle()
        wait_for(lambda: books(s.metrics())[4] == 0, "nothing is in flight")
        for name, pid in pids.items():
            wait_for(lambda name=name, pid=pid: fd_count(pid) <= idle[name], lambda name=name, pid=pid:
                     f"{name} has {fd_count(pid)} descriptors, and had {idle[name]} before the clients came", 30)


main(limit_s=int(SECONDS) + 240)
