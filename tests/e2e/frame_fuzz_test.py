"""Hostile peers on the frames' sockets, while real ones work beside them: who breaks the rules is dropped, nobody else notices.

    RAILYARD_FUZZ_S      seconds of each test (6)
    RAILYARD_FUZZ_SEED   (the time, printed)

The peers here speak the wire by hand (lengths, msgpack, proto/frame.md), so that they can also get it wrong in every way: in
lengths, in msgpack and in meaning. What they send is the corpus of the frame
fuzzer, with the right generation put in and then damaged."""

import collections
import glob
import os
import random
import shutil
import socket
import struct
import tempfile
import threading
import time

import msgpack

from harness import MODEL, SMALL, SOURCE, Server, Worker, alive, check, check_eq, fd_count, main, note, test, wait_for

SECONDS = float(os.environ.get("RAILYARD_FUZZ_S", "3" if SMALL else "15"))
SEED = int(os.environ.get("RAILYARD_FUZZ_SEED", "0")) or int(time.time())
BODY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 40, "ignore_eos": True,
        "temperature": 0.8, "seed": 3}
HELLO, WELCOME, VOCAB, SUBMIT, CANCEL, TOKENS, DONE, FAIL, STATUS, DRAIN, GOODBYE, PING, PONG = range(1, 14)
VERSION = 2


def corpus():
    """The frames of the corpus that are msgpack at all, by type."""
    found = collections.defaultdict(list)
    for path in sorted(glob.glob(os.path.join(SOURCE, "tests", "fuzz", "corpus", "frame", "*"))):
        with open(path, "rb") as f:
            data = f.read()
        try:
            frame = msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="replace")
        except Exception:  # seeds of damage: the mutations below make their own
            continue
        if isinstance(frame, list) and len(frame) > 2 and isinstance(frame[0], int):
            found[frame[0]].append(frame)
    return found


