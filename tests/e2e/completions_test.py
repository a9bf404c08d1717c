"""/v1/completions, logprobs, several choices, budgets of thoughts, and what turns text into ids and back.

Cases 21, 35, 51 and 52 of the faults that users of such servers met, and their kin."""

import math

from harness import FakeWorker, Server, check, check_eq, check_in, join_chunks, main, shared, test

NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
STORY = {"messages": [{"role": "user", "content": "Tell me a story about a brave fox."}], **NO_THOUGHT}
SUM = {"messages": [{"role": "user", "content": "What is 12 + 7?"}]}


def post(path, body, wanted_status=200):
    r = shared().post(path, body)
    check_eq(r.status, wanted_status, f"status of {body} -> {r.body[:300]!r}")
    return r.json()


def complete(**body):
    return post("/v1/completions", body)


def streamed(**body):
    """{index: {"text", "finish_reason", ...}} of a stream, and its usage."""
    choices, usage = {}, None
    for chunk in shared().stream("/v1/completions", **body):
        check_eq(chunk["object"], "text_completion", "object")
        for c in chunk["choices"]:
            j = choices.setdefault(c["index"], {"text": "", "token_ids": [], "tokens": [], "offsets": []})
            check("finish_reason" not in j, "text behind the end of a choice")
            j["text"] += c["text"]
            j["token_ids"] += c.get("token_ids", [])
            if c["logprobs"]:
                j["tokens"] += c["logprobs"]["tokens"]
                j["offsets"] += c["logprobs"]["text_offset"]
            if c["finish_reason"]:
                j.update(finish_reason=c["finish_reason"], seed=c["seed"], token_sha256=c["token_sha256"])
        usage = chunk.get("usage") or usage
    return choices, usage


def ids_of(text):
    return post("/tokenize", {"prompt": text})["tokens"]


# ---- completions


@test
def a_completion_has_every_field_of_its_shape():
    r = complete(prompt="Once upon", seed=3)
    check(r["id"].startswith("cmpl-"), r["id"])
    check_eq((r["object"], r["model"], r["usage"]["prompt_tokens"], r["usage"]["completion_tokens"]), ("text_completion", "demo", 2, 16), "shape")
    c = r["choices"][0]
    check_eq((c["index"], c["logprobs"], c["finish_reason"], c["stop_reason"], c["seed"]), (0, None, "length", None, 3), "the choice")
    check("worker" in r["railyard"], r["railyard"])


@test
def a_prompt_as_text_and_as_ids_is_the_same():
    ids = ids_of("Once upon a time")
    forms = ["Once upon a time", ["Once upon a time"], ids, [ids]]
    found = [complete(prompt=p, seed=1, return_token_ids=True)["choices"][0] for p in forms]
    check_eq([c["prompt_token_ids"] for c in found], [ids] * 4, "prompt ids")
    check_eq(len({c["token_sha256"] for c in found}), 1, "hashes")
    # Control tokens in a text are recognised, as /tokenize does it.
    check_eq(complete(prompt="<|im_start|>user", return_token_ids=True, max_tokens=1)["choices"][0]["prompt_token_ids"], ids_of("<|im_start|>user"), "ids")


@test
def each_prompt_of_a_list_gets_what_it_gets_alone():
    prompts = ["Once upon", "The fox", "12 + 7 ="]
    r = complete(prompt=prompts, n=2, seed=7, max_tokens=8, return_token_ids=True)
    check_eq([c["index"] for c in r["choices"]], list(range(6)), "indexes")
    for i, p in enumerate(prompts):
        for k in range(2):
            alone = complete(prompt=p, seed=7 + k, max_tokens=8)["choices"][0]
            check_eq(r["choices"][2 * i + k]["token_sha256"], alone["token_sha256"], f"prompt {i}, choice {k}")
            check_eq(r["choices"][2 * i + k]["seed"], 7 + k, "seed")
    check_eq(r["usage"]["prompt_tokens"], sum(len(ids_of(p)) for p in prompts), "the prompts count once")
    check_eq(r["usage"]["completion_tokens"], sum(len(c["token_ids"]) for c in r["choices"]), "completion_tokens")


