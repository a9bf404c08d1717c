"""What every end-to-end test needs: tests that print TAP, real servers on the loopback, raw clients, strict parsers.

A file of tests is a program: it marks functions with @test, makes servers with `Server` and calls main(). Child
processes never outlive it: each server is the head of a process group, dies with its parent, and is looked through
when it ends for what no test asked about: its exit status and the reports of sanitizers.

Nothing here asserts a time. Waiting is always for an event, with a limit (LIMIT_S) that only a hang reaches.
"""

import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import models

SOURCE = os.environ.get("RAILYARD_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("RAILYARD_BUILD") or os.path.join(SOURCE, "build")
MODEL = os.path.join(SOURCE, "tests", "models", "demo")
KIND = os.environ.get("RAILYARD_MODEL_KIND")  # of models.py, in the demo's place
if KIND:
    KIND_DIR = tempfile.TemporaryDirectory(prefix="ry-model-")
    MODEL = models.make(KIND, SOURCE, MODEL, KIND_DIR.name)
# Under a sanitizer everything is slower by up to 20: tests then take smaller counts, never other assertions.
SMALL = os.environ.get("RAILYARD_SMALL") == "1"
LIMIT_S = int(os.environ.get("RAILYARD_LIMIT_S", 300))

# --------------------------------------------------------------------------------------------------------------------
# Tests


class Failed(AssertionError):
    """A check that did not hold; its text has both values."""


TESTS = []


def test(f):
    """Registers a test; its name, read with spaces, is the sentence that it proves."""
    TESTS.append(f)
    return f


def check(ok, text="not true"):
    if not ok:
        raise Failed(text() if callable(text) else str(text))


def check_eq(found, wanted, what="value"):
    if found != wanted:
        raise Failed(f"{what}:\n  found  {found!r}\n  wanted {wanted!r}")


def check_in(part, whole, what="value"):
    if part not in whole:
        raise Failed(f"{what}: {part!r} is not in {whole!r}")


def note(text):
    for line in str(text).splitlines():
        print(f"# {line}", flush=True)


class HungError(Exception):
    pass


def on_alarm(_signum, _frame):
    raise HungError("the test reached its limit; it waits for something that does not come")


FENCES = itertools.count()
CLEANUPS = []  # called at the end of the program, last first


def main(limit_s=None):
    """Runs the tests named in the arguments (substrings; none: all) and prints TAP."""
    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wanted = sys.argv[1:]
    tests = [t for t in TESTS if not wanted or any(w in t.__name__ for w in wanted)]
    print(f"1..{len(tests) + 1}", flush=True)
    failed = 0
    try:
        for number, t in enumerate(tests, 1):
            began = time.monotonic()
            ok = attempt(t, limit_s or 2 * LIMIT_S)
            failed += not ok
            print(f"{'ok' if ok else 'not ok'} {number} {t.__name__}", flush=True)
            note(f"{time.monotonic() - began:.1f} s")
    finally:
        ok = attempt(end_all, LIMIT_S)
        failed += not ok
        print(f"{'ok' if ok else 'not ok'} {len(tests) + 1} every_server_ended_well", flush=True)
    sys.exit(1 if failed else 0)


def attempt(f, limit_s):
    signal.alarm(limit_s)
    try:
        f()
        return True
    except Exception as e:  # a test may fail in any way
        signal.alarm(0)
        note("".join(traceback.format_exception(e)))
        for s in list(Server.live):
            note(f"-- the end of {s.name}'s log:")
            note(s.log_text()[-3000:])
        return False
    finally:
        signal.alarm(0)


def end_all():
    """Ends what is still up; the first complaint is raised after all were ended."""
    first = None
    while CLEANUPS:
        try:
            CLEANUPS.pop()()
        except Exception as e:
            first = first or e
    if first:
        raise first


def wait_for(question, what, limit_s=LIMIT_S, every_s=0.02):
    """Asks until the answer is true, and returns it."""
    end = time.monotonic() + limit_s
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Failed(f"this did not come within {limit_s} s: {what() if callable(what) else what}")
        time.sleep(every_s)


# --------------------------------------------------------------------------------------------------------------------
# Processes

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port():
    """A port that no server has, from below those that the kernel gives to connections: none of these takes it meanwhile."""
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            port = random.randrange(10_000, 32_000)
            s.bind(("127.0.0.1", port))
            return port


def alive(pid):
    """Whether the process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def fd_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


# What no log may hold. AddressSanitizer, LeakSanitizer, UBSan, ThreadSanitizer, and our own asserts.
REPORTS = ("ERROR: AddressSanitizer", "AddressSanitizer:DEADLYSIGNAL", "ERROR: LeakSanitizer", "LeakSanitizer has encountered",
           "runtime error:", "UndefinedBehaviorSanitizer", "WARNING: ThreadSanitizer", "ERROR: ThreadSanitizer",
           "FATAL: ThreadSanitizer", "ThreadSanitizer:DEADLYSIGNAL", "ThreadSanitizer: CHECK failed", "Assertion `",
           "Assertion failed")
# Also for a test that is run by hand.
os.environ.setdefault("TSAN_OPTIONS", f"second_deadlock_stack=1:suppressions={SOURCE}/tests/tsan.supp")
os.environ.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")


def check_reports(name, text):
    for r in REPORTS:
        check(r not in text, lambda r=r: f"{name}'s log has {r!r}:\n{text[max(0, text.find(r) - 500):][:6000]}")


def run_program(*args, stdin="", limit_s=LIMIT_S):
    """`railyard ARGS` from start to end: (exit status, stdout, stderr)."""
    p = subprocess.run([os.path.join(BUILD, "railyard"), *args], input=stdin, capture_output=True, text=True, timeout=limit_s)
    check_reports(f"railyard {args[0]}", p.stdout + p.stderr)
    return p.returncode, p.stdout, p.stderr


class Process:
    """A child in a process group of its own, its output in a file."""

    live = []

    def __init__(self, name, argv, env=None, out=None, fds=()):
        """out: a descriptor that gets the output in place of the log; fds: that the child keeps."""
        # The kernel's parent-death signal follows the thread that forked, so a short-lived one would take its child along.
        check(threading.current_thread() is threading.main_thread(), "a process is started by the main thread alone")
        self.name = name
        self.argv = argv
        self.dir = tempfile.mkdtemp(prefix="ry-")  # short: socket paths have at most 107 bytes
        self.log = os.path.join(self.dir, "log")
        self.ended_well = None
        self.status = 0  # that a test wants of it
        with open(self.log, "wb") as log:
            out = log if out is None else out
            self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                      # Freed memory is overwritten at once, as under meson: what reads it is found.
                                      env={"MALLOC_PERTURB_": "165", **os.environ, **(env or {})},
                                      start_new_session=True, preexec_fn=die_with_parent, pass_fds=fds)
        self.pid = self.p.pid
        type(self).live.append(self)
        CLEANUPS.append(self.end)

    def log_text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def running(self):
        return self.p.poll() is None

    def wait(self, limit_s=LIMIT_S):
        try:
            return self.p.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {limit_s} s") from None

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """kill -9, meant by the test: no complaint about the exit status."""
        self.signal(signal.SIGKILL)
        self.wait()

    def end(self):
        """SIGTERM, the exit status, the reports in the log; then nothing of the group is left."""
        if self.ended_well is not None:
            return
        self.ended_well = False
        try:
            meant = self.p.poll() == -signal.SIGKILL
            if self.running():
                self.signal(signal.SIGTERM)
            found = self.wait()
            text = self.log_text()
            check_reports(self.name, text)
            check(meant or found == self.status, lambda: f"{self.name} ended with {found}, wanted {self.status}:\n{text[-3000:]}")
            self.ended_well = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            if self in type(self).live:
                type(self).live.remove(self)
            shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        if kind is not None:
            note(f"-- the end of {self.name}'s log:\n{self.log_text()[-3000:]}")
        try:
            self.end()
        except Exception:
            if kind is None:
                raise


class Server(Process):
    """`railyard serve` (a router with workers of its own) or `railyard router` (workers come by themselves)."""

    live = []

    def __init__(self, *flags, command="serve", model=None, wait_ready=True, out=None):
        self.port = free_port()
        self.ops_port = free_port()
        self.run_dir = tempfile.mkdtemp(prefix="ry-")
        os.chmod(self.run_dir, 0o700)
        CLEANUPS.append(lambda: shutil.rmtree(self.run_dir, ignore_errors=True))
        argv = [os.path.join(BUILD, "railyard"), command, model or MODEL,
                f"--api.listen=127.0.0.1:{self.port}", f"--ops.listen=127.0.0.1:{self.ops_port}",
                f"--run.dir={self.run_dir}", "--drain.settle_s=0", f"--log.access={self.run_dir}/access", *flags]
        super().__init__(f"railyard {command}", argv, out=out)
        if wait_ready:
            self.wait_ready()
        else:
            self.wait_listening()

    def up(self, path):
        check(self.running(), lambda: f"{self.name} ended with {self.p.returncode}:\n{self.log_text()[-3000:]}")
        try:
            return self.get(path).status
        except (ConnectionRefusedError, ConnectionResetError, EOFError):
            return 0

    def wait_ready(self):
        wait_for(lambda: self.up("/readyz") == 200, f"{self.name} is ready")

    def wait_listening(self):
        wait_for(lambda: self.up("/livez") == 200, f"{self.name} listens")

    def connect(self, port=None):
        return Http1(port or self.port)

    def get(self, path, port=None, method="GET"):
        with self.connect(port) as c:
            return c.request(method, path)

    def post(self, path, body, headers=()):
        with self.connect() as c:
            return c.request("POST", path, body, headers)

    def chat(self, wanted_status=200, **body):
        """One whole chat reply (the parsed JSON)."""
        r = self.post("/v1/chat/completions", body)
        check_eq(r.status, wanted_status, f"status of {json.dumps(body)[:300]} -> {r.body[:500]!r}")
        return r.json()

    def stream(self, path="/v1/chat/completions", **body):
        """One streamed reply: the parsed chunks, after a strict reading of the stream."""
        with self.connect() as c:
            c.send_request("POST", path, {**body, "stream": True})
            r = c.read_response()
            check_eq(r.status, 200, f"status of a stream -> {r.body[:500]!r}")
            return chat_chunks(r.body)

    def metrics(self, port=None):
        r = self.get("/metrics", port)
        check_eq(r.status, 200, "status of /metrics")
        return parse_metrics(r.body.decode())

    def metric(self, name, **labels):
        """The sum of a family's series that have these labels; 0 when there are none."""
        return sum(v for k, v in self.metrics().get(name, {}).items() if labels.items() <= dict(k).items())

    def access_lines(self):
        """One line for each request whose reply was read before the call, in the order in which they ended: a line is written
        a moment after the reply, so one more request is made, and its own line, not given here, tells that theirs are there."""
        last = f"fence-{next(FENCES)}"
        with self.connect() as c:
            c.request("GET", "/livez", headers=[("X-Request-Id", last)])

        def lines():
            with open(f"{self.run_dir}/access", encoding="utf-8") as f:
                found = [strict_json(line) for line in f.read().split("\n")[:-1]]
            return found if any(x.get("client_request_id") == last for x in found) else None

        return [x for x in wait_for(lines, "the access log's line of a request") if not (x.get("client_request_id") or "").startswith("fence-")]

    @contextlib.contextmanager
    def stopped(self, pid):
        """The process stands still inside the block (SIGSTOP): what a worker runs stays as it is."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def caught(self, begin, count, *ranks):
        """begin() starts streams and returns them, each past its first event. Inside the block count of them run and the workers of
        the ranks (none: 0) stand still. This program may have slept until some were over: then they are begun again."""
        for _ in range(50):
            self.caught_pids = [self.wait_worker(rank)["pid"] for rank in ranks or (0,)]
            streams = begin()
            with contextlib.ExitStack() as still:
                for pid in self.caught_pids:
                    still.enter_context(self.stopped(pid))
                # What the workers had sent is taken in within the looks.
                if all(self.running_streams() == count for _ in range(3)):
                    yield streams
                    return
            for stream in streams:
                stream.rest()
        raise Failed("50 times streams were over before their workers could be stopped")

    @contextlib.contextmanager
    def held(self, body, path="/v1/chat/completions", rank=0):
        """A stream of body runs inside the block, and its worker stands still. Yields the stream's reader, past its first
        event. The engine may be through before the stop: then another stream is begun."""
        pid = self.wait_worker(rank)["pid"]
        for _ in range(50):
            with self.connect() as c:
                c.send_request("POST", path, {**body, "stream": True})
                reader = EventReader(c)
                reader.next()
                with self.stopped(pid):
                    # What the worker had sent is taken in by now, or within the second look.
                    if self.running_streams() and self.get("/readyz") and self.running_streams():
                        yield reader
                        return
                reader.rest()
        raise Failed("50 streams were over before their worker could be stopped")

    def running_streams(self):
        return self.metric("vllm:num_requests_running")

    def wait_idle(self):
        wait_for(lambda: self.running_streams() == 0 and self.metric("vllm:num_requests_waiting") == 0,
                 "no stream runs and none waits")

    def workers(self):
        """The worker objects of the ops listener."""
        found = self.get("/admin/v1/workers", self.ops_port).json()
        return found["data"] if isinstance(found, dict) else found

    def worker(self, rank=0):
        return next(w for w in self.workers() if w["rank"] == rank)

    def wait_worker(self, rank=0, state="ready", other_than_pid=None):
        return wait_for(lambda: next((w for w in self.workers() if w["rank"] == rank and w["state"] == state
                                      and w["pid"] != other_than_pid), None), f"worker {rank} is {state}")


class TlsServer(Server):
    """Asked for its readiness over the ops listener, which is plain."""

    def connect(self, port=None):
        return super().connect(port or self.ops_port)


class Worker(Process):
    """A worker started by hand: dials the lobby of a server."""

    live = []

    def __init__(self, server, *flags, model=None):
        super().__init__("railyard worker", [os.path.join(BUILD, "railyard-worker"), "worker", model or MODEL,
                                             f"--lobby=ipc://{server.run_dir}/lobby.sock", *flags])


class FakeWorker(Process):
    """A worker without an engine, started by hand: any number of ids a second, any way to die."""

    live = []

    def __init__(self, server, *flags, model="demo"):
        super().__init__("fake worker", [os.path.join(BUILD, "tests", "tools", "fake_worker"), f"--model={model}",
                                         f"--lobby=ipc://{server.run_dir}/lobby.sock", *flags])


def make_certificate(folder, name):
    """A self-signed one for localhost; returns the paths of certificate and key."""
    cert, key = os.path.join(folder, name + ".crt"), os.path.join(folder, name + ".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
                   check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return cert, key


SHARED = {}
SHARED_LOCK = threading.Lock()


def shared(*flags, **named):
    """One server per set of flags for the tests of a file that leave it as they found it."""
    key = (flags, tuple(sorted(named.items())))
    with SHARED_LOCK:
        if key not in SHARED or not SHARED[key].running():
            SHARED[key] = Server(*flags, **named)
        return SHARED[key]


# --------------------------------------------------------------------------------------------------------------------
# HTTP/1.1, by hand


class Response:
    def __init__(self, status, headers, body=b"", version="HTTP/1.1"):
        self.status, self.headers, self.body, self.version = status, headers, body, version

    def header(self, name, default=None):
        """The value; several of one name are an error of the server."""
        found = [v for k, v in self.headers if k == name.lower()]
        check(len(found) < 2, f"header {name} came {len(found)} times")
        return found[0] if found else default

    def json(self):
        check_in("json", self.header("content-type", ""), "content-type")
        return strict_json(self.body)


def strict_json(data):
    """Valid UTF-8, RFC 8259, no repeated key."""
    def pairs(items):
        keys = [k for k, _ in items]
        check(len(keys) == len(set(keys)), f"repeated key in {keys}")
        return dict(items)

    def constant(name):
        raise Failed(f"JSON has {name}")

    text = data.decode("utf-8") if isinstance(data, bytes) else data
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except ValueError as e:
        raise Failed(f"not JSON ({e}): {text[:300]!r}") from None


class Http1:
    """One connection. Reads exactly what the head announces; anything else is a failed check."""

    def __init__(self, port, limit_s=LIMIT_S, tls=None):
        """tls: an ssl.SSLContext."""
        self.s = socket.create_connection(("127.0.0.1", port), timeout=limit_s)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            self.s = tls.wrap_socket(self.s, server_hostname="localhost")
        self.buf = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.s.close()

    def reset(self):
        """Closes with RST instead of FIN."""
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.s.close()

    def send(self, data):
        self.s.sendall(data)

    def send_request(self, method, path, body=None, headers=(), version="HTTP/1.1"):
        """body: None, bytes, or anything JSON has."""
        self.method = method
        self.send(request_bytes(method, path, body, headers, version))

    def request(self, method, path, body=None, headers=()):
        self.send_request(method, path, body, headers)
        return self.read_response()

    def more(self):
        """False: the peer has closed."""
        data = self.s.recv(65536)
        self.buf += data
        return bool(data)

    def read_line(self):
        while b"\n" not in self.buf:
            if not self.more():
                raise EOFError(f"closed within a line: {self.buf[:200]!r}")
        line, _, self.buf = self.buf.partition(b"\n")
        return line.rstrip(b"\r").decode("latin-1")

    def read_bytes(self, count):
        while len(self.buf) < count:
            if not self.more():
                raise EOFError(f"closed {count - len(self.buf)} bytes early")
        data, self.buf = self.buf[:count], self.buf[count:]
        return data

    def read_rest(self):
        """All until the peer closes."""
        while self.more():
            pass
        data, self.buf = self.buf, b""
        return data

    def read_head(self):
        """Skips interim responses."""
        while True:
            version, _, rest = self.read_line().partition(" ")
            check(version in ("HTTP/1.1", "HTTP/1.0"), f"status line begins with {version!r}")
            status = int(rest[:3])
            headers = []
            while line := self.read_line():
                name, colon, value = line.partition(":")
                check(colon, f"header without a colon: {line!r}")
                headers.append((name.strip().lower(), value.strip()))
            if status >= 200:
                return Response(status, headers, version=version)

    def body_pieces(self, head):
        """The body as it comes, piece by piece."""
        if self.method == "HEAD" or head.status in (204, 304):
            return
        if head.header("transfer-encoding") == "chunked":
            while size := int(self.read_line().split(";")[0], 16):
                yield self.read_bytes(size)
                check_eq(self.read_bytes(2), b"\r\n", "end of a chunk")
            while self.read_line():
                pass
        elif head.header("content-length") is not None:
            if int(head.header("content-length")):
                yield self.read_bytes(int(head.header("content-length")))
        else:
            yield self.read_rest()

    def read_response(self):
        r = self.read_head()
        r.body = b"".join(self.body_pieces(r))
        return r

    def closed(self):
        """Waits for the end of the connection; what still came is returned."""
        try:
            return self.read_rest()
        except ConnectionResetError:
            return self.buf


def request_bytes(method, path, body=None, headers=(), version="HTTP/1.1"):
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {k.lower() for k, _ in headers}
    lines = [f"{method} {path} {version}"]
    if "host" not in named:
        lines.append("Host: localhost")
    if body is not None and "content-type" not in named:
        lines.append("Content-Type: application/json")
    if body is not None and not named & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(data)}")
    lines += [f"{k}: {v}" for k, v in headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class EventReader:
    """Reads a streamed reply event by event while it comes."""

    def __init__(self, connection):
        self.c = connection
        self.head = self.c.read_head()
        self.pieces = self.c.body_pieces(self.head)
        self.buf = b""

    def next(self):
        """The next event's parsed JSON, '[DONE]', or None at the end of the body."""
        while True:
            while b"\n\n" not in self.buf:
                piece = next(self.pieces, None)
                if piece is None:
                    check_eq(self.buf, b"", "bytes behind the last event")
                    return None
                self.buf += piece
            text, _, self.buf = self.buf.partition(b"\n\n")
            for event in sse_events(text + b"\n\n"):
                return event if event == "[DONE]" else strict_json(event)

    def rest(self):
        events = []
        while (e := self.next()) is not None:
            events.append(e)
        return events


# --------------------------------------------------------------------------------------------------------------------
# HTTP/2 with prior knowledge, over python3-h2


class Http2:
    """One connection with any number of streams."""

    def __init__(self, port, limit_s=LIMIT_S, tls=None):
        import h2.config
        import h2.connection
        import h2.events
        self.events = h2.events
        self.s = socket.create_connection(("127.0.0.1", port), timeout=limit_s)
        if tls:
            self.s = tls.wrap_socket(self.s, server_hostname="localhost")
        self.h = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h.initiate_connection()
        self.flush()
        self.streams = {}  # id -> Response; .done when ended, .reset when reset
        self.gone = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.s.close()

    def flush(self):
        self.s.sendall(self.h.data_to_send())

    def send_request(self, method, path, body=None, headers=()):
        """Returns the stream's number."""
        number = self.h.get_next_available_stream_id()
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)]
        if body is not None and not any(k == "content-type" for k, _ in headers):
            fields.append(("content-type", "application/json"))
        r = Response(0, [], b"", "HTTP/2")
        r.done = r.was_reset = False
        self.streams[number] = r
        self.h.send_headers(number, fields + list(headers), end_stream=body is None)
        self.flush()
        while body is not None:
            room = min(self.h.local_flow_control_window(number), self.h.max_outbound_frame_size)
            if not room and data:
                self.pump()
                continue
            self.h.send_data(number, data[:room], end_stream=len(data) <= room)
            self.flush()
            data = data[room:]
            if not data:
                break
        return number

    def pump(self):
        """Takes in what the peer sent next; false: the peer has closed."""
        data = self.s.recv(65536)
        if not data:
            self.gone = True
            return False
        for e in self.h.receive_data(data):
            r = self.streams.get(getattr(e, "stream_id", None))
            if isinstance(e, self.events.ResponseReceived):
                r.headers = [(k, v) for k, v in e.headers if not k.startswith(":")]
                r.status = int(dict(e.headers)[":status"])
            elif isinstance(e, self.events.DataReceived):
                r.body += e.data
                self.h.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
            elif isinstance(e, self.events.StreamEnded):
                r.done = True
            elif isinstance(e, self.events.StreamReset):
                r.done = r.was_reset = True
                r.reset_code = e.error_code
            elif isinstance(e, self.events.ConnectionTerminated):
                self.gone = True
        self.flush()
        return True

    def read_response(self, number):
        while not self.streams[number].done:
            if not self.pump():
                raise EOFError("the peer closed the connection within a reply")
        return self.streams[number]

    def request(self, method, path, body=None, headers=()):
        return self.read_response(self.send_request(method, path, body, headers))

    def reset_stream(self, number):
        self.h.reset_stream(number, error_code=8)  # CANCEL
        self.flush()


