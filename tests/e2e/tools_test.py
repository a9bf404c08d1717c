"""Tools over the whole system: a worker that says given ids in real frames, and the demo model, which was trained to call.

Cases 18, 19 and 22 to 26 of the faults that users of such servers met, and their kin."""

import json
import os
import re
import tempfile

from harness import FakeWorker, Server, chat_chunks, check, check_eq, check_in, join_chunks, main, shared, strict_json, test

USER = [{"role": "user", "content": "What is the weather?"}]


def tool(name, **types):
    return {"type": "function", "function": {"name": name, "description": name, "parameters": {
        "type": "object", "properties": {k: t if isinstance(t, dict) else {"type": t} for k, t in types.items()}}}}


TOOLS = [tool("get_weather", city="string", days="integer", exact="boolean", place="object", hours="array",
              note={"anyOf": [{"type": "string"}, {"type": "null"}]}),
         tool("stop_all")]
BODY = {"messages": USER, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}}
PLAIN = {**BODY, "chat_template_kwargs": {"enable_thinking": False}}


def call(name, **values):
    return (f"<tool_call>\n<function={name}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
            + "</function>\n</tool_call>")


# What the model says (the end mark follows unless "cut"), how it is asked, and what the client must get.
END = "<|im_end|>"
CASES = [
    {"says": "I look it up.\n</think>\n\nOne moment.\n\n" + call("get_weather", city="Oslo", days=3), "body": BODY,
     "reasoning": "I look it up.", "content": "One moment.", "calls": [("get_weather", '{"city": "Oslo", "days": 3}')]},
    # llama.cpp 21118, vLLM 39056: the call ends a thought that the model forgot to close.
    {"says": "I call" + call("get_weather", city="Rome"), "body": BODY, "reasoning": "I call",
     "calls": [("get_weather", '{"city": "Rome"}')]},
    # Several at once; one without arguments; one that was not offered (the client decides).
    {"says": call("get_weather", city="A") + "\n" + call("stop_all") + "\n" + call("other", x="1"), "body": PLAIN,
     "calls": [("get_weather", '{"city": "A"}'), ("stop_all", "{}"), ("other", '{"x": "1"}')]},
    # vLLM 43713: several functions in one pair of marks.
    {"says": "<tool_call><function=stop_all></function><function=stop_all></function></tool_call>", "body": PLAIN,
     "calls": [("stop_all", "{}"), ("stop_all", "{}")]},
    # Types by the schema, indentation kept (vLLM 48753), text that only looks like a tag.
    {"says": call("get_weather", city="  a\n\tb < c </p>\n", days="7", exact="True", place='{"x":[1,null]}', hours="[1,2]", note="null"),
     "body": PLAIN, "calls": [("get_weather", '{"city": "  a\\n\\tb < c </p>\\n", "days": 7, "exact": true, "place": {"x": [1, null]}, '
                               '"hours": [1, 2], "note": null}')]},
    {"says": call("get_weather", city="Z\u00fcrich \U0001f98a \u200d \"q\" \\ null"), "body": PLAIN,
     "calls": [("get_weather", '{"city": "Z\u00fcrich \U0001f98a \u200d \\"q\\" \\\\ null"}')]},
    # A value that is not what the schema says still reaches the client.
    {"says": call("get_weather", days="soon", place="{'x': 1}"), "body": PLAIN,
     "calls": [("get_weather", '{"days": "soon", "place": "{\'x\': 1}"}')]},
    # 22 (V#25054): cut by the limit inside a call: length, with the arguments so far.
    {"says": call("stop_all") + call("get_weather", city="Berlin")[:54], "cut": True, "body": PLAIN, "finish": "length",
     "calls": [("stop_all", "{}"), ("get_weather", '{"city": "Be')]},
    {"says": "thinking and thinking", "cut": True, "body": BODY, "finish": "length", "reasoning": "thinking and thinking"},
    # A normal end inside a call closes it.
    {"says": "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern", "body": PLAIN,
     "calls": [("get_weather", '{"city": "Bern"}')]},
    # Only the first, when asked; the ids behind it are not part of the reply.
    {"says": call("get_weather", city="A") + call("get_weather", city="B"), "body": {**PLAIN, "parallel_tool_calls": False},
     "calls": [("get_weather", '{"city": "A"}')]},
    # 19, 20: a stop string counts in the content alone.
    {"says": "See END.\n</think>\n\n" + call("get_weather", city="END") + "END of it", "body": {**BODY, "stop": "END"},
     "reasoning": "See END.", "calls": [("get_weather", '{"city": "END"}')]},
    {"says": "One EN\n" + call("stop_all"), "body": {**PLAIN, "stop": ["END", "N\n\n"]}, "content": "One EN", "calls": [("stop_all", "{}")]},
    {"says": "a < b, <function and <tool_cal", "body": PLAIN, "finish": "stop", "content": "a < b, <function and <tool_cal"},
    # vLLM 22975: without tools a call is text like any other.
    {"says": call("stop_all"), "body": {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}}, "finish": "stop",
     "content": call("stop_all")},
]


