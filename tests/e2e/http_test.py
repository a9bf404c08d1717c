"""The protocol around the requests: paths, methods, HTTP/1.1 and HTTP/2 framing, health, metrics, request ids."""

import json
import re
import signal
import socket

from harness import (EventReader, Http1, Http2, Server, check, check_eq, check_in, main, request_bytes, shared, strict_json, test, wait_for)

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def server():
    return shared()


def raw(data, method="POST"):
    """Sends bytes and reads one response."""
    with server().connect() as c:
        c.method = method
        c.send(data)
        return c.read_response()


def code(r):
    return r.json()["error"]["code"]


# ---- paths and methods


@test
def paths_match_exactly():
    for path in ("/", "/v1", "/v1/nothing", "//v1/models", "/v1//models", "/v1/../v1/models", "/V1/models",
                 "/livez/", "/v1/chat/completions/", "/%761/models", "/admin/v1/workers"):
        r = server().get(path)
        check_eq((r.status, code(r)), (404, "unknown_url"), path)


@test
def a_query_string_is_cut_off():
    check_eq(server().get("/v1/models?x=1").status, 200, "status")
    check_eq(server().get("/livez?").status, 200, "status")


@test
def paths_work_without_v1_too():
    check_eq(server().get("/models").json(), server().get("/v1/models").json(), "models")
    check_eq(server().post("/chat/completions", GOOD).status, 200, "chat")
    check_eq(server().post("/v1/tokenize", {"prompt": "x"}).json(), server().post("/tokenize", {"prompt": "x"}).json(), "tokenize")


@test
def a_wrong_method_is_405_with_allow():
    for method, path, allow in (("GET", CHAT, "POST"), ("DELETE", CHAT, "POST"), ("POST", "/v1/models", "GET"), ("PUT", "/livez", "GET"),
                                ("GET", "/tokenize", "POST")):
        r = server().get(path, method=method)
        check_eq((r.status, code(r)), (405, "method_not_allowed"), f"{method} {path}")
        check_in(allow, r.header("allow"), "allow")


@test
def head_gives_the_headers_of_get():
    for path in ("/v1/models", "/livez", "/readyz", "/health", "/metrics"):
        get, head = server().get(path), server().get(path, method="HEAD")
        check_eq((head.status, head.header("content-type"), head.body), (get.status, get.header("content-type"), b""), path)


@test
def nothing_follows_the_headers_of_head_on_a_kept_connection():
    for path, status in (("/v1/models", b"200"), ("/nowhere", b"404"), (CHAT, b"405")):
        with socket.create_connection(("127.0.0.1", server().port)) as s:
            s.sendall(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            text = b"".join(iter(lambda: s.recv(65536), b""))
        head, _, rest = text.partition(b"\r\n\r\n")
        check(head.split()[1] == status, head)
        check(rest.startswith(b"HTTP/1.1 200"), lambda: f"{path}: behind the headers came {rest[:60]!r}")


@test
def options_without_cors_settings_allows_no_other_origin():
    r = server().get(CHAT, method="OPTIONS")
    check(r.status in (204, 200, 405), r.status)
    check_eq(r.header("access-control-allow-origin"), None, "access-control-allow-origin")


# ---- HTTP/1.1


@test
def pipelined_requests_are_answered_in_order():
    with server().connect() as c:
        paths = ["/livez", "/v1/models", "/nothing", "/readyz", "/v1/models"]
        c.method = "GET"
        c.send(b"".join(request_bytes("GET", p) for p in paths) + request_bytes("POST", CHAT, GOOD) + request_bytes("GET", "/livez"))
        found = [c.read_response().status for _ in range(7)]
    check_eq(found, [200, 200, 404, 200, 200, 200, 200], "statuses")


@test
def a_connection_serves_many_requests():
    with server().connect() as c:
        hashes = {c.request("POST", CHAT, {**GOOD, "temperature": 0}).json()["choices"][0]["token_sha256"] for _ in range(10)}
    check_eq(len(hashes), 1, "different hashes")


@test
def http_1_0_gets_a_reply_and_the_end_of_the_connection():
    with server().connect() as c:
        c.send_request("POST", CHAT, {**GOOD, "stream": True}, version="HTTP/1.0")
        r = c.read_response()
        check_eq(r.status, 200, "status")
        check(r.body.endswith(b"data: [DONE]\n\n"), r.body[-100:])
        check_eq(c.closed(), b"", "bytes behind the reply")


@test
def a_chunked_body_with_trailers_is_taken():
    data = json.dumps(GOOD).encode()
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (data[:1], data[1:20], data[20:]))
    with server().connect() as c:
        c.send_request("POST", CHAT, pieces + b"0\r\nX-Trailer: 1\r\n\r\n", [("Transfer-Encoding", "chunked")])
        check_eq(c.read_response().status, 200, "status")


