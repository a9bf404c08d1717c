"""A client that goes away takes its request with it: in the queue, in a fill, in decode, on both protocols."""

import json
import os
import random
import signal
import socket

from harness import (SMALL, EventReader, Http2, Server, check, check_eq, main, note, shared, test, wait_for)

CHAT = "/v1/chat/completions"
SHORT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
# Long enough that nobody waits for its end; a hang-up is what ends it.
ENDLESS = {**SHORT, "max_tokens": 3000, "ignore_eos": True}
LONG_PROMPT = {"messages": [{"role": "user", "content": "the cat and the dog " * 600}], "max_tokens": 500,
               "ignore_eos": True}


def server():
    """One stream at a time, so that a second request waits; small chunks, so that a fill takes many rounds."""
    return shared("--streams=1", "--chunk=4", "--worker.progress_s=300")


# ---- ways to go away: each begins a request and returns how to end it


def http1(s, body):
    c = s.connect()
    c.send_request("POST", CHAT, body)
    return c


def fin(s, body):
    return http1(s, body).close


def rst(s, body):
    return http1(s, body).reset


def http2_reset(s, body):
    h = Http2(s.port)
    number = h.send_request("POST", CHAT, body)
    return lambda: h.reset_stream(number)


def http2_close(s, body):
    h = Http2(s.port)
    h.send_request("POST", CHAT, body)
    return h.close


WAYS = (fin, rst, http2_reset, http2_close)


def closed_count(s, phase=None):
    labels = {"phase": phase} if phase else {}
    return s.metric("railyard_client_closed_total", **labels)


def generated(s):
    return s.metric("railyard_worker_tokens_total")


def check_free(s):
    """The stream is gone: none runs, none waits, no KV is held, and the next request has all the rounds alone."""
    s.wait_idle()
    wait_for(lambda: s.metric("railyard_worker_kv_blocks_used") == 0, "the KV blocks are free")
    wait_for(lambda: s.metric("railyard_worker_requests_running") == 0, "the worker runs no stream")
    # The worker may still have a request and its cancel on the way; what follows in the same line comes behind them.
    before = generated(s)
    s.chat(**{**ENDLESS, "max_tokens": 16})
    wait_for(lambda: generated(s) >= before + 16 and s.metric("railyard_worker_requests_running") == 0, "all before is told of")
    before = generated(s)
    s.chat(**{**ENDLESS, "max_tokens": 7})
    wait_for(lambda: generated(s) >= before + 7, "the worker reports the tokens of the next request")
    check_eq(generated(s), before + 7, "tokens, of which all are the next request's")


def goes_away(phase, begin, ready):
    """Runs each way, streamed and whole: begin, wait until the request is in the phase, stop the worker so that it stays
    there, end, see that all is free. Where this program slept so long that the phase was over, it begins again."""
    s = server()
    pid = s.wait_worker()["pid"]
    for way in WAYS:
        for stream in (True, False):
            before = closed_count(s, phase)
            for _ in range(50):
                end = begin(s, way, stream)
                wait_for(lambda: ready(s), f"the request is in {phase}", every_s=0.002)
                with s.stopped(pid):
                    end()
                    wait_for(lambda: s.metric("railyard_requests_in_flight") == 0, f"{way.__name__}: the router has let go of it")
                if closed_count(s, phase) > before:
                    break
                s.wait_idle()
            check_eq(closed_count(s, phase), before + 1, f"{way.__name__}: counted as closed in {phase}")
            yield s


@test
def case_01_a_hang_up_in_decode_frees_the_stream():
    tokens = [0]

    def begin(s, way, stream):
        tokens[0] = generated(s)
        return way(s, {**ENDLESS, "stream": stream})

    for s in goes_away("decode", begin, lambda s: generated(s) > tokens[0] + 5):
        check_free(s)


