"""The units of deploy/systemd: they parse, they are shut in, and their ExecStart lines do what they say under a notify socket."""

import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile

from harness import BUILD, MODEL, Process, check, check_eq, check_in, free_port, main, note, test, wait_for

SOURCE = os.environ["RAILYARD_SOURCE"]
UNITS = os.path.join(SOURCE, "deploy", "systemd")
ROUTER, WORKER, SOCKET = "railyard-router.service", "railyard-worker@.service", "railyard-router.socket"
EXPOSURE_MAX = 2.0


def unit(name, section="Service"):
    p = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#", ";"))
    p.optionxform = str
    p.read(os.path.join(UNITS, name))
    return p[section]


class Root:
    """A folder that stands for the machine's root as far as the units use it."""

    def __init__(self, api, ops):
        self.dir = tempfile.mkdtemp(prefix="ry-root-")
        for d in ("bin", "etc", "run", "model"):
            os.mkdir(os.path.join(self.dir, d))
        os.chmod(os.path.join(self.dir, "run"), 0o700)
        for program in ("railyard", "railyard-worker"):
            os.symlink(os.path.join(BUILD, program), os.path.join(self.dir, "bin", program))
        for name in ("router.conf", "worker.conf"):
            with open(os.path.join(UNITS, name), encoding="utf-8") as f:
                text = f.read().replace("127.0.0.1:8000", f"127.0.0.1:{api}").replace("127.0.0.1:8001", f"127.0.0.1:{ops}")
            with open(os.path.join(self.dir, "etc", name), "w", encoding="utf-8") as f:
                f.write(text)

    # Where the units' paths are in here.
    def paths(self):
        return {"/usr/local/bin": f"{self.dir}/bin", "/etc/railyard": f"{self.dir}/etc", "/run/railyard": f"{self.dir}/run"}

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def can_unshare():
    return subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0


def command(root, name, rank="0"):
    """The ExecStart line as systemd would run it: verbatim in a mount namespace of its own where the machine lets us make
    one, with its paths replaced where it does not."""
    line = unit(name)["ExecStart"].replace("%i", rank).replace("${RAILYARD_MODEL}", MODEL)
    if not can_unshare():
        note("no mount namespace here: the line's paths are replaced")
        for there, here in root.paths().items():
            line = line.replace(there, here)
        return shlex.split(line)
    # /usr/local, /etc and /run are folders of every machine; what lies in them is covered in this namespace alone.
    setup = ["set -e", f"cp -a /etc {root.dir}/all-etc" if not os.path.isdir(f"{root.dir}/all-etc") else ":",
             f"mkdir -p {root.dir}/all-etc/railyard", f"mount --bind {root.dir}/all-etc /etc",
             f"mount --bind {root.dir}/etc /etc/railyard", "mount -t tmpfs tmpfs /usr/local", "mkdir /usr/local/bin",
             f"cp -P {root.dir}/bin/* /usr/local/bin/", "mkdir -p /run/railyard 2>/dev/null || true",
             f"mount --bind {root.dir}/run /run/railyard"]
    return ["unshare", "-m", "sh", "-c", "; ".join(setup) + f"; exec {line}"]


class Manager:
    """The service manager's end of the notify socket."""

    def __init__(self, root, name):
        self.path = os.path.join(root.dir, f"notify-{name}")
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(self.path)
        self.s.setblocking(False)
        self.said = []

    def has(self, line):
        while True:
            try:
                self.said += self.s.recv(4096).decode().split("\n")
            except BlockingIOError:
                return line in self.said

    def env(self, watchdog_s):
        return {**os.environ, "NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}


class Service(Process):
    live = []


@test
def the_units_are_valid_and_shut_in():
    with tempfile.TemporaryDirectory() as d:
        for name in (ROUTER, WORKER, SOCKET):
            with open(os.path.join(UNITS, name), encoding="utf-8") as f:
                text = f.read()
            for program in ("railyard-worker", "railyard"):
                text = text.replace(f"/usr/local/bin/{program} ", f"{BUILD}/{program} ")
            with open(os.path.join(d, name), "w", encoding="utf-8") as f:
                f.write(text)
        paths = [os.path.join(d, name) for name in (ROUTER, WORKER, SOCKET)]
        p = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True, check=False)
        complaints = [line for line in p.stderr.splitlines() if "railyard" in line]
        check_eq((p.returncode, complaints), (0, []), "systemd-analyze verify")
        for path in paths[:2]:
            p = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", path], capture_output=True,
                               text=True, check=False)
            exposure = float(re.search(r"exposure level for \S+: ([\d.]+)", p.stdout).group(1))
            note(f"{os.path.basename(path)}: exposure {exposure}")
            check(exposure <= EXPOSURE_MAX, f"exposure of {path}: {exposure}")


