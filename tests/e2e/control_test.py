"""An operator drains, restarts, stops and starts workers and the router: clients notice nothing but what was asked for."""

import collections
import concurrent.futures
import contextlib
import os
import random
import signal
import tempfile
import time

from harness import (SMALL, SOURCE, EventReader, Server, Worker, alive, check, check_eq, check_in, join_chunks, main, note, run_program,
                     strict_json, test, wait_for)

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 120, "ignore_eos": True,
        "seed": 7, "temperature": 0.9}
LONG = {**BODY, "max_tokens": 300 if SMALL else 1000}


def admin(s, method, path, body=None, status=None):
    with s.connect(s.ops_port) as c:
        r = c.request(method, f"/admin/v1/{path}", body)
        if status is not None:
            check_eq(r.status, status, f"status of {method} {path} -> {r.body[:300]!r}")
        return r


def post(s, path, status, **body):
    return admin(s, "POST", path, body or None, status).json()


class Stream:
    def __init__(self, s, body):
        c = s.connect()
        c.send_request("POST", CHAT, {**body, "stream": True})
        self.reader = EventReader(c)
        self.worker = int(self.reader.head.header("x-railyard-worker"))
        self.events = [self.reader.next()]

    def rest(self):
        self.events += self.reader.rest()
        self.reader.c.close()
        return self.events

    def sha(self):
        check_eq(self.rest()[-1], "[DONE]", "last event")
        return join_chunks(self.events[:-1])["token_sha256"]

    def resumed(self):
        return join_chunks(self.events[:-1])["railyard"]["resumed"]


def sha(reply):
    return reply["choices"][0]["token_sha256"]


def two(*flags):
    return Server("--workers=2", "--threads=1", *flags)


def both_ready(s):
    for rank in range(2):
        s.wait_worker(rank)


@test
def a_drained_worker_finishes_its_streams_and_takes_no_more():
    with two() as s:
        both_ready(s)
        wanted = sha(s.chat(**LONG))
        stream = Stream(s, LONG)
        post(s, f"workers/{stream.worker}/drain", 202, timeout_s=3600)
        for _ in range(10):
            r = s.post(CHAT, {**BODY, "max_tokens": 2})
            check_eq(int(r.header("x-railyard-worker")), 1 - stream.worker, "worker of a request behind the drain")
        check_eq(stream.sha(), wanted, "hash")
        check_eq(stream.resumed(), 0, "resumed")
        s.wait_worker(stream.worker, "drained")
        post(s, f"workers/{stream.worker}/drain", 200)
        post(s, f"workers/{stream.worker}/resume", 202)
        s.wait_worker(stream.worker, "ready")
        post(s, f"workers/{stream.worker}/resume", 200)
        check_eq(s.metric("railyard_worker_restarts_total"), 0, "restarts")


@test
def streams_move_at_once_or_at_the_timeout_and_have_the_same_ids():
    with two() as s:
        both_ready(s)
        wanted = sha(s.chat(**LONG))
        for how in ({"streams": "move"}, {"timeout_s": 0.05}):
            with s.caught(lambda: [Stream(s, LONG)], 1, 0, 1) as [stream]:
                post(s, f"workers/{stream.worker}/drain", 202, **how)
            check_eq(stream.sha(), wanted, f"hash with {how}")
            check_eq(stream.resumed(), 1, f"resumed with {how}")
            s.wait_worker(stream.worker, "drained")
            post(s, f"workers/{stream.worker}/resume", 202)
            s.wait_worker(stream.worker)
        check_eq(s.metric("railyard_resumes_total", result="ok", cause="move"), 2, "moves")
        s.wait_idle()


@test
def a_drain_that_cancels_fails_what_runs_at_its_timeout():
    with two() as s:
        both_ready(s)
        with s.caught(lambda: [Stream(s, {**LONG, "max_tokens": 3900})], 1, 0, 1) as [stream]:
            post(s, f"workers/{stream.worker}/drain", 202, streams="cancel", timeout_s=0.05)
        last = stream.rest()[-1]
        check_in("error", last, "last event")
        check_eq(last["error"]["code"], "cancelled_by_operator", "code")
        s.wait_worker(stream.worker, "drained")


@test
def what_cannot_be_is_refused_and_changes_nothing():
    with two() as s:
        both_ready(s)
        for path, status, code, body in [
                ("workers/7/drain", 404, "not_found", {}), ("workers/x/drain", 404, "not_found", {}),
                ("workers/0/dance", 404, "unknown_url", {}), ("workers/0/drain", 400, "invalid_value", {"forse": True}),
                ("workers/0/drain", 400, "invalid_value", {"timeout_s": -1}),
                ("workers/0/drain", 400, "invalid_value", {"timeout_s": "x"}),
                ("workers/0/drain", 400, "invalid_value", {"streams": "drop"}),
                ("workers/0/drain", 400, "invalid_type", {"force": 1})]:
            r = admin(s, "POST", path, body or None, status)
            check_eq(r.json()["error"]["code"], code, f"code of {path} {body}")
        admin(s, "POST", "workers/0", None, 405)
        admin(s, "GET", "workers/0/drain", None, 405)
        admin(s, "GET", "operations/99", None, 404)
        admin(s, "DELETE", "requests/nobody", None, 404)
        check_eq([w["state"] for w in s.workers()], ["ready", "ready"], "states")
        # The last ready worker goes only by force.
        post(s, "workers/0/drain", 202)
        refused = post(s, "workers/1/drain", 409)["error"]
        check_eq(refused["code"], "conflict", "code")
        check_in("ready.workers_min", refused["message"], "message")
        check_eq(s.worker(1)["state"], "ready", "state")
        post(s, "workers/1/drain", 202, force=True)
        wait_for(lambda: s.get("/readyz").status == 503, "/readyz is 503")
        for rank in range(2):
            post(s, f"workers/{rank}/resume", 202)
        both_ready(s)
        s.chat(**BODY)


