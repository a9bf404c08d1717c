"""Requests that wait: in order, bounded, answered with 429 past the bound, and not for ever."""

import concurrent.futures
import itertools
import os
import re
import signal
import time

from harness import EventReader, FakeWorker, Server, check, check_eq, main, shared, test, wait_for

CHAT = "/v1/chat/completions"
SHORT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 3}
ENDLESS = {**SHORT, "max_tokens": 3000, "ignore_eos": True, "stream": True}


# A worker that a test stops is not to be taken for a hung one.
PATIENT = "--worker.progress_s=300"


def server():
    return shared("--streams=1", "--queue.requests_max=3", PATIENT)


def holder(s):
    """Keeps the server's one stream busy until the block ends: its worker is stopped in the middle of a reply."""
    return s.held(ENDLESS)


def waiting(s, count):
    wait_for(lambda: s.metric("vllm:num_requests_waiting") == count, f"{count} requests wait")


NUMBERS = itertools.count()


def line_up(s, pool, bodies):
    """Sends the requests one behind the other; each stands in the queue before the next is sent."""
    waiting(s, 0)
    runs = []
    for more in bodies:
        more = dict(more)
        head = [("X-Request-Id", f"waits-{next(NUMBERS)}"), *more.pop("head", ())]
        runs.append(pool.submit(s.post, CHAT, {**SHORT, **more}, head))
        waiting(s, len(runs))
    return runs


def order_of(s, bodies):
    """In which order requests that wait together end, by the server's own log."""
    first = len(s.access_lines())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with holder(s):
            runs = line_up(s, pool, bodies)
        check_eq([r.result().status for r in runs], [200] * len(runs), "statuses")
    names = [r.result().header("x-request-id") for r in runs]

    def ended():
        return [line["client_request_id"] for line in s.access_lines()[first:] if line["client_request_id"] in names]

    wait_for(lambda: len(ended()) == len(names), "each has its line in the log")
    return [names.index(n) for n in ended()]


@test
def case_08_past_its_bound_the_queue_answers_429_and_when_to_come_back():
    s = server()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with holder(s):
            runs = line_up(s, pool, [{}] * 3)
            for _ in range(5):
                r = s.post(CHAT, SHORT)
                check_eq((r.status, r.json()["error"]["code"], r.json()["error"]["type"]), (429, "queue_full", "rate_limit_error"), "answer")
                check(re.fullmatch(r"[1-9]\d?", r.header("retry-after", "")) and int(r.header("retry-after")) <= 60, r.header("retry-after"))
                check(r.header("retry-after-ms", "").isdigit(), r.header("retry-after-ms"))
            # A stream is refused by its status too, not by an event.
            check_eq(s.post(CHAT, {**SHORT, "stream": True}).status, 429, "a stream")
            waiting(s, 3)
        check_eq([r.result().status for r in runs], [200] * 3, "those that waited")
    check(s.metric("railyard_rejected_total") >= 6, "refusals are counted")


@test
def waiting_requests_are_served_in_the_order_they_came():
    check_eq(order_of(server(), [{"max_tokens": 20}] * 3), [0, 1, 2], "order")


@test
def a_lower_priority_number_goes_first():
    check_eq(order_of(server(), [{"max_tokens": 20, "priority": p} for p in (5, 0, -5)]), [2, 1, 0], "order")


def of_group(name, **more):
    """A request that a gateway says is of this group."""
    return {"max_tokens": 20, "head": [("X-Gateway-Inference-Fairness-Id", name)], **more}


@test
def who_sends_much_does_not_hold_up_others():
    flags = ("--streams=1", "--queue.requests_max=8", PATIENT)
    bodies = [of_group("a"), of_group("a"), of_group("a"), of_group("b")]
    with Server(*flags, "--api.trusted_proxies=127.0.0.0/8") as s:
        check_eq(order_of(s, bodies), [0, 3, 1, 2], "order of two groups")
        urgent = of_group("b", head=[("X-Gateway-Inference-Fairness-Id", "b"), ("X-Gateway-Inference-Objective", "critical")])
        check_eq(order_of(s, [of_group("a"), of_group("a"), urgent]), [2, 0, 1], "order with an urgent one")
    check_eq(order_of(server(), bodies[:2] + bodies[3:]), [0, 1, 2], "of a client that is no trusted proxy the word counts for nothing")