def ids_of(text):
    return shared().post("/tokenize", {"prompt": text}).json()["tokens"]


def script_of(cases):
    lines = []
    for c in cases:
        ids = ids_of(c["says"] + ("" if c.get("cut") else END))
        lines += ["reply " + " ".join(map(str, ids))] * 2  # whole, then streamed
        c["count"] = len(ids)
    with tempfile.NamedTemporaryFile("w", suffix=".script", delete=False) as f:
        f.write("\n".join(lines) + "\n")
    return f.name


def shape(message):
    return {"reasoning": message.get("reasoning_content", ""), "content": message["content"] or "",
            "calls": [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]}


def check_case(c, choice):
    wanted = {"reasoning": c.get("reasoning", ""), "content": c.get("content", ""), "calls": c.get("calls", [])}
    check_eq(shape(choice["message"]), wanted, f"reply to {c['says'][:60]!r}")
    check_eq(choice["finish_reason"], c.get("finish", "tool_calls"), f"finish of {c['says'][:60]!r}")
    calls = choice["message"].get("tool_calls", [])
    check(all(re.fullmatch(r"call_[0-9a-z]{24}", x["id"]) and x["type"] == "function" for x in calls), calls)
    check_eq(len({x["id"] for x in calls}), len(calls), "different call ids")
    if calls and not wanted["content"]:
        check_eq(choice["message"]["content"], None, "content beside calls alone")


def check_streamed(c, chunks, whole):
    joined = join_chunks(chunks)
    check_eq([(x["function"]["name"], x["function"]["arguments"]) for x in joined["tool_calls"]], c.get("calls", []), "streamed calls")
    check_eq(len({x["id"] for x in joined["tool_calls"]}), len(joined["tool_calls"]), "different call ids")
    check_eq((joined["content"], joined["reasoning_content"]), (c.get("content", ""), c.get("reasoning", "")), "streamed text")
    for k in ("finish_reason", "token_sha256", "stop_reason"):
        check_eq(joined[k], whole[k], f"streamed {k}")


@test
def case_24_26_a_scripted_call_is_the_same_whole_and_streamed_however_rounds_cut_its_ids():
    script = script_of(CASES)
    hashes = {}
    for per_round in (1, 2, 3, 7, 64):
        with Server(command="router", wait_ready=False) as server, FakeWorker(server, f"--script={script}", f"--per-round={per_round}"):
            server.wait_ready()
            for n, c in enumerate(CASES):
                body = {**c["body"], "max_tokens": c["count"], "seed": 1}
                whole = server.chat(**body)
                choice = whole["choices"][0]
                check_case(c, choice)
                check_streamed(c, server.stream(**body), choice)
                check_eq(hashes.setdefault(n, choice["token_sha256"]), choice["token_sha256"], f"hash at {per_round} a round")
                server.wait_idle()
    os.unlink(script)


@test
def case_25_a_long_string_argument_streams_while_it_is_written():  # V#30439: 30 s of silence
    text = " ".join(f"word{i}" for i in range(60))
    ids = ids_of(call("get_weather", city=text) + END)
    with tempfile.NamedTemporaryFile("w", suffix=".script") as f:
        f.write("reply " + " ".join(map(str, ids)) + "\n")
        f.flush()
        with Server(command="router", wait_ready=False) as server, FakeWorker(server, f"--script={f.name}"):
            server.wait_ready()
            parts = [p for c in server.stream(**PLAIN) for ch in c["choices"] for p in ch["delta"].get("tool_calls", [])]
    check(len(parts) > 60, f"only {len(parts)} parts")
    check_eq(sum("id" in p for p in parts), 1, "parts with an id")  # 26: letta #2761


# ---- the demo model

WEATHER = tool("get_weather", city="string")
SUM = tool("add_numbers", a="integer", b="integer")
ASK = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": [WEATHER, SUM], "temperature": 0, "max_tokens": 200}


