"""Workers come and go, in every way they can: the router stays, clients get a clear answer, the next request works."""

import os
import re
import signal
import time

from harness import (SMALL, EventReader, FakeWorker, Server, Worker, alive, check, check_eq, check_in, fd_count, main, note, run_program,
                     strict_json, test, wait_for)

CHAT = "/v1/chat/completions"
SHORT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 8, "ignore_eos": True}
ENDLESS = {**SHORT, "max_tokens": 3000}
LONG = {**SHORT, "max_tokens": 100 if SMALL else 1000}  # lasts until its worker has been stopped
RESTARTS = 12 if SMALL else 500


def begin_stream(s, text="Hi", **more):
    c = s.connect()
    c.send_request("POST", CHAT, {**ENDLESS, "messages": [{"role": "user", "content": text}], "stream": True, **more})
    reader = EventReader(c)
    check(reader.next(), "no first event")
    return reader


def kill_worker(s, rank=0):
    """kill -9; returns the pid it had."""
    pid = s.wait_worker(rank)["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


@test
def what_a_worker_shows_its_router_is_not_in_the_list_of_processes():
    with Server() as s:
        with open(f"/proc/{s.wait_worker()['pid']}/cmdline", encoding="utf-8") as f:
            line = f.read().split("\0")
        check_eq([a for a in line if "token" in a or re.search("[0-9a-f]{16}", a)], [], "arguments that look like a secret")


@test
def case_07_readiness_follows_the_only_worker_and_liveness_does_not():
    with Server() as s:
        pid = kill_worker(s)
        wait_for(lambda: s.get("/readyz").status == 503, "/readyz is 503")
        check_eq(s.get("/livez").status, 200, "/livez")
        wait_for(lambda: s.get("/readyz").status == 200, "/readyz is 200 again")
        check(s.wait_worker()["pid"] != pid, "the same process")


@test
def a_request_that_comes_while_the_worker_is_away_waits_for_it():
    with Server("--route.wait_ready_s=60") as s:
        wanted = s.chat(**SHORT)["choices"][0]["token_sha256"]
        kill_worker(s)
        wait_for(lambda: s.get("/readyz").status == 503, "/readyz is 503")
        check_eq(s.chat(**SHORT)["choices"][0]["token_sha256"], wanted, "hash")


@test
def a_busy_worker_is_never_taken_for_a_hung_one():
    with Server("--worker.progress_s=1", "--chunk=1") as s:
        pid = s.worker()["pid"]
        long = {**SHORT, "messages": [{"role": "user", "content": "cat dog " * (100 if SMALL else 700)}]}
        s.chat(**long)
        check_eq(s.worker()["pid"], pid, "pid")
        check_eq(s.metric("railyard_worker_restarts_total"), 0, "restarts")


@test
def one_of_two_workers_dies_and_the_other_goes_on():
    with Server("--workers=2", "--threads=1") as s:
        s.wait_worker(0)
        s.wait_worker(1)
        check_eq(s.get("/readyz").json()["workers"], {"ready": 2, "wanted": 1, "total": 2}, "workers")
        wanted = s.chat(**SHORT)["choices"][0]["token_sha256"]
        for _ in range(50):  # the first may be over before the second is placed
            readers = [begin_stream(s), begin_stream(s)]
            for r in readers:
                r.c.close()
            s.wait_idle()
            answer = {r.head.header("x-railyard-worker") for r in readers}
            if answer == {"0", "1"}:
                break
        check_eq(answer, {"0", "1"}, "workers that answer")
        pid = kill_worker(s, 1)
        check_eq(s.get("/readyz").status, 200, "/readyz")
        for _ in range(5):
            check_eq(s.chat(**SHORT)["choices"][0]["token_sha256"], wanted, "hash")
        s.wait_worker(1, other_than_pid=pid)


@test
def a_worker_that_dies_again_and_again_stays_down_until_ctl_starts_it():
    with Server("--workers=2", "--threads=1") as s:
        def ctl(*args):
            code, out, err = run_program("ctl", *args, f"--ops=127.0.0.1:{s.ops_port}")
            check_eq(code, 0, f"exit status of ctl {args}: {err}")
            return out

        pid = None
        for _ in range(5):  # with 1, 2, 4 and 8 s between them
            pid = s.wait_worker(1, other_than_pid=pid)["pid"]
            os.kill(pid, signal.SIGKILL)
        reason = s.wait_worker(1, "failed")["reason"]
        check_in("killed by signal 9; 5 failures in ten minutes", reason, "reason")
        wait_for(lambda: "(railyard ctl start 1 does it)" in s.log_text(), "the log says what brings it back")
        check_in("worker 1 stays down until `railyard ctl start 1`\n", ctl("workers"), "workers")
        check_in(" ready ", ctl("start", "1", "--wait"), "start")
        check("stays down" not in ctl("workers"), "workers with all of them ready")


@test
def every_worker_that_is_away_is_named_with_what_the_operator_reads():
    with Server("--workers=3", "--threads=1", "--streams=1", "--ready.workers_min=3", "--route.wait_ready_s=0.1") as s:
        def both_away():
            r, reasons = s.get("/readyz").json(), [w["reason"] for w in s.workers()]
            return "workers 0, 2" in r.get("reason", "") and all("killed by signal 9" in reasons[rank] for rank in (0, 2)) and r

        for _ in range(4):  # each is started again after 1, 2, 4 and 8 s: this program may have slept
            for pid in [s.wait_worker(rank)["pid"] for rank in (0, 2)]:
                os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 1
            while not (r := both_away()) and time.monotonic() < end:
                pass
            if r:
                break
        check(r, "both were never seen down at once")
        check_eq(r["reason"], "1 worker ready, and ready.workers_min is 3; workers 0, 2: killed by signal 9", "/readyz")
        check_eq(r["workers"], {"ready": 1, "wanted": 3, "total": 3}, "workers")


@test
def a_worker_by_hand_that_is_gone_is_none_of_the_total():
    with Server("--workers=3", "--threads=1", command="router", wait_ready=False) as s:
        def total():
            return s.get("/readyz").json()["workers"]["total"]

        check_eq(total(), 0, "before any has come")
        with Worker(s) as first, Worker(s) as second:
            s.wait_worker(0)
            s.wait_worker(1)
            check_eq(total(), 2, "with two")
            second.kill()
            wait_for(lambda: total() == 1, "one that was killed is not counted")
            first.signal(signal.SIGTERM)
            check_eq(first.wait(), 0, "exit status")
            wait_for(lambda: total() == 0, "one that has left is not counted")
        check_eq(len(s.workers()), 2, "the operator still sees them")


@test
def sigterm_of_the_router_ends_its_workers():
    with Server("--workers=2", "--threads=1") as s:
        pids = [s.wait_worker(r)["pid"] for r in (0, 1)]
        s.end()
        check(not any(alive(p) for p in pids), "a worker outlived its router")


@test
def case_37_kill_9_of_the_router_ends_its_workers():
    with Server("--workers=2", "--threads=1") as s:
        pids = [s.wait_worker(r)["pid"] for r in (0, 1)]
        killed = time.monotonic()
        s.kill()
        wait_for(lambda: not any(alive(p) for p in pids), "the workers are gone")
        note(f"two workers were gone {time.monotonic() - killed:.3f} s after kill -9 of their router")


@test
def case_38_sigterm_of_a_worker_lets_its_streams_finish():
    with Server("--drain.timeout_s=3600", command="router", wait_ready=False) as s, Worker(s) as w:
        s.wait_ready()
        wanted = s.chat(**LONG)["choices"][0]["token_sha256"]
        with s.caught(lambda: [begin_stream(s, max_tokens=LONG["max_tokens"]) for _ in range(3)], 3) as readers:
            w.signal(signal.SIGTERM)
        check_eq([hashes_of(r.rest()) for r in readers], [[wanted]] * 3, "hashes")
        check_eq(w.wait(), 0, "exit status of the worker")
        wait_for(lambda: s.get("/readyz").status == 503, "/readyz is 503")


@test
def a_worker_started_by_hand_joins_leaves_and_joins_again():
    with Server(command="router", wait_ready=False) as s:
        hashes = set()
        for _ in range(3):
            with Worker(s) as w:
                s.wait_ready()
                check_eq(s.wait_worker()["pid"], w.pid, "pid")
                check_eq(s.worker()["supervised"], False, "supervised")
                hashes.add(s.chat(**SHORT)["choices"][0]["token_sha256"])
            wait_for(lambda: s.get("/readyz").status == 503, "/readyz is 503")
        check_eq(len(hashes), 1, "different hashes")


@test
def case_40_a_worker_started_by_hand_outlives_its_router_and_joins_the_next():
    with Server(command="router", wait_ready=False) as first, Worker(first) as w:
        first.wait_ready()
        wanted = first.chat(**SHORT)["choices"][0]["token_sha256"]
        first.kill()
        started = time.monotonic()
        with Server(f"--run.dir={first.run_dir}", command="router", wait_ready=False) as second:
            second.wait_ready()
            note(f"the worker served again {time.monotonic() - started:.3f} s after the start of the next router")
            check(w.running(), "the worker ended")
            check_eq(second.wait_worker()["pid"], w.pid, "pid")
            check_eq(second.chat(**SHORT)["choices"][0]["token_sha256"], wanted, "hash")


@test
def a_worker_of_another_model_is_refused_and_named():
    with Server(command="router", wait_ready=False) as s:
        with FakeWorker(s, model="other") as w:
            w.status = w.wait()
            check(w.status != 0, "it ended as if all were well")
            check_in("model", w.log_text() + s.log_text(), "log")
        check_eq(s.get("/readyz").status, 503, "/readyz")
        check_eq(s.get("/livez").status, 200, "/livez")


def hashes_of(events):
    return [e["choices"][0]["token_sha256"] for e in events if e != "[DONE]" and "error" not in e and e["choices"]
            and e["choices"][0]["finish_reason"]]


@test
def hundreds_of_restarts_leave_no_stale_token_and_no_descriptor():
    """A fake worker's ids follow from the prompt: a token of an earlier incarnation's stream would change a reply."""
    rate = "--rate=2000"
    with Server("--route.wait_ready_s=60", command="router", wait_ready=False) as s:
        with FakeWorker(s, rate):
            s.wait_ready()
            wanted = s.chat(**{**SHORT, "max_tokens": 50})["choices"][0]["token_sha256"]
        fds = None
        for n in range(RESTARTS):
            w = FakeWorker(s, rate)
            wait_for(lambda w=w: (s.worker()["pid"], s.worker()["state"]) == (w.pid, "ready"), "this worker is the ready one")
            # Every second one dies in the middle of a stream, so that frames of it are under way; the next goes on with it.
            if n % 2:
                reader = begin_stream(s, f"Question {n}", max_tokens=100)
                w.kill()
                with FakeWorker(s, rate):
                    resumed = hashes_of(reader.rest())
                    reader.c.close()
                    asked = s.chat(**{**SHORT, "messages": [{"role": "user", "content": f"Question {n}"}], "max_tokens": 100})
                check_eq(resumed, [asked["choices"][0]["token_sha256"]], f"hash of the stream over restart {n}")
            else:
                check_eq(s.chat(**{**SHORT, "max_tokens": 50})["choices"][0]["token_sha256"], wanted, f"hash at restart {n}")
            w.end()
            if n == min(10, RESTARTS // 2):
                fds = fd_count(s.pid)
        wait_for(lambda: fd_count(s.pid) <= fds, f"the router has no more than the {fds} descriptors of an early restart")
        note(f"{RESTARTS} restarts, {fd_count(s.pid)} descriptors")
        with Worker(s):
            s.wait_worker()
            r = s.post(CHAT, SHORT)
            check_eq((r.status, strict_json(r.body)["usage"]["completion_tokens"]), (200, 8), "the real worker behind them")


main()
