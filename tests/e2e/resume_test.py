"""Replies that lose their worker: they go on at another one, or at its successor, and nothing in them tells of it."""

import concurrent.futures
import os
import signal

from harness import (SMALL, EventReader, FakeWorker, Server, alive, check, check_eq, check_in, join_chunks, main, test, wait_for)

CHAT = "/v1/chat/completions"
# Long enough that workers are stopped within. A sanitized one is slower: there short replies last as long.
TOKENS, MANY = (150, 200) if SMALL else (600, 900)
BODY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": TOKENS, "ignore_eos": True,
        "seed": 7, "return_token_ids": True, "return_logits_hash": True, "temperature": 0}
SAMPLED = {**BODY, "temperature": 1.1, "top_p": 0.95, "top_k": 50, "presence_penalty": 0.4, "frequency_penalty": 0.3,
           "repetition_penalty": 1.1, "logit_bias": {"300": 2}}
KINDS = [BODY, SAMPLED, {**BODY, "ignore_eos": False, "max_tokens": min(TOKENS, 300)}]


def of_whole(reply):
    """What must be equal between a disturbed run and an undisturbed one."""
    c, m = reply["choices"][0], reply["choices"][0]["message"]
    return {"text": m["content"], "thought": m.get("reasoning_content") or "", "ids": c["token_ids"], "sha": c["token_sha256"],
            "finish": c["finish_reason"], "bits": reply["railyard"]["logits_hash"], "usage": reply["usage"]}


def of_stream(events):
    check_eq(events[-1], "[DONE]", "last event")
    j = join_chunks(events[:-1])
    return {"text": j["content"], "thought": j["reasoning_content"], "ids": j["token_ids"], "sha": j["token_sha256"],
            "finish": j["finish_reason"], "bits": j["railyard"]["logits_hash"], "usage": j["usage"]}


