"""What a stream may and may not do, with a worker that says given ids or stops saying any.

Cases 12, 20, 23, 26, 29, 30, 31, 33 and 34 of the faults that users of such servers met, and their kin."""

import os
import random
import tempfile

from harness import EventReader, FakeWorker, Server, SMALL, check, check_eq, check_in, join_chunks, main, shared, sse_events, test

USER = [{"role": "user", "content": "x"}]
PLAIN = {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}}
TEXT = "Gr\u00fc\u00dfe \u4e2d\u6587 \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \U0001f98a\u00bd\u0000\u2028end"


def ids_of(text):
    return shared().post("/tokenize", {"prompt": text}).json()["tokens"]


class scripted:
    """A server whose one worker follows a script."""

    def __init__(self, lines, *flags, worker=()):
        with tempfile.NamedTemporaryFile("w", suffix=".script", delete=False) as f:
            f.write("\n".join(lines) + "\n")
        self.path = f.name
        self.server = Server(*flags, command="router", wait_ready=False)
        self.worker = FakeWorker(self.server, f"--script={self.path}", *worker)

    def __enter__(self):
        self.server.wait_ready()
        return self.server, self.worker

    def __exit__(self, *what):
        os.unlink(self.path)
        self.worker.__exit__(*what)
        self.server.__exit__(*what)


def reply(ids):
    return "reply " + " ".join(map(str, ids))


def raw_stream(server, **body):
    with server.connect() as c:
        c.send_request("POST", "/v1/chat/completions", {**body, "stream": True})
        return c.read_response()


@test
def case_12_no_character_is_cut_wherever_tokens_rounds_and_limits_cut_it():  # L#4446, L#4036; tensai #110; imp #1310
    rng = random.Random(12)
    cuts = 3 if SMALL else 10
    pieces = [ids_of(c)[k:] for c in TEXT for k in (0, 1)]  # whole characters, and their last bytes alone
    texts = [ids_of(TEXT)] + [sum(rng.choices(pieces, k=12), []) for _ in range(cuts)]
    lines = [reply(t) for t in texts for _ in range(2 * len(t))]
    for per_round in (1, 2, 5):
        with scripted(lines, worker=[f"--per-round={per_round}"]) as (server, _):
            for t in texts:
                for limit in range(1, len(t) + 1):
                    whole = server.chat(**PLAIN, max_tokens=limit)["choices"][0]
                    joined = join_chunks(server.stream(**PLAIN, max_tokens=limit))  # each chunk is read as strict UTF-8
                    check_eq((joined["content"], joined["token_sha256"]), (whole["message"]["content"], whole["token_sha256"]),
                             f"{limit} of {t}")


@test
def case_20_a_stop_string_is_never_found_in_a_mark():  # V#45636; vLLM 38864: nor does a mark leak beside one
    ids = ids_of("thought </think>") + ids_of("\n\nanswer </thi and more<|im_end|>")
    with scripted([reply(ids)] * 6) as (server, _):
        for stop, content in (("think", "answer </thi and more"), ("</thi", "answer "), ("</think>", "answer </thi and more")):
            body = {"messages": USER, "stop": stop, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": len(ids)}
            message = server.chat(**body)["choices"][0]["message"]
            check_eq((message["content"], message["reasoning_content"]), (content, "thought "), f"with {stop!r}")
            joined = join_chunks(server.stream(**body))
            check_eq((joined["content"], joined["reasoning_content"]), (content, "thought "), f"streamed with {stop!r}")


@test
def case_23_drafts_asked_for_or_not_change_nothing():  # V#30204
    for body in ({"max_tokens": 30}, {"max_tokens": 60, "stop": "."}, {"seed": 3, "temperature": 1, "max_tokens": 30}):
        body = {**PLAIN, "messages": [{"role": "user", "content": "Tell me a story about a brave fox."}], "temperature": 0, **body}
        on, off = (shared().chat(**body, draft=d) for d in (True, False))
        for k in ("message", "finish_reason", "token_sha256"):
            check_eq(off["choices"][0][k], on["choices"][0][k], k)
        check_eq(off["usage"], on["usage"], "usage")


@test
def case_29_an_error_in_a_stream_is_its_end_and_the_next_request_works():  # mistral.rs #1874
    with scripted(["die 3"], "--route.resume_s=0.5") as (server, worker):
        r = raw_stream(server, **PLAIN)
        events = list(sse_events(r.body))
        check_in('"code":"worker_lost"', events[-1], "the last event")
        check("[DONE]" not in events, "an end mark behind an error")
        check('"finish_reason":"' not in r.body.decode(), "a finish_reason beside an error")
        worker.wait()
        with FakeWorker(server):
            server.wait_ready()
            check_eq(server.chat(**PLAIN, max_tokens=4)["usage"]["completion_tokens"], 4, "ids of the next reply")


@test
def case_30_every_byte_of_a_stream_is_a_field_or_a_comment():  # lemonade #2975; the reader is strict
    calls = ids_of("<tool_call>\n<function=f>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call><|im_end|>")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]
    lines = [reply(calls)] * 2 + ["die 2"]
    with scripted(lines, "--route.resume_s=0.3") as (server, worker):
        for body, last in (({**PLAIN, "tools": tools}, "[DONE]"), ({**PLAIN, "tools": tools, "logprobs": True, "return_token_ids": True}, "[DONE]"),
                           (PLAIN, '"worker_lost"')):
            r = raw_stream(server, **body)
            check_eq(r.status, 200, "status")
            check_in(last, list(sse_events(r.body))[-1], "the last event")
        worker.wait()


@test
def case_31_a_stream_that_waits_too_long_ends_with_an_error_event():  # ninfer #137
    with Server("--stream.first_byte_s=0", "--queue.wait_s=0.5", "--route.wait_ready_s=0.5", command="router", wait_ready=False) as server:
        r = raw_stream(server, **PLAIN)
        check_eq(r.status, 200, "status")
        check_in("no_ready_worker", list(sse_events(r.body))[-1], "the last event")


@test
def case_33_a_keepalive_is_a_comment_before_the_first_event_too():  # L#23994, ds4 #194, litellm #34374
    with scripted(["hang"], "--stream.first_byte_s=0", "--stream.keepalive_s=0.2") as (server, _):
        with server.connect() as c:
            c.send_request("POST", "/v1/chat/completions", {**PLAIN, "stream": True})
            reader = EventReader(c)
            body = b""
            while body.count(b": keepalive\n\n") < 3:
                body += next(reader.pieces)
            check_eq(body.replace(b": keepalive\n\n", b""), b"", "bytes beside comments")
        server.wait_idle()


@test
def case_34_the_last_event_the_end_mark_and_the_end_of_the_body_come_together():
    with scripted([reply([70, 71, 72])] * 8) as (server, _):
        for options in ({}, {"stream_options": {"include_usage": True}}):
            with server.connect() as c:
                c.send_request("POST", "/v1/chat/completions", {**PLAIN, "max_tokens": 3, "stream": True, **options})
                pieces = list(EventReader(c).pieces)
            check(pieces[-1].endswith(b"data: [DONE]\n\n"), pieces[-1])
            check_in(b'"usage":{' if options else b'"finish_reason":"', pieces[-1], "the last write")


main()
