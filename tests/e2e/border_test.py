"""The border: what any client may send or leave out, by raw sockets. Limits hold, and another client does not notice.

Times are printed, never asserted: what is asserted is that the limit's answer came and that every request of the
bystander was answered.
"""

import contextlib
import ctypes
import json
import os
import re
import resource
import select
import signal
import socket
import ssl
import tempfile
import threading
import time

from harness import (LIBC, LIMIT_S, SMALL, EventReader, Http1, Http2, Response, Server, TlsServer, check, check_eq, check_in, main, make_certificate, note, request_bytes, shared, sse_events,
                     strict_json, test, wait_for)

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
DATA = json.dumps(GOOD).encode()
OK = request_bytes("POST", CHAT, GOOD)


def server():
    return shared()


def ran(s):
    """Generating requests that were answered."""
    return s.metric("vllm:request_success_total")


class Bystander:
    """Another client: asks all the time on a connection of its own; each answer must be 200."""

    def __init__(self, s, path="/v1/models"):
        self.s, self.path = s, path
        self.seconds, self.wrong = [], []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            with self.s.connect() as c:
                while not self.over.is_set():
                    began = time.monotonic()
                    status = c.request("GET", self.path).status
                    self.seconds.append(time.monotonic() - began)
                    if status != 200:
                        self.wrong.append(status)
                    self.over.wait(0.01)
        except Exception as e:  # told by the main thread
            self.wrong.append(repr(e))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def report(self, what):
        check_eq(self.wrong, [], f"{what}: answers of the bystander that are not 200")
        check(self.seconds, "the bystander was never answered")
        t = sorted(self.seconds)
        note(f"{what}: bystander asked {len(t)} times, p50 {1e3 * t[len(t) // 2]:.2f} ms, p99 {1e3 * t[int(len(t) * .99)]:.2f} ms")


@contextlib.contextmanager
def bystander(s, what):
    with Bystander(s) as alone:
        wait_for(lambda: len(alone.seconds) >= 30 or alone.wrong, "the bystander alone")
    alone.report(f"{what}, before")
    with Bystander(s) as b:
        yield b
        had = len(b.seconds)
        wait_for(lambda: len(b.seconds) > had + 5 or b.wrong, "the bystander is answered at the end too")
    b.report(what)


# ---- framing: what two readers could understand differently

SMUGGLED = request_bytes("POST", CHAT, {**GOOD, "user": "smuggled"})


def framed(body, *fields):
    return request_bytes("POST", CHAT, body, fields)


