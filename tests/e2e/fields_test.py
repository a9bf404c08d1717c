"""Bad requests: each gets one clear answer that names the field; nothing starts, nothing breaks."""

import json
import random

from harness import check, check_eq, check_in, main, note, shared, test

ASK = [{"role": "user", "content": "Hi"}]
GOOD = {"messages": ASK, "max_tokens": 2}
CHAT = "/v1/chat/completions"


def server():
    return shared()


def error_of(r):
    """The one error object of a reply, checked for its shape."""
    body = r.json()
    check_eq(set(body), {"error", "request_id"}, "keys of an error")
    e = body["error"]
    check_eq(set(e), {"message", "type", "param", "code"}, "keys of the error")
    check(isinstance(e["message"], str) and 0 < len(e["message"]) <= 1024, "message")
    check_eq(r.header("x-request-id"), body["request_id"], "request_id")
    check(len(r.body) <= 4096, f"error body of {len(r.body)} bytes")
    return e


def refused(body, status, code, param=None, path=CHAT, headers=()):
    r = server().post(path, body, headers)
    what = body if isinstance(body, bytes) else json.dumps(body)
    check_eq(r.status, status, f"status of {what[:200]!r} -> {r.body[:300]!r}")
    e = error_of(r)
    check_eq((e["code"], e["param"]), (code, param), f"code and param of {what[:200]!r} -> {e['message']!r}")
    if param and code != "context_length_exceeded":
        check_in(param.split(".")[-1].split("[")[0], e["message"], "message")
    return e


def taken(body, path=CHAT):
    r = server().post(path, body)
    check_eq(r.status, 200, f"status of {json.dumps(body)[:200]} -> {r.body[:300]!r}")
    return r.json()