@test
def a_body_that_comes_byte_by_byte_is_taken():
    data = request_bytes("POST", CHAT, GOOD)
    with server().connect() as c:
        c.method = "POST"
        for i in range(len(data)):
            c.send(data[i:i + 1])
        check_eq(c.read_response().status, 200, "status")


@test
def case_43_a_body_with_two_lengths_is_400_and_the_bytes_behind_never_run():
    smuggled = request_bytes("POST", CHAT, {**GOOD, "user": "smuggled"})
    data = json.dumps(GOOD).encode()
    heads = {
        "length and chunked": [("Content-Length", str(len(data))), ("Transfer-Encoding", "chunked")],
        "two lengths": [("Content-Length", str(len(data))), ("Content-Length", str(len(data) + len(smuggled)))],
    }
    for what, headers in heads.items():
        before = server().metric("vllm:request_success_total")
        with server().connect() as c:
            c.method = "POST"
            body = data if what == "two lengths" else b"0\r\n\r\n"
            c.send(request_bytes("POST", CHAT, body, headers) + smuggled)
            r = c.read_response()
            check_eq(r.status, 400, what)
            check_eq(c.closed(), b"", f"{what}: bytes behind the answer")
        check_eq(server().metric("vllm:request_success_total"), before, f"{what}: requests that ran")