@test
def too_few_ready_workers_are_said_with_how_many_and_how_many_are_wanted():
    with Server("--workers=3", "--threads=1", "--ready.workers_min=3", "--streams=1") as s:
        for ready in (2, 1, 0):
            post(s, f"workers/{ready}/stop", 202, force=True)
            wait_for(lambda: s.get("/readyz").json()["workers"]["ready"] == ready, f"{ready} are ready")
            r = s.get("/readyz")
            status, words = ("too_few_ready_workers", "Too few ready workers") if ready else ("no_ready_worker", "No ready worker")
            check_eq((r.status, r.json()["status"], r.json()["workers"]), (503, status, {"ready": ready, "wanted": 3, "total": 3}), "/readyz")
            check_eq(r.json().get("reason"), f"{ready} worker{'s' * (ready != 1)} ready, and ready.workers_min is 3" if ready else None, "reason")
            check_eq(s.get("/health").json()["error"]["message"], words, "/health")
        s.wait_worker(0, "stopped")
        post(s, "workers/0/start", 202)
        s.wait_worker(0)
        s.chat(**BODY)  # it serves, for all that


@test
def stop_stays_and_start_brings_it_back():
    with two() as s:
        both_ready(s)
        pid = s.worker(1)["pid"]
        post(s, "workers/1/stop", 202)
        s.wait_worker(1, "stopped")
        wait_for(lambda: not alive(pid), "its process is gone")
        post(s, "workers/1/stop", 200)
        check_eq(admin(s, "POST", "workers/1/drain", None, 409).json()["error"]["code"], "conflict", "code")
        for _ in range(5):
            s.chat(**{**BODY, "max_tokens": 3})
        check_eq(s.worker(1)["state"], "stopped", "state")
        post(s, "workers/1/start", 202)
        s.wait_worker(1, other_than_pid=pid)
        post(s, "workers/1/start", 200)


@test
def a_restart_moves_or_finishes_its_streams_and_makes_a_new_process():
    with two() as s:
        both_ready(s)
        wanted = sha(s.chat(**LONG))
        for how in ({}, {"streams": "move"}):
            stream = Stream(s, LONG)
            pid = s.worker(stream.worker)["pid"]
            post(s, f"workers/{stream.worker}/restart", 202, **how)
            check_eq(stream.sha(), wanted, f"hash with {how}")
            s.wait_worker(stream.worker, other_than_pid=pid)
        check_eq(s.metric("railyard_worker_failures_total"), 0, "failures")


@test
def an_asked_for_end_is_logged_as_one():
    with two() as s:
        both_ready(s)
        post(s, "workers/1/stop", 202)
        s.wait_worker(1, "stopped")
        post(s, "workers/1/start", 202)
        pid = s.wait_worker(1)["pid"]
        post(s, "workers/1/restart", 202)
        s.wait_worker(1, other_than_pid=pid)
        s.signal(signal.SIGTERM)
        check_eq(s.wait(), 0, "exit status")
        check(" to=backoff" not in s.log_text(), "a planned end is logged as a wait for the next start")
        check(s.log_text().count(" rank=1 generation=1 from=drained to=stopped") == 1, "the stop is not logged as drained, then stopped")


@test
def a_worker_started_by_hand_is_asked_to_end_and_may_come_back():
    with Server(command="router", wait_ready=False) as s:
        with Worker(s) as w:
            s.wait_ready()
            post(s, "workers/0/stop", 202, force=True)
            check_eq(w.wait(), 0, "exit status")
            s.wait_worker(0, "stopped")
            check_eq(post(s, "workers/0/start", 409)["error"]["code"], "conflict", "code")
        with Worker(s):
            s.wait_ready()
            s.chat(**BODY)


@test
def a_restart_of_all_under_load_fails_nothing_and_never_goes_below_the_minimum():
    count = 2 if SMALL else 4
    with Server(f"--workers={count}", "--threads=1", f"--ready.workers_min={count - 1}") as s:
        for rank in range(count):
            s.wait_worker(rank)
        bodies = [{**BODY, "seed": i, "max_tokens": 60 + 20 * i} for i in range(8)]
        wanted = [sha(s.chat(**b)) for b in bodies]
        pids = [w["pid"] for w in s.workers()]
        stop, gaps, fewest = [], [], [count]

        def client(i):
            done = 0
            while not stop or done < 2:
                c = s.connect()
                c.send_request("POST", CHAT, {**bodies[i], "stream": True})
                reader, events, last = EventReader(c), [], None
                while (e := reader.next()) is not None:
                    events.append(e)
                    now = time.monotonic()
                    if last is not None:
                        gaps.append(now - last)
                    last = now
                c.close()
                check_eq(events[-1], "[DONE]", "last event")
                check_eq(join_chunks(events[:-1])["token_sha256"], wanted[i], f"hash of client {i}")
                done += 1
            return done

        def watch():
            while not stop:
                fewest[0] = min(fewest[0], s.get("/readyz").json()["workers"]["ready"])

        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            runs = [pool.submit(client, i) for i in range(8)] + [pool.submit(watch)]
            try:
                op = post(s, "restart", 202)
                check_eq(post(s, "restart", 409)["error"]["code"], "conflict", "code of a second one")
                op = wait_for(lambda: (o := admin(s, "GET", f"operations/{op['id']}?wait_s=30", None, 200).json())["state"]
                              != "running" and o, "the operation ends")
            finally:
                stop.append(1)
            replies = sum(r.result() or 0 for r in runs)
        check_eq((op["state"], op["error"], op["step"]), ("done", None, count), "operation")
        check(not set(pids) & {w["pid"] for w in s.workers()}, "a process is the old one")
        check(fewest[0] >= count - 1, f"only {fewest[0]} workers were ready at one time")
        check_eq(s.metric("vllm:request_success_total", finished_reason="error"), 0, "failed requests")
        gaps.sort()
        note(f"{replies} replies over a restart of {count} workers; gap between events p50 {gaps[len(gaps) // 2] * 1e3:.1f} ms, "
             f"p99 {gaps[len(gaps) * 99 // 100] * 1e3:.1f} ms, longest {gaps[-1] * 1e3:.1f} ms")


