"""How the program is called, starts and ends: what is wrong is said once, in words, and shows in the exit status."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile

from harness import (BUILD, LIMIT_S, MODEL, Failed, Process, Server, Worker, check, check_eq, check_in, main, note, run_program, test, wait_for)

CHAT = "/v1/chat/completions"
SHORT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 8, "ignore_eos": True}
DIR = tempfile.TemporaryDirectory(prefix="ry-start-")
F_SETPIPE_SZ = 1031
SHARD = "model-00002-of-00002.safetensors"


def demo_with(name, change):
    """A folder `name/demo` (workers and router go by its last part) that is the demo but for what change(folder) does."""
    folder = os.path.join(DIR.name, name, "demo")
    os.makedirs(folder)
    for entry in os.listdir(MODEL):
        if not os.path.isdir(os.path.join(MODEL, entry)):
            shutil.copy(os.path.join(MODEL, entry), folder)
    change(folder)
    return folder


def cut(folder):
    os.truncate(os.path.join(folder, SHARD), 5000)


def put_nan(folder):
    """NaN into the norm before the head: every logit is one then."""
    for entry in sorted(os.listdir(folder)):
        if not entry.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, entry), "r+b") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            header = json.loads(f.read(size))
            for name, tensor in header.items():
                if name.endswith("model.norm.weight"):
                    check_eq(tensor["dtype"], "BF16", "type of the norm")
                    f.seek(8 + size + tensor["data_offsets"][0])
                    f.write(b"\xc0\x7f" * (tensor["shape"][0]))
                    return
    raise Failed("the demo has no norm before its head")


def warnings(text):
    return [line for line in text.splitlines() if " warn " in line or " error " in line]


@test
def a_command_that_takes_nothing_refuses_what_stands_behind_it():
    for command in ("version", "help", "--version", "--help"):
        code, out, err = run_program(command, "zzz")
        check_eq((code, out), (2, ""), f"{command} zzz")
        check_in("wanted nothing behind it, found 'zzz'", err, command)
        check_eq(run_program(command)[0], 0, command)


@test
def ctl_says_how_it_is_used():
    for args in (("--help",), ("workers", "--help")):
        code, out, err = run_program("ctl", *args)
        check_eq((code, err), (0, ""), "how it ends")
        check_in("workers", out, "its commands")
        check_in("--ops=", out, "its flags")


@test
def an_address_that_is_none_is_refused_as_any_bad_setting():
    for address in (":0", "[]:0", "foo"):
        for command in ("serve", "router"):
            for setting in ("api.listen", "ops.listen"):
                code, _, err = run_program(command, MODEL, "--api.listen=127.0.0.1:0", f"--{setting}={address}", f"--run.dir={DIR.name}")
                check_eq(code, 2, f"{command} --{setting}={address}")
                check_in(f"railyard {command}: {setting}: wanted HOST:PORT or unix:/path, found '{address}'\n", err, address)
    with socket.socket() as taken:  # which another start may find free
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = run_program("router", MODEL, f"--api.listen=127.0.0.1:{taken.getsockname()[1]}", f"--run.dir={DIR.name}")
        check_eq(code, 1, "an address that is taken")
        check_in("railyard router: api.listen: listen on ", err, "an address that is taken")


@test
def a_clean_start_and_stop_warn_of_nothing():
    with Server("--workers=2", "--threads=1") as s:
        s.wait_worker(0)
        s.wait_worker(1)
        s.chat(**SHORT)
        s.signal(signal.SIGTERM)
        check_eq(s.wait(), 0, "exit status")
        check_eq(warnings(s.log_text()), [], "warnings")
    with Server(command="router", wait_ready=False) as s, Worker(s) as w:
        s.wait_ready()
        w.end()
        wait_for(lambda: s.get("/readyz").status == 503, "/readyz is 503")
        s.signal(signal.SIGTERM)
        check_eq(s.wait(), 0, "exit status")
        check_eq(warnings(s.log_text()), [], "warnings")


@test
def a_server_that_cannot_be_ready_by_itself_says_so():
    with Server("--ready.workers_min=2", wait_ready=False) as s:
        wait_for(lambda: "ready_later ready.workers_min=2 workers=1" in s.log_text(), "the warning")


@test
def a_gpu_that_is_not_there_is_refused_by_the_setting_s_name():
    if os.path.exists("/dev/nvidiactl"):
        return
    status, _, err = run_program("bench", "engine", MODEL, "--backend=cuda")
    check(status != 0, "a start without a GPU")
    check_in("backend: wanted a GPU with a driver of CUDA 13, found none ('cpu' runs without)", err, "the refusal")


@test
def a_checkpoint_that_is_broken_ends_serve_with_its_reason():
    code, _, err = run_program("serve", demo_with("cut", cut), "--api.listen=127.0.0.1:0", "--ops.listen=127.0.0.1:0",
                               f"--run.dir={DIR.name}")
    check_eq(code, 1, "exit status")
    check_in(SHARD, err, "the reason")


def costs_file(name, **changes):
    """A file of costs that is right for this model but for its changes; None: without that key."""
    costs = {"railyard_costs": 1, "device": "cpu", "shape": "qwen3_5 8x256x4096 plain", "rows_ms": list(range(1, 33)), **changes}
    path = os.path.join(DIR.name, name)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({k: v for k, v in costs.items() if v is not None}, f)
    return path


@test
def costs_that_no_worker_would_take_are_found_before_one_is_started():
    broken = os.path.join(DIR.name, "broken")
    with open(broken, "w", encoding="utf-8") as f:
        f.write("{\n no costs\n")
    for costs, says in ((broken, f"costs '{broken}': line 2: "), (broken + "/none", f"costs: file '{broken}/none'"),
                        (costs_file("keyless", device=None), "device: wanted a text, found nothing"),
                        (costs_file("shapeless", shape=7), "shape: wanted a text, found 7"),
                        (costs_file("short", rows_ms=[1, 2]), "rows_ms: wanted a list of 16 numbers or more"),
                        (costs_file("falling", rows_ms=list(range(32, 0, -1))), "rows_ms: wanted numbers above 0 that never fall"),
                        (costs_file("more", draft_ms={"eagle": [1]}), "draft_ms: wanted copy, mtp")):
        code, out, err = run_program("inspect", MODEL, "--check", f"--costs={costs}")
        check_eq((code, err), (2, ""), f"inspect --check: exit status and stderr: {out}")
        check_in(says, out, "what inspect --check says")
        code, _, err = run_program("serve", MODEL, f"--costs={costs}", "--workers=2", "--api.listen=127.0.0.1:0",
                                   "--ops.listen=127.0.0.1:0", f"--run.dir={DIR.name}")
        check_eq(code, 2, f"exit status of serve: {err}")
        check_in("railyard serve: costs", err, "what serve says")
        check_in(says, err, "what serve says")
        check_eq(err.count("\n"), 1, "lines")
    good = costs_file("good")
    check_eq(run_program("inspect", MODEL, "--check", f"--costs={good}"), (0, "", ""), "inspect --check of good costs")


@test
def workers_that_fail_for_good_end_serve_with_their_reason():
    """What only the worker can find wrong: here costs of another device."""
    costs = costs_file("costs", device="abacus")
    code, _, err = run_program("serve", MODEL, f"--costs={costs}", "--workers=2", "--api.listen=127.0.0.1:0",
                               "--ops.listen=127.0.0.1:0", f"--run.dir={DIR.name}")
    check_eq(code, 1, "exit status")
    reasons = [line for line in err.splitlines() if f"costs '{costs}': device: wanted " in line]
    check_eq([" error railyard worker_failed " in line for line in reasons], [True, True], lambda: f"once for each worker: {reasons}")
    check_eq(err.count(" worker_started "), 2, "starts of the workers")
    check_eq(err.count(" worker_failed "), 2, "lines that say that one failed for good")
    check_in("not started again after exit code 2", err, "what was made of it")
    check_in("its settings are refused (exit code 2)", err, "what that means")
    check("checkpoint" not in "".join(reasons), "the checkpoint has the blame")
    check_in("every worker has failed for good", err, "the last word")


@test
def a_signal_before_there_is_anything_to_end_still_ends_it_in_good_order():
    """It comes while the settings are read, which here takes as long as the test wants."""
    ports = ("--api.listen=127.0.0.1:0", "--ops.listen=127.0.0.1:0")
    for program, words in (("railyard", ("serve", MODEL, "--drain.settle_s=0", f"--run.dir={DIR.name}", *ports)),
                           ("railyard", ("router", MODEL, "--drain.settle_s=0", f"--run.dir={DIR.name}", *ports)),
                           ("railyard", ("worker", MODEL, f"--lobby={DIR.name}/none.sock")), ("railyard-worker", (MODEL, f"--lobby={DIR.name}/none.sock"))):
        for which in (signal.SIGTERM, signal.SIGINT):
            settings = os.path.join(DIR.name, "slow.conf")
            os.mkfifo(settings)
            p = subprocess.Popen([os.path.join(BUILD, program), *words, f"--config={settings}"], stderr=subprocess.PIPE)
            with open(settings, "w", encoding="utf-8"):  # opens when the other side has
                p.send_signal(which)
            err = p.communicate(timeout=LIMIT_S)[1].decode()
            check_eq(p.returncode, 0, lambda e=err, w=words: f"exit status of {w[:2]}\n{e}")
            os.unlink(settings)


@test
def messages_name_the_program_that_was_called():
    for words, text in ((("inspect",), "railyard inspect: wanted one MODEL"), (("logits", "--bogus=1"), "railyard logits: no setting 'bogus'"),
                        (("worker", MODEL, "zzz"), "railyard worker: wanted one MODEL"),
                        (("inspect", "--kind=xyz", MODEL), "railyard inspect: setting kind: wanted on or off, found 'xyz'"),
                        (("logits", MODEL), "railyard logits: wanted --out=FILE.npy"),
                        (("bench", "engine", MODEL, "--context=2"), "railyard bench: context: wanted at least ")):
        code, _, err = run_program(*words)
        check(code != 0, words)
        check_in(text, err, words)
        check("railyard-worker" not in err, err)
    out = run_program("inspect", "--help")[1]
    check_in("  railyard inspect MODEL ", out, "help")
    check("railyard-worker" not in out, out)


@test
def a_worker_with_a_broken_checkpoint_is_named_where_clients_ask():
    model = demo_with("cut_again", cut)
    with Server("--route.wait_ready_s=0.1", command="router", model=model, wait_ready=False) as s:
        check("reason" not in s.get("/readyz").json(), "a reason before anything has failed")
        w = Worker(s, model=model)
        w.status = 3
        check_eq(w.wait(), 3, "exit status of the worker")
        wait_for(lambda: s.worker()["state"] == "failed", "the worker is failed")
        r = wait_for(lambda: (r := s.get("/readyz")).json().get("reason") and r, "/readyz has the reason")
        check_eq((r.status, r.json()["reason"]), (503, "worker 0: its engine has failed"), "/readyz")
        check_in(SHARD, s.worker()["reason"], "the operator's reason, with the file")
        told = s.get("/readyz", s.ops_port).json()["reason"]
        check_eq(told, f"worker 0: {s.worker()['reason']}", "/readyz of the operations port")
        r = s.post(CHAT, SHORT)
        check_eq((r.status, r.json()["error"]["code"]), (503, "no_ready_worker"), "answer")
        check_eq(r.json()["error"]["message"], "no worker is ready: worker 0: its engine has failed", "message")
        with Worker(s, model=MODEL):  # a good one of the same name
            s.wait_ready()
            check("reason" not in s.get("/readyz").json(), "a reason when one is ready")
            s.chat(**SHORT)
        w.end()


@test
def logits_that_are_nan_are_an_error_of_their_request():
    with Server(model=demo_with("nan", put_nan)) as s:
        for body in (SHORT, {**SHORT, "temperature": 1.0}, {**SHORT, "return_logits_hash": True}):
            r = s.post(CHAT, body)
            check_eq((r.status, r.json()["error"]["code"]), (500, "internal_error"), "answer")
            check_in("logits behind token", r.json()["error"]["message"], "message")
        c = s.connect()
        c.send_request("POST", CHAT, {**SHORT, "stream": True})
        check_in(b"no finite numbers", c.read_response().body, "the stream")
        c.close()
        check_eq(s.get("/readyz").status, 200, "/readyz")
        failed = [x for x in warnings(s.log_text()) if "stream_failed" in x]
        check_eq(len(failed), 4, f"lines, one a request: {failed}")
        check_in("no finite numbers", failed[0], "the line")
        s.wait_idle()


@test
def nobody_waits_for_a_reader_of_the_log():
    """A pipe of one page that is not read: the start-up reports alone are more than it holds."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    count = 100
    with Server("--log.access=stderr", out=writer) as s, s.connect() as c:
        os.close(writer)
        for _ in range(count):
            check_eq(c.request("GET", "/v1/models").status, 200, "status")
        s.chat(**SHORT)
        got = b""
        os.set_blocking(reader, False)

        def lines():
            nonlocal got
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(reader, 65536):
                    got += piece
            return [x for x in got.decode().splitlines() if '"endpoint":' in x]

        wait_for(lambda: sum("chat_completions" in x for x in lines()) == 1, "the last line has come")
        check_eq(sum('"models"' in x for x in lines()), count, "lines of the access log")
        for line in lines():
            json.loads(line)
        check_in("ready: http://", got.decode(), "the report")
        note(f"{len(got)} bytes waited for a reader")
    os.close(reader)


@test
def a_report_of_a_sanitizer_fails_the_test_of_its_process_however_that_ends():
    report = "echo 'WARNING: ThreadSanitizer: data race (pid=1)' >&2; "
    for how in ("exit 0", "kill -9 $$", "exec sleep 1000"):
        p = Process("planted", ["/bin/sh", "-c", report + how])
        wait_for(lambda p=p: "WARNING" in p.log_text(), "the report is there")
        try:
            p.end()
        except Failed as e:
            check_in("planted's log has 'WARNING: ThreadSanitizer'", str(e), "what the test says")
        else:
            raise Failed(f"{how}: the report went unseen")


main()
