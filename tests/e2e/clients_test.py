"""Clients that others wrote, unchanged: curl, nghttp, h2load, and schemathesis over the served OpenAPI document."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile

from harness import (CLEANUPS, LIMIT_S, SMALL, SOURCE, FakeWorker, Server, TlsServer, check, check_eq, check_in, main, make_certificate, note,
                     shared, strict_json, test)

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
FOLDER = tempfile.mkdtemp(prefix="ry-")
CLEANUPS.append(lambda: shutil.rmtree(FOLDER, ignore_errors=True))


def run(*argv, status=0, data=None):
    r = subprocess.run(argv, input=data, capture_output=True, timeout=LIMIT_S, check=False, cwd=FOLDER)  # some leave files where they run
    check_eq(r.returncode, status, f"exit status of {' '.join(map(str, argv))[:200]}\n{r.stdout[-1500:]!r}\n{r.stderr[-1500:]!r}")
    return r.stdout


def url(s, path, scheme="http"):
    return f"{scheme}://localhost:{s.port}{path}"


def body_file(body):
    path = os.path.join(FOLDER, "body.json")
    with open(path, "wb") as f:
        f.write(body if isinstance(body, bytes) else json.dumps(body).encode())
    return path


def curl(*argv, **more):
    return run("curl", "-sS", "--max-time", str(LIMIT_S), "--ipv4", *argv, **more)


# ---- curl


@test
def curl_gets_the_same_reply_over_every_protocol():
    s = shared()
    wanted = s.chat(**GOOD)["choices"][0]["token_sha256"]
    for flags in (["--http1.0"], ["--http1.1"], ["--http2-prior-knowledge"], ["--http1.1", "-H", "Transfer-Encoding: chunked"]):
        text = curl(*flags, "--json", json.dumps(GOOD), url(s, CHAT))
        check_eq(strict_json(text)["choices"][0]["token_sha256"], wanted, flags)
    text = curl("--http2", url(s, "/v1/models"))  # by upgrade
    check_eq(strict_json(text)["data"][0]["id"], "demo", "models by upgrade")


@test
def curl_reads_a_stream_to_its_end():
    s = shared()
    for flags in (["--http1.1"], ["--http2-prior-knowledge"]):
        text = curl("-N", *flags, "--json", json.dumps({**GOOD, "stream": True}), url(s, CHAT))
        check(text.endswith(b"data: [DONE]\n\n"), text[-100:])


@test
def case_42_curl_sends_five_megabytes_with_expect_and_does_not_wait_a_second_for_it():
    s = shared()
    path = body_file(b" " * (5 << 20) + json.dumps(GOOD).encode())
    text = curl("-v", "--http1.1", "-H", "Content-Type: application/json", "-H", "Expect: 100-continue", "--data-binary", f"@{path}",
                "--expect100-timeout", "60", "-w", "\n%{http_code} %{time_total}", url(s, CHAT))
    code, seconds = text.split(b"\n")[-1].split()
    check_eq(code, b"200", "status")
    note(f"5 MB with Expect: 100-continue: {float(seconds):.3f} s (curl would wait 60 s for the 100)")
    check(float(seconds) < 60, "the 100 never came: curl gave up waiting for it")


@test
def case_42_curl_sees_the_final_status_instead_of_the_100():
    s = shared("--api.body_bytes_max=64KiB")
    path = body_file(b" " * (5 << 20))
    text = curl("--http1.1", "-H", "Expect: 100-continue", "--data-binary", f"@{path}", "--expect100-timeout", "60", "-o", os.devnull,
                "-w", "%{http_code} %{size_upload}", url(s, CHAT))
    check_eq(text.split()[0], b"413", "status")


@test
def curl_over_tls_checks_the_certificate_and_agrees_on_http2():
    cert, key = make_certificate(FOLDER, "one")
    with TlsServer(f"--api.tls_cert={cert}", f"--api.tls_key={key}", "--auth.keys=k") as s:
        for flags, version in ((["--http2"], b"2"), (["--http1.1"], b"1.1"), (["--tlsv1.2", "--tls-max", "1.2"], b"2")):
            text = curl(*flags, "--cacert", cert, "-H", "Authorization: Bearer k", "--json", json.dumps(GOOD), "-w", "\n%{http_version} %{http_code}",
                        url(s, CHAT, "https"))
            check_eq(text.split(b"\n")[-1], version + b" 200", flags)
        text = curl("--cacert", cert, "-o", os.devnull, "-w", "%{http_code}", url(s, "/v1/models", "https"))
        check_eq(text, b"401", "without a key")


# ---- nghttp, h2load


@test
def nghttp_is_served_many_streams_at_once():
    s = shared()
    path = body_file(GOOD)
    out = run("nghttp", "-v", "-m", "20", "-d", path, "-H", "content-type: application/json", f"http://127.0.0.1:{s.port}{CHAT}").decode()
    check_eq(out.count(":status: 200"), 20, out[-2000:])
    check("RST_STREAM" not in out, "a stream was reset")


@test
def nghttp_is_told_goodbye_and_its_stream_ends_well():
    with Server("--drain.settle_s=0.5") as s:
        path = body_file({**GOOD, "max_tokens": 400, "ignore_eos": True, "stream": True})
        p = subprocess.Popen(["nghttp", "-v", "-d", path, "-H", "content-type: application/json", f"http://127.0.0.1:{s.port}{CHAT}"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        text = b""
        while b"data: {" not in text:
            piece = os.read(p.stdout.fileno(), 65536)
            check(piece, lambda: text[-2000:])
            text += piece
        s.signal(15)
        text += p.stdout.read()
        check_eq(p.wait(LIMIT_S), 0, "exit status")
        check_eq(s.wait(), 0, "the router's")
        check_in(b"recv GOAWAY frame", text, "what it got")
        check_in(b"data: [DONE]", text, "the end of the stream")


def h2load(s, *flags):
    out = run("h2load", *flags).decode()
    found = re.search(r"requests: (\d+) total, .* (\d+) succeeded, (\d+) failed, (\d+) errored", out)
    note(re.search(r"finished in .*", out).group(0))
    return tuple(map(int, found.groups())), out


@test
def h2load_fails_no_request_on_either_protocol():
    s = shared("--queue.requests_max=1000", "--queue.wait_s=600")
    count = 100 if SMALL else 2000
    for flags in ([], ["--h1"]):
        found, out = h2load(s, *flags, "-n", str(count), "-c", "8", "-m", "1" if flags else "10", f"http://127.0.0.1:{s.port}/v1/models")
        check_eq(found, (count, count, 0, 0), out)
        check_in(f"{count} 2xx", out, "statuses")
    path = body_file({**GOOD, "stream": True})
    for flags in ([], ["--h1"]):
        found, out = h2load(s, *flags, "-n", "40", "-c", "4", "-m", "1" if flags else "4", "-d", path, "-H", "content-type: application/json",
                            f"http://127.0.0.1:{s.port}{CHAT}")
        check_eq(found, (40, 40, 0, 0), out)
    s.wait_idle()


# ---- the OpenAPI document


def ready_with_a_fake_worker():
    s = Server("--queue.requests_max=1000", "--queue.wait_s=600", command="router", wait_ready=False)
    FakeWorker(s, "--reply=7 8 9 10", "--streams=64")
    s.wait_ready()
    return s


@test
def the_openapi_document_names_what_is_served_and_nothing_else():
    s = shared()
    r = s.get("/openapi.json")
    check_eq(r.status, 200, "status")
    doc = r.json()
    check_eq(doc["openapi"], "3.1.0", "version")
    for path, item in doc["paths"].items():
        for method in item:
            if method == "options":
                with s.connect() as c:
                    check_eq(c.request("OPTIONS", path.replace("{id}", "demo")).status, 200, path)
            elif method == "get":
                check_eq(s.get(path.replace("{id}", "demo")).status, 200, path)
            else:
                r = s.post(path, {})
                check(r.status in (200, 400), lambda r=r, path=path: f"{path}: {r.status} {r.body[:300]!r}")
    with open(os.path.join(SOURCE, "router", "server.c"), encoding="utf-8") as f:
        served = {p for p in re.findall(r'^    \{"(/[^"]*)", ', f.read(), re.M)}
    check_eq({p.replace("{id}", "") for p in doc["paths"]}, served, "paths")


# Of HTTP itself, and of no request or reply in particular.
PLAIN_HEADERS = {"date", "server", "connection", "content-length", "transfer-encoding", "content-type"}


def documented(doc, response):
    if "$ref" in response:
        response = doc["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
    return {name.lower() for name in response.get("headers", ())} | PLAIN_HEADERS


@test
def the_openapi_document_has_every_header_of_every_reply():
    with tempfile.NamedTemporaryFile("w", dir=FOLDER) as keys:
        keys.write(f"k:user:{hashlib.sha256(b'secret').hexdigest()}\n")
        keys.flush()
        with Server("--api.cors_origins=*", f"--auth.keys_file={keys.name}", "--queue.requests_max=1", "--limits.request_s=60") as s:
            def ask(method, path, body=None, key="secret", **headers):
                fields = [(k.replace("_", "-"), v) for k, v in headers.items()] + ([("Authorization", f"Bearer {key}")] if key else [])
                with s.connect() as c:
                    return c.request(method, path, body, headers=fields)

            doc = ask("GET", "/openapi.json").json()
            page = {"Origin": "http://page.example"}
            preflight = {**page, "Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "x-api-key"}
            seen = {}
            for status, method, path, body, key, headers in (
                    (200, "POST", CHAT, GOOD, "secret", page), (200, "POST", CHAT, {**GOOD, "stream": True}, "secret", page),
                    (200, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, "secret", page), (400, "POST", CHAT, {}, "secret", page),
                    (401, "POST", CHAT, GOOD, None, page), (404, "POST", CHAT, {**GOOD, "model": "x"}, "secret", {}),
                    (415, "POST", CHAT, GOOD, "secret", {"Content_Encoding": "gzip"}), (504, "POST", CHAT, {**GOOD, "max_tokens": 2000, "ignore_eos": True},
                                                                                      "secret", {"X_Request_Timeout_Ms": "1"}),
                    (405, "PUT", CHAT, GOOD, "secret", page), (200, "OPTIONS", CHAT, None, None, page), (204, "OPTIONS", CHAT, None, None, preflight),
                    (200, "GET", "/v1/models", None, "secret", page), (401, "GET", "/v1/models", None, "wrong", page), (200, "GET", "/livez", None, None, {}),
                    (200, "GET", "/metrics", None, None, page), (200, "POST", "/v1/tokenize", {"prompt": "a"}, "secret", page)):
                r = ask(method, path, body, key, **headers)
                check_eq(r.status, status, (method, path, body))
                item = doc["paths"][path]
                op = item.get(method.lower(), item.get("post"))
                names = {k.lower() for k, _ in r.headers}
                check_eq(names - documented(doc, op["responses"][str(status)]), set(), f"headers of {method} {path} {status} that the document lacks")
                seen.setdefault(status, set()).update(names)
            check({"x-railyard-worker", "cache-control"} <= seen[200] and "access-control-max-age" in seen[204] and "allow" in seen[405]
                  and "www-authenticate" in seen[401] and "x-should-retry" in seen[504], lambda: f"hardly a header was seen: {seen}")
    with Server(command="router", wait_ready=False) as s:
        for path in ("/readyz", "/health"):
            r = s.get(path)
            check_eq(r.status, 503, path)
            check_eq({k.lower() for k, _ in r.headers} - documented(doc, doc["paths"][path]["get"]["responses"]["503"]), set(), path)


@test
def the_openapi_document_has_every_header_that_the_router_s_source_names():
    doc = shared().get("/openapi.json").json()
    source = {}
    for name in sorted(os.listdir(os.path.join(SOURCE, "router"))):
        if name.endswith(".c"):
            with open(os.path.join(SOURCE, "router", name), encoding="utf-8") as f:
                source[name] = f.read()
    text = "".join(source.values())
    sent = {n for n in re.findall(r'\bheader(?:_int)?\(req, "([^"]+)"', source["send.c"])} | set(re.findall(r'H2O_STRLIT\("([a-z]+-[a-z-]+)"\)', source["send.c"]))
    check(len(sent) >= 17, lambda: f"send.c sends {sorted(sent)}: is it still written as this test reads it?")
    have = {n.lower() for n in doc["components"]["headers"]}
    check_eq(sent - have - PLAIN_HEADERS, set(), "headers that are sent and not in the document")
    check_eq(have - sent, set(), "headers of the document that nobody sends")
    read = set(re.findall(r'(?:http_header|joined)\([^,()]*(?:->[^,()]*)*, "([^"]+)"\)', text)) | set(re.findall(r'\{"(x-[a-z-]+)", [0-9]+\}', source["request.c"]))
    check(len(read) >= 15, lambda: f"the router reads {sorted(read)}: is it still written as this test reads it?")
    named = {n.lower() for n in doc["components"]["parameters"]} | {v["name"] for v in doc["components"]["securitySchemes"].values() if "name" in v}
    check_eq(read - named - PLAIN_HEADERS - {"http2-settings"}, set(), "headers that are read and not in the document")  # the last is HTTP/2's
    used = {q["$ref"].rsplit("/", 1)[1] for item in doc["paths"].values() for op in item.values() for q in op.get("parameters", ()) if "$ref" in q}
    check_eq(set(doc["components"]["parameters"]) - used, set(), "parameters that no operation has")


@test
def case_16_schemathesis_finds_no_5xx():
    st = os.path.join(run("sh", os.path.join(SOURCE, "tests", "tools", "venv.sh")).decode().strip(), "bin", "schemathesis")
    s = ready_with_a_fake_worker()
    try:
        out = run(st, "run", f"http://127.0.0.1:{s.port}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "5" if SMALL else "40",
                  "--phases", "coverage,fuzzing", "--seed", "1", "--workers", "1", "--no-color", "--header", "X-Request-Timeout-Ms: 600000", "--request-timeout", str(LIMIT_S),
                  "--generation-database", "none").decode()
        note("\n".join(out.splitlines()[-12:]))
        check_eq(s.metric("railyard_http_requests_total", status="500"), 0, "replies of status 500")
        check(s.metric("railyard_http_requests_total", status="400") > 50, "hardly a request was refused: it tried nothing")
        check_eq(s.post(CHAT, GOOD).status, 200, "the next request")
    finally:
        s.end()


main()