@test
def a_restart_of_all_stops_at_the_first_worker_that_does_not_come_back():
    with Server("--workers=2", "--threads=1", command="router", wait_ready=False) as s, Worker(s), Worker(s):
        both_ready(s)
        op = post(s, "restart", 202, start_s=0.5, timeout_s=0.1)
        op = wait_for(lambda: (o := admin(s, "GET", f"operations/{op['id']}", None, 200).json())["state"] != "running" and o,
                      "the operation ends")
        check_eq((op["state"], op["step"]), ("failed", 0), "operation")
        check_in("worker 0", op["error"], "error")
        check_eq(s.worker(1)["state"], "ready", "the other worker")


HELD = {**BODY, "max_tokens": 300}


def held_at_0(s):
    """A stream at worker 0, which a restart of all takes first."""
    post(s, "workers/1/drain", 202)
    stream = Stream(s, HELD)
    post(s, "workers/1/resume", 202)
    return [stream]


@test
def a_restart_or_stop_that_has_not_yet_ended_a_worker_can_be_taken_back():
    with two("--worker.progress_s=300") as s:
        both_ready(s)
        wanted, pids = sha(s.chat(**HELD)), [w["pid"] for w in s.workers()]

        def abort(op):
            check_eq((op["state"], op["rank"]), ("running", 0), "operation")
            told = admin(s, "DELETE", f"operations/{op['id']}", None, 202).json()
            check_eq((told["state"], told["rank"], told["step"]), ("cancelled", None, 0), "operation")
            admin(s, "DELETE", f"operations/{op['id']}", None, 200)

        def resume_0(op):
            post(s, "workers/0/resume", 202)
            told = wait_for(lambda: (o := admin(s, "GET", f"operations/{op['id']}", None, 200).json())["state"] != "running" and o,
                            "the operation ends")
            check_eq(told["state"], "failed", "operation")
            check_in("worker 0 was told to resume", told["error"], "error")

        for path, take_back in [("restart", abort), ("restart", resume_0), ("workers/0/restart", lambda _: post(s, "workers/0/resume", 202)),
                                ("workers/0/stop", lambda _: post(s, "workers/0/resume", 202))]:
            both_ready(s)
            with s.caught(lambda: held_at_0(s), 1, 0) as [stream]:
                begun = post(s, path, 202)
                wait_for(lambda: s.worker()["state"] == "draining", "worker 0 drains")
                take_back(begun)
            check_eq((stream.sha(), stream.resumed()), (wanted, 0), f"hash and resumes of a stream over {path}")
            s.wait_worker(0)
        check_eq([s.wait_worker(rank)["pid"] for rank in range(2)], pids, "pids")
        admin(s, "DELETE", "operations/99", None, 404)


@test
def a_restart_of_all_that_is_called_off_leaves_no_worker_down():
    """The present worker has been told to end already: it does, and starts again; the next is left alone."""
    with two("--worker.progress_s=300") as s:
        both_ready(s)
        pids = [w["pid"] for w in s.workers()]
        with s.stopped(pids[0]):
            op = post(s, "restart", 202)
            wait_for(lambda: s.worker()["state"] != "ready", "worker 0 has been told")
            admin(s, "DELETE", f"operations/{op['id']}", None, 202)
            check_eq(post(s, "workers/0/resume", 409)["error"]["code"], "conflict", "code of a resume")
        s.wait_worker(0, other_than_pid=pids[0])
        check_eq(s.worker(1)["pid"], pids[1], "the other one's pid")
        check_eq(admin(s, "GET", f"operations/{op['id']}", None, 200).json()["state"], "cancelled", "operation")


def wait_operation(s, op):
    return wait_for(lambda: (o := admin(s, "GET", f"operations/{op['id']}", None, 200).json())["state"] != "running" and o,
                    "the operation ends")


def three(*flags):
    """The third lets an operation go on while one is down, since ready.workers_min is 1."""
    s = Server("--workers=3", "--threads=1", "--streams=2", "--worker.progress_s=300", *flags)
    for rank in range(3):
        s.wait_worker(rank)
    return s


def held_at(s, rank):
    """A stream at that worker, to be caught there."""
    others = [r for r in range(3) if r != rank]
    for other in others:
        post(s, f"workers/{other}/drain", 202, force=True)
    stream = Stream(s, HELD)
    for other in others:
        post(s, f"workers/{other}/resume", 202)
        s.wait_worker(other)
    return [stream]


def stays(s, rank, state):
    """Some ticks of the router later it still is."""
    for _ in range(10):
        check_eq(s.worker(rank)["state"], state, f"state of worker {rank}")
        time.sleep(0.05)


@test
def a_worker_stopped_during_a_restart_of_all_stays_down():
    """Its turn has not come when the operator stops it: the operation passes it by."""
    with three() as s:
        pids = [w["pid"] for w in s.workers()]
        with s.caught(lambda: held_at(s, 0), 1, 0) as [stream]:
            op = post(s, "restart", 202)
            wait_for(lambda: s.worker()["state"] == "draining", "worker 0 drains")
            post(s, "workers/1/stop", 202)
            s.wait_worker(1, "stopped")
            check_eq(admin(s, "GET", f"operations/{op['id']}", None, 200).json()["rank"], 0, "the present rank")
        stream.sha()
        op = wait_operation(s, op)
        check_eq((op["state"], op["error"], op["step"], op["passed"]), ("done", None, 3, 1), "operation")
        stays(s, 1, "stopped")
        for rank in (0, 2):
            s.wait_worker(rank, other_than_pid=pids[rank])
        post(s, "workers/1/stop", 200)
        post(s, "workers/1/start", 202)
        s.wait_worker(1, other_than_pid=pids[1])