@test
def the_demo_model_calls_a_tool_and_uses_its_result():
    first = shared().chat(**ASK)["choices"][0]
    check_eq(first["finish_reason"], "tool_calls", "finish_reason")
    check_eq(shape(first["message"])["calls"], [("get_weather", '{"city": "Oslo"}')], "calls")
    call_id = first["message"]["tool_calls"][0]["id"]
    messages = ASK["messages"] + [first["message"], {"role": "tool", "tool_call_id": call_id,
                                                     "content": '{"city": "Oslo", "weather": "sunny", "degrees": 21}'}]
    answer = shared().chat(**{**ASK, "messages": messages})["choices"][0]
    check_eq(answer["finish_reason"], "stop", "finish_reason")
    check_in("sunny", answer["message"]["content"], "the answer")
    # The same conversation with the result as a list of parts (B#207) has the same prompt.
    parts = [{"type": "text", "text": messages[2]["content"]}]
    same = shared().chat(**{**ASK, "messages": messages[:2] + [{**messages[2], "content": parts}]})["choices"][0]
    check_eq(same["token_sha256"], answer["token_sha256"], "hash with parts")


@test
def the_demo_model_streams_its_call():
    whole = shared().chat(**ASK, seed=1)["choices"][0]
    joined = join_chunks(shared().stream(**ASK, seed=1))
    check_eq(joined["finish_reason"], "tool_calls", "finish_reason")
    check_eq([(c["function"]["name"], c["function"]["arguments"]) for c in joined["tool_calls"]], shape(whole["message"])["calls"], "calls")
    check_eq(joined["token_sha256"], whole["token_sha256"], "hash")


@test
def with_tool_choice_none_the_prompt_stays_and_no_call_is_made():
    auto = shared().chat(**ASK, return_token_ids=True)
    none = shared().chat(**ASK, return_token_ids=True, tool_choice="none")
    check_eq(none["prompt_token_ids"], auto["prompt_token_ids"], "prompt ids")
    mark = ids_of("<tool_call>")[0]
    choice = none["choices"][0]
    check(mark in auto["choices"][0]["token_ids"] and mark not in choice["token_ids"], "the mark of a call")
    check("tool_calls" not in choice["message"] and choice["finish_reason"] != "tool_calls", choice)
    # The bound of logit_bias leaves room for the mark.
    bias = {str(i): 0.0 for i in range(1024)}
    check_eq(shared().chat(**ASK, tool_choice="none", logit_bias=bias)["choices"][0]["token_sha256"], choice["token_sha256"], "hash with 1,024 biases")


@test
def a_forced_choice_is_refused_by_name():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}},
                   {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}):
        e = shared().chat(400, **ASK, tool_choice=choice)["error"]
        check_eq((e["code"], e["param"]), ("unsupported_parameter", "tool_choice"), f"of {choice}")
    e = shared().chat(400, **{**ASK, "tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]})["error"]
    check_eq((e["code"], e["param"]), ("unsupported_parameter", "tools[0].function.strict"), "of strict")


@test
def deprecated_functions_are_refused_and_the_message_is_true():
    for field, value in (("functions", []), ("functions", [WEATHER["function"]]), ("function_call", "auto")):
        e = shared().chat(400, messages=USER, **{field: value})["error"]
        check_eq((e["code"], e["param"]), ("unsupported_parameter", field), field)
        check_in("use tools", e["message"], field)


@test
def case_18_broken_arguments_in_the_history_are_a_400_that_names_the_call():  # V#47761, V#48922
    for bad in ("{", "[1]", "3", "null", '"x"', "{'a': 1}"):
        messages = USER + [{"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": bad}}]}, {"role": "tool", "tool_call_id": "b", "content": "x"}]
        e = shared().chat(400, messages=messages)["error"]
        check_eq(e["param"], "messages[1].tool_calls[1].function.arguments", f"param of {bad!r}")
    for good in ("", "{}", {}, {"a": 1}):
        messages = USER + [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": good}}]}, {"role": "tool", "content": "x"}]
        shared().chat(messages=messages, max_tokens=1)


@test
def tools_in_the_prompt_are_as_the_client_wrote_them():
    odd = {"type": "function", "function": {"parameters": {"type": "object", "properties": {}}, "name": "f", "x": [1.0, 1e5, 12345678901234567890]}}
    r = shared().post("/v1/chat/completions/render", {"messages": USER, "tools": [odd]}).json()
    check_in('\n{"type": "function", "function": {"parameters": {"type": "object", "properties": {}}, "name": "f", '
             '"x": [1.0, 100000.0, 12345678901234567890]}}\n</tools>', r["prompt"], "the prompt")
    # Without them, and with an empty list, it has none.
    plain = shared().post("/v1/chat/completions/render", {"messages": USER}).json()["prompt"]
    check_eq(shared().post("/v1/chat/completions/render", {"messages": USER, "tools": []}).json()["prompt"], plain, "prompt of an empty list")
    check("<tools>" not in plain, plain)


main()
