"""Who may ask: API keys, their classes and options; web pages of other origins; TLS; what SIGHUP reads again."""

import hashlib
import os
import shutil
import signal
import ssl
import subprocess
import tempfile

from harness import (BUILD, CLEANUPS, MODEL, Http1, Http2, Server, check, check_eq, check_in, fd_count, free_port, main, make_certificate, run_program, shared, test,
                     wait_for)

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
FOLDER = tempfile.mkdtemp(prefix="ry-")
CLEANUPS.append(lambda: shutil.rmtree(FOLDER, ignore_errors=True))
KEYS = os.path.join(FOLDER, "keys")


def digest(key):
    return hashlib.sha256(key.encode()).hexdigest()


def write_keys(*lines):
    with open(KEYS + ".new", "w", encoding="utf-8") as f:
        f.write("# name:class:sha256hex[:options]\n" + "\n".join(lines) + "\n")
    os.replace(KEYS + ".new", KEYS)


LINES = [f"alice:user:{digest('alice-key')}:priority_min=3", f"bob:user:{digest('bob-key')}:models=other|demo",
         f"carol:user:{digest('carol-key')}:models=other", f"root:admin:{digest('root-key')}"]


def server():
    if not os.path.exists(KEYS):
        write_keys(*LINES)
    return shared(f"--auth.keys_file={KEYS}", wait_ready=True)


def ask(s, method, path, headers=(), body=None, port=None):
    with s.connect(port) as c:
        return c.request(method, path, body, headers)


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


def code(r):
    return r.status, r.json()["error"]["code"], r.json()["error"]["type"]


# ---- keys


@test
def without_a_key_it_is_401_and_says_how_to_give_one():
    s = server()
    for method, path, body in (("POST", CHAT, GOOD), ("GET", "/v1/models", None), ("POST", "/tokenize", {"prompt": "x"}), ("GET", "/nowhere", None)):
        r = ask(s, method, path, body=body)
        check_eq(code(r), (401, "missing_api_key", "authentication_error"), path)
        check_eq(r.header("www-authenticate"), "Bearer", path)


@test
def each_of_the_three_headers_will_do():
    s = server()
    for headers in (bearer("alice-key"), [("authorization", "bearer alice-key")], [("x-api-key", "alice-key")], [("api-key", "alice-key")],
                    bearer("alice-key") + [("x-api-key", "alice-key")]):
        check_eq(ask(s, "POST", CHAT, headers, GOOD).status, 200, headers)


@test
def a_wrong_key_is_401_and_is_not_echoed():
    s = server()
    for headers in (bearer("alice-ke"), bearer("alice-key2"), bearer(""), [("Authorization", "Basic YWxpY2U6eA==")],
                    bearer("alice-key") + [("x-api-key", "bob-key")], bearer("x" * 5000), [("x-api-key", "ALICE-KEY")]):
        r = ask(s, "POST", CHAT, headers, GOOD)
        check_eq(r.status, 401, headers)
        check_in(r.json()["error"]["code"], ("invalid_api_key", "missing_api_key"), headers)
        check(b"alice" not in r.body and b"YWxp" not in r.body, r.body)


@test
def probes_and_metrics_are_open_until_asked_otherwise():
    for s, wanted in ((server(), 200), (shared("--auth.keys=hunter2,b", "--ops.metrics_auth=on"), 401)):
        for path in ("/livez", "/readyz", "/health"):
            for port in (s.port, s.ops_port):
                check_eq(ask(s, "GET", path, port=port).status, 200, path)
        for path in ("/metrics", "/version"):
            for port in (s.port, s.ops_port):
                check_eq(ask(s, "GET", path, port=port).status, wanted, f"{path} on {port}")
    check_eq(ask(s, "GET", "/metrics", bearer("b")).status, 200, "/metrics with a key")