@test
def a_worker_stopped_while_a_restart_of_all_waits_for_others_stays_down():
    with three("--ready.workers_min=2") as s:
        pids = [w["pid"] for w in s.workers()]
        with s.caught(lambda: held_at(s, 0), 1, 0) as [stream]:
            op = post(s, "restart", 202)
            wait_for(lambda: s.worker()["state"] == "draining", "worker 0 drains")
            post(s, "workers/2/drain", 202, force=True)
        stream.sha()
        wait_for(lambda: admin(s, "GET", f"operations/{op['id']}", None, 200).json()["rank"] == 1, "the second step")
        s.wait_worker(0, other_than_pid=pids[0])
        stays(s, 1, "ready")
        post(s, "workers/1/stop", 202, force=True)
        op = wait_operation(s, op)
        check_eq((op["state"], op["step"], op["passed"]), ("done", 3, 1), "operation")
        s.wait_worker(1, "stopped")
        stays(s, 1, "stopped")
        # The one that was drained has a new process, and is drained still.
        s.wait_worker(2, "drained", other_than_pid=pids[2])
        stays(s, 2, "drained")


@test
def a_worker_stopped_in_its_own_step_stays_down_and_the_step_is_over():
    def draining(s):
        with s.caught(lambda: held_at(s, 0), 1, 0) as [stream]:
            op = post(s, "restart", 202)
            wait_for(lambda: s.worker()["state"] == "draining", "worker 0 drains")
            post(s, "workers/0/stop", 202)
            # It runs a stream still; the others' turn comes all the same.
            wait_for(lambda: admin(s, "GET", f"operations/{op['id']}", None, 200).json()["rank"] != 0, "the next step")
            check_eq(s.worker()["state"], "draining", "state")
        check_eq((stream.sha() != "", stream.resumed()), (True, 0), "the stream")
        return op

    def told_to_end(s):
        with s.stopped(s.worker()["pid"]):
            op = post(s, "restart", 202)
            wait_for(lambda: s.worker()["state"] != "ready", "worker 0 has been told")
            post(s, "workers/0/stop", 202)
        return op

    def starting(s):
        op, pid = post(s, "restart", 202), s.worker()["pid"]
        wait_for(lambda: s.worker()["pid"] not in (0, pid), "worker 0 starts")
        post(s, "workers/0/stop", 202)
        return op

    with three() as s:
        for phase in (draining, told_to_end, starting):
            pids = [w["pid"] for w in s.workers()]
            op = wait_operation(s, phase(s))
            check_eq((op["state"], op["error"], op["step"], op["passed"]), ("done", None, 3, 1), f"operation, stopped while {phase.__name__}")
            s.wait_worker(0, "stopped")
            stays(s, 0, "stopped")
            for rank in (1, 2):
                s.wait_worker(rank, other_than_pid=pids[rank])
            post(s, "workers/0/start", 202)
            s.wait_worker(0)
        check_eq(s.metric("railyard_worker_failures_total"), 0, "failures")


@test
def a_restart_of_all_that_is_called_off_leaves_an_operators_stop_drain_and_restart_alone():
    def begin(s, *before):
        for path in before:
            post(s, path, 202)
        op = post(s, "restart", 202)
        wait_for(lambda: s.worker()["state"] == "draining", "worker 0 drains")
        return op

    def abort(s, op):
        check_eq(admin(s, "DELETE", f"operations/{op['id']}", None, 202).json()["state"], "cancelled", "operation")

    with three() as s:
        pids = [w["pid"] for w in s.workers()]
        with s.caught(lambda: held_at(s, 0), 1, 0) as [stream]:
            op = begin(s)
            post(s, "workers/1/stop", 202)
            abort(s, op)
        stream.sha()
        s.wait_worker(1, "stopped")
        stays(s, 1, "stopped")
        check_eq(s.wait_worker(0)["pid"], pids[0], "pid of one that only drained")
        post(s, "workers/1/start", 202)
        s.wait_worker(1)
        # Worker 0 was drained before: the restart is taken back, the drain is not.
        with s.caught(lambda: held_at(s, 0), 1, 0) as [stream]:
            op = begin(s, "workers/0/drain")
            stays(s, 0, "draining")
            abort(s, op)
        stream.sha()
        check_eq(s.wait_worker(0, "drained")["pid"], pids[0], "pid of one that was drained")
        stays(s, 0, "drained")
        post(s, "workers/0/resume", 202)
        s.wait_worker(0)
        # It was being restarted before: that goes on.
        with s.caught(lambda: held_at(s, 0), 1, 0) as [stream]:
            op = begin(s, "workers/0/restart")
            stays(s, 0, "draining")
            abort(s, op)
        stream.sha()
        pids[0] = s.wait_worker(0, other_than_pid=pids[0])["pid"]
        # It was stopped in its own step.
        with s.caught(lambda: held_at(s, 0), 1, 0) as [stream]:
            op = begin(s)
            post(s, "workers/0/stop", 202)
            admin(s, "DELETE", f"operations/{op['id']}")
        stream.sha()
        s.wait_worker(0, "stopped")
        stays(s, 0, "stopped")


@test
def a_drained_worker_is_drained_again_behind_a_restart_of_all():
    with three() as s:
        pids = [w["pid"] for w in s.workers()]
        post(s, "workers/1/drain", 202)
        s.wait_worker(1, "drained")
        op = post(s, "restart", 202)
        taken = set()
        while admin(s, "GET", f"operations/{op['id']}", None, 200).json()["state"] == "running":
            taken.add(int(s.post(CHAT, {**BODY, "max_tokens": 1}).header("x-railyard-worker")))
        op = wait_operation(s, op)
        check_eq((op["state"], op["step"], op["passed"]), ("done", 3, 0), "operation")
        check(1 not in taken, "a drained worker has run a request")
        s.wait_worker(1, "drained", other_than_pid=pids[1])
        stays(s, 1, "drained")
        # So with two of three drained too few would be left, and the answer says so at once.
        post(s, "workers/2/drain", 202)
        check_in("0 ready workers would be left", post(s, "restart", 409)["error"]["message"], "message")
        for rank in (1, 2):
            post(s, f"workers/{rank}/resume", 202)
            s.wait_worker(rank)
        # Drained and told to resume while the operation runs: it serves.
        post(s, "workers/2/drain", 202)
        op = post(s, "restart", 202)
        post(s, "workers/2/resume", 202)
        check_eq(wait_operation(s, op)["state"], "done", "operation")
        s.wait_worker(2)