class Stream:
    """A streamed reply, read up to a number of its ids."""

    def __init__(self, s, body, ids=0):
        c = s.connect()
        c.send_request("POST", CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
        self.reader, self.events = EventReader(c), []
        while sum(len(ch.get("token_ids") or []) for e in self.events for ch in e["choices"]) < ids:
            self.events.append(self.reader.next())
        self.worker = int(self.reader.head.header("x-railyard-worker"))

    def rest(self):
        self.events += self.reader.rest()
        self.reader.c.close()
        return self.events


def kill(s, rank, number=signal.SIGKILL):
    pid = s.wait_worker(rank)["pid"]
    os.kill(pid, number)
    return pid


def resumed(events):
    return join_chunks(events[:-1])["railyard"]["resumed"]


@test
def a_killed_workers_streams_go_on_at_the_other_with_the_same_bits():
    with Server("--workers=2", "--threads=1", "--streams=8", "--worker.progress_s=300") as s:
        s.wait_worker(0), s.wait_worker(1)
        kinds = [{**b, "ignore_eos": True, "max_tokens": MANY} for b in KINDS]
        wanted = [of_whole(s.chat(**b)) for b in kinds]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            # The workers stand still until all six are theirs.
            with s.caught(lambda: [Stream(s, b, ids) for b, ids in zip(kinds, (3, 40, 17))], 3, 0, 1) as streams:
                whole = [pool.submit(s.chat, **b) for b in kinds]
                wait_for(lambda: s.running_streams() == 6, "all six run")
                kill(s, streams[0].worker)
            found = [of_stream(x.rest()) for x in streams]
            check_eq(found, wanted, "streams")
            check_eq([of_whole(w.result()) for w in whole], wanted, "whole replies")
        check(resumed(streams[0].events) == 1, "the stream of the dead worker was not resumed")
        check_eq(s.metric("railyard_resumes_total", result="ok"), s.metric("railyard_resume_pause_seconds_count"), "pauses")
        check(s.metric("railyard_resumes_total", result="ok", cause="death") >= 1, "no resume is counted")
        check(any(line.get("resumed") == 1 for line in s.access_lines()), "the access log tells of no resume")


@test
def several_choices_with_logprobs_go_on_too():
    body = {**SAMPLED, "n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": TOKENS // 2, "return_logits_hash": False}

    def facts(c, text, thought, logprobs):
        return {"text": text, "thought": thought, "logprobs": logprobs, **{k: c[k] for k in ("token_ids", "token_sha256", "finish_reason")}}

    with Server("--workers=2", "--threads=1", "--streams=8", "--worker.progress_s=300") as s:
        s.wait_worker(0), s.wait_worker(1)
        reply = s.chat(**body)
        wanted = [facts(c, c["message"]["content"], c["message"].get("reasoning_content") or "", c["logprobs"]["content"])
                  for c in reply["choices"]]
        check(all(w["logprobs"] for w in wanted), "a choice without logprobs")
        with s.caught(lambda: [Stream(s, body, 20)], 2, 0, 1) as [stream]:
            kill(s, stream.worker)
        events = stream.rest()
        check_eq(events[-1], "[DONE]", "last event")
        joined = [join_chunks(events[:-1], i) for i in range(2)]
        check_eq([facts(j, j["content"], j["reasoning_content"], j["logprobs"]) for j in joined], wanted, "choices")
        check_eq(joined[0]["usage"], reply["usage"], "usage")
        check(joined[0]["railyard"]["resumed"] >= 1, "nothing was resumed")


@test
def with_one_worker_a_reply_waits_for_its_successor():
    with Server("--threads=1") as s:
        wanted = [of_whole(s.chat(**b)) for b in KINDS]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with s.caught(lambda: [Stream(s, b, 5) for b in KINDS], 3) as streams:
                early = pool.submit(s.chat, **BODY)
                kill(s, 0)
            check_eq([of_stream(x.rest()) for x in streams], wanted, "streams")
            check_eq(of_whole(early.result()), wanted[0], "a whole reply")
        check_eq([resumed(x.events) for x in streams], [1, 1, 1], "resumed")


@test
def case_08_a_stopped_worker_is_found_hung_and_its_stream_goes_on():
    with Server("--worker.progress_s=1", "--threads=1") as s:
        wanted = of_whole(s.chat(**BODY))
        with s.caught(lambda: [Stream(s, BODY, 5)], 1) as [stream]:
            check_eq(of_stream(stream.rest()), wanted, "stream")
            check_eq(resumed(stream.events), 1, "resumed")
            wait_for(lambda: not alive(s.caught_pids[0]), "the stopped worker is gone")


@test
def a_request_that_was_live_at_two_deaths_fails_and_names_it():
    with Server("--workers=2", "--threads=1") as s:
        s.wait_worker(0), s.wait_worker(1)
        for tries in range(1, 51):  # it may be over before the second death
            s.wait_worker(0), s.wait_worker(1)
            with s.caught(lambda: [Stream(s, {**BODY, "max_tokens": 3000}, 5)], 1, 0, 1) as [stream]:
                kill(s, stream.worker)
            wait_for(lambda: s.metric("railyard_resumes_total", result="ok") == tries, "it goes on")
            kill(s, 1 - stream.worker)
            last = stream.rest()[-1]
            if last != "[DONE]":
                break
        check_in("error", last, "last event")
        check_eq(last["error"]["code"], "request_failed_repeatedly", "code of the event")
        check_in("2 workers", last["error"]["message"], "message")
        check_eq(s.metric("railyard_resumes_total", result="poisoned"), 1, "poisoned")
        s.wait_ready()
        s.chat(**BODY)


@test
def a_reply_that_has_begun_never_goes_on_at_another_kind_of_worker():
    # A fake worker's ids follow from the prompt: only the one that is killed within its reply need be slow.
    slow, fast = "--rate=50", "--rate=2000"
    with Server("--workers=2", "--route.wait_ready_s=60", command="router", wait_ready=False) as s:
        with FakeWorker(s, fast):
            s.wait_ready()
            wanted = s.chat(**{**BODY, "return_logits_hash": False})["choices"][0]["token_sha256"]
        wait_for(lambda: s.get("/readyz").status == 503, "its worker is gone")
        with FakeWorker(s, slow) as first:
            s.wait_ready()
            stream = Stream(s, BODY, 3)
            first.kill()
        with FakeWorker(s, "--checkpoint=other", "--reply=65 66 67") as other:
            s.wait_ready()
            # Not held up by the one that waits for its kind.
            check_eq(s.chat(**{**BODY, "max_tokens": 3})["choices"][0]["token_ids"], [65, 66, 67], "ids of the other kind")
            check_eq(s.metric("vllm:num_requests_waiting"), 1, "waiting")
            with FakeWorker(s, fast):
                events = stream.rest()
            check(other.running(), "the other worker ended")
        check_eq(join_chunks(events[:-1])["token_sha256"], wanted, "hash")
        check_eq(resumed(events), 1, "resumed")


@test
def case_36_without_a_successor_it_fails_after_resume_s():
    with Server("--route.resume_s=1", command="router", wait_ready=False) as s, FakeWorker(s, "--rate=50") as w:
        s.wait_ready()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stream = Stream(s, BODY, 3)
            whole = pool.submit(s.post, CHAT, BODY)
            wait_for(lambda: s.running_streams() == 2, "both run")
            w.kill()
            check_eq(stream.rest()[-1]["error"]["code"], "worker_lost", "code of the event")
            check_eq((whole.result().status, whole.result().json()["error"]["code"]), (503, "worker_lost"), "whole")
        check_eq(s.metric("railyard_resumes_total", result="no_worker"), 2, "no_worker")
        s.wait_idle()


@test
def a_client_that_leaves_while_its_reply_waits_is_forgotten():
    with Server(command="router", wait_ready=False) as s:
        with FakeWorker(s, "--rate=50") as w:
            s.wait_ready()
            stream = Stream(s, BODY, 3)
            w.kill()
            wait_for(lambda: s.metric("vllm:num_requests_waiting") == 1, "it waits")
            stream.reader.c.close()
            wait_for(lambda: s.metric("vllm:num_requests_waiting") == 0, "it is gone")
        check_eq(s.metric("railyard_client_closed_total", phase="resume"), 1, "clients that left in a resume")


@test
def a_stop_string_across_the_death_ends_the_reply_where_it_would_have():
    with Server("--workers=2", "--threads=1") as s:
        s.wait_worker(0), s.wait_worker(1)
        plain = {**BODY, "return_logits_hash": False}
        text = s.chat(**plain)["choices"][0]["message"]
        content = text["content"] or text["reasoning_content"]
        cut = content[60:75]
        body = {**plain, "stop": cut}
        wanted = s.chat(**body)
        stream = Stream(s, body, 12)
        kill(s, stream.worker)
        j = join_chunks(stream.rest()[:-1])
        c = wanted["choices"][0]
        check_eq((j["content"], j["token_sha256"], j["finish_reason"]),
                 (c["message"]["content"] or "", c["token_sha256"], "stop" if cut in (text["content"] or "") else c["finish_reason"]),
                 "text, hash and end")


main()