@test
def administration_wants_an_admin_key_once_there_is_one():
    s = server()
    def status(headers):
        return ask(s, "GET", "/admin/v1/workers", headers, port=s.ops_port).status
    check_eq([status([]), status(bearer("no")), status(bearer("alice-key")), status(bearer("root-key"))], [401, 401, 403, 200], "statuses")
    plain = shared("--auth.keys=hunter2,b", "--ops.metrics_auth=on")
    check_eq(plain.worker()["state"], "ready", "without an admin key, on the loopback")
    r = plain.get("/admin/v1/config", plain.ops_port)
    check_eq(r.json()["auth.keys"], "(not shown)", "keys in the settings")
    check("hunter2" not in plain.log_text(), "a key in the log")


@test
def a_key_may_be_for_some_models_only():
    s = server()
    check_eq(ask(s, "POST", CHAT, bearer("bob-key"), GOOD).status, 200, "listed")
    for body in (GOOD, {**GOOD, "model": "demo"}):
        r = ask(s, "POST", CHAT, bearer("carol-key"), body)
        check_eq(code(r), (403, "forbidden", "permission_error"), "not listed")


@test
def the_log_names_the_key_and_never_shows_it():
    s = server()
    before = s.metric("railyard_key_tokens_total", key="alice", kind="generation")
    check_eq(ask(s, "POST", CHAT, bearer("alice-key") + [("X-Request-Id", "named-1")], {**GOOD, "ignore_eos": True}).status, 200, "status")
    line = wait_for(lambda: next((x for x in s.access_lines() if x["client_request_id"] == "named-1"), None), "its line")
    check_eq(line["key"], "alice", "key")
    check_eq(s.metric("railyard_key_tokens_total", key="alice", kind="generation") - before, 2, "tokens of the key")
    for text in (s.log_text(), open(f"{s.run_dir}/access", encoding="utf-8").read()):
        check("alice-key" not in text and digest("alice-key") not in text, "a key in a log")


@test
def sighup_reads_the_keys_again_and_a_broken_file_changes_nothing():
    s = server()
    write_keys(*LINES, f"dave:user:{digest('dave-key')}")
    s.signal(signal.SIGHUP)
    wait_for(lambda: ask(s, "GET", "/v1/models", bearer("dave-key")).status == 200, "the new key works")
    write_keys(*LINES[1:], "dave:user:dave-key")
    s.signal(signal.SIGHUP)
    wait_for(lambda: "reload_keys reason=" in s.log_text(), "the broken file is named in the log")
    check("dave-key" not in s.log_text(), "a key in the log")
    check_eq([ask(s, "GET", "/v1/models", bearer(k)).status for k in ("alice-key", "dave-key")], [200, 200], "the old keys")
    write_keys(*LINES[1:])
    s.signal(signal.SIGHUP)
    wait_for(lambda: ask(s, "GET", "/v1/models", bearer("alice-key")).status == 401, "a key that was taken out works no more")
    write_keys(*LINES)
    s.signal(signal.SIGHUP)
    wait_for(lambda: ask(s, "GET", "/v1/models", bearer("alice-key")).status == 200, "as before")


@test
def an_operator_asks_for_a_reload_and_hears_what_came_of_it():
    s = server()

    def ctl():
        return run_program("ctl", "reload", "--key=root-key", f"--ops=127.0.0.1:{s.ops_port}")

    write_keys(*LINES, f"erin:user:{digest('erin-key')}")
    check_eq(ctl(), (0, '{"reloaded":true,"changed":[],"needs_restart":[]}\n', ""), "reload")
    check_eq(ask(s, "GET", "/v1/models", bearer("erin-key")).status, 200, "the new key")
    write_keys("erin:user:oops")
    status, _, err = ctl()
    check_eq(status, 1, "exit status with a broken file")
    check_in("line 2: wanted the 64 hex digits", err, "reason")
    check_eq(ask(s, "GET", "/v1/models", bearer("erin-key")).status, 200, "the old keys")
    check_eq(ask(s, "POST", "/admin/v1/reload", bearer("alice-key"), port=s.ops_port).status, 403, "a user's key")
    write_keys(*LINES)
    check_eq(ctl()[0], 0, "as before")