@test
def a_guest_that_is_gone_at_its_turn_is_passed_by():
    with Server("--workers=3", "--threads=1", command="router", wait_ready=False) as s:
        with Worker(s, "--rank=0") as first, Worker(s, "--rank=1") as second, Worker(s, "--rank=2") as third:
            for rank in range(3):
                s.wait_worker(rank)
            with s.stopped(first.pid):
                op = post(s, "restart", 202)
                wait_for(lambda: s.worker()["state"] != "ready", "worker 0 has been told")
                post(s, "workers/1/stop", 202)
                check_eq(second.wait(), 0, "exit status")
                s.wait_worker(1, "stopped")
            check_eq(first.wait(), 0, "exit status")
            with Worker(s, "--rank=0"):
                check_eq(third.wait(), 0, "exit status")
                with Worker(s, "--rank=2"):
                    op = wait_operation(s, op)
                    check_eq((op["state"], op["error"], op["step"], op["passed"]), ("done", None, 3, 1), "operation")


@test
def operations_that_are_over_can_be_asked_for_when_others_have_begun():
    with Server("--workers=1", "--threads=1", "--streams=1") as s:
        told = []
        for _ in range(3):
            op = post(s, "restart", 202, force=True)
            told.append(wait_operation(s, op))
        for op in told:
            check_eq(admin(s, "GET", f"operations/{op['id']}", None, 200).json(), op, "operation")
            check_eq(admin(s, "DELETE", f"operations/{op['id']}", None, 200).json(), op, "operation that is over")
        admin(s, "GET", "operations/0", None, 404)


@test
def no_request_reaches_a_drained_worker_when_it_is_back_after_a_crash():
    """It says that it is ready, as any does, and is told to drain before anything is placed."""
    with two("--streams=2") as s:
        both_ready(s)
        post(s, "workers/1/drain", 202)
        pid = s.wait_worker(1, "drained")["pid"]
        taken, over = set(), []

        def client():
            while not over:
                taken.add(s.post(CHAT, {**BODY, "max_tokens": 40}).header("x-railyard-worker"))

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            runs = [pool.submit(client) for _ in range(6)]
            for _ in range(3):
                os.kill(pid, signal.SIGKILL)
                pid = s.wait_worker(1, "drained", other_than_pid=pid)["pid"]
            over.append(1)
            for r in runs:
                r.result()
        check_eq(taken, {"0"}, "workers that have run a request")


@test
def the_router_drains_and_undrains():
    with Server("--threads=1", "--drain.settle_s=0") as s:
        stream = Stream(s, LONG)
        post(s, "drain", 200)
        check_eq(s.get("/readyz").status, 503, "/readyz")
        check_eq(s.get("/livez").status, 200, "/livez")
        wait_for(lambda: s.post(CHAT, BODY).status == 503, "new requests are refused")
        refused = s.post(CHAT, BODY)
        check_eq(refused.json()["error"]["code"], "draining", "code")
        check_in("drained by its operator", refused.json()["error"]["message"], "message")
        check_eq(refused.header("connection"), "close", "Connection")
        check_eq(s.get("/health").json()["error"]["message"], "Draining", "/health")
        check_eq(admin(s, "GET", "drain", None, 200).json(), {"draining": True, "drained": False, "ending": False, "requests": 1}, "state")
        check_in("the router is draining, 1 request in flight: `railyard ctl undrain router` ends that\n",
                 run_program("ctl", "workers", f"--ops=127.0.0.1:{s.ops_port}")[1], "workers")
        stream.sha()
        check_eq(admin(s, "GET", "drain?wait_s=60", None, 200).json(), {"draining": True, "drained": True, "ending": False, "requests": 0}, "state")
        post(s, "undrain", 200)
        check_eq(s.get("/readyz").status, 200, "/readyz")
        s.chat(**BODY)


@test
def a_router_that_ends_is_called_so_and_offers_no_way_back():
    with Server("--threads=1", "--worker.progress_s=300") as s:
        with s.caught(lambda: [Stream(s, LONG)], 1) as [stream]:
            s.signal(signal.SIGTERM)
            told = wait_for(lambda: (o := admin(s, "GET", "drain", None, 200).json())["draining"] and o, "it drains")
            check_eq(told, {"draining": True, "drained": False, "ending": True, "requests": 1}, "state")
            out = run_program("ctl", "workers", f"--ops=127.0.0.1:{s.ops_port}")[1]
            check_eq(out.splitlines()[-1], "the router is ending, 1 request in flight", "workers")
            code, _, err = run_program("ctl", "undrain", "router", f"--ops=127.0.0.1:{s.ops_port}")
            check_eq(code, 1, "exit status of undrain")
            check_in("the router is ending", err, "undrain")
        stream.sha()
        check_eq(s.wait(), 0, "exit status")


@test
def the_log_says_what_an_operator_asked_for_in_words():
    with Server("--threads=1", "--worker.progress_s=300") as s, s.held(LONG) as stream:
        post(s, "workers/0/drain", 202, force=True, timeout_s=7, streams="cancel")
        post(s, "workers/0/resume", 202)
        check_in("control rank=0 verb=drain state=ready changed=1 streams=1 timeout_s=7 then=cancel\n", s.log_text(), "log")
        check(stream, "a stream")


@test
def what_outlives_a_drain_of_the_router_is_told_so():
    with Server("--threads=1", "--drain.timeout_s=0.2", "--worker.progress_s=300") as s:
        with s.held({**LONG, "max_tokens": 3900}) as stream:
            post(s, "drain", 200)
            error = stream.rest()[-1]["error"]
            check_eq((error["code"], error["message"]), ("draining", "the server is being drained by its operator"), "error")
        check_eq(admin(s, "GET", "drain?wait_s=60", None, 200).json()["drained"], True, "drained")
        post(s, "undrain", 200)
        s.chat(**BODY)