class Damage:
    def __init__(self, rng):
        self.rng, self.frames = rng, corpus()

    def frame(self, types, generation):
        """Bytes of a frame: sometimes whole, mostly not."""
        kind = self.rng.choice([t for t in types if self.frames[t]])
        f = list(self.rng.choice(self.frames[kind]))
        f[1] = generation if self.rng.random() < 0.9 else self.rng.choice([0, generation + 1, 2**32 - 1, -1])
        if self.rng.random() < 0.3 and len(f) > 2:
            f[self.rng.randrange(2, len(f))] = self.rng.choice([None, -1, 2**63, "x" * 5000, [], b"\xff" * 7, 1.5, True, {"a": 1},
                                                                [[[[[[[[[[1]]]]]]]]]]])
        return self.bytes(msgpack.packb(f, use_bin_type=True))

    def bytes(self, data):
        data, rng = bytearray(data), self.rng
        how = rng.random()
        if how < 0.25:
            return bytes(data)
        if how < 0.6:
            for _ in range(rng.choice([1, 1, 2, 8])):
                if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif how < 0.75:
            del data[rng.randrange(len(data) + 1):]
        elif how < 0.9:
            at = rng.randrange(len(data) + 1)
            data[at:at] = rng.randbytes(rng.choice([1, 4, 100]))
        else:  # a head that claims much
            at = rng.randrange(len(data) + 1)
            data[at:at] = rng.choice([b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xf0", b"\xdb\x7f\xff\xff\xff", b"\xdf\xff\xff\xff\xff"])
        return bytes(data)


class Tube:
    """One side of an incarnation's socket, by hand: a little-endian u32 length before each frame (proto/tube.h)."""

    def __init__(self, s):
        self.s = s

    def read(self, n):
        data = b""
        while len(data) < n:
            piece = self.s.recv(n - len(data))
            if not piece:
                raise ConnectionResetError("closed")
            data += piece
        return data

    def send(self, data, claimed=None):
        self.s.sendall(struct.pack("<I", len(data) if claimed is None else claimed) + data)

    def receive(self):
        return msgpack.unpackb(self.read(struct.unpack("<I", self.read(4))[0]), raw=False)


def dial(path, limit_s=30):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(limit_s)
    s.connect(path)
    return s


GONE = (ConnectionError, socket.timeout, TimeoutError, OSError)


class HostileWorker:
    """Joins, sends damage until it is dropped, and comes back."""

    def __init__(self, s, rng):
        self.s, self.rng, self.damage, self.tally = s, rng, Damage(rng), collections.Counter()

    def hello(self):
        return [HELLO, 0, VERSION, VERSION, -1, os.getpid(), False, f"hostile-{self.rng.random()}", "hostile", "demo", "", "", "",
                ["build", "checkpoint", "device", "kv", "rope"]]

    def in_lobby(self):
        """One visit to the lobby; the WELCOME if it came to that."""
        with dial(f"{self.s.run_dir}/lobby.sock", 1) as s:
            data = msgpack.packb(self.hello(), use_bin_type=True)
            if self.rng.random() < 0.5:
                data = self.damage.bytes(data)
                self.tally["damaged HELLO"] += 1
            length = len(data) if self.rng.random() < 0.9 else self.rng.choice([0, 1, 2**16, 2**31, 2**32 - 1])
            s.sendall(struct.pack("<I", length) + data)
            if self.rng.random() < 0.1:
                return None  # and gone before the answer
            try:
                answer = Tube(s).receive()
            except GONE:
                self.tally["no answer"] += 1
                return None
        self.tally["WELCOME" if answer[0] == WELCOME else "refused"] += 1
        return answer if answer[0] == WELCOME else None

    def misbehave(self, welcome):
        generation, path = welcome[4], welcome[6]
        with dial(path.removeprefix("ipc://"), 5) as s:
            tube = Tube(s)
            for _ in range(self.rng.choice([1, 5, 50, 500])):
                data = self.damage.frame([TOKENS, DONE, FAIL, STATUS, PING, PONG, GOODBYE, SUBMIT, HELLO], generation)
                claimed = None if self.rng.random() < 0.98 else self.rng.choice([0, 8 * 2**20 + 1, 2**31, 2**32 - 1])
                tube.send(data, claimed)
                self.tally["frames"] += 1
            s.settimeout(0.05)
            while True:
                tube.read(1)

    def once(self):
        try:
            welcome = self.in_lobby()
            if welcome:
                self.misbehave(welcome)
        except GONE as e:
            self.tally["dropped" if not isinstance(e, socket.timeout) else "not yet"] += 1


class Clients:
    """Ask all the time; every reply has to be right."""

    def __init__(self, s, wanted, count=3):
        self.s, self.wanted, self.over, self.errors, self.done = s, wanted, threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.run) for _ in range(count)]

    def run(self):
        while not self.over.is_set() and not self.errors:
            try:
                check_eq(self.s.chat(**BODY)["choices"][0]["token_sha256"], self.wanted, "hash")
                self.done += 1
            except Exception as e:  # its result
                self.errors.append(f"{type(e).__name__}: {e}")

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join(120)


@test
def hostile_workers_are_dropped_and_the_others_serve_on():
    rng = random.Random(SEED)
    note(f"seed {SEED}")
    with Server("--workers=2", "--threads=1", "--worker.progress_s=20", "--log.level=error") as s:
        pids = [s.wait_worker(rank)["pid"] for rank in range(2)]
        wanted = s.chat(**BODY)["choices"][0]["token_sha256"]
        fds, hostile = fd_count(s.pid), HostileWorker(s, rng)
        with Clients(s, wanted) as clients:
            until = time.monotonic() + SECONDS
            while not clients.errors and (time.monotonic() < until or not clients.done
                                          or hostile.tally["WELCOME"] <= 5 or hostile.tally["dropped"] <= 5):
                hostile.once()
        check_eq(clients.errors[:2], [], "what went wrong")
        check_eq([s.worker(rank)["pid"] for rank in range(2)], pids, "pids of the real workers")
        check_eq([s.wait_worker(rank)["state"] for rank in range(2)], ["ready", "ready"], "their states")
        wait_for(lambda: fd_count(s.pid) <= fds + 4, "the router's descriptors are as before")
        note(f"{clients.done} replies beside {dict(hostile.tally)}")