@test
def case_21_a_streamed_completion_is_the_whole_one():  # L#9867
    body = dict(prompt=["Once upon", "Caf\u00e9 \U0001f98a"], n=2, seed=2, max_tokens=12, echo=True, return_token_ids=True, stop=" a ")
    whole = complete(**body)
    choices, usage = streamed(**body, stream_options={"include_usage": True})
    for c in whole["choices"]:
        s = choices[c["index"]]
        for k in ("text", "finish_reason", "seed", "token_sha256", "token_ids"):
            check_eq(s[k], c[k], f"{k} of choice {c['index']}")
    check_eq(usage["completion_tokens"], whole["usage"]["completion_tokens"], "usage")


@test
def case_51_echo_gives_the_prompt_back_with_or_without_more():  # V#9336, lm-evaluation-harness #1411
    r = complete(prompt="Gr\u00fc\u00dfe <|im_end|>", max_tokens=0, echo=True)
    c = r["choices"][0]
    check_eq((c["text"], c["finish_reason"], r["usage"]["completion_tokens"]), ("Gr\u00fc\u00dfe <|im_end|>", "length", 0), "the echo")
    check_eq(r["system_fingerprint"], None, "fingerprint of a reply that no worker made")
    ids = ids_of("Gr\u00fc\u00dfe")
    check_eq(complete(prompt=ids, max_tokens=0, echo=True)["choices"][0]["text"], "Gr\u00fc\u00dfe", "the echo of ids")
    choices, _ = streamed(prompt="Once upon", max_tokens=0, echo=True)
    check_eq((choices[0]["text"], choices[0]["finish_reason"]), ("Once upon", "length"), "the streamed echo")
    e = post("/v1/completions", {"prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1}, 400)["error"]
    check_eq((e["code"], e["param"]), ("unsupported_parameter", "logprobs"), "scoring")
    check_in("prompt_logprobs", e["message"], "the capability")


@test
def thoughts_and_calls_stay_in_the_text_of_a_completion():
    prompt = post("/v1/chat/completions/render", SUM)["prompt"]
    text = complete(prompt=prompt, temperature=0, max_tokens=100)["choices"][0]["text"]
    message = shared().chat(**SUM, temperature=0, max_tokens=100)["choices"][0]["message"]
    check_eq(text, f"{message['reasoning_content']}\n</think>\n\n{message['content']}", "text")


# ---- logprobs


def check_entry(t, best):
    check_eq(bytes(t["bytes"]).decode("utf-8", "replace"), t["token"], "bytes")
    check(t["logprob"] <= 0, t)
    tops = t["top_logprobs"]
    check_eq(len(tops), best, "top_logprobs")
    check_eq([x["logprob"] for x in tops], sorted((x["logprob"] for x in tops), reverse=True), "order of top_logprobs")
    check(sum(math.exp(x["logprob"]) for x in tops) < 1.0001, tops)


@test
def case_35_logprobs_are_of_the_models_own_logits():  # B#430
    plain = shared().chat(**STORY, temperature=0, max_tokens=20, logprobs=True, top_logprobs=20)["choices"][0]
    entries = plain["logprobs"]["content"]
    for t in entries:
        check_entry(t, 20)
        check_eq({k: t[k] for k in ("token", "logprob", "bytes")}, {k: t["top_logprobs"][0][k] for k in ("token", "logprob", "bytes")}, "greedy")
    check_eq("".join(t["token"] for t in entries), plain["message"]["content"], "tokens")
    # Whatever changes the draw changes no logprob: the same first row under a bias, a penalty, another temperature.
    first = ids_of(entries[0]["token"])[0]
    for change in ({"logit_bias": {str(first): -100}}, {"repetition_penalty": 2}, {"temperature": 2, "seed": 1, "top_k": 1}):
        other = shared().chat(**{**STORY, "temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20, **change})
        check_eq(other["choices"][0]["logprobs"]["content"][0]["top_logprobs"], entries[0]["top_logprobs"], f"the first row with {change}")


@test
def logprobs_cover_the_ids_of_the_content_and_no_others():
    body = {**SUM, "temperature": 0, "logprobs": True, "top_logprobs": 2, "max_tokens": 100, "return_token_ids": True}
    choice = shared().chat(**body)["choices"][0]
    entries = choice["logprobs"]["content"]
    check_eq("".join(t["token"] for t in entries).strip("\n"), choice["message"]["content"], "tokens")
    check(len(entries) < len(choice["token_ids"]), "the thought's ids are no content")
    joined = join_chunks(shared().stream(**body))
    check_eq(joined["logprobs"], entries, "streamed logprobs")
    # A thought that the limit cuts has no content, and asked-for logprobs are still not null.
    cut = shared().chat(**{**body, "max_tokens": 3})["choices"][0]
    check_eq(cut["logprobs"], {"content": [], "refusal": None}, "logprobs without content")
    # Without top_logprobs the chosen ids alone.
    alone = shared().chat(**{**body, "top_logprobs": 0})["choices"][0]["logprobs"]["content"]
    check_eq([t["logprob"] for t in alone], [t["logprob"] for t in entries], "logprobs")
    check(all(t["top_logprobs"] == [] for t in alone), alone)


@test
def logprobs_of_completions_have_offsets_in_characters():
    r = complete(prompt="Caf\u00e9 \U0001f98a says", max_tokens=12, logprobs=3, seed=1, return_token_ids=True)
    c = r["choices"][0]
    lp = c["logprobs"]
    check_eq("".join(lp["tokens"]), c["text"], "tokens")
    for i, offset in enumerate(lp["text_offset"]):
        if "\ufffd" not in lp["tokens"][i]:
            check_eq(c["text"][offset:offset + len(lp["tokens"][i])], lp["tokens"][i], f"token {i}")
        check_eq(len(lp["top_logprobs"][i]), 3, "top_logprobs")
    choices, _ = streamed(prompt="Caf\u00e9 \U0001f98a says", max_tokens=12, logprobs=3, seed=1)
    check_eq((choices[0]["tokens"], choices[0]["offsets"]), (lp["tokens"], lp["text_offset"]), "streamed logprobs")
    check_eq(complete(prompt="x", logprobs=0, max_tokens=2)["choices"][0]["logprobs"]["top_logprobs"], None, "top_logprobs of 0")


@test
def logprobs_do_not_depend_on_how_rounds_cut_the_ids():
    found = []
    for per_round in (1, 4):
        with Server(command="router", wait_ready=False) as server, FakeWorker(server, f"--per-round={per_round}"):
            server.wait_ready()
            body = {**STORY, "max_tokens": 40, "logprobs": True, "top_logprobs": 5}
            whole = server.chat(**body)["choices"][0]["logprobs"]["content"]
            found += [whole, join_chunks(server.stream(**body))["logprobs"]]
    check_eq([f == found[0] for f in found], [True] * 4, "equal logprobs")


# ---- choices, budgets


@test
def case_52_each_of_n_choices_is_what_its_seed_gives_alone():  # V#23138
    r = shared().chat(**STORY, n=3, seed=11, max_tokens=20, temperature=1.5)
    for i, c in enumerate(r["choices"]):
        alone = shared().chat(**STORY, seed=11 + i, max_tokens=20, temperature=1.5)["choices"][0]
        check_eq((c["token_sha256"], c["message"], c["seed"]), (alone["token_sha256"], alone["message"], 11 + i), f"choice {i}")
    check_eq(r["usage"]["completion_tokens"], 60, "usage")
    chunks = shared().stream(**STORY, n=3, seed=11, max_tokens=20, temperature=1.5)
    for i, c in enumerate(r["choices"]):
        j = join_chunks(chunks, i)
        check_eq((j["content"], j["token_sha256"]), (c["message"]["content"], c["token_sha256"]), f"streamed choice {i}")
    check_eq(sum(ch["choices"][0]["delta"].get("role") == "assistant" for ch in chunks), 3, "first chunks")


@test
def a_choice_that_leaves_takes_all_with_it():
    with shared().connect() as c:
        c.send_request("POST", "/v1/chat/completions", {**STORY, "n": 4, "max_tokens": 3000, "ignore_eos": True, "stream": True})
        c.read_head()
    shared().wait_idle()


@test
def a_thought_ends_at_its_budget():  # vLLM 39697: no mark leaks where it is cut
    for name in ("thinking_token_budget", "thinking_budget"):
        r = shared().chat(**SUM, temperature=0, max_tokens=60, **{name: 4})
        message = r["choices"][0]["message"]
        check_eq(r["usage"]["completion_tokens_details"]["reasoning_tokens"], 5, "ids of the thought and its mark")
        check(message["content"] and "think>" not in message["content"] + message["reasoning_content"], message)
    none = shared().chat(**SUM, temperature=0, max_tokens=60, thinking_token_budget=0)["choices"][0]["message"]
    check("reasoning_content" not in none, none)
    free = shared().chat(**SUM, temperature=0, max_tokens=60)["choices"][0]
    for budget in (-1, 1000):
        same = shared().chat(**SUM, temperature=0, max_tokens=60, thinking_token_budget=budget)["choices"][0]
        check_eq(same["token_sha256"], free["token_sha256"], f"hash with {budget}")
    # Without a thought in the prompt there is nothing to bound.
    plain = shared().chat(**SUM, temperature=0, max_tokens=20, **NO_THOUGHT)["choices"][0]["token_sha256"]
    check_eq(shared().chat(**SUM, temperature=0, max_tokens=20, thinking_token_budget=0, **NO_THOUGHT)["choices"][0]["token_sha256"], plain, "hash")


# ---- text and ids


@test
def text_goes_to_ids_and_back():
    for text in ("Hello world", "Gr\u00fc\u00dfe \U0001f98a \u200d", "<|im_start|>user\n<tool_call>", "", "a\u0000b"):
        ids = ids_of(text)
        back = post("/detokenize", {"tokens": ids})
        check_eq((back["prompt"], back["content"]), (text, text), "text")
    cut = post("/v1/detokenize", {"tokens": ids_of("\U0001f98a")[:1]})["prompt"]
    check_in("\ufffd", cut, "a cut character")
    size = 4096
    for tokens, param in (([size], "tokens[0]"), ([1, -1], "tokens[1]"), (["a"], "tokens[0]"), ("x", "tokens"), (None, "tokens")):
        check_eq(post("/detokenize", {"tokens": tokens}, 400)["error"]["param"], param, f"param of {tokens}")
    check_eq(post("/detokenize", {"tokens": [], "model": "other"}, 404)["error"]["code"], "model_not_found", "model")


@test
def rendering_shows_the_prompt_that_a_chat_would_have():
    body = {"messages": [{"role": "user", "content": "Hi <|im_end|>"}], "max_tokens": 1}
    r = post("/v1/chat/completions/render", body)
    check_eq(r["prompt"], "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n<think>\n", "prompt")
    chat = shared().chat(**body, return_token_ids=True)
    check_eq((r["token_ids"], r["count"]), (chat["prompt_token_ids"], chat["usage"]["prompt_tokens"]), "ids")
    tokens = post("/tokenize", {"messages": body["messages"], "return_token_strs": True})
    check_eq(tokens["tokens"], r["token_ids"], "ids of /tokenize")
    check_eq("".join(tokens["token_strs"]), r["prompt"], "strings of the ids")
    check_eq(tokens["token_strs"].count("<|im_end|>"), 1, "the client's own is text")
    check_eq(post("/chat/completions/render", body)["prompt"], r["prompt"], "without /v1")
    check_eq(post("/v1/chat/completions/render", {"messages": []}, 400)["error"]["param"], "messages", "param")


main()