@test
def a_start_with_a_broken_key_file_says_which_line():
    path = os.path.join(FOLDER, "broken")
    with open(path, "w", encoding="utf-8") as f:
        f.write("a:user:oops\n")
    r = subprocess.run([f"{BUILD}/railyard", "router", MODEL, "--api.listen=127.0.0.1:0", f"--auth.keys_file={path}"], capture_output=True, check=False)
    check_eq(r.returncode, 2, "exit status")
    check_in("line 1: wanted the 64 hex digits", r.stderr.decode(), "stderr")


# ---- CORS

ORIGIN = [("Origin", "https://page.example")]
PREFLIGHT = [*ORIGIN, ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization,content-type")]


@test
def with_keys_every_page_may_ask_and_a_preflight_needs_none():
    s = server()
    r = ask(s, "OPTIONS", CHAT, PREFLIGHT)
    check_eq((r.status, r.body, r.header("content-length")), (204, b"", None), "preflight")
    check_eq(r.header("access-control-allow-origin"), "*", "origin")
    check_eq(r.header("access-control-allow-methods"), "GET, POST, OPTIONS", "methods")
    check_eq(r.header("access-control-allow-headers"), "authorization,content-type", "headers")
    check_eq(r.header("access-control-max-age"), "600", "max-age")
    check_eq(r.header("access-control-allow-credentials"), None, "credentials")
    for headers, wanted in ((bearer("alice-key"), 200), ([], 401)):
        r = ask(s, "POST", CHAT, ORIGIN + headers, GOOD)
        check_eq((r.status, r.header("access-control-allow-origin"), r.header("vary")), (wanted, "*", "Origin"), "reply")
        check_in("X-Request-Id", r.header("access-control-expose-headers"), "exposed headers")
    with s.connect() as c:
        r = c.request("POST", CHAT, {**GOOD, "stream": True}, ORIGIN + bearer("alice-key"))
    check_eq(r.header("access-control-allow-origin"), "*", "a stream's origin")


@test
def without_keys_or_a_setting_no_page_may():
    s = shared()
    for method, path, headers, body in (("OPTIONS", CHAT, PREFLIGHT, None), ("POST", CHAT, ORIGIN, GOOD), ("GET", "/livez", ORIGIN, None)):
        r = ask(s, method, path, headers, body)
        check_eq([k for k, _ in r.headers if k.startswith("access-control")], [], f"{method} {path}")


@test
def of_a_list_only_these_origins_may():
    s = shared("--api.cors_origins=https://page.example,http://localhost:3000", command="router", wait_ready=False)
    r = ask(s, "OPTIONS", CHAT, PREFLIGHT)
    check_eq((r.status, r.header("access-control-allow-origin"), r.header("vary")), (204, "https://page.example", "Origin"), "listed")
    for other in ("https://page.example.evil", "https://page.example:8443", "null"):
        r = ask(s, "GET", "/livez", [("Origin", other)])
        check_eq((r.status, r.header("access-control-allow-origin"), r.header("vary")), (200, None, "Origin"), other)


# ---- TLS


def tls_context(cert, *alpn):
    c = ssl.create_default_context(cafile=cert)
    if alpn:
        c.set_alpn_protocols(list(alpn))
    return c


class TlsServer(Server):
    """Its readiness is asked for over the ops listener."""

    def __init__(self, cert, key, *flags):
        self.cert = cert
        super().__init__(f"--api.tls_cert={cert}", f"--api.tls_key={key}", *flags)

    def connect(self, port=None):
        if port in (None, self.port):
            return Http1(self.port, tls=tls_context(self.cert))
        return Http1(port)


TLS = {}


def tls_server():
    if not TLS:
        cert, key = make_certificate(FOLDER, "one")
        TLS["s"] = TlsServer(cert, key)
    return TLS["s"]


@test
def over_tls_http1_and_http2_are_agreed_on_by_alpn():
    s = tls_server()
    for alpn, wanted in ((("h2", "http/1.1"), "h2"), (("http/1.1",), "http/1.1"), ((), None)):
        c = tls_context(s.cert, *alpn)
        if wanted == "h2":
            with Http2(s.port, tls=c) as h:
                check_eq(h.s.selected_alpn_protocol(), wanted, "protocol")
                check_eq(h.request("POST", CHAT, GOOD).status, 200, "HTTP/2")
        else:
            with Http1(s.port, tls=c) as h:
                check_eq(h.s.selected_alpn_protocol(), wanted, "protocol")
                check_eq([h.request("POST", CHAT, GOOD).status for _ in range(2)], [200, 200], "HTTP/1.1")
    check_eq(s.get("/livez", s.ops_port).status, 200, "the ops listener is plain")
    check_in("https://127.0.0.1", s.log_text(), "what the start says")


@test
def a_stream_over_tls_is_whole_and_a_hang_up_is_seen():
    s = tls_server()
    body = {**GOOD, "max_tokens": 50, "ignore_eos": True, "temperature": 0}
    whole = s.chat(**body)["choices"][0]
    streamed = s.stream(**body)
    check_eq(streamed[-1]["choices"][0]["token_sha256"], whole["token_sha256"], "hash")
    before = s.metric("railyard_client_closed_total")
    c = s.connect()
    c.send_request("POST", CHAT, {**body, "max_tokens": 3000})
    wait_for(lambda: s.running_streams() == 1, "it runs")
    c.close()
    wait_for(lambda: s.metric("railyard_client_closed_total") == before + 1, "case 6 over TLS: the hang-up is counted")
    s.wait_idle()


@test
def connections_that_are_reset_behind_the_handshake_leave_nothing():
    s = tls_server()
    fds = fd_count(s.pid)
    for _ in range(30):
        s.connect().reset()
    wait_for(lambda: sum(s.metrics(s.ops_port)["railyard_http_connections"].values()) == 1, "no connection but the one that asks")
    wait_for(lambda: fd_count(s.pid) <= fds, "no descriptor is left")


@test
def versions_before_1_2_and_plain_text_get_nowhere():
    s = tls_server()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    try:
        Http1(s.port, tls=old)
        check(False, "TLS 1.1 was agreed on")
    except (ssl.SSLError, ConnectionResetError):
        pass
    with Http1(s.port) as c:
        c.method = "GET"
        c.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        check(b"200" not in c.closed(), "plain text was answered")
    check_eq(s.get("/livez").status, 200, "the next connection")


@test
def sighup_reads_the_certificate_again_and_open_connections_stay():
    cert, key = (os.path.join(FOLDER, f"live.{x}") for x in ("crt", "key"))
    def install(name):
        for source, target in zip(make_certificate(FOLDER, name), (cert, key)):
            shutil.copy(source, target + ".new")
            os.replace(target + ".new", target)
    install("two")
    port = free_port()
    with TlsServer(cert, key, f"--api.worker_ports={port}") as s:
        def served():
            """The name in the certificate of every port."""
            names = set()
            for p in (s.port, port):
                with Http1(p, tls=tls_context(cert)) as c:
                    names.add(dict(x[0] for x in c.s.getpeercert()["subject"])["commonName"])
            return ",".join(sorted(names))
        check_eq(served(), "two", "certificate")
        with s.connect() as open_one:
            install("three")
            s.signal(signal.SIGHUP)
            wait_for(lambda: "reload_tls cert=" in s.log_text(), "it is read again")
            check_eq(served(), "three", "certificate")
            check_eq(open_one.request("GET", "/livez").status, 200, "the open connection")
        with open(key, "w", encoding="utf-8") as f:
            f.write("no key\n")
        s.signal(signal.SIGHUP)
        wait_for(lambda: "reload_tls reason=" in s.log_text(), "the broken key is named in the log")
        check_eq(served(), "three", "certificate")


@test
def a_handshake_that_never_ends_is_cut():
    s = tls_server()
    with TlsServer(s.cert, s.cert[:-4] + ".key", "--api.header_s=0.5") as slow:
        with Http1(slow.port) as c:
            c.send(b"\x16\x03\x01")
            check_eq(c.closed(), b"", "answer")


main()
