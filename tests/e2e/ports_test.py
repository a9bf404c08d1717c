"""Ways in beside the one port: a port for each worker, sockets of a service manager, clients behind proxies."""

import concurrent.futures
import contextlib
import os
import signal
import socket
import tempfile
import threading

from harness import (BUILD, MODEL, EventReader, Http1, Http2, Process, Server, check, check_eq, check_in, check_metrics_page, free_port, main, run_program, shared, test,
                     wait_for)

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
LONG = {**GOOD, "max_tokens": 400, "ignore_eos": True}
PATIENT = "--worker.progress_s=300"


def free_ports(count):
    """The first of so many free ports in a row."""
    while True:
        base = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for i in range(count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", base + i))
            return base


class Ported:
    """A server of two workers with a port each."""

    def __init__(self, *flags):
        self.base = free_ports(2)
        self.s = Server("--workers=2", f"--api.worker_ports={self.base}", PATIENT, *flags)
        for rank in (0, 1):
            self.s.wait_worker(rank)

    def ask(self, rank, method="POST", path=CHAT, body=None, headers=()):
        with Http1(self.base + rank) as c:
            return c.request(method, path, GOOD if method == "POST" and body is None else body, headers)

    def ready(self, rank):
        return self.ask(rank, "GET", "/readyz")


COMMON = []


def ported():
    if not COMMON:
        COMMON.append(Ported("--streams=1"))
    return COMMON[0]


@test
def what_comes_by_a_workers_port_runs_on_it():
    p = ported()
    before = [sum(p.s.metrics(p.base + rank)["vllm:request_success_total"].values()) for rank in (0, 1)]
    for rank in (1, 1, 1, 0):
        r = p.ask(rank)
        check_eq((r.status, r.json()["railyard"]["worker"], r.header("x-railyard-worker")), (200, rank, str(rank)), "status and worker")
    with Http2(p.base + 1) as c:
        check_eq(c.request("POST", CHAT, GOOD).status, 200, "over HTTP/2")
    check(p.s.metric("railyard_placement_total", reason="pinned") >= 5, "placements are counted")

    def grown(rank):
        page = p.s.metrics(p.base + rank)
        check_eq(sum(page["vllm:e2e_request_latency_seconds_count"].values()), sum(page["vllm:request_success_total"].values()), "requests")
        check_eq({dict(k)["rank"] for k in page["railyard_worker_rounds_total"]}, {str(rank)}, "ranks on the page")
        for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"):
            check_eq(len(page[name]), 1, f"series of {name}")
        return sum(page["vllm:request_success_total"].values()) - before[rank]

    check_eq([grown(0), grown(1)], [1, 4], "requests on the pages of the two ports")
    check(sum(p.s.metrics()["vllm:request_success_total"].values()) >= 5, "the common page has all")


# What section 17.1 of the interface promises to gateways: one series, whatever the number of workers.
MANY = ("vllm:request_success_total",)


@test
def promtool_would_take_the_page_of_every_port():
    p = ported()
    p.ask(0)
    p.ask(1, "GET", "/v1/models/no-such")
    p.s.post(CHAT, {**GOOD, "frobnicate": 1, 'quo"te\n': 2})
    for port in (p.s.port, p.s.ops_port, p.base, p.base + 1):
        families = check_metrics_page(p.s.get("/metrics", port).body.decode())
        for name, (kind, series) in families.items():
            if name.startswith("vllm:") and kind != "histogram" and name not in MANY:
                check_eq(len(series), 1, f"series of {name}")
        check({"vllm:num_requests_running", "vllm:request_params_n", "railyard_worker_state"} <= set(families), "families")
    check_eq(p.s.metric("railyard_worker_failures_total"), 0, "failures, summed over the reasons")


@test
def a_port_says_what_its_worker_is_and_no_more():
    p = ported()
    check_eq([p.ready(rank).status for rank in (0, 1)], [200, 200], "readiness")
    with p.s.connect(p.s.ops_port) as c:
        check_eq(c.request("POST", "/admin/v1/workers/1/drain", {}).status in (200, 202), True, "drain")
    wait_for(lambda: p.ready(1).status == 503, "the drained worker's port is not ready")
    check_eq(p.ready(1).json()["workers"], {"ready": 0, "total": 1}, "its workers")
    check_eq((p.ready(0).status, p.s.get("/readyz").status), (200, 200), "the other port, and the common one")
    r = p.ask(1)
    check_eq((r.status, r.json()["error"]["code"], r.header("retry-after")), (503, "no_ready_worker", "1"), "a request by it")
    check_eq(p.ask(0).status, 200, "a request by the other")
    with p.s.connect(p.s.ops_port) as c:
        check_eq(c.request("POST", "/admin/v1/workers/1/resume").status in (200, 202), True, "resume")
    wait_for(lambda: p.ready(1).status == 200, "it is ready again")


@test
def one_that_waits_for_its_worker_holds_up_nobody_else():
    p = ported()
    pid = p.s.wait_worker(1)["pid"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        with p.s.stopped(pid):
            runs = []
            while not (runs and sum(p.s.metrics()["railyard_queue_requests"].values()) >= 2):
                check(len(runs) < 6, "requests by one port never come to wait")
                runs.append(pool.submit(p.ask, 1))
                count = len(runs)
                wait_for(lambda: p.s.metric("railyard_requests_in_flight") == count, "it has been taken in")
            wait_for(lambda: sum(p.s.metrics(p.base + 1)["vllm:num_requests_waiting"].values()) >= 2, "they wait on the page of the port")
            check_eq(sum(p.s.metrics(p.base)["vllm:num_requests_waiting"].values()), 0, "waiting on the other's page")
            check_eq(p.s.chat(**GOOD)["railyard"]["worker"], 0, "the worker of a request by the common port")
            check_eq(p.ask(0).status, 200, "one by the other's port")
        check_eq({r.result().json()["railyard"]["worker"] for r in runs}, {1}, "workers of those that waited")
    p.s.wait_idle()


@test
def a_stream_begun_by_a_port_goes_on_elsewhere_when_its_worker_is_lost():
    p = Ported()
    with p.s:
        alone = p.s.chat(**LONG)["choices"][0]
        pid = p.s.wait_worker(1)["pid"]
        with Http1(p.base + 1) as c:
            c.send_request("POST", CHAT, {**LONG, "stream": True})
            reader = EventReader(c)
            reader.next()
            os.kill(pid, signal.SIGKILL)
            events = reader.rest()
        check_eq(events[-1], "[DONE]", "the last event")
        last = [e for e in events[:-1] if e["choices"] and e["choices"][0]["finish_reason"]][0]
        check_eq(last["choices"][0]["token_sha256"], alone["token_sha256"], "hash")


@test
def worker_ports_want_a_host_and_free_ports():
    code, _, err = run_program("router", MODEL, "--api.listen=unix:/tmp/x.sock", "--ops.listen=", "--api.worker_ports=9000")
    check_eq(code, 2, "status")
    check_in("api.worker_ports: wanted HOST:PORT in api.listen", err, "message")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        code, _, err = run_program("router", MODEL, "--api.listen=127.0.0.1:0", "--ops.listen=", f"--api.worker_ports={s.getsockname()[1]}")
    check_eq(code, 1, "status with a taken port")
    check_in("api.worker_ports: listen on", err, "message")


@test
def a_start_that_fails_with_clients_at_the_door_says_why():
    """The port of the last worker is taken, while somebody knocks at all that are open until then."""
    with socket.socket() as last, socket.socket() as api:
        for s in (last, api):
            s.bind(("127.0.0.1", 0))
        last.listen()
        port = api.getsockname()[1]
        api.close()
        over = threading.Event()

        def knock():
            while not over.is_set():
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as c:
                    c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")

        knocks = [threading.Thread(target=knock) for _ in range(4)]
        for k in knocks:
            k.start()
        try:
            for _ in range(5):
                code, _, err = run_program("serve", MODEL, f"--api.listen=127.0.0.1:{port}", "--ops.listen=", "--workers=8",
                                           f"--api.worker_ports={last.getsockname()[1] - 7}")
                check_eq(code, 1, f"status: {err[-600:]}")
                check_in("api.worker_ports: listen on", err, "message")
        finally:
            over.set()
            for k in knocks:
                k.join()


# ---- behind proxies


def remote_of(s, *headers):
    with s.connect() as c:
        check_eq(c.request("GET", "/v1/models", headers=headers).status, 200, "status")
    return s.access_lines()[-1]["remote"]


@test
def the_log_has_the_client_behind_a_trusted_proxy_and_believes_nobody_else():
    with Server("--api.trusted_proxies=127.0.0.1,10.0.0.0/8") as s:
        check_eq(remote_of(s, ("X-Forwarded-For", "203.0.113.9")), "203.0.113.9", "remote")
        check_eq(remote_of(s, ("X-Forwarded-For", "1.2.3.4, 203.0.113.9"), ("X-Forwarded-For", "10.0.0.7")), "203.0.113.9", "of a chain")
        check_eq(remote_of(s, ("Forwarded", 'for="[2001:db8::1]:99";proto=https')), "2001:db8::1", "of Forwarded")
        check(remote_of(s, ("X-Forwarded-For", "nonsense")).startswith("127.0.0.1:"), "nonsense is taken for a client")
        check(remote_of(s).startswith("127.0.0.1:"), "without a field it is the peer")
    s = shared()
    check(remote_of(s, ("X-Forwarded-For", "203.0.113.9")).startswith("127.0.0.1:"), "a stranger's word is taken")
    code, _, err = run_program("serve", MODEL, "--api.trusted_proxies=example.org")
    check_eq(code, 2, "status of a bad list")
    check_in("api.trusted_proxies: wanted addresses", err, "message")


# ---- sockets of a service manager


@test
def inherited_sockets_are_used_and_left_in_place():
    folder = tempfile.mkdtemp(prefix="ry-")
    os.chmod(folder, 0o700)
    path = os.path.join(folder, "ops.sock")
    with socket.socket() as api, socket.socket(socket.AF_UNIX) as ops:
        api.bind(("127.0.0.1", 0))
        api.listen()
        ops.bind(path)
        ops.listen()
        port = api.getsockname()[1]
        shell = f'exec 8<&{ops.fileno()} 9<&{api.fileno()}; exec 3<&8 4<&9 8<&- 9<&-; LISTEN_PID=$$ exec "$@"'
        argv = ["sh", "-c", shell, "sh", os.path.join(BUILD, "railyard"), "serve", MODEL, f"--run.dir={folder}/run", "--drain.settle_s=0"]
        os.mkdir(f"{folder}/run", 0o700)
        env = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "ops:api"}
        for turn in (1, 2):  # the second run gets the same sockets: the first has left them as they were
            with Process("an activated railyard serve", argv, env=env, fds=(api.fileno(), ops.fileno())) as p:
                # A connection made before anybody accepts is answered.
                with Http1(port) as c:
                    check_eq(c.request("GET", "/livez").status, 200, f"the API in run {turn}")
                with socket.socket(socket.AF_UNIX) as c:
                    c.connect(path)
                    c.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    check_in(b"HTTP/1.1 200", c.makefile("rb").read(), f"the ops socket in run {turn}")
                p.end()
            check(os.path.exists(path), "the manager's socket file is gone")


main()
