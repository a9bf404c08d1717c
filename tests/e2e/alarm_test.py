"""False alarms: on a machine that is short of everything, no worker that works is called hung.

    RAILYARD_ALARM_S    seconds (30; `sh tests/long.sh alarm` takes 600, with the sanitized build)

Two cores are all there is, and two processes that only burn time share them with router, workers and clients. What counts as hung is unit-tested on a
clock of its own (tests/unit/router/backend_test.c); here it must not happen."""

import os
import subprocess
import sys
import threading
import time

from harness import Server, check, check_eq, main, note, test

SECONDS = float(os.environ.get("RAILYARD_ALARM_S", "30"))
BODY = {"messages": [{"role": "user", "content": "cat dog " * 300}], "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@test
def no_working_worker_is_called_hung_on_a_loaded_machine():
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # children inherit it
    with Server("--workers=2", "--streams=8", "--worker.progress_s=10", "--queue.wait_s=600") as s:
        pids = [s.wait_worker(rank)["pid"] for rank in range(2)]
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        over, errors, hashes = threading.Event(), [], set()

        def ask():
            while not over.is_set() and not errors:
                try:
                    hashes.add(s.chat(**BODY)["choices"][0]["token_sha256"])
                except Exception as e:  # its result
                    errors.append(f"{type(e).__name__}: {e}")

        clients = [threading.Thread(target=ask) for _ in range(8)]
        try:
            for c in clients:
                c.start()
            time.sleep(SECONDS)
        finally:
            over.set()
            for b in burners:
                b.kill()
                b.wait()
            for c in clients:
                c.join(240)
        check_eq(errors[:2], [], "what went wrong")
        check_eq(len(hashes), 1, "different hashes")
        check_eq([s.worker(rank)["pid"] for rank in range(2)], pids, "pids")
        check_eq(s.metric("railyard_worker_failures_total"), 0, "failures")
        check_eq(s.metric("railyard_resumes_total"), 0, "resumes")
        check("hung" not in s.log_text(), "the log calls a worker hung")
        note(f"{SECONDS:g} s, {s.metric('railyard_requests_finished_total'):g} replies")


main(limit_s=int(SECONDS) + 300)