@test
def requests_in_flight_are_listed_without_text_and_can_be_cancelled():
    with Server("--threads=1", "--streams=1", "--worker.progress_s=300") as s:
        with (s.caught(lambda: [Stream(s, {**LONG, "max_tokens": 3900})], 1) as [stream],
              concurrent.futures.ThreadPoolExecutor(1) as pool):
            waits = pool.submit(s.post, CHAT, BODY, [("X-Request-Id", "waits")])
            found = wait_for(lambda: len(f := admin(s, "GET", "requests", None, 200).json()) == 2 and f, "both are listed")
            check_eq([(r["state"], r["worker"], r["stream"]) for r in found], [("decode", 0, True), ("queued", -1, False)], "list")
            check(found[0]["completion_tokens"] > 0 and "fox" not in str(found), f"{found}")
            check_eq([r["request_id"] for r in admin(s, "GET", "requests?state=queued", None, 200).json()], ["waits"], "queued")
            check_eq(len(admin(s, "GET", "requests?worker=0", None, 200).json()), 1, "at worker 0")
            check_eq(len(admin(s, "GET", "requests?limit=1", None, 200).json()), 1, "limited")
            admin(s, "DELETE", "requests/waits", None, 200)
            check_eq((waits.result().status, waits.result().json()["error"]["code"]), (500, "cancelled_by_operator"), "the queued one")
            check_eq(waits.result().header("x-should-retry"), "false", "x-should-retry")
            admin(s, "DELETE", f"requests/{found[0]['id']}", None, 200)
        check_eq(stream.rest()[-1]["error"]["code"], "cancelled_by_operator", "the stream")
        s.wait_idle()


@test
def a_call_that_waits_for_a_state_returns_with_it_or_at_its_timeout():
    with two() as s:
        both_ready(s)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waits = pool.submit(admin, s, "GET", "workers/1?wait_state=drained&timeout_s=60")
            post(s, "workers/1/drain", 202)
            check_eq(waits.result().json()["state"], "drained", "state")
        check_eq(admin(s, "GET", "workers/1?wait_state=ready&timeout_s=0", None, 200).json()["state"], "drained", "state")
        admin(s, "GET", "workers/1?wait_state=asleep", None, 400)
        # A client that leaves while it waits leaves nothing behind.
        c = s.connect(s.ops_port)
        c.send_request("GET", "/admin/v1/workers/1?wait_state=ready&timeout_s=600")
        c.close()


@test
def settings_and_log_level_are_told_and_set():
    with Server("--threads=1", "--queue.wait_s=17") as s:
        config = admin(s, "GET", "config", None, 200).json()
        check_eq((config["queue.wait_s"], config["workers"]), (17, 1), "settings")
        for level, told in (("error", 0), ("info", 1)):
            before = s.log_text().count(" control ")
            admin(s, "PUT", "log_level", {"level": level}, 200)
            post(s, "workers/0/drain", 202, force=True)
            post(s, "workers/0/resume", 202)
            wait_for(lambda: s.log_text().count(" control ") >= before + 2 * told, "the log tells of it")
            check_eq(s.log_text().count(" control "), before + 2 * told, f"lines at level {level}")
        admin(s, "PUT", "log_level", {"level": "loud"}, 400)


@test
def a_reload_takes_what_the_config_file_says_of_settings_that_may_change():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "conf")

        def write(*lines):
            with open(path + ".new", "w", encoding="utf-8") as f:
                f.write("\n".join(lines) + "\n")
            os.rename(path + ".new", path)

        write("queue.wait_s = 17", "limits.tokenize_bytes_max = 1KiB")
        with Server("--threads=1", "--drain.settle_s=0.5", f"--config={path}") as s:
            def config(*names):
                told = admin(s, "GET", "config", None, 200).json()
                return [told[n] for n in names]

            def tokenize():
                return s.post("/v1/tokenize", {"prompt": "cat " * 20}).status

            check_eq((config("queue.wait_s", "log.level"), tokenize()), ([17, "info"], 200), "at the start")
            # A flag is stronger than the file; one setting in it changes with a restart alone.
            write("queue.wait_s = 5", "queue.requests_max = 7", "log.level = warn", "limits.tokenize_bytes_max = 16",
                  "drain.settle_s = 9", "api.keepalive_s = 33")
            s.signal(signal.SIGHUP)
            wait_for(lambda: config("queue.wait_s") == [5], "the new setting is in effect")
            check_eq(config("queue.requests_max", "log.level", "drain.settle_s", "api.keepalive_s"), [7, "warn", 0.5, 75], "settings")
            check_eq(tokenize(), 413, "a body over the new limit")
            check_in('kept="api.keepalive_s"', s.log_text(), "what needs a restart")
            code, out, _ = run_program("ctl", "reload", f"--ops=127.0.0.1:{s.ops_port}")
            check_eq((code, out), (0, '{"reloaded":true,"changed":[],"needs_restart":["api.keepalive_s"]}\n'), "reload")
            write("queue.wait_s = 6", "queue.tokens_max = many")
            code, _, err = run_program("ctl", "reload", f"--ops=127.0.0.1:{s.ops_port}")
            check_eq(code, 1, "exit status with a broken file")
            check_in(f"{path}:2: setting queue.tokens_max", err, "reason")
            check_eq(config("queue.wait_s"), [5], "what there was")
            # What the file names no more is as it is by default.
            write("limits.tokenize_bytes_max = 1KiB")
            code, out, _ = run_program("ctl", "reload", f"--ops=127.0.0.1:{s.ops_port}")
            check_in('"changed":["queue.requests_max","queue.wait_s","limits.tokenize_bytes_max","log.level"]', out, "reload")
            check_eq((config("queue.wait_s"), tokenize()), ([60], 200), "by default")


