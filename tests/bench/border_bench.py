"""border_bench: what another client notices of each attack of the border suite: its p50 and p99 alone, and while it goes on.

    border_bench.py [SECONDS]       of each attack; 6

The router has one core; the attackers, niced, and the bystander have the other, each in processes of their own. Run under
`nice -n -19`, other work on the machine shows less. The bystander
asks for a whole chat reply of one token of a fake worker (real frames, no engine), again and again, on a connection of its own.
Every answer must be 200. Nothing is asserted of times: on a machine with other work they say little.
"""

import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
import harness
from harness import FakeWorker, Http1, Server, check_eq, request_bytes

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "ignore_eos": True}
ROUTER_CPU, REST_CPU = 0, 1
RATE = 500  # ids a second of a stream: what one costs is in every figure
HEAD = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def pin(pid, cpu):
    with contextlib.suppress(OSError):  # with one core all share it, and the figures say so
        os.sched_setaffinity(pid, {cpu})


def connect(port):
    s = socket.create_connection(("127.0.0.1", port))
    s.setblocking(False)
    return s


def try_send(s, data):
    """False: the peer has had enough."""
    try:
        s.send(data)
        return True
    except BlockingIOError:
        return True
    except OSError as e:
        if e.errno in (errno.EPIPE, errno.ECONNRESET):
            return False
        raise


def over_and_over(port, count, begin, piece, pause_s):
    """So many connections; each is sent the beginning, then one piece after the other; one that is cut begins anew."""
    crowd = []
    while True:
        while len(crowd) < count:
            s = connect(port)
            if try_send(s, begin):
                crowd.append(s)
        kept = []
        for s in crowd:
            if try_send(s, piece):
                kept.append(s)
            else:
                s.close()
        crowd = kept
        time.sleep(pause_s)


def slow_heads(port):
    over_and_over(port, 2000, b"GET /livez HTTP/1.1\r\nHost: a\r\nX: ", b"x", 1)


def slow_bodies(port):
    over_and_over(port, 2000, HEAD + b"Content-Length: 100000\r\n\r\n", b" ", 1)


def endless_bodies(port):
    over_and_over(port, 8, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b" " * 4096 + b"\r\n", 0)


def large_heads(port):
    over_and_over(port, 8, b"GET /livez HTTP/1.1\r\nHost: a\r\nX: ", b"x" * (64 << 10), 0)


def pipelines(port):
    """Hundreds of requests in one write, the answers read and dropped."""
    burst = request_bytes("GET", "/v1/models") * 200
    crowd = [connect(port) for _ in range(8)]
    while True:
        for s in crowd:
            try_send(s, burst)  # half of one may go out: the rest of the stream is then a bad head, and the end of it
        for s in select.select(crowd, [], [], 0.01)[0]:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                if not s.recv(1 << 20):
                    crowd[crowd.index(s)] = connect(port)


def idle_connections(port):
    crowd = [connect(port) for _ in range(10_000)]
    while crowd:
        time.sleep(1)


def slow_readers(port):
    """Streams of thousands of tokens that nobody reads."""
    ask = request_bytes("POST", CHAT, {**ASK, "max_tokens": 3000, "stream": True, "return_token_ids": True})
    over_and_over(port, 100, ask, b"", 1)


ATTACKS = (None, slow_heads, slow_bodies, endless_bodies, large_heads, pipelines, slow_readers, idle_connections)


def child(f, *args, nice=0):
    pid = os.fork()
    if pid:
        return pid
    harness.die_with_parent()
    pin(0, REST_CPU)
    os.nice(nice)
    try:
        f(*args)
    finally:
        os._exit(1)


def bystander(port, seconds, out):
    times, wrong = [], 0
    end = time.monotonic() + seconds
    with Http1(port) as c:
        while time.monotonic() < end:
            began = time.monotonic()
            wrong += c.request("POST", CHAT, ASK).status != 200
            times.append(time.monotonic() - began)
            time.sleep(0.002)
    times.sort()
    os.write(out, json.dumps({"asked": len(times), "wrong": wrong, "p50": times[len(times) // 2] * 1e3,
                              "p99": times[int(len(times) * .99)] * 1e3, "max": times[-1] * 1e3}).encode())
    os._exit(0)


def measure(port, seconds):
    r, w = os.pipe()
    pid = child(bystander, port, seconds, w)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        found = json.loads(f.read())
    os.waitpid(pid, 0)
    check_eq(found["wrong"], 0, "answers of the bystander that are not 200")
    return found


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(s, attack, seconds):
    pid = child(attack, s.port, nice=15) if attack else None
    if pid:
        time.sleep(3 if attack is idle_connections else 1)  # it is well under way
    began, cpu = time.monotonic(), cpu_seconds(s.pid)
    found = measure(s.port, seconds)
    busy = (cpu_seconds(s.pid) - cpu) / (time.monotonic() - began)
    connections = s.metric("railyard_http_connections")
    if pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        harness.wait_for(lambda: s.metric("railyard_http_connections") < 10, "the attackers' connections are gone")
    name = attack.__name__.replace("_", " ") if attack else "alone"
    print(f"| {name} | {found['asked']} | {found['p50']:.2f} | {found['p99']:.2f} | {found['max']:.1f} | {100 * busy:.0f}% | {connections:.0f} |",
          flush=True)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    s = Server("--worker.progress_s=300", "--queue.requests_max=1000", command="router", wait_ready=False)
    pin(FakeWorker(s, f"--rate={RATE}", "--streams=500").pid, REST_CPU)
    s.wait_ready()
    pin(s.pid, ROUTER_CPU)
    for thread in os.listdir(f"/proc/{s.pid}/task"):
        pin(int(thread), ROUTER_CPU)
    print(f"# descriptors {soft} -> {hard}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("| attack | asked | p50 ms | p99 ms | worst ms | router's core | connections |\n| --- | --- | --- | --- | --- | --- | --- |")
    try:
        for attack in ATTACKS:
            run(s, attack, seconds)
        run(s, None, seconds)
    finally:
        harness.end_all()


main()