@test
def the_bound_is_of_requests_however_many_choices_they_have():
    s = server()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with holder(s):
            runs = [pool.submit(s.post, CHAT, {**SHORT, "n": 3, "seed": 1})]
            waiting(s, 3)
            check_eq(s.metric("railyard_queue_requests"), 1, "waiting requests")
            check_eq(s.get("/readyz").json()["queue"]["requests"], 1, "waiting requests of /readyz")
            for count in (4, 5):
                runs.append(pool.submit(s.post, CHAT, SHORT))
                waiting(s, count)
            check_eq(s.post(CHAT, SHORT).status, 429, "the fourth request")
        check_eq([r.result().status for r in runs], [200] * 3, "those that waited")


@test
def who_waits_too_long_gets_429_and_the_running_stream_goes_on():
    with Server("--streams=1", "--queue.wait_s=0.3", PATIENT) as s:
        with s.held({**ENDLESS, "max_tokens": 500}) as reader:
            r = s.post(CHAT, SHORT)
            check_eq((r.status, r.json()["error"]["code"]), (429, "queue_timeout"), "answer")
            check(r.header("retry-after"), "no retry-after")
            waiting(s, 0)
            os.kill(s.wait_worker()["pid"], signal.SIGCONT)
            check_eq(reader.rest()[-1], "[DONE]", "end of the running stream")


@test
def a_request_past_its_own_deadline_is_504():
    s = server()
    with holder(s):
        r = s.post(CHAT, SHORT, [("X-Request-Timeout-Ms", "200")])
        check_eq((r.status, r.json()["error"]["code"]), (504, "deadline_exceeded"), "answer")
        check_eq(r.header("x-should-retry"), "false", "x-should-retry")
        waiting(s, 0)


@test
def a_stream_past_its_deadline_ends_with_an_error_event():
    with Server(command="router", wait_ready=False) as s, FakeWorker(s, "--rate=20"):  # minutes for a reply
        s.wait_ready()
        for ms in (300, 1000, 10_000, 100_000):  # until the first event came before the deadline, which decides the status
            with s.connect() as c:
                c.send_request("POST", CHAT, ENDLESS, [("X-Request-Timeout-Ms", str(ms))])
                reader = EventReader(c)
                if reader.head.status == 200:
                    check_eq(reader.rest()[-1]["error"]["code"], "deadline_exceeded", "last event")
                    break
        check_eq(reader.head.status, 200, "status of the stream")
        s.wait_idle()


@test
def a_bad_deadline_is_400():
    for value in ("0", "-1", "x", "1.5", "99999999999"):
        r = server().post(CHAT, SHORT, [("X-Request-Timeout-Ms", value)])
        check_eq(r.status, 400, value)


@test
def the_queue_counts_in_health_and_metrics_and_empties():
    s = server()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with holder(s):
            runs = line_up(s, pool, [{}] * 2)
            queue = s.get("/readyz").json()["queue"]
            check_eq(queue["requests"], 2, "requests")
            check(queue["tokens"] > 0, queue)
            check_eq(s.metric("railyard_queue_requests"), 2, "railyard_queue_requests")
        for r in runs:
            check_eq(r.result().status, 200, "status")
    s.wait_idle()
    check_eq(s.metric("railyard_queue_tokens"), 0, "railyard_queue_tokens")


@test
def case_11_what_was_sent_is_done_or_cancelled_or_in_flight_at_every_scrape():
    s = shared("--streams=3")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(s.post, CHAT, {**SHORT, "max_tokens": 15, "ignore_eos": True, "seed": i}) for i in range(30)]
        while not all(r.done() for r in runs):
            m = s.metrics()
            running = sum(m["vllm:num_requests_running"].values())
            waits = sum(m["vllm:num_requests_waiting"].values())
            check(0 <= running <= 3 and 0 <= waits <= 6, f"{running} run and {waits} wait")
            time.sleep(0.01)
        check_eq({r.result().status for r in runs}, {200}, "statuses")
    s.wait_idle()


main()