@test
def case_05_a_hang_up_in_the_fill_frees_the_stream():
    for s in goes_away("prefill", lambda s, way, stream: way(s, {**LONG_PROMPT, "stream": stream}),
                       lambda s: s.running_streams() == 1):
        check_free(s)


@test
def case_03_a_hang_up_in_the_queue_frees_its_place_and_never_touches_what_runs():
    s = server()
    long = {**ENDLESS, "max_tokens": 300 if SMALL else 1000}  # runs until its worker has been stopped
    wanted = s.chat(**long)["choices"][0]["token_sha256"]
    s.wait_idle()
    for way in WAYS:
        before = closed_count(s, "queue")
        with s.held(long) as reader:
            end = way(s, ENDLESS)
            wait_for(lambda: s.metric("vllm:num_requests_waiting") == 1, "the request waits")
            end()
            wait_for(lambda: closed_count(s, "queue") == before + 1, f"{way.__name__}: it is counted as closed in the queue")
            wait_for(lambda: s.metric("vllm:num_requests_waiting") == 0, "its place is free")
            check_eq(s.running_streams(), 1, f"{way.__name__}: running streams")
            os.kill(s.wait_worker()["pid"], signal.SIGCONT)
            events = reader.rest()
        check_eq(events[-1], "[DONE]", "end of the running stream")
        check_eq(events[-2]["choices"][0]["token_sha256"], wanted, f"{way.__name__}: hash of the running stream")
        check_free(s)


@test
def case_06_a_hang_up_right_behind_the_request_is_seen():
    s = server()
    for way in WAYS:
        before = closed_count(s)
        way(s, ENDLESS)()
        # HTTP/2 may drop the stream before a request was made of it: then there is nothing to count.
        check_free(s)
        note(f"{way.__name__}: {closed_count(s) - before:.0f} counted")


@test
def case_04_a_client_that_says_no_more_but_still_reads_is_served_when_that_is_set():
    with Server("--api.half_close=on") as s:
        c = http1(s, {**SHORT, "max_tokens": 5})
        c.s.shutdown(socket.SHUT_WR)
        check_eq(c.read_response().status, 200, "status")


@test
def case_04_a_client_that_says_no_more_is_gone_by_default():
    s = server()
    before = closed_count(s)
    with s.stopped(s.wait_worker()["pid"]):
        c = http1(s, ENDLESS)
        wait_for(lambda: s.running_streams() == 1, "it runs")
        c.s.shutdown(socket.SHUT_WR)
        wait_for(lambda: closed_count(s) == before + 1, "it is counted as closed")
    check_free(s)


@test
def an_http2_reset_leaves_the_other_streams_of_its_connection_alone():
    s = shared("--streams=4")
    wanted = s.chat(**{**ENDLESS, "max_tokens": 60})["choices"][0]["token_sha256"]
    with Http2(s.port) as h:
        kept = h.send_request("POST", CHAT, {**ENDLESS, "max_tokens": 60})
        other = h.send_request("POST", CHAT, ENDLESS)
        h.reset_stream(other)
        check_eq(json.loads(h.read_response(kept).body)["choices"][0]["token_sha256"], wanted, "hash of the other stream")
    s.wait_idle()


@test
def case_02_many_hang_ups_at_random_leave_nothing_behind():
    s = shared("--streams=4")
    r = random.Random(2)
    logged = len(s.log_text().splitlines())
    count = 30 if SMALL else 300
    ends = []
    for _ in range(count):
        body = {**(LONG_PROMPT if r.random() < 0.3 else ENDLESS), "stream": r.random() < 0.5, "seed": r.randrange(99)}
        ends.append(r.choice(WAYS)(s, body))
        if len(ends) > r.randint(0, 8):
            ends.pop(r.randrange(len(ends)))()
    for end in ends:
        end()
    check_free(s)
    lines = len(s.log_text().splitlines()) - logged
    note(f"{count} hang-ups, {lines} lines of log")
    check(lines <= count, f"{lines} lines of log for {count} hang-ups")


main()