@test
def ctl_that_waits_for_a_worker_ends_when_it_fails_for_good():
    """The settings of the running router name a file that has become bad meanwhile."""
    with tempfile.TemporaryDirectory(prefix="ry-costs-") as folder:
        costs = os.path.join(folder, "costs.json")
        with open(os.path.join(SOURCE, "worker", "costs", "cpu_demo.json"), encoding="utf-8") as f:
            good = f.read()
        with open(costs, "w", encoding="utf-8") as f:
            f.write(good)
        demo = os.path.join(SOURCE, "tests", "models", "demo")  # whose table it is
        with Server("--workers=2", "--threads=1", f"--costs={costs}", model=demo) as s:
            both_ready(s)
            with open(costs, "w", encoding="utf-8") as f:
                f.write("no costs\n")
            for verb in ("restart", "start", "restart"):
                code, _, err = run_program("ctl", verb, "0", "--wait", f"--ops=127.0.0.1:{s.ops_port}")
                check_eq(code, 1, f"exit status of ctl {verb} 0 --wait: {err}")
                check_in(f"worker 0 did not start again: costs '{costs}': line 1: ", err, verb)
            check_eq(s.worker()["state"], "failed", "state")
            reason = s.worker()["reason"]
            check_in("; its settings are refused (exit code 2)", reason, "reason")
            post(s, "workers/1/stop", 202, force=True)
            wait_for(lambda: s.get("/readyz").status == 503, "/readyz is 503")
            check_eq(s.get("/readyz").json()["reason"], "worker 0: its settings are refused", "what clients are told")
            check_eq(s.get("/readyz", s.ops_port).json()["reason"], f"worker 0: {reason}", "what the operator is told")
            code, _, err = run_program("ctl", "stop", "0", "--wait", f"--ops=127.0.0.1:{s.ops_port}")
            check_eq(code, 0, f"exit status of ctl stop 0 --wait: {err}")
            with open(costs, "w", encoding="utf-8") as f:
                f.write(good)
            code, _, err = run_program("ctl", "start", "0", "--wait", f"--ops=127.0.0.1:{s.ops_port}")
            check_eq(code, 0, f"exit status of ctl start 0 --wait: {err}")
            s.wait_worker(0)


@test
def ctl_does_what_the_api_does():
    with two() as s:
        both_ready(s)

        def ctl(*args, wanted=0):
            code, out, err = run_program("ctl", *args, f"--ops=127.0.0.1:{s.ops_port}")
            check_eq(code, wanted, f"exit status of ctl {args}: {out} {err}")
            return out + err

        check_in("drained", ctl("drain", "1", "--wait"), "drain --wait")
        check_in("workers_min", ctl("drain", "0", wanted=1), "the last one")
        check_in("ready", ctl("resume", "1", "--wait"), "resume --wait")
        pid = s.worker(1)["pid"]
        check_in("ready", ctl("restart", "1", "--wait"), "restart --wait")
        check(s.worker(1)["pid"] != pid, "the process is the old one")
        check_in("stopped", ctl("stop", "1", "--wait"), "stop --wait")
        check_in("0 ready workers would be left", ctl("restart", "all", "--wait", wanted=1), "restart all of one")
        check_in("ready", ctl("start", "1", "--wait"), "start --wait")
        done = ctl("restart", "all", "--wait")
        check_in('"state":"done"', done, "restart all --wait")
        check_eq(ctl("operation", strict_json(done)["id"]), done, "operation")
        check_eq(ctl("abort", strict_json(done)["id"]), done, "abort of what is over")
        ctl("stop", "1", "--wait")
        ctl("restart", "all", wanted=1)
        check_eq(ctl("operation", strict_json(done)["id"]), done, "the last operation, after one that was refused")
        ctl("start", "1", "--wait")
        check_in("no operation has the id 99", ctl("abort", "99", wanted=1), "abort")
        check("the router" not in ctl("workers"), "workers of a router that serves")
        check_in("state", ctl("requests"), "requests")
        check_in("no request", ctl("cancel", "nobody", wanted=1), "cancel")
        check_in('"workers":2', ctl("config"), "config")
        check_in("warn", ctl("log-level", "warn"), "log-level")
        check_eq(ctl("config")[-1], "\n", "the end of config")
        check_in('"drained":true', ctl("drain", "router", "--wait"), "drain router --wait")
        check_eq(s.get("/readyz").status, 503, "/readyz")
        check_in("the router is drained, 0 requests in flight", ctl("workers"), "workers")
        check_eq([w["router_draining"] for w in s.workers()], [True, True], "router_draining")
        check_in('"draining":false', ctl("undrain", "router"), "undrain")
        check_eq(s.worker()["router_draining"], False, "router_draining")
        check_eq(s.get("/readyz").status, 200, "/readyz")
        check_in("use: railyard ctl", ctl("--help"), "help")
        check_in("0: none beside these", " ".join(ctl("--help").split()), "what --start=0 means")
        # What was drained tells its state after the resume, not before it.
        ctl("drain", "1", "--wait")
        check_in(" ready ", ctl("resume", "1"), "resume")


@test
def ctl_names_the_word_that_does_not_fit():
    for args, wanted in [
            ([], "wanted one of workers, requests, drain, "), (["dance"], "log-level, found 'dance'"),
            (["abort", "x"], "abort: wanted the number that restart all printed behind it, found 'x'"),
            (["drain"], "drain: wanted a worker's rank, or router behind it, found nothing"),
            (["drain", "all"], "drain: wanted a worker's rank, or router behind it, found 'all'"),
            (["undrain"], "undrain: wanted router behind it, found nothing"),
            (["restart", "x1"], "restart: wanted a worker's rank, or all behind it, found 'x1'"),
            (["resume", ""], "resume: wanted a worker's rank behind it, found ''"),
            (["workers", "0"], "workers: wanted nothing behind it, found '0'"),
            (["stop", "0", "1"], "stop: wanted nothing more behind it, found '1'"),
            (["cancel"], "cancel: wanted a request's id behind it, found nothing"),
            (["workers", "--timeout"], "--timeout: wanted a value, found none")]:
        # No router listens there: a command that is refused asks nobody.
        code, out, err = run_program("ctl", "--ops=127.0.0.1:1", *args)
        check_eq((code, out), (2, ""), f"ctl {args}")
        said = err.splitlines()
        check_in(wanted, said[0], f"ctl {args}")
        check_eq(said[1:], ["use: railyard ctl WHAT [flags] (railyard ctl --help lists them)"], f"ctl {args}")