BAD_FRAMING = {
    "length and chunked": framed(b"0\r\n\r\n", ("Content-Length", str(len(DATA))), ("Transfer-Encoding", "chunked")),
    "chunked and length": framed(b"0\r\n\r\n", ("Transfer-Encoding", "chunked"), ("Content-Length", "5")),
    "two lengths": framed(DATA, ("Content-Length", str(len(DATA))), ("Content-Length", str(len(DATA) + len(SMUGGLED)))),
    "two lengths, the first none": framed(b"", ("Content-Length", "0"), ("Content-Length", str(len(SMUGGLED)))),
    "a list of lengths": framed(DATA, ("Content-Length", f"{len(DATA)}, {len(DATA) + 7}")),
    "a length with a sign": framed(DATA, ("Content-Length", f"+{len(DATA)}")),
    "a length in hex": framed(DATA, ("Content-Length", f"0x{len(DATA):x}")),
    "another coding": framed(DATA, ("Transfer-Encoding", "identity"), ("Content-Length", str(len(DATA)))),
    "two codings": framed(b"0\r\n\r\n", ("Transfer-Encoding", "gzip, chunked")),
    "chunked twice": framed(b"0\r\n\r\n", ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")),
    "a folded field": b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\nX: b\r\n Content-Length: 7\r\nContent-Length: 0\r\n\r\n",
    "a space before the colon": b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Length : 7\r\n\r\n",
    "two hosts": b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
}


def first(c):
    del c


def second(c):
    check_eq(c.request("POST", CHAT, GOOD).status, 200, "the request before")


def behind_a_continue(c):
    c.method = "POST"
    c.send(request_bytes("POST", CHAT, b"", [("Content-Length", str(len(DATA))), ("Expect", "100-continue")]))
    check_in("100", c.read_line(), "interim response")
    check_eq(c.read_line(), "", "its end")
    c.send(DATA)
    check_eq(c.read_response().status, 200, "the request before")


@test
def case_43_a_doubtful_framing_is_400_on_every_request_of_a_connection():
    s = server()
    for place in (first, second, behind_a_continue):
        for what, data in BAD_FRAMING.items():
            with s.connect() as c:
                place(c)
                before = ran(s)
                c.method = "POST"
                c.send(data + SMUGGLED)
                check_eq(c.read_response().status, 400, f"{what}, {place.__name__}")
                check_eq(c.closed(), b"", f"{what}, {place.__name__}: bytes behind the answer")
            check_eq(ran(s), before, f"{what}, {place.__name__}: requests that ran")


@test
def case_43_it_is_400_in_a_pipeline_too_and_the_bytes_behind_never_run():
    s = server()
    for what, data in BAD_FRAMING.items():
        before = ran(s)
        with s.connect() as c:
            c.method = "POST"
            c.send(OK + data + SMUGGLED)
            check_eq([c.read_response().status for _ in range(2)], [200, 400], what)
            check_eq(c.closed(), b"", f"{what}: bytes behind the answer")
        check_eq(ran(s), before + 1, f"{what}: requests that ran")


@test
def a_bad_chunk_ends_the_connection_and_the_bytes_behind_never_run():
    s = server()
    head = request_bytes("POST", CHAT, b"", [("Transfer-Encoding", "chunked")])
    for chunks in (b"5\r\nabcde0\r\n\r\n", b"-5\r\nabcde\r\n0\r\n\r\n", b"5;x\nabcde", b"ffffffffffffffff1\r\nabcde", b"0x5\r\nabcde\r\n0\r\n\r\n",
                   b"g\r\nabcde\r\n0\r\n\r\n"):
        before = ran(s)
        with s.connect() as c:
            c.send(head + chunks + SMUGGLED)
            c.s.shutdown(socket.SHUT_WR)
            text = c.closed()
            check(b"HTTP/1.1 200" not in text, lambda chunks=chunks, text=text: f"{chunks!r} was answered {text[:200]!r}")
        check_eq(ran(s), before, f"{chunks!r}: requests that ran")
    check_eq(s.post(CHAT, GOOD).status, 200, "the next request")


@test
def case_43_an_upgrade_to_http2_hides_no_framing():
    s = server()
    upgrade = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAP__")]
    for body, fields in ((DATA, [("Content-Length", str(len(DATA))), ("Content-Length", "7")]),
                         (b"0\r\n\r\n", [("Content-Length", "7"), ("Transfer-Encoding", "chunked")]),
                         (b"", [("Content-Length", "0"), ("Content-Length", str(len(SMUGGLED)))])):
        before = ran(s)
        with s.connect() as c:
            c.send(request_bytes("POST", CHAT, body, upgrade + fields) + SMUGGLED)
            c.s.shutdown(socket.SHUT_WR)
            c.closed()
        check_eq(ran(s), before, f"{fields}: requests that ran")


# ---- targets


@test
def a_target_in_absolute_form_is_the_path_in_it():
    s = server()
    for target, status in (("http://localhost/livez", 200), ("HTTP://other.example:80/v1/models?x=1", 200), ("https://a/livez", 200),
                           ("http://localhost", 404), ("http://localhost?x", 404), ("http:///livez", 404), ("ftp://a/livez", 404),
                           ("http://localhost/nowhere", 404), ("http://localhost//livez", 404)):
        check_eq(s.get(target).status, status, target)
    with s.connect() as c:
        check_eq(c.request("POST", "http://localhost" + CHAT, GOOD).status, 200, "POST")
    r = s.get("http://localhost/v1/models/demo?x=1")
    check_eq((r.status, r.json()["id"]), (200, "demo"), "a path with a rest")


@test
def options_asterisk_is_about_the_server():
    s = server()
    for target in ("*", "http://localhost"):
        r = s.get(target, method="OPTIONS")
        check_eq((r.status, r.body), (200, b""), target)
        check_in("POST", r.header("allow"), "allow")
    check_eq(s.get("*").status, 404, "GET *")


# ---- sizes


@test
def case_45_a_head_of_a_megabyte_is_refused_and_costs_nobody():
    s = server()
    with bystander(s, "1 MB heads"):
        for data in (b"GET /livez HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (1 << 20), b"GET /" + b"x" * (1 << 20),
                     b"GET /livez HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200_000):
            for _ in range(3):
                with s.connect() as c:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        c.send(data)
                        c.send(b"\r\n\r\n")
                    text = c.closed()
                    check(b" 200 " not in text[:20], lambda text=text: text[:200])


@test
def case_45_each_limit_of_a_head_has_its_status():
    with Server("--api.head_bytes_max=2KiB", "--api.uri_bytes_max=256", "--api.head_fields_max=20", command="router", wait_ready=False) as s:
        for path, headers, status, code in (("/livez", [("X", "x" * 3000)], 431, "headers_too_large"), ("/livez?" + "x" * 300, [], 414, "uri_too_long"),
                                            ("/livez", [(f"X-{i}", "x") for i in range(30)], 431, "headers_too_large")):
            with s.connect() as c:
                r = c.request("GET", path, headers=headers)
                check_eq((r.status, r.json()["error"]["code"]), (status, code), headers[:1])
            with Http2(s.port) as h:
                r = h.request("GET", path, headers=[(k.lower(), v) for k, v in headers])
                check_eq((r.status, strict_json(r.body)["error"]["code"]), (status, code), "HTTP/2")
        check_eq(s.get("/livez?" + "x" * 200).status, 200, "under the limits")


def h2_frame(kind, flags, number, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + payload


def h2_head(c, number, fields, more=b"", flags=4):
    """The frames of a POST's head, packed by c's tables, with `more` of it behind."""
    block = c.h.encoder.encode([(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", CHAT), *fields]) + more
    cuts = [block[i:i + 16384] for i in range(0, len(block), 16384)]
    kinds = [1] + [9] * (len(cuts) - 1)
    last = len(cuts) - 1
    return b"".join(h2_frame(kind, flags if i == last else 0, number, cut) for i, (kind, cut) in enumerate(zip(kinds, cuts)))


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"RssAnon:\s+(\d+)", f.read()).group(1)) << 10


@test
def case_45_over_http2_a_head_that_unpacks_into_a_hundredfold_is_not_unpacked():
    """A byte of a packed head may be a field. h2o takes 400,000 of them a head and keeps them while the body is coming: 40 MB."""
    s = server()
    before = anonymous_bytes(s.pid)
    with bystander(s, "heads of 400,000 fields"):
        for _ in range(10):
            with Http2(s.port) as c, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for number in range(1, 41, 2):
                    c.s.sendall(h2_head(c, number, [], b"\x90" * 400_000))
                while c.pump():
                    pass
        # As many fields as are taken, though not served, on as many streams as there may be, and no body.
        with Http2(s.port) as c:
            for number in range(1, 200, 2):
                c.s.sendall(h2_head(c, number, [], b"\x90" * 390))
            c.s.sendall(h2_frame(6, 0, 0, bytes(8)))
            c.pump()
            check(not c.gone, "the connection of heads that are not far beyond the limits has ended")
            grown = anonymous_bytes(s.pid) - before
            note(f"{grown / 2**20:.1f} MiB more")
            check(SMALL or grown < 100 << 20, f"{grown} bytes more")
    check_in(" head ", s.log_text(), "the log names it")


@contextlib.contextmanager
def unread(s, path, total):
    """Connections on which replies of so many bytes were asked for that none of them has a window for."""
    whole = len(s.get(path).body)
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)]
    with contextlib.ExitStack() as open_ones:
        asking = [open_ones.enter_context(Http2(s.port)) for _ in range(total // whole // 100)]
        for c in asking:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                c.h.update_settings({4: 0})  # the window that a stream begins with
                c.flush()
                c.s.sendall(b"".join(h2_frame(1, 5, 2 * k + 1, c.h.encoder.encode(fields)) for k in range(100)))
        note(f"{path}: {100 * len(asking)} replies of {whole} bytes")
        yield asking


def closed_count(clients):
    count = 0
    for c in clients:
        c.s.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            try:
                while c.s.recv(65536):
                    pass
                count += 1
            except ConnectionResetError:
                count += 1
    return count


@test
def replies_that_nobody_reads_are_bounded_whoever_asks_for_them():
    """Ten bytes ask for a hundred thousand: a few hundred streams whose windows are shut would keep gigabytes for a minute."""
    s = server()
    before = anonymous_bytes(s.pid)
    with bystander(s, "replies that nobody reads"):
        with unread(s, "/openapi.json", 1 << 30) as clients:
            check_eq(s.get("/livez").status, 200, "status")  # behind all of them
            grown = anonymous_bytes(s.pid) - before
            note(f"{grown / 2**20:.0f} MiB more")
            check(SMALL or grown < 300 << 20, f"what never changes was copied: {grown} bytes more")
            check_eq(closed_count(clients), 0, "connections closed, of replies that take no memory")
        with unread(s, "/metrics", (1 << 29) + (1 << 27)) as clients:
            wait_for(lambda: closed_count(clients), "the connections of the oldest are closed")
            wait_for(lambda: anonymous_bytes(s.pid) - before < 900 << 20, "the memory is bounded")
            note(f"{(anonymous_bytes(s.pid) - before) / 2**20:.0f} MiB more, {closed_count(clients)} of {len(clients)} closed")


@test
def over_http2_the_rest_of_a_head_that_comes_after_the_goaway_stops_nobody():
    """h2o by itself, having said GOAWAY, looks at a CONTINUATION for ever, and at nothing else."""
    with Server("--drain.settle_s=0") as s:
        with Http2(s.port) as half, s.connect() as other:
            stream = {**GOOD, "max_tokens": 3000, "ignore_eos": True, "stream": True}
            live = half.send_request("POST", CHAT, stream)  # keeps its connection
            while not half.streams[live].body:
                half.pump()
            half.s.sendall(h2_head(half, live + 2, [], b"\x82", flags=0))
            other.send_request("POST", CHAT, stream)
            reader = EventReader(other)
            reader.next()
            with s.stopped(s.wait_worker()["pid"]):
                s.signal(signal.SIGTERM)
                goaways = data = b""
                while goaways.count(b"\x07\x00\x00\x00\x00\x00") < 2:  # h2o says it twice, a second apart
                    data = half.s.recv(65536)
                    check(data, "closed before the second GOAWAY")
                    goaways += data
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    half.s.sendall(h2_frame(9, 4, live + 2, b"\x82"))
                    while half.s.recv(65536):
                        pass
            check_eq(reader.rest()[-1], "[DONE]", "the stream beside it")
        check_eq(s.wait(), 0, "exit status")


@test
def a_body_that_goes_on_and_on_is_413():
    with Server("--api.body_bytes_max=64KiB") as s:
        with s.connect() as c:
            c.method = "POST"
            # Behind a request that is answered first, and in front of bytes that nobody reads.
            name, asked = [("X-Request-Id", "announced"), ("Origin", "https://a.example")], [("Expect", "100-continue"), ("Upgrade", "h2c")]
            c.send(request_bytes("GET", "/livez") + request_bytes("POST", CHAT, b"", [("Content-Length", "1000000"), *name, *asked]) + b"{" * 100)
            check_eq(c.read_response().status, 200, "what is in front of it")
            r = c.read_response()
            check_eq((r.status, r.header("content-type"), r.header("connection"), r.header("x-request-id")),
                     (413, "application/json", "close", "announced"), "announced")
            check_eq(r.json()["error"]["code"], "body_too_large", "code")
            check_in("at most 65536 bytes, got 1000000", r.json()["error"]["message"], "message")
        with s.connect() as c:
            c.method = "POST"
            c.send(request_bytes("POST", CHAT, b"", [("Transfer-Encoding", "chunked")]))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(100_000):
                    c.send(b"1000\r\n" + b" " * 4096 + b"\r\n")
            text = c.closed()
            check(not text or b" 413 " in text[:20], lambda: text[:200])
        body = b" " * (64 << 10) + DATA
        r = s.post(CHAT, body)
        check_eq((r.status, r.json()["error"]["code"]), (413, "body_too_large"), "just over it")
        check_eq(s.post(CHAT, GOOD).status, 200, "the next request")
        lines = [line for line in s.access_lines() if line["code"] == "body_too_large"]
        check_eq([(line["method"], line["endpoint"], line["status"]) for line in lines], [("POST", "chat_completions", 413)] * 2, "lines in the log")
        check_eq(lines[0]["client_request_id"], "announced", "the first")


def h2_post(c, length=None):
    """Begins a POST over HTTP/2 whose body is still to come; returns the stream's number."""
    number = c.h.get_next_available_stream_id()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", CHAT), ("content-type", "application/json")]
    r = c.streams[number] = Response(0, [], b"", "HTTP/2")
    r.done = r.was_reset = False
    c.h.send_headers(number, fields + ([] if length is None else [("content-length", str(length))]))
    c.flush()
    return number


def h2_fill(c, number, bytes_max, ended=lambda r: r.status or r.done, frame_max=16384):
    """Sends body until there is an answer, or what ended says of it; returns the bytes sent."""
    sent = 0
    r = c.streams[number]
    while not ended(r) and sent < bytes_max:
        room = min(c.h.local_flow_control_window(number), frame_max, bytes_max - sent)
        if room:
            c.h.send_data(number, b" " * room)
            c.flush()
            sent += room
        if not room or select.select([c.s], [], [], 0)[0]:
            c.pump()
    return sent


@test
def over_http2_a_body_over_its_limit_is_413_on_its_stream_alone():
    limit = 64 << 10
    with Server(f"--api.body_bytes_max={limit}") as s:
        with Http2(s.port) as c:
            for what, length, filled in (("counted", None, 64 << 20), ("announced", 1 << 30, 100), ("both", 1 << 20, 1 << 20)):
                number = h2_post(c, length)
                h2_fill(c, number, filled)
                r = c.read_response(number)  # at its first end: a reset behind it says no more than that nobody reads on
                check_eq((r.status, r.json()["error"]["code"]), (413, "body_too_large"), what)
                check_in(str(limit), r.json()["error"]["message"], what)
                check_eq(c.request("POST", CHAT, GOOD).status, 200, f"{what}: the next request of the connection")
            r = c.request("POST", CHAT, b" " * (limit + 1) + DATA)
            check_eq((r.status, r.json()["error"]["code"]), (413, "body_too_large"), "just over it")
            check_eq(c.request("POST", CHAT, b" " * (limit - len(DATA)) + DATA).status, 200, "as large as it may be")
        lines = [line for line in s.access_lines() if line["status"] == 413]
        check_eq([(line["proto"], line["code"], line["endpoint"]) for line in lines], [("h2", "body_too_large", "chat_completions")] * 4,
                 "lines in the log")
        check_eq(s.metric("railyard_errors_total", code="body_too_large"), 4, "errors")
        check_eq(s.metric("railyard_http_requests_total", status="413"), 4, "requests")


def tls_flags():
    """Flags of a server over TLS, and what makes the context of its client, of one protocol."""
    folder = tempfile.mkdtemp(prefix="ry-")
    cert, key = make_certificate(folder, "localhost")

    def context(protocol):
        made = ssl.create_default_context(cafile=cert)
        made.set_alpn_protocols([protocol])
        return made

    return [f"--api.tls_cert={cert}", f"--api.tls_key={key}"], context


@test
def over_http2_bodies_over_the_limit_never_end_the_replies_beside_them():
    """Announced and counted, in large and small frames, one and many: a sweep that answers some of them must take none of its
    own answers for a reply that nobody has read for an age, and cut the connection."""
    flags, context = tls_flags()
    stream = {**GOOD, "max_tokens": 200, "ignore_eos": True, "stream": True}
    for tls, more in ((None, []), (context("h2"), flags)):
        with (TlsServer if tls else Server)("--api.body_bytes_max=64KiB", *more) as s:
            for k, (count, length, frame) in enumerate(((90, 1 << 20, 0), (1, 1 << 20, 16384), (8, None, 16384), (4, None, 300), (90, 1 << 20, 0))):
                with Http2(s.port, tls=tls) as c:
                    live = c.send_request("POST", CHAT, stream)
                    numbers = [h2_post(c, length) for _ in range(count)]
                    for number in numbers:
                        h2_fill(c, number, (1 << 20) if frame else 1, frame_max=frame or 1)
                    what = (k, count, length, frame, bool(tls))
                    for number in numbers:
                        r = c.read_response(number)
                        check_eq((r.status, r.json()["error"]["code"]), (413, "body_too_large"), what)
                    r = c.read_response(live)
                    check_eq((r.status, r.was_reset), (200, False), what)
                    check(r.body.endswith(b"data: [DONE]\n\n"), what)


@test
def over_http2_a_length_that_is_not_the_bodys_costs_its_stream_alone():
    """What h2o will not have of a head ends the connection, but with a GOAWAY that names the error (docs/http.md)."""
    s = server()
    stream = {**GOOD, "max_tokens": 100, "ignore_eos": True, "stream": True}

    def post(c, length, body, path=CHAT):
        number = c.h.get_next_available_stream_id()
        r = c.streams[number] = Response(0, [], b"", "HTTP/2")
        r.done = r.was_reset = False
        fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path), ("content-type", "application/json")]
        c.h.send_headers(number, fields + [("content-length", length)], end_stream=not body)
        if body:
            c.h.send_data(number, body, end_stream=True)
        c.flush()
        return number

    with Http2(s.port) as c:
        live = c.send_request("POST", CHAT, stream)
        for length in ("0", str(len(DATA) - 1), str(len(DATA) + 1), "1000000"):
            r = c.read_response(post(c, length, DATA))
            check_eq((r.status, r.was_reset, r.reset_code), (0, True, 1), length)
        r = c.read_response(post(c, "5", b""))
        check_eq((r.status, r.json()["error"]["message"]), (400, "content-length says 5, and the body had 0 bytes"), "no body at all")
        check_eq(c.read_response(post(c, str(len(DATA)), DATA)).status, 200, "the right length")
        check_eq(c.read_response(live).status, 200, "the reply beside them")
    for length in ("x", "-1", "", "99999999999999999999", "5, 5"):
        with Http2(s.port) as c:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                post(c, length, DATA)
                while not c.gone:
                    c.pump()
        check_eq(s.post(CHAT, GOOD).status, 200, "the next connection")


@test
def over_tls_bytes_that_fill_a_read_exactly_are_no_failed_read():
    """Behind a read that was full to the last byte comes one more, which finds nothing yet: the packaged h2o takes that for the
    end of the connection. The sizes meet every cipher's overhead and the 8 KiB of its buffer, once and twice."""
    flags, context = tls_flags()
    data = request_bytes("POST", CHAT, b" " * 20000 + DATA)
    with TlsServer(*flags) as s:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            tls = context("http/1.1")
            tls.minimum_version = tls.maximum_version = version
            with Http1(s.port, tls=tls) as c:
                c.method = "POST"
                for size in (*range(8155, 8175), *range(16347, 16367)):
                    c.send(data[:size])  # one record
                    time.sleep(0.005)  # it is read, and what follows is not there
                    c.send(data[size:])
                    check_eq(c.read_response().status, 200, (version, size))
        with Http2(s.port, tls=context("h2")) as c:
            live = c.send_request("POST", CHAT, {**GOOD, "max_tokens": 100, "ignore_eos": True, "stream": True})
            for size in range(8155, 8175):
                number = h2_post(c)
                c.h.send_data(number, b" " * (size - 9))
                c.flush()
                time.sleep(0.005)
                c.h.send_data(number, DATA, end_stream=True)
                c.flush()
                check_eq(c.read_response(number).status, 200, ("HTTP/2", size))
            check_eq(c.read_response(live).status, 200, "the reply beside them")


@test
def over_http2_who_goes_on_sending_behind_the_413_still_gets_it():
    """All of the body and only then a look at the answer: h2o by itself resets the stream, or lets its window run dry."""
    with Server("--api.body_bytes_max=64KiB", command="router", wait_ready=False) as s:
        with Http2(s.port) as c:
            for k in range(3):
                r = c.request("POST", CHAT, b" " * (3 << 20))
                check_eq((r.status, r.json()["error"]["code"], r.was_reset), (413, "body_too_large", False), k)
            check_eq(c.request("GET", "/livez").status, 200, "the next request of the connection")
        with Http2(s.port) as c:
            number = h2_post(c)
            r = c.streams[number]
            sent = h2_fill(c, number, 128 << 20, lambda r: r.was_reset)
            check_eq((r.status, r.json()["error"]["code"], r.was_reset), (413, "body_too_large", True), "one that never ends")
            check_eq(r.reset_code, 0, "its reset says no error")
            check(sent > 32 << 20, lambda: f"it was reset after {sent} bytes")
            check_eq(c.request("GET", "/livez").status, 200, "the next request of that connection")


@test
def a_body_beyond_the_buffer_limit_is_kept_in_a_file_that_nobody_else_sees():
    folder = tempfile.mkdtemp(prefix="ry-")
    os.environ["TMPDIR"] = folder
    try:
        s = Server("--api.body_bytes_max=96MiB")
    finally:
        del os.environ["TMPDIR"]
    with s:
        def spilled():
            links = [os.readlink(f"/proc/{s.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{s.pid}/fd") if os.path.exists(f"/proc/{s.pid}/fd/{fd}")
                     or os.path.islink(f"/proc/{s.pid}/fd/{fd}")]
            return [x for x in links if folder in x]
        count = 40 << 20
        with s.connect() as c:
            c.method = "POST"
            c.send(request_bytes("POST", CHAT, b"", [("Content-Length", str(count + 1))]))
            for _ in range(count >> 20):
                c.send(b" " * (1 << 20))
            wait_for(spilled, "the body is in a file")
            check_in("railyard-body", spilled()[0], "its name")
            check_eq(os.listdir(folder), [], "names in the folder")
            c.send(b"x")
            r = c.read_response()
            check_eq((r.status, r.json()["error"]["code"]), (400, "invalid_json"), "answer")
        wait_for(lambda: not spilled(), "the file is given back")
    os.rmdir(folder)


# ---- time


def short_times():
    return shared("--api.header_s=0.6", "--api.body_s=1.2", "--api.keepalive_s=1.5", "--api.body_rate_after_s=0.4", "--api.write_stall_s=1")


def trickle(c, data, over):
    """Byte by byte, until the peer has had enough."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for i in range(len(data)):
            c.send(data[i:i + 1])
            if over.wait(0.05):
                return


@contextlib.contextmanager
def trickling(connections, data):
    over = threading.Event()
    threads = [threading.Thread(target=trickle, args=(c, data, over)) for c in connections]
    for t in threads:
        t.start()
    try:
        yield
    finally:
        over.set()
        for t in threads:
            t.join()


@test
def case_44_slow_heads_are_cut_and_nobody_notices():
    s = short_times()
    count = 20 if SMALL else 200
    with bystander(s, f"{count} slow heads"), contextlib.ExitStack() as stack:
        slow = []
        for _ in range(count):  # at once: the time of the first begins with its connection
            slow.append(stack.enter_context(s.connect()))
            slow[-1].send(b"GET /livez HTTP/1.1\r\nHost: a\r\nX-Long: ")
        with trickling(slow[:4], b"x" * 2000):
            for c in slow:
                check_eq(c.closed(), b"", "answer")


@test
def case_44_slow_bodies_are_408_and_nobody_notices():
    s = short_times()
    count = 20 if SMALL else 200
    head = request_bytes("POST", CHAT, b"", [("Content-Length", "3000")])
    with bystander(s, f"{count} slow bodies"), contextlib.ExitStack() as stack:
        slow = []
        for _ in range(count):
            slow.append(stack.enter_context(s.connect()))
            slow[-1].method = "POST"
            slow[-1].send(head)
        with trickling(slow[:4], b" " * 3000):
            for c in slow:
                r = c.read_response()
                check_eq((r.status, r.json()["error"]["code"]), (408, "body_timeout"), "answer")
                check(r.json()["request_id"], "no request id")


@test
def case_44_a_body_that_is_fast_enough_but_never_ends_is_408():
    s = short_times()
    with s.connect() as c:
        c.method = "POST"
        c.send(request_bytes("POST", CHAT, b"", [("Content-Length", "30000000")]))
        over = threading.Event()

        def push():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while not over.wait(0.02):
                    c.s.sendall(b" " * 500)
        t = threading.Thread(target=push)
        t.start()
        try:
            text = c.closed()
        finally:
            over.set()
            t.join()
        check(not text or b" 408 " in text[:20], lambda: text[:200])


@test
def case_44_over_http2_a_slow_body_is_cut_unless_others_use_the_connection():
    s = short_times()
    with Http2(s.port) as h:
        number = h.h.get_next_available_stream_id()
        h.h.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", CHAT)])
        h.h.send_data(number, b"{")
        h.flush()
        while h.pump():
            pass
        check(h.gone, "the connection goes on")
    with shared("--api.body_s=0.5", "--api.body_rate_after_s=0.3", "--streams=1").connect() as _:
        s = shared("--api.body_s=0.5", "--api.body_rate_after_s=0.3", "--streams=1")
    with Http2(s.port) as h:
        pid = s.wait_worker()["pid"]
        with s.stopped(pid):
            running = h.send_request("POST", CHAT, GOOD)
            wait_for(lambda: s.running_streams() == 1, "it runs")
            number = h.h.get_next_available_stream_id()
            h.h.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", CHAT)])
            h.h.send_data(number, b"{")
            h.flush()
            time.sleep(1.5)  # past both limits: what must not happen has had its time
        check_eq(h.read_response(running).status, 200, "the other stream")


@test
def case_46_an_idle_connection_is_closed_by_the_servers_time_alone():
    s = short_times()
    with s.connect() as never, s.connect() as used:
        check_eq(used.request("GET", "/livez").status, 200, "status")
        check_eq(never.closed(), b"", "answer to nothing")
        check_eq(used.closed(), b"", "behind the reply")


@test
def ten_thousand_idle_connections_harm_nobody():
    count = 500 if SMALL else 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(count, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 500), hard))
    with Server() as s, contextlib.ExitStack() as stack:
        before = s.metric("railyard_process_resident_bytes")
        with bystander(s, f"{count} idle connections"):
            for i in range(count):
                c = stack.enter_context(socket.create_connection(("127.0.0.1", s.port), timeout=LIMIT_S))
                if i % 2:
                    c.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            wait_for(lambda: sum(s.metrics(s.ops_port)["railyard_http_connections"].values()) >= count, "all are connected")
        grown = s.metric("railyard_process_resident_bytes") - before
        note(f"{count} idle connections: {grown / count / 1024:.1f} KiB each")
        check_eq(s.chat(**GOOD)["object"], "chat.completion", "a reply beside them")
        stack.close()
        wait_for(lambda: sum(s.metrics(s.ops_port)["railyard_http_connections"].values()) <= 2, "all are gone")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- how many, how much


@test
def past_connections_max_accepting_pauses_and_then_says_503():
    with Server("--api.connections_max=5", "--api.keepalive_s=60") as s:
        held = [s.connect() for _ in range(5)]
        for c in held:
            check_eq(c.request("GET", "/livez").status, 200, "status")
        with s.connect() as c:
            r = c.request("GET", "/livez")
            check_eq((r.status, r.json()["error"]["code"], r.header("retry-after")), (503, "overloaded", "1"), "the sixth")
            check_eq(c.closed(), b"", "behind it")
        waits = s.connect()
        waits.send_request("GET", "/livez")
        held.pop().close()
        check(waits.read_response().status in (200, 503), "the one that waited")
        wait_for(lambda: s.get("/livez", s.ops_port).status == 200, "the ops listener has room of its own")
        for c in held:
            check_eq(c.request("GET", "/livez").status, 200, "those inside")
            c.close()
        wait_for(lambda: s.up("/livez") == 200, "there is room again")


@test
def bodies_of_all_connections_together_have_a_bound():
    piece = b" " * (64 << 10)
    with Server("--api.bodies_bytes_max=1MiB") as s, contextlib.ExitStack() as stack:
        conns = []
        for _ in range(30):
            c = stack.enter_context(s.connect())
            c.method = "POST"
            conns.append(c)
            c.send(request_bytes("POST", CHAT, b"", [("Content-Length", str(len(piece) + len(DATA)))]) + piece)
            time.sleep(0.005)
        wait_for(lambda: s.metric("railyard_errors_total", code="overloaded") >= 10, "the newest are refused")
        statuses = []
        for c in conns:
            try:
                c.send(DATA)
                r = c.read_response()
                statuses.append(r.status)
                if r.status == 503:
                    check_eq((r.json()["error"]["code"], r.header("retry-after")), ("overloaded", "1"), "answer")
            except (BrokenPipeError, ConnectionResetError, EOFError):
                statuses.append(503)  # refused; the answer was lost in what we were sending
        check_eq(set(statuses), {200, 503}, "statuses")
        check_eq(statuses[:4], [200] * 4, "the oldest are served")
        note(f"{statuses.count(200)} of 30 bodies of 64 KiB were served under a bound of 1 MiB")
        check_eq(s.post(CHAT, GOOD).status, 200, "the next request")


@test
def http2_bodies_count_too():
    with Server("--api.bodies_bytes_max=256KiB") as s:
        with Http2(s.port) as h:
            for _ in range(20):
                number = h.h.get_next_available_stream_id()
                h.h.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", CHAT)])
                for _ in range(2):
                    if h.h.local_flow_control_window(number) >= 16384:
                        h.h.send_data(number, b" " * 16384)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    h.flush()
            with contextlib.suppress(ConnectionResetError):
                while h.pump():
                    pass
        check_eq(s.post(CHAT, GOOD).status, 200, "the next request")


@test
def rapid_resets_cost_the_client_its_connection_and_nobody_else():
    s = shared("--api.h2_resets_max=50")
    s.wait_idle()
    closed = s.metric("railyard_client_closed_total")
    with bystander(s, "rapid resets"):
        with Http2(s.port) as h:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(500):
                    number = h.h.get_next_available_stream_id()
                    h.h.send_headers(number, [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", CHAT),
                                              ("content-type", "application/json")])
                    h.h.send_data(number, DATA, end_stream=True)
                    h.h.reset_stream(number, error_code=8)
                    h.flush()
                while h.pump():
                    pass
    s.wait_idle()
    note(f"{s.metric('railyard_client_closed_total') - closed:.0f} of 500 reset requests reached a handler")
    check_in(" resets ", s.log_text(), "the log names it")


# ---- slow readers


@test
def a_client_that_does_not_read_is_held_back_alone_and_cut_in_the_end():
    s = short_times()
    endless = {**GOOD, "max_tokens": 3000, "ignore_eos": True, "stream": True, "temperature": 0}
    with s.connect() as probe:
        check_eq(probe.request("POST", CHAT, {**GOOD, "stream": True}).status, 200, "a stream")
    lost = s.metric("railyard_client_closed_total")
    slow = []
    for _ in range(4):
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        c.sendall(request_bytes("POST", CHAT, endless))
        slow.append(c)
    with bystander(s, "4 clients that do not read"):
        wanted = s.chat(**{**endless, "stream": False, "max_tokens": 100})["choices"][0]["token_sha256"]
        chunks = s.stream(**{**endless, "max_tokens": 100})
        check_eq(chunks[-1]["choices"][0]["token_sha256"], wanted, "hash of one that reads")
        wait_for(lambda: s.metric("railyard_client_closed_total") >= lost + 4, "they are cut")
    for c in slow:
        c.close()
    s.wait_idle()
    lines = [x for x in s.access_lines() if x["status"] == 499]
    check(len(lines) >= 4 and all(x["code"] == "client_closed" for x in lines), "499 in the log")


@test
def case_32_33_a_silent_worker_costs_a_stream_comments_and_no_more():
    s = shared("--stream.keepalive_s=0.2", "--stream.first_byte_s=0.1", "--worker.progress_s=300", "--streams=1")
    body = {**GOOD, "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    wanted = s.chat(**body)["choices"][0]["token_sha256"]
    pid = s.wait_worker()["pid"]
    with s.connect() as c:
        with s.stopped(pid):
            c.send_request("POST", CHAT, {**body, "stream": True})
            head = c.read_head()
            check_eq((head.status, head.header("content-type")), (200, "text/event-stream; charset=utf-8"), "head")
            pieces = c.body_pieces(head)
            text = b""
            while text.count(b": keepalive\n\n") < 3:
                text += next(pieces)
        text += b"".join(pieces)
    events = [x for x in text.decode().split("\n\n") if x.startswith("data: ")]
    check_eq(events[-1], "data: [DONE]", "the end")
    check_eq(json.loads(events[-2][6:])["choices"][0]["token_sha256"], wanted, "hash")


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207


@contextlib.contextmanager
def one_thread_stopped(tid):
    """As a debugger stops it: the other threads of its process run on."""
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    check_eq((LIBC.ptrace(PTRACE_SEIZE, tid, None, None), LIBC.ptrace(PTRACE_INTERRUPT, tid, None, None)), (0, 0), "ptrace")
    os.waitpid(tid, 0x40000000)  # __WALL: it has stopped
    try:
        yield
    finally:
        LIBC.ptrace(PTRACE_DETACH, tid, None, None)


@test
def case_10_with_the_request_loop_stopped_the_ops_listener_says_so_and_still_answers():
    with Server("--ops.loop_stall_s=0.5") as s:
        check_eq(s.get("/livez", s.ops_port).status, 200, "before")
        with one_thread_stopped(s.pid):
            wait_for(lambda: s.get("/livez", s.ops_port).status == 503, "/livez is 503")
            r = s.get("/livez", s.ops_port)
            check_eq((r.json()["status"], r.json()["loop"]), ("stalled", "api0"), "what it says")
            check(s.get("/metrics", s.ops_port).body.startswith(b"# HELP"), "/metrics")
            check_eq(s.get("/readyz", s.ops_port).status, 200, "/readyz: the workers are what they were")
        wait_for(lambda: s.get("/livez", s.ops_port).status == 200, "it turns again")
        check_eq(s.post(CHAT, GOOD).status, 200, "a request")


@test
def case_15_every_error_is_one_object_of_one_shape_and_short():
    s = server()
    long = "x" * 5000
    asks = [("GET", "/nowhere/" + "y" * 3000, None, []), ("PUT", CHAT, None, []), ("POST", CHAT, b"{", []), ("POST", CHAT, b"\xff", []),
            ("POST", CHAT, {}, []), ("POST", CHAT, {**GOOD, "model": long}, []), ("POST", CHAT, {**GOOD, "stop": [long]}, []),
            ("POST", CHAT, GOOD, [("Content-Type", "text/plain")]), ("POST", CHAT, GOOD, [("X-Request-Timeout-Ms", long)]),
            ("POST", "/tokenize", {}, []), ("GET", "/v1/models/" + "z" * 3000, None, []), ("GET", "/livez", None, [("X", "w" * 40000)])]
    for method, path, body, headers in asks:
        with s.connect() as c:
            r = c.request(method, path, body, headers)
        check(400 <= r.status < 500, lambda r=r, path=path: f"{path[:60]}: {r.status}")
        doc = r.json()
        check_eq((sorted(doc), sorted(doc["error"])), (["error", "request_id"], ["code", "message", "param", "type"]), path[:60])
        check_eq(doc["request_id"], r.header("x-request-id"), "request id")
        check(len(r.body) < 4096, f"{path[:60]}: {len(r.body)} bytes")


@test
def case_30_31_a_stream_is_events_and_comments_and_ends_with_its_mark_or_an_error():
    with Server("--limits.request_s=1", "--stream.keepalive_s=0.1", "--streams=1", "--worker.progress_s=300") as s:
        body = {**GOOD, "ignore_eos": True, "stream": True}
        with s.connect() as c:
            r = c.request("POST", CHAT, {**body, "max_tokens": 5})
        check_eq(list(sse_events(r.body))[-1], "[DONE]", "the end of a good one")
        pid = s.wait_worker()["pid"]
        with s.connect() as c:
            c.send_request("POST", CHAT, {**body, "max_tokens": 3000})
            head = c.read_head()
            pieces = c.body_pieces(head)
            text = next(pieces)
            with s.stopped(pid):
                text += b"".join(pieces)
        events = list(sse_events(text))
        check_eq(strict_json(events[-1])["error"]["code"], "deadline_exceeded", "the end of one that failed")
        check("[DONE]" not in events, "an end mark behind an error")


@test
def requests_pipelined_behind_a_stream_are_answered_in_order_behind_it():
    s = server()
    with s.connect() as c:
        c.method = "POST"
        c.send(request_bytes("POST", CHAT, {**GOOD, "max_tokens": 40, "ignore_eos": True, "stream": True}) + OK + b"".join(
            request_bytes("GET", p) for p in ("/livez", "/nowhere", "/v1/models")))
        reader = EventReader(c)
        check_eq(reader.rest()[-1], "[DONE]", "end of the stream")
        check_eq([c.read_response().status for _ in range(4)], [200, 200, 404, 200], "statuses")


@test
def case_34_the_end_of_a_stream_is_one_piece():
    """The last event, the end mark and the end of the body leave together."""
    s = server()
    with Http1(s.port) as c:
        c.send_request("POST", CHAT, {**GOOD, "stream": True})
        r = c.read_head()
        pieces = list(c.body_pieces(r))
    check(pieces[-1].endswith(b"data: [DONE]\n\n"), pieces[-1])
    check(pieces[-1].count(b"data: ") >= 2, "the last event came apart from the end mark")


main()