def default_of(setting, command="router"):
    p = subprocess.run([os.path.join(BUILD, "railyard"), command, "--help"], capture_output=True, text=True, check=True)
    text = p.stdout[p.stdout.index(f"--{setting}="):]
    return float(re.search(r"\(default ([\d.]+)", text).group(1))


@test
def the_stop_timeouts_cover_what_the_programs_take():
    settle, drain = default_of("drain.settle_s"), default_of("drain.timeout_s")
    cut_and_workers = 1 + 10  # CUT_GRACE_MS and STOP_GRACE_S of router/server.c
    router, worker = float(unit(ROUTER)["TimeoutStopSec"]), float(unit(WORKER)["TimeoutStopSec"])
    check(router > settle + drain + cut_and_workers, f"router: {router} s")
    check(worker > drain + 10, f"worker: {worker} s")
    # A sign of life is sent every third of the limit, and an engine may stand still for worker.progress_s at least.
    check(float(unit(WORKER)["WatchdogSec"]) > 2 * default_of("worker.progress_s"), "the worker's watchdog is too quick")


@test
def the_exec_lines_start_serve_beat_and_end_as_the_units_expect():
    api, ops = free_port(), free_port()
    root = Root(api, ops)
    try:
        managers = [Manager(root, n) for n in ("router", "worker")]
        router = Service("router unit", command(root, ROUTER), env=managers[0].env(3))
        wait_for(lambda: managers[0].has("READY=1"), "the router says READY=1")
        worker = Service("worker unit", command(root, WORKER), env=managers[1].env(3))
        wait_for(lambda: managers[1].has("READY=1"), "the worker says READY=1")
        wait_for(lambda: managers[0].has("STATUS=1 of 1 workers ready"), "the router tells of its worker")
        for m in managers:
            m.said.clear()
            wait_for(lambda m=m: m.has("WATCHDOG=1"), "a sign of life")
        body = '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4}'
        p = subprocess.run(["curl", "-sS", f"http://127.0.0.1:{api}/v1/chat/completions", "-H", "Content-Type: application/json",
                            "-d", body], capture_output=True, text=True, check=False)
        check_in('"finish_reason"', p.stdout, "answer")
        for process, manager in ((worker, managers[1]), (router, managers[0])):
            process.signal(signal.SIGTERM)
            check_eq(process.wait(), 0, f"exit status of {process.name}")
            check(manager.has("STOPPING=1"), f"{process.name} did not say STOPPING=1")
    finally:
        root.remove()


def handed_over(argv, listening):
    """argv as systemd runs it with the one socket of the unit: descriptor 3, and the process named that it is meant for."""
    return ["sh", "-c", f'exec 8<&{listening.fileno()}; exec 3<&8 8<&-; LISTEN_PID=$$ exec "$@"', "sh", *argv]


def ask(c, path="/livez"):
    c.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())


@test
def connections_wait_in_the_socket_unit_while_the_router_is_restarted():
    s = unit(SOCKET, "Socket")
    with open(os.path.join(UNITS, "router.conf"), encoding="utf-8") as f:
        check_in(f"api.listen = {s['ListenStream']}\n", f.read(), "the socket's address in router.conf")
    root = Root(free_port(), free_port())
    manager = Manager(root, "router")
    listening = socket.create_server(("127.0.0.1", 0))
    env = {**manager.env(3), "LISTEN_FDS": "1", "LISTEN_FDNAMES": s["FileDescriptorName"]}
    address = listening.getsockname()
    try:
        waits = None
        for turn in (1, 2):
            router = Service(f"router unit {turn}", handed_over(command(root, ROUTER), listening), env=env, fds=(listening.fileno(),))
            wait_for(lambda: manager.has("READY=1"), "the router says READY=1")
            if waits:
                check_in(b"HTTP/1.1 200", waits.makefile("rb").read(), "the answer to what was asked between two routers")
                waits.close()
            with socket.create_connection(address) as c:
                ask(c)
                check_in(b"HTTP/1.1 200", c.makefile("rb").read(), f"an answer in run {turn}")
            manager.said.clear()
            router.signal(signal.SIGTERM)
            check_eq(router.wait(), 0, "exit status of the router")
            waits = socket.create_connection(address, timeout=120)
            ask(waits)
        waits.close()
    finally:
        listening.close()
        root.remove()


main()