# (field, value, code). The wanted parameter is the field unless a fourth says otherwise.
BAD_VALUES = [
    ("model", "demo\0x", "invalid_value"), ("user", "a\0b", "invalid_value"),
    ("max_tokens", 10 ** 23, "invalid_value"),
    ("messages", None, "missing_required_parameter"),
    ("messages", "Hi", "invalid_type"),
    ("messages", [], "invalid_value"),
    ("messages", [5], "invalid_type", "messages[0]"),
    ("messages", [{"content": "Hi"}], "missing_required_parameter", "messages[0].role"),
    ("messages", [{"role": "king", "content": "Hi"}], "invalid_value", "messages[0].role"),
    ("messages", [{"role": "function", "content": "Hi"}], "invalid_value", "messages[0].role"),
    ("messages", [{"role": "user"}], "missing_required_parameter", "messages[0].content"),
    ("messages", [{"role": "user", "content": 5}], "invalid_type", "messages[0].content"),
    ("messages", [{"role": "user", "content": [{"type": "input_audio"}]}], "unsupported_parameter", "messages[0].content[0].type"),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": 5}]}], "invalid_type", "messages[0].content[0].text"),
    ("messages", ASK + [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{"}}]}],
     "invalid_value", "messages[1].tool_calls[0].function.arguments"),
    ("model", 5, "invalid_type"),
    ("stream", "yes", "invalid_type"),
    ("stream", 1, "invalid_type"),
    ("stream_options", {"include_usage": True}, "invalid_value"),
    ("max_tokens", 0, "invalid_value"),
    ("max_tokens", -5, "invalid_value"),
    ("max_tokens", 1.5, "invalid_type"),
    ("max_tokens", "8", "invalid_type"),
    ("max_completion_tokens", 0, "invalid_value"),
    ("min_tokens", -1, "invalid_value"),
    ("min_tokens", 3, "invalid_value"),
    ("temperature", -0.1, "invalid_value"),
    ("temperature", 2.1, "invalid_value"),
    ("temperature", "1", "invalid_type"),
    ("top_p", 1.1, "invalid_value"),
    ("top_p", -0.1, "invalid_value"),
    ("top_k", -2, "invalid_value"),
    ("top_k", 10_000_000, "invalid_value"),
    ("top_k", 1.5, "invalid_type"),
    ("min_p", 1.5, "invalid_value"),
    ("presence_penalty", 2.5, "invalid_value"),
    ("frequency_penalty", -2.5, "invalid_value"),
    ("repetition_penalty", 0, "invalid_value"),
    ("repetition_penalty", 2.5, "invalid_value"),
    ("logit_bias", [], "invalid_type"),
    ("logit_bias", {"x": 1}, "invalid_value"),
    ("logit_bias", {"99999999": 1}, "invalid_value"),
    ("logit_bias", {"5": 101}, "invalid_value"),
    ("logit_bias", {"5": "1"}, "invalid_type"),
    ("seed", 1.5, "invalid_type"),
    ("seed", 2**64, "invalid_value"),
    ("seed", "5", "invalid_type"),
    ("stop", "", "invalid_value"),
    ("stop", 5, "invalid_type"),
    ("stop", [""], "invalid_value"),
    ("stop", ["a"] * 17, "invalid_value"),
    ("stop", "a" * 1025, "invalid_value"),
    ("stop_token_ids", [-1], "invalid_value"),
    ("stop_token_ids", [99999999], "invalid_value"),
    ("stop_token_ids", ["5"], "invalid_type"),
    ("stop_token_ids", list(range(65)), "invalid_value"),
    ("ignore_eos", "no", "invalid_type"),
    ("return_token_ids", 1, "invalid_type"),
    ("stream_interval", 0, "invalid_value"),
    ("stream_interval", 65, "invalid_value"),
    ("priority", 101, "invalid_value"),
    ("priority", 1.5, "invalid_type"),
    ("chat_template_kwargs", [], "invalid_type"),
    ("chat_template_kwargs", {"enable_thinking": "yes"}, "invalid_type"),
    ("reasoning_effort", "huge", "invalid_value"),
    ("include_reasoning", 0, "invalid_type"),
    ("modalities", ["audio"], "unsupported_parameter"),
    ("functions", [{"name": "f"}], "unsupported_parameter"),
    ("function_call", "auto", "unsupported_parameter"),
    ("audio", {}, "unsupported_parameter"),
    ("web_search_options", {}, "unsupported_parameter"),
    ("chat_template", "{{ x }}", "unsupported_parameter"),
    ("documents", [{}], "unsupported_parameter"),
    ("n", 0, "invalid_value"),
    ("n", 9, "invalid_value"),
]


@test
def every_bad_value_is_answered_by_its_name():
    for field, value, code, *param in BAD_VALUES:
        body = {**GOOD, field: value}
        e = None
        try:
            r = server().post(CHAT, body)
            check_eq(r.status, 400, f"status -> {r.body[:300]!r}")
            e = error_of(r)
            check_eq(e["code"], code, "code")
            wanted = param[0] if param else field
            check(e["param"] == wanted or (e["param"] or "").startswith((wanted + ".", wanted + "[")),
                  f"param {e['param']!r}, wanted {wanted!r}")
        except AssertionError as wrong:
            raise AssertionError(f"{field} = {json.dumps(value)[:100]}: {wrong} ({e})") from None


@test
def good_edge_values_are_taken():
    for more in ({"temperature": 2}, {"temperature": 0.0}, {"top_p": 0}, {"top_p": 1}, {"top_k": -1}, {"top_k": 0},
                 {"max_tokens": 2.0}, {"max_tokens": -1, "stop": "e"}, {"max_tokens": None, "stop": ["e", "a"]},
                 {"seed": -2**63}, {"seed": 2**64 - 1}, {"stop": ["x"] * 16}, {"logit_bias": {}}, {"min_p": 1},
                 {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}, {"modalities": ["text"]},
                 {"functions": None, "audio": None, "temperature": None}, {"stop": []}, {"stop_token_ids": []},
                 {"prompt_cache_key": "k"}, {"n": 1}, {"add_special_tokens": False}):
        taken({**GOOD, **more})
    huge = taken({**GOOD, "max_tokens": 10_000_000, "stop": [" ", "e", "a"], "chat_template_kwargs": {"enable_thinking": False}})
    check_eq(huge["choices"][0]["finish_reason"], "stop", "more than the room left is clamped")


@test
def an_unknown_field_is_ignored_and_counted():
    before = server().metric("railyard_unknown_fields_total", field="frobnicate")
    taken({**GOOD, "frobnicate": 1})
    check_eq(server().metric("railyard_unknown_fields_total", field="frobnicate"), before + 1, "count")


@test
def an_unknown_model_is_404():
    refused({**GOOD, "model": "gpt-9"}, 404, "model_not_found", "model")


@test
def the_last_of_a_repeated_key_counts():
    r = server().post(CHAT, b'{"messages":[{"role":"user","content":"Hi"}],"max_tokens":0,"max_tokens":3,"ignore_eos":true}')
    check_eq(r.status, 200, f"status {r.body[:300]!r}")
    check_eq(r.json()["usage"]["completion_tokens"], 3, "completion_tokens")


@test
def a_prompt_that_fills_the_window_is_refused_with_its_numbers():
    window = server().get("/v1/models").json()["data"][0]["max_model_len"]
    long = {"messages": [{"role": "user", "content": "cat dog " * window}]}
    e = refused(long, 400, "context_length_exceeded", "messages")
    check(e["message"].startswith(f"This model's maximum context length is {window} tokens."), e["message"])


@test
def template_refusals_name_what_is_wrong():
    refused({"messages": [{"role": "system", "content": "Only this."}]}, 400, "template_error", "messages")
    late = [*ASK, {"role": "system", "content": "Late."}]
    r = server().post(CHAT, {"messages": late})
    check_eq((r.status, error_of(r)["code"]), (400, "template_error"), "a late system message")


# ---- bodies


BAD_JSON = [b"", b" ", b"{", b"[]", b"5", b'"x"', b"null", b'{"messages":}', b"{'messages':[]}", b'{"a":1,}', b'{"a":NaN}',
            b'{"a":Infinity}', b'{"a":1e999}', b'{"a":01}', b'{"a":"\n"}', b'{"a":1} x', b'{"a":' + b"[" * 65 + b"]" * 65 + b"}",
            b'{"a":"\\x"}', b'{"a":tru}', b"\x00{}"]


@test
def a_body_that_is_no_json_object_is_400():
    for body in BAD_JSON:
        e = refused(body, 400, "invalid_json")
        check_eq(e["type"], "invalid_request_error", "type")


@test
def case_14_bad_utf8_is_named_with_its_byte_offset():
    for bad, offset in ((b"\xff", 0), (b"\xc0\x80", 0), (b"ab\xed\xa0\x80", 2), (b"\xf5\x80\x80\x80", 0), (b"abc\xe4\xb8", 3),
                        (b"\xc4\xe3\xba\xc3", 0)):
        head = b'{"messages":[{"role":"user","content":"'
        e = refused(head + bad + b'"}]}', 400, "invalid_utf8")
        check_in(str(len(head) + offset), e["message"], "message")


@test
def case_13_no_random_bytes_crash_the_server():
    r = random.Random(13)
    good = json.dumps({**GOOD, "stop": ["x"], "logit_bias": {"5": 1}}).encode()
    with server().connect() as c:
        for _ in range(300):
            body = bytearray(good)
            for _ in range(r.randint(1, 8)):
                at = r.randrange(len(body))
                body[at:at + r.randint(0, 3)] = r.randbytes(r.randint(0, 4))
            reply = c.request("POST", CHAT, bytes(body))
            check(reply.status in (200, 400, 404), f"{reply.status} for {bytes(body)!r}")
            if reply.status != 200:
                error_of(reply)


@test
def case_16_no_field_of_a_wrong_kind_gives_a_5xx():
    values = [None, True, 0, -1, 1.5, 10**30, "", "x", "\u0000", [], [None], {}, {"": None}, [[[]]], "\ud83d"]
    fields = sorted({f for f, *_ in BAD_VALUES} | {"tools", "tool_choice", "response_format", "structured_outputs", "logprobs",
                                                   "top_logprobs", "thinking_token_budget", "cache_salt", "prediction", "user"})
    counts = {}
    with server().connect() as c:
        for f in fields:
            for v in values:
                reply = c.request("POST", CHAT, {**GOOD, "max_completion_tokens": 2, f: v})
                check(reply.status < 500, f"{reply.status} for {f} = {v!r}")
                counts[reply.status] = counts.get(reply.status, 0) + 1
                if reply.status != 200:
                    error_of(reply)
    note(counts)


@test
def an_escaped_lone_surrogate_becomes_a_replacement_character_and_is_counted():
    before = server().metric("railyard_lone_surrogates_total")
    lone = server().post(CHAT, rb'{"messages":[{"role":"user","content":"a\ud83db"}],"max_tokens":1,"return_token_ids":true}')
    plain = taken({**GOOD, "messages": [{"role": "user", "content": "a\ufffdb"}], "return_token_ids": True})
    check_eq(lone.json()["prompt_token_ids"], plain["prompt_token_ids"], "prompt ids")
    check_eq(server().metric("railyard_lone_surrogates_total"), before + 1, "count")


@test
def a_leading_byte_order_mark_is_skipped():
    r = server().post(CHAT, b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    check_eq(r.status, 200, r.body[:300])


@test
def media_types_other_than_json_are_415():
    good = json.dumps(GOOD).encode()
    for value, wanted in (("application/json", 200), ("application/json; charset=utf-8", 200), ("APPLICATION/JSON", 200),
                          ("application/vnd.api+json", 200), ("text/plain", 415), ("application/x-www-form-urlencoded", 415),
                          ("application/json; charset=latin1", 415), ("multipart/form-data", 415)):
        r = server().post(CHAT, good, [("Content-Type", value)])
        check_eq(r.status, wanted, f"status of {value!r} {r.body[:200]!r}")
        if wanted == 415:
            check_eq(error_of(r)["code"], "unsupported_media_type", "code")
            check_in(f"got {value}", error_of(r)["message"], "what was found")
    r = server().post(CHAT, good, [("Content-Encoding", "gzip")])
    check_eq((r.status, error_of(r)["code"]), (415, "unsupported_media_type"), "a coded body")
    check_in("got gzip", error_of(r)["message"], "what was found")


@test
def a_body_over_its_limit_is_413():
    s = shared("--api.body_bytes_max=1KiB")
    long = {"messages": [{"role": "user", "content": "x" * 2000}]}
    r = s.post(CHAT, long)
    check_eq(r.status, 413, "announced")
    data = json.dumps(long).encode()
    with s.connect() as c:
        c.send_request("POST", CHAT, b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data), [("Transfer-Encoding", "chunked")])
        check_eq(c.read_response().status, 413, "counted")
    check_eq(s.post(CHAT, GOOD).status, 200, "the next request")


@test
def an_error_of_a_request_that_asked_for_a_stream_is_plain_json():
    refused({**GOOD, "stream": True, "temperature": 9}, 400, "invalid_value", "temperature")


@test
def an_error_echoes_no_more_than_64_characters_of_input():
    long = "z" * 5000
    for body in ({**GOOD, "model": long}, {**GOOD, "reasoning_effort": long}, {"messages": [{"role": long, "content": "x"}]},
                 {**GOOD, "logit_bias": {long: 1}}):
        r = server().post(CHAT, body)
        check("z" * 65 not in error_of(r)["message"], "a long echo")


@test
def tokenize_checks_its_body_too():
    refused({}, 400, "missing_required_parameter", "prompt", path="/tokenize")
    refused({"prompt": 5}, 400, "invalid_type", "prompt", path="/tokenize")
    refused(b"{", 400, "invalid_json", path="/tokenize")


main()