@test
def a_request_without_exactly_one_host_is_400():
    for head in (b"GET /v1/models HTTP/1.1\r\n\r\n", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"):
        check_eq(raw(head, "GET").status, 400, head)


@test
def case_42_expect_100_continue_is_answered_at_once():
    data = json.dumps(GOOD).encode()
    with server().connect() as c:
        c.method = "POST"
        c.send(request_bytes("POST", CHAT, b"", [("Content-Length", str(len(data))), ("Expect", "100-continue")]))
        check_in("100", c.read_line(), "interim response")
        check_eq(c.read_line(), "", "end of the interim response")
        c.send(data)
        check_eq(c.read_response().status, 200, "status")


@test
def any_other_expectation_is_417():
    check_eq(raw(request_bytes("POST", CHAT, GOOD, [("Expect", "magic")])).status, 417, "status")


@test
def case_45_headers_over_their_limit_are_refused():
    for headers in ([("X-Long", "x" * 40_000)], [(f"X-{i}", "x") for i in range(150)]):
        with server().connect() as c:
            c.method = "GET"
            c.send(request_bytes("GET", "/v1/models", headers=headers))
            check(c.read_response().status in (400, 431), "status")
    with server().connect() as c:
        r = c.request("GET", "/v1/models?" + "x" * 9000)
        check(r.status in (400, 414), r.status)
    check_eq(server().get("/livez").status, 200, "the next request")


@test
def garbage_is_no_request_and_hurts_nobody():
    for data in (b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"HELLO WORLD\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxxxxxxxxxx",
                 b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET /livez HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
                 b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n"):
        with server().connect() as c:
            c.send(data)
            c.s.shutdown(socket.SHUT_WR)
            c.closed()
        check_eq(server().get("/livez").status, 200, data)


# ---- HTTP/2


@test
def http2_by_prior_knowledge_serves_every_path():
    with Http2(server().port) as h:
        for path, status in (("/livez", 200), ("/v1/models", 200), ("/nothing", 404), ("/metrics", 200), (CHAT, 405)):
            check_eq(h.request("GET", path).status, status, path)
        r = h.request("POST", CHAT, GOOD)
        check_eq((r.status, strict_json(r.body)["object"]), (200, "chat.completion"), "chat")
        r = h.request("POST", CHAT, b"{")
        check_eq((r.status, code(r)), (400, "invalid_json"), "bad body")


@test
def http2_by_upgrade_serves_the_request():
    head = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAP__")]
    with server().connect() as c:
        c.method = "GET"
        c.send(request_bytes("GET", "/livez", headers=head))
        check_in("101", c.read_line(), "status line")


# ---- ids and headers


@test
def a_request_id_of_the_client_comes_back_when_it_is_sound():
    for sent, wanted in (("abc-1.2_3:4", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("a\u00e9", False), ("", False)):
        with server().connect() as c:
            r = c.request("GET", "/livez", headers=[("X-Request-Id", sent)])
        got = r.header("x-request-id")
        check(got, "no x-request-id")
        check_eq(got == sent, wanted, f"{sent!r} came back as {got!r}")


@test
def every_reply_has_a_request_id_of_its_own():
    ids = [server().get(p).header("x-request-id") for p in ("/livez", "/nothing", "/v1/models", "/metrics", "/livez")]
    check(all(ids), ids)
    check_eq(len(set(ids)), len(ids), "different ids")


@test
def a_whole_reply_says_how_long_it_took():
    r = server().post(CHAT, GOOD)
    check(r.header("openai-processing-ms", "").isdigit(), "openai-processing-ms")
    check_eq(r.header("x-railyard-worker"), "0", "x-railyard-worker")


# ---- health, metrics, operations


@test
def health_says_ok_with_its_workers():
    for path in ("/readyz", "/health"):
        r = server().get(path)
        body = r.json()
        check_eq((r.status, body["status"], body["workers"]), (200, "ok", {"ready": 1, "wanted": 1, "total": 1}), path)
        check_eq(body["queue"], {"requests": 0, "tokens": 0}, path)
    check_eq(server().get("/livez").status, 200, "/livez")
    for path in ("/readyz", "/health", "/livez", "/metrics"):
        check_eq(server().get(path, server().ops_port).status, 200, f"{path} on the ops listener")


@test
def without_any_worker_it_lives_and_is_not_ready():
    with Server(command="router", wait_ready=False) as s:
        check_eq(s.get("/livez").status, 200, "/livez")
        for path in ("/readyz", "/health"):
            r = s.get(path)
            check_eq((r.status, r.json()["status"] in ("loading", "no_ready_worker")), (503, True), path)
            check(r.header("retry-after"), "no retry-after")
        r = s.get("/v1/models")
        check_eq((r.status, code(r)), (503, "no_ready_worker"), "/v1/models")


@test
def a_request_that_no_worker_takes_is_503_in_the_end():
    with Server("--route.wait_ready_s=0.2", command="router", wait_ready=False) as s:
        r = s.post(CHAT, GOOD)
        check_eq((r.status, code(r)), (503, "no_ready_worker"), "answer")
        check(re.fullmatch(r"[1-9]\d?", r.header("retry-after", "")), r.header("retry-after"))
        check(r.header("retry-after-ms"), "no retry-after-ms")


ONE_SERIES = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total",
              "vllm:generation_tokens_total", "vllm:num_preemptions_total"]


@test
def metrics_are_in_the_text_format_and_count_what_ran():
    before = server().metrics()
    r = server().post(CHAT, {**GOOD, "ignore_eos": True, "max_tokens": 5}).json()
    after = server().metrics()
    for name in ONE_SERIES:
        check_eq(list(after[name]), [(("model_name", "demo"),)], name)
    def grown(name):
        return sum(after[name].values()) - sum(before[name].values())
    check_eq(grown("vllm:prompt_tokens_total"), r["usage"]["prompt_tokens"], "prompt tokens")
    check_eq(grown("vllm:generation_tokens_total"), 5, "generation tokens")
    check_eq(after["railyard_worker_state"][(("rank", "0"), ("state", "ready"))], 1, "state of the worker")
    check(server().get("/metrics").header("content-type").startswith("text/plain; version=0.0.4"), "content-type")
    check_eq(server().metrics(server().ops_port).keys(), after.keys(), "families on the ops listener")


@test
def the_ops_listener_shows_the_workers_and_the_other_does_not():
    w = server().worker()
    check_eq((w["rank"], w["state"], w["supervised"], w["model"]), (0, "ready", True, "demo"), "worker")
    for k in ("pid", "fingerprint", "context_max", "streams", "queue", "kv", "restarts", "version"):
        check_in(k, w, "worker")
    check_in("mapping", w["memory"]["embedding"], "where the embedding is")
    for part in ("scratch", "stream states", "kv blocks"):
        check(w["memory"]["gib"][part] > 0, f"{part} in GiB: {w['memory']}")
    check_eq(server().get("/admin/v1/workers").status, 404, "on the API listener")


@test
def case_09_probes_cost_no_round_and_change_no_token():
    with Server() as s:
        def ask():
            r = s.chat(**{**GOOD, "temperature": 0})
            return r["choices"][0]["token_sha256"], r["railyard"]["rounds"]

        first = ask()
        with s.connect() as c:
            for _ in range(200):
                for path in ("/livez", "/readyz", "/health", "/metrics", "/v1/models"):
                    check_eq(c.request("GET", path).status, 200, path)
        check_eq(ask(), first, "hash and rounds of the same request")
        wanted = 2 * first[1]
        wait_for(lambda: s.metric("railyard_worker_rounds_total") >= wanted, "the worker reports its rounds")
        check_eq(s.metric("railyard_worker_rounds_total"), wanted, "rounds of the two requests")


@test
def sigterm_lets_the_live_stream_finish_and_exits_0():
    s = Server()
    c = Http1(s.port)
    c.send_request("POST", CHAT, {**GOOD, "max_tokens": 300, "ignore_eos": True, "stream": True})
    reader = EventReader(c)
    check(reader.next(), "no event")
    s.signal(signal.SIGTERM)
    check_eq(reader.rest()[-1], "[DONE]", "end of the stream")
    check_eq(s.wait(), 0, "exit status")


main()