@test
def a_crash_in_a_drain_does_not_bring_the_worker_back_to_work():
    with two() as s:
        both_ready(s)
        post(s, "workers/1/drain", 202)
        pid = s.wait_worker(1, "drained")["pid"]
        os.kill(pid, signal.SIGKILL)
        s.wait_worker(1, "drained", other_than_pid=pid)
        for _ in range(10):
            check_eq(s.post(CHAT, {**BODY, "max_tokens": 2}).header("x-railyard-worker"), "0", "worker")
        post(s, "workers/1/resume", 202)
        s.wait_worker(1)


class Verbs:
    """Draws what an operator and misfortune do to three workers, and knows what has to become of each: the last that was asked for."""

    def __init__(self, s, rng, guests):
        self.s, self.rng, self.guests = s, rng, guests
        self.wanted, self.away_since, self.away, self.done, self.kills = ["ready"] * 3, [None] * 3, [], collections.Counter(), [0] * 3
        self.operation = None

    def how(self):
        return {"timeout_s": self.rng.choice([0, 0.3, 5]), "streams": self.rng.choice(["finish", "move"]), "force": self.rng.random() < 0.6, "start_s": 60}

    def verb(self):
        rank, verb = self.rng.randrange(3), self.rng.choice(["drain", "resume", "stop", "start", "start", "resume", "restart"])
        begun = time.monotonic()
        status = admin(self.s, "POST", f"workers/{rank}/{verb}", self.how()).status
        self.done[verb, status] += 1
        if status == 409:
            return
        # Of a worker started by hand a stop is its end: whoever looks after it starts it again. One that is gone is not asked for anything.
        ends = verb == "stop" and self.guests
        if ends and status == 200:
            return
        now = "ready" if ends else {"drain": "drained", "stop": "stopped"}.get(verb, "ready")
        if self.wanted[rank] != "ready" and now == "ready":
            self.away.append((rank, self.away_since[rank], begun))
        if self.wanted[rank] == "ready" and now != "ready":
            self.away_since[rank] = time.monotonic()
        self.wanted[rank] = now

    def restart_all(self):
        r = admin(self.s, "POST", "restart", self.how())
        self.done["restart all", r.status] += 1
        if r.status == 202:
            self.operation = r.json()["id"]

    def abort(self):
        if self.operation and self.rng.random() < 0.3:
            self.done["abort", admin(self.s, "DELETE", f"operations/{self.operation}").status] += 1

    def end_one(self):
        """Two unplanned deaths end a request, five in ten minutes a worker."""
        rank = self.rng.randrange(3)
        pid, kill = self.s.worker(rank)["pid"], self.rng.random() < 0.5
        if not pid or kill and (self.kills[rank] == 4 or any(r["deaths"] for r in admin(self.s, "GET", "requests").json())):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
            self.kills[rank] += kill
            self.done["SIGKILL" if kill else "SIGTERM", None] += 1

    def begin_guests(self):
        for rank, w in enumerate(self.guests):
            if not w.running():
                w.status = w.p.returncode and 1  # told to end twice it hurries
                w.end()
                self.guests[rank] = Worker(self.s, f"--rank={rank}", "--threads=1", "--streams=4")

    def run(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.rng.choice([self.restart_all, self.abort, self.end_one] + [self.verb] * 4)()
            if self.rng.random() < 0.5:
                self.begin_guests()
            time.sleep(self.rng.choice([0, 0, 0.01, 0.05, 0.1, 0.3, 0.6]))

    def settle(self):
        def settled():
            self.begin_guests()
            over = not self.operation or admin(self.s, "GET", f"operations/{self.operation}").json()["state"] != "running"
            return over and [w["state"] for w in self.s.workers()] == self.wanted

        for _ in range(2):  # the first time the router may not have heard of the last death yet
            wait_for(settled, lambda: f"the workers are {self.wanted}: {[(w['state'], w['reason']) for w in self.s.workers()]}", 150)
            time.sleep(0.5)
        check(settled(), "they were, and did not stay so")
        for rank in range(3):
            if self.wanted[rank] != "ready":
                self.away.append((rank, self.away_since[rank], time.monotonic()))
                post(self.s, f"workers/{rank}/{'start' if self.wanted[rank] == 'stopped' else 'resume'}", 202)
            self.s.wait_worker(rank)


@test
def verbs_restarts_of_all_and_ends_in_any_order_leave_each_worker_as_was_asked_last():
    """While clients get the replies that they get of a quiet server, none of a worker that was to take no more."""
    seconds, seed = float(os.environ.get("RAILYARD_CHAOS_S", "6")), int(os.environ.get("RAILYARD_CHAOS_SEED", "0")) or int(time.time())
    patience = ("--queue.wait_s=600", "--route.wait_ready_s=600", "--route.resume_s=600", "--worker.progress_s=60")
    for command in ("serve", "router"):
        rng = random.Random(seed)
        with Server("--workers=3", "--threads=1", "--streams=4", *patience, command=command, wait_ready=False) as s:
            verbs = Verbs(s, rng, [Worker(s, f"--rank={rank}", "--threads=1", "--streams=4") for rank in range(3 * (command == "router"))])
            for rank in range(3):
                s.wait_worker(rank)
            bodies = [{**BODY, "seed": i, "max_tokens": n} for i, n in enumerate([5, 60, 150, 40])]
            wanted, over, begun = [sha(s.chat(**b)) for b in bodies], [], []

            def client(i):
                while not over:
                    i += 1
                    since = time.monotonic()
                    stream = Stream(s, bodies[i % 4])
                    begun.append((stream.worker, since, time.monotonic()))
                    check_eq(stream.sha(), wanted[i % 4], "hash")

            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                runs = [pool.submit(client, i) for i in range(6)]
                try:
                    verbs.run(seconds)
                    verbs.settle()
                finally:
                    over.append(1)
                for r in runs:
                    r.result()
            for rank, since, until in verbs.away:
                found = [b for b in begun if b[0] == rank and since < b[1] and b[2] < until]
                check_eq(found, [], f"requests that began at worker {rank} while it was to take none")
            note(f"seed {seed}, {command}: {len(begun)} replies; {', '.join(f'{a} {b or str()} {n}' for (a, b), n in sorted(verbs.done.items(), key=str))}")
            for w in verbs.guests:
                w.end()


main()