# --------------------------------------------------------------------------------------------------------------------
# Streams and metrics, read strictly


def sse_events(body):
    """The data of each event. Only data and event fields and comments, LF line ends, each event closed."""
    text = body.decode("utf-8")
    check("\r" not in text, "CR in a stream")
    check(text.endswith("\n\n"), f"the stream ends within an event: {text[-200:]!r}")
    for block in text[:-2].split("\n\n"):
        data = []
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            check(field in ("", "data", "event"), f"line in a stream: {line!r}")
            if field == "data":
                data.append(value[1:] if value.startswith(" ") else value)
        check(len(data) < 2, f"several data lines in one event: {block!r}")
        yield from data


def chat_chunks(body):
    """The chunks of a whole stream that ended well: [DONE] stands last and alone."""
    events = list(sse_events(body))
    check_eq(events[-1:], ["[DONE]"], "last event")
    return [strict_json(e) for e in events[:-1]]


def join_chunks(chunks, index=0):
    """The whole reply that a stream stands for, in the shape of one choice."""
    joined = {"content": "", "reasoning_content": "", "token_ids": [], "tool_calls": [], "logprobs": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            kinds = [k for k in ("content", "reasoning_content", "tool_calls") if delta.get(k)]
            check(len(kinds) <= 1, lambda: f"a delta of several kinds: {delta}")
            joined["content"] += delta.get("content") or ""
            joined["reasoning_content"] += delta.get("reasoning_content") or ""
            joined["token_ids"] += choice.get("token_ids") or []
            joined["logprobs"] += (choice.get("logprobs") or {}).get("content", [])
            for call in delta.get("tool_calls") or []:
                join_call(joined["tool_calls"], call)
            if choice["finish_reason"] is not None:
                for k in ("finish_reason", "stop_reason", "seed", "token_sha256"):
                    joined[k] = choice[k]
        if chunk.get("usage"):
            joined["usage"] = chunk["usage"]
        if chunk.get("prompt_token_ids") is not None:
            joined["prompt_token_ids"] = chunk["prompt_token_ids"]
        if chunk.get("railyard") is not None:
            joined["railyard"] = chunk["railyard"]
    return joined


def join_call(calls, part):
    """The first part of a call has its id, type and name; later ones only more of the arguments."""
    if part["index"] == len(calls):
        check_eq((set(part), part["type"], set(part["function"]), part["function"]["arguments"]),
                 ({"index", "id", "type", "function"}, "function", {"name", "arguments"}, ""), "first part of a call")
        calls.append({"id": part["id"], "type": "function", "function": dict(part["function"])})
        return
    check_eq(part["index"], len(calls) - 1, "index of a part of a call")
    check_eq((set(part), set(part["function"])), ({"index", "function"}, {"arguments"}), "later part of a call")
    calls[-1]["function"]["arguments"] += part["function"]["arguments"]


def parse_metrics(text):
    """{name: {((label, value), ...): number}} of the text format 0.0.4, checked line by line."""
    families, kinds = {}, {}
    check(text.endswith("\n"), "/metrics does not end in a line end")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            check(name not in kinds, f"family {name} comes twice")
            kinds[name] = kind
        elif not line.startswith("#"):
            name, labels, value = metric_line(line)
            base = name
            for suffix in ("_bucket", "_sum", "_count"):
                if kinds.get(name.removesuffix(suffix)) == "histogram":
                    base = name.removesuffix(suffix)
            check(base in kinds, f"series without a TYPE: {line!r}")
            series = families.setdefault(name, {})
            check(labels not in series, f"series comes twice: {line!r}")
            series[labels] = value
    return families


NO_COUNTERS = ("railyard_worker_kv_blocks_total",)  # the interface names it so: of all blocks, those in use beside it
METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
METRIC_LABELS = re.compile(r'\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"(?:,(?!\})|(?=\})))*\}')
METRIC_VALUE = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|\+Inf|NaN")


def check_metrics_page(text):
    """What `promtool check metrics` asks of a page: HELP, then TYPE, then all series of one family; names, labels, escapes,
    numbers; nothing twice; buckets that grow up to +Inf, which is the count; counters, and they alone, end in _total."""
    check(text.endswith("\n") and "\r" not in text, "line ends")
    families, kind, name, help_of = {}, None, None, None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            help_of, _, told = line[7:].partition(" ")
            check(METRIC_NAME.fullmatch(help_of) and told.strip(), f"HELP line: {line!r}")
            continue
        if line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            check_eq(name, help_of, "the name of a TYPE line behind a HELP line")
            check(kind in ("counter", "gauge", "histogram"), f"kind: {line!r}")
            check(name not in families, f"family {name} comes twice")
            check_eq(name.endswith("_total") and name not in NO_COUNTERS, kind == "counter", f"whether {name} ends in _total, and is a counter")
            check(kind == "histogram" or not name.endswith(("_bucket", "_sum", "_count")), f"{name} is named like a part of a histogram")
            families[name] = (kind, {})
            continue
        found = METRIC_NAME.match(line)
        check(found, f"line: {line!r}")
        suffix = found[0].removeprefix(name or "?")
        check(suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",)), f"a series under {name}: {line!r}")
        rest = line[found.end():]
        labels = METRIC_LABELS.match(rest)
        value = rest[labels.end() if labels else 0:]
        check(value.startswith(" ") and METRIC_VALUE.fullmatch(value[1:]), f"labels or value: {line!r}")
        _, pairs, number = metric_line(line)
        check(len({k for k, _ in pairs}) == len(pairs), f"a label comes twice: {line!r}")
        check(kind == "gauge" or number >= 0, f"negative: {line!r}")
        series = families[name][1]
        check((suffix, pairs) not in series, f"a series comes twice: {line!r}")
        series[suffix, pairs] = number
    for name, (kind, series) in families.items():
        if kind == "histogram":
            check_histogram(name, series)
    return families


def check_histogram(name, series):
    buckets = {}
    for (suffix, pairs), number in series.items():
        if suffix == "_bucket":
            bound = float(dict(pairs)["le"].replace("+Inf", "inf"))
            buckets.setdefault(tuple(p for p in pairs if p[0] != "le"), []).append((bound, number))
    for rest, found in buckets.items():
        check_eq(found, sorted(found), f"{name}: bounds in order")
        counts = [n for _, n in found]
        check_eq(counts, sorted(counts), f"{name}: buckets that grow")
        check_eq(found[-1], (float("inf"), series["_count", rest]), f"{name}: the last bucket and the count")
        check(("_sum", rest) in series, f"{name} has no sum")
    check_eq(sum(1 for s, _ in series if s == "_count"), len(buckets), f"{name}: counts")


def metric_line(line):
    head, _, value = line.rpartition(" ")
    name, brace, rest = head.partition("{")
    labels = []
    if brace:
        check(rest.endswith("}"), f"metric line: {line!r}")
        rest = rest[:-1]
        while rest:
            key, _, rest = rest.partition('="')
            text = ""
            while not rest.startswith('"'):
                if rest.startswith("\\"):
                    text, rest = text + {"n": "\n"}.get(rest[1], rest[1]), rest[2:]
                else:
                    text, rest = text + rest[0], rest[1:]
            labels.append((key, text))
            rest = rest[1:].removeprefix(",")
    return name, tuple(sorted(labels)), float(value.replace("+Inf", "inf"))
