"""OpenAI's own Python client, unmodified, against the real router: chat, tools, thoughts, streams, errors, retries.

It runs in a virtual environment that tests/tools/venv.sh makes."""

import os
import subprocess
import sys

SOURCE = os.environ.get("RAILYARD_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if os.path.join("build-run", "venv") not in sys.prefix:
    made = subprocess.run(["sh", os.path.join(SOURCE, "tests", "tools", "venv.sh")], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        print("1..1\nnot ok 1 the_client_is_installed")
        sys.exit(1)
    python = os.path.join(made.stdout.strip(), "bin", "python")
    os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])

import asyncio
import json
import tempfile

import openai
from harness import FakeWorker, Server, check, check_eq, check_in, main, note, shared, test
from openai.lib.streaming.chat import ChatCompletionStreamState

SUM = [{"role": "user", "content": "What is 12 + 7?"}]
WEATHER = [{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
ASK = {"model": "demo", "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": WEATHER, "temperature": 0}


def client(server=None, kind=openai.OpenAI, **options):
    return kind(base_url=f"http://127.0.0.1:{(server or shared()).port}/v1", api_key="none", **options)


def chat(**body):
    return client().chat.completions.create(**{"model": "demo", "messages": SUM, "temperature": 0, **body})


def joined(stream):
    """The whole reply, put together by the client's own accumulator."""
    state = ChatCompletionStreamState()
    for chunk in stream:
        state.handle_chunk(chunk)
    return state.get_final_completion()


@test
def the_client_chats():
    r = chat(seed=5)
    choice = r.choices[0]
    check_in("19", choice.message.content, "the answer")
    check_eq((choice.finish_reason, choice.message.role, r.object), ("stop", "assistant", "chat.completion"), "shape")
    check_eq(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens, "usage")
    check(0 < r.usage.completion_tokens_details.reasoning_tokens < r.usage.completion_tokens, r.usage)
    check(choice.message.reasoning_content and choice.message.tool_calls is None and choice.message.refusal is None, choice.message)
    check_eq(choice.seed, 5, "seed")


@test
def the_client_streams_what_the_whole_reply_is():
    whole = chat(seed=1, max_tokens=80)
    chunks = list(chat(seed=1, max_tokens=80, stream=True, stream_options={"include_usage": True}))
    check_eq([len(c.choices) for c in chunks[-2:]], [1, 0], "choices of the last chunks")
    check_eq(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens, "usage")
    final = joined(iter(chunks))
    check_eq(final.choices[0].message.content, whole.choices[0].message.content, "content")
    check_eq(final.choices[0].finish_reason, whole.choices[0].finish_reason, "finish_reason")
    thought = "".join(c.choices[0].delta.reasoning_content for c in chunks if c.choices and getattr(c.choices[0].delta, "reasoning_content", None))
    check_eq(thought, whole.choices[0].message.reasoning_content, "the thought")


@test
def the_client_calls_tools_and_gives_their_results():
    whole = client().chat.completions.create(**ASK)
    message = whole.choices[0].message
    check_eq(whole.choices[0].finish_reason, "tool_calls", "finish_reason")
    check_eq([(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls], [("get_weather", {"city": "Oslo"})], "calls")
    streamed = joined(client().chat.completions.create(**ASK, stream=True)).choices[0]
    check_eq([(c.type, c.function.name, c.function.arguments) for c in streamed.message.tool_calls],
             [(c.type, c.function.name, c.function.arguments) for c in message.tool_calls], "streamed calls")
    check_eq(streamed.finish_reason, "tool_calls", "streamed finish_reason")
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"city": "Oslo", "weather": "sunny", "degrees": 21}'}
    answer = client().chat.completions.create(**{**ASK, "messages": ASK["messages"] + [message, result]})
    check_in("sunny", answer.choices[0].message.content, "the answer")


@test
def the_client_gets_logprobs_and_several_choices():
    r = chat(n=2, logprobs=True, top_logprobs=3, max_tokens=20, temperature=1, seed=3, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    check_eq([c.index for c in r.choices], [0, 1], "indexes")
    for c in r.choices:
        check_eq("".join(t.token for t in c.logprobs.content), c.message.content, "tokens of the content")
        check(all(len(t.top_logprobs) == 3 and t.logprob <= 0 and bytes(t.bytes).decode() == t.token for t in c.logprobs.content), c.logprobs)
    state = joined(chat(n=2, logprobs=True, top_logprobs=3, max_tokens=20, temperature=1, seed=3, stream=True,
                        extra_body={"chat_template_kwargs": {"enable_thinking": False}}))
    for a, b in zip(state.choices, r.choices):
        check_eq(a.message.content, b.message.content, "streamed content")
        check_eq([t.logprob for t in a.logprobs.content], [t.logprob for t in b.logprobs.content], "streamed logprobs")


@test
def the_client_completes_texts_and_lists_models():
    c = client()
    r = c.completions.create(model="demo", prompt=["Once upon", "The"], max_tokens=5, echo=True, seed=1)
    check_eq([x.index for x in r.choices], [0, 1], "indexes")
    check(r.choices[0].text.startswith("Once upon") and r.choices[1].text.startswith("The"), r.choices)
    one = c.completions.create(model="demo", prompt="Once upon", max_tokens=5, seed=1, logprobs=2)
    check_eq("Once upon" + one.choices[0].text, r.choices[0].text, "text without echo")
    check_eq("".join(one.choices[0].logprobs.tokens), one.choices[0].text, "tokens")
    text = "".join(x.choices[0].text for x in c.completions.create(model="demo", prompt="Once upon", max_tokens=5, seed=1, stream=True))
    check_eq(text, one.choices[0].text, "streamed text")
    check_eq([m.id for m in c.models.list()], ["demo"], "models")
    check_eq(c.models.retrieve("demo").id, "demo", "model")


@test
def errors_are_the_clients_own_classes():
    for kind, body, code, param in (
            (openai.BadRequestError, {"temperature": 3}, "invalid_value", "temperature"),
            (openai.BadRequestError, {"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
            (openai.BadRequestError, {"tools": WEATHER, "tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
            (openai.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]},
             "unsupported_parameter", "messages[0].content[0].type"),
            (openai.NotFoundError, {"model": "other"}, "model_not_found", "model")):
        try:
            chat(**body)
            check(False, f"{body} was taken")
        except kind as e:
            check_eq((e.code, e.param), (code, param), f"of {body}")
            check(e.request_id, "no request id")


def scripted(lines, *flags):
    """A server whose one worker follows a script; `with` it."""
    f = tempfile.NamedTemporaryFile("w", suffix=".script", delete=False)
    f.write("\n".join(lines) + "\n")
    f.close()
    server = Server("--route.resume_s=1", *flags, command="router", wait_ready=False)
    worker = FakeWorker(server, f"--script={f.name}", "--reply=70 71 72")
    server.wait_ready()
    return server, worker


@test
def the_client_retries_by_itself_what_may_work_the_next_time():
    server, worker = scripted(["fail internal broken"] * 2)
    with server, worker:
        r = client(server, max_retries=2).chat.completions.create(model="demo", messages=SUM, max_tokens=3)
        check_eq(r.usage.completion_tokens, 3, "ids of the third try")
        check_eq([x["status"] for x in server.access_lines() if x["method"] == "POST"], [500, 500, 200], "tries")
    server, worker = scripted(["fail internal broken"])
    with server, worker:
        try:
            client(server, max_retries=0).chat.completions.create(model="demo", messages=SUM)
            check(False, "no error")
        except openai.InternalServerError as e:
            check_eq(e.code, "internal_error", "code")


@test
def the_client_does_not_retry_what_cannot_work():
    server, worker = scripted(["hang"])
    with server, worker:
        try:
            client(server, max_retries=3).chat.completions.create(model="demo", messages=SUM, extra_headers={"X-Request-Timeout-Ms": "200"})
            check(False, "no error")
        except openai.InternalServerError as e:
            check_eq((e.status_code, e.code), (504, "deadline_exceeded"), "the error")
        check_eq([x["status"] for x in server.access_lines() if x["method"] == "POST"], [504], "tries")


@test
def an_error_in_a_stream_reaches_the_client_as_one():
    server, worker = scripted(["die 3"])
    with server, worker:
        got = []
        try:
            for chunk in client(server).chat.completions.create(model="demo", messages=SUM, stream=True, extra_body={"chat_template_kwargs": {"enable_thinking": False}}):
                got.append(chunk)
            check(False, "no error")
        except openai.APIError as e:
            check_eq(e.code, "worker_lost", "code")
        check(got, "nothing came before the error")
        worker.wait()


@test
def a_stream_that_the_client_closes_is_cancelled():
    before = shared().metric("railyard_client_closed_total")
    stream = chat(stream=True, max_tokens=3000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    shared().wait_idle()
    check_eq(shared().metric("railyard_client_closed_total"), before + 1, "clients closed")


@test
def many_at_once_get_what_one_alone_gets():
    alone = chat(seed=9, max_tokens=40).choices[0].token_sha256

    async def all_of():
        c = client(kind=openai.AsyncOpenAI)
        replies = await asyncio.gather(*(c.chat.completions.create(model="demo", messages=SUM, temperature=0, seed=9, max_tokens=40) for _ in range(8)))
        await c.close()
        return [r.choices[0].token_sha256 for r in replies]

    check_eq(asyncio.run(all_of()), [alone] * 8, "hashes")
    note(f"openai {openai.__version__}")


main()