class HostileRouter:
    """A lobby that welcomes a worker, teaches it the vocabulary and then sends damage."""

    def __init__(self, folder, rng, vocab):
        self.folder, self.rng, self.damage, self.vocab = folder, rng, Damage(rng), vocab
        self.tally, self.generation = collections.Counter(), 0
        self.lobby = self.listen("lobby.sock")

    def listen(self, name):
        path = f"{self.folder}/{name}"
        if os.path.exists(path):
            os.unlink(path)
        s = socket.socket(socket.AF_UNIX)
        s.bind(path)
        s.listen(8)
        s.settimeout(20)
        return s

    def close(self):
        self.lobby.close()
        os.unlink(f"{self.folder}/lobby.sock")

    def welcome(self):
        """Takes one HELLO; the socket of the incarnation if the answer was one that a worker can take."""
        conn, _ = self.lobby.accept()
        with conn:
            conn.settimeout(20)
            hello = Tube(conn).receive()
            check_eq((hello[0], hello[1]), (HELLO, 0), "what a worker says first")
            self.tally["HELLO"] += 1
            self.generation += 1
            own = self.listen(f"w0.{self.generation}.sock")
            answer = msgpack.packb([WELCOME, 0, VERSION, 0, self.generation, 77, f"ipc://{self.folder}/w0.{self.generation}.sock", 5.0])
            if self.rng.random() < 0.2:
                self.tally["damaged WELCOME"] += 1
                conn.sendall(struct.pack("<I", self.rng.choice([0, len(answer), 2**31])) + self.damage.bytes(answer))
                own.close()
                return None
            conn.sendall(struct.pack("<I", len(answer)) + answer)
        return own

    def misbehave(self, own):
        own.settimeout(20)
        conn, _ = own.accept()
        with conn:
            conn.settimeout(20)
            tube = Tube(conn)
            tube.send(msgpack.packb([VOCAB, self.generation, *self.vocab], use_bin_type=True))
            for _ in range(self.rng.choice([1, 5, 50, 300])):
                # DRAIN may tell it to end, rightly, and a VOCAB that does not fit its head does: left out.
                tube.send(self.damage.frame([SUBMIT, SUBMIT, SUBMIT, CANCEL, PING, PONG, TOKENS, WELCOME], self.generation))
                self.tally["frames"] += 1
            conn.settimeout(0.05)
            while True:
                tube.read(1)

    def once(self):
        try:
            own = self.welcome()
        except GONE:
            self.tally["no HELLO"] += 1
            return
        if not own:
            return
        with own:
            try:
                self.misbehave(own)
            except socket.timeout:
                self.tally["ended by us"] += 1
            except GONE:
                self.tally["dropped us"] += 1


@test
def a_worker_outlives_hostile_routers_and_serves_the_next_good_one():
    rng = random.Random(SEED + 1)
    folder = tempfile.mkdtemp(prefix="ry-fuzz-")
    os.chmod(folder, 0o700)
    size = 4096
    vocab = [size, [[0, size]], b"", b"", -1, -1, -1]

    class Place:
        run_dir = folder

    try:
        with Server("--threads=1") as good:
            wanted = good.chat(**BODY)["choices"][0]["token_sha256"]
        hostile = HostileRouter(folder, rng, vocab)
        with Worker(Place, "--threads=1", model=MODEL) as w:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until or not hostile.tally["dropped us"] or hostile.tally["frames"] <= 50:
                hostile.once()
                check(w.running(), lambda: f"the worker ended:\n{w.log_text()[-2000:]}")
            hostile.close()
            with Server(f"--run.dir={folder}", command="router", wait_ready=False) as s:
                s.wait_ready()
                check_eq(s.wait_worker()["pid"], w.pid, "pid")
                check_eq(s.chat(**BODY)["choices"][0]["token_sha256"], wanted, "hash after it all")
            check(alive(w.pid), "the worker is gone")
            note(f"{dict(hostile.tally)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main(limit_s=int(SECONDS) + 240)
